"""`streampair check`: checks everything that could make `run` fail, without running."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from streampair.engine.labels import table_bytes
from streampair.errors import ConfigError, SourceError, StoreError, StreampairError
from streampair.history.account import attempts_of
from streampair.privacy import PrivacyReport
from streampair.privacy.accounting import doubts, promised_epsilon
from streampair_connectors import kafka
from streampair_connectors.codecs.formats import event_decoder, schema_registry
from streampair_connectors.config import APPROVAL, Address, CardConfig, Config, KafkaConfig, duration_text
from streampair_connectors.config.toml_lines import toml_key
from streampair_connectors.kafka import Partition
from streampair_connectors.kafka.admin import (
    FLAG,
    append_time_command,
    create_missing,
    missing_rights,
    missing_topic,
    output_topics,
    retention_fix,
    retention_ms,
    rights_error,
)
from streampair_connectors.kafka.consumer import TopicReader
from streampair_connectors.kafka.log_topic import SETTINGS, LogTopic
from streampair_connectors.stores import DirectoryStore, key_missing, seal_of
from streampair_connectors.stores.topic import check_log_partitions
from streampair_connectors.worker.factory import (
    build_lane,
    draws_key,
    exploration_of,
    is_private,
    named_steps,
    start_model,
    taken_cells,
)
from streampair_connectors.worker.model_topic import check_exportable, check_partitions
from streampair_connectors.worker.scoring import check_scoring

__all__ = ["Report", "check_config"]


_LINEAR = {
    *(f"streampair.auc.{name}" for name in ("PairOGD", "PairMoments", "OAM", "SPAUC")),
    *(f"streampair.ranking.{name}" for name in ("PairOGD", "PairMoments")),
}
_FORESTS = {f"streampair.{name}" for name in ("auc.Forest", "auc.MulticlassForest", "ranking.Forest")}
#: Steps that make a feature of each word, without end.
_WORDS = {"river.feature_extraction.BagOfWords", "river.feature_extraction.TFIDF"}


@dataclass
class Report:
    """Findings, in the order in which `run` would meet them.

    Attributes
    ----------
    findings
        What was found, each with its name and text.
    only_files
        Whether the configuration has no brokers: `replay` can use it, `run` cannot.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    only_files: bool = False

    @property
    def ok(self) -> bool:
        """Whether `run` would start; without brokers, `replay`."""
        return all(f["ok"] for f in self.findings)

    def good(self, what: str, text: str) -> None:
        """Add a check that passed."""
        self.findings.append({"check": what, "ok": True, "text": text})

    def doubtful(self, what: str, text: str) -> None:
        """Add a warning: it works, and is probably not intended."""
        self.findings.append({"check": what, "ok": True, "warning": True, "text": text})

    def bad(self, what: str, error: StreampairError) -> None:
        """Add a check that failed, with its fix."""
        self.findings.append({"check": what, "ok": False, "text": error.problem, "fix": error.fix})

    def as_dict(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {"ok": self.ok, "findings": self.findings}

    def lines(self) -> list[str]:
        """Return the report for people."""
        out = []
        for finding in self.findings:
            mark = "FAIL" if not finding["ok"] else "WARN" if finding.get("warning") else "ok  "
            out.append(f"{mark} {finding['check']}: {finding['text']}")
            if not finding["ok"]:
                out.append(f"       fix: {finding['fix']}")
        command = "replay" if self.only_files else "run"
        out.append(f"ready to {command}" if self.ok else f"not ready to {command}")
        return out


def _label_place(config: Config) -> str:
    labels = config.label_input
    if labels is None:
        return f"label {config.input.label!r}"
    means = "" if labels.label is not None else f", each of which means {config.input.positive!r}"
    wait = duration_text(labels.wait)
    return f"labels from topic {labels.topic!r}{means}, events learned {wait} after they come"


def _check_stopped(config: Config, privacy: PrivacyReport | None, report: Report) -> None:
    """Say that an event which its score has stopped would count as one without a label; what is explored."""
    labels, least = config.label_input, config.output.alert_above
    if labels is not None and labels.absent is not None and labels.stopped is None and least is not None:
        report.doubtful(
            "label_input.stopped",
            f"scores from {least:g} on are alerts, and an event without a label is {labels.absent!r}. If an "
            "alert stops an event, as a payment that is declined, no label of it ever comes: it is learned "
            f"as {labels.absent!r}, and AUC and recall are too low. Send a label that says so, and name it: "
            'label_input.stopped = "declined". Then figures are of the events that are let pass; with '
            "output.explore a share of the others is let pass too, and figures are of all. Where nothing is "
            "stopped, nothing is needed",
        )
    if privacy is not None and labels is not None and labels.stopped is not None:
        report.good(
            "label_input.stopped",
            "the guarantee covers stops by scores of this application, or of another private one: then it "
            "is that of both together. If a model stops events that learns them without privacy, none holds",
        )
    if config.output.explore is not None:
        try:
            exploration_of(config)
        except StreampairError as error:
            report.bad("output.explore", error)
        else:
            report.good(
                "output.explore",
                f"{config.output.explore:g} of the events with a score of at least {least:g} are to be let "
                "pass, with the secret of output.explore_key_file, which all workers of the application need",
            )


async def check_config(config: Config, *, create_topics: bool = False, account: Path | None = None) -> Report:
    """Run all checks and return the findings. Holds no lock, saves no state.

    Parameters
    ----------
    create_topics
        Whether to make missing topics, as [topics] says.
    account
        As of `further_attempts`.
    """
    report = Report()
    if config.places:
        report.good("overrides", ", ".join(f"{name} from {place}" for name, place in config.places.items()))
    names, categories = config.input.feature_names(), config.input.categories()
    labels = (
        "of any kind"
        if config.input.label_type == "any"
        else f"{config.input.positive!r} ranks high, {config.input.negative_label()!r} low"
    )
    report.good(
        "input",
        ("" if config.kafka is None else f"topic {config.input.topic!r}, ")
        + f"{_label_place(config)} ({labels}), "
        + ("features are all other fields" if names is None else f"{len(names)} features")
        + (
            ""
            if categories is None
            else f", {len(categories.columns)} of them for the declared values of "
            f"{', '.join(map(str, categories.places))}"
        ),
    )
    learns = "learn" in config.worker.roles
    lane = _check_learner(config, report) if learns else None
    privacy = None if lane is None else lane.privacy
    further = None if privacy is None else _check_attempts(config, account, report)
    _check_scorers(config, None if lane is None else lane.model, report)
    _check_registry(config, report)
    if learns and config.kafka is not None:
        _check_store(config, report)
    await _check_addresses(config, report)
    _check_audit(config, privacy, report)
    _check_approval(config, privacy, further, report)
    _check_stopped(config, privacy, report)
    _check_codecs(report)
    if config.kafka is None:
        report.only_files = True
        report.doubtful(
            "kafka",
            "no [kafka] table, so this is for `replay` of files; `run` needs [kafka] with "
            'bootstrap_servers = "localhost:9092"',
        )
    else:
        await _check_kafka(config, report, create_topics)
    if config.kafka is not None and report.ok and learns:  # else what failed says more
        await _check_state(config, report)
    if privacy is not None:
        _check_entities(privacy, report)
    if config.kafka is None:
        return report
    worker = config.worker
    group = config.app if learns else config.scorers_group
    report.good(
        "worker",
        f"group {group!r}; commits every {config.commit_every} or "
        f"{worker.commit_every_events} events; bad events: "
        + {"dlq": f"to {config.dead_letter_topic!r}", "skip": "counted only", "fail": "stop the lane"}[
            worker.on_bad
        ],
    )
    return report


def _check_registry(config: Config, report: Report) -> None:
    try:
        registry = schema_registry(config)
        if registry is None:
            return
        registry.check()
    except StreampairError as error:
        report.bad("schema registry", error)
    else:
        report.good("schema registry", "answers")


def _check_learner(config: Config, report: Report) -> Any:
    """Return a lane, which has processed nothing; None: it cannot be made."""
    try:
        lane = build_lane(config, event_decoder(config, **taken_cells(config)))
    except StreampairError as error:
        report.bad("learner", error)
        return None
    learner = config.learner
    paths = [learner.class_] if learner.class_ is not None else [step.class_ for step in learner.steps]
    text = f"{learner.label()} ({' | '.join(map(str, paths))})"
    privacy: PrivacyReport | None = lane.privacy
    report.good("learner", text if privacy is not None else f"{text}, not private")
    _check_choice(config, report)
    if lane.pickled:
        report.good(
            "learner.allow_pickle",
            f"{', '.join(lane.pickled)}: saved by pickle, signed; scored inline only, in no model file",
        )
    if learner.start is not None:
        report.good("learner.start", _start_text(config))
    if privacy is not None:
        report.good(
            "privacy",
            f"epsilon {privacy.epsilon_budget:g} at delta {privacy.delta:g}; {privacy.guarantee}; "
            + ("no horizon" if privacy.horizon_left is None else f"learns {privacy.horizon_left} events"),
        )
        for text in doubts(privacy.epsilon_budget, privacy.delta, privacy.horizon_left):
            report.doubtful("privacy", text)
        _check_bounds(config, lane.learner, report)
        _check_moments(lane.learner, report)
    if privacy is not None and getattr(lane.learner, "seed", 0) is None:
        kept = f"in {config.state_directory / config.app}.noise-key, made at the first start"
        report.good(
            "ledger",
            f"reserves {lane.learner.window} events at a time; room for {lane.learner.forks} replay(s) that "
            f"come out otherwise; noise key {kept if draws_key(config) else 'as configured'}",
        )
    return lane


def _check_choice(config: Config, report: Report) -> None:
    """Say which other learner fits what the configuration shows better, as docs/learners.md does."""
    learner = config.learner
    path = learner.class_ if learner.class_ is not None else learner.steps[-1].class_
    words = sorted(_WORDS & named_steps(config))
    if path in _FORESTS and words:
        step = words[0].rpartition(".")[2]
        report.doubtful(
            "learner",
            f"{step} makes a feature of each word, and a forest takes no more than its max_features: events "
            "with further words become dead letters. PairOGD takes any number (docs/learners.md)",
        )
    elif path in _LINEAR and not learner.steps:
        family = path.rpartition(".")[0]
        report.good(
            "learner",
            f"linear: {family}.Forest ranks most tables better, and takes about three times as long "
            "(docs/learners.md)",
        )


def _check_bounds(config: Config, learner: Any, report: Report) -> None:
    """Warn of a private learner without bounds, which takes values to be from -1 to 1."""
    steps = config.learner.steps
    if learner.bounds is not None or "streampair.preprocessing.Bounds" in named_steps(config):
        return
    names = (learner.features if steps else config.input.field_names()) or ["NAME"]
    pairs = [f"{toml_key(str(name))} = [LOW, HIGH]" for name in names[:5]] + ["..."] * (len(names) > 5)
    key = f"learner.steps[{len(steps) - 1}].options.bounds" if steps else "input.features"
    line = f"{key} = {{ {', '.join(pairs)} }}"
    report.doubtful(
        "bounds",
        "the features have no bounds, so values are taken to be from -1 to 1, and larger ones are cut off: "
        f"most of a feature such as an amount is lost. Write {line}, by what is known without the events",
    )


def _check_moments(learner: Any, report: Report) -> None:
    """Warn of the moments of a table that are lost, since the lane has other features or bounds."""
    run = learner.run
    start = getattr(run, "start", None)  # trees begin with no model
    if start is None or start.moments is None or start.bounds is None:
        return
    table = dict(zip(start.names, start.bounds, strict=True))
    lane = {name: run.settings.bounds.get(name, (-1.0, 1.0)) for name in run.names}
    other = [name for name in {**table, **lane} if table.get(name) != lane.get(name)]
    if not other:
        return
    pairs = [f"{name}: {_bounds_text(table, name)}, here {_bounds_text(lane, name)}" for name in other[:5]]
    report.doubtful(
        "learner.start",
        f"the model has the released moments of {start.moments.rows:,} rows of a table, which this lane "
        f"cannot use: its weights alone are carried. Features or bounds differ ({'; '.join(pairs)}"
        f"{'; ...' if len(other) > 5 else ''}). Write those of the model in input.features (docs/saving.md)",
    )


def _bounds_text(bounds: Mapping[Hashable, tuple[float, float]], name: Hashable) -> str:
    low, high = bounds.get(name, (None, None))
    return "none" if low is None else f"[{low:g}, {high:g}]"


def _start_text(config: Config) -> str:
    """What a new lane begins with; the lane has been made with it."""
    model, names = start_model(config), config.input.feature_names()
    if model is None:
        return f"goes on from the state {config.learner.start}"
    charged = ""
    if config.learner.public_start:
        charged = ", declared public"
    elif model.privacy is not None:
        charged = f", whose mu of {model.privacy['mu_spent']:.4g} is added to the account"
    text = (
        f"begins with the model {config.learner.start} ({model.class_name}, {model.slots} records{charged})"
    )
    if model.steps:
        return f"{text} and the state of its steps: {', '.join(model.steps)}"
    if names is None:
        return f"{text} and its {len(model.features)} features; other features begin at 0"
    new = sorted(set(names) - {str(name) for name in model.features})
    begin = f"; {', '.join(new[:5])}{', ...' if len(new) > 5 else ''} begin at 0" if new else ""
    return f"{text}, which has {len(names) - len(new)} of the {len(names)} features{begin}"


class FurtherAttempts(NamedTuple):
    """What is in the account of a table, and not in the model that a lane begins with.

    Attributes
    ----------
    text
        In words.
    mu2
        mu^2 of it.
    """

    text: str
    mu2: float


def further_attempts(config: Config, account: Path | None = None) -> FurtherAttempts | None:
    """What attempts at a table spend that are not in the figures of the lane; None: there are none.

    Parameters
    ----------
    config
        The configuration.
    account
        The account of the table; None: where `streampair backfill` has it without --account.

    Raises
    ------
    StoreError
        The account is damaged.
    """
    model = None
    if config.learner.start is not None and not config.learner.public_start:
        model = start_model(config)
    history = {} if model is None else model.metadata.get("history", {})
    path = config.history_account if account is None else account
    job, made = attempts_of(path)
    if model is None or model.privacy is None or "job" not in history:
        # As of a metric, with whose model no lane begins.
        if not made and account is None:
            return None
        return FurtherAttempts(
            f"{path.name} has {made} attempts at a table, of which the figures of this learner hold nothing: "
            "if the table has the same people, add its mu to that of this learner, by squares "
            "(docs/history.md)",
            0.0,
        )
    counted = max(history["attempts"])
    of_model, delta = model.privacy["mu_spent"], model.privacy["delta"]
    if not made:
        return FurtherAttempts(
            f"there is no account {path}: attempts at the table after that of the model are not known. Name "
            "the account with --account (docs/history.md)",
            0.0,
        )
    if job != history["job"]:
        return FurtherAttempts(
            f"{path.name} is the account of another job than the model's, with {made} "
            "attempts: if its table has the same people, add its mu to that of this learner, by squares "
            "(docs/history.md)",
            0.0,
        )
    if made <= counted:
        return None
    mu = of_model * math.sqrt(made / counted)
    return FurtherAttempts(
        f"{path.name} has {made} attempts at the table, and the model counts {counted}: "
        f"who is in the table has spent mu {mu:.4g} on it, epsilon {promised_epsilon(mu, delta):.4g} at "
        f"delta {delta:g}, of which the figures of this learner hold mu {of_model:.4g} (docs/history.md)",
        mu * mu - of_model * of_model,
    )


def _check_attempts(config: Config, account: Path | None, report: Report) -> FurtherAttempts | None:
    """Say what further attempts at the table of learner.start spend."""
    what = "learner.start" if config.learner.start else "account"
    try:
        further = further_attempts(config, account)
    except StoreError as error:
        report.bad(what, error)
        return None
    if further is not None:
        report.doubtful(what, further.text)
    return further


def _check_scorers(config: Config, model: Any, report: Report) -> None:
    if config.model_topic is not None and model is not None:
        try:
            check_exportable(model)
        except ConfigError as error:
            report.bad("learner.scoring" if config.learner.parallel else "output.model_topic", error)
            return
    if config.learner.parallel:
        roles = config.worker.roles
        does = "learns and scores" if len(set(roles)) > 1 else "scores" if roles[0] == "score" else "learns"
        report.good(
            "learner.scoring",
            f"workers of the group {config.scorers_group!r} score, with the newest model of the topic "
            f"{config.model_topic!r}; this one {does}",
        )


def _check_entities(privacy: PrivacyReport, report: Report) -> None:
    """Say that the budget is an entity's, where all of its records are protected."""
    if "entity" in privacy.unit:
        text = "one lane reads the whole topic: the budget above is an entity's, however records are keyed"
        report.good("entities", text)


def _check_store(config: Config, report: Report) -> None:
    if config.store.in_kafka:
        try:
            sealed = seal_of(config).seals
            if draws_key(config):
                raise key_missing()
        except StreampairError as error:
            report.bad("store", error)
            return
        report.good(
            "store",
            f"in Kafka, topic {config.log_topic!r}, "
            + ("sealed" if sealed else "not sealed: as readable as the input"),
        )
        return
    directory = config.state_directory
    # Nothing is made here: for a directory that does not exist, its nearest parent is checked.
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if directory.exists() and directory.is_dir():
        try:
            DirectoryStore(directory).probe()
        except StreampairError as error:
            report.bad("store", error)
            return
        begun = (directory / f"{config.lane_name}.log").exists()
        has = "a" if begun else "no"
        report.good("store", f"{directory} can be written; it has {has} lane of this application and topic")
    elif existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        report.good("store", f"{directory} does not exist yet and will be made")
    else:
        report.bad(
            "store",
            SourceError(
                f"the store directory {directory} cannot be made in {existing}",
                fix="set store.directory to a directory that this user may write",
            ),
        )


async def _check_state(config: Config, report: Report) -> None:
    """Whether a start would refuse what the store and the group hold.

    It is what a worker does up to its first write, but for fencing others and the replay of the last events.
    """
    from streampair_connectors.stores.state import open_states

    try:
        async with open_states(config) as states:
            lane = await states.show()
    except StreampairError as error:
        report.bad("state", error)
        return
    if lane.refused is not None:
        report.bad("state", StoreError(lane.refused, fix=lane.fix or "streampair state show"))
    if report.ok:
        where = "continues from the last commit" if lane.key or lane.writer else "begins at the first event"
        replays = ", unless the replay of the last events comes out otherwise" if lane.replay else ""
        report.good("state", f"a start {where}{replays}")


async def _check_addresses(config: Config, report: Report) -> None:
    metrics = config.metrics
    keys = {"metrics.address": metrics.address, "metrics.public_address": metrics.public_address}
    for key, address in keys.items():
        if address is None:
            continue
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            family, _, _, _, place = found[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and await asyncio.to_thread(_serves, config, address):
                report.good(
                    key,
                    f"{address} is in use by the application {config.app!r}, which runs; a second worker on "
                    "this host needs another port",
                )
                continue
            report.bad(
                key,
                SourceError(
                    f"cannot listen on {address}: {error.strerror or error}",
                    fix=f"stop what uses the port, or correct {key} (port 0 takes a free one)",
                ),
            )
        else:
            report.good(key, f"{address}" if address.port else f"{address.host}, a free port")


def _serves(config: Config, address: Address) -> bool:
    """Whether the metrics at an address are those of the application."""
    from streampair_connectors.observability.server import read_metrics

    lines = read_metrics(address)
    return any(line.startswith("streampair_") and f'app="{config.app}"' in line for line in lines)


def _check_audit(config: Config, privacy: PrivacyReport | None, report: Report) -> None:
    if config.metrics.audit_file is None or privacy is None:
        return
    from streampair_connectors.observability.privacy_card import checked_audit, read_audit

    try:
        audit = checked_audit(read_audit(config.metrics.audit_file), privacy, config.learner.label())
    except ConfigError as error:
        report.bad("metrics.audit_file", error)
    else:
        report.good("metrics.audit_file", f"{audit.get('date', 'an unknown day')}: {audit['verdict']}")


def _check_approval(
    config: Config, privacy: PrivacyReport | None, further: FurtherAttempts | None, report: Report
) -> None:
    """Say who has approved epsilon and delta of a private learner, and whether the review is due."""
    card = config.card
    if privacy is None:
        return
    if card.approved_on is None or card.review_by is None:
        report.doubtful(
            "card",
            "nobody has approved epsilon and delta: docs/decide.md says how to choose them; then set "
            f"card.{', '.join(APPROVAL[:-1])} and {APPROVAL[-1]}",
        )
        return
    today = datetime.now(UTC).date()
    approved = f"{card.approved}, approved on {card.approved_on} by {card.approved_by}"
    mu2 = privacy.mu_budget**2 + (0.0 if further is None else further.mu2)
    epsilon = privacy.epsilon_budget if further is None else promised_epsilon(math.sqrt(mu2), privacy.delta)
    if not _within(card, epsilon, privacy.delta):
        report.doubtful(
            "card",
            f"{approved}, and the configuration promises less: epsilon {epsilon:g} at delta "
            f"{privacy.delta:g}: lower them in learner.options, or have these approved and set "
            f"card.{', '.join(APPROVAL[1:-1])} and {APPROVAL[-1]} anew",
        )
    elif card.approved_on > today:
        report.doubtful("card", f"{approved}, which is to come: correct card.approved_on")
    elif card.review_by < today:
        report.doubtful(
            "card",
            f"{approved}, and the review was due by {card.review_by}: review epsilon and delta, and set "
            "card.approved_on, reason and review_by anew",
        )
    else:
        report.good("card", f"{approved}, to be reviewed by {card.review_by}")


def _within(card: CardConfig, epsilon: float, delta: float) -> bool:
    """Whether the promise is no weaker than what has been approved."""
    assert card.approved_epsilon is not None
    assert card.approved_delta is not None
    # What a report says of a budget is computed from its mu, to some digits.
    return epsilon <= card.approved_epsilon * (1.0 + 1e-9) and delta <= card.approved_delta


def _check_codecs(report: Report) -> None:
    try:
        codecs = kafka.check_codecs()
    except SourceError as error:
        report.bad("codecs", error)
    else:
        report.good("codecs", f"records compressed with {', '.join(codecs)} can be read")


async def _check_kafka(config: Config, report: Report, create: bool) -> None:
    try:
        settings = config.require_kafka()
        found = await kafka.describe_topics(settings)
        report.good("kafka", f"{settings.bootstrap_servers} answers; {len(found)} topics are visible")
    except StreampairError as error:
        report.bad("kafka", error)
        return
    try:
        missing = await missing_rights(config)
    except StreampairError as error:
        report.bad("rights", error)
        return
    if missing:
        report.bad("rights", rights_error(config, missing))
    else:
        report.good("rights", "this user may do all that `run` does, as far as the brokers say")
    topics = _Topics(found)
    topics.hidden = {
        topic for kind, topic, operation in missing if (kind, operation) == ("topic", "Describe")
    }
    if create:
        try:
            creation = await create_missing(config, found)
        except StreampairError as error:
            report.bad(FLAG, error)
            return
        topics.made, topics.errors = creation.made, creation.errors
        topics.found |= creation.made
    _check_input_topic(config, report, topics)
    await _check_append_time(config, report, topics.found.get(config.input.topic, 0))
    await _check_labels(config, settings, report, topics)
    await _check_output_topics(config, settings, report, topics)
    partitions = topics.found.get(config.input.topic, 0)
    if missing or not partitions:
        return
    try:
        await _check_log_topic(config, report, topics)
        await _check_model_topic(config, report, topics)
        await check_scoring(config, partitions)
        await _check_positions(config, report, partitions)
    except ConfigError as error:
        report.bad("learner.scoring", error)
    except StreampairError as error:
        report.bad("kafka", error)


async def _check_log_topic(config: Config, report: Report, topics: _Topics) -> None:
    name = config.log_topic
    if not config.store.in_kafka or "learn" not in config.worker.roles or name not in topics.found:
        return
    try:
        check_log_partitions(config, topics.found[name])
        await LogTopic(config.require_kafka(), name).check_settings()
    except ConfigError as error:
        report.bad("store.log_topic", error)


async def _check_model_topic(config: Config, report: Report, topics: _Topics) -> None:
    name, key = config.model_topic, "output.model_topic"
    if name is None:
        return
    if name not in topics.found:
        report.good(key, f"{name!r} does not exist; the worker that learns creates it, with one partition")
        return
    try:
        check_partitions(name, topics.found[name])
    except ConfigError as error:
        report.bad(key, error)
        return
    # One that scores alone need not have the right to read them.
    learns = "learn" in config.worker.roles
    found = await LogTopic(config.require_kafka(), name).settings() if learns else {}
    lost = {k: v for k, v in found.items() if k in SETTINGS and v != SETTINGS[k]}
    if lost:
        wanted = ",".join(f"{k}={SETTINGS[k]}" for k in lost)
        report.doubtful(
            key,
            f"{name!r} has {', '.join(f'{k} = {v}' for k, v in lost.items())}: the newest model can be lost "
            "while no events come, and workers that score then wait. Set it: kafka-configs.sh "
            f"--bootstrap-server {config.require_kafka().bootstrap_servers} --alter --topic {name} "
            f"--add-config {wanted}",
        )
    else:
        report.good(key, topics.has(name))


async def _check_positions(config: Config, report: Report, partitions: int) -> None:
    """Say which events retention has removed before the lane, or the scorers, have read them."""
    settings, roles = config.require_kafka(), config.worker.roles
    groups = [config.app] if "learn" in roles else []
    groups += [config.scorers_group] if config.learner.parallel and "score" in roles else []
    numbers = [Partition(config.input.topic, number) for number in range(partitions)]
    lookup = kafka.RecordReader(settings)
    try:
        spans = await lookup.spans(numbers)
    finally:
        await lookup.stop()
    for group in groups:
        known = await kafka.read_register(settings, group, numbers)
        lost = {
            place.partition: spans[place.partition][0] - found.offset
            for place, found in known.items()
            if found is not None and found.offset < spans[place.partition][0]
        }
        if lost:
            where = ", ".join(f"{count} of partition {number}" for number, count in lost.items())
            report.doubtful("retention", f"group {group!r} has lost {where}: {retention_fix(config)}")


@dataclass
class _Topics:
    """Partitions of existing and of newly made topics, and errors of those that could not be made.

    `hidden` topics may exist: this user may not describe them.
    """

    found: dict[str, int]
    made: dict[str, int] = field(default_factory=dict)
    errors: dict[str, SourceError] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def has(self, name: str) -> str:
        """Describe an existing topic."""
        return (
            f"{name!r} {'was created with' if name in self.made else 'has'} {self.found[name]} partition(s)"
        )


def _check_input_topic(config: Config, report: Report, topics: _Topics) -> None:
    name = config.input.topic
    if name in topics.found:
        report.good("input.topic", f"{topics.has(name)}: one lane")
    elif name not in topics.hidden:
        report.bad("input.topic", topics.errors.get(name) or missing_topic(config, "input.topic", name))


async def _check_append_time(config: Config, report: Report, partitions: int) -> None:
    ordered = partitions > 1
    if not partitions or not (ordered or config.label_input is not None):
        return
    if await kafka.has_append_time(config.require_kafka(), config.input.topic):
        if ordered:
            report.good(
                "timestamps", "set by the broker: the order over partitions is a function of the topic"
            )
        return
    found = ["set by producers"]
    if ordered:
        found.append("a late record may stand elsewhere in another run")
        if is_private(config):
            found.append("the report says that the order is not covered")
    if config.label_input is not None:
        found.append(
            "which labels an event can use depends on when it is read, if its stamp is ahead of its arrival "
            f"by more than label_input.lateness ({duration_text(config.label_input.lateness)})"
        )
    text = f"{found[0]}: {'; '.join(found[1:])}. To have the broker set them: {append_time_command(config)}"
    doubtful = is_private(config) or config.label_input is not None
    (report.doubtful if doubtful else report.good)("timestamps", text)


async def _check_labels(config: Config, settings: KafkaConfig, report: Report, topics: _Topics) -> None:
    """Check that there is a labels topic, and that events and labels are kept until the events are due."""
    labels = config.label_input
    if labels is None:
        return
    if labels.topic in topics.found:
        report.good("label_input.topic", topics.has(labels.topic))
    elif labels.topic not in topics.hidden:
        report.bad("label_input.topic", missing_topic(config, "label_input.topic", labels.topic))
        return
    for topic, what in ((config.input.topic, "events"), (labels.topic, "labels")):
        kept = await retention_ms(settings, topic) if topic in topics.found else None
        if kept is None or kept == -1:
            continue
        if kept <= labels.wait:
            report.doubtful(
                "retention",
                f"{topic!r} keeps its records for {duration_text(kept)}, and events are learned "
                f"{duration_text(labels.wait)} after they come: {what} can be gone by then. Raise "
                f"it: kafka-configs.sh --bootstrap-server {settings.bootstrap_servers} --alter "
                f"--topic {topic} --add-config retention.ms={2 * labels.wait}",
            )
    if config.input.topic in topics.found and await kafka.is_compacted(settings, config.input.topic):
        report.doubtful(
            "input.topic",
            f"{config.input.topic!r} is compacted: of several events of a key the last one may be left when "
            "the others are due, and they are not learned. Set cleanup.policy=delete",
        )
    if is_private(config):
        await _check_label_files(config, settings, report, topics.found.get(labels.topic, 0))
    if await kafka.is_compacted(settings, labels.topic):
        report.doubtful(
            "label_input.topic",
            f"{labels.topic!r} is compacted: of several labels of a key the last one may be left, and the "
            "first one counts. Set cleanup.policy=delete",
        )


async def _check_label_files(config: Config, settings: KafkaConfig, report: Report, partitions: int) -> None:
    """Say how much room the labels of a private learner take on disk, by how many have come of late."""
    labels = config.label_input
    if labels is None or not partitions:
        return
    # As long as some event may use a label; then the table drops it.
    kept = labels.wait + labels.lateness
    reader = TopicReader(settings, labels.topic, partitions, lambda *_: None)
    try:
        await reader.start()
        begin = await reader.offsets_at(time.time_ns() // 1_000_000 - kept)
        end = await reader.offsets_at(2**62)
    except SourceError as error:
        report.bad("label_input.topic", error)
        return
    finally:
        await reader.stop()
    count = sum(end[number] - begin[number] for number in begin)
    directory = Path(tempfile.gettempdir())
    room = -(-2 * table_bytes(max(count, 1)) // 2**26) * 64  # twice as many, in steps of 64 MiB
    text = (
        f"those of the last {duration_text(kept)} (label_input.after, label_input.lateness) wait in files in "
        f"{directory}: {count:,} now, {round(table_bytes(count) / 1e6)} MB. Leave {room} MiB there; an "
        f"emptyDir of Kubernetes needs sizeLimit: {room}Mi. A million more take 48 MB"
    )
    free = shutil.disk_usage(directory).free // 2**20
    if free < room:
        report.doubtful("labels", f"{text}. {free} MiB are free")
    else:
        report.good("labels", text)


async def _check_output_topics(
    config: Config, settings: KafkaConfig, report: Report, topics: _Topics
) -> None:
    creates: bool | None = None
    for key, name in output_topics(config).items():
        if name in topics.found:
            report.good(key, topics.has(name))
            continue
        if name in topics.errors:
            report.bad(key, topics.errors[name])
            continue
        if name in topics.hidden:
            continue
        if creates is None:
            creates = await kafka.auto_creates_topics(settings)
        if creates:
            report.good(key, f"{name!r} does not exist; the broker creates it when `run` asks for it")
        elif creates is None:
            report.good(key, f"{name!r} does not exist; `run` asks for it, and the broker may create it")
        else:
            report.bad(key, missing_topic(config, key, name))
