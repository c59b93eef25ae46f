"""Harm to a committed checkpoint's objects, of the kinds that disks, people and buggy stores do."""

import random
from collections.abc import Callable, Mapping

from core import keys
from core.db.models import Checkpoint
from core.storage.store import ObjectStore


def damage(store: ObjectStore, checkpoint: Checkpoint, chance: random.Random) -> str:
    """Change or remove one object; what was done to which. Raises the store's errors."""
    names = [file["name"] for file in checkpoint.files]
    key = chance.choice([keys.manifest(checkpoint.prefix), *(checkpoint.prefix + name for name in names)])
    how = chance.choice(list(_KINDS))
    before = store.get_bytes(key)
    if how == "delete":
        store.delete(key)
    else:
        store.put_bytes(key, _KINDS[how](before, chance))
    return f"{how} {key}"


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]


_KINDS: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": _flip,
    "truncate": lambda data, _: data[: len(data) // 2],
    "empty": lambda _data, _: b"",
    "delete": lambda data, _: data,
}
