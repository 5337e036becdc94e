"""The private forest (docs/privacy 10.10): sensitivity, account, replay, and what it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness.learners import KEY
from harness.moments import Silent
from naive import random_trees as naive
from scipy.spatial.distance import cdist

from streampair import auc, privacy
from streampair.errors import ConfigError
from streampair.kernels import dp_steps, random_trees
from streampair.privacy import EntityLimit
from streampair.privacy.mechanisms.base import Relation
from streampair.privacy.mechanisms.dp_forest import (
    DPForestPlan,
    DPForestState,
    dp_forest_diameter,
    shares,
    worthwhile,
)
from streampair.privacy.mechanisms.second_moments import MomentsState
from streampair.records.random_trees import BINS, DEPTH, TREES, RandomTreeDesign, Trees

D = 2
NAMES = [0, 1]
PLAN = DPForestPlan(0.3, D, 200.0, 5000, 30.0)


def ring(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Records in a square; those near its centre are positive: no linear score knows them."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (n, D))
    return x, np.square(x).sum(axis=1) < 0.5


def forest(n: int, **options: Any) -> auc.PrivateForest:
    parameters = {"epsilon": 8.0, "delta": 1e-4, "features": NAMES, "horizon": n, **options}
    return auc.PrivateForest(**parameters)


def design_of(values: np.ndarray) -> np.ndarray:
    """Designs of standardised values, as after a warm-up that found mean 0 and variance 1 / 4."""
    design = RandomTreeDesign(NAMES, {})
    design.cap = 3.0 / math.sqrt(D)
    design.standardise(np.zeros(D), np.full(D, 2.0 / math.sqrt(D)))
    ready = np.empty((len(values), design.width))
    design.prepare(values, ready, np.empty(len(values)))
    return ready


def summed(ready: np.ndarray, label: float, *, tail: bool = True) -> np.ndarray:
    """What one record adds to a block, by the code that learns, in units of the records."""
    cells = np.zeros(PLAN.dim, dtype=np.int64)
    linear, labels = np.ascontiguousarray(ready[None, :D]), np.array([label])
    dp_steps.second_moment_sums(linear, labels, 0.3, 1.0 / 1.3, PLAN.grid, cells)
    if tail:
        random_trees.tree_sums(ready[None], labels, D, PLAN.trees, PLAN.leaves, cells)
    return cells * PLAN.steps


def test_no_replacement_moves_a_sum_by_more_than_the_diameter() -> None:
    """Lemma 90: by search over records, in which every part of the bound is reached or nearly so."""
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.uniform(-1.0, 1.0, (150, D)), [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]))
    ready = design_of(values)
    sums = np.array([summed(row, label) for row in ready for label in (1.0, -1.0)])
    apart = cdist(sums, sums)
    allowed = PLAN.diameter + PLAN.grid * math.sqrt(PLAN.packed)
    assert 0.9 * allowed < apart.max() <= allowed
    assert allowed == PLAN._one_move
    # By part: in every tree 4 where the leaves differ, and where they do not but the labels do; 2 a column.
    leaf, mark = PLAN.leaf, PLAN.mark
    tail = apart**2 - np.square(sums[:, None, : PLAN.packed] - sums[None, :, : PLAN.packed]).sum(axis=2)
    assert tail.max() == pytest.approx(4 * TREES * leaf**2 + 2 * D * mark**2, rel=1e-6)
    flipped = np.array([tail[2 * i, 2 * i + 1] for i in range(len(values))])
    assert flipped == pytest.approx(4 * TREES * leaf**2, rel=1e-6)
    # A null record adds nothing, so blanking moves a sum by its norm.
    assert not summed(ready[0], math.nan).any()
    norms = np.linalg.norm(sums, axis=1)
    assert norms.max() <= PLAN.blank_move + PLAN.grid * math.sqrt(PLAN.packed)
    # Mutants: without the leaves' part, or with one label of two, the bound would be passed.
    assert apart.max() > math.hypot(2.1214, math.sqrt(2 * D) * mark) * 1.01
    assert apart.max() > dp_forest_diameter(D, leaf / math.sqrt(2), mark)


def test_the_diameter_is_that_of_the_slow_reference() -> None:
    """Leaves and bins counted by hand, from the definition of the trees."""
    trees = [naive.tree([1] * D, t, 2**DEPTH) for t in range(TREES)]
    rng = np.random.default_rng(1)
    for _ in range(3):
        values = rng.uniform(-1.0, 1.0, (1, D))
        places = [naive.place(2.0 * v) for v in values[0]]
        wide = naive.indicators(design_of(values), D + PLAN.leaves + PLAN.marks, D)
        assert wide[0, D:].tolist() == naive.marks(places, [1] * D, trees, BINS)
    # A part of each tree, and a bin of each column.
    assert wide[0, D:].sum() == TREES + D


def test_the_shares_of_mu() -> None:
    leaf, mark = PLAN.leaf, PLAN.mark
    parts = np.array([4.5, 4 * TREES * leaf**2, 2 * D * mark**2])
    assert parts / parts.sum() == pytest.approx(shares(D), abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [{}, {"anytime": 0.6}, {"horizon": None}, {"forks": 2}, {"relation": Relation(EntityLimit(3, 20))}],
)
def test_the_account_is_that_of_moments_of_another_diameter(options: dict[str, Any]) -> None:
    """What a run spends is its budget, under the releases that it makes: no cheaper, and no dearer."""
    parameters = {"horizon": 5000, **options}
    plan = DPForestPlan(0.3, D, 200.0, parameters.pop("horizon"), 30.0, **parameters)
    horizon = plan.horizon or 10**6
    spent = plan.mu_spent(horizon) ** 2 + plan.forks * plan.fork_mu2(plan.window)
    assert spent <= 0.09 * (1 + 1e-9)
    assert spent >= 0.09 * 0.85 or plan.horizon is None
    assert all(release.sensitivity >= plan.diameter for release in plan.card())
    assert {release.coordinates for release in plan.card()} == {plan.dim}
    assert "Lemma 90" in plan.card()[0].lemma


def test_releases_by_brute_force_over_the_place_of_a_record() -> None:
    """One record replaced at each of many slots: what all releases together see, in units of their noise."""
    plan = DPForestPlan(0.5, D, 20.0, 150, 30.0, anytime=0.6)
    rows = design_of(np.random.default_rng(2).uniform(-1.0, 1.0, (150, D)))
    labels = np.ones(150)
    other = design_of(np.array([[1.0, 1.0]]))[0], -1.0

    def seen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        run, releases = DPForestState(plan), []
        run._solve = lambda: None  # type: ignore[method-assign]
        for i in range(len(x)):
            before = run.releases
            run.learn(x[i : i + 1], y[i : i + 1], Silent())
            if run.releases > before:
                last = run.steps == plan.horizon
                value = run.released[plan.dim :] if last else run.released[: plan.dim]
                releases.append(value.copy() / (plan.sigma_last if last else plan.sigma))
        return np.concatenate(releases)

    base, most = seen(rows, labels), 0.0
    for slot in (0, 1, 7, 40, 90, 148, 149):
        x, y = rows.copy(), labels.copy()
        x[slot], y[slot] = other
        most = max(most, float(np.linalg.norm(seen(x, y) - base)))
    assert 0.5 * plan.mu < most <= plan.mu_spent(150) * (1 + 1e-9)
    # A plan that forgot the leaves would be passed.
    assert most > plan.mu_spent(150) * 2.2 / plan.diameter


def test_trees_know_nothing_of_records() -> None:
    """The same for every stream: a function of the number of features alone."""
    one, other = Trees((1, 1, 1)), Trees((1, 1, 1))
    assert (one.fields == other.fields).all()
    assert (one.cuts == other.cuts).all()
    assert not (one.cuts == Trees((1,) * 4).cuts).all()


def test_it_ranks_what_no_linear_score_does() -> None:
    from sklearn.metrics import roc_auc_score

    x, y = ring(12_000)
    test, wanted = ring(2000, 1)
    model = forest(12_000, seed=1)
    model.learn_many(x, y)
    other = auc.PairFTRL(8.0, 1e-4, 12_000, features=NAMES, seed=1)
    other.learn_many(x, y)
    assert roc_auc_score(wanted, other.score_many(test)) < 0.6
    assert roc_auc_score(wanted, model.score_many(test)) > 0.9
    p = model.predict_proba_many(test)
    p = np.asarray(p[True] if hasattr(p, "columns") else p)[..., -1] if np.ndim(p) > 1 else np.asarray(p)
    assert abs(float(p.mean()) - wanted.mean()) < 0.1


@pytest.mark.parametrize("horizon", [1200, None])
def test_batches_replay_and_copies_give_the_bits_of_one_by_one(horizon: int | None) -> None:
    """Leaves that are counted in another order in a batch, or drawn anew after a restart."""
    x, y = ring(1200)
    x[5, 0] = math.nan
    labels = [None if i == 9 else bool(v) for i, v in enumerate(y)]
    options: dict[str, Any] = {"noise_key": KEY, "warmup": 400, "epsilon": 20.0}
    one, many, again = (forest(1200, **{**options, "horizon": horizon}) for _ in range(3))
    records = [dict(zip(NAMES, row.tolist(), strict=True)) for row in x]
    scores = []
    for record, label in zip(records, labels, strict=True):
        if math.isfinite(record[0]):
            scores.append(one.take(record, label))
        else:
            one.learn_null()
    ready = many.prepare_many(records, labels)
    assert ready is not None
    found = ready.take()
    assert [v for i, v in enumerate(found) if i != 5] == scores
    assert (many.run.weights == one.run.weights).all()
    assert many.noise_digest == one.noise_digest
    assert one.run.weights[D:].any()
    # From a snapshot in the middle, under the same key: the same bytes.
    for record, label in zip(records[:700], labels[:700], strict=True):
        _ = again.learn_one(record, label) if math.isfinite(record[0]) else again.learn_null()
    restored = forest(1200, **{**options, "horizon": horizon})
    restored.load_state(again.to_state())
    for record, label in zip(records[700:], labels[700:], strict=True):
        restored.learn_one(record, label)
    assert (restored.run.weights == one.run.weights).all()
    assert restored.to_state()["slots"] == 1200
    # Another record: other noise.
    changed = forest(1200, **{**options, "horizon": horizon})
    changed.learn_many(np.where(np.arange(1200)[:, None] == 500, 0.123, x), np.array(labels, dtype=object))
    assert not (changed.run.weights == one.run.weights).all()


def test_a_model_is_that_of_its_release_whenever_it_is_asked_for() -> None:
    x, y = ring(2010)
    early, late = (forest(4000, seed=3, epsilon=20.0, warmup=400) for _ in range(2))
    for model in (early, late):
        model.learn_many(x[:2000], y[:2000])
    wanted = early.run.state.average.copy()
    assert wanted[D:].any()
    releases = early.run.state.releases
    late.learn_many(x[2000:], y[2000:])
    assert late.run.state.releases == releases
    assert (late.run.state.average == wanted).all()


@pytest.mark.parametrize("learned", [3000, 4000])
def test_models_are_post_processing(learned: int) -> None:
    """A run of other records that has released the same values has the same model, to the last bit.

    On the way, and at the horizon.
    """
    x, y = ring(learned)
    a = forest(4000, seed=3, epsilon=20.0)
    a.learn_many(x, y)
    rule = a.run.state
    assert isinstance(rule, DPForestState)
    assert rule.average[D:].any()  # leaves take part
    b = forest(4000, seed=4, epsilon=20.0)
    b.learn_many(x[::-1] * 0.5, ~y)
    other = b.run.state
    assert not (other.average == rule.average).all()
    other._weighted[:], other._numbers[:] = rule._weighted, rule._numbers
    other._start[:] = rule._start
    other._put_centre(rule._centre)
    other._solve()
    assert (other.average == rule.average).all()
    assert other.link == rule.link


def test_metadata_does_not_depend_on_content() -> None:
    x, y = ring(900)
    a, b = (forest(900, warmup=100, epsilon=20.0) for _ in range(2))
    a.learn_many(x, y)
    b.learn_many(np.full_like(x, math.nan), np.array([None] * 900, dtype=object))
    assert isinstance(a.run.state, DPForestState)
    assert (a.slots, a.privacy.releases, a.plan()) == (b.slots, b.privacy.releases, b.plan())


def test_short_streams_have_the_linear_score_alone() -> None:
    assert not worthwhile(1.0, 1e-4, 3000)
    assert worthwhile(1.0, 1e-4, 16_000)
    # Of many features leaves tell less, and more records are asked for.
    assert not worthwhile(1.0, 1e-4, 16_000, features=100)
    assert worthwhile(1.0, 1e-4, 64_000, features=100)
    short, long = forest(1000, epsilon=1.0), forest(None, epsilon=1.0)  # type: ignore[arg-type]
    assert type(short.run.state) is MomentsState
    assert type(long.run.state) is DPForestState
    # Unless somebody says how many trees there are.
    said = forest(1000, epsilon=1.0, trees=3, depth=2)
    assert isinstance(said.run.state, DPForestState)
    assert said.run.state.plan.leaves == 12
    assert "3 random trees" in said.privacy.details


def test_a_plan_is_taken_as_it_is() -> None:
    one = forest(5000)
    plan = one.plan()
    other = forest(5000)
    other.load_plan(plan)
    assert other.plan() == plan
    report = one.privacy
    assert "random trees" in report.details


@pytest.mark.parametrize(
    "options",
    [
        {"warmup": 0},
        *({"trees": 1}, {"trees": 501}, {"depth": 9}, {"depth": 0.5}, {"trees": True}),
    ],
)
def test_what_it_cannot_use_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Fix"):
        forest(**{"n": 5000, **options})


def test_a_forest_without_trees_is_audited_as_what_it_is() -> None:
    """Other forests are in `harness.audit_mutants`."""
    model = forest(1000, epsilon=1.0)
    report = privacy.audit(model, slots=12, runs=4)
    assert report.holds
    for part in report.parts:
        assert 0.98 * part.accounted < part.exact <= part.accounted
