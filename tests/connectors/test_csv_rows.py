"""Batches of CSV lines against the same lines one by one."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from harness.support import in_one_case
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
    "any": InputConfig(label="y", features=["b", "a"], label_type="any", id="id"),
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


def one_by_one(decode: Any, records: list[Record]) -> list[Event | str]:
    """What a batch must give: of each record the event, or the error."""
    found: list[Event | str] = []
    for record in records:
        try:
            found.append(decode(record))
        except RecordError as error:
            found.append(str(error))
    return found


def bits(number: float) -> bytes:
    return struct.pack("d", number)


def assert_same(rows: EventRows | None, found: list[Event | str]) -> None:
    """To the bit, and in the same order."""
    if rows is None:
        assert not found
        return
    assert rows.values.flags.c_contiguous
    assert rows.values.shape == (len(found), len(rows.names))
    refused = rows.refused or {}
    ids = rows.ids or [None] * len(found)
    for i, (row, y, each) in enumerate(zip(rows.values.tolist(), rows.labels, found, strict=True)):
        if isinstance(each, str):
            assert (str(refused[i]), y, ids[i]) == (each, None, None)
            assert np.isfinite(row).all()
            continue
        assert i not in refused
        assert [(name, bits(value)) for name, value in zip(rows.names, row, strict=True)] == [
            (name, bits(value)) for name, value in each.x.items()
        ]
        assert (y, type(y), ids[i]) == (each.y, type(each.y), each.id)


@given(batches())
def test_a_batch_is_decoded_like_one_line_after_the_other(records: list[Record]) -> None:
    for config in CONFIGS.values():
        decode: Any = csv_decoder(config, HEADER)
        assert_same(decode.many(records), one_by_one(decode, records))


@in_one_case("cell", ["-0", "-0e3", "1e-0", "-0.0", "-0.5", "0", "9007199254740993", "1" * 25])
@pytest.mark.parametrize("column", [0, 4])
def test_every_zero_keeps_its_sign_and_every_number_its_bits(cell: str, column: int) -> None:
    decode: Any = csv_decoder(CONFIGS["plain"], HEADER)
    cells = ["0", "7", "8", "1", "0"]
    cells[column] = cell
    records = [Record(0, ",".join(cells).encode()), Record(1, b"1,2,3,0,5")]
    events = one_by_one(decode, records)
    assert all(isinstance(each, Event) for each in events)
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
        if hasattr(decode, "many"):
            assert_same(decode.many(records), events)
        else:
            assert not any(isinstance(each, Event) and each.x for each in events)
