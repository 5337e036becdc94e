"""The key of replay-safe noise, and what is computed with it: in no repr, error, state or pickle."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, NoReturn

from streampair.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAC", "NoiseKey"]


class NoiseKey:
    """The secret behind replay-safe noise; it shows in no repr, log line or saved state.

    Parameters
    ----------
    secret
        At least 32 bytes that nobody can guess, for example from ``secrets.token_bytes(32)``. As sensitive
        as the data: whoever has it, and the records, can compute the noise.

    Raises
    ------
    ConfigError
        If it is shorter, or not bytes.

    Notes
    -----
    A copy in memory is the key itself. A pickle has only its place: files and messages travel, and are kept
    by those who know nothing of it. What was unpickled is `absent`, and draws nothing until it is given the
    key again (`bind_noise` of a learner).

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
        """Whether this is only the place of a key, which was left out of a pickle."""
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
        """The key as one that does not show: from a key, from bytes, or None for none.

        Raises
        ------
        ConfigError
            If it is anything else, or too short.
        """
        return key if key is None or isinstance(key, NoiseKey) else cls(key)  # type: ignore[arg-type]

    def mac(self) -> MAC:
        """A function to authenticate with.

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
    """The place of a key that was left out of a pickle."""
    key = NoiseKey.__new__(NoiseKey)
    key._secret = b""
    return key


class MAC:
    """HMAC-SHA256 with the key's part of the work done once."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")

    def __call__(self, message: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(message)
        return mac.digest()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MAC holds its key; pickle what it gave, and give the key again")
