"""From a private learner's parameters to what it promises: checks and defaults (docs/privacy.md 4.3, 4.4)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampair.errors import ConfigError
from streampair.learners.tasks import Task
from streampair.privacy.accounting import mu_from
from streampair.privacy.entities import EntityInfluence, EntityLimit
from streampair.privacy.mechanisms.base import Mechanism, Settings
from streampair.privacy.mechanisms.buffer import BufferPlan
from streampair.privacy.mechanisms.fitted import near

__all__ = ["check_bounds_known", "planned", "scale", "settled", "whole"]

# Below this horizon the moments cost more than they give (docs/privacy.md 4.4).
_WARMUP_FROM = 5000
_WARMUP_SHARE = 0.1
_WARMUP_OPEN = 2000


def whole(name: str, value: Any, least: int) -> int:
    """A parameter as an integer from `least` to 2^53, or ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= 2**53:
        raise ConfigError(f"{name} is {value!r}", fix=f"give an integer of at least {least}, or None")
    return int(value)


def scale(name: str, value: Any) -> float:
    """A parameter as a float from 1e-9 to 1e9, or ConfigError."""
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not ok or not 1e-9 <= value <= 1e9:
        raise ConfigError(f"{name} is {value!r}", fix=f"give a {name} from 1e-9 to 1e9, or None")
    return float(value)


def _warmup(value: Any, horizon: int | None) -> int:
    if value is None:
        if horizon is None:
            return _WARMUP_OPEN
        return round(_WARMUP_SHARE * horizon) if horizon >= _WARMUP_FROM else 0
    slots = whole("warmup", value, 0)
    if horizon is not None and slots >= horizon:
        raise ConfigError(
            f"warmup is {slots}, and the horizon {horizon}: nothing is left to learn from",
            fix="make the warm-up 5 to 10 % of the horizon, or 0",
        )
    return slots


def _default_warmup(
    mechanism: Mechanism, mu: float, horizon: int | None, features: int | None, entity: EntityLimit | None
) -> int | None:
    """What the mechanism takes; with an entity for as much noise as all of its records in it need."""
    if entity is None:
        return mechanism.default_warmup(mu, horizon, features)
    records = 1
    while True:
        # Half of mu^2 is for the warm-up, and mu is divided among the records that fit into it.
        asked = mechanism.default_warmup(mu / (math.sqrt(2.0) * records), horizon, features)
        within = 1 if asked is None else entity.within(asked)
        if within <= records:
            return asked
        records = within


def _checked_features(features: Any) -> None:
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


def settled(learner: Any, task: Task, mechanism: Mechanism, features: int | None = None) -> Settings:
    """Check the parameters of a learner, and fill in the defaults.

    Parameters
    ----------
    learner
        Stores them under the names of its constructor.
    task, mechanism
        What labels mean, and how it learns.
    features
        How many there are, once it is known.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.
    """
    mu = mu_from(learner.epsilon, learner.delta)
    horizon = None if learner.horizon is None else whole("horizon", learner.horizon, 1)
    if horizon == 1:
        raise ConfigError(
            "horizon is 1, and one record makes no pair",
            fix="give the number of records in the stream; streampair.privacy.plan says how many are useful",
        )
    entity = _checked_entity(learner)
    asked = learner.warmup
    if asked is None:
        asked = _default_warmup(mechanism, mu, horizon, features, entity)
    warmup = _warmup(asked, horizon)
    loss = mechanism.checked_loss(task.checked_loss(learner.loss), task.form)
    if not loss.convex:
        raise ConfigError(
            f"{loss!r} is not convex, and no private learner offers it",
            fix="use losses.Logistic() or another convex loss",
        )
    kept = (learner.buffer, learner.max_uses)
    partner = mechanism.core.released_partner
    buffer = (
        BufferPlan.released()
        if partner
        else BufferPlan.of(*kept, horizon=horizon, bounded=mechanism.bounded_uses)
    )
    clip = mechanism.default_clip if learner.clip is None else scale("clip", learner.clip)
    radius = mechanism.radii[bool(warmup)] if learner.radius is None else scale("radius", learner.radius)
    if learner.noise_key is not None and learner.seed is not None:
        raise ConfigError(
            "noise_key and seed are both set", fix="keep the key; a seed is for tests, and protects nobody"
        )
    if learner.seed is not None and (
        isinstance(learner.seed, bool) or not isinstance(learner.seed, int | np.integer)
    ):
        raise ConfigError("seed is not an integer", fix="leave seed=None, or give an integer in a test")
    _checked_features(learner.features)
    bounds = _checked_bounds(learner.bounds, learner.features)
    forks, window = whole("forks", learner.forks, 0), whole("window", learner.window, 1)
    if entity is not None:
        buffer = replace(buffer, influence=EntityInfluence.of(buffer.influence, entity))
    return Settings(
        mechanism=mechanism,
        epsilon=float(learner.epsilon),
        delta=float(learner.delta),
        mu=mu,
        horizon=horizon,
        warmup=warmup,
        loss=loss,
        form=task.form,
        pairs=task.pairs,
        two_classes=task.two_classes,
        buffer=buffer,
        clip=clip,
        radius=radius,
        # Standardised records lie around 0, where the tangent ball lets more of a gradient through; its proof
        # is for two classes and decreasing losses.
        tangent=bool(warmup) and loss.decreasing and task.two_classes,
        bounds=bounds,
        forks=forks,
        window=window,
        entity=entity,
        features=features,
        dim=None if features is None else task.coordinates(features),
    )


def planned(settings: Settings, plan: Mapping[str, Any] | None, *, declared: bool) -> Settings:
    """The settings of a learner under a plan that was written down.

    Parameters
    ----------
    settings
        As they are settled here.
    plan
        See `SlotRun.written`; None: nothing was written down.
    declared
        Whether the length of the warm-up is a parameter; else it is computed, and may have been rounded to
        the other side.

    Raises
    ------
    ValueError
        If the plan is not of such settings.
    """
    if plan is None:
        return settings
    warmup = plan["warmup"]
    if type(warmup) is not int or not warmup >= 0 or abs(warmup - settings.warmup) > (not declared):
        raise ValueError(f"warmup of the plan is {warmup!r}, and these parameters give {settings.warmup}")
    if bool(warmup) != bool(settings.warmup):
        raise ValueError("a plan with a warm-up, or without, for a learner that is not")
    return replace(settings, mu=near("mu", plan["mu"], settings.mu), warmup=warmup)
