"""`streampair compare`: two applications on one topic, and how one takes the place of the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.applications import App, Inside, Running, events, produce, read_until
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app as command
from streampair_connectors.config import Config, load_config
from streampair_connectors.host import THIS_HOST
from streampair_connectors.stores.spending import read_stored
from streampair_connectors.worker import scored_events
from streampair_connectors.worker.scored_events import ScoredEvents, read_scored_events
from typer.testing import CliRunner

from streampair.errors import SourceError
from streampair.evaluation import average_precision, delong

SLOW = 'class = "streampair.auc.PairOGD"\noptions = { seed = 2, learning_rate = 0.001 }'
FTRL = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 24.0, delta = 1e-4, horizon = 160, warmup = 20, auc_share = 0.5 }"
)
DAY = 86_400_000
NOW = THIS_HOST.now_ms


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(command, ["compare", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if "--json" in arguments else result.stdout + result.stderr


def pair(kafka: Cluster, directory: Path, name: str, *learners: str, store: str = "directory") -> list[App]:
    """Applications on the input of the first one."""
    apps = []
    for letter, learner in zip("ab", learners, strict=True):
        place = directory / letter
        place.mkdir()
        app = App(kafka, place, f"{name}-{letter}", learner=learner, store=store)
        if apps:
            app.path.write_text(app.path.read_text().replace(app.input, apps[0].input))
            app.input = apps[0].input
            for topic in (app.output, app.dead):
                kafka.create_topic(topic)
        else:
            app.create_topics()
        apps.append(app)
    return apps


def run(app: App, end: int, *, committed: bool = False) -> list[dict[str, Any]]:
    with Inside(app) as worker:
        rows = app.await_scores({0: end}, worker, committed=committed)
        wait_for("the last commit", lambda: worker.lag() == 0)
        assert worker.stop() is None
    return rows


def test_figures_are_those_of_the_events_that_both_have_scored(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    learner = 'class = "streampair.auc.PairOGD"\noptions = { seed = 1 }'
    a, b = pair(kafka, tmp_path, unique("app"), learner, SLOW)
    values = events(200)
    values[30] = b"no event"
    a.produce(values[:150])
    rows = [run(a, 150)]
    a.produce(values[150:])
    rows.append(run(b, 200))
    found = json.loads(call(a.path, b.path, "--json"))
    assert found["events"] == {"both": 150, "only": [0, 50], "gone": 0}
    scores = [{row["offset"]: row["score"] for row in each} for each in rows]
    usable = [i for i in range(150) if i != 30]
    labels = np.array([json.loads(values[i])["y"] for i in usable])
    columns = [np.array([each[i] for i in usable]) for each in scores]
    wanted, quality = delong(labels, *columns), found["quality"]
    assert wanted is not None
    assert (quality["events"], quality["positives"]) == (149, int(labels.sum()))
    assert quality["auc"] == [wanted.first, wanted.second]
    assert (quality["difference"], quality["p_value"]) == (wanted.difference, wanted.p_value)
    assert quality["average_precision"] == [average_precision(each, labels) for each in columns]
    assert all(0.0 < each < 10.0 for each in quality["log_loss"])
    assert found["privacy"] is None
    said = call(b.path, a.path)
    assert f"AUC {a.name}" in said
    assert "DeLong" in said
    assert f"{a.name} not known" in said  # its metrics have no fixed port
    assert "scored by both" in call(a.path, b.path, "--from", "2020-01-01")
    assert json.loads(call(a.path, b.path, "--from", "2100-01-01T00:00:00Z", "--json"))["events"]["both"] == 0


def test_of_private_applications_only_what_is_accounted_for_is_printed(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    a, b = pair(kafka, tmp_path, unique("app"), FTRL, SLOW)
    a.produce(events(200))
    for app in (a, b):
        run(app, 200)
    found = json.loads(call(a.path, b.path, "--json"))
    assert found["private"] == [True, False]
    assert found["quality"] is None
    assert found["private_auc"][0]["slots"] > 0
    spent = asyncio.run(read_stored(load_config(a.path)))
    assert found["privacy"]["epsilon"] == [spent.epsilon_spent]
    assert found["privacy"]["sum"]["epsilon"] == spent.epsilon_spent
    said = call(a.path, b.path)
    assert "printed with --by-raw-data only" in said
    assert f"private AUC {a.name}" in said
    assert "average precision" not in said
    raw = call(a.path, b.path, "--by-raw-data")
    assert "average precision" in raw
    assert "voids its guarantee" in raw


def test_what_two_private_applications_have_spent_adds_up(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    a, b = pair(kafka, tmp_path, unique("app"), FTRL, FTRL.replace("24.0", "12.0"))
    a.produce(events(120))
    for app in (a, b):
        run(app, 120)
    privacy = json.loads(call(a.path, b.path, "--json"))["privacy"]
    together = asyncio.run(read_stored(load_config(a.path), load_config(b.path)))
    assert privacy["sum"]["epsilon"] == together.epsilon_spent
    assert max(privacy["epsilon"]) < privacy["sum"]["epsilon"]


def by_hand(kafka: Cluster, directory: Path, name: str, labels: str = "") -> list[Config]:
    """Two applications whose topics a test writes itself."""
    configs = []
    for letter in "ab":
        path = directory / f"{letter}.toml"
        path.write_text(
            f"""app = "{name}-{letter}"
[kafka]
bootstrap_servers = "{kafka.bootstrap}"
[input]
topic = "{name}-in"
features = ["f"]
{'id = "id"' if labels else 'label = "y"'}
[learner]
class = "streampair.auc.PairOGD"
{labels}
"""
        )
        configs.append(load_config(path))
        kafka.create_topic(configs[-1].output_topic)
    return configs


def write(kafka: Cluster, topic: str, rows: list[tuple[int, dict[str, Any]]]) -> None:
    for time, row in rows:
        asyncio.run(produce(kafka.bootstrap, topic, [json.dumps(row).encode()], timestamp_ms=time))


def score(
    config: Config, offset: int, value: float | None, outcome: str = "learned", **more: Any
) -> tuple[int, Any]:
    row = {"app": config.app, "topic": config.input.topic, "partition": 0, "offset": offset}
    return NOW, {**row, "score": value, "outcome": outcome, "learner": "l", "id": None, **more}


def read(
    configs: list[Config], *, warmups: tuple[int, int] = (0, 0), since: int | None = None
) -> ScoredEvents:
    return asyncio.run(read_scored_events(*configs, since=since, warmups=warmups, labels=True))


def test_the_first_score_counts_from_the_later_first_score_on(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """An event whose label comes later has two messages, and one may be repeated after a crash."""
    name = unique("hand")
    a, b = configs = by_hand(kafka, tmp_path, name)
    kafka.create_topic(f"{name}-in")
    write(kafka, f"{name}-in", [(NOW + i, {"f": 0.0, "y": i % 2 == 0}) for i in range(8)])
    write(kafka, a.output_topic, [score(a, i, 0.1 * i) for i in range(8)])
    write(kafka, a.output_topic, [score(a, 4, 9.0), score(b, 4, 9.0)])  # later, or of another application
    write(kafka, b.output_topic, [score(b, i, 0.5, "scored") for i in range(2, 7)])
    write(kafka, b.output_topic, [score(b, 5, None), score(b, 99, 0.5)])
    found = read(configs)
    assert (found.since, found.both, found.only, found.gone) == (NOW + 2, 5, (1, 0), 1)
    assert found.positive.tolist() == [True, False, True, False, True]
    assert found.scores[0] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])
    assert found.scores[1].tolist() == [0.5] * 5
    assert read(configs, warmups=(5, 2)).since == NOW + 4  # that of the application that began later
    assert read(configs, since=NOW + 1, warmups=(5, 2)).only == (2, 0)
    assert read(configs, since=10**15).since is None


def test_labels_that_come_later_are_joined_by_the_rules_of_a_worker(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """In time, each used once, and no event before it is due: positives would come first."""
    name = unique("hand")
    labels = f'[label_input]\ntopic = "{name}-labels"\nid = "id"\nlabel = "y"\nafter = "1d"\nabsent = false'
    labels += '\nstopped = "gone"'
    configs = by_hand(kafka, tmp_path, name, labels)
    for topic in (f"{name}-in", f"{name}-labels"):
        kafka.create_topic(topic)
    times = [*(NOW - days * DAY for days in (5, 4, 3, 2)), NOW - 3 * DAY // 2, NOW]
    write(kafka, f"{name}-in", [(time, {"f": 0.0, "id": i}) for i, time in enumerate(times)])
    late = [(times[0] + 1000, 0, True), (times[1] + 2 * DAY, 1, True), (times[2] + 5, 2, True)]
    late += [(times[2] + 9, 2, False), (times[4] + 1, 4, "gone"), (times[5] + 1, 5, True)]
    write(kafka, f"{name}-labels", [(time, {"id": i, "y": y}) for time, i, y in late])
    for config in configs:
        write(kafka, config.output_topic, [score(config, i, 0.5) for i in range(6)])
    found = read(configs)
    assert found.both == 6
    # The fifth one was stopped, and the last one is not due.
    assert found.positive.tolist() == [True, False, True, False]


def test_outcomes_weigh_what_the_score_that_stopped_events_says(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """B has scored alone: what it would have stopped says nothing. Two that stop events are not compared."""
    name = unique("hand")
    a, b = configs = by_hand(kafka, tmp_path, name)
    kafka.create_topic(f"{name}-in")
    coin = np.random.default_rng(1)
    frauds, scores = coin.random(80) < 0.4, coin.random(80)
    scores[50:] *= 0.5  # none of these is stopped
    marks = [{"threshold": 0.5, "share": 0.25, "explore": bool(coin.random() < 0.8)} for _ in range(80)]
    write(kafka, f"{name}-in", [(NOW + i, {"f": 0.0, "y": bool(fraud)}) for i, fraud in enumerate(frauds)])
    write(kafka, a.output_topic, [score(a, i, x, **marks[i]) for i, x in enumerate(scores)])
    write(kafka, b.output_topic, [score(b, i, x + 0.1 * (i % 2)) for i, x in enumerate(scores)])
    weights = np.array(
        [1.0 if x < 0.5 else 4.0 * each["explore"] for x, each in zip(scores, marks, strict=True)]
    )
    used = weights > 0.0
    found = json.loads(call(tmp_path / "a.toml", tmp_path / "b.toml", "--json"))["quality"]
    wanted = delong(frauds[used], scores[used], (scores + 0.1 * (np.arange(80) % 2))[used], weights[used])
    assert wanted is not None
    assert found["auc"] == pytest.approx([wanted.first, wanted.second])
    assert (found["explored"], found["unmarked"]) == ((weights == 4.0).sum(), (~used).sum())
    assert found["explored_positives"] == (frauds & (weights == 4.0)).sum() >= 3
    assert found["auc_stderr"] == pytest.approx([wanted.first_stderr, wanted.second_stderr])
    assert found["average_precision"] == found["log_loss"] == [None, None]  # of < 30 explored positives
    later = "--from", datetime.fromtimestamp((NOW + 50) / 1000, UTC).isoformat()
    below = json.loads(call(tmp_path / "a.toml", tmp_path / "b.toml", *later, "--json"))["quality"]
    assert (below["events"], below["explored_positives"]) == (30, 0)
    assert {*below["average_precision"], *below["auc_stderr"], below["p_value"]} == {None}
    said = call(tmp_path / "a.toml", tmp_path / "b.toml", *later)
    assert "0 of them, 0 positive" in said
    assert said.count("too few explored positives") == 7
    said = call(tmp_path / "a.toml", tmp_path / "b.toml")
    assert "too few explored positives" in said
    assert f"left out: {(~used).sum()} more with a label" in said
    write(kafka, f"{name}-in", [(NOW + 80, {"f": 0.0, "y": True})])
    for config in configs:
        write(kafka, config.output_topic, [score(config, 80, 0.9, **marks[0])])
    with pytest.raises(SourceError, match="say that they stop events"):
        read(configs)


def test_what_cannot_be_compared_is_refused(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("hand")
    by_hand(kafka, tmp_path, name)
    a, b = (tmp_path / f"{letter}.toml" for letter in "ab")
    assert "both configurations are of the application" in call(a, a, code=2)
    assert "--from 'noon' is no time" in call(a, b, "--from", "noon", code=2)
    assert "has no score of the application" in call(a, b, code=1)
    text = b.read_text()
    b.write_text(text.replace(f"{name}-in", f"{name}-other"))
    assert "input.topic is" in call(a, b, code=2)
    b.write_text(text.replace('label = "y"', 'label = "z"'))
    assert "input.label is 'y' for" in call(a, b, code=2)


def test_topics_that_do_not_fit_in_memory_are_refused(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique("hand")
    a, b = configs = by_hand(kafka, tmp_path, name)
    kafka.create_topic(f"{name}-in")
    write(kafka, f"{name}-in", [(NOW, {"f": 0.0, "y": True})])
    for config, count in ((a, 3), (b, 4)):
        write(kafka, config.output_topic, [score(config, 0, 0.5)] * count)
    monkeypatch.setattr(scored_events, "_MOST", 4)
    assert read(configs).both == 1
    monkeypatch.setattr(scored_events, "_MOST", 3)
    with pytest.raises(SourceError, match=f"the topic '{b.output_topic}' has more than 3 records"):
        read(configs)


def test_scores_of_another_mode_are_named(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("hand")
    configs = by_hand(kafka, tmp_path, name)
    kafka.create_topic(f"{name}-in")
    write(kafka, f"{name}-in", [(NOW, {"f": 0.0, "y": True})])
    for config in configs:
        write(kafka, config.output_topic, [score(config, 0, 0.5)])
    path = tmp_path / "b.toml"
    path.write_text(path.read_text().replace("[learner]", '[learner]\nscoring = "parallel"'))
    said = call(tmp_path / "a.toml", path)
    assert "learner.scoring: inline and parallel" in said
    assert "a class has fewer than two events" in said


def test_one_application_takes_the_place_of_another(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Stop both where they have read the same, start B with the topic of A: no offset is missing or twice."""
    learner = 'class = "streampair.auc.PairOGD"\noptions = { seed = 1 }'
    a, b = pair(apache_kafka, tmp_path, unique("app"), learner, SLOW, store="kafka")
    values = events(220)
    a.produce(values[:120])
    for app in (a, b):
        run(app, 120, committed=True)
    call(a.path, b.path)
    former, b.output = b.output, a.output
    a.produce(values[120:])
    with Running(b, "--set", f"output.topic={a.output}") as worker:
        rows = b.await_scores({0: 220}, worker, committed=True)
        assert worker.stop() == 0
    assert [row["offset"] for row in rows] == list(range(220))
    assert [row["app"] for row in rows] == [a.name] * 120 + [b.name] * 100
    before = asyncio.run(
        read_until(b.kafka.bootstrap, former, lambda found: len(found) >= 120, committed=True)
    )
    assert [json.loads(record.value)["offset"] for record in before] == list(range(120))
    # What B has learned in both topics is one stream.
    scores = [json.loads(record.value)["score"] for record in before] + [row["score"] for row in rows[120:]]
    assert scores == b.reference(values)[0]
