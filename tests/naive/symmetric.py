"""Symmetric matrices with numpy's eigenvectors, and how one is packed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def project_psd(w: Any) -> Any:
    values, vectors = np.linalg.eigh(w)
    return vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T


def vector(matrix: np.ndarray) -> np.ndarray:
    """Isometric coordinates of a symmetric matrix: diagonal entries, and those beside it times sqrt(2)."""
    d = len(matrix)
    return np.array([matrix[i, j] * (1 if i == j else math.sqrt(2)) for i in range(d) for j in range(i, d)])


def matrix(coordinates: Sequence[float]) -> np.ndarray:
    """The symmetric matrix of `vector`."""
    d = round((math.sqrt(8 * len(coordinates) + 1) - 1) / 2)
    out, position = np.zeros((d, d)), 0
    for i in range(d):
        for j in range(i, d):
            out[i, j] = out[j, i] = coordinates[position] / (1 if i == j else math.sqrt(2))
            position += 1
    return out


def eigenvalues(w: np.ndarray) -> list[float]:
    return sorted(np.linalg.eigvalsh(w).tolist())


def positive_definite(w: np.ndarray) -> bool:
    return bool(np.linalg.eigvalsh(w)[0] > 0)


def psd_root(w: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(w)
    return np.asarray(vectors @ np.diag(np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def ridge_solution(w: np.ndarray, right: np.ndarray, ridge: float, noise: float) -> tuple[np.ndarray, float]:
    values, vectors = np.linalg.eigh(w)
    if noise:
        gaps = values[:, None] - values
        values = values - noise * np.sum(gaps / (gaps**2 + noise / 2), axis=1)
    inverse = vectors @ np.diag(1.0 / (np.maximum(values, 0.0) + ridge)) @ vectors.T
    return np.asarray(inverse @ right), float(np.trace(inverse))
