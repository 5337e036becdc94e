"""What the planner expects against what runs measure, on its reference task.

    python benchmarks/planner.py [--seeds 3] [--json]

Each line is a mechanism on one task: records, features, share of positives, epsilon; the expected AUC, the
mean and standard error of the AUC of the learned direction over some seeds, and their difference. delta is
one over the number of records.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from statistics import NormalDist

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
    w = model.weights_vector * model._design.factor
    norm = float(np.linalg.norm(w))
    return NormalDist().cdf(gap / math.sqrt(2) * float(w @ u) / norm) if norm > 0 else 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        heads = f"{'expected':>9}{'measured':>9}{'+-':>7}{'off':>8}"
        print(f"{'n':>6} {'d':>4} {'rate':>5} {'eps':>4}  {'mechanism':<28}{heads}")
    for n, d, rate, epsilon in TASKS:
        for forecast in privacy.plan(n, d, epsilon=epsilon, positive_rate=rate, auc=BEST).forecasts:
            runs = [measured(forecast, n, d, rate, seed) for seed in range(options.seeds)]
            mean, stderr = float(np.mean(runs)), float(np.std(runs, ddof=1) / len(runs) ** 0.5)
            given = "horizon" if "horizon" in forecast.settings else "no horizon"
            name = f"{forecast.mechanism}, {forecast.settings.get('solver', given)}"
            rows.append(
                {
                    "n": n,
                    "d": d,
                    "rate": rate,
                    "epsilon": epsilon,
                    "mechanism": name,
                    "expected": forecast.auc,
                    "measured": mean,
                    "stderr": stderr,
                }
            )
            if not options.json:
                print(
                    f"{n:>6} {d:>4} {rate:>5g} {epsilon:>4g}  {name:<28}{forecast.auc:>9.3f}{mean:>9.3f}"
                    f"{stderr:>7.3f}{mean - forecast.auc:>+8.3f}",
                    flush=True,
                )
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
