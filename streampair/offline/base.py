"""Base classes of the offline learners: scikit-learn's interface, validation, designs, starts, the report."""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils import TransformerTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from streampair import losses
from streampair.base.learner import Learner
from streampair.base.private import PrivateLearner
from streampair.errors import ConfigError, RecordError
from streampair.kernels import symmetric, vectors
from streampair.offline.risk import LinearRisk, MetricRisk, packed, unpacked
from streampair.privacy.accounting import warn_if_doubtful
from streampair.privacy.mechanisms.base import Link, unit_link
from streampair.privacy.mechanisms.offline import TableAccount, TableReport, report_of
from streampair.records import features
from streampair.records.frames import FeatureTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "PairLearner",
    "PairwiseProblem",
    "TableLearner",
    "by_name",
    "designs",
    "scale_of",
    "validated",
    "warm_start",
    "warn_of_scale",
]


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


def warm_start(
    start: Any, names: Sequence[Hashable], scale: Floats, metric: bool
) -> tuple[Floats | None, str]:
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


@dataclass(frozen=True)
class PairwiseProblem:
    """A table to be learned, and public constants of its pairs.

    Parameters
    ----------
    rows, labels
        Records in the unit ball, (n, d), and labels +1 or -1, or class numbers, (n,): secret.
    loss, form
        The pair loss, and the form of its margin.
    radius
        Radius R of the ball of the weights.
    dim
        Number of coordinates of the weights.
    seed
        Seed of noise and sampling; None: keys of the operating system.
    start
        Initial weights of a descent, (dim,), in the ball: no function of the table.
    """

    rows: Floats
    labels: Floats
    loss: losses.PairLoss
    form: losses.Form
    radius: float
    dim: int
    seed: int | None
    start: Floats

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.rows)

    @property
    def lipschitz(self) -> float:
        """Largest norm G of a pair's gradient."""
        return self.loss.lipschitz(1.0, self.radius, form=self.form)

    @property
    def diameter(self) -> float:
        """Sensitivity D of a pair's gradient to the replacement of one of its records."""
        return self.loss.diameter(1.0, self.radius, form=self.form)

    @property
    def smoothness(self) -> float:
        """Smoothness L of the pair loss.

        Raises
        ------
        ConfigError
            If the loss is not smooth.
        """
        return self.loss.smoothness(1.0, self.radius, form=self.form)

    @property
    def push(self) -> float:
        """Sensitivity of the gradient of all pairs to one record (docs/privacy, Lemma 70)."""
        return 2.0 * self.diameter / self.n

    @property
    def blank(self) -> float:
        """Sensitivity to blanking a record, as a share of that to replacement."""
        return min(self.lipschitz / self.diameter, 1.0)

    def risk(self, part: slice = slice(None)) -> LinearRisk | MetricRisk:
        """The mean loss over all pairs of some of the records."""
        made = LinearRisk if self.form == "raw" else MetricRisk
        return made(self.rows[part], self.labels[part], self.loss)

    def shuffled(self, order: NDArray[np.int64]) -> PairwiseProblem:
        """The same records in another order."""
        return replace(self, rows=self.rows[order], labels=self.labels[order])

    def inside(self, weights: Floats) -> Floats:
        """The nearest weights in the ball."""
        norm = float(np.linalg.norm(weights))
        return weights if norm <= self.radius else weights * (self.radius / norm)


def validated(learner: Any, X: Any, *y: Any, reset: bool = True) -> Any:
    """Validate features (n, d), and labels if given, as scikit-learn does; values need not be finite.

    Raises
    ------
    ConfigError
        If a cell is text; it names the first one.
    """
    try:
        return validate_data(
            learner, X, *y, dtype=np.float64, order="C", reset=reset, ensure_all_finite=False
        )
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        try:
            FeatureTable(
                np.array(X, dtype=object) if isinstance(X, list | tuple) else X, read=features.number
            )
        except RecordError as found:
            raise ConfigError(
                found.problem,
                fix="leave the column out, or make a column of numbers for each of its declared values",
            ) from None
        raise


def _for_task(*names: str) -> Callable[[Any], Any]:
    """A method that exists for some tasks only."""

    def check(self: Any) -> bool:
        if self.task in names:
            return True
        raise AttributeError(f"there is no such method with task={self.task!r}")

    return available_if(check)  # type: ignore[no-any-return]


def _scaling(bounds: tuple[Any, Any] | None, d: int) -> tuple[Floats, Floats]:
    """Scale and shift of each feature that map its declared bounds to [-1, 1]."""
    scale, shift = np.ones(d), np.zeros(d)
    if bounds is not None:
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), (d,)) for b in bounds)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ConfigError(
                "bounds are not finite, or a lower one is not below the upper one",
                fix="give (low, high): two numbers, or a number for each feature in both",
            )
        scale, shift = 2.0 / (high - low), -(high + low) / (high - low)
    return scale, shift


def designs(X: Floats, bounds: tuple[Any, Any] | None) -> Floats:
    """Features scaled by declared bounds, and each record in the unit ball.

    Parameters
    ----------
    X
        Features, (n, d).
    bounds
        As of the learners.
    """
    d = X.shape[1]
    scale, shift = _scaling(bounds, d)
    scaling = np.array([scale, shift, np.zeros(d), np.ones(d)])
    out, whole = np.empty_like(X), np.empty(len(X))
    rows = np.ascontiguousarray(X)
    vectors.prepare_rows(rows, scaling, False, math.inf, out, whole)
    return out


def warn_of_scale(X: Floats, bounds: tuple[Any, Any] | None, fix: str) -> None:
    """Warn if the projection to the unit ball distorts much of the table."""
    scale, shift = _scaling(bounds, X.shape[1])
    with np.errstate(over="ignore"):
        largest = np.abs(X * scale + shift).max(axis=1)
        lengths = np.linalg.norm(X, axis=1)
    problem = ""
    if bounds is not None and (largest > 1.0).mean() > 0.5:
        problem = "have values beyond their bounds: they are shortened to the length 1, and features far "
        problem += "beyond drown the others"
    elif bounds is None and (lengths > 1.0).mean() > 0.5:
        problem = "are longer than 1, and are shortened to it: features of large values drown the others"
    if problem:
        warnings.warn(f"more than half of the records {problem}. Fix: {fix}.", UserWarning, stacklevel=3)
    elif bounds is None and lengths.max() < 0.1:
        warnings.warn(
            f"no record is longer than 0.1, and noise is sized for a length of 1. Fix: {fix}.",
            UserWarning,
            stacklevel=3,
        )


@dataclass(eq=False, repr=False)
class PairLearner(ClassifierMixin, BaseEstimator, abc.ABC):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the learners from pairs of a table, private or not: validation, designs, scores, distances."""

    _: KW_ONLY
    task: Literal["auc", "metric"] = "auc"
    loss: losses.PairLoss | None = None
    radius: float = 1.0
    bounds: tuple[Any, Any] | None = None
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.task == "metric":
            tags.estimator_type = "transformer"
            tags.transformer_tags = TransformerTags()
            tags.classifier_tags = None
        else:
            tags.classifier_tags.multi_class = False
            tags.classifier_tags.poor_score = True  # noise outweighs what a few records say
        return tags

    #: Largest radius of the ball of the weights: logistic pair sums take exponentials of scores.
    _largest_radius: ClassVar[float] = 100.0
    #: What the warning about unscaled features advises.
    _scale_fix: ClassVar[str] = "scale the features, or give bounds=(low, high), which are taken as public"

    @abc.abstractmethod
    def fit(self, X: Any, y: Any) -> Any:
        """Learn a table."""

    def _table(self, X: Any, y: Any) -> tuple[Floats, Floats]:
        """Validated features, and labels as numbers."""
        X, y = validated(self, X, y)
        check_classification_targets(y)
        if not np.isfinite(X).all():
            raise ConfigError(
                "X has NaN or infinity", fix="leave out or fill in such records before they are learned"
            )
        if len(X) < 2:
            raise ConfigError("n_samples = 1, and one record makes no pair", fix="give two records or more")
        kind = type_of_target(y, input_name="y")
        if self.task != "metric" and kind not in ("binary",):
            raise ConfigError(
                f"Only binary classification is supported. The type of the target is {kind}",
                fix="say which records should rank high: fit(X, y == that class)",
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError("y has one class, and pairs need two", fix="give records of both classes")
        labels: Floats = codes.astype(np.float64)
        return X, labels if self.task == "metric" else 2.0 * labels - 1.0

    def _seed(self) -> int | None:
        """Seed of noise and sampling; None: keys of the operating system."""
        if self.random_state is None:
            return None
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _problem(self, rows: Floats, labels: Floats, seed: int | None) -> PairwiseProblem:
        if self.task not in ("auc", "metric"):
            raise ConfigError(f"task is {self.task!r}", fix='give "auc" or "metric"')
        if not 0.0 < self.radius <= self._largest_radius:
            raise ConfigError(
                f"radius is {self.radius!r}", fix=f"give one above 0, at most {self._largest_radius:g}"
            )
        loss = losses.registered(self._default_loss() if self.loss is None else self.loss)
        if loss.of_errors:
            raise ConfigError("this loss is for relevances", fix="use losses.Logistic() or losses.Hinge()")
        d = rows.shape[1]
        form: losses.Form = "raw" if self.task == "auc" else "metric"
        dim = d if self.task == "auc" else d * (d + 1) // 2
        return PairwiseProblem(rows, labels, loss, form, float(self.radius), dim, seed, np.zeros(dim))

    def _default_loss(self) -> losses.PairLoss:
        return losses.Logistic()

    def _scores(self, rows: Floats) -> Floats:
        out: Floats = rows @ self.coef_
        return out

    def _publish(self, weights: Floats) -> None:
        if self.task == "auc":
            self.coef_, self._link = weights, self._unit(weights)
            return
        self.metric_ = unpacked(weights, self.n_features_in_)
        root = np.empty_like(self.metric_)
        self._root = root if symmetric.psd_root(self.metric_, root) else np.eye(self.n_features_in_)

    def _seen(self, X: Any) -> Floats:
        check_is_fitted(self, "classes_")
        X = validated(self, X, reset=False)
        if not np.isfinite(X).all():
            raise ConfigError("X has NaN or infinity", fix="leave out or fill in such records")
        return designs(X, self.bounds)

    def _unit(self, weights: Floats) -> Link:
        return unit_link(weights, 1.0)

    @_for_task("auc")
    def decision_function(self, X: Any) -> Floats:
        """Scores of records, (n,): higher ranks higher. A pair loss learns no zero, and no threshold."""
        return self._scores(self._seen(X))

    @_for_task("auc")
    def predict(self, X: Any) -> Any:
        """The positive class where `decision_function` is above 0, else the other."""
        high = self.decision_function(X) > 0.0
        return self.classes_[high.astype(int)]

    @_for_task("auc")
    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the two `classes_`, (n, 2): a logistic curve of `decision_function`.

        It costs nothing: the curve is computed from what is released, and a row's own features. It says how
        records rank, and not how common a class is: scores are taken in units of ``|w| / sqrt(d)``, around 0.
        """
        scores = self.decision_function(X)
        high = self._link.many(scores)
        return np.stack([1.0 - high, high], axis=1)

    @_for_task("auc")
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Area under the ROC curve of the scores: a function of X and y without privacy."""
        truth = np.asarray(y) == self.classes_[1]
        return float(roc_auc_score(truth, self.decision_function(X), sample_weight=sample_weight))

    @_for_task("metric")
    def transform(self, X: Any) -> Floats:
        """Records in coordinates in which the Euclidean distance is the learned one, (n, d).

        Times the symmetric root of the positive semi-definite part of W; unchanged if it has none.
        """
        rows = self._seen(X)
        out: Floats = rows @ self._root
        return out

    @_for_task("metric")
    def fit_transform(self, X: Any, y: Any) -> Floats:
        """`fit`, then `transform` of the same records: the result is as secret as they are."""
        out: Floats = self.fit(X, y).transform(X)
        return out


@dataclass(eq=False, repr=False)
class TableLearner(PairLearner):
    """Base of the private learners: a subclass defines the computation and its releases."""

    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    calibration: Literal["tight", "paper"] = "tight"
    start: Any = None

    _scale_fix = "give bounds=(low, high), which are taken as public"

    #: Whether what is learned begins at `start`.
    _starts: ClassVar[bool] = False
    #: Epsilon of a fit that subsampling amplifies; None: it follows from the plans.
    _amplified_epsilon: float | None = None

    @abc.abstractmethod
    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        """Weights that follow from what leaves through the gates of the account."""

    @abc.abstractmethod
    def _describe(self) -> tuple[str, str]:
        """Description for the report, and the paper whose constants `calibration="paper"` takes."""

    def _parallel(self) -> bool:
        """Whether the plans are about disjoint sets of records."""
        return False

    def fit(self, X: Any, y: Any) -> Any:
        """Learn a table: every call is a release of its own, and the releases about a record add up.

        Parameters
        ----------
        X
            Features, (n, d): numbers, and none of them missing.
        y
            Labels, (n,): two classes, or, for a metric, two or more.

        Raises
        ------
        ConfigError
            If a parameter is out of range, or the table cannot be learned: fewer than two records, values
            that are not finite, one class, or more than two for the AUC.
        """
        X, labels = self._table(X, y)
        warn_of_scale(X, self.bounds, self._scale_fix)
        problem = self._problem(designs(X, self.bounds), labels, self._seed())
        account = TableAccount(
            self.epsilon, self.delta, dim=problem.dim, blank=problem.blank, seed=problem.seed
        )
        weights = self._release(problem, account)
        warn_if_doubtful(float(self.epsilon), float(self.delta), problem.n, stacklevel=2)
        self._publish(self._published(problem, weights))
        mechanism, source = self._describe()
        self._report = report_of(
            float(self.epsilon),
            float(self.delta),
            account.plans,
            parallel=self._parallel(),
            releases=account.releases,
            seeded=self.random_state is not None,
            mechanism=mechanism,
            notes=self._notes,
            source=source if self.calibration == "paper" else "",
            spent=self._amplified_epsilon,
        )
        return self

    def _problem(self, rows: Floats, labels: Floats, seed: int | None) -> PairwiseProblem:
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration is {self.calibration!r}", fix='give "tight" or "paper"')
        problem = super()._problem(rows, labels, seed)
        scale = scale_of(self.bounds, self.n_features_in_)
        start, words = warm_start(self.start, self._names(), scale, self.task == "metric")
        if start is not None:
            if not self._starts:
                raise ConfigError(
                    f"start is given, and {type(self).__name__} begins elsewhere", fix="leave it out"
                )
            # The sensitivity of a pair is proved for weights in the ball.
            start = problem.inside(start if start.ndim == 1 else packed(start))
            problem = replace(problem, start=start)
        notes = [] if self.bounds is None else ["The declared bounds are taken as public."]
        self._notes, self._learned = (*notes, *([words] if words else [])), len(rows)
        return problem

    def _published(self, problem: PairwiseProblem, weights: Floats) -> Floats:
        """Project released weights onto the ball."""
        return problem.inside(weights)

    @property
    def privacy(self) -> TableReport | None:
        """Privacy report of the last fit; None before it."""
        return getattr(self, "_report", None)

    def _names(self) -> list[Any]:
        return list(getattr(self, "feature_names_in_", range(self.n_features_in_)))

    def weights_by_name(self) -> dict[Any, float]:
        """Released weights of the features as they came: by name, or by two names for a metric.

        What `bounds` scale is taken into account. Columns without names have numbers.

        Raises
        ------
        ConfigError
            If scores are not linear.
        """
        check_is_fitted(self, "classes_")
        scale = scale_of(self.bounds, self.n_features_in_)
        if self.task == "metric":
            return by_name(self._names(), self.metric_ * np.outer(scale, scale))
        if self.coef_.shape != scale.shape:
            raise ConfigError("the scores of a network are not linear", fix="use hidden=0")
        return by_name(self._names(), self.coef_ * scale)

    def to_online(self, learner: Any, records: int | None = None) -> Any:
        """Let a new online learner go on from the released weights, which costs nothing.

        Records in the stream are given as they were in the table. Those that are longer than 1 once they are
        scaled are shortened here, and not there: put `preprocessing.UnitBall` in front where that matters.

        Parameters
        ----------
        learner
            A new `auc.PairOGD`, or `metric.PairOGD` for a metric.
        records
            As of `PairOGD.begin_at`; None: as many as the table had, which is public.

        Returns
        -------
        learner
            The same.

        Raises
        ------
        ConfigError
            If it cannot begin there.

        Notes
        -----
        Weights are a function of what was released (docs/privacy, Lemma 67). What `PairOGD` learns after
        that is not protected at all.

        Examples
        --------
        >>> import numpy as np
        >>> from streampair import auc, offline
        >>> rng = np.random.default_rng(1)
        >>> y = rng.random(5000) < 0.5
        >>> X = rng.normal(size=(5000, 3)) / 4 + 0.3 * y[:, None]
        >>> model = offline.DPGDSC(epsilon=1.0, delta=1e-6).fit(X, y)
        >>> online = model.to_online(auc.PairOGD())
        >>> bool(np.allclose(online.weights_vector, model.coef_))
        True
        """
        weights = self.weights_by_name()
        begin_at = getattr(learner, "begin_at", None)
        if begin_at is None or hasattr(learner, "metric_") != (self.task == "metric"):
            raise ConfigError(
                f"a {type(learner).__name__} cannot go on from these weights",
                fix=f"give a new {'metric' if self.task == 'metric' else 'auc'}.PairOGD",
            )
        begin_at(weights, self._learned if records is None else records)
        return learner
