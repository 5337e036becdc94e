"""Sums of a table and their releases (docs/privacy 10.7): the lemma, the account, an audit of both stages."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.moments import climb
from harness.table_mutants import both_stages, less_noise
from naive import random_trees as naive_trees
from naive import table_moments as naive
from scipy import stats

from streampair import auc, history, metric
from streampair.errors import ConfigError, PrivacyError, RecordError, StoreError
from streampair.history import jobs
from streampair.history.jobs import Job, Sums
from streampair.kernels import table_sums
from streampair.kernels.vectors import prepare_rows
from streampair.privacy import EntityLimit, mu_from
from streampair.privacy.mechanisms import table_moments
from streampair.privacy.mechanisms.second_moments import second_moments_diameter
from streampair.privacy.mechanisms.standardization import (
    CROSS_WEIGHT,
    SQUARE_WEIGHT,
    Warmup,
    moment_sensitivity,
)
from streampair.privacy.mechanisms.table_moments import (
    STEPS,
    SumsRelease,
    TableForestPlan,
    TableForestState,
    class_sums,
    label_steps,
    moments_release,
    plan_sample,
    sample_release,
)
from streampair.privacy.mechanisms.table_moments import product_sums as sums_of_products
from streampair.privacy.mechanisms.table_moments import sample_sums as sums_of_sample
from streampair.privacy.noise import ChainedNoise, NoiseKey, NormalStream, rounded, scaled
from streampair.records.random_trees import BINS

KEY = bytes(range(32))
FOREST: dict[str, Any] = {"kind": auc.PrivateForest, "trees": 2, "depth": 2}
METRIC: dict[str, Any] = {"kind": metric.PairFTRL, "classes": [True, False]}
N, NAMES = 600, ("a", "b", "c")
Table = dict[str, np.ndarray]


def table(seed: int = 0, rows: int = N) -> Table:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (rows, len(NAMES)))
    x[rng.random(rows) < 0.05, 1] = math.nan
    columns: Table = dict(zip(NAMES, x.T, strict=True))
    return {**columns, "y": x[:, 0] + rng.normal(size=rows) > 0, "id": np.arange(rows) * 7 + 3}


def job(rows: int = N, epsilon: float = 1.0, kind: Any = auc.PairFTRL, **options: Any) -> Job:
    bounds = dict.fromkeys(NAMES, (-2, 2))
    learner = kind(epsilon=epsilon, delta=1e-4, features=NAMES, bounds=bounds, **options)
    return Job(learner, label="y", rows=rows, row_id="id", salt="salt")


def part(columns: Table, rows: Any) -> Table:
    return {name: column[rows] for name, column in columns.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "account.json"


# ---- the sums --------------------------------------------------------------------------------------------


def rows_of(rng: np.random.Generator, count: int = 40, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the unit ball, many of them on its border, and labels."""
    x = rng.normal(size=(count, d))
    x /= np.maximum(np.linalg.norm(x, axis=1), rng.choice([1e-9, 1.0, 3.0], count))[:, None]
    x[0] = [1.0, 0.0, 0.0, 0.0]
    return x, np.where(
        rng.random(count) < 0.5, rng.choice([1.0, -1.0, math.nan], count), rng.uniform(-1, 1, count)
    )


def behind(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Columns of rows, and the labels behind them."""
    return np.array([*rows.T, labels])


def product_sums(rows: np.ndarray, labels: np.ndarray, centre: float) -> np.ndarray:
    return sums_of_products(behind(rows, labels), centre)


def sample_sums(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return sums_of_sample(behind(rows, labels))


def steps_in_ball(rows: np.ndarray) -> np.ndarray:
    columns = np.array(rows.T, order="C")
    table_sums.ball_steps(columns, np.zeros(len(rows)), float(STEPS))
    return columns.T


def test_sums_are_those_of_whole_numbers() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, y = rows_of(rng)
        centre = rng.uniform(-0.98, 0.98)
        steps = label_steps(np.linspace(-1, 1, 101), centre)
        assert np.abs(steps).max() <= STEPS
        assert steps.tolist() == [naive.label_steps(v, centre) for v in np.linspace(-1, 1, 101).tolist()]
        assert steps_in_ball(3.0 * x).tolist() == [naive.steps_in_ball(row) for row in (3.0 * x).tolist()]
        assert product_sums(x, y, centre).tolist() == naive.product_sums(x.tolist(), y.tolist(), centre)
        assert sample_sums(x, y).tolist() == naive.sample_sums(x.tolist(), y.tolist())
        classes, y = [-1.0, 7.0, 1.0], np.where(rng.random(len(y)) < 0.2, 7.0, np.round(y))
        found = class_sums(behind(x, y), np.array(classes))
        assert found.tolist() == naive.class_sums(x.tolist(), y.tolist(), classes)
    bad = np.array([[math.nan, 0.5], [math.inf, 0.0], [1e300, 1e300], [0.8, 0.6]])
    assert not steps_in_ball(bad)[:3].any()
    for row in steps_in_ball(bad).astype(int).tolist():
        assert sum(k * k for k in row) <= STEPS**2


def ball(v: np.ndarray) -> np.ndarray:
    return v / max(1.0, float(np.linalg.norm(v)))


def test_no_replacement_moves_the_sums_further() -> None:
    """In whole numbers, so that no rounding hides: the bound is that of the lemma, and nearly reached."""
    rng = np.random.default_rng(0)
    d = 3
    bound = Fraction(9, 2)

    def of_products(v: np.ndarray, centre: float) -> float:
        x, z, labels = ball(v[:d]), ball(v[d : 2 * d]), np.clip(v[2 * d :], -1.0, 1.0)
        one, other = (product_sums(row[None], labels[i : i + 1], centre) for i, row in enumerate((x, z)))
        square = naive.squared_move(one.tolist(), other.tolist(), d)
        assert square <= bound
        return float(square)

    def of_sample(v: np.ndarray) -> float:
        x, z, labels = (np.clip(part, -1, 1) for part in (v[:d], v[d : 2 * d], v[2 * d :]))
        moved = sample_sums(x[None], labels[:1]) - sample_sums(z[None], labels[1:])
        weights = np.repeat([1.0, SQUARE_WEIGHT / STEPS, 1.0, CROSS_WEIGHT / STEPS], [d, d, 1, d]) / STEPS
        return float(np.linalg.norm(moved * weights))

    def of_classes(v: np.ndarray, classes: tuple[float, float]) -> float:
        one, other = (
            class_sums(behind(ball(part)[None], np.array([place])), np.arange(3.0)).tolist()
            for part, place in zip((v[:d], v[d:]), classes, strict=True)
        )
        square = naive.squared_move(one, other, d)
        assert square <= bound
        return float(square)

    best = max(climb(lambda v: of_products(v, 0.0), rng, 2 * d + 2, starts=40, steps=400) for _ in range(4))
    assert best > 0.95 * float(bound)
    for classes in ((0.0, 0.0), (2.0, 1.0)):
        ways = (
            climb(lambda v, c=classes: of_classes(v, c), rng, 2 * d, starts=40, steps=400) for _ in range(4)
        )
        assert max(ways) > 0.95 * float(bound)
    assert of_classes(np.ones(2 * d), (0.0, math.nan)) == pytest.approx(2.25, rel=1e-3)  # from a null row
    for centre in (-0.9, 0.4, 0.98):
        climb(lambda v, centre=centre: of_products(v, centre), rng, 2 * d + 2, starts=40, steps=100)
    found = max(climb(of_sample, rng, 2 * d + 2, starts=40, steps=400) for _ in range(4))
    sensitivity = moment_sensitivity(d, labels=True, cross=True)
    assert 0.95 * sensitivity < found <= sensitivity * (1 + 1e-12)


def test_a_row_that_rounding_makes_too_long_is_shortened() -> None:
    """Of rows on the sphere half would be longer than it: the mutant without the check moves further."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 5))
    x /= np.linalg.norm(x, axis=1)[:, None]
    nearest = np.floor(x * STEPS + 0.5)
    assert (np.einsum("ij,ij->i", nearest, nearest) > STEPS**2).mean() > 0.3
    steps = steps_in_ball(x)
    assert (np.einsum("ij,ij->i", steps, steps) <= STEPS**2).all()
    assert np.abs(steps - x * STEPS).max() < 1.0


def test_a_row_of_a_table_is_the_vector_of_a_stream(path: Path) -> None:
    """To the last bit, so that what a model is computed of is what it scores."""
    first = job()
    design = first.standardised(first.sums(table()), KEY, account=path)._design()
    for d in (1, 3, 4, 7, 20):
        rng = np.random.default_rng(d)
        rows, vectors = rng.normal(size=(400, d)) * 2.0, np.empty((400, d))
        rows[::7] = rng.choice([0.0, 1e300, -1e300], (len(rows[::7]), d))
        scaling = rng.uniform(-2.0, 2.0, (4, d))
        prepare_rows(rows, scaling, True, design.cap, vectors, np.empty(400))
        columns, labels = np.empty((d, 400)), np.ones(400)
        table_sums.design_columns(rows.T.copy(), scaling, design.cap, columns, labels)
        assert d == 1 or (np.linalg.norm(vectors, axis=1) > 1.0 - 1e-9).mean() > 0.3  # by their norm
        assert np.array_equal(columns.T, vectors)


def schedule(rng: np.random.Generator, one: Job, columns: Table) -> Sums:
    """A table in random batches, in a random order of rows and of batches, added up as a random tree."""
    order = rng.permutation(N)
    cuts = np.sort(rng.integers(0, N + 1, rng.integers(0, 12)))
    parts = [one.sums(part(columns, rows)) for rows in np.split(order, cuts)]
    while len(parts) > 1:
        i = int(rng.integers(len(parts)))
        left = parts.pop(i)
        j = int(rng.integers(len(parts)))
        parts[j] = pickle.loads(pickle.dumps(parts[j])) + left
    return parts[0]


def test_sums_are_equal_for_any_cut_and_order(path: Path) -> None:
    columns, rng = table(), np.random.default_rng(2)
    for learner in ({}, FOREST, METRIC):
        first = job(**learner)
        whole = first.sums(columns)
        second = first.standardised(whole, KEY, account=path.with_name(f"{first.digest}"))
        total = second.sums(columns)
        for _ in range(200):
            assert schedule(rng, first, columns) == whole
            assert schedule(rng, second, columns) == total
        changed = {**columns, "a": columns["a"] + (np.arange(N) == 5) * 2.0**-12}
        assert first.sums(changed) != whole or second.sums(changed) != total
    # A sum of floats would differ.
    assert len({float(columns["a"][rng.permutation(N)].sum()) for _ in range(20)}) > 1


def test_sums_of_a_forest_are_those_of_its_definition(path: Path) -> None:
    """Second moments are those of the same job without trees; leaves and bins are counted by hand."""
    columns, first = table(), job(**FOREST)
    second = first.standardised(first.sums(columns), KEY, account=path)
    done, sums = second._standardisation, second.sums(columns)
    assert done is not None
    linear = Job.__new__(Job)
    linear.__setstate__((dataclasses.replace(job()._plain), done))
    packed = len(NAMES) * (len(NAMES) + 1) // 2 + len(NAMES)
    assert sums.cells[:packed].tolist() == linear.sums(columns).cells.tolist()
    sizes = [1] * len(NAMES)
    trees, rows, labels = [naive_trees.tree(sizes, t, 4) for t in range(2)], [], []
    for i in np.flatnonzero([not first.sums(part(columns, [i])).taken for i in range(N)]):
        places = []
        for j, name in enumerate(NAMES):
            value = (min(max(columns[name][i] / 2.0, -1.0), 1.0) - done.mean[j]) * done.factor[j]
            missing = math.isnan(columns[name][i])
            place = naive_trees.place(min(max(value, -done.cap), done.cap) * 3.0 / done.cap)
            places.append(math.nan if missing else place)
        rows.append(naive_trees.marks(places, sizes, trees, BINS))
        labels.append(1.0 if columns["y"][i] else -1.0)
    assert sums.cells[packed:].tolist() == naive_trees.tree_sums(rows, labels, 8)
    # Leaves learn rows with a gap, which second moments do not; of gaps alone nothing is learned.
    assert (sums.nulls, linear.sums(columns).nulls > 10) == (0, True)
    blank = {**columns, **{name: np.full(N, math.nan) for name in NAMES}}
    assert not second.sums(blank).cells.any()
    assert second.sums(blank).nulls == N - done.sampled
    unlabelled = {
        **part(columns, np.isnan(columns["b"])),
        "y": np.full(int(np.isnan(columns["b"]).sum()), "?"),
    }
    assert not second.sums(unlabelled).cells.any()


def test_leaf_sums_of_a_table_are_those_of_a_stream(path: Path) -> None:
    """Of rows with gaps, and of columns that are the categories of a field, too."""
    names = ["a", "b=x", "b=y", "b=z", "c"]
    rng = np.random.default_rng(4)
    x = np.column_stack((rng.normal(size=N), np.eye(4)[rng.integers(0, 4, N)][:, :3], rng.uniform(-1, 1, N)))
    x[rng.random((N, 5)) < 0.05] = math.nan
    x[::50] = math.nan
    y = rng.random(N) < 0.4
    columns = {**dict(zip(names, x.T, strict=True)), "y": y, "id": np.arange(N)}
    bounds = {name: (0, 1) if "=" in name else (-1, 1) for name in names}
    forest = auc.PrivateForest(1.0, 1e-4, bounds=bounds, trees=5, depth=3)
    first = Job(forest, label="y", rows=N, row_id="id", salt="salt")
    second = first.standardised(first.sums(columns), KEY, account=path)
    found, state = second.sums(columns), second._state()
    assert isinstance(state, TableForestState)
    later = ~np.array([first.sums(part(columns, [i])).taken for i in range(N)], dtype=bool)
    rows, usable = np.empty((later.sum(), second._design().width)), np.empty(later.sum())
    second._design().prepare(x[later], rows, usable)
    state._sum_up(rows, np.where(usable == 1.0, np.where(y[later], 1.0, -1.0), math.nan))
    packed = state.plan.packed
    assert found.cells[packed:].tolist() == state.block.to_state()[packed:].tolist()
    assert found.nulls == int((usable == 0.0).sum()) > 0


def test_a_release_of_leaves_is_of_whole_rows_times_their_weight(path: Path) -> None:
    first = job(**FOREST)
    second = first.standardised(first.sums(table()), KEY, account=path)
    plan = second._state().plan
    assert isinstance(plan, TableForestPlan)
    release, cells = moments_release(plan), second.sums(table()).cells
    drawn = release.draw(cells, NormalStream(1))
    counts = drawn[plan.packed :] / plan.steps[plan.packed :]
    assert counts == pytest.approx(np.round(counts), abs=1e-9)
    noise = (counts - cells[plan.packed :]) * plan.steps[plan.packed :] / plan.sigma_last
    assert 0.8 < float(np.std(noise)) < 1.2
    assert release.card.replace == pytest.approx(second._settings().mu)
    assert "Lemma 90" in release.card.lemma
    assert release.card.sensitivity == plan.diameter > second_moments_diameter()


# ---- the parts -------------------------------------------------------------------------------------------


def overlaps(one: Job, other: Job, columns: Table) -> list[int]:
    """Rows that are in both stages, or in none: by their own sums."""
    found = []
    for i in range(N):
        row = part(columns, [i])
        found += [i] if one.sums(row).taken + other.sums(row).taken != 1 else []
    return found


def with_facts(one: Job, **facts: Any) -> Job:
    """A job of other public facts."""
    other = Job.__new__(Job)
    other.__setstate__((dataclasses.replace(one._plain, **facts), one._standardisation))
    return other


def test_all_rows_of_a_block_of_ids_are_in_one_stage(path: Path) -> None:
    for learner in ({}, FOREST, METRIC):
        path.unlink(missing_ok=True)
        check_blocks(learner, path)


def check_blocks(learner: dict[str, Any], path: Path) -> None:
    first = with_facts(job(**learner), shift=5)
    columns = table() | {"id": np.arange(N) - 100}
    second = first.standardised(first.sums(columns), KEY, account=path)
    assert overlaps(first, second, columns) == []
    sampled = np.array([first.sums(part(columns, [i])).taken for i in range(N)])
    blocks = columns["id"] // 32
    shares = [sampled[blocks == block].mean() for block in np.unique(blocks)]
    assert set(shares) == {0.0, 1.0}
    for kind in (np.int16, np.float64, object):
        assert first.sums({**columns, "id": columns["id"].astype(kind)}) == first.sums(columns)
    # Content does not say which rows they are, and neither does the cut of the table; the salt does.
    assert first.sums(table(1) | {"id": columns["id"]}).taken == sampled.sum()
    salted = with_facts(first, salt="other")
    assert [salted.sums(part(columns, [i])).taken for i in range(N)] != sampled.tolist()
    # Ids say which ranges a stage does not need, and these are counted by their ids.
    for one, mine in ((first, sampled), (second, 1 - sampled)):
        for block in np.unique(blocks):
            inside = np.flatnonzero(blocks == block)
            low, high = columns["id"][inside[[0, -1]]].tolist()
            rows = part(columns, inside)
            assert one.needs(low, high) == mine[inside].any()
            if not one.needs(low, high):
                assert one.sums_of_ids({"id": rows["id"]}) == one.sums(rows)
                continue
            with pytest.raises(RecordError, match=f"of {len(inside)} rows are of stage {one.stage}"):
                one.sums_of_ids(rows)
        for block in np.unique(blocks)[:-1]:
            both = (blocks == block) | (blocks == block + 1)
            assert one.needs(32 * block, 32 * block + 63) == mine[both].any()
        assert one.needs(-100, N)
        assert one.needs(-(2**63), 2**63 - 1)
    # A text is a block of its own.
    texts = columns | {"id": np.array([f"row {i}" for i in range(N)])}
    plain = with_facts(first, shift=0)
    assert np.array_equal(first.sums(texts).cells, plain.sums(texts).cells)
    assert not np.array_equal(first.sums(columns).cells, plain.sums(columns).cells)
    # The size of a block is a function of the number of rows, and part of the job.
    found = {rows: job(rows)._plain.shift for rows in (N, 2**20 - 1, 2**20, 10**7, 2**31 - 2)}
    assert found == {N: 0, 2**20 - 1: 0, 2**20: 12, 10**7: 15, 2**31 - 2: 23}
    assert first.digest != plain.digest == job(**learner).digest


def test_each_row_is_in_one_stage_and_content_does_not_say_which(path: Path) -> None:
    columns, first = table(), job()
    second = first.standardised(first.sums(columns), KEY, account=path)
    assert overlaps(first, second, columns) == []
    assert overlaps(first, first, columns) != []  # the check sees a sample that is not disjoint
    sampled = [first.sums(part(columns, [i])).taken for i in range(N)]
    other = {**table(1), "id": columns["id"]}
    blank = {**columns, **{name: np.full(N, math.nan) for name in NAMES}}
    for content in (other, blank):
        assert [first.sums(part(content, [i])).taken for i in range(N)] == sampled
        assert first.sums(content).taken == sum(sampled)
    # Of the expected size, and another one under another salt.
    expected = first._settings().warmup
    assert abs(sum(sampled) - expected) < 5 * math.sqrt(expected)
    resalted = with_facts(first, salt="other")
    assert [resalted.sums(part(columns, [i])).taken for i in range(N)] != sampled


def test_a_row_moves_the_sums_of_its_stage_alone(path: Path) -> None:
    columns, first = table(), job()
    whole = first.sums(columns)
    second = first.standardised(whole, KEY, account=path)
    total = second.sums(columns)
    for i in range(0, N, 13):
        changed = {name: column.copy() for name, column in columns.items()}
        changed["a"][i], changed["b"][i] = -1.5, 0.5
        moved = [
            not np.array_equal(one.sums(changed).cells, of.cells)
            for one, of in ((first, whole), (second, total))
        ]
        assert sum(moved) == 1
        assert moved[0] == bool(first.sums(part(columns, [i])).taken)


# ---- one release, rounded once ---------------------------------------------------------------------------


def release_of(d: int = 3, mu: float = 0.5) -> SumsRelease:
    return sample_release(plan_sample(mu, d, 100), d)


def oracle(release: SumsRelease, sums: np.ndarray, stream: Any) -> list[Fraction]:
    grid = Fraction(release.grid)
    noise = scaled(stream.take(len(sums)), release.sigmas / release.grid)
    exact = [grid * (Fraction(high) + Fraction(low)) for high, low in noise.T.tolist()]
    units = [grid / Fraction(2) ** int(bits) for bits in release.bits]
    return naive.released(sums.tolist(), units, exact, grid)


def rounded_alone(release: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
    """The mutant: noise is rounded, and the low bits of the sums leave as they are."""
    noise = rounded(scaled(stream.take(len(sums)), release.sigmas / release.grid))
    return np.asarray(release.grid * (np.ldexp(sums.astype(np.float64), -release.bits) + noise))


def test_what_is_released_is_on_the_grid_and_rounded_once(path: Path) -> None:
    second = job().standardised(job().sums(table()), KEY, account=path)
    rng = np.random.default_rng(3)
    for release in (release_of(), moments_release(second._state().plan)):
        for seed in range(30):
            sums = rng.integers(-(2**50), 2**50, len(release.sigmas))
            drawn = release.draw(sums, NormalStream(seed))
            assert [Fraction(value) for value in drawn.tolist()] == oracle(release, sums, NormalStream(seed))
            assert (drawn / release.grid == np.floor(drawn / release.grid)).all()
            mutant = rounded_alone(release, sums, NormalStream(seed)) / release.grid
            assert (mutant != np.floor(mutant)).any()


def test_a_sum_next_to_a_border_is_rounded_as_the_exact_one() -> None:
    """Noise and sum that meet within 2^-80 of a step of the middle between two."""
    release = dataclasses.replace(release_of(1), bits=np.array([22, 22, 22, 22]))

    class Near(NormalStream):
        def take(self, count: int) -> np.ndarray:
            part = np.array([0.5 - 2.0**-22 * k for k in (1, 3, 5, 7)])
            return np.stack((part, [2.0**-80, -(2.0**-80), 0.0, 2.0**-79]))

    release = dataclasses.replace(release, sigmas=np.full(4, release.grid))
    sums = np.array([1, 3, 5, 7]) + (np.array([3, -9, 4, 0]) << 22)
    drawn = release.draw(sums, Near(0)) / release.grid
    assert drawn.tolist() == [4.0, -9.0, 5.0, 1.0]
    assert [Fraction(v) * Fraction(release.grid) for v in drawn.tolist()] == oracle(release, sums, Near(0))


def test_the_noise_has_the_size_that_the_budget_asks_for(path: Path) -> None:
    second = job().standardised(job().sums(table()), KEY, account=path)
    mu = second._settings().mu
    assert mu == pytest.approx(mu_from(1.0, 1e-4), rel=1e-3)
    for release, sensitivity in (
        (release_of(3, mu), moment_sensitivity(3, labels=True, cross=True)),
        (moments_release(second._state().plan), second_moments_diameter()),
    ):
        assert release.card.replace <= mu * (1 + 1e-12)
        zeros = np.zeros(len(release.sigmas), dtype=np.int64)
        noise = np.array([release.draw(zeros, NormalStream(seed)) for seed in range(300)])
        # In the coordinates in which the sensitivity is measured all noise has one size.
        weights = np.ones(len(zeros))
        if sensitivity == second_moments_diameter():
            i, j = np.tril_indices(3)
            weights[: len(i)][i != j] = math.sqrt(2.0)
        else:
            weights = np.repeat([1.0, SQUARE_WEIGHT, 1.0, CROSS_WEIGHT], [3, 3, 1, 3])
        total = float(((noise * weights * mu / sensitivity) ** 2).sum())
        assert 1e-5 < stats.chi2.cdf(total, noise.size) < 1 - 1e-5
        # The mutant with a tenth less would not pass.
        assert stats.chi2.cdf(0.81 * total, noise.size) < 1e-5


# ---- attempts --------------------------------------------------------------------------------------------


class Crash(Exception):
    """Power failure."""


def crash(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The process ends before the noise is drawn, or after it and before the result is returned."""
    draw = SumsRelease.draw

    def ends(self: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
        if after:
            draw(self, sums, stream)
        raise Crash

    monkeypatch.setattr(SumsRelease, "draw", ends)


def written(path: Path) -> list[tuple[int, bool]]:
    return [(a["stage"], a["finished"]) for a in json.loads(path.read_text())["attempts"]]


def test_an_attempt_is_written_before_its_noise_is_drawn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, take = [], ChainedNoise.take

    def look(self: ChainedNoise, count: int) -> np.ndarray:
        seen.append(written(path))
        return take(self, count)

    monkeypatch.setattr(ChainedNoise, "take", look)
    columns, first = table(), job()
    second = first.standardised(first.sums(columns), KEY, account=path)
    second.release(second.sums(columns), KEY, account=path)
    assert seen == [[(1, False)], [(1, True), (2, False)]]
    assert written(path) == [(1, True), (2, True)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert KEY.hex() not in path.read_text()


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_attempt_is_finished_free_by_equal_sums_alone(
    after: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, first = table(), job()
    sums, other = first.sums(columns), first.sums({**table(1), "id": columns["id"]})
    with monkeypatch.context() as patch:
        crash(patch, after)
        with pytest.raises(Crash):
            first.standardised(sums, KEY, account=path)
    assert written(path) == [(1, False)]
    with pytest.raises(PrivacyError, match="was interrupted, and had other sums"):
        first.standardised(other, KEY, account=path)
    with pytest.raises(PrivacyError, match="was interrupted, and had other sums"):
        first.standardised(sums, KEY[::-1], account=path)
    assert written(path) == [(1, False)]
    # A new attempt is charged only where the interrupted one cannot be finished.
    second = first.standardised(sums, KEY, account=path, new_attempt=True)
    assert written(path) == [(1, True)]
    # The same bits as without an interruption.
    assert first.standardised(sums, KEY, account=path.with_name("b.json")).digest == second.digest
    model = second.release(second.sums(columns), KEY, account=path)
    assert model.privacy["epsilon_spent"] == pytest.approx(1.0)


def test_a_new_attempt_with_other_sums_than_an_interrupted_one_is_charged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, first = table(), job()
    with monkeypatch.context() as patch:
        crash(patch, True)
        with pytest.raises(Crash):
            first.standardised(first.sums(columns), KEY, account=path)
    other = first.sums({**table(1), "id": columns["id"]})
    first.standardised(other, KEY, account=path, new_attempt=True)
    assert written(path) == [(1, False), (1, True)]


def test_a_new_attempt_is_asked_for_and_charged_whatever_the_sums(path: Path) -> None:
    columns, first = table(), job()
    sums, other = first.sums(columns), first.sums({**table(1), "id": columns["id"]})
    second = first.standardised(sums, KEY, account=path)
    refusals = []
    for again in (sums, other):  # nobody learns from the refusal whether they were equal
        with pytest.raises(PrivacyError, match="attempt 1 at stage 1 has been released") as refused:
            first.standardised(again, KEY, account=path)
        refusals.append(str(refused.value))
    assert refusals[0] == refusals[1]
    assert written(path) == [(1, True)]
    anew = first.standardised(sums, KEY, account=path, new_attempt=True)
    assert anew.digest != second.digest
    one, two = (np.array(j._standardisation.mean) for j in (second, anew) if j._standardisation)
    assert (one != two).all()
    assert written(path) == [(1, True), (1, True)]
    model = anew.release(anew.sums(columns), KEY, account=path)
    # A row of the sample is in two releases, any other in one: the larger counts.
    mu = first._settings().mu
    assert model.privacy["mu_spent"] == pytest.approx(math.sqrt(2) * mu)
    assert model.privacy["epsilon_spent"] > 1.4
    assert model.metadata["history"]["attempts"] == [2, 1]
    third = anew.release(anew.sums(columns), KEY, account=path, new_attempt=True)
    assert third.privacy["mu_spent"] == pytest.approx(math.sqrt(2) * mu)
    fourth = anew.release(anew.sums(columns), KEY, account=path, new_attempt=True)
    assert fourth.privacy["mu_spent"] == pytest.approx(math.sqrt(3) * mu)
    assert fourth.privacy["epsilon_budget"] == pytest.approx(fourth.privacy["epsilon_spent"])


def test_the_second_stage_is_charged_where_the_first_was(path: Path) -> None:
    """Else three attempts at the first stage are in one account, and the model of another one says one."""
    columns, first = table(), job()
    sums = first.sums(columns)
    first.standardised(sums, KEY, account=path)
    second = first.standardised(sums, KEY, account=path, new_attempt=True)
    for other in (path.with_name("fresh.json"), path.with_name("once.json")):
        if other.stem == "once":
            first.standardised(sums, KEY, account=other)
        with pytest.raises(PrivacyError, match="has not released the means and spreads of this job"):
            second.release(second.sums(columns), KEY, account=other)
    model = second.release(second.sums(columns), KEY, account=path)
    assert model.metadata["history"]["attempts"] == [2, 1]


def test_the_account_does_not_show_whether_attempts_had_equal_sums(path: Path) -> None:
    columns, first = table(), job()
    for again in (False, True):
        first.standardised(first.sums(columns), KEY, account=path, new_attempt=again)
    one, two = (attempt["sums"] for attempt in json.loads(path.read_text())["attempts"])
    assert one != two


def test_a_link_to_an_account_stays_one(path: Path) -> None:
    columns, first = table(), job()
    link = path.with_name("link.json")
    link.symlink_to(path)
    first.standardised(first.sums(columns), KEY, account=link)
    with pytest.raises(PrivacyError, match="attempt 1 at stage 1 has been released"):
        first.standardised(first.sums(columns), KEY, account=path)
    assert link.is_symlink()


def test_no_noise_is_used_under_two_standard_deviations(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that calibrates otherwise has other noise, and finishes no attempt of this one."""
    drawn: list[np.ndarray] = []
    take = ChainedNoise.take

    def look(self: ChainedNoise, count: int) -> np.ndarray:
        drawn.append(take(self, count))
        return drawn[-1].copy()

    columns, first = table(), job()
    sums = first.sums(columns)
    monkeypatch.setattr(ChainedNoise, "take", look)
    plan = jobs.plan_sample
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1 + 1e-15)):
        monkeypatch.setattr(jobs, "plan_sample", lambda mu, *more, by=factor: plan(mu / by, *more))
        first.standardised(sums, KEY, account=path.with_name(name))
    assert np.array_equal(drawn[0], drawn[1])
    assert not (drawn[0] == drawn[2]).any()
    with monkeypatch.context() as patch:
        crash(patch, after=True)
        with pytest.raises(Crash):
            first.standardised(sums, KEY, account=path)
    monkeypatch.setattr(jobs, "plan_sample", plan)
    with pytest.raises(PrivacyError, match="another key or version"):
        first.standardised(sums, KEY, account=path)


def test_noise_depends_on_all_that_it_should(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    take = ChainedNoise.take

    def look(self: ChainedNoise, count: int) -> np.ndarray:
        out = take(self, count)
        drawn.append(out[:, :8].tobytes())
        return out

    monkeypatch.setattr(ChainedNoise, "take", look)
    columns = table()
    changed = {**columns, "a": columns["a"] + 2.0**-10}
    cases: list[tuple[Job, Table, bytes]] = [
        (job(), columns, KEY),
        (job(), changed, KEY),
        (job(), columns, KEY[::-1]),
        (job(epsilon=1 + 1e-12), columns, KEY),
        (job(radius=2.0), columns, KEY),
    ]
    for i, (one, content, key) in enumerate(cases):
        account = path.with_name(str(i))
        second = one.standardised(one.sums(content), key, account=account)
        second.release(second.sums(content), key, account=account)
    assert len(set(drawn)) == len(drawn) == 2 * len(cases)


def test_two_drivers_at_once_make_one_attempt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits for the lock, and is refused then."""
    columns, first = table(), job()
    sums = first.sums(columns)
    outcomes: list[str] = []
    inside, waiting = threading.Event(), threading.Event()
    draw = SumsRelease.draw

    def slowly(self: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
        inside.set()
        assert waiting.wait(60)
        return draw(self, sums, stream)

    monkeypatch.setattr(SumsRelease, "draw", slowly)

    def drive() -> None:
        try:
            first.standardised(sums, KEY, account=path)
            outcomes.append("released")
        except PrivacyError:
            outcomes.append("refused")

    threads = [threading.Thread(target=drive)]
    threads[0].start()
    assert inside.wait(60)
    flock = fcntl.flock

    def note(descriptor: int, operation: int) -> None:
        waiting.set()  # the first one goes on while this one waits
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", note)
    threads.append(threading.Thread(target=drive))
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["refused", "released"]
    assert written(path) == [(1, True)]


KILLED = """
import os, pickle, sys
from streampair.privacy.noise import ChainedNoise
def die(self, count):
    os.kill(os.getpid(), 9)
ChainedNoise.take = die
job, sums = pickle.load(open(sys.argv[1], "rb"))
job.standardised(sums, bytes(range(32)), account=sys.argv[2])
"""


def test_an_attempt_outlives_a_killed_process(path: Path, tmp_path: Path) -> None:
    first = job()
    sums = first.sums(table())
    (tmp_path / "job").write_bytes(pickle.dumps((first, sums)))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "job"), str(path)], check=False)
    assert ended.returncode == -9
    assert written(path) == [(1, False)]
    assert first.standardised(sums, KEY, account=path).stage == 2  # the lock is gone with the process
    assert written(path) == [(1, True)]


def test_an_account_of_another_job_or_a_damaged_one_is_refused(path: Path) -> None:
    first, columns = job(), table()
    first.standardised(first.sums(columns), KEY, account=path)
    other = job(radius=2.0)
    with pytest.raises(PrivacyError, match="the account of another job"):
        other.standardised(other.sums(columns), KEY, account=path)
    data = path.read_bytes()
    for damaged in (data[:-9], b"", b"[]", data.replace(b'"finished":true', b'"finished":2')):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is no account of a history job, or is damaged"):
            first.standardised(first.sums(columns), KEY, account=path, new_attempt=True)
    with pytest.raises(StoreError, match="cannot be opened"):
        first.resumed(path / "nowhere" / "account.json")


def test_the_first_stage_is_not_done_twice_by_a_fit_that_was_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, first = table(), job()
    batches = [part(columns, slice(i, i + 100)) for i in range(0, N, 100)]
    with monkeypatch.context() as patch:
        patch.setattr(Job, "release", lambda *args, **options: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            history.fit(first, batches, KEY, account=path)
    assert written(path) == [(1, True)]
    model = history.fit(first, batches, KEY, account=path)
    assert written(path) == [(1, True), (2, True)]
    whole = history.fit(first, [columns], KEY, account=path.with_name("b"))
    assert model._document.weights == whole._document.weights  # type: ignore[attr-defined]
    assert first.resumed(path.with_name("c")) is None


def test_attempts_end_before_the_rounding_of_noise_exceeds_its_part(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    limit = jobs.rounding_limit

    def look(kinds: Any, epsilon: float, delta: float) -> int:
        counts.append((len(kinds), epsilon))
        return limit(kinds, epsilon, delta)

    columns = table()
    for learner, expected in (({}, [1, 2, 3, 1]), (ENTITY, [1, 2, 3, 4])):  # an entity may be in both parts
        counts.clear()
        columns["who"], first = np.arange(N) // 3, job(**learner)
        sums, book = first.sums(columns), path.with_name(f"{len(learner)}")
        with monkeypatch.context() as patch:
            patch.setattr(jobs, "rounding_limit", look)
            for _ in range(3):
                second = first.standardised(sums, KEY, account=book, new_attempt=True)
            second.release(second.sums(columns), KEY, account=book)
        assert [count for count, _ in counts] == expected
        assert counts[0][1] == pytest.approx(1.0)
        assert counts[2][1] > 1.7


# ---- what tasks hold -------------------------------------------------------------------------------------


def holds_key(thing: Any, key: bytes) -> bool:
    data = pickle.dumps(thing)
    return any(form in data for form in (key, key.hex().encode(), repr(key).encode()))


def test_nothing_that_goes_to_a_task_holds_the_key(path: Path) -> None:
    columns, first = table(), job()
    sums = first.sums(columns)
    second = first.standardised(sums, NoiseKey(KEY), account=path)
    total = second.sums(columns)
    model = second.release(total, NoiseKey(KEY), account=path)
    for thing in (first, sums, second, total):
        assert not holds_key(thing, KEY)
        again = pickle.loads(pickle.dumps(thing))
        assert repr(again) == repr(thing)
    assert pickle.loads(pickle.dumps(second)).digest == second.digest
    assert pickle.loads(pickle.dumps(second)).sums(columns) == total
    assert KEY.hex() not in repr((first, second, sums, model)) + path.read_text()
    # The mutant: a job that keeps what it was given.
    assert holds_key((second, KEY), KEY)
    for learner in (
        auc.PairFTRL(bounds={"a": (0, 1)}, noise_key=KEY),
        auc.PairFTRL(bounds={"a": (0, 1)}, seed=1),
    ):
        with pytest.raises(ConfigError, match="tasks that must hold none"):
            Job(learner, label="y", rows=1000, row_id="id", salt="salt")


# ---- an audit of the whole path --------------------------------------------------------------------------

EPSILON = 8.0
ENTITY = {"entity": EntityLimit(3, field="who")}
REJECT = 4.5  # standard errors


def public_standardisation(self: Warmup, released: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """As if the first stage had released this, so that the worst rows of the second one are known."""
    d = len(NAMES)
    self.cross = np.stack((np.zeros(d), np.ones(d)))
    return np.zeros(d), np.ones(d), 0.0


class Attack:
    """Two worst contents of one row of a table of null rows; all that both stages release is seen.

    Parameters
    ----------
    sampled
        Whether the row is one of the sample.
    learner
        Its options. With an entity all of its rows have that content, all of them in the sample, or none.
    """

    def __init__(
        self, path: Path, patch: pytest.MonkeyPatch, sampled: bool, learner: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        null = {**table(), **{name: np.full(N, math.nan) for name in NAMES}}
        limit = (learner or {}).get("entity")
        null["who"] = np.arange(N) + N
        self.job = one = job(epsilon=EPSILON, **(learner or {}))
        place = [i for i in range(N) if bool(one.sums(part(null, [i])).taken) == sampled]
        place = place[: 1 if limit is None else limit.records]
        null["who"][place] = 1
        if (learner or {}).get("kind") is metric.PairFTRL:  # where those of Lemmas 18 and 42 say
            other = ((-2.0, -2.0, -2.0) if sampled else (0.0, 2.0, 0.0)), False
            contents = [((2.0, 2.0, 2.0) if sampled else (2.0, 0.0, 0.0), True), other]
        elif sampled:  # where the proof of Lemma 60 says
            contents = [((2.0, 2.0, 2.0), True), ((-0.365, -0.365, -0.365), False)]
        else:  # of length 1, at an angle at which the product is -1/2, and in other leaves and bins
            contents = [((2.0, 0.0, 0.0), True), ((-1.0, math.sqrt(1.5), math.sqrt(1.5)), True)]
        self.tables = []
        for values, label in contents:
            columns = {name: column.copy() for name, column in null.items()}
            for name, value in zip(NAMES, values, strict=True):
                columns[name][place] = value
            columns["y"][place] = label
            self.tables.append(columns)
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        draw = SumsRelease.draw

        def look(release: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
            out = draw(release, sums, stream)
            self.seen.append((np.ldexp(release.grid * sums, -release.bits), release.sigmas, out))
            return out

        patch.setattr(SumsRelease, "draw", look)
        patch.setattr(Warmup, "read", public_standardisation)

    def run(self, number: int, side: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Sums, standard deviations and releases of both stages."""
        self.seen = []
        key = hashlib.sha256(f"{number} {side}".encode()).digest()
        account, first = self.path.with_name(f"{number} {side}"), self.job
        second = first.standardised(first.sums(self.tables[side]), key, account=account)
        second.release(second.sums(self.tables[side]), key, account=account)
        return self.seen

    def outcome(self, runs: int) -> tuple[float, float, float]:
        """The distance of the two contents: exact, as measured by the most powerful statistic, its error."""
        one, two = self.run(0, 0), self.run(0, 1)
        ways = [(a - b) / sigmas for (a, sigmas, _), (b, _, _) in zip(one, two, strict=True)]
        scores = np.array(
            [
                [
                    sum(
                        float(out / sigmas @ way)
                        for (_, sigmas, out), way in zip(self.run(k, side), ways, strict=True)
                    )
                    for side in (0, 1)
                ]
                for k in range(1, runs + 1)
            ]
        )
        mu = float(np.diff(scores.mean(axis=0))[0]) / -math.sqrt(float(scores.var(axis=0, ddof=1).mean()))
        exact = math.sqrt(sum(float(way @ way) for way in ways))
        return exact, mu, math.sqrt(2 / runs + mu * mu / (4 * runs))


@pytest.mark.parametrize(
    "learner", [{}, FOREST, METRIC, ENTITY], ids=["moments", "forest", "metric", "entity"]
)
def test_the_audit_reaches_what_is_claimed(
    learner: dict[str, Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise has keys of its own in each run, which are fixed: the outcome is the same each time."""
    claim = job(epsilon=EPSILON, **learner)._settings().mu
    for sampled in (False,) if learner is FOREST else (True, False):
        folder = path.with_name(f"{sampled}")
        folder.mkdir()
        with monkeypatch.context() as patch:
            exact, measured, error = Attack(folder / "a", patch, sampled, learner).outcome(60)
        assert 0.998 * claim < exact <= claim * (1 + 1e-12)
        assert abs(measured - exact) < REJECT * error


def test_an_entity_may_have_its_rows_in_both_stages() -> None:
    """More than one of them has: both have noise for all of its rows, or the spends would not add up."""
    rows, limit = 10_000, EntityLimit(5000, field="who")
    one = job(rows, epsilon=1.0, warmup=9000, entity=limit)
    alone = job(rows, epsilon=1.0, warmup=9000)
    for first, second in (
        (one._sample_release(9000), alone._sample_release(9000)),
        (
            jobs._moments(one._settings(), 9000),
            jobs._moments(alone._settings(), 9000),
        ),
    ):
        assert first.sigmas == pytest.approx(5000 * second.sigmas, rel=1e-9)


def leaves_of_moments(patch: pytest.MonkeyPatch) -> None:
    """Leaves are released with the noise of second moments alone."""
    patch.setattr(TableForestPlan, "diameter", property(lambda plan: second_moments_diameter()))


def whole_counts(patch: pytest.MonkeyPatch) -> None:
    """A row counts whole in its class, not half."""

    def whole(columns: np.ndarray, classes: np.ndarray) -> np.ndarray:
        return class_sums(columns, classes) * np.repeat([1, 2], [6 + 3 * len(classes), len(classes)])

    patch.setattr(jobs, "class_sums", whole)


def one_row_of_each(patch: pytest.MonkeyPatch) -> None:
    """Noise as if an entity had one row."""
    patch.setattr(table_moments, "_rows_of", lambda relation: 1)
    patch.setattr(table_moments.TableMomentsPlan, "_last_move", property(lambda plan: plan._one_move))


@pytest.mark.parametrize(
    ("mutant", "sampled", "learner"),
    [
        (less_noise, True, {}),
        (less_noise, False, {}),
        (both_stages, True, {}),
        (less_noise, False, FOREST),
        (leaves_of_moments, False, FOREST),
        (whole_counts, False, METRIC),
        (one_row_of_each, True, ENTITY),
        (one_row_of_each, False, ENTITY),
    ],
)
def test_a_defect_is_caught_by_the_audit(
    mutant: Callable[[pytest.MonkeyPatch], None],
    sampled: bool,
    learner: dict[str, Any],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = job(epsilon=EPSILON, **learner)._settings().mu
    mutant(monkeypatch)
    exact, _, _ = Attack(path, monkeypatch, sampled, learner).outcome(2)
    assert exact > 1.05 * claim


def test_small_noise_is_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = ChainedNoise.take
    monkeypatch.setattr(ChainedNoise, "take", lambda self, count: 0.4 * take(self, count))
    exact, measured, error = Attack(path, monkeypatch, sampled=False).outcome(60)
    assert measured > exact + REJECT * error
