"""A private estimate of the AUC."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair.errors import ConfigError
from streampair.kernels import dp_steps, vectors
from streampair.privacy.mechanisms.base import (
    CombinedPlan,
    Companion,
    CompanionPlan,
    MechanismState,
    NoisySums,
    Release,
    Settings,
    SlotBatch,
    StateWrapper,
    check_overflow,
    unit_link,
)
from streampair.privacy.noise import ChainedNoise
from streampair.records.features import Design

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from streampair.privacy.noise import Stream

__all__ = [
    "BINS",
    "AucPlan",
    "PrivateAUC",
    "WithPrivateAUC",
    "WithPrivateAUCState",
    "checked_share",
    "keep",
]

BINS = 32
"""Of the probability, by class."""

_MOVE = math.sqrt(2.0)  # out of one bin, into another
_WINDOW = 200.0  # slots of a window over the noise of a bin
_FEW = 4.0  # standard deviations of the noise of a whole class, below which there are too few of it
_OF_A_SIZE = 4  # sums of as many windows, before two of them become one
_ENOUGH = 0.02  # standard error at which older windows are no longer needed


def keep(sums: list[Floats], sizes: list[int], counts: Floats) -> None:
    """Append a window's counts to sums of windows, newest last; older windows are merged in larger sums.

    Parameters
    ----------
    sums
        Noisy counts.
    sizes
        Number of windows in each sum, a power of two, from the largest to 1.
    counts
        Counts of the new window.
    """
    sums.append(counts)
    sizes.append(1)
    size = 1
    while sizes.count(size) > _OF_A_SIZE:
        oldest = sizes.index(size)
        sums[oldest : oldest + 2] = [sums[oldest] + sums[oldest + 1]]
        size *= 2
        sizes[oldest : oldest + 2] = [size]


@dataclass(frozen=True)
class PrivateAUC:
    """An AUC computed from noisy histograms.

    Parameters
    ----------
    value, stderr
        The AUC and its standard error, from sampling (Hanley and McNeil) and noise. None: too few records.
    mu2
        Cost of the histograms in mu^2, for a record or an entity.
    bins
        Number of bins for each class.
    positives, negatives
        Noisy counts by bin, from the lowest probability to the highest: released values, some below 0.
    too_few
        Whether a class has too few records to be distinguished from noise.
    ties
        Share of the pairs within one bin, which count one half: the error that binning may cause.
    windows, slots
        Number of the newest windows in it, and of their learned slots.
    """

    value: float | None
    stderr: float | None
    mu2: float
    bins: int
    positives: list[float]
    negatives: list[float]
    too_few: bool
    ties: float | None
    windows: int
    slots: int

    @classmethod
    def of(cls, counts: Floats, sigma: float, *, mu2: float, windows: int = 1, slots: int = 0) -> PrivateAUC:
        """Estimate from noisy counts (2, bins), positives first; `sigma`: noise std of each count.

        Examples
        --------
        >>> import numpy as np
        >>> from streampair.privacy.mechanisms.private_auc import PrivateAUC
        >>> found = PrivateAUC.of(np.array([[0.0, 300.0], [900.0, 300.0]]), 1.0, mu2=0.01)
        >>> found.value, round(found.stderr, 4), found.too_few
        (0.875, 0.0135, False)
        """
        positives, negatives = counts
        p, n = float(positives.sum()), float(negatives.sum())
        bins = len(positives)
        # The noise of a class is that of all its bins together.
        few = min(p, n) < _FEW * sigma * math.sqrt(bins)
        value = stderr = ties = None
        if not few:
            # Share of negatives below a positive of each bin, and of positives above a negative.
            below = (np.cumsum(negatives) - 0.5 * negatives) / n
            above = (p - np.cumsum(positives) + 0.5 * positives) / p
            area = float(positives @ below) / p
            noise = float(((below - area) ** 2).sum()) / p**2 + float(((above - area) ** 2).sum()) / n**2
            value = min(max(area, 0.0), 1.0)
            one, two = value / (2.0 - value), 2.0 * value * value / (1.0 + value)
            sample = value * (1.0 - value) + (p - 1.0) * (one - value**2) + (n - 1.0) * (two - value**2)
            stderr = math.sqrt(max(sample, 0.0) / (p * n) + sigma**2 * noise)
            ties = min(max(float(positives @ negatives) / (p * n), 0.0), 1.0)
        by_class = (positives.tolist(), negatives.tolist())
        return cls(value, stderr, mu2, bins, *by_class, few, ties, windows, slots)

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class AucPlan(CompanionPlan):
    """Calibrated plan of histograms of scores over windows of learned slots.

    Parameters
    ----------
    mu, forks, horizon, records, sigma
        As in `CompanionPlan`; a block is a window.
    window
        Learned slots of a histogram, large enough that a class of a tenth of them exceeds the noise.
    """

    window: int = field(init=False)

    FITTED_AS: ClassVar[str] = "auc_sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_overflow(20.0 * self.sigma, "noise of the histograms of the AUC")
        # The number of slots is public: rounded up to a hundred, so that it is the same on every processor.
        window = 100 * math.ceil(_WINDOW * self.sigma / 100.0)
        if self.horizon is not None:  # windows as long as each other, about: a short one is nearly all noise
            window = math.ceil(self.horizon / max(self.horizon // window, 1))
        object.__setattr__(self, "window", window)

    @property
    def sensitivity(self) -> float:
        """l2 sensitivity: a record changes bins. Counts are integers, so rounding adds nothing."""
        return self.records * _MOVE

    def end(self, start: int) -> int:
        """End of the window that begins after `start` learned slots."""
        end = start + self.window
        return end if self.horizon is None else min(end, self.horizon)

    def windows(self, steps: int) -> int:
        """Number of windows that have ended after `steps` slots."""
        if self.horizon is not None and steps >= self.horizon:
            return math.ceil(self.horizon / self.window)
        return steps // self.window

    def slots(self, first: int, last: int) -> int:
        """Number of slots of the windows from `first`, counted from 0, to before `last`."""
        return self.end((last - 1) * self.window) - first * self.window if last > first else 0

    def estimate(self, sums: Sequence[Floats], sizes: Sequence[int]) -> PrivateAUC:
        """The AUC of the fewest newest windows with a standard error of 0.02, else of the smallest one.

        Parameters
        ----------
        sums, sizes
            Noisy counts (2, bins) and the number of windows in each, newest last; all windows that have
            ended.
        """
        counts, number, ended = np.zeros((2, BINS)), 0, sum(sizes)
        best = PrivateAUC.of(counts, self.sigma, mu2=self.move**2, windows=0)
        for size, part in zip(reversed(sizes), reversed(sums), strict=True):
            counts, number = counts + part, number + size
            found = PrivateAUC.of(
                counts,
                math.sqrt(number) * self.sigma,
                mu2=self.move**2,
                windows=number,
                slots=self.slots(ended - number, ended),
            )
            if best.stderr is None or (found.stderr is not None and found.stderr < best.stderr):
                best = found
            if best.stderr is not None and best.stderr <= _ENOUGH:
                break
        return best

    def release(self, settings: Settings) -> Release:
        """The release with its sensitivity, noise and cost, for the card."""
        return Release(
            name="histogram of the probabilities in a window, by class, for the AUC",
            domain="a label -1 or 1, and a probability in [0, 1]",
            relation=settings.relation,
            lemma="docs/privacy, Lemma 65",
            sensitivity=self.sensitivity,
            sigma=self.sigma,
            replace=self.move,
            blank=math.sqrt(0.5) * self.move,
            releases=None if self.horizon is None else self.windows(self.horizon),
            coordinates=2 * BINS,
            grid=1.0,
            draws=self.records * 2 * BINS * (self.sigma + 1.0),
        )


_LEAST = 0.5  # log-odds in a standard deviation of the scores, at least
_EVERY = 256  # slots after which the scale is looked up again


def _next(steps: int) -> int:
    """Slot of the next update of the scale: at powers of two, and then every 256 slots."""
    return 1 << steps.bit_length() if steps < _EVERY else (steps // _EVERY + 1) * _EVERY


def checked_share(value: Any) -> float:
    """The checked share of mu^2 for the private AUC.

    Raises
    ------
    ConfigError
        If it is none.
    """
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not ok or not 1e-4 <= value <= 0.5:
        raise ConfigError(
            f"auc_share is {value!r}",
            fix="give the share of mu^2 for a private AUC, from 0.0001 to 0.5 (0.05 is usual), or None",
        )
    return float(value)


class WithPrivateAUCState(StateWrapper):
    """State of a mechanism together with the histograms of its scores.

    Parameters
    ----------
    plan
        Plan of the histograms.
    run
        State of the mechanism.
    settings
        Validated parameters.
    """

    def __init__(self, plan: AucPlan, run: MechanismState, settings: Settings) -> None:
        super().__init__(run)
        self.plan = CombinedPlan(run.plan, plan)
        self._auc_plan = plan
        self.sums = NoisySums(plan.release(settings), (2, BINS))
        self._sums: list[Floats] = []  # noisy counts that have left, and of how many windows each
        self._sizes: list[int] = []
        self._scale = (1.0, 0.0)  # slope and offset from scores to log-odds
        self._due = plan.end(0)

    @property
    def releases(self) -> int:
        """Number of models and histograms released so far."""
        return self.inner.releases + sum(self._sizes)

    @property
    def histograms(self) -> Floats:
        """The last released counts, (2, bins): for the audit."""
        return self._sums[-1] if self._sums else np.zeros((2, BINS))

    @property
    def auc(self) -> Mapping[str, Any]:
        """The AUC, estimated from the released counts."""
        return self._auc_plan.estimate(self._sums, self._sizes).as_dict()

    def card(self) -> tuple[Release, ...]:
        """The mechanism card: each kind of release with its sensitivity, noise and cost."""
        return (*self.inner.card(), self.sums.release)

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        return [*self.inner.numbers(), self._auc_plan.sigma]

    def with_fixed_weights(self, weights: Floats) -> WithPrivateAUCState:
        """The same histograms with fixed weights: for the audit.

        Given the models, only the histograms depend further on a record.
        """
        other = object.__new__(WithPrivateAUCState)
        other.__dict__.update(self.__dict__)
        other.inner = _FixedWeights(self.inner, weights)
        other._sums, other._sizes = [], []
        return other

    # ---- slots -----------------------------------------------------------------------------------------

    @property
    def releases_nothing(self) -> bool:
        """Whether neither the mechanism nor the histograms release something after the next slot."""
        return self.inner.releases_nothing and self.steps + 1 < self._due

    def accumulate(self, design: Design) -> None:
        """`learn` of one slot from the raw record, of which the score is counted too."""
        self._update_scale()
        design.prepare(design.raw, design.ready, design.usable)
        score = np.array([vectors.dot(self.average, design.ready[0])])
        self.inner.accumulate(design)
        self.sums.add(dp_steps.class_bins, score, design.label, *self._scale)
        self.steps = self.inner.steps

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """As in the base class, in one go up to the end of a window, or to where the scale is looked up."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        start, n = 0, len(batch.rows)
        if not len(batch.scores):
            batch = SlotBatch(batch.rows, batch.labels, batch.rows, np.empty(n), batch.records)
        while start < n:
            self._update_scale()
            # With a chain, the slot of a release by itself: its counts key the noise of the step.
            ends = chain is not None and self.steps + 1 == self._due
            due = 1 if ends else self._due - self.steps - (chain is not None)
            part = batch.part(start, min(n, start + due, start + _next(self.steps) - self.steps))
            start += len(part.rows)
            if chain is not None and ends:
                part.scores[0] = vectors.dot(self.average, part.scored[0])
                self._count(part)
                chain.extend(self.sums.cells())
                self.inner.take(SlotBatch(part.rows, part.labels, records=part.records), chain)
            else:
                self.inner.take(part, stream)
                self._count(part)
            self._release_if_due(stream)

    def _update_scale(self) -> None:
        """Update the scale from scores to log-odds at even odds, if it is due; from releases alone."""
        if self.steps == 0 or _next(self.steps - 1) == self.steps:
            link, unit = self.inner.link, unit_link(self.inner.average, self.inner.spread)
            factor = max(1.0, _LEAST * unit.slope / link.slope)
            self._scale = factor * link.slope, factor * (link.offset - self.inner.prior)

    def _count(self, batch: SlotBatch) -> None:
        """Count the scores; a blanked row has no label, so its score is not counted."""
        self.sums.add(dp_steps.class_bins, batch.scores, batch.labels, *self._scale)

    def _release_if_due(self, stream: Stream) -> None:
        """Release the counts of the window, if it ends with the slots taken so far."""
        self.steps = self.inner.steps
        if self.steps != self._due:
            return
        noise = self.sums.noise(stream.take(2 * BINS), self._auc_plan.sigma)
        keep(self._sums, self._sizes, self.sums.privatize(noise))
        self.sums.clear()
        self._due = self._auc_plan.end(self.steps)

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Export the state, as plain values and arrays."""
        auc_state = {
            "sums": self.sums.to_state(),
            "scale": np.array(self._scale),
            "released": np.array(self._sums).reshape(-1, 2, BINS),
            "sizes": list(self._sizes),
        }
        return {**self.inner.to_state(), "auc": auc_state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        self.inner.load_state(state)
        self.steps = self.inner.steps
        saved = state["auc"]
        released, scale, sizes = saved["released"], saved["scale"], [int(size) for size in saved["sizes"]]
        ended = self._auc_plan.windows(self.steps)
        if released.shape != (len(sizes), 2, BINS) or scale.shape != (2,) or sum(sizes) != ended:
            raise ValueError("histograms that are not those of the plan")
        self.sums.load_state(saved["sums"])
        self._scale = float(scale[0]), float(scale[1])
        self._sums, self._sizes = list(released.copy()), sizes
        self._due = self._auc_plan.end(ended * self._auc_plan.window)


class _FixedWeights(StateWrapper):
    """A state that neither learns nor draws noise: its weights are fixed."""

    def __init__(self, run: MechanismState, weights: Floats) -> None:
        super().__init__(run)
        self._weights = weights

    @property
    def average(self) -> Floats:
        return self._weights

    @property
    def releases(self) -> int:
        return 0

    def card(self) -> tuple[Release, ...]:
        return ()

    def numbers(self) -> list[float]:
        return self.inner.numbers()

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        if len(batch.scores):
            vectors.score_many(self._weights, batch.scored, batch.scores)
        if isinstance(stream, ChainedNoise):
            stream.skip(batch.records)
        self.steps += len(batch.rows)

    def to_state(self) -> dict[str, Any]:
        return self.inner.to_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class WithPrivateAUC(Companion):
    """A private AUC of the scores, released as histograms beside a mechanism.

    Parameters
    ----------
    share
        Share of the learning's mu^2 for the histograms.
    """

    share: float

    def start(
        self,
        settings: Settings,
        saved: Mapping[str, Any] | None,
        start_inner: Callable[[Settings, Mapping[str, Any] | None], MechanismState],
    ) -> WithPrivateAUCState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        mu = math.sqrt(self.share) * settings.mu_learning
        plan = AucPlan(mu, settings.forks, settings.learning, settings.learning_records)
        plan, saved = plan.with_saved(saved)
        run = start_inner(replace(settings, mu=math.sqrt(1.0 - self.share) * settings.mu), saved)
        return WithPrivateAUCState(plan, run, settings)

    def describe(self) -> str:
        """Description of the mechanism, for the report."""
        return (
            f"Beside it {self.share:.3g} of what learning may take of mu^2 goes to histograms of the "
            "probabilities by class, over windows of learned records, each released once under Gaussian "
            "noise: the private AUC is computed from them."
        )

    def notes(self, run: WithPrivateAUCState) -> list[str]:
        """Further notes of the report."""
        window = run.plan.companion.window
        return [
            f"The private AUC is of scores given before learning, in windows of {window} learned records."
        ]
