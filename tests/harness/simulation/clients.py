"""The surface of `streampair_connectors.kafka` that a worker uses, against the cluster in memory.

Each class has the methods of the original, with its contract: what they return, raise, and leave usable.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any

from streampair_connectors.config import Config, KafkaConfig
from streampair_connectors.kafka import (
    Cluster,
    Committed,
    LogTopic,
    Member,
    Message,
    Partition,
    RecordLike,
    RecordReader,
    Routes,
    Span,
)
from streampair_connectors.kafka.admin import TopicFacts, TopicOrigin
from streampair_connectors.kafka.consumer import ended_before
from streampair_connectors.kafka.membership import GroupState
from streampair_connectors.kafka.offset_metadata import check_register
from streampair_connectors.kafka.producer import split_messages

from harness.simulation.broker import Broker, FencedEpochError, Network, NoAnswerError
from harness.simulation.loop import Process
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError

__all__ = ["Connection", "cluster_of"]

_FETCH_SECONDS = 0.05
_RECORDS = 40  # of a partition in an answer


def no_answer(what: object) -> SourceError:
    return SourceError(f"no Kafka broker answers: {what}", fix="start the broker")


class Connection:
    """What every client of a process needs."""

    def __init__(self, process: Process, broker: Broker, network: Network) -> None:
        self.process = process
        self.broker = broker
        self.network = network
        self.loop = broker.loop

    async def read(self, what: str, effect: Callable[[], Any], seconds: float) -> Any:
        """Ask until there is an answer.

        Raises
        ------
        SourceError
            There is none in time.
        """
        try:
            return await self.network.insist(f"{self.process.name}: {what}", effect, seconds=seconds)
        except NoAnswerError as error:
            raise no_answer(error) from None

    def note(self, text: str) -> None:
        self.broker.note(f"{self.process.name}: {text}")

    async def pause(self) -> None:
        """Suspend the caller, perhaps for long enough that a rebalance comes and goes."""
        coin = self.loop.coin.random()
        if coin < 0.05:
            await asyncio.sleep(self.loop.coin.uniform(0.0, 1.5))
        elif coin < 0.3:
            await asyncio.sleep(self.loop.coin.choice((0.0, 0.0, 0.002, 0.02)))


# Reading


class Fetcher:
    """Fetches in the background, and hands over what was fetched: the positions move as it is drained."""

    def __init__(self, connection: Connection, on_lost: Callable[[Partition, int, int], object]) -> None:
        self._connection = connection
        self._on_lost = on_lost
        self.positions: dict[Partition, int | None] = {}
        self.paused: set[Partition] = set()
        self._fetched: dict[Partition, tuple[int, int, list[Any]]] = {}
        self._ends: dict[Partition, tuple[int, int, int]] = {}  # end, stable end, when it was asked for
        self._arrived: asyncio.Future[None] | None = None  # what a poll waits for
        self._changed = asyncio.Event()  # there may be something to fetch
        self._task: asyncio.Task[None] | None = None
        self._assignment = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def assign(self, partitions: Mapping[Partition, int | None]) -> None:
        self._assignment += 1
        self.positions = dict(partitions)
        self.paused.clear()
        self._fetched.clear()
        self._ends.clear()
        self._changed.set()

    def seek(self, partition: Partition, offset: int) -> None:
        self.positions[partition] = offset
        self._fetched.pop(partition, None)
        self._changed.set()

    def pause(self, partition: Partition) -> None:
        self.paused.add(partition)

    def resume(self, partition: Partition) -> None:
        self.paused.discard(partition)
        self._changed.set()

    def end(self, partition: Partition) -> int | None:
        found = self._ends.get(partition)
        return None if found is None else found[0]

    def settled(self) -> dict[int, int]:
        found = {}
        for partition, (end, stable, sent) in self._ends.items():
            position = self.positions.get(partition)
            if partition in self._fetched or position is None or position < end or stable < end:
                continue
            found[partition.partition] = sent
        return found

    async def _run(self) -> None:
        connection = self._connection
        while True:
            wanted = {
                partition: position
                for partition, position in self.positions.items()
                if position is not None and partition not in self.paused and partition not in self._fetched
            }
            if wanted:
                # An answer waits until it has many records, or for so long.
                logs = connection.broker.log
                full = any(logs(p).stable_end > offset for p, offset in wanted.items())
                full = full and connection.loop.coin.random() < 0.5
                sent, assignment = connection.process.host.now_ms, self._assignment
                try:
                    answers = await connection.network.ask(
                        f"{connection.process.name}: a fetch",
                        functools.partial(self._answer, wanted),
                        waits=0.0 if full else _FETCH_SECONDS,
                    )
                except NoAnswerError:
                    answers = {}
                if assignment == self._assignment:
                    self._take(wanted, answers, sent)
            else:
                self._changed.clear()
                await self._changed.wait()

    def _answer(self, wanted: Mapping[Partition, int]) -> dict[Partition, tuple[Any, int, int]]:
        found = {}
        for partition, offset in wanted.items():
            log = self._connection.broker.log(partition)
            inside = log.start <= offset <= log.end
            found[partition] = log.read(offset, _RECORDS) if inside else None, log.end, log.stable_end
        return found

    def _take(
        self, wanted: Mapping[Partition, int], answers: Mapping[Partition, tuple[Any, int, int]], sent: int
    ) -> None:
        for partition, (read, end, stable) in answers.items():
            if self.positions.get(partition) != wanted[partition]:
                continue  # it was sought elsewhere meanwhile
            self._ends[partition] = end, stable, sent
            if read is None:
                self._fetched[partition] = wanted[partition], -1, []
            elif read[0] > wanted[partition]:
                self._fetched[partition] = wanted[partition], *read
        if self._fetched and self._arrived is not None:
            _wake(self._arrived)

    async def poll(self, most: int | None, seconds: float) -> dict[Partition, Span]:
        """As of the client: it may suspend before it drains, and after."""
        await self._connection.pause()
        loop = self._connection.loop
        deadline = loop.time() + seconds
        while not (found := await self._drain(most)) and loop.time() < deadline:
            self._arrived = loop.create_future()
            timer = loop.call_at(deadline, _wake, self._arrived)
            await self._arrived
            timer.cancel()
        await self._connection.pause()
        return found

    async def _drain(self, most: int | None) -> dict[Partition, Span]:
        spans: dict[Partition, Span] = {}
        lost = [partition for partition, (_, end, _) in self._fetched.items() if end < 0]
        if lost:
            await self._skip_lost(lost)
            return {}
        room = 10**9 if most is None else most
        for partition, (start, end, records) in list(self._fetched.items()):
            if partition in self.paused or room <= 0:
                continue
            part, rest = records[:room], records[room:]
            room -= len(part)
            if rest:
                self._fetched[partition] = rest[0].offset, end, rest
                end = rest[0].offset
            else:
                del self._fetched[partition]
            self.positions[partition] = end
            self._changed.set()
            spans[partition] = Span(start, end, part)
        return spans

    async def _skip_lost(self, partitions: Sequence[Partition]) -> None:
        wanted = {partition: self._fetched.pop(partition)[0] for partition in partitions}
        logs = self._connection.broker.log
        spans = await self._connection.read(
            "the offsets of a partition", lambda: {p: (logs(p).start, logs(p).end) for p in wanted}, 10.0
        )
        for partition, offset in wanted.items():
            if self.positions.get(partition) != offset:
                continue
            first, end = spans[partition]
            if offset > end:
                raise ended_before(partition, offset, end)
            if offset < first:
                self._on_lost(partition, offset, first)
                self.seek(partition, first)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SimulatedConsumer:
    """A member of a group."""

    def __init__(
        self,
        connection: Connection,
        config: KafkaConfig,
        topic: str,
        group: str,
        *,
        on_revoked: Callable[[list[Partition]], Any],
        on_assigned: Callable[[list[Partition]], Any],
        on_lost: Callable[[Partition, int, int], object],
        whole_topic: bool = False,
        client_id: str | None = None,
        **_: Any,
    ) -> None:
        self._connection = connection
        self._config = config
        self._topic = topic
        self._group = connection.broker.group(group)
        self._client = connection.process.name if client_id is None else client_id
        self._on_revoked, self._on_assigned = on_revoked, on_assigned
        self._fetcher = Fetcher(connection, on_lost)
        self._whole_topic = whole_topic
        self._holds_since: int | None = None
        self._name, self._generation = "", -1
        self._task: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None
        self._rejoin = asyncio.Event()
        self._stopped = False
        self.error: BaseException | None = None

    async def start(self) -> None:
        await self._connection.read("connect", lambda: None, self._config.connect_timeout.seconds)
        self._fetcher.start()
        self._task = asyncio.create_task(self._membership())

    async def _membership(self) -> None:
        owned: list[Partition] = []
        while True:
            # The client goes on with the partitions until it has others.
            await self._guard(self._on_revoked, owned)
            await self._end_beats()
            try:
                self._generation, numbers = await self._join()
            except NoAnswerError:
                owned = []
                await asyncio.sleep(0.1)
                continue
            owned = [Partition(self._topic, number) for number in numbers]
            self._holds_since = (
                (self._holds_since or self._connection.process.host.time_ns()) if owned else None
            )
            self._fetcher.assign(dict.fromkeys(owned))
            offsets = asyncio.create_task(self._committed_offsets(owned))
            await self._guard(self._on_assigned, owned)
            self._rejoin.clear()
            self._beats = asyncio.create_task(self._beat())
            await self._rejoin.wait()
            offsets.cancel()

    async def _join(self) -> tuple[int, list[int]]:
        words = b"" if self._holds_since is None else b"holds|%d|" % self._holds_since
        broker, session = self._connection.broker, self._config.session_timeout.seconds

        def effect() -> tuple[str, asyncio.Future[tuple[int, list[int]]]]:
            count = len(broker.topics[self._topic])
            return self._group.join(self._name, self._client, words, session, self._whole_topic, count)

        self._name, joined = await self._connection.network.ask(f"{self._client}: a join", effect)
        try:
            async with asyncio.timeout(90.0):
                generation, numbers = await asyncio.shield(joined)
        except (TimeoutError, asyncio.CancelledError):
            if joined.cancelled():
                raise NoAnswerError("a join") from None
            raise
        await self._connection.network.ask(f"{self._client}: a sync", lambda: None)
        return generation, numbers

    async def _beat(self) -> None:
        interval = self._config.session_timeout.seconds / 4
        while True:
            await asyncio.sleep(interval)
            try:
                verdict = await self._connection.network.ask(
                    f"{self._client}: a heartbeat",
                    lambda: self._group.beat(self._name, self._generation),
                )
            except NoAnswerError:
                continue
            if verdict == "unknown":
                self._name, self._generation, self._holds_since = "", -1, None
            if verdict != "ok":
                self._rejoin.set()
                if verdict == "unknown":
                    return

    async def _end_beats(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.wait({self._beats})
            self._beats = None

    async def _committed_offsets(self, partitions: Sequence[Partition]) -> None:
        """Where the group is: the client begins there, unless it was sought elsewhere before."""
        try:
            found = await self._connection.network.insist(
                f"{self._client}: offsets", lambda: self._group.read(partitions, False), seconds=10.0
            )
        except NoAnswerError:
            return
        for partition, known in found.items():
            if known is not None and self._fetcher.positions.get(partition, 0) is None:
                self._fetcher.seek(partition, known.offset)

    async def _guard(self, callback: Callable[[list[Partition]], Any], partitions: list[Partition]) -> None:
        if not self._stopped:
            try:
                await callback(sorted(partitions))
            except Exception as error:
                self.error = self.error or error

    async def poll(self, max_records: int | None, timeout_seconds: float) -> Mapping[Partition, Span]:
        if self.error is not None:
            raise self.error
        return await self._fetcher.poll(max_records, timeout_seconds)

    def partition_count(self) -> int | None:
        return len(self._connection.broker.topics[self._topic])

    @property
    def member(self) -> Member:
        return Member(self._generation, self._name)

    def leaderless(self) -> set[int]:
        return set()

    def settled(self) -> dict[int, int]:
        return self._fetcher.settled()

    def pause(self, partition: Partition) -> None:
        if partition in self._fetcher.positions:
            self._fetcher.pause(partition)

    def resume(self, partition: Partition) -> None:
        self._fetcher.resume(partition)

    def seek(self, partition: Partition, offset: int) -> None:
        if partition not in self._fetcher.positions:
            raise FencedError(f"{partition} is no longer assigned to this worker", fix="none is needed")
        self._fetcher.seek(partition, offset)

    async def ends(self, partitions: Sequence[Partition], seconds: float) -> dict[Partition, int] | None:
        broker = self._connection.broker
        try:
            return await self._connection.network.insist(
                f"{self._client}: ends", lambda: {p: broker.log(p).end for p in partitions}, seconds=seconds
            )
        except NoAnswerError:
            return None

    def end(self, partition: Partition) -> int | None:
        return self._fetcher.end(partition)

    async def stop(self, seconds: float = 5.0) -> None:
        self._stopped = True
        await self._end_beats()
        await self._fetcher.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            with contextlib.suppress(NoAnswerError):  # its session expires
                await self._connection.network.ask(
                    f"{self._client}: leave", lambda: self._group.leave(self._name)
                )


class SimulatedPartitionReader:
    """Reads partitions outside of any group."""

    def __init__(
        self,
        connection: Connection,
        config: KafkaConfig,
        partitions: Sequence[Partition],
        *,
        on_lost: Callable[[Partition, int, int], object],
        **_: Any,
    ) -> None:
        self._connection = connection
        self._config = config
        self._all = list(partitions)
        self._fetcher = Fetcher(connection, on_lost)

    async def start(self) -> dict[Partition, int]:
        await self._connect()
        broker = self._connection.broker
        first: dict[Partition, int] = await self._connection.read(
            "first offsets",
            lambda: {p: broker.log(p).start for p in self._all},
            self._config.connect_timeout.seconds,
        )
        self._fetcher.assign(first)
        return first

    async def _connect(self) -> None:
        await self._connection.read("connect", lambda: None, self._config.connect_timeout.seconds)
        self._fetcher.start()

    def seek(self, partition: Partition, offset: int) -> None:
        self._fetcher.seek(partition, offset)

    async def poll(self, seconds: float) -> Mapping[Partition, Span]:
        return await self._fetcher.poll(None, seconds)

    async def stop(self) -> None:
        await self._fetcher.stop()


class SimulatedTopicReader(SimulatedPartitionReader):
    """Reads all partitions of a topic."""

    def __init__(
        self,
        connection: Connection,
        config: KafkaConfig,
        topic: str,
        partitions: int,
        on_lost: Callable[[Partition, int, int], object],
    ) -> None:
        super().__init__(
            connection, config, [Partition(topic, number) for number in range(partitions)], on_lost=on_lost
        )

    async def start(self) -> dict[Partition, int]:
        await self._connect()
        return {}

    def begin(self, offsets: Mapping[int, int]) -> dict[Partition, int]:
        where = {p: offsets[p.partition] for p in self._all}
        self._fetcher.assign(where)
        return where

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        def effect() -> dict[int, int]:
            found = {}
            for partition in self._all:
                log = self._connection.broker.log(partition)
                later = (each.offset for each in log.records if each.timestamp >= time_ms)
                found[partition.partition] = log.start if time_ms <= 0 else next(later, log.end)
            return found

        found: dict[int, int] = await self._connection.read(
            "offsets by time", effect, self._config.connect_timeout.seconds
        )
        return found

    def settled(self) -> dict[int, int]:
        return self._fetcher.settled()

    @property
    def has_grown(self) -> bool:
        return len(self._connection.broker.topics[self._all[0].topic]) > len(self._all)

    def pause(self, partition: Partition) -> None:
        self._fetcher.pause(partition)

    def resume(self, partition: Partition) -> None:
        self._fetcher.resume(partition)


class SimulatedRecordReader(RecordReader):
    """Reads records for the start of a lane."""

    def __init__(self, connection: Connection, config: KafkaConfig) -> None:
        super().__init__(config)
        self._connection = connection

    async def spans(self, partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        broker = self._connection.broker
        found: dict[int, tuple[int, int]] = await self._connection.read(
            "spans",
            lambda: {p.partition: (broker.log(p).start, broker.log(p).end) for p in partitions},
            self._config.connect_timeout.seconds,
        )
        return found

    async def one(self, partition: Partition, offset: int, *, exactly: bool = True) -> RecordLike | None:
        start, end = (await self.spans([partition]))[partition.partition]
        if not start <= offset < end:
            return None
        async with contextlib.aclosing(self.span(partition, offset, end)) as batches:
            async for records in batches:
                found = records[0]
                return found if found.offset == offset or not exactly else None
        return None

    async def span(
        self, partition: Partition, start: int, end: int
    ) -> AsyncGenerator[Sequence[RecordLike], None]:
        loop, patience = self._connection.loop, self._config.connect_timeout.seconds
        log, last = self._connection.broker.log(partition), self._connection.loop.time()

        def effect(offset: int) -> Any:
            return log.read(offset, _RECORDS) if offset >= log.start else None

        while start < end:
            await self._connection.pause()
            answer = await self._connection.read("records", functools.partial(effect, start), patience)
            if answer is None:
                raise SourceError(f"{partition} has no record at {start} any more", fix="none")
            if answer[0] > start:
                last = loop.time()
            elif loop.time() > last + patience:
                raise no_answer("an open transaction")
            else:
                await asyncio.sleep(0.1)
            start = answer[0]
            records = [record for record in answer[1] if record.offset < end]
            if records:
                yield records

    async def stop(self) -> None:
        """Nothing is open."""


# Writing


class SimulatedProducer:
    """The producer of a worker whose store is in Kafka: it only knows the numbers of partitions."""

    def __init__(self, connection: Connection, config: KafkaConfig, *, max_message_bytes: int) -> None:
        self._connection = connection
        self._config = config
        self.routes = Routes({})
        self.unacknowledged_bytes = 0
        self.stuck = False

    async def start(self) -> None:
        await self._connection.read("connect", lambda: None, self._config.connect_timeout.seconds)

    async def partitions(self, topic: str) -> int:
        broker = self._connection.broker
        count: int = await self._connection.read(
            "partitions", lambda: len(broker.topics[topic]), self._config.connect_timeout.seconds
        )
        self.routes.learn(topic, count)
        return count

    async def stop(self, seconds: float = 5.0) -> None:
        """Nothing was sent."""


class SimulatedTransactions:
    """A transactional producer."""

    def __init__(
        self,
        connection: Connection,
        config: KafkaConfig,
        transactional_id: str,
        *,
        name: str,
        max_message_bytes: int,
        timeout_seconds: float = 60.0,
        topics: Collection[str] = (),
        group: str = "",
    ) -> None:
        self._connection = connection
        self._config = config
        self._name = name
        self._group = group
        self._max_message_bytes = max_message_bytes
        self._timeout_seconds = timeout_seconds
        self.transactional_id = transactional_id
        self._epoch: int | None = None
        self._appended: tuple[int, float] | None = None
        self._lock = asyncio.Lock()
        self._lost = False

    @property
    def clock_ahead(self) -> int | None:
        if self._appended is None:
            return None
        host = self._connection.process.host
        stamp, then = self._appended
        return round(host.time_ns() / 1e6 - (host.monotonic() - then) * 1000) - stamp

    @property
    def usable(self) -> bool:
        return self._epoch is not None

    async def start(self) -> None:
        await self.stop()
        broker = self._connection.broker
        self._epoch = await self._connection.read(
            "a new epoch",
            lambda: broker.begin_epoch(self.transactional_id, self._timeout_seconds),
            self._config.connect_timeout.seconds,
        )
        self._connection.note(f"has epoch {self._epoch} of {self._name}")

    async def transaction(
        self,
        sends: Sequence[tuple[Partition, list[Message]]],
        *,
        offsets: Mapping[Partition, tuple[int, str]],
        seconds: float | None = None,
        member: Member | None = None,
    ) -> dict[Partition, list[int]]:
        for _, text in offsets.values():
            check_register(text)
        async with self._lock:
            if self._epoch is None:
                raise FencedError(f"the producer for {self._name} has ended", fix="none is needed")
            sends = [(target, messages) for target, messages in sends if messages]
            if not sends and not offsets:
                return {}
            seconds = self._timeout_seconds if seconds is None else seconds
            await self._connection.read(
                "the coordinator", lambda: None, min(seconds, self._config.connect_timeout.seconds)
            )
            epoch, self._epoch, self._lost = self._epoch, None, False
            try:
                async with asyncio.timeout(seconds):
                    stored = await self._send(epoch, sends, offsets, member)
            except FencedEpochError as error:
                raise self._fenced(error) from None
            except (NoAnswerError, TimeoutError) as error:
                await self._abort(epoch)
                raise no_answer(error) from None
            await self._commit(epoch, seconds)
            if not self._lost:
                self._epoch = epoch
            return stored

    async def _send(
        self,
        epoch: int,
        sends: Sequence[tuple[Partition, list[Message]]],
        offsets: Mapping[Partition, tuple[int, str]],
        member: Member | None,
    ) -> dict[Partition, list[int]]:
        stored: dict[Partition, list[int]] = {}
        broker, name = self._connection.broker, self.transactional_id
        for target, messages in sends:
            parts = split_messages(
                messages, self._max_message_bytes, sum(len(m.value or b"") for m in messages)
            )
            await self._connection.pause()
            token = object()
            found = await self._request(
                f"{len(parts)} messages for {target.topic}/{target.partition}",
                functools.partial(broker.store, name, epoch, token, target, parts),
            )
            if broker.log(target).append_time:
                self._appended = broker.now_ms, self._connection.process.host.monotonic()
            stored.setdefault(target, []).extend(found)
        if offsets:
            known = None if member is None else (member.generation, member.member_id)
            await self._request(
                "offsets", lambda: broker.add_offsets(name, epoch, self._group, offsets, known)
            )
        return stored

    async def _request(self, what: str, effect: Callable[[], Any], seconds: float = 60.0) -> Any:
        def lost() -> None:
            self._lost = True

        return await self._connection.network.insist(
            f"{self._connection.process.name}: {what}", effect, seconds=seconds, lost=lost
        )

    async def _abort(self, epoch: int) -> None:
        broker = self._connection.broker
        try:
            async with asyncio.timeout(5.0):
                await self._request("an abort", lambda: broker.end(self.transactional_id, epoch, False))
        except (NoAnswerError, FencedEpochError, TimeoutError):
            return
        if not self._lost:
            self._epoch = epoch

    async def _commit(self, epoch: int, seconds: float) -> None:
        broker = self._connection.broker
        await self._connection.pause()
        try:
            async with asyncio.timeout(seconds):
                await self._request("a commit", lambda: broker.end(self.transactional_id, epoch, True))
        except FencedEpochError as error:
            raise self._fenced(error) from None
        except (NoAnswerError, TimeoutError):
            self._connection.note(f"does not know whether a commit of {self._name} has landed")
            raise CommitOutcomeUnknownError(
                f"it is not known whether a transaction for {self._name} was committed", fix="none is needed"
            ) from None

    def _fenced(self, error: Exception) -> FencedError:
        self._connection.note(f"is fenced for {self._name}: {error}")
        return FencedError(f"another worker writes for {self._name}: {error}", fix="none is needed")

    async def stop(self) -> None:
        async with self._lock:
            self._epoch = None


# Questions


class SimulatedLogTopic(LogTopic):
    """The log topic; its settings are right."""

    def __init__(
        self, connection: Connection, config: KafkaConfig, name: str, lookup: RecordReader | None = None
    ) -> None:
        super().__init__(
            config, name, SimulatedRecordReader(connection, config) if lookup is None else lookup
        )
        self._connection = connection

    async def ensure(self, *, replication_factor: int | None, strict: bool) -> int:
        broker = self._connection.broker

        def effect() -> int:
            broker.create(self.name, 1, append_time=True)
            return len(broker.topics[self.name])

        count: int = await self._connection.read("a topic", effect, self._config.connect_timeout.seconds)
        return count

    async def check_settings(self) -> None:
        """They are right."""

    async def settings(self) -> dict[str, str]:
        return {}

    async def trim(self, before: int) -> None:
        log = self._connection.broker.log(self.place)
        await self._connection.read(
            "a deletion", lambda: log.trim(before), self._config.connect_timeout.seconds
        )


def cluster_of(connection: Connection, *, compacted: bool = False) -> Cluster:
    """What a worker gets as its cluster."""
    broker = connection.broker

    def seconds(config: KafkaConfig) -> float:
        return config.connect_timeout.seconds

    async def check_topics(config: Config, *, create: bool) -> TopicFacts:
        def effect() -> TopicFacts:
            labels = 0 if config.label_input is None else len(broker.topics[config.label_input.topic])
            return TopicFacts(len(broker.topics[config.input.topic]), compacted, labels)

        found: TopicFacts = await connection.read("topics", effect, seconds(config.require_kafka()))
        return found

    async def describe_topics(config: KafkaConfig) -> dict[str, int]:
        found: dict[str, int] = await connection.read(
            "topics", lambda: {name: len(logs) for name, logs in broker.topics.items()}, seconds(config)
        )
        return found

    async def topic_origin(config: KafkaConfig, topic: str) -> TopicOrigin:
        found: TopicOrigin = await connection.read(
            "origin", lambda: TopicOrigin("simulated", topic), seconds(config)
        )
        return found

    async def describe_group(config: KafkaConfig, group: str, topic: str) -> GroupState:
        def effect() -> GroupState:
            known = broker.group(group)
            members = known.members.values()
            return GroupState(
                not known.preparing,
                tuple(sorted(known.members)),
                frozenset(member.client for member in members),
                frozenset(number for member in members for number in member.assigned),
            )

        found: GroupState = await connection.read("group", effect, seconds(config))
        return found

    async def read_register(
        config: KafkaConfig, group: str, partitions: Sequence[Partition], *, stable: bool = True
    ) -> dict[Partition, Committed | None]:
        found: dict[Partition, Committed | None] = await connection.read(
            "offsets", lambda: broker.group(group).read(sorted(set(partitions)), stable), seconds(config)
        )
        return found

    def bound(kind: Any) -> Any:
        return functools.partial(kind, connection)

    return Cluster(
        consumer=bound(SimulatedConsumer),
        partition_reader=bound(SimulatedPartitionReader),
        topic_reader=bound(SimulatedTopicReader),
        record_reader=bound(SimulatedRecordReader),
        producer=bound(SimulatedProducer),
        transactional_producer=bound(SimulatedTransactions),
        log_topic=bound(SimulatedLogTopic),
        check_topics=check_topics,
        describe_topics=describe_topics,
        topic_origin=topic_origin,
        describe_group=describe_group,
        read_register=read_register,
    )
