"""Mechanisms that a `PairFTRL` can be given as its `mechanism`, with their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from river import base

from streampair.buffers import Buffer
from streampair.losses import PairLoss

__all__ = [
    "DecayedMoments",
    "MechanismOptions",
    "PairGradients",
    "SecondMoments",
    "option_of",
]

Strategy: TypeAlias = Literal["auto", "toeplitz", "blt"]


class MechanismOptions(base.Base):
    """Base class of mechanism options: no state; the learner validates them."""

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class SecondMoments(MechanismOptions):
    """Least squares over all pairs, from second moments of the records.

    The moments are summed over blocks that end at public slots, each a tenth of the stream so far, and at the
    horizon; each block's sum is released once. The records are standardised by private means and variances
    from a warm-up. The noise is far smaller than that of gradients, since there are only a few dozen
    releases. (At most 512 features; `metric.PairFTRL` needs `classes`.)

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> model = auc.PairFTRL(delta=1e-4, horizon=1000, mechanism=privacy.SecondMoments())
    >>> model.mechanism
    SecondMoments()
    """


@dataclass(frozen=True)
class DecayedMoments(MechanismOptions):
    """`SecondMoments` with exponential forgetting, for concept drift; for two classes, without a horizon.

    The privacy spent on a record does not grow with the stream.

    Parameters
    ----------
    half_life
        Number of learned records after which the weight of a record has halved; a block is an eighth of it.

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> model = auc.PairFTRL(delta=1e-4, mechanism=privacy.DecayedMoments(half_life=5000))
    >>> model.mechanism
    DecayedMoments(half_life=5000)
    """

    half_life: int


@dataclass(frozen=True)
class PairGradients(MechanismOptions):
    """FTRL on clipped gradients of any pair loss: each record is paired with those in a buffer.

    The gradients, averaged over the places of the buffer, are summed under correlated noise, and a model is
    released after every record.

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        ``buffers.FIFO(s)``, ``FullHistory()`` (needs a horizon) or ``Reservoir(s)``; None is ``FIFO(32)``.
    clip
        Radius of the ball that each pair's gradient is clipped into (`privacy.mechanisms.ftrl.FTRLPlan`);
        None is 1.
    strategy
        Noise: ``"toeplitz"`` (square root; needs a horizon), ``"blt"``, or ``"auto"``.
    positive_rate
        For two classes: share of positives, which probabilities need. A public number, or ``"released"``,
        which releases it and what else they need for 2 % of mu^2. None: probabilities are uncalibrated.

    Examples
    --------
    >>> from streampair import auc, buffers, losses, privacy
    >>> gradients = privacy.PairGradients(loss=losses.Logistic(), buffer=buffers.FIFO(8))
    >>> model = auc.PairFTRL(delta=1e-4, horizon=1000, mechanism=gradients)
    >>> model.pair_loss, model.settings.buffer.describe()
    (Logistic(), 'a FIFO buffer of 8 places')
    """

    loss: PairLoss | None = None
    buffer: Buffer | None = None
    clip: float | None = None
    strategy: Strategy = "auto"
    positive_rate: float | str | None = None


def option_of(name: str) -> str | None:
    """Return an expression with the option of this name, for messages; None if no mechanism has it."""
    kinds = (PairGradients, SecondMoments, DecayedMoments)
    found = [kind.__name__ for kind in kinds if name in kind.__dataclass_fields__]
    return f"privacy.{found[0]}({name}=...)" if found else None
