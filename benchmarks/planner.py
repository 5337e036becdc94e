"""What the planner expects against what runs measure, on its reference tasks.

    python benchmarks/planner.py [--seeds 3] [--families auc ranking metric] [--json]

Each line is a mechanism on one task: records, features, share of positives, epsilon; the expected AUC
(pairs in order for a ranking, distances in order for a metric), the mean and standard error of what the
learned model reaches over some seeds, and their difference. delta is one over the number of records. The
last line says on how many tasks the mechanism that the planner puts first was the best, or within .01 of
it. (On real sets that is a part of `make utility`.)
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import NormalDist
from typing import Any

import _sets
import _timing
import numpy as np

from streampair import auc, metric, privacy, ranking

Learner = Callable[..., Any]

BEST = 0.85
GOAL = 0.01
TASKS: dict[str, tuple[tuple[int, int, float, float], ...]] = {
    "auc": (
        (1000, 8, 0.5, 1.0),
        (1000, 8, 0.3, 0.5),
        (5000, 20, 0.5, 1.0),
        (5000, 20, 0.1, 1.0),
        (20_000, 20, 0.5, 0.3),
        (20_000, 60, 0.3, 1.0),
        (50_000, 20, 0.05, 1.0),
        (20_000, 100, 0.2, 1.0),
    ),
    "ranking": (
        (1000, 8, 0.5, 1.0),
        (5000, 20, 0.5, 1.0),
        (20_000, 20, 0.5, 0.3),
        (20_000, 60, 0.5, 1.0),
    ),
    "metric": (
        (1000, 4, 0.5, 1.0),
        (5000, 6, 0.5, 1.0),
        (20_000, 10, 0.5, 0.3),
        (20_000, 20, 0.5, 1.0),
    ),
}


def of_classes(make: Learner, n: int, d: int, rate: float, seed: int) -> float:
    """AUC of the learned direction, two classes of normal records."""
    rng = np.random.default_rng(seed)
    gap = math.sqrt(2) * NormalDist().inv_cdf(BEST)
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    y = rng.random(n) < rate
    model = learned(make, rng.normal(size=(n, d)) + np.outer(y - rate, gap * u), y)
    return NormalDist().cdf(gap / math.sqrt(2) * along(model, u))


def of_relevances(make: Learner, n: int, d: int, rate: float, seed: int) -> float:
    """Share of pairs in order of the learned direction, normal relevances."""
    rng = np.random.default_rng(seed)
    rho = math.sin(math.pi * (BEST - 0.5))
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    x = rng.normal(size=(n, d))
    y = np.clip(0.5 * (rho * (x @ u) + math.sqrt(1 - rho**2) * rng.normal(size=n)), -1.0, 1.0)
    return 0.5 + math.asin(rho * along(learned(make, x, y), u)) / math.pi


def of_distances(make: Learner, n: int, d: int, rate: float, seed: int) -> float:
    """Share of distances in order, of 4000 new records of two classes."""
    rng = np.random.default_rng(seed)
    gap = 2.0 * NormalDist().inv_cdf(0.5 * (1.0 + math.sqrt(2.0 * BEST - 1.0)))
    u = rng.choice([-1.0, 1.0], d) / math.sqrt(d)
    y = rng.random(n + 4000) < rate
    x = rng.normal(size=(n + 4000, d)) + np.outer(y - 0.5, gap * u)
    model = learned(make, x[:n], y[:n])
    return _sets.in_order("metric", y[n:], model.transform_many(x[n:]))


def learned(make: Learner, x: np.ndarray, y: np.ndarray) -> Any:
    """A learner of these records, whose features have bounds of four standard deviations."""
    d = x.shape[1]
    model = make(features=list(range(d)), bounds=dict.fromkeys(range(d), (-4.0, 4.0)))
    model.learn_many(x, y)
    return model


def along(model: Any, u: np.ndarray) -> float:
    """Cosine between the learned direction and the right one."""
    # On raw features the weights are these times what scales the features.
    w = model.weights_vector * model.run.design.factor
    norm = float(np.linalg.norm(w))
    return float(w @ u) / norm if norm > 0 else 0.0


MEASURED = {"auc": (auc, of_classes), "ranking": (ranking, of_relevances), "metric": (metric, of_distances)}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Expected and measured level of each mechanism on each task; the last row has the verdict."""
    near = tasks = 0
    for family in options.families:
        module, measured = MEASURED[family]
        for n, d, rate, epsilon in TASKS[family]:
            found = privacy.plan(n, d, epsilon=epsilon, positive_rate=rate, auc=BEST, family=family)
            means = []
            for forecast in found.forecasts:
                make = partial(getattr(module, forecast.mechanism), **forecast.settings)
                runs = [measured(make, n, d, rate, seed) for seed in range(options.seeds)]
                kind = "horizon" if "horizon" in forecast.settings else "no horizon"
                kind = "gradients" if "mechanism" in forecast.settings else kind
                means.append(mean := float(np.mean(runs)))
                yield {
                    **{"n": n, "d": d, "rate": rate, "epsilon": epsilon},
                    "mechanism": f"{forecast.call().split('(')[0]}, {kind}",
                    "expected": forecast.auc,
                    "measured": mean,
                    "stderr": float(np.std(runs, ddof=1) / len(runs) ** 0.5),
                    "off": mean - forecast.auc,
                }
            tasks += 1
            near += max(means) - means[0] <= GOAL
    yield {"near": near, "tasks": tasks}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("n", "n", ">6"), ("d", "d", ">5"), ("rate", "rate", ">6g"), ("eps", "epsilon", ">5g")),
        *(("  mechanism", "mechanism", "<32"), ("expected", "expected", ">9.3f")),
        *(("measured", "measured", ">9.3f"), ("+-", "stderr", ">7.3f"), ("off", "off", ">+8.3f")),
    ]
    *lines, verdict = rows
    yield from _timing.table(columns, ({**row, "mechanism": f"  {row['mechanism']}"} for row in lines))
    yield (
        f"what the planner puts first is the best, or within {GOAL} of it, on {verdict['near']} of "
        f"{verdict['tasks']} tasks"
    )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--seeds": {"type": int, "default": 3},
        "--families": {"nargs": "+", "choices": list(TASKS), "default": list(TASKS)},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
