"""Budget reservations of a private lane: its ledger, and the digests that precede each release.

The rules are those of `streampair.privacy.ledger`; this module connects them to the learner and the log.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from streampair.engine.protocols import PrivateModel
from streampair.engine.wal import Digests, join_digests, split_digests
from streampair.errors import PrivacyError
from streampair.privacy.ledger import DIGEST_BYTES, Ledger, Line, repeats

__all__ = ["Reservations"]


class Reservations:
    """Limits a private learner to the slots that its lane has reserved.

    Parameters
    ----------
    learner
        The private learner.
    lane
        Identity of the lane: its app, topic and partition.
    payloads_change
        Whether the record at an offset may change between reads.
    """

    def __init__(self, learner: PrivateModel, lane: str, *, payloads_change: bool) -> None:
        self._learner = learner
        self._lane = lane
        self._digests: list[bytes] = []
        self._reported = 0  # slots whose digests were returned by `digest_line`
        self._replaying = False
        self._path: Mapping[int, bytes] | None = None  # of a silent replay: the expected digests by slot
        self._reserved: Ledger | None = None  # of the commit that is not durable yet
        self.ledger = Ledger(
            lane,
            size=learner.window,
            limit=learner.forks,
            keyed=learner.noise_key is not None,
            immutable=not payloads_change,
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the ledger from the log."""
        self.ledger = Ledger.from_state(state, self.ledger)

    def begin(self, lines: Sequence[Digests]) -> dict[str, Any]:
        """Count an attempt at the reserved window; returns the ledger, to be durable before any release.

        Parameters
        ----------
        lines
            Lines of digests of the reserved window.

        Raises
        ------
        PrivacyError
            If the plan allows no further attempt at the same records.
        """
        recorded_lines = [
            Line(line.first, line.steps, tuple(split_digests(line.digests))) for line in lines if line.steps
        ]
        self.ledger.begin(recorded_lines)
        return self.ledger.to_state()

    def bind(self) -> None:
        """Bind the learner's noise to the lane, once its state is restored.

        The noise depends on the generation, so that it never repeats where a replay cannot be trusted.
        """
        self._learner.bind_noise(f"{self._lane}|{self.ledger.generation}", self._digests)
        self._learner.charge(self.ledger.charged, vouched=True)
        self._reported = self.settled

    @property
    def settled(self) -> int:
        """Released slots, without those that wait until the features are known."""
        return int(self._learner.slots - self._learner.slots_waiting)

    @property
    def room(self) -> int | None:
        """Records that may be processed before the next commit; None: any number.

        Raises
        ------
        PrivacyError
            If all slots that can be reserved at once wait for a first record with features.
        """
        waiting = self._learner.slots_waiting
        if waiting >= self.ledger.size:
            raise PrivacyError(
                f"none of the first {waiting} records has features, so the feature set is unknown",
                fix="declare the features: input.features, or features= of the learner",
            )
        left, room = self._learner.horizon_left, self.ledger.room - waiting
        return None if left is not None and left <= room else max(room, 0)

    def digest_line(self) -> Digests | None:
        """The line of digests to be durable before the outputs since the last call leave; None: nothing new.

        Raises
        ------
        PrivacyError
            If the slots may not be released.
        """
        first, self._reported = self._reported + 1, self.settled
        count = self._reported - first + 1
        if self._replaying:
            self._compare(first, count)
            return None
        if self._learner.noise_key is None:
            line = self.ledger.release(first, count)
        else:
            line = self.ledger.release(first, self._digests)
            self._digests.clear()
        self._learner.charge(self.ledger.charged, vouched=True)
        return None if line is None else Digests(line.first, line.steps, join_digests(line.digests))

    def update_digest(self, digest: Any) -> None:
        """Add the state of the learner's noise to a hash, including slots that released nothing."""
        digest.update(self._learner.noise_digest)

    # A silent replay from the last snapshot to the last commit

    def replay(self, path: Mapping[int, bytes] | None) -> None:
        """Begin a silent replay, in which nothing new is released.

        Parameters
        ----------
        path
            The digest that each slot must give. None: the log has none of single slots.
        """
        self._replaying, self._path = True, path

    @property
    def replaying(self) -> bool:
        """Whether a silent replay is under way."""
        return self._replaying

    def replayed(self) -> None:
        """End the silent replay: further slots are new releases."""
        self._replaying, self._path = False, None

    def _compare(self, first: int, count: int) -> None:
        digests = [digest[:DIGEST_BYTES] for digest in self._digests]
        self._digests.clear()
        if self._path is None:
            return
        for slot, digest in zip(range(first, first + count), digests, strict=True):
            known = self._path.get(slot)
            if known is None or not repeats([known], [digest]):
                raise PrivacyError(
                    f"the replay of slot {slot} differs from what was released",
                    fix="put the topic right, or `streampair state recover --skip-span`",
                )

    # Commits

    def reserved(self, *, clean: bool) -> dict[str, Any]:
        """The ledger for a commit, with the next window reserved; in effect once `committed` is called."""
        self._reserved = copy.copy(self.ledger)
        self._reserved.reserve(self.settled, begun=not clean)
        return self._reserved.to_state()

    def committed(self) -> None:
        """Confirm that the last commit is durable."""
        if self._reserved is not None:
            self.ledger, self._reserved = self._reserved, None
            self._learner.charge(self.ledger.charged, vouched=True)
