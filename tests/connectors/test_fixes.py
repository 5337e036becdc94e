"""Errors of events say the lines of the configuration that read them: pasted, they do."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from streampair_connectors.cli.app import app
from streampair_connectors.cli.replay import Replay
from streampair_connectors.codecs.formats import event_decoder, fields_reader
from streampair_connectors.codecs.labels import LabelDecoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.config.toml_lines import toml_line
from streampair_connectors.worker.causes import cause_text
from streampair_connectors.worker.factory import build_learner, taken_cells
from streampair_connectors.worker.first_events import _ENOUGH, FirstEvents
from typer.testing import CliRunner

from streampair import auc
from streampair.engine import Event, Record, Scored
from streampair.engine.records import LABEL_STOPPED
from streampair.errors import ConfigError, RecordError, SourceError

PRIVATE = {"class": "streampair.auc.PairFTRL", "options": {"epsilon": 1.0, "delta": 1e-6, "horizon": 100}}
SECRET = "Smith-4711"


def config_of(table: dict[str, Any], **more: Any) -> Config:
    """Of an application whose [input] was written as TOML."""
    text = "\n".join(toml_line(key, value) for key, value in table.items())
    return parse_config(
        {
            "app": "a",
            "input": tomllib.loads(text),
            "learner": {"class": "river.linear_model.LogisticRegression"},  # takes numbers only
            **more,
        }
    )


def pasted(table: dict[str, Any], fix: str) -> dict[str, Any]:
    """The table with the lines of a fix in place of those with the same keys."""
    found = re.search(r"write in \[input\]: (.*?)(?:, or the other way|$)", fix)
    assert found is not None, fix
    return {**table, **tomllib.loads(found[1].replace("; ", "\n"))}


def refusal(config: Config, value: bytes) -> RecordError:
    decode: Any = event_decoder(config, **taken_cells(config))
    with pytest.raises(RecordError) as caught:
        decode(Record(0, value))
    rows = decode.many([Record(0, value)]) if hasattr(decode, "many") else None
    assert rows is None or str(rows.refused[0]) == str(caught.value)
    return caught.value


def read(table: dict[str, Any], event: Any) -> Event:
    return event_decoder(config_of(table))(Record(0, json.dumps(event).encode()))


PLAIN: dict[str, Any] = {"label": "bad", "features": ["amount", "age"]}
CODED: dict[str, Any] = {"label": "bad", "features": {"amount": [0, 99], "card": ["debit", "1"]}}


# ---- features ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "event", "problem", "x"),
    [
        (PLAIN, {"amount": "12.5", "age": 3, "bad": True}, "feature 'amount' is text: '12.5'", [12.5, 3.0]),
        (
            PLAIN,
            {"amount": " -1e3", "age": "30", "bad": 1},
            "feature 'amount' is text: ' -1e3'",
            [-1e3, 30.0],
        ),
        (
            {**PLAIN, "features": {"amount": [0, 99], "age": [0, 120]}},
            {"amount": 12.5, "age": "3", "bad": 0},
            "feature 'age' is text: '3'",
            [12.5, 3.0],
        ),
        (
            {**PLAIN, "fields": {"age": "number"}},
            {"amount": "2", "age": "3", "bad": 0},
            "feature 'amount' is text: '2'",
            [2.0, 3.0],
        ),
        ({"label": "bad"}, {"amount": "2", "age": 3, "bad": 0}, "feature 'amount' is text: '2'", [2.0, 3.0]),
        (
            PLAIN,
            {"payload": {"amount": 2, "age": 3, "bad": True}},
            "the event has no feature",
            [2.0, 3.0],
        ),
        (
            {**PLAIN, "id": "k", "features": {"amount": [0, 9], "age": [0, 120]}},
            {"k": 7, "the data": {"amount": 2, "age": 3, "bad": True}},
            "feature 'amount' is missing",
            [2.0, 3.0],
        ),
        (
            {**PLAIN, "features": ["amount", "at.hour"], "fields": {"at": "iso-8601", "amount": "number"}},
            {"payload": {"amount": "2", "at": "2024-01-01T05:00:00Z", "bad": True}, "ts": 1},
            "the event has no feature",
            [2.0, 5.0],
        ),
        (
            {"label": "bad"},
            {"payload": {"amount": 2, "age": 3, "bad": True, "note": "x"}},
            "feature 'payload' is an object",
            [2.0, 3.0],
        ),
        (
            PLAIN,
            {"before": None, "after": {"amount": 2, "age": 3, "bad": True}, "op": "c"},
            "the event has no feature",
            [2.0, 3.0],
        ),
        (
            PLAIN,
            {"payload": {"before": None, "after": {"amount": 2, "age": 3, "bad": True}, "op": "u"}},
            "the event has no feature",
            [2.0, 3.0],
        ),
        (PLAIN, {"amuont": 2, "age": 3, "bad": True}, "feature 'amount' is missing", [2.0, 3.0]),
        (CODED, {"amuont": 2, "card": "1", "bad": True}, "feature 'amount' is missing", [2.0, 0.0, 1.0]),
        (CODED, {"amount": "2", "card": "1", "bad": True}, "feature 'amount' is text: '2'", [2.0, 0.0, 1.0]),
        (
            CODED,
            {"payload": {"amount": 2, "card": "debit", "bad": True}},
            "the event has no feature",
            [2.0, 1.0, 0.0],
        ),
        (
            {**PLAIN, "features": {"amount": [0, 9], "age": [0, 120]}},
            {"amount": 2, "Age": 3, "bad": True},
            "feature 'age' is missing",
            [2.0, 3.0],
        ),
    ],
)
def test_a_feature_that_is_written_otherwise(
    table: dict[str, Any], event: dict[str, Any], problem: str, x: list[float]
) -> None:
    error = refusal(config_of(table), json.dumps(event).encode())
    assert error.problem == problem
    found = read(pasted(table, error.fix), event)
    assert list(found.x.values()) == x
    assert found.y is bool((event.get("payload") or {}).get("bad", event.get("bad", True)))
    assert cause_text(str(error)) == problem.partition(": ")[0]


@pytest.mark.parametrize(
    ("event", "fix"),
    [
        ({"amount": SECRET, "age": 3}, "send a finite number"),
        ({"amount": "true", "age": 3}, "send a finite number"),
        ({"amount": "1" * 99, "age": 3}, "send a finite number"),
        ({"amount": [1], "age": 3}, "send a finite number"),
        ({"weight": 2, "age": 3}, "send it in every event"),
        ({"payload": {"other": 1}}, "send a JSON object with the features amount, age"),
        ({"payload": [{"amount": 1}]}, "send a JSON object with the features amount, age"),
    ],
)
def test_where_no_line_would_help_there_is_none(event: dict[str, Any], fix: str) -> None:
    error = refusal(
        config_of(PLAIN), json.dumps({**event, "bad": True} if "payload" not in event else event).encode()
    )
    assert error.fix.startswith(fix)
    assert SECRET not in str(error)


def test_lines_that_are_too_long_for_a_header_are_left_out() -> None:
    names = [f"feature number {number}" for number in range(200)]
    event = {"payload": {**dict.fromkeys(names, 1.0), "bad": True}}
    error = refusal(config_of({"label": "bad", "features": names}), json.dumps(event).encode())
    assert len(str(error)) < 2000
    assert "write in" not in error.fix


# ---- labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "value", "high", "low"),
    [
        ({}, "Y", "Y", "N"),
        ({}, "n", "y", "n"),
        ({}, "Positive", "Positive", "Negative"),
        ({}, "fraud", "fraud", "..."),
        ({}, 'a "quoted" \\ text\x7f ü', 'a "quoted" \\ text\x7f ü', "..."),
        ({}, 2, 2, 1),
        ({}, "2", 2, 1),
        ({}, -1, 1, -1),
        ({}, 0.5, 0.5, 0),
        ({"positive": "fraud", "negative": "ok"}, "legit", "fraud", "legit"),
        ({"positive": "fraud", "negative": "ok"}, True, True, False),
        ({"positive": 1, "negative": -1}, 0, 1, 0),
        ({"positive": 2, "negative": 1}, "N", "Y", "N"),
    ],
)
def test_a_label_that_is_neither_of_two(declared: dict[str, Any], value: Any, high: Any, low: Any) -> None:
    """In events, on a topic of their own, and as arguments of a learner."""
    table = {**PLAIN, **declared}
    event = {"amount": 1, "age": 2, "bad": value}
    error = refusal(config_of(table), json.dumps(event).encode())
    repaired = pasted(table, error.fix)
    assert (repaired["positive"], repaired["negative"]) == (high, low)
    assert read(repaired, event).y in (high, low)
    assert cause_text(str(error)) == "unknown label ... in field 'bad'"
    later: dict[str, Any] = {"label_input": {"topic": "l", "id": "key", "label": "bad", "after": "1d"}}
    features = {key: item for key, item in table.items() if key != "label"}
    message = Record(0, json.dumps({"bad": value}).encode(), b"k")
    with pytest.raises(RecordError) as caught:
        LabelDecoder(config_of(features, **later))(message)
    lines, stopped = caught.value.fix.split(
        "; if it says that the event was stopped, write in [label_input]: "
    )
    assert error.fix.startswith(f"{lines}; for relevances")
    later["label_input"] |= tomllib.loads(stopped.removeprefix("write in [label_input]: "))
    assert LabelDecoder(config_of(features, **later))(message).code == LABEL_STOPPED
    del later["label_input"]["stopped"]
    assert LabelDecoder(config_of(pasted(features, error.fix), **later))(message).code in (1, 2)
    with pytest.raises(RecordError) as refused:
        auc.PairOGD(seed=1, **declared).learn_one({"a": 1.0}, value)
    arguments = re.fullmatch(r"name both labels: (.*); or the other way round", refused.value.fix)
    assert arguments is not None
    options = eval(f"dict({arguments[1]})")
    assert options == {"positive": high, "negative": low}
    auc.PairOGD(seed=1, **options).learn_one({"a": 1.0}, value)


def test_a_label_that_can_be_none() -> None:
    for value in ([1], {"a": 1}, "", "x" * 61, "inf", f"it. Fix: {SECRET}"):
        error = refusal(config_of(PLAIN), json.dumps({"amount": 1, "age": 2, "bad": value}).encode())
        assert "write in" not in error.fix


def lines_of(path: Path, events: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(path)


@pytest.mark.parametrize(
    ("label", "around"), [("is_fraud", None), ("IsFraud", None), ("is_fraud", "outcome"), ("isfraud", None)]
)
def test_a_label_with_another_name(tmp_path: Path, label: str, around: str | None) -> None:
    """In a replay, where nothing was learned, and in a worker, which warns."""
    name = "is_fraud" if around else "is_frauds" if label == "is_fraud" else "is_fraud"
    events: list[dict[str, Any]] = []
    for number in range(20):
        truth: dict[str, Any] = {label: number % 2 == 0}
        events.append({"amount": number, "age": 1, **({around: truth} if around else truth)})
    table = {**PLAIN, "label": name}
    path = lines_of(tmp_path / "events.jsonl", events)
    replay = Replay(config_of(table), path, lambda _: None, lambda _: None)
    assert replay.run().events["learned"] == 0
    fix = replay.label_fix()
    assert fix is not None
    again = Replay(config_of(pasted(table, fix)), path, lambda _: None, lambda _: None)
    assert again.run().events["learned"] == 20


def test_the_command_says_the_name_of_the_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.toml").write_text(
        'app = "a"\n[input]\nlabel = "frauds"\nfeatures = ["amount"]\n'
        '[learner]\nclass = "streampair.auc.PairOGD"\n'
    )
    lines_of(Path("events.jsonl"), [{"amount": n, "fraud": n % 2 == 0} for n in range(9)])
    Path("events.csv").write_text("amount,fraud\n1,true\n2,false\n")
    for file in ("events.jsonl", "events.csv"):
        result = CliRunner().invoke(app, ["replay", "app.toml", file])
        assert result.exit_code != 0
        assert 'write in [input]: label = "fraud"' in result.stderr
        again = ["replay", "app.toml", file, "--set", "input.label=fraud"]
        repaired = CliRunner().invoke(app, again)
        assert repaired.exit_code == 0, repaired.stderr


@pytest.mark.parametrize("private", [False, True])
def test_a_worker_warns_once_of_events_without_a_label(
    private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    table = {**PLAIN, "label": "is_bad", "features": {"amount": [0, 9], "age": [0, 9]}}
    config = config_of(table, **({"learner": PRIVATE} if private else {}))

    def warnings_of(event: dict[str, Any], *outcomes: str) -> list[str]:
        caplog.clear()
        watch = FirstEvents(config, fields_reader(config))
        records: Any = [Record(0, json.dumps(event).encode())]
        for outcome in (*outcomes, *["scored"] * (_ENOUGH + 5)):
            watch.note(records, [Scored(0, None, None, 0.5, outcome)])
        warnings = [record for record in caplog.records if record.getMessage() == "no_labels"]
        return [str(vars(record)["fields"]["next_step"]) for record in warnings]

    event = {"amount": 1, "age": 2, "isBad": SECRET}
    (fix,) = warnings_of(event, "dead_letter")
    assert SECRET not in fix
    if private:
        assert "isBad" not in fix
    else:
        assert pasted(table, fix)["label"] == "isBad"
    assert warnings_of(event, "learned") == []
    assert warnings_of({**event, "is_bad": None}) == []


# ---- what is learned, but rarely meant ---------------------------------------------------------------------

TAKES_TEXTS = {"class": "streampair.auc.PairOGD"}


def first_warnings(
    caplog: pytest.LogCaptureFixture, config: Config, events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What a worker warns of in its first events, which it gets in batches of 30."""
    caplog.clear()
    watch = FirstEvents(config, fields_reader(config))
    records = [Record(number, json.dumps(event).encode()) for number, event in enumerate(events)]
    for begin in range(0, len(records), 30):
        part = records[begin : begin + 30]
        watch.note(part, [Scored(each.offset, None, None, 0.5, "learned") for each in part])
    return [{"event": record.getMessage(), **vars(record)["fields"]} for record in caplog.records]


@pytest.mark.parametrize(
    ("table", "event", "fields"),
    [
        (PLAIN, {"amount": "12.5", "age": 3, "card": "4"}, ["amount"]),
        (PLAIN, {"amount": "12.5", "age": " -1e3"}, ["amount", "age"]),
        ({"label": "bad"}, {"amount": "12.5", "age": 3, "card": "debit"}, ["amount"]),
        ({"label": "bad", "features": ["data.amount"]}, {"data": {"amount": "12.5"}}, ["data.amount"]),
        ({**PLAIN, "fields": {"age": "number"}}, {"amount": "12.5", "age": "3"}, ["amount"]),
        ({**PLAIN, "envelope": "debezium"}, {"op": "c", "after": {"amount": "2", "age": 3}}, ["amount"]),
    ],
)
def test_a_worker_warns_once_of_texts_that_spell_numbers(
    table: dict[str, Any], event: dict[str, Any], fields: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(table, learner=TAKES_TEXTS)
    event = {**event, "bad": True, "note": SECRET}
    assert first_warnings(caplog, config, [event] * 99) == []
    (warning,) = first_warnings(caplog, config, [event] * (_ENOUGH + 50))
    assert warning["event"] == "numbers_in_texts"
    assert all(repr(name) in warning["detail"] for name in fields)
    repaired = config_of(pasted(table, warning["next_step"]), learner=TAKES_TEXTS)
    decode = event_decoder(repaired, **taken_cells(repaired))
    found = decode(Record(0, json.dumps(event).encode())).x
    assert all(isinstance(found[name], float) for name in fields)
    assert first_warnings(caplog, repaired, [event] * (_ENOUGH + 50)) == []


def test_texts_that_are_meant_raise_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    some = [{"amount": "12.5" if n % 5 else "none", "age": 1, "bad": True} for n in range(1200)]
    numbers = [{"amount": 12.5, "age": None, "bad": "1"} for _ in range(1200)]
    later = [{"amount": "x" if n < 100 else "1", "age": 1, "bad": 1} for n in range(1200)]
    for events in (some, numbers, later):
        assert first_warnings(caplog, config_of(PLAIN, learner=TAKES_TEXTS), events) == []
    bounds = {"label": "bad", "features": {"amount": [0, 99], "age": [0, 9]}}
    assert first_warnings(caplog, config_of(bounds, learner=TAKES_TEXTS), [{"amount": "1", "age": 1}]) == []


@pytest.mark.parametrize("name", ["id", "payment.id"])
def test_a_worker_warns_once_of_an_id_that_no_event_has(name: str, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of({**PLAIN, "id": name}, learner=TAKES_TEXTS)
    event = {"amount": 2, "age": 3, "bad": True}
    (warning,) = first_warnings(caplog, config, [event] * (_ENOUGH + 50))
    assert warning["event"] == "no_ids"
    assert warning["detail"] == f"none of the first 1,000 events has the id {name!r}, so no score has one"
    for more in ({"id": 7}, {"payment": {"id": "p7"}}):
        caplog.clear()
        found = first_warnings(caplog, config, [event] * 500 + [event | more] + [event] * 500)
        assert bool(found) == (("payment" in more) != (name == "payment.id"))


@pytest.mark.parametrize(
    ("table", "event"),
    [
        (PLAIN, {"Amuont": 2, "age": 3}),
        (PLAIN, {"payload": {"amount": 2}, "age": 3}),
        (
            {**PLAIN, "features": ["age", "amount.hour"], "fields": {"amount": "epoch-s"}},
            {"mount": 1, "age": 3},
        ),
        ({**PLAIN, "features": {"age": [0, 9], "amount": ["2", "3"]}}, {"Amount": 2, "age": 3}),
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_a_worker_warns_once_of_a_feature_that_no_event_has(
    table: dict[str, Any], event: dict[str, Any], private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if private and not isinstance(table["features"], dict):
        table = {**table, "features": {name: [0, 9] for name in table["features"]}}
    config = config_of(table, learner=PRIVATE if private else TAKES_TEXTS)
    event = {**event, "bad": True, "note": SECRET}
    assert first_warnings(caplog, config, [event] * (_ENOUGH - 1)) == []
    (warning,) = first_warnings(caplog, config, [event] * (_ENOUGH + 50))
    assert warning["event"] == "missing_features"
    assert warning["detail"] == "none of the first 1,000 events has 'amount'"
    if private:
        assert warning["next_step"] == "send it in every event, or take it out of input.features"
        return
    repaired = config_of(pasted(table, warning["next_step"]), learner=TAKES_TEXTS)
    assert first_warnings(caplog, repaired, [event] * (_ENOUGH + 50)) == []
    one = [event] * 700 + [{**event, "amount": None}] + [event] * 500
    assert first_warnings(caplog, config, one) == []


def test_a_replay_of_few_events_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = [{"amuont": 1, "age": "7", "bad": n % 2 == 0} for n in range(20)]
    config = config_of(PLAIN, learner=TAKES_TEXTS)
    path = lines_of(tmp_path / "events.jsonl", events)
    assert Replay(config, path, lambda _: None, lambda _: None).run().events["learned"] == 20
    fixes = [vars(record)["fields"]["next_step"] for record in caplog.records]
    table = pasted(pasted(PLAIN, fixes[1]), fixes[0])
    assert (table["features"], table["fields"]) == (["amuont", "age"], {"age": "number"})


# ---- private learners --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        {"amount": 1, "age": 2, "bad": SECRET},
        {"amount": "47.11", "age": 2, "bad": True},
        {SECRET: {"amount": 1, "age": 2, "bad": True}},
        {"amount": 1, "age": 2, "bad": 4711},
        {SECRET: 1, "bad": True},
    ],
)
def test_errors_of_a_private_learner_quote_no_value_and_no_name_of_an_event(event: dict[str, Any]) -> None:
    table = {**PLAIN, "features": {"amount": [0, 99], "age": [0, 120]}}
    config = config_of(table, learner=PRIVATE)
    text = str(refusal(config, json.dumps(event).encode()))
    assert "Smith" not in text
    assert "47" not in text
    if isinstance(event.get("amount"), str):
        repaired = config_of(pasted(table, text.partition(". Fix: ")[2].rstrip(".")), learner=PRIVATE)
        assert event_decoder(repaired)(Record(0, json.dumps(event).encode())).x["amount"] == 47.11


# ---- files and classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [1, 4, "\t"])
@pytest.mark.parametrize("many", [False, True])
def test_json_over_several_lines(tmp_path: Path, indent: Any, many: bool) -> None:
    events = [{"amount": n, "age": 1, "bad": n % 2 == 0} for n in range(4)]
    path = tmp_path / "the events.json"
    path.write_text(
        json.dumps(events, indent=indent)
        if many
        else "\n".join(json.dumps(event, indent=indent) for event in events)
    )
    with pytest.raises(SourceError) as caught:
        Replay(config_of(PLAIN), str(path), lambda _: None, lambda _: None).run()
    tool = "jq -c '.[]'" if many else "jq -c ."
    assert f"{tool} '{path}' > events.jsonl" in caught.value.fix
    lines = Replay(config_of(PLAIN), lines_of(tmp_path / "e.jsonl", events), lambda _: None, lambda _: None)
    assert lines.run().events["learned"] == 4


@pytest.mark.parametrize("first", ['{"amount": 1,', "{}", '{"amount": 1', "{"])
def test_a_damaged_first_line_is_one_bad_event(tmp_path: Path, first: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{first}\n{{"amount": 1, "age": 2, "bad": true}}\n')
    gauges = Replay(config_of(PLAIN), str(path), lambda _: None, lambda _: None).run()
    assert (gauges.events["dead_letter"], gauges.events["learned"]) == (1, 1)


@pytest.mark.parametrize(
    ("path", "full"),
    [
        ("streampair.PairOGD", "streampair.auc.PairOGD"),
        ("PairOGD", "streampair.auc.PairOGD"),
        ("Forest", "streampair.auc.Forest"),
        ("streampair.MulticlassForest", "streampair.auc.MulticlassForest"),
        ("streampair.auc.PairOgd", "streampair.auc.PairOGD"),
        ("streampair.metric.Forest", "streampair.auc.Forest"),
    ],
)
def test_a_class_that_is_named_in_part(path: str, full: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_learner(config_of(PLAIN, learner={"class": path}))
    found = re.search(r'class = "(.*)"', caught.value.fix)
    assert found is not None
    assert found[1] == full
    assert build_learner(config_of(PLAIN, learner=tomllib.loads(found[0])))
