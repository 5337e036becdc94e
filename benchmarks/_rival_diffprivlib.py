"""Learners of diffprivlib on a split. For `rivals.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _rival import Task, main
from diffprivlib import models


def _of(make: Callable[[Task, np.ndarray], Any]) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        rows = task.columns()
        model = make(task, rows).fit(rows[task.train], task.labels[task.train])
        yield from model.predict_proba(rows[task.test])[:, list(model.classes_).index(1)]

    return run


def _linear(task: Task, rows: np.ndarray) -> Any:
    # Each number is at most 1, and a text has one column that is 1.
    norm = (len(task.number_names) + len(task.text_names)) ** 0.5
    return models.LogisticRegression(epsilon=1.0, data_norm=norm, max_iter=1000)


def _bayes(task: Task, rows: np.ndarray) -> Any:
    return models.GaussianNB(epsilon=1.0, bounds=(0.0, 1.0))


def _forest(task: Task, rows: np.ndarray) -> Any:
    return models.RandomForestClassifier(epsilon=1.0, bounds=(0.0, 1.0), classes=[0, 1], n_jobs=1)


if __name__ == "__main__":
    main(
        {"LogisticRegression": _of(_linear), "GaussianNB": _of(_bayes), "RandomForest": _of(_forest)},
        ("diffprivlib", "scikit-learn"),
    )
