"""The update rules of flat learners, without state: which kernels step, on which weights and memory."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers, losses
from streampair import kernels as k
from streampair.errors import ConfigError
from streampair.learners.settings import whole
from streampair.learners.storage import Blocks, Classes, LeastSquares, Means, Memory, Rows
from streampair.learners.tasks import Task

__all__ = ["FlatRule", "MetricRule", "OAMRule", "OGDRule", "SPAUCRule"]

Array = NDArray[np.float64]
Bound = tuple[Memory, Callable[[Array, float], int], Callable[[Array, Array, Array, Array], int]]


class FlatRule(abc.ABC):
    """What a leaf of `FlatLearner` is, besides its parameters."""

    #: Largest size of a feature.
    limit: float = k.MAX_ABS
    #: Whether a record has a score that is linear in its features, which the kernels give as they learn.
    linear: bool = True
    #: Whether the learner takes a schedule, and an average weighted by the number of the step.
    scheduled: bool = False

    def loss(self, learner: Any) -> Any:
        """The pair loss that was asked for; None is the hinge."""
        return learner.loss

    def policy(self, learner: Any) -> buffers.Buffer:
        """The buffer that was asked for.

        Raises
        ------
        ConfigError
            If it is none.
        """
        policy = buffers.FIFO(1) if learner.buffer is None else learner.buffer
        if not isinstance(policy, buffers.Buffer):
            raise ConfigError(f"buffer is {policy!r}", fix="give a buffer such as buffers.FIFO(1)")
        if getattr(learner, "half_life", None) is not None and not isinstance(policy, buffers.FIFO):
            raise ConfigError(
                f"half_life is {learner.half_life!r}, and {policy!r} keeps records of long ago",
                fix="use a buffer that forgets, buffers.FIFO(size), or leave the half_life out",
            )
        return policy

    def shape(self, d: int) -> tuple[int, ...]:
        """Shape of the weights for d features."""
        return (d,)

    @abc.abstractmethod
    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Task) -> Bound:
        """The memory, and the kernels for a record and for many.

        Raises
        ------
        ConfigError
            If the buffer does not suit the task.
        """

    def mark(self, learner: Any, header: Array) -> None:  # noqa: B027  # most have nothing to add
        """Write into the scalars of a fresh state what is this rule's own."""

    def check(self, vectors: Mapping[str, Array]) -> None:  # noqa: B027
        """ValueError if saved weights cannot be this rule's."""


def _fade(learner: Any, header: Array) -> None:
    """Let the running sums of a fresh state fade, if that was asked for."""
    half_life = getattr(learner, "half_life", None)
    if half_life is not None:
        header[k.KEEP] = 2.0 ** (-1.0 / whole("half_life", half_life, 1))


class OGDRule(FlatRule):
    """Gradient descent on a linear score."""

    scheduled = True

    def mark(self, learner: Any, header: Array) -> None:
        """What its sums keep."""
        _fade(learner, header)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Task) -> Bound:
        """By the buffer: rows, classes, blocks, or for least squares moments."""
        if isinstance(policy, buffers.FullHistory) and isinstance(loss, losses.Square):
            return LeastSquares(task.real_labels), k.moments_learn, k.moments_learn_many
        if isinstance(policy, buffers.FullHistory):
            blocks = Blocks(policy, k.history_learn, k.history_learn_many)
            return blocks, blocks.learn, blocks.learn_many
        if isinstance(policy, buffers.ClassReservoir):
            if not task.two_classes:
                raise ConfigError(
                    f"buffer is {policy!r}, which keeps the records of two classes apart",
                    fix="use buffers.Reservoir here: relevance is a number, not a class",
                )
            return Classes(policy), k.ogd_learn, k.ogd_learn_many
        return Rows(policy), k.ogd_learn, k.ogd_learn_many


class MetricRule(FlatRule):
    """Gradient descent on a symmetric matrix."""

    limit = k.MAX_ABS_METRIC
    linear = False
    scheduled = True

    def shape(self, d: int) -> tuple[int, ...]:
        """(d, d)."""
        return (d, d)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Task) -> Bound:
        """By the buffer: rows or blocks."""
        if isinstance(policy, buffers.ClassReservoir):
            raise ConfigError(
                f"buffer is {policy!r}, which pairs records of different classes only",
                fix="use buffers.Reservoir: a metric learns from both kinds of pairs",
            )
        if isinstance(policy, buffers.FullHistory):
            blocks = Blocks(policy, k.metric_history_learn, k.metric_history_learn_many)
            return blocks, blocks.learn, blocks.learn_many
        return Rows(policy), k.metric_learn, k.metric_learn_many

    def mark(self, learner: Any, header: Array) -> None:
        """Whether W is kept positive semi-definite, and what its sums keep."""
        _fade(learner, header)
        header[k.PSD] = bool(learner.psd)

    def check(self, vectors: Mapping[str, Array]) -> None:
        """ValueError if a matrix is not symmetric."""
        if any((vectors[name] != vectors[name].T).any() for name in ("w", "averaged")):
            raise ValueError("a metric that is not symmetric")


class OAMRule(FlatRule):
    """Pairs with the whole sample of the other class."""

    def loss(self, learner: Any) -> losses.PairLoss:
        """The hinge."""
        return losses.Hinge()

    def mark(self, learner: Any, header: Array) -> None:
        """ConfigError without a step size."""
        if learner.learning_rate is None:
            raise ConfigError("learning_rate is None", fix="give a number: OAM does not tune its own step")

    def policy(self, learner: Any) -> buffers.Buffer:
        """Two reservoirs."""
        return buffers.ClassReservoir(learner.size)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Task) -> Bound:
        """Both classes."""
        return Classes(policy), k.online_auc_learn, k.online_auc_learn_many


class SPAUCRule(FlatRule):
    """One-record terms around the mean record of each class."""

    def loss(self, learner: Any) -> losses.PairLoss:
        """Least squares."""
        return losses.Square()

    def policy(self, learner: Any) -> buffers.Buffer:
        """None is kept: a place-holder."""
        return buffers.FIFO(1)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Task) -> Bound:
        """Two means."""
        return Means(), k.online_auc_learn, k.online_auc_learn_many
