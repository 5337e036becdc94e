"""A ridge regression on leaves whose Gram matrix is never written down (docs/privacy.md 10.10).

What it needs of the matrix are products with vectors. A few dozen of them (Lanczos 1950) tell what sums of
leaves have at each of its eigenvalues, and so the answer for any prior, how likely each prior makes the sums,
and what noise puts into the answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streampair import kernels
from streampair.privacy.mechanisms.woods_rows import SEED, Told, dot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Answer", "Ridge"]

_STEPS = 32  # products, at most
_PROBES = 2  # draws of signs: they tell a trace within some hundredths
# Shares of the variance of the labels that all leaves together may explain, as a prior: .003 to 9.
_LEAST, _FACTOR, _PRIORS = 0.003, 1.25, 37
_MOST_SHARE = 1.25  # of the answer: its prior is narrow
_NOTHING = 1e-12  # of the largest eigenvalue, where a vector has no further part


class Answer(NamedTuple):
    """Weights of leaves.

    Parameters
    ----------
    weights
        (trees, leaves).
    share
        The share of them that is not noise.
    """

    weights: Floats
    share: float


class _Spectrum(NamedTuple):
    """Of a vector v: `v' f(G) v` is nearly `weights.f(nodes)`, f(G) v of the rows of the basis a sum.

    Rows of `vectors` are eigenvectors of G in the basis, whose first row is v / length.
    """

    nodes: Floats
    weights: Floats
    basis: Floats
    vectors: Floats
    length: float


class Ridge:
    """`prior G (prior G^2 + G (v / n + blur) + noise)^-1 r`, G being the Gram matrix of leaves over rows.

    The prior is the one that makes r likeliest. Noise and chance put `G v / n + noise` into r; rows that are
    not quite those of the stream do as if there were fewer records, by `blur`.

    Parameters
    ----------
    told
        What was released.
    leaves, weights
        Of the rows, as of `rows_of`.
    blur
        Variance for each unit of G.
    """

    def __init__(self, told: Told, leaves: NDArray[np.int64], weights: Floats, blur: float = 0.0) -> None:
        self.leaves, self.weights, self.shape = leaves, weights, told.counts.shape
        variance = 1.0 - told.centre * told.centre
        self.noise = told.std * told.std * (1.0 + told.centre * told.centre)
        self.unit = variance / self.shape[0]
        self.chance = variance / told.records
        self.blur = blur

    def gram(self, v: Floats) -> tuple[Floats, Floats]:
        """`W Phi v`, (n, k), and `G v`, of several v, (k, trees, leaves)."""
        shown, out = np.empty((len(self.weights), len(v))), np.empty(v.shape)
        kernels.wood_gram(self.leaves, self.weights, v, shown, out)
        return shown, out

    def solve(self, left: Floats) -> Answer:
        """Of sums (trees, leaves), with the share that makes the risk least (Stein 1981).

        Of noise alone the answer would have `tr A S` with its own sums, A being what makes the answer and S
        the covariance of noise and chance.
        """
        own, *probes = self._spectra(np.concatenate((left[None], self._signs())))
        prior = self._likeliest(own, probes)
        filtered = self._filter(prior, own.nodes)
        seen = dot(own.weights, filtered)
        length = dot(own.weights * filtered, filtered * own.nodes)
        of_noise = 0.0
        for probe in probes:
            covariance = self.chance * probe.nodes + self.noise
            of_noise += dot(probe.weights, self._filter(prior, probe.nodes) * covariance) / _PROBES
        share = min(max((seen - of_noise) / length, 0.0), _MOST_SHARE) if length > 0.0 else 0.0
        along = np.empty(len(own.nodes))
        rows = np.ascontiguousarray(own.vectors.T)
        kernels.score_many(own.length * filtered * own.vectors[:, 0], rows, along)
        weights = np.zeros(left.size)
        for part, vector in zip(along.tolist(), own.basis, strict=True):
            weights += part * vector
        return Answer(weights.reshape(self.shape), share)

    def _filter(self, prior: float, nodes: Floats) -> Floats:
        """What the answer has of r at each eigenvalue."""
        out: Floats = prior * nodes / self._variance(prior, nodes)
        return out

    def _variance(self, prior: float, nodes: Floats) -> Floats:
        """Of r at each eigenvalue: of signal, of chance and blur, and of noise."""
        out: Floats = prior * nodes * nodes + (self.chance + self.blur) * nodes + self.noise
        return out

    def _likeliest(self, own: _Spectrum, probes: list[_Spectrum]) -> float:
        """The prior under which r, as a normal vector, has the greatest density."""
        best, least = 0.0, math.inf
        prior = _LEAST * self.unit
        for _ in range(_PRIORS):
            unlikely = dot(own.weights, 1.0 / self._variance(prior, own.nodes))
            for probe in probes:
                variances = self._variance(prior, probe.nodes).tolist()
                logs = np.array([kernels.log_positive(one) for one in variances])
                unlikely += dot(probe.weights, logs) / _PROBES
            if unlikely < least:
                best, least = prior, unlikely
            prior *= _FACTOR
        return best

    def _signs(self) -> Floats:
        """Probes, (_PROBES, trees, leaves): 1 and -1, from public coins."""
        out = np.empty((_PROBES, *self.shape))
        for probe, e in enumerate(out):
            normals = np.empty(e.size)
            kernels.normals_from_seed(SEED + 1 + probe, normals)
            e[:] = np.where(normals < 0.0, -1.0, 1.0).reshape(self.shape)
        return out

    def _spectra(self, given: Floats) -> list[_Spectrum]:
        """Of several vectors (k, trees, leaves): Lanczos's method, each step orthogonal to all before."""
        count, size = len(given), given[0].size
        lengths = [math.sqrt(dot(one, one)) for one in given]
        basis = np.zeros((count, _STEPS, size))
        middle, beside = np.zeros((count, _STEPS)), np.zeros((count, _STEPS))
        now = np.zeros((count, size))
        for k, length in enumerate(lengths):
            if length > 0.0:
                now[k] = given[k].ravel() / length
        for step in range(_STEPS):
            basis[:, step] = now
            after = self.gram(now.reshape(given.shape))[1].reshape(count, size)
            for k in range(count):
                done = basis[k, : step + 1]
                part = np.empty(step + 1)
                for again in range(2):
                    kernels.score_many(after[k], done, part)
                    if again == 0:
                        middle[k, step] = part[step]
                    for along, vector in zip(part.tolist(), done, strict=True):
                        after[k] -= along * vector
                beside[k, step] = math.sqrt(dot(after[k], after[k]))
                if beside[k, step] > _NOTHING * middle[k].max():
                    now[k] = after[k] / beside[k, step]
                else:
                    beside[k, step], now[k] = 0.0, 0.0
        return [self._spectrum(*parts) for parts in zip(middle, beside, basis, lengths, strict=True)]

    def _spectrum(self, middle: Floats, beside: Floats, basis: Floats, length: float) -> _Spectrum:
        matrix, nodes = np.zeros((_STEPS, _STEPS)), np.empty(_STEPS)
        at = np.arange(_STEPS)
        matrix[at, at] = middle
        matrix[at[:-1], at[1:]] = matrix[at[1:], at[:-1]] = beside[:-1]
        kernels.eigen(matrix, nodes)
        own = length * matrix[:, 0]
        return _Spectrum(np.maximum(nodes, 0.0), own * own, basis, matrix, length)
