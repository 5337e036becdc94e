"""Several classes, and records with texts and gaps, through a worker."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import App, Running
from harness.kafka import Cluster
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_learner

FOREST = 'class = "streampair.auc.MulticlassForest"\noptions = { trees = 4, nodes = 31, seed = 1 }'
RIVER = 'class = "river.forest.ARFClassifier"\noptions = { n_models = 2, seed = 1 }\nallow_pickle = true'


def events(count: int, *, whole: bool) -> list[dict[str, Any]]:
    draw = random.Random(1)
    made = []
    for _ in range(count):
        y = draw.choice(["high", "low", "other"])
        x: dict[str, Any] = {"f0": draw.gauss("hlo".index(y[0]), 0.5), "f1": draw.random()}
        if not whole:
            x["f1"] = draw.choice(["NL", "BE", None])
            if x["f1"] and draw.random() < 0.3:
                del x["f0"]
        made.append({**x, "y": y})
    return made


@pytest.mark.parametrize("learner", [FOREST, RIVER], ids=["forest", "river"])
def test_probabilities_of_all_classes_are_sent(
    kafka: Cluster,
    unique: Callable[[str], str],
    tmp_path: Path,
    learner: str,
) -> None:
    """What the learner itself gives before it learns each record; the score is that of `positive`."""
    app = App(kafka, tmp_path, unique("app"), learner=learner).create_topics()
    text = app.path.read_text().replace('features = ["f0", "f1", "f2", "f3"]', 'features = ["f0", "f1"]')
    app.path.write_text(text.replace('label = "y"', 'label = "y"\nlabel_type = "any"\npositive = "high"'))
    rows = events(120, whole=learner == RIVER)
    app.produce([json.dumps(row).encode() for row in rows])
    with Running(app) as worker:
        scores = app.await_scores({0: len(rows)}, worker)
    reference, known = build_learner(load_config(app.path)), set()
    for row, got in zip(rows, sorted(scores, key=lambda row: row["offset"]), strict=True):
        x = {name: row[name] for name in ("f0", "f1") if row.get(name) is not None}
        wanted = reference.predict_proba_one(x)
        assert got["outcome"] == "learned"
        assert got["probabilities"] == pytest.approx(wanted)
        if learner == FOREST:
            assert got["score"] == reference.score_one(x)
        else:
            assert got["score"] == pytest.approx(wanted.get("high", 0.0))
        reference.learn_one(x, row["y"])
        known |= set(wanted)
    assert known == {"high", "low", "other"}
