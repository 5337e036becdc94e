"""The start of a lane from what its stores hold: checks, replay, and an operator's override."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec

from streampair import __version__
from streampair.engine.lane_id import WHOLE_TOPIC
from streampair.engine.records import LogAppend
from streampair.engine.reservations import Reservations
from streampair.engine.snapshot import UnusableLogError
from streampair.engine.source import longer
from streampair.engine.wal import (
    Chain,
    CommitEntry,
    Digests,
    Entry,
    GenesisEntry,
    LogKey,
    ModelEntry,
    OverrideEntry,
    Range,
    RangesEntry,
    RecordRef,
    Register,
    SnapshotEntry,
    SourceState,
    StartEntry,
    split_digests,
)
from streampair.errors import PrivacyError, SnapshotError

__all__ = [
    "ANOTHER",
    "Cause",
    "ExternalState",
    "NothingToOverrideError",
    "OverrideResult",
    "RecoveredState",
    "check",
    "check_replay",
    "forks_to_charge",
    "refuse_key",
    "replay_impossible",
    "verify_log",
]

Cause = Literal["register", "rollback", "span"]
"""What an operator's override replaces: the register; the newest entries; the replay from the snapshot."""


@dataclasses.dataclass
class RecoveredState:
    """State of a lane as the entries of its log record it.

    Attributes
    ----------
    genesis, plan, void, voiding, accepted, ledger
        As in the entries. `void`: reasons under which a record was taken; `voiding`: reasons that apply to
        the next record.
    tip
        The last commit; None before the first.
    saved
        The last snapshot; None before the first.
    lines
        Lines of digests of the window that `ledger` has reserved.
    path
        Digests by slot since the snapshot, as last released.
    released
        The last slot that may have been released.
    attempts
        Whether any process has ever begun an attempt.
    span_override
        The operator's override that skips the span from the snapshot to the tip; None: none.
    ranges
        Of a lane that reads a whole topic: records taken from the snapshot to the tip.
    announced, ahead
        Ranges after the tip: of the newest attempt, and of those before it, which the next one takes first.
    models
        Which models scored records since the snapshot, those of attempts after the tip too.
    """

    genesis: GenesisEntry
    plan: dict[str, Any] | None = None
    void: list[str] = dataclasses.field(default_factory=list)
    voiding: list[str] = dataclasses.field(default_factory=list)
    accepted: list[str] = dataclasses.field(default_factory=list)
    ledger: dict[str, Any] | None = None
    tip: CommitEntry | None = None
    saved: SnapshotEntry | None = None
    lines: list[Digests] = dataclasses.field(default_factory=list)
    path: dict[int, bytes] = dataclasses.field(default_factory=dict)
    released: int = 0
    attempts: bool = False
    span_override: OverrideEntry | None = None
    ranges: list[Range] = dataclasses.field(default_factory=list)
    announced: list[Range] = dataclasses.field(default_factory=list)
    ahead: list[Range] = dataclasses.field(default_factory=list)
    models: list[ModelEntry] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> RecoveredState | None:
        """Fold the entries of a log; None if there are none."""
        if not entries:
            return None
        first = entries[0]
        genesis = first.genesis if isinstance(first, SnapshotEntry) else first
        assert isinstance(genesis, GenesisEntry)  # `Chain.read` lets a log begin with nothing else
        known = cls(genesis, plan=genesis.plan)
        for entry in entries:
            known.fold(entry)
        return known

    def fold(self, entry: Entry) -> None:
        """Apply the next entry."""
        if isinstance(entry, GenesisEntry):
            return  # `of` has read it
        if isinstance(entry, StartEntry):
            self.attempts = True
            self.voiding = entry.void
            self._account(entry.ledger)
            # An attempt takes what is ahead first, so that one of the two begins with the other.
            self.ahead, self.announced = longer(self.ahead, self.announced), []
        elif isinstance(entry, RangesEntry):
            self.announced += entry.ranges
        elif isinstance(entry, ModelEntry):
            self.models.append(entry)
        elif isinstance(entry, Digests):
            self.takes_records()
            self.lines.append(entry)
            self.released = max(self.released, entry.first + entry.steps - 1)
            for i, digest in enumerate(split_digests(entry.digests)):
                self.path[entry.first + i] = digest
        elif isinstance(entry, CommitEntry):
            self._commit(entry)
        elif isinstance(entry, SnapshotEntry):
            self.saved = entry
            self.attempts = True
            self.plan, self.accepted = entry.plan, list(entry.accepted)
            self.void, self.voiding = list(entry.void), []  # `entry.void` has the reasons of its own records
            self._commit(entry.tip)
            self.voiding = entry.voiding
            # Slots after it that an earlier attempt released: their lines are no longer in the log.
            ledger = entry.tip.ledger or {"start": 0, "behind": []}
            self.path = dict(enumerate(ledger["behind"], ledger["start"] + 1))
            self.ranges = []
            self.models = list(entry.models)
        else:
            self._override(entry)

    def _override(self, entry: OverrideEntry) -> None:
        self.accepted.append(entry.what)
        self.void += [reason for reason in entry.void if reason not in self.void]
        self._account(entry.ledger)
        # Slots released after the position where it goes on need not repeat: they are charged.
        kept = 0 if entry.from_snapshot or self.tip is None else self.tip.slots
        self.path = {slot: digest for slot, digest in self.path.items() if slot <= kept}
        self.models = self._models_to_replay(entry)
        if entry.from_snapshot:
            self.span_override = entry
            self.ranges = []

    def _models_to_replay(self, entry: OverrideEntry) -> list[ModelEntry]:
        """Select the models up to the tip, if the lane goes on from there: later records need not repeat."""
        if entry.from_snapshot or self.tip is None:
            return []
        end = self.tip.next_offset or 0
        return [model for model in self.models if model.first < end]

    def _commit(self, tip: CommitEntry) -> None:
        last = self.tip
        if self.span_override is not None:
            last = None if self.saved is None else self.saved.tip
        if tip.seen > (0 if last is None else last.seen):
            self.takes_records()
        self.tip, self.span_override = tip, None
        self.ranges += self.announced
        self.announced, self.ahead = [], [] if tip.source is None else list(tip.source.ahead)
        self.released = max(self.released, tip.slots)
        self._account(tip.ledger)

    def takes_records(self) -> None:
        """Apply the pending void reasons, as a record is taken."""
        self.void += [reason for reason in self.voiding if reason not in self.void]

    def _account(self, ledger: dict[str, Any] | None) -> None:
        self.ledger, self.lines = ledger, []

    @property
    def next_offset(self) -> int | None:
        """Offset where the lane continues to read; None: at the start."""
        if self.span_override is not None:
            return self.span_override.next_offset
        return None if self.tip is None else self.tip.next_offset

    @property
    def source(self) -> SourceState | None:
        """Positions of a lane that reads a whole topic; None: the start, or it reads one partition."""
        source = None if self.tip is None else self.tip.source
        if source is None:
            return SourceState([], self.ahead) if self.ahead else None
        return msgspec.structs.replace(source, ahead=self.ahead)

    @property
    def span(self) -> tuple[int | None, int] | None:
        """Start and end offset of the replay from the snapshot to the tip; None: no replay."""
        if self.tip is None or self.span_override is not None or self.tip.next_offset is None:
            return None
        start = None if self.saved is None else self.saved.tip.next_offset
        return None if start == self.tip.next_offset else (start, self.tip.next_offset)

    @property
    def replay(self) -> tuple[int, int] | None:
        """Offset of the first record that the replay needs, and its end; None: no replay.

        After the snapshot there may be only transaction markers, or a gap that retention has left.
        """
        if self.span is None or self.tip is None or self.tip.first is None:
            return None
        return self.tip.first, self.span[1]


@dataclasses.dataclass(frozen=True)
class ExternalState:
    """State outside of the log, read at the start: the consumer group's and the topic's.

    Attributes
    ----------
    register
        Metadata of the group's committed offset; None: the broker says that the group has no offset here.
    offset
        The group's committed offset; None as above.
    partitions, cluster, topic_id
        Of the input topic, as in `GenesisEntry`.
    start, end
        Offset of the partition's first record, and of the next one that it will get.
    first, last
        The records that the log requested (`genesis.first`, `tip.last`); None: the topic no longer has them.
    registers
        Whether there is a consumer group: a lane in memory, or over files, has none.
    spans, offsets
        Of a lane that reads a whole topic: `start` and `end`, and the group's committed offset, by partition.
    """

    register: str | None = None
    offset: int | None = None
    partitions: int = 1
    cluster: str = ""
    topic_id: str = ""
    start: int = 0
    end: int = 0
    first: RecordRef | None = None
    last: RecordRef | None = None
    registers: bool = True
    spans: Mapping[int, tuple[int, int]] | None = None
    offsets: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def read_register(self, key: LogKey) -> Register | None:
        """The register, verified; None: the group has none."""
        return None if self.register is None else Register.read(key, self.register)

    def places(self, known: RecoveredState | None) -> list[_Place]:
        """Known state of each partition that the lane reads."""
        if self.spans is None:
            return [
                _Place("", self.start, self.end, self.offset, None if known is None else known.next_offset)
            ]
        source = None if known is None else known.source
        positions: dict[int, int] = {}
        for each in () if source is None else (*source.positions, *source.due):
            positions[each.partition] = max(positions.get(each.partition, 0), each.next_offset)
        return [
            _Place(f" of partition {p}", *span, self.offsets.get(p), positions.get(p))
            for p, span in sorted(self.spans.items())
        ]


class _Place(NamedTuple):
    """A partition: its span, the group's offset, and where the lane goes on; `name` for messages."""

    name: str
    start: int
    end: int
    offset: int | None
    next_offset: int | None

    @property
    def beyond(self) -> bool:
        """Whether the group has read further than the lane."""
        return self.offset is not None and self.offset > max(self.next_offset or 0, self.start)


ANOTHER = (
    "start under another application name: a new account, whose spend comes on top of this one's. "
    "Never delete "
    "the log: it is the account"
)


def check(
    known: RecoveredState | None, chain: Chain, facts: ExternalState, *, private: bool, entity: str
) -> list[str]:
    """Check a log against its register and its topic.

    Parameters
    ----------
    known, chain
        State that the log records, None if there is no log; and its chain.
    facts
        State outside of the log.
    private
        Whether the learner is private. Other lanes go on, unless their log is gone or cut: they would score
        events a second time.
    entity
        Where the lane reads entities from; empty where none are declared.

    Returns
    -------
    list of str
        Problems that a lane without an account ignores.

    Raises
    ------
    PrivacyError
        If a private lane may not go on; the message says what can be done.
    UnusableLogError
        If the log of another lane is gone or cut.
    SnapshotError
        If the register was written under another key, or the topic is another one.
    """
    warnings: list[str] = []

    def refuse(problem: str, fix: str, cause: Cause | None = None, *, lost: str | None = None) -> None:
        if private:
            raise PrivacyError(problem, fix=fix)
        if lost is not None:
            raise lost_error(problem, lost)
        warnings.append(problem)

    verify_log(known, chain, facts, entity, refuse)
    return warnings


def lost_error(problem: str, more: str) -> UnusableLogError:
    """The error of a lane without an account whose log is gone or cut; `more`: what else can be done."""
    return UnusableLogError(
        problem,
        fix="put the newest store back. If it is lost, `streampair state recover CONFIG --begin-anew` begins "
        f"a new model at the group's offset{more}",
    )


def verify_log(
    known: RecoveredState | None, chain: Chain, facts: ExternalState, entity: str, refuse: Any
) -> None:
    """Check a log against its register and its topic, as `check`.

    Parameters
    ----------
    known, chain, facts, entity
        As of `check`.
    refuse
        Called with the problem, its fix, and the cause for which it can be overridden, if any. `lost`: the
        log is gone or cut, so that a lane of any learner would score events again; without an account it has
        this further choice.
    """
    register = facts.read_register(chain.key)
    if known is None:
        if register is not None:
            refuse(
                f"the store has no log of this lane, and the group's register says that it had "
                f"{register.sequence + 1} entries: the store was lost, or is another one",
                f"put the store back. If it is lost, {ANOTHER}",
                lost="",
            )
        elif read := [place for place in facts.places(None) if place.beyond]:
            refuse(
                "the store has no log of this lane, but its group has read up to offset "
                f"{read[0].offset}{read[0].name}: these records have been scored",
                f"put the store back. If it is lost, {ANOTHER}",
                lost="",
            )
        return
    if known.genesis.key != chain.key.id:
        refuse_key(known.genesis.key, chain.key.id)
    if facts.registers:
        _check_register(known, chain, facts, register, refuse)
    _check_topic(known, facts)
    divided = known.genesis.partition != WHOLE_TOPIC and (entity or known.genesis.entity)
    if divided and known.genesis.partitions != facts.partitions:
        refuse(
            f"the topic had {known.genesis.partitions} partition(s) when the account began and has "
            f"{facts.partitions} now: an entity's records may lie in two lanes, and its account would "
            "be split",
            f"make the topic as it was, or {ANOTHER}",
        )
    if known.genesis.entity != entity:
        refuse(
            f"entities were read from {known.genesis.entity or 'nowhere'} when the account began, and "
            "are from "
            f"{entity or 'nowhere'} now",
            f"declare them as they were, or {ANOTHER}",
        )


def refuse_key(then: str, now: str) -> NoReturn:
    """Raise because the key is not the one of the log; both are named by their identities."""
    raise PrivacyError(
        f"the log was begun with the noise key {then or 'none'}, and the key given now is {now or 'none'}",
        fix=f"give the key that this application has always had. If it is lost, {ANOTHER}",
    )


def _check_register(
    known: RecoveredState, chain: Chain, facts: ExternalState, register: Register | None, refuse: Any
) -> None:
    override = "`streampair state recover CONFIG --ignore-register` shows its cost first, and goes on"
    if register is None:
        if not known.attempts and not any(place.beyond for place in facts.places(None)):
            return  # nothing was ever released
        if facts.offset is None:
            refuse(
                "the group has no offset here, so nothing says whether this log is the newest: the group's "
                "offsets have expired (offsets.retention.minutes), or the group or the topic was deleted",
                f"if the store is the newest there is, {override}",
                "register",
            )
        else:
            refuse(
                f"the group's offset {facts.offset} has no register, so nothing says whether this log is the "
                "newest: a tool has reset the offset, or something else commits under this group's name",
                f"stop what else uses the group. If the store is the newest there is, {override}",
                "register",
            )
        for place in facts.places(known):
            if place.beyond:  # then it is not only the register that is missing
                moved = (
                    "If a tool has moved the offset, move it back first: kafka-consumer-groups.sh "
                    f"--reset-offsets --to-offset {place.next_offset or place.start} --execute"
                )
                refuse(
                    f"the group's offset {place.offset}{place.name} has no register, and lies beyond the "
                    f"log, which ends at {place.next_offset}: this is not the newest store, or a tool has "
                    "moved the offset",
                    f"put the newest store back. {moved}",
                    lost=f". {moved}",
                )
        return
    if register.key != chain.key.id:
        refuse_key(register.key, chain.key.id)
    if not chain.holds(register.sequence, register.tag):
        # A log that is long enough has diverged: it was put back after another copy had gone on.
        evidence = (
            f"it ends with entry {chain.sequence}, and the register knows entry {register.sequence}"
            if register.sequence >= chain.sequence
            else f"its entry {register.sequence} is not the one that the register knows"
        )
        refuse(
            f"the log is older than what was released: {evidence}",
            "put the newest store back (an older one must never be). If that is lost, `streampair state "
            "recover CONFIG --accept-rollback` shows its cost first, and goes on",
            "rollback",
            lost="; or `streampair state recover CONFIG --accept-rollback` goes on with the older model, and "
            "scores the events since then a second time",
        )
        return
    for place in facts.places(known):
        if not place.beyond:
            continue
        refuse(
            f"the group's offset {place.offset}{place.name} lies beyond the log, which ends at "
            f"{place.next_offset}",
            "put the newest store back; if something else commits under this group's name, stop it",
        )


def _check_topic(known: RecoveredState, facts: ExternalState) -> None:
    """Raise unless the topic is the one that the log has read: offsets mean nothing in another one."""
    genesis = known.genesis
    if genesis.cluster and facts.cluster and genesis.cluster != facts.cluster:
        _refuse_topic(f"the cluster is {facts.cluster}, and the log has read from {genesis.cluster}")
    if genesis.topic_id and facts.topic_id and genesis.topic_id != facts.topic_id:
        _refuse_topic(f"the id of the topic is {facts.topic_id}, and the log has read {genesis.topic_id}")
    tip = known.tip
    if facts.first is not None and genesis.first is not None and facts.first != genesis.first:
        _refuse_topic(f"the record at offset {genesis.first.offset} is another one than the log has read")
    if tip is not None and tip.last is not None and facts.last is not None and facts.last != tip.last:
        _refuse_topic(f"the record at offset {tip.last.offset} is another one than the log has read")
    if facts.spans is None and genesis.first is not None and genesis.first.offset >= facts.end:
        _refuse_topic(
            f"the log has seen a record at offset {genesis.first.offset}, and the topic ends at {facts.end}"
        )
    for place in facts.places(known):
        if place.next_offset is not None and place.next_offset > place.end:
            _refuse_topic(
                f"the log has read up to offset {place.next_offset}{place.name}, and the topic ends at "
                f"{place.end}"
            )


def _refuse_topic(problem: str) -> NoReturn:
    raise SnapshotError(
        f"{problem}: the topic was deleted and made again, lost records, or is that of another cluster",
        fix="point the application at the topic that it has read. For a new topic, start under another "
        "application name (what is private then has a new account, on top of this one); where erasure or "
        "compaction changes records, set input.payloads_change = true before it does",
    )


def check_replay(known: RecoveredState, facts: ExternalState) -> None:
    """Raise if the topic no longer has the records from the snapshot to the tip.

    Parameters
    ----------
    known
        State that the log records.
    facts
        State outside of the log.

    Raises
    ------
    SnapshotError
    """
    replay = known.replay
    if replay is None:
        return
    assert known.tip is not None
    if known.tip.writer != __version__:
        raise SnapshotError(
            f"the lane ended without a clean stop under release {known.tip.writer}, and this is "
            f"{__version__}: "
            "its last events would have to be learned again by another program",
            fix=f"start release {known.tip.writer} once more and stop it with SIGTERM, then upgrade",
        )
    begin, end = replay
    if facts.spans is None and begin < facts.start:
        raise replay_impossible(
            f"the records from offset {begin} to {min(facts.start, end)} are gone from the topic"
        )
    for each in known.ranges:
        start = (facts.spans or {}).get(each.partition, (each.first, 0))[0]
        if each.first < start:
            raise replay_impossible(
                f"the records from offset {each.first} to {min(start, each.end)} of partition "
                f"{each.partition} are gone from the topic"
            )


def replay_impossible(problem: str) -> SnapshotError:
    """The error of a replay from the snapshot to the tip that is impossible."""
    return SnapshotError(
        f"{problem}, so the state of the last commit cannot be made again from the last snapshot",
        fix="put the topic right, or `streampair state recover CONFIG --skip-span`, which shows its cost "
        "first and goes on with the snapshot; raise retention.ms of the topic. Where compaction or erasure "
        "removes records, set input.payloads_change = true: every commit then holds a snapshot",
    )


_STATEMENTS = {
    "register": "went on without a register",
    "rollback": "went on from an older log",
    "span": "went on from an older snapshot",
}


class NothingToOverrideError(PrivacyError):
    """There is nothing to override: the start is not refused for this cause."""


class OverrideResult(NamedTuple):
    """Result of an operator's override.

    Attributes
    ----------
    append
        To be made durable.
    forks
        Forks that the override charges.
    statement
        Text for the report.
    problem
        Why a start is refused.
    charged
        Forks charged before and after it.
    mu
        Spend before and after it, as in a report; None without an account.
    """

    append: LogAppend
    forks: int
    statement: str
    problem: str
    charged: tuple[int, int]
    mu: tuple[float, float] | None = None


def override_start(
    known: RecoveredState | None,
    chain: Chain,
    account: Reservations | None,
    facts: ExternalState,
    cause: Cause,
    when: str,
    *,
    private: bool,
    entity: str,
) -> tuple[OverrideEntry, str, tuple[int, int]]:
    """Make the log entry of an operator's override.

    Parameters
    ----------
    known, chain
        State that the log records, up to its damage if it has any; and its chain.
    account
        Privacy account to be charged; None: the learner keeps none.
    facts
        State outside of the log.
    cause
        What is missing: the register; the newest entries of the log; the records from the last snapshot to
        the tip, or the same results for them.
    when
        The date, for the report.
    private, entity
        As of `check`.

    Returns
    -------
    tuple
        The entry, why a start is refused, and the forks charged before and after it.

    Raises
    ------
    PrivacyError, SnapshotError, LogDamagedError
        If the start is not refused for this cause, or for another one too; if the plan does not allow the
        forks to be charged; or if there is no state to go on from.
    """
    if known is None:
        raise PrivacyError(
            "there is no log to go on from" if chain.damage is None else chain.damage.problem,
            fix=f"put the newest store back; if it is lost, {ANOTHER}",
        )
    problem = overridden_problem(known, chain, facts, cause, private=private, entity=entity)
    register = facts.read_register(chain.key)
    # A span skipped by an earlier override, with no commit since, stays skipped.
    from_snapshot = cause == "span" or known.span_override is not None
    ledger, charged = None, (0, 0)
    if account is not None:
        if known.ledger is not None:
            account.restore(known.ledger)
        before = account.ledger.charged
        start, forks = forks_to_charge(
            known, account.ledger.size, register=register, from_snapshot=from_snapshot
        )
        if register is not None and not chain.holds(register.sequence, register.tag):
            # Forks charged in the lost entries are charged again: their releases have left. A diverged log
            # has charged forks of its own besides.
            diverged = register.sequence <= chain.sequence
            forks += register.forks if diverged else max(register.forks - before, 0)
            account.ledger.generation = max(account.ledger.generation, register.generation)
        account.ledger.charge_forks(forks, start)
        ledger, charged = account.ledger.to_state(), (before, account.ledger.charged)
    forks = charged[1] - charged[0]
    lost = register is not None and register.void and not known.void
    entry = OverrideEntry(
        what=f"{when} ({_STATEMENTS[cause]}, {forks} fork(s) charged)",
        charged=forks,
        from_snapshot=from_snapshot,
        next_offset=known.next_offset,
        ledger=ledger,
        void=["it was void in entries of the log that are lost"] if lost else [],
    )
    return entry, problem, charged


def overridden_problem(
    known: RecoveredState, chain: Chain, facts: ExternalState, cause: Cause, *, private: bool, entity: str
) -> str:
    """Why a start is refused, if it is for this cause, which can be overridden; arguments as in `check`.

    Raises
    ------
    PrivacyError, SnapshotError, LogDamagedError
        If it is refused for another reason, or not refused.
    """
    found: list[str] = []

    def refuse(problem: str, fix: str, reason: Cause | None = None, *, lost: str | None = None) -> None:
        if reason == cause:
            found.append(problem)
        elif private:
            raise PrivacyError(problem, fix=fix)
        elif lost is not None:
            raise lost_error(problem, lost)

    if chain.damage is not None:
        if cause != "rollback":
            raise chain.damage
        found.append(chain.damage.problem)
        if private and facts.read_register(chain.key) is None:
            raise PrivacyError(
                f"{chain.damage.problem}; and the group has no register, so that nothing shows what was "
                "released",
                fix=f"put the newest copy of the store back; if it is lost, {ANOTHER}",
            )
    verify_log(known, chain, facts, entity, refuse)
    if cause == "span" and known.span is not None:
        found.append("the records from the last snapshot to the last commit cannot be replayed")
    if not found or (cause == "register" and not private):
        raise NothingToOverrideError(
            "this lane keeps no privacy account, and goes on by itself"
            if found
            else {
                "register": "the group's register is there",
                "rollback": "the log is not older than the group's register",
                "span": "no events have to be replayed from the last snapshot",
            }[cause],
            fix="start `streampair run`; `streampair state show` says what it would be refused for",
        )
    return found[0]


def forks_to_charge(
    known: RecoveredState, size: int, *, register: Register | None, from_snapshot: bool
) -> tuple[int, int]:
    """The slot where the lane goes on, and the forks for slots that may be released a second time.

    Parameters
    ----------
    known
        State that the log records.
    size
        Slots in a window.
    register
        The group's register, if it has one: it may record later slots.
    from_snapshot
        Whether the lane goes on from its snapshot, or from its tip.
    """
    tip = known.tip if not from_snapshot else None if known.saved is None else known.saved.tip
    start = 0 if tip is None else tip.slots
    last = max(known.released, start) if register is None else max(known.released, register.slots, start)
    # No slot beyond the window that was open at the last known slot has been released.
    return start, -(-(last + size - start) // size)
