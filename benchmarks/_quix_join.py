"""Quix Streams' join of events and labels with River's LogisticRegression: prints events per second.

    PYTHON benchmarks/_quix_join.py BOOTSTRAP EVENTS LABELS OUTPUT COUNT

For `late_labels.py --quix PYTHON`. In an environment of its own, `pip install quixstreams river`: it wants an
older confluent-kafka than ours. Both topics have the same keys and partitions, as the join needs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import _quix
from river import linear_model


def main(bootstrap: str, events: str, labels: str, output: str, count: int) -> None:
    model, times, learned = linear_model.LogisticRegression(), [0.0], [0]
    with tempfile.TemporaryDirectory() as directory:
        app = _quix.application(bootstrap, state_dir=directory)

        def score(x: dict[str, Any]) -> dict[str, Any]:
            times[0] = times[0] or time.perf_counter()
            return {"x": x, "score": model.predict_proba_one(x)[True]}

        def learn(row: dict[str, Any]) -> None:
            model.learn_one(row["x"], row["y"])
            learned[0] += 1
            if learned[0] == count:
                print(count / (time.perf_counter() - times[0]), flush=True)
                app.stop()

        scored = app.dataframe(app.topic(events, value_deserializer="json")).apply(score)
        scored.apply(lambda row: {"score": row["score"]}).to_topic(app.topic(output, value_serializer="json"))
        rows = app.dataframe(app.topic(labels, value_deserializer="json"))
        rows.join_asof(scored, how="inner", grace_ms=3_600_000).update(learn)
        app.run()


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
