"""Hashes by the standard library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def blake2b(data: bytes, key: bytes, size: int) -> bytes:
    """BLAKE2b of some bytes."""
    return hashlib.blake2b(data, key=key, digest_size=size).digest()


def hash_chain(chain: bytes, rows: Iterable[bytes]) -> bytes:
    """The hash of the chain and a row, which is the next chain, for each row in turn."""
    for row in rows:
        chain = blake2b(chain + row, b"", 32)
    return chain
