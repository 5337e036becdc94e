"""The report of a private learner: every number from its accountant, no word more than it can vouch for.

What is told follows docs/privacy 1, 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streampair.privacy.accounting import Kind, PrivacyReport, epsilon_from
from streampair.privacy.mechanisms.base import MechanismState, Release, Settings

__all__ = ["AccountStatus", "PrivacySummary", "build_report", "build_summary"]


@dataclass
class AccountStatus:
    """What is known of a learner's past: whether anything may have been released that its account has not.

    Parameters
    ----------
    continued
        It comes from a copy or a snapshot, and nobody has said yet how that ended.
    clean, unclean
        How often it was restored from a snapshot that held every release, or may not have.
    charged
        Second views of a window that a ledger has charged.
    void_reasons
        Why nothing is guaranteed any more: sticky, for a record was taken under each of them.
    forked
        The process forked after the first record, so that two processes go on from one budget: sticky.
    accepted
        What an operator has taken upon himself, each with its date: that nothing was released but what is
        charged, where the account alone cannot show it.
    """

    continued: bool = False
    clean: int = 0
    unclean: int = 0
    charged: int = 0
    void_reasons: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    forked: bool = False

    def mark(self, void: Iterable[str], accepted: Iterable[str]) -> None:
        """Add what is not known yet."""
        for known, reasons in ((self.void_reasons, void), (self.accepted, accepted)):
            known.extend(text for text in dict.fromkeys(reasons) if text not in known)

    def vouched(self, seeded: bool) -> tuple[Kind, str]:
        """What holds, in one word and in words; `seeded`: whether the noise has a fixed seed."""
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
                "unvouched (the process forked): two processes go on from one budget, under noise of their "
                "own; what the other one releases is not in the account"
            )
        if self.accepted:
            doubts.append(
                f"vouched by the operator on {'; on '.join(self.accepted)}: that no more was released than "
                "is charged rests on the operator's word"
            )
        if doubts:
            return "unvouched", "; ".join(doubts)
        return "holds", "exact accounting of every release, in Gaussian differential privacy"


@dataclass(frozen=True)
class PrivacySummary:
    """The numbers of a `PrivacyReport` and what they are worth, which a commit writes down: its fields."""

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
    """The numbers of the report of a learner: parameters as of `build_report`."""
    charged = standing.charged
    mu_learning = fork_mu2 = 0.0
    if run is not None:
        mu_learning = run.plan.mu_spent(run.steps)
        fork_mu2 = run.plan.fork_mu2(settings.window) if charged else 0.0
    prefix = mu_warmup * warmed if settings.warmup else 0.0
    again = mu_warmup**2 if settings.warmup else 0.0
    if settings.composes:  # an entity may be in the prefix and after it, in each view
        mu, second = math.hypot(mu_learning, prefix), fork_mu2 + again
    else:  # a record is in the prefix or after it; in another view it may be in the other part
        mu, second = max(mu_learning, prefix), max(fork_mu2, again)
    mu = math.hypot(mu, math.sqrt(charged * second))
    if mu <= settings.mu * (1.0 + 1e-9):
        mu = min(mu, settings.mu)  # the last bits of a quotient; anything larger is told as it is
    kind, guarantee = standing.vouched(seeded)
    return PrivacySummary(
        epsilon_spent=epsilon_from(mu, settings.delta),
        epsilon_budget=settings.epsilon,
        delta=settings.delta,
        mu_spent=mu,
        mu_budget=settings.mu,
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
    horizon_left: int | None,
    declared: bool,
    seeded: bool,
) -> PrivacyReport:
    """The report of a learner: its summary, and the prose.

    Parameters
    ----------
    settings
        What was promised.
    run
        How far it has come; None before the features are known.
    standing
        What is known of its past.
    warmed
        Whether the warm-up's moments have been released.
    mu_warmup
        mu of one release of them.
    card
        What is released, each kind with what it is worth.
    horizon_left
        As in `PrivacyReport`.
    declared
        Whether the feature set was declared.
    seeded
        Whether the noise has a fixed seed.
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
        notes=tuple(notes),
        card=tuple(kind.line(settings.epsilon) for kind in card),
        auc=None if run is None else run.auc,
    )


def _notes_of_the_past(settings: Settings, standing: AccountStatus) -> list[str]:
    """Restarts, and forks that are charged."""
    notes = []
    if standing.clean:
        notes.append(f"Restarted {standing.clean} time(s) from a snapshot that held every release.")
    if standing.continued or standing.unclean:
        notes.append(
            f"Restarts that may have lost releases: {standing.unclean + standing.continued}. Lost releases "
            "about a record come on top of the spend above."
        )
    if standing.charged:
        notes.append(
            f"{standing.charged} fork(s) are charged: after a crash up to {settings.window} releases were, "
            "or may have been, made again in another way."
        )
    return notes


def _notes_of_assumptions(settings: Settings, *, declared: bool) -> list[str]:
    """What is taken as public, and what the guarantee does not reach."""
    notes = []
    if not declared:
        also = " (and the bounds)" if settings.bounds else ""
        notes.append(
            f"The feature set is taken from the first record{also} and public: the names are assumed equal "
            "for neighbouring streams, and the first record readable. With features= declared neither is "
            "needed."
        )
    if settings.bounds:
        notes.append("The declared bounds are taken as public.")
    if settings.two_classes and not settings.calibrated:
        notes.append(
            "Probabilities are uncalibrated: no release tells the share of positives, so they are those of "
            "scores in standard units."
        )
    if settings.entity is not None:
        notes.append(
            "Which of its records these are is decided by entity and slot alone. All records of an entity "
            "have to come to one lane: over several its spends add up (mu^2)."
        )
    notes.append(
        "This is about records as they reach the learner, which sees nothing of a pipeline in front of it: a "
        "lane looks at that, and so does streampair.privacy.pipeline_report(pipeline)."
    )
    return notes
