"""Weights that go from one learner to another: where a fit begins, and online learners that go on from one.

All of it is in the coordinates of the features as they came: declared bounds scale them on both sides
(docs/privacy, Lemma 66 and Lemma 67).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.base.learner import Learner
from streampair.base.private import PrivateLearner
from streampair.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["begin", "by_name", "scale_of"]

_PUBLIC = "It begins at weights that were given, and are taken as public."


def scale_of(bounds: Any, d: int) -> Floats:
    """Factor of each feature by its declared bounds."""
    if bounds is None:
        return np.ones(d)
    low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), (d,)) for b in bounds)
    out: Floats = 2.0 / (high - low)
    return out


def by_name(names: Sequence[Hashable], weights: Floats) -> dict[Any, float]:
    """Weights (d,) by name, or (d, d) by two names."""
    if weights.ndim == 1:
        return dict(zip(names, weights.tolist(), strict=True))
    return {(a, b): weights[i, j].item() for i, a in enumerate(names) for j, b in enumerate(names)}


def begin(start: Any, names: Sequence[Hashable], scale: Floats, metric: bool) -> tuple[Floats | None, str]:
    """Start of a fit in its own coordinates, and the note for its report.

    Parameters
    ----------
    start
        What the parameter of this name says.
    names
        Of the table's features.
    scale
        What each is multiplied with, (d,).
    metric
        Whether weights are a matrix.

    Returns
    -------
    array or None, str
        (d,) or (d, d); None: at 0.

    Raises
    ------
    ConfigError
        If it may depend on records that nothing protects, or is of another shape.
    """
    if start is None:
        return None, ""
    words = _PUBLIC
    if isinstance(start, Learner):
        start, words = _released(start, metric), _words(start)
    elif hasattr(start, "fit"):
        start, words = _fitted(start, metric), _words(start)
    weights = (
        _mapped(start, names, metric) if isinstance(start, Mapping) else np.array(start, dtype=np.float64)
    )
    shape = (len(names),) * (1 + metric)
    if weights.shape != shape or not np.isfinite(weights).all():
        raise ConfigError(
            f"start has the shape {weights.shape}, or is not finite, and this fit needs {shape}",
            fix="give finite weights in the order of the columns, by name, or a learner of the same task",
        )
    if metric and not np.allclose(weights, weights.T, rtol=1e-12, atol=0.0):
        raise ConfigError("start is not symmetric, and no metric", fix="give (W + W.T) / 2")
    return weights / (np.outer(scale, scale) if metric else scale), words


def _released(learner: Learner, metric: bool) -> dict[Any, float]:
    """The weights of a private online learner, in the coordinates of raw features."""
    name = type(learner).__name__
    if not isinstance(learner, PrivateLearner):
        raise ConfigError(
            f"start is a {name}, which is not private: its weights disclose the records that it has learned",
            fix="begin at a private learner such as PairFTRL, or give start=learner.weights, which says that "
            "they are taken as public",
        )
    if learner.privacy.kind == "void":
        raise ConfigError(
            f"start is a {name} of which nothing is guaranteed: {learner.privacy.guarantee}",
            fix="begin at one whose guarantee holds, or give start=learner.weights, which says that they are "
            "taken as public",
        )
    if hasattr(learner, "metric_") != metric:
        raise ConfigError(
            f"start is a {name}, which is of another task", fix="begin at a learner of the same task"
        )
    if learner.run is None:
        raise ConfigError("start has no features yet", fix="let it learn first, or leave start out")
    slope, weights = learner.run.design.slope, learner.weights_vector
    if metric:
        return by_name(learner.feature_names, learner.metric_ * np.outer(slope, slope))  # type: ignore[attr-defined]
    return by_name(learner.feature_names, weights * slope)


def _fitted(model: Any, metric: bool) -> Mapping[Any, float]:
    report = getattr(model, "privacy", None)
    if report is None or report.kind == "void":
        raise ConfigError(
            f"start is a {type(model).__name__} that is not fitted, or of which nothing is guaranteed",
            fix="fit it first, with random_state=None; or give start=model.weights_by_name(), which says "
            "that they are taken as public",
        )
    if (model.task == "metric") != metric:
        raise ConfigError("start is of another task", fix="begin at a learner of the same task")
    out: Mapping[Any, float] = model.weights_by_name()
    return out


def _words(learner: Any) -> str:
    report = learner.privacy
    return (
        f"It begins at what a {type(learner).__name__} has released, whose guarantee is its own: epsilon "
        f"{report.epsilon_spent:.6g} at delta {report.delta:.3g} (mu {report.mu_spent:.6g}), kind "
        f"{report.kind!r}. Of records, or persons, that are in both, both are spent: mu^2 adds up."
    )


def _mapped(weights: Mapping[Any, float], names: Sequence[Hashable], metric: bool) -> Floats:
    known = set(by_name(names, np.zeros((len(names),) * (1 + metric))))
    unknown = [name for name in weights if name not in known]
    if unknown:
        raise ConfigError(
            f"start has weights of {unknown[0]!r}, which the table has no column for",
            fix="give X as a data frame with the names that the learner knows, or leave the weight out",
        )
    if metric:
        return np.array([[float(weights.get((a, b), 0.0)) for b in names] for a in names])
    return np.array([float(weights.get(name, 0.0)) for name in names])
