"""Private ranking by moments and by gradients: Kendall's tau on held-out records, against epsilon.

    python benchmarks/ranking.py [--data DIR] [--splits 5] [--json] [NAME ...]

Each line is a solver of `ranking.PairFTRL` with its defaults, each column an epsilon: the mean tau on
held-out fifths of random 80/20 splits (20 where there are fewer than 5000 rows, else --splits). delta is one
over the number of all rows, the horizon is declared, the smallest and largest value of each feature and of
the relevance are taken as public bounds. Beside it, not private: scikit-learn's `LinearRegression`. The goal
is that moments, the default, are nowhere behind gradients by more than .01 on the average of a set.

Sets: generated (8 and 20 normal features of different scales, y = tanh(w.x + noise)), letter (y: how many
pixels are on, of 15 other counts), diabetes (y: body mass index), adult (y: years of education, of 5 numbers
and one-hot categories) and ijcnn1 (y: its last column, the newest sample of a series), which was looked at
only once the defaults had been chosen. There most relevances are near one value and few far from it: no
regression, private or not, ranks as well as gradients of the hinge do.
"""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

import _timing
import numpy as np
import pandas as pd
from scipy.stats import kendalltau
from sklearn.linear_model import LinearRegression

from streampair import privacy, ranking

DATA = Path(os.environ.get("STREAMPAIR_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
EPSILONS = (0.5, 1.0, 2.0, 8.0)
SETS = ("generated, 8", "generated, 20", "letter", "diabetes", "adult", "ijcnn1")
TARGETS = {"letter": "onpix", "diabetes": "bmi", "adult": "education_num"}
BEHIND = 0.01


def load(name: str, folder: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Features as numbers, and the relevance."""
    if name.startswith("generated"):
        d = int(name.split()[-1])
        rng = np.random.default_rng(d)
        x = rng.normal(size=(250 * d if d < 10 else 1000 * d, d)) * np.exp(0.5 * rng.normal(size=d))
        w = rng.normal(size=d)
        y = np.tanh(x @ w / np.linalg.norm(w) + 0.7 * rng.normal(size=len(x)))
        return pd.DataFrame(x), y
    frame = pd.read_csv(folder / f"{name}.csv.gz").drop(columns="label")
    y = frame.pop(TARGETS.get(name, frame.columns[-1])).to_numpy(dtype=float)
    frame = frame.drop(columns="education", errors="ignore")  # the years, in words
    text = list(frame.select_dtypes(exclude="number").columns)
    return pd.get_dummies(frame.fillna(dict.fromkeys(text, "missing")), columns=text).astype(float), y


MECHANISMS = {"gradients": privacy.PairGradients(), "moments": privacy.SecondMoments()}


def taus(x: pd.DataFrame, y: np.ndarray, solver: str, epsilon: float, splits: int) -> list[float]:
    """Kendall's tau of each split; epsilon 0: not private."""
    found = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(x))
        train, test = order[: int(0.8 * len(x))], order[int(0.8 * len(x)) :]
        model: ranking.PairFTRL | LinearRegression
        if not epsilon:
            scores = LinearRegression().fit(x.to_numpy()[train], y[train]).predict(x.to_numpy()[test])
        else:
            bounds = {n: (float(x[n].min()), float(x[n].max())) for n in x if x[n].nunique() > 1}
            model = ranking.PairFTRL(
                epsilon,
                1.0 / len(x),
                len(train),
                features=list(x.columns),
                bounds=bounds,
                relevance=(float(y.min()), float(y.max())),
                mechanism=MECHANISMS[solver],
            )
            model.learn_many(x.iloc[train], pd.Series(y[train]))
            if model.privacy.kind != "holds" or model.privacy.epsilon_spent > epsilon * (1 + 1e-12):
                raise AssertionError(str(model.privacy))
            scores = model.score_many(x.iloc[test])
        found.append(float(kendalltau(scores, y[test]).statistic))
    return found


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each solver on each set."""
    warnings.simplefilter("ignore")
    for name in options.names or SETS:
        x, y = load(name, options.data)
        splits = 20 if len(x) < 5000 else options.splits
        about = {"set": name, "rows": len(x), "features": x.shape[1]}
        plain = float(np.mean(taus(x, y, "", 0.0, splits)))
        yield {**about, "solver": "LinearRegression", **{f"{e:g}": plain for e in EPSILONS}}
        means = {
            solver: [float(np.mean(taus(x, y, solver, e, splits))) for e in EPSILONS] for solver in MECHANISMS
        }
        for solver, values in means.items():
            row = {**about, "solver": solver, **{f"{e:g}": v for e, v in zip(EPSILONS, values, strict=True)}}
            if solver == "moments":
                row["ahead"] = float(np.mean(np.subtract(values, means["gradients"])))
                row = _timing.judged(row, "ahead", least=-BEHIND)
            yield row


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [("set", "set", "<14"), ("rows", "rows", ">7"), ("d", "features", ">4")]
    columns += [("  solver", "solver", "<18"), *((f"eps {e:g}", f"{e:g}", ">9.3f") for e in EPSILONS)]
    return _timing.table(columns, rows, goals=True)


if __name__ == "__main__":
    sys.exit(
        _timing.main(
            __doc__,
            measure,
            page,
            {
                "names": {"nargs": "*", "metavar": "NAME", "help": "sets; all of them without"},
                "--data": {"type": Path, "default": DATA, "help": "folder with NAME.csv.gz"},
                "--splits": {"type": int, "default": 5},
            },
            strict=True,
        )
    )
