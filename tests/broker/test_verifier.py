"""Exactly once, whatever dies: outputs, state, offsets and account after every fault are those without it.

`make test` runs what is marked as short, on one version of Kafka; `make verify` runs all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata
from harness import support
from harness.apache_kafka import KafkaBroker, TwoBrokers
from harness.applications import PAIR_FTRL, PAIR_OGD, Inside
from harness.dying_worker import DIRECTORY, TOPIC
from harness.late_requests import API_KEYS, LateRequests
from harness.verifier import Evidence, Nursery, Trial, Worker, Wrong
from harness.worker_process import wait_for
from streampair_connectors.config import KafkaConfig, load_config
from streampair_connectors.kafka import Partition, group_members, write_register_offline
from streampair_connectors.kafka.log_topic import SETTINGS

from streampair.errors import PrivacyError, SnapshotError, StreampairError

MakeTrial = Callable[..., Trial]

pytestmark = pytest.mark.verifier


def killed_at(
    nursery: Nursery, trial: Trial, step: str, before: Evidence | None = None, **order: Any
) -> Evidence:
    """Let a worker run until it dies at a step; what the broker says then."""
    with nursery.start(trial.app, step=step, **order) as worker:
        code = worker.end()
    assert code == -signal.SIGKILL, f"{step}: it ended with {code}\n{worker.log()}"
    assert worker.said("trap"), f"{step}: it died elsewhere\n{worker.log()}"
    trial.kills += 1
    return trial.look(before)


@contextlib.contextmanager
def stopped_at(nursery: Nursery, trial: Trial, step: str, **order: Any) -> Iterator[Worker]:
    """A worker that stands still at a step."""
    with nursery.start(trial.app, step=step, action="stop", **order) as worker:
        worker.await_log("trap")
        yield worker


def finish(nursery: Nursery, trial: Trial, fault: str, *, by_outputs: bool = False, **order: Any) -> Evidence:
    """Let a worker do the rest in peace, and hold everything against the reference."""
    with nursery.start(trial.app, **order) as worker:
        worker.await_log("lane_opened")
        trial.await_done(worker)
        assert worker.stop() == 0, worker.log()
    return trial.verify(fault, by_outputs=by_outputs)


def refusal(trial: Trial) -> StreampairError:
    """What a worker says that refuses to start; nothing of the store or the group has changed."""
    before, files = trial.evidence(), contents(trial)
    with Inside(trial.app) as worker:
        error = worker.end()
    assert isinstance(error, StreampairError), error
    after = trial.evidence()
    assert (after.offsets, after.entries, after.scores) == (before.offsets, before.entries, before.scores)
    assert contents(trial) == files
    return error


def contents(trial: Trial) -> dict[str, bytes]:
    """The files of the directory store."""
    if not trial.app.state.exists():
        return {}
    return {file.name: file.read_bytes() for file in trial.app.state.iterdir() if file.suffix != ".lock"}


# ---- kills ---------------------------------------------------------------------------------------


@pytest.mark.verifier(short=True)
def test_killed_at_every_step(trial: MakeTrial, nursery: Nursery, store: str) -> None:
    """One application, of three partitions, dies at one step after the other."""
    one = trial()
    steps = TOPIC if store == "kafka" else DIRECTORY
    coin = random.Random(store)
    one.feed(30)
    found: Evidence | None = None
    for step in (s for s in steps if not s.startswith("start 5")):
        one.feed(20)
        # Snapshots at every commit where one is to die over them.
        often = "snapshot" in step or "log " in step or "anew" in step or "trimmed" in step
        count = coin.randint(1, 3) if steps[step].at_work and not often else 1
        found = killed_at(nursery, one, step, found, count=count, snapshot_seconds=0 if often else None)
    for step in (s for s in steps if s.startswith("start 5")):
        one.feed(60)
        # What is replayed at a start was committed after a snapshot.
        found = killed_at(nursery, one, "commit 6: not published", found, count=3, snapshot_seconds=math.inf)
        found = killed_at(nursery, one, step, found)
    finish(nursery, one, "killed at every step")


@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_killed_at_any_time(trial: MakeTrial, nursery: Nursery, store: str, learner: str) -> None:
    one = trial(partitions=3, learner=learner)
    coin = random.Random(f"{store} {learner}")
    found: Evidence | None = None
    for _ in range(5):
        one.feed(100)
        snapshots = coin.choice([0, None])
        with nursery.start(one.app, snapshot_seconds=snapshots, pause=0.001) as worker:
            worker.await_log("lane_opened")
            worker.wait(coin.random())
            worker.kill()
        one.kills += 1
        found = one.look(found)
    finish(nursery, one, "killed at any time")


# ---- checks that cannot fail check nothing -------------------------------------------------------


MUTANTS = {
    # what is broken: store, learner, where it is killed, at which time
    "offsets before outputs": ("kafka", PAIR_FTRL, "commit 2: begun", 3),
    "outputs outside of the transaction": ("kafka", PAIR_FTRL, "commit 2: begun", 2),
    "no replay": ("both", PAIR_OGD, "commit 6: not published", 3),
    "no line before a release": ("directory", PAIR_FTRL, "commit 1: line torn", 1),
    "no flush": ("directory", PAIR_OGD, "commit 6: not published", 2),
}


@pytest.mark.verifier(short=True)
def test_mutants_are_caught(trial: MakeTrial, nursery: Nursery, store: str) -> None:
    caught = {}
    for broken, (where, learner, step, count) in MUTANTS.items():
        if where not in (store, "both"):
            continue
        one = trial(learner=learner)
        one.feed(200)
        try:
            # Without a snapshot that a slow machine makes due, there is something to replay.
            seconds = math.inf if broken == "no replay" else None
            killed_at(nursery, one, step, count=count, broken=broken, snapshot_seconds=seconds)
            finish(nursery, one, f"mutant: {broken}", broken=broken)
        except Wrong as wrong:
            caught[broken] = str(wrong)
    expected = {
        "offsets before outputs": "offsets with a score|dead letters",
        "outputs outside of the transaction": "committed twice",
        "no replay": "the state differs|another score",
        "no line before a release": "the register knows",
        "no flush": "offsets with a score|dead letters",
    }
    assert caught.keys() == {broken for broken, (where, *_) in MUTANTS.items() if where in (store, "both")}
    for broken, said in caught.items():
        assert re.search(expected[broken], said), f"{broken}: {said}"


# ---- workers that stand still --------------------------------------------------------------------


@pytest.mark.verifier(store="kafka")
def test_a_zombie_commits_nothing(trial: MakeTrial, nursery: Nursery) -> None:
    """It stands still in the middle of a commit, another takes over, it goes on."""
    one = trial(instance=None)
    found: Evidence | None = None
    for step in ("commit 1: line not sent", "commit 3: sends answered", "commit 4: offsets in"):
        one.feed(60)
        with stopped_at(nursery, one, step) as zombie, nursery.start(one.app) as other:
            one.await_done(other)
            found = one.look(found)
            zombie.signal(signal.SIGCONT)
            zombie.await_log("lane_fenced")
            now = one.look(found)
            assert (now.scores, now.dead, now.seen) == (found.scores, found.dead, found.seen)
            # The register may be another one: who took over commits when the zombie joins the group again.
            assert {p: offset for p, (offset, _) in now.offsets.items()} == {
                p: offset for p, (offset, _) in found.offsets.items()
            }
            one.feed(60)
            one.await_done(other, zombie)
            # It comes back as a member that says it has the topic, and the other one has it since later.
            assert sum('"lane_opened"' in s for s in zombie.lines) == 1
            assert zombie.stop() == 0, zombie.log()
            assert other.stop() == 0, other.log()
        found = one.look(found)
    one.verify("zombie")


@pytest.mark.verifier(store="kafka", short=True)
@pytest.mark.parametrize(
    "step", ["commit 1: line not sent", "commit 3: sends answered", "commit 4: offsets in"]
)
def test_a_member_that_works_on_with_what_was_revoked_commits_nothing(
    trial: MakeTrial, nursery: Nursery, step: str
) -> None:
    """It is a member of the group's generation, so that no check of the generation would keep it off."""
    one = trial(instance=None)
    one.feed(60)
    revoked = {"step": step, "action": "hold", "broken": "keeps what was revoked"}
    with nursery.start(one.app, **revoked) as zombie:
        zombie.await_log("trap")
        with nursery.start(one.app, broken="claims the topic") as other:
            one.await_done(other, zombie)
            assert asyncio.run(group_members(load_config(one.app.path).require_kafka(), one.app.name)) == 2
            found = one.look()
            zombie.signal(signal.SIGUSR1)
            zombie.await_log("lane_fenced")
            now = one.look(found)
            assert (now.scores, now.dead, now.seen) == (found.scores, found.dead, found.seen)
            assert (now.offsets, now.entries) == (found.offsets, found.entries)
            one.feed(60)
            one.await_done(other, zombie)
            assert zombie.stop() == 0, zombie.log()
            assert other.stop() == 0, other.log()
    one.verify(f"revoked, works on: {step}")


@pytest.mark.verifier(store="directory")
def test_nobody_takes_the_files_of_one_that_stands_still(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(instance=None)
    one.feed(60)
    with stopped_at(nursery, one, "commit 5: register not asked") as zombie:
        with nursery.start(one.app) as other:
            assert other.end() == 1
            assert "another process holds the state" in other.log()
        zombie.signal(signal.SIGCONT)
        one.await_done(zombie)
        assert zombie.stop() == 0, zombie.log()
    one.verify("zombie")


@pytest.mark.verifier(store="kafka")
def test_a_transaction_that_times_out(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(lasting='transaction_timeout = "5s"')
    one.feed(120)
    with stopped_at(nursery, one, "commit 4: offsets in", count=3) as worker:
        assert open_transaction(one)
        wait_for("the broker to abort it", lambda: not open_transaction(one), seconds=60)
        worker.signal(signal.SIGCONT)
        worker.await_log("lane_fenced")
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.verify("transaction timed out")


def open_transaction(trial: Trial) -> bool:
    """Whether a reader of what is committed waits for the end of a transaction."""

    async def ends(isolation: str) -> list[int]:
        log = load_config(trial.app.path).log_topic
        consumer = AIOKafkaConsumer(bootstrap_servers=trial.app.kafka.bootstrap, isolation_level=isolation)
        await consumer.start()
        try:
            found = await consumer.end_offsets([TopicPartition(t, 0) for t in (trial.app.output, log)])
            return list(found.values())
        finally:
            await consumer.stop()

    return asyncio.run(ends("read_committed")) != asyncio.run(ends("read_uncommitted"))


# ---- requests that arrive late --------------------------------------------------------------------


LATE = [
    pytest.param(
        name,
        marks=pytest.mark.verifier(
            store="kafka", short=True if name in ("EndTxn", "TxnOffsetCommit") else None
        ),
    )
    for name in API_KEYS
]


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("name", LATE)
def test_a_request_that_arrives_in_the_next_transaction(
    trial: MakeTrial, nursery: Nursery, stoppable_kafka: KafkaBroker, name: str, dies: bool
) -> None:
    """The worker sends a request again whose answer was lost. The first copy arrives later."""
    one = trial()
    plain = one.app.path.read_text()
    with LateRequests(stoppable_kafka.bootstrap) as proxy:
        one.app.path.write_text(plain.replace(stoppable_kafka.bootstrap, proxy.bootstrap))
        one.feed(60)
        at_start = name == "InitProducerId"
        if at_start:
            proxy.hold(name)
        with nursery.start(one.app) as worker:
            one.await_done(worker)
            if not at_start:
                proxy.hold(name)
                one.feed(60)
                one.await_done(worker)
            assert proxy.held_request == name
            proxy.deliver_before("EndTxn", worker.kill if dies else lambda: None)
            one.feed(60)
            wait_for("its late copy", lambda: proxy.answer is not None, explain=worker.log)
            if name == "EndTxn":
                assert proxy.error in (47, 90), "it is of an epoch that is over"
            assert at_start or worker.said("lane_fenced")
            if not dies:
                one.await_done(worker)
                assert worker.stop() == 0, worker.log()
        one.kills += dies
    one.app.path.write_text(plain)
    finish(nursery, one, f"late {name}")


# ---- the broker ----------------------------------------------------------------------------------


def test_the_broker_dies_in_the_middle_of_a_commit(
    trial: MakeTrial, nursery: Nursery, store: str, stoppable_kafka: KafkaBroker
) -> None:
    """With a transaction open, with its end asked for and not answered; with a register half written."""
    one = trial()
    steps = ("commit 4: offsets in", "commit 5: asked for")
    for step in steps if store == "kafka" else ("commit 5: register not asked",):
        one.feed(100)
        with stopped_at(nursery, one, step, count=2) as worker:
            stoppable_kafka.kill()
            stoppable_kafka.start()
            one.kills += 1
            worker.signal(signal.SIGCONT)
            one.await_done(worker)
            assert worker.stop() == 0, worker.log()
    finish(nursery, one, "broker killed in a commit")


def test_the_broker_dies_with_a_backlog_while_a_member_joins(
    stoppable_kafka: KafkaBroker, request: pytest.FixtureRequest
) -> None:
    """Two rounds of the kill loop, which compares the topics as another client reads them."""
    loop = [sys.executable, str(support.ROOT / "benchmarks" / "kill_loop.py"), "--rounds", "2"]
    loop += ["--events", "20000", "--kafka", request.node.callspec.params["kafka"]]
    done = subprocess.run(loop, capture_output=True, text=True, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20,000 events: 0 have no score, 0 have two" in done.stdout
    assert "the model has taken 20,000; forks charged: 0" in done.stdout


def test_a_register_that_cannot_be_read_is_asked_for_again(
    trial: MakeTrial, nursery: Nursery, store: str, stoppable_kafka: KafkaBroker
) -> None:
    one = trial(kafka_settings="")
    one.feed(100)
    found = killed_at(nursery, one, "commit 6: not published")
    files = contents(one)
    step = "start 1: fenced" if store == "kafka" else "start 1: locked"
    with stopped_at(nursery, one, step) as worker:
        stoppable_kafka.kill()
        worker.signal(signal.SIGCONT)
        worker.await_log("waiting")
        # None is not taken for an answer: no account was begun anew.
        assert contents(one) == files
        assert not worker.said("lane_opened")
        stoppable_kafka.start()
        one.kills += 1
        one.look(found)
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    finish(nursery, one, "register cannot be read")


@pytest.mark.verifier
def test_a_partition_has_no_leader_for_a_while(
    trial: MakeTrial, nursery: Nursery, two_brokers: TwoBrokers
) -> None:
    """The others wait for it, also in a worker that starts meanwhile; nothing is passed over."""
    one = trial(two_brokers)
    two_brokers.create_topic(load_config(one.app.path).log_topic, **SETTINGS)
    one.feed(60)
    two_brokers.second.kill()
    for p in (0, 1):
        one.feed(40, p)
    with nursery.start(one.app) as worker:
        worker.await_log("waiting")
        two_brokers.second.start()
        one.await_done(worker)
        two_brokers.second.kill()
        for p in (0, 1):
            one.feed(40, p)
        worker.await_log("partitions_hold_the_topic")
        two_brokers.second.start()
        one.feed(40)
        one.await_done(worker)
        two_brokers.second.kill()
        one.feed(40, 0)
        worker.kill()
    one.kills += 1
    found = one.look()
    two_brokers.second.start()
    one.feed(40, 2)
    found = killed_at(nursery, one, "commit 1: line durable", found)
    finish(nursery, one, "no leader")


# ---- several workers -----------------------------------------------------------------------------


def test_three_workers_are_restarted_one_after_the_other(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(partitions=3, instance=None)
    one.feed(60)
    workers = [nursery.start(one.app) for _ in range(3)]
    try:
        one.await_done(*workers)
        one.restart_each(nursery, workers, 40)
        one.await_done(*workers)
        one.feed(20)
        one.await_done(*workers)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.end() for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
    # Who stops last has opened what the others left, and may have been fenced between log and register.
    finish(nursery, one, "rolling restart")


def test_two_workers_with_one_static_id(trial: MakeTrial, nursery: Nursery) -> None:
    """They take the partition from each other until one is told to stop."""
    one = trial()
    one.feed(100)
    with nursery.start(one.app) as first, nursery.start(one.app) as second:

        def ended() -> list[Worker]:
            return [worker for worker in (first, second) if worker.code is not None]

        wait_for("one of them to stop", ended, seconds=90, explain=lambda: first.log() + second.log())
        (loser,) = ended()
        assert loser.code == 1, loser.log()
        # Who waits for a directory's lock may be fenced meanwhile: then the lock says it first.
        problem = ["two workers have the same kafka.group_instance_id"]
        problem += ["stop the other worker of this application"] * (one.app.store == "directory")
        assert any(text in loser.log() for text in problem), loser.log()
        winner = second if loser is first else first
        one.feed(100)
        one.await_done(winner)
        assert winner.stop() == 0, winner.log()
    one.verify("two workers with one id")


def test_a_learner_slower_than_the_group_allows(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(kafka_settings='max_poll_interval = "6s"')
    one.feed(250)
    with nursery.start(one.app, pause=0.05) as worker:
        worker.await_log("lane_opened")
        worker.wait(3.0)
        worker.kill()
    one.kills += 1
    one.look()
    finish(nursery, one, "slow learner", pause=0.04)


# ---- partitions that come, and records that go --------------------------------------------------


@pytest.mark.verifier
def test_partitions_are_added_in_mid_stream(trial: MakeTrial, nursery: Nursery) -> None:
    """While a worker runs, and while none does, with a kill in the first commit with them."""
    one = trial()
    one.feed(60)
    with nursery.start(one.app, watch_seconds=0.5) as worker:
        one.await_done(worker)
        one.add_partitions(2)
        one.feed(40)
        one.await_done(worker)
        worker.kill()
    one.kills += 1
    found = one.look()
    one.add_partitions(1)
    one.feed(40)
    # A static member is given what it had, without the new one, and nobody looks for it again in an hour.
    for step in ("commit 1: line durable", "commit 2: outputs sent"):
        found = killed_at(nursery, one, step, found, watch_seconds=3600)
    one.feed(20)
    finish(nursery, one, "partitions added", by_outputs=True)


@pytest.mark.verifier
@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_retention_overtakes_a_position(trial: MakeTrial, nursery: Nursery, learner: str) -> None:
    """Of one partition. The lane dies before the loss is committed, and before a snapshot holds it."""
    one = trial(learner=learner)
    one.feed(60)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    found = one.look()
    one.feed(60)
    one.lose(90, 1)
    for step in ("work: processed, nothing left", "commit 2: outputs sent", "commit 6: not published"):
        found = killed_at(nursery, one, step, found, snapshot_seconds=math.inf)
    one.feed(20)
    finish(nursery, one, "retention", by_outputs=True)


# ---- disks ---------------------------------------------------------------------------------------


@pytest.mark.verifier(store="directory")
def test_the_disk_is_full(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial()
    one.feed(400)
    with nursery.start(one.app, step="commit 2: outputs sent", action="full") as worker:
        assert worker.end() == 1
        assert "cannot be written: File too large" in worker.log()
        assert "free space" in worker.log()
    one.look()
    finish(nursery, one, "disk full")


@pytest.mark.verifier(short=True, store="directory")
def test_a_log_that_is_not_what_it_was_is_refused(trial: MakeTrial, nursery: Nursery) -> None:
    """Put back, cut, flipped, lost. Nothing is written, and with the right one it goes on."""
    one = trial(instance=None)
    one.feed(80)
    killed_at(nursery, one, "commit 6: not published", count=2)
    old = contents(one)
    one.feed(80)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        worker.kill()
    one.kills += 1
    new = contents(one)
    (name,) = [name for name in new if name.endswith(".log")]
    log = new[name]
    lies: dict[str, tuple[dict[str, bytes], str]] = {
        "an old one": (old, "the log is older than what was released"),
        "cut": ({**new, name: log[: len(log) * 2 // 3]}, "the log is older than what was released"),
        "flipped": ({**new, name: log[:-50] + bytes([log[-50] ^ 4]) + log[-49:]}, "the log is damaged"),
        "lost": ({n: data for n, data in new.items() if n != name}, "no log of this lane"),
    }
    for lie, (files, problem) in lies.items():
        put(one, files)
        error = refusal(one)
        assert problem in str(error), lie
        assert isinstance(error, PrivacyError | SnapshotError), lie
    put(one, new)
    finish(nursery, one, "damaged logs")


@pytest.mark.verifier(store="kafka")
def test_a_log_topic_that_is_gone_is_refused(trial: MakeTrial, nursery: Nursery) -> None:
    one = trial(instance=None)
    one.feed(80)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0
    asyncio.run(delete_topics(one, load_config(one.app.path).log_topic))
    with Inside(one.app) as last:
        error = last.end()
    assert isinstance(error, PrivacyError)
    assert "no log of this lane" in str(error)
    assert not one.evidence().entries


def put(trial: Trial, files: dict[str, bytes]) -> None:
    """Put other files in the place of the store's."""
    for file in trial.app.state.iterdir():
        if file.suffix != ".lock":
            file.unlink()
    for name, data in files.items():
        (trial.app.state / name).write_bytes(data)
        (trial.app.state / name).chmod(0o600)


# ---- operators -----------------------------------------------------------------------------------


def test_what_an_operator_does_to_the_group_is_named(
    trial: MakeTrial, nursery: Nursery, stoppable_kafka: KafkaBroker
) -> None:
    """Offsets that have expired, were wiped by a plain commit, or were reset by Kafka's own tool."""
    one = trial(instance=None)
    one.feed(60)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0
    config = KafkaConfig(bootstrap_servers=stoppable_kafka.bootstrap)
    committed = {Partition(one.app.input, p): found for p, found in one.offsets().items()}

    def tool(*arguments: str) -> None:
        stoppable_kafka.tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            [
                *("--bootstrap-server", stoppable_kafka.bootstrap, "--group", one.app.name),
                *arguments,
            ],
        )

    def expire() -> None:
        tool("--delete")

    def wipe() -> None:
        asyncio.run(commit_plainly(one, 0))

    def reset() -> None:
        tool("--topic", one.app.input, "--reset-offsets", "--to-earliest", "--execute")

    for act, problem in (
        (expire, "the group's offsets have expired"),
        (wipe, "has no register"),
        (reset, "a tool has reset the offset"),
    ):
        act()
        error = refusal(one)
        assert isinstance(error, PrivacyError)
        assert problem in str(error)
        assert "state recover" in str(error)
        asyncio.run(write_register_offline(config, one.app.name, committed))
    one.feed(60)
    finish(nursery, one, "offsets expired, wiped, reset")


async def commit_plainly(trial: Trial, partition: int) -> None:
    """Commit the offset of a partition without the text beside it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=trial.app.kafka.bootstrap, group_id=trial.app.name, enable_auto_commit=False
    )
    await consumer.start()
    try:
        tp = TopicPartition(trial.app.input, partition)
        consumer.assign([tp])
        await consumer.commit({tp: OffsetAndMetadata(len(trial.values[partition]), "")})
    finally:
        await consumer.stop()


async def delete_topics(trial: Trial, *names: str, make: int = 0) -> None:
    """Delete topics, and make them again with so many partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=trial.app.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(list(names))
        async with asyncio.timeout(30):
            while set(names) & set(await admin.list_topics()):  # noqa: ASYNC110  # a broker's
                await asyncio.sleep(0.05)
        if make:
            await admin.create_topics([NewTopic(name, make, 1) for name in names])
            async with asyncio.timeout(30):
                while not set(names) <= set(await admin.list_topics()):  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.05)
    finally:
        await admin.close()


@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_a_topic_that_was_made_again_is_refused(trial: MakeTrial, nursery: Nursery, learner: str) -> None:
    one = trial(instance=None, learner=learner)
    one.feed(60)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0
    asyncio.run(delete_topics(one, one.app.input, make=one.app.partitions))
    one.feed(80)
    error = refusal(one)
    problem = "or the group or the topic was deleted" if learner == PAIR_FTRL else "the topic was deleted"
    assert problem in str(error)


# ---- other processors ----------------------------------------------------------------------------

PROCESSORS = {
    "BLAS of an old one": {"OPENBLAS_CORETYPE": "Prescott"},
    "numpy without vectors": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    "kernels for any": {"NUMBA_CPU_NAME": "generic"},
}


@pytest.mark.verifier(store="kafka")
def test_a_lane_goes_on_under_another_processor(trial: MakeTrial, nursery: Nursery, tmp_path: Path) -> None:
    """What one has learned the next one replays: digests and scores are equal, and nothing is charged."""
    one = trial()
    found: Evidence | None = None
    for name, env in PROCESSORS.items():
        one.feed(150)
        found = killed_at(nursery, one, "commit 6: not published", found, count=2)
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        other = Nursery(directory, env)
        try:
            found = killed_at(other, one, "commit 6: not published", found, count=2)
        finally:
            other.close()
    finish(nursery, one, "another processor")
