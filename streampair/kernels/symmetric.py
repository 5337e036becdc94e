"""Symmetric matrices: eigenvectors, the positive part and its square root, and how one is packed.

Packed, a matrix is its d (d + 1) / 2 isometric coordinates: the diagonal, and the entries beside it times
sqrt(2), row by row, so that norms and noise are those of the matrix. `metric_gradient` takes the rows of the
upper triangle, `second_moment_sums` those of the lower one. Noise under a key is a function of what it is
added to, in its order: in another order a replay of the same records would be a fork. So each
keeps the order that it was released in.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.vectors import dot

ROOT2 = math.sqrt(2.0)

TINY = 2.0**-400
"""Below this no entry counts in the eigenvalues of a matrix whose largest entry is about 1."""


@kernel
def _tridiagonal(u: Array, d: Array, e: Array) -> None:
    """Householder reduction of a symmetric matrix: `u` to the transposed rotation, d and e to the result."""
    n = d.shape[0]
    for j in range(n):
        d[j] = u[j, n - 1]
    for i in range(n - 1, 0, -1):
        size = 0.0
        for k in range(i):
            size += abs(d[k])
        h = 0.0
        if size == 0.0:
            e[i] = d[i - 1]
            for j in range(i):
                d[j] = u[j, i - 1]
                u[j, i] = 0.0
                u[i, j] = 0.0
        else:
            for k in range(i):
                d[k] /= size
                h += d[k] * d[k]
            f = d[i - 1]
            g = -math.sqrt(h) if f > 0.0 else math.sqrt(h)
            e[i] = size * g
            h -= f * g
            d[i - 1] = f - g
            for j in range(i):
                e[j] = 0.0
            for j in range(i):
                f = d[j]
                u[i, j] = f
                line = u[j]
                g = e[j] + line[j] * f
                for k in range(j + 1, i):
                    g += line[k] * d[k]
                    e[k] += line[k] * f
                e[j] = g
            f = 0.0
            for j in range(i):
                e[j] /= h
                f += e[j] * d[j]
            half = f / (h + h)
            for j in range(i):
                e[j] -= half * d[j]
            for j in range(i):
                f = d[j]
                g = e[j]
                line = u[j]
                for k in range(j, i):
                    line[k] -= f * e[k] + g * d[k]
                d[j] = line[i - 1]
                line[i] = 0.0
        d[i] = h
    for i in range(n - 1):
        u[i, n - 1] = u[i, i]
        u[i, i] = 1.0
        h = d[i + 1]
        reflector = u[i + 1]
        if h != 0.0:
            for k in range(i + 1):
                d[k] = reflector[k] / h
            for j in range(i + 1):
                line = u[j]
                g = dot(reflector[: i + 1], line[: i + 1])
                for k in range(i + 1):
                    line[k] -= g * d[k]
        for k in range(i + 1):
            reflector[k] = 0.0
    for j in range(n):
        d[j] = u[j, n - 1]
        u[j, n - 1] = 0.0
    u[n - 1, n - 1] = 1.0
    e[0] = 0.0


@kernel
def _diagonal(u: Array, d: Array, e: Array) -> None:
    """Implicit QL on what `_tridiagonal` left: eigenvalues to d, eigenvectors to the rows of u."""
    n = d.shape[0]
    for i in range(1, n):
        e[i - 1] = e[i]
    e[n - 1] = 0.0
    f = 0.0
    # Smaller entries count as 0: their squares and quotients would leave the range of floats.
    largest = TINY
    for at in range(n):
        largest = max(largest, abs(d[at]) + abs(e[at]))
        small = 2.220446049250313e-16 * largest
        m = at
        while m < n - 1 and abs(e[m]) > small:
            m += 1
        turns = 0
        while m > at and abs(e[at]) > small and turns < 100:
            turns += 1
            g = d[at]
            p = (d[at + 1] - g) / (2.0 * e[at])
            r = math.sqrt(p * p + 1.0)
            if p < 0.0:
                r = -r
            d[at] = e[at] / (p + r)
            d[at + 1] = e[at] * (p + r)
            next_d = d[at + 1]
            h = g - d[at]
            for i in range(at + 2, n):
                d[i] -= h
            f += h
            p = d[m]
            c = c2 = c3 = 1.0
            next_e = e[at + 1]
            sine = sine2 = 0.0
            for i in range(m - 1, at - 1, -1):
                c3 = c2
                c2 = c
                sine2 = sine
                g = c * e[i]
                h = c * p
                r = math.sqrt(p * p + e[i] * e[i])
                e[i + 1] = sine * r
                sine = e[i] / r if r > 0.0 else 0.0
                c = p / r if r > 0.0 else 1.0
                p = c * d[i] - sine * g
                d[i + 1] = h + sine * (c * g + sine * d[i])
                low = u[i]
                high = u[i + 1]
                for k in range(n):
                    h = high[k]
                    high[k] = sine * low[k] + c * h
                    low[k] = c * low[k] - sine * h
            p = -sine * sine2 * c3 * next_e * e[at] / next_d
            e[at] = sine * p
            d[at] = c * p
        d[at] += f
        e[at] = 0.0


@kernel
def eigen(a: Array, values: Array) -> None:
    """Eigenvalues of the symmetric matrix `a` (n, n), in no order; its rows become the eigenvectors.

    Householder reduction and implicit QL (Bowdler, Martin, Reinsch and Wilkinson 1968: tred2 and tql2 of
    EISPACK), on the transpose, so that inner loops run along rows. Only + - * / and square roots in one fixed
    order: the same bits on every processor, which a library of linear algebra does not promise.
    """
    n = a.shape[0]
    largest = 0.0
    for i in range(n):
        for j in range(n):
            largest = max(largest, abs(a[i, j]))
    if largest == 0.0:
        for i in range(n):
            values[i] = 0.0
            a[i, i] = 1.0
        return
    # By a power of two, so exactly: no square overflows or vanishes.
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    for i in range(n):
        for j in range(n):
            a[i, j] /= scale
    e = np.empty(n)
    _tridiagonal(a, values, e)
    _diagonal(a, values, e)
    for i in range(n):
        values[i] *= scale


@kernel
def cholesky(w: Array, factor: Array) -> bool:
    """Write the lower Cholesky factor of the symmetric matrix (d, d), of which the lower triangle is read.

    `factor` may be w. False if the matrix is not certainly positive definite.
    """
    for i in range(w.shape[0]):
        for j in range(i + 1):
            entry = w[i, j]
            left = entry - dot(factor[i, :j], factor[j, :j])
            if i == j:
                if not left > 1e-12 * entry:
                    return False
                factor[i, i] = math.sqrt(left)
            else:
                factor[i, j] = left / factor[j, j]
    return True


@kernel
def positive_definite(w: Array) -> bool:
    """Whether the symmetric matrix (d, d) is certainly positive definite: its Cholesky factor exists."""
    return cholesky(w, np.empty(w.shape))


@kernel
def project_psd(w: Array) -> None:
    """Project the symmetric matrix (d, d) in place onto the cone of positive semi-definite ones.

    Takes the negative part away, so that a matrix without one keeps its bits.
    """
    d = w.shape[0]
    if positive_definite(w):
        return
    vectors = w.copy()
    values = np.empty(d)
    eigen(vectors, values)
    for k in range(d):
        if values[k] < 0.0:
            vector = vectors[k]
            for i in range(d):
                scaled = values[k] * vector[i]
                row = w[i]
                for j in range(i + 1):
                    row[j] -= scaled * vector[j]
    for i in range(d):
        for j in range(i):
            w[j, i] = w[i, j]


@kernel
def psd_root(w: Array, out: Array) -> bool:
    """Symmetric square root of the positive part of a symmetric matrix (d, d); False if it has none."""
    d = w.shape[0]
    vectors = w.copy()
    values = np.empty(d)
    eigen(vectors, values)
    found = False
    for i in range(d):
        for j in range(d):
            out[i, j] = 0.0
    for k in range(d):
        if values[k] > 0.0:
            found = True
            root = math.sqrt(values[k])
            vector = vectors[k]
            for i in range(d):
                scaled = root * vector[i]
                row = out[i]
                for j in range(i + 1):
                    row[j] += scaled * vector[j]
    for i in range(d):
        for j in range(i):
            out[j, i] = out[i, j]
    return found


@kernel
def shrunken(values: Array, noise: float, out: Array) -> None:
    """Eigenvalues (d,) of a noisy matrix, pulled together (`ridge_solution`), without negative ones."""
    d = values.shape[0]
    for k in range(d):
        value = values[k]
        if noise > 0.0:
            pull = 0.0
            for j in range(d):
                gap = values[k] - values[j]
                pull += gap / (gap * gap + 0.5 * noise)
            value -= noise * pull
        out[k] = max(value, 0.0)


@kernel
def ridge_solution(w: Array, right: Array, ridge: float, noise: float, out: Array) -> float:
    """Solve `(W+ + ridge I) out = right`: W+ is the positive part of a symmetric matrix (d, d), ridge > 0.

    With `noise`, the variance of normal noise in a coordinate of the packed matrix, its eigenvalues are
    pulled together first. Noise pushes them apart, each away from its neighbours; the best matrix with the
    same eigenvectors has ``value - noise sum 1 / (value - other)`` (Bun, Allez, Bouchaud & Potters 2016),
    where differences below the noise count for less. Their sum stays. With noise 0 nothing is pulled.

    Returns the trace of the inverse.
    """
    d = w.shape[0]
    vectors = w.copy()
    values = np.empty(d)
    eigen(vectors, values)
    least = np.empty(d)
    shrunken(values, noise, least)
    for i in range(d):
        out[i] = 0.0
    trace = 0.0
    for k in range(d):
        vector = vectors[k]
        value = least[k] + ridge
        trace += 1.0 / value
        length = dot(vector, right) / value
        for i in range(d):
            out[i] += length * vector[i]
    return trace
