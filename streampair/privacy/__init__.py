"""Differential privacy: budgets, plans, reports, audits and mechanism options (docs/privacy).

Only the names listed here are public. Sensitivities, noise and accounting are in the modules of this package,
the mechanisms in `privacy.mechanisms`.
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

# These modules import the learners, which import this package: they are imported on first use.
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
