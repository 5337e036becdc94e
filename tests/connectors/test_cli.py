"""The commands that need no broker, as a user calls them."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from harness.applications import write_key
from harness.support import at_row
from sklearn.metrics import roc_auc_score
from streampair_connectors.cli import audit
from streampair_connectors.cli.app import app
from streampair_connectors.config import MetricsConfig, parse_config
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.factory import build_learner
from typer.testing import CliRunner

from streampair import __version__
from streampair.privacy.accounting import planned_mu
from streampair.privacy.mechanisms.ftrl import FTRLPlan

TOML = """
app = "fraud"
metrics.address = "127.0.0.1:0"
[input]
topic = "events"
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.PairOGD"
"""


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fraud.toml"
    path.write_text(TOML)
    return path


def rows(count: int = 60) -> list[dict[str, Any]]:
    return [{"a": i % 7 / 7 + (i % 3 == 0), "b": 0.5, "y": i % 3 == 0} for i in range(count)]


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, by the words that call it."""
    group = typer.main.get_command(app) if group is None else group
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


COMMANDS = dict(commands())


def help_of(*path: str) -> str:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}, prog_name="streampair")
    assert result.exit_code == 0
    return str(result.stdout)


def test_the_commands() -> None:
    assert {" ".join(path) for path in COMMANDS} == {
        *(
            "",
            "demo",
            "init",
            "check",
            "run",
            "serve",
            "compare",
            "replay",
            "backfill",
            "audit",
            "erasure",
            "key",
        ),
        *("budget", "budget plan", "budget show", "budget card"),
        *("dlq", "dlq list", "dlq show", "dlq replay"),
        *("model", "model export", "model show"),
        *("state", "state show", "state recover", "state export", "state import"),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_reads_well(path: tuple[str, ...]) -> None:
    """An example that can be called, a word on everything, and nothing cut off at 80 columns."""
    text, command = help_of(*path), COMMANDS[path]
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in re.sub(r"(\[ARGS\]|{CONFIG}|{TABLE})\.\.\.", "", text)
    assert text.startswith(f"Usage: streampair {' '.join([*path, ''])}")
    for parameter in command.params:
        assert parameter.help, f"{path} {parameter.name} says nothing"
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
        assert all(name in text for name in names)
    (example,) = re.findall(r"Example: (streampair .*)", text)
    words = example.split()[1:]
    called = max((p for p in COMMANDS if words[: len(p)] == list(p)), key=len)
    assert called[: len(path)] == path
    options = {option for parameter in COMMANDS[called].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_the_help_of_check_has_a_configuration_that_it_accepts() -> None:
    text = help_of("check").partition("has every key")[2].partition("\n\n")[2]
    config = parse_config(tomllib.loads(text.partition("\n\n")[0]))
    assert (config.app, config.input.topic) == ("fraud", "payments")
    build_learner(config)


def test_modules_and_scripts_are_called_by_one_name() -> None:
    command = [sys.executable, "-m", "streampair_connectors", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: streampair [OPTIONS] COMMAND")


def test_the_version() -> None:
    assert call("--version").stdout == f"streampair {__version__}\n"


def test_usage_errors_end_with_2(config: Path) -> None:
    call("run", code=2)
    call("nothing", code=2)
    call("replay", config, "x.csv", "--nothing", code=2)
    call("run", config, "--log-level", "loud", code=2)
    call("run", config, "--log-format", "xml", code=2)


def test_usage_errors_are_json_with_json(config: Path) -> None:
    for words, problem, command in (
        (["replay", config], "Missing argument 'FILE'", "replay"),
        (["run", config, "--nope"], "No such option: --nope", "run"),
        (["run", config, "--log-level", "loud"], "'loud' is not one of", "run"),
        (["budget", "plan", "--n", "many"], "should be a valid number", "budget plan"),
        (["nothing"], "No such command 'nothing'", ""),
        (["budget", "nothing"], "No such command 'nothing'", "budget"),
        (["dlq", "list"], "Missing argument", "dlq list"),
    ):
        with at_row(*words):
            result = CliRunner().invoke(app, [*map(str, words), "--json"], prog_name="streampair")
            assert (result.exit_code, result.stderr) == (2, "")
            found = json.loads(result.stdout)
            assert problem in found["error"]
            assert found["fix"] == f"{f'streampair {command}'.strip()} --help lists arguments and options"
            assert found["kind"] == "ConfigError"
            assert problem in call(*words, code=2).stderr  # in words without --json


@pytest.mark.parametrize("command", ["run", "check", "replay"])
def test_a_wrong_configuration_ends_with_2_and_names_the_fix(config: Path, command: str) -> None:
    config.write_text(TOML.replace("features", "feature"))
    more = ["events.csv"] if command == "replay" else []
    result = call(command, config, *more, code=2)
    assert result.stderr.endswith("unknown key input.feature\n  fix: write features instead of feature\n")
    findings = json.loads(call(command, config, *more, "--json", code=2).stdout)
    assert findings["kind"] == "ConfigError"
    assert "write features" in findings["fix"]


def test_run_needs_a_kafka_table(config: Path) -> None:
    assert "has no [kafka] table" in call("run", config, code=2).stderr


def test_check_names_everything_that_is_missing(config: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config.write_text(
            TOML.replace("127.0.0.1:0", f"127.0.0.1:{port}")
            + '[kafka]\nbootstrap_servers = "127.0.0.1:1"\nconnect_timeout = "2s"\n'
            + '[store]\ndirectory = "fraud.toml/state"\n'
        )
        result = call("check", config, code=1)
        report = json.loads(call("check", config, "--json", code=1).stdout)
    assert "FAIL store" in result.stdout
    assert "FAIL metrics.address" in result.stdout
    assert "FAIL kafka: no Kafka broker answers at 127.0.0.1:1" in result.stdout
    assert "ok   learner: PairOGD" in result.stdout
    assert result.stdout.count("fix:") == 3
    assert "not ready to run" in result.stdout
    assert [f["check"] for f in report["findings"] if not f["ok"]] == ["store", "metrics.address", "kafka"]


def test_check_names_the_steps_that_only_pickle_can_save(config: Path) -> None:
    step = '[[learner.steps]]\nclass = "river.preprocessing.{}"\n'
    text = TOML.replace('class = "streampair.auc.PairOGD"\n', "allow_pickle = true\n")
    learner = step.format("StandardScaler") + '[[learner.steps]]\nclass = "streampair.auc.PairOGD"\n'
    store = '[store]\ndirectory = "state"\nkey_file = "store.key"\n'
    write_key(config.with_name("store.key"), "5e" * 32)
    config.write_text(text + step.format("RobustScaler") + learner + store)
    assert "ok   learner.allow_pickle: RobustScaler: saved by pickle, signed" in check_output(config)
    config.write_text(text + learner + store)
    assert "pickle" not in check_output(config)


def check_output(config: Path) -> str:
    """What `check` says, without brokers."""
    return str(call("check", config).stdout)


WORDS = 'class = "river.feature_extraction.TFIDF"\noptions = { on = "a" }'


@pytest.mark.parametrize(
    ("learner", "words", "says"),
    [
        ("auc.PairOGD", False, "ok   learner: linear: streampair.auc.Forest ranks most tables better"),
        ("auc.OAM", False, "ok   learner: linear: streampair.auc.Forest ranks most tables better"),
        ("auc.PairOGD", True, None),
        ("auc.Forest", False, None),
        ("auc.Forest", True, "WARN learner: TFIDF makes a feature of each word, and a forest takes no more"),
    ],
)
def test_check_names_the_learner_that_fits_better(
    config: Path, learner: str, words: bool, says: str | None
) -> None:
    text, _, _ = config.read_text().partition("[learner]")
    steps = [WORDS] * words + [f'class = "streampair.{learner}"']
    head = "[[learner.steps]]" if words else "[learner]"
    config.write_text(text + "".join(f"{head}\n{step}\n" for step in steps))
    lines = [line for line in check_output(config).splitlines() if "docs/learners.md" in line]
    assert len(lines) == (says is not None)
    assert all(line.startswith(str(says)) for line in lines)


PRIVATE = TOML.replace("PairOGD", "PairFTRL").replace('["a", "b"]', "{ a = [0, 1], b = [0, 1] }")


def test_check_and_plan_warn_of_a_promise_that_protects_nobody(config: Path) -> None:
    """What is doubtful is no failure: it is said, and the run may start."""
    options = 'options = { epsilon = 21.0, delta = 0.01, horizon = 2000 }\n[store]\ndirectory = "state"\n'
    options += '[card]\napproved_by = "Ada"\nreason = "a test"\n'
    options += "approved_epsilon = 21.0\napproved_delta = 0.01\n"
    options += "approved_on = 2026-01-31\nreview_by = 9999-12-31\n"
    config.write_text(PRIVATE + options)
    report = json.loads(call("check", config, "--json").stdout)
    doubtful = [f for f in report["findings"] if f.get("warning") and f["check"] != "kafka"]
    assert [f["text"].partition(":")[0] for f in doubtful] == [
        "epsilon is 21",
        "delta is 0.01, and there are 2,000 records",
    ]
    assert all(f["ok"] for f in doubtful)
    assert "WARN privacy: epsilon is 21" in call("check", config).stdout
    config.write_text(PRIVATE + options.replace("21.0", "1.0").replace("0.01", "1e-4"))
    assert "WARN privacy" not in call("check", config).stdout
    config.write_text(PRIVATE + options.replace("2000", "1"))
    assert "one record makes no pair" in call("check", config, code=1).stdout
    output = call("budget", "plan", "--n", 2000, "--d", 2, "--epsilon", 21, "--delta", 0.01).stdout
    assert "warning: epsilon is 21" in output
    assert "warning: delta is 0.01" in output


@pytest.mark.filterwarnings("default::streampair.errors.PrivacyWarning")
def test_replay_logs_that_records_lie_outside_their_bounds(config: Path, tmp_path: Path) -> None:
    """In the log of whoever runs it, once, and not in what it writes."""
    config.write_text(PRIVATE + 'options = { delta = 1e-4, horizon = 2000 }\n[store]\ndirectory = "state"\n')
    data = tmp_path / "events.jsonl"
    far = [{**row, "a": 500.0 + row["a"]} for row in rows(300)]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in far))
    result = call("replay", config, data, "--json")
    events = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    (warning,) = [event for event in events if event["event"] == "warning"]
    assert warning["kind"] == "PrivacyWarning"
    assert "of 'a' lie outside their bounds" in warning["message"]
    assert "outside their bounds" not in result.stdout


def warnings_of_replay(config: Path, events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `replay` logs about some events, by the names of the warnings."""
    data = config.with_name("events.jsonl")
    data.write_text("".join(f"{json.dumps(row)}\n" for row in events))
    said = call("replay", config, data, "--output", config.with_name("scores.jsonl")).stderr
    logged = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {each["event"]: each for each in logged}


def behind(step: str, text: str) -> str:
    """A configuration whose learner has a step in front."""
    return text.replace("[learner]", f'[[learner.steps]]\nclass = "{step}"\n[[learner.steps]]')


def test_replay_warns_of_a_file_that_ends_in_the_warm_up(config: Path) -> None:
    """All scores are 0 then; what the warning says to do helps."""
    long, short = ", horizon = 20000", ", horizon = 300"
    steps = behind("streampair.preprocessing.Bounds", PRIVATE)
    steps = steps.replace('Bounds"\n', 'Bounds"\noptions = { bounds = { a = [0, 2], b = [0, 1] } }\n')
    for text, options, fix, better in (
        (PRIVATE, long, "set learner.options.horizon, which is 20,000, to the number", short),
        (PRIVATE, ", warmup = 300", "or set learner.options.warmup to fewer", ", warmup = 20"),
        (PRIVATE, "", "or set learner.options.warmup to fewer", ", warmup = 20"),
        (steps, long, "set learner.steps[1].options.horizon", short),
    ):
        with at_row(options, fix):
            config.write_text(text + f"options = {{ delta = 1e-4{options} }}\n")
            warning = warnings_of_replay(config, rows(300))["warm_up_not_over"]
            assert "and 300 were learned" in warning["detail"]
            assert fix in warning["next_step"]
            config.write_text(text + f"options = {{ delta = 1e-4{better} }}\n")
            assert "warm_up_not_over" not in warnings_of_replay(config, rows(300))


@pytest.mark.filterwarnings("default::streampair.errors.PrivacyWarning")
def test_replay_warns_of_bounds_that_most_values_are_outside_of(config: Path) -> None:
    """Names and counts, and no value."""
    far = [{**row, "a": row["a"] + 4711 * (i % 10 < 6), "b": 2 * (i % 2)} for i, row in enumerate(rows(200))]
    bounded = TOML.replace('["a", "b"]', "{ a = [0, 2], b = [0, 1] }")
    private = bounded.replace("PairOGD", "PairFTRL") + "options = { delta = 1e-4, warmup = 20 }\n"
    for text in (bounded, private):
        with at_row(text):
            config.write_text(text)
            warning = warnings_of_replay(config, far)["values_outside_bounds"]
            assert warning["features"] == {"a": 120}
            assert "most values of 'a' in 200 events" in warning["detail"]
            assert "471" not in json.dumps(warning)
            assert "values_outside_bounds" not in warnings_of_replay(config, rows(200))


def test_check_warns_of_a_private_learner_without_bounds(config: Path) -> None:
    options = 'options = { delta = 1e-4 }\n[store]\ndirectory = "state"\n'
    unbounded = TOML.replace("PairOGD", "PairFTRL") + options
    scaled = behind("streampair.preprocessing.Bounds", unbounded)
    for text, wanted in (
        (unbounded, "Write input.features = { a = [LOW, HIGH], b = [LOW, HIGH] }, by what is known"),
        (unbounded.replace('features = ["a", "b"]\n', ""), "Write input.features = { NAME = [LOW, HIGH] }"),
        (
            behind("river.preprocessing.Normalizer", unbounded),
            "Write learner.steps[1].options.bounds = { NAME",
        ),
        (scaled.replace('Bounds"\n', 'Bounds"\noptions = { bounds = { a = [0, 1] } }\n'), None),
        (PRIVATE + options, None),
        (TOML, None),
    ):
        with at_row(wanted):
            config.write_text(text)
            lines = [line for line in call("check", config).stdout.splitlines() if "have no bounds" in line]
            assert len(lines) == (wanted is not None), lines
            assert all(line.startswith("WARN bounds: ") and str(wanted) in line for line in lines)


def test_check_says_that_every_message_of_a_label_topic_is_one_label(config: Path) -> None:
    """A field that nobody named would otherwise be taken for the positive label without a word."""
    later = '[label_input]\ntopic = "frauds"\nid = "key"\nafter = "6s"\nabsent = false\n'
    text = TOML.replace('label = "y"\n', "")
    config.write_text(text + later)
    assert "labels from topic 'frauds', each of which means True, events" in call("check", config).stdout
    named = text + later + 'label = "fraud"\n'
    config.write_text(named)
    said = call("check", config).stdout
    assert "labels from topic 'frauds', events" in said
    assert "label_input.stopped" not in said
    # With scores that are acted on, silence may mean that an event was stopped.
    alerts = "[output]\nalert_above = 0.5\n"
    config.write_text(named + alerts)
    assert "WARN label_input.stopped: scores from 0.5 on are alerts" in call("check", config).stdout
    for more in ('stopped = "declined"\n', None):
        config.write_text((named + more if more else named.replace("absent = false\n", "")) + alerts)
        assert "label_input.stopped" not in call("check", config).stdout
    explores = 'explore = 0.1\nexplore_key_file = "coins.key"\n'
    config.write_text(f'{named}stopped = "declined"\n{alerts}{explores}')
    assert "FAIL output.explore: the explore_key file" in call("check", config, code=1).stdout
    write_key(config.with_name("coins.key"), "5a" * 32)
    said = call("check", config).stdout
    assert "0.1 of the events with a score of at least 0.5 are to be let pass" in said
    assert "5a5a" not in said
    # Whose scores stop events matters to a private learner alone.
    assert "label_input.stopped" not in said
    private = PRIVATE + 'options = { delta = 1e-4 }\n[store]\ndirectory = "state"\n'
    config.write_text(
        private.replace('label = "y"\n', "") + later + 'label = "fraud"\nstopped = "declined"\n'
    )
    assert "ok   label_input.stopped: the guarantee covers stops by scores" in call("check", config).stdout


def test_check_looks_at_the_host_of_each_endpoint(config: Path) -> None:
    """192.0.2.1 is for documents, nobody's."""
    separate = 'metrics.address = "192.0.2.1:0"\nmetrics.public_address = "[::1]:0"'
    config.write_text(TOML.replace('metrics.address = "127.0.0.1:0"', separate))
    findings = json.loads(call("check", config, "--json", code=1).stdout)["findings"]
    ports = {f["check"]: f for f in findings if f["check"].startswith("metrics.")}
    public = {"check": "metrics.public_address", "ok": True, "text": "::1, a free port"}
    assert ports["metrics.public_address"] == public
    assert not ports["metrics.address"]["ok"]
    assert "192.0.2.1" in ports["metrics.address"]["text"]
    assert "correct metrics.address" in ports["metrics.address"]["fix"]


def test_check_tells_the_port_of_the_running_application_from_one_that_is_taken(config: Path) -> None:
    async def checked(app: str) -> dict[str, Any]:
        telemetry = Telemetry()
        telemetry.health(app, "starting")
        server = MetricsServer(telemetry, MetricsConfig(address="127.0.0.1:0"))
        await server.start()
        address = f"metrics.address={server.url.removeprefix('http://')}"
        code = 0 if app == "fraud" else 1
        result = await asyncio.to_thread(call, "check", config, "--json", "--set", address, code=code)
        await server.stop()
        (found,) = (f for f in json.loads(result.stdout)["findings"] if f["check"] == "metrics.address")
        return found

    mine, other = asyncio.run(checked("fraud")), asyncio.run(checked("fraud-2"))
    assert mine["ok"]
    assert "is in use by the application 'fraud', which runs" in mine["text"]
    assert not other["ok"]
    assert "cannot listen on" in other["text"]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz"])
def test_replay_scores_every_event(config: Path, suffix: str) -> None:
    data = rows()
    if suffix.startswith(".csv"):
        text = "y,a,b\n" + "".join(f"{int(r['y'])},{r['a']!r},{r['b']}\n" for r in data)
    else:
        text = "".join(json.dumps(r) + "\n" for r in data)
    file = config.with_name(f"events{suffix}")
    file.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    result = call("replay", config, file)
    scores = [json.loads(line) for line in result.stdout.splitlines()]
    assert [s["offset"] for s in scores] == list(range(60))
    assert {s["outcome"] for s in scores} == {"learned"}
    assert "events: 60" in result.stderr
    assert "regret" in result.stderr
    out = config.with_name("scores.jsonl")
    again = call("replay", config, file, "--output", out, "--json")
    assert [json.loads(line)["score"] for line in out.read_text().splitlines()] == [
        s["score"] for s in scores
    ]
    assert json.loads(again.stdout)["summary"]["learned"] == 60
    assert sorted(p.name for p in config.parent.iterdir()) == [
        "events" + suffix,
        "fraud.toml",
        "scores.jsonl",
    ]


@pytest.mark.parametrize(
    ("learner", "labels", "bad"),
    [
        ("ranking.PairOGD", [-1, -0.25, 0.5, 1, 40], "good"),
        ("metric.PairOGD", ["red", "green", "blue"], None),
    ],
)
def test_replay_of_relevances_and_of_classes(
    config: Path, learner: str, labels: list[Any], bad: str | None
) -> None:
    text = TOML.replace("auc.PairOGD", learner)
    config.write_text(text.replace('label = "y"', 'label = "y"\nlabel_type = "any"'))
    file = config.with_name("events.jsonl")
    events = [{**row, "y": labels[i % len(labels)]} for i, row in enumerate(rows())]
    if bad is not None:
        events.append({**events[0], "y": bad})
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = json.loads(call("replay", config, file, "--json").stdout.splitlines()[-1])["summary"]
    assert summary["learned"] == 60
    assert summary["dead_letters"] == ({} if bad is None else {"label": 1})
    assert math.isfinite(summary["regret"])


def test_replay_sets_bad_events_aside(config: Path) -> None:
    good = [json.dumps(r).encode() for r in rows(4)]
    file = config.with_name("events.jsonl")
    file.write_bytes(
        b"\n".join([good[0], b"\xff\x00", good[1], b"{}", b'{"a": NaN, "b": 1, "y": true}', *good[2:]])
    )
    result = call("replay", config, file, "--json")
    summary = json.loads(result.stdout.splitlines()[-1])["summary"]
    assert summary["dead_letters"] == {"decode": 3}
    assert summary["learned"] == 4
    letters = [
        json.loads(line) for line in (config.parent / "fraud-dead-letters.jsonl").read_text().splitlines()
    ]
    assert [(x["offset"], x["stage"]) for x in letters] == [(1, "decode"), (3, "decode"), (4, "decode")]
    assert letters[0]["value_base64"] == "/wA="
    assert letters[2]["value"] == '{"a": NaN, "b": 1, "y": true}'
    chosen = config.with_name("aside.jsonl")
    call("replay", config, file, "--dead-letters", chosen)
    assert len(chosen.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("missing.jsonl", None, "missing.jsonl cannot be read: No such file"),
        ("short.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20], "cannot be read"),
        ("damaged.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:10] + b"\xff" * 20, "cannot be read"),
        ("not.csv.gz", b"plain", "is not a gzip file: it begins with b'pl'"),
        ("semicolons.csv", b"a;b;y\n1;2;1\n", "are separated by semicolons"),
        ("tabs.csv", b"a\tb\ty\n1\t2\t1\n", "are separated by tabs"),
        ("numbers", b"1 2 3\n", "has no column 'a'"),
        ("columns.csv", b"a,y\n1,1\n", "has no column 'b'"),
        ("empty.csv", b"", "empty.csv is empty"),
        ("empty.jsonl", b"", "empty.jsonl has no events"),
        ("empty.csv.gz", gzip.compress(b"", mtime=0), "empty.csv.gz is empty"),
    ],
)
def test_replay_of_a_file_that_cannot_be_used(
    config: Path, name: str, content: bytes | None, problem: str
) -> None:
    file = config.with_name(name)
    if content is not None:
        file.write_bytes(content)
    result = call("replay", config, file, code=1)
    assert problem in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(("csv", "packed"), [(False, False), (True, True)])
def test_replay_knows_the_format_of_standard_input(config: Path, csv: bool, packed: bool) -> None:
    data = rows()
    text = "\n\ufeff".lstrip("\n") if csv else "\n"
    if csv:
        text += "y,a,b\n" + "".join(f"{int(r['y'])},{r['a']!r},{r['b']}\n" for r in data)
    else:
        text += "".join(json.dumps(r) + "\n" for r in data)
    sent = gzip.compress(text.encode()) if packed else text.encode()
    command = [sys.executable, "-m", "streampair_connectors", "replay", str(config), "-", "--json"]
    done = subprocess.run(command, input=sent, capture_output=True, check=False, cwd=config.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["learned"] == 60


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a,b,y\n1,x,1\n1,,1\n2,x,0\n", "3 of 3 events could not be used, most often: feature 'b' is text"),
        ("a,b,y\n1,2,\n3,4,\n", "no event has the label 'y'"),
        ("a,b,y\n", "events.csv has no events"),
    ],
)
def test_a_replay_that_learned_nothing_fails_with_the_reason(config: Path, content: str, reason: str) -> None:
    file = config.with_name("events.csv")
    file.write_text(content)
    numbers_only = "learner.class=river.linear_model.LogisticRegression"
    result = call("replay", config, file.name, "--set", numbers_only, code=1)
    assert f"error: nothing was learned: {reason}" in result.stderr
    assert "learned: 0" in result.stderr
    assert "  fix: " in result.stderr


def test_a_replay_that_is_interrupted_reports_what_it_did(config: Path) -> None:
    """The pipe stays open: the replay waits for events when SIGINT comes."""
    command = [sys.executable, "-m", "streampair_connectors", "replay", str(config), "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=config.parent
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            for row in rows(12):
                process.stdin.write(json.dumps(row).encode() + b"\n")
                process.stdin.flush()
                assert json.loads(process.stdout.readline())["outcome"] == "learned"
            process.send_signal(signal.SIGINT)
            summary = process.stderr.read().decode()
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert "learned: 12" in summary
    assert "interrupted: True" in summary


def test_replay_stops_when_the_schema_broke(config: Path) -> None:
    file = config.with_name("events.jsonl")
    file.write_text("nonsense\n" * 600)
    said = call("replay", config, file, code=1).stderr
    assert "are bad" in said
    assert f"fix: correct {file}, or the keys of [input]" in said
    assert "--set worker.on_bad=skip" in said
    assert "topic" not in said
    with file.open("ab") as more:
        more.writelines(json.dumps(row).encode() + b"\n" for row in rows(12))
    call("replay", config, file, "--set", "worker.on_bad=skip")


def test_a_reader_that_goes_away_is_no_error(config: Path) -> None:
    """A traceback when `head` has read enough."""
    file = config.with_name("events.jsonl")
    file.write_text("".join(json.dumps(r) + "\n" for r in rows(4000)))
    command = f"{sys.executable} -m streampair_connectors replay {config} {file} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["offset"] == 0
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_audit(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(
        TOML.replace("auc.PairOGD", "auc.PairFTRL") + "[learner.options]\nepsilon = 8.0\nhorizon = 40\n"
    )
    # The key is thrown away after an audit: here it is fixed, and with it the noise.
    monkeypatch.setattr(audit.secrets, "token_bytes", lambda count: bytes(count))
    output = call("audit", config, "--runs", 60).stdout
    assert "verdict: nothing contradicts the claim" in output
    assert "the best attack, exactly" in output
    report = json.loads(call("audit", config, "--runs", 60, "--slots", 20, "--json").stdout)
    assert report["holds"]
    (part,) = report["parts"]
    assert part["slots"] == 20
    assert part["exact"] <= part["accounted"] * (1 + 1e-6)
    true = FTRLPlan.mu_spent
    monkeypatch.setattr(FTRLPlan, "mu_spent", lambda self, steps: 0.7 * true(self, steps))
    assert "VIOLATED" in call("audit", config, "--runs", 60, code=1).stdout
    config.write_text(TOML)
    assert "not private" in call("audit", config, code=2).stderr


def test_budget_plan() -> None:
    output = call("budget", "plan", "--n", "2e4", "--d", 10, "--positive-rate", 0.2).stdout
    assert "recommended: auc.PairFTRL(epsilon=1.0, delta=5e-05, horizon=20000)" in output
    assert "epsilon\n" in output
    assert all(name in output for name in ("OnPairStrC", "OnPairC", "mechanism=PairGradients"))
    found = json.loads(call("budget", "plan", "--n", "2e4", "--d", 10, "--json").stdout)
    assert found["recommended"].startswith("auc.PairFTRL(")
    said = [forecast["settings"].get("mechanism") for forecast in found["forecasts"]]
    assert {"class": "streampair.privacy.PairGradients"} in said
    assert len(found["forecasts"]) == 5
    for forecast in found["forecasts"]:
        low, high = forecast["loss_band"]
        assert 0.0 <= low <= high
        assert [found["auc_without_privacy"] - loss for loss in (high, low)] == pytest.approx(
            forecast["auc_band"]
        )
    assert "10 to 90 %" in output
    assert "four of five losses are in the band" in " ".join(output.split())
    assert found["recommended_components"] in (None, *(c["components"] for c in found["components"]))
    assert "n is" in call("budget", "plan", "--n", "nan", "--d", 10, code=2).stderr
    assert "n is 50.5" in call("budget", "plan", "--n", "50.5", "--d", 10, code=2).stderr


def test_budget_plan_of_a_short_stream() -> None:
    output = call("budget", "plan", "--n", 50, "--d", 20).stdout
    assert output.startswith("50 records, 20 features")
    assert "recommended: auc." in output
    assert json.loads(call("budget", "plan", "--n", 50, "--d", 20, "--json").stdout)["n"] == 50


@pytest.mark.parametrize("family", ["auc", "ranking"])
def test_budget_plan_of_a_table_and_a_stream(family: str) -> None:
    command = ("budget", "plan", "--n", 2000, "--d", 4, "--family", family, "--table", 5000)
    found = json.loads(call(*command, "--json").stdout)
    spend, delta = found["table"], found["delta"]
    assert (spend["rows"], delta, spend["doubts"]) == (5000, 1 / 5000, [])
    assert spend["mu_history"] == pytest.approx(spend["mu_stream"], rel=1e-9)
    assert spend["mu_both"] == pytest.approx(math.hypot(spend["mu_history"], found["mu"]))
    # As two learners say of themselves: what one of a smaller budget spends, twice, is the whole of it.
    assert math.sqrt(2) * planned_mu(spend["epsilon_each"], delta) == pytest.approx(planned_mu(1.0, delta))
    assert planned_mu(spend["epsilon_both"], delta) == pytest.approx(spend["mu_both"])
    assert 0.5 < spend["epsilon_each"] < 1.0 < spend["epsilon_both"] < 2.0
    output = " ".join(call(*command, "--delta", 4e-4).stdout.split())
    assert "there are 5,000 rows" in output
    assert "A table of 5,000 rows (history.Job) spends epsilon 1 " in output
    assert "For 1 together give each" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", 50), "another mechanism"),
        (("--table", 5000.5), "rows is 5000.5"),
        (("--table", "inf"), "rows is inf"),
        (("--table", -1), "rows is -1"),
        (("--table", 5000, "--entity", 2), "one row of a table"),
        (("--table", 5000, "--family", "metric"), "choose another --family"),
    ],
)
def test_budget_plan_refuses_a_table_that_no_job_learns(options: tuple[Any, ...], message: str) -> None:
    error = call("budget", "plan", "--n", 2000, "--d", 4, *options, code=2).stderr
    assert message in " ".join(error.split())


def test_budget_plan_of_rankings_and_metrics() -> None:
    small = ("budget", "plan", "--n", 2000, "--d", 4, "--family")
    found = json.loads(call(*small, "metric", "--level", 0.8, "--json").stdout)
    assert found["recommended"].startswith("metric.")
    assert found["stated"] == 0.8
    output = call(*small, "ranking", "--entity", 2, "--separation", 50).stdout
    assert "pairs in order" in output
    assert "EntityLimit(records=2" in output.replace("\n", "")
    assert "'all' is not one of 'auc', 'ranking', 'metric'" in call(*small, "all", code=2).stderr


def test_budget_plan_counts_what_a_configuration_declares(config: Path) -> None:
    declared = '{ a = [0, 1], zone = ["north", "south"] }'
    config.write_text(TOML.replace('features = ["a", "b"]', f"features = {declared}"))
    found = json.loads(call("budget", "plan", "--n", "2e4", "--config", config, "--json").stdout)
    assert found["d"] == 3
    assert found["one_hot"] == [2]
    assert "3 features, 2 of them for the declared values of zone" in call("check", config).stdout
    for section, output in (
        ((), "is not given"),
        (("--d", 3, "--config", config), "given twice"),
    ):
        assert output in call("budget", "plan", "--n", "2e4", *section, code=2).stderr
    config.write_text(TOML.replace('features = ["a", "b"]', ""))
    assert "declares no features" in call("budget", "plan", "--n", "2e4", "--config", config, code=2).stderr


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_replay_of_text_columns_into_a_private_learner(config: Path, suffix: str) -> None:
    """The label goes by the text alone: it ranks where the values are declared, and else it does not."""
    zones = ["north", "south", "north", "south", "east", ""]
    events = [
        {"a": i % 7 / 7, "zone": zones[i % 6], "y": zones[i % 6] == "north" or i % 11 == 0}
        for i in range(600)
    ]
    lines = [json.dumps({**event, "zone": event["zone"] or None}) for event in events]
    if suffix == ".csv":
        lines = ["a,zone,y", *(f"{e['a']!r},{e['zone']},{int(e['y'])}" for e in events)]
    file = config.with_name(f"events{suffix}")
    file.write_text("\n".join(lines) + "\n")
    text = TOML.replace("streampair.auc.PairOGD", "streampair.auc.PairFTRL")
    text += "\n[learner.options]\nepsilon = 8.0\ndelta = 1e-3\nhorizon = 600\nseed = 1\n"
    found = []
    for declared in ('{ a = [0, 1], zone = ["north", "south"] }', "{ a = [0, 1] }"):
        config.write_text(text.replace('features = ["a", "b"]', f"features = {declared}"))
        result = call("replay", config, file, "--json").stdout.splitlines()
        summary = json.loads(result[-1])["summary"]
        assert (summary["learned"], summary["dead_letters"]) == (600, {})
        scores = [json.loads(line)["score"] for line in result[300:600]]
        found.append(roc_auc_score([event["y"] for event in events[300:]], scores))
    assert found[0] > 0.85
    assert found[1] < 0.65
