"""Scorers in a group in memory, under every order of events: each event has one score.

The group has the rules of the brokers (tests/broker/test_scorers.py holds them against real ones): it refuses
offsets of an earlier generation and of a fenced producer, and takes those of a member without a name from
anybody. A client forgets its membership before it revokes its partitions.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Cluster, Committed, Member, Partition, Routes, Span
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker import scorer as scorer_module
from streampair_connectors.worker.model_topic import PublishedModel
from streampair_connectors.worker.outputs import OutputMessages
from streampair_connectors.worker.scorer import ScoringWorker, allowed_behind

from streampair import auc, models
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError

TOPIC, PARTITIONS = "events", 4
NOBODY = Member(-1, "", None)


def config_of(instance: str | None = None) -> Config:
    static = {} if instance is None else {"group_instance_id": instance}
    return parse_config(
        {
            "app": "a",
            "kafka": {"bootstrap_servers": "nowhere:1", **static},
            "input": {"topic": TOPIC, "label": "y", "features": ["x"]},
            "learner": {"class": "streampair.auc.PairOGD", "scoring": "parallel"},
        }
    )


def published(slots: int = 0, positions: Mapping[int, int] | None = None, **until: int) -> PublishedModel:
    metadata = {
        "positions": {str(p): position for p, position in (positions or {}).items()},
        "scored_until": {name.removeprefix("p"): position for name, position in until.items()},
    }
    return PublishedModel(models.export(auc.PairOGD(), slots, metadata=metadata))


class Group:
    """The brokers: events, the group and its offsets, and what is committed."""

    def __init__(self, count: int, coin: random.Random | None = None) -> None:
        self.coin = coin
        self.records = {
            p: [
                SimpleNamespace(
                    offset=offset,
                    value=b'{"x": 1, "y": true}',
                    key=None,
                    timestamp=1,
                    headers=(),
                    partition=p,
                )
                for offset in range(count)
            ]
            for p in range(PARTITIONS)
        }
        self.generation = 0
        self.tries = 0  # of transactions with scores
        self.members: list[Client] = []
        self.offsets: dict[int, Committed] = {}
        self.scores: list[tuple[int, int]] = []
        self.epochs: dict[str, int] = {}
        self.open: dict[str, dict[int, Committed]] = {}  # offsets in transactions, by their ids
        self.fenced: list[str] = []
        self._rebalance = asyncio.Lock()

    async def pause(self, most: int = 3) -> None:
        """Let others run."""
        for _ in range(0 if self.coin is None else self.coin.randrange(most + 1)):
            await asyncio.sleep(0)

    async def rebalance(self) -> None:
        """Spread the partitions over the members anew. Those that are not in it any more are not asked."""
        async with self._rebalance:
            for client in list(self.members):
                await client.revoke()
            self.generation += 1
            members = list(self.members)
            for number, client in enumerate(members):
                client.member = Member(self.generation, client.name)
                client.assigned = set(range(number, PARTITIONS, len(members)))
            await asyncio.gather(*(client.assign() for client in members))

    async def register(
        self, config: Any, group: str, partitions: Sequence[Partition], *, stable: bool = True
    ) -> dict[Partition, Committed | None]:
        await self.pause()
        numbers = {p.partition for p in partitions}
        try:
            async with asyncio.timeout(5):
                while stable and any(numbers & set(found) for found in self.open.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise SourceError("a transaction is open", fix="none") from None
        return {p: self.offsets.get(p.partition) for p in partitions}

    async def describe(self, config: Any, group: str, topic: str) -> Any:
        await self.pause()
        return SimpleNamespace(clients=frozenset(client.id for client in self.members))


class Client:
    """What a scorer has of the group: its consumer."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name, self.id = group, name, ""
        self.member = NOBODY
        self.assigned: set[int] = set()
        self.positions: dict[int, int] = {}
        self.paused: set[int] = set()
        self.frozen = asyncio.Event()
        self.frozen.set()
        self.on_revoked: Callable[[list[Partition]], Awaitable[None]]
        self.on_assigned: Callable[[list[Partition]], Awaitable[None]]

    def _partitions(self) -> list[Partition]:
        return [Partition(TOPIC, p) for p in sorted(self.assigned)]

    async def revoke(self) -> None:
        await self.on_revoked(self._partitions())

    async def assign(self) -> None:
        self.paused.clear()
        # The client begins at the group's offsets by itself, before it is told where to.
        self.positions = {
            p: position.offset for p, position in self.group.offsets.items() if p in self.assigned
        }
        await self.on_assigned(self._partitions())

    async def poll(self, most: int | None, seconds: float) -> dict[Partition, Span]:
        await self.frozen.wait()
        await self.group.pause()
        await asyncio.sleep(0)
        count = 1000 if self.group.coin is None else self.group.coin.randrange(1, 6)
        found = {}
        for p in sorted(self.assigned - self.paused):
            if p in self.positions:
                begin = self.positions[p]
                part = self.group.records[p][begin : begin + count]
                self.positions[p] = begin + len(part)
                if part:
                    found[Partition(TOPIC, p)] = Span(begin, begin + len(part), part)
        return found

    def seek(self, partition: Partition, offset: int) -> None:
        if partition.partition not in self.assigned:
            raise FencedError("not assigned", fix="none")
        self.positions[partition.partition] = offset

    def pause(self, partition: Partition) -> None:
        self.paused.add(partition.partition)

    def resume(self, partition: Partition) -> None:
        self.paused.discard(partition.partition)

    def end(self, partition: Partition) -> int:
        return len(self.group.records[partition.partition])

    def partition_count(self) -> int:
        return PARTITIONS


class Producer:
    """A transactional producer: a start fences the one before, and ends its transaction."""

    group: Group
    losses: Callable[[], str | None] = staticmethod(lambda: None)

    def __init__(self, config: Any, transactional_id: str, **_: Any) -> None:
        self.id, self.epoch, self.usable = transactional_id, -1, False

    async def start(self) -> None:
        await self.group.pause()
        self.epoch = self.group.epochs[self.id] = self.group.epochs.get(self.id, -1) + 1
        self.group.open.pop(self.id, None)
        self.group.fenced.append(self.id)
        self.usable = True

    async def stop(self) -> None:
        self.usable = False

    def _check(self) -> None:
        if not self.usable or self.epoch != self.group.epochs[self.id]:
            self.usable = False
            raise FencedError("another producer", fix="none")

    async def transaction(
        self,
        sends: Sequence[tuple[Partition, list[Any]]],
        *,
        offsets: Mapping[Partition, tuple[int, str]],
        member: Member,
    ) -> None:
        world = self.group
        world.tries += bool(sends)
        self._check()
        await world.pause()
        self._check()
        # Brokers compare the generation only of a member that has a name.
        if member.member_id and member.generation != world.generation:
            self.usable = False
            raise FencedError("another generation", fix="none")
        world.open[self.id] = {p.partition: Committed(*offset) for p, offset in offsets.items()}
        await world.pause(6)
        loss = self.losses() if sends else None
        if loss == "before":
            self.usable = False  # the broker has no answer, and the transaction stays open
            raise SourceError("no answer", fix="none")
        self._check()
        world.offsets |= world.open.pop(self.id)
        for _, messages in sends:
            rows = [json.loads(message.value) for message in messages]
            world.scores += [(row["partition"], row["offset"]) for row in rows if "score" in row]
        if loss == "after":
            self.usable = False
            raise CommitOutcomeUnknownError("no answer", fix="none")
        if loss == "late":
            self.usable = False


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Group]:
    def make(count: int, coin: random.Random | None = None) -> Group:
        group = Group(count, coin)
        monkeypatch.setattr(Producer, "group", group, raising=False)
        monkeypatch.setattr(Producer, "losses", staticmethod(lambda: None))
        return group

    return make


class Spans:
    """Start and end of the input's partitions."""

    def __init__(self, group: Group, starts: Mapping[int, int]) -> None:
        self.group, self.starts = group, starts

    async def spans(self, partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        await self.group.pause()
        return {p.partition: (self.starts.get(p.partition, 0), 10**6) for p in partitions}


async def scorer_in(
    group: Group, name: str, newest: PublishedModel | None = None, starts: Mapping[int, int] | None = None
) -> tuple[ScoringWorker, Client]:
    config = config_of()
    cluster = Cluster(
        read_register=group.register,
        transactional_producer=Producer,  # type: ignore[arg-type]
        describe_group=group.describe,
    )
    made, client = ScoringWorker(config, Telemetry(), cluster=cluster), Client(group, name)
    client.id, client.on_revoked, client.on_assigned = made._client, made._on_revoked, made._on_assigned
    worker: Any = made
    worker._consumer, worker._lookup = client, Spans(group, starts or {})
    worker._models = SimpleNamespace(
        newest=newest or published(10**6), received=time.monotonic(), changed=asyncio.Event()
    )
    worker._producer = made._new_producer()
    worker._messages = OutputMessages(config, Routes({"a-scores": 1, "a-dead-letters": 1}))
    await made._producer.start()
    return made, client


async def work(made: ScoringWorker) -> None:
    never: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(60))
    try:
        await made._loop(never)
    finally:
        never.cancel()


async def begin(made: ScoringWorker) -> None:
    """What the loop does first with partitions that were assigned."""
    assert made._assigned is not None
    await made._begin(made._assigned)


async def until(condition: Callable[[], bool], *tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0)


async def only_scorer(group: Group, *arguments: Any, **options: Any) -> tuple[ScoringWorker, Client]:
    """A scorer that is the only member of its group, and has all partitions."""
    made, client = await scorer_in(group, "a", *arguments, **options)
    group.members = [client]
    await group.rebalance()
    return made, client


async def frozen_scorer(group: Group) -> tuple[ScoringWorker, Client, asyncio.Task[None]]:
    """The only member of the group: it has begun all partitions, and its client returns nothing."""
    made, client = await only_scorer(group)
    client.frozen.clear()
    task = asyncio.create_task(work(made))
    await until(lambda: len(made._queues) == PARTITIONS, task)
    return made, client, task


def once(group: Group, count: int) -> None:
    assert sorted(group.scores) == [(p, offset) for p in range(PARTITIONS) for offset in range(count)]


@pytest.mark.parametrize("seed", range(25))
async def test_each_event_has_one_score_in_every_order(world: Callable[..., Group], seed: int) -> None:
    """Three scorers; the group rebalances, throws members out, answers are lost; frozen ones wake."""
    coin = random.Random(seed)
    count = 60
    group = world(count, coin)
    Producer.losses = staticmethod(
        lambda: coin.choice(["before", "after", "late"]) if coin.random() < 0.1 else None
    )
    made = [await scorer_in(group, name) for name in "abc"]
    group.members = [client for _, client in made]
    tasks = [asyncio.create_task(work(each)) for each, _ in made]
    await group.rebalance()
    begin = time.monotonic()
    while len(set(group.scores)) < count * PARTITIONS:
        assert time.monotonic() < begin + 30, "events are never scored"
        await asyncio.sleep(0.001)
        for task in tasks:
            if task.done():
                task.result()
        client = coin.choice([client for _, client in made])
        act = coin.random()
        if act < 0.3:
            await group.rebalance()
        elif act < 0.6 and len(group.members) > 1 and client in group.members:
            # Its session expires; it goes on by itself for a while, then its client forgets the
            # membership, then it gets the error and joins again.
            if coin.random() < 0.5:
                client.frozen.clear()
            group.members.remove(client)
            await group.rebalance()
            client.frozen.set()
            await group.pause(6)
            client.member = NOBODY
            await group.pause(6)
            await client.revoke()
            client.assigned = set()
            group.members.append(client)
            await group.rebalance()
    for each, _ in made:
        each.stop()
    await asyncio.gather(*tasks)
    once(group, count)
    assert {p: position.offset for p, position in group.offsets.items()} == dict.fromkeys(
        range(PARTITIONS), count
    )


async def test_a_member_that_was_forgotten_commits_nothing(world: Callable[..., Group]) -> None:
    """A frozen scorer wakes when its partitions are another's, and its client has forgotten the group."""
    group = world(10)
    zombie, client, task = await frozen_scorer(group)
    group.members = []
    other, its = await scorer_in(group, "other")
    group.members = [its]
    await group.rebalance()
    client.member = NOBODY
    client.frozen.set()
    await until(lambda: group.tries > 0, task)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not group.scores
    zombie.stop()
    await task
    task = asyncio.create_task(work(other))
    await until(lambda: len(group.scores) == 10 * PARTITIONS, task)
    other.stop()
    await task
    once(group, 10)


async def test_what_waits_is_dropped_when_partitions_are_revoked(world: Callable[..., Group]) -> None:
    group = world(10)
    made, client, task = await frozen_scorer(group)
    await client.revoke()
    assert not made._queues
    task.cancel()
    await asyncio.wait([task])


async def test_what_is_polled_while_partitions_move_is_dropped(world: Callable[..., Group]) -> None:
    """They are revoked and assigned again between a poll and the work on what it has found."""
    group = world(10)
    made, client = await only_scorer(group)
    poll, moved = client.poll, []

    async def slow(most: int | None, seconds: float) -> dict[Partition, Span]:
        found = await poll(most, seconds)
        if found and not moved:
            moved.append(found)
            await group.rebalance()
        return found

    client.poll = slow  # type: ignore[method-assign]
    task = asyncio.create_task(work(made))
    await until(lambda: len(group.scores) >= 10 * PARTITIONS, task)
    made.stop()
    await task
    assert moved
    once(group, 10)


async def test_a_client_that_goes_on_elsewhere_is_sought_again(world: Callable[..., Group]) -> None:
    group = world(10)
    made, client = await only_scorer(group)
    poll, passed = client.poll, []

    async def elsewhere(most: int | None, seconds: float) -> dict[Partition, Span]:
        if made._queues and not passed:
            passed.append(dict(client.positions))
            client.positions = dict.fromkeys(client.positions, 4)
        return await poll(most, seconds)

    client.poll = elsewhere  # type: ignore[method-assign]
    task = asyncio.create_task(work(made))
    await until(lambda: len(group.scores) >= 10 * PARTITIONS, task)
    made.stop()
    await task
    once(group, 10)
    assert passed == [dict.fromkeys(range(PARTITIONS), 0)]
    assert made._read_to.dropped == PARTITIONS


async def test_events_that_are_gone_are_passed_over(world: Callable[..., Group]) -> None:
    group = world(10)
    made, client = await only_scorer(group)
    await begin(made)
    made._assigned = None
    client.positions[0] = 6
    made._on_lost(Partition(TOPIC, 0), 0, 6)
    task = asyncio.create_task(work(made))
    await until(lambda: len(group.scores) >= 10 * PARTITIONS - 6, task)
    made.stop()
    await task
    assert sorted(offset for p, offset in group.scores if p == 0) == [6, 7, 8, 9]


async def test_a_partition_that_was_paused_is_read_after_a_restart_of_the_producer(
    world: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "_BUFFER_BYTES", 300)
    group = world(3000)
    left = ["before"]
    Producer.losses = staticmethod(lambda: left.pop() if left else None)
    made, _ = await only_scorer(group)
    task = asyncio.create_task(work(made))
    await until(lambda: len(group.scores) == 3000 * PARTITIONS, task)
    made.stop()
    await task
    once(group, 3000)


def test_tombstones_count_for_the_buffer() -> None:
    queue = scorer_module._Queue(0)
    gone: Any = [SimpleNamespace(offset=n, value=None, key=b"k" * 10, timestamp=0) for n in range(10_000)]
    queue.add(gone)
    assert queue.bytes > 10_000 * 100
    queue.take(10_000)
    assert queue.bytes == 0


async def test_scorers_begin_where_the_lane_has_ended_or_at_the_start(world: Callable[..., Group]) -> None:
    group = world(50)
    group.offsets[2] = Committed(45, "of a tool")
    made, _ = await only_scorer(group, published(10**6, p0=40, p1=3), starts={1: 10, 3: 48})
    await begin(made)
    # What the group has now names its owner, before anything is scored.
    assert group.offsets == {
        p: Committed(offset, made._id) for p, offset in {0: 40, 1: 10, 2: 45, 3: 48}.items()
    }
    task = asyncio.create_task(work(made))
    await until(lambda: len(group.scores) == 10 + 40 + 5 + 2, task)
    made.stop()
    await task
    assert {min(position for q, position in group.scores if q == p) for p in range(4)} == {40, 10, 45, 48}


@pytest.mark.parametrize(
    ("owner", "ended"),
    [("streampair-dead", True), ("streampair-member", False), ("", False), ("a tool's", False)],
)
async def test_only_a_scorer_of_ours_that_has_died_is_ended(
    world: Callable[..., Group], owner: str, ended: bool
) -> None:
    """Its transaction is open, and holds back offsets, or only those who read committed scores."""
    group = world(5)
    group.offsets[0] = Committed(2, owner)
    made, client = await scorer_in(group, "a")
    _, other = await scorer_in(group, "b")
    other.id = "streampair-member"
    group.members = [client, other]
    await group.rebalance()
    await begin(made)
    assert group.fenced.count(owner) == ended
    assert group.offsets[0] == Committed(2, made._id)


def test_a_static_member_that_starts_again_ends_its_own_transaction() -> None:
    one, two = (ScoringWorker(config_of(instance), Telemetry()) for instance in ("worker-0", "worker-1"))
    again = ScoringWorker(config_of("worker-0"), Telemetry())
    assert one._client == again._client != two._client
    assert ScoringWorker(config_of(), Telemetry())._client != ScoringWorker(config_of(), Telemetry())._client


async def test_a_scorer_waits_for_a_model_in_a_backlog_and_not_at_the_end(
    world: Callable[..., Group],
) -> None:
    group = world(5000)
    made, _ = await only_scorer(group, published(0, {}))
    task = asyncio.create_task(work(made))
    # 1,000 may be scored by the model of nothing, and one batch of as many beyond.
    await until(lambda: len(group.scores) > 1000, task)
    scored = len(group.scores)
    await asyncio.wait({task}, timeout=0.3)
    assert len(group.scores) == scored <= 2000
    models_: Any = made._models
    models_.newest = published(10**6, dict.fromkeys(range(PARTITIONS), 5000))
    models_.changed.set()
    await until(lambda: len(group.scores) == 5000 * PARTITIONS, task)
    made.stop()
    await task
    once(group, 5000)


async def test_dead_letters_of_partitions_with_equal_offsets(world: Callable[..., Group]) -> None:
    """The records of all partitions are scored together, and offsets name a record of each."""
    group = world(3)
    for p, offset in ((1, 0), (2, 0), (3, 2)):
        group.records[p][offset].value = f"no event {p} {offset}".encode()
    made, _ = await scorer_in(group, "a")
    worker: Any = made
    out: dict[Partition, list[Any]] = {}
    records = [record for p in range(PARTITIONS) for record in group.records[p]]
    made._outputs(out, worker._models.newest, records, [(r.partition, r.offset) for r in records])
    rows = [json.loads(message.value) for message in out[Partition("a-scores", 0)]]
    bad = [(row["partition"], row["offset"]) for row in rows if row["outcome"] == "dead_letter"]
    assert len(rows) == 12
    assert bad == [(1, 0), (2, 0), (3, 2)]
    letters = out[Partition("a-dead-letters", 0)]
    where = [
        tuple(int(dict(letter.headers)[f"streampair.{name}"]) for name in ("partition", "offset"))
        for letter in letters
    ]
    assert where == bad
    assert [letter.value for letter in letters] == [f"no event {p} {o}".encode() for p, o in bad]


@pytest.mark.parametrize(
    ("slots", "share", "most"),
    [(0, 1.0, 1000), (10_000, 1.0, 1000), (100_000, 1.0, 10_000), (100_000, 0.25, 2500), (0, 0.5, 500)],
)
def test_how_far_a_model_may_be_behind(slots: int, share: float, most: int) -> None:
    assert allowed_behind(slots, share) == most


def test_behind_counts_what_the_model_has_not_learned() -> None:
    found = published(30, {0: 10, 1: 20})
    assert found.behind({0: 15, 1: 18, 7: 4}) == 5 + 0 + 4
    assert found.behind({}) == 0
