"""Compiles what most tests need, once, before several processes would each compile it at the same time.

cd tests && python -m harness.warm
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import pandas as pd
from streampair_connectors.config import parse_config
from streampair_connectors.worker.factory import warm_up

from harness.learners import LEARNERS, NAMES
from streampair.engine.labels import LabelTable, digest_ids


def learners() -> None:
    """Let every learner learn a few records, one by one and together."""
    rng = random.Random(1)
    for model in LEARNERS:
        learner = model.clone()
        xs = [{name: rng.uniform(-0.5, 0.5) for name in NAMES} for _ in range(130)]
        high = getattr(learner, "positive", True)
        low = not high if isinstance(high, bool) else 0
        ys = [rng.choice((high, low)) if learner.two_classes else rng.choice((0.5, -0.5)) for _ in xs]
        for x, y in zip(xs, ys, strict=True):
            learner.score_one(x)
            learner.learn_one(x, y)
        if hasattr(learner, "predict_proba_many"):
            learner.predict_proba_one(xs[0])
            learner.predict_proba_many(pd.DataFrame(xs))
        if hasattr(learner, "explain_one"):
            learner.explain_one(xs[0])
        if getattr(learner, "explain_rows", None) is not None:
            learner.explain_rows(NAMES, pd.DataFrame(xs)[NAMES].to_numpy(), 3)
        ready = learner.prepare_many(xs, ys)
        if ready is not None:
            ready.take([1], xs[:1])


def lanes() -> None:
    """What comes with a lane: its quality, its regret, its log."""
    options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000, "warmup": 0}
    for kind, parameters in (("PairOGD", {}), ("PairFTRL", options)):
        config = parse_config(
            {
                "app": "warm",
                "input": {"topic": "events", "label": "y", "features": NAMES},
                "learner": {"class": f"streampair.auc.{kind}", "options": parameters},
            }
        )
        warm_up(config)


def labels() -> None:
    """A table of labels."""
    table, ids = LabelTable(after=1, lateness=0), digest_ids([b"a"])
    table.add(ids, [1], [0], 0, [0])
    table.join(ids, [0])


def main() -> None:
    """Everything."""
    warnings.simplefilter("ignore")  # what is learned here is nobody's data
    learners()
    lanes()
    labels()


if __name__ == "__main__":
    main()
