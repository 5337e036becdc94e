"""Online evaluation: rolling AUC, regret, and labels that come late.

Both are functions of raw data: for the operator's eyes, not for publication (docs/privacy 7).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streampair.evaluation.comparison import AUCDifference, delong
from streampair.evaluation.drift import FeatureDrift, FeatureMoved
from streampair.evaluation.expected import ExpectedQuality, QualityBeforeLabels, expected_auc
from streampair.evaluation.label_delay import delayed_labels, delayed_progressive_val_score
from streampair.evaluation.quality import AUCWindow, Quality, average_precision, quality_of
from streampair.evaluation.regret import Regret, RegretEstimate

if TYPE_CHECKING:
    from streampair.evaluation.rolling_auc import RollingAUC

__all__ = [
    "AUCDifference",
    "AUCWindow",
    "ExpectedQuality",
    "FeatureDrift",
    "FeatureMoved",
    "Quality",
    "QualityBeforeLabels",
    "Regret",
    "RegretEstimate",
    "RollingAUC",
    "average_precision",
    "delayed_labels",
    "delayed_progressive_val_score",
    "delong",
    "expected_auc",
    "quality_of",
]


def __getattr__(name: str) -> Any:
    # On first use: lanes do without River's metrics.
    if name == "RollingAUC":
        return importlib.import_module("streampair.evaluation.rolling_auc").RollingAUC
    raise AttributeError(f"module 'streampair.evaluation' has no attribute {name!r}")
