"""The fitted numbers of a plan as plain values: written down once, and run under exactly these ever after.

Another linear algebra or mathematical library fits other last digits. A mechanism that is continued on
another machine, and calibrated there anew, would be another mechanism in the middle of a run (docs/privacy.md
8): so what was fitted goes with it. A plan names its fitted numbers in `FITTED`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from streampair.privacy.correlated import BLT, Toeplitz

__all__ = ["near", "strategy_from", "under", "written"]

T = TypeVar("T")

# Of two fits on different machines; anything further apart is another plan, or damage.
_TOLERANCE = 1e-6


def near(name: str, saved: Any, own: float) -> float:
    """A number that was written down, if it can be the one that is fitted here.

    Raises
    ------
    ValueError
        If it is none, or too far away.
    """
    if not isinstance(saved, float) or not (
        saved == own or math.isclose(saved, own, rel_tol=_TOLERANCE, abs_tol=0.0)
    ):
        raise ValueError(f"{name} of the plan is {saved!r}, and these parameters give {own!r}")
    return saved


def written(plan: Any) -> dict[str, Any]:
    """The fitted numbers of a plan, as floats, texts and lists."""
    out: dict[str, Any] = {}
    for name in plan.FITTED:
        value = getattr(plan, name)
        if isinstance(value, BLT):
            out[name] = {"kind": "blt", "omega": value.omega.tolist(), "decay": value.decay.tolist()}
        else:
            out[name] = {"kind": "square_root"} if isinstance(value, Toeplitz) else float(value)
    return out


def under(plan: T, numbers: Mapping[str, Any] | None) -> T:
    """The plan under exactly the numbers that were written down; None: under its own.

    Raises
    ------
    ValueError
        If they are not those of such a plan.
    """
    if numbers is None:
        return plan
    out = copy.copy(plan)
    for name, own in written(plan).items():
        if isinstance(own, float):
            object.__setattr__(out, name, near(name, numbers[name], own))
    if written(out) != numbers:
        raise ValueError("the plan has other numbers")
    return out


def strategy_from(saved: Mapping[str, Any], horizon: int | None) -> Toeplitz | BLT:
    """The matrix C that was written down.

    Raises
    ------
    ValueError
        If it cannot be one.
    """
    if saved["kind"] == "blt":
        return BLT.of(saved["omega"], saved["decay"], horizon)
    if saved["kind"] != "square_root" or horizon is None:
        raise ValueError(f"noise strategy {saved['kind']!r}")
    return Toeplitz.square_root(horizon)
