"""Laplace noise on the integers, exactly: for pure epsilon (docs/privacy.md 5)."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["LaplaceStream"]

#: Integers that are drawn ahead at most: many at once cost a fifth each of what a few at a time do.
_MOST_AHEAD = 1 << 16


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

    __slots__ = ("_ahead", "_block", "_cipher", "_law")

    def __init__(self, seed: int | None = None) -> None:
        key = os.urandom(32) if seed is None else hashlib.sha256(b"streampair laplace:%d" % seed).digest()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._law: tuple[int, ...] = ()
        self._ahead: Ints = np.empty(0, dtype=np.int64)
        self._block = 0

    def integers(self, count: int) -> Words:
        """Uniform in 0, ..., 2^64 - 1, shape (count,)."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def _below(self, bound: int, count: int) -> Words:
        """Uniform in 0, ..., bound - 1, (count,): words of too much are drawn again."""
        # A bound of more than 64 bits is an error here, and no smaller bound.
        mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
        out = self.integers(count) & mask
        most = np.uint64(bound - 1)
        again = np.flatnonzero(out > most)
        while len(again):
            out[again] = self.integers(len(again)) & mask
            again = again[out[again] > most]
        return out

    def _falls(self, above: Words, below: int) -> NDArray[np.bool_]:
        """True with probability ``exp(-above / below)`` each, for above <= below."""
        out = np.zeros(len(above), dtype=bool)
        left, k = np.arange(len(above)), 1
        while len(left):
            goes_on = self._below(below * k, len(left)) < above[left]
            out[left[~goes_on]] = k % 2 == 1
            left, k = left[goes_on], k + 1
        return out

    def _digits(self, scale: int, count: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Integers n >= 0 with probability proportional to ``exp(-n / scale)`` where True."""
        low = self._below(scale, count)
        drawn = self._falls(low, scale)
        out = low.astype(np.int64)
        more = np.flatnonzero(drawn)
        while len(more):
            more = more[self._falls(np.ones(len(more), dtype=np.uint64), 1)]
            out[more] += scale
        return out, drawn

    def _signed(self, size: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Sizes with a sign each, and which are drawn: 0 has one sign."""
        negative = self._below(2, len(size)) == 1
        return np.where(negative, -size, size), ~(negative & (size == 0))

    def _handed_out(self, law: tuple[int, ...], count: int) -> Ints:
        """The next integers of a law, each once: what is drawn ahead doubles with every draw."""
        if law != self._law:
            self._law, self._ahead, self._block = law, self._ahead[:0], 0
        if count > len(self._ahead):
            self._block = min(2 * self._block + count, max(_MOST_AHEAD, count))
            draw = self._draw if len(law) == 1 else self._draw_staircase
            self._ahead = np.concatenate([self._ahead, draw(self._block, *law)])
        out, self._ahead = self._ahead[:count].copy(), self._ahead[count:]
        return out

    def take(self, count: int, scale: int) -> Ints:
        """The next `count` integers, of scale t = `scale` >= 1, shape (count,)."""
        return self._handed_out((scale,), count)

    def _draw(self, count: int, scale: int) -> Ints:
        out, left = np.empty(count, dtype=np.int64), np.arange(count)
        while len(left):
            size, drawn = self._digits(scale, len(left))
            out[left], kept = self._signed(size)
            left = left[~(drawn & kept)]
        return out

    def take_staircase(self, count: int, width: int, inner: int, scale: int) -> Ints:
        """Integers ``+-(j width + i)``, 0 <= i < width, j >= 0, shape (count,).

        With probability proportional to ``exp(-j / scale)`` for i < `inner`, else ``exp(-(j + 1) / scale)``.
        """
        return self._handed_out((width, inner, scale), count)

    def _draw_staircase(self, count: int, width: int, inner: int, scale: int) -> Ints:
        out, left = np.empty(count, dtype=np.int64), np.arange(count)
        while len(left):
            within = self._below(width, len(left)).astype(np.int64)
            inside = (within < inner) | self._falls(np.ones(len(left), dtype=np.uint64), scale)
            steps, drawn = self._digits(scale, len(left))
            out[left], kept = self._signed(steps * width + within)
            left = left[~(inside & drawn & kept)]
        return out
