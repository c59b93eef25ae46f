"""Members of an archive: of bytes at hand, or of an object that is opened when its turn comes."""

import hashlib

from app.artifacts.tar_stream import Member
from core.storage.store import ObjectStore


def of_bytes(name: str, data: bytes) -> Member:
    return Member(name, len(data), hashlib.sha256(data).hexdigest(), lambda start, end: iter((data[start:end],)))


def of_object(store: ObjectStore, name: str, key: str, size_bytes: int, sha256: str) -> Member:
    return Member(name, size_bytes, sha256, lambda start, end: store.open(key, start=start, end=end))
