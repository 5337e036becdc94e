"""Batches of CSV lines against the same lines one by one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors.codecs.records import csv_decoder
from streampair_connectors.config import InputConfig

from streampair.engine import Event, EventRows, Record
from streampair.errors import RecordError

HEADER = ["a", "id", "note", "y", "b"]
CONFIGS = {
    "plain": InputConfig(label="y", features=["a", "b"]),
    "other order, with id": InputConfig(label="y", features=["b", "a"], id="id"),
    "one feature": InputConfig(label="y", features=["b"], id="no such column"),
    "all": InputConfig(label="y", id="id"),
    "texts": InputConfig(label="y", features=["a", "b"], positive="1", negative="-0"),
    "whole": InputConfig(label="y", features=["a", "b"], positive=1, negative=-1, max_event_bytes=64),
    "any": InputConfig(label="y", features=["b", "a"], labels="any", id="id"),
}

# Each number as Python, NumPy, C and spreadsheets write it, and as nobody does.
FORMATS = ["{!r}", "{:g}", "{:.17g}", "{:.1f}", "{:+.3e}", "{:E}", " {:.2f}", "{:.0f}.", '"{!r}"', "{:,}"]
FLOATS = st.floats() | st.floats(-10, 10) | st.integers(-(2**70), 2**70).map(float)
TEXTS = st.sampled_from(
    [
        *("", "0", "-0", "+1", "-0.0", "-0e3", ".5", "01", "1_0", "0x1", "nan", "inf", "1e999", "1e-999"),
        *("9" * 30, "9" * 400, "true", "null", "[1", "2]", "{", "1\r", "1\n2", "\t1", "ü"),
        *('"1', '1"', '"1\n2"', '"1,2"'),
    ]
)
CELLS = (
    st.builds(str.format, st.sampled_from(FORMATS), FLOATS) | st.integers(-(10**25), 10**25).map(str) | TEXTS
)
USUAL = st.floats(-1e9, 1e9).map(repr) | st.integers(-9, 9).map(str)
LABELS = st.sampled_from(["0", "1", "1", "1.0", "true", "True", "-1", " 1", "", "2", "1.00", "-0", '"1"'])
GOOD_LABELS = st.sampled_from(["0", "1"])
ENDS = st.sampled_from([b"", b"", b"\r", b"\n"])


@st.composite
def batches(draw: st.DrawFn) -> list[Record]:
    """Lines that nobody would look at twice, and now and then one of another kind."""
    lines = []
    wild = draw(st.booleans())
    for _ in range(draw(st.integers(0, 4))):
        number, label = (CELLS, LABELS) if wild and draw(st.booleans()) else (USUAL, GOOD_LABELS)
        cells = [draw(label if name == "y" else number) for name in HEADER]
        if wild and draw(st.integers(0, 9)) == 0:
            cells = cells[:-1] if draw(st.booleans()) else [*cells, "1"]
        lines.append(",".join(cells).encode() + (draw(ENDS) if wild else b""))
    return [Record(offset, line) for offset, line in enumerate(lines)]


def one_by_one(decode: Any, records: list[Record]) -> list[Event] | None:
    """What a batch must give, or None: one of its lines is not to be learned."""
    try:
        events = [decode(record) for record in records]
    except RecordError:
        return None
    return None if any(event.y is None for event in events) or not events else events


def bits(number: float) -> bytes:
    return struct.pack("d", number)


def assert_same(rows: EventRows | None, events: list[Event] | None) -> None:
    """To the bit, and in the same order."""
    if rows is None or events is None:
        assert rows is None
        assert events is None
        return
    assert rows.values.flags.c_contiguous
    assert rows.values.shape == (len(events), len(rows.names))
    assert [
        [(name, bits(value)) for name, value in zip(rows.names, row, strict=True)]
        for row in rows.values.tolist()
    ] == [[(name, bits(value)) for name, value in event.x.items()] for event in events]
    assert [(y, type(y)) for y in rows.labels] == [(event.y, type(event.y)) for event in events]
    assert (rows.ids or [None] * len(events)) == [event.id for event in events]


@given(batches())
def test_a_batch_is_decoded_like_one_line_after_the_other(records: list[Record]) -> None:
    for config in CONFIGS.values():
        decode: Any = csv_decoder(config, HEADER)
        assert_same(decode.many(records), one_by_one(decode, records))


@pytest.mark.parametrize("cell", ["-0", "-0e3", "1e-0", "-0.0", "-0.5", "0", "9007199254740993", "1" * 25])
@pytest.mark.parametrize("column", [0, 4])
def test_every_zero_keeps_its_sign_and_every_number_its_bits(cell: str, column: int) -> None:
    decode: Any = csv_decoder(CONFIGS["plain"], HEADER)
    cells = ["0", "7", "8", "1", "0"]
    cells[column] = cell
    records = [Record(0, ",".join(cells).encode()), Record(1, b"1,2,3,0,5")]
    events = one_by_one(decode, records)
    assert events is not None
    assert_same(decode.many(records), events)


@pytest.mark.parametrize(
    "lines",
    [
        # Brackets that would make one row of two lines, and two of the next.
        [b"1,2,3,[1", b"5]", b"1,2,3,1,5],[1,2,3,1,5"],
        [b"1,2,3,1,5\n1,2,3,1,5", b""],
        # A quote that is closed on the next line.
        [b'1,2,"3', b'",1,5', b"1,2,3,1,5"],
        [b"1,2,3,1,5", None],
        [b"1,2,3,1,5", b"1,2,3,1," + b"0" * 64],
        [b"1,2,3,1,5", b"1,2,3,1,\xff"],
    ],
)
def test_lines_are_never_mixed_up(lines: list[bytes | None]) -> None:
    for config in (CONFIGS["whole"], CONFIGS["any"]):
        decode: Any = csv_decoder(config, HEADER)
        records = [Record(offset, line) for offset, line in enumerate(lines)]
        assert_same(decode.many(records), one_by_one(decode, records))


@pytest.mark.parametrize("header", [["a", "b"], ["a", "y"], ["y"], ["a", "b", "a", "y", "y"]])
def test_columns_that_are_absent_or_there_twice(header: list[str]) -> None:
    for config in CONFIGS.values():
        decode: Any = csv_decoder(config, header)
        records = [Record(0, ",".join(map(str, range(1, len(header)))).encode() + b",1")] * 2
        events = one_by_one(decode, records)
        if decode.many is None:
            assert events is None or not events[0].x
        else:
            assert_same(decode.many(records), events)
