"""Learners that maximise the area under the ROC curve (AUC)."""

from streampair.auc.forest import Forest, MulticlassForest
from streampair.auc.linear import OAM, SPAUC, PairMoments, PairOGD
from streampair.auc.private import OnPairC, OnPairStrC, PairFTRL
from streampair.auc.private_forest import PrivateForest

__all__ = ["Forest", "MulticlassForest", "OAM", "OnPairC", "OnPairStrC",  # noqa: RUF022
           "PairFTRL", "PairMoments", "PairOGD", "PrivateForest", "SPAUC"]  # fmt: skip
