"""Follow the regularised leader: correlated noise in gradient sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from streampair.errors import ConfigError
from streampair.kernels import dp_steps, vectors
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    FittedPlan,
    Mechanism,
    MechanismState,
    Relation,
    Release,
    Settings,
    SlotBatch,
    check_overflow,
    strategy_from,
)
from streampair.privacy.mechanisms.buffer import PairBuffer
from streampair.privacy.noise import BLTNoise, ChainedNoise, ToeplitzNoise, rounded
from streampair.privacy.sensitivity import (
    BLT,
    Influence,
    Toeplitz,
    fit_blt,
    grid_step,
    pattern_sensitivity,
    window_sensitivity,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = [
    "FTRL",
    "TOEPLITZ_LIMIT",
    "FTRLPlan",
    "FTRLState",
    "check_strategy",
    "choose_strategy",
    "empty_buffer",
    "plan_ftrl",
]


def empty_buffer(settings: Settings, seed: int | None) -> PairBuffer:
    """An empty buffer for these settings, which know the features; `seed`: of its random choices."""
    assert settings.features is not None
    return PairBuffer(
        settings.buffer,
        settings.features,
        settings.learning,
        family=settings.pairs,
        loss_code=settings.loss.code,
        tangent=settings.tangent,
        seed=seed,
    )


TOEPLITZ_LIMIT = 4096
"""Longest horizon for which `strategy="auto"` takes the square root, whose memory grows with the run."""

StrategyName = Literal["auto", "toeplitz", "blt"]

_LONGEST_FIT = 4097
_CHUNK = 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class FTRLPlan(FittedPlan):
    """Calibrated plan of FTRL with correlated noise (docs/privacy 4.3).

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record over all releases.
    dim
        Coordinates d of the weights.
    influence
        The buffer.
    clip, diameter, radius
        Per-pair clip, replacement diameter D and radius R of the weights.
    strategy
        The matrix C.
    grid
        gamma, a power of two.
    sensitivity
        `||C (D v + gamma sqrt(d) 1[v > 0])||` over the whole run; of an entity the sum over its records.
    tangent
        Whether gradients are clipped into a ball of radius `clip` that touches 0, instead of the one around
        0: D is the same, and norms up to twice the clip pass. For decreasing losses and centred records.
    horizon
        Learning steps, None for no end.
    forks, window
        Number of forks that the budget covers, and the releases of each (docs/privacy 8).
    relation
        The neighbouring relation.

    Attributes
    ----------
    sigma
        Noise std of each coordinate.
    """

    mu: float
    dim: int
    influence: Influence
    clip: float
    diameter: float
    radius: float
    strategy: Toeplitz | BLT
    grid: float
    sensitivity: float
    tangent: bool = False
    horizon: int | None = None
    forks: int = 0
    window: int = 0
    relation: Relation = ONE_RECORD
    sigma: float = field(init=False)

    FITTED: ClassVar = ("strategy", "mu", "diameter", "grid", "sensitivity", "sigma")

    def __post_init__(self) -> None:
        total = self.sensitivity
        if self.forks:
            total = math.hypot(total, math.sqrt(self.forks) * self._window_norm(self.window))
        left = self.mu - math.sqrt(1.0 + self.forks) * self.memory
        if not left > 0.5 * self.mu:
            raise ConfigError(
                f"the rounding of the noise's memory alone costs a mu of {self.memory:.2g}, of {self.mu:.2g}",
                fix="use strategy='blt' or raise epsilon",
            )
        object.__setattr__(self, "sigma", total / left)
        check_overflow(20.0 * self.sigma / self.grid, "noise")

    def _moves(self) -> Floats:
        """`D v_t + gamma sqrt(d)`: how far one record moves each rounded gradient, from its slot on."""
        return self.influence.moves(self.horizon, self.diameter, self.grid * math.sqrt(self.dim))

    def fork_mu2(self, window: int) -> float:
        """Upper bound of what a fork of `window` consecutive releases adds to mu^2."""
        return (self._window_norm(window) / self.sigma + self.memory) ** 2

    def release(self) -> Release:
        """The release with its sensitivity, noise and cost, for the card."""
        replace = self.sensitivity / self.sigma + self.memory
        # Blanking takes away gradients of at most the clip, which moves by less than the diameter.
        share = 1.0 if self.tangent else min(self.clip / self.diameter, 1.0)
        return Release(
            name="running sum of the gradients",
            domain="records in the unit ball, with a label",
            relation=self.relation,
            lemma="docs/privacy, Lemma 11 and Lemma 16",
            sensitivity=self.sensitivity,
            sigma=self.sigma,
            replace=replace,
            blank=share * replace,
            releases=self.horizon,
            coordinates=self.dim,
            grid=self.grid,
        )

    def mu_spent(self, steps: int) -> float:
        """mu of the first `steps` releases: that of the record that is in most of them."""
        if steps <= 0:
            return 0.0
        return pattern_sensitivity(self.strategy, self._moves(), steps=steps) / self.sigma + self.memory

    @functools.cached_property
    def memory(self) -> float:
        """mu that the rounding of the memory of correlated noise costs (docs/privacy, Lemma 21)."""
        return self.strategy.memory_error(self.horizon, self.dim)

    def _window_norm(self, window: int) -> float:
        """Largest norm of what one record moves in `window` consecutive releases."""
        if self.influence.together:
            return pattern_sensitivity(self.strategy, self._moves())
        return window_sensitivity(self.strategy, self._moves(), window=window)

    def rates(self, start: int, count: int) -> Floats:
        """Step sizes of slots `start + 1, ..., start + count`: `R / sqrt(t C (C + sqrt(d) sigma_N))`.

        C is the largest norm of a pair's gradient, and `sigma_N` the std of the prefix noise; t and
        `sigma_N` are those of the horizon if there is one.
        """
        if self.horizon is not None:
            t = np.array([float(self.horizon)])
            noise = np.array([self.sigma * self.strategy.error(self.horizon)])
        else:
            assert isinstance(self.strategy, BLT)
            t = np.arange(start + 1.0, start + count + 1.0)
            noise = self.sigma * np.sqrt(self.strategy.variances(t))
        bound = self.diameter if self.tangent else self.clip
        rates = self.radius / np.sqrt(t * bound * (bound + math.sqrt(self.dim) * noise))
        return np.ascontiguousarray(np.broadcast_to(rates, (count,)))


def check_strategy(name: Any, horizon: int | None) -> None:
    """Refuse unknown strategy names, and the square root without a horizon."""
    if name not in ("auto", "toeplitz", "blt"):
        raise ConfigError(f"strategy is {name!r}", fix="give 'auto', 'toeplitz' or 'blt'")
    if name == "toeplitz" and horizon is None:
        raise ConfigError(
            "strategy 'toeplitz' needs a horizon: its noise depends on all earlier noise",
            fix="give horizon=, or leave strategy='auto'",
        )


def choose_strategy(name: StrategyName, pattern: Floats, horizon: int | None) -> Toeplitz | BLT:
    """The matrix C for a strategy name: the square root for a known, short horizon, else a BLT."""
    check_strategy(name, horizon)
    if horizon is not None and (name == "toeplitz" or (name == "auto" and horizon <= TOEPLITZ_LIMIT)):
        return Toeplitz.square_root(horizon)
    # Any C will do; one fitted to the beginning of a long pattern is as good, and quickly found.
    return fit_blt(pattern[:_LONGEST_FIT], horizon)


def plan_ftrl(
    mu: float,
    *,
    dim: int,
    influence: Influence,
    diameter: float,
    clip: float,
    radius: float,
    tangent: bool = False,
    horizon: int | None = None,
    strategy: StrategyName | Toeplitz | BLT = "auto",
    forks: int = 0,
    window: int = 4096,
    relation: Relation = ONE_RECORD,
) -> FTRLPlan:
    """Calibrate the noise of docs/privacy 4.3 for a budget.

    Parameters
    ----------
    mu
        Budget in mu-GDP, see `mu_from`.
    dim, influence, diameter, clip, radius, tangent, horizon, forks, window, relation
        As in `FTRLPlan`.
    strategy
        A name, or the strategy of a restored learner, used unchanged.

    Raises
    ------
    ConfigError
        If the strategy does not fit the horizon, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy import Influence, mu_from
    >>> from streampair.privacy.mechanisms.ftrl import plan_ftrl
    >>> plan = plan_ftrl(
    ...     mu_from(1.0, 1e-4), dim=9, influence=Influence.fifo(32), diameter=2.0, clip=1.0, radius=3.0,
    ...     horizon=1000,
    ... )
    >>> round(plan.mu_spent(1000) / plan.mu, 12)
    1.0
    """
    pattern = influence.pattern(horizon)
    chosen = choose_strategy(strategy, pattern, horizon) if isinstance(strategy, str) else strategy
    grid = grid_step(chosen, pattern, diameter, dim)
    sensitivity = pattern_sensitivity(chosen, influence.moves(horizon, diameter, grid * math.sqrt(dim)))
    return FTRLPlan(
        mu=mu, dim=dim, influence=influence, clip=clip, diameter=diameter, radius=radius, tangent=tangent,
        horizon=horizon, strategy=chosen, grid=grid, sensitivity=sensitivity, forks=forks, window=window,
        relation=relation,
    )  # fmt: skip


def strategy_to_state(strategy: Toeplitz | BLT) -> dict[str, Any]:
    """The matrix C as plain values, which a snapshot keeps: a new fit could differ."""
    if isinstance(strategy, BLT):
        return {"kind": "blt", "omega": strategy.omega.copy(), "decay": strategy.decay.copy()}
    return {"kind": "square_root"}


def strategy_numbers(strategy: Toeplitz | BLT) -> list[float]:
    """The numbers that define a strategy."""
    if isinstance(strategy, BLT):
        return [*strategy.omega.tolist(), *strategy.decay.tolist()]
    return [float(len(strategy.column))]


class SummedGradients:
    """The running sum of the rounded gradients of records paired with a buffer, released with rounded noise.

    Parameters
    ----------
    release
        The kind of release, for the card.
    buffer
        The buffer, empty.
    numbers
        Clip, radius, grid, the noise's std, and the numbers of a buffered linear Toeplitz matrix.
    dim
        Number of coordinates.

    Attributes
    ----------
    vectors
        The iterate and the published average, (2, dim): functions of the releases.
    average
        The second of them.
    total
        The noisy sum, in units of the grid, (dim,).
    """

    __slots__ = ("__cells", "_scratch", "average", "buffer", "release", "total", "vectors")

    def __init__(self, release: Release, buffer: PairBuffer, numbers: list[float], dim: int) -> None:
        self.release = release
        self.buffer = buffer
        buffer.extend(numbers)
        # The third row is the loop's own: the exact gradient. The fourth is where the descent begins.
        self._scratch = np.zeros((4, dim))
        self.vectors: Floats = self._scratch[:2]
        self.average: Floats = self.vectors[1]
        self.total = np.zeros(dim, dtype=np.int64)
        self.__cells = np.zeros(dim, dtype=np.int64)

    def begin_at(self, weights: Floats) -> None:
        """Begin at weights (dim,) in the ball of the radius, which no record has a part in."""
        self.vectors[:] = self._scratch[3] = weights

    def cells(self, row: Floats, label: Floats, steps: int) -> NDArray[np.int64]:
        """The exact value of this slot, (dim,), which noise is added to: only for the chain that keys it."""
        return self.turns(SlotBatch(row, label), steps)

    def turns(self, batch: SlotBatch, steps: int) -> NDArray[np.int64]:
        """Score the first row of a batch and return its `cells`; `turn` takes the next rows."""
        b = self.buffer
        dp_steps.score_and_cells(*batch[:4], 0, steps, b.numbers, self._scratch, b.places, self.__cells)
        return self.__cells

    def privatize(
        self, rows: Floats, labels: Floats, noise: NDArray[np.int64], rates: Floats, steps: int
    ) -> None:
        """For each row release the noisy sum and take a step; `noise`: its increments in steps, (n, dim)."""
        b = self.buffer
        dp_steps.ftrl_steps(
            rows, labels, noise, rates, steps, b.numbers, self._scratch, self.total, b.places,
        )  # fmt: skip

    def turn(
        self,
        batch: SlotBatch,
        index: int,
        words: NDArray[np.uint64],
        noise: BLTNoise,
        cells: NDArray[np.int64],
        rate: float,
        steps: int,
    ) -> None:
        """`privatize` of row `index` of a batch, whose cells are known, with normals from `words`.

        Then score and cells of the next row.
        """
        b, (rows, labels, scored, scores, _) = self.buffer, batch
        dp_steps.ftrl_turn(
            rows, labels, scored, scores, index, words, noise.memory, cells, rate, steps, b.numbers,
            self._scratch, self.total, b.places,
        )  # fmt: skip


class FTRLState(MechanismState):
    """State of one run: noisy sum, iterates, buffer and noise memory (docs/privacy 4.3, 7).

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.

    Attributes
    ----------
    gate
        The gradients, with iterates and buffer.
    """

    plan: FTRLPlan
    gate: SummedGradients
    steps: int = 0
    _keyed_in_one_call = True

    def __init__(self, plan: FTRLPlan, buffer: PairBuffer) -> None:
        self.plan = plan
        strategy, numbers = plan.strategy, [plan.clip, plan.radius, plan.grid, plan.sigma]
        self._noise: BLTNoise | ToeplitzNoise
        if isinstance(strategy, BLT):
            numbers += [*strategy.omega.tolist(), *strategy.theta.tolist()]
            self._noise = BLTNoise(strategy.omega.copy(), strategy.theta, plan.dim, plan.sigma / plan.grid)
        else:
            self._noise = ToeplitzNoise(strategy.inverse, plan.dim, plan.sigma / plan.grid)
            self._keyed_in_one_call = False
        self.gate = SummedGradients(plan.release(), buffer, numbers, plan.dim)
        self._rates = np.empty(0)
        self._rates_from = 0

    @property
    def average(self) -> Floats:
        """The published weights, the t-weighted average of the iterates, shape (d,): a view."""
        return self.gate.average

    @property
    def releases(self) -> int:
        """Number of models released so far."""
        return self.steps

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records included."""
        return self.gate.buffer.filled(self.steps)

    def begin_at(self, weights: Floats) -> None:
        """Begin the descent at these weights."""
        self.gate.begin_at(weights)

    def card(self) -> tuple[Release, ...]:
        """The running sum of the gradients."""
        return (self.gate.release,)

    @property
    def released(self) -> Floats:
        """The last noisy sum of the gradients, (d,), before the projection."""
        return np.asarray(self.gate.total * self.plan.grid, dtype=np.float64)

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        plan = self.plan
        return [plan.sigma, plan.grid, plan.clip, plan.radius, *strategy_numbers(plan.strategy)]

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """As in the base class; with keyed noise, one compiled call per slot where there is one."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        if chain is not None and self._keyed_in_one_call and len(batch.rows):
            self._take_keyed(batch, chain)
        elif chain is None and not len(batch.scores):
            self._step(batch.rows, batch.labels, stream)
        else:
            rows, labels, scored, scores, records = batch
            for i in range(len(rows)):
                row, label = rows[i : i + 1], labels[i : i + 1]
                if len(scores):
                    scores[i] = vectors.dot(self.average, scored[i])
                if chain is not None:
                    chain.record(records[i])
                    chain.advance(self.gate.cells(row, label, self.steps).tobytes())
                self._step(row, label, stream)

    def _take_keyed(self, batch: SlotBatch, chain: ChainedNoise) -> None:
        """Take one slot for each row of a batch that has some, in a call of `turn` each."""
        noise: Any = self._noise
        dim, gate = self.plan.dim, self.gate
        cells = gate.turns(batch, self.steps)
        for i, record in enumerate(batch.records):
            steps = self.steps
            first = steps - self._rates_from
            rate = self._rates[first] if 0 <= first < len(self._rates) else self._eta(1)[0]
            chain.record(record)
            chain.advance(cells.tobytes())
            gate.turn(batch, i, chain.words(dim), noise, cells, rate, steps)
            self.steps = steps + 1

    def _step(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot for each row, with noise of the stream as it is. A null slot has noise too."""
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            count = len(part)
            noise = rounded(self._noise.rows(count, stream))
            self.gate.privatize(part, labels[start : start + count], noise, self._eta(count), self.steps)
            self.steps += count

    def _eta(self, count: int) -> Floats:
        """Step sizes of the next slots, computed in fixed blocks: the bits do not depend on `count`."""
        first = self.steps - self._rates_from
        if first < 0 or first + count > len(self._rates):
            self._rates_from = self.steps // _CHUNK * _CHUNK
            self._rates = self.plan.rates(self._rates_from, 2 * _CHUNK)
            first = self.steps - self._rates_from
        return self._rates[first : first + count]

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the noise memory among them is as secret as the data."""
        return {
            "steps": self.steps,
            "strategy": strategy_to_state(self.plan.strategy),
            "vectors": self.gate.vectors.copy(),
            "total": self.gate.total.copy(),
            "buffer": self.gate.buffer.to_state(self.steps),
            "noise": self._noise.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, total = state["vectors"], state["total"]
        if vectors.shape != (2, self.plan.dim) or total.shape != (self.plan.dim,):
            raise ValueError("weights of another shape")
        expected, saved = strategy_to_state(self.plan.strategy), state["strategy"]
        if saved.keys() != expected.keys() or any(
            not np.array_equal(saved[name], expected[name]) for name in expected
        ):
            raise ValueError("another strategy than that of the plan")
        steps = int(state["steps"])
        if steps < 0 or (isinstance(self._noise, ToeplitzNoise) and len(state["noise"]) != steps):
            raise ValueError("as many rows of noise as steps are needed")
        self.gate.buffer.load_state(state["buffer"], steps)
        self._noise.load_state(state["noise"])
        self.steps = steps
        self.gate.vectors[:] = vectors
        self.gate.total[:] = total


@dataclass(frozen=True)
class FTRL(Mechanism):
    """Follow the regularised leader on clipped pair gradients under correlated noise.

    Parameters
    ----------
    strategy
        ``"toeplitz"`` (square root; needs a horizon), ``"blt"``, or ``"auto"``.
    """

    strategy: StrategyName = "auto"

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> FTRLState:
        """A new state; a saved strategy is used unchanged, since another fit would be another mechanism."""
        assert settings.dim is not None
        plan = plan_ftrl(
            settings.mu_learning,
            dim=settings.dim,
            influence=settings.buffer.influence,
            diameter=settings.loss.diameter(1.0, settings.radius, settings.clip, form=settings.form),
            clip=settings.clip,
            radius=settings.radius,
            tangent=settings.tangent,
            horizon=settings.learning,
            forks=settings.forks,
            window=settings.window,
            relation=settings.relation,
            strategy=self.strategy if saved is None else strategy_from(saved["strategy"], settings.learning),
        )
        return FTRLState(plan.with_fitted(saved), empty_buffer(settings, seed))

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        return (
            f"Mechanism: gradients clipped per pair at {settings.clip:g} and averaged over "
            f"{settings.buffer.describe()}; their running sum is released under correlated Gaussian noise "
            f"after every record.{settings.warmup_words()}"
        )
