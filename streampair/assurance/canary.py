"""Copies of a private learner with a canary in one slot, which an audit attacks (docs/privacy 9.5)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from streampair.records.labels import TwoLabels

__all__ = ["PUSH", "Content", "Impulses", "Scene", "Trial", "slots_of"]

Floats = NDArray[np.float64]

_FEATURES = 4
_FEW = 2  # features, trees and splits of a forest, of whose releases each number is asked by itself
_TURNS = 12  # directions in which records of a forest lie: a pair that is far apart falls into other leaves
_FOREVER = 10**9
_WARMUP = 8
_FAR = 8.0  # times the bound: what is not cut shows
_TURN = -0.1825  # with 1 and the other label it moves the warm-up furthest (docs/privacy, Lemma 60)
PUSH = 64  # slots, at most, that bring a metric to where pairs of one class are active
_SURE = 4.0  # standard deviations that it is then away from where they are not


class Impulses:
    """Zeros in place of normals, but for one; counts how many were asked for."""

    def __init__(self, index: int = -1, size: float = 0.0) -> None:
        self.index, self.size, self.drawn = index, size, 0

    def take(self, count: int) -> Floats:
        out = np.zeros(count)
        if self.drawn <= self.index < self.drawn + count:
            out[self.index - self.drawn] = self.size
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
    """What the slots around the canary hold: null records, or ones that keep its pairs steep.

    A logistic loss is steep where its margin is low, and two runs that a canary draws apart along one feature
    cannot both keep it low there. Along another one they can. So the slots before the canary and its partners
    draw the weights along that one (`lifted`), and the canary's later partners lie there, the further the
    further apart the runs are by then: from `near` to `far`.
    """

    lifted: bool = False
    near: float = 0.0
    far: float = 0.0


_REST = Scene()
_LIFTED = (Scene(True, 0.0, 0.2), Scene(True, 0.3, 0.7), Scene(True, 0.4, 1.0))


class Trial:
    """Copies of one learner, run on a null stream with a canary in it."""

    def __init__(self, learner: Any, part: str, slots: int) -> None:
        self.learner, self.part, self.slots = learner, part, slots
        settings = learner.settings
        # Of many trees each shows its share of mu^2 as few do, and so it is with columns and leaves.
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
        # One that is learned from pairs: moments have none, and a metric's are like any.
        self.metric = hasattr(type(learner), "metric_") and not self.moments
        self.size = settings.buffer.influence.size
        self.high, self.low = _two_labels(learner)
        # Whether the rule's own iterate has no noise.
        self.secret = True
        rule = self.make().run.state
        self.secret = rule.secret_iterate
        # What learns is audited by itself, and so is what is counted beside it.
        self.evaluated = isinstance(rule, WithPrivateAUCState)
        if part == "auc":
            self.slots = rule.plan.histograms.end(0)
        self.push = self._pushed(rule.plan) if part == "learning" and self.metric and not self.secret else 0

    def _pushed(self, plan: Any) -> int:
        """Slots of pairs of two classes that bring a metric away from 0, further than the noise; 0: too many.

        Each moves it by half the clip, once the buffer is full.
        """
        most = min(PUSH, self.slots // 2 - self.size)
        strategy = getattr(plan, "strategy", None)
        spread = math.sqrt(max(most, 0)) if strategy is None else strategy.error(self.slots)
        needed = self.size + math.ceil(2.0 * _SURE * plan.sigma * spread / plan.clip)
        return needed if needed <= most else 0

    def make(self) -> Any:
        """A fresh learner, with fixed coins and noise still to be chosen."""
        settings = self.learner.settings
        warmup = self.slots if self.part == "warm-up" else min(settings.warmup, _WARMUP)
        # What the warm-up took must not show in what comes after it: as many slots again.
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
            # Said, so that a short run has trees too.
            changes |= {"trees": min(forest.trees, _FEW), "depth": min(forest.depth, _FEW)}
        if "mechanism" in self.learner._get_params():
            changes["mechanism"] = self._mechanism()
        if self.part == "learning" and not self.secret:
            # Where noise moves the iterate, one far from 0 would satisfy pairs, whose gradient then is 0.
            changes["radius"] = min(1e-6, settings.radius)
        model = self.learner.clone(changes)
        if self.part != "warm-up":
            # As if the warm-up were over, and had found the features as they should be.
            model.run.skip_warmup()
            if self.is_forest:
                # Without moments there would be no leaves; with these a record is as long as it comes.
                d = len(self.names)
                model.run.as_released(np.zeros(d), np.full(d, 1.0 / model.run.state.spread), 0.0)
        if self.moments:
            # Models are post-processing of the releases, and take most of the time.
            getattr(model.run.state, "inner", model.run.state).fits_model = False
        if self.part == "auc":
            # Given what learning has released, the weights are what they are: whatever scores they give.
            model.run.state = model.run.state.with_fixed_weights(np.full(len(self.names), 0.5))
        return model

    def _mechanism(self) -> MechanismOptions:
        """That of the learner, for so short a run; None might be another one there."""
        options: MechanismOptions | None = self.learner.mechanism
        if options is None:
            return SecondMoments() if self.moments else PairGradients()
        if isinstance(options, DecayedMoments):
            # The noise is the same for any half-life; blocks of a slot.
            return DecayedMoments(min(options.half_life, BLOCKS))
        return options

    def scenes(self) -> Sequence[Scene]:
        """What may be around the canary."""
        # Noise does not move a secret iterate, so that it can be led.
        led = self.part == "learning" and self.secret and not (self.metric or self.moments)
        if not led or self.size == 0 or self.entity is not None or len(self.names) < 2:
            return (_REST,)
        return (_REST, *_LIFTED)

    def contents(self, scene: Scene = _REST) -> Iterator[Content]:
        """What the canary's slot may hold; the first leaves pairs active, whatever the noise."""
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
        """Where the canary's features may lie while the learner learns: the words, and d features."""
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
            # The account is that of the worst record, which may be a late one.
            tried |= {2 * size, n // 8, n // 4, n // 3, 3 * n // 4, n - size - 2}
        return sorted(slot for slot in tried if 0 < slot < n)

    def places(self, spot: int) -> Sequence[int]:
        """Slots of the canary: all that its entity may have, if entities are protected."""
        if self.entity is None:
            return range(spot, spot + 1)
        step, most = self.entity.separation, self.entity.records
        return range(spot, min(spot + most * step, self.slots), step)

    def background(self, t: int, spot: int, scene: Scene = _REST) -> Content:
        """What all other slots hold: null records, where noise does not decide which pairs are active.

        In a scene that lifts the weights, records of the canary's class do until its partners fill the
        buffer. For metrics a pair of one class sits on the kink of the hinge at W = 0. Pairs of two classes
        bring W away from it, further than the noise; then partners for the canary fill the buffer.
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
        """Everything that a run releases: after every slot of learning, and what the warm-up gives.

        What is learned after a warm-up is standardised as if it had released zeros and ones: given its
        release, nothing that follows may depend on its records.
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
        """The histogram of a window in which all other records are null records."""
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
        """mu by the account: at the end of the run, and for a record of this slot."""
        model = self.make()
        if self.part == "warm-up":
            # Of all records of an entity that it may hold; its plan is for each of them.
            whole = model.run.mu_warmup
            return whole, whole
        plan = model.run.state.plan
        if self.part == "auc":
            return plan.mu_spent(self.slots), plan.histograms.mu_spent(self.slots)
        learning = plan.plan if self.evaluated else plan
        # Where noise is correlated over slots, all that counts is how many follow; else the worst record is
        # meant.
        stationary = hasattr(learning, "strategy") and hasattr(learning, "influence")
        seen = self.slots - spot if stationary else self.slots
        return plan.mu_spent(_FOREVER if model.horizon is None else self.slots), learning.mu_spent(seen)

    def _record(self, content: Content) -> dict[Hashable, float]:
        out = {}
        for name, value in zip(self.names, content.x, strict=True):
            low, high = self.bounds.get(name, (-1.0, 1.0))
            out[name] = (low + high) / 2 + value * (high - low) / 2
        return out

    def dry(self, spot: int, canary: Content, stream: Impulses, scene: Scene = _REST) -> Floats:
        """The releases with chosen numbers in place of normals."""
        model = self.make()
        model.run.use(stream)
        return self.released(model, spot, canary, scene)

    def wet(self, spot: int, canary: Content, number: int, scene: Scene = _REST) -> Floats:
        """The releases with the learner's own noise."""
        model = self.make()
        # The coins of the buffer are drawn already; the noise comes from where the learner takes it.
        model.run.draw_from(self.learner.noise_key)
        model.bind_noise(f"audit {number}")
        return self.released(model, spot, canary, scene)


def _times(factor: float, x: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(factor * value for value in x)


def slots_of(places: Sequence[int]) -> str:
    """The slots of a canary, in words."""
    first = f"slot {places[0] + 1}"
    return first if len(places) == 1 else f"{len(places)} slots of one entity from {first} on"


def _two_labels(learner: Any) -> tuple[Any, Any]:
    """The label that ranks high and one that ranks low; for metrics two different ones."""
    if hasattr(learner, "relevance"):
        low, high = learner.relevance
        return float(high), float(low)
    if getattr(learner, "classes", None) is not None:
        return learner.classes[0], learner.classes[1]
    if not hasattr(learner, "positive"):
        return True, False
    # Of a private learner both are known: a label that it does not know would be that of a null record.
    labels = TwoLabels(learner.positive, learner.negative)
    return labels.positive, labels.negative
