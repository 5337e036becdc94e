"""What a privacy officer or a researcher calls: budgets, plans, reports, audits (docs/privacy).

The mathematics behind them is in the modules of this package, and the mechanisms in `privacy.mechanisms`;
names that are not listed here are imported from there, and may move.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streampair.privacy.accounting import (
    PrivacyReport,
    Spend,
    compose,
    delta_from,
    epsilon_from,
    epsilon_from_rho,
    mu_from,
    rho_from,
)
from streampair.privacy.ledger import Ledger, Line
from streampair.privacy.mechanism_options import (
    AnchorGradients,
    DecayedMoments,
    PairGradients,
    SecondMoments,
)
from streampair.privacy.noise import ChainedNoise, NoiseKey
from streampair.privacy.pipeline_check import check_pipeline, pipeline_report
from streampair.privacy.provenance import Origin
from streampair.privacy.sensitivity import Influence
from streampair.privacy.user_level import EntityLimit

if TYPE_CHECKING:
    from streampair.assurance.audit import AuditPart, AuditReport, audit
    from streampair.assurance.planner import Forecast, PrivacyPlan, plan

__all__ = [
    "AnchorGradients",
    "AuditPart",
    "AuditReport",
    "ChainedNoise",
    "DecayedMoments",
    "EntityLimit",
    "Forecast",
    "Influence",
    "Ledger",
    "Line",
    "NoiseKey",
    "Origin",
    "PairGradients",
    "PrivacyPlan",
    "PrivacyReport",
    "SecondMoments",
    "Spend",
    "audit",
    "check_pipeline",
    "compose",
    "delta_from",
    "epsilon_from",
    "epsilon_from_rho",
    "mu_from",
    "pipeline_report",
    "plan",
    "rho_from",
]

# Above the learners, so they come when they are asked for.
_ABOVE = {
    "AuditPart": "assurance.audit",
    "AuditReport": "assurance.audit",
    "Forecast": "assurance.planner",
    "PrivacyPlan": "assurance.planner",
    "audit": "assurance.audit",
    "plan": "assurance.planner",
}


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(importlib.import_module(f"streampair.{_ABOVE[name]}"), name)
    raise AttributeError(f"module 'streampair.privacy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
