"""Learners of a whole table at once, with scikit-learn's interface: the offline half of the papers.

Each but `PairSGD` is differentially private for the replacement of one record (`DPPMetricLearner`: of pairs
of individuals), releases through one gate, and reports what it has spent (`privacy`). It needs scikit-learn:
``pip install '.[offline]'``.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "streampair.offline needs scikit-learn. Fix: pip install '.[offline]' in the clone."
    ) from error

from streampair.offline.dpegd import DPEGD
from streampair.offline.dpgd import DPGDC, DPGDSC
from streampair.offline.dpp_metric import DPPMetricLearner
from streampair.offline.gradient_perturbation import DPGDC2
from streampair.offline.localized_sgd import LocalizedPairSGD
from streampair.offline.off_pair import OffPairC, OffPairStrC
from streampair.offline.output_perturbation import GradientPerturbation
from streampair.offline.pair_graph import PairGraph
from streampair.offline.pair_sgd import PairSGD

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
