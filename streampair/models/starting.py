"""From a model file to a learner that goes on learning."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from river import compose

from streampair.auc import PrivateForest
from streampair.base.forest import ForestLearner
from streampair.base.learner import ClassifierMixin, TransformerMixin
from streampair.base.online import OGDRule, OnlinePairLearner
from streampair.base.private import PrivateLearner
from streampair.base.start_model import StartModel
from streampair.errors import ConfigError
from streampair.kernels import platt
from streampair.kernels import state as layout
from streampair.models.format import Curve, Document, Labels, LinearModel, RandomForestModel
from streampair.models.scoring import columns_of, raw_weights
from streampair.privacy.mechanisms.base import Link
from streampair.privacy.mechanisms.dp_forest import DPForest
from streampair.privacy.mechanisms.output_perturbation import OutputPerturbation
from streampair.privacy.mechanisms.second_moments import unpacked
from streampair.privacy.mechanisms.start_moments import StartMoments
from streampair.privacy.report import DECLARED_PUBLIC, TABLE_AS_ASSUMED, StartAccount
from streampair.steps import check_same, load_parts

__all__ = ["begin_from"]


def begin_from(document: Document, learner: Any, records: int | None, public: bool) -> None:
    """Let a new learner begin with a model.

    Parameters
    ----------
    document
        The model.
    learner
        A new `auc.PairOGD` or `ranking.PairOGD`, a new pipeline that ends in one, a private linear learner,
        or an `auc.PrivateForest` of the model's features and trees.
    records, public
        As of `Model.to_online`.

    Raises
    ------
    ConfigError
        If this learner cannot begin with this model. Then it is as it was.
    """
    if isinstance(learner, compose.Pipeline):
        _begin_pipeline(document, learner, records, public)
    elif document.steps:
        names = ", ".join(step.name for step in document.steps)
        raise ConfigError(
            f"the model stands behind the steps {names}: its weights are those of what they return",
            fix="begin with the same steps in front of the learner",
        )
    else:
        _begin_learner(document, learner, records, public)


def _begin_pipeline(document: Document, pipeline: Any, records: int | None, public: bool) -> None:
    """Let steps go on from where those of the model were, and the learner behind them begin."""
    *front, (_, learner) = pipeline.steps.items()
    if isinstance(learner, PrivateLearner):
        raise ConfigError(
            f"a {type(learner).__name__} is private, and does not begin with a model behind other steps",
            fix="leave the steps out, or begin without the model",
        )
    parts = [step.parts() for step in document.steps or ()]
    check_same(dict(front), parts)
    _begin_learner(document, learner, records, public)
    for (_, step), part in zip(front, parts, strict=True):
        load_parts(step, part)


def _begin_learner(document: Document, learner: Any, records: int | None, public: bool) -> None:
    """Let a learner begin with a model, whatever its steps are."""
    _check_learner(learner)
    name, private = type(learner).__name__, isinstance(learner, PrivateLearner)
    if isinstance(learner, PrivateForest):
        _check_trees(document, learner)
    elif type(document) is not LinearModel:  # not isinstance: the model of a private forest is one, too
        also = ", or of a private linear learner" if private else ""
        raise ConfigError(
            f"a {name} is linear, and cannot begin with the model of a learner that is not: "
            f"{document.class_name}",
            fix=f"give the model of an auc.PairOGD, auc.OAM, auc.SPAUC or ranking.PairOGD{also}",
        )
    if private:
        assert isinstance(document, LinearModel)
        _begin_private(document, learner, records, public)
        return
    assert type(document) is LinearModel
    if public:
        raise ConfigError(
            f"the model is declared public, and a {name} is not private, so it promises nothing",
            fix="remove the declaration (public=, learner.public_start)",
        )
    if document.scaling is not None:
        raise ConfigError(
            f"a PairOGD cannot begin with the model of a private learner ({document.class_name}), whose "
            "weights are those of scaled values",
            fix="give the model of a learner that is not private",
        )
    _check_fit(document, learner)
    learner.begin_with(columns_of(document), document.slots if records is None else records)
    if document.labels is not None and document.probability is not None:
        if learner._task.negative is None:
            learner._learn_label(document.labels.negative)
        _begin_curve(learner, document.probability, document.slots if records is None else records)


def _check_trees(document: Document, learner: PrivateForest) -> None:
    """Refuse a model that has not the sums of the leaves that this learner will have."""
    declared: list[Hashable] = [*(learner.bounds or {}), *document.features]
    names = list(dict.fromkeys(declared) if learner.features is None else learner.features)
    settings = learner.settings_with(features=names)
    forest, moments = settings.mechanism, isinstance(document, LinearModel) and document.moments
    if not isinstance(forest, DPForest):
        if type(document) is LinearModel:
            return  # it is linear, as the learner
        raise ConfigError(
            f"this PrivateForest has no leaves, since a horizon of {settings.horizon} is too short for them, "
            "and the model has",
            fix="leave the horizon out, or give a longer one; or begin without the model",
        )
    if not isinstance(document, RandomForestModel) or not moments:
        raise ConfigError(
            f"a PrivateForest cannot begin with this model ({document.class_name}), which has no sums of its "
            "leaves: only that of an auc.PrivateForest that streampair.history has learned from a table has, "
            "if the table was long enough for leaves",
            fix="make a new auc.PairFTRL, which begins with a linear model; or begin without the model",
        )
    assert document.scaling is not None
    theirs: dict[Hashable, tuple[float, float]] = {}
    theirs.update(zip(document.features, document.scaling.bounds, strict=True))
    ours = {name: settings.bounds.get(name, (-1.0, 1.0)) for name in names}
    other = [str(name) for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if other:
        raise ConfigError(
            "the trees of a PrivateForest are those of its features and bounds, and the model has others: "
            f"{', '.join(other[:5])}{', ...' if len(other) > 5 else ''}",
            fix="give the learner the features and bounds of the model, or begin without the model",
        )
    trees, nodes = document.split_fields.shape
    if (trees, nodes) != (forest.trees, 2**forest.depth):
        raise ConfigError(
            f"the model has {trees} trees of depth {nodes.bit_length() - 1}, and this PrivateForest "
            f"{forest.trees} of depth {forest.depth}",
            fix=f"make it with trees={trees} and depth={nodes.bit_length() - 1}, or begin without the model",
        )
    design = forest.design(names, settings.bounds)
    fields, cuts, _ = document.arrays()
    if not (np.array_equal(design.trees.fields, fields) and np.array_equal(design.trees.cuts, cuts)):
        raise ConfigError(
            "the trees of the model are not those that a PrivateForest of these features has",
            fix="give the file that streampair.history wrote, or begin without the model",
        )


def _check_fit(document: LinearModel, learner: Any) -> None:
    """Refuse a model of other labels, or one that has learned nothing."""
    if isinstance(learner, ClassifierMixin) != (document.labels is not None):
        wanted, family = ("auc", "ranking") if document.labels is not None else ("ranking", "auc")
        name = type(learner).__name__
        raise ConfigError(
            f"the model ({document.class_name}) has other labels than {family}.{name} learns",
            fix=f"make a new {wanted}.{name}",
        )
    private = isinstance(learner, PrivateLearner)
    # A private learner scales the weights as it learns; those of 0 rank nothing.
    if not document.features or (private and not any(document.weights)):
        raise ConfigError("the model has learned nothing", fix="begin without it")
    if document.labels is not None:
        _check_labels(document.labels, learner)


def _begin_private(document: LinearModel, learner: PrivateLearner, records: int | None, public: bool) -> None:
    """Let a private learner begin with a linear model, and its account with that of the model."""
    name = type(learner).__name__
    if records is not None:
        raise ConfigError(
            f"records={records!r}: how much a {name} relies on a model follows from what it releases",
            fix="leave records out",
        )
    _check_fit(document, learner)
    if document.shared:
        raise ConfigError(
            f"the model ({document.class_name}) has columns that many names share, and the features of a "
            f"{name} are declared",
            fix="give a model of fewer names",
        )
    scaling, curve = document.scaling, document.probability
    weights, centre = raw_weights(document)
    link = None
    if curve is not None:
        # With a spread of 0 all records have had one score.
        slope = curve.slope / curve.spread if curve.spread > 0.0 else platt.LEAST
        link = Link(slope, curve.offset - slope * curve.centre)
    moments = (None, None) if scaling is None else (scaling.mean, scaling.factor)
    learner._begin_from(
        StartModel(
            names=document.features,
            weights=weights,
            bounds=None if scaling is None else scaling.bounds,
            mean=None if moments[0] is None else np.array(moments[0]),
            factor=None if moments[1] is None else np.array(moments[1]),
            cap=math.inf if scaling is None or scaling.cap is None else scaling.cap,
            link=link,
            account=_account_of(document, learner, public),
            centre=centre if document.running else None,
            moments=_moments_of(document, learner),
            leaves=document.arrays()[2] if isinstance(document, RandomForestModel) else None,
        )
    )


def _moments_of(document: LinearModel, learner: PrivateLearner) -> StartMoments | None:
    """The released moments of a model, if the learner has the same relevances."""
    found, scaling = document.moments, document.scaling
    if not found or scaling is None:
        return None
    relevance = getattr(learner, "relevance", None)
    if relevance is not None and tuple(map(float, relevance)) != found.relevance:
        return None
    d = len(document.features)
    means, packed = found.array(document.cells()) / found.rows, d * (d + 1) // 2 + d
    second, cross = unpacked(means[:packed], d)
    assert scaling.mean is not None
    assert scaling.factor is not None
    assert scaling.cap is not None
    moments = StartMoments(
        second=second,
        cross=cross.copy(),
        rows=found.rows,
        sigma=found.sigma,
        mean=np.array(scaling.mean),
        factor=np.array(scaling.factor),
        centre=found.centre,
        cap=scaling.cap,
        sample=found.sample,
        sample_sigma=found.sample_sigma,
        leaves=means[packed:].copy() if isinstance(document, RandomForestModel) else None,
    )
    try:
        moments.check()
    except ValueError as error:
        raise ConfigError(
            f"the model is damaged: it has {error}",
            fix="give the file that streampair.history wrote, or begin without the model",
        ) from error
    return moments


def _account_of(document: LinearModel, learner: PrivateLearner, public: bool) -> StartAccount:
    """What the model adds to the account of the learner.

    Raises
    ------
    ConfigError
        If it is not known.
    """
    promise = document.privacy
    if public:
        return StartAccount(document.class_name)
    fix = (
        "if the model was learned without any record that the learner protects, declare it public "
        "(public=True, or learner.public_start = true); else begin with the model of a private learner, or "
        "with none"
    )
    if promise is None:
        raise ConfigError(
            f"the model ({document.class_name}) is not private: what it discloses of the records that it was "
            "learned from is in no account",
            fix=fix,
        )
    if promise.kind == "void":
        raise ConfigError(
            f"the guarantee of the model ({document.class_name}) is void, so its spend is not known", fix=fix
        )
    if learner.settings.entity is not None and "entity" not in promise.unit:
        raise ConfigError(
            f"the model protects {promise.unit}, and the learner all records of an entity: the sum of both "
            "protects no entity",
            fix="begin with the model of a learner with entity=; or make the learner without entity=",
        )
    if not 0.0 <= promise.mu_spent < math.inf:
        raise ConfigError(f"the model has spent mu {promise.mu_spent}", fix=fix)
    before = DECLARED_PUBLIC in promise.guarantee
    table = f", {TABLE_AS_ASSUMED}," if TABLE_AS_ASSUMED in promise.guarantee else ""
    return StartAccount(
        document.class_name + table, promise.mu_spent, promise.kind, before, tuple(promise.assumed or ())
    )


def _check_learner(learner: Any) -> None:
    """Refuse all but a `PairOGD` of linear scores and private learners, and say what else to do."""
    name = type(learner).__name__
    if isinstance(learner, PrivateLearner) and not isinstance(learner, TransformerMixin):
        mechanism = learner.settings.mechanism
        if isinstance(mechanism, OutputPerturbation) and mechanism.paper:
            raise ConfigError(
                f"a {name} with the paper's calibration cannot begin with a model: it begins at random "
                "points",
                fix="leave calibration out",
            )
        return
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
            fix="begin without the model, or go on with the state of the metric (to_state and load_state)",
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
