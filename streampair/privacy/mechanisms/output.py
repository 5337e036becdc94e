"""OnPairStrC and OnPairC: iterates released under fresh noise (docs/privacy.md 4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import kernels, losses
from streampair.errors import ConfigError
from streampair.privacy.accounting import epsilon_from
from streampair.privacy.mechanisms.base import Mechanism, Release, Settings
from streampair.privacy.mechanisms.buffer import PairBuffer
from streampair.privacy.mechanisms.fitted import near, under
from streampair.privacy.mechanisms.gradients import empty_buffer
from streampair.privacy.mechanisms.leader import projected
from streampair.privacy.mechanisms.output_plan import (
    OutputPlan,
    check_allocation,
    plan_output,
    plan_output_paper,
)
from streampair.privacy.mechanisms.run import Run
from streampair.privacy.noise import ChainedNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = ["Output", "OutputRun"]

_CHUNK = 1024


class SecretIterate:
    """The door: iterates without noise, which leave rounded, under fresh noise each.

    Parameters
    ----------
    plan
        The calibrated mechanism: it says what a release is worth.
    buffer
        The buffer, empty.
    last
        Publish the last release rather than the average.

    Attributes
    ----------
    average, published
        What has left, (dim,): the average of the releases weighted by their precision, before and after the
        projection. `weight` is the sum of the weights.
    """

    __slots__ = (
        "__cells",
        "__vectors",
        "_last",
        "_plan",
        "_scalars",
        "average",
        "buffer",
        "published",
        "weight",
    )

    def __init__(self, plan: OutputPlan, buffer: PairBuffer, last: bool) -> None:
        self._plan = plan
        self.buffer = buffer
        self._last = last
        self._scalars = np.array([plan.clip, plan.radius, plan.alpha])
        self.__vectors = np.zeros((3, plan.dim))  # iterate, w_0, gradient
        self.__cells = np.empty((0, plan.dim), dtype=np.int64)
        self.average = np.zeros(plan.dim)
        self.published = np.zeros(plan.dim)
        self.weight = 0.0

    @property
    def release(self) -> Release:
        """What leaves is worth this; computed when first asked for, which takes a pass over the plan."""
        return self._plan.release

    def scatter(self, point: Floats, *, centre: bool) -> None:
        """Put the iterate, and w_0 with it if `centre`, at a random point; it depends on no record."""
        self.__vectors[0] = point
        if centre:
            self.__vectors[1] = point
        else:
            self.published[:] = point

    def step(self, rows: Floats, labels: Floats, steps: int) -> None:
        """A step a row, in secret; what can be released of each stays until `emit`."""
        b, span = self.buffer, slice(steps, steps + len(rows))
        self.__cells = np.empty((len(rows), self._plan.dim), dtype=np.int64)
        kernels.output_steps(
            rows, labels, self._plan.etas[span], self._plan.grids[span], steps, b.ints, self._scalars,
            self.__vectors, b.rows, b.labels, b.ages, self.__cells,
        )  # fmt: skip

    def cells(self) -> bytes:
        """What noise will be added to, as bytes: for the chain that keys the noise alone."""
        return self.__cells.tobytes()

    def emit(self, normals: Floats, steps: int) -> None:
        """Release those of the last `step` that are planned, under the plan's noise made of `normals`."""
        span = slice(steps, steps + len(self.__cells))
        self.weight = kernels.output_releases(
            self.__cells, normals, self._plan.sigmas[span], self._plan.grids[span], self._last,
            self._plan.radius, self.weight, self.average, self.published,
        )  # fmt: skip

    def to_state(self) -> dict[str, Any]:
        """For a snapshot: the iterate in it is as secret as the data."""
        return {
            "vectors": self.__vectors[:2].copy(),
            "outputs": np.array([self.average, self.published]),
            "weight": self.weight,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state`.

        Raises
        ------
        ValueError
            If it is of another shape.
        """
        vectors, outputs = state["vectors"], state["outputs"]
        if not vectors.shape == outputs.shape == (2, self._plan.dim):
            raise ValueError("weights of another shape")
        self.__vectors[:2] = vectors
        self.average[:], self.published[:] = outputs
        self.weight = float(state["weight"])


class OutputRun(Run):
    """State of a run whose iterates are without noise and secret, and of their noisy releases (4.1).

    Published is the average of the releases, weighted by their precision: post-processing, so free, and much
    better than the last one. With the paper's calibration it is the last one, as there.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    last
        Publish the last release.
    scattered
        Start at a random point w_0 of the ball, which the ridge term pulls to (H20, Algorithm 2).
    """

    plan: OutputPlan
    secret_iterate = True

    def __init__(
        self, plan: OutputPlan, buffer: PairBuffer, *, last: bool = False, scattered: bool = False
    ) -> None:
        self.plan = plan
        self.steps = 0
        self.door = SecretIterate(plan, buffer, last)
        self._scattered = scattered

    @property
    def average(self) -> Floats:
        """The published weights, shape (p,): a view."""
        return self.door.published

    @property
    def noise(self) -> Floats | None:
        """That of the average of the releases: each has its own noise, and is weighed by its precision."""
        weight, average = self.door.weight, self.door.average
        if not weight > 0.0:
            return None
        moves = projected(np.eye(self.plan.dim) / math.sqrt(weight), average, self.plan.radius)
        return np.asarray(np.sqrt((moves * moves).sum(axis=1)))

    @property
    def releases(self) -> int:
        """Models released so far, without the random ones."""
        return self.plan.releases(self.steps)

    @property
    def released(self) -> Floats:
        """The average of the releases, (p,), before the projection: for the audit."""
        return self.door.average.copy()

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        return self.door.buffer.filled(self.steps)

    def card(self) -> tuple[Release, ...]:
        """The iterates."""
        return (self.door.release,)

    def _scatter(self, stream: Stream) -> Floats:
        """A uniform point of the ball: d coordinates of one on the sphere in d + 2 dimensions."""
        z = stream.take(self.plan.dim + 2)
        point: Floats = z[: self.plan.dim] * (self.plan.radius / math.sqrt(float(kernels.dot(z, z))))
        return point

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan, ends = self.plan, slice(None, None, max(self.plan.horizon - 1, 1))
        return [
            plan.radius, plan.clip, plan.alpha, plan.diameter, float(plan.horizon), float(plan.warmup),
            *plan.etas[ends].tolist(), *plan.sigmas[ends].tolist(), *plan.grids[ends].tolist(),
            float(plan.releases(plan.horizon)),
        ]  # fmt: skip

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        self._take(row, label, chain, chain)

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row. Label NaN makes it a null slot: a step of the ridge term, and a release."""
        for at in range(0, len(rows), _CHUNK):
            self._take(rows[at : at + _CHUNK], labels[at : at + _CHUNK], stream, None)

    def _take(self, rows: Floats, labels: Floats, stream: Stream, chain: ChainedNoise | None) -> None:
        plan, dim, n = self.plan, self.plan.dim, len(rows)
        shown = plan.releases(self.steps + n) - plan.releases(self.steps)
        random = max(min(plan.warmup - self.steps, n), 0)
        centre = self._scattered and self.steps == 0
        if chain is not None and (random or centre):
            chain.advance(b"")  # these slots make no step and release nothing of the data
            chain = None
        if centre:
            self.door.scatter(self._scatter(stream), centre=True)
        for _ in range(random):
            self.door.scatter(self._scatter(stream), centre=False)
        self.door.step(rows, labels, self.steps)
        if chain is not None:
            chain.advance(self.door.cells() if shown else b"")
        if shown:
            self.door.emit(stream.take(shown * dim), self.steps)
        self.steps += n

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the iterate without noise among them is as secret as the data."""
        return {
            "steps": self.steps,
            **self.door.to_state(),
            "buffer": self.door.buffer.to_state(self.steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        steps = int(state["steps"])
        if not 0 <= steps <= self.plan.horizon:
            raise ValueError("steps beyond the horizon")
        self.door.load_state(state)
        self.door.buffer.load_state(state["buffer"], steps)
        self.steps = steps


@dataclass(frozen=True)
class Output(Mechanism):
    """Strongly convex descent without noise, in secret, whose iterates are released under fresh noise.

    Parameters
    ----------
    l2
        Strength alpha of the ridge term; None: by the horizon.
    releases
        Number of releases, evenly spaced, the last at the horizon; None: one after every record.
    calibration
        ``"tight"`` or ``"paper"``.
    allocation
        ``"minimal"`` or ``"equal"``.
    centred
        Whether the ridge term pulls to a point w_0 that need not be 0 (H20, Algorithm 2).

    Raises
    ------
    ConfigError
        If one is out of range.
    """

    # What a record did fades, however long it is used.
    bounded_uses: ClassVar[bool] = False
    radii: ClassVar[tuple[float, float]] = (1.0, 10.0)

    l2: float | None = None
    releases: int | None = None
    calibration: str = "tight"
    allocation: str = "minimal"
    centred: bool = False

    def __post_init__(self) -> None:
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration is {self.calibration!r}", fix="give 'tight' or 'paper'")
        check_allocation(self.allocation)
        if self.releases is not None and (
            isinstance(self.releases, bool) or not isinstance(self.releases, int) or self.releases < 1
        ):
            raise ConfigError(
                f"releases is {self.releases!r}", fix="give the number of releases, or None for every step"
            )

    @property
    def paper(self) -> bool:
        """Whether noise and steps are those of H20, to the letter."""
        return self.calibration == "paper"

    @property
    def default_clip(self) -> float:
        """1, and none in the paper."""
        return math.inf if self.paper else 1.0

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """None in the paper."""
        return 0 if self.paper else None

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """A smooth loss; None is the logistic one."""
        checked = losses.Logistic() if loss is None else loss
        checked.smoothness(1.0, 1.0, form=form)  # refuses the hinge
        return checked

    def _strength(self, settings: Settings, diameter: float) -> float:
        """Strength alpha of the ridge term.

        None balances its bias `alpha R^2 / 2` with the loss `D |noise|` of the last release, whose noise is
        about `2 D / (alpha n mu)` a coordinate.
        """
        if self.l2 is not None:
            return float(self.l2)
        assert settings.learning is not None
        assert settings.dim is not None
        noise = math.sqrt(settings.dim) / (settings.learning * settings.mu_learning)
        return 2.0 * diameter / settings.radius * math.sqrt(noise)

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> OutputRun:
        """A run; what was fitted for a saved one is taken from it."""
        asked = settings
        assert asked.learning is not None
        assert asked.dim is not None
        clip = asked.clip if math.isfinite(asked.clip) else None
        diameter = asked.loss.diameter(1.0, asked.radius, clip, form=asked.form)
        alpha = self._strength(asked, diameter)
        smoothness = asked.loss.smoothness(1.0, asked.radius, form=asked.form)
        scale: float | None = None
        if saved:
            diameter = near("diameter", saved["diameter"], diameter)
            alpha = near("alpha", saved["alpha"], alpha)
            smoothness = near("smoothness", saved["smoothness"], smoothness)
            scale = saved["scale"]
        plan: OutputPlan
        if self.paper:
            # The paper's G is that of the whole loss, the ridge term included.
            ridge = alpha * asked.radius * (2.0 if self.centred else 1.0)
            plan = plan_output_paper(
                asked.epsilon,
                asked.delta,
                dim=asked.dim,
                influence=asked.buffer.influence,
                diameter=diameter,
                lipschitz=asked.loss.lipschitz(1.0, asked.radius, form=asked.form) + ridge,
                radius=asked.radius,
                alpha=alpha,
                smoothness=smoothness,
                horizon=asked.learning,
                scale=scale,
            )
        else:
            plan = plan_output(
                asked.mu_learning,
                dim=asked.dim,
                influence=asked.buffer.influence,
                diameter=diameter,
                clip=asked.clip,
                radius=asked.radius,
                alpha=alpha,
                smoothness=smoothness,
                horizon=asked.learning,
                releases=self.releases,
                allocation=self.allocation,  # type: ignore[arg-type]
                forks=asked.forks,
                window=asked.window,
                group=1 if asked.entity is None else asked.entity.within(asked.learning),
                relation=asked.relation,
                scale=scale,
            )
        return OutputRun(
            under(plan, saved),
            empty_buffer(asked, seed),
            last=self.paper,
            scattered=self.centred and self.paper,
        )

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        clipped = f" clipped per pair at {settings.clip:g} and" if math.isfinite(settings.clip) else ""
        return (
            f"Mechanism: gradients{clipped} averaged over {settings.buffer.describe()} drive a strongly "
            "convex descent without noise, which is secret; its iterates are released under fresh Gaussian "
            f"noise.{settings.warmup_words()}"
        )

    def notes(self, settings: Settings, run: Run) -> list[str]:
        """What the paper's constants give by the exact account."""
        if not self.paper:
            return []
        plan: OutputPlan = run.plan
        exact = epsilon_from(plan.mu_spent(plan.horizon), settings.delta)
        return [
            f"Noise and steps are those of Huai et al. (2020), whose constants promise epsilon "
            f"{settings.epsilon:g}; by the exact account the whole run spends epsilon {exact:.6g}.",
            f"The first {plan.warmup} of {plan.horizon} outputs are random and depend on no record.",
        ]
