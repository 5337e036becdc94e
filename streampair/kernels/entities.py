"""A table of 64-bit keys with open addressing; 0 marks an empty cell (docs/privacy 8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel


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
