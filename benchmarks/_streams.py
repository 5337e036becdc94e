"""Streams of records of two classes: the page's, by name, and what streams are made from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import _sets
import numpy as np
import pandas as pd
from river import datasets
from river.datasets import synth

Records = list[tuple[dict[str, Any], bool]]
Take = Callable[[int], Records]


def taken(stream: Iterable[Any], n: int, positive: Callable[[Any], bool] = bool) -> Records:
    """The first records of a stream of River's."""
    return [({str(k): v for k, v in x.items()}, bool(positive(y))) for x, y in itertools.islice(stream, n)]


def rows(X: Any, y: Any) -> Records:
    """An array, or a frame whose empty cells are features that are not there."""
    if isinstance(X, pd.DataFrame):
        records = [{k: v for k, v in x.items() if v == v and v is not None} for x in X.to_dict("records")]
    else:
        records = [{f"f{j}": float(v) for j, v in enumerate(row)} for row in np.asarray(X)]
    return [(x, bool(label)) for x, label in zip(records, y, strict=True)]


def then(one: Any, two: Any, n: int, width: int = 100) -> Any:
    """The second takes the place of the first in the middle of n records, over `width` of them."""
    return synth.ConceptDriftStream(one, two, position=n // 2, width=width, seed=1)


def agrawal(function: int, seed: int, **options: Any) -> Any:
    """A twentieth of each feature's range is noise."""
    return synth.Agrawal(function, seed=seed, perturbation=0.05, **options)


def _file(name: str) -> Take:
    """A set of the other benchmarks, with its texts as they are."""

    def take(n: int) -> Records:
        frame = pd.read_csv(_sets.DATA / f"{name}.csv.gz")
        labels = _sets._POSITIVE[name](frame.pop("label")).tolist()
        if name == "bank":
            frame = frame.drop(columns="duration")
        return rows(frame, labels)

    return take


def turned(records: Records) -> Records:
    """The records, whose labels change places in the middle."""
    return [(x, y != (i >= len(records) // 2)) for i, (x, y) in enumerate(records)]


def _moving(n: int) -> Records:
    """The letters in the order of their left edges: what a label means stays, what is seen moves."""
    return sorted(_file("letter")(n), key=lambda record: float(record[0]["x_box"]))


def _river(make: Callable[[int], Any], positive: Callable[[Any], bool] = bool) -> Take:
    return lambda n: taken(make(n), n, positive)


def _changing(one: Any, two: Any, share: float) -> Callable[[int], Any]:
    """Over a share of the records; at least 100."""
    return lambda n: then(one, two, n, max(100, int(share * n)))


def _rbf(speed: float, seed: int = 1) -> Callable[[int], Any]:
    return lambda n: synth.RandomRBFDrift(
        seed, seed, n_features=10, n_centroids=50, change_speed=speed, n_drift_centroids=50
    )


# (records, bar against ARF)
STREAMS: dict[str, tuple[Take, float]] = {
    "Phishing": (_river(lambda n: datasets.Phishing()), 0.005),
    "Bananas": (_river(lambda n: datasets.Bananas()), 0.005),
    "letter": (_file("letter"), 0.005),
    "ijcnn1": (_file("ijcnn1"), 0.005),
    "adult": (_file("adult"), 0.005),
    "bank": (_file("bank"), 0.005),
    "Agrawal-abrupt": (_river(_changing(agrawal(2, 1), agrawal(1, 2), 0.0)), 0.005),
    "Agrawal-gradual": (_river(_changing(agrawal(2, 1), agrawal(1, 2), 0.2)), 0.005),
    "RBF-slow": (_river(_rbf(0.0001)), 0.005),
    "RBF-fast": (_river(_rbf(0.001)), 0.005),
    "Sine-abrupt": (_river(_changing(synth.Sine(0, seed=1), synth.Sine(2, seed=2), 0.0)), 0.005),
    "RBF-fast-2": (_river(_rbf(0.001, 2)), 0.005),
    "RBF-fast-3": (_river(_rbf(0.001, 3)), 0.005),
    "german": (_file("german"), 0.02),
    "diabetes": (_file("diabetes"), 0.02),
    "usps": (_file("usps"), 0.02),
    "SEA": (_river(_changing(synth.SEA(0, 0.1, seed=1), synth.SEA(3, 0.1, seed=2), 0.0)), 0.02),
    "LED-drift": (
        _river(lambda n: synth.LEDDrift(1, 0.1, True, n_drift_features=4), lambda y: bool(y >= 5)),
        0.02,
    ),
    "Hyperplane-fast": (
        _river(lambda n: synth.Hyperplane(seed=1, n_features=10, n_drift_features=10, mag_change=0.01)),
        0.02,
    ),
    "letter-turned": (lambda n: turned(_file("letter")(n)), 0.02),
    "letter-moving": (_moving, 0.02),
    "random-tree": (_river(lambda n: synth.RandomTree(1, 1, n_classes=2)), 0.02),
}
QUICK = ("Phishing", "Bananas")
SMALL = (*QUICK, "letter", "ijcnn1", "Agrawal-abrupt", "RBF-slow", "Sine-abrupt", "SEA", "Hyperplane-fast")


def _rarer(keep: int) -> Take:
    """ijcnn1 with one of its positives in so many."""

    def take(n: int) -> Records:
        places = itertools.count()
        return [(x, y) for x, y in _file("ijcnn1")(n) if not y or next(places) % keep == 0]

    return take


def _first_letter(n: int) -> Records:
    frame = pd.read_csv(_sets.DATA / "letter.csv.gz")
    labels = (frame.pop("label") == "A").tolist()
    return rows(frame, labels)


RARE: dict[str, Take] = {"ijcnn1-rarer": _rarer(10), "ijcnn1-rarest": _rarer(100), "letter-A": _first_letter}
PAIRED = (
    *(
        "Phishing",
        "Bananas",
        "letter",
        "ijcnn1",
        "adult",
        "bank",
        "usps",
        "Agrawal-abrupt",
        "RBF-slow",
        "RBF-fast",
    ),
    *("Sine-abrupt", "Hyperplane-fast", "random-tree", "letter-turned", "letter-moving"),
    *("ijcnn1-rarer", "letter-A"),
)
