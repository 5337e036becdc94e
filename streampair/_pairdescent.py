"""Private gradient descent: OnPairStrC and OnPairC (PRIVACY.md 4.1), and NoisyOGD (4.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from streampair import losses
from streampair._descent import NoisyDescent, OutputPerturbation
from streampair._private import scale
from streampair._private_base import PrivateBase
from streampair.errors import ConfigError
from streampair.privacy import OutputPlan, epsilon_from, plan_noisy, plan_output, plan_output_paper
from streampair.privacy.plan_descent import check_allocation

__all__ = ["NoisyBase", "OutputBase"]


class NoisyBase(PrivateBase):
    """The mechanism of the NoisyOGD learners of all families."""

    l2: float

    def _init_private(self) -> None:
        if self.l2 != 0.0:
            scale("l2", self.l2)
        super()._init_private()

    def _make_rule(self, dim: int, features: int, saved: Mapping[str, Any] | None) -> NoisyDescent:
        asked = self._settings
        plan = plan_noisy(
            asked.mu_learning,
            dim=dim,
            influence=asked.buffer.influence,
            diameter=asked.loss.diameter(1.0, asked.radius, asked.clip, form=self._form),
            clip=asked.clip,
            radius=asked.radius,
            horizon=asked.learning,
            forks=asked.forks,
            window=asked.window,
        )
        return NoisyDescent(plan, self._pair_buffer(features), float(self.l2))

    def _describe(self) -> str:
        asked = self._settings
        return (
            f"Mechanism: gradients clipped per pair at {asked.clip:g} and averaged over "
            f"{asked.buffer.describe()}; each averaged gradient is released under Gaussian noise of its own, "
            f"and the noisy iterate is all that is kept.{asked.warmup_words()}"
        )


class OutputBase(PrivateBase):
    """The mechanism of the OnPairStrC and OnPairC learners of all families."""

    l2: float | None
    releases: int | None
    calibration: str
    allocation: str

    # What a record did fades, however long it is used.
    _bounded_uses = False
    _radii: ClassVar[tuple[float, float]] = (1.0, 10.0)
    # Whether the ridge term pulls to a point w_0 that need not be 0 (H20, Algorithm 2).
    _centred: ClassVar[bool] = False

    def _init_private(self) -> None:
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration is {self.calibration!r}", fix="give 'tight' or 'paper'")
        check_allocation(self.allocation)
        if self.horizon is None:
            raise ConfigError(
                f"{type(self).__name__} needs a horizon: its noise is planned over all releases",
                fix="give horizon=, or use PairFTRL, which learns without end",
            )
        if self.releases is not None and (
            isinstance(self.releases, bool) or not isinstance(self.releases, int) or self.releases < 1
        ):
            raise ConfigError(
                f"releases is {self.releases!r}", fix="give the number of releases, or None for every step"
            )
        if self.l2 is not None:
            scale("l2", self.l2)
        unknown = (self.releases, self.clip, self.entity, self.warmup or None, self.forks or None)
        if self._paper and any(value is not None for value in unknown):
            raise ConfigError(
                "the paper's calibration knows no releases, warm-up, clipping, forks or entities",
                fix="leave them out, or use calibration='tight'",
            )
        super()._init_private()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"epsilon": 1.0, "delta": 1e-4, "horizon": 1000}

    @property
    def _paper(self) -> bool:
        return self.calibration == "paper"

    def _default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        return 0 if self._paper else None

    @property
    def _default_clip(self) -> float:
        return math.inf if self._paper else 1.0

    def _checked_loss(self, loss: Any) -> losses.PairLoss:
        checked = losses.Logistic() if loss is None else super()._checked_loss(loss)
        checked.smoothness(1.0, 1.0, form=self._form)  # refuses the hinge
        return checked

    def _strength(self, dim: int, diameter: float) -> float:
        """Strength alpha of the ridge term.

        None balances its bias `alpha R^2 / 2` with the loss `D |noise|` of the last release, whose noise is
        about `2 D / (alpha n mu)` a coordinate.
        """
        asked = self._settings
        if self.l2 is not None:
            return float(self.l2)
        assert asked.learning is not None
        noise = math.sqrt(dim) / (asked.learning * asked.mu_learning)
        return 2.0 * diameter / asked.radius * math.sqrt(noise)

    def _make_rule(self, dim: int, features: int, saved: Mapping[str, Any] | None) -> OutputPerturbation:
        asked = self._settings
        assert asked.learning is not None
        clip = asked.clip if math.isfinite(asked.clip) else None
        diameter = asked.loss.diameter(1.0, asked.radius, clip, form=self._form)
        alpha = self._strength(dim, diameter)
        smoothness = asked.loss.smoothness(1.0, asked.radius, form=self._form)
        plan: OutputPlan
        if self._paper:
            # The paper's G is that of the whole loss, the ridge term included.
            ridge = alpha * asked.radius * (2.0 if self._centred else 1.0)
            plan = plan_output_paper(
                asked.epsilon,
                asked.delta,
                dim=dim,
                influence=asked.buffer.influence,
                diameter=diameter,
                lipschitz=asked.loss.lipschitz(1.0, asked.radius, form=self._form) + ridge,
                radius=asked.radius,
                alpha=alpha,
                smoothness=smoothness,
                horizon=asked.learning,
            )
        else:
            plan = plan_output(
                asked.mu_learning,
                dim=dim,
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
            )
        return OutputPerturbation(
            plan, self._pair_buffer(features), last=self._paper, scattered=self._centred and self._paper
        )

    def _describe(self) -> str:
        asked = self._settings
        clipped = f" clipped per pair at {asked.clip:g} and" if math.isfinite(asked.clip) else ""
        return (
            f"Mechanism: gradients{clipped} averaged over {asked.buffer.describe()} drive a strongly convex "
            "descent without noise, which is secret; its iterates are released under fresh Gaussian noise."
            f"{asked.warmup_words()}"
        )

    def _notes(self) -> list[str]:
        rule = self._rule
        if not self._paper or not isinstance(rule, OutputPerturbation):
            return []
        plan, asked = rule.plan, self._settings
        exact = epsilon_from(plan.mu_spent(plan.horizon), asked.delta)
        return [
            f"Noise and steps are those of Huai et al. (2020), whose constants promise epsilon "
            f"{asked.epsilon:g}; by the exact account the whole run spends epsilon {exact:.6g}.",
            f"The first {plan.warmup} of {plan.horizon} outputs are random and depend on no record.",
        ]
