"""LightGBM, fitted anew every 1,000 records to the last 10,000. For `rivals.py`.

A stream of fewer than 5,000 records would end before the fits are worth anything: it has 20 of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import lightgbm
import numpy as np
from _rival import Task, main

EVERY, WINDOW = 1000, 10_000


def _refitted(task: Task, seed: int) -> Iterator[float]:
    codes = [
        np.array([{v: i for i, v in enumerate(levels)}[v] if v else np.nan for v in column], float)
        for column, levels in zip(task.texts.T.tolist(), task.levels(), strict=True)
    ]
    d = len(task.number_names)
    rows = np.concatenate(
        [task.numbers, np.array(codes, float).reshape(len(codes), len(task.labels)).T], axis=1
    )
    y, model = task.labels, None
    every = EVERY if len(y) >= 5000 else len(y) // 20
    for start in range(0, len(y), every):
        if start and len(set(y[max(0, start - WINDOW) : start].tolist())) == 2:
            model = lightgbm.LGBMClassifier(n_jobs=1, random_state=seed, verbose=-1)
            recent = slice(max(0, start - WINDOW), start)
            model.fit(rows[recent], y[recent], categorical_feature=list(range(d, rows.shape[1])))
        batch = rows[start : start + every]
        yield from np.full(len(batch), 0.5) if model is None else model.predict_proba(batch)[:, 1]


if __name__ == "__main__":
    main({"LightGBM, refitted": _refitted}, ("lightgbm",))
