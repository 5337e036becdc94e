"""Privacy budget spent by the lanes of an application, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from streampair.engine.recovery import RecoveredState
from streampair.engine.snapshot import rows_of, since_of
from streampair.engine.wal import Chain
from streampair.errors import SnapshotError, StoreError
from streampair.privacy import Spend
from streampair_connectors import kafka
from streampair_connectors.config import Config
from streampair_connectors.stores.offline import OfflineTopic
from streampair_connectors.stores.topic import ForeignLogError

__all__ = ["Budget", "LaneBudget", "Total", "read_stored", "total_of"]


@dataclass(frozen=True)
class LaneBudget:
    """One private learner of a lane, as of its last commit.

    Attributes
    ----------
    app, topic, learner
        Identify the lane.
    epsilon_spent, epsilon_budget, delta, mu_spent, mu_budget, releases, horizon, horizon_left, kind,
    guarantee, unit
        As in `streampair.privacy.PrivacyReport`.
    forks, forks_planned
        Forks charged permanently, and their number in the plan; None without a ledger.
    pending
        Whether one more is charged until the replay after a crash is complete; included in the numbers.
    attempt, window, generation
        Of the reservation; None without a ledger.
    uncommitted
        Releases logged after the last commit: spent, but not yet in the numbers.
    since
        Timestamp of the account's first record, in seconds since the epoch; None: unknown.
    release_dates, fork_dates
        Commit dates of the first and latest ones, as in `streampair.engine.LaneGauges`.
    """

    app: str
    topic: str
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
    since: float | None = None
    release_dates: tuple[tuple[int, int, float, int | None, int], ...] = ()
    fork_dates: tuple[tuple[int, int], ...] = ()

    @property
    def by_entity(self) -> bool:
        """Whether the numbers protect all records of an entity in this lane."""
        return "entity" in self.unit


class Account(Protocol):
    """The attributes of a lane's account that `total_of` uses; as in `LaneBudget`."""

    @property
    def topic(self) -> str: ...

    @property
    def mu_spent(self) -> float: ...

    @property
    def by_entity(self) -> bool: ...


@dataclass(frozen=True)
class Total:
    """Total privacy cost of several lanes.

    Attributes
    ----------
    spend
        Of all lanes.
    unit
        Unit of privacy.
    over_topics
        How topics were combined: `"maximum"` or `"root of the sum of squares"`.
    why
        The reason for that, in words.
    """

    spend: Spend
    unit: Literal["record", "entity"]
    over_topics: Literal["maximum", "root of the sum of squares"]
    why: str


@dataclass(frozen=True)
class Budget:
    """All private lanes of a store, and their total for one record, or one entity.

    Attributes
    ----------
    accounts
        The lanes, in order.
    epsilon_spent, mu_spent
        Total of all lanes, from `total_of`.
    delta
        Delta of `epsilon_spent`: the smallest of the lanes.
    unit, over_topics, why
        As in `Total`.
    unread
        Log topics with a name of this application that its keys cannot decrypt: not included in the numbers.
    """

    accounts: tuple[LaneBudget, ...]
    epsilon_spent: float
    mu_spent: float
    delta: float
    unit: Literal["record", "entity"]
    over_topics: Literal["maximum", "root of the sum of squares"]
    why: str
    unread: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON-compatible dictionary."""
        return asdict(self)


def total_of(accounts: Sequence[Account], *, disjoint: bool = False) -> Total:
    """Combine the accounts of lanes (docs/privacy, Lemmas 2 and 3, and 8.5).

    Learners of one topic see the same records, so they compose. Topics compose, too: what one has may have
    been copied to another, unless they are `disjoint`.

    Parameters
    ----------
    accounts
        At least one.
    disjoint
        Whether somebody has declared that no record, and no entity that is protected, is in two topics.
    """
    by_topic: dict[str, list[Spend]] = {}
    for account in accounts:
        by_topic.setdefault(account.topic, []).append(Spend(mu=account.mu_spent))
    spends = [Spend().then(*of_topic) for of_topic in by_topic.values()]
    entities = any(account.by_entity for account in accounts)
    unit: Literal["record", "entity"] = "entity" if entities else "record"
    if len(spends) == 1:
        why = "each learner reads the whole topic, and has all records of it"
        return Total(spends[0], unit, "maximum", why)
    if disjoint:
        why = "--disjoint declares that no record and no entity is in two topics, so the largest counts"
        return Total(Spend().parallel(*spends), unit, "maximum", why)
    what = "the records of an entity" if entities else "copies of a record"
    why = f"{what} may be in several topics, which add up (mu^2), unless you declare --disjoint"
    return Total(Spend().then(*spends), unit, "root of the sum of squares", why)


async def read_stored(*configs: Config, disjoint: bool = False) -> Budget:
    """Read the accounts of applications from their stores, directories or Kafka; read-only, without a lock.

    Parameters
    ----------
    configs
        Of the applications. Those that learn from the same records add up.
    disjoint
        As of `total_of`.

    Raises
    ------
    StoreError
        An application has no private lane, or its store cannot be read.
    SourceError
        The broker does not answer.
    SnapshotError
        A log cannot be read.
    """
    accounts: list[LaneBudget] = []
    unread: list[str] = []
    for config in configs:
        if config.store.in_kafka:
            found = await _accounts_in_kafka(config, unread)
        else:
            found = _accounts_in_directory(config.state_directory, config.app)
        if not found:
            raise StoreError(
                f"no private lane of {config.app} has its state in "
                + (f"topic {config.log_topic}" if config.store.in_kafka else str(config.state_directory)),
                fix="run the application first; `streampair check` says what it would promise",
            )
        accounts += found
    total = total_of(accounts, disjoint=disjoint)
    delta = min(account.delta for account in accounts)
    return Budget(
        tuple(accounts),
        total.spend.epsilon(delta),
        total.spend.mu,
        delta,
        total.unit,
        total.over_topics,
        total.why,
        tuple(unread),
    )


def _accounts_in_directory(directory: Path, app: str) -> list[LaneBudget]:
    try:
        logs = [(path, path.read_bytes()) for path in sorted(directory.glob("*.log"))]
    except OSError as error:
        raise StoreError(
            f"the store directory {directory} cannot be read: {error.strerror}",
            fix="run as the user of the worker",
        ) from None
    accounts = [_account_in_log(path, frames) for path, frames in logs]
    return [account for account in accounts if account is not None and account.app == app]


async def _accounts_in_kafka(config: Config, unread: list[str]) -> list[LaneBudget]:
    """The accounts in the log topics of an application; topics that its keys do not open go to `unread`."""
    accounts = []
    for of_input in await _log_topics(config):
        name = of_input.log_topic
        try:
            found = await OfflineTopic(of_input).read_lane()
        except ForeignLogError:
            if name == config.log_topic:
                raise
            continue  # of an application with the same name prefix
        if found.damage is not None and name == config.log_topic:
            raise found.damage
        if found.damage is not None:
            unread.append(name)
            continue
        account = _account_in_log(name, found.frames)
        if account is not None and account.app == config.app:
            accounts.append(account)
    return accounts


async def _log_topics(config: Config) -> list[Config]:
    """Configurations for each input topic, current or former, for which the application may have a log.

    Found by the names of log topics (`Config.log_topic`). They may include those of another application with
    the same name prefix, which is recognised by the content of the log.
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


def _account_in_log(where: Path | str, frames: bytes) -> LaneBudget | None:
    """Return the account in a log; None: its lane is not private."""
    known = RecoveredState.of(Chain.peek(frames))
    if known is None:
        return None
    genesis, tip = known.genesis, known.tip
    # Before the first commit the report is in the first entry.
    slots, report = (0, genesis.privacy) if tip is None else (tip.slots, tip.privacy)
    if report is None:
        return None
    ledger = known.ledger or {}
    released, forked = rows_of(report.get("dates"))
    try:
        numbers = {name: report[name] for name in _NUMBERS}
    except KeyError as error:
        raise SnapshotError(
            f"{where} has an invalid privacy report ({error!r})", fix="use the release that wrote it"
        ) from None
    return LaneBudget(
        app=genesis.app,
        topic=genesis.topic,
        learner=genesis.name,
        forks=ledger.get("forks"),
        forks_planned=ledger.get("limit"),
        pending=bool(ledger.get("pending", False)),
        attempt=ledger.get("attempt"),
        window=ledger.get("window"),
        generation=ledger.get("generation"),
        # Releases that a replay has not reached yet count, too.
        uncommitted=max(known.released - slots, len(ledger.get("behind", []))),
        since=since_of(report) / 1000.0 or None,
        release_dates=tuple(released),
        fork_dates=tuple(forked),
        **numbers,
    )


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
