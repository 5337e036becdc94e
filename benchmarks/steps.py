"""The steps of PairOGD compared with River's LogisticRegression: the AUC of each stream, and its means.

    python benchmarks/steps.py [--quick] [--unseen] [--records N] [NAME ...]
    python benchmarks/steps.py --choice

One pass, each record scored before it is learned; the AUC is that of the probabilities of the second half.
All learners get the same records: numbers as River's StandardScaler gives them, and a column of 1 for each
text, which is not scaled. So PairOGD has ``scale=None`` here. `LR` is LogisticRegression with its defaults,
`LR .1` with the optimiser of the example in its documentation, SGD(0.1). `PairOGD` has no other settings,
`one` has one partner, `self-tuned` is ``learning_rate=None``: one partner, self-tuned steps of one size for
all weights, and the average of the iterates. `us` is the time of the processor to score and learn a record.

Of the streams of _streams.py, every other one (`chosen`) served to choose the default: its loss, its steps,
their rate and the number of partners. The others were held back from that choice. That every record teaches
the curve of the probabilities was decided on all of them. `--unseen` takes the streams of _unseen.py instead,
on which nothing was chosen. The goal is that of the means: PairOGD has at least the AUC of LR.

`--choice` has the means of other settings on the streams that served to choose: by `score` and, as above, by
`probability`.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _streams
import _timing
import _unseen
import numpy as np
import pandas as pd
from river import linear_model, optim, preprocessing
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses, schedules

LEARNERS: dict[str, Callable[[], Any]] = {
    "LR": linear_model.LogisticRegression,
    "LR .1": lambda: linear_model.LogisticRegression(optim.SGD(0.1)),
    "PairOGD": lambda: auc.PairOGD(scale=None),
    "one": lambda: auc.PairOGD(buffer=buffers.FIFO(1), scale=None),
    "self-tuned": lambda: auc.PairOGD(learning_rate=None, scale=None),
}
CHOSEN = frozenset(list(_streams.STREAMS)[::2])
CHOICES: dict[str, dict[str, Any]] = {
    "PairOGD": {},
    **{f"rate {rate:g}": {"learning_rate": schedules.AdaGrad(rate)} for rate in (0.05, 0.1, 0.2, 0.4)},
    **{f"{size} partners": {"buffer": buffers.FIFO(size)} for size in (1, 4, 64)},
    **{f"half-life {h}": {"half_life": h} for h in (1000, 10_000)},
    **{f"radius {radius:g}": {"radius": radius} for radius in (1.0, 10.0)},
    "logistic loss": {"loss": losses.Logistic()},
    **{
        f"constant {rate:g}": {
            "learning_rate": schedules.Constant(rate),
            "average": False,
            "buffer": buffers.FIFO(16),
        }
        for rate in (0.001, 0.003, 0.01, 0.03)
    },
    "self-tuned": {"learning_rate": None},
    "self-tuned, last": {"learning_rate": None, "average": False},
}


def prepared(records: _streams.Records) -> _streams.Records:
    """Records of numbers: scaled by the mean and deviation so far, and a column of 1 for each text."""
    scaler, out = preprocessing.StandardScaler(), []
    for x, y in records:
        numbers = {name: value for name, value in x.items() if not isinstance(value, str)}
        scaler.learn_one(numbers)
        texts = {f"{name}={value}": 1.0 for name, value in x.items() if isinstance(value, str)}
        out.append(({**scaler.transform_one(numbers), **texts}, y))
    return out


def judged(model: Any, records: _streams.Records) -> tuple[float, float]:
    """AUC of the second half, and microseconds a record."""
    scores, start = [], time.process_time()
    for x, y in records:
        scores.append(model.predict_proba_one(x).get(True, 0.0))
        model.learn_one(x, y)
    us = (time.process_time() - start) / len(records) * 1e6
    half = len(records) // 2
    return float(roc_auc_score([y for _, y in records[half:]], scores[half:])), us


def choice(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each setting: its means over the streams that served to choose."""
    streams = [prepared(_streams.STREAMS[name][0](options.records)) for name in sorted(CHOSEN)]
    frames = [(pd.DataFrame([x for x, _ in part]).fillna(0.0), [y for _, y in part]) for part in streams]
    for name, settings in CHOICES.items():
        by_score = []
        for frame, labels in frames:
            half = len(labels) // 2
            scores = auc.PairOGD(scale=None, seed=1, **settings).score_learn_many(frame, pd.Series(labels))
            by_score.append(float(roc_auc_score(labels[half:], scores[half:])))
        by_probability = [judged(auc.PairOGD(scale=None, seed=1, **settings), part)[0] for part in streams]
        row: _timing.Row = {"setting": name, "score": float(np.mean(by_score))}
        yield row | {"probability": float(np.mean(by_probability))}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each stream: the AUC of each learner, and the times of two."""
    if options.choice:
        yield from choice(options)
        return
    few = [({"a": float(i)}, i % 2 == 0) for i in range(40)]
    few += [
        ({f"b{i % 9}": 1.0}, i % 2 == 0) for i in range(40)
    ]  # sparse ones, which have kernels of their own
    for make in LEARNERS.values():
        judged(make(), few)  # compiles
    streams: dict[str, Callable[[], _streams.Records]] = {}
    for name, (take, _) in _streams.STREAMS.items():
        streams[name] = lambda take=take: take(options.records)
    if options.unseen:
        streams = {name: take for family in _unseen.FAMILIES.values() for name, take in family.items()}
    for name in options.name or (_streams.QUICK if options.quick else streams):
        records = prepared(streams[name]())
        found = {key: judged(make(), records) for key, make in LEARNERS.items()}
        group = "unseen" if options.unseen else "chosen" if name in CHOSEN else "held back"
        row: _timing.Row = {"stream": name, "group": group, "n": len(records)}
        row |= {key: area for key, (area, _) in found.items()}
        yield row | {"lr_us": found["LR"][1], "us": found["PairOGD"][1]}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table, and the means of each group of streams."""
    if options.choice:
        columns = [("setting", "setting", "<19"), ("score", "score", ">8.4f")]
        yield from _timing.table([*columns, ("probability", "probability", ">13.4f")], rows)
        return
    areas = [(key, key, f">{max(8, len(key) + 2)}.4f") for key in LEARNERS]
    seen: list[_timing.Row] = []

    def kept() -> Iterator[_timing.Row]:
        for row in rows:
            seen.append(row)
            yield row

    yield from _timing.table(
        [
            *(("stream", "stream", "<21"), ("group", "group", "<10"), ("n", "n", ">7d"), *areas),
            *(("LR us", "lr_us", ">8.1f"), ("us", "us", ">8.1f")),
        ],
        kept(),
    )
    means = []
    for group in (*dict.fromkeys(row["group"] for row in seen), "all"):
        members = [row for row in seen if group in (row["group"], "all")]
        mean: _timing.Row = {key: float(np.mean([row[key] for row in members])) for key in LEARNERS}
        mean |= {"group": group, "streams": len(members)}
        means.append(_timing.judged(mean, "PairOGD", least=round(mean["LR"], 4) if group == "all" else None))
    yield ""
    yield from _timing.table([("means", "group", "<31"), ("", "streams", ">7d"), *areas], means, goals=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"nargs": "*", "metavar": "NAME"},
    "--quick": {"action": "store_true", "help": "two small sets"},
    "--choice": {"action": "store_true", "help": "other settings, on the streams that served to choose"},
    "--unseen": {"action": "store_true", "help": "the streams on which nothing was chosen"},
    "--records": {"type": int, "default": 10_000, "help": "of a generated stream"},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
