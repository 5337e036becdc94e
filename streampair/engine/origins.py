"""Identity of records: what keyed noise, the privacy account and the log know a record by."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, cast

from streampair.engine.protocols import PrivateModel
from streampair.engine.records import OrderedRecord, Record
from streampair.privacy.provenance import Origin, Origins

__all__ = ["RecordOrigins", "payload_digest"]

_PLACE: Final = struct.Struct(">iq").pack
_LENGTH: Final = struct.Struct(">cQ").pack
_CODE: Final = struct.Struct(">B").pack  # of the label that came: part of what a slot releases
_NOWHERE: Final = Origin()
# A copy costs half of a new hash, because it has absorbed the key.
_no_value = hashlib.blake2b(digest_size=32, key=b"streampair record").copy
_value = hashlib.blake2b(b"v", digest_size=32, key=b"streampair record").copy


def payload_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Digest (32 bytes) of a record's key and value; a missing one differs from an empty one."""
    payload = _no_value() if value is None else _value()
    if value is not None:
        payload.update(value)
    if key is not None:
        payload.update(_LENGTH(b"k", len(key)) + key)
    return payload.digest()


class RecordOrigins:
    """Origins of records, as far as the noise and the account of a learner need them.

    The context of a record is its place and a digest of its bytes (docs/privacy 8), and where labels come
    later the label: it is the same whatever was scored before the event was due.

    An entity is the key of the message, never a field of its value: were the value damaged, its entity
    would change with it, and with that what is learned of others (docs/privacy 7). A message without a key
    belongs to no entity: a null record.

    Parameters
    ----------
    private
        The learner, if it is private; None: no origin is needed.
    partition
        Of the records.
    late
        Whether labels come later. Records are then of `OrderedRecord`, and name their partition themselves.

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> from streampair.engine import Record
    >>> from streampair.engine.origins import RecordOrigins
    >>> limit = privacy.EntityLimit(records=1)
    >>> model = auc.PairFTRL(delta=1e-4, horizon=100, features=["a"], entity=limit)
    >>> RecordOrigins(model, 0, late=False).of(Record(7, b"a", key=b"ann"))
    Origin(context=None, entity=b'ann')
    """

    def __init__(self, private: PrivateModel | None, partition: int, *, late: bool) -> None:
        self._keyed = private is not None and private.noise_key is not None
        self._entities = private is not None and private.entity is not None
        self._partition, self._late = partition, late

    def of(self, record: Record) -> Origin:
        """The origin of a record."""
        entity = record.key if self._entities else None
        if self._keyed:
            return Origin(self._contexts([record])[0], entity)
        return Origin(None, entity) if self._entities else _NOWHERE

    def of_each(self, records: Sequence[Record]) -> Origins:
        """The origins of records."""
        contexts = self._contexts(records) if self._keyed else None
        return Origins(contexts, [record.key for record in records] if self._entities else None)

    def _contexts(self, records: Sequence[Record]) -> list[bytes]:
        if self._late:
            return [
                _PLACE(record.partition, record.position)
                + payload_digest(record.key, record.value)
                + _CODE(record.label)
                for record in cast("Sequence[OrderedRecord]", records)
            ]
        partition = self._partition
        return [
            _PLACE(partition, record.offset) + payload_digest(record.key, record.value) for record in records
        ]
