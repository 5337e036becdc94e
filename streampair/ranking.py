"""Learners that rank records by a real-valued relevance, such as grades, ratings or watch times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from streampair import buffers, losses, schedules
from streampair.base import validation
from streampair.base.forest import ForestLearner
from streampair.base.learner import RegressorMixin
from streampair.base.online import OGDRule, OnlinePairLearner
from streampair.base.pair_moments import MomentsRule, learned_both
from streampair.base.private import PrivateLearner
from streampair.base.targets import RelevanceTarget
from streampair.privacy.mechanism_options import MechanismOptions

__all__ = ["Forest", "OnPairC", "OnPairStrC", "PairFTRL", "PairMoments", "PairOGD"]

# Largest size of a relevance. Up to it no product in any kernel overflows, with the largest features, weights
# and steps. If the slope of the loss grows with the margin, a gradient grows with the square of the
# relevance, and its squared norm with the fourth power.
_MAX_RELEVANCE = 1e50
_MAX_RELEVANCE_SQUARED = 1e10


@dataclass(eq=False, repr=False)
class PairOGD(RegressorMixin, OnlinePairLearner):
    """Online gradient descent on pairs of records with a real-valued relevance; not private.

    The algorithm of `streampair.auc.PairOGD` for real-valued labels y. The margin of a pair is
    ``(y - y') w.(x - x')``: a pair weighs more the further apart its relevances are, and pairs of equal
    relevance have no gradient. With `losses.MinimumErrorEntropy` the learner is a regression on differences:
    ``w.(x - x')`` estimates ``y - y'``, and pairs of equal relevance count as well.

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. Or a schedule
        (`streampair.schedules`). None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far.
    scale
        ``"running"``: features are scaled by their running mean and spread, as in `streampair.auc.PairOGD`.
        None takes numbers as they are.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12; in scaled units with
        `scale`.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes rather than the last iterate;
        ``"linear"``: weighted by the number of the step.
    relevance
        Declared lowest and highest relevance, scaled to -1 and 1. A relevance outside is a RecordError. None
        takes relevances as they are, of a size up to 1e50, or 1e10 with `losses.Square` and
        `losses.SquaredHinge`.
    seed
        Seed of the reservoir's random draws; None takes one from the operating system. FIFO draws nothing.
    max_features
        Most feature names with a column of their own, from 1 to 2^22. Names beyond share
        ``max_features // 4`` columns, as in `streampair.auc.PairOGD`.
    half_life
        Records after which the weight of a record has halved, as in `streampair.auc.PairOGD`; None: all weigh
        the same.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    See `auc.PairOGD` for features, strings, missing values and scaling. `predict_one` is the score: only
    differences of predictions are meaningful. Algorithm 2 of Yang et al. is ``scale=None``.

    The margin has the unit of the relevance: with grades from 0 to 100 and the hinge, the loss of a pair 50
    grades apart is 0 from a difference of scores of 1/50. A declared range gives every stream the same unit.
    With `losses.MinimumErrorEntropy` scores have the unit of the relevance, and the radius must be large
    enough for them.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Hu, T., Fan, J., Wu, Q. and Zhou, D.-X. (2013). Learning theory approach to minimum error entropy
    criterion. JMLR 14.

    Examples
    --------
    >>> import random
    >>> from streampair import losses, ranking
    >>> rng = random.Random(0)
    >>> model = ranking.PairOGD(loss=losses.MinimumErrorEntropy(0.5))
    >>> for _ in range(2000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.7 * x["stars"] - 0.5 * x["price"])
    >>> {name: round(weight, 1) for name, weight in model.weights.items()}
    {'price': -0.5, 'stars': 0.7}
    """

    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    learning_rate: float | schedules.Schedule | None = None
    _: KW_ONLY
    scale: Literal["running"] | None = "running"
    radius: float = 1.0
    l2: float = 0.0
    average: bool | Literal["linear"] = True
    relevance: tuple[float, float] | None = None
    seed: int | None = None
    max_features: int = 1 << 20
    half_life: int | None = None

    _rule = OGDRule()
    explain_one = OnlinePairLearner.linear_reasons

    def _make_task(self) -> RelevanceTarget:
        steep = isinstance(self.loss, losses.PairLoss) and math.isinf(self.loss.steepest)
        return RelevanceTarget(self.relevance, _MAX_RELEVANCE_SQUARED if steep else _MAX_RELEVANCE)


@dataclass(eq=False, repr=False)
class PairMoments(RegressorMixin, OnlinePairLearner):
    """Least squares over all pairs by a real-valued relevance, in closed form; not private.

    The algorithm of `streampair.auc.PairMoments` for relevances y: the mean of ``(y - y' - w.(x - x'))^2``
    over all pairs, so differences of scores estimate those of relevances. In place of the gap of the class
    means delta has the covariances of features and relevance, divided by the standard deviations of the
    features.

    Parameters
    ----------
    l2, half_life, max_features
        As in `streampair.auc.PairMoments`.
    relevance
        Declared lowest and highest relevance, scaled to -1 and 1. A relevance outside is a RecordError. None
        takes relevances as they are, of a size up to 1e50.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    See `auc.PairMoments` for time, memory and sums of learners, and `auc.PairOGD` for features, strings,
    missing values and scaling. Least squares are sensitive to outliers of the relevance.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.PairMoments(l2=1e-3)
    >>> for _ in range(2000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.7 * x["stars"] - 0.5 * x["price"])
    >>> {name: round(weight, 1) for name, weight in model.weights.items()}
    {'price': -0.5, 'stars': 0.7}
    """

    l2: float = 0.1
    half_life: int | None = 1000
    _: KW_ONLY
    relevance: tuple[float, float] | None = None
    max_features: int = 256

    scale = "running"
    average = False
    _rule = MomentsRule()
    explain_one = OnlinePairLearner.linear_reasons
    __add__ = learned_both

    def _make_task(self) -> RelevanceTarget:
        return RelevanceTarget(self.relevance, _MAX_RELEVANCE)


@dataclass(eq=False, repr=False)
class PairFTRL(RegressorMixin, PrivateLearner):
    """Private ranking by a real-valued relevance: FTRL on pairs with correlated noise.

    The algorithms of `streampair.auc.PairFTRL` for relevances y:

    `privacy.SecondMoments`
        Minimises ``(y - y' - w.(x - x'))^2`` over all pairs, a regression on the covariance. The minimiser is
        computed from second moments, which are summed over blocks and released under noise. The warm-up also
        releases the mean relevance. Differences of scores estimate those of relevances in [-1, 1].
    `privacy.PairGradients`
        Clipped gradients of any pair loss with the margin ``(y - y') w.(x - x')``, over a buffer.

    Parameters
    ----------
    mechanism
        One of these two; None: as in `streampair.auc.PairFTRL`, and gradients with `entity`.
    epsilon, delta, horizon, radius, features, bounds, warmup, noise_key, seed, forks, window, entity
        As in `streampair.auc.PairFTRL`.
    relevance
        Declared lowest and highest relevance, scaled to -1 and 1. A record with a relevance outside is a null
        record.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (docs/privacy 1, 4.3, 4.4, 10.3): mu-GDP under replacement of one record's content, the
    relevance included, with ``mu`` exact for (epsilon, delta). The replacement diameter is D = min(2 clip, G)
    for gradients, as for two classes, and D = 3 / sqrt(2) for moments. See `auc.PairFTRL` for null records,
    copies and the report.

    Least squares are sensitive to outliers of the relevance. With a few outliers, gradients of the hinge
    (``mechanism=privacy.PairGradients()``) may rank better if there are enough records for their noise.

    References
    ----------
    As for `streampair.auc.PairFTRL`.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    _: KW_ONLY
    mechanism: MechanismOptions | None = None

    _select = validation.select_ranking_ftrl


@dataclass(eq=False, repr=False)
class OnPairStrC(RegressorMixin, PrivateLearner):
    """Private ranking by a real-valued relevance: output perturbation for strongly convex losses.

    The algorithm of `streampair.auc.OnPairStrC` for relevances y in [-1, 1]. The margin of a pair is
    ``(y - y') w.(x - x')``.

    Parameters
    ----------
    relevance
        As in `PairFTRL`; all other parameters as in `streampair.auc.OnPairStrC`.

    Notes
    -----
    The guarantee (docs/privacy 1, 4.1, 4.4), errors and references are those of `streampair.auc.OnPairStrC`.
    The relevance is part of the content of a record. The replacement diameter is D = min(2 clip, G).

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.OnPairStrC(epsilon=1.0, delta=1e-4, horizon=1000, l2=0.1)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    epsilon: float = field()
    delta: float = field()
    horizon: int = field()
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    clip: float | None = None
    l2: float = 1e-3
    releases: int | None = None
    calibration: str = "tight"

    _select = validation.select_output_perturbation


@dataclass(eq=False, repr=False)
class OnPairC(RegressorMixin, PrivateLearner):
    """Private ranking by a real-valued relevance: output perturbation for convex losses.

    The algorithm of `streampair.auc.OnPairC` for relevances y in [-1, 1]. The margin of a pair is
    ``(y - y') w.(x - x')``.

    Parameters
    ----------
    relevance
        As in `PairFTRL`; all other parameters as in `streampair.auc.OnPairC`.

    Notes
    -----
    The guarantee (docs/privacy 1, 4.1, 4.4), errors and references are those of `streampair.auc.OnPairC`.
    The relevance is part of the content of a record. The replacement diameter is D = min(2 clip, G).

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.OnPairC(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    epsilon: float = field()
    delta: float = field()
    horizon: int = field()
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    clip: float | None = None
    l2: float | None = None
    releases: int | None = None
    calibration: str = "tight"

    _select = validation.select_centred_output_perturbation


@dataclass(eq=False, repr=False)
class Forest(RegressorMixin, ForestLearner):
    """Random forest with online leaf weights, for regression on a relevance; not private.

    The forest of `streampair.auc.Forest` with the loss of a regression: half the squared error of the
    relevance, which is standardised by the mean and the standard deviation of all relevances so far. Trees,
    experts, boosted trees and stacking are the same. See `auc.Forest` for features, strings, missing values
    and memory.

    Parameters
    ----------
    trees
        Number of trees, from 1 to 1000. Time and memory grow with it.
    nodes
        Largest number of nodes of a tree, from 1 to 32767. A full tree does not split any more.
    relevance
        Declared lowest and highest relevance; a relevance outside is a RecordError. None accepts any
        relevance of a size up to 1e50. Only the unit of the score depends on it.
    seed
        Seed of the random draws; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    `predict_one` predicts the relevance in its own unit, whereas the pairwise learners predict differences
    only. `score_one` is the same number, with a declared relevance scaled to [-1, 1].

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.Forest(seed=1)
    >>> for _ in range(3000):
    ...     x = {"price": rng.uniform(0, 10), "kind": rng.choice(["bed", "sofa"])}
    ...     model.learn_one(x, abs(x["price"] - 5.0) + 10.0 * (x["kind"] == "bed"))
    >>> [round(model.predict_one({"price": price, "kind": "bed"})) for price in (1.0, 5.0, 9.0)]
    [14, 10, 14]
    """

    trees: int = 50
    nodes: int = 1023
    _: KW_ONLY
    relevance: tuple[float, float] | None = None
    seed: int | None = None
    max_features: int = 10_000

    _squared: ClassVar[bool] = True
    _derived: ClassVar[frozenset[str]] = ForestLearner._derived | {"_relevance"}

    def _make_task(self) -> RelevanceTarget:
        task = RelevanceTarget(self.relevance, _MAX_RELEVANCE)
        self._relevance = task.relevance
        return task

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """Prediction of the relevance of a record, in its unit.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return self._relevance(self.score_one(x))

    def predict_many(self, X: Any) -> Any:
        """Predictions for the rows: for a frame a series of its library with its index, else an array."""
        table, scores = self._table_scores(X)
        return table.series(np.array([self._relevance(score) for score in scores.tolist()]), self._y_name)
