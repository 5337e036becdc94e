"""The configuration: one TOML file, validated as a whole before anything starts.

Unknown keys are refused with the nearest known one. Secrets come from the environment or
from files, never from the configuration itself, and never show in a `repr`, a log line, an
error or a metric.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from streampair.errors import ConfigError

__all__ = [
    "Config",
    "InputConfig",
    "KafkaConfig",
    "LearnerConfig",
    "MetricsConfig",
    "OutputConfig",
    "RegretConfig",
    "StepConfig",
    "StoreConfig",
    "WorkerConfig",
    "load_config",
    "parse_config",
]

# What Kafka accepts as a topic name; an application's name is a group and a file name too.
_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")
_APP = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")

Label = bool | int | str
Range = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_secret(what: str, file: Path | None, env: str | None) -> SecretStr | None:
    """Read a secret from the file or the environment variable that the configuration names.

    Raises
    ------
    ConfigError
        Both are named, the file cannot be read, or the value is empty. The message names the
        place, never the value.
    """
    if file is not None and env is not None:
        raise ConfigError(
            f"{what}_file and {what}_env are both set", fix="keep the one that holds the secret"
        )
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(
                f"the {what} file {file} cannot be read: {reason}",
                fix="check the path and its permissions",
            ) from None
        place = f"file {file}"
    elif env is not None:
        text = os.environ.get(env, "").strip()
        place = f"environment variable {env}"
    else:
        return None
    if not text:
        raise ConfigError(f"the {what} is empty: nothing in {place}", fix=f"put the {what} into {place}")
    return SecretStr(text)


class KafkaConfig(_Model):
    """How to reach the cluster. The password comes from a file or the environment."""

    bootstrap_servers: str
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password_file: Path | None = None
    password_env: str | None = None
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    connect_timeout_seconds: Annotated[float, Field(gt=0)] = 15.0
    session_timeout_seconds: Annotated[float, Field(ge=1)] = 10.0

    @field_validator("password_file", "ssl_cafile", "ssl_certfile", "ssl_keyfile", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) else value

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        for server in value.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port; write localhost:9092")
        return value

    @model_validator(mode="after")
    def _sasl(self) -> KafkaConfig:
        if self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism is None or self.username is None:
                raise ValueError(
                    f"{self.security_protocol} needs sasl_mechanism, username and "
                    "password_file or password_env"
                )
            if self.password_file is None and self.password_env is None:
                raise ValueError("SASL needs password_file or password_env")
        return self

    def password(self) -> SecretStr | None:
        """Return the password, read now; None when none is declared."""
        return read_secret("password", self.password_file, self.password_env)


class InputConfig(_Model):
    """The input topic and what its events look like."""

    topic: str = "events"
    label: str
    # "two": only the labels positive and negative count. "any": every number, text or boolean, as the learner
    # takes it: a relevance for ranking, or any number of classes for a metric.
    labels: Literal["two", "any"] = "two"
    features: list[str] | dict[str, Range] | None = None
    positive: Label = True
    negative: Label | None = None
    id: str | None = None
    max_event_bytes: Annotated[int, Field(ge=64, le=100_000_000)] = 524_288
    # Whether a record already in the topic may be another one later (log compaction, erasure): what a private
    # lane releases after a crash is then always charged as new.
    payloads_change: bool = False

    @field_validator("topic")
    @classmethod
    def _topic(cls, value: str) -> str:
        return _check_topic(value)

    @field_validator("features")
    @classmethod
    def _features(
        cls, value: list[str] | dict[str, list[float]] | None
    ) -> list[str] | dict[str, list[float]] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("no feature is named; name at least one, or leave the key out")
        if isinstance(value, list) and len(set(value)) != len(value):
            twice = next(name for name in value if value.count(name) > 1)
            raise ValueError(f"feature {twice!r} is named twice; name it once")
        if isinstance(value, dict):
            for name, (low, high) in value.items():
                if not low < high:
                    raise ValueError(
                        f"bounds of feature {name!r} are [{low}, {high}]; the first must be smaller"
                    )
        return value

    @model_validator(mode="after")
    def _labels(self) -> InputConfig:
        if self.labels == "two" and self.negative is None and not isinstance(self.positive, bool):
            raise ValueError(
                f"positive is {self.positive!r}, so the other label must be named: "
                'add negative = ... (all other labels go to the dead letters), or labels = "any"'
            )
        if self.negative is not None and self.negative == self.positive:
            raise ValueError("positive and negative are the same label")
        taken = {self.label: "label"}
        if self.id is not None:
            if self.id in taken:
                raise ValueError(f"id and label are the same field {self.id!r}")
            taken[self.id] = "id"
        for name in self.feature_names() or ():
            if name in taken:
                raise ValueError(f"feature {name!r} is also the {taken[name]}; take it out of features")
        return self

    def feature_names(self) -> list[str] | None:
        """Return the declared names, in order; None when events declare their own."""
        return None if self.features is None else list(self.features)

    def bounds(self) -> dict[str, tuple[float, float]] | None:
        """Return the declared public bounds; None when only names are declared."""
        if isinstance(self.features, dict):
            return {name: (low, high) for name, (low, high) in self.features.items()}
        return None

    def negative_label(self) -> Label:
        """Return the label that ranks low."""
        return (not self.positive) if self.negative is None else self.negative


class OutputConfig(_Model):
    """Where scores and dead letters go."""

    topic: str | None = None
    dead_letter_topic: str | None = None
    max_message_bytes: Annotated[int, Field(ge=1024)] = 1_048_588  # the default of Kafka's brokers

    @field_validator("topic", "dead_letter_topic")
    @classmethod
    def _topic(cls, value: str | None) -> str | None:
        return None if value is None else _check_topic(value)


class StepConfig(_Model):
    """One estimator: an import path and its constructor's arguments."""

    class_: Annotated[str, Field(alias="class")]
    options: dict[str, Any] = {}


class LearnerConfig(_Model):
    """The model: one estimator, or the steps of a pipeline."""

    class_: Annotated[str | None, Field(alias="class")] = None
    options: dict[str, Any] = {}
    steps: list[StepConfig] = []
    name: str | None = None
    noise_key_file: Path | None = None
    noise_key_env: str | None = None
    trust_preprocessing: bool = False
    allow_pickle: bool = False
    signing_key_file: Path | None = None
    signing_key_env: str | None = None

    @field_validator("noise_key_file", "signing_key_file", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_of(self) -> LearnerConfig:
        if (self.class_ is None) == (not self.steps):
            raise ValueError(
                'name one estimator with class = "..." or a pipeline with [[learner.steps]], not both'
            )
        if self.steps and self.options:
            raise ValueError("options belong to a step: move them under its [[learner.steps]]")
        for options in (self.options, *(step.options for step in self.steps)):
            if "noise_key" in options:
                raise ValueError(
                    "noise_key is a secret: put it in a file and name it as learner.noise_key_file"
                )
        return self

    def label(self) -> str:
        """Return the name in metrics and on the output topic."""
        if self.name is not None:
            return self.name
        path = self.class_ if self.class_ is not None else self.steps[-1].class_
        return path.rpartition(".")[2]

    def noise_key(self) -> bytes | None:
        """Return the declared noise key (hexadecimal in its file); None: the store draws and keeps one."""
        secret = read_secret("noise_key", self.noise_key_file, self.noise_key_env)
        return None if secret is None else _hex_key("noise_key", secret)

    def signing_key(self) -> bytes | None:
        """Return the key that signs pickled steps (hexadecimal in its file); None without."""
        secret = read_secret("signing_key", self.signing_key_file, self.signing_key_env)
        return None if secret is None else _hex_key("signing_key", secret)


class StoreConfig(_Model):
    """Where the snapshots lie. A relative path starts at the configuration file."""

    directory: Path = Path("state")

    @field_validator("directory", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) else value


class MetricsConfig(_Model):
    """Addresses of the metrics. Port 0 takes a free one, which the log names."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9464
    public_port: Annotated[int | None, Field(ge=0, le=65535)] = None

    @model_validator(mode="after")
    def _ports(self) -> MetricsConfig:
        if self.port and self.port == self.public_port:
            raise ValueError("port and public_port are the same")
        return self


class RegretConfig(_Model):
    """The online estimate of regret. Loss and radius default to the learner's own."""

    enabled: bool = True
    loss: Literal["hinge", "logistic"] | None = None
    radius: Annotated[float | None, Field(gt=0)] = None
    pairs: Annotated[int, Field(ge=16)] = 1024
    exact: Annotated[int, Field(ge=2)] = 64


class WorkerConfig(_Model):
    """Batches, commits and what to do with bad events."""

    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    commit_every_events: Annotated[int, Field(ge=1)] = 10_000
    commit_every_seconds: Annotated[float, Field(gt=0)] = 1.0
    on_bad: Literal["dlq", "skip", "fail"] = "dlq"
    # "auto": on, except for a private learner, whose guarantee forbids to stop because of content.
    breaker: Literal["auto", "on", "off"] = "auto"
    breaker_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    breaker_window: Annotated[int, Field(ge=1)] = 1000
    stop_timeout_seconds: Annotated[float, Field(gt=0)] = 25.0
    auc_window: Annotated[int, Field(ge=2)] = 1000


class Config(_Model):
    """A whole configuration. Build it with :func:`load_config` or :func:`parse_config`."""

    app: str
    kafka: KafkaConfig | None = None
    input: InputConfig
    output: OutputConfig = OutputConfig()
    learner: LearnerConfig
    store: StoreConfig = StoreConfig()
    metrics: MetricsConfig = MetricsConfig()
    regret: RegretConfig = RegretConfig()
    worker: WorkerConfig = WorkerConfig()
    _base: Path = PrivateAttr(default_factory=Path)

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
        names = [self.input.topic, self.output_topic, self.dead_letter_topic]
        if len(set(names)) != 3:
            raise ValueError(
                f"input, output and dead-letter topics are {names}: "
                "three different names are needed, or events would be read again"
            )
        return self

    @property
    def output_topic(self) -> str:
        """The topic of the scores."""
        return self.output.topic or f"{self.app}-scores"

    @property
    def dead_letter_topic(self) -> str:
        """The topic of the events that could not be used."""
        return self.output.dead_letter_topic or f"{self.app}-dead-letters"

    @property
    def state_directory(self) -> Path:
        """The store's directory, absolute."""
        return (self._base / self.store.directory).absolute()

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
        """Return a digest of what the model's meaning depends on.

        A snapshot taken under another fingerprint is refused: the same numbers would mean
        something else. Secrets, addresses, topics and batch sizes are not part of it.
        """
        meaning = {
            "learner": self.learner.model_dump(
                mode="json", include={"class_", "options", "steps", "trust_preprocessing"}
            ),
            "label": self.input.label,
            "positive": self.input.positive,
            "negative": self.input.negative_label(),
            **({"labels": "any"} if self.input.labels == "any" else {}),
            "features": self.input.model_dump(mode="json", include={"features"}),
        }
        data = msgspec.json.encode(meaning, order="sorted")
        return hashlib.blake2b(data, digest_size=16).hexdigest()


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
    return parse_config(data, base=file.absolute().parent, source=str(file))


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


def _check_topic(value: str) -> str:
    if not _TOPIC.match(value) or value in {".", ".."}:
        raise ValueError(f"{value!r} is not a topic name; use letters, digits, dot, dash and underscore")
    return value


def _hex_key(what: str, secret: SecretStr) -> bytes:
    try:
        key = bytes.fromhex(secret.get_secret_value())
    except ValueError:
        key = b""
    if len(key) < 32:
        raise ConfigError(
            f"the {what} is not 64 or more hexadecimal digits",
            fix="make one with: openssl rand -hex 32",
        )
    return key


def _keys_at(location: Sequence[int | str]) -> list[str]:
    """Return the known keys of the table that holds the last part of `location`."""
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
    """Turn one pydantic error into a problem and a fix (empty: the problem says it)."""
    location = item["loc"]
    # A union adds the tried type to the location ("list[str]"): of no use to the reader.
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
            return f"{problem}, did you mean {near[0]}?", f"write {near[0]} instead of {location[-1]}"
        return problem, f"remove it; known keys here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing", f"add {where}"
    if kind == "value_error":
        return f"{where}: {item['ctx']['error']}", ""
    message = str(item["msg"])
    return f"{where}: {message[:1].lower()}{message[1:]}", ""
