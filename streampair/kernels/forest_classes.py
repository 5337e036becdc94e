"""Several classes over the same trees, each against all others: a block of experts for each class.

The first class has its block in the state of the trees, as `auc.Forest` has; further ones are lines of an
array. What a class learns is what a forest of that class alone would learn over these trees: no label moves
one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest import forest_fit, forest_load, forest_usable, forest_visit
from streampair.kernels.forest_scores import forest_add, forest_descend, forest_stacked


@kernel
def _score(s: Array, others: Array, scores: Array) -> None:
    """Scores (1 + others,) of the record in the state."""
    if forest_descend(s):
        forest_add(s, s)
        for i in range(others.shape[0]):
            forest_add(s, others[i])
    scores[0] = forest_stacked(s)
    for i in range(others.shape[0]):
        scores[1 + i] = forest_stacked(others[i])


@kernel
def _learn(s: Array, others: Array, which: int) -> None:
    """Learn the record that was scored: each class is told whether it is its own."""
    forest_fit(s, s, 1.0 if which == 0 else 0.0)
    for i in range(others.shape[0]):
        forest_fit(s, others[i], 1.0 if which == 1 + i else 0.0)
    forest_visit(s, others)


@kernel
def forest_score_classes(s: Array, others: Array, gaps: bool, scores: Array) -> int:
    """Scores (1 + others,) of the record in the state; 1 if it cannot be used."""
    if not forest_usable(s, gaps):
        return 1
    _score(s, others, scores)
    return 0


@kernel
def forest_learn_class(s: Array, others: Array, which: int, gaps: bool) -> int:
    """Learn the record in the state, of the class `which`; 1 if it cannot be used."""
    if not forest_usable(s, gaps):
        return 1
    _score(s, others, np.empty(1 + others.shape[0]))
    _learn(s, others, which)
    return 0


@kernel
def forest_score_classes_many(s: Array, others: Array, rows: Array, scores: Array) -> None:
    """Scores (n, 1 + others) of usable rows (n, d)."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        _score(s, others, scores[i])


@kernel
def forest_learn_classes(
    s: Array, others: Array, rows: Array, classes: NDArray[np.int64], scores: Array
) -> None:
    """Learn usable rows (n, d) in order; `scores` (n, 1 + others) gets those of each before it."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        _score(s, others, scores[i])
        _learn(s, others, classes[i])
