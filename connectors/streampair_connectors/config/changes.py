"""Whether the file of a configuration still says what runs: it is read once, when a program starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from streampair.errors import ConfigError
from streampair_connectors.config.whole import Config, load_config

__all__ = ["Changes"]

# Of a stand-in for one that cannot be read.
_UNREADABLE = "the file"


class Changes:
    """Compares a configuration with its file, which is read anew when it has changed.

    Parameters
    ----------
    config
        What runs; one that comes from no file never changes.

    Attributes
    ----------
    keys
        Names of the keys that differ, as of the last `look`: never their values. One that stands for all if
        the file is gone, or is no configuration.
    refused
        Why the next start would be refused; empty: it would not be for this.

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
        """Read the file if it is another one than before, and return how many keys differ."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._compare()
        return len(self.keys)

    def as_dict(self) -> dict[str, Any] | None:
        """As plain values, as of now; None: there is no file to compare with."""
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
            other = load_config(self._config.file)
        except ConfigError:  # whose message may quote what is in the file: who starts it is shown that
            self.keys, self.refused = (_UNREADABLE,), "it is no configuration, or cannot be read"
            return
        self.keys = tuple(sorted(_differing(self._runs, other.model_dump(mode="json", by_alias=True))))
        same = other.app != self._config.app or other.fingerprint() == self._config.fingerprint()
        self.refused = "" if same else "its learner or its input are others, under the same app name"


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in a.keys() | b.keys():
        ours, theirs = a.get(name), b.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _differing(ours, theirs, f"{path}{name}.")
        elif ours != theirs:
            yield f"{path}{name}"
