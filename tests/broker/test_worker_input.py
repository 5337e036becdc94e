"""What a worker does with bad events, missing topics and brokers that are not there."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.producer import message_accumulator, producer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from harness import support
from harness.apache_kafka import KafkaBroker
from harness.applications import LOGISTIC, App, Inside, events, read_until, same, scores_by_offset
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli import app as cli
from streampair_connectors.worker import session
from streampair_connectors.worker.flow_control import Backlog
from typer.testing import CliRunner

from streampair.errors import SourceError

Unique = Callable[[str], str]

GOOD = {"f0": 0.1, "f1": 0.2, "f2": 0.3, "f3": 0.4, "y": True}


def _with(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


BAD: dict[str, tuple[bytes | None, str, str]] = {
    # what: value, stage, a part of the message
    "not JSON": (b"\x00\xffnonsense", "decode", "not JSON"),
    "cut short": (_with()[:-5], "decode", "not JSON"),
    "a list": (b"[1, 2]", "decode", "not a JSON object"),
    "empty": (b"", "decode", "empty"),
    "an empty object": (b"{}", "decode", "no feature"),
    "missing feature": (b'{"f0": 1, "y": true}', "features", "'f1' is missing"),
    "text": (_with(f2="high"), "features", "'f2' is text"),
    "NaN": (_with(f1=float("nan")), "decode", "NaN and Infinity are no numbers of JSON"),
    "infinity": (_with(f1=float("inf")), "decode", "NaN and Infinity are no numbers of JSON"),
    "a note that is not UTF-8": (_with()[:-1] + b', "note": "\xff"}', "decode", "it is not UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf" + _with(), "decode", "a byte order mark"),
    "half of a surrogate pair": (_with(note="\ud800"), "decode", "half of a surrogate pair"),
    "a feature twice": (_with()[:-1] + b', "f1": 2}', "decode", "the field 'f1' comes twice"),
    "null": (_with(f3=None), "features", "'f3' is null"),
    "truth value": (_with(f3=True), "features", "'f3' is a truth value"),
    "unknown label": (_with(y="maybe"), "label", "unknown label 'maybe'"),
    "1 MB": (_with(note="x" * 1_000_000), "decode", "max_event_bytes"),
    "1 MB that is not JSON": (b"\x01" * 1_000_000, "decode", "max_event_bytes"),
}


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path) -> App:
    return App(kafka, tmp_path, unique("app")).create_topics()


def test_bad_events_go_to_the_dead_letters_bytes_and_all(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(kafka, tmp_path, unique("app"), learner=LOGISTIC).create_topics()  # takes numbers only
    good = events(len(BAD) + 1)
    values: list[bytes | None] = [good[0]]
    for (bad, _, _), fine in zip(BAD.values(), good[1:], strict=True):
        values += [bad, fine]
    app.produce(values, headers=[("trace", b"\xfe\x01")])
    with Inside(app) as worker:
        rows = app.await_scores({0: len(values)}, worker)
        letters = app.await_dead_letters(len(BAD))
        assert worker.stop() is None
    for (what, (value, stage, message)), letter, offset in zip(
        BAD.items(), letters, range(1, len(values), 2), strict=True
    ):
        headers = dict(letter.headers)
        assert letter.value == value, what
        assert headers["streampair.stage"] == stage.encode(), what
        assert message in headers["streampair.error"].decode(), what
        assert "Fix: " in headers["streampair.error"].decode(), what
        assert headers["streampair.topic"] == app.input.encode()
        assert headers["streampair.partition"] == b"0"
        assert headers["streampair.offset"] == str(offset).encode()
        assert headers["streampair.app"] == app.name.encode()
        assert headers["trace"] == b"\xfe\x01"
    outcomes = [row["outcome"] for row in rows]
    assert outcomes == ["learned", *["dead_letter", "learned"] * len(BAD)]
    # The model never noticed them.
    expected, state = app.reference(values)
    assert [row["score"] for row in rows] == expected
    assert same(app.snapshot(), state)
    clean, _ = app.reference(good)
    assert [row["score"] for row in rows if row["outcome"] == "learned"] == clean
    line = next(
        x for x in worker.metrics().splitlines() if "dead_letters_total{" in x and 'stage="label"' in x
    )
    assert line.endswith(" 1.0")


def test_texts_and_gaps_are_learned_by_a_learner_that_takes_them(app: App) -> None:
    taken = ["missing feature", "text", "null", "truth value"]
    values = [*events(3), *(BAD[what][0] for what in taken), *events(3)]
    app.produce(values)
    with Inside(app) as worker:
        rows = app.await_scores({0: len(values)}, worker)
        assert worker.stop() is None
    assert [row["outcome"] for row in rows] == ["learned"] * len(values)
    expected, state = app.reference(values)
    assert [row["score"] for row in rows] == expected
    assert same(app.snapshot(), state)


def test_a_dead_letter_larger_than_the_topic_takes_comes_in_parts(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(kafka, tmp_path, unique("app"), settings="[output]\nmax_message_bytes = 4096").create_topics()
    value = b"\x02" * 10_000
    app.produce([value])
    with Inside(app) as worker:
        letters = app.await_dead_letters(3)
        assert worker.stop() is None
    assert b"".join(letter.value for letter in letters) == value
    assert [dict(letter.headers)["streampair.part"] for letter in letters] == [b"1/3", b"2/3", b"3/3"]


def test_headers_without_a_value_and_large_ones_stop_no_worker(app: App) -> None:
    """A forwarded trace header may have no value, and headers may be as large as a message."""
    bad, large = b"{oops", ("large", b"h" * 1_000_000)
    app.produce([events(1)[0], bad], headers=[("traceparent", None)])
    app.produce([bad], headers=[large, ("trace", b"t")])
    app.produce(events(1))
    with Inside(app) as worker:
        rows = app.await_scores({0: 4}, worker)
        letters = app.await_dead_letters(2)
        assert worker.stop() is None
    assert [row["outcome"] for row in rows] == ["learned", "dead_letter", "dead_letter", "learned"]
    assert [letter.value for letter in letters] == [bad, bad]
    assert ("traceparent", None) in letters[0].headers
    found = dict(letters[1].headers)
    assert (found["trace"], found["streampair.headers_dropped"]) == (b"t", b"1")


class Latin1(str):
    """The name of a header, in an encoding that is not UTF-8."""

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return super().encode("latin-1")


def test_a_header_name_that_is_not_utf_8_stops_no_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [events(1)[0], b"{oops"]
    with monkeypatch.context() as written_in_python:
        for module in (producer, message_accumulator):
            written_in_python.setattr(module, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)
        app.produce(values, headers=[(Latin1("Größe"), b"\xff")])
    app.produce(events(1))
    with Inside(app) as worker:
        rows = app.await_scores({0: 3}, worker)
        (letter,) = app.await_dead_letters(1)
        assert worker.stop() is None
    assert [row["outcome"] for row in rows] == ["learned", "dead_letter", "learned"]
    assert letter.value == values[1]
    assert (r"Gr\xf6\xdfe", b"\xff") in letter.headers


def test_a_tombstone_is_counted_and_is_no_dead_letter(app: App) -> None:
    values = events(20)
    app.produce([*values[:10], None, *values[10:]])
    with Inside(app) as worker:
        rows = app.await_scores({0: 21}, worker)
        wait_for("the commit", lambda: worker.learned() == 20)
        metrics = worker.metrics()
        assert worker.stop() is None
    assert [row["outcome"] for row in rows] == ["learned"] * 10 + ["tombstone"] + ["learned"] * 10
    assert rows[10]["score"] is None
    assert 'outcome="tombstone",topic=' in metrics
    assert not re.search(r"^streampair_dead_letters_total\{.*[1-9]\.0$", metrics, re.M)


def test_a_backlog_is_in_the_log(
    kafka: Cluster,
    unique: Unique,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "Backlog", functools.partial(Backlog, seconds=0.0))
    app = App(kafka, tmp_path, unique("app")).create_topics()
    caplog.set_level("INFO", logger="streampair_connectors")
    app.produce(events(400))
    with Inside(app) as worker:
        wait_for("the commit", lambda: worker.learned() == 400)
        wait_for("the end of the backlog", lambda: "caught_up" in caplog.text)
        assert worker.stop() is None
    logged = [record.fields for record in caplog.records if record.message == "progress"]  # type: ignore[attr-defined]
    assert logged
    assert all(0 < one["lag"] <= 400 for one in logged)
    assert {one["app"] for one in logged} == {app.name}


def test_a_score_has_the_key_the_event_time_and_the_trace_of_its_event(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """And no other header: whoever reads scores need not be allowed to read the input."""
    settings = '[output]\nheaders = ["traceparent", "tenant"]'
    app = App(kafka, tmp_path, unique("app"), settings=settings).create_topics()
    then, ahead = round(time.time() * 1000) - 3_600_000, round(time.time() * 1000) + 600_000
    trace = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    first, second, third, fourth = events(4)
    app.produce(
        [first], key=b"k", headers=[trace, ("label", b"true"), ("tenant", b"\xff")], timestamp_ms=then
    )
    app.produce([second], timestamp_ms=then + 1)
    app.produce([third], headers=[("label", b"true")], timestamp_ms=ahead)
    app.produce([fourth, None], key=b"x", headers=[trace])
    with Inside(app) as worker:
        app.await_scores({0: 5}, worker)
        assert worker.stop() is None
    found = asyncio.run(read_until(app.kafka.bootstrap, app.output, lambda rows: len(rows) >= 5))
    assert [row.key for row in found] == [b"k", None, None, b"x", b"x"]
    assert [list(row.headers) for row in found] == [[trace, ("tenant", b"\xff")], [], [], [trace], [trace]]
    assert [row.timestamp for row in found[:2]] == [then, then + 1]
    assert max(row.timestamp for row in found) < ahead


def test_a_header_that_is_too_large_is_left_out(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    """A score that the broker does not take would stop the lane."""
    app = App(kafka, tmp_path, unique("app")).create_topics()
    app.produce(events(1), headers=[("tracestate", b"v" * 1_048_000)])
    app.produce(events(5), headers=[("tracestate", b"v" * 512)])
    with Inside(app) as worker:
        app.await_scores({0: 6}, worker)
        assert worker.stop() is None
    found = asyncio.run(read_until(app.kafka.bootstrap, app.output, lambda rows: len(rows) >= 6))
    assert [len(row.headers) for row in found] == [0] + [1] * 5


def test_a_value_beyond_its_declared_bounds_is_counted_and_its_feature_named(
    kafka: Cluster, unique: Unique, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(kafka, tmp_path, unique("app")).create_topics()
    text = app.path.read_text()
    declared = json.dumps(["f0", "f1", "f2", "f3"])
    assert text.count(declared) == 1
    app.path.write_text(text.replace(declared, "{ f0 = [-9, 9], f1 = [-9, 9], f2 = [-9, 9], f3 = [-9, 9] }"))
    app.produce([*events(20), _with(f1=1234.5), *events(20, seed=2), _with(f1=-50)])
    with Inside(app) as worker:
        wait_for("the commit", lambda: worker.learned() == 42)
        metrics = worker.metrics()
        assert worker.stop() is None
    assert re.search(r"^streampair_values_outside_bounds_total\{.*\} 2\.0$", metrics, re.M)
    logged = [r.fields for r in caplog.records if r.message == "values_outside_bounds"]  # type: ignore[attr-defined]
    assert [one["features"].keys() for one in logged] == [{"f1"}]
    assert "1234" not in str(logged)


def test_an_event_without_its_label_is_scored_only(app: App) -> None:
    values = [
        *events(5),
        b'{"f0": 1, "f1": 0, "f2": 0, "f3": 0}',
        b'{"f0": 1, "f1": 0, "f2": 0, "f3": 0, "y": null}',
    ]
    app.produce(values)
    with Inside(app) as worker:
        rows = app.await_scores({0: 7}, worker)
        assert worker.stop() is None
    assert [row["outcome"] for row in rows] == ["learned"] * 5 + ["scored"] * 2
    assert rows[5]["score"] == rows[6]["score"] != 0.0


def streampair(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("missing", ["in", "scores", "dead-letters"])
def test_a_missing_topic_is_named_with_the_command_that_makes_it(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, missing: str
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"))
    for topic in {app.input, app.output, app.dead} - {f"{app.name}-{missing}"}:
        apache_kafka.create_topic(topic)
    for command in ("run", "check"):
        code, out, err = streampair(command, app.path)
        output = out + err
        assert code == 1, output
        assert f"topic '{app.name}-{missing}'" in output
        assert "add --create-topics" in output
        assert (
            f"kafka-topics.sh --create --bootstrap-server {app.kafka.bootstrap} --topic {app.name}-{missing}"
            in output
        )


def test_a_missing_input_topic_is_never_created(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    app = App(kafka, tmp_path, unique("app"))
    for _ in range(2):
        code, _, err = streampair("run", app.path)
        assert code == 1, err
        assert "does not exist" in err
        assert not app.state.exists() or not list(app.state.iterdir())


def test_batches_of_every_codec_are_scored(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    """Written by librdkafka, whose codecs are its own."""
    try:
        import confluent_kafka
    except ImportError:
        support.unavailable("confluent_kafka", "pip install '.[demo]'", made=True)
    app = App(kafka, tmp_path, unique("app")).create_topics()
    codecs, values = ("gzip", "snappy", "lz4", "zstd", "none"), events(500)
    for number, codec in enumerate(codecs):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 1000}
        )
        for value in values[number * 100 : number * 100 + 100]:
            producer.produce(app.input, value, partition=0)
        assert producer.flush(30) == 0
    with Inside(app) as worker:
        rows = app.await_scores({0: 500}, worker)
        assert worker.stop() is None
    assert [row["score"] for row in sorted(rows, key=lambda row: row["offset"])] == app.reference(values)[0]


def test_check_says_what_run_would_do(app: App) -> None:
    code, out, err = streampair("check", app.path)
    assert code == 0, out + err
    assert "has 1 partition(s): one lane" in out
    assert "PairOGD" in out
    assert not app.state.exists()
    assert json.loads(streampair("check", app.path, "--json")[1])["ok"] is True


def test_the_broker_may_die_and_come_back(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path
) -> None:
    app = App(stoppable_kafka, tmp_path, unique("app")).create_topics()
    values = events(900)
    app.produce(values[:300])
    with Inside(app) as worker:
        app.await_scores({0: 120}, worker)
        stoppable_kafka.kill()
        wait_for("the state of health", lambda: worker.health() == "waiting")
        stoppable_kafka.start()
        app.produce(values[300:600])
        app.await_scores({0: 600}, worker)
        wait_for("the state of health", lambda: worker.health() == "running")
        stoppable_kafka.restart()
        app.produce(values[600:])
        rows = app.await_scores({0: 900}, worker)
        assert worker.stop() is None
    expected, state = app.reference(values)
    assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(expected)}
    assert same(app.snapshot(), state)


def test_a_worker_can_be_stopped_while_the_broker_is_away(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STOP_SECONDS", 2.0)
    app = App(stoppable_kafka, tmp_path, unique("app")).create_topics()
    values = events(100)
    app.produce(values)
    with Inside(app) as worker:
        app.await_scores({0: 100}, worker)
        stoppable_kafka.kill()
        wait_for("the state of health", lambda: worker.health() == "waiting")
        # Nothing, where all had been stored before the broker went; else it says what was not.
        assert isinstance(worker.stop(), SourceError | None)
    stoppable_kafka.start()
    with Inside(app) as worker:
        wait_for("the last commit", lambda: worker.learned() == 100)
        assert worker.stop() is None
    rows = app.await_scores({0: 100})
    expected, state = app.reference(values)
    assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(expected)}
    assert same(app.snapshot(), state)


def test_a_broker_that_is_not_there(tmp_path: Path, unique: Unique, kafka: Cluster) -> None:
    nobody = "127.0.0.1:1"
    app = App(kafka, tmp_path, unique("app"), bootstrap=nobody, connect_timeout=1)
    for command in ("run", "check"):
        code, out, err = streampair(command, app.path)
        assert code == 1, out + err
        assert f"no Kafka broker answers at {nobody}" in out + err
        assert "fix: start the broker" in out + err


def test_aborted_transactions_are_not_read(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    app = App(apache_kafka, tmp_path, unique("app")).create_topics()
    values = events(60)

    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=app.kafka.bootstrap, transactional_id=app.name)
        async with producer:
            for part, kept in ((values[:20], True), (values[20:40], False), (values[40:], True)):
                await producer.begin_transaction()
                for value in part:
                    await producer.send(app.input, value, partition=0)
                await (producer.commit_transaction() if kept else producer.abort_transaction())

    asyncio.run(write())
    with Inside(app) as worker:
        # A marker ends each transaction, and takes an offset of its own.
        wait_for("the commit", lambda: worker.learned() == 40)
        wait_for("no lag, in spite of the last marker", lambda: worker.lag() == 0)
        assert worker.stop() is None
    rows = asyncio.run(read_until(app.kafka.bootstrap, app.output, lambda found: len(found) >= 40))
    offsets = [json.loads(row.value)["offset"] for row in rows]
    assert offsets == [*range(20), *range(42, 62)]
    lane = app.reference([*values[:20], *values[40:]])[1]
    assert same(app.snapshot()["steps"], lane["steps"])


def test_high_scores_are_alerts_too(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    name = unique("app")
    app = App(kafka, tmp_path, name, settings="[output]\nalert_above = 0.3").create_topics()
    kafka.create_topic(f"{name}-alerts")
    app.produce(events(80))
    with Inside(app) as worker:
        rows = app.await_scores({0: 80}, worker)
    high = [row for row in rows if row["score"] >= 0.3]
    assert 0 < len(high) < 80
    alerts = asyncio.run(read_until(kafka.bootstrap, f"{name}-alerts", lambda found: len(found) >= len(high)))
    assert [json.loads(record.value) for record in alerts] == high
