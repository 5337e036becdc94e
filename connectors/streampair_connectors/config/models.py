"""A configuration and its tables, one class each: keys, defaults, and checks of what was parsed.

Checks that involve two tables are in `Config`.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    SecretStr,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streampair.engine.lane_id import LaneId
from streampair.errors import ConfigError, RecordError
from streampair.records.features import Categories, TwoLabels
from streampair.records.features import label as meaning_of
from streampair_connectors.config.addresses import Address
from streampair_connectors.config.durations import Duration, at_least, duration_text
from streampair_connectors.config.secrets import hex_key, read_secret, sub_key
from streampair_connectors.config.toml_lines import toml_line, toml_value

__all__ = [
    "CardConfig",
    "Config",
    "InputConfig",
    "KafkaConfig",
    "Label",
    "LabelInputConfig",
    "LearnerConfig",
    "MetricsConfig",
    "OutputConfig",
    "SchemaRegistryConfig",
    "StepConfig",
    "StoreConfig",
    "Table",
    "TopicsConfig",
    "WorkerConfig",
    "keys_of",
    "parse_config",
    "table_at",
]

# What Kafka accepts as a topic name.
_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")


def _checked_label(value: object) -> bool | int | float | str:
    """A number without a fraction is an integer: 1.0 and 1 are one label, and one configuration."""
    if not isinstance(value, bool | int | float | str):
        raise ValueError("a label is true, false, a number, or a text in quotes")
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        raise ValueError("NaN and infinity are no labels")
    return int(value) if value.is_integer() else value


def _as_path(value: object, info: ValidationInfo) -> object:
    """A relative path starts at the directory of the configuration file, which is the context."""
    base = info.context or Path()
    return (base / value).absolute() if isinstance(value, str | Path) else value


def _as_secret(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str | Path | SecretStr):
        raise ValueError("that is no text; name the file that holds the secret")
    return _as_path(value, info)


def _checked_day(value: object) -> object:
    if type(value) is not date:
        raise ValueError("that is no day; write it without quotes, as 2026-12-31")
    return value


Day = Annotated[date, BeforeValidator(_checked_day)]
FilePath = Annotated[Path, BeforeValidator(_as_path)]
# A file with a secret; or the secret itself, which only a variable of the environment gives.
Secret = Annotated[Path | SecretStr, BeforeValidator(_as_secret)]
Label = Annotated[bool | int | float | str, BeforeValidator(_checked_label)]
Range = Annotated[list[float], Field(min_length=2, max_length=2)]


def _how_declared(value: object) -> str:
    if isinstance(value, list) and (not value or any(isinstance(item, str) for item in value)):
        return "(values)"
    return "(bounds)"


# A declared field: its bounds, or all of its text values. The tag selects the error message.
Declared = Annotated[
    Annotated[Range, Tag("(bounds)")] | Annotated[list[str], Tag("(values)")], Discriminator(_how_declared)
]


class Table(BaseModel):
    """A table of the file: unknown keys are refused, values are not converted, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class KafkaConfig(Table):
    """Connection to the cluster."""

    bootstrap_servers: str
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    username: str | None = None
    password_file: Secret | None = None
    ssl_cafile: FilePath | None = None
    ssl_certfile: FilePath | None = None
    ssl_keyfile: FilePath | None = None
    connect_timeout: Annotated[Duration, at_least("1ms")] = Duration.of("15s")
    session_timeout: Annotated[Duration, at_least("1s")] = Duration.of("10s")
    # How long the worker may process a poll before the group considers it stuck.
    max_poll_interval: Annotated[Duration, at_least("1s")] = Duration.of("10m")
    # Static membership: the unique name of this worker in the group.
    group_instance_id: str | None = None
    # Tokens for OAUTHBEARER: a file that is kept fresh; or a token endpoint with the credentials of a client;
    # or the region of a cluster of Amazon MSK.
    oauth_token_file: FilePath | None = None
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret_file: Secret | None = None
    oauth_scope: str | None = None
    oauth_msk_region: Annotated[str, Field(pattern="^[a-z]{2}(-[a-z]+)+-[0-9]+$")] | None = None

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        for server in value.split(","):
            host, _, port = server.strip().rpartition(":")
            if "@" in server:
                raise ValueError("a server has a name or password in it; use username and password_file")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port; write localhost:9092")
        return value

    @model_validator(mode="after")
    def _sasl(self) -> KafkaConfig:
        keys = ("oauth_token_file", "oauth_token_url", "oauth_msk_region")
        sources = [key for key in keys if getattr(self, key) is not None]
        oauth = self.security_protocol.startswith("SASL") and self.sasl_mechanism == "OAUTHBEARER"
        if sources and not oauth:
            raise ValueError(
                f'{sources[0]} needs a security_protocol with SASL and sasl_mechanism = "OAUTHBEARER"'
            )
        if oauth:
            self._check_oauth(sources)
        elif self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism is None or self.username is None:
                raise ValueError(f"{self.security_protocol} needs sasl_mechanism, username and password_file")
            if self.password_file is None:
                raise ValueError("SASL needs password_file, or STREAMPAIR_KAFKA__PASSWORD in the environment")
        return self

    def _check_oauth(self, sources: Sequence[str]) -> None:
        if len(sources) != 1:
            raise ValueError(
                "OAUTHBEARER needs one of oauth_token_file, oauth_token_url and oauth_msk_region"
                + (f", not {' and '.join(sources)}" if sources else "")
            )
        if self.oauth_token_url is not None:
            if self.oauth_client_id is None or self.oauth_client_secret_file is None:
                raise ValueError("oauth_token_url needs oauth_client_id and oauth_client_secret_file")
            found = urlsplit(self.oauth_token_url)
            local = found.hostname in ("localhost", "127.0.0.1", "::1")
            if not found.hostname or not (found.scheme == "https" or (found.scheme == "http" and local)):
                raise ValueError(
                    "oauth_token_url must begin with https://, since the secret of the client is sent to it"
                )
            if found.username is not None or found.password is not None:
                raise ValueError(
                    "oauth_token_url must not hold a password; name it as oauth_client_secret_file"
                )

    @field_validator("group_instance_id")
    @classmethod
    def _instance(cls, value: str | None) -> str | None:
        return None if value is None else _check_instance(value)

    def password(self) -> SecretStr | None:
        """Return the password, read now; None when none is declared."""
        return read_secret("password", self.password_file)

    def oauth_client_secret(self) -> SecretStr | None:
        """Return the secret of the OAuth client, read now; None when none is declared."""
        return read_secret("oauth_client_secret", self.oauth_client_secret_file)


class SchemaRegistryConfig(Table):
    """A schema registry with Confluent's REST API."""

    url: str
    username: str | None = None
    password_file: Secret | None = None

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urllib.parse.urlsplit(value)
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL has a name or password in it; use username and password_file")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("this is not the URL of a registry; write https://host:8081")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _login(self) -> SchemaRegistryConfig:
        if (self.password_file is None) != (self.username is None):
            raise ValueError("username and password_file belong together; set both or none")
        return self

    def password(self) -> SecretStr | None:
        """Return the password, read now; None when none is declared."""
        return read_secret("password", self.password_file)


class InputConfig(Table):
    """The input topic and the fields of its events."""

    topic: str = "events"
    # None: labels come later, on a topic of their own: [label_input].
    label: str | None = None
    # Whether a third label is an error or one more class: neither its value nor a learner of River says it.
    # "binary": only the labels positive and negative are valid. "any": numbers, texts or booleans, such as
    # relevances for ranking, or any number of classes for a metric.
    label_type: Literal["binary", "any"] = "binary"
    features: list[str] | dict[str, Declared] | None = None
    positive: Label = True
    negative: Label | None = None
    id: str | None = None
    # In files, where neither events nor labels have a timestamp of Kafka: the column of both that stands for
    # it. It is no feature.
    time: str | None = None
    max_event_bytes: Annotated[int, Field(ge=64, le=100_000_000)] = 524_288
    format: Literal["json", "avro", "json-schema", "csv"] = "json"
    # How a field is written, if not as a number: a number as text, or a time, of which parts are features. Of
    # the column `time`: the unit of numbers in it.
    fields: dict[str, Literal["number", "iso-8601", "epoch-s", "epoch-ms", "epoch-us"]] = {}
    # "debezium": events are changes of a table, and the fields are those of the row after the change.
    envelope: Literal["debezium"] | None = None
    # The names of the cells of a CSV event, in order.
    columns: list[str] | None = None
    # The Avro schema of events without an id. None: the id in each event names a schema of the registry.
    schema_file: FilePath | None = None
    # Whether records in the topic may change later (log compaction, erasure): releases of a private lane
    # after a crash are then always charged as new.
    payloads_change: bool = False

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        return _check_topic(value)

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (not value or len(set(value)) != len(value)):
            raise ValueError("name each column once, and at least one")
        return value

    @model_validator(mode="after")
    def _format(self) -> InputConfig:
        if (self.format == "csv") != (self.columns is not None):
            raise ValueError(
                'format = "csv" needs columns, the names of the cells in order; no other format has them'
            )
        if self.envelope is not None and self.format == "csv":
            raise ValueError("a line of CSV has no envelope; remove envelope, or correct format")
        if self.schema_file is not None and self.format != "avro":
            raise ValueError('schema_file is the schema of events in Avro; remove it, or set format = "avro"')
        if self.columns is None:
            return self
        fields = *self.source_names(), self.label, self.id
        missing = next((name for name in fields if name is not None and name not in self.columns), None)
        if missing is not None:
            raise ValueError(f"{missing!r} is none of input.columns; add it where its cell is")
        return self

    @model_validator(mode="after")
    def _fields(self) -> InputConfig:
        names = self.field_names() or []
        parts = self.time_parts()
        read = {*names, *(time for time, _ in parts.values())}
        for name, kind in self.fields.items():
            if kind != "number" and name in names:
                raise ValueError(f"{name!r} is a time; name parts of it as features, such as '{name}.hour'")
            if name not in read and (kind == "number" or name != self.time):
                what = "name it" if kind == "number" else f"name parts of it, such as '{name}.hour',"
                raise ValueError(f"no feature reads input.fields.{name}; {what} in input.features")
        for name in names:
            time, _, part = name.rpartition(".")
            if self.fields.get(time, "number") != "number" and part not in TIME_PARTS:
                raise ValueError(f"{name!r} is no part of a time; the parts are {', '.join(TIME_PARTS)}")
        return self

    @field_validator("features", mode="before")
    @classmethod
    def _one_kind(cls, value: object) -> object:
        for name, item in value.items() if isinstance(value, dict) else ():
            if isinstance(item, list) and len({isinstance(part, str) for part in item}) == 2:
                raise ValueError(
                    f"feature {name!r} is declared by texts and others; give [low, high] for a number, or "
                    "all the texts that it can be"
                )
        return value

    @field_validator("features")
    @classmethod
    def _features(
        cls, value: list[str] | dict[str, list[float] | list[str]] | None
    ) -> list[str] | dict[str, list[float] | list[str]] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("no feature is named; name at least one, or leave the key out")
        if isinstance(value, list) and len(set(value)) != len(value):
            twice = next(name for name in value if value.count(name) > 1)
            raise ValueError(f"feature {twice!r} is named twice; name it once")
        if isinstance(value, dict):
            categories = _categories(value)
            for name, (low, high) in _ranges(value).items():
                if not low < high:
                    raise ValueError(
                        f"bounds of feature {name!r} are [{low}, {high}]; the first must be smaller"
                    )
            columns = [] if categories is None else categories.columns
            both = next((name for name in columns if name in value), None)
            if both is not None:
                raise ValueError(f"{both!r} is a feature, and the column of a declared value; rename one")
        return value

    @model_validator(mode="after")
    def _labels(self) -> InputConfig:
        try:
            negative = self.negative_label()
        except ConfigError as error:
            raise ValueError(f"{error.problem}; {error.fix}") from None
        if self.label_type == "binary" and negative is None:
            raise ValueError(
                f"positive is {self.positive!r}, so the other label must be named: "
                'add negative = ... (all other labels go to the dead letters), or label_type = "any"'
            )
        taken = {} if self.label is None else {self.label: "label"}
        for name, what in ((self.id, "id"), (self.time, "time")):
            if name is not None:
                if name in taken:
                    raise ValueError(f"{what} and {taken[name]} are the same field {name!r}")
                taken[name] = what
        for name in self.field_names() or ():
            if name in taken:
                raise ValueError(f"feature {name!r} is also the {taken[name]}; take it out of features")
        return self

    def field_names(self) -> list[str] | None:
        """Return the declared fields of an event, in order; None when events declare their own."""
        return None if self.features is None else list(self.features)

    def time_parts(self) -> dict[str, tuple[str, str]]:
        """Return the features that are parts of a time: for each the field of the time, and the part."""
        found = {}
        for name in self.field_names() or ():
            time, _, part = name.rpartition(".")
            if part in TIME_PARTS and self.fields.get(time, "number") != "number":
                found[name] = (time, part)
        return found

    def source_names(self) -> list[str]:
        """Return the declared fields as they are in an event: a time in place of its parts."""
        parts = self.time_parts()
        names = self.field_names() or ()
        return list(dict.fromkeys(parts[name][0] if name in parts else name for name in names))

    def feature_names(self) -> list[str] | None:
        """Return the features that the learner gets, in order; None when events declare their own.

        They are the numeric fields, then a column for each declared value of the others.
        """
        categories = self.categories()
        if categories is None:
            return self.field_names()
        numeric = (name for name in self.field_names() or () if name not in categories.places)
        return [*numeric, *categories.columns]

    def bounds(self) -> dict[str, tuple[float, float]] | None:
        """Return the public bounds of the features; None when only names are declared."""
        if not isinstance(self.features, dict):
            return None
        categories = _categories(self.features)
        columns = {} if categories is None else dict.fromkeys(categories.columns, (0.0, 1.0))
        return _ranges(self.features) | columns

    def categories(self) -> Categories | None:
        """Return the fields whose values are declared; None when there are none."""
        return _categories(self.features) if isinstance(self.features, dict) else None

    def without_categories(self) -> InputConfig:
        """Return the input with the numeric fields only; perhaps none."""
        ranges = _ranges(self.features) if isinstance(self.features, dict) else {}
        return self.model_copy(update={"features": {name: list(pair) for name, pair in ranges.items()}})

    @property
    def label_field(self) -> str:
        """The field of the label. Where labels come later it is the empty name, which no event has."""
        return self.label or ""

    def two_labels(self) -> TwoLabels:
        """Return the two labels, by which a label of an event is compared."""
        return TwoLabels(self.positive, self.negative)

    def negative_label(self) -> Label | None:
        """Return the label that ranks low; None: it is not named, and labels are of several classes."""
        if self.negative is None and isinstance(self.positive, bool):
            return not self.positive
        negative: Label | None = self.two_labels().negative
        return negative


#: Parts of a time, in UTC: 0 to 23, 0 (Monday) to 6, 1 to 31, 1 to 12.
TIME_PARTS = ("hour", "weekday", "day", "month")


class HeaderConfig(Table):
    """A header of a message."""

    header: Annotated[str, Field(min_length=1)]


def _how_named(value: object) -> str:
    return "(header)" if isinstance(value, HeaderConfig | Mapping) else "(text)"


class LabelInputConfig(Table):
    """Labels that come later than their events, on a topic of their own."""

    topic: str
    # Where both topics have the id of the event: a field, "key", or a header.
    id: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[HeaderConfig, Tag("(header)")], Discriminator(_how_named)
    ]
    # The field of the label in a message of the topic. None: every message says that the label is positive.
    label: str | None = None
    format: Literal["json", "avro", "json-schema"] = "json"
    # As of the input.
    envelope: Literal["debezium"] | None = None
    # How long after its event a label may come.
    after: Annotated[Duration, at_least("1ms")]
    # The label of an event for which none has come by then. None: such an event is not learned.
    absent: Label | None = None
    # The label of an event that was stopped, so that its outcome will never be known: it is not learned, and
    # in no figure of quality. None: there is none.
    stopped: Label | None = None
    # How long after its timestamp a label may arrive on its topic.
    lateness: Duration = Duration.of("1m")
    # "wait": events are learned in their order, once each label has had its time. "arrival": an event is
    # learned when its label comes; not for private learners.
    order: Literal["wait", "arrival"] = "wait"
    # Without any label for so long, no event is learned as `absent`. None: no limit.
    quiet: Annotated[Duration, at_least("1ms")] | None = None
    # Labels of events in time are kept in memory. A private learner keeps them on disk beyond it.
    max_labels: Annotated[int, Field(ge=1)] = 20_000_000

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        return _check_topic(value)

    @model_validator(mode="after")
    def _one_label(self) -> LabelInputConfig:
        if self.label is None and self.absent is None:
            raise ValueError(
                'name the field of the label with label = "..."; or, where every message says that the label '
                "is positive, say with absent = ... what an event without one is"
            )
        if self.label is None and self.stopped is not None:
            raise ValueError('stopped is a value of the field of the label: name that with label = "..."')
        if self.id_field is not None and self.id_field.startswith("$"):
            raise ValueError('id is "key" or { header = "..." } where it is not a field')
        if self.id_field is not None and self.id_field == self.label:
            raise ValueError(f"id and label are the same field {self.label!r}")
        if self.quiet is not None and self.absent is None:
            raise ValueError("quiet holds back events without a label, which are learned with absent only")
        return self

    @property
    def id_field(self) -> str | None:
        """The field of the id; None: it is the key of the message, or in a header."""
        return self.id if isinstance(self.id, str) and self.id != "key" else None

    @property
    def wait(self) -> Duration:
        """The time from the timestamp of an event until it is due."""
        return Duration(self.after + self.lateness)

    @property
    def alert_quiet(self) -> int:
        """Milliseconds without any label after which they count as stopped, for the alert."""
        return max(self.after // 10, 3_600_000) if self.quiet is None else self.quiet


class OutputConfig(Table):
    """Topics and headers of scores, dead letters and models."""

    topic: str | None = None
    # Of the scores. "avro": in Confluent's wire format, with a schema that the worker registers.
    format: Literal["json", "avro"] = "json"
    dead_letter_topic: str | None = None
    # Scores of at least this also go to the topic APP-alerts; the recall that is measured is theirs.
    alert_above: float | None = None
    # Share of the events with such a score whose score message says `explore`: the service that would stop
    # them is asked to let them pass, so that their outcomes become known. None: all may be stopped.
    explore: Annotated[float, Field(gt=0, lt=1)] | None = None
    # The secret of the coins: the same in all workers of the application.
    explore_key_file: Secret | None = None
    # How many of the largest contributions each score has. 0: none.
    explain: Annotated[int, Field(ge=0, le=100)] = 0
    # Of one partition, with the newest models. Default: APP-model with scoring = "parallel", else none.
    model_topic: str | None = None
    max_message_bytes: Annotated[int, Field(ge=1024)] = 1_048_588  # the default of Kafka's brokers
    # Headers copied from an event to its score; only these, since readers of scores may not read the input.
    headers: list[str] = ["traceparent", "tracestate"]

    @field_validator("topic", "dead_letter_topic", "model_topic")
    @classmethod
    def _topic(cls, value: str | None) -> str | None:
        return None if value is None else _check_topic(value)

    @model_validator(mode="after")
    def _explored(self) -> OutputConfig:
        if self.explore is not None and self.explore_key_file is None:
            raise ValueError(
                'explore needs explore_key_file = "explore.key", the file with the secret of its coins; make '
                "it with: streampair key --output explore.key"
            )
        if self.explore is None and self.explore_key_file is not None:
            raise ValueError(
                "explore_key_file needs explore, the share of events that is to be let pass, as in "
                "explore = 0.02; or remove explore_key_file"
            )
        if self.explore is not None and self.alert_above is None:
            raise ValueError(
                "explore is a share of the events with a score of at least alert_above, which is missing: "
                "set it to the score from which on events are stopped"
            )
        return self

    def explore_key(self) -> bytes | None:
        """Return the secret of the coins, read now; None when none is declared."""
        secret = read_secret("explore_key", self.explore_key_file)
        return None if secret is None else hex_key("explore_key", secret)

    def with_explore_key(self) -> OutputConfig:
        """Return these settings with the secret of the coins, read now, in the place of its file."""
        secret = read_secret("explore_key", self.explore_key_file)
        return self.model_copy(update={"explore_key_file": secret})


class TopicsConfig(Table):
    """Settings of topics made by `--create-topics`. Existing topics stay as they are.

    Without `input_partitions` the input topic is never made: a misspelt name would get a topic. It gets
    LogAppendTime. The outputs get as many partitions as the input. The replication factor defaults to the
    cluster's.
    """

    input_partitions: Annotated[int | None, Field(ge=1, le=100_000)] = None
    replication_factor: Annotated[int | None, Field(ge=1, le=32_767)] = None


class StepConfig(Table):
    """One estimator: an import path and its constructor's arguments."""

    class_: Annotated[str, Field(alias="class")]
    options: dict[str, Any] = {}


class LearnerConfig(Table):
    """The model: one estimator, or the steps of a pipeline."""

    class_: Annotated[str | None, Field(alias="class")] = None
    options: dict[str, Any] = {}
    steps: list[StepConfig] = []
    # "inline": the learner scores each event before it learns it. "parallel": every worker scores a share of
    # the partitions with the newest model in the model topic.
    scoring: Literal["inline", "parallel"] = "inline"
    # The model file that a new lane begins with.
    start: FilePath | None = None
    # For a private learner: no record that it protects had a part in that model.
    public_start: bool = False
    # The secret of the noise. It never changes: a restart has to draw the same noise again.
    noise_key_file: Secret | None = None
    trust_preprocessing: bool = False
    allow_pickle: bool = False
    # Import paths of classes that are neither streampair's nor River's: their code runs in the worker.
    allow_classes: list[str] = []

    @model_validator(mode="after")
    def _one_of(self) -> LearnerConfig:
        if (self.class_ is None) == (not self.steps):
            raise ValueError(
                'name one estimator with class = "..." or a pipeline with [[learner.steps]], not both'
            )
        if self.steps and self.options:
            raise ValueError("options belong to a step: move them under its [[learner.steps]]")
        if self.public_start and self.start is None:
            raise ValueError("public_start says something of the model in start, which is missing")
        for options in (self.options, *(step.options for step in self.steps)):
            if "noise_key" in options:
                raise ValueError(
                    "noise_key is a secret: put it in a file and name it as learner.noise_key_file"
                )
        return self

    @property
    def parallel(self) -> bool:
        """Whether workers score with the newest published model."""
        return self.scoring == "parallel"

    def label(self) -> str:
        """Return the name in metrics and on the output topic: that of the class."""
        path = self.class_ if self.class_ is not None else self.steps[-1].class_
        return path.rpartition(".")[2]

    def noise_key(self) -> bytes | None:
        """Return the declared noise key (hexadecimal in its file); None: the store generates one."""
        secret = read_secret("noise_key", self.noise_key_file)
        return None if secret is None else hex_key("noise_key", secret)


class StoreConfig(Table):
    """The store of logs and snapshots: Kafka, or a directory of this machine."""

    # None: in Kafka. A relative path starts at the configuration file.
    directory: FilePath | None = None
    # Hexadecimal keys, one a line: the first seals and signs what is written, all of them read.
    key_file: Secret | None = None
    log_topic: str | None = None
    # Brokers take at most transaction.max.timeout.ms, 15 minutes by default.
    transaction_timeout: Annotated[Duration, at_least("5s")] = Duration.of("1m")

    @field_validator("log_topic")
    @classmethod
    def _topic(cls, value: str | None) -> str | None:
        return None if value is None else _check_topic(value)

    @property
    def in_kafka(self) -> bool:
        """Whether the state is stored in Kafka."""
        return self.directory is None

    def sealing_keys(self) -> list[bytes]:
        """Return the keys that encrypt the state in Kafka, the current one first; empty without any."""
        return self._keys_for("sealing")

    def signing_keys(self) -> list[bytes]:
        """Return the keys that sign snapshots, the current one first; empty without any."""
        return self._keys_for("signing")

    def _keys_for(self, purpose: str) -> list[bytes]:
        secret = read_secret("key", self.key_file)
        lines = [] if secret is None else secret.get_secret_value().split()
        return [sub_key(hex_key("key", SecretStr(line)), purpose) for line in lines]


class MetricsConfig(Table):
    """Addresses of the endpoints. Port 0 takes a free one, which the log names."""

    # The operator's, with functions of raw data.
    address: Address = Address("127.0.0.1", 9464)
    # The one for others, which has nothing that is a function of raw data. None: there is none.
    public_address: Address | None = None
    # How long `run` serves metrics after a failure, so that its cause can be scraped.
    linger: Duration = Duration(0)
    audit_file: FilePath | None = None

    @model_validator(mode="after")
    def _own_ports(self) -> MetricsConfig:
        public = self.public_address
        if public is not None and self.address.port and self.address.port == public.port:
            raise ValueError(
                f"address and public_address have the same port, {public.port}; give each its own"
            )
        return self


#: The keys of an approval.
APPROVAL = ("approved_by", "approved_on", "approved_epsilon", "approved_delta", "reason", "review_by")


class CardConfig(Table):
    """Entries of the privacy card that the accountant does not know."""

    curator: str | None = None
    intended_use: str | None = None
    # Who has approved which epsilon and delta, when, why, and until when that holds: all of them, or none.
    approved_by: Annotated[str, Field(min_length=1)] | None = None
    approved_on: Day | None = None
    approved_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    approved_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    reason: Annotated[str, Field(min_length=1)] | None = None
    review_by: Day | None = None

    @model_validator(mode="after")
    def _approval(self) -> CardConfig:
        missing = [name for name in APPROVAL if getattr(self, name) is None]
        if 0 < len(missing) < len(APPROVAL):
            raise ValueError(f"an approval is not complete without {' and '.join(missing)}")
        if self.approved_on and self.review_by and self.review_by <= self.approved_on:
            raise ValueError(
                f"review_by, {self.review_by}, must be a day after approved_on, {self.approved_on}"
            )
        return self

    @property
    def approved(self) -> str | None:
        """What has been approved, in words; None: nothing."""
        if self.approved_epsilon is None:
            return None
        return f"epsilon {self.approved_epsilon:g} at delta {self.approved_delta:g}"


class WorkerConfig(Table):
    """Batches, commits and the handling of bad events."""

    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    commit_every_events: Annotated[int, Field(ge=1)] = 10_000
    # Default: 50ms with the state in Kafka, 1s on disk. The worker raises it where commits take long.
    commit_every: Annotated[Duration, at_least("1ms")] | None = None
    on_bad: Literal["dlq", "skip", "fail"] = "dlq"
    # With few positives the AUC of a thousand events is that of a handful of pairs.
    auc_window: Annotated[int, Field(ge=2)] = 1000
    # Should span whole seasons of the features. Another number begins a new reference.
    drift_reference: Annotated[int, Field(ge=1000, le=10**12)] = 10_000
    # With scoring = "parallel": what this worker does. Without "score" it learns, or stands by to learn.
    roles: Annotated[list[Literal["learn", "score"]], Field(min_length=1)] = ["learn", "score"]


def _ranges(features: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the numeric fields, with their bounds."""
    return {name: (item[0], item[1]) for name, item in features.items() if not isinstance(item[0], str)}


def _categories(features: dict[str, Any]) -> Categories | None:
    values = {name: item for name, item in features.items() if not item or isinstance(item[0], str)}
    try:
        return Categories(values, read=lambda value: value) if values else None
    except ConfigError as error:
        raise ValueError(f"{error.problem}; {error.fix}") from None


def _check_instance(value: str) -> str:
    # Kafka has the same rule for ids as for topic names.
    if not _TOPIC.match(value) or value in {".", ".."}:
        raise ValueError(
            f"{value!r} is not a group instance id; use letters, digits, dot, dash and underscore"
        )
    return value


def _check_topic(value: str) -> str:
    if not _TOPIC.match(value) or value in {".", ".."}:
        raise ValueError(f"{value!r} is not a topic name; use letters, digits, dot, dash and underscore")
    return value


_LONG_SETTING = 100  # bytes; a longer value is shortened in messages

# The name of an application is also that of its group and files.
_APP = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class Config(Table):
    """The whole configuration. Build it with :func:`load_config` or :func:`parse_config`."""

    app: str
    kafka: KafkaConfig | None = None
    input: InputConfig
    label_input: LabelInputConfig | None = None
    schema_registry: SchemaRegistryConfig | None = None
    output: OutputConfig = OutputConfig()
    topics: TopicsConfig = TopicsConfig()
    learner: LearnerConfig
    store: StoreConfig = StoreConfig()
    metrics: MetricsConfig = MetricsConfig()
    card: CardConfig = CardConfig()
    worker: WorkerConfig = WorkerConfig()
    _base: Path = PrivateAttr(default_factory=Path)
    _file: Path | None = PrivateAttr(default=None)
    _overrides: tuple[str, ...] = PrivateAttr(default=())
    _places: dict[str, str] = PrivateAttr(default_factory=dict)
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
        names = {
            "events": self.input.topic,
            "scores": self.output_topic,
            "dead letters": self.dead_letter_topic,
            "the log": self.log_topic,
            "models": self.model_topic,
            "alerts": self.alert_topic,
            "labels": None if self.label_input is None else self.label_input.topic,
            "late labels": self.late_labels_topic,
        }
        found: dict[str, str] = {}
        for kind, name in names.items():
            if name is not None and found.setdefault(name, kind) != kind:
                raise ValueError(
                    f"{name!r} is the topic of {found[name]} and of {kind}: different names are needed, or "
                    "what is written there would be read again"
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
        labels, declared = data.get("label_input"), data.get("input")
        if isinstance(labels, Mapping) and isinstance(declared, Mapping) and "id" not in declared:
            field = labels.get("id")
            if isinstance(field, str) and field != "key":
                return {**data, "input": {**declared, "id": field}}
        return data

    @model_validator(mode="after")
    def _two_keys(self) -> Config:
        keys = {
            "learner.noise_key_file": self.learner.noise_key_file,
            "store.key_file": self.store.key_file,
            "output.explore_key_file": self.output.explore_key_file,
        }
        for (name, key), (other, same) in itertools.combinations(keys.items(), 2):
            if key is not None and key == same:
                raise ValueError(
                    f"{name} and {other} are the same key: each has its own readers, and who only scores "
                    "must not be able to compute the noise; draw another one with: streampair key --output "
                    "FILE"
                )
        return self

    @model_validator(mode="after")
    def _explores(self) -> Config:
        labels = self.label_input
        if self.output.explore is not None and (labels is None or labels.stopped is None):
            raise ValueError(
                "output.explore needs label_input.stopped, the label that says that an event was stopped: "
                'add [label_input], with the topic on which labels come, and stopped = "declined". Without '
                "it events that were stopped would be learned as if their outcome were known"
            )
        return self

    @model_validator(mode="after")
    def _id_place(self) -> Config:
        if (
            self.label_input is not None
            and self.label_input.id_field is not None
            and self.input.format == "csv"
        ):
            raise ValueError(
                "label_input.id is a field, and events are CSV: their ids are in the key or in a header; set "
                'label_input.id = "key", or label_input.id = {header = "..."}'
            )
        return self

    @model_validator(mode="after")
    def _registry(self) -> Config:
        events = self.input.format == "avro" and self.input.schema_file is None
        needed = ["input.format"] if events else []
        if self.label_input is not None and self.label_input.format == "avro":
            needed.append("label_input.format")
        if self.output.format == "avro":
            needed.append("output.format")
        if needed and self.schema_registry is None:
            raise ValueError(
                f'{needed[0]} = "avro" needs the schemas: add [schema_registry]'
                + ("; or, for events without the id of a schema, input.schema_file" if events else "")
            )
        if self.schema_registry is not None and not needed:
            raise ValueError(
                '[schema_registry] is not used: set input.format = "avro" without input.schema_file, '
                'label_input.format = "avro" or output.format = "avro"; or remove it'
            )
        return self

    @model_validator(mode="after")
    def _label_source(self) -> Config:
        labels, declared = self.label_input, self.input
        if labels is None:
            if declared.label is None:
                raise ValueError(
                    "input.label is missing: name the field of the label; or, where labels come later on a "
                    "topic of their own, add [label_input]"
                )
            return self
        if declared.label is not None:
            raise ValueError(
                "input.label and [label_input] both say where labels are; remove input.label where they come "
                "later"
            )
        field = labels.id_field
        if field is not None and declared.id != field:
            raise ValueError(f"input.id is {declared.id!r} and label_input.id {field!r}: name the same field")
        if declared.label_type == "any":
            raise ValueError(
                'input.label_type = "any" with [label_input]: labels that come later are of two classes, '
                "input.positive and input.negative. Remove it; or send the labels in the events, and remove "
                "[label_input]"
            )
        try:
            self._absent_label()
        except RecordError:
            raise ValueError(
                f"label_input.absent is {toml_value(labels.absent)}, and the labels are "
                f"{self._two_labels()}; name one of them"
            ) from None
        self._check_stopped(labels.stopped)
        return self

    def _check_stopped(self, stopped: Label | None) -> None:
        """Refuse a label of stopped events that stands for something else."""
        if stopped is None:
            return
        meaning, two = meaning_of(stopped), self.input.two_labels()
        if meaning in (two.high, two.low):
            raise ValueError(
                f"label_input.stopped is {toml_value(stopped)}, and the labels of events whose outcome is "
                f'known are {self._two_labels()}; give a third one, such as "declined"'
            )
        if meaning == "" or meaning != meaning:
            raise ValueError(
                f"label_input.stopped is {toml_value(stopped)}, which is no label; give a text, such as "
                '"declined"'
            )

    def _two_labels(self) -> str:
        """Return both labels, for messages, as they are written in the file."""
        return f"{toml_value(self.input.positive)} and {toml_value(self.input.negative_label())}"

    def _absent_label(self) -> Label | None:
        """The label of an event for which none has come, as [input] names it; None: it has none."""
        absent = None if self.label_input is None else self.label_input.absent
        return None if absent is None else self.input.two_labels().declared(absent)

    @property
    def late_labels_topic(self) -> str | None:
        """The topic of labels that came too late, or for no event; None without [label_input]."""
        return None if self.label_input is None else f"{self.app}-late-labels"

    @property
    def label_codes(self) -> tuple[Label | None, Label | None, Label, None, None] | None:
        """The labels by their code: without one, low, high, and none: without id, and of a stopped event."""
        if self.label_input is None:
            return None
        return self._absent_label(), self.input.negative_label(), self.input.positive, None, None

    @property
    def privacy_notes(self) -> tuple[str, ...]:
        """Notes of the privacy report of a private learner: what holds of labels that come later."""
        labels = self.label_input
        if labels is None:
            return ()
        place = "key" if isinstance(labels.id, str) else f"header {labels.id.header!r}"
        absent = "is a null record" if labels.absent is None else f"is learned with label {labels.absent!r}"
        if labels.stopped is not None:
            absent += f", one with the label {labels.stopped!r} is a null record"
        explored: tuple[str, ...] = ()
        if self.output.explore is not None:
            explored = (
                f"Of the events whose score is at least {self.output.alert_above:g}, a share of "
                f"{self.output.explore:g} is marked to be let pass. The coin is a function of a secret and "
                "of the place of the event. It depends on no record, so it reveals nothing beyond the score. "
                "The learner learns all outcomes alike.",
            )
        return (
            *explored,
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
    def alert_topic(self) -> str | None:
        """The topic of high scores; None: there are no alerts."""
        return None if self.output.alert_above is None else f"{self.app}-alerts"

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
    def commit_every(self) -> Duration:
        """The time between commits; the worker raises it where commits take long."""
        if self.worker.commit_every is not None:
            return self.worker.commit_every
        # In Kafka, readers of committed records wait for the commit; on disk nobody does.
        return Duration.of("50ms" if self.store.in_kafka else "1s")

    @property
    def log_topic(self) -> str:
        """The topic of the lanes' logs, with the state in Kafka."""
        return self.store.log_topic or f"{self.app}-{self.input.topic}-log"

    @property
    def lane_id(self) -> LaneId:
        """Identity of the lane: the application on the topic of its input."""
        return LaneId(self.app, self.input.topic)

    @property
    def lane_name(self) -> str:
        """The lane's name in a directory.

        Names of applications and topics contain dots, dashes and underscores, but no `@`.
        """
        return f"{self.app}@{self.input.topic}-all"

    @property
    def state_directory(self) -> Path:
        """The store's directory, absolute."""
        return self.store.directory or (self._base / "state").absolute()

    def start_content(self) -> bytes:
        """The content of the file that learner.start names, which is read once.

        Raises
        ------
        ConfigError
            It cannot be read.
        """
        if self._start is None:
            file = self.learner.start
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

    @property
    def history_account(self) -> Path:
        """The account of attempts at a table, as `streampair backfill` names it without --account."""
        return (self._file or self._base / "CONFIG").with_name(f"{self.app}-history.account.json")

    @property
    def overrides(self) -> tuple[str, ...]:
        """What the command line set, each as KEY=VALUE."""
        return self._overrides

    @property
    def places(self) -> Mapping[str, str]:
        """Where each key is from that is not from the file: the variable, or the option."""
        return self._places

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
        learner, declared, labels = self.learner, self.input, self.label_input
        meaning: dict[str, Any] = {
            "learner": learner.model_dump(
                mode="json", by_alias=True, include={"class_", "options", "steps", "trust_preprocessing"}
            ),
            "input": {
                "label": declared.label,
                "positive": declared.positive,
                "negative": declared.negative_label(),
                "label_type": declared.label_type,
                **declared.model_dump(mode="json", include={"features"}),
                # A replay under another limit would take other events for dead letters.
                "max_event_bytes": declared.max_event_bytes,
            },
        }
        if declared.format != "json":
            meaning["input"] |= declared.model_dump(mode="json", include={"format", "columns"})
        if declared.envelope is not None:
            meaning["input"]["envelope"] = declared.envelope
        # Without the unit of `input.time`, which only files have, unless a feature reads that field.
        parts = {time for time, _ in declared.time_parts().values()}
        fields = {
            name: kind for name, kind in declared.fields.items() if name != declared.time or name in parts
        }
        if fields:
            meaning["input"]["fields"] = fields
        if labels is not None:  # what labels stand for; how long they may take can be changed
            meaning["label_input"] = {"absent": labels.absent, "order": labels.order}
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


def parse_config(
    data: Mapping[str, Any],
    *,
    base: Path | None = None,
    source: str = "configuration",
    places: Mapping[str, str] | None = None,
) -> Config:
    """Validate a configuration that is already parsed.

    Parameters
    ----------
    data
        The tables.
    base
        The directory where relative paths start.
    source
        Where the tables are from, for messages.
    places
        Where single keys are from that are not from there, by their names with dots.

    Raises
    ------
    ConfigError
        It is no valid configuration. Every problem is named.

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
        config = Config.model_validate(dict(data), context=base)
    except ValidationError as error:
        found = error.errors(include_url=False)
        lines = [_explain(item, places or {}) for item in found]
        problems = "; ".join(line for line, _ in lines)
        fixes = list(dict.fromkeys(fix for _, fix in lines if fix))
        raise ConfigError(
            f"{source}: {problems}", fix="; ".join(fixes) or "correct the keys named above"
        ) from None
    if base is not None:
        config._base = base
    return config


def table_at(path: Iterable[int | str]) -> type[BaseModel] | None:
    """Return the table at a path of keys and of places in lists; None: there is none, or one of free keys."""
    model: type[BaseModel] = Config
    for part in path:
        if isinstance(part, int):
            continue
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = None if field is None else _table_in(field.annotation)
        if inner is None:
            return None
        model = inner
    return model


def _table_in(annotation: Any) -> type[BaseModel] | None:
    kinds = [getattr(kind, "__origin__", kind) for kind in getattr(annotation, "__args__", [annotation])]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def keys_of(table: type[BaseModel]) -> list[str]:
    """Return the names of the keys of a table, as in the file."""
    return [field.alias or name for name, field in table.model_fields.items()]


def _explain(item: Any, places: Mapping[str, str]) -> tuple[str, str]:
    """Turn one pydantic error into a problem and a fix; the fix is empty if the problem implies it."""
    # A union adds the tried type to the location ("list[str]"), which does not help the reader.
    location = [p for p in item["loc"] if isinstance(p, int) or re.fullmatch(r"[\w.-]+", p)]
    parts = [str(p) for p in location]
    where = ".".join(parts)
    kind = item["type"]
    for name, place in places.items():
        if f"{where}.".startswith(f"{name}.") or (kind == "extra_forbidden" and name.startswith(f"{where}.")):
            where += f" (from {place})"
            break
    if kind == "extra_forbidden":
        table = table_at(location[:-1])
        known = [] if table is None else keys_of(table)
        name = str(location[-1])
        near = [
            *difflib.get_close_matches(name, known, n=2),
            *difflib.get_close_matches(name, known, n=1, cutoff=0.5),
        ]
        problem = f"unknown key {where}"
        if f"{location[-1]}_file" in known:
            key = location[-1]
            variable = "__".join(["STREAMPAIR", *parts]).upper().replace("__", "_", 1)
            return (
                f"{problem}: secrets do not belong here",
                f"name its file with {key}_file, or set the environment variable {variable}",
            )
        if tables := _tables_with(name):
            return problem, f"move it to the table in which it is a key: {' or '.join(tables)}"
        if near:
            return problem, f"write {' or '.join(dict.fromkeys(near))} instead of {location[-1]}"
        return problem, f"remove it; known keys here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing", f"add {where}"
    prefix = f"{where}: " if where else ""
    if kind == "value_error":
        return f"{prefix}{item['ctx']['error']}", ""
    message = str(item["msg"])
    value = item["input"]  # never a secret: errors of these are the value errors above
    if not isinstance(value, bool | int | float | str):
        return f"{prefix}{message[:1].lower()}{message[1:]}", ""
    number = _number_meant(kind, value)
    fix = "" if number is None else f"write {toml_line(str(location[-1]), number)}"
    return f"{prefix}{message[:1].lower()}{message[1:]}, and is {toml_value(value)}", fix


def _tables_with(key: str) -> list[str]:
    """Return the tables of the file that have a key of this name."""
    tables = ((name, table_at([name])) for name in keys_of(Config))
    return [f"[{name}]" for name, table in tables if table is not None and key in keys_of(table)]


def _number_meant(kind: str, value: object) -> int | float | None:
    """Return the number that a value of another type stands for; None: there is none, or it is not plain.

    Examples
    --------
    >>> _number_meant("float_type", "5%"), _number_meant("int_type", 1e4), _number_meant("int_type", "many")
    (0.05, 10000, None)
    """
    if kind not in ("int_type", "float_type") or isinstance(value, bool):
        return None
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    if kind == "float_type":
        return number if math.isfinite(number) else None
    return int(number) if number.is_integer() else None
