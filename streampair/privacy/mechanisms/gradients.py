"""The door of gradients: what is exact stays in a compiled loop's scratch (docs/privacy.md 4.2, 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streampair import kernels
from streampair.privacy.mechanisms.base import Release, Settings
from streampair.privacy.mechanisms.buffer import PairBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.run import Asked

    Floats = NDArray[np.float64]

__all__ = ["Batch", "ExactGradients", "empty_buffer"]

_NOT_ASKED = np.empty((0, 0))
_NO_SCORES = np.empty(0)


class Batch(NamedTuple):
    """Rows that are scored, their scores, rows that are learned, their labels: as the kernels take them."""

    asked: Floats
    scores: Floats
    rows: Floats
    labels: Floats

    @classmethod
    def of(cls, rows: Floats, labels: Floats, asked: Asked | None) -> Batch:
        """Nobody asks: there are no scores."""
        return cls(
            _NOT_ASKED if asked is None else asked.rows,
            _NO_SCORES if asked is None else asked.scores,
            rows,
            labels,
        )


def empty_buffer(settings: Settings, seed: int | None) -> PairBuffer:
    """A buffer as the settings say, whose features are known; `seed`: of what it draws."""
    assert settings.features is not None
    return PairBuffer(
        settings.buffer,
        settings.features,
        settings.learning,
        family=settings.pairs,
        loss_code=settings.loss.code,
        tangent=settings.tangent,
        seed=seed,
    )


class ExactGradients:
    """Gradients of records paired with a buffer; a subclass lets them out, under noise, in `emit`.

    Parameters
    ----------
    release
        What leaves is worth this.
    buffer
        The buffer, empty.
    scalars
        Clip, radius and grid, and one number more that its loop takes.
    dim
        Coordinates.

    Attributes
    ----------
    vectors
        The iterate and the published average, (2, dim): functions of what has left.
    """

    __slots__ = ("__cells", "_scratch", "buffer", "release", "scalars")

    def __init__(self, release: Release, buffer: PairBuffer, scalars: list[float], dim: int) -> None:
        self.release = release
        self.buffer = buffer
        self.scalars = np.array(scalars)
        # The third row is the loop's own: the exact gradient, or with noise in each the noisy one.
        self._scratch = np.zeros((3, dim))
        self.__cells = np.zeros(dim, dtype=np.int64)

    @property
    def vectors(self) -> Floats:
        """Iterate and average: views."""
        view: Floats = self._scratch[:2]
        return view

    def cells(self, row: Floats, label: Floats, steps: int) -> NDArray[np.int64]:
        """What noise will be added to for this slot, (dim,): for the chain that keys the noise alone."""
        b = self.buffer
        kernels.gradient_cells(
            row, label, steps, b.ints, self.scalars, self._scratch, b.rows, b.labels, self.__cells
        )
        return self.__cells

    def turns(self, batch: Batch, steps: int) -> NDArray[np.int64]:
        """`cells` of the first row of a batch, after its score; `turn` of a subclass goes on from there."""
        b = self.buffer
        kernels.score_and_cells(
            *batch, 0, steps, b.ints, self.scalars, self._scratch, b.rows, b.labels, self.__cells
        )
        return self.__cells
