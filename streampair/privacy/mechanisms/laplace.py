"""Laplace noise on the integers, exactly: for pure epsilon (docs/privacy.md 5)."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LaplaceStream"]

_BYTES = 4096


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

    __slots__ = ("_bits", "_cipher", "_left")

    def __init__(self, seed: int | None = None) -> None:
        key = os.urandom(32) if seed is None else hashlib.sha256(b"streampair laplace:%d" % seed).digest()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._bits = self._left = 0

    def _below(self, bound: int) -> int:
        """Uniform in 0, ..., bound - 1."""
        size = (bound - 1).bit_length()
        while True:
            if self._left < size:
                self._bits = int.from_bytes(self._cipher.update(bytes(_BYTES + size)), "little")
                self._left = 8 * (_BYTES + size)
            value = self._bits & ((1 << size) - 1)
            self._bits >>= size
            self._left -= size
            if value < bound:
                return value

    def _falls(self, above: int, below: int) -> bool:
        """True with probability ``exp(-above / below)``, for above <= below."""
        k = 1
        while self._below(below * k) < above:
            k += 1
        return k % 2 == 1

    def _one(self, scale: int) -> int:
        while True:
            low = self._below(scale)
            if not self._falls(low, scale):
                continue
            size = low
            while self._falls(1, 1):
                size += scale
            negative = self._below(2)
            if not (negative and size == 0):
                return -size if negative else size

    def take(self, count: int, scale: int) -> NDArray[np.int64]:
        """The next `count` integers, of scale t = `scale` >= 1, shape (count,)."""
        return np.array([self._one(scale) for _ in range(count)], dtype=np.int64)

    def integers(self, count: int) -> NDArray[np.uint64]:
        """Uniform in 0, ..., 2^64 - 1, shape (count,)."""
        return np.frombuffer(self._below(1 << (64 * count)).to_bytes(8 * count, "little"), dtype="<u8")

    def take_staircase(self, count: int, width: int, inner: int, scale: int) -> NDArray[np.int64]:
        """Integers ``+-(j width + i)``, 0 <= i < width, j >= 0, shape (count,).

        With probability proportional to ``exp(-j / scale)`` for i < `inner`, else ``exp(-(j + 1) / scale)``.
        """
        return np.array([self._stair(width, inner, scale) for _ in range(count)], dtype=np.int64)

    def _stair(self, width: int, inner: int, scale: int) -> int:
        while True:
            within = self._below(width)
            if within >= inner and not self._falls(1, scale):
                continue
            # Steps j with probability proportional to exp(-j / scale): a digit below scale, and whole ones.
            steps = self._below(scale)
            if not self._falls(steps, scale):
                continue
            while self._falls(1, 1):
                steps += scale
            size = steps * width + within
            negative = self._below(2)
            if not (negative and size == 0):
                return -size if negative else size
