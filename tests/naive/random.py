"""Random numbers that are functions of a key or a seed, one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

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
