"""What goes into a lane and what comes out of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError
from streampair.evaluation import Quality, RegretEstimate

__all__ = [
    "Breaker",
    "Commit",
    "DeadLetter",
    "Event",
    "LaneGauges",
    "LaneOutput",
    "LogAppend",
    "Record",
    "RegretConfig",
    "ReplayRequest",
    "Rows",
    "Scored",
]

# msgspec structs, not dataclasses: three of them are made for every event, and they are five times cheaper.


class Record(msgspec.Struct, frozen=True, gc=False):
    """One raw event of a partition.

    Attributes
    ----------
    offset
        Its position; grows along a partition, gaps allowed.
    value
        The bytes, or None for a tombstone.
    key
        The key bytes.
    timestamp
        Milliseconds since the epoch, as the source says; carried, and used for nothing but to say since when.
    """

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0


class Event(msgspec.Struct, frozen=True, gc=False):
    """One decoded event.

    Attributes
    ----------
    x
        Feature name to value. The lane and its learner may keep a reference: do not change it afterwards.
    y
        The label, or None if it has none: the event is scored and not learned.
    id
        The user's name for it, passed on to the output.
    """

    x: dict[str, Any]
    y: object | None
    id: str | None = None


class Rows(NamedTuple):
    """A batch of decoded events that all have the same features, without an object for each.

    A function that decodes may have an attribute `many`, from a sequence of records to their rows; it returns
    None where it cannot tell the records of the batch. They are then decoded one by one. Both ways must give
    the same values, their names in the same order, and the same errors.

    Attributes
    ----------
    names
        Of the features.
    values
        Array of shape (n, d), C order, float64.
    labels
        As `Event.y`: None for an event without a label, and for what is refused.
    ids
        As `Event.id`; None: no event has one.
    refused
        By index, the error of a record that cannot be decoded: its values are finite, and mean nothing. None:
        all can be.
    """

    names: list[str]
    values: NDArray[np.float64]
    labels: list[Any]
    ids: list[str | None] | None = None
    refused: dict[int, Exception] | None = None


class Scored(msgspec.Struct, frozen=True, gc=False):
    """What became of one record; exactly one for each.

    Attributes
    ----------
    offset, key
        Of the record.
    id
        Of the event; None if it could not be decoded.
    score
        Given before learning; None for a dead letter or a tombstone, and while a step in front of a River
        model has seen too little to pass on finite numbers.
    outcome
        `"learned"`, `"scored"` (no label, past the horizon of a private learner, or of an entity that was
        learned from often enough), `"dead_letter"`, `"tombstone"` (no value, so nothing to score).
    probabilities
        By class, given with the score; None where nobody asked for them, or there are none.
    """

    offset: int
    key: bytes | None
    id: str | None
    score: float | None
    outcome: str
    probabilities: dict[Any, float] | None = None


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A record that could not be used, with its original bytes.

    Attributes
    ----------
    offset, key, value, timestamp
        Of the record.
    stage
        Where it failed: `"decode"`, `"features"`, `"label"` or `"learn"`.
    error
        What was wrong and what to do, in one line.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    stage: str
    error: str


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """What a log asks for before its lane can start.

    Attributes
    ----------
    content
        Name of the snapshot to restore; None: the lane starts without one.
    first, last
        Offsets of records to be read again, where the topic still has them.
    used
        Bytes of the log that are whole; what lies behind may be cut off.
    """

    content: str | None
    first: int | None
    last: int | None
    used: int


@dataclasses.dataclass(frozen=True)
class LogAppend:
    """Frames to be made durable, and then the register at `next_offset`, before anything else happens.

    Attributes
    ----------
    frames
        In order, to be appended to the log; none where only the register is behind.
    register
        Text that goes with the group's offset.
    next_offset
        The group's offset; None: where the partition starts.
    """

    frames: tuple[bytes, ...]
    register: str
    next_offset: int | None


@dataclasses.dataclass(frozen=True)
class Commit(LogAppend):
    """An `LogAppend` that comes once all outputs are stored.

    Attributes
    ----------
    content, snapshot
        Name and bytes of a snapshot that is to be durable before the frames; None: none.
    """

    content: str | None = None
    snapshot: bytes | None = None


@dataclasses.dataclass(slots=True)
class LaneOutput:
    """What one batch gave: to be written together with the snapshot, or not at all.

    Attributes
    ----------
    scores
        One for each record that was not ignored, in order.
    dead_letters
        Under `on_bad="dlq"`.
    next_offset
        The first offset that this lane has not seen; None before the first record.
    line
        To be made durable before any of it leaves; None: nothing, or the lane keeps no log.
    """

    scores: list[Scored]
    dead_letters: list[DeadLetter]
    next_offset: int | None
    line: LogAppend | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Breaker:
    """Stop the lane when so many events are bad that the schema must have broken.

    Parameters
    ----------
    window
        Number of latest records that are looked at.
    share
        It trips when `share * window` of them are dead letters. A stream that is bad from its first record
        trips after that many.
    """

    window: int = 1000
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.window < 1 or not 0.0 < self.share <= 1.0:
            raise ConfigError(
                f"Breaker(window={self.window}, share={self.share}) can never be right",
                fix="give a window of at least 1 record and a share in (0, 1]",
            )

    @property
    def limit(self) -> int:
        """Number of dead letters in the window that trips it."""
        return max(1, math.ceil(self.share * self.window))


@dataclasses.dataclass(frozen=True, slots=True)
class RegretConfig:
    """How the regret is estimated; see `streampair.evaluation.PairRegret`.

    Parameters
    ----------
    loss
        Pair loss; None takes the learner's, or the hinge for an estimator that has none.
    radius
        Of the ball of comparators; None takes the learner's, or 1.
    pairs, exact, seed
        As in `PairRegret`.
    """

    loss: Any = None
    radius: float | None = None
    pairs: int = 1024
    exact: int = 64
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class LaneGauges:
    """The numbers of a lane for telemetry; functions of raw data, except `privacy` (docs/privacy 7).

    Attributes
    ----------
    events
        Records by outcome: `"learned"`, `"scored"`, `"dead_letter"`, `"tombstone"`, `"ignored"` (seen
        before).
    dead_letters
        By stage: `"decode"`, `"features"`, `"label"`, `"learn"`.
    auc
        Of the scores given before learning, over the latest labelled events; NaN until both labels were seen.
    regret
        The latest estimate, or None. Its `n` says how many events it covers.
    weight_norm
        L2 norm of the learner's weights; None if it has no table of weights.
    buffer_records
        Records in the learner's buffer; None if it has none.
    null_slots
        Null steps of a private learner; None otherwise.
    state_bytes
        Size of the last snapshot made or restored; None before the first.
    next_offset
        As in `LaneOutput`.
    privacy
        The report of a private learner, as `Lane.privacy`.
    forks, generation
        Second views that the ledger has charged, and the generation of its noise; None without a ledger.
    quality
        What else the scores in the window of `auc` tell; None until both labels were seen. Nothing is steered
        by it.
    since
        Date of the first record that the lane took, in seconds since the epoch, as its source says; None: it
        does not say, or nobody has written it down.
    release_dates, fork_dates
        As of `Dates`: for operators alone.
    weights
        The largest weights that are published: name, value, and the standard deviation of the noise in it,
        None where that is not known.
    outside
        Values beyond the declared bounds, by feature, of those that had any; None where none are declared.
    """

    events: dict[str, int]
    dead_letters: dict[str, int]
    auc: float
    regret: RegretEstimate | None
    weight_norm: float | None
    buffer_records: int | None
    null_slots: int | None
    state_bytes: int | None
    next_offset: int | None
    privacy: Any
    forks: int | None = None
    generation: int | None = None
    quality: Quality | None = None
    weights: tuple[tuple[str, float, float | None], ...] = ()
    since: float | None = None
    release_dates: tuple[tuple[int, int, float, int | None, int], ...] = ()
    fork_dates: tuple[tuple[int, int], ...] = ()
    outside: dict[str, int] | None = None
