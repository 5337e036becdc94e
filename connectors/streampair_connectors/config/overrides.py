"""Values of keys that come from the environment or the command line, in place of those of the file.

The command line (`--set kafka.bootstrap_servers=broker:9092`) goes before the environment
(`STREAMPAIR_KAFKA__BOOTSTRAP_SERVERS=broker:9092`), and both before the file. A value is one of TOML; what is
no TOML is a text, so that most texts need no quotes. Keys are checked with those of the file, by the same
models.

`pydantic-settings` reads the environment, too. It is not used: it ignores a variable of a misspelt table, and
its values are JSON, so that a list in the spelling of the file fails, in an error that does not name the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr

from streampair.errors import ConfigError
from streampair_connectors.config.models import Config, keys_of, table_at

__all__ = ["PREFIX", "Override", "apply_overrides", "from_command_line", "from_environment"]

#: Begins the names of the variables.
PREFIX = "STREAMPAIR_"


@dataclass(frozen=True)
class Override:
    """One value.

    Parameters
    ----------
    place
        Where it is from, for messages: a variable, or `--set`.
    keys
        The path of its key, from the top table.
    text
        The value as it was written.
    secret
        Whether it is a secret itself, in place of the file that the key names.
    """

    place: str
    keys: tuple[str, ...]
    text: str = field(repr=False)
    secret: bool = False

    @property
    def name(self) -> str:
        """The key with its tables, as in messages."""
        return ".".join(self.keys)

    def value(self) -> Any:
        """The value that the text spells in TOML; the text itself where it spells none that the key takes."""
        if self.secret:
            return SecretStr(self.text)
        try:
            found = tomllib.loads(f"value = {self.text}")
        except tomllib.TOMLDecodeError:
            return self.text
        # A text of several lines can be TOML with further keys.
        if found.keys() != {"value"} or (_takes_text(self.keys) and not isinstance(found["value"], str)):
            return self.text
        return found["value"]


def _takes_text(keys: Sequence[str]) -> bool:
    """Whether a key takes nothing but text, so that `app=2024` needs no quotes."""
    kinds = _kinds_at(keys)
    return bool(kinds) and kinds <= {str, Path, SecretStr, NoneType}


def _kinds_at(keys: Sequence[str]) -> set[Any]:
    table = table_at(keys[:-1])
    found = None if table is None else table.model_fields.get(keys[-1])
    return set() if found is None else _kinds(found.annotation)


def _kinds(annotation: Any) -> set[Any]:
    """The types of the values that an annotation allows."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {type(value) for value in inner}
    if origin in (Union, UnionType):
        return {kind for each in inner for kind in _kinds(each)}
    return _kinds(inner[0]) if origin is Annotated else {origin or annotation}


def from_command_line(settings: Iterable[str]) -> list[Override]:
    """Read the values of `--set`, in their order.

    Raises
    ------
    ConfigError
        One is not KEY=VALUE.

    Examples
    --------
    >>> [one] = from_command_line(["input.features=['amount', 'age']"])
    >>> one.name, one.value()
    ('input.features', ['amount', 'age'])
    """
    return [Override("--set", _path(key), text) for key, text in map(_split, settings)]


def _split(setting: str) -> tuple[str, str]:
    key, equals, text = setting.partition("=")
    if not equals:
        raise ConfigError(
            f"--set {setting} has no value", fix="write --set KEY=VALUE, such as --set output.topic=scores"
        )
    return key.strip(), text.strip()


def _path(key: str) -> tuple[str, ...]:
    """The parts of a dotted key of TOML: a name that has a dot itself is in quotes."""
    keys = []
    try:
        table: Any = tomllib.loads(f"{key} = 0")
        while isinstance(table, dict):
            [(name, table)] = table.items()
            keys.append(name)
    except ValueError:
        raise ConfigError(
            f"--set {key}: that is not a key",
            fix="write it as in the file, such as --set output.topic=scores",
        ) from None
    return tuple(keys)


def from_environment(environment: Mapping[str, str]) -> list[Override]:
    """Read the variables that set keys: those with `__` between table and key, and `STREAMPAIR_APP`.

    A secret whose file is the value of a key can be given itself: `STREAMPAIR_KAFKA__PASSWORD` takes the
    place of `kafka.password_file`. Other variables that begin with `STREAMPAIR_` are somebody else's.

    Parameters
    ----------
    environment
        The variables.

    Raises
    ------
    ConfigError
        A variable has one underscore where it needs two; a secret is empty, or given twice.

    Examples
    --------
    >>> [one] = from_environment({"STREAMPAIR_WORKER__BATCH_SIZE": "500"})
    >>> one.name, one.value()
    ('worker.batch_size', 500)
    """
    found: dict[tuple[str, ...], Override] = {}
    for override in _variables(environment):
        other = found.setdefault(override.keys, override)
        if other is not override:
            raise ConfigError(f"{other.place} and {override.place} are both set", fix="keep one of them")
    return list(found.values())


def _variables(environment: Mapping[str, str]) -> Iterator[Override]:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        keys = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if len(keys) > 1 or keys == ("app",):
            yield _secret(variable, keys, text) or Override(variable, keys, text)
        else:
            _check_underscores(variable, keys[0])


def _secret(variable: str, keys: tuple[str, ...], text: str) -> Override | None:
    """The secret itself, in place of the file that holds it; None: the variable is not that of a secret."""
    file = (*keys[:-1], f"{keys[-1]}_file")
    if SecretStr not in _kinds_at(file):
        return None
    if not text.strip():
        raise ConfigError(
            f"the environment variable {variable} is empty",
            fix=f"put the secret into it, or unset {variable}",
        )
    return Override(variable, file, text.strip(), secret=True)


def _check_underscores(variable: str, flat: str) -> None:
    """Refuse the variable of a known key that has one underscore after its table."""
    for name in keys_of(Config):
        table, key = table_at((name,)), flat.removeprefix(f"{name}_")
        if table is not None and key != flat and key in keys_of(table):
            raise ConfigError(
                f"the environment variable {variable} sets no key",
                fix=f"write {PREFIX}{name.upper()}__{key.upper()}, with two underscores after the table",
            )


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """Return the tables of a file with other values; a later one goes before an earlier one.

    Raises
    ------
    ConfigError
        A key is below one that is no table in the file.
    """
    changed = deepcopy(dict(data))
    for override in overrides:
        table: Any = changed
        for depth, key in enumerate(override.keys[:-1], 1):
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                above = ".".join(override.keys[:depth])
                raise ConfigError(
                    f"{override.name} (from {override.place}): {above} is no table in the configuration",
                    fix=f"set {above} as a whole, or make it a table in the file",
                )
        table[override.keys[-1]] = override.value()
    return changed
