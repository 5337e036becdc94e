"""Online estimate of the regret of pairwise learners: AUC, ranking and metric learning.

A regret compares the losses that a learner had on the pairs of a stream with those of the best fixed weights.
It is estimated from a sample of pairs:

1. All pairs of the first events are kept. Up to there the estimate is exact.
2. Later a `StepReservoir` draws events, the *steps*. Each makes one pair with a record that a `SkipReservoir`
   drew from those before it. Of two classes each is a stratum with reservoirs of its own, and partners are of
   the other class. A pair is kept with the margin that the learner gave it just before it learned the event.
3. When the estimate is asked for, `comparator` finds the best fixed weights for these pairs; with them come
   the loss of both and the standard error.

The reservoirs know which numbers enter next, so a batch costs what its events cost that do enter: `_keep`
makes a record of an event, and `_pair` a step. An event that comes alone is a batch of one.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # its modules are loaded on first use
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.comparator import Pairs, QuadraticPairs, minimise, pairs_of
from streampair.evaluation.reservoirs import SkipReservoir, StepReservoir
from streampair.records.features import indicator

__all__ = ["Kept", "Regret", "RegretEstimate", "Step", "plain_design"]

Array = NDArray[np.float64]
Features = Mapping[Any, Any]
#: Records as dicts, or the names of their features and an array (k, d).
Records = list[Any] | tuple[Sequence[Any], Array]
#: An event of a batch that enters: its index, its stratum, whether as a step, and the reservoir's entry.
_Entering = tuple[int, int, bool, tuple[Any, ...]]

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
    """

    total: float
    average: float
    stderr: float
    comparator_loss: float
    pair_loss: float
    n: int
    exact: bool

    @property
    def average_stderr(self) -> float:
        """Standard error of `average`."""
        return self.stderr / (self.n - 1)


@dataclass(slots=True, eq=False)
class Kept:
    """A record of the sample: its number in the stream, that of its label, and its features by sorted name.

    The values are packed as a snapshot has them: `struct` with a ``d`` for each.
    """

    id: int
    label: float
    names: tuple[Any, ...]
    values: bytes

    @property
    def row(self) -> dict[Any, float]:
        """The features as a learner takes them."""
        return dict(zip(self.names, struct.unpack(f"{len(self.names)}d", self.values), strict=True))


@dataclass(slots=True, eq=False)
class Step:
    """An event that entered the sample as a step.

    Attributes
    ----------
    number, rank
        As a `StepReservoir` drew them.
    record
        The event.
    partner
        The record whose score, before the event is learned, is compared with that of the event; None: there
        was none to draw.
    weight
        Of the pair.
    margin
        Of the pair, before the event was learned.
    """

    number: int
    rank: float
    record: Kept
    partner: Kept | None
    weight: float
    margin: float = 0.0

    @property
    def other(self) -> Kept:
        """The partner of a step that has one."""
        assert self.partner is not None
        return self.partner


class _Pairs(NamedTuple):
    """The steps in the sample that have a partner, as arrays (m,).

    `scale` is the number of steps that each represents, and is in `weight`. `counts` has for each stratum the
    steps in the sample, with a partner or not, and all steps.
    """

    counts: list[tuple[int, int]]
    steps: list[Step]
    stratum: Array
    scale: Array
    weight: Array
    margin: Array

    @property
    def records(self) -> list[Kept]:
        """The events, and then their partners."""
        return [step.record for step in self.steps] + [step.other for step in self.steps]


class Regret:
    """Online estimate of the regret of a pairwise learner, with the full-history penalty (H20 Eq. 3).

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
        Radius of the ball of comparators, in the units of the designs that `estimate` gets; of matrices the
        largest Frobenius norm.
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
        Number of sampled pairs. The standard error decreases with its square root; memory is at most 3
        records a pair.
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
    indicators
        Whether a text is kept as the feature ``name=text`` with the value 1, and what is missing as NaN: as
        the linear learners read records.
    unusable
        Why there is no estimate; None while there is one.

    Notes
    -----
    Features must be finite numbers. If one is not (such as a text for a forest), the comparator is undefined:
    the estimation ends, and `unusable` says why. It also ends with a record of more than 64 features for a
    metric.

    A learner that scales features keeps its weights in a ball of scaled units, and its comparator lies in
    that ball at the spreads of the moment of the estimate: `comparator_design`. The spreads of before were
    others, and without a ball the learner may leave it, so that this regret can be negative. The theorems
    are about learners without scaling.

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
    >>> estimate = regret.estimate(model.comparator_design)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)

    A metric has no scores:

    >>> model = metric.PairOGD(seed=1)
    >>> regret = Regret(model.pair_loss, model.comparator_radius, label=model.label_number,
    ...                 quadratic=model.quadratic_many, psd=model.psd)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y)
    ...     model.learn_one(x, y)
    >>> regret.estimate(model.comparator_design).n
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
        if pairs < 16 or exact < 2 or not 0.0 < radius < math.inf or seed < 0:
            raise ConfigError(
                f"Regret(radius={radius}, pairs={pairs}, exact={exact}, seed={seed}) cannot work",
                fix="give a positive radius, at least 16 pairs, an exact part of at least 2 events and a "
                "seed of at least 0",
            )
        self.loss = losses.Hinge() if loss is None else loss
        self.radius, self.pairs, self.exact, self.seed = float(radius), pairs, exact, seed
        self.trusting = self.indicators = False
        self.unusable: str | None = None
        self.n_seen = 0
        self._label, self._quadratic, self._psd = label, quadratic, psd
        self._of_errors = bool(getattr(self.loss, "of_errors", False))
        #: Whether labels are of two classes. Partners are then of the other one.
        self.two_classes = label is None
        self._strata = range(2 if self.two_classes and quadratic is None else 1)
        self._empty()
        self._first_loss = 0.0
        self._warm = np.zeros(0)
        self._solve_at = 2

    def _empty(self) -> None:
        """Make an empty sample."""
        size, n = self.pairs // len(self._strata), len(self._strata)
        self._first: list[Kept] = []  # the records of the exact part
        self._records = [SkipReservoir(size, self.seed, c) for c in self._strata]
        self._steps = [StepReservoir(size, self.seed, n + c, self.exact) for c in self._strata]

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
        # Asked of each event of a foreign model, as `commit` is: two calls that take a part of a microsecond.
        if self.unusable is not None or self.n_seen < self.exact:
            return self.unusable is None
        stratum = self._stratum(y)
        steps, records = self._steps[stratum], self._records[stratum]
        return bool(steps.ahead[0][0] <= steps.count or records.ahead[0][0] <= records.count)

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
        stratum = self._stratum(y)
        if prepared is None:  # it does not enter
            self._records[stratum].count += 1
            self._steps[stratum].count += 1
            self.n_seen += 1
        elif self.n_seen < self.exact:
            self._take_first(x, y, score, prepared)
        else:
            for _, step in self._take(bytes((stratum,)), [y], lambda _: [x]):
                if len(prepared):
                    self.record_score(step, score, float(prepared[0]))

    def draw(
        self, labels: Sequence[Any], records: Callable[[list[int]], Records]
    ) -> list[tuple[int, Step]] | None:
        """Count a batch that is learned at once, and keep those of its events that enter the sample.

        Parameters
        ----------
        labels
            Of the events; of two classes they may be bytes, 1 for the positive one and else 0.
        records
            From indices in the batch to the records there, as the learner sees them: dicts, or the names and
            an array (k, d) of the values.

        Returns
        -------
        list of tuple, or None
            Index in the batch and step of each drawn event that has a partner, for `record_score`. None, with
            nothing changed, where events are to be observed one by one: in the exact part, and for a metric.
        """
        if self.n_seen < self.exact or self._quadratic is not None:
            return None
        return self._take(bytes(labels) if len(self._strata) == 2 else bytes(len(labels)), labels, records)

    def record_score(self, step: Step, score: float, partner_score: float) -> None:
        """Record the margin of a drawn step: its score, and its partner's before the event was learned."""
        label, other = step.record.label, step.other.label
        if self._paired(label, other):
            step.margin = float(self._margins(label, other, score, partner_score))

    def _stratum(self, y: Any) -> int:
        return 1 if y and len(self._strata) == 2 else 0

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

    def _partners(self, y: Any) -> list[Kept]:
        """The records that the next event makes pairs with, if it has this label."""
        label, stratum, others = self._number(y), self._stratum(y), self._first
        if self.n_seen >= self.exact:
            number, _, _, chance = self._steps[stratum].ahead[0]
            partner = self._partner(stratum, chance) if number == self._steps[stratum].count else None
            others = [] if partner is None else [partner]
        return [other for other in others if self._paired(label, other.label)]

    def _partner(self, stratum: int, chance: float) -> Kept | None:
        """The record that the next step of a stratum is paired with, by a random number in (0, 1]."""
        past = self._records[-1 - stratum].items
        return past[math.ceil(chance * len(past)) - 1] if past else None

    def _take_first(self, x: Features, y: Any, score: float, prepared: Array) -> None:
        """Count an event of the exact part, and keep it."""
        n, stratum, label = self.n_seen, self._stratum(y), self._number(y)
        others = np.array([other.label for other in self._partners(y)])
        self.n_seen += 1
        for kept in self._keep([n], [label], [x]) or ():
            if len(others):
                margins = self._margins(label, others, score, prepared)
                self._first_loss += float(np.sum(self.loss.value(margins))) / n
            self._first.append(kept)
            for _, place in self._records[stratum].advance(1):
                self._records[stratum].put(place, kept)

    def _take(
        self, strata: bytes, labels: Sequence[Any], records: Callable[[list[int]], Records]
    ) -> list[tuple[int, Step]]:
        """Count a batch of events by strata, and keep those that enter; see `draw`."""
        n, ones = self.n_seen, strata.count(1)
        self.n_seen += len(strata)
        if self.unusable is not None:
            return []
        entering = self._entering(strata, (len(strata) - ones, ones))
        if not entering:
            return []
        indices = [*dict.fromkeys([index for index, *_ in entering])]
        numbers = [self._number(labels[index]) for index in indices]
        kept = self._keep([n + index for index in indices], numbers, records(indices))
        if kept is None:
            return []
        events, drawn = dict(zip(indices, kept, strict=True)), list[tuple[int, Step]]()
        for index, c, is_step, entry in entering:
            if is_step:
                step = self._step(c, events[index], *entry)
                self._steps[c].put(entry[1], step)
                if step.partner is not None:
                    drawn.append((index, step))
            else:
                self._records[c].put(entry[1], events[index])
        return drawn

    def _entering(self, strata: bytes, counts: Sequence[int]) -> list[_Entering]:
        """Count a batch of events; those that enter, in order, and as a step before it is a record."""
        begin, found, places = 0, list[tuple[int, bool, tuple[Any, ...]]](), list[int]()
        for c, steps, records in zip(self._strata, self._steps, self._records, strict=True):
            for is_step, reservoir in ((True, steps), (False, records)):
                first = begin - reservoir.count
                for entry in reservoir.advance(counts[c]):
                    found.append((c, is_step, entry))
                    places.append(first + entry[0])
            begin = counts[0]
        if not found:
            return []
        # Of the events of each stratum, one after the other, their indices in the batch.
        indices = np.frombuffer(strata, np.uint8).argsort(kind="stable")
        pairs = zip(indices[places].tolist(), found, strict=True)
        return sorted([(index, *each) for index, each in pairs], key=operator.itemgetter(0))

    def _step(self, stratum: int, event: Kept, number: int, place: int, rank: float, chance: float) -> Step:
        """An event as a step, with a partner among the records before it if there is one."""
        partner, weight = self._partner(stratum, chance), 0.0
        if partner is not None and self._paired(event.label, partner.label):
            # Of two classes, it stands for those of the events before that are of the other one.
            before = number + self._records[stratum].count - self._steps[stratum].count
            weight = 1.0 if len(self._strata) == 1 else (event.id - before) / event.id
        return Step(number, rank, event, partner, weight)

    def _keep(self, ids: list[int], labels: list[float], records: Records) -> list[Kept] | None:
        """Records as they are kept; None: one of them cannot be used, and the estimation has ended."""
        if isinstance(records, tuple):
            names, table = records
            ordered, order, plain = _in_order(tuple(names))
            if plain and math.isfinite(table.sum()):
                values, size = (table[:, order] if order else table).tobytes(), 8 * len(names)
                begins = range(0, len(values), size)
                return [
                    Kept(id, label, ordered, values[begin : begin + size])
                    for id, label, begin in zip(ids, labels, begins, strict=True)
                ]
            records = [dict(zip(names, row, strict=True)) for row in table.tolist()]
        kept = [self._keep_one(*each) for each in zip(ids, labels, records, strict=True)]
        return None if self.unusable is not None else kept

    def _keep_one(self, id: int, label: float, x: Features) -> Kept:
        numbers = [*x.values()]
        (ordered, order, plain) = _in_order(tuple(x))
        if not plain or {*map(type, numbers)} != {float} or not math.isfinite(sum(numbers)):
            if self.indicators:
                x = {indicator(n, v) if isinstance(v, str) else n: v for n, v in x.items()}
            x = {name: self._value(name, value) for name, value in x.items()}
            if self.trusting:
                x = {name: value for name, value in x.items() if math.isfinite(value)}
            (ordered, order, _), numbers = _in_order(tuple(x)), [*x.values()]
            if not all(map(math.isfinite, numbers)) and not self.indicators:
                self._end("a feature of the stream is not a finite number")
        if self._quadratic is not None and len(numbers) > _MOST_FEATURES:
            self._end(f"a metric of more than {_MOST_FEATURES} features takes too long to be compared with")
        numbers = [numbers[i] for i in order] if order else numbers
        return Kept(id, label, ordered, struct.pack(f"{len(numbers)}d", *numbers))

    def _value(self, name: Any, value: Any) -> float:
        """A feature as a number; NaN: it is none."""
        if self.indicators and isinstance(value, str):
            return 1.0
        plain = type(name) in _NAMES and not isinstance(value, str | bytes)
        known = self.trusting or self.indicators or plain
        try:
            return float(value) if known else math.nan
        except (TypeError, ValueError, OverflowError):
            return math.nan

    def _end(self, why: str) -> None:
        """End the estimation and discard the sample; from now on events are only counted."""
        self.unusable = why
        self._empty()

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
            Function from a list of records to the (n, d) matrix, an array or a sparse one of SciPy, that the
            weights of a comparator multiply: the learner's `comparator_design`. None: the features in sorted
            order, with 0 for a missing one.

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
        best = minimise(pairs, weights, self.loss, self.radius, pairs.begin(self._warm))
        self._warm = pairs.whole(best)
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

    def _sampled(self) -> _Pairs:
        """The pairs that the sample holds now."""
        counts, steps, columns = [], list[Step](), []
        for stratum, reservoir in enumerate(self._steps):
            scale = reservoir.stand_for()
            counts.append((int(np.count_nonzero(scale)), reservoir.count))
            for step, stands in zip(reservoir.items, scale.tolist(), strict=True):
                if step.partner is not None and stands > 0.0:
                    steps.append(step)
                    columns.append((stratum, stands, stands * step.weight, step.margin))
        return _Pairs(counts, steps, *np.array(columns).reshape(-1, 4).T)

    def _pairs(self, later: _Pairs, design: Callable[[list[Any]], Any]) -> tuple[Pairs, Array]:
        """Pairs of the first events, then those of the later steps; and the weights of the former."""
        first, m = len(self._first), len(later.steps)
        kept = [*self._first, *later.records]
        # One call: the columns of the plain design depend on the rows it is given.
        x = design([each.row for each in kept])
        if not scipy.sparse.issparse(x):
            x = np.asarray(x, dtype=np.float64)
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
            return pairs_of(-difference, apart), early
        if scipy.sparse.issparse(difference):
            return pairs_of(difference.multiply(apart[:, None])), early
        return pairs_of(apart[:, None] * difference), early

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
        every = {each.id: each for each in self._in_use()}
        return {
            **state,
            "kept": _pack([*every.values()]),
            "first": len(self._first),
            "steps": [{**each.to_state(), **_columns(each.items)} for each in self._steps],
            "records": [{**each.to_state(), "ids": _ids(each.items)} for each in self._records],
            "first_loss": self._first_loss,
            "warm": self._warm.copy(),
            "solve_at": self._solve_at,
        }

    def _in_use(self) -> Iterator[Kept]:
        """The records that the sample consists of, some of them repeatedly."""
        yield from self._first
        for records in self._records:
            yield from records.items
        for steps in self._steps:
            for step in steps.items:
                yield step.record
                if step.partner is not None:
                    yield step.partner

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
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SnapshotError(
                f"the regret in the snapshot cannot be read ({error})", fix="restore an undamaged snapshot"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["unusable"] is not None:
            self.n_seen = int(state["seen"])
            self._end(state["unusable"])
            return
        kept = _unpack(state["kept"])
        self._first = [kept[id] for id in range(int(state["first"]))]
        for records, saved in zip(self._records, state["records"], strict=True):
            records.load_state(saved, [kept[id] for id in saved["ids"].tolist()])
        for steps, saved in zip(self._steps, state["steps"], strict=True):
            steps.load_state(saved, _steps(saved, kept))
        self.n_seen = sum(records.count for records in self._records)
        if [*{each.id: each for each in self._in_use()}] != [*kept]:
            raise ValueError("other records than the sample consists of")
        self._first_loss, self._solve_at = float(state["first_loss"]), int(state["solve_at"])
        self._warm, self.unusable = state["warm"].copy(), None


def plain_design(rows: list[Any]) -> Array:
    """The features in sorted order as they are, (n, d); a missing one 0."""
    names = sorted({name for row in rows for name in row}, key=str)
    out = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        out[i] = [row.get(name, 0.0) for name in names]
    return out


def _variance(later: _Pairs, terms: Array) -> float:
    """Variance of the sum of weight * terms: stratified by label, robust to pairs that share a record."""
    residual, spare = later.weight * terms, 1.0
    for stratum, (n, steps) in enumerate(later.counts):
        here = later.stratum == stratum
        if n > 1 and here.any():
            # Steps without a partner are terms of 0 in this stratum's mean.
            residual[here] -= later.scale[here] * (residual[here].sum() / steps)
            spare = max(spare, n / (n - 1))
    _, place = np.unique([each.id for each in later.records], return_inverse=True)
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


@functools.lru_cache(maxsize=1024)
def _in_order(names: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int] | None, bool]:
    """The names in sorted order, which columns these are if they were in another, and if all can be kept."""
    order = sorted(range(len(names)), key=lambda column: str(names[column]))
    plain = {*map(type, names)} <= _NAMES
    return tuple(names[i] for i in order), None if order == sorted(order) else order, plain


def _ids(records: Sequence[Kept]) -> NDArray[np.int64]:
    return np.array([each.id for each in records], dtype=np.int64)


def _columns(steps: list[Step]) -> dict[str, object]:
    """Steps as arrays, by place; the id of a partner is -1 where there is none."""
    partners = [-1 if each.partner is None else each.partner.id for each in steps]
    return {
        "order": np.array([each.number for each in steps], dtype=np.int64),
        "ids": _ids([each.record for each in steps]),
        "partners": np.array(partners, dtype=np.int64),
        "ranks": np.array([each.rank for each in steps]),
        "weights": np.array([each.weight for each in steps]),
        "margins": np.array([each.margin for each in steps]),
    }


def _steps(saved: Mapping[str, Any], kept: Mapping[int, Kept]) -> list[Step]:
    """The steps of `_columns`."""
    columns = (saved[name].tolist() for name in ("order", "ranks", "ids", "partners", "weights", "margins"))
    return [
        Step(number, rank, kept[id], None if partner < 0 else kept[partner], weight, margin)
        for number, rank, id, partner, weight, margin in zip(*columns, strict=True)
    ]


def _pack(records: Sequence[Kept]) -> dict[str, object]:
    """Records as arrays: the lists of names that occur, which of them each record has, and all values."""
    names: dict[tuple[Any, ...], int] = {}
    which, before, number = list[int](), None, 0
    for each in records:
        if each.names is not before:  # nearly all records share one tuple, which takes long to look up
            before = each.names
            number = names.setdefault(before, len(names))
        which.append(number)
    return {
        "ids": _ids(records),
        "names": [list(each) for each in names],
        "which": np.array(which, dtype=np.int32),
        "labels": np.array([each.label for each in records]),
        "values": np.frombuffer(b"".join([each.values for each in records])),
    }


def _unpack(state: Mapping[str, Any]) -> dict[int, Kept]:
    """The records that `_pack` packed, by id."""
    names, values, begin, out = dict(enumerate(map(tuple, state["names"]))), state["values"].tobytes(), 0, {}
    for id, label, which in zip(*(state[part].tolist() for part in ("ids", "labels", "which")), strict=True):
        end = begin + 8 * len(names[which])
        out[id] = Kept(id, label, names[which], values[begin:end])
        begin = end
    if begin != len(values):
        raise ValueError(f"{len(values) // 8} values, not {begin // 8}")
    return out
