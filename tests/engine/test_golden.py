"""State that earlier releases wrote is read, and what comes next is what would have come then."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"
RELEASES = sorted(folder for folder in GOLDEN.iterdir() if (folder / "expected.json").exists())
assert RELEASES

spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make.py")
assert spec is not None
assert spec.loader is not None
make: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def test_every_model_has_a_snapshot() -> None:
    for folder in RELEASES:
        assert {path.stem for path in folder.glob("*.snapshot")} == set(
            json.loads((folder / "expected.json").read_text())
        )


def topic_of(name: str) -> Any:
    """A driver that has read all records; what it has learned is of no interest."""
    driver = make.driver(name)
    driver.feed(make.stream(name))
    return driver


LOGS = [
    *((None, name) for name in ("auc.PairOGD", "auc.PairFTRL-blt", "pipeline")),
    *((path.parent, path.stem) for folder in RELEASES for path in sorted(folder.glob("*.log"))),
]


@pytest.mark.parametrize(("folder", "name"), LOGS)
def test_a_log_that_a_release_has_left_goes_on(tmp_path: Path, folder: Path | None, name: str) -> None:
    """With its snapshot, as `make.py` keeps them; without a folder this release's own."""
    if folder is None:
        folder = tmp_path
        make.main(folder, [name])
    driver = topic_of(name)
    topic, driver.topic = driver.topic, driver.topic[: make.BEFORE]
    driver.store = make.left(folder, name)
    driver.start()
    assert driver.lane.next_offset == make.BEFORE
    driver.topic = topic
    expected = json.loads((folder / "expected.json").read_text())[name]
    assert make.scores_of(driver.catch_up(batch=1)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if driver.lane.private:
        assert (driver.lane.privacy.kind, driver.lane.gauges().forks) == ("holds", 0)


def test_another_stream_gives_other_scores() -> None:
    """The test above can fail."""
    folder, name = RELEASES[0], "auc.PairOGD"
    lane = make.driver(name)
    rows = make.stream(name)
    lane.feed([(x, not y) for x, y in rows[: make.BEFORE]])
    scores = make.scores_of(lane.feed(rows[make.BEFORE :]))
    assert scores != pytest.approx(json.loads((folder / "expected.json").read_text())[name])
