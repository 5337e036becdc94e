"""The noise: a cryptographic stream of normals, and its correlation (docs/privacy 4.3, 7).

The bits are the keystream of AES-256 in counter mode. `NormalStream` takes its key from
the operating system; the key lives in the cipher object alone: it is in no attribute,
state, repr or error, and cannot be copied. Whatever copies a learner (deepcopy, pickle, a
snapshot, a forked process) gets a stream of its own, for two learners that share noise
would cancel it.

`ChainedNoise` is for learners that must survive a crash: its noise is a function of a key
and of everything that has gone into the learner, so that a replay of the same records
gives the same bytes, and of any other record fresh noise (docs/privacy 8). No pickle
holds the key: what was unpickled is given it again.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streampair import kernels
from streampair.errors import SnapshotError
from streampair.kernels import hashing, random
from streampair.privacy.keys import MAC, NoiseKey
from streampair.privacy.provenance import Packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "MAC",
    "SILENT",
    "BLTNoise",
    "ChainedNoise",
    "NoiseKey",
    "NormalStream",
    "ToeplitzNoise",
    "process_splits",
]

SILENT = bytes(32)
"""In the place of the digest of a step that has drawn no noise, and so released nothing."""

_hash = hashlib.blake2b(digest_size=32).copy  # a copy costs half of a new one

_WORD = np.dtype("<u8")  # as on every processor that is supported: the bytes are the words
_PLACE = struct.Struct(">QI").pack  # step, length of the record's context
_STEP = np.dtype(">u8")  # the step alone, as it is there
_HEAD = 32 + 12  # what stands before the context: the identity and the place

_FEW = 8  # records that are hashed one by one sooner than they are packed
_MOST_WAITING = 256

_forks = 0
_splits = 0


def _after_fork() -> None:
    global _forks
    _forks += 1


def _before_fork() -> None:
    global _splits
    _splits += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def process_splits() -> int:
    """How often this process, and those that it comes from, have forked: more after a fork, on both sides."""
    return _splits


class Stream(Protocol):
    """Where normals come from."""

    def take(self, count: int) -> Floats:
        """The next `count` independent standard normals, shape (count,)."""


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
    >>> from streampair.privacy.noise import NormalStream
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
                random.normals_from_bits(words.astype(np.uint64), self._block)
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


class ChainedNoise:
    """Noise that a replay repeats to the byte, and that nothing else repeats (docs/privacy 8).

    A chain hash runs over everything that a step depends on,

        h_t = H(h_{t-1} | learner and plan | t | record | rounded values before noise),

    and the noise of step t is drawn from a cipher at a place that ``HMAC(key, "noise" | h_t)`` names. If a
    replayed record, its order or a rounded gradient differs in one bit, the noise of that step and of all
    later ones is fresh: the two releases never share noise, so their difference shows nothing. (Keyed by t
    alone they would, and the difference would be the raw gradient's.)

    Parameters
    ----------
    key
        The secret.
    identity
        What learner this is and what it has planned: two learners that differ in anything that scales or
        shapes a release must differ here.

    Attributes
    ----------
    steps
        Steps so far.
    digests
        Of the steps since the list was emptied, if it is one; None keeps none. A step that has drawn no noise
        has `SILENT` in the place of its digest: the next one that draws covers it.

    Notes
    -----
    A step: `record` says what identifies the record, `advance` (once) gives the values that the noise will be
    added to, `take` draws, as often as needed. `skip` and `wait` make steps that release nothing. A copy
    continues the chain: on the same records it gives the same bytes, which discloses nothing new, on others
    fresh ones.

    Examples
    --------
    >>> from streampair.privacy import ChainedNoise, NoiseKey
    >>> one, two = (ChainedNoise(NoiseKey(bytes(32)), b"example") for _ in range(2))
    >>> for chain in (one, two):
    ...     chain.advance(b"the same")
    >>> bool((one.take(3) == two.take(3)).all())
    True
    >>> one.advance(b"this")
    >>> two.advance(b"that")
    >>> bool((one.take(3) == two.take(3)).any())
    False
    """

    __slots__ = (
        *("_chain", "_cipher", "_identity", "_mac", "_open", "_record", "digests", "steps"),
        *("_count", "_room", "_waiting", "_words", "_zeros"),
    )

    # A key from a file is not that of an experiment, where the noise is known.
    seeded = False

    def __init__(self, key: NoiseKey, identity: bytes) -> None:
        self._mac = key.mac()
        self._identity = hashlib.blake2b(identity, digest_size=32, person=b"streampair who").digest()
        self._chain = bytes(32)
        self._record: bytes | None = None
        # Records of the last steps, which the chain does not know yet: see `wait`.
        self._waiting: list[bytes] = []
        self._cipher = Cipher(algorithms.AES(self._mac(b"cipher")), modes.CTR(bytes(16))).encryptor()
        # None: no step is open, nothing may be drawn; False: the cipher is not at the step's place yet.
        self._open: bool | None = None
        self.steps = 0
        self.digests: list[bytes] | None = None
        self._count = -1

    def record(self, context: bytes) -> None:
        """Say what identifies the next record: where it came from, and a digest of its bytes."""
        self._record = context

    def advance(self, values: bytes) -> None:
        """Go on to the next step.

        Parameters
        ----------
        values
            What noise will be added to, rounded to the grid; empty if nothing is released.
        """
        self._catch_up()
        self.steps += 1
        record = self._record or b""
        self._record = None
        link = _hash()
        link.update(b"".join((self._chain, self._identity, _PLACE(self.steps, len(record)), record, values)))
        self._chain = link.digest()
        self._open = False
        if self.digests is not None:
            self.digests.append(SILENT)

    def skip(self, records: Sequence[bytes]) -> None:
        """Go on by a step for each of these records, none of which releases anything: as `advance(b"")`."""
        self._catch_up()
        self._go_through(records, self.steps + 1)
        self.steps += len(records)
        self._record = self._open = None
        if self.digests is not None:
            self.digests += [SILENT] * len(records)

    def wait(self, record: bytes) -> None:
        """`skip` of one record. It is hashed with those that follow, or before anything depends on it."""
        self.steps += 1
        self._record = self._open = None
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) == _MOST_WAITING:
            self._catch_up()
        if self.digests is not None:
            self.digests.append(SILENT)

    def _catch_up(self) -> None:
        """Hash what waits."""
        if self._waiting:
            records, self._waiting = self._waiting, []
            self._go_through(records, self.steps - len(records) + 1)

    def _go_through(self, records: Sequence[bytes], first: int) -> None:
        """Put steps without noise into the chain, the first of which has this number."""
        said = self._said(records, first)
        if isinstance(said, Packed) and not kernels.DISABLED:
            chained = np.frombuffer(self._chain, dtype=np.uint8).copy()
            hashing.hash_chain(chained, said.rows)
            self._chain = chained.tobytes()
        else:
            for one in said:
                link = _hash()
                link.update(self._chain + one)
                self._chain = link.digest()

    def _said(self, records: Sequence[bytes], first: int) -> Sequence[bytes]:
        """What the hash of each record's step is of, behind the chain."""
        who = self._identity
        if not isinstance(records, Packed):
            sizes = set(map(len, records))
            if len(records) < _FEW or len(sizes) > 1 or 0 in sizes:
                return [
                    who + _PLACE(step, len(record)) + record for step, record in enumerate(records, first)
                ]
            records = Packed(np.frombuffer(b"".join(records), dtype=np.uint8).reshape(len(records), -1))
        n, size = records.rows.shape
        said = np.empty((n, _HEAD + size), dtype=np.uint8)
        said[:, :_HEAD] = np.frombuffer(who + _PLACE(0, size), dtype=np.uint8)
        steps = np.arange(first, first + n, dtype=_STEP)
        said[:, len(who) : len(who) + 8] = steps.view(np.uint8).reshape(n, 8)
        said[:, _HEAD:] = records.rows
        return Packed(said)

    def take(self, count: int) -> Floats:
        """The next `count` normals of this step, shape (count,)."""
        words = self.words(count)
        out = np.empty(len(words) // 3 * 2)
        random.normals_from_bits(words, out)
        return out[:count]

    def words(self, count: int) -> NDArray[np.uint64]:
        """The bits of the next `count` normals, for `normals_from_bits`; the next call overwrites them."""
        if self._open is None:
            raise RuntimeError("noise was asked for outside of a step")
        if not self._open:
            self._cipher.reset_nonce(self._mac(b"noise" + self._chain)[:16])
            self._open = True
            if self.digests is not None:
                self.digests[-1] = self.digest
        if count != self._count:
            size = (count + 1) // 2 * 24
            self._count = count
            self._zeros = bytes(size)
            self._room = bytearray(size + 15)  # the cipher wants a block more
            self._words = np.frombuffer(self._room, dtype=_WORD, count=size // 8)
        self._cipher.update_into(self._zeros, self._room)
        return self._words

    @property
    def digest(self) -> bytes:
        """``HMAC(key, "ledger" | h_t)``, 32 bytes: equal after a replay if, and only if, the step was.

        It says nothing about the records, nor about the noise, to whom the key is unknown.
        """
        self._catch_up()
        return self._mac(b"ledger" + self._chain)

    def to_state(self) -> dict[str, object]:
        """The chain, without the key."""
        self._catch_up()
        return {"chain": self._chain, "steps": self.steps}

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue the chain of `to_state`."""
        chain, steps = state["chain"], state["steps"]
        if not isinstance(chain, bytes) or len(chain) != 32 or not isinstance(steps, int) or steps < 0:
            raise SnapshotError(
                "the noise chain is damaged",
                fix="load an undamaged copy of the newest state; an older one forgets releases",
            )
        self._chain = chain
        self.steps = steps
        self._record = None
        self._waiting = []
        self._open = None

    def __copy__(self) -> ChainedNoise:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: object) -> ChainedNoise:
        other = ChainedNoise.__new__(ChainedNoise)
        other._mac, other._identity = self._mac, self._identity
        other.digests = None
        other._count = -1
        other._cipher = Cipher(algorithms.AES(self._mac(b"cipher")), modes.CTR(bytes(16))).encryptor()
        other.load_state(self.to_state())
        return other

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise chain holds its key; save to_state() and give the key again")

    def __repr__(self) -> str:
        return f"<ChainedNoise, {self.steps} steps>"


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

    def rows(self, count: int, stream: Stream) -> Floats:
        """The next `count` rows, shape (count, d)."""
        end = self.drawn + count
        if end > len(self._history):
            room = min(max(end, 2 * len(self._history), 64), len(self._inverse))
            grown = np.empty((room, self._dim))
            grown[: self.drawn] = self._history[: self.drawn]
            self._history = grown
        self._history[self.drawn : end] = stream.take(count * self._dim).reshape(count, self._dim)
        out = np.empty((count, self._dim))
        random.toeplitz_noise(self._inverse, self._history, self.drawn, self._sigma, out)
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

    Attributes
    ----------
    shape, memory
        omega and theta, (2, h), and the memory, (h, d), for a kernel that does it all.
    """

    def __init__(self, omega: Floats, theta: Floats, dim: int, sigma: float) -> None:
        self.shape = np.array([omega, theta])
        self._sigma = sigma
        self.memory = np.zeros((len(omega), dim))

    def rows(self, count: int, stream: Stream) -> Floats:
        """The next `count` rows, shape (count, d)."""
        dim = self.memory.shape[1]
        z = stream.take(count * dim).reshape(count, dim)
        random.blt_noise(self.shape[0], self.shape[1], self.memory, self._sigma, z)
        return z

    def to_state(self) -> Floats:
        """The memory, shape (h, d): as secret as the data, for it uncovers the noise."""
        return self.memory.copy()

    def load_state(self, state: Floats) -> None:
        """Continue with the memory of `to_state`."""
        if state.shape != self.memory.shape:
            raise SnapshotError(
                f"the noise memory has shape {state.shape}, not {self.memory.shape}",
                fix="restore with the parameters that the snapshot was made with",
            )
        self.memory = np.ascontiguousarray(state, dtype=np.float64).copy()
