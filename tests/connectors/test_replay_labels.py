"""`replay --labels`: events are learned when they are due, with the label that has come by then."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import late_labels
from river import evaluate, metrics
from sklearn.metrics import roc_auc_score
from streampair_connectors.cli import replay
from streampair_connectors.cli.app import app
from streampair_connectors.cli.replay import Replay
from streampair_connectors.config import parse_config
from typer.testing import CliRunner

from streampair import auc, evaluation
from streampair.errors import ConfigError, PrivacyError, SourceError

TOML = """
app = "fraud"
[input]
features = ["a", "b"]
id = "payment"
time = "time"
[label_input]
topic = "chargebacks"
id = "payment"
label = "fraud"
after = "30s"
lateness = "2s"
absent = false
[learner]
class = "streampair.auc.PairOGD"
"""
AFTER, LATENESS = 30_000, 2_000
BEGIN = 1_704_067_200_000  # 2024-01-01T00:00:00Z


class Event(NamedTuple):
    time: int
    payment: str
    a: float
    b: float


class Label(NamedTuple):
    time: int
    payment: str
    fraud: bool | str


def settings(**tables: Any) -> dict[str, Any]:
    """The configuration, with other keys in some of its tables; None removes a key."""
    config = tomllib.loads(TOML)
    for name, values in tables.items():
        config[name] = {**config.get(name, {}), **values}
        config[name] = {key: value for key, value in config[name].items() if value is not None}
    return config


def write(path: Path, rows: Sequence[Any], *, iso: bool = False) -> Path:
    """Write a file of named tuples, CSV or JSON lines by its suffix."""
    made = [row._asdict() for row in rows]
    for row in made if iso else ():
        row["time"] = datetime.fromtimestamp(row["time"] / 1000, UTC).isoformat(timespec="milliseconds")
    with path.open("w", newline="") as file:
        if path.suffix == ".csv":
            out = csv.DictWriter(file, list(made[0]))
            out.writeheader()
            out.writerows(made)
        else:
            file.writelines(json.dumps(row) + "\n" for row in made)
    return path


def streams(seed: int, count: int = 400) -> tuple[list[Event], list[Label]]:
    """Events and labels with ties, ids that come twice, and labels that are early, late or contradict."""
    coin = random.Random(seed)
    events, labels, now = [], [], BEGIN
    for number in range(count):
        now += coin.choice([0, 0, 1, 500, 1000, 4000])
        y = coin.random() < 0.4
        name = f"p{coin.randrange(count)}" if coin.random() < 0.05 else f"p{number}"
        events.append(Event(now, name, round(coin.gauss(0.4 if y else -0.2, 0.5), 6), coin.random()))
        for _ in range(coin.choice([0, 1, 1, 1, 2])):
            delay = coin.choice([-2001, -2000, -1, 0, 1000, 10_000, 29_999, 30_000, 30_001, 50_000])
            labels.append(Label(now + delay, name, y if coin.random() < 0.9 else not y))
    labels.append(Label(now, "of no event", True))
    return events, sorted(labels, key=lambda label: label.time)


def joined(events: Sequence[Event], labels: Sequence[Label]) -> tuple[list[bool | None], int]:
    """The label of each event, None without one, and the number of labels that were used: the naive way."""
    found: list[bool | None] = []
    used: set[int] = set()
    for event in events:
        mine = [
            number
            for number, label in enumerate(labels)
            if label.payment == event.payment
            and number not in used
            and event.time - LATENESS <= label.time <= event.time + AFTER
        ]
        used |= set(mine)
        found.append(labels[mine[0]].fraud if mine else None)
    return found, len(used)


class Done(NamedTuple):
    scores: list[dict[str, Any]]
    letters: list[dict[str, Any]]
    learner: Any
    late: Any
    summary: dict[str, Any]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    lanes: list[Any] = []
    build = replay.build_lane

    def kept(*args: Any, **named: Any) -> Any:
        lanes.append(build(*args, **named))
        return lanes[-1]

    monkeypatch.setattr(replay, "build_lane", kept)

    def run(events: Path, late: Path | None, progress: Any = None, /, **tables: Any) -> Done:
        scores, letters = io.BytesIO(), []
        config = parse_config(settings(**tables))
        one = Replay(config, str(events), scores.write, letters.append, None if late is None else str(late))
        gauges = one.run(None if progress is None else lambda _: progress(one))
        assert one.events == len(scores.getvalue().splitlines())
        rows = [json.loads(line) for line in scores.getvalue().splitlines()]
        return Done(
            rows,
            list(map(json.loads, letters)),
            lanes[-1].learner,
            one.late,
            replay.summarise(gauges, one.late),
        )

    return run


@pytest.mark.parametrize("seed", range(4))
def test_it_equals_progressive_validation_of_river(
    replayed: Callable[..., Done], tmp_path: Path, seed: int
) -> None:
    events, labels = streams(seed)
    assert len({event.time for event in events}) < len(events) - 100  # ties
    files = write(tmp_path / "events.csv", events), write(tmp_path / "labels.jsonl", labels)
    found = replayed(*files, worker={"batch_size": [1, 7, 1000, 1000][seed]})
    wanted: list[float] = []

    class Recording(auc.PairOGD):
        def predict_proba_one(self, x: Any) -> Any:
            wanted.append(self.score_one(x))
            return super().predict_proba_one(x)

    model = Recording()
    times = {(event.a, event.b): event.time for event in events}
    assert len(times) == len(events)
    ys, used = joined(events, labels)
    evaluate.progressive_val_score(
        [({"a": e.a, "b": e.b}, bool(y)) for e, y in zip(events, ys, strict=True)],
        model,
        metrics.LogLoss(),
        moment=lambda x: times[x["a"], x["b"]],
        delay=AFTER + LATENESS,
    )
    assert [row["score"] for row in found.scores] == pytest.approx(wanted, rel=0, abs=1e-12)
    assert found.learner.weights == pytest.approx(model.weights, rel=0, abs=1e-12)
    assert [row["offset"] for row in found.scores] == list(range(len(events)))
    assert [row["id"] for row in found.scores] == [event.payment for event in events]
    counts = {"labels_used": len(ys) - ys.count(None), "events_without_label": ys.count(None)}
    counts |= {"labels_unused": len(labels) - used}
    counts["labels_repeated"] = used - counts["labels_used"]
    assert counts.items() <= found.summary.items()
    assert found.summary["events"] == found.summary["learned"] == len(events)
    assert min(counts.values()) > 10


@pytest.mark.parametrize("seed", range(3))
def test_learning_by_arrival_equals_a_function_as_delay_of_river(
    replayed: Callable[..., Done], tmp_path: Path, seed: int
) -> None:
    """Events without a label are learned when they are due, which is a delay, too."""
    coin = random.Random(seed)
    now, events, labels, delays, ys = BEGIN, [], [], {}, []
    for number in range(400):
        now += coin.choice([0, 7, 500, 1000])
        event = Event(now, f"p{number}", coin.gauss(0.0, 1.0), coin.random())
        events.append(event)
        delay, y = coin.randrange(AFTER), coin.random() < 0.4
        if coin.random() < 0.7:
            labels.append(Label(now + delay, event.payment, y))
        else:
            delay, y = AFTER + LATENESS, False
        delays[event.a, event.b] = delay
        ys.append(y)
    labels.sort(key=lambda label: label.time)
    files = write(tmp_path / "events.csv", events), write(tmp_path / "labels.jsonl", labels)
    found = replayed(*files, worker={"batch_size": [1, 7, 1000][seed]}, label_input={"order": "arrival"})
    model = auc.PairOGD()
    times = {(event.a, event.b): event.time for event in events}
    evaluate.progressive_val_score(
        [({"a": e.a, "b": e.b}, y) for e, y in zip(events, ys, strict=True)],
        model,
        metrics.LogLoss(),
        moment=lambda x: times[x["a"], x["b"]],
        delay=lambda x, y: delays[x["a"], x["b"]],
    )
    assert found.learner.weights == pytest.approx(model.weights, rel=0, abs=1e-12)
    assert found.summary["learned"] == len(events)
    assert found.summary["labels_used"] == len(labels)
    waited = replayed(*files)
    assert waited.learner.weights != pytest.approx(model.weights, rel=0, abs=1e-6)


def test_events_without_a_label_are_not_learned_without_absent(
    replayed: Callable[..., Done], tmp_path: Path
) -> None:
    events, labels = streams(9)
    found = replayed(
        write(tmp_path / "e.jsonl", events), write(tmp_path / "l.csv", labels), label_input={"absent": None}
    )
    model = auc.PairOGD()
    ys, _ = joined(events, labels)
    for event, y in zip(events, ys, strict=True):
        if y is not None:
            model.learn_one({"a": event.a, "b": event.b}, y)
    assert found.learner.weights == pytest.approx(model.weights, rel=0, abs=1e-12)
    assert found.summary["skipped"] == ys.count(None)
    assert found.summary["learned"] == len(ys) - ys.count(None)


def test_it_learns_what_a_worker_learns(replayed: Callable[..., Done], tmp_path: Path) -> None:
    events, labels = late_labels.stream(300, 1)
    rows = [{**json.loads(event.value), "time": event.time} for event in events]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = [Label(label.time, label.id, label.value) for label in labels]
    names = list(late_labels.FEATURES)
    found = replayed(
        tmp_path / "e.jsonl",
        write(tmp_path / "l.csv", made),
        input={"features": names},
        label_input={"after": "30d", "lateness": "1m"},
    )
    model = auc.PairOGD()
    for event, code in late_labels.joined(events, labels):
        x = json.loads(event.value)
        model.learn_one({name: x[name] for name in names}, code == 2)
    assert found.learner.weights == pytest.approx(model.weights, rel=0, abs=1e-12)


def test_a_stopped_event_is_neither_learned_nor_in_a_figure(
    replayed: Callable[..., Done], tmp_path: Path
) -> None:
    """Though silence means "no"; the first label of an event counts, whether it says so or not."""
    events, labels = streams(11)
    coin = random.Random(1)
    labels = [
        each._replace(fraud=coin.choice(["declined", " declined "])) if coin.random() < 0.3 else each
        for each in labels
    ]
    for order, suffix in (("wait", ".csv"), ("arrival", ".jsonl")):
        files = write(tmp_path / f"e{suffix}", events), write(tmp_path / f"l{suffix}", labels)
        found = replayed(*files, label_input={"order": order, "stopped": "declined"})
        model, scores, learned = auc.PairOGD(), {}, []
        times = {"after": AFTER, "lateness": LATENESS, "order": order}
        pairs = [(event.time, event.payment, {"a": event.a, "b": event.b}) for event in events]
        stopped = 0
        for number, x, y in evaluation.delayed_labels(pairs, labels, absent=False, **times):
            if y is None:
                scores[number] = model.score_one(x)
            elif isinstance(y, str):
                stopped += 1
            else:
                model.learn_one(x, y)
                learned.append((y, scores[number]))
        assert stopped > 50
        assert found.learner.weights == pytest.approx(model.weights, rel=0, abs=1e-12)
        assert found.summary["events_stopped"] == found.summary["skipped"] == stopped
        assert found.summary["learned"] == len(learned) == len(events) - stopped
        assert found.summary["auc_of_latest"] == pytest.approx(
            roc_auc_score(*zip(*learned, strict=True)), abs=6e-5
        )
        used = found.summary["labels_used"] + found.summary["events_without_label"]
        assert used + found.summary["events_stopped"] == len(events)
        names = ("labels_used", "events_stopped", "labels_repeated", "labels_unused")
        assert sum(found.summary[name] for name in names) == len(labels)


def test_a_private_learner_with_ids_in_keys(replayed: Callable[..., Done], tmp_path: Path) -> None:
    events, labels = streams(2, 2000)
    files = write(tmp_path / "e.csv", events), write(tmp_path / "l.csv", labels, iso=False)
    learner = {"class": "streampair.auc.PairFTRL", "options": {"epsilon": 1.0, "delta": 1e-5, "seed": 1}}
    inside = {"features": {"a": [-2, 2], "b": [0, 1]}}
    for place in ("key", {"header": "payment"}):
        found = replayed(*files, learner=learner, input=inside, label_input={"id": place})
        assert found.summary["learned"] == 2000
        assert found.summary["epsilon_spent"] > 0
    # A stopped event takes its slot, as a null record.
    write(tmp_path / "l.csv", [each._replace(fraud="gone") if each.fraud else each for each in labels])
    named = {"id": "key", "stopped": "gone"}
    found = replayed(*files, learner=learner, input=inside, label_input=named)
    assert found.learner.slots == 2000
    assert found.learner.null_slots == found.summary["skipped"] == found.summary["events_stopped"] > 500
    with pytest.raises(PrivacyError, match="could take the label of another event"):
        replayed(*files, learner=learner, input=inside)


def test_times_are_numbers_or_iso_8601(replayed: Callable[..., Done], tmp_path: Path) -> None:
    events, labels = streams(3)
    replays = [
        replayed(
            write(tmp_path / f"e{suffix}", events, iso=iso), write(tmp_path / f"l{suffix}", labels, iso=iso)
        )
        for iso in (False, True)
        for suffix in (".csv", ".jsonl")
    ]
    for other in replays[1:]:
        assert [row["score"] for row in other.scores] == [row["score"] for row in replays[0].scores]
        assert other.summary == replays[0].summary


def test_only_what_is_pending_is_kept(replayed: Callable[..., Done], tmp_path: Path) -> None:
    """A replay whose memory grows with its input."""
    events = [Event(BEGIN + 1000 * n, f"p{n}", n % 7, n % 3) for n in range(20_000)]
    labels = [Label(event.time + 20_000, event.payment, event.a > 3) for event in events]
    most = {"events": 0, "labels": 0}

    def look(one: Replay) -> None:
        assert one.late is not None
        most["events"] = max(most["events"], len(one.late.join.waiting))
        most["labels"] = max(most["labels"], len(one.late.join.early))

    replayed(write(tmp_path / "e.csv", events), write(tmp_path / "l.csv", labels), look)
    assert most["events"] <= 32 + 1
    assert most["labels"] <= 1


def test_bad_lines_are_counted_and_stop_nothing(replayed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(
        "time,payment,a,b\n1704067201000,p0,1,1\n1704067201000,p1,x,1\n\n"
        "1704067202000,p2\n1704067202000,,0,1\n1704067203000,p4,0,1\n"
    )
    (tmp_path / "l.csv").write_text(
        "time,payment,fraud\n1704067201500,p0,true\n1704067201500,,true\n1704067201500,p4,maybe\n"
        "1704067201500,p4,\n1704067201600\n1704067201700,p1,true\n1704067201800,p4,0\n"
    )
    numbers_only = {"class": "river.linear_model.LogisticRegression"}
    found = replayed(tmp_path / "e.csv", tmp_path / "l.csv", learner=numbers_only)
    assert [(x["offset"], x["stage"]) for x in found.letters] == [
        (1, "features"),
        (3, "decode"),
    ]
    assert [row["outcome"] for row in found.scores] == ["scored", *["dead_letter"] * 2, "scored", "scored"]
    counts = {"events": 5, "learned": 2, "skipped": 3, "labels_used": 3, "events_without_label": 2}
    counts |= {"labels_unused": 0, "labels_repeated": 0, "labels_invalid": 4}
    assert counts.items() <= found.summary.items()


def test_the_columns_of_id_and_time_are_no_features(replayed: Callable[..., Done], tmp_path: Path) -> None:
    events, labels = streams(5)
    for suffix in (".csv", ".jsonl"):
        found = replayed(
            write(tmp_path / f"e{suffix}", events, iso=True),
            write(tmp_path / "l.csv", labels, iso=True),
            input={"features": None},
        )
        assert set(found.learner.weights) == {"a", "b"}


@pytest.mark.parametrize(
    ("events", "labels", "message"),
    [
        (
            "time,payment,a,b\n1704067202000,p,1,1\n1704067201000,q,1,1\n",
            "",
            r"line 3 of .*e.csv is earlier than the line before",
        ),
        ("time,payment,a,b\nsoon,p,1,1\n", "", r"line 2 of .*e.csv has no time in 'time': 'soon'"),
        ("time,payment,a,b\n,p,1,1\n", "", r"line 2 of .*e.csv has no time in 'time': it is empty"),
        ("payment,a,b\np,1,1\n", "", "e.csv has no column 'time'"),
        ("time,a,b\n1704067202000,1,1\n", "", "e.csv has no column 'payment'"),
        ("", "time,payment\n1704067202000,p\n", "l.csv has no column 'fraud'"),
        ("", "time,payment,fraud\n1704067202000,p,1\n1704067201000,q,1\n", r"line 3 of .*l.csv is earlier"),
        ("", "time,payment,fraud\n,p,1\n", r"line 2 of .*l.csv has no time"),
    ],
)
def test_files_that_cannot_be_replayed(
    replayed: Callable[..., Done], tmp_path: Path, events: str, labels: str, message: str
) -> None:
    (tmp_path / "e.csv").write_text(events or "time,payment,a,b\n1704067200000,p,1,1\n")
    (tmp_path / "l.csv").write_text(labels or "time,payment,fraud\n1704067200000,p,1\n")
    with pytest.raises(SourceError, match=message):
        replayed(tmp_path / "e.csv", tmp_path / "l.csv")


def in_unit(rows: Sequence[Any], count: int) -> list[Any]:
    """The same rows with their times in another unit, of which so many are a second."""
    return [row._replace(time=row.time / 1000 if count == 1 else row.time * (count // 1000)) for row in rows]


def test_seconds_are_not_taken_for_milliseconds(replayed: Callable[..., Done], tmp_path: Path) -> None:
    """Read as milliseconds, labels that come two days after `after` would count."""
    events = [Event(BEGIN + 100_000 * n, f"p{n}", n % 7, n % 3) for n in range(200)]
    labels = [Label(event.time + 2 * 86_400_000, event.payment, event.a > 3) for event in events]
    after = {"label_input": {"after": "1d"}}
    for suffix in (".csv", ".jsonl"):
        names = tmp_path / f"e{suffix}", tmp_path / f"l{suffix}"
        for unit, count in (("s", 1), ("us", 1_000_000)):
            files = write(names[0], in_unit(events, count)), write(names[1], in_unit(labels, count))
            what = {"s": "these look like seconds", "us": "these look like microseconds"}[unit]
            with pytest.raises(SourceError, match=rf"line . of .*e{suffix} has .* {what}") as caught:
                replayed(*files, **after)
            assert f'write input.fields.time = "epoch-{unit}"' in caught.value.fix
            late = replayed(*files, input={"fields": {"time": f"epoch-{unit}"}}, **after).late
            assert late.counts()["labels_used"] == 0
            assert "none of 200 labels came in time" in str(late.no_label_found())
        # One file in seconds.
        files = write(names[0], events), write(names[1], in_unit(labels, 1))
        with pytest.raises(SourceError, match=rf"l{suffix} has .* these look like seconds"):
            replayed(*files, **after)


def test_numbers_are_in_the_declared_unit(replayed: Callable[..., Done], tmp_path: Path) -> None:
    events, labels = streams(3)
    wanted = replayed(write(tmp_path / "e.csv", events), write(tmp_path / "l.jsonl", labels))
    for unit, count in (("s", 1), ("ms", 1000), ("us", 1_000_000)):
        files = (
            write(tmp_path / "e.csv", in_unit(events, count)),
            write(tmp_path / "l.jsonl", in_unit(labels, count)),
        )
        found = replayed(*files, input={"fields": {"time": f"epoch-{unit}"}})
        assert found.summary == wanted.summary
        # Texts of ISO 8601 have no unit.
        mixed = replayed(
            files[0],
            write(tmp_path / "l.csv", labels, iso=True),
            input={"fields": {"time": f"epoch-{unit}"}},
        )
        assert mixed.summary == wanted.summary


def test_times_before_1990_or_after_2100_are_refused(replayed: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("time,payment,fraud\n1704067200000,p,1\n")
    for value in ("20240131", "631151999999", "4102444800000", "nan", "-1"):
        (tmp_path / "e.csv").write_text(f"time,payment,a,b\n{value},p,1,1\n")
        with pytest.raises(SourceError, match=f"'{value}' in 'time': no milliseconds from 1990 to 2100"):
            replayed(tmp_path / "e.csv", tmp_path / "l.csv")


IDS = ["7", "08", "1234", "a1"]


@pytest.mark.parametrize(
    ("written", "examples"),
    [
        ("{}.0", "'7.0', '08.0', '1234.0', of events '7', '08', '1234'"),
        (" {}", "' 7', ' 08', ' 1234', of events '7', '08', '1234'"),
        ("00000{}", "'000007', '0000008', '000001234', of events '7', '08', '1234'"),
        ("order-{}", "'order-7', 'order-08', 'order-1234', of events '7', '08', '1234'"),
    ],
)
@pytest.mark.parametrize("absent", [None, False])
def test_labels_of_which_none_finds_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: bool | None, written: str, examples: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(TOML if absent is False else TOML.replace("absent = false", ""))
    write(tmp_path / "e.csv", [Event(BEGIN + n, name, n, 0) for n, name in enumerate(IDS)])
    write(
        tmp_path / "l.csv", [Label(BEGIN + 10 + n, written.format(name), True) for n, name in enumerate(IDS)]
    )
    call = ["replay", "c.toml", "e.csv", "--labels", "l.csv", "--output", "s.jsonl"]
    failed = CliRunner().invoke(app, call)
    assert failed.exit_code == 1
    assert f"error: none of 4 labels found its event: ids of labels are {examples}" in failed.stderr
    assert "write ids in the same way in the column 'payment' of both files" in failed.stderr
    assert "labels_unused: 4" in failed.stderr
    assert len((tmp_path / "s.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            '{"time": 1704067200001, "payment": 7.5, "fraud": true}',
            "none of 1 lines is a label: the label has an id",
        ),
        (
            '{"time": 1704067200001, "payment": "7", "fraud": "x"}',
            "none of 1 lines is a label: unknown label",
        ),
        (
            '{"time": 1704067299999, "payment": "7", "fraud": true}',
            "none of 1 labels came in time for the event",
        ),
        ("", "none of 0 lines is a label: there are none"),
    ],
)
def test_labels_that_are_of_no_use(
    replayed: Callable[..., Done], tmp_path: Path, labels: str, message: str
) -> None:
    (tmp_path / "l.jsonl").write_text(labels)
    found = replayed(write(tmp_path / "e.csv", [Event(BEGIN, "7", 1, 1)]), tmp_path / "l.jsonl")
    assert str(found.late.no_label_found()).startswith(message)


@pytest.mark.parametrize(
    ("tables", "labels", "message"),
    [
        ({}, None, "labels come later than events"),
        ({"input": {"time": None}}, "l.csv", "input.time is missing"),
        ({"label_input": {"label": "time"}}, "l.csv", "the same column 'time' of the labels"),
        (
            {"label_input": {"id": "key"}, "input": {"id": None}},
            "l.csv",
            "label_input.id is the key of a message",
        ),
        ({}, "e.csv", "are both read from"),
    ],
)
def test_what_the_configuration_must_say(
    replayed: Callable[..., Done], tmp_path: Path, tables: dict[str, Any], labels: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        replayed(tmp_path / "e.csv", None if labels is None else tmp_path / labels, **tables)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    events, labels = streams(6)
    write(tmp_path / "e.csv", events)
    write(tmp_path / "l.csv", labels)
    (tmp_path / "c.toml").write_text(TOML)
    call = ["replay", "c.toml", "e.csv", "--labels", "l.csv", "--json"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["labels_used"] > 0
    assert summary["auc_of_latest"] > 0.6
    # Of other events: no label finds its event, and nothing is learned without `absent`.
    (tmp_path / "c.toml").write_text(TOML.replace("absent = false\n", ""))
    write(tmp_path / "e.csv", [event._replace(payment=f"other{n}") for n, event in enumerate(events)])
    failed = CliRunner().invoke(app, call)
    assert failed.exit_code == 1
    assert re.search(r"none of [\d,]+ labels found its event: ids of labels are 'p\d+',", failed.output)
    (tmp_path / "plain.toml").write_text(
        'app = "x"\ninput.label = "fraud"\nlearner.class = "streampair.auc.PairOGD"\n'
    )
    refused = CliRunner().invoke(app, ["replay", "plain.toml", "e.csv", "--labels", "l.csv"])
    assert refused.exit_code == 2
    assert "the configuration has no [label_input]" in refused.stderr
