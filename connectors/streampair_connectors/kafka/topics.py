"""Topics of an application: checks that they exist, creates missing ones, and checks access rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streampair.errors import SourceError
from streampair_connectors import kafka
from streampair_connectors.config import Config
from streampair_connectors.observability.logs import get_logger

__all__ = [
    "FLAG",
    "Creation",
    "TopicFacts",
    "append_time_command",
    "check_topics",
    "create_missing",
    "missing_rights",
    "missing_topic",
    "output_topics",
    "rights_error",
]

log = get_logger(__name__)

FLAG = "--create-topics"
"""The option of `check` and `run` that creates missing topics."""


def output_topics(config: Config) -> dict[str, str]:
    """Return the topics of scores and dead letters, by their key in the configuration."""
    return {"output.topic": config.output_topic, "output.dead_letter_topic": config.dead_letter_topic}


def topic_settings(config: Config, name: str) -> dict[str, str]:
    """Return the settings with which a topic of the application is to be created."""
    if name == config.input.topic and config.learner.whole_topic:
        return {"message.timestamp.type": "LogAppendTime"}  # then the order is a function of the topic
    return {}


@dataclass(frozen=True)
class Creation:
    """Result of creating the missing topics.

    Attributes
    ----------
    made
        Partitions of each created topic.
    errors
        Errors of the others, by name. Without errors all topics exist now.
    """

    made: dict[str, int]
    errors: dict[str, SourceError]


async def create_missing(config: Config, existing: Mapping[str, int]) -> Creation:
    """Create the topics that are not in `existing` (partitions by name), with the settings of [topics].

    Nothing is created if the input topic is missing and has no `input_partitions`: outputs follow its number.

    Raises
    ------
    SourceError
        The cluster does not answer.
    """
    settings, topics = config.require_kafka(), config.topics
    wanted: dict[str, int] = {}
    name = config.input.topic
    partitions = existing.get(name, topics.input_partitions)
    if partitions is None:
        return Creation({}, {name: missing_topic(config, "input.topic", name)})
    if name not in existing:
        wanted[name] = partitions
    for output in output_topics(config).values():
        if output not in existing:
            wanted[output] = partitions if topics.output_partitions is None else topics.output_partitions
    if not wanted:
        return Creation({}, {})
    special = {name: topic_settings(config, name) for name in wanted}
    results = await kafka.create_topics(settings, wanted, topics.replication_factor, settings=special)
    return Creation(
        {name: count for name, count in results.items() if not isinstance(count, SourceError)},
        {name: error for name, error in results.items() if isinstance(error, SourceError)},
    )


async def missing_rights(config: Config) -> list[kafka.Missing]:
    """Return all rights on the cluster that `run` needs and this user lacks.

    Raises
    ------
    SourceError
        No broker answers.
    """
    wanted: dict[str, tuple[str, ...]] = {config.input.topic: ("Read", "Describe", "DescribeConfigs")}
    wanted |= dict.fromkeys(output_topics(config).values(), ("Write", "Describe"))
    name = None
    internal = ("Read", "Write", "Describe", "DescribeConfigs", "Delete", "Alter")
    if config.store.in_kafka:
        wanted[config.log_topic] = internal
    if config.store.in_kafka or config.learner.parallel:
        name = kafka.transactional_id(config.app, config.input.topic, 0)
    if config.model_topic is not None:
        wanted[config.model_topic] = internal
    settings, groups = config.require_kafka(), [config.app]
    if config.learner.parallel:
        groups.append(config.scorers_group)
    return await kafka.missing_rights(settings, wanted, groups=groups, transactional_id=name)


def rights_error(config: Config, missing: Sequence[kafka.Missing]) -> SourceError:
    """Return the error for missing rights, with the commands that grant them."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for kind, name, operation in missing:
        grouped.setdefault((kind, name), []).append(operation)
    settings = config.require_kafka()
    user = settings.username or "the name in the certificate"
    commands = []
    for (kind, name), operations in grouped.items():
        flags = " ".join(f"--operation {operation}" for operation in operations)
        resource = f"--{kind} {name}"
        if kind == "transactional-id":
            resource = f"--{kind} streampair- --resource-pattern-type prefixed"
        commands.append(
            f"kafka-acls.sh --bootstrap-server {settings.bootstrap_servers} --add --allow-principal "
            f"'User:{user}' {flags} {resource}"
        )
    text = "; ".join(f"{' and '.join(ops)} on {kind} {name!r}" for (kind, name), ops in grouped.items())
    return SourceError(f"this user lacks rights: {text}", fix="\n".join(commands), retriable=False)


def missing_topic(config: Config, key: str, name: str) -> SourceError:
    """Return the error for a missing topic, by its key in the configuration and its name."""
    topics = config.topics
    if key == "input.topic":
        partitions, why = topics.input_partitions, ""
        count = "" if partitions else "set topics.input_partitions and "
        fix = f"correct the name, or {count}add {FLAG}"
    else:
        partitions, why = topics.output_partitions, ", and the broker does not create topics automatically"
        fix = f"add {FLAG}"
    command = kafka.creation_command(config.require_kafka(), name, partitions)
    return SourceError(
        f"topic {name!r} ({key}) does not exist{why}",
        fix=f"{fix}, or create it yourself: {command}",
        retriable=False,
    )


def append_time_command(config: Config) -> str:
    """Return the command that makes the order of a whole topic a function of the topic (docs/privacy 8.4)."""
    name, servers = config.input.topic, config.require_kafka().bootstrap_servers
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --topic {name} "
        "--add-config message.timestamp.type=LogAppendTime"
    )


@dataclass(frozen=True)
class TopicFacts:
    """Facts about the input topic.

    Attributes
    ----------
    partitions
        Its number of partitions.
    payloads_change
        Whether records may be compacted away, so that a replay may read others.
    """

    partitions: int
    payloads_change: bool


async def check_topics(config: Config, *, create: bool) -> TopicFacts:
    """Refuse to start if a topic or a right is missing, before a broker creates topics automatically.

    Parameters
    ----------
    config
        With [kafka].
    create
        Create missing topics with the settings of [topics].

    Raises
    ------
    SourceError
        A topic or a right is missing, or no broker answers.
    """
    settings = config.require_kafka()
    topics = await kafka.describe_topics(settings)
    if create:
        creation = await create_missing(config, topics)
        for name, partitions in creation.made.items():
            log.info("topic_created", app=config.app, topic=name, partitions=partitions)
        for error in creation.errors.values():
            raise error
        topics |= creation.made
    if missing := await missing_rights(config):
        raise rights_error(config, missing)
    if config.input.topic not in topics:
        raise missing_topic(config, "input.topic", config.input.topic)
    compacted = await kafka.is_compacted(settings, config.input.topic)
    if compacted:
        log.warning(
            "topic_is_compacted",
            app=config.app,
            topic=config.input.topic,
            next_step="none for a learner that is not private: it saves its state with every commit, as "
            "with input.payloads_change = true. For a private one every crash is charged to the privacy "
            "budget: set cleanup.policy=delete, or set forks in learner.options",
        )
    for key, topic in output_topics(config).items():
        if topic not in topics and not await kafka.create_by_metadata_request(settings, topic):
            raise missing_topic(config, key, topic)
    return TopicFacts(topics[config.input.topic], bool(compacted))
