"""Drift of features, and quality before labels come, against slow references."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from harness.hard_columns import hard_columns
from sklearn.metrics import roc_auc_score

from streampair.engine.snapshot import pack, unpack
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.evaluation import FeatureDrift, QualityBeforeLabels, expected_auc


def mixed(n: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Records of numbers, texts, gaps, absent and odd values."""
    odd: list[Any] = [None, math.nan, math.inf, 10**400, -(10**400), True, "1", "\ud800", "", [1], b"x", {}]
    out = []
    for _ in range(n):
        x: dict[str, Any] = {"amount": rng.normal(), "city": f"c{int(rng.exponential(8.0))}"}
        x["odd"] = odd[rng.integers(len(odd))]
        if rng.random() < 0.3:
            x["sometimes"] = int(rng.integers(5))
        out.append(x)
    return out


def test_no_alarm_by_chance_whatever_a_column_holds() -> None:
    rng, drift, worst = np.random.default_rng(1), FeatureDrift(), 0.0
    for _ in range(120):
        table = hard_columns(500, rng) | {"missing": np.full(500, np.nan)}
        drift.update_rows(list(table), np.stack(list(table.values()), axis=1))
        worst = max(worst, *drift.psi.values(), 0.0)
        assert not drift.moved
    assert set(drift.psi) == set(table)
    assert 0.02 < worst < 0.1


def test_half_a_deviation_is_an_alarm_within_2000_events() -> None:
    """Of all distributions with a deviation the normal one moves the index least."""
    for draw in ("normal", "laplace", "logistic", "uniform", "exponential", "gumbel"):
        for seed in range(10):
            rng, drift = np.random.default_rng(seed), FeatureDrift()
            values = getattr(rng, draw)(size=14_345)
            values[-2000:] += 0.5 * values.std()
            drift.update_rows([draw], values[:-2000, None])
            assert not drift.drift_detected
            drift.update_rows([draw], values[-2000:, None])
            assert drift.drift_detected


def test_the_index_is_that_of_counts() -> None:
    """Of a feature of few values each has its bin."""
    rng, drift = np.random.default_rng(2), FeatureDrift(reference=3000, window=700)
    before, now = rng.integers(5, size=3000), rng.integers(1, 5, size=700)
    texts = [{"x": f"v{value}"} for value in (*before, *now)]
    drift.update_records(texts)
    p = np.bincount(before[500:], minlength=5) + 0.5
    p /= p.sum()
    q = (np.bincount(now, minlength=5) + p) / 701.0
    assert drift.psi["x"] == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=1e-9)
    numbers = FeatureDrift(reference=3000, window=700)
    numbers.update_rows(["x"], np.array([*before, *now], dtype=float)[:, None])
    assert numbers.psi["x"] == pytest.approx(drift.psi["x"], rel=1e-9)


def test_how_events_are_cut_changes_nothing() -> None:
    """One by one, in batches, and through snapshots at any place: the same state, to the byte."""
    rng = np.random.default_rng(3)
    records = mixed(4000, rng)
    records[700]["late"] = 1.0  # a feature that the first events lack is not watched
    for stride in (1, 3):
        whole = FeatureDrift(reference=1200 * stride if stride == 1 else 3000, window=300)
        single = FeatureDrift(whole.reference, 300)
        cut = FeatureDrift(whole.reference, 300)
        whole.update_records(records)
        begin = 0
        for x in records:
            single.update(x)
        while begin < len(records):
            size = int(rng.integers(1, 400))
            cut.update_records(records[begin : begin + size])
            begin += size
            if rng.random() < 0.5:
                cut.psi  # noqa: B018  (a question changes nothing)
            if rng.random() < 0.5:
                state = unpack(pack(cut.to_state()))
                cut = FeatureDrift(whole.reference, 300)
                cut.load_state(state)
        assert pack(whole.to_state()) == pack(cut.to_state()) == pack(single.to_state())
        assert whole.psi == cut.psi
        assert list(whole.psi) == ["amount", "city", "odd", "sometimes"]


def test_a_long_reference_is_an_even_sample() -> None:
    drift = FeatureDrift(reference=1_000_000)
    values = np.arange(1_000_000, dtype=float)[:, None]
    for begin in range(0, 1_000_000, 20_000):
        drift.update_rows(["day"], values[begin : begin + 20_000] % 86_400)
    assert drift._settled()._counts.sum() == 9995  # without the 500 events that the bins are made of
    drift.update_rows(["day"], values[:1000] * 86.4)
    assert not drift.drift_detected
    assert not drift.moved


def test_a_season_is_no_drift_where_the_reference_spans_it() -> None:
    """Values that swing by .35 deviations around their mean: a reference of a day, and of one morning."""
    rng, day, alarms = np.random.default_rng(4), 50_000, {}
    for span in (10_000, day):
        drift, found = FeatureDrift(reference=span), []
        for begin in range(0, 4 * day, 1000):
            season = 0.35 * np.sin(2.0 * np.pi * np.arange(begin, begin + 1000) / day)
            drift.update_rows(["x"], (rng.normal(size=1000) + season)[:, None])
            if begin >= day + 1000:
                found.append(drift.drift_detected)
        alarms[span] = float(np.mean(found))
    assert alarms[day] < 0.02
    assert alarms[10_000] > 0.2


CHANGES: list[tuple[Any, str]] = [
    (lambda x: {**x, "amount": None}, "missing"),
    (lambda x: {"city": x["city"], "odd": 1}, "missing"),
    (lambda x: {**x, "amount": 100.0 * x["amount"]}, "out of range"),
    (lambda x: {**x, "amount": str(x["amount"])}, "new values"),
    (lambda x: {**x, "city": "x" + x["city"]}, "new values"),
]


def test_what_leaves_the_reference_is_named_within_2000_events() -> None:
    rng, before = np.random.default_rng(5), FeatureDrift()
    before.update_records(mixed(13_000, rng))
    assert not before.moved
    for change, what in CHANGES:
        drift = FeatureDrift()
        drift.load_state(before.to_state())
        drift.update_records([change(x) for x in mixed(300, rng)])
        found = [each for each in drift.moved if each.what == what]
        assert found[0].name in ("amount", "city")
        assert found[0].now > 0.1 > found[0].before


def test_nothing_grows_without_end() -> None:
    """Thousands of features, texts that never come again, long ones."""
    rng, drift = np.random.default_rng(6), FeatureDrift(reference=2000)
    names = [f"f{j}" for j in range(3000)]
    rows = rng.normal(size=(500, 3000))
    for _ in range(8):
        drift.update_rows(names, rows)
    assert len(drift.psi) == 1000
    text = FeatureDrift(reference=2000)
    sizes = []
    tracemalloc.start()
    for begin in range(0, 20_000, 500):
        text.update_records([{"note": f"{begin + i} " + "x" * 1000, f"n{begin + i}": 1} for i in range(500)])
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] < 1.1 * sizes[20]
    assert len(pack(text.to_state())) < 2_000_000
    assert text.psi["note"] < 0.1  # all of them are new, before and now
    assert not [each for each in text.moved if each.name == "note"]


def test_another_reference_begins_anew_and_damage_is_said() -> None:
    rng, drift = np.random.default_rng(7), FeatureDrift()
    drift.update_records(mixed(12_000, rng))
    state = drift.to_state()
    other = FeatureDrift(reference=20_000)
    other.load_state(state)
    assert (other.n, drift.n, other.psi) == (0, 12_000, {})
    damages: list[dict[str, Any]] = [{"bins": {}}, {"codes": np.zeros((3, 1), dtype=np.uint8)}]
    for damage in damages:
        with pytest.raises(SnapshotError, match="undamaged"):
            drift.load_state(state | damage)
    with pytest.raises(ConfigError, match="1000 to"):
        FeatureDrift(reference=999)
    with pytest.raises(RecordError, match="dict"):
        drift.update("text")  # type: ignore[arg-type]


def slow_auc(scores: np.ndarray, p: np.ndarray) -> float:
    wins = pairs = 0.0
    for i in range(len(p)):
        for j in range(len(p)):
            if i != j:
                pairs += p[i] * (1.0 - p[j])
                wins += p[i] * (1.0 - p[j]) * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
    return wins / pairs


def test_the_expected_auc_is_a_sum_over_pairs() -> None:
    rng = np.random.default_rng(8)
    for n in (2, 3, 40):
        scores, p = rng.normal(size=n), rng.random(n)
        for values in (scores, np.round(scores)):
            assert expected_auc(values, p) == pytest.approx(slow_auc(values, p))
    scores = rng.normal(size=4000)
    p = 1.0 / (1.0 + np.exp(2.0 - scores))
    drawn = np.mean([roc_auc_score(rng.random(4000) < p, scores) for _ in range(30)])
    assert expected_auc(scores, p) == pytest.approx(drawn, abs=0.006)  # fails by chance once in 10,000
    nobody = np.zeros(3)
    assert expected_auc(nobody, nobody) is expected_auc(np.ones(1), np.ones(1)) is None
    with pytest.raises(ConfigError, match="each score"):
        expected_auc(nobody, nobody + 2.0)


def labelled(n: int, rng: np.random.Generator, gap: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are not normal, and labels."""
    labels = rng.random(n) < 0.2
    return np.exp(rng.normal(size=n) * 0.7 + gap * 0.7 * labels), labels


def test_expected_is_true_and_withheld_where_features_moved() -> None:
    rng, quality = np.random.default_rng(9), QualityBeforeLabels()
    scores, labels = labelled(30_000, rng)
    quality.features.update_rows(["x"], scores[:, None])
    quality.update_scores(scores.tolist())
    found = quality.get()
    assert found is not None
    assert (found.auc, found.moved) == (None, ())  # no label has come
    quality.update_labels(labels[:20].tolist(), scores[:20].tolist())
    found = quality.get()
    assert found is not None
    assert found.auc is None
    quality.update_labels(labels[20:6000].astype(np.int64), scores[20:6000])
    with pytest.raises(ConfigError, match="2 labels and 1 scores"):
        quality.update_labels([True, False], [1.0])
    found = quality.get()
    assert found is not None
    assert found.auc == pytest.approx(roc_auc_score(labels, scores), abs=0.03)
    assert found.positive_share == pytest.approx(0.2, abs=0.04)
    assert found.score_psi is not None
    assert found.score_psi < 0.1
    again = QualityBeforeLabels()
    again.load_state(unpack(pack(quality.to_state())))
    assert again.get() == found
    assert pack(again.to_state()) == pack(quality.to_state())
    for _ in range(100):
        quality.update({"x": None}, float(rng.normal()))
    found = quality.get()
    assert found is not None
    assert (found.auc, found.positive_share, found.moved[0].what) == (None, None, "missing")
    assert found.as_dict()["moved"][0]["name"] == "x"
    with pytest.raises(RecordError, match="finite"):
        quality.update({"x": 1.0}, math.nan)


def test_the_reference_of_scores_begins_with_the_first_that_differs() -> None:
    """A private model gives 0 until its warm-up is over."""
    rng, quality = np.random.default_rng(10), QualityBeforeLabels(1000, 200)
    quality.features.update_rows(["x"], rng.normal(size=(3000, 1)))
    quality.update_scores([0.0] * 1500)
    found = quality.get()
    assert found is not None
    assert found.score_psi is None
    quality.update_scores(rng.normal(size=1500).tolist())
    found = quality.get()
    assert found is not None
    assert found.score_psi is not None
    assert found.score_psi < 0.3  # of 200 events
    state = quality.to_state()
    with pytest.raises(SnapshotError, match="undamaged"):
        QualityBeforeLabels(1000, 200).load_state(state | {"flags": np.zeros(3, dtype=np.bool_)})
