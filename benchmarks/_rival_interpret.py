"""DP-EBM of interpret-core on a split. For `rivals.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from _rival import Task, main
from interpret.privacy import DPExplainableBoostingClassifier


def _boosted(task: Task, seed: int) -> Iterator[float]:
    names = [*task.number_names, *task.text_names]
    low, high = task.bounds() if task.number_names else (np.zeros(0), np.zeros(0))
    moves = [high[j] > low[j] for j in range(len(task.number_names))] + [True] * len(task.text_names)
    frame = pd.concat(
        [
            pd.DataFrame(task.numbers, columns=task.number_names),
            pd.DataFrame(task.texts, columns=task.text_names),
        ],
        axis=1,
    )[[name for name, kept in zip(names, moves, strict=True) if kept]]
    model = DPExplainableBoostingClassifier(
        feature_types=["continuous" if name in task.number_names else "nominal" for name in frame],
        privacy_bounds={
            name: (float(low[j]), float(high[j])) for j, name in enumerate(task.number_names) if moves[j]
        },
        epsilon=1.0,
        delta=1.0 / len(frame),
        n_jobs=1,
        # Noise must not be known from a seed: it is drawn from the system's source.
        random_state=None,
    )
    model.fit(frame.iloc[task.train], task.labels[task.train])
    yield from model.predict_proba(frame.iloc[task.test])[:, 1]


if __name__ == "__main__":
    main({"DP-EBM": _boosted}, ("interpret-core",))
