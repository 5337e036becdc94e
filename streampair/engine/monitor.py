"""Quality of a lane's learner: AUC, regret, what is known before labels come; their state in a snapshot."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from streampair.engine.exploration import Exploration
from streampair.engine.protocols import LaneLearner, MetricLearner, SerializableStep
from streampair.engine.records import RegretConfig
from streampair.evaluation import (
    AUCWindow,
    ExpectedQuality,
    Quality,
    QualityBeforeLabels,
    Regret,
    RegretEstimate,
    quality_of,
)

__all__ = ["Monitor", "Monitoring"]


@dataclasses.dataclass(frozen=True, slots=True)
class Monitoring:
    """What a lane measures for its operators. It influences no score and no model.

    Parameters
    ----------
    regret
        How to estimate the regret; None: not at all. Where the labels are neither two nor those of pairs
        that the learner knows, there is none: the lane warns, and goes without.
    auc_window
        Number of latest labelled events in the AUC, of the positive label against all others. It stays empty
        for a metric, whose scores are distances.
    threshold
        Events whose score is at least this count as found, for `Quality.recall_at_threshold`; None: there is
        no threshold.
    bounds
        Declared bounds of features, the lowest and the highest value: values outside are counted. None: there
        are none.
    exploration
        Which of the events that their scores stop are let pass: outcomes are weighed by it. None: none is.
    drift_reference
        Number of events that the reference of drift spans, for `QualityBeforeLabels`; None: drift is not
        measured. Another number begins a new reference.

    Examples
    --------
    >>> from streampair.engine import Monitoring, RegretConfig
    >>> Monitoring(regret=RegretConfig(), auc_window=500).auc_window
    500
    """

    regret: RegretConfig | None = None
    auc_window: int = 1000
    threshold: float | None = None
    bounds: Mapping[str, tuple[float, float]] | None = None
    exploration: Exploration | None = None
    drift_reference: int | None = None


class Monitor:
    """The AUC of a lane, and its regret if one is estimated.

    Parameters
    ----------
    learner
        The last step of the model.
    monitoring
        What to measure. A regret needs a learner that ranks one label above the others, or defines the margin
        of a pair.

    Attributes
    ----------
    auc
        Receives every labelled event that was scored.
    regret
        Receives the same events; None: no regret.
    before
        Receives every event that was scored, and the labels; None: drift is not measured.
    """

    def __init__(self, learner: LaneLearner, monitoring: Monitoring) -> None:
        self.auc = AUCWindow(monitoring.auc_window)
        self._threshold, self._explores = monitoring.threshold, monitoring.exploration is not None
        regret = monitoring.regret
        if regret is not None and not learner.two_classes and learner.pair_form is None:
            warnings.warn(
                f"no regret is estimated for {type(learner).__name__}: it neither ranks one label above the "
                "others nor defines the margin of a pair",
                UserWarning,
                stacklevel=3,
            )
            regret = None
        self.regret: Regret | None = None if regret is None else _regret_of(learner, regret)
        self._estimate: RegretEstimate | None = None
        span = monitoring.drift_reference
        self.before = None if span is None else QualityBeforeLabels(span)
        self._expected: tuple[int, ExpectedQuality | None] = (0, None)
        self._quality: Quality | None = None

    def estimate(self, learner: LaneLearner, *, solve: bool | None) -> RegretEstimate | None:
        """The regret up to now, solved again or from the last solution; see `Lane.gauges`."""
        regret = self.regret
        if regret is None:
            return None
        if solve or (solve is None and regret.due):
            self._estimate = regret.estimate(learner.comparator_design)
        return self._estimate

    def quality(
        self, probabilities: Callable[[Any], Any] | None = None, *, solve: bool = True
    ) -> Quality | None:
        """Further metrics of the latest scores; None until both classes were seen.

        Parameters
        ----------
        probabilities
            From scores to the model's current probabilities; None: it gives none.
        solve
            Whether to compute them now; False: return what the last call has, if anything.
        """
        if solve or self._quality is None:
            self._quality = quality_of(
                *self.auc.events(),
                probabilities=probabilities,
                threshold=self._threshold,
                stopped=self._explores,
            )
        return self._quality

    def expected(self, *, look: bool = True) -> ExpectedQuality | None:
        """What is known before labels come.

        Parameters
        ----------
        look
            Whether to find it again after a quarter of a window of events; False: return what the last call
            has, if anything.
        """
        if self.before is None:
            return None
        counted, found = self._expected
        events = self.before.features.n
        # Of half a window each, one shift of half a deviation in 200 is seen after 2,000 events.
        if found is None or (look and events - counted >= self.before.window // 4):
            found = self.before.get()
            self._expected = events, found
        return found

    def load(
        self, auc: Mapping[str, Any], regret: Mapping[str, Any] | None, before: Mapping[str, Any] | None
    ) -> None:
        """Restore what is measured from a snapshot."""
        self.auc.load_state(auc)
        if self.before is not None and before is not None:
            self.before.load_state(before)
        self._quality = None
        if self.regret is not None and regret is not None:
            self.regret.load_state(regret)


def _regret_of(learner: LaneLearner, config: RegretConfig) -> Regret:
    regret = Regret(
        learner.pair_loss,
        learner.comparator_radius,
        label=None if learner.two_classes else learner.label_number,
        quadratic=learner.quadratic_many if isinstance(learner, MetricLearner) else None,
        psd=learner.pair_form == "psd",
        pairs=config.pairs,
        exact=config.exact,
        seed=config.seed,
    )
    regret.trusting = isinstance(learner, SerializableStep) and not learner.takes_text
    regret.indicators = learner.takes_nulls
    return regret
