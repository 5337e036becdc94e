"""Causes of dead letters: names and texts without any value of an event."""

from __future__ import annotations

import hashlib
import re

from streampair.engine import DeadLetter
from streampair_connectors.observability.metric_history import LetterCause

__all__ = ["add_letter", "cause_name", "cause_text"]

# A name after "feature" or "field" stays: it is a column and no value. Any other quoted text may be a value.
# An apostrophe inside a word opens no quotation.
_QUOTED = re.compile(
    r"(?P<kept>\b(?:feature|field) )?(?<!\w)(?:\bb)?"
    r"""(?:'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$))""",
    re.DOTALL,
)
_LABEL = re.compile(r"(unknown label ).*(?= in field )", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[+-]?[0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?(?![\w])")  # not the digits of a name
_LONGEST = 120


def cause_text(error: str) -> str:
    """Return what an error says of its cause, with no value of an event.

    The text ends before what another library adds, which may quote anything. Unknown labels, quoted texts and
    numbers are replaced; names of features and fields stay.

    Parameters
    ----------
    error
        As of `streampair.engine.DeadLetter`.

    Returns
    -------
    str
        At most 120 characters.

    Examples
    --------
    >>> cause_text("unknown label 'positive for x' in field 'result'. Fix: send 1 or 0.")
    "unknown label ... in field 'result'"
    >>> cause_text("ValueError: could not convert 'Smith'")
    'ValueError'
    """
    problem = error.rsplit(". Fix: ", 1)[0]

    def quoted(found: re.Match[str]) -> str:
        return found[0] if found["kept"] else "..."

    masked = _NUMBER.sub("N", _QUOTED.sub(quoted, _LABEL.sub(r"\1...", problem)))
    return masked.partition(": ")[0][:_LONGEST]


def cause_name(stage: str, error: str) -> str:
    """Return the short name of a cause, which letters of one stage and one `cause_text` share.

    Examples
    --------
    >>> cause_name("decode", "row 17 is no JSON") == cause_name("decode", "row 18 is no JSON")
    True
    """
    return hashlib.sha256(f"{stage}: {cause_text(error)}".encode()).hexdigest()[:6]


def add_letter(causes: dict[str, LetterCause], letter: DeadLetter) -> None:
    """Add a dead letter to its cause."""
    name = cause_name(letter.stage, letter.error)
    before = causes.get(name)
    if before is None:
        causes[name] = LetterCause(letter.stage, cause_text(letter.error), 1, letter.offset)
    else:
        causes[name] = before.plus(1, letter.offset)
