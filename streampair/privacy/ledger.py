"""The ledger of a private lane: reservations, attempts and charges (docs/privacy 8).

The ledger does no I/O. The owner of the lane makes two kinds of entries durable, in one log:

- the *ledger* itself, with each commit and each attempt: a window of slots `start + 1, ..., start + size` is
  reserved, and the attempts at it are counted. The first attempt is part of the commit of the window before;
- *lines*, one for each batch of slots, durable before the batch is released.

A release counts as made once it may have left the process. After a crash it is unknown which releases of the
window have left, so the next attempt is charged a *fork* of the whole window, before it releases anything.
The charge is waived if the lines have a digest of every step that released anything, and the replay
reproduces all of them: then the replay has released the same bytes again and nothing new. A step with another
digest makes the charge final, before its release. (Without a line nothing has left, and nothing is charged.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from streampair.errors import PrivacyError, SnapshotError

__all__ = ["Ledger", "Line", "repeats"]

DIGEST_BYTES: Final = 16
"""Bytes kept of the 32 of a step's digest: a collision is expected after 2^64 steps."""

_SILENT: Final = bytes(DIGEST_BYTES)  # of a step that releases nothing


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log: consecutive slots that are about to be released.

    Attributes
    ----------
    first, steps
        The slots `first, ..., first + steps - 1`, counted from 1.
    digests
        Digest of each slot, 0 for a slot that releases nothing; empty if the noise has no key and cannot be
        reproduced.
    """

    first: int
    steps: int
    digests: tuple[bytes, ...] = ()


def repeats(known: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Whether digests equal the known ones; that of a step without a release counts as equal.

    The input of such a step is part of the digest of the next one that releases.
    """
    return known == new or all(b in (a, _SILENT) for a, b in zip(known, new, strict=True))


@dataclass(slots=True)
class Ledger:
    """Reservations, attempts and charged forks of one learner of one lane.

    Parameters
    ----------
    lane
        Identity of the lane; a ledger of another lane is refused.
    size
        Slots in a window W.
    limit
        Most forks that the plan accounts for.
    keyed
        Whether the noise comes from a key, so that a replay can reproduce it.
    immutable
        Whether the payload at an offset never changes. If it may, each attempt draws other noise
        (`generation`) and is charged.

    Attributes
    ----------
    window
        Number of the reserved window; grows with every reservation and every attempt.
    start
        Slots taken when it was reserved.
    attempt
        Attempts at these slots, this one included; 0: reserved and not yet begun.
    forks
        Forks whose charge is final.
    pending
        Whether the fork of this attempt is charged too, unless the attempt reproduces the lines of the log.
    generation
        Part of the noise's identity: in another generation the same records get other noise.
    behind
        Digests of the steps that earlier attempts have released and this one has not reproduced yet.

    Notes
    -----
    Order of calls: `begin` at each start, then the ledger is made durable; `release` for the slots of each
    batch, whose line is made durable before anything of the batch leaves; `reserve` at each commit.

    Examples
    --------
    >>> from streampair.privacy import Ledger
    >>> ledger = Ledger("lane", size=100, limit=1, keyed=True)
    >>> ledger.begin()
    >>> line = ledger.release(1, [b"%032d" % i for i in range(3)])
    >>> ledger.room
    97
    >>> ledger.begin([line])  # after a crash
    >>> ledger.attempt, ledger.charged
    (2, 1)
    >>> ledger.release(1, [b"%032d" % i for i in range(3)])  # the same bytes: no new line
    >>> ledger.charged
    0
    """

    lane: str
    size: int
    limit: int
    keyed: bool
    immutable: bool = True
    window: int = 0
    start: int = 0
    attempt: int = 0
    forks: int = 0
    pending: bool = False
    generation: int = 0
    behind: list[bytes] = field(default_factory=list)
    _taken: int = 0  # steps of this attempt that may have been released
    _path: list[bytes] = field(default_factory=list)  # digests of the window's steps, as last released
    _follows: int = 0  # how many of them this attempt has to reproduce

    @property
    def charged(self) -> int:
        """Forks charged so far, including one that may still be waived."""
        return self.forks + self.pending

    @property
    def room(self) -> int:
        """Slots that may still be released under the reservation."""
        return self.size - self._taken if self.attempt else 0

    def reserve(self, start: int, *, begun: bool = True) -> None:
        """Reserve the next window; the reservation becomes durable with the commit that is being made.

        Parameters
        ----------
        start
            Slots taken so far.
        begun
            Whether its first attempt is part of this commit; False: the process ends here.
        """
        if begun and self.attempt and not self._taken:
            return  # no slot of the reserved window has been taken
        self.window += 1
        self.start = start
        self.attempt = 1 if begun else 0
        # Steps that earlier attempts have released and this one has not reached are still to be reproduced.
        self._open(self._path[self._taken : self._follows])
        self.pending = self.pending and bool(self.behind)

    def begin(self, lines: Sequence[Line] = ()) -> None:
        """Start an attempt. The caller makes the ledger durable before any release.

        Parameters
        ----------
        lines
            All lines written since the ledger was last made durable.

        Raises
        ------
        PrivacyError
            If a fork would have to be charged and none is left.
        """
        forks, path = self._retrace(lines)
        waivable = path is not None and self.keyed and self.immutable
        again = bool(lines) or bool(self.behind)
        if again and not waivable:
            if forks >= self.limit:
                raise self._refusal()
            forks += 1
        if again and not self.immutable:
            self.generation += 1
        self.forks = forks
        self.pending = again and waivable and forks < self.limit
        self.window += 1
        self.attempt += 1
        self._open(path if waivable and path is not None else [])

    def charge_forks(self, forks: int, start: int) -> None:
        """Charge forks that cannot be shown to be repetitions, and continue from `start`.

        Parameters
        ----------
        forks
            Number of windows whose slots may be released again.
        start
            Slots taken at the point of continuation.

        Raises
        ------
        PrivacyError
            If the plan does not account for so many forks.
        """
        forks += self.charged
        if forks > self.limit:
            raise PrivacyError(
                f"continuing would be charged {forks} fork(s), and the plan has set aside {self.limit}",
                fix="start the application under another name, with forks= set for the crashes to come: a "
                "new account, whose spend comes on top of this one's",
            )
        self.forks, self.pending = forks, False
        self.window += 1
        self.start = start
        self.attempt = 0
        self.generation += not self.immutable
        self._open([])

    def release(self, first: int, digests: Sequence[bytes] | int) -> Line | None:
        """Record the slots that are about to be released.

        Parameters
        ----------
        first
            Number of the first slot, from 1.
        digests
            Digest of each slot; or the number of slots, if the noise has no key.

        Returns
        -------
        Line or None
            The line to make durable before the release; None if it would have no new digest.

        Raises
        ------
        PrivacyError
            If a slot is beyond the reservation; or if a digest differs from that of an earlier attempt, and
            no fork is left. Nothing must then be released.
        """
        count = digests if isinstance(digests, int) else len(digests)
        if not self.attempt or first != self.start + self._taken + 1 or count > self.room:
            raise PrivacyError(
                f"slots {first} to {first + count - 1} are not reserved: the window begins at "
                f"{self.start + 1}, {self._taken} of its {self.size} slots are taken",
                fix="commit a snapshot, which reserves the next window, before more records are processed",
            )
        position, follows = self._taken, self._follows
        self._taken += count
        if isinstance(digests, int):
            return Line(first, count) if count else None
        truncated = [digest[:DIGEST_BYTES] for digest in digests]
        known = self._path[position : min(position + count, follows)]
        if not repeats(known, truncated[: len(known)]):
            if not self.pending:
                self._taken = position
                raise self._refusal()
            # From here on this attempt releases other values: the charge is final, and the path its own.
            self.forks, self.pending, self._follows = self.forks + 1, False, 0
            del self._path[position:]
            known = []
        elif position + count >= follows:
            self.pending, self._follows = False, 0
        new = truncated[len(known) :]
        self._path += new
        return Line(first + len(known), len(new), tuple(new)) if new else None

    def _open(self, behind: list[bytes]) -> None:
        self.behind = behind
        self._taken = 0
        self._path = list(behind)
        self._follows = len(behind)

    def _retrace(self, lines: Sequence[Line]) -> tuple[int, list[bytes] | None]:
        """Forks charged so far, and the digests of the last attempt's steps; None if a step has no digest."""
        forks, path = self.forks, list(self.behind)
        follows = len(path)
        for line in lines:
            position = line.first - self.start - 1
            if len(line.digests) != line.steps or not 0 <= position <= len(path):
                return forks, None
            if position < follows:
                forks += self.pending  # this attempt released other values than the earlier ones
                follows = 0
            path[position:] = line.digests
        return forks, path

    def _refusal(self) -> PrivacyError:
        return PrivacyError(
            f"slots {self.start + 1} to {self.start + self.size} would be released a second time with other "
            f"values, and all {self.limit} fork(s) that the plan has set aside for that are used",
            fix="start the application under another name, with forks= set for the crashes to come: a new "
            "account, whose spend comes on top of this one's",
        )

    def to_state(self) -> dict[str, Any]:
        """The ledger as plain values, which `from_state` reads."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    @classmethod
    def from_state(cls, state: dict[str, Any], expected: Ledger) -> Ledger:
        """Restore the ledger that `to_state` returned.

        Raises
        ------
        SnapshotError
            If it belongs to another lane, or is damaged.
        """
        try:
            ledger = cls(**state)
        except TypeError as error:
            raise SnapshotError(f"the ledger is damaged ({error})", fix="put the newest store back") from None
        for name in ("window", "start", "attempt", "forks", "generation", "limit", "size"):
            value = getattr(ledger, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SnapshotError(f"the ledger's {name} is {value!r}", fix="put the newest store back")
        if not isinstance(ledger.behind, list) or any(not isinstance(d, bytes) for d in ledger.behind):
            raise SnapshotError("the ledger's digests are damaged", fix="put the newest store back")
        if ledger.lane != expected.lane:
            raise SnapshotError(
                f"the ledger is that of {ledger.lane!r}, this lane is {expected.lane!r}",
                fix="point the store at this lane's own directory",
            )
        # The reservation stays; whether the noise has a key may have changed since.
        ledger.keyed, ledger.immutable = expected.keyed, expected.immutable
        return ledger
