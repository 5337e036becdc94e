"""Members of a group: static ones, two with one name, added partitions, idle and busy ones."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from harness.admin import add_partitions
from harness.applications import App, Inside, events, produce, same
from harness.kafka import Cluster
from harness.stalls import Stalls
from harness.worker_process import wait_for
from streampair_connectors.config import Duration, KafkaConfig
from streampair_connectors.kafka import (
    Consumer,
    Partition,
    StaticMemberConflicts,
    ended,
    read_register,
)
from streampair_connectors.kafka.membership import WholeTopicAssignor, describe_group, member_of, rejoin
from streampair_connectors.stores import TopicLane
from streampair_connectors.worker.flow_control import Pace
from streampair_connectors.worker.lane_manager import Opener, OpenLane
from streampair_connectors.worker.session import Session

from streampair.engine import LoggedLane
from streampair.errors import SourceError

Unique = Callable[[str], str]


async def until(what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition, which is looked at all the time."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # not an event of ours
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


class Member:
    """A consumer that polls until it is stopped or has failed, and notes what it holds."""

    def __init__(
        self,
        kafka: Cluster,
        topic: str,
        name: str | None = None,
        *,
        takeovers: StaticMemberConflicts | None = None,
        watch_seconds: float = 0.5,
        max_poll_interval: float = 600.0,
    ) -> None:
        self.settings = KafkaConfig(
            bootstrap_servers=kafka.bootstrap,
            session_timeout=Duration.of("3s") if kafka.kind == "kafka" else 6.0,
            max_poll_interval=Duration(round(1000 * max_poll_interval)),
            group_instance_id=name,
        )
        self.topic = topic
        self.assigned: set[int] = set()
        self.assignments: list[set[int]] = []
        self.error: BaseException | None = None
        self.busy = False
        self.consumer = Consumer(
            self.settings,
            topic,
            f"{topic}-group",
            on_revoked=self._revoked,
            on_assigned=self._assigned,
            on_lost=print,
            takeovers=takeovers,
            watch_seconds=watch_seconds,
        )
        self._polling: asyncio.Task[None] | None = None

    async def _revoked(self, partitions: list[Partition]) -> None:
        self.assigned.clear()

    async def _assigned(self, partitions: list[Partition]) -> None:
        self.assigned = {p.partition for p in partitions}
        self.assignments.append(set(self.assigned))
        for partition in partitions:
            self.consumer.seek(partition, 0)

    async def start(self) -> Member:
        await self.consumer.start()
        self._polling = asyncio.create_task(self._poll())
        return self

    async def _poll(self) -> None:
        while True:
            if self.busy:
                await asyncio.sleep(0.02)
                continue
            try:
                await self.consumer.poll(100, 0.1)
            except SourceError as error:
                if not error.retriable:
                    self.error = error
                    return

    async def die(self) -> None:
        """Go away without a word, as a process that is killed: its connections end, nobody is told."""

        async def say_nothing() -> None:
            return None

        self.consumer._consumer._coordinator._maybe_leave_group = say_nothing
        await self.stop()

    async def stop(self) -> None:
        await ended(self._polling)
        await self.consumer.stop()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
async def test_a_member_that_was_killed_comes_back(
    apache_kafka: Cluster, unique: Unique, static: bool, record_property: Callable[[str, object], None]
) -> None:
    """A static one has its partitions back at once, and nobody notices; another waits for the session."""
    topic = apache_kafka.create_topic(unique("in"), partitions=2)
    names = ("a", "b") if static else (None, None)
    one = await Member(apache_kafka, topic, names[0]).start()
    await until("both partitions", lambda: one.assigned == {0, 1})
    other = await Member(apache_kafka, topic, names[1]).start()
    await until("one each", lambda: len(one.assigned) == len(other.assigned) == 1)
    seen, had = len(other.assignments), set(one.assigned)
    await one.die()
    begin = time.monotonic()
    again = await Member(apache_kafka, topic, names[0]).start()
    await until("its partition", lambda: len(again.assigned) == 1)
    record_property("seconds", round(time.monotonic() - begin, 2))
    print(f"back after {time.monotonic() - begin:.2f} s, static={static}")
    if static:
        assert again.assigned == had
        assert len(other.assignments) == seen
    else:
        await until("the other one notices", lambda: len(other.assignments) > seen)
    await again.stop()
    await other.stop()


async def test_two_members_with_one_name(apache_kafka: Cluster, unique: Unique) -> None:
    """They take the partitions from each other, until one is stopped and told why; the other keeps them."""
    topic = apache_kafka.create_topic(unique("in"), partitions=2)
    members = [await Member(apache_kafka, topic, "same").start() for _ in range(2)]
    await until("one is stopped", lambda: any(member.error for member in members))
    (loser,) = (member for member in members if member.error)
    (winner,) = (member for member in members if not member.error)
    assert "two workers have the same kafka.group_instance_id" in str(loser.error)
    await loser.stop()
    await until("the other has them", lambda: winner.assigned == {0, 1})
    taken = len(winner.assignments)
    state = await describe_group(winner.settings, f"{topic}-group", topic)
    assert state.members == (member_of(winner.consumer._consumer),)
    assert (winner.error, len(winner.assignments)) == (None, taken)
    await winner.stop()


async def test_a_member_that_is_replaced_once_is_warned_and_no_more(
    apache_kafka: Cluster, unique: Unique
) -> None:
    """A takeover is remembered over connections, and one that is followed by a farewell is none too many."""
    topic = apache_kafka.create_topic(unique("in"))
    takeovers = StaticMemberConflicts("same")
    assert takeovers.record(0.0) is None
    old = await Member(apache_kafka, topic, "same", takeovers=takeovers).start()
    await until("its partition", lambda: old.assigned == {0})
    new = await Member(apache_kafka, topic, "same").start()
    try:
        # It goes as soon as it has the partition: the two would take it from each other again and again.
        await until("the new one has it", lambda: new.assigned == {0})
        await new.stop()
        await until("the takeover", lambda: takeovers._times[-1] > 0.0 or old.error)
        await until("the old one is back", lambda: len(old.assignments) == 2 or old.error)
        assert old.error is None
    finally:
        await new.stop()
        await old.stop()


@pytest.mark.parametrize("delay", [0.0, 0.05], ids=["at once", "preempted"])
async def test_a_busy_member_is_not_taken_for_a_stolen_one(
    apache_kafka: Cluster, unique: Unique, delay: float
) -> None:
    """It did not poll in time: the group forgets it, and it comes back under a new name. Nobody took it.

    Also where its thread does not run for a moment between the client's end of a poll and that of the caller.
    """
    topic = apache_kafka.create_topic(unique("in"))
    takeovers = StaticMemberConflicts("same", limit=1)  # a single one would stop it
    member = Member(apache_kafka, topic, "same", takeovers=takeovers, max_poll_interval=1.0)
    getmany, polls = member.consumer._consumer.getmany, 0

    async def preempted(*args: Any, **options: Any) -> Any:
        nonlocal polls
        found = await getmany(*args, **options)
        polls += bool(member.assigned)
        threading.Event().wait(delay)  # the whole thread, as when another process has the processor
        return found

    member.consumer._consumer.getmany = preempted
    await member.start()
    try:
        await until("its partition, and a poll", lambda: member.assigned == {0} and polls)
        name = member_of(member.consumer._consumer)
        member.busy = True
        await until("it is out of the group", lambda: member_of(member.consumer._consumer) != name)
        member.busy = False
        await until("it is back", lambda: len(member.assignments) == 2 or member.error)
        assert member.error is None
        assert member_of(member.consumer._consumer) != name
        assert not takeovers._times
    finally:
        await member.stop()


async def test_a_stuck_member_is_noticed_in_a_group_without_offsets(
    apache_kafka: Cluster, unique: Unique
) -> None:
    """A poll that fails because the group has no offset must not count as one that goes on for ever."""
    topic = apache_kafka.create_topic(unique("in"))
    member = Member(apache_kafka, topic, max_poll_interval=1.0)
    member.consumer.seek = lambda *_: None  # type: ignore[method-assign]  # so that the poll has to fail
    await member.consumer.start()
    await until("its partition", lambda: member.assigned == {0})
    lane = Partition(topic, 0)
    assert await read_register(member.settings, f"{topic}-group", [lane]) == {lane: None}
    for _ in range(5):
        assert await member.consumer.poll(10, 0.1) == {}
    name = member_of(member.consumer._consumer)
    await until("it is out", lambda: member_of(member.consumer._consumer) != name, seconds=20)
    await member.stop()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
async def test_added_partitions_are_noticed(apache_kafka: Cluster, unique: Unique, static: bool) -> None:
    topic = apache_kafka.create_topic(unique("in"), partitions=2)
    names = ("a", "b") if static else (None, None)
    members = [await Member(apache_kafka, topic, name).start() for name in names]
    await until("one each", lambda: all(len(m.assigned) == 1 for m in members))
    assert [m.consumer.partition_count() for m in members] == [2, 2]
    await add_partitions(apache_kafka, topic, 4)
    await until("two each", lambda: set.union(*(m.assigned for m in members)) == {0, 1, 2, 3})
    await until("both know", lambda: all(m.consumer.partition_count() == 4 for m in members))
    for member in members:
        await member.stop()


@pytest.mark.parametrize("count", [1, 2])
async def test_static_members_that_were_away_get_the_added_partitions(
    apache_kafka: Cluster, unique: Unique, count: int
) -> None:
    """Kafka gives them back what they had, and asks nobody to assign: the new partitions would stay alone."""
    topic = apache_kafka.create_topic(unique("in"), partitions=2)
    names = "ab"[:count]
    members = [await Member(apache_kafka, topic, name).start() for name in names]
    await until("both", lambda: set.union(*(m.assigned for m in members)) == {0, 1})
    for member in members:
        await member.stop()
    await add_partitions(apache_kafka, topic, 3)
    # The trap: nobody watches.
    members = [await Member(apache_kafka, topic, name, watch_seconds=3600).start() for name in names]
    await until("what they had", lambda: all(m.assignments for m in members))
    assert set.union(*(m.assigned for m in members)) == {0, 1}
    state = await describe_group(members[0].settings, f"{topic}-group", topic)
    assert (state.stable, len(state.members), state.assigned) == (True, count, {0, 1})
    for member in members:
        await member.stop()
    # And they do.
    members = [await Member(apache_kafka, topic, name).start() for name in names]
    await until("all three", lambda: set.union(*(m.assigned for m in members)) == {0, 1, 2})
    for member in members:
        assert member.error is None
        await member.stop()


@pytest.mark.parametrize("paced", [True, False], ids=["paced", "mutant"])
def test_a_learner_slower_than_the_poll_interval(apache_kafka: Cluster, unique: Unique, paced: bool) -> None:
    """Twenty events of a fifth of a second, a poll is due every second; all twenty at once are too late.

    A machine on which this process itself stands still for a quarter of a second says nothing: once more.
    """

    async def body() -> tuple[bool, list[int], list[set[int]]]:
        topic = apache_kafka.create_topic(unique("in"))
        await produce(apache_kafka.bootstrap, topic, [b"{}"] * 20)
        member = Member(apache_kafka, topic, max_poll_interval=1.0)
        consumer, learned, thrown_out = member.consumer, list[int](), False
        await consumer.start()
        try:
            await until("its partition", lambda: member.assigned == {0})
            name = member_of(consumer._consumer)
            pace = Pace(1000, 1.0) if paced else None
            async with asyncio.timeout(60):
                while len(learned) < 20 and not thrown_out:
                    found = await consumer.poll(pace.records if pace else 1000, 0.1)
                    for span in found.values():
                        if pace:
                            pace.polled()
                        for record in span.records:
                            if pace and pace.over:
                                consumer.seek(Partition(topic, 0), record.offset)
                                break
                            if pace:
                                await pace.run(lambda: time.sleep(0.2), 1)
                            else:
                                await asyncio.to_thread(time.sleep, 0.2)
                            learned.append(record.offset)
                    thrown_out = member_of(consumer._consumer) != name
        finally:
            await consumer.stop()
        return thrown_out, learned, member.assignments

    for _ in range(5):
        with Stalls() as stalls:
            thrown_out, learned, assignments = asyncio.run(body())
        if stalls.longest < 0.25:
            break
    assert thrown_out != paced, stalls.longest
    if paced:
        assert learned == list(range(20))
        assert assignments == [{0}]


def test_a_worker_without_a_partition_is_well(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    """More workers than partitions: the second one runs, polls, and takes over when the first one stops.

    Not on librdkafka's broker: it takes no offsets while a group changes, as Kafka does, so that each member
    asks for another change, and two of them on a busy processor may do so for a minute.
    """
    app = App(apache_kafka, tmp_path, unique("app")).create_topics()
    values = events(80)
    app.produce(values[:40])
    with Inside(app) as first:
        app.await_scores({0: 40}, first)
        with Inside(app) as second:
            wait_for(
                "one of them has the lane, and both run",
                lambda: (
                    first.has_lane() != second.has_lane() and first.health() == second.health() == "running"
                ),
            )
            idle, busy = (second, first) if first.has_lane() else (first, second)
            assert idle.telemetry.health_report()[0]
            assert busy.stop() is None
            app.produce(values[40:])
            app.await_scores({0: 80}, idle)
            assert idle.stop() is None


def test_a_topic_that_is_given_away_while_its_lane_is_opened(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance does not wait for a lane that is being opened: it is dropped, and the worker goes on."""
    app = App(apache_kafka, tmp_path, unique("app"), partitions=2, store="kafka")
    app.create_topics()
    for partition in (0, 1):
        app.produce(events(60), partition)
    opening, go = threading.Event(), threading.Event()
    replay = Opener._replay

    async def wait(self: Opener, lane: LoggedLane, *rest: Any) -> None:
        if not opening.is_set():
            opening.set()
            await asyncio.to_thread(go.wait, 60)
        await replay(self, lane, *rest)

    monkeypatch.setattr(Opener, "_replay", wait)
    # No member says that it has the topic: the first by name gets it.
    monkeypatch.setattr(WholeTopicAssignor, "set_assigned", lambda self, assigned: None)
    text = app.path.read_text()
    apps = []
    for name in ("b", "a"):
        one = copy.copy(app)
        one.path = tmp_path / f"{name}.toml"
        one.path.write_text(text.replace("[kafka]", f'[kafka]\ngroup_instance_id = "{name}"'))
        apps.append(one)
    with Inside(apps[0]) as first:
        assert opening.wait(60)
        with Inside(apps[1]) as second:
            wait_for("the lane elsewhere", second.has_lane)
            go.set()
            app.await_scores({0: 60, 1: 60}, second)
            assert second.stop() is None
        wait_for("the lane", first.has_lane)
        app.produce(events(20))
        rows = app.await_scores({0: 80, 1: 60}, first)
        assert first.stop() is None
    assert len(rows) == 140, "no output twice"


def test_a_rebalance_while_a_lane_is_opened_loses_no_record(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody revokes the lane, as it is not held yet; its first record is polled before the group is done.

    What was polled then is of an earlier epoch, and dropped: who does not seek again never scores it.
    """
    ask, opened = Opener.open, Session._open_lane
    rejoined: list[Session] = []
    rebalanced = threading.Event()  # that the rebalance is over, but for the worker, which still opens

    async def assigned(self: Session, partitions: list[Partition]) -> None:
        if rejoined:
            rebalanced.set()
        await notes(self, partitions)

    async def open_slowly(self: Opener, *args: Any) -> OpenLane:
        lane = await ask(self, *args)
        if not rejoined:
            rejoined.append(inside.session)
            rejoin(inside.session._consumer._consumer)
            await until("the end of the rebalance", rebalanced.is_set)
        return lane

    async def open_and_poll(self: Session) -> None:
        await opened(self)
        fetcher = self._consumer._consumer._fetcher
        await until("records that wait to be polled", lambda: fetcher._records)

    app = App(apache_kafka, tmp_path, unique("app")).create_topics()
    app.produce(events(40))
    notes = Session._on_assigned
    monkeypatch.setattr(Session, "_on_assigned", assigned)
    monkeypatch.setattr(Opener, "open", open_slowly)
    monkeypatch.setattr(Session, "_open_lane", open_and_poll)
    with Inside(app) as inside:
        app.await_scores({0: 40}, inside)
        assert rejoined
        assert inside.stop() is None
    assert app.position() == 40


def test_heartbeats_go_on_while_a_lane_is_opened(
    apache_kafka: Cluster,
    unique: Unique,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of two workers that are slow to open a lane, the one that has it keeps it.

    After another worker has joined, its opening takes more heartbeats than a session has. A member that sends
    none meanwhile is dropped, the other one fences its lane and is dropped in the same way, and so on.
    """
    app = App(apache_kafka, tmp_path, unique("app"), store="kafka").create_topics()
    app.produce(events(40))
    ask, beat = Opener.open, GroupCoordinator._do_heartbeat
    beats: Counter[tuple[str, int]] = Counter()
    openings: list[int] = []  # the generation in which each one began
    begun = threading.Event()

    async def heartbeat(self: GroupCoordinator) -> bool:
        success = bool(await beat(self))
        beats[self.member_id, self.generation] += success
        return success

    def kept() -> bool:
        """Whether the member has outlived a session, which is four heartbeats, beside the other one."""
        generation, name, _ = first.session._consumer.member
        return generation > openings[0] and beats[name, generation] > 5

    async def open_slowly(self: Opener, *args: Any) -> OpenLane:
        lane = await ask(self, *args)
        openings.append(first.session._consumer.member.generation)
        begun.set()
        if len(openings) == 1:
            await until("heartbeats for more than a session", kept, 30.0)
        return lane

    monkeypatch.setattr(GroupCoordinator, "_do_heartbeat", heartbeat)
    monkeypatch.setattr(Opener, "open", open_slowly)
    with Inside(app) as first:
        wait_for("an opening", begun.is_set)
        with Inside(app) as second:
            app.await_scores({0: 40}, first, committed=True)
            assert (len(openings), second.has_lane()) == (1, False)
            assert f'streampair_fences_total{{app="{app.name}"}} 0.0' in first.metrics()
            seconds = first.metrics().partition(f'opening_seconds{{app="{app.name}"}} ')[2].split()[0]
            assert first.worker is not None
            assert float(seconds) > first.worker.config.require_kafka().session_timeout.seconds
            assert second.stop() is None
        assert first.stop() is None
    (slow,) = [record.fields for record in caplog.records if record.message == "opening_is_slow"]  # type: ignore[attr-defined]
    assert "kafka.session_timeout" in slow["next_step"]


@pytest.mark.parametrize("place", ["log", "replay"])
def test_a_worker_is_stopped_while_a_lane_is_opened(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It does not wait for the lane, and the next one finds nothing lost and nothing half made."""
    app = App(apache_kafka, tmp_path, unique("app"), store="kafka").create_topics()
    values = events(100)
    app.produce(values[:60])
    with Inside(app) as before:
        app.await_scores({0: 60}, before, committed=True)
    app.produce(values[60:])
    reached = threading.Event()

    async def hold(*_: Any, **__: Any) -> Any:
        reached.set()
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patch:
        patch.setattr(*((TopicLane, "read") if place == "log" else (Opener, "_replay")), hold)
        with Inside(app) as stopped:
            wait_for("an opening that lasts", reached.is_set)
            assert stopped.stop() is None
    with Inside(app) as after:
        assert len(app.await_scores({0: 100}, after, committed=True)) == 100
        assert after.stop() is None
    assert app.position() == 100
    assert same(app.snapshot(), app.reference(values)[1])
