"""The table of entities: linear probing in whole numbers, and a dict."""

from __future__ import annotations


def cell(keys: list[int], key: int) -> int:
    """Where the key is, or the first empty cell, from its hash on, round the table."""
    at = ((key * 0x9E3779B97F4A7C15) % 2**64 >> 17) % len(keys)
    while keys[at] not in (0, key):
        at = (at + 1) % len(keys)
    return at


def table(entries: list[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
    return {key: (last, count) for key, last, count in entries}
