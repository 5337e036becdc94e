"""Random Fourier features."""

from __future__ import annotations

import math

from naive.numerics import uniform
from naive.vectors import dot


def normals_from_seed(seed: int, count: int) -> list[float]:
    """Kinderman and Monahan's ratio of uniforms on counter-based coins."""
    out = []
    for i in range(count):
        for attempt in range(0, 1000, 2):
            u = 1.0 - uniform(seed, i, attempt)
            x = (2.0 * uniform(seed, i, attempt + 1) - 1.0) * math.sqrt(2.0 / math.e) / u
            if x * x <= -4.0 * math.log(u):
                out.append(x)
                break
    return out


def fourier(x: list[float], frequencies: list[list[float]]) -> list[float]:
    """Rahimi and Recht's features, a sine and a cosine for each frequency."""
    out = []
    for u in frequencies:
        angle = dot(u, x)
        out += [math.sin(angle) / math.sqrt(len(frequencies)), math.cos(angle) / math.sqrt(len(frequencies))]
    return out
