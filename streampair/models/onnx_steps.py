"""Steps in front of a learner as nodes of an ONNX graph (docs/models.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError
from streampair.models.format import Document, LinearModel, Name, fields_of, is_online
from streampair.models.scoring import raw_weights
from streampair.records import features
from streampair.steps import TYPES, FrozenSteps, leaves, public_name

__all__ = ["ABSENT", "FEATURES", "GRAPHS", "STRINGS", "FrontGraph", "Recorder"]

Array = NDArray[np.float64]

FEATURES: Final = "features"
STRINGS: Final = "strings"
ABSENT: Final = "\0"
"""What stands in `STRINGS` for a field that a record does not have."""


class Nodes(Protocol):
    """What a front needs of a graph."""

    def op(self, kind: str, *inputs: str | NDArray[Any], name: str | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        ...

    def cast(self, value: str, kind: str) -> str:
        """Cast to a type such as ``"DOUBLE"``."""
        ...


class Recorder:
    """A graph without nodes: it shows which inputs a front has."""

    def op(self, kind: str, *inputs: str | NDArray[Any], name: str | None = None, **attributes: Any) -> str:
        """Return a name."""
        return kind

    def cast(self, value: str, kind: str) -> str:
        """Return a name."""
        return kind


class Field(NamedTuple):
    """A field of a record as it is.

    Attributes
    ----------
    name
        Its name.
    types
        Types of the values that are taken, by `streampair.steps.TYPES`; None: any. Others count as absent.
    declared
        Whether a text that reads as a number is that number, as of `streampair.preprocessing.OneHot`.
    learned
        Whether the learner itself takes it: a missing value then differs from a field that a record does not
        have as a number, which is 0; and a long text counts by its digest.
    """

    name: Name
    types: tuple[str, ...] | None = None
    declared: bool = False
    learned: bool = False


class Column(NamedTuple):
    """A column of numbers that the graph has computed."""

    values: str
    place: int


Columns = dict[Name, Field | Column]


def _columns(names: Iterable[Name], values: str) -> Columns:
    return {name: Column(values, index) for index, name in enumerate(names)}


class FrontGraph:
    """From the fields of a record to the features of a learner, as nodes of a graph.

    Parameters
    ----------
    document
        A model with steps, or of a linear learner without privacy.
    front
        Its steps; None: there are none.
    nodes
        The graph that gets the nodes.

    Attributes
    ----------
    numbers, strings
        Fields in the columns of the inputs `FEATURES` and `STRINGS`.
    features
        Name of the features (n, d) of the learner; of a linear one without privacy, less their centres.

    Raises
    ------
    ConfigError
        If a step has no form in the standard operators.
    """

    def __init__(self, document: Document, front: FrozenSteps | None, nodes: Nodes) -> None:
        self.nodes = nodes
        self.numbers: list[Field] = []
        self.strings: list[Field] = []
        self.wanted = document.features
        steps = {} if front is None else front.steps
        _check_graphs(steps)
        fields = fields_of(document)
        names = fields if front is None else front.reads(fields)
        if names is None:
            raise ConfigError(
                "which fields the steps read is not known, so they have no ONNX graph",
                fix="put a Select with the names of the fields first, or save the model as .json",
            )
        columns: Columns = {name: Field(name) for name in names}
        for name, step in steps.items():
            columns = self.apply(name, step, columns)
        if is_online(document):
            assert isinstance(document, LinearModel)
            self.features = self.centred(columns, document)
        else:
            self.features = self.matrix(columns, document.features)

    def apply(self, name: str, step: Any, columns: Columns) -> Columns:
        """What a step returns for these columns."""
        return GRAPHS[public_name(step)](self, name, step, columns)

    def matrix(self, columns: Columns, names: Sequence[Name]) -> str:
        """Numbers (n, d) in the order of the names: NaN for a name that no column has."""
        parts: dict[str, list[int]] = {}
        places: list[tuple[str, int]] = []
        for name in names:
            column = columns.get(name)
            if isinstance(column, Field):
                column = Column(FEATURES, self._place(self.numbers, column))
            if column is None:
                column = Column("", 0)
            part = parts.setdefault(column.values, [])
            places.append((column.values, len(part)))
            part.append(column.place)
        widths = {values: len(part) for values, part in parts.items() if values}
        gathered = [self.nodes.op("Gather", values, np.array(parts[values]), axis=1) for values in widths]
        if not gathered:
            raise ConfigError(
                "the steps make no feature that the learner knows, so it has no ONNX graph",
                fix="save the model as .json",
            )
        whole = gathered[0] if len(gathered) == 1 else self.nodes.op("Concat", *gathered, axis=1)
        starts = dict(zip(widths, np.cumsum([0, *widths.values()]).tolist(), strict=False))
        if "" in parts:
            whole = self.nodes.op("Pad", whole, np.array([0, 0, 0, 1]), np.array(math.nan))
        width = sum(widths.values())
        order = [starts[values] + place if values else width for values, place in places]
        return self.nodes.op("Gather", whole, np.array(order), axis=1)

    def centred(self, columns: Columns, document: LinearModel) -> str:
        """Features less their centres, (n, d): 0 for a gap, and an absent one counts as 0."""
        names, indicators = document.features, set(document.indicators or ())
        parts: list[str] = []
        order: list[int] = []
        numbers = [i for i, name in enumerate(names) if name in columns]
        _, centre = raw_weights(document)
        if numbers:
            order += numbers
            parts.append(self._centred_numbers(columns, [names[i] for i in numbers], centre[numbers]))
        texts: dict[Name, dict[str, Name]] = {}
        for i in sorted(indicators.difference(numbers)):
            source, _, value = str(names[i]).partition("=")
            if isinstance(columns.get(source), Field):
                texts.setdefault(source, {})[value] = names[i]
        place = {name: i for i, name in enumerate(names)}
        for field, found in texts.items():
            order += [place[name] for name in found.values()]
            parts.append(self._texts(columns[field], found))
        if not parts:
            raise ConfigError(
                "the steps make no feature that the learner knows, so it has no ONNX graph",
                fix="save the model as .json",
            )
        whole = parts[0] if len(parts) == 1 else self.nodes.op("Concat", *parts, axis=1)
        absent = np.setdiff1d(np.arange(len(names)), order)
        if len(absent):
            whole = self.nodes.op("Pad", whole, np.array([0, 0, 0, 1]), np.array(0.0))
        places = np.full(len(names), len(order))
        places[order] = np.arange(len(order))
        whole = self.nodes.op("Gather", whole, places, axis=1)
        if len(absent):
            lacking = np.zeros(len(names))
            lacking[absent] = centre[absent]
            whole = self.nodes.op("Sub", whole, lacking)
        return whole

    def _centred_numbers(self, columns: Columns, names: Sequence[Name], centre: Array) -> str:
        """Numbers (n, k) of these names less their centres."""
        known: Columns = {}
        for name in names:
            column = columns[name]
            known[name] = column._replace(learned=True) if isinstance(column, Field) else column
        values = self.matrix(known, names)
        computed = np.array([not isinstance(known[name], Field) for name in names])
        if computed.any():  # of what steps have computed, NaN is absent
            absent = self.nodes.op("And", self.nodes.op("IsNaN", values), computed)
            values = self.nodes.op("Where", absent, np.array(0.0), values)
        off = self.nodes.op("Sub", values, centre)
        return self.nodes.op("Where", self.nodes.op("IsNaN", values), np.array(0.0), off)

    def _texts(self, field: Any, names: Mapping[str, Name]) -> str:
        """Indicators (n, k) of the texts of a field; that of the empty text is that of a gap, too."""
        kept = [name for name in field.types or TYPES if issubclass(TYPES[name], str)]
        text = field._replace(types=tuple(kept), learned=True)
        column = next(iter(_indicators(self, text, names, zeros=True).values()))
        assert isinstance(column, Column)
        if "" not in names:
            return column.values
        values = self.matrix({field.name: field._replace(learned=True)}, [field.name])
        gap = self.nodes.cast(self.nodes.op("IsNaN", values), "DOUBLE")
        mark = np.array([[float(value == "") for value in names]])
        return self.nodes.op("Add", column.values, self.nodes.op("Mul", gap, mark))

    def string(self, field: Field) -> str:
        """The texts (n, 1) of a field."""
        place = self._place(self.strings, field)
        return self.nodes.op("Gather", STRINGS, np.array([place]), axis=1)

    @staticmethod
    def _place(fields: list[Field], field: Field) -> int:
        if field not in fields:
            fields.append(field)
        return fields.index(field)

    def keep_missing(self, values: str, result: str) -> str:
        """The result, where the values are not missing."""
        return self.nodes.op("Where", self.nodes.op("IsNaN", values), np.array(math.nan), result)

    def inputs(self, records: Sequence[Mapping[Any, Any]]) -> dict[str, NDArray[Any]]:
        """The inputs of the graph for records that the model scores, by name.

        Raises
        ------
        RecordError
            If a category is a list, or a text that the model knows has no place.
        """
        for i, x in enumerate(records):
            for name, value in x.items():
                if (
                    isinstance(value, str)
                    and "=" in str(name)
                    and features.indicator(name, value) in self.wanted
                ):
                    raise RecordError(
                        f"in record {i}, {name!r} is a text, and its name has an =, which ends the name of a "
                        "field of a graph",
                        fix="rename it before learning, or score with the model file",
                        stage="features",
                    )
        found: dict[str, NDArray[Any]] = {}
        if self.numbers:
            values = [[_number(field, x) for field in self.numbers] for x in records]
            found[FEATURES] = np.array(values, dtype=np.float64).reshape(len(records), -1)
        if self.strings:
            texts = [[_string(field, x) for field in self.strings] for x in records]
            found[STRINGS] = np.array(texts, dtype=object).reshape(len(records), -1)
        return found


def _check_graphs(steps: Mapping[str, Any]) -> None:
    """ConfigError if a step has no form in the standard operators, before anything is computed."""
    for path, step in leaves(steps):
        if public_name(step) not in GRAPHS:
            raise ConfigError(
                f"the step {path} ({type(step).__name__}) has no form in the standard operators of ONNX",
                fix="save the model as .json, which streampair serve and streampair.models score with",
            )


def _taken(field: Field, x: Mapping[Any, Any]) -> Any:
    """The value of a field; None: it is missing, or of another type."""
    value = x.get(field.name)
    if field.types is not None and not isinstance(value, tuple(TYPES[name] for name in field.types)):
        return None
    return value


def _number(field: Field, x: Mapping[Any, Any]) -> float:
    value = _taken(field, x)
    if field.learned:
        absent = field.name not in x or isinstance(value, str) or (value is None and field.types is not None)
        return 0.0 if absent else math.nan if features.is_missing(value) else features.as_number(value)
    if value is None:
        return math.nan
    try:
        return features.number(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _string(field: Field, x: Mapping[Any, Any]) -> str:
    value = _taken(field, x)
    if field.name not in x or (value is None and (field.types is not None or field.declared)):
        return ABSENT
    if isinstance(value, list | set):
        raise RecordError(
            f"the field {field.name!r} has several categories, and a graph takes one",
            fix="score with the model file",
            stage="features",
        )
    if field.learned:
        return features.indicator("", value).removeprefix("=")
    return _canonical(value) if field.declared else f"{value}"


def _canonical(value: Any) -> str:
    """The text of a value, where a text that reads as a number is that number."""
    read = features.spelled(value)
    return f"{float(read)}" if isinstance(read, int | float) else f"{read}"


def _select(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    return {key: columns[key] for key in step.keys if key in columns}


def _discard(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    return {key: column for key, column in columns.items() if key not in step.keys}


def _select_type(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    types = tuple(key for key, kind in TYPES.items() if kind in step.types)
    found: Columns = {}
    for key, column in columns.items():
        if not isinstance(column, Field) or column.types is not None:
            raise ConfigError(
                f"the step {name} selects by the type of what other steps return, which has no ONNX graph",
                fix="select first, or save the model as .json",
            )
        found[key] = column._replace(types=types)
    return found


def _scaled(front: FrontGraph, columns: Columns, centre: Sequence[float], spread: Sequence[float]) -> Columns:
    """Columns less their centre, divided by their spread; 0 where that is 0."""
    values = front.matrix(columns, list(columns))
    known = np.array(spread) != 0.0
    scaled = front.nodes.op("Sub", values, np.array(centre, dtype=np.float64))
    scaled = front.nodes.op("Div", scaled, np.where(known, np.array(spread, dtype=np.float64), 1.0))
    if not known.all():
        scaled = front.keep_missing(values, front.nodes.op("Where", known, scaled, np.array(0.0)))
    return _columns(columns, scaled)


def _standard_scaler(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    means = [step.means[key] for key in columns]
    spreads = [max(step.vars[key], 0.0) ** 0.5 if step.with_std else 1.0 for key in columns]
    return _scaled(front, columns, means, spreads)


def _min_max_scaler(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    learned = {key: column for key, column in columns.items() if key in step.min}
    lowest = [step.min[key].min for key in learned]
    spreads = [step.max[key].max - step.min[key].min for key in learned]
    return _scaled(front, learned, lowest, spreads)


def _max_abs_scaler(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    return _scaled(front, columns, [0.0] * len(columns), [step.abs_max[key].abs_max for key in columns])


def _stat_imputer(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    found = dict(columns)
    for key, stat in step.stats.items():
        value = stat.get()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"the step {name} puts {features.short(value)} where {key!r} is missing, and a graph only "
                "imputes numbers",
                fix="save the model as .json",
            )
        values = front.matrix(columns, [key])
        missing = front.nodes.op("IsNaN", values)
        found[key] = Column(front.nodes.op("Where", missing, np.array(float(value)), values), 0)
    return found


def _indicators(front: FrontGraph, field: Field, names: Mapping[str, Name], *, zeros: bool) -> Columns:
    """Columns of 1 where a field has a text; else 0, or NaN without `zeros`."""
    if not names:
        return {}
    keys = list(names)
    codes = front.nodes.op(
        "LabelEncoder",
        front.string(field),
        keys_strings=keys,
        values_int64s=list(range(len(keys))),
        default_int64=-1,
    )
    found = front.nodes.cast(front.nodes.op("Equal", codes, np.arange(len(keys))), "DOUBLE")
    if not zeros:
        found = front.nodes.op("Where", front.nodes.cast(found, "BOOL"), found, np.array(math.nan))
    return _columns(names.values(), found)


def _raw(name: str, columns: Columns, key: Name) -> Field:
    column = columns[key]
    if not isinstance(column, Field):
        raise ConfigError(
            f"the step {name} encodes {key!r}, which other steps have computed: that has no ONNX graph",
            fix="encode the fields of the records, or save the model as .json",
        )
    return column


def _one_hot_encoder(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    if step.drop_first:
        raise ConfigError(
            f"the step {name} drops the first of the categories of each record, which has no ONNX graph",
            fix="leave drop_first out, or save the model as .json",
        )
    found: Columns = {}
    for key in columns:
        names = {f"{value}": f"{key}_{value}" for value in step.values.get(key, ())}
        others: dict[str, Name] = {}
        if step.categories is None:
            # What the step does not keep: of values that are equal, as 1 and True, all but the first; and
            # everything, if it drops zeros. The learner has them.
            known = {str(each): each for each in front.wanted if each not in step._zero_dict}
            others = {
                text.removeprefix(f"{key}_"): each
                for text, each in known.items()
                if text.startswith(f"{key}_")
            }
        field = _raw(name, columns, key)
        for part, zeros in ((names, not step.drop_zeros), (others, False)):
            found = {**_indicators(front, field, part, zeros=zeros), **found}
    return found


def _one_hot(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    new = set(step.columns)
    found = {key: column for key, column in columns.items() if key not in step.categories and key not in new}
    for key, declared in step.categories.items():
        if key in columns:
            names: dict[str, Name] = {_canonical(value): f"{key}={value}" for value in declared}
            field = _raw(name, columns, key)._replace(declared=True)
            found |= _indicators(front, field, names, zeros=True)
    return found


def _bounds(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    scaled = {key: column for key, column in columns.items() if key in step._scale}
    if not scaled:
        return columns
    low, high, factor = np.array([step._scale[key] for key in scaled]).T
    values = front.matrix(columns, list(scaled))
    clipped = front.nodes.op("Min", front.nodes.op("Max", values, low), high)
    found = front.nodes.op("Mul", front.nodes.op("Sub", clipped, low), factor)
    found = front.nodes.op("Min", front.nodes.op("Sub", found, np.array(1.0)), np.array(1.0))
    return {**columns, **_columns(scaled, front.keep_missing(values, found))}


def _known(front: FrontGraph, values: str) -> str:
    """The values, 0 where they are missing."""
    return front.nodes.op("Where", front.nodes.op("IsNaN", values), np.array(0.0), values)


def _unit_ball(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    values = front.matrix(columns, list(columns))
    known = _known(front, values)
    squares = front.nodes.op("ReduceSum", front.nodes.op("Mul", known, known), np.array([1]), keepdims=1)
    divisor = front.nodes.op("Div", front.nodes.op("Sqrt", squares), np.array(float(step.radius)))
    return _columns(columns, front.nodes.op("Div", values, front.nodes.op("Max", divisor, np.array(1.0))))


def _random_fourier(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    names, frequencies = step._of(step._names or tuple(columns))
    rows = _known(front, front.matrix(columns, list(names)))
    angles = front.nodes.op("MatMul", rows, np.ascontiguousarray(frequencies.T))
    scale = np.array(1.0 / math.sqrt(len(frequencies)))
    waves = [front.nodes.op("Mul", front.nodes.op(kind, angles), scale) for kind in ("Sin", "Cos")]
    both = front.nodes.op("Concat", *waves, axis=1)
    order = np.arange(2 * len(frequencies)).reshape(2, -1).T.ravel()
    return _columns(step._out, front.nodes.op("Gather", both, order, axis=1))


def _union(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    found: Columns = {}
    for key, part in reversed(step.transformers.items()):
        found |= front.apply(f"{name}/{key}", part, columns)
    return found


def _pipeline(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    for key, part in step.steps.items():
        columns = front.apply(f"{name}/{key}", part, columns)
    return columns


def _guarded(front: FrontGraph, name: str, step: Any, columns: Columns) -> Columns:
    return front.apply(name, step.step, columns)


GRAPHS: Final[Mapping[str, Callable[[FrontGraph, str, Any, Columns], Columns]]] = {
    "river.preprocessing.StandardScaler": _standard_scaler,
    "river.preprocessing.MinMaxScaler": _min_max_scaler,
    "river.preprocessing.MaxAbsScaler": _max_abs_scaler,
    "river.preprocessing.OneHotEncoder": _one_hot_encoder,
    "river.preprocessing.StatImputer": _stat_imputer,
    "river.compose.Select": _select,
    "river.compose.SelectType": _select_type,
    "river.compose.Discard": _discard,
    "river.compose.TransformerUnion": _union,
    "river.compose.Pipeline": _pipeline,
    "streampair.preprocessing.Bounds": _bounds,
    "streampair.preprocessing.UnitBall": _unit_ball,
    "streampair.preprocessing.OneHot": _one_hot,
    "streampair.preprocessing.RandomFourier": _random_fourier,
    "streampair.preprocessing.Guarded": _guarded,
}
"""What a graph of the standard operators can compute, of `streampair.steps.KINDS`."""
