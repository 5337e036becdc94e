"""How good the latest scores are, against slow twins and River's detector."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from river import drift
from sklearn.metrics import average_precision_score

from streampair.evaluation import AUCWindow, Quality, quality_of
from streampair.evaluation.quality import BINS, placements


def events(n: int, gap: float, seed: int, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.3
    scores = rng.normal(size=n) + gap * labels
    return (np.round(scores) if ties else scores), labels


def told(scores: np.ndarray, labels: np.ndarray) -> Quality:
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
def test_against_slow_twins(n: int, ties: bool) -> None:
    scores, labels = events(n, 1.0, n, ties=ties)
    found = told(scores, labels)
    assert found.average_precision == pytest.approx(average_precision_score(labels, scores))
    assert found.recall_at_top["0.01"] == pytest.approx(recall(scores, labels, math.ceil(n / 100)), abs=0.02)
    assert (sum(found.positives), sum(found.negatives)) == (labels.sum(), n - labels.sum())
    unit = (scores - scores.mean()) / scores.std()
    at = np.minimum((BINS / (1.0 + np.exp(-unit))).astype(int), BINS - 1)
    assert list(found.positives) == np.bincount(at[labels], minlength=BINS).tolist()
    window = AUCWindow(n)
    window.extend(labels.tolist(), scores.tolist())
    for flag in (True, False):  # of each class by itself
        assert placements(scores, labels)[labels == flag].mean() == pytest.approx(window.get())
    again = quality_of(*window.events())
    assert again == found
    assert json.loads(json.dumps(found.as_dict()))["bins"] == BINS


def test_of_one_class_nothing_is_told() -> None:
    assert quality_of(np.zeros(0), np.zeros(0, dtype=bool)) is None
    assert quality_of(np.ones(4), np.ones(4, dtype=bool)) is None
    flat = told(np.ones(4), np.array([True, False, True, False]))
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
        assert not told(*changed(seed, 1.5, 1.5)).drift
        assert told(*changed(seed, 2.5, -0.5)).drift
        assert river(*changed(seed, 2.5, -0.5))
    alike = [told(*changed(seed, 2.0, 0.8)).drift == river(*changed(seed, 2.0, 0.8)) for seed in range(40)]
    assert sum(alike) >= 30
