"""Which mechanism a private learner's parameters ask for, at its construction and when features are known.

Each function is the `_choose` of the learners that name it: it gets the learner, and the number of features
or None while they are not known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from streampair.errors import ConfigError
from streampair.learners.settings import scale, whole
from streampair.privacy.mechanisms.base import Mechanism
from streampair.privacy.mechanisms.forgetting import Forgetting
from streampair.privacy.mechanisms.ftrl import FTRL, check_strategy
from streampair.privacy.mechanisms.metric_moments import MetricMoments
from streampair.privacy.mechanisms.moments import LEAST_HORIZON, MOST_FEATURES, Moments
from streampair.privacy.mechanisms.noisy import Noisy
from streampair.privacy.mechanisms.output import Output
from streampair.privacy.mechanisms.partners import PARTNER, Partnered
from streampair.privacy.mechanisms.private_auc import Evaluated, checked_share
from streampair.privacy.mechanisms.ranking_moments import RankingMoments
from streampair.privacy.mechanisms.rate import Rated, checked_rate
from streampair.privacy.mechanisms.woods import MOST_DEPTH, MOST_TREES, Woods, worthwhile

__all__ = [
    "centred_output",
    "gradients",
    "leader",
    "metric_leader",
    "noisy",
    "output",
    "ranking_leader",
    "woods",
]


def _rated(learner: Any, mechanism: Mechanism) -> Mechanism:
    """The mechanism, with a share of positives if one is asked for."""
    asked = getattr(learner, "positive_rate", None)
    if asked is None:
        return mechanism
    declared = checked_rate(asked)
    if declared is None and isinstance(mechanism, Output) and mechanism.paper:
        raise ConfigError(
            "the paper's calibration leaves nothing of the budget for a share of positives",
            fix="declare it with positive_rate=, or use calibration='tight'",
        )
    return Rated(mechanism, declared)


def _evaluated(choose: Callable[..., Mechanism]) -> Callable[..., Mechanism]:
    """Whatever is chosen, with a private AUC beside it if one is asked for."""

    @functools.wraps(choose)
    def chosen(learner: Any, features: int | None, *more: Any, **named: Any) -> Mechanism:
        mechanism = choose(learner, features, *more, **named)
        share = getattr(learner, "auc_share", None)
        if share is None:
            return mechanism
        if isinstance(mechanism.core, Output) and mechanism.core.paper:
            raise ConfigError(
                "the paper's calibration leaves nothing of the budget for a private AUC",
                fix="leave auc_share out, or use calibration='tight'",
            )
        return Evaluated(mechanism, checked_share(share))

    return chosen


def gradients(learner: Any, features: int | None) -> Mechanism:
    """FTRL on gradients."""
    check_strategy(learner.strategy, learner.horizon)
    if getattr(learner, "partner", None) is not None:
        return _rated(learner, _partnered(learner))
    return _rated(learner, FTRL(learner.strategy))


def _partnered(learner: Any) -> Partnered:
    """FTRL on gradients of pairs with a released partner."""
    partner = learner.partner
    if not (isinstance(partner, str) and partner == PARTNER):
        raise ConfigError(f"partner is {partner!r}", fix=f"give partner={PARTNER!r}, or None")
    given = [name for name in ("buffer", "max_uses") if getattr(learner, name) is not None]
    if given:
        raise ConfigError(
            f"partner={partner!r} keeps no record, and {given[0]}={getattr(learner, given[0])!r} says which",
            fix=f"leave {given[0]} out, or partner",
        )
    if learner.warmup is not None and learner.warmup == 0:
        raise ConfigError(
            f"partner={partner!r} is what the warm-up has released, and warmup is 0",
            fix="leave warmup out, or partner",
        )
    return Partnered(learner.strategy)


def _anytime(value: Any, horizon: Any) -> float | None:
    """The weight of what is known before the horizon, checked."""
    if value is None:
        return None
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not ok or not 0.01 <= value <= 1.0:
        raise ConfigError(f"anytime is {value!r}", fix="give a weight from 0.01 to 1, or None")
    if horizon is None:
        raise ConfigError(
            f"anytime is {value!r}, and there is no horizon whose end it could be weighed against",
            fix="give horizon=, or leave anytime out",
        )
    return float(value)


@_evaluated
def leader(learner: Any, features: int | None, moments: Callable[[], Mechanism] = Moments) -> Mechanism:
    """FTRL by moments or on gradients, as `solver` says; "auto": moments, where nothing speaks against it.

    Parameters
    ----------
    moments
        Those of the family.

    Raises
    ------
    ConfigError
        If a parameter is given that the solver cannot use.
    """
    by_gradients = gradients(learner, features)
    solver, horizon = learner.solver, learner.horizon
    if solver not in ("auto", "moments", "gradients"):
        raise ConfigError(f"solver is {solver!r}", fix="give solver='auto', 'moments' or 'gradients'")
    unused = ["loss", "buffer", "clip", "max_uses"]
    if moments is not Moments or getattr(learner, "half_life", None) is not None:
        unused.append("entity")
    given = [name for name in unused if getattr(learner, name) is not None]
    if getattr(learner, "partner", None) is not None:
        given.append("partner")
    if learner.strategy != "auto":
        given.append("strategy")
    if learner.warmup is not None and learner.warmup == 0:
        given.append("warmup")
    if getattr(learner, "half_life", None) is not None:
        return _forgetting(learner, given)
    if solver == "moments" and given:
        raise ConfigError(
            f"solver='moments' cannot use {given[0]}={getattr(learner, given[0])!r}: it standardises "
            "records first and takes the leader of the squared loss over all pairs",
            fix=f"leave {given[0]} out, or use solver='gradients'",
        )
    if solver == "auto":
        short = isinstance(horizon, int) and horizon < LEAST_HORIZON
        many = features is not None and features > MOST_FEATURES
        solver = "gradients" if given or short or many else "moments"
    if solver == "gradients":
        if getattr(learner, "anytime", None) is not None:
            raise ConfigError(
                f"solver='gradients' cannot use anytime={learner.anytime!r}: it releases after every record",
                fix="leave it out, or use solver='moments'",
            )
        return by_gradients
    if getattr(learner, "positive_rate", None) is not None:
        raise ConfigError(
            f"solver='moments' cannot use positive_rate={learner.positive_rate!r}: it releases the share of "
            "positives with its warm-up",
            fix="leave it out, or use solver='gradients'",
        )
    if moments is not Moments:
        return moments()
    if learner.anytime is not None and learner.entity is not None:
        raise ConfigError(
            f"anytime={learner.anytime!r} weighs what single records have paid, and entity= protects several",
            fix="leave one of them out",
        )
    return Moments(anytime=_anytime(learner.anytime, horizon))


def _at_most(name: str, value: Any, most: int) -> int:
    """An integer from 1 to `most`, or ConfigError."""
    if whole(name, value, 1) > most:
        raise ConfigError(
            f"{name} is {value!r}", fix=f"give at most {most}: a release has a number for each leaf"
        )
    return int(value)


def woods(learner: Any, features: int | None) -> Mechanism:
    """Leaves of random trees beside moments; moments alone where a horizon is too short for leaves.

    Unless somebody says how many trees there are: then so many.

    Raises
    ------
    ConfigError
        If a parameter is given that it cannot use.
    """
    names = ("loss", "buffer", "clip", "max_uses")
    given = [name for name in names if getattr(learner, name) is not None]
    if learner.warmup is not None and learner.warmup == 0:
        given.append("warmup")
    if given:
        raise ConfigError(
            f"a private forest cannot use {given[0]}={getattr(learner, given[0])!r}: it standardises records "
            "first and sums them up",
            fix=f"leave {given[0]} out",
        )
    horizon = learner.horizon
    if features is not None and features > MOST_FEATURES:
        raise ConfigError(
            f"{features} features are too many for second moments", fix=f"select at most {MOST_FEATURES}"
        )
    depth = _at_most("depth", learner.depth, MOST_DEPTH)
    if learner.trees is not None:
        trees = _at_most("trees", learner.trees, MOST_TREES)
        return Woods(trees=trees, depth=depth, fields=learner._fields)
    if isinstance(horizon, int) and not worthwhile(
        *(learner.epsilon, learner.delta, horizon, depth, features or 1)
    ):
        return Moments()
    return Woods(depth=depth, fields=learner._fields)


def ranking_leader(learner: Any, features: int | None) -> Mechanism:
    """`leader` for relevances."""
    return leader(learner, features, RankingMoments)


def metric_leader(learner: Any, features: int | None) -> Mechanism:
    """`leader` for declared classes; gradients where none are.

    Raises
    ------
    ConfigError
        If moments are asked for, and no classes.
    """
    declared = learner._task.classes
    if declared is not None:
        return leader(learner, features, lambda: MetricMoments(classes=declared))
    if learner.solver == "moments":
        raise ConfigError(
            "solver='moments' needs the classes that there are, for it keeps a sum for each",
            fix="declare them with classes=, or use solver='gradients'",
        )
    if learner.solver == "auto":
        return gradients(learner, features)
    return leader(learner, features)


def _forgetting(learner: Any, given: list[str]) -> Mechanism:
    """Moments that fade; `given`: parameters that moments cannot use."""
    half_life = whole("half_life", learner.half_life, 1)
    if learner.horizon is not None:
        raise ConfigError(
            f"half_life={half_life} and horizon={learner.horizon!r} are both set: what fades has no sum over "
            "all records to release at an end",
            fix="leave the horizon out: with a half_life what is spent on a record does not grow with the "
            "stream; or leave the half_life out",
        )
    if learner.solver == "gradients":
        given = ["solver", *given]
    if learner.anytime is not None:
        given = ["anytime", *given]
    if given:
        raise ConfigError(
            f"half_life={half_life} fades second moments of blocks, which cannot use "
            f"{given[0]}={getattr(learner, given[0])!r}",
            fix=f"leave {given[0]} out, or the half_life",
        )
    return Forgetting(half_life=half_life)


@_evaluated
def noisy(learner: Any, features: int | None) -> Mechanism:
    """Noise in every gradient."""
    return _rated(learner, Noisy(0.0 if learner.l2 == 0.0 else scale("l2", learner.l2)))


@_evaluated
def output(learner: Any, features: int | None, *, centred: bool = False) -> Mechanism:
    """Output perturbation.

    Raises
    ------
    ConfigError
        If there is no horizon, or the paper's calibration is asked for what it does not know.
    """
    mechanism = Output(
        l2=None if learner.l2 is None else scale("l2", learner.l2),
        releases=learner.releases,
        calibration=learner.calibration,
        allocation=learner.allocation,
        centred=centred,
    )
    if learner.horizon is None:
        raise ConfigError(
            f"{type(learner).__name__} needs a horizon: its noise is planned over all releases",
            fix="give horizon=, or use PairFTRL, which learns without end",
        )
    unknown = (learner.releases, learner.clip, learner.entity, learner.warmup or None, learner.forks or None)
    if mechanism.paper and any(value is not None for value in unknown):
        raise ConfigError(
            "the paper's calibration knows no releases, warm-up, clipping, forks or entities",
            fix="leave them out, or use calibration='tight'",
        )
    return _rated(learner, mechanism)


def centred_output(learner: Any, features: int | None) -> Mechanism:
    """Output perturbation of the loss plus a ridge term around a point."""
    return output(learner, features, centred=True)
