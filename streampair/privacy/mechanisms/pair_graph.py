"""Pair graphs of private offline learners (DPP): sensitivity, and noise in means over pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import scipy

from streampair.errors import ConfigError
from streampair.privacy.accounting import mu_from, planned_mu
from streampair.privacy.mechanisms.base import (
    Relation,
    Release,
    check_overflow,
    power_of_two_below,
    rounding_limit,
)
from streampair.privacy.mechanisms.offline import (
    ROUNDING_PART,
    ExactRelease,
    LaplaceStream,
    TablePlan,
    mu_of_pure,
    plan_table,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "LabelsPlan",
    "PairRelation",
    "PairsPlan",
    "PersonsPlan",
    "SignGate",
    "SignPlan",
    "StaircasePlan",
    "flipped",
    "plan_inputs",
    "plan_pairs",
    "plan_signs",
    "plan_staircase",
    "spread",
]


@dataclass(frozen=True)
class PairRelation(Relation):
    """Neighbouring relation of tables of pairs: the same graph, different contents of some pairs.

    Parameters
    ----------
    pairs
        Largest number of pairs that differ.
    person
        Whether they are all pairs of one individual, whose features and labels are then protected.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.pair_graph import PairRelation
    >>> PairRelation(pairs=3).adjacency
    'replacement or blanking of the contents of at most 3 pairs, the graph equal'
    """

    pairs: int = 1
    person: bool = False

    @property
    def unit(self) -> str:
        if self.person:
            return f"an individual: its features, and the labels of all its pairs, at most {self.pairs}"
        return (
            "the relation of any two individuals: the contents (difference of features, and label) of "
            f"{self.pairs} pairs, the most from which it can be inferred"
        )

    @property
    def adjacency(self) -> str:
        if self.person:
            return (
                "replacement or blanking of one individual's features and its pairs' labels, the graph equal"
            )
        return f"replacement or blanking of the contents of at most {self.pairs} pairs, the graph equal"


def spread(pairs: int, batch: int) -> float:
    """Largest l2 norm of the numbers of changed pairs by batch.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.pair_graph import spread
    >>> spread(3, 50), round(spread(3, 2) ** 2)  # two in one batch, one in another
    (3.0, 5)
    """
    full, rest = divmod(pairs, batch)
    return math.sqrt(full * batch**2 + rest**2) if full else float(pairs)


@dataclass(frozen=True)
class PairsPlan(TablePlan):
    """Calibrated plan of means over batches of pairs, each pair once in an epoch (docs/privacy, Lemma 79).

    `sensitivity` is how far one pair moves its batch's mean: in l2 for Gaussian noise, in l1 for Laplace's.

    Parameters
    ----------
    relation
        Largest number of pairs that change together.
    batch, epochs
        Number of pairs in a batch, and of uses of each pair.
    """

    relation: PairRelation
    batch: int
    epochs: int

    def _epsilon(self, share: float = 1.0) -> float:
        steps = share * self.sensitivity / self.grid + self.dim
        return self.epochs * self.relation.pairs * steps / self.scale

    def _mu(self, share: float = 1.0) -> float:
        if self.pure:
            return mu_of_pure(self._epsilon(share))
        return (
            self._moved(share) * spread(self.relation.pairs, self.batch) * math.sqrt(self.epochs) / self.sigma
        )

    @property
    def release(self) -> Release:
        kind = ExactRelease if self.pure else Release
        return kind(
            name=self.name,
            domain="pairs of individuals in the unit ball, with a label each",
            relation=self.relation,
            lemma=self.lemma,
            sensitivity=min(self.relation.pairs, self.batch) * self._moved(),
            sigma=self.noise_std,
            replace=self.mu,
            blank=self._mu(self.blank),
            releases=self.releases,
            coordinates=self.dim,
            grid=self.grid,
        )


def plan_pairs(
    epsilon: float,
    delta: float,
    *,
    relation: PairRelation,
    dim: int,
    sensitivity: float,
    batch: int,
    batches: int,
    epochs: int,
    name: str,
    lemma: str,
    noise: float | None = None,
) -> PairsPlan:
    """Calibrate the noise of means over batches of pairs (docs/privacy, Lemma 79).

    Parameters
    ----------
    epsilon, delta
        The budget; with delta 0 the noise is Laplace, and the guarantee pure.
    relation, dim, sensitivity, batch, epochs, name, lemma
        As in `PairsPlan`.
    batches
        Number of batches in an epoch.
    noise
        Std of Gaussian noise, or scale of Laplace noise, as in a paper; None: by the budget.

    Raises
    ------
    ConfigError
        If epsilon or delta is out of range, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.pair_graph import PairRelation, plan_pairs
    >>> plan = plan_pairs(1.0, 1e-6, relation=PairRelation(pairs=3), dim=4, sensitivity=0.01, batch=100,
    ...                   batches=5, epochs=2, name="means", lemma="docs/privacy, Lemma 79")
    >>> plan.releases, round(plan.mu, 3)
    (10, 0.237)
    """
    mu = planned_mu(epsilon, delta or 1e-6)  # the checks of both
    reach = math.sqrt(dim) if delta else float(dim)
    grid = float(power_of_two_below(0.01 * sensitivity / reach))
    sigma, scale = 0.0, 0
    if delta:
        moved = (sensitivity + grid * math.sqrt(dim)) * spread(relation.pairs, batch)
        sigma = moved * math.sqrt(epochs) / mu if noise is None else noise
    elif noise is None:
        steps = epochs * relation.pairs * (sensitivity / grid + dim) / epsilon
        check_overflow(steps, "noise")
        scale = max(math.ceil(steps), 1)
    else:
        check_overflow(noise / grid, "noise")
        scale = max(math.ceil(noise / grid), 1)
    plan = PairsPlan(
        name=name,
        lemma=lemma,
        dim=dim,
        sensitivity=sensitivity,
        blank=0.5,
        releases=epochs * batches,
        grid=grid,
        sigma=sigma,
        scale=scale,
        relation=relation,
        batch=batch,
        epochs=epochs,
    )
    if delta:
        rounding_limit((plan.release,), epsilon, delta, part=ROUNDING_PART)
    return plan


# A coin of this many bits.
_COIN = 64


@dataclass(frozen=True)
class StaircasePlan(PairsPlan):
    """Staircase noise in every entry of a batch's mean (docs/privacy, Lemma 81).

    `sensitivity` bounds how far one pair moves an entry; `scale` is the t of the steps' ``exp(-1 / t)``.

    Parameters
    ----------
    width, inner
        Width of a step of the staircase in units of the grid, and of its inner part, which is as likely as
        the outer part of the step before.
    """

    width: int
    inner: int

    def __post_init__(self) -> None:
        check_overflow(80.0 * self.scale * self.width, "noise")

    def _moved(self, share: float = 1.0) -> float:
        return share * self.sensitivity + self.grid

    def _epsilon(self, share: float = 1.0) -> float:
        return self.epochs * self.relation.pairs * self.dim / self.scale

    def pure_noise(self, stream: LaplaceStream) -> NDArray[np.int64]:
        return stream.take_staircase(self.dim, self.width, self.inner, self.scale)

    @property
    def noise_std(self) -> float:
        b, left = math.exp(-1.0 / self.scale), -math.expm1(-1.0 / self.scale)
        within = np.arange(self.width, dtype=np.float64)
        weights = np.where(within < self.inner, 1.0, b)
        # |noise| is j width + i, with a weight of b^j times that of i; 0 is there once, all else twice.
        squares = self.width**2 * b * (1.0 + b) / left**3 * weights.sum()
        squares += 2.0 * self.width * b / left**2 * float(weights @ within) + weights @ within**2 / left
        return float(self.grid * math.sqrt(2.0 * squares / (2.0 * weights.sum() / left - 1.0)))


def plan_staircase(
    epsilon: float,
    *,
    relation: PairRelation,
    dim: int,
    sensitivity: float,
    batch: int,
    batches: int,
    epochs: int,
    name: str,
) -> StaircasePlan:
    """Calibrate staircases for a pure epsilon (Lemma 81); parameters as in `StaircasePlan`."""
    mu_from(epsilon, 1e-6)  # its check
    grid = float(power_of_two_below(0.01 * sensitivity))
    turns = epochs * relation.pairs * dim / epsilon
    check_overflow(turns, "noise")
    scale, width = max(math.ceil(turns), 1), math.ceil(sensitivity / grid) + 1
    inner = min(max(round(width / (1.0 + math.exp(0.5 / scale))), 1), width)
    return StaircasePlan(
        name=name,
        lemma="docs/privacy, Lemma 81",
        dim=dim,
        sensitivity=sensitivity,
        blank=1.0,
        releases=epochs * batches,
        grid=grid,
        sigma=0.0,
        scale=scale,
        relation=relation,
        batch=batch,
        epochs=epochs,
        width=width,
        inner=inner,
    )


def _coin(epsilon: float) -> int:
    """The coin, of 2^64: the less likely side, so that the other is at most ``e^epsilon`` as likely."""
    return min(math.ceil(math.ldexp(float(scipy.special.expit(-epsilon)), _COIN)), 1 << (_COIN - 1))


def _coin_epsilon(coin: int) -> float:
    """The pure epsilon of a coin."""
    return math.log(((1 << _COIN) - coin) / coin)


@dataclass(frozen=True)
class SignPlan(PairsPlan):
    """Randomised signs in place of noise (Duchi et al. 2018; docs/privacy, Lemma 82).

    A release costs the same however far it moves, so the number of batches with changed pairs counts.

    Parameters
    ----------
    limit
        Entries of a batch's mean are in [-limit, limit].
    coin
        The coin, of 2^64: how often the signs point away.
    """

    limit: float
    coin: int

    def _epsilon(self, share: float = 1.0) -> float:
        return self.touched * _coin_epsilon(self.coin)

    def _moved(self, share: float = 1.0) -> float:
        return share * self.sensitivity

    @property
    def touched(self) -> int:
        """Largest number of releases that changed pairs are in."""
        return self.epochs * min(self.relation.pairs, self.releases // self.epochs)

    @property
    def size(self) -> float:
        """Size of each released entry, which makes the release unbiased."""
        p = self.dim
        log = (p - 1) * math.log(2.0) - math.lgamma(p) + math.lgamma((p - 1) // 2 + 1)
        log += math.lgamma(p - (p - 1) // 2)
        return self.limit * math.exp(log) / (1.0 - 2.0 * self.coin / 2.0**_COIN)

    @property
    def noise_std(self) -> float:
        return self.size


def plan_signs(
    epsilon: float,
    *,
    relation: PairRelation,
    dim: int,
    limit: float,
    batch: int,
    batches: int,
    epochs: int,
    name: str,
) -> SignPlan:
    """Calibrate the coin of `SignPlan` for a pure epsilon (docs/privacy, Lemma 82)."""
    mu_from(epsilon, 1e-6)  # its check
    coin = _coin(epsilon / (epochs * min(relation.pairs, batches)))
    if coin == 1 << (_COIN - 1):
        raise ConfigError("signs would be fair coins", fix="raise epsilon, or take fewer epochs")
    return SignPlan(
        name=name,
        lemma="docs/privacy, Lemma 82",
        dim=dim,
        sensitivity=2.0 * limit / min(relation.pairs, batch),
        blank=1.0,
        releases=epochs * batches,
        grid=2.0 * limit,
        sigma=0.0,
        scale=1,
        relation=relation,
        batch=batch,
        epochs=epochs,
        limit=limit,
        coin=coin,
    )


class SignGate:
    """Releases vectors as random signs, which agree with the vector more often than not (`SignPlan`).

    Parameters
    ----------
    plan
        The calibrated plan.
    seed
        Seed of the coins; None: a key of the operating system.

    Attributes
    ----------
    releases
        Number of releases so far.
    """

    __slots__ = ("_plan", "_stream", "releases")

    def __init__(self, plan: SignPlan, seed: int | None) -> None:
        self._plan, self._stream, self.releases = plan, LaplaceStream(seed), 0

    def privatize(self, vector: Floats) -> Floats:
        """Signs times `SignPlan.size` (p,), whose mean is the vector.

        Raises
        ------
        RuntimeError
            If all planned releases have been made.
        """
        plan = self._plan
        if self.releases == plan.releases:
            raise RuntimeError("a release more than is planned")
        self.releases += 1
        # The random corner only makes the release unbiased; the coin below protects it.
        up = 0.5 + 0.5 * np.clip(vector / plan.limit, -1.0, 1.0)
        corner = np.where(self._stream.integers(plan.dim) * 2.0**-_COIN < up, 1, -1)
        signs = np.where(self._stream.integers(plan.dim) >> np.uint64(_COIN - 1), 1, -1)
        along = int(signs @ corner)
        opposite = int(self._stream.integers(1)[0]) < plan.coin
        # A tie needs no coin: the signs and their opposites are equally likely.
        turn = -1.0 if (along > 0) == opposite and along else 1.0
        return turn * plan.size * signs.astype(np.float64)


@dataclass(frozen=True)
class PersonsPlan(TablePlan):
    """One release of the features of each individual (docs/privacy, Lemma 83)."""

    relation: PairRelation

    def _mu(self, share: float = 1.0) -> float:
        return mu_of_pure(self._epsilon(share)) if self.pure else self._moved(share) / self.sigma

    def _epsilon(self, share: float = 1.0) -> float:
        return super()._epsilon(share) / self.releases

    @property
    def release(self) -> Release:
        return _card(self, "individuals in the unit ball")


@dataclass(frozen=True)
class LabelsPlan(TablePlan):
    """Randomised response on the labels of pairs (Warner 1965; docs/privacy, Lemma 83).

    Parameters
    ----------
    relation
        Largest number of labels that change together.
    coin
        The coin, of 2^64: how often a label is flipped.
    """

    relation: PairRelation
    coin: int

    def _epsilon(self, share: float = 1.0) -> float:
        return self.relation.pairs * _coin_epsilon(self.coin)

    def _mu(self, share: float = 1.0) -> float:
        return mu_of_pure(_coin_epsilon(self.coin)) * math.sqrt(self.relation.pairs)

    @property
    def noise_std(self) -> float:
        q = self.coin / 2.0**_COIN
        return math.sqrt(q * (1.0 - q))

    @property
    def release(self) -> Release:
        return _card(self, "pairs that are alike or not")


def _card(plan: PersonsPlan | LabelsPlan, domain: str) -> Release:
    kind = ExactRelease if plan.pure else Release
    return kind(
        name=plan.name,
        domain=domain,
        relation=plan.relation,
        lemma=plan.lemma,
        sensitivity=plan.sensitivity,
        sigma=plan.noise_std,
        replace=plan.mu,
        blank=plan.mu,
        releases=plan.releases,
        coordinates=plan.dim,
        grid=plan.grid,
    )


def plan_inputs(
    epsilon: float, delta: float, *, relation: PairRelation, individuals: int, features: int, pairs: int
) -> tuple[LabelsPlan, PersonsPlan]:
    """Calibrate input perturbation: half the budget for features, half for labels (Lemma 83).

    Parameters
    ----------
    epsilon, delta
        The budget; with delta 0 the noise of features is Laplace, else Gaussian.
    relation
        Bounds the number of labels of an individual.
    individuals, features, pairs
        Number of each.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.pair_graph import plan_inputs
    >>> from streampair.privacy.mechanisms.pair_graph import PairRelation
    >>> node = PairRelation(pairs=3, person=True)
    >>> labels, persons = plan_inputs(2.0, 0.0, relation=node, individuals=9, features=2, pairs=12)
    >>> round(labels.epsilon, 6), persons.epsilon <= 1.0
    (1.0, True)
    """
    mu, each = planned_mu(epsilon, delta or 1e-6), epsilon / (2.0 * relation.pairs)
    noise = None
    if delta:
        half = 0.5 * mu / math.sqrt(2.0 * relation.pairs)
        each = float(scipy.special.log_ndtr(half) - scipy.special.log_ndtr(-half))
        noise = 1.01 * 2.0 * math.sqrt(2.0) / mu  # the grid adds at most a hundredth to the move
    coin = _coin(each)
    if coin == 1 << (_COIN - 1):
        raise ConfigError("labels would be fair coins", fix="raise epsilon")
    lemma = "docs/privacy, Lemma 83"
    made = plan_table(
        epsilon if delta else 0.5 * epsilon,
        delta,
        dim=features,
        sensitivity=2.0,
        name="features of individuals",
        lemma=lemma,
        noise=noise,
    )
    values = {field.name: getattr(made, field.name) for field in fields(TablePlan)}
    persons = PersonsPlan(**{**values, "releases": individuals}, relation=relation)
    labels = LabelsPlan("labels of pairs", lemma, 1, 1.0, 1.0, pairs, 1.0, 0.0, 1, relation, coin)
    return labels, persons


def flipped(similar: NDArray[np.bool_], plan: LabelsPlan, seed: int | None) -> NDArray[np.bool_]:
    """Labels of pairs (m,), each flipped by an independent coin."""
    turned = LaplaceStream(seed).integers(len(similar)) < np.uint64(plan.coin)
    out: NDArray[np.bool_] = similar ^ turned
    return out
