"""The regret of learners whose labels are not two: relevances, and classes of a metric.

Estimated is what `streampair.evaluation.regret` estimates, H20 Eq. 4 with the penalty of H20 Eq. 3, in which
the margin of a pair is that of the learner: ``(y - y') w.(x - x')``, or ``s (1 - u'Wu)`` for the difference u
of two records and s = 1 within a class, -1 between two. The sample is the same but for its strata: there is
one, as any two records make a pair, and the partner of a step is drawn from all records before it. The j-th
step after the exact part enters with odds of about 1/sqrt(j), and what a step stands for follows from that.

A record without a usable label makes no pair. It is a step all the same, and counts among those before the
next: so nothing has to be asked of the labels of the many records that do not enter the sample.
"""

from __future__ import annotations

import abc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.estimate import PairSample, RegretEstimate, judge, plain_design
from streampair.evaluation.pair_sampler import _numbers
from streampair.evaluation.pairs import Pairs
from streampair.evaluation.sampling import RecordTable, Thinning, Uniform, pack_records, unpack_records

__all__ = ["LabelledRegret"]

Array = NDArray[np.float64]
Features = Mapping[Any, Any]
Scorer = Callable[[Any], float]

_TABLES = ("own", "partner", "past")
_LISTS = ("own_id", "partner_id", "past_id", "own_label", "partner_label", "past_label", "margin", "weight")


class _Seen(NamedTuple):
    """What happens to one record; made before it is learned, applied after."""

    x: dict[Any, float] | None  # None: it has features that are no numbers
    label: float
    keep_step: bool
    keep_record: bool
    loss: float = 0.0  # in the exact part: the whole penalty
    margin: float = 0.0  # of the pair with the partner
    partner: int = -1  # its slot


class _Drawn(NamedTuple):
    """Where one record of a batch enters the sample; drawn before any of the batch is learned."""

    at: int  # in the batch
    label: float
    record: int  # slot among the records; -1: it does not enter there
    step: int  # slot among the steps; -1: it does not enter there
    partner: int  # slot of its partner


class LabelledRegret(abc.ABC):
    """Online estimate of the regret over all pairs of records; see `RelevanceRegret` and `MetricRegret`.

    Parameters
    ----------
    loss, radius, pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    def __init__(
        self, loss: Any = None, radius: float = 1.0, *, pairs: int = 1024, exact: int = 64, seed: int = 0
    ) -> None:
        if pairs < 16 or exact < 2 or not radius > 0.0 or not math.isfinite(radius):
            raise ConfigError(
                f"{type(self).__name__}(radius={radius}, pairs={pairs}, exact={exact}) cannot work",
                fix="give a positive radius, at least 16 pairs and an exact part of at least 2 events",
            )
        self.loss = losses.Hinge() if loss is None else loss
        self.radius = float(radius)
        self.pairs = pairs
        self.exact = exact
        self.seed = seed
        #: As in `PairRegret`.
        self.trusting = False
        #: Why there is no estimate; None while there is one.
        self.unusable: str | None = None
        #: Labelled events observed.
        self.seen = 0
        #: Number of next events of which none enters the sample.
        self.left = 0
        self._steps = Thinning(pairs, exact)
        self._records = Uniform(pairs)
        self._random = random.Random(seed)  # noqa: S311  (a sample, not a secret)
        # Drawn beforehand, so that `prepare` changes nothing.
        self._next_uniform = self._random.random()
        self._first: list[tuple[dict[Any, float], float]] = []
        self._first_loss = 0.0
        n = self._steps.size
        self._own, self._partner, self._past = RecordTable(n), RecordTable(n), RecordTable(pairs)
        # Lists: they are written one by one, and read as arrays only for an estimate or a snapshot.
        self._own_id, self._partner_id, self._past_id = [-1] * n, [-1] * n, [-1] * pairs
        self._own_label, self._partner_label = [math.nan] * n, [math.nan] * n
        self._past_label = [math.nan] * pairs
        self._margin, self._weight = [0.0] * n, [0.0] * n
        self._warm = np.zeros(0)
        self._solve_at = 2

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
        """What the loss of the pairs of x with others is applied to, before x is learned."""

    @abc.abstractmethod
    def pairs_of(self, own: Array, partner: Array, labels: Array, others: Array) -> Pairs:
        """Pairs of designs (n, d), with their labels (n,)."""

    # ---- observing -------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """As in `PairRegret`."""
        return self.seen >= self._solve_at and self.unusable is None

    def enters(self, y: Any) -> bool:
        """Whether the next event may enter the sample."""
        return self.left <= 0

    def observe(self, x: Features, y: Any, score: float, scorer: Scorer) -> None:
        """One labelled event, after it was scored and before it is learned.

        Parameters
        ----------
        x
            The record as the learner sees it.
        y
            Its label.
        score
            The learner's score of `x`.
        scorer
            The learner's scoring function, for the partner.
        """
        if self.left > 0:
            self.pass_over(1)
        else:
            self.commit(self.prepare(x, y, score, scorer), y)

    def hits(self, labels: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
        """As in `PairRegret`, with all events to be skipped under the first of the two numbers."""
        at, n = 0, len(labels)
        while True:
            stop = min(n, at + self.left)
            yield stop, stop - at, 0
            if stop == n:
                return
            at = stop + 1

    def skip(self, labels: Sequence[Any]) -> None:
        """Count events that do not enter the sample: at most `left`."""
        self.pass_over(len(labels))

    def pass_over(self, number: int, _: int = 0) -> None:
        """Count so many events that do not enter the sample."""
        if number:
            self.seen += number
            self._steps.count += number
            self._records.count += number
            self.left -= number

    def draw(self, labels: Sequence[Any], *, numbers: bool = False) -> list[_Drawn] | None:
        """As in `PairRegret`."""
        if self.seen < self.exact or not (self.trusting or numbers):
            return None
        drawn: list[_Drawn] = []
        for at, skipped, _ in self.hits(labels):
            self.pass_over(skipped)
            if at == len(labels):
                break
            keep_record, keep_step = self._wanted()
            partner = self._draw_partner() if keep_step else -1
            record, step = self._enter(keep_record, keep_step)
            drawn.append(_Drawn(at, self.label(labels[at]), record, step, partner))
        return drawn

    def settle(
        self,
        drawn: Sequence[_Drawn],
        batch: int,
        xs: Callable[[int], Features],
        scores: Sequence[float],
        score_at: Callable[[list[Any]], list[float]],
    ) -> None:
        """As in `PairRegret`."""
        first = self.seen - batch
        steps = []
        for at, label, record, step, partner in drawn:
            row = cast("dict[Any, float]", xs(at))
            if step >= 0:
                self._put_step(step, row, first + at, label, partner)
                steps.append((at, step, self._partner.rows[step]))
            if record >= 0:
                self._put_record(record, row, first + at, label)
        given = score_at([other for _, _, other in steps]) if steps else []
        for (at, step, other), theirs in zip(steps, given, strict=True):
            if self._weight[step]:
                labels = self._own_label[step], [self._partner_label[step]]
                self._margin[step] = self._margin_by(labels, other, scores[at], theirs)

    def _margin_by(self, labels: tuple[float, list[float]], other: Any, score: float, theirs: float) -> float:
        return float(self.margins(None, labels[0], [other], labels[1], score, lambda _: theirs)[0])

    @staticmethod
    def stops(drawn: Sequence[_Drawn]) -> list[int]:
        """Indices in the batch of those that have a partner."""
        return [draw.at for draw in drawn if draw.step >= 0]

    def _wanted(self) -> tuple[bool, bool]:
        """Whether the next event enters the records, and the steps."""
        early = self.seen < self.exact
        own, past = self._steps, self._records
        return past.count == past.hit, not early and own.count == own.hit

    def _draw_partner(self) -> int:
        return int(self._next_uniform * min(self._records.count, self._records.size))

    def _enter(self, keep_record: bool, keep_step: bool) -> tuple[int, int]:
        """Count an event; its slots among the records and the steps, or -1."""
        own, past, uniform = self._steps, self._records, self._random.random
        early = self.seen < self.exact
        record = step = -1
        if keep_record:
            record = past.take(uniform)
        else:
            past.count += 1
        if keep_step:
            step = own.take(uniform)
            self._next_uniform = uniform()
        elif not early:
            own.count += 1
        self.seen += 1
        self._set_left()
        return record, step

    def _put_step(self, step: int, row: dict[Any, float], index: int, label: float, partner: int) -> None:
        other, other_label = self._past.rows[partner], self._past_label[partner]
        self._own.put(step, row)
        self._own_id[step] = index
        self._own_label[step] = label
        self._partner.put(step, other)
        self._partner_id[step] = self._past_id[partner]
        self._partner_label[step] = other_label
        self._weight[step] = 1.0 if self._makes_pair(label, other_label) else 0.0
        self._margin[step] = 0.0

    def _put_record(self, slot: int, row: dict[Any, float], index: int, label: float) -> None:
        self._past.put(slot, row)
        self._past_id[slot] = index
        self._past_label[slot] = label

    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> _Seen | None:
        """What must be known of an event before it is learned; changes nothing."""
        keep_record, keep_step = self._wanted()
        early = self.seen < self.exact
        if self.unusable is not None or not (early or keep_record or keep_step):
            return None
        label = self.label(y)
        row = cast("dict[Any, float]", x) if self.trusting else _numbers(x)
        if row is None or not (early or keep_step):
            return _Seen(row, label, False, keep_record)
        if early:
            others = [(x2, y2) for x2, y2 in self._first if self._makes_pair(label, y2)]
            loss = 0.0
            if others:
                rows, labels = zip(*others, strict=True)
                arguments = self.margins(x, label, rows, labels, score, scorer)
                loss = float(np.sum(self.loss.value(arguments))) / self.seen
            return _Seen(row, label, False, keep_record, loss)
        slot = self._draw_partner()
        margin, other = 0.0, self._past_label[slot]
        if self._makes_pair(label, other):
            margin = float(self.margins(x, label, [self._past.rows[slot]], [other], score, scorer)[0])
        return _Seen(row, label, True, keep_record, 0.0, margin, slot)

    def _makes_pair(self, label: float, other: float) -> bool:
        return label == label and other == other and bool(self.paired(label, other))

    def commit(self, seen: _Seen | None, _: Any) -> None:
        """Count the event, now that it was learned, and let it into the sample as prepared."""
        index = self.seen
        keep_record = keep_step = False
        if seen is not None:
            keep_record, keep_step = seen.keep_record, seen.keep_step
            if seen.x is None:
                self.give_up("a feature of the stream is not a finite number")
                keep_record = keep_step = False
        record, step = self._enter(keep_record, keep_step)
        if seen is None or seen.x is None:
            return
        if step >= 0:  # before its own record may take the place of the partner
            self._put_step(step, seen.x, index, seen.label, seen.partner)
            self._margin[step] = seen.margin
        if record >= 0:
            self._put_record(record, seen.x, index, seen.label)
        if index < self.exact:
            self._first.append((seen.x, seen.label))
            self._first_loss += seen.loss

    def _set_left(self) -> None:
        if self.unusable is not None:
            self.left = 1 << 62
        elif self.seen < self.exact:
            self.left = 0
        else:
            own, past = self._steps, self._records
            self.left = min(own.hit - own.count, past.hit - past.count)

    def give_up(self, why: str) -> None:
        """End the estimation and forget the sample; events are only counted from now on."""
        self.unusable = why
        self._first = []
        for rows in (self._own, self._partner, self._past):
            rows.clear()
        self._set_left()

    # ---- estimating ------------------------------------------------------------------------------------

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """As in `PairRegret`."""
        n = self.seen
        self._solve_at = 4 * n if n < 32 * self.pairs else n + max(n // 2, 1024 * self.pairs)
        if n < 2 or self.unusable is not None:
            return None
        scale = self._steps.scale()
        slots = np.flatnonzero(scale > 0.0)
        first, labels = (
            [row for row, _ in self._first],
            np.array([label for _, label in self._first], dtype=np.float64),
        )
        own, partner = [self._own.rows[i] for i in slots], [self._partner.rows[i] for i in slots]
        # One call: the columns of the plain design depend on the rows it is given.
        design = plain_design if design_many is None else design_many
        x = np.asarray(design([*first, *own, *partner]), dtype=np.float64)
        later, earlier = np.tril_indices(len(first), -1)
        usable = ~np.isnan(labels)
        keep = usable[later] & usable[earlier] & self.paired(labels[later], labels[earlier])
        later, earlier = later[keep], earlier[keep]
        at, m = len(first), len(own)
        pairs = self.pairs_of(
            x[np.concatenate([later, np.arange(at, at + m)])],
            x[np.concatenate([earlier, np.arange(at + m, at + 2 * m)])],
            np.concatenate([labels[later], np.array(self._own_label)[slots]]),
            np.concatenate([labels[earlier], np.array(self._partner_label)[slots]]),
        )
        sample = PairSample(
            n=n,
            exact=n <= self.exact,
            first=first,
            first_labels=np.zeros(len(first), dtype=np.bool_),
            first_loss=self._first_loss,
            own=own,
            partner=partner,
            own_id=np.array(self._own_id)[slots],
            partner_id=np.array(self._partner_id)[slots],
            labels=np.zeros(m, dtype=np.bool_),  # one stratum
            margin=np.array(self._margin)[slots],
            weight=np.array(self._weight)[slots],
            scale=scale[slots],
            kept=(m, 0),
            steps=(self._steps.count, 0),
        )
        result, self._warm = judge(sample, pairs, 1.0 / later, self.loss, self.radius, self._warm)
        return result

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """What a saved sample must have been made with."""
        return {
            "kind": type(self).__name__,
            "loss": repr(self.loss),
            "radius": self.radius,
            "pairs": self.pairs,
            "exact": self.exact,
            "seed": self.seed,
        }

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        return {
            "params": self.params(),
            "unusable": self.unusable,
            "seen": self.seen,
            "samples": [[r.count, r.hit] for r in (self._steps, self._records)],
            "random": np.array(self._random.getstate()[1], dtype=np.uint64),
            "next_uniform": self._next_uniform,
            "log_w": self._records.log_w,
            "rank": np.array(self._steps.rank),
            "order": np.array(self._steps.order, dtype=np.int64),
            "first": pack_records([row for row, _ in self._first]),
            "first_labels": np.array([label for _, label in self._first], dtype=np.float64),
            "first_loss": self._first_loss,
            **{name: getattr(self, f"_{name}").to_state() for name in _TABLES},
            **{name: np.array(getattr(self, f"_{name}")) for name in _LISTS},
            "warm": self._warm.copy(),
            "solve_at": self._solve_at,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_state` of an object with the same parameters.

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
            samples: list[Thinning | Uniform] = [self._steps, self._records]
            for sample, (count, hit) in zip(samples, state["samples"], strict=True):
                sample.count, sample.hit = int(count), int(hit)
            self._records.log_w = float(state["log_w"])
            if len(state["rank"]) != self._steps.size or len(state["order"]) != self._steps.size:
                raise ValueError("ranks of another size")
            self._steps.load(state["rank"].tolist(), state["order"].tolist())
            self._random.setstate((3, tuple(state["random"].tolist()), None))
            self._next_uniform = float(state["next_uniform"])
            self.unusable = state["unusable"]
            self.seen = int(state["seen"])
            rows = cast("list[dict[Any, float]]", unpack_records(state["first"]))
            self._first = list(zip(rows, state["first_labels"].tolist(), strict=True))
            self._first_loss = float(state["first_loss"])
            for name in _TABLES:
                getattr(self, f"_{name}").load_state(state[name])
            for name in _LISTS:
                value = state[name]
                if value.shape != (len(getattr(self, f"_{name}")),):
                    raise ValueError(f"{name} has shape {value.shape}")
                setattr(self, f"_{name}", value.tolist())
            self._warm = state["warm"].copy()
            self._solve_at = int(state["solve_at"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(
                f"the regret in the snapshot cannot be read ({error})", fix="restore an undamaged snapshot"
            ) from error
        self._set_left()
