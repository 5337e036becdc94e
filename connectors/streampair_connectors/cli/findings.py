"""What a sample of events says of its fields: types, label, id, time, and which fields can be features."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from streampair.errors import ConfigError
from streampair.evaluation.epochs import UNITS, unit_of
from streampair.kernels.vectors import MAX_ABS
from streampair.records.features import TwoLabels, real
from streampair.records.features import label as label_of
from streampair_connectors.codecs.fields import EPOCH_UNITS
from streampair_connectors.codecs.fixes import is_number

__all__ = ["NO_ID", "Findings", "FoundField", "fields_of", "find", "label_candidates", "listed", "rounded"]

NO_ID = "-"
"""In place of the name of a field: events have no id."""

#: Part of the values of a field that must be of its kind; part of the events that a private number is in.
_SAME_KIND, _PRESENT = 0.9, 0.95
#: Strings of a field with more values than these are no feature: in all, and as a part of the events.
_FEW, _DIFFERENT = 20, 0.5
#: Probability below which chance does not explain that all events with a field have the same label.
_CHANCE = 0.01
#: Part of the events, at most, that are broken: in place of one of two labels they have other values.
_BROKEN = 0.005
_DEPTH = 6
_FROM_2000, _TO_2040 = 946_684_800, 2_208_988_800
_TIME = {"time", "timestamp", "ts", "date", "datetime", "created", "updated", "occurred", "when", "at"}
_ID = {"id", "uuid", "guid"}
_LABEL = {
    *("label", "target", "class", "outcome", "y", "result", "response", "positive"),
    *("fraud", "fraudulent", "chargeback", "churn", "churned", "click", "clicked", "conversion", "converted"),
    *("bought", "purchased", "default", "defaulted", "spam", "phishing", "malicious", "attack", "anomaly"),
    *("alarm", "failed", "failure", "fault", "cancelled", "canceled", "returned", "fake", "abuse"),
}
_PARTS = {"hour": [0, 23], "weekday": [0, 6]}


@dataclass
class FoundField:
    """A field of a sample: its name, and its values by the numbers of the events that have it.

    `kind` is "boolean", "number", "number as text", "text", "iso-8601", "epoch-s", "epoch-ms", "epoch-us",
    "nanoseconds" or "nested or mixed"; the values of the last have neither `counts` nor `labels`.
    """

    name: str
    items: dict[int, Any] = field(default_factory=dict)
    kind: str = ""

    @cached_property
    def counts(self) -> Counter[Any]:
        return Counter(value for value in self.items.values() if not isinstance(value, list | dict))

    @cached_property
    def labels(self) -> Counter[Any]:
        """How often each label comes, by what it means; of two, without those of a few broken events."""
        found = Counter(map(label_of, self.counts.elements()))
        two = Counter(dict(found.most_common(2)))
        return two if found.total() - two.total() <= _BROKEN * found.total() else found

    @property
    def is_time(self) -> bool:
        return self.kind == "iso-8601" or self.kind in EPOCH_UNITS

    @property
    def numbers(self) -> list[float]:
        return [found for value in self.items.values() if (found := real(value)) is not None]

    @cached_property
    def words(self) -> list[str]:
        """The words of the last part of the name."""
        last = self.name.rpartition(".")[2]
        return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", last)]

    @property
    def is_named_id(self) -> bool:
        return bool(_ID & set(self.words[-1:]))

    @property
    def is_named_label(self) -> bool:
        return bool(_LABEL & set(self.words))

    @property
    def is_named_time(self) -> bool:
        return bool(_TIME & set(self.words))


def fields_of(rows: Sequence[dict[str, Any]], *, cells: bool) -> dict[str, FoundField]:
    """Return the fields of some events by their names, with dots in nested objects.

    `cells`: the events are rows of CSV, whose values are strings and whose names are those of columns.
    """
    found: dict[str, FoundField] = {}
    for number, row in enumerate(rows):
        for name, value in row.items() if cells else _leaves(row):
            if name and value is not None and value != "" and value == value:
                found.setdefault(name, FoundField(name)).items[number] = value
    for each in found.values():
        each.kind = _kind(each, cells=cells)
    return found


def _leaves(row: Mapping[str, Any], path: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        nested = isinstance(value, dict) and value and depth < _DEPTH
        if "." in name and (path or nested):
            continue  # a dot leads into an object
        if nested:
            yield from _leaves(value, f"{path}{name}.", depth + 1)
        else:
            yield f"{path}{name}", value


def _kind(each: FoundField, *, cells: bool) -> str:
    values, enough = list(each.items.values()), _SAME_KIND * len(each.items)
    types = Counter(map(type, values))
    numbers = [float(v) for v in values if is_number(v) or (type(v) in (int, float) and real(v) is not None)]
    strings = [value for value in values if isinstance(value, str)]
    if types[list] or types[dict] or types[bytes]:
        return "nested or mixed"
    if len(numbers) >= enough and (unit := _unit(each, numbers)) is not None:
        return unit
    if types[bool] >= enough:
        return "boolean"
    if not strings:
        return "number" if len(numbers) + types[bool] >= enough else "nested or mixed"
    if sum(map(_is_iso, strings)) >= enough:
        return "iso-8601"
    # A number has no leading zeros: a postal code has.
    if len(numbers) >= enough and (cells or not any(re.match(r"0\d", string) for string in strings)):
        return "number" if cells else "number as text"
    return "text"


def _is_iso(string: str) -> bool:
    try:
        datetime.fromisoformat(string)
    except ValueError:
        return False
    return len(string) >= 10 and "-" in string


def _unit(each: FoundField, numbers: Sequence[float]) -> str | None:
    """The unit of numbers that are times; None: they are none.

    Without the name of a time, seconds are none, and others are from 2000 to 2040. An id is none.
    """
    units = {unit_of(number) for number in numbers}
    if len(units) != 1 or (unit := units.pop()) is None or each.is_named_id:
        return None
    first, last = _FROM_2000 * UNITS[unit], _TO_2040 * UNITS[unit]
    recent = unit != "seconds" and all(first <= number < last for number in numbers)
    if not recent and not each.is_named_time:
        return None
    return next((kind for kind, name in EPOCH_UNITS.items() if name == unit), unit)


def label_candidates(fields: Mapping[str, FoundField]) -> list[str]:
    """Return the fields with two values, the most likely label first: one that has the name of a label.

    One that is always false still has two values.
    """
    found = [
        each
        for each in fields.values()
        if len(each.labels) == 2
        or (len(each.labels) == 1 and (each.is_named_label or each.kind == "boolean"))
    ]
    return [each.name for each in sorted(found, key=lambda each: not each.is_named_label)]


@dataclass
class Findings:
    """What was found in a sample.

    `input` has keys of [input], and `left_out` the fields that are no features, with the reason. `confirm`:
    why to look at `positive`; empty: it is sure.
    """

    input: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    confirm: str = ""


def find(
    fields: Mapping[str, FoundField], *, label: str, private: bool, declared: Mapping[str, Any]
) -> Findings:
    """Choose id, time and features for a label.

    A private learner takes numbers within bounds, which are in every event, and declared values. `declared`
    has the keys of [input] that are known.

    Raises
    ------
    ConfigError
        A name is none of the fields, a label has too many values, or there is no feature.
    """
    _check_known(fields, label, "label")
    found = Findings({"label": label})
    if not declared.keys() & {"label_type", "positive", "negative"}:
        _find_classes(found, fields[label])
    identity = declared.get("id") or _find_id(fields, label)
    if identity not in (None, NO_ID):
        if not identity.startswith("$"):
            _check_known(fields, identity, "id")
        found.input["id"] = identity
    known = fields[label].labels
    learned = {
        row: meaning
        for row, y in fields[label].items.items()
        if not isinstance(y, list | dict) and (meaning := label_of(y)) in known
    }
    labels = label_candidates(fields)
    kept: list[FoundField] = []
    for each in fields.values():
        if each.name in (label, identity):
            continue
        other = each.is_named_label and each.name in labels
        reason = "perhaps a label, too" if other else _unfit(each, learned)
        reason = "below the label" if each.name.startswith(f"{label}.") else reason
        reason = reason or (_unfit_privately(each, learned) if private else None)
        if reason is None:
            kept.append(each)
        else:
            found.left_out[each.name] = reason
    _add_features(found, kept, declared, private=private)
    return found


def _check_known(fields: Mapping[str, FoundField], name: str, what: str) -> None:
    if name not in fields:
        raise ConfigError(
            f"no event of the sample has the {what} {name!r}; the fields are {listed(fields)}",
            fix=f"name one of them with --{what}; a larger sample, --messages 100000, may have more",
        )


def listed(names: Mapping[Any, object], most: int = 20) -> str:
    """Names for a message."""
    text = ", ".join(repr(str(name)) for name in list(names)[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def _find_classes(found: Findings, each: FoundField) -> None:
    """The two labels: a usual pair, such as Y and N; of others the rarer one ranks high."""
    labels = each.labels
    if labels.keys() <= {0, 1}:
        return  # the default, true, means 1 and yes, too
    pairs = [pair for value in labels if (pair := TwoLabels(True).pair_with(value)) is not None]
    pair = next((pair for pair in pairs if labels.keys() <= set(pair) and "..." not in pair), None)
    if pair is None and len(labels) != 2:
        raise ConfigError(
            f"the label {each.name!r} has {len(labels)} values in the sample, not two: {listed(labels, 10)}",
            fix="say which two count: --set input.positive=VALUE --set input.negative=VALUE; for relevances "
            "add --set input.label_type=any --set learner.class=streampair.ranking.PairOGD; for classes the "
            "class streampair.auc.MulticlassForest",
        )
    if pair is None:
        first, second = sorted(labels, key=labels.__getitem__)
        pair = first, second
        found.confirm = "confirm: the rarer label is taken as positive"
    found.input["positive"], found.input["negative"] = pair


def _find_id(fields: Mapping[str, FoundField], label: str) -> str | None:
    """The first field that has the name of an id, and another value in each event that has a label."""
    for each in fields.values():
        unique = len(each.items) > 1 and len(each.counts) >= 0.99 * len(each.items)
        whole = all(type(v) in (int, str) for v in each.items.values())
        common = 2 * len(each.items) > len(fields[label].items)
        if each.is_named_id and unique and whole and common and each.name != label:
            return each.name
    return None


def _unfit(each: FoundField, learned: Mapping[int, Any]) -> str | None:
    """Why a field is no feature; None: it can be one. `learned`: the labels of events by their numbers."""
    if each.kind in ("nested or mixed", "nanoseconds"):
        return each.kind
    if not each.name.isprintable() or each.name.startswith(("$", ".")):
        return "its name"
    if (leak := _leak(each, learned)) is not None:
        return leak
    different = len(each.counts) > max(_FEW, _DIFFERENT * len(each.items))
    if each.is_named_id and (each.kind != "text" or different):
        return "an id"
    return "strings that hardly repeat" if each.kind == "text" and different else None


def _unfit_privately(each: FoundField, learned: Mapping[int, Any]) -> str | None:
    """Why a field is no feature of a private learner.

    A field with declared values may be missing: it is 0 in their columns, and makes no dead letter.
    """
    declared = each.kind in ("text", "boolean")
    if not declared and sum(row in learned for row in each.items) < _PRESENT * len(learned):
        return "not in every event"
    if each.is_time:
        return None
    if len(each.counts) < 2:
        return "one value only"
    if each.kind == "text":
        texts = len(each.counts) <= _FEW and all(isinstance(v, str) and v.isprintable() for v in each.counts)
        return None if texts else f"not at most {_FEW} strings"
    largest = 0.0 if declared else max(map(abs, each.numbers))
    return f"numbers beyond {MAX_ABS / 10:g}" if largest > MAX_ABS / 10 else None


def _leak(each: FoundField, learned: Mapping[int, Any]) -> str | None:
    """How a field gives the label away, more than by chance; None: it does not.

    All events that have it, or all that lack it, have one label: it is filled in when the label is known. Or
    each of a few values has one label: it is the label under another name, or the decision that followed.
    """
    labels, by_value = Counter(learned.values()), dict[Any, Counter[Any]]()
    for row, value in each.items.items():
        if row in learned:
            by_value.setdefault(value, Counter())[learned[row]] += 1
    having = sum(by_value.values(), Counter[Any]())
    for part in (having, labels - having):
        if len(part) == 1 and all((labels[y] / len(learned)) ** n < _CHANCE for y, n in part.items()):
            return "known only with one label"
    parts = list(by_value.values())
    if len(having) < 2 or len(parts) > _FEW or any(len(part) > 1 for part in parts):
        return None
    shares = [count / len(learned) for count in labels.values()]
    chance = math.prod(sum(share ** part.total() for share in shares) for part in parts)
    return "each value has one label" if chance < _CHANCE else None


def _add_features(
    found: Findings, kept: Sequence[FoundField], declared: Mapping[str, Any], *, private: bool
) -> None:
    """Add the features with their bounds or values, and the types of fields that have one."""
    features: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    name = declared.get("time")
    times = sorted(
        (each for each in kept if each.is_time),
        key=lambda each: (each.name != name, not each.is_named_time),
    )
    for each in kept:
        if each.is_time and each is not times[0]:
            found.left_out[each.name] = "another time"
        elif times and each.name.startswith(f"{times[0].name}."):
            found.left_out[each.name] = "below a time"
        elif not each.is_time and each.name != name:
            features[each.name] = _domain(each)
            kinds |= {each.name: "number"} if each.kind == "number as text" else {}
    for each in times[:1]:
        kinds[each.name] = each.kind
        days = each.kind == "iso-8601" and all(len(str(value)) == 10 for value in each.counts)
        features |= {f"{each.name}.{part}": _PARTS[part] for part in _PARTS if part != "hour" or not days}
    if not features and "features" not in declared:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(found.left_out.items())[:5])
        raise ConfigError(
            f"no field of the sample can be a feature ({why or 'there is no other field'})",
            fix="send the features in the events, or write CONFIG yourself (docs/configuration.md)",
        )
    if isinstance(chosen := declared.get("features"), list | dict):
        used = {part for name in map(str, chosen) for part in (name, name.rpartition(".")[0])}
        kinds = {name: kind for name, kind in kinds.items() if name in used}
    found.input["features"] = features if private else list(features)
    found.input |= {"fields": kinds} if kinds else {}


def _domain(each: FoundField) -> list[Any]:
    """Bounds of a number, rounded away from the values of the sample; or all strings."""
    if each.kind == "boolean":
        return ["false", "true"]
    if each.kind == "text":
        return sorted(map(str, each.counts))
    numbers = each.numbers
    return rounded(min(numbers), max(numbers)) if max(map(abs, numbers)) <= MAX_ABS else []


def rounded(low: float, high: float) -> list[float]:
    """Bounds of one digit around two numbers.

    Examples
    --------
    >>> rounded(3.7, 987.0), rounded(-0.31, 0.04)
    ([0, 1000], [-0.4, 0.1])
    """
    largest = max(abs(low), abs(high))
    power = max(math.floor(math.log10(largest)), -12) if largest else 0
    # Digits are rounded by their decimal power, since a multiple of 0.1 is no float.
    first, last = math.floor(low / 10.0**power), math.ceil(high / 10.0**power)
    last += first == last
    bounds = [n * 10**power if power >= 0 else round(n * 10.0**power, -power) for n in (first, last)]
    return [int(bound) if float(bound).is_integer() else bound for bound in bounds]
