"""DP-EBM (Nori et al. 2021) with its defaults. For `private_budgets.py --dpebm PYTHON`.

    PYTHON benchmarks/_dpebm.py DATA.npz PROBABILITIES.npy DELTA EPSILON ...

In an environment of its own, `pip install interpret-core`: its numpy and pandas need not be ours. DATA.npz
has `rows` (n, d) and `labels` (n,) of 0 and 1 to train on, and `test` (m, d); `low` and `high` (d,): the
public bounds of numbers; `nominal` (d,): which columns are numbers of categories. Prints the version, and for
each epsilon the seconds of the processor; the probabilities are (epsilons, m).
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier


def main(data_path: str, out_path: str, delta: str, *epsilons: str) -> None:
    data = np.load(data_path)
    found, seconds = [], []
    for epsilon in epsilons:
        model = DPExplainableBoostingClassifier(
            feature_types=["nominal" if nominal else "continuous" for nominal in data["nominal"]],
            privacy_bounds=np.stack((data["low"], data["high"]), axis=1),
            epsilon=float(epsilon),
            delta=float(delta),
        )
        start = time.process_time()
        model.fit(data["rows"], data["labels"])
        seconds.append(time.process_time() - start)
        found.append(model.predict_proba(data["test"])[:, 1])
    print(version("interpret-core"), *seconds)
    np.save(out_path, np.array(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
