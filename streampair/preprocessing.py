"""Stateless transformers, which are safe in front of a private learner.

Each output depends on one record only, and no record makes them raise. An unusable record is mapped to a
value that a private learner takes as a null record, a linear learner without privacy as missing, and others
refuse (docs/privacy 7.1). A text that can be read as a number is that number, in a record as in a frame,
since readers of CSV files return a column with one text as texts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from river import base

from streampair.errors import ConfigError, RecordError
from streampair.kernels import random
from streampair.privacy.pipeline_check import is_stateless
from streampair.records import features as _features
from streampair.records.features import Categories
from streampair.records.frames import (
    FeatureTable,
    is_numeric,
    matrix_like,
    open_frame,
    unreadable_columns,
    with_rows,
)

__all__ = ["Bounds", "Guarded", "Hashing", "OneHot", "RandomFourier", "UnitBall"]

Array = NDArray[np.float64]


def _is_word(text: str) -> bool:
    """Whether a text cannot be read as a number, including infinities and NaN."""
    return isinstance(_features.spelled(text), str)


class Bounds(base.MiniBatchTransformer):
    """Scale features from their declared bounds to [-1, 1].

    A value outside its bounds is clipped. Features without bounds pass unchanged, and so do values that are
    not finite numbers: a learner takes them, such as the texts of a linear one, or raises an error that names
    the feature; a private learner takes a null record.

    Parameters
    ----------
    bounds
        ``{name: (low, high)}``, with low < high, both finite. They must be public: declared from knowledge of
        what the feature can be, never measured on the stream.

    Raises
    ------
    ConfigError
        If a pair is not two finite numbers in rising order.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (docs/privacy 7).

    Examples
    --------
    >>> from streampair import preprocessing
    >>> scale = preprocessing.Bounds({"age": (0, 120), "amount": (0, 1000)})
    >>> scale.transform_one({"age": 90, "amount": 5000.0, "clicks": 3})
    {'age': 0.5, 'amount': 1.0, 'clicks': 3}
    """

    def __init__(self, bounds: Mapping[Any, tuple[float, float]]) -> None:
        self.bounds = bounds
        if not isinstance(bounds, Mapping):
            raise ConfigError(f"bounds is {bounds!r}", fix="give a dict such as {'age': (0, 120)}")
        self._scale: dict[Hashable, tuple[float, float, float]] = {}
        for name, pair in bounds.items():
            try:
                low, high = (_features.as_number(v) for v in pair)
            except (TypeError, ValueError, OverflowError):
                raise ConfigError(
                    f"the bounds of {name!r} are {pair!r}", fix="give two numbers, (low, high)"
                ) from None
            if not (low < high and math.isfinite(high - low)):
                raise ConfigError(
                    f"the bounds of {name!r} are {pair!r}", fix="give two finite numbers with low < high"
                )
            self._scale[name] = (low, high, 2.0 / (high - low))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"bounds": {"gallup": (0.0, 100.0)}}

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The record with its bounded features in [-1, 1]; x itself is not changed."""
        out = x.copy() if x.__class__ is dict else _features.copied(x)
        for name, (low, high, factor) in self._scale.items():
            if name in out and (value := _features.real(out[name])) is not None:
                out[name] = min((min(max(value, low), high) - low) * factor - 1.0, 1.0)
        return out

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame; a frame of the same kind."""
        if not is_numeric(X):
            return with_rows(X, self.transform_one)
        table = FeatureTable(X)
        columns, rows = table.columns, table.rows
        out = rows.copy()
        for j, name in enumerate(columns):
            if name in self._scale:
                low, high, factor = self._scale[name]
                finite = np.isfinite(rows[:, j])
                scaled = (np.clip(rows[:, j], low, high) - low) * factor - 1.0
                out[:, j] = np.where(finite, np.minimum(scaled, 1.0), rows[:, j])
        return table.matrix(out, columns)


class UnitBall(base.MiniBatchTransformer):
    """Project each record onto the l2 ball of the given radius.

    A record with a larger norm is scaled to norm `radius`; any other is unchanged.

    A record with a value that is not a finite number passes unchanged: a learner takes it or raises an error,
    and a private learner takes a null record.

    Parameters
    ----------
    radius
        Finite, above 0.

    Raises
    ------
    ConfigError
        If the radius is not finite and above 0.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (docs/privacy 7).

    Examples
    --------
    >>> from streampair import preprocessing
    >>> preprocessing.UnitBall().transform_one({"a": 3.0, "b": 4.0})
    {'a': 0.6, 'b': 0.8}
    """

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = radius
        if not (isinstance(radius, int | float) and math.isfinite(radius) and radius > 0.0):
            raise ConfigError(f"radius is {radius!r}", fix="give a finite radius above 0")

    def _divisor(self, values: Iterable[float]) -> float:
        norm = math.hypot(*values)  # does not overflow where the sum of squares would
        return norm / self.radius if norm > self.radius else 1.0

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The projected record; x itself is not changed."""
        record = x if x.__class__ is dict else _features.copied(x)
        values: list[float] = []
        for value in record.values():
            number = _features.real(value)
            if number is None:
                return dict(record)
            values.append(number)
        divisor = self._divisor(values)
        return {name: value / divisor for name, value in zip(record, values, strict=True)}

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame; a frame of the same kind."""
        if not is_numeric(X):
            return with_rows(X, self.transform_one)
        table = FeatureTable(X)
        columns, rows = table.columns, table.rows
        divisors = [self._divisor(row) if np.isfinite(row).all() else 1.0 for row in rows]
        out = rows / np.array(divisors).reshape(-1, 1)
        return table.matrix(out, columns)


class RandomFourier(base.MiniBatchTransformer):
    """Random Fourier features, which make a linear learner non-linear.

    The feature map approximates the Gaussian (RBF) kernel: the joint map of all features,
    ``z(x) = (sin u_1.x, cos u_1.x, ..., sin u_m.x, cos u_m.x) / sqrt(m)`` with ``u_j ~ N(0, 2 gamma I)`` and
    m = components / 2, so that ``z(x).z(x')`` is close to ``exp(-gamma |x - x'|^2)`` (Rahimi and Recht 2007).
    Every record is mapped to norm 1, as private learners need. (River's `RBFSampler` maps each feature by
    itself, which is much weaker.)

    Parameters
    ----------
    components
        Number of output features, even, at least 2. More of them approximate the kernel better; for a private
        learner each adds noise, and lengthens the warm-up.
    gamma
        Inverse squared width of the kernel, from 1e-12 to 1e12: with features of order 1, about 1 / d.
    seed
        Integer that decides the frequencies. They are public and cost no privacy.
    features
        Names of the features to use; all others are ignored. None: all that a record has.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    A function of one record, nothing is fitted: in front of a private learner it changes no guarantee
    (docs/privacy 7). The frequencies of a feature depend on its name and the seed alone, not on the order of
    the features or on earlier records, and their bits are the same on every processor.

    Scale the features first, for example with `Bounds`. A feature that is missing counts as 0. A record
    that has none of the features, or one that is not a finite number, becomes NaN in all columns: to a linear
    learner all are missing, others refuse it, and a private learner takes a null record.

    References
    ----------
    Rahimi, A. and Recht, B. (2007). Random features for large-scale kernel machines. NeurIPS.

    Sutherland, D. and Schneider, J. (2015). On the error of random Fourier features. UAI. (Why pairs of sine
    and cosine rather than random phases.)

    Examples
    --------
    >>> from streampair import preprocessing
    >>> z = preprocessing.RandomFourier(components=4, seed=1).transform_one({"a": 0.3, "b": -1.0})
    >>> list(z)
    ['fourier0', 'fourier1', 'fourier2', 'fourier3']
    >>> round(sum(value**2 for value in z.values()), 12)
    1.0
    """

    def __init__(
        self,
        components: int = 40,
        gamma: float = 1.0,
        seed: int = 0,
        features: Sequence[Any] | None = None,
    ) -> None:
        self.components = components
        self.gamma = gamma
        self.seed = seed
        self.features = features
        if _features.checked_size("components", components) % 2:
            raise ConfigError(
                f"components is {components}, which is odd",
                fix="give an even number: every frequency has a sine and a cosine",
            )
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 1e-12 <= gamma <= 1e12:
            raise ConfigError(f"gamma is {gamma!r}", fix="give a number from 1e-12 to 1e12")
        _features.checked_seed(seed)
        self._names: tuple[Hashable, ...] | None = None
        if features is not None:
            ok = isinstance(features, Sequence) and not isinstance(features, str | bytes)
            if not ok or not features or len(set(features)) != len(features):
                raise ConfigError(f"features is {features!r}", fix="give a list of different feature names")
            self._names = tuple(features)
        self._out = [f"fourier{i}" for i in range(components)]

    def _of(self, columns: tuple[Hashable, ...]) -> tuple[tuple[Hashable, ...], Array]:
        return _features.frequencies(self.seed, self.components // 2, float(self.gamma), columns)

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The features of one record, in [-1, 1] and of norm 1; x itself is not changed."""
        if x.__class__ is not dict:
            x = _features.copied(x)
        names, frequencies = self._of(self._names or tuple(x))
        row = np.empty((1, len(names)))
        try:
            if self._names is None:
                values = [x[name] for name in names]
            else:
                values = [x.get(name, 0.0) for name in names]
            try:
                struct.pack_into(f"{len(names)}d", memoryview(row.reshape(-1)), 0, *values)  # type: ignore[arg-type]
            except Exception:  # a value that struct refuses: perhaps a text that reads as a number
                row[0] = [_features.number(value) for value in values]
            known = any(name in x for name in names)
        except Exception:
            known = False
        out = np.full((1, self.components), math.nan)
        if known:
            random.fourier_rows(row, frequencies, out)
        return dict(zip(self._out, out[0].tolist(), strict=True))

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame; a frame of the same kind."""
        table = FeatureTable(X, strict=False, read=_features.number)
        columns, rows = table.columns, table.rows
        names, frequencies = self._of(self._names or tuple(columns))
        index = {name: j for j, name in enumerate(names)}
        out = np.full((len(rows), self.components), math.nan)
        if any(name in index for name in columns):
            random.fourier_rows(_features.arrange(columns, rows, names, index), frequencies, out)
        if any(name in index for name in table.unreadable):
            out.fill(_features.UNREADABLE)
        return table.matrix(out, self._out)


class Hashing(base.MiniBatchTransformer):
    """Feature hashing: maps any features, categorical ones too, to a fixed number of columns.

    A number is added to the column that its name hashes to, or subtracted from it, by another bit of the
    hash. A text that cannot be read as a number is the feature ``name=text`` with the value 1. Every record
    has all columns, also those that are 0: the schema must not depend on the records in front of a private
    learner. (River's `FeatureHasher` leaves out zeros, which a private learner takes for missing values;
    without a seed it hashes differently in each process.)

    Parameters
    ----------
    size
        Number of columns.
    seed
        Integer that decides the hash. It is public.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (docs/privacy 7). Scale numbers first, for example with `Bounds`. A record without features, or with a
    value that is neither text nor a finite number, becomes NaN in all columns: to a linear learner all are
    missing, others refuse it, and a private learner takes a null record.

    References
    ----------
    Weinberger, K. et al. (2009). Feature hashing for large scale multitask learning. ICML.

    Examples
    --------
    >>> from streampair import preprocessing
    >>> preprocessing.Hashing(size=4).transform_one({"amount": 0.5, "country": "NL"})
    {'hash0': -1.0, 'hash1': 0.0, 'hash2': 0.0, 'hash3': 0.5}
    """

    def __init__(self, size: int = 256, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        _features.checked_size("size", size)
        _features.checked_seed(seed)
        self._out = [f"hash{i}" for i in range(size)]

    def _row(self, items: Iterable[tuple[Any, Any]]) -> list[float]:
        out = [0.0] * self.size
        found = False
        for name, value in items:
            token = f"{type(name).__name__}:{name}"
            number = _features.real(value)
            if number is None and isinstance(value, str) and _is_word(value):
                number = 1.0
                # The length distinguishes a name with "=" in it from another name and its text.
                token = f"{len(token)}:{token}={value}"
            if number is None:
                return [math.nan] * self.size
            place = _features.digest(self.seed, token, 62)
            out[(place >> 1) % self.size] += number if place & 1 else -number
            found = True
        return out if found else [math.nan] * self.size

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The columns of one record; x itself is not changed."""
        if x.__class__ is not dict:
            x = _features.copied(x)
        return dict(zip(self._out, self._row((name, x[name]) for name in _features.in_order(x)), strict=True))

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame; a frame of the same kind."""
        frame = open_frame(X)
        names = _features.in_order(frame.columns)
        order = [frame.columns.index(name) for name in names]  # type: ignore[arg-type]
        rows = [self._row((names[i], row[j]) for i, j in enumerate(order)) for row in frame.rows()]
        out = np.array(rows, dtype=np.float64).reshape(len(frame), self.size)
        if unreadable_columns(frame):
            out.fill(_features.UNREADABLE)
        return matrix_like(X, out, self._out)


class OneHot(base.MiniBatchTransformer):
    """One-hot encoding of declared categories: one column for each declared value of a field.

    A column is 1 if the record has that value, else 0. Nothing is fitted, and every record has all columns:
    the schema must not depend on the records in front of a private learner. An undeclared or missing value
    gives 0 in all columns of its field. Undeclared fields pass unchanged. (River's `OneHotEncoder` has a
    column for each value that it has seen.)

    Parameters
    ----------
    categories
        ``{field: [value, ...]}``: texts, integers or booleans. They must be public: declared from knowledge
        of what the field can be, never collected from the stream.

    Raises
    ------
    ConfigError
        If a field has no value, a value is repeated or has another type, or two columns have the same name.

    Notes
    -----
    A function of one record, without state: in front of a private learner it changes no guarantee
    (docs/privacy 7). Columns are named ``field=value``, after the fields that pass; a field that passes
    and has such a name is dropped. A value that is not a record, or an empty record, becomes NaN in all
    columns: to a linear learner all are missing, others refuse it, and a private learner takes a null record.

    Examples
    --------
    >>> from streampair import preprocessing
    >>> one_hot = preprocessing.OneHot({"country": ["NL", "BE"]})
    >>> one_hot.transform_one({"amount": 12.5, "country": "BE"})
    {'amount': 12.5, 'country=NL': 0.0, 'country=BE': 1.0}
    >>> one_hot.transform_one({"amount": 12.5, "country": "FR"})
    {'amount': 12.5, 'country=NL': 0.0, 'country=BE': 0.0}
    >>> one_hot.columns
    ['country=NL', 'country=BE']
    """

    def __init__(self, categories: Mapping[Any, Sequence[Any]]) -> None:
        self.categories = categories
        self._of = Categories(categories)
        self._zeros = dict.fromkeys(self._of.columns, 0.0)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"categories": {"weekday": ["mon", "tue"]}}

    @property
    def columns(self) -> list[str]:
        """Names of the new columns, for `features` of a learner; their bounds are (0, 1)."""
        return list(self._of.columns)

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The record with the columns of its declared fields; x itself is not changed."""
        out, of = _features.copied(x), self._of
        if not out:
            return dict.fromkeys(of.columns, math.nan)
        hot = [of.column(field, out.pop(field, None)) for field in of.places]
        out |= self._zeros
        for column in hot:
            if column is not None:
                out[of.columns[column]] = 1.0
        return out

    def transform_many(self, X: Any) -> Any:
        """The same for the rows of a data frame; a frame of the same kind."""
        if isinstance(X, np.ndarray):
            raise RecordError(
                "the output has named columns, and an array has no names", fix="give a data frame"
            )
        frame, of = open_frame(X), self._of
        names = list(frame.columns)
        passing = [j for j, name in enumerate(names) if name not in of.places and name not in self._zeros]
        hot = np.zeros((len(frame), len(of.columns)))
        for j, name in enumerate(names):
            if name in of.places:
                found = [of.column(name, value) for value in frame[:, j].to_list()]
                for row, column in zip(hot, found, strict=True):
                    if column is not None:
                        row[column] = 1.0
        if any(name in of.places for name in unreadable_columns(frame)):
            hot.fill(_features.UNREADABLE)
        if not names:
            hot.fill(math.nan)
        rest = frame[:, passing]
        if is_numeric(rest.to_native()):  # one array: half of the time of two frames
            values = np.hstack([FeatureTable(rest.to_native()).rows, hot]) if passing else hot
            return matrix_like(X, values, [*(names[j] for j in passing), *of.columns])
        columns = nw.from_native(matrix_like(X, hot, of.columns))
        return nw.concat([rest, columns], how="horizontal").to_native()


class Guarded(base.Transformer):
    """Wrapper around a transformer that catches its errors: a record on which it raises becomes empty.

    Some stateless transformers of River raise on some records: `compose.Select` if a feature is missing,
    `preprocessing.Normalizer` on text. In front of a private learner, such a record would take no slot. The
    empty record is a null record instead, and no other record is affected. `Guarded` transforms one record
    at a time; it has no `transform_many`.

    Parameters
    ----------
    step
        A transformer of `streampair.privacy.check_pipeline`'s list, or a pipeline or union of them.

    Raises
    ------
    ConfigError
        If it may learn from the stream.

    Examples
    --------
    >>> from river import compose
    >>> from streampair import preprocessing
    >>> select = preprocessing.Guarded(compose.Select("a"))
    >>> select.transform_one({"a": 1.0, "b": 2.0}), select.transform_one({"b": 2.0})
    ({'a': 1.0}, {})
    """

    def __init__(self, step: Any) -> None:
        self.step = step
        if not is_stateless(step):
            raise ConfigError(
                f"{type(step).__name__} may learn from the stream, and Guarded lets no step learn",
                fix="give a step that learns nothing, such as river.compose.Select('a')",
            )

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"step": Bounds({"gallup": (0.0, 100.0)})}

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, Any]:
        """The step's output for a copy of the record; empty if the step raises."""
        try:
            return _features.copied(self.step.transform_one(_features.copied(x)))
        except Exception:
            return {}
