"""What a private forest computes of its releases: rows, weights, probabilities (docs/privacy 10.10)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from naive import leaf_weights as reference
from naive import random_trees as naive
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from streampair import auc
from streampair.kernels import random_trees
from streampair.preprocessing import OneHot
from streampair.privacy.mechanisms import leaf_weights as module
from streampair.privacy.mechanisms import synthetic_sample
from streampair.privacy.mechanisms.base import Link
from streampair.privacy.mechanisms.dp_forest import DPForestPlan, DPForestState
from streampair.privacy.mechanisms.leaf_weights import (
    Fitted,
    LeafRidge,
    count_ratios,
    half_odds,
    leaf_weights,
    logistic_weights,
    validated_prior,
)
from streampair.privacy.mechanisms.synthetic_sample import ReleasedStatistics, SyntheticRows, synthetic_rows
from streampair.records.random_trees import BINS, RandomTreeDesign, Trees, fields_of, marks_of

D, COUNT, DEPTH = 4, 24, 4


def sample(n: int, seed: int, *, bent: bool, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Normal values and labels: parted by a plane, or by a product of two of them."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, D))
    margin = z[:, 0] + 0.5 * z[:, 1] + (2.0 * z[:, 2] * z[:, 3] if bent else 0.0)
    return z, np.where(margin + 0.4 * rng.normal(size=n) > least, 1.0, -1.0)


class Case:
    """What a run of so many records would release, with the rows in the place of made-up ones."""

    def __init__(
        self,
        bent: bool,
        n: int = 6000,
        std: float = 0.02,
        seed: int = 0,
        trees: int = COUNT,
        depth: int = DEPTH,
        least: float = 0.0,
    ) -> None:
        z, y = sample(n, seed, bent=bent, least=least)
        self.trees = Trees((1,) * D, trees, depth)
        self.linear = np.linalg.lstsq(z, y, rcond=None)[0]
        places = np.array([[naive.place(v) for v in row] for row in z])
        self.leaves = self.trees.leaves(places).T.astype(np.uint8, order="C")
        phi = naive.phi(self.leaves, 2**depth)
        rng = np.random.default_rng(seed + 1)
        shape = (trees, 2**depth)
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

    @property
    def rows(self) -> SyntheticRows:
        return SyntheticRows(self.leaves, self.weights, self.scores)

    def model(self) -> Fitted:
        """The model, which is the linear score alone where leaves add nothing."""
        found = leaf_weights(self.statistics, self.rows)
        if found is not None:
            return found
        a, b = half_odds(self.scores - self.scores.mean(), self.weights, self.statistics.centre)
        return Fitted(2.0 * a, np.zeros(self.statistics.counts.shape), Link(1.0, 2.0 * b))

    def judged(self, model: Fitted, *, bent: bool) -> tuple[float, float, float]:
        """AUC of a linear score alone, of the model, and what its probabilities lose, on other records."""
        z, y = sample(3000, 99, bent=bent)
        leaves = self.trees.leaves(np.array([[naive.place(v) for v in row] for row in z]))
        linear = model.factor * (z @ self.linear)
        whole = linear + sum(model.leaves[t, leaves[:, t]] for t in range(COUNT))
        p = expit(model.link.slope * whole + model.link.offset)
        return roc_auc_score(y, linear), roc_auc_score(y, whole), log_loss(y, p)


def test_leaves_add_nothing_where_a_plane_parts_the_classes() -> None:
    """A straight line's bend is not learned, and noise is not taken for signal."""
    flat = [Case(bent=False, seed=seed) for seed in (0, 2, 4)]
    lost = [np.subtract(*case.judged(case.model(), bent=False)[:2]) for case in flat]
    assert float(np.mean(lost)) < 0.0005
    bent = Case(bent=True)
    linear, whole, _ = bent.judged(bent.model(), bent=True)
    assert whole > linear + 0.1
    # Mutant: no validation, and the leaves may explain as much as they like.
    worse = []
    for case in flat:
        sums = case.statistics.signs - case.statistics.centre * case.statistics.counts
        every = np.ones(COUNT, dtype=np.bool_)
        w = LeafRidge(case.leaves, case.weights, sums, every, 1e-9, 1e-9).weights(0.3 / COUNT)
        worse.append(np.subtract(*case.judged(case.model()._replace(leaves=2.0 * w), bent=False)[:2]))
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
    wanted = reference.half_odds(scores, weights, centre)
    assert half_odds(scores, weights, centre) == pytest.approx(wanted, rel=1e-6, abs=1e-7)


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
    wanted = reference.offset(scores, weights, -0.4)
    assert module._offset(scores, weights, -0.4) == pytest.approx(wanted, abs=1e-9)


SMALL = {"n": 300, "trees": 5, "depth": 3}


def weighted(case: Case, seed: int = 11) -> Case:
    """The case with rows of unequal weights."""
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, len(case.weights))
    case.weights = weights / weights.sum()
    return case


@pytest.mark.parametrize("prior", [0.01, 1.0])
def test_the_ridge_is_that_of_dense_matrices(monkeypatch: pytest.MonkeyPatch, prior: float) -> None:
    """For the fitted trees, and for what they predict of the others."""
    case = weighted(Case(bent=True, **SMALL))
    sums = case.statistics.signs - case.statistics.centre * case.statistics.counts
    fitted = np.array([True, False, True, True, False])
    mine, others = (naive.phi(case.leaves[which], 8) for which in (fitted, ~fitted))
    wanted = reference.ridge(mine, case.weights, sums[fitted].ravel(), prior, 2e-3, 4e-4)
    monkeypatch.setattr(module, "_STEPS", 64)
    ridge = LeafRidge(case.leaves, case.weights, sums, fitted, 2e-3, 4e-4)
    assert ridge.weights(prior).ravel() == pytest.approx(wanted, abs=1e-6 * float(np.abs(wanted).max()))
    predicted = others.T @ (case.weights * (mine @ wanted))
    assert ridge.predicted(prior).ravel() == pytest.approx(predicted, abs=1e-7)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("std", [1e-3, 0.02, 0.1])
def test_the_prior_is_validated_as_by_dense_matrices(std: float, seed: int) -> None:
    case = weighted(Case(bent=True, std=std, seed=seed, **SMALL))
    sums = case.statistics.signs - case.statistics.centre * case.statistics.counts
    precision = np.random.default_rng(seed).uniform(0.5, 2.0, sums.shape)
    settings = (case.leaves, case.weights, sums, precision, 0.9, 1e-3, std * std)
    assert validated_prior(*settings) == reference.validated_prior(*settings)


def test_no_prior_where_nothing_is_gained() -> None:
    """Sums of even trees that say the opposite of what those of odd trees say."""
    case = Case(bent=True, n=300, trees=6, depth=3)
    leaves = np.repeat(case.leaves[:1], 6, axis=0)
    sums = np.repeat(case.statistics.signs[:1], 6, axis=0) * np.array([1, -1, 1, -1, 1, -1])[:, None]
    assert validated_prior(leaves, case.weights, sums, np.ones(sums.shape), 1.0, 1e-3, 1e-4) is None
    statistics = case.statistics._replace(signs=sums, counts=np.repeat(case.statistics.counts[:1], 6, axis=0))
    rows = SyntheticRows(leaves, case.weights, 0.0 * case.scores)
    assert leaf_weights(statistics._replace(centre=0.0), rows) is None


def test_sums_of_nothing_have_weights_of_nothing() -> None:
    case = Case(bent=True, **SMALL)
    every = np.ones(5, dtype=np.bool_)
    ridge = LeafRidge(case.leaves, case.weights, np.zeros((5, 8)), every, 1e-3, 1e-4)
    assert np.abs(ridge.weights(1.0)).max() == 0.0
    # A vector that is in one direction of the Gram matrix alone.
    alike = LeafRidge(np.zeros_like(case.leaves), case.weights, np.ones((5, 8)), every, 1e-3, 1e-4)
    assert np.isfinite(alike.weights(1.0)).all()


def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations until they converge."""
    monkeypatch.setattr(module, "_STEPS", 64)
    monkeypatch.setattr(module, "_NEWTON_STEPS", 40)
    monkeypatch.setattr(module, "_CG_STEPS", 400)
    monkeypatch.setattr(module, "_STEP_HALVINGS", 30)
    monkeypatch.setattr(module, "_CG_LEAST", 1e-20)
    monkeypatch.setattr(module, "_NEWTON_LEAST", -1.0)


@pytest.mark.parametrize("strength", [1e-4, 0.1])
def test_logistic_weights_are_the_minimum(monkeypatch: pytest.MonkeyPatch, strength: float) -> None:
    case = weighted(Case(bent=True, **SMALL))
    matrix, rng = naive.phi(case.leaves, 8), np.random.default_rng(2)
    half, means = 2.0 * case.scores, np.clip(rng.normal(size=300), -0.99, 0.99)
    few = logistic_weights(case.leaves, case.weights, half, means, 8, strength)
    exactly(monkeypatch)
    found = logistic_weights(case.leaves, case.weights, half, means, 8, strength)
    wanted = reference.logistic_weights(matrix, case.weights, half, means, strength)
    assert matrix @ found.ravel() == pytest.approx(matrix @ wanted, abs=1e-4)
    # A few steps are near it.
    assert matrix @ few.ravel() == pytest.approx(matrix @ wanted, abs=0.05)


@pytest.mark.parametrize("size", [2.5, 3.0, 6.0])
def test_logistic_weights_never_raise_the_loss(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    """Where probabilities are near 0 and 1 a whole Newton step goes too far."""
    case = Case(bent=True, **SMALL)
    half = np.where(case.scores > 0.0, size, -size)
    means, matrix = -0.99 * np.sign(half), naive.phi(case.leaves, 8)

    def loss(d: np.ndarray) -> float:
        h = half + matrix @ d.ravel()
        return float(case.weights @ (np.logaddexp(h, -h) - means * h) + 0.5e-3 * np.square(d).sum())

    def weights() -> np.ndarray:
        return logistic_weights(case.leaves, case.weights, half, means, 8, 1e-3)

    assert loss(weights()) <= loss(np.zeros((5, 8)))
    # The same in one step, and without halving any.
    monkeypatch.setattr(module, "_NEWTON_STEPS", 1)
    short = weights()
    assert loss(short) <= loss(np.zeros((5, 8)))
    step = _first_newton_step(case, half, means, 1e-3)
    assert loss(step) > loss(np.zeros((5, 8)))
    if size < 6.0:
        assert loss(short) < loss(np.zeros((5, 8)))


def _first_newton_step(case: Case, half: np.ndarray, means: np.ndarray, strength: float) -> np.ndarray:
    matrix, now = naive.phi(case.leaves, 8), np.tanh(half)
    hessian = matrix.T @ ((case.weights * (1.0 - now * now))[:, None] * matrix) + strength * np.eye(40)
    step: np.ndarray = np.linalg.solve(hessian, matrix.T @ (case.weights * (means - now)))
    return step


def test_counts_are_the_best_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the rows where they agree within the noise, nearly the released ones where they do not."""
    case = Case(bent=True, **SMALL)
    found = naive.phi(case.leaves, 8).T @ case.weights
    for std, moved in ((0.1, 0.0), (0.01, 0.02), (1e-4, 0.05)):
        rng = np.random.default_rng(3)
        counts = found + moved * rng.normal(size=40) + std * 0.5 * rng.normal(size=40)
        statistics = case.statistics._replace(counts=counts.reshape(5, 8), std=std)
        ratios = count_ratios(statistics, case.rows)
        wanted = reference.count_ratios(counts, found, std * std)
        assert ratios.ravel() == pytest.approx(wanted, rel=1e-9)
        if moved == 0.0:
            assert ratios.ravel() == pytest.approx(np.ones(40))
        elif std == 1e-4:
            both = (counts > 0.0) & (found > 0.0)
            assert (ratios.ravel() * found)[both] == pytest.approx(counts[both], rel=0.01)


@pytest.mark.parametrize("least", [0.0, 2.0])
def test_leaf_weights_are_those_of_the_slow_reference(monkeypatch: pytest.MonkeyPatch, least: float) -> None:
    """With balanced labels, and with rare ones."""
    case = weighted(Case(bent=True, std=2e-3, least=least, **SMALL))
    statistics = case.statistics
    rows = case.rows._replace(scores=0.5 * case.scores + 0.1)
    exactly(monkeypatch)
    found = leaf_weights(statistics, rows)
    wanted = reference.leaf_weights(statistics, rows)
    assert found is not None
    assert wanted is not None
    assert found.factor == pytest.approx(wanted[0], rel=1e-5)
    assert found.leaves == pytest.approx(wanted[1], abs=2e-3 * float(np.abs(wanted[1]).max()))
    assert found.link.offset == pytest.approx(wanted[2], abs=1e-3)


@pytest.mark.parametrize(("std", "agrees"), [(3e-3, True), (1e-3, False)])
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
    leaves = trees.leaves(rng.uniform(size=(4096, 2))).T.astype(np.uint8, order="C")
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

    tried = [
        raked(ridge)
        for ridge in ((3e4, 1e4, 3e3, 1e3, 3e2, 1e2) if agrees else (3e4, 1e5, 3e5, 1e6, 3e6, 1e7))
    ]
    if agrees:
        index = next(k for k, (_, apart, _) in enumerate(tried) if apart <= 1.1)
        assert 0 < index < 5
        assert tried[index][2] > 1024.0
    else:  # already the first weights are those of a few rows: larger ridges leave more of them
        index = next(k for k, (*_, effective) in enumerate(tried) if effective >= 1024.0)
        assert index > 0
        assert tried[index][1] > 1.1
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
        == design.coordinates - d + plan.packed + plan.leaves
    )
    rng = np.random.default_rng(5)
    raw = np.zeros((60, d))
    raw[:, 0] = rng.uniform(-1.0, 1.0, 60)
    raw[np.arange(60), 1 + rng.integers(0, 5, 60)] = 1.0
    raw[np.arange(50), 6 + rng.integers(0, 3, 50)] = 1.0  # of ten the last field is unknown
    raw[3, 1:] = 1.0  # more than one: the first
    marks = naive.indicators(design.prepared(raw), design.coordinates, d)[:, d + plan.leaves :]
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
    leaves, weights, _ = synthetic_rows(statistics, np.ones(6), 1.0, trees, 4096)
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
    assert ranked([name.replace("=", "_") for name in names]) < by_field - 0.03


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
    wide = naive.indicators(ready, design.coordinates, 2)
    leaves, bins = wide[:, 2 : 2 + plan.leaves], wide[:, 2 + plan.leaves :]
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
