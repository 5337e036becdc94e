"""Challengers: learners that learn from the records of a lane beside its champion, which is published.

Each challenger is a lane of its own, called with the records of a batch after the champion has taken them.
The records are decoded once. A challenger that fails stops alone. Nothing of a challenger leaves the process
but the numbers of a commit, so what it takes after a commit needs no line of digests: after a crash it is
taken again from there (docs/privacy 7, Lemma 88).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from streampair.engine.protocols import decode_many
from streampair.engine.records import Event, EventRows, Record
from streampair.engine.snapshot import Snapshot, summary, unreadable
from streampair.engine.wal import LearnerState
from streampair.errors import ConfigError, PrivacyError, SnapshotError
from streampair.evaluation import AUCDifference, ScoreTable
from streampair.privacy.accounting import promised_epsilon

if TYPE_CHECKING:
    from streampair.engine.lane import ChallengerLane
    from streampair.engine.reservations import Reservations

__all__ = [
    "NOT_PRIVATE",
    "REMOVED",
    "Challenger",
    "ChallengerGauges",
    "Challengers",
    "SharedDecoder",
    "add_accounts",
]

NOT_PRIVATE = (
    "A learner that is not private learns from the same records beside this one: operators alone see how "
    "well it does. It is in no output and no public number, and what it learns steers nothing."
)
"""Note in the privacy report of a lane with a challenger that is not private."""

REMOVED = "removed from the configuration"
"""Why a challenger has ended whose account stays."""


@dataclasses.dataclass(frozen=True)
class Challenger:
    """A learner that learns beside the champion of a lane.

    Parameters
    ----------
    name
        Its name, unique in the lane. Empty: the learner that the lane began with, after another one was
        promoted.
    learner
        An estimator of streampair or River, or a River pipeline that ends in one. The lane owns it from here.
    fingerprint
        Of its settings. A challenger with the same name and another fingerprint is refused.
    token
        Goes into the identity of the noise of a private one: a value that no other learner of the lane ever
        had, kept in the log for as long as it learns.
    title
        Its name in messages and reports; None: `name`.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine import Challenger, Lane, Record
    >>> from streampair.engine.testing import decode_json
    >>> lane = Lane(auc.PairOGD(seed=1), decode_json, app="a", topic="t", partition=0,
    ...             challengers=[Challenger("slow", auc.PairOGD(learning_rate=1e-3, seed=1))])
    >>> rows = [b'{"x": {"x": 0.9}, "y": true}', b'{"x": {"x": 0.1}, "y": false}'] * 10
    >>> _ = lane.process([Record(i, row) for i, row in enumerate(rows)])
    >>> [challenger] = lane.gauges().challengers
    >>> challenger.name, challenger.comparison.events
    ('slow', 20)
    """

    name: str
    learner: Any
    fingerprint: str = ""
    token: str = ""
    title: str | None = None


class ChallengerGauges(NamedTuple):
    """Numbers of a challenger; functions of raw data, except those of `privacy`.

    Attributes
    ----------
    name
        Its title.
    since
        Offset from which on it has learned; None: its first record is still to come.
    ended
        Why it learns no more; empty: it learns.
    comparison
        AUCs of the champion (`first`) and of the challenger (`second`) over the same events, the latest ones
        that both have scored; None while a class has fewer than two of them.
    seconds
        What it has cost so far, by the clock of the lane, without decoding.
    privacy
        Of a private one, the numbers of its report, as `streampair.engine.snapshot.summary` names them; None:
        not private.
    private_auc
        Of a private one, the AUC that it has released, as in its report.
    saved
        Whether its state is in the snapshots. If not it begins anew at each start, and cannot be promoted.
    """

    name: str
    since: int | None
    ended: str
    comparison: AUCDifference | None
    seconds: float
    privacy: Mapping[str, Any] | None
    private_auc: Mapping[str, Any] | None
    saved: bool


class SharedDecoder:
    """Decodes each record of a batch once, for all learners of a lane.

    Parameters
    ----------
    decode
        As of `Lane`.
    clock
        Returns seconds; None: there is no clock.

    Attributes
    ----------
    rows
        Whether a learner takes whole arrays: then records are decoded as arrays, and single events are made
        of those.
    seconds
        Spent so far.
    """

    def __init__(self, decode: Callable[[Record], Event], clock: Callable[[], float] | None) -> None:
        self._decode = decode
        self._clock = clock
        self._rows = decode_many(decode)
        self.rows = False
        self.seconds = 0.0
        self._records: Sequence[Record] = ()
        self._table: EventRows | None = None
        self._places: dict[int, int] = {}
        self._tried = False
        self._events: dict[int, Event | Exception] = {}
        if self._rows is not None:
            self.many = self._many

    def begin(self, records: Sequence[Record]) -> None:
        """Begin a batch."""
        self._records, self._table, self._tried = records, None, False
        self._places, self._events = {}, {}

    def __call__(self, record: Record) -> Event:
        """The event of a record; raises as the decoder does."""
        found = self._events.get(record.offset)
        if found is None:
            found = self._events[record.offset] = self._event(record)
        if isinstance(found, Exception):
            raise found
        return found

    def _event(self, record: Record) -> Event | Exception:
        table = self._whole()
        place = None if table is None else self._place(record)
        if table is None or place is None:
            begin = self._now()
            try:
                return self._decode(record)
            except Exception as error:
                return error
            finally:
                self.seconds += self._now() - begin
        if table.refused and place in table.refused:
            return table.refused[place]
        x = dict(zip(table.names, table.values[place].tolist(), strict=True))
        return Event(x, table.labels[place], None if table.ids is None else table.ids[place])

    def _many(self, records: Sequence[Record]) -> EventRows | None:
        assert self._rows is not None
        table = self._whole()
        if records is self._records:
            return table
        start = self._place(records[0]) if records else None
        stop = 0 if start is None else start + len(records)
        if start is None or stop > len(self._records) or self._records[stop - 1] is not records[-1]:
            return self._rows(records)  # no part of the batch
        if table is None:
            return None
        refused = table.refused
        if refused:
            refused = {row - start: error for row, error in refused.items() if start <= row < stop}
        ids = None if table.ids is None else table.ids[start:stop]
        return EventRows(
            table.names, table.values[start:stop], table.labels[start:stop], ids, refused or None
        )

    def _whole(self) -> EventRows | None:
        """The whole batch as an array; None: no learner takes one, or it is decoded one by one."""
        if self._tried or self._rows is None or not self.rows:
            return self._table
        self._tried = True
        begin = self._now()
        try:
            self._table = self._rows(self._records)
        except Exception:
            self._table = None  # one by one the same error is met again, and handled
        self.seconds += self._now() - begin
        return self._table

    def _place(self, record: Record) -> int | None:
        """The index of a record of the batch; None: it is another one."""
        if not self._places:
            self._places = {each.offset: place for place, each in enumerate(self._records)}
        place = self._places.get(record.offset)
        return place if place is not None and self._records[place] is record else None

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock()


@dataclasses.dataclass
class _Running:
    """A challenger of a lane.

    Attributes
    ----------
    lane
        Its lane; None: it has ended.
    account
        Reservations of a private one in a lane with a log.
    active
        Whether it takes records: a new one begins where the lane goes on.
    scores
        Digest of its scores since the last snapshot.
    privacy
        Of a private one: the numbers of its report as of the last commit.
    """

    declared: Challenger
    lane: ChallengerLane | None
    saved: bool
    account: Reservations | None = None
    active: bool = False
    since: int | None = None
    ended: str = ""
    seconds: float = 0.0
    privacy: dict[str, Any] | None = None
    scores: Any = dataclasses.field(default_factory=lambda: hashlib.blake2b(digest_size=32))

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def title(self) -> str:
        return self.declared.name if self.declared.title is None else self.declared.title

    @property
    def private(self) -> bool:
        return self.privacy is not None or (self.lane is not None and self.lane.private)

    def end(self, why: str) -> None:
        self.lane, self.account, self.active, self.ended = None, None, False, why


class Challengers:
    """The challengers of a lane.

    Parameters
    ----------
    declared
        Which there are; names are unique.
    make
        Builds the lane of one.
    champion
        Name of the champion among the learners of the lane; empty: it is the one that the lane began with.
    report
        Privacy report of the champion; None: it is not private.
    window
        Number of latest labelled events that learners are compared on.
    clock
        Returns seconds; None: there is no clock.

    Raises
    ------
    ConfigError
        Two have one name; or a private one stands beside a champion that is not, or that protects another
        unit.
    """

    def __init__(
        self,
        declared: Sequence[Challenger],
        make: Callable[[Challenger], ChallengerLane],
        *,
        champion: str,
        report: Any,
        window: int,
        clock: Callable[[], float] | None,
    ) -> None:
        names = [champion, *(each.name for each in declared)]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"several learners of the lane have one name: {', '.join(sorted(names))}",
                fix="give each challenger a name of its own",
            )
        self._champion = champion
        self._clock = clock
        self.running: list[_Running] = []
        """Those that are declared, in order."""
        for each in declared:
            lane = make(each)
            self.running.append(_Running(each, lane, lane.saved))
            _check_private(each, lane.privacy, report)
        self.table = ScoreTable(window)
        self.champion_seconds = 0.0
        self.departed: dict[str, LearnerState] = {}
        """Private challengers that are no longer declared: their accounts stay."""
        self.changed = False
        """Whether learners have begun or ended since the last commit."""

    def lane_of(self, name: str) -> ChallengerLane | None:
        """The lane of a challenger; None: there is none, or it has ended."""
        return next((each.lane for each in self.running if each.name == name), None)

    @property
    def lanes(self) -> list[ChallengerLane]:
        """The lanes of those that have not ended."""
        return [each.lane for each in self.running if each.lane is not None]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the privacy report of a private champion."""
        return (NOT_PRIVATE,) if any(not each.private for each in self.running) else ()

    @property
    def failures(self) -> list[str]:
        """Why the guarantee of a private lane is void: private challengers that stopped by themselves."""
        return [
            f"the private challenger {each.title} stopped: {each.ended}"
            for each in self.running
            if each.ended.startswith(_FAILED) and each.private
        ]

    def _active(self) -> Iterator[tuple[_Running, ChallengerLane]]:
        for each in self.running:
            if each.active and each.lane is not None:
                yield each, each.lane

    # Learning

    def take(self, records: Sequence[Record], evaluated: Any) -> None:
        """Let all learn from a batch that the champion has taken; `evaluated` is the champion's."""
        compared = {self._champion: tuple(evaluated)}
        for each, lane in self._active():
            if each.since is None and records:
                each.since = records[0].offset
            begin, decoding = self._now(), lane.decoder.seconds
            try:
                scores = lane.process(records).scores
                values = np.array([math.nan if s.score is None else s.score for s in scores], np.float64)
                if not np.isfinite(values).all() and any(
                    s.score is not None and not math.isfinite(s.score) for s in scores
                ):
                    raise FloatingPointError("a score is not finite")
                if each.account is not None:
                    each.account.digest_line()  # not logged: nothing of it leaves before the commit
                each.scores.update(values.tobytes())
                compared[each.name] = tuple(lane.evaluated)
            except Exception as error:  # whatever foreign code raises
                self._fail(each, error)
            each.seconds += self._now() - begin - (lane.decoder.seconds - decoding)
        self.table.extend(compared)

    def _fail(self, each: _Running, error: Exception) -> None:
        """End a challenger that cannot go on."""
        # Not the message: it may quote an event.
        each.end(f"{_FAILED} ({type(error).__name__})")
        self.table.drop(each.name)
        self.changed = True
        warnings.warn(
            f"the challenger {each.title} {each.ended} and learns no more; the champion goes on",
            UserWarning,
            stacklevel=2,
        )

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock()

    @property
    def room(self) -> int | None:
        """Records that may be processed before the next commit; None: any number."""
        rooms = []
        for each, _ in self._active():
            if each.account is not None:
                try:
                    rooms.append(each.account.room)
                except PrivacyError as error:
                    self._fail(each, error)
        return min((room for room in rooms if room is not None), default=None)

    # Start

    def activate(self) -> None:
        """Let all take records from now on: of a lane without a log."""
        for each in self.running:
            each.active = True

    def keep_account(self, name: str, account: Reservations | None) -> None:
        """Let the lane keep the account of a private challenger."""
        for each in self.running:
            if each.name == name:
                each.account = account

    def check(self, learners: Mapping[str, LearnerState]) -> None:
        """Check what is declared against what the log knows of each learner.

        Raises
        ------
        SnapshotError
            A challenger has other settings than it began with, or had ended with its account.
        """
        self.departed = {}
        for each in self.running:
            known = learners.get(each.name)
            if known is None:
                continue
            if known.ended == REMOVED:
                raise SnapshotError(
                    f"the private challenger {each.title} was removed before, and its account stays",
                    fix="give it another name: it then begins with an account of its own, which adds up",
                )
            if known.fingerprint != each.declared.fingerprint:
                raise _changed(each.title)
            if known.token != each.declared.token:
                raise SnapshotError(
                    f"the challenger {each.title} was built without what the log knows of it",
                    fix="build the lane for this log: streampair.engine.learners_of reads it",
                )
            each.privacy, each.since = known.privacy, known.since
            if known.ended:
                each.end(known.ended)
        declared = {each.name for each in self.running} | {self._champion}
        self.departed = _removed(learners, *declared)
        self.changed = self.changed or any(
            name not in declared and not known.ended for name, known in learners.items()
        )

    def begin_accounts(self, learners: Mapping[str, LearnerState]) -> None:
        """Continue the accounts of private challengers."""
        for each in self.running:
            known = learners.get(each.name)
            if each.account is not None:
                if known is not None and known.ledger is not None:
                    each.account.restore(known.ledger)
                each.account.begin([])
                each.account.bind()

    def replaying(self) -> None:
        """Begin a silent replay, from the last snapshot to the last commit."""
        for each, _ in self._active():
            if each.account is not None:
                each.account.replay(None)

    def replayed(self, learners: Mapping[str, LearnerState], tag: Callable[[bytes], bytes]) -> None:
        """End the replay: a challenger whose results differ ends."""
        for each, _ in list(self._active()):
            if each.account is not None:
                each.account.replayed()
            known = learners.get(each.name)
            if known is not None and known.digest and known.digest != self._digest(each, tag):
                self._fail(each, SnapshotError("its replay differs", fix=""))

    def join(self, next_offset: int | None) -> None:
        """Let those that are new begin at the next record."""
        for each in self.running:
            if each.lane is not None and not each.active:
                each.active, each.since = True, next_offset
                self.changed = True

    # State

    def save(self, *, clean: bool) -> dict[str, dict[str, Any]]:
        """The states of those that can be saved, for a snapshot."""
        return {
            each.name: msgspec.structs.asdict(lane.to_snapshot(clean=clean))
            for each, lane in self._active()
            if each.saved
        }

    def load(self, saved: Mapping[str, Any], *, verified: bool) -> None:
        """Restore the states of a snapshot; those that it has not are new."""
        for each in self.running:
            state = saved.get(each.name)
            if state is not None and each.lane is not None and each.saved:
                try:
                    snapshot = msgspec.convert(state, Snapshot, strict=True)
                except msgspec.ValidationError as error:
                    raise unreadable(error) from error
                each.lane.load(snapshot, verified=verified)
                each.active = True

    def states(
        self, *, clean: bool, snapshot: bool, tag: Callable[[bytes], bytes]
    ) -> dict[str, LearnerState]:
        """What a commit says of each; `snapshot`: whether it has one."""
        found = dict(self.departed)
        for each in self.running:
            if each.active and each.lane is not None:
                each.privacy = summary(each.lane.numbers)
            elif not each.ended:
                continue  # it has not begun
            if not each.saved and each.privacy is None:
                continue  # begins anew at each start
            account = each.account
            found[each.name] = LearnerState(
                fingerprint=each.declared.fingerprint,
                token=each.declared.token,
                since=each.since,
                digest=b"" if each.ended else self._digest(each, tag),
                slots=0 if account is None else account.settled,
                ledger=None if account is None else account.reserved(clean=clean),
                privacy=each.privacy,
                ended=each.ended,
            )
            if snapshot:
                each.scores = hashlib.blake2b(digest_size=32)
        self.changed = False
        return found

    @staticmethod
    def _digest(each: _Running, tag: Callable[[bytes], bytes]) -> bytes:
        if each.lane is None or each.lane.foreign:
            return b""  # its replay may differ
        digest = each.scores.copy()
        if each.account is not None:
            each.account.update_digest(digest)
        return tag(digest.digest())

    def committed(self) -> None:
        """Confirm that the last commit is durable."""
        for each, _ in self._active():
            if each.account is not None:
                each.account.committed()

    # Reports

    @property
    def accounts(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Titles of private challengers, and the numbers of their reports; those that have ended, too."""
        found: list[tuple[str, Mapping[str, Any]]] = []
        for each in self.running:
            numbers = each.privacy
            if each.active and each.lane is not None and each.lane.private:
                numbers = summary(each.lane.numbers)
            if numbers is not None:
                found.append((each.title, _final(numbers) if each.ended else numbers))
        found += [(name, _final(s.privacy)) for name, s in self.departed.items() if s.privacy is not None]
        return found

    def gauges(self) -> tuple[ChallengerGauges, ...]:
        """The numbers of each."""
        accounts = dict(self.accounts)
        return tuple(
            ChallengerGauges(
                each.title,
                each.since,
                each.ended,
                self.table.compare(self._champion, each.name),
                each.seconds,
                accounts.get(each.title),
                None if each.lane is None else getattr(each.lane.privacy, "auc", None),
                each.saved,
            )
            for each in self.running
        )


_FAILED = "failed"


def _removed(learners: Mapping[str, LearnerState], *declared: str) -> dict[str, LearnerState]:
    """Learners of a log that are not declared any more, as far as they have accounts: those stay."""
    return {
        name: msgspec.structs.replace(state, ended=state.ended or REMOVED, ledger=None, digest=b"")
        for name, state in learners.items()
        if name not in declared and state.privacy is not None
    }


def _final(numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers of one that learns no more: it will never spend the rest of its budget."""
    return {**numbers, "mu_budget": numbers["mu_spent"], "epsilon_budget": numbers["epsilon_spent"]}


def _changed(title: str) -> SnapshotError:
    return SnapshotError(
        f"the settings of the challenger {title} changed since it began",
        fix="put its class, options and steps back, or give it another name: it then begins at the next "
        "record",
    )


def _check_private(challenger: Challenger, report: Any, champion: Any) -> None:
    """Refuse a private challenger whose account cannot be added to that of the champion."""
    if report is None:
        return
    title = challenger.name if challenger.title is None else challenger.title
    if champion is None:
        raise ConfigError(
            f"the challenger {title} is private, and the learner that the lane began with is not: what that "
            "one publishes of the same records no account covers",
            fix="make the private one the learner, and the other one a challenger",
        )
    if (report.unit, report.adjacency) != (champion.unit, champion.adjacency):
        raise ConfigError(
            f"the challenger {title} protects {report.unit} ({report.adjacency}), and the learner "
            f"{champion.unit} ({champion.adjacency}): their accounts do not add up",
            fix="give both the same entity=, or none",
        )


def add_accounts(report: Any, accounts: Sequence[tuple[str, Mapping[str, Any]]], name: str) -> Any:
    """The report of a champion with the accounts of challengers added: all learn from the same records.

    In Gaussian differential privacy squares of mu add up (docs/privacy, Lemma 2). The epsilons are those of
    the sum, at the smallest delta of all.

    Parameters
    ----------
    report
        Of the champion: a `PrivacyReport` or a `PrivacySummary`.
    accounts
        Titles and numbers of the private challengers.
    name
        Of the champion, for messages.
    """
    if not accounts:
        return report
    numbers = [each for _, each in accounts]
    delta = min(report.delta, *(each["delta"] for each in numbers))
    spent = math.hypot(report.mu_spent, *(each["mu_spent"] for each in numbers))
    budget = math.hypot(report.mu_budget, *(each["mu_budget"] for each in numbers))
    changes: dict[str, Any] = {
        "delta": delta,
        "mu_spent": spent,
        "mu_budget": budget,
        "epsilon_spent": promised_epsilon(spent, delta),
        "epsilon_budget": promised_epsilon(budget, delta),
        "releases": report.releases + sum(each["releases"] for each in numbers),
    }
    order = ("holds", "unvouched", "void")
    worst = max(accounts, key=lambda item: order.index(item[1]["kind"]))
    if order.index(worst[1]["kind"]) > order.index(report.kind):
        changes |= {"kind": worst[1]["kind"], "guarantee": _named(worst[1]["guarantee"], worst[0])}
    if hasattr(report, "notes"):
        titles = ", ".join([name, *(title for title, _ in accounts)])
        changes["notes"] = (
            *report.notes,
            f"Several private learners learn from the same records ({titles}), so their accounts add up (the "
            "root of the sum of mu^2), and the numbers are those of the sum.",
        )
    return dataclasses.replace(report, **changes)


def _named(guarantee: str, title: str) -> str:
    kind, _, rest = guarantee.partition(" ")
    return f"{kind} (challenger {title}) {rest}".rstrip()
