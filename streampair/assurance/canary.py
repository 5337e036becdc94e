"""Runs of a private learner on streams with a canary in one slot, for the audit (docs/privacy 9.5)."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import PrivacyWarning
from streampair.privacy.mechanism_options import (
    DecayedMoments,
    MechanismOptions,
    PairGradients,
    SecondMoments,
)
from streampair.privacy.mechanisms.decayed_moments import BLOCKS
from streampair.privacy.mechanisms.dp_forest import DPForest
from streampair.privacy.mechanisms.private_auc import WithPrivateAUCState
from streampair.privacy.mechanisms.second_moments import Moments
from streampair.privacy.provenance import Origin, Origins
from streampair.records.features import TwoLabels

__all__ = ["PUSH", "Content", "Impulses", "Scene", "Trial", "slots_of"]

Floats = NDArray[np.float64]

_FEATURES = 4
_FEW = 2  # features, trees and splits of a forest: the response of each number of its releases is computed
_TURNS = 12  # directions of a forest's canaries: records in distant directions fall into different leaves
_FOREVER = 10**9
_WARMUP = 8
_FAR = 8.0  # times the bound: detects values that are not clipped
_TURN = -0.1825  # replacing it by 1 and the other label moves the warm-up most (docs/privacy, Lemma 60)
PUSH = 64  # most slots that move a metric to where pairs of one class are active
_SURE = 4.0  # distance of the metric, in standard deviations of the noise, from where they are inactive


class Impulses:
    """Stream of zeros in place of normals, with one impulse; counts the numbers drawn."""

    def __init__(self, index: int = -1, size: float = 0.0) -> None:
        self.index, self.size, self.drawn = index, size, 0

    def take(self, count: int) -> Floats:
        out = np.zeros((2, count))
        if self.drawn <= self.index < self.drawn + count:
            out[0, self.index - self.drawn] = self.size
        self.drawn += count
        return out


@dataclass(frozen=True)
class Content:
    """A record's content: scaled features, and a label."""

    name: str
    x: tuple[float, ...]
    y: Any


@dataclass(frozen=True)
class Scene:
    """Contents of the slots around the canary: null records, or records that keep its pairs' slopes steep.

    A logistic loss is steep where the margin is low. Two runs whose weights a canary has moved apart along
    one feature cannot both have low margins along it, but can along another feature. So in a `lifted` scene
    the records before the canary and its partners move the weights along that other feature, and the canary's
    later partners lie along it, from `near` to `far`: further as the runs move apart.
    """

    lifted: bool = False
    near: float = 0.0
    far: float = 0.0


_REST = Scene()
_LIFTED = (Scene(True, 0.0, 0.2), Scene(True, 0.3, 0.7), Scene(True, 0.4, 1.0))


class Trial:
    """Runs of copies of one learner on a stream of null records with a canary."""

    def __init__(self, learner: Any, part: str, slots: int) -> None:
        self.learner, self.part, self.slots = learner, part, slots
        settings = learner.settings
        # Each tree, column and leaf has its share of mu^2, so few of them are enough.
        self.is_forest = isinstance(settings.mechanism, DPForest)
        few = _FEW if self.is_forest else _FEATURES
        names = list(learner.feature_names or learner.features or ["canary", "other"])[:few]
        self.names: list[Hashable] = names
        self.bounds: dict[Hashable, tuple[float, float]] = {
            name: settings.bounds[name] for name in names if name in settings.bounds
        }
        self.claimed: float = settings.mu
        self.entity = settings.entity
        self.moments = isinstance(settings.mechanism, Moments)
        # A metric that is learned from pairs, unlike second moments.
        self.metric = hasattr(type(learner), "metric_") and not self.moments
        self.size = settings.buffer.influence.size
        self.high, self.low = _two_labels(learner)
        # Whether the learner's internal iterate has no noise.
        self.secret = True
        state = self.make().run.state
        self.secret = state.secret_iterate
        # Learning and the histograms of the private AUC are audited separately.
        self.evaluated = isinstance(state, WithPrivateAUCState)
        if part == "auc":
            self.slots = state.plan.companion.end(0)
        pushed = part == "learning" and self.metric and not self.secret
        self.push = self._pushed(state.mechanism_plan) if pushed else 0

    def _pushed(self, plan: Any) -> int:
        """Number of slots whose pairs move a metric away from 0, further than the noise; 0 if too many.

        Each moves it by half the clip, once the buffer is full.
        """
        most = min(PUSH, self.slots // 2 - self.size)
        strategy = getattr(plan, "strategy", None)
        spread = math.sqrt(max(most, 0)) if strategy is None else strategy.error(self.slots)
        needed = self.size + math.ceil(2.0 * _SURE * plan.sigma * spread / plan.clip)
        return needed if needed <= most else 0

    def make(self) -> Any:
        """Return a fresh copy, with fixed random draws; the caller sets the noise."""
        settings = self.learner.settings
        warmup = self.slots if self.part == "warm-up" else min(settings.warmup, _WARMUP)
        # Releases after the warm-up must not depend on its records: as many slots again.
        after = self.slots
        changes = {
            "features": self.names,
            "bounds": self.bounds,
            "warmup": warmup,
            "horizon": None if settings.horizon is None else warmup + after,
            "seed": 0,
            "noise_key": None,
        }
        if self.is_forest:
            forest = settings.mechanism
            # Given explicitly, since a short horizon would choose no trees.
            changes |= {"trees": min(forest.trees, _FEW), "depth": min(forest.depth, _FEW)}
        if "mechanism" in self.learner._get_params():
            changes["mechanism"] = self._mechanism()
        if self.part == "learning" and not self.secret:
            # If noise moved the iterate far from 0, pairs would be satisfied and have no gradient.
            changes["radius"] = min(1e-6, settings.radius)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # of the short horizon of a copy
            model = self.learner.clone(changes)
        if self.part != "warm-up":
            # Skip the warm-up, with features that are standardised already.
            model.run.skip_warmup()
            if self.is_forest:
                # A forest needs released moments for its leaves; with these, records have their largest norm.
                d = len(self.names)
                model.run.as_released(np.zeros(d), np.full(d, 1.0 / model.run.state.spread), 0.0)
        if self.moments:
            # Models are post-processing of the releases, and take most of the time.
            getattr(model.run.state, "inner", model.run.state).fits_model = False
        if self.part == "auc":
            # The histograms are audited for fixed weights, given the releases of learning.
            model.run.state = model.run.state.with_fixed_weights(np.full(len(self.names), 0.5))
        return model

    def _mechanism(self) -> MechanismOptions:
        """Return the learner's mechanism, explicitly: for a short run None could choose another one."""
        options: MechanismOptions | None = self.learner.mechanism
        if options is None:
            return SecondMoments() if self.moments else PairGradients()
        if isinstance(options, DecayedMoments):
            # The noise does not depend on the half-life; this one has blocks of one slot.
            return DecayedMoments(min(options.half_life, BLOCKS))
        return options

    def scenes(self) -> Sequence[Scene]:
        """The scenes that the canary is tried in."""
        # Noise does not move a secret iterate, so the records before the canary determine it.
        led = self.part == "learning" and self.secret and not (self.metric or self.moments)
        if not led or self.size == 0 or self.entity is not None or len(self.names) < 2:
            return (_REST,)
        return (_REST, *_LIFTED)

    def contents(self, scene: Scene = _REST) -> Iterator[Content]:
        """Contents of the canary's slot; with the first, pairs are active whatever the noise is."""
        d = len(self.names)
        classes = [(self.high, "high"), (self.low, "low")]
        if self.part == "auc":
            for label, word in (*classes, (None, "no label")):
                yield Content(f"(0, {word})", (0.0,) * d, label)
            yield Content("(+B, high)", (1.0,) + (0.0,) * (d - 1), self.high)
        elif scene.lifted:
            for sign, place in ((1.0, "+B"), (-1.0, "-B")):
                yield Content(f"({place} across the lift, high)", (sign,) + (0.0,) * (d - 1), self.high)
        elif self.part == "warm-up":
            values = (1.0, -1.0, 0.25, -0.25, 0.0, _TURN, _FAR, -_FAR)
            for value, (label, word) in itertools.product(values, classes):
                yield Content(f"(every feature at {value:+g}, {word})", (value,) * d, label)
        else:
            labels = classes[:1] if self.metric and not (self.push or self.secret) else classes
            for (place, x), (label, word) in itertools.product(self._positions(d), labels):
                yield Content(f"({place}, {word})", x, label)

    def _positions(self, d: int) -> list[tuple[str, tuple[float, ...]]]:
        """Features of the canary for the audit of learning: a description, and d values."""
        first, corner = (1.0,) + (0.0,) * (d - 1), (1.0,) * d
        places = [("+B", first), ("-B", _times(-1.0, first)), ("0", _times(0.0, first))]
        if self.metric:
            places = [places[0], places[2], ("+B along another feature", (0.0,) * (d - 1) + (1.0,))]
        if self.moments:
            # Two records of one class at t = -1/2 reach D (docs/privacy, Lemma 31).
            third = (-0.5, math.sqrt(0.75), *first[2:]) if d > 1 else (-0.5,)
            places.append(("B at 120 degrees", third))
        if self.is_forest:
            for name, sign in (("lowest", -1.0), ("highest", 1.0)):
                places.append((f"{name} corner", _times(sign / math.sqrt(d), corner)))
            for k in range(1, _TURNS if d > 1 else 0):
                angle = math.tau * k / _TURNS
                places.append((f"B at {360 * k // _TURNS} degrees", (math.cos(angle), math.sin(angle))))
        places.append((f"{_FAR:+g} B in all", _times(_FAR, corner)))
        return places

    def spots(self) -> Sequence[int]:
        """Slots that the canary is tried in."""
        if self.part in ("warm-up", "auc"):
            return [0, self.slots - 1]
        size, n = self.size, self.slots
        tried = {1, 2, 3, size, size + 1, n // 2}
        if self.metric and not self.secret:
            tried = {self.push + size} if self.push else tried
        elif self.secret:
            # The account is for the worst record, which may be a late one.
            tried |= {2 * size, n // 8, n // 4, n // 3, 3 * n // 4, n - size - 2}
        return sorted(slot for slot in tried if 0 < slot < n)

    def places(self, spot: int) -> Sequence[int]:
        """Slots of the canary; with `entity`, of all records that its entity may have."""
        if self.entity is None:
            return range(spot, spot + 1)
        step, most = self.entity.separation, self.entity.records
        return range(spot, min(spot + most * step, self.slots), step)

    def background(self, t: int, spot: int, scene: Scene = _REST) -> Content:
        """Content of any other slot: a null record, unless noise decides which pairs are active.

        In a lifted scene records of the canary's class move the weights until its partners fill the buffer.
        For metrics a pair of one class is at the kink of the hinge at W = 0. Pairs of two classes move W away
        from it, further than the noise; then partners of the canary fill the buffer.
        """
        if scene.lifted:
            up = (0.0,) * (len(self.names) - 1) + (1.0,)
            if t < spot - self.size:
                return Content("lift", up, self.high)
            if spot < t <= spot + self.size:
                along = scene.near + (scene.far - scene.near) * (t - spot) / self.size
                return Content("partner", _times(along, up), self.low)
        if not (self.part == "learning" and self.metric and (self.push or self.secret)):
            return Content("null", (0.0,) * len(self.names), self.low)
        place = (-1.0,) + (0.0,) * (len(self.names) - 1)
        if t < self.push and t % 2:
            return Content("push", _times(-1.0, place), self.high)
        return Content("partner", place, self.low)

    def released(self, model: Any, spot: int, canary: Content, scene: Scene = _REST) -> Floats:
        """Return all releases of a run: those of every learned slot, and that of the warm-up.

        After a warm-up, records are standardised as if it had released zeros and ones: given its release, no
        later one may depend on its records.
        """
        places = self.places(spot)
        if self.part == "auc":
            return self._counted(model, places, canary)
        releases = []
        for t in range(self.slots):
            content = canary if t in places else self.background(t, spot, scene)
            origin = Origin(entity="canary" if t in places else f"other {t}")
            model.learn_one(self._record(content), content.y, origin)
            if self.part == "learning":
                releases.append(model.run.released)
        if self.part == "warm-up":
            releases.append(model.run.warmup.released)
            d = len(self.names)
            model.run.as_released(np.zeros(d), np.full(d, 1.0 / math.sqrt(d)), 0.0)
            for t in range(self.slots):
                content = self.background(t, spot)
                model.learn_one(self._record(content), content.y, Origin(entity=f"after {t}"))
                releases.append(model.run.released)
        return np.concatenate([np.ravel(values) for values in releases])

    def _counted(self, model: Any, places: Sequence[int], canary: Content) -> Floats:
        """Histograms of the private AUC for a window in which all other records are null records."""
        t = 0
        for place in (*places, self.slots):
            model.run.take_many(
                np.zeros((place - t, len(self.names))),
                np.full(place - t, math.nan),
                Origins(entities=[f"other {slot}" for slot in range(t, place)]),
            )
            if place < self.slots:
                model.learn_one(self._record(canary), canary.y, Origin(entity="canary"))
            t = place + 1
        return np.ravel(model.run.state.histograms)

    def account(self, spot: int) -> tuple[float, float]:
        """Return mu of the account: at the end of the run, and for a record of this slot."""
        model = self.make()
        if self.part == "warm-up":
            # For all records that an entity may have in the warm-up; its plan is for one record.
            whole = model.run.mu_warmup
            return whole, whole
        plan, mechanism = model.run.state.plan, model.run.state.mechanism_plan
        if self.part == "auc":
            return plan.mu_spent(self.slots), plan.companion.mu_spent(self.slots)
        learning = plan.mechanism if self.evaluated else plan
        # With noise that is correlated over slots, mu depends on the number of slots that follow; otherwise
        # it is that of the worst record.
        stationary = hasattr(mechanism, "strategy") and hasattr(mechanism, "influence")
        seen = self.slots - spot if stationary else self.slots
        return plan.mu_spent(_FOREVER if model.horizon is None else self.slots), learning.mu_spent(seen)

    def _record(self, content: Content) -> dict[Hashable, float]:
        out = {}
        for name, value in zip(self.names, content.x, strict=True):
            low, high = self.bounds.get(name, (-1.0, 1.0))
            out[name] = (low + high) / 2 + value * (high - low) / 2
        return out

    def dry(self, spot: int, canary: Content, stream: Impulses, scene: Scene = _REST) -> Floats:
        """Return the releases with given numbers in place of the normals."""
        model = self.make()
        model.run.use(stream)
        return self.released(model, spot, canary, scene)

    def wet(self, spot: int, canary: Content, number: int, scene: Scene = _REST) -> Floats:
        """Return the releases with the learner's own noise."""
        model = self.make()
        # The buffer's random draws are fixed already; the noise has the learner's own source.
        model.run.draw_from(self.learner.noise_key)
        model.bind_noise(f"audit {number}")
        return self.released(model, spot, canary, scene)


def _times(factor: float, x: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(factor * value for value in x)


def slots_of(places: Sequence[int]) -> str:
    """Describe the slots of a canary."""
    first = f"slot {places[0] + 1}"
    return first if len(places) == 1 else f"{len(places)} slots of one entity from {first} on"


def _two_labels(learner: Any) -> tuple[Any, Any]:
    """Return a label that ranks high and one that ranks low; for metrics, two different labels."""
    if hasattr(learner, "relevance"):
        low, high = learner.relevance
        return float(high), float(low)
    if getattr(learner, "classes", None) is not None:
        return learner.classes[0], learner.classes[1]
    if not hasattr(learner, "positive"):
        return True, False
    # A private learner has both labels declared; any other label would make a null record.
    labels = TwoLabels(learner.positive, learner.negative)
    return labels.positive, labels.negative
