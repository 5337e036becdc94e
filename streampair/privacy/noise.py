"""Gaussian noise from a cipher, its key, and its correlation over steps (docs/privacy 4.3, 7).

The bits are the keystream of AES-256 in counter mode. `NormalStream` takes its key from
the operating system. Only the cipher object has the key: no attribute, state, repr or
error contains it, and it cannot be copied. A copy of a learner (deepcopy, pickle, a
snapshot, a forked process) gets a stream of its own, since the noise of two learners that
share it could be cancelled.

`ChainedNoise` is for learners that are replayed after a crash. Its noise is a function of
a key and of all input of the learner: a replay of the same records gives the same bytes,
and any other record gets fresh noise (docs/privacy 8). No pickle, repr, error or state
holds a `NoiseKey`; it is given again after unpickling.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streampair import kernels
from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import double_double, hashing
from streampair.privacy.provenance import PackedIdentities

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
"""Digest of a step that has drawn no noise, and so released nothing."""

_hash = hashlib.blake2b(digest_size=32).copy  # copying takes half the time of making a new one

_WORD = np.dtype("<u8")  # little-endian, as every supported processor: no conversion is needed
_PLACE = struct.Struct(">QI").pack  # step, length of the record's context
_STEP = np.dtype(">u8")  # the step in the format of `_PLACE`
_HEAD = 32 + 12  # bytes before the context: identity, step and length

_FEW = 8  # fewer records are hashed faster one by one than packed
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
    """Number of forks of this process and its ancestors; it grows on both sides of a fork."""
    return _splits


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


class Stream(Protocol):
    """Source of standard normals."""

    def take(self, count: int) -> Floats:
        """The next `count` independent standard normals, high and low parts, shape (2, count)."""


def scaled(normals: Floats, scales: Floats | float) -> Floats:
    """Normals (2, n) times their standard deviations (n,), in steps of the grid that they are rounded to."""
    normals = np.ascontiguousarray(normals)
    out, each = np.empty(normals.shape), np.empty(normals.shape[1:])
    each[...] = scales
    double_double.scaled_noise(normals, each, out)
    return out


def rounded(noise: Floats) -> NDArray[np.int64]:
    """The nearest whole numbers of noise (2, ...): that of the exact sum of both parts."""
    out = np.empty(noise.shape[1:], dtype=np.int64)
    double_double.rounded_noise(np.ascontiguousarray(noise).reshape(2, -1), out.reshape(-1))
    return out


class NormalStream:
    """Independent standard normals from a cipher, 96 uniform bits each.

    Parameters
    ----------
    seed
        None draws a key from the operating system. An integer gives a fixed sequence, for tests: whoever
        knows it can remove the noise, so it gives no privacy.

    Notes
    -----
    The sequence does not depend on how it is split into calls: two calls for 3 give what one call for 6
    gives. A copy, an unpickled stream and the stream of a forked child draw a fresh key.

    Examples
    --------
    >>> from streampair.privacy.noise import NormalStream
    >>> NormalStream(1).take(3).shape
    (2, 3)
    """

    _PAIRS = 512

    __slots__ = ("_block", "_cipher", "_fork", "_next", "seeded")

    def __init__(self, seed: int | None = None) -> None:
        self.seeded = seed is not None
        self._key(None if seed is None else hashlib.sha256(b"streampair fixed seed:%d" % seed).digest())

    def _key(self, key: bytes | None) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(32) if key is None else key), modes.CTR(bytes(16)))
        self._cipher = cipher.encryptor()
        self._block = np.empty((2, 0))
        self._next = 0
        self._fork = _forks

    def take(self, count: int) -> Floats:
        """The next `count` normals, shape (2, count)."""
        if self._fork != _forks:
            self.seeded = False
            self._key(None)
        out = np.empty((2, count))
        done = 0
        while done < count:
            if self._next == self._block.shape[1]:
                words = np.frombuffer(self._cipher.update(bytes(24 * self._PAIRS)), dtype="<u8")
                self._block = np.empty((2, 2 * self._PAIRS))
                self._next = 0
                double_double.normals_from_bits(words.astype(np.uint64), self._block)
            step = min(count - done, self._block.shape[1] - self._next)
            out[:, done : done + step] = self._block[:, self._next : self._next + step]
            # A used number is erased.
            self._block[:, self._next : self._next + step] = 0.0
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
    """Noise that a replay of the same records reproduces to the byte; any other input gets fresh noise.

    A chain hash runs over everything that a step depends on (docs/privacy 8),

        h_t = H(h_{t-1} | learner and plan | t | record | rounded values before noise),

    and the noise of step t is drawn from a cipher whose counter starts at ``HMAC(key, "noise" | h_t)``. If a
    replayed record, its order or a rounded gradient differs in one bit, the noise of that step and of all
    later ones is fresh: the two releases share no noise, so their difference does not disclose the raw
    values, as it would if the noise depended on t alone.

    Parameters
    ----------
    key
        The secret.
    identity
        Identity of the learner and its plan: it must differ between two learners that differ in anything that
        scales or shapes a release.

    Attributes
    ----------
    steps
        Number of steps so far.
    digests
        Digests of the steps since the list was emptied; None: they are not kept. A step that has drawn no
        noise has the digest `SILENT`: its input is part of the digest of the next step that draws.

    Notes
    -----
    Calls of a step: `record` sets the identity of the record, `advance` (once) gives the values that noise
    will be added to, `take` draws, as often as needed. `extend` before `advance` adds the values of a further
    release. `skip` and `wait` are steps that release nothing. A copy continues the chain: on the same records
    it gives the same bytes, which discloses nothing new; on others, fresh ones.

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
        *("_chain", "_cipher", "_identity", "_mac", "_more", "_open", "_record", "digests", "steps"),
        *("_count", "_room", "_waiting", "_words", "_zeros"),
    )

    # The key is secret, unlike the seed of a `NormalStream`.
    seeded = False

    def __init__(self, key: NoiseKey, identity: bytes) -> None:
        self._mac = key.mac()
        self._identity = hashlib.blake2b(identity, digest_size=32, person=b"streampair who").digest()
        self._chain = bytes(32)
        self._record: bytes | None = None
        self._more = b""
        # Records of the last steps, which are not hashed into the chain yet: see `wait`.
        self._waiting: list[bytes] = []
        self._cipher = Cipher(algorithms.AES(self._mac(b"cipher")), modes.CTR(bytes(16))).encryptor()
        # None: no step is open, nothing must be drawn; False: the cipher's counter is not set for it yet.
        self._open: bool | None = None
        self.steps = 0
        self.digests: list[bytes] | None = None
        self._count = -1

    def record(self, context: bytes) -> None:
        """Set the identity of the next record: its origin, and a digest of its bytes."""
        self._record = context

    def extend(self, values: bytes) -> None:
        """Give further values that noise will be added to in the next step, before those given already."""
        self._more = values + self._more

    def advance(self, values: bytes) -> None:
        """Start the next step.

        Parameters
        ----------
        values
            The values that noise will be added to, rounded to the grid; empty if nothing is released.
        """
        if self._more:
            values, self._more = values + self._more, b""
        self._hash_waiting()
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
        """Take one step for each record, without a release: as `record` and `advance(b"")` for each."""
        if self._more and len(records):
            # A companion releases in this step.
            self.record(records[0])
            self.advance(b"")
            records = records[1:]
            if not len(records):
                return
        self._hash_waiting()
        self._hash_steps(records, self.steps + 1)
        self.steps += len(records)
        self._record = self._open = None
        if self.digests is not None:
            self.digests += [SILENT] * len(records)

    def wait(self, record: bytes) -> None:
        """`skip` of one record, which is hashed later: with the next ones, or when the chain is needed."""
        self.steps += 1
        self._record = self._open = None
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) == _MOST_WAITING:
            self._hash_waiting()
        if self.digests is not None:
            self.digests.append(SILENT)

    def _hash_waiting(self) -> None:
        """Hash the records of `wait` into the chain."""
        if self._waiting:
            records, self._waiting = self._waiting, []
            self._hash_steps(records, self.steps - len(records) + 1)

    def _hash_steps(self, records: Sequence[bytes], first: int) -> None:
        """Hash steps without noise into the chain; `first` is the number of the first."""
        inputs = self._hash_inputs(records, first)
        if isinstance(inputs, PackedIdentities) and not kernels.DISABLED:
            chained = np.frombuffer(self._chain, dtype=np.uint8).copy()
            hashing.hash_chain(chained, inputs.rows)
            self._chain = chained.tobytes()
        else:
            for one in inputs:
                link = _hash()
                link.update(self._chain + one)
                self._chain = link.digest()

    def _hash_inputs(self, records: Sequence[bytes], first: int) -> Sequence[bytes]:
        """Bytes that are hashed for each record's step, after the chain."""
        who = self._identity
        if not isinstance(records, PackedIdentities):
            sizes = set(map(len, records))
            if len(records) < _FEW or len(sizes) > 1 or 0 in sizes:
                return [
                    who + _PLACE(step, len(record)) + record for step, record in enumerate(records, first)
                ]
            records = PackedIdentities(
                np.frombuffer(b"".join(records), dtype=np.uint8).reshape(len(records), -1)
            )
        n, size = records.rows.shape
        inputs = np.empty((n, _HEAD + size), dtype=np.uint8)
        inputs[:, :_HEAD] = np.frombuffer(who + _PLACE(0, size), dtype=np.uint8)
        steps = np.arange(first, first + n, dtype=_STEP)
        inputs[:, len(who) : len(who) + 8] = steps.view(np.uint8).reshape(n, 8)
        inputs[:, _HEAD:] = records.rows
        return PackedIdentities(inputs)

    def take(self, count: int) -> Floats:
        """The next `count` normals of this step, shape (2, count)."""
        words = self.words(count)
        out = np.empty((2, len(words) // 3 * 2))
        double_double.normals_from_bits(words, out)
        return out[:, :count]

    def words(self, count: int) -> NDArray[np.uint64]:
        """Bits of the next `count` normals, for `normals_from_bits`; the next call overwrites them."""
        if self._open is None:
            raise RuntimeError("noise is drawn outside of a step: call advance first")
        if not self._open:
            self._cipher.reset_nonce(self._mac(b"noise" + self._chain)[:16])
            self._open = True
            if self.digests is not None:
                self.digests[-1] = self.digest
        if count != self._count:
            size = (count + 1) // 2 * 24
            self._count = count
            self._zeros = bytes(size)
            self._room = bytearray(size + 15)  # `update_into` requires a buffer of up to a block more
            self._words = np.frombuffer(self._room, dtype=_WORD, count=size // 8)
        self._cipher.update_into(self._zeros, self._room)
        return self._words

    @property
    def digest(self) -> bytes:
        """``HMAC(key, "ledger" | h_t)``, 32 bytes: equal for two steps if, and only if, the steps are equal.

        Without the key it discloses nothing about the records or the noise.
        """
        self._hash_waiting()
        return self._mac(b"ledger" + self._chain)

    def to_state(self) -> dict[str, object]:
        """State of the chain, without the key."""
        self._hash_waiting()
        return {"chain": self._chain, "steps": self.steps}

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue the chain from `to_state`."""
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
        other._more = self._more
        other._cipher = Cipher(algorithms.AES(self._mac(b"cipher")), modes.CTR(bytes(16))).encryptor()
        other.load_state(self.to_state())
        return other

    def __reduce__(self) -> NoReturn:
        raise TypeError("a noise chain holds its key and cannot be pickled; save to_state()")

    def __repr__(self) -> str:
        return f"<ChainedNoise, {self.steps} steps>"


def _even_rows(stream: Stream, count: int, dim: int) -> Floats:
    """Rows of normals, (2, count, dim): the two of a pair are always in one row (docs/privacy, Lemma 21)."""
    even = dim + dim % 2
    return np.ascontiguousarray(stream.take(count * even).reshape(2, count, even)[:, :, :dim])


class ToeplitzNoise:
    """Rows of `scale C^-1 z` from all z so far; C^-1 is given by its first column.

    Parameters
    ----------
    inverse
        First column of C^-1, shape (horizon,).
    dim
        Coordinates d.
    scale
        Standard deviation of z.
    """

    def __init__(self, inverse: Floats, dim: int, scale: float) -> None:
        self._inverse = inverse
        self._scale = scale
        self._dim = dim
        self._history = np.empty((0, dim))
        self.drawn = 0

    def rows(self, count: int, stream: Stream) -> Floats:
        """The next `count` rows, shape (2, count, d)."""
        end = self.drawn + count
        if end > len(self._history):
            room = min(max(end, 2 * len(self._history), 64), len(self._inverse))
            grown = np.empty((room, self._dim))
            grown[: self.drawn] = self._history[: self.drawn]
            self._history = grown
        z = _even_rows(stream, count, self._dim)
        self._history[self.drawn : end] = z[0]
        double_double.toeplitz_noise(self._inverse, self._history, self.drawn, self._scale, z)
        self.drawn = end
        return z

    def to_state(self) -> Floats:
        """z so far, shape (drawn, d): as sensitive as the data, since the noise can be computed from it."""
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
    """Rows of `scale C^-1 z` for a buffered linear Toeplitz C, in memory (2, h, d).

    Parameters
    ----------
    omega, theta
        The BLT, shape (h,) each.
    dim
        Coordinates d.
    scale
        Standard deviation of z.

    Attributes
    ----------
    memory
        High and low parts of the memory, (2, h, d), for kernels that draw the noise themselves.
    """

    def __init__(self, omega: Floats, theta: Floats, dim: int, scale: float) -> None:
        self._omega, self._theta = omega, theta
        self._scale = scale
        self.memory = np.zeros((2, len(omega), dim))

    def rows(self, count: int, stream: Stream) -> Floats:
        """The next `count` rows, shape (2, count, d)."""
        z = _even_rows(stream, count, self.memory.shape[2])
        double_double.blt_noise(self._omega, self._theta, self.memory, self._scale, z)
        return z

    def to_state(self) -> Floats:
        """The memory, shape (2, h, d): as sensitive as the data, since the noise can be computed from it."""
        return self.memory.copy()

    def load_state(self, state: Floats) -> None:
        """Continue with the memory of `to_state`."""
        if state.shape != self.memory.shape:
            raise SnapshotError(
                f"the noise memory has shape {state.shape}, not {self.memory.shape}",
                fix="restore with the parameters that the snapshot was made with",
            )
        self.memory = np.ascontiguousarray(state, dtype=np.float64).copy()
