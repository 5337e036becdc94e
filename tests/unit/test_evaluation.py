"""RollingAUC against scikit-learn; the regret estimate against brute force."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from river import datasets, evaluate, linear_model, metrics
from scipy.optimize import minimize as scipy_minimize
from sklearn.metrics import roc_auc_score

from streampair import auc, losses
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.evaluation import (
    AUCWindow,
    Regret,
    RegretEstimate,
    RollingAUC,
    average_precision,
    delong,
    quality_of,
)
from streampair.evaluation.comparator import Pairs, minimise
from streampair.evaluation.reservoirs import StepReservoir
from streampair.kernels import rolling_auc

Array = NDArray[np.float64]

# ---- AUC -----------------------------------------------------------------------------------------------

Event = tuple[bool, float, float]  # label, score, weight


def weighing(weights: st.SearchStrategy[float]) -> st.SearchStrategy[list[Event]]:
    numbers = st.integers(-3, 3).map(float) | st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0])
    return st.lists(st.tuples(st.booleans(), numbers, weights), max_size=60)


events = weighing(st.just(1.0)) | weighing(st.sampled_from([1.0, 1.0, 50.0, 1.0 / 3.0]))


def naive_auc(rows: list[Event]) -> float:
    """Every pair, one by one."""
    pairs = [((s > s2) + 0.5 * (s == s2), w * w2) for y, s, w in rows if y for y2, s2, w2 in rows if not y2]
    return sum(win * w for win, w in pairs) / sum(w for _, w in pairs) if pairs else math.nan


@settings(deadline=None)
@given(rows=events, window=st.integers(1, 40))
def test_the_auc_is_exact(rows: list[Event], window: int) -> None:
    metric = RollingAUC(window)
    for y, score, w in rows:
        metric.update(y, score, w)
        metric.get()
    tail = rows[-window:]
    assert metric.n == len(tail)
    expected = naive_auc(tail)
    if all(w == 1.0 for *_, w in tail):
        assert repr(metric.get()) == repr(expected)
    else:  # of floats: exact but for rounding
        assert metric.get() == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)
    if not math.isnan(expected) and all(math.isfinite(s) for _, s, _ in tail):
        labels, scores, weights = zip(*tail, strict=True)
        wanted = roc_auc_score(labels, scores, sample_weight=weights)
        assert metric.get() == pytest.approx(wanted, abs=1e-12)


@settings(deadline=None)
@given(rows=events, extra=events, window=st.integers(1, 20), cut=st.integers(0, 60))
def test_the_auc_in_bulk_reverted_and_restored(
    rows: list[Event], extra: list[Event], window: int, cut: int
) -> None:
    one, bulk = RollingAUC(window), RollingAUC(window)
    for event in rows:
        one.update(*event)
    for part in (rows[:cut], rows[cut:]):
        weights = [w for *_, w in part]
        bulk.extend([y for y, *_ in part], [score for _, score, _ in part], weights if any(weights) else None)
    reference = RollingAUC(window)
    reference.load_state(bulk.to_state())
    assert ("weights" in bulk.to_state()) == any(w != 1.0 for *_, w in rows[-window:])
    for event in extra:
        for metric in (one, bulk, reference):
            metric.update(*event)
    assert repr(one.get()) == repr(bulk.get()) == repr(reference.get())
    if extra and len(rows) + len(extra) <= window:
        one.revert(*extra[-1])
        assert repr(one.get()) == repr(auc_of([*rows, *extra[:-1]], window))


def auc_of(rows: list[Event], window: int) -> float:
    metric = RollingAUC(window)
    for event in rows:
        metric.update(*event)
    return metric.get()


def depth(metric: AUCWindow) -> int:
    """How many nodes the longest way down the tree passes, and a check that its counts add up."""
    state, window = metric._state, metric.size
    nodes = state[rolling_auc.AUC_HEADER + 2 * window :].reshape(window + 1, rolling_auc.AUC_NODE)
    level, deepest = [int(state[rolling_auc.AUC_ROOT])], 0
    while level := [node for node in level if node]:
        deepest += 1
        for node in level:
            children = nodes[nodes[node, 1:3].astype(int)]
            assert (nodes[node, 7:9] == nodes[node, 5:7] + children[:, 7:9].sum(axis=0)).all()
        level = [int(child) for node in level for child in nodes[node, 1:3]]
    return deepest


def test_an_event_costs_the_logarithm_of_the_window() -> None:
    """The way down is short for every order of the scores, also those that a plain tree is bad at."""
    window, n = 4096, 10_000
    i = np.arange(n)
    orders = {
        "rising": i,
        "falling": -i,
        "zigzag": i * (-1.0) ** i,
        "constant": 0 * i,
        "random": np.random.default_rng(0).normal(size=n),
    }
    for order in orders.values():
        scores = order.astype(float)
        metric = AUCWindow(window)
        for positive, score in zip((i % 3 == 0).tolist(), scores.tolist(), strict=True):
            metric.add(positive, score)  # one by one: of many only the last would come into the tree
        assert depth(metric) <= 40  # 2.9 log2 of the window is what to expect
        assert metric._state[rolling_auc.AUC_USED] <= window + 1
        expected = roc_auc_score(i[-window:] % 3 == 0, scores[-window:])
        assert metric.get() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=200)
@given(
    window=st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["get", "state", "copy", "add", ""]))),
)
def test_events_may_be_counted_late(window: int, steps: list[tuple[int, str]]) -> None:
    """Whenever it is asked, the AUC is that of the latest events, however many came since."""
    late, reference, rng = AUCWindow(window), AUCWindow(window), np.random.default_rng(window)
    for count, then in steps:
        labels, scores = (rng.random(count) < 0.4).tolist(), rng.integers(0, 6, count).astype(float).tolist()
        weights = rng.choice([1.0, 4.0], count).tolist() if count % 3 == 0 else [1.0] * count
        late.extend(labels, scores, weights if count % 3 == 0 else None)
        for event in zip(labels, scores, weights, strict=True):
            reference.add(*event)
        if then == "get":
            assert repr(late.get()) == repr(reference.get())
        elif then == "state":
            assert repr(late.to_state()) == repr(reference.to_state())
        elif then == "copy":
            late = pickle.loads(pickle.dumps(late))
        elif then == "add":
            late.add(True, 3.0)
            reference.add(True, 3.0)
        assert len(late._labels) <= 2 * window
    assert repr((late.get(), late.n)) == repr((reference.get(), reference.n))


def test_a_copy_of_the_auc_goes_on_the_same() -> None:
    metric = RollingAUC(7)
    scores = np.random.default_rng(1).integers(0, 5, 60) / 5
    for i, score in enumerate(scores.tolist()):
        copies = [metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))]
        for each in copies:
            each.update(i % 2 == 0, score)
        assert len({each.get() for each in copies if each.n > 1}) <= 1
    assert len(pickle.dumps(RollingAUC(100_000))) < 2000


def test_the_auc_is_undefined_with_one_class() -> None:
    metric = RollingAUC()
    assert math.isnan(metric.get())
    metric.update(True, 0.3)
    assert math.isnan(metric.get())
    metric.update(False, 0.1)
    assert metric.get() == 1.0


def test_a_score_without_a_rank_is_refused() -> None:
    metric, without_rank = RollingAUC(), (math.nan, "high", None, {True: math.nan})
    metric.update(True, 0.3)
    for score in without_rank:
        with pytest.raises(RecordError, match="no rank"):
            metric.update(False, score)
    assert metric.n == 1


def test_the_auc_is_a_river_metric() -> None:
    metric = RollingAUC(window=5000)
    value = evaluate.progressive_val_score(datasets.Phishing(), linear_model.LogisticRegression(), metric)
    assert value is metric
    river = evaluate.progressive_val_score(
        datasets.Phishing(), linear_model.LogisticRegression(), metrics.RollingROCAUC(5000)
    )
    assert metric.get() == pytest.approx(river.get(), abs=1e-3)  # River's is off a little where scores tie
    assert not metric.requires_labels
    assert metric.works_with_weights
    assert metric.bigger_is_better
    assert metric.works_with(auc.PairOGD())
    assert isinstance(metric + metrics.Accuracy(), metrics.base.Metrics)
    assert repr(metric).startswith("RollingAUC: ")
    assert metric.clone().window == 5000


def test_the_auc_with_another_positive_label() -> None:
    metric = RollingAUC(positive="fraud")
    for y, p in [("fraud", {"fraud": 0.9, "fine": 0.1}), ("fine", {"fine": 1.0}), ("fine", {})]:
        metric.update(y, p)
    assert metric.get() == 1.0


def test_windows_that_hold_nothing_are_refused() -> None:
    windows: tuple[Any, ...] = (0, -1, 2.5, True, "many")
    for window in windows:
        with pytest.raises(ConfigError, match="window"):
            RollingAUC(window)


def test_what_was_never_added_cannot_be_reverted() -> None:
    metric = RollingAUC()
    metric.update(True, 0.5)
    for event in ((False, 0.5), (True, 0.5, 2.0)):
        with pytest.raises(RecordError, match="no such event"):
            metric.revert(*event)
    metric.update(False, 0.5, w=2.0)
    for event in ((False, 0.5), (True, 0.5, 2.0)):
        with pytest.raises(RecordError, match="no such event"):
            metric.revert(*event)
    metric.revert(False, 0.5, 2.0)
    assert (metric.n, "weights" in metric.to_state()) == (1, False)


def test_a_weight_is_a_number_whose_ratio_to_others_is_one() -> None:
    for ends in ((1e-150, 1e150), (1e150, 1e-150)):  # the extremes give figures
        labels, scores, weights = [True, False] * 20, [0.3, 0.2, 0.1, 0.4] * 10, [*ends] * 20
        metric = RollingAUC()
        for label, score, w in zip(labels, scores, weights, strict=True):
            metric.update(label, score, w)
        assert metric.get() == pytest.approx(0.25)
        columns = np.array(scores), np.array(labels), np.array(weights)
        found = quality_of(*columns, threshold=0.2)
        assert found is not None
        assert (found.auc_stderr is None) is (found.explored_positives == 0)
        assert 0.0 <= (average_precision(*columns) or 0.0) <= 1.0
        compared = delong(labels, scores, scores[::-1], weights)
        assert compared is not None
        assert math.isfinite(compared.first + compared.first_stderr + compared.p_value)
    metric = RollingAUC()
    metric.update(True, 0.3, w=np.float32(4.0))  # type: ignore[arg-type]
    for wrong in (0.0, -1.0, math.nan, math.inf, 1e-151, 1e151, 10**400, "2", None):
        with pytest.raises(RecordError, match="weight"):
            metric.update(False, 0.3, w=wrong)  # type: ignore[arg-type]
    for many in ([1.0], [1.0, 0], [math.nan, 1.0], [1, 10**400], ["a", 1], [1e-200, 1e200], [[1.0, 1.0]]):
        with pytest.raises(ConfigError, match="weight"):
            metric.extend([True, False], [0.3, 0.2], many)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="weight"):
            delong([True, False], [0.3, 0.2], [0.1, 0.4], many)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 labels and 1 scores"):
        metric.extend([True, False], [0.3])
    assert metric.n == 1
    state = metric.to_state()
    for damaged in (np.zeros(1), np.ones(2), np.array([math.inf]), np.ones(1, np.float32)):
        with pytest.raises(SnapshotError):
            RollingAUC().load_state(state | {"weights": damaged})


def test_a_damaged_auc_is_refused() -> None:
    state = RollingAUC().to_state()
    with pytest.raises(SnapshotError):
        RollingAUC().load_state(state | {"labels": np.zeros(3)})
    with pytest.raises(SnapshotError):
        RollingAUC().load_state(state | {"labels": np.zeros(1, bool), "scores": np.array([math.nan])})


# ---- the comparator ------------------------------------------------------------------------------------


def problem(seed: int, n: int = 300, d: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=d)
    return rng.normal(size=(n, d)) + 0.4 * w, rng.random(n)


@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic(), losses.SquaredHinge(), losses.Square()])
@pytest.mark.parametrize("radius", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_comparator_is_as_good_as_scipys(loss: Any, radius: float, seed: int) -> None:
    rows, weights = problem(seed)
    mass = weights.sum()

    def value(w: Array) -> float:
        return float(weights @ loss.value(rows @ w)) / mass

    def gradient(w: Array) -> Array:
        return np.asarray((weights * loss.slope(rows @ w)) @ rows / mass)

    ours = minimise(Pairs(rows), weights, loss, radius, np.zeros(4))
    ball = {"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2.0 * w}
    best = math.inf
    for start in (np.zeros(4), 0.9 * ours):  # the hinge has kinks that stop a smooth solver
        found = scipy_minimize(
            value,
            start,
            jac=gradient,
            constraints=[ball],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )
        inside = found.x * min(1.0, radius / max(float(np.linalg.norm(found.x)), 1e-300))
        best = min(best, value(inside))
    assert np.linalg.norm(ours) <= radius * (1 + 1e-12)
    assert value(ours) <= best + 2e-4


# ---- the regret ----------------------------------------------------------------------------------------


class Stream:
    """A stream that drifts, a learner on it, and its regret by brute force."""

    def __init__(self, n: int, d: int, share: float, loss: Any, radius: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        direction = rng.normal(size=d)
        self.y = rng.random(n) < share
        sign = np.where(self.y, 1.0, -1.0)
        self.x = rng.normal(size=(n, d)) / math.sqrt(d) + 0.25 * np.outer(sign, direction)
        self.x += np.outer(np.linspace(-0.5, 0.5, n), rng.normal(size=d)) * (0.3 + self.y[:, None])
        self.loss, self.radius = loss, radius
        self.weights = np.zeros((n, d))  # before each event
        w = np.zeros(d)
        for t in range(1, n):
            if self.y[t] != self.y[t - 1]:
                v = 2.0 * sign[t] * (self.x[t] - self.x[t - 1])
                w = w - 0.7 * radius / math.sqrt(t) * loss.slope(float(v @ w)) * v
                w *= min(1.0, radius / max(float(np.linalg.norm(w)), 1e-12))
            self.weights[t] = w
        rows, weights = [], []
        self.learner = 0.0
        for t in range(1, n):
            others = np.flatnonzero(self.y[:t] != self.y[t])
            rows.append(2.0 * sign[t] * (self.x[t] - self.x[others]))
            weights.append(np.full(len(others), 1.0 / t))
            self.learner += float(loss.value(rows[-1] @ self.weights[t - 1 + 1]).sum()) / t
        self.rows, self.pair_weights = np.concatenate(rows), np.concatenate(weights)
        best = minimise(Pairs(self.rows), self.pair_weights, loss, radius, np.zeros(d), iterations=500)
        self.comparator = float(self.pair_weights @ loss.value(self.rows @ best))
        self.regret = self.learner - self.comparator
        self.names = [f"f{j}" for j in range(d)]
        self.dicts = [dict(zip(self.names, row, strict=True)) for row in self.x.tolist()]

    def observe(self, regret: Regret, start: int = 0, stop: int | None = None) -> None:
        for t in range(start, len(self.y) if stop is None else stop):
            w = self.weights[t]
            score = float(self.x[t] @ w)
            regret.observe(
                self.dicts[t],
                bool(self.y[t]),
                score,
                lambda x, w=w: float(np.array([x[name] for name in self.names]) @ w),
            )

    def estimate(self, seed: int, kind: type[Regret] = Regret, **options: Any) -> RegretEstimate:
        regret = kind(self.loss, self.radius, seed=seed, **{"pairs": 128, "exact": 16, **options})
        self.observe(regret)
        estimate = regret.estimate()
        assert estimate is not None
        return estimate


@pytest.mark.parametrize(
    ("loss", "share", "radius"),
    [(losses.Hinge(), 0.5, 2.0), (losses.Logistic(), 0.3, 2.0), (losses.Hinge(), 0.05, 10.0)],
)
def test_exact_while_everything_fits(loss: Any, share: float, radius: float) -> None:
    stream = Stream(90, 3, share, loss, radius, seed=1)
    estimate = stream.estimate(0, exact=90)
    assert estimate.exact
    assert estimate.stderr == 0.0
    assert estimate.n == 90
    assert estimate.pair_loss * 89 == pytest.approx(stream.learner, rel=1e-12)
    assert estimate.total == pytest.approx(stream.regret, abs=1e-3 * max(1.0, stream.comparator))
    assert estimate.average == pytest.approx(estimate.total / 89)
    assert estimate.average_stderr == 0.0


CASES = {
    "balanced": (700, 4, 0.5, losses.Hinge(), 2.0),
    "rare positives": (700, 4, 0.05, losses.Hinge(), 2.0),
    "logistic": (700, 4, 0.4, losses.Logistic(), 2.0),
    "many features": (700, 20, 0.4, losses.Hinge(), 3.0),
}


@pytest.fixture(scope="module", params=CASES)
def drifting(request: pytest.FixtureRequest) -> Stream:
    return Stream(*CASES[request.param], seed=7)


def share_within(stream: Stream, runs: int, kind: type[Regret] = Regret, factor: float = 1.0) -> float:
    """How often the estimate is within `factor` stated errors of brute force."""
    close = 0
    for seed in range(runs):
        estimate = stream.estimate(seed, kind)
        close += abs(estimate.total - stream.regret) <= factor * estimate.stderr
    return close / runs


@pytest.mark.slow
def test_within_its_stated_error_of_brute_force(drifting: Stream) -> None:
    """Three stated errors in at least 95 % of 40 samples; and the error still says something."""
    assert share_within(drifting, 40, factor=3.0) >= 0.95
    estimate = drifting.estimate(99)
    assert estimate.stderr < drifting.learner
    assert not estimate.exact


@pytest.mark.slow
def test_a_learner_that_loses_rarely_but_much_needs_a_larger_sample() -> None:
    """Its few large losses, most of them early, make a small sample look surer than it is."""
    stream = Stream(700, 20, 0.5, losses.Hinge(), 30.0, seed=7)
    close = 0
    for seed in range(40):
        estimate = stream.estimate(seed, pairs=512, exact=64)
        close += abs(estimate.total - stream.regret) <= 3.0 * estimate.stderr
    assert close >= 38


class Latest(Regret):
    """Mutant: the partner is always the record that came last, so all that drifted away goes unseen."""

    def _partner(self, stratum: int, chance: float) -> Any:
        return max(self._records[-1 - stratum].items, key=lambda kept: kept.id, default=None)


class Unweighted(Regret):
    """Mutant: forgets that the sample thins out with time."""

    def _sampled(self) -> Any:
        with mock.patch.object(StepReservoir, "_odds", lambda self, numbers: np.full(len(numbers), 1e-3)):
            return super()._sampled()


class Overconfident(Regret):
    """Mutant: a quarter of the stated error."""

    def estimate(self, design_many: Any = None) -> RegretEstimate | None:
        estimate = super().estimate(design_many)
        return estimate and dataclasses.replace(estimate, stderr=estimate.stderr / 4.0)


@pytest.mark.slow
def test_mutants_are_noticed() -> None:
    """The comparison with brute force must tell an estimate that is off from one that is not."""
    balanced = Stream(*CASES["balanced"], seed=7)
    assert share_within(balanced, 40, Overconfident, factor=3.0) < 0.9
    drift = Stream(700, 2, 0.5, losses.Hinge(), 5.0, seed=5)
    assert share_within(drift, 40, factor=3.0) >= 0.95
    assert share_within(drift, 40, Latest, factor=3.0) < 0.9
    # The steps 16 to 99 of a stream, as a sample of all its steps represents them.
    truth = sum(np.count_nonzero(drift.y[:t] != drift.y[t]) / t for t in range(16, 100))
    right, wrong = (
        np.mean([early_weight(drift, kind, seed) for seed in range(40)]) for kind in (Regret, Unweighted)
    )
    assert abs(right - truth) < 0.1 * truth
    assert abs(wrong - truth) > 0.3 * truth


def early_weight(stream: Stream, kind: type[Regret], seed: int) -> float:
    """The weight of the sampled steps before event 100."""
    regret = kind(pairs=128, exact=16, seed=seed)
    stream.observe(regret)
    pairs = regret._sampled()
    return sum(w for w, step in zip(pairs.weight.tolist(), pairs.steps, strict=True) if step.record.id < 100)


def test_a_snapshot_goes_on_the_same() -> None:
    for cut in (0, 5, 16, 17, 60, 200, 399):
        stream = Stream(400, 3, 0.3, losses.Hinge(), 2.0, seed=2)
        whole = Regret(pairs=32, exact=16, radius=2.0, seed=4)
        stream.observe(whole, 0, cut)
        again = Regret(pairs=32, exact=16, radius=2.0, seed=4)
        again.load_state(whole.to_state())
        for regret in (whole, again):
            stream.observe(regret, cut)
        assert repr(whole.to_state()) == repr(again.to_state())
        assert whole.estimate() == again.estimate()


@pytest.mark.parametrize("names", [3, 400])
@pytest.mark.parametrize("cut", [10, 100, 300])
def test_records_of_many_different_features(names: int, cut: int) -> None:
    """A snapshot is the same, and goes on the same."""
    rng = np.random.default_rng(names)
    rows = []
    for _ in range(400):
        first, second = rng.choice(names, 2, replace=False).tolist()
        rows.append({f"f{first}": float(rng.normal()), f"f{second}": float(rng.normal())})
    whole, again = (Regret(pairs=32, exact=16, seed=4) for _ in range(2))

    def observe(regret: Regret, start: int, stop: int) -> None:
        for t in range(start, stop):
            regret.observe(rows[t], t % 3 == 0, 0.1 * t, lambda x: sum(x.values()))

    observe(whole, 0, cut)
    again.load_state(whole.to_state())
    assert repr(again.to_state()) == repr(whole.to_state())
    for regret in (whole, again):
        observe(regret, cut, 400)
    assert repr(again.to_state()) == repr(whole.to_state())
    assert again.estimate() == whole.estimate()
    assert all(kept.row == rows[kept.id] for kept in whole._in_use())


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *(("steps", None, []), ("kept", None, {}), ("first", None, 5), ("first", None, 3)),
        *(("kept", "values", np.zeros(1)), ("kept", "which", np.full(40, 7))),
        *(("steps", name, -1) for name in ("count", "blocks", "last")),
        *(("steps", name, np.zeros(3)) for name in ("ids", "ranks", "order", "margins", "weights")),
        *(("steps", name, np.full(17, -1)) for name in ("ids", "numbers", "places", "next_ranks", "chances")),
        *(("steps", "partners", np.full(17, 10**6)), ("steps", "ranks", np.full(17, math.inf))),
        *(("records", "log_w", math.nan), ("records", "count", 3), ("records", "ids", np.full(16, -1))),
        *(("records", "places", np.full(256, 16)), ("records", "numbers", np.arange(256, 0, -1))),
    ],
)
def test_a_damaged_sample_is_refused(part: str, name: str | None, value: Any) -> None:
    """Its counters say which events enter, and its numbers where records are."""
    stream = Stream(40, 3, 0.5, losses.Hinge(), 2.0, seed=2)
    regret = Regret(pairs=32, exact=4)
    stream.observe(regret)
    state: dict[str, Any] = regret.to_state()
    if name is None:
        state[part] = value
    elif part == "kept":
        state[part] = {**state[part], name: value}
    else:
        state[part] = [{**state[part][0], name: value}, *state[part][1:]]
    with pytest.raises(SnapshotError, match="cannot be read"):
        Regret(pairs=32, exact=4).load_state(state)


class Late(Regret):
    """Mutant: the margin of a partner is that of an earlier one."""

    def record_score(self, step: Any, score: float, partner_score: float) -> None:
        self.before, now = partner_score, getattr(self, "before", 0.0)
        super().record_score(step, score, now)


@pytest.mark.parametrize(
    ("kind", "width", "form"),
    [*((Regret, width, form) for width in (3, 37) for form in (list, bytes)), (Late, 37, list)],
)
def test_a_batch_that_is_drawn_first_as_one_by_one(kind: type[Regret], width: int, form: Any) -> None:
    """Also where nobody of a batch enters; the first events are always taken one by one."""
    stream = Stream(500, 3, 0.2, losses.Hinge(), 2.0, seed=2)
    one, drawing = (kind(pairs=32, exact=16, seed=4) for kind in (Regret, kind))
    stream.observe(one)
    labels = stream.y.tolist()
    assert drawing.draw(labels[:16], lambda indices: []) is None
    stream.observe(drawing, 0, 16)
    nobody = 0
    for start in range(16, 500, width):
        batch = form(labels[start : start + width])
        rows = stream.x[start:]
        drawn = drawing.draw(batch, lambda indices, rows=rows: (stream.names, rows[indices]))
        assert drawn is not None
        for index, step in drawn:
            w = stream.weights[start + index]
            partner = np.array([step.other.row[name] for name in stream.names])
            drawing.record_score(step, float(stream.x[start + index] @ w), float(partner @ w))
        nobody += not drawn
    assert (nobody > 20) == (width == 3)
    same = repr(one.to_state()) == repr(drawing.to_state())
    assert same == (kind is Regret)


def test_the_design_is_the_learners() -> None:
    """Unknown names, names that come late, and missing ones."""
    model = auc.PairOGD(seed=1)
    regret = Regret(model.pair_loss, 1.0, pairs=64, exact=8)
    rng = np.random.default_rng(0)
    for t in range(300):
        x = {"a": rng.normal(), ("b" if t < 150 else "c"): rng.normal()}
        y = bool(x["a"] + 0.3 * rng.normal() > 0)
        regret.observe(x, y, model.score_one(x), model.score_one)
        model.learn_one(x, y)
        if t == 100:
            assert regret.estimate(model.design_many) is not None
    learners, plain = regret.estimate(model.design_many), regret.estimate()
    assert learners is not None
    assert plain is not None
    assert learners.total == pytest.approx(plain.total, abs=0.05 * learners.stderr + 1e-3)


def test_features_that_are_no_numbers_end_it_and_say_so() -> None:
    regret = Regret(exact=4)
    regret.observe({"a": 1.0}, True, 0.0, lambda x: 0.0)
    regret.observe({"a": "text"}, False, 0.0, lambda x: 0.0)
    for _ in range(10):
        regret.observe({"a": 1.0}, True, 0.0, lambda x: 0.0)
    assert regret.unusable is not None
    assert regret.estimate() is None
    assert regret.n_seen == 12
    again = Regret(exact=4)
    again.load_state(regret.to_state())
    assert again.unusable == regret.unusable


def test_one_class_has_no_regret() -> None:
    regret = Regret(exact=4, pairs=16)
    assert regret.estimate() is None
    for _ in range(50):
        regret.observe({"a": 1.0}, True, 0.5, lambda x: 0.5)
    estimate = regret.estimate()
    assert estimate is not None
    assert (estimate.total, estimate.pair_loss, estimate.comparator_loss) == (0.0, 0.0, 0.0)


def test_memory_is_bounded() -> None:
    regret = Regret(pairs=32, exact=4, seed=1)
    sizes = []
    for t in range(4000):
        regret.observe({"a": float(t % 7)}, t % 3 == 0, 0.1, lambda x: 0.0)
        if t in (1000, 3999):
            sizes.append(len(repr(regret.to_state())))
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.parametrize(
    "options", [{"pairs": 8}, {"exact": 1}, *({"radius": r} for r in (0.0, math.inf, math.nan)), {"seed": -1}]
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Regret(**options)


def test_a_snapshot_of_other_settings_is_refused() -> None:
    with pytest.raises(SnapshotError, match="put the old settings back"):
        Regret(pairs=32).load_state(Regret(pairs=64).to_state())
    state = Regret().to_state()
    with pytest.raises(SnapshotError, match="cannot be read"):
        Regret().load_state(state | {"warm": None})


def test_the_comparator_of_a_learner_that_scales_is_in_scaled_units() -> None:
    """Neither the unit nor the offset of a column changes the regret. By raw designs it would."""
    rng = np.random.default_rng(3)
    y = rng.random(400) < 0.4
    X = rng.normal(size=(400, 3)) + 0.5 * y[:, None]
    totals, raw = [], []
    for unit, offset in ((1.0, 0.0), (1e-3, 5.0), (1e4, -3e5)):
        model = auc.PairOGD(seed=1)
        regret = Regret(model.pair_loss, model.comparator_radius, pairs=64, exact=16, seed=1)
        for row, label in zip((unit * X + offset).tolist(), y.tolist(), strict=True):
            x = dict(zip("abc", row, strict=True))
            regret.observe(x, label, model.score_one(x), model.score_one)
            model.learn_one(x, label)
        totals.append(regret.estimate(model.comparator_design).total)
        raw.append(regret.estimate(model.design_many).total)
    assert totals[1:] == pytest.approx(totals[:1] * 2, rel=1e-4, abs=1e-3)
    assert abs(raw[1] - raw[0]) > 1.0


def test_texts_are_indicators_and_gaps_are_kept() -> None:
    """Of a learner that takes them, one by one, in batches, and in a snapshot."""
    rng = np.random.default_rng(0)
    labels = (rng.random(90) < 0.4).tolist()
    rows = [
        {"kind": "ab"[y], "a": None if i % 7 == 0 else float(rng.normal()), "flag": bool(i % 2)}
        for i, y in enumerate(labels)
    ]
    model = auc.PairOGD(seed=1)
    regret, alone = (Regret(model.pair_loss, 2.0, pairs=32, exact=4, seed=1) for _ in range(2))
    regret.indicators = alone.indicators = True
    for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
        alone.observe(row, label, model.score_one(row), model.score_one)
        if i < 30:
            regret.observe(row, label, model.score_one(row), model.score_one)
        model.learn_one(row, label)
    assert regret.draw(labels[30:], lambda indices: [rows[30 + index] for index in indices]) is not None
    assert repr(regret._first) == repr(alone._first)
    assert [each.names for each in alone._first] == [("a", "flag", f"kind={'ab'[y]}") for y in labels[:4]]
    assert math.isnan(alone._first[0].row["a"])
    again = Regret(model.pair_loss, 2.0, pairs=32, exact=4, seed=1)
    again.load_state(alone.to_state())
    estimate = alone.estimate(model.comparator_design)
    assert estimate is not None
    assert repr(again.estimate(model.comparator_design)) == repr(estimate)
    assert all(map(math.isfinite, (estimate.total, estimate.comparator_loss, estimate.stderr)))


def test_what_a_learner_of_ours_passes_over_is_left_out() -> None:
    """Such as the text that names an entity: one by one, in batches, and in a snapshot."""
    rows = [{"who": "x", "a": i / 60} for i in range(60)]
    labels = [i % 3 == 0 for i in range(60)]
    regret, alone = (Regret(pairs=32, exact=4, seed=1) for _ in range(2))
    regret.trusting = alone.trusting = True
    for row, label in zip(rows, labels, strict=True):
        alone.observe({"a": row["a"]}, label, row["a"], lambda x: x["a"])
    for row, label in zip(rows[:30], labels, strict=False):
        regret.observe(row, label, row["a"], lambda x: x["a"])
    drawn = regret.draw(labels[30:], lambda indices: [rows[30 + index] for index in indices])
    assert drawn is not None
    for index, step in drawn:
        regret.record_score(step, rows[30 + index]["a"], step.other.row["a"])
    assert repr(regret.to_state()) == repr(alone.to_state())
    again = Regret(pairs=32, exact=4, seed=1)
    again.load_state(regret.to_state())
    assert again.estimate() == alone.estimate()
