"""A model as a lane uses it: its preprocessing steps and its learner, with scoring, learning, rollback and
serialisation.

A lane holds any River estimator or pipeline. Three kinds of step matter here:

- *stateless*: a function of one record. Nothing to copy, nothing to save, safe in front of a private learner;
- *own*: an estimator of streampair. Raises `RecordError` before any change, saves itself as plain values;
- *foreign*: everything else. May fail half-way through a change, so it is rolled back from a copy. Those in
  the table `streampair.steps` are saved as plain values, all others by pickle.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import pickle  # only ever loads what a signature vouches for, see PipelineAdapter.load
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import numpy as np
from river import base, compose

from streampair.engine.foreign import ForeignLearner, finite_score
from streampair.engine.protocols import (
    ClassLearner,
    ExplainingLearner,
    LaneLearner,
    PrivateModel,
    SerializableStep,
    missing,
)
from streampair.errors import ConfigError, PrivacyError, RecordError, SnapshotError, SourceError
from streampair.privacy.pipeline_check import (
    check_pipeline,
    class_name,
    is_private,
    is_stateless,
    is_total,
    private_inside,
    walk,
)
from streampair.privacy.provenance import Origin
from streampair.steps import first_input, in_fixed_order, kind_of, load_step, save_step, transformer

__all__ = ["PipelineAdapter", "check_explains", "largest_parts"]

# Events between two copies of a fragile model. A rollback learns the events since the last copy again.
_RELEARNED: Final = 500


class PipelineAdapter:
    """Adapter of a learner or a pipeline to a lane.

    Parameters
    ----------
    model
        An estimator, or a `river.compose.Pipeline` whose last step can score.
    positive
        The label whose score is wanted from a classifier of River.
    trust_preprocessing
        Accept steps that learn from the stream in front of a private learner.
    classes
        Whether labels are of any number of classes; `score_event` then gives the probabilities of all
        classes that a multiclass classifier knows.
    explain
        Number of contributions that each score has; 0: none.

    Raises
    ------
    ConfigError
        If the model cannot score, cannot be copied, or cannot explain its scores as asked.
    PrivacyError
        If a private learner stands where its guarantee would not hold (docs/privacy 7).
    """

    def __init__(
        self,
        model: Any,
        *,
        positive: object,
        trust_preprocessing: bool = False,
        classes: bool = False,
        explain: int = 0,
    ) -> None:
        self.steps: dict[str, Any] = (
            dict(model.steps) if isinstance(model, compose.Pipeline) else {type(model).__name__: model}
        )
        if not self.steps:
            raise ConfigError("the pipeline has no steps", fix="add a learner as its last step")
        self.positive = positive
        self._last = list(self.steps)[-1]
        #: The last step.
        self.learner: Any = self.steps[self._last]
        #: Whether its scores rank events; a metric's scores are distances, which do not.
        self.ranks = not isinstance(self.learner, base.Transformer)
        #: The learner, if it keeps a privacy account; never exchanged, as it is one of ours.
        self.private: PrivateModel | None = _private(self.learner)
        #: Void because of a step that learns in front of a private learner.
        self.untrusted: str | None = None
        if self.private is not None or any(
            is_private(step) or private_inside(step) for _, step, _, _ in self._leaves()
        ):
            trusted = check_pipeline(model, trust_preprocessing=trust_preprocessing, one_by_one=True)
            self.untrusted = next(iter(trusted), None)
        leaves = [(path, step) for path, step, _, _ in self._leaves()]
        for step in self.steps.values():
            in_fixed_order(step)
        #: Steps that only pickle can save.
        self.pickled = [path for path, step in leaves if _saved_as(step) == "pickle"]
        #: Whether a step in front of the learner learns from the stream.
        self.front_learns = any(not is_stateless(step) for path, step in leaves[:-1])
        self._learner_foreign = not isinstance(self.learner, SerializableStep)
        #: Whether code that is not ours runs, which may raise anything.
        self.foreign = self._learner_foreign or any(
            not isinstance(step, SerializableStep) for _, step in leaves[:-1]
        )
        #: Whether a failed event can leave a change behind, so that a copy is needed.
        self.fragile = self.front_learns or self._learner_foreign
        # Asked once: an exchanged step is of the same class.
        self._is_lane_learner = isinstance(self.learner, LaneLearner)
        several = isinstance(self.learner, base.Classifier) and self.learner._multiclass
        #: Whether outputs have the probability of each class.
        self.several = classes and several
        #: Number of contributions that outputs have with each score.
        self.explain = explain
        if explain:
            check_explains(self.learner)
        self._saved: dict[str, Any] = {}
        self._since: list[tuple[Any, Any, int]] = []
        self.bind()
        if self.fragile:
            try:
                self._copy()
                self._saved = {}
            except Exception as error:
                raise ConfigError(
                    f"the model cannot be copied, so a bad event could not be rolled back ({error})",
                    fix="use an estimator that copy.deepcopy can copy",
                ) from error

    @property
    def probabilities(self) -> Callable[[Any], Any] | None:
        """Function from scores to the learner's current probabilities; None: it gives none."""
        if self._score_method == "predict_proba_one":
            return lambda scores: scores
        return self.learner.probabilities_of if isinstance(self.learner, ClassLearner) else None

    @property
    def takes_rows(self) -> bool:
        """Whether the learner takes whole batches: one of streampair, behind steps that learn nothing.

        A batch gives no probabilities of several classes.
        """
        return self.prepare_many is not None and not self.fragile and not self.several

    @property
    def whole(self) -> Any:
        """The model as the user gave it; for a pipeline a new one around the same steps."""
        if len(self.steps) == 1:
            return self.learner
        return compose.Pipeline(*self.steps.items())

    def bind(self) -> None:
        """Build the functions of the hot loop; again after every exchange of a step."""
        learner = self.learner = self.steps[self._last]
        front = [step for name, step in self.steps.items() if name != self._last]
        self.transform: Callable[[Any], Any] | None = self._transformer()
        #: Function from an event's record to what `score_event` takes: all that can be done before others are
        #: learned. None: the record itself.
        self.features = None if self.front_learns else self.transform
        if self.fragile:
            self.features = _after(first_input(self.steps.values()), self.features)
        #: Whether scoring and learning is `score` and `learn`, of what `features` gives.
        self.plain = self.private is None and not self.front_learns and not self.several
        self._score_method = "score_one"
        #: The last step as a lane asks it.
        self.lane_learner: LaneLearner = learner
        if not self._is_lane_learner:
            self.lane_learner = foreign = ForeignLearner(learner, positive=self.positive)
            self._score_method = foreign.score_method
        used = self.lane_learner
        self.score: Callable[[Any], float] = used.score_one
        self.learn: Callable[[Any, Any], object] = used.learn_one
        self.prepare_many, self.prepare_rows = used.prepare_many, used.prepare_rows
        self.score_rows = used.score_rows
        explains = self.explain and isinstance(learner, ExplainingLearner)
        self.explain_rows = learner.explain_rows if explains else None
        self._front = front
        self._takes_time = any(map(takes_time, front))

    def _transformer(self) -> Callable[[Any], Any] | None:
        """Function of the steps that transform; None: there are none."""
        front = {
            name: step
            for name, step in self.steps.items()
            if name != self._last and not isinstance(step, base.AnomalyFilter)
        }
        if not front:
            return None
        if self.private is None:
            return transformer(front)
        if len(front) == 1:
            (transform,) = (step.transform_one for step in front.values())
        else:
            transform = _in_turn([step.transform_one for step in front.values()])
        return transform if all(map(is_total, front.values())) else _costing_one_record(transform)

    def reasons(self, z: Any) -> list[tuple[str, float]] | None:
        """The largest contributions to the score of a transformed record; None: none are requested."""
        return largest_parts(self.learner.explain_one(z).features, self.explain) if self.explain else None

    def score_event(self, x: dict[str, Any]) -> tuple[Any, float | None, dict[Any, float] | None]:
        """The record as the learner sees it, its score, and probabilities by class if there are `several`.

        `x` is what `features` gives. There is no score while a step in front has learned too little to make
        finite numbers of a finite record, as River's MinMaxScaler before its first one. Such a record can be
        learned.
        """
        z = x
        if self.front_learns:
            z = x if self.transform is None else self.transform(x)
            if any(isinstance(v, float) and not math.isfinite(v) for v in z.values()):
                return z, None, None
        return (z, *self._score_classes(z)) if self.several else (z, self.score(z), None)

    def _score_classes(self, z: Any) -> tuple[float, dict[Any, float]]:
        learner = self.learner
        if self._score_method == "predict_one":  # it has no probabilities, only a vote
            vote = learner.predict_one(z)
            return float(vote == self.positive), {} if vote is None else {vote: 1.0}
        probabilities = {label: finite_score(p, learner) for label, p in learner.predict_proba_one(z).items()}
        has_score = self._score_method == "score_one"
        return self.score(z) if has_score else probabilities.get(self.positive, 0.0), probabilities

    def learn_event(self, x: Any, z: Any, y: object, origin: Origin, timestamp: int = 0) -> bool:
        """Learn a record `x`, which the learner sees as `z`.

        Steps in front learn before the learner, in the order of `river.compose.Pipeline.learn_one`. Those
        whose `learn_one` has a parameter `t` get `timestamp`, milliseconds since the epoch, as a datetime in
        UTC without a time zone, as those of River. A private learner also gets the record's origin.

        Returns
        -------
        bool
            False if an anomaly filter in the pipeline kept the event from the learner.
        """
        if self.front_learns:
            z, passed = self._learn_front(x, y, timestamp)
            if not passed:
                return False
        if self.private is None:
            self.learn(z, y)
        else:
            self.private.learn_one(z, y, origin)
        return True

    def _learn_front(self, x: Any, y: object, timestamp: int) -> tuple[Any, bool]:
        # A datetime without a time zone: River compares it with `datetime.min`.
        t = np.datetime64(timestamp, "ms").item() if self._takes_time else None
        for step in self._front:
            if isinstance(step, base.AnomalyFilter):
                if step._supervised:
                    step.learn_one(x, y)
                    score = step.score_one(x, y)
                else:
                    step.learn_one(x)
                    score = step.score_one(x)
                if step.classify(score):
                    return x, False
                continue
            parts = list(step.transformers.values()) if isinstance(step, compose.TransformerUnion) else [step]
            for part in parts:
                if not part._supervised:
                    part.learn_one(x, **_time_of(part, t))
            # A supervised transformer must not see the label of x before it has transformed x.
            z = step.transform_one(x)
            for part in parts:
                if part._supervised:
                    part.learn_one(x, y, **_time_of(part, t))
            x = z
        return x, True

    # Rolling back

    def checkpoint(self) -> None:
        """Copy the steps that an error can leave half changed, unless there is a copy that is new enough."""
        if not self._saved or len(self._since) >= _RELEARNED:
            self._copy()

    def _copy(self) -> None:
        self._since = []
        self._saved = copy.deepcopy(
            {
                name: step
                for name, step in self.steps.items()
                if (self._learner_foreign if name == self._last else self.front_learns)
            }
        )

    def remember(self, events: Iterable[tuple[Any, Any, int]]) -> None:
        """Note events that were learned since the copy: what `features` gave, the label, the timestamp."""
        self._since.extend(events)

    def rollback(self) -> None:
        """Go back to the copy, and learn the events since then again, but for one that failed.

        A learner of streampair is neither copied nor replayed: it raises before it changes anything, and a
        private one must not make its releases twice.
        """
        self.steps.update(self._saved)
        self.bind()
        for x, y, timestamp in self._since:
            z, passed = self._learn_front(x, y, timestamp) if self.front_learns else (x, True)
            if passed and self._learner_foreign:
                self.learn(z, y)
        self._copy()

    def is_bad_event(self, error: Exception, stage: str) -> bool:
        """Whether an error is about the event. Any other error is ours, and must stop the lane.

        Parameters
        ----------
        error
            What was raised.
        stage
            Where, as of `DeadLetter`.
        """
        # A SourceError: a schema could not be fetched, which says nothing about the event.
        if isinstance(error, MemoryError | PrivacyError | SourceError):
            return False
        if isinstance(error, ConfigError) and self.private is not None:
            return True  # parameters were checked before: this record has unknown or too many features
        return isinstance(error, RecordError) or stage in ("decode", "label") or self.foreign

    # Saving

    def save(self) -> list[dict[str, object]]:
        """Export the state, one entry a step; see `load`."""
        entries: list[dict[str, object]] = []
        for path, step, _, _ in self._leaves():
            entry: dict[str, object] = {"path": path, "class": class_name(step)}
            entry["kind"] = kind = _saved_as(step)
            if kind == "state":
                entry["state"] = step.to_state()
            elif kind == "step":
                entry["state"] = save_step(step)
            elif kind == "pickle":
                entry["data"] = _dumps(step, path)
            entries.append(entry)
        return entries

    def load(self, entries: list[dict[str, Any]], *, verified: bool) -> None:
        """Put saved state into the steps.

        Parameters
        ----------
        entries
            What `save` returned.
        verified
            Whether a signature vouches for the entries. Without it nothing is unpickled.

        Raises
        ------
        SnapshotError
            If the entries belong to other steps, or hold a pickle that nothing vouches for.
        """
        leaves = list(self._leaves())
        saved = [(e["path"], e["class"]) for e in entries]
        ours = [(path, class_name(step)) for path, step, _, _ in leaves]
        if saved != ours:
            raise SnapshotError(
                f"the snapshot holds the steps {_names(saved)}, this lane has {_names(ours)}",
                fix="restore with the model that wrote it, or start the new model under another app name",
            )
        for entry, (path, step, _, _) in zip(entries, leaves, strict=True):
            kind = _saved_as(step)
            if entry["kind"] != kind:
                raise SnapshotError(
                    f"the step {path} was saved as {entry['kind']!r}, this release reads {kind!r}",
                    fix="restore with the release that wrote it",
                )
            if kind == "pickle" and not verified:
                raise SnapshotError(
                    f"the step {path} was saved with pickle, and nothing vouches for it",
                    fix="give the lane allow_pickle=True and the signing key of the snapshot",
                )
        for entry, (path, step, holder, key) in zip(entries, leaves, strict=True):
            _load_entry(entry, path, step, holder, key)
        for step in self.steps.values():
            _forget_plans(step)
        self._saved = {}
        self.bind()

    def check_pickle(self) -> None:
        """Find out at the start, not at the first snapshot, that a step cannot be pickled.

        Raises
        ------
        ConfigError
        """
        for path, step, _, _ in self._leaves():
            if path in self.pickled:
                try:
                    _dumps(step, path)
                except SnapshotError as error:
                    raise ConfigError(error.problem, fix=error.fix) from error

    # Inside

    def _leaves(self) -> Iterator[tuple[str, Any, MutableMapping[str, Any], str]]:
        """(path, step, the mapping that holds it, its key there), the learner last."""
        yield from walk(self.steps)


def _saved_as(step: object) -> str:
    """How a step is saved: by itself (`"state"`), by the table (`"step"`), by pickle, or not at all."""
    if is_stateless(step):
        return "none"
    if isinstance(step, SerializableStep):
        return "state"
    return "pickle" if kind_of(step) is None else "step"


def _load_entry(
    entry: Mapping[str, Any], path: str, step: Any, holder: MutableMapping[str, Any], key: str
) -> None:
    """Restore one step; a pickle is vouched for."""
    if entry["kind"] == "state":
        step.load_state(entry["state"])
    elif entry["kind"] == "step":
        try:
            load_step(step, entry["state"])
        except ValueError as error:
            raise SnapshotError(
                f"the state of the step {path} cannot be restored: {error}",
                fix="restore with the model that wrote it, or start the new model under another app name",
            ) from None
    elif entry["kind"] == "pickle":
        try:
            holder[key] = pickle.loads(entry["data"])  # noqa: S301  (signed, checked by the caller)
        except Exception as error:
            raise SnapshotError(
                f"the step {path} cannot be unpickled ({type(error).__name__}: {error})",
                fix="restore with the versions of Python and River that wrote it",
            ) from error


def check_explains(learner: object) -> None:
    """Refuse a learner that has no `explain_one`.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> from streampair import auc
    >>> from streampair.engine.pipeline import check_explains
    >>> check_explains(auc.Forest())
    """
    if not hasattr(learner, "explain_one"):
        raise ConfigError(
            f"{type(learner).__name__} does not explain its scores",
            fix="use a forest or a linear learner without privacy, or leave explain out",
        )


def largest_parts(features: Mapping[Any, float], count: int) -> list[tuple[str, float]]:
    """The contributions that are largest in absolute value, the largest first, and none of 0.

    Parameters
    ----------
    features
        Contribution of each feature. A name that is no text is written as text.
    count
        How many at most.

    Examples
    --------
    >>> from streampair.engine.pipeline import largest_parts
    >>> largest_parts({"a": 0.1, "b": -0.4, "c": 0.2, "d": 0.0}, 2)
    [('b', -0.4), ('c', 0.2)]
    """
    parts = sorted(features.items(), key=lambda part: abs(part[1]), reverse=True)[:count]
    return [(name if isinstance(name, str) else str(name), value) for name, value in parts if value]


def takes_time(step: Any) -> bool:
    """Whether a step of River, or a part of it, learns with the time of an event, as `Agg` may."""
    if isinstance(step, compose.Pipeline):
        return any(map(takes_time, step.steps.values()))
    if isinstance(step, compose.TransformerUnion):
        return any(map(takes_time, step.transformers.values()))
    return _has_time(type(step).learn_one) if hasattr(step, "learn_one") else False


@functools.cache
def _has_time(learn_one: Callable[..., object]) -> bool:
    return "t" in inspect.signature(learn_one).parameters


def _time_of(step: Any, t: Any) -> dict[str, Any]:
    return {} if t is None or not takes_time(step) else {"t": t}


def _private(learner: object) -> PrivateModel | None:
    """The learner, if it is private."""
    if isinstance(learner, PrivateModel):
        return learner
    if is_private(learner):
        raise ConfigError(
            f"{type(learner).__name__} is private, and a lane cannot keep its account: it lacks "
            + ", ".join(missing(learner, PrivateModel)),
            fix="implement streampair.engine.protocols.PrivateModel",
        )
    return None


def _forget_plans(step: Any) -> None:
    """A River pipeline caches its steps; an exchanged step would go unnoticed."""
    if isinstance(step, compose.Pipeline):
        step._plan = None
        for inner in step.steps.values():
            _forget_plans(inner)
    elif isinstance(step, compose.TransformerUnion):
        for inner in step.transformers.values():
            _forget_plans(inner)


def _after(
    first: Callable[[Any], Any] | None, features: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    if first is None or features is None:
        return first or features
    return lambda x: features(first(x))


def _in_turn(methods: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def transform(x: Any) -> Any:
        for method in methods:
            x = method(x)
        return x

    return transform


def _costing_one_record(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turn every error of a step in front of a private learner into a `RecordError` without values.

    This includes `MemoryError`: a single record can make a step ask for too much memory.
    """

    def guarded(x: Any) -> Any:
        try:
            return transform(x)
        except RecordError:
            raise
        except Exception as error:
            raise RecordError(
                f"a step in front of the learner cannot transform the record ({type(error).__name__})",
                fix="send what the step needs, or look at the record in the dead letters",
            ) from None

    return guarded


def _names(pairs: list[tuple[str, str]]) -> str:
    return ", ".join(f"{path} ({cls.rpartition('.')[2]})" for path, cls in pairs)


def _dumps(step: object, path: str) -> bytes:
    try:
        return pickle.dumps(step, protocol=5)
    except Exception as error:
        raise SnapshotError(
            f"the step {path} cannot be pickled ({type(error).__name__}: {error})",
            fix="replace functions defined in place by importable ones, or use an estimator that pickles",
        ) from error
