"""Learn from pairs, online, from event streams, under differential privacy.

    auc             learners that rank positives above negatives: PairOGD, and PairFTRL with a guarantee
    ranking         the same for real-valued relevance
    metric          learners of distances, for the steps that follow in a pipeline
    models          models as files: export a fitted learner, save, load, score
    history         a private model from sums over a table of any size, on any engine
    offline         learners of a whole table, with scikit-learn's interface (the extra `offline`)
    sklearn         online learners with scikit-learn's interface (the extra `offline`)
    losses          pair losses and the constants that privacy needs of them
    buffers         which past records a new one is paired with
    schedules       sizes of the steps of gradient descent
    preprocessing   scaling, random features and hashing that are safe in front of a private learner
    evaluation      rolling AUC and regret
    privacy         accounting, plans, reports and audits
    plots           ROC, calibration, weights, regret and more from any loop, with matplotlib
    errors          every error that this package raises

Examples
--------
>>> from streampair import auc
>>> model = auc.PairOGD()
>>> model.learn_one({"amount": 3.0}, True)
>>> model.learn_one({"amount": 1.0}, False)
>>> round(model.predict_proba_one({"amount": 2.0})[True], 2)
0.5
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streampair import (
        auc,
        buffers,
        evaluation,
        history,
        losses,
        metric,
        models,
        offline,
        plots,
        preprocessing,
        privacy,
        ranking,
        schedules,
        sklearn,
    )

__version__ = _version("streampair")

__all__ = [
    "auc",
    "buffers",
    "evaluation",
    "history",
    "losses",
    "metric",
    "models",
    "offline",
    "plots",
    "preprocessing",
    "privacy",
    "ranking",
    "schedules",
    "sklearn",
]


def __getattr__(name: str) -> Any:
    # On first use: whoever needs only the errors, or a command's help, does not wait for the compiler.
    if name in __all__:
        return importlib.import_module(f"streampair.{name}")
    raise AttributeError(f"module 'streampair' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
