"""The ledger of a private lane: what was reserved, attempted and charged (docs/privacy 8).

Pure rules; whoever holds a lane keeps two things durable, in one log:

- the *ledger* itself, with each commit and each attempt: a window of slots `start + 1, ..., start + size` is
  reserved, and the attempts at it are counted. The first attempt rides on the commit of the window before;
- *lines*, one for what is about to be released, durable before it is released.

A release that has left the process counts as made. After a crash nobody knows which releases of the window
have left, so the next attempt is charged a *fork* of the whole window, before it releases anything. The lines
can take the charge back: if they hold a digest of every step that released anything, and the replay
reproduces all of them, then the replay has released the same bytes again and nothing new. A step that comes
out otherwise makes the charge final, before its release. (No line: nothing has left, and nothing is charged.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from streampair.errors import PrivacyError, SnapshotError

__all__ = ["Ledger", "Line", "repeats"]

DIGEST_BYTES: Final = 16
"""Of the 32 bytes of a step's digest that are kept: no two steps in 2^64 agree in them."""

_SILENT: Final = bytes(DIGEST_BYTES)  # of a step that releases nothing


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log: slots that are about to be released.

    Attributes
    ----------
    first, steps
        The slots `first, ..., first + steps - 1`, counted from 1.
    digests
        One for each slot, that of a slot which releases nothing being 0; or empty if the noise has no key
        and cannot be repeated.
    """

    first: int
    steps: int
    digests: tuple[bytes, ...] = ()


def repeats(known: Sequence[bytes], new: Sequence[bytes]) -> bool:
    """Whether digests repeat the known ones; a step that releases nothing always does.

    What went into such a step is in the digest of the next one that releases.
    """
    return known == new or all(b in (a, _SILENT) for a, b in zip(known, new, strict=True))


@dataclass(slots=True)
class Ledger:
    """Reservations, attempts and charges of one learner of one lane.

    Parameters
    ----------
    lane
        What the lane is; the ledger of another is refused.
    size
        Slots in a window W.
    limit
        Forks that the plan has set aside.
    keyed
        Whether the noise comes from a key, so that a replay can repeat it.
    immutable
        Whether the payload at an offset never changes. If not, a replay is never trusted to be one: each
        attempt draws other noise (`generation`) and is charged.

    Attributes
    ----------
    window
        Number of the reserved window; grows with every reservation and every attempt.
    start
        Slots taken when it was reserved.
    attempt
        Attempts at these slots, this one included; 0: reserved and not yet begun.
    forks
        Charged for good.
    pending
        Whether this attempt's fork is charged too, unless it reproduces the journal.
    generation
        Part of the noise's identity: of another generation, the same records get other noise.
    behind
        Digests of the steps that earlier attempts have released and this one has not reproduced yet.

    Notes
    -----
    The life of a ledger: `begin` at each start, then it is made durable; `release` for the slots of each
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
    >>> ledger.release(1, [b"%032d" % i for i in range(3)])  # the same bytes: nothing new is to be noted
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
        """Forks charged by now, the one that may be waived too."""
        return self.forks + self.pending

    @property
    def room(self) -> int:
        """Slots that may still be released under the reservation."""
        return self.size - self._taken if self.attempt else 0

    def reserve(self, start: int, *, begun: bool = True) -> None:
        """Reserve the next window; durable with the commit that is made now.

        Parameters
        ----------
        start
            Slots taken so far.
        begun
            Whether its first attempt rides on this commit; False: the process ends here.
        """
        if begun and self.attempt and not self._taken:
            return  # what is reserved is untouched
        self.window += 1
        self.start = start
        self.attempt = 1 if begun else 0
        # What a replay has not caught up with was released all the same, and is still to be reproduced.
        self._open(self._path[self._taken : self._follows])
        self.pending = self.pending and bool(self.behind)

    def begin(self, lines: Sequence[Line] = ()) -> None:
        """Announce an attempt. The ledger is made durable before any release.

        Parameters
        ----------
        lines
            All that were noted since the ledger was last made durable.

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

    def accept(self, forks: int, start: int) -> None:
        """Charge second views that nobody can show to be repetitions, and go on from `start`.

        Parameters
        ----------
        forks
            How many windows of slots may be seen again.
        start
            Slots taken where it goes on.

        Raises
        ------
        PrivacyError
            If the plan has not set aside so many.
        """
        forks += self.charged
        if forks > self.limit:
            raise PrivacyError(
                f"to go on would be charged {forks} fork(s), and the plan has set aside {self.limit}",
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
        """Note the slots that are about to be released.

        Parameters
        ----------
        first
            Number of the first slot, from 1.
        digests
            Of each slot; or how many they are, if the noise has no key.

        Returns
        -------
        Line or None
            To be made durable before the release; None if nothing is new.

        Raises
        ------
        PrivacyError
            If they go beyond the reservation; or if they are not what was released before, and no fork is
            left for that. Nothing may then be released.
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
            # Another view of these records, from here on: final, and this attempt's own path.
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
        """Forks charged by now, and the digests of the path released last; None where a step has none."""
        forks, path = self.forks, list(self.behind)
        follows = len(path)
        for line in lines:
            position = line.first - self.start - 1
            if len(line.digests) != line.steps or not 0 <= position <= len(path):
                return forks, None
            if position < follows:
                forks += self.pending  # it wrote over what others had released
                follows = 0
            path[position:] = line.digests
        return forks, path

    def _refusal(self) -> PrivacyError:
        return PrivacyError(
            f"slots {self.start + 1} to {self.start + self.size} would be released a second time in another "
            f"way, and all {self.limit} fork(s) that the plan has set aside for that are used",
            fix="start the application under another name, with forks= set for the crashes to come: a new "
            "account, whose spend comes on top of this one's",
        )

    def to_state(self) -> dict[str, Any]:
        """What `from_state` reads, as plain values."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    @classmethod
    def from_state(cls, state: dict[str, Any], expected: Ledger) -> Ledger:
        """The ledger of `to_state`, if it is that of the same lane.

        Raises
        ------
        SnapshotError
            If it is not, or is damaged.
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
        # What is reserved is reserved as it was; the noise may have got a key, or lost it, since.
        ledger.keyed, ledger.immutable = expected.keyed, expected.immutable
        return ledger
