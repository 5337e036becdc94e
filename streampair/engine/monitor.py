"""Quality of a lane's learner: its AUC and its regret, and their state in a snapshot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from streampair.engine.protocols import LaneLearner, MetricLearner, SerializableStep
from streampair.engine.records import RegretConfig
from streampair.evaluation import (
    AUCWindow,
    Drawn,
    MetricRegret,
    PairRegret,
    Quality,
    RegretEstimate,
    RelevanceRegret,
    quality_of,
)

__all__ = ["Monitor"]


class Regret(Protocol):
    """Regret estimator of a lane, for any kind of label. The lane treats its return values as opaque."""

    loss: Any
    exact: int

    @property
    def due(self) -> bool: ...

    def enters(self, y: Any) -> bool: ...

    def hits(self, labels: Sequence[Any]) -> Iterator[tuple[int, int, int]]: ...

    def skip_labels(self, labels: Sequence[Any]) -> None: ...

    def skip(self, zeros: int, ones: int) -> None: ...

    def draw(self, labels: Sequence[Any], *, numbers: bool = False) -> Drawn | None: ...

    def keep(self, drawn: Drawn, rows: Sequence[Any], labels: Sequence[Any]) -> None: ...

    def record_scores(
        self, drawn: Drawn, scores: Sequence[float], partner_scores: Sequence[float]
    ) -> None: ...

    def prepare(self, x: Any, y: Any, score: float, scorer: Callable[[Any], float]) -> Any: ...

    def commit(self, step: Any, y: Any) -> None: ...

    def estimate(self, design_many: Any = None) -> RegretEstimate | None: ...

    def params(self) -> dict[str, object]: ...

    def to_state(self) -> dict[str, object]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Monitor:
    """The AUC of a lane, and its regret if one is estimated.

    Parameters
    ----------
    learner
        The last step of the model.
    regret
        How to estimate the regret; None: not at all. It needs a learner that ranks one label above the
        others, or defines the margin of a pair.
    auc_window
        Number of latest labelled events in the AUC.
    threshold
        As of `quality_of`.

    Attributes
    ----------
    auc
        Receives every labelled event that was scored.
    regret
        Receives the same events; None: no regret.
    """

    def __init__(
        self,
        learner: LaneLearner,
        regret: RegretConfig | None,
        auc_window: int,
        threshold: float | None = None,
    ) -> None:
        self.auc = AUCWindow(auc_window)
        self._threshold = threshold
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

    def estimate(self, learner: LaneLearner, *, solve: bool | None) -> RegretEstimate | None:
        """The regret up to now, solved again or from the last solution; see `Lane.gauges`."""
        regret = self.regret
        if regret is None:
            return None
        if solve or (solve is None and regret.due):
            self._estimate = regret.estimate(learner.design_many)
        return self._estimate

    def quality(self, probabilities: Callable[[Any], Any] | None = None) -> Quality | None:
        """Further metrics of the latest scores; None until both classes were seen.

        Parameters
        ----------
        probabilities
            From scores to the model's current probabilities; None: it gives none.
        """
        return quality_of(*self.auc.events(), probabilities, threshold=self._threshold)

    def load(self, auc: Mapping[str, Any], regret: Mapping[str, Any] | None) -> None:
        """Restore the AUC and the regret from a snapshot."""
        self.auc.load_state(auc)
        if self.regret is not None and regret is not None:
            self.regret.load_state(regret)


def _regret_of(learner: LaneLearner, config: RegretConfig) -> Regret:
    loss = config.loss if config.loss is not None else learner.pair_loss
    radius = config.radius if config.radius is not None else learner.comparator_radius
    sample = {"pairs": config.pairs, "exact": config.exact, "seed": config.seed}
    form = learner.pair_form
    regret: PairRegret | RelevanceRegret | MetricRegret
    if learner.two_classes:
        regret = PairRegret(loss, radius, **sample)
    elif isinstance(learner, MetricLearner):
        regret = MetricRegret(
            loss,
            radius,
            quadratic=learner.quadratic_many,
            label=learner.label_number,
            psd=form == "psd",
            **sample,
        )
    else:
        regret = RelevanceRegret(loss, radius, label=learner.label_number, **sample)
    regret.trusting = isinstance(learner, SerializableStep) and not learner.takes_text
    return regret
