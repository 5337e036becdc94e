"""A private forest beside a private linear score, and beside what nothing is private about.

    python benchmarks/private_forest.py [--data DIR] [--epsilon 1] [--splits 5] [--gram] [--linear] [NAME ...]
    python benchmarks/private_forest.py --speed

Mean and standard error of the AUC on held-out fifths of random 80/20 splits, and seconds of the processor for
one pass over the others. delta is one over the number of all rows; horizons are declared, but where it says
otherwise; the smallest and largest value of each feature are taken as public, categories are one-hot. Not
private, on the same splits: scikit-learn's `LogisticRegression` (standardised features, default penalty) and
`auc.Forest` (one pass, defaults).

With `--gram` there is another row in the place of what is not private or has no horizon: a ceiling, which is
not private either. It has the same releases, noise and settings, but what leaves have in common is counted on
the records themselves, where `PrivateForest` makes rows up. The last lines say how much of the way from
`PairFTRL` up to it `PrivateForest` covers; where it is not above `PairFTRL` there is no way.

With `--linear` there is the linear part of `PrivateForest` alone: the same model without what its leaves add.

With `--speed` there is the processor's time to score and learn a record of generated ones, in a batch and one
by one, and to sum up a row of a table (`history.Job`, second stage), without that of computing models; the
ratio is the median over the rounds.

A goal of `PrivateForest` is that of its set, or what `PairFTRL` has less .005, if that is more.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import _sets
import _timing
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streampair import auc, history
from streampair.privacy.mechanisms import dp_forest
from streampair.privacy.mechanisms.synthetic_sample import SyntheticRows

GOALS = {"letter": 0.885, "ijcnn1": 0.94, "bank": 0.77, "adult": 0.895}
ALLOWED = 0.005
FIRST_SPLIT = 3000  # as of `make utility`: earlier ones served to choose the defaults

SPEED_ROWS = 20_000

CEILING = "true Gram, not private"
ALONE = "PrivateForest, linear part"

Fitted = Callable[[_sets.Set, np.ndarray, float], Any]


def _private(learner: Any, *, endless: bool = False) -> Fitted:
    def fitted(data: _sets.Set, train: np.ndarray, epsilon: float) -> Any:
        horizon = None if endless else len(train)
        model = _sets.private(data, learner, train, epsilon=epsilon, horizon=horizon)
        report = model.privacy
        if report.kind != "holds" or report.epsilon_spent > epsilon * (1 + 1e-12):
            raise AssertionError(str(report))
        return model

    return fitted


def _true_gram(model: auc.PrivateForest, data: _sets.Set, train: np.ndarray, test: np.ndarray) -> float:
    """AUC of the model that the same releases give with the Gram matrix of the records' leaves."""
    columns, rule = list(data.x.columns), model.run.state

    def marked(which: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(which), 256):
            part = data.x.iloc[which[start : start + 256]].to_numpy()
            yield model.run.prepared(columns, part)

    def known(marginals: Any, linear: np.ndarray, cap: float, trees: Any, rows: int) -> SyntheticRows:
        d, (count, size) = len(linear), marginals.counts.shape
        leaves, vectors = [], []
        for part in marked(train):
            vectors.append(part[:, :d].copy())
            leaves.append(part[:, d : d + count] - d - size * np.arange(count))
        weights = np.full(len(train), 1.0 / len(train))
        scores = np.concatenate(vectors) @ linear
        return SyntheticRows(np.concatenate(leaves).T.astype(np.uint8, order="C"), weights, scores)

    with patch.object(dp_forest, "synthetic_rows", known):
        w = rule._compute_model()[0]
    out = [np.empty(len(part)) for part in marked(test)]
    for part, each in zip(marked(test), out, strict=True):
        model.run.design.score_rows(w, part, each)
    scores = np.concatenate(out)
    return _sets.in_order("auc", data.y[test], scores)


def _alone(model: auc.PrivateForest, data: _sets.Set, test: np.ndarray) -> float:
    """AUC of the linear part of a model, with nothing of its leaves."""
    scores = model.design_many(data.x.iloc[test].to_dict("records")) @ model._published()
    return _sets.in_order("auc", data.y[test], scores)


def _forest(data: _sets.Set, train: np.ndarray, epsilon: float) -> Any:
    model = auc.Forest(seed=1)
    model.learn_many(data.x.iloc[train], pd.Series(data.y[train]))
    return model


def _linear(data: _sets.Set, train: np.ndarray, epsilon: float) -> Any:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    model.score_many = lambda x: pd.Series(model.decision_function(x.to_numpy()))
    return model.fit(data.x.to_numpy()[train], data.y[train])


LEARNERS: dict[str, Fitted] = {
    "PairFTRL": _private(auc.PairFTRL),
    "PrivateForest": _private(auc.PrivateForest),
    "PrivateForest, no horizon": _private(auc.PrivateForest, endless=True),
    "LogisticRegression, not private": _linear,
    "Forest, not private": _forest,
}


def _taken(learner: Any, d: int, count: int, *, batch: bool) -> _timing.Measure:
    """How long a learner that has released its moments takes to score and learn so many records."""
    names, x = [f"f{j}" for j in range(d)], np.random.default_rng(1).uniform(-1.0, 1.0, (SPEED_ROWS, d))
    bounds = dict.fromkeys(names, (-1.0, 1.0))
    model = learner(epsilon=1.0, delta=1e-9, horizon=10**8, bounds=bounds, features=names, warmup=100, seed=1)
    model.defer_fits()
    rows, y = pd.DataFrame(x, columns=names), pd.Series(x[:, 0] > 0.3)
    model.learn_many(rows[:1000], y[:1000])
    if batch:
        return _timing.timed(lambda: model.score_learn_many(rows[:count], y[:count]))
    records = list(zip(rows[:count].to_dict("records"), y[:count].tolist(), strict=True))

    def one_by_one() -> None:
        for x, label in records:
            model.take(x, label)

    return _timing.timed(one_by_one)


def _summed(learner: Any, d: int) -> _timing.Measure:
    """How long the second stage of a table takes."""
    x = np.random.default_rng(1).uniform(-1.0, 1.0, (d, SPEED_ROWS))
    columns = {f"f{j}": column for j, column in enumerate(x)}
    table = {**columns, "y": x[0] > 0.3, "id": np.arange(SPEED_ROWS)}
    model = learner(epsilon=8.0, delta=1e-6, bounds=dict.fromkeys(columns, (-1.0, 1.0)))
    job = history.Job(model, label="y", rows=SPEED_ROWS, row_id="id", salt="a benchmark")
    with tempfile.TemporaryDirectory() as folder:
        job = job.standardised(job.sums(table), bytes(range(32)), account=Path(folder) / "account")
    return _timing.timed(lambda: job.sums(table))


def _speed() -> Iterator[_timing.Row]:
    learners = (auc.PrivateForest, auc.PairFTRL)
    for d in (20, 50):
        ways = {
            "in a batch": (SPEED_ROWS, lambda c, d=d: _taken(c, d, SPEED_ROWS, batch=True)),
            "one by one": (SPEED_ROWS // 10, lambda c, d=d: _taken(c, d, SPEED_ROWS // 10, batch=False)),
            "of a table": (SPEED_ROWS, lambda c, d=d: _summed(c, d)),
        }
        for way, (count, made) in ways.items():
            ours, theirs = map(made, learners)
            times = _timing.turns({"ours": ours, "theirs": theirs}, 9, warm=1)
            forest, linear = (1e6 * statistics.median(times[name]) / count for name in ("ours", "theirs"))
            yield {
                **{"speed": way, "d": d, "forest": forest},
                **{"linear": linear, "ratio": _timing.ratio(times["ours"], times["theirs"])},
            }


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """All cells of a set, then of the next."""
    if options.speed:
        yield from _speed()
        return
    for name in options.names or GOALS:
        data = _sets.load(name, options.data)
        scores: dict[str, list[float]] = {}
        for learner in list(LEARNERS)[:2] if options.gram else LEARNERS:
            seconds = []
            for train, test in _sets.splits(len(data.x), options.splits, FIRST_SPLIT):
                start = time.process_time()
                model = LEARNERS[learner](data, train, options.epsilon)
                seconds.append(time.process_time() - start)
                scores.setdefault(learner, []).append(_sets.judged(data, model, test))
                if options.gram and isinstance(model.run.state, dp_forest.DPForestState):
                    scores.setdefault(CEILING, []).append(_true_gram(model, data, train, test))
                if options.linear and learner == "PrivateForest":
                    scores.setdefault(ALONE, []).append(_alone(model, data, test))
            row = _row(data, learner, scores[learner])
            least = None
            if learner == "PrivateForest" and options.epsilon == 1.0:
                least = max(GOALS.get(name, 0.0), round(float(np.mean(scores["PairFTRL"])) - ALLOWED, 4))
            yield _timing.judged({**row, "seconds": float(np.mean(seconds))}, "auc", least=least)
        if ALONE in scores:
            yield _timing.judged(_row(data, ALONE, scores[ALONE]), "auc")
        if CEILING in scores:
            row = _row(data, CEILING, scores[CEILING])
            low, high = np.mean(scores["PairFTRL"]), row["auc"]
            share = float((np.mean(scores["PrivateForest"]) - low) / (high - low))
            row["covered"] = share if high > low else float("nan")
            yield _timing.judged(row, "auc")


def _row(data: _sets.Set, learner: str, scores: list[float]) -> _timing.Row:
    return {
        **{"set": data.name, "rows": len(data.x), "d": data.x.shape[1], "learner": learner},
        **{"auc": float(np.mean(scores)), "stderr": float(np.std(scores, ddof=1) / len(scores) ** 0.5)},
    }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """The table."""
    if options.speed:
        titles = (("d", "d", ">4"), ("  records", "speed", "<13"))
        figures = (("PairFTRL us", "linear", ">12.2f"), ("PrivateForest us", "forest", ">17.2f"))
        rows = ({**row, "speed": f"  {row['speed']}"} for row in rows)
        yield from _timing.table([*titles, *figures, ("ratio", "ratio", ">6.1f")], rows)
        return
    columns = [
        *(("set", "set", "<10"), ("rows", "rows", ">6"), ("d", "d", ">5"), ("  learner", "label", "<35")),
        *(("AUC", "auc", ">7.4f"), ("+-", "stderr", ">8.4f"), ("s", "seconds", ">8.1f")),
    ]
    covered: list[tuple[str, float]] = []

    def labelled() -> Iterator[_timing.Row]:
        for row in rows:
            if "covered" in row:
                covered.append((row["set"], row["covered"]))
            yield {"seconds": float("nan"), **row, "label": f"  {row['learner']}"}

    for line in _timing.table(columns, labelled(), goals=True):
        yield line.replace("    nan", "      -")
    if not covered:
        return
    yield ""
    yield "of the way from PairFTRL to the true Gram, PrivateForest covers"
    yield "  ".join(f"{name} {'-' if share != share else format(share, '.2f')}" for name, share in covered)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"of two classes; {', '.join(GOALS)} without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--epsilon": {"type": float, "default": 1.0},
        "--linear": {"action": "store_true", "help": "beside the linear part of the private forest alone"},
        "--gram": {"action": "store_true", "help": "beside the model with the true Gram matrix"},
        "--speed": {"action": "store_true", "help": "time to score and learn a record"},
        "--splits": {"type": int, "default": 5, "help": "how many, at least 2"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
