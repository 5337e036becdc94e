"""The configuration is read from its file, and compared with it while it runs."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streampair.errors import ConfigError
from streampair_connectors.config.file_kinds import kind_of
from streampair_connectors.config.models import Config, parse_config
from streampair_connectors.config.overrides import apply_overrides, from_command_line, from_environment

__all__ = ["Changes", "load_config"]


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] | None = None) -> Config:
    """Read and validate a configuration: its file, the environment, and what the command line sets.

    Parameters
    ----------
    path
        A TOML file. Relative paths start at its directory.
    overrides
        What `--set` gives, each as KEY=VALUE. It goes before the environment, which goes before the file.

    Raises
    ------
    ConfigError
        The file cannot be read, is not TOML, or is not a valid configuration with the other values. Every
        problem is named, with the nearest known key for an unknown one.
    """
    file = Path(path)
    _check_not_events(file)
    try:
        data = tomllib.loads(_text(file))
    except OSError as error:
        fix = "check the path and its permissions"
        if isinstance(error, FileNotFoundError):
            fix = f"correct the path; streampair init {file} --topic TOPIC, or --file FILE, writes one"
        raise ConfigError(f"the configuration {file} cannot be read: {error.strerror}", fix=fix) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is not TOML: {error}", fix="correct that line") from None
    settings = tuple(overrides or ())
    values = [*from_environment(os.environ), *from_command_line(settings)]
    places = {each.name: each.place for each in values}
    config = parse_config(
        apply_overrides(data, values), base=file.absolute().parent, source=str(file), places=places
    )
    config._file, config._overrides, config._places = file.absolute(), settings, places
    return config


def _check_not_events(file: Path) -> None:
    """Refuse a file whose name is that of a table of events."""
    if file.suffix in (".csv", ".json", ".jsonl", ".ndjson"):
        raise ConfigError(
            f"{file} is no configuration: its name is that of a file of events",
            fix=f"name a .toml file; streampair init {file.stem}.toml --file {file} writes one from events",
        )


def _text(file: Path) -> str:
    content = file.read_bytes()
    kind = kind_of(content)
    if kind is not None:
        raise ConfigError(f"the configuration {file} is {kind[0]}, not TOML in UTF-8", fix=kind[1])
    return content.decode("utf-8-sig").replace("\r\n", "\n")


# Stands for all keys of a file that cannot be read.
_UNREADABLE = "the file"


class Changes:
    """Compares a configuration with its file, which is read again when it has changed.

    Parameters
    ----------
    config
        The running configuration; without a file it never changes.

    Attributes
    ----------
    keys
        Names of the keys that differed at the last `look`, never their values; a placeholder if the file is
        gone or invalid.
    refused
        Why these changes would make the next start be refused; empty: they would not.

    Examples
    --------
    >>> from streampair_connectors.config import parse_config
    >>> config = parse_config({"app": "fraud", "input": {"topic": "t", "label": "y", "features": ["a"]},
    ...                        "learner": {"class": "streampair.auc.PairOGD"}})
    >>> Changes(config).look()
    0
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runs = config.model_dump(mode="json", by_alias=True)
        self._seen: tuple[int, int, int] | None = self._stamp()
        self.keys: tuple[str, ...] = ()
        self.refused = ""

    def look(self) -> int:
        """Read the file if it has changed, and return how many keys differ."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._compare()
        return len(self.keys)

    def as_dict(self) -> dict[str, Any] | None:
        """Return the current changes as plain values; None without a file."""
        if self._config.file is None:
            return None
        self.look()
        return {"keys": list(self.keys), "refused": self.refused}

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._config.file is not None:
            with contextlib.suppress(OSError):
                found = self._config.file.stat()
                return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    def _compare(self) -> None:
        assert self._config.file is not None
        try:
            other = load_config(self._config.file, self._config.overrides)
            same = other.app != self._config.app or other.fingerprint() == self._config.fingerprint()
        except ConfigError:  # its message may quote the file, and is shown at the next start only
            self.keys, self.refused = (_UNREADABLE,), "it is no configuration, or cannot be read"
            return
        self.keys = tuple(sorted(_differing(self._runs, other.model_dump(mode="json", by_alias=True))))
        self.refused = "" if same else "its learner or its input are others, under the same app name"


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in a.keys() | b.keys():
        ours, theirs = a.get(name), b.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _differing(ours, theirs, f"{path}{name}.")
        elif ours != theirs:
            yield f"{path}{name}"
