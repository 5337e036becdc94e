"""The buffer of a private learner: selection of past records by slots and coins alone (docs/privacy 3)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers
from streampair.errors import ConfigError
from streampair.kernels import buffers as buffers_kernels
from streampair.kernels import dp_steps
from streampair.privacy.sensitivity import Influence

__all__ = ["DEFAULT_BUFFER", "BufferPlan", "PairBuffer"]

Floats = NDArray[np.float64]

_MOST_BYTES = 2**36


def _check_history(policy: buffers.FullHistory, horizon: int | None) -> None:
    if policy.dtype != "float64":
        raise ConfigError(
            "a private learner keeps its full history in float64: rounding would add to the noise",
            fix="use buffers.FullHistory()",
        )
    if horizon is None or horizon > policy.max_records:
        raise ConfigError(
            f"a full history over a horizon of {horizon}",
            fix=f"give a horizon of at most max_records={policy.max_records}, or use FIFO(32)",
        )


def _unbounded(buffer: Any) -> ConfigError:
    """The error for a buffer without a bound on its influence."""
    reason = "how far one record moves the gradients through it has no bound that could set the noise"
    if isinstance(buffer, buffers.Reservoir):
        reason = "it can hold many copies of one record, so that one person could move every gradient"
    elif isinstance(buffer, buffers.ClassReservoir):
        reason = "its places depend on labels, so that a change of one label moves other records"
    return ConfigError(
        f"a private learner cannot use {buffer!r}: {reason}",
        fix="use buffers.FIFO(32), or another FIFO size",
    )


@dataclass(frozen=True)
class BufferPlan:
    """A buffer that a private learner may use.

    Parameters
    ----------
    policy
        `kernels.FIFO`, `RESERVOIR` or `FULL`.
    influence
        Bound of a record's influence through the buffer.
    """

    policy: int
    influence: Influence

    @classmethod
    def of(cls, buffer: Any, *, horizon: int | None, bounded: bool) -> BufferPlan:
        """The plan for a buffer policy.

        Parameters
        ----------
        buffer
            `buffers.FIFO`, `FullHistory` or `Reservoir` without replacement.
        horizon
            Slots of the run; None: no end.
        bounded
            Whether the mechanism needs a bound on the uses (not if a record's effect decays): those of a
            reservoir without `max_uses` are then its size.

        Raises
        ------
        ConfigError
            If no guarantee can be given with the buffer.
        """
        if type(buffer) is buffers.FIFO:
            return cls(buffers_kernels.FIFO, Influence.fifo(buffer.size))
        if type(buffer) is buffers.FullHistory:
            _check_history(buffer, horizon)
            return cls(buffers_kernels.FULL, Influence.history())
        if type(buffer) is buffers.Reservoir and not buffer.replacement:
            uses = buffer.size if bounded and buffer.max_uses is None else buffer.max_uses
            return cls(buffers_kernels.RESERVOIR, Influence.reservoir(buffer.size, uses))
        raise _unbounded(buffer)

    def filled(self, steps: int) -> int:
        """Places in use after a number of slots."""
        return steps if self.policy == buffers_kernels.FULL else min(steps, self.influence.size)

    def describe(self) -> str:
        """The buffer in words, for the report."""
        if self.policy == buffers_kernels.FULL:
            return "all earlier records"
        if self.policy == buffers_kernels.FIFO:
            return f"a FIFO buffer of {self.influence.size} places"
        uses = self.influence.uses
        cap = "" if uses is None else f", where each record is used at most {uses} times"
        return f"a reservoir of {self.influence.size} places{cap}"


DEFAULT_BUFFER = BufferPlan.of(buffers.FIFO(32), horizon=None, bounded=True)
"""The buffer of a private learner that names none."""


class PairBuffer:
    """Records of a `BufferPlan`, as the kernels take them.

    Parameters
    ----------
    plan
        The policy.
    dim
        Features d.
    horizon
        Steps of the run; needed by a full history, whose memory is reserved (the operating system gives it
        when it is first written).
    family, loss_code, tangent
        Codes by which kernels compute gradients.
    seed
        Seed of the coins, which are functions of the slot alone; None: from the operating system.

    Attributes
    ----------
    places
        Records by place, (places, d + 2): design, label and age.
    numbers
        Arguments of the kernels, in the order of their indices.
    """

    def __init__(
        self,
        plan: BufferPlan,
        dim: int,
        horizon: int | None,
        *,
        family: int,
        loss_code: int,
        tangent: bool = False,
        seed: int | None = None,
    ) -> None:
        self._policy, size, uses = plan.policy, plan.influence.size, plan.influence.uses
        if plan.policy == buffers_kernels.FULL:
            assert horizon is not None
            size = horizon
            if 8 * size * dim > _MOST_BYTES:
                raise ConfigError(
                    f"{horizon} records of {dim} features, all kept, need {8 * size * dim:.3g} bytes",
                    fix="use buffers.FIFO(32), or a shorter horizon",
                )
        self.places = np.zeros((size, dim + 2))
        coins = secrets.randbits(53) if seed is None else int(seed) % 2**53
        cap = uses if plan.policy == buffers_kernels.RESERVOIR and uses is not None else 0
        self.numbers = np.array([family, loss_code, plan.policy, size, cap, coins, tangent], dtype=np.float64)

    def extend(self, numbers: Sequence[float]) -> None:
        """Append the numbers of a mechanism to the arguments of the kernels."""
        self.numbers = np.array([*self.numbers, *numbers])

    def filled(self, steps: int) -> int:
        """Places in use after a number of slots."""
        return min(steps, len(self.places))

    def _ages(self) -> Floats:
        """Steps since the record of each place came: a view for a reservoir; else nobody counts them."""
        return self.places[:, -1] if self._policy == buffers_kernels.RESERVOIR else np.zeros(1)

    def to_state(self, steps: int) -> dict[str, Any]:
        """Plain values and arrays: raw records among them, as secret as the data."""
        kept = self.places[: self.filled(steps)]
        return {
            "rows": kept[:, :-2].copy(),
            "labels": kept[:, -2].copy(),
            "ages": self._ages().astype(np.int64),
            "coins": int(self.numbers[dp_steps.COINS]),
        }

    def load_state(self, state: Mapping[str, Any], steps: int) -> None:
        """Continue from `to_state` of a buffer of the same plan."""
        kept, ages = self.places[: self.filled(steps)], self._ages()
        if state["rows"].shape != kept[:, :-2].shape or state["labels"].shape != kept[:, -2].shape:
            raise ValueError("a buffer of another shape")
        if state["ages"].shape != ages.shape or not 0 <= int(state["coins"]) < 2**53:
            raise ValueError("ages or coins of another shape")
        kept[:, :-2] = state["rows"]
        kept[:, -2] = state["labels"]
        ages[:] = state["ages"]
        self.numbers[dp_steps.COINS] = int(state["coins"])
