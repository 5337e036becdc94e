"""What is kept of a stream to estimate the regret of its learner, whatever its labels are."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.rows import Records, Row, in_order, pack_records, unpack_records, usable
from streampair.evaluation.sampling import Sample
from streampair.kernels import sampling as layout

__all__ = ["Drawn", "Sampler", "Scorer", "numbers"]

Array = NDArray[np.float64]
Features = Mapping[Any, Any]
Scorer = Callable[[Any], float]

#: Types of feature names that a snapshot can hold.
_NAMES: Final = frozenset({str, int})


_NO_HITS: Array = np.empty((0, layout.SAMPLE_HIT))


class Drawn:
    """What of a batch enters the sample; drawn before any of the batch is learned.

    Attributes
    ----------
    at
        Indices in the batch of what was drawn, and is still to be kept.
    stops
        Indices of the steps that have a partner.
    others
        The partners, once the sample was told the records.
    """

    def __init__(
        self,
        hits: Array = _NO_HITS,
        first: int = 0,
        stops: list[int] | None = None,
        places: list[int] | None = None,
        others: Sequence[Row] = (),
    ) -> None:
        self.hits, self.first = hits, first
        told = hits.tolist() if len(hits) else ()
        paired = [hit for hit in told if hit[layout.HIT_PARTNER] >= 0.0]
        self.at = [int(hit[layout.HIT_AT]) for hit in told]
        self.stops = [int(hit[layout.HIT_AT]) for hit in paired] if stops is None else stops
        self.places = [int(hit[layout.HIT_STEP]) for hit in paired] if places is None else places
        self.others = others


class Sampler(abc.ABC):
    """A sample of the pairs of a stream, with the margins that its learner had.

    The parameters are those of `PairRegret`, which estimates from it.
    """

    #: How many kinds of labels are sampled apart: of two, partners are of the other kind.
    _strata: ClassVar[int]

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
        #: Whether records are known to hold finite numbers only, as when a learner of ours has scored them.
        self.trusting = False
        #: Why there is no estimate; None while there is one.
        self.unusable: str | None = None
        self._first: list[tuple[Row, Any]] = []
        self._first_loss = 0.0
        size = pairs // self._strata
        self._sample = Sample(self._strata, size, size, exact, seed)
        self._warm = np.zeros(0)
        self._solve_at = 2
        # Whether the exact part is over.
        self._later = False

    # ---- what a kind of label provides -----------------------------------------------------------------

    @abc.abstractmethod
    def _stratum(self, y: Any) -> int:
        """The stratum of a label."""

    @abc.abstractmethod
    def _numbers_of(self, ys: Sequence[Any]) -> Array:
        """The numbers (k,) that the sample keeps of labels."""

    @abc.abstractmethod
    def _weigh(self, places: NDArray[np.int64]) -> None:
        """Weights of the steps at these places, where their labels decide."""

    @abc.abstractmethod
    def _margin(self, place: int, score: float, theirs: float) -> float:
        """Margin of the step at this place, from its score and that of its partner."""

    # ---- observing -------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Labelled events observed."""
        return sum(map(self._sample.seen, range(self._strata)))

    @property
    def due(self) -> bool:
        """Whether the stream has grown enough since the last estimate for the cost of another not to show."""
        return self.seen >= self._solve_at and self.unusable is None

    @property
    def left(self) -> list[int]:
        """For each stratum, the number of next events of which none enters the sample."""
        return [self._sample.left(c) for c in range(self._strata)]

    def enters(self, y: Any) -> bool:
        """Whether the next event of this label may enter the sample."""
        return self._sample.left(self._stratum(y)) <= 0

    def observe(self, x: Features, y: Any, score: float, scorer: Scorer) -> None:
        """One labelled event, after it was scored and before it is learned.

        Parameters
        ----------
        x
            The record as the learner sees it.
        y
            Its label; of two classes, whether it has the positive one.
        score
            The learner's score of `x`.
        scorer
            The learner's scoring function, for the partner.
        """
        if self.enters(y):
            self.commit(self.prepare(x, y, score, scorer), y)
        else:
            self.skip([y])

    def _strata_of(self, labels: Sequence[Any]) -> NDArray[np.uint8]:
        """The stratum of each."""
        if self._strata == 1:
            return np.zeros(len(labels), dtype=np.uint8)
        return np.frombuffer(labels if isinstance(labels, bytes) else bytes(labels), dtype=np.uint8)

    def _nobody(self, labels: Sequence[Any]) -> bool:
        """Count these events if none of them enters; False, with nothing changed, if one does."""
        sample, n = self._sample, len(labels)
        ones = 0
        if self._strata == 2:
            if not isinstance(labels, bytes):
                return False  # to count them would take as long as to draw
            ones = labels.count(1)
            if ones > sample.left(1):
                return False
        if n - ones > sample.left(0):
            return False
        self.pass_over(n - ones, ones)
        return True

    def hits(self, labels: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
        """Where the events are that may enter the sample, and how many of each stratum are to be skipped.

        Yields (index, number of the first stratum, of the second since the last one), at the end with the
        number of labels as the index. The caller has skipped, prepared and committed everything up to an
        index before it asks for the next.
        """
        n, strata = len(labels), self._strata_of(labels)
        places = [np.flatnonzero(strata == c).tolist() for c in (0, 1)]
        order = [*self.left, 0][:2]  # of the next event of interest among those of its stratum
        done = [0, 0]
        while True:
            at = [own[k] if k < len(own) else n for own, k in zip(places, order, strict=True)]
            stop = min(at)
            if stop == n:
                yield n, len(places[0]) - done[0], len(places[1]) - done[1]
                return
            c = int(at[1] == stop)
            before = [order[0], stop - order[0]] if c == 0 else [stop - order[1], order[1]]
            yield stop, before[0] - done[0], before[1] - done[1]
            before[c] += 1
            done = before
            order[c] += 1 + self._sample.left(c)

    def skip(self, labels: Sequence[Any]) -> None:
        """Count events that do not enter the sample: of each stratum at most `left`."""
        ones = int(np.count_nonzero(self._strata_of(labels))) if labels else 0
        self.pass_over(len(labels) - ones, ones)

    def pass_over(self, zeros: int, ones: int) -> None:
        """Count so many events of the first and of the second stratum that do not enter the sample."""
        self._sample.pass_over(0, zeros)
        if ones:
            self._sample.pass_over(1, ones)

    # ---- batches ---------------------------------------------------------------------------------------

    def draw(
        self, labels: Sequence[Any], *, numbers: bool = False, rows: Records | None = None
    ) -> Drawn | None:
        """Count a batch that is learned at once, and draw what of it enters the sample, by labels alone.

        Parameters
        ----------
        labels
            Of the events; of two classes they may be bytes, 1 for the positive one and else 0.
        numbers
            Whether these records, if not all, are known to hold finite numbers only.
        rows
            The records, if they are at hand as rows: what is drawn may then be kept already.

        Returns
        -------
        Drawn or None
            For `keep`, if anything is still to be kept, and `settle`. None, with nothing changed, where
            events are to be observed one by one: in the exact part, and if records may hold anything.
        """
        first = 0 if self._later else self.seen
        self._later = self._later or first >= self.exact
        if not self._later or not (self.trusting or numbers or self.unusable is not None):
            return None
        if self._nobody(labels):
            return Drawn()
        strata = self._strata_of(labels)
        taken = self._sample.take(strata, rows) if rows is not None and self._strata == 2 else None
        if taken is not None:
            return Drawn(_NO_HITS, 0, *taken)
        first = self.seen
        return Drawn(self._sample.draw(strata), first)

    def keep(self, drawn: Drawn, rows: Sequence[Features], labels: Sequence[Any]) -> None:
        """Let in what was drawn, before the batch is learned: `drawn` then has the partners.

        Parameters
        ----------
        drawn
            What `draw` gave.
        rows
            The records at its places, as the learner sees them: dicts, or `Records`.
        labels
            Of the batch.
        """
        told = self._numbers_of([labels[i] for i in drawn.at])
        drawn.others = self._sample.keep(drawn.hits, cast("Sequence[Row]", rows), told, drawn.first)
        if drawn.stops:
            self._weigh(np.array(drawn.places))

    def settle(self, drawn: Drawn, scores: Sequence[float], theirs: Sequence[float]) -> None:
        """The margins, now that the batch is learned.

        Parameters
        ----------
        drawn
            What `keep` was given.
        scores
            Of the batch.
        theirs
            The score of each partner as it was before the record that it is a partner of was learned.
        """
        steps = self._sample.steps
        # Where two of a batch have the same place, the later one stays.
        for at, place, other in zip(drawn.stops, drawn.places, theirs, strict=True):
            steps[place, layout.STEP_MARGIN] = self._margin(place, scores[at], other)

    # ---- one event -------------------------------------------------------------------------------------

    @abc.abstractmethod
    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> tuple[Row | None, float] | None:
        """What must be known of an event before it is learned; changes nothing.

        Returns
        -------
        tuple or None
            The record, None if it has features that are no numbers; and in the exact part its penalty, or
            else its margin with the partner. None: it does not enter the sample.
        """

    def _given(self, x: Features) -> Row | None:
        row = numbers(x)
        return usable(x) if row is None and self.trusting else row

    def commit(self, step: tuple[Row | None, float] | None, y: Any) -> None:
        """Count the event, now that it was learned, and let it into the sample as prepared."""
        stratum, index = self._stratum(y), self.seen
        if step is not None and step[0] is None:
            self.give_up("a feature of the stream is not a finite number")
        if self.unusable is not None:
            self._sample.pass_over(stratum, 1)
            return
        hits = self._sample.draw_one(stratum)
        if step is None:
            return
        x, value = cast("tuple[Row, float]", step)
        if len(hits):
            self._sample.keep(hits, [x], self._numbers_of([y]), index)
            place = hits[:, layout.HIT_STEP].astype(np.int64)
            if place[0] >= 0:
                self._weigh(place)
                self._sample.steps[place, layout.STEP_MARGIN] = value
        if index < self.exact:
            self._first.append(({name: x[name] for name in in_order(x)}, float(self._numbers_of([y])[0])))
            self._first_loss += value

    def give_up(self, why: str) -> None:
        """End the estimation and forget the sample; events are only counted from now on."""
        self.unusable = why
        self._first = []
        self._sample.clear()

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """What a saved sample must have been made with."""
        return {
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
            **self._counted(),
            **self._sample.to_state(),
            "first": pack_records([row for row, _ in self._first]),
            "first_labels": self._labels_of_first(),
            "first_loss": self._first_loss,
            "warm": self._warm.copy(),
            "solve_at": self._solve_at,
        }

    @abc.abstractmethod
    def _counted(self) -> dict[str, object]:
        """How many events of each stratum there were, and what else a kind of label keeps."""

    @abc.abstractmethod
    def _counts(self, state: Mapping[str, Any]) -> list[int]:
        """The counts out of a state."""

    @abc.abstractmethod
    def _labels_of_first(self) -> NDArray[Any]:
        """Of the exact part."""

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
            self._later = False
            self.unusable = state["unusable"]
            self._sample.load_state(state, self._counts(state))
            rows = cast("list[Row]", unpack_records(state["first"]))
            self._first = list(zip(rows, state["first_labels"].astype(np.float64).tolist(), strict=True))
            self._first_loss = float(state["first_loss"])
            self._warm = state["warm"].copy()
            self._solve_at = int(state["solve_at"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise SnapshotError(
                f"the regret in the snapshot cannot be read ({error})", fix="restore an undamaged snapshot"
            ) from error


def numbers(x: Features) -> Row | None:
    """The record with plain floats, or None if it has anything else."""
    if not _NAMES.issuperset(map(type, x)):
        return None
    try:
        row = {name: math.nan if isinstance(v, str | bytes) else float(v) for name, v in x.items()}
    except (TypeError, ValueError, OverflowError):
        return None
    return row if all(map(math.isfinite, row.values())) else None
