"""Entities under moments and output perturbation: no placement of their records costs more than planned.

All placements that admission allows are tried (docs/privacy 8, Lemma 55 and Lemma 56).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import naive
import numpy as np
import pytest

from streampair import auc, privacy
from streampair.privacy import EntityLimit, Influence, Origin
from streampair.privacy.contraction import giga_steps, output_sensitivities, output_spend
from streampair.privacy.mechanisms.base import Relation
from streampair.privacy.mechanisms.output_perturbation import entity_spend
from streampair.privacy.mechanisms.second_moments import RATIO, placed, plan_second_moments
from streampair.privacy.user_level import pairs_apart

LIMITS = [EntityLimit(k, b) for k, b in ((1, 1), (2, 1), (2, 5), (3, 1), (3, 2), (3, 4), (4, 3))]


def placements(limit: EntityLimit, slots: int) -> Iterator[tuple[int, ...]]:
    """Slots, from 0, of as many records as may be and of fewer, at least the separation apart."""
    for count in range(1, limit.records + 1):
        for chosen in itertools.combinations(range(slots), count):
            if all(b - a >= limit.separation for a, b in itertools.pairwise(chosen)):
                yield chosen


@pytest.mark.parametrize("records", [1, 2, 5, 64, 65, 66, 1000, 65_535])
def test_every_pair_is_charged_at_a_distance_that_it_has_at_least(records: int) -> None:
    distances = pairs_apart(records)
    assert sum(pairs for _, pairs in distances) == records * (records - 1)
    assert len(distances) <= 64
    # Nearest first, as many pairs as there are at this distance or less.
    counted = 0
    for i, (between, pairs) in enumerate(distances):
        assert counted == sum(2 * (records - j) for j in range(1, between))
        counted += pairs
        assert (i == 0) == (between == 1)


# ---- moments: the sums of blocks ------------------------------------------------------------------------


def image(chosen: tuple[int, ...], ends: tuple[int, ...], share: float) -> np.ndarray:
    """C n: how far the records, all of which move their block by 1 the same way, move each release."""
    rows = np.zeros(len(ends))
    for slot in chosen:
        (block,) = (k for k, end in enumerate(ends) if (0, *ends)[k] <= slot < end)
        for row in range(block, len(ends)):
            rows[row] += share ** (row - block)
    return rows


# Blocks that grow, that grow late, and one that is shorter than the first.
BLOCKS = [(2, 4, 5, 7, 10), (1, 2, 3, 12), (3, 4, 8, 14), (6, 13)]


def worst_over(ends: tuple[int, ...], limit: EntityLimit, rows: int) -> float:
    """The most that a placement moves so many releases next to each other: all of both are tried."""
    return max(
        float(np.linalg.norm(moved[start : start + rows]))
        for moved in (image(chosen, ends, 1 / RATIO) for chosen in placements(limit, ends[-1]))
        for start in range(len(ends) - rows + 1)
    )


@pytest.mark.parametrize("ends", BLOCKS, ids=str)
@pytest.mark.parametrize("limit", LIMITS, ids=lambda e: f"{e.records} apart {e.separation}")
def test_no_placement_over_blocks_costs_more(ends: tuple[int, ...], limit: EntityLimit) -> None:
    """Over whole runs, and over every window of them."""
    for rows in range(1, len(ends) + 1):
        bound = placed(ends, limit, 1 / RATIO, rows)
        worst = worst_over(ends, limit, rows)
        assert worst <= bound * (1 + 1e-12)
        assert bound <= 1.25 * worst


def test_an_account_that_sums_squares_is_caught() -> None:
    caught = 0
    for ends, limit in itertools.product(BLOCKS, LIMITS):
        single = placed(ends, EntityLimit(1), 1 / RATIO, len(ends))
        squares = math.sqrt(limit.within(ends[-1])) * single
        caught += squares < worst_over(ends, limit, len(ends)) * (1 - 1e-9)
    assert caught > 9


def test_the_densest_records_are_not_the_worst_over_blocks() -> None:
    """What Lemma 30 says of slots is false of blocks: a late one holds together what early ones part."""
    plan = plan_second_moments(1.0, features=2, base=8.0, radius=3.0)
    ends = tuple(plan.end(block) for block in range(1, 81))
    first, late = (
        float(np.linalg.norm(image(tuple(range(start, start + 40, 4)), ends, 1 / RATIO)))
        for start in (0, ends[41])
    )
    assert late > 1.2 * first  # the mutant: an account of the densest records from the first slot on
    assert late == pytest.approx(10 * placed(ends, EntityLimit(1), 1 / RATIO, 80), rel=0.01)
    assert late <= placed(ends, EntityLimit(10, 4), 1 / RATIO, 80) <= 1.01 * late


@pytest.mark.parametrize("horizon", [None, 30, 400])
@pytest.mark.parametrize("limit", [EntityLimit(3, 2), EntityLimit(4, 40)])
@pytest.mark.parametrize("forks", [0, 2])
def test_a_plan_of_moments_spends_the_budget_of_an_entity(
    horizon: int | None, limit: EntityLimit, forks: int
) -> None:
    made = partial(
        plan_second_moments, 0.8, features=2, base=10.0, radius=3.0, horizon=horizon, forks=forks, window=7
    )
    plan, alone = made(relation=Relation(limit)), made()
    end = 10**9 if horizon is None else horizon
    spent = math.hypot(plan.mu_spent(end), math.sqrt(forks * plan.fork_mu2(7)))
    assert spent == pytest.approx(0.8, rel=1e-6)
    most = limit.within(horizon or 10**9)
    assert alone.sigma * (1 - 1e-9) <= plan.sigma <= most * alone.sigma * (1 + 1e-9)
    assert [plan.mu_spent(t) for t in range(30)] == sorted(plan.mu_spent(t) for t in range(30))
    assert made(relation=Relation(EntityLimit(1, 9))).sigma == pytest.approx(alone.sigma)
    if horizon != 30:
        return
    # By brute force: every placement over the run, and over a window that is released twice.
    ends = tuple(end for block in range(1, 40) if (end := plan.end(block)) < horizon)
    move = plan._one_move
    for chosen in placements(limit, horizon):
        rows = image(tuple(slot for slot in chosen if slot < ends[-1]), ends, 1 / RATIO)
        costs = np.zeros(horizon)
        costs[np.array(ends) - 1] = (move * rows / plan.sigma) ** 2
        costs[-1] = (move * len(chosen) / plan.sigma_last) ** 2
        window = max(costs[start : start + 7].sum() for start in range(horizon - 6))
        assert costs.sum() + forks * window <= 0.8**2 * (1 + 1e-9)


def learner(kind: Any = auc.PairFTRL, **options: Any) -> Any:
    fixed = {"delta": 1e-3, "horizon": 200, "features": ["a", "b"], "entity": EntityLimit(3, 4, field="who")}
    return kind(**{**fixed, **options})


@pytest.mark.parametrize("horizon", [None, 200])
def test_forks_of_warm_up_and_blocks_are_inside_the_budget_of_an_entity(horizon: int | None) -> None:
    model = learner(mechanism=privacy.SecondMoments(), warmup=20, horizon=horizon, forks=2, window=16)
    rng = np.random.default_rng(0)
    for slot in range(200):
        x = {"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1), "who": f"p{slot % 9}"}
        model.learn_one(x, bool(slot % 2))
    report = model.privacy
    assert report.mu_spent < 0.9 * report.mu_budget
    model.charge(2)
    spent = model.privacy.mu_spent
    assert spent <= report.mu_budget * (1 + 1e-9)
    assert spent == pytest.approx(report.mu_budget) or horizon is None
    model.charge(3)
    assert model.privacy.mu_spent > (1.0 if horizon else 0.99) * report.mu_budget
    distances = {line["name"]: line for line in model.privacy.card}
    assert all("all of an entity's records" in line["relation"] for line in distances.values())
    for line in distances.values():
        assert 0.5 * line["replace"] < line["blank"] < line["replace"]  # |F| <= sqrt 2, of D = 3 / sqrt 2


def test_the_records_of_an_entity_move_the_releases_by_no_more_than_planned() -> None:
    """With the same noise the releases of two neighbouring streams differ by what the records have moved."""
    contents = ({"a": 1.0, "b": 0.0}, {"a": -0.5, "b": math.sqrt(0.75)})
    releases = []
    for content in contents:
        model = learner(
            entity=EntityLimit(3, 4), mechanism=privacy.SecondMoments(), warmup=20, horizon=80, seed=3
        )
        model.run.skip_warmup()
        released = []
        for slot in range(60):
            mine = "mine" if slot in (3, 7, 11) else ""
            model.learn_one(content if mine else {"a": 0.0, "b": 0.0}, True, Origin(entity=mine or f"{slot}"))
            released.append(model.run.released)
        releases.append(np.array(released))
    plan, d = model.run.state.plan, model.run.state.plan.dim
    moved = np.diff(releases[0] - releases[1], axis=0, prepend=0.0)
    # What is released anew at each slot is C times the sums, but for what has decayed.
    rows = [
        index
        for index in range(60)
        if index + 1 in {plan.end(block) for block in range(1, 60)} and index < 59
    ]
    running = (
        sum(float(np.sum((releases[0] - releases[1])[index, :d] ** 2)) for index in rows) / plan.sigma**2
    )
    last = float(np.sum(moved[-1, d:] ** 2)) / plan.sigma_last**2
    assert 0.9 * plan.mu < math.sqrt(running + last) <= plan.mu * (1 + 1e-9)


# ---- output perturbation ---------------------------------------------------------------------------------

STEPS = 16


def summed(
    every: np.ndarray, precisions: np.ndarray, grids: np.ndarray, limit: EntityLimit, size: int
) -> float:
    """Lemma 56 to the letter: the dearest pair of each distance, among all pairs."""
    products = (every * precisions) @ every.T
    records, single = limit.within(STEPS), float(products.diagonal().max())
    total = records * single
    for between in range(1, records):
        gap = between * limit.separation
        pair = max(products[i, j] for i in range(STEPS) for j in range(i + gap, STEPS))
        total += 2 * (records - between) * (min(single, pair) if gap > size else single)
    return float((math.sqrt(total) + math.sqrt(precisions @ grids**2)) ** 2)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("strength", [0.03, 0.5])
@pytest.mark.parametrize("grid", [0.0, 0.02])
def test_no_placement_of_an_entity_costs_more(size: int, strength: float, grid: float) -> None:
    rng = np.random.default_rng(size)
    etas, factors = giga_steps(strength, 4.0, STEPS)
    influence = Influence.fifo(size)
    bounds = output_sensitivities(etas, factors, influence, 2.0, math.inf)
    grids = np.full(STEPS, grid)
    every = [
        naive.moves(i, etas.tolist(), factors.tolist(), size=size, uses=size, diameter=2.0)
        for i in range(STEPS)
    ]
    caught = 0
    for precisions in (
        np.ones(STEPS),
        rng.uniform(0, 4, STEPS),
        np.eye(STEPS)[-1],
        np.geomspace(1, 50, STEPS),
    ):
        arguments = (etas, factors, influence, 2.0, bounds, grids, precisions)
        alone = output_spend(*arguments)
        for limit in LIMITS:
            worst = max(
                float(
                    precisions
                    @ (sum(every[i] for i in chosen) + grids * (np.arange(STEPS) >= chosen[0])) ** 2
                )
                for chosen in placements(limit, STEPS)
            )
            claimed = entity_spend(*arguments, limit)
            assert claimed == pytest.approx(summed(np.array(every), precisions, grids, limit, size), rel=1e-6)
            records = limit.within(STEPS)
            assert worst <= claimed * (1 + 1e-9)
            assert claimed <= 2.2 * worst
            if grid == 0.0:
                assert claimed <= records**2 * alone * (1 + 1e-9)
            for count in (0, STEPS // 2):
                stopped = np.where(np.arange(STEPS) < count, precisions, 0.0)
                part = entity_spend(*arguments, limit, count)
                assert part <= entity_spend(*arguments[:-1], stopped, limit) * (1 + 1e-9)
            # Mutant: squares that are summed, as if the moves of the records were orthogonal.
            caught += worst > records * alone * (1 + 1e-9)
    assert caught


def test_a_mutant_that_forgets_the_buffer_is_caught() -> None:
    """The moves of records that are used at their own step alone."""
    etas, factors = giga_steps(0.03, 4.0, STEPS)
    size, limit = 2, EntityLimit(3, 4)
    bounds = output_sensitivities(etas, factors, Influence.fifo(size), 2.0, math.inf)
    arguments = (etas, factors, Influence.fifo(size), 2.0, bounds, np.zeros(STEPS), np.ones(STEPS), limit)

    def worst(used: int) -> float:
        every = [
            naive.moves(i, etas.tolist(), factors.tolist(), size=used, uses=size, diameter=2.0)
            for i in range(STEPS)
        ]
        return max(float(np.sum(sum(every[i] for i in c) ** 2)) for c in placements(limit, STEPS))

    assert worst(10**9) < 0.6 * worst(size)
    assert worst(size) <= entity_spend(*arguments)
