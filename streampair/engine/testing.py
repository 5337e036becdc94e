"""A driver for tests of lanes: a topic in memory, commits, and crashes wherever the test wants one.

It is for users' tests too: it needs no broker and no files, and runs the lane that production runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from streampair.engine.lane import Event, Lane, LaneOutput, Record
from streampair.errors import RecordError

__all__ = ["Driver", "MemoryJournal", "decode_json"]


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


class MemoryJournal:
    """A journal that outlives its lane, and nothing else.

    Attributes
    ----------
    data
        What it holds; None: it does not exist.
    """

    def __init__(self) -> None:
        self.data: bytes | None = None

    def read(self) -> bytes | None:
        """What it holds."""
        return self.data

    def append(self, data: bytes) -> None:
        """Add to it."""
        self.data = (self.data or b"") + data

    def restart(self, data: bytes) -> None:
        """Put `data` in its place."""
        self.data = data


class Driver:
    """A lane, its topic, and its last committed snapshot.

    Parameters
    ----------
    make
        Makes a fresh model; called once for each start.
    decode
        As for `Lane`.
    journal
        That of a private lane that keeps a ledger; None: without.
    options
        Further arguments of `Lane`.

    Attributes
    ----------
    topic
        All records fed so far, by offset.
    lane
        The running lane.
    committed
        The last snapshot; None before the first commit.
    journal
        As given.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine.testing import Driver
    >>> driver = Driver(lambda: auc.PairOGD(seed=1))
    >>> driver.feed([({"amount": 0.2}, False), ({"amount": 0.9}, True)]).next_offset
    2
    >>> driver.commit()
    >>> driver.feed([({"amount": 0.5}, False), b"not an event"]).dead_letters[0].stage
    'decode'
    >>> driver.crash()
    >>> driver.lane.next_offset
    2
    >>> driver.catch_up().next_offset
    4
    """

    def __init__(
        self,
        make: Callable[[], Any],
        decode: Callable[[Record], Event] = decode_json,
        *,
        journal: MemoryJournal | None = None,
        **options: Any,
    ) -> None:
        self._make = make
        self._decode = decode
        self.journal = journal
        self._options = {"app": "test", "topic": "events", "partition": 0, "journal": journal, **options}
        self.topic: list[Record] = []
        self.committed: bytes | None = None
        self.start()

    def start(self) -> None:
        """Start from the last committed snapshot."""
        self.lane = Lane(self._make(), self._decode, **self._options)
        if self.committed is not None:
            self.lane.restore(self.committed)
        if self.journal is not None:
            self.lane.begin(self._keep)

    def _keep(self, data: bytes) -> None:
        self.committed = data

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
        size = batch or max(1, len(self.topic) - start)
        together = LaneOutput([], [], self.lane.next_offset)
        for at in range(start, len(self.topic), size):
            output = self.lane.process(self.topic[at : at + size])
            together.scores += output.scores
            together.dead_letters += output.dead_letters
            together.next_offset = output.next_offset
        return together

    def commit(self, *, clean: bool = False) -> None:
        """Keep a snapshot, as a store would."""
        self._keep(self.lane.snapshot(clean=clean))
        self.lane.committed()

    def crash(self) -> None:
        """Lose everything since the last commit, and start again from there."""
        self.start()
