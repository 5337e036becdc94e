"""The risk of all pairs of a table, against pairs one by one."""

from __future__ import annotations

from typing import Any

import naive
import numpy as np
import pytest
from harness.every_loss import MARGIN

from streampair import losses
from streampair.offline.risk import LinearRisk, MetricRisk, packed, score_slopes, unpacked


def table(seed: int, n: int = 15, d: int = 3) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
    return rows, rng.choice([-1.0, 1.0], n), rng.normal(size=d)


@pytest.mark.parametrize("loss", MARGIN, ids=repr)
def test_the_gradient_is_that_of_the_pairs(loss: losses.PairLoss) -> None:
    for seed in range(3):
        rows, labels, w = table(seed)
        wanted = naive.risk_gradient(type(loss).__name__, w.tolist(), rows.tolist(), labels.tolist())
        assert LinearRisk(rows, labels, loss).gradient(w).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("loss", MARGIN, ids=repr)
def test_the_gradient_of_a_metric_is_that_of_the_pairs(loss: losses.PairLoss) -> None:
    rows, _, _ = table(1, n=12)
    rng = np.random.default_rng(2)
    w, labels = rng.normal(size=(3, 3)), rng.integers(0, 3, 12)
    w += w.T
    found = MetricRisk(rows, labels.astype(float), loss).gradient(packed(w))
    wanted = naive.metric_risk_gradient(type(loss).__name__, w.tolist(), rows.tolist(), labels.tolist())
    assert unpacked(found, 3) == pytest.approx(np.array(wanted))


def test_packed_matrices_keep_their_norm() -> None:
    w = np.random.default_rng(1).normal(size=(4, 4))
    w += w.T
    assert np.linalg.norm(packed(w)) == pytest.approx(np.linalg.norm(w))
    assert unpacked(packed(w), 4) == pytest.approx(w)


def test_many_pairs_are_cut_into_parts_of_the_same_sum() -> None:
    """From 100,000 pairs on threads share them; rows of a metric come in blocks."""
    rows, labels, w = table(1, n=700)
    scores = rows @ w
    whole = score_slopes(losses.Logistic(), scores, labels > 0)
    assert (whole == score_slopes(losses.Logistic(), scores, labels > 0)).all()
    margins = 2.0 * (scores[labels > 0, None] - scores[labels < 0])
    slopes = 2.0 * losses.Logistic().slope(margins) * 2.0 / (700 * 699)
    assert whole[labels > 0] == pytest.approx(slopes.sum(axis=1))
    assert whole[labels < 0] == pytest.approx(-slopes.sum(axis=0))
    risk = MetricRisk(rows, labels, losses.Hinge())
    step, point = 1e-6, np.array([0.1, 0.0, 0.2, 0.1, -0.1, 0.3])
    u = rows[:, None] - rows

    def value(w: Any) -> float:
        signs = np.where(labels[:, None] == labels, 1.0, -1.0)
        values = losses.Hinge().value(signs * (1.0 - np.einsum("ija,ab,ijb->ij", u, unpacked(w, 3), u)))
        return float((values.sum() - 700.0) / (700 * 699))

    ahead = [value(point + step * e) - value(point - step * e) for e in np.eye(6)]
    assert risk.gradient(point) == pytest.approx(np.array(ahead) / (2 * step), abs=1e-4)


@pytest.mark.parametrize("loss", MARGIN, ids=repr)
@pytest.mark.parametrize("task", ["auc", "metric"])
def test_a_record_moves_the_gradient_by_at_most_two_diameters_over_n(
    loss: losses.PairLoss, task: str
) -> None:
    """docs/privacy, Lemma 70: random tables, and the ones that reach it."""
    rng = np.random.default_rng(3)
    made: Any = LinearRisk if task == "auc" else MetricRisk
    bound = 2.0 * loss.diameter(1.0, 0.5, form="raw" if task == "auc" else "metric") / 20
    most = 0.0
    for trial in range(60):
        rows = rng.normal(size=(20, 2))
        rows /= np.linalg.norm(rows, axis=1)[:, None]
        labels = rng.choice([-1.0, 1.0], 20)
        if trial % 2:  # all others alike
            rows[:], labels[:] = [-1.0, 0.0], -1.0
        other, flipped = rows.copy(), labels.copy()
        other[-1] = [1.0, 0.0] if trial % 2 else rng.normal(size=2) / 3
        flipped[-1] *= -1.0
        if trial % 4 == 1:
            rows = other
        w = rng.normal(size=made(rows, labels, loss).dim)
        if trial % 2:
            w = np.eye(len(w))[0] * rng.choice([-1.0, 1.0])
        w *= 0.5 / np.linalg.norm(w)
        gradients = made(rows, labels, loss).gradient(w), made(other, flipped, loss).gradient(w)
        most = max(most, float(np.linalg.norm(gradients[0] - gradients[1])))
    assert 0.4 * bound <= most <= bound * (1 + 1e-12)
