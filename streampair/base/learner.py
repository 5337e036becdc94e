"""The base class of all learners, and the mixins that implement River's interfaces.

The base class has data frames, state and HTML repr; `Columns` are those of the features.
"""

from __future__ import annotations

import abc
import difflib
import functools
import gc
import inspect
import math
import struct
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair import kernels, losses
from streampair.base.targets import BinaryTarget, ClassTarget, OneClassTarget, RelevanceTarget, Target
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import metric, sparse, symmetric, vectors
from streampair.privacy._repr_html import table
from streampair.privacy.mechanism_options import option_of
from streampair.privacy.pipeline_check import class_name
from streampair.records import features
from streampair.records.features import as_number
from streampair.records.frames import FeatureTable, label_values

if TYPE_CHECKING:
    from streampair.privacy.accounting import PrivacyReport

__all__ = [
    "ClassifierMixin",
    "Columns",
    "Explanation",
    "Learner",
    "MulticlassClassifierMixin",
    "RegressorMixin",
    "TransformerMixin",
    "learner_html",
    "map_of",
    "symmetric_of",
]

_LONGEST = 80
#: Features that are named; a learner may have thousands.
_NAMED = 20


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def learner_html(learner: Learner) -> str:
    """HTML repr: parameters and progress, without values from records; then the report of a private learner.

    Weights are left out: without privacy they are functions of raw data, and notebooks
    are passed on.
    """
    names = [_short(name) for name in learner.feature_names[:_NAMED]]
    if len(learner.feature_names) > _NAMED:
        names.append(f"and {len(learner.feature_names) - _NAMED} more")
    rows: list[tuple[str, object]] = [
        (name, _short(getattr(learner, name))) for name in learner._get_params()
    ]
    rows += [
        ("records", f"{learner.records:,}"),
        ("columns", ", ".join(names) if names else "not known yet"),
    ]
    report = learner.privacy
    report_html = "" if report is None else report._repr_html_()
    privacy = "" if report is not None else "<p>Not private: nothing is promised of what it gives away.</p>"
    name = ".".join(class_name(learner).split(".")[-2:])
    return f"<div>{table(name, rows)}{privacy}{report_html}</div>"


Array = NDArray[np.float64]
_R = TypeVar("_R")

# What a learner refers to and does not own.
_CODE = (type, ModuleType, FunctionType, kernels.Kernel)


@functools.lru_cache(maxsize=256)
def _parameters(cls: type) -> tuple[str, ...] | None:
    """Names of a constructor's parameters; None: any."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]  # to look at
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else tuple(p.name for p in parameters)


class _OwnSignature:
    """The signature of a class is that of its constructor, although `__new__` takes anything."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        whole = inspect.signature(owner.__init__)  # type: ignore[misc]  # to look at
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def _check_known(cls: type, names: Iterable[str]) -> None:
    """Raise TypeError for an unknown parameter, and suggest a similar name."""
    known = _parameters(cls)
    if known is None:
        return
    for name in names:
        if name not in known:
            option = option_of(name) if "mechanism" in known else None
            if option is not None:
                raise TypeError(f"{cls.__name__} has no parameter {name!r}. Fix: give mechanism={option}.")
            initials = {"".join(word[:1] for word in k.split("_")): k for k in known if "_" in k}
            near = [initials[name]] if name in initials else difflib.get_close_matches(name, known, n=1)
            raise TypeError(
                f"{cls.__name__} has no parameter {name!r}{f', did you mean {near[0]!r}?' if near else '.'} "
                f"Fix: use one of {', '.join(known)}."
            )


class Explanation(NamedTuple):
    """Additive explanation of a score: baseline and contributions add up to it, up to rounding.

    Attributes
    ----------
    baseline
        Of a forest the mean prediction of the trees at their roots; of a linear learner 0.
    features
        Of a forest the contribution of each known feature: its linear terms, and the changes of mean at its
        splits. Of a linear learner weights times scaled values, where they are not 0.
    """

    baseline: float
    features: dict[Any, float]


class Learner(base.Estimator):
    """Base of all pair learners: learns records in order, one by one or the rows of a frame.

    A mixin provides the task; a subclass `learn_one`, `_learn_rows`, `feature_names`, `pair_loss`, scores or
    designs, `_export` and `_import`.
    """

    # Whether a cell of a frame that is no number is an error (else it reaches `_learn_rows` as NaN).
    _strict_frames: ClassVar[bool] = True
    #: Whether a text is a feature like any other.
    takes_text: ClassVar[bool] = False
    #: Whether records with missing features are scored and learned like others.
    takes_gaps: ClassVar[bool] = False
    #: Whether None is a missing value, other than a feature that a record does not have.
    takes_nulls: ClassVar[bool] = False

    #: Whether predictions may show a label that a record brought, and nobody declared.
    _learns_labels: ClassVar[bool] = True

    # Attributes that `_bind` and `_import` rebuild: scratch, spare capacity, compiled accessors.
    _derived: ClassVar[frozenset[str]] = frozenset()

    _task: Target
    _y_name: Any = None
    # The label that predictions of a classifier show for what ranks low; None: it is not known yet.
    _negative: Any = None
    # Whether predictions lack a label that ranks low, until one is learned.
    _unnamed: bool = False

    __signature__ = _OwnSignature()

    def __new__(cls, *args: Any, **params: Any) -> Self:
        if params:
            _check_known(cls, params)
        return super().__new__(cls)

    # ---- what a face provides --------------------------------------------------------------------------

    @abc.abstractmethod
    def _make_task(self) -> Target:
        """The label encoder for the parameters.

        Raises
        ------
        ConfigError
        """

    def _bind(self) -> None:
        """Rebuild the attributes in `_derived` that follow from the parameters."""

    # ---- what an engine provides -----------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the columns of the design, in order."""

    @property
    @abc.abstractmethod
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""

    @property
    @abc.abstractmethod
    def comparator_radius(self) -> float:
        """Radius of the ball that the weights, and so the comparator of a regret, are kept in."""

    @property
    @abc.abstractmethod
    def records(self) -> int:
        """Number of records taken."""

    @property
    def buffer_records(self) -> int | None:
        """Number of records in the buffer; None without one."""
        return None

    @abc.abstractmethod
    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of the record that the published weights are applied to."""

    @abc.abstractmethod
    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Design vectors of several records, shape (n, d)."""

    def comparator_design(self, xs: Sequence[Mapping[Any, Any]]) -> Any:
        """What the weights of the comparator of a regret multiply, (n, d), up to a constant for each column.

        An array, or a sparse matrix of SciPy. The ball of the comparator has the radius `comparator_radius`.
        These are the design vectors, of a learner that scales features in units of their spreads.
        """
        return self.design_many(xs)

    @abc.abstractmethod
    def _design_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Designs (n, d) of the raw rows (n, columns) of a frame.

        Raises
        ------
        RecordError
            If a value cannot be used.
        """

    @abc.abstractmethod
    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Linear scores (n,) of raw rows: the same bits as `score_one` row by row."""

    @abc.abstractmethod
    def _proba(self, score: float) -> float:
        """Probability that a record of this score has the label that ranks high."""

    @abc.abstractmethod
    def _probas(self, scores: Array) -> Array:
        """`_proba` of each of the scores (n,): the same bits."""

    @abc.abstractmethod
    def _published(self) -> Array:
        """Published weights, possibly as a view."""

    @abc.abstractmethod
    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """Learn (n, columns) raw rows in order, with one kernel call; nothing changes if it raises."""

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        """Linear scores (n,) of raw rows, each before it is learned; nothing changes if it raises."""
        self._score_rows(columns, rows)  # whatever cannot be used is found before anything is learned
        scores = np.empty(len(rows))
        for i in range(len(rows)):
            scores[i : i + 1] = self._score_rows(columns, rows[i : i + 1])
            self._learn_rows(columns, rows[i : i + 1], labels[i : i + 1])
        return scores

    @abc.abstractmethod
    def _export(self) -> dict[str, Any]:
        """Export what has been learned, as plain values and arrays."""

    @abc.abstractmethod
    def _import(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `_export`; ValueError and the like if it is not one."""

    @property
    def _raw_memory_usage(self) -> int:
        """Memory in bytes, for River: without compiled code, which all learners share."""
        todo: list[object] = [self]
        seen: dict[int, object] = {}
        while todo:
            item = todo.pop()
            if id(item) in seen or isinstance(item, _CODE):
                continue
            seen[id(item)] = item
            todo += gc.get_referents(item)
            if isinstance(item, np.ndarray) and item.base is not None:
                todo.append(item.base)  # a view has its bytes there
        return sum(sys.getsizeof(item) for item in seen.values())

    def _repr_html_(self) -> str:
        return learner_html(self)

    # ---- River -----------------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyReport | None:
        """The privacy report: guarantee and spent budget; None for a learner without privacy."""
        return None

    @property
    def two_classes(self) -> bool:
        """Whether there are two classes, so that a buffer can be kept for each."""
        return self._task.two_classes

    @property
    def pair_form(self) -> losses.Form:
        """Form of the pair margin, from two labels and the weights: see `streampair.losses`."""
        return self._task.form

    def label_number(self, y: Any) -> float:
        """The number of a label in the margin of a pair; NaN if it cannot be used."""
        return self._task.label_or_null(y)

    @property
    def _reads_records(self) -> bool:
        """Whether rows with texts are taken as records, cell by cell."""
        return False

    def _learn_records(self, xs: Sequence[Mapping[Any, Any]], labels: Array, scored: bool) -> Array | None:
        """Learn the rows of a frame that has texts; scores of each before it, if `scored`."""
        raise NotImplementedError

    def _score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Scores (n,) of the rows of a frame that has texts."""
        raise NotImplementedError

    def _table(self, X: Any, *, strict: bool = True) -> FeatureTable:
        """The rows of a frame or an array."""
        names, records = self.feature_names, self._reads_records
        table = FeatureTable(X, strict=strict, names=names, read=self._read_cell, records=records)
        table.check_names(self._names_of_arrays())
        return table

    def _names_of_arrays(self) -> Sequence[Hashable]:
        """The features that columns of arrays may be."""
        return self.feature_names

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """Label numbers, as the kernels take them."""
        return self._task.labels(y)

    def _learn_label(self, y: Any) -> None:
        """Use this label that ranks low in predictions; None: there is none yet."""

    def _learned_labels(self) -> dict[str, Any]:
        """The learned label, as part of a state."""
        return {}

    def _checked_label(self, saved: Mapping[str, Any]) -> Any:
        """The learned label of a saved state, or None. ValueError if it cannot be one."""

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame or an array in order: as `learn_one` row by row, bit for bit.

        The work is one call of compiled code, without Python's global lock.

        Parameters
        ----------
        X
            Data frame of numbers (pandas, polars or another that narwhals knows), or NumPy array of shape
            (n, d): its features are named 0 to d - 1.
        y
            Series or NumPy array of labels, one for each row.

        Raises
        ------
        RecordError
            If any cell or label cannot be used, or if it is an array and the learner knows its features by
            other names; then no row has been learned.
        """
        self._with_rows(X, y, self._learn_rows)

    def _with_rows(
        self, X: Any, y: Any, take: Callable[[list[Hashable], Array, Array], _R]
    ) -> tuple[FeatureTable, _R | None]:
        """Check rows and labels, and pass them to `take`; without rows the result is None."""
        table = self._table(X, strict=self._strict_frames)
        values, name = label_values(y)
        if len(table) != len(values):
            raise RecordError(
                f"there are {len(table)} rows and {len(values)} labels",
                fix="give one label for each row",
                stage="label",
            )
        self._check_types(table, y, values)
        labels = self._labels(values)
        taken: Any = None
        if len(labels) and table.records is not None:
            taken = self._learn_records(table.records, labels, take == self._score_learn_rows)
        elif len(labels):
            try:
                taken = take(table.columns, table.rows, labels)
            except RecordError:  # names the first cell of a row, in what order its frame has
                take(*table.columns_and_rows(), labels)
                raise
        self._y_name = name
        if self._unnamed and (labels < 0.0).any():
            self._learn_label(values[int(np.argmax(labels < 0.0))])
        return table, taken

    @staticmethod
    def _read_cell(cell: Any) -> float:
        """The number in a cell, of a record or an object column; raises if it is none."""
        return as_number(cell)

    def _check_types(self, table: FeatureTable, y: Any, values: NDArray[Any] | list[Any]) -> None:
        """Check the types of columns and labels: a hook for private learners."""

    # ---- linear scores ---------------------------------------------------------------------------------

    @property
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), in the order of `feature_names`: a copy."""
        return self._published().copy()

    @property
    def weights(self) -> dict[Any, float]:
        """Published weights by feature name."""
        return dict(zip(self.feature_names, self.weights_vector.tolist(), strict=True))

    @property
    def scaled_weights(self) -> dict[Any, float]:
        """`weights` in units of the features as the learner scales them, which can be compared."""
        return self.weights

    @property
    def weights_noise(self) -> dict[Any, float] | None:
        """Standard deviation of what noise adds to each of `weights`, about; of a private learner.

        Computed from releases and the plan alone, so that it costs nothing. None where there is no noise,
        before a model is released, and of learners by gradients: their later steps answer to the noise by as
        much as the records say, which is not released, so how much of it is left in the weights is not known.

        Examples
        --------
        >>> import random
        >>> from streampair import auc
        >>> draw = random.Random(0)
        >>> model = auc.PairFTRL(epsilon=2.0, delta=1e-4, horizon=2000, features=["a", "b"])
        >>> for _ in range(2000):
        ...     x = {"a": draw.gauss(0.0, 1.0), "b": draw.gauss(0.0, 1.0)}
        ...     model.learn_one(x, x["a"] > 0.0)
        >>> sorted(model.weights_noise), 0.0 < model.weights_noise["b"] < model.weights["a"]
        (['a', 'b'], True)
        """
        noise = self._noise_of_weights()
        return None if noise is None else dict(zip(self.feature_names, noise.tolist(), strict=True))

    def _noise_of_weights(self) -> Array | None:
        """Noise std of the published coordinates."""
        return None

    @abc.abstractmethod
    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published weights: higher ranks higher."""

    def _table_scores(self, X: Any) -> tuple[FeatureTable, Array]:
        table = self._table(X)
        if table.records is not None:
            return table, self._score_records(table.records)
        try:
            return table, self._score_rows(table.columns, table.rows)
        except RecordError:  # names the first cell of a row, in what order its frame has
            return table, self._score_rows(*table.columns_and_rows())

    def score_many(self, X: Any) -> Any:
        """Scores of the rows: of a frame as a series of the same kind with its index, of an array as one."""
        table, scores = self._table_scores(X)
        return table.series(scores, None)

    def score_rows(self, names: Sequence[Hashable], rows: Array) -> Array:
        """Scores of the rows of an array.

        Parameters
        ----------
        names
            Of its columns.
        rows
            Array of shape (n, d), float64.

        Returns
        -------
        array of shape (n,)

        Raises
        ------
        RecordError
            If a value cannot be used.
        """
        return self._score_rows(list(names), rows)

    # ---- state -----------------------------------------------------------------------------------------

    def _fingerprint(self) -> dict[str, object]:
        """Class and constructor parameters as text: what a saved state must agree with."""
        params = {name: repr(getattr(self, name)) for name in self._get_params()}
        return {"class": class_name(self), **params}

    def _checked_export(self) -> dict[str, object]:
        """Result of `to_state`, if a snapshot can hold the feature names."""
        return self._checked(self._export())

    def _checked(self, exported: Mapping[str, Any]) -> dict[str, object]:
        """An exported state with the fingerprint that a restoring learner must match."""
        for name in self.feature_names:
            if not isinstance(name, str | int | float):
                raise SnapshotError(
                    f"the feature name {name!r} is a {type(name).__name__}, which a snapshot cannot hold",
                    fix="use text as feature names",
                )
        return {"version": 1, "params": self._fingerprint(), **exported}

    def _checked_import(
        self, state: Mapping[str, object], take: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        """Take a state of this version and of a learner with these parameters; `take`: by default a state."""
        if not isinstance(state, Mapping):
            raise SnapshotError(
                f"a {type(state).__name__} is no saved state",
                fix="give what `to_state` returned, or `plan` to `load_plan`",
            )
        if state.get("version") != 1:
            raise SnapshotError(
                f"the saved state has version {state.get('version')!r}, this release reads version 1",
                fix="use the release that saved it",
            )
        self._check_fingerprint(state)
        try:
            (self._import if take is None else take)(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, SnapshotError) as error:
            raise SnapshotError(
                f"the saved state is damaged ({error})",
                fix="load an undamaged copy of the newest state; an older one forgets releases",
            ) from None

    def _check_fingerprint(self, state: Mapping[str, object]) -> None:
        saved = state.get("params")
        if not isinstance(saved, Mapping):
            raise SnapshotError(
                "the saved state has no parameters, so it is not a state of this package",
                fix="give what `to_state` returned",
            )
        params = self._fingerprint()
        for name in sorted(params.keys() | saved.keys()):
            if params.get(name) != saved.get(name):
                raise SnapshotError(
                    f"the saved state belongs to a learner with {name}={saved.get(name)}, "
                    f"this one has {name}={params.get(name)}",
                    fix="construct the learner with the parameters that the state was saved with",
                )

    def to_state(self) -> dict[str, object]:
        """Export the state: everything that has been learned, as plain values and arrays.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        out = self._checked_export()
        if not isinstance(self._y_name, str):
            out["y_name"] = None
        return out

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue, bit for bit, from what `to_state` of a learner with the same parameters returned.

        Raises
        ------
        SnapshotError
            If the state is of another learner or another version, or damaged; then nothing has changed.
        """
        self._checked_import(state)

    def __getstate__(self) -> dict[str, Any]:
        # Includes attributes that callers have set.
        attributes = {name: value for name, value in self.__dict__.items() if name not in self._derived}
        return {"own": attributes, "saved": self._export()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self._bind()
        self._import(state["saved"])

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> Self:
        """A fresh learner with the same parameters, or with those in `new_params`.

        With `include_attributes` it also takes what this one has learned.
        """
        copy: Self = super().clone(new_params)
        if include_attributes:
            copy._import(self._export())
        return copy


@lru_cache(maxsize=1024)
def _packer(count: int) -> Callable[..., None]:
    """A function that packs `count` places, and then as many values."""
    return struct.Struct(f"{count}q{count}d").pack_into


class Columns:
    """Assigns each feature name a column, in order of arrival, and packs records into the state of a learner.

    Parameters
    ----------
    missing
        Value of a known feature that a record lacks.

    Attributes
    ----------
    index
        Column of each known name.
    count
        Number of known names, d.
    record
        Where the state has the record, (d,).
    expected
        Number of features of a record that `take` and `pack` write; -1 while they are not made.
    take, pack
        ``pack(*take(x))`` writes a record x that has exactly the known features.
    gathered
        Scratch (m,): the places that `gather` found, then the values.
    """

    __slots__ = ("_missing", "_names", "count", "expected", "gathered", "index", "pack", "record", "take")

    take: Callable[[Any], tuple[Any, ...]]
    pack: Callable[..., None]
    record: Array

    def __init__(self, missing: float = 0.0) -> None:
        self._missing = missing
        self.clear()

    def clear(self) -> None:
        """Forget all names."""
        self.index: dict[Hashable, int] = {}
        self.gathered: Array = np.empty(0)
        self.count, self.expected = 0, -1
        self._names: tuple[Hashable, ...] | None = None

    def add(self, names: Iterable[Hashable], state: Array, start: int) -> None:
        """Assign the next columns to new names; the record begins at `start` of the state, which has room."""
        index = self.index
        for name in names:
            index[name] = len(index)
        self.count, self._names, self.expected = len(index), None, -1
        self.record = state[start : start + self.count]

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Known names, in the order of their columns."""
        if self._names is None:
            self._names = tuple(self.index)
        return self._names

    def match(self, names: Sequence[Hashable]) -> bool:
        """Whether these are exactly the known names, in any order."""
        return len(names) == self.count and all(map(self.index.__contains__, names))

    def arrange(self, names: Sequence[Hashable], rows: Array) -> Array:
        """Rows (n, len(names)) in the order of the columns, (n, d); absent ones are `missing`."""
        return features.arrange(names, rows, self.names, self.index, self._missing)

    def prepare(self, x: Mapping[Any, Any]) -> None:
        """Build `take` and `pack` for records with exactly the known features, if x is one."""
        if len(x) == self.count and x.keys() == self.index.keys():
            place: Any = self.record
            # Bound to the record's memory, so that packing needs no argument list.
            self.pack = partial(struct.Struct(f"{self.count}d").pack_into, memoryview(place), 0)
            self.take = features.getter(self.names)
            self.expected = self.count

    def check_room(self, new: int, most: int) -> None:
        """Refuse `new` further names if there would be more than `most`, the `max_features` of a learner.

        Raises
        ------
        RecordError
        """
        names = self.count + new
        if names > most:
            raise RecordError(
                f"the record has new feature names, and with them there would be {names}, "
                f"more than max_features={most}",
                fix="hash or select the features first, or raise max_features",
            )

    def scratch(self, count: int) -> Array:
        """`gathered`, with room for so many places and values."""
        if len(self.gathered) < 2 * count:
            self.gathered = np.empty(4 * count)
        return self.gathered

    def gather(self, values: Mapping[Any, Any]) -> bool:
        """Gather places and values of a record; False if a name is unknown or a value is no number."""
        count, index = len(values), self.index
        self.scratch(count)
        try:
            # The quickest way from names to places.
            places = itemgetter(*values)(index) if count > 1 else [index[name] for name in values]
            _packer(count)(self.gathered.data, 0, *places, *values.values())
        except Exception:  # an unknown name, or any error of a value
            return False
        return True

    def scatter(self, values: Mapping[Any, Any]) -> bool:
        """Write a record; False, with nothing written, if a name is unknown or a value is no number."""
        gathered = self.gather(values)
        count = len(values)
        if gathered and count == self.count:  # all: no kernel is to be compiled for that
            self.record[self.gathered[:count].view(np.int64)] = self.gathered[count : 2 * count]
        elif gathered:
            sparse.scatter(self.gathered, count, self._missing, self.record)
        return gathered


def symmetric_of(coordinates: Array, d: int) -> Array:
    """The matrix of isometric coordinates: upper triangle, entries off the diagonal times sqrt(2)."""
    out = np.zeros((d, d))
    out[np.triu_indices(d)] = coordinates
    out *= math.sqrt(0.5)
    out = out + out.T
    diagonal = np.diag_indices(d)
    out[diagonal] *= math.sqrt(0.5)
    return out


def map_of(w: Array) -> Array | None:
    """Symmetric root of the positive semi-definite part of W (d, d); None, the identity, where that is 0."""
    out = np.empty_like(w)
    return out if len(w) and symmetric.psd_root(w, out) else None


# Methods of several mixins, which have no other base in common than `Learner`.


def _score_learn_many(self: Learner, X: Any, y: Any) -> Any:
    """Scores of the rows, each under the model before it, and learn them: `score_one`, then `learn_one`,
    row by row, bit for bit.

    What an evaluation of a stream needs (predict, then learn), in one call of compiled code for the
    learners that are not private.

    Parameters
    ----------
    X, y
        As of `learn_many`.

    Returns
    -------
    series or array
        Of a frame as a series of the same kind with its index, of an array as one. For a private learner
        NaN where a row cannot be scored: it takes its slot as in `learn_one`, and the others are as they
        would be without it.

    Raises
    ------
    RecordError
        If any cell or label cannot be used; then no row has been learned. Not for a private learner.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import auc
    >>> X = np.array([[1.0], [0.0], [1.0], [0.5], [1.0]])
    >>> auc.PairOGD().score_learn_many(X, np.array([True, False, True, False, True])).round(2)
    array([ 0.  ,  0.  ,  0.06, -0.03,  0.1 ])
    """
    table, scores = self._with_rows(X, y, self._score_learn_rows)
    return table.series(np.empty(0) if scores is None else scores, None)


def _probabilities_of(self: Learner, scores: Array) -> Array:
    """Probabilities of the `positive` label, (n,), that the model gives now for these scores (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import auc
    >>> model = auc.PairOGD()
    >>> for a, y in [(0.9, True), (0.1, False)] * 20:
    ...     model.learn_one({"a": a}, y)
    >>> x = {"a": 0.9}
    >>> model.probabilities_of(np.array([model.score_one(x)]))[0] == model.predict_proba_one(x)[True]
    np.True_
    """
    return self._probas(np.asarray(scores, dtype=np.float64))


@dataclass(eq=False, repr=False)
class MulticlassClassifierMixin(Learner, base.MiniBatchClassifier):
    """Distinguishes classes, and ranks the records of one of them above all others; River's classifier."""

    _: KW_ONLY
    positive: Any = True

    def _make_task(self) -> OneClassTarget:
        return OneClassTarget(self.positive)

    score_learn_many = _score_learn_many
    probabilities_of = _probabilities_of


@dataclass(eq=False, repr=False)
class ClassifierMixin(Learner, base.MiniBatchClassifier):
    """Ranks the records of one label above those of another; River's classifier.

    Where labels are neither True and False nor 1 and 0 and no `negative` is declared, every label of the type
    of `positive` ranks low, and the first of them that was learned stands for all in predictions.
    """

    _: KW_ONLY
    positive: Any = True
    negative: Any = None

    def _make_task(self) -> BinaryTarget:
        task = BinaryTarget(self.positive, self.negative)
        self._negative = task.negative
        self._unnamed = task.negative is None
        if self._unnamed and not self._learns_labels:
            raise ConfigError(
                f"positive is {self.positive!r}, and the label that ranks low is not declared; a private "
                "learner takes it from no record, because its predictions would show it",
                fix="give negative=, for example positive='yes', negative='no'",
            )
        return task

    def _learned_labels(self) -> dict[str, Any]:
        return {"negative": self._negative} if self._task.negative is None and not self._unnamed else {}

    def _checked_label(self, saved: Mapping[str, Any]) -> Any:
        label = saved.get("negative")
        task = self._task
        if label is not None and (task.negative is not None or task.label_or_null(label) != -1.0):
            raise ValueError("a negative label that is none")
        return label

    def _learn_label(self, y: Any) -> None:
        if self._task.negative is None:
            self._negative = y.item() if isinstance(y, np.generic) else y
            self._unnamed = y is None

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{negative: 1 - p, positive: p}`` with p an increasing function of the score.

        A pairwise loss learns no intercept and no scale, so the function has two parameters of its own: see
        the notes of the class. The keys are the labels: False and True, unless others were declared or seen.
        Before the first negative label that is not declared there is only `positive`.
        """
        return self._labelled(self._proba(self.score_one(x)))

    def _labelled(self, p: float) -> dict[Any, float]:
        """The probabilities of both labels."""
        return {self.positive: p} if self._unnamed else {self._negative: 1.0 - p, self.positive: p}

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Any:
        """The label `positive` if p is above one half, else the other one; None if that is not known yet."""
        return self.positive if self._proba(self.score_one(x)) > 0.5 else self._negative

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the rows; columns are the negative label, if it is known, and `positive` (as text
        outside pandas, without names for an array).
        """
        table, scores = self._table_scores(X)
        p = self._probas(scores)
        low = {} if self._unnamed else {self._negative: 1.0 - p}
        return table.frame(low | {self.positive: p})

    score_learn_many = _score_learn_many
    probabilities_of = _probabilities_of

    def predict_many(self, X: Any) -> Any:
        """Predicted labels of the rows, as a series with the frame's index, or an array."""
        table, scores = self._table_scores(X)
        low, high = self._negative, self.positive
        # As they are: NumPy alone would make a text of a number that stands with a text.
        labels = np.array([low, high], dtype=None if type(low) is type(high) else object)
        return table.series(labels[(self._probas(scores) > 0.5).astype(np.intp)], self._y_name)


@dataclass(eq=False, repr=False)
class RegressorMixin(Learner, base.MiniBatchRegressor):
    """Ranks records by a real-valued relevance; River's regressor."""

    _: KW_ONLY
    relevance: tuple[float, float] | None = (-1.0, 1.0)

    def _make_task(self) -> RelevanceTarget:
        return RelevanceTarget(self.relevance)

    score_learn_many = _score_learn_many

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The score: higher ranks higher. Only differences are learned, so its zero means nothing."""
        return self.score_one(x)

    def predict_many(self, X: Any) -> Any:
        """Scores of the rows: of a frame as a series of the same kind with its index, of an array as one."""
        table, scores = self._table_scores(X)
        return table.series(scores, self._y_name)


class TransformerMixin(  # type: ignore[misc]  # River's own classes take labels, or do not
    Learner, base.MiniBatchSupervisedTransformer, base.MiniBatchTransformer, base.SupervisedTransformer
):
    """Learns distances: near within a class, far between classes; River's supervised transformer.

    River looks for each of its classes somewhere. A Pipeline takes a step for a transformer only if it is a
    `TransformerMixin` (both mini-batch classes are), and a last step transforms frames only if it is a
    `MiniBatchTransformer`; a TransformerUnion hands labels on only to a `SupervisedTransformer`, and those of
    frames only to a `MiniBatchSupervisedTransformer`.
    """

    # What a private one releases, for its report.
    _product = "weights of a metric"
    # The map of the published metric and the number of records that it is of; see `_map`.
    _root: tuple[int, Array | None] = (-1, None)

    def _make_task(self) -> ClassTarget:
        return ClassTarget(getattr(self, "classes", None))

    @property
    def metric_(self) -> Array:
        """Published W, symmetric, shape (d, d), in the order of `feature_names`: a copy."""
        w = self._published()
        return w.copy() if w.ndim == 2 else symmetric_of(w, len(self.feature_names))

    @property
    def pair_form(self) -> losses.Form:
        """``"psd"`` where W is kept positive semi-definite, else ``"metric"``."""
        return "psd" if getattr(self, "psd", False) else "metric"

    def quadratic_many(self, x: Mapping[Any, Any], others: Sequence[Mapping[Any, Any]]) -> Array:
        """``u'Wu`` for the difference u of a record from each of the others, (n,).

        What the pair loss is of; a squared distance only where W is positive semi-definite. 0 before
        anything is learned.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        rows = self.design_many([x, *others])
        u = rows[1:] - rows[0]
        out: Array = np.einsum("ij,ij->i", u @ self.metric_, u)
        return out

    @property
    def weights_vector(self) -> Array:
        """Entries of W, row by row, shape (d * d,): a copy."""
        return self.metric_.ravel()

    @property
    def _supervised(self) -> bool:
        return True

    @property
    def weights(self) -> dict[tuple[Any, Any], float]:
        """Entries of W by the names of two features, both ways round."""
        w, names = self.metric_.tolist(), self.feature_names
        return {(a, b): w[i][j] for i, a in enumerate(names) for j, b in enumerate(names)}

    @property
    def weights_noise(self) -> dict[tuple[Any, Any], float] | None:
        """Standard deviation of what noise adds to each of `weights`; None where it is not known."""
        noise = self._noise_of_weights()
        if noise is None:
            return None
        entries, names = symmetric_of(noise, len(self.feature_names)).tolist(), self.feature_names
        return {(a, b): entries[i][j] for i, a in enumerate(names) for j, b in enumerate(names)}

    def _map(self) -> Array | None:
        """Symmetric root of the positive semi-definite part of W; None, the identity, where that is 0."""
        if self._root[0] != self.records:
            self._root = (self.records, map_of(self.metric_))
        return self._root[1]

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """The record in coordinates in which the Euclidean distance is the learned one.

        x times the symmetric root of the positive semi-definite part of W, under the names of the features.
        Until something is learned it is the identity. Later, unknown features are left out, and known ones
        that are missing count as neutral.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        root = self._map()
        if root is None:
            self.design(x)
            return features.read_record(x, read=self._read_cell)
        row = self.design(x)
        return {name: vectors.dot(line, row) for name, line in zip(self.feature_names, root, strict=True)}

    def transform_many(self, X: Any) -> Any:
        """`transform_one` of the rows: of a frame as a frame of the same kind with its index, of an array as
        one.
        """
        table = FeatureTable(X, read=self._read_cell)
        table.check_names(self.feature_names)
        designs = self._design_rows(table.columns, table.rows)
        root = self._map()
        if root is None:
            names, out = table.columns, table.rows
        else:
            names, out = list(self.feature_names), np.empty_like(designs)
            metric.map_rows(root, designs, out)
        return table.matrix(out, names)

    def distance_one(self, x: Mapping[Any, Any], x2: Mapping[Any, Any]) -> float:
        """Distance of two records: the Euclidean one between what `transform_one` makes of them.

        ``sqrt(u'W+u)`` for the difference u of their designs, with W+ the positive semi-definite part of W:
        directions with a negative eigenvalue count nothing. Before anything is learned it is the Euclidean
        distance.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        a, b = self.transform_one(x), self.transform_one(x2)
        return math.sqrt(
            math.fsum((a.get(name, 0.0) - b.get(name, 0.0)) ** 2 for name in a.keys() | b.keys())
        )

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Distance of a record from the one whose features are all neutral: how unusual it is, if centred.

        For monitoring: a metric compares records, and ranks none.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return math.sqrt(math.fsum(value * value for value in self.transform_one(x).values()))

    def score_many(self, X: Any) -> Any:
        """`score_one` of the rows: as a series of the frame's kind with its index, or as an array."""
        table = FeatureTable(X, read=self._read_cell)
        table.check_names(self.feature_names)
        designs = self._design_rows(table.columns, table.rows)
        root = self._map()
        if root is None:
            out = table.rows
        else:
            out = np.empty_like(designs)
            metric.map_rows(root, designs, out)
        return table.series(np.array([math.sqrt(math.fsum(row * row)) for row in out]), None)
