"""Labels that come late, for people without Kafka: against River, the table of labels, and brute force."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import label_table as naive
from river import compose, datasets, evaluate, linear_model, metrics, preprocessing

from streampair import auc
from streampair.engine.labels import LabelTable, digest_ids
from streampair.errors import ConfigError
from streampair.evaluation import delayed_labels, delayed_progressive_val_score

ORDERS = ["wait", "arrival"]
NOON = dt.datetime(2026, 1, 1, 12)


def streams(delays: Any, unit: Any = 1) -> tuple[list[Any], list[Any], list[Any]]:
    """600 records as River takes them, with many at the same moment; the same as events and as labels."""
    rng, start = random.Random(5), NOON if isinstance(unit, dt.timedelta) else 0
    rows, moment = [], 0
    for x, y in itertools.islice(datasets.Phishing(), 600):
        moment += rng.choice((0, 0, 1, 3))
        rows.append(({**x, "moment": start + moment * unit, "delay": delays(rng) * unit}, y))
    events = [(x["moment"], i, x) for i, (x, _) in enumerate(rows)]
    labels = sorted(((x["moment"] + x["delay"], i, y) for i, (x, y) in enumerate(rows)), key=lambda v: v[0])
    return rows, events, labels


def models() -> Iterator[Any]:
    yield "weights", auc.PairOGD(), metrics.ROCAUC
    yield "weights", linear_model.LogisticRegression(), metrics.Accuracy
    yield "weights", linear_model.LinearRegression(), metrics.MAE
    yield "", preprocessing.StandardScaler() | linear_model.LogisticRegression(), metrics.LogLoss


@pytest.mark.parametrize("unit", [1, 0.1, dt.timedelta(hours=1)], ids=["whole", "float", "time"])
@pytest.mark.parametrize("after", [0, 1, 4, 60])
def test_wait_is_a_number_as_delay_of_river(after: int, unit: Any) -> None:
    rows, events, labels = streams(lambda rng: rng.randint(0, after), unit)
    compare(rows, events, labels, after * unit, "wait", delay=after * unit)


@pytest.mark.parametrize("unit", [1, 0.1, dt.timedelta(hours=1)], ids=["whole", "float", "time"])
@pytest.mark.parametrize("most", [0, 1, 4, 60])
def test_arrival_is_a_function_as_delay_of_river(most: int, unit: Any) -> None:
    rows, events, labels = streams(lambda rng: rng.randint(0, most), unit)
    compare(rows, events, labels, most * unit, "arrival", delay=lambda x, y: x["delay"])


def compare(rows: Any, events: Any, labels: Any, after: Any, order: str, delay: Any) -> None:
    for attribute, model, kind in models():
        ours, theirs = model.clone(), model.clone()
        # The time is a feature of River's stream; a step in front takes it out for both.
        ours, theirs = (compose.Discard("moment", "delay") | each for each in (ours, theirs))
        metric = delayed_progressive_val_score(events, labels, ours, kind(), after=after, order=order)
        wanted = evaluate.progressive_val_score(iter(rows), theirs, kind(), moment="moment", delay=delay)
        assert metric.get() == pytest.approx(wanted.get(), abs=1e-12)
        assert wanted.get() != kind().get()
        probe = rows[-1][0]
        if attribute:
            weights, others = (getattr(each[-1], attribute) for each in (ours, theirs))
            assert weights == pytest.approx(others, abs=1e-12)
            assert any(weights.values())
        else:
            assert ours.predict_proba_one(probe) == pytest.approx(theirs.predict_proba_one(probe), abs=1e-12)


# ---- brute force -----------------------------------------------------------------------------------------

IDS = "abc"
TIMES = st.integers(0, 30)
EVENTS = st.lists(st.tuples(TIMES, st.sampled_from(IDS)), max_size=25).map(
    lambda rows: [(t, id, {"n": float(i)}) for i, (t, id) in enumerate(sorted(rows, key=lambda r: r[0]))]
)
LABELS = st.lists(st.tuples(TIMES, st.sampled_from(IDS), st.integers(1, 3)), max_size=25).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)
FACTS = {"after": st.integers(0, 12), "lateness": st.integers(0, 6), "absent": st.sampled_from([None, 9])}


def expected(
    events: list[Any], labels: list[Any], after: int, lateness: int, absent: int | None, order: str
) -> list[tuple[int, int | None]]:
    """All events joined with all labels at once, and what happens to each sorted by when it does."""
    table = naive.LabelTable(after, lateness)
    table.add([naive.Label(id.encode(), y, t, (0, n)) for n, (t, id, y) in enumerate(labels)])
    actions: list[tuple[Any, tuple[int, int | None]]] = []
    for i, (moment, id, _) in enumerate(events):
        actions.append(((moment, 2, i, 0), (i, None)))
        taken = [v for v in table.labels if v.id == id.encode() and not v.used]
        code, _ = table.join(id.encode(), moment)
        # Due at its own moment: after itself, and before the next event.
        due = (moment + after + lateness, 1, i, 0) if after + lateness else (moment, 2, i, 1)
        if not code:
            if absent is not None:
                actions.append((due, (i, absent)))
            continue
        since = min((v for v in taken if v.used and v.time >= moment), key=lambda v: v.place, default=None)
        if order == "wait" or since is None:
            actions.append((due, (i, code)))
        elif since.time == moment:
            actions.append(((moment, 2, i, 1), (i, since.code)))
        else:
            actions.append(((since.time, 0, since.place[1], 0), (i, since.code)))
    return [action for _, action in sorted(actions, key=lambda action: action[0])]


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=500)
@given(events=EVENTS, labels=LABELS, facts=st.fixed_dictionaries(FACTS))
def test_against_brute_force(order: str, events: list[Any], labels: list[Any], facts: dict[str, Any]) -> None:
    steps = list(delayed_labels(iter(events), iter(labels), order=order, **facts))
    assert [(i, y) for i, _, y in steps] == expected(events, labels, order=order, **facts)
    assert all(x == events[i][2] for i, x, _ in steps)


@settings(max_examples=200)
@given(events=EVENTS, labels=LABELS, facts=st.fixed_dictionaries(FACTS))
def test_a_lane_joins_the_same(events: list[Any], labels: list[Any], facts: dict[str, Any]) -> None:
    """The table of labels of a worker gives each event that is learned when it is due the same label."""
    table = LabelTable(after=facts["after"], lateness=facts["lateness"])
    if labels:
        times, ids, codes = zip(*labels, strict=True)
        table.add(digest_ids([id.encode() for id in ids]), codes, times, 0, range(len(labels)))
    joined = table.join(digest_ids([id.encode() for _, id, _ in events]), [t for t, _, _ in events])
    steps = delayed_labels(events, labels, **facts)
    found = {i: y for i, _, y in steps if y is not None}
    wanted = ((i, code or facts["absent"]) for i, code in enumerate(joined.codes.tolist()))
    assert found == {i: y for i, y in wanted if y is not None}


@pytest.mark.parametrize(("order", "features"), [("wait", 120), ("arrival", 70)])
def test_only_what_is_pending_is_kept(order: str, features: int) -> None:
    """Events without labels, labels without events, and repeated labels all leave."""
    alive = Counter[type]()

    class Counted:
        def __init__(self, *_: Any) -> None:
            alive[type(self)] += 1

        def __del__(self) -> None:
            alive[type(self)] -= 1

    class Features(Counted, dict[str, float]):
        def __copy__(self) -> dict[str, float]:
            return {}

    class Id(Counted, int):
        pass

    # Half of the events have a label, three moments later, and again five moments later.
    events = ((t, Id(t), Features()) for t in range(3000))
    labels = ((t, Id(t - 3 if t % 2 else t - 5 if t % 4 else -t), True) for t in range(3000))
    for _ in delayed_labels(events, labels, after=100, lateness=2, order=order):
        assert alive[Features] < features
        assert alive[Id] < 250


def test_the_features_of_a_question_are_a_copy() -> None:
    steps = delayed_labels([(0, 0, {"a": 1.0})], [(1, 0, True)], after=5)
    next(steps)[1].clear()
    assert list(steps) == [(0, {"a": 1.0}, True)]


def test_an_endless_stream_is_read_as_far_as_it_is_needed() -> None:
    events = ((t, t, {}) for t in itertools.count())
    labels = ((t + 1, t, True) for t in itertools.count())
    steps = delayed_labels(events, labels, after=2)
    assert [(i, y) for i, _, y in itertools.islice(steps, 6)] == [
        *((0, None), (1, None), (0, True), (2, None), (1, True), (3, None))
    ]
    # Labels alone do not keep it going.
    endless = ((t, t - 1, True) for t in itertools.count())
    assert [y for *_, y in delayed_labels([(0, 0, {})], endless, after=2)] == [None, True]


def test_the_metric_compares_what_was_predicted_at_arrival() -> None:
    class Last:
        """Predicts the label that it has learned last."""

        last: Any = None

        def predict_one(self, x: Any) -> Any:
            return self.last

        def learn_one(self, x: Any, y: Any) -> None:
            self.last = y

    class Pairs(metrics.Accuracy):
        seen: list[Any] = []  # noqa: RUF012

        def works_with(self, model: Any) -> bool:
            return True

        def update(self, y_true: Any, y_pred: Any) -> None:
            self.seen.append((y_true, y_pred))

    events = [(0, "a", {}), (2, "b", {}), (4, "c", {}), (9, "d", {})]
    labels = [(3, "b", 2), (4, "a", 1), (5, "d", 4)]
    delayed_progressive_val_score(events, labels, Last(), Pairs(), after=4, absent=0)
    # a is due at 4, before c is predicted; b at 6, c at 8. Nothing was learned before a and b.
    assert Pairs.seen == [(0, 1), (0, 0)]


SECONDS = 1_704_067_200  # 2024-01-01T00:00:00Z
EVENT, LABEL = [(0, "a", {}), (1, "b", {})], [(0, "a", True)]


@pytest.mark.parametrize(
    ("events", "labels", "options", "message"),
    [
        (EVENT[::-1], LABEL, {}, "event 1 is at 0, and the one before at 1. Fix: sort events by moment"),
        (EVENT, [(2, "a", 1), (1, "a", 1)], {}, "label 1 is at 1, .* Fix: sort labels by moment"),
        ([(float("nan"), "a", {})], LABEL, {}, "event 0 is at nan"),
        (EVENT, LABEL, {"order": "soon"}, "give 'wait' or 'arrival'"),
        (EVENT, LABEL, {"after": -1}, "after is -1"),
        (EVENT, LABEL, {"after": float("nan")}, "after is nan"),
        (EVENT, LABEL, {"after": "30d"}, "after is '30d'"),
        (EVENT, LABEL, {"lateness": -1}, "lateness -1"),
        (EVENT, LABEL, {"lateness": dt.timedelta(1)}, "two timedeltas"),
        (EVENT, LABEL, {"after": dt.timedelta(1)}, "event 0 is at 0: .* timedeltas"),
        ([(NOON, "a", {})], LABEL, {}, "event 0 is at datetime"),
        ([(0, None, {})], LABEL, {}, "event 0 has no id"),
        (EVENT, [(0, "a", None)], {}, "label 0 has no value"),
        (
            [(NOON, "a", {})],
            [(NOON.replace(tzinfo=dt.UTC), "a", True)],
            {"after": dt.timedelta(1)},
            "cannot be compared: .* time zones everywhere, or nowhere",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(events: Any, labels: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(delayed_labels(events, labels, **{"after": 1, **options}))


DAY = 86_400


@pytest.mark.parametrize(
    ("event", "label", "after", "message"),
    [
        (SECONDS, SECONDS * 1000, DAY, "look like seconds, .* labels like milliseconds.* in one unit"),
        (SECONDS * 1000.0, SECONDS, DAY, "look like milliseconds, .* labels like seconds"),
        (SECONDS, SECONDS, 30 * DAY * 1000, "until after 2100.* Fix: give after in seconds"),
    ],
)
def test_moments_in_two_units_are_refused(event: Any, label: Any, after: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(delayed_labels([(event, "a", {})], [(label, "a", True)], after=after))


def test_moments_in_one_unit_or_in_none_are_accepted() -> None:
    for moment, after in ((SECONDS, DAY), (SECONDS * 1000, DAY * 1000), (0, 1e12), (12.5, 3)):
        steps = delayed_labels([(moment, "a", {})], [(moment + 2, "a", True)], after=after)
        assert [y for *_, y in steps] == [None, True]
    assert len(list(delayed_labels([(SECONDS, "a", {})], [], after=DAY))) == 1


def test_a_wrong_argument_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="order"):
        delayed_labels([], [], after=1, order="soon")


def test_a_metric_for_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="MAE is not a metric for PairOGD"):
        delayed_progressive_val_score([], [], auc.PairOGD(), metrics.MAE(), after=1)
