"""Parameters and report of a private pair learner: what is checked, and what is told (PRIVACY.md 7)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampair import losses
from streampair._private_buffer import BufferPlan
from streampair.errors import ConfigError
from streampair.privacy import EntityLimit, PrivacyReport, epsilon_from, mu_from
from streampair.privacy.plan import EntityInfluence

__all__ = ["Settings", "build_report", "scale"]

# Below this horizon the moments cost more than they give (PRIVACY.md 4.4).
WARMUP_FROM = 5000
WARMUP_SHARE = 0.1
WARMUP_OPEN = 2000
MAX_FEATURES = 10_000


def _whole(name: str, value: Any, least: int) -> int:
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
            return WARMUP_OPEN
        return round(WARMUP_SHARE * horizon) if horizon >= WARMUP_FROM else 0
    slots = _whole("warmup", value, 0)
    if horizon is not None and slots >= horizon:
        raise ConfigError(
            f"warmup is {slots}, and the horizon {horizon}: nothing is left to learn from",
            fix="make the warm-up 5 to 10 % of the horizon, or 0",
        )
    return slots


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


@dataclass(frozen=True)
class Settings:
    """Constructor arguments, checked, with the defaults of PRIVACY.md 4.3 and 4.4 filled in."""

    epsilon: float
    delta: float
    mu: float
    horizon: int | None
    warmup: int
    loss: losses.PairLoss
    buffer: BufferPlan
    clip: float
    radius: float
    tangent: bool
    bounds: dict[Hashable, tuple[float, float]]
    forks: int
    window: int
    entity: EntityLimit | None

    @classmethod
    def of(cls, model: Any, features: int | None = None) -> Settings:
        """Check the parameters of a learner that stores them under the names of its constructor.

        Parameters
        ----------
        model
            The learner.
        features
            How many there are, once it is known.

        Raises
        ------
        ConfigError
            If one is out of range, or no guarantee can be given with it.
        """
        mu = mu_from(model.epsilon, model.delta)
        horizon = None if model.horizon is None else _whole("horizon", model.horizon, 1)
        asked = model._default_warmup(mu, horizon, features) if model.warmup is None else model.warmup
        warmup = _warmup(asked, horizon)
        loss = model._checked_loss(model.loss)
        if not loss.convex:
            raise ConfigError(
                f"{loss!r} is not convex, and no private learner offers it",
                fix="use losses.Logistic() or another convex loss",
            )
        buffer = BufferPlan.of(model.buffer, model.max_uses, horizon=horizon, bounded=model._bounded_uses)
        clip = model._default_clip if model.clip is None else scale("clip", model.clip)
        radius = model._radii[bool(warmup)] if model.radius is None else scale("radius", model.radius)
        if model.noise_key is not None and model.seed is not None:
            raise ConfigError(
                "noise_key and seed are both set",
                fix="keep the key; a seed is for tests, and protects nobody",
            )
        if model.seed is not None and (
            isinstance(model.seed, bool) or not isinstance(model.seed, int | np.integer)
        ):
            raise ConfigError("seed is not an integer", fix="leave seed=None, or give an integer in a test")
        _checked_features(model.features)
        bounds = _checked_bounds(model.bounds, model.features)
        epsilon, delta = float(model.epsilon), float(model.delta)
        # Standardised records lie around 0, where the tangent ball lets more of a gradient through; its proof
        # is for two classes and decreasing losses.
        tangent = bool(warmup) and loss.decreasing and model._two_classes
        forks, window = _whole("forks", model.forks, 0), _whole("window", model.window, 1)
        entity = _checked_entity(model)
        if entity is not None:
            buffer = replace(buffer, influence=EntityInfluence.of(buffer.influence, entity))
        return cls(
            epsilon=epsilon,
            delta=delta,
            mu=mu,
            horizon=horizon,
            warmup=warmup,
            loss=loss,
            buffer=buffer,
            clip=clip,
            radius=radius,
            tangent=tangent,
            bounds=bounds,
            forks=forks,
            window=window,
            entity=entity,
        )

    @property
    def composes(self) -> bool:
        """Whether the warm-up and the learning may concern the same entity, so that they share the budget."""
        return self.entity is not None and self.warmup > 0

    @property
    def mu_learning(self) -> float:
        """mu of what is learned after the warm-up."""
        return self.mu * math.sqrt(0.5) if self.composes else self.mu

    def mu_moments(self, fork_mu2: float | None) -> float:
        """mu of one release of the moments; a fork of the window that it is in makes another.

        A record can be in the prefix of one view and be learned in another, where the order changed. So with
        forks a release of the moments costs neither more than the learning nor more than a second view of a
        window of it, and the plan of the learning has room for every mixture.

        Parameters
        ----------
        fork_mu2
            What such a second view costs, at most; None: not known yet.
        """
        if self.composes or not self.forks or fork_mu2 is None:
            return self.mu_learning / math.sqrt(1.0 + self.forks)
        return math.sqrt(min(fork_mu2, self.mu_learning**2 - self.forks * fork_mu2))

    @property
    def moments_records(self) -> int:
        """How many records of one entity the moments can hold (PRIVACY.md 4.4)."""
        return 1 if self.entity is None else self.entity.within(self.warmup)

    @property
    def learning(self) -> int | None:
        """Slots that are learned from, after the warm-up."""
        return None if self.horizon is None else self.horizon - self.warmup

    def warmup_words(self) -> str:
        """What the warm-up does, for the report; empty without one."""
        if not self.warmup:
            return ""
        return (
            f" The first {self.warmup} records are used for one release of means and variances only, the "
            "later ones for learning only, so each has "
            + ("half of mu^2." if self.composes else "the whole budget (parallel composition).")
        )


def build_report(
    settings: Settings,
    *,
    mechanism: str,
    mu_learning: float,
    mu_moments: float,
    fork_mu2: float,
    charged: int,
    releases: int,
    moments_released: bool,
    horizon_left: int | None,
    noise_std: float,
    clean_restarts: int,
    unclean_restarts: int,
    continued: bool,
    declared: bool,
    seeded: bool,
    remarks: Sequence[str] = (),
) -> PrivacyReport:
    """The report of a learner: every number from its accountant, no word more than it can vouch for.

    Parameters
    ----------
    settings
        What was promised.
    mechanism
        How it is done, in words.
    mu_learning
        mu of the models released so far.
    mu_moments
        mu of one release of the moments.
    fork_mu2, charged
        What a second view of a window adds to mu^2, and how many of them the ledger has charged.
    releases, moments_released
        How many they are, and whether the moments have been released too.
    horizon_left, noise_std
        As in `PrivacyReport`.
    clean_restarts, unclean_restarts, continued
        How often the learner was restored from a snapshot that held every release, or may not have; and
        whether it comes from a copy of which nobody has said.
    declared
        Whether the feature set was declared.
    seeded
        Whether the noise has a fixed seed.
    remarks
        What the mechanism has to say besides.
    """
    prefix = mu_moments * moments_released if settings.warmup else 0.0
    again = mu_moments**2 if settings.warmup else 0.0
    if settings.composes:  # an entity may be in the prefix and after it, in each view
        mu, second = math.hypot(mu_learning, prefix), fork_mu2 + again
    else:  # a record is in the prefix or after it; in another view it may be in the other part
        mu, second = max(mu_learning, prefix), max(fork_mu2, again)
    mu = math.hypot(mu, math.sqrt(charged * second))
    if mu <= settings.mu * (1.0 + 1e-9):
        mu = min(mu, settings.mu)  # the last bits of a quotient; anything larger is told as it is
    notes = list(remarks)
    guarantee = "exact accounting of every release, in Gaussian differential privacy"
    kind = "holds"
    if clean_restarts:
        notes.append(f"Restarted {clean_restarts} time(s) from a snapshot that held every release.")
    if continued or unclean_restarts:
        kind = "unvouched"
        guarantee = (
            "unvouched (restarted): the spend is that of this learner's own path; releases between its last "
            "snapshot and a crash, or by another copy of it, used other noise and are not in the account"
        )
        notes.append(
            f"Restarts that may have lost releases: {unclean_restarts + continued}. Lost releases about a "
            "record come on top of the spend above."
        )
    if charged:
        notes.append(
            f"{charged} fork(s) are charged: after a crash up to {settings.window} releases were, or may "
            "have been, made again in another way."
        )
    if not declared:
        notes.append(
            "The feature set is taken from the first record and public: the names are assumed equal for "
            "neighbouring streams, and the first record readable. With features= declared neither is needed."
        )
    if settings.bounds:
        notes.append("The declared bounds are taken as public.")
    entity = settings.entity
    unit = "the content of one record (its feature values and its label)"
    adjacency = "replacement or blanking of one record's content, everything else equal (replace-one)"
    if entity is not None:
        unit = (
            f"the contents of all records of one entity: at most {entity.records} are learned from, at least "
            f"{entity.separation} slots apart"
        )
        adjacency = "replacement or blanking of the contents of all of an entity's records, all else equal"
        notes.append(
            "Which of its records these are is decided by entity and slot alone. All records of an entity "
            "have to come to one lane: over several its spends add up (mu^2)."
        )
    if seeded:
        guarantee, kind = "void (fixed seed)", "void"
        notes.append(
            "Whoever knows the seed can compute the noise; the numbers above are those of seed=None."
        )
    return PrivacyReport(
        epsilon_spent=epsilon_from(mu, settings.delta),
        epsilon_budget=settings.epsilon,
        delta=settings.delta,
        mu_spent=mu,
        mu_budget=settings.mu,
        unit=unit,
        adjacency=adjacency,
        releases=releases + moments_released,
        guarantee=guarantee,
        kind=kind,  # type: ignore[arg-type]
        horizon_left=horizon_left,
        noise_std=noise_std,
        mechanism=mechanism,
        notes=tuple(notes),
    )
