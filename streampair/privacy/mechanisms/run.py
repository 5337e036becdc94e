"""What a mechanism is at work: a calibrated plan, and a run, which has the state and takes the slots."""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from streampair import kernels
from streampair.privacy.mechanisms.link import Link, unit_link
from streampair.privacy.noise import ChainedNoise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.base import Relation, Release
    from streampair.privacy.noise import Stream
    from streampair.records.design import Design

    Floats = NDArray[np.float64]

__all__ = ["Asked", "Plan", "Run"]


class Plan(Protocol):
    """A calibrated mechanism: a function of the parameters alone, fixed before the first record."""

    @property
    def sigma(self) -> float:
        """Noise std, a coordinate."""

    @property
    def relation(self) -> Relation:
        """Which streams are neighbours."""

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""

    def fork_mu2(self, window: int) -> float:
        """What a second view of `window` consecutive slots adds to mu^2, at most (docs/privacy.md 8)."""


class Asked(NamedTuple):
    """Rows (n, d) to be scored, one before each slot, and where their scores (n,) go.

    A row that is learned may have been blanked, the one that is scored has not.
    """

    rows: Floats
    scores: Floats


class Run(abc.ABC):
    """An update rule with its state: what `Mechanism.start` makes."""

    #: What values are scaled and shifted by, centred with and multiplied by, (4, d): a view of the design's.
    #: Public, or of the warm-up's release.
    how: Floats | None = None
    #: The calibrated mechanism, a `Plan`.
    plan: Any
    #: Learning slots taken.
    steps: int
    #: Length that standardised records are scaled to, before the unit ball cuts them off.
    spread: float = 1.0
    #: Standardised values beyond it are pulled back to it.
    cap: float = math.inf
    #: Whether the iterate itself has no noise, and is secret.
    secret_iterate: bool = False

    @property
    @abc.abstractmethod
    def average(self) -> Floats:
        """The published weights: a view."""

    @property
    def link(self) -> Link:
        """From a score to a probability, as far as the releases tell."""
        return unit_link(self.average, self.spread)

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that `link` counts with; 0 where it knows none."""
        return 0.0

    @property
    def auc(self) -> Mapping[str, Any] | None:
        """The private AUC as the releases tell it (docs/privacy.md 10.8); None: none is asked for."""
        return None

    @property
    def noise(self) -> Floats | None:
        """Standard deviation of what noise adds to each published weight, (d,), about: from the releases.

        None before there are weights, and where later steps answer to the noise by as much as the records
        say, so that nobody knows how much of it is left (docs/privacy.md, Lemma 89).
        """
        return None

    @property
    def steady(self) -> int:
        """Number of next slots before each of which `average` is that of now; at least 1."""
        return 1

    @property
    @abc.abstractmethod
    def releases(self) -> int:
        """Models released so far, each of which has cost something."""

    @property
    @abc.abstractmethod
    def released(self) -> Floats:
        """What has left through the door last, before any post-processing: for the audit."""

    @property
    @abc.abstractmethod
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""

    @abc.abstractmethod
    def card(self) -> tuple[Release, ...]:
        """What is released, each kind with what it is worth."""

    def centre(self, mean: float) -> None:  # noqa: B027  # most have no use for it
        """Take a released mean of the labels, before the first record."""

    def begin_with(self, cross: Floats) -> None:  # noqa: B027  # most have none
        """Make a first model of what the warm-up has released of labels and features.

        Parameters
        ----------
        cross
            Covariances of the labels with the standardised features, of `E |x|^2 = 1`, and the variances of
            their noise, (2, d).
        """

    @abc.abstractmethod
    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row; label NaN makes it a null slot."""

    @abc.abstractmethod
    def learn_chained(self, row: Floats, label: Floats, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""

    @property
    def quiet(self) -> bool:
        """Whether `learn_quietly` takes the next slot: it is not the first, and nothing leaves with it."""
        return False

    def learn_quietly(self, design: Design) -> None:
        """`learn` of the raw record in the scratch of the design, whose label becomes NaN if it is null."""
        raise NotImplementedError

    def take(
        self, rows: Floats, labels: Floats, stream: Stream, records: Sequence[bytes], asked: Asked | None
    ) -> None:
        """Take one slot a row, under a stream or a chain: the bits of `learn` and `learn_chained`.

        Parameters
        ----------
        rows, labels
            As of `learn`.
        stream
            The noise.
        records
            What identifies the record of each row, for a chain.
        asked
            Gets the linear score of each row under what was published before its slot; None: nobody asks.
        """
        chain = stream if isinstance(stream, ChainedNoise) else None
        if chain is None and asked is None:
            self.learn(rows, labels, stream)
            return
        for i in range(len(rows)):
            row, label = rows[i : i + 1], labels[i : i + 1]
            if asked is not None:
                asked.scores[i] = kernels.dot(self.average, asked.rows[i])
            if chain is None:
                self.learn(row, label, stream)
            else:
                chain.record(records[i])
                self.learn_chained(row, label, chain)

    @abc.abstractmethod
    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""

    @abc.abstractmethod
    def to_state(self) -> dict[str, Any]:
        """What has been learned, as plain values and arrays."""

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
