"""The average regret of every learner on streams that stay the same. One page and one plot.

    python benchmarks/regret.py [--plot FILE.svg] [--events N] [--streams K] [--json]

Each line is a learner with its defaults in a lane, as a worker runs it, and each column a number of events:
the mean, over some streams, of the regret by event against the best fixed weights for all of them, as the
lane estimates it, from a sample of 8192 pairs (a worker takes 1024). The error is that between streams.
Private learners have epsilon 1 and delta one over the number of events. The loss is the learner's own, so
lines are to be compared in how they fall. The last column is the slope of a line through the points, both
axes in logarithms: online gradient descent promises -0.5. No theorem covers AdaGrad's steps. Learners do not
scale the features (``scale=None``): with a scale that moves no weights are fixed ones.

Streams: normal records of 6 features in the unit ball; two classes with their means apart; a relevance that
is linear in the record, with noise; three classes with their means apart. A private learner has a floor: what
its noise costs does not fall where every release has the same noise. Regret below its standard error is shown
as it is; below zero it is left out of the plot, and no slope is given.

Exit code 1 if the slope of a `PairOGD` of two classes is above -0.4.
"""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _chart
import _timing
import numpy as np
from _chart import Look

from streampair import auc, metric, privacy, ranking
from streampair.engine import Event, Lane, LaneId, Monitoring, Record, RegretConfig

FEATURES = 6
NAMES = [f"x{i}" for i in range(FEATURES)]
CLASSES = ["a", "b", "c"]
STEEP = -0.4
#: Of the sample. With the 1024 of a worker the standard error is a quarter of what is left of PairOGD's
#: regret after the last event, and the slope that of the noise.
PAIRS = 8192

LEARNERS: dict[str, dict[str, Any]] = {
    "auc": {
        "PairOGD": partial(auc.PairOGD, scale=None),
        "PairOGD, self-tuned": partial(auc.PairOGD, learning_rate=None, scale=None),
        "OAM": partial(auc.OAM, scale=None),
        "SPAUC": partial(auc.SPAUC, scale=None),
        "PairFTRL": auc.PairFTRL,
        "PairFTRL, gradients": partial(auc.PairFTRL, mechanism=privacy.PairGradients()),
        "OnPairStrC": partial(auc.OnPairStrC, l2=0.1),
        "OnPairC": auc.OnPairC,
    },
    "ranking": {
        "PairOGD": partial(ranking.PairOGD, scale=None),
        "PairFTRL": ranking.PairFTRL,
        "PairFTRL, gradients": partial(ranking.PairFTRL, mechanism=privacy.PairGradients()),
        "OnPairStrC": partial(ranking.OnPairStrC, l2=0.1),
        "OnPairC": ranking.OnPairC,
    },
    "metric": {
        "PairOGD": metric.PairOGD,
        "PairFTRL": partial(metric.PairFTRL, classes=CLASSES),
        "PairFTRL, gradients": partial(metric.PairFTRL, mechanism=privacy.PairGradients()),
        "OnPairStrC": partial(metric.OnPairStrC, l2=0.1),
        "OnPairC": metric.OnPairC,
    },
}
PLAIN = ("PairOGD", "PairOGD, self-tuned", "OAM", "SPAUC")
LOOKS = {
    "slope -1/2": Look("#000000", "6 3", 1.2),
    "PairOGD": Look("#555555", width=2.6),
    "PairOGD, self-tuned": Look("#555555", "2 2"),
    "OAM": Look("#999999", "2 2"),
    "SPAUC": Look("#999999", "6 2"),
    "PairFTRL": Look("#c1121f", width=2.6),
    "PairFTRL, gradients": Look("#7b2cbf"),
    "OnPairStrC": Look("#1d6fb8"),
    "OnPairC": Look("#2a9d4b"),
}


def stream(family: str, n: int, seed: int) -> list[tuple[dict[str, float], Any]]:
    """Records with their labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES)) / 2.0
    labels: list[Any]
    if family == "auc":
        positive = rng.random(n) < 0.4
        x[:, :2] += np.where(positive, 0.4, -0.4)[:, None]
        labels = positive.tolist()
    elif family == "ranking":
        labels = np.clip(0.5 * x[:, 0] + 0.3 * x[:, 1] + 0.2 * rng.normal(size=n), -1.0, 1.0).tolist()
    else:
        classes = rng.integers(0, 3, n)
        x += 0.6 * np.eye(3, FEATURES)[classes]
        labels = [CLASSES[c] for c in classes]
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return [(dict(zip(NAMES, row, strict=True)), y) for row, y in zip(x.tolist(), labels, strict=True)]


def averages(make: Any, private: bool, rows: list[Any], times: list[int], seed: int) -> list[float]:
    """The average regret of a learner on a stream, at these numbers of events."""
    if private:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fixed seed protects nobody: here nobody is in the data
            # The seed makes the page the same each time.
            options = {"features": NAMES, "seed": seed, "horizon": len(rows)}
            model = make(epsilon=1.0, delta=1.0 / len(rows), **options)
    else:
        model = make() if make is auc.SPAUC else make(seed=seed)

    def decode(record: Record) -> Event:
        x, y = rows[record.offset]
        return Event(x, y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lane = Lane(
            model, decode, LaneId("a", "t", 0), monitoring=Monitoring(RegretConfig(seed=seed, pairs=PAIRS))
        )
        out, position = [], 0
        for time in times:
            while position < time:
                until = min(position + 500, time)
                lane.process([Record(i, b"") for i in range(position, until)])
                position = until
            estimate = lane.regret()
            assert estimate is not None, getattr(model, "comparator_radius", None)
            out.append(estimate.average)
    return out


def slope(times: list[int], values: list[float]) -> float | None:
    """Of a line through the points, in logarithms; None if one is not above zero."""
    if min(values) <= 0.0:
        return None
    return float(np.polyfit(np.log(times), np.log(values), 1)[0])


def measure(options: Namespace) -> Iterator[_timing.Row]:
    times = [options.events // factor for factor in (64, 16, 4, 1)]
    found: list[_timing.Row] = []
    for family, learners in LEARNERS.items():
        rows = [stream(family, options.events, seed) for seed in range(options.streams)]
        for name, make in learners.items():
            private = name not in PLAIN
            values = np.array(
                [averages(make, private, part, times, seed) for seed, part in enumerate(rows, 1)]
            )
            mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / len(values) ** 0.5
            row: _timing.Row = {"family": family, "name": name, "times": times, "slope": None}
            row |= {"average": mean.tolist(), "stderr": error.tolist()}
            row["slope"] = slope(times, row["average"])
            if family == "auc" and name.startswith("PairOGD"):
                row = _timing.judged({**row, "slope": row["slope"] or 0.0}, "slope", most=STEEP)
            found.append(row)
            yield row
    if options.plot:
        options.plot.write_text(plot(found), encoding="utf-8")


def plot(rows: list[_timing.Row]) -> str:
    """A panel for each family."""
    panels = []
    for family in LEARNERS:
        lines = []
        for row in rows:
            if row["family"] == family:
                points = zip(row["times"], row["average"], row["stderr"], strict=True)
                lines.append(_chart.Line(row["name"], tuple(p for p in points if p[1] > 0.0)))
        lines.append(_chart.Line("slope -1/2", level=-0.5))
        panels.append(_chart.Panel(family, "average regret", tuple(lines)))
    return _chart.decades("Average regret on streams that stay the same", panels, LOOKS)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    family = None
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            head = "".join(f"{time:>20,}" for time in row["times"])
            yield f"{family}: average regret, mean of {options.streams} streams, after events"
            yield f"{'':<22}{head}     slope"
        cells = "".join(
            f"{f'{value:.4f} +- {error:.4f}':>20}"
            for value, error in zip(row["average"], row["stderr"], strict=True)
        )
        slope = "" if row["slope"] is None else f"{row['slope']:.2f}"
        yield f"{row['name']:<22}{cells}{slope:>10}" + (f"  {row['goal']}" if row.get("goal") else "")


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--plot": {"type": Path, "help": "write the plot to this file, as SVG"},
        "--events": {"type": int, "default": 16_000, "help": "events of a stream (default 16000)"},
        "--streams": {"type": int, "default": 3, "help": "streams (default 3)"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
