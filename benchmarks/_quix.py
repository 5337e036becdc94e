"""Quix Streams with River's LogisticRegression: prints events per second. For `worker.py --quix PYTHON`.

    PYTHON benchmarks/_quix.py BOOTSTRAP TOPIC OUTPUT COUNT

In an environment of its own, `pip install quixstreams river`: it wants an older confluent-kafka than ours.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import quixstreams
from river import linear_model


def application(bootstrap: str, **options: Any) -> quixstreams.Application:
    """An application that reads its topics from their begin."""
    return quixstreams.Application(
        bootstrap,
        consumer_group=f"quix-{time.time_ns()}",
        auto_offset_reset="earliest",
        commit_every=10_000,
        loglevel=None,
        **options,
    )


def main(bootstrap: str, topic: str, output: str, count: int) -> None:
    model, times = linear_model.LogisticRegression(), [0.0]
    app = application(bootstrap)

    def take(x: dict[str, Any]) -> dict[str, Any]:
        times[0] = times[0] or time.perf_counter()
        y = x.pop("y")
        score = model.predict_proba_one(x)[True]
        model.learn_one(x, y)
        return {"score": score}

    rows = app.dataframe(app.topic(topic, value_deserializer="json"))
    rows.apply(take).to_topic(app.topic(output, value_serializer="json"))
    app.run(count=count)
    print(count / (time.perf_counter() - times[0]))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
