"""The strict reader of JSON: the fields of an object that are used.

Bytes are JSON (RFC 8259) in UTF-8 without a byte order mark, so that NaN and Infinity are refused. Objects
and lists are nested at most 100 deep: how deep a parser follows depends on the stack that calls it. The key
of a used field comes once. All but the last rule hold for other fields, too.

msgspec parses. It does not look at the encoding of values that are not used, and takes the last of two equal
keys, so that both are checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError

__all__ = ["EVERY", "JsonFields", "Tree", "check_text", "is_json", "json_object"]

Tree = dict[str, Any]
"""The used keys of an object: for each the tree of its value, or None: all of the value is used."""


class _Every(Tree):
    """The tree of an object of which every field is used."""

    def __contains__(self, _: object) -> bool:
        return True

    def __getitem__(self, _: str) -> Any:
        return None


EVERY: Tree = _Every()
_DEPTH = 100
_COLON, _BRACE, _BRACKET, _QUOTE, _BLANK = b':{[" '
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.DOTALL)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_FIX = "send one JSON object, in UTF-8, as the value of each record"


class JsonFields:
    """Reader of the used fields of JSON objects.

    Parameters
    ----------
    tree
        The used fields.

    Examples
    --------
    >>> read = JsonFields({"a": {"b": None}}).parse
    >>> read(b'{"a": {"b": 1, "c": 2}, "d": 3}')
    {'a': {'b': 1}}
    >>> read(b'{"a": {"b": 1}, "a": {"b": 2}}')
    Traceback (most recent call last):
    ...
    streampair.errors.RecordError: the field 'a' comes twice. Fix: send each field once.
    """

    def __init__(self, tree: Tree = EVERY) -> None:
        self._tree = tree
        spelled = [] if tree is EVERY else [f'"{key}"'.encode() for key in _keys(tree)]
        self._short = [key + b":" for key in spelled if len(key) <= _END]
        self._ends = np.zeros(2**16, np.bool_) if spelled else None
        for key in spelled:
            if len(key) > _END:
                self._ends[_end_codes(np.frombuffer(key, np.uint8), np.array([len(key) - 1]))] = True  # type: ignore[index]

    def parse(self, value: bytes) -> dict[str, Any]:
        """Return the used fields that an object has.

        A number without a finite value is infinite.

        Raises
        ------
        RecordError
            It is no JSON object, or a used key comes twice.
        """
        check_text(value)
        try:
            return _pruned(value, self._tree)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _malformed(value, error) from None

    def check(self, value: bytes, present: int) -> None:
        """Check what `parse` checks, and msgspec did not, of an object that it has read.

        Parameters
        ----------
        value
            The object.
        present
            Number of used keys that it certainly has.

        Raises
        ------
        RecordError
        """
        check_text(value)
        if value.count(b":") != present:
            _check_keys(value, self._tree)

    def are_checked(self, values: Sequence[bytes], present: int) -> bool:
        """Whether `check` raises for none of some objects; False: it may for one.

        Parameters
        ----------
        values
            The objects.
        present
            Number of used keys that all of them together certainly have.
        """
        joined = b"".join(values)
        text = np.frombuffer(joined, np.uint8)
        if not (_is_text(joined) and _are_shallow(values, text)):
            return False
        if _count(text, _COLON) == present:
            return True
        # If no key has an escape, or a blank behind it, each ends with these two characters.
        quotes = text[:-1] == _QUOTE
        if self._ends is None or b"\\" in joined or bool((quotes & (text[1:] <= _BLANK)).any()):
            return False
        ends = np.flatnonzero(quotes & (text[1:] == _COLON))
        found = int(np.count_nonzero(self._ends[_end_codes(text, ends)]))
        return found + sum(map(joined.count, self._short)) == present


_END = 4


def _end_codes(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Codes of the last characters in front of some places."""
    codes = np.zeros(len(ends), np.uint16)
    for back in range(1, _END + 1):
        codes = codes * np.uint16(31) + text[ends - back]
    return codes


def json_object(value: bytes) -> dict[str, Any]:
    """Return all fields of a JSON object; see `JsonFields.parse`."""
    return _EVERYTHING.parse(value)


_EVERYTHING = JsonFields()


def is_json(value: bytes) -> bool:
    """Whether a text is JSON as it is read here, an object or not."""
    try:
        check_text(value)
        msgspec.json.decode(value, type=msgspec.Raw)
    except (RecordError, msgspec.MsgspecError, RecursionError):
        return False
    return True


def check_text(value: bytes) -> None:
    """Refuse what is not UTF-8, or may be nested too deeply to be parsed.

    Raises
    ------
    RecordError
    """
    if not _is_text(value):
        raise RecordError(
            f"the event is not JSON: it is not UTF-8{' but UTF-16' if value[:2] in _UTF_16 else ''}",
            fix=_FIX,
            stage="decode",
        )
    if value.count(b"{") + value.count(b"[") > _DEPTH and _depth(value.decode()) > _DEPTH:
        raise RecordError("the event is nested too deeply", fix="send a flat JSON object", stage="decode")


def _is_text(value: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_shallow(values: Sequence[bytes], text: NDArray[np.uint8]) -> bool:
    """Whether in none of the values so many objects and lists begin that they may be nested too deeply."""
    if _count(text, _BRACE) + _count(text, _BRACKET) - (len(values) - 1) <= _DEPTH:
        return True
    begins = np.fromiter(map(len, [b"", *values[:-1]]), np.int64, len(values)).cumsum()
    counts = np.add.reduceat((text == _BRACE) | (text == _BRACKET), begins, dtype=np.int64)
    return bool(counts.max() <= _DEPTH)


def _count(text: NDArray[np.uint8], byte: int) -> int:
    """How often a byte occurs."""
    return int(np.count_nonzero(text == byte))


def _keys(tree: Tree) -> set[str]:
    """The keys at all places of a tree."""
    below = (_keys(each) for each in tree.values() if each is not None and each is not EVERY)
    return set(tree).union(*below)


def _opened(value: bytes | msgspec.Raw, tree: Tree) -> dict[str, msgspec.Raw]:
    """The members of an object.

    Raises
    ------
    RecordError
        A used key comes twice.
    """
    members = _members(value)
    # Each member has a colon of its own, also one that another with the same key has replaced.
    colons = bytes(value).count(b":") - b"".join(members.values()).count(b":")
    if colons != len(members) and (key := _repeated(bytes(value).decode(), tree)) is not None:
        raise RecordError(f"the field {key!r} comes twice", fix="send each field once", stage="decode")
    return members


def _check_keys(value: bytes | msgspec.Raw, tree: Tree) -> None:
    """Check the keys of an object, and those of used objects in it: as `_opened`."""
    members = _opened(value, tree)
    for key, below in () if tree is EVERY else tree.items():
        if below is not None and key in members and bytes(members[key])[:1] == b"{":
            _check_keys(members[key], below)


def _pruned(value: bytes | msgspec.Raw, tree: Tree) -> dict[str, Any]:
    """The values of the used fields, with keys checked as of `_opened`."""
    members, found = _opened(value, tree), {}
    for key in members if tree is EVERY else [key for key in tree if key in members]:
        raw, below = members[key], tree[key]
        found[key] = _read(raw) if below is None or bytes(raw)[:1] != b"{" else _pruned(raw, below)
    return found


def _read(value: msgspec.Raw) -> Any:
    try:
        return _value(value)
    except msgspec.ValidationError:  # a number that is too large
        return {b"[": [], b"{": {}}.get(bytes(value)[:1], math.inf)


def _tokens(text: str) -> Iterator[str]:
    return (match[0] for match in _TOKEN.finditer(text))


def _depth(text: str) -> int:
    """How deep objects and lists are nested."""
    depth = most = 0
    for part in _tokens(text):
        if part in "{[":
            depth += 1
            most = max(most, depth)
        elif part in "}]":
            depth -= 1
    return most


def _repeated(text: str, used: Tree) -> str | None:
    """A used key that comes twice in an object, but for objects in it; None: there is none."""
    depth, last, keys = 0, "", set[str]()
    for part in _tokens(text):
        if part in "{[":
            depth += 1
        elif part in "}]":
            depth -= 1
        elif part != ":":
            last = part
        elif depth == 1 and (key := str(_value(last))) in used:
            if key in keys:
                return key
            keys.add(key)
    return None


def _malformed(value: bytes, error: Exception) -> RecordError:
    """The error for bytes that msgspec refuses."""
    if not value.strip():
        return RecordError(
            "the event is empty: it has no bytes", fix="send a JSON object with the features", stage="decode"
        )
    if isinstance(error, msgspec.ValidationError):
        return RecordError(
            "the event is not a JSON object",
            fix='send an object such as {"feature": 1.5, "label": true}',
            stage="decode",
        )
    if value.startswith(b"\x00"):
        return RecordError(
            "the event is not JSON: it begins with a zero byte, as the messages of a schema registry do "
            "(Avro, Protobuf or JSON Schema)",
            fix='set input.format = "avro" or "json-schema"; Protobuf is not read: convert the topic',
            stage="decode",
        )
    if value.startswith(b"\xef\xbb\xbf"):
        reason, fix = "it begins with a byte order mark", "send UTF-8 without a byte order mark"
    elif re.search(rb"[:\[,]\s*(NaN|-?Infinity)\b", value):
        reason, fix = "NaN and Infinity are no numbers of JSON", "send null, or leave the field out"
    elif re.search(rb"\\u[dD][89a-fA-F]", value) and re.search("surrogate|truncated", str(error)):
        reason, fix = "half of a surrogate pair is no text", "send texts in UTF-8"
    else:
        reason, fix = str(error).removeprefix("JSON is malformed: ")[:100], _FIX
    return RecordError(f"the event is not JSON: {reason}", fix=fix, stage="decode")
