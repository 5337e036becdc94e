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
_DEPTH, _FIELDS = 6, 2000
_FROM_2000, _TO_2040 = 946_684_800, 2_208_988_800
_TIME = {"time", "timestamp", "ts", "date", "datetime", "created", "updated", "occurred", "when", "at"}
_ID = {"id", "uuid", "guid"}
_LABEL = {
    *("label", "target", "class", "outcome", "y", "result", "response", "positive"),
    *("fraud", "fraudulent", "chargeback", "churn", "churned", "click", "clicked", "conversion", "converted"),
    *("bought", "purchased", "default", "defaulted", "spam", "phishing", "malicious", "attack", "anomaly"),
    *("alarm", "failed", "failure", "fault", "cancelled", "canceled", "returned", "fake", "abuse"),
}
_SPELLINGS = {
    r"[+-]?[\d.]*\d,\d+": "numbers with a decimal comma: write them with a point",
    r"\d{1,2}([./])\d{1,2}\1\d{4}.*": "dates: write them as ISO 8601, such as 2024-01-31",
}
_PARTS = {"hour": [0, 23], "weekday": [0, 6]}


@dataclass
class FoundField:
    """A field of a sample: its name, and its values by the numbers of the events that have it.

    `kind` is "boolean", "number", "number as text", "text", "iso-8601", "epoch-s", "epoch-ms", "epoch-us",
    "nanoseconds", "list", "object" or "mixed".
    """

    name: str
    items: dict[int, Any] = field(default_factory=dict)
    kind: str = ""

    @property
    def values(self) -> list[Any]:
        return list(self.items.values())

    @cached_property
    def counts(self) -> Counter[Any]:
        return Counter(value for value in self.values if not isinstance(value, list | dict))

    @cached_property
    def labels(self) -> Counter[Any]:
        """How often each label comes, by what it means."""
        return Counter(label_of(value) for value in self.values if not isinstance(value, list | dict))

    @property
    def is_time(self) -> bool:
        return self.kind == "iso-8601" or self.kind in EPOCH_UNITS

    @property
    def numbers(self) -> list[float]:
        return [found for value in self.values if (found := real(value)) is not None]

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
    def has_many_strings(self) -> bool:
        return len(self.counts) > max(_FEW, _DIFFERENT * len(self.values))


def fields_of(rows: Sequence[dict[str, Any]], *, cells: bool) -> dict[str, FoundField]:
    """Return the fields of some events by their names, with dots in nested objects.

    `cells`: the events are rows of CSV, whose values are strings and whose names are those of columns.

    Examples
    --------
    >>> found = fields_of([{"a": {"b": "1.5"}, "c": True}, {"a": {"b": "2"}}], cells=False)
    >>> [(each.name, each.kind) for each in found.values()]
    [('a.b', 'number as text'), ('c', 'boolean')]
    """
    found: dict[str, FoundField] = {}
    for number, row in enumerate(rows):
        for name, value in row.items() if cells else _leaves(row):
            absent = value is None or value == "" or value != value
            if absent or not name or (name not in found and len(found) >= _FIELDS):
                continue
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
    types, enough = Counter(map(type, each.values)), _SAME_KIND * len(each.values)
    if types[list]:
        return "list"
    if types[dict] or types[bytes]:
        return "object"
    numbers = [float(value) for value in each.values if is_number(value) or _is_finite(value)]
    if len(numbers) >= enough and (unit := _unit(each, numbers)) is not None:
        return unit
    if types[bool] >= enough:
        return "boolean"
    if not types[str]:
        return "number" if len(numbers) + types[bool] >= enough else "mixed"
    strings = [value for value in each.values if isinstance(value, str)]
    if sum(map(_is_iso, strings)) >= enough:
        return "iso-8601"
    # A number has no leading zeros: a postal code has.
    if len(numbers) >= enough and (cells or not any(re.match(r"0\d", string) for string in strings)):
        return "number" if cells else "number as text"
    return "text"


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and real(value) is not None


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
    if not recent and not _TIME & set(each.words):
        return None
    return next((kind for kind, name in EPOCH_UNITS.items() if name == unit), unit)


def label_candidates(fields: Mapping[str, FoundField]) -> list[str]:
    """Return the fields with two values, the most likely label first: one that has the name of a label.

    Examples
    --------
    >>> rows = [{"vip": True, "is_fraud": "N", "age": 40}, {"vip": False, "is_fraud": "Y", "age": 50}]
    >>> label_candidates(fields_of(rows * 5, cells=False))
    ['is_fraud', 'vip', 'age']
    """

    def may_be(each: FoundField) -> bool:
        # One that is always false still has two values.
        constant = len(each.labels) == 1 and (each.is_named_label or each.kind == "boolean")
        return each.kind not in ("list", "object") and (len(each.labels) == 2 or constant)

    found = filter(may_be, fields.values())
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
    target = _named(fields, label, "label")
    found = Findings({"label": label})
    if not declared.keys() & {"label_type", "positive", "negative"}:
        _find_classes(found, target)
    identity = declared.get("id") or _find_id(fields, label)
    if identity not in (None, NO_ID):
        found.input["id"] = identity if identity.startswith("$") else _named(fields, identity, "id").name
    learned = {row: label_of(y) for row, y in target.items.items() if not isinstance(y, list | dict)}
    labels = label_candidates(fields)
    kept: list[FoundField] = []
    for each in fields.values():
        if each.name not in (label, identity):
            other = each.is_named_label and each.name in labels
            reason = "perhaps a label, too" if other else _unfit(each, learned)
            reason = reason or (_unfit_privately(each, learned) if private else None)
            if reason is None:
                kept.append(each)
            else:
                found.left_out[each.name] = reason
    _add_features(found, kept, declared, private=private)
    return found


def _named(fields: Mapping[str, FoundField], name: str, what: str) -> FoundField:
    if name not in fields:
        raise ConfigError(
            f"no event of the sample has the {what} {name!r}; the fields are {listed(list(fields))}",
            fix=f"name one of them with --{what}; a larger sample, --messages 100000, may have more",
        )
    return fields[name]


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message."""
    text = ", ".join(map(repr, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def _find_classes(found: Findings, each: FoundField) -> None:
    """The two labels: a usual pair, such as Y and N; of others the rarer one ranks high."""
    labels = each.labels
    if len(labels) > 2:
        raise ConfigError(
            f"the label {each.name!r} has {len(labels)} values: {listed(list(map(str, labels)), 10)}",
            fix="say which two count: --set input.positive=VALUE --set input.negative=VALUE; for relevances "
            "add --set input.label_type=any --set learner.class=streampair.ranking.PairOGD; for classes the "
            "class streampair.auc.MulticlassForest",
        )
    if labels.keys() <= {0, 1}:
        return  # the default, true, means 1 and yes, too
    pairs = [pair for value in labels if (pair := TwoLabels(True).pair_with(value)) is not None]
    pair = next((pair for pair in pairs if labels.keys() <= set(pair) and "..." not in pair), None)
    if pair is None and len(labels) < 2:
        raise ConfigError(
            f"the label {each.name!r} has the same value in every event of the sample, so the other label is "
            f"not known: {listed(list(map(str, labels)))}",
            fix="take a larger sample, --messages 100000; or name both, as --set input.positive=VALUE --set "
            "input.negative=VALUE",
        )
    if pair is None:
        first, second = (value for value, _ in sorted(labels.items(), key=lambda item: item[1]))
        pair = first, second
        found.confirm = "confirm: the rarer label is taken as positive"
    found.input["positive"], found.input["negative"] = pair


def _find_id(fields: Mapping[str, FoundField], label: str) -> str | None:
    """The first field that has the name of an id, and another value in each event that has a label."""
    for each in fields.values():
        unique = len(each.values) > 1 and len(each.counts) >= 0.99 * len(each.values)
        whole = all(isinstance(v, str) or (_is_finite(v) and v == int(v)) for v in each.values)
        common = 2 * len(each.items) > len(fields[label].items)
        if each.is_named_id and unique and whole and common and each.name != label:
            return each.name
    return None


def _unfit(each: FoundField, learned: Mapping[int, Any]) -> str | None:
    """Why a field is no feature; None: it can be one. `learned`: the labels of events by their numbers."""
    if each.kind in ("list", "object", "nanoseconds", "mixed"):
        return each.kind
    if not each.name.isprintable() or each.name.startswith(("$", ".")):
        return "its name"
    if _is_one_sided(each, learned):
        return "known only with one label"
    if _says_label(each, learned):
        return "each value has one label"
    if each.is_named_id and (each.kind != "text" or each.has_many_strings):
        return "an id"
    if each.kind == "text" and each.has_many_strings:
        return _other_spelling(each) or "strings that hardly repeat"
    return None


def _other_spelling(each: FoundField) -> str | None:
    """What strings are that would be numbers or times in another spelling; None: they are others."""
    texts = [value.strip() for value in each.values if isinstance(value, str)]
    for pattern, reason in _SPELLINGS.items():
        if sum(re.fullmatch(pattern, text) is not None for text in texts) >= _SAME_KIND * len(each.values):
            return reason
    return None


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
    if each.kind.startswith("number") and max(map(abs, each.numbers)) > MAX_ABS / 10:
        return f"numbers beyond {MAX_ABS / 10:g}"
    if each.kind == "text" and len(each.counts) > _FEW:
        return f"more than {_FEW} strings"
    if each.kind == "text" and not all(isinstance(v, str) and v.isprintable() for v in each.counts):
        return "not strings alone"
    return None


def _is_one_sided(each: FoundField, learned: Mapping[int, Any]) -> bool:
    """Whether all events that have a field, or all that lack it, have one label, more than by chance.

    Such a field is often filled in when the label is known, and gives it away.
    """
    labels = Counter(learned.values())
    having = Counter(learned[row] for row in each.items if row in learned)
    return any(
        len(part) == 1 and all((labels[y] / len(learned)) ** n < _CHANCE for y, n in part.items())
        for part in (having, labels - having)
    )


def _says_label(each: FoundField, learned: Mapping[int, Any]) -> bool:
    """Whether each of a few values has one label only, more than by chance, and not all the same one.

    Such a field is often the label under another name, or the decision that followed from it.
    """
    labels, by_value = Counter(learned.values()), dict[Any, Counter[Any]]()
    for row, value in each.items.items():
        if row in learned:
            by_value.setdefault(value, Counter())[learned[row]] += 1
    if len(by_value) > _FEW or any(len(part) > 1 for part in by_value.values()):
        return False
    if len({label for part in by_value.values() for label in part}) < 2:
        return False
    shares = [count / labels.total() for count in labels.values()]
    counts = [part.total() for part in by_value.values()]
    return math.prod(sum(share**count for share in shares) for count in counts) < _CHANCE


def _add_features(
    found: Findings, kept: Sequence[FoundField], declared: Mapping[str, Any], *, private: bool
) -> None:
    """Add the features with their bounds or values, and the types of fields that have one."""
    features: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    name = declared.get("time")
    times = sorted(
        (each for each in kept if each.is_time),
        key=lambda each: (each.name != name, not _TIME & set(each.words)),
    )
    for each in kept:
        if each.is_time and each is not times[0]:
            found.left_out[each.name] = "another time"
        elif times and each.name.startswith(f"{times[0].name}."):
            found.left_out[each.name] = "below a time"
        elif not each.is_time and each.name != name:
            features[each.name] = _domain(each)
            if each.kind == "number as text":
                kinds[each.name] = "number"
    for each in times[:1]:
        kinds[each.name] = each.kind
        days = each.kind == "iso-8601" and all(len(str(value)) == 10 for value in each.values)
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
    if kinds:
        found.input["fields"] = kinds


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
