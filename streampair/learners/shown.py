"""How a learner looks in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampair.privacy.shown import table

if TYPE_CHECKING:
    from streampair.learners.base import Learner

__all__ = ["learner_html"]

_LONGEST = 80
#: Features that are named; a learner may have thousands.
_NAMED = 20


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def learner_html(learner: Learner) -> str:
    """Its parameters and how far it is, without a number of any record; then the report of a private one.

    Weights are not shown: those of a learner that is not private are functions of raw data, and what is shown
    in a notebook is passed on.
    """
    kind = type(learner)
    names = [_short(name) for name in learner.feature_names[:_NAMED]]
    if len(learner.feature_names) > _NAMED:
        names.append(f"and {len(learner.feature_names) - _NAMED} more")
    rows: list[tuple[str, object]] = [
        (name, _short(getattr(learner, name))) for name in learner._get_params()
    ]
    rows += [
        ("records", f"{learner.records:,}"),
        ("columns", ", ".join(names) if names else "not known yet"),
    ]
    report = learner.privacy
    told = "" if report is None else report._repr_html_()
    privacy = "" if report is not None else "<p>Not private: nothing is promised of what it gives away.</p>"
    module = kind.__module__.rpartition(".")[2]
    return f"<div>{table(f'{module}.{kind.__name__}', rows)}{privacy}{told}</div>"
