"""Sensitivities, noise and accounting of the private learners (PRIVACY.md)."""

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
from streampair.privacy.audit import AuditPart, AuditReport, audit
from streampair.privacy.correlated import BLT, Toeplitz, fit_blt, square_root_coefficients
from streampair.privacy.entities import Admission, EntityLimit, EntitySpend, entity_pattern
from streampair.privacy.ledger import Journal, Ledger, Line
from streampair.privacy.noise import BLTNoise, ChainedNoise, NoiseKey, NormalStream, ToeplitzNoise
from streampair.privacy.output import (
    giga_steps,
    output_sensitivities,
    output_spend,
    paper_steps,
    paper_warmup,
)
from streampair.privacy.pipeline import check_pipeline
from streampair.privacy.plan import FTRLPlan, MomentsPlan, plan_ftrl, plan_moments
from streampair.privacy.plan_descent import (
    NoisyPlan,
    OutputPlan,
    plan_noisy,
    plan_output,
    plan_output_paper,
)
from streampair.privacy.plan_leader import LeaderPlan, leader_diameter, plan_leader
from streampair.privacy.planner import Forecast, PrivacyPlan, plan
from streampair.privacy.sensitivity import (
    Influence,
    fifo_pattern,
    grid_step,
    moment_sensitivity,
    pattern_sensitivity,
    window_sensitivity,
)

__all__ = [  # noqa: RUF022 (plain sorting, as everywhere)
    "Admission",
    "AuditPart",
    "AuditReport",
    "BLT",
    "BLTNoise",
    "ChainedNoise",
    "EntityLimit",
    "EntitySpend",
    "FTRLPlan",
    "Forecast",
    "Influence",
    "Journal",
    "LeaderPlan",
    "Ledger",
    "Line",
    "MomentsPlan",
    "NoiseKey",
    "NoisyPlan",
    "NormalStream",
    "OutputPlan",
    "PrivacyPlan",
    "PrivacyReport",
    "Spend",
    "Toeplitz",
    "ToeplitzNoise",
    "audit",
    "check_pipeline",
    "compose",
    "delta_from",
    "entity_pattern",
    "epsilon_from",
    "epsilon_from_rho",
    "fifo_pattern",
    "fit_blt",
    "giga_steps",
    "grid_step",
    "leader_diameter",
    "moment_sensitivity",
    "mu_from",
    "output_sensitivities",
    "output_spend",
    "paper_steps",
    "paper_warmup",
    "pattern_sensitivity",
    "plan",
    "plan_ftrl",
    "plan_leader",
    "plan_moments",
    "plan_noisy",
    "plan_output",
    "plan_output_paper",
    "rho_from",
    "square_root_coefficients",
    "window_sensitivity",
]
