"""What the ranking is worth after a stream has changed: with a half-life and without, private and not.

    python benchmarks/drift.py [--seeds 3] [--json] [--check] [NAME ...]

Each learner scores a batch of 250 records, then learns it. `before` is the AUC of the last two half-lives
before the changes, `+1` to `+4` that of the first to fourth half-life behind them, `settled` that of the last
two half-lives before the next change or the end: means over all changes of the stream, and over the seeds of
streams and noise. The private learner has epsilon 1, delta 1e-5. The bars, for learners with a half-life:

- two half-lives after a change, in `+3`, the AUC is at most .02 below `settled`;
- there the private one is at most .02 below the one that is not private.

`turning` turns its weights by 90 degrees every 1e5 records. The others are River's generators, of which one
takes the place of another in the middle, over a thousand records (`synth.ConceptDriftStream`): SEA with
another threshold (which changes labels and not the order), hyperplanes of other weights, Agrawal's second
function after its third; in `Hyperplane, slow` the weights drift at every record, and what stands behind the
middle is no change. Their bounds are declared.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _timing
import numpy as np
from river.datasets import synth

from streampair import auc, privacy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.drift import scores, turning, window_auc

LOST = 0.02
DELTA = 1e-5
MIDDLE = 40_000


class Stream(NamedTuple):
    """Rows with declared bounds (low, high) of the columns, labels, where they change, and the half-life."""

    rows: np.ndarray
    labels: np.ndarray
    bounds: list[tuple[float, float]]
    changes: list[int]
    half_life: int


def _turning(seed: int) -> Stream:
    rows, labels = turning(300_000, 100_000, seed=seed)
    return Stream(rows, labels, [(-1.0, 1.0)] * rows.shape[1], [100_000, 200_000], 10_000)


def _river(source: Any, bounds: list[tuple[float, float]]) -> Stream:
    taken = list(source.take(2 * MIDDLE))
    rows = np.array([list(x.values()) for x, _ in taken], dtype=float)
    return Stream(rows, np.array([bool(y) for _, y in taken]), bounds, [MIDDLE], 4000)


def _changed(before: Any, after: Any, seed: int) -> Any:
    return synth.ConceptDriftStream(before, after, position=MIDDLE, width=1000, seed=seed)


def _sea(seed: int) -> Stream:
    return _river(
        _changed(synth.SEA(0, 0.1, seed=seed), synth.SEA(3, 0.1, seed=seed + 100), seed), [(0.0, 10.0)] * 3
    )


def _hyperplane(seed: int) -> Stream:
    one, two = (synth.Hyperplane(seed=s, n_features=10, n_drift_features=0) for s in (seed, seed + 100))
    return _river(_changed(one, two, seed), [(0.0, 1.0)] * 10)


def _slow(seed: int) -> Stream:
    source = synth.Hyperplane(seed=seed, n_features=10, n_drift_features=5, mag_change=0.0005)
    return _river(source, [(0.0, 1.0)] * 10)


def _agrawal(seed: int) -> Stream:
    one, two = (synth.Agrawal(function, seed=seed + function, perturbation=0.05) for function in (2, 1))
    ranges = [(20e3, 150e3), (0, 75e3), (20, 80), (0, 4), (1, 20), (0, 8), (0, 900e3), (1, 30), (0, 500e3)]
    return _river(_changed(one, two, seed), [(float(low), float(high)) for low, high in ranges])


STREAMS: dict[str, Callable[[int], Stream]] = {
    "turning": _turning,
    "SEA": _sea,
    "Hyperplane": _hyperplane,
    "Hyperplane, slow": _slow,
    "Agrawal": _agrawal,
}


def learners(stream: Stream) -> dict[str, Callable[[], Any]]:
    """Makers of the learners."""
    names = list(range(stream.rows.shape[1]))
    options: dict[str, Any] = {"features": names, "bounds": dict(enumerate(stream.bounds))}
    half_life = stream.half_life
    return {
        "PairOGD": lambda: auc.PairOGD(half_life=half_life),
        "PairFTRL": lambda: auc.PairFTRL(1.0, DELTA, mechanism=privacy.DecayedMoments(half_life), **options),
        "PairOGD, for ever": auc.PairOGD,
        "PairFTRL, for ever": lambda: auc.PairFTRL(1.0, DELTA, **options),
    }


def figures(found: np.ndarray, stream: Stream) -> dict[str, float]:
    """AUC around the changes."""
    h, ends = stream.half_life, [*stream.changes[1:], len(found)]

    def mean(windows: Iterable[tuple[int, int]]) -> float:
        return float(np.mean([window_auc(found, stream.labels, *window) for window in windows]))

    means = {"before": mean((change - 2 * h, change) for change in stream.changes)}
    for k in range(1, 5):
        means[f"+{k}"] = mean((change + (k - 1) * h, change + k * h) for change in stream.changes)
    return {**means, "settled": mean((end - 2 * h, end) for end in ends)}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A line for each learner on each stream."""
    for name in options.name or STREAMS:
        streams = [STREAMS[name](seed) for seed in range(1, options.seeds + 1)]
        open_after = 0.0
        for learner in learners(streams[0]):
            each = []
            for stream in streams:
                low, high = np.array(stream.bounds).T
                # Not private: scaled by the same bounds.
                rows = stream.rows if "FTRL" in learner else (2.0 * stream.rows - low - high) / (high - low)
                each.append(figures(scores(learners(stream)[learner](), rows, stream.labels), stream))
            row: _timing.Row = {
                key: float(np.mean([figures_of_run[key] for figures_of_run in each])) for key in each[0]
            }
            row |= {"stream": name, "learner": learner, "half_life": streams[0].half_life}
            if "ever" not in learner:
                least = row["settled"] - LOST
                if learner == "PairFTRL":
                    least = max(least, open_after - LOST)
                open_after = row["+3"]
                row = _timing.judged(row, "+3", least=round(least, 3))
            yield row


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table, with the bar of `+3`."""
    columns = [
        ("stream", "stream", "<18"),
        ("learner", "learner", "<20"),
        *((name, name, ">8.3f") for name in ("before", "+1", "+2", "+3", "+4", "settled")),
    ]
    return _timing.table(columns, rows, goals=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"nargs": "*", "metavar": "NAME"},
    "--seeds": {"type": int, "default": 3},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
