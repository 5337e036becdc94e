"""Compile the kernels of all learners, for an image: python -m streampair_connectors.worker.compiling

Numba caches them next to the source, or in `NUMBA_CACHE_DIR`. Later processes load them from there, even if
they cannot write to it.
"""

from __future__ import annotations

import sys
from typing import Any

from streampair_connectors.config import Config, parse_config
from streampair_connectors.worker.factory import warm_up

__all__ = ["CONFIGS", "compile_all", "config_of"]

_BUDGET = {"epsilon": 1.0, "delta": 1e-6}
_ENDING = {**_BUDGET, "horizon": 2000}
_GRADIENTS = {"mechanism": {"class": "streampair.privacy.PairGradients"}}
_NUMBERS = {"labels": "any"}

#: For each learner that a lane accepts: class, options, and keys of its [input] in addition to the features.
CONFIGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("streampair.auc.PairOGD", {}, {}),
    ("streampair.auc.PairOGD", {"buffer": {"class": "streampair.buffers.FullHistory"}}, {}),
    ("streampair.auc.OAM", {}, {}),
    ("streampair.auc.SPAUC", {}, {}),
    ("streampair.auc.Forest", {}, {}),
    ("streampair.auc.MulticlassForest", {}, {}),
    ("streampair.auc.PairFTRL", _BUDGET, {}),
    ("streampair.auc.PairFTRL", _ENDING, {}),
    ("streampair.auc.PairFTRL", {**_BUDGET, **_GRADIENTS}, {}),
    ("streampair.auc.PairFTRL", {**_ENDING, **_GRADIENTS}, {}),
    ("streampair.auc.PrivateForest", _ENDING, {}),
    ("streampair.auc.NoisyOGD", _ENDING, {}),
    ("streampair.auc.OnPairC", _ENDING, {}),
    ("streampair.auc.OnPairStrC", {**_ENDING, "l2": 0.1}, {}),
    ("streampair.ranking.PairOGD", {}, _NUMBERS),
    ("streampair.ranking.Forest", {}, _NUMBERS),
    ("streampair.ranking.PairFTRL", _ENDING, _NUMBERS),
    ("streampair.ranking.NoisyOGD", _ENDING, _NUMBERS),
    ("streampair.ranking.OnPairC", _ENDING, _NUMBERS),
    ("streampair.ranking.OnPairStrC", {**_ENDING, "l2": 0.1}, _NUMBERS),
    ("streampair.metric.PairOGD", {}, {}),
    ("streampair.metric.PairFTRL", _ENDING, {}),
    ("streampair.metric.NoisyOGD", _ENDING, {}),
    ("streampair.metric.OnPairC", _ENDING, {}),
    ("streampair.metric.OnPairStrC", {**_ENDING, "l2": 0.1}, {}),
]
_FEATURES = {name: [0, 1] for name in "abcdefgh"}


def config_of(path: str, options: dict[str, Any], more: dict[str, Any]) -> Config:
    """The configuration of a lane with this learner."""
    return parse_config(
        {
            "app": "compile",
            "input": {"topic": "events", "label": "y", "features": _FEATURES, **more},
            "learner": {"class": path, "options": options},
        }
    )


def compile_all() -> None:
    """Compile the kernels of each learner in `CONFIGS`."""
    for path, options, more in CONFIGS:
        print(f"{path} {options or ''}", file=sys.stderr, flush=True)
        warm_up(config_of(path, options, more))


if __name__ == "__main__":
    compile_all()
