"""A lane with a write-ahead log of its releases and commits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from streampair.engine.exploration import Exploration
from streampair.engine.fits import Fits, PendingModel
from streampair.engine.lane import Lane
from streampair.engine.lane_id import LaneId
from streampair.engine.lane_log import LaneLog
from streampair.engine.protocols import DeferredFits
from streampair.engine.records import (
    Commit,
    Event,
    LaneGauges,
    LaneOutput,
    LogAppend,
    Record,
    ReplayRequest,
)
from streampair.engine.recovery import ANOTHER, Cause, ExternalState, OverrideResult
from streampair.engine.reservations import Reservations
from streampair.engine.snapshot import Saving, Snapshot, since_of, summary
from streampair.engine.source import ORDER_NOT_COVERED, Positions
from streampair.engine.wal import NOT_ACTING, LogKey
from streampair.errors import LaneStoppedError, PrivacyError, SnapshotError

__all__ = ["LoggedLane"]


class LoggedLane(Lane):
    """A lane with a write-ahead log; snapshots are a cache of the log (docs/privacy 8).

    See docs/design.md, "The log is the truth".

    It does no I/O. The caller, in this order: `read`s the log; `start`s with the external state and the
    requested snapshot; `replay`s the requested records; makes each `LogAppend` of the start durable; then
    `process`es at most `room` records between two commits, and makes each `line` durable before any output
    leaves; `commit`s once all outputs are stored, and calls `committed` once the commit is. After any failure
    in between, discard the lane and start another.

    Parameters
    ----------
    learner, decode, identity
        As for `Lane`. The noise key of a private learner keys the log too.
    payloads_change
        Whether the record at an offset may change between reads (compaction, erasure). Replays are then not
        trusted, and each commit includes a snapshot.
    submit
        Runs the computation of a slow model elsewhere, and returns its future (`concurrent.futures`). The
        lane goes on with the model before, and adopts the new one before the first record of a later
        `process`. None: the lane computes it itself, at the end of `process`.
    options
        Further arguments of `Lane`. The log keeps the fingerprint and the settings of `saving`.

    Examples
    --------
    >>> import json
    >>> from streampair import auc
    >>> from streampair.engine import Event, ExternalState, LaneId, LoggedLane, Record
    >>> def decode(record):
    ...     return Event(**json.loads(record.value))
    >>> def lane():
    ...     return LoggedLane(auc.PairOGD(seed=1), decode, LaneId("a", "t", 0))
    >>> first = lane()
    >>> first.read(b"").content is None
    True
    >>> appends, warnings = first.start(ExternalState(registers=False))
    >>> log = b"".join(frame for append in appends for frame in append.frames)
    >>> records = [Record(0, b'{"x": {"a": 0.5}, "y": true}'), Record(1, b'{"x": {"a": 0.1}, "y": false}')]
    >>> scores = first.process(records).scores
    >>> commit = first.commit(snapshot=True)
    >>> first.committed()
    >>> log += b"".join(commit.frames)
    >>> second = lane()
    >>> second.read(log).content == commit.content
    True
    >>> _ = second.start(ExternalState(end=2, registers=False), commit.snapshot)
    >>> second.next_offset
    2
    """

    def __init__(
        self,
        learner: Any,
        decode: Callable[[Record], Event],
        identity: LaneId,
        *,
        payloads_change: bool = False,
        submit: Callable[[Callable[[], Any]], PendingModel] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learner, decode, identity, **options)
        private = self._model.private
        self._fits = Fits(private, submit) if isinstance(private, DeferredFits) else None
        self._reservations: Reservations | None = None
        # A fixed seed gives no privacy, so there is no account to keep.
        if private is not None and private.seed is None:
            self._reservations = Reservations(private, identity.text, payloads_change=payloads_change)
        self._working = False
        self.labels_used = b""
        """Where labels come later: which of them were used, as of the snapshot or of `label_state`."""
        self.label_state: Callable[[], bytes] | None = None
        """Returns `labels_used` as of the records taken; None: it does not change."""
        self._log = LaneLog(
            LogKey(None if private is None else private.noise_key),
            identity=identity,
            name=self.name,
            saving=self._saving or Saving(),
            reservations=self._reservations,
            private=private is not None,
            entity="key" if private is not None and private.entity is not None else "",
            void=self._void,
            # A foreign model may not be deterministic, and noise without a key cannot be drawn again.
            replayable=not self._model.foreign
            and not payloads_change
            and (private is None or (private.seed is None and private.noise_key is not None)),
            plan=self._plan,
            late=self._batch.arrivals is not None,
        )

    # Start

    def read(self, frames: bytes, *, damaged: bool = False) -> ReplayRequest:
        """Read the lane's log, before anything is written; returns what the start needs.

        Parameters
        ----------
        frames
            The log's bytes from the store; empty for a new lane.
        damaged
            Read up to the first damage instead of raising: for `override`. `start` then raises the error.

        Raises
        ------
        LogDamagedError, SnapshotError
        """
        return self._log.read(frames, damaged=damaged)

    def start(self, facts: ExternalState, snapshot: bytes | None = None) -> tuple[list[LogAppend], list[str]]:
        """Check the log against the register and the topic, and begin an attempt.

        Parameters
        ----------
        facts
            State outside of the log.
        snapshot
            The one that `read` requested.

        Returns
        -------
        tuple
            Appends to be made durable, in this order, after the replay and before the first record is
            processed, so that a refused replay has written nothing; and warnings.

        Raises
        ------
        PrivacyError, SnapshotError
            If the lane may not go on. Nothing may then be written.
        """
        log = self._log
        if snapshot is not None or (log.known is not None and log.known.saved is not None):
            log.check_content(b"" if snapshot is None else snapshot)
        appends, warnings = log.start(facts, report=self._summary())
        self._recover(snapshot)
        known = log.known
        assert known is not None  # `log.start` begins a new one
        if known.span_override is not None:
            self._batch.next_offset = known.span_override.next_offset
            self._since = self._since or (0 if known.tip is None else since_of(known.tip.privacy))
        if known.tip is not None:
            self._dates.load(known.tip.privacy)  # commits after the snapshot have dates of their own
        log.restored()
        if self._fits is not None:
            self._fits.follow(known.models, self.next_offset or 0)
        self._explore(replays=log.replay_until is not None)
        self._working = log.replay_until is None
        return appends, warnings

    def _explore(self, *, replays: bool) -> None:
        """Explore as the configuration says from now on; a replay does as the log says was done."""
        batch, source = self._batch, self.source
        if source is None or batch.arrivals is None or source.learns_only:
            return
        if batch.exploration is None:
            if not source.acting:
                return
            batch.exploration = Exploration.none(self.identity.topic)
        explore = batch.exploration
        explore.acting = (source.acting or [NOT_ACTING]) if replays else source.act(explore.now)

    def _recover(self, snapshot: bytes | None) -> None:
        """Restore the snapshot; without one take the plan, which is fitted once, on whatever machine."""
        known, private = self._log.known, self._model.private
        if snapshot is not None:
            self.restore(snapshot)
        elif private is not None and known is not None and known.plan is not None:
            private.load_plan(known.plan)

    def override(
        self, cause: Cause, facts: ExternalState, when: str, snapshot: bytes | None = None
    ) -> OverrideResult:
        """Override a refused `start` on an operator's word. See `LaneLog.override`.

        Call it after `read`, on a lane that is not started. Make the append durable, then start a new lane.

        Parameters
        ----------
        cause, facts, when
            As of `LaneLog.override`.
        snapshot
            The one that `read` requested: to compute the spend.
        """
        known, private = self._log.known, self._model.private
        report = None if known is None else (known.genesis if known.tip is None else known.tip).privacy
        if snapshot is not None:
            self._log.check_content(snapshot)
        self._recover(snapshot)
        tip_ledger = None if known is None or known.tip is None else known.tip.ledger
        accepted = self._log.override(cause, facts, when)
        if private is None or self._reservations is None or report is None:
            return accepted
        first = 0 if tip_ledger is None else tip_ledger["forks"] + tip_ledger["pending"]
        private.charge(first)
        base = private.privacy.mu_spent
        private.charge(accepted.charged[1])
        before, after = report["mu_spent"], private.privacy.mu_spent
        if known is not None and known.span_override is None:
            # More is spent at the tip than at the snapshot. Forks cost the same at both.
            after = math.hypot(before, math.sqrt(max(after**2 - base**2, 0.0)))
        return accepted._replace(mu=(before, after))

    def begin_anew(self, facts: ExternalState, when: str) -> LogAppend:
        """Begin a new model at the group's offset, in place of a log that is gone or cannot be used.

        Call it on a lane that is not started. Make the append durable as the first of an empty log, then
        start a new lane: it takes the events from the group's offset on, so that none is scored twice and
        none is skipped.

        Parameters
        ----------
        facts
            As of `start`, with the group's offset of each partition.
        when
            The date, for the log.

        Raises
        ------
        PrivacyError
            The learner is private: the log was its account.
        SnapshotError
            The group has no offset.
        """
        if self.private:
            raise PrivacyError(
                f"{self.name} is private, and its log is the account of what was released",
                fix=f"put the newest store back; if it is lost, {ANOTHER}",
            )
        return self._log.begin_anew(facts, when)

    @property
    def source(self) -> Positions | None:
        """Positions in the partitions; None: it takes the records of one."""
        return self._log.source

    @property
    def log(self) -> LaneLog:
        """The log, once it was read."""
        return self._log

    @property
    def replay_until(self) -> int | None:
        """Offset up to which records are to be replayed after `start`; None: no replay, or it is over."""
        return None if self._working else self._log.replay_until

    def replay(self, records: Sequence[Record]) -> None:
        """Process records again that were committed after the last snapshot, without outputs.

        Raises
        ------
        SnapshotError, PrivacyError
            If the results differ from those of the first time.
        """
        log, until = self._log, self.replay_until
        if until is None:
            raise LaneStoppedError("there is nothing to replay", fix="call process")
        records = [record for record in records if record.offset < until]
        self._torn = self._used = True
        output = self._take(records)
        log.took(records, output.scores, silent=True)
        self._torn = False

    def replayed(self) -> None:
        """End the replay: the topic has no more records below `replay_until`.

        Raises
        ------
        SnapshotError
            If the replay did not reach the state of the last commit.
        """
        log = self._log
        # With markers and gaps, the last record may lie well below the committed offset.
        self._batch.next_offset = log.replay_until
        log.replayed()
        self._explore(replays=False)
        self._working = True

    # Learning

    @property
    def room(self) -> int | None:
        """Records that may be processed before the next commit; None: any number."""
        return None if self._reservations is None else self._reservations.room

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Score each record, then learn from it: as `Lane.process`, with a `line` to be made durable first.

        Raises
        ------
        LaneStoppedError
            As of `Lane.process`.
        PrivacyError
            If more slots would be released than are reserved, or more forks are needed than the plan allows.
            Nothing of the batch may then leave.
        """
        room = self.room if self._working else 0
        if not self._working or (room is not None and len(records) > room):
            raise PrivacyError(
                f"{len(records)} records, and {room} slots are reserved",
                fix="start the lane, replay what it requests, give no more than room records, and commit",
            )
        output = super().process(records)
        self._torn = True
        model = None
        if self._fits is not None:
            self._fits.start()
            model = self._fits.announce(output.scores)
        output.line = self._log.took(records, output.scores, model)
        self._torn = False
        return output

    def _take(self, records: Sequence[Record]) -> LaneOutput:
        """As in the base, with the models that are adopted before the first record, or where the log says."""
        fits = self._fits
        if fits is None:
            return super()._take(records)
        if self._working:
            fits.adopt(self.next_offset or 0)
        output: LaneOutput | None = None
        for part in fits.parts(records):
            taken = super()._take(part)
            if output is None:
                output = taken
            else:
                output.scores += taken.scores
                output.dead_letters += taken.dead_letters
                output.next_offset = taken.next_offset
        assert output is not None  # there is one part at least
        return output

    def _void_reasons(self) -> list[str]:
        """As in the base, and the reasons in the log under which records were taken; marks the learner."""
        private, known = self._model.private, self._log.known
        if private is None or known is None:
            return self._void
        private.mark(void=known.void, accepted=known.accepted)
        return list(dict.fromkeys([*known.void, *self._void]))

    def _uncovered(self) -> str:
        """The order over partitions, where producers set the timestamps (docs/privacy 8.4)."""
        return ORDER_NOT_COVERED if self.source is not None and self.source.producer_times else ""

    def gauges(self, *, solve: bool | None = None) -> LaneGauges:
        """The lane's numbers: as `Lane.gauges`, with the forks that its ledger has charged."""
        gauges = super().gauges(solve=solve)
        if self._reservations is None:
            return gauges
        ledger = self._reservations.ledger
        return dataclasses.replace(gauges, forks=ledger.charged, generation=ledger.generation)

    # Commits

    def skipped(self) -> None:
        """Report that the topic lost records before this lane read them: the next commit has a snapshot."""
        self._log.skipped()

    @property
    def records_to_replay(self) -> int:
        """Records that a restart would replay if the next commit had no snapshot."""
        return self._log.records_since_snapshot

    def commit(self, *, snapshot: bool = False, clean: bool = False, when: int = 0) -> Commit:
        """Make a commit, which is to be made durable once all outputs are stored.

        Parameters
        ----------
        snapshot
            Whether to save the state. A lane that cannot replay always does.
        clean
            Whether the process ends here; implies a snapshot.
        when
            Milliseconds since the epoch: the date of new releases and forks; 0: they get none.

        Returns
        -------
        Commit
            Call `committed` once it is durable. If that fails, discard the lane and start another from the
            store.
        """
        log = self._log
        if not self._working:
            raise SnapshotError("the lane has not caught up", fix="replay first")
        numbers = self._numbers()
        if self._reservations is not None:
            self._dates.note(when, numbers, self._reservations.ledger.charged, self.slots)
        privacy = summary(numbers, self._since, self._dates.to_state())
        data = None
        if snapshot or clean or log.snapshot_due:
            data = self.snapshot(clean=clean)
            if log.source is not None:
                log.source.saved()
        return log.commit(self.next_offset, self._batch.seen, data, clean=clean, report=privacy)

    def committed(self) -> None:
        """Confirm that the last commit is durable: the slots that it reserves may now be released."""
        if self._reservations is not None:
            self._reservations.committed()

    def _plan(self) -> dict[str, Any] | None:
        plan = None if self._model.private is None else self._model.private.plan()
        return None if plan is None else dict(plan)

    def _labels_used(self) -> bytes:
        return self.labels_used if self.label_state is None else self.label_state()

    def _account(self) -> dict[str, Any] | None:
        return {"log": self._log.chain.sequence}

    def _continue(self, saved: Snapshot) -> None:
        """Check that the snapshot has an account; the log holds it."""
        self.labels_used = saved.labels_used
