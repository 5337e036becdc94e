"""Functions of a number, and the public coin, in one fixed order of operations.

Only + - * / and square roots, no fastmath and no library: the same bits on every processor.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel

_LOG2E = 1.4426950408889634
_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_HALVINGS = np.ldexp(1.0, -np.arange(1023))  # exact; a look-up takes half the time of ldexp


@kernel
def exp_negative(a: float) -> float:
    """exp(-a) for a >= 0, within 1 ulp (0 where that is below the normal range), from + - * / only.

    libm's exp picks another code path, and sometimes another last bit, on a processor with fused
    multiply-add. A replay on another machine must not differ, so this one is spelled out, as in fdlibm:
    ``exp(r) = 1 + 2 r / (R(r) - r)`` on ``|r| <= ln(2) / 2``.
    """
    if not a < 708.39:
        return 0.0 if a >= 708.39 else math.nan
    k = math.floor(0.5 - a * _LOG2E)
    high = -a - k * _LN2_HI
    low = k * _LN2_LO
    r = high - low
    t = r * r
    c = r - t * (
        1.66666666666666019037e-01
        + t
        * (
            -2.77777777770155933842e-03
            + t
            * (
                6.61375632143793436117e-05
                + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08)
            )
        )
    )
    return float((1.0 - ((low - (r * c) / (2.0 - c)) - high)) * _HALVINGS[-int(k)])


@kernel
def sigmoid(a: float) -> float:
    """1 / (1 + exp(-a)) without overflow."""
    e = exp_negative(abs(a))
    return (e if a < 0.0 else 1.0) / (1.0 + e)


@kernel
def uniform(seed: int, counter: int, lane: int) -> float:
    """Counter-based uniform number in [0, 1) with 53 bits: a hash (SplitMix64) of its three arguments.

    Counter-based, so a learner that is restored at event t continues with the same coins.
    """
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(counter) + np.uint64(1))
    z ^= np.uint64(0xD1B54A32D192ED03) * (np.uint64(lane) + np.uint64(1))
    for _ in range(2):
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def sigmoid_many(scores: Array, out: Array) -> None:
    """Element-wise sigmoid: the same bits as one at a time."""
    for r in range(scores.shape[0]):
        out[r] = sigmoid(scores[r])


@kernel
def log_one_plus(f: float) -> float:
    """log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], within 1 ulp, from + - * / only (as in fdlibm)."""
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    half = 0.5 * f * f
    return f - (half - s * (half + (odd + even)))


@kernel
def log_positive(x: float) -> float:
    """log(x) of a normal number above 0, within 2 ulp: the same bits on every processor."""
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m *= 2.0
        k -= 1
    return k * _LN2_HI + (log_one_plus(m - 1.0) + k * _LN2_LO)


@kernel
def cube_root(x: float) -> float:
    """Cube root of a normal number above 0, within 2 ulp: Newton's steps, the same bits everywhere."""
    m, k = math.frexp(x)
    while k % 3 != 0:
        m *= 0.5
        k += 1
    y = 0.5 + 0.5 * m
    for _ in range(7):
        y -= (y * y * y - m) / (3.0 * y * y)
    return math.ldexp(y, k // 3)


@kernel
def two_thirds(x: Array, out: Array) -> None:
    """x^(2/3) of normal numbers above 0."""
    for i in range(x.shape[0]):
        root = cube_root(x[i])
        out[i] = root * root


@kernel
def sin_octant(a: float) -> float:
    """sin(a) for a in [0, pi/4], within 1 ulp, from + - * only (as in fdlibm)."""
    z = a * a
    r = 8.33333333332248946124e-03 + z * (
        -1.98412698298579493134e-04
        + z
        * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))
    )
    return a + z * a * (-1.66666666666666324348e-01 + z * r)


@kernel
def cos_octant(a: float) -> float:
    """cos(a) for a in [0, pi/4], within 1 ulp, from + - * only (as in fdlibm)."""
    z = a * a
    r = z * (
        4.16666666666666019037e-02
        + z
        * (
            -1.38888888888741095749e-03
            + z
            * (
                2.48015872894767294178e-05
                + z
                * (
                    -2.75573143513906633035e-07
                    + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)
                )
            )
        )
    )
    half = 0.5 * z
    w = 1.0 - half
    return w + (((1.0 - w) - half) + z * r)


@kernel
def sin_cos(a: float) -> tuple[float, float]:
    """Sine and cosine within about 1 ulp for |a| up to 1e6, from + - * / only: the same bits everywhere.

    Reduction by Cody and Waite. A larger argument loses its phase, as it does in
    its own last bit; the squares still add up to 1. NaN for what is not finite.
    """
    if not abs(a) <= 1e6:
        a = np.fmod(a, 6.283185307179586)  # exact, and NaN for an infinite a
        if a != a:
            return math.nan, math.nan
    k = math.floor(a * 0.63661977236758134308 + 0.5)
    r = (a - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11
    s = math.copysign(sin_octant(abs(r)), r)
    c = cos_octant(abs(r))
    quadrant = int(k) & 3
    if quadrant == 0:
        return s, c
    if quadrant == 1:
        return c, -s
    if quadrant == 2:
        return -s, -c
    return -c, s
