"""Regret by what labels are: a relevance, or a class of a metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.labelled import LabelledRegret
from streampair.evaluation.pairs import Linear, Pairs, Quadratic
from streampair.evaluation.rows import Records
from streampair.evaluation.sampler import Drawn, Scorer

__all__ = ["MetricRegret", "RelevanceRegret"]

Array = NDArray[np.float64]

#: A matrix of more has so many entries that to look for the best one would hold a lane up for many seconds.
MOST_FEATURES = 64


class RelevanceRegret(LabelledRegret):
    """Online estimate of the regret of a learner that ranks by a relevance.

    The margin of a pair is ``(y - y') (s - s')`` in its relevances and scores; with a loss of errors
    (`losses.MinimumErrorEntropy`) its argument is ``(y - y') - (s - s')``, and pairs of equal relevance count
    as well. That loss is not convex: the comparator is then a good one, not provably the best.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Radius of the ball of comparators.
    label
        From a label to the relevance as the learner takes it, NaN for one that cannot be used: its
        `label_number`.
    pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> from streampair.evaluation import RelevanceRegret
    >>> rng = random.Random(0)
    >>> model = ranking.PairOGD(seed=1)
    >>> regret = RelevanceRegret(model.pair_loss, model.comparator_radius, label=model.label_number)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     y = 0.7 * x["stars"] - 0.5 * x["price"]
    ...     regret.observe(x, y, model.score_one(x), model.score_one)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.total > 0.0
    (1000, False, True)
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        label: Callable[[Any], float] = float,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(loss, radius, pairs=pairs, exact=exact, seed=seed)
        self._label = label
        self._of_errors = bool(getattr(self.loss, "of_errors", False))

    def label(self, y: Any) -> float:
        """The relevance."""
        return float(self._label(y))

    def paired(self, label: Any, others: Any) -> Any:
        """Pairs of equal relevance have margin 0 under all weights."""
        return label == label if self._of_errors else label != others

    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """By the scores."""
        apart, scores = label - np.array(labels), score - np.array([by(other) for other in others])
        return apart - scores if self._of_errors else apart * scores

    def pairs_of(self, own: Array, partner: Array, labels: Array, others: Array) -> Pairs:
        """Linear in the weights."""
        apart = np.nan_to_num(labels - others)  # pairs without labels have no weight
        if self._of_errors:
            return Linear(partner - own, apart)
        return Linear(apart[:, None] * (own - partner))


class MetricRegret(LabelledRegret):
    """Online estimate of the regret of a learner of a metric: the pair loss of a Mahalanobis matrix.

    The margin of a pair is ``s (1 - u'Wu)`` with the difference u of the two records as the learner sees them
    and s = 1 for two records of one class, else -1. Comparators are the symmetric matrices, or the positive
    semi-definite ones, of at most this Frobenius norm. With a record of more than 64 features the estimation
    ends, and `unusable` says why.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Largest Frobenius norm of a comparator.
    quadratic
        From a record and several others to ``u'Wu`` of each pair: the learner's `quadratic_many`.
    label
        From a label to the number of its class, NaN for one that cannot be used: its `label_number`.
    psd
        Whether comparators have to be positive semi-definite.
    pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> from streampair.evaluation import MetricRegret
    >>> model = metric.PairOGD(seed=1)
    >>> regret = MetricRegret(model.pair_loss, model.comparator_radius, quadratic=model.quadratic_many,
    ...                       label=model.label_number, psd=model.psd)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)
    """

    def __init__(
        self,
        loss: Any = None,
        radius: float = 1.0,
        *,
        quadratic: Callable[[Any, Sequence[Any]], Array],
        label: Callable[[Any], float] = float,
        psd: bool = True,
        pairs: int = 1024,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(loss, radius, pairs=pairs, exact=exact, seed=seed)
        self._quadratic, self._label, self._psd = quadratic, label, psd

    def observe(self, x: Any, y: Any, score: float = 0.0, scorer: Scorer = float) -> None:
        """As in the base; a metric has no use for scores."""
        super().observe(x, y, score, scorer)

    def commit(self, seen: Any, y: Any) -> None:
        """As in the base; records of too many features end the estimation."""
        if self.unusable is None and seen is not None and len(seen[0] or ()) > MOST_FEATURES:
            self.give_up(f"a metric of more than {MOST_FEATURES} features takes too long to be compared with")
        super().commit(seen, y)

    def draw(
        self, labels: Sequence[Any], *, numbers: bool = False, rows: Records | None = None
    ) -> Drawn | None:
        """None: distances to partners are asked for one by one."""
        return None

    def label(self, y: Any) -> float:
        """The number of the class."""
        return float(self._label(y))

    def paired(self, label: Any, others: Any) -> Any:
        """All pairs count."""
        return label == label

    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """By the matrix."""
        signs = np.where(np.array(labels) == label, 1.0, -1.0)
        return signs * (1.0 - self._quadratic(x, others))

    def pairs_of(self, own: Array, partner: Array, labels: Array, others: Array) -> Pairs:
        """Linear in the entries of W."""
        return Quadratic(own - partner, np.where(labels == others, 1.0, -1.0), psd=self._psd)

    def params(self) -> dict[str, object]:
        """What a saved sample must have been made with."""
        return {**super().params(), "psd": self._psd}
