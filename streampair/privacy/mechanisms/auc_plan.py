"""What is released for a private AUC, calibrated, and the AUC that it tells (docs/privacy.md 10.8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.privacy.mechanisms.base import Release, Settings, check_cells
from streampair.privacy.mechanisms.run import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["BINS", "AucPlan", "EvaluatedPlan", "PrivateAUC", "keep"]

BINS = 32
"""Of the probability, by class."""

_MOVE = math.sqrt(2.0)  # out of one bin, into another
_WINDOW = 200.0  # slots of a window over the noise of a bin
_FEW = 4.0  # standard deviations of the noise of a whole class, below which there are too few of it
_OF_A_SIZE = 4  # sums of as many windows, before two of them become one
_ENOUGH = 0.02  # standard error at which older windows are no longer needed


def keep(sums: list[Floats], sizes: list[int], counts: Floats) -> None:
    """Add a window to sums of windows, the newest last: the older they are, the more are summed up.

    Parameters
    ----------
    sums
        Noisy counts.
    sizes
        How many windows each is of, a power of two, from the largest to 1.
    counts
        Those of a new window.
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
        The AUC and its standard error: of the sample (Hanley and McNeil) and of the noise. None: too few.
    mu2
        What the histograms take of mu^2 of a record (or of an entity's).
    bins
        How many, by class.
    positives, negatives
        Noisy counts by bin, from the lowest probability to the highest: released values, some below 0.
    too_few
        Whether one of the classes has too few records to tell it from the noise.
    ties
        Share of the pairs that are in one bin, of which half counts as won: what the bins may hide.
    windows, slots
        How many windows are in it, the newest, and how many learned slots they have.
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
        """What noisy counts (2, bins), positives first, tell; `sigma`: noise std of each of them.

        Examples
        --------
        >>> import numpy as np
        >>> from streampair.privacy.mechanisms.auc_plan import PrivateAUC
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
            # Of a positive in each bin against all negatives, and the other way round.
            below = (np.cumsum(negatives) - 0.5 * negatives) / n
            above = (p - np.cumsum(positives) + 0.5 * positives) / p
            area = float(positives @ below) / p
            noise = float(((below - area) ** 2).sum()) / p**2 + float(((above - area) ** 2).sum()) / n**2
            value = min(max(area, 0.0), 1.0)
            one, two = value / (2.0 - value), 2.0 * value * value / (1.0 + value)
            sample = value * (1.0 - value) + (p - 1.0) * (one - value**2) + (n - 1.0) * (two - value**2)
            stderr = math.sqrt(max(sample, 0.0) / (p * n) + sigma**2 * noise)
            ties = min(max(float(positives @ negatives) / (p * n), 0.0), 1.0)
        told = (positives.tolist(), negatives.tolist())
        return cls(value, stderr, mu2, bins, *told, few, ties, windows, slots)

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class AucPlan:
    """Histograms over windows of learned slots, calibrated.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record, or of all of an entity's.
    forks
        Second views of a window that the budget has room for: in each a record is in one histogram.
    horizon
        Learning slots, None for no end. The last window ends there.
    records
        How many records of an entity there may be.
    window
        Learned slots of a histogram: so many that a tenth of them are enough for its noise, nearly.
    sigma
        Noise std of each count.
    """

    mu: float
    forks: int = 0
    horizon: int | None = None
    records: int = 1
    window: int = field(init=False)
    sigma: float = field(init=False)

    def __post_init__(self) -> None:
        sigma = math.sqrt(1.0 + self.forks) * self.sensitivity / self.mu
        object.__setattr__(self, "sigma", sigma)
        check_cells(20.0 * sigma, "noise of the histograms of the AUC")
        # Slots and their number are public: rounded up to a hundred, so that no last digit moves them.
        window = 100 * math.ceil(_WINDOW * sigma / 100.0)
        if self.horizon is not None:  # windows as long as each other, about: a short one is nearly all noise
            window = math.ceil(self.horizon / max(self.horizon // window, 1))
        object.__setattr__(self, "window", window)

    @property
    def sensitivity(self) -> float:
        """l2 sensitivity: a record changes bins. Counts are whole numbers, so that rounding adds nothing."""
        return self.records * _MOVE

    @property
    def mu2(self) -> float:
        """What all histograms cost in one view: a record is in one of them, an entity in some."""
        return (self.sensitivity / self.sigma) ** 2

    def end(self, start: int) -> int:
        """Where the window ends that begins after `start` learned slots."""
        end = start + self.window
        return end if self.horizon is None else min(end, self.horizon)

    def windows(self, steps: int) -> int:
        """How many windows have ended by then."""
        if self.horizon is not None and steps >= self.horizon:
            return math.ceil(self.horizon / self.window)
        return steps // self.window

    def slots(self, first: int, last: int) -> int:
        """Slots of the windows from number `first`, counted from 0, up to `last`, which is not among them."""
        return self.end((last - 1) * self.window) - first * self.window if last > first else 0

    def mu_spent(self, steps: int) -> float:
        """mu of the windows that have ended."""
        return self.sensitivity / self.sigma if self.windows(steps) else 0.0

    def fork_mu2(self, window: int) -> float:
        """What a second view adds to mu^2."""
        return self.mu2 if window > 0 else 0.0

    def told(self, sums: Sequence[Floats], sizes: Sequence[int]) -> PrivateAUC:
        """The AUC of as few of the newest windows as give it a standard error of 0.02, or the smallest one.

        Parameters
        ----------
        sums, sizes
            Noisy counts (2, bins) and of how many windows they are, the newest last; all windows that have
            ended.
        """
        counts, number, ended = np.zeros((2, BINS)), 0, sum(sizes)
        best = PrivateAUC.of(counts, self.sigma, mu2=self.mu2, windows=0)
        for size, part in zip(reversed(sizes), reversed(sums), strict=True):
            counts, number = counts + part, number + size
            found = PrivateAUC.of(
                counts,
                math.sqrt(number) * self.sigma,
                mu2=self.mu2,
                windows=number,
                slots=self.slots(ended - number, ended),
            )
            if best.stderr is None or (found.stderr is not None and found.stderr < best.stderr):
                best = found
            if best.stderr is not None and best.stderr <= _ENOUGH:
                break
        return best

    def release(self, settings: Settings) -> Release:
        """What is released, and what it is worth."""
        move = self.sensitivity / self.sigma
        return Release(
            name="histogram of the probabilities in a window, by class, for the AUC",
            domain="a label -1 or 1, and a probability in [0, 1]",
            relation=settings.relation,
            lemma="docs/privacy.md, Lemma 65",
            sensitivity=self.sensitivity,
            sigma=self.sigma,
            replace=move,
            blank=math.sqrt(0.5) * move,
            releases=None if self.horizon is None else self.windows(self.horizon),
            coordinates=2 * BINS,
            grid=1.0,
        )


class EvaluatedPlan:
    """The plan of what learns, and beside it one of histograms: their mu^2 add up.

    Parameters
    ----------
    plan
        Of what learns.
    histograms
        Of the AUC.
    """

    def __init__(self, plan: Plan, histograms: AucPlan) -> None:
        self.plan = plan
        self.histograms = histograms

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "plan":
            raise AttributeError(name)
        return getattr(self.plan, name)

    @property
    def FITTED(self) -> tuple[str, ...]:
        """Of both."""
        return (*self.plan.FITTED, "auc_sigma")  # type: ignore[attr-defined]

    @property
    def auc_sigma(self) -> float:
        """Noise std of the counts."""
        return self.histograms.sigma

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""
        return math.hypot(self.plan.mu_spent(steps), self.histograms.mu_spent(steps))

    def fork_mu2(self, window: int) -> float:
        """What a second view of `window` consecutive slots adds to mu^2, at most."""
        return self.plan.fork_mu2(window) + self.histograms.fork_mu2(window)
