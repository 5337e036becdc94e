"""From a model file to a learner that goes on learning."""

from __future__ import annotations

import math
from typing import Any

from streampair.base.forest import ForestLearner
from streampair.base.mixins import ClassifierMixin, TransformerMixin
from streampair.base.online import OGDRule, OnlinePairLearner
from streampair.base.private import PrivateLearner
from streampair.errors import ConfigError
from streampair.kernels import platt
from streampair.kernels import state as layout
from streampair.models.format import Curve, Document, Labels, LinearModel

__all__ = ["begin_from"]


def begin_from(document: Document, learner: Any, records: int | None) -> None:
    """Let a new learner begin with a model.

    Parameters
    ----------
    document
        The model.
    learner
        A new `auc.PairOGD` or `ranking.PairOGD`.
    records
        As of `PairOGD.begin_at`; None: as many as the model has learned.

    Raises
    ------
    ConfigError
        If this learner cannot begin with this model. Then it is as it was.
    """
    _check_learner(learner)
    if type(document) is not LinearModel:  # not isinstance: the model of a private forest is one, too
        raise ConfigError(
            f"a PairOGD is linear, and cannot begin with the model of a learner that is not: "
            f"{document.class_name}",
            fix="give the model of an auc.PairOGD, auc.OAM, auc.SPAUC or ranking.PairOGD",
        )
    if document.scaling is not None:
        raise ConfigError(
            f"a PairOGD cannot begin with the model of a private learner ({document.class_name}), whose "
            "weights are those of scaled values",
            fix="give the model of a learner that is not private",
        )
    if isinstance(learner, ClassifierMixin) != (document.labels is not None):
        wanted, family = ("auc", "ranking") if document.labels is not None else ("ranking", "auc")
        raise ConfigError(
            f"the model ({document.class_name}) has other labels than {family}.PairOGD learns",
            fix=f"make a new {wanted}.PairOGD",
        )
    if not document.features:
        raise ConfigError("the model has learned nothing", fix="begin without it")
    if document.labels is not None:
        _check_labels(document.labels, learner)
    weights = dict(zip(document.features, document.weights, strict=True))
    learner.begin_at(weights, document.slots if records is None else records)
    if document.labels is not None and document.probability is not None:
        if learner._task.negative is None:
            learner._learn_label(document.labels.negative)
        _begin_curve(learner, document.probability, document.slots if records is None else records)


def _check_learner(learner: Any) -> None:
    """Refuse all but a `PairOGD` of linear scores, and say what else to do."""
    name = type(learner).__name__
    if isinstance(learner, PrivateLearner):
        raise ConfigError(
            f"a {name} cannot begin with a model: it is private, and its report has no place for the budget "
            "of another model",
            fix="begin without the model, or let a new auc.PairOGD begin with it, which is not private",
        )
    if isinstance(learner, ForestLearner):
        raise ConfigError(
            f"a {name} cannot begin with a model: a model holds what a forest scores by, and not the sums "
            "that it learns by",
            fix="go on with the state of the forest (to_state and load_state), or let a new auc.PairOGD "
            "begin with a linear model",
        )
    if isinstance(learner, TransformerMixin):
        raise ConfigError(
            f"a metric.{name} cannot begin with a model: a model holds the map of a metric, not its matrix",
            fix="go on with the state of the metric (to_state and load_state)",
        )
    if not isinstance(learner, OnlinePairLearner) or type(learner._rule) is not OGDRule:
        raise ConfigError(
            f"a {name} cannot begin with a model", fix="make a new auc.PairOGD or ranking.PairOGD"
        )


def _check_labels(labels: Labels, learner: Any) -> None:
    if labels.positive != learner.positive:
        raise ConfigError(
            f"the model ranks the label {labels.positive!r} high, and the learner {learner.positive!r}",
            fix=f"make the learner with positive={labels.positive!r}",
        )
    declared = learner._task.negative
    known = labels.negative is not None
    wrong = (
        declared != labels.negative
        if declared is not None
        else learner._task.label_or_null(labels.negative) != -1.0
    )
    if known and wrong:
        raise ConfigError(
            f"the model ranks the label {labels.negative!r} low, and the learner {declared!r}",
            fix=f"make the learner with negative={labels.negative!r}",
        )


def _begin_curve(learner: Any, curve: Curve, records: int) -> None:
    """Set the curve of the probabilities, as if so many records had taught it."""
    state = learner._state
    p = 1.0 / (1.0 + math.exp(min(max(-curve.offset, -700.0), 700.0)))
    # A record teaches p (1 - p) on average, of which half has faded.
    state[layout.INFORMATION] = min(platt.RECENT * records * p * (1.0 - p), platt.MEMORY)
    state[layout.CENTRE], state[layout.SPREAD] = curve.centre, curve.spread
    state[layout.OFFSET], state[layout.SLOPE] = curve.offset, max(curve.slope, platt.LEAST)
