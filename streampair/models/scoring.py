"""Scores of a model file: from a record to its vector, and from the vector to the score."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.auc.linear import PairOGD
from streampair.base.forest import ForestLearner
from streampair.base.learner import Columns
from streampair.base.online import LinearColumns
from streampair.errors import ConfigError, RecordError
from streampair.kernels import metric, numerics, scaling, vectors
from streampair.models.forest import forest_of
from streampair.models.format import (
    Curve,
    Document,
    ForestModel,
    LinearModel,
    MetricModel,
    RandomForestModel,
    Scaling,
    is_online,
)
from streampair.records import features
from streampair.records.features import Design, check_finite, check_scored
from streampair.records.random_trees import RandomTreeDesign
from streampair.steps import FrozenSteps

__all__ = [
    "ForestScorer",
    "ModelScorer",
    "OnlineScorer",
    "columns_of",
    "design_of",
    "each",
    "front_of",
    "probabilities",
    "raw_weights",
    "scorer_of",
]

Array = NDArray[np.float64]


def design_of(
    names: Sequence[Hashable],
    scaling: Scaling,
    new: Callable[[Sequence[Hashable], Mapping[Hashable, tuple[float, float]]], Design] = Design,
) -> Design:
    """The design of a private learner, from what it has published.

    Raises
    ------
    ValueError
        If the names are not in the order of a design.
    """
    made = new(names, dict(zip(names, scaling.bounds, strict=True)))
    if list(made.names) != list(names):
        raise ValueError("the features are not in order")
    made.cap = math.inf if scaling.cap is None else scaling.cap
    if scaling.mean is not None and scaling.factor is not None:
        made.standardise(np.array(scaling.mean), np.array(scaling.factor))
    return made


class _RawVectors:
    """Records as raw values less their centres, of which what is missing counts as 0."""

    read_cell = staticmethod(features.as_number)
    dot = staticmethod(vectors.dot)

    def __init__(self, names: Sequence[Hashable], limit: float, centre: Array | None = None) -> None:
        self._limit = limit
        self._centre = np.zeros(len(names)) if centre is None else centre
        self._columns = Columns()
        self._columns.add(names, np.empty(len(names)), 0)

    def one(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of a record: perhaps a view of scratch."""
        columns = self._columns
        if type(x) is dict and x:
            if columns.expected < 0:
                columns.prepare(x)
            if len(x) == columns.expected:
                try:
                    columns.pack(*columns.take(x))
                except Exception:  # a name that is missing, or a value that struct refuses
                    return self._checked(x)
                if vectors.first_beyond(columns.record, self._limit) < 0:
                    return columns.record - self._centre
        return self._checked(x)

    def _checked(self, x: Mapping[Any, Any]) -> Array:
        values = features.read_record(x, self._limit)
        row = np.array([values.get(name, 0.0) for name in self._columns.names], dtype=np.float64)
        return row - self._centre

    def many(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """Vectors (n, d) of records that have exactly the features; None if one has not."""
        rows = features.packed(self._columns.names, xs, self._limit)
        return None if rows is None else rows - self._centre

    def rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Vectors (n, d) of the raw rows (n, columns) of a frame."""
        bad = vectors.unusable_row(rows, self._limit)
        if bad:
            i, j = divmod(bad - 1, rows.shape[1])
            raise features.unusable_value(columns[j], float(rows[i, j]), row=i, limit=self._limit)
        return self._columns.arrange(columns, rows) - self._centre

    @staticmethod
    def scores(weights: Array, rows: Array) -> Array:
        """Linear scores (n,) of what `rows` or `many` returned."""
        out = np.zeros(len(rows))
        vectors.score_many(weights, rows, out)
        return out


class _ScaledVectors:
    """Records of a private learner: scaled, standardised, in the unit ball."""

    read_cell = staticmethod(features.number)

    def __init__(self, design: Design) -> None:
        self._design = design
        self.dot = design.dot

    def one(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of a record: a view of scratch."""
        return self._design.of(x)

    def many(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """Raw rows (n, d) of records that have exactly the features; None if one has not."""
        return features.packed(self._design.names, xs)

    def rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Raw rows (n, d) in the order of the features, checked."""
        index = self._design.index
        check_finite(columns, rows, [j for j, name in enumerate(columns) if name in index])
        return self._design.arranged(columns, rows)

    def prepared(self, rows: Array) -> Array:
        """Vectors (n, d) of what `rows` returned."""
        return self._design.prepared(rows)

    def scores(self, weights: Array, rows: Array) -> Array:
        """Linear scores (n,) of what `rows` or `many` returned."""
        out = np.zeros(len(rows))
        self._design.scores(weights, rows, out)
        return out


class _NoVectors:
    """Records of a private learner that knows no features yet."""

    read_cell = staticmethod(features.number)
    dot = staticmethod(vectors.dot)

    @staticmethod
    def one(x: Mapping[Any, Any]) -> Array:
        """Empty vector, if the record can be scored."""
        check_scored(x)
        return np.empty(0)

    @staticmethod
    def many(xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        """None: records are taken one by one."""
        return None

    @staticmethod
    def rows(columns: list[Hashable], rows: Array) -> Array:
        """Array without columns, if the rows can be scored."""
        check_finite(columns, rows, list(range(len(columns))))
        return np.empty((len(rows), 0))

    @staticmethod
    def prepared(rows: Array) -> Array:
        """The same array."""
        return rows

    @staticmethod
    def scores(weights: Array, rows: Array) -> Array:
        """Zeros."""
        return np.zeros(len(rows))


_Vectors = _RawVectors | _ScaledVectors | _NoVectors


def _vectors_of(document: Document, scaling: Scaling | None, limit: float) -> _Vectors:
    if scaling is None:
        return _RawVectors(document.features, limit)
    return _ScaledVectors(design_of(document.features, scaling)) if document.features else _NoVectors()


_R = TypeVar("_R")


def each(function: Callable[[Mapping[Any, Any]], _R], xs: Sequence[Mapping[Any, Any]]) -> list[_R]:
    """What a function returns for records; an error names the first that cannot be used."""
    out = []
    for i, x in enumerate(xs):
        try:
            out.append(function(x))
        except RecordError as error:
            raise RecordError(f"in record {i}, {error.problem}", fix=error.fix, stage=error.stage) from None
    return out


class ModelScorer(abc.ABC):
    """Scores records by one kind of model.

    Parameters
    ----------
    read_cell
        Gives the number in a cell of an object column; raises if there is none.

    Attributes
    ----------
    takes_text, takes_gaps
        Whether a text is a feature like any other, and whether records may have missing values.
    """

    takes_text = takes_gaps = False

    def __init__(self, read_cell: Callable[[Any], float]) -> None:
        self.read_cell = read_cell

    @abc.abstractmethod
    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record."""

    @abc.abstractmethod
    def score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of the raw rows (n, columns) of a frame."""

    def score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Scores (n,) of records; an error names the first that cannot be used."""
        return np.array(each(self.score_one, xs), dtype=np.float64)


class _LinearScorer(ModelScorer):
    def __init__(self, made: _Vectors, weights: Array) -> None:
        super().__init__(made.read_cell)
        self._vectors, self._weights = made, weights

    def score_one(self, x: Mapping[Any, Any]) -> float:
        return float(self._vectors.dot(self._weights, self._vectors.one(x)))

    def score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self._vectors.scores(self._weights, self._vectors.rows(columns, rows))

    def score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        rows = self._vectors.many(xs)
        return super().score_records(xs) if rows is None else self._vectors.scores(self._weights, rows)


class OnlineScorer(ModelScorer):
    """Scores records by a linear learner without privacy that never learns.

    Parameters
    ----------
    learner
        The learner.
    """

    takes_text = takes_gaps = True

    def __init__(self, learner: PairOGD) -> None:
        super().__init__(learner._read_cell)
        self.learner = learner

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record."""
        return self.learner.score_one(x)

    def score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of raw rows (n, columns); NaN is a gap."""
        return self.learner._score_rows(columns, rows)

    def score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Scores (n,) of records."""
        names = list(self.learner.feature_names)
        rows = features.packed(names, xs, vectors.MAX_ABS)
        return super().score_records(xs) if rows is None else self.score_rows(names, rows)


def columns_of(document: LinearModel) -> LinearColumns:
    """The columns of a learner without privacy."""
    d = len(document.features)
    running = document.running or None
    fixed = np.zeros(d, dtype=bool)
    fixed[list(document.indicators or ())] = True
    return LinearColumns(
        document.features,
        np.array(document.weights, dtype=np.float64),
        fixed=fixed,
        shared=document.shared or 0,
        statistics={} if running is None else running.statistics(d),
        seen=0 if running is None else running.records,
    )


def raw_weights(document: LinearModel) -> tuple[Array, Array]:
    """What raw values less their centres are multiplied by, and the centres, (d,) each."""
    weights = np.array(document.weights, dtype=np.float64)
    if not document.running:
        return weights, np.zeros(len(weights))
    found = document.running.statistics(len(weights))
    dense = (found["kinds"].astype(np.int64) & scaling.DENSE) > 0
    return weights * found["units"], np.where(dense, found["means"], 0.0)


def _online_scorer(document: LinearModel) -> OnlineScorer:
    columns = columns_of(document)
    count = len(columns.names) - columns.shared
    try:
        learner = PairOGD(max_features=max(count, 1), scale="running" if columns.statistics else None)
    except ConfigError:
        raise ValueError("there are more features than a learner can have") from None
    learner.set_columns(columns)
    return OnlineScorer(learner)


class _MetricScorer(ModelScorer):
    def __init__(self, made: _Vectors, root: Array | None) -> None:
        super().__init__(made.read_cell)
        self._vectors, self._root = made, root

    def score_one(self, x: Mapping[Any, Any]) -> float:
        row = self._vectors.one(x)
        if self._root is None:
            values = list(features.read_record(x, read=self.read_cell).values())
        else:
            values = [vectors.dot(line, row) for line in self._root]
        return math.sqrt(math.fsum(value * value for value in values))

    def score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        out = self._vectors.rows(columns, rows)
        if self._root is None:
            out = rows
        else:
            designs = out if isinstance(self._vectors, _RawVectors) else self._vectors.prepared(out)
            out = np.empty_like(designs)
            metric.map_rows(self._root, designs, out)
        return np.array([math.sqrt(math.fsum(row * row)) for row in out])


class ForestScorer(ModelScorer):
    """Scores records by a forest that never learns.

    Parameters
    ----------
    learner
        The forest.
    """

    def __init__(self, learner: ForestLearner) -> None:
        super().__init__(learner._read_cell)
        self.learner = learner
        self.takes_text, self.takes_gaps = learner.takes_text, learner.takes_gaps

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record."""
        return self.learner.score_one(x)

    def score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of the raw rows (n, columns) of a frame; a text is its code."""
        return self.learner._score_rows(columns, rows)

    def score_records(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Scores (n,) of records."""
        rows = self.learner._packed(xs)
        return (
            super().score_records(xs)
            if rows is None
            else self.score_rows(list(self.learner.feature_names), rows)
        )


def _random_forest_scorer(document: RandomForestModel) -> ModelScorer:
    fields, values, leaves = document.arrays()
    trees, nodes = fields.shape
    assert document.scaling is not None

    def new(names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> RandomTreeDesign:
        return RandomTreeDesign(names, bounds, trees, nodes.bit_length() - 1)

    design = design_of(document.features, document.scaling, new)
    assert isinstance(design, RandomTreeDesign)
    if design.trees.sizes.tolist() != list(document.field_sizes):
        raise ValueError("field_sizes are not those of the features")
    design.trees.fields[...], design.trees.cuts[...] = fields, values
    weights = np.zeros(design.coordinates)
    d = len(document.features)
    weights[:d] = document.weights
    weights[d : d + leaves.size] = leaves.ravel()
    return _LinearScorer(_ScaledVectors(design), weights)


def front_of(document: Document) -> FrozenSteps | None:
    """The steps in front of the learner; None: there are none.

    Raises
    ------
    ValueError
        If they are not those of the table, or what they have learned is damaged.
    """
    if isinstance(document.steps, msgspec.UnsetType):
        return None
    return FrozenSteps([step.parts() for step in document.steps])


def scorer_of(document: Document) -> ModelScorer:
    """What scores by a model, of any kind.

    Raises
    ------
    ValueError
        If the parts of the model do not fit together.
    """
    if isinstance(document, ForestModel):
        return ForestScorer(forest_of(document))
    if isinstance(document, RandomForestModel):
        return _random_forest_scorer(document)
    if is_online(document):
        assert isinstance(document, LinearModel)
        return _online_scorer(document)
    if isinstance(document, LinearModel):
        weights, centre = raw_weights(document)
        if document.scaling is None:  # a private learner that still scores by the model it began with
            return _LinearScorer(_RawVectors(document.features, vectors.MAX_ABS, centre), weights)
        return _LinearScorer(_vectors_of(document, document.scaling, vectors.MAX_ABS), weights)
    assert isinstance(document, MetricModel)
    made = _vectors_of(document, document.scaling, vectors.MAX_ABS_METRIC)
    return _MetricScorer(made, None if document.root is None else np.array(document.root))


def probabilities(curve: Curve, scores: Array) -> Array:
    """Probabilities (n,) of scores."""
    odds = np.full(len(scores), curve.offset)
    if curve.spread > 0.0:
        odds += curve.slope * ((scores - curve.centre) / curve.spread)
    out = np.empty(len(scores))
    numerics.sigmoid_many(odds, out)
    return out
