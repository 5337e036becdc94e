"""Online estimates of the regret of pairwise learners: AUC, ranking and metric learning."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.comparator import Linear, Pairs, Quadratic
from streampair.evaluation.estimate import (
    PairSample,
    RegretEstimate,
    estimate,
    estimate_from_pairs,
    plain_design,
)
from streampair.evaluation.pair_reservoir import (
    Drawn,
    Features,
    PairSampler,
    Records,
    Row,
    Sampler,
    Scorer,
    stands_for,
)
from streampair.kernels import sampling as layout

__all__ = [
    "LabelledRegret",
    "MetricRegret",
    "PairRegret",
    "RelevanceRegret",
]


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
        slots = np.flatnonzero((steps[:, layout.STEP_PARTNER] >= 0.0) & (scale > 0.0))
        kept = [int(np.count_nonzero(part)) for part in np.split(scale, 2)]
        return PairSample(
            n=self.n_seen,
            exact=self.n_seen <= self.exact,
            first=[row for row, _ in self._first],
            first_labels=np.array([label for _, label in self._first], dtype=np.bool_),
            first_loss=self._first_loss,
            records=sample.rows_at("own", slots),
            partners=sample.rows_at("partner", slots),
            record_id=steps[slots, layout.STEP_ID],
            partner_id=steps[slots, layout.STEP_PARTNER],
            labels=slots >= sample.size,
            margin=steps[slots, layout.STEP_MARGIN],
            weight=steps[slots, layout.STEP_WEIGHT],
            scale=scale[slots],
            kept=(kept[0], kept[1]),
            steps=(counted[0], counted[1]),
        )


Array = NDArray[np.float64]


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
        labels, partner_labels = steps[places, layout.STEP_LABEL], steps[places, layout.STEP_OTHER]
        usable = ~(np.isnan(labels) | np.isnan(partner_labels))
        steps[places, layout.STEP_WEIGHT] = usable & self.paired(labels, partner_labels)

    def _margin(self, place: int, score: float, partner_score: float) -> float:
        """By the labels; 0 where they make no pair."""
        columns = [layout.STEP_LABEL, layout.STEP_OTHER, layout.STEP_WEIGHT]
        label, partner_label, weight = self._sample.steps[place, columns].tolist()
        return (
            float(self.margins(None, label, [partner_score], [partner_label], score, float)[0])
            if weight
            else 0.0
        )

    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> tuple[Row | None, float] | None:
        """As in the base."""
        early = self.n_seen < self.exact
        keep_record, keep_step, place = self._sample.next(0)
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
            other = float(self._sample.records[place, layout.RECORD_LABEL])
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
            np.concatenate([labels[later], steps[slots, layout.STEP_LABEL]]),
            np.concatenate([labels[earlier], steps[slots, layout.STEP_OTHER]]),
        )
        sample = PairSample(
            n=n,
            exact=n <= self.exact,
            first=first,
            first_labels=np.zeros(len(first), dtype=np.bool_),
            first_loss=self._first_loss,
            records=records,
            partners=partners,
            record_id=steps[slots, layout.STEP_ID],
            partner_id=steps[slots, layout.STEP_PARTNER],
            labels=np.zeros(m, dtype=np.bool_),  # one stratum
            margin=steps[slots, layout.STEP_MARGIN],
            weight=steps[slots, layout.STEP_WEIGHT],
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
            "own_label": steps[:, layout.STEP_LABEL].copy(),
            "partner_label": steps[:, layout.STEP_OTHER].copy(),
            "past_label": records[:, layout.RECORD_LABEL].copy(),
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

    def draw(
        self, labels: Sequence[Any], *, numbers: bool = False, rows: Records | None = None
    ) -> Drawn | None:
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
