"""Inputs and outputs of a lane."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.engine.wal import Range, RecordRef
from streampair.errors import ConfigError, RecordError
from streampair.evaluation import ExpectedQuality, Quality, RegretEstimate

__all__ = [
    "LABEL_IN_EVENT",
    "LABEL_LATER",
    "LABEL_LEARNED",
    "LABEL_NO_ID",
    "LABEL_STOPPED",
    "OFFSET_BITS",
    "Breaker",
    "Commit",
    "DeadLetter",
    "Event",
    "EventRows",
    "LaneGauges",
    "LaneOutput",
    "LateGauges",
    "LogAppend",
    "OrderedRecord",
    "Record",
    "RegretConfig",
    "ReplayRequest",
    "Scored",
    "stage_and_text",
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
        Milliseconds since the epoch, from the source; used only for the date of the first record.
    """

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0


LABEL_IN_EVENT: Final = -1
LABEL_LATER: Final = -2
LABEL_LEARNED: Final = 255
LABEL_NO_ID: Final = 3
"""Code of an event without an id: that no label came for it says nothing."""
LABEL_STOPPED: Final = 4
"""Code of the label of an event that was stopped: its outcome will never be known."""
OFFSET_BITS: Final = 48
"""Of the place of a record as one number: its partition, and below that its offset."""


class OrderedRecord(Record, frozen=True, gc=False, kw_only=True):
    """A record of a topic with its ordinal, which is its `offset`.

    Attributes
    ----------
    partition, position
        Where it lies: the partition, and the offset in it.
    clock
        Running maximum of the timestamps of its partition, in milliseconds: what the order goes by.
    headers
        Of the record.
    label
        `LABEL_IN_EVENT`: the event has its label, and is scored and learned. `LABEL_LATER`: the event is
        scored now. Otherwise the event is due: it was scored before and is learned now, with the label of
        this code, an index of `Lane`'s `labels`; code 0 says that no label came in time, `LABEL_LEARNED` that
        it was learned when its label came.
    early
        Whether it is learned because its label came, before the events that came before it.
    """

    partition: int
    position: int
    clock: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    label: int = LABEL_IN_EVENT
    early: bool = False

    @property
    def due(self) -> bool:
        """Whether it is learned now, and was scored before."""
        return self.label >= 0


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


class EventRows(NamedTuple):
    """A batch of decoded events that all have the same features, without an object for each.

    A decoder may have an attribute `many`, a function from a sequence of records to their rows. If it returns
    None, the records are decoded one by one. Both ways must give the same values, the names in the same
    order, and the same errors.

    Attributes
    ----------
    names
        Of the features.
    values
        Array of shape (n, d), C order, float64.
    labels
        As `Event.y`: None for an event without a label, and for a refused record.
    ids
        As `Event.id`; None: no event has one.
    refused
        By index, the error of a record that cannot be decoded: its values are finite, and mean nothing. None:
        no record is refused.
    """

    names: list[str]
    values: NDArray[np.float64]
    labels: list[Any]
    ids: list[str | None] | None = None
    refused: dict[int, Exception] | None = None


class Scored(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one record; exactly one for each.

    Attributes
    ----------
    offset, key
        Of the record.
    id
        Of the event; None if it could not be decoded.
    score
        Made before learning; None for a dead letter or a tombstone, and while a step in front of a River
        model has seen too little to pass on finite numbers.
    outcome
        `"learned"`, `"scored"` (no label, past the horizon of a private learner, or of an entity over its
        limit), `"dead_letter"`, `"tombstone"` (no value, so nothing to score), `"skipped"` (due, and not
        learned: no label came, or its event could not be used when it was to be scored).
    probabilities
        By class, made with the score; None where they are not requested, or there are none.
    reasons
        The largest contributions to the score, the largest first: the feature and its part. None where they
        are not requested.
    """

    offset: int
    key: bytes | None
    id: str | None
    score: float | None
    outcome: str
    probabilities: dict[Any, float] | None = None
    reasons: list[tuple[str, float]] | None = None


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


def stage_and_text(error: Exception, stage: str) -> tuple[str, str]:
    """`stage` and `error` of a dead letter. The stage is the one given, unless the error names it."""
    if isinstance(error, RecordError):
        return error.stage, str(error)
    return stage, f"{type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """Snapshot and records that a log needs before its lane can start.

    Attributes
    ----------
    content
        Name of the snapshot to restore; None: the lane starts without one.
    first, last
        Records to be read again, where the topic still has them.
    ranges
        Of a lane that reads a whole topic: what is replayed, in this order.
    used
        Length of the log's whole frames in bytes; a torn end after them may be cut off.
    """

    content: str | None
    first: RecordRef | None
    last: RecordRef | None
    used: int
    ranges: tuple[Range, ...] = ()


@dataclasses.dataclass(frozen=True)
class LogAppend:
    """Frames to be made durable, and then the register at `next_offset`, before anything else happens.

    Attributes
    ----------
    frames
        To be appended to the log in order; none where only the register is to be written.
    register
        Metadata text of the group's offset.
    next_offset
        The group's offset; None: where the partition starts.
    positions
        The group's offsets by partition, of a lane that reads a whole topic: in place of `next_offset`. A
        partition that is not in it is where it starts.
    """

    frames: tuple[bytes, ...]
    register: str
    next_offset: int | None
    positions: Mapping[int, int] | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True)
class Commit(LogAppend):
    """A `LogAppend` to be made durable once all outputs are stored.

    Attributes
    ----------
    content, snapshot
        Name and bytes of a snapshot that is to be durable before the frames; None: none.
    """

    content: str | None = None
    snapshot: bytes | None = None


@dataclasses.dataclass(slots=True)
class LaneOutput:
    """Outputs of one batch: to be written together with the snapshot, or not at all.

    Attributes
    ----------
    scores
        One for each record that was not ignored, in order.
    dead_letters
        Under `on_bad="dlq"`.
    next_offset
        The first offset that this lane has not seen; None before the first record.
    line
        To be made durable before any output leaves; None: nothing, or the lane keeps no log.
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
        Number of latest records in the window.
    share
        It trips when `share * window` of them are dead letters. A stream that is bad from its first record
        trips after that many.
    """

    window: int = 1000
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.window < 1 or not 0.0 < self.share <= 1.0:
            raise ConfigError(
                f"Breaker(window={self.window}, share={self.share}) is invalid",
                fix="give a window of at least 1 record and a share in (0, 1]",
            )

    @property
    def limit(self) -> int:
        """Number of dead letters in the window that trips it."""
        return max(1, math.ceil(self.share * self.window))


@dataclasses.dataclass(frozen=True, slots=True)
class RegretConfig:
    """Size and seed of the sample that the regret is estimated from. Loss and radius are the learner's.

    Parameters
    ----------
    pairs, exact, seed
        As of `streampair.evaluation.Regret`.
    """

    pairs: int = 1024
    exact: int = 64
    seed: int = 0


class LateGauges(NamedTuple):
    """Numbers of a lane whose labels come later than its events.

    Attributes
    ----------
    due, labelled, stopped
        Events that were due, how many of them had a label that came, and how many were stopped.
    scores, share
        Size of the sample of scores that wait for their labels, and its share of the events that wait.
    in_time, late
        As of `streampair.engine.delays.LateSample`.
    explored
        Events that their scores were to stop: "yes", how many the coin has let pass, and have an outcome;
        "no", how many have one and were not let pass, which are in no figure; and "stopped", how many were
        stopped though the coin had let them pass. None: no event is explored.
    """

    due: int
    labelled: int
    scores: int
    share: float
    in_time: int
    late: int
    stopped: int = 0
    explored: dict[str, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LaneGauges:
    """The numbers of a lane for telemetry; functions of raw data, except `privacy` (docs/privacy 7).

    Attributes
    ----------
    events
        Records by outcome: `"learned"`, `"scored"`, `"dead_letter"`, `"tombstone"`, `"skipped"` (see
        `Scored`), `"ignored"` (seen before). An event whose label comes later counts twice: when it is
        scored, and when it is due.
    dead_letters
        By stage: `"decode"`, `"features"`, `"label"`, `"learn"`.
    auc
        Of the scores given before learning, over the latest labelled events; NaN until both labels were seen.
    regret
        The latest estimate, or None. Its `n` says how many events it covers.
    weight_norm
        L2 norm of the learner's weights, of the features as it scales them; None if it has no table of them.
    weight_noise
        Root mean square of the L2 norm of the noise in these weights; None where it is not known.
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
        Forks that the ledger has charged, and the generation of its noise; None without a ledger.
    quality
        Further metrics of the scores in the window of `auc`; None until both labels were seen. They
        influence nothing.
    expected
        What is known of the latest scores before their labels come; None: drift is not measured, or the
        reference is not complete yet.
    since
        Date of the first record that the lane took, in seconds since the epoch, from its source; None:
        unknown.
    release_dates, fork_dates
        As of `Dates`: for operators only.
    weights
        The largest published weights: name, value, and the standard deviation of the noise in it, None where
        it is not known.
    outside
        Number of values outside the declared bounds, by feature that had any; None where no bounds are
        declared.
    late
        Of a lane whose labels come later; None otherwise.
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
    weight_noise: float | None = None
    since: float | None = None
    release_dates: tuple[tuple[int, int, float, int | None, int], ...] = ()
    fork_dates: tuple[tuple[int, int], ...] = ()
    outside: dict[str, int] | None = None
    late: LateGauges | None = None
    expected: ExpectedQuality | None = None
