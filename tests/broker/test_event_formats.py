"""Events in Avro through a worker, while the schema registry goes down and comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.applications import FEATURES, App, Running, events
from harness.kafka import Cluster
from harness.schema_registry import Registry, avro
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_lane

from streampair.engine import Record

OLD = [*({"name": name, "type": "double"} for name in FEATURES), {"name": "y", "type": "boolean"}]
NEW = [*OLD, {"name": "note", "type": ["null", "string"], "default": None}]


def test_a_worker_waits_for_the_schema_registry(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Down at the start, and again at a new version in the middle of the stream: no event is lost."""
    registry = Registry()
    try:
        registry.add(1, OLD)
        registry.add(2, NEW)
        registry.status = 503
        app = App(kafka, tmp_path, unique("app")).create_topics()
        table = f'format = "avro"\n[schema_registry]\nurl = "{registry.url}"\n[learner]'
        app.path.write_text(app.path.read_text().replace("[learner]", table, 1))
        rows: list[dict[str, Any]] = [json.loads(each) for each in events(120)]
        first = [avro(OLD, row, 1) for row in rows[:60]]
        app.produce(first)
        with Running(app) as worker:
            waiting = worker.await_log("waiting")
            assert "schema registry" in waiting["detail"]
            assert "[schema_registry]" in waiting["next_step"]
            registry.status = 200
            app.await_scores({0: 60}, worker)
            registry.status = 503
            before = len(registry.requests)
            second = [avro(NEW, row, 2) if i % 2 else avro(OLD, row, 1) for i, row in enumerate(rows[60:])]
            app.produce(second)
            registry.await_request(before)
            registry.status = 200
            scores = app.await_scores({0: 120}, worker)
        assert sorted(row["offset"] for row in scores) == list(range(120))
        assert {row["outcome"] for row in scores} == {"learned"}
        config = load_config(app.path)
        lane = build_lane(config, event_decoder(config))
        values = [*first, *second]
        wanted = lane.process([Record(offset, value) for offset, value in enumerate(values)]).scores
        assert [row["score"] for row in sorted(scores, key=lambda row: row["offset"])] == [
            each.score for each in wanted
        ]
    finally:
        registry.close()
