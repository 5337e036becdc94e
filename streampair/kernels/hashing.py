"""BLAKE2b (RFC 7693) for a chain of hashes over the rows of a batch, and a table of 64-bit keys.

Everywhere else it is that of the standard library. But in a chain each hash is of the one before, so no call
of the library takes more than one, and a record of a batch would cost several times what learning it does.
No branch and no address depends on what is hashed, as it is secret. The table has open addressing; 0 marks
an empty cell (docs/privacy 8).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel
from streampair.kernels.vectors import viewed_as

Word = np.uint64
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

_BLOCK = 128
# Fractional parts of the roots of the first eight primes.
_IV = np.array(
    [
        *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
        *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
    ],
    dtype=np.uint64,
)
# The words of a block in the order of each round, as hexadecimal digits (section 2.7); the last two are the
# first ones again.
_DIGITS = (
    "0123456789ABCDEF"
    "EA489FD61C02B753"
    "B8C052FDAE367194"
    "7931DCBE265A40F8"
    "905724AFE1BC683D"
    "2C6A0B834D75FE19"
    "C51FED4A0763928B"
    "DB7EC13950F4862A"
    "6FE9B308C2D714A5"
    "A2847615FB9E3CD0"
    "0123456789ABCDEF"
    "EA489FD61C02B753"
)
_ORDERS = np.array([int(digit, 16) for digit in _DIGITS], dtype=np.uint8).reshape(12, 16)


@kernel
def _turned(word: Word, places: int) -> Word:
    """A word turned to the right."""
    return (word >> np.uint64(places)) | (word << np.uint64(64 - places))


@kernel
def _mix(a: Word, b: Word, c: Word, d: Word, x: Word, y: Word) -> tuple[Word, Word, Word, Word]:
    """The function G of section 3.1."""
    a = a + b + x
    d = _turned(d ^ a, 32)
    c = c + d
    b = _turned(b ^ c, 24)
    a = a + b + y
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 63)
    return a, b, c, d


@kernel
def _compress(h: Words, words: Words, at: int, count: int, last: bool) -> None:
    """The function F of section 3.2: each round mixes columns, then diagonals, with an order of words."""
    block = words[at : at + 16]
    v0, v1, v2, v3, v4, v5, v6, v7 = h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]
    v8, v9, v10, v11, v12, v13, v14, v15 = _IV[0], _IV[1], _IV[2], _IV[3], _IV[4], _IV[5], _IV[6], _IV[7]
    v12 ^= np.uint64(count)
    if last:
        v14 = ~v14
    for order in _ORDERS:
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, block[order[0]], block[order[1]])
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, block[order[2]], block[order[3]])
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, block[order[4]], block[order[5]])
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, block[order[6]], block[order[7]])
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, block[order[8]], block[order[9]])
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, block[order[10]], block[order[11]])
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, block[order[12]], block[order[13]])
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, block[order[14]], block[order[15]])
    h[0] ^= v0 ^ v8
    h[1] ^= v1 ^ v9
    h[2] ^= v2 ^ v10
    h[3] ^= v3 ^ v11
    h[4] ^= v4 ^ v12
    h[5] ^= v5 ^ v13
    h[6] ^= v6 ^ v14
    h[7] ^= v7 ^ v15


@kernel
def _hash(words: Words, length: int, key: int, size: int, h: Words) -> None:
    """The hash of so many bytes in words, behind which are zeros up to a whole block."""
    for i in range(8):
        h[i] = _IV[i]
    h[0] ^= np.uint64(0x01010000 ^ (key << 8) ^ size)
    blocks = len(words) // 16
    for b in range(blocks):
        last = b == blocks - 1
        _compress(h, words, 16 * b, length if last else _BLOCK * (b + 1), last)


@kernel
def _room(length: int) -> Words:
    """Zeros for so many bytes: whole blocks, and at least one."""
    return np.zeros(max(1, (length + _BLOCK - 1) // _BLOCK) * 16, dtype=np.uint64)


@kernel
def blake2b(data: Bytes, key: int, digest: Bytes) -> None:
    """BLAKE2b of bytes (n,), as long as `digest`, 1 to 64.

    With a key of `key` bytes data begins with it and zeros up to 128 bytes; 0: without.
    """
    words, h = _room(len(data)), np.empty(8, dtype=np.uint64)
    message, state = viewed_as(words, np.uint8), viewed_as(h, np.uint8)
    for i in range(len(data)):
        message[i] = data[i]
    _hash(words, len(data), key, len(digest), h)
    for i in range(len(digest)):
        digest[i] = state[i]


@kernel
def hash_chain(chain: Bytes, rows: Bytes) -> None:
    """Replace the chain (32,) by the BLAKE2b-256 of itself and a row, for each row (n, length) in turn."""
    size = len(chain)
    length = size + rows.shape[1]
    words, h = _room(length), np.empty(8, dtype=np.uint64)
    message, state = viewed_as(words, np.uint8), viewed_as(h, np.uint8)
    for r in range(rows.shape[0]):
        for i in range(size):
            message[i] = chain[i]
        for i in range(rows.shape[1]):
            message[size + i] = rows[r, i]
        _hash(words, length, 0, size, h)
        for i in range(size):
            chain[i] = state[i]


@kernel
def entity_cell(keys: NDArray[np.uint64], key: np.uint64) -> int:
    """Index of the cell that holds the key, or of the empty one where it belongs. Cells: a power of two."""
    mask = np.uint64(keys.shape[0] - 1)
    # Fibonacci hashing: the high bits of the product depend on all bits of the key.
    at = ((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(17)) & mask
    while keys[at] != np.uint64(0) and keys[at] != key:
        at = (at + np.uint64(1)) & mask
    return int(at)


@kernel
def entity_admit(
    keys: NDArray[np.uint64],
    last: NDArray[np.int64],
    count: NDArray[np.uint16],
    coming: NDArray[np.uint64],
    slot: int,
    records: int,
    separation: int,
    used: int,
    capacity: int,
    shared: int,
    admitted: NDArray[np.bool_],
) -> int:
    """Admit the records of slots `slot, slot + 1, ...`, each of the entity of a key; 0: nobody's.

    The table has room for all of them; beyond `capacity` entities a new key is one of `shared` accounts.
    Returns how many cells are used then.
    """
    for i in range(coming.shape[0]):
        key = coming[i]
        admitted[i] = False
        if key == np.uint64(0):
            continue
        at = entity_cell(keys, key)
        if keys[at] == np.uint64(0) and used >= capacity:
            key = np.uint64(1) + key % np.uint64(shared)
            at = entity_cell(keys, key)
        if keys[at] == np.uint64(0):
            keys[at] = key
            used += 1
        elif count[at] >= records or slot + i - last[at] < separation:
            continue
        count[at] += np.uint16(1)
        last[at] = slot + i
        admitted[i] = True
    return used


@kernel
def entity_fill(
    keys: NDArray[np.uint64],
    last: NDArray[np.int64],
    count: NDArray[np.uint16],
    new_keys: NDArray[np.uint64],
    new_last: NDArray[np.int64],
    new_count: NDArray[np.uint16],
) -> None:
    """Put entries into an empty table that has room for them."""
    for i in range(new_keys.shape[0]):
        at = entity_cell(keys, new_keys[i])
        keys[at] = new_keys[i]
        last[at] = new_last[i]
        count[at] = new_count[i]
