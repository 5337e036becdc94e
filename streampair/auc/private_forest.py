"""The private forest: data-independent random trees with noisy leaf counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair.base import validation
from streampair.base.learner import ClassifierMixin
from streampair.base.private import PrivateLearner
from streampair.records.random_trees import DEPTH

__all__ = ["PrivateForest"]

Array = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class PrivateForest(ClassifierMixin, PrivateLearner):
    """Random forest under differential privacy: a linear model plus data-independent random trees.

    The trees are complete and drawn from public randomness, independently of the data. The learner releases
    noisy sums over blocks of records: second moments, as in `PairFTRL`, the counts of records and labels in
    the leaves, and histograms of the features. Synthetic records are sampled with the released correlations,
    marginals and counts. On these the leaf weights are a ridge regression on the residual of the linear
    model's probability, averaged with a logistic regression. Each half of the trees validates the strength
    of the ridge of the other half. Where leaves have no gain the linear model scores alone. A score is a
    log-odds, once there are leaves.

    Parameters
    ----------
    epsilon, delta
        Budget of one record over the whole run. Take delta at most one over the number of records.
    horizon
        Number of records after which the learner stops learning (it keeps scoring). None: no end; the
        spend stays within the budget on an infinite stream, at a little more noise.
    trees
        Number of trees, at least 2. They share the budget, so more add little. None: 100, or none if the
        horizon is too short for leaves to gain more than the linear score loses by them (some 8000 records at
        epsilon 1, more with over 50 features): then the learner is `PairFTRL` by moments.
    depth
        Number of splits from the root to a leaf.
    features, bounds, warmup, positive, negative, noise_key, seed, forks, window, entity, radius
        As in `PairFTRL`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (docs/privacy 1, 10.1, 10.10, Lemma 90): mu-GDP under replacement of one record's content,
    label included, with ``mu`` exact for (epsilon, delta). The observer may see every model; the score of the
    protected record itself is not covered. `privacy` reports the spend of the releases so far.

    A value that is missing, not finite or not a number is a missing value: the leaves learn the other values
    of the record, each node sends missing values to a side, and the linear model does not learn the record. A
    record without a label, or with missing values only, is a null record in its slot, and so is one with a
    missing value in the warm-up. Learning raises on no record; `score_one` raises on a value that is not a
    finite number.

    Texts are not accepted: `preprocessing.OneHot` makes columns of their declared values, and the trees treat
    the columns of a field, `country=NL` and `country=BE`, as one feature. A missing value in one of these
    columns is no category: the field has the category of the first column above 0.5, and if there is none,
    the category "none of these", which has its own side at each node.

    `weights` are those of the linear model, in log-odds, which is one part of the score. Computing a model
    takes some tenths of a second at the end of each of some dozens of blocks, and one to two seconds at the
    horizon, or while the sums of a table that it began with count; a record takes some 20 microseconds, and
    some 3 in a batch. A worker goes on with the model before meanwhile.

    References
    ----------
    Fletcher, S. and Islam, M. Z. (2019). Decision tree classification with differential privacy: a survey.
    ACM Computing Surveys 52(4).
    Lanczos, C. (1950). An iteration method for the solution of the eigenvalue problem of linear differential
    and integral operators. Journal of Research of the National Bureau of Standards 45(4).

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> model = auc.PrivateForest(epsilon=12.0, delta=1e-4, horizon=1250)
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> report = model.privacy
    >>> report.kind, round(report.epsilon_spent, 6), report.horizon_left
    ('holds', 12.0, 0)
    """

    _: KW_ONLY
    trees: int | None = None
    depth: int = DEPTH

    linear: ClassVar[bool] = False
    """Whether `weights` are all that a score is made of."""

    takes_gaps: ClassVar[bool] = True

    _product = "weights of a linear scorer and of the leaves of random trees"
    _select = validation.select_dp_forest

    def _published(self) -> Array:
        d = len(self.feature_names)
        return super()._published()[:d]

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of the linear part: scaled, standardised, in the unit ball."""
        return super().design(x)[: len(self.feature_names)]

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        d = len(self.feature_names)
        parts = [self._vectors_of(xs[start : start + 256])[:, :d].copy() for start in range(0, len(xs), 256)]
        return np.concatenate(parts) if parts else np.empty((0, d))

    def _design_rows(self, columns: list[Hashable], rows: Array) -> Array:
        d = len(self.feature_names)
        parts = [
            super(PrivateForest, self)._design_rows(columns, rows[start : start + 256])[:, :d].copy()
            for start in range(0, len(rows), 256)
        ]
        return np.concatenate(parts) if parts else np.empty((0, d))
