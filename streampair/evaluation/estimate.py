"""Estimates of the regret, its comparator and its standard error from sampled pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.comparator import Linear, Pairs, minimise

__all__ = ["PairSample", "RegretEstimate", "estimate", "estimate_from_pairs", "plain_design"]

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class RegretEstimate:
    """Estimated regret of the first `n` labelled events against the best fixed weights.

    Attributes
    ----------
    total
        The regret R_n.
    average
        Regret per step, ``total / (n - 1)``.
    stderr
        Standard error of `total`; 0 when exact (up to the solver's tolerance).
    comparator_loss
        Average penalty per step of the best fixed weights.
    pair_loss
        Average penalty per step of the learner.
    n
        Labelled events covered.
    exact
        Whether every pair was kept.
    penalty
        Name of the penalty: always ``"full_history"``, H20 Eq. 3.
    """

    total: float
    average: float
    stderr: float
    comparator_loss: float
    pair_loss: float
    n: int
    exact: bool
    penalty: str = "full_history"

    @property
    def average_stderr(self) -> float:
        """Standard error of `average`."""
        return self.stderr / (self.n - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class PairSample:
    """Sampled pairs of a stream: all pairs of its first events, and m pairs of later events.

    Attributes
    ----------
    n
        Labelled events so far.
    exact
        Whether the first events are all events.
    first, first_labels, first_loss
        The first events, their labels, and the learner's penalty on them altogether.
    records, partners
        The two records of each later pair.
    record_id, partner_id
        (m,), their places in the stream.
    labels
        (m,), whether the record has the positive label.
    margin
        (m,), margin of the learner on the pair at its step.
    weight
        (m,), weight of the pair in the penalty of its step.
    scale
        (m,), number of steps that the step of the pair represents.
    kept, steps
        For each label, the later steps in the sample, pairs or not, and all later steps.
    """

    n: int
    exact: bool
    first: Sequence[Any]
    first_labels: NDArray[np.bool_]
    first_loss: float
    records: Sequence[Any]
    partners: Sequence[Any]
    record_id: Array
    partner_id: Array
    labels: NDArray[np.bool_]
    margin: Array
    weight: Array
    scale: Array
    kept: tuple[int, int]
    steps: tuple[int, int]


def estimate(
    sample: PairSample,
    design_many: Callable[[list[Any]], Any] | None,
    loss: Any,
    radius: float,
    start: Array,
) -> tuple[RegretEstimate, Array]:
    """Estimate the regret of all events that a sample represents.

    The comparator is solved on all sampled pairs and, warm-started, on each half of them. On its own pairs it
    is optimistic, by about half as much as a comparator solved on one half is pessimistic on the other half.
    The estimate is the mean of both with weights 2 and 1, in which the biases cancel to first order.

    Parameters
    ----------
    sample
        The pairs.
    design_many
        See `PairRegret.estimate`.
    loss
        With `value` and `slope`.
    radius
        Radius of the ball of comparators.
    start
        Start of the search, (d,) or shorter.

    Returns
    -------
    RegretEstimate
    numpy.ndarray
        (d,), the comparator: where to begin the next search.
    """
    rows, first_weight = _differences(sample, plain_design if design_many is None else design_many)
    return estimate_from_pairs(sample, Linear(rows), first_weight, loss, radius, start)


def estimate_from_pairs(
    sample: PairSample, pairs: Pairs, first_weight: Array, loss: Any, radius: float, start: Array
) -> tuple[RegretEstimate, Array]:
    """`estimate`, with the pairs at hand: those of the first events, with their weights, then the later ones.

    Of the sample it takes what belongs to the later pairs, and the penalty on the first events altogether.
    """
    k = len(first_weight)
    weight = sample.scale * sample.weight
    weights = np.concatenate([first_weight, weight])
    best = minimise(pairs, weights, loss, radius, pairs.begin(start))
    values = np.asarray(loss.value(pairs.arguments(best)), dtype=np.float64)
    inside = float(weights @ values)
    suffered = np.asarray(loss.value(sample.margin), dtype=np.float64)
    learner = sample.first_loss + float(weight @ suffered)
    n, steps = sample.n, sample.n - 1
    if sample.exact:
        total = learner - inside
        return RegretEstimate(total, total / steps, 0.0, inside / steps, learner / steps, n, True), best
    outside = 0.0
    fold = np.arange(len(weight)) % 2
    for half in (0, 1):
        doubled = np.concatenate([first_weight, np.where(fold == half, 0.0, 2.0 * weight)])
        w = minimise(pairs, doubled, loss, radius, best, near=True, iterations=120)
        value = np.asarray(loss.value(pairs.arguments(w)), dtype=np.float64)
        outside += 0.5 * float(first_weight @ value[:k]) + float(
            weight[fold == half] @ value[k:][fold == half]
        )
    gap = max(0.0, outside - inside)
    comparator = inside + gap / 3.0
    total = learner - comparator
    terms = suffered - values[k:]
    variance = _variance(sample, weight, terms) + _unseen(weight, terms, loss)
    stderr = math.sqrt(variance + (gap / 3.0) ** 2)
    return RegretEstimate(total, total / steps, stderr, comparator / steps, learner / steps, n, False), best


def _differences(sample: PairSample, design: Callable[[list[Any]], Any]) -> tuple[Array, Array]:
    """Signed differences of pairs of the first events, then of later pairs; and weights of the former."""
    # One call: the columns of the plain design depend on the rows it is given.
    x = np.asarray(design([*sample.first, *sample.records, *sample.partners]), dtype=np.float64)
    y = sample.first_labels
    later, earlier = np.tril_indices(len(y), -1)
    keep = y[later] != y[earlier]
    later, earlier = later[keep], earlier[keep]
    n_first, n = len(sample.first), len(sample.records)
    left = np.concatenate([later, np.arange(n_first, n_first + n)])
    right = np.concatenate([earlier, np.arange(n_first + n, n_first + 2 * n)])
    high = np.concatenate([y[later], sample.labels])
    return np.where(high, 2.0, -2.0)[:, None] * (x[left] - x[right]), 1.0 / later


def _variance(sample: PairSample, weight: Array, terms: Array) -> float:
    """Variance of the sum of weight * terms: stratified by label, robust to pairs that share a record."""
    residual = weight * terms
    spare = 1.0
    for label in (0, 1):
        here = sample.labels == bool(label)
        n = sample.kept[label]
        if n > 1 and here.any():
            # Steps without a partner are terms of 0 in this stratum's mean.
            mean = residual[here].sum() / sample.steps[label]
            residual[here] -= sample.scale[here] * mean
            spare = max(spare, n / (n - 1))
    _, place = np.unique(np.concatenate([sample.record_id, sample.partner_id]), return_inverse=True)
    by_record = np.bincount(place, weights=np.concatenate([residual, residual]))
    alone = float(residual @ residual)
    # Every pair is counted under both of its records, so its own square once too often.
    shared = float(by_record @ by_record) - alone
    return spare * max(alone, shared)


def _unseen(weight: Array, terms: Array, loss: Any) -> float:
    """Squared contribution of one pair as large as the largest: a bound for pairs too rare to be sampled.

    A learner that ranks nearly all pairs rightly loses on few. Below eight of them, the pair is one of
    margin 0 (as in the rule of three).
    """
    largest = float(np.abs(weight * terms).max(initial=0.0))
    if np.count_nonzero(np.abs(terms) > 1e-9) < 8:
        at_zero = float(np.max(loss.value(np.zeros(1))))
        largest = max(largest, at_zero * float(weight.max(initial=0.0)))
    return largest * largest


def plain_design(rows: list[Any]) -> Array:
    """The features in sorted order as they are, (n, d); a missing one 0."""
    names = sorted({name for row in rows for name in row}, key=str)
    out = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        out[i] = [row.get(name, 0.0) for name in names]
    return out
