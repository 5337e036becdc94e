"""Scorers: each event has one score of a published model, whatever dies, and the learner goes its own way."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.admin import with_admin
from harness.apache_kafka import KafkaBroker
from harness.applications import PAIR_OGD, App, Inside, Running, ends, events, read_until, spread
from harness.dying_worker import DIRECTORY, MODELS, SCORER, TOPIC
from harness.kafka import Cluster
from harness.late_requests import LateRequests
from harness.verifier import Nursery, ParallelTrial, topic_in_order
from harness.worker_process import wait_for
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import KafkaConfig, load_config
from streampair_connectors.kafka import Consumer, Member, Partition, TransactionalProducer
from streampair_connectors.worker.factory import build_lane
from streampair_connectors.worker.model_topic import PublishedModel

from streampair.errors import ConfigError, FencedError, SourceError

Unique = Callable[[str], str]
PARTITIONS = 4


def make(kafka: Cluster, name: str, directory: Path, store: str, *, learner: str = PAIR_OGD) -> App:
    parallel = f'scoring = "parallel"\n{learner}'
    made = App(kafka, directory, name, partitions=PARTITIONS, learner=parallel, store=store)
    return made.create_topics(message_timestamp_type="LogAppendTime")


@pytest.fixture
def app(apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    return make(apache_kafka, unique("app"), tmp_path, store)


def newest_model(app: App) -> PublishedModel:
    found = app.published()
    assert found is not None
    return found


def check(app: App, rows: list[dict[str, Any]], count: int) -> None:
    """Every event has exactly one score, and its model had learned no more than there was."""
    places = [(row["partition"], row["offset"]) for row in rows]
    assert len(places) == len(set(places)) == count
    assert all(0 <= row["model_slots"] <= count for row in rows)


def test_each_event_is_scored_once_by_a_published_model(app: App) -> None:
    values = events(400)
    spread(app, values[:200], PARTITIONS)
    with Running(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker, committed=True)
        wait_for("a model of 200 events", lambda: newest_model(app).model.slots == 200, explain=worker.log)
        spread(app, values[200:], PARTITIONS)
        rows = app.await_scores(ends(400, PARTITIONS), worker, committed=True)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 400)
    late = [row for row in rows if row["offset"] >= 50]
    assert all(row["model_slots"] >= 200 for row in late)
    # The model of 200 events is that of an uninterrupted lane, and its scores have the same bits.
    config = load_config(app.path)
    lane = build_lane(config, json_decoder(config.input))
    records = asyncio.run(topic_in_order(app))
    lane.process(records[:200])
    model = {(r.partition, r.position): r for r in records}  # type: ignore[attr-defined]
    decode = json_decoder(config.input)
    first = [row for row in late if row["model_slots"] == 200]
    assert first
    for row in first:
        assert row["score"] == lane.learner.score_one(decode(model[row["partition"], row["offset"]]).x)


def test_kill_9_loses_and_repeats_no_score(app: App) -> None:
    values = events(900)
    spread(app, values[:300], PARTITIONS)
    worker = Running(app)
    app.await_scores(dict.fromkeys(range(PARTITIONS), 20), worker, committed=True)
    worker.kill()
    spread(app, values[300:600], PARTITIONS)
    with Running(app) as worker:
        app.await_scores(dict.fromkeys(range(PARTITIONS), 100), worker, committed=True)
        worker.kill()
    spread(app, values[600:], PARTITIONS)
    with Running(app) as worker:
        rows = app.await_scores(ends(900, PARTITIONS), worker, committed=True)
        wait_for("a model of 900 events", lambda: newest_model(app).model.slots == 900, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 900)


def test_scores_go_on_while_the_learner_is_away(app: App) -> None:
    """Two scorers and a learner, each in a process of its own; the learner dies, and one scorer too."""
    values = events(1200)
    spread(app, values[:300], PARTITIONS)
    learner, one, two = Running(app.role("learn")), Running(app.role("score")), Running(app.role("score"))
    try:
        app.await_scores(ends(300, PARTITIONS), one, committed=True)
        wait_for("a model of 300 events", lambda: newest_model(app).model.slots == 300, explain=learner.log)
        learner.kill()
        spread(app, values[300:600], PARTITIONS)
        rows = app.await_scores(ends(600, PARTITIONS), one, committed=True)
        assert max(row["model_slots"] for row in rows) == 300
        two.kill()
        spread(app, values[600:900], PARTITIONS)
        app.await_scores(ends(900, PARTITIONS), one, committed=True)
        learner = Running(app.role("learn"))
        wait_for("a model of 900 events", lambda: newest_model(app).model.slots == 900, explain=learner.log)
        spread(app, values[900:], PARTITIONS)
        rows = app.await_scores(ends(1200, PARTITIONS), one, committed=True)
        assert one.stop() == learner.stop() == 0, one.log() + learner.log()
    finally:
        for worker in (learner, one, two):
            worker.kill()
    check(app, rows, 1200)
    assert max(row["model_slots"] for row in rows) >= 900


def test_dead_letters_have_one_sender(app: App) -> None:
    """Scorers send those of decoding and features, the lane those of labels. Each event has one outcome."""
    good = events(40)
    bad: list[bytes | None] = [
        b"oops",
        good[0].replace(b'"y": ', b'"y": "what", "old": '),
        None,
        b'{"f0": [1], "y": true}',
    ]
    spread(app, [*good, *bad], PARTITIONS)
    with Running(app) as worker:
        rows = app.await_scores(ends(44, PARTITIONS), worker, committed=True)
        letters = app.await_dead_letters(3)
        wait_for("a model of all", lambda: newest_model(app).model.slots == 44, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 44)
    outcomes = sorted(row["outcome"] for row in rows if row["offset"] == 10)
    assert outcomes == ["dead_letter", "dead_letter", "dead_letter", "tombstone"]
    letters = asyncio.run(read_until(app.kafka.bootstrap, app.dead, lambda rows: len(rows) >= 3))
    stages = sorted(dict(letter.headers)["streampair.stage"].decode() for letter in letters)
    assert stages == ["decode", "features", "label"]


# ---- the group ------------------------------------------------------------------------------------


async def test_the_broker_compares_generations_of_members_with_a_name(
    apache_kafka: Cluster, unique: Unique
) -> None:
    """Not assignments; and it takes the offsets of a member without a name, whoever the members are."""
    topic, other = apache_kafka.create_topic(unique("in")), apache_kafka.create_topic(unique("other"))
    group, config = unique("group"), KafkaConfig(bootstrap_servers=apache_kafka.bootstrap)

    async def nothing(partitions: list[Partition]) -> None:
        pass

    async def commits(member: Member, source: Partition) -> bool:
        producer = TransactionalProducer(
            config, unique("id"), name="a scorer", max_message_bytes=900_000, group=group
        )
        try:
            await producer.start()
            await producer.transaction([], offsets={source: (0, "")}, member=member)
        except FencedError:
            return False
        finally:
            await producer.stop()
        return True

    consumer = Consumer(config, topic, group, on_revoked=nothing, on_assigned=nothing, on_lost=print)
    await consumer.start()
    try:
        async with asyncio.timeout(30):
            while consumer.member.generation < 0 or not await commits(consumer.member, Partition(topic, 0)):
                await consumer.poll(None, 0.1)
        member, partition = consumer.member, Partition(topic, 0)
        assert not await commits(member._replace(generation=member.generation - 1), partition)
        assert not await commits(member._replace(generation=member.generation + 1), partition)
        assert not await commits(member._replace(member_id="another"), partition)
        assert await commits(member, Partition(other, 0)), "scorers must know what is theirs"
        assert await commits(Member(-1, ""), partition), "scorers must never commit as nobody"
    finally:
        await consumer.stop()


# ---- the way to parallel scoring, and the model topic ---------------------------------------------


def test_scorers_begin_where_inline_scoring_has_ended_and_there_is_no_way_back(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app, values = make(apache_kafka, unique("app"), tmp_path, "kafka"), events(400)
    parallel = app.path.read_text()
    inline = parallel.replace('scoring = "parallel"\n', "")
    app.path.write_text(inline)
    spread(app, values[:200], PARTITIONS)
    with Inside(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker, committed=True)
        assert worker.stop() is None
    spread(app, values[200:300], PARTITIONS)
    app.path.write_text(parallel)
    with Inside(app) as worker:
        app.await_scores(ends(300, PARTITIONS), worker, committed=True)
        spread(app, values[300:], PARTITIONS)
        rows = app.await_scores(ends(400, PARTITIONS), worker, committed=True)
        assert worker.stop() is None
    places = {(row["partition"], row["offset"]): row.get("model_slots") for row in rows}
    assert len(rows) == len(places) == 400
    assert all((slots is None) == (offset < 50) for (_, offset), slots in places.items())
    assert min(slots for slots in places.values() if slots is not None) >= 200
    app.path.write_text(inline)
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, ConfigError)
    assert "are given by the group" in str(error)


@pytest.mark.verifier
def test_a_model_topic_that_is_deleted_is_made_again(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Under the worker: scores go on with the model that there is, then with those of the new topic."""
    app, values = make(apache_kafka, unique("app"), tmp_path, "kafka"), events(600)
    text = app.path.read_text()
    app.path.write_text(text.replace("[store]\n", '[store]\ntransaction_timeout = "5s"\n'))
    spread(app, values[:200], PARTITIONS)
    model_topic = load_config(app.path).model_topic
    assert model_topic is not None
    with Inside(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker, committed=True)
        asyncio.run(with_admin(app.kafka, lambda admin: admin.delete_topics([model_topic])))
        spread(app, values[200:400], PARTITIONS)
        app.await_scores(ends(400, PARTITIONS), worker, committed=True)
        wait_for("a model of 400 events", lambda: has_model(app, 400), seconds=60)
        spread(app, values[400:], PARTITIONS)
        rows = app.await_scores(ends(600, PARTITIONS), worker, committed=True)
        wait_for("a model of 600 events", lambda: has_model(app, 600), seconds=60)
        assert worker.stop() is None
    check(app, rows, 600)
    assert max(row["model_slots"] for row in rows) >= 400


def has_model(app: App, slots: int) -> bool:
    """Whether the newest model is of so many records; none may be there."""
    try:
        return newest_model(app).model.slots == slots
    except (AssertionError, SourceError):
        return False


# ---- whatever dies, and requests that come late ---------------------------------------------------


@pytest.fixture
def parallel(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path, store: str
) -> Callable[..., ParallelTrial]:
    """Makes applications with a learner and scorers, of three partitions."""

    def make(**options: Any) -> ParallelTrial:
        name = unique("app")
        (tmp_path / name).mkdir()
        return ParallelTrial(
            stoppable_kafka, tmp_path / name, name, store=store, **{"partitions": 3, **options}
        )

    return make


MakeParallel = Callable[..., ParallelTrial]


def die(nursery: Nursery, one: ParallelTrial, app: App, step: str, **order: Any) -> None:
    with nursery.start(app, step=step, **order) as worker:
        code = worker.end()
    assert code == -signal.SIGKILL, f"{step}: it ended with {code}\n{worker.log()}"
    assert worker.said("trap"), f"{step}: it died elsewhere\n{worker.log()}"
    one.kills += 1


@pytest.mark.verifier(short=True, store="kafka")
def test_a_scorer_is_killed_at_every_step(parallel: MakeParallel, nursery: Nursery) -> None:
    """The learner goes on; each scorer dies at another step of its work, early or late."""
    one, coin, found = parallel(), random.Random(1), None
    one.feed(30)
    with nursery.start(one.learner) as learner:
        for step in SCORER:
            one.feed(12)
            first = step.startswith(("scorer 1", "scorer 2", "scorer 3"))
            # The first transaction names the offsets, the next one has the first records.
            die(nursery, one, one.scorer, step, count=1 if first else coin.randint(1, 2))
            found = one.look(found)
        with nursery.start(one.scorer) as scorer:
            one.await_done(scorer, learner)
            assert scorer.stop() == 0, scorer.log()
        assert learner.stop() == 0, learner.log()
    one.verify("a scorer is killed at every step")


@pytest.mark.verifier
def test_a_learner_is_killed_at_every_step(parallel: MakeParallel, nursery: Nursery, store: str) -> None:
    """One scorer goes on."""
    one, coin, found = parallel(learner=PAIR_OGD), random.Random(store), None
    steps = {**(TOPIC if store == "kafka" else DIRECTORY), **MODELS}
    one.feed(30)
    with nursery.start(one.scorer) as scorer:
        for step in (s for s in steps if not s.startswith("start 5") and "torn" not in s and "half" not in s):
            one.feed(20)
            often = "snapshot" in step or "anew" in step or "trimmed" in step
            count = coin.randint(1, 3) if steps[step].at_work and not often else 1
            if "line" in step:
                continue  # of private learners
            die(nursery, one, one.learner, step, count=count, snapshot_seconds=0 if often else None)
            found = one.look(found)
        with nursery.start(one.learner) as learner:
            one.await_done(scorer, learner)
            assert learner.stop() == 0, learner.log()
        assert scorer.stop() == 0, scorer.log()
    one.verify("a learner is killed at every step")


@pytest.mark.verifier(store="kafka")
def test_both_roles_are_killed_at_any_time(parallel: MakeParallel, nursery: Nursery) -> None:
    one, coin, found = parallel(), random.Random(2), None
    for _ in range(4):
        one.feed(80)
        with nursery.start(one.app, pause=0.001) as worker:
            worker.await_log("lane_opened")
            worker.wait(coin.random())
            worker.kill()
        one.kills += 1
        found = one.look(found)
    with nursery.start(one.app) as worker:
        one.await_done(worker)
        assert worker.stop() == 0, worker.log()
    one.verify("killed at any time")


@pytest.mark.verifier(store="kafka")
def test_a_frozen_scorer_wakes_when_its_partitions_are_anothers(
    parallel: MakeParallel, nursery: Nursery
) -> None:
    one, found = parallel(instance=None, learner=PAIR_OGD), None
    one.feed(30)
    with nursery.start(one.learner) as learner:
        for step in ("scorer 4: polled", "scorer 5: sends answered", "scorer 5: offsets in"):
            one.feed(20)
            with nursery.start(one.scorer, step=step, action="stop", count=2) as zombie:
                zombie.await_log("trap")
                with nursery.start(one.scorer) as other:
                    one.await_done(other, learner)
                    found = one.look(found)
                    zombie.signal(signal.SIGCONT)
                    one.feed(40)
                    one.await_done(other, zombie, learner)
                    found = one.look(found)
                    assert zombie.stop() == other.stop() == 0, zombie.log()
        assert learner.stop() == 0, learner.log()
    one.verify("a frozen scorer")


@pytest.mark.verifier(store="kafka", short=True)
@pytest.mark.parametrize("name", ["AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"])
def test_a_request_of_a_scorer_that_arrives_in_its_next_transaction(
    parallel: MakeParallel, nursery: Nursery, stoppable_kafka: KafkaBroker, name: str
) -> None:
    one = parallel(learner=PAIR_OGD)
    text = one.scorer.path.read_text()
    with LateRequests(stoppable_kafka.bootstrap) as proxy, nursery.start(one.learner) as learner:
        one.scorer.path.write_text(text.replace(stoppable_kafka.bootstrap, proxy.bootstrap))
        one.feed(30)
        with nursery.start(one.scorer) as scorer:
            one.await_done(scorer, learner)
            proxy.hold(name)
            one.feed(30)
            one.await_done(scorer, learner)
            assert proxy.held_request == name
            proxy.deliver_before("EndTxn")
            one.feed(30)
            wait_for("its late copy", lambda: proxy.answer is not None, explain=scorer.log)
            one.await_done(scorer, learner)
            assert scorer.stop() == learner.stop() == 0, scorer.log()
    one.verify(f"late {name} of a scorer")


@pytest.mark.verifier(store="kafka")
def test_the_broker_dies_in_a_transaction_of_a_scorer(
    parallel: MakeParallel, nursery: Nursery, stoppable_kafka: KafkaBroker
) -> None:
    one = parallel(learner=PAIR_OGD)
    for step in ("scorer 5: offsets in", "scorer 5: asked for"):
        one.feed(40)
        with (
            nursery.start(one.learner) as learner,
            nursery.start(one.scorer, step=step, action="stop", count=2) as scorer,
        ):
            scorer.await_log("trap")
            stoppable_kafka.kill()
            stoppable_kafka.start()
            one.kills += 1
            scorer.signal(signal.SIGCONT)
            one.await_done(scorer, learner)
            assert scorer.stop() == learner.stop() == 0, scorer.log()
    # A learner that is stopped while it opens its lane again leaves its last events to a replay.
    with nursery.start(one.learner) as learner:
        learner.await_log("lane_opened")
        assert learner.stop() == 0, learner.log()
    one.verify("the broker dies in a transaction of a scorer")


@pytest.mark.verifier(store="kafka")
def test_three_workers_are_restarted_and_partitions_are_added(
    parallel: MakeParallel, nursery: Nursery
) -> None:
    one = parallel(instance=None, learner=PAIR_OGD)
    one.feed(40)
    workers = [nursery.start(one.app) for _ in range(3)]
    try:
        one.await_done(*workers)
        one.restart_each(nursery, workers, 20)
        one.add_partitions(2)
        one.feed(20)
        one.await_done(*workers)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.end() for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
    one.verify("rolling restart, partitions added")


def test_offsets_that_kafka_has_forgotten_are_refused(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path
) -> None:
    """Without them each event would get a second score: the newest model says up to where they were."""
    app = make(stoppable_kafka, unique("app"), tmp_path, "kafka")
    spread(app, events(80), PARTITIONS)
    every = ends(80, PARTITIONS)
    with Inside(app) as worker:
        rows = app.await_scores(every, committed=True)
        # No record comes: the model is published again.
        wait_for(
            "a model that says up to where scores are", lambda: sum(newest_model(app).scored.values()) >= 80
        )
        assert worker.stop() is None
    group = load_config(app.path).scorers_group
    stoppable_kafka.tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        ["--bootstrap-server", stoppable_kafka.bootstrap, "--delete", "--group", group],
    )
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, SourceError)
    assert "the offsets have expired" in str(error)
    assert f"--topic {app.input}:0 --to-offset" in error.fix
    assert len(app.await_scores(every, committed=True)) == len(rows) == 80
