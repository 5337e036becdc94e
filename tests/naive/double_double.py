"""Noise with 60 digits or in whole numbers, one at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

_SIXTY = Context(prec=60)


def _sine_of(angle: Decimal, first: int) -> Decimal:
    """Sine (first 1) or cosine (first 0) by its series."""
    term = angle if first else Decimal(1)
    total, k = term, first
    while abs(term) > Decimal(10) ** -58:
        term = -term * angle * angle / ((k + 1) * (k + 2))
        total, k = total + term, k + 2
    return total


def exact_normals(words: Sequence[int]) -> list[Decimal]:
    """Box-Muller from 96-bit uniforms, of the middles of their cells, with 60 digits: two for three words."""
    out = []
    with localcontext(_SIXTY):
        quarter = Decimal("0.785398163397448309615660845819875721049292349843776455243736")
        for a, b, c in zip(words[::3], words[1::3], words[2::3], strict=True):
            u = (a << 32) + (b >> 32)  # 96 bits
            # Near 1 the logarithm is that of the complement's series, so no digit is lost.
            near = Decimal(2 * (2**96 - 1 - u) + 1) / 2**97
            if near < Decimal("1e-8"):
                log = -near * (1 + near / 2 + near**2 / 3 + near**3 / 4 + near**4 / 5 + near**5 / 6)
            else:
                log = (Decimal(2 * u + 1) / 2**97).ln()
            r = (-2 * log).sqrt()
            v = ((c & (2**61 - 1)) << 32) + (b & (2**32 - 1))  # 93 bits within an octant
            angle = Decimal(2 * v + 1) / 2**94 * quarter
            first, second = r * _sine_of(angle, 0), r * _sine_of(angle, 1)
            octant = c >> 61
            if octant & 4:
                first, second = second, first
            out += [-first if octant & 2 else first, -second if octant & 1 else second]
    return out


def normals(words: Sequence[int]) -> list[list[float]]:
    """High and low parts of the exact normals."""
    exact = exact_normals(words)
    with localcontext(_SIXTY):
        return [[float(z) for z in exact], [float(z - Decimal(float(z))) for z in exact]]


def nearest(high: float, low: float) -> int:
    """The nearest whole number, halves up."""
    return math.floor(Fraction(high) + Fraction(low) + Fraction(1, 2))


def rounded_noise(noise: Sequence[Sequence[float]]) -> list[int]:
    """The nearest whole number of each."""
    return [nearest(*pair) for pair in zip(*noise, strict=True)]


def scaled_noise(normals: Sequence[Sequence[float]], scales: Sequence[float]) -> list[list[float]]:
    """Products with doubles, in whole-number arithmetic."""
    exact = [(Fraction(h) + Fraction(low)) * Fraction(s) for h, low, s in zip(*normals, scales, strict=True)]
    return [[float(z) for z in exact], [float(z - Fraction(float(z))) for z in exact]]


def dense(column: Sequence[float]) -> np.ndarray:
    """Lower triangular Toeplitz matrix with the given first column."""
    n = len(column)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def blt_noise(omega: np.ndarray, theta: np.ndarray, scale: float, z: np.ndarray) -> np.ndarray:
    """scale C^-1 z, with C written out: c_0 = 1, c_t = sum_j omega_j theta_j^(t-1)."""
    column = [1.0, *(float((omega * theta ** (t - 1)).sum()) for t in range(1, len(z)))]
    return np.asarray(scale * np.linalg.solve(dense(column), z))


def toeplitz_noise(inverse: np.ndarray, z: np.ndarray, start: int, scale: float) -> np.ndarray:
    """Rows of scale C^-1 z from `start` on, with C^-1 written out."""
    return np.asarray(scale * (dense(inverse.tolist()) @ z)[start:])
