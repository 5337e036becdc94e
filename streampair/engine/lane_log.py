"""The log of a lane: what is written before an output leaves, and what a start checks and replays."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from streampair import __version__
from streampair.engine.lane_id import WHOLE_TOPIC, LaneId
from streampair.engine.origins import payload_digest
from streampair.engine.records import (
    Commit,
    LogAppend,
    OrderedRecord,
    Record,
    ReplayRequest,
    Scored,
)
from streampair.engine.recovery import (
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
from streampair.engine.snapshot import OR_ANEW, Saving, UnusableLogError
from streampair.engine.source import Positions
from streampair.engine.wal import (
    LOG_FORMAT,
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
from streampair.errors import PrivacyError, SnapshotError

__all__ = [
    "LaneLog",
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
    identity, name
        Of the lane, and the name of its learner.
    saving
        Fingerprint and settings of the configuration.
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
    """

    def __init__(
        self,
        key: LogKey,
        *,
        identity: LaneId,
        name: str,
        saving: Saving,
        reservations: Reservations | None,
        private: bool,
        entity: str,
        void: Sequence[str],
        replayable: bool,
        plan: Callable[[], dict[str, Any] | None],
        late: bool = False,
    ) -> None:
        self._late = late
        self._key = key
        self._identity = identity
        self._name = name
        self._saving = saving
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
        self.source = Positions() if identity.partition == WHOLE_TOPIC else None
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
        theirs = LaneId(genesis.app, genesis.topic, genesis.partition)
        if theirs != self._identity:
            raise SnapshotError(
                f"the log is that of {theirs}, this lane is {self._identity}",
                fix="point the store at this lane's own place",
            )
        genesis.check_settings(self._saving.fingerprint, self._saving.settings)
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
        elif facts.registers and not known.attempts and facts.read_register(self._key) is None:
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
            **self._identity._asdict(),
            name=self._name,
            fingerprint=self._saving.fingerprint,
            key=self._key.id,
            partitions=facts.partitions,
            entity=self._entity,
            cluster=facts.cluster,
            topic_id=facts.topic_id,
            first=facts.first,
            plan=self._plan(),
            privacy=report,
            settings=dict(self._saving.settings),
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
