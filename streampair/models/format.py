"""The fields of a model file, and their checks: nothing in a file is ever run (docs/models.md)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from streampair.errors import ConfigError, SnapshotError

__all__ = [
    "FORMAT",
    "VERSION",
    "Curve",
    "Document",
    "Labels",
    "LinearModel",
    "MetricModel",
    "Promise",
    "Scaling",
    "decode",
    "encode",
    "plain_label",
    "plain_metadata",
    "plain_names",
]

FORMAT: Final = "streampair.model"
VERSION: Final = 1

Name = str | int | float
Label = str | bool | int | float
Numbers = tuple[float, ...]
# Deeper than any use; Python's own stack is far deeper.
_MOST_DEPTH = 20


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Probability of a score: ``sigmoid(offset + slope * ((score - centre) / spread))``.

    Attributes
    ----------
    offset, slope, centre, spread
        With a spread of 0 the probability is ``sigmoid(offset)``.
    """

    offset: float
    slope: float
    centre: float
    spread: float


class Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels of a classifier of two classes.

    Attributes
    ----------
    positive
        The label that ranks high.
    negative
        The label that ranks low; None: it is not known.
    """

    positive: Label
    negative: Label | None


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a private learner scales the features: declared bounds, and released moments.

    Attributes
    ----------
    bounds
        Declared (low, high) of each feature; values are scaled from there to [-1, 1].
    mean, factor
        Scaled values are clipped to [-1, 1], centred with `mean` and multiplied by `factor`, both released by
        the warm-up; None before it, or without one.
    cap
        Standardised values are clipped to [-cap, cap]; None: no limit.
    """

    bounds: tuple[tuple[float, float], ...]
    mean: Numbers | None
    factor: Numbers | None
    cap: float | None


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Privacy guarantee and spending of a private learner, as in `PrivacyReport`.

    Attributes
    ----------
    epsilon_spent, epsilon_budget, delta, mu_spent, mu_budget, unit, adjacency, horizon
        As in `PrivacyReport`.
    kind
        `"holds"`, `"unvouched"` or `"void"`.
    guarantee
        The guarantee in words; of a void one `"void"` alone, since the reason may depend on records.
    """

    epsilon_spent: float
    epsilon_budget: float
    delta: float
    mu_spent: float
    mu_budget: float
    unit: str
    adjacency: str
    kind: Literal["holds", "unvouched", "void"]
    guarantee: str
    horizon: int | None


class Document(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="kind", rename={"class_name": "class"}
):
    """Fields of every model.

    Attributes
    ----------
    format, version
        `FORMAT` and `VERSION`.
    class_name
        The learner's class, such as `"auc.PairOGD"`: information only, scores follow from the kind.
    features
        Names, in the order of the weights.
    slots
        Number of records by then, unusable ones included.
    time
        Of the export or of the newest record, in milliseconds since the epoch; None: unknown.
    privacy
        None: the learner is not private.
    metadata
        Public facts of the caller.
    """

    format: Literal["streampair.model"] = FORMAT
    version: Literal[1] = VERSION
    class_name: str
    features: tuple[Name, ...]
    slots: int
    time: int | None
    privacy: Promise | None
    metadata: dict[str, Any]

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        if len(set(self.features)) != len(self.features):
            raise ValueError("a feature occurs twice")
        if self.slots < 0:
            raise ValueError("slots is below 0")


class LinearModel(Document, tag="linear", kw_only=True):
    """The score is linear in the features.

    Attributes
    ----------
    labels, probability
        Of a classifier, else None.
    scaling
        None: weights multiply the raw values, and a missing value is 0.
    weights
        One a feature.
    """

    labels: Labels | None
    probability: Curve | None
    scaling: Scaling | None
    weights: Numbers

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        super().check()
        d = len(self.features)
        _check_length("weights", self.weights, d)
        _check_scaling(self.scaling, d)
        _check_classifier(self.labels, self.probability)


class MetricModel(Document, tag="metric", kw_only=True):
    """The score is the learned distance from the neutral record.

    Attributes
    ----------
    scaling
        As of a linear model.
    root
        Rows of a symmetric matrix that maps a record to coordinates with the learned distance; None: nothing
        is learned, and the score is the Euclidean norm of the raw values.
    """

    scaling: Scaling | None
    root: tuple[Numbers, ...] | None

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        super().check()
        d = len(self.features)
        _check_scaling(self.scaling, d)
        if self.root is not None:
            _check_length("root", self.root, d)
            for row in self.root:
                _check_length("a row of root", row, d)


_Known = LinearModel | MetricModel


def _check_length(name: str, values: Sequence[Any], length: int) -> None:
    if len(values) != length:
        raise ValueError(f"{name} has a length of {len(values)}, and there are {length} features")


def _check_scaling(scaling: Scaling | None, d: int) -> None:
    if scaling is None:
        return
    _check_length("bounds", scaling.bounds, d)
    if any(not low < high for low, high in scaling.bounds):
        raise ValueError("a lower bound is not below the upper one")
    if (scaling.mean is None) != (scaling.factor is None):
        raise ValueError("of mean and factor one is missing")
    for name in ("mean", "factor"):
        values = getattr(scaling, name)
        if values is not None:
            _check_length(name, values, d)
    if scaling.cap is not None and not scaling.cap > 0.0:
        raise ValueError("cap is not above 0")


def _check_classifier(labels: Labels | None, curve: Curve | None) -> None:
    if (labels is None) != (curve is None):
        raise ValueError("of labels and probability one is missing")
    if labels is not None and labels.positive == labels.negative:
        raise ValueError("both labels are the same")
    if curve is not None and not (curve.spread >= 0.0 and curve.slope > 0.0):
        raise ValueError("the probability does not rise with the score")


# ---- to and from bytes -----------------------------------------------------------------------------------


def encode(document: Document) -> bytes:
    """The JSON of a model; every number is read back with the same bits.

    Raises
    ------
    ConfigError
        If it holds a number that is not finite, or a text that is not Unicode.
    """
    try:
        document.check()
        _check_finite(msgspec.to_builtins(document))
        return msgspec.json.encode(document)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"the model cannot be written as JSON ({error})",
            fix="use features and labels that are texts or numbers, and scale features to a common range",
        ) from None


def _check_finite(value: Any) -> None:
    # JSON has no NaN and no infinity: a null would be written in their place.
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        _check_finite(item)


class _Head(msgspec.Struct):
    format: str
    version: int


def decode(data: bytes) -> LinearModel | MetricModel:
    """The model in JSON, all of it checked.

    Raises
    ------
    SnapshotError
        If the data are no model, damaged, or of another version.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError:
        head = _Head("", 0)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = f"it is damaged or cut short ({error})" if len(data) else "it is empty"
        raise SnapshotError(
            f"this is not a model: {what}", fix="load an undamaged copy, or export the learner again"
        ) from None
    if head.format != FORMAT:
        raise SnapshotError(
            f'this is not a model of streampair: its "format" is not "{FORMAT}"',
            fix="give what streampair.models.save or dumps has written",
        )
    if head.version != VERSION:
        raise SnapshotError(
            f"the model has version {head.version}, this release reads version {VERSION}",
            fix="use the release that wrote it, or a newer one",
        )
    try:
        document: LinearModel | MetricModel = msgspec.json.decode(data, type=_Known)
        document.check()
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise SnapshotError(
            f"the model is damaged ({error})", fix="load an undamaged copy, or export the learner again"
        ) from None
    return document


# ---- values that JSON can hold ---------------------------------------------------------------------------


def plain_names(names: Sequence[Hashable]) -> tuple[Name, ...]:
    """Feature names.

    Raises
    ------
    ConfigError
        If one is neither text nor a number.
    """
    for name in names:
        if type(name) not in (str, int, float):
            raise ConfigError(
                f"the feature name {name!r} is a {type(name).__name__}, which a model file cannot hold",
                fix="use text as feature names",
            )
    return tuple(names)  # type: ignore[arg-type]  # checked


def plain_label(label: Any) -> Label | None:
    """A label as text, a number, True or False; None stays.

    Raises
    ------
    ConfigError
        If it is anything else.
    """
    plain = label.item() if hasattr(label, "item") else label
    if plain is None or type(plain) in (str, bool, int, float):
        return plain  # type: ignore[no-any-return]
    raise ConfigError(
        f"the label {label!r} is a {type(label).__name__}, which a model file cannot hold",
        fix="use text, numbers, True or False as labels",
    )


def plain_metadata(metadata: Any) -> dict[str, Any]:
    """A copy of the metadata.

    Raises
    ------
    ConfigError
        If it holds anything but texts, numbers, True, False, None, lists, and dicts with text keys.
    """
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"metadata is {metadata!r}", fix="give a dict of public facts")
    plain: dict[str, Any] = _plain(metadata, "metadata", 0)
    return plain


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ConfigError("metadata is nested too deeply", fix=f"nest at most {_MOST_DEPTH} levels")
    if value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise ConfigError(
        f"{path} is a {type(value).__name__}, which a model file cannot hold",
        fix="give texts, finite numbers, True, False, None, lists, or dicts with text keys",
    )
