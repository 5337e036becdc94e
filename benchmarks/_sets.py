"""What the accuracy benchmarks share: sets with their labels, and how a model of each family is judged.

A set belongs to a family of learners: two classes ("auc"), a real-valued relevance ("ranking") or classes
that distances should tell apart ("metric"). Everything is a share of pairs in order: of a positive and a
negative, of two records of different relevance, of a distance within a class and one between two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from river import datasets
from sklearn.metrics import roc_auc_score

from streampair import auc, metric, ranking

DATA = Path(
    os.environ.get("STREAMPAIR_DATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data")
)
MODULES: dict[str, ModuleType] = {"auc": auc, "ranking": ranking, "metric": metric}
SETS = {
    "auc": (
        *("diabetes", "german", "phishing", "synthetic", "usps"),
        *("letter", "ijcnn1", "adult", "bank"),
    ),
    "ranking": ("trump", "relevance", "adult-age", "bank-balance"),
    "metric": ("phishing-classes", "mixture", "letter-classes"),
}
# Sets that need no file.
_MADE = ("phishing", "synthetic", "trump", "relevance", "phishing-classes", "mixture")

_POSITIVE: dict[str, Callable[[pd.Series], pd.Series]] = {
    "diabetes": lambda s: s == -1,
    "ijcnn1": lambda s: s == 1,
    "letter": lambda s: s > "M",
    "adult": lambda s: s == ">50K",
    "bank": lambda s: s == "yes",
    "german": lambda s: s == 2,
    "usps": lambda s: s >= 5,
}


class Set(NamedTuple):
    """Features as numbers, and the labels of its family."""

    name: str
    family: str
    x: pd.DataFrame
    y: np.ndarray


def family_of(name: str) -> str:
    """Which family a set belongs to."""
    return next(family for family, names in SETS.items() if name in names)


def there(name: str, folder: Path) -> bool:
    """Whether a set can be loaded."""
    return name in _MADE or _file(name, folder).exists()


def _file(name: str, folder: Path) -> Path:
    return folder / f"{name.split('-')[0]}.csv.gz"


def load(name: str, folder: Path) -> Set:
    """A set by its name."""
    family = family_of(name)
    made = {
        "phishing": _phishing,
        "phishing-classes": _phishing,
        "synthetic": _synthetic,
        "trump": _trump,
        "relevance": _relevance,
        "mixture": _mixture,
    }
    if name in made:
        return Set(name, family, *made[name]())
    frame = pd.read_csv(_file(name, folder))
    label = frame.pop("label")
    if name == "bank":
        frame = frame.drop(columns="duration")
    if name == "letter-classes":
        y = label.to_numpy()
    elif "-" in name:
        y = frame.pop(name.split("-")[1]).to_numpy(dtype=float)
        # The tail of a fortune would leave all others in a corner of the range.
        y = np.clip(y, *np.quantile(y, (0.01, 0.99)))
    else:
        y = _POSITIVE[name](label).to_numpy()
    text = list(frame.select_dtypes(exclude="number").columns)
    if text:
        frame = pd.get_dummies(frame.fillna(dict.fromkeys(text, "missing")), columns=text, prefix_sep="=")
    return Set(name, family, frame.astype(float), y)


def _named(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def _phishing() -> tuple[pd.DataFrame, np.ndarray]:
    pairs = list(datasets.Phishing())
    return pd.DataFrame([x for x, _ in pairs], dtype=float), np.array([y for _, y in pairs])


def _trump() -> tuple[pd.DataFrame, np.ndarray]:
    pairs = list(datasets.TrumpApproval())
    return pd.DataFrame([x for x, _ in pairs], dtype=float), np.array([y for _, y in pairs])


def _synthetic() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(20)
    x, w = rng.normal(size=(20_000, 20)), rng.normal(size=20)
    return _named(x), x @ (w / np.linalg.norm(w)) + 0.38 * rng.normal(size=20_000) > 0


def _relevance() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(21)
    x, w = rng.normal(size=(20_000, 20)), rng.normal(size=20)
    return _named(x), np.clip(x @ (w / np.linalg.norm(w)) + 0.5 * rng.normal(size=20_000), -3.0, 3.0)


def _mixture() -> tuple[pd.DataFrame, np.ndarray]:
    """Three classes, whose means are in a plane; eight features say nothing."""
    rng = np.random.default_rng(22)
    y = rng.integers(3, size=20_000)
    x = rng.normal(size=(20_000, 10))
    angle = 2.0 * np.pi * y / 3.0
    x[:, :2] += 2.0 * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    return _named(x @ np.linalg.qr(rng.normal(size=(10, 10)))[0]), y


def splits(rows: int, count: int, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random 80/20 splits: rows to train on and to test with."""
    for seed in range(first, first + count):
        order = np.random.default_rng(seed).permutation(rows)
        yield order[: int(0.8 * rows)], order[int(0.8 * rows) :]


def bounds_of(x: pd.DataFrame) -> dict[Any, tuple[float, float]]:
    """The smallest and largest value of each feature, taken as its public bounds."""
    return {name: (float(x[name].min()), float(x[name].max())) for name in x if x[name].nunique() > 1}


def in_order(family: str, y: np.ndarray, scores: np.ndarray) -> float:
    """Share of pairs in order, of scores (n,), or for a metric of vectors (n, k)."""
    if family == "auc":
        return float(roc_auc_score(y, scores))
    if family == "ranking":
        # Of pairs with different relevances; scores that are equal count half.
        relevance, score = (np.sign(np.subtract.outer(v[:3000], v[:3000])) for v in (y, scores))
        return 0.5 + 0.5 * float((relevance * score).sum() / np.abs(relevance).sum())
    rng = np.random.default_rng(0)
    i, j = rng.integers(len(y), size=(2, 40_000))
    apart = np.square(scores[i] - scores[j]).sum(axis=1)
    return float(roc_auc_score(y[i] != y[j], apart))


def judged(data: Set, model: Any, test: np.ndarray) -> float:
    """Share of pairs of the rows to test with that a model has in order."""
    x = data.x.iloc[test]
    if data.family == "metric":
        return in_order("metric", data.y[test], model.transform_many(x).to_numpy(dtype=float))
    return in_order(data.family, data.y[test], model.score_many(x).to_numpy(dtype=float))


def private(data: Set, learner: Any, train: np.ndarray, **options: Any) -> Any:
    """A private learner after the rows to train on; one over the number of all rows is its delta."""
    if data.family == "ranking":
        options["relevance"] = (float(data.y.min()), float(data.y.max()))
    model = learner(
        **{"delta": 1.0 / len(data.x), "features": list(data.x.columns), "bounds": bounds_of(data.x)},
        **options,
    )
    model.learn_many(data.x.iloc[train], pd.Series(data.y[train]))
    return model
