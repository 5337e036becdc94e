"""Snapshots that earlier releases wrote are read, and what comes next is what would have come then."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"
RELEASES = sorted(folder for folder in GOLDEN.iterdir() if folder.is_dir())

spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make.py")
assert spec is not None
assert spec.loader is not None
make: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


def cases() -> list[Any]:
    return [
        pytest.param(folder, path.stem, id=f"{folder.name}-{path.stem}")
        for folder in RELEASES
        for path in sorted(folder.glob("*.snapshot"))
        if not path.name.startswith("__")
    ]


def test_every_model_has_a_snapshot() -> None:
    for folder in RELEASES:
        assert {path.stem for path in folder.glob("*.snapshot")} == set(
            json.loads((folder / "expected.json").read_text())
        )


# Their noise was calibrated anew: forks of a warm-up, and windows of entities, cost more than was planned.
# Such a snapshot is read, and goes on under the noise of today's plan.
RECALIBRATED = {"0.1": {"auc.OnPairC-reservoir", "auc.PairFTRL-entity"}}


@pytest.mark.parametrize(("folder", "name"), cases())
def test_a_snapshot_of_an_earlier_release_goes_on(folder: Path, name: str) -> None:
    rows = make.stream(name)
    lane = make.driver(name)
    lane.feed(rows[: make.BEFORE])  # so that the topic holds them; what was learned is thrown away
    lane.committed = (folder / f"{name}.snapshot").read_bytes()
    lane.crash()
    assert lane.lane.next_offset == make.BEFORE
    scores = make.shown(lane.feed(rows[make.BEFORE :]))
    assert len(scores) == make.AFTER
    if name in RECALIBRATED[folder.name]:
        assert lane.lane.privacy.kind == "holds"
        return
    # The leader of the moments is found by LAPACK, whose last digits differ between machines.
    expected = json.loads((folder / "expected.json").read_text())[name]
    assert scores == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert len(set(scores)) > 5 or name == "auc.PairFTRL-prefix"  # still in its warm-up


def test_another_stream_gives_other_scores() -> None:
    """The test above can fail."""
    folder, name = RELEASES[0], "auc.PairOGD"
    lane = make.driver(name)
    rows = make.stream(name)
    lane.feed([(x, not y) for x, y in rows[: make.BEFORE]])
    scores = make.shown(lane.feed(rows[make.BEFORE :]))
    assert scores != pytest.approx(json.loads((folder / "expected.json").read_text())[name])
