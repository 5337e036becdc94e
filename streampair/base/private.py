"""The base class of private learners: every record takes a slot, and models are released under noise.

A learner is a dataclass of its parameters, and says with `_select` which mechanism they ask for. From the
budget to the noise it is four steps, of which the first three happen once:

1. `ValidatedParameters` checks the parameters. Its `settings` are the promise: mechanism, budget, horizon.
2. `Mechanism.start` makes a plan from the settings, a value that says what noise it adds, and what the
   releases up to a slot have cost; and with it the state of the mechanism.
3. `PrivateSession` holds that state, the design (how a record becomes a vector) and the stream of noise. It
   needs the features: where none are declared, an `UninitializedSession` waits for a record that names them.
4. A record goes from `learn_one` to `PrivateSession.take`, which prepares it and takes one slot for it,
   whatever is in it, and on to `MechanismState.take`, which adds it to its sums and, where a release is
   due, adds noise from the stream. Nothing else computes the models.

`PrivateState` has the session, and all else that changes. Scores and reports are computed from what was
released.

>>> from streampair import auc
>>> model = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000, features=["a"], warmup=100)
>>> model.settings.mechanism, model.settings.warmup
(Moments(), 100)
>>> plan = model.run.state.plan
>>> plan.mu_spent(0), plan.mu_spent(900) <= model.settings.mu
(0.0, True)
>>> for i in range(1000):
...     model.learn_one({"a": (i % 10 - 5) / 5}, i % 10 > 5)
>>> model.run.slots, model.run.state.steps, model.run.state.releases == model.privacy.releases - 1
(1000, 900, True)
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.base.dp_session import Identity, PrivateSession, PrivateState
from streampair.base.learner import Learner
from streampair.base.mini_batch import PreparedBatch, refuse_rows, score_error
from streampair.base.start_model import StartModel
from streampair.base.targets import is_unknown
from streampair.base.validation import ValidatedParameters
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import vectors
from streampair.privacy.accounting import PrivacyReport, warn_if_doubtful
from streampair.privacy.mechanisms.base import Link, Mechanism, ModelFit, Settings
from streampair.privacy.noise import NoiseKey
from streampair.privacy.provenance import Origin, Origins
from streampair.privacy.report import PrivacySummary, build_report, build_summary
from streampair.privacy.user_level import EntityLimit
from streampair.records import features as _features
from streampair.records.frames import FeatureTable, label_type

__all__ = ["PrivateLearner"]

Array = NDArray[np.float64]
_NOBODY = Origins()


@dataclass(eq=False, repr=False)
class PrivateLearner(Learner):
    """A learner that takes every record as a slot and releases models under calibrated noise.

    A leaf names, as its `_select`, which mechanism its parameters ask for (`base.validation`).
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    horizon: int | None = None
    _: KW_ONLY
    radius: float | None = None
    features: Sequence[Hashable] | None = None
    bounds: Mapping[Hashable, tuple[float, float]] | None = None
    warmup: int | None = None
    noise_key: Any = None
    seed: int | None = None
    forks: int = 0
    window: int = 4096
    entity: EntityLimit | None = None

    _select: ClassVar[Callable[[Any, Sequence[Hashable] | None], Mechanism]]

    # What is released, for the report.
    _product: ClassVar[str] = "weights of a linear scorer"
    # Predictions show labels that were declared, and none that a record brought.
    _learns_labels: ClassVar[bool] = False
    # A cell that is no number makes a null slot, not an error.
    _strict_frames: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # The one parameter that is not stored as it came: bytes would show in a repr.
        self.noise_key = NoiseKey.of(self.noise_key)
        self._task = self._make_task()
        self._warned = False
        # Whether `take` may score and learn in one: both calls are those of this class.
        cls, base = type(self), PrivateLearner
        self._one_packing = (cls.score_one, cls.learn_one, cls.take, cls.take_or_raise) == (
            *(base.score_one, base.learn_one, base.take, base.take_or_raise),
        )
        identity = Identity(self.noise_key, self.seed, lambda: sorted(self._fingerprint().items()))
        self._private = PrivateState(ValidatedParameters(self, self._task), identity)
        self._private.begin()
        horizon = self._private.session.settings.horizon
        warn_if_doubtful(float(self.epsilon), float(self.delta), horizon, stacklevel=3)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """For River's checks: what a learner without defaults for its budget is made with."""
        required = any(field.name == "horizon" and field.default is MISSING for field in fields(cls))
        yield {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000} if required else {}

    def _fingerprint(self) -> dict[str, object]:
        """As in the base, without the key: a lane may get another one, and goes on."""
        return {name: value for name, value in super()._fingerprint().items() if name != "noise_key"}

    def _begin_from(self, start: StartModel) -> None:
        """Begin with a model; `models.Model.to_online` says how.

        Raises
        ------
        ConfigError
            If the learner is not new, or does not know a feature of the model.
        """
        if self.slots or self._private.start is not None:
            raise ConfigError(
                f"a {type(self).__name__} begins with a model only once, before its first record",
                fix="make a new learner, and let it begin with the model before it learns",
            )
        self._private.begin_from(start)

    # ---- learning --------------------------------------------------------------------------------------

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        labels = self._task.labels_or_null(y)
        for i in np.flatnonzero(np.isnan(labels)).tolist():
            if self._warned:
                break
            self._note_label(y[i])
        return labels

    def _note_label(self, y: Any) -> None:
        """Warn of a label that is there and cannot be used: once, and never as an error.

        For the owner alone, as `null_slots`: that there is a warning says something of the records.
        """
        if self._warned or is_unknown(y):
            return
        self._warned = True
        with contextlib.suppress(Warning):  # an error would end the run because of what a record holds
            warnings.warn(
                f"{type(self).__name__} cannot use a label of type {type(y).__name__}: its record is a null "
                f"record, which uses up a slot and teaches nothing ({self._task.advice}); null_slots counts "
                "such records, and this warning comes once",
                UserWarning,
                stacklevel=3,
            )

    @staticmethod
    def _read_cell(cell: Any) -> float:
        """As in the base, and of a text that reads as a number, whatever the type of its column is."""
        return _features.number(cell)

    def _check_types(self, table: FeatureTable, y: Any, values: NDArray[Any] | list[Any]) -> None:
        """Void the report where a type has lost what the cells were: then one record changes all others.

        Such a column does not show what its records would be without the one that gave it its type
        (docs/privacy 7.1).
        """
        known = self.feature_names
        lost = [f"column {name!r}" for name in table.unreadable if not known or name in known]
        kind = None if isinstance(values, np.ndarray) else label_type(y)
        if kind is not None:
            lost.append(f"labels of type {kind}")
        elif self._task.wide_labels and _features.are_rounded(values):
            lost.append("labels beyond 2^53 in a column of floats")
        if lost:
            self.mark(void=[f"a frame cannot be read record by record: {', '.join(lost)}"])
            warnings.warn(
                f"{', '.join(lost)} cannot be read record by record, so one record decides what all others "
                "are, and the report is void; give numbers, texts or objects, for example with "
                "dtype=object in pandas",
                UserWarning,
                stacklevel=4,
            )

    def learn_one(self, x: Mapping[Any, Any], y: Any, origin: Origin | None = None) -> None:
        """Take one slot: the record with its label, under noise; a model may be released.

        A record that cannot be used makes a null slot (see the notes of the class). After the horizon
        nothing happens.

        Parameters
        ----------
        x
            Real numbers by feature name; a text that reads as a number is that number, as in a column of a
            frame that another text has made text of.
        y
            Label, which is read likewise; None and NaN: no label, a null slot.
        origin
            Where the record comes from: what identifies it, and whose it is. None: its values identify it,
            and it names its own entity (`EntityLimit.field`).
        """
        task = self._task
        label = 1.0 if y is task.high else -1.0 if y is task.low else task.label_or_null(y)
        if label != label:
            self._note_label(y)
        self._private.session.take(x, label, origin)

    def take(self, x: Mapping[Any, Any], y: Any, origin: Origin | None = None) -> float:
        """`score_one`, then `learn_one`: the score under the model before this record.

        The record is read and prepared once, where the two calls would do it twice; the bits are the same.
        Nothing is raised: a record that has no score takes its slot as in `learn_one`, and NaN is returned.

        Parameters
        ----------
        x, y, origin
            As in `learn_one`.

        Examples
        --------
        >>> from streampair import auc
        >>> model = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=100, features=["a"])
        >>> model.take({"a": 0.5}, True), model.take({"a": "text"}, False), model.slots, model.null_slots
        (0.0, nan, 2, 1)
        """
        if self._one_packing:
            label = self._task.label_or_null(y)
            if label != label:
                self._note_label(y)
            return self._private.session.score_and_take(x, label, origin, raises=False)
        try:
            score = self.score_one(x)
        except Exception:  # whatever it is: a value may bring its own
            score = math.nan
        self.learn_one(x, y, origin)
        return score

    def take_or_raise(self, x: Mapping[Any, Any], y: Any, origin: Origin | None = None) -> float:
        """As `take`, but a record that has no score raises, and takes no slot.

        For who then calls `learn_null` in its place, as a lane does: a record that takes no slot at all moves
        all others (docs/privacy 7.1).

        Parameters
        ----------
        x, y, origin
            As in `learn_one`.

        Raises
        ------
        RecordError
            As `score_one`.
        """
        if not self._one_packing:
            score = self.score_one(x)
            self.learn_one(x, y, origin)
            return score
        task = self._task
        label = 1.0 if y is task.high else -1.0 if y is task.low else task.label_or_null(y)
        if label != label:
            self._note_label(y)
        return self._private.session.score_and_take(x, label, origin)

    def learn_null(self, origin: Origin | None = None) -> None:
        """Take one slot without a record: noise, no gradient, a null record (docs/privacy 3.3).

        Parameters
        ----------
        origin
            Where the record comes from that could not be read; a slot of its entity is used up all the same.
        """
        self._private.session.null(origin)

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame or array in order, each a slot: see the base.

        Raises
        ------
        ConfigError
            If entities are declared: the entity must be given row by row.
        """
        if self._private.admission is not None:
            raise ConfigError("learn_many does not know entities", fix="use learn_one")
        super().learn_many(X, y)

    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        self._private.session.take_frame(columns, rows, labels)

    # ---- mini-batches ----------------------------------------------------------------------------------

    def prepare_many(
        self,
        xs: Sequence[Mapping[Any, Any]],
        ys: Sequence[Any],
        origins: Origins = _NOBODY,
        *,
        nulls: Sequence[int] = (),
    ) -> PreparedBatch | None:
        """`take` of one record after the other: the same bits, and the work of a batch.

        Parameters
        ----------
        xs
            Records. Those that have no score are refused: each is a null slot, as of `learn_null`.
        ys
            Their labels; None and NaN: no label, a null slot.
        origins
            Where they come from.
        nulls
            Indices of records that are scored, whatever their labels, and then as of `learn_null`.

        Returns
        -------
        PreparedBatch or None
            None, with nothing changed, before the features are known, for a metric, and where a record that
            is not whole may name its own entity: then they are to be taken one by one.
        """
        run = self.run
        if not self._one_packing or run is None:
            return None
        design = run.design
        refused: dict[int, RecordError] = {}
        ignored: dict[int, int] = {}

        def other(i: int) -> Sequence[float] | None:
            if run.admission is not None and origins is _NOBODY:
                return None  # it may name its own entity
            error = score_error(self, xs[i])
            if error is not None:
                refused[i] = error
                return (0.0,) * len(design.names)
            ignored[i] = design.read_learned(xs[i])
            values: list[float] = design.raw[0].tolist()
            return values

        rows = _features.packed_each(run.names, xs, vectors.MAX_FINITE, other)
        return None if rows is None else self._ready(run, rows, ys, origins, nulls, refused, ignored)

    def prepare_rows(
        self,
        columns: Sequence[Any],
        rows: Array,
        ys: Sequence[Any],
        origins: Origins = _NOBODY,
        *,
        nulls: Sequence[int] = (),
    ) -> PreparedBatch | None:
        """`prepare_many` of the rows of an array (n, d) whose columns have these names.

        Returns
        -------
        PreparedBatch or None
            None, with nothing changed, where these are not the known features, too.
        """
        run = self._run_of(columns)
        if run is None:
            return None
        usable = refuse_rows(self, columns, rows, vectors.MAX_FINITE)
        if usable is None:
            return None
        rows, refused = usable
        return self._ready(run, run.design.arranged(columns, rows), ys, origins, nulls, refused, {})

    def _run_of(self, columns: Sequence[Any]) -> PrivateSession | None:
        """The run, if it takes rows of these columns at once: of exactly the known features."""
        run = self.run
        if not self._one_packing or run is None or len(columns) != len(run.names):
            return None
        return run if all(map(run.design.index.__contains__, columns)) else None

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        """As in the base, but a row that cannot be scored costs itself alone: NaN, and a null slot."""
        if self._private.admission is not None:
            raise ConfigError("score_learn_many does not know entities", fix="use score_one and learn_one")
        scores = np.full(len(rows), np.nan)
        run = self._run_of(columns)
        if run is not None and (np.abs(rows) <= vectors.MAX_FINITE).all():
            run.take_many(run.design.arranged(columns, rows), labels, scores=scores)
            return scores
        for i in range(len(rows)):
            with contextlib.suppress(RecordError):
                scores[i : i + 1] = self._score_rows(columns, rows[i : i + 1])
            self._learn_rows(columns, rows[i : i + 1], labels[i : i + 1])
        return scores

    def _ready(
        self,
        run: PrivateSession,
        rows: Array,
        ys: Sequence[Any],
        origins: Origins,
        nulls: Sequence[int],
        refused: Mapping[int, RecordError],
        ignored: Mapping[int, int],
    ) -> PreparedBatch:
        """The batch of these rows, of which those that are `nulls` or `refused` make null slots."""
        task = self._task
        high, low = task.high, task.low
        labels = np.array([1.0 if y is high else -1.0 if y is low else task.label_or_null(y) for y in ys])
        unlearned = {*nulls, *refused}
        for i in np.flatnonzero(np.isnan(labels)).tolist():
            if i not in unlearned:
                self._note_label(ys[i])
        null = None
        if nulls or refused:
            null = np.zeros(len(rows), dtype=np.bool_)
            null[[*nulls, *refused]] = True
        # Features that are not in the set, of the records that are learned.
        unknown = np.zeros(len(rows), dtype=np.int64)
        unknown[list(ignored)] = list(ignored.values())
        if null is not None:
            unknown[null] = 0

        def learn(part: slice, scores: Array) -> list[bool] | None:
            run.counts.ignored_features += int(unknown[part].sum())
            blank = None if null is None else null[part]
            admitted = run.take_many(rows[part], labels[part], origins.part(part), scores, blank)
            return None if admitted is None else admitted.tolist()

        return PreparedBatch(
            *(len(rows), learn, lambda: run.weights, self._vectors_of, refused),
            dot=run.design.dot,
            slots_until_release=lambda: (
                max(run.settings.warmup - run.slots, 0) or run.state.slots_until_release
            ),
        )

    # ---- slow models ------------------------------------------------------------------------------------

    def defer_fits(self, releases: Collection[int] = ()) -> None:
        """Leave models that take long to compute to the caller: scores keep the model before until `adopt`.

        A model is computed from releases alone, so when it is adopted costs no privacy. A learner whose
        models are quick computes them as before. Copies of the learner do not defer.

        Parameters
        ----------
        releases
            Numbers of releases to come of which `fit_due` is asked later, also after newer ones.
        """
        self._private.defer_fits(releases)

    def fit_due(self, release: int | None = None) -> ModelFit | None:
        """The computation of a model that was deferred.

        Parameters
        ----------
        release
            Number of the release; None: the newest one, if its model is not in use.

        Returns
        -------
        ModelFit or None
            None if there is none, or if the release was not kept: only those are that `defer_fits` was given,
            or whose computation was returned, until a model of this release or a newer one is adopted.
        """
        state = self._private.session.state
        return None if state is None else state.fit_due(release)

    def adopt(self, release: int, model: tuple[Array, Link]) -> None:
        """Use the model of a release, which its `ModelFit` has computed: from the next score on."""
        state = self._private.session.state
        assert state is not None
        state.adopt(release, model)

    # ---- who it is --------------------------------------------------------------------------------------

    def bind_noise(self, name: str, digests: list[bytes] | None = None, *, key: Any = None) -> None:
        """Say which learner this is, before it takes a record or once its state is loaded.

        Parameters
        ----------
        name
            Goes into the chain of `noise_key`: learners of different lanes never share noise.
        digests
            A list that gets the digest of every slot; see `streampair.privacy.ChainedNoise`.
        key
            The noise key of a learner that was unpickled: no pickle holds one.

        Raises
        ------
        ConfigError
            If a key is given to a learner that has another one, or was made without.
        """
        known = NoiseKey.of(key)
        if known is not None:
            self._set_noise_key(known)
        identity = self._private.identity
        identity.name, identity.digests = name, digests

    def _set_noise_key(self, key: NoiseKey) -> None:
        """Give a learner that was unpickled its key again; ConfigError if it has another, or needs none."""
        current = self.noise_key
        if current is None or not (current.absent or current == key):
            raise ConfigError(
                "the learner "
                + ("was made without a noise key" if current is None else "has another noise key"),
                fix="construct it with noise_key=, and load its state",
            )
        if current.absent:
            self.noise_key = key
            self._private.set_key(key)

    @property
    def noise_digest(self) -> bytes:
        """Keyed digest of all that the next noise depends on; empty without a key or a slot."""
        return self._private.session.digest

    # ---- scores and designs ----------------------------------------------------------------------------

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published model: higher ranks higher.

        Missing features count as neutral, unknown ones are ignored. 0 until the warm-up is over.

        Raises
        ------
        RecordError
            If a feature is text, None, NaN or infinite, or the record is empty.
        """
        return self._private.session.score(x)

    def _proba(self, score: float) -> float:
        return self._private.session.link.one(score)

    def _probas(self, scores: Array) -> Array:
        return self._private.session.link.many(scores)

    def _published(self) -> Array:
        return self._private.session.weights

    def _noise_of_weights(self) -> Array | None:
        state = self._private.session.state
        return None if state is None else state.noise

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self._private.session.scores(columns, rows)

    def _design_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self._private.session.prepared(columns, rows)

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) that the published weights multiply: scaled, standardised, in the unit ball."""
        return self._private.session.vector(x).copy()

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        return self._vectors_of(xs)

    def _vectors_of(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Vectors of several records, which the weights multiply."""
        session = self._private.session
        rows = session.vectors(xs)
        if rows is not None:
            return rows
        each = [session.vector(x).copy() for x in xs]
        return np.array(each).reshape(len(xs), len(each[0]) if each else len(self.feature_names))

    # ---- what others look at ---------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Validated settings of the guarantee, with the defaults filled in."""
        return self._private.session.settings

    def settings_with(self, *, features: Sequence[Hashable], **changes: Any) -> Settings:
        """The settings that a learner of these parameters would have with some changed; no plan is fitted.

        Parameters
        ----------
        features
            Names of the features.
        changes
            Further parameters, by name.

        Raises
        ------
        ConfigError
            If no guarantee can be given with them.
        """
        return self._private.parameters.replace(features=features, **changes).settings(features)

    @property
    def run(self) -> PrivateSession | None:
        """The session, for an audit; None before the features are known."""
        session = self._private.session
        return session if isinstance(session, PrivateSession) else None

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the features, in the order of the columns; empty until they are known."""
        return self._private.session.names

    @property
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""
        return self.settings.loss

    @property
    def comparator_radius(self) -> float:
        """Radius of the ball of the weights."""
        return self.settings.radius

    @property
    def slots(self) -> int:
        """Records taken so far, null ones too."""
        session = self._private.session
        return session.slots + session.pending

    @property
    def slots_waiting(self) -> int:
        """Number of null slots among `slots` that wait until the features are known."""
        return self._private.session.pending

    @property
    def records(self) -> int:
        """The same as `slots`."""
        return self.slots

    @property
    def null_slots(self) -> int:
        """Slots without a usable record: a function of raw data."""
        return self._private.counts.null_slots

    @property
    def ignored_features(self) -> int:
        """Features that are not in the set: a function of raw data."""
        return self._private.counts.ignored_features

    @property
    def refused_records(self) -> int:
        """Records of entities that had been learned from often enough."""
        return self._private.counts.refused_records

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        state = self._private.session.state
        return 0 if state is None else state.buffer_records

    @property
    def horizon_left(self) -> int | None:
        """Slots until the learner stops learning; None without a horizon."""
        horizon = self.settings.horizon
        return None if horizon is None else max(horizon - self.slots, 0)

    @property
    def privacy(self) -> PrivacyReport:
        """Privacy report: the guarantee, the unit of protection, and the spend of the releases so far."""
        declared = self.features is not None or self._private.start is not None
        card = self._private.session.card()
        table = None if self.run is None else self.run.table
        return build_report(
            **self._spending(), card=card, product=self._product, declared=declared, table=table
        )

    @property
    def privacy_summary(self) -> PrivacySummary:
        """The numbers of `privacy` without its prose, for who asks often."""
        return build_summary(**self._spending())

    def _spending(self) -> dict[str, Any]:
        """Spend, from which the numbers of a report are computed."""
        session = self._private.session
        return {
            "settings": session.settings,
            "run": session.state,
            "standing": self._private.current_standing(),
            "warmed": session.warmed,
            "mu_warmup": session.mu_warmup,
            "horizon_left": self.horizon_left,
            "seeded": self.seed is not None,
        }

    # ---- copies and state ------------------------------------------------------------------------------

    def charge(self, forks: int, *, vouched: bool = False) -> None:
        """Set how many forks a ledger has charged (docs/privacy 8).

        Parameters
        ----------
        forks
            Altogether.
        vouched
            Whether the ledger knows of every release by any continuation of this learner.
        """
        standing = self._private.standing
        standing.charged = forks
        if vouched:
            standing.continued = False

    def mark_restarted(self, clean: bool) -> None:
        """Say how the run ended that this learner was restored from.

        Parameters
        ----------
        clean
            True: the snapshot held every release that was made, and nothing else continues from it. False:
            releases may have been made after it; the report then says that it cannot vouch for them, and
            keeps saying so.
        """
        standing = self._private.standing
        standing.continued = False
        if clean:
            standing.clean += 1
        else:
            standing.unclean += 1

    def mark(self, *, void: Iterable[str] = (), accepted: Iterable[str] = ()) -> None:
        """Put on record what the report has to say from here on, in every copy and snapshot.

        Parameters
        ----------
        void
            Why nothing is guaranteed: a record was, or will be, taken under conditions that break it.
        accepted
            What an operator vouches for, each beginning with its date: ``"2026-11-22 (the log was lost)"``.
            The report says "vouched by the operator on ...".
        """
        self._private.standing.mark(void, accepted)

    def plan(self) -> dict[str, Any] | None:
        """Every number that was fitted for this learner, as plain values; None until the features are known.

        A learner that is given it before its first record (`load_plan`) runs under the same numbers bit for
        bit, where one that is calibrated on another machine might differ in last digits.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        run = self.run
        if run is None:
            return None
        return {**self._checked({"names": list(self.feature_names)}), "plan": run.written()}

    def load_plan(self, plan: Mapping[str, Any]) -> None:
        """Run under exactly the numbers that `plan` of a learner with the same parameters returned.

        A state that is loaded later must have the same ones.

        Raises
        ------
        SnapshotError
            If the plan is of another learner or version, or damaged, or if this learner has taken a record;
            it is then as it was.
        """
        self._only_new("plan")
        self._checked_import(plan, self._import_plan)

    def _import_plan(self, saved: Mapping[str, Any]) -> None:
        renewed = self._private.renewed()
        renewed.load_plan(saved)
        self._private = renewed

    def _export(self) -> dict[str, Any]:
        return self._private.to_state(self._y_name)

    def _import(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `_export`; where that raises, the learner is as it was."""
        renewed = self._private.renewed()
        renewed.load_state(saved)
        self._y_name = saved["y_name"]
        self._private = renewed
        self.__dict__.pop("_root", None)  # a transformer's: it was of another metric

    def to_state(self) -> dict[str, object]:
        """Export the state, as plain values and arrays: everything but the noise to come.

        It holds raw records and the memory of the noise: keep it as safe as the data.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        return self._checked_export()

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue from what `to_state` of a learner with the same parameters returned, with fresh noise.

        The report says "unvouched" from here on, until `mark_restarted(clean=True)`.

        Raises
        ------
        SnapshotError
            If the state is of another learner or version, or damaged, or if this learner is not new; its
            account is as before.
        """
        self._only_new("state")
        self._checked_import(state)

    def _only_new(self, what: str) -> None:
        if self.slots:
            # Its spend would be forgotten.
            raise SnapshotError(
                "the learner has taken records already", fix=f"load the {what} into a newly made learner"
            )

    def _parameters(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getstate__(self) -> dict[str, Any]:
        return {"params": self._parameters(), "saved": self._export()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["params"])  # type: ignore[misc]
        self._import(saved["saved"])
