"""How well a learner does, online: the AUC of its latest scores, and its regret.

Both are functions of raw data: for the operator's eyes, not for publication (docs/privacy.md 7).
"""

from streampair.evaluation.estimate import RegretEstimate
from streampair.evaluation.regret import PairRegret
from streampair.evaluation.rolling_auc import RollingAUC

__all__ = ["PairRegret", "RegretEstimate", "RollingAUC"]
