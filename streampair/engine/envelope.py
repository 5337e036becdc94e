"""The container of a lane's saved state: versioned, checksummed, signed where there is a key.

Layout of the bytes, all integers big-endian::

    magic (11) | format version (2) | flags (1) | checksum (32) | tag (32) | body

- `checksum` is BLAKE2b-256 of version, flags and body: it finds damage.
- `tag` is HMAC-SHA256 of version, flags and body with the key of the lane, or zeros when the lane has none
  (bit 0 of `flags` says which): it finds forgery. `unpack` looks at it only if it is given the key.
- `body` is msgpack. Arrays are an extension type that holds dtype, shape and C-ordered bytes, little-endian;
  integers beyond 64 bits another. Nothing in it can name code. A step that only pickle can save is bytes,
  which stay bytes here: a lane unpickles them if the tag was checked, and else refuses the snapshot.

`pack` and `unpack` know nothing of lanes; what the body holds is written in `snapshot.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from streampair.errors import ConfigError, SnapshotError

__all__ = ["FORMAT_VERSION", "MIN_KEY_BYTES", "pack", "unpack"]

MAGIC: Final = b"streampair\x00"
#: Written by this release, and read.
FORMAT_VERSION: Final = 1
#: Shortest signing key that is taken: 128 bits.
MIN_KEY_BYTES: Final = 16

_HEAD: Final = len(MAGIC) + 2 + 1
_PREFIX: Final = _HEAD + 32 + 32
_SIGNED: Final = 1
_EXT_ARRAY: Final = 1
_EXT_INT: Final = 2
# Little-endian on every machine, so that a snapshot moves between processors.
_DTYPES: Final = {
    "bool": np.dtype("?"),
    "int8": np.dtype("<i1"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("<u1"),
    "uint64": np.dtype("<u8"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}


def pack(body: Mapping[str, object], *, signing_key: bytes | None = None) -> bytes:
    """Serialise a tree of plain values.

    Parameters
    ----------
    body
        None, bool, int, float, str, bytes, list, dict with text keys, and numpy arrays of bool, int8, int32,
        int64, uint8, uint64, float32 or float64.
    signing_key
        At least 16 bytes. With it the result carries an HMAC-SHA256 tag.

    Returns
    -------
    bytes

    Raises
    ------
    SnapshotError
        If the tree holds anything else.
    ConfigError
        If the key is too short.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.engine.envelope import pack, unpack
    >>> unpack(pack({"weights": np.array([1.0, 2.0])}))["weights"]
    array([1., 2.])
    """
    payload = msgspec.msgpack.encode(_plain(body, "body"))
    head = FORMAT_VERSION.to_bytes(2, "big") + bytes([_SIGNED if signing_key is not None else 0])
    checksum = hashlib.blake2b(head + payload, digest_size=32).digest()
    tag = bytes(32) if signing_key is None else _tag(signing_key, head + payload)
    return b"".join((MAGIC, head, checksum, tag, payload))


def unpack(data: bytes, *, signing_key: bytes | None = None) -> dict[str, Any]:
    """Read what `pack` wrote; everything is checked before anything is returned.

    Parameters
    ----------
    data
        The bytes of one snapshot.
    signing_key
        If given, the snapshot must carry a valid tag of this key.

    Returns
    -------
    dict
        Arrays are writable and own their memory.

    Raises
    ------
    SnapshotError
        If the bytes are not a snapshot, are cut short or damaged, were written by another format version, or
        are not signed with `signing_key`.
    """
    if not data.startswith(MAGIC):
        what = "it is empty" if not data else "it does not begin like one"
        raise SnapshotError(
            f"this is not a streampair snapshot: {what}",
            fix="check the path of the store; move the file away to start without it",
        )
    if len(data) < _PREFIX:
        raise _damaged(f"only {len(data)} bytes are left of it")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 2], "big")
    if version != FORMAT_VERSION:
        raise SnapshotError(
            f"the snapshot has format version {version}, this release reads {FORMAT_VERSION}",
            fix="run the release that wrote it, or a newer one",
        )
    head, payload = data[len(MAGIC) : _HEAD], data[_PREFIX:]
    if hashlib.blake2b(head + payload, digest_size=32).digest() != data[_HEAD : _HEAD + 32]:
        raise _damaged("its checksum does not match")
    if signing_key is not None:
        if not head[2] & _SIGNED:
            raise SnapshotError(
                "the snapshot is not signed, but this lane has a signing key",
                fix="restore the signed snapshot that this lane wrote, or start from an empty store",
            )
        if not hmac.compare_digest(_tag(signing_key, head + payload), data[_HEAD + 32 : _PREFIX]):
            raise SnapshotError(
                "the signature of the snapshot does not match the signing key",
                fix="use the key that the snapshot was written with; if the key is right, somebody changed "
                "the snapshot: do not trust the store",
            )
    try:
        body = msgspec.msgpack.decode(payload, ext_hook=_ext_hook)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise _damaged(f"its body cannot be read ({error})") from error
    if not isinstance(body, dict):
        raise _damaged("its body is not a table")
    return body


def is_signed(data: bytes) -> bool:
    """Whether the snapshot claims to carry a tag (which only `unpack` with the key can check)."""
    return len(data) >= _PREFIX and data.startswith(MAGIC) and bool(data[_HEAD - 1] & _SIGNED)


def check_key(signing_key: bytes) -> None:
    """Refuse a key that is too short to sign with.

    Raises
    ------
    ConfigError
    """
    if not isinstance(signing_key, bytes) or len(signing_key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"the signing key must be at least {MIN_KEY_BYTES} bytes",
            fix='make one with python -c "import secrets; print(secrets.token_hex(32))" and keep it out of '
            "the configuration file",
        )


def _tag(signing_key: bytes, message: bytes) -> bytes:
    check_key(signing_key)
    # The label keeps this use of the key apart from any other use of the same key.
    return hmac.new(signing_key, b"streampair snapshot\x00" + message, hashlib.sha256).digest()


def _damaged(how: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot is damaged: {how}",
        fix="restore the store from a backup, or move the file away to start from the beginning of the topic",
    )


def _plain(value: object, path: str) -> object:
    """The same tree in types that msgpack has; `path` is for the message."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        assert isinstance(value, int)
        if -(2**63) <= value < 2**64:
            return value
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_EXT_INT, value.to_bytes(size, "big", signed=True))
    if kind is dict:
        assert isinstance(value, dict)
        for key in value:
            if type(key) is not str:
                raise _unknown(f"the key {key!r} of {path}", type(key))
        return {key: _plain(item, f"{path}.{key}") for key, item in value.items()}
    if kind is list:
        assert isinstance(value, list)
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if kind is np.ndarray:
        assert isinstance(value, np.ndarray)
        dtype = _DTYPES.get(value.dtype.name)
        if dtype is None:
            raise _unknown(path, value.dtype)
        head = msgspec.msgpack.encode([value.dtype.name, list(value.shape)])
        data = np.ascontiguousarray(value, dtype=dtype).tobytes()
        return msgspec.msgpack.Ext(_EXT_ARRAY, len(head).to_bytes(2, "big") + head + data)
    raise _unknown(path, kind)


def _unknown(path: str, kind: object) -> SnapshotError:
    return SnapshotError(
        f"{path} cannot be saved: a snapshot has no place for {kind}",
        fix="to_state must return plain values, lists, dicts with text keys and numpy arrays",
    )


def _ext_hook(code: int, data: memoryview) -> object:
    raw = bytes(data)
    if code == _EXT_INT:
        return int.from_bytes(raw, "big", signed=True)
    if code != _EXT_ARRAY:
        raise ValueError(f"unknown extension {code}")
    size = int.from_bytes(raw[:2], "big")
    name, shape = msgspec.msgpack.decode(raw[2 : 2 + size], type=tuple[str, list[int]])
    dtype = _DTYPES[name]
    content = raw[2 + size :]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError("an array has another size than its shape says")
    # astype to the machine's own byte order; copy, because frombuffer is read-only.
    return np.frombuffer(content, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True)
