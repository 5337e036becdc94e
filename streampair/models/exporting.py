"""From a learner to the fields of its model file."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from river import compose

from streampair.auc import MulticlassForest
from streampair.base.forest import ForestLearner
from streampair.base.learner import ClassifierMixin, Learner, RegressorMixin, TransformerMixin
from streampair.base.online import LinearColumns, OnlinePairLearner
from streampair.base.private import PrivateLearner
from streampair.base.start_model import StartModel
from streampair.base.targets import RelevanceTarget
from streampair.errors import ConfigError, PrivacyError
from streampair.kernels import platt
from streampair.kernels import state as layout
from streampair.kernels.scaling import BEGUN, DENSE
from streampair.models.forest import forest_parts
from streampair.models.format import (
    RUNNING,
    Classes,
    Curve,
    Document,
    EncodedArray,
    ForestModel,
    Labels,
    LinearModel,
    MetricModel,
    Promise,
    RandomForestModel,
    Relevance,
    Running,
    Scaling,
    StepForm,
    plain_label,
    plain_names,
)
from streampair.privacy.pipeline_check import check_pipeline, class_name, is_private
from streampair.records.random_trees import RandomTreeDesign
from streampair.steps import freeze

__all__ = ["document_of", "scaling_of", "tree_parts"]

# What scores and predictions are computed by: no file describes the methods of a subclass.
_METHODS = (
    "score_one",
    "score_many",
    "_score_rows",
    "_proba",
    "predict_one",
    "predict_proba_one",
    "_published",
)


def document_of(learner: Any, slots: int | None, time: int | None, metadata: dict[str, Any]) -> Document:
    """The model of a learner, or of a pipeline that ends in one, at this moment.

    Raises
    ------
    ConfigError
        If it cannot be exported.
    """
    steps, learner = _steps_and_learner(learner)
    _check_exportable(learner)
    common: dict[str, Any] = {
        "class_name": class_name(learner).removeprefix("streampair."),
        "features": plain_names(learner.feature_names),
        "slots": _whole("slots", learner.records if slots is None else slots),
        "time": None if time is None else _whole("time", time),
        "privacy": _promise_of(learner),
        "metadata": metadata,
    }
    if steps:
        common["steps"] = steps
    run = learner.run if isinstance(learner, PrivateLearner) else None
    start = None if run is None else run.scoring_start
    scaling = scaling_of(learner) if isinstance(learner, PrivateLearner) else None
    if isinstance(learner, TransformerMixin):
        root = learner._map()
        return MetricModel(
            **common, scaling=scaling, root=None if root is None else tuple(map(tuple, root.tolist()))
        )
    if isinstance(learner, ForestLearner):
        return ForestModel(
            **common, **_two_classes(learner), **_other_targets(learner), **forest_parts(learner)
        )
    linear: dict[str, Any] = {
        **common,
        **_two_classes(learner),
        "scaling": scaling,
        "weights": tuple(learner.weights_vector.tolist()),
    }
    if isinstance(learner, OnlinePairLearner):
        linear |= _columns(learner.linear_columns())
    if start is not None:  # the model is still that which it began with
        linear |= {
            "features": plain_names(start.names),
            "weights": tuple(start.weights.tolist()),
            "scaling": _start_scaling(start),
        }
        if start.centre is not None:
            linear["running"] = _centred(start.centre)
    if run is not None and isinstance(run.design, RandomTreeDesign):
        return RandomForestModel(**linear, **tree_parts(run.design, run.weights))
    return LinearModel(**linear)


def _columns(columns: LinearColumns) -> dict[str, Any]:
    """Weights and columns of a learner without privacy."""
    parts: dict[str, Any] = {"weights": tuple(columns.weights.tolist())}
    if columns.statistics:
        arrays = {field: EncodedArray.floats(columns.statistics[name]) for field, name in RUNNING.items()}
        kinds = EncodedArray.integers(columns.statistics["kinds"])
        parts["running"] = Running(records=columns.seen, kinds=kinds, **arrays)
    if columns.fixed is not None and columns.fixed.any():
        parts["indicators"] = tuple(np.flatnonzero(columns.fixed).tolist())
    return parts | ({"shared": columns.shared} if columns.shared else {})


def _centred(centre: NDArray[np.float64]) -> Running:
    """Statistics of raw features of which the centres alone are known."""
    zeros, kinds = EncodedArray.floats(np.zeros(len(centre))), np.full(len(centre), DENSE | BEGUN)
    units, means = EncodedArray.floats(np.ones(len(centre))), EncodedArray.floats(centre)
    return Running(
        0, means, zeros, units, zeros, zeros, zeros, zeros, zeros, kinds=EncodedArray.integers(kinds)
    )


def tree_parts(design: RandomTreeDesign, weights: NDArray[np.float64]) -> dict[str, Any]:
    """Trees of a private forest; weights of its bins are 0, for they only serve the fit."""
    trees, d = design.trees, len(design.names)
    leaves = weights[d : d + trees.fields.size].reshape(trees.fields.shape)
    return {
        "field_sizes": tuple(trees.sizes.tolist()),
        "split_fields": EncodedArray.integers(trees.fields),
        "split_values": EncodedArray.floats(trees.cuts),
        "leaf_weights": EncodedArray.floats(leaves),
    }


def _other_targets(learner: ForestLearner) -> dict[str, Any]:
    """Classes or relevance of a forest."""
    classes = relevance = None
    if isinstance(learner, MulticlassForest):
        # The class that `positive` means, as it is reported: models compare classes as they are written.
        number = learner._positive_number
        positive = learner.positive if number is None else learner.classes[number]
        classes = Classes(tuple(map(plain_label, learner.classes)), plain_label(positive))
    elif isinstance(learner, RegressorMixin):
        assert isinstance(learner._task, RelevanceTarget)
        relevance = Relevance(*learner._task.middle_and_half)
    return {"classes": classes, "relevance": relevance}


def _steps_and_learner(model: Any) -> tuple[tuple[StepForm, ...], Any]:
    """The steps of a pipeline as a file holds them, none of another model; and its learner."""
    if not isinstance(model, compose.Pipeline):
        return (), model
    *front, (_, learner) = model.steps.items()
    if is_private(learner):
        try:
            check_pipeline(model, one_by_one=True)
        except PrivacyError as error:
            raise ConfigError(f"the pipeline cannot be exported: {error.problem}", fix=error.fix) from None
    return tuple(StepForm.of(freeze(name, step)) for name, step in front), learner


def _check_exportable(learner: Any) -> None:
    if not isinstance(learner, OnlinePairLearner | ForestLearner | PrivateLearner):
        raise ConfigError(
            f"a {type(learner).__name__} cannot be exported",
            fix="use a learner of streampair.auc, streampair.ranking or streampair.metric",
        )
    for name in _METHODS:
        method = getattr(type(learner), name, None)
        if method is not None and not method.__module__.startswith("streampair."):
            raise ConfigError(
                f"a {type(learner).__name__} cannot be exported, since its {name} is not streampair's",
                fix="use a learner of streampair.auc, streampair.ranking or streampair.metric",
            )


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < 2**63:
        raise ConfigError(f"{name} is {value!r}", fix=f"give {name} as a whole number of 0 or more")
    return int(value)


def _promise_of(learner: Learner) -> Promise | None:
    if not isinstance(learner, PrivateLearner):
        return None
    summary = learner.privacy_summary
    names = ("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "unit", "kind", "horizon")
    start = learner._private.start
    assumed = () if start is None else start.account.assumed
    return Promise(
        **{name: getattr(summary, name) for name in names},
        adjacency=learner.settings.relation.adjacency,
        # The reasons of a void guarantee may depend on what is in the records.
        guarantee="void" if summary.kind == "void" else summary.guarantee,
        assumed=assumed or msgspec.UNSET,
    )


def scaling_of(learner: PrivateLearner) -> Scaling:
    """How a private learner scales its features: declared bounds and released moments."""
    run = learner.run
    if run is None:
        return Scaling((), None, None, None)
    design, bounds = run.design, learner.settings.bounds
    return Scaling(
        bounds=tuple(_pair(bounds.get(name, (-1.0, 1.0))) for name in design.names),
        mean=tuple(design.mean.tolist()) if design.standardised else None,
        factor=tuple(design.factor.tolist()) if design.standardised else None,
        cap=float(design.cap) if math.isfinite(design.cap) else None,
    )


def _start_scaling(start: StartModel) -> Scaling | None:
    if start.bounds is None:
        return None
    mean, factor = (None if part is None else tuple(part.tolist()) for part in (start.mean, start.factor))
    return Scaling(start.bounds, mean, factor, start.cap if math.isfinite(start.cap) else None)


def _pair(bounds: Any) -> tuple[float, float]:
    low, high = bounds
    return float(low), float(high)


def _two_classes(learner: Any) -> dict[str, Any]:
    """Labels and probability of a classifier of two classes."""
    if not isinstance(learner, ClassifierMixin):
        return {"labels": None, "probability": None}
    positive = plain_label(learner.positive)
    labels = Labels(positive, None if learner._unnamed else plain_label(learner._negative))
    return {"labels": labels, "probability": _curve_of(learner)}


def _curve_of(learner: Any) -> Curve:
    if isinstance(learner, PrivateLearner):
        link = learner._private.session.link
        return Curve(offset=float(link.offset), slope=float(link.slope), centre=0.0, spread=1.0)
    if isinstance(learner, ForestLearner):
        return Curve(0.0, 1.0, 0.0, 1.0) if learner._pairs is None else platt_curve(learner._tail)
    return platt_curve(learner._state)


def platt_curve(state: NDArray[np.float64]) -> Curve:
    """The curve in the scalars of a learner's state."""
    centre, spread = float(state[layout.CENTRE]), float(state[layout.SPREAD])
    return Curve(
        offset=float(state[layout.OFFSET]),
        slope=float(state[layout.SLOPE]),
        centre=centre,
        # A spread that is rounding alone counts as none, as in the kernel.
        spread=spread if spread > platt.EQUAL * abs(centre) else 0.0,
    )
