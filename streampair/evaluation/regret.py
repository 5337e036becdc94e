"""Online estimate of the regret of pairwise learners: AUC, ranking and metric learning.

A regret compares the losses that a learner had on the pairs of a stream with those of the best fixed weights.
It is estimated from pairs that reservoirs draw: all pairs of the first events, and later for each drawn
event, a *step*, one pair with a record that came before it. Each pair is kept with the margin that the
learner gave it just before it learned the event. All else is done when the estimate is asked for: the best
fixed weights for these pairs (`comparator`), and the standard error.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.comparator import Pairs, QuadraticPairs, minimise
from streampair.evaluation.reservoirs import FOR_EVER, SkipReservoir, StepReservoir

__all__ = ["Kept", "Regret", "RegretEstimate", "Step", "plain_design"]

Array = NDArray[np.float64]
Features = Mapping[Any, Any]

#: Types of feature names that a snapshot can hold.
_NAMES = frozenset({str, int})
#: With more features, the search for the best matrix would block a lane for many seconds.
_MOST_FEATURES = 64


@dataclass(frozen=True, slots=True)
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


class Kept(NamedTuple):
    """A record in the sample: its place in the stream, the number of its label, and its numeric features."""

    id: int
    label: float
    row: dict[Any, float]


@dataclass(slots=True)
class Step:
    """An event, the record that it is paired with (None: there was none), and the weight of the pair.

    `margin` is that of the learner before the event was learned.
    """

    record: Kept
    partner: Kept | None
    weight: float
    margin: float = 0.0


class _Steps(NamedTuple):
    """The steps in the sample that have a partner, as arrays (m,).

    `scale` is the number of steps that each represents, and is in `weight`. `counts` has for each stratum the
    steps in the sample, with a partner or not, and all steps.
    """

    stratum: NDArray[np.int64]
    scale: Array
    weight: Array
    margin: Array
    records: list[Kept]
    partners: list[Kept]
    counts: list[tuple[int, int]]


class Regret:
    """Online estimate of the regret of a pairwise learner, with the full-history penalty.

    The margin of a pair is ``(y - y') (s - s')`` in its labels and scores, of two classes with y = 1 and -1.
    With a loss of errors (`losses.MinimumErrorEntropy`) its argument is ``(y - y') - (s - s')``, and pairs of
    equal labels count as well; that loss is not convex, so the comparator need not be the best one. The
    margin of a metric is ``1 - u'Wu`` for two records of one class, and else ``u'Wu - 1``, with the
    difference u of the records as the learner sees them.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Radius of the ball of comparators; of matrices the largest Frobenius norm.
    label
        From a label to its number as the learner takes it, NaN for one that cannot be used: its
        `label_number`. None: there are two classes, and a label says whether it is the positive one; the
        sample is then stratified by class.
    quadratic
        Of a metric: from a record and several others to ``u'Wu`` of each pair, the learner's
        `quadratic_many`.
    psd
        Whether the matrices have to be positive semi-definite.
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

    Attributes
    ----------
    n_seen
        Labelled events observed.
    trusting
        Whether what is no number in a record is left out, as the learner passes over it.
    unusable
        Why there is no estimate; None while there is one.

    Notes
    -----
    Features must be finite numbers. If one is not (such as a text for a forest), the comparator is undefined:
    the estimation ends, and `unusable` says why. It also ends with a record of more than 64 features for a
    metric.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc, metric
    >>> from streampair.evaluation import Regret
    >>> model = auc.PairOGD(seed=1)
    >>> regret = Regret(model.pair_loss, model.comparator_radius)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y, model.score_one(x), model.score_one)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)

    A metric has no scores:

    >>> model = metric.PairOGD(seed=1)
    >>> regret = Regret(model.pair_loss, model.comparator_radius, label=model.label_number,
    ...                 quadratic=model.quadratic_many, psd=model.psd)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y)
    ...     model.learn_one(x, y)
    >>> regret.estimate(model.design_many).n
    1250
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        label: Callable[[Any], float] | None = None,
        quadratic: Callable[[Any, Sequence[Any]], Array] | None = None,
        psd: bool = True,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        if pairs < 16 or exact < 2 or not radius > 0.0 or not math.isfinite(radius):
            raise ConfigError(
                f"Regret(radius={radius}, pairs={pairs}, exact={exact}) cannot work",
                fix="give a positive radius, at least 16 pairs and an exact part of at least 2 events",
            )
        self.loss = losses.Hinge() if loss is None else loss
        self.radius, self.pairs, self.exact, self.seed = float(radius), pairs, exact, seed
        self.trusting = False
        self.unusable: str | None = None
        self.n_seen = 0
        self._label, self._quadratic, self._psd = label, quadratic, psd
        self._of_errors = bool(getattr(self.loss, "of_errors", False))
        #: Whether labels are of two classes. Partners are then of the other one.
        self.two_classes = label is None
        self._strata = range(2 if self.two_classes and quadratic is None else 1)
        size = pairs // len(self._strata)
        self._first: list[Kept] = []
        self._first_loss = 0.0
        self._steps = [StepReservoir[Step](size, exact) for _ in self._strata]
        self._records = [SkipReservoir[Kept](size) for _ in self._strata]
        self._random = random.Random(seed)  # noqa: S311  (a sample, not a secret)
        # For the partner of the next step, so that it is known before the event is learned.
        self._uniform = self._random.random()
        self._warm = np.zeros(0)
        self._solve_at = 2

    # ---- observing -------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether the stream has grown enough since the last estimate for another one to be cheap."""
        return self.n_seen >= self._solve_at and self.unusable is None

    def observe(
        self, x: Features, y: Any, score: float = 0.0, scorer: Callable[[Any], float] = float
    ) -> None:
        """Observe one labelled event, after it was scored and before it is learned.

        Parameters
        ----------
        x
            The record as the learner sees it.
        y
            Its label; of two classes, whether it has the positive one.
        score
            The learner's score of `x`. A metric has none.
        scorer
            The learner's scoring function, for the partner.
        """
        self.commit(x, y, score, self.prepare(x, y, scorer))

    def enters(self, y: Any) -> bool:
        """Whether the next event, if it has this label, enters the sample."""
        return self._left(self._stratum(y)) <= 0

    def prepare(self, x: Features, y: Any, scorer: Callable[[Any], float]) -> Array | None:
        """Score the records that the next event is paired with, before it is learned; changes nothing.

        Returns
        -------
        numpy.ndarray or None
            For `commit`: the scores, or for a metric ``u'Wu`` of each pair. None: the event does not enter
            the sample.
        """
        if not self.enters(y):
            return None
        rows = [other.row for other in self._partners(y)]
        if self._quadratic is not None and rows:
            return self._quadratic(x, rows)
        return np.array([scorer(row) for row in rows])

    def commit(self, x: Features, y: Any, score: float, prepared: Array | None) -> None:
        """Count an event after it was learned, with its score and what `prepare` returned."""
        n = self.n_seen
        if prepared is None:
            self._skip(self._stratum(y), 1)
            return
        labels = np.array([other.label for other in self._partners(y)])
        margins = self._margins(self._number(y), labels, score, prepared)
        step = self._take(x, y)
        if step is not None and len(margins):
            step.margin = float(margins[0])
        elif n < self.exact and self.unusable is None and len(margins):
            self._first_loss += float(np.sum(self.loss.value(margins))) / n

    def draw(self, labels: Sequence[Any], record: Callable[[int], Features]) -> list[tuple[int, Step]] | None:
        """Count a batch that is learned at once, and keep those of its events that enter the sample.

        Parameters
        ----------
        labels
            Of the events; of two classes they may be bytes, 1 for the positive one and else 0.
        record
            From an index in the batch to the record there, as the learner sees it.

        Returns
        -------
        list of tuple, or None
            Index in the batch and step of each drawn event that has a partner, for `record_score`. None, with
            nothing changed, where events are to be observed one by one: in the exact part, and for a metric.
        """
        if self.n_seen < self.exact or self._quadratic is not None:
            return None
        drawn = []
        for index in self._entering(bytes(labels) if len(self._strata) == 2 else bytes(len(labels))):
            step = self._take(record(index), labels[index])
            if step is not None:
                drawn.append((index, step))
        return drawn if self.unusable is None else []

    def record_score(self, step: Step, score: float, partner_score: float) -> None:
        """Record the margin of a drawn step: its score, and its partner's before the event was learned."""
        if step.partner is not None and step.weight:
            step.margin = float(self._margins(step.record.label, step.partner.label, score, partner_score))

    def _stratum(self, y: Any) -> int:
        return 1 if len(self._strata) == 2 and y else 0

    def _number(self, y: Any) -> float:
        return (1.0 if y else -1.0) if self._label is None else float(self._label(y))

    def _paired(self, labels: Any, others: Any) -> Any:
        """Whether pairs of records with these labels depend on the weights; by element."""
        known = (labels == labels) & (others == others)  # none is NaN
        return known if self._of_errors or self._quadratic is not None else known & (labels != others)

    def _margins(self, label: float, others: Any, score: float, found: Any) -> Any:
        """Arguments of the loss of pairs, by the others' labels and what `prepare` found; by element."""
        if self._quadratic is not None:
            return np.where(others == label, 1.0, -1.0) * (1.0 - found)
        apart = label - others
        return apart - (score - found) if self._of_errors else apart * (score - found)

    def _left(self, stratum: int) -> int:
        """Number of the next events of a stratum of which none enters the sample."""
        if self.unusable is not None:
            return FOR_EVER
        if self.n_seen < self.exact:
            return 0
        steps, records = self._steps[stratum].left, self._records[stratum].left
        return steps if steps < records else records

    def _skip(self, stratum: int, number: int) -> None:
        """Count events that do not enter the sample."""
        self.n_seen += number
        self._steps[stratum].count += number
        self._records[stratum].count += number

    def _entering(self, strata: bytes) -> Iterator[int]:
        """Indices of the events that enter, each to be taken before the next; all others are counted."""
        ones = strata.count(1)
        counts = [len(strata) - ones, ones][: len(self._strata)]
        if all(count <= self._left(c) for c, count in enumerate(counts)):
            for c, count in enumerate(counts):
                self._skip(c, count)
            return
        places = [(np.frombuffer(strata, np.uint8) == c).nonzero()[0] for c in self._strata]
        done, end = [0 for _ in places], len(strata)
        # The next event of each stratum that enters: its number there, and its index.
        following = [self._left(c) for c in self._strata]
        coming = [int(places[c][k]) if k < counts[c] else end for c, k in enumerate(following)]
        while (index := min(coming)) < end and self.unusable is None:
            stratum = strata[index]
            number = following[stratum]
            for c in self._strata:
                before = number if c == stratum else index - number
                self._skip(c, before - done[c])
                done[c] = before
            yield index
            done[stratum] += 1
            following[stratum] = number = done[stratum] + self._left(stratum)
            coming[stratum] = int(places[stratum][number]) if number < counts[stratum] else end
        for c, count in enumerate(counts):
            self._skip(c, count - done[c])

    def _partners(self, y: Any) -> list[Kept]:
        """The records that the next event makes pairs with, if it has this label."""
        label, others = self._number(y), self._first
        if self.n_seen >= self.exact:
            stratum = self._stratum(y)
            partner = None if self._steps[stratum].left else self._partner(stratum)
            others = [] if partner is None else [partner]
        return [other for other in others if self._paired(label, other.label)]

    def _partner(self, stratum: int) -> Kept | None:
        """The record that the next event is paired with if it is a step; None if there is none."""
        past = self._records[len(self._records) - 1 - stratum]
        filled = min(past.count, len(past.items))
        return past.items[int(self._uniform * filled)] if filled else None

    def _take(self, x: Features, y: Any) -> Step | None:
        """Count an event that enters the sample, and keep it; the step, if it has a partner."""
        n, stratum, row = self.n_seen, self._stratum(y), self._usable(x)
        if isinstance(row, str):
            self._skip(stratum, 1)
            self._end(row)
            return None
        steps, records, kept = self._steps[stratum], self._records[stratum], Kept(n, self._number(y), row)
        is_step = n >= self.exact and not steps.left
        partner, weight = self._partner(stratum) if is_step else None, 0.0
        if partner is not None and self._paired(kept.label, partner.label):
            # Its partner was drawn for those of the events before it that are of the other stratum.
            weight = self._records[1 - stratum].count / n if len(self._strata) == 2 else 1.0
        self.n_seen += 1
        if records.left:
            records.count += 1
        else:
            records.put(kept, self._random)
        if n < self.exact:
            self._first.append(kept)
        elif not is_step:
            steps.count += 1
        else:
            step = Step(kept, partner, weight)
            steps.put(step, self._random)
            self._uniform = self._random.random()
            return step if partner is not None else None
        return None

    def _usable(self, x: Features) -> dict[Any, float] | str:
        """The record with plain floats, or why the estimation has to end."""
        row: dict[Any, float] = {}
        if {*map(type, x)} <= _NAMES and {*map(type, x.values())} <= {float}:
            row = dict(x) if all(map(math.isfinite, x.values())) else row
        for name, value in () if row else x.items():
            known = self.trusting or (type(name) in _NAMES and not isinstance(value, str | bytes))
            try:
                number = float(value) if known else math.nan
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if math.isfinite(number):
                row[name] = number
            elif not self.trusting:
                return "a feature of the stream is not a finite number"
        if self._quadratic is not None and len(row) > _MOST_FEATURES:
            return f"a metric of more than {_MOST_FEATURES} features takes too long to be compared with"
        return row

    def _end(self, why: str) -> None:
        """End the estimation and discard the sample; from now on events are only counted."""
        self.unusable, self._first = why, []
        for steps, records in zip(self._steps, self._records, strict=True):
            steps.items, records.items = [None] * len(steps.items), [None] * len(records.items)

    # ---- estimating ------------------------------------------------------------------------------------

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """Estimate the regret of all events so far.

        The comparator is solved on all sampled pairs and, warm-started, on each half of them. On its own
        pairs it is optimistic, by about half as much as a comparator solved on one half is pessimistic on the
        other half. The estimate is the mean of both with weights 2 and 1, in which the biases cancel to first
        order.

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
        later = self._sampled()
        pairs, early = self._pairs(later, plain_design if design_many is None else design_many)
        weights = np.concatenate([early, later.weight])
        best = self._warm = minimise(pairs, weights, self.loss, self.radius, pairs.begin(self._warm))
        values = np.asarray(self.loss.value(pairs.arguments(best)), dtype=np.float64)
        suffered = np.asarray(self.loss.value(later.margin), dtype=np.float64)
        learner = self._first_loss + float(later.weight @ suffered)
        comparator, stderr = float(weights @ values), 0.0
        if n > self.exact:
            gap = max(0.0, self._outside(pairs, early, later.weight, best) - comparator)
            comparator += gap / 3.0
            terms = suffered - values[len(early) :]
            variance = _variance(later, terms) + _unseen(later.weight, terms, self.loss)
            stderr = math.sqrt(variance + (gap / 3.0) ** 2)
        total, steps = learner - comparator, n - 1
        exact = n <= self.exact
        return RegretEstimate(total, total / steps, stderr, comparator / steps, learner / steps, n, exact)

    def _sampled(self) -> _Steps:
        """The steps that the sample holds now."""
        paired, scales, counts = [], [], []
        for stratum, steps in enumerate(self._steps):
            scale = steps.stand_for()
            counts.append((int(np.count_nonzero(scale)), steps.count))
            for step, each in zip(steps.items, scale.tolist(), strict=True):
                if step is not None and step.partner is not None and each > 0.0:
                    paired.append((stratum, step, step.partner))
                    scales.append(each)
        return _Steps(
            stratum=np.array([stratum for stratum, _, _ in paired], dtype=np.int64),
            scale=np.array(scales),
            weight=np.array(scales) * np.array([step.weight for _, step, _ in paired]),
            margin=np.array([step.margin for _, step, _ in paired]),
            records=[step.record for _, step, _ in paired],
            partners=[partner for _, _, partner in paired],
            counts=counts,
        )

    def _pairs(self, later: _Steps, design: Callable[[list[Any]], Any]) -> tuple[Pairs, Array]:
        """Pairs of the first events, then those of the later steps; and the weights of the former."""
        first, m = len(self._first), len(later.records)
        kept = [*self._first, *later.records, *later.partners]
        # One call: the columns of the plain design depend on the rows it is given.
        x = np.asarray(design([each.row for each in kept]), dtype=np.float64)
        labels = np.array([each.label for each in kept], dtype=np.float64)
        left, right = np.tril_indices(first, -1)
        use = self._paired(labels[left], labels[right])
        early = 1.0 / left[use]
        left = np.concatenate([left[use], np.arange(first, first + m)])
        right = np.concatenate([right[use], np.arange(first + m, first + 2 * m)])
        difference, apart = x[left] - x[right], labels[left] - labels[right]
        if self._quadratic is not None:
            return QuadraticPairs(difference, np.where(apart == 0.0, 1.0, -1.0), psd=self._psd), early
        apart = np.nan_to_num(apart)  # pairs without labels have no weight
        if self._of_errors:
            return Pairs(-difference, apart), early
        return Pairs(apart[:, None] * difference), early

    def _outside(self, pairs: Pairs, early: Array, weight: Array, best: Array) -> float:
        """The loss on each half of the pairs, of the comparator that was solved on the other half."""
        outside, k, fold = 0.0, len(early), np.arange(len(weight)) % 2
        for half in (0, 1):
            here = fold == half
            doubled = np.concatenate([early, np.where(here, 0.0, 2.0 * weight)])
            w = minimise(pairs, doubled, self.loss, self.radius, best, near=True, iterations=120)
            value = np.asarray(self.loss.value(pairs.arguments(w)), dtype=np.float64)
            outside += 0.5 * float(early @ value[:k]) + float(weight[here] @ value[k:][here])
        return outside

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """Parameters that a saved sample must have been made with."""
        kind = "scores" if self._quadratic is None else "psd" if self._psd else "metric"
        names = ("two_classes", "radius", "pairs", "exact", "seed")
        return {"kind": kind, "loss": repr(self.loss), **{name: getattr(self, name) for name in names}}

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        state: dict[str, object] = {"params": self.params(), "unusable": self.unusable}
        if self.unusable is not None:
            return {**state, "seen": self.n_seen}
        steps = [step for reservoir in self._steps for step in reservoir.items if step is not None]
        past = itertools.chain.from_iterable(reservoir.items for reservoir in self._records)
        records = (*self._first, *(step.record for step in steps), *(step.partner for step in steps), *past)
        used = {each.id: each for each in records if each is not None}
        return {
            **state,
            "kept": _pack([used[number] for number in sorted(used)]),
            "steps": [_steps_state(reservoir) for reservoir in self._steps],
            "records": [{**each.to_state(), "ids": _ids(each.items)} for each in self._records],
            "random": np.array(self._random.getstate()[1], dtype=np.uint64),
            "uniform": self._uniform,
            "first_loss": self._first_loss,
            "warm": self._warm.copy(),
            "solve_at": self._solve_at,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state` of an object with the same parameters.

        Raises
        ------
        SnapshotError
            If the parameters differ or the state is damaged.
        """
        if state.get("params") != self.params():
            raise SnapshotError(
                f"the regret in the snapshot was estimated with {state.get('params')}, now {self.params()}",
                fix="put the old settings back; regret cannot be estimated for events that have gone by",
            )
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SnapshotError(
                f"the regret in the snapshot cannot be read ({error})", fix="restore an undamaged snapshot"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["unusable"] is not None:
            self.n_seen = int(state["seen"])
            self._end(state["unusable"])
            return
        kept = {each.id: each for each in _unpack(state["kept"])}
        for steps, saved in zip(self._steps, state["steps"], strict=True):
            parts = (saved[part].tolist() for part in ("ids", "partners", "weights", "margins"))
            rows = zip(*parts, strict=True)
            steps.load_state(
                saved,
                [
                    Step(kept[i], kept[j] if j >= 0 else None, *more) if i >= 0 else None
                    for i, j, *more in rows
                ],
            )
        for records, saved in zip(self._records, state["records"], strict=True):
            records.load_state(saved, [None if i < 0 else kept[i] for i in saved["ids"].tolist()])
        self.n_seen = sum(records.count for records in self._records)
        self._first = [kept[i] for i in range(min(self.n_seen, self.exact))]
        self._random.setstate((3, tuple(state["random"].tolist()), None))
        self._uniform = float(state["uniform"])
        if not 0.0 <= self._uniform < 1.0:
            raise ValueError(f"a random number of {self._uniform}")
        self._first_loss, self._solve_at = float(state["first_loss"]), int(state["solve_at"])
        self._warm, self.unusable = state["warm"].copy(), None


def plain_design(rows: list[Any]) -> Array:
    """The features in sorted order as they are, (n, d); a missing one 0."""
    names = sorted({name for row in rows for name in row}, key=str)
    out = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        out[i] = [row.get(name, 0.0) for name in names]
    return out


def _variance(later: _Steps, terms: Array) -> float:
    """Variance of the sum of weight * terms: stratified by label, robust to pairs that share a record."""
    residual, spare = later.weight * terms, 1.0
    for stratum, (n, steps) in enumerate(later.counts):
        here = later.stratum == stratum
        if n > 1 and here.any():
            # Steps without a partner are terms of 0 in this stratum's mean.
            residual[here] -= later.scale[here] * (residual[here].sum() / steps)
            spare = max(spare, n / (n - 1))
    ids = [record.id for record in (*later.records, *later.partners)]
    _, place = np.unique(np.array(ids, dtype=np.int64), return_inverse=True)
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


def _steps_state(reservoir: StepReservoir[Step]) -> dict[str, object]:
    steps = reservoir.items
    return {
        **reservoir.to_state(),
        "ids": _ids([None if step is None else step.record for step in steps]),
        "partners": _ids([None if step is None else step.partner for step in steps]),
        "weights": np.array([0.0 if step is None else step.weight for step in steps]),
        "margins": np.array([0.0 if step is None else step.margin for step in steps]),
    }


def _ids(records: Sequence[Kept | None]) -> NDArray[np.int64]:
    return np.array([-1 if each is None else each.id for each in records], dtype=np.int64)


def _pack(records: Sequence[Kept]) -> dict[str, object]:
    """Records as arrays: the lists of names that occur, which of them each record has, and all values."""
    orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # most records have the same names
    names: dict[tuple[Any, ...], int] = {}
    which, values = list[int](), list[float]()
    for each in records:
        found = tuple(each.row)
        order = orders.get(found) or orders.setdefault(found, tuple(sorted(found, key=str)))
        which.append(names.setdefault(order, len(names)))
        values += map(each.row.__getitem__, order)
    return {
        "names": [list(each) for each in names],
        "which": np.array(which, dtype=np.int32),
        "ids": _ids(records),
        "labels": np.array([each.label for each in records]),
        "values": np.array(values),
    }


def _unpack(state: Mapping[str, Any]) -> list[Kept]:
    """The records that `_pack` packed."""
    names, values = dict(enumerate(state["names"])), iter(state["values"].tolist())
    columns = (state[part].tolist() for part in ("ids", "labels", "which"))
    return [
        Kept(number, label, dict(zip(names[which], itertools.islice(values, len(names[which])), strict=True)))
        for number, label, which in zip(*columns, strict=True)
    ]
