"""Columns of numbers that are hard to put into bins."""

from __future__ import annotations

import numpy as np


def hard_columns(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Columns of n numbers that break a careless histogram, by what they are; NaN is missing."""
    return {
        "normal": rng.normal(size=n),
        "cauchy": rng.standard_cauchy(size=n),
        "lognormal": np.exp(4.0 * rng.normal(size=n)),
        "constant": np.full(n, 3.0),
        "one in 1,000": (rng.random(n) < 0.001) * 1.0,
        "99 % zeros": np.where(rng.random(n) < 0.99, 0.0, rng.exponential(size=n)),
        "counts": rng.poisson(4.0, n) * 1.0,
        "half missing": np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n)),
    }
