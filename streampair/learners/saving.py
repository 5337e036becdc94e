"""What a private learner keeps of itself: its state, and what it does with one that it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from streampair.errors import SnapshotError

if TYPE_CHECKING:
    from streampair.learners.private import PrivateLearner

__all__ = ["exported", "restore", "take"]


def exported(learner: PrivateLearner) -> dict[str, Any]:
    """What `PrivateLearner.to_state` holds."""
    standing, counts = learner._standing, learner._counts
    return {
        **learner._run.to_state(),
        "null_slots": counts.null_slots,
        "ignored_features": counts.ignored_features,
        "refused_records": counts.refused_records,
        "restarts": [standing.clean, standing.unclean],
        "charged": standing.charged,
        "continued": standing.continued,
        "void": list(standing.void_reasons),
        "accepted": list(standing.accepted),
        "entities": None if learner._admission is None else learner._admission.to_state(),
        "y_name": learner._y_name if isinstance(learner._y_name, str) else None,
        "folded": learner._identity.folded,
    }


def restore(learner: PrivateLearner, saved: Mapping[str, Any]) -> None:
    """Take what `exported` gave; ValueError and the like if it cannot be that."""
    if saved["names"] is not None:
        plan = _plan_of(learner, saved)
        strategy = saved["rule"].get("strategy") if plan is None else None
        learner._begin(saved["names"], plan, strategy).load_state(saved)
    elif learner.features is None:
        # Also where a plan says what the features will be: slots wait for the record that names them.
        learner._wait().pending = int(saved["pending"])
    counts, standing = learner._counts, learner._standing
    counts.null_slots = int(saved["null_slots"])
    counts.ignored_features = int(saved["ignored_features"])
    counts.refused_records = int(saved["refused_records"])
    standing.clean, standing.unclean = (int(count) for count in saved["restarts"])
    standing.charged = int(saved["charged"])
    # States of 0.1 have neither.
    own = standing.void_reasons, standing.accepted
    standing.void_reasons, standing.accepted = [], []
    standing.mark(*(_texts(saved.get(name, [])) for name in ("void", "accepted")))
    standing.mark(*own)
    if learner._admission is not None:
        learner._admission.load_state(saved["entities"])
    learner._y_name = saved["y_name"]
    # Nothing was released by a learner without slots, so its copy is simply another new one.
    used = learner.slots > 0
    standing.continued = bool(saved["continued"]) or used
    learner._identity.folded = bytes(saved["folded"])
    learner._identity.chained = saved["chain"]
    if used and learner.noise_key is None:
        # Fresh also where the original's came from a fixed seed.
        learner._identity.seed = None
    learner.__dict__.pop("_root", None)  # a transformer's: it was of another metric


def _plan_of(learner: PrivateLearner, saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The plan of a state; one of 0.1 has none, and goes on under that of this learner."""
    known = None if learner._planned is None else learner._planned["plan"]
    plan: Mapping[str, Any] | None = saved.get("plan", known)
    if "plan" in saved and (plan is None or (known is not None and plan != known)):
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


def _texts(saved: Any) -> list[str]:
    if not isinstance(saved, list) or not all(isinstance(text, str) for text in saved):
        raise ValueError("reasons that are no texts")
    return saved
