"""Sums over labelled pairs of individuals, under noise that hides so many pairs (docs/privacy.md 6).

A neighbour differs in the contents of at most k pairs, wherever they are. Each epoch deals all pairs into
batches by coins, so that a pair is in one of them; a batch's mean of clipped gradients is released. The graph
(who is in a pair with whom) is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from streampair.privacy.accounting import mu_from
from streampair.privacy.mechanisms.base import Relation, Release, check_cells, power_of_two_below
from streampair.privacy.mechanisms.offline import ExactRelease, TablePlan, mu_of_pure

__all__ = ["PairRelation", "PairsPlan", "plan_pairs", "spread"]


@dataclass(frozen=True)
class PairRelation(Relation):
    """Which tables of pairs are neighbours: they have one graph, and differ in the contents of ...

    Parameters
    ----------
    pairs
        ... at most so many pairs.
    person
        Whether these are all pairs of one individual, whose own features and labels are then hidden.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.relations import PairRelation
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
            f"{self.pairs} pairs, the most that it can be told from"
        )

    @property
    def adjacency(self) -> str:
        if self.person:
            return (
                "replacement or blanking of one individual's features and its pairs' labels, the graph equal"
            )
        return f"replacement or blanking of the contents of at most {self.pairs} pairs, the graph equal"


def spread(pairs: int, batch: int) -> float:
    """The l2 norm of how many of so many changed pairs are in each batch, at most.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.relations import spread
    >>> spread(3, 50), round(spread(3, 2) ** 2)  # two in one batch, one in another
    (3.0, 5)
    """
    full, rest = divmod(pairs, batch)
    return math.sqrt(full * batch**2 + rest**2) if full else float(pairs)


@dataclass(frozen=True)
class PairsPlan(TablePlan):
    """Releases of means over batches of pairs, each pair once an epoch (docs/privacy.md, Lemma 79).

    `sensitivity` is how far one pair moves its batch's mean: in l2 for Gaussian noise, in l1 for Laplace's.

    Parameters
    ----------
    relation
        How many pairs change together.
    batch, epochs
        Pairs of a batch, and how often each pair is used.
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
    """Calibrate the noise of means over batches of pairs (docs/privacy.md, Lemma 79).

    Parameters
    ----------
    epsilon, delta
        What is promised; with delta 0 the noise is Laplace's, and the promise pure.
    relation, dim, sensitivity, batch, epochs, name, lemma
        As in `PairsPlan`.
    batches
        Batches of an epoch.
    noise
        Std of Gaussian noise, or scale of Laplace noise, that a paper asks for; None: what the promise needs.

    Raises
    ------
    ConfigError
        If epsilon or delta is out of range, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.relations import PairRelation, plan_pairs
    >>> plan = plan_pairs(1.0, 1e-6, relation=PairRelation(pairs=3), dim=4, sensitivity=0.01, batch=100,
    ...                   batches=5, epochs=2, name="means", lemma="docs/privacy.md, Lemma 79")
    >>> plan.releases, round(plan.mu, 3)
    (10, 0.237)
    """
    mu = mu_from(epsilon, delta or 1e-6)  # the checks of both
    reach = math.sqrt(dim) if delta else float(dim)
    grid = float(power_of_two_below(0.01 * sensitivity / reach))
    sigma, scale = 0.0, 0
    if delta:
        moved = (sensitivity + grid * math.sqrt(dim)) * spread(relation.pairs, batch)
        sigma = moved * math.sqrt(epochs) / mu if noise is None else noise
    elif noise is None:
        steps = epochs * relation.pairs * (sensitivity / grid + dim) / epsilon
        check_cells(steps, "noise")
        scale = max(math.ceil(steps), 1)
    else:
        check_cells(noise / grid, "noise")
        scale = max(math.ceil(noise / grid), 1)
    return PairsPlan(
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
