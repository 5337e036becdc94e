"""The fields of a model file, and their checks: nothing in a file is ever run (docs/models.md)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, SnapshotError
from streampair.privacy.mechanisms.start_moments import check_release
from streampair.records.random_trees import marks_of
from streampair.steps import Parts

__all__ = [
    "FORMAT",
    "VERSION",
    "BoostedSplits",
    "Classes",
    "Curve",
    "Document",
    "EncodedArray",
    "Experts",
    "ForestModel",
    "KnownModel",
    "Label",
    "Labels",
    "LinearModel",
    "MetricModel",
    "Name",
    "Promise",
    "RandomForestModel",
    "ReleasedMoments",
    "Relevance",
    "Running",
    "Scaling",
    "Splits",
    "StepForm",
    "check_version",
    "classes_of",
    "decode",
    "encode",
    "fields_of",
    "is_online",
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


class EncodedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array: its bytes in base64, row by row, little-endian.

    Attributes
    ----------
    dtype
        ``"<f8"``, numbers of 64 bits, or ``"<i4"``, whole numbers of 32 bits.
    shape
        Lengths of its axes.
    data
        Its bytes.
    """

    dtype: Literal["<f8", "<i4"]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def floats(cls, values: NDArray[Any]) -> EncodedArray:
        """Pack an array as numbers of 64 bits."""
        return cls("<f8", values.shape, np.ascontiguousarray(values, dtype="<f8").tobytes())

    @classmethod
    def integers(cls, values: NDArray[Any]) -> EncodedArray:
        """Pack an array as whole numbers of 32 bits."""
        return cls("<i4", values.shape, np.ascontiguousarray(values, dtype="<i4").tobytes())

    def array(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        """The array, of this type and shape, in the machine's own byte order.

        Raises
        ------
        ValueError
            If it is of another type, shape or length.
        """
        if self.dtype != dtype or self.shape != shape:
            raise ValueError(f"{name} has another type or shape")
        if len(self.data) != math.prod(shape) * np.dtype(dtype).itemsize:
            raise ValueError(f"{name} has another length than its shape says")
        return np.frombuffer(self.data, dtype=dtype).reshape(shape).astype(dtype[1:])

    def numbers(self, name: str, *shape: int) -> NDArray[np.float64]:
        """The array of finite numbers; ValueError if it is none."""
        array: NDArray[np.float64] = self.array(name, "<f8", *shape)
        if not np.isfinite(array).all():
            raise ValueError(f"a number in {name} is not finite")
        return array

    def whole(self, name: str, *shape: int) -> NDArray[np.int32]:
        """The array of whole numbers; ValueError if it is none."""
        array: NDArray[np.int32] = self.array(name, "<i4", *shape)
        return array


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


class Classes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels of a classifier of any number of classes.

    Attributes
    ----------
    labels
        The known classes.
    positive
        The class whose score is the score of a record; it may be unknown yet.
    """

    labels: tuple[Label, ...]
    positive: Label


class Relevance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From a score to a predicted relevance: ``middle + half * score``.

    Attributes
    ----------
    middle, half
        The middle of the declared range, and half of its length.
    """

    middle: float
    half: float


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


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a learner without privacy scales the features: by their running statistics.

    A feature x counts as ``(x - centre) unit``; the centre is the mean of a dense feature, else 0.

    Attributes
    ----------
    records
        Number of records that the statistics count.
    means, variances, units
        Of each feature, (features,).
    values_set, times_given
        In how many records it had a value, and how often it was given, as a value or a gap, (features,).
    cuts
        How many of the values were too far from the centre, and learned as nearer ones, (features,).
    lows, highs
        The lower and the higher value that a feature has held, while they were at most two, (features,).
    kinds
        Of each feature, added up: 1 dense, 2 scaled by its spread, 4 an indicator, 8 begun by its weight,
        (features,).
    """

    records: int
    means: EncodedArray
    variances: EncodedArray
    units: EncodedArray
    values_set: EncodedArray
    times_given: EncodedArray
    cuts: EncodedArray
    lows: EncodedArray
    highs: EncodedArray
    kinds: EncodedArray

    def statistics(self, d: int) -> dict[str, NDArray[np.float64]]:
        """The arrays by name, (d,) each; ValueError if one cannot be."""
        found = {name: getattr(self, field).numbers(field, d) for field, name in RUNNING.items()}
        signed = ("means", "lows", "highs")
        if any((values < 0.0).any() for name, values in found.items() if name not in signed):
            raise ValueError("a statistic of the features is below 0")
        if (found["cuts"] > MOST_CUTS).any():
            raise ValueError("cuts are out of range")
        if (found["lows"] > found["highs"]).any():
            raise ValueError("the lower of two values is above the higher")
        kinds = self.kinds.whole("kinds", d)
        if not ((kinds >= 0) & (kinds < MOST_KINDS)).all():
            raise ValueError("a feature is of an unknown kind")
        if not 0 <= self.records < 2**53:
            raise ValueError("records is out of range")
        return found | {"kinds": kinds.astype(np.float64)}


class ReleasedMoments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Second moments of a table, which `streampair.history` has released: public, and under noise.

    A learner of the same features can begin with them; scores do not need them.

    Attributes
    ----------
    rows
        Rows that were summed up, unusable ones included.
    sums
        Released sums of x x', packed (lower triangle row by row, entries off the diagonal times the root
        of 2), and of ``(y - centre) x / (1 + |centre|)``; x is standardised by `Scaling`,
        (d (d + 1) / 2 + d,). Of a random forest also of counts of rows and of their labels in the leaves,
        tree by tree, and of counts in the bins of each field, each times its weight in the release
        (docs/privacy 10.10).
    sigma
        Standard deviation of the noise in each of them.
    centre
        Released mean of the labels.
    sample, sample_sigma
        Rows that mean, factor and centre were released from, and the standard deviation of the noise in the
        sums of features and labels.
    relevance
        Declared (low, high) of the relevances; None: there are two classes.
    """

    rows: int
    sums: EncodedArray
    sigma: float
    centre: float
    sample: int
    sample_sigma: float
    relevance: tuple[float, float] | None

    def array(self, cells: int) -> NDArray[np.float64]:
        """The sums, (cells,); ValueError if a number of the release cannot be."""
        found = self.sums.numbers("sums", cells)
        check_release(self.rows, self.sigma, self.sample, self.sample_sigma, self.centre)
        return found


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
    assumed
        What it assumes of a table, of a model of `streampair.history` or of a learner that began with one; a
        file of another one has no such field.
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
    assumed: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class StepForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_name": "class"}):
    """A step in front of the learner.

    Attributes
    ----------
    name
        Of the step in its pipeline.
    class_name
        A class of `streampair.steps.KINDS`, such as `"river.preprocessing.StandardScaler"`. A file can name
        no other.
    settings
        Its parameters, as the table has them.
    lists, arrays
        What it has learned: names and values, and numbers, perhaps infinite or NaN.
    steps
        The steps inside it.
    """

    name: str
    class_name: str
    settings: dict[str, Any]
    lists: dict[str, tuple[str | bool | int | float | None, ...]]
    arrays: dict[str, EncodedArray]
    steps: tuple[StepForm, ...]

    @classmethod
    def of(cls, parts: Parts) -> StepForm:
        """The form of a step that was taken apart."""
        return cls(
            parts.name,
            parts.kind,
            dict(parts.settings),
            {name: tuple(values) for name, values in parts.lists.items()},
            {name: EncodedArray.floats(values) for name, values in parts.arrays.items()},
            tuple(map(cls.of, parts.steps)),
        )

    def parts(self) -> Parts:
        """The step taken apart; ValueError if an array is damaged."""
        arrays = {}
        for name, values in self.arrays.items():
            if len(values.shape) != 1:
                raise ValueError(f"{name} has another shape")
            arrays[name] = values.array(name, "<f8", *values.shape)
        lists = {name: list(values) for name, values in self.lists.items()}
        inner = tuple(step.parts() for step in self.steps)
        return Parts(self.name, self.class_name, self.settings, lists, arrays, inner)


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
    steps
        The steps that make these features of a record, in order; a file without steps has no such field.
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
    steps: tuple[StepForm, ...] | msgspec.UnsetType = msgspec.UNSET
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
        Of a private learner, else None.
    running
        Of a learner without privacy that scales the features, and of a private one that still scores by such
        a model; a file of another one has no such field. With neither weights multiply the raw values.
    weights
        One a feature, of scaled features.
    indicators
        Numbers of the features that are indicators, ascending: ``name=value`` of a text, and ``name=`` of a
        missing value. A file without them has no such field.
    shared
        How many of the features, the last, are columns that all other names share. A file without them has
        no such field.
    moments
        Of a table, from which the weights were computed. A file of another model has no such field.
    """

    labels: Labels | None
    probability: Curve | None
    scaling: Scaling | None
    running: Running | msgspec.UnsetType = msgspec.UNSET
    weights: Numbers
    indicators: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    shared: int | msgspec.UnsetType = msgspec.UNSET
    moments: ReleasedMoments | msgspec.UnsetType = msgspec.UNSET

    def cells(self) -> int:
        """Number of sums of `moments`."""
        d = len(self.features)
        return d * (d + 1) // 2 + d

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        super().check()
        d = len(self.features)
        _check_length("weights", self.weights, d)
        _check_scaling(self.scaling, d)
        indicators = self.indicators or ()
        if list(indicators) != sorted(set(indicators)) or not all(0 <= i < d for i in indicators):
            raise ValueError("indicators are out of range, or not in order")
        if not all(isinstance(self.features[i], str) for i in indicators):
            raise ValueError("an indicator is no text")
        if self.shared and not 0 < self.shared < d:
            raise ValueError("shared is out of range")
        if self.scaling is not None and (self.running or indicators or self.shared):
            raise ValueError("a private learner has no columns of its own")
        if self.running:
            kinds = self.running.statistics(d)["kinds"].astype(np.int64)
            if np.flatnonzero(kinds & INDICATOR).tolist() != list(indicators):
                raise ValueError("indicators are not those of the kinds")
        if self.moments:
            if self.scaling is None or self.scaling.mean is None or self.scaling.cap is None:
                raise ValueError("moments of values that were not standardised")
            if (self.moments.relevance is None) != (self.labels is not None):
                raise ValueError("moments of other labels")
            self.moments.array(self.cells())
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


class RandomForestModel(LinearModel, tag="random_forest", kw_only=True):
    """The score is linear in the features, plus a weight for the leaf of each data-independent tree.

    A tree is complete: node 1 is the root, and the children of node i are 2 i and 2 i + 1. Node 0 is none.

    Attributes
    ----------
    field_sizes
        How many features a field has, in order: 1, or the number of its categories.
    split_fields, split_values
        Field and threshold of each node, (trees, nodes); of a field of categories the number of a hash.
    leaf_weights
        (trees, nodes): of the leaf that is node ``nodes + i``.
    """

    field_sizes: tuple[int, ...]
    split_fields: EncodedArray
    split_values: EncodedArray
    leaf_weights: EncodedArray

    def cells(self) -> int:
        """As of a linear model, with those of leaves and bins."""
        return super().cells() + 2 * math.prod(self.split_fields.shape) + marks_of(self.field_sizes)

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        super().check()
        if self.scaling is None:
            raise ValueError("scaling is missing")
        if self.scaling.mean is not None and self.scaling.cap is None:
            raise ValueError("cap is missing")  # the places of values are in units of it
        if min(self.field_sizes, default=0) < 1 or sum(self.field_sizes) != len(self.features):
            raise ValueError("field_sizes do not add up to the features")
        fields, values, _ = self.arrays()
        nodes = fields.shape[1]
        if nodes & (nodes - 1):
            raise ValueError("a tree is not complete")
        if not ((fields >= 0) & (fields < len(self.field_sizes))).all():
            raise ValueError("a node splits by a field that does not exist")
        sizes = np.array(self.field_sizes)[fields]
        if not ((sizes == 1) | ((values >= 0.0) & (values < MOST_HASHES) & (values % 1.0 == 0.0))).all():
            raise ValueError("a node splits by a hash that does not exist")

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        """Fields, values and leaf weights; ValueError if one is damaged."""
        shape = self.split_fields.shape
        if len(shape) != 2 or not 1 <= shape[0] <= 1000 or not 2 <= shape[1] <= 2**16:
            raise ValueError("split_fields has another shape")
        return (
            self.split_fields.whole("split_fields", *shape),
            self.split_values.numbers("split_values", *shape),
            self.leaf_weights.numbers("leaf_weights", *shape),
        )


class Splits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trees of a forest that grows: the nodes of the first tree, then those of the second, and so on.

    Attributes
    ----------
    sizes
        Number of nodes of each tree, (trees,).
    columns
        Feature by which a node splits, (nodes,); ``~column`` if it splits texts by a hash; 0 in a leaf.
    values
        Threshold of a node, (nodes,), perhaps -infinity; the number of a hash if it splits texts.
    children
        Number within its tree of the left child, (nodes,); the right one follows it. 0: a leaf.
    """

    sizes: EncodedArray
    columns: EncodedArray
    values: EncodedArray
    children: EncodedArray


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of the experts, of each class in turn.

    Attributes
    ----------
    stack
        (classes, 5): the score is the sum of the scores of the experts and of the boosted trees with these
        weights.
    linear
        (classes, features, 4): weights of standardised values.
    texts
        (classes, buckets, 4): weights of texts, by the buckets of the model.
    leaves
        Of the experts 1, 2 and 3: (classes, nodes), where a tree counts with its first nodes below the cut.
    """

    stack: EncodedArray
    linear: EncodedArray
    texts: EncodedArray
    leaves: tuple[EncodedArray, EncodedArray, EncodedArray]


class BoostedSplits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Boosted trees of depth 6, of each class in turn.

    A record goes from node n to the node 2 n + 1 or 2 n + 2; leaf l is the node 63 + l.

    Attributes
    ----------
    bias
        (classes,): a score begins with it.
    columns
        Feature by which a node splits, (classes, trees, 63); ``~column`` if it splits by codes.
    thresholds
        A number above it goes right, anything else left, (classes, trees, 63); perhaps an infinity: infinity
        means that there is no split. 0 where a node splits by codes.
    sets
        Codes that go right, as the lower and the upper half of 64 bits, (classes, trees, 63, 2).
    leaves
        (classes, trees, 64).
    coded
        Features that have codes, once for each code, ascending, (codes,). The first code of a feature is 1;
        0 is a missing value, 63 any value without a code.
    hashes
        The hash of the text that has the code, (codes,); 0 if a number has it.
    numbers
        The number, (codes,); 0 if a text has the code.
    """

    bias: EncodedArray
    columns: EncodedArray
    thresholds: EncodedArray
    sets: EncodedArray
    leaves: EncodedArray
    coded: EncodedArray
    hashes: EncodedArray
    numbers: EncodedArray


class ForestModel(Document, tag="forest", kw_only=True):
    """The score is that of an online forest.

    Attributes
    ----------
    labels, probability
        Of a classifier of two classes, else None.
    classes
        Of a classifier of any number of classes, else None.
    relevance
        Of a regression, else None.
    label_mean, label_variance
        Of a regression: ``label_mean + sqrt(label_variance) * score`` is the score; else None.
    text_features
        Numbers of the features that have had texts.
    buckets
        Numbers of the buckets of texts that have weights, ascending.
    mean, variance
        Of each feature, (features,).
    present
        Numbers of the features whose values have all been equal while other records had none: a value stands
        for its presence, ``z = 1``. A file without such features has no such field.
    cuts
        An expert descends to nodes of numbers below its cut.
    splits
        The trees.
    experts
        Their weights.
    boosted
        The boosted trees, which are the last expert.
    """

    labels: Labels | None
    probability: Curve | None
    classes: Classes | None
    relevance: Relevance | None
    label_mean: float | None
    label_variance: float | None
    text_features: tuple[int, ...]
    buckets: tuple[int, ...]
    mean: EncodedArray
    variance: EncodedArray
    present: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    cuts: tuple[int, int, int]
    splits: Splits
    experts: Experts
    boosted: BoostedSplits

    def check(self) -> None:
        """Raise ValueError if the parts do not fit together; the trees are checked where they are built."""
        super().check()
        _check_classifier(self.labels, self.probability)
        if sum(part is not None for part in (self.labels, self.classes, self.relevance)) != 1:
            raise ValueError("it has more or less than one of labels, classes and relevance")
        if not len({self.relevance is None, self.label_mean is None, self.label_variance is None}) == 1:
            raise ValueError("of relevance, label_mean and label_variance one is missing")
        if self.label_variance is not None and self.label_variance < 0.0:
            raise ValueError("label_variance is below 0")
        if self.classes is not None and len(set(self.classes.labels)) != len(self.classes.labels):
            raise ValueError("a class occurs twice")
        for name, values, most in (
            ("text_features", self.text_features, len(self.features)),
            ("buckets", self.buckets, MOST_BUCKETS),
            ("present", self.present or (), len(self.features)),
        ):
            if list(values) != sorted(set(values)) or not all(0 <= value < most for value in values):
                raise ValueError(f"{name} are out of range, or not in order")

    @property
    def blocks(self) -> int:
        """Number of classes with weights of their own."""
        return 1 if self.classes is None else max(len(self.classes.labels), 1)


KnownModel = LinearModel | MetricModel | ForestModel | RandomForestModel

#: Statistics of a learner's state by the fields of `Running`.
RUNNING = {
    **{name: name for name in ("means", "variances", "units", "values_set", "cuts", "lows", "highs")},
    "times_given": "given",
}
INDICATOR = 4
MOST_KINDS = 16
MOST_CUTS = 1000
MOST_HASHES = 8
MOST_BUCKETS = 4096


def is_online(document: Document) -> bool:
    """Whether it is the model of a linear learner without privacy."""
    return type(document) is LinearModel and document.scaling is None and document.privacy is None


def fields_of(document: Document) -> tuple[Name, ...]:
    """Names of the fields of a record that the learner reads, without those of shared columns.

    A text is the indicator ``name=value`` of its field, and a missing value ``name=``. The name of a field
    ends at the first ``=``.
    """
    if not isinstance(document, LinearModel):
        return document.features
    indicators, count = set(document.indicators or ()), len(document.features) - (document.shared or 0)
    fields = [name for i, name in enumerate(document.features[:count]) if i not in indicators]
    texts = [str(document.features[i]).partition("=")[0] for i in sorted(indicators) if i < count]
    known = {str(name) for name in fields}
    return (*fields, *(name for name in dict.fromkeys(texts) if name not in known))


def classes_of(document: Document) -> tuple[Any, ...]:
    """Labels of the columns of the probabilities; empty without probabilities."""
    classes = getattr(document, "classes", None)
    if classes is not None:
        return tuple(classes.labels)
    labels = getattr(document, "labels", None)
    if labels is None:
        return ()
    return (labels.positive,) if labels.negative is None else (labels.negative, labels.positive)


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
        _check_finite(msgspec.to_builtins(document, builtin_types=(bytes,)))
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


def check_version(version: Any) -> None:
    """Refuse a model of another version.

    Raises
    ------
    SnapshotError
    """
    if version != VERSION:
        raise SnapshotError(
            f"the model has version {version}, this release reads version {VERSION}",
            fix="use the release that wrote it, or a newer one",
        )


def decode(data: bytes) -> KnownModel:
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
    check_version(head.version)
    try:
        document: KnownModel = msgspec.json.decode(data, type=KnownModel)
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


def plain_label(label: Any) -> Label:
    """A label as text, a number, True or False.

    Raises
    ------
    ConfigError
        If it is anything else.
    """
    plain = label.item() if isinstance(label, np.generic) else label
    if type(plain) in (str, bool, int, float):
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
        fix="give strings, finite numbers, True, False, None, lists, or dicts with strings as keys",
    )
