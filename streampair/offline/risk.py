"""The mean loss over all pairs of a table, and its gradient, exactly, without a loop over pairs' vectors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from streampair import losses
from streampair.kernels import pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["LinearRisk", "MetricRisk", "packed", "score_slopes", "unpacked"]

# Parts that the pairs of a slow loss are cut into: fixed, so that the sum is the same on any machine.
_PARTS = 8
# Rows whose pairs are made at once, for a metric.
_ROWS = 256
_ROOT2 = np.sqrt(2.0)


def score_slopes(loss: losses.PairLoss, scores: Floats, positive: NDArray[np.bool_]) -> Floats:
    """Gradient of the risk in the scores.

    The risk is the mean over all ordered pairs of two different records, labels +1 and -1, of the loss at
    margin ``(y - y') (s - s')``; pairs of one class count in the mean, and have no gradient.

    Parameters
    ----------
    loss
        A pair loss that is a function of the margin.
    scores
        (n,), within -100 and 100.
    positive
        Which records should rank high, (n,).

    Returns
    -------
    NDArray
        (n,). Losses with `pieces` take O(n log n), others a pass over all pairs, in parallel, in O(n)
        memory.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import losses
    >>> from streampair.offline.risk import score_slopes
    >>> score_slopes(losses.Hinge(), np.array([0.0, 0.0]), np.array([True, False]))
    array([-2.,  2.])
    """
    n = len(scores)
    out = np.empty(n)
    at_high, at_low = np.flatnonzero(positive), np.flatnonzero(~positive)
    if loss.pieces is None:
        out[at_high], out[at_low] = _pair_by_pair(loss, scores[at_high], scores[at_low])
    else:
        at_high, at_low = at_high[np.argsort(scores[at_high])], at_low[np.argsort(scores[at_low])]
        high, low = np.empty(len(at_high)), np.empty(len(at_low))
        pairs.pair_sums(np.array(loss.pieces), scores[at_high], scores[at_low], high, low)
        out[at_high], out[at_low] = high, low
    # Each unordered pair is two ordered ones, of the same margin.
    out *= 2.0 / (n * (n - 1.0))
    return out


def _pair_by_pair(loss: losses.PairLoss, high: Floats, low: Floats) -> tuple[Floats, Floats]:
    parts = np.array_split(np.arange(len(high)), min(_PARTS, max(len(high), 1)))
    sums = np.empty((len(parts), len(low)))
    high_sums = np.empty(len(high))
    logistic = isinstance(loss, losses.Logistic)  # it has a faster way: an exponential for each record

    def part(number: int) -> None:
        rows = parts[number]
        span = slice(rows[0], rows[-1] + 1) if len(rows) else slice(0, 0)
        if logistic:
            pairs.pair_sums_logistic(high[span], low, high_sums[span], sums[number])
        else:
            pairs.pair_sums_any(loss.code, high[span], low, high_sums[span], sums[number])

    if len(high) * len(low) < 100_000:
        for number in range(len(parts)):
            part(number)
    else:  # kernels run without the interpreter's lock
        with ThreadPoolExecutor(min(os.cpu_count() or 1, len(parts))) as pool:
            list(pool.map(part, range(len(parts))))
    return high_sums, sums.sum(axis=0)


class LinearRisk:
    """Risk of linear scores ``w.x``.

    Parameters
    ----------
    rows
        Records in the unit ball, (n, d).
    labels
        +1 or -1, (n,).
    loss
        Pair loss.

    Attributes
    ----------
    dim
        d.
    """

    def __init__(self, rows: Floats, labels: Floats, loss: losses.PairLoss) -> None:
        self._rows = rows
        self._positive = labels > 0.0
        self._loss = loss
        self.dim = rows.shape[1]

    def gradient(self, weights: Floats) -> Floats:
        """Gradient in the weights, (d,)."""
        return self._rows.T @ score_slopes(self._loss, self._rows @ weights, self._positive)

    def with_earlier(self, index: int, weights: Floats) -> Floats:
        """Mean gradient of the pairs of record `index` with all records before it, (d,)."""
        others = np.flatnonzero(self._positive[:index] != self._positive[index])
        c = 2.0 if self._positive[index] else -2.0
        rows, x = self._rows[others], self._rows[index]
        slopes = c * self._loss.slope(c * (float(x @ weights) - rows @ weights))
        out: Floats = (slopes.sum() * x - slopes @ rows) / index
        return out


def packed(matrix: Floats) -> Floats:
    """The d (d + 1) / 2 isometric coordinates of a symmetric matrix: its lower triangle, row by row."""
    lower = np.tril_indices(len(matrix))
    out: Floats = matrix[lower] * np.where(lower[0] == lower[1], 1.0, _ROOT2)
    return out


def unpacked(vector: Floats, dim: int) -> Floats:
    """The symmetric matrix (dim, dim) of `packed`."""
    lower = np.tril_indices(dim)
    out = np.zeros((dim, dim))
    out[lower] = vector / np.where(lower[0] == lower[1], 1.0, _ROOT2)
    out.T[lower] = out[lower]
    return out


class MetricRisk:
    """Risk of a metric W, in its isometric coordinates: pairs of one class near, of two far apart.

    The margin of a pair is ``s (1 - u'Wu)`` with ``u = x - x'`` and s = 1 for one class, -1 for two.

    Parameters
    ----------
    rows
        Records in the unit ball, (n, d).
    labels
        Numbers of the classes, (n,).
    loss
        Pair loss.

    Attributes
    ----------
    dim
        d (d + 1) / 2.

    Notes
    -----
    O(n^2 d) operations in blocks of rows, O(n d) memory: distances are no order, so nothing can be sorted.
    """

    def __init__(self, rows: Floats, labels: Floats, loss: losses.PairLoss) -> None:
        self._rows = rows
        self._labels = labels
        self._loss = loss
        self.dim = rows.shape[1] * (rows.shape[1] + 1) // 2

    def gradient(self, weights: Floats) -> Floats:
        """Gradient in the coordinates, (dim,)."""
        rows, labels = self._rows, self._labels
        n, d = rows.shape
        mapped = rows @ unpacked(weights, d)
        norms = np.einsum("ij,ij->i", mapped, rows)
        diagonal, total = np.zeros(n), np.zeros((d, d))
        for start in range(0, n, _ROWS):
            span = slice(start, min(start + _ROWS, n))
            squares = norms[span, None] + norms - 2.0 * (mapped[span] @ rows.T)
            signs = np.where(labels[span, None] == labels, 1.0, -1.0)
            slopes = -signs * self._loss.slope(signs * (1.0 - squares))
            slopes[np.arange(len(slopes)), np.arange(span.start, span.stop)] = 0.0
            diagonal[span] = slopes.sum(axis=1)
            total -= rows[span].T @ (slopes @ rows)
        total += (rows * diagonal[:, None]).T @ rows
        # The sum over ordered pairs of c uu' is twice that of c (xx' - xx'^T), symmetric up to rounding.
        return packed((total + total.T) / (n * (n - 1.0)))

    def with_earlier(self, index: int, weights: Floats) -> Floats:
        """Mean gradient of the pairs of record `index` with all records before it, (dim,)."""
        d = self._rows.shape[1]
        u = self._rows[index] - self._rows[:index]
        signs = np.where(self._labels[:index] == self._labels[index], 1.0, -1.0)
        squares = np.einsum("ij,ij->i", u @ unpacked(weights, d), u)
        slopes = -signs * self._loss.slope(signs * (1.0 - squares))
        return packed((u * slopes[:, None]).T @ u) / index
