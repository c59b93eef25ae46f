"""Seeds that follow from what they are for, and not from what was drawn before."""

from hashlib import sha256


def seed_of(*parts: int | bytes) -> int:
    """Fixed by `parts`, on every machine. Seven bytes: what every generator of torch takes."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:7])
