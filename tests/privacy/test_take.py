"""`take` of a private learner is `score_one`, then `learn_one`, bit for bit; and what an origin says."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import NAMES, PRIVATE, stream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampair import auc, metric, privacy, ranking
from streampair.engine.snapshot import pack
from streampair.errors import RecordError
from streampair.privacy import EntityLimit, Origin
from streampair.privacy.mechanisms.second_moments import second_moments_diameter
from streampair.privacy.provenance import Origins

KEY = bytes(range(32))

#: Learners beside those of the contract: a warm-up that ends in the stream, and entities.
MAKES = {
    **PRIVATE,
    "auc-warm-moments": partial(auc.PairFTRL, 1.0, 1e-3, 60, mechanism=privacy.SecondMoments(), warmup=10),
    "metric-warm": partial(metric.PairFTRL, 1.0, 1e-3, 60, warmup=10),
    "auc-entities": partial(
        auc.PairFTRL,
        1.0,
        1e-3,
        60,
        entity=EntityLimit(3, 2),
        features=NAMES,
        mechanism=privacy.PairGradients(),
    ),
    "auc-entities-warm": partial(
        auc.PairFTRL, 1.0, 1e-3, 60, entity=EntityLimit(3, 2), features=NAMES, warmup=10
    ),
    "auc-entities-moments": partial(
        auc.PairFTRL,
        1.0,
        1e-3,
        60,
        entity=EntityLimit(3, 2),
        features=NAMES,
        mechanism=privacy.SecondMoments(),
        warmup=10,
    ),
    "auc-strongly-entities": partial(
        auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, entity=EntityLimit(3, 2), features=NAMES, warmup=10
    ),
    "auc-entities-field": partial(
        auc.PairFTRL, 1.0, 1e-3, 60, entity=EntityLimit(3, 2, field="who"), features=NAMES
    ),
}


def damaged(x: dict[str, Any], kind: str) -> Any:
    """A record as it may come: whole, or not."""
    first = next(iter(x))
    return {
        "whole": x,
        "turned": dict(reversed(x.items())),
        "more": {**x, "unknown": 1.0},
        "less": {name: value for name, value in x.items() if name != first},
        "text": {**x, first: "text"},
        "nan": {**x, first: math.nan},
        "infinite": {**x, first: math.inf},
        "huge": {**x, first: 1e300},
        "integers": dict.fromkeys(x, 1),
        "beyond": {**x, first: 10**400},
        "defaults": defaultdict(float, {"f0": 0.5}),
        "empty": {},
        "none": None,
    }[kind]


KINDS = ["whole", "turned", "more", "less", "text", "nan", "infinite", "huge", "integers", "beyond"]
KINDS += ["defaults", "empty", "none"]
steps = st.tuples(
    st.sampled_from(KINDS) | st.just("whole"),
    st.sampled_from(["label", "no label", "null"]) | st.just("label"),
    st.sampled_from(["told", "nobody", "not told"]),
)


def state(model: Any) -> bytes:
    return pack({**model.to_state(), "continued": None})


@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_take_is_score_and_learn_bit_for_bit(name: str, data: st.DataObject) -> None:
    """Over null records, records that cannot be scored, the end of the warm-up and the horizon."""
    one, two = MAKES[name](noise_key=KEY), MAKES[name](noise_key=KEY)
    events = stream(one, 70, seed=data.draw(st.integers(0, 3)))
    plan = data.draw(st.lists(steps, min_size=24, max_size=24))
    for i, (x, y) in enumerate(events):
        what, labelled, identity = plan[i] if i < 24 else ("whole", "label", "told")
        given_x = damaged({**x, "who": i % 4} if name.endswith("field") else x, what)
        given_y = y if labelled == "label" else None
        who = {"told": b"p%d" % (i % 4), "nobody": None}.get(identity)
        origin = None if identity == "not told" else Origin(b"place %d" % i, who)
        if labelled == "null":
            one.learn_null(origin)
            two.learn_null(origin)
            continue
        try:
            expected: Any = one.score_one(given_x)
        except RecordError as error:
            expected = str(error)
            before = state(two)
            with pytest.raises(RecordError) as caught:
                two.take_or_raise(given_x, given_y, origin)
            assert str(caught.value) == expected
            assert state(two) == before  # no slot was taken
            one.learn_null(origin)
            two.learn_null(origin)
        else:
            one.learn_one(given_x, given_y, origin)
            way = two.take if i % 2 else two.take_or_raise
            score = way(given_x, given_y, origin)
            assert score.hex() == expected.hex()
    assert one.slots == two.slots == (60 if one.horizon else 70)
    assert state(one) == state(two)
    assert one.privacy == two.privacy


class Raising(dict[str, float]):
    """A mapping that cannot be read."""

    def __getitem__(self, name: str) -> float:
        raise RuntimeError("secret")

    def __iter__(self) -> Any:
        raise RuntimeError("secret")

    def __len__(self) -> int:
        raise RuntimeError("secret")

    def __contains__(self, name: object) -> bool:
        raise RuntimeError("secret")

    def get(self, *args: Any) -> Any:
        raise RuntimeError("secret")


class Iterating(Mapping[str, float]):
    """A mapping whose iteration raises, and nothing else of it."""

    def __getitem__(self, name: str) -> float:
        if name == "f0":
            raise KeyError(name)
        return 0.5

    def __iter__(self) -> Any:
        raise RuntimeError("secret")

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("first", [False, True])
def test_take_takes_a_slot_for_every_record(name: str, first: bool) -> None:
    """NaN where there is no score, and then as `learn_one`: whatever it is, the others have their slots."""
    one, two = MAKES[name](noise_key=KEY), MAKES[name](noise_key=KEY)
    events = stream(one, 30)
    bad = [*(damaged(events[0][0], kind) for kind in KINDS), Raising(events[0][0]), Iterating()]
    if not first:
        one.learn_one(*events[0])
        two.take(*events[0])
    for i, x in enumerate(bad):
        try:
            expected = one.score_one(x)
        except Exception:  # a RecordError, or what the mapping raises
            expected = math.nan
        one.learn_one(x, events[i][1])
        score = two.take(x, events[i][1])
        assert score.hex() == expected.hex()
        assert two.slots == i + 1 + (not first)
    assert state(one) == state(two)


def released(kind: str, bad: Any) -> Any:
    """What is summed up over 100 equal records, of which one is this, by a loop over a stream."""
    model = auc.PairFTRL(
        1.0, 1e-4, horizon=None, features=["a", "b"], warmup=1000, mechanism=privacy.SecondMoments(), seed=1
    )
    rng = np.random.default_rng(0)
    warm = pd.DataFrame(rng.uniform(-1, 1, size=(1000, 2)), columns=["a", "b"])
    model.learn_many(warm, pd.Series(rng.random(1000) < 0.5))
    for i in range(100):
        x = bad if i == 40 else {"a": 1.0, "b": 0.2}
        if kind == "take":
            model.take(x, True)
            continue
        with contextlib.suppress(RecordError):
            model.score_one(x)
            model.learn_one(x, True)
    assert model.run is not None
    rule: Any = model.run.state
    assert rule.releases == 0  # the block is open
    return model.slots, np.frombuffer(rule.block.cells(), dtype=np.int64) * rule.plan.grid, rule.plan


@pytest.mark.parametrize(
    "bad", [{"a": "text", "b": 0.2}, {}, None, Raising()], ids=["text", "empty", "none", "raising"]
)
def test_a_loop_over_take_keeps_neighbours_neighbours(bad: Any) -> None:
    """The slots are as many, and sums differ by a null record; a loop that suppresses errors loses a slot."""
    (slots, one, plan), (other_slots, other, _) = (
        released("take", {"a": 1.0, "b": 0.2}),
        released("take", bad),
    )
    assert slots == other_slots == 1100
    assert np.linalg.norm(one - other) <= second_moments_diameter() + plan.grid * math.sqrt(plan.dim)
    assert released("loop", bad)[0] == 1099


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("kind", [auc.PairFTRL, ranking.PairFTRL, partial(metric.PairFTRL, classes=[0, 1])])
def test_by_moments_records_that_release_nothing_are_a_batch_bit_for_bit(kind: Any, key: Any) -> None:
    """Whatever is summed of each: the short way of one record must be that of its own sums."""
    rng = np.random.default_rng(3)
    rows, labels = rng.normal(size=(400, 3)), rng.integers(0, 2, 400).astype(float)
    rows[::17, 1], labels[::13] = math.nan, math.nan
    parameters: dict[str, Any] = {"features": [0, 1, 2], "noise_key": key, "warmup": 20}
    alone, batch = (kind(horizon=1000, seed=None if key else 1, **parameters) for _ in range(2))
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        alone.learn_one(dict(enumerate(row)), label)
    batch.learn_many(rows, labels)
    assert alone.run.state.releases_nothing is (not isinstance(alone, metric.PairFTRL))  # most slots are
    assert alone.null_slots == batch.null_slots > 0
    assert pack(alone.to_state()) == pack(batch.to_state())


def test_a_take_that_scores_after_it_learns_is_caught() -> None:
    """The mutant: the score of a record under a model that has seen it."""
    model, other = (auc.PairFTRL(1.0, 1e-3, 60, features=NAMES, noise_key=KEY) for _ in range(2))
    differences = 0
    for x, y in stream(model, 30):
        score = model.take(x, y)
        other.learn_one(x, y)
        differences += score != other.score_one(x)
    assert differences > 20


def test_a_score_or_a_step_of_a_subclass_is_the_one_that_counts() -> None:
    class Halved(auc.PairFTRL):
        def score_one(self, x: Any) -> float:
            return 0.5 * super().score_one(x)

    class Deaf(auc.PairFTRL):
        def learn_one(self, x: Any, y: Any, origin: Origin | None = None) -> None:
            self.learn_null(origin)

    plain, halved, deaf = (
        kind(1.0, 1e-3, 60, features=NAMES, seed=1) for kind in (auc.PairFTRL, Halved, Deaf)
    )
    for x, y in stream(plain, 30):
        assert halved.take(x, y) == 0.5 * plain.take(x, y)
        deaf.take(x, y)
    assert (plain.null_slots, deaf.null_slots) == (0, 30)


def outcomes(model: Any, rows: list[Any], cuts: list[int], way: str) -> tuple[Any, ...]:
    """Scores, outcomes, digests and the state, of batches that end at these places; restored after each."""
    digests: list[bytes] = []
    printed, refused, start = [], [], 0
    for end in [*cuts, len(rows)]:
        part, start = rows[start:end], end
        xs, ys = [x for x, _, _ in part], [y for _, y, _ in part]
        where = Origins([origin.context for _, _, origin in part], [origin.entity for _, _, origin in part])
        nulls = [i for i, y in enumerate(ys) if y == "null"]
        if way == "one":
            ready = None
        elif way == "rows" and part and all(whole(x) for x in xs):
            table = np.array([[x[name] for name in reversed(NAMES)] for x in xs])
            ready = model.prepare_rows(NAMES[::-1], table, ys, where, nulls=nulls)
        else:
            ready = model.prepare_many(xs, ys, where, nulls=nulls)
        if ready is None:
            for x, y, origin in part:
                before, score = model.refused_records, "none"
                try:
                    score = (
                        model.score_one(x).hex() if y == "null" else model.take_or_raise(x, y, origin).hex()
                    )
                except RecordError as error:
                    score, y = str(error), "null"
                if y == "null":
                    model.learn_null(origin)
                printed.append(score)
                refused.append(model.refused_records > before)
        else:
            # Cut once more, as for a sample: the score of a record there is the one that it was given.
            stop = len(part) // 2
            with_sample = bool(part) and stop not in nulls and stop not in ready.refused and whole(xs[stop])
            scores = ready.take([stop], [xs[stop]]) if with_sample else ready.take()
            if with_sample:
                assert ready.other_scores == scores[stop : stop + 1]
            printed += [
                str(ready.refused[i]) if i in ready.refused else s.hex() for i, s in enumerate(scores)
            ]
            admitted = ready.admitted or [True] * len(part)
            refused += [not is_in for is_in in admitted]
        refused += [False] * (len(printed) - len(refused))  # behind the horizon nobody is asked
        saved, model = model.to_state(), model.clone()
        model.bind_noise("lane", digests)
        model.load_state(saved)
    return printed, refused, digests, state(model), model.privacy


def whole(x: Any) -> bool:
    """Whether a table can hold it."""
    return isinstance(x, dict) and x.keys() == set(NAMES) and set(map(type, x.values())) == {float}


@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(0, 70), max_size=4), anonymous=st.booleans(), data=st.data())
def test_a_batch_is_one_record_after_the_other_bit_for_bit(
    name: str, cuts: list[int], anonymous: bool, data: st.DataObject
) -> None:
    """Over the end of the warm-up, releases, entities, the horizon, null records, and restarts."""
    rows = []
    model = MAKES[name](noise_key=KEY)
    kinds = data.draw(st.lists(st.sampled_from([*KINDS, "no record"]), max_size=6))
    damage = dict(zip(data.draw(st.permutations(range(70))), kinds, strict=False))
    for i, (x, y) in enumerate(stream(model, 70, seed=data.draw(st.integers(0, 3)))):
        context = None if anonymous and i % 3 else b"place %d" % i
        kind = damage.get(i, "whole")
        y = "null" if kind == "no record" or i % 13 == 5 else y if i % 11 else None
        x = {} if kind == "no record" else damaged(x, kind)
        rows.append((x, y, Origin(context, (b"p%d" % (i % 4), None, 1.5)[i % 7 % 3])))
    one_by_one, *at_once = (
        outcomes(MAKES[name](noise_key=KEY), rows, sorted(cuts), kind) for kind in ("one", "many", "rows")
    )
    assert at_once == [one_by_one, one_by_one]


@pytest.mark.parametrize("name", [name for name in MAKES if not name.startswith("metric")])
def test_batches_are_taken_at_once(name: str) -> None:
    """Else the test above would compare a thing with itself; and noise that a seed draws is the same too."""
    one, many = MAKES[name](seed=1), MAKES[name](seed=1)
    rows = [(x, y) for x, y in stream(one, 70)]
    scores = [one.take(x, y, Origin(entity=i % 5)) for i, (x, y) in enumerate(rows)]
    got = [many.take(*rows[0], Origin(entity=0))]  # the first names the features
    for start in (1, 24, 47):
        part = rows[start : start + 23]
        where = Origins(entities=[i % 5 for i in range(start, start + 23)])
        ready = many.prepare_many([x for x, _ in part], [y for _, y in part], where)
        assert ready is not None
        got += ready.take()
    assert got == scores
    assert state(one) == state(many)
    model = MAKES[name](seed=1)
    model.take(*rows[0], Origin(entity=0))
    ys = [y for _, y in rows[1:]]
    ready = model.prepare_many([x for x, _ in rows[1:]], [*ys[:30], ys[31], ys[30], *ys[32:]])
    assert ready is not None
    ready.take()
    assert state(one) != state(model)


def test_what_a_batch_does_not_take_changes_nothing() -> None:
    model = auc.PairFTRL(1.0, 1e-3, 60, noise_key=KEY)
    xs, ys = ([part[i] for part in stream(model, 20)] for i in (0, 1))
    assert model.prepare_many(xs, ys) is None  # nobody knows the names
    model.take(xs[0], ys[0])
    before = state(model)
    for kind in KINDS:  # until it is taken
        ready = model.prepare_many([*xs[1:5], damaged(xs[5], kind), *xs[6:]], ys[1:])
        refuses = kind in ("text", "nan", "infinite", "beyond", "empty", "none")
        assert (list(ready.refused) if ready else ready) == [4] * refuses
    assert model.prepare_rows(NAMES[:4], np.zeros((2, 4)), ys[:2]) is None
    assert list(model.prepare_rows(NAMES, np.full((2, 5), math.nan), ys[:2]).refused) == [0, 1]
    assert state(model) == before
    # Records may name their own entities, as long as nobody has said whose they are.
    entities = MAKES["auc-entities-field"](noise_key=KEY)
    with_entities = [{**x, "who": i % 3} for i, x in enumerate(xs)]
    assert entities.prepare_many(with_entities, ys) is None
    assert entities.prepare_many(with_entities, ys, Origins(entities=[1] * 20)) is not None


def test_an_origin_is_of_one_record() -> None:
    """What was told of a record that failed, or was not taken, says nothing of the next one."""
    limit = EntityLimit(1)
    model = auc.PairFTRL(1.0, 1e-3, 60, features=["a"], entity=limit, seed=1)
    with pytest.raises(RecordError):
        model.take_or_raise({"a": "text"}, True, Origin(entity=b"ann"))
    model.learn_one({"a": 0.5}, True)  # nobody's
    assert (model.slots, model.refused_records) == (1, 1)
    model.take({"a": 0.5}, True, Origin(entity=b"ann"))
    assert (model.slots, model.refused_records) == (2, 1)
