"""DeLong's test against its definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair.evaluation import delong


def left_out(labels: Any, first: Any, second: Any, weights: Any) -> tuple[float, float, float]:
    """Both AUCs and the variance of their difference: leaving out one event after the other, pair by pair."""

    def auc(scores: Any, without: int = -1) -> float:
        wins = total = 0.0
        for i, positive in enumerate(labels):
            for j in (j for j, other in enumerate(labels) if positive and not other):
                weight = weights[i] * weights[j] * (without not in (i, j))
                wins += weight * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
                total += weight
        return wins / total

    gap, variance = auc(second) - auc(first), 0.0
    for kind in (True, False):
        places = [i for i, label in enumerate(labels) if label == kind]
        moves = [auc(second, i) - auc(first, i) - gap for i in places]
        variance += (len(places) - 1) / len(places) * sum(move**2 for move in moves)
    return auc(first), auc(second), variance


def plain(labels: Any, first: Any, second: Any) -> tuple[float, float, float]:
    """Both AUCs and the variance of their difference: equations 3 to 9 of the paper, pair by pair."""
    positives = [i for i, label in enumerate(labels) if label]
    negatives = [i for i, label in enumerate(labels) if not label]
    m, n = len(positives), len(negatives)

    def psi(scores: Any, i: int, j: int) -> float:
        return 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0

    aucs, v10, v01 = [], [], []
    for scores in (first, second):
        aucs.append(sum(psi(scores, i, j) for i in positives for j in negatives) / (m * n))
        v10.append([sum(psi(scores, i, j) for j in negatives) / n for i in positives])
        v01.append([sum(psi(scores, i, j) for i in positives) / m for j in negatives])
    covariance = np.cov(v10) / m + np.cov(v01) / n
    contrast = np.array([-1.0, 1.0])
    return aucs[0], aucs[1], float(contrast @ covariance @ contrast)


scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.0]), min_size=20, max_size=20)
weighing = st.lists(st.sampled_from([1.0, 1.0, 0.5, 20.0]), min_size=20, max_size=20)


@settings(max_examples=50, deadline=None)
@given(scores, scores, st.integers(2, 18), st.none() | weighing)
def test_it_is_the_formula_of_the_paper(
    first: list[float], second: list[float], positives: int, weights: list[float] | None
) -> None:
    """And with weights the jackknife, which is the paper's formula where all are equal."""
    labels = [i < positives for i in range(20)]
    found = delong(labels, first, second, weights)
    a, b, variance = left_out(labels, first, second, weights or [3.0] * 20)
    if weights is None:
        assert plain(labels, first, second) == pytest.approx((a, b, variance), abs=1e-12)
    assert found is not None
    assert (found.first, found.second) == pytest.approx((a, b), abs=1e-12)
    assert found.difference == pytest.approx(b - a, abs=1e-12)
    assert found.difference_stderr**2 == pytest.approx(variance, abs=1e-12)
    if variance > 1e-12:
        z = (b - a) / math.sqrt(variance)
        assert found.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2.0)), abs=1e-9)


def test_equal_scores_differ_by_nothing() -> None:
    found = delong([True, False] * 10, list(range(20)), list(range(20)))
    assert found is not None
    assert (found.difference, found.difference_stderr, found.p_value) == (0.0, 0.0, 1.0)
    assert delong([True, False, False], [1, 2, 3], [1, 2, 3]) is None


def test_its_level_is_that_of_the_test() -> None:
    """Of two equally good scores of the same events, correlated ones, a twentieth differ at p < 0.05."""
    rng = np.random.default_rng(5)
    rejected = 0
    for _ in range(400):
        labels = rng.random(200) < 0.3
        signal = labels + rng.normal(size=200)
        found = delong(labels, signal + rng.normal(size=200), signal + rng.normal(size=200))
        assert found is not None
        rejected += found.p_value < 0.05
    assert 5 <= rejected <= 37  # 20 of 400, at four standard deviations
