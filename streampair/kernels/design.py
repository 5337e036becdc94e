"""From the raw values of a record to the vector that a private learner learns."""

from __future__ import annotations

import math

from streampair.kernels._jit import Array, kernel
from streampair.kernels.vectors import MAX_FINITE, dot


@kernel
def prepare_rows(raw: Array, scaling: Array, standardise: bool, cap: float, out: Array, whole: Array) -> None:
    """Raw values (n, d) to the vectors that are learned: bounds, standardisation, unit ball.

    A value that is NaN or infinite becomes 0, the neutral value, and `whole[row]` 0 instead of 1. With
    `standardise` the scaled values are clipped to [-1, 1] first, and the standardised ones to [-cap, cap]
    (docs/privacy 4.4). A finite value of any size is used. scaling (4, d): scale, shift, mean and factor.
    """
    scale, shift, mean, factor = scaling[0], scaling[1], scaling[2], scaling[3]
    for r in range(raw.shape[0]):
        features = raw[r]
        x = out[r]
        # Loops without branches are made of vectors.
        lost = 0
        huge = 0
        if standardise:
            for i in range(features.shape[0]):
                finite = abs(features[i]) <= MAX_FINITE
                value = min(max(features[i], -1e100), 1e100) * scale[i] + shift[i]
                value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
                x[i] = min(max(value, -cap), cap) if finite else 0.0
                lost |= 0 if finite else 1
                huge |= 1 if abs(x[i]) > 1e50 else 0
        else:
            for i in range(features.shape[0]):
                finite = abs(features[i]) <= MAX_FINITE
                value = min(max(features[i], -1e100), 1e100) * scale[i] + shift[i]
                x[i] = value if finite else 0.0
                lost |= 0 if finite else 1
                huge |= 1 if abs(x[i]) > 1e50 else 0
        whole[r] = 1.0 - lost
        # The norm of values up to 1e200 must not overflow.
        unit = 1.0
        if huge:
            largest = 0.0
            for i in range(features.shape[0]):
                largest = max(largest, abs(x[i]))
            unit = 1.0 / largest
            for i in range(features.shape[0]):
                x[i] *= unit
        norm = math.sqrt(dot(x, x))
        if norm > unit:
            for i in range(raw.shape[1]):
                x[i] /= norm


@kernel
def clip_rows(raw: Array, scaling: Array, out: Array, whole: Array) -> None:
    """Raw values (n, d) scaled by their bounds and clipped to [-1, 1]; a row that is not finite becomes 0."""
    scale, shift = scaling[0], scaling[1]
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
