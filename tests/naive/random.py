"""Random numbers that are functions of a key or a seed, one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from naive.numerics import uniform
from naive.vectors import dot


def normals(words: Sequence[int]) -> list[float]:
    """Box-Muller from 96-bit uniforms in whole-number arithmetic; three words give two normals."""
    out = []
    for a, b, c in zip(words[::3], words[1::3], words[2::3], strict=True):
        u = (a << 32) + (b >> 32)  # 96 bits
        if u < 2**95:
            r = math.sqrt(-2.0 * (math.log(2 * u + 1) - 97.0 * math.log(2.0)))
        else:
            r = math.sqrt(-2.0 * math.log1p(-(2 * (2**96 - 1 - u) + 1) / 2**97))
        v = ((c & (2**61 - 1)) << 32) + (b & (2**32 - 1))  # 93 bits within an octant
        angle = (2 * v + 1) / 2**94 * math.pi / 4
        first, second = r * math.cos(angle), r * math.sin(angle)
        octant = c >> 61
        if octant & 4:
            first, second = second, first
        out += [-first if octant & 2 else first, -second if octant & 1 else second]
    return out


def normals_in_order(words: Sequence[int]) -> list[float]:
    """The noise kernel's arithmetic, one IEEE operation at a time in the same order: equal bits."""

    def polynomial(z: float, coefficients: Sequence[float]) -> float:
        total = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = c + z * total
        return total

    def log1p(f: float) -> float:
        s = f / (2.0 + f)
        z = s * s
        w = z * z
        odd = z * polynomial(
            w,
            [
                6.666666666666735130e-01,
                2.857142874366239149e-01,
                1.818357216161805012e-01,
                1.479819860511658591e-01,
            ],
        )
        even = w * polynomial(
            w, [3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01]
        )
        half = 0.5 * f * f
        return f - (half - s * (half + (odd + even)))

    def log(x: float) -> float:
        m, k = math.frexp(x)
        if m < math.sqrt(0.5):
            m, k = 2.0 * m, k - 1
        return k * 6.93147180369123816490e-01 + (log1p(m - 1.0) + k * 1.90821492927058770002e-10)

    def sin(a: float) -> float:
        z = a * a
        tail = [
            8.33333333332248946124e-03,
            -1.98412698298579493134e-04,
            2.75573137070700676789e-06,
            -2.50507602534068634195e-08,
            1.58969099521155010221e-10,
        ]
        return a + z * a * (-1.66666666666666324348e-01 + z * polynomial(z, tail))

    def cos(a: float) -> float:
        z = a * a
        tail = [
            4.16666666666666019037e-02,
            -1.38888888888741095749e-03,
            2.48015872894767294178e-05,
            -2.75573143513906633035e-07,
            2.08757232129817482790e-09,
            -1.13596475577881948265e-11,
        ]
        half = 0.5 * z
        w = 1.0 - half
        return w + (((1.0 - w) - half) + z * (z * polynomial(z, tail)))

    out = []
    for a, b, c in zip(words[::3], words[1::3], words[2::3], strict=True):
        high, low = b >> 32, b & (2**32 - 1)
        if a >> 62 == 3:
            rest = float(2**64 - 1 - a) * 2.0**32 + float(2**32 - 1 - high) + 0.5
            radius = math.sqrt(-2.0 * log1p(-rest * 2.0**-96))
        else:
            radius = math.sqrt(-2.0 * log((float(a) * 2.0**32 + float(high) + 0.5) * 2.0**-96))
        angle = (float(c & (2**61 - 1)) * 2.0**32 + float(low) + 0.5) * 2.0**-93 * (math.pi / 4)
        first, second = radius * cos(angle), radius * sin(angle)
        octant = c >> 61
        if octant & 4:
            first, second = second, first
        out += [-first if octant & 2 else first, -second if octant & 1 else second]
    return out


def dense(column: Sequence[float]) -> np.ndarray:
    """Lower triangular Toeplitz matrix with the given first column."""
    n = len(column)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def blt_noise(omega: np.ndarray, theta: np.ndarray, sigma: float, z: np.ndarray) -> np.ndarray:
    """sigma C^-1 z, with C written out: c_0 = 1, c_t = sum_j omega_j theta_j^(t-1)."""
    column = [1.0, *(float((omega * theta ** (t - 1)).sum()) for t in range(1, len(z)))]
    return np.asarray(sigma * np.linalg.solve(dense(column), z))


def toeplitz_noise(inverse: np.ndarray, z: np.ndarray, start: int, sigma: float) -> np.ndarray:
    """Rows of sigma C^-1 z from `start` on, with C^-1 written out."""
    return np.asarray(sigma * (dense(inverse.tolist()) @ z)[start:])


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


class UsedUp(Exception):
    """There are no words left."""


def _below(words: Iterator[int], bound: int) -> int:
    mask = (1 << (bound - 1).bit_length()) - 1
    for word in words:
        if word & mask < bound:
            return word & mask
    raise UsedUp


def _falls(words: Iterator[int], above: int, below: int) -> bool:
    """True with probability exp(-above / below): by whether a series of coins is odd."""
    k = 1
    while _below(words, below * k) < above:
        k += 1
    return k % 2 == 1


def _one(words: Iterator[int], width: int, inner: int, scale: int) -> int:
    while True:
        within = _below(words, width) if width > 1 else 0
        kept = within < inner or _falls(words, 1, scale)
        low = _below(words, scale)
        if not _falls(words, low, scale):
            continue
        steps = low
        while _falls(words, 1, 1):
            steps += scale
        if not kept:
            continue
        size = steps * width + within
        negative = _below(words, 2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def laplace_integers(
    words: list[int], width: int, inner: int, scale: int, count: int
) -> tuple[list[int], int]:
    """As many as the words are enough for, and how many words these took."""
    out: list[int] = []
    used = 0
    while len(out) < count:
        taken = 0

        def counted(start: int = used) -> Iterator[int]:
            nonlocal taken
            for word in words[start:]:
                taken += 1
                yield word

        try:
            out.append(_one(counted(), width, inner, scale))
        except UsedUp:
            break
        used += taken
    return out, used


def blt_variances(omega: Sequence[float], decay: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Squared norms of the rows of `A C^-1`, with C written out."""
    n = int(max(steps))
    powers = [[w * (1.0 - d) ** k for w, d in zip(omega, decay, strict=True)] for k in range(n)]
    column = [1.0, *(sum(row) for row in powers)][:n]
    c = np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
    return [float((b[int(t) - 1] ** 2).sum()) if t > 0 else 0.0 for t in steps]
