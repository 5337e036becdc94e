"""A private AUC beside whatever learns (docs/privacy.md 10.8).

Learned slots fall into windows of a fixed length. Each record with a label is scored under the releases at
its slot, before it is learned, and counted in one of 32 bins of its probability, by its class. At a window's
end the counts leave once, under Gaussian noise. A record is in one bin of one window, so windows compose in
parallel, on streams without end too; with what is learned they compose.

The probability that is binned is that of a positive if both classes were as common. With the share of
positives in it, where they are rare, nearly all records would be in the lowest bin, and the AUC of ties is a
half. For the same reason scores have a spread of half a unit at least, however little they are thought to
tell. The scale is looked up every 256 slots, from the releases, so that a batch need not stop at every slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair import kernels
from streampair.errors import ConfigError
from streampair.privacy.mechanisms.auc_plan import BINS, AucPlan, EvaluatedPlan, keep
from streampair.privacy.mechanisms.base import ExactSums, Mechanism, Release, Settings
from streampair.privacy.mechanisms.beside import Beside, BesideRun
from streampair.privacy.mechanisms.fitted import near
from streampair.privacy.mechanisms.link import unit_link
from streampair.privacy.mechanisms.run import Asked, Run
from streampair.privacy.noise import ChainedNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = ["Evaluated", "EvaluatedRun", "checked_share"]

_LEAST = 0.5  # log-odds in a standard deviation of the scores, at least
_EVERY = 256  # slots after which the scale is looked up again


def _next(steps: int) -> int:
    """Slots after which the scale is looked up next: at the powers of two, and then every 256."""
    return 1 << steps.bit_length() if steps < _EVERY else (steps // _EVERY + 1) * _EVERY


def checked_share(value: Any) -> float:
    """The share of mu^2 that goes to the AUC.

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


class EvaluatedRun(BesideRun):
    """A run, and the histograms of its scores.

    Parameters
    ----------
    plan
        Of both.
    run
        What learns.
    settings
        What is promised.
    """

    plan: EvaluatedPlan

    def __init__(self, plan: EvaluatedPlan, run: Run, settings: Settings) -> None:
        super().__init__(run)
        self.plan = plan
        self.sums = ExactSums(plan.histograms.release(settings), (2, BINS))
        self._sums: list[Floats] = []  # noisy counts that have left, and of how many windows each
        self._sizes: list[int] = []
        self._scale = np.array([1.0, 0.0])
        self._due = plan.histograms.end(0)

    @property
    def releases(self) -> int:
        """Models released so far, and histograms."""
        return self.inner.releases + sum(self._sizes)

    @property
    def histograms(self) -> Floats:
        """The noisy counts that have left last, (2, bins): for the audit."""
        return self._sums[-1] if self._sums else np.zeros((2, BINS))

    @property
    def auc(self) -> Mapping[str, Any]:
        """The AUC that the released counts tell."""
        return self.plan.histograms.told(self._sums, self._sizes).as_dict()

    def card(self) -> tuple[Release, ...]:
        """What is released, each kind with what it is worth."""
        return (*self.inner.card(), self.sums.release)

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        return [*self.inner.numbers(), self.plan.histograms.sigma]

    def held(self, weights: Floats) -> EvaluatedRun:
        """The same histograms, beside weights that stay as they are: for the audit.

        Given the releases of what learns, only the histograms tell more of a record.
        """
        other = object.__new__(EvaluatedRun)
        other.__dict__.update(self.__dict__)
        other.inner = _Held(self.inner, weights)
        other._sums, other._sizes = [], []
        return other

    # ---- slots -----------------------------------------------------------------------------------------

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""
        self._look()
        self._count(np.array([kernels.dot(self.average, row[0])]), label)
        beside: Any = chain
        if self.steps + 1 == self._due:
            beside = Beside(chain, self.sums.cells())
        self.inner.learn_chained(row, label, beside)
        self._went(chain)

    def take(
        self, rows: Floats, labels: Floats, stream: Stream, records: Sequence[bytes], asked: Asked | None
    ) -> None:
        """As of a run, in one go up to the end of a window, or to where the scale is looked up."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        if asked is None:
            asked = Asked(rows, np.empty(len(rows)))
        at, n = 0, len(rows)
        while at < n:
            self._look()
            if chain is not None and self.steps + 1 == self._due:
                asked.scores[at] = kernels.dot(self.average, asked.rows[at])
                chain.record(records[at])
                self.learn_chained(rows[at : at + 1], labels[at : at + 1], chain)
                at += 1
                continue
            due = self._due - self.steps - (chain is not None)
            part = slice(at, min(n, at + due, at + _next(self.steps) - self.steps))
            told = Asked(asked.rows[part], asked.scores[part])
            self.inner.take(rows[part], labels[part], stream, records[part], told)
            # A row that was blanked has another score than the one asked for, and no label.
            self._count(told.scores, labels[part])
            self._went(stream)
            at = part.stop

    def _look(self) -> None:
        """Look the scale up, if it is time: from scores to log-odds at even odds, by releases alone."""
        if self.steps == 0 or _next(self.steps - 1) == self.steps:
            link, unit = self.inner.link, unit_link(self.inner.average, self.inner.spread)
            factor = max(1.0, _LEAST * unit.slope / link.slope)
            self._scale[:] = factor * link.slope, factor * (link.offset - self.inner.prior)

    def _count(self, scores: Floats, labels: Floats) -> None:
        slope, offset = self._scale
        self.sums.add(kernels.class_bins, scores, labels, float(slope), float(offset))

    def _went(self, stream: Stream) -> None:
        """Slots have been taken; the counts leave, if they are due."""
        self.steps = self.inner.steps
        if self.steps != self._due:
            return
        histograms = self.plan.histograms
        noise = histograms.sigma * stream.take(2 * BINS)
        keep(self._sums, self._sizes, self.sums.emit(noise.reshape(2, BINS)))
        self.sums.clear()
        self._due = histograms.end(self.steps)

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What has been learned and counted, as plain values and arrays."""
        own = {
            "sums": self.sums.to_state(),
            "scale": self._scale.copy(),
            "released": np.array(self._sums).reshape(-1, 2, BINS),
            "sizes": list(self._sizes),
        }
        return {**self.inner.to_state(), "auc": own}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        self.inner.load_state(state)
        self.steps = self.inner.steps
        saved = state["auc"]
        released, scale, sizes = saved["released"], saved["scale"], [int(size) for size in saved["sizes"]]
        ended = self.plan.histograms.windows(self.steps)
        if released.shape != (len(sizes), 2, BINS) or scale.shape != (2,) or sum(sizes) != ended:
            raise ValueError("histograms that are not those of the plan")
        self.sums.load_state(saved["sums"])
        self._scale[:] = scale
        self._sums, self._sizes = list(released.copy()), sizes
        self._due = self.plan.histograms.end(ended * self.plan.histograms.window)


class _Held(BesideRun):
    """A run that neither learns nor draws: its weights stay."""

    def __init__(self, run: Run, weights: Floats) -> None:
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

    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        chain.advance(b"")
        self.steps += 1

    def take(
        self, rows: Floats, labels: Floats, stream: Stream, records: Sequence[bytes], asked: Asked | None
    ) -> None:
        assert asked is not None
        kernels.score_many(self._weights, asked.rows, asked.scores)
        if isinstance(stream, ChainedNoise):
            stream.skip(records)
        self.steps += len(rows)

    def to_state(self) -> dict[str, Any]:
        return self.inner.to_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Evaluated(Mechanism):
    """A mechanism, and a private AUC beside it.

    Parameters
    ----------
    mechanism
        How it learns.
    share
        Of the learning's mu^2, for the histograms.
    """

    mechanism: Mechanism
    share: float

    def __post_init__(self) -> None:
        for name in ("bounded_uses", "radii", "label_mean", "label_cross", "calibrated"):
            object.__setattr__(self, name, getattr(self.mechanism, name))

    @property
    def core(self) -> Mechanism:
        """How it learns."""
        return self.mechanism.core

    @property
    def default_clip(self) -> float:
        """What `clip=None` means."""
        return self.mechanism.default_clip

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """What `warmup=None` means."""
        return self.mechanism.default_warmup(mu, horizon, features)

    def checked_loss(self, loss: Any, form: Any) -> Any:
        """The loss in use, None being the default."""
        return self.mechanism.checked_loss(loss, form)

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> Run:
        """A run; nothing is drawn, and what was fitted for a saved one is taken from it."""
        learning, entity, records = settings.learning, settings.entity, 1
        if entity is not None:
            records = entity.records if learning is None else entity.within(learning)
        mu = math.sqrt(self.share) * settings.mu_learning
        plan = AucPlan(mu, settings.forks, learning, records)
        if saved is not None:
            object.__setattr__(plan, "sigma", near("auc_sigma", saved["auc_sigma"], plan.sigma))
            saved = {name: value for name, value in saved.items() if name != "auc_sigma"}
        inner = replace(settings, mechanism=self.mechanism, mu=math.sqrt(1.0 - self.share) * settings.mu)
        run = self.mechanism.start(inner, seed=seed, saved=saved)
        return EvaluatedRun(EvaluatedPlan(run.plan, plan), run, settings)

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        return (
            f"{self.mechanism.describe(settings)} Beside it {self.share:.3g} of what learning may take of "
            "mu^2 goes to histograms of the probabilities by class, over windows of learned records, each "
            "released once under Gaussian noise: the private AUC is computed from them."
        )

    def notes(self, settings: Settings, run: Run) -> list[str]:
        """What the report has to say besides."""
        assert isinstance(run, EvaluatedRun)
        window = run.plan.histograms.window
        return [
            *self.mechanism.notes(settings, run.inner),
            f"The private AUC is of scores given before learning, in windows of {window} learned records.",
        ]
