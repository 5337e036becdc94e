"""Mechanisms of offline learners: plan, report, sensitivity of gradient descent, exact Laplace noise."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streampair.errors import ConfigError
from streampair.kernels import random
from streampair.privacy.accounting import (
    PrivacyReport,
    delta_from,
    mu_from,
    planned_mu,
    promised_epsilon,
    rounded_to_budget,
)
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    NoisySums,
    Relation,
    Release,
    check_overflow,
    power_of_two_below,
    rounding_limit,
)
from streampair.privacy.noise import NormalStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Floats = NDArray[np.float64]

__all__ = [
    "ROUNDING_PART",
    "ExactRelease",
    "LaplaceStream",
    "TableAccount",
    "TablePlan",
    "TableReport",
    "VectorGate",
    "contraction",
    "descent_moves",
    "epsilon_of_draws",
    "largest_step",
    "mean_move",
    "mu_of_pure",
    "neighbours_move",
    "plan_table",
    "report_of",
]

#: Words that are drawn for an integer, and at most at once: it takes 10 to 14. Too few cost another turn, and
#: those too many are for the next.
_WORDS_EACH, _MOST_WORDS = 12, 1 << 16


class LaplaceStream:
    """Discrete Laplace noise: integers k with probability proportional to ``exp(-|k| / t)``.

    Sampled from a cipher's bits in integer arithmetic (Canonne, Kamath and Steinke 2020): there
    is no rounding, which would cost a share of delta.

    Parameters
    ----------
    seed
        None draws a key from the operating system. An integer gives a fixed sequence, for tests: it protects
        nobody.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import LaplaceStream
    >>> LaplaceStream(1).take(3, 10).shape
    (3,)
    """

    __slots__ = ("_cipher", "_law", "_words")

    def __init__(self, seed: int | None = None) -> None:
        key = os.urandom(32) if seed is None else hashlib.sha256(b"streampair laplace:%d" % seed).digest()
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._law: tuple[np.uint64, ...] = ()
        self._words: Words = np.empty(0, dtype=np.uint64)

    def integers(self, count: int) -> Words:
        """Uniform in 0, ..., 2^64 - 1, shape (count,)."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def take(self, count: int, scale: int) -> Ints:
        """The next `count` integers, of scale t = `scale` >= 1, shape (count,)."""
        return self.take_staircase(count, 1, 1, scale)

    def take_staircase(self, count: int, width: int, inner: int, scale: int) -> Ints:
        """Integers ``+-(j width + i)``, 0 <= i < width, j >= 0, shape (count,).

        With probability proportional to ``exp(-j / scale)`` for i < `inner`, else ``exp(-(j + 1) / scale)``.

        Raises
        ------
        OverflowError
            If a number beyond 64 bits would be needed.
        """
        out = np.empty(count, dtype=np.int64)
        law = (np.uint64(width), np.uint64(inner), np.uint64(scale))
        if law != self._law:
            # What is left was not enough for another law, and so is not uniform any more.
            self._law, self._words = law, self._words[:0]
        made = 0
        while True:
            drawn, used = random.laplace_integers(self._words, *law, out[made:])
            if used == random.LARGE_BOUND:
                raise OverflowError(f"a scale of {scale} needs numbers beyond 64 bits")
            made += drawn
            self._words = self._words[used:]
            if made == count:
                return out
            more = self.integers(min(_WORDS_EACH * (count - made + 1), _MOST_WORDS))
            self._words = np.concatenate([self._words, more])


def contraction(eta: float, alpha: float, smoothness: float) -> float:
    """Contraction factor of a gradient step: ``max(|1 - eta alpha|, |1 - eta (alpha + L)|)``, at most 1.

    Raises
    ------
    ConfigError
        If the factor is above 1.
    """
    factor = max(abs(1.0 - eta * alpha), abs(1.0 - eta * (alpha + smoothness)))
    if not (eta > 0.0 and factor <= 1.0 + 1e-12):
        raise ConfigError(
            f"a step of {eta:.6g} does not keep two runs together: the smoothness of the loss with its ridge "
            f"term is {smoothness + alpha:.6g}",
            fix=f"give a learning rate above 0 and at most {2.0 / (smoothness + alpha):.6g}",
        )
    return min(factor, 1.0)


def largest_step(alpha: float, smoothness: float) -> float:
    """The step of strongest contraction: ``2 / (2 alpha + L)`` (Xue et al. 2021, their L being L + alpha)."""
    return 2.0 / (2.0 * alpha + smoothness)


def descent_moves(
    steps: int, eta: float, *, alpha: float, smoothness: float, push: float, radius: float
) -> Floats:
    """Sensitivity of the iterates w_1 to w_T of gradient descent (docs/privacy, Lemma 71).

    Parameters
    ----------
    steps, eta
        Number of steps T, and step size.
    alpha, smoothness
        Strength of the ridge term, and L of the pair loss.
    push
        Bound of how far a record moves the gradient.
    radius
        Radius R of the ball of the iterates.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import descent_moves
    >>> descent_moves(3, 0.5, alpha=0.0, smoothness=4.0, push=0.1, radius=1.0).round(6)
    array([0.05, 0.1 , 0.15])
    """
    factor = contraction(eta, alpha, smoothness)
    # w_1 = push eta, w_t = factor w_(t-1) + push eta: a geometric sum.
    t = np.arange(1.0, steps + 1.0)
    if factor == 1.0:
        moves = push * eta * t
    elif factor == 0.0:
        moves = np.full(steps, push * eta)
    else:
        moves = push * eta * np.expm1(t * math.log(factor)) / (factor - 1.0)
    result: Floats = np.minimum(moves, 2.0 * radius)
    return result


def mean_move(etas: Floats, factors: Floats, weights: Floats, diameter: float, radius: float) -> float:
    """Sensitivity of a weighted mean of the iterates of one pass, for the worst record.

    By docs/privacy, Lemma 73. At step t the gradient is the mean over the pairs of record t with
    the t - 1 records before it.

    Parameters
    ----------
    etas, factors
        Step sizes and contractions of steps 1 to n, (n,); the first step has size 0.
    weights
        Weights of the iterates, (n,), at least 0.
    diameter, radius
        D of the pair loss, and R of the ball.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.offline import mean_move
    >>> mean_move(np.array([0.0, 0.5]), np.ones(2), np.array([0.0, 1.0]), 1.0, 9.0)
    0.5
    """
    n = len(etas)
    after = 0.0  # moves by later steps in which the record is a partner
    worth = 0.0  # move of the mean when iterate t moves by 1, through it and all later ones
    most = 0.0
    for t in range(n - 1, 0, -1):
        worth = weights[t] + (factors[t + 1] * worth if t + 1 < n else 0.0)
        most = max(most, etas[t] * diameter * worth + after)
        after += etas[t] * diameter / t * worth
    return float(min(max(most, after), 2.0 * radius * weights.sum()))


def neighbours_move(steps: int, eta: float, *, diameter: float, jump: float, radius: float) -> float:
    """Sensitivity of the mean of w_1 to w_T of a pass in which each record is paired with the one before.

    By docs/privacy, Lemma 68 and Lemma 69. The worst record is the second: it is in the first two steps.

    Parameters
    ----------
    steps, eta
        Number of steps T, one fewer than records, and step size.
    diameter, radius
        D of the pair loss, and R of the ball.
    jump
        Bound of how far the gradients of two runs differ at one pair, along their difference; 0 if
        the loss is smooth and the step at most 2 / L, so that steps bring no two runs farther apart.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import neighbours_move
    >>> neighbours_move(4, 0.5, diameter=0.5, jump=0.0, radius=9.0)  # 0.25, then 0.5 three times
    0.4375
    """
    first = eta * diameter
    second = math.hypot(first, eta * jump) + first
    later = np.hypot(second, eta * jump * np.sqrt(np.arange(steps - 1.0)))
    moves = np.minimum(np.concatenate([[first], later]), 2.0 * radius)
    return float(moves.mean())


@dataclass(frozen=True)
class ExactRelease(Release):
    """A release with integer noise, which has no floating-point error."""

    def floating_point(self, epsilon: float) -> float:
        return 0.0


@dataclass(frozen=True)
class TablePlan:
    """Calibrated plan of releases of vectors, all with the same sensitivity and independent noise.

    Parameters
    ----------
    name, lemma
        Name of the release, and the lemma of its sensitivity.
    dim
        Number of coordinates p.
    sensitivity
        l2 move of one vector when a record is replaced, before rounding.
    blank
        Largest share of the sensitivity that blanking a record moves.
    releases
        Number of vectors, each computed from the table and the releases before.
    grid
        gamma, a power of two: vectors are rounded to its multiples.
    sigma
        Std of the Gaussian noise in each coordinate; 0 for Laplace noise.
    scale
        Scale of the Laplace noise, in units of the grid; 0 for Gaussian noise.
    """

    name: str
    lemma: str
    dim: int
    sensitivity: float
    blank: float
    releases: int
    grid: float
    sigma: float
    scale: int

    def __post_init__(self) -> None:
        check_overflow(20.0 * self.sigma / self.grid, "noise")
        check_overflow(80.0 * self.scale, "noise")

    @property
    def pure(self) -> bool:
        """Whether the guarantee has no delta."""
        return self.scale > 0

    def _moved(self, share: float = 1.0) -> float:
        """l2 sensitivity of one vector, rounding included; `share`: scales the move of a record."""
        return share * self.sensitivity + self.grid * math.sqrt(self.dim) if self.sensitivity else 0.0

    def _epsilon(self, share: float = 1.0) -> float:
        root = math.sqrt(self.dim)
        # The l1 norm is at most sqrt(p) times the l2 norm, and rounding moves each coordinate by a step.
        steps = share * self.sensitivity / self.grid * root + self.dim if self.sensitivity else 0.0
        return self.releases * steps / self.scale

    def _mu(self, share: float = 1.0) -> float:
        if self.pure:
            return mu_of_pure(self._epsilon(share))
        return self._moved(share) * math.sqrt(self.releases) / self.sigma

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all releases; infinite under Gaussian noise."""
        return self._epsilon() if self.pure else math.inf

    @property
    def mu(self) -> float:
        """mu of all releases in Gaussian differential privacy."""
        return self._mu()

    def pure_noise(self, stream: LaplaceStream) -> NDArray[np.int64]:
        """Fresh noise of one vector, (p,), in units of the grid, for a pure guarantee."""
        return stream.take(self.dim, self.scale)

    @property
    def noise_std(self) -> float:
        """Std of the noise in each coordinate."""
        return self.sigma or self.grid * self.scale * math.sqrt(2.0)

    @property
    def release(self) -> Release:
        """The release with its sensitivity, noise and cost, for the card."""
        kind = ExactRelease if self.pure else Release
        return kind(
            name=self.name,
            domain="records in the unit ball, with a label",
            relation=ONE_RECORD,
            lemma=self.lemma,
            sensitivity=self._moved(),
            sigma=self.noise_std,
            replace=self.mu,
            blank=self._mu(self.blank),
            releases=self.releases,
            coordinates=self.dim,
            grid=self.grid,
        )


def mu_of_pure(epsilon: float) -> float:
    """The least mu for which pure epsilon implies mu-GDP (docs/privacy, Lemma 72).

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import mu_of_pure
    >>> round(mu_of_pure(1.0), 4)
    1.232
    """
    return float(-2.0 * scipy.special.ndtri(scipy.special.expit(-epsilon)))


def epsilon_of_draws(draws: int, chance: float, moves: Sequence[float], sigma: float, delta: float) -> float:
    """Epsilon of a vector whose move grows with the number of draws of a record (docs/privacy, Lemma 95).

    Parameters
    ----------
    draws, chance
        Number of draws from a part, and the probability that a draw is this record.
    moves
        Move of the vector by the number of times the record is drawn: 0, 1, ... The last one holds for
        more often as well.
    sigma
        Std of the Gaussian noise in each coordinate.
    delta
        Above 0.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import epsilon_of_draws
    >>> round(epsilon_of_draws(100, 0.01, [0.0, 1.0, 2.0, 3.0], 4.0, 0.01), 3)  # 3 in place of what is more
    0.777
    """
    # bdtrc(k, ...) is the probability of more than k.
    more = [float(scipy.special.bdtrc(k, draws, chance)) for k in range(len(moves) - 1)]
    tails = [1.0, *more, 0.0]
    parts = [
        (above - beyond, move / sigma)
        for (above, beyond), move in zip(pairwise(tails), moves, strict=True)
        if above > beyond and move
    ]

    def over(epsilon: float) -> float:
        return math.fsum(p * delta_from(epsilon, mu) for p, mu in parts) - delta

    if over(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while over(high) > 0.0:
        high *= 2.0
    # Rounded up, so that delta is kept.
    return float(scipy.optimize.brentq(over, 0.0, high, xtol=1e-12, rtol=1e-12)) * (1.0 + 1e-9) + 1e-11


def plan_table(
    epsilon: float,
    delta: float,
    *,
    dim: int,
    sensitivity: float,
    name: str,
    lemma: str,
    blank: float = 1.0,
    releases: int = 1,
    noise: float | None = None,
) -> TablePlan:
    """Calibrate the noise of vectors that move by at most `sensitivity` each (docs/privacy, Lemma 72).

    Parameters
    ----------
    epsilon, delta
        What is promised; with delta 0 the noise is Laplace's, and the promise pure.
    dim, sensitivity, name, lemma, blank, releases
        As in `TablePlan`.
    noise
        Std of Gaussian noise, or scale of Laplace noise, in units of the vector, as in a paper; None:
        by the budget.

    Raises
    ------
    ConfigError
        If epsilon or delta is out of range, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.offline import plan_table
    >>> asked = {"dim": 4, "sensitivity": 0.1, "name": "weights", "lemma": "docs/privacy, Lemma 72"}
    >>> plan_table(1.0, 1e-6, **asked).sigma > 0.4, plan_table(1.0, 0.0, **asked).epsilon <= 1.0
    (True, True)
    """
    mu_from(epsilon, delta or 1e-6)  # the checks of both
    most = sensitivity or noise or 0.0
    if not (math.isfinite(most) and most > 0.0):
        raise ConfigError("nothing is released that depends on the table", fix="raise the number of steps")
    grid = float(power_of_two_below(0.01 * most / math.sqrt(dim)))
    if delta == 0.0:
        if noise is None:
            steps = math.ceil(releases * (sensitivity / grid * math.sqrt(dim) + dim) / epsilon)
        else:
            steps = math.ceil(noise / grid)
        return TablePlan(name, lemma, dim, sensitivity, blank, releases, grid, 0.0, max(steps, 1))
    if noise is None:
        moved = sensitivity + grid * math.sqrt(dim)
        noise = moved * math.sqrt(releases) / planned_mu(epsilon, delta)
    plan = TablePlan(name, lemma, dim, sensitivity, blank, releases, grid, noise, 0)
    rounding_limit((plan.release,), epsilon, delta, part=ROUNDING_PART)
    return plan


ROUNDING_PART = 1.0 / 16.0
"""Of the part of delta for rounding, for each plan: no record is in the releases of more plans than that."""


def _rounded(vector: Floats, inverse: float, cells: NDArray[np.int64]) -> None:
    cells += np.floor(vector * inverse + 0.5).astype(np.int64)


class VectorGate:
    """Releases vectors, rounded and with the noise of a `TablePlan`.

    Parameters
    ----------
    plan
        The calibrated plan.
    seed
        Seed of the noise; None: a key of the operating system.

    Attributes
    ----------
    plan
        The same.
    releases
        Number of releases so far.
    """

    __slots__ = ("_laplace", "_normals", "_sums", "plan", "releases")

    def __init__(self, plan: TablePlan, seed: int | None) -> None:
        self.plan = plan
        self._sums = NoisySums(plan.release, (plan.dim,))
        self._normals = NormalStream(seed)
        self._laplace = LaplaceStream(seed)
        self.releases = 0

    def privatize(self, vector: Floats) -> Floats:
        """Release the vector (p,) with fresh noise.

        Raises
        ------
        RuntimeError
            If all planned releases have been made.
        """
        plan = self.plan
        if self.releases == plan.releases:
            raise RuntimeError("a release more than is planned")
        self.releases += 1
        self._sums.clear()
        self._sums.add(_rounded, vector, 1.0 / plan.grid)
        if plan.pure:
            cells = plan.pure_noise(self._laplace).astype(np.float64)
            return self._sums.privatize(np.stack((cells, np.zeros(plan.dim))))
        return self._sums.privatize(self._sums.noise(self._normals.take(plan.dim), plan.sigma))


class TableAccount:
    """What a fit releases: every vector leaves through a gate of the account, which knows the plans of all.

    Parameters
    ----------
    epsilon, delta
        The budget: of all releases of records, or of each part if they are about disjoint ones.
    dim, blank
        Of the releases that say nothing else, as in `TablePlan`.
    seed
        Seed of the noise; None: keys of the operating system.

    Raises
    ------
    ConfigError
        If epsilon or delta is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.offline import TableAccount
    >>> account = TableAccount(1.0, 1e-6, dim=2, blank=1.0, seed=1)
    >>> plan = account.plan(sensitivity=0.1, releases=2, name="gradients", lemma="docs/privacy, Lemma 75")
    >>> gate = account.gate(plan)
    >>> gate.privatize(np.zeros(2)).shape, account.releases, len(account.plans)
    ((2,), 1, 1)
    """

    def __init__(self, epsilon: float, delta: float, *, dim: int, blank: float, seed: int | None) -> None:
        mu_from(epsilon, delta or 1e-6)  # the checks of both
        self.epsilon, self.delta = epsilon, delta
        self._shape: dict[str, Any] = {"dim": dim, "blank": blank}
        self._seed = seed
        self._gates: list[VectorGate] = []

    def plan(self, **release: Any) -> TablePlan:
        """The plan of a release, as `plan_table` has it; nothing is entered in the account."""
        return plan_table(self.epsilon, self.delta, **{**self._shape, **release})

    def gate(self, plan: TablePlan, seed: int | None = None) -> VectorGate:
        """A gate for the releases of a plan; `seed`: of its noise, in place of the account's."""
        made = VectorGate(plan, self._seed if seed is None else seed)
        self._gates.append(made)
        return made

    @property
    def plans(self) -> list[TablePlan]:
        """Plans of the gates, in the order in which they were made."""
        return [gate.plan for gate in self._gates]

    @property
    def releases(self) -> int:
        """Number of vectors that have been released."""
        return sum(gate.releases for gate in self._gates)


class TableReport(PrivacyReport):
    """Privacy report of an offline learner, which learns once."""

    def _left(self) -> str:
        return (
            "The table was learned once; fitting again on the same records is another release, and adds up."
        )

    def _words(self) -> str:
        if self.delta:
            return super()._words()
        return "What is rounded and the noise are integers throughout: no share of delta is due to rounding."


def report_of(
    epsilon: float,
    delta: float,
    plans: Sequence[TablePlan],
    *,
    parallel: bool,
    releases: int,
    seeded: bool,
    mechanism: str,
    notes: Sequence[str] = (),
    source: str = "",
    relation: Relation = ONE_RECORD,
    spent: float | None = None,
) -> TableReport:
    """Build the report of a fit from its plans.

    Parameters
    ----------
    epsilon, delta
        The requested budget.
    plans
        Plans of the releases.
    parallel
        Whether the plans concern disjoint records (parallel composition); else they compose.
    releases
        Number of vectors released.
    seeded
        Whether the noise has a fixed seed.
    mechanism, notes
        Description of the mechanism, and further notes.
    source
        Paper whose constants are used unchanged; empty: none.
    relation
        The neighbouring relation.
    spent
        Epsilon, if subsampling makes it smaller than by mu (amplification); None: by mu.
    """
    mus = [plan.mu for plan in plans]
    mu = max(mus) if parallel else math.sqrt(sum(value**2 for value in mus))
    if delta:
        spent = promised_epsilon(mu, delta) if spent is None else spent
        budget = planned_mu(epsilon, delta)
    else:
        costs = [plan.epsilon for plan in plans]
        spent = max(costs) if parallel else sum(costs)
        budget = mu_of_pure(epsilon)
    remarks = list(notes)
    if source:
        remarks.append(
            f"Noise is that of {source}, whose constants promise epsilon {epsilon:g} at delta {delta:.3g}; "
            f"by the exact account of what was released epsilon is {spent:.6g}, and that is what holds."
        )
        # The guarantee that holds, if the constants give less than promised.
        epsilon, budget = max(epsilon, spent), max(budget, mu)
    else:
        spent = rounded_to_budget(spent, epsilon)
    guarantee = (
        "exact accounting of every release, in Gaussian differential privacy" if delta else "pure epsilon"
    )
    if seeded:
        remarks.append(
            "Whoever knows the seed can compute the noise; the numbers are those of random_state=None."
        )
    remarks.append(
        "The number of records, the names of the classes and that a fit went through are taken as public: an "
        "error or a warning about the data discloses something about them to whoever sees it."
    )
    return TableReport(
        epsilon_spent=spent,
        epsilon_budget=epsilon,
        delta=delta,
        mu_spent=mu,
        mu_budget=budget,
        unit=relation.unit,
        adjacency=relation.adjacency,
        releases=releases,
        guarantee="void (fixed seed)" if seeded else guarantee,
        kind="void" if seeded else "holds",
        horizon=0,
        horizon_left=0,
        noise_std=plans[-1].noise_std,
        mechanism=mechanism,
        notes=tuple(remarks),
        card=tuple(plan.release.line(epsilon) for plan in plans),
    )
