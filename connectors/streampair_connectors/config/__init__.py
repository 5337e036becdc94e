"""The configuration: one TOML file, validated as a whole before anything starts.

The environment and the command line can set single keys (`config.overrides`). Unknown keys are refused with
the nearest known one. Secrets come from the environment or from files, never from the configuration itself,
and never show in a `repr`, a log line, an error or a metric.
"""

from streampair_connectors.config.loader import Changes, load_config
from streampair_connectors.config.models import (
    CardConfig,
    Config,
    InputConfig,
    KafkaConfig,
    Label,
    LabelsConfig,
    LearnerConfig,
    MetricsConfig,
    OutputConfig,
    RegretTable,
    SchemaRegistryConfig,
    StepConfig,
    StoreConfig,
    TopicsConfig,
    WorkerConfig,
    duration_text,
    parse_config,
    parse_duration,
)

__all__ = [
    "CardConfig",
    "Changes",
    "Config",
    "InputConfig",
    "KafkaConfig",
    "Label",
    "LabelsConfig",
    "LearnerConfig",
    "MetricsConfig",
    "OutputConfig",
    "RegretTable",
    "SchemaRegistryConfig",
    "StepConfig",
    "StoreConfig",
    "TopicsConfig",
    "WorkerConfig",
    "duration_text",
    "load_config",
    "parse_config",
    "parse_duration",
]
