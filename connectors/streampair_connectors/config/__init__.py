"""The configuration: one TOML file, validated as a whole before anything starts.

Unknown keys are refused with the nearest known one. Secrets come from the environment or
from files, never from the configuration itself, and never show in a `repr`, a log line, an
error or a metric.
"""

from streampair_connectors.config.changes import Changes
from streampair_connectors.config.tables import (
    CardConfig,
    InputConfig,
    KafkaConfig,
    Label,
    LearnerConfig,
    MetricsConfig,
    OutputConfig,
    RegretTable,
    ShadowConfig,
    StepConfig,
    StoreConfig,
    TopicsConfig,
    WorkerConfig,
)
from streampair_connectors.config.whole import Config, load_config, parse_config

__all__ = [
    "CardConfig",
    "Changes",
    "Config",
    "InputConfig",
    "KafkaConfig",
    "Label",
    "LearnerConfig",
    "MetricsConfig",
    "OutputConfig",
    "RegretTable",
    "ShadowConfig",
    "StepConfig",
    "StoreConfig",
    "TopicsConfig",
    "WorkerConfig",
    "load_config",
    "parse_config",
]
