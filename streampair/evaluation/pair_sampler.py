"""What is kept of a stream to estimate the regret of its learner: see `streampair.evaluation.regret`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.sampling import RecordTable, Thinning, Uniform, pack_records, unpack_records

__all__ = ["PairSampler"]

Array = NDArray[np.float64]
Features = Mapping[Any, Any]
Scorer = Callable[[Any], float]

#: Types of feature names that a snapshot can hold.
_NAMES: Final = frozenset({str, int})
_NUMBERS: Final = frozenset({float, int, bool})


class _Step(NamedTuple):
    """What happens to one record; made before it is learned, applied after."""

    x: dict[Any, float] | None  # None: it has features that are no numbers
    keep_step: bool
    keep_record: bool
    loss: float = 0.0  # in the exact part: the whole penalty
    margin: float = 0.0  # of the pair with the partner
    weight: float = 0.0
    partner: dict[Any, float] | None = None
    partner_index: int = -1


class _Draw(NamedTuple):
    """Where one record of a batch enters the sample; drawn before any of the batch is learned."""

    at: int  # in the batch
    label: bool
    record: int  # slot among the records of its label; -1: it does not enter there
    step: int  # slot among the steps; -1: it does not enter there
    partner: int  # slot of its partner; -1: there is none
    weight: float


class PairSampler:
    """A stratified sample of the pairs of a stream, with the margins that its learner had.

    The parameters are those of `PairRegret`, which estimates from it.
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        if pairs < 16 or exact < 2 or not radius > 0.0 or not math.isfinite(radius):
            raise ConfigError(
                f"PairRegret(radius={radius}, pairs={pairs}, exact={exact}) cannot work",
                fix="give a positive radius, at least 16 pairs and an exact part of at least 2 events",
            )
        self.loss = losses.Hinge() if loss is None else loss
        self.radius = float(radius)
        self.pairs = pairs
        self.exact = exact
        self.seed = seed
        #: Whether records are known to hold finite numbers only, as when a learner of ours has scored them;
        #: they are then kept as they are, and must not be changed afterwards.
        self.trusting = False
        #: Why there is no estimate; None while there is one.
        self.unusable: str | None = None
        #: For each label, the number of next events of which none enters the sample.
        self.left = [0, 0]
        size = pairs // 2
        self._counts = [0, 0]  # labelled events by label
        self._steps = [Thinning(size, exact), Thinning(size, exact)]
        self._records = [Uniform(size), Uniform(size)]
        self._random = random.Random(seed)  # noqa: S311  (a sample, not a secret)
        # Drawn beforehand, so that `prepare` changes nothing.
        self._next_uniform = self._random.random()
        self._first: list[tuple[dict[Any, float], bool]] = []
        self._first_loss = 0.0
        # Slots of label False first, then those of label True.
        self._half = size + 1
        n = 2 * self._half
        self._own = RecordTable(n)
        self._partner = RecordTable(n)
        self._past = RecordTable(2 * size)
        # Lists: they are written one by one, and read as arrays only for an estimate or a snapshot.
        self._own_id = [-1] * n
        self._partner_id = [-1] * n
        self._past_id = [-1] * (2 * size)
        self._margin = [0.0] * n
        self._weight = [0.0] * n
        self._warm = np.zeros(0)
        self._solve_at = 2

    @property
    def seen(self) -> int:
        """Labelled events observed."""
        return self._counts[0] + self._counts[1]

    @property
    def due(self) -> bool:
        """Whether the stream has grown enough since the last estimate for the cost of another not to show."""
        return self.seen >= self._solve_at and self.unusable is None

    # Observing

    def enters(self, y: bool) -> bool:
        """Whether the next event of this label may enter the sample."""
        return self.left[y] <= 0

    def observe(self, x: Features, y: bool, score: float, scorer: Scorer) -> None:
        """One labelled event, after it was scored and before it is learned.

        Parameters
        ----------
        x
            The record as the learner sees it.
        y
            Whether it has the positive label.
        score
            The learner's score of `x`.
        scorer
            The learner's scoring function, for the partner.
        """
        if self.left[y] > 0:
            self.skip([y])
        else:
            self.commit(self.prepare(x, y, score, scorer), y)

    def hits(self, labels: Sequence[bool]) -> Iterator[tuple[int, int, int]]:
        """Where the events are that may enter the sample, and how many of each label are to be skipped.

        Yields (index, number of False, of True since the last one), at the end with the number of
        labels as the index. The caller has skipped, prepared and committed everything up to an index before
        it asks for the next.
        """
        n = len(labels)
        ones = labels.count(True)
        count = (n - ones, ones)
        order = list(self.left)  # of the next event of interest among those of its label
        at = [n, n]
        places: list[Any] = [(), ()]
        if order[0] < count[0] or order[1] < count[1]:
            flags = np.frombuffer(bytes(labels), np.bool_)
            for label in (0, 1):
                if order[label] < count[label]:
                    places[label] = np.flatnonzero(flags if label else ~flags)
                    at[label] = int(places[label][order[label]])
        done = [0, 0]
        while True:
            stop = min(at)
            if stop == n:
                yield n, count[0] - done[0], count[1] - done[1]
                return
            label = int(at[1] == stop)
            before = [0, 0]
            before[label] = order[label]
            before[1 - label] = stop - order[label]
            yield stop, before[0] - done[0], before[1] - done[1]
            before[label] += 1
            done = before
            order[label] += 1 + self.left[label]
            at[label] = int(places[label][order[label]]) if order[label] < count[label] else n

    def skip(self, labels: Sequence[bool]) -> None:
        """Count events that do not enter the sample: of each label at most `left`."""
        ones = labels.count(True)
        self.pass_over(len(labels) - ones, ones)

    def pass_over(self, zeros: int, ones: int) -> None:
        """Count so many events of label False and of label True that do not enter the sample."""
        for label, number in ((0, zeros), (1, ones)):
            if number:
                self._counts[label] += number
                self._steps[label].count += number
                self._records[label].count += number
                self.left[label] -= number

    def draw(self, labels: Sequence[bool], *, numbers: bool = False) -> list[_Draw] | None:
        """Count a batch that is learned at once, and draw what of it enters the sample, by labels alone.

        Parameters
        ----------
        labels
            Of the events.
        numbers
            Whether these records, if not all, are known to hold finite numbers only.

        Returns
        -------
        list or None
            For `settle`, once the batch is learned. None, with nothing changed, where events are to be
            observed one by one: in the exact part, and if records may hold anything.
        """
        if self.seen < self.exact or not (self.trusting or numbers or self.unusable is not None):
            return None
        drawn: list[_Draw] = []
        counts, n = self._counts, len(labels)
        for at, zeros, ones in self.hits(labels):
            if zeros or ones:
                self.pass_over(zeros, ones)
            if at == n:
                break
            label = labels[at]
            own, past = self._steps[label], self._records[label]
            keep_record, keep_step = past.count == past.hit, own.count == own.hit
            partner = self._draw_partner(label) if keep_step else -1
            weight = counts[not label] / (counts[0] + counts[1]) if partner >= 0 else 0.0
            record, step = self._enter(label, keep_record, keep_step)
            drawn.append(_Draw(at, label, record, step, partner, weight))
        return drawn

    def _draw_partner(self, label: bool) -> int:
        """The slot of a past record of the other label; -1: there is none."""
        others = self._records[not label]
        count = min(others.count, others.size)
        return int(self._next_uniform * count) + (0 if label else others.size) if count else -1

    def _enter(
        self, label: bool, keep_record: bool, keep_step: bool, *, early: bool = False
    ) -> tuple[int, int]:
        """Count an event, `early` in the exact part; its slots among the records and the steps, or -1."""
        own, past, uniform = self._steps[label], self._records[label], self._random.random
        record = step = -1
        if keep_record:
            record = past.take(uniform) + (past.size if label else 0)
        else:
            past.count += 1
        if keep_step:
            step = own.take(uniform) + (self._half if label else 0)
            self._next_uniform = uniform()
        elif not early:
            own.count += 1
        self._counts[label] += 1
        self.left[label] = min(own.hit - own.count, past.hit - past.count)
        return record, step

    def settle(
        self,
        drawn: Sequence[_Draw],
        batch: int,
        xs: Callable[[int], Features],
        scores: Sequence[float],
        score_at: Callable[[list[Any]], list[float]],
    ) -> None:
        """Let in what was drawn, now that the batch is learned.

        Parameters
        ----------
        drawn
            What `draw` gave.
        batch
            Number of events of the batch.
        xs, scores
            The record at an index of the batch, as the learner sees it, and the scores of all.
        score_at
            From the partners of those at `stops(drawn)` to the score of each as it was before the record that
            it is a partner of was learned.
        """
        first, partners = self.seen - batch, []
        steps = [draw for draw in drawn if draw.step >= 0]
        for at, _, record, step, partner, weight in drawn:
            row = cast("dict[Any, float]", xs(at))
            if step >= 0:
                other = None if partner < 0 else self._past.rows[partner]
                self._own.put(step, row)
                self._own_id[step] = first + at
                self._partner.put(step, other)
                self._partner_id[step] = -1 if other is None else self._past_id[partner]
                self._weight[step] = weight
                if other is not None:
                    partners.append(other)
            if record >= 0:
                self._past.put(record, row)
                self._past_id[record] = first + at
        if steps:
            others = iter(score_at(partners))
            for at, label, _, step, partner, _ in steps:
                sign = 2.0 if label else -2.0
                self._margin[step] = 0.0 if partner < 0 else sign * (scores[at] - next(others))

    @staticmethod
    def stops(drawn: Sequence[_Draw]) -> list[int]:
        """Indices in the batch of those that have a partner."""
        return [draw.at for draw in drawn if draw.partner >= 0]

    def prepare(self, x: Features, label: bool, score: float, scorer: Scorer) -> _Step | None:
        """What must be known of an event before it is learned; changes nothing."""
        if self.unusable is not None:
            return None
        counts = self._counts
        t = counts[0] + counts[1]
        early = t < self.exact
        own, past = self._steps[label], self._records[label]
        keep_record = past.count == past.hit
        keep_step = not early and own.count == own.hit
        if not (early or keep_record or keep_step):
            return None
        row = cast("dict[Any, float]", x) if self.trusting else _numbers(x)
        if row is None or not (early or keep_step):
            return _Step(row, False, keep_record)
        sign = 2.0 if label else -2.0
        if early:
            margins = [sign * (score - scorer(x2)) for x2, y2 in self._first if y2 != label]
            loss = float(np.sum(self.loss.value(np.array(margins)))) / t if margins else 0.0
            return _Step(row, False, keep_record, loss)
        slot = self._draw_partner(label)
        if slot < 0:
            return _Step(row, True, keep_record)
        partner = self._past.rows[slot]
        assert partner is not None
        margin = sign * (score - scorer(partner))
        weight = counts[not label] / t
        return _Step(row, True, keep_record, 0.0, margin, weight, partner, self._past_id[slot])

    def commit(self, step: _Step | None, label: bool) -> None:
        """Count the event, now that it was learned, and let it into the sample as prepared."""
        index = self.seen
        early = index < self.exact
        x, keep_record, keep_step = None, False, False
        loss = margin = weight = 0.0
        partner, partner_index = None, -1
        if step is not None:
            x, keep_step, keep_record, loss, margin, weight, partner, partner_index = step
            if x is None:
                self.give_up("a feature of the stream is not a finite number")
                keep_record = keep_step = False
        record, slot = self._enter(label, keep_record, keep_step, early=early)
        if record >= 0:
            self._past.put(record, x)
            self._past_id[record] = index
        if early:
            if x is not None:
                self._first.append((x, bool(label)))
                self._first_loss += loss
        elif slot >= 0:
            self._own.put(slot, x)
            self._own_id[slot] = index
            self._partner.put(slot, partner)
            self._partner_id[slot] = partner_index
            self._margin[slot] = margin
            self._weight[slot] = weight
        if index + 1 <= self.exact or self.unusable is not None:
            self._set_left()

    def _set_left(self) -> None:
        if self.unusable is not None:
            self.left = [1 << 62, 1 << 62]
        elif self.seen < self.exact:
            self.left = [0, 0]
        else:
            pairs = zip(self._steps, self._records, strict=True)
            self.left = [min(s.hit - s.count, r.hit - r.count) for s, r in pairs]

    def give_up(self, why: str) -> None:
        """End the estimation and forget the sample; only the labels are counted from now on."""
        self.unusable = why
        self._first = []
        for rows in (self._own, self._partner, self._past):
            rows.clear()
        self._set_left()

    # State

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        samples: list[Thinning | Uniform] = [*self._steps, *self._records]
        return {
            "params": self.params(),
            "unusable": self.unusable,
            "counts": list(self._counts),
            "samples": [[r.count, r.hit] for r in samples],
            "random": np.array(self._random.getstate()[1], dtype=np.uint64),
            "next_uniform": self._next_uniform,
            "log_w": [r.log_w for r in self._records],
            "rank": np.array([value for r in self._steps for value in r.rank]),
            "order": np.array([value for r in self._steps for value in r.order], dtype=np.int64),
            "first": pack_records([row for row, _ in self._first]),
            "first_labels": np.array([label for _, label in self._first], dtype=np.bool_),
            "first_loss": self._first_loss,
            "own": self._own.to_state(),
            "partner": self._partner.to_state(),
            "past": self._past.to_state(),
            "own_id": np.array(self._own_id, dtype=np.int64),
            "partner_id": np.array(self._partner_id, dtype=np.int64),
            "past_id": np.array(self._past_id, dtype=np.int64),
            "margin": np.array(self._margin, dtype=np.float64),
            "weight": np.array(self._weight, dtype=np.float64),
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
            samples: list[Thinning | Uniform] = [*self._steps, *self._records]
            for r, (count, hit) in zip(samples, state["samples"], strict=True):
                r.count, r.hit = int(count), int(hit)
            for reservoir, log_w in zip(self._records, state["log_w"], strict=True):
                reservoir.log_w = float(log_w)
            for i, steps in enumerate(self._steps):
                part = slice(i * self._half, (i + 1) * self._half)
                steps.load(state["rank"][part].tolist(), state["order"][part].tolist())
            self._random.setstate((3, tuple(state["random"].tolist()), None))
            self._next_uniform = float(state["next_uniform"])
            self.unusable = state["unusable"]
            self._counts = [int(c) for c in state["counts"]]
            rows = unpack_records(state["first"])
            self._first = [
                (cast("dict[Any, float]", r), bool(y))
                for r, y in zip(rows, state["first_labels"], strict=True)
            ]
            self._first_loss = float(state["first_loss"])
            for name in ("own", "partner", "past"):
                getattr(self, f"_{name}").load_state(state[name])
            for name in ("own_id", "partner_id", "past_id", "margin", "weight"):
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

    def params(self) -> dict[str, object]:
        """What a saved sample must have been made with."""
        return {
            "loss": repr(self.loss),
            "radius": self.radius,
            "pairs": self.pairs,
            "exact": self.exact,
            "seed": self.seed,
        }


def _numbers(x: Features) -> dict[Any, float] | None:
    """The record with plain floats, or None if it has anything else."""
    if not _NAMES.issuperset(map(type, x)):
        return None
    if _NUMBERS.issuperset(map(type, x.values())):
        total = sum(x.values())
        if total - total == 0.0:  # finite, so every value is
            return dict(x)
        row = dict(x)
    else:
        try:
            row = {name: math.nan if isinstance(v, str | bytes) else float(v) for name, v in x.items()}
        except (TypeError, ValueError, OverflowError):
            return None
    return row if all(map(math.isfinite, row.values())) else None
