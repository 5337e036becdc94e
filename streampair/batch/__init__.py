"""Learners of a whole table at once, with scikit-learn's interface: the offline half of the papers.

Each but `PairSGD` is differentially private for the replacement of one record (`DPPMetricLearner`: of pairs
of individuals), releases through one door, and reports what it has spent (`privacy`). It needs scikit-learn:
``pip install '.[batch]'``.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "streampair.batch needs scikit-learn. Fix: pip install '.[batch]' in the clone."
    ) from error

from streampair.batch.descent import DPGDC, DPGDSC
from streampair.batch.epochs import DPEGD
from streampair.batch.history import OffPairC, OffPairStrC
from streampair.batch.localized import LocalizedPairSGD
from streampair.batch.noisy import DPGDC2
from streampair.batch.pairwise import DPPMetricLearner
from streampair.batch.perturbation import GradientPerturbation
from streampair.batch.relations import PairGraph
from streampair.batch.stochastic import PairSGD

__all__ = [
    "DPEGD",
    "DPGDC",
    "DPGDC2",
    "DPGDSC",
    "DPPMetricLearner",
    "GradientPerturbation",
    "LocalizedPairSGD",
    "OffPairC",
    "OffPairStrC",
    "PairGraph",
    "PairSGD",
]
