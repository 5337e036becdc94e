"""A pipeline as users write it, in workers on a real broker: inline, in parallel, from files, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
from harness.applications import PAIR_OGD, App, Inside, Running
from harness.kafka import Cluster
from harness.serving import Serving
from harness.steps import NUMBERS, TEXTS, rows
from harness.worker_process import wait_for
from streampair_connectors.config import load_config
from streampair_connectors.serve.model_source import TopicModel
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import config_decoder
from streampair_connectors.serve.server import ScoringServer

from streampair import models

Unique = Callable[[str], str]
FIELDS = json.dumps([*NUMBERS, *TEXTS])
PIPELINE = f"""
[[learner.steps]]
class = "river.compose.TransformerUnion"

[[learner.steps.options.transformers]]
class = "river.compose.Pipeline"
steps = [
  {{ class = "river.compose.Select", keys = {json.dumps(NUMBERS)} }},
  {{ class = "river.preprocessing.StandardScaler" }},
]

[[learner.steps.options.transformers]]
class = "river.compose.Pipeline"
steps = [
  {{ class = "river.compose.Select", keys = {json.dumps(TEXTS)} }},
  {{ class = "river.preprocessing.OneHotEncoder" }},
]

[[learner.steps]]
{PAIR_OGD}
"""
LEARNED, SCORED = 240, 60


def values(count: int, seed: int, *, labels: bool) -> list[bytes]:
    made = []
    for x, y in rows(count, seed):
        event = {name: x[name] for name in (*NUMBERS, *TEXTS)}
        made.append(json.dumps({**event, "y": y} if labels else event).encode())
    return made


def make(kafka: Cluster, directory: Path, name: str, *, parallel: bool) -> App:
    """An application; where the lane scores, with a directory and no key at all."""
    directory.mkdir()
    learner = 'scoring = "parallel"\n' + PIPELINE if parallel else PIPELINE
    app = App(kafka, directory, name, learner=learner, store="kafka" if parallel else "directory")
    text = app.path.read_text()
    features = next(line for line in text.splitlines() if line.startswith("features = "))
    app.path.write_text(text.replace(features, f"features = {FIELDS}"))
    assert parallel or "key_file" not in app.path.read_text()
    return app.create_topics(message_timestamp_type="LogAppendTime")


def scored_inline(app: App) -> list[float]:
    """Scores of a lane that is killed twice, and goes on from its snapshots."""
    learned = values(LEARNED, 1, labels=True)
    for begin in (0, LEARNED // 2):
        app.produce(learned[begin : begin + LEARNED // 2])
        with Running(app) as worker:
            app.await_scores({0: begin + LEARNED // 2}, worker)
            worker.kill()
    app.produce(values(SCORED, 2, labels=False))
    with Running(app) as worker:
        app.await_scores({0: LEARNED + SCORED}, worker)
        assert worker.stop() == 0, worker.log()
    scores = {row["offset"]: row["score"] for row in app.await_scores({0: LEARNED + SCORED})}
    return [scores[offset] for offset in range(LEARNED, LEARNED + SCORED)]


def scored_in_parallel(app: App, check: Callable[[models.Model], None]) -> list[float]:
    app.produce(values(LEARNED, 1, labels=True))
    with Inside(app) as worker:

        def slots() -> int:
            found = app.published()
            return -1 if found is None else found.model.slots

        wait_for("a model of all events", lambda: slots() == LEARNED, explain=worker.metrics)
        app.produce(values(SCORED, 2, labels=False))
        found = app.await_scores({0: LEARNED + SCORED}, worker, committed=True)
        newest = app.published()
        assert newest is not None
        check(newest.model)
    return [row["score"] for row in sorted(found, key=lambda row: row["offset"])][LEARNED:]


def test_all_ways_give_the_scores_of_the_lane(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    """In parallel and by the model file to the bit; by ONNX and HTTP within 1e-6."""
    inline = make(apache_kafka, tmp_path / "inline", unique("app"), parallel=False)
    parallel = make(apache_kafka, tmp_path / "parallel", unique("app"), parallel=True)
    found: dict[str, list[float]] = {}
    events = [json.loads(value) for value in values(SCORED, 2, labels=False)]

    def check(model: models.Model) -> None:
        path = tmp_path / "model.json"
        models.save(model, path)
        found["file"] = models.load(path).score_many(events).tolist()
        models.save(model, path.with_suffix(".onnx"))
        session = onnxruntime.InferenceSession(path.with_suffix(".onnx"))
        found["graph"] = session.run(["score"], models.onnx_inputs(model, events))[0].tolist()
        config = load_config(parallel.path)
        options = ServeOptions(name=parallel.name, port=0)
        with Serving(ScoringServer(TopicModel(config), config_decoder(config), options)) as serving:
            wait_for("a model", lambda: serving.get("/readyz").status == 200)
            found["http"] = serving.post("/score", events).json["scores"]

    expected = scored_inline(inline)
    assert scored_in_parallel(parallel, check) == expected
    assert len(set(expected)) > SCORED // 2
    assert found["file"] == expected
    assert found["graph"] == pytest.approx(expected, abs=1e-6)
    assert found["http"] == pytest.approx(expected, abs=1e-6)
