"""How well the learner of a lane does: the AUC and the regret, and what of them a snapshot keeps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from streampair.engine.protocols import OwnStep, comparator_radius, design_many, pair_loss, two_classes
from streampair.engine.records import RegretConfig
from streampair.evaluation import AUCWindow, PairRegret, RegretEstimate

__all__ = ["Monitor"]


class Monitor:
    """The AUC of a lane, and its regret if one is estimated.

    Parameters
    ----------
    learner
        The last step of the model.
    regret
        How to estimate the regret; None: not at all. A learner that ranks no label above the others has none.
    auc_window
        Number of latest labelled events in the AUC.

    Attributes
    ----------
    auc
        Told every labelled event that was scored.
    regret
        Told of the same; None: no regret.
    """

    def __init__(self, learner: object, regret: RegretConfig | None, auc_window: int) -> None:
        self.auc = AUCWindow(auc_window)
        if regret is not None and not two_classes(learner):
            warnings.warn(
                f"no regret is estimated for {type(learner).__name__}: it is that of ranking one "
                "label above the others, which this learner does not do",
                UserWarning,
                stacklevel=3,
            )
            regret = None
        self.regret = None if regret is None else _regret_of(learner, regret)
        self._loss_of_learner = regret is not None and regret.loss is None
        self._estimate: RegretEstimate | None = None

    def estimate(self, learner: object, *, solve: bool | None) -> RegretEstimate | None:
        """The regret up to now, solved anew, or as it was; see `Lane.gauges`."""
        regret = self.regret
        if regret is None:
            return None
        if solve or (solve is None and regret.due):
            self._estimate = regret.estimate(design_many(learner))
        return self._estimate

    def load(self, auc: Mapping[str, Any], regret: Mapping[str, Any] | None) -> None:
        """Go on with what a snapshot holds of them.

        The sample of the regret is given up if the learner was once thought to have another loss.
        """
        self.auc.load_state(auc)
        mine = self.regret
        if mine is None or regret is None:
            return
        own = mine.params()
        loss = regret["params"]["loss"]
        # The loss of auc.SPAUC used to be taken for the hinge. What was sampled then is of no use now.
        if self._loss_of_learner and regret["params"] == {**own, "loss": loss} != own:
            why = f"the snapshot has it for {loss}, and the learner's loss is {mine.loss!r}"
            warnings.warn(f"no regret is estimated from here on: {why}", UserWarning, stacklevel=3)
            mine.give_up(why)
        else:
            mine.load_state(regret)


def _regret_of(learner: object, config: RegretConfig) -> PairRegret:
    loss = config.loss if config.loss is not None else pair_loss(learner)
    radius = config.radius if config.radius is not None else comparator_radius(learner)
    regret = PairRegret(loss, radius, pairs=config.pairs, exact=config.exact, seed=config.seed)
    regret.trusting = isinstance(learner, OwnStep)
    return regret
