"""Numbers by the library of mathematics, and the coin in whole numbers."""

from __future__ import annotations

import math

MASK = 2**64 - 1


def sigmoid(a: float) -> float:
    return 1.0 / (1.0 + math.exp(-a)) if a >= 0 else math.exp(a) / (1.0 + math.exp(a))


def uniform(seed: int, counter: int, lane: int) -> float:
    """SplitMix64 of (seed, counter, lane) in Python integers."""
    z = (seed + 0x9E3779B97F4A7C15 * (counter + 1)) & MASK
    z ^= (0xD1B54A32D192ED03 * (lane + 1)) & MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return (z >> 11) / 2**53


def exp_negative(a: float) -> float:
    return math.exp(-a)


def sigmoid_many(scores: list[float]) -> list[float]:
    return [sigmoid(a) for a in scores]


def sin_cos(a: float) -> tuple[float, float]:
    return math.sin(a), math.cos(a)


def log_one_plus(f: float) -> float:
    return math.log1p(f)


def log_positive(x: float) -> float:
    return math.log(x)


def sin_octant(a: float) -> float:
    return math.sin(a)


def cos_octant(a: float) -> float:
    return math.cos(a)


def cube_root(x: float) -> float:
    return x ** (1.0 / 3.0)


def two_thirds(x: list[float]) -> list[float]:
    return [value ** (2.0 / 3.0) for value in x]
