"""PairOGD against its reference implementation, on bad input, and its state."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import naive
import numpy as np
import pandas as pd
import pytest
from harness.every_loss import MARGIN
from hypothesis import assume, given
from hypothesis import strategies as st

from streampair import auc, buffers, losses
from streampair.errors import RecordError

BUFFERS = [
    buffers.FIFO(1),
    buffers.FIFO(3),
    buffers.Reservoir(3),
    buffers.Reservoir(3, replacement=True),
    buffers.ClassReservoir(2),
    buffers.FullHistory(),
    buffers.FullHistory("float32"),
]
POLICY = {0: "fifo", 1: "reservoir", 2: "replace", 3: "full", 4: "classes"}


def kept(model: auc.PairOGD) -> list[list[float]]:
    """The buffer, row by row: sign, then features (those that a late name left short end in zeros)."""
    state: Any = model.to_state()
    d = len(state["names"])
    if "counts" in state:
        ends = np.cumsum(state["counts"])
        rows = np.zeros((len(ends), 1 + d))
        rows[:, 0] = state["labels"]
        for row, end, count in zip(rows, ends, state["counts"], strict=True):
            row[1 + state["places"][end - count : end]] = state["values"][end - count : end]
        return rows.tolist()  # type: ignore[no-any-return]
    return [
        [label, *row, *[0.0] * (d - len(row))]
        for block in state["blocks"]
        for label, row in zip(block["labels"].tolist(), block["rows"].tolist(), strict=True)
    ]


def frozen(model: auc.PairOGD) -> bytes:
    """The whole state as bytes."""
    return pickle.dumps(model.to_state())


def stream(n: int, d: int = 4, seed: int = 0) -> list[tuple[dict[str, float], bool]]:
    rng = random.Random(seed)
    return [({f"f{i}": rng.gauss(0, 1) for i in range(d)}, rng.random() < 0.4) for _ in range(n)]


def taught(model: auc.PairOGD, n: int = 20, d: int = 4) -> auc.PairOGD:
    for x, y in stream(n, d):
        model.learn_one(x, y)
    return model


# ---- the algorithm ----------------------------------------------------------------------------------------

eighths = st.integers(-32, 32).map(lambda v: v / 8)


@pytest.mark.parametrize("buffer", BUFFERS, ids=str)
@pytest.mark.parametrize("loss", MARGIN, ids=str)
@given(data=st.data())
def test_against_the_reference(loss: losses.PairLoss, buffer: buffers.Buffer, data: st.DataObject) -> None:
    """A step, an average or a buffer that is another one for some loss, rate, radius or ridge."""
    d = data.draw(st.integers(1, 6))
    records = data.draw(
        st.lists(st.tuples(st.lists(eighths, min_size=d, max_size=d), st.booleans()), min_size=1, max_size=25)
    )
    rate = data.draw(st.sampled_from([None, 0.05, 2.0]))
    radius = data.draw(st.sampled_from([0.1, 1.0, 30.0]))
    l2 = data.draw(st.sampled_from([0.0, 0.25]))
    seed = data.draw(st.integers(0, 2**53 - 1))
    reference = naive.PairOGD(
        d, type(loss).__name__, POLICY[buffer.code], buffer.size, rate, radius, l2, seed
    )
    options: dict[str, Any] = {"learning_rate": rate, "radius": radius, "l2": l2, "seed": seed, "scale": None}
    averaged = auc.PairOGD(loss=loss, buffer=buffer, **options)
    last = auc.PairOGD(loss=loss, buffer=buffer, average=False, **options)
    links = naive.Link(), naive.Link()
    for x, y in records:
        named = {f"f{i}": v for i, v in enumerate(x)}
        for model, weights, link in (
            (averaged, reference.average, links[0]),
            (last, reference.last, links[1]),
        ):
            score = model.score_one(named)
            assert score == pytest.approx(naive.dot(weights, x), rel=1e-9, abs=1e-9)
            assert model.predict_proba_one(named)[True] == pytest.approx(link.probability(score), rel=1e-6)
            model.learn_one(named, y)
            link.learn(score, 1.0 if y else -1.0)
        reference.learn(x, 1.0 if y else -1.0)
        # The hinge's slope jumps at margin 1, where rounding may decide; and the self-tuned first step has
        # one length whatever the gradient, so pairs that cancel but for rounding decide its direction.
        assume(reference.nearest_kink > 1e-9 or not isinstance(loss, losses.Hinge))
        assume(reference.least_gradient > 1e-9)
        assert np.linalg.norm(last.weights_vector) <= radius * (1 + 1e-12)
    assert averaged.weights_vector == pytest.approx(np.array(reference.average), rel=1e-9, abs=1e-9)
    assert last.weights_vector == pytest.approx(np.array(reference.last), rel=1e-9, abs=1e-9)
    # The same records in the buffer; a FIFO's rows in another order.
    if isinstance(loss, losses.Square) and isinstance(buffer, buffers.FullHistory):
        return  # no rows, but moments: see test_moments
    rows = kept(averaged)
    wanted = [[1.0 if y > 0 else -1.0, *x.values()] for x, y in reference.buffer.rows]
    assert sorted(rows) == sorted(wanted)
    if POLICY[buffer.code] == "classes":
        assert rows == sorted(wanted, key=lambda row: row[0])
    elif POLICY[buffer.code] != "fifo":
        assert rows == wanted


@pytest.mark.parametrize(
    "buffer",
    [buffers.FIFO(140), buffers.Reservoir(70), buffers.Reservoir(33, True), buffers.ClassReservoir(40)],
    ids=str,
)
@pytest.mark.parametrize("loss", MARGIN, ids=str)
def test_many_rows_against_the_reference(loss: losses.PairLoss, buffer: buffers.Buffer) -> None:
    """From 32 rows on the kernel goes through them in another way."""
    model = auc.PairOGD(loss, buffer, None, l2=0.1, radius=2.0, average=False, seed=3, scale=None)
    reference = naive.PairOGD(5, type(loss).__name__, POLICY[buffer.code], buffer.size, None, 2.0, 0.1, 3)
    for x, y in stream(200, 5):
        model.learn_one(x, y)
        reference.learn(list(x.values()), 1.0 if y else -1.0)
    assert model.weights_vector == pytest.approx(np.array(reference.last), rel=1e-9, abs=1e-11)


def test_the_first_steps_by_hand() -> None:
    """FIFO(1), hinge: w_1 = Proj(-eta_1 g_1), and the average lags two steps behind (Yang et al., line 6)."""
    model = auc.PairOGD(learning_rate=0.1, scale=None)
    model.learn_one({"a": 1.0}, True)
    assert model.weights == {"a": 0.0}  # nobody to pair with
    last = copy.deepcopy(model)
    model.learn_one({"a": 0.5}, False)  # g = -2 * (1 - .5) = -1
    assert model.to_state()["w"].tolist() == [0.1]
    assert model.weights == {"a": 0.0}  # w_{-1}
    model.learn_one({"a": 0.0}, False)  # equal labels: no gradient
    assert model.weights == {"a": 0.0}  # w_{-1}, w_0
    model.learn_one({"a": 0.0}, False)
    etas = [0.1, 0.1 / math.sqrt(2), 0.1 / math.sqrt(3)]
    assert model.weights["a"] == pytest.approx(etas[2] * 0.1 / sum(etas))
    assert last.records == 1


def test_self_tuned_steps_are_scale_free() -> None:
    """All features times c and the radius over c: the same scores."""
    small = taught(auc.PairOGD(learning_rate=None, scale=None))
    large = auc.PairOGD(learning_rate=None, radius=2.0 / 1024, scale=None)
    for x, y in stream(20):
        large.learn_one({name: 1024 * value for name, value in x.items()}, y)
    for x, _ in stream(5, seed=1):
        assert large.score_one({n: 1024 * v for n, v in x.items()}) == pytest.approx(small.score_one(x))


@pytest.mark.parametrize("loss", MARGIN, ids=str)
def test_rounding_makes_no_step(loss: losses.PairLoss) -> None:
    """Equal records with unequal labels have no gradient, however many of them the buffer holds."""
    model = auc.PairOGD(loss=loss, buffer=buffers.FIFO(7), average=False)
    for t in range(20):
        model.learn_one({"a": 3.1, "b": -0.7}, t % 3 == 0)
    assert model.weights == {"a": 0.0, "b": 0.0}


def test_labels() -> None:
    records = stream(30)
    models = {
        "bool": auc.PairOGD(),
        "text": auc.PairOGD(positive="fraud"),
        "one": auc.PairOGD(positive=1),
        "zero": auc.PairOGD(positive=0),
        "false": auc.PairOGD(positive=False),
    }
    link = naive.Link()
    for x, y in records:
        link.learn(models["bool"].score_one(x), 1.0 if y else -1.0)
        models["bool"].learn_one(x, np.bool_(y))
        models["text"].learn_one(x, "".join(("fra", "ud")) if y else "fine")
        models["one"].learn_one(x, int(y))
        models["zero"].learn_one(x, int(not y))
        models["false"].learn_one(x, not y)
    x = records[0][0]
    assert len({m.score_one(x) for m in models.values()}) == 1
    p = models["bool"].predict_proba_one(x)
    assert p == models["one"].predict_proba_one(x)
    assert models["text"].predict_proba_one(x) == {"fine": p[False], "fraud": p[True]}
    assert p[True] == pytest.approx(link.probability(models["bool"].score_one(x)))
    assert p[False] == 1.0 - p[True]
    # With False as the label that ranks high, the keys stay the labels.
    for name in ("zero", "false"):
        assert models[name].predict_proba_one(x) == {False: p[True], True: p[False]}
        assert models[name].predict_one(x) is not models["bool"].predict_one(x)


def test_before_any_record() -> None:
    model = auc.PairOGD()
    assert model.predict_proba_one({"a": 1.0}) == {False: 0.5, True: 0.5}
    assert model.score_one({"a": 1e50}) == 0.0
    assert model.predict_one({"a": 1.0}) is False
    assert model.weights == {}
    assert model.privacy is None


def test_what_others_look_at() -> None:
    model = taught(auc.PairOGD(radius=2.0, buffer=buffers.FIFO(8), scale=None))
    assert model.pair_loss == losses.Hinge()
    assert model.comparator_radius == 2.0
    assert (model.records, model.buffer_records) == (20, 8)
    assert list(model.weights) == list(model.feature_names) == ["f0", "f1", "f2", "f3"]
    xs = [x for x, _ in stream(5, seed=3)] + [{"f2": 1.0}, {"f0": 2, "new": 5.0}]
    design = model.design_many(xs)
    assert design.shape == (7, 4)
    assert model.design_many(xs[:5]).tolist() == design[:5].tolist()  # all whole: packed at once
    with pytest.raises(RecordError, match="'f1' is infinite"):
        model.design_many([xs[0], {**xs[1], "f1": math.inf}])
    for x, row in zip(xs, design, strict=True):
        assert model.design(x).tolist() == row.tolist()
        assert model.score_one(x) == pytest.approx(row @ model.weights_vector, rel=1e-12, abs=1e-15)
    assert design[5].tolist() == [0, 0, 1, 0]
    assert design[6].tolist() == [2, 0, 0, 0]
    model.weights_vector[:] = 7.0  # a copy
    assert 7.0 not in model.weights.values()


# ---- features ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["running", None])
def test_a_name_that_is_not_there_counts_as_zero(scale: Any) -> None:
    """To the score and the step; it enters no statistics."""
    a, b = (taught(auc.PairOGD(seed=0, scale=scale)) for _ in range(2))
    assert a.score_one({"f3": 1.0}) == a.score_one({"f0": 0, "f1": 0, "f2": 0, "f3": 1})
    a.learn_one({"f1": 2.0}, True)
    b.learn_one({"f0": 0, "f1": 2.0, "f2": 0.0, "f3": False}, True)
    if scale is None:
        assert (a.weights, kept(a)) == (b.weights, kept(b))
    else:
        assert a.to_state()["values_set"].tolist() == [20, 21, 20, 20]
        assert b.to_state()["values_set"].tolist() == [21] * 4


def test_new_names_get_new_columns() -> None:
    grown = auc.PairOGD(buffer=buffers.FIFO(4), scale=None)
    whole = auc.PairOGD(buffer=buffers.FIFO(4), scale=None)
    records = stream(30, d=7)
    names = sorted(records[0][0])
    for i, (x, y) in enumerate(records):
        known = names[: 1 + i // 4]
        grown.learn_one({n: x[n] for n in known}, y)
        whole.learn_one({n: x[n] if n in known else 0.0 for n in names}, y)
    assert grown.weights == pytest.approx(whole.weights, rel=1e-12, abs=1e-15)
    assert grown.score_one({"never": 3.0}) == 0.0
    assert "never" not in grown.weights


@pytest.mark.parametrize(
    "value", [3, True, np.float32(3.0), np.int64(3), np.bool_(True), Decimal("3.5"), Fraction(7, 2)]
)
def test_every_real_number_will_do(value: Any) -> None:
    a, b = taught(auc.PairOGD(seed=0)), taught(auc.PairOGD(seed=0))
    x = stream(1)[0][0]
    for again in range(2):  # by the fast way, and with a new name by the slow one
        a.learn_one({**x, "f0": value, **({"new": value} if again else {})}, True)
        b.learn_one({**x, "f0": float(value), **({"new": float(value)} if again else {})}, True)
    assert frozen(a) == frozen(b)


@pytest.mark.parametrize("buffer", [buffers.FIFO(3), buffers.ClassReservoir(2)], ids=str)
def test_the_first_record_that_has_all_features_may_come_late(buffer: buffers.Buffer) -> None:
    """A row of the buffer has to be made longer for it, also where its names were scored before."""
    model, control = (auc.PairOGD(buffer=buffer, seed=0) for _ in range(2))
    whole = {"a": 0.5, "b": 2.0}
    for x, y in [({"a": 1.0}, True), ({"b": 1.0}, False), ({"a": 2.0}, False)]:
        model.learn_one(x, y)
        model.score_one(whole)
        control.learn_one(x, y)
    model.learn_one(whole, True)
    control.learn_one(whole, True)
    assert frozen(model) == frozen(control)
    begun = auc.PairOGD(buffer=buffer, seed=0, scale=None)
    begun.begin_at({"a": 1.0, "b": -1.0})
    begun.score_one(whole)
    begun.learn_one(whole, True)
    assert begun.buffer_records == 1


def test_mappings_that_make_values_up_are_not_trusted() -> None:
    model = taught(auc.PairOGD(), d=2)
    x: defaultdict[str, float] = defaultdict(float, f0=1.0, other=2.0)
    assert model.score_one(x) == model.score_one({"f0": 1.0})
    assert set(x) == {"f0", "other"}
    counts = Counter({"f0": 1, "bad": math.inf})  # type: ignore[dict-item]
    with pytest.raises(RecordError, match="feature 'bad' is infinite"):
        model.learn_one(counts, True)


def test_large_numbers_do_not_overflow() -> None:
    for loss in MARGIN:
        model = auc.PairOGD(loss=loss, buffer=buffers.FIFO(2), radius=1e12, l2=1e12)
        for t in range(20):
            model.learn_one({"a": 1e50 * (-1) ** t, "b": 1e-300, "c": t}, t % 3 == 0)
        assert all(math.isfinite(w) for w in model.weights.values())
        assert math.isfinite(model.score_one({"a": 1e50, "b": -1e50, "c": 1e50}))


# ---- state -------------------------------------------------------------------------------------------------


def test_clone_is_fresh() -> None:
    model = taught(auc.PairOGD(buffer=buffers.FIFO(3), loss=losses.Logistic(), seed=3))
    assert model.clone().weights == {}
    assert repr(model.clone()) == repr(model)
    assert model.clone({"radius": 4.0}).comparator_radius == 4.0


def test_extra_attributes_survive_a_pickle() -> None:
    model = taught(auc.PairOGD())
    model.note = "mine"  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(model)).note == "mine"


@pytest.mark.parametrize(
    "model",
    [
        auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=1),
        auc.PairOGD(buffer=buffers.FullHistory(), seed=1),
        auc.PairOGD(buffer=buffers.ClassReservoir(3), seed=1),
        auc.OAM(size=3, seed=1),
        auc.SPAUC(),
    ],
    ids=str,
)
def test_statistics_and_buffer_are_saved_side_by_side(model: Any) -> None:
    """Of a learner that scales, with gaps and texts: neither takes the other's place in the state."""
    records = [
        ({**x, "kind": "ab"[i % 2], "f0": None if i % 5 == 0 else x["f0"]}, y)
        for i, (x, y) in enumerate(stream(60))
    ]
    one = model.clone()
    for x, y in records[:30]:
        one.learn_one(x, y)
    two = one.clone()
    two.load_state(one.to_state())
    assert frozen(two) == frozen(one)
    for x, y in records[30:]:
        assert one.score_one(x) == two.score_one(x)
        one.learn_one(x, y)
        two.learn_one(x, y)
    assert frozen(two) == frozen(one)


def test_a_full_history_has_a_limit() -> None:
    model = auc.PairOGD(buffer=buffers.FullHistory(max_records=20))
    taught(model, 19)
    many = model.clone(include_attributes=True)
    before = frozen(many)
    X = pd.DataFrame([x for x, _ in stream(2)])
    with pytest.raises(RecordError, match=r"max_records=20.*buffers\.Reservoir"):
        many.learn_many(X, pd.Series([True, False]))
    assert frozen(many) == before
    taught(model, 1)
    before = frozen(model)
    for x in (stream(1)[0][0], {"new": 1.0}):
        with pytest.raises(RecordError, match="max_records=20"):
            model.learn_one(x, True)
        assert frozen(model) == before
        assert model.buffer_records == 20


def test_float32_refuses_what_it_cannot_hold_and_rounds_before_it_learns() -> None:
    model = taught(auc.PairOGD(buffer=buffers.FullHistory("float32")))
    before = frozen(model)
    for x in ({"f0": 1e39}, {"f0": 1.0, "new": -1e39}):
        with pytest.raises(RecordError, match=r"'(f0|new)' is -?1e\+39, beyond the limit of 3.40282e\+38"):
            model.learn_one(x, True)
        with pytest.raises(RecordError, match=r"row 0 is -?1e\+39, beyond the limit of 3.40282e\+38"):
            model.learn_many(pd.DataFrame([x]), pd.Series([True]))
        assert frozen(model) == before
        assert model.score_one(x) != 0.0  # a score needs no storage
    model.learn_one({"f0": 0.1}, True)
    assert kept(model)[-1][1] == np.float32(0.1)


def test_class_reservoirs_that_hold_everything_are_the_full_history() -> None:
    full = auc.PairOGD(buffer=buffers.FullHistory(), loss=losses.Logistic(), l2=0.1)
    classes = auc.PairOGD(buffer=buffers.ClassReservoir(50), loss=losses.Logistic(), l2=0.1)
    for x, y in stream(50):
        full.learn_one(x, y)
        classes.learn_one(x, y)
        assert classes.weights == pytest.approx(full.weights, rel=1e-9, abs=1e-12)


# ---- parameters --------------------------------------------------------------------------------------------


def test_seeds() -> None:
    def run(seed: int | None) -> bytes:
        model = auc.PairOGD(buffer=buffers.Reservoir(3), seed=seed)
        return taught(model, 50).weights_vector.tobytes()

    assert run(1) == run(1) != run(2)
    assert run(-5) == run(-5)
    assert run(2**80 + 7) == run(2**80 + 7)
    assert run(None) != run(None)
