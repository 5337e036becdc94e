"""`streampair init` on files, at a terminal, and what it finds in the fields of events."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pty
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness.support import at_row
from streampair_connectors.cli.app import app
from streampair_connectors.cli.findings import (
    NO_ID,
    Findings,
    fields_of,
    find,
    label_candidates,
    rounded,
)
from typer.testing import CliRunner

from streampair.errors import ConfigError


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def rows(count: int = 200) -> list[dict[str, Any]]:
    coin = random.Random(5)
    made = []
    for number in range(count):
        churned = coin.random() < 0.3
        made.append(
            {
                "customer_id": number,
                "amount": round(coin.gauss(9 if churned else 5, 2), 2),
                "country": coin.choice(["BE", "NL"]),
                "since": f"2025-01-{1 + number % 28:02d}",
                "churned": "yes" if churned else "no",
            }
        )
    return made


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "history.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows(1)[0]))
        writer.writeheader()
        writer.writerows(rows())
    return path


def draft(*arguments: object) -> dict[str, Any]:
    """The tables that are written to `fraud.toml`, in place of the file that is there."""
    call("init", "fraud.toml", "--yes", *arguments)
    text = Path("fraud.toml").read_text()
    assert len(text.splitlines()) <= 20
    return tomllib.loads(text)


def test_a_table_from_init_to_scores(table: Path) -> None:
    found = draft("--file", table)
    assert found["app"] == "fraud"
    assert found["input"] == {
        "label": "churned",
        "id": "customer_id",
        "features": ["amount", "country", "since.weekday"],
        "fields": {"since": "iso-8601"},
    }
    assert "kafka" not in found
    said = call("check", "fraud.toml", "--set", "metrics.address=127.0.0.1:0").stdout
    assert "WARN kafka: no [kafka] table, so this is for `replay` of files" in said
    assert said.endswith("\nready to replay\n")
    call("replay", "fraud.toml", table, "--output", "scores.jsonl")
    scores = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    assert {each["outcome"] for each in scores} == {"learned"}
    assert [each["id"] for each in scores] == [str(number) for number in range(200)]


def test_json_lines_from_init_to_scores(table: Path) -> None:
    path = table.with_suffix(".jsonl.gz")
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"at": {"a": row}, "tags": []}) + "\n" for row in rows())
        file.write("oops\n")
    result = call("init", "fraud.toml", "--file", path)
    assert f"from 201 events of file {path}\n  not readable: 1, the first because: " in result.stdout
    features = tomllib.loads(Path("fraud.toml").read_text())["input"]["features"]
    assert features == ["at.a.amount", "at.a.country", "at.a.since.weekday"]
    call("replay", "fraud.toml", path, "--output", "scores.jsonl")


def test_private_learners(table: Path) -> None:
    found = draft("--file", table, "--private", "0.5")
    assert found["learner"]["class"] == "streampair.auc.PairFTRL"
    assert found["input"]["features"] == {
        "amount": rounded(*(f(row["amount"] for row in rows()) for f in (min, max))),
        "country": ["BE", "NL"],
        "since.weekday": [0, 6],
    }
    lines = Path("fraud.toml").read_text().splitlines()
    above = next(i for i, line in enumerate(lines) if line.startswith("input.features"))
    assert lines[above - 1].startswith("# confirm: public?")
    assert "epsilon" in call("init", "x.toml", "--file", table, "--private", "0", code=2).stderr
    assert not Path("x.toml").exists()


def test_set_writes_keys(table: Path) -> None:
    found = draft(
        *(
            "--file",
            table,
            "--set",
            "learner.class=streampair.auc.Forest",
            "--set",
            "learner.options.trees=9",
        ),
        *("--set", "worker.batch_size=50", "--set", 'input.features=["amount"]'),
        *("--set", "input.fields={}"),
    )
    assert found["learner"] == {"class": "streampair.auc.Forest", "options": {"trees": 9}}
    assert found["worker"] == {"batch_size": 50}
    assert found["input"]["features"] == ["amount"]
    wrong = call("init", "x.toml", "--file", table, "--set", "input.labl=y", code=2)
    assert "labl" in wrong.stderr
    assert not Path("x.toml").exists()


def test_no_file_is_replaced_without_yes(table: Path) -> None:
    Path("fraud.toml").write_text("mine")
    said = call("init", "fraud.toml", "--file", table, code=2).stderr
    assert said == "error: fraud.toml exists\n  fix: name another file, or add --yes to replace it\n"
    assert Path("fraud.toml").read_text() == "mine"
    assert draft("--file", table)["app"] == "fraud"


def test_data_is_not_replaced_by_a_configuration(table: Path) -> None:
    data = table.read_bytes()
    said = call("init", table, "--yes", code=2).stderr
    assert "CONFIG must end in .toml" in said
    assert "--file" in said
    assert table.read_bytes() == data


def test_what_cannot_be_read_is_said_with_its_fix(table: Path) -> None:
    for name, content, code, problem in (
        ("semi.csv", "a;label\n1;0\n", 1, "separated by semicolons"),
        ("none.csv", "a,label\n", 1, "has no events"),
        ("void.csv", "", 1, "void.csv has no events"),
        ("bad.jsonl", "oops\n", 1, "none of 1 events"),
        (
            "two.jsonl",
            '{"old": true, "new": 1}\n{"old": false, "new": 0}\n',
            2,
            "old (true: 1, false: 1); new",
        ),
        ("alone.jsonl", '{"label": 1}\n{"label": 0}\n', 2, "no field of the sample can be a feature"),
        ("plain.jsonl", '{"a": 1}\n{"a": 2}\n{"a": 3}\n', 2, "no field of the sample looks like a label"),
        (
            "one.jsonl",
            '{"a": 1, "label": "ok"}\n',
            2,
            "the label 'label' has 1 values in the sample, not two: 'ok'",
        ),
        (
            "many.jsonl",
            "".join(f'{{"a": 1, "label": "{x}"}}\n' for x in "abc"),
            2,
            "has 3 values in the sample, not two: 'a', 'b', 'c'",
        ),
    ):
        with at_row(name):
            Path(name).write_text(content)
            label = ["--label", "label"] if name == "many.jsonl" else []
            said = call("init", "x.toml", "--file", name, *label, code=code).stderr
            assert problem in said
            assert "\n  fix: " in said
            assert not Path("x.toml").exists()
    assert "missing.csv cannot be read" in call("init", "x.toml", "--file", "missing.csv", code=1).stderr
    assert "--topic" in call("init", "x.toml", code=2).stderr
    assert "none/x.toml cannot be written" in call("init", "none/x.toml", "--file", table, code=1).stderr
    assert "cannot name an application" in call("init", "a b.toml", "--file", table, code=2).stderr
    assert "'nothing'" in call("init", "x.toml", "--file", table, "--label", "nothing", code=2).stderr
    assert "'nothing'" in call("init", "x.toml", "--file", table, "--id", "nothing", code=2).stderr


NAMES = [
    "a",
    "is_fraud",
    "id",
    "x.y",
    "$key",
    "a b",
    'q"',
    "é",
    "line\nbreak",
    "",
    "created_at",
    "x",
    "\x7f",
    "#",
]


def test_random_events_give_a_configuration_or_a_reason(table: Path) -> None:
    """Never a configuration that is refused, nor more lines than people read."""
    coin = random.Random(11)

    def value(depth: int = 0) -> Any:
        below = {} if depth > 2 else {name: value(depth + 1) for name in coin.sample(NAMES, 2)}
        kinds = [
            True,
            coin.randrange(3),
            coin.gauss(0, 10.0 ** coin.randint(-9, 9)),
            10 ** coin.randrange(400),
        ]
        times = ["2025-01-31T00:00:00Z", 1_704_106_800_000 + coin.randrange(10**6)]
        texts = ["Y", "N", "00123", str(coin.random()), 'te"xt\n\0', ""]
        return coin.choice([None, *kinds, *times, *texts, [], below])

    written = 0
    for number in range(80):
        with at_row(number):
            names = coin.sample(NAMES, coin.randint(1, 8))
            few = {name: [value() for _ in range(coin.randint(1, 4))] for name in names}
            events = [{name: coin.choice(few[name]) for name in names} for _ in range(coin.randint(1, 30))]
            events = [{**each, "is_fraud": coin.random() < 0.5} for each in events]
            Path("random.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
            private = ["--private", "1"] if number % 2 else []
            words = ["init", "random.toml", "--yes", "--file", "random.jsonl", *private]
            result = CliRunner().invoke(app, words)
            assert isinstance(result.exception, SystemExit | None), result.exception
            if result.exit_code == 0:
                text = Path("random.toml").read_text()
                assert len(text.splitlines()) <= 20
                tomllib.loads(text)
                written += 1
            else:
                assert "error: the configuration" not in result.stderr
                assert "\n  fix: " in result.stderr
    assert written > 20


def test_the_findings_for_machines(table: Path) -> None:
    found = json.loads(call("init", "fraud.toml", "--file", table, "--json", "--private", "1").stdout)
    assert found["tables"]["input"]["label"] == "churned"
    assert found["readable"] == found["events"] == 200
    (confirm,) = found["notes"]["input.features"]
    assert "public" in confirm


def at_terminal(answers: str, *arguments: object) -> tuple[int, str]:
    """Exit code and output of `init` where answers are typed."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "streampair_connectors", "init", *map(str, arguments)],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            os.write(ours, answers.encode())
            said, _ = process.communicate(timeout=120)
            return process.returncode, said
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_is_asked(table: Path) -> None:
    code, said = at_terminal("\n\n", "fraud.toml", "--file", table)
    assert code == 0, said
    assert "churned (false: " in said
    assert "Field of the label [churned]" in said
    answered = Path("fraud.toml").read_text()
    assert tomllib.loads(answered) == draft("--file", table)
    # The file exists now.
    code, said = at_terminal("n\n", "fraud.toml", "--file", table)
    assert (code, "Replace it?" in said) == (1, True)
    code, said = at_terminal("y\n2.5\ncountry\n", "fraud.toml", "--file", table, "--id", "-")
    assert code == 0, said
    found = tomllib.loads(Path("fraud.toml").read_text())
    assert found["learner"]["options"]["epsilon"] == 2.5
    assert "id" not in found["input"]
    assert {found["input"][key] for key in ("positive", "negative")} == {"BE", "NL"}


# ---- fields


def kinds(*values: Any, name: str = "a", cells: bool = False) -> str:
    return fields_of([{name: value} for value in values], cells=cells)[name].kind


def test_kinds_of_fields() -> None:
    each: dict[str, tuple[Any, ...]] = {
        "number": (1, 2.5, -3),
        "boolean": (True, False),
        "number as text": ("1.5", "-2", 3),
        "text": ("a", "b", "1"),
        "iso-8601": ("2026-01-31T09:11:37Z", "2026-01-31"),
        "epoch-ms": (1_704_106_800_000, "1704106800001"),
        "epoch-us": (1_704_106_800_000_000,),
        "nanoseconds": (1_704_106_800_000_000_000,),
        "nested or mixed": (1, []),
    }
    for kind, values in each.items():
        with at_row(kind):
            assert kinds(*values) == kind
    assert kinds("00123", "45678") == "text"  # digits that are no number: a code
    assert kinds("12", "45", cells=True) == "number"  # a cell of CSV is read as one
    assert kinds(1_704_106_800, 1_704_106_801) == "number"  # seconds could be anything
    assert kinds(1_704_106_800, 1_704_106_801, name="createdAt") == "epoch-s"
    assert kinds(1, {}) == kinds(10**400, 1) == kinds(10**400, True) == "nested or mixed"
    assert kinds(1, True) == "number"
    assert kinds(1_704_106_800_000, 1_704_106_800_001, name="order_id") == "number"
    assert kinds(3_704_106_800_000, 3_704_106_800_001) == "number"  # of 2087
    assert kinds(3_704_106_800_000, 3_704_106_800_001, name="ends_at") == "epoch-ms"


def found_in(events: list[dict[str, Any]], label: str = "label", **options: Any) -> Findings:
    fields = fields_of(events, cells=False)
    return find(fields, label=label, **{"private": False, "declared": {}, **options})


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"a": number, "label": label} for number, label in enumerate(labels)]


def test_labels_that_rank_high() -> None:
    for labels, wanted, confirmed in (
        ((True, False), (None, None), False),
        ((1, 0), (None, None), False),
        (("yes", "No"), (None, None), False),
        (("true", "false"), (None, None), False),
        (("N", "Y", "N"), ("Y", "N"), False),
        (("N",), ("Y", "N"), False),
        (("n", "n"), ("y", "n"), False),
        ((-1, 1, 1), (1, -1), False),
        ((2, 1), (2, 1), False),
        (("won", "lost", "lost"), ("won", "lost"), True),
        ((False, False), (None, None), False),
    ):
        with at_row(labels):
            found = found_in(labelled(*labels))
            assert (found.input.get("positive"), found.input.get("negative")) == wanted
            assert bool(found.confirm) == confirmed
    assert (
        "positive" not in found_in(labelled("a", "b", "c"), declared={"positive": "a", "negative": "b"}).input
    )
    with pytest.raises(ConfigError, match="has 3 values") as caught:
        found_in(labelled(1, 2, 3))
    assert "label_type" in caught.value.fix
    assert "ranking.PairOGD" in caught.value.fix
    assert "positive" not in found_in(labelled(1, 2, 3), declared={"label_type": "any"}).input


def test_label_candidates() -> None:
    events = [
        {"vip": i % 2 == 0, "is_fraud": i % 9 == 0, "n": i, "grade": i % 5, "kind": "ab"[i % 2]}
        for i in range(50)
    ]
    assert label_candidates(fields_of(events, cells=False)) == ["is_fraud", "vip", "kind"]


def test_a_label_with_a_broken_event_is_the_label(table: Path) -> None:
    """And a field that gives it away is left out as without that event."""
    labelled = {True: {"refunded_at": "2026-01-02"}, False: {}}
    events = [{"a": i, "is_fraud": i % 300 == 0, "vip": i % 2 == 0, "result": 1} for i in range(3000)]
    for event in events:
        event |= labelled[event["is_fraud"]]
    for odd in ("?", 7, ["x"], {"x": 1}):
        events[1200]["is_fraud"] = odd
        Path("events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        tables = draft("--file", "events.jsonl", "--messages", 3000)
        assert tables["input"] == {"label": "is_fraud", "features": ["a", "vip"]}
        said = call("init", "fraud.toml", "--file", "events.jsonl", "--messages", 3000, "--yes").stdout
        others = "" if isinstance(odd, dict) else ", others: 1"  # an object has fields of its own
        assert f"false: 2,990, true: 9{others}\n" in said
        assert "refunded_at (known only with one label)" in said
    classes = [{"a": i, "result": i % 100 % 3} for i in range(3000)]
    with pytest.raises(ConfigError, match="has 3 values"):
        found_in(classes, "result")


def test_another_label_is_no_feature() -> None:
    """It would give the label away."""
    events = [{"a": i, "is_fraud": i % 9 == 0, "chargeback": i % 9 == 0} for i in range(50)]
    found = found_in(events, "is_fraud")
    assert found.input["features"] == ["a"]
    assert found.left_out == {"chargeback": "perhaps a label, too"}


def test_a_field_that_one_label_alone_has_is_no_feature() -> None:
    """It is filled in when the label is known: its presence is the label."""
    coin = random.Random(9)
    events = [
        {
            "a": i,
            "gappy": i if coin.random() < 0.9 else None,
            "rare": 1 if i == 7 else None,
            "is_fraud": i % 5 == 0,
            "created_at": f"2026-01-{1 + i % 28:02d}T09:00:00Z",
            "fraud_confirmed_at": f"2026-02-{1 + i % 28:02d}T09:00:00Z" if i % 5 == 0 else None,
            "fraud_reason": ["card", "account", "other"][i % 3] if i % 5 == 0 else "",
            "chargeback_amount": i if i % 5 == 0 else None,
            "approved_by": None if i % 5 == 0 else i % 4,
        }
        for i in range(200)
    ]
    found = found_in(events, "is_fraud")
    assert found.input["features"] == ["a", "gappy", "rare", "created_at.hour", "created_at.weekday"]
    assert found.input["fields"] == {"created_at": "iso-8601"}
    leaks = ("fraud_confirmed_at", "fraud_reason", "chargeback_amount", "approved_by")
    assert found.left_out == dict.fromkeys(leaks, "known only with one label")


def test_a_field_that_says_the_label_is_left_out() -> None:
    """The label under another name, or a decision that follows from it; not what chance explains."""
    coin = random.Random(1)
    events = []
    for _ in range(300):
        fraud = coin.random() < 0.05
        events.append(
            {
                "is_fraud": fraud,
                "case": "open" if fraud else coin.choice(["none", "old"]),
                "blocked": int(fraud),
                "channel": "card" if fraud or coin.random() < 0.4 else "cash",  # not one label each
                "constant": "x",
                "a": coin.gauss(0, 1),
            }
        )
    found = found_in(events, label="is_fraud")
    assert found.input["features"] == ["channel", "constant", "a"]
    assert found.left_out == dict.fromkeys(("case", "blocked"), "each value has one label")
    few = [{"label": i % 2, "same": i % 2, "a": i} for i in range(4)]
    assert found_in(few).input["features"] == ["same", "a"]


def test_ids() -> None:
    events = [
        {"label": i % 2, "ref": f"r{i}", "event_id": f"e{i}", "customer_id": i // 2, "a": i}
        for i in range(60)
    ]
    found = found_in(events)
    assert found.input["id"] == "event_id"
    assert "customer_id" in found.left_out
    assert found.input["features"] == ["a"]
    assert "id" not in found_in(events, declared={"id": NO_ID}).input
    assert "id" not in found_in(labelled(0, 1)).input


def test_bounds_lie_around_the_values() -> None:
    coin = random.Random(3)
    for _ in range(2000):
        size = 10.0 ** coin.randint(-8, 8)
        low, high = sorted(coin.uniform(-size, size) for _ in range(2))
        first, last = rounded(low, high)
        assert first <= low <= high <= last
        assert first < last
    assert rounded(0, 0) == [0, 1]
    assert rounded(0, 5e-324) == [0, 1e-12]
    with pytest.raises(ConfigError, match="can be a feature"):
        found_in([{"label": i % 2, "a": 1} for i in range(9)], private=True)


def test_a_private_learner_gets_fields_without_gaps() -> None:
    """Of the events that have a label: others may be of another shape."""
    learned = [{"label": i % 2, "a": i, "b": i if i % 2 else None} for i in range(40)]
    found = found_in([*learned, *({"back": i} for i in range(40))], private=True)
    assert found.input["features"] == {"a": [0, 40]}
    assert found.left_out == {"b": "known only with one label", "back": "not in every event"}


def test_a_private_learner_gets_strings_with_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared string that is missing is 0 in its columns, and makes no dead letter."""
    monkeypatch.chdir(tmp_path)
    events: list[dict[str, Any]] = [{"label": i // 2 % 2, "amount": i} for i in range(40)]
    for i in range(0, 40, 3):
        events[i] |= {"city": "AB"[i % 2], "vip": i % 2 == 0}
        events[i + (i < 39)]["gap"] = i
    found = draft("--file", of_events(tmp_path, events), "--private", "1")["input"]["features"]
    assert found == {"amount": [0, 40], "city": ["A", "B"], "vip": ["false", "true"]}
    said = json.loads(call("init", "x.toml", "--file", "events.jsonl", "--private", "1", "--json").stdout)
    assert said["readable"] == 40
    assert "gap (not in every event)" in said["notes"]["input.features"][0]


def test_epoch_seconds_as_text_have_an_hour() -> None:
    events = [{"label": i % 2, "created": str(1_704_106_800 + 3600 * i)} for i in range(9)]
    assert found_in(events).input["features"] == ["created.hour", "created.weekday"]


# ---- safety


def of_events(folder: Path, events: list[dict[str, Any]], name: str = "events.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return path


def test_labels_of_another_topic_are_refused(table: Path) -> None:
    """Without the label its field would be a feature."""
    said = call("init", "x.toml", "--file", table, "--set", "label_input.topic=late", code=2).stderr
    assert "docs/late-labels.md" in said
    assert not Path("x.toml").exists()


def test_comments_of_long_lines_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    long = {f"a_field_with_a_long_name_{i}": 0 for i in range(9)}
    events = [{**dict.fromkeys(long, i), "is_fraud": "odd" if i % 3 else "even"} for i in range(60)]
    draft("--file", of_events(tmp_path, events))
    lines = Path("fraud.toml").read_text().splitlines()
    line = next(i for i, line in enumerate(lines) if line.startswith("input.positive"))
    assert lines[line - 1] == "# confirm: the rarer label is taken as positive"
    assert all("  # " not in line for line in lines)


def test_a_private_configuration_does_not_count_labels(table: Path) -> None:
    """However the learner is named: counts are of the records."""
    options = ["--set", "learner.class=streampair.auc.PrivateForest", "--set", "learner.options.epsilon=1.0"]
    options += ["--set", "learner.options.delta=1e-6", "--set", "learner.options.horizon=500"]
    for private in (["--private", "1"], options):
        with at_row(private):
            found = draft("--file", table, *private)
            assert isinstance(found["input"]["features"], dict)
            text = Path("fraud.toml").read_text()
            assert "true:" not in text
            assert "# confirm: public? The records gave these fields" in text
    draft("--file", table, "--private", "1", "--set", "input.features={amount=[0, 100]}")
    assert "public?" not in Path("fraud.toml").read_text()


def test_events_are_not_overwritten(table: Path) -> None:
    events = of_events(table.parent, rows(), "events.toml")
    data = events.read_bytes()
    Path("link.toml").symlink_to(events)
    for config in ("events.toml", "link.toml"):
        with at_row(config):
            said = call("init", config, "--yes", "--file", events, code=2).stderr
            assert "--file, which is read" in said
            assert events.read_bytes() == data


def test_wrong_keys_are_errors_with_a_fix(table: Path) -> None:
    for setting in (
        "input=x",
        "kafka=localhost:9092",
        "schema_registry=http://x",
        "learner=x",
        "learner.class=nope",
        "learner.class=streampair.auc.Nope",
        "learner.steps=[]",
        "input.label=nope",
        "input.id=nope",
        "input.features=amount",
        "worker=1",
        "oops=1",
        "kafka.bootstrap_servers=user:secret@host:9092",
    ):
        with at_row(setting):
            said = call("init", "x.toml", "--file", table, "--set", setting, code=2).stderr
            assert "\n  fix: " in said
            assert "secret" not in said
    for epsilon in ("inf", "nan", "0", "-1"):
        with at_row(epsilon):
            said = call("init", "x.toml", "--file", table, "--private", epsilon, code=2).stderr
            assert "epsilon" in said
    assert not Path("x.toml").exists()
    draft("--file", table, "--set", "input.time=nope")


def test_a_password_is_not_written(table: Path) -> None:
    said = call("init", "x.toml", "--topic", "t", "--kafka", "user:secret@host:9092", code=2).stderr
    assert "use username and password_file" in said
    assert "secret" not in said


def test_numbers_that_floats_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    huge = [10**400, True, 10**400, False]
    events = [
        {"is_fraud": i % 2, "a": i, "tiny": i % 3 * 5e-324, "huge": huge[i % 4], "wide": 1e307 * (i % 3)}
        for i in range(40)
    ]
    found = draft("--file", of_events(tmp_path, events), "--private", "1")
    assert found["input"]["features"] == {"a": [0, 40], "tiny": [0, 1e-12]}
    odd = [{"label": i % 2, "a": i, "none": float("nan")} for i in range(40)]
    assert found_in(odd, private=True).input["features"] == {"a": [0, 40]}


def test_a_file_of_debezium(table: Path) -> None:
    events = [{"op": "c", "before": None, "after": row} for row in rows()]
    file = of_events(table.parent, events)
    found = draft("--file", file)
    assert found["input"]["envelope"] == "debezium"
    assert found["input"]["label"] == "churned"
    call("replay", "fraud.toml", file, "--output", "scores.jsonl")


def test_a_file_of_latin_1_is_said_with_the_command_that_converts_it(table: Path) -> None:
    lines = table.read_bytes().replace(b",NL,", ",\u00c9,".encode("latin-1"))
    Path("latin.csv").write_bytes(lines)
    said = call("init", "fraud.toml", "--yes", "--file", "latin.csv").output
    assert "the first because: the line is not CSV: it is not UTF-8\n    fix: write UTF-8 CSV; this" in said
    assert "iconv -f latin1 -t utf-8 FILE > NEW\n" in said
    Path("latin.csv").write_bytes(lines.replace(b"amount", b"montant\xe9"))
    assert "iconv -f latin1" in call("init", "x.toml", "--file", "latin.csv", code=1).stderr


def test_a_file_without_a_header_is_asked_for_one(table: Path) -> None:
    for content, code in (("1.5,7,0\n2.5,8,1\n2,9,1\n", 2), ("1,1,0\n2,1,1\n", 1)):
        Path("bare.csv").write_text(content)
        said = call("init", "x.toml", "--file", "bare.csv", code=code).stderr
        assert "fix: does the file have a header? If not, write the names of" in said


def test_semicolons_come_with_decimal_commas(table: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for name, delimiter in (("semi", ";"), ("tabs", "\t")):
        content = table.read_text().replace(",", delimiter)
        Path(f"{name}.csv").write_text(content.replace(".", "," if delimiter == ";" else "."))
        said = call("init", "x.toml", "--file", f"{name}.csv", code=1).stderr
        command = said.partition("by commas; ")[2].partition(" does so")[0]
        command = command.replace("(..., sep", f"('{name}.csv', sep").replace(
            "(..., index", "('new.csv', index"
        )
        eval(command, {"pandas": pandas})
        assert pandas.read_csv("new.csv").equals(pandas.read_csv(table))


def test_a_sample_of_a_sorted_file_has_both_labels(table: Path) -> None:
    header, *lines = table.read_text().splitlines(keepends=True)
    lines.sort(key=lambda line: line.endswith("yes\n"))
    table.write_text("".join([header, *lines]))
    said = call("init", "fraud.toml", "--yes", "--file", table, "--messages", "30").output
    words = f"30 of 200 events of file {table}"
    assert f"fraud.toml: from {words}\n" in said
    assert Path("fraud.toml").read_text().startswith(f"# From {words}"[:107])
    (counts,) = (line for line in said.splitlines() if line.startswith("  input.label: "))
    assert sum(map(int, re.findall(r"\d+", counts))) == 30
    assert counts.count(",") == 1
    assert f"from 200 events of file {table}\n" in call("init", "fraud.toml", "--yes", "--file", table).output


def test_delta_is_below_one_over_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "many.jsonl"
    count = 1_200_000
    lines = [b'{"a": %d, "is_fraud": %s}\n' % (a, y) for a in (1, 2) for y in (b"true", b"false")]
    file.write_bytes(b"".join(lines) * (count // 4))
    delta = draft("--file", file, "--private", "1", "--messages", "100")["learner"]["options"]["delta"]
    assert delta == 1e-7
