"""Private synthetic records of dpmm, with LightGBM fitted to them. For `rivals.py`.

The tenth part of epsilon is for the bins of numbers, as in its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from _rival import Task, main
from dpmm.pipelines import AIMPipeline, MSTPipeline


def _frame(task: Task) -> pd.DataFrame:
    numbers = pd.DataFrame(task.numbers, columns=[f"n{j}" for j in range(len(task.number_names))])
    texts = {
        f"t{j}": pd.Categorical(column, categories=levels)
        for j, (column, levels) in enumerate(zip(task.texts.T.tolist(), task.levels(), strict=True))
    }
    return pd.concat([numbers, pd.DataFrame(texts)], axis=1) if texts else numbers


def _of(pipeline: Any) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        frame = _frame(task)
        kept = [c for c in frame if c.startswith("t") or frame[c].nunique() > 1]
        frame = frame[kept]
        domain: dict[str, Any] = {
            c: {"categories": list(frame[c].cat.categories)}
            if c.startswith("t")
            else {"lower": float(frame[c].min()), "upper": float(frame[c].max())}
            for c in frame
        }
        train = frame.iloc[task.train].reset_index(drop=True)
        train["label"] = pd.Categorical(task.labels[task.train].astype(int), categories=[0, 1])
        domain["label"] = {"categories": [0, 1]}
        model = pipeline(epsilon=0.9, proc_epsilon=0.1, delta=1.0 / len(frame), n_jobs=1)
        model.fit(train, domain)
        made = model.generate(n_records=len(train))
        y, rows = made.pop("label").astype(int).to_numpy(), made[kept]
        if len(set(y.tolist())) < 2:
            yield from np.full(len(task.test), 0.5)
            return
        for c in domain.keys() - {"label"}:
            if c.startswith("t"):
                rows[c] = pd.Categorical(rows[c], categories=domain[c]["categories"])
        boosted = lightgbm.LGBMClassifier(n_jobs=1, random_state=seed, verbose=-1).fit(rows, y)
        yield from boosted.predict_proba(frame.iloc[task.test])[:, list(boosted.classes_).index(1)]

    return run


if __name__ == "__main__":
    main({"MST + LightGBM": _of(MSTPipeline), "AIM + LightGBM": _of(AIMPipeline)}, ("dpmm", "lightgbm"))
