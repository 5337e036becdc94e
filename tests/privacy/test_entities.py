"""Entities: the plan dominates every admissible pattern, and the table errs only by charging too much."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import dense

from streampair import auc, buffers, metric, privacy, ranking
from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import hashing
from streampair.privacy import EntityLimit, Influence, Origin
from streampair.privacy.mechanisms.ftrl import plan_ftrl
from streampair.privacy.sensitivity import (
    BLT,
    Toeplitz,
    fifo_pattern,
    fit_blt,
    pattern_sensitivity,
    window_sensitivity,
)
from streampair.privacy.user_level import Admission, EntityInfluence, entity_pattern

MEMORY = BLT(np.array([0.3, 0.15]), np.array([0.02, 0.4]), None)


def naive_influence(slots: tuple[int, ...], n: int, size: int, own_move: float) -> np.ndarray:
    """v_e slot by slot, as docs/privacy 8 says it."""
    v = np.zeros(n)
    for t in range(1, n + 1):
        share = sum(1 for slot in slots if t - size <= slot < t) / size
        v[t - 1] = (1 - share) + share * own_move if t in slots else share
    return v


def naive_admissible(slots: tuple[int, ...], limit: EntityLimit) -> bool:
    gaps = [b - a for a, b in itertools.pairwise(slots)]
    return len(slots) <= limit.records and min(gaps, default=limit.separation) >= limit.separation


# ---- the plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["root", "memory", "identity"])
def test_the_plan_dominates_every_admissible_pattern(size: int, strategy: str) -> None:
    """Brute force over all places of the records of an entity in a short run."""
    n = 11
    column = {
        "root": Toeplitz.square_root(n).column,
        "memory": MEMORY.column(n),
        "identity": np.eye(n)[0],
    }[strategy]
    matrix = dense(column.tolist())
    norms = {}
    for count in range(4):
        for slots in itertools.combinations(range(1, n + 1), count):
            for own_move in (1.0, 2.0):
                norms[slots, own_move] = float(
                    np.linalg.norm(matrix @ naive_influence(slots, n, size, own_move))
                )
    for records, separation in itertools.product((1, 2, 3), (1, 2, 3, 5)):
        limit = EntityLimit(records, separation)
        pattern = np.zeros(n)
        planned = entity_pattern(fifo_pattern(size, n), limit, n)
        pattern[: len(planned)] = planned
        bound = float(np.linalg.norm(matrix @ pattern))
        worst = max(norm for (slots, _), norm in norms.items() if naive_admissible(slots, limit))
        assert worst <= bound * (1 + 1e-12)
        assert worst == pytest.approx(bound)  # reached by the entity that comes first and densest
        # Mutants: the records' squares summed, and an own step that forgets the partners of its own.
        single = float(np.linalg.norm(matrix @ np.pad(fifo_pattern(size, n), (0, n - min(size + 1, n)))))
        if limit.within(n) > 1 and separation <= size:
            assert worst > 1.01 * math.sqrt(limit.within(n)) * single


@pytest.mark.parametrize("size", [1, 4, 32])
def test_a_longer_union_of_supports_is_rounded_more_often(size: int) -> None:
    """Of records further apart more gradients are rounded, and flat noise forgives the distance."""
    flat = BLT(np.array([0.9]), np.array([1e-6]), None)
    single = Influence.fifo(size)
    caught = 0
    for strategy in (flat, fit_blt(fifo_pattern(size)), MEMORY):
        for records, separation in ((2, 1), (2, max(size // 2, 1)), (3, size)):
            limit = EntityLimit(records, separation)
            plan = plan_ftrl(
                1.0, dim=9, influence=EntityInfluence.of(single, limit), strategy=strategy, diameter=2.0,
                clip=1.0, radius=3.0,
            )  # fmt: skip
            rounding = plan.grid * 3.0
            dense_support = entity_pattern(fifo_pattern(size), limit)
            mutant = strategy.norm(2.0 * dense_support + rounding * (dense_support > 0), None)
            for gap in (separation, separation + 1, size, size + 1, size + 3):
                if gap >= separation:
                    pattern = entity_pattern(fifo_pattern(size), EntityLimit(records, gap))
                    moved = strategy.norm(2.0 * pattern + rounding * (pattern > 0), None)
                    assert moved <= plan.sensitivity * (1 + 1e-12)
                    caught += moved > mutant * (1 + 1e-9)
    assert caught or size == 1


def test_a_window_of_an_entity_is_charged_as_the_whole_run() -> None:
    """The densest records have the largest norm over a run, and not over each window of it."""
    root, size, rows = Toeplitz.square_root(200), 32, 200
    limit = EntityLimit(2, 16)
    densest = entity_pattern(fifo_pattern(size), limit, rows)
    wider = entity_pattern(fifo_pattern(size), EntityLimit(2, 32), rows)
    assert window_sensitivity(root, wider, window=1) > 1.01 * window_sensitivity(root, densest, window=1)
    influence = EntityInfluence.of(Influence.fifo(size), limit)
    plan = plan_ftrl(
        1.0, dim=1, influence=influence, diameter=2.0, clip=1.0, radius=3.0, horizon=rows, forks=2, window=1
    )
    assert plan.fork_mu2(1) == pytest.approx(plan.mu_spent(10**6) ** 2)
    assert 3 * plan.fork_mu2(1) == pytest.approx(1.0)
    for gap in (16, 17, 31, 32, 33):
        apart = EntityInfluence.of(Influence.fifo(size), EntityLimit(2, gap))
        image = root.image(apart.moves(rows, 2.0, plan.grid), rows)
        assert float(np.max(image**2)) <= plan.fork_mu2(1) * plan.sigma**2


def test_twenty_records_cost_what_the_specification_says() -> None:
    """20 records 40 steps apart cost x15.7, not x4.5 (docs/privacy 8): the square root over 2e4 steps."""
    root, single = Toeplitz.square_root(20_000), fifo_pattern(32)
    many = pattern_sensitivity(root, entity_pattern(single, EntityLimit(20, 40), 20_000))
    assert many / pattern_sensitivity(root, single) == pytest.approx(15.7, abs=0.15)


# ---- admission -------------------------------------------------------------------------------------------

# Of each list: the spellings of one entity.
SPELLINGS: tuple[list[Any], ...] = (
    ["5", 5, b"5", 5.0, np.int32(5), np.uint8(5), np.float64(5.0), np.str_("5"), np.bytes_(b"5")],
    ["-5", -5, b"-5", -5.0],
    ["0", 0, b"0", 0.0, -0.0],
    ["Jos\u00e9", "Jose\u0301", "Jos\u00e9".encode(), "Jose\u0301".encode()],
    ["\u212b", "\u00c5", "A\u030a", "A\u030a".encode()],  # a sign of its own (angstrom) is the letter
    ["\ud55c", "\u1112\u1161\u11ab"],
    ["9007199254740991", 2**53 - 1, float(2**53 - 1)],
    ["", b""],
    [b"\xff5"],  # no UTF-8
    ["05"],
    ["5.0"],
    ["+5"],
    [" 5"],
    ["\u0665"],  # an Arabic five
    ["jos\u00e9"],
    ["True"],
    ["None"],
    ["\udcff5"],  # a lone surrogate
)
NOBODY: tuple[Any, ...] = (
    None, True, np.True_, 5.5, math.nan, math.inf, 2.0**53, np.float32(5.0), 10**5000, ("a",), ["a"], {},
)  # fmt: skip
entity = st.sampled_from([(i, each) for i, same in enumerate(SPELLINGS[:5]) for each in same])


@given(
    visits=st.lists(st.tuples(entity, st.integers(0, 4)), max_size=60),
    records=st.integers(1, 4),
    separation=st.integers(1, 9),
    cut=st.integers(0, 60),
)
def test_the_table_against_a_dict(
    visits: list[tuple[tuple[int, Any], int]], records: int, separation: int, cut: int
) -> None:
    limit = EntityLimit(records, separation)
    admission = Admission(limit)
    known: dict[int, list[int]] = {}
    slot = 0
    for i, ((person, who), step) in enumerate(visits):
        slot += step
        if i == cut:
            restored = Admission(limit)
            restored.load_state(admission.to_state())
            admission = restored
        mine = known.setdefault(person, [])
        expected = len(mine) < records and (not mine or slot - mine[-1] >= separation)
        if expected:
            mine.append(slot)
        assert admission.admit(who, slot) == expected
    assert admission.entities == len({who for who, slots in known.items() if slots})


@settings(max_examples=20, deadline=None)
@given(capacity=st.integers(1, 3000), seed=st.integers(0, 5))
def test_a_full_table_admits_less_and_never_more(capacity: int, seed: int) -> None:
    """Beyond the capacity entities share accounts: every error is on the safe side. It grows no more."""
    limit = EntityLimit(2, 3)
    rng = np.random.default_rng(seed)
    small, exact = Admission(limit, capacity=capacity), Admission(limit)
    admitted: dict[int, int] = {}
    for slot, who in enumerate(rng.integers(0, 4000, 6000).tolist()):
        truth = exact.admit(who, slot)
        got = small.admit(who, slot)
        if got:
            admitted[who] = admitted.get(who, 0) + 1
            assert admitted[who] <= 2
        if small.entities <= capacity:
            assert got == truth
    assert small.entities <= capacity + 2**16
    assert len(small._keys) <= 2**13


def test_an_entity_is_one_however_it_is_written() -> None:
    """A table that counts spellings lets one person in once for each (docs/privacy 8.5)."""
    admission = Admission(EntityLimit(1))
    for same in SPELLINGS:
        assert [admission.admit(who, 1) for who in same] == [True] + [False] * (len(same) - 1), same
    assert admission.entities == len(SPELLINGS)
    everybody = [who for same in SPELLINGS for who in same]
    assert not admission.admit_many([*everybody, *NOBODY], 2).any()
    batch = Admission(EntityLimit(1)).admit_many(everybody, 1)
    assert batch.sum() == len(SPELLINGS)


def test_what_names_no_entity_is_refused_without_its_value() -> None:
    for who in NOBODY:
        with pytest.raises(TypeError, match=r"^an entity is text, bytes or an integer, not [^5]*$"):
            Admission(EntityLimit(1)).admit(who, 2)


def test_ten_million_entities_fit_as_documented() -> None:
    """The table that ten million entities end in, without filling it entry by entry."""
    admission = Admission(EntityLimit(3))
    cells = 1024
    while cells * 0.7 < 10_000_000:
        cells *= 2
    assert cells == 2**24
    bytes_a_cell = sum(part.itemsize for part in (admission._keys, admission._last, admission._count))
    assert bytes_a_cell * cells < 303e6


@given(keys=st.lists(st.integers(1, 2**64 - 1), min_size=1, max_size=40, unique=True))
def test_a_key_is_found_where_it_was_put(keys: list[int]) -> None:
    table = np.zeros(64, dtype=np.uint64)
    places = []
    for key in keys:
        cell = hashing.entity_cell(table, np.uint64(key))
        assert table[cell] == 0
        table[cell] = key
        places.append(cell)
    assert [hashing.entity_cell(table, np.uint64(key)) for key in keys] == places
    assert len(set(places)) == len(keys)


@pytest.mark.parametrize(
    "damage", [{"keys": np.zeros(2, dtype=np.uint64)}, {"count": np.array([1])}, {"count": np.array([1, 99])}]
)
def test_a_damaged_table_is_refused(damage: dict[str, Any]) -> None:
    admission = Admission(EntityLimit(2))
    admission.admit("a", 1)
    admission.admit("b", 1)
    with pytest.raises(SnapshotError):
        Admission(EntityLimit(2)).load_state({**admission.to_state(), **damage})


@pytest.mark.parametrize(
    "parameters", [{"records": 0}, {"records": 1.5}, {"records": 1, "separation": 0}, {"records": 70_000}]
)
def test_a_limit_that_makes_no_sense_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EntityLimit(**parameters)
    with pytest.raises(ConfigError):
        Admission(EntityLimit(1), capacity=0)


# ---- learners --------------------------------------------------------------------------------------------


SOLVERS: dict[str, Any] = {
    "gradients": auc.PairFTRL,
    "moments": partial(auc.PairFTRL, mechanism=privacy.SecondMoments(), warmup=10),
    "output": partial(auc.OnPairStrC, 1.0, l2=0.1),
}
every_solver = pytest.mark.parametrize("kind", SOLVERS.values(), ids=SOLVERS)


def learner(kind: Any = auc.PairFTRL, **options: Any) -> Any:
    limit = options.pop("limit", EntityLimit(2, 3, field="who"))
    fixed = {"delta": 1e-3, "horizon": 40, "features": ["a", "b"], "entity": limit}
    return kind(**{**fixed, **options})


def visits(count: int, people: int, seed: int = 0) -> list[tuple[dict[str, Any], bool]]:
    rng = np.random.default_rng(seed)
    return [
        ({"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1), "who": f"p{rng.integers(people)}"}, bool(i % 2))
        for i in range(count)
    ]


@every_solver
def test_an_entity_is_learned_from_as_often_as_it_may_be(kind: Any) -> None:
    model = learner(kind)
    admission, expected = Admission(EntityLimit(2, 3)), 0
    for slot, (x, y) in enumerate(visits(40, 6), start=1):
        expected += admission.admit(x["who"], slot)
        model.learn_one(x, y)
    assert model.slots == 40
    assert model.null_slots == model.refused_records == 40 - expected
    assert 0 < expected < 20
    assert model.ignored_features == 0
    report = model.privacy
    assert "all records of one entity: at most 2" in report.unit
    assert report.mu_spent == pytest.approx(report.mu_budget)
    assert "one lane" in report.details


@every_solver
@pytest.mark.parametrize("content", [{"a": "text"}, {}, None, {"a": float("nan"), "b": 0.0}])
def test_null_records_use_up_what_an_entity_may_have(kind: Any, content: Any) -> None:
    """Otherwise the content of one record would decide whether another is learned (docs/privacy 8)."""
    observed = []
    for first in ({"a": 0.5, "b": 0.5}, content):
        model = learner(kind, limit=EntityLimit(1))
        ann = Origin(entity="ann")
        if first is None:
            model.learn_null(ann)
        else:
            model.learn_one(first, True, ann)
        model.learn_one({"a": 0.1, "b": 0.1}, False, ann)
        observed.append(model.refused_records)
    assert observed == [1, 1]


def test_who_is_not_known_is_not_learned_from() -> None:
    model = learner()
    for who in NOBODY:
        model.learn_one({"a": 0.1, "b": 0.1, "who": who}, True)
    model.learn_one({"a": 0.1, "b": 0.1}, True)
    assert model.null_slots == model.refused_records == model.slots == len(NOBODY) + 1


@every_solver
def test_a_learner_counts_one_person_for_all_spellings(kind: Any) -> None:
    """From a field (an Avro int, a text), from a caller who names the entity, and from keys of messages."""
    for same in SPELLINGS:
        model = learner(kind, limit=EntityLimit(1, field="who"), horizon=100)
        for who in same:
            model.learn_one({"a": 0.1, "b": 0.1, "who": who}, True)
            model.learn_one({"a": 0.1, "b": 0.1}, True, Origin(entity=who))
        assert model.slots - model.refused_records == 1, same


def gradients_at_rest(model: Any, data: list[tuple[dict[str, Any], bool]]) -> np.ndarray:
    """Rounded gradient of every slot, in units of D, where the iterate does not move."""
    out = []
    for x, y in data:
        model.learn_one(x, y)
        out.append(
            model.run.state.gate._scratch[2] * model.run.state.plan.grid / model.run.state.plan.diameter
        )
    return np.array(out)


@pytest.mark.parametrize("size", [1, 4])
def test_replacing_all_records_of_an_entity_moves_the_gradients_by_no_more_than_planned(size: int) -> None:
    """9.2 for entities: the records of one person are replaced, flips included, and the pattern holds."""
    limit = EntityLimit(4, 2, field="who")
    pairs = privacy.PairGradients(buffer=buffers.FIFO(size))
    worst, unbounded = 0.0, False
    for seed in range(12):
        data = visits(40, 5, seed)
        rng = np.random.default_rng(seed + 100)
        other = [
            ({**x, "a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1)}, not y) if x["who"] == "p0" else (x, y)
            for x, y in data
        ]
        runs = []
        for stream in (data, other):
            model = learner(limit=limit, mechanism=pairs, radius=1e-9, seed=1)
            runs.append(gradients_at_rest(model, stream))
            step = model.run.state.plan.grid * math.sqrt(2) / model.run.state.plan.diameter
        admission = Admission(limit)
        slots = tuple(
            slot
            for slot, (x, _) in enumerate(data, start=1)
            if admission.admit(x["who"], slot) and x["who"] == "p0"
        )
        moved = np.linalg.norm(runs[0] - runs[1], axis=1)
        bound = naive_influence(slots, 40, size, 2.0)
        assert np.all(moved <= bound + step * (bound > 0))
        worst = max(worst, float(moved.max()))
        # The mutant: without admission the same records move more than that.
        fixed = {"entity": None, "mechanism": pairs, "radius": 1e-9, "seed": 1}
        free = [gradients_at_rest(learner(**fixed), stream) for stream in (data, other)]
        unbounded |= bool(np.any(np.linalg.norm(free[0] - free[1], axis=1) > bound + step))
    assert worst > 0.3  # the records do move something
    assert unbounded


@every_solver
def test_the_warm_up_and_the_learning_share_the_budget_of_an_entity(kind: Any) -> None:
    """A record is in one of them only; an entity may be in both, and several times in the moments."""
    single = learner(kind, entity=None, warmup=10)
    model = learner(kind, warmup=10)
    k0 = EntityLimit(2, 3).within(10)
    assert k0 == 2
    ratio = model.run.warmup.plan.sigma_sum / single.run.warmup.plan.sigma_sum
    assert ratio == pytest.approx(k0 * math.sqrt(2))
    for x, y in visits(40, 6):
        model.learn_one(x, y)
    assert model.privacy.mu_spent == pytest.approx(model.privacy.mu_budget)


@pytest.mark.parametrize("kind", [*SOLVERS.values(), ranking.PairFTRL, metric.PairFTRL])
def test_all_families_and_snapshots(kind: Any) -> None:
    options = {"noise_key": bytes(range(32))}
    model, other = learner(kind, **options), learner(kind, **options)
    data = visits(40, 6)
    for x, y in data[:20]:
        model.learn_one(x, y)
    other.load_state(model.to_state())
    for x, y in data[20:]:
        model.learn_one(x, y)
        other.learn_one(x, y)
    assert model.refused_records == other.refused_records > 0
    assert repr(model.to_state()["mechanism"]) == repr(other.to_state()["mechanism"])


@every_solver
def test_an_entity_makes_more_noise_and_is_refused_where_it_cannot_hold(kind: Any) -> None:
    sigmas = [learner(kind, limit=EntityLimit(k, 5)).run.state.plan.sigma for k in (1, 2, 8)]
    assert sigmas == sorted(sigmas)
    # Where there is a warm-up, an entity may be in it and in what follows.
    shared = math.sqrt(2.0) if learner(kind).settings.warmup else 1.0
    single = shared * learner(kind, entity=None).run.state.plan.sigma
    if kind is SOLVERS["gradients"]:
        assert sigmas[0] == pytest.approx(single)
    else:  # of a record it is known what it has left at the horizon, and how full the buffer was
        assert sigmas[0] > single
    for options in ({"features": None}, {"entity": 3}, {"features": ["a", "who"]}):
        with pytest.raises(ConfigError):
            learner(kind, **options)
    with pytest.raises(ConfigError, match="learn_many does not know entities"):
        learner(kind).learn_many(np.zeros((2, 2)), [True, False])
