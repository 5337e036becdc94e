"""Learners that maximise the area under the ROC curve: rank positives above negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampair import buffers, losses
from streampair._auc_private import NoisyOGD, OnPairC, OnPairStrC, PairFTRL
from streampair._families import AUCLearner
from streampair._ogd import LinearOGD
from streampair._online_auc import OAM, SPAUC
from streampair.kernels import ogd_proba

__all__ = [  # noqa: RUF022 (plain sorting, as everywhere)
    "NoisyOGD",
    "OAM",
    "OnPairC",
    "OnPairStrC",
    "PairFTRL",
    "PairOGD",
    "SPAUC",
]


class PairOGD(LinearOGD, AUCLearner):
    """Online gradient descent on pairs; not private.

    A record is paired with each record in the buffer; the gradient of the pair loss, averaged over the pairs
    (over the records that are actually in the buffer), makes one step, which is projected on the ball of the
    given radius. Records of equal labels have no gradient. The margin of a pair is ``(y - y') w.(x - x')``
    with labels +1 and -1. With ``FIFO(1)`` this is Algorithm 2 of Yang et al. (2021), with ``Reservoir`` the
    online learner of Kar et al. (2013).

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far: the best constant in the
        regret bound of online gradient descent on this ball, without knowing the gradients' size.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12. It bounds the margins;
        the ranking hardly depends on it while features are of order 1.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes, ``sum_j eta_j w_{j-2} / sum_j eta_j``
        (Algorithm 2 of Yang et al.), rather than the last iterate.
    positive
        The label that ranks high; every other label is negative.
    seed
        Seed of the reservoir's coins; None takes one from the operating system. FIFO has no coins.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError. It bounds the
        memory on streams whose names never end.

    Notes
    -----
    Features are real numbers by name, in any order. A known feature that is missing counts as 0; a new name
    gets a new column. Text, None, NaN, infinity, numbers beyond 1e50 and empty records raise `RecordError`
    before anything has changed. Time and memory of a step are O(d size); with `buffers.FullHistory` they grow
    with the records, unless the loss is `losses.Square`.

    `predict_proba_one` is the sigmoid of the score. A pairwise loss learns no intercept, so it ranks records
    and is not a calibrated probability.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Streeter, M. and McMahan, H. B. (2010). Less regret via online conditioning. arXiv:1002.4862. (The
    self-tuned step size.)

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streampair import auc
    >>> model = auc.PairOGD()
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.ROCAUC())  # doctest: +ELLIPSIS
    ROCAUC: 9...%
    """

    def __init__(
        self,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        learning_rate: float | None = None,
        radius: float = 1.0,
        l2: float = 0.0,
        average: bool = True,
        positive: Any = True,
        seed: int | None = None,
        max_features: int = 10_000,
    ) -> None:
        self.loss = loss
        self.buffer = buffer
        self.learning_rate = learning_rate
        self.radius = radius
        self.l2 = l2
        self.average = average
        self.positive = positive
        self.seed = seed
        self.max_features = max_features

        self._init_labels(positive)
        self._init_ogd()

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{False: 1 - p, True: p}`` with p the sigmoid of the score (see `PairOGD`).

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        try:
            if type(x) is not dict or len(x) != self._expected:
                raise KeyError
            self._pack(*self._take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            self._pack_slowly(x, grow=False)
        p = ogd_proba(self._state)
        if p != p:
            raise self._unusable(x)
        return {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}
