"""Decoders of labels that come on a topic of their own, and of the ids of their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from streampair.errors import RecordError
from streampair_connectors.codecs.records import LabelParser
from streampair_connectors.config import Config, LabelsConfig

__all__ = ["DecodedLabel", "LabelCodeParser", "event_ids", "label_decoder"]

_LOW, _HIGH = 1, 2  # codes, as of `Config.label_codes`
_FIX = "send the id that the event has, in the field, key or header that labels.id names"


class _KeyedMessage(Protocol):
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


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
    ...     "labels": {"topic": "chargebacks", "id": "payment", "value": True, "after": "30d"},
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
    decode = msgspec.json.Decoder(_struct({"id": field})).decode
    limit = config.input.max_event_bytes

    def one(record: _KeyedMessage) -> bytes | None:
        value = record.value
        if value is None or len(value) > limit:
            return None
        try:
            return _id_bytes(decode(value).id)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None

    return lambda records: [one(record) for record in records]


class LabelCodeParser(LabelParser):
    """Parser of labels that come later, to their codes (`Config.label_codes`).

    Attributes
    ----------
    constant
        Code of every label, if `labels.value` says it; None: labels are in a field.
    """

    def __init__(self, config: Config) -> None:
        labels = _table(config)
        super().__init__(config.input.model_copy(update={"label": labels.label}))
        self._codes = {_key(config.input.negative_label()): _LOW, _key(config.input.positive): _HIGH}
        self.constant = None if labels.value is None else self._codes[_key(labels.value)]

    def code(self, value: object) -> int:
        """Code of a value of JSON; raises RecordError if it is no label."""
        return self._codes[_key(self.resolve(value))]

    def code_of_text(self, text: str) -> int:
        """Code of a cell of CSV; raises RecordError if it is no label."""
        return self._codes[_key(self.resolve_text(text))]


def label_decoder(config: Config) -> Callable[[_KeyedMessage], DecodedLabel]:
    """Return the function that decodes a message of the labels topic.

    Raises
    ------
    RecordError
        By the returned function, with stage `"label"`: there is no id or no label, or the label is unknown.
    """
    labels = _table(config)
    parser = LabelCodeParser(config)
    constant = parser.constant
    outer = None if labels.id_field is not None else _outer_id(labels)
    fields = {} if labels.id_field is None else {"id": labels.id_field}
    fields |= {} if labels.label is None else {"label": labels.label}
    decode = msgspec.json.Decoder(_struct(fields)).decode if fields else None

    def one(record: _KeyedMessage) -> DecodedLabel:
        row = None
        if decode is not None:
            row = _parsed(decode, record.value)
        identity = outer(record) if outer is not None else _id_bytes(row.id)  # type: ignore[union-attr]
        if identity is None:
            raise RecordError("the label has no id", fix=_FIX, stage="label")
        if constant is not None:
            return DecodedLabel(identity, constant)
        y = row.label  # type: ignore[union-attr]
        if y is None:
            raise RecordError(
                f"the message has no label in field {labels.label!r}",
                fix="send the label, or name its field as labels.label",
                stage="label",
            )
        if parser.boolean and isinstance(y, bool):
            return DecodedLabel(identity, _HIGH if y else _LOW)
        return DecodedLabel(identity, parser.code(y))

    return one


def _parsed(decode: Callable[[bytes], Any], value: bytes | None) -> Any:
    if value is None:
        raise RecordError(
            "the message has no value (a tombstone)",
            fix="send the label again; a label that came cannot be taken back",
            stage="label",
        )
    try:
        return decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RecordError(
            f"the message is no label: {error}", fix="send a JSON object with id and label", stage="label"
        ) from None


def _table(config: Config) -> LabelsConfig:
    assert config.labels is not None
    return config.labels


def _key(label: object) -> tuple[bool, object]:
    return isinstance(label, str), label  # 1 and True are one label, "1" is another


def _struct(fields: dict[str, str]) -> Any:
    kinds = {"id": str | int | None, "label": bool | int | float | str | None}
    return msgspec.defstruct(
        "Fields", [(name, kinds[name], None) for name in fields], rename=fields, gc=False
    )


def _outer_id(labels: LabelsConfig) -> Callable[[_KeyedMessage], bytes | None]:
    """The function from a message to its id, in its key or a header."""
    if isinstance(labels.id, str):
        return lambda record: record.key
    name = labels.id.header

    def from_header(record: _KeyedMessage) -> bytes | None:
        return next((value for header, value in record.headers if header == name), None)

    return from_header


def _id_bytes(value: str | int | None) -> bytes | None:
    return None if value is None else str(value).encode()
