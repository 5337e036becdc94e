"""Our learners, by their names in `streampair.auc`, with their defaults, but that PairOGD gets scaled
numbers, as its rivals do. For `rivals.py`.

Those without privacy take one pass of a stream, as dictionaries; private ones take `train` in one pass, with
the public bounds and values that the rivals get, a declared horizon, and their standard relation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from _rival import Task, main, one_pass
from river import preprocessing

from streampair import auc


def _online(name: str) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        scaler = preprocessing.StandardScaler()
        drawn = {} if name == "PairMoments" else {"seed": seed}
        more = {"scale": None} if name == "PairOGD" else {}
        model = getattr(auc, name)(**drawn, **more)

        def encoded(x: dict[str, Any]) -> dict[str, Any]:
            if name != "PairOGD":
                return x
            numbers = {k: v for k, v in x.items() if not isinstance(v, str)}
            scaler.learn_one(numbers)
            ones = {f"{k}={v}": 1.0 for k, v in x.items() if isinstance(v, str)}
            return {**scaler.transform_one(numbers), **ones}

        yield from one_pass(task.dicts(), task.labels, model, encoded)

    return run


def _private(name: str) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        texts = zip(task.text_names, task.levels(), strict=True)
        # By these names, those of `preprocessing.OneHot`, PrivateForest knows the columns of one text.
        ones = [f"{text}={level}" for text, levels in texts for level in levels]
        frame = pd.DataFrame(task.columns(), columns=[*task.number_names, *ones])
        bounds = {c: (float(frame[c].min()), float(frame[c].max())) for c in frame if frame[c].nunique() > 1}
        model = getattr(auc, name)(
            epsilon=1.0,
            delta=1.0 / len(frame),
            features=list(frame.columns),
            bounds=bounds,
            horizon=len(task.train),
        )
        model.learn_many(frame.iloc[task.train], pd.Series(task.labels[task.train].astype(bool)))
        if model.privacy.kind != "holds" or model.privacy.epsilon_spent > 1.0 + 1e-9:
            raise AssertionError(str(model.privacy))
        yield from np.asarray(model.predict_proba_many(frame.iloc[task.test]))[:, 1]

    return run


if __name__ == "__main__":
    main(
        {name: _online(name) for name in ("PairOGD", "PairMoments", "Forest")}
        | {name: _private(name) for name in ("PairFTRL", "PrivateForest")},
        ("river", "numba"),
        warm=True,
    )
