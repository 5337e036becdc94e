"""CapyMOA's adaptive random forest over one pass of an array. For `forest.py --capymoa PYTHON`.

    PYTHON benchmarks/_capymoa.py ROWS.npz SCORES.npy

In an environment of its own, `pip install capymoa`: it runs MOA in a Java virtual machine, and wants an older
pandas than ours may be. ROWS.npz has `rows` (n, d) and `labels` (n,) of 0 and 1. Prints the microseconds of
the processor a record, the machine's own threads among them; the scores go to the other file.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from capymoa.classifier import AdaptiveRandomForestClassifier
from capymoa.stream import NumpyStream


def main(rows_path: str, scores_path: str) -> None:
    data = np.load(rows_path)
    stream = NumpyStream(data["rows"], data["labels"], target_type="categorical")
    model = AdaptiveRandomForestClassifier(schema=stream.get_schema(), ensemble_size=10, random_seed=1)
    scores, start = [], time.process_time()
    while stream.has_more_instances():
        instance = stream.next_instance()
        found = model.predict_proba(instance)
        scores.append(0.0 if found is None or len(found) < 2 else float(found[1]))
        model.train(instance)
    print((time.process_time() - start) / len(scores) * 1e6)
    np.save(scores_path, np.array(scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
