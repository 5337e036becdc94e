"""Builds the privacy report of a learner from its accountant (docs/privacy 1, 7 and 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streampair.privacy.accounting import (
    Kind,
    PrivacyReport,
    compose,
    promised_epsilon,
    rounded_to_budget,
)
from streampair.privacy.mechanisms.base import MechanismState, Release, Settings

__all__ = [
    "DECLARED_PUBLIC",
    "AccountStatus",
    "PrivacySummary",
    "StartAccount",
    "build_report",
    "build_summary",
]


DECLARED_PUBLIC = "that is declared public"
TABLE_AS_ASSUMED = "of a table whose rows are as streampair.history.ASSUMED says"


@dataclass(frozen=True)
class StartAccount:
    """What the model that a learner began with adds to the account (docs/privacy, Lemma 97).

    Parameters
    ----------
    model
        Class of the learner that the model is of, and `TABLE_AS_ASSUMED` if it goes back to a table.
    mu
        mu of its releases. None: the model is declared public, and adds nothing.
    kind
        The state of its guarantee: `"holds"` or `"unvouched"`.
    public_before
        Whether the model, or one before it, itself began with a model that is declared public.
    assumed
        What the guarantee of the model assumes of a table.
    """

    model: str
    mu: float | None = None
    kind: Kind = "holds"
    public_before: bool = False
    assumed: tuple[str, ...] = ()

    def words(self, delta: float) -> str:
        """What it means for the guarantee."""
        if self.mu is None:
            return (
                f"it began with a model of {self.model} {DECLARED_PUBLIC}: for the records which that "
                "model was learned from nothing is guaranteed here"
            )
        before = (
            f", which goes back to a model {DECLARED_PUBLIC}, for whose records nothing is guaranteed here"
            if self.public_before
            else ""
        )
        return (
            f"it includes epsilon {promised_epsilon(self.mu, delta):.4g} at delta {delta:.3g} "
            f"(mu {self.mu:.4g}) of the model of {self.model} that it began with{before}; whether both "
            "learned from the same people is not known, so it is assumed"
        )


@dataclass
class AccountStatus:
    """Restarts, forks and other events that decide whether a learner's account covers every release.

    Parameters
    ----------
    continued
        Whether the learner comes from a copy or a snapshot of which it is unknown whether it had every
        release.
    clean, unclean
        Number of restores from a snapshot that had every release, and from one that may not have had.
    charged
        Forks that a ledger has charged.
    void_reasons
        Why the guarantee is void. They stay, since records were learned under each of them.
    forked
        Whether the process forked after the first record, so that two processes spend one budget. It stays.
    accepted
        Statements of an operator, with dates, that no more was released than is charged, where the account
        alone cannot show it.
    start
        What the model that the learner began with adds; None: it began with none.
    """

    continued: bool = False
    clean: int = 0
    unclean: int = 0
    charged: int = 0
    void_reasons: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    forked: bool = False
    start: StartAccount | None = None

    def mark(self, void: Iterable[str], accepted: Iterable[str]) -> None:
        """Add reasons and statements that are new."""
        for known, reasons in ((self.void_reasons, void), (self.accepted, accepted)):
            known.extend(text for text in dict.fromkeys(reasons) if text not in known)

    def vouched(self, seeded: bool, delta: float) -> tuple[Kind, str]:
        """Return kind and guarantee of a report.

        Parameters
        ----------
        seeded
            Whether the noise has a fixed seed.
        delta
            Of the report.
        """
        reasons = [*self.void_reasons, *(["fixed seed"] if seeded else [])]
        if reasons:
            return "void", f"void ({'; '.join(reasons)})"
        doubts = []
        if self.continued or self.unclean:
            doubts.append(
                "unvouched (restarted): the spend is that of this learner's own path; releases between its "
                "last snapshot and a crash, or by another copy of it, used other noise and are not in the "
                "account"
            )
        if self.forked:
            doubts.append(
                "unvouched (the process forked): two processes spend one budget, each with its own noise; "
                "what the other one releases is not in the account"
            )
        if self.accepted:
            doubts.append(
                f"vouched by the operator on {'; on '.join(self.accepted)}: that no more was released than "
                "is charged is the operator's statement and cannot be verified"
            )
        start = [] if self.start is None else [self.start.words(delta)]
        if self.start is not None and self.start.kind == "unvouched":
            doubts.append("unvouched (the model that it began with is): its spend may lack releases")
        if doubts:
            return "unvouched", "; ".join([*doubts, *start])
        exact = "exact accounting of every release, in Gaussian differential privacy"
        return "holds", "; ".join([exact, *start])


@dataclass(frozen=True)
class PrivacySummary:
    """The numbers of a `PrivacyReport`, its kind and its guarantee; a commit stores them."""

    epsilon_spent: float
    epsilon_budget: float
    delta: float
    mu_spent: float
    mu_budget: float
    releases: int
    horizon: int | None
    horizon_left: int | None
    kind: Kind
    guarantee: str
    unit: str


def build_summary(
    settings: Settings,
    run: MechanismState | None,
    standing: AccountStatus,
    *,
    warmed: bool,
    mu_warmup: float,
    horizon_left: int | None,
    seeded: bool,
) -> PrivacySummary:
    """Return the numbers of a learner's report; parameters as in `build_report`."""
    charged = standing.charged
    mu_learning = fork_mu2 = 0.0
    if run is not None:
        mu_learning = run.plan.mu_spent(run.steps)
        fork_mu2 = run.plan.fork_mu2(settings.window) if charged else 0.0
    prefix = mu_warmup * warmed if settings.warmup else 0.0
    again = mu_warmup**2 if settings.warmup else 0.0
    if settings.composes:  # an entity may be in the warm-up and after it, in each fork
        mu, second = math.hypot(mu_learning, prefix), fork_mu2 + again
    else:  # a record is in the warm-up or after it; in a fork it may be in the other part
        mu, second = max(mu_learning, prefix), max(fork_mu2, again)
    mu = math.hypot(mu, math.sqrt(charged * second))
    if mu <= settings.mu * (1.0 + 1e-9):
        mu = min(mu, settings.mu)  # rounding errors alone; a larger excess is reported
    epsilon, budget = settings.epsilon, settings.mu
    if standing.start is not None and standing.start.mu is not None:
        mu, budget = (compose([part, standing.start.mu]) for part in (mu, budget))
        epsilon = promised_epsilon(budget, settings.delta)
    kind, guarantee = standing.vouched(seeded, settings.delta)
    return PrivacySummary(
        epsilon_spent=rounded_to_budget(promised_epsilon(mu, settings.delta), epsilon),
        epsilon_budget=epsilon,
        delta=settings.delta,
        mu_spent=mu,
        mu_budget=budget,
        releases=(0 if run is None else run.releases) + warmed,
        horizon=settings.horizon,
        horizon_left=horizon_left,
        kind=kind,
        guarantee=guarantee,
        unit=settings.relation.unit,
    )


def build_report(
    settings: Settings,
    run: MechanismState | None,
    standing: AccountStatus,
    *,
    warmed: bool,
    mu_warmup: float,
    card: Sequence[Release],
    product: str,
    horizon_left: int | None,
    declared: bool,
    seeded: bool,
    table: str | None = None,
) -> PrivacyReport:
    """Return the report of a learner: its summary, and the texts.

    Parameters
    ----------
    settings
        The learner's settings, its budget among them.
    run
        The mechanism's state; None before the features are known.
    standing
        Restarts, forks and other events.
    warmed
        Whether the warm-up's moments have been released.
    mu_warmup
        mu of one release of them.
    card
        The kinds of releases of the mechanism.
    product
        What is released: the kind of the model.
    horizon_left
        As in `PrivacyReport`.
    declared
        Whether the feature set was declared.
    seeded
        Whether the noise has a fixed seed.
    table
        What has become of the moments of a table that it began with, in words; None: it began with none.
    """
    summary = build_summary(
        settings,
        run,
        standing,
        warmed=warmed,
        mu_warmup=mu_warmup,
        horizon_left=horizon_left,
        seeded=seeded,
    )
    notes = [] if run is None else settings.notes(run)
    notes += _notes_of_the_past(settings, standing)
    notes += _notes_of_assumptions(settings, declared=declared)
    if table is not None:
        notes.append(table)
    if standing.start is not None and standing.start.assumed:
        notes.append(
            "Assumed of the table that the model which it began with was learned from, and not checked: "
            f"{'; '.join(standing.start.assumed)}."
        )
    if seeded:
        notes.append(
            "Whoever knows the seed can compute the noise; the numbers above are those of seed=None."
        )
    if summary.kind == "void" and standing.accepted:
        notes.append(f"Vouched by the operator on {'; on '.join(standing.accepted)}.")
    return PrivacyReport(
        **vars(summary),
        adjacency=settings.relation.adjacency,
        noise_std=0.0 if run is None else run.plan.sigma,
        mechanism=settings.describe(),
        product=product,
        notes=tuple(notes),
        card=tuple(kind.line(settings.epsilon) for kind in card),
        auc=None if run is None else run.auc,
    )


def _notes_of_the_past(settings: Settings, standing: AccountStatus) -> list[str]:
    """Notes on restarts and charged forks."""
    notes = []
    if standing.clean:
        notes.append(f"Restarted {standing.clean} time(s) from a snapshot that held every release.")
    if standing.continued or standing.unclean:
        notes.append(
            f"Restarts that may have lost releases: {standing.unclean + standing.continued}. Lost releases "
            "add to the spend above."
        )
    if standing.charged:
        notes.append(
            f"{standing.charged} fork(s) are charged: after a crash up to {settings.window} releases were, "
            "or may have been, made again with other noise."
        )
    return notes


def _notes_of_assumptions(settings: Settings, *, declared: bool) -> list[str]:
    """Notes on what is assumed to be public, and on what the guarantee does not cover."""
    notes = []
    if not declared:
        also = " (and the bounds)" if settings.bounds else ""
        notes.append(
            f"The feature set is taken from the first record{also} and public: the names are assumed equal "
            "for neighbouring streams, and the first record readable. With features= declared neither is "
            "assumed."
        )
    if settings.bounds:
        notes.append("The declared bounds are taken as public.")
    if settings.two_classes and not settings.calibrated:
        notes.append(
            "Probabilities are uncalibrated: the share of positives is not released, so they are computed "
            "from standardised scores."
        )
    if settings.entity is not None:
        notes.append(
            "Which of its records are learned depends on entity and slot alone. All records of an entity "
            "must reach one lane: over several lanes its spends add up (mu^2)."
        )
    notes.append(
        "This report is about records as they reach the learner, which does not know the steps of a pipeline "
        "in front of it: a lane checks them, and so does streampair.privacy.pipeline_report(pipeline)."
    )
    return notes
