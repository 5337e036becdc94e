"""Batches of a fetch, where the client's own reader fails.

It takes the message format of the first batch for that of all batches in an answer, though a topic keeps its
old messages in their old format. And it fails at a header whose name is not UTF-8: any producer can send one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

__all__ = ["Batch", "FetchedBatches"]


class Batch:
    """A batch of records: the client's own, and its bytes."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)  # the record of a control batch

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batch
        except UnicodeDecodeError:
            yield from self.escaped()  # the client passes over those that it has had

    def escaped(self) -> Iterator[Any]:
        """The records, with bytes of a header's name that are not UTF-8 escaped, as in `\\xff`; slowly."""
        batch: Any = iter(_DefaultRecordBatchPy(self._data))  # decompressed
        batch._buffer = _Text(batch._buffer)
        yield from batch


class FetchedBatches:
    """The batches of one partition in an answer, in place of the client's `MemoryRecords`.

    Parameters
    ----------
    data
        Their bytes.

    Attributes
    ----------
    kind
        What is made of each batch.
    """

    kind: type[Batch] = Batch

    def __init__(self, data: bytes) -> None:
        # Written in Python, it reads the format of each batch. The batches themselves are compiled.
        self._batches = _MemoryRecordsPy(data)
        self.size_in_bytes = self._batches.size_in_bytes
        self.has_next = self._batches.has_next

    def next_batch(self) -> Batch:
        """The next batch, if there is one."""
        data = self._batches._next_slice
        return self.kind(self._batches.next_batch(), data)


class _Text(bytearray):
    """Bytes of records whose text, which is the names of headers, need not be UTF-8."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Text(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)
