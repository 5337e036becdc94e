"""The configuration: one TOML file, validated as a whole before anything starts.

The environment and the command line can set single keys (`config.overrides`). Unknown keys are refused with
the nearest known one. Secrets come from the environment or from files, never from the configuration itself,
and never show in a `repr`, a log line, an error or a metric.
"""

from streampair_connectors.config.addresses import Address
from streampair_connectors.config.durations import Duration, duration_text
from streampair_connectors.config.loader import Changes, load_config
from streampair_connectors.config.models import (
    APPROVAL,
    CardConfig,
    Config,
    InputConfig,
    KafkaConfig,
    Label,
    LabelInputConfig,
    LearnerConfig,
    MetricsConfig,
    OutputConfig,
    SchemaRegistryConfig,
    StepConfig,
    StoreConfig,
    TopicsConfig,
    WorkerConfig,
    parse_config,
)

__all__ = [
    "APPROVAL",
    "Address",
    "CardConfig",
    "Changes",
    "Config",
    "Duration",
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
    "TopicsConfig",
    "WorkerConfig",
    "duration_text",
    "load_config",
    "parse_config",
]
