"""From the raw values of a record to the vector that a private learner learns."""

from __future__ import annotations

import math

from streampair.kernels._jit import Array, kernel
from streampair.kernels.vectors import dot


@kernel
def prepare_rows(
    raw: Array,
    scale: Array,
    shift: Array,
    standardise: bool,
    mean: Array,
    factor: Array,
    cap: float,
    out: Array,
    whole: Array,
) -> None:
    """Raw values (n, d) to the vectors that are learned: bounds, standardisation, unit ball.

    A value that is NaN or infinite becomes 0, the neutral value, and `whole[row]` 0 instead of 1. With
    `standardise` the scaled values are clipped to [-1, 1] first, and the standardised ones to [-cap, cap]
    (PRIVACY.md 4.4). A finite value of any size is used.
    """
    for r in range(raw.shape[0]):
        x = out[r]
        whole[r] = 1.0
        largest = 0.0
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not math.isfinite(value):
                whole[r] = 0.0
                x[i] = 0.0
                continue
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            if standardise:
                value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
                value = min(max(value, -cap), cap)
            x[i] = value
            largest = max(largest, abs(value))
        # The norm of values up to 1e200 must not overflow.
        unit = 1.0
        if largest > 1e50:
            unit = 1.0 / largest
            for i in range(raw.shape[1]):
                x[i] *= unit
        norm = math.sqrt(dot(x, x))
        if norm > unit:
            for i in range(raw.shape[1]):
                x[i] /= norm


@kernel
def clip_rows(raw: Array, scale: Array, shift: Array, out: Array, whole: Array) -> None:
    """Raw values (n, d) scaled by their bounds and clipped to [-1, 1]; a row that is not finite becomes 0."""
    for r in range(raw.shape[0]):
        whole[r] = 1.0
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not math.isfinite(value):
                whole[r] = 0.0
                value = 0.0
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            out[r, i] = min(max(value, -1.0), 1.0)
        if whole[r] == 0.0:
            for i in range(raw.shape[1]):
                out[r, i] = 0.0
