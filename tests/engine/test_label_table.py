"""Labels that come on another topic: joined by time alone, used once, and gone by time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import label_table as naive
from naive.label_table import Label

from streampair.engine.labels import LabelTable, digest_ids, place_of_label, table_bytes
from streampair.errors import ConfigError, LaneStoppedError, SnapshotError, StoreError

IDS = [b"a", b"b", b"c", b""]


class SmallTable(LabelTable):
    """Segments of five labels: a few labels are in many of them."""

    segment_rows = 5


def add(table: LabelTable, labels: list[Label]) -> list[tuple[int, int]]:
    """Add labels one partition after the other; the places of those that were too late."""
    late = []
    for partition in sorted({label.place[0] for label in labels}):
        those = [label for label in labels if label.place[0] == partition]
        offsets = [label.place[1] for label in those]
        indices = table.add(
            digest_ids([label.id for label in those]),
            [label.code for label in those],
            [label.time for label in those],
            partition,
            offsets,
        )
        late += [(partition, offsets[i]) for i in indices]
    return late


def join(table: LabelTable, events: list[tuple[bytes, int]]) -> tuple[list[tuple[int, int]], int, int]:
    """Code and time of each event's label, contradictions and repeats."""
    joined = table.join(digest_ids([id for id, _ in events]), [time for _, time in events])
    return (
        list(zip(joined.codes.tolist(), joined.times.tolist(), strict=True)),
        joined.contradictions,
        joined.repeats,
    )


@st.composite
def label_streams(draw: st.DrawFn) -> list[Label]:
    """Labels of up to three partitions, in the order of their offsets within each."""
    kinds = st.tuples(st.sampled_from(IDS), st.integers(1, 3), st.integers(0, 60), st.integers(0, 2))
    return [
        Label(id, code, time, (partition, 2 * n))
        for n, (id, code, time, partition) in enumerate(draw(st.lists(kinds, max_size=40)))
    ]


EVENTS = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 60)), max_size=8)
STEPS = st.lists(st.one_of(label_streams(), EVENTS, st.integers(0, 80)), max_size=8)


def interleaved(labels: list[Label], draw: st.DrawFn) -> list[Label]:
    """The same labels in another order, in which each partition keeps its own."""
    waiting: dict[int, Iterator[Label]] = {}
    for partition in {label.place[0] for label in labels}:
        waiting[partition] = iter([label for label in labels if label.place[0] == partition])
    order = draw(st.permutations([label.place[0] for label in labels]))
    return [next(waiting[partition]) for partition in order]


@pytest.mark.parametrize("on_disk", [False, True])
@settings(max_examples=300)
@given(steps=STEPS, after=st.integers(0, 30), lateness=st.integers(0, 10))
def test_against_the_reference(
    tmp_path_factory: Any, on_disk: bool, steps: list[Any], after: int, lateness: int
) -> None:
    directory = tmp_path_factory.getbasetemp() if on_disk else None
    table = SmallTable(after=after, lateness=lateness, directory=directory)
    reference, offset = naive.LabelTable(after, lateness), 0
    for step in steps:
        if isinstance(step, int):
            assert table.expire(step) == reference.expire(step)
        elif step and isinstance(step[0], Label):
            labels = [Label(v.id, v.code, v.time, (v.place[0], v.place[1] + offset)) for v in step]
            offset += 4  # some offsets of the next step are those of this one: they are passed over
            labels.sort(key=lambda label: label.place)
            assert add(table, labels) == reference.add(labels)
        else:
            before = reference.contradictions, reference.repeats
            wanted = [reference.join(*event) for event in step]
            counts = reference.contradictions - before[0], reference.repeats - before[1]
            assert join(table, step) == (wanted, *counts)
        assert len(table) == len(reference.labels)
        assert table.unused == sum(not label.used for label in reference.labels)
    table.close()


def owner(label: Label, events: list[tuple[bytes, int]], after: int, lateness: int) -> int | None:
    """The first event for which a label is in time."""
    for index, (name, time) in enumerate(events):
        if name == label.id and time - lateness <= label.time <= time + after:
            return index
    return None


@settings(max_examples=300)
@given(
    data=st.data(),
    labels=label_streams().filter(bool),
    events=EVENTS,
    after=st.integers(0, 30),
    lateness=st.integers(0, 10),
)
def test_a_label_changes_the_label_of_one_event_alone(
    data: st.DataObject, labels: list[Label], events: list[tuple[bytes, int]], after: int, lateness: int
) -> None:
    """docs/privacy, Lemma 96: also of ids that several events have."""
    number = data.draw(st.integers(0, len(labels) - 1))
    code = data.draw(st.sampled_from([None, 1, 2, 3]))
    others = [label for n, label in enumerate(labels) if n != number or code is not None]
    if code is not None:
        others[number] = dataclasses.replace(labels[number], code=code)
    found = []
    for each in (labels, others):
        table = SmallTable(after=after, lateness=lateness)
        add(table, each)
        found.append(join(table, events)[0])
    changed = {index for index, pair in enumerate(zip(*found, strict=True)) if pair[0] != pair[1]}
    assert changed <= {owner(labels[number], events, after, lateness)}


@settings(max_examples=200)
@given(labels=label_streams(), events=EVENTS, due=st.integers(0, 40))
def test_the_first_label_is_the_one_that_an_event_would_use(
    labels: list[Label], events: list[tuple[bytes, int]], due: int
) -> None:
    table = SmallTable(after=20, lateness=5)
    add(table, labels)
    table.expire(due)
    found, times, places = table.first(digest_ids([id for id, _ in events]), [time for _, time in events])
    known = {label.place: label for label in labels}
    for event, is_there, time, place in zip(
        events, found.tolist(), times.tolist(), places.tolist(), strict=True
    ):
        fresh = SmallTable(after=20, lateness=5)
        add(fresh, labels)
        fresh.expire(due)
        code, wanted = join(fresh, [event])[0][0]
        assert is_there == (code > 0)
        if is_there:
            assert (known[place_of_label(place)].code, time) == (code, wanted)


@settings(max_examples=200)
@given(data=st.data(), labels=label_streams(), due=st.integers(0, 60))
def test_the_order_in_which_partitions_are_read_does_not_matter(
    data: st.DataObject, labels: list[Label], due: int
) -> None:
    """Two races: one reads all at once, the other in parts of another order."""
    first, second = SmallTable(after=20, lateness=5), SmallTable(after=20, lateness=5)
    add(first, labels)
    for label in interleaved(labels, data.draw):
        add(second, [label])
    for events in data.draw(st.lists(EVENTS, max_size=3)):
        assert join(first, events) == join(second, events)
    assert first.used() == second.used()
    assert first.expire(due) == second.expire(due)
    assert first.used() == second.used()


@settings(max_examples=200)
@given(data=st.data(), labels=label_streams(), events=EVENTS, due=st.integers(0, 40), cut=st.integers(0, 8))
def test_after_a_restart_the_same_labels_are_used(
    data: st.DataObject, labels: list[Label], events: list[tuple[bytes, int]], due: int, cut: int
) -> None:
    """A snapshot holds what was used before it, and the log which events were joined since."""
    table = SmallTable(after=20, lateness=5)
    add(table, labels)
    join(table, events[:cut])
    table.expire(due)
    snapshot = table.used()
    since = [(id, time) for id, time in events[cut:] if time >= due]
    codes, _, _ = join(table, since)

    again = SmallTable(after=20, lateness=5)
    again.load_used(snapshot)
    again.expire(due)
    assert again.used() == snapshot  # a snapshot before the topic was read again loses nothing
    for label in interleaved(labels, data.draw):
        add(again, [label])
        assert again.used()
    again.mark_used(*(digest_ids([id for id, _ in since]), [t for _, t in since], [c for c, _ in codes]))
    assert again.used() == table.used()
    assert (len(again), again.unused) == (len(table), table.unused)
    later = [(id, due + n) for n, id in enumerate(IDS)]
    assert join(again, later) == join(table, later)


def test_the_same_topic_may_be_read_twice() -> None:
    table = LabelTable(after=10, lateness=0)
    labels = [Label(b"a", 1, 5, (0, n)) for n in range(3)]
    add(table, labels)
    assert join(table, [(b"a", 0)]) == ([(1, 5)], 0, 2)
    add(table, labels)
    assert len(table) == 3
    assert join(table, [(b"a", 0)]) == ([(0, 0)], 0, 0)


def test_times_at_the_ends_of_int64_do_not_wrap_around() -> None:
    low, high = -(2**63), 2**63 - 1
    table = LabelTable(after=high, lateness=high)
    add(table, [Label(b"a", 1, low, (0, 0)), Label(b"b", 2, high, (0, 1))])
    assert join(table, [(b"a", high), (b"b", low), (b"a", low), (b"b", high)])[0] == [
        *((0, 0), (0, 0)),
        *((1, low), (2, high)),
    ]
    assert table.expire(low) == table.expire(high) == []


def test_many_labels_of_one_id() -> None:
    """More than an array of what was taken has room for, in one segment and in several."""
    for kind in (LabelTable, SmallTable):
        table = kind(after=1000, lateness=0)
        add(table, [Label(b"a", 1 + n % 2, 1000 - n, (0, n)) for n in range(1000)])
        assert join(table, [(b"a", 0)]) == ([(2, 1)], 500, 499)
        assert table.unused == 0


def test_memory_is_given_back_when_one_label_of_each_segment_stays() -> None:
    table = SmallTable(after=10, lateness=0)
    labels = [Label(b"%d" % n, 1, 10**6 if n % 5 == 0 else n, (0, n)) for n in range(1000)]
    for label in labels:
        add(table, [label])
    full = table.memory
    assert [offset for _, offset in table.expire(500)] == [n for n in range(500) if n % 5]
    assert table.memory < 0.65 * full
    table.expire(10**5)
    assert (len(table), table.unused) == (200, 200)
    assert table.memory < 0.25 * full
    assert join(table, [(b"995", 10**6)]) == ([(1, 10**6)], 0, 0)
    table.expire(10**7)
    assert (len(table), table.memory) == (0, 0)


def test_a_table_in_a_directory_leaves_no_file(tmp_path: Path) -> None:
    table = SmallTable(after=10, lateness=0, directory=tmp_path)
    add(table, [Label(b"a", 1, 5, (0, n)) for n in range(20)])
    assert table.memory
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    table = SmallTable(after=10, lateness=0, directory=tmp_path / "labels")
    with pytest.raises(StoreError, match=r"labels cannot be kept in .*labels.* Fix: make room"):
        add(table, [Label(b"a", 1, 5, (0, 0))])
    assert len(table) == table.memory == 0
    (tmp_path / "labels").mkdir()
    add(table, [Label(b"a", 1, 5, (0, 0))])
    (tmp_path / "labels").rmdir()
    with pytest.raises(StoreError):
        add(table, [Label(b"a", 1, 5, (0, n)) for n in range(1, 20)])
    assert len(table) == 1
    assert join(table, [(b"a", 0)]) == ([(1, 5)], 0, 0)


def test_what_has_expired_leaves_where_the_rest_cannot_be_moved(tmp_path: Path) -> None:
    directory = tmp_path / "labels"
    directory.mkdir()
    table = SmallTable(after=10, lateness=0, directory=directory)
    add(table, [Label(b"%d" % n, 1, 1000 if n % 5 == 0 else n, (0, n)) for n in range(10)])
    directory.rmdir()
    assert len(table.expire(500)) == 8
    assert len(table) == 2
    assert join(table, [(b"5", 1000)]) == ([(1, 1000)], 0, 0)
    assert table.expire(2000) == [(0, 0)]
    assert (len(table), table.memory) == (0, 0)


def test_beyond_the_limit_nothing_is_added() -> None:
    table = LabelTable(after=10, lateness=0, max_labels=2)
    add(table, [Label(b"a", 1, 5, (0, 0))])
    more = [Label(b"b", 1, 50, (0, 1)), Label(b"c", 1, 50, (0, 2))]
    with pytest.raises(
        LaneStoppedError, match=r"Fix: raise label_input\.max_labels, or shorten label_input\.after"
    ):
        add(table, more)
    assert (len(table), table.unused) == (1, 1)
    table.expire(20)
    add(table, more)
    assert len(table) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes": [0]}, "number codes from 1"),
        ({"codes": [1, 1]}, "give n of each"),
        ({"partition": 2**16}, "out of range"),
        ({"offsets": [2**48]}, "out of range"),
        ({"offsets": [-1]}, "out of range"),
    ],
)
def test_a_label_that_cannot_be_kept_is_refused(change: dict[str, Any], message: str) -> None:
    table = LabelTable(after=10, lateness=0)
    label: dict[str, Any] = {"codes": [1], "times": [1], "partition": 0, "offsets": [0]}
    with pytest.raises(ValueError, match=message):
        table.add(digest_ids([b"a"]), **{**label, **change})
    with pytest.raises(ValueError, match="offsets do not ascend"):
        table.add(digest_ids([b"a", b"b"]), [1, 1], [1, 1], 0, [1, 1])
    assert len(table) == 0


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {"after": -1},
        {"lateness": -1},
        {"max_labels": 0},
        {"max_labels": 5, "directory": tmp_path},
    ):
        with pytest.raises(ConfigError, match="Fix"):
            LabelTable(**{"after": 1, "lateness": 0, **wrong})


def test_used_labels_that_cannot_be_read_are_refused() -> None:
    table = LabelTable(after=1, lateness=0)
    for wrong in (b"", b"\x01", b"\x02" + table.used()[1:], table.used()[:-1]):
        with pytest.raises(SnapshotError, match="cannot be read"):
            table.load_used(wrong)
    add(table, [Label(b"a", 1, 1, (0, 0))])
    with pytest.raises(SnapshotError, match="new table"):
        table.load_used(table.used())


def test_digests_are_those_of_the_reference() -> None:
    assert digest_ids(IDS).tolist() == [naive.digest(id) for id in IDS]
    assert digest_ids([]).shape == (0, 2)


def test_ten_million_labels_take_at_most_48_bytes_each() -> None:
    """The columns of a full segment and its index, by the sizes of their types."""
    table = LabelTable(after=1, lateness=0)
    n = table.segment_rows
    ids = np.arange(2 * n, dtype=np.uint64).reshape(n, 2)
    table.add(ids, np.ones(n, dtype=np.uint8), np.zeros(n, dtype=np.int64), 0, np.arange(n))
    assert table.memory <= 48 * n
    assert table.join(ids[:1000], np.zeros(1000)).codes.all()


@pytest.mark.parametrize("count", [1, 16_384, 16_385, 40_000, 70_000])
def test_the_room_of_a_table_is_known_before_it_is_taken(count: int) -> None:
    """While a segment is replaced by a larger one, both are there."""
    table = LabelTable(after=1000, lateness=0)
    largest = 0
    for start in range(0, count, 10_000):
        before = table.memory
        n = min(10_000, count - start)
        digests = digest_ids([b"%d" % i for i in range(start, start + n)])
        table.add(digests, np.ones(n), np.zeros(n), 0, np.arange(start, start + n))
        largest = max(largest, table.memory + (before if table.memory != before else 0))
    assert table.memory <= largest <= table_bytes(count) < 6 * max(table.memory, 1)
    assert table_bytes(2 * LabelTable.segment_rows) > 2 * table_bytes(LabelTable.segment_rows // 2)
