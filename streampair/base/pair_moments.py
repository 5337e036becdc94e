"""Least squares over all pairs in closed form: its update rule, and the sum of two learners.

Functions rather than methods of a base class: `auc.PairMoments` and `ranking.PairMoments` take `learned_both`
as their ``+``, and nothing else has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers, losses
from streampair.base.buffer_storage import BlockMoments
from streampair.base.online import Bound, OnlinePairLearner, UpdateRule, fade, finite_number
from streampair.base.targets import Target
from streampair.errors import ConfigError
from streampair.kernels import pair_moments, scaling
from streampair.kernels import state as layout
from streampair.privacy.pipeline_check import class_name

__all__ = ["MomentsRule", "begin_with_table", "learned_both"]

Array = NDArray[np.float64]
Places = NDArray[np.intp]


class MomentsRule(UpdateRule):
    """Least squares over all pairs, in closed form."""

    most_features = 1024
    instead = ", or use PairOGD, whose memory and time do not grow with the square of the names"

    def loss(self, learner: Any) -> losses.PairLoss:
        """Least squares."""
        return losses.Square()

    def policy(self, learner: Any) -> buffers.Buffer:
        """A placeholder: records go into moments."""
        return buffers.FIFO(1)

    def mark(self, learner: Any, header: Array) -> None:
        """Set the decay of the moments.

        Raises
        ------
        ConfigError
            If decay or ridge are out of range.
        """
        finite_number("l2", learner.l2, low=1e-6, open_low=False, high=1e12)
        fade(learner, header)

    def bind(self, policy: buffers.Buffer, loss: losses.PairLoss, task: Target) -> Bound:
        """Moments, and a block of records."""
        return (
            BlockMoments(task.real_labels),
            pair_moments.pair_moments_learn,
            pair_moments.pair_moments_learn_many,
        )


_STATISTICS = (
    scaling.MEAN,
    scaling.VARIANCE,
    scaling.COUNT,
    scaling.OCCURRENCES,
    scaling.KIND,
    scaling.CUTS,
    scaling.LOW,
    scaling.HIGH,
)


def learned_both(self: Any, other: Any) -> Any:
    """A learner that has learned the records of both, such as two parts of a table.

    Its `weights` are solved for at once: up to rounding, 1e-9, they are those of one learner of all the
    records that is solved at its last one, where no value is missing or clipped (how one is learned depends
    on the records before). With `half_life` both count as of now.
    Probabilities start from the mean of both curves.

    Raises
    ------
    ConfigError
        If they are of two classes, have other parameters, or more than `max_features` names together.

    Examples
    --------
    >>> from streampair import auc
    >>> one, other = auc.PairMoments(half_life=None), auc.PairMoments(half_life=None)
    >>> for i in range(100):
    ...     (one if i % 2 else other).learn_one({"a": float(i % 7)}, i % 7 > 3)
    >>> both = one + other
    >>> both.records, both.weights["a"] > 0.0
    (100, True)
    """
    if not isinstance(other, OnlinePairLearner):
        return NotImplemented
    if type(other) is not type(self):
        raise ConfigError(
            f"a {class_name(self)} and a {class_name(other)} cannot be added",
            fix="add learners of the same class and parameters",
        )
    mine, theirs = self._fingerprint(), other._fingerprint()
    for name in mine:
        if mine[name] != theirs[name]:
            raise ConfigError(
                f"one learner has {name}={mine[name]}, the other {name}={theirs[name]}",
                fix="add learners of the same parameters",
            )
    names = {*self.feature_names, *other.feature_names}
    if len(names) > self.max_features:
        raise ConfigError(
            f"the learners have {len(names)} features, more than max_features={self.max_features}",
            fix="make both with a larger max_features",
        )
    out, added = self.clone(include_attributes=True), other.clone(include_attributes=True)
    _take(out, added)
    return out


def begin_with_table(learner: OnlinePairLearner, state: Mapping[str, object]) -> None:
    """Let a new learner with a half-life go on from the state of one without, which has learned a table.

    The table counts for at most as many records as the half-life lets count: the sum of their weights.

    Raises
    ------
    SnapshotError
        As of `load_state`.
    """
    table = learner.clone({"half_life": None})
    table.load_state(state)
    _take(learner, table)  # solves, as of the whole table: what follows changes no weights
    keep = float(learner._state[layout.KEEP])
    views = _views(learner)
    counts = views["counts"]
    share = 1.0 / ((1.0 - keep) * max(counts[pair_moments.WEIGHT], 1.0)) if keep > 0.0 else 1.0
    if share < 1.0:
        for place in (pair_moments.WEIGHT, pair_moments.TOTAL, pair_moments.LABELS):
            counts[place] *= share
        views["first_moments"][1] *= share
        views["moments"] *= share


def _take(learner: OnlinePairLearner, other: OnlinePairLearner) -> None:
    """Add what another one has learned, which is lost to that one."""
    learner._grow([name for name in other.feature_names if name not in learner._columns.index])
    places = np.array([learner._columns.index[name] for name in other.feature_names], dtype=np.intp)
    for each in (learner, other):
        each._count_columns()
        pair_moments.merge_rows(each._state)
    _add_links(learner._state, other._state)
    _add_statistics(learner, other, places)
    _add_moments(learner, other, places)
    if learner._unnamed and not other._unnamed:
        learner._learn_label(other._negative)
    learner._state[layout.RECORDS] += other._state[layout.RECORDS]
    scaling.restore(learner._state)
    pair_moments.solve(learner._state)


def _add_links(state: Array, other: Array) -> None:
    """Take the mean of both curves of probabilities, by what they know."""
    known, more = state[layout.INFORMATION], other[layout.INFORMATION]
    if more > 0.0:
        for place in (layout.CENTRE, layout.SPREAD, layout.OFFSET, layout.SLOPE):
            state[place] = (known * state[place] + more * other[place]) / (known + more)
        state[layout.INFORMATION] = max(known, more)


def _add_statistics(learner: OnlinePairLearner, other: OnlinePairLearner, places: Places) -> None:
    """Add up the statistics by which features are scaled."""
    keep = float(learner._state[layout.KEEP])
    most = 1.0 / (1.0 - keep) if keep > 0.0 else np.inf  # values that count
    d = learner._columns.count
    mine, theirs = ({which: np.zeros(d) for which in _STATISTICS} for _ in range(2))
    for which in _STATISTICS:
        mine[which][:] = learner._column(which)
        theirs[which][places] = other._column(which)
    one, two = (np.minimum(found[scaling.COUNT], most) for found in (mine, theirs))
    both = np.maximum(one + two, 1.0)
    off = theirs[scaling.MEAN] - mine[scaling.MEAN]
    mean = mine[scaling.MEAN] + two / both * off
    variance = (one * mine[scaling.VARIANCE] + two * theirs[scaling.VARIANCE]) / both
    variance += one * two / both**2 * off**2
    occurrences = mine[scaling.OCCURRENCES] + theirs[scaling.OCCURRENCES]
    dense = 2.0 * occurrences >= learner._seen + other._seen
    kinds = mine[scaling.KIND].astype(np.int64) | theirs[scaling.KIND].astype(np.int64)
    kinds = np.where(dense, kinds | scaling.DENSE, kinds & ~scaling.DENSE)
    low, high, more = _values_of_both(mine, theirs, dense)
    kinds = np.where(more, kinds | scaling.SCALED, kinds)
    kinds = np.where(kinds & scaling.FIXED, scaling.FIXED, kinds)
    spread = np.sqrt(np.where(dense, variance, variance + mean**2))
    of_two = np.where(dense & (low < high), 0.5 * (high - low), np.maximum(abs(low), abs(high)))
    spread = np.where(kinds & scaling.SCALED, spread, np.where(of_two > 0.0, of_two, 1.0))
    large = spread >= scaling.LEAST_SPREAD
    for which, values in (
        (scaling.MEAN, mean),
        (scaling.VARIANCE, variance),
        (scaling.COUNT, mine[scaling.COUNT] + theirs[scaling.COUNT]),
        (scaling.OCCURRENCES, occurrences),
        (scaling.KIND, kinds),
        (scaling.CUTS, np.maximum(mine[scaling.CUTS], theirs[scaling.CUTS])),
        (scaling.REST, np.zeros(d)),
        (scaling.CENTRE, np.zeros(d)),  # of a dense column it is then restored
        (scaling.UNIT, np.where(large, 1.0 / np.where(large, spread, 1.0), 0.0)),
        (scaling.LOW, low),
        (scaling.HIGH, high),
    ):
        learner._column(which)[:] = values


def _values_of_both(
    mine: dict[int, Array], theirs: dict[int, Array], dense: NDArray[np.bool_]
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """The lowest and the highest value of each column, and whether there are more than two: see `scaling`."""
    values = []
    for one, other in ((mine, theirs), (theirs, mine)):
        known = one[scaling.COUNT] > 0.0
        values += [np.where(known, one[which], other[which]) for which in (scaling.LOW, scaling.HIGH)]
    low, high = np.minimum(values[0], values[2]), np.maximum(values[1], values[3])
    lowest, highest = np.where(dense, low, np.minimum(low, 0.0)), np.where(dense, high, np.maximum(high, 0.0))
    known_values = np.array([*values, np.where(dense, low, 0.0)])
    more: NDArray[np.bool_] = ((known_values != lowest) & (known_values != highest)).any(axis=0)
    return low, high, more


def _views(learner: OnlinePairLearner) -> dict[str, Array]:
    """What the learner keeps in place of a buffer, as views."""
    memory, cap = learner._memory, int(learner._state[layout.CAP])
    assert isinstance(memory, BlockMoments)
    return memory.views(learner._region(), cap, learner._columns.count)


def _add_moments(learner: OnlinePairLearner, other: OnlinePairLearner, places: Places) -> None:
    """Add up the moments, in which all records are."""
    d = learner._columns.count
    (one, means, products), (two, means2, products2) = (
        _products(_views(each), columns, d) for each, columns in ((learner, np.arange(d)), (other, places))
    )
    if one + two == 0.0:
        return
    off = means2 - means
    means = means + two / (one + two) * off
    products = products + products2 + one * two / (one + two) * np.outer(off, off)
    views = _views(learner)
    counts = views["counts"]
    counts[pair_moments.WEIGHT] = one + two
    counts[pair_moments.TOTAL] += _views(other)["counts"][pair_moments.TOTAL]
    counts[pair_moments.LABEL], counts[pair_moments.LABELS] = means[d], products[d, d]
    views["first_moments"][:] = means[:d], products[d, :d]
    views["moments"][:] = products[np.tril_indices(d)]


def _products(views: dict[str, Array], places: Places, d: int) -> tuple[float, Array, Array]:
    """Weight, means and sums of products of d features and the label, the last; `places`: of those known."""
    counts = views["counts"]
    means, products = np.zeros(d + 1), np.zeros((d + 1, d + 1))
    means[places], means[d] = views["first_moments"][0], counts[pair_moments.LABEL]
    rows, columns = np.tril_indices(len(places))
    products[places[rows], places[columns]] = views["moments"]
    products[places[columns], places[rows]] = views["moments"]
    products[places, d] = products[d, places] = views["first_moments"][1]
    products[d, d] = counts[pair_moments.LABELS]
    return float(counts[pair_moments.WEIGHT]), means, products
