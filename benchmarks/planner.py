"""What the planner expects against what runs measure, on its reference task.

    python benchmarks/planner.py [--seeds 3] [--json]

Each line is a mechanism on one task: records, features, share of positives, epsilon; the expected AUC, the
mean and standard error of the AUC of the learned direction over some seeds, and their difference. delta is
one over the number of records.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from statistics import NormalDist

import _timing
import numpy as np

from streampair import auc, privacy

BEST = 0.85
TASKS = (
    (1000, 8, 0.5, 1.0),
    (1000, 8, 0.3, 0.5),
    (5000, 20, 0.5, 1.0),
    (5000, 20, 0.1, 1.0),
    (20_000, 20, 0.5, 0.3),
    (20_000, 60, 0.3, 1.0),
    (50_000, 20, 0.05, 1.0),
    (20_000, 100, 0.2, 1.0),
)


def measured(forecast: privacy.Forecast, n: int, d: int, rate: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    gap = math.sqrt(2) * NormalDist().inv_cdf(BEST)
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    y = rng.random(n) < rate
    x = rng.normal(size=(n, d)) + np.outer(y - rate, gap * u)
    bounds = dict.fromkeys(range(d), (-4.0, 4.0))
    model = getattr(auc, forecast.mechanism)(features=list(range(d)), bounds=bounds, **forecast.settings)
    model.learn_many(x, y)
    # On raw features the weights are these times what scales the features.
    w = model.weights_vector * model.run.design.factor
    norm = float(np.linalg.norm(w))
    return NormalDist().cdf(gap / math.sqrt(2) * float(w @ u) / norm) if norm > 0 else 0.5


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Expected and measured AUC of each mechanism on each task."""
    for n, d, rate, epsilon in TASKS:
        for forecast in privacy.plan(n, d, epsilon=epsilon, positive_rate=rate, auc=BEST).forecasts:
            runs = [measured(forecast, n, d, rate, seed) for seed in range(options.seeds)]
            given = "horizon" if "horizon" in forecast.settings else "no horizon"
            yield {
                **{"n": n, "d": d, "rate": rate, "epsilon": epsilon},
                "mechanism": f"{forecast.mechanism}, {forecast.settings.get('solver', given)}",
                "expected": forecast.auc,
                "measured": (mean := float(np.mean(runs))),
                "stderr": float(np.std(runs, ddof=1) / len(runs) ** 0.5),
                "off": mean - forecast.auc,
            }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("n", "n", ">6"), ("d", "d", ">5"), ("rate", "rate", ">6g"), ("eps", "epsilon", ">5g")),
        *(("  mechanism", "mechanism", "<30"), ("expected", "expected", ">9.3f")),
        *(("measured", "measured", ">9.3f"), ("+-", "stderr", ">7.3f"), ("off", "off", ">+8.3f")),
    ]
    return _timing.table(columns, ({**row, "mechanism": f"  {row['mechanism']}"} for row in rows))


if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, {"--seeds": {"type": int, "default": 3}}))
