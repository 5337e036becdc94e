"""What a private lane has reserved: its ledger, and the digests that are durable before a release.

The rules are those of `streampair.privacy.ledger`; here they meet the learner and the lane's log.
"""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from streampair.engine.protocols import PrivateModel, noise_digest
from streampair.engine.records import Record
from streampair.engine.wal import Digests, join_digests, split_digests
from streampair.errors import PrivacyError
from streampair.privacy.ledger import DIGEST_BYTES, Ledger, Line, repeats

__all__ = ["Reservations", "context_of", "contexts_of", "payload_digest"]

_PLACE = struct.Struct(">iq").pack
_LENGTH = struct.Struct(">cQ").pack
# A copy costs half of a new one, and has the block of the key behind it.
_no_value = hashlib.blake2b(digest_size=32, key=b"streampair record").copy
_value = hashlib.blake2b(b"v", digest_size=32, key=b"streampair record").copy


def payload_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Digest (32 bytes) of what a record holds: its key and its value, each told from none."""
    payload = _no_value() if value is None else _value()
    if value is not None:
        payload.update(value)
    if key is not None:
        payload.update(_LENGTH(b"k", len(key)) + key)
    return payload.digest()


def context_of(partition: int, offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """What identifies a record of a topic: its place, and a digest of its bytes (docs/privacy 8)."""
    return _PLACE(partition, offset) + payload_digest(key, value)


def contexts_of(partition: int, records: Sequence[Record]) -> list[bytes]:
    """`context_of` of each."""
    return [_PLACE(partition, record.offset) + payload_digest(record.key, record.value) for record in records]


class Reservations:
    """Keeps a private learner inside what its lane has reserved.

    Parameters
    ----------
    learner
        The private learner.
    lane
        What the lane is: its app, topic and partition.
    payloads_change
        Whether the record at an offset may be another one when it is read again.
    """

    def __init__(self, learner: PrivateModel, lane: str, *, payloads_change: bool) -> None:
        self._learner = learner
        self._lane = lane
        self._digests: list[bytes] = []
        self._noted = 0  # slots whose releases have been noted
        self._path: Mapping[int, bytes] | None = None  # what a silent replay must come to
        self._reserved: Ledger | None = None  # as in the commit that is under way
        self.ledger = Ledger(
            lane,
            size=learner.window,
            limit=learner.forks,
            keyed=learner.noise_key is not None,
            immutable=not payloads_change,
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Take the ledger that the log holds."""
        self.ledger = Ledger.from_state(state, self.ledger)

    def begin(self, lines: Sequence[Digests]) -> dict[str, Any]:
        """Count an attempt at what is reserved: the ledger to be made durable before the first release.

        Parameters
        ----------
        lines
            Of the reserved window.

        Raises
        ------
        PrivacyError
            If another attempt at the same records is more than the plan has set aside.
        """
        noted = [
            Line(line.first, line.steps, tuple(split_digests(line.digests))) for line in lines if line.steps
        ]
        self.ledger.begin(noted)
        return self.ledger.to_state()

    def bind(self) -> None:
        """Tell the learner who it is, once its state is there.

        The generation is part of the noise: where a replay cannot be trusted, it never repeats any.
        """
        self._learner.bind_noise(f"{self._lane}|{self.ledger.generation}", self._digests)
        self._learner.charge(self.ledger.charged, vouched=True)
        self._noted = self.settled

    @property
    def settled(self) -> int:
        """Slots that are released, or were: not those that wait until the features are known."""
        return int(self._learner.slots - self._learner.slots_waiting)

    @property
    def room(self) -> int | None:
        """Records that may be processed before the next commit; None: any number.

        Raises
        ------
        PrivacyError
            If the slots that wait for a first record with features are as many as can be reserved at once.
        """
        waiting = self._learner.slots_waiting
        if waiting >= self.ledger.size:
            raise PrivacyError(
                f"none of the first {waiting} records has features, so that nobody knows what they are",
                fix="declare the features: input.features, or features= of the learner",
            )
        left, room = self._learner.horizon_left, self.ledger.room - waiting
        return None if left is not None and left <= room else max(room, 0)

    def note(self) -> Digests | None:
        """What must be durable before the records processed since the last call may leave; None: nothing new.

        Raises
        ------
        PrivacyError
            If it may not be released.
        """
        first, self._noted = self._noted + 1, self.settled
        count = self._noted - first + 1
        if self._path is not None:
            self._compare(first, count)
            return None
        if self._learner.noise_key is None:
            line = self.ledger.release(first, count)
        else:
            line = self.ledger.release(first, self._digests)
            self._digests.clear()
        self._learner.charge(self.ledger.charged, vouched=True)
        return None if line is None else Digests(line.first, line.steps, join_digests(line.digests))

    def tell(self, told: Any) -> None:
        """Let a hash have what the learner's noise depends on so far: of slots that released nothing, too."""
        told.update(noise_digest(self._learner))

    # A silent replay from the last snapshot to the last commit

    def replay(self, path: Mapping[int, bytes]) -> None:
        """From now on nothing is released anew: each slot must have the digest that the log knows."""
        self._path = path

    @property
    def replaying(self) -> bool:
        """Whether that replay is not over yet."""
        return self._path is not None

    def replayed(self) -> None:
        """The replay is over: what comes now is released."""
        self._path = None

    def _compare(self, first: int, count: int) -> None:
        assert self._path is not None
        own = [digest[:DIGEST_BYTES] for digest in self._digests]
        self._digests.clear()
        for slot, digest in zip(range(first, first + count), own, strict=True):
            known = self._path.get(slot)
            if known is None or not repeats([known], [digest]):
                raise PrivacyError(
                    f"slot {slot} comes out otherwise than it was released",
                    fix="put the topic right, or `streampair state accept --lost-span`",
                )

    # Commits

    def reserved(self, *, clean: bool) -> dict[str, Any]:
        """The ledger for a commit, with the next window reserved; it counts once `committed` is called."""
        self._reserved = copy.copy(self.ledger)
        self._reserved.reserve(self.settled, begun=not clean)
        return self._reserved.to_state()

    def committed(self) -> None:
        """Say that the last commit is durable."""
        if self._reserved is not None:
            self.ledger, self._reserved = self._reserved, None
            self._learner.charge(self.ledger.charged, vouched=True)
