"""Records that have few of many features: scores of whole records, in memory by their own features."""

from __future__ import annotations

import collections
import functools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import LEARNERS
from river import feature_extraction

from streampair import auc, buffers, losses, metric, ranking
from streampair.errors import RecordError

D = 90
NAMES = [f"word{i}" for i in range(D)]
Stream = list[tuple[dict[str, float], Any]]

MAKERS: list[Callable[..., Any]] = [
    lambda **more: auc.PairOGD(seed=1, **more),
    lambda **more: auc.PairOGD(learning_rate=None, seed=1, **more),
    lambda **more: auc.PairOGD(buffer=buffers.FIFO(1), seed=1, **more),
    lambda **more: auc.PairOGD(buffer=buffers.FIFO(1), half_life=20, seed=1, **more),
    lambda **more: auc.PairOGD(losses.Logistic(), learning_rate=0.3, average=False, seed=1, **more),
    lambda **more: auc.PairOGD(losses.Square(), learning_rate=None, radius=0.05, seed=1, **more),
    lambda **more: auc.PairOGD(learning_rate=None, half_life=20, seed=1, **more),
    lambda **more: auc.PairOGD(l2=0.1, seed=1, **more),
    lambda **more: auc.PairOGD(buffer=buffers.Reservoir(4), seed=1, **more),
    lambda **more: auc.PairOGD(buffer=buffers.ClassReservoir(4), seed=1, **more),
    lambda **more: auc.PairOGD(buffer=buffers.FullHistory(), seed=1, **more),
    lambda **more: auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=1, **more),
    lambda **more: auc.OAM(seed=1, **more),
    auc.SPAUC,
    lambda **more: ranking.PairOGD(losses.MinimumErrorEntropy(0.5), seed=1, **more),
]
EACH = pytest.mark.parametrize("make", MAKERS, ids=lambda make: str(make()))


def stream(count: int, seed: int = 0, most: int = 20) -> Stream:
    """Records of 1 to `most` of the features, in any order, some of them 0."""
    rng = np.random.default_rng(seed)
    out: Stream = []
    for _ in range(count):
        names = rng.permutation(NAMES)[: rng.integers(1, most + 1)].tolist()
        values = np.where(rng.random(len(names)) < 0.1, 0.0, rng.normal(size=len(names)))
        out.append((dict(zip(names, values.tolist(), strict=True)), bool(rng.random() < 0.5)))
    return out


def whole(x: dict[str, float]) -> dict[str, float]:
    return {name: x.get(name, 0.0) for name in NAMES}


def knowing(make: Callable[[], Any]) -> Any:
    """A learner that knows all names, and has learned two records."""
    model = make()
    for i, y in enumerate((True, False)):
        model.learn_one({name: 0.01 * (i + j % 3) for j, name in enumerate(NAMES)}, y)
    return model


def bits(value: Any) -> Any:
    """A state as values that can be compared."""
    if isinstance(value, dict):
        return {name: bits(v) for name, v in value.items()}
    if isinstance(value, list):
        return [bits(v) for v in value]
    return (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def same(a: Any, b: Any) -> bool:
    return bool(bits(a.to_state()) == bits(b.to_state()))


def learned(model: Any) -> Any:
    """What a learner knows, to the last bit; not how its buffer holds the records."""
    kept = ("scalars", "link", "w", "previous", "averaged", "class_means", "first_moments", "moments")
    return bits({name: value for name, value in model.to_state().items() if name in kept})


def sparse_and_whole_differ(learn: Callable[[Any, dict[str, float], Any], None], make: Any) -> bool:
    """Whether a learner of sparse records has other bits than one of records with all their zeros."""
    sparse, dense = knowing(make), knowing(make)
    for i, (x, y) in enumerate(stream(120)):
        learn(sparse, x, y)
        dense.learn_one(whole(x), y)
        if i % 7 == 0:
            learn(sparse, whole(x), y)
            dense.learn_one(whole(x), y)
        if sparse.score_one(x) != dense.score_one(whole(x)) or learned(sparse) != learned(dense):
            return True
    return False


@EACH
def test_without_scale_a_missing_feature_is_a_zero_bit_for_bit(make: Callable[..., Any]) -> None:
    assert not sparse_and_whole_differ(
        lambda model, x, y: model.learn_one(x, y), functools.partial(make, scale=None)
    )


def test_a_learner_that_drops_a_feature_is_caught() -> None:
    def bent(model: Any, x: dict[str, float], y: Any) -> None:
        model.learn_one(dict(list(x.items())[: max(1, len(x) - 1)]), y)

    assert sparse_and_whole_differ(bent, functools.partial(MAKERS[0], scale=None))


@EACH
def test_scores_and_probabilities_of_sparse_records_are_those_of_whole_ones(
    make: Callable[..., Any],
) -> None:
    """Scaled, too: an absent feature scores as a 0, though it does not move the centre as that does."""
    model = knowing(make)
    for x, y in stream(100):
        assert model.score_one(x) == model.score_one(whole(x))
        if model.two_classes:
            assert model.predict_proba_one(x) == model.predict_proba_one(whole(x))
        model.learn_one(x, y)


def test_with_scale_a_zero_is_a_value_and_an_absent_feature_none() -> None:
    absent, zero = knowing(MAKERS[0]), knowing(MAKERS[0])
    for x, y in stream(100):
        absent.learn_one(x, y)
        zero.learn_one(whole(x), y)
    assert absent.to_state()["given"].max() < 100 == zero.to_state()["given"].min() - 2
    assert absent.score_one(x) != zero.score_one(x)


@EACH
def test_rows_of_a_frame_are_the_records_bit_for_bit(make: Callable[[], Any]) -> None:
    one, many = knowing(make), knowing(make)
    for x, y in stream(40, most=8):
        one.learn_one(x, y)
        many.learn_many(pd.DataFrame([x]), pd.Series([y]))
    assert same(one, many)


@pytest.mark.parametrize(
    "make", [auc.Forest, ranking.Forest, auc.MulticlassForest], ids=lambda make: str(make())
)
def test_a_forest_has_the_bits_of_records_with_all_their_gaps(make: Any) -> None:
    """Long enough for nodes to part values, and for columns to gain."""
    few, all_of = make(seed=1, trees=5), make(seed=1, trees=5)
    for i, (x, y) in enumerate(stream(700)):
        label = float(y) if make is ranking.Forest else y
        if i < 2 or i % 11 == 0:
            x = whole(x)
        if i % 3:
            few.score_one(x)
        few.learn_one(x, label)
        all_of.learn_many(pd.DataFrame([x], columns=NAMES), pd.Series([label]))
        assert i % 50 or same(few, all_of)
    assert same(few, all_of)
    assert few.score_one(x) == all_of.score_many(pd.DataFrame([x], columns=NAMES))[0]


# A metric sums its norms over the room that it has, so there the last bits depend on the room.
GROWING = [model for model in LEARNERS if model.privacy is None and hasattr(model, "score_many")]


@pytest.mark.parametrize(
    "model", [m for m in GROWING if not isinstance(m, metric.PairOGD)], ids=lambda model: str(type(model))
)
def test_names_that_come_one_by_one(model: Any) -> None:
    """New columns in spare room are those of a learner that was saved before, which has none."""
    kept, restored = model.clone(), model.clone()
    restored.load_state(kept.to_state())
    high = getattr(model, "positive", True)
    low = (not high) if isinstance(high, bool) else "low" if isinstance(high, str) else 0
    for i, (x, y) in enumerate(stream(40, seed=3, most=4)):
        label = (high if y else low) if kept.two_classes else y
        for learner in (kept, restored):
            learner.learn_one(x, label if kept.two_classes else float(y))
        if i % 2:
            again = kept.clone()
            again.load_state(restored.to_state())
            restored = again
        assert same(kept, restored)


def known_words(make: Callable[[], Any], count: int = 8000, each: int = 40) -> tuple[Any, list[str]]:
    """A learner that knows so many names, from records that have a few of them."""
    names = [f"w{i}" for i in range(count)]
    model = make()
    for i in range(0, count, each):
        model.learn_one({name: 0.5 + j % 3 for j, name in enumerate(names[i : i + each])}, i % 2 == 0)
    return model, names


def bytes_of(call: Callable[[], Any]) -> int:
    """The most memory that a call has at once; it was made before."""
    call()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("make", [auc.PairOGD, auc.OAM, auc.Forest], ids=lambda make: make.__name__)
def test_a_sparse_record_takes_memory_by_its_own_features(make: Callable[[], Any]) -> None:
    model, names = known_words(lambda: make(seed=1))
    x = dict.fromkeys(names[100:130], 0.5)
    for record in (x, collections.Counter(x), {**x, "unknown": 1.0}):
        assert bytes_of(lambda record=record: model.score_one(record)) < 16_000
    assert bytes_of(lambda: model.learn_one(x, True)) < 16_000
    # All names as a list of numbers, which a record once took, are more.
    assert bytes_of(lambda: [x.get(name, 0.0) for name in names]) > 60_000


@pytest.mark.parametrize("make", [auc.PairOGD, auc.Forest], ids=lambda make: make.__name__)
def test_a_new_name_takes_memory_of_its_own(make: Callable[[], Any]) -> None:
    """All names are copied when the room has doubled, and not for each that is new."""
    model, names = known_words(lambda: make(seed=1), 5000)
    new = iter(range(100))

    def learn() -> None:
        model.learn_one({names[3]: 1.0, f"new{next(new)}": 1.0}, True)

    assert int(model._state[1]) > len(model.feature_names)
    assert bytes_of(learn) < 16_000


def test_words_of_texts_are_learned() -> None:
    texts = [("win a prize now", True), ("see you at lunch", False), ("a prize for you", True)] * 20
    bag = feature_extraction.BagOfWords()
    model = bag | auc.PairOGD()
    for text, y in texts:
        model.learn_one(text, y)
    p = {text: model.predict_proba_one(text)[True] for text in ("prize", "lunch", "see you at lunch")}
    assert p["prize"] > 0.5 > p["see you at lunch"]
    assert p["prize"] > p["lunch"]


@pytest.mark.parametrize("bad", [[1.0], float("inf"), 1e60], ids=str)
@pytest.mark.parametrize("name", [NAMES[3], "new"])
def test_a_sparse_record_that_is_refused_changes_nothing(name: str, bad: Any) -> None:
    model, other = knowing(MAKERS[0]), knowing(MAKERS[0])
    for x, y in stream(20):
        with pytest.raises(RecordError, match=name):
            model.learn_one({**x, name: bad}, y)
        with pytest.raises(RecordError, match=name):
            model.score_one({**x, name: bad})
        model.learn_one(x, y)
        other.learn_one(x, y)
    assert same(model, other)


@EACH
def test_records_that_grow_longer_find_room(make: Callable[..., Any]) -> None:
    """Rows of a buffer have room for the longest record so far, which may be scored before it is learned."""
    model, restored = make(), make()
    for i in range(40):
        x = {f"a{j}": float(j) for j in range(i % 9 + 1)}
        for x_ in (x, {name: 1.0 - value for name, value in reversed(x.items())}):
            y = i % 2 == 0
            assert model.score_one(x_) == restored.score_one(x_)
            model.learn_one(x_, y)
            restored.learn_one(x_, y)
            again = make()
            again.load_state(restored.to_state())
            restored = again
            assert same(model, restored)
    alone = make()
    for part in ({"a": 1.0}, {"b": 1.0}):
        alone.learn_one(part, True)
    assert alone.score_one({"a": 1.0, "b": 2.0}) == 0.0
    alone.learn_one({"a": 1.0, "b": 2.0}, False)
    assert alone.records == 3
