"""The steps that a model may have in front of its learner: one table, `KINDS`.

A kind says of a class of steps how it is saved without pickle, how it is made again from a model file, and
which fields of a record it reads. A lane, a model file, parallel scorers, `serve` and `learner.start` go by
this table; docs/learners.md shows it. A step of any other class is saved by pickle, and its model stays in
its lane.

>>> from river import preprocessing
>>> from streampair import steps
>>> scaler = preprocessing.StandardScaler()
>>> scaler.learn_one({"a": 1.0})
>>> scaler.learn_one({"a": 3.0})
>>> again = steps.make(steps.freeze("scaler", scaler))
>>> again.transform_one({"a": 3.0}), steps.kind_of(preprocessing.RobustScaler())
({'a': 1.0}, None)
"""

from __future__ import annotations

import abc
import collections
import itertools
import math
import numbers
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from river import base, compose

from streampair.errors import ConfigError, NoScoreError, RecordError, StreampairError
from streampair.privacy.pipeline_check import class_name, is_stateless
from streampair.records.features import short

__all__ = [
    "KINDS",
    "TYPES",
    "FrozenSteps",
    "Kind",
    "Parts",
    "check_same",
    "first_input",
    "freeze",
    "in_fixed_order",
    "kind_of",
    "leaves",
    "load_parts",
    "load_step",
    "make",
    "public_name",
    "save_step",
    "transformer",
]

Scalar = str | bool | int | float | None
Name = str | int | float
Array = NDArray[np.float64]

# Deeper than any use; Python's own stack is far deeper.
_MOST_DEPTH: Final = 20
_MOST_COLUMNS: Final = 2**31 - 1
# Counts are saved as doubles, which hold whole numbers up to here.
_MOST_COUNT: Final = 2.0**53


class Parts(NamedTuple):
    """A step taken apart, as plain values.

    Attributes
    ----------
    name
        Of the step in its pipeline or union.
    kind
        Key of `KINDS`.
    settings
        Its parameters: texts, numbers, booleans, None and lists of them.
    lists
        Names and values that it has learned.
    arrays
        Numbers that it has learned, (n,).
    steps
        The steps inside it.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    lists: Mapping[str, Sequence[Scalar]]
    arrays: Mapping[str, Array]
    steps: tuple[Parts, ...] = ()


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a step, with their types."""


class _NoSettings(_Strict):
    pass


class Kind:
    """A row of the table: one class of steps.

    Attributes
    ----------
    texts, gaps
        Whether it is made for fields that are texts, and for fields that are missing.
    Settings
        Types of its parameters.
    """

    texts: ClassVar[bool] = False
    gaps: ClassVar[bool] = False
    Settings: ClassVar[type[_Strict]] = _NoSettings

    def settings(self, step: Any) -> dict[str, Any] | None:
        """The parameters of a step; None: with these it is not supported."""
        return {}

    def make(self, cls: Any, settings: Any) -> Any:
        """A new step of the class with these parameters, of the type `Settings`.

        Raises
        ------
        ValueError
            If one is out of range.
        """
        return cls()

    def lists(self, step: Any) -> dict[str, list[Any]]:
        """Names and values that a step has learned."""
        return {}

    def arrays(self, step: Any) -> dict[str, Array]:
        """Numbers that a step has learned, in the order of `lists`."""
        return {}

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        """Give a step what it has learned.

        Raises
        ------
        ValueError
            If it is not what a step of this kind can have learned.
        """

    def close(self, step: Any) -> None:
        """Keep a step that only transforms from remembering the names of records."""

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        """Names of the fields from which the step makes the `wanted` ones; None: not known."""
        return wanted


class _Known(dict[Any, Any]):
    """A dict with a default that looking up does not store, as a `defaultdict` would."""

    def __init__(self, default: Callable[[], Any], values: Mapping[Any, Any]) -> None:
        super().__init__(values)
        self._default = default

    def __missing__(self, key: Any) -> Any:
        return self._default()


def _vector(values: Iterable[float]) -> Array:
    return np.array([float(value) for value in values], dtype=np.float64)


def _names(lists: Mapping[str, list[Any]], name: str = "names") -> list[Any]:
    """A list of different names; ValueError if it is none."""
    found = lists[name]
    if len(set(found)) != len(found) or not all(type(each) in (str, int, float) for each in found):
        raise ValueError(f"{name} are not different names")
    return found


def _numbers(arrays: Mapping[str, Array], name: str, count: int, *, low: float = -math.inf) -> list[float]:
    """So many numbers from `low` on; ValueError if there are others. They may be infinite or NaN."""
    found = arrays[name]
    if found.shape != (count,):
        raise ValueError(f"{name} has another length than its names")
    if (found < low).any():
        raise ValueError(f"a number in {name} is below {low:g}")
    values: list[float] = found.tolist()
    return values


def _counts(arrays: Mapping[str, Array], name: str, count: int) -> list[int]:
    values = _numbers(arrays, name, count, low=0.0)
    if not all(value <= _MOST_COUNT and value.is_integer() for value in values):
        raise ValueError(f"a number in {name} is no count")
    return [int(value) for value in values]


class _WithStd(_Strict):
    with_std: bool


class _StandardScaler(Kind):
    Settings = _WithStd

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {"with_std": bool(step.with_std)} if step.window_size is None else None

    def make(self, cls: Any, settings: Any) -> Any:
        return cls(with_std=settings.with_std)

    def lists(self, step: Any) -> dict[str, list[Any]]:
        return {"names": list(step.counts)}

    def arrays(self, step: Any) -> dict[str, Array]:
        names = list(step.counts)
        return {
            "counts": _vector(step.counts.values()),
            "means": _vector(step.means.get(name, 0.0) for name in names),
            "variances": _vector(step.vars.get(name, 0.0) for name in names),
        }

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        names = _names(lists)
        counts = _counts(arrays, "counts", len(names))
        means = _numbers(arrays, "means", len(names))
        # A variance of equal values can be a rounding error below 0.
        variances = _numbers(arrays, "variances", len(names))
        step.counts = collections.Counter(dict(zip(names, counts, strict=True)))
        step.means = collections.defaultdict(float, zip(names, means, strict=True))
        step.vars = collections.defaultdict(float)
        if step.with_std:
            step.vars.update(zip(names, variances, strict=True))

    def close(self, step: Any) -> None:
        step.means, step.vars = _Known(float, step.means), _Known(float, step.vars)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return list(step.counts)


def _windowless(step: Any) -> dict[str, Any] | None:
    return {} if step.window_size is None else None


class _MinMaxScaler(Kind):
    def settings(self, step: Any) -> dict[str, Any] | None:
        return _windowless(step)

    def lists(self, step: Any) -> dict[str, list[Any]]:
        return {"names": self._learned(step)}

    @staticmethod
    def _learned(step: Any) -> list[Any]:
        return [name for name, each in step.min.items() if each.min != math.inf]

    def arrays(self, step: Any) -> dict[str, Array]:
        names = self._learned(step)
        return {
            "lowest": _vector(step.min[name].min for name in names),
            "highest": _vector(step.max[name].max for name in names),
        }

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        names = _names(lists)
        lowest = _numbers(arrays, "lowest", len(names))
        highest = _numbers(arrays, "highest", len(names))
        if not all(low <= high for low, high in zip(lowest, highest, strict=True)):
            raise ValueError("a lowest value is above the highest")
        step.min.clear()
        step.max.clear()
        for name, low, high in zip(names, lowest, highest, strict=True):
            step.min[name].min, step.max[name].max = low, high

    def close(self, step: Any) -> None:
        step.min = _Known(step.min.default_factory, step.min)
        step.max = _Known(step.max.default_factory, step.max)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return self._learned(step)


class _MaxAbsScaler(Kind):
    def settings(self, step: Any) -> dict[str, Any] | None:
        return _windowless(step)

    def lists(self, step: Any) -> dict[str, list[Any]]:
        return {"names": list(step.abs_max)}

    def arrays(self, step: Any) -> dict[str, Array]:
        return {"largest": _vector(each.abs_max for each in step.abs_max.values())}

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        names = _names(lists)
        largest = _numbers(arrays, "largest", len(names), low=0.0)
        step.abs_max.clear()
        for name, value in zip(names, largest, strict=True):
            step.abs_max[name].abs_max = value

    def close(self, step: Any) -> None:
        step.abs_max = _Known(step.abs_max.default_factory, step.abs_max)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return list(step.abs_max)


class _Categories(_Strict):
    categories: list[tuple[Name, list[Scalar]]] | None
    drop_zeros: bool
    drop_first: bool


class _OneHotEncoder(Kind):
    texts = True
    Settings = _Categories

    def settings(self, step: Any) -> dict[str, Any] | None:
        categories = step.categories
        if categories is not None:
            if not all(_plain(value) for values in categories.values() for value in values):
                return None
            categories = [[name, _sorted(values)] for name, values in categories.items()]
        return {
            "categories": categories,
            "drop_zeros": bool(step.drop_zeros),
            "drop_first": bool(step.drop_first),
        }

    def make(self, cls: Any, settings: Any) -> Any:
        categories = settings.categories
        if categories is not None:
            categories = {name: set(values) for name, values in categories}
        return cls(categories=categories, drop_zeros=settings.drop_zeros, drop_first=settings.drop_first)

    def lists(self, step: Any) -> dict[str, list[Any]]:
        if step.categories is not None:
            return {"columns": list(step._zero_dict)}
        fields = [name for name, values in step.values.items() if values]
        values = [value for name in fields for value in _sorted(step.values[name])]
        return {"columns": list(step._zero_dict), "fields": fields, "values": values}

    def arrays(self, step: Any) -> dict[str, Array]:
        if step.categories is not None:
            return {}
        return {"sizes": _vector(len(values) for values in step.values.values() if values)}

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        columns = _names(lists, "columns")
        if step.categories is not None:
            if set(columns) != set(step._zero_dict):
                raise ValueError("the columns are not those of the categories")
            step._zero_dict = dict.fromkeys(columns, 0)
            return
        fields, values = _names(lists, "fields"), iter(lists["values"])
        sizes = _counts(arrays, "sizes", len(fields))
        if sum(sizes) != len(lists["values"]):
            raise ValueError("there are more or fewer values than sizes")
        found = {name: {next(values) for _ in range(size)} for name, size in zip(fields, sizes, strict=True)}
        if {f"{name}_{value}" for name, each in found.items() for value in each} != set(columns):
            raise ValueError("the columns are not those of the values")
        step.values = collections.defaultdict(set, found)
        step._zero_dict = dict.fromkeys(columns, 0)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None if step.categories is None and step.drop_zeros else list(step.values)


def _plain(value: Any) -> bool:
    return value is None or type(value) in (str, bool, int, float)


def _sorted(values: Iterable[Any]) -> list[Any]:
    """The values in an order that is the same in every process."""
    return sorted(values, key=lambda value: (type(value).__name__, str(value)))


class _Hasher(_Strict):
    n_features: int
    seed: int | None
    alternate_sign: bool


class _FeatureHasher(Kind):
    texts = True
    Settings = _Hasher

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {
            "n_features": int(step.n_features),
            "seed": None if step.seed is None else int(step.seed),
            "alternate_sign": bool(step.alternate_sign),
        }

    def make(self, cls: Any, settings: Any) -> Any:
        if not 1 <= settings.n_features <= _MOST_COLUMNS:
            raise ValueError("n_features is out of range")
        return cls(settings.n_features, settings.seed, settings.alternate_sign)

    def arrays(self, step: Any) -> dict[str, Array]:
        return {"seed": _vector([step._seed])}

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        (seed,) = _counts(arrays, "seed", 1)
        if seed >= 2**32:
            raise ValueError("seed is out of range")
        step._seed = seed

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None


_PATTERN: Final = r"(?u)\b\w[\w\-]+\b"


class _Words(_Strict):
    on: Name | None
    strip_accents: bool
    lowercase: bool
    stop_words: list[str] | None


class _BagOfWords(Kind):
    texts = True
    Settings: ClassVar[type[_Strict]] = _Words

    def settings(self, step: Any) -> dict[str, Any] | None:
        # A file may bring no function and no pattern: some patterns take years on some texts. A name of
        # several words would be a tuple, which learners cannot save.
        pattern, words = step.tokenizer_pattern, tuple(step.ngram_range)
        if step.preprocessor or step.tokenizer or pattern != _PATTERN or words != (1, 1):
            return None
        return {
            "on": step.on,
            "strip_accents": bool(step.strip_accents),
            "lowercase": bool(step.lowercase),
            "stop_words": None if step.stop_words is None else _sorted(step.stop_words),
        }

    def make(self, cls: Any, settings: Any) -> Any:
        options = {name: getattr(settings, name) for name in settings.__struct_fields__}
        words = options.pop("stop_words")
        return cls(stop_words=None if words is None else set(words), **options)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None if step.on is None else [step.on]


class _WeightedWords(_Words):
    normalize: bool


class _TFIDF(_BagOfWords):
    Settings: ClassVar[type[_Strict]] = _WeightedWords

    def settings(self, step: Any) -> dict[str, Any] | None:
        found = super().settings(step)
        return None if found is None else {**found, "normalize": bool(step.normalize)}

    def lists(self, step: Any) -> dict[str, list[Any]]:
        return {"terms": list(step.dfs)}

    def arrays(self, step: Any) -> dict[str, Array]:
        return {"documents": _vector([step.n]), "counts": _vector(step.dfs.values())}

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        terms = _names(lists, "terms")
        counts = _counts(arrays, "counts", len(terms))
        (documents,) = _counts(arrays, "documents", 1)
        if max(counts, default=0) > documents:
            raise ValueError("a term is in more documents than there are")
        step.n = documents
        step.dfs = collections.Counter(dict(zip(terms, counts, strict=True)))


class _Imputers(_Strict):
    imputers: list[tuple[Name, str, Scalar]]


class _StatImputer(Kind):
    texts = True
    gaps = True
    Settings = _Imputers

    def settings(self, step: Any) -> dict[str, Any] | None:
        found = [[name, *_statistic(stat)] for name, stat in step.stats.items()]
        return {"imputers": found} if all(kind for _, kind, _ in found) else None

    def make(self, cls: Any, settings: Any) -> Any:
        from river import stats

        made: list[tuple[Any, Any]] = []
        for name, kind, value in settings.imputers:
            if kind == "mode":
                if type(value) is not int or not -1 <= value < 2**31:
                    raise ValueError("the size of a mode is out of range")
                made.append((name, stats.Mode(value)))
            elif kind == "mean":
                made.append((name, stats.Mean()))
            elif kind == "constant":
                made.append((name, value))
            else:
                raise ValueError(f"there is no statistic {kind!r}")
        return cls(*made)

    def lists(self, step: Any) -> dict[str, list[Any]]:
        modes = [(number, stat) for number, stat in self._learning(step) if hasattr(stat, "counts")]
        return {f"values{number}": list(stat.counts) for number, stat in modes}

    def arrays(self, step: Any) -> dict[str, Array]:
        found = {}
        for number, stat in self._learning(step):
            if hasattr(stat, "counts"):
                found[f"counts{number}"] = _vector(stat.counts.values())
            else:
                found[f"mean{number}"] = _vector([stat.n, stat._mean])
        return found

    @staticmethod
    def _learning(step: Any) -> list[tuple[int, Any]]:
        each = enumerate(step.stats.values())
        return [(number, stat) for number, stat in each if _statistic(stat)[0] != "constant"]

    def load(self, step: Any, lists: Mapping[str, list[Any]], arrays: Mapping[str, Array]) -> None:
        for number, stat in self._learning(step):
            if hasattr(stat, "counts"):
                values = lists[f"values{number}"]
                counts = _counts(arrays, f"counts{number}", len(values))
                stat.counts = collections.defaultdict(int, zip(values, counts, strict=True))
            else:
                n, mean = _numbers(arrays, f"mean{number}", 2)
                if not n >= 0.0:
                    raise ValueError("a mean is of fewer than no values")
                stat.n, stat._mean = n, mean

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None if wanted is None else list(dict.fromkeys([*wanted, *step.stats]))


def _statistic(stat: Any) -> tuple[str, Scalar]:
    """Name and parameter of a statistic that an imputer may have; an empty name: of no other."""
    kind = f"{type(stat).__module__}.{type(stat).__qualname__}"
    if kind == "river.stats.mean.Mean":
        return "mean", None
    if kind == "river.stats.mode.Mode":
        return "mode", stat.k
    if kind == "river.preprocessing.impute.Constant" and _plain(stat.value):
        return "constant", stat.value
    return "", None


class _Keys(_Strict):
    keys: list[Name]


class _Select(Kind):
    Settings = _Keys

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {"keys": _sorted(step.keys)}

    def make(self, cls: Any, settings: Any) -> Any:
        step = cls(*settings.keys)
        in_fixed_order(step)
        return step

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return _sorted(step.keys)


class _Discard(_Select):
    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return wanted


TYPES: Final[Mapping[str, type]] = {
    "str": str,
    "bool": bool,
    "int": int,
    "float": float,
    "number": numbers.Number,
}
"""Types that `SelectType` may select, by name."""


class _Types(_Strict):
    types: list[str]


class _SelectType(Kind):
    Settings = _Types

    def settings(self, step: Any) -> dict[str, Any] | None:
        names = {kind: name for name, kind in TYPES.items()}
        known = all(kind in names for kind in step.types)
        return {"types": [names[kind] for kind in step.types]} if known else None

    def make(self, cls: Any, settings: Any) -> Any:
        if not set(settings.types) <= set(TYPES):
            raise ValueError(f"a type is none of {', '.join(TYPES)}")
        return cls(*(TYPES[name] for name in settings.types))


class _Scaled(_Strict):
    bounds: list[tuple[Name, float, float]]


class _Bounds(Kind):
    Settings = _Scaled

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {"bounds": [[name, low, high] for name, (low, high, _) in step._scale.items()]}

    def make(self, cls: Any, settings: Any) -> Any:
        return cls({name: (low, high) for name, low, high in settings.bounds})


class _Radius(_Strict):
    radius: float


class _UnitBall(Kind):
    Settings = _Radius

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {"radius": float(step.radius)}

    def make(self, cls: Any, settings: Any) -> Any:
        return cls(settings.radius)


class _Fourier(_Strict):
    components: int
    gamma: float
    seed: int
    features: list[Name] | None


class _RandomFourier(Kind):
    Settings = _Fourier

    def settings(self, step: Any) -> dict[str, Any] | None:
        names = None if step._names is None else list(step._names)
        return {
            "components": int(step.components),
            "gamma": float(step.gamma),
            "seed": int(step.seed),
            "features": names,
        }

    def make(self, cls: Any, settings: Any) -> Any:
        return cls(settings.components, settings.gamma, settings.seed, settings.features)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None if step._names is None else list(step._names)


class _Hashed(_Strict):
    size: int
    seed: int


class _Hashing(Kind):
    texts = True
    Settings = _Hashed

    def settings(self, step: Any) -> dict[str, Any] | None:
        return {"size": int(step.size), "seed": int(step.seed)}

    def make(self, cls: Any, settings: Any) -> Any:
        return cls(settings.size, settings.seed)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return None


class _Declared(_Strict):
    categories: list[tuple[Name, list[Scalar]]]


class _OneHot(Kind):
    texts = True
    Settings = _Declared

    def settings(self, step: Any) -> dict[str, Any] | None:
        categories = step.categories.items()
        known = all(_plain(value) for _, values in categories for value in values)
        return {"categories": [[name, list(values)] for name, values in categories]} if known else None

    def make(self, cls: Any, settings: Any) -> Any:
        return cls(dict(settings.categories))

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        columns = set(step.columns)
        passing = [name for name in wanted or () if name not in columns and name not in step.categories]
        return None if wanted is None else [*passing, *step.categories]


class _Container(Kind):
    """A kind of steps that hold other steps."""

    @abc.abstractmethod
    def inside(self, step: Any) -> dict[str, Any]:
        """The steps inside, by name."""

    @abc.abstractmethod
    def around(self, cls: Any, steps: Sequence[tuple[str, Any]]) -> Any:
        """A new step around these."""


class _Union(_Container):
    def inside(self, step: Any) -> dict[str, Any]:
        return dict(step.transformers)

    def around(self, cls: Any, steps: Sequence[tuple[str, Any]]) -> Any:
        union = cls()
        union.transformers = dict(steps)  # not added one by one: that would copy them
        return union

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        found: dict[Name, None] = {}
        for part in step.transformers.values():
            names = _kind(part).reads(part, wanted)
            if names is None:
                return None
            found |= dict.fromkeys(names)
        return list(found)


class _Pipeline(_Container):
    def inside(self, step: Any) -> dict[str, Any]:
        return dict(step.steps)

    def around(self, cls: Any, steps: Sequence[tuple[str, Any]]) -> Any:
        return cls(*steps)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        for part in reversed(step.steps.values()):
            wanted = _kind(part).reads(part, wanted)
        return wanted


class _Guarded(_Container):
    def inside(self, step: Any) -> dict[str, Any]:
        return {"step": step.step}

    def around(self, cls: Any, steps: Sequence[tuple[str, Any]]) -> Any:
        ((_, inner),) = steps
        return cls(inner)

    def reads(self, step: Any, wanted: list[Name] | None) -> list[Name] | None:
        return _kind(step.step).reads(step.step, wanted)


KINDS: Final[Mapping[str, Kind]] = {
    "river.preprocessing.StandardScaler": _StandardScaler(),
    "river.preprocessing.MinMaxScaler": _MinMaxScaler(),
    "river.preprocessing.MaxAbsScaler": _MaxAbsScaler(),
    "river.preprocessing.OneHotEncoder": _OneHotEncoder(),
    "river.preprocessing.FeatureHasher": _FeatureHasher(),
    "river.preprocessing.StatImputer": _StatImputer(),
    "river.feature_extraction.BagOfWords": _BagOfWords(),
    "river.feature_extraction.TFIDF": _TFIDF(),
    "river.compose.Select": _Select(),
    "river.compose.SelectType": _SelectType(),
    "river.compose.Discard": _Discard(),
    "river.compose.TransformerUnion": _Union(),
    "river.compose.Pipeline": _Pipeline(),
    "streampair.preprocessing.Bounds": _Bounds(),
    "streampair.preprocessing.UnitBall": _UnitBall(),
    "streampair.preprocessing.OneHot": _OneHot(),
    "streampair.preprocessing.RandomFourier": _RandomFourier(),
    "streampair.preprocessing.Hashing": _Hashing(),
    "streampair.preprocessing.Guarded": _Guarded(),
}
"""The table: kinds of steps by the public name of their class."""


def public_name(step: object) -> str:
    """Name by which the class of a step is imported, of River's as of ours."""
    package, *modules, name = class_name(step).split(".")
    return ".".join([package, *modules[:1], name])


def _class_of(kind: str) -> Any:
    """The class of a key of `KINDS`. River's modules are slow to import, and are when they are needed."""
    package, room, name = kind.split(".")
    if package == "streampair":
        from streampair import preprocessing as ours

        return getattr(ours, name)
    if room == "preprocessing":
        from river import preprocessing

        return getattr(preprocessing, name)
    if room == "feature_extraction":
        from river import feature_extraction

        return getattr(feature_extraction, name)
    return getattr(compose, name)


def kind_of(step: object) -> Kind | None:
    """The row of the table for a step; None: it has none, or not with these parameters.

    A step that holds others has a row if all of them have.
    """
    name = public_name(step)
    kind = KINDS.get(name)
    if kind is None or kind.settings(step) is None:
        return None
    if isinstance(kind, _Container) and not all(kind_of(inner) for inner in kind.inside(step).values()):
        return None
    return kind


def _kind(step: object) -> Kind:
    """The row of a step that has one."""
    kind = kind_of(step)
    assert kind is not None
    return kind


def leaves(steps: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and step of each step that holds no others, in order; of any class.

    Examples
    --------
    >>> from river import compose
    >>> from streampair import preprocessing, steps
    >>> front = {"Guarded": preprocessing.Guarded(compose.Select("a"))}
    >>> [path for path, _ in steps.leaves(front)]
    ['Guarded/step']
    """
    for name, step in steps.items():
        kind = KINDS.get(public_name(step))
        if isinstance(kind, _Container):
            yield from leaves(kind.inside(step), f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", step


def in_fixed_order(step: Any) -> None:
    """Let each `Select` in a step return its fields in one order, so that a replay has equal bits.

    Its fields are a set of texts, whose order differs from process to process.
    """
    kind = KINDS.get(public_name(step))
    if type(kind) is _Select:
        step.keys = dict.fromkeys(_sorted(step.keys))
    elif isinstance(kind, _Container):
        for inner in kind.inside(step).values():
            in_fixed_order(inner)


# To and from plain values


def save_step(step: Any) -> dict[str, Any]:
    """The state of a step that has a row and holds no others, as plain values and arrays: see `load_step`.

    Raises
    ------
    ConfigError
        If it has learned a name or a value that is neither a text nor a number.
    """
    kind = _kind(step)
    return {"settings": kind.settings(step), "lists": _lists(kind, step), "arrays": kind.arrays(step)}


def _lists(kind: Kind, step: Any) -> dict[str, list[Any]]:
    """The lists of a step; ConfigError if they hold what is neither a text nor a number."""
    lists = kind.lists(step)
    for values in lists.values():
        for value in values:
            if not _plain(value):
                raise ConfigError(
                    f"a {type(step).__name__} has learned {short(value)}, a {type(value).__name__}, which "
                    "neither a snapshot nor a model file can hold",
                    fix="use texts, numbers, True and False as names and categories",
                )
    return lists


class _Saved(_Strict):
    settings: dict[str, Any]
    lists: dict[str, list[Scalar]]
    arrays: dict[str, Any]


def load_step(step: Any, state: Mapping[str, Any]) -> None:
    """Restore the state of a step with the same parameters.

    Raises
    ------
    ValueError
        If the state belongs to other parameters, or is none.
    """
    kind, saved = _kind(step), _converted(state, _Saved)
    if saved.settings != kind.settings(step):
        raise ValueError(f"it was saved with {saved.settings}, and has {kind.settings(step)}")
    _load(kind, step, saved.lists, saved.arrays)


def _converted(value: Any, kind: Any) -> Any:
    """The value with its types checked; ValueError if one is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _load(kind: Kind, step: Any, lists: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Load a new step, or one whose state is given up if this fails."""
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray) or values.dtype != np.float64:
            raise ValueError(f"{name} is no array of numbers")
    if lists.keys() != kind.lists(step).keys() or arrays.keys() != kind.arrays(step).keys():
        raise ValueError("it has other parts than a step of its class")
    kind.load(step, lists, arrays)


def freeze(name: str, step: Any) -> Parts:
    """A step taken apart, as it is now.

    Raises
    ------
    ConfigError
        If it has no row in the table, or has learned what a file cannot hold.
    """
    kind = kind_of(step)
    if kind is None:
        raise ConfigError(
            f"the step {name} ({type(step).__name__}) has no form in a model file",
            fix="use the steps, with the parameters, that docs/learners.md lists under Pipelines",
        )
    settings = kind.settings(step)
    assert settings is not None
    if isinstance(kind, _Container):
        parts = tuple(freeze(f"{name}/{key}", inner) for key, inner in kind.inside(step).items())
        parts = tuple(part._replace(name=part.name.rpartition("/")[2]) for part in parts)
        return Parts(name, public_name(step), settings, {}, {}, parts)
    return Parts(name, public_name(step), settings, _lists(kind, step), kind.arrays(step))


def make(parts: Parts, depth: int = 0) -> Any:
    """A step made from its parts; it transforms, and remembers no names of records.

    Raises
    ------
    ValueError
        If the parts are not those of a step.
    """
    kind = KINDS.get(parts.kind)
    if kind is None:
        raise ValueError(f"there is no kind of steps {parts.kind!r}")
    if depth > _MOST_DEPTH:
        raise ValueError("steps are nested too deeply")
    settings = _converted(parts.settings, kind.Settings)
    if isinstance(kind, _Container):
        inner = [(part.name, make(part, depth + 1)) for part in parts.steps]
        if len({name for name, _ in inner}) != len(inner) or not inner:
            raise ValueError("steps without different names")
        if parts.lists or parts.arrays:
            raise ValueError("a step that holds others has learned nothing itself")
        return kind.around(_class_of(parts.kind), inner)
    if parts.steps:
        raise ValueError(f"a {parts.kind} holds no steps")
    step = kind.make(_class_of(parts.kind), settings)
    _load(kind, step, parts.lists, parts.arrays)
    kind.close(step)
    return step


def check_same(front: Mapping[str, Any], parts: Sequence[Parts]) -> None:
    """Refuse steps that are not those of a model.

    Raises
    ------
    ConfigError
        It names the first that differs.
    """
    _check_same([freeze(name, step) for name, step in front.items()], parts)


def _check_same(ours: Sequence[Parts], theirs: Sequence[Parts]) -> None:
    for mine, other in itertools.zip_longest(ours, theirs):
        for part in ("name", "kind", "settings"):
            here, there = getattr(mine, part, None), getattr(other, part, None)
            if here != there:
                raise ConfigError(
                    f"the steps are not those of the model: the {part} of one is {here!r} here, and "
                    f"{there!r} in the model",
                    fix="use the same steps, with the same names and parameters, or begin without the model",
                )
        _check_same(mine.steps, other.steps)


def load_parts(step: Any, parts: Parts) -> None:
    """Give a step what the same step of a model has learned.

    Examples
    --------
    >>> from river import preprocessing
    >>> from streampair.steps import freeze, load_parts
    >>> learned, new = preprocessing.StandardScaler(), preprocessing.StandardScaler()
    >>> learned.learn_one({"a": 3.0})
    >>> load_parts(new, freeze("scaler", learned))
    >>> new.means["a"]
    3.0
    """
    kind = _kind(step)
    if isinstance(kind, _Container):
        for inner, part in zip(kind.inside(step).values(), parts.steps, strict=True):
            load_parts(inner, part)
    else:
        _load(kind, step, parts.lists, parts.arrays)


# What the first step gets


def first_input(steps: Iterable[Any]) -> Callable[[Any], dict[Any, Any]] | None:
    """Function from a record to what the first of these steps gets; None: the record itself.

    Where a step learns, a number that is not finite is refused: the step would learn it, and then give NaN.
    Fields of an imputer that a record does not have are None, as River's imputer needs it.

    Examples
    --------
    >>> from river import preprocessing
    >>> from streampair.steps import first_input
    >>> first_input([preprocessing.StatImputer(("a", 0.0))])({"b": 1.0})
    {'a': None, 'b': 1.0}
    """
    front = {str(place): step for place, step in enumerate(steps)}
    found = [step for _, step in leaves(front)]
    imputed = [name for step in found if isinstance(kind_of(step), _StatImputer) for name in step.stats]
    learned = not all(map(is_stateless, found))
    if not imputed:
        return _finite if learned else None
    gaps = dict.fromkeys(imputed)

    def filled(x: Any) -> dict[Any, Any]:
        return {**gaps, **_finite(x)}

    return filled


def _finite(x: dict[str, Any]) -> dict[str, Any]:
    """The record, if it has no NaN and no infinity."""
    try:
        total = sum(x.values())
        if total - total == 0.0:  # finite, so every value is
            return x
    except (TypeError, OverflowError):
        pass  # text, None or a huge integer: the model may know what to do with it
    for name, value in x.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(
                f"the feature {name!r} is {value}",
                fix="send a finite number, or leave the feature out",
            )
    return x


def transformer(steps: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Function from what the first of these steps gets to what the last one returns.

    Whatever a step raises is a `RecordError` that names the step.
    """
    methods = [(name, step.transform_one) for name, step in steps.items()]

    def transform(x: Any) -> Any:
        name = ""
        try:
            for name, method in methods:  # noqa: B007  # for the error
                x = method(x)
        except (StreampairError, MemoryError):
            raise
        except Exception as error:
            raise RecordError(
                f"the step {name} cannot transform the record ({type(error).__name__}: {error})",
                fix="send what the step needs",
                stage="features",
            ) from error
        return x

    return transform


class FrozenSteps:
    """Steps in front of a learner that no longer learn.

    Parameters
    ----------
    parts
        Of each step, in order.

    Raises
    ------
    ValueError
        If the parts are not those of steps.
    """

    def __init__(self, parts: Sequence[Parts]) -> None:
        self.steps: dict[str, Any] = {part.name: make(part) for part in parts}
        if len(self.steps) != len(parts) or not parts:
            raise ValueError("steps without different names")
        if not all(isinstance(step, base.Transformer | compose.Pipeline) for step in self.steps.values()):
            raise ValueError("a step does not transform")
        self._first, self._transform = first_input(self.steps.values()), transformer(self.steps)
        found = [step for _, step in leaves(self.steps)]
        kinds = [_kind(step) for step in found]
        self._of_texts = any(isinstance(_kind(step), _BagOfWords) and step.on is None for step in found)
        #: Whether a step is made for missing values, and for texts.
        self.gaps, self.texts = any(kind.gaps for kind in kinds), any(kind.texts for kind in kinds)

    def reads(self, names: Sequence[Hashable]) -> list[Name] | None:
        """Names of the fields from which the steps make features of these names; None: not known."""
        wanted: list[Any] | None = list(names)
        for step in reversed(self.steps.values()):
            wanted = _kind(step).reads(step, wanted)
        return wanted

    def transform_one(self, x: Mapping[Any, Any] | str) -> Mapping[Any, Any]:
        """What the learner gets of a record, or of a text where a step takes words of no field.

        Raises
        ------
        RecordError
            If a step cannot take the record; `NoScoreError` if the steps have learned too little to make
            finite numbers of it.
        """
        is_text = self._of_texts and isinstance(x, str)
        if not is_text and not isinstance(x, Mapping):
            raise RecordError(
                f"the record is of type {type(x).__name__}", fix="give a dict of values by feature name"
            )
        z: Any = x if is_text else dict(x)  # type: ignore[arg-type]  # else a mapping
        if self._first is not None and not is_text:
            z = self._first(z)
        z = self._transform(z)
        if self._first is not None and not all(map(_is_number, z.values())):
            raise NoScoreError(
                "the steps in front of the learner have learned too little to make numbers of the record",
                fix="none: a model that has learned such records has a score",
                stage="features",
            )
        return z  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
