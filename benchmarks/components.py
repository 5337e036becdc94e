"""When random Fourier components pay under privacy: the planner's rule against runs.

    python benchmarks/components.py [--data DIR] [--quick] [--json] [NAME ...]

Each line is a set, a number of components, of records and an epsilon (delta: one over the records): the AUC
of `PairFTRL` with `RandomFourier` in front, and with the linear features. `gain` is what the components
gain without privacy (`LogisticRegression`, penalty .01, at most 2e4 records); the rule says that they pay
where it is more than ``.05 sqrt(noise)``, and the noise is known before there is any data. The last line
says how often that was right: components were better where it says so, and not where it does not, or the
two were within .01.

Sets: those of `make utility`, bananas (ships with River), rings and xor (generated, no plane parts them).
gamma is 2 / features, the bounds of the components are what sine and cosine have.
"""

from __future__ import annotations

import math
import statistics
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
from river import datasets
from sklearn.linear_model import LogisticRegression

from streampair import auc, preprocessing
from streampair.assurance.planner import moment_noise

NAMES = ("bananas", "rings", "xor", "synthetic", "letter", "ijcnn1", "adult", "usps")
COMPONENTS = (64, 256)
EPSILONS = (0.5, 1.0, 2.0)
SIZES = (1500, 6000, 25_000, 10**9)
NEAR = 0.01
TYPICAL = 0.05


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to [-1, 1] by their smallest and largest values, and labels."""
    rng = np.random.default_rng(3)
    if name == "bananas":
        pairs = list(datasets.Bananas())
        x, y = np.array([list(x.values()) for x, _ in pairs], dtype=float), np.array([y for _, y in pairs])
    elif name == "rings":
        x = rng.normal(size=(60_000, 6))
        y = (x**2).sum(axis=1) + 1.5 * rng.normal(size=len(x)) > 5.35
    elif name == "xor":
        x = rng.normal(size=(60_000, 4))
        y = x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + 0.4 * rng.normal(size=len(x)) > 0
    else:
        data = _sets.load(name, folder)
        x, y = data.x.to_numpy(), data.y
    low, high = x.min(axis=0), x.max(axis=0)
    differs = high > low
    return (2.0 * x[:, differs] - low[differs] - high[differs]) / (high - low)[differs], np.asarray(
        y, dtype=bool
    )


def fourier(x: np.ndarray, components: int) -> np.ndarray:
    """Random Fourier components of rows."""
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    bent = preprocessing.RandomFourier(components, gamma=2.0 / x.shape[1], seed=1)
    return bent.transform_many(frame).to_numpy()


def private(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, epsilon: float, bound: float
) -> float:
    columns = list(range(x.shape[1]))
    model = auc.PairFTRL(
        epsilon=epsilon,
        delta=1.0 / len(train),
        horizon=len(train),
        features=columns,
        bounds=dict.fromkeys(columns, (-bound, bound)),
    )
    model.learn_many(x[train], y[train])
    return _sets.in_order("auc", y[test], model.score_many(x[test]))


def plain(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    part = train[:20_000]
    scale = 1.0 / (x[part].std(axis=0) + 1e-9)
    model = LogisticRegression(max_iter=200, C=100.0).fit(x[part] * scale, y[part])
    return _sets.in_order("auc", y[test], model.decision_function(x[test] * scale))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """All cells; the last row has the verdict."""
    warnings.simplefilter("ignore")
    right, losses, cells = 0, [], 0
    for name in options.names or NAMES:
        if name in _sets.SETS["auc"] and not _sets.there(name, options.data):
            continue
        x, y = load(name, options.data)
        (train, test), *_ = _sets.splits(len(x), 1, 5000)
        bent = {count: fourier(x, count) for count in (COMPONENTS[:1] if options.quick else COMPONENTS)}
        for size in sorted({min(size, len(train)) for size in SIZES}):
            part = train[:size]
            linear = plain(x, y, part, test)
            reach = {count: plain(z, y, part, test) for count, z in bent.items()}
            # At fewer records one epsilon will do: the noise is what counts.
            for epsilon in EPSILONS if size == len(train) else EPSILONS[1:2]:
                base = private(x, y, part, test, epsilon, 1.0)
                for count, z in bent.items():
                    got = private(z, y, part, test, epsilon, math.sqrt(2.0 / count))
                    noise = moment_noise(count, size, epsilon, 1.0 / size)
                    gain = reach[count] - linear
                    says = gain > TYPICAL * math.sqrt(noise)
                    good = abs(got - base) <= NEAR or says == (got > base)
                    right, cells = right + good, cells + 1
                    losses.append((reach[count] - got) / math.sqrt(noise))
                    yield {
                        **{"data": name, "components": count, "n": size, "epsilon": epsilon, "noise": noise},
                        **{"private": got, "linear": base, "pays": got - base, "gain": gain},
                        **{"says": "pay" if says else "do not", "right": "" if good else "wrong"},
                    }
    typical = statistics.median(losses) if losses else math.nan
    yield {"summary": f"right in {right} of {cells} cells; median of loss / sqrt(noise): {typical:.3f}"}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("set", "data", "<10"), ("D", "components", ">5"), ("n", "n", ">7"), ("eps", "epsilon", ">5g")),
        *(("noise", "noise", ">8.2f"), ("private", "private", ">9.3f"), ("linear", "linear", ">8.3f")),
        *(("pays", "pays", ">+8.3f"), ("gain", "gain", ">+8.3f"), ("rule", "says", ">8")),
        ("", "right", ">7"),
    ]
    summary: list[str] = []

    def cells() -> Iterator[_timing.Row]:
        for row in rows:
            if "summary" in row:
                summary.append(row["summary"])
            else:
                yield row

    yield from _timing.table(columns, cells())
    yield from summary


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"of {', '.join(NAMES)}; all without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--quick": {"action": "store_true", "help": "64 components only"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
