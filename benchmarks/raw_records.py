"""Records as they come: PairOGD on raw tables, shifted numbers, thousands of names and messages.

    python benchmarks/raw_records.py [tables] [moments] [shifts] [speed] [names] [memory] [texts]
    python benchmarks/raw_records.py speed --before CHECKOUT
    python benchmarks/raw_records.py --sweep

Without a name all sections run. AUC is that of the second half of one pass, each record scored before it is
learned; scores are probabilities.

`tables`
    The first 10,000 records of a table, with its texts and gaps. `raw` is ``PairOGD()`` on them. `pipeline`
    has the steps of AdaGrad(1/8), radius 2 and ``scale=None``, behind River's StandardScaler for numbers and
    OneHotEncoder for texts; `LR` is LogisticRegression behind the same. Both get records without their gaps,
    as does `Forest`, which takes texts as they are. bank has all of its columns, letter the classes A to M
    and N to Z. The goal of the means is the AUC of LogisticRegression.

`moments`
    The same tables: `PairOGD()` and `PairMoments()` on the raw records, the latter also without its
    half-life. `columns` is how many the records have, each value of a text being one. `us` is the time of the
    processor to predict and learn a record.

`shifts`
    The same tables. `shifted`: every number of more than two values is multiplied by e^N(0, 5), then moved by
    N(0, 1000) of its spreads; the largest change of AUC in three draws. `offset`: the largest change of a
    score where numbers move by 2^30 spreads (they are rounded first, so that the sums are exact).
    `one value`: the loss of AUC by one value of 10^6 spreads in record 100, where it costs most.

`speed`
    Microseconds to score and learn a record of nine numbers, in dicts and in arrays, by this learner and that
    of another checkout (``--before``), which take turns.

`names`
    Microseconds to predict and learn a record of 30 names, each with the value 1, out of so many, all of them
    known.

`memory`
    Bytes a name of a learner that knows so many, the names themselves left out.

`texts`
    Short messages through River's BagOfWords or TFIDF, then PairOGD or LogisticRegression. `to` is how many
    PairOGD took. Real ones need a source package: see _messages.py.

``--sweep`` has the AUC by rate of AdaGrad and radius (None: no ball), for several numbers of names.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from numbers import Number
from pathlib import Path
from typing import Any

import _messages
import _sets
import _streams
import _timing
import _unseen
import numpy as np
from river import compose, datasets, feature_extraction, linear_model, preprocessing
from sklearn import datasets as tables_of_sklearn
from sklearn.metrics import roc_auc_score

from streampair import auc, schedules
from streampair.errors import RecordError

ROOT = Path(__file__).resolve().parent.parent
Stream = list[tuple[Any, bool]]
NAN = math.nan


# ---- streams ---------------------------------------------------------------------------------------


def _digits() -> _streams.Records:
    X, y = tables_of_sklearn.load_digits(return_X_y=True)
    return _streams.rows(X, y >= 5)


def _file(name: str) -> Callable[[], _streams.Records]:
    return _unseen.table(name, lambda frame: _sets._POSITIVE[name](frame["label"]))


def _river(stream: Any, positive: Callable[[Any], bool] = bool) -> Callable[[], _streams.Records]:
    return lambda: _streams.taken(stream, _unseen.N, positive)


SIX = ("adult", "bank", "german", "diabetes", "ijcnn1", "letter")
TABLES: dict[str, Callable[[], _streams.Records]] = {
    **{name: _file(name) for name in SIX},
    "Phishing": _river(datasets.Phishing()),
    "Bananas": _river(datasets.Bananas()),
    "Shuttle": _river(datasets.Shuttle()),
    "SolarFlare": _river(datasets.SolarFlare(), lambda y: sum(y.values()) > 0),
    "ImageSegments": _river(datasets.ImageSegments(), lambda y: y in ("path", "foliage", "window")),
    "digits": _digits,
    "hepatitis": _unseen.TABLES["hepatitis"],
    "breast_cancer": _unseen.TABLES["breast_cancer"],
    "retinopathy": _unseen.TABLES["diabetic_retinopathy"],
    "mixed-missing": _unseen.MADE["mixed-missing"],
    "texts-many": _unseen.MADE["texts-many"],
}


def taken(options: Namespace) -> Iterator[tuple[str, _streams.Records]]:
    """The tables that can be had here: at most so many records of each, without their gaps."""
    for name, take in TABLES.items():
        try:
            yield name, take()[: options.records]
        except FileNotFoundError:
            print(f"{name}: not in {_sets.DATA}", file=sys.stderr)


def raw(records: _streams.Records) -> Stream:
    """The records with their gaps, which are None."""
    names = list(dict.fromkeys(name for x, _ in records for name in x))
    return [({name: x.get(name) for name in names}, y) for x, y in records]


def numeric(records: _streams.Records) -> dict[str, tuple[float, float]]:
    """Mean and spread of the columns of numbers that have more than two values."""
    columns: dict[str, list[float]] = {}
    for x, _ in records:
        for name, value in x.items():
            if isinstance(value, Number) and not isinstance(value, bool):
                columns.setdefault(name, []).append(float(value))
    many = {name: values for name, values in columns.items() if len(set(values)) > 2}
    return {name: (statistics.fmean(v), statistics.pstdev(v)) for name, v in many.items()}


def changed(records: _streams.Records, change: Callable[[str, float], float], columns: Iterable[str]) -> Any:
    """The records with other values in these columns of numbers."""
    columns = list(columns)
    return [
        ({**x, **{name: change(name, float(x[name])) for name in columns if name in x}}, y)
        for x, y in records
    ]


# ---- learners --------------------------------------------------------------------------------------


def prepared(model: Any) -> Any:
    """A model behind River's steps for numbers and texts."""
    numbers = compose.SelectType(Number) | preprocessing.StandardScaler()
    return (numbers + (compose.SelectType(str) | preprocessing.OneHotEncoder(drop_zeros=True))) | model


def unscaled() -> auc.PairOGD:
    """PairOGD with steps that leave numbers as they are."""
    return auc.PairOGD(scale=None, learning_rate=schedules.AdaGrad(0.125), radius=2.0, seed=1)


def scores_of(model: Any, stream: Stream) -> tuple[list[float], float]:
    """Probabilities of all records that the model takes, and microseconds a record."""
    scores, start = [], time.process_time()
    try:
        for x, y in stream:
            scores.append(model.predict_proba_one(x).get(True, 0.0))
            model.learn_one(x, y)
    except RecordError as error:
        print(f"record {len(scores)}: {error}", file=sys.stderr)
    return scores, (time.process_time() - start) / len(stream) * 1e6


def area(stream: Stream, scores: list[float]) -> float:
    """AUC of the second half; NaN where the model stopped before the end."""
    half = len(stream) // 2
    if len(scores) < len(stream):
        return NAN
    return float(roc_auc_score([y for _, y in stream[half:]], scores[half:]))


def judged(model: Any, stream: Stream) -> float:
    """AUC of the second half."""
    return area(stream, scores_of(model, stream)[0])


# ---- sections --------------------------------------------------------------------------------------


def tables(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each table, and one of means."""
    found = []
    for name, records in taken(options):
        row: _timing.Row = {"table": name, "n": len(records)}
        row["raw"] = judged(auc.PairOGD(seed=1), raw(records))
        row["pipeline"] = judged(prepared(unscaled()), records)
        row["LR"] = judged(prepared(linear_model.LogisticRegression()), records)
        row["Forest"] = judged(auc.Forest(seed=1), records)
        row["less"] = row["raw"] - row["pipeline"]
        found.append(row)
        yield _timing.judged(row, "less", least=-0.003)
    six = [row for row in found if row["table"] in SIX]
    for name, rows in (("mean of six", six), ("mean of all", found)):
        if rows:
            keys = ("raw", "pipeline", "LR", "Forest", "less")
            mean: _timing.Row = {key: float(np.mean([row[key] for row in rows])) for key in keys}
            mean |= {"table": name, "n": len(rows)}
            yield _timing.judged(mean, "raw", least=round(mean["LR"], 4))


def moments(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each table, and two of means."""
    makers: dict[str, Callable[[], Any]] = {
        "PairOGD": lambda: auc.PairOGD(seed=1),
        "PairMoments": auc.PairMoments,
        "no half-life": lambda: auc.PairMoments(half_life=None),
    }
    found = []
    for make in makers.values():
        judged(make(), [({"a": float(i % 7), "b": i % 3}, i % 2 > 0) for i in range(200)])  # compiles
    for name, records in taken(options):
        row: _timing.Row = {"table": name, "n": len(records)}
        stream = raw(records)
        for key, make in makers.items():
            model, start = make(), time.process_time()
            row[key] = judged(model, stream)
            row[f"{key} us"] = (time.process_time() - start) / len(stream) * 1e6
            row["columns"] = len(model.feature_names)
        found.append(row)
        yield row
    for name, rows in (("mean of six", [r for r in found if r["table"] in SIX]), ("mean of all", found)):
        if rows:
            keys = [key for key in rows[0] if key not in ("table", "n")]
            yield {**{k: float(np.mean([r[k] for r in rows])) for k in keys}, "table": name, "n": len(rows)}


def shifted(records: _streams.Records, draw: int) -> Stream:
    """The raw records in other units."""
    r, columns = np.random.default_rng(draw), numeric(records)
    units = {name: (float(np.exp(r.normal(0, 5))), float(r.normal(0, 1000))) for name in columns}
    return raw(
        changed(records, lambda name, v: units[name][0] * (v + units[name][1] * columns[name][1]), columns)
    )


def offset(records: _streams.Records) -> float:
    """The largest change of a score by offsets of 2^30 spreads."""
    columns = numeric(records)
    scaled = {name: (m, 2.0 ** round(math.log2(s))) for name, (m, s) in columns.items()}

    def rounded(name: str, value: float) -> float:
        m, s = scaled[name]
        return round((value - m) / s * 2**16) / 2**16 * s

    near = changed(records, rounded, columns)
    far = changed(near, lambda name, v: v + 2.0**30 * scaled[name][1], columns)
    largest = 0.0
    models = auc.PairOGD(seed=1), auc.PairOGD(seed=1)
    try:
        for (x, y), (moved, _) in zip(raw(near), raw(far), strict=True):
            largest = max(largest, abs(models[0].score_one(x) - models[1].score_one(moved)))
            models[0].learn_one(x, y)
            models[1].learn_one(moved, y)
    except RecordError:
        return NAN
    return largest


def one_value(records: _streams.Records, before: float) -> float:
    """The largest loss of AUC by one value of 10^6 spreads."""
    losses, columns = [], numeric(records)
    for name, (m, s) in columns.items():
        stream = raw(records)
        stream[99] = ({**stream[99][0], name: m + 1e6 * s}, stream[99][1])
        losses.append(before - judged(auc.PairOGD(seed=1), stream))
    return max(losses, key=lambda loss: (loss != loss, loss), default=0.0)


def shifts(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each table and change."""
    for name, records in taken(options):
        if not numeric(records):
            continue
        before = judged(auc.PairOGD(seed=1), raw(records))
        after = [judged(auc.PairOGD(seed=1), shifted(records, draw)) for draw in range(3)]
        row: _timing.Row = {"table": name, "auc": before}
        change = float(np.max([abs(each - before) for each in after]))
        yield _timing.judged({**row, "change": "shifted", "value": change}, "value", most=5e-5)
        yield _timing.judged({**row, "change": "offset", "value": offset(records)}, "value", most=1e-6)
        loss = one_value(records, before)
        yield _timing.judged({**row, "change": "one value", "value": loss}, "value", most=0.01)


class Program:
    """A process of _turns.py with the packages of a checkout."""

    def __init__(self, checkout: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "benchmarks" / "_turns.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        where = self("where")
        if not str(where).startswith(str(checkout)):
            sys.exit(f"{checkout} has no packages: {where} would run")

    def __call__(self, function: str, *arguments: Any) -> Any:
        """What a function there answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([function, *arguments]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def compared(
    name: str, ours: _timing.Measure, theirs: _timing.Measure, options: Namespace, **goal: float
) -> _timing.Row:
    """A row of two that take turns: ``ratio`` is our time by theirs; the goal is of it."""
    for measure in (ours, theirs):
        if isinstance(refused := measure(), str):  # also warms up
            print(f"{name}: {refused}", file=sys.stderr)
            return {"name": name, "ours": NAN, "theirs": NAN, "ratio": NAN, "goal": "runs", "met": False}
    mine, other, ratio = _timing.versus(ours, theirs, options.rounds)
    row: _timing.Row = {"name": name, "ours": mine * 1e6, "theirs": other * 1e6, "ratio": 1.0 / ratio}
    return _timing.judged(row, "ratio", **goal)


def speed(options: Namespace) -> Iterator[_timing.Row]:
    """Nine numbers, by this checkout and another one."""
    if options.before is None:
        print("speed: needs --before CHECKOUT", file=sys.stderr)
        return
    with Program() as program, Program(options.before.resolve()) as former:
        for function, share in (("dicts", 0.9), ("arrays", 0.8)):
            turns = [functools.partial(each, function, "PairOGD") for each in (program, former)]
            yield compared(f"{function} of 9 numbers / before", *turns, options, most=1.0 / share)


def names(options: Namespace) -> Iterator[_timing.Row]:
    """Thirty of many names."""
    with Program() as program:
        for count, hashed in ((1000, 0), (8000, 0), (44_000, 0), (2**20, 0), (2**20, 2**18)):
            ours, river = (
                functools.partial(program, "names", n, count, hashed)
                for n in ("PairOGD", "LogisticRegression")
            )
            name = f"PairOGD, 30 of {count} names" + ", FeatureHasher(2**18)" * bool(hashed)
            yield compared(f"{name} / LogisticRegression", ours, river, options, most=2.0)
        many, few = (functools.partial(program, "names", "Forest", count) for count in (8000, 1000))
        yield compared("Forest, 30 of 8000 names / 30 of 1000", many, few, options, most=3.0)


def memory(options: Namespace) -> Iterator[_timing.Row]:
    """Bytes a name, and whether many names take more of them each."""
    first = NAN
    for count in (2**16, 2**18, 2**20):
        found = []
        for learner in ("PairOGD", "LogisticRegression"):
            with Program() as program:
                bytes_taken = program("memory", learner, count)
                if isinstance(bytes_taken, str):
                    print(f"{count} names: {bytes_taken}", file=sys.stderr)
                    bytes_taken = NAN
                found.append(bytes_taken / count)
        row: _timing.Row = {"names": count, "ours": found[0], "theirs": found[1]}
        first = found[0] if first != first else first
        yield _timing.judged(row, "ours", most=1.5 * first)


STEPS = {"BagOfWords": feature_extraction.BagOfWords, "TFIDF": feature_extraction.TFIDF}


def texts(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each stream of messages and step."""
    for (name, take), (step, make) in itertools.product(_messages.streams().items(), STEPS.items()):
        stream: Stream = list(take())
        row: _timing.Row = {"stream": name, "step": step, "n": len(stream)}
        river = make() | linear_model.LogisticRegression()
        scores, row["lr_us"] = scores_of(river, stream)
        row["LR"], row["names"] = area(stream, scores), len(river[-1].weights)
        scores, row["us"] = scores_of(make() | auc.PairOGD(seed=1), stream)
        row["PairOGD"], row["to"] = area(stream, scores), len(scores)
        row["less"] = row["PairOGD"] - row["LR"]
        yield _timing.judged(row, "less", least=-0.005)


RATES = (0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0)
RADII = (2.0, 8.0, 32.0, None)


def sweep(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each stream and radius; columns are rates."""
    bags: dict[str, Callable[[], Stream]] = dict(_messages.streams())
    for size in (300, 1000, 3000, 10_000):
        bags[f"two classes {size}"] = functools.partial(_messages.two_classes, size)
        bags[f"topics {size}"] = functools.partial(_messages.topics, size)
    for name, records in taken(options):
        yield from _settings(
            name,
            raw(records),
            lambda model: model,
            judged(prepared(linear_model.LogisticRegression()), records),
        )
    for (name, take), (step, make) in itertools.product(bags.items(), STEPS.items()):
        stream = take()
        river = judged(make() | linear_model.LogisticRegression(), stream)
        yield from _settings(f"{name} {step}", stream, lambda model, make=make: make() | model, river)


def _settings(name: str, stream: Stream, behind: Callable[[Any], Any], river: float) -> Iterator[_timing.Row]:
    for radius in RADII:
        row: _timing.Row = {"stream": name, "LR": river, "radius": str(radius)}
        for rate in RATES:
            learner = auc.PairOGD(learning_rate=schedules.AdaGrad(rate), radius=radius, seed=1)
            row[f"{rate:g}"] = judged(behind(learner), stream)
        yield row


COLUMNS: dict[str, list[_timing.Column]] = {
    "tables": [
        *(("table", "table", "<15"), ("n", "n", ">6d"), ("raw", "raw", ">9.4f")),
        *(("pipeline", "pipeline", ">10.4f"), ("LR", "LR", ">9.4f"), ("Forest", "Forest", ">9.4f")),
        ("raw less pipeline", "less", ">19.4f"),
    ],
    "moments": [
        *(("table", "table", "<15"), ("n", "n", ">6d"), ("columns", "columns", ">9.0f")),
        *(("PairOGD", "PairOGD", ">9.4f"), ("us", "PairOGD us", ">8.2f")),
        *(("PairMoments", "PairMoments", ">13.4f"), ("us", "PairMoments us", ">8.2f")),
        ("no half-life", "no half-life", ">14.4f"),
    ],
    "shifts": [
        *(("table", "table", "<15"), ("AUC", "auc", ">8.4f"), ("change", "change", ">11")),
        ("by at most", "value", ">13.2g"),
    ],
    "speed": [
        *(("us a record", "name", "<72"), ("ours", "ours", ">8.2f"), ("theirs", "theirs", ">8.2f")),
        ("ours / theirs", "ratio", ">15.2f"),
    ],
    "memory": [
        *(("names", "names", "<9d"), ("bytes a name", "ours", ">14.0f")),
        ("LogisticRegression", "theirs", ">20.0f"),
    ],
    "texts": [
        *(("messages", "stream", "<14"), ("step", "step", "<11"), ("n", "n", ">6d"), ("to", "to", ">7d")),
        *(("names", "names", ">7d"), ("LR", "LR", ">8.4f"), ("PairOGD", "PairOGD", ">9.4f")),
        *(("less", "less", ">9.4f"), ("LR us", "lr_us", ">8.1f"), ("us", "us", ">8.1f")),
    ],
    "sweep": [
        *(("stream", "stream", "<28"), ("LR", "LR", ">8.4f"), ("radius", "radius", ">8")),
        *((f"{rate:g}", f"{rate:g}", ">9.4f") for rate in RATES),
    ],
}
COLUMNS["names"] = COLUMNS["speed"]
SECTIONS = {
    **{"tables": tables, "moments": moments, "shifts": shifts, "speed": speed, "names": names},
    **{"memory": memory, "texts": texts},
}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """The rows of the sections, with their names."""
    chosen = (
        {"sweep": sweep} if options.sweep else {name: SECTIONS[name] for name in options.section or SECTIONS}
    )
    for name, section in chosen.items():
        for row in section(options):
            yield {"section": name, **row}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table for each section."""
    for number, (name, part) in enumerate(itertools.groupby(rows, lambda row: row["section"])):
        if number:
            yield ""
        yield from _timing.table(COLUMNS[name], part, goals=name not in ("moments", "sweep"))


OPTIONS: dict[str, dict[str, Any]] = {
    "section": {"nargs": "*", "metavar": "SECTION", "help": ", ".join(SECTIONS)},
    "--records": {"type": int, "default": 10_000, "help": "of a table, at most"},
    "--rounds": {"type": int, "default": 9, "help": "of those that take turns"},
    "--before": {"type": Path, "metavar": "CHECKOUT", "help": "whose speed is compared"},
    "--sweep": {"action": "store_true", "help": "AUC by rate and radius"},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
