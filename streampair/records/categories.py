"""One-hot encoding of declared values; nothing is fitted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from streampair.errors import ConfigError
from streampair.records import features

__all__ = ["Categories"]


class Categories:
    """Maps a value of a field to the one of its columns that is 1.

    Parameters
    ----------
    values
        ``{field: [value, ...]}``: texts, integers or booleans, each once.
    read
        Function that makes a value comparable. By default a text that can be read as a number is that number,
        as in a data frame where one text makes texts of a whole column.

    Raises
    ------
    ConfigError
        If a field has no value, a value is repeated or has another type, or two columns have the same name.

    Attributes
    ----------
    columns
        ``field=value``, fields and values as declared.
    places
        For each field, the column of each value as `read` returns it.

    Examples
    --------
    >>> of = Categories({"country": ["NL", "BE"], "card": ["debit"]})
    >>> of.columns
    ['country=NL', 'country=BE', 'card=debit']
    >>> of.column("country", "BE"), of.column("country", "FR"), of.column("country", None)
    (1, None, None)
    """

    __slots__ = ("_read", "columns", "places")

    def __init__(
        self, values: Mapping[Any, Sequence[Any]], read: Callable[[Any], Any] = features.label
    ) -> None:
        self._read = read
        if not isinstance(values, Mapping) or not values:
            raise ConfigError(
                f"the declared values are {values!r}", fix="give a dict such as {'country': ['NL', 'BE']}"
            )
        self.columns: list[str] = []
        self.places: dict[Hashable, dict[Hashable, int]] = {}
        for field, declared in values.items():
            if isinstance(declared, str | bytes) or not isinstance(declared, Iterable):
                raise ConfigError(
                    f"the values of {field!r} are {declared!r}", fix="give a list such as ['NL', 'BE']"
                )
            places = self.places[field] = {}
            for value in declared:
                if not isinstance(value, str | int):
                    raise ConfigError(
                        f"a value of {field!r} is {value!r}", fix="give texts, integers or booleans"
                    )
                if read(value) in places:
                    raise ConfigError(f"{value!r} is twice among the values of {field!r}", fix="name it once")
                places[read(value)] = len(self.columns)
                self.columns.append(f"{field}={value}")
                if not self.columns[-1].isprintable():
                    raise ConfigError(
                        f"{self.columns[-1]!r} would be the name of a column", fix="declare printable text"
                    )
            if not places:
                raise ConfigError(f"{field!r} has no values", fix="declare at least one value")
        if len(set(self.columns)) < len(self.columns):
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise ConfigError(
                f"two of the declared values make a column {twice!r}", fix="rename a field or a value"
            )

    def column(self, field: Hashable, value: object) -> int | None:
        """Index of the column that is 1 for this value of the field; None: missing or not declared."""
        try:
            return self.places[field].get(self._read(value))
        except Exception:  # a value without a hash, such as a list, is not declared
            return None
