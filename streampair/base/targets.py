"""Label encoders: two classes, relevances, several classes."""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Set
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, RecordError
from streampair.kernels import dp_steps
from streampair.records import features
from streampair.records.features import TwoLabels

__all__ = [
    "BinaryTarget",
    "ClassTarget",
    "OneClassTarget",
    "RelevanceTarget",
    "Target",
    "is_unknown",
]

Array = NDArray[np.float64]

#: Of a metric that keeps a sum for each.
MOST_CLASSES = 256


class _NoLabel:
    """A label that no record has; equal to its copies in nothing, and cheap to copy and pickle."""


_NO_LABEL: Any = _NoLabel()


class Target(abc.ABC):
    """Labels of one kind.

    Attributes
    ----------
    high, low
        Labels that are recognised by identity, as +1 and -1.
    negative
        Of two labels the one that ranks low; None: there are more than two, or it is not declared.
    form
        Form of the pair margin, from two labels and the weights.
    pairs
        What the kernels of private learners know the pairs by.
    two_classes
        Whether labels are +1 and -1, so that records can be kept apart by them.
    real_labels
        Whether labels are relevances rather than classes.
    most_features
        Largest number of features that a private learner takes.
    advice
        What to declare where labels cannot be used.
    """

    high: Any = _NO_LABEL
    low: Any = _NO_LABEL
    negative: Any = None
    form: ClassVar[losses.Form] = "raw"
    pairs: ClassVar[int] = dp_steps.LINEAR_PAIRS
    two_classes: ClassVar[bool] = False
    real_labels: ClassVar[bool] = False
    most_features: ClassVar[int] = 10_000
    #: Whether there may be labels that are whole numbers which floats cannot distinguish.
    wide_labels: bool = False
    advice: str = ""

    @staticmethod
    def coordinates(d: int) -> int:
        """Coordinates of the weights for d features."""
        return d

    def checked_loss(self, loss: Any) -> losses.PairLoss | None:
        """The loss, if it suits the labels; None, the default, as it is.

        Raises
        ------
        ConfigError
        """
        if loss is None:
            return None
        known = losses.registered(loss)
        if known.of_errors and not self.real_labels:
            raise ConfigError(
                f"{loss!r} compares errors of a real-valued relevance, which labels are not",
                fix="use losses.Logistic() or another loss of the margin, or a learner of ranking",
            )
        return known

    @abc.abstractmethod
    def label(self, y: Any) -> float:
        """The number that the kernels know the label by.

        Raises
        ------
        RecordError
            If the label is unknown or cannot be used.
        """

    def labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """`label` of every row of an array of booleans or numbers, or of a list; an error names the row."""
        out = np.empty(len(y))
        for i, label in enumerate(y if isinstance(y, list) else y.tolist()):
            try:
                out[i] = self.label(label)
            except RecordError as error:
                problem = f"in row {i}, {error.problem}"
                raise RecordError(problem, fix=error.fix, stage="label", row=i) from None
        return out

    def label_or_null(self, y: Any) -> float:
        """`label`, but NaN for a label that is absent or cannot be used. Never raises."""
        if y is self.high:
            return 1.0
        if y is self.low:
            return -1.0
        try:
            return self.label(y)
        except Exception:
            return math.nan

    def labels_or_null(self, y: NDArray[Any] | list[Any]) -> Array:
        """`label_or_null` of every row."""
        try:
            return self.labels(y)
        except Exception:  # one of them cannot be used: which, must not show
            labels = y if isinstance(y, list) else y.tolist()
            return np.array([self.label_or_null(label) for label in labels], dtype=np.float64)


class BinaryTarget(Target):
    """Binary target: one label ranks high, another one low (`TwoLabels`).

    Parameters
    ----------
    positive
        The label that ranks high.
    negative
        The label that ranks low; None: the opposite of True, False, 1 or 0, or else all of its type.

    Raises
    ------
    ConfigError
        If one of them is no label.

    Attributes
    ----------
    negative
        The label that ranks low; None: all of the type of `positive` do.
    """

    two_classes = True

    def __init__(self, positive: Any, negative: Any = None) -> None:
        self._two = TwoLabels(positive, negative)
        self.negative = self._two.negative
        self.advice = (
            f"labels are positive={positive!r} and negative={self.negative!r}; declare those of the stream"
        )
        # Compared as any label is: a text that reads as a number is that number.
        self._high, self._low = self._two.high, self._two.low
        self.wide_labels = features.is_wide(self._high)
        # Identity with these two settles nearly every label without a comparison.
        self.high = positive
        self.low = _NO_LABEL if self.negative is None else self.negative

    def label(self, y: Any) -> float:
        """+1 for the label that ranks high, -1 for one that ranks low.

        Raises
        ------
        RecordError
            If the label is unknown (None, NaN or masked), cannot be compared, or is neither.
        """
        return self._two.sign(y)

    def labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """`label` of every row."""
        # Only where NumPy compares as Python does: whole numbers with whole ones, and none that is NaN.
        if isinstance(y, np.ndarray) and y.dtype.kind in "biu" and _is_whole(self._high):
            high = y == self._high
            if self._low is None:
                # A truth value is no opposite of 2, and 2 none of "yes".
                usable = (y.dtype.kind == "b") == isinstance(self._high, bool | np.bool_)
            else:
                usable = _is_whole(self._low) and bool((high | (y == self._low)).all())
            if usable:
                return np.where(high, 1.0, -1.0)
        return super().labels(y)


class OneClassTarget(BinaryTarget):
    """One-against-rest target of a learner of several classes: one label ranks high, every other low."""

    def __init__(self, positive: Any) -> None:
        super().__init__(positive)
        self.negative, self._low, self.low = None, None, _NO_LABEL
        self._high = features.label(positive, several=True)

    def label(self, y: Any) -> float:
        """+1 for the label that ranks high, -1 for any other.

        Raises
        ------
        RecordError
            If the label is unknown or no label.
        """
        if isinstance(y, str | bytes | int | float | np.generic) and y == y:
            found = features.label(y, several=True)
            if found == found:
                return 1.0 if found == self._high else -1.0
        return self._two.sign(y)


def _is_whole(label: Any) -> bool:
    return isinstance(label, bool | int | np.bool_ | np.integer)


class RelevanceTarget(Target):
    """A real-valued relevance.

    Parameters
    ----------
    relevance
        Lowest and highest relevance there can be, by declaration; scaled to -1 and 1. None, with a limit: any
        number of at most that size, as it is.
    limit
        A size with which no product in a kernel overflows; None: a range has to be declared.

    Raises
    ------
    ConfigError
        If the range is none.
    """

    real_labels = True
    advice = "declare the range of the relevance, for example relevance=(0, 4)"

    def __init__(self, relevance: Any, limit: float | None = None) -> None:
        if relevance is None and limit is not None:
            self._low, self._high = -limit, limit
            self._least, self._most = -limit, limit
            self._middle, self._half = 0.0, 1.0
            return
        try:
            low, high = (features.as_number(bound) for bound in relevance)
        except (TypeError, ValueError, OverflowError):
            low = high = math.nan
        size = max(abs(low), abs(high))
        if not (size <= 1e100 and high - low > max(1e-100, 1e-9 * size)):
            raise ConfigError(
                f"relevance is {relevance!r}",
                fix="give the lowest and the highest relevance there can be, for example (0, 4)",
            )
        self._low, self._high = low, high
        self._least, self._most = -1.0, 1.0
        self._middle, self._half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low

    def label(self, y: Any) -> float:
        """The relevance, scaled to [-1, 1] if a range was declared.

        Raises
        ------
        RecordError
            If it is unknown (None or NaN), no number, or out of range.
        """
        try:
            value = y if type(y) is float else features.as_number(features.label(y))
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        low, high = self._low, self._high
        if low <= value <= high:
            return min(max((value - self._middle) / self._half, self._least), self._most)
        text = features.short(y)
        if y is None or (isinstance(y, float | np.floating) and y != y):
            raise RecordError(
                f"the relevance is {text}, so it is unknown",
                fix="learn the record when its relevance is there, or leave it out",
                stage="label",
            )
        raise RecordError(
            f"the relevance is {text}, not a number from {low:g} to {high:g}",
            fix="declare the range that the relevance has, for example relevance=(0, 4), or scale it",
            stage="label",
        )

    @property
    def middle_and_half(self) -> tuple[float, float]:
        """Middle and half-width of the declared range: `relevance` is ``middle + half * label``."""
        return self._middle, self._half

    def relevance(self, label: float) -> float:
        """The relevance that a label stands for."""
        return self._middle + self._half * label

    def labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """`label` of every row."""
        if isinstance(y, np.ndarray):
            values = np.asarray(y, dtype=np.float64)
            if bool(np.all((values >= self._low) & (values <= self._high))):
                scaled: Array = np.clip((values - self._middle) / self._half, self._least, self._most)
                return scaled
        return super().labels(y)


def is_unknown(y: Any) -> bool:
    """Whether a label is absent: None, NaN or masked; or no single value. Never raises."""
    try:
        return y is None or y is np.ma.masked or bool(y != y)
    except Exception:  # pandas.NA, or an array
        return True


def _whole(y: Any, number: float) -> int:
    """The integer that y is. The float may be its neighbour: identifiers of persons are often of 64 bits."""
    whole = int(number)
    return whole if y == whole else int(y)


@lru_cache(maxsize=1024)
def class_number(y: Any) -> float:
    """A number below 2**53 for a class: the same for equal labels, in every process.

    A hash rather than a table of the labels seen, which would grow with them, and have to be saved. Two of n
    classes share a number with a probability of n^2 / 2^54.

    Raises
    ------
    TypeError, ValueError
        If the label is unknown, or neither text nor a finite number.
    """
    y = features.label(y, several=True)
    if isinstance(y, str):
        text = f"s{y}"
    else:
        number = features.as_number(y)  # None and NaN are none
        if not math.isfinite(number):
            raise ValueError("NaN or infinite")
        text = f"n{_whole(y, number)}" if number.is_integer() else f"n{number!r}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 11)


def _wrong_classes(labels: list[Any], numbers: tuple[float, ...]) -> str:
    """Say which two declared classes are equal, or how many there are."""
    seen: dict[float, Any] = {}
    for value, number in zip(labels, numbers, strict=True):
        if number in seen:
            return f"two of classes are equal as labels: {seen[number]!r} and {value!r}"
        seen[number] = value
    return f"the number of classes is {len(numbers)}"


class ClassTarget(Target):
    """Any number of classes, by text or number; pairs are of one class or of two.

    Parameters
    ----------
    classes
        Those that there can be; None: any.

    Raises
    ------
    ConfigError
        If they are not at least two different ones.

    Attributes
    ----------
    classes
        Their numbers; None: any.
    """

    form = "metric"
    pairs = dp_steps.METRIC_PAIRS
    most_features = 256
    advice = "give classes as text or numbers, and declare all of them if classes= is given"

    def __init__(self, classes: Any = None) -> None:
        self.classes: tuple[float, ...] | None = None
        self.wide_labels = True
        if classes is None:
            return
        fix = f"give a list of 2 to {MOST_CLASSES} different texts or numbers, for example ['cat', 'dog']"
        try:
            # A set has another order in each process, and so would a job of a table have another digest.
            labels = [] if isinstance(classes, str | bytes | Set) else list(classes)
            numbers = tuple(map(self.label, labels))
        except (TypeError, RecordError):
            labels, numbers = [], ()
        if not 2 <= len(set(numbers)) == len(numbers) <= MOST_CLASSES:
            problem = _wrong_classes(labels, numbers) if numbers else f"classes is {classes!r}"
            raise ConfigError(problem, fix=fix)
        self.classes = numbers
        self.wide_labels = any(map(features.is_wide, labels))

    @staticmethod
    def coordinates(d: int) -> int:
        """Coordinates of a symmetric matrix: its diagonal, and its off-diagonal entries times sqrt 2."""
        return d * (d + 1) // 2

    def label(self, y: Any) -> float:
        """The number of the class.

        Raises
        ------
        RecordError
            If the label is unknown (None or NaN), neither text nor a number, or of no declared class.
        """
        try:
            # Long texts are not remembered: a thousand of them could be much.
            long = isinstance(y, str | bytes) and len(y) > 100
            number = class_number.__wrapped__(y) if long else class_number(y)
        except (TypeError, ValueError, OverflowError):
            pass
        else:
            if self.classes is None or number in self.classes:
                return number
            raise RecordError(
                f"the label is none of the declared classes: {features.short(y)}",
                fix="declare all classes that there can be with classes=",
                stage="label",
            )
        try:
            found = features.label(y, several=True)
            unknown = found is None or bool(found != found)
        except (TypeError, ValueError):
            unknown = False
        if unknown:
            raise RecordError(
                f"the label is {y!r}, so its class is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        raise RecordError(
            f"the label is neither text nor a finite number: {features.short(y)}",
            fix="give the class as text, a number or True and False",
            stage="label",
        )

    def labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """`label` of every row."""
        values = y if isinstance(y, list) else y.tolist()
        try:
            numbers = {label: self.label(label) for label in set(values)}
            return np.array([numbers[label] for label in values], dtype=np.float64)
        except (TypeError, RecordError):  # a label that is none: which row is it?
            return super().labels(values)
