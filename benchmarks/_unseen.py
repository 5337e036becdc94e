"""Streams that the page of forests has no rows of: families of them, by name.

Each is a function of nothing that gives its records: 10,000, where nothing else is said. Of Agrawal's ten
functions the last has 20 positives among so many, and stands in a pair alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import _sets
import numpy as np
import pandas as pd
from _streams import Records, agrawal, rows, taken, then
from river.datasets import synth
from sklearn import datasets as tables

Draw = Callable[[np.random.Generator], tuple[Any, Any]]
N = 10_000


def _taken(stream: Iterable[Any], positive: Callable[[Any], bool] = bool) -> Records:
    return taken(stream, N, positive)


def _then(one: Any, two: Any, width: int = 100) -> Any:
    return then(one, two, N, width)


def _agrawals() -> dict[str, Callable[[], Records]]:
    """Functions; then pairs of them, abrupt and gradual."""
    streams: dict[str, Callable[[], Records]] = {
        f"agrawal-{f}": lambda f=f: _taken(agrawal(f, 11 + f)) for f in range(9)
    }
    streams["agrawal-7-balanced"] = lambda: _taken(agrawal(7, 28, balance_classes=True))
    for a, b, width in (
        *((0, 3, 100), (3, 7, 100), (7, 2, 100), (8, 4, 100), (9, 5, 100)),
        *((0, 4, 2000), (1, 5, 2000)),
    ):
        name = f"agrawal-{a}{b}-{'abrupt' if width == 100 else 'gradual'}"
        streams[name] = lambda a=a, b=b, width=width: _taken(
            _then(agrawal(a, 31 + a), agrawal(b, 41 + b), width)
        )
    return streams


def _tree(one: int, two: int, **options: Any) -> Any:
    return synth.RandomTree(one, two, n_classes=2, **options)


def _rbf(one: int, two: int, features: int, centres: int) -> Any:
    return synth.RandomRBF(one, two, n_classes=2, n_features=features, n_centroids=centres)


def _hyperplane(seed: int, features: int, drifting: int, speed: float) -> Any:
    return synth.Hyperplane(seed=seed, n_features=features, n_drift_features=drifting, mag_change=speed)


GENERATORS: dict[str, Callable[[], Records]] = {
    "sine-noise": lambda: _taken(synth.Sine(1, seed=3, has_noise=True)),
    "sine-13": lambda: _taken(_then(synth.Sine(1, seed=3), synth.Sine(3, seed=4))),
    "stagger-02": lambda: _taken(_then(synth.STAGGER(0, seed=3), synth.STAGGER(2, seed=4))),
    "mixed-01": lambda: _taken(_then(synth.Mixed(0, seed=42), synth.Mixed(1, seed=43))),
    "waveform": lambda: _taken(synth.Waveform(seed=5), lambda y: bool(y == 1)),
    "waveform-noise": lambda: _taken(synth.Waveform(seed=5, has_noise=True), lambda y: bool(y == 0)),
    "led": lambda: _taken(synth.LED(seed=7, noise_percentage=0.1), lambda y: y in (1, 4, 7)),
    "led-irrelevant": lambda: _taken(
        synth.LED(seed=7, noise_percentage=0.2, irrelevant_features=True), lambda y: bool(y % 2 == 0)
    ),
    "sea-2": lambda: _taken(synth.SEA(2, noise=0.3, seed=7)),
    "sea-12-gradual": lambda: _taken(
        _then(synth.SEA(1, noise=0.05, seed=7), synth.SEA(2, noise=0.05, seed=8), 3000)
    ),
    "tree-2": lambda: _taken(_tree(7, 8)),
    "tree-numeric": lambda: _taken(_tree(3, 4, n_num_features=10, n_cat_features=0, max_tree_depth=6)),
    "tree-deep": lambda: _taken(
        _tree(9, 2, n_num_features=4, n_cat_features=2, max_tree_depth=8, first_leaf_level=4)
    ),
    "tree-change": lambda: _taken(_then(_tree(3, 4), _tree(5, 6))),
    "rbf-5": lambda: _taken(_rbf(3, 4, 5, 20)),
    "rbf-20": lambda: _taken(_rbf(5, 6, 20, 50)),
    "hyper-still": lambda: _taken(_hyperplane(3, 20, 0, 0.0)),
    "hyper-faster": lambda: _taken(_hyperplane(5, 5, 5, 0.05)),
    "anomaly-sine": lambda: _taken(
        synth.AnomalySine(n_samples=N, n_anomalies=2500, contextual=True, n_contextual=1000, seed=3)
    ),
    "friedman": lambda: _taken(synth.Friedman(seed=3), lambda y: bool(y > 14.4)),
}


def _classes(**options: Any) -> Callable[[], Records]:
    return lambda: rows(*tables.make_classification(**{"n_samples": N, "random_state": 3, **options}))


CLOUDS: dict[str, Callable[[], Records]] = {
    "mc-20": _classes(n_features=20, n_informative=5, n_redundant=5, n_clusters_per_class=3),
    "mc-100-few": _classes(n_features=100, n_informative=3, n_redundant=0, n_clusters_per_class=4),
    "mc-rare-1": _classes(n_features=15, n_informative=6, weights=[0.99], flip_y=0.0, n_clusters_per_class=3),
    "mc-rare-5": _classes(
        n_features=15, n_informative=6, weights=[0.95], flip_y=0.01, n_clusters_per_class=3
    ),
    "mc-noise-20": _classes(n_features=10, n_informative=5, flip_y=0.4, n_clusters_per_class=3),
    "mc-clusters": _classes(
        n_features=8, n_informative=8, n_redundant=0, n_clusters_per_class=16, class_sep=0.8
    ),
    "mc-300": _classes(n_samples=300, n_features=10, n_informative=5, n_clusters_per_class=2),
    "mc-600": _classes(n_samples=600, n_features=30, n_informative=8, n_clusters_per_class=3),
    "mc-1500": _classes(n_samples=1500, n_features=12, n_informative=8, n_clusters_per_class=4),
    "moons": lambda: rows(*tables.make_moons(N, noise=0.3, random_state=3)),
    "circles": lambda: rows(*tables.make_circles(N, noise=0.1, factor=0.7, random_state=3)),
    "gauss-quantiles": lambda: rows(
        *tables.make_gaussian_quantiles(n_samples=N, n_features=10, n_classes=2, random_state=4)
    ),
}

MADE: dict[str, Callable[[], Records]] = {}


def _made(name: str) -> Callable[[Draw], Draw]:
    """A stream that is drawn by a generator whose seed is its name."""

    def put(draw: Draw) -> Draw:
        MADE[name] = lambda: rows(*draw(np.random.default_rng(sum(map(ord, name)))))
        return draw

    return put


def _coin(r: np.random.Generator, odds: Any) -> Any:
    return r.random(N) < 1 / (1 + np.exp(-odds))


@_made("xor-in-20")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(-1, 1, size=(N, 20))
    return X, X[:, 3] * X[:, 11] > 0


@_made("box-in-15")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(size=(N, 15))
    return X, (abs(X[:, 2] - 0.5) < 0.25) & (abs(X[:, 9] - 0.4) < 0.3)


@_made("one-in-50")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 50))
    return X, (abs(X[:, 7]) < 0.6) != (r.random(N) < 0.1)


@_made("one-in-100")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 100))
    return X, (abs(X[:, 7]) < 0.6) != (r.random(N) < 0.05)


@_made("two-in-100")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 100))
    return X, ((X[:, 7] > 0) & (X[:, 31] < 0.5) | (X[:, 7] < -1)) != (r.random(N) < 0.05)


@_made("intervals")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(size=(N, 6))
    return X, (np.floor(X[:, 0] * 7) % 2 == 1) != (r.random(N) < 0.05)


@_made("rare-box")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(size=(N, 10))
    return X, (X[:, 0] < 0.15) & (X[:, 1] < 0.2) | (r.random(N) < 0.002)


@_made("checker-noise-dims")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(size=(N, 5))
    return X, (np.floor(X[:, :2] * 3).sum(axis=1) % 2) > 0


@_made("texts-only")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    many = (4, 12, 3, 30, 6)
    c = [r.integers(0, m, N) for m in many]
    w = [r.normal(size=m) for m in many]
    odds = sum(a[i] for a, i in zip(w, c, strict=True))
    odds = odds + 1.5 * (c[0] == 1) * (c[2] == 2) - 1.5 * (c[4] == 2) * (c[2] == 0)
    return pd.DataFrame({f"c{j}": [f"v{v}" for v in each] for j, each in enumerate(c)}), _coin(r, odds)


@_made("texts-many")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    i, j = r.zipf(1.3, N) % 2000, r.integers(0, 50, N)
    w, v = r.normal(size=2000), r.normal(size=50)
    X = {"user": [f"u{a}" for a in i], "shop": [f"s{a}" for a in j], "x": r.normal(size=N)}
    return pd.DataFrame(X), _coin(r, w[i] + v[j])


@_made("mixed-missing")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X, kind, place = r.normal(size=(N, 6)), r.integers(0, 5, N), r.integers(0, 3, N)
    y = X[:, 0] * (kind - 2) + X[:, 1] ** 2 - 1 + (place == 1) * 2 - np.abs(X[:, 2]) > 0
    frame = pd.DataFrame(X, columns=list("abcdef")).astype(object)
    frame["kind"], frame["place"] = [f"k{v}" for v in kind], [f"p{v}" for v in place]
    for column in frame.columns:
        frame.loc[r.random(N) < 0.15, column] = None
    return frame, y


@_made("missing-tells")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 5))
    y = r.random(N) < 0.3
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame.loc[r.random(N) < np.where(y, 0.6, 0.2), "b"] = np.nan
    frame["c"] += y * 0.5
    return frame, y


@_made("integers")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.integers(0, 5, size=(N, 8)).astype(float)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] > 6) != (r.random(N) < 0.05)


@_made("scales")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    Z, unit = r.normal(size=(N, 8)), 10.0 ** np.arange(-8, 8, 2)
    return Z * unit + unit, Z[:, 0] * Z[:, 1] + np.sin(2 * Z[:, 2]) > 0


@_made("cauchy")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.standard_cauchy((N, 6))
    return X, (abs(X[:, 0]) < 1) != (X[:, 1] > X[:, 2])


@_made("pareto")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.pareto(1.0, (N, 5))
    return X, r.random(N) < np.where((X[:, 0] > 1) ^ (X[:, 1] > 3), 0.85, 0.15)


@_made("sorted")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 6))
    X = X[np.argsort(X[:, 0])]
    return X, np.sin(3 * X[:, 0]) + X[:, 1] + X[:, 2] * X[:, 3] > 0


@_made("time")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    t, X = np.arange(N) / N, r.normal(size=(N, 6))
    y = X[:, 0] * np.cos(6 * t) + X[:, 1] * np.sin(6 * t) + 0.5 * X[:, 2] * X[:, 3] > 0
    return np.column_stack([t * N, X]), y


@_made("autocorrelated")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    e = r.normal(size=(N, 4))
    X = np.zeros_like(e)
    for i in range(1, N):
        X[i] = 0.98 * X[i - 1] + 0.2 * e[i]
    return X, (np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * r.normal(size=N)) > 0


@_made("labels-persist")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    y = np.zeros(N, bool)
    for i in range(1, N):
        y[i] = y[i - 1] if r.random() < 0.97 else not y[i - 1]
    X = r.normal(size=(N, 5))
    X[:, 0] += y
    X[:, 1] = np.where(y, np.abs(X[:, 1]), X[:, 1])
    return X, y


@_made("label-noise-30")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 6))
    return X, (X[:, 0] * X[:, 1] + X[:, 2] > 0) != (r.random(N) < 0.3)


@_made("line-30")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.normal(size=(N, 30))
    return X, X @ r.normal(size=30) + r.normal(size=N) > 0


@_made("recurring")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X, turn = r.uniform(size=(N, 5)), (np.arange(N) // 1000) % 2
    return X, np.where(turn == 0, X[:, 0] > X[:, 1], X[:, 2] + X[:, 3] > 1)


@_made("four-concepts")
def _(r: np.random.Generator) -> tuple[Any, Any]:
    X = r.uniform(size=(N, 6))
    box, line = abs(X[:, 3] - 0.5) < 0.25, X[:, 4] + X[:, 5] > 1
    return X, np.choose(np.arange(N) // 2500, [X[:, 0] > 0.5, (X[:, 1] > 0.5) ^ (X[:, 2] > 0.5), box, line])


def table(name: str, positive: Callable[[pd.DataFrame], pd.Series]) -> Callable[[], Records]:
    """A table in the order of its file; labels of others than the page's."""

    def take() -> Records:
        frame = pd.read_csv(_sets.DATA / f"{name}.csv.gz").iloc[:N]
        return rows(frame.drop(columns="label"), positive(frame).tolist())

    return take


TABLES: dict[str, Callable[[], Records]] = {
    "hepatitis": table("hepatitis", lambda f: f["label"] == 1),
    "breast_cancer": table("breast_cancer", lambda f: f["label"] == f["label"].iloc[0]),
    "diabetic_retinopathy": table("diabetic_retinopathy", lambda f: f["label"] == 1),
    "letter-vowels": table("letter", lambda f: f["label"].isin(list("AEIOU"))),
    "letter-Q": table("letter", lambda f: f["label"] == "Q"),
}

FAMILIES: dict[str, dict[str, Callable[[], Records]]] = {
    "Agrawal": _agrawals(),
    "generators": GENERATORS,
    "clouds": CLOUDS,
    "made": MADE,
    "tables": TABLES,
}
