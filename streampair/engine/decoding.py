"""Decoding of whole batches: events as rows of an array or as dicts, and which records are refused.

    decode.many       from records to an array, where a decoder has it and all events have the same features
    decode            from each record to its event, otherwise

A record that cannot be decoded keeps its place, so that a private learner gives it its slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.protocols import ManyDecoder
from streampair.engine.records import Event, EventRows, OrderedRecord, Record

__all__ = ["BatchDecoder", "DecodedBatch"]

_NO_EVENT: Final = Event({}, None)


class DecodedBatch(NamedTuple):
    """Decoded events, before and after the steps in front of the learner.

    Attributes
    ----------
    table
        The events as rows, if the decoder gave them so.
    raw, xs
        The records before and after the steps in front of the learner; None in `xs` where a step refused one.
    ids
        Ids of the events.
    ys
        The labels; None where there is nothing to learn. Empty of a batch that is only scored, as are the
        next two.
    truth
        Whether each event has the positive label: 1 or 0.
    nulls
        Positions of events without a label and of refused records, ascending.
    refused
        For each unusable record, by position, its error and the stage where it occurred.
    """

    table: EventRows | None
    raw: Sequence[dict[str, Any]]
    xs: Sequence[Any]
    ids: Iterable[str | None]
    ys: Sequence[Any]
    truth: bytes
    nulls: list[int]
    refused: dict[int, tuple[Exception, str]]

    def records(self, places: list[int]) -> list[Any] | tuple[list[str], NDArray[np.float64]]:
        """Records after the steps in front of the learner: dicts, or names and an array of values (k, d)."""
        if self.table is not None:
            return self.table.names, self.table.values.take(places, axis=0)
        return [self.xs[place] for place in places]


class BatchDecoder:
    """Decodes batches for one model.

    Parameters
    ----------
    model
        The model.
    decode, labels
        See `Lane`.
    """

    def __init__(
        self,
        model: PipelineAdapter,
        decode: Callable[[Record], Event],
        labels: Sequence[object] | None,
    ) -> None:
        self._model = model
        self._decode = decode
        self._labels = labels
        # Whether the learner takes whole arrays of raw records.
        rows = model.features is None and model.prepare_rows is not None
        self._many = decode.many if rows and isinstance(decode, ManyDecoder) else None

    def read(self, records: Sequence[Record], *, labelled: bool = True) -> DecodedBatch:
        """Decode records.

        Parameters
        ----------
        records
            At least one.
        labelled
            Whether labels are needed.

        Raises
        ------
        Exception
            An error that is not about a record.
        """
        table = self._table(records)
        refused: dict[int, tuple[Exception, str]] = {}
        raw: Sequence[dict[str, Any]]
        ids: Iterable[str | None]
        if table is not None:
            raw, ys, ids = _Dicts(table), table.labels, table.ids or itertools.repeat(None)
            refused = {place: (error, "decode") for place, error in (table.refused or {}).items()}
        else:
            events = self._each(self._decode, records, "decode", _NO_EVENT, refused)
            raw, ys = [event.x for event in events], [event.y for event in events]
            ids = [event.id for event in events]
        features = self._model.features
        xs = raw if features is None else self._each(features, raw, "features", None, refused)
        if not labelled:
            return DecodedBatch(table, raw, xs, ids, [None] * len(records), bytes(len(records)), [], refused)
        if self._labels is not None:
            ys = [self._labels[record.label] for record in cast("Sequence[OrderedRecord]", records)]
        truth = self._truth(ys, refused)
        for place in refused:
            ys[place] = None
        nulls = [place for place, y in enumerate(ys) if y is None] if refused or None in ys else []
        return DecodedBatch(table, raw, xs, ids, ys, truth, nulls, refused)

    def _table(self, records: Sequence[Record]) -> EventRows | None:
        try:
            return None if self._many is None else self._many(records)
        except Exception:
            return None  # which record is at fault is known once each is decoded alone

    def _each(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        stage: str,
        nothing: Any,
        refused: dict[int, tuple[Exception, str]],
    ) -> list[Any]:
        """The function of each item; `nothing` for an item that is refused, now or before."""
        if not refused:
            try:
                return list(map(function, items))
            except Exception:  # noqa: S110  (one of them fails again below, where it is known which)
                pass
        out = []
        for place, item in enumerate(items):
            value = nothing
            if place not in refused:
                try:
                    value = function(item)
                except Exception as error:
                    if not self._model.is_bad_event(error, stage):
                        raise
                    refused[place] = (error, stage)
            out.append(value)
        return out

    def _truth(self, ys: list[Any], refused: dict[int, tuple[Exception, str]]) -> bytes:
        """Whether each label is the positive one, as bytes of 1 and 0."""
        positive = self._model.positive
        # Fast path: labels that are booleans, or the numbers 0 and 1.
        marks = _marks(ys) if positive is True else None
        if marks is not None:
            return marks
        return bytes(self._each(lambda y: bool(y == positive), ys, "label", False, refused))


class _Dicts(Sequence[dict[str, Any]]):
    """The records of a table as dicts, which are made on access."""

    def __init__(self, table: EventRows) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table.values)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        names, rows = self._table.names, self._table.values[index].tolist()
        if isinstance(index, slice):
            return [dict(zip(names, row, strict=True)) for row in rows]
        return dict(zip(names, rows, strict=True))


def _marks(values: Sequence[Any]) -> bytes | None:
    """The values as bytes of 0 and 1; None for other values, such as text or NumPy booleans."""
    # Much faster than a check of each type or a comparison. Values that are no integers raise.
    try:
        marks = bytes(values)
    except (TypeError, ValueError):
        return None
    # `bytes` of an array gives its memory, so the length differs.
    return None if len(marks) != len(values) or marks.strip(b"\x00\x01") else marks
