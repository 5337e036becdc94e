"""One of the programs that take turns in `raw_records.py`: it measures what each line asks for.

`PYTHONPATH` says whose packages it runs. A line of the standard input is a JSON list: the name of a function
here, then its arguments. The answer is a number on a line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from river import datasets, linear_model, preprocessing

import streampair
from streampair import auc, errors

EACH = 30
_kept: dict[Any, Any] = {}


def _records() -> list[tuple[dict[str, float], bool]]:
    """Phishing, nine numbers; each record is a dict of its own."""
    if "records" not in _kept:
        _kept["records"] = [(dict(x), bool(y)) for x, y in datasets.Phishing()]
    return _kept["records"]


def _new(name: str) -> Any:
    return linear_model.LogisticRegression() if name == "LogisticRegression" else getattr(auc, name)(seed=1)


def _model(name: str, takes: str) -> Any:
    """The learner that takes dicts or arrays, the same at each turn."""
    key = (name, takes)
    if key not in _kept:
        _kept[key] = _new(name)
    return _kept[key]


def dicts(name: str) -> float:
    """Seconds to score and learn a record."""
    model, records = _model(name, "dicts"), _records()
    predict = model.score_one if name == "PairOGD" else model.predict_proba_one
    start = time.process_time()
    for _ in range(10):
        for x, y in records:
            predict(x)
            model.learn_one(x, y)
    return (time.process_time() - start) / (10 * len(records))


def arrays(name: str) -> float:
    """Seconds to score and learn a row of an array."""
    model, records = _model(name, "arrays"), _records()
    X, y = np.array([list(x.values()) for x, _ in records]), np.array([y for _, y in records])
    start = time.process_time()
    for _ in range(30):
        model.score_many(X)
        model.learn_many(X, y)
    return (time.process_time() - start) / (30 * len(records))


def bags(count: int, records: int, seed: int) -> Iterator[tuple[dict[str, float], bool]]:
    """Records of 30 words of a vocabulary of `count`, with a label by coin."""
    coin = random.Random(seed)
    if count not in _kept:
        _kept[count] = [f"word{i}" for i in range(count)]
    names = _kept[count]
    for _ in range(records):
        yield {names[coin.randrange(count)]: 1.0 for _ in range(EACH)}, coin.random() < 0.5


def knowing(name: str, count: int, hashed: int = 0) -> Any:
    """A learner that has seen each of `count` names."""
    model = _new(name)
    if hashed:
        model = preprocessing.FeatureHasher(hashed) | model
    for i in range(0, count, EACH):
        model.learn_one({f"word{j}": 1.0 for j in range(i, min(i + EACH, count))}, i % 2 == 0)
    for x, y in bags(count, 600, 1):
        model.predict_proba_one(x)
        model.learn_one(x, y)
    return model


def names(name: str, count: int, hashed: int = 0) -> float:
    """Seconds to predict and learn a record of 30 names, of a learner that knows all of them."""
    key = (name, count, hashed)
    if key not in _kept:
        _kept[key] = knowing(*key)
    model, records = _kept[key], list(bags(count, 300, 2))
    start = time.process_time()
    for x, y in records:
        model.predict_proba_one(x)
        model.learn_one(x, y)
    return (time.process_time() - start) / len(records)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def memory(name: str, count: int) -> float:
    """Bytes of a learner that knows so many names, the names themselves left out; once in a process."""
    model = _new(name)
    for x, y in bags(count, 100, 1):
        model.predict_proba_one(x)  # all that is loaded or compiled
        model.learn_one(x, y)
    known = _kept[count]
    before = _resident()
    for i in range(0, count, EACH):
        model.learn_one(dict.fromkeys(known[i : i + EACH], 1.0), i % 2 == 0)
    return float(_resident() - before)


def where() -> str:
    """Where the packages are."""
    return str(streampair.__file__)


def main() -> None:
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        try:
            answer: Any = globals()[function](*arguments)
        except errors.RecordError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
