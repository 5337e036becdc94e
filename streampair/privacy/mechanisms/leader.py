"""The leader of the squared pair loss from noisy moments: post-processing of releases, so free."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from streampair import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["leader_of", "unpacked"]


def unpacked(mean: Floats, d: int) -> tuple[Floats, Floats]:
    """The symmetric matrix (d, d) and the vector (d,) of a released mean.

    Parameters
    ----------
    mean
        Lower triangle, row by row, the entries beside the diagonal times sqrt(2); then the vector.
    d
        Features.
    """
    second: Floats = mean[_places(d)]
    diagonal = second.reshape(d * d)[:: d + 1]
    diagonal *= 2.0
    second /= math.sqrt(2.0)
    diagonal /= math.sqrt(2.0)
    return second, mean[-d:]


@functools.lru_cache(maxsize=8)
def _places(d: int) -> NDArray[np.intp]:
    """Where in a packed triangle each cell of the matrix (d, d) is: found once, for every release asks."""
    i, j = np.indices((d, d))
    row, column = np.maximum(i, j), np.minimum(i, j)
    places: NDArray[np.intp] = row * (row + 1) // 2 + column
    return places


def leader_of(
    second: Floats, cross: Floats, rate: float, ridge: float, noise: float = 0.0
) -> tuple[Floats, float]:
    """Weights (d,) of the least squared pair loss `(1 - 2 w.(x - x'))^2`, from moments.

    With them what noise of variance 1 in each cell of `cross` adds to `w . cross` in the mean.

    Parameters
    ----------
    second
        Mean of x x' over centred records, (d, d), symmetric; with noise, so eigenvalues may be negative.
    cross
        Mean of `(b - rate) x`, with b = 1 for a positive and 0 for a negative, (d,).
    rate
        Share of positives.
    ridge
        Added to every eigenvalue, at least 0, which are floored at 0 before.
    noise
        Variance of the noise in a coordinate of `second`, packed: by it the eigenvalues are pulled together
        first (`kernels.ridge_solution`).

    Notes
    -----
    Where the classes share their covariance S, the mean of x x' is `S + rate (1 - rate) u u'` with u the
    difference of the class means, so the pairs' `2 S + u u'` and their leader follow from the regression of
    b on x: the same direction, another length (Sherman-Morrison). Without the assumption it is that
    regression, of which the order is used.
    """
    # Not by a library of linear algebra: its last digits differ between processors, and so would scores.
    w = np.empty(len(cross))
    trace = float(kernels.ridge_solution(second, cross, ridge, noise, w))
    spread = rate * (1.0 - rate)
    explained = min(max(float(kernels.dot(w, cross)) / spread, 0.0), 0.999)
    distance = explained / (1.0 - explained) / spread
    length = (1.0 + spread * distance) / (spread * (4.0 + 2.0 * distance))
    w *= length
    return w, length * trace
