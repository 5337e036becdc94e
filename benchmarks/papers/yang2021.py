"""Table 1 of Yang et al. (2021): held-out AUC of their learner and of those they compare it with.

As in the programs of the authors (https://github.com/zhenhuan-yang/simple-pairwise): features scaled to
[-1, 1]; several classes made two, the lower half of the sorted labels positive; a stream drawn from the
training rows with replacement, ten passes long for "Ours", SGDpair and SPAUC; step size and radius of the
ball from a grid of powers of ten by 5-fold cross-validation; mean and standard deviation over folds of the
AUC of averaged weights on the fold left out.

Otherwise than in the programs: "Ours" takes steps of c / sqrt(t) and SGDpair constant ones, where they have
eta / sqrt(T) for both. OLP and OAM make one pass, where they make three and five. OAM and SPAUC are kept in
a ball. All iterates are averaged, where they average those between one moment of a run and the next. They
choose the settings by cross-validation on all rows, scale by all rows, and report the best of some twenty
moments; here the rows of a fold that is left out decide nothing, neither settings nor scaling nor the moment.

References
----------
Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
algorithms for pairwise learning. NeurIPS. Section 6 and Table 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import auc, buffers, losses
from streampair.errors import ConfigError
from streampair.evaluation import RollingAUC
from streampair.offline.base import PairwiseProblem
from streampair.offline.pair_sgd import pair_steps

__all__ = ["METHODS", "PUBLISHED", "Cell", "DataSet", "Fold", "binary", "cell", "folds", "held_out"]

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Mean and standard deviation of the AUC as published, by method and data set.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "Ours": {
        "diabetes": (0.831, 0.030),
        "german": (0.793, 0.021),
        "ijcnn1": (0.934, 0.002),
        "letter": (0.810, 0.007),
        "usps": (0.926, 0.006),
    },
    "SGDpair": {
        "diabetes": (0.830, 0.028),
        "german": (0.794, 0.023),
        "ijcnn1": (0.934, 0.003),
        "letter": (0.811, 0.008),
        "usps": (0.925, 0.005),
    },
    "OLP": {
        "diabetes": (0.825, 0.028),
        "german": (0.787, 0.028),
        "ijcnn1": (0.916, 0.003),
        "letter": (0.808, 0.010),
        "usps": (0.917, 0.006),
    },
    "OAM": {
        "diabetes": (0.828, 0.026),
        "german": (0.785, 0.029),
        "ijcnn1": (0.930, 0.003),
        "letter": (0.806, 0.008),
        "usps": (0.916, 0.005),
    },
    "SPAUC": {
        "diabetes": (0.828, 0.031),
        "german": (0.799, 0.026),
        "ijcnn1": (0.932, 0.002),
        "letter": (0.809, 0.008),
        "usps": (0.923, 0.005),
    },
}

#: Rows of the files of that name on the LIBSVM page, where they are fewer than the whole set: the first ones.
LIBSVM_ROWS = {"letter": 15_000, "usps": 7_291}

GRID = tuple(10.0**exponent for exponent in range(-3, 3))
FOLDS = 5

_BATCH = 256  # rows that fit in a cache


def _ours(step: float, radius: float, seed: int) -> Any:
    # Their margin has y in {0, 1}, ours y - y' = 2: half the weights, a quarter of the step.
    return auc.PairOGD(
        buffer=buffers.FIFO(1), learning_rate=step / 4, scale=None, radius=radius / 2, seed=seed
    )


class _RandomPairs:
    """The steps of `offline.PairSGD` with random pairs, of a stream: two records that follow are a pair.

    Every record is drawn at random, so the pair is, too; a pass over the stream has half as many steps as
    records.
    """

    def __init__(self, step: float, radius: float, seed: int) -> None:
        self._step, self._radius = step / 4, radius / 2
        self._left: tuple[Array, Bools] | None = None
        self._weights: tuple[Array, Array, Array] | None = None

    def learn_many(self, rows: Array, positive: Bools) -> None:
        """Make a step for every two records; the last of an odd number waits for the next call."""
        if self._left is not None:
            rows, positive = (np.concatenate(both) for both in zip(self._left, (rows, positive), strict=True))
        n, d = rows.shape
        whole = n - n % 2
        self._left = (rows[whole:], positive[whole:])
        w, before, total = self._weights or (np.zeros(d), np.zeros(d), np.zeros(d))
        labels = np.where(positive, 1.0, -1.0)
        problem = PairwiseProblem(rows, labels, losses.Hinge(), "raw", self._radius, d, None, np.zeros(d))
        starts = np.arange(0, whole, 2)
        w, before = pair_steps(problem, (starts, starts + 1), self._step, w, before, total)
        self._weights = (w, before, total)

    def score_many(self, rows: Array) -> Array:
        """Scores under the sum of the iterates, (n,), which ranks as their mean does."""
        total = np.zeros(rows.shape[1]) if self._weights is None else self._weights[2]
        return rows @ total


def _olp(step: float, radius: float, seed: int) -> Any:
    buffer = buffers.Reservoir(200, replacement=True)
    return auc.PairOGD(buffer=buffer, learning_rate=step / 4, scale=None, radius=radius / 2, seed=seed)


def _oam(step: float, radius: float, seed: int) -> Any:
    return auc.OAM(learning_rate=step / 4, size=100, radius=radius / 2, scale=None, average=True, seed=seed)


def _spauc(step: float, radius: float, seed: int) -> Any:
    # Their gradient is half that of the square loss, beside the factor 4.
    return auc.SPAUC(learning_rate=step / 8, radius=radius / 2, scale=None)


#: Name in the table: how to make the learner from step size, radius and seed, and its passes over the data.
METHODS: dict[str, tuple[Callable[[float, float, int], Any], int]] = {
    "Ours": (_ours, 10),
    "SGDpair": (_RandomPairs, 20),  # ten passes have as many steps as those of "Ours"
    "OLP": (_olp, 1),
    "OAM": (_oam, 1),
    "SPAUC": (_spauc, 10),
}


@dataclass(frozen=True)
class DataSet:
    """Rows (n, d) and whether each is positive (n,)."""

    name: str
    rows: Array
    positive: Bools


@dataclass(frozen=True)
class Fold:
    """One run on the test: its AUC, and the step size and radius that cross-validation chose."""

    auc: float
    step: float
    radius: float


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    method: str
    data: str
    published: float
    published_std: float
    mean: float
    std: float
    stderr: float
    folds: int
    settings: tuple[tuple[float, float], ...]

    @property
    def within(self) -> bool:
        """Whether the mean is within one published standard deviation of the published mean."""
        return abs(self.mean - self.published) <= self.published_std


def binary(name: str, rows: Array, labels: Sequence[str]) -> DataSet:
    """A set as the users of the LIBSVM files make it binary.

    Parameters
    ----------
    name
        One of the data sets of the table.
    rows
        Numbers, shape (n, d).
    labels
        Labels as they stand in the file, n of them.

    Returns
    -------
    DataSet
        Of two classes 1 is positive; of more the lower half in sorted order.

    Raises
    ------
    ConfigError
        If the set is not in the table, or its labels are not those of that set.
    """
    if name not in PUBLISHED["Ours"]:
        raise ConfigError(f"the table has no data set {name!r}", fix=f"use {', '.join(PUBLISHED['Ours'])}")
    keep = LIBSVM_ROWS.get(name, len(labels))
    numeric = all(label.lstrip("-").isdigit() for label in labels)
    classes = sorted(set(labels), key=int if numeric else str)
    if len(classes) == 2 and "1" in classes:
        high = {"1"}
    elif len(classes) > 2:
        high = set(classes[: len(classes) // 2])
    else:
        raise ConfigError(
            f"the labels of {name} are {', '.join(classes)}", fix="give the set with its original labels"
        )
    positive = np.array([label in high for label in labels[:keep]])
    return DataSet(name, np.ascontiguousarray(rows[:keep], dtype=np.float64), positive)


def folds(n: int, seed: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Training and test rows of a random 5-fold split."""
    order = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(order, FOLDS)
    return [
        (np.concatenate([part for j, part in enumerate(parts) if j != i]), parts[i]) for i in range(FOLDS)
    ]


def _run(method: str, train: DataSet, test: DataSet, step: float, radius: float, seed: int) -> float:
    """AUC on `test` of one learner on a stream drawn from `train`."""
    make, passes = METHODS[method]
    low, high = train.rows.min(axis=0), train.rows.max(axis=0)
    factor = 2.0 / np.where(high > low, high - low, 2.0)
    n = len(train.positive)
    drawn = np.random.default_rng(seed).integers(n, size=passes * n)
    model = make(step, radius, seed)
    rows = (train.rows - low) * factor - 1.0
    for part in np.array_split(drawn, max(len(drawn) // _BATCH, 1)):
        model.learn_many(rows[part], train.positive[part])
    scores = np.asarray(model.score_many((test.rows - low) * factor - 1.0))
    metric = RollingAUC(window=len(scores))
    metric.extend(test.positive.tolist(), scores.tolist())
    return metric.get()


def _part(data: DataSet, index: NDArray[np.intp]) -> DataSet:
    return DataSet(data.name, data.rows[index], data.positive[index])


def held_out(
    method: str, data: DataSet, repeat: int, number: int, grid: Sequence[float] | None = None
) -> Fold:
    """Tune on the training rows of one fold by 5-fold cross-validation; AUC on its test rows.

    Parameters
    ----------
    method
        A name in `METHODS`.
    data
        The whole set.
    repeat, number
        Which split, and which of its five folds.
    grid
        Step sizes and radii to choose from; None: `GRID`.
    """
    train, test = folds(len(data.positive), repeat)[number]
    seed = 1000 * repeat + 10 * number
    inner = folds(len(train), seed + 1)
    best = (-math.inf, math.nan, math.nan)
    known = _part(data, train)
    for step, radius in itertools.product(grid or GRID, repeat=2):
        found = [
            _run(method, _part(known, fit), _part(known, check), step, radius, seed + i)
            for i, (fit, check) in enumerate(inner)
        ]
        best = max(best, (float(np.mean(found)), step, radius))
    _, step, radius = best
    return Fold(_run(method, known, _part(data, test), step, radius, seed + 9), step, radius)


def cell(method: str, data: str, runs: Iterable[Fold]) -> Cell:
    """The cell of the table from its folds."""
    found = list(runs)
    aucs = np.array([fold.auc for fold in found])
    std = float(aucs.std(ddof=1)) if len(found) > 1 else math.nan
    mean, published_std = PUBLISHED[method][data]
    return Cell(
        method=method,
        data=data,
        published=mean,
        published_std=published_std,
        mean=float(aucs.mean()),
        std=std,
        stderr=std / math.sqrt(len(found)),
        folds=len(found),
        settings=tuple((fold.step, fold.radius) for fold in found),
    )
