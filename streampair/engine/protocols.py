"""What a lane asks of a learner and of the steps in front of it.

The engine imports no learner, and uses nothing of one that is not named here.

- `SerializableStep`: raises `RecordError` before it changes anything, and saves itself as plain values.
- `Scorer`: a step of this kind that learns and scores.
- `LaneLearner`: all that a lane uses of a learner: scores, batches, weights, and what its regret is of. Every
  learner of streampair is one. `streampair.engine.foreign.ForeignLearner` makes one of any other estimator.
- `ClassLearner`, `MetricLearner`, `ExplainingLearner`: what some learners can do besides.
- `PrivateModel`: a `Scorer` that takes every record as a slot, and keeps a privacy account.

    learner = estimator if isinstance(estimator, LaneLearner) else ForeignLearner(estimator, positive=True)
    learner.scaled_weights, learner.two_classes

There are two tests of privacy. The engine uses ``isinstance(x, PrivateModel)``: can a lane keep the account
of this learner? For the steps of a pipeline, `streampair.privacy.pipeline_check.is_private` takes every
object with a null step for private, so that a refusal errs on the safe side; it does not import the engine.
`engine.pipeline` refuses a learner that passes the second test and not the first, so that no account is left
out silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from streampair.engine.records import EventRows
from streampair.errors import RecordError
from streampair.privacy.provenance import Origin

__all__ = [
    "ClassLearner",
    "DeferredFits",
    "ExplainedBatchProtocol",
    "ExplainingLearner",
    "LaneLearner",
    "ManyDecoder",
    "MetricLearner",
    "PreparedBatchProtocol",
    "PrivateModel",
    "Scorer",
    "SerializableStep",
    "missing",
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


@runtime_checkable
class LaneLearner(Protocol):
    """A learner with all that a lane uses of it, as every learner of streampair is.

    Attributes
    ----------
    two_classes
        Whether it ranks one label above the others, so that its regret is over pairs of the two.
    takes_text
        Whether it accepts text features, so that its records need not be numeric.
    takes_nulls
        Whether texts are indicators to it, and None a missing value.
    pair_form
        Form of the margin of a pair, as `streampair.losses` names it; None if it has none.
    pair_loss
        The pair loss that it minimises; None if it has none.
    comparator_radius
        Radius of the ball that its weights are projected onto.
    label_number
        Function from a label to its number in the margin of a pair; NaN for an unusable label.
    comparator_design
        Function from records to the matrix that the weights of a comparator multiply; None if it has none.
    scaled_weights
        Its weights by the name of their feature, or of the two of a metric, in units of the features as it
        scales them; None if it has no such table.
    weights_noise
        Standard deviation of the noise in each weight; None if it is not known.
    buffer_records
        Records in its buffer; None if it has none.
    prepare_many
        Function from records and labels to a prepared batch; that of a private learner also takes the
        records' `streampair.privacy.provenance.Origins`. Its ``nulls`` are indices of records that are not
        learned: they are scored if they are records, and each takes a null slot of a private learner. It
        returns None, with nothing changed, where the records are to be taken one by one. None: they always
        are.
    prepare_rows
        As `prepare_many`, from the names of the columns, an array of rows and their labels.
    score_rows
        Function from the names of the columns and an array of rows to their scores; None if it has none.
    """

    def learn_one(self, x: Any, y: Any) -> object:
        """Learn one record."""
        ...

    def score_one(self, x: Any) -> float:
        """Score of one record; higher ranks higher, except for a metric."""
        ...

    @property
    def two_classes(self) -> bool: ...

    @property
    def takes_text(self) -> bool: ...

    @property
    def takes_nulls(self) -> bool: ...

    @property
    def pair_form(self) -> str | None: ...

    @property
    def pair_loss(self) -> Any: ...

    @property
    def comparator_radius(self) -> float: ...

    @property
    def label_number(self) -> Callable[[Any], float]: ...

    @property
    def comparator_design(self) -> Callable[[Sequence[Any]], Any] | None: ...

    @property
    def scaled_weights(self) -> Mapping[Any, float] | None: ...

    @property
    def weights_noise(self) -> Mapping[Any, float] | None: ...

    @property
    def buffer_records(self) -> int | None: ...

    @property
    def prepare_many(self) -> Callable[..., PreparedBatchProtocol | None] | None: ...

    @property
    def prepare_rows(self) -> Callable[..., PreparedBatchProtocol | None] | None: ...

    @property
    def score_rows(self) -> Callable[[Sequence[Any], Any], Any] | None: ...


@runtime_checkable
class ClassLearner(Protocol):
    """A learner that ranks records of the label `positive` above others."""

    positive: Any

    def probabilities_of(self, scores: Any) -> Any:
        """Its current probabilities at scores (n,)."""
        ...


@runtime_checkable
class MetricLearner(Protocol):
    """A learner of distances between records."""

    def quadratic_many(self, x: Any, others: Sequence[Any]) -> Any:
        """The metric's quadratic form of the difference of a record from each of the others."""
        ...


@runtime_checkable
class ExplainingLearner(Protocol):
    """A learner that can explain the scores of rows.

    Attributes
    ----------
    explain_rows
        Function from names of columns, an array of rows and a number k to the scores and their k reasons;
        None: it explains them one by one.
    """

    @property
    def explain_rows(
        self,
    ) -> Callable[[Sequence[Any], Any, int], tuple[list[float], list[Any]]] | None: ...


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
    privacy, privacy_summary
        The report, and its numbers without the texts.
    noise_digest
        Keyed digest of everything that its next noise depends on; empty without a key or a slot.
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

    @property
    def privacy_summary(self) -> Any: ...

    @property
    def noise_digest(self) -> bytes: ...

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


@runtime_checkable
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


@runtime_checkable
class ManyDecoder(Protocol):
    """A decoder with a batch form.

    Attributes
    ----------
    many
        Gives what the decoder gives for each record, as an array; None where they are to be decoded one by
        one.
    """

    @property
    def many(self) -> Callable[[Sequence[Any]], EventRows | None]: ...


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
