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

__all__ = ["leader_of", "noise_of_leader", "projected", "unpacked"]


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


def projected(moves: Floats, w: Floats, radius: float) -> Floats:
    """How the projection of w (d,) to the ball moves, where w itself moves by `moves`, (d, k)."""
    length = math.sqrt(float(w @ w))
    if length <= radius:
        return moves
    unit = w / length
    return np.asarray((radius / length) * (moves - np.outer(unit, unit @ moves)))


def noise_of_leader(
    second: Floats,
    cross: Floats,
    ridge: float,
    matrix_noise: float,
    cross_noise: Floats,
    radius: float,
    *,
    rate: float | None = None,
) -> Floats:
    """Standard deviation (d,) of what noise in the moments adds to the weights, to first order in it.

    Parameters
    ----------
    second, cross, ridge
        As of `leader_of`: the weights solve `(second+ + ridge I) w = cross`.
    matrix_noise
        Variance of the noise in a coordinate of `second`, packed.
    cross_noise
        That in each coordinate of `cross`, (d,).
    radius
        Of the ball that the weights are projected to.
    rate
        Share of positives, by which `leader_of` scales the solution; None: it is not scaled.

    Notes
    -----
    With `M = (second+ + ridge I)^-1` and `v = M cross`, noise E in the matrix and e in the vector move v by
    `M (e - E v)`. Cells of E beside the diagonal have half of the variance s of a packed coordinate, so
    `h'E v` has the variance `s (|h|^2 |v|^2 + (h.v)^2) / 2`. For eyes alone: numpy's linear algebra will do.
    """
    values, vectors = np.linalg.eigh(second)
    gaps = values[:, None] - values[None, :]
    values = values - matrix_noise * (gaps / (gaps * gaps + 0.5 * matrix_noise)).sum(axis=1)
    values = np.maximum(values, 0.0) + ridge
    inverse = (vectors / values) @ vectors.T
    v = inverse @ cross
    by_vector = by_matrix = inverse
    w = v
    if rate is not None:
        spread = rate * (1.0 - rate)
        explained = float(v @ cross) / spread
        odds = min(max(explained, 0.0), 0.999)
        odds /= 1.0 - odds
        length = (1.0 + odds) / (4.0 * spread + 2.0 * odds)
        slope = 0.0
        if 0.0 < explained < 0.999:
            slope = (4.0 * spread - 2.0) / (4.0 * spread + 2.0 * odds) ** 2 * (1.0 + odds) ** 2 / spread
        # `v . cross` moves by `2 v.e - v'E v`, and the length with it.
        along = slope * np.outer(v, v)
        by_vector, by_matrix, w = length * inverse + 2.0 * along, length * inverse + along, length * v
    by_vector, by_matrix = (projected(moves, w, radius) for moves in (by_vector, by_matrix))
    variance = (by_vector * by_vector) @ cross_noise
    squares = (by_matrix * by_matrix).sum(axis=1)
    variance += 0.5 * matrix_noise * (squares * float(v @ v) + (by_matrix @ v) ** 2)
    out: Floats = np.sqrt(variance)
    return out
