"""Sensitivities, noise and accounting of the private learners (PRIVACY.md)."""

from streampair.privacy.accounting import PrivacyReport, compose, delta_from, epsilon_from, mu_from
from streampair.privacy.correlated import BLT, Toeplitz, fit_blt, square_root_coefficients
from streampair.privacy.sensitivity import (
    fifo_pattern,
    full_history_pattern,
    grid_step,
    moment_sensitivities,
    pattern_sensitivity,
)

__all__ = [
    "BLT",
    "PrivacyReport",
    "Toeplitz",
    "compose",
    "delta_from",
    "epsilon_from",
    "fifo_pattern",
    "fit_blt",
    "full_history_pattern",
    "grid_step",
    "moment_sensitivities",
    "mu_from",
    "pattern_sensitivity",
    "square_root_coefficients",
]
