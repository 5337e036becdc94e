"""The noise: a cryptographic stream of normals, and its correlation (PRIVACY.md 4.3, 7).

The bits are the keystream of AES-256 in counter mode under a key from the operating
system. A key lives in the cipher object alone: it is in no attribute, state, repr or
error, and cannot be copied. Whatever copies a learner (deepcopy, pickle, a snapshot, a
forked process) gets a stream of its own, for two learners that share noise would
cancel it.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streampair import _kernels
from streampair.errors import SnapshotError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["BLTNoise", "NormalStream", "ToeplitzNoise"]

_forks = 0


def _after_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class NormalStream:
    """Independent standard normals from a cipher, 96 uniform bits each.

    Parameters
    ----------
    seed
        None draws a key from the operating system. An integer gives a fixed sequence, for tests: it
        protects nobody.

    Notes
    -----
    How the numbers are asked for does not matter: two calls for 3 give what one call for 6 gives. A
    copy, an unpickled stream and the stream of a forked child draw a fresh key.

    Examples
    --------
    >>> from streampair.privacy import NormalStream
    >>> NormalStream(1).take(2).shape
    (2,)
    """

    _PAIRS = 512

    __slots__ = ("_block", "_cipher", "_fork", "_next", "seeded")

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._key(None if seed is None else hashlib.sha256(b"streampair fixed seed:%d" % seed).digest())

    def _key(self, key: bytes | None) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32) if key is None else key), modes.CTR(bytes(16)))
        self._cipher = cipher.encryptor()
        self._block = np.empty(0)
        self._next = 0
        self._fork = _forks

    def take(self, count: int) -> Floats:
        """The next `count` normals, shape (count,)."""
        if self._fork != _forks:
            self.seeded = False
            self._key(None)
        out = np.empty(count)
        done = 0
        while done < count:
            if self._next == len(self._block):
                words = np.frombuffer(self._cipher.update(bytes(24 * self._PAIRS)), dtype="<u8")
                self._block = np.empty(2 * self._PAIRS)
                self._next = 0
                _kernels.normals_from_bits(words.astype(np.uint64), self._block)
            step = min(count - done, len(self._block) - self._next)
            out[done : done + step] = self._block[self._next : self._next + step]
            # A number is used once and then gone.
            self._block[self._next : self._next + step] = 0.0
            self._next += step
            done += step
        return out

    def __copy__(self) -> NormalStream:
        return NormalStream()

    def __deepcopy__(self, memo: object) -> NormalStream:
        return NormalStream()

    def __reduce__(self) -> tuple[type[NormalStream], tuple[()]]:
        return NormalStream, ()

    def __repr__(self) -> str:
        return f"<NormalStream, {'fixed seed' if self.seeded else 'key from the operating system'}>"


class ToeplitzNoise:
    """Rows of `sigma C^-1 z` from all z so far; C^-1 is given by its first column.

    Parameters
    ----------
    inverse
        First column of C^-1, shape (horizon,).
    dim
        Coordinates d.
    sigma
        Standard deviation of z.
    """

    def __init__(self, inverse: Floats, dim: int, sigma: float) -> None:
        self._inverse = inverse
        self._sigma = sigma
        self._dim = dim
        self._history = np.empty((0, dim))
        self.drawn = 0

    def rows(self, count: int, stream: NormalStream) -> Floats:
        """The next `count` rows, shape (count, d)."""
        end = self.drawn + count
        if end > len(self._history):
            room = min(max(end, 2 * len(self._history), 64), len(self._inverse))
            grown = np.empty((room, self._dim))
            grown[: self.drawn] = self._history[: self.drawn]
            self._history = grown
        self._history[self.drawn : end] = stream.take(count * self._dim).reshape(count, self._dim)
        out = np.empty((count, self._dim))
        _kernels.toeplitz_noise(self._inverse, self._history, self.drawn, self._sigma, out)
        self.drawn = end
        return out

    def to_state(self) -> Floats:
        """z so far, shape (drawn, d): as secret as the data, for it uncovers the noise."""
        return self._history[: self.drawn].copy()

    def load_state(self, state: Floats) -> None:
        """Continue after the z of `to_state`."""
        if state.ndim != 2 or state.shape[1] != self._dim or len(state) > len(self._inverse):
            raise SnapshotError(
                f"the noise memory has shape {state.shape}, which does not fit this learner",
                fix="restore with the parameters that the snapshot was made with",
            )
        self._history = np.ascontiguousarray(state, dtype=np.float64).copy()
        self.drawn = len(state)


class BLTNoise:
    """Rows of `sigma C^-1 z` for a buffered linear Toeplitz C, in memory (h, d).

    Parameters
    ----------
    omega, theta
        The BLT, shape (h,) each.
    dim
        Coordinates d.
    sigma
        Standard deviation of z.
    """

    def __init__(self, omega: Floats, theta: Floats, dim: int, sigma: float) -> None:
        self._omega = omega
        self._theta = theta
        self._sigma = sigma
        self._memory = np.zeros((len(omega), dim))

    def rows(self, count: int, stream: NormalStream) -> Floats:
        """The next `count` rows, shape (count, d)."""
        dim = self._memory.shape[1]
        z = stream.take(count * dim).reshape(count, dim)
        _kernels.blt_noise(self._omega, self._theta, self._memory, self._sigma, z)
        return z

    def to_state(self) -> Floats:
        """The memory, shape (h, d): as secret as the data, for it uncovers the noise."""
        return self._memory.copy()

    def load_state(self, state: Floats) -> None:
        """Continue with the memory of `to_state`."""
        if state.shape != self._memory.shape:
            raise SnapshotError(
                f"the noise memory has shape {state.shape}, not {self._memory.shape}",
                fix="restore with the parameters that the snapshot was made with",
            )
        self._memory = np.ascontiguousarray(state, dtype=np.float64).copy()
