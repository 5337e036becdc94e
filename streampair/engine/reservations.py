"""What a private lane has reserved: its ledger, and the journal that is written before a release.

The rules are those of `streampair.privacy.ledger`; here they meet the learner and the disk.
"""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Callable
from typing import Any

from streampair.engine.protocols import LaneJournal, PrivateModel
from streampair.errors import PrivacyError
from streampair.privacy.ledger import Journal, Ledger

__all__ = ["Reservations", "context_of"]

_PLACE = struct.Struct(">iq").pack


def context_of(partition: int, offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """What identifies a record of a topic: its place, and a digest of its bytes (docs/privacy.md 8)."""
    payload = hashlib.blake2b(
        b"" if value is None else b"v" + value, digest_size=32, key=b"streampair record"
    )
    if key is not None:
        payload.update(b"k" + len(key).to_bytes(8, "big") + key)
    return _PLACE(partition, offset) + payload.digest()


class Reservations:
    """Keeps a private learner inside what its lane has reserved.

    Parameters
    ----------
    learner
        The private learner.
    lane
        What the lane is: its app, topic and partition.
    journal
        Where it is noted what is about to be released.
    payloads_change
        Whether the record at an offset may be another one when it is read again.
    """

    def __init__(
        self, learner: PrivateModel, lane: str, journal: LaneJournal, *, payloads_change: bool
    ) -> None:
        self._learner = learner
        self._lane = lane
        self._journal = journal
        self._digests: list[bytes] = []
        self._noted = 0  # slots whose releases have been noted
        self._journal_window: int | None = None  # of the journal on the disk
        self._reserved: Ledger | None = None  # as in the last snapshot
        self.ledger = Ledger(
            lane,
            size=learner.window,
            limit=learner.forks,
            keyed=learner.noise_key is not None,
            immutable=not payloads_change,
        )

    def begin(self, save: Callable[[], None], *, restored: bool) -> None:
        """Announce an attempt at what is reserved: on the disk before the first release."""
        if self.ledger.window == 0:
            self.ledger.start = self._settled  # where a lane goes on that kept no ledger before
        raw = self._journal.read()
        if raw is None and not restored:
            raw = Journal.head(self._lane, self.ledger.window)
            self._journal.restart(raw)
        self.ledger.begin(None if raw is None else Journal.decode(raw, self._lane))
        self._noted = self._settled
        # The generation is part of the noise: where a replay cannot be trusted, it never repeats any.
        self._learner.bind_noise(f"{self._lane}|{self.ledger.generation}", self._digests)
        self._learner.charge(self.ledger.charged, vouched=True)
        save()
        if raw is None:
            self._journal.restart(Journal.head(self._lane, self.ledger.window))

    @property
    def _settled(self) -> int:
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

    def note(self) -> None:
        """Make durable what the records processed since the last call are about to release.

        Raises
        ------
        PrivacyError
            If it may not be released.
        """
        first, self._noted = self._noted + 1, self._settled
        if self._learner.noise_key is None:
            line = self.ledger.release(first, self._noted - first + 1)
        else:
            line = self.ledger.release(first, self._digests)
            self._digests.clear()
        self._learner.charge(self.ledger.charged, vouched=True)
        if line is None:
            return
        if self._journal_window == self.ledger.window:
            self._journal.append(line.encode())
        else:
            self._journal.restart(Journal.head(self._lane, self.ledger.window) + line.encode())
            self._journal_window = self.ledger.window

    def reserved(self, *, clean: bool) -> dict[str, Any]:
        """The ledger for a snapshot, with the next window reserved; it counts once `committed` is called."""
        self._reserved = copy.copy(self.ledger)
        self._reserved.reserve(self._settled, begun=not clean)
        return self._reserved.to_state()

    def committed(self) -> None:
        """Say that the last snapshot is durable."""
        if self._reserved is not None:
            self.ledger, self._reserved = self._reserved, None
            self._learner.charge(self.ledger.charged, vouched=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Take the ledger of a snapshot."""
        self.ledger = Ledger.from_state(state, self.ledger)
