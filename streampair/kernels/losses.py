"""Pair losses by their integer codes: other kernels ask these functions.

`streampair.losses.registry` has the class of every code. An unknown code is an error in each function here,
and never another loss.
"""

from __future__ import annotations

from streampair.kernels._jit import kernel
from streampair.kernels.numerics import exp_negative, log_positive, sigmoid

LOGISTIC = 0
HINGE = 1
SQUARED_HINGE = 2
SQUARE = 3
ENTROPY = 4  # of the difference of two errors: see pair_slope


@kernel
def loss_slope(code: int, m: float) -> float:
    """Derivative of the loss of a margin with the given code, at margin m (a subgradient at a kink).

    Raises
    ------
    ValueError
        If no loss of a margin has this code.
    """
    if code == HINGE:
        return -1.0 if m < 1.0 else 0.0
    if code == LOGISTIC:
        return -sigmoid(-m)
    if code == SQUARED_HINGE:
        return -2.0 * (1.0 - m) if m < 1.0 else 0.0
    if code == SQUARE:
        return -2.0 * (1.0 - m)
    raise ValueError("no loss of a margin has this code")


@kernel
def loss_value(code: int, m: float) -> float:
    """Value of the loss of a margin with the given code, at margin m.

    Raises
    ------
    ValueError
        If no loss of a margin has this code.
    """
    if code == HINGE:
        return max(0.0, 1.0 - m)
    if code == LOGISTIC:
        return float(max(0.0, -m) + log_positive(1.0 + exp_negative(abs(m))))
    if code == SQUARED_HINGE:
        return (1.0 - m) * (1.0 - m) if m < 1.0 else 0.0
    if code == SQUARE:
        return (1.0 - m) * (1.0 - m)
    raise ValueError("no loss of a margin has this code")


@kernel
def loss_of_errors(code: int) -> bool:
    """Whether the loss is a function of the difference of two errors: then pairs of equal labels count."""
    return code == ENTROPY


@kernel
def pair_slope(code: int, c: float, s: float, width: float) -> float:
    """Derivative of the loss of a pair in ``s = w.(x - x')``, for ``c = y - y'``.

    Most losses are functions of the margin c s. The minimum error entropy of the given width is one of the
    difference of the errors, c - s.

    Raises
    ------
    ValueError
        If no loss has this code.
    """
    if code == ENTROPY:
        e = c - s
        return -e * exp_negative(e * e / (2.0 * width * width))
    return c * loss_slope(code, c * s)
