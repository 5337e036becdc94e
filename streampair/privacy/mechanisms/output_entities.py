"""What all records of an entity cost under output perturbation (docs/privacy.md 4.1 and 8, Lemma 56)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from streampair import kernels
from streampair.privacy.entities import EntityLimit, pairs_apart
from streampair.privacy.recursion import output_spend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.sensitivity import Influence

    Floats = NDArray[np.float64]

__all__ = ["entity_spend"]

# What logarithms of millions of factors are off by, amply.
_SLACK = 1.0 + 1e-9


def entity_spend(
    etas: Floats,
    factors: Floats,
    influence: Influence,
    diameter: float,
    bounds: Floats,
    grids: Floats,
    precisions: Floats,
    limit: EntityLimit,
    count: int | None = None,
) -> float:
    """`mu^2` of the first releases about all records of an entity, at most (docs/privacy.md 8, Lemma 56).

    The moves of an entity are those of its records, added: `S_e <- c_t S_e + eta_t D v_e(t)`. So its cost is
    the sum over pairs of them of `sum_t v_i(t) v_l(t) / sigma_t^2`. Two that j others separate are at least
    `(j + 1) separation` slots apart, and for each such distance the dearest pair counts, wherever it is. A
    pair of which one is in the buffer at the other's step counts as two of the dearest record. Rounding is
    once for each release.

    Relation: all records of an entity are replaced. A bound; exact for one record without a grid. Never more
    than k times the dearest record, and no less where records stay for ever.

    Parameters
    ----------
    etas, factors, influence, diameter, bounds, grids, precisions, count
        As in `output_spend`; the influence is that of one record.
    limit
        How often the entity may come.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy import EntityLimit, Influence
    >>> from streampair.privacy.recursion import giga_steps, output_sensitivities
    >>> from streampair.privacy.mechanisms.output_entities import entity_spend
    >>> etas, factors = giga_steps(0.1, 4.0, 1000)
    >>> bounds = output_sensitivities(etas, factors, Influence.fifo(4), 2.0, 10.0)
    >>> given = etas, factors, Influence.fifo(4), 2.0, bounds, np.zeros(1000), np.ones(1000)
    >>> near, apart = (entity_spend(*given, EntityLimit(5, b)) for b in (1, 200))
    >>> round(near / entity_spend(*given, EntityLimit(1)), 2), round(apart / near, 2)
    (25.0, 0.22)
    """
    n = len(etas) if count is None else min(count, len(etas))
    records = limit.within(n) if n else 0
    single = output_spend(
        etas, factors, influence, diameter, bounds, np.zeros(len(etas)), precisions, count, filling=False
    )
    rounding = math.sqrt(float(precisions[:n] @ (grids[:n] * grids[:n])))
    stays = influence.uses is None or influence.uses >= len(etas)
    if stays or records < 2:
        return (records * math.sqrt(single) + rounding) ** 2
    assert influence.uses is not None
    merged, lasting = np.empty(n), np.empty(n)
    kernels.window_pairs(
        etas[:n], factors[:n], influence.shares(0, n), influence.uses, diameter, bounds[:n], precisions[:n],
        merged, lasting,
    )  # fmt: skip
    # The product of two moves is that at the later one's step; till then the earlier one has decayed.
    depth = np.cumsum(np.log(np.maximum(factors[:n], 1e-300)))
    with np.errstate(divide="ignore"):
        before, after = np.log(merged) - depth, np.log(lasting) + depth
    total = records * single
    for between, pairs in pairs_apart(records):
        gap = between * limit.separation - influence.uses - 1
        pair = single
        if gap >= 0:
            pair = min(pair, math.exp(float((before[: n - gap] + after[gap:]).max())) * _SLACK)
        total += pairs * pair
    return (math.sqrt(total) + rounding) ** 2
