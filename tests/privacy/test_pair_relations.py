"""Mechanisms on pairs: how far changed pairs move what is released, and under which noise (6)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats
from harness.table_canaries import Secrets, bare_gate

from streampair import offline as batch
from streampair.kernels import pair_graph
from streampair.offline import dpp_metric
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms import offline
from streampair.privacy.mechanisms.offline import LaplaceStream, VectorGate
from streampair.privacy.mechanisms.pair_graph import (
    PairRelation,
    PairsPlan,
    SignGate,
    SignPlan,
    StaircasePlan,
    flipped,
    plan_inputs,
    plan_pairs,
    plan_signs,
    plan_staircase,
    spread,
)
from streampair.privacy.noise import NormalStream

LESS_NOISE = 0.4


@pytest.fixture
def secrets() -> Iterator[Secrets]:
    with bare_gate() as gate:
        yield gate


# A wheel: everybody around it is in a pair with the next and with the hub, so 12 of 24 pairs change together.
RIM = 12
WHEEL = np.array([(node, (node + 1) % RIM) for node in range(RIM)] + [(node, RIM) for node in range(RIM)])


def neighbours(changed: int) -> tuple[Any, Any, Any]:
    """Features, and two lots of labels that differ in so many pairs: as far as they can move a gradient."""
    X = np.zeros((RIM + 1, 2))
    X[:RIM, 0] = np.where(np.arange(RIM) % 2 == 0, 0.5, -0.5)  # pairs of the rim are at distance 1
    X[RIM] = [0.0, 0.0]
    alike = np.zeros(2 * RIM, dtype=bool)
    alike[RIM:-1] = True  # one is not, so that there are both kinds whatever changes
    other = alike.copy()
    other[:changed] = True
    return X, alike, other


def moves(make: Callable[[], Any], secrets: Secrets, changed: int) -> tuple[list[float], PairsPlan]:
    """How far each release moves, those before it being equal, in the norm of the noise; and the plan."""
    X, alike, other = neighbours(changed)
    make().fit(X, alike, WHEEL)
    one = secrets.pop()
    secrets.tape = list(one)
    make().fit(X, other, WHEEL)
    order = 2 if secrets.plan.sigma else 1
    pairs = zip(one, secrets.pop(), strict=True)
    return [float(np.linalg.norm(a - b, ord=order)) for a, b in pairs], secrets.plan


def worth(found: list[float], plan: PairsPlan) -> float:
    """What such moves cost, as a part of what is claimed."""
    if plan.pure:
        return sum(found) / (plan.grid * plan.scale) / plan.epsilon
    return math.hypot(*found) / plan.sigma / plan.mu


# Where dissimilar pairs are pushed apart as hard as others are pulled together: at half the margin.
HARD = {"margin": 2.0, "learning_rate": 1e-9, "random_state": 1}
MODELS: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: batch.DPPMetricLearner(1.0, 1e-5, **HARD),
    "gaussian, batches": lambda: batch.DPPMetricLearner(1.0, 1e-5, batch_size=12, **HARD),
    "laplace": lambda: batch.DPPMetricLearner(1.0, 0.0, **HARD),
    "laplace, batches": lambda: batch.DPPMetricLearner(1.0, 0.0, batch_size=5, **HARD),
    "node": lambda: batch.DPPMetricLearner(1.0, 1e-5, relation="node", **HARD),
    "one row": lambda: batch.DPPMetricLearner(1.0, 1e-5, n_components=1, clip=0.1, **HARD),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_release_moves_further_than_is_claimed_and_some_come_near(name: str, secrets: Secrets) -> None:
    found, plan = moves(MODELS[name], secrets, RIM)
    assert plan.relation.pairs == RIM == batch.PairGraph(WHEEL).kappa_prime
    assert 1.0 / 3.0 <= worth(found, plan) <= 1.0
    assert max(found) <= min(RIM, plan.batch) * plan.sensitivity * (1 + 1e-12)
    # Fewer pairs cost less.
    fewer, _ = moves(MODELS[name], secrets, 2)
    assert worth(fewer, plan) < worth(found, plan) / 2


def test_intransitive_relations_move_by_what_is_claimed(secrets: Secrets) -> None:
    def make() -> Any:
        return batch.DPPMetricLearner(1.0, 1e-5, relation="intransitive", **HARD)

    _, plan = moves(make, secrets, 1)
    found, _ = moves(make, secrets, plan.relation.pairs)
    assert 1 < plan.relation.pairs < RIM
    assert 1.0 / 3.0 <= worth(found, plan) <= 1.0


def test_one_pair_in_place_of_kappa_would_be_seen(secrets: Secrets, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that protects one pair alone (edge differential privacy)."""
    monkeypatch.setattr(batch.PairGraph, "kappa_prime", 1)
    found, plan = moves(MODELS["gaussian"], secrets, RIM)
    assert worth(found, plan) > 10.0


def gradient_of_one(left: Any, right: Any, clip: float, norm: str, by_row: bool) -> Any:
    """What a pair that is alike adds to a sum: left right^T, clipped."""
    w = left.T @ right / (right @ right.T)
    total, peaks = np.empty(w.shape), np.empty(len(w))
    pair_graph.contrastive_sum(
        np.concatenate([right, np.zeros_like(right)]),
        np.array([[0, 1]]),
        np.zeros(1, dtype=np.int64),
        np.array([True]),
        np.ascontiguousarray(w.T),
        1.0,
        clip,
        pair_graph.NORM_L1 if norm == "l1" else pair_graph.NORM_L2,
        by_row,
        total,
        peaks,
    )
    return total


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_rows_that_are_clipped_one_by_one_move_further(norm: Any) -> None:
    """docs/privacy, Lemma 80: the rows of a batch are released together. Both bounds are reached."""
    rng, most, most_by_rows = np.random.default_rng(1), 0.0, 0.0
    order = 1 if norm == "l1" else 2
    for trial in range(100):
        left = rng.normal(size=(1, 5)) if trial else np.ones((1, 5))
        right = rng.normal(size=(1, 3)) if trial else np.ones((1, 3))
        for rows in (False, True):
            matrix = gradient_of_one(left, right, 0.1, norm, rows)
            size = float(np.linalg.norm(matrix.ravel(), ord=order))
            most, most_by_rows = (most, max(most_by_rows, size)) if rows else (max(most, size), most_by_rows)
    wanted = 5.0 if norm == "l1" else math.sqrt(5.0)
    assert most == pytest.approx(0.1)
    assert most_by_rows == pytest.approx(0.1 * wanted)


@pytest.mark.parametrize(("pairs", "size", "parts"), [(1, 3, 3), (3, 2, 4), (5, 2, 3), (4, 4, 2), (7, 3, 4)])
def test_pairs_in_one_batch_cost_most(pairs: int, size: int, parts: int) -> None:
    """docs/privacy, Lemma 79, (a): over all ways to have so many changed pairs in batches."""
    every = itertools.product(range(size + 1), repeat=parts)
    most = max(math.hypot(*counts) for counts in every if sum(counts) == pairs)
    assert spread(pairs, size) == pytest.approx(most)


def test_plans_spend_what_is_asked() -> None:
    options: Any = {
        "dim": 6,
        "sensitivity": 0.01,
        "batch": 10,
        "batches": 7,
        "epochs": 3,
        "name": "",
        "lemma": "",
    }
    for pairs in (1, 4, 25):
        relation = PairRelation(pairs=pairs)
        plan = plan_pairs(2.0, 1e-5, relation=relation, **options)
        assert promised_epsilon(plan.mu, 1e-5) == pytest.approx(2.0)
        assert plan.mu <= plan.release.replace <= 2.03 * plan.release.blank
        assert plan.releases == 21
        pure = plan_pairs(2.0, 0.0, relation=relation, **options)
        assert pure.epsilon == pytest.approx(3 * pairs * (0.01 / pure.grid + 6) / pure.scale)
        assert 1.98 < pure.epsilon <= 2.0
        assert pure.release.floating_point(2.0) == 0.0 < plan.release.floating_point(2.0)


@pytest.mark.parametrize("width", [1, 2])
def test_the_paper_is_accounted_for_exactly(width: int) -> None:
    """Its noise is what one row needs; d' rows leave together, so the loss is d' times what it promises."""
    X, alike, _ = neighbours(0)
    options: Any = {"calibration": "paper", "n_components": width, "batch_size": 6, "epochs": 4}
    report = batch.DPPMetricLearner(1.0, 0.0, **options).fit(X, alike, WHEEL).privacy
    assert width <= report.epsilon_spent < 1.02 * width
    assert "constants promise epsilon 1" in report.details
    assert report.card[0]["lemma"].endswith("80")
    gaussian = batch.DPPMetricLearner(1.0, 1e-5, **options).fit(X, alike, WHEEL).privacy
    # Epsilon is split over four epochs there, and mu composes by squares, so here it keeps more than it says.
    assert gaussian.mu_spent == pytest.approx(
        spread(RIM, 6) / RIM * math.sqrt(width / 4 / (2 * math.log(1.25e5))), rel=0.02
    )


def observed_mu(runs: int = 80) -> tuple[float, float]:
    """The mu that the best attack shows on the worst neighbours, and what is claimed."""
    X, *sides = neighbours(RIM)
    privatize, statistics = VectorGate.privatize, np.zeros((2, runs))
    make = MODELS["gaussian"]
    for run, side in np.ndindex(runs, 2):
        kept: list[Any] = []

        def spy(self: VectorGate, vector: Any, kept: list[Any] = kept) -> Any:
            kept.append(privatize(self, vector))
            return kept[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VectorGate, "privatize", spy)
            noise = itertools.count(1000 * (2 * run + side))
            patch.setattr(offline, "NormalStream", lambda seed, noise=noise: NormalStream(next(noise)))
            report = make().fit(X, sides[side], WHEEL).privacy
        statistics[side, run] = sum(
            gradient[0] for gradient in kept
        )  # all changed pairs lie along one feature
    std = math.sqrt(statistics.var(axis=1, ddof=1).mean())
    return abs(float(statistics[1].mean() - statistics[0].mean())) / std, report.mu_spent


@pytest.mark.slow
def test_an_audit_shows_what_is_claimed_and_catches_less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is too small for its relation, by runs on neighbouring graphs."""
    found, claimed = observed_mu(1000)
    error = 4.0 * math.sqrt(2.0 / 1000 + claimed**2 / 4000)
    assert 0.7 * claimed < found < claimed + error
    take = NormalStream.take
    monkeypatch.setattr(NormalStream, "take", lambda stream, count: LESS_NOISE * take(stream, count))
    quiet, _ = observed_mu(1000)
    assert quiet > claimed + error


def least_epsilon(a: Any, b: Any, cut: float) -> float:
    """A lower bound of epsilon at 99 %, from how often a value is above the cut under each neighbour."""
    k, m, n = int((b > cut).sum()), int((a > cut).sum()), len(a)
    low = scipy.stats.beta.ppf(0.005, k, n - k + 1)
    high = scipy.stats.beta.ppf(0.995, m + 1, n - m)
    return float(math.log(low / high))


@pytest.mark.slow
def test_an_audit_of_laplace_noise_shows_what_is_claimed_and_catches_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise that is too small for its epsilon, by how often an attacker is right."""
    X, *sides = neighbours(RIM)

    def moved_to(side: int) -> float:
        model = batch.DPPMetricLearner(2.0, 0.0, epochs=1, margin=2.0, learning_rate=1e-3)
        return -float(model.fit(X[:, :1], sides[side], WHEEL).components_[0, 0])

    with pytest.MonkeyPatch.context() as patch:  # the attacker knows where it would be without noise
        patch.setattr(VectorGate, "privatize", lambda _, vector: vector)
        cut = moved_to(1)

    def audited() -> float:
        seen = np.array([[moved_to(side) for _ in range(1500)] for side in (0, 1)])
        return least_epsilon(seen[0], seen[1], cut)

    assert 0.7 * 2.0 < audited() <= 2.0
    take = LaplaceStream.take
    monkeypatch.setattr(
        LaplaceStream, "take", lambda stream, count, scale: take(stream, count, int(LESS_NOISE * scale))
    )
    assert audited() > 2.0


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_what_is_public_is_computed_from_releases(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs B under the releases of pairs A are A to the last bit: the metric and the report."""
    X, alike, other = neighbours(RIM)
    privatize, tape = VectorGate.privatize, []

    def record(gate: VectorGate, vector: Any) -> Any:
        tape.append(privatize(gate, vector))
        return tape[-1]

    def play(gate: VectorGate, vector: Any) -> Any:
        privatize(gate, vector)
        return tape.pop(0)

    monkeypatch.setattr(VectorGate, "privatize", record)
    options: Any = {"batch_size": 7, "epochs": 3, "n_components": 1, "random_state": 7}
    one = batch.DPPMetricLearner(1.0, delta, **options).fit(X, alike, WHEEL)
    monkeypatch.setattr(VectorGate, "privatize", play)
    two = batch.DPPMetricLearner(1.0, delta, **options).fit(X, other, WHEEL)
    assert one.components_.tobytes() == two.components_.tobytes()
    assert str(one.privacy) == str(two.privacy)


def test_a_margin_and_pairs_that_are_drawn_do_not_look_at_the_data() -> None:
    """The paper takes the mean distance of dissimilar pairs for the margin: here it is a number."""
    rng = np.random.default_rng(1)
    graphs = []
    for scale in (0.1, 0.9):
        X = scale * rng.uniform(-1, 1, (40, 2))
        y = rng.random(40) < 0.5
        graphs.append(batch.DPPMetricLearner(random_state=1, epochs=1).fit(X, y).graph_.pairs)
    assert (graphs[0] == graphs[1]).all()
    with pytest.raises(ValueError, match="margin is 'mean', not a number"):
        batch.DPPMetricLearner(margin="mean").fit(X, y)


def test_each_pair_is_used_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/privacy, Lemma 79: batches of an epoch have no pair in common; what is left over waits."""
    used: list[Any] = []
    gradient = dpp_metric.DPPMetricLearner._gradient

    def spy(self: Any, rows: Any, pairs: Any, similar: Any, batch: Any, *more: Any) -> Any:
        used.append([tuple(pair) for pair in pairs[batch].tolist()])
        return gradient(self, rows, pairs, similar, batch, *more)

    monkeypatch.setattr(dpp_metric.DPPMetricLearner, "_gradient", spy)
    X, alike, _ = neighbours(0)
    batch.DPPMetricLearner(batch_size=5, epochs=3).fit(X, alike, WHEEL)
    assert [len(pairs) for pairs in used] == [5] * 12
    for epoch in range(3):
        assert len({pair for pairs in used[4 * epoch : 4 * epoch + 4] for pair in pairs}) == 20


# ---- other noise -----------------------------------------------------------------------------------------


def staircase(width: int, inner: int, scale: int, reach: int) -> Any:
    """Probabilities of -reach to reach (docs/privacy, Lemma 81), but for what is beyond."""
    size = np.abs(np.arange(-reach, reach + 1))
    weights = np.exp(-(size // width + (size % width >= inner)) / scale)
    return weights / weights.sum()


@pytest.mark.parametrize(("width", "inner", "scale"), [(5, 2, 3), (4, 4, 2), (1, 1, 3)])
def test_staircases_are_as_likely_as_stated(width: int, inner: int, scale: int) -> None:
    reach = 80 * width * scale
    wanted = staircase(width, inner, scale, reach)
    for m in (1, 2, 3):  # a move by m steps; and a mutant, by one more
        far, more = (
            float((np.log(wanted[by:]) - np.log(wanted[:-by])).max()) for by in (m * width, m * width + 1)
        )
        assert far <= m / scale + 1e-12 < more
    drawn = LaplaceStream(1).take_staircase(40_000, width, inner, scale)
    near = 3 * width * scale
    counts = np.bincount(np.clip(drawn, -near, near) + near, minlength=2 * near + 1)
    expected = np.bincount(np.clip(np.arange(-reach, reach + 1), -near, near) + near, wanted) * len(drawn)
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3
    mutant = np.bincount(
        np.clip(np.arange(-reach, reach + 1), -near, near) + near, staircase(width + 1, inner, scale, reach)
    )
    assert scipy.stats.chisquare(counts, mutant * len(drawn)).pvalue < 1e-6
    plan = StaircasePlan(
        "", "", 1, 1.0, 1.0, 1, 0.5, 0.0, scale, PairRelation(pairs=1), 1, 1, width=width, inner=inner
    )
    variance = float(wanted @ np.arange(-reach, reach + 1) ** 2)
    assert plan.noise_std == pytest.approx(0.5 * math.sqrt(variance), rel=1e-6)


def test_a_staircase_is_as_wide_as_a_pair_moves_an_entry() -> None:
    """docs/privacy, Lemma 81, rounding included: k pairs move by at most k steps."""
    for pairs, move in itertools.product((1, 3), (0.01, 0.37)):
        plan = plan_staircase(
            2.0,
            relation=PairRelation(pairs=pairs),
            dim=6,
            sensitivity=move,
            batch=10,
            batches=3,
            epochs=4,
            name="",
        )
        assert (
            pairs * move / plan.grid + 1 <= pairs * plan.width < 1.05 * (pairs * move / plan.grid + 1) + pairs
        )
        assert plan.epsilon == 4 * pairs * 6 / plan.scale <= 2.0


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_signs_tell_no_more_than_their_coin(p: int) -> None:
    """docs/privacy, Lemma 82: by all corners and signs; and without a look at ties their mean is right."""
    plan = plan_signs(
        1.5, relation=PairRelation(pairs=2), dim=p, limit=0.5, batch=10, batches=3, epochs=1, name=""
    )
    assert 1.4999 < plan.epsilon <= 1.5
    q = plan.coin / 2**64
    corners = np.array(list(itertools.product((-1, 1), repeat=p)))
    along = corners @ corners.T  # of signs by corner
    likely = np.where(along > 0, 2 * (1 - q), np.where(along < 0, 2 * q, 1.0)) / 2**p
    assert likely.sum(axis=0) == pytest.approx(1.0)
    assert np.log(likely.max(axis=1) / likely.min(axis=1)).max() == pytest.approx(1.5 / 2)
    assert plan.size * corners.T @ likely == pytest.approx(0.5 * corners.T)
    # And that is what is drawn.
    gate, vector = SignGate(replace_releases(plan, 4000), 1), np.linspace(-0.5, 0.4, p)
    drawn = np.array([gate.privatize(vector) for _ in range(4000)])
    assert np.abs(drawn) == pytest.approx(plan.size)
    assert np.abs(drawn.mean(axis=0) - vector).max() < 4.5 * plan.size / math.sqrt(4000)
    with pytest.raises(RuntimeError, match="more than is planned"):
        gate.privatize(vector)


def replace_releases(plan: SignPlan, releases: int) -> SignPlan:
    return dataclasses.replace(plan, releases=releases)


def test_a_sign_shows_what_is_claimed_and_a_coin_that_is_less_fair_is_caught() -> None:
    def audited(times: float) -> tuple[float, float]:
        plan = plan_signs(
            2.0, relation=PairRelation(pairs=1), dim=1, limit=1.0, batch=9, batches=1, epochs=1, name=""
        )
        claimed = plan.epsilon
        gate = SignGate(dataclasses.replace(plan, releases=20_000, coin=int(times * plan.coin)), None)
        seen = np.array([[gate.privatize(np.array([x]))[0] for _ in range(10_000)] for x in (-1.0, 1.0)])
        return least_epsilon(seen[0], seen[1], 0.0), claimed

    observed, claimed = audited(1.0)
    assert 0.7 * claimed < observed <= claimed
    observed, claimed = audited(0.4)
    assert observed > claimed


def test_entries_move_by_what_is_claimed_under_staircases_and_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    means: list[Any] = []
    for gate in (VectorGate, SignGate):
        monkeypatch.setattr(
            gate, "privatize", lambda _, vector: means.append(vector) or np.zeros_like(vector)
        )
    X, alike, other = neighbours(RIM)
    for noise in ("staircase", "duchi"):
        model = batch.DPPMetricLearner(4.0, 0.0, noise=noise, epochs=1, **{**HARD, "clip": 0.5})
        for labels in (alike, other):
            card = model.fit(X, labels, WHEEL).privacy.card[0]
        one, two = means[-2:]
        assert np.abs(one).max() <= 0.5
        assert np.abs(one - two).max() <= card["sensitivity"] * (1 + 1e-12)
        assert np.abs(one - two).max() >= card["sensitivity"] / 3.0


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_perturbed_inputs(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/privacy, Lemma 83: features once an individual, each label by a coin, half the budget each."""
    X, alike, _ = neighbours(0)
    X[0], X[1] = [1.0, 0.0], [-1.0, 0.0]  # as far apart as a replacement is
    privatize, rows = VectorGate.privatize, []
    monkeypatch.setattr(
        VectorGate, "privatize", lambda gate, row: rows.append(row.copy()) or privatize(gate, row)
    )
    model = batch.DPPMetricLearner(4.0, delta, noise="inputs", relation="node").fit(X, alike, WHEEL)
    assert len(rows) == len(X)
    labels, features = model.privacy.card
    assert np.linalg.norm(rows[0] - rows[1]) == 2.0 == features["sensitivity"]
    if delta:
        assert labels["mu2"] == pytest.approx(features["mu2"], rel=0.03)
    assert 0.98 * 4.0 < model.privacy.epsilon_spent <= 4.0
    # Labels: the coin is as fair as its epsilon says, for all labels of one individual together.
    plan, _ = plan_inputs(
        4.0, delta, relation=PairRelation(pairs=12, person=True), individuals=13, features=2, pairs=24
    )
    if not delta:
        assert plan.epsilon == pytest.approx(2.0)
    turned = float(flipped(np.zeros(40_000, dtype=bool), plan, 1).mean())
    chance = 1.0 / (1.0 + math.exp(plan._epsilon() / 12))
    assert turned == pytest.approx(chance, abs=4.0 * math.sqrt(0.25 / 40_000))


def test_noise_of_the_size_of_a_batch_tells_and_no_epsilon_is_printed() -> None:
    """DPP-S of Li et al. is not private: a counter-example. One changed pair doubles the noise."""
    n = 40
    X = np.zeros((4, n))
    X[0, 0], X[1, 0], X[2, 0], X[3, 0] = 0.9, -0.9, 0.3, -0.3
    pairs = np.array([(0, 1), (2, 3), (0, 2)])
    options: Any = {"noise": "batch-maximum", "reproduction_only": True, "epochs": 1, "clip": 0.01}

    def size(last: bool) -> float:
        """Of what is added in rows whose gradient is 0 but for the last pair's: the noise alone."""
        model = batch.DPPMetricLearner(0.5, 0.0, margin=0.1, batch_size=1, connected=False, **options)
        privatize = model._reduced(PairRelation(pairs=1), 1, np.random.default_rng())
        gradient, peaks = model._gradient(X, pairs[2:], np.array([last]), np.array([0]), np.eye(n), 0.1)
        return float(np.abs(privatize(gradient, np.eye(n), peaks)[0]).mean())

    seen = np.array([[size(last) for _ in range(100)] for last in (False, True)])
    assert least_epsilon(seen[0], seen[1], 1.5 * float(np.median(seen[0]))) > 0.5
    report = batch.DPPMetricLearner(connected=False, **options).fit(X, [True, False, True], pairs).privacy
    assert report.kind == "void"
    assert "psilon" not in str(report)
    assert not hasattr(report, "epsilon_spent")
    with pytest.raises(ValueError, match=r"no guarantee holds. Fix: give reproduction_only=True"):
        batch.DPPMetricLearner(noise="batch-maximum").fit(X, [True, False, True], pairs)
