"""The privacy card of a deployment, in the fields of the registry of such deployments.

The fields are those of the Differential Privacy Deployments Registry (Nanayakkara, Ghazi and Vadhan 2025,
arXiv 2509.13509, all three tiers), in the words of NIST SP 800-226. Every number comes from the accountant's
report. What only the curator knows (who, what for) is marked as not declared.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from streampair import __version__
from streampair.engine.lane import LaneGauges
from streampair.errors import ConfigError
from streampair.privacy.accounting import DOUBTFUL_BY, VOID_BY
from streampair_connectors.config import CardConfig
from streampair_connectors.observability.metric_definitions import LaneLabels
from streampair_connectors.observability.metrics import Telemetry

if TYPE_CHECKING:
    from streampair.privacy import PrivacyReport

__all__ = [
    "add_routes",
    "audit_summary",
    "card_html",
    "card_lines",
    "card_of",
    "checked_audit",
    "lane_card",
    "public_report",
    "read_audit",
    "terms",
    "without_spend",
]

_OPEN = "not declared: set {} in the configuration"
_NOBODY = "not declared: set card.approved_by and the other keys of an approval in the configuration"
_SENSITIVE = "the dead-letter topic, logs, snapshots and keys, which are as sensitive as the input"
_READERS = (
    "those who may see the features of the record that is scored: its score moves with its own features. "
    "Every released model, and every score of another record, may be public"
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TITLES = {
    "deployment": "Deployment",
    "flavor": "Flavor of differential privacy",
    "privacy_unit": "Privacy unit",
    "privacy_loss": "Privacy loss parameters",
    "model": "Deployment model",
    "accounting": "Privacy accounting",
    "implementation": "Implementation and security",
    "status": "Status",
    "utility": "Released utility",
    "audit": "Last audit",
    "approval": "Approval",
    "notes": "Notes",
}


def terms(curator: CardConfig | None) -> dict[str, str]:
    """Who has the data, what for, and who sees them as they are: for card and page."""
    return {
        "data curator": (curator and curator.curator) or _OPEN.format("card.curator"),
        "intended use": (curator and curator.intended_use) or _OPEN.format("card.intended_use"),
        "deployment model": "central: the curator, its hosts and its broker see raw records",
    }


_WORDS = {
    "domain": "what a record is to this release",
    "relation": "the change of one record, or of all of an entity, that a reader of releases cannot tell",
    "sensitivity": "the most by which such a change moves the released numbers, as a Euclidean distance",
    "sigma": "standard deviation of the noise in each of these numbers",
    "replace, blank": "mu that it costs if a record has another content, or none",
    "releases, coordinates": "how many are planned, without end if not known, and the numbers in each",
    "grid": "step to which numbers and noise are rounded, so that no digit of a sum shows",
    "mu2": "share of mu^2: these add up over the lines that one record is in",
    "floating_point_delta": "part of delta that this rounding takes",
}
"""The words of `Release.line`, for readers of a card."""


def card_of(
    report: PrivacyReport,
    *,
    deployment: Mapping[str, Any],
    curator: CardConfig | None = None,
    status: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the card of a report, as plain values.

    Parameters
    ----------
    report
        Of the accountant.
    deployment
        What is deployed: names and texts.
    curator
        The table [card] of the configuration: who answers for the data, what the scores are for, and who has
        approved epsilon and delta.
    status
        Further entries of the account's status.
    audit
        What `streampair audit --output` has written; None: nothing is known of an audit.

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair_connectors.observability.privacy_card import card_of
    >>> card = card_of(auc.PairFTRL(epsilon=2.0, delta=1e-5).privacy, deployment={"application": "fraud"})
    >>> card["privacy_loss"]["epsilon"], card["privacy_loss"]["delta"], card["audit"]
    (2.0, 1e-05, 'none was given')
    """
    endless = report.horizon_left is None
    declared = terms(curator)
    model = declared.pop("deployment model")
    return {
        "card": 1,
        "deployment": {
            **declared,
            "data product": f"{report.product or 'models'}, released again and again while it learns",
            "software": f"streampair {__version__}",
            **deployment,
        },
        "flavor": {
            "definition": "Gaussian differential privacy (mu-GDP), stated as (epsilon, delta)",
            "neighbouring streams": report.adjacency,
            "data domain": sorted({str(line["domain"]) for line in report.card})
            or ["known once the features are known"],
            "bound": "streams without end"
            if endless
            else f"a declared horizon of {report.horizon:,} records, after which nothing more is learned",
            "unprotected quantities": [*report.not_covered, _SENSITIVE],
        },
        "privacy_unit": {"unit": report.unit},
        "privacy_loss": {
            "epsilon": report.epsilon_budget,
            "delta": report.delta,
            "mu": report.mu_budget,
            "epsilon spent": report.epsilon_spent,
            "mu spent": report.mu_spent,
        },
        "model": {
            "model": model,
            "data": "a stream that is learned from once, under continual observation",
            "observer": "sees every release of every step, and chooses what comes next by them",
            "who may see scores": _READERS,
        },
        "accounting": {
            "composition": "adaptive, exact: mu^2 adds up; epsilon by the exact conversion of mu and delta",
            "mechanism": report.mechanism,
            "releases so far": report.releases,
            "kinds of release": [dict(line) for line in report.card],
            "words of these lines": _WORDS,
            "post-processing": "models, probabilities, scores of other records and a private AUC are "
            "computed from releases, and cost nothing more",
            "part of delta for floating point, charged": sum(
                float(line["floating_point_delta"]) for line in report.card
            ),
        },
        "implementation": {
            "noise": "Gaussian, of AES-256 in counter mode, 96 uniform bits for each radius and angle; "
            "computational differential privacy",
            "arithmetic": "sums in integers on a grid, the noise rounded with them",
            "ledger": "a hash-chained log, reserved before release, mirrored in the group's offset",
            "noise std": report.noise_std,
        },
        "status": {
            "guarantee": report.kind,
            "statement": report.guarantee,
            "what would void it": list(VOID_BY),
            "what would leave it in doubt": list(DOUBTFUL_BY),
            "records that can still be learned": "no end" if endless else report.horizon_left,
            **(status or {}),
        },
        "utility": "no private AUC is released" if report.auc is None else _utility(report.auc),
        "audit": "none was given" if audit is None else _audit(audit),
        "approval": _approval(curator or CardConfig()),
        "notes": list(report.notes),
    }


def without_spend(card: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The card of a configuration whose account could not be read: what is promised alone, if anything is.

    Parameters
    ----------
    card
        As of `card_of`, of a learner that has learned nothing.
    why
        Why the account could not be read.
    """
    kind, statement = card["status"]["guarantee"], card["status"]["statement"]
    if kind == "holds":
        kind = "promised"
        statement = (
            f"what the configuration promises: {statement}; whether that still holds was not read: {why}"
        )
    return {
        **card,
        "privacy_loss": {**card["privacy_loss"], "epsilon spent": None, "mu spent": None},
        "accounting": {**card["accounting"], "releases so far": None},
        "status": {
            **card["status"],
            "guarantee": kind,
            "statement": statement,
            "records that can still be learned": None,
        },
    }


def _approval(curator: CardConfig) -> dict[str, Any]:
    """The approval that the configuration declares; None where on paper there is a line to write on."""
    days = curator.approved_on, curator.review_by
    approved, review = (None if day is None else day.isoformat() for day in days)
    return {
        "approved by": curator.approved_by,
        "date": approved,
        "approved": curator.approved,
        "reason for epsilon and delta": curator.reason,
        "next review": review,
    }


def _utility(auc: Mapping[str, Any]) -> dict[str, Any]:
    if auc["too_few"]:
        return {
            "private AUC": "too few records of a class so far: their count is within the noise",
            "mu^2": auc["mu2"],
        }
    return {"private AUC": auc["value"], "standard error": auc["stderr"], "mu^2": auc["mu2"]}


def _audit(audit: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "date": audit.get("date", "not known"),
        "software": audit.get("software", "not known"),
        "verdict": audit["verdict"],
        "parts": [
            {
                "part": part["part"],
                "mu claimed": part["claimed"],
                "mu accounted for": part["accounted"],
                "mu of the best attack": part["exact"],
                "mu at least, at confidence 0.9999": part["lower"],
            }
            for part in audit["parts"]
        ],
        "what it can show": "that a promise is broken, never that it is kept",
    }


def checked_audit(text: str, report: PrivacyReport, learner: str) -> dict[str, Any]:
    """Check that an output of `streampair audit` is of this learner under this budget.

    Raises
    ------
    ConfigError
        If it is not. A learner without its module is meant by its name alone.
    """
    try:
        audit = json.loads(text)
        name = str(audit["learner"])
        of = (
            name if "." in learner else name.rpartition(".")[2],
            float(audit["epsilon"]),
            float(audit["delta"]),
        )
        _audit(audit)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the audit cannot be read ({type(error).__name__})",
            fix="give a file that `streampair audit CONFIG --output FILE` has written",
        ) from None
    if of != (learner, report.epsilon_budget, report.delta):
        raise ConfigError(
            f"the audit is of {of[0]} at epsilon {of[1]:g} and delta {of[2]:g}, and this is {learner} at "
            f"{report.epsilon_budget:g} and {report.delta:g}",
            fix="audit this configuration: `streampair audit CONFIG --output FILE`",
        )
    return dict(audit)


def lane_card(
    labels: LaneLabels,
    gauges: LaneGauges,
    *,
    public: bool,
    curator: CardConfig | None = None,
    audit: Path | None = None,
) -> dict[str, Any]:
    """The card of a lane, as of its last commit.

    Parameters
    ----------
    labels, gauges
        As they are published; the lane is private.
    public
        Whether it is the public one (`public_report`).
    curator
        As of `card_of`.
    audit
        The file that `streampair audit --output` has written. It is read each time, so that a new audit
        replaces it. If it cannot be used, the card says why.
    """
    app, topic, learner = labels
    deployment = {"application": app, "topic": topic, "learner": learner}
    since = None if gauges.since is None else datetime.fromtimestamp(gauges.since, UTC)
    status = {
        "date of the first record": None if since is None else since.isoformat(timespec="seconds"),
        "forks charged": gauges.forks,
        "generation of the noise": gauges.generation,
    }
    report = public_report(gauges.privacy) if public else gauges.privacy
    card = card_of(report, deployment=deployment, curator=curator, status=status)
    summary = audit_summary(audit, report, learner)
    return card if summary is None else {**card, "audit": summary}


def audit_summary(audit: Path | None, report: PrivacyReport, learner: str) -> dict[str, Any] | str | None:
    """The last audit for card and page: its findings, or why it cannot be used; None without one.

    The file is read each time. Nothing in it depends on a record of the lane.
    """
    if audit is None:
        return None
    try:
        return _audit(checked_audit(read_audit(audit), report, learner))
    except ConfigError as error:
        return f"cannot be used: {error}"


def read_audit(file: Path) -> str:
    """Read the file of an audit.

    Raises
    ------
    ConfigError
        If it cannot be read. The path is not named, since the card may be public.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            "the file of the audit cannot be read",
            fix="write one: `streampair audit CONFIG --output FILE`",
        ) from None


def public_report(report: PrivacyReport) -> PrivacyReport:
    """The report without the reason of a void guarantee, which may depend on records."""
    if report.kind != "void":
        return report
    return report.replace(guarantee="void", notes=())


# ---- as a page, and as text ------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .4rem; }
.sentence { font-size: 1.1rem; border-left: .3rem solid; padding-left: .8rem; }
.void { border-color: #c00; } .holds { border-color: #087f23; }
.unvouched, .promised { border-color: #b26a00; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem .3rem 0; overflow-wrap: anywhere; }
th { width: 14rem; font-weight: 600; } td table th { width: 11rem; font-weight: 400; }
ul { margin: 0; padding-left: 1.2rem; }
@media (max-width: 40rem) { th, td { display: block; width: auto; border: 0; padding: 0 0 .3rem; } }
.unsigned table, .signature { display: none; }
@media print {
  body { font-size: 11px; max-width: none; margin: 0; } tr { break-inside: avoid; }
  .approval { break-inside: avoid; } .signature { display: table-row; }
  .unsigned p { display: none; } .unsigned table { display: table; }
  .unsigned th, .signature th { height: 3em; }
}
"""


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _block(value: Any) -> str:
    """Format a value as HTML: nested tables, and lists."""
    if isinstance(value, Mapping):
        rows = "".join(
            f'<tr><th scope="row">{html.escape(str(name))}</th><td>{_block(each)}</td></tr>'
            for name, each in value.items()
        )
        return f"<table>{rows}</table>"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "<ul>" + "".join(f"<li>{_block(each)}</li>" for each in value) + "</ul>" if value else "none"
    return html.escape(_text(value))


def _sentence(card: Mapping[str, Any]) -> str:
    loss, status = card["privacy_loss"], card["status"]
    spent = f"spent so far {_text(loss['epsilon spent'])}"
    if loss["epsilon spent"] is None:
        spent = f"what is spent was {status['lanes']}"
    statement = {
        "holds": "Differential privacy holds",
        "void": "No guarantee holds",
        "unvouched": "The guarantee cannot be vouched for in full",
        "promised": "The configuration promises differential privacy",
    }[status["guarantee"]]
    return (
        f"{statement}: for {card['privacy_unit']['unit']}, epsilon at most {_text(loss['epsilon'])} at delta "
        f"{_text(loss['delta'])}; {spent}."
    )


def card_html(card: Mapping[str, Any]) -> str:
    """Return the card as an HTML page: no script, no external resources; on paper with lines to sign."""
    parts = "".join(
        f"<section><h2>{title}</h2>{_block(card[name])}</section>"
        for name, title in _TITLES.items()
        if name != "approval"
    )
    kind = html.escape(str(card["status"]["guarantee"]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Privacy card</title><style>{_STYLE}</style></head><body><main><h1>Privacy card</h1>"
        f'<p class="sentence {kind}">{html.escape(_sentence(card))}</p>{parts}'
        f"{_approval_html(card['approval'])}"
        "<p>Fields of the Differential Privacy Deployments Registry (arXiv 2509.13509), in the words of NIST "
        "SP 800-226. Numbers are those of the accountant.</p></main></body></html>\n"
    )


def _approval_html(approval: Mapping[str, str | None]) -> str:
    """The approval; on paper with lines for what is missing, and for the signature."""
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value or "")}</td></tr>'
        for name, value in approval.items()
    )
    lines += '<tr class="signature"><th scope="row">signature</th><td></td></tr>'
    kind, text = "approval", ""
    if not any(approval.values()):
        kind, text = "approval unsigned", f"<p>{_NOBODY}</p>"
    return f'<section class="{kind}"><h2>{_TITLES["approval"]}</h2>{text}<table>{lines}</table></section>'


def card_lines(card: Mapping[str, Any]) -> Iterator[str]:
    """The card for a terminal."""

    def lines(value: Any, depth: int) -> Iterator[str]:
        blank = "  " * depth
        if isinstance(value, Mapping):
            for name, each in value.items():
                if isinstance(each, Mapping) or (isinstance(each, list) and each):
                    yield f"{blank}{name}:"
                    yield from lines(each, depth + 1)
                else:
                    yield f"{blank}{name}: {'none' if each == [] else _text(each)}"
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Mapping):
                    first, *rest = lines(each, depth + 1)
                    yield f"{blank}- {first.strip()}"
                    yield from rest
                else:
                    yield f"{blank}- {_text(each)}"
        else:
            yield f"{blank}{_text(value)}"

    yield _sentence(card)
    for name, title in _TITLES.items():
        yield ""
        yield title
        declared = name != "approval" or any(card[name].values())
        yield from lines(card[name] if declared else _NOBODY, 1)


# ---- served ----------------------------------------------------------------------------------------------


def _requested_lane(request: web.Request, telemetry: Telemetry) -> tuple[LaneLabels, LaneGauges]:
    """Return the one private lane that the query matches; fields that it omits match any value."""
    query = request.query
    wanted = tuple(query.get(name) for name in ("app", "topic", "learner"))
    found = [
        (labels, gauges)
        for app in telemetry.health_report()[1]
        for labels, gauges in telemetry.gauges(app).items()
        if gauges.privacy is not None
        and all(name in (None, label) for name, label in zip(wanted, labels, strict=True))
    ]
    if len(found) != 1:
        raise web.HTTPNotFound(
            text=f"{len(found)} private lanes are meant: name one, as in "
            "card?app=fraud&topic=events&learner=PairFTRL\n",
            headers=_HEADERS,
        )
    return found[0]


def add_routes(
    app: web.Application,
    telemetry: Telemetry,
    *,
    public: bool,
    audit: Path | None = None,
    curator: CardConfig | None = None,
) -> None:
    """Serve the card of each private lane, `/card` and `/card.json`.

    Parameters
    ----------
    app
        Gets the routes.
    telemetry
        What is published.
    public
        Whether it is the public endpoint.
    audit, curator
        As of `lane_card`.
    """

    async def page(request: web.Request) -> web.Response:
        card = lane_card(*_requested_lane(request, telemetry), public=public, audit=audit, curator=curator)
        return web.Response(text=card_html(card), content_type="text/html", headers=_HEADERS)

    async def plain(request: web.Request) -> web.Response:
        card = lane_card(*_requested_lane(request, telemetry), public=public, audit=audit, curator=curator)
        return web.json_response(card, headers=_HEADERS)

    app.router.add_get("/card", page)
    app.router.add_get("/card.json", plain)
