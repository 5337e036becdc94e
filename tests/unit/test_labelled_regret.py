"""The regret of learners of relevances and of metrics, against brute force over all pairs."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize as scipy_minimize

from streampair import auc, losses, metric, ranking
from streampair.errors import SnapshotError
from streampair.evaluation import Regret, RegretEstimate
from streampair.evaluation.comparator import Pairs, QuadraticPairs, SparsePairs, minimise, pairs_of

Array = NDArray[np.float64]


# ---- the comparator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic(), losses.Square()])
def test_nearly_empty_rows_have_the_same_best_weights(loss: Any) -> None:
    """As texts make them: a sparse matrix in place of an array, and some of the pairs without weight."""
    rng = np.random.default_rng(2)
    rows = np.where(rng.random((200, 60)) < 0.03, rng.normal(size=(200, 60)), 0.0)
    rows[:, 40:] = 0.0  # no pair has them
    weights, start = rng.random(200) * (rng.random(200) < 0.8), rng.normal(size=40)
    sparse, dense = pairs_of(rows, weights), Pairs(rows, weights)
    assert isinstance(sparse, SparsePairs)
    assert sparse.size <= 40
    assert type(pairs_of(np.eye(3))) is Pairs
    assert sparse.reach() == pytest.approx(dense.reach(), rel=1e-12)
    best = [pairs.whole(minimise(pairs, weights, loss, 2.0, pairs.begin(start))) for pairs in (sparse, dense)]
    assert best[0] == pytest.approx(best[1], abs=1e-9)


def test_the_design_of_texts_is_that_of_each_record() -> None:
    """Texts, missing values and missing features; without scaling the comparator's is the same matrix."""
    for scale in (None, "running"):
        model = auc.PairOGD(scale=scale, seed=1)
        texts = [{"who": f"u{i}", "amount": None if i % 3 else float(i), "b": 1.0} for i in range(20)]
        for i, x in enumerate(texts):
            model.learn_one(x, i % 2 == 0)
        xs = [*texts, {"b": 2.0}, {"who": "nobody"}]
        each = [model.design(x).tolist() for x in xs]
        assert model.design_many(xs).tolist() == each
        if scale is None:
            assert model.comparator_design(xs).toarray().tolist() == each


@pytest.mark.parametrize("psd", [False, True])
@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic(), losses.Square()])
@pytest.mark.parametrize("radius", [0.5, 5.0])
def test_the_best_metric_is_as_good_as_scipys(psd: bool, loss: Any, radius: float) -> None:
    """Which looks for it among the factors of a matrix, or among the six entries of a symmetric one."""
    rng = np.random.default_rng(1)
    u, signs = rng.normal(size=(150, 3)) * [1.0, 0.5, 0.2], np.where(rng.random(150) < 0.5, 1.0, -1.0)
    u[signs < 0] *= [1.0, 3.0, 0.3]
    weights = rng.random(150)

    def matrix(entries: Array) -> Array:
        if psd:
            factor = entries.reshape(3, 3)
            return factor @ factor.T
        w = np.zeros((3, 3))
        w[np.triu_indices(3)] = entries
        return w + w.T

    def value(w: Array) -> float:
        margins = [s * (1.0 - row @ w @ row) for s, row in zip(signs, u, strict=True)]
        return float(weights @ loss.value(np.array(margins))) / weights.sum()

    ours = minimise(QuadraticPairs(u, signs, psd=psd), weights, loss, radius, np.zeros(9)).reshape(3, 3)
    assert np.linalg.norm(ours) <= radius * (1 + 1e-12)
    assert (ours == ours.T).all() or np.allclose(ours, ours.T, atol=1e-12)
    if psd:
        assert np.linalg.eigvalsh(ours)[0] >= -1e-12
    ball = {"type": "ineq", "fun": lambda e: radius**2 - float(np.sum(matrix(e) ** 2))}
    best = math.inf
    for seed in (0, 1):
        start = 0.3 * np.random.default_rng(seed).normal(size=9 if psd else 6)
        found = scipy_minimize(
            lambda e: value(matrix(e)), start, constraints=[ball], method="SLSQP", options={"maxiter": 300}
        )
        w = matrix(found.x)
        best = min(best, value(w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))))
    assert value(ours) <= best + 2e-3 * max(1.0, best)


# ---- streams, and their regret by brute force ------------------------------------------------------------


class Stream:
    """A stream, the weights of a learner before each record of it, and its regret over every pair."""

    def __init__(self, model: Any, n: int, d: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.loss, self.radius = n, model.pair_loss, model.comparator_radius
        self.metric = hasattr(model, "metric_")
        self.psd = bool(getattr(model, "psd", False))
        x = rng.normal(size=(n, d)) / math.sqrt(d)
        drift = np.linspace(-1.0, 1.0, n)[:, None] * rng.normal(size=d) / d
        self.y: list[Any]
        if self.metric:
            classes = rng.integers(0, 3, n)
            x += 0.7 * rng.normal(size=(3, d))[classes] + drift
            self.y = ["abc"[c] for c in classes]
        else:
            relevance = np.tanh((x + drift) @ rng.normal(size=d) + 0.3 * rng.normal(size=n))
            self.y = np.round(relevance, 1).tolist()  # so that some are equal
        names = [f"f{i}" for i in range(d)]
        self.x = x
        self.dicts = [dict(zip(names, row, strict=True)) for row in x.tolist()]
        self.weights = []
        for record, label in zip(self.dicts, self.y, strict=True):
            w = model.metric_ if self.metric else model.weights_vector
            self.weights.append(w if len(w) else np.zeros((d, d) if self.metric else d))
            model.learn_one(record, label)
        learner, arguments, share = 0.0, [], []
        for t in range(1, n):
            pairs = [self.pair(t, i) for i in range(t)]
            counted = [p for p in pairs if p is not None]
            learner += sum(self.loss.value(self.argument(p, self.weights[t])) for p in counted) / t
            arguments += counted
            share += [1.0 / t] * len(counted)
        self.learner = float(learner)
        signs, rows = np.array([p[0] for p in arguments]), np.array([p[1] for p in arguments])
        everything: Pairs
        if self.metric:
            everything = QuadraticPairs(rows, signs, psd=self.psd)
        elif self.loss.of_errors:
            everything = Pairs(-rows, signs)
        else:
            everything = Pairs(signs[:, None] * rows)
        best = minimise(everything, np.array(share), self.loss, self.radius, np.zeros(everything.size))
        w = best.reshape(d, d) if self.metric else best
        values = [self.loss.value(self.argument(p, w)) for p in arguments]
        self.comparator = float(np.dot(share, values))
        self.regret = self.learner - self.comparator

    def pair(self, t: int, i: int) -> tuple[float, Array] | None:
        """The label of a pair and its difference; None where nothing depends on the weights."""
        u = self.x[t] - self.x[i]
        if self.metric:
            return (1.0 if self.y[t] == self.y[i] else -1.0), u
        apart = self.y[t] - self.y[i]
        return None if apart == 0.0 and not self.loss.of_errors else (apart, u)

    def argument(self, pair: tuple[float, Array], w: Array) -> float:
        label, u = pair
        if self.metric:
            return label * (1.0 - float(u @ w @ u))
        return label - float(w @ u) if self.loss.of_errors else label * float(w @ u)

    def make(self, seed: int, kind: type[Regret] = Regret, **options: Any) -> Regret:
        options = {"pairs": 128, "exact": 16, "seed": seed, **options}
        if not self.metric:
            return kind(self.loss, self.radius, label=float, **options)
        return kind(self.loss, self.radius, quadratic=self.quadratic, label=ord, psd=self.psd, **options)

    def quadratic(self, x: Any, others: Any) -> Array:
        w, row = self.weights[self.now], np.fromiter(x.values(), float)
        apart = [np.fromiter(other.values(), float) - row for other in others]
        return np.array([u @ w @ u for u in apart])

    def observe(self, regret: Regret, start: int = 0, stop: int | None = None) -> None:
        for t in range(start, self.n if stop is None else stop):
            self.now = t
            if self.metric:
                regret.observe(self.dicts[t], self.y[t])
            else:
                regret.observe(self.dicts[t], self.y[t], self.score(t, self.dicts[t]), self.scorer(t))

    def score(self, t: int, x: Any) -> float:
        return float(np.fromiter(x.values(), float) @ self.weights[t])

    def scorer(self, t: int) -> Any:
        return lambda x: self.score(t, x)

    def estimate(self, seed: int, kind: type[Regret] = Regret, **options: Any) -> RegretEstimate:
        regret = self.make(seed, kind, **options)
        self.observe(regret)
        estimate = regret.estimate()
        assert estimate is not None
        return estimate


MODELS = {
    "ranking": lambda: ranking.PairOGD(radius=3.0, seed=1),
    "ranking, logistic": lambda: ranking.PairOGD(losses.Logistic(), radius=3.0, seed=1),
    "ranking, errors": lambda: ranking.PairOGD(losses.MinimumErrorEntropy(0.7), radius=3.0, seed=1),
    "metric": lambda: metric.PairOGD(radius=3.0, seed=1),
    "metric, symmetric": lambda: metric.PairOGD(losses.Logistic(), radius=3.0, psd=False, seed=1),
}
_STREAMS: dict[Any, Stream] = {}


def stream_of(name: str, n: int = 300) -> Stream:
    if (name, n) not in _STREAMS:
        _STREAMS[name, n] = Stream(MODELS[name](), n, 3, seed=5)
    return _STREAMS[name, n]


@pytest.mark.parametrize("name", MODELS)
def test_exact_while_everything_fits(name: str) -> None:
    stream = stream_of(name, 60)
    estimate = stream.estimate(0, exact=60)
    assert (estimate.exact, estimate.stderr, estimate.n) == (True, 0.0, 60)
    assert estimate.pair_loss * 59 == pytest.approx(stream.learner, rel=1e-10)
    assert estimate.total == pytest.approx(stream.regret, abs=1e-3 * max(1.0, stream.comparator))


def share_within(stream: Stream, runs: int, kind: type[Regret] = Regret) -> float:
    """How often the estimate is within three stated errors of brute force."""
    estimates = [stream.estimate(seed, kind) for seed in range(runs)]
    return sum(abs(e.total - stream.regret) <= 3.0 * e.stderr for e in estimates) / runs


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_within_its_stated_error_of_brute_force(name: str) -> None:
    stream = stream_of(name)
    assert share_within(stream, 20) >= 0.9
    estimate = stream.estimate(99)
    assert 0.0 < estimate.stderr < stream.learner


class Overconfident(Regret):
    """Mutant: a quarter of the stated error."""

    def estimate(self, design_many: Any = None) -> RegretEstimate | None:
        estimate = super().estimate(design_many)
        return estimate and dataclasses.replace(estimate, stderr=estimate.stderr / 4.0)


class Unsigned(Regret):
    """Mutant: a comparator that is to bring all records near."""

    def _pairs(self, later: Any, design: Any) -> tuple[Pairs, Array]:
        pairs, early = super()._pairs(later, design)
        return QuadraticPairs(pairs.rows, np.ones(len(pairs)), psd=self._psd), early


@pytest.mark.slow
def test_mutants_are_noticed() -> None:
    assert share_within(stream_of("ranking"), 20, Overconfident) < 0.85
    assert share_within(stream_of("metric"), 5, Unsigned) < 0.5


# ---- the sample ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ranking", "metric"])
@pytest.mark.parametrize("cut", [0, 5, 16, 17, 60, 299])
def test_a_snapshot_goes_on_the_same(name: str, cut: int) -> None:
    stream = stream_of(name)
    whole, again = (stream.make(4, pairs=32) for _ in range(2))
    stream.observe(whole, 0, cut)
    again.load_state(whole.to_state())
    for regret in (whole, again):
        stream.observe(regret, cut)
    assert repr(whole.to_state()) == repr(again.to_state())
    assert whole.estimate() == again.estimate()


class Late(Regret):
    """Mutant: the score of a partner is that of an earlier one."""

    before = 0.0

    def record_score(self, step: Any, score: float, partner_score: float) -> None:
        now, self.before = self.before, partner_score
        super().record_score(step, score, now)


@pytest.mark.parametrize("kind", [Regret, Late])
def test_a_batch_that_is_drawn_first_as_one_by_one(kind: type[Regret]) -> None:
    stream = stream_of("ranking")
    one, drawing = stream.make(4, kind, pairs=32), stream.make(4, kind, pairs=32)
    stream.observe(one)
    assert drawing.draw(stream.y[:16], lambda indices: []) is None
    stream.observe(drawing, 0, 16)
    for start in range(16, stream.n, 37):
        rows = stream.dicts[start:]
        drawn = drawing.draw(
            stream.y[start : start + 37], lambda indices, rows=rows: [rows[index] for index in indices]
        )
        assert drawn is not None
        for index, step in drawn:
            t = start + index
            drawing.record_score(step, stream.score(t, stream.dicts[t]), stream.score(t, step.other.row))
    same = repr(one.to_state()) == repr(drawing.to_state())
    assert same == (kind is Regret)


def test_a_metric_is_observed_one_by_one() -> None:
    stream = stream_of("metric")
    regret = stream.make(4)
    stream.observe(regret, 0, 40)
    assert regret.draw(stream.y[40:50], lambda indices: []) is None
    assert regret.n_seen == 40


def test_labels_that_cannot_be_used_make_no_pairs() -> None:
    """They are steps all the same, as null records are."""
    model = ranking.PairOGD(relevance=(0, 4), seed=1)
    regret = Regret(model.pair_loss, 1.0, label=model.label_number, pairs=64, exact=8)
    rng = random.Random(0)
    for t in range(400):
        y = [None, "text", 9, math.nan][t % 4] if t % 3 == 0 else rng.random() * 4
        regret.observe({"a": rng.random()}, y, 0.0, lambda x: 0.0)
    estimate = regret.estimate()
    assert estimate is not None
    assert regret.n_seen == 400
    # Two of three records have a label, so four of nine pairs do, and under no weights each costs 1.
    assert estimate.pair_loss == pytest.approx(4 / 9, abs=0.12)
    nothing = Regret(pairs=16, exact=4, label=lambda y: math.nan)
    for _ in range(30):
        nothing.observe({"a": 1.0}, "?", 0.5, lambda x: 0.5)
    empty = nothing.estimate()
    assert empty is not None
    assert (empty.total, empty.pair_loss) == (0.0, 0.0)


def test_features_that_are_no_numbers_end_it_and_say_so() -> None:
    regret = Regret(exact=4, label=float)
    for value in (1.0, "text", *[1.0] * 10):
        regret.observe({"a": value}, 0.5, 0.0, lambda x: 0.0)
    assert regret.unusable is not None
    assert regret.estimate() is None
    assert regret.n_seen == 12
    again = Regret(exact=4, label=float)
    again.load_state(regret.to_state())
    assert again.unusable == regret.unusable


def test_a_metric_of_many_features_is_not_compared() -> None:
    regret = Regret(quadratic=lambda x, others: np.zeros(len(others)), label=float, exact=4)
    for d in (64, 64, 65, 64):
        regret.observe({f"f{i}": 1.0 for i in range(d)}, 1.0)
    assert regret.unusable is not None
    assert "64 features" in regret.unusable
    assert (regret.estimate(), regret.n_seen) == (None, 4)


def test_memory_is_bounded() -> None:
    regret = Regret(pairs=32, exact=4, seed=1, label=float)
    sizes = []
    for t in range(4000):
        regret.observe({"a": float(t % 7)}, (t % 5) / 5, 0.1, lambda x: 0.0)
        if t in (1000, 3999):
            sizes.append(len(repr(regret.to_state())))
    assert sizes[1] < 1.1 * sizes[0]


def test_a_snapshot_of_other_settings_is_refused() -> None:
    state = Regret(label=float).to_state()
    for other in (Regret(), Regret(label=float, quadratic=lambda x, others: np.zeros(len(others)))):
        with pytest.raises(SnapshotError, match="put the old settings back"):
            other.load_state(state)
