"""Protocols of a lane's learner and of the steps in front of it.

The engine imports no learner, and uses nothing of one that is not defined here.

- `SerializableStep`, `Scorer`: raise `RecordError` before they change anything, and save themselves as plain
  values.
- `PrivateModel`: a `Scorer` that takes every record as a slot, and keeps a privacy account.
- Optional features of a learner are read by one function each, below.

There are two tests of privacy. The engine uses ``isinstance(x, PrivateModel)``: can a lane keep the account
of this learner? For the steps of a pipeline, `streampair.privacy.pipeline_check.is_private` takes every
object with a null step for private, so that a refusal errs on the safe side; it does not import the engine.
`engine.pipeline` refuses a learner that passes the second test and not the first, so that no account is left
out silently.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from streampair.engine.records import EventRows
from streampair.errors import RecordError
from streampair.privacy.provenance import Origin

__all__ = [
    "DeferredFits",
    "ExplainedBatchProtocol",
    "PreparedBatchProtocol",
    "PrivateModel",
    "Scorer",
    "SerializableStep",
    "buffer_records",
    "comparator_radius",
    "decode_many",
    "deferred_fits",
    "design_many",
    "explain_rows",
    "label_number",
    "largest_weights",
    "missing",
    "noise_digest",
    "pair_form",
    "pair_loss",
    "positive_label",
    "prepare_many",
    "prepare_rows",
    "probabilities_of",
    "quadratic_many",
    "score_rows",
    "takes_nulls",
    "takes_text",
    "two_classes",
    "weight_norm",
]


@runtime_checkable
class SerializableStep(Protocol):
    """An estimator that raises before it changes anything, and whose state is plain values."""

    def to_state(self) -> dict[str, object]:
        """The learned state, as plain values and arrays."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a step with the same parameters."""
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
        Of the noise; None: unpredictable noise. A fixed seed gives no privacy.
    noise_key
        None, or the key that makes the noise a function of the learned records.
    entity
        None, or the limit on records of one entity.
    window, forks
        Slots in a window of the ledger, and how many forks the budget covers.
    slots, slots_waiting
        Records taken, and how many of them wait until the features are known.
    null_slots
        Slots without a usable record.
    refused_records
        Records not learned from because their entity exceeded its limit, or because they have no entity: a
        function of entity and slot alone.
    horizon_left
        Slots until it stops learning; None: no horizon.
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
        """All fitted numbers of the plan, as plain values; None until the features are known."""
        ...

    def load_plan(self, plan: Mapping[str, Any]) -> None:
        """Use exactly this plan; call before the first record, and before a state is loaded."""
        ...

    def learn_one(self, x: Any, y: Any, origin: Origin | None = None) -> None:
        """Take a slot for a record, which comes from `origin`."""
        ...

    def take_or_raise(self, x: Any, y: Any, origin: Origin | None = None) -> float:
        """`score_one`, then `learn_one`; an error of the score comes before the slot is taken."""
        ...

    def learn_null(self, origin: Origin | None = None) -> None:
        """Take a null slot in place of a record that comes from `origin`."""
        ...

    def bind_noise(self, name: str, digests: list[bytes] | None = None) -> None:
        """Bind the noise to this learner's name; `digests` receives the digest of every slot."""
        ...

    def charge(self, forks: int, *, vouched: bool = False) -> None:
        """Set how many forks are charged in total."""
        ...

    def mark(self, *, void: Iterable[str] = (), accepted: Iterable[str] = ()) -> None:
        """Record permanently why the guarantee is void, or what an operator vouches for, with its date."""
        ...

    def mark_restarted(self, clean: bool) -> None:
        """Record whether the run whose state was loaded ended cleanly."""
        ...


def missing(step: object, protocol: type) -> list[str]:
    """Names of a protocol that the step lacks."""
    names = {
        name
        for kind in protocol.__mro__
        if kind.__module__ == __name__
        for name in (*vars(kind), *inspect.get_annotations(kind))
        if not name.startswith("_")
    }
    return sorted(name for name in names if not hasattr(step, name))


# Optional features of a learner


def positive_label(learner: object, default: object) -> object:
    """The learner's positive label; `default` if it has none."""
    return getattr(learner, "positive", default)


def two_classes(learner: object) -> bool:
    """Whether it ranks one label above the others, so that its regret is over pairs of the two."""
    return bool(getattr(learner, "two_classes", True))


def takes_text(learner: object) -> bool:
    """Whether it accepts text features, so that its records need not be numeric."""
    return bool(getattr(learner, "takes_text", False))


def pair_form(learner: object) -> str | None:
    """Form of the margin of a pair, as `streampair.losses` names it; None if it has none."""
    form: str | None = getattr(learner, "pair_form", None)
    return form


def label_number(learner: object) -> Callable[[Any], float]:
    """Function from a label to its number in the margin of a pair; NaN for an unusable label."""
    number: Callable[[Any], float] = getattr(learner, "label_number", float)
    return number


def quadratic_many(learner: object) -> Callable[[Any, Sequence[Any]], Any]:
    """Function from a record and others to the metric's quadratic form of each difference."""
    return cast("Callable[[Any, Sequence[Any]], Any]", getattr(learner, "quadratic_many"))  # noqa: B009


def pair_loss(learner: object) -> Any:
    """The pair loss that it minimises; None if it has none."""
    return getattr(learner, "pair_loss", None)


def comparator_radius(learner: object) -> float:
    """Radius of the ball that its weights are projected onto; 1 if it does not say."""
    return float(getattr(learner, "comparator_radius", 1.0))


def design_many(learner: object) -> Callable[[Sequence[Any]], Any] | None:
    """Function from records to the design matrix that its weights multiply; None if it has none."""
    return getattr(learner, "design_many", None)


class PreparedBatchProtocol(Protocol):
    """A batch that a learner has validated, and scores and learns one record after the other.

    Attributes
    ----------
    admitted
        Once taken, whether each was learned from, by its entity; None where entities are not known.
    refused
        Why the learner cannot use a record, by its index: the error of `score_one`, or else of `learn_one`.
        Such a record is taken as one of `nulls`, and its score means nothing.
    other_scores
        Once taken, the score of each of the others.
    rows, names
        The records as an array (n, d) whose columns have these names, if all have exactly these features;
        else None. A learner may leave them out.
    """

    other_scores: Sequence[float]

    @property
    def admitted(self) -> list[bool] | None: ...

    @property
    def refused(self) -> Mapping[int, RecordError]: ...

    def take(self, stops: Sequence[int] = (), others: Sequence[Any] = ()) -> list[float]:
        """The scores, each given before the record is learned.

        `other_scores` then has the scores of others, which are not learned, each taken just before the
        record at its stop.
        """
        ...


@runtime_checkable
class ExplainedBatchProtocol(PreparedBatchProtocol, Protocol):
    """A prepared batch that can explain its scores."""

    def take_explained(
        self, count: int, stops: Sequence[int] = (), others: Sequence[Any] = ()
    ) -> tuple[list[float], list[list[tuple[str, float]]]]:
        """As `take`, and the largest contributions to each score, at most so many, by feature."""
        ...


def prepare_many(learner: object) -> Callable[..., PreparedBatchProtocol | None] | None:
    """Function from records and labels to a prepared batch; None if the learner has none.

    That of a private learner also takes the records' `streampair.privacy.provenance.Origins`. The function
    returns None, with nothing changed, where the records are to be taken one by one.
    """
    return getattr(learner, "prepare_many", None)


def takes_nulls(learner: object) -> bool:
    """Whether `prepare_many` and `prepare_rows` take `nulls`: indices of records that are not learned.

    They are scored if they are records. Each takes a null slot of a private learner; in other learners it
    changes nothing.
    """
    return bool(getattr(learner, "takes_nulls", False))


def decode_many(decode: object) -> Callable[[Sequence[Any]], EventRows | None] | None:
    """The decoder's batch form, which gives what `decode` gives for each record; None if it has none."""
    return getattr(decode, "many", None)


def prepare_rows(learner: object) -> Callable[..., PreparedBatchProtocol | None] | None:
    """As `prepare_many`, from the names of the columns, an array of rows and their labels."""
    return getattr(learner, "prepare_rows", None)


def score_rows(learner: object) -> Callable[[Sequence[Any], Any], Any] | None:
    """Function from the names of the columns and an array of rows to their scores; None: it has none."""
    return getattr(learner, "score_rows", None)


class DeferredFits(Protocol):
    """A learner whose models can be computed by its caller, as `PrivateLearner` says."""

    def defer_fits(self, releases: Collection[int] = ()) -> None:
        """Leave slow models to the caller; keep what is needed for those of `releases`."""
        ...

    def fit_due(self, release: int | None = None) -> Any:
        """Number of the release, and the function that computes its model; None: there is nothing to do."""
        ...

    def adopt(self, release: int, model: Any) -> None:
        """Score with this model."""
        ...


def deferred_fits(learner: object) -> DeferredFits | None:
    """The learner, if its models can be computed by its caller."""
    return cast("DeferredFits", learner) if hasattr(learner, "defer_fits") else None


def privacy_summary(learner: Any) -> Any:
    """The numbers of its privacy report; the whole report if it has no summary."""
    found = getattr(learner, "privacy_summary", None)
    return learner.privacy if found is None else found


def noise_digest(learner: object) -> bytes:
    """Keyed digest of everything that its next noise depends on; empty if it has none."""
    digest: bytes = getattr(learner, "noise_digest", b"")
    return digest


def probabilities_of(learner: object) -> Callable[[Any], Any] | None:
    """Function from scores (n,) to its current probabilities; None if it has none."""
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


def largest_weights(learner: object, most: int) -> tuple[tuple[str, float, float | None], ...]:
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


def explain_rows(
    learner: object,
) -> Callable[[Sequence[Any], Any, int], tuple[list[float], list[Any]]] | None:
    """Function from names of columns, an array of rows and a number k to the scores and their k reasons."""
    return getattr(learner, "explain_rows", None)
