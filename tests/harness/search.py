"""Property tests: the same examples every time where a change is judged, new ones where they are sought.

Where a change is judged, each case of a parametrised test tries a third of the examples that the test asks
for: cases share most of their code. ``pytest -m hypothesis --hypothesis-profile=search`` (``make search``)
draws new examples, more of them, and prints each find as the lines to paste above the test, so that it is
tried for ever after.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

MORE = int(os.environ.get("STREAMPAIR_SEARCH", "3"))
"""So many times the examples that a test asks for are tried by a search."""

FEWER = 3
"""A case of a parametrised test tries one of so many of its examples where nothing is searched for, ..."""

LEAST = 8
"""... but at least so many, if the test asks for them."""

TITLE = "found by the search: add to the test"

# No wall-clock limits: the first call of a kernel compiles it, and machines are shared.
hypothesis.settings.register_profile(
    "streampair",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
hypothesis.settings.register_profile(
    "search", hypothesis.settings.get_profile("streampair"), derandomize=False, database=None
)
hypothesis.settings.load_profile("streampair")

_collected_constants = providers._get_local_constants


def _constants() -> Constants:
    """The numbers and texts of loaded modules, which hypothesis tries too, in a search alone.

    Which modules are loaded depends on the tests that ran before in the same process, so a test would try
    other examples with other neighbours, ``derandomize`` or not. Hypothesis has no setting for this.
    """
    return _collected_constants() if searching() else providers._local_constants


providers._get_local_constants = _constants

_CASE = re.compile(r"[^\n]*: \w+\(\n(.*)\n\)", re.S)
_ARGUMENT = re.compile(r"^    (?=\w+=)", re.M)
_REMARK = re.compile(r"^    # .*\n|  # or any other generated value$", re.M)
_BLOB = re.compile(r"@reproduce_failure\(.*\)")


def searching() -> bool:
    """Whether the run searches for new examples."""
    return hypothesis.settings.get_current_profile_name() == "search"


def examples(wanted: int, parametrised: bool) -> int:
    """How many examples a test tries, by how many it asks for."""
    if searching():
        return MORE * wanted
    return max(min(wanted, LEAST), wanted // FEWER) if parametrised else wanted


def count_examples(items: Iterable[pytest.Item]) -> None:
    """Let every property test try more examples than it asks for, or fewer (`examples`)."""
    tests = {
        id(test): (test, hasattr(item, "callspec"))
        for item in items
        if (test := getattr(item, "obj", None)) is not None
    }
    for test, parametrised in tests.values():
        # A second @settings is refused: this is where the plugin of hypothesis itself puts its own.
        own_settings = getattr(test, "_hypothesis_internal_use_settings", None)
        if own_settings is not None:
            count = examples(own_settings.max_examples, parametrised)
            test._hypothesis_internal_use_settings = hypothesis.settings(own_settings, max_examples=count)


def finds(error: BaseException, values: Iterable[str] = ()) -> Iterator[str]:
    """What hypothesis found, as lines to paste: from the notes of the error, or of those that it groups.

    Parameters
    ----------
    error
        What the test raised.
    given
        Names of arguments that pytest gives, which no example has.
    """
    for inner in getattr(error, "exceptions", ()):
        yield from finds(inner, values)
    notes = getattr(error, "__notes__", [])
    case = next((match[1] for note in notes if (match := _CASE.match(note))), None)
    if case is None:
        return
    arguments = dict(part.split("=", 1) for part in _ARGUMENT.split(_REMARK.sub("", case + "\n"))[1:])
    drawn = {name: value.rstrip() for name, value in arguments.items() if name not in set(values)}
    if any(value.startswith("data(") for value in drawn.values()):
        # Values that are drawn inside of the test have no place in an example.
        yield from (f"# {_REMARK.sub('', note)}" for note in notes if note.startswith("Draw "))
        yield from (match[0] for note in notes if (match := _BLOB.search(note)))
    else:
        yield "@example(\n" + "".join(f"    {name}={value}\n" for name, value in drawn.items()) + ")"


def note_finds(item: pytest.Item, error: BaseException, report: Any) -> None:
    """Put what was found into the report of a failed test, where it is printed."""
    calls = getattr(item, "callspec", None)
    lines = list(finds(error, () if calls is None else calls.params))
    if lines:
        report.sections.append((TITLE, "\n".join(lines)))


def summary(reports: Iterable[Any]) -> list[str]:
    """All finds of a run, test by test."""
    found = [(report.nodeid, text) for report in reports for title, text in report.sections if title == TITLE]
    return [line for name, text in found for line in (name, text, "")]
