"""Slow, obvious twins of the FTRL kernels and of the noise, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Vector = list[float]


def slope(code: int, m: float) -> float:
    """Derivative of the pair loss by its code: 0 logistic, 1 hinge, 2 squared hinge, 3 square."""
    if code == 0:
        return -1.0 / (1.0 + math.exp(m)) if m < 700 else 0.0
    if code == 1:
        return -1.0 if m < 1 else 0.0
    if code == 2:
        return -2.0 * max(0.0, 1.0 - m)
    return 2.0 * (m - 1.0)


def null(label: float) -> bool:
    """Whether a label marks a null record."""
    return math.isnan(label)


def pair_gradient(
    w: Vector,
    x: Vector,
    y: float,
    partner: Vector,
    label: float,
    code: int,
    clip: float,
    tangent: bool = False,
) -> Vector:
    """Clipped gradient of one pair; zero if either record is null (NaN) or the labels are equal."""
    if null(y) or null(label) or y == label:
        return [0.0] * len(x)
    difference = [a - b for a, b in zip(x, partner, strict=True)]
    c = y - label
    k = c * slope(code, c * math.fsum(a * b for a, b in zip(w, difference, strict=True)))
    gradient = [k * u for u in difference]
    if not tangent:
        norm = math.hypot(*gradient)
        return [g * min(1.0, clip / norm) for g in gradient] if norm > 0 else gradient

    def inside(share: float) -> bool:
        """Whether the scaled gradient is in the ball of radius clip around -clip y p of either record."""
        balls = ((partner, label), (x, y))
        return all(
            math.dist([share * g for g in gradient], [-clip * s * v for v in p]) <= clip for p, s in balls
        )

    if inside(1.0):
        return gradient
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    return [low * g for g in gradient]


def mean_gradient(
    w: Vector,
    x: Vector,
    y: float,
    buffer: Sequence[tuple[Vector, float]],
    size: int,
    code: int,
    clip: float,
    tangent: bool = False,
) -> Vector:
    """Sum over the records in the buffer, divided by the number of places."""
    total = [0.0] * len(x)
    for partner, label in buffer:
        total = [
            a + b
            for a, b in zip(total, pair_gradient(w, x, y, partner, label, code, clip, tangent), strict=True)
        ]
    return [g / size for g in total]


def cells(value: float, grid: float) -> int:
    """Nearest whole number of grid steps, halves up."""
    return math.floor(value / grid + 0.5)


Gradient = Callable[[Vector, Vector, float, Sequence[tuple[Vector, float]]], Vector]


def ftrl(
    rows: Sequence[Vector],
    labels: Sequence[float],
    noise: Sequence[Vector],
    rates: Sequence[float],
    *,
    size: int,
    radius: float,
    grid: float,
    gradient: Gradient,
) -> dict[str, list[list[float]]]:
    """The rule of PRIVACY.md 4.3 with the grid of 7, one slot a row; all histories."""
    dim = len(rows[0])
    w, average, total = [0.0] * dim, [0.0] * dim, [0] * dim
    buffer: list[tuple[Vector, float]] = []
    weights = 0.0
    out: dict[str, list[list[float]]] = {"w": [], "average": [], "total": [], "gradient": []}
    for t, (x, y) in enumerate(zip(rows, labels, strict=True), start=1):
        g = gradient(w, x, y, buffer) if not null(y) else [0.0] * dim
        steps = [cells(v, grid) for v in g]
        total = [T + a + cells(b, grid) for T, a, b in zip(total, steps, noise[t - 1], strict=True)]
        w = [-rates[t - 1] * grid * T for T in total]
        norm = math.sqrt(math.fsum(v * v for v in w))
        if norm > radius:
            w = [v * radius / norm for v in w]
        average = [(a * weights + t * v) / (weights + t) for a, v in zip(average, w, strict=True)]
        weights += t
        buffer = [*buffer, ([0.0] * dim if null(y) else list(x), y)][-size:]
        for name, value in (("w", w), ("average", average), ("total", total), ("gradient", steps)):
            out[name].append(list(value))
    return out


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


def prepared(
    raw: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    moments: tuple[Vector, Vector] | None,
    cap: float = math.inf,
) -> Vector:
    """The design of a record: declared bounds to [-1, 1], standardised, capped, on the unit ball."""
    x = []
    for i, (value, (low, high)) in enumerate(zip(raw, bounds, strict=True)):
        if not math.isfinite(value):
            x.append(0.0)
            continue
        scaled = (2 * value - low - high) / (high - low)
        if moments is not None:
            mean, std = moments[0][i], moments[1][i]
            scaled = (min(max(scaled, -1.0), 1.0) - mean) / std / math.sqrt(len(raw))
            scaled = min(max(scaled, -cap), cap)
        x.append(scaled)
    norm = math.hypot(*x)
    return [v / norm for v in x] if norm > 1 else x


def dense(column: Sequence[float]) -> np.ndarray:
    """Lower triangular Toeplitz matrix with the given first column."""
    n = len(column)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def fifo_influence(position: int, steps: int, size: int) -> np.ndarray:
    """v of the record at a position (from 0): 1 at its own step, 1/size in the next `size` steps."""
    v = np.zeros(steps)
    v[position] = 1.0
    v[position + 1 : position + 1 + size] = 1.0 / size
    return v


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
