"""Reference implementations of `streampair.kernels.label_table`, and a table of labels that is one list."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


def label_lists(digests: list[Any], used: list[int]) -> dict[tuple[int, ...], set[int]]:
    """The rows of each digest that are not used: what an index of labels holds."""
    found: dict[tuple[int, ...], set[int]] = {}
    for row, digest in enumerate(digests):
        if not used[row]:
            found.setdefault(tuple(digest), set()).add(row)
    return found


def label_take(
    digests: list[Any],
    times: list[int],
    used: list[int],
    wanted: list[Any],
    earliest: list[int],
    latest: list[int],
) -> list[tuple[int, int]]:
    """Rows that events take, and the event of each; `used` is changed."""
    taken = []
    for event, digest in enumerate(wanted):
        for row, other in enumerate(digests):
            if digest == other and not used[row] and earliest[event] <= times[row] <= latest[event]:
                used[row] = 1
                taken.append((row, event))
    return taken


def label_first(
    digests: list[Any],
    times: list[int],
    places: list[int],
    wanted: list[Any],
    earliest: list[int],
    latest: list[int],
) -> list[tuple[int, int] | None]:
    """Time and place of the first row of each wanted digest that is in time."""
    rows = list(zip(digests, times, places, strict=True))
    return [
        min(((t, place) for d, t, place in rows if d == digest and low <= t <= high), default=None)
        for digest, low, high in zip(wanted, earliest, latest, strict=True)
    ]


def label_resolve(
    events: list[int], codes: list[int], times: list[int], places: list[int], count: int
) -> tuple[list[int], list[int], int, int]:
    """Code and time of each of `count` events, 0 for none, and how many other labels contradict or repeat."""
    joined, joined_times, other, same = [0] * count, [0] * count, 0, 0
    for event in range(count):
        labels = sorted(
            (time, place, code)
            for e, code, time, place in zip(events, codes, times, places, strict=True)
            if e == event
        )
        if labels:
            joined_times[event], _, joined[event] = labels[0]
            other += sum(code != joined[event] for _, _, code in labels)
            same += sum(code == joined[event] for _, _, code in labels) - 1
    return joined, joined_times, other, same


@dataclass
class Label:
    """A label with its place."""

    id: bytes
    code: int
    time: int
    place: tuple[int, int]
    used: bool = False


class LabelTable:
    """What `streampair.engine.labels.LabelTable` does: one list of labels, a scan for every question."""

    def __init__(self, after: int, lateness: int) -> None:
        self.after, self.lateness = after, lateness
        self.labels: list[Label] = []
        self.expired: int | None = None
        self.read: dict[int, int] = {}
        self.contradictions = self.repeats = 0

    def add(self, labels: list[Label]) -> list[tuple[int, int]]:
        late = []
        for label in labels:
            partition, offset = label.place
            if offset <= self.read.get(partition, -1):
                continue
            self.read[partition] = offset
            if self.expired is not None and label.time < self.expired:
                late.append(label.place)
            else:
                self.labels.append(label)
        return late

    def join(self, id: bytes, time: int) -> tuple[int, int]:
        found = [
            label
            for label in self.labels
            if label.id == id and not label.used and time - self.lateness <= label.time <= time + self.after
        ]
        for label in found:
            label.used = True
        if not found:
            return 0, 0
        first = min(found, key=lambda label: (label.time, label.place))
        self.contradictions += sum(label.code != first.code for label in found)
        self.repeats += sum(label.code == first.code for label in found) - 1
        return first.code, first.time

    def expire(self, due: int) -> list[tuple[int, int]]:
        before = due - self.lateness
        if self.expired is None or before > self.expired:
            self.expired = before
        leaving = sorted(v.place for v in self.labels if v.time < self.expired and not v.used)
        self.labels = [label for label in self.labels if label.time >= self.expired]
        return leaving


def digest(id: bytes) -> list[int]:
    """Two words of BLAKE2b-128."""
    value = hashlib.blake2b(id, digest_size=16).digest()
    return [int.from_bytes(value[:8], "little"), int.from_bytes(value[8:], "little")]
