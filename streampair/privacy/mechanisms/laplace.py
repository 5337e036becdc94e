"""Laplace noise on the integers, exactly: for pure epsilon (docs/privacy.md 5)."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streampair import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["LaplaceStream"]

#: Words that are drawn for an integer, and at most at once: it takes 10 to 14. Too few cost another turn, and
#: those too many are for the next.
_WORDS_EACH, _MOST_WORDS = 12, 1 << 16


class LaplaceStream:
    """Independent integers k with probability proportional to ``exp(-|k| / t)``, from a cipher's bits.

    In integers from the first bit to the last, by the algorithm of Canonne, Kamath and Steinke (2020): there
    is no rounding, so no share of delta is due to it.

    Parameters
    ----------
    seed
        None draws a key from the operating system. An integer gives a fixed sequence, for tests: it protects
        nobody.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.laplace import LaplaceStream
    >>> LaplaceStream(1).take(3, 10).shape
    (3,)
    """

    __slots__ = ("_cipher", "_law", "_words")

    def __init__(self, seed: int | None = None) -> None:
        key = os.urandom(32) if seed is None else hashlib.sha256(b"streampair laplace:%d" % seed).digest()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._law: tuple[np.uint64, ...] = ()
        self._words: Words = np.empty(0, dtype=np.uint64)

    def integers(self, count: int) -> Words:
        """Uniform in 0, ..., 2^64 - 1, shape (count,)."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def take(self, count: int, scale: int) -> Ints:
        """The next `count` integers, of scale t = `scale` >= 1, shape (count,)."""
        return self.take_staircase(count, 1, 1, scale)

    def take_staircase(self, count: int, width: int, inner: int, scale: int) -> Ints:
        """Integers ``+-(j width + i)``, 0 <= i < width, j >= 0, shape (count,).

        With probability proportional to ``exp(-j / scale)`` for i < `inner`, else ``exp(-(j + 1) / scale)``.

        Raises
        ------
        OverflowError
            If a number beyond 64 bits would be needed.
        """
        out = np.empty(count, dtype=np.int64)
        law = (np.uint64(width), np.uint64(inner), np.uint64(scale))
        if law != self._law:
            # What is left was not enough for another law, and so is not uniform any more.
            self._law, self._words = law, self._words[:0]
        made = 0
        while True:
            drawn, used = kernels.laplace_integers(self._words, *law, out[made:])
            if used == kernels.LARGE_BOUND:
                raise OverflowError(f"a scale of {scale} needs numbers beyond 64 bits")
            made += drawn
            self._words = self._words[used:]
            if made == count:
                return out
            more = self.integers(min(_WORDS_EACH * (count - made + 1), _MOST_WORDS))
            self._words = np.concatenate([self._words, more])
