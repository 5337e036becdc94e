"""What a private learner keeps of itself: its state, and what it does with one that it is given."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.errors import ConfigError, SnapshotError

if TYPE_CHECKING:
    from streampair.learners.private import PrivateLearner
    from streampair.privacy.noise import NoiseKey
    from streampair.privacy.report import Standing

__all__ = ["exported", "give_key", "named", "noted", "restore", "start_under", "take"]


def named(told: dict[str, object]) -> dict[str, object]:
    """Class and parameters that a state has to agree with: not the key, for a lane may get another one."""
    return {name: value for name, value in told.items() if name != "noise_key"}


def exported(learner: PrivateLearner) -> dict[str, Any]:
    """What `PrivateLearner.to_state` holds."""
    standing, counts = noted(learner), learner._counts
    return {
        **learner._run.to_state(),
        "null_slots": counts.null_slots,
        "ignored_features": counts.ignored_features,
        "refused_records": counts.refused_records,
        "restarts": [standing.clean, standing.unclean],
        "charged": standing.charged,
        "continued": standing.continued,
        "forked": standing.forked,
        "void": list(standing.void_reasons),
        "accepted": list(standing.accepted),
        "entities": None if learner._admission is None else learner._admission.to_state(),
        "y_name": learner._y_name if isinstance(learner._y_name, str) else None,
        "folded": learner._identity.folded,
    }


def noted(learner: PrivateLearner) -> Standing:
    """What is known of a learner's past, with what has happened to its process since."""
    standing = learner._standing
    standing.forked = standing.forked or learner._run.forked
    return standing


def restore(learner: PrivateLearner, saved: Mapping[str, Any]) -> None:
    """Take what `exported` gave; ValueError and the like if it cannot be that."""
    _check(saved)
    if saved["names"] is not None:
        plan = _plan_of(learner, saved)
        run = learner._begin(saved["names"], plan)
        run.load_state(saved)
        warmup, horizon = run.settings.warmup, run.settings.horizon
        if run.rule.steps != max(run.slots - warmup, 0) or (horizon is not None and run.slots > horizon):
            raise ValueError("slots that are not those of the mechanism")
        if run.warmed != (0 < warmup <= run.slots):
            raise ValueError("moments before the warm-up has ended, or none after it")
    elif learner.features is None:
        # Also where a plan says what the features will be: slots wait for the record that names them.
        learner._wait().pending = int(saved["pending"])
    counts, standing = learner._counts, learner._standing
    counts.null_slots = int(saved["null_slots"])
    counts.ignored_features = int(saved["ignored_features"])
    counts.refused_records = int(saved["refused_records"])
    standing.clean, standing.unclean = (int(count) for count in saved["restarts"])
    standing.charged = int(saved["charged"])
    own = standing.void_reasons, standing.accepted
    standing.void_reasons, standing.accepted = [], []
    standing.mark(*(_texts(saved[name]) for name in ("void", "accepted")))
    standing.mark(*own)
    if learner._admission is not None:
        learner._admission.load_state(saved["entities"])
    learner._y_name = saved["y_name"]
    # Nothing was released by a learner without slots, so its copy is simply another new one.
    used = learner.slots > 0
    standing.continued = bool(saved["continued"]) or used
    standing.forked = standing.forked or bool(saved["forked"])
    learner._identity.folded = bytes(saved["folded"])
    learner._identity.chained = saved["chain"]
    if used and learner.noise_key is None:
        # Fresh also where the original's came from a fixed seed.
        learner._identity.seed = None
    learner.__dict__.pop("_root", None)  # a transformer's: it was of another metric


def start_under(learner: PrivateLearner, saved: Mapping[str, Any]) -> None:
    """Begin under a plan; ValueError and the like if it cannot be of this learner."""
    names, numbers = list(saved["names"]), dict(saved["plan"])
    declared = names if learner.features is None else learner.features
    if len(set(names)) != len(names) or set(names) != set(declared):
        raise ValueError("other features")
    learner._begin(names, numbers)
    learner._planned = {"names": names, "plan": numbers}


def _plan_of(learner: PrivateLearner, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan of a state, which is that of this learner if it has one."""
    plan: Mapping[str, Any] = saved["plan"]
    if learner._planned is not None and plan != learner._planned["plan"]:
        raise ValueError("another plan than this learner was given")
    return plan


def take(learner: PrivateLearner, saved: Mapping[str, Any], how: Callable[[Mapping[str, Any]], None]) -> None:
    """Take a state or a plan, or be as before.

    Raises
    ------
    SnapshotError
    """
    before = copy.deepcopy(learner._standing), learner._identity, learner._planned
    try:
        learner._checked_import(saved, how)
    except SnapshotError:
        learner.__init__(**learner._parameters())  # type: ignore[misc]
        learner._standing, identity, learner._planned = before
        learner.bind_noise(identity.name, identity.digests)
        if learner._planned is not None:
            learner._begin(learner._planned["names"], learner._planned["plan"])
        raise


def give_key(learner: PrivateLearner, key: NoiseKey | None) -> None:
    """Give a learner that was unpickled its key again.

    Raises
    ------
    ConfigError
        If it has another one, or was made without.
    """
    own = learner.noise_key
    if own is None or not (own.absent or own == key):
        raise ConfigError(
            "the learner " + ("was made without a noise key" if own is None else "has another noise key"),
            fix="construct it with noise_key=, and load its state",
        )
    if not own.absent:
        return
    learner.noise_key = learner._identity.key = key
    if not learner.slots and learner.run is not None:
        # As new: what its buffer draws is a function of the key.
        learner._begin(learner.run.names, learner.run.written())


def _check(saved: Mapping[str, Any]) -> None:
    """Refuse what no learner can have kept: counts below 0, numbers that are not finite, a name twice."""
    names = ("slots", "pending", "null_slots", "ignored_features", "refused_records", "charged")
    for count in (*(saved[name] for name in names), *saved["restarts"]):
        if type(count) is not int or count < 0:
            raise ValueError(f"a count of {count!r}")
    if not isinstance(saved["forked"], bool):
        raise ValueError("a flag that is neither true nor false")
    if not isinstance(saved["continued"], bool) or not isinstance(saved["standardised"], bool):
        raise ValueError("a flag that is neither true nor false")
    if saved["names"] is not None and len(set(saved["names"])) != len(saved["names"]):
        raise ValueError("a feature twice")
    taken = saved["slots"] + saved["pending"]
    if saved["null_slots"] > taken or saved["refused_records"] > taken:
        raise ValueError("more null slots than slots")
    for name in ("mean", "factor", "sums", "rule"):
        _check_finite(saved[name])


def _check_finite(value: Any, name: str = "") -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_finite(inner, key)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # A label that is NaN makes a null record.
        if np.isinf(value).any() or (name != "labels" and np.isnan(value).any()):
            raise ValueError("numbers that are not finite")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")


def _texts(saved: Any) -> list[str]:
    if not isinstance(saved, list) or not all(isinstance(text, str) for text in saved):
        raise ValueError("reasons that are no texts")
    return saved
