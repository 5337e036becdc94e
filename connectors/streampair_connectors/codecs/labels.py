"""Decoders of labels that come on a topic of their own, and of the ids of their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.engine.records import LABEL_STOPPED
from streampair.errors import RecordError
from streampair.records.features import label as meaning_of
from streampair_connectors.codecs.formats import field_decoder
from streampair_connectors.codecs.records import LabelParser
from streampair_connectors.config import Config, LabelInputConfig

__all__ = ["DecodedLabel", "LabelCodeParser", "LabelDecoder", "event_ids"]

_LOW, _HIGH = 1, 2  # codes, as of `Config.label_codes`
_FIX = "send the id that the event has, in the field, key or header that label_input.id names"


class _KeyedMessage(Protocol):
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class DecodedLabel(msgspec.Struct, frozen=True, gc=False):
    """A label: the id of its event, and its code (`Config.label_codes`)."""

    id: bytes
    code: int


def event_ids(config: Config) -> Callable[[Sequence[_KeyedMessage]], list[bytes | None]]:
    """Return the function from events to their ids; None: an event has no id, so that no label finds it.

    Examples
    --------
    >>> from streampair.engine import Record
    >>> from streampair_connectors.config import parse_config
    >>> config = parse_config({
    ...     "app": "fraud",
    ...     "input": {"features": ["amount"]},
    ...     "label_input": {"topic": "chargebacks", "id": "payment", "absent": False, "after": "30d"},
    ...     "learner": {"class": "streampair.auc.PairOGD"},
    ... })
    >>> event_ids(config)([Record(0, b'{"payment": 7, "amount": 3}'), Record(1, b"oops")])
    [b'7', None]
    """
    labels = _table(config)
    field = labels.id_field
    if field is None:
        read = _outer_id(labels)
        return lambda records: list(map(read, records))
    decode = field_decoder(config, _struct({"id": field}), events=True)
    limit = config.input.max_event_bytes

    def one(record: _KeyedMessage) -> bytes | None:
        value = record.value
        if value is None or len(value) > limit:
            return None
        try:
            return _id_bytes(decode(value).id)
        except (RecordError, msgspec.ValidationError):
            return None

    return lambda records: [one(record) for record in records]


class LabelCodeParser(LabelParser):
    """Parser of labels that come later, to their codes (`Config.label_codes`).

    Parameters
    ----------
    config
        The application.
    quotes
        As of `LabelParser`.

    Attributes
    ----------
    constant
        Code of every label, where none is in a field: that of the positive one; else None.
    """

    _later = True

    def __init__(self, config: Config, *, quotes: bool = True) -> None:
        labels = _table(config)
        super().__init__(config.input.model_copy(update={"label": labels.label}), quotes=quotes)
        # Of the labels as they are declared: most are, and need not be read.
        self._codes: dict[object, int] = {
            config.input.negative_label(): _LOW,
            config.input.positive: _HIGH,
        }
        self._stopped = None if labels.stopped is None else meaning_of(labels.stopped)
        self.constant = _HIGH if labels.label is None else None

    def code(self, value: object) -> int:
        """Code of a value of JSON or a cell of CSV; raises RecordError if it is no label."""
        if self._stopped is not None and meaning_of(value) == self._stopped:
            return LABEL_STOPPED
        label = self.resolve(value)
        if label is None:
            raise RecordError(
                f"the label is {value!r}, so it is unknown",
                fix="send it when it is known; an event without a label needs none",
                stage="label",
            )
        return self._codes[label]

    def codes(self, values: Sequence[object]) -> NDArray[np.uint8]:
        """Codes of values of JSON; raises RecordError if one of them is no label."""
        known = self._codes
        return np.array([known.get(y) or self.code(y) for y in values], np.uint8)


class LabelDecoder:
    """Decoder of the messages of the labels topic.

    Parameters
    ----------
    config
        The application.
    quotes
        As of `LabelParser`.

    Examples
    --------
    >>> from streampair.engine import Record
    >>> from streampair_connectors.config import parse_config
    >>> config = parse_config({
    ...     "app": "fraud",
    ...     "input": {"features": ["amount"]},
    ...     "label_input": {"topic": "labels", "id": "key", "label": "bad", "after": "30d"},
    ...     "learner": {"class": "streampair.auc.PairOGD"},
    ... })
    >>> decode = LabelDecoder(config)
    >>> message = Record(0, b'{"bad": true}', b"payment-1")
    >>> decode(message)
    DecodedLabel(id=b'payment-1', code=2)
    >>> ids, codes = decode.many([message])
    >>> ids, codes.tolist()
    ([b'payment-1'], [2])
    """

    def __init__(self, config: Config, *, quotes: bool = True) -> None:
        labels = _table(config)
        self._parser = LabelCodeParser(config, quotes=quotes)
        self._field = labels.label
        self._outer = None if labels.id_field is not None else _outer_id(labels)
        fields = {} if labels.id_field is None else {"id": labels.id_field}
        fields |= {} if labels.label is None else {"label": labels.label}
        self._decode: Any = field_decoder(config, _struct(fields), events=False) if fields else None

    def __call__(self, record: _KeyedMessage) -> DecodedLabel:
        """Decode a message.

        Raises
        ------
        RecordError
            With stage `"label"`: there is no id or no label, or the label is unknown.
        """
        row: Any = None if self._decode is None else _parsed(self._decode, record.value)
        identity = _id_bytes(row.id) if self._outer is None else self._outer(record)
        if identity is None:
            raise RecordError("the label has no id", fix=_FIX, stage="label")
        parser = self._parser
        if parser.constant is not None:
            return DecodedLabel(identity, parser.constant)
        y = row.label
        if y is None:
            raise RecordError(
                f"the message has no label in field {self._field!r}",
                fix="send the label, or name its field as label_input.label",
                stage="label",
            )
        return DecodedLabel(identity, parser.code(y))

    def many(self, records: Sequence[_KeyedMessage]) -> tuple[list[bytes], NDArray[np.uint8]] | None:
        """Decode messages: their ids and codes; None: one of them is bad, decode them one by one."""
        parser = self._parser
        try:
            rows: list[Any] = (
                [] if self._decode is None else list(map(self._decode, [each.value for each in records]))
            )
            ids = (
                [_id_bytes(row.id) for row in rows]
                if self._outer is None
                else list(map(self._outer, records))
            )
            if parser.constant is not None:
                codes = np.full(len(records), parser.constant, np.uint8)
            else:
                codes = parser.codes([row.label for row in rows])
        except (RecordError, msgspec.ValidationError, AttributeError):
            return None
        return None if None in ids else (cast("list[bytes]", ids), codes)


def _parsed(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        raise RecordError(
            "the message has no value (a tombstone)",
            fix="send the label again; a label that came cannot be taken back",
            stage="label",
        )
    try:
        return decode(value)
    except RecordError as error:
        # Events and labels have one reader, which speaks of events.
        problem = error.problem.replace("the event", "it", 1)
        raise RecordError(f"the message is no label: {problem}", fix=error.fix, stage="label") from None
    except msgspec.ValidationError as error:
        raise RecordError(
            f"the message is no label: {error}", fix="send an object with id and label", stage="label"
        ) from None


def _table(config: Config) -> LabelInputConfig:
    assert config.label_input is not None
    return config.label_input


def _struct(fields: dict[str, str]) -> Any:
    kinds = {"id": str | int | None, "label": bool | int | float | str | None}
    return msgspec.defstruct(
        "Fields", [(name, kinds[name], None) for name in fields], rename=fields, gc=False
    )


def _outer_id(labels: LabelInputConfig) -> Callable[[_KeyedMessage], bytes | None]:
    """The function from a message to its id, in its key or a header."""
    if isinstance(labels.id, str):
        return attrgetter("key")
    name = labels.id.header

    def from_header(record: _KeyedMessage) -> bytes | None:
        return next((value for header, value in record.headers if header == name), None)

    return from_header


def _id_bytes(value: str | int | None) -> bytes | None:
    return None if value is None else str(value).encode()
