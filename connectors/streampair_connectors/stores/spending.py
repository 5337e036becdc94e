"""What the lanes of an application have spent, read from the store: `streampair budget show`."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.text import Text

from streampair.engine.recovery import RecoveredState
from streampair.engine.snapshot import rows_of, since_of
from streampair.engine.wal import Chain
from streampair.errors import ConfigError, SnapshotError, StoreError
from streampair.privacy import Spend
from streampair_connectors import kafka
from streampair_connectors.config import Config
from streampair_connectors.stores.offline import OfflineTopic
from streampair_connectors.stores.topic import ForeignLogError

__all__ = ["Budget", "LaneBudget", "Total", "read_budget", "read_stored", "show_budget", "total_of"]


@dataclass(frozen=True)
class LaneBudget:
    """One private lane, as of its last commit.

    Attributes
    ----------
    app, topic, partition, learner
        Which lane it is.
    epsilon_spent, epsilon_budget, delta, mu_spent, mu_budget, releases, horizon, horizon_left, kind,
    guarantee, unit
        As in `streampair.privacy.PrivacyReport`.
    partitions
        How many the topic had when the account began.
    forks, forks_planned
        Second views of a window that are charged for good, and how many the plan has room for; None without a
        ledger.
    pending
        Whether one more is charged until a replay after a crash has caught up; in the numbers.
    attempt, window, generation
        Of the reservation; None without a ledger.
    uncommitted
        Releases that the log notes beyond the last commit: they are spent, and not yet in the numbers.
    since
        Date of the account's first record, by its source, in seconds since 1970; None: not known.
    release_dates, fork_dates
        When the first and the latest were committed, as of `streampair.engine.LaneGauges`.
    """

    app: str
    topic: str
    partition: int
    learner: str
    epsilon_spent: float
    epsilon_budget: float
    delta: float
    mu_spent: float
    mu_budget: float
    releases: int
    horizon: int | None
    horizon_left: int | None
    kind: str
    guarantee: str
    forks: int | None
    forks_planned: int | None
    pending: bool
    attempt: int | None
    window: int | None
    generation: int | None
    uncommitted: int
    unit: str
    partitions: int
    since: float | None = None
    release_dates: tuple[tuple[int, int, float, int | None, int], ...] = ()
    fork_dates: tuple[tuple[int, int], ...] = ()

    @property
    def by_entity(self) -> bool:
        """Whether the numbers are those of all records of an entity, in this lane."""
        return "entity" in self.unit


class Account(Protocol):
    """What is asked of a lane's account to put it together with others; as in `LaneBudget`."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def mu_spent(self) -> float: ...

    @property
    def by_entity(self) -> bool: ...

    @property
    def partitions(self) -> int | None: ...


@dataclass(frozen=True)
class Total:
    """What lanes come to together.

    Attributes
    ----------
    spend
        Of all of them.
    unit
        Whose spend it is.
    over_lanes
        How lanes were put together: their `"maximum"`, or the `"root of the sum of squares"`.
    why
        The reason for that, in words.
    """

    spend: Spend
    unit: Literal["record", "entity"]
    over_lanes: Literal["maximum", "root of the sum of squares"]
    why: str


@dataclass(frozen=True)
class Budget:
    """All private lanes of a store, and what they come to for one record, or one entity.

    Attributes
    ----------
    accounts
        The lanes, in order.
    epsilon_spent, mu_spent
        Of all of them together, as `total_of` says.
    delta
        At which `epsilon_spent` holds: the smallest of the lanes'.
    unit, over_lanes, why
        As in `Total`.
    unread
        Log topics by the names of this application's that its keys do not open: what they hold is not in the
        numbers.
    """

    accounts: tuple[LaneBudget, ...]
    epsilon_spent: float
    mu_spent: float
    delta: float
    unit: Literal["record", "entity"]
    over_lanes: Literal["maximum", "root of the sum of squares"]
    why: str
    unread: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The budget for machines."""
        return asdict(self)


def total_of(accounts: Sequence[Account], *, keyed: Collection[str] = ()) -> Total:
    """Put the accounts of lanes together (docs/privacy, Lemmas 2 and 3, and 8.5).

    Learners on one partition see the same records: they compose. Partitions hold different records, so of a
    *record* the largest lane counts. The records of an *entity* can be in several lanes, and then its spends
    compose too: in lanes of one topic, unless that is `keyed` and its partitions have not become more; in
    lanes of several topics always.

    Parameters
    ----------
    accounts
        At least one.
    keyed
        The topics in which all records of one key are in one partition (`input.keyed_by_entity`).
    """
    learners: dict[tuple[str, int], list[Spend]] = {}
    counts: dict[str, set[int]] = {}
    for account in accounts:
        learners.setdefault((account.topic, account.partition), []).append(Spend(mu=account.mu_spent))
        if account.partitions is not None:
            counts.setdefault(account.topic, set()).add(account.partitions)
    lanes = {lane: Spend().then(*spends) for lane, spends in learners.items()}
    if not any(account.by_entity for account in accounts):
        why = "partitions hold different records, so the largest lane counts"
        return Total(Spend().beside(*lanes.values()), "record", "maximum", why)
    total, added, several = Spend(), False, False
    topics = sorted({topic for topic, _ in lanes})
    for topic in topics:
        spends_of_topic = [spend for (name, _), spend in lanes.items() if name == topic]
        grown = len(counts.get(topic, ())) > 1
        if topic in keyed and not grown:
            total = total.then(Spend().beside(*spends_of_topic))
        else:
            total = total.then(*spends_of_topic)
            several = several or len(spends_of_topic) > 1
            added = added or grown
    if not several and len(topics) == 1:
        why = (
            "input.keyed_by_entity: all records of an entity are in one lane, so the largest counts"
            if len(lanes) > 1
            else "there is one lane"
        )
        return Total(total, "entity", "maximum", why)
    if added:
        why = "partitions were added, so the records of an entity may be in several lanes, which add up"
    elif several:
        why = (
            "the records of an entity may be in several lanes, which add up (mu^2), unless "
            "input.keyed_by_entity says that a key stays in one partition"
        )
    else:
        why = "the records of an entity may be in several topics, which add up (mu^2)"
    return Total(total, "entity", "root of the sum of squares", why)


def read_budget(directory: Path, app: str | None = None, *, keyed: Collection[str] = ()) -> Budget:
    """Read the accounts in a store; takes no lock and changes nothing.

    Parameters
    ----------
    directory
        Of the store.
    app
        Only of this application; None: of all.
    keyed
        As in `total_of`.

    Raises
    ------
    StoreError
        There is no private lane's state in it, or it cannot be read.
    SnapshotError
        A log cannot be read.
    """
    accounts = []
    try:
        for path in sorted(directory.glob("*.log")):
            account = _logged(path, path.read_bytes())
            if account is not None and app in (None, account.app):
                accounts.append(account)
    except OSError as error:
        raise StoreError(
            f"the store directory {directory} cannot be read: {error.strerror}",
            fix="run as the user of the worker",
        ) from None
    return _together(accounts, keyed, app, str(directory))


async def read_stored(config: Config, *, every: bool = False) -> Budget:
    """Read the accounts of a configuration from its store, whichever that is.

    Parameters
    ----------
    config
        Of the application.
    every
        Of all applications in its directory.

    Raises
    ------
    ConfigError
        All are asked for, and the store is in Kafka, where each application has a topic and keys of its own.
    SourceError, StoreError, SnapshotError
        As of `read_budget`; or the broker does not answer.
    """
    keyed = [config.input.topic] if config.input.keyed_by_entity else []
    if not config.store.in_kafka:
        return read_budget(config.state_directory, None if every else config.app, keyed=keyed)
    if every:
        raise ConfigError(
            "in Kafka each application has a topic and keys of its own",
            fix="leave --all away, call it for each application, and add them: the root of the sum of mu^2",
        )
    accounts: list[LaneBudget] = []
    unread = []
    for of_input in await _log_topics(config):
        store, name = OfflineTopic(of_input), of_input.log_topic
        try:
            logs = [(partition, await store.look(partition)) for partition in await store.lanes()]
        except ForeignLogError:
            if name == config.log_topic:
                raise
            continue  # of an application whose name begins alike
        for partition, found in logs:
            if found.damage is not None and name == config.log_topic:
                raise found.damage
            if found.damage is not None:
                unread.append(name)
                break
            account = _logged(f"{name}[{partition}]", found.frames)
            if account is not None and account.app == config.app:
                accounts.append(account)
    return _together(accounts, keyed, config.app, f"topic {config.log_topic}", unread)


async def _log_topics(config: Config) -> list[Config]:
    """The configuration for each input topic that the application may have a log of: it may have had another.

    The names of log topics say which that is (`Config.log_topic`). Those of another application whose name
    begins alike are among them: what is in the log tells.
    """
    topics = await kafka.describe_topics(config.require_kafka())
    begin, end = f"{config.app}-", "-log"
    found = [config]
    for name in sorted(topics):
        topic = name.removeprefix(begin).removesuffix(end)
        if name == f"{begin}{topic}{end}" and topic and name != config.log_topic:
            changes = {
                "input": config.input.model_copy(update={"topic": topic}),
                "store": config.store.model_copy(update={"log_topic": name}),
            }
            found.append(config.model_copy(update=changes))
    return found


def _together(
    accounts: Sequence[LaneBudget],
    keyed: Collection[str],
    app: str | None,
    where: str,
    unread: Sequence[str] = (),
) -> Budget:
    if not accounts:
        raise StoreError(
            f"no private lane of {app or 'any application'} has its state in {where}",
            fix="run the application first; `streampair check` says what it would promise",
        )
    total = total_of(accounts, keyed=keyed)
    delta = min(account.delta for account in accounts)
    return Budget(
        tuple(accounts),
        total.spend.epsilon(delta),
        total.spend.mu,
        delta,
        total.unit,
        total.over_lanes,
        total.why,
        tuple(unread),
    )


def _logged(where: Path | str, frames: bytes) -> LaneBudget | None:
    """The account in a log; None if it is no private lane's."""
    known = RecoveredState.of(Chain.peek(frames))
    if known is None:
        return None
    genesis, tip, ledger = known.genesis, known.tip, known.ledger or {}
    # A lane that has begun, and has not committed yet, has its report in its first entry.
    slots, report = (0, genesis.privacy) if tip is None else (tip.slots, tip.privacy)
    if report is None:
        return None
    released, forked = rows_of(report.get("dates"))
    try:
        return LaneBudget(
            app=genesis.app,
            topic=genesis.topic,
            partition=genesis.partition,
            learner=genesis.name,
            forks=ledger.get("forks"),
            forks_planned=ledger.get("limit"),
            pending=bool(ledger.get("pending", False)),
            attempt=ledger.get("attempt"),
            window=ledger.get("window"),
            generation=ledger.get("generation"),
            # What a replay has not caught up with is released, too.
            uncommitted=max(known.released - slots, len(ledger.get("behind", []))),
            partitions=genesis.partitions,
            since=since_of(report) / 1000.0 or None,
            release_dates=tuple(released),
            fork_dates=tuple(forked),
            **{name: report[name] for name in _NUMBERS},
        )
    except (KeyError, TypeError) as error:
        raise SnapshotError(
            f"{where} does not hold what it should ({error!r})", fix="use the release that wrote it"
        ) from None


_NUMBERS = (
    "epsilon_spent",
    "epsilon_budget",
    "delta",
    "mu_spent",
    "mu_budget",
    "releases",
    "horizon",
    "horizon_left",
    "kind",
    "guarantee",
    "unit",
)


_WIDEST = 100  # a longer line is hard to read, however wide the terminal is
_LABEL = 13  # columns of a label, the blanks behind it included


def show_budget(budget: Budget, console: Console) -> None:
    """Print a block of label and value a lane, and the total below them. Nothing is cut off."""
    width = min(console.width, _WIDEST)

    def block(title: str, rows: Iterator[tuple[str, str]]) -> None:
        for line in _wrapped(title, width):
            console.print(Text(line, style="bold"), soft_wrap=True)
        for label, value in rows:
            for number, line in enumerate(_wrapped(value, width - 2 - _LABEL)):
                row = f"  {label if number == 0 else '':<{_LABEL}}{line}"
                console.print(row, highlight=False, markup=False, soft_wrap=True)
        console.print()

    for account in budget.accounts:
        block(_name(account), _lane_rows(account))
    block(f"together, for one {budget.unit}", _total_rows(budget))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False)


def _name(a: LaneBudget) -> str:
    return f"{a.app}: {a.topic}[{a.partition}], {a.learner}"


def _lane_rows(a: LaneBudget) -> Iterator[tuple[str, str]]:
    yield "promised", f"epsilon {a.epsilon_budget:.4g} at delta {a.delta:.3g}"
    yield "epsilon", f"{a.epsilon_spent:.4g} of {a.epsilon_budget:.4g} spent"
    yield "mu", f"{a.mu_spent:.4g} of {a.mu_budget:.4g} spent"
    more = f", and {a.uncommitted} since the last commit: the next one adds them to these numbers"
    yield "releases", f"{a.releases}" + (more if a.uncommitted else "")
    if a.horizon_left is None:
        yield "left", "no end: it learns for as long as events come"
    elif a.horizon_left:
        yield "left", f"{a.horizon_left} of {a.horizon} events can be learned"
    else:
        yield "left", f"0 of {a.horizon} events: the horizon is reached, it scores and learns no more"
    if a.forks is None:
        yield "forks", "not counted: this lane has no ledger"
    else:
        more = ", and 1 more is charged until the replay after a crash has caught up"
        yield "forks", f"{a.forks} of {a.forks_planned} planned" + (more if a.pending else "")
        yield "attempt", f"{a.attempt}, window {a.window}, generation {a.generation} of the noise"
    yield "protected", a.unit
    yield "guarantee", a.guarantee if a.guarantee.startswith(a.kind) else f"{a.kind}: {a.guarantee}"


def _total_rows(budget: Budget) -> Iterator[tuple[str, str]]:
    yield "epsilon", f"{budget.epsilon_spent:.4g} at delta {budget.delta:.3g}"
    yield "mu", f"{budget.mu_spent:.4g}"
    count = len(budget.accounts)
    yield "lanes", f"{count}. Learners on one partition add up"
    yield "over lanes", f"the {budget.over_lanes}: {budget.why}"
    for name in budget.unread:
        unread = f"topic {name}: the keys of this configuration do not open it"
        yield "not covered", f"{unread}. If it is a log of this application, its spend comes on top"
    for a in budget.accounts:
        if budget.unit == "entity" and not a.by_entity:
            yield "not covered", f"{_name(a)}: it protects one record, not all of an entity's"
        if a.kind != "holds":
            yield "not covered", f"{_name(a)}: its guarantee is {a.kind}"
