"""A durable lane: a lane with a write-ahead log of its releases and commits."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from streampair import __version__
from streampair.engine.batch import payload_digest
from streampair.engine.fits import Fits, PendingModel
from streampair.engine.lane import Lane
from streampair.engine.protocols import DeferredFits
from streampair.engine.records import (
    Commit,
    Event,
    LaneGauges,
    LaneOutput,
    LogAppend,
    OrderedRecord,
    Record,
    ReplayRequest,
    Scored,
)
from streampair.engine.recovery import (
    ANOTHER,
    Cause,
    ExternalState,
    OverrideResult,
    RecoveredState,
    check,
    check_replay,
    override_start,
    refuse_key,
    replay_impossible,
)
from streampair.engine.reservations import Reservations
from streampair.engine.snapshot import OR_ANEW, Snapshot, UnusableLogError, since_of, summary
from streampair.engine.source import ORDER_NOT_COVERED, Positions
from streampair.engine.wal import (
    LOG_FORMAT,
    WHOLE_TOPIC,
    Chain,
    CommitEntry,
    Digests,
    Entry,
    GenesisEntry,
    LogKey,
    ModelEntry,
    OverrideEntry,
    Position,
    Range,
    RangesEntry,
    RecordRef,
    Register,
    SnapshotEntry,
    SourceState,
    StartEntry,
    log_format,
    other_format,
    truncate_tag,
)
from streampair.errors import LaneStoppedError, PrivacyError, SnapshotError

__all__ = [
    "LaneLog",
    "LoggedLane",
    "place_of",
]


def place_of(record: Record) -> RecordRef:
    """A reference to a record: its offset, the digest of its payload, and its place in a whole topic."""
    digest = payload_digest(record.key, record.value)
    if isinstance(record, OrderedRecord):
        return RecordRef(record.offset, digest, record.partition, record.position)
    return RecordRef(record.offset, digest)


def _place_at(offset: int, records: Iterable[Record]) -> RecordRef:
    return place_of(next(record for record in records if record.offset == offset))


class LaneLog:
    """The log of one lane.

    Parameters
    ----------
    key
        Of the chain: from the noise key of a private lane.
    app, topic, partition, name, fingerprint
        Identity of the lane and its learner.
    reservations
        Privacy account of the learner; None: it keeps none.
    private
        Whether the learner is private, so that its guarantee depends on this log.
    entity
        Where entities are read from; empty where none are declared.
    void
        Reasons that void the guarantee in the current configuration.
    replayable
        Whether a replay of the same records from the same snapshot gives the same scores and bytes.
    plan
        Returns the fitted numbers of the learner's plan; None while they are not known.
    late
        Whether labels come later than events.
    settings
        The settings behind the fingerprint, by name.
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
        late: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._late = late
        self._settings = dict(settings or {})
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
        self._known: RecoveredState | None = None
        self._partitions = 1
        self._scores = hashlib.blake2b(digest_size=32)
        self._last: RecordRef | None = None
        self._first: int | None = None
        self._snapshot_due = True
        self.replayable = replayable
        self.source = Positions() if partition == WHOLE_TOPIC else None
        """Of a lane that reads a whole topic."""
        self.records_since_snapshot = 0
        """Records that a restart would have to replay."""

    # Start

    def read(self, frames: bytes, *, damaged: bool = False) -> ReplayRequest:
        """Read and verify the log.

        Parameters
        ----------
        frames
            The log's bytes from the store.
        damaged
            Read up to the first damage instead of raising: for `override`. `start` then raises the error.

        Raises
        ------
        LogDamagedError, UnusableLogError
            If it is damaged, or of another format.
        PrivacyError
            If it was begun under another key.
        SnapshotError
            If it belongs to another lane, or was written under another configuration.
        """
        if (found := log_format(frames)) not in (None, LOG_FORMAT):
            raise other_format("the log", found, LOG_FORMAT)
        entries, self._chain, used = Chain.read(self._key, frames, damaged=True)
        if self._chain.damage is not None:
            self._check_key(frames)
            if not damaged:
                raise self._chain.damage
        self._known = known = RecoveredState.of(entries)
        if known is None:
            return ReplayRequest(None, None, None, used)
        genesis, tip = known.genesis, known.tip
        theirs = {"app": genesis.app, "topic": genesis.topic, "partition": genesis.partition}
        if theirs != self._who:
            raise SnapshotError(
                f"the log is that of {theirs}, this lane is {self._who}",
                fix="point the store at this lane's own place",
            )
        genesis.check_settings(self._fingerprint, self._settings)
        return ReplayRequest(
            None if known.saved is None else known.saved.content.hex(),
            genesis.first,
            None if tip is None else tip.last,
            used,
            tuple(known.ranges),
        )

    def _check_key(self, frames: bytes) -> None:
        """Raise if the log was begun under another key: then the key is wrong, and the log not damaged."""
        try:
            entries = Chain.peek(frames)
        except SnapshotError:
            return
        first = entries[0] if entries else None
        genesis = first.genesis if isinstance(first, SnapshotEntry) else first
        if isinstance(genesis, GenesisEntry) and genesis.key != self._key.id:
            refuse_key(genesis.key, self._key.id)

    @property
    def known(self) -> RecoveredState | None:
        """The state that the log records; None: the log is new."""
        return self._known

    @property
    def chain(self) -> Chain:
        """The end of the log."""
        return self._chain

    def start(
        self,
        facts: ExternalState,
        *,
        report: dict[str, Any] | None = None,
    ) -> tuple[list[LogAppend], list[str]]:
        """Check the recovered state, and begin an attempt. Nothing may be written before.

        Parameters
        ----------
        facts
            State outside of the log.
        report
            Numbers of the privacy report, for a new log.

        Returns
        -------
        tuple
            Appends to be made durable, in order; and warnings: problems that do not stop a lane without an
            account.

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
            check_replay(known, facts)
        appends: list[LogAppend] = []
        if known is None:
            genesis = self._genesis(facts, report)
            self._known = known = RecoveredState.of([genesis])
            assert known is not None
            appends.append(self._append(self._chain.add(genesis)))
        elif facts.registers and not known.attempts and self._registered(facts) is None:
            # The process that began the log died before it wrote the register. No attempt may precede that.
            appends.append(self._append())
        self._partitions = facts.partitions
        account, ledger = self._reservations, None
        if account is not None:
            if known.ledger is not None:
                account.restore(known.ledger)
            ledger = account.begin(known.lines)
        attempt = StartEntry(__version__, self._void, ledger)
        known.fold(attempt)
        appends.append(self._append(self._chain.add(attempt)))
        return appends, warnings

    def _genesis(self, facts: ExternalState, report: dict[str, Any] | None) -> GenesisEntry:
        return GenesisEntry(
            format=LOG_FORMAT,
            writer=__version__,
            name=self._name,
            fingerprint=self._fingerprint,
            key=self._key.id,
            partitions=facts.partitions,
            entity=self._entity,
            cluster=facts.cluster,
            topic_id=facts.topic_id,
            first=facts.first,
            plan=self._plan(),
            privacy=report,
            settings=self._settings,
            **self._who,  # type: ignore[arg-type]
        )

    def begin_anew(self, facts: ExternalState, when: str) -> LogAppend:
        """Begin a new log at the group's offset: see `LoggedLane.begin_anew`."""
        if facts.offset is None and not facts.offsets:
            raise SnapshotError(
                "the group has no offset here, so nothing says where a new model would begin",
                fix="set it: kafka-consumer-groups.sh --reset-offsets --to-offset OFFSET --execute, and "
                "repeat the command",
            )
        next_offset, source = facts.offset, None
        if self.source is not None:
            positions = [Position(p, offset, 0) for p, offset in sorted(facts.offsets.items())]
            # The events that waited for their labels when the log was lost are not learned.
            next_offset, source = 0, SourceState(positions, [], due=positions if self._late else [])
        tip = CommitEntry(
            writer=__version__,
            next_offset=next_offset,
            seen=0,
            slots=0,
            scores=self._scores_digest(),
            last=None,
            ledger=None,
            clean=True,
            privacy=None,
            first=None,
            source=source,
        )
        what = f"{when} (began anew at the group's offset)"
        anew = OverrideEntry(
            what=what, charged=0, from_snapshot=True, next_offset=next_offset, ledger=None, void=[]
        )
        entries: list[Entry] = [self._genesis(facts, None), tip, anew]
        self._chain = Chain(self._key)
        self._known, self._partitions = RecoveredState.of(entries), facts.partitions
        return self._append(*map(self._chain.add, entries))

    def override(self, cause: Cause, facts: ExternalState, when: str) -> OverrideResult:
        """Override a refused `start` on an operator's word: see `recovery.override_start`."""
        entry, problem, charged = override_start(
            self._known,
            self._chain,
            self._reservations,
            facts,
            cause,
            when,
            private=self._private,
            entity=self._entity,
        )
        assert self._known is not None  # `override_start` raises without a log
        self._known.fold(entry)
        self._partitions = facts.partitions
        append = self._append(self._chain.add(entry))
        return OverrideResult(append, entry.charged, entry.what, problem, charged)

    def restored(self) -> None:
        """Continue after the last snapshot was restored, or after the start of a lane without one."""
        known, account = self._known, self._reservations
        assert known is not None
        if account is not None:
            account.bind()
        self._last = None if known.tip is None else known.tip.last
        if self.source is not None:
            self.source.load(known.source)
        if known.span is None:
            self._snapshot_due = not self.replayable or known.saved is None or known.span_override is not None
        elif account is not None:
            account.replay(known.path)

    @property
    def replay_until(self) -> int | None:
        """Offset at which the silent replay ends; None: nothing is to be replayed."""
        span = None if self._known is None else self._known.span
        return None if span is None else span[1]

    def replayed(self) -> None:
        """Check the result of the silent replay, which has reached the last commit.

        Raises
        ------
        SnapshotError
            If its scores differ from those of the commit.
        """
        known, account = self._known, self._reservations
        assert known is not None
        assert known.tip is not None
        if self.source is not None:
            self.source.load(known.source)
        if known.tip.scores != self._scores_digest():
            raise replay_impossible(
                "a replay from the last snapshot gives other scores than the last commit has"
            )
        if account is not None:
            if account.settled != known.tip.slots:
                raise replay_impossible(
                    f"a replay ends at slot {account.settled}, and the log at {known.tip.slots}"
                )
            account.replayed()
        self._snapshot_due = not self.replayable

    def _scores_digest(self) -> bytes:
        """Digest of the scores since the last snapshot and of the state of the noise."""
        digest = self._scores.copy()
        if self._reservations is not None:
            self._reservations.update_digest(digest)
        return digest.digest()

    # Processing

    def took(
        self,
        records: Sequence[Record],
        scores: Sequence[Scored],
        model: ModelEntry | None = None,
        *,
        silent: bool = False,
    ) -> LogAppend | None:
        """The append that must be durable before the outputs of these records leave; None: none.

        Parameters
        ----------
        records, scores
            What was processed.
        model
            Which model has scored; None: there is nothing to say. Without a replay nobody would read it.
        silent
            Whether this is a replay, whose outputs were sent before.
        """
        if scores:
            values = [float("nan") if scored.score is None else scored.score for scored in scores]
            self._scores.update(array.array("d", values).tobytes())
            self.records_since_snapshot += len(scores)
            self._last = _place_at(scores[-1].offset, reversed(records))
            self._first = scores[0].offset if self._first is None else self._first
            known = self._known
            if known is not None and known.genesis.first is None:  # the partition was empty when it began
                first = _place_at(scores[0].offset, records)
                known.genesis = msgspec.structs.replace(known.genesis, first=first)
        source = self.source
        if source is not None and scores:
            source.took(records)  # type: ignore[arg-type]  # a lane of a whole topic takes no others
        account, entries = self._reservations, []
        if account is not None:
            silent, line = account.replaying, account.digest_line()
            if scores and not silent and self._voids() and line is None:
                # A repeated release needs no line of digests. An empty one makes the new void reason durable.
                line = Digests(account.settled + 1, 0, b"")
            entries = [entry for entry in (model if self.replayable else None, line) if entry is not None]
        if not entries:
            return self._announce() if self._late and not silent else None
        frames = () if source is None else self._ranges(source.announced())
        return self._append(*frames, *map(self._chain.add, entries))

    def _announce(self) -> LogAppend | None:
        """The append of what was taken, of a lane that scores some events and learns others.

        In which order it did depends on when labels were read, and with that which model has scored.
        """
        source = self.source
        if source is None or not (frames := self._ranges(source.announced())):
            return None
        return self._append(*frames)

    def _voids(self) -> bool:
        """Apply the pending void reasons, as a record is taken; return whether one of them is new."""
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
        """Whether the next commit must include a snapshot."""
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
        """Make a commit, which is to be made durable once all outputs are.

        Parameters
        ----------
        next_offset, seen
            Offset of the next record, and number of records taken.
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
        source = self.source
        ranges = [] if source is None else source.announced()
        tip = CommitEntry(
            writer=__version__,
            next_offset=next_offset,
            seen=seen,
            slots=0 if account is None else account.settled,
            scores=self._scores_digest(),
            last=self._last,
            ledger=None if account is None else account.reserved(clean=clean),
            clean=clean,
            privacy=report,
            first=self._first,
            source=None if source is None else source.state,
        )
        if data is None:
            frames = self._ranges(ranges)
            known.fold(tip)
            return self._committing((*frames, self._chain.add(tip)), next_offset, None, None)
        known.fold(tip)  # adds the void reasons that the snapshot's entry repeats
        known.plan = self._plan()
        content = self._key.tag(b"snapshot", data)
        saved = SnapshotEntry(
            tip=tip,
            content=content,
            size=len(data),
            genesis=known.genesis,
            plan=known.plan,
            void=list(known.void),
            accepted=list(known.accepted),
            voiding=list(known.voiding),
            models=[model for model in known.models if model.end > (next_offset or 0)],
        )
        known.fold(saved)
        self._scores = hashlib.blake2b(digest_size=32)
        self._first = None
        self._snapshot_due = not self.replayable
        self.records_since_snapshot = 0
        return self._committing((self._chain.add(saved),), next_offset, content.hex(), data)

    def check_content(self, data: bytes) -> None:
        """Refuse a snapshot whose digest is not the one in the log.

        Raises
        ------
        SnapshotError
        """
        known = self._known
        if known is None or known.saved is None or self._key.tag(b"snapshot", data) != known.saved.content:
            raise UnusableLogError(
                "the snapshot is not the one that the log names",
                fix=f"put the store back as a whole: its log and its snapshots belong together. {OR_ANEW}",
            )

    def _ranges(self, ranges: list[Range]) -> tuple[bytes, ...]:
        """The frame that announces ranges; none if there are no ranges."""
        if not ranges:
            return ()
        return (self._chain.add(RangesEntry(ranges)),)

    def _positions(self, source: SourceState | None) -> dict[int, int] | None:
        """The group's offsets, where the lane reads a whole topic."""
        if self.source is None:
            return None
        if source is None:
            return {}
        positions = source.due if self.source.learns_only else source.positions
        return {each.partition: each.next_offset for each in positions}

    def _committing(
        self, frames: tuple[bytes, ...], next_offset: int | None, content: str | None, data: bytes | None
    ) -> Commit:
        known = self._known
        positions = self._positions(None if known is None else known.source)
        return Commit(frames, self._register(), next_offset, content, data, positions=positions)

    def _append(self, *frames: bytes) -> LogAppend:
        known = self._known
        if known is None:
            return LogAppend(frames, self._register(), None, positions=self._positions(None))
        positions = self._positions(known.source)
        return LogAppend(frames, self._register(), known.next_offset, positions=positions)

    def _registered(self, facts: ExternalState) -> Register | None:
        return None if facts.register is None else Register.read(self._key, facts.register)

    def _register(self) -> str:
        account = self._reservations
        register = Register(
            sequence=self._chain.sequence,
            tag=truncate_tag(self._chain.tag),
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
    learner, decode
        As for `Lane`. The noise key of a private learner keys the log too.
    payloads_change
        Whether the record at an offset may change between reads (compaction, erasure). Replays are then not
        trusted, and each commit includes a snapshot.
    submit
        Runs the computation of a slow model elsewhere, and returns its future (`concurrent.futures`). The
        lane goes on with the model before, and adopts the new one before the first record of a later
        `process`. None: the lane computes it itself, at the end of `process`.
    settings
        The settings behind `fingerprint`, by name. The log keeps them, so that a start under other settings
        names what differs.
    options
        Further arguments of `Lane`.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine import ExternalState, LoggedLane, Record
    >>> from streampair.engine.testing import decode_json
    >>> def lane():
    ...     return LoggedLane(auc.PairOGD(seed=1), decode_json, app="a", topic="t", partition=0)
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
        *,
        payloads_change: bool = False,
        submit: Callable[[Callable[[], Any]], PendingModel] | None = None,
        settings: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learner, decode, **options)
        private = self._model.private
        self._fits = Fits(private, submit) if isinstance(private, DeferredFits) else None
        self._reservations: Reservations | None = None
        # A fixed seed gives no privacy, so there is no account to keep.
        if private is not None and private.seed is None:
            self._reservations = Reservations(private, self.identity, payloads_change=payloads_change)
        self._working = False
        self.labels_used = b""
        """Where labels come later: which of them were used, as of the snapshot or of `label_state`."""
        self.label_state: Callable[[], bytes] | None = None
        """Returns `labels_used` as of the records taken; None: it does not change."""
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
            # A foreign model may not be deterministic, and noise without a key cannot be drawn again.
            replayable=not self._model.foreign
            and not payloads_change
            and (private is None or (private.seed is None and private.noise_key is not None)),
            plan=self._plan,
            late=self._batch.arrivals is not None,
            settings=settings,
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
        known, private = log.known, self._model.private
        if snapshot is not None:
            self.restore(snapshot)
        elif private is not None and known is not None and known.plan is not None:
            private.load_plan(known.plan)  # the plan is fitted once, on whatever machine
        if log.known is not None and log.known.span_override is not None:
            self._batch.next_offset = log.known.span_override.next_offset
            tip = log.known.tip
            self._since = self._since or (0 if tip is None else since_of(tip.privacy))
        if log.known is not None and log.known.tip is not None:
            self._dates.load(log.known.tip.privacy)  # commits after the snapshot have dates of their own
        log.restored()
        self._follow_models()
        self._working = log.replay_until is None
        return appends, warnings

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
        if known is not None and snapshot is not None:
            self._log.check_content(snapshot)
            self.restore(snapshot)
        elif private is not None and known is not None and known.plan is not None:
            private.load_plan(known.plan)
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

    def _follow_models(self) -> None:
        known = self._log.known
        if self._fits is not None and known is not None:
            self._fits.follow(known.models, self.next_offset or 0)

    @property
    def source(self) -> Positions | None:
        """Positions of a lane that reads a whole topic; None: it reads one partition."""
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
        data = self.snapshot(clean=clean) if snapshot or clean or log.snapshot_due else None
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
