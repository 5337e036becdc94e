"""Checks and defaults of a private learner's parameters, and the mechanism that they ask for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampair.base.targets import Target
from streampair.errors import ConfigError
from streampair.privacy.accounting import planned_mu
from streampair.privacy.mechanism_options import (
    DecayedMoments,
    MechanismOptions,
    PairGradients,
    SecondMoments,
)
from streampair.privacy.mechanisms import decayed_moments
from streampair.privacy.mechanisms.base import Companion, Mechanism, Settings, check_close
from streampair.privacy.mechanisms.buffer import DEFAULT_BUFFER, BufferPlan
from streampair.privacy.mechanisms.dp_forest import MOST_DEPTH, MOST_TREES, DPForest, worthwhile
from streampair.privacy.mechanisms.ftrl import FTRL, check_strategy
from streampair.privacy.mechanisms.metric_moments import MetricMoments
from streampair.privacy.mechanisms.output_perturbation import OutputPerturbation
from streampair.privacy.mechanisms.prevalence import WithPrevalence, checked_rate
from streampair.privacy.mechanisms.private_auc import WithPrivateAUC, checked_share
from streampair.privacy.mechanisms.second_moments import LEAST_HORIZON, MOST_FEATURES, Moments, RankingMoments
from streampair.privacy.user_level import EntityInfluence, EntityLimit
from streampair.records.features import in_order
from streampair.records.random_trees import fields_of

__all__ = [
    "ValidatedParameters",
    "check_bounds_known",
    "check_int",
    "check_positive",
    "select_centred_output_perturbation",
    "select_dp_forest",
    "select_ftrl",
    "select_metric_ftrl",
    "select_output_perturbation",
    "select_ranking_ftrl",
]


# The features of a learner; None: they are not known yet.
_Names = Sequence[Hashable] | None


def check_int(name: str, value: Any, least: int) -> int:
    """A parameter as an integer from `least` to 2^53, or ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= 2**53:
        raise ConfigError(f"{name} is {value!r}", fix=f"give an integer of at least {least}, or None")
    return int(value)


def check_positive(name: str, value: Any) -> float:
    """A parameter as a float from 1e-9 to 1e9, or ConfigError."""
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not ok or not 1e-9 <= value <= 1e9:
        raise ConfigError(f"{name} is {value!r}", fix=f"give a {name} from 1e-9 to 1e9, or None")
    return float(value)


def _checked_warmup(value: Any, horizon: int | None) -> int:
    slots = check_int("warmup", value, 0)
    if horizon is not None and slots >= horizon:
        raise ConfigError(
            f"warmup is {slots}, and the horizon {horizon}: nothing is left to learn from",
            fix="make the warm-up 5 to 10 % of the horizon, or 0",
        )
    return slots


def _default_warmup(
    mechanism: Mechanism, mu: float, horizon: int | None, features: int | None, entity: EntityLimit | None
) -> int:
    """Default warm-up of the mechanism; with an entity, for the noise that all of its records need."""
    if entity is None:
        return mechanism.default_warmup(mu, horizon, features)
    records = 1
    while True:
        # Half of mu^2 is for the warm-up, and mu is divided among the records that fit into it.
        warmup = mechanism.default_warmup(mu / (math.sqrt(2.0) * records), horizon, features)
        within = entity.within(warmup) if warmup else 1
        if within <= records:
            return warmup
        records = within


def _check_noise(noise_key: Any, seed: Any) -> None:
    if noise_key is not None and seed is not None:
        raise ConfigError(
            "noise_key and seed are both set", fix="keep the key; a seed is for tests, and protects nobody"
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ConfigError("seed is not an integer", fix="leave seed=None, or give an integer in a test")


def _check_features(features: Any) -> None:
    if features is None:
        return
    if isinstance(features, str | bytes) or not isinstance(features, Sequence) or not len(features):
        raise ConfigError(f"features is {features!r}", fix="give a list of feature names")
    if len(set(features)) != len(features):
        raise ConfigError("features names a feature twice", fix="name each once")


def _checked_bounds(bounds: Any, features: Any) -> dict[Hashable, tuple[float, float]]:
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        raise ConfigError(f"bounds is {bounds!r}", fix="give a mapping such as {'age': (0, 120)}")
    checked = {}
    for name, pair in bounds.items():
        try:
            low, high = (float(value) for value in pair)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the bounds of {name!r} are {pair!r}", fix="give a pair of numbers (low, high)"
            ) from None
        if not (abs(low) <= 1e100 and abs(high) <= 1e100 and high - low > 1e-100):
            raise ConfigError(
                f"the bounds of {name!r} are {pair!r}",
                fix="give finite public bounds with low below high, not taken from the stream",
            )
        checked[name] = (low, high)
    if features is not None:
        check_bounds_known(checked, features, "features")
    return checked


def check_bounds_known(bounds: Mapping[Hashable, Any], names: Sequence[Hashable], where: str) -> None:
    """Refuse bounds of a feature that is not there: a misspelt name would leave a feature unscaled."""
    known = set(names)
    for name in bounds:
        if name not in known:
            raise ConfigError(
                f"bounds names {name!r}, which is not in {where}",
                fix="declare the feature set with features=, and bounds for names in it",
            )


def _checked_entity(model: Any) -> EntityLimit | None:
    entity = model.entity
    if entity is None:
        return None
    if not isinstance(entity, EntityLimit):
        raise ConfigError(
            f"entity is {entity!r}", fix="give streampair.privacy.EntityLimit(records=..., separation=...)"
        )
    if model.features is None:
        raise ConfigError(
            "entity is given, and no features: which fields are features is then not known",
            fix="declare features=",
        )
    if entity.field is not None and entity.field in model.features:
        raise ConfigError(
            f"the field {entity.field!r} names the entity and is a feature too",
            fix="take it out of features: what names a person must not be learned",
        )
    return entity


class ValidatedParameters:
    """The parameters of a private learner, checked once; settings follow when its features are known.

    Parameters
    ----------
    learner
        Stores them under the names of its constructor.
    task
        What labels mean.

    Raises
    ------
    ConfigError
        If a parameter is out of range. What depends on the mechanism is checked with it, in `settings`.

    Attributes
    ----------
    features
        The declared features; None: the first record names them.
    entity
        Whose records are protected together; None: one record.
    bounds
        The declared bounds.
    """

    def __init__(self, learner: Any, task: Target) -> None:
        self._learner = learner
        self._task = task
        self._horizon = None if learner.horizon is None else check_int("horizon", learner.horizon, 1)
        if self._horizon == 1:
            raise ConfigError(
                "horizon is 1, and one record makes no pair",
                fix="give the number of records in the stream; streampair.privacy.plan says how many are "
                "useful",
            )
        _check_features(learner.features)
        self.features: Sequence[Hashable] | None = learner.features
        self.entity = _checked_entity(learner)
        self._pairs = _pair_options(learner)
        clip = self._pairs.clip
        self._clip = None if clip is None else check_positive("clip", clip)
        self._radius = None if learner.radius is None else check_positive("radius", learner.radius)
        _check_noise(learner.noise_key, learner.seed)
        self.bounds = _checked_bounds(learner.bounds, learner.features)
        self._forks = check_int("forks", learner.forks, 0)
        self._window = check_int("window", learner.window, 1)
        self._loss = task.checked_loss(self._pairs.loss)
        self._mu = planned_mu(learner.epsilon, learner.delta)
        self._made: dict[tuple[Hashable, ...] | None, Settings] = {}

    def replace(self, **changes: Any) -> ValidatedParameters:
        """These parameters with some changed, checked again; the learner keeps its own.

        Parameters
        ----------
        changes
            By their names.
        """
        parameters = copy.copy(self._learner)
        vars(parameters).update(changes)
        return ValidatedParameters(parameters, self._task)

    def settings(self, names: Sequence[Hashable] | None, plan: Mapping[str, Any] | None = None) -> Settings:
        """The settings for these features, which are made once.

        Parameters
        ----------
        names
            The features; None: not known yet, and the settings are those of a learner that waits.
        plan
            Fitted numbers that are to be used (`PrivateSession.written`); None: they are fitted.

        Raises
        ------
        ConfigError
            If no guarantee can be given with the parameters.
        ValueError
            If the plan is not of such settings.
        """
        known = None if names is None else tuple(names)
        if known not in self._made:
            self._made[known] = self._made_for(known)
        settings = self._made[known]
        if plan is None or known is None:
            return settings
        # Without a plan the names are the declared features, whose bounds were checked, or have those with
        # bounds.
        check_bounds_known(settings.bounds, known, "the features")
        return self._planned(settings, plan)

    def _planned(self, settings: Settings, plan: Mapping[str, Any]) -> Settings:
        """The settings under a plan, whose warm-up is that of the parameters.

        A default warm-up was computed, on another machine perhaps rounded to the other side.
        """
        warmup, most = plan["warmup"], int(self._learner.warmup is None)
        if type(warmup) is not int or not warmup >= 0 or abs(warmup - settings.warmup) > most:
            raise ValueError(f"warmup of the plan is {warmup!r}, and these parameters give {settings.warmup}")
        if bool(warmup) != bool(settings.warmup):
            raise ValueError("a plan with a warm-up, or without, for a learner that is not")
        return replace(settings, mu=check_close("mu", plan["mu"], settings.mu), warmup=warmup)

    def _made_for(self, names: tuple[Hashable, ...] | None) -> Settings:
        """Select the mechanism, and fill in the defaults."""
        learner, task, horizon, entity = self._learner, self._task, self._horizon, self.entity
        features = None if names is None else len(names)
        if features is not None and features > task.most_features:
            raise ConfigError(
                f"there are {features} features, more than {task.most_features}",
                fix="select or hash the features first",
            )
        mechanism = learner._select(names)
        companions = _companions(mechanism, self._pairs.positive_rate, getattr(learner, "auc_share", None))
        if learner.warmup is None:
            warmup = _default_warmup(mechanism, self._mu, horizon, features, entity)
        else:
            warmup = _checked_warmup(learner.warmup, horizon)
        loss = mechanism.checked_loss(self._loss, task.form)
        if not loss.convex:
            raise ConfigError(
                f"{loss!r} is not convex, and no private learner offers it",
                fix="use losses.Logistic() or another convex loss",
            )
        if self._pairs.buffer is None:
            buffer = DEFAULT_BUFFER
        else:
            buffer = BufferPlan.of(self._pairs.buffer, horizon=horizon, bounded=mechanism.bounded_uses)
        if entity is not None:
            buffer = replace(buffer, influence=EntityInfluence.of(buffer.influence, entity))
        dim = None if features is None else task.coordinates(features)
        return Settings(
            mechanism=mechanism,
            companions=companions,
            epsilon=float(learner.epsilon),
            delta=float(learner.delta),
            mu=self._mu,
            horizon=horizon,
            warmup=warmup,
            loss=loss,
            form=task.form,
            pairs=task.pairs,
            two_classes=task.two_classes,
            buffer=buffer,
            clip=mechanism.default_clip if self._clip is None else self._clip,
            radius=mechanism.radii[bool(warmup)] if self._radius is None else self._radius,
            # Standardised records lie around 0, where the tangent ball lets more of a gradient through; its
            # proof is for two classes and decreasing losses.
            tangent=bool(warmup) and loss.decreasing and task.two_classes,
            bounds=self.bounds,
            forks=self._forks,
            window=self._window,
            entity=entity,
            features=features,
            dim=dim,
        )


def _companions(mechanism: Mechanism, rate: Any, share: Any) -> tuple[Companion, ...]:
    """Select what is released beside a mechanism: a share of positives, and a private AUC."""
    found: list[Companion] = []
    paper = isinstance(mechanism, OutputPerturbation) and mechanism.paper
    if rate is not None:
        declared = checked_rate(rate)
        if declared is None and paper:
            raise ConfigError(
                "the paper's calibration leaves nothing of the budget for a share of positives",
                fix="declare it with positive_rate=, or use calibration='tight'",
            )
        found.append(WithPrevalence(declared))
    if share is not None:
        if paper:
            raise ConfigError(
                "the paper's calibration leaves nothing of the budget for a private AUC",
                fix="leave auc_share out, or use calibration='tight'",
            )
        found.append(WithPrivateAUC(checked_share(share)))
    return tuple(found)


def _pair_options(learner: Any) -> PairGradients:
    """Loss, buffer, clip and share of positives: of the learner's mechanism, or its own parameters."""
    source = getattr(learner, "mechanism", learner)
    return PairGradients(
        loss=getattr(source, "loss", None),
        buffer=getattr(source, "buffer", None),
        clip=getattr(source, "clip", None),
        positive_rate=getattr(source, "positive_rate", None),
    )


def _gradients(learner: Any, options: PairGradients) -> Mechanism:
    """FTRL on gradients."""
    check_strategy(options.strategy, learner.horizon)
    return FTRL(options.strategy)


def _without_warmup(learner: Any) -> bool:
    return learner.warmup is not None and learner.warmup == 0


def _checked_options(learner: Any, *, two_classes: bool) -> MechanismOptions | None:
    """The learner's `mechanism`, which its family has."""
    options: MechanismOptions | None = learner.mechanism
    names = "privacy.SecondMoments(), PairGradients()"
    offered: tuple[type, ...] = (SecondMoments, PairGradients)
    if two_classes:
        names += ", DecayedMoments(...)"
        offered += (DecayedMoments,)
    if options is not None and type(options) not in offered:
        raise ConfigError(f"mechanism is {options!r}", fix=f"give one of {names}, or None")
    if not two_classes and getattr(options, "positive_rate", None) is not None:
        raise ConfigError(
            f"mechanism is {options!r}, and there are no two classes", fix="leave positive_rate out of it"
        )
    return options


def _default_options(learner: Any, names: _Names, *, entities: bool) -> MechanismOptions:
    """Moments; gradients where those cost more than they give, or are impossible."""
    horizon = learner.horizon
    short = isinstance(horizon, int) and horizon < LEAST_HORIZON
    many = names is not None and len(names) > MOST_FEATURES
    impossible = _without_warmup(learner) or (learner.entity is not None and not entities)
    return PairGradients() if short or many or impossible else SecondMoments()


def select_ftrl(learner: Any, names: _Names, moments: Callable[[], Mechanism] | None = None) -> Mechanism:
    """FTRL by moments or on gradients, as `mechanism` says; None: moments, where they are better.

    Parameters
    ----------
    moments
        Those of the family; None: of two classes.

    Raises
    ------
    ConfigError
        If the family has no such mechanism, or it cannot use another parameter.
    """
    options = _checked_options(learner, two_classes=moments is None)
    if options is None:
        options = _default_options(learner, names, entities=moments is None)
    if isinstance(options, PairGradients):
        return _gradients(learner, options)
    if _without_warmup(learner):
        raise ConfigError(
            f"mechanism is {options!r}, which standardises records first, and warmup is 0",
            fix="leave warmup out, or use privacy.PairGradients()",
        )
    # Whose noise is for the records of a person together; of moments those without forgetting alone.
    covered = moments is None and isinstance(options, SecondMoments)
    if learner.entity is not None and not covered:
        raise ConfigError(
            f"mechanism is {options!r}, which is for single records, and entity= protects several",
            fix="leave entity out, or use privacy.PairGradients()",
        )
    if isinstance(options, DecayedMoments):
        half_life = check_int("half_life", options.half_life, 1)
        if learner.horizon is not None:
            raise ConfigError(
                f"half_life={half_life} and horizon={learner.horizon!r} are both set: what fades has no sum "
                "over all records to release at an end",
                fix="leave the horizon out: with a half_life what is spent on a record does not grow with "
                "the stream; or use privacy.SecondMoments()",
            )
        return decayed_moments.DecayedMomentsMechanism(half_life=half_life)
    return Moments() if moments is None else moments()


def _at_most(name: str, value: Any, most: int, least: int = 1) -> int:
    """An integer from `least` to `most`, or ConfigError."""
    if check_int(name, value, least) > most:
        raise ConfigError(
            f"{name} is {value!r}", fix=f"give at most {most}: a release has a number for each leaf"
        )
    return int(value)


def select_dp_forest(learner: Any, names: _Names) -> Mechanism:
    """Leaves of random trees beside moments; moments alone where a horizon is too short for leaves.

    Unless somebody says how many trees there are: then so many.

    Raises
    ------
    ConfigError
        If a parameter is given that it cannot use.
    """
    if _without_warmup(learner):
        raise ConfigError(
            "a private forest standardises records first, and warmup is 0", fix="leave warmup out"
        )
    horizon, features = learner.horizon, 1 if names is None else len(names)
    if features > MOST_FEATURES:
        raise ConfigError(
            f"{features} features are too many for second moments", fix=f"select at most {MOST_FEATURES}"
        )
    depth = _at_most("depth", learner.depth, MOST_DEPTH)
    # How many columns each field has.
    fields = () if names is None else fields_of(in_order(names))
    if learner.trees is not None:
        trees = _at_most("trees", learner.trees, MOST_TREES, 2)  # one half validates the other
        return DPForest(trees=trees, depth=depth, fields=fields)
    if isinstance(horizon, int) and not worthwhile(
        *(learner.epsilon, learner.delta, horizon, depth, features)
    ):
        return Moments()
    return DPForest(depth=depth, fields=fields)


def select_ranking_ftrl(learner: Any, names: _Names) -> Mechanism:
    """`select_ftrl` for relevances."""
    return select_ftrl(learner, names, RankingMoments)


def select_metric_ftrl(learner: Any, names: _Names) -> Mechanism:
    """`select_ftrl` for declared classes; gradients where none are.

    Raises
    ------
    ConfigError
        If moments are asked for, and no classes.
    """
    declared = learner._task.classes
    if declared is not None:
        return select_ftrl(learner, names, lambda: MetricMoments(classes=declared))
    options = _checked_options(learner, two_classes=False) or PairGradients()
    if isinstance(options, PairGradients):
        return _gradients(learner, options)
    raise ConfigError(
        f"mechanism is {options!r}, which keeps a sum for each class, and none are declared",
        fix="declare them with classes=, or use privacy.PairGradients()",
    )


def select_output_perturbation(learner: Any, names: _Names, *, centred: bool = False) -> Mechanism:
    """Output perturbation.

    Raises
    ------
    ConfigError
        If there is no horizon, or the paper's calibration is asked for what it does not know.
    """
    mechanism = OutputPerturbation(
        l2=None if learner.l2 is None else check_positive("l2", learner.l2),
        releases=learner.releases,
        calibration=learner.calibration,
        centred=centred,
    )
    if learner.horizon is None:
        raise ConfigError(
            f"{type(learner).__name__} needs a horizon: its noise is planned over all releases",
            fix="give horizon=, or use PairFTRL, which learns without end",
        )
    unknown = (learner.releases, learner.clip, learner.entity, learner.warmup or None, learner.forks or None)
    if mechanism.paper and any(value is not None for value in unknown):
        raise ConfigError(
            "the paper's calibration knows no releases, warm-up, clipping, forks or entities",
            fix="leave them out, or use calibration='tight'",
        )
    return mechanism


def select_centred_output_perturbation(learner: Any, names: _Names) -> Mechanism:
    """Output perturbation of the loss plus a ridge term around a point."""
    return select_output_perturbation(learner, names, centred=True)
