"""Sources: what a worker reads for its lane, and the records that the lane gets next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from streampair.engine import OrderedRecord
from streampair.engine.records import LABEL_IN_EVENT
from streampair.engine.source import Positions
from streampair.engine.wal import Position
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import Consumer, Partition, ReadPositions, Span
from streampair_connectors.kafka.ordering import SETTLE_MS, TopicOrder, has_append_times
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metric_definitions import LabelMetrics
from streampair_connectors.stores import LaneStore
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.record_counts import RecordCounts

__all__ = ["BrokerClock", "OrderFeed", "Source", "TopicSource", "order_starts"]

log = get_logger(__name__)

_QUEUE_BYTES = 8 * 1024 * 1024  # of one partition that wait for the order; then it is paused
_POLL_SECONDS = 0.05  # between two looks at what was read to its end
_CLOCK_MS = 60_000  # by which clocks may differ; more is logged
_LEAD_STEP_MS = 1  # by which an earlier bound of the clock's lead grows from one read to the next
_CLOCK_JUMP_MS = 1000  # more is a clock that was set
_HOLDING_SECONDS = 10.0  # a partition that holds the others for longer is logged, or set aside


class Source(ABC):
    """Feeds the lane of a worker. Labels are in the events, if a subclass does not say otherwise."""

    async def start(self) -> None:  # noqa: B027  # there may be nothing to do
        """Connect what it reads besides the consumer."""

    async def stop(self) -> None:  # noqa: B027
        """Disconnect."""

    @abstractmethod
    def complete(self, assigned: Collection[Partition]) -> bool:
        """Whether these are all partitions that the lane reads."""

    async def send_on(self, lane: OpenLane) -> int:
        """Send messages that no event can use to their topic; returns their number."""
        return 0

    @property
    def has_grown(self) -> bool:
        """Whether partitions were added to another topic than the input."""
        return False

    @abstractmethod
    async def poll(self, most: int, seconds: float) -> Sequence[OrderedRecord]:
        """Return the next records of the lane; empty when there are none in time."""

    @abstractmethod
    def begin(self, lane: OpenLane) -> None:
        """Read on where a lane's log says.

        Raises
        ------
        FencedError
            The group has given a partition away.
        """

    @abstractmethod
    def put_back(self, lane: OpenLane, records: Sequence[OrderedRecord]) -> None:
        """Return the last records of the last poll: the next one gives them again."""

    @abstractmethod
    def lost(self, partition: Partition, wanted: int, first: int) -> bool:
        """Go on at `first`, since nothing is at `wanted` any more; False: no lane is there."""

    @property
    @abstractmethod
    def dropped(self) -> int:
        """Spans of polls that did not begin where their reader was, and were read again."""

    def difference(self, lane: OpenLane) -> str | None:
        """Which counts of records differ that must agree (`record_counts`); None: they agree."""
        return None

    @abstractmethod
    def close(self, lane: OpenLane) -> None:
        """Feed a lane no longer."""

    @abstractmethod
    def position(self, lane: OpenLane) -> int:
        """Where the lane is, as a sum over its partitions: it moves over transaction markers too."""

    @abstractmethod
    def taken(self, lane: OpenLane) -> int:
        """Where the lane is by the records that it has taken, as a sum over its partitions."""

    @abstractmethod
    def end(self, lane: OpenLane, ends: Mapping[Partition, int] | None = None) -> int:
        """The end of the lane's partitions, as a sum: by `ends`, or by the last fetches."""

    @abstractmethod
    def partitions(self, lane: OpenLane) -> list[Partition]:
        """The partitions that the lane reads."""

    def label_metrics(self, lane: OpenLane) -> LabelMetrics | None:
        """What is known of labels that come later than their events; None: they are in the events."""
        return None


class HostLead:
    """How far the clock of this host is ahead of the brokers', in milliseconds, as commits tell it.

    A bucket is closed by the time at which a fetch was sent. A host that is ahead would close buckets of
    which records still come, and the order would depend on who reads. Each commit gives an upper bound: the
    lead and the time that its answer took. The smallest of late counts, less what `TopicOrder` allows for.

    Examples
    --------
    >>> from streampair_connectors.worker.sources import HostLead
    >>> lead = HostLead()
    >>> [lead.update(bound) for bound in (None, 5, 90, 3_600_050, 3_600_005)]
    [0, 0, 0, 3600030, 3599985]
    """

    def __init__(self) -> None:
        self._least: int | None = None

    def update(self, bound: int | None) -> int:
        """Take the newest bound, if there is one; return how much to subtract from the host's time."""
        if bound is not None:
            least = bound if self._least is None else min(bound, self._least + _LEAD_STEP_MS)
            self._least = bound if bound > least + _CLOCK_JUMP_MS else least
        return max((self._least or 0) - SETTLE_MS, 0)


class BrokerClock:
    """A lower bound of the brokers' time, by the newest record that they have stamped (LogAppendTime).

    Their time was at least that when the record was read, and has gone on since as the monotonic clock here.
    Where records keep coming the bound is late by what one takes to be read; else by the age that the newest
    one had when it was read.
    """

    def __init__(self, host: Host = THIS_HOST) -> None:
        self._host = host
        self._offset: int | None = None  # from the monotonic clock

    def saw(self, stamp_ms: int) -> None:
        """Note a timestamp that a broker has set."""
        offset = stamp_ms - self._monotonic_ms
        self._offset = offset if self._offset is None else max(self._offset, offset)

    @property
    def ahead(self) -> int | None:
        """Lead of this host's clock over the brokers', at most, in milliseconds; None: unknown."""
        if self._offset is None:
            return None
        return self._host.now_ms - self._monotonic_ms - self._offset

    @property
    def _monotonic_ms(self) -> int:
        return int(self._host.monotonic() * 1000)


class _Reader(Protocol):
    def settled(self) -> dict[int, int]: ...
    def pause(self, partition: Partition) -> None: ...
    def resume(self, partition: Partition) -> None: ...


class OrderFeed:
    """Hands what a reader reads to a `TopicOrder`, and pauses partitions of which too much waits.

    Parameters
    ----------
    reader
        A consumer or a reader of the topic.
    topic
        Its name.
    most_bytes
        Of a partition that wait before it is paused; it is resumed at half.
    host
        Its clock.
    """

    def __init__(self, reader: _Reader, topic: str, most_bytes: int, *, host: Host = THIS_HOST) -> None:
        self._host = host
        self._reader = reader
        self._topic = topic
        self._most_bytes = most_bytes
        self._paused: set[int] = set()

    def begin(self) -> None:
        """Begin anew: no partition is paused."""
        for number in self._paused:
            self._reader.resume(Partition(self._topic, number))  # a pause outlasts its order
        self._paused = set()

    def push(
        self, order: TopicOrder, found: Mapping[Partition, Span], *, broker_time: Callable[[int], int]
    ) -> None:
        """Hand over what a poll has found; `broker_time` turns a time of the host into one of the brokers."""
        now = self._host.now_ms
        for partition, span in found.items():
            newest = None if has_append_times(span.records) else now
            order.push(partition.partition, span, newest_ms=newest)
        for number, sent in self._reader.settled().items():
            order.reached(number, sent_ms=broker_time(sent))
        for partition in found:
            number = partition.partition
            if order.waiting_bytes(number) > self._most_bytes and number not in self._paused:
                self._paused.add(number)
                self._reader.pause(partition)
        for number in list(self._paused):
            if order.waiting_bytes(number) < self._most_bytes // 2:
                self._paused.discard(number)
                self._reader.resume(Partition(self._topic, number))


def order_starts(
    spans: Mapping[int, tuple[int, int]], known: Mapping[int, Position], ahead: Iterable[OrderedRecord]
) -> dict[int, tuple[int, int]]:
    """Offset and clock at which a `TopicOrder` begins, by partition.

    Parameters
    ----------
    spans
        First offset and end of each partition.
    known
        What the lane has taken.
    ahead
        Records that the lane is given before those of the order.
    """
    starts: dict[int, tuple[int, int]] = {}
    for number, (start, _) in spans.items():
        position = known.get(number)
        starts[number] = (
            (start, 0) if position is None else (max(position.next_offset, start), position.clock)
        )
    for record in ahead:
        clock = max(starts[record.partition][1], record.clock)
        starts[record.partition] = (record.position + 1, clock)
    return starts


class TopicSource(Source):
    """One lane for the whole topic, in the order of `TopicOrder`.

    Parameters
    ----------
    consumer
        A member that has all partitions, or none.
    topic, partitions
        The input.
    label
        Of its records: see `OrderedRecord`.
    host
        Its clock.

    Notes
    -----
    A timestamp that a producer has set to the future counts as its arrival: it would hold the topic until
    then.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        partitions: int,
        *,
        label: int = LABEL_IN_EVENT,
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self._consumer = consumer
        self._label = label
        self._all = [Partition(topic, number) for number in range(partitions)]
        self._topic = topic
        self._order: TopicOrder | None = None
        self._read_to = ReadPositions(consumer.seek)
        self._positions: Positions | None = None
        self._ready: list[OrderedRecord] = []
        self._last_batch: list[OrderedRecord] = []  # by the last poll
        self._counts: RecordCounts | None = None
        self._clock_ahead = 0  # of the brokers, at least, in milliseconds
        self._feed = OrderFeed(consumer, topic, _QUEUE_BYTES, host=host)
        self._holding_since: tuple[tuple[int, ...], float] = ((), 0.0)
        self._private = False
        self._lead = HostLead()
        self._broker_clock = BrokerClock(host)
        self._store: LaneStore | None = None

    def complete(self, assigned: Collection[Partition]) -> bool:
        """Whether these are all partitions of the topic."""
        return set(self._all) <= set(assigned)

    def begin(self, lane: OpenLane) -> None:
        """Seek in all partitions, and begin the order there."""
        source, ordinal = lane.source, lane.logged_lane.next_offset or 0
        self._positions = source
        self._store = lane.store
        self._private = lane.logged_lane.private
        self._ready = [record for record in lane.announced if record.offset >= ordinal]
        arrived = (record for record in self._ready if not record.due)
        where = order_starts(lane.spans, source.positions, arrived)
        ordinal += len(self._ready)
        self._feed.begin()
        places = {Partition(self._topic, number): offset for number, (offset, _) in where.items()}
        for partition, offset in places.items():
            self._consumer.seek(partition, offset)
        self._read_to.begin(places)
        self._order = TopicOrder(where, ordinal, label=self._label)
        self._last_batch, self._counts = [], RecordCounts(lane, self._ready)

    async def poll(self, most: int, seconds: float) -> Sequence[OrderedRecord]:
        """Read all partitions side by side, and return what is in order."""
        order, deadline = self._order, self._host.monotonic() + seconds
        if order is None:
            await self._read(seconds)
            return ()
        wait = 0.0
        while True:
            await self._read(wait)
            if order is not self._order:
                return ()
            room = most - len(self._ready)
            if room > 0:
                self._take(order, room)
            if self._ready or self._host.monotonic() >= deadline:
                break
            wait = max(min(_POLL_SECONDS, deadline - self._host.monotonic()), 0.0)
        found, self._ready = self._ready[:most], self._ready[most:]
        self._last_batch = found
        self._report_holding(order, found)
        return found

    def _take(self, order: TopicOrder, room: int) -> None:
        """Take the next records in order, at most so many."""
        self._ready += order.take(room)

    async def _read(self, wait: float) -> None:
        """Drain the consumer into the order: what it keeps would hold back the fetches of all partitions.

        The order is that of after the poll: `begin` and `close` may have run meanwhile.
        """
        found = self._read_to.take(await self._consumer.poll(None, wait))
        order = self._order
        if order is None:
            return
        now = self._host.now_ms
        for records in (span.records for span in found.values() if span.records):
            if has_append_times(records):
                self._broker_clock.saw(records[-1].timestamp)
                self._compare_clocks(records[-1].timestamp - now)
            elif self._positions is not None and len(self._all) > 1:
                self._positions.producer_times = True
        lead = self._lead.update(None if self._store is None else self._store.clock_ahead)
        self._consumer.brokers_ahead_ms = self._clock_ahead - lead
        self._feed.push(order, found, broker_time=lambda sent: sent + self._clock_ahead - lead)

    def _compare_clocks(self, ahead: int) -> None:
        """Note that the brokers' clock is ahead of this host's, at least by so much."""
        if ahead > _CLOCK_MS >= self._clock_ahead:
            log.warning(
                "clock_is_behind",
                topic=self._topic,
                seconds=round(ahead / 1000),
                next_step="set the clock of this host, or those of the brokers, by NTP: what waits for a "
                "time waits longer",
            )
        self._clock_ahead = max(self._clock_ahead, ahead)

    def _report_holding(self, order: TopicOrder, found: Sequence[Any]) -> None:
        holding, now = () if found else order.holding, self._host.monotonic()
        if not holding or holding != self._holding_since[0]:
            self._holding_since = (holding, now)
        elif now >= self._holding_since[1] + _HOLDING_SECONDS:
            self._holding_since = (holding, now)
            if self._set_aside(order, holding):
                return
            log.warning(
                "partitions_hold_the_topic",
                topic=self._topic,
                partitions=list(holding),
                next_step="the order needs the next record of each partition: look for an open transaction "
                "of a producer on them, or for a partition without a leader",
            )

    def _set_aside(self, order: TopicOrder, holding: Sequence[int]) -> bool:
        """Go on without partitions that have no leader; whether there were any.

        A private lane waits: what its guarantee covers includes the order.
        """
        lost = sorted(self._consumer.leaderless().intersection(holding))
        if not lost or self._private:
            return False
        for number in lost:
            order.set_aside(number)
        log.warning(
            "partitions_set_aside",
            topic=self._topic,
            partitions=lost,
            next_step="start the brokers that lead them: their events are learned and scored when they are "
            "back. The other partitions go on",
        )
        return True

    def put_back(self, lane: OpenLane, records: Sequence[OrderedRecord]) -> None:
        """Keep them for the next poll."""
        self._last_batch = self._last_batch[: len(self._last_batch) - len(records)]
        self._ready = [*records, *self._ready]

    def difference(self, lane: OpenLane) -> str | None:
        """The counts of this lane, of each partition and together."""
        if self._counts is None:
            return None
        new = self._counts.check_way("new", self._read_to, self._order, self._all, self._unprocessed(lane))
        return new or self._counts.check_outcomes()

    def _unprocessed(self, lane: OpenLane) -> list[OrderedRecord]:
        """Records in order that the lane has not processed: some may be in the hands of the worker."""
        taken = lane.logged_lane.next_offset or 0
        return [record for record in (*self._last_batch, *self._ready) if record.offset >= taken]

    def lost(self, partition: Partition, wanted: int, first: int) -> bool:
        """Go on at the first record that is left, in the order too."""
        if self._order is None or not self._read_to.lost(partition, wanted, first):
            return False
        self._order.lost(partition.partition, first)
        return True

    @property
    def dropped(self) -> int:
        """Spans of the consumer."""
        return self._read_to.dropped

    def close(self, lane: OpenLane) -> None:
        """Drop what waits for the order."""
        self._order, self._ready, self._last_batch, self._counts = None, [], [], None
        self._read_to.begin({})

    def position(self, lane: OpenLane) -> int:
        """The sum of the positions: behind what was read, where nothing of a partition waits."""
        order, total = self._order, 0
        waiting = {record.partition for record in self._ready}
        for number, offset in lane.positions.items():
            if order is not None and number not in waiting and order.is_empty(number):
                total += max(offset, order.position(number))
            else:
                total += offset
        return total

    def taken(self, lane: OpenLane) -> int:
        """The sum of the offsets behind the last records taken."""
        return sum(lane.positions.values())

    def end(self, lane: OpenLane, ends: Mapping[Partition, int] | None = None) -> int:
        """The sum of the ends."""
        total = 0
        for partition in self._all:
            end = self._consumer.end(partition) if ends is None else ends.get(partition)
            if end is None:
                end = lane.spans[partition.partition][1]
            total += end
        return total

    def partitions(self, lane: OpenLane) -> list[Partition]:
        """All of them."""
        return list(self._all)
