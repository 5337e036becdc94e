"""What each program of `rivals.py` shares: records from a file, one pass over them, and the time it takes.

It runs in environments that have NumPy and a rival, and nothing of ours.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from copy import copy
from importlib.metadata import version
from typing import Any

import numpy as np


class Task:
    """Records in their order, as `rivals.py` wrote them, and what is asked of the learner.

    Attributes
    ----------
    numbers
        Values (n, d) of the features that are numbers; NaN where there is none.
    texts
        Values (n, k) of the features that are texts; the empty text where there is none.
    labels
        0 or 1, (n,).
    train, test
        Places of the records to learn and to score, of a learner that has no stream.

    """

    def __init__(self, path: str) -> None:
        with np.load(path) as data:
            self.numbers, self.texts, self.labels = data["numbers"], data["texts"], data["labels"]
            self.number_names = [str(name) for name in data["number_names"]]
            self.text_names = [str(name) for name in data["text_names"]]
            self.train, self.test = data["train"], data["test"]

    def few(self) -> Task:
        """A task of a hundred records, to load what is compiled."""
        part = copy(self)
        part.numbers, part.texts, part.labels = self.numbers[:100], self.texts[:100], self.labels[:100]
        part.train, part.test = np.arange(80), np.arange(80, 100)
        return part

    def dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each record, without what is missing."""
        records: list[dict[str, Any]] = []
        for numbers, texts in zip(self.numbers.tolist(), self.texts.tolist(), strict=True):
            x = {name: v for name, v in zip(self.number_names, numbers, strict=True) if v == v}
            records.append(x | {name: v for name, v in zip(self.text_names, texts, strict=True) if v})
        return records

    def levels(self) -> list[list[str]]:
        """The values of each text, which are public."""
        return [sorted(set(column.tolist())) for column in self.texts.T]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and largest value of each number, which are public."""
        return np.nanmin(self.numbers, axis=0), np.nanmax(self.numbers, axis=0)

    def columns(self) -> np.ndarray:
        """Numbers between 0 and 1 by their public bounds, and a column of 0 or 1 for each value of a text."""
        low, high = self.bounds() if len(self.number_names) else (np.zeros(0), np.zeros(0))
        numbers = (self.numbers - low) / np.where(high > low, high - low, 1.0)
        ones = [
            self.texts[:, j : j + 1] == np.array(levels)[None, :] for j, levels in enumerate(self.levels())
        ]
        return np.concatenate([np.nan_to_num(numbers), *ones], axis=1).astype(float)


def seconds() -> float:
    """User and system time of this process, all of its threads, and of its children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def one_pass(
    records: list[dict[str, Any]], labels: np.ndarray, model: Any, encoded: Callable[[Any], Any]
) -> Iterator[float]:
    """The score of each record before River's learner learns it."""
    for x, y in zip(records, labels.astype(bool).tolist(), strict=True):
        columns = encoded(x)
        yield model.predict_proba_one(columns).get(True, 0.0)
        model.learn_one(columns, y)


def main(
    learners: dict[str, Callable[[Task, int], Iterator[float]]],
    packages: tuple[str, ...],
    *,
    warm: bool = False,
) -> None:
    """`PROGRAM LEARNER RECORDS.npz SCORES.npy SEED`: scores go to the file, seconds to the standard output.

    With ``warm`` another model learns a few records first: kernels that Numba compiled are loaded at their
    first call, where other libraries load theirs when they are imported.
    """
    name, records, scores, seed = sys.argv[1:]
    task = Task(records)
    if warm:
        list(learners[name](task.few(), int(seed)))
    start = seconds()
    found = np.fromiter(learners[name](task, int(seed)), float)
    spent = seconds() - start
    np.save(scores, found)
    print(json.dumps({"seconds": spent, "versions": {each: version(each) for each in packages}}))
