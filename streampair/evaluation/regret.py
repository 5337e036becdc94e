"""Online estimates of the regret of pairwise learners: AUC, ranking and metric learning."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.comparator import Linear, Pairs, Quadratic, minimise
from streampair.evaluation.pair_reservoir import (
    RECORD_LABEL,
    STEP_ID,
    STEP_LABEL,
    STEP_MARGIN,
    STEP_OTHER,
    STEP_PARTNER,
    STEP_WEIGHT,
    Drawn,
    Features,
    PairSampler,
    Row,
    Sampler,
    Scorer,
    stands_for,
)

__all__ = [
    "LabelledRegret",
    "MetricRegret",
    "PairRegret",
    "PairSample",
    "RegretEstimate",
    "RelevanceRegret",
    "estimate",
    "estimate_from_pairs",
    "plain_design",
]


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


class PairRegret(PairSampler):
    """Online estimate of the regret of an AUC learner, with the full-history penalty.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Radius of the ball of comparators.
    pairs
        Number of sampled pairs. The standard error decreases with its square root; memory is 3 records a
        pair.
    exact
        Number of first events of which all pairs are kept; up to there the estimate is exact.
    seed
        Seed of the sample; the same seed and stream give the same sample.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Notes
    -----
    Features must be finite numbers. If one is not (such as a text for a forest), the comparator is undefined:
    the estimation ends, and `unusable` says why.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> from streampair.evaluation import PairRegret
    >>> model = auc.PairOGD(seed=1)
    >>> regret = PairRegret(model.pair_loss, model.comparator_radius)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y, model.score_one(x), model.score_one)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)
    """

    # Estimating

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """Estimate the regret of all events so far.

        Parameters
        ----------
        design_many
            Function from a list of records to the (n, d) matrix that the learner's weights multiply. None:
            the features in sorted order, with 0 for a missing one.

        Returns
        -------
        RegretEstimate or None
            None before the second event, or if `unusable`.
        """
        n = self.n_seen
        # A solution costs as much as learning ten thousand events: with this spacing, one percent.
        self._solve_at = 4 * n if n < 32 * self.pairs else n + max(n // 2, 1024 * self.pairs)
        if n < 2 or self.unusable is not None:
            return None
        everything = self._sampled()
        result, self._warm = estimate(everything, design_many, self.loss, self.radius, self._warm)
        return result

    def _sampled(self) -> PairSample:
        """The pairs that the sample holds now."""
        sample = self._sample
        counted = [sample.counted(c) for c in (0, 1)]
        scale = np.concatenate([stands_for(*sample.ranks(c), counted[c], self.exact) for c in (0, 1)])
        steps = sample.steps
        slots = np.flatnonzero((steps[:, STEP_PARTNER] >= 0.0) & (scale > 0.0))
        kept = [int(np.count_nonzero(part)) for part in np.split(scale, 2)]
        return PairSample(
            n=self.n_seen,
            exact=self.n_seen <= self.exact,
            first=[row for row, _ in self._first],
            first_labels=np.array([label for _, label in self._first], dtype=np.bool_),
            first_loss=self._first_loss,
            records=sample.rows_at("own", slots),
            partners=sample.rows_at("partner", slots),
            record_id=steps[slots, STEP_ID],
            partner_id=steps[slots, STEP_PARTNER],
            labels=slots >= sample.size,
            margin=steps[slots, STEP_MARGIN],
            weight=steps[slots, STEP_WEIGHT],
            scale=scale[slots],
            kept=(kept[0], kept[1]),
            steps=(counted[0], counted[1]),
        )


class LabelledRegret(Sampler):
    """Base class of the regret over all pairs of records: `RelevanceRegret` and `MetricRegret`.

    Parameters
    ----------
    loss, radius, pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    _strata: ClassVar[int] = 1

    # ---- what a kind of label provides -----------------------------------------------------------------

    @abc.abstractmethod
    def label(self, y: Any) -> float:
        """The number of a label; NaN for one that cannot be used."""

    @abc.abstractmethod
    def paired(self, label: Any, others: Any) -> Any:
        """Whether pairs of records with these labels, none of them NaN, depend on the weights; by element."""

    @abc.abstractmethod
    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """Arguments of the loss of the pairs of x with others, before x is learned."""

    @abc.abstractmethod
    def pairs_of(self, rows: Array, partners: Array, labels: Array, partner_labels: Array) -> Pairs:
        """Pairs of designs (n, d), with their labels (n,)."""

    # ---- observing -------------------------------------------------------------------------------------

    def _stratum(self, y: Any) -> int:
        return 0

    def _numbers_of(self, ys: Sequence[Any]) -> Array:
        return np.array([self.label(y) for y in ys], dtype=np.float64)

    def _makes_pair(self, label: float, other: float) -> bool:
        return label == label and other == other and bool(self.paired(label, other))

    def _set_weights(self, places: NDArray[np.int64]) -> None:
        """Set weight 1 for a pair, 0 where the labels form none."""
        steps = self._sample.steps
        labels, partner_labels = steps[places, STEP_LABEL], steps[places, STEP_OTHER]
        usable = ~(np.isnan(labels) | np.isnan(partner_labels))
        steps[places, STEP_WEIGHT] = usable & self.paired(labels, partner_labels)

    def _margin(self, place: int, score: float, partner_score: float) -> float:
        """By the labels; 0 where they make no pair."""
        columns = [STEP_LABEL, STEP_OTHER, STEP_WEIGHT]
        label, partner_label, weight = self._sample.steps[place, columns].tolist()
        return (
            float(self.margins(None, label, [partner_score], [partner_label], score, float)[0])
            if weight
            else 0.0
        )

    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> tuple[Row | None, float] | None:
        """As in the base."""
        early = self.n_seen < self.exact
        keep_record, keep_step, place = self._sample.drawn.next(0)
        if self.unusable is not None or not (early or keep_record or keep_step):
            return None
        label, row, value = self.label(y), self._usable_row(x), 0.0
        if row is None:
            return None, 0.0
        if early:
            others = [(x2, y2) for x2, y2 in self._first if self._makes_pair(label, y2)]
            if others:
                rows, labels = zip(*others, strict=True)
                arguments = self.margins(x, label, rows, labels, score, scorer)
                value = float(np.sum(self.loss.value(arguments))) / self.n_seen
        elif keep_step:
            other = float(self._sample.records[place, RECORD_LABEL])
            if self._makes_pair(label, other):
                partner = self._sample.rows_at("past", [place])[0]
                value = float(self.margins(x, label, [partner], [other], score, scorer)[0])
        return row, value

    # ---- estimating ------------------------------------------------------------------------------------

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """As in `PairRegret`."""
        n = self.n_seen
        self._solve_at = 4 * n if n < 32 * self.pairs else n + max(n // 2, 1024 * self.pairs)
        if n < 2 or self.unusable is not None:
            return None
        steps = self._sample.steps
        counted = self._sample.counted(0)
        scale = stands_for(*self._sample.ranks(0), counted, self.exact)
        slots = np.flatnonzero(scale > 0.0)
        first, labels = (
            [row for row, _ in self._first],
            np.array([label for _, label in self._first], dtype=np.float64),
        )
        records, partners = self._sample.rows_at("own", slots), self._sample.rows_at("partner", slots)
        # One call: the columns of the plain design depend on the rows it is given.
        design = plain_design if design_many is None else design_many
        x = np.asarray(design([*first, *records, *partners]), dtype=np.float64)
        later, earlier = np.tril_indices(len(first), -1)
        usable = ~np.isnan(labels)
        keep = usable[later] & usable[earlier] & self.paired(labels[later], labels[earlier])
        later, earlier = later[keep], earlier[keep]
        n_first, m = len(first), len(records)
        pairs = self.pairs_of(
            x[np.concatenate([later, np.arange(n_first, n_first + m)])],
            x[np.concatenate([earlier, np.arange(n_first + m, n_first + 2 * m)])],
            np.concatenate([labels[later], steps[slots, STEP_LABEL]]),
            np.concatenate([labels[earlier], steps[slots, STEP_OTHER]]),
        )
        sample = PairSample(
            n=n,
            exact=n <= self.exact,
            first=first,
            first_labels=np.zeros(len(first), dtype=np.bool_),
            first_loss=self._first_loss,
            records=records,
            partners=partners,
            record_id=steps[slots, STEP_ID],
            partner_id=steps[slots, STEP_PARTNER],
            labels=np.zeros(m, dtype=np.bool_),  # one stratum
            margin=steps[slots, STEP_MARGIN],
            weight=steps[slots, STEP_WEIGHT],
            scale=scale[slots],
            kept=(m, 0),
            steps=(counted, 0),
        )
        result, self._warm = estimate_from_pairs(
            sample, pairs, 1.0 / later, self.loss, self.radius, self._warm
        )
        return result

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """Parameters that a saved sample must have been made with."""
        return {"kind": type(self).__name__, **super().params()}

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        state = super().to_state()
        (log_w,) = cast("list[float]", state["log_w"])
        return {**state, "log_w": log_w}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """As in the base."""
        super().load_state({**state, "log_w": [state.get("log_w")]})

    def _counts_state(self) -> dict[str, object]:
        steps, records = self._sample.steps, self._sample.records
        return {
            "seen": self.n_seen,
            "own_label": steps[:, STEP_LABEL].copy(),
            "partner_label": steps[:, STEP_OTHER].copy(),
            "past_label": records[:, RECORD_LABEL].copy(),
        }

    def _counts_from(self, state: Mapping[str, Any]) -> list[int]:
        return [int(state["seen"])]

    def _labels_of_first(self) -> NDArray[Any]:
        return np.array([label for _, label in self._first], dtype=np.float64)


#: With more features, the search for the best matrix would block a lane for many seconds.
MOST_FEATURES = 64


class RelevanceRegret(LabelledRegret):
    """Online estimate of the regret of a ranking learner.

    The margin of a pair is ``(y - y') (s - s')`` in its relevances and scores; with a loss of errors
    (`losses.MinimumErrorEntropy`) its argument is ``(y - y') - (s - s')``, and pairs of equal relevance count
    as well. That loss is not convex, so the comparator need not be the best one.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Radius of the ball of comparators.
    label
        From a label to the relevance as the learner takes it, NaN for one that cannot be used: its
        `label_number`.
    pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> from streampair.evaluation import RelevanceRegret
    >>> rng = random.Random(0)
    >>> model = ranking.PairOGD(seed=1)
    >>> regret = RelevanceRegret(model.pair_loss, model.comparator_radius, label=model.label_number)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     y = 0.7 * x["stars"] - 0.5 * x["price"]
    ...     regret.observe(x, y, model.score_one(x), model.score_one)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.total > 0.0
    (1000, False, True)
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        label: Callable[[Any], float] = float,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(loss, radius, pairs=pairs, exact=exact, seed=seed)
        self._label = label
        self._of_errors = bool(getattr(self.loss, "of_errors", False))

    def label(self, y: Any) -> float:
        """The relevance."""
        return float(self._label(y))

    def paired(self, label: Any, others: Any) -> Any:
        """Pairs of equal relevance have margin 0 under all weights."""
        return label == label if self._of_errors else label != others

    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """By the scores."""
        apart, scores = label - np.array(labels), score - np.array([by(other) for other in others])
        return apart - scores if self._of_errors else apart * scores

    def pairs_of(self, rows: Array, partners: Array, labels: Array, partner_labels: Array) -> Pairs:
        """Linear in the weights."""
        apart = np.nan_to_num(labels - partner_labels)  # pairs without labels have no weight
        if self._of_errors:
            return Linear(partners - rows, apart)
        return Linear(apart[:, None] * (rows - partners))


class MetricRegret(LabelledRegret):
    """Online estimate of the regret of a metric learner.

    The margin of a pair is ``s (1 - u'Wu)`` with the difference u of the two records as the learner sees them
    and s = 1 for two records of one class, else -1. Comparators are the symmetric matrices, or the positive
    semi-definite ones, of at most this Frobenius norm. With a record of more than 64 features the estimation
    ends, and `unusable` says why.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Largest Frobenius norm of a comparator.
    quadratic
        From a record and several others to ``u'Wu`` of each pair: the learner's `quadratic_many`.
    label
        From a label to the number of its class, NaN for one that cannot be used: its `label_number`.
    psd
        Whether comparators have to be positive semi-definite.
    pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> from streampair.evaluation import MetricRegret
    >>> model = metric.PairOGD(seed=1)
    >>> regret = MetricRegret(model.pair_loss, model.comparator_radius, quadratic=model.quadratic_many,
    ...                       label=model.label_number, psd=model.psd)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        quadratic: Callable[[Any, Sequence[Any]], Array],
        label: Callable[[Any], float] = float,
        psd: bool = True,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(loss, radius, pairs=pairs, exact=exact, seed=seed)
        self._quadratic, self._label, self._psd = quadratic, label, psd

    def observe(self, x: Any, y: Any, score: float = 0.0, scorer: Scorer = float) -> None:
        """As in the base class; scores are not used."""
        super().observe(x, y, score, scorer)

    def commit(self, step: Any, y: Any) -> None:
        """As in the base; records of too many features end the estimation."""
        if self.unusable is None and step is not None and len(step[0] or ()) > MOST_FEATURES:
            self.disable(f"a metric of more than {MOST_FEATURES} features takes too long to be compared with")
        super().commit(step, y)

    def draw(self, labels: Sequence[Any], *, numbers: bool = False) -> Drawn | None:
        """None: distances to partners are computed one by one."""
        return None

    def label(self, y: Any) -> float:
        """The number of the class."""
        return float(self._label(y))

    def paired(self, label: Any, others: Any) -> Any:
        """All pairs count."""
        return label == label

    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """By the matrix."""
        signs = np.where(np.array(labels) == label, 1.0, -1.0)
        return signs * (1.0 - self._quadratic(x, others))

    def pairs_of(self, rows: Array, partners: Array, labels: Array, partner_labels: Array) -> Pairs:
        """Linear in the entries of W."""
        return Quadratic(rows - partners, np.where(labels == partner_labels, 1.0, -1.0), psd=self._psd)

    def params(self) -> dict[str, object]:
        """Parameters that a saved sample must have been made with."""
        return {**super().params(), "psd": self._psd}
