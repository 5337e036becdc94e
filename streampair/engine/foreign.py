"""The adapter of an estimator that is not of streampair, such as River's, to what a lane asks of a learner.

It says how the estimator scores and learns, and gives the rest of `LaneLearner` as far as an estimator of
River can have it: it learns one record after the other, and has no loss, no design and no buffer of pairs.

>>> from river import linear_model
>>> from streampair.engine.foreign import ForeignLearner
>>> learner = ForeignLearner(linear_model.LogisticRegression(), positive=True)
>>> learner.learn_one({"a": 1.0}, True)
>>> learner.score_one({"a": 1.0}) > 0.5, list(learner.scaled_weights), learner.prepare_many
(True, ['a'], None)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from river import base

from streampair.engine.protocols import Scorer, SerializableStep
from streampair.errors import ConfigError, RecordError

__all__ = ["ForeignLearner", "finite_score"]


class ForeignLearner:
    """A `LaneLearner` around an estimator that is none.

    Parameters
    ----------
    estimator
        An estimator of River, or any other `Scorer`.
    positive
        The label whose score is wanted from a classifier.

    Attributes
    ----------
    score_method
        Name of the estimator's method whose result is the score.
    score_one
        Function from a record to its score, which is finite.
    learn_one
        Function from a record and its label: an estimator that is not supervised gets the record alone.

    Raises
    ------
    ConfigError
        If the estimator cannot learn, or gives no score before it learns.
    """

    two_classes = True
    takes_text = takes_nulls = False
    pair_form = None
    pair_loss = None
    comparator_radius = 1.0
    comparator_design = None
    weights_noise = None
    buffer_records = None
    prepare_many = None
    prepare_rows = None
    score_rows = None
    label_number = float

    def __init__(self, estimator: Any, *, positive: object) -> None:
        self._estimator = estimator
        self.score_method, takes_label = _how_to_score(estimator)
        self.score_one = _scorer(estimator, self.score_method, positive)
        learn = estimator.learn_one
        self.learn_one: Callable[[Any, Any], object] = learn if takes_label else lambda x, y: learn(x)

    @property
    def scaled_weights(self) -> Mapping[Any, float] | None:
        """The estimator's weights, if it has a table of them."""
        weights = getattr(self._estimator, "weights", None)
        return weights if isinstance(weights, Mapping) else None


def _how_to_score(learner: Any) -> tuple[str, bool]:
    """The name of the method to score with, and whether learn_one takes the label."""
    kind = type(learner).__name__
    if not callable(getattr(learner, "learn_one", None)):
        raise ConfigError(f"{kind} has no learn_one", fix="use an online estimator of streampair or River")
    if isinstance(learner, Scorer):
        return "score_one", True
    supervised = bool(getattr(learner, "_supervised", True))
    if isinstance(learner, base.AnomalyDetector) and not supervised:
        return "score_one", False
    if isinstance(learner, base.AnomalyFilter | base.SupervisedAnomalyDetector):
        raise ConfigError(
            f"{kind} needs the label to give a score, so it cannot score before it learns",
            fix="use an unsupervised anomaly detector, a classifier or a regressor as the last step",
        )
    if isinstance(learner, base.Classifier):
        # Some classifiers of River vote without a probability and inherit the method that raises.
        votes = type(learner).predict_proba_one is base.Classifier.predict_proba_one
        return ("predict_one" if votes else "predict_proba_one"), supervised
    if callable(getattr(learner, "score_one", None)):
        return "score_one", supervised
    if isinstance(learner, base.Regressor):
        return "predict_one", supervised
    raise ConfigError(
        f"the last step of the model, {kind}, gives no score",
        fix="end it with a classifier, a regressor, an anomaly detector or a learner of streampair",
    )


def _scorer(learner: Any, name: str, positive: object) -> Callable[[Any], float]:
    method: Callable[[Any], Any] = getattr(learner, name)
    if name == "score_one" and isinstance(learner, SerializableStep):
        return method
    if name == "predict_proba_one":

        def score(x: Any) -> float:
            value = method(x).get(positive, 0.0)
            return value if type(value) is float and value - value == 0.0 else finite_score(value, learner)

    elif isinstance(learner, base.Classifier):

        def score(x: Any) -> float:
            return 1.0 if method(x) == positive else 0.0

    else:

        def score(x: Any) -> float:
            return finite_score(method(x), learner)

    return score


def finite_score(value: Any, learner: object) -> float:
    """The score as a number; RecordError if it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        raise RecordError(
            f"{type(learner).__name__} gave the score {number}",
            fix="look for huge feature values before this event, or lower the learning rate",
            stage="learn",
        )
    return number
