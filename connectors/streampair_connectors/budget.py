"""What the lanes of an application have spent, read from the store: `streampair budget show`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from streampair.engine.envelope import unpack
from streampair.errors import SnapshotError, StoreError
from streampair.privacy import Journal, Spend

__all__ = ["Account", "Budget", "read_budget", "show_budget"]


@dataclass(frozen=True)
class Account:
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
        (PRIVACY.md 8).
    delta
        At which `epsilon_spent` holds: the smallest of the lanes'.
    """

    accounts: tuple[Account, ...]
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


def _account(path: Path) -> Account | None:
    body = unpack(path.read_bytes())
    report, ledger = body.get("privacy"), body.get("ledger")
    if report is None:
        return None
    try:
        return Account(
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


def show_budget(budget: Budget, console: Console) -> None:
    """Print a table, and the total below it."""
    table = Table()
    for name in ("application", "lane", "learner"):
        table.add_column(name)
    for name in ("epsilon", "of", "delta", "releases", "left", "forks", "attempt"):
        table.add_column(name, justify="right")
    table.add_column("guarantee")
    for a in budget.accounts:
        table.add_row(
            a.app,
            f"{a.topic}[{a.partition}]",
            a.learner,
            f"{a.epsilon_spent:.4g}",
            f"{a.epsilon_budget:.4g}",
            f"{a.delta:.3g}",
            f"{a.releases}" + (f" (+{a.uncommitted})" if a.uncommitted else ""),
            "no end" if a.horizon_left is None else str(a.horizon_left),
            "no ledger"
            if a.forks is None
            else f"{a.forks}{' (+1)' if a.pending else ''} of {a.forks_planned}",
            "-" if a.attempt is None else str(a.attempt),
            a.kind,
        )
    console.print(table)
    console.print(
        f"together, for one record: epsilon {budget.epsilon_spent:.4g} at delta {budget.delta:.3g} "
        f"(mu {budget.mu_spent:.4g})",
        highlight=False,
    )
    if any(a.uncommitted for a in budget.accounts):
        console.print(
            "(+n): released since the last commit, not in the numbers yet; the next commit adds them",
            highlight=False,
        )
    for a in budget.accounts:
        if a.kind != "holds":
            console.print(f"{a.topic}[{a.partition}] {a.learner}: {a.guarantee}", highlight=False)
