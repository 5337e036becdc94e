"""Random Fourier features, and the public coins that their frequencies come from."""

from __future__ import annotations

import math

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import exp_negative, sin_cos, uniform
from streampair.kernels.vectors import dot


@kernel
def normals_from_seed(seed: int, out: Array) -> None:
    """Standard normals that depend on a seed only, for public coins: not for noise.

    Ratio of uniforms (Kinderman & Monahan 1977), which needs no logarithm, so that the bits are the same on
    every processor.
    """
    for i in range(out.shape[0]):
        attempt = 0
        while True:
            u = 1.0 - uniform(seed, i, attempt)
            x = (2.0 * uniform(seed, i, attempt + 1) - 1.0) * 0.8577638849607068 / u
            attempt += 2
            if u <= exp_negative(0.25 * x * x):
                out[i] = x
                break


@kernel
def fourier_rows(rows: Array, frequencies: Array, out: Array) -> None:
    """Sines and cosines of the projections of (n, d) rows on (m, d) frequencies, (n, 2 m), norm 1."""
    m = frequencies.shape[0]
    scale = 1.0 / math.sqrt(m)
    for r in range(rows.shape[0]):
        for j in range(m):
            s, c = sin_cos(dot(rows[r], frequencies[j]))
            out[r, 2 * j] = scale * s
            out[r, 2 * j + 1] = scale * c
