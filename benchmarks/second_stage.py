"""What a private Newton step behind the moments would add. An experiment: the library has no such mechanism.

    python benchmarks/second_stage.py [--data DIR] [--seeds 5] [--json] [NAME ...]

Moments give the leader of the squared loss, and `LogisticRegression` minimises another one. A gradient of the
logistic loss at a model that is out, sum of `(y - p(x)) x` over later records, one Gaussian release of
sensitivity 2, and the released second moments, times the mean of p (1 - p) that they tell, make a Newton step
(Ganesh et al. 2023). Two ways, at epsilon 1, delta one over the rows:

    beside   the gradient is of the second half of the stream, which the moments go on to learn; it has a
             quarter of mu^2. The step goes from the last moments' model.
    after    the moments have the first 70 %, the gradient the rest, each with all of mu.

The step is shortened as James and Stein do, by as much of its square, in the metric of its Hessian, as the
known noise explains. Held-out AUC of the moments as they are, on 80/20 splits; what each way adds, with
its standard error; and what it would add if the gradient had no noise. Nothing was ever chosen on
breast_cancer and diabetic_retinopathy.
"""

from __future__ import annotations

import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from streampair import auc
from streampair.privacy import epsilon_from, mu_from

NAMES = (
    *("breast_cancer", "diabetic_retinopathy", "diabetes", "german", "phishing", "usps"),
    *("synthetic", "letter", "ijcnn1", "adult", "bank"),
)
UNSEEN = {"breast_cancer": 0, "diabetic_retinopathy": 1}  # and their positive labels
FIRST_SPLIT = 9000
SHARE, TOGETHER, AFTER = 0.25, 0.5, 0.7


def load(name: str, folder: Path) -> _sets.Set:
    """A set of `_sets`, or one of those that nothing was chosen on."""
    if name not in UNSEEN:
        return _sets.load(name, folder)
    frame = pd.read_csv(folder / f"{name}.csv.gz")
    label = frame.pop("label")
    return _sets.Set(name, "auc", frame.astype(float), label.to_numpy() == UNSEEN[name])


def stepped(
    model: Any, start: tuple[np.ndarray, float, float], x: np.ndarray, y: np.ndarray, sigma: float, seed: int
) -> np.ndarray:
    """The model's weights after a Newton step by the gradient at weights, slope and offset `start`."""
    rule = model.run.state
    w, slope, offset = start
    p = 1.0 / (1.0 + np.exp(-(slope * x @ w + offset)))
    noise = sigma * np.random.default_rng(seed).normal(size=len(w))
    gradient = ((y - p) @ x + noise) / len(x)
    second, _, left = rule._means()
    z = np.linspace(-4.0, 4.0, 81)
    t = 1.0 / (1.0 + np.exp(-(offset + slope * math.sqrt(max(w @ second @ w, 0.0)) * z)))
    curvature = np.average(t * (1.0 - t), weights=np.exp(-0.5 * z * z))
    values, basis = np.linalg.eigh(second)
    values = curvature * (np.maximum(values, 0.0) + math.sqrt(len(w) * left))
    last = rule.link.slope * rule.average
    rest = basis.T @ gradient - values * (basis.T @ (last - slope * w))
    explained = (sigma / len(x)) ** 2 * np.sum(1.0 / values) / np.sum(rest * rest / values)
    return np.asarray(last + max(1.0 - explained, 0.0) * (basis @ (rest / values)))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set."""
    warnings.simplefilter("ignore")
    for name in options.names or NAMES:
        if not ((options.data / f"{name}.csv.gz").exists() or _sets.there(name, options.data)):
            continue
        data = load(name, options.data)
        columns, delta = list(data.x.columns), 1.0 / len(data.x)
        mu = mu_from(1.0, delta)
        base: list[float] = []
        gains: dict[str, list[float]] = {}
        for seed, (train, test) in enumerate(_sets.splits(len(data.x), options.seeds, FIRST_SPLIT)):
            n = len(train)
            plain = _sets.private(data, auc.PairFTRL, train, epsilon=1.0, horizon=n)
            base.append(_sets.judged(data, plain, test))
            for way, horizon, first, spent in (
                ("beside", n, int(TOGETHER * n), SHARE),
                ("after", int(AFTER * n), int(AFTER * n), 1.0),
            ):
                kept = mu if way == "after" else mu * math.sqrt(1.0 - spent)
                model = auc.PairFTRL(
                    epsilon=epsilon_from(kept, delta),
                    delta=delta,
                    horizon=horizon,
                    features=columns,
                    bounds=_sets.bounds_of(data.x),
                )
                model.learn_many(data.x.iloc[train[:first]], pd.Series(data.y[train[:first]]))
                run: Any = model.run
                start = (run.state.average.copy(), run.state.link.slope, run.state.link.offset)
                late = train[first:]
                x, test_rows = (
                    run.prepared(columns, data.x.iloc[i].to_numpy(dtype=float)) for i in (late, test)
                )
                model.learn_many(data.x.iloc[late], pd.Series(data.y[late]))
                for noise in (2.0 / (mu * math.sqrt(spent)), 0.0):
                    w = stepped(model, start, x, data.y[late].astype(float), noise, seed)
                    gain = float(roc_auc_score(data.y[test], test_rows @ w)) - base[-1]
                    gains.setdefault(way + (", no noise" if noise == 0.0 else ""), []).append(gain)
        row: _timing.Row = {"data": name, "rows": len(data.x), "features": len(columns)}
        yield (
            row
            | {"moments": interval(base, "")}
            | {way: interval(found, "+") for way, found in gains.items()}
        )


def interval(values: list[float], sign: str) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):{sign}.3f} +- {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    names = ("moments", "beside", "beside, no noise", "after", "after, no noise")
    columns = [("data", "data", "<22"), ("rows", "rows", ">6"), ("d", "features", ">5")]
    return _timing.table([*columns, *((name, name, ">18") for name in names)], rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"of {', '.join(NAMES)}; all without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--seeds": {"type": int, "default": 5, "help": "splits"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
