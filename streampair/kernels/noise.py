"""Standard normals from the bits of a cipher, and noise that is correlated over time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import cos_octant, log_one_plus, log_positive, sin_octant

_QUARTER_PI = 7.85398163397448279e-01


@kernel
def normals_from_bits(words: NDArray[np.uint64], out: Array) -> None:
    """Independent standard normals from uniform bits: three 64-bit words give two (Box & Muller 1958).

    96 bits each for radius and angle. The radius is exact in relative terms at both ends (the complement
    of a uniform near 1 is taken in integers), the angle in every octant, so the tails reach 11.5 and the
    centre has no gap that a double could show. Logarithm, sine and cosine are spelled out: a replay on
    another processor must draw the same noise to the last bit (docs/privacy.md 8).
    """
    two32 = 4294967296.0
    low = np.uint64(0xFFFFFFFF)
    for k in range(out.shape[0] // 2):
        a = words[3 * k]
        b = words[3 * k + 1]
        c = words[3 * k + 2]
        tail = b >> np.uint64(32)
        rest = np.float64(~a) * two32 + np.float64(low - tail) + 0.5
        if a >> np.uint64(62) == np.uint64(3):
            radius = math.sqrt(-2.0 * log_one_plus(-rest * 2.0**-96))
        else:
            uniform = (np.float64(a) * two32 + np.float64(tail) + 0.5) * 2.0**-96
            radius = math.sqrt(-2.0 * log_positive(uniform))
        octant = c >> np.uint64(61)
        part = np.float64(c & np.uint64(0x1FFFFFFFFFFFFFFF)) * two32 + np.float64(b & low) + 0.5
        angle = part * 2.0**-93 * _QUARTER_PI
        first = radius * cos_octant(angle)
        second = radius * sin_octant(angle)
        if octant & np.uint64(4):
            first, second = second, first
        out[2 * k] = -first if octant & np.uint64(2) else first
        out[2 * k + 1] = -second if octant & np.uint64(1) else second


@kernel
def blt_noise(omega: Array, theta: Array, memory: Array, sigma: float, z: Array) -> None:
    """Replace the rows of z by those of sigma C^-1 z for a BLT, and advance its memory (h, d).

    From C n = z: `n_t = z_t - sum_j omega_j M_j`, then `M_j <- theta_j M_j + n_t`.
    """
    for t in range(z.shape[0]):
        for i in range(z.shape[1]):
            value = z[t, i]
            for j in range(omega.shape[0]):
                value -= omega[j] * memory[j, i]
            for j in range(omega.shape[0]):
                memory[j, i] = theta[j] * memory[j, i] + value
            z[t, i] = sigma * value


@kernel
def toeplitz_noise(inverse: Array, history: Array, start: int, sigma: float, out: Array) -> None:
    """Rows `start, start + 1, ...` of sigma C^-1 z, with all z so far in `history` and C^-1 by its column."""
    d = out.shape[1]
    for r in range(out.shape[0]):
        t = start + r
        row = out[r]
        for i in range(d):
            row[i] = 0.0
        for k in range(t + 1):
            weight = inverse[t - k]
            past = history[k]
            for i in range(d):
                row[i] += weight * past[i]
        for i in range(d):
            row[i] *= sigma
