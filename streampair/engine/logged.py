"""A lane with a log: releases are reserved before, and a start that nobody can vouch for is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from streampair.engine.accepting import Acceptance
from streampair.engine.lane import Lane
from streampair.engine.lanelog import LaneLog
from streampair.engine.log import LogKey
from streampair.engine.opening import Facts, How
from streampair.engine.records import Append, Commit, Event, LaneGauges, LaneOutput, Record, Wanted
from streampair.engine.reservations import Reservations
from streampair.engine.snapshot import Snapshot, since_of
from streampair.errors import LaneStopped, PrivacyError, SnapshotError

__all__ = ["LoggedLane"]


class LoggedLane(Lane):
    """A lane whose log is the truth, and whose snapshots are a cache of it (DESIGN.md 5, docs/privacy.md 8).

    It does no I/O. Its life: `read` the log; `start` with the facts and the snapshot that it asks for;
    `replay` what it asks for; make each `Append` of the start durable, in order; then `process`, whose `line`
    is durable before any output leaves, no more than `room` records between two commits; `commit` once all
    outputs are stored, and `committed` once the commit is. Whatever fails in between: throw the lane away,
    and start another.

    Parameters
    ----------
    learner, decode
        As for `Lane`. The noise key of a private learner keys the log too.
    payloads_change
        Whether the record at an offset may be another one when it is read again (compaction, erasure). Then
        no replay is trusted to repeat anything, and each commit holds a snapshot.
    options
        Further arguments of `Lane`.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine import Facts, LoggedLane, Record
    >>> from streampair.engine.testing import decode_json
    >>> def lane():
    ...     return LoggedLane(auc.PairOGD(seed=1), decode_json, app="a", topic="t", partition=0)
    >>> first = lane()
    >>> first.read(b"").content is None
    True
    >>> appends, warnings = first.start(Facts(registers=False))
    >>> log = b"".join(frame for append in appends for frame in append.frames)
    >>> records = [Record(0, b'{"x": {"a": 0.5}, "y": true}'), Record(1, b'{"x": {"a": 0.1}, "y": false}')]
    >>> scores = first.process(records).scores
    >>> commit = first.commit(snapshot=True)
    >>> first.committed()
    >>> log += b"".join(commit.frames)
    >>> second = lane()
    >>> second.read(log).content == commit.content
    True
    >>> _ = second.start(Facts(end=2, registers=False), commit.snapshot)
    >>> second.next_offset
    2
    """

    def __init__(
        self,
        learner: Any,
        decode: Callable[[Record], Event],
        *,
        payloads_change: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learner, decode, **options)
        private = self._model.private
        self._reservations: Reservations | None = None
        # A fixed seed protects nobody: there is nothing to keep an account of.
        if private is not None and private.seed is None:
            self._reservations = Reservations(private, self.identity, payloads_change=payloads_change)
        self._working = False
        self._log = LaneLog(
            LogKey(None if private is None else private.noise_key),
            app=self.app,
            topic=self.topic,
            partition=self.partition,
            name=self.name,
            fingerprint=self.fingerprint,
            reservations=self._reservations,
            private=private is not None,
            entity="key" if private is not None and private.entity is not None else "",
            void=self._void,
            # Another model, or noise that nobody can draw again, does not come out of a replay once more.
            replayable=not self._model.foreign
            and not payloads_change
            and (private is None or (private.seed is None and private.noise_key is not None)),
            plan=self._plan,
        )

    # A start

    def read(self, frames: bytes, *, damaged: bool = False) -> Wanted:
        """Read the lane's log, before anything is written: what it asks for.

        Parameters
        ----------
        frames
            The log as the store holds it; empty for a new lane.
        damaged
            Stop at damage, in place of an error: for `accept`. A start is then refused.

        Raises
        ------
        LogDamaged, SnapshotError
        """
        return self._log.read(frames, damaged=damaged)

    def start(self, facts: Facts, snapshot: bytes | None = None) -> tuple[list[Append], list[str]]:
        """Check the log against the register and the topic, and announce an attempt.

        Parameters
        ----------
        facts
            What stands outside of the log.
        snapshot
            The one that `read` asked for.

        Returns
        -------
        tuple
            What is to be made durable, in this order, after the replay and before the first record that is
            processed; and what is to be told. A replay that is refused has then written nothing.

        Raises
        ------
        PrivacyError, SnapshotError
            If it may not go on. Nothing may then be written.
        """
        log = self._log
        if snapshot is not None or (log.known is not None and log.known.saved is not None):
            log.check_content(b"" if snapshot is None else snapshot)
        appends, warnings = log.start(facts, report=self._summary())
        known, private = log.known, self._model.private
        if snapshot is not None:
            self.restore(snapshot)
        elif private is not None and known is not None and known.plan is not None:
            private.load_plan(known.plan)  # what another machine has fitted is not fitted again
        if log.known is not None and log.known.given_up is not None:
            self._batch.next_offset = log.known.given_up.next_offset
            tip = log.known.tip
            self._since = self._since or (0 if tip is None else since_of(tip.privacy))
        if log.known is not None and log.known.tip is not None:
            self._dates.load(log.known.tip.privacy)  # commits after the snapshot have dates of their own
        log.restored()
        self._working = log.replay_until is None
        return appends, warnings

    def accept(self, how: How, facts: Facts, when: str, snapshot: bytes | None = None) -> Acceptance:
        """Go on where `start` refuses to, because an operator says so. See `LaneLog.accept`.

        For a lane that has read its log and is not started: make what it gives durable, and start another.

        Parameters
        ----------
        how, facts, when
            As of `LaneLog.accept`.
        snapshot
            The one that `read` asked for: to say what is spent.
        """
        known, private = self._log.known, self._model.private
        told = None if known is None else (known.genesis if known.tip is None else known.tip).privacy
        if known is not None and snapshot is not None:
            self._log.check_content(snapshot)
            self.restore(snapshot)
        elif private is not None and known is not None and known.plan is not None:
            private.load_plan(known.plan)
        tip_ledger = None if known is None or known.tip is None else known.tip.ledger
        accepted = self._log.accept(how, facts, when)
        if private is None or self._reservations is None or told is None:
            return accepted
        first = 0 if tip_ledger is None else tip_ledger["forks"] + tip_ledger["pending"]
        private.charge(first)
        base = private.privacy.mu_spent
        private.charge(accepted.charged[1])
        before, after = told["mu_spent"], private.privacy.mu_spent
        if known is not None and known.given_up is None:
            # At the tip more is spent than at the snapshot; what forks cost does not hang on where they are.
            after = math.hypot(before, math.sqrt(max(after**2 - base**2, 0.0)))
        return accepted._replace(mu=(before, after))

    def reread(self, frames: bytes) -> Wanted | None:
        """Read the log again, once the lane was let go of: what it asks for before `rejoin`.

        Parameters
        ----------
        frames
            The log as the store holds it now.

        Returns
        -------
        Wanted or None
            None if somebody has worked on it since, or this lane has after its last commit: it is of no use
            then, and another is to be started.
        """
        left = (self._log.chain.sequence, self._log.chain.tag)
        wanted = self._log.read(frames)
        known, chain = self._log.known, self._log.chain
        same = known is not None and left == (chain.sequence, chain.tag) and not self._torn
        if not same or known is None or known.span is not None or known.next_offset != self.next_offset:
            return None
        return wanted

    def rejoin(self, facts: Facts) -> tuple[list[Append], list[str]]:
        """Go on with the state that this lane still has, after `reread`; otherwise as `start`."""
        appends, warnings = self._log.start(facts)
        self._log.restored()
        self._working = True
        return appends, warnings

    @property
    def log(self) -> LaneLog:
        """Its log, as it was read."""
        return self._log

    @property
    def replay_until(self) -> int | None:
        """Offset up to which records are to be replayed after `start`; None: none, or no longer any."""
        return None if self._working else self._log.replay_until

    def replay(self, records: Sequence[Record]) -> None:
        """Process records again that were committed after the last snapshot. Nothing comes out of it.

        Raises
        ------
        SnapshotError, PrivacyError
            If they do not give what they gave.
        """
        log, until = self._log, self.replay_until
        if until is None:
            raise LaneStopped("there is nothing to replay", fix="call process")
        records = [record for record in records if record.offset < until]
        self._torn = self._used = True
        output = self._take(records)
        log.took(records, output.scores)
        self._torn = False

    def replayed(self) -> None:
        """Say that the topic has no more records below `replay_until`.

        Raises
        ------
        SnapshotError
            If the lane has not come to where it was.
        """
        log = self._log
        # Markers and gaps: the last record may lie well below the offset that was committed.
        self._batch.next_offset = log.replay_until
        log.replayed()
        self._working = True

    # Learning

    @property
    def room(self) -> int | None:
        """Records that may be processed before the next commit; None: any number."""
        return None if self._reservations is None else self._reservations.room

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Score each record, then learn from it: as `Lane.process`, with the line that must be durable first.

        Raises
        ------
        LaneStopped
            As of `Lane.process`.
        PrivacyError
            If more would be released than is reserved, or another view of records that were released before
            than is set aside for. Nothing of the batch may then leave.
        """
        room = self.room if self._working else 0
        if not self._working or (room is not None and len(records) > room):
            raise PrivacyError(
                f"{len(records)} records, and {room} slots are reserved",
                fix="start the lane, replay what it asks for, give no more than room records, and commit",
            )
        output = super().process(records)
        self._torn = True
        output.line = self._log.took(records, output.scores)
        self._torn = False
        return output

    @property
    def privacy(self) -> Any:
        """The learner's report; void also where a record was ever taken under what voids it."""
        private, known = self._model.private, self._log.known
        if private is None or known is None:
            return super().privacy
        private.mark(void=known.void, accepted=known.accepted)
        void = list(dict.fromkeys([*known.void, *self._void]))
        report = private.privacy
        if not void:
            return self._noted(report)
        return self._noted(dataclasses.replace(report, kind="void", guarantee=f"void ({'; '.join(void)})"))

    def gauges(self, *, solve: bool | None = None) -> LaneGauges:
        """The lane's numbers: as `Lane.gauges`, and what its ledger has charged."""
        gauges = super().gauges(solve=solve)
        if self._reservations is None:
            return gauges
        ledger = self._reservations.ledger
        return dataclasses.replace(gauges, forks=ledger.charged, generation=ledger.generation)

    # Commits

    def skipped(self) -> None:
        """Say that the topic has lost records that this lane has not read: the next commit is a snapshot."""
        self._log.skipped()

    @property
    def records_to_replay(self) -> int:
        """Records that a start would replay if the process died after the next commit without a snapshot."""
        return self._log.records_since_snapshot

    def commit(self, *, snapshot: bool = False, clean: bool = False, when: int = 0) -> Commit:
        """What is to be made durable once all outputs are stored.

        Parameters
        ----------
        snapshot
            Whether to save the state. A lane that cannot replay does so in any case.
        clean
            Whether the process ends here; implies a snapshot.
        when
            Milliseconds since the epoch: the date of releases and forks that are new; 0: they get none.

        Returns
        -------
        Commit
            Call `committed` once it is durable. If it cannot be made so, the lane is of no use any more: make
            another, and start it from the store.
        """
        log = self._log
        if not self._working:
            raise SnapshotError("the lane has not caught up", fix="replay first")
        if self._reservations is not None:
            self._dates.note(when, self.privacy, self._reservations.ledger.charged, self._batch.seen)
        data = self.snapshot(clean=clean) if snapshot or clean or log.snapshot_due else None
        return log.commit(self.next_offset, self._batch.seen, data, clean=clean, report=self._summary())

    def committed(self) -> None:
        """Say that the last commit is durable: what it reserves may be released from now on."""
        if self._reservations is not None:
            self._reservations.committed()

    def _plan(self) -> dict[str, Any] | None:
        plan = None if self._model.private is None else self._model.private.plan()
        return None if plan is None else dict(plan)

    def _account(self) -> dict[str, Any] | None:
        return {"log": self._log.chain.sequence}

    def _continue(self, saved: Snapshot) -> None:
        """The log says what was released, and by whom."""
