"""A driver of lanes: a topic in memory, commits, and crashes at any durable step.

It needs no broker and no files, and runs the same lane as production.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from streampair.engine.lane_id import LaneId
from streampair.engine.lane_log import place_of
from streampair.engine.logged_lane import LoggedLane
from streampair.engine.records import Commit, Event, LaneOutput, LogAppend, Record, ReplayRequest, Scored
from streampair.engine.recovery import Cause, ExternalState
from streampair.engine.wal import RecordRef
from streampair.errors import RecordError, StoreError

__all__ = ["CommittedOffset", "Died", "Driver", "LaneFiles", "MemoryStore", "decode_json"]


class _Wire(msgspec.Struct):
    x: dict[str, Any]
    y: Any = None
    id: str | None = None


def decode_json(record: Record) -> Event:
    """Decode what `Driver.feed` writes: a JSON object with `x`, and perhaps `y` and `id`.

    Raises
    ------
    RecordError
        If the value is anything else.
    """
    try:
        wire = msgspec.json.decode(record.value or b"", type=_Wire)
    except msgspec.MsgspecError as error:
        raise RecordError(
            f"the value is not an event ({error})", fix="send a JSON object with x and y", stage="decode"
        ) from error
    return Event(wire.x, wire.y, wire.id)


class Died(Exception):
    """The simulated process has died."""


class LaneFiles(Protocol):
    """Store of a lane's log and snapshots; the directory store implements it too."""

    def read(self) -> bytes: ...

    def snapshot(self, content: str) -> bytes: ...

    def cut(self, used: int) -> None: ...

    def append(self, append: LogAppend) -> None: ...

    def save(self, commit: Commit) -> None: ...

    def compact(self, commit: Commit) -> None: ...


@dataclasses.dataclass
class MemoryStore:
    """A log and its snapshots, which outlive their lane. A test may roll back or damage them.

    Attributes
    ----------
    log
        The frames.
    snapshots
        By name.
    """

    log: bytes = b""
    snapshots: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def read(self) -> bytes:
        """The log."""
        return self.log

    def snapshot(self, content: str) -> bytes:
        """A snapshot, by its name.

        Raises
        ------
        StoreError
            It is not there.
        """
        if content not in self.snapshots:
            raise StoreError(
                f"the snapshot {content} that the log names is gone",
                fix="put the store back as a whole: its log and its snapshots belong together",
            )
        return self.snapshots[content]

    def cut(self, used: int) -> None:
        """Cut off a torn end."""
        self.log = self.log[:used]

    def append(self, append: LogAppend) -> None:
        """Add frames."""
        self.log += b"".join(append.frames)

    def save(self, commit: Commit) -> None:
        """Keep the snapshot of a commit."""
        if commit.content is not None and commit.snapshot is not None:
            self.snapshots[commit.content] = commit.snapshot

    def compact(self, commit: Commit) -> None:
        """Drop what is older than a snapshot."""
        if commit.content is not None and commit.snapshot is not None:
            self.log = b"".join(commit.frames)
            self.snapshots = {commit.content: commit.snapshot}


@dataclasses.dataclass
class CommittedOffset:
    """State that a consumer group keeps of a partition, outside of the lane's store.

    Attributes
    ----------
    register, offset
        None: it has none.
    """

    register: str | None = None
    offset: int | None = None


class Driver:
    """A lane, its topic, and its store; with crashes at any durable step.

    Parameters
    ----------
    make
        Makes a fresh model; called once for each start. A private one needs a noise key, or it saves its
        state at each commit.
    decode
        As for `Lane`.
    snapshot_every
        Commits from one snapshot to the next.
    store
        Keeps its log and snapshots; None: in memory.
    facts
        Further facts of the topic: `partitions`, `cluster`.
    options
        Further arguments of `LoggedLane`.

    Attributes
    ----------
    topic
        All records fed so far, by offset.
    lane
        The running lane.
    store, group
        State that outlives the lane.
    scores
        Outputs that have left, in order, with repeats.
    die_after
        Number of durable steps until the process dies; None: it lives.
    first
        The first offset that the topic still has: retention has removed the records before it.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        decode: Callable[[Record], Event] = decode_json,
        *,
        snapshot_every: int = 1,
        store: LaneFiles | None = None,
        facts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._make = make
        self._decode = decode
        self._options = {"identity": LaneId("test", "events", 0), **options}
        self._facts = dict(facts or {})
        self._every = snapshot_every
        self._commits = 0
        self.topic: list[Record] = []
        self.store: Any = MemoryStore() if store is None else store
        self.group = CommittedOffset()
        self.scores: list[Scored] = []
        self.warnings: list[str] = []
        self.die_after: int | None = None
        self.first = 0
        self.start()

    # Start

    def start(self, *, die_after: int | None = None) -> None:
        """Start from what the store holds, as a worker does.

        Parameters
        ----------
        die_after
            Durable steps until this process dies; None: it lives.
        """
        self.die_after = die_after
        self.lane = lane = self.new_lane()
        frames = self.store.read()
        wanted = lane.read(frames)
        snapshot = None if wanted.content is None else self.store.snapshot(wanted.content)
        appends, self.warnings = lane.start(self.found(wanted), snapshot)
        until = lane.replay_until
        if until is not None:
            start = max(lane.next_offset or 0, self.first)
            for position in range(start, until, 7):
                lane.replay(self.topic[position : position + 7])
            lane.replayed()
        if wanted.used < len(frames):
            self.store.cut(wanted.used)
        for append in appends:
            self.append(append)

    def override(self, cause: Cause, when: str) -> int:
        """Override a refused start, as `streampair state recover` does; returns the forks charged."""
        lane = self.new_lane()
        frames = self.store.read()
        wanted = lane.read(frames, damaged=True)
        snapshot = None if wanted.content is None else self.store.snapshot(wanted.content)
        accepted = lane.override(cause, self.found(wanted), when, snapshot)
        if wanted.used < len(frames):
            self.store.cut(wanted.used)
        self.append(accepted.append)
        return accepted.forks

    def new_lane(self) -> LoggedLane:
        """A fresh lane, not started."""
        return LoggedLane(self._make(), self._decode, **self._options)

    def found(self, wanted: ReplayRequest) -> ExternalState:
        """State outside of the log."""
        first = self.record(0 if wanted.first is None else wanted.first.offset)
        last = None if wanted.last is None else self.record(wanted.last.offset)
        facts = {"start": self.first, "end": len(self.topic), **self._facts}
        group = self.group
        return ExternalState(register=group.register, offset=group.offset, first=first, last=last, **facts)

    def record(self, offset: int) -> RecordRef | None:
        """Reference to the record at an offset; None: the topic does not have it."""
        return place_of(self.topic[offset]) if self.first <= offset < len(self.topic) else None

    # Durable steps

    def _step(self) -> None:
        if self.die_after is not None:
            if self.die_after <= 0:
                raise Died
            self.die_after -= 1

    def append(self, append: LogAppend) -> None:
        """Make frames durable, then the register."""
        self._step()
        self.store.append(append)
        self._register(append)

    def _register(self, append: LogAppend) -> None:
        self._step()
        self.group.register = append.register
        # A lane that has taken nothing is where the partition starts.
        start: int = self._facts.get("start", self.first)
        self.group.offset = start if append.next_offset is None else append.next_offset

    # Work

    def feed(self, events: Iterable[tuple[Mapping[str, Any], Any] | bytes | None]) -> LaneOutput:
        """Append events to the topic, and let the lane process what it has not seen.

        Parameters
        ----------
        events
            Each ``(x, y)``, or the bytes of a value, or None for a tombstone.
        """
        for event in events:
            value = (
                msgspec.json.encode(_Wire(dict(event[0]), event[1])) if isinstance(event, tuple) else event
            )
            self.topic.append(Record(len(self.topic), value))
        return self.catch_up()

    def catch_up(self, batch: int | None = None) -> LaneOutput:
        """Process the rest of the topic, in batches of this size or all at once; the outputs together."""
        start = self.lane.next_offset or 0
        if start < self.first:
            start = self.first
            self.lane.skipped()
        size = batch or max(1, len(self.topic) - start)
        together = LaneOutput([], [], self.lane.next_offset)
        position = start
        while position < len(self.topic):
            room = self.lane.room
            if room == 0:
                self.commit()
                continue
            part = self.topic[position : position + (size if room is None else min(size, room))]
            output = self.lane.process(part)
            position += len(part)
            if output.line is not None:
                self.append(output.line)
            self.scores += output.scores
            together.scores += output.scores
            together.dead_letters += output.dead_letters
            together.next_offset = output.next_offset
        return together

    def commit(self, *, clean: bool = False, snapshot: bool | None = None, when: int = 0) -> None:
        """Commit, as a worker does once all outputs are stored, at `when`: see `LoggedLane.commit`."""
        self._commits += 1
        save = self._commits % self._every == 0 if snapshot is None else snapshot
        commit = self.lane.commit(snapshot=save, clean=clean, when=when)
        self._step()
        self.store.save(commit)
        self.append(commit)
        self.lane.committed()
        self._step()
        self.store.compact(commit)

    def crash(self) -> None:
        """Lose everything that is not durable, and start again."""
        self.start()
