"""How far all records of an entity move the sums of blocks (docs/privacy.md 10.1, Lemma 55).

They may be in one block or in several. Admission keeps them apart in slots, and the blocks grow, so the worst
placement is neither the first slots nor the densest ones: it is bounded pair by pair, over all places.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from streampair.privacy.entities import EntityLimit, pairs_apart

__all__ = ["placed"]


@functools.lru_cache(maxsize=256)
def placed(ends: tuple[int, ...], limit: EntityLimit, share: float, rows: int) -> float:
    """`||C n||` over any `rows` consecutive releases, at most, n being an entity's records in each block.

    Records in blocks `p <= q` of R move the releases `q, q + 1, ...` together, by `share^(q - p)` times
    `1, share^2, share^4, ...`, the products of their moves. Two records that j others separate are at least
    `(j + 1) separation` slots apart, so p is at most the block that lies as far before the end of q. The sum
    of the largest products bounds the square of the norm. It is exact where the best block for one record has
    room for all.

    Relation: all records of an entity are replaced, each of which moves its block's sum by at most 1.

    Parameters
    ----------
    ends
        Slot that each block ends with, growing.
    limit
        How often the entity may come.
    share
        What is left of a block's weight at the next one: `c_k = share^k`.
    rows
        Releases that count, next to each other, wherever they are.

    Examples
    --------
    >>> from streampair.privacy import EntityLimit
    >>> from streampair.privacy.mechanisms.moments_entities import placed
    >>> round(placed((5, 10), EntityLimit(3, 1), 0.5, 2), 6)  # three in the first block: 3 and 1.5
    3.354102
    """
    if not ends or rows <= 0:
        return 0.0
    last = np.array(ends, dtype=np.int64)
    block = np.arange(len(ends))
    decay = np.cumprod(np.concatenate([[1.0], np.full(len(ends), share)]))
    energy = np.concatenate([[0.0], np.cumsum(decay * decay)])
    later = energy[np.minimum(rows, len(ends) - block)]
    count = limit.within(ends[-1])
    total = count * float(later.max())
    for between, pairs in pairs_apart(count):
        first = last - between * limit.separation
        fits = first >= 1
        apart = (block - np.searchsorted(last, first))[fits]
        total += pairs * float((decay[apart] * later[fits]).max())
    return math.sqrt(total)
