"""Correlated noise: the variance of its prefix sums, from the matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def blt_variances(omega: Sequence[float], decay: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Squared norms of the rows of `A C^-1`, with C written out."""
    n = int(max(steps))
    powers = [[w * (1.0 - d) ** k for w, d in zip(omega, decay, strict=True)] for k in range(n)]
    column = [1.0, *(sum(row) for row in powers)][:n]
    c = np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    b = np.tril(np.ones((n, n))) @ np.linalg.inv(c)
    return [float((b[int(t) - 1] ** 2).sum()) if t > 0 else 0.0 for t in steps]
