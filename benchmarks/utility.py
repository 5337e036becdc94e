"""Held-out AUC of `PairFTRL` with its defaults, at the reference points of the privacy specification.

    python benchmarks/utility.py [--data DIR] [--quick] [--json]

Two tables. Small and synthetic sets at several epsilon (PRIVACY.md 4.3), and larger ones at
epsilon 1 (PRIVACY.md 4.4), with a declared horizon and without one, beside scikit-learn's
non-private `LogisticRegression` (standardised features, default penalty) on the same split. Every
split is a random 80/20; delta is one over the number of all rows; the smallest and largest value of
each feature are taken as its public bounds.

Sets: diabetes (positive: tested positive), Phishing (ships with River), synthetic (20 normal features,
y = 1[w.x + 0.38 noise > 0], |w| = 1, 2e4 rows), ijcnn1, letter (N to Z against A to M), adult (categories
one-hot, missing ones a category), bank (one-hot, without `duration`), german (positive: bad), usps (5 to 9
against 0 to 4). `--data` is the folder with NAME.csv.gz, label last.

The defaults of `PairFTRL` were chosen on other splits of the first seven sets, so their rows flatter a
little; german and usps had no part in it and have no target. The specification does not define its
synthetic set: this one is chosen to be as hard.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from river import datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streampair import auc

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("STREAMPAIR_DATA", ROOT.parent / "shared" / "data"))
ALLOWED = 0.02

SMALL: dict[str, dict[float, float | None]] = {
    "diabetes": {0.5: 0.734, 1.0: 0.786, 2.0: 0.804, 8.0: 0.819},
    "phishing": {0.5: 0.930, 1.0: 0.946, 2.0: 0.954, 8.0: 0.960},
    "german": {0.5: None, 1.0: None, 2.0: None, 8.0: None},
    "synthetic": {0.5: 0.953, 1.0: 0.956, 2.0: 0.957, 8.0: 0.958},
}
LARGE: dict[str, float | None] = {
    "ijcnn1": 0.923,
    "letter": 0.791,
    "adult": 0.886,
    "bank": 0.754,
    "usps": None,
}
FIRST_SPLIT = 1000  # earlier ones served to choose the defaults


@dataclass(frozen=True)
class Row:
    """One line of the tables; AUC everywhere."""

    data: str
    rows: int
    features: int
    epsilon: float
    horizon: bool
    mean: float
    stderr: float
    target: float | None
    shortfall: float | None
    logistic: float
    logistic_gap: float
    splits: int


def load(name: str, folder: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Features as numbers, and whether each row is positive."""
    if name == "phishing":
        pairs = list(datasets.Phishing())
        return pd.DataFrame([x for x, _ in pairs], dtype=float), np.array([y for _, y in pairs])
    if name == "synthetic":
        rng = np.random.default_rng(20)
        x, w = rng.normal(size=(20_000, 20)), rng.normal(size=20)
        y = x @ (w / np.linalg.norm(w)) + 0.38 * rng.normal(size=20_000) > 0
        return pd.DataFrame(x, columns=[f"x{i}" for i in range(20)]), y
    frame = pd.read_csv(folder / f"{name}.csv.gz")
    label = frame.pop("label")
    rules: dict[str, Callable[[pd.Series], pd.Series]] = {
        "diabetes": lambda s: s == -1,
        "ijcnn1": lambda s: s == 1,
        "letter": lambda s: s > "M",
        "adult": lambda s: s == ">50K",
        "bank": lambda s: s == "yes",
        "german": lambda s: s == 2,
        "usps": lambda s: s >= 5,
    }
    if name == "bank":
        frame = frame.drop(columns="duration")
    text = list(frame.select_dtypes(exclude="number").columns)
    if text:
        frame = pd.get_dummies(frame.fillna(dict.fromkeys(text, "missing")), columns=text)
    return frame.astype(float), rules[name](label).to_numpy()


def splits(rows: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for seed in range(FIRST_SPLIT, FIRST_SPLIT + count):
        order = np.random.default_rng(seed).permutation(rows)
        yield order[: int(0.8 * rows)], order[int(0.8 * rows) :]


def logistic(x: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    model.fit(x.to_numpy()[train], y[train])
    return float(roc_auc_score(y[test], model.decision_function(x.to_numpy()[test])))


def private(
    x: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray, epsilon: float, *, horizon: bool
) -> float:
    model = auc.PairFTRL(
        epsilon=epsilon,
        delta=1.0 / len(x),
        horizon=len(train) if horizon else None,
        features=list(x.columns),
        bounds={name: (float(x[name].min()), float(x[name].max())) for name in x if x[name].nunique() > 1},
    )
    model.learn_many(x.iloc[train], pd.Series(y[train]))
    report = model.privacy
    if report.kind != "holds" or report.epsilon_spent > epsilon * (1 + 1e-12):
        raise AssertionError(str(report))
    return float(roc_auc_score(y[test], model.score_many(x.iloc[test])))


def measure(
    name: str, folder: Path, epsilons: dict[float, float | None], horizons: tuple[bool, ...], count: int
) -> Iterator[Row]:
    x, y = load(name, folder)
    parts = list(splits(len(x), count))
    best = float(np.mean([logistic(x, y, *part) for part in (parts if len(x) < 5000 else parts[:5])]))
    for epsilon, goal in epsilons.items():
        for horizon in horizons:
            scores = [private(x, y, *part, epsilon, horizon=horizon) for part in parts]
            mean, target = float(np.mean(scores)), goal if horizon else None
            yield Row(
                data=name,
                rows=len(x),
                features=x.shape[1],
                epsilon=epsilon,
                horizon=horizon,
                mean=mean,
                stderr=float(np.std(scores, ddof=1) / len(scores) ** 0.5),
                target=target,
                shortfall=None if target is None else target - mean,
                logistic=best,
                logistic_gap=best - mean,
                splits=count,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder with NAME.csv.gz (or STREAMPAIR_DATA)"
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the splits, at least 2")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the tables")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    found: list[Row] = []
    skipped = []
    if not options.json:
        print(f"{'set':<11}{'rows':>6} {'d':>4} {'eps':>4} {'horizon':<8}{'AUC':>7} {'+-':>6} {'target':>7} {'short':>7} {'logistic':>9} {'gap':>7}")  # fmt: skip  # noqa: E501
    jobs = [
        *((name, points, (True,), 5 if name == "synthetic" else 100) for name, points in SMALL.items()),
        *((name, {1.0: goal}, (True, False), 5) for name, goal in LARGE.items()),
    ]
    for name, points, horizons, count in jobs:
        if name not in ("phishing", "synthetic") and not (options.data / f"{name}.csv.gz").exists():
            skipped.append(name)
            continue
        for row in measure(
            name, options.data, points, horizons, max(2, count // 5) if options.quick else count
        ):
            found.append(row)
            if not options.json:
                target = "" if row.target is None else f"{row.target:.3f}"
                short = "" if row.shortfall is None else f"{row.shortfall:+.3f}"
                print(
                    f"{row.data:<11}{row.rows:>6} {row.features:>4} {row.epsilon:>4g} {'declared' if row.horizon else 'none':<8}"  # noqa: E501
                    f"{row.mean:>7.3f} {row.stderr:>6.3f} {target:>7} {short:>7} {row.logistic:>9.3f} {row.logistic_gap:>+7.3f}",  # noqa: E501
                    flush=True,
                )
    missed = [row for row in found if row.shortfall is not None and row.shortfall > ALLOWED]
    if options.json:
        document = {"rows": [asdict(row) for row in found], "skipped": skipped, "missed": len(missed)}
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        points = sum(row.target is not None for row in found)
        seconds = time.perf_counter() - start
        print(
            f"\n{len(missed)} of {points} points more than {ALLOWED} short of their target; {seconds:.0f} s"
        )
        if skipped:
            print(f"skipped, not in {options.data}: {', '.join(skipped)}; give the folder with --data")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
