"""An online learner as a classifier of scikit-learn: `fit` and `predict` on frames and arrays.

River has a converter, `river.compat.convert_river_to_sklearn`. It turns each table into an array of numbers,
so that it refuses texts and missing values, forgets the names of columns, and has no `decision_function`. It
needs scikit-learn: ``pip install '.[offline]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from streampair import auc
from streampair.base.learner import ClassifierMixin
from streampair.errors import ConfigError
from streampair.records.features import is_missing
from streampair.records.frames import open_frame

try:
    from sklearn import base
    from sklearn.utils import assert_all_finite, check_array
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "streampair.sklearn needs scikit-learn. Fix: pip install '.[offline]' in the clone."
    ) from error

if TYPE_CHECKING:
    from streampair.privacy.accounting import PrivacyReport

__all__ = ["Classifier"]


class Classifier(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A learner of `streampair.auc` with scikit-learn's interface, for pipelines, searches and validation.

    Of the two classes, sorted, the second ranks high, as everywhere in scikit-learn. Rows are learned once,
    in their order: shuffle a table that is sorted by class. Columns of a frame may be texts and have missing
    values where the learner takes them. As in scikit-learn, a later frame has the columns of the first one in
    the same order; columns of an array, or whose names are no strings, are matched by position.

    Parameters
    ----------
    learner
        A learner of `streampair.auc` with two classes and the default `positive`. None is `auc.PairOGD()`.
        It is not changed: `fit` learns with a clone. Its parameters are ``learner__radius`` and so on in
        `set_params` and in searches.

    Attributes
    ----------
    classes_
        The two labels, sorted.
    learner_
        The fitted learner.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    Each fit of a private learner spends a budget of its own. On the same records these add up: k-fold
    cross-validation of a learner with budget mu spends up to ``sqrt(k - 1) mu`` on each record.

    Examples
    --------
    >>> import pandas as pd
    >>> from streampair.sklearn import Classifier
    >>> X = pd.DataFrame({"amount": [9.0, 1.0, None, 2.0] * 50, "country": ["BE", "NL", "BE", "NL"] * 50})
    >>> model = Classifier().fit(X, ["fraud", "fine", "fraud", "fine"] * 50)
    >>> model.predict(X[:2]), model.classes_
    (array(['fraud', 'fine'], dtype='<U5'), array(['fine', 'fraud'], dtype='<U5'))
    """

    classes_: NDArray[Any]
    learner_: Any
    # Names of the columns of the first fit, and the library of its frame; None: it was an array.
    _columns: list[Any]
    _library: Any

    def __init__(self, learner: Any = None) -> None:
        self.learner = learner

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = getattr(self.learner or auc.PairOGD, "takes_gaps", False)
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """`learner`, and if `deep` its parameters as ``learner__NAME``."""
        usable = self.learner is None or isinstance(self.learner, ClassifierMixin)
        inner = self._template()._get_params() if deep and usable else {}
        return {"learner": self.learner, **{f"learner__{name}": value for name, value in inner.items()}}

    def set_params(self, **params: Any) -> Self:
        """Set `learner`, or parameters of a copy of it."""
        if "learner" in params:
            self.learner = params.pop("learner")
        if not params:
            return self
        known = self.get_params()
        for name in params:
            if name not in known:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}. Fix: use one of {', '.join(known)}."
                )
        changed = {name.removeprefix("learner__"): value for name, value in params.items()}
        self.learner = self._template().clone(changed)
        return self

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the rows of a frame or an array, in order, from the beginning; an error changes nothing."""
        learner = self._template()
        if learner.positive is not True:
            raise ConfigError(
                f"the learner has positive={learner.positive!r}",
                fix="leave positive and negative out: of the sorted labels the second ranks high",
            )
        fitted = dict(vars(self))
        self.__dict__.pop("learner_", None)
        try:
            return self._learn(learner.clone(), X, y, None)
        except BaseException:
            self.__dict__ = fitted
            raise

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn further rows; the first call needs `classes`, or has rows of both."""
        if not hasattr(self, "learner_"):
            return self.fit(X, y) if classes is None else self._learn(self._template().clone(), X, y, classes)
        return self._learn(self.learner_, X, y, None)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores of the rows, (n,): higher is more likely the second class. 0 is not the boundary."""
        check_is_fitted(self, "learner_")
        X = self._rows(X, reset=False)
        if hasattr(X, "columns"):
            return np.asarray(self.learner_.score_many(X), dtype=np.float64)
        return np.asarray(self.learner_.score_rows(self._columns, X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of both classes, (n, 2)."""
        scores = self.decision_function(X)
        p = self.learner_.probabilities_of(scores)
        return np.column_stack([1.0 - p, p])

    def predict(self, X: Any) -> NDArray[Any]:
        """The likelier class of each row, (n,)."""
        likely = self.predict_proba(X)[:, 1] > 0.5
        labels: NDArray[Any] = self.classes_[likely.astype(np.intp)]
        return labels

    @property
    def privacy(self) -> PrivacyReport | None:
        """The report of a fitted private learner; None before, and of one that is not private."""
        report: PrivacyReport | None = getattr(getattr(self, "learner_", None), "privacy", None)
        return report

    def _template(self) -> Any:
        """The learner of which `fit` makes clones."""
        if self.learner is None:
            return auc.PairOGD()
        if not isinstance(self.learner, ClassifierMixin):
            raise ConfigError(
                f"learner is a {type(self.learner).__name__}",
                fix="give a learner of streampair.auc with two classes; steps in front of it belong into a "
                "pipeline of scikit-learn",
            )
        return self.learner

    def _rows(self, X: Any, *, reset: bool) -> Any:
        """A frame with the columns of the first fit, or an array of numbers with columns in their order."""
        gaps = "allow-nan" if self._template().takes_gaps else True
        numbers = {"dtype": np.float64, "order": "C", "ensure_all_finite": gaps}
        if not hasattr(X, "columns"):
            X = validate_data(self, X, reset=reset, **numbers)
            if reset:
                self._columns, self._library = list(range(X.shape[1])), None
            return X
        validate_data(self, X, reset=reset, skip_check_array=True)
        frame = open_frame(X)
        names: list[Any] = list(frame.columns)
        if reset:
            self._columns, self._library = names, frame.implementation
        if set(names) == set(self._columns):
            return X
        if set(names) & set(self._columns):
            raise ConfigError(
                f"the frame has columns {names}, and the first fit had {self._columns}",
                fix="give a frame with the columns of fit, or an array with columns in their order",
            )
        return check_array(X, estimator=self, input_name="X", **numbers)

    def _learn(self, learner: Any, X: Any, y: Any, classes: Any) -> Self:
        """Learn rows; what was fitted stays as it is if they cannot be used."""
        if y is None:
            raise ValueError("Classifier requires y to be passed, but the target y is None")
        first = not hasattr(self, "learner_")
        X = self._rows(X, reset=first)
        if not hasattr(X, "columns") and self._library is not None:
            X = nw.from_numpy(X, list(map(str, self._columns)), backend=self._library).to_native()
            if not all(isinstance(name, str) for name in self._columns):
                X.columns = self._columns  # of pandas: other libraries have texts alone
        for labels, name in ((y, "y"), (classes, "classes")):
            cells = np.asarray(labels)
            if labels is not None and cells.dtype == object and any(map(is_missing, cells.ravel())):
                raise ConfigError(f"{name} has missing labels", fix="leave out rows without a label")
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        seen = y if classes is None else classes
        labels = np.unique(seen) if first else self.classes_
        if (first and kind != "binary") or len(labels) > 2:
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        if len(labels) < 2:
            raise ConfigError("y has one class, and pairs need two", fix="give records of both classes")
        if not np.isin(y, labels).all():
            raise ConfigError(f"y has labels beyond {labels.tolist()}", fix="give classes=")
        learner.learn_many(X, y == labels[1])
        self.classes_, self.learner_ = labels, learner
        return self
