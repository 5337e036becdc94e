"""PairFTRL by gradients whose partner is made of releases, not of records (docs/privacy.md 10.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import kernels, losses
from streampair.errors import ConfigError
from streampair.privacy.mechanisms.ftrl import FTRL, FTRLRun
from streampair.privacy.mechanisms.moments import MOST_CENTRE, Moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.base import Settings

    Floats = NDArray[np.float64]

__all__ = ["PARTNER", "PartnerRun", "Partnered", "partner_of"]

PARTNER = "released"
"""What `partner` says for a partner that is made of releases."""


def partner_of(cross: Floats, centre: float) -> Floats:
    """The point midway between the classes' means, (d,), no longer than `centre`, seen from the mean of all.

    With b the mean of the labels and c their covariance with the features, the classes' means are
    `c / (1 + b)` and `-c / (1 - b)`. Post-processing of the warm-up's release; c is shrunk as James and Stein
    do, by as much of its square as noise explains.

    Parameters
    ----------
    cross
        Covariances of the labels with the standardised features, and the variances of their noise, (2, d).
    centre
        Mean of the labels, between -1 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.partners import partner_of
    >>> partner_of(np.array([[0.36, 0.0], [0.0, 0.0]]), -0.5).round(6)
    array([0.24, 0.  ])
    """
    covariance, noise = cross
    square = float(kernels.dot(covariance, covariance))
    if square == 0.0:
        return np.zeros(len(covariance))
    share = max(1.0 - float(kernels.dot(noise, np.ones(len(noise)))) / square, 0.0)
    half = share / (1.0 - centre * centre)
    # Half the classes' distance is at most 1, for records are in the unit ball; kept a little within.
    half = min(half, (1.0 - 1e-9) / math.sqrt(square))
    return np.asarray(-centre * half * covariance)


class PartnerRun(FTRLRun):
    """A run of `FTRL` that pairs each record with one point: 0 until the warm-up's release.

    The place of the buffer holds it, and the mean of the labels, which says which class is the frequent one.
    """

    _centre = 0.0

    def centre(self, mean: float) -> None:
        """Remember the mean of the labels for `begin_with`, which follows at once."""
        self._centre = min(max(mean, -MOST_CENTRE), MOST_CENTRE)

    def begin_with(self, cross: Floats) -> None:
        """Make the partner."""
        buffer = self.door.buffer
        buffer.rows[0] = partner_of(cross, self._centre)
        buffer.labels[0] = self._centre

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state`; a partner outside its ball would move gradients by more than planned."""
        rows, centres = state["buffer"]["rows"], state["buffer"]["labels"]
        if rows.shape != (1, self.plan.dim) or centres.shape != (1,):
            raise ValueError("a partner of another shape")
        centre = abs(float(centres[0]))
        if not (centre <= MOST_CENTRE and math.sqrt(float(kernels.dot(rows[0], rows[0]))) <= centre):
            raise ValueError("a partner that no release gives")
        super().load_state(state)


@dataclass(frozen=True)
class Partnered(FTRL):
    """`FTRL` that pairs each record with a point between the classes, which the warm-up has released."""

    label_mean: ClassVar[bool] = True
    label_cross: ClassVar[bool] = True
    released_partner: ClassVar[bool] = True
    run: ClassVar[type[FTRLRun]] = PartnerRun

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """As of the moments, whose warm-up releases the same."""
        return Moments().default_warmup(mu, horizon, features)

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """A loss that decreases: the gradients of one class then are on one side of the partner.

        Raises
        ------
        ConfigError
            If it rises somewhere.
        """
        checked = super().checked_loss(loss, form)
        if not checked.decreasing:
            raise ConfigError(
                f"{checked!r} rises somewhere, and how far a record moves its gradient against a released "
                "partner is known of decreasing losses only",
                fix="use losses.Hinge() or losses.Logistic(), or leave partner out",
            )
        return checked

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        return (
            "Mechanism: each record is paired with a point between the classes, which the warm-up has "
            f"released; gradients are clipped at {settings.clip:g}, and their running sum is released under "
            "correlated Gaussian noise after every record. No record is kept. The first "
            f"{settings.warmup} records are used for one release of means, variances, the share of labels "
            "and labels times features only, the later ones for learning only, so each has "
            + ("half of mu^2." if settings.composes else "the whole budget (parallel composition).")
        )
