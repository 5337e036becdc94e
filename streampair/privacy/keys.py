"""The key of replay-safe noise, and its HMAC; no repr, error, state or pickle has the key."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NoReturn

from streampair.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAC", "NoiseKey"]


class NoiseKey:
    """Secret key of replay-safe noise; no repr, log line or saved state contains it.

    Parameters
    ----------
    secret
        At least 32 random bytes, for example from ``secrets.token_bytes(32)``. As sensitive as the data:
        whoever has it, and the records, can compute the noise.

    Raises
    ------
    ConfigError
        If it is shorter, or not bytes.

    Notes
    -----
    A copy in memory has the same secret. A pickle has none, since pickles are often stored or sent without
    protection: an unpickled key is `absent`, and a learner with it draws no noise until `bind_noise` gives
    it the key again.

    Examples
    --------
    >>> import pickle
    >>> from streampair.privacy import NoiseKey
    >>> key = NoiseKey(bytes(range(32)))
    >>> key
    NoiseKey(...)
    >>> pickle.loads(pickle.dumps(key)).absent
    True
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) < 32:
            raise ConfigError(
                "the noise key must be at least 32 bytes",
                fix="make one with: openssl rand -hex 32; keep it in a file of mode 0600, and give its bytes",
            )
        self._secret = secret

    @property
    def absent(self) -> bool:
        """Whether this is a placeholder without a secret, from a pickle."""
        return not self._secret

    def __copy__(self) -> NoiseKey:
        return self

    def __deepcopy__(self, memo: object) -> NoiseKey:
        return self

    def __reduce__(self) -> tuple[Callable[[], NoiseKey], tuple[()]]:
        return _absent_key, ()

    def __repr__(self) -> str:
        return "NoiseKey(absent)" if self.absent else "NoiseKey(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoiseKey) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(NoiseKey)

    @classmethod
    def of(cls, key: object) -> NoiseKey | None:
        """Return a `NoiseKey` from a key or from bytes; None for None.

        Raises
        ------
        ConfigError
            If it is anything else, or too short.
        """
        return key if key is None or isinstance(key, NoiseKey) else cls(key)  # type: ignore[arg-type]

    def mac(self) -> MAC:
        """Return the HMAC-SHA256 function of this key.

        Raises
        ------
        ConfigError
            If the key is absent.
        """
        if self.absent:
            raise ConfigError(
                "the noise key is absent: no pickle holds one",
                fix="give it again: bind_noise(name, key=...), before the next record",
            )
        return MAC(self._secret)


def _absent_key() -> NoiseKey:
    """Return the placeholder that a pickle has in place of a key."""
    key = NoiseKey.__new__(NoiseKey)
    key._secret = b""
    return key


class MAC:
    """HMAC-SHA256 whose key is hashed once."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def __call__(self, message: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(message)
        return mac.digest()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MAC holds its key and cannot be pickled; give the key again")
