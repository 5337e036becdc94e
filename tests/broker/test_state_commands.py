"""`streampair state`: what is refused can be accepted, at its price; and a state moves between stores."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from harness import support
from harness.applications import PAIR_OGD, App, Inside, Running, events, same, scores_by_offset
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app as command
from streampair_connectors.config import KafkaConfig, load_config
from streampair_connectors.kafka import (
    LogTopic,
    Partition,
    TransactionalProducer,
    describe_topics,
    group_members,
    read_register,
    transactional_id,
    write_register_offline,
)
from streampair_connectors.stores.state import open_states
from typer.testing import CliRunner

from streampair.engine import UnusableLogError
from streampair.engine.lane_id import WHOLE_TOPIC
from streampair.errors import StoreError, StreampairError

Unique = Callable[[str], str]

PRIVATE = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 1.0, delta = 1e-4, horizon = 1000, warmup = 0, window = 20, forks = 60 }"
)


def call(*arguments: object, code: int = 0) -> Any:
    """What a command says, as JSON."""
    result = CliRunner().invoke(command, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1])


def nobody(app: App) -> None:
    """Wait until the group has forgotten a worker that was killed."""
    config = KafkaConfig(bootstrap_servers=app.kafka.bootstrap)
    wait_for("an empty group", lambda: asyncio.run(group_members(config, app.name)) == 0)


def run(app: App, offsets: int) -> str:
    """Work up to an offset and stop; the metrics at the end."""
    with Inside(app) as worker:
        app.await_scores({0: offsets}, worker)
        wait_for("the last commit", lambda: worker.lag() == 0)
        said = worker.metrics()
        assert worker.stop() is None
    return said


def refused(app: App) -> StreampairError:
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, StreampairError)
    return error


def killed(app: App, count: int) -> None:
    """Work on some events, and die with commits behind the last snapshot."""
    worker = Running(app)
    app.await_scores({0: count}, worker)
    worker.kill()
    nobody(app)
    if app.store == "kafka":
        asyncio.run(take_over(app))


async def take_over(app: App) -> None:
    """What the worker had open when it died is undecided until somebody takes its place."""
    owner = TransactionalProducer(
        load_config(app.path).require_kafka(),
        transactional_id(app.name, app.input, WHOLE_TOPIC),
        name=app.input,
        max_message_bytes=900_000,
    )
    await owner.start()
    await owner.stop()


# ---- storage that lies


def forget_register(app: App) -> None:
    config = load_config(app.path)
    partition = Partition(app.input, 0)

    async def body() -> None:
        found = (await read_register(config.require_kafka(), app.name, [partition]))[partition]
        assert found is not None
        await write_register_offline(config.require_kafka(), app.name, {partition: (found.offset, "")})

    asyncio.run(body())


def copy_of(app: App) -> Any:
    """The store, as a backup has it."""
    if app.store == "directory":
        copy = app.state.with_name("backup")
        shutil.copytree(app.state, copy)
        return copy
    config = load_config(app.path)
    return asyncio.run(LogTopic(config.require_kafka(), config.log_topic).read())


async def delete(app: App, topic: str, before: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=app.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()


async def send(app: App, records: list[Any]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=app.kafka.bootstrap) as producer:
        for _, key, value in records:
            await producer.send_and_wait(load_config(app.path).log_topic, value, key=key, partition=0)


def put_back(app: App, copy: Any) -> None:
    if app.store == "directory":
        shutil.rmtree(app.state)
        shutil.copytree(copy, app.state)
        return

    async def body() -> None:
        await delete(app, load_config(app.path).log_topic, -1)
        await send(app, copy)

    asyncio.run(body())


def damage(app: App) -> None:
    """The last entry but two is no longer what was written."""
    if app.store == "directory":
        (path,) = app.state.glob("*.log")
        data = bytearray(path.read_bytes())
        data[-len(data) // 8] ^= 1
        path.write_bytes(data)
        return
    records = copy_of(app)
    offset, key, value = records[-3]
    assert key == f"frame|{app.name}|{app.input}|{WHOLE_TOPIC}".encode()
    records[-3] = (offset, key, value[:-1] + bytes([value[-1] ^ 1]))
    put_back(app, records)


def forget_events(app: App) -> None:
    """Retention has passed over what would be replayed."""
    lane = call("state", "show", app.path)["lane"]
    assert lane["snapshot"]["offset"] < lane["offset"]
    asyncio.run(delete(app, app.input, lane["offset"]))


@pytest.fixture
def app(apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    app = App(apache_kafka, tmp_path, unique("app"), learner=PRIVATE, store=store)
    return app.create_topics()


@pytest.mark.parametrize("what", ["register", "rollback", "damage", "span"])
def test_what_is_refused_can_be_accepted_and_is_charged_and_reported(app: App, what: str) -> None:
    app.produce(events(100))
    if what == "rollback":
        run(app, 100)
        copy = copy_of(app)
        app.produce(events(50, seed=2))
        run(app, 150)
        put_back(app, copy)
    else:
        killed(app, 100)
        {"register": forget_register, "damage": damage, "span": forget_events}[what](app)
    option = {"register": "--ignore-register", "rollback": "--accept-rollback", "span": "--skip-span"}.get(
        what, "--accept-rollback"
    )
    error = refused(app)
    assert what == "damage" or option in str(error), error
    nobody(app)
    lane = call("state", "show", app.path)["lane"]
    assert lane["refused"] == error.problem
    other = "--accept-rollback" if what == "register" else "--ignore-register"
    call("state", "recover", app.path, other, "--yes", code=1)
    assert call("state", "recover", app.path, option, code=2)["fix"].endswith("add --yes")
    again = call("state", "show", app.path)["lane"]
    assert again == lane  # what was refused has written nothing
    done = call("state", "recover", app.path, option, "--yes")["recovered"]
    assert done["forks_charged"] >= {"rollback": 4}.get(what, 1)
    assert 0 < done["mu"][0] < done["mu"][1]
    assert done["epsilon"][0] < done["epsilon"][1] <= 1.0
    lane = call("state", "show", app.path)["lane"]
    assert (lane["refused"], lane["register"]) == (None, "agrees")
    app.produce(events(20, seed=3))
    said = run(app, 170 if what == "rollback" else 120)
    assert f"}} {float(done['forks'][1])}" in next(
        line for line in said.splitlines() if line.startswith("streampair_privacy_forks{")
    )
    (account,) = call("budget", "show", app.path)["accounts"]
    assert account["kind"] == "unvouched"
    assert done["report"] in account["guarantee"]
    assert account["forks"] == done["forks"][1]


def test_a_worker_that_runs_is_shown_and_left_alone(app: App) -> None:
    app.produce(events(60))
    with Inside(app) as worker:
        app.await_scores({0: 60}, worker)
        wait_for("the last commit", lambda: worker.lag() == 0)
        lane = call("state", "show", app.path)["lane"]
        assert lane["register"] in ("agrees", "older")
        assert (lane["offset"], lane["damage"]) == (60, None)
        output = call("state", "recover", app.path, "--ignore-register", "--yes", code=1)
        assert "has 1 member" in output["error"]
        call("state", "export", app.path, "--output", app.path.with_name("x.state"), code=1)
        app.produce(events(20, seed=2))
        app.await_scores({0: 80}, worker)
        assert worker.stop() is None
    output = call("state", "recover", app.path, "--ignore-register", "--yes", code=1)
    assert "the group's register is there" in output["error"]


@pytest.mark.parametrize("learner", [PAIR_OGD, PRIVATE], ids=["PairOGD", "PairFTRL"])
def test_a_state_moves_between_stores(
    apache_kafka: Cluster,
    unique: Unique,
    tmp_path: Path,
    learner: str,
) -> None:
    """From a directory to Kafka and back: as if it had never stopped, and no fork."""
    name, values = unique("app"), events(240)
    places = {}
    for place, store in (("first", "directory"), ("second", "kafka"), ("third", "directory")):
        (tmp_path / place).mkdir()
        options = {"learner": learner, "store": store}
        places[place] = App(apache_kafka, tmp_path / place, name, **options)
    first, second, third = places.values()
    # What was sealed in Kafka is opened with the same key, wherever it goes.
    keyed = third.path.read_text().replace("[store]", '[store]\nkey_file = "store.key"')
    third.path.write_text(keyed)
    first.create_topics()
    first.produce(values[:100])
    run(first, 100)
    killed_at = 160
    first.produce(values[100:killed_at])
    killed(first, killed_at)  # its lines and commits move with it
    if learner == PRIVATE:
        key = (first.state / f"{name}.noise-key").read_text().strip()
        (second.path.parent / "noise.key").write_text(key)
        third.state.mkdir(mode=0o700)
        shutil.copy(first.state / f"{name}.noise-key", third.state)
    file = tmp_path / "moved.state"
    call("state", "export", first.path, "--output", file)
    assert file.stat().st_mode & 0o777 == 0o600
    call("state", "export", first.path, "--output", file, code=1)  # nothing is written over
    before = call("state", "show", first.path)["lane"]
    call("state", "import", second.path, file)
    after = call("state", "show", second.path)["lane"]
    assert after == before
    assert "already" in call("state", "import", second.path, file, code=1)["error"]
    second.produce(values[killed_at:200])
    run(second, 200)
    assert "not the newest" in call("state", "import", third.path, file, code=1)["error"]
    back = tmp_path / "back.state"
    call("state", "export", second.path, "--output", back)
    call("state", "import", third.path, back)
    third.produce(values[200:])
    with Inside(third) as worker:
        rows = third.await_scores({0: 240}, worker)
        wait_for("the last commit", lambda: worker.lag() == 0)
        said = worker.metrics()
        assert worker.stop() is None
    assert all(len(scores) == 1 for scores in scores_by_offset(rows).values())
    if learner == PRIVATE:
        assert 'kind="holds",' in said
        (account,) = call("budget", "show", third.path)["accounts"]
        assert (account["kind"], account["forks"]) == ("holds", 0)
    else:
        expected, state = third.reference(values)
        assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(expected)}
        assert same(third.snapshot(), state)


def test_a_state_is_exported_whose_last_commit_did_not_come_to_the_register(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """A worker that was killed between its log and the group's offset; and a register that is another's."""
    name, values = unique("app"), events(120)
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
    first = App(apache_kafka, tmp_path / "first", name, store="directory").create_topics()
    second = App(apache_kafka, tmp_path / "second", name, store="kafka")
    config, partition = load_config(first.path).require_kafka(), Partition(first.input, 0)

    def register() -> tuple[int, str]:
        found = asyncio.run(read_register(config, name, [partition]))[partition]
        return (0, "") if found is None else (found.offset, found.metadata)

    def set_register(offset: int, text: str) -> None:
        asyncio.run(write_register_offline(config, name, {partition: (offset, text)}))

    worker = Running(first)
    registers = []
    for begin, end in ((0, 60), (60, 100)):
        first.produce(values[begin:end])
        first.await_scores({0: end}, worker)
        wait_for("the commit", lambda end=end: register()[0] >= end)
        registers.append(register())
    worker.kill()
    nobody(first)
    file = tmp_path / "moved.state"
    call("state", "export", first.path, "--output", file)
    first.produce(values[100:])
    run(first, 120)
    # Another one has gone on: that is no state which is a commit ahead.
    assert "not the newest" in call("state", "import", second.path, file, code=1)["error"]
    set_register(*registers[0])
    call("state", "import", second.path, file)
    run(second, 120)
    rows = scores_by_offset(second.await_scores({0: 120}))
    expected, _ = second.reference(values)
    assert rows == {offset: {score} for offset, score in enumerate(expected)}


def test_a_log_without_an_entry_is_not_exported(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """A worker has made the file, and died before it wrote to it."""
    app = App(apache_kafka, tmp_path, unique("app"), store="directory").create_topics()
    app.state.mkdir(mode=0o700)
    app.log_file.touch()
    assert (
        "has no entry"
        in call("state", "export", app.path, "--output", tmp_path / "moved.state", code=1)["error"]
    )


def test_a_store_beside_the_configuration_is_not_passed_over(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    name = unique("app")
    app = App(apache_kafka, tmp_path, name).create_topics()
    app.produce(events(20))
    run(app, 20)
    other = App(apache_kafka, tmp_path, name, store="kafka")
    error = refused(other)
    assert isinstance(error, StoreError)
    assert "has no log of this lane" in error.problem
    assert str(app.state) in error.problem
    assert all(text in error.fix for text in ('store.directory = "', "state export", "state import"))


def test_the_account_of_an_input_that_was_renamed_stays(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """The configuration names another input now, and what was spent on the old one is spent."""
    app = App(apache_kafka, tmp_path, unique("app"), learner=PRIVATE, store=store).create_topics()
    app.produce(events(60))
    run(app, 60)
    (before,) = call("budget", "show", app.path)["accounts"]
    renamed = f"{app.input}-2"
    apache_kafka.create_topic(renamed)
    app.path.write_text(app.path.read_text().replace(f'"{app.input}"', f'"{renamed}"'))
    output = call("budget", "show", app.path)
    assert output["accounts"] == [before]
    assert before["topic"] == app.input
    if store == "kafka":
        for owner, source in ((app.name, "other"), (f"{app.name}-eu", "events")):
            apache_kafka.create_topic(f"{owner}-{source}-log")
            asyncio.run(_write_junk(app, f"{owner}-{source}-log", f"frame|{owner}|{source}|{WHOLE_TOPIC}"))
        # The log of an application whose name begins alike is nothing of this one's.
        output = call("budget", "show", app.path)
        assert (output["accounts"], output["unread"]) == ([before], [f"{app.name}-other-log"])
    old, app.input = app.input, renamed
    app.produce(events(30))
    with Inside(app) as worker:
        wait_for("the last commit", lambda: worker.learned() == 30)
        assert worker.stop() is None
    accounts = call("budget", "show", app.path)["accounts"]
    assert {account["topic"]: account["releases"] for account in accounts} == {old: 60, renamed: 30}


async def _write_junk(app: App, topic: str, key: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=app.kafka.bootstrap) as producer:
        await producer.send_and_wait(topic, bytes(100), key=key.encode(), partition=0)


# ---- a log that is gone


def delete_topic(app: App, topic: str) -> None:
    async def body() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=app.kafka.bootstrap)
        await admin.start()
        try:
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    asyncio.run(body())
    config = KafkaConfig(bootstrap_servers=app.kafka.bootstrap)
    wait_for("the topic to be gone", lambda: topic not in asyncio.run(describe_topics(config)))


def lose(app: App, loss: str, older: Any) -> None:
    """Take the log away, or a part of it; `older`: a copy of the store from before the last events."""
    topic = load_config(app.path).log_topic
    if loss == "gone" and app.store == "kafka":
        delete_topic(app, topic)
    elif loss == "gone":
        shutil.rmtree(app.state)
    elif loss == "trimmed":  # retention has passed over the last snapshot
        config = load_config(app.path)
        offset = asyncio.run(LogTopic(config.require_kafka(), topic).read())[-1][0]
        asyncio.run(delete(app, topic, offset + 1))
    elif loss == "snapshot" and app.store == "kafka":
        records = copy_of(app)
        put_back(app, [each for each in records if each[1].startswith(b"frame|")])
    elif loss == "snapshot":
        for path in app.state.glob("*.state"):
            path.unlink()
    elif loss == "cut":
        put_back(app, older)
    else:  # of another release, which has other names for its entries
        if app.store == "kafka":
            put_back(app, [(0, b"entry 1", b"of a log"), (0, b"entry 2", b"of a log")])
        else:
            (path,) = app.state.glob("*.log")
            path.unlink()
        _write_register(app, '{"version": 7, "mac": "ab"}')


def _write_register(app: App, text: str) -> None:
    config = load_config(app.path)
    places = [Partition(app.input, number) for number in range(app.partitions)]

    async def body() -> None:
        found = await read_register(config.require_kafka(), app.name, places)
        offsets = {place: each.offset for place, each in found.items() if each is not None}
        texts = {place: (offset, "" if place.partition else text) for place, offset in offsets.items()}
        await write_register_offline(config.require_kafka(), app.name, texts)

    asyncio.run(body())


def state_found(app: App) -> dict[str, Any]:
    """What `check` says of the state."""
    result = CliRunner().invoke(command, ["check", str(app.path), "--json"])
    found = json.loads(result.stdout.splitlines()[-1])["findings"]
    return next(each for each in found if each["check"] == "state")


def scored_once(app: App, ends: dict[int, int]) -> None:
    """Each event has one score: no copy of it, and none is missing."""
    rows = app.await_scores(ends, committed=app.store == "kafka")
    places = sorted((row["partition"], row["offset"]) for row in rows)
    assert places == [(number, offset) for number, end in sorted(ends.items()) for offset in range(end)]


async def planned_anew(app: App) -> Any:
    async with open_states(load_config(app.path)) as states:
        return await states.plan("anew")


async def carried_out(app: App, plan: Any) -> None:
    async with open_states(load_config(app.path)) as states:
        await states.carry_out(plan)


@pytest.mark.parametrize(
    ("place", "loss"),
    [
        ("directory", "gone"),
        *(
            pytest.param("directory", loss, marks=pytest.mark.everything)
            for loss in ("snapshot", "cut", "another format")
        ),
        *(("kafka", loss) for loss in ("gone", "trimmed", "snapshot", "cut", "another format")),
    ],
)
def test_a_lost_log_is_refused_and_a_new_model_begins_where_the_group_is(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, place: str, loss: str
) -> None:
    """`run`, `check`, `state show` and `state recover` say the same; then no event is scored twice."""
    app = App(apache_kafka, tmp_path, unique("app"), store=place, partitions=2).create_topics()
    older = None
    for end in (40, 60):
        for number in range(2):
            app.produce(events(60)[end - 40 if end == 40 else 40 : end], number)
        with Inside(app) as worker:
            app.await_scores({0: end, 1: end}, worker)
            wait_for("the last commit", lambda: worker.lag() == 0)
            assert worker.stop() is None
        older = copy_of(app) if end == 40 else older
    lose(app, loss, older)
    app.produce(events(10, seed=2), 1)
    error = refused(app)
    assert isinstance(error, UnusableLogError)
    assert "--begin-anew" in error.fix
    found = state_found(app)
    assert (found["ok"], found["text"], found["fix"]) == (False, error.problem, error.fix)
    lane = call("state", "show", app.path)["lane"]
    assert (lane["refused"], lane["fix"]) == (error.problem, error.fix)
    nobody(app)
    call("state", "recover", app.path, "--ignore-register", "--yes", code=1)
    waiting = asyncio.run(planned_anew(app))
    done = call("state", "recover", app.path, "--begin-anew", "--yes")["recovered"]
    with pytest.raises(StreampairError, match="a start is not refused"):  # asked twice, answered twice
        asyncio.run(carried_out(app, waiting))
    assert done == {"refused": error.problem, "begins": {"0": 60, "1": 60}}
    lane = call("state", "show", app.path)["lane"]
    assert (lane["refused"], lane["register"], lane["group_offset"]) == (None, "agrees", 60)
    assert "began anew at the group's offset" in lane["accepted"][0]
    assert state_found(app)["ok"]
    app.produce(events(20, seed=3), 0)
    for ends in ({0: 80, 1: 70}, {0: 80, 1: 75}):
        app.produce(events(ends[1] - 70, seed=4), 1)
        with Inside(app) as worker:
            app.await_scores(ends, worker)
            wait_for("the last commit", lambda: worker.lag() == 0)
            assert worker.stop() is None
        scored_once(app, ends)
    again = call("state", "recover", app.path, "--begin-anew", "--yes", code=1)
    assert "a start is not refused" in again["error"]


def test_a_private_lane_never_begins_anew(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"), learner=PRIVATE, store=store).create_topics()
    app.produce(events(60))
    run(app, 60)
    if store == "directory":
        (path,) = app.state.glob("*.log")  # its key stays
        path.unlink()
    else:
        lose(app, "gone", None)
    error = refused(app)
    assert state_found(app)["text"] == error.problem
    assert "no log of this lane" in error.problem
    assert "under another application name" in error.fix
    nobody(app)
    assert call("state", "recover", app.path, "--begin-anew", "--yes", code=1)["error"] == error.problem


def test_a_log_topic_that_is_deleted_under_a_worker_never_begins_at_the_start_again(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"), store="kafka").create_topics()
    app.produce(events(60))
    with Inside(app) as worker:
        app.await_scores({0: 60}, worker)
        wait_for("the last commit", lambda: worker.lag() == 0)
        delete_topic(app, load_config(app.path).log_topic)
        app.produce(events(20, seed=2))
        error = worker.end()
    assert isinstance(error, UnusableLogError)
    nobody(app)
    call("state", "recover", app.path, "--begin-anew", "--yes")
    run(app, 80)
    scored_once(app, {0: 80})


def test_a_log_topic_that_can_lose_a_log_is_refused_by_run_and_check(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Of a learner that is not private too: without its log it cannot go on."""
    app = App(apache_kafka, tmp_path, unique("app"), store="kafka").create_topics()
    topic = load_config(app.path).log_topic
    apache_kafka.create_topic(topic, retention_ms="3600000")
    error = refused(app)
    assert "has retention.ms = 3600000: it can lose entries" in error.problem
    result = CliRunner().invoke(command, ["check", str(app.path), "--json"])
    found = json.loads(result.stdout.splitlines()[-1])["findings"]
    log = next(each for each in found if each["check"] == "store.log_topic")
    assert (log["text"], log["fix"]) == (error.problem, error.fix)


def test_a_first_start_is_announced_as_one(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """An offset of the group alone, at the start of the topic, is no lost log."""
    app = App(apache_kafka, tmp_path, unique("app"), learner=PRIVATE, store=store).create_topics()
    assert state_found(app) == {"check": "state", "ok": True, "text": "a start begins at the first event"}
    assert not app.state.exists()
    assert call("state", "show", app.path)["lane"] is None
    output = call("state", "recover", app.path, "--begin-anew", "--yes", code=1)
    assert "neither the store nor the group has a lane" in output["error"]
    (tmp_path / "other").mkdir()
    app = App(apache_kafka, tmp_path / "other", unique("app"), store=store).create_topics()
    config = load_config(app.path).require_kafka()
    asyncio.run(write_register_offline(config, app.name, {Partition(app.input, 0): (0, "")}))
    lane = call("state", "show", app.path)["lane"]
    assert (lane["sequence"], lane["refused"]) == (-1, None)
    app.produce(events(20))
    run(app, 20)


def test_a_state_is_exported_without_its_input(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"), store=store).create_topics()
    app.produce(events(20))
    run(app, 20)
    nobody(app)
    before = call("state", "show", app.path)["lane"]
    delete_topic(app, app.input)
    file = tmp_path / "moved.state"
    with support.full_disk(100):
        assert (
            "moved.state cannot be written"
            in call("state", "export", app.path, "--output", file, code=1)["error"]
        )
    assert not file.exists()
    call("state", "export", app.path, "--output", file)
    lane = call("state", "show", app.path)["lane"]
    assert (lane["sequence"], lane["register"]) == (before["sequence"], "not asked")
