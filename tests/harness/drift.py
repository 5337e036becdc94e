"""Streams that change, and what a learner's scores are worth after each change."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score


def turning(n: int, every: int, d: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, d) in [-1, 1] and labels whose weights turn by 90 degrees every so many records.

    The best scorer has an AUC of about .92. Two turns are one by 180 degrees: what was learned is then wrong.
    """
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)).clip(-4.0, 4.0) / 4.0
    plane, _ = np.linalg.qr(rng.normal(size=(d, 2)))
    angle = np.arange(n) // every * (np.pi / 2.0)
    along = (rows @ plane[:, 0]) * np.cos(angle) + (rows @ plane[:, 1]) * np.sin(angle)
    return rows, rng.random(n) < 1.0 / (1.0 + np.exp(-12.0 * along))


def scores(model: Any, rows: np.ndarray, labels: np.ndarray, batch: int = 250) -> np.ndarray:
    """The score of each row under a model that has learned all batches before its own."""
    out = np.zeros(len(rows))
    for start in range(0, len(rows), batch):
        part = slice(start, start + batch)
        if start:
            out[part] = model.score_many(rows[part])
        model.learn_many(rows[part], labels[part])
    return out


def window_auc(found: np.ndarray, labels: np.ndarray, start: int, stop: int) -> float:
    """AUC of the scores of records start to stop."""
    return float(roc_auc_score(labels[start:stop], found[start:stop]))
