"""What to write in [input] so that an event can be used: lines with the names and values of the event."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streampair.records.features import TwoLabels, spelled
from streampair_connectors.config import InputConfig
from streampair_connectors.config.toml_lines import toml_line

__all__ = [
    "empty_fix",
    "is_number",
    "label_fix",
    "labels_fix",
    "missing_fix",
    "nearest_fix",
    "numbers_fix",
    "value_fix",
]

#: Characters of the lines of a fix: an error goes into a header of at most 2,000.
_MOST = 1500
_LONGEST_NUMBER = 60


def _written(lines: Mapping[str, Any]) -> str | None:
    """The fix that says lines of [input]; None: there are none, or they are too long for a message.

    Causes of dead letters end where the fix of an error begins (`worker.causes`).
    """
    text = "; ".join(toml_line(key, value) for key, value in lines.items())
    return f"write in [input]: {text}" if lines and len(text) <= _MOST and ". Fix: " not in text else None


def labels_fix(labels: TwoLabels, y: object, *, later: bool = False) -> str:
    """The fix for a value that is neither of two labels: the lines with which it is one.

    Parameters
    ----------
    later
        Whether it comes on a topic of labels: it may say there that the event was stopped.

    Examples
    --------
    >>> labels_fix(TwoLabels(True), "N").split(", or")[0]
    'write in [input]: positive = "Y"; negative = "N"'
    """
    pair = labels.pair_with(y)
    lines = None if pair is None else _written({"positive": pair[0], "negative": pair[1]})
    if lines is None:
        return "send a string of at most 60 characters, a finite number, true or false"
    rest = 'for relevances and several classes label_type = "any"'
    if later:
        rest = f"if it says that the event was stopped, write in [label_input]: {toml_line('stopped', y)}"
    return f"{lines}, or the other way round if the first ranks low; {rest}"


def label_fix(config: InputConfig, event: Mapping[str, Any]) -> str | None:
    """The fix for an event without the field of the label; None: no field of the event is like it.

    Examples
    --------
    >>> label_fix(InputConfig(label="is_fraud"), {"amount": 3.0, "isFraud": True})
    'write in [input]: label = "isFraud"'
    >>> label_fix(InputConfig(label="bad"), {"amount": 3.0, "outcome": {"bad": True}})
    'write in [input]: label = "outcome.bad"'
    """
    name = config.label
    if name is None or name in event:
        return None
    around = next((key for key, inner in event.items() if isinstance(inner, dict) and name in inner), None)
    return nearest_fix(config, name, event) if around is None else _written({"label": f"{around}.{name}"})


def nearest_fix(config: InputConfig, name: str, names: Iterable[str]) -> str | None:
    """The fix for a configured name that is none of these: the most similar one in its place; None: none is.

    Examples
    --------
    >>> nearest_fix(InputConfig(label="bad", features=["amount"]), "amount", ["Amuont", "bad"])
    'write in [input]: features = ["Amuont"]'
    """
    known = {*config.source_names(), config.label, config.id, config.time}
    others = {other.lower(): other for other in names if other not in known}
    near = difflib.get_close_matches(name.lower(), others, n=1)
    if not near:
        return None
    return _written(_renamed(config, lambda each: others[near[0]] if each == name else each))


def missing_fix(config: InputConfig, name: str, event: Mapping[str, Any]) -> str:
    """The fix for an event without a feature.

    Examples
    --------
    >>> config = InputConfig(label="bad", features=["amount"])
    >>> missing_fix(config, "amount", {"payload": {"amount": 3, "bad": True}})
    'write in [input]: label = "payload.bad"; features = ["payload.amount"]'
    """
    plain = "send it in every event, or take it out of input.features"
    return _enveloped(config, event) or nearest_fix(config, name, event) or plain


def empty_fix(config: InputConfig, event: Mapping[str, Any]) -> str:
    """The fix for an event that has no feature."""
    names = ", ".join((config.field_names() or [])[:5])
    plain = f"send a JSON object with the features{f' {names}' if config.features else ''}"
    return _enveloped(config, event) or plain


def _enveloped(config: InputConfig, event: Mapping[str, Any]) -> str | None:
    """The fix for an event whose fields are those of an object in it; None: it has no such object."""
    if config.envelope is not None or config.format == "csv":
        return None
    outer = event.get("payload")
    for each in (event, outer):
        if isinstance(each, dict) and "op" in each and isinstance(each.get("after"), dict):
            return 'write in [input]: envelope = "debezium"'
    wanted = [
        name for name in (*config.source_names(), config.label) if name is not None and name not in event
    ]
    objects = {key: inner for key, inner in event.items() if isinstance(inner, dict)}
    key = max(objects, key=lambda key: sum(name in objects[key] for name in wanted), default=None)
    if key is None or not any(name in objects[key] for name in wanted):
        return None
    inner = objects[key]
    if config.features is None:
        taken = (config.label, config.id, config.time)
        numbers = [name for name, item in inner.items() if name not in taken and type(item) in (int, float)]
        lines = {"features": [f"{key}.{name}" for name in numbers]} if numbers else {}
    else:
        lines = {}
    moved = _renamed(config, lambda name: f"{key}.{name}" if name in inner and name not in event else name)
    return _written({**moved, **lines})


def _renamed(config: InputConfig, rename: Callable[[str], str]) -> dict[str, Any]:
    """The keys of [input] that change when fields of events have other names, with their new values."""
    features: Any = config.features
    parts = config.time_parts()

    def feature(name: str) -> str:
        time, part = parts.get(name, (name, ""))
        return f"{rename(time)}.{part}" if part else rename(name)

    if isinstance(features, dict):
        features = {feature(name): declared for name, declared in features.items()}
    elif features is not None:
        features = list(map(feature, features))
    renamed = {
        "label": config.label and rename(config.label),
        "id": config.id and rename(config.id),
        "time": config.time and rename(config.time),
        "features": features,
        "fields": {rename(name): kind for name, kind in config.fields.items()},
    }
    return {key: value for key, value in renamed.items() if value != getattr(config, key)}


def value_fix(config: InputConfig, name: str, item: object, event: Mapping[str, Any]) -> str | None:
    """The fix for the value of a feature that is no number, but can be read as one; None: it cannot.

    Examples
    --------
    >>> value_fix(InputConfig(label="bad", features=["amount", "age"]), "amount", "12.5", {})
    'write in [input]: fields = { amount = "number" }'
    """
    if isinstance(item, dict):
        return _enveloped(config, event)
    if not is_number(item):
        return None
    taken = (config.label, config.id, config.time)
    numeric = config.without_categories() if config.categories() is not None else config
    names = numeric.field_names() or [each for each in event if each not in taken]
    alike = [each for each in names if each == name or is_number(event.get(each))]
    return numbers_fix(config, alike, names)


def numbers_fix(config: InputConfig, alike: Iterable[str], names: Sequence[str]) -> str | None:
    """The fix for texts that spell numbers: those of `alike`, which are some of the features `names`.

    Examples
    --------
    >>> numbers_fix(InputConfig(label="bad"), ["amount"], ["amount", "card"])
    'write in [input]: features = ["amount", "card"]; fields = { amount = "number" }'
    """
    lines: dict[str, Any] = {"fields": {**config.fields, **dict.fromkeys(alike, "number")}}
    if config.features is None:
        lines = {"features": list(names), **lines}
    return _written(lines)


def is_number(item: object) -> bool:
    """Whether a value is a text of usual length that spells a finite number.

    Examples
    --------
    >>> [is_number(item) for item in ("12.5", "-1e3", "true", "NaN", 12.5)]
    [True, True, False, False, False]
    """
    if not isinstance(item, str) or not 0 < len(item) <= _LONGEST_NUMBER:
        return False
    found = spelled(item)
    return not isinstance(found, str | bool) and math.isfinite(found)
