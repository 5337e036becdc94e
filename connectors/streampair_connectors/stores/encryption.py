"""Encryption at rest of the values in a log topic: its readers learn only lengths and times.

AES-256-GCM of the library `cryptography`. Each value has its own key, derived by HKDF-SHA256 from the sealing
key and a random salt, so the nonce is a constant and the number of values is unlimited. Lane and position of
a value are associated data: a value that was moved cannot be decrypted.

Layout: magic (4) | kind (1) | key id (8) | salt (32) | ciphertext and tag
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from streampair.errors import ConfigError, StoreError

__all__ = ["MIN_KEY_BYTES", "OVERHEAD", "Seal", "is_sealed"]

MIN_KEY_BYTES: Final = 32
_MAGIC: Final = b"SPS1"
_PLAIN: Final = b"\x00"
_SEALED: Final = b"\x01"
_ID: Final = 8
_SALT: Final = 32
_NONCE: Final = bytes(12)  # the key is used once
_HEAD: Final = len(_MAGIC) + 1 + _ID + _SALT

OVERHEAD: Final = _HEAD + 16
"""Bytes added by sealing."""


class Seal:
    """Encrypts and decrypts values.

    Parameters
    ----------
    keys
        Each at least 32 bytes. The first key encrypts, all of them decrypt. To rotate a key, put the new one
        first, and remove the old one once none of its values is left. Without keys, values are stored in
        plaintext and marked as such.

    Raises
    ------
    ConfigError
        A key is too short.

    Examples
    --------
    >>> seal = Seal([bytes(32)])
    >>> sealed = seal.seal(b"state", b"lane 0, entry 7")
    >>> seal.open(sealed, b"lane 0, entry 7")
    b'state'
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        for key in keys:
            if not isinstance(key, bytes) or len(key) < MIN_KEY_BYTES:
                raise ConfigError(
                    f"a sealing key must be at least {MIN_KEY_BYTES} bytes",
                    fix="create one with: streampair key --output FILE",
                )
        self._keys = {_derived(key, b"streampair key id", b"", _ID): key for key in keys}
        self._first = next(iter(self._keys), None)

    @property
    def seals(self) -> bool:
        """Whether values are encrypted."""
        return self._first is not None

    def seal(self, plain: bytes, context: bytes) -> bytes:
        """Encrypt a value.

        Parameters
        ----------
        plain
            The value.
        context
            Associated data; needed to decrypt it.
        """
        if self._first is None:
            return _MAGIC + _PLAIN + bytes(_ID + _SALT) + plain
        salt = os.urandom(_SALT)
        head = _MAGIC + _SEALED + self._first + salt
        return head + self._cipher(self._first, salt).encrypt(_NONCE, plain, head + context)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Decrypt a value.

        Raises
        ------
        StoreError
            It was encrypted with another key, was changed, or has another `context`.
        """
        if len(sealed) < _HEAD or not sealed.startswith(_MAGIC):
            raise StoreError(
                "a value of the log was not written by streampair",
                fix="set store.log_topic to a topic without other writers",
            )
        head, body = sealed[:_HEAD], sealed[_HEAD:]
        kind, key_id = head[len(_MAGIC) : len(_MAGIC) + 1], head[len(_MAGIC) + 1 : len(_MAGIC) + 1 + _ID]
        if kind == _PLAIN and not self.seals:
            if head[len(_MAGIC) + 1 :] != bytes(_ID + _SALT):
                raise _changed()
            return body
        if kind == _PLAIN:
            raise StoreError(
                "a value of the log is not sealed, and there is a sealing key",
                fix="remove the key to read values that were written without one; or start with another "
                "application name",
            )
        if kind != _SEALED:
            raise _changed()
        if key_id not in self._keys:
            raise StoreError(
                f"a value of the log was sealed with the key {key_id.hex()}, and there "
                + (f"are {', '.join(known.hex() for known in self._keys)}" if self._keys else "is none"),
                fix="give the key that it was sealed with, after the new one if there is one",
            )
        try:
            return self._cipher(key_id, head[-_SALT:]).decrypt(_NONCE, body, head + context)
        except InvalidTag:
            raise _changed() from None

    def _cipher(self, key_id: bytes, salt: bytes) -> AESGCM:
        return AESGCM(_derived(self._keys[key_id], b"streampair seal", salt, 32))

    def __repr__(self) -> str:
        return f"Seal({', '.join(key.hex() for key in self._keys) or 'none'})"


def is_sealed(value: bytes) -> bool:
    """Whether a value was encrypted by `Seal`."""
    return value.startswith(_MAGIC + _SEALED)


def _derived(key: bytes, purpose: bytes, salt: bytes, size: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=size, salt=salt, info=purpose).derive(key)


def _changed() -> StoreError:
    return StoreError(
        "a value of the log was changed or moved",
        fix="do not trust this topic: check who may write to it, and restore a valid copy",
    )
