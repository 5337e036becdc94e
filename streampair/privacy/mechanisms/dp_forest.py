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
    SyntheticRows,
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

_STEPS = 32  # Lanczos steps, at most
_PROBES = 2  # random sign vectors: they estimate a trace to some hundredths
# Grid of prior variances, as shares of the labels' variance that all leaves explain: .003 to 9.
_LEAST, _FACTOR, _PRIORS = 0.003, 1.25, 37
_MOST_SHARE = 1.25  # upper bound of `Answer.share`
_NOTHING = 1e-12  # of the largest eigenvalue: a residual below it ends the iteration


class Answer(NamedTuple):
    """Weights of leaves.

    Parameters
    ----------
    weights
        (trees, leaves).
    share
        Shrinkage factor: the share of the weights that is not noise.
    """

    weights: Floats
    share: float


class _Spectrum(NamedTuple):
    """Lanczos quadrature of a vector v: `v' f(G) v` is about `weights.f(nodes)`.

    f(G) v is about a sum of the basis rows, the first of which is v / length. `vectors` holds eigenvectors of
    G in the basis.
    """

    nodes: Floats
    weights: Floats
    basis: Floats
    vectors: Floats
    length: float


class Ridge:
    """Ridge regression `prior G (prior G^2 + G (v / n + blur) + noise)^-1 r`, G the leaves' Gram matrix.

    The prior maximises the likelihood of r. Sampling and noise have the covariance `G v / n + noise` in r;
    errors of the synthetic rows count as fewer records, by `blur`.

    Parameters
    ----------
    released
        Released statistics.
    leaves, weights
        Leaves and weights of the rows, as in `SyntheticRows`.
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
        random_trees.tree_gram(self.leaves, self.weights, v, scores, out)
        return scores, out

    def solve(self, left: Floats) -> Answer:
        """Leaf weights from sums (trees, leaves), with the share that minimises the risk (SURE, Stein 1981).

        For noise alone the answer and the sums have the expected product `tr A S`, with A the map to the
        answer and S the covariance of noise and sampling.
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
        """Factor from r to the answer, at each eigenvalue."""
        out: Floats = prior * nodes / self._variance(prior, nodes)
        return out

    def _variance(self, prior: float, nodes: Floats) -> Floats:
        """Variance of r at each eigenvalue: signal, sampling and blur, and noise."""
        out: Floats = prior * nodes * nodes + (self.chance + self.blur) * nodes + self.noise
        return out

    def _likeliest(self, spectrum: _Spectrum, probes: list[_Spectrum]) -> float:
        """The prior variance of maximum likelihood, with r a normal vector."""
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
        """Random sign vectors, (_PROBES, trees, leaves), from public coins."""
        out = np.empty((_PROBES, *self.shape))
        for probe, e in enumerate(out):
            normals = np.empty(e.size)
            random.normals_from_seed(SEED + 1 + probe, normals)
            e[:] = np.where(normals < 0.0, -1.0, 1.0).reshape(self.shape)
        return out

    def _spectra(self, starts: Floats) -> list[_Spectrum]:
        """Lanczos iteration of several vectors (k, trees, leaves), with full reorthogonalisation."""
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


# Raking changes what the linear score explains; that change measures its error. So many times its square
# is taken as a variance, at most so many times that of the noise.
_BLUR, _MOST_BLUR = 1.5, 3.0
_STEEPEST = 20.0  # largest half log-odds in a standard deviation of a score
_NEWTON = 50
_FARTHEST, _HALVES = 50.0, 50  # range of log-odds, and halvings of it


class Fitted(NamedTuple):
    """A model, `factor x.linear + phi.leaves`, in log-odds or nearly so.

    Parameters
    ----------
    factor
        Factor of the linear score.
    leaves
        Weights of the leaves, (trees, leaves).
    link
        Link from a score to a probability.
    """

    factor: float
    leaves: Floats
    link: Link


def _means(half: Floats) -> Floats:
    """Mean of labels 1 and -1 at half log-odds: their tanh, by the kernels' exponential."""
    out = np.empty(len(half))
    numerics.sigmoid_many(2.0 * half, out)
    return 2.0 * out - 1.0


def half_odds(scores: Floats, weights: Floats, centre: float) -> tuple[float, float]:
    """(a, b) of the logistic regression on one score: labels 1 and -1 have the mean `tanh(a s + b)`.

    It needs only the mean of the labels and that of `s y`, which equals that of `s s`, since s is a
    regression of the labels: `E[tanh] = centre, E[s tanh] = E[s s]`.

    Parameters
    ----------
    scores, weights
        Scores and weights of rows, (n,): the scores have mean 0, the weights add up to 1.
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
        # All probabilities are near 0 or 1: the Hessian is singular.
        over = ss * one - s1 * s1
        if not over > 1e-12 * square:
            break
        da, db = (one * left - s1 * rest) / over, (ss * rest - s1 * left) / over
        # Damped Newton step: at most twice the slope, and 2 of the half log-odds.
        short = min(1.0, 2.0 * a / abs(da) if da else 1.0, 2.0 / abs(db) if db else 1.0)
        a, b = min(max(a + short * da, 0.1 * a), most), b + short * db
        if abs(da) <= 1e-9 * a and abs(db) <= 1e-9:
            break
    return a, b


def _explained(
    released: ReleasedStatistics, leaves: NDArray[np.int64], weights: Floats, scores: Floats
) -> tuple[float, Floats, Floats]:
    """(a, s, sums): slope of the link `tanh(a s + b)`, the centred scores, and the leaf sums they explain."""
    scores = scores - float(vectors.dot(weights, scores))
    a, b = half_odds(scores, weights, released.centre)
    sums = np.empty(released.counts.shape)
    sums_by_leaf(leaves, weights * (_means(a * scores + b) - released.centre), sums)
    return a, scores, sums


def weights_of(released: ReleasedStatistics, rows: SyntheticRows) -> Fitted:
    """Leaf weights: ridge regression of the linear score's residuals on the leaves of weighted rows.

    The residual is `y - tanh(a s + b)`: that of a straight line would keep a bend that every
    linear problem has, which leaves would learn without any gain in ranking. Where raking changes the weights
    of the rows much, the explained part is uncertain too, and the regression treats it as noise.

    Parameters
    ----------
    released
        Released statistics.
    rows
        Synthetic rows.
    """
    leaves, weights = rows.leaves, rows.weights
    variance = 1.0 - released.centre * released.centre
    a, scores, known = _explained(released, leaves, weights, rows.scores)
    *_, plain = _explained(released, leaves, np.full(len(weights), 1.0 / len(weights)), rows.plain)
    noise = released.std * released.std * (1.0 + released.centre * released.centre)
    blur = min(_BLUR * dot(known - plain, known - plain) / len(known), _MOST_BLUR * noise)
    ridge = Ridge(released, leaves, weights, blur)
    answer = ridge.solve(released.signs - released.centre * released.counts - known)
    # Leaf weights predict means of labels; near the rate, the factor to log-odds is `2 / variance`.
    w = (2.0 * answer.share / variance) * answer.weights
    whole = 2.0 * a * scores + ridge.gram(w[None])[0][:, 0] / np.maximum(weights, 1e-300)
    return Fitted(2.0 * a, w, Link(1.0, _offset(whole, weights, released.centre)))


def _offset(scores: Floats, weights: Floats, centre: float) -> float:
    """Offset of log-odds (n,) that gives the labels the mean `centre`, by bisection."""
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


# Shares of mu^2: the largest one of leaves, the features up to which they have it, and that of bins.
_LEAVES, _FEW, _BINS = 0.45, 50, 0.1

_MOMENTS = second_moments_diameter()


def shares(features: int) -> tuple[float, float, float]:
    """Shares of mu^2 for second moments, leaves and bins. With many features leaves get less.

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
    """Calibrated plan of a private forest: `SecondMomentsPlan` with leaf counts and bins in its sums.

    Parameters
    ----------
    trees, depth
        Number of trees, and of splits from the root to a leaf.
    fields
        Number of columns of each field, in their order; empty: one each.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of columns of each field."""
        return self.fields or (1,) * self.features

    @property
    def marks(self) -> int:
        """Number of bins of all fields."""
        return marks_of(self.sizes)

    @property
    def leaves(self) -> int:
        """Number of leaves of all trees."""
        return int(self.trees * 2**self.depth)

    @property
    def dim(self) -> int:
        """Number of coordinates of a release: second moments, counts and labels of leaves, counts of bins."""
        return self.packed + 2 * self.leaves + self.marks

    @property
    def packed(self) -> int:
        """Number of coordinates of the second moments."""
        d = self.features
        return d * (d + 1) // 2 + d

    @property
    def rounded(self) -> int:
        """Number of rounded coordinates: the second moments, since leaves and bins count whole records."""
        return self.packed

    @property
    def leaf(self) -> float:
        """Weight of a record in a leaf, in the units of second moments."""
        first, second, _ = shares(self.features)
        return _MOMENTS * math.sqrt(second / first / (4.0 * self.trees))

    @property
    def mark(self) -> float:
        """Weight of a record in a bin."""
        first, _, third = shares(self.features)
        return _MOMENTS * math.sqrt(third / first / (2.0 * len(self.sizes)))

    @property
    def steps(self) -> Floats:
        """Step of each coordinate: the grid for second moments, a record's weight in leaves and bins."""
        lengths = (self.packed, 2 * self.leaves, self.marks)
        return np.repeat([self.grid, self.leaf, self.mark], lengths)

    @property
    def diameter(self) -> float:
        """Replacement diameter, see `dp_forest_diameter`."""
        return dp_forest_diameter(len(self.sizes), self.leaf, self.mark, self.trees)

    @property
    def blank_move(self) -> float:
        """Norm of a record's summand; squared: 2 by second moments, 2 by each tree, 1 by each field."""
        leaf, mark = self.leaf, self.mark
        return math.sqrt(2.0 + 2.0 * self.trees * leaf * leaf + len(self.sizes) * mark * mark)

    @property
    def lemma(self) -> int:
        """Number of the lemma that proves the diameter."""
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
    """Whether leaves gain more than they cost at the horizon, from public numbers alone.

    The leaves of a tree together have noise of `sigma sqrt(2^depth)`, which must be at most a tenth of the
    records, with many features less in proportion to the leaves' share of the budget. Otherwise the linear
    score has the whole budget, since it would lose more than the leaves gain.
    """
    sigma = 2.0 * math.sqrt(TREES) / (mu_from(epsilon, delta) * math.sqrt(shares(features)[1]))
    most = _MOST_NOISE * shares(features)[1] / shares(1)[1]
    return sigma * math.sqrt(2.0**depth) <= most * horizon


class DPForestState(MomentsState):
    """State of a private forest: sums with leaves and bins, models of a linear score and leaf weights.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: DPForestPlan

    slow_fits: ClassVar[bool] = True

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
        # A number without a bin is missing: only the leaves learn the record.
        whole = rows[:, self._bins].sum(axis=1) == self._marked
        linear = rows[:, :d] * whole[:, None]
        self.block.add(dp_steps.second_moment_sums, linear, labels, self._centre, self._weight, plan.grid)
        self.block.add(random_trees.tree_sums, rows, labels, d, plan.leaves)

    def _grids(self) -> Floats:
        return self.plan.steps

    def _packed(self) -> int:
        return self.plan.packed

    def _noise_of_weights(self) -> None:
        """None: the weights are in log-odds, a unit that is itself noisy."""

    def _compute_model(self) -> tuple[Floats, Link]:
        """Weights of the design, and link, from all releases so far; at first the linear model alone."""
        plan, (_, known, last_slot) = self.plan, self._numbers.tolist()  # slot of the last release
        linear, link = super()._compute_model()
        w = np.zeros(len(self._w))
        w[: plan.features] = linear
        # Noise of a leaf's share of the records. Before the horizon five times as much as in `worthwhile`
        # is accepted: the cost of the leaves is spent, and more noise only shrinks their weights.
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
        assert self.scaling is not None
        scale, shift, middle, factor = self.scaling
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
        # Scale of the linear score as a regression of labels 1 and -1.
        unit = 2.0 * self._label_slope
        rows = synthetic_rows(released, unit * linear, self.cap, self.trees, _ROWS[last_slot == plan.horizon])
        model = weights_of(released, rows)
        w[: plan.features] = model.factor * unit * linear
        w[plan.features : plan.features + plan.leaves] = model.leaves.ravel()
        return w, model.link


@dataclass(frozen=True)
class DPForest(Moments):
    """A forest of data-independent random trees, fitted to leaf sums over blocks of records.

    Parameters
    ----------
    trees, depth
        Number of trees, and of splits from the root to a leaf.
    fields
        As in `DPForestPlan`.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    run: ClassVar[type[MomentsState]] = DPForestState

    def design(
        self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]
    ) -> RandomTreeDesign:
        """The map from a record to its linear vector and its leaves."""
        return RandomTreeDesign(names, bounds, self.trees, self.depth)

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> DPForestState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        return DPForestState(with_numbers(self.planned(settings), saved))

    def planned(self, settings: Settings) -> DPForestPlan:
        """The plan for these settings."""
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
