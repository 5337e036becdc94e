"""What River's checks leave out, on every learner of the package: add a new learner to `LEARNERS`.

River never feeds NaN, text or ``{}``, lets a learner pass that keeps every record, and asks nothing of
snapshots, of names that never end or of predictions that change what they look at.
"""

from __future__ import annotations

import copy
import math
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampair import auc, buffers, losses, metric, ranking
from streampair.engine.envelope import pack
from streampair.errors import RecordError

KEY = bytes(range(32))
NAMES = [f"f{i}" for i in range(5)]

LEARNERS: list[Any] = [
    auc.PairOGD(seed=0),
    auc.PairOGD(losses.Logistic(), buffers.Reservoir(8), l2=0.01, average=False, seed=1),
    auc.PairOGD(losses.SquaredHinge(), buffers.Reservoir(8, replacement=True), seed=2),
    auc.PairOGD(losses.Logistic(), buffers.ClassReservoir(4), seed=3),
    auc.PairOGD(losses.Logistic(), buffers.FullHistory(), seed=4),
    auc.PairOGD(losses.Logistic(), buffers.FullHistory("float32"), seed=4),
    auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=5),
    auc.OAM(size=4, seed=6),
    auc.SPAUC(l2=0.01),
    ranking.PairOGD(seed=7),
    ranking.PairOGD(losses.MinimumErrorEntropy(0.5), buffers.FullHistory(), seed=8),
    ranking.PairOGD(losses.Square(), buffers.FullHistory(), seed=9),
    metric.PairOGD(seed=10),
    metric.PairOGD(losses.Logistic(), buffers.Reservoir(8), l2=0.01, psd=False, seed=11),
    metric.PairOGD(losses.Logistic(), buffers.FullHistory(), seed=12),
    # Private ones with a key: under it, and only then, a copy draws the same noise.
    auc.PairFTRL(warmup=100, noise_key=KEY),
    auc.PairFTRL(horizon=5000, delta=1e-4, warmup=100, features=NAMES, noise_key=KEY),
    auc.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, warmup=100, noise_key=KEY),
    auc.OnPairC(1.0, 1e-4, 5000, buffer=buffers.Reservoir(8), releases=10, warmup=100, noise_key=KEY),
    auc.NoisyOGD(1.0, 1e-4, warmup=100, noise_key=KEY),
    ranking.PairFTRL(warmup=20, noise_key=KEY),
    ranking.OnPairC(1.0, 1e-4, 5000, releases=500, warmup=100, noise_key=KEY),
    metric.PairFTRL(horizon=5000, warmup=0, noise_key=KEY),
    metric.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, warmup=0, noise_key=KEY),
    metric.NoisyOGD(warmup=0, features=NAMES, noise_key=KEY),
]


def name_of(model: Any) -> str:
    return f"{type(model).__module__.split('.')[-1]}.{type(model).__name__}"


every_learner = pytest.mark.parametrize(
    "model", LEARNERS, ids=[f"{name_of(m)}-{i}" for i, m in enumerate(LEARNERS)]
)


@pytest.fixture
def fresh(model: Any) -> Any:
    return copy.deepcopy(model)


def is_private(model: Any) -> bool:
    return model.privacy is not None


def keeps_all(model: Any) -> bool:
    """Whether memory grows by design: with the records, up to a limit that is a test of its own."""
    full = isinstance(getattr(model, "buffer", None), buffers.FullHistory)
    return full and not isinstance(model.loss, losses.Square)


def label(model: Any, rng: random.Random) -> Any:
    if type(model).__module__ == "streampair.ranking":
        return rng.uniform(-1, 1)
    return rng.choice("abc") if hasattr(model, "metric_") else rng.random() < 0.4


def stream(model: Any, n: int, seed: int = 0) -> list[tuple[dict[str, float], Any]]:
    rng = random.Random(seed)
    return [({name: rng.gauss(0, 0.5) for name in NAMES}, label(model, rng)) for _ in range(n)]


def taught(model: Any, n: int) -> Any:
    for x, y in stream(model, n):
        model.learn_one(x, y)
    return model


def frozen(model: Any) -> bytes:
    """All that was learned, as bytes; not that it is a copy, nor what the column of labels was called."""
    return pack({**model.to_state(), "continued": None, "restarts": None, "y_name": None})


def looks(model: Any) -> list[Callable[[Any], Any]]:
    """Everything that looks at one record and learns nothing."""
    names = ("score_one", "predict_one", "predict_proba_one", "transform_one", "design")
    return [getattr(model, name) for name in names if hasattr(model, name)]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit; a dict whatever its order."""
    return bool((a == b).all()) if isinstance(a, np.ndarray) else bool(a == b)


BAD_VALUES = [math.nan, math.inf, -math.inf, None, "1.5", b"1.5", [1.0], 1j, np.float64("nan"), 10**400]


@every_learner
@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda v: str(v)[:12])
@pytest.mark.parametrize("learned", [0, 12])
def test_bad_values(fresh: Any, value: Any, learned: int) -> None:
    taught(fresh, learned)
    x = {**stream(fresh, 1)[0][0], "f3": value}
    _check_bad_record(fresh, x, "'f3'")
    if not is_private(fresh):  # a private learner leaves unknown names out
        _check_bad_record(fresh, {**stream(fresh, 1)[0][0], "unknown": value}, "'unknown'")


@every_learner
@pytest.mark.parametrize("x", [{}, None, 3, "text", [1.0], np.zeros(5)], ids=lambda v: str(v)[:12])
@pytest.mark.parametrize("learned", [0, 12])
def test_no_record_at_all(fresh: Any, x: Any, learned: int) -> None:
    _check_bad_record(taught(fresh, learned), x, "")


def _check_bad_record(model: Any, x: Any, named: str) -> None:
    """Refused with an error that names the way out, and nothing changes; or, if private, a null slot."""
    before = frozen(model)
    for look in looks(model):
        with pytest.raises(RecordError, match=f"{named}.*Fix: "):
            look(x)
    assert frozen(model) == before
    y = stream(model, 1)[0][1]
    if not is_private(model):
        with pytest.raises(RecordError, match=f"{named}.*Fix: "):
            model.learn_one(x, y)
        assert frozen(model) == before
        return
    slots, weights = model.slots, model.weights
    model.learn_one(x, y)
    assert model.slots == slots + 1
    assert all(math.isfinite(value) for value in model.weights.values())
    assert model.null_slots + model._pending >= 1 or weights == {}


@every_learner
@pytest.mark.parametrize("y", [None, math.nan, np.array([True, False]), [1]], ids=lambda v: str(v)[:12])
def test_bad_labels(fresh: Any, y: Any) -> None:
    taught(fresh, 12)
    before, x = frozen(fresh), stream(fresh, 1)[0][0]
    if is_private(fresh) or (isinstance(y, list) and isinstance(fresh, auc.PairOGD | auc.OAM | auc.SPAUC)):
        fresh.learn_one(x, y)  # a null slot; or one more label that is not the positive one
        assert fresh.records == 13
        return
    with pytest.raises(RecordError, match="Fix: ") as caught:
        fresh.learn_one(x, y)
    assert caught.value.stage == "label"
    assert frozen(fresh) == before


@every_learner
def test_predictions_change_nothing(fresh: Any) -> None:
    taught(fresh, 25)
    before, pickled = frozen(fresh), pickle.dumps(fresh)
    probes = [stream(fresh, 1, seed=9)[0][0], {"f0": 1.0}, {"f1": 2.0, "unknown": 3.0}]
    for look in looks(fresh):
        first = [look(x) for x in probes]
        assert all(same(look(x), seen) for x, seen in zip(probes, first, strict=True))
    X = pd.DataFrame([x for x, _ in stream(fresh, 6, seed=3)])
    for name in ("score_many", "predict_many", "predict_proba_many", "transform_many"):
        if hasattr(fresh, name):
            getattr(fresh, name)(X)
            getattr(fresh, name)(X[["f2"]])
    assert frozen(fresh) == before
    assert pickle.dumps(fresh) == pickled


@every_learner
@pytest.mark.parametrize("way", ["state", "pickle", "deepcopy"])
@pytest.mark.parametrize("learned", [0, 1, 2, 30])
def test_a_snapshot_continues_bit_for_bit(fresh: Any, way: str, learned: int) -> None:
    records = stream(fresh, 50)
    for x, y in records[:learned]:
        fresh.learn_one(x, y)
    if way == "state":
        twin = fresh.clone()
        twin.load_state(fresh.to_state())
    else:
        twin = pickle.loads(pickle.dumps(fresh)) if way == "pickle" else copy.deepcopy(fresh)
    assert frozen(twin) == frozen(fresh)
    for x, y in records[learned:]:
        for look, other in zip(looks(twin), looks(fresh), strict=True):
            assert same(look(x), other(x))
        twin.learn_one(x, y)
        fresh.learn_one(x, y)
    assert frozen(twin) == frozen(fresh)


@every_learner
def test_the_order_of_features_does_not_matter(fresh: Any) -> None:
    rng = random.Random(5)
    twin = copy.deepcopy(fresh)
    for x, y in stream(fresh, 30):
        names = list(x)
        rng.shuffle(names)
        shuffled = {name: x[name] for name in names}
        fresh.learn_one(x, y)
        twin.learn_one(shuffled, y)
        for look, other in zip(looks(fresh), looks(twin), strict=True):
            assert same(look(x), other(shuffled))
    assert frozen(twin) == frozen(fresh)


@pytest.mark.parametrize("model", [m for m in LEARNERS if not keeps_all(m)], ids=name_of)
def test_memory_stays_where_it_is(fresh: Any) -> None:
    # Private ones begin with a warm-up; then their buffers fill.
    for x, _ in stream(taught(fresh, 700), 1):
        looks(fresh)[0](x)
    size, saved = fresh._raw_memory_usage, len(pickle.dumps(fresh))
    for x, y in stream(fresh, 1500, seed=1):
        fresh.learn_one(x, y)
        looks(fresh)[0](x)
    assert fresh._raw_memory_usage <= size + 256
    assert len(pickle.dumps(fresh)) <= saved + 256


@every_learner
def test_names_that_never_end(fresh: Any) -> None:
    """An explicit limit on names; or, if private, the names of the first record, and the others counted."""
    if hasattr(fresh, "max_features"):
        fresh = fresh.clone({"max_features": 12})
    taught(fresh, 10)
    private = is_private(fresh)
    for t in range(60):
        before = frozen(fresh)
        x, y = stream(fresh, 1, seed=t)[0]
        x = {**x, f"id-{t}": 1.0}
        if private or t < 7:
            fresh.learn_one(x, y)
            continue
        with pytest.raises(RecordError, match=r"max_features=12.*Fix: "):
            fresh.learn_one(x, y)
        assert frozen(fresh) == before
    assert len(fresh.feature_names) == (5 if private else 12)
    if private:
        assert fresh.ignored_features == 60


# ---- many records ------------------------------------------------------------------------------------------


def _many(model: Any, n: int) -> tuple[pd.DataFrame, pd.Series]:
    records = stream(model, n)
    return pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records])


@every_learner
@pytest.mark.parametrize("as_array", [False, True])
def test_many_records_are_the_same_as_one_by_one(fresh: Any, as_array: bool) -> None:
    if as_array and getattr(fresh, "features", None):
        fresh = fresh.clone({"features": list(range(5))})
    many = copy.deepcopy(fresh)
    X, y = _many(fresh, 60)
    if as_array:
        X.columns = range(5)
    for row, target in zip(X.to_dict("records"), y.tolist(), strict=True):
        fresh.learn_one(row, target)
    for part in (slice(0, 1), slice(1, 40), slice(40, 60)):
        rows, labels = (X[part].to_numpy(), y[part].to_numpy()) if as_array else (X[part], y[part])
        many.learn_many(rows, labels)
    assert frozen(many) == frozen(fresh)


def _python_calls(run: Callable[[], None]) -> int:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@every_learner
def test_many_records_are_one_call_of_a_kernel(model: Any) -> None:
    """The number of Python's calls does not depend on the number of rows."""
    private = {"features": NAMES, "noise_key": None, "warmup": 0}
    options: dict[str, Any] = private if is_private(model) else {}
    if hasattr(model, "releases"):
        options["releases"] = 10
    fresh = model.clone(options)
    X, y = _many(fresh, 900)
    fresh.learn_many(X[:300], y[:300])  # what happens once: names, room, the draws of noise in advance
    short, long = (X[300:350], y[300:350]), (X[350:900], y[350:900])
    few = _python_calls(lambda: fresh.learn_many(*short))
    many = _python_calls(lambda: fresh.learn_many(*long))
    assert many <= few + 200
    # A loop over the records is caught.
    records = list(zip(X[350:].to_dict("records"), y[350:].tolist(), strict=True))
    looped = _python_calls(lambda: [fresh.learn_one(x, target) for x, target in records] and None)
    assert looped > few + 200


# ---- Python's global lock ----------------------------------------------------------------------------------


class Counter(threading.Thread):
    """Counts in Python, which takes the global lock; its speed is per second that a processor had for it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.stop = False
        self.task = threading.Event()

    def run(self) -> None:
        self.number = threading.get_native_id()
        self.task.set()
        while not self.stop:
            self.count += 1

    def clock(self) -> float:
        """Seconds, less those in which the thread was ready and the machine had no processor for it."""
        now = time.perf_counter()
        try:
            waited = Path(f"/proc/self/task/{self.number}/schedstat").read_text().split()[1]
        except (OSError, IndexError):  # not Linux: a busy machine may look like a held lock
            return now
        return now - int(waited) * 1e-9

    def speed(self, work: Callable[[], Any]) -> float:
        start, count = self.clock(), self.count
        work()
        return (self.count - count) / (self.clock() - start)


def test_python_goes_on_while_a_batch_is_learned() -> None:
    """A thread that counts keeps 80 % of its speed; beside a call that holds the lock it stands still."""
    model = auc.PairOGD(losses.Logistic(), buffers.FIFO(400))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10_000, 10)), rng.random(10_000) < 0.5
    model.learn_many(X[:10], y[:10])
    counter = Counter()
    counter.start()
    counter.task.wait()
    try:
        for _ in range(5):  # whatever else the machine does can only make it slower
            idle = counter.speed(lambda: threading.Event().wait(0.1))
            share = counter.speed(lambda: model.learn_many(X, y)) / idle
            held = counter.speed(lambda: pow(7, 400_000)) / idle
            if share >= 0.8:
                break
    finally:
        counter.stop = True
        counter.join()
    assert share >= 0.8
    assert held < 0.5
