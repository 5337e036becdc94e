"""Index, join and resolution of labels that come on another topic than their events.

A segment of a table is a set of columns, one row a label, and an index of its digests: open addressing, a
power of two of cells, at least twice as many as rows. A cell holds the number of a row plus one in its lower
20 bits, and 12 bits of the digest above them, so that a digest that is not there seldom costs a look at a
row; 0 marks an empty cell. Rows of one digest are a linked list, whose first row the index holds: labels of
one id do not fill neighbouring cells. `following` is the number of the next row plus one, 0 at the end.

A used row leaves its list, unless it is the first one, which stays as the entry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel

ROW_BITS = 20
MAX_ROWS = 2**ROW_BITS - 1

Words = NDArray[np.uint64]
Times = NDArray[np.int64]
Codes = NDArray[np.uint8]
Cells = NDArray[np.uint32]


@kernel
def _cell(index: Cells, digests: Words, first: np.uint64, second: np.uint64) -> int:
    """The cell that holds the list of a digest, or the empty one where it belongs."""
    mask = np.int64(index.shape[0] - 1)
    tag = np.int64(second >> np.uint64(64 - 12))
    at = np.int64(first & np.uint64(mask))
    while True:
        cell = np.int64(index[at])
        if cell == 0:
            return int(at)
        if cell >> ROW_BITS == tag:
            row = (cell & MAX_ROWS) - 1
            if digests[row, 0] == first and digests[row, 1] == second:
                return int(at)
        at = (at + 1) & mask


@kernel
def label_index(digests: Words, used: Codes, following: Cells, index: Cells, start: int, stop: int) -> None:
    """Put the rows from `start` to `stop` that are not used into the index."""
    for row in range(start, stop):
        if used[row]:
            continue
        second = digests[row, 1]
        at = _cell(index, digests, digests[row, 0], second)
        cell = np.int64(index[at])
        if cell == 0:
            index[at] = (np.int64(second >> np.uint64(64 - 12)) << ROW_BITS) | (row + 1)
        else:
            head = (cell & MAX_ROWS) - 1
            following[row] = following[head]
            following[head] = row + 1


@kernel
def label_take(
    digests: Words,
    times: Times,
    used: Codes,
    following: Cells,
    index: Cells,
    wanted: Words,
    earliest: Times,
    latest: Times,
    start: int,
    expired: int,
    rows: Times,
    events: Times,
) -> tuple[int, int]:
    """Use the labels of a segment that belong to events, in the events' order, from event `start` on.

    An event takes each unused label of its digest (n, 2) whose time is from `earliest` to `latest`. The rows
    taken and the events that took them go to `rows` and `events`. Returns the event to continue with, and how
    many were taken: it stops where the outputs are full, in the middle of an event too. Labels before
    `expired` leave their list.
    """
    room = rows.shape[0]
    taken = 0
    for event in range(start, wanted.shape[0]):
        cell = np.int64(index[_cell(index, digests, wanted[event, 0], wanted[event, 1])])
        if cell == 0:
            continue
        head = (cell & MAX_ROWS) - 1
        row = head
        before = head
        while row >= 0:
            after = np.int64(following[row]) - 1
            fits = not used[row] and earliest[event] <= times[row] <= latest[event]
            if fits:
                if taken == room:
                    return event, taken
                rows[taken] = row
                events[taken] = event
                taken += 1
                used[row] = 1
            if row != head:
                if fits or times[row] < expired:
                    following[before] = after + 1
                else:
                    before = row
            row = after
    return wanted.shape[0], taken


@kernel
def label_first(
    digests: Words,
    times: Times,
    places: Words,
    following: Cells,
    index: Cells,
    wanted: Words,
    earliest: Times,
    latest: Times,
    expired: int,
    first_times: Times,
    first_places: Words,
) -> None:
    """The first row of each wanted digest (n, 2) whose time is from `earliest` to `latest`, used or not.

    It goes by time, then by place. `first_times` and `first_places` hold the first ones of other segments, or
    the largest numbers, and are replaced by earlier ones. Rows before `expired` leave their list.
    """
    for i in range(wanted.shape[0]):
        cell = np.int64(index[_cell(index, digests, wanted[i, 0], wanted[i, 1])])
        if cell == 0:
            continue
        head = (cell & MAX_ROWS) - 1
        row = head
        before = head
        while row >= 0:
            after = np.int64(following[row]) - 1
            time = times[row]
            if earliest[i] <= time <= latest[i] and (
                time < first_times[i] or (time == first_times[i] and places[row] < first_places[i])
            ):
                first_times[i] = time
                first_places[i] = places[row]
            if row != head:
                if time < expired:
                    following[before] = after + 1
                else:
                    before = row
            row = after


@kernel
def label_resolve(
    events: Times, codes: Codes, times: Times, places: Words, best: Times, joined: Codes, joined_times: Times
) -> tuple[int, int]:
    """The label of each event among those that it took: the first by time, then by place.

    `events`, `codes`, `times` and `places` are of the labels taken. `best` (-1 everywhere before), `joined`
    and `joined_times` are of the events: the winner's number, code and time. Returns how many of the other
    labels have another code than the winner of their event, and how many the same.
    """
    for i in range(events.shape[0]):
        event = events[i]
        winner = best[event]
        if (
            winner < 0
            or times[i] < times[winner]
            or (times[i] == times[winner] and places[i] < places[winner])
        ):
            best[event] = i
            joined[event] = codes[i]
            joined_times[event] = times[i]
    other = 0
    same = 0
    for i in range(events.shape[0]):
        if best[events[i]] != i:
            if codes[i] == joined[events[i]]:
                same += 1
            else:
                other += 1
    return other, same
