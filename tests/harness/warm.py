"""Compiles what most tests need, once, before several processes would each compile it at the same time.

cd tests && python -m harness.warm
"""

from __future__ import annotations

import random

from harness.learners import LEARNERS, NAMES
from streampair.engine.protocols import ready_many, two_classes


def main() -> None:
    """Let every learner learn a few records, one by one and together."""
    rng = random.Random(1)
    for model in LEARNERS:
        learner = model.clone()
        xs = [{name: rng.uniform(-0.5, 0.5) for name in NAMES} for _ in range(130)]
        high = getattr(learner, "positive", True)
        low = not high if isinstance(high, bool) else 0
        ys = [rng.choice((high, low)) if two_classes(learner) else rng.choice((0.5, -0.5)) for _ in xs]
        for x, y in zip(xs, ys, strict=True):
            learner.score_one(x)
            learner.learn_one(x, y)
        together = ready_many(learner)
        ready = None if together is None else together(xs, ys)
        if ready is not None:
            ready.take([1], xs[:1])


if __name__ == "__main__":
    main()
