"""From the records of a batch to events that a learner takes together.

What cannot be read, and what has no label, is marked and stays in its place: a batch is never cut by what its
records hold.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

from streampair.engine.model import Model
from streampair.engine.protocols import decode_many, ready_rows, takes_nulls
from streampair.engine.records import Event, Record, Rows
from streampair.errors import RecordError

__all__ = ["Read", "Reader", "refuse_nan"]

_NOTHING = Event({}, None)


class Read(NamedTuple):
    """A batch of events: as they came, and as the learner sees them.

    Attributes
    ----------
    offsets, ids
        Of the records, and of the events.
    table
        All of them, if they came so.
    raw, xs
        The records before and after the steps in front of the learner.
    ys
        The labels; None where there is nothing to learn.
    truth
        Whether each has the label that ranks high; bytes, 1 or 0 each, if somebody asked for flags.
    nulls
        Positions of what has no label, or was refused, ascending.
    refused
        By position, the error of what is no usable record, and where it came.
    """

    offsets: list[int]
    table: Rows | None
    raw: Sequence[dict[str, Any]]
    xs: Sequence[Any]
    ys: Sequence[Any]
    ids: Iterable[str | None]
    truth: Sequence[int]
    nulls: list[int]
    refused: dict[int, tuple[Exception, str]]


class Reader:
    """Reads batches for one model.

    Parameters
    ----------
    model
        The model.
    decode, positive
        See `Lane`.
    is_bad
        From an error and the stage that it came in to whether it is about the event.
    flags
        Whether `truth` has to be bytes, whatever labels say when they are compared.
    """

    def __init__(
        self,
        model: Model,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        is_bad: Callable[[Exception, str], bool],
        flags: bool,
    ) -> None:
        self._model = model
        self._decode = decode
        # Where the learner takes whole arrays of records as they are.
        rows = model.transform is None and ready_rows(model.learner) is not None
        self._many = decode_many(decode) if rows else None
        # Whether it takes records that it does not learn from among the others.
        self._marks = not model.fragile and takes_nulls(model.learner)
        self._positive = positive
        self._is_bad = is_bad
        self._flags = flags

    def read(self, records: Sequence[Record], following: int) -> Read | None:
        """Decode records, the first at the offset `following` or behind it; None: read each alone."""
        model, offsets = self._model, [record.offset for record in records]
        ordered = records and offsets[0] >= following and model.direct
        if not ordered or not all(map(operator.lt, offsets, offsets[1:])):
            return None
        refused: dict[int, tuple[Exception, str]] = {}
        try:
            table = None if self._many is None else self._many(records)
            raw: Sequence[dict[str, Any]]
            ys: list[Any]
            ids: Iterable[str | None]
            if table is not None:
                raw, ys, ids = _Dicts(table), table.labels, table.ids or itertools.repeat(None)
                if table.refused:
                    refused = {at: (error, "decode") for at, error in table.refused.items()}
            else:
                events = self._each(self._decode, records, "decode", _NOTHING, refused)
                raw, ys = [event.x for event in events], [event.y for event in events]
                ids = [event.id for event in events]
                if model.fragile:
                    for x in raw:
                        refuse_nan(x)
            xs = raw
            if model.transform is not None:
                xs = self._each(model.transform, raw, "features", None, refused)
                ys = [None if at in refused else y for at, y in enumerate(ys)] if refused else ys
            nulls = [at for at, y in enumerate(ys) if y is None] if None in ys else []
            if nulls and not self._marks:
                return None
            truth = self._truth(ys)
        except Exception:
            return None  # whatever it is, the careful way meets it again, alone
        return Read(offsets, table, raw, xs, ys, ids, truth, nulls, refused)

    def _truth(self, ys: list[Any]) -> Sequence[int]:
        positive = self._positive
        # Most often labels are truth values, or numbers 0 and 1, already.
        marks = _marks(ys) if positive is True else None
        if marks is not None:
            return marks
        told = [y == positive for y in ys]
        if not self._flags:
            return told
        marks = _marks(told)
        return bytes(map(bool, told)) if marks is None else marks

    def _each(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        stage: str,
        nothing: Any,
        refused: dict[int, tuple[Exception, str]],
    ) -> list[Any]:
        """The function of each item, and `nothing` of one that is or was refused."""
        if not refused:
            try:
                return list(map(function, items))
            except Exception:
                if not self._marks:
                    raise
        out = []
        for at, item in enumerate(items):
            value = nothing
            if at not in refused:
                try:
                    value = function(item)
                except Exception as error:
                    if not self._is_bad(error, stage):
                        raise
                    refused[at] = (error, stage)
            out.append(value)
        return out


class _Dicts(Sequence[dict[str, Any]]):
    """The records of a table, made when somebody asks for them."""

    def __init__(self, table: Rows) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table.values)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        names, rows = self._table.names, self._table.values[at].tolist()
        if isinstance(at, slice):
            return [dict(zip(names, row, strict=True)) for row in rows]
        return dict(zip(names, rows, strict=True))


def _marks(told: Sequence[Any]) -> bytes | None:
    """These as bytes of 0 and 1; None if they are anything else, as text, or NumPy's truth values."""
    # A fraction of the time that a look at each type, or a comparison, takes; what is no integer raises.
    try:
        marks = bytes(told)
    except (TypeError, ValueError):
        return None
    # Of an array, bytes are those that it lies in.
    return None if len(marks) != len(told) or marks.strip(b"\x00\x01") else marks


def refuse_nan(x: Mapping[str, Any]) -> None:
    """A foreign model would take NaN in, and give NaN for ever after."""
    try:
        total = sum(x.values())
        if total - total == 0.0:  # finite, so every value is
            return
    except (TypeError, OverflowError):
        pass  # text, None or a huge integer: the model may know what to do with it
    for name, value in x.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(
                f"the feature {name!r} is {value}",
                fix="send a finite number, or leave the feature out",
            )
