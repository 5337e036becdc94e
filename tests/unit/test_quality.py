"""How good the latest scores are, against reference implementations and River's detector."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from river import drift
from sklearn.metrics import average_precision_score, recall_score, roc_auc_score

from streampair.evaluation import AUCWindow, Quality, quality_of
from streampair.evaluation.quality import BINS, placements


def events(n: int, gap: float, seed: int, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.3
    scores = rng.normal(size=n) + gap * labels
    return (np.round(scores) if ties else scores), labels


def quality(scores: np.ndarray, labels: np.ndarray) -> Quality:
    found = quality_of(scores, labels)
    assert found is not None
    return found


def recall(scores: np.ndarray, labels: np.ndarray, most: int) -> float:
    """Mean over many orders of ties of the positives among the highest."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(2000):
        order = np.lexsort((rng.random(len(scores)), -scores))[:most]
        hits.append(labels[order].sum() / labels.sum())
    return float(np.mean(hits))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [7, 100, 901])
def test_against_slow_references(n: int, ties: bool) -> None:
    scores, labels = events(n, 1.0, n, ties=ties)
    found = quality(scores, labels)
    assert found.average_precision == pytest.approx(average_precision_score(labels, scores))
    assert found.recall_at_top["0.01"] == pytest.approx(recall(scores, labels, math.ceil(n / 100)), abs=0.02)
    assert (sum(found.positives), sum(found.negatives)) == (labels.sum(), n - labels.sum())
    unit = (scores - scores.mean()) / scores.std()
    bins = np.minimum((BINS / (1.0 + np.exp(-unit))).astype(int), BINS - 1)
    assert list(found.positives) == np.bincount(bins[labels], minlength=BINS).tolist()
    window = AUCWindow(n)
    window.extend(labels.tolist(), scores.tolist())
    for flag in (True, False):  # of each class by itself
        assert placements(scores, labels)[labels == flag].mean() == pytest.approx(window.get())
    again = quality_of(*window.events())
    assert again == found
    assert json.loads(json.dumps(found.as_dict()))["bins"] == BINS


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("threshold", [-9.0, 0.0, 1.0, 9.0])
def test_recall_at_the_threshold_of_an_operator(threshold: float, ties: bool) -> None:
    """A score that is the threshold counts as found."""
    scores, labels = events(400, 1.0, 2, ties=ties)
    found = quality_of(scores, labels, threshold=threshold)
    assert found is not None
    assert found.recall_at_threshold == pytest.approx(recall_score(labels, scores >= threshold))
    assert quality(scores, labels).recall_at_threshold is None


def test_the_auc_and_the_number_of_events_behind_it() -> None:
    scores, labels = events(12_000, 1.0, 6)
    window = AUCWindow(11_000)
    window.extend(labels.tolist(), scores.tolist())
    assert window.get() == pytest.approx(roc_auc_score(labels[-11_000:], scores[-11_000:]))
    assert quality(*window.events()).events == 11_000


def by_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """Standard error of the AUC by all pairs of events, as DeLong, DeLong and Clarke-Pearson have it."""
    wins = [[(p > n) + 0.5 * (p == n) for n in scores[~labels]] for p in scores[labels]]
    rows, columns = [np.mean(row) for row in wins], [np.mean(c) for c in zip(*wins, strict=True)]
    return math.sqrt(sum(np.var(part, ddof=1) / len(part) for part in (rows, columns)))


def of_positives_alone(scores: np.ndarray, labels: np.ndarray) -> float:
    values = placements(scores, labels)[labels]
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def as_reported(scores: np.ndarray, labels: np.ndarray) -> float:
    error = quality(scores, labels).auc_stderr
    assert error is not None
    return error


@pytest.mark.parametrize("ties", [False, True])
def test_the_standard_error_of_the_auc_against_a_slow_reference(ties: bool) -> None:
    scores, labels = events(60, 1.0, 1, ties=ties)
    assert as_reported(scores, labels) == pytest.approx(by_pairs(scores, labels))
    assert quality(np.array([1.0, 0.0, 0.5]), np.array([True, False, False])).auc_stderr is None


@pytest.mark.parametrize(("stderr", "right"), [(as_reported, True), (of_positives_alone, False)])
def test_the_standard_error_is_the_spread_of_the_auc(stderr: Any, right: bool) -> None:
    """Over 600 windows, which tell a spread to 3 %; of the positives alone it is too small."""
    found = [events(200, 1.0, seed) for seed in range(600)]
    spread = np.std([placements(*window)[window[1]].mean() for window in found])
    said = math.sqrt(np.mean([stderr(*window) ** 2 for window in found]))
    assert bool(abs(said / spread - 1.0) < 0.1) is right


def test_the_standard_error_counts_all_events_of_a_long_window() -> None:
    scores, labels = events(40_000, 1.0, 3)
    assert as_reported(scores, labels) == pytest.approx(as_reported(*events(10_000, 1.0, 4)) / 2.0, rel=0.05)


def logistic(scores: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-scores))


def strange(probabilities: Any, seed: int = 0) -> list[float]:
    """By how many standard errors the share of positives is off, of each tenth; labels are as `logistic`."""
    rng = np.random.default_rng(seed)
    scores = 2.0 * rng.normal(size=8000)
    found = quality_of(scores, rng.random(8000) < logistic(scores), probabilities)
    assert found is not None
    assert found.reliability is not None
    assert sum(n for *_, n in found.reliability) == 8000
    return [abs(share - mean) / error for mean, share, error, _ in found.reliability]


def test_reliability_of_right_and_of_wrong_probabilities() -> None:
    assert max(max(strange(logistic, seed)) for seed in range(20)) < 5.0
    assert max(strange(lambda scores: logistic(1.3 * scores))) > 5.0
    assert max(strange(lambda scores: logistic(scores + 0.3))) > 5.0


def test_reliability_against_a_slow_reference() -> None:
    scores, labels = events(300, 1.0, 5)
    found = quality_of(scores, labels, lambda values: np.where(values > 2.0, 1.0, logistic(values)))
    assert found is not None
    probabilities = [1.0 if s > 2.0 else 1.0 / (1.0 + math.exp(-s)) for s in scores]
    rows = []
    for level in range(10):
        inside = [i for i, p in enumerate(probabilities) if min(int(p * 10), 9) == level]
        if inside:
            mean = sum(probabilities[i] for i in inside) / len(inside)
            error = math.sqrt(sum(probabilities[i] * (1.0 - probabilities[i]) for i in inside)) / len(inside)
            rows.append((mean, sum(bool(labels[i]) for i in inside) / len(inside), error, len(inside)))
    for row, reference in zip(found.reliability or (), rows, strict=True):
        assert row == pytest.approx(reference)
    assert quality_of(scores, labels).reliability is None  # type: ignore[union-attr]


def test_one_class_has_no_quality() -> None:
    assert quality_of(np.zeros(0), np.zeros(0, dtype=bool)) is None
    assert quality_of(np.ones(4), np.ones(4, dtype=bool)) is None
    flat = quality(np.ones(4), np.array([True, False, True, False]))
    assert (flat.average_precision, flat.recall_at_top, flat.drift) == (0.5, {"0.01": 0.25}, False)


def changed(seed: int, before: float, after: float) -> tuple[np.ndarray, np.ndarray]:
    first, second = events(500, before, seed), events(500, after, seed + 1000)
    return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1]))


def river(scores: np.ndarray, labels: np.ndarray) -> bool:
    watch, found = drift.ADWIN(), False
    for value in placements(scores, labels).tolist():
        watch.update(value)
        found = found or watch.drift_detected
    return found


def test_a_change_is_seen_and_none_is_not() -> None:
    """As by River's detector; what is as before all along is a change of the AUC to neither."""
    for seed in range(20):
        assert not quality(*changed(seed, 1.5, 1.5)).drift
        assert quality(*changed(seed, 2.5, -0.5)).drift
        assert river(*changed(seed, 2.5, -0.5))
    alike = [quality(*changed(seed, 2.0, 0.8)).drift == river(*changed(seed, 2.0, 0.8)) for seed in range(40)]
    assert sum(alike) >= 30
