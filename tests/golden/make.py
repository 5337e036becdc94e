"""State as a release writes it, for later releases to read: ``python tests/golden/make.py FOLDER``.

Run it with the release whose state is to be kept, and never again: what is in a folder is what users of that
release have on their disks. `tests/engine/test_golden.py` goes on from each and compares what comes next.
Each model has a log and the snapshot that the log names.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.driver import Driver, MemoryStore

from streampair import auc, buffers, losses, metric, privacy, ranking
from streampair.engine.wal import Chain, SnapshotEntry
from streampair.preprocessing import Bounds, UnitBall
from streampair.privacy import EntityLimit

KEY = bytes(range(32))
NAMES = ["a", "b", "c"]
BEFORE, AFTER = 70, 20

MODELS: dict[str, Callable[[], Any]] = {
    "auc.PairOGD": lambda: auc.PairOGD(seed=1),
    "auc.PairOGD-unscaled": lambda: auc.PairOGD(seed=1, scale=None),
    "auc.PairOGD-reservoir": lambda: auc.PairOGD(
        losses.Logistic(), buffers.Reservoir(8), l2=0.1, seed=1, scale=None
    ),
    "auc.PairOGD-classes": lambda: auc.PairOGD(
        losses.Square(), buffers.ClassReservoir(4), None, seed=1, scale=None
    ),
    "auc.PairOGD-history": lambda: auc.PairOGD(
        losses.Logistic(), buffers.FullHistory("float32"), None, seed=1, scale=None
    ),
    "auc.PairOGD-moments": lambda: auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=1, scale=None),
    "auc.Forest": lambda: auc.Forest(3, 15, seed=1),
    "auc.PrivateForest": lambda: auc.PrivateForest(
        20.0, 1e-4, 85, warmup=20, trees=3, depth=2, features=NAMES, noise_key=KEY
    ),
    "auc.OAM": lambda: auc.OAM(size=4, seed=1, scale=None),
    "auc.SPAUC": lambda: auc.SPAUC(l2=0.1, scale=None),
    "auc.PairMoments": lambda: auc.PairMoments(half_life=20),
    "auc.PairFTRL-moments": lambda: auc.PairFTRL(horizon=120, noise_key=KEY),
    "auc.PairFTRL-prefix": lambda: auc.PairFTRL(warmup=80, noise_key=KEY),
    "auc.PairFTRL-blt": lambda: auc.PairFTRL(warmup=0, features=NAMES, noise_key=KEY),
    "auc.PairFTRL-toeplitz": lambda: auc.PairFTRL(
        warmup=20, horizon=200, mechanism=privacy.PairGradients(), noise_key=KEY
    ),
    "auc.PairFTRL-entity": lambda: auc.PairFTRL(
        features=NAMES, entity=EntityLimit(5, 3), warmup=10, noise_key=KEY
    ),
    "auc.OnPairStrC": lambda: auc.OnPairStrC(1.0, 1e-4, 200, l2=0.1, releases=50, noise_key=KEY),
    "auc.OnPairC-reservoir": lambda: auc.OnPairC(
        1.0, 1e-4, 200, buffer=buffers.Reservoir(8), warmup=20, forks=1, window=10, noise_key=KEY
    ),
    "ranking.PairOGD": lambda: ranking.PairOGD(
        losses.MinimumErrorEntropy(0.5), relevance=(-1.0, 1.0), seed=1, scale=None
    ),
    "ranking.PairMoments": lambda: ranking.PairMoments(half_life=None),
    "ranking.PairFTRL": lambda: ranking.PairFTRL(warmup=20, noise_key=KEY),
    "ranking.OnPairC": lambda: ranking.OnPairC(1.0, 1e-4, 200, noise_key=KEY),
    "metric.PairOGD": lambda: metric.PairOGD(seed=1),
    "metric.PairOGD-history": lambda: metric.PairOGD(losses.Logistic(), buffers.FullHistory(), seed=1),
    "metric.PairFTRL": lambda: metric.PairFTRL(warmup=20, noise_key=KEY),
    "metric.OnPairStrC": lambda: metric.OnPairStrC(1.0, 1e-4, 200, l2=0.1, noise_key=KEY),
    "pipeline": lambda: Bounds({"a": (-1, 1)}) | UnitBall() | auc.PairFTRL(horizon=120, noise_key=KEY),
}


def stream(name: str) -> list[tuple[dict[str, float], Any]]:
    """Labelled records that suit the family of a model."""
    rng = random.Random(7)
    rows: list[tuple[dict[str, float], Any]] = []
    for _ in range(BEFORE + AFTER):
        x = {feature: round(rng.gauss(0.0, 0.4), 3) for feature in NAMES}
        score = x["a"] - x["b"] + rng.gauss(0.0, 0.2)
        label: Any = score > 0.3
        if name.startswith("ranking"):
            label = round(max(-1.0, min(1.0, score)), 3)
        elif name.startswith("metric"):
            label = rng.choice(["x", "y", "z"])
        rows.append((x, label))
    return rows


def driver(name: str) -> Driver:
    """A lane of the model, at its beginning; there is no group that would have a register."""
    return Driver(MODELS[name], facts={"registers": False})


def left(folder: Path, name: str) -> MemoryStore:
    """What a release has left."""
    log = (folder / f"{name}.log").read_bytes()
    (saved,) = (entry for entry in Chain.peek(log) if isinstance(entry, SnapshotEntry))
    return MemoryStore(log, {saved.content.hex(): (folder / f"{name}.snapshot").read_bytes()})


def scores_of(output: Any) -> list[float]:
    """The scores of a batch, whole."""
    return [score.score for score in output.scores]


def main(folder: Path, names: Iterable[str] = MODELS) -> None:
    """Write log and snapshot of each model, and the scores that come after it."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name in names:
        rows = stream(name)
        lane = driver(name)
        lane.feed(rows[: BEFORE - 1])
        lane.feed(rows[BEFORE - 1 : BEFORE])  # adopts a model that is still to be computed after a restart
        lane.commit(clean=True)
        (snapshot,) = lane.store.snapshots.values()
        (folder / f"{name}.snapshot").write_bytes(snapshot)
        (folder / f"{name}.log").write_bytes(lane.store.log)
        # One by one: a lane may use a new model from the next batch on only.
        expected[name] = [score for row in rows[BEFORE:] for score in scores_of(lane.feed([row]))]
    (folder / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
