"""The configuration: read from a file, validated across its tables, watched for changes."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, PrivateAttr, ValidationError, field_validator, model_validator

from streampair.errors import ConfigError
from streampair_connectors.config.models import (
    CardConfig,
    InputConfig,
    KafkaConfig,
    Label,
    LabelsConfig,
    LearnerConfig,
    MetricsConfig,
    OutputConfig,
    RegretTable,
    ShadowConfig,
    StoreConfig,
    Table,
    TopicsConfig,
    WorkerConfig,
    duration_text,
)

__all__ = [
    "Changes",
    "Config",
    "load_config",
    "parse_config",
]

# The name of an application is also that of its group and files.
_LONG_SETTING = 100  # bytes; a longer value is shortened in messages
_APP = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class Config(Table):
    """The whole configuration. Build it with :func:`load_config` or :func:`parse_config`."""

    app: str
    kafka: KafkaConfig | None = None
    input: InputConfig
    labels: LabelsConfig | None = None
    output: OutputConfig = OutputConfig()
    topics: TopicsConfig = TopicsConfig()
    learner: LearnerConfig
    shadow: ShadowConfig | None = None
    store: StoreConfig = StoreConfig()
    metrics: MetricsConfig = MetricsConfig()
    card: CardConfig = CardConfig()
    regret: RegretTable = RegretTable()
    worker: WorkerConfig = WorkerConfig()
    _base: Path = PrivateAttr(default_factory=Path)
    _file: Path | None = PrivateAttr(default=None)
    _start: bytes | None = PrivateAttr(default=None)

    @field_validator("app")
    @classmethod
    def _app(cls, value: str) -> str:
        if not _APP.match(value):
            raise ValueError(
                f"{value!r} cannot name an application; use letters, digits, dot, dash and "
                "underscore, at most 100 of them, the first a letter or a digit"
            )
        return value

    @model_validator(mode="after")
    def _topics(self) -> Config:
        names = [self.input.topic, self.output_topic, self.dead_letter_topic, self.log_topic]
        names += [] if self.model_topic is None else [self.model_topic]
        kinds = "input, output, dead-letter, log and model topics"
        if self.labels is not None and self.late_labels_topic is not None:
            names += [self.labels.topic, self.late_labels_topic]
            kinds = "input, output, dead-letter, log, model, labels and late-labels topics"
        if len(set(names)) != len(names):
            raise ValueError(
                f"{kinds} are {names}: different names are needed, or events would be read again"
            )
        if self.output.model_topic is not None and not self.learner.whole_topic:
            raise ValueError(
                "output.model_topic needs one model for the whole topic; remove learner.scope, or the key"
            )
        if "learn" not in self.worker.roles and not self.learner.parallel:
            raise ValueError(
                'worker.roles = ["score"] leaves nothing to do: add learner.scoring = "parallel", or remove '
                "worker.roles"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _event_id(cls, data: Any) -> Any:
        """Default the id of an event to the field by which labels name it."""
        labels, declared = data.get("labels"), data.get("input")
        if isinstance(labels, Mapping) and isinstance(declared, Mapping) and "id" not in declared:
            field = labels.get("id")
            if isinstance(field, str) and field != "key":
                return {**data, "input": {**declared, "id": field}}
        return data

    @model_validator(mode="after")
    def _label_source(self) -> Config:
        labels, declared = self.labels, self.input
        if labels is None:
            if declared.label is None:
                raise ValueError(
                    "input.label is missing: name the field of the label; or, where labels come later on a "
                    "topic of their own, add [labels]"
                )
            return self
        if declared.label is not None:
            raise ValueError(
                "input.label and [labels] both say where labels are; remove input.label where they come later"
            )
        if not self.learner.whole_topic:
            raise ValueError(
                '[labels] needs one model for the whole topic; remove learner.scope = "partition"'
            )
        if self.shadow is not None and self.learner.parallel:
            raise ValueError(
                '[shadow] has no AUC where [labels] and scoring = "parallel" are set: its lane scores no '
                "events; remove [shadow], or learner.scoring"
            )
        field = labels.id_field
        if field is not None and declared.id != field:
            raise ValueError(f"input.id is {declared.id!r} and labels.id {field!r}: name the same field")
        if declared.labels == "any":
            raise ValueError(
                'input.labels = "any" with [labels]: labels that come later are of two classes, '
                "input.positive and input.negative. Remove it; or send the labels in the events, and remove "
                "[labels]"
            )
        for name, value in (("absent", labels.absent), ("value", labels.value)):
            if value is not None and value not in (declared.positive, declared.negative_label()):
                raise ValueError(
                    f"labels.{name} is {value!r}, and the labels are {declared.positive!r} and "
                    f"{declared.negative_label()!r}; name one of them"
                )
        return self

    @property
    def late_labels_topic(self) -> str | None:
        """The topic of labels that came too late, or for no event; None without [labels]."""
        if self.labels is None:
            return None
        return self.labels.late_topic or f"{self.app}-late-labels"

    @property
    def label_codes(self) -> tuple[Label | None, Label, Label, None] | None:
        """The labels by their code: of an event without one, low, high, and none: of an event without id."""
        if self.labels is None:
            return None
        return self.labels.absent, self.input.negative_label(), self.input.positive, None

    @property
    def privacy_notes(self) -> tuple[str, ...]:
        """Notes of the privacy report of a private learner: what holds of labels that come later."""
        labels = self.labels
        if labels is None:
            return ()
        place = "key" if isinstance(labels.id, str) else f"header {labels.id.header!r}"
        absent = "is a null record" if labels.absent is None else f"is learned with label {labels.absent!r}"
        return (
            f"Labels come later: an event is learned {duration_text(labels.wait)} after it came.",
            "Whether a label comes, when, and which one, is part of the content of its event's record: it is "
            f"protected as features are. An event without a label {absent}.",
            f"The id by which labels find events, in the {place} of both, is not protected, and must name "
            "one event: a label of an id that several events have is content of all of them, and the "
            "guarantee is that of one.",
        )

    @property
    def output_topic(self) -> str:
        """The topic of the scores."""
        return self.output.topic or f"{self.app}-scores"

    @property
    def dead_letter_topic(self) -> str:
        """The topic of the dead letters."""
        return self.output.dead_letter_topic or f"{self.app}-dead-letters"

    @property
    def model_topic(self) -> str | None:
        """The topic of the published models; None: none is published."""
        default = f"{self.app}-model" if self.learner.parallel else None
        return self.output.model_topic or default

    @property
    def scorers_group(self) -> str:
        """The consumer group of the workers that score with the published model."""
        return f"{self.app}.scorers"

    @property
    def commit_every_seconds(self) -> float:
        """Seconds between commits; the worker raises it where commits take long."""
        every = self.worker.commit_every_seconds
        if every is not None:
            return every
        # In Kafka, readers of committed records wait for the commit; on disk nobody does.
        return 0.1 if self.store.in_kafka else 1.0

    @property
    def log_topic(self) -> str:
        """The topic of the lanes' logs, with the state in Kafka."""
        return self.store.log_topic or f"{self.app}-{self.input.topic}-log"

    @property
    def state_directory(self) -> Path:
        """The store's directory, absolute."""
        return (self._base / self.store.directory).absolute()

    @property
    def audit_file(self) -> Path | None:
        """The file of the last audit, absolute."""
        file = self.metrics.audit_file
        return None if file is None else (self._base / file).absolute()

    @property
    def start_file(self) -> Path | None:
        """The model file that the learner begins with, absolute; None: it begins without one."""
        file = self.learner.start
        return None if file is None else (self._base / file).absolute()

    def start_content(self) -> bytes:
        """The content of `start_file`, which is read once.

        Raises
        ------
        ConfigError
            It cannot be read.
        """
        if self._start is None:
            file = self.start_file
            assert file is not None
            try:
                self._start = file.read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"learner.start: the model {file} cannot be read: {error.strerror}",
                    fix="check the path and its permissions. The file has to stay where it is: each start "
                    "checks that the log was begun with it",
                ) from None
        return self._start

    @property
    def file(self) -> Path | None:
        """The file that it was read from, absolute; None: it was not read from a file."""
        return self._file

    def require_kafka(self) -> KafkaConfig:
        """Return the [kafka] table.

        Raises
        ------
        ConfigError
            There is none.
        """
        if self.kafka is None:
            raise ConfigError(
                "the configuration has no [kafka] table",
                fix='add [kafka] with bootstrap_servers = "localhost:9092"',
            )
        return self.kafka

    def fingerprint(self) -> str:
        """Return a digest of the settings that give the model's numbers their meaning.

        A snapshot with another fingerprint is refused. Secrets, addresses, topics and batch sizes are not
        part of it. After a dot follows the digest of the model that the learner begins with, if there is one.

        Raises
        ------
        ConfigError
            The file that learner.start names cannot be read.
        """
        settings = _digest(msgspec.json.encode(self._meaning(), order="sorted"))
        return settings if self.learner.start is None else f"{settings}.{_digest(self.start_content())}"

    def model_settings(self) -> dict[str, str]:
        """Return the settings behind `fingerprint`, by their names in the file, as JSON.

        A long value is shortened, with a digest. In place of a model file there is its digest.

        Raises
        ------
        ConfigError
            The file that learner.start names cannot be read.
        """
        settings = {name: _short(value) for name, value in _leaves(self._meaning())}
        if self.learner.start is not None:
            settings["learner.start"] = f"a model with the digest {_digest(self.start_content())}"
        return settings

    def check_settings(self, what: str, fingerprint: object, settings: object) -> None:
        """Refuse what was made with other settings.

        Parameters
        ----------
        what
            What was made.
        fingerprint, settings
            Those that it was made with, as of `fingerprint` and `model_settings`.

        Raises
        ------
        ConfigError
            They are not those of this configuration; the message names what differs.
        """
        if fingerprint == self.fingerprint():
            return
        from streampair.engine.snapshot import setting_changes  # which compiles kernels

        before = settings if isinstance(settings, Mapping) else {}
        changes = setting_changes(before, self.model_settings()) if before else ""
        raise ConfigError(
            f"{what} was made with other settings of [learner] or [input]{changes and ': '}{changes}",
            fix="use the configuration that it was made with, in all workers and servers of the application",
        )

    def _meaning(self) -> dict[str, Any]:
        """The settings that give the model's numbers their meaning, as in the file."""
        learner, declared, labels = self.learner, self.input, self.labels
        meaning: dict[str, Any] = {
            "learner": learner.model_dump(
                mode="json", by_alias=True, include={"class_", "options", "steps", "trust_preprocessing"}
            ),
            "input": {
                "label": declared.label,
                "positive": declared.positive,
                "negative": declared.negative_label(),
                "labels": declared.labels,
                **declared.model_dump(mode="json", include={"features"}),
                # A replay under another limit would take other events for dead letters.
                "max_event_bytes": declared.max_event_bytes,
            },
        }
        if labels is not None:  # what labels stand for; how long they may take can be changed
            meaning["labels"] = {"absent": labels.absent, "order": labels.order}
        return meaning


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _leaves(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = path + key
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif name == "learner.steps":
            for number, step in enumerate(value):
                yield from _leaves(step, f"{name}[{number}].")
        else:
            yield name, value


def _short(value: Any) -> str:
    text = msgspec.json.encode(value, order="sorted")
    if len(text) <= _LONG_SETTING:
        return text.decode()
    return f"{text[:40].decode(errors='ignore')}... ({len(text):,} bytes, digest {_digest(text)[:16]})"


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and validate a configuration file.

    Parameters
    ----------
    path
        A TOML file. Relative paths inside it start at its directory.

    Raises
    ------
    ConfigError
        The file cannot be read, is not TOML, or is not a valid configuration. Every problem
        is named, with the nearest known key for an unknown one.
    """
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the configuration {file} cannot be read: {error.strerror}",
            fix="check the path and its permissions",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is not TOML: {error}", fix="correct that line") from None
    config = parse_config(data, base=file.absolute().parent, source=str(file))
    config._file = file.absolute()
    return config


def parse_config(
    data: Mapping[str, Any], *, base: Path | None = None, source: str = "configuration"
) -> Config:
    """Validate a configuration that is already parsed.

    Examples
    --------
    >>> config = parse_config({
    ...     "app": "fraud",
    ...     "input": {"topic": "payments", "label": "is_fraud", "features": ["amount", "age"]},
    ...     "learner": {"class": "streampair.auc.PairOGD"},
    ... })
    >>> config.dead_letter_topic
    'fraud-dead-letters'
    """
    try:
        config = Config.model_validate(dict(data))
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors(include_url=False, include_input=False)]
        problems = "; ".join(line for line, _ in lines)
        fixes = list(dict.fromkeys(fix for _, fix in lines if fix))
        raise ConfigError(
            f"{source}: {problems}", fix="; ".join(fixes) or "correct the keys named above"
        ) from None
    if base is not None:
        config._base = base
    return config


def _keys_at(location: Sequence[int | str]) -> list[str]:
    """Return the known keys of the table that has the last part of `location`."""
    model: type[BaseModel] = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        if field is None:
            return []
        found = next(
            (
                kind
                for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if isinstance(kind, type) and issubclass(kind, BaseModel)
            ),
            None,
        )
        if found is None:
            return []
        model = found
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(item: Any) -> tuple[str, str]:
    """Turn one pydantic error into a problem and a fix; the fix is empty if the problem implies it."""
    location = item["loc"]
    # A union adds the tried type to the location ("list[str]"), which does not help the reader.
    parts = [str(p) for p in location if isinstance(p, int) or re.fullmatch(r"[\w.-]+", str(p))]
    where = ".".join(parts) or "the configuration"
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _keys_at(location)
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        problem = f"unknown key {where}"
        if f"{location[-1]}_file" in known:
            key = location[-1]
            return f"{problem}: secrets do not belong here", f"name its place with {key}_file or {key}_env"
        if near:
            return problem, f"write {near[0]} instead of {location[-1]}"
        return problem, f"remove it; known keys here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing", f"add {where}"
    if kind == "value_error":
        return f"{where}: {item['ctx']['error']}", ""
    message = str(item["msg"])
    return f"{where}: {message[:1].lower()}{message[1:]}", ""


# Stands for all keys of a file that cannot be read.
_UNREADABLE = "the file"


class Changes:
    """Compares a configuration with its file, which is read again when it has changed.

    Parameters
    ----------
    config
        The running configuration; without a file it never changes.

    Attributes
    ----------
    keys
        Names of the keys that differed at the last `look`, never their values; a placeholder if the file is
        gone or invalid.
    refused
        Why these changes would make the next start be refused; empty: they would not.

    Examples
    --------
    >>> from streampair_connectors.config import parse_config
    >>> config = parse_config({"app": "fraud", "input": {"topic": "t", "label": "y", "features": ["a"]},
    ...                        "learner": {"class": "streampair.auc.PairOGD"}})
    >>> Changes(config).look()
    0
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runs = config.model_dump(mode="json", by_alias=True)
        self._seen: tuple[int, int, int] | None = self._stamp()
        self.keys: tuple[str, ...] = ()
        self.refused = ""

    def look(self) -> int:
        """Read the file if it has changed, and return how many keys differ."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._compare()
        return len(self.keys)

    def as_dict(self) -> dict[str, Any] | None:
        """Return the current changes as plain values; None without a file."""
        if self._config.file is None:
            return None
        self.look()
        return {"keys": list(self.keys), "refused": self.refused}

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._config.file is not None:
            with contextlib.suppress(OSError):
                found = self._config.file.stat()
                return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    def _compare(self) -> None:
        assert self._config.file is not None
        try:
            other = load_config(self._config.file)
            same = other.app != self._config.app or other.fingerprint() == self._config.fingerprint()
        except ConfigError:  # its message may quote the file, and is shown at the next start only
            self.keys, self.refused = (_UNREADABLE,), "it is no configuration, or cannot be read"
            return
        self.keys = tuple(sorted(_differing(self._runs, other.model_dump(mode="json", by_alias=True))))
        self.refused = "" if same else "its learner or its input are others, under the same app name"


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in a.keys() | b.keys():
        ours, theirs = a.get(name), b.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _differing(ours, theirs, f"{path}{name}.")
        elif ours != theirs:
            yield f"{path}{name}"
