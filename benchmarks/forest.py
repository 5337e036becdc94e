"""What random trees are worth beside River's adaptive random forest: quality, time and memory in one run.

    python benchmarks/forest.py [--quick] [--records N] [--seeds 3] [--no-arf] [--again] [--draw] [NAME ...]
    python benchmarks/forest.py --pairs [--seeds 3] [NAME ...]
    python benchmarks/forest.py --speed [NAME ...]
    python benchmarks/forest.py --unseen [--seeds 3] [FAMILY ...]

One pass, defaults, each record scored before it is learned; AUC and average precision (AP) are those of the
second half. `us` is the time of the processor to score and learn a record, a dictionary; `array` that of a
row of an array. ARF is River's with 10 trees. `Forest` has `--seeds` seeds, the others one.
LogisticRegression and PairOGD get standardised numbers and a column of 0 or 1 for each text; the trees get
texts as they are.

`--pairs` sets leaves that are fitted to records, by the logistic loss, beside leaves that are fitted to
pairs, by each of the pair losses; `positive` is the share of positives, `us` the time for a row of a frame.
It adds two streams with rare positives: one positive of ijcnn1 in ten, and the letter A among all letters;
`ijcnn1-rarest`, one positive in a hundred, runs when it is named.

`--speed` takes the first 5000 records of the streams of numbers with at most 25 features, for a machine that
does nothing else: a minute or two. The shortest of five passes of `Forest`, and one pass of ARF over 2000 of
them in the same run. The bars: 12 us by arrays, 16 us by dictionaries, 60 times as fast as ARF.

`--unseen` takes the streams of _unseen.py, which the other pages have no rows of: means of families, and each
stream whose AUC is less than ARF's - .005. Of tables with fewer than 2000 records ARF has as many seeds as
`Forest`, for there its AUC moves by .1 from one seed to the next.

The sets are those of the other benchmarks, whole and in the order of their files, and `--records` records of
River's generators; where a stream changes, it does in the middle. What ARF gives is kept in
.cache/forest.json, so that it is run once; `--again` runs it again. The bars: AUC at least ARF's - .005 on
the first thirteen, - .02 on the others; letter .975, ijcnn1 .975, Bananas .96; 5 MB.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _chart
import _streams
import _timing
import _unseen
import numpy as np
import pandas as pd
from _streams import QUICK, RARE, STREAMS, Records
from river import forest, linear_model, preprocessing, tree
from sklearn.metrics import average_precision_score, roc_auc_score

from streampair import auc, losses

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "forest.json"
IMAGE = ROOT / "docs" / "images" / "forest.svg"
ABSOLUTE = {"letter": 0.975, "ijcnn1": 0.975, "Bananas": 0.96}
MOST_BYTES = 5_000_000  # of at most 25 features
LOSSES: dict[str, losses.PairLoss | None] = {
    "records": None,
    "pairs, Logistic": losses.Logistic(),
    "pairs, Hinge": losses.Hinge(),
    "pairs, SquaredHinge": losses.SquaredHinge(),
    "pairs, Square": losses.Square(),
}


class Encoded:
    """A learner that gets standardised numbers, and a column of 1 for each text.

    The columns of texts are not standardised: one that is there only where it is 1 has no variance, and a
    StandardScaler makes it 0.
    """

    def __init__(self, learner: Any) -> None:
        self.scaler, self.learner = preprocessing.StandardScaler(), learner

    @staticmethod
    def _numbers(x: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in x.items() if not isinstance(v, str)}

    def _columns(self, x: dict[str, Any], numbers: dict[str, Any]) -> dict[str, Any]:
        ones = {f"{k}={v}": 1.0 for k, v in x.items() if isinstance(v, str)}
        return {**self.scaler.transform_one(numbers), **ones}

    def predict_proba_one(self, x: dict[str, Any]) -> dict[Any, float]:
        probabilities: dict[Any, float] = self.learner.predict_proba_one(self._columns(x, self._numbers(x)))
        return probabilities

    def learn_one(self, x: dict[str, Any], y: bool) -> None:
        numbers = self._numbers(x)
        self.scaler.learn_one(numbers)
        self.learner.learn_one(self._columns(x, numbers), y)

    @property
    def _raw_memory_usage(self) -> int:
        return int(self.scaler._raw_memory_usage) + int(self.learner._raw_memory_usage)


LEARNERS: dict[str, Callable[[], Any]] = {
    "ARF": lambda: forest.ARFClassifier(10, seed=1),
    "HoeffdingTree": tree.HoeffdingTreeClassifier,
    "LogisticRegression": lambda: Encoded(linear_model.LogisticRegression()),
    "PairOGD": lambda: Encoded(auc.PairOGD(scale=None, seed=1)),
}


def _second_half(labels: list[bool], scores: Any) -> dict[str, float]:
    half = len(labels) // 2
    y, s = np.array(labels[half:]), np.asarray(scores[half:])
    return {"auc": float(roc_auc_score(y, s)), "ap": float(average_precision_score(y, s))}


def one_by_one(model: Any, records: Records) -> dict[str, float]:
    """Quality, microseconds a record, bytes."""
    scores, start = [], time.process_time()
    for x, y in records:
        scores.append(model.predict_proba_one(x).get(True, 0.0))
        model.learn_one(x, y)
    us = (time.process_time() - start) / len(records) * 1e6
    metrics = _second_half([y for _, y in records], scores)
    return {**metrics, "us": us, "bytes": float(model._raw_memory_usage)}


def forests(records: Records, seeds: int) -> dict[str, float]:
    """Means over the seeds, of frames; the first one also by records, and by an array where it can be."""
    frame, labels = pd.DataFrame([x for x, _ in records]), [y for _, y in records]
    y = pd.Series(labels)
    metrics = [
        _second_half(labels, auc.Forest(seed=s).score_learn_many(frame, y)) for s in range(1, seeds + 1)
    ]
    one = one_by_one(auc.Forest(seed=1), records)
    rows = frame.select_dtypes("number").to_numpy(float)
    array = math.nan
    if rows.shape == frame.shape:
        model, start = auc.Forest(seed=1), time.process_time()
        model.score_learn_many(rows, np.array(labels))
        array = (time.process_time() - start) / len(records) * 1e6
    return {
        **{key: float(np.mean([each[key] for each in metrics])) for key in ("auc", "ap")},
        "us": one["us"],
        "array": array,
        "bytes": one["bytes"],
    }


def _arf(name: str, records: Records, *, again: bool, seed: int = 1) -> dict[str, float]:
    """As it was for the same stream, or run."""
    kept = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    key = f"{name} {len(records)}" + (f" seed {seed}" if seed > 1 else "")
    if again or key not in kept:
        kept[key] = one_by_one(forest.ARFClassifier(10, seed=seed), records)
        CACHE.parent.mkdir(exist_ok=True)
        CACHE.write_text(json.dumps(kept, indent=1))
    metrics: dict[str, float] = kept[key]
    return metrics


def paired(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each loss on each stream."""
    for name in options.name or (QUICK if options.quick else _streams.PAIRED):
        records = RARE[name](options.records) if name in RARE else STREAMS[name][0](options.records)
        frame, labels = pd.DataFrame([x for x, _ in records]), [y for _, y in records]
        y = pd.Series(labels)
        for learner, loss in LOSSES.items():
            auc.Forest(seed=1, loss=loss).score_learn_many(frame[:9], y[:9])  # compiles
            start, metrics = time.process_time(), []
            for seed in range(1, options.seeds + 1):
                metrics.append(
                    _second_half(labels, auc.Forest(seed=seed, loss=loss).score_learn_many(frame, y))
                )
            us = (time.process_time() - start) / len(records) / options.seeds * 1e6
            means = {key: float(np.mean([each[key] for each in metrics])) for key in ("auc", "ap")}
            row: _timing.Row = {**means, "us": us, "stream": name, "learner": learner}
            yield row | {"positive": float(np.mean(labels)), "n": len(records)}


def unseen(options: Namespace) -> Iterator[_timing.Row]:
    """AUC of `Forest`, ARF and LogisticRegression, a row for each stream."""
    forests([({"a": float(i)}, i % 2 == 0) for i in range(8)], 1)  # compiles
    for family in options.name or (("tables",) if options.quick else _unseen.FAMILIES):
        for name, take in _unseen.FAMILIES[family].items():
            records = take()
            frame, labels = pd.DataFrame([x for x, _ in records]), [y for _, y in records]
            y, seeds = pd.Series(labels), range(1, options.seeds + 1)
            aucs = [_second_half(labels, auc.Forest(seed=s).score_learn_many(frame, y))["auc"] for s in seeds]
            base = [
                _arf(f"unseen {name}", records, again=options.again, seed=s)["auc"]
                for s in (seeds if len(records) < 2000 else (1,))
            ]
            line = one_by_one(LEARNERS["LogisticRegression"](), records)["auc"]
            row: _timing.Row = {"family": family, "stream": name, "n": len(records), "d": frame.shape[1]}
            row |= {"auc": float(np.mean(aucs)), "arf": float(np.mean(base)), "line": line}
            row = _timing.judged(row, "auc", least=round(row["arf"] - 0.02, 4))
            yield row | {"gain": row["auc"] - row["arf"]}


def fast(options: Namespace) -> Iterator[_timing.Row]:
    """Times of a record by arrays and by dictionaries, beside ARF's of the same run."""
    forests([({"a": float(i)}, i % 2 == 0) for i in range(8)], 1)  # compiles
    for name in options.name or (QUICK if options.quick else _streams.SMALL):
        records = STREAMS[name][0](5000)[:5000]
        rows, labels = (
            pd.DataFrame([x for x, _ in records]).to_numpy(float),
            np.array([y for _, y in records]),
        )
        arrays, ones = [], []
        for _ in range(5):
            model, start = auc.Forest(seed=1), time.process_time()
            model.score_learn_many(rows, labels)
            arrays.append((time.process_time() - start) / len(records) * 1e6)
            ones.append(one_by_one(auc.Forest(seed=1), records)["us"])
        base = one_by_one(LEARNERS["ARF"](), records[:2000])["us"]
        times = {
            "stream": name,
            "learner": "Forest",
            "d": rows.shape[1],
            "array": min(arrays),
            "us": min(ones),
        }
        row = _timing.judged({**times, "arf": base, "times": base / min(ones)}, "times", least=60.0)
        row["met"] = row["met"] and row["array"] <= 12.0 and row["us"] <= 16.0
        yield row


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each learner on each stream."""
    if options.pairs or options.speed or options.unseen:
        yield from (paired if options.pairs else fast if options.speed else unseen)(options)
        return
    few = [({"a": float(i)}, i % 2 == 0) for i in range(8)]
    forests(few, 1)  # compiles
    one_by_one(LEARNERS["PairOGD"](), few)
    for name in options.name or (QUICK if options.quick else STREAMS):
        take, bar = STREAMS[name]
        records = take(options.records)
        others = {}
        for learner, make in LEARNERS.items():
            if learner != "ARF":
                others[learner] = one_by_one(make(), records)
            elif not options.no_arf:
                others[learner] = _arf(name, records, again=options.again)
        ours = forests(records, options.seeds)
        base = others.get("ARF", {}).get("us", math.nan)
        for learner, metrics in {"Forest": ours, **others}.items():
            row: _timing.Row = {"array": math.nan, **metrics, "stream": name, "learner": learner}
            row |= {"mb": metrics["bytes"] / 1e6, "times": base / metrics["us"], "n": len(records)}
            if learner == "Forest":
                least = max(ABSOLUTE.get(name, 0.0), others["ARF"]["auc"] - bar if "ARF" in others else 0.0)
                row = _timing.judged(row, "auc", least=round(least, 4))
                narrow = len({feature for x, _ in records for feature in x}) <= 25
                row["met"] = row["met"] and (not narrow or metrics["bytes"] <= MOST_BYTES)
            yield row


def _drawn(rows: list[_timing.Row]) -> str:
    """AUC against microseconds, a panel a stream."""
    looks = {
        "Forest": _chart.Look("#2458c5"),
        "ARF": _chart.Look("#c0392b"),
        "HoeffdingTree": _chart.Look("#d68910"),
        "LogisticRegression": _chart.Look("#777"),
        "PairOGD": _chart.Look("#1e8449"),
    }
    panels = []
    for name, group in itertools.groupby(rows, key=lambda row: row["stream"]):
        lines = [_chart.Line(row["learner"], ((row["us"], row["auc"], 0.0),)) for row in group]
        panels.append(_chart.Panel(name, "AUC", tuple(lines), across="us a record"))
    return _chart.page(
        "AUC of the second half of one pass, by microseconds a record",
        panels,
        (1, 10, 100, 1000, 10000),
        looks,
    )


def _families(rows: list[_timing.Row]) -> Iterator[str]:
    """Means of each family, and the streams on which the forest is behind."""
    figures = [("Forest", "auc", ">8.3f"), ("ARF", "arf", ">8.3f"), ("LogisticRegression", "line", ">20.3f")]
    means = []
    for family in (*dict.fromkeys(row["family"] for row in rows), "all"):
        members = [row for row in rows if family in (row["family"], "all")]
        mean_row: _timing.Row = {key: float(np.mean([row[key] for row in members])) for _, key, _ in figures}
        ahead = sum(row["gain"] > 0.0 for row in members)
        mean_row |= {"family": family, "streams": len(members), "ahead": ahead}
        means.append(mean_row | {"least": min(row["gain"] for row in members)})
    yield from _timing.table(
        [
            *(("family", "family", "<12"), ("streams", "streams", ">7d"), *figures),
            *(("ahead", "ahead", ">7d"), ("least Forest - ARF", "least", ">20.3f")),
        ],
        means,
    )
    behind = sorted((row for row in rows if row["gain"] < -0.005), key=lambda row: float(row["gain"]))
    if behind:
        yield ""
        yield from _timing.table(
            [("less than ARF - .005", "stream", "<22"), ("n", "n", ">7d"), ("d", "d", ">4d"), *figures],
            behind,
            goals=True,
        )


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table, means over the streams, and the picture."""
    if options.unseen:
        yield from _families(list(rows))
        return
    columns = [
        ("stream", "stream", "<18"),
        ("learner", "learner", "<19"),
        ("AUC", "auc", ">7.3f"),
        ("AP", "ap", ">7.3f"),
        ("us", "us", ">9.1f"),
        ("array", "array", ">8.1f"),
        ("MB", "mb", ">7.2f"),
        ("ARF us / us", "times", ">13.1f"),
    ]
    if options.pairs:
        columns = [*columns[:4], ("us", "us", ">7.1f"), ("positive", "positive", ">10.3f")]
    if options.speed:
        columns = [*columns[:1], ("d", "d", ">4d"), *columns[4:6], ("ARF us", "arf", ">9.1f"), *columns[7:]]
        yield from _timing.table(columns, rows, goals=True)
        return
    seen: list[_timing.Row] = []

    def kept() -> Iterator[_timing.Row]:
        for row in rows:
            seen.append(row)
            yield row

    yield from _timing.table(columns, kept(), goals=not options.pairs)
    yield ""
    yield f"means of {len({row['stream'] for row in seen})} streams"
    for learner in LOSSES if options.pairs else ("Forest", *LEARNERS):
        learner_rows = [row for row in seen if row["learner"] == learner]
        if learner_rows and options.pairs:
            means = [float(np.mean([row[key] for row in learner_rows])) for key in ("auc", "ap", "us")]
            yield "{:<20}AUC {:.3f}  AP {:.3f}  {:5.1f} us".format(learner, *means)
        elif learner_rows:
            means = [float(np.mean([row[key] for row in learner_rows])) for key in ("auc", "ap", "us", "mb")]
            yield "{:<20}AUC {:.3f}  AP {:.3f}  {:8.1f} us  {:.2f} MB".format(learner, *means)
    if options.draw:
        IMAGE.write_text(_drawn(seen), encoding="utf-8")


OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"nargs": "*", "metavar": "NAME"},
    "--quick": {"action": "store_true", "help": "two small sets"},
    "--records": {"type": int, "default": 10_000, "help": "of a generated stream"},
    "--seeds": {"type": int, "default": 3},
    "--no-arf": {"action": "store_true", "help": "without ARF, which takes nearly all of the time"},
    "--speed": {"action": "store_true", "help": "times alone, of few features"},
    "--pairs": {"action": "store_true", "help": "leaves fitted to pairs beside leaves fitted to records"},
    "--unseen": {"action": "store_true", "help": "streams that the other pages have no rows of"},
    "--draw": {"action": "store_true", "help": "draw docs/images/forest.svg"},
    "--again": {"action": "store_true", "help": "run ARF again"},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
