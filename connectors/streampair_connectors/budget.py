"""What the lanes of an application have spent, read from the store: `streampair budget show`."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from streampair.engine.envelope import unpack
from streampair.errors import SnapshotError, StoreError
from streampair.privacy import Journal, Spend

__all__ = ["Budget", "LaneBudget", "read_budget", "show_budget"]


@dataclass(frozen=True)
class LaneBudget:
    """One private lane, as of its last commit.

    Attributes
    ----------
    app, topic, partition, learner
        Which lane it is.
    epsilon_spent, epsilon_budget, delta, mu_spent, mu_budget, releases, horizon_left, kind, guarantee
        As in `streampair.privacy.PrivacyReport`.
    forks, forks_planned
        Second views of a window that are charged for good, and how many the plan has room for; None without a
        ledger.
    pending
        Whether one more is charged until a replay after a crash has caught up; in the numbers.
    attempt, window, generation
        Of the reservation; None without a ledger.
    uncommitted
        Releases that the journal notes beyond the last commit: they are spent, and not yet in the numbers.
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


@dataclass(frozen=True)
class Budget:
    """All private lanes of a store, and what they come to for one record.

    Attributes
    ----------
    accounts
        The lanes, in order.
    epsilon_spent, mu_spent
        Of all of them together: several learners on one partition compose, partitions hold different records
        (docs/privacy.md 8).
    delta
        At which `epsilon_spent` holds: the smallest of the lanes'.
    """

    accounts: tuple[LaneBudget, ...]
    epsilon_spent: float
    mu_spent: float
    delta: float

    def as_dict(self) -> dict[str, Any]:
        """The budget for machines."""
        return asdict(self)


def read_budget(directory: Path, app: str | None = None) -> Budget:
    """Read the accounts in a store; takes no lock and changes nothing.

    Parameters
    ----------
    directory
        Of the store.
    app
        Only of this application; None: of all.

    Raises
    ------
    StoreError
        There is no private lane's state in it, or it cannot be read.
    SnapshotError
        A snapshot is damaged.
    """
    accounts = []
    try:
        for path in sorted(directory.glob("*.snapshot")):
            account = _account(path)
            if account is not None and app in (None, account.app):
                accounts.append(account)
    except OSError as error:
        raise StoreError(
            f"the store directory {directory} cannot be read: {error.strerror}",
            fix="run as the user of the worker",
        ) from None
    if not accounts:
        raise StoreError(
            f"no private lane of {app or 'any application'} has its state in {directory}",
            fix="run the application first; `streampair check` says what it would promise",
        )
    # Applications that read one partition hold accounts about the same records.
    lanes: dict[Hashable, list[Spend]] = {}
    for account in accounts:
        lanes.setdefault((account.topic, account.partition), []).append(Spend(mu=account.mu_spent))
    total = Spend.of_application({lane: tuple(spends) for lane, spends in lanes.items()})
    delta = min(account.delta for account in accounts)
    return Budget(tuple(accounts), total.epsilon(delta), total.mu, delta)


def _account(path: Path) -> LaneBudget | None:
    body = unpack(path.read_bytes())
    report, ledger = body.get("privacy"), body.get("ledger")
    if report is None:
        return None
    try:
        return LaneBudget(
            app=body["app"],
            topic=body["topic"],
            partition=body["partition"],
            learner=body["name"],
            epsilon_spent=report["epsilon_spent"],
            epsilon_budget=report["epsilon_budget"],
            delta=report["delta"],
            mu_spent=report["mu_spent"],
            mu_budget=report["mu_budget"],
            releases=report["releases"],
            horizon_left=report["horizon_left"],
            kind=report["kind"],
            guarantee=report["guarantee"],
            forks=None if ledger is None else ledger["forks"],
            forks_planned=None if ledger is None else ledger["limit"],
            pending=ledger is not None and ledger["pending"],
            attempt=None if ledger is None else ledger["attempt"],
            window=None if ledger is None else ledger["window"],
            generation=None if ledger is None else ledger["generation"],
            uncommitted=0 if ledger is None else _uncommitted(path.with_suffix(".journal"), ledger),
        )
    except (KeyError, TypeError) as error:
        raise SnapshotError(
            f"{path} does not hold what it should ({error!r})", fix="use the release that wrote it"
        ) from None


def _uncommitted(path: Path, ledger: dict[str, Any]) -> int:
    """Steps in the journal of the reserved window."""
    try:
        journal = Journal.decode(path.read_bytes(), ledger["lane"])
    except FileNotFoundError:
        return 0
    start = int(ledger["start"])
    lines = journal.lines if journal.window == ledger["window"] else ()
    return max((line.first + line.steps - 1 for line in lines), default=start) - start


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
                shown = f"  {label if number == 0 else '':<{_LABEL}}{line}"
                console.print(shown, highlight=False, markup=False, soft_wrap=True)
        console.print()

    for account in budget.accounts:
        block(_name(account), _lane_rows(account))
    block("together, for one record", _total_rows(budget))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False)


def _name(a: LaneBudget) -> str:
    return f"{a.app}: {a.topic}[{a.partition}], {a.learner}"


def _lane_rows(a: LaneBudget) -> Iterator[tuple[str, str]]:
    yield "epsilon", f"{a.epsilon_spent:.4g} of {a.epsilon_budget:.4g} spent, at delta {a.delta:.3g}"
    yield "mu", f"{a.mu_spent:.4g} of {a.mu_budget:.4g} spent"
    more = f", and {a.uncommitted} since the last commit: the next one adds them to these numbers"
    yield "releases", f"{a.releases}" + (more if a.uncommitted else "")
    if a.horizon_left is None:
        yield "left", "no end: it learns for as long as events come"
    elif a.horizon_left:
        yield "left", f"{a.horizon_left} more events can be learned"
    else:
        yield "left", "0 events: the horizon is reached, it scores and learns no more"
    if a.forks is None:
        yield "forks", "not counted: this lane has no ledger"
    else:
        more = ", and 1 more is charged until the replay after a crash has caught up"
        yield "forks", f"{a.forks} of {a.forks_planned} planned" + (more if a.pending else "")
        yield "attempt", f"{a.attempt}, window {a.window}, generation {a.generation} of the noise"
    yield "guarantee", a.guarantee if a.guarantee.startswith(a.kind) else f"{a.kind}: {a.guarantee}"


def _total_rows(budget: Budget) -> Iterator[tuple[str, str]]:
    yield "epsilon", f"{budget.epsilon_spent:.4g} at delta {budget.delta:.3g}"
    yield "mu", f"{budget.mu_spent:.4g}"
    count = len(budget.accounts)
    yield "lanes", f"{count}. Learners on one partition add up; partitions hold different records"
    for a in budget.accounts:
        if a.kind != "holds":
            yield "not covered", f"{_name(a)}: its guarantee is {a.kind}"
