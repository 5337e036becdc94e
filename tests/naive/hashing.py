"""Hashes by the standard library; and the table of entities: linear probing, and a dict."""

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


def cell(keys: list[int], key: int) -> int:
    """Where the key is, or the first empty cell, from its hash on, round the table."""
    position = ((key * 0x9E3779B97F4A7C15) % 2**64 >> 17) % len(keys)
    while keys[position] not in (0, key):
        position = (position + 1) % len(keys)
    return position


def admitted(
    history: dict[int, list[int]],
    coming: list[int],
    slot: int,
    *,
    records: int,
    separation: int,
    capacity: int,
    shared: int,
) -> list[bool]:
    """Which records of slots `slot, slot + 1, ...` may come in; `history`: the slots of each account."""
    out = []
    for now, key in enumerate(coming, start=slot):
        account = key if key in history or len(history) < capacity else 1 + key % shared
        slots = history.get(account, [])
        apart = all(now - then >= separation for then in slots)
        out.append(key != 0 and len(slots) < records and apart)
        if out[-1]:
            history[account] = [*slots, now]
    return out


def table(entries: list[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    return {key: (last, count) for key, last, count in entries}
