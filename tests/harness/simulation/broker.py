"""A cluster in memory: partitions, transactions with fencing, and groups with generations.

It answers at once; what is lost or late on the way there and back is drawn by `Network`.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from streampair_connectors.kafka import Committed, Message, Partition
from streampair_connectors.kafka.membership import chosen_member

from harness.simulation.loop import SimulatedLoop

__all__ = [
    "Broker",
    "FencedEpochError",
    "Group",
    "Network",
    "NoAnswerError",
    "PartitionLog",
    "Stored",
    "Transaction",
]

_R = TypeVar("_R")

_BROKER = Context()  # of what runs in no process of a worker


class NoAnswerError(Exception):
    """A request or its answer was lost, or the broker is away."""


class FencedEpochError(Exception):
    """The producer has another epoch, or the member another generation."""


class NotReadyError(Exception):
    """The broker cannot answer yet: ask again."""


@dataclass(eq=False)
class Transaction:
    """A transaction: what it has written, and how it has ended."""

    partitions: list[Partition] = field(default_factory=list)
    offsets: dict[tuple[str, Partition], Committed] = field(default_factory=dict)
    state: str = "open"  # committed, aborted: its records are seen, or not, once it is marked
    commits: bool = False


@dataclass(eq=False)
class Stored:
    """A record of a partition, as consumers get it; a marker has no value and ends a transaction."""

    offset: int
    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes]]
    timestamp_type: int
    transaction: Transaction | None = None
    marker: bool = False

    @property
    def visible(self) -> bool:
        """Whether consumers of committed records get it."""
        return not self.marker and (self.transaction is None or self.transaction.state == "committed")


class PartitionLog:
    """A partition: its records, from `start` on; `everything` has the deleted ones too."""

    def __init__(self, append_time: bool) -> None:
        self.append_time = append_time
        self.records: list[Stored] = []
        self.everything: list[Stored] = []
        self.start = self.end = 0
        self._open: dict[Transaction, int] = {}

    def append(
        self, messages: Iterable[Message], now_ms: int, transaction: Transaction | None = None
    ) -> list[int]:
        """Store messages; returns their offsets."""
        if transaction is not None:
            self._open.setdefault(transaction, self.end)
        offsets = []
        for each in messages:
            time = now_ms if self.append_time or each.timestamp is None else each.timestamp
            record = Stored(
                *(self.end, each.value, each.key, time, tuple(each.headers or ())),
                *(int(self.append_time), transaction),
            )
            offsets.append(self.end)
            self._add(record)
        return offsets

    def finish(self, transaction: Transaction, now_ms: int) -> None:
        """Write the marker of a transaction that has ended."""
        if self._open.pop(transaction, None) is not None:
            self._add(Stored(self.end, None, None, now_ms, (), 1, transaction, marker=True))

    def _add(self, record: Stored) -> None:
        self.records.append(record)
        self.everything.append(record)
        self.end += 1

    @property
    def stable_end(self) -> int:
        """The offset from which on a transaction is open."""
        return min(self._open.values(), default=self.end)

    def read(self, offset: int, most: int = 10_000) -> tuple[int, list[Stored]]:
        """The visible records from an offset on: where reading goes on, and the records."""
        end = self.stable_end
        inside = [each for each in self.records if offset <= each.offset < end][:most]
        if len(inside) == most:
            end = inside[-1].offset + 1
        return max(offset, end), [each for each in inside if each.visible]

    def trim(self, before: int) -> None:
        """Delete the records before an offset."""
        self.start = max(self.start, min(before, self.stable_end))
        self.records = [each for each in self.records if each.offset >= self.start]

    def compact(self, coin: random.Random) -> None:
        """Remove some records of which a newer one has the same key; the last record stays."""
        newest = {each.key: each.offset for each in self.records if each.visible}
        self.records = [
            each
            for each in self.records
            if each.key is None
            or newest.get(each.key, -1) <= each.offset
            or each.offset >= self.stable_end
            or coin.random() < 0.3
        ]


class Member:
    """A member of a group, as the coordinator knows it."""

    def __init__(self, name: str, client: str, session: float) -> None:
        self.name = name
        self.client = client
        self.session = session
        self.seen = 0.0
        self.words = b""
        self.joining: asyncio.Future[tuple[int, list[int]]] | None = None
        self.assigned: list[int] = []


class Group:
    """A consumer group: members, generations and committed offsets."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.preparing = False
        self._deadline = 0.0
        self.offsets: dict[Partition, Committed] = {}
        self.pending: dict[Partition, Transaction] = {}
        self._count = 0
        self._watch: asyncio.TimerHandle | None = None

    # Offsets

    def read(self, partitions: Sequence[Partition], stable: bool) -> dict[Partition, Committed | None]:
        """The committed offsets; with `stable` none of a transaction may be pending."""
        if stable and any(partition in self.pending for partition in partitions):
            raise NotReadyError
        return {partition: self.offsets.get(partition) for partition in partitions}

    def check(self, generation: int, member: str) -> None:
        """Refuse another generation."""
        if member and (member not in self.members or generation != self.generation):
            raise FencedEpochError(f"generation {generation}, and {self.generation} is the present one")

    # Members

    def join(
        self, name: str, client: str, words: bytes, session: float, whole_topic: bool, count: int
    ) -> tuple[str, asyncio.Future[tuple[int, list[int]]]]:
        """A member joins, perhaps again: its name, and what tells its generation and partitions."""
        if name not in self.members:
            self._count += 1
            name = f"{client}-{self._count}"
            self.members[name] = Member(name, client, session)
        member = self.members[name]
        self._whole_topic, self._partitions = whole_topic, count
        member.seen, member.words = self._broker.loop.time(), words
        if member.joining is not None and not member.joining.done():
            member.joining.cancel()
        member.joining = self._broker.loop.create_future()
        joined = member.joining
        self._prepare()
        self._complete()
        return name, joined

    def leave(self, name: str) -> None:
        """A member leaves."""
        if self.members.pop(name, None) is not None:
            self._broker.note(f"group: {name} is gone")
            self._prepare()
            self._complete()

    def beat(self, name: str, generation: int) -> str:
        """A heartbeat: "ok", "rejoin" or "unknown"."""
        member = self.members.get(name)
        if member is None or generation != self.generation:
            return "unknown"
        member.seen = self._broker.loop.time()
        return "rejoin" if self.preparing else "ok"

    def rebalance(self) -> None:
        """Begin a rebalance for no reason that members see."""
        if self.members:
            self._prepare()

    def _prepare(self) -> None:
        if not self.preparing:
            self.preparing = True
            self._deadline = self._broker.loop.time() + 60.0
        self._look_later()

    def _look_later(self) -> None:
        if self._watch is None:
            self._watch = self._broker.loop.call_later(0.25, self._look, context=_BROKER)

    def _look(self) -> None:
        self._watch = None
        now = self._broker.loop.time()
        for member in list(self.members.values()):
            waits = member.joining is not None and not member.joining.done()
            late = self.preparing and now >= self._deadline and not waits
            if late or (not waits and now >= member.seen + member.session):
                self.leave(member.name)
        self._complete()
        if self.members:
            self._look_later()

    def _complete(self) -> None:
        """End the rebalance once all members have joined."""
        members = list(self.members.values())
        if not self.preparing or not all(m.joining is not None and not m.joining.done() for m in members):
            return
        self.preparing = False
        self.generation += 1
        if not members:
            return
        names = sorted(self.members)
        chosen = chosen_member({m.name: m.words for m in members}) if self._whole_topic else ""
        for m in members:
            if self._whole_topic:
                m.assigned = list(range(self._partitions)) if m.name == chosen else []
            else:
                m.assigned = list(range(self._partitions))[names.index(m.name) :: len(names)]
            m.seen = self._broker.loop.time()
            assert m.joining is not None
            m.joining.set_result((self.generation, m.assigned))
        self._broker.note(
            f"group {self.name}: generation {self.generation}, "
            + ", ".join(f"{m.name} has {m.assigned}" for m in members)
        )


class Writer:
    """A transactional id, as its coordinator knows it."""

    def __init__(self) -> None:
        self.epoch = -1
        self.transaction: Transaction | None = None
        self.stored: dict[object, list[int]] = {}
        self.last_commits = False
        self.timeout = 60.0


class Broker:
    """The state of the cluster, and what requests do to it once they have arrived."""

    def __init__(self, loop: SimulatedLoop, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.note = note
        self.topics: dict[str, list[PartitionLog]] = {}
        self.groups: dict[str, Group] = {}
        self._writers: dict[str, Writer] = {}
        self.changed = asyncio.Event()

    def create(self, topic: str, partitions: int, *, append_time: bool) -> None:
        """Create a topic, or add partitions to it."""
        logs = self.topics.setdefault(topic, [])
        logs += [PartitionLog(append_time) for _ in range(partitions - len(logs))]

    def log(self, partition: Partition) -> PartitionLog:
        """The log of a partition."""
        return self.topics[partition.topic][partition.partition]

    def group(self, name: str) -> Group:
        """The group of this name."""
        return self.groups.setdefault(name, Group(self, name))

    @property
    def now_ms(self) -> int:
        """The broker's clock."""
        return self.loop.epoch_ns // 1_000_000

    # Transactions

    def begin_epoch(self, name: str, timeout: float) -> int:
        """Fence every earlier producer of this id; its open transaction is aborted first."""
        writer = self._writers.setdefault(name, Writer())
        if writer.transaction is not None:
            if writer.transaction.state == "open":
                writer.epoch += 1
                self._end(writer, commits=False)
            raise NotReadyError
        writer.epoch += 1
        writer.timeout = timeout
        writer.stored.clear()
        return writer.epoch

    def _expire(self, writer: Writer, transaction: Transaction) -> None:
        """Abort a transaction that was open for too long, and fence its producer."""
        if writer.transaction is transaction and transaction.state == "open":
            writer.epoch += 1
            self._end(writer, commits=False)

    def _writer(self, name: str, epoch: int) -> Writer:
        writer = self._writers[name]
        if epoch != writer.epoch:
            raise FencedEpochError(f"epoch {epoch}, and {writer.epoch} is the present one")
        return writer

    def _transaction(self, name: str, epoch: int) -> tuple[Writer, Transaction]:
        writer = self._writer(name, epoch)
        if writer.transaction is None:
            writer.transaction = Transaction()
            self.loop.call_later(writer.timeout, self._expire, writer, writer.transaction, context=_BROKER)
        if writer.transaction.state != "open":
            raise NotReadyError
        return writer, writer.transaction

    def store(
        self, name: str, epoch: int, token: object, target: Partition, messages: Sequence[Message]
    ) -> list[int]:
        """Store messages of a transaction; a repeated request stores nothing again."""
        writer = self._writer(name, epoch)
        if token in writer.stored:
            return writer.stored[token]
        writer, transaction = self._transaction(name, epoch)
        if target not in transaction.partitions:
            transaction.partitions.append(target)
        offsets = self.log(target).append(messages, self.now_ms, transaction)
        writer.stored[token] = offsets
        return offsets

    def add_offsets(
        self,
        name: str,
        epoch: int,
        group: str,
        offsets: Mapping[Partition, tuple[int, str]],
        member: tuple[int, str] | None,
    ) -> None:
        """Offsets that the group has once the transaction is committed."""
        _, transaction = self._transaction(name, epoch)
        known = self.group(group)
        if member is not None:
            known.check(*member)
        for partition, (offset, text) in offsets.items():
            transaction.offsets[group, partition] = Committed(offset, text)
            known.pending[partition] = transaction

    def end(self, name: str, epoch: int, commits: bool) -> None:
        """End the transaction; a repeated request is answered as the first one."""
        writer = self._writer(name, epoch)
        transaction = writer.transaction
        if transaction is None:
            if writer.last_commits != commits:
                raise FencedEpochError("no transaction is open")
        elif transaction.state == "open":
            self._end(writer, commits)
        elif transaction.commits != commits:
            raise FencedEpochError("the transaction has ended otherwise")

    def _end(self, writer: Writer, commits: bool) -> None:
        """Decide; the markers follow one by one, after the answer."""
        transaction = writer.transaction
        assert transaction is not None
        transaction.state, transaction.commits = "committed" if commits else "aborted", commits
        steps: list[Callable[[], None]] = [
            functools.partial(self._mark, transaction, partition) for partition in transaction.partitions
        ]
        steps.append(functools.partial(self._end_offsets, transaction))

        def step() -> None:
            # All records of a transaction become visible where its marker is.
            steps.pop(0)()
            if steps:
                self.loop.call_later(self.loop.coin.choice((0.0, 0.001, 0.02)), step, context=_BROKER)
            else:
                writer.transaction = None
                writer.last_commits = commits

        self.loop.call_later(self.loop.coin.choice((0.0, 0.001, 0.02)), step, context=_BROKER)

    def _mark(self, transaction: Transaction, partition: Partition) -> None:
        self.log(partition).finish(transaction, self.now_ms)

    def _end_offsets(self, transaction: Transaction) -> None:
        for (name, partition), committed in transaction.offsets.items():
            group = self.group(name)
            if group.pending.get(partition) is transaction:
                del group.pending[partition]
            if transaction.commits:
                group.offsets[partition] = committed


def _tell(answer: asyncio.Future[Any], error: Exception | None, result: Any = None) -> None:
    if not answer.done():
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)


class Network:
    """Carries requests to the broker, and answers back; some are lost, some come late."""

    def __init__(self, loop: SimulatedLoop, coin: random.Random, note: Callable[[str], None]) -> None:
        self._loop = loop
        self._coin = coin
        self._note = note
        self.down = False
        self._up_at = 0.0
        self._cut: tuple[str, float] | None = None
        self.latency = 0.003  # seconds, at most, there and back again
        self.loss = 0.0  # probability that a request, or its answer, is lost or late

    async def ask(
        self, what: str, effect: Callable[[], _R], *, patience: float = 1.0, waits: float = 0.0
    ) -> _R:
        """Send a request, once; the broker does it after it `waits`.

        Raises
        ------
        NoAnswerError
            Nothing came within `patience` seconds. Whether the request has landed, or will, is unknown.
        Exception
            The error of the broker.
        """
        loop, coin = self._loop, self._coin
        answer: asyncio.Future[_R] = loop.create_future()
        there, fate = waits + coin.uniform(0.0, self.latency), coin.random() / (self.loss or 1e-9)
        lost_there, late, lost_back = fate < 1 / 3, 1 / 3 <= fate < 2 / 3, 2 / 3 <= fate < 1
        if late:
            there = patience * coin.uniform(0.9, 3.0)
        if fate < 1:
            loop.call_later(patience, _tell, answer, NoAnswerError(what), context=_BROKER)

        def land() -> None:
            cut = self._cut_off(what)
            if self.down:
                loop.call_later(0.2, _tell, answer, NoAnswerError(what), context=_BROKER)
            if (self.down and cut != "after") or lost_there:
                return
            error: Exception | None = None
            result: Any = None
            try:
                result = effect()
            except Exception as raised:
                error = raised
            if lost_back or late or cut:
                self._note(f"network: {what} has landed {'late' if late else 'and its answer is lost'}")
            else:
                back = coin.uniform(0.0, self.latency)
                loop.call_later(back, _tell, answer, error, result, context=_BROKER)

        loop.call_later(there, land, context=_BROKER)
        return await answer

    def outage(self, seconds: float) -> None:
        """Nothing is answered for some time."""
        self.down = True
        self._up_at = max(self._up_at, self._loop.time() + seconds)
        self._loop.call_later(seconds, self._end_outage, context=_BROKER)

    def _end_outage(self) -> None:
        self.down = self._loop.time() < self._up_at

    def cut(self, when: str, seconds: float) -> None:
        """Begin an outage before the next commit of a transaction lands, or after it."""
        self._cut = when, seconds

    def heal(self) -> None:
        """Lose nothing from now on, once the present outage has ended."""
        self.loss, self._cut = 0.0, None

    def _cut_off(self, what: str) -> str:
        if self.down or self._cut is None or not what.endswith("a commit"):
            return ""
        (when, seconds), self._cut = self._cut, None
        self._note(f"network: an outage of {seconds} s begins {when} {what} lands")
        self.outage(seconds)
        return when

    async def insist(
        self, what: str, effect: Callable[[], _R], *, seconds: float, lost: Callable[[], None] = lambda: None
    ) -> _R:
        """Send a request again until there is an answer.

        Raises
        ------
        NoAnswerError
            There was none in time.
        """
        deadline = self._loop.time() + seconds
        while True:
            try:
                return await self.ask(what, effect)
            except NoAnswerError:
                lost()
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.05)
            except NotReadyError:
                if self._loop.time() >= deadline:
                    raise NoAnswerError(what) from None
                await asyncio.sleep(0.02)
