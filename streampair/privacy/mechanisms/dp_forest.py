"""A private forest: data-independent random trees, noisy leaf sums, and the weights that these give."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from streampair.kernels import dp_steps, numerics, random, random_trees, symmetric, vectors
from streampair.privacy.accounting import mu_from
from streampair.privacy.mechanisms.base import Link, Settings, rate_link, with_numbers
from streampair.privacy.mechanisms.second_moments import (
    ANYTIME,
    MOST_CENTRE,
    Moments,
    MomentsState,
    SecondMomentsPlan,
    second_moments_diameter,
)
from streampair.privacy.mechanisms.synthetic_sample import (
    SEED,
    ReleasedStatistics,
    Rows,
    dot,
    sums_by_leaf,
    synthetic_rows,
)
from streampair.records.random_trees import BINS, DEPTH, TREES, RandomTreeDesign, Trees, marks_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "MOST_DEPTH",
    "MOST_TREES",
    "Answer",
    "DPForest",
    "DPForestPlan",
    "DPForestState",
    "Fitted",
    "Ridge",
    "dp_forest_diameter",
    "half_odds",
    "shares",
    "weights_of",
    "worthwhile",
]

_STEPS = 32  # products, at most
_PROBES = 2  # draws of signs: they tell a trace within some hundredths
# Shares of the variance of the labels that all leaves together may explain, as a prior: .003 to 9.
_LEAST, _FACTOR, _PRIORS = 0.003, 1.25, 37
_MOST_SHARE = 1.25  # of the answer: its prior is narrow
_NOTHING = 1e-12  # of the largest eigenvalue, where a vector has no further part


class Answer(NamedTuple):
    """Weights of leaves.

    Parameters
    ----------
    weights
        (trees, leaves).
    share
        The share of them that is not noise.
    """

    weights: Floats
    share: float


class _Spectrum(NamedTuple):
    """Of a vector v: `v' f(G) v` is nearly `weights.f(nodes)`, f(G) v of the rows of the basis a sum.

    Rows of `vectors` are eigenvectors of G in the basis, whose first row is v / length.
    """

    nodes: Floats
    weights: Floats
    basis: Floats
    vectors: Floats
    length: float


class Ridge:
    """`prior G (prior G^2 + G (v / n + blur) + noise)^-1 r`, G being the Gram matrix of leaves over rows.

    The prior is the one that makes r likeliest. Noise and chance put `G v / n + noise` into r; rows that are
    not quite those of the stream do as if there were fewer records, by `blur`.

    Parameters
    ----------
    told
        What was released.
    leaves, weights
        Of the rows, as of `synthetic_rows`.
    blur
        Variance for each unit of G.
    """

    def __init__(
        self, released: ReleasedStatistics, leaves: NDArray[np.int64], weights: Floats, blur: float = 0.0
    ) -> None:
        self.leaves, self.weights, self.shape = leaves, weights, released.counts.shape
        variance = 1.0 - released.centre * released.centre
        self.noise = released.std * released.std * (1.0 + released.centre * released.centre)
        self.unit = variance / self.shape[0]
        self.chance = variance / released.records
        self.blur = blur

    def gram(self, v: Floats) -> tuple[Floats, Floats]:
        """`W Phi v`, (n, k), and `G v`, of several v, (k, trees, leaves)."""
        scores, out = np.empty((len(self.weights), len(v))), np.empty(v.shape)
        random_trees.wood_gram(self.leaves, self.weights, v, scores, out)
        return scores, out

    def solve(self, left: Floats) -> Answer:
        """Of sums (trees, leaves), with the share that makes the risk least (Stein 1981).

        Of noise alone the answer would have `tr A S` with its own sums, A being what makes the answer and S
        the covariance of noise and chance.
        """
        spectrum, *probes = self._spectra(np.concatenate((left[None], self._signs())))
        prior = self._likeliest(spectrum, probes)
        filtered = self._filter(prior, spectrum.nodes)
        seen = dot(spectrum.weights, filtered)
        length = dot(spectrum.weights * filtered, filtered * spectrum.nodes)
        of_noise = 0.0
        for probe in probes:
            covariance = self.chance * probe.nodes + self.noise
            of_noise += dot(probe.weights, self._filter(prior, probe.nodes) * covariance) / _PROBES
        share = min(max((seen - of_noise) / length, 0.0), _MOST_SHARE) if length > 0.0 else 0.0
        along = np.empty(len(spectrum.nodes))
        rows = np.ascontiguousarray(spectrum.vectors.T)
        vectors.score_many(spectrum.length * filtered * spectrum.vectors[:, 0], rows, along)
        weights = np.zeros(left.size)
        for part, vector in zip(along.tolist(), spectrum.basis, strict=True):
            weights += part * vector
        return Answer(weights.reshape(self.shape), share)

    def _filter(self, prior: float, nodes: Floats) -> Floats:
        """What the answer has of r at each eigenvalue."""
        out: Floats = prior * nodes / self._variance(prior, nodes)
        return out

    def _variance(self, prior: float, nodes: Floats) -> Floats:
        """Of r at each eigenvalue: of signal, of chance and blur, and of noise."""
        out: Floats = prior * nodes * nodes + (self.chance + self.blur) * nodes + self.noise
        return out

    def _likeliest(self, spectrum: _Spectrum, probes: list[_Spectrum]) -> float:
        """The prior under which r, as a normal vector, has the greatest density."""
        best, least = 0.0, math.inf
        prior = _LEAST * self.unit
        for _ in range(_PRIORS):
            unlikely = dot(spectrum.weights, 1.0 / self._variance(prior, spectrum.nodes))
            for probe in probes:
                variances = self._variance(prior, probe.nodes).tolist()
                logs = np.array([numerics.log_positive(one) for one in variances])
                unlikely += dot(probe.weights, logs) / _PROBES
            if unlikely < least:
                best, least = prior, unlikely
            prior *= _FACTOR
        return best

    def _signs(self) -> Floats:
        """Probes, (_PROBES, trees, leaves): 1 and -1, from public coins."""
        out = np.empty((_PROBES, *self.shape))
        for probe, e in enumerate(out):
            normals = np.empty(e.size)
            random.normals_from_seed(SEED + 1 + probe, normals)
            e[:] = np.where(normals < 0.0, -1.0, 1.0).reshape(self.shape)
        return out

    def _spectra(self, starts: Floats) -> list[_Spectrum]:
        """Of several vectors (k, trees, leaves): Lanczos's method, each step orthogonal to all before."""
        count, size = len(starts), starts[0].size
        lengths = [math.sqrt(dot(one, one)) for one in starts]
        basis = np.zeros((count, _STEPS, size))
        diagonal, off_diagonal = np.zeros((count, _STEPS)), np.zeros((count, _STEPS))
        now = np.zeros((count, size))
        for k, length in enumerate(lengths):
            if length > 0.0:
                now[k] = starts[k].ravel() / length
        for step in range(_STEPS):
            basis[:, step] = now
            after = self.gram(now.reshape(starts.shape))[1].reshape(count, size)
            for k in range(count):
                done = basis[k, : step + 1]
                part = np.empty(step + 1)
                for again in range(2):
                    vectors.score_many(after[k], done, part)
                    if again == 0:
                        diagonal[k, step] = part[step]
                    for along, vector in zip(part.tolist(), done, strict=True):
                        after[k] -= along * vector
                off_diagonal[k, step] = math.sqrt(dot(after[k], after[k]))
                if off_diagonal[k, step] > _NOTHING * diagonal[k].max():
                    now[k] = after[k] / off_diagonal[k, step]
                else:
                    off_diagonal[k, step], now[k] = 0.0, 0.0
        return [self._spectrum(*parts) for parts in zip(diagonal, off_diagonal, basis, lengths, strict=True)]

    def _spectrum(self, diagonal: Floats, off_diagonal: Floats, basis: Floats, length: float) -> _Spectrum:
        matrix, nodes = np.zeros((_STEPS, _STEPS)), np.empty(_STEPS)
        index = np.arange(_STEPS)
        matrix[index, index] = diagonal
        matrix[index[:-1], index[1:]] = matrix[index[1:], index[:-1]] = off_diagonal[:-1]
        symmetric.eigen(matrix, nodes)
        components = length * matrix[:, 0]
        return _Spectrum(np.maximum(nodes, 0.0), components * components, basis, matrix, length)


# What raking has moved in what the linear score explains tells how much is wrong with it: so many times that
# is a variance, at most so many times that of noise.
_BLUR, _MOST_BLUR = 1.5, 3.0
_STEEPEST = 20.0  # half log-odds in a standard deviation of a score
_NEWTON = 50
_FARTHEST, _HALVES = 50.0, 50  # log-odds of a rate


class Fitted(NamedTuple):
    """A model, `factor x.linear + phi.leaves`, in log-odds or nearly so.

    Parameters
    ----------
    factor
        Of the linear score.
    leaves
        Weights of the leaves, (trees, leaves).
    link
        From a score to a probability.
    """

    factor: float
    leaves: Floats
    link: Link


def _means(half: Floats) -> Floats:
    """Mean of labels 1 and -1 at half log-odds: their tanh, by the kernels' own exponential."""
    out = np.empty(len(half))
    numerics.sigmoid_many(2.0 * half, out)
    return 2.0 * out - 1.0


def half_odds(scores: Floats, weights: Floats, centre: float) -> tuple[float, float]:
    """(a, b) with which labels 1 and -1 have the mean `tanh(a s + b)`: a logistic regression on one score.

    It needs no labels, but their mean and that of `s y`, which is that of `s s`, for s is a regression of the
    labels: `E[tanh] = centre, E[s tanh] = E[s s]`.

    Parameters
    ----------
    scores, weights
        Of rows, (n,): the scores have the mean 0, the weights add up to 1.
    centre
        Mean of the labels.
    """
    square = float(vectors.dot(weights * scores, scores))
    start = 0.5 * rate_link(0.5 * (1.0 + centre)).offset
    if not square > 0.0:
        return 0.0, start
    most = _STEEPEST / math.sqrt(square)
    a, b = min(1.0 / (1.0 - centre * centre), most), start
    for _ in range(_NEWTON):
        means = _means(a * scores + b)
        bent = weights * (1.0 - means * means)
        left = square - float(vectors.dot(weights * scores, means))
        rest = centre - float(vectors.dot(weights, means))
        ss, s1 = float(vectors.dot(bent * scores, scores)), float(vectors.dot(bent, scores))
        one = float(vectors.dot(bent, np.ones(len(bent))))
        # Where all is as sure as can be there is nothing left to move.
        over = ss * one - s1 * s1
        if not over > 1e-12 * square:
            break
        da, db = (one * left - s1 * rest) / over, (ss * rest - s1 * left) / over
        # No step is longer than twice the slope, or two of the half log-odds.
        short = min(1.0, 2.0 * a / abs(da) if da else 1.0, 2.0 / abs(db) if db else 1.0)
        a, b = min(max(a + short * da, 0.1 * a), most), b + short * db
        if abs(da) <= 1e-9 * a and abs(db) <= 1e-9:
            break
    return a, b


def _explained(
    released: ReleasedStatistics, leaves: NDArray[np.int64], weights: Floats, scores: Floats
) -> tuple[float, Floats, Floats]:
    """(a, b, s, sums): what a linear score says of the labels, `tanh(a s + b)`, and of their sums by leaf."""
    scores = scores - float(vectors.dot(weights, scores))
    a, b = half_odds(scores, weights, released.centre)
    sums = np.empty(released.counts.shape)
    sums_by_leaf(leaves, weights * (_means(a * scores + b) - released.centre), sums)
    return a, scores, sums


def weights_of(released: ReleasedStatistics, rows: Rows) -> Fitted:
    """Ridge regression of what scores leave of the labels, on leaves whose overlap is that of weighted rows.

    Scores leave `y - tanh(a s + b)`: a straight line through labels 1 and -1 would leave a bend that every
    linear class has, which leaves would learn, and which ranks nothing. Where the weights of the rows have
    much to mend, what scores explain is not known well either, and the regression takes it for noise.

    Parameters
    ----------
    told
        What was released.
    rows
        Rows that stand for the records.
    """
    leaves, weights = rows.leaves, rows.weights
    variance = 1.0 - released.centre * released.centre
    a, scores, known = _explained(released, leaves, weights, rows.scores)
    *_, plain = _explained(released, leaves, np.full(len(weights), 1.0 / len(weights)), rows.plain)
    noise = released.std * released.std * (1.0 + released.centre * released.centre)
    blur = min(_BLUR * dot(known - plain, known - plain) / len(known), _MOST_BLUR * noise)
    ridge = Ridge(released, leaves, weights, blur)
    answer = ridge.solve(released.signs - released.centre * released.counts - known)
    # Weights of leaves are means of labels: of log-odds they are `2 / variance`, near those of the rate.
    w = (2.0 * answer.share / variance) * answer.weights
    whole = 2.0 * a * scores + ridge.gram(w[None])[0][:, 0] / np.maximum(weights, 1e-300)
    return Fitted(2.0 * a, w, Link(1.0, _offset(whole, weights, released.centre)))


def _offset(scores: Floats, weights: Floats, centre: float) -> float:
    """What to add to log-odds (n,) so that the labels have the mean `centre`: by halving an interval."""
    means = np.empty(len(scores))
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVES):
        middle = 0.5 * (low + high)
        numerics.sigmoid_many(scores + middle, means)
        if 2.0 * float(vectors.dot(weights, means)) - 1.0 < centre:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


# Of mu^2: what leaves have at most, as many features as they have so much with, and what bins have.
_LEAVES, _FEW, _BINS = 0.45, 50, 0.1

_MOMENTS = second_moments_diameter()


def shares(features: int) -> tuple[float, float, float]:
    """Of mu^2: for second moments, leaves, and bins. Of many features leaves tell less.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.dp_forest import shares
    >>> shares(20), shares(100)
    ((0.45, 0.45, 0.1), (0.675, 0.225, 0.1))
    """
    leaves = _LEAVES * min(1.0, _FEW / features)
    return 1.0 - _BINS - leaves, leaves, _BINS


def dp_forest_diameter(fields: int, leaf: float, mark: float, trees: int = TREES) -> float:
    """Replacement diameter of `(x x', s x, leaf (1, r) of each tree's leaf, mark for each field's bin)`.

    For |x| <= 1, |s| <= 1 and r = 1 or -1. In a tree where two records are in different leaves, their sums
    differ by `2 + 1 + 1 = 4` squared, in one where they share it by `(r - r')^2 <= 4`; in each field at most
    two bins differ, by 1. So the square is `9/2 + 4 trees leaf^2 + 2 fields mark^2` (docs/privacy, Lemma
    90).

    Examples
    --------
    >>> from streampair.privacy.mechanisms.dp_forest import dp_forest_diameter
    >>> round(dp_forest_diameter(2, 0.0, 0.0), 6), round(dp_forest_diameter(2, 1.0, 0.0), 6)
    (2.12132, 20.112185)
    """
    return math.sqrt(_MOMENTS * _MOMENTS + 4.0 * trees * leaf * leaf + 2.0 * fields * mark * mark)


@dataclass(frozen=True, eq=False)
class DPForestPlan(SecondMomentsPlan):
    """The mechanism, calibrated: that of `SecondMomentsPlan`, whose sums are longer.

    Parameters
    ----------
    trees, depth
        How many, and how often a record is asked on its way to a leaf.
    fields
        How many columns each field has, in their order; empty: one each.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Columns of each field."""
        return self.fields or (1,) * self.features

    @property
    def marks(self) -> int:
        """Bins of all fields."""
        return marks_of(self.sizes)

    @property
    def leaves(self) -> int:
        """Of all trees."""
        return int(self.trees * 2**self.depth)

    @property
    def dim(self) -> int:
        """Coordinates of a release: second moments, counts and labels of leaves, counts of bins."""
        return self.packed + 2 * self.leaves + self.marks

    @property
    def packed(self) -> int:
        """Of these, the second moments."""
        d = self.features
        return d * (d + 1) // 2 + d

    @property
    def rounded(self) -> int:
        """Leaves and bins count whole records, so second moments alone are rounded."""
        return self.packed

    @property
    def leaf(self) -> float:
        """What a record counts in a leaf, in the units of second moments."""
        first, second, _ = shares(self.features)
        return _MOMENTS * math.sqrt(second / first / (4.0 * self.trees))

    @property
    def mark(self) -> float:
        """What it counts in a bin."""
        first, _, third = shares(self.features)
        return _MOMENTS * math.sqrt(third / first / (2.0 * len(self.sizes)))

    @property
    def steps(self) -> Floats:
        """Second moments are rounded to the grid; records in leaves and bins are counted, one by one."""
        lengths = (self.packed, 2 * self.leaves, self.marks)
        return np.repeat([self.grid, self.leaf, self.mark], lengths)

    @property
    def diameter(self) -> float:
        """As of `dp_forest_diameter`."""
        return dp_forest_diameter(len(self.sizes), self.leaf, self.mark, self.trees)

    @property
    def blank_move(self) -> float:
        """Of a record alone: 2 from second moments, 2 from each tree, 1 from each field, squared."""
        leaf, mark = self.leaf, self.mark
        return math.sqrt(2.0 + 2.0 * self.trees * leaf * leaf + len(self.sizes) * mark * mark)

    @property
    def lemma(self) -> int:
        """Which one has the diameter."""
        return 90


MOST_TREES, MOST_DEPTH = 500, 8
"""A release has twice as many numbers as there are leaves."""

_ROWS = (4096, 32768)
"""Synthetic rows for a model on the way, and for the one at the horizon."""

_MOST_NOISE = 0.1
"""Of the records: noise in the leaves of a tree, at the end."""


def worthwhile(
    epsilon: float,
    delta: float,
    horizon: int,
    depth: int = DEPTH,
    features: int = 1,
) -> bool:
    """Whether leaves will tell more than noise at the end: by public numbers alone.

    All leaves of a tree together have noise of `sigma sqrt(2^depth)`, which must be at most a tenth of the
    records, or of many features as much less as leaves have less of the budget; else the linear score has the
    whole budget. With less than that it loses more than leaves tell.
    """
    sigma = 2.0 * math.sqrt(TREES) / (mu_from(epsilon, delta) * math.sqrt(shares(features)[1]))
    most = _MOST_NOISE * shares(features)[1] / shares(1)[1]
    return sigma * math.sqrt(2.0**depth) <= most * horizon


class DPForestState(MomentsState):
    """A run whose sums hold leaves too, and whose models are a linear score and one of the leaves.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: DPForestPlan

    def __init__(self, plan: DPForestPlan) -> None:
        super().__init__(plan)
        self.trees = Trees(plan.sizes, plan.trees, plan.depth)
        self._w = np.zeros(plan.features + plan.leaves + plan.marks)
        of_numbers = [np.full(BINS if size == 1 else size, size == 1) for size in plan.sizes]
        self._bins = plan.features + plan.leaves + np.flatnonzero(np.concatenate(of_numbers))
        self._marked = sum(size == 1 for size in plan.sizes)

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        plan = self.plan
        d = plan.features
        # Where a number has no bin there is a gap, and leaves alone learn.
        whole = rows[:, self._bins].sum(axis=1) == self._marked
        linear = rows[:, :d] * whole[:, None]
        self.block.add(dp_steps.leader_sums, linear, labels, self._centre, self._weight, plan.grid)
        self.block.add(random_trees.wood_sums, rows, labels, d, plan.leaves)

    def _grids(self) -> Floats:
        return self.plan.steps

    def _packed(self) -> int:
        return self.plan.packed

    def _noise_of_weights(self) -> None:
        """Not known: the weights are in a unit of log-odds, which has noise of its own."""

    def _compute_model(self) -> tuple[Floats, Link]:
        """Weights of the design, and link, from all releases so far: the linear leader, alone at first."""
        plan, (_, known, last_slot) = self.plan, self._numbers.tolist()  # slot of the last release
        linear, link = super()._compute_model()
        w = np.zeros(len(self._w))
        w[: plan.features] = linear
        # Noise of a leaf's share of the records. Five times as much as in `worthwhile` will do on the way:
        # what leaves cost is spent, and the more noise there is, the smaller are their weights.
        std = 1.0 / (math.sqrt(known) * plan.leaf) if known else math.inf
        if not std * math.sqrt(2.0**plan.depth) <= 0.5:
            return w, link
        mean = self._weighted[plan.packed :] / known
        shares = (mean[: 2 * plan.leaves] / plan.leaf).reshape(2, plan.trees, -1)
        total = float(vectors.dot(shares[0].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        signs = float(vectors.dot(shares[1].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        if not total > 0.1:  # nearly all were null records
            return w, link
        second = self._means()[0]
        centre = min(max(signs / total, -MOST_CENTRE), MOST_CENTRE)
        assert self.how is not None
        scale, shift, middle, factor = self.how
        ends = np.array([shift, scale + shift])  # of 0 and of 1
        ends = np.clip((np.clip(ends, -1.0, 1.0) - middle) * factor, -self.cap, self.cap)
        released = ReleasedStatistics(
            counts=shares[0] / total,
            signs=shares[1] / total,
            bins=mean[2 * plan.leaves :] / (plan.mark * total),
            bins_std=1.0 / (math.sqrt(known) * plan.mark * total),
            centre=centre,
            std=std / total,
            second=second,
            ends=ends,
            records=total * last_slot,
        )
        # The linear score as a regression of the labels, which are 1 and -1 here.
        unit = 2.0 * self._label_slope
        rows = synthetic_rows(released, unit * linear, self.cap, self.trees, _ROWS[last_slot == plan.horizon])
        model = weights_of(released, rows)
        w[: plan.features] = model.factor * unit * linear
        w[plan.features : plan.features + plan.leaves] = model.leaves.ravel()
        return w, model.link


@dataclass(frozen=True)
class DPForest(Moments):
    """A forest of random trees, from leaf sums of blocks of records.

    Parameters
    ----------
    trees, depth
        How many, and how often a record is asked on its way to a leaf.
    fields
        As of the plan.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    run: ClassVar[type[MomentsState]] = DPForestState

    def design(
        self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]
    ) -> RandomTreeDesign:
        """From a record to its linear vector and its leaves."""
        return RandomTreeDesign(names, bounds, self.trees, self.depth)

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> DPForestState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        return DPForestState(with_numbers(self.planned(settings), saved))

    def planned(self, settings: Settings) -> DPForestPlan:
        """The plan, fitted here."""
        assert settings.features is not None
        learning = settings.learning
        alone = not settings.forks and settings.entity is None
        return DPForestPlan(
            settings.mu_learning,
            settings.features,
            float(settings.warmup),
            learning,
            settings.radius,
            settings.forks,
            settings.window,
            settings.relation,
            anytime=ANYTIME if alone and learning is not None else None,
            trees=self.trees,
            depth=self.depth,
            fields=self.fields if any(size > 1 for size in self.fields) else (),
        )

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        return (
            f"{super().describe(settings)} With the second moments go counts of records and labels in the "
            f"leaves of {self.trees} random trees, which were drawn from public coins, and histograms of the "
            "features, in the same release; the leaves' weights are computed from it."
        )
