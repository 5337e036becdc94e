"""Ranking by moments: relevance is regressed on the record, from noisy sums (docs/privacy.md 10.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampair import kernels
from streampair.privacy.mechanisms.leader import noise_of_leader
from streampair.privacy.mechanisms.moments import Moments, MomentsRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.link import Link

    Floats = NDArray[np.float64]

__all__ = ["RankingMoments", "RankingRun"]


class RankingRun(MomentsRun):
    """A run whose labels are relevances in [-1, 1]: the same sums, read in another way."""

    def _leader(self) -> tuple[Floats, Link]:
        """Weights of the least loss `(c - w.(x - x'))^2` over all pairs, c the difference of relevances.

        Over all pairs that is twice the squared error of centred relevances regressed on centred records.
        """
        d, known = self.plan.features, self._numbers[1]
        second, cross, _ = self._means()
        w = np.empty(d)
        # The noise of the matrix has a norm of about sqrt(2 d) std; the ridge is of that order.
        ridge = math.sqrt(d / known) if known else 0.0
        kernels.ridge_solution(second, cross / self._weight, ridge, 0.0, w)
        kernels.project_ball(w, self.plan.radius)
        # Nobody asks a ranking for probabilities.
        return w, self._link

    def _noise_of_weights(self) -> Floats | None:
        known = self._numbers[1]
        if not known:
            return None
        second, cross, _ = self._means()
        return noise_of_leader(
            second,
            cross / self._weight,
            math.sqrt(self.plan.features / known),
            1.0 / known,
            self._noise_of_cross() / (self._weight * self._weight),
            self.plan.radius,
        )


@dataclass(frozen=True)
class RankingMoments(Moments):
    """The leader of the squared error of differences, computed from second moments of blocks of records."""

    run: ClassVar[type[MomentsRun]] = RankingRun
    prefix: ClassVar[str] = "means, variances and the mean relevance"
