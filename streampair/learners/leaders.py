"""PairFTRL of a family that learned by gradients alone at first, and goes on with what was begun then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from streampair.learners.private import PrivateLearner
from streampair.privacy.mechanisms.moments import Moments

__all__ = ["LeaderLearner"]

_AUTO = repr("auto")


@dataclass(eq=False, repr=False)
class LeaderLearner(PrivateLearner):
    """A private leader by moments or on gradients, as its `solver` says.

    What was saved before there was a `solver` is of gradients. It goes on with them, under its own plan and
    the noise of its own chain, where the solver is "auto"; and what "auto" makes a learner of gradients of is
    told as it was then.
    """

    _: KW_ONLY
    strategy: str = "auto"
    solver: str = "auto"

    def _fingerprint(self) -> dict[str, object]:
        told = super()._fingerprint()
        if told["solver"] == _AUTO and not isinstance(self.settings.mechanism, Moments):
            del told["solver"]
        return told

    def _check_fingerprint(self, state: Mapping[str, Any]) -> None:
        saved = state.get("params")
        if self.solver == "auto" and isinstance(saved, Mapping):
            told = saved.get("solver")
            if told == _AUTO or (told is None and not _of_moments(state)):
                saved = {name: value for name, value in saved.items() if name != "solver"}
                if "solver" in self._fingerprint():
                    saved["solver"] = _AUTO
                state = {**state, "params": saved}
        super()._check_fingerprint(state)


def _of_moments(state: Mapping[str, Any]) -> bool:
    """Whether a state, or a plan, says that it is of moments: those have always named their solver."""
    plan = state.get("plan")
    rule = plan.get("rule") if isinstance(plan, Mapping) else None
    return isinstance(rule, Mapping) and "strategy" not in rule
