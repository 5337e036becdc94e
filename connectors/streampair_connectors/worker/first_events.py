"""Warnings of the first events: strings that are numbers, fields or an id that no event has, no label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from streampair.engine import Record, Scored
from streampair.errors import StreampairError
from streampair_connectors.codecs.fields import unnested
from streampair_connectors.codecs.fixes import is_number, label_fix, missing_fix, numbers_fix
from streampair_connectors.config import Config
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.worker.factory import is_private, taken_cells

__all__ = ["FirstEvents"]

log = get_logger(__name__)

#: Events that say what the texts of a field are, and events of which some usually has a declared field or a
#: label.
_TEXTS, _ENOUGH = 100, 1000
#: Part of the texts of a field that spell numbers, from which on it is meant as a number.
_MOST = 0.9
_LISTED = 5


class FirstEvents:
    """Warns once of each of four things that a learner takes without a word, and that are rarely meant.

    A string that is a number is a value of its own to a learner that takes strings. A declared field that no
    event has is a missing value, or has none of its declared values. Without the field of the id, scores have
    none. Events without the field of the label are scored and not learned.

    Parameters
    ----------
    config
        The application.
    read
        From the bytes of an event to all its fields; None: of a file of CSV, whose columns are known.
    """

    def __init__(self, config: Config, read: Callable[[bytes], dict[str, Any]] | None) -> None:
        declared = config.input
        self._config, self._read = config, read
        self._names = declared.source_names()
        self._find = unnested(declared, [*self._names, declared.id])
        takes_texts = taken_cells(config).get("texts", False) and not isinstance(declared.features, dict)
        self._texts_left = _TEXTS if takes_texts else 0
        # Cells of CSV are read as numbers, and each event has all columns.
        self._left = 0 if read is None or declared.format == "csv" else _ENOUGH
        self._unlabelled_left = 0 if read is None or declared.label is None else _ENOUGH
        self._seen: dict[str, None] = {}
        self._texts: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._last: dict[str, Any] = {}

    def note(self, records: Sequence[Record], scores: Sequence[Scored]) -> None:
        """Take a batch with its outcomes, until enough events were seen."""
        if self._unlabelled_left:
            self._look_for_labels(records[-1], scores)
        if not self._left:
            return
        for record, scored in zip(records, scores, strict=False):  # counted by the session
            if self._left and scored.outcome in ("learned", "scored"):
                self._take(record)

    def end(self) -> None:
        """Warn of what is known of the events so far, because no more come."""
        if 0 < self._left < _ENOUGH:
            self._warn_of_texts()
            self._warn_of_missing()
            self._left = 0

    def _take(self, record: Record) -> None:
        assert self._read is not None
        try:
            data = self._read(record.value or b"")
            self._last = data if self._find is None else self._find(data, record)
        except StreampairError:
            return
        self._left -= 1
        self._seen |= dict.fromkeys(self._last)
        if self._texts_left:
            texts = {name: item for name, item in self._last.items() if isinstance(item, str)}
            self._texts.update(texts.keys())
            self._numbers.update(name for name, item in texts.items() if is_number(item))
            self._texts_left -= 1
            if not self._texts_left:
                self._warn_of_texts()
        if not self._left:
            self._warn_of_missing()

    def _look_for_labels(self, last: Record, scores: Sequence[Scored]) -> None:
        outcomes = Counter(each.outcome for each in scores)
        if outcomes["learned"]:
            self._unlabelled_left = 0
            return
        self._unlabelled_left = max(self._unlabelled_left - outcomes["scored"], 0)
        if not self._unlabelled_left:
            self._warn_of_labels(last.value or b"")

    def _warn_of_labels(self, value: bytes) -> None:
        assert self._read is not None
        declared = self._config.input
        try:
            event = self._read(value)
        except StreampairError:
            return
        if declared.label in event or "." in (declared.label or ""):
            return  # it is unknown, or nested
        fix = None if is_private(self._config) else label_fix(declared, event)
        log.warning(
            "no_labels",
            app=self._config.app,
            detail=f"none of the first {_ENOUGH:,} events was learned, and the last has no field "
            f"{declared.label!r}",
            next_step=fix or "correct input.label; or, where labels come later, add [label_input]",
        )

    def _warn_of_texts(self) -> None:
        declared = self._config.input
        taken = (declared.label, declared.id, declared.time)
        names = self._names or [name for name in self._seen if name not in taken]
        alike = [name for name in names if self._numbers[name] > _MOST * self._texts[name]]
        self._texts.clear()
        self._numbers.clear()
        if alike:
            fix = numbers_fix(declared, alike, names) or "send numbers as numbers"
            log.warning(
                "numbers_in_texts",
                app=self._config.app,
                detail=f"strings of {_listed(alike)} are numbers, and each string is learned as a category",
                next_step=f"if they are no codes, {fix}",
            )

    def _warn_of_missing(self) -> None:
        declared, first = self._config.input, f"none of the first {_ENOUGH - self._left:,} events has"
        missing = [name for name in self._names if name not in self._seen]
        if declared.id is not None and declared.id not in self._seen:
            log.warning(
                "no_ids",
                app=self._config.app,
                detail=f"{first} the id {declared.id!r}, so no score has one",
                next_step="correct input.id, or leave it out",
            )
        if missing:
            event = {} if is_private(self._config) else self._last
            log.warning(
                "missing_features",
                app=self._config.app,
                detail=f"{first} {_listed(missing)}",
                next_step=missing_fix(declared, missing[0], event),
            )
        self._seen.clear()


def _listed(names: Sequence[str]) -> str:
    """Names of fields, not too many of them."""
    text = ", ".join(map(repr, names[:_LISTED]))
    return text if len(names) <= _LISTED else f"{text} and {len(names) - _LISTED} more"
