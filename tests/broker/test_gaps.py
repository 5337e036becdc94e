"""What a topic loses: records that retention or compaction removes, and the topic itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.admin import delete_input, delete_records
from harness.applications import App, Inside, Running, events, same
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import Partition, RecordReader

from streampair.errors import StreampairError

Unique = Callable[[str], str]


def work_until(app: App, offset: int, *, kill: bool) -> Running:
    """Work up to an offset, and then stop or die."""
    worker = Running(app)
    wait_for(f"the commit of offset {offset}", lambda: app.position() >= offset, explain=worker.log)
    if kill:
        worker.kill()
    else:
        assert worker.stop() == 0, worker.log()
    return worker


def test_a_kill_after_a_retention_gap_is_survived(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """All that was learned since the gap is still in the topic, or in a snapshot."""
    app = App(apache_kafka, tmp_path, unique("app")).create_topics()
    values = events(140)
    app.produce(values[:40])
    work_until(app, 40, kill=False)
    app.produce(values[40:100])
    delete_records(app, 70)
    worker = work_until(app, 100, kill=True)
    assert '"events_lost"' in "".join(worker.lines)
    app.produce(values[100:])
    work_until(app, 140, kill=True)
    with Inside(app) as last:
        wait_for("the lane", last.has_lane)
        assert last.stop() is None
    expected = app.reference([*values[:40], *values[70:]])[1]
    assert same(app.snapshot()["steps"], expected["steps"])
    assert app.position() == 140


def test_a_kill_over_a_compacted_topic_is_survived_without_privacy(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Every lane saves its state with each commit there: no replay has to find its records again."""
    app = App(apache_kafka, tmp_path, unique("app")).create_topics(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="1",
    )
    values = events(122)
    app.produce(values[:60], key=b"one")
    work_until(app, 60, kill=True)
    app.produce(values[60:120], key=b"one")
    worker = work_until(app, 120, kill=True)
    assert '"topic_is_compacted"' in "".join(worker.lines)
    app.produce(values[120:121], key=b"two")  # a new segment: only older ones are compacted

    async def gone() -> bool:
        lookup = RecordReader(KafkaConfig(bootstrap_servers=apache_kafka.bootstrap))
        try:
            return await lookup.one(Partition(app.input, 0), 100) is None
        finally:
            await lookup.stop()

    wait_for("the compaction", lambda: asyncio.run(gone()), seconds=120)
    app.produce(values[121:], key=b"two")
    with Inside(app) as last:
        wait_for("the last commit", lambda: last.learned() == 122)
        assert last.stop() is None
    assert same(app.snapshot()["steps"], app.reference(values)[1]["steps"])


def test_a_topic_that_is_made_again_ends_the_worker_with_the_cause(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was lost to retention, and what the new topic holds is not what follows."""
    app = App(apache_kafka, tmp_path, unique("app"), partitions=2).create_topics()
    app.produce(events(60))
    with Inside(app) as worker:
        wait_for("the commit", lambda: worker.learned() == 60)
        delete_input(app)
        wait_for("the end of the topic", lambda: _make(app), seconds=30)
        app.produce(events(5))
        error = worker.end()
    assert isinstance(error, StreampairError)
    assert "the topic was deleted and" in str(error)
    assert "events_lost" not in caplog.text


def _make(app: App) -> bool:
    try:
        app.kafka.create_topic(app.input, partitions=app.partitions)
    except Exception:  # it is still being deleted
        return False
    return True
