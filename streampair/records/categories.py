"""Declared values of fields, and a column for each of them: one-hot, with nothing fitted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from streampair.errors import ConfigError
from streampair.records import features

__all__ = ["Categories"]


class Categories:
    """From the value of a field to the one of its columns that is 1.

    Parameters
    ----------
    values
        ``{field: [value, ...]}``: texts, whole numbers or truth values, each once.
    read
        What a value is compared as: by default a text that reads as a number is that number, as in a column
        of a data frame that a text has made text of.

    Raises
    ------
    ConfigError
        If a field has no value, a value comes twice or is none of these, or two columns had one name.

    Attributes
    ----------
    columns
        ``field=value``, fields and values as declared.
    places
        For each field which column belongs to a value that was read.

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
                        f"a value of {field!r} is {value!r}", fix="give texts, whole numbers or truth values"
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
                raise ConfigError(f"{field!r} has no values", fix="declare those that are to be told apart")
        if len(set(self.columns)) < len(self.columns):
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise ConfigError(
                f"two of the declared values make a column {twice!r}", fix="rename a field or a value"
            )

    def column(self, field: Hashable, value: object) -> int | None:
        """Which column is 1 for this value of the field; None: it is missing or was not declared."""
        try:
            return self.places[field].get(self._read(value))
        except Exception:  # a list, or what else has no hash: not declared
            return None
