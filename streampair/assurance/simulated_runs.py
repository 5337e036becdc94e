"""Simulated runs of a reference task: what noise does to a direction that is learned, without any data.

Instead of records a run has expected sums and normal noise: of what the warm-up and the mechanism release,
and of the sample. So a run of any number of records takes less than a millisecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streampair.kernels import symmetric
from streampair.privacy.mechanisms.standardization import WarmupPlan, shrunk_variances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["RUNS", "Designs", "Standardised", "designs"]

RUNS = 64
"""Runs of a forecast."""

_SIMULATED = 32  # features of a run; the noise of further ones is added to theirs
_LOADING = 0.8  # largest correlation of a number with the factor that all numbers share
_WIDTHS = (2.0, 8.0)  # distance of the bounds from their middle, in standard deviations
# Learners of gradients end between the first gradient and the best weights: at a ridge, in units of the mean
# eigenvalue, that grows with the noise up to this. Measured on these designs (benchmarks/planner.py).
_HELD_BACK, _MOST_HELD = 10.0, 3.0
_CAP = 3.0  # standard deviations at which standardised values are clipped


@dataclass(frozen=True)
class Standardised:
    """What the warm-up makes of the records, by run.

    Parameters
    ----------
    factor
        Standard deviation of each feature after it, relative to the intended one, (runs, m).
    shift
        Distance of its mean from 0, in standard deviations, (runs, m).
    length
        Root of the mean squared norm of records, before they are clipped to the unit ball, (runs,).
    label
        Error of the released mean of the labels, (runs,).
    """

    factor: Floats
    shift: Floats
    length: Floats
    label: Floats


class Designs:
    """Features and noise of the runs: functions of the number of features alone.

    Two forecasts therefore differ by their settings and not by chance. Numbers share a factor, with loadings
    of up to .8, and have bounds at 2 to 8 standard deviations. Of the columns of a text field one is 1, with
    shares of any size. The best direction is that of normal weights on the features.

    Parameters
    ----------
    d
        Number of features, columns of text fields included.
    one_hot
        Number of columns of each text field.
    """

    def __init__(self, d: int, one_hot: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng(0)
        m = min(d, _SIMULATED)
        self.d, self.m = d, m
        self.mean, self.std = np.zeros((RUNS, m)), np.empty((RUNS, m))
        covariance = np.zeros((RUNS, m, m))
        blocks = np.array([1] * (d - sum(one_hot)) + list(one_hot))
        for run in range(RUNS):
            start = 0
            loading = rng.uniform(-_LOADING, _LOADING, m)
            numbers = np.zeros(m, dtype=bool)
            for size in rng.permutation(blocks):
                part = slice(start, min(start + size, m))
                if size == 1:
                    numbers[part] = True
                    self.std[run, part] = np.exp(-rng.uniform(math.log(_WIDTHS[0]), math.log(_WIDTHS[1])))
                else:
                    shares = rng.dirichlet(np.ones(size))[: part.stop - start]
                    spread = np.sqrt(shares * (1.0 - shares))
                    self.mean[run, part], self.std[run, part] = 2.0 * shares - 1.0, 2.0 * spread
                    covariance[run, part, part] = -np.outer(shares, shares) / np.outer(spread, spread)
                start = part.stop
                if start == m:
                    break
            loading *= numbers
            covariance[run] += np.outer(loading, loading)
            np.fill_diagonal(covariance[run], 1.0)
        values, vectors = np.linalg.eigh(covariance)
        self.covariance = covariance
        self.root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.transpose(0, 2, 1)
        weights = rng.normal(size=(RUNS, m))
        best = np.einsum("rij,rj->ri", self.root, weights)
        length = np.linalg.norm(best, axis=1)[:, None]
        self.weights, self.best = weights / length, best / length  # on features, and on whitened ones
        self.gap = np.einsum("rij,rj->ri", self.root, self.best)  # covariance of features and the best score
        self.draws = rng.normal(size=(6, RUNS, m))
        self.labels = rng.normal(size=RUNS)
        both = rng.normal(size=(RUNS, m, m))
        self.matrix = 0.5 * (both + both.transpose(0, 2, 1))

    def standardised(self, warmup: WarmupPlan | None, reach: float) -> Standardised:
        """Draw what a warm-up releases; without one records have the norm `reach`, and are centred."""
        if warmup is None:
            ones = np.ones((RUNS, self.m))
            return Standardised(ones, 0.0 * ones, np.full(RUNS, reach), np.zeros(RUNS))
        slots, (sums, squares) = warmup.slots, (warmup.sigma_sum, warmup.sigma_squares)
        sampled = self.mean + self.std * self.draws[0] / math.sqrt(slots)
        mean = np.clip(sampled + sums / slots * self.draws[1], -1.0, 1.0)
        spread = self.std * np.sqrt(np.maximum(1.0 + math.sqrt(2.0 / slots) * self.draws[2], 0.1))
        square = spread**2 + sampled**2 + squares / slots * self.draws[3]
        found = np.array(
            [shrunk_variances(*row, sums / slots, squares / slots) for row in zip(mean, square, strict=True)]
        )
        factor, shift = self.std / np.sqrt(found), (self.mean - mean) / self.std
        factor = np.minimum(factor, _CAP / np.sqrt(1.0 + shift**2))
        length = np.sqrt(np.mean(factor**2 * (1.0 + shift**2), axis=1))
        return Standardised(factor, shift, length, sums / slots * self.labels)

    def regression(
        self, records: Standardised, signal: float, tilt: Floats, std: float, cross: Floats, spread: float
    ) -> Floats:
        """Weights on features (runs, m) from second moments with noise, as the learners solve for them.

        Parameters
        ----------
        records
            Of `standardised`.
        signal
            Covariance of a label with the best score.
        tilt
            Error of the centre of the labels, (runs,).
        std
            Noise of each cell of the mean second moments.
        cross
            Noise of the covariance with the label, in units of `std`, (runs,).
        spread
            Norm that records are standardised to, before they are clipped to 1.
        """
        m, grow = self.m, self.d / self.m
        matrix, vector = std * grow**1.5, std * grow
        size = spread / np.maximum(spread * records.length, 1.0) / math.sqrt(m)
        factor, shift = size[:, None] * records.factor, math.sqrt(grow) * records.shift
        moved = self.covariance + shift[:, :, None] * shift[:, None, :]
        second = factor[:, :, None] * moved * factor[:, None, :] + matrix * self.matrix
        right = factor * (signal * self.gap + tilt[:, None] * shift)
        right += vector * cross[:, None] * self.draws[4]
        found = np.empty((RUNS, m))
        for row in zip(second, right, found, strict=True):
            symmetric.ridge_solution(row[0], row[1], math.sqrt(m) * matrix, matrix * matrix, row[2])
        return found * factor

    def disturbed(self, records: Standardised, noise: float) -> Floats:
        """The best weights plus normal noise on standardised features, (runs, m).

        Parameters
        ----------
        records
            Of `standardised`.
        noise
            Noise of a coordinate relative to the weights' norm, for records that are standardised exactly.
        """
        factor = records.factor
        kept = np.linalg.norm(factor * self.gap, axis=1) / np.linalg.norm(self.gap, axis=1)
        ratio = math.sqrt(self.d / self.m) * noise * np.maximum(records.length, 1.0) / kept
        ridge = min(_HELD_BACK * math.sqrt(self.d) * noise, _MOST_HELD)
        second = factor[:, :, None] * self.covariance * factor[:, None, :] + ridge * np.eye(self.m)
        best = np.linalg.solve(second, (factor * self.gap)[:, :, None])[:, :, 0]
        best /= np.linalg.norm(best, axis=1)[:, None]
        found: Floats = factor * (best + ratio[:, None] * self.draws[4])
        return found

    def cosines(self, weights: Floats, error: float) -> Floats:
        """Cosines (runs,) between weights on the features (runs, m) and the best ones, among scores.

        Parameters
        ----------
        weights
            Weights on features of variance 1.
        error
            Error of the weights by the sample, of one coordinate, relative to their norm.
        """
        found = np.einsum("rij,rj->ri", self.root, weights)
        found /= np.maximum(np.linalg.norm(found, axis=1), 1e-300)[:, None]
        found = found + error * self.draws[5]
        cosines: Floats = np.einsum("ri,ri->r", found, self.best) / np.linalg.norm(found, axis=1)
        return cosines


@lru_cache(maxsize=8)
def designs(d: int, one_hot: tuple[int, ...] = ()) -> Designs:
    """The designs of so many features; see `Designs`."""
    return Designs(d, one_hot)
