"""A run beside which more is released of the same records: what is passed on to it as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streampair.privacy.mechanisms.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.link import Link
    from streampair.privacy.noise import ChainedNoise, Stream

    Floats = NDArray[Any]

__all__ = ["Beside", "BesideRun"]


class Beside:
    """A chain whose step depends on more than its caller says."""

    def __init__(self, chain: ChainedNoise, more: bytes) -> None:
        self._chain, self._more = chain, more

    def advance(self, values: bytes) -> None:
        self._chain.advance(values + self._more)

    def take(self, count: int) -> Floats:
        return self._chain.take(count)

    def words(self, count: int) -> Any:
        return self._chain.words(count)


class BesideRun(Run):
    """A run, and something beside it.

    Parameters
    ----------
    run
        What learns.
    """

    inner: Run

    def __init__(self, run: Run) -> None:
        self.inner = run
        self.steps = run.steps
        self.spread, self.cap, self.secret_iterate = run.spread, run.cap, run.secret_iterate

    @property
    def average(self) -> Floats:
        """The published weights: a view."""
        return self.inner.average

    @property
    def link(self) -> Link:
        """From a score to a probability."""
        return self.inner.link

    @property
    def noise(self) -> Floats | None:
        """Standard deviation of what noise adds to each published weight."""
        return self.inner.noise

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that `link` counts with."""
        return self.inner.prior

    @property
    def auc(self) -> Mapping[str, Any] | None:
        """The private AUC."""
        return self.inner.auc

    @property
    def door(self) -> Any:
        """Through which gradients leave."""
        return self.inner.door  # type: ignore[attr-defined]

    @property
    def released(self) -> Floats:
        """What has left through the door of what learns, last."""
        return self.inner.released

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        return self.inner.buffer_records

    def centre(self, mean: float) -> None:
        """Take a released mean of the labels, before the first record."""
        self.inner.centre(mean)

    def begin_with(self, cross: Floats) -> None:
        """Make a first model of what the warm-up has released of labels and features."""
        self.inner.begin_with(cross)

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row; label NaN makes it a null slot."""
        self.take(rows, labels, stream, (), None)
