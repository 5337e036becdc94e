"""What a lane asks of its learner, and of the steps in front of it.

The engine knows learners by these alone: it imports none, and asks for nothing that is not written here.

- `SerializableStep`, `Scorer`: raise `RecordError` before they change anything, and save themselves as plain
  values.
- `PrivateModel`: a `Scorer` that takes every record as a slot, and keeps a privacy account.
- What a learner may have besides, and a lane can do without, is asked by a function each, below.

There are two questions about privacy, and two answers. The engine asks ``isinstance(x, PrivateModel)``: can a
lane keep the account of this learner? What may stand in a pipeline is asked by
`streampair.privacy.pipeline_check.is_private`, which does not import the engine and takes whatever has a null
step for private: it refuses, and a refusal should come on the slightest sign. `engine.pipeline` refuses a
learner that is private there and no `PrivateModel` here, so that no account is left out silently.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from streampair.engine.records import Rows
from streampair.errors import RecordError
from streampair.privacy.provenance import Origin

__all__ = [
    "PreparedBatchProtocol",
    "PrivateModel",
    "Scorer",
    "SerializableStep",
    "buffer_records",
    "comparator_radius",
    "decode_many",
    "design_many",
    "label_number",
    "missing",
    "noise_digest",
    "pair_form",
    "pair_loss",
    "positive_label",
    "prepare_many",
    "prepare_rows",
    "probabilities_of",
    "quadratic_many",
    "takes_nulls",
    "takes_text",
    "two_classes",
    "weight_norm",
    "weights_shown",
]


@runtime_checkable
class SerializableStep(Protocol):
    """An estimator of streampair, or one that keeps its rules: no change before an error, and plain state."""

    def to_state(self) -> dict[str, object]:
        """Everything that it has learned, as plain values and arrays."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `to_state` of a step with the same parameters returned."""
        ...


@runtime_checkable
class Scorer(SerializableStep, Protocol):
    """A learner that gives each record a finite score."""

    def learn_one(self, x: Any, y: Any) -> None:
        """Learn one record."""
        ...

    def score_one(self, x: Any) -> float:
        """Score of one record; higher ranks higher, except for a metric."""
        ...


@runtime_checkable
class PrivateModel(Scorer, Protocol):
    """A learner under differential privacy: each record is a slot, and each slot counts.

    Attributes
    ----------
    seed
        Of the noise; None: noise that nobody can foresee. A fixed one protects nobody.
    noise_key
        None, or the key that makes the noise a function of what was learned.
    entity
        None, or how often one entity may be learned from.
    window, forks
        Slots in a window of the ledger, and how many second views of a window the plan has set aside.
    slots, slots_waiting
        Records taken, and how many of them wait until the features are known.
    null_slots
        Slots without a usable record.
    refused_records
        Records that were not learned from because their entity had enough, or because nobody knows whose they
        are: by entity and slot alone.
    horizon_left
        Slots until it stops to learn; None: no horizon.
    privacy
        The report.
    """

    seed: int | None
    noise_key: Any
    entity: Any
    window: int
    forks: int

    @property
    def slots(self) -> int: ...

    @property
    def slots_waiting(self) -> int: ...

    @property
    def null_slots(self) -> int: ...

    @property
    def refused_records(self) -> int: ...

    @property
    def horizon_left(self) -> int | None: ...

    @property
    def privacy(self) -> Any: ...

    def plan(self) -> Mapping[str, Any] | None:
        """Every number that was fitted, as plain values; None until the features are known."""
        ...

    def load_plan(self, plan: Mapping[str, Any]) -> None:
        """Run under exactly these numbers; before the first record, and before a state is loaded."""
        ...

    def learn_one(self, x: Any, y: Any, origin: Origin | None = None) -> None:
        """Take a slot for a record, which comes from `origin`."""
        ...

    def take_or_raise(self, x: Any, y: Any, origin: Origin | None = None) -> float:
        """`score_one`, then `learn_one`; an error of the score comes before the slot is taken."""
        ...

    def learn_null(self, origin: Origin | None = None) -> None:
        """Take a slot without a record, in the place of one that comes from `origin`."""
        ...

    def bind_noise(self, name: str, digests: list[bytes] | None = None) -> None:
        """Say which learner this is; `digests` gets the digest of every slot."""
        ...

    def charge(self, forks: int, *, vouched: bool = False) -> None:
        """Say how many second views of a window are charged altogether."""
        ...

    def mark(self, *, void: Iterable[str] = (), accepted: Iterable[str] = ()) -> None:
        """Say for good why nothing is guaranteed, or what an operator vouches for, each with its date."""
        ...

    def mark_restarted(self, clean: bool) -> None:
        """Say how the run ended whose state was loaded."""
        ...


def missing(step: object, protocol: type) -> list[str]:
    """What of a protocol the step does not have."""
    names = {
        name
        for kind in protocol.__mro__
        if kind.__module__ == __name__
        for name in (*vars(kind), *inspect.get_annotations(kind))
        if not name.startswith("_")
    }
    return sorted(name for name in names if not hasattr(step, name))


# What a learner may have, and a lane can do without


def positive_label(learner: object, default: object) -> object:
    """The label that the learner ranks high; `default` if it does not say."""
    return getattr(learner, "positive", default)


def two_classes(learner: object) -> bool:
    """Whether it tells one label from the others, so that pairs of the two make its regret."""
    return bool(getattr(learner, "two_classes", True))


def takes_text(learner: object) -> bool:
    """Whether a text is a feature like any other to it, so that a record that it takes may be no numbers."""
    return bool(getattr(learner, "takes_text", False))


def pair_form(learner: object) -> str | None:
    """How two labels and the weights make the margin of a pair: a form of `losses`; None if it has none."""
    form: str | None = getattr(learner, "pair_form", None)
    return form


def label_number(learner: object) -> Callable[[Any], float]:
    """From a label to the number that it is in the margin of a pair; NaN for one that cannot be used."""
    number: Callable[[Any], float] = getattr(learner, "label_number", float)
    return number


def quadratic_many(learner: object) -> Callable[[Any, Sequence[Any]], Any]:
    """From a record and others to the quadratic form of a metric at each of the differences."""
    return cast("Callable[[Any, Sequence[Any]], Any]", getattr(learner, "quadratic_many"))  # noqa: B009


def pair_loss(learner: object) -> Any:
    """The pair loss that it minimises; None if it has none."""
    return getattr(learner, "pair_loss", None)


def comparator_radius(learner: object) -> float:
    """Radius of the ball that its weights are kept in; 1 if it does not say."""
    return float(getattr(learner, "comparator_radius", 1.0))


def design_many(learner: object) -> Callable[[Sequence[Any]], Any] | None:
    """From records to the matrix that its weights multiply; None if it has no such function."""
    return getattr(learner, "design_many", None)


class PreparedBatchProtocol(Protocol):
    """Records that a learner has checked: it scores and learns them one after the other.

    Attributes
    ----------
    admitted
        Once taken, whether each was learned from, by its entity; None where entities are not known.
    refused
        Why the learner cannot use a record, by its index: the error of `score_one`, or else of `learn_one`.
        Such a record is taken as one of `nulls`, and its score means nothing.
    beside
        Once taken, the score of each of the others.
    rows, names
        The records as an array (n, d) whose columns have these names, if all have exactly these features;
        else None. A learner may leave them out.
    """

    beside: Sequence[float]

    @property
    def admitted(self) -> list[bool] | None: ...

    @property
    def refused(self) -> Mapping[int, RecordError]: ...

    def take(self, stops: Sequence[int] = (), others: Sequence[Any] = ()) -> list[float]:
        """The scores, each given before the record is learned.

        `beside` then has the scores of others, which are not learned: each just before the record at its
        stop.
        """
        ...


def prepare_many(learner: object) -> Callable[..., PreparedBatchProtocol | None] | None:
    """From records and labels to what learns them all at once; None if it has no such thing.

    That of a private learner also takes where the records come from: `streampair.privacy.provenance.Origins`.
    The function returns None, with nothing changed, where the records are to be taken one by one.
    """
    return getattr(learner, "prepare_many", None)


def takes_nulls(learner: object) -> bool:
    """Whether `prepare_many` and `prepare_rows` may be given `nulls`: indices of what is not learned from.

    Those are scored, if they are records; then they take the null slot of a private learner, and leave no
    trace in another one.
    """
    return bool(getattr(learner, "takes_nulls", False))


def decode_many(decode: object) -> Callable[[Sequence[Any]], Rows | None] | None:
    """What decodes a whole batch, to what `decode` gives for each; None if it has no such thing."""
    return getattr(decode, "many", None)


def prepare_rows(learner: object) -> Callable[..., PreparedBatchProtocol | None] | None:
    """As `prepare_many`, from the names of the columns, an array of rows and their labels."""
    return getattr(learner, "prepare_rows", None)


def privacy_summary(learner: Any) -> Any:
    """The numbers of its privacy report; the report, if it has no such thing."""
    found = getattr(learner, "privacy_summary", None)
    return learner.privacy if found is None else found


def noise_digest(learner: object) -> bytes:
    """Keyed digest of all that its next noise depends on; empty if it has no such thing."""
    digest: bytes = getattr(learner, "noise_digest", b"")
    return digest


def probabilities_of(learner: object) -> Callable[[Any], Any] | None:
    """From scores (n,) to the probabilities that it gives for them now; None if it has no such function."""
    return getattr(learner, "probabilities_of", None)


def weight_norm(learner: object) -> float | None:
    """L2 norm of its weights; None if it has no table of weights."""
    weights = getattr(learner, "weights", None)
    if not isinstance(weights, Mapping):
        return None
    try:
        return math.sqrt(math.fsum(float(value) ** 2 for value in weights.values()))
    except (TypeError, ValueError, OverflowError):
        return None


def weights_shown(learner: object, most: int) -> tuple[tuple[str, float, float | None], ...]:
    """Its largest weights, by name, each with the standard deviation of the noise in it if that is known.

    Of a metric, whose weights have two names, each once. Empty if it has no table of weights.
    """
    weights, noise = getattr(learner, "weights", None), getattr(learner, "weights_noise", None)
    if not isinstance(weights, Mapping):
        return ()
    found: dict[str, tuple[str, float, float | None]] = {}
    try:
        for name in heapq.nlargest(2 * most, weights, key=lambda name: abs(float(weights[name]))):
            names = sorted(map(str, name)) if isinstance(name, tuple) else [str(name)]
            text = " * ".join(names)
            error = None if noise is None else float(noise[name])
            found.setdefault(text, (text, float(weights[name]), error))
    except (TypeError, ValueError, OverflowError):
        return ()
    return tuple(found.values())[:most]


def buffer_records(learner: object) -> int | None:
    """Records in its buffer; None if it has none."""
    for name in ("buffer_records", "n_buffered"):
        value = getattr(learner, name, None)
        if isinstance(value, int):
            return value
    return None
