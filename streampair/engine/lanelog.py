"""The log of one lane at work: what it says at a start, and what is added to it.

No I/O: whoever holds the lane appends the frames and writes the register, in the order that is given here,
and says when a commit is durable.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from streampair import __version__
from streampair.engine.accepting import Acceptance, accept
from streampair.engine.log import (
    LOG_FORMAT,
    Attempt,
    Chain,
    Digests,
    Genesis,
    LogKey,
    Place,
    Register,
    Saved,
    Tip,
    short,
)
from streampair.engine.opening import (
    Facts,
    How,
    Known,
    check,
    check_replay,
    lost_span,
    refuse_key,
)
from streampair.engine.records import Append, Commit, Record, Scored, Wanted
from streampair.engine.reservations import Reservations, payload_digest
from streampair.errors import PrivacyError, SnapshotError

__all__ = ["LaneLog", "place_of"]


def place_of(record: Record) -> Place:
    """A record as a log knows it again."""
    return Place(record.offset, payload_digest(record.key, record.value))


def _place_at(offset: int, records: Iterable[Record]) -> Place:
    return place_of(next(record for record in records if record.offset == offset))


class LaneLog:
    """The log of one lane.

    Parameters
    ----------
    key
        Of the chain: from the noise key of a private lane.
    app, topic, partition, name, fingerprint
        What the lane is.
    reservations
        The account of a private learner; None: there is none to keep.
    private
        Whether a guarantee hangs on this log.
    entity
        Where entities are read from; empty where none are declared.
    void
        What voids the guarantee as the lane is configured now.
    replayable
        Whether the same records from the same snapshot give the same scores and the same bytes.
    plan
        Gives the fitted numbers of the learner's plan; None while they are not known.
    """

    def __init__(
        self,
        key: LogKey,
        *,
        app: str,
        topic: str,
        partition: int,
        name: str,
        fingerprint: str,
        reservations: Reservations | None,
        private: bool,
        entity: str,
        void: Sequence[str],
        replayable: bool,
        plan: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._key = key
        self._who = {"app": app, "topic": topic, "partition": partition}
        self._name = name
        self._fingerprint = fingerprint
        self._reservations = reservations
        self._private = private
        self._entity = entity
        self._void = list(void)
        self._plan = plan
        self._chain = Chain(key)
        self._known: Known | None = None
        self._partitions = 1
        self._scores = hashlib.blake2b(digest_size=32)
        self._last: Place | None = None
        self._first: int | None = None
        self._snapshot_due = True
        self.replayable = replayable
        self.records_since_snapshot = 0
        """Records that a start would have to replay."""

    # A start

    def read(self, frames: bytes, *, damaged: bool = False) -> Wanted:
        """Read the log, as it was found.

        Parameters
        ----------
        frames
            As the store holds it.
        damaged
            Stop at damage: for `accept`. A start is then refused.

        Raises
        ------
        LogDamaged
            If it is damaged.
        PrivacyError
            If it was begun under another key.
        SnapshotError
            If it is another lane's, or was written under another configuration.
        """
        entries, self._chain, used = Chain.read(self._key, frames, damaged=True)
        if self._chain.damage is not None:
            self._check_key(frames)
            if not damaged:
                raise self._chain.damage
        self._known = known = Known.of(entries)
        if known is None:
            return Wanted(None, None, None, used)
        genesis, tip = known.genesis, known.tip
        theirs = {"app": genesis.app, "topic": genesis.topic, "partition": genesis.partition}
        if genesis.format != LOG_FORMAT or theirs != self._who:
            raise SnapshotError(
                f"the log is that of {theirs} (format {genesis.format}), this lane is {self._who}",
                fix="point the store at this lane's own place",
            )
        if genesis.fingerprint != self._fingerprint:
            raise SnapshotError(
                "the configuration changed since the log was begun "
                f"(fingerprint {genesis.fingerprint!r}, now {self._fingerprint!r})",
                fix="put the old learner and input settings back, or give the new configuration another app "
                "name, which starts from the beginning",
            )
        return Wanted(
            None if known.saved is None else known.saved.content.hex(),
            None if genesis.first is None else genesis.first.offset,
            None if tip is None or tip.last is None else tip.last.offset,
            used,
        )

    def _check_key(self, frames: bytes) -> None:
        """Nothing verifies under another key: then the key is what is wrong, not the log."""
        try:
            entries = Chain.peek(frames)
        except SnapshotError:
            return
        first = entries[0] if entries else None
        genesis = first.genesis if isinstance(first, Saved) else first
        if isinstance(genesis, Genesis) and genesis.key != self._key.id:
            refuse_key(genesis.key, self._key.id)

    @property
    def known(self) -> Known | None:
        """What the log says; None: it is new."""
        return self._known

    @property
    def chain(self) -> Chain:
        """The end of the log."""
        return self._chain

    def start(
        self,
        facts: Facts,
        *,
        report: dict[str, Any] | None = None,
    ) -> tuple[list[Append], list[str]]:
        """Check what was found, and announce an attempt. Nothing may be written before.

        Parameters
        ----------
        facts
            What stands outside of the log.
        report
            Numbers of the privacy report, where a log begins.

        Returns
        -------
        tuple
            What is to be made durable, one after the other; and what a lane without an account goes on over.

        Raises
        ------
        PrivacyError, SnapshotError
            If the lane may not go on; the message names the choices.
        """
        known = self._known
        if self._chain.damage is not None:
            raise self._chain.damage
        warnings = check(known, self._chain, facts, private=self._private, entity=self._entity)
        if known is not None:
            check_replay(known, facts.start)
        appends: list[Append] = []
        if known is None:
            genesis = Genesis(
                format=LOG_FORMAT,
                writer=__version__,
                name=self._name,
                fingerprint=self._fingerprint,
                key=self._key.id,
                partitions=facts.partitions,
                entity=self._entity,
                cluster=facts.cluster,
                first=facts.first,
                plan=self._plan(),
                privacy=report,
                **self._who,  # type: ignore[arg-type]
            )
            self._known = known = Known.of([genesis])
            assert known is not None
            appends.append(self._append(self._chain.add(genesis)))
        elif facts.registers and not known.attempts and self._registered(facts) is None:
            # Its process died before the register knew of it, and no attempt may come before it does.
            appends.append(self._append())
        self._partitions = facts.partitions
        account, ledger = self._reservations, None
        if account is not None:
            if known.ledger is not None:
                account.restore(known.ledger)
            ledger = account.begin(known.lines)
        attempt = Attempt(__version__, self._void, ledger)
        known.fold(attempt)
        appends.append(self._append(self._chain.add(attempt)))
        return appends, warnings

    def accept(self, how: How, facts: Facts, when: str) -> Acceptance:
        """Go on where `start` refuses to, because an operator says so: see `accepting.accept`."""
        entry, problem, charged = accept(
            self._known,
            self._chain,
            self._reservations,
            facts,
            how,
            when,
            private=self._private,
            entity=self._entity,
        )
        assert self._known is not None  # there is nothing to accept without a log
        self._known.fold(entry)
        self._partitions = facts.partitions
        append = self._append(self._chain.add(entry))
        return Acceptance(append, entry.charged, entry.what, problem, charged)

    def restored(self) -> None:
        """The state of the last snapshot is there; or the lane begins, and has none."""
        known, account = self._known, self._reservations
        assert known is not None
        if account is not None:
            account.bind()
        self._last = None if known.tip is None else known.tip.last
        if known.span is None:
            self._snapshot_due = not self.replayable or known.saved is None or known.given_up is not None
        elif account is not None:
            account.replay(known.path)

    @property
    def replay_until(self) -> int | None:
        """The offset up to which records are replayed silently; None: nothing is to be replayed."""
        span = None if self._known is None else self._known.span
        return None if span is None else span[1]

    def replayed(self) -> None:
        """The silent replay has come to the tip.

        Raises
        ------
        SnapshotError
            If it has not come to the scores that the tip holds.
        """
        known, account = self._known, self._reservations
        assert known is not None
        assert known.tip is not None
        if known.tip.scores != self._told():
            raise lost_span("a replay from the last snapshot gives other scores than were given")
        if account is not None:
            if account.settled != known.tip.slots:
                raise lost_span(f"a replay comes to slot {account.settled}, and the log to {known.tip.slots}")
            account.replayed()
        self._snapshot_due = not self.replayable

    def _told(self) -> bytes:
        """Digest of the scores since the last snapshot, and of what the next noise depends on."""
        told = self._scores.copy()
        if self._reservations is not None:
            self._reservations.tell(told)
        return told.digest()

    # At work

    def took(self, records: Sequence[Record], scores: Sequence[Scored]) -> Append | None:
        """What must be durable before the outputs of these records leave; None: nothing."""
        if scores:
            given = [float("nan") if scored.score is None else scored.score for scored in scores]
            self._scores.update(array.array("d", given).tobytes())
            self.records_since_snapshot += len(scores)
            self._last = _place_at(scores[-1].offset, reversed(records))
            self._first = scores[0].offset if self._first is None else self._first
            known = self._known
            if known is not None and known.genesis.first is None:  # the partition was empty when it began
                first = _place_at(scores[0].offset, records)
                known.genesis = msgspec.structs.replace(known.genesis, first=first)
        account = self._reservations
        if account is None:
            return None
        silent, note = account.replaying, account.note()
        if scores and not silent and self._voids() and note is None:
            # Who repeats what was released before has no line to write, and a line tells what voids too.
            note = Digests(account.settled + 1, 0, b"")
        return None if note is None else self._append(self._chain.add(note))

    def _voids(self) -> bool:
        """Note that a record is taken; whether that voids the guarantee for a reason that is new."""
        known = self._known
        if known is None:
            return False
        before = len(known.void)
        known.takes_records()
        return len(known.void) > before

    def skipped(self) -> None:
        """Records before the next one are gone: what was learned before them cannot be replayed for long."""
        self._snapshot_due = True

    @property
    def snapshot_due(self) -> bool:
        """Whether the next commit must hold a snapshot."""
        return self._snapshot_due or (self._known is not None and self._known.plan is None and self._private)

    def commit(
        self,
        next_offset: int | None,
        seen: int,
        data: bytes | None,
        *,
        clean: bool,
        report: dict[str, Any] | None,
    ) -> Commit:
        """A commit, to be made durable once all outputs are.

        Parameters
        ----------
        next_offset, seen
            Where the lane is, and how many records it has taken.
        report
            Numbers of the privacy report.
        data
            A snapshot; None: none.
        clean
            Whether the process ends here.
        """
        known, account = self._known, self._reservations
        if known is None:
            raise PrivacyError("the lane was not started", fix="call start before commit")
        tip = Tip(
            writer=__version__,
            next_offset=next_offset,
            seen=seen,
            slots=0 if account is None else account.settled,
            scores=self._told(),
            last=self._last,
            ledger=None if account is None else account.reserved(clean=clean),
            clean=clean,
            privacy=report,
            first=self._first,
        )
        if data is None:
            known.fold(tip)
            return self._committing(self._chain.add(tip), next_offset, None, None)
        known.fold(tip)  # what was taken under a void reason is told before it is repeated
        known.plan = self._plan()
        content = self._key.tag(b"snapshot", data)
        saved = Saved(
            tip=tip,
            content=content,
            size=len(data),
            genesis=known.genesis,
            plan=known.plan,
            void=list(known.void),
            accepted=list(known.accepted),
            voiding=list(known.voiding),
        )
        known.fold(saved)
        self._scores = hashlib.blake2b(digest_size=32)
        self._first = None
        self._snapshot_due = not self.replayable
        self.records_since_snapshot = 0
        return self._committing(self._chain.add(saved), next_offset, content.hex(), data)

    def check_content(self, data: bytes) -> None:
        """Refuse a snapshot that is not the one that the log names.

        Raises
        ------
        SnapshotError
        """
        known = self._known
        if known is None or known.saved is None or self._key.tag(b"snapshot", data) != known.saved.content:
            raise SnapshotError(
                "the snapshot is not the one that the log names",
                fix="put the store back as a whole: its log and its snapshots belong together",
            )

    def _committing(
        self, frame: bytes, next_offset: int | None, content: str | None, data: bytes | None
    ) -> Commit:
        return Commit((frame,), self._register(), next_offset, content, data)

    def _append(self, *frames: bytes) -> Append:
        known = self._known
        return Append(frames, self._register(), None if known is None else known.next_offset)

    def _registered(self, facts: Facts) -> Register | None:
        return None if facts.register is None else Register.read(self._key, facts.register)

    def _register(self) -> str:
        account = self._reservations
        register = Register(
            sequence=self._chain.sequence,
            tag=short(self._chain.tag),
            key=self._key.id,
            generation=0 if account is None else account.ledger.generation,
            partitions=self._partitions,
            slots=self._slots(),
            forks=0 if account is None else account.ledger.charged,
            void=bool(self._void) or (self._known is not None and bool(self._known.void)),
        )
        return register.text(self._key)

    def _slots(self) -> int:
        known, account = self._known, self._reservations
        released = 0 if known is None else known.released
        return released if account is None else max(released, account.settled)
