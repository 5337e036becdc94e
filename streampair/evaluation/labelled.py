"""The regret of learners whose labels are not two: relevances, and classes of a metric.

Estimated is what `streampair.evaluation.regret` estimates, H20 Eq. 4 with the penalty of H20 Eq. 3, in which
the margin of a pair is that of the learner: ``(y - y') w.(x - x')``, or ``s (1 - u'Wu)`` for the difference u
of two records and s = 1 within a class, -1 between two. The sample is the same but for its strata: there is
one, as any two records make a pair, and the partner of a step is drawn from all records before it. The j-th
step after the exact part enters with odds of about 1/sqrt(j), and what a step stands for follows from that.

A record without a usable label makes no pair. It is a step all the same, and counts among those before the
next: so nothing has to be asked of the labels of the many records that do not enter the sample.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.estimate import PairSample, RegretEstimate, judge, plain_design
from streampair.evaluation.pairs import Pairs
from streampair.evaluation.rows import Row
from streampair.evaluation.sampler import Features, Sampler, Scorer
from streampair.evaluation.sampling import stands_for
from streampair.kernels import sampling as layout

__all__ = ["LabelledRegret"]

Array = NDArray[np.float64]


class LabelledRegret(Sampler):
    """Online estimate of the regret over all pairs of records; see `RelevanceRegret` and `MetricRegret`.

    Parameters
    ----------
    loss, radius, pairs, exact, seed
        As in `PairRegret`.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    _strata: ClassVar[int] = 1

    # ---- what a kind of label provides -----------------------------------------------------------------

    @abc.abstractmethod
    def label(self, y: Any) -> float:
        """The number of a label; NaN for one that cannot be used."""

    @abc.abstractmethod
    def paired(self, label: Any, others: Any) -> Any:
        """Whether pairs of records with these labels, none of them NaN, depend on the weights; by element."""

    @abc.abstractmethod
    def margins(
        self, x: Any, label: float, others: Sequence[Any], labels: Sequence[float], score: float, by: Scorer
    ) -> Array:
        """What the loss of the pairs of x with others is applied to, before x is learned."""

    @abc.abstractmethod
    def pairs_of(self, own: Array, partner: Array, labels: Array, others: Array) -> Pairs:
        """Pairs of designs (n, d), with their labels (n,)."""

    # ---- observing -------------------------------------------------------------------------------------

    def _stratum(self, y: Any) -> int:
        return 0

    def _numbers_of(self, ys: Sequence[Any]) -> Array:
        return np.array([self.label(y) for y in ys], dtype=np.float64)

    def _makes_pair(self, label: float, other: float) -> bool:
        return label == label and other == other and bool(self.paired(label, other))

    def _weigh(self, places: NDArray[np.int64]) -> None:
        """1 for a pair, 0 where the labels make none."""
        steps = self._sample.steps
        own, other = steps[places, layout.STEP_LABEL], steps[places, layout.STEP_OTHER]
        usable = ~(np.isnan(own) | np.isnan(other))
        steps[places, layout.STEP_WEIGHT] = usable & self.paired(own, other)

    def _margin(self, place: int, score: float, theirs: float) -> float:
        """By the labels; 0 where they make no pair."""
        columns = [layout.STEP_LABEL, layout.STEP_OTHER, layout.STEP_WEIGHT]
        own, other, weight = self._sample.steps[place, columns].tolist()
        return float(self.margins(None, own, [theirs], [other], score, float)[0]) if weight else 0.0

    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> tuple[Row | None, float] | None:
        """As in the base."""
        early = self.seen < self.exact
        keep_record, keep_step, place = self._sample.next(0)
        if self.unusable is not None or not (early or keep_record or keep_step):
            return None
        label, row, value = self.label(y), self._given(x), 0.0
        if row is None:
            return None, 0.0
        if early:
            others = [(x2, y2) for x2, y2 in self._first if self._makes_pair(label, y2)]
            if others:
                rows, labels = zip(*others, strict=True)
                arguments = self.margins(x, label, rows, labels, score, scorer)
                value = float(np.sum(self.loss.value(arguments))) / self.seen
        elif keep_step:
            other = float(self._sample.records[place, layout.RECORD_LABEL])
            if self._makes_pair(label, other):
                partner = self._sample.at("past", [place])[0]
                value = float(self.margins(x, label, [partner], [other], score, scorer)[0])
        return row, value

    # ---- estimating ------------------------------------------------------------------------------------

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """As in `PairRegret`."""
        n = self.seen
        self._solve_at = 4 * n if n < 32 * self.pairs else n + max(n // 2, 1024 * self.pairs)
        if n < 2 or self.unusable is not None:
            return None
        steps = self._sample.steps
        counted = self._sample.counted(0)
        scale = stands_for(*self._sample.ranks(0), counted, self.exact)
        slots = np.flatnonzero(scale > 0.0)
        first, labels = (
            [row for row, _ in self._first],
            np.array([label for _, label in self._first], dtype=np.float64),
        )
        own, partner = self._sample.at("own", slots), self._sample.at("partner", slots)
        # One call: the columns of the plain design depend on the rows it is given.
        design = plain_design if design_many is None else design_many
        x = np.asarray(design([*first, *own, *partner]), dtype=np.float64)
        later, earlier = np.tril_indices(len(first), -1)
        usable = ~np.isnan(labels)
        keep = usable[later] & usable[earlier] & self.paired(labels[later], labels[earlier])
        later, earlier = later[keep], earlier[keep]
        at, m = len(first), len(own)
        pairs = self.pairs_of(
            x[np.concatenate([later, np.arange(at, at + m)])],
            x[np.concatenate([earlier, np.arange(at + m, at + 2 * m)])],
            np.concatenate([labels[later], steps[slots, layout.STEP_LABEL]]),
            np.concatenate([labels[earlier], steps[slots, layout.STEP_OTHER]]),
        )
        sample = PairSample(
            n=n,
            exact=n <= self.exact,
            first=first,
            first_labels=np.zeros(len(first), dtype=np.bool_),
            first_loss=self._first_loss,
            own=own,
            partner=partner,
            own_id=steps[slots, layout.STEP_ID],
            partner_id=steps[slots, layout.STEP_PARTNER],
            labels=np.zeros(m, dtype=np.bool_),  # one stratum
            margin=steps[slots, layout.STEP_MARGIN],
            weight=steps[slots, layout.STEP_WEIGHT],
            scale=scale[slots],
            kept=(m, 0),
            steps=(counted, 0),
        )
        result, self._warm = judge(sample, pairs, 1.0 / later, self.loss, self.radius, self._warm)
        return result

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """What a saved sample must have been made with."""
        return {"kind": type(self).__name__, **super().params()}

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        state = super().to_state()
        (log_w,) = cast("list[float]", state["log_w"])
        return {**state, "log_w": log_w}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """As in the base."""
        super().load_state({**state, "log_w": [state.get("log_w")]})

    def _counted(self) -> dict[str, object]:
        steps, records = self._sample.steps, self._sample.records
        return {
            "seen": self.seen,
            "own_label": steps[:, layout.STEP_LABEL].copy(),
            "partner_label": steps[:, layout.STEP_OTHER].copy(),
            "past_label": records[:, layout.RECORD_LABEL].copy(),
        }

    def _counts(self, state: Mapping[str, Any]) -> list[int]:
        return [int(state["seen"])]

    def _labels_of_first(self) -> NDArray[Any]:
        return np.array([label for _, label in self._first], dtype=np.float64)
