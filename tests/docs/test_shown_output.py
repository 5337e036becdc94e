"""Output that a page shows of a command that needs a cluster: printed again, from the same records."""

from __future__ import annotations

from datetime import datetime

from harness import pages
from streampair_connectors.cli.dlq import _LABEL, _cause_rows
from streampair_connectors.cli.erasure import erasure_lines
from streampair_connectors.config import parse_config
from streampair_connectors.worker.causes import cause_name
from streampair_connectors.worker.dead_letters import Cause
from streampair_connectors.worker.erasure import KeptRecord

TABLES = {
    "app": "fraud",
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "input": {"topic": "payments", "label": "is_fraud"},
    "learner": {"class": "streampair.auc.PairOGD"},
}


def milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def output_of(page: str, command: str) -> list[str]:
    """The lines below a command of a page."""
    (block,) = (b for b in pages.blocks(page) if b.text.startswith(f"$ {command}\n"))
    return block.text.splitlines()[1:]


def test_what_erasure_finds() -> None:
    last = milliseconds("2026-11-20T08:12:44+00:00")
    found = [
        KeptRecord(name, topic, 4, offset, last, False)
        for name, topic, offsets in (
            ("input.topic", "payments", (8812, 9007, 9120)),
            ("output.topic", "fraud-scores", (8810, 9005, 9118)),
        )
        for offset in offsets
    ]
    lines = list(erasure_lines(parse_config(TABLES), found))
    assert output_of("docs/erasure.md", "streampair erasure fraud.toml customer-17") == lines


def test_causes_of_dead_letters() -> None:
    lines = output_of("docs/operations/events.md", "streampair dlq list fraud.toml")
    problem = "feature 'amount' is text"
    fix = "send a finite number as 'amount', or name the numeric fields in input.features"
    cause = Cause(
        name=cause_name("features", problem),
        stage="features",
        error=f"{problem}. Fix: {fix}.",
        waiting=1200,
        replayed=0,
        again=0,
        first_ms=milliseconds("2026-11-27T09:14:02+00:00"),
        last_ms=milliseconds("2026-11-27T09:31:40+00:00"),
        newest="payments-3@88120",
    )
    printed = [f"{label:<{_LABEL}} {value}" for label, value in _cause_rows(cause)]
    assert lines[2 : 2 + len(printed)] == printed
