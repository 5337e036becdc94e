"""How good the latest scores are, against reference implementations and River's detector."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from river import drift
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

from streampair.evaluation import AUCWindow, Quality, quality_of
from streampair.evaluation.quality import BINS, placements, stderr_of_means


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
    assert found.reliability is None
    assert json.loads(json.dumps(found.as_dict()))["bins"] == BINS


@pytest.mark.parametrize("weight", [None, 1.0, 7.0])
def test_recall_and_precision_at_the_threshold_of_an_operator(weight: float | None) -> None:
    """A score that is the threshold counts as found."""
    for ties, threshold in itertools.product((False, True), (-9.0, 0.0, 1.0, 9.0)):
        scores, labels = events(400, 1.0, 2, ties=ties)
        weights = None if weight is None else np.where(scores >= 1.0, weight, 1.0)
        found = quality_of(scores, labels, weights, threshold=threshold)
        assert found is not None
        if threshold == 9.0 and weight == 7.0:  # no score is so high: nothing of those above was seen
            assert (found.explored_positives, found.recall_at_threshold) == (0, None)
            continue
        recall = recall_score(labels, scores >= threshold, sample_weight=weights)
        assert found.recall_at_threshold == pytest.approx(recall)
        if threshold == 9.0:
            assert found.precision_at_threshold is None
        else:
            precision = precision_score(labels, scores >= threshold, sample_weight=weights)
            assert found.precision_at_threshold == pytest.approx(precision)
    plain = quality(scores, labels)
    assert (plain.recall_at_threshold, plain.precision_at_threshold) == (None, None)


def weighted(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[float, float, list[tuple[float, float, float, int]]]:
    """AUC by all pairs, its standard error by leaving out each event, and points of the reliability."""
    wins = (scores[:, None] > scores[None]) + 0.5 * (scores[:, None] == scores[None])
    pairs = np.outer(weights * labels, weights * ~labels)
    value, variance = float((wins * pairs).sum() / pairs.sum()), 0.0
    for kind in (labels, ~labels):
        others = [np.arange(len(labels)) != i for i in np.flatnonzero(kind)]
        without = [(wins * pairs)[np.ix_(o, o)].sum() / pairs[np.ix_(o, o)].sum() for o in others]
        variance += (len(others) - 1) / len(others) * float(((np.array(without) - value) ** 2).sum())
    p, points = capped(scores), []
    for level in range(10):
        inside = np.minimum((p * 10).astype(int), 9) == level
        if inside.any():
            w, total = weights[inside], weights[inside].sum()
            error = math.sqrt((w**2 * p[inside] * (1.0 - p[inside])).sum()) / total
            share = (w * labels[inside]).sum() / total
            points.append(((w * p[inside]).sum() / total, share, error, int(inside.sum())))
    return value, math.sqrt(variance), points


def test_weights_against_slow_references() -> None:
    for ties in (False, True):
        scores, labels = events(150, 1.0, 4, ties=ties)
        against_references(scores, labels, np.ones(150))
        many = np.where(scores > -1.0, 5.0, np.random.default_rng(0).uniform(0.5, 1.0, 150))
        against_references(scores, labels, many)


def against_references(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
    found = quality_of(scores, labels, weights, probabilities=capped)
    assert found is not None
    explored = int((labels & (scores > -1.0)).sum()) if weights.max() > 1.0 else None
    assert (found.explored_positives, found.too_few) == (explored, False)
    value, error, points = weighted(scores, labels, weights)
    assert found.auc_stderr == pytest.approx(error)
    for row, reference in zip(found.reliability or (), points, strict=True):
        assert row == pytest.approx(reference)
    precision = average_precision_score(labels, scores, sample_weight=weights)
    assert found.average_precision == pytest.approx(precision)
    placed = placements(scores, labels, weights)
    for flag in (True, False):
        assert np.average(placed[labels == flag], weights=weights[labels == flag]) == pytest.approx(value)
    # A whole weight is so many events, but for the errors, and the unit of all weights is nothing.
    times = np.where(scores > -1.0, 5, 1)
    found = quality_of(scores, labels, times.astype(float), probabilities=logistic)
    many = quality_of(np.repeat(scores, times), np.repeat(labels, times), probabilities=logistic)
    assert found is not None
    assert many is not None
    assert found.average_precision == pytest.approx(many.average_precision)
    assert (found.positives, found.negatives) == (many.positives, many.negatives)
    assert found.recall_at_top["0.01"] == pytest.approx(many.recall_at_top["0.01"], abs=0.02)
    for one, other in zip(found.reliability or (), many.reliability or (), strict=True):
        assert one[:2] == pytest.approx(other[:2])
    for unit in (3.0, 1e150):
        same = quality_of(scores, labels, np.full(150, unit), probabilities=logistic)
        plain = quality_of(scores, labels, probabilities=logistic)
        assert same is not None
        assert plain is not None
        assert (same.auc_stderr, same.drift) == (pytest.approx(plain.auc_stderr), plain.drift)
        assert same.reliability == plain.reliability


def test_few_explored_positives_say_little() -> None:
    """Recall, precision and average precision need 30 of them, the standard error of the AUC 3."""
    scores, labels = np.linspace(0.0, 1.0, 400), np.arange(400) % 4 == 0
    for count in (0, 2, 3, 29, 30):
        explored = np.flatnonzero(labels)[-count:] if count else np.flatnonzero(~labels)[-5:]
        weights = np.ones(400)
        weights[explored] = 50.0
        weights[scores < 0.7] = 64.0  # of a sample of these events
        found = quality_of(scores, labels, weights, threshold=0.7)
        assert found is not None
        assert (found.explored_positives, found.too_few) == (count, count < 30)
        known = (found.average_precision, found.recall_at_threshold, found.precision_at_threshold)
        assert known == (None, None, None) if count < 30 else None not in known
        assert bool(found.recall_at_top) is (count >= 30)
        assert (found.auc_stderr is None) is (count < 3)
    # A long window is used whole, since few of its events are explored.
    many = np.tile(scores, 50), np.tile(labels, 50)
    rare = quality_of(*many, np.where(np.arange(20_000) % 400 == 396, 50.0, 1.0))
    assert rare is not None
    assert (rare.explored_positives, rare.too_few) == (50, False)
    # Where none is explored, weights cannot tell that events are missing.
    found = quality_of(scores, labels, stopped=True)
    assert found is not None
    assert (found.explored_positives, found.too_few, found.auc_stderr) == (0, True, None)
    plain = quality(scores, labels)
    assert (plain.explored_positives, plain.too_few) == (None, False)
    assert plain == quality_of(scores, labels, np.ones(400))


def test_the_auc_and_the_number_of_events_behind_it() -> None:
    scores, labels = events(12_000, 1.0, 6)
    window = AUCWindow(11_000)
    window.extend(labels.tolist(), scores.tolist())
    assert window.get() == pytest.approx(roc_auc_score(labels[-11_000:], scores[-11_000:]))
    assert quality(*window.events()[:2]).events == 11_000


def of_positives_alone(scores: np.ndarray, labels: np.ndarray) -> float:
    values = placements(scores, labels)[labels]
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def as_reported(scores: np.ndarray, labels: np.ndarray) -> float:
    error = quality(scores, labels).auc_stderr
    assert error is not None
    return error


def test_the_standard_error_is_the_spread_of_the_auc() -> None:
    """Over 600 windows, which tell a spread to 3 %; of the positives alone it is too small."""
    found = [events(200, 1.0, seed) for seed in range(600)]
    spread = np.std([placements(*window)[window[1]].mean() for window in found])
    for stderr, right in ((as_reported, True), (of_positives_alone, False)):
        said = math.sqrt(np.mean([stderr(*window) ** 2 for window in found]))
        assert bool(abs(said / spread - 1.0) < 0.1) is right


def as_if_repeated(values: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """A mutant: an event of weight w varies as w events do, so that weights are not squared."""
    parts = [(values[kind], weights[kind]) for kind in (labels, ~labels)]
    return math.sqrt(sum(np.cov(v, aweights=w, ddof=0) / w.sum() for v, w in parts))


def of_an_effective_sample(values: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """A mutant: DeLong's error, unweighted, of as many events as have the same spread of weights."""
    parts = [(values[kind], weights[kind]) for kind in (labels, ~labels)]
    return math.sqrt(sum(np.var(v, ddof=1) * (w**2).sum() / w.sum() ** 2 for v, w in parts))


def explored(seed: int, share: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is seen of 3,000 events whose score stops half of the positives, but for a share."""
    rng = np.random.default_rng(seed)
    labels = rng.random(3000) < 0.1
    scores = rng.normal(size=3000) + 2.0 * labels
    seen = (scores < 2.0) | (rng.random(3000) < share)
    return scores[seen], labels[seen], np.where(scores < 2.0, 1.0, 1.0 / share)[seen]


def test_weights_give_the_auc_of_all_events_and_its_standard_error() -> None:
    """Over 600 windows: the mean is the truth, which is not that of the events seen, and so is the spread.

    Two standard errors of the mean are .0011, and the spread is known to 3 %.
    """
    truth = 0.5 * (1.0 + math.erf(1.0))  # of normal scores whose means are 2 apart
    found: list[float] = []
    squares: dict[Any, list[float]] = {
        f: [] for f in (stderr_of_means, as_if_repeated, of_an_effective_sample)
    }
    let_pass = []
    for scores, labels, weights in map(explored, range(600)):
        placed = placements(scores, labels, weights)
        found.append(float(np.average(placed[labels], weights=weights[labels])))
        let_pass.append(placements(scores, labels)[labels].mean())
        for stderr, values in squares.items():
            values.append(stderr(placed, labels, weights) ** 2)
    assert abs(np.mean(found) - truth) < 0.003
    assert abs(np.mean(let_pass) - truth) > 0.03
    off = [math.sqrt(np.mean(values)) / np.std(found) for values in squares.values()]
    assert abs(off[0] - 1.0) < 0.1
    assert off[1] < 0.8
    assert off[2] > 1.2


def test_the_standard_error_counts_all_events_of_a_long_window() -> None:
    scores, labels = events(40_000, 1.0, 3)
    assert as_reported(scores, labels) == pytest.approx(as_reported(*events(10_000, 1.0, 4)) / 2.0, rel=0.05)


def logistic(scores: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-scores))


def capped(scores: np.ndarray) -> np.ndarray:
    return np.where(scores > 2.0, 1.0, logistic(scores))


def strange(probabilities: Any, seed: int = 0) -> list[float]:
    """By how many standard errors the share of positives is off, of each tenth; labels are as `logistic`."""
    rng = np.random.default_rng(seed)
    scores = 2.0 * rng.normal(size=8000)
    found = quality_of(scores, rng.random(8000) < logistic(scores), probabilities=probabilities)
    assert found is not None
    assert found.reliability is not None
    assert sum(n for *_, n in found.reliability) == 8000
    return [abs(share - mean) / error for mean, share, error, _ in found.reliability]


def test_reliability_of_right_and_of_wrong_probabilities() -> None:
    assert max(max(strange(logistic, seed)) for seed in range(20)) < 5.0
    assert max(strange(lambda scores: logistic(1.3 * scores))) > 5.0
    assert max(strange(lambda scores: logistic(scores + 0.3))) > 5.0


def test_one_class_has_no_quality() -> None:
    assert quality_of(np.zeros(0), np.zeros(0, dtype=bool)) is None
    assert quality_of(np.ones(4), np.ones(4, dtype=bool)) is None
    assert quality(np.array([1.0, 0.0, 0.5]), np.array([True, False, False])).auc_stderr is None
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
