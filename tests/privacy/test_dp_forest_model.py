"""What a private forest computes of its releases: rows, weights, probabilities (docs/privacy 10.10)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from naive import random_trees as naive
from scipy.optimize import brentq, root
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from streampair import auc
from streampair.kernels import random_trees
from streampair.preprocessing import OneHot
from streampair.privacy.mechanisms import dp_forest, synthetic_sample
from streampair.privacy.mechanisms.dp_forest import (
    DPForestPlan,
    DPForestState,
    Fitted,
    Ridge,
    half_odds,
    weights_of,
)
from streampair.privacy.mechanisms.synthetic_sample import ReleasedStatistics, SyntheticRows, synthetic_rows
from streampair.records.random_trees import BINS, RandomTreeDesign, Trees, fields_of, marks_of

D, COUNT, DEPTH = 4, 24, 4


def sample(n: int, seed: int, *, bent: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normal values and labels: parted by a plane, or by a product of two of them."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, D))
    margin = z[:, 0] + 0.5 * z[:, 1] + (2.0 * z[:, 2] * z[:, 3] if bent else 0.0)
    return z, np.where(margin + 0.4 * rng.normal(size=n) > 0.0, 1.0, -1.0)


class Case:
    """What a run of so many records would release, with the rows in the place of made-up ones."""

    def __init__(self, bent: bool, n: int = 6000, std: float = 0.02, seed: int = 0) -> None:
        z, y = sample(n, seed, bent=bent)
        self.trees = Trees((1,) * D, COUNT, DEPTH)
        self.linear = np.linalg.lstsq(z, y, rcond=None)[0]
        places = np.array([[naive.place(v) for v in row] for row in z])
        self.leaves = np.ascontiguousarray(self.trees.leaves(places).T)
        phi = naive.phi(self.leaves, 2**DEPTH)
        rng = np.random.default_rng(seed + 1)
        shape = (COUNT, 2**DEPTH)
        counts, signs = (phi.mean(axis=0), (phi.T @ y) / n)
        self.statistics = ReleasedStatistics(
            counts=(counts.reshape(shape) + std * rng.normal(size=shape)),
            signs=(signs.reshape(shape) + std * rng.normal(size=shape)),
            bins=np.zeros(D * BINS),
            bins_std=1e-3,
            centre=float(y.mean()),
            std=std,
            second=z.T @ z / n,
            ends=np.zeros((2, D)),
            records=float(n),
        )
        self.weights = np.full(n, 1.0 / n)
        self.scores = z @ self.linear

    def model(self, plain: np.ndarray | None = None) -> Fitted:
        rows = SyntheticRows(self.leaves, self.weights, self.scores, self.scores if plain is None else plain)
        return weights_of(self.statistics, rows)

    def judged(self, model: Fitted, *, bent: bool) -> tuple[float, float, float]:
        """AUC of a linear score alone, of the model, and what its probabilities lose, on other records."""
        z, y = sample(3000, 99, bent=bent)
        leaves = self.trees.leaves(np.array([[naive.place(v) for v in row] for row in z]))
        linear = model.factor * (z @ self.linear)
        whole = linear + sum(model.leaves[t, leaves[:, t]] for t in range(COUNT))
        p = expit(model.link.slope * whole + model.link.offset)
        return roc_auc_score(y, linear), roc_auc_score(y, whole), log_loss(y, p)


def test_leaves_fade_where_a_plane_parts_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What noise alone puts into weights is known, and taken off; a straight line's bend is not learned."""
    flat = [Case(bent=False, seed=seed) for seed in range(0, 12, 2)]
    lost = [np.subtract(*case.judged(case.model(), bent=False)[:2]) for case in flat]
    assert float(np.mean(lost)) < 0.0005
    bent = Case(bent=True)
    linear, whole, _ = bent.judged(bent.model(), bent=True)
    assert whole > linear + 0.1
    # Mutant: nothing is taken off, and leaves may always explain much.
    with monkeypatch.context() as patch:
        patch.setattr(dp_forest, "_PRIORS", 1)
        patch.setattr(dp_forest, "_LEAST", 0.3)
        patch.setattr(Ridge, "_signs", lambda self: np.zeros((2, *self.shape)))
        worse = [np.subtract(*case.judged(case.model(), bent=False)[:2]) for case in flat]
    assert float(np.mean(worse)) > 0.001


@pytest.mark.parametrize("bent", [False, True])
def test_probabilities_are_the_score_s_own(bent: bool) -> None:
    """Near those that somebody fits to the same score who knows the labels; one step of Newton's is too shy.

    The rate alone loses .69, and log-odds that are too steep lose more than one.
    """
    case = Case(bent=bent)
    model = case.model()
    z, y = sample(3000, 99, bent=bent)
    leaves = case.trees.leaves(np.array([[naive.place(v) for v in row] for row in z]))
    whole = model.factor * (z @ case.linear) + sum(model.leaves[t, leaves[:, t]] for t in range(COUNT))
    best = LogisticRegression(C=1e6).fit(whole[:, None], y).predict_proba(whole[:, None])
    assert case.judged(model, bent=bent)[2] < log_loss(y, best) + (0.08 if bent else 0.02)


@pytest.mark.parametrize("centre", [0.0, 0.3, -0.8])
def test_half_odds_solve_their_two_equations(centre: float) -> None:
    rng = np.random.default_rng(3)
    weights = rng.uniform(size=500)
    weights /= weights.sum()
    scores = 0.4 * rng.normal(size=500) * (1.0 - centre * centre)
    scores -= weights @ scores

    def left(link: Any) -> list[float]:
        means = np.tanh(link[0] * scores + link[1])
        return [weights @ (scores * means) - weights @ scores**2, weights @ means - centre]

    wanted = root(left, [1.0, math.atanh(centre)], tol=1e-12).x
    assert half_odds(scores, weights, centre) == pytest.approx(tuple(wanted), rel=1e-6, abs=1e-7)


def test_half_odds_end_where_there_is_no_answer() -> None:
    weights = np.full(4, 0.25)
    assert half_odds(np.zeros(4), weights, 0.0) == (0.0, 0.0)
    # Scores that are longer than any label: as steep as it gets.
    slope, _ = half_odds(np.array([-3.0, -3.0, 3.0, 3.0]), weights, 0.0)
    assert math.isfinite(slope)
    assert slope > 1.0


def test_the_offset_gives_the_released_rate() -> None:
    rng = np.random.default_rng(4)
    scores, weights = 2.0 * rng.normal(size=300), np.full(300, 1.0 / 300)
    wanted = brentq(lambda b: 2.0 * float(weights @ expit(scores + b)) - 1.0 + 0.4, -20.0, 20.0)
    assert dp_forest._offset(scores, weights, -0.4) == pytest.approx(wanted, abs=1e-9)


def dense(case: Case, blur: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Gram matrix, the covariance of chance and noise, and the variance that all leaves share as a prior."""
    phi = naive.phi(case.leaves, 2**DEPTH)
    gram = phi.T @ (case.weights[:, None] * phi)
    variance = 1.0 - case.statistics.centre**2
    noise = case.statistics.std**2 * (1.0 + case.statistics.centre**2)
    return gram, variance / case.statistics.records * gram + noise * np.eye(len(gram)), variance / COUNT


@pytest.mark.parametrize("blur", [0.0, 2e-3])
def test_the_ridge_is_that_of_dense_matrices(monkeypatch: pytest.MonkeyPatch, blur: float) -> None:
    """The prior by the density of a normal vector, the answer by an inverse, the share by a trace."""
    case = Case(bent=True, n=400)
    left = case.statistics.signs - case.statistics.centre * case.statistics.counts
    gram, covariance, unit = dense(case, blur)
    r = left.ravel()
    priors = 0.003 * unit * 1.25 ** np.arange(37)

    def unlikely(prior: float) -> float:
        whole = prior * gram @ gram + covariance + blur * gram
        return float(r @ np.linalg.solve(whole, r) + np.linalg.slogdet(whole)[1])

    prior = min(priors, key=unlikely)
    assert priors[0] < prior < priors[-1]
    wanted = prior * gram @ np.linalg.inv(prior * gram @ gram + covariance + blur * gram)
    w = wanted @ r
    share = (w @ r - np.trace(wanted @ covariance)) / (w @ gram @ w)
    monkeypatch.setattr(dp_forest, "_STEPS", 64)
    monkeypatch.setattr(dp_forest, "_PROBES", 16)
    answer = Ridge(case.statistics, case.leaves, case.weights, blur).solve(left)
    assert answer.weights.ravel() == pytest.approx(w, abs=1e-3 * float(np.abs(w).max()))
    assert answer.share == pytest.approx(share, rel=0.05)
    # As many steps and probes as it takes elsewhere tell nearly the same.
    monkeypatch.undo()
    fewer = Ridge(case.statistics, case.leaves, case.weights, blur).solve(left)
    assert fewer.share * fewer.weights.ravel() == pytest.approx(
        answer.share * answer.weights.ravel(), abs=0.2 * float(np.abs(w).max())
    )


def test_sums_of_nothing_have_weights_of_nothing() -> None:
    case = Case(bent=True, n=400)
    answer = Ridge(case.statistics, case.leaves, case.weights).solve(np.zeros((COUNT, 2**DEPTH)))
    assert (answer.share, np.abs(answer.weights).max()) == (0.0, 0.0)
    # A vector that is in one direction of the Gram matrix alone.
    one = np.ones((COUNT, 2**DEPTH))
    alike = Ridge(case.statistics, np.zeros_like(case.leaves), case.weights).solve(one)
    assert np.isfinite(alike.weights).all()


def test_what_weights_of_rows_have_moved_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as noise in what the linear score explains: 1.5 times its square, up to 3 times the noise."""
    case, seen = Case(bent=True), []

    class Watched(Ridge):
        def __init__(
            self, statistics: ReleasedStatistics, leaves: Any, weights: np.ndarray, blur: float = 0.0
        ) -> None:
            super().__init__(statistics, leaves, weights, blur)
            seen.append(blur / self.noise)

    monkeypatch.setattr(dp_forest, "Ridge", Watched)
    rng = np.random.default_rng(10)
    for plain in (case.scores, case.scores + 0.1 * rng.normal(size=len(case.scores)), case.scores**3):
        case.model(plain)
    assert seen[0] == 0.0
    assert 0.0 < seen[1] < 3.0
    assert seen[2] == pytest.approx(3.0)
    # The sums that either explains, by hand.
    phi = naive.phi(case.leaves, 2**DEPTH)

    def sums(scores: np.ndarray) -> np.ndarray:
        centred = scores - scores.mean()
        a, b = half_odds(centred, case.weights, case.statistics.centre)
        return phi.T @ np.tanh(a * centred + b) / len(scores)

    rng = np.random.default_rng(10)
    apart = sums(case.scores) - sums(case.scores + 0.1 * rng.normal(size=len(case.scores)))
    noise = case.statistics.std**2 * (1.0 + case.statistics.centre**2)
    assert seen[1] == pytest.approx(1.5 * float(apart @ apart) / COUNT / noise, rel=1e-6)


@pytest.mark.parametrize(("std", "agrees"), [(3e-3, True), (1e-4, False)])
def test_rows_are_weighed_until_they_agree(std: float, agrees: bool) -> None:
    """As much as the noise allows and no more, and never so that a few rows stand for all."""
    rng = np.random.default_rng(9)
    trees = Trees((1, 1), 20, 4)
    # What is released are counts of another shape than that of the rows.
    other = trees.leaves(np.clip(rng.beta(2.0, 5.0, size=(20_000, 2)), 1e-6, 1.0 - 1e-6)).T
    counts = np.stack([np.bincount(other[t], minlength=16) / 20_000 for t in range(20)])
    if not agrees:  # nothing near it can be had: all records are in leaf 0 of each tree, and in none other
        counts = np.tile(np.eye(16)[0], (20, 1))
    statistics = Case(bent=False, n=100).statistics._replace(
        counts=counts + std * rng.normal(size=counts.shape), std=std
    )
    leaves = np.ascontiguousarray(trees.leaves(rng.uniform(size=(4096, 2))).T)
    weights = synthetic_sample._raked_weights(statistics, leaves)
    assert weights.sum() == pytest.approx(1.0)

    def raked(ridge: float) -> tuple[np.ndarray, float, float]:
        row_weights, shape = np.full(4096, 1.0 / 4096), np.zeros((20, 16))
        random_trees.tree_rake(leaves, statistics.counts, np.full(20, ridge * std**2), 10, shape, row_weights)
        found = np.stack([np.bincount(leaves[t], weights=row_weights, minlength=16) for t in range(20)])
        return (
            row_weights,
            float(np.square(found - statistics.counts).mean()) / std**2,
            1.0 / float(row_weights @ row_weights),
        )

    tried = [raked(ridge) for ridge in (3e4, 1e4, 3e3, 1e3, 3e2, 1e2)]
    if agrees:
        index = next(k for k, (_, apart, _) in enumerate(tried) if apart <= 1.1)
        assert 0 < index < 5
        assert tried[index][2] > 1024.0
    else:  # already the first weights are those of a few rows: further ones would be of fewer
        index = 0
        assert tried[0][1] > 1.1
        assert tried[0][2] < 1024.0
    assert (weights == tried[index][0]).all()


def test_columns_of_one_field_are_distinguished_by_their_names() -> None:
    one_hot = OneHot({"card": ["credit", "debit"], "country": ["NL", "BE", "FR"], "sole": ["yes"]})
    names = sorted(["amount", *one_hot.columns, "hour", "x", 3], key=str)
    assert fields_of(names) == (1, 1, 2, 3, 1, 1, 1)
    assert marks_of((1, 1, 2, 3)) == 2 * BINS + 5
    assert fields_of(["=a", "=b", "a", "a=1", "a=2", "ab=1"]) == (2, 1, 2, 1)
    assert fields_of([1, 2.5, ("a=1",), ("a=2",)]) == (1, 1, 1, 1)


def test_a_replaced_category_moves_two_bins_of_its_field() -> None:
    """Lemma 90 with fields of several columns: q fields, not d columns, are in the diameter."""
    names = ["a", *(f"b={v}" for v in range(5)), *(f"c={v}" for v in range(3))]
    design = RandomTreeDesign(names, dict.fromkeys(names[1:], (0.0, 1.0)))
    d = len(names)
    design.standardise(np.zeros(d), np.full(d, 0.3))
    design.cap = 1.0
    plan = DPForestPlan(0.3, d, 200.0, 5000, 30.0, fields=fields_of(names))
    assert plan.sizes == (1, 5, 3)
    assert (
        plan.dim
        == plan.packed + 2 * plan.leaves + BINS + 5 + 3
        == design.width - d + plan.packed + plan.leaves
    )
    rng = np.random.default_rng(5)
    raw = np.zeros((60, d))
    raw[:, 0] = rng.uniform(-1.0, 1.0, 60)
    raw[np.arange(60), 1 + rng.integers(0, 5, 60)] = 1.0
    raw[np.arange(50), 6 + rng.integers(0, 3, 50)] = 1.0  # of ten the last field is unknown
    raw[3, 1:] = 1.0  # more than one: the first
    marks = design.prepared(raw)[:, d + plan.leaves :]
    assert set(marks.sum(axis=1)) == {2.0, 3.0}
    apart = np.square(marks[:, None] - marks[None]).sum(axis=2)
    assert apart.max() == 2 * 3
    allowed = plan.diameter**2 - 4.5 - 4 * plan.trees * plan.leaf**2
    assert apart.max() * plan.mark**2 == pytest.approx(allowed)
    # As many columns would have less of a part each.
    assert plan.mark > DPForestPlan(0.3, d, 200.0, 5000, 30.0).mark * 1.7


def test_rows_are_made_up_of_one_category_each() -> None:
    """Categories as often as they were, and together as often as the second moments say."""
    rng = np.random.default_rng(6)
    n, shares = 20_000, np.array([0.5, 0.3, 0.15, 0.05])
    first = rng.choice(4, n, p=shares)
    second = np.where(rng.uniform(size=n) < 0.7, first % 2, rng.integers(0, 2, n))
    x = np.concatenate((np.eye(4)[first], np.eye(2)[second]), axis=1) * 0.3
    counts = np.concatenate((shares, np.bincount(second) / n))
    trees = Trees((4, 2), 10, 3)
    known = trees.leaves(np.stack((first, second), axis=1).astype(float))
    statistics = ReleasedStatistics(
        counts=np.stack([np.bincount(known[:, t], minlength=8) / n for t in range(10)]),
        signs=np.zeros((10, 8)),
        bins=counts,
        bins_std=1e-3,
        centre=0.0,
        std=1e-3,
        second=np.cov(x.T),
        ends=np.stack((np.zeros(6), np.full(6, 0.3))),
        records=float(n),
    )
    leaves, weights, *_ = synthetic_rows(statistics, np.ones(6), 1.0, trees, 4096)
    found = np.stack([np.bincount(leaves[t], weights=weights, minlength=8) for t in range(10)])
    assert np.abs(found - statistics.counts).max() < 0.02


def test_a_pair_of_categories_that_no_line_knows() -> None:
    """Labels are whether two fields are both even: trees meet that by fields, not by columns."""
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 12, (2, 14_000))
    y = (a + b) % 2 == 0
    fields = {"a": [str(v) for v in range(12)], "b": [str(v) for v in range(12)]}
    one_hot = OneHot(fields)
    names = one_hot.columns

    def ranked(columns: list[str]) -> float:
        x = np.concatenate((np.eye(12)[a], np.eye(12)[b]), axis=1)
        model = auc.PrivateForest(
            1.0, 1e-4, 12_000, features=columns, bounds=dict.fromkeys(columns, (0.0, 1.0)), seed=1
        )
        records = [dict(zip(columns, row, strict=True)) for row in x.tolist()]
        frame = pd.DataFrame(records)
        model.learn_many(frame[:12_000], pd.Series(y[:12_000]))
        return roc_auc_score(y[12_000:], model.score_many(frame[12_000:]).to_numpy())

    by_field = ranked(names)
    assert by_field > 0.97
    # Columns of other names are columns of their own.
    assert ranked([name.replace("=", "_") for name in names]) < by_field - 0.2


def test_leaves_learn_from_records_with_gaps() -> None:
    """A gap takes a side of its own; the linear part is null, and so is a record of gaps alone."""
    plan = DPForestPlan(0.3, 2, 200.0, 5000, 30.0)
    design = RandomTreeDesign([0, 1], {})
    design.cap = 1.0
    design.standardise(np.zeros(2), np.full(2, 0.5))
    raw = np.array([[0.3, -0.4], [math.nan, -0.4], [math.inf, -0.4], [math.nan, math.nan], [0.0, -0.4]])
    ready, usable = np.empty((5, design.width)), np.empty(5)
    design.prepare(raw, ready, usable)
    assert usable.tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    leaves, bins = ready[:, 2 : 2 + plan.leaves], ready[:, 2 + plan.leaves :]
    assert leaves.sum(axis=1).tolist() == [plan.trees] * 5
    assert (leaves[1] == leaves[2]).all()
    assert not (leaves[1] == leaves[4]).all()  # a gap is no 0
    assert bins.sum(axis=1).tolist() == [2.0, 1.0, 1.0, 0.0, 2.0]
    run = DPForestState(plan)
    run._put_centre(0.0)
    for rows, linear in ((ready[:1], True), (ready[1:3], False)):
        before = run.block.cells()
        run._sum_up(rows.copy(), np.ones(len(rows)))
        moved = np.frombuffer(run.block.cells(), dtype=np.int64) - np.frombuffer(before, dtype=np.int64)
        assert moved[: plan.packed].any() == linear
        assert moved[plan.packed : plan.packed + plan.leaves].sum() == plan.trees * len(rows)


def test_a_gap_tells_where_it_is_what_the_labels_follow() -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(-1.0, 1.0, (9000, 3))
    y = rng.uniform(size=9000) < 0.5
    x[y & (rng.uniform(size=9000) < 0.6), 1] = math.nan
    model = auc.PrivateForest(4.0, 1e-4, 8000, features=[0, 1, 2], seed=1)
    model.learn_many(x[:8000], y[:8000])
    records = [{j: v for j, v in enumerate(row) if v == v} for row in x[8000:].tolist()]
    scores = [model.score_one(record) for record in records]
    assert roc_auc_score(y[8000:], scores) > 0.75
    # A name that is missing, and a bad value, are the same gap; when it is scored a bad value is an error.
    other = auc.PairFTRL(4.0, 1e-4, 8000, features=[0, 1, 2], seed=1)
    other.learn_many(x[:8000], y[:8000])
    assert roc_auc_score(y[8000:], [other.score_one(record) for record in records]) < 0.65
