"""Pair losses by their integer codes."""

from __future__ import annotations

from streampair.kernels._jit import kernel
from streampair.kernels.numerics import exp_negative, sigmoid

LOGISTIC = 0
HINGE = 1
SQUARED_HINGE = 2
SQUARE = 3
ENTROPY = 4  # of the difference of two errors: see pair_slope


@kernel
def loss_slope(code: int, m: float) -> float:
    """Derivative of the pair loss with the given code at margin m (a subgradient at the hinge's kink)."""
    if code == HINGE:
        return -1.0 if m < 1.0 else 0.0
    if code == LOGISTIC:
        return -sigmoid(-m)
    if code == SQUARED_HINGE:
        return -2.0 * (1.0 - m) if m < 1.0 else 0.0
    return -2.0 * (1.0 - m)


@kernel
def pair_slope(code: int, c: float, s: float, width: float) -> float:
    """Derivative of the loss of a pair in ``s = w.(x - x')``, for ``c = y - y'``.

    All losses but one are functions of the margin c s. The minimum error entropy of the given width is one
    of the difference of the errors, c - s.
    """
    if code == ENTROPY:
        e = c - s
        return -e * exp_negative(e * e / (2.0 * width * width))
    return c * loss_slope(code, c * s)
