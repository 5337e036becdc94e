"""Noise in double-double arithmetic: normals, their correlation, and their rounding (docs/privacy 7.2).

A number is an unevaluated sum of two doubles, high and low, with about 106 bits: low is at most half a unit
in the last place of high. Only + - * / and square roots, in one fixed order: a replay on another processor
draws the same noise to the last bit (docs/privacy 8). Each of `add`, `add_small`, `times` and `times_double`
has a relative error of at most 2^-103 (Joldes, Muller & Popescu 2017).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel

_SPLITTER = 134217729.0  # 2^27 + 1
_CELLS = 64  # of the tables

# Of the tables, in whole numbers: the unit, and pi.
_ONE = 1 << 192
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0


def _pair(value: int) -> tuple[float, float]:
    high = value / _ONE  # correctly rounded
    return high, (value - int(math.ldexp(high, 192))) / _ONE


def _pairs(values: list[int]) -> Array:
    return np.array([_pair(value) for value in values])


def _logarithm(near: int) -> int:
    """log(near / 512), by the series of the inverse hyperbolic tangent."""
    y = ((near - 512) * _ONE) // (near + 512)
    power, total = y, 0
    for k in range(1, 200, 2):
        total += power // k
        power = ((power * y >> 192) * y) >> 192
    return 2 * total


def _sine(angle: int) -> int:
    term = total = angle
    for k in range(2, 60, 2):
        term = -(((term * angle >> 192) * angle) >> 192) // (k * (k + 1))
        total += term
    return total


def _logarithms() -> tuple[Array, Array]:
    """For each cell of [1/2, 1): ten bits of the reciprocal of its middle, and their logarithm."""
    near = [round(1024.0 * _CELLS / (_CELLS + j + 0.5)) for j in range(_CELLS)]
    return np.array(near) / 512.0, _pairs([_logarithm(value) for value in near])


def _circle() -> Array:
    """For each cell of an octant: sine and cosine of its middle, (cells, 4)."""
    sines = [_sine(_PI * (2 * j + 1) // (8 * _CELLS)) for j in range(_CELLS)]
    return np.hstack([_pairs(sines), _pairs([math.isqrt(_ONE * _ONE - s * s) for s in sines])])


_RECIPROCALS, _RECIPROCAL_LOGS = _logarithms()
_CIRCLE = _circle()
_LN2 = _pair(_logarithm(1024))
_QUARTER_PI = _pair(_PI // 4)
_SIXTH, _OF_120, _OF_24 = _pair(_ONE // 6), _pair(_ONE // 120), _pair(_ONE // 24)
_LOG_TERMS = 7  # of the logarithm's series in two doubles; 16 in all
_LOG_SERIES = _pairs([(-1) ** k * _ONE // (k + 1) for k in range(_LOG_TERMS)])
_LOG_TAIL = np.array([(-1.0) ** k / (k + 1) for k in range(_LOG_TERMS, 16)])


@kernel
def two_sum(a: float, b: float) -> tuple[float, float]:
    """The sum as a double, and its error: exact."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


@kernel
def fast_two_sum(a: float, b: float) -> tuple[float, float]:
    """`two_sum` for |a| >= |b|."""
    s = a + b
    return s, b - (s - a)


@kernel
def two_product(a: float, b: float) -> tuple[float, float]:
    """The product as a double, and its error: exact (Dekker 1971)."""
    p = a * b
    c = _SPLITTER * a
    ah = c - (c - a)
    al = a - ah
    c = _SPLITTER * b
    bh = c - (c - b)
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


@kernel
def add(ah: float, al: float, bh: float, bl: float) -> tuple[float, float]:
    """Sum of two numbers."""
    sh, sl = two_sum(ah, bh)
    th, tl = two_sum(al, bl)
    vh, vl = fast_two_sum(sh, sl + th)
    return fast_two_sum(vh, tl + vl)


@kernel
def add_small(ah: float, al: float, bh: float, bl: float) -> tuple[float, float]:
    """`add` for |b| at most half of |a|."""
    sh, sl = fast_two_sum(ah, bh)
    return fast_two_sum(sh, sl + (al + bl))


@kernel
def times(ah: float, al: float, bh: float, bl: float) -> tuple[float, float]:
    """Product of two numbers."""
    ch, cl = two_product(ah, bh)
    return fast_two_sum(ch, cl + (ah * bl + al * bh))


@kernel
def times_double(ah: float, al: float, b: float) -> tuple[float, float]:
    """Product with a double."""
    ch, cl = two_product(ah, b)
    return fast_two_sum(ch, cl + al * b)


@kernel
def _log_one_plus(th: float, tl: float) -> tuple[float, float]:
    """log(1 + t) for |t| <= 0.0089, by its series."""
    tail = 0.0
    for k in range(_LOG_TAIL.shape[0] - 1, -1, -1):
        tail = _LOG_TAIL[k] + th * tail
    h, low = tail, 0.0
    for k in range(_LOG_TERMS - 1, -1, -1):
        h, low = times(h, low, th, tl)
        h, low = add_small(_LOG_SERIES[k, 0], _LOG_SERIES[k, 1], h, low)
    return times(h, low, th, tl)


@kernel
def _radius(a: np.uint64, tail: np.uint64) -> tuple[float, float]:
    """`sqrt(-2 log u)` for `u = (2^32 a + tail + 1/2) / 2^96`."""
    if a >> np.uint64(57) == np.uint64(127):  # u near 1, where 1 - u is exact
        high = np.float64((~a) >> np.uint64(16)) * 2.0**48
        rest = np.float64((((~a) & np.uint64(0xFFFF)) << np.uint64(32)) | (np.uint64(0xFFFFFFFF) - tail))
        vh, vl = two_sum(high, rest + 0.5)
        h, low = _log_one_plus(vh * -(2.0**-96), vl * -(2.0**-96))
        h, low = -h, -low
    else:
        high = np.float64(a >> np.uint64(16)) * 2.0**48
        rest = np.float64(((a & np.uint64(0xFFFF)) << np.uint64(32)) | tail)
        uh, ul = two_sum(high, rest + 0.5)
        mh, k = math.frexp(uh)
        if mh == 0.5 and ul < 0.0:  # below the power of two: in the cells of the one before
            mh, k = 1.0, k - 1
        scale = math.ldexp(1.0, -k)
        ml = ul * scale
        j = min(int((mh - 0.5) * (2.0 * _CELLS)), _CELLS - 1)
        near = _RECIPROCALS[j]
        p, e = two_product(mh, near)
        th, tl = two_sum(p - 1.0, e + near * ml)
        h, low = _log_one_plus(th, tl)
        h, low = add(_RECIPROCAL_LOGS[j, 0], _RECIPROCAL_LOGS[j, 1], -h, -low)
        lh, ll = times_double(_LN2[0], _LN2[1], 96.0 - k)
        h, low = add(lh, ll, h, low)
    h, low = 2.0 * h, 2.0 * low
    root = math.sqrt(h)
    p, e = two_product(root, root)
    return fast_two_sum(root, ((h - p) - e + low) / (2.0 * root))


@kernel
def _sine_and_cosine(j: int, dh: float, dl: float) -> tuple[float, float, float, float]:
    """Sine and cosine of `pi/4 ((j + 1/2) / 64 + d)`, for |d| <= 1/128."""
    ph, pl = times(_QUARTER_PI[0], _QUARTER_PI[1], dh, dl)
    wh, wl = times(ph, pl, ph, pl)
    tail = wh * (-1.0 / 5040.0 + wh * (1.0 / 362880.0 - wh * (1.0 / 39916800.0)))
    h, low = add_small(_OF_120[0], _OF_120[1], tail, 0.0)
    h, low = times(h, low, wh, wl)
    h, low = add_small(-_SIXTH[0], -_SIXTH[1], h, low)
    h, low = times(h, low, wh, wl)
    h, low = times(h, low, ph, pl)
    sh, sl = add_small(ph, pl, h, low)
    tail = wh * (-1.0 / 720.0 + wh * (1.0 / 40320.0 - wh * (1.0 / 3628800.0 - wh * (1.0 / 479001600.0))))
    h, low = add_small(_OF_24[0], _OF_24[1], tail, 0.0)
    h, low = times(h, low, wh, wl)
    h, low = add_small(-0.5, 0.0, h, low)
    bh, bl = times(h, low, wh, wl)  # cosine of the rest, less 1
    row = _CIRCLE[j]
    h, low = times(row[0], row[1], bh, bl)
    gh, gl = times(row[2], row[3], sh, sl)
    h, low = add(h, low, gh, gl)
    oh, ol = add(row[0], row[1], h, low)
    h, low = times(row[2], row[3], bh, bl)
    gh, gl = times(row[0], row[1], sh, sl)
    h, low = add(h, low, -gh, -gl)
    ch, cl = add_small(row[2], row[3], h, low)
    return oh, ol, ch, cl


@kernel
def normals_from_bits(words: NDArray[np.uint64], out: Array) -> None:
    """Independent standard normals (2, n), high and low, from uniform bits (Box & Muller 1958).

    Three 64-bit words give two: 96 bits each for radius and angle. They are within 2^-96 of the map of the
    middles of the bits' cells (docs/privacy, Lemma 21). The complement of a uniform near 1 is exact, and so
    is the angle in every octant: the tails reach 11.5, and the centre has no gap that a double could show.
    """
    low32 = np.uint64(0xFFFFFFFF)
    for k in range(out.shape[1] // 2):
        a = words[3 * k]
        b = words[3 * k + 1]
        c = words[3 * k + 2]
        rh, rl = _radius(a, b >> np.uint64(32))
        octant = c >> np.uint64(61)
        cell = (c >> np.uint64(55)) & np.uint64(63)
        # The rest of the angle's bits, from the middle of the cell: 55 of this word and 32.
        high = np.float64(np.int64((c >> np.uint64(8)) & np.uint64(0x7FFFFFFFFFFF)) - np.int64(1 << 46))
        rest = np.float64(((c & np.uint64(0xFF)) << np.uint64(32)) | (b & low32))
        dh, dl = two_sum(high * 2.0**40, rest + 0.5)
        sh, sl, ch, cl = _sine_and_cosine(int(cell), dh * 2.0**-93, dl * 2.0**-93)
        if octant & np.uint64(4):
            sh, sl, ch, cl = ch, cl, sh, sl
        ch, cl = times(ch, cl, rh, rl)
        sh, sl = times(sh, sl, rh, rl)
        if octant & np.uint64(2):
            ch, cl = -ch, -cl
        if octant & np.uint64(1):
            sh, sl = -sh, -sl
        out[0, 2 * k], out[1, 2 * k] = ch, cl
        out[0, 2 * k + 1], out[1, 2 * k + 1] = sh, sl


@kernel
def nearest(high: float, low: float) -> np.int64:
    """`floor(x + 1/2)` of the number (high, low), exact below 2^50."""
    whole = math.floor(high)
    # Near the border the difference is exact, and the sign of a sum of two doubles is right in any case.
    return np.int64(whole) + np.int64((high - (whole + 0.5)) + low >= 0.0)


@kernel
def rounded_noise(noise: Array, out: NDArray[np.int64]) -> None:
    """Nearest whole numbers of (2, n)."""
    for i in range(out.shape[0]):
        out[i] = nearest(noise[0, i], noise[1, i])


@kernel
def scaled_noise(normals: Array, scales: Array, out: Array) -> None:
    """Normals (2, n) times doubles (n,)."""
    for i in range(scales.shape[0]):
        out[0, i], out[1, i] = times_double(normals[0, i], normals[1, i], scales[i])


@kernel
def blt_noise(omega: Array, theta: Array, memory: Array, scale: float, z: Array) -> None:
    """Replace the rows of z (2, n, d) by those of scale C^-1 z for a BLT, and advance its memory (2, h, d).

    From C n = z: `n_t = z_t - sum_j omega_j M_j`, then `M_j <- theta_j M_j + n_t`.
    """
    for t in range(z.shape[1]):
        for i in range(z.shape[2]):
            high, low = z[0, t, i], z[1, t, i]
            for j in range(omega.shape[0]):
                ph, pl = times_double(memory[0, j, i], memory[1, j, i], -omega[j])
                high, low = add(high, low, ph, pl)
            for j in range(omega.shape[0]):
                ph, pl = times_double(memory[0, j, i], memory[1, j, i], theta[j])
                memory[0, j, i], memory[1, j, i] = add(ph, pl, high, low)
            z[0, t, i], z[1, t, i] = times_double(high, low, scale)


@kernel
def toeplitz_noise(inverse: Array, history: Array, start: int, scale: float, z: Array) -> None:
    """Replace the rows of z (2, n, d), of numbers `start, ...`, by those of scale C^-1 z for a Toeplitz C.

    C^-1 is given by its first column, and history (m, d) has all rows of z so far, as doubles. What earlier
    rows add is a sum of doubles, the oldest first: its error moves the mean alone (docs/privacy, Lemma 21).
    """
    d = z.shape[2]
    past = np.empty(d)
    for r in range(z.shape[1]):
        t = start + r
        past[:] = 0.0
        for k in range(t):
            weight = inverse[t - k]
            row = history[k]
            for i in range(d):
                past[i] += weight * row[i]
        for i in range(d):
            high, low = times_double(z[0, r, i], z[1, r, i], inverse[0])
            high, low = add(high, low, past[i], 0.0)
            z[0, r, i], z[1, r, i] = times_double(high, low, scale)
