"""What the tests of the engine share: models, a stream with labels and ties, and ways to make lanes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

from river import compose, linear_model, preprocessing

from streampair import auc, losses, metric, ranking
from streampair.engine import Monitoring, RegretConfig, Saving
from streampair.engine.snapshot import pack, unpack
from streampair.preprocessing import Bounds, UnitBall

KEY = b"a key for tests only, 32 bytes.."

Row = tuple[dict[str, float], bool]


def stream(n: int, seed: int = 0, names: str = "abc") -> list[Row]:
    """Labelled events, three quarters negative, that a linear scorer ranks well but not perfectly."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        y = rng.random() < 0.25
        x = {name: round(rng.gauss(0.5 * y * (i + 1), 1.0) / 3, 2) for i, name in enumerate(names)}
        rows.append((x, y))
    return rows


def pair_ogd() -> Any:
    return auc.PairOGD(seed=3)


def pair_ftrl() -> Any:
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=40, features=list("abc"), seed=3)


MODELS: dict[str, Callable[[], Any]] = {
    "PairOGD": pair_ogd,
    "ranking.PairOGD": lambda: ranking.PairOGD(losses.MinimumErrorEntropy(), seed=3),
    "metric.PairOGD": lambda: metric.PairOGD(seed=3),
    "metric.PairOGD|LogisticRegression": lambda: metric.PairOGD(seed=3) | linear_model.LogisticRegression(),
    "LogisticRegression": linear_model.LogisticRegression,
    "Bounds|UnitBall|PairOGD": lambda: Bounds({"a": (-1, 1)}) | UnitBall() | pair_ogd(),
    "StandardScaler|LogisticRegression": lambda: (
        preprocessing.StandardScaler() | linear_model.LogisticRegression()
    ),
    "union|PairOGD": lambda: (
        (preprocessing.StandardScaler() + (compose.Select("a") | preprocessing.MinMaxScaler())) | pair_ogd()
    ),
}

#: Allows pickle.
SAVING = Saving(allow_pickle=True, signing_keys=[KEY])

#: Enough for any model of `MODELS`, with everything switched on that a snapshot can hold.
OPTIONS: dict[str, Any] = {
    "saving": SAVING,
    "monitoring": Monitoring(regret=RegretConfig(pairs=16, exact=4), auc_window=7, drift_reference=1000),
}


def options(name: str) -> dict[str, Any]:
    """`OPTIONS`, without what the model cannot have."""
    alone = name in ("ranking.PairOGD", "metric.PairOGD")
    return {**OPTIONS, "monitoring": Monitoring(auc_window=7, drift_reference=1000)} if alone else OPTIONS


def content(snapshot: bytes) -> Any:
    """What a snapshot holds, so that two can be compared: all but how long the log is, which counts attempts.

    For our own learners that is the bytes themselves. The bytes of a pickle also tell which strings are one
    object, so pickled steps are compared by their parts.
    """
    body = unpack(snapshot, signing_keys=[KEY])
    del body["ledger"]
    if not any(step["kind"] == "pickle" for step in body["steps"]):
        return pack(body)
    for step in body["steps"]:
        if step["kind"] == "pickle":
            step["data"] = parts(pickle.loads(step["data"]))
    return repr(body)


def parts(value: Any) -> Any:
    """Nested tuples of everything that an object would be pickled from."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, type) or callable(value):
        return repr(value)
    if isinstance(value, dict):
        return {parts(k): parts(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [parts(v) for v in value]
    _, *rest = value.__reduce_ex__(4)
    return [type(value).__name__, *(parts(list(r) if hasattr(r, "__next__") else r) for r in rest)]
