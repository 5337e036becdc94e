"""Sensitivities, noise and accounting of the private learners (PRIVACY.md)."""

from streampair.privacy.accounting import PrivacyReport, compose, delta_from, epsilon_from, mu_from
from streampair.privacy.correlated import BLT, Toeplitz, fit_blt, square_root_coefficients
from streampair.privacy.noise import BLTNoise, NormalStream, ToeplitzNoise
from streampair.privacy.plan import FTRLPlan, MomentsPlan, plan_ftrl, plan_moments
from streampair.privacy.sensitivity import (
    fifo_pattern,
    grid_step,
    moment_sensitivities,
    pattern_sensitivity,
)

__all__ = [
    "BLT",
    "BLTNoise",
    "FTRLPlan",
    "MomentsPlan",
    "NormalStream",
    "PrivacyReport",
    "Toeplitz",
    "ToeplitzNoise",
    "compose",
    "delta_from",
    "epsilon_from",
    "fifo_pattern",
    "fit_blt",
    "grid_step",
    "moment_sensitivities",
    "mu_from",
    "pattern_sensitivity",
    "plan_ftrl",
    "plan_moments",
    "square_root_coefficients",
]
