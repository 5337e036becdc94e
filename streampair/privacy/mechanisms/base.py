"""Base classes of the mechanisms: plans and their files, states, releases of noisy sums, wrappers."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from streampair import losses
from streampair.errors import ConfigError
from streampair.kernels import numerics, platt, vectors
from streampair.privacy.accounting import OUTWARD, ROUNDING_SHARE
from streampair.privacy.noise import rounded, scaled
from streampair.privacy.sensitivity import BLT, LONGEST, Toeplitz
from streampair.privacy.user_level import EntityLimit
from streampair.records.features import Design

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.buffer import BufferPlan
    from streampair.privacy.mechanisms.start_moments import StartMoments
    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]


__all__ = [
    "ONE_RECORD",
    "CombinedPlan",
    "Companion",
    "CompanionPlan",
    "FittedPlan",
    "Link",
    "Mechanism",
    "MechanismPlan",
    "MechanismState",
    "ModelFit",
    "NoisySums",
    "Relation",
    "Release",
    "Settings",
    "SlotBatch",
    "StateWrapper",
    "check_close",
    "check_memory",
    "check_overflow",
    "normal_link",
    "rate_link",
    "rounding_limit",
    "strategy_from",
    "unit_link",
]

# Relative difference of two fits on different processors; a larger one means another plan, or damage.
_TOLERANCE = 1e-6


def check_close(name: str, saved: Any, computed: float) -> float:
    """The saved number of a plan, checked against the one computed here.

    Raises
    ------
    ValueError
        If it is no float, or differs by more than the tolerance.
    """
    if not isinstance(saved, float) or not (
        saved == computed or math.isclose(saved, computed, rel_tol=_TOLERANCE, abs_tol=0.0)
    ):
        raise ValueError(f"{name} of the plan is {saved!r}, and these parameters give {computed!r}")
    return saved


class FittedPlan(abc.ABC):
    """A calibrated plan, whose numbers were fitted here, or are exactly those of an earlier run."""

    @property
    @abc.abstractmethod
    def FITTED(self) -> tuple[str, ...]:
        """Names of the fitted numbers, which are attributes of the plan."""

    def fitted(self) -> dict[str, Any]:
        """The fitted numbers, as floats, texts and lists."""
        out: dict[str, Any] = {}
        for name in self.FITTED:
            value = getattr(self, name)
            if isinstance(value, BLT):
                out[name] = {"kind": "blt", "omega": value.omega.tolist(), "decay": value.decay.tolist()}
            else:
                out[name] = {"kind": "square_root"} if isinstance(value, Toeplitz) else float(value)
        return out

    def with_fitted(self, saved: Mapping[str, Any] | None) -> Self:
        """The same plan with exactly the saved numbers; None: this plan.

        Raises
        ------
        ValueError
            If the numbers do not belong to such a plan.
        """
        if saved is None:
            return self
        out = copy.copy(self)
        for name, computed in self.fitted().items():
            if isinstance(computed, float):
                object.__setattr__(out, name, check_close(name, saved[name], computed))
        if out.fitted() != saved:
            raise ValueError("the plan has other numbers")
        return out


def strategy_from(saved: Mapping[str, Any], horizon: int | None) -> Toeplitz | BLT:
    """The strategy matrix C from its saved numbers.

    Raises
    ------
    ValueError
        If the numbers are not those of a strategy.
    """
    if saved["kind"] == "blt":
        return BLT.of(saved["omega"], saved["decay"], horizon)
    if saved["kind"] != "square_root" or horizon is None:
        raise ValueError(f"noise strategy {saved['kind']!r}")
    return Toeplitz.square_root(horizon)


class MechanismPlan(Protocol):
    """A calibrated mechanism: a function of the parameters alone, fixed before the first record."""

    @property
    def sigma(self) -> float:
        """Noise std, a coordinate."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""

    def fitted(self) -> dict[str, Any]:
        """The fitted numbers, as plain values, which another run can use exactly."""

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""

    def fork_mu2(self, window: int) -> float:
        """Upper bound of what a fork of `window` consecutive slots adds to mu^2 (docs/privacy 8)."""


_NO_ROWS = np.empty((0, 0))
_NO_SCORES = np.empty(0)


class SlotBatch(NamedTuple):
    """Slots to take, in order; the first four fields are in the order of the kernels' arguments.

    Attributes
    ----------
    rows, labels
        Design vectors (n, d) and labels (n,); NaN makes a null slot.
    scored, scores
        Rows (n, d) to score, each under the weights published before its slot, and the array (n,) that
        receives the scores; both empty if nobody asks. They are as they came: a row to learn may have been
        blanked.
    records
        Digest input of each row's record, for a chain.
    """

    rows: Floats
    labels: Floats
    scored: Floats = _NO_ROWS
    scores: Floats = _NO_SCORES
    records: Sequence[bytes] = ()

    def part(self, start: int, stop: int) -> SlotBatch:
        """The slots from `start` to `stop`."""
        if stop - start == len(self.labels):
            return self
        part = slice(start, stop)
        rows, labels, scored, scores, records = self
        return SlotBatch(rows[part], labels[part], scored[part], scores[part], records[part])


class ModelFit(NamedTuple):
    """Computation of a model from the releases up to one of them.

    Attributes
    ----------
    release
        Number of the last release that the model knows.
    compute
        Returns weights and link: a function of a copy of the releases, so another thread may call it.
    """

    release: int
    compute: Callable[[], tuple[Floats, Link]]


class MechanismState(abc.ABC):
    """State of a running mechanism, with its update rule: returned by `Mechanism.start`."""

    #: Scale, shift, mean and factor of the standardisation, (4, d): a view of the design's. The first two are
    #: public, the others are released by the warm-up.
    scaling: Floats | None = None
    #: The calibrated mechanism, a `MechanismPlan`.
    plan: Any
    #: Learning slots taken.
    steps: int
    #: Root mean squared length of standardised records, before they are clipped to the unit ball.
    spread: float = 1.0
    #: Standardised values are clipped to [-cap, cap].
    cap: float = math.inf
    #: Whether the iterate has no noise and stays secret.
    secret_iterate: bool = False

    @property
    def mechanism_plan(self) -> Any:
        """The plan of the mechanism alone, without its companions."""
        return self.plan

    @property
    @abc.abstractmethod
    def average(self) -> Floats:
        """The published weights: a view."""

    @property
    def link(self) -> Link:
        """Link from a score to a probability, computed from releases alone."""
        return unit_link(self.average, self.spread)

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that `link` uses; 0 if none is known."""
        return 0.0

    @property
    def auc(self) -> Mapping[str, Any] | None:
        """The private AUC, computed from releases (docs/privacy 10.8); None without `auc_share`."""
        return None

    @property
    def noise(self) -> Floats | None:
        """Approximate standard deviation of the noise in each published weight, (d,), from releases alone.

        None before there are weights, and for gradients: how far later steps correct earlier noise depends on
        the records, so it is not known how much noise is left (docs/privacy, Lemma 89).
        """
        return None

    @property
    def slots_until_release(self) -> int:
        """Number of next slots before each of which `average` is unchanged; at least 1."""
        return 1

    @property
    @abc.abstractmethod
    def releases(self) -> int:
        """Number of models released so far, each of which spent budget."""

    @property
    @abc.abstractmethod
    def released(self) -> Floats:
        """The last release, before any post-processing: for the audit."""

    @property
    @abc.abstractmethod
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records included."""

    @abc.abstractmethod
    def card(self) -> tuple[Release, ...]:
        """The mechanism card: each kind of release with its sensitivity, noise and cost."""

    def centre(self, mean: float) -> None:  # noqa: B027  # most have no use for it
        """Set the released mean of the labels, before the first record."""

    def begin_with(self, cross: Floats) -> None:  # noqa: B027  # most have none
        """Compute a first model from the warm-up's covariances of labels and features.

        Parameters
        ----------
        cross
            Covariances of the labels with the standardised features, scaled to `E |x|^2 = 1`, and the
            variances of their noise, (2, d).
        """

    def begin_at(self, weights: Floats) -> None:
        """Begin at the weights of a start model, before the first record (docs/privacy, Lemma 97).

        Parameters
        ----------
        weights
            In the coordinates of the published weights (d,), with a norm of at most the radius. They depend
            on no record that the mechanism protects, besides by earlier releases.
        """
        raise NotImplementedError

    #: Whether `begin_with_moments` is for this state.
    pools: ClassVar[bool] = False

    def begin_with_moments(self, moments: StartMoments) -> None:
        """Begin with the moments of a table, whose standardisation the records have (docs/privacy 4.6)."""
        raise NotImplementedError

    @property
    def pooled(self) -> bool | None:
        """Whether the moments of a table are still pooled with its own; None: it has not begun with any."""
        return None

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """`take` of rows (n, d) and labels (n,), without scores."""
        self.take(SlotBatch(rows, labels), stream)

    @property
    def releases_nothing(self) -> bool:
        """Whether `accumulate` can take the next slot: it is not the first one, and releases nothing."""
        return False

    def accumulate(self, design: Design) -> None:
        """`learn` the raw record in the design's scratch; the label becomes NaN if the record is null."""
        raise NotImplementedError

    @abc.abstractmethod
    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """Take the slots; the bits do not depend on how they are split into batches.

        Noise comes from the stream. A chain is given, in each step, the exact values that noise is added to.
        """

    def defer_fits(self, releases: Collection[int] = ()) -> None:  # noqa: B027  # most models are quick
        """As of `PrivateLearner.defer_fits`. A mechanism with quick models computes them as before."""

    def fit_due(self, release: int | None = None) -> ModelFit | None:
        """As of `PrivateLearner.fit_due`."""
        return None

    def adopt(self, release: int, model: tuple[Floats, Link]) -> None:
        """As of `PrivateLearner.adopt`."""
        raise NotImplementedError

    @abc.abstractmethod
    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""

    @abc.abstractmethod
    def to_state(self) -> dict[str, Any]:
        """Export the state, as plain values and arrays."""

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""


# Fields of a release that the card copies.
_PLAIN = (
    "name",
    "domain",
    "lemma",
    "sensitivity",
    "sigma",
    "replace",
    "blank",
    "releases",
    "coordinates",
    "grid",
)

# Sums of rounded noise must stay far inside 64-bit integers.
_MOST_CELLS = 2.0**44

# A computed normal of s steps of the grid is rounded to another step than the ideal one with a probability of
# at most this, times s + 1 (docs/privacy, Lemma 21).
_FLIP = 2.0**-89

# A stream without end must have room for so many releases at least.
_LEAST_RELEASES = 2**20


def check_overflow(cells: Any, what: str) -> None:
    """Refuse noise whose rounded sums might overflow 64-bit integers; `cells`: noise in units of the grid."""
    if not np.max(cells, initial=0.0) < _MOST_CELLS:
        raise ConfigError(
            f"the {what} would be {float(np.max(cells)):.3g} steps of the grid, beyond what 64-bit sums can "
            "hold",
            fix="raise epsilon: nothing can be learned under this much noise",
        )


def rounding_limit(
    kinds: Sequence[Release], epsilon: float, delta: float, forks: int = 0, part: float = 1.0
) -> int:
    """Learning slots for which the rounding of noise stays within its part of delta: at most `LONGEST`.

    `part`: how much of that is for these releases.

    Raises
    ------
    ConfigError
        If it does not for the planned releases, or for 2^20 releases of a stream without end.
    """
    shares = [(1 + forks) * kind.floating_point(epsilon) for kind in kinds]
    room, needed = part * ROUNDING_SHARE * delta, math.fsum(shares)
    if needed > room:
        least = needed / (part * ROUNDING_SHARE)
        raise ConfigError(
            f"delta is {delta:g}, and the rounding of noise alone needs a delta of {least:.2g}",
            fix=f"give a delta of at least {1.01 * least:.2g}"
            if 1.01 * least < 1.0
            else f"lower epsilon: no delta can be kept at {epsilon:g}",
        )
    endless = [(kind.every, share) for kind, share in zip(kinds, shares, strict=True) if kind.endless]
    left = room * (1.0 - 2.0**-30) - needed + math.fsum(share for _, share in endless)
    # They have equal parts of what is left.
    counts = (math.floor(_LEAST_RELEASES * left / (len(endless) * share)) for _, share in endless)
    ends = (every * count for (every, _), count in zip(endless, counts, strict=True))
    return min([LONGEST, *ends])


def check_memory(strategy: BLT, dim: int, mu: float) -> None:
    """Refuse correlated noise whose memory rounds more than the last digits of sigma make up for."""
    error = strategy.memory_error(None, dim)
    if not error < OUTWARD * mu / 2.0:
        raise ConfigError(
            f"the rounding of the noise's memory alone costs a mu of {error:.2g}, of {mu:.2g}",
            fix="raise epsilon: nothing can be learned under this much noise",
        )


def power_of_two_below(value: Any) -> Any:
    """The largest power of two of at most `value`, elementwise."""
    return np.ldexp(1.0, np.frexp(value)[1] - 1)


@dataclass(frozen=True)
class Relation:
    """Neighbouring relation: streams with the same metadata that differ in the content of one unit.

    Parameters
    ----------
    entity
        The unit is all records of one entity, with these limits on its contributions; None: one record.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.base import Relation
    >>> Relation().unit
    'the content of one record (its feature values and its label)'
    """

    entity: EntityLimit | None = None

    @property
    def unit(self) -> str:
        """The protected unit, in words."""
        if self.entity is None:
            return "the content of one record (its feature values and its label)"
        apart = self.entity.separation
        return (
            f"the contents of all records of one entity: at most {self.entity.records} are learned from"
            + (f", at least {apart} slots apart" if apart > 1 else "")
        )

    @property
    def adjacency(self) -> str:
        """The neighbouring relation in words."""
        if self.entity is None:
            return "replacement or blanking of one record's content, everything else equal (replace-one)"
        return "replacement or blanking of the contents of all of an entity's records, all else equal"


ONE_RECORD = Relation()
"""One record's content is replaced."""


@dataclass(frozen=True)
class Release:
    """One kind of release with its sensitivity, noise and cost: a line of the mechanism card.

    Parameters
    ----------
    name
        What is released.
    domain
        Domain of a record, as the mechanism sees it.
    relation
        The neighbouring relation.
    lemma
        Where the sensitivity is proved, in docs/privacy.
    sensitivity
        l2 sensitivity to replacing a record (or an entity's records): of one release where they are
        independent, of all of them together where their noise is correlated.
    sigma
        Noise std of each coordinate, of the independent normals behind it.
    replace
        mu of replacing a record, over all planned releases of the kind.
    blank
        mu of blanking a record.
    releases
        Number of planned releases; None: no end.
    coordinates, grid
        Number of coordinates of a release, and the step that it is rounded to.
    draws
        Sum over the normals of all releases that a record can move of `s + 1`, s being the standard deviation
        in steps of the grid. None: of `coordinates` equal ones in each release.
    every
        Of releases without end, each of which depends on the noise of the ones before: the fewest slots from
        one to the next.

    Notes
    -----
    `floating_point` is the part of delta that the rounding of computed noise has, by Lemma 21 of
    docs/privacy: noise is calibrated to what it leaves. The guarantee is computational: it holds as far as
    the cipher's output is computationally indistinguishable from random bits.
    """

    name: str
    domain: str
    relation: Relation
    lemma: str
    sensitivity: float
    sigma: float
    replace: float
    blank: float
    releases: int | None
    coordinates: int
    grid: float
    draws: float | None = None
    every: int = 1

    CIPHER: ClassVar[str] = (
        "AES in counter mode, keyed by the operating system or the noise key: the guarantee holds as far as "
        "its output is indistinguishable from random bits (computational differential privacy)"
    )

    @property
    def mu2(self) -> float:
        """Share of mu^2 that replacing a record costs."""
        return self.replace**2

    @property
    def endless(self) -> bool:
        """Whether the part of delta grows with the stream."""
        return self.releases is None and self.draws is None

    def floating_point(self, epsilon: float) -> float:
        """Part of delta that the rounding of noise has; of releases without end, of the first 2^20."""
        draws = self.draws
        if draws is None:
            count = _LEAST_RELEASES if self.releases is None else self.releases
            draws = count * self.coordinates * (self.sigma / self.grid + 1.0) if count else 0.0
        return min((1.0 + math.exp(min(epsilon, 700.0))) * draws * _FLIP, 1.0)

    def line(self, epsilon: float) -> dict[str, Any]:
        """The line of the mechanism card, as plain values."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "relation": self.relation.adjacency,
            "mu2": self.mu2,
            "floating_point_delta": self.floating_point(epsilon),
            "cipher": self.CIPHER,
        }


class NoisySums:
    """Integer sums over records, which leave through `privatize` alone.

    Parameters
    ----------
    release
        The kind of release, for the card.
    shape
        Of the sums.
    grid
        Step of each coordinate, in units of the records; None: that of the release.

    Notes
    -----
    No model may depend on the exact sums: a label mean, a ridge or a scale computed from them would be a
    release without noise. So the sums are not an attribute. The other ways to read them are as secret as the
    data: `cells`, which keys the noise, and the state of a snapshot.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.base import NoisySums, Relation, Release
    >>> kind = Release("a sum", "x in [-1, 1]", Relation(), "", 2.0, 4.0, 0.5, 0.25, 1, 1, 0.5)
    >>> sums = NoisySums(kind, (1,))
    >>> sums.add(lambda cells: cells.__iadd__(3))
    >>> sums.privatize(np.array([[1.4], [0.0]]))
    array([2.])
    """

    __slots__ = ("__cells", "__grid", "release")

    def __init__(self, release: Release, shape: tuple[int, ...], grid: Floats | None = None) -> None:
        self.release = release
        self.__grid: Any = release.grid if grid is None else grid
        self.__cells = np.zeros(shape, dtype=np.int64)

    def add(self, kernel: Callable[..., object], *records: Any) -> None:
        """Call a kernel that adds records to the sums: its arguments are the records, then the sums."""
        kernel(*records, self.__cells)

    def absorb(self, other: NoisySums, times: int = 1) -> None:
        """Add `times` the sums of another object, which are over other records."""
        self.__cells += times * other.__cells

    def privatize(self, noise: Floats) -> Floats:
        """The sums under noise, in units of the records: rounded, added in integers, times the grid.

        Parameters
        ----------
        noise
            High and low parts, in steps of the grid: see `noise`; (2, ...), as large as the sums.
        """
        return np.asarray(self.__grid * (self.__cells + rounded(noise)))

    def noise(self, normals: Floats, sigmas: Any) -> Floats:
        """Noise for `privatize` from as many normals (2, n) as there are sums, by standard deviation.

        Parameters
        ----------
        sigmas
            In units of the records, of all sums, or of each.
        """
        each = np.empty(self.__cells.shape)
        each[...] = sigmas / self.__grid
        return scaled(normals, each.ravel()).reshape(2, *each.shape)

    def clear(self) -> None:
        """Begin a new block."""
        self.__cells[...] = 0

    def cells(self) -> bytes:
        """The exact sums as bytes: for the chain that keys the noise."""
        return self.__cells.tobytes()

    def to_state(self) -> NDArray[np.int64]:
        """For a snapshot: as secret as the data."""
        return self.__cells.copy()

    def load_state(self, saved: Any) -> None:
        """Continue from `to_state`.

        Raises
        ------
        ValueError
            If the saved sums have another shape.
        """
        if saved.shape != self.__cells.shape:
            raise ValueError("sums of another shape")
        self.__cells[...] = saved


@dataclass(frozen=True)
class Settings:
    """Validated parameters of a private learner, with the defaults filled in.

    Parameters
    ----------
    mechanism
        The DP mechanism.
    companions
        Further releases (prevalence, private AUC) around the mechanism, the innermost first.
    epsilon, delta, mu
        Budget of one record, in both currencies.
    horizon, warmup
        Number of slots in all, None for no end, and of the first slots, which serve the warm-up alone.
    loss, form, pairs, two_classes
        The pair loss, how two labels make a margin, the kernels' code for the pairs, and whether labels are
        +1 and -1.
    buffer, clip, radius, tangent
        The buffer, the clipping radius of a pair's gradient, the radius of the weights, and which ball
        gradients are clipped into.
    bounds
        Declared (low, high) by feature.
    forks, window
        Number of forks that the budget covers, and the slots of each.
    entity
        Limits of user-level privacy; None: record-level privacy.
    features, dim
        Number of features and of coordinates of the weights; None until they are known.
    """

    mechanism: Mechanism
    companions: tuple[Companion, ...]
    epsilon: float
    delta: float
    mu: float
    horizon: int | None
    warmup: int
    loss: losses.PairLoss
    form: losses.Form
    pairs: int
    two_classes: bool
    buffer: BufferPlan
    clip: float
    radius: float
    tangent: bool
    bounds: Mapping[Hashable, tuple[float, float]]
    forks: int
    window: int
    entity: EntityLimit | None
    features: int | None
    dim: int | None

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return Relation(self.entity)

    @property
    def composes(self) -> bool:
        """Whether the warm-up and the learning may concern the same entity, so that they share the budget."""
        return self.entity is not None and self.warmup > 0

    @property
    def mu_learning(self) -> float:
        """mu of the learning after the warm-up."""
        return self.mu * math.sqrt(0.5) if self.composes else self.mu

    def mu_warmup(self, fork_mu2: float | None) -> float:
        """mu of one release of the warm-up; a fork of the window that it is in makes another.

        A record can be in the prefix of one view and be learned in another, where the order changed. So with
        forks a release of the warm-up costs neither more than the learning nor more than a fork of a
        window of it, and the plan of the learning has room for every mixture.

        Parameters
        ----------
        fork_mu2
            Upper bound of the cost of such a fork; None: not known yet.
        """
        if self.composes or not self.forks or fork_mu2 is None:
            return self.mu_learning / math.sqrt(1.0 + self.forks)
        return math.sqrt(min(fork_mu2, self.mu_learning**2 - self.forks * fork_mu2))

    @property
    def warmup_records(self) -> int:
        """Number of records of one entity that the warm-up can hold (docs/privacy 4.4)."""
        return 1 if self.entity is None else self.entity.within(self.warmup)

    @property
    def learning(self) -> int | None:
        """Number of learning slots, after the warm-up."""
        return None if self.horizon is None else self.horizon - self.warmup

    @property
    def learning_records(self) -> int:
        """Largest number of records of one entity that are learned after the warm-up."""
        if self.entity is None:
            return 1
        return self.entity.records if self.learning is None else self.entity.within(self.learning)

    @property
    def calibrated(self) -> bool:
        """Whether probabilities are calibrated by the share of positives."""
        return self.mechanism.label_mean or any(companion.calibrated for companion in self.companions)

    def start(self, *, seed: int | None, saved: Mapping[str, Any] | None) -> MechanismState:
        """State of the mechanism, wrapped by its companions: parameters as of `Mechanism.start`."""
        if not self.companions:
            return self.mechanism.start(self, seed=seed, saved=saved)
        *others, outer = self.companions

        def start_inner(settings: Settings, saved: Mapping[str, Any] | None) -> MechanismState:
            return replace(settings, companions=tuple(others)).start(seed=seed, saved=saved)

        return outer.start(self, saved, start_inner)

    def describe(self) -> str:
        """Description of the mechanism, for the report."""
        words = [self.mechanism.describe(self), *(companion.describe() for companion in self.companions)]
        return " ".join(filter(None, words))

    def notes(self, run: MechanismState) -> list[str]:
        """Further notes of the report; `run`: the state that `start` returned."""
        notes: list[str] = []
        for companion in reversed(self.companions):
            assert isinstance(run, StateWrapper)
            notes = [*companion.notes(run), *notes]
            run = run.inner
        return [*self.mechanism.notes(self, run), *notes]

    def warmup_words(self) -> str:
        """Description of the warm-up, for the report; empty without one."""
        if not self.warmup:
            return ""
        return (
            f" The first {self.warmup} records are used for one release of means and variances only, the "
            "later ones for learning only, so each has "
            + ("half of mu^2." if self.composes else "the whole budget (parallel composition).")
        )


_WARMUP_FROM = 5000
_WARMUP_SHARE = 0.1
_WARMUP_OPEN = 2000


@dataclass(frozen=True)
class Mechanism(abc.ABC):
    """A DP mechanism: a stateless value that makes the plan, the state and the report's words.

    A subclass has a module of its own: domain, relation, lemma, plan, calibration, state and report.
    """

    #: Whether the buffer must bound the number of uses of a record.
    bounded_uses: ClassVar[bool] = True
    #: Radius of the weights without and with a warm-up.
    radii: ClassVar[tuple[float, float]] = (3.0, 30.0)
    #: Whether the warm-up releases the mean of the labels too.
    label_mean: ClassVar[bool] = False
    #: Whether it also releases the covariances of features and labels, for a first model.
    label_cross: ClassVar[bool] = False

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int:
        """Default of `warmup`. `features`: their number, once known.

        A share of the horizon, unless that is so short that a warm-up costs more than it gives (docs/privacy
        4.4).
        """
        if horizon is None:
            return _WARMUP_OPEN
        return round(_WARMUP_SHARE * horizon) if horizon >= _WARMUP_FROM else 0

    @property
    def default_clip(self) -> float:
        """Default of `clip`."""
        return 1.0

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """The loss in use, None being the default.

        Raises
        ------
        ConfigError
            If the mechanism has no guarantee with it.
        """
        return losses.Hinge() if loss is None else loss

    @abc.abstractmethod
    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> MechanismState:
        """A new state, before any record.

        Parameters
        ----------
        settings
            Validated parameters, with the number of features.
        seed
            Seed of the buffer's random choices; None takes one from the operating system.
        saved
            Fitted numbers of an earlier run (`PrivateSession.written`), used unchanged; None: fit them here.
        """

    def design(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> Design:
        """The map from a record to its design vector, which the published weights multiply."""
        return Design(names, bounds)

    @abc.abstractmethod
    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""

    def notes(self, settings: Settings, run: MechanismState) -> list[str]:
        """Further notes of the report."""
        return []


@dataclass(frozen=True)
class Companion(abc.ABC):
    """A further release beside a mechanism, for a share of the learning's mu^2: stateless, as a mechanism."""

    #: Whether it calibrates probabilities by the share of positives.
    calibrated: ClassVar[bool] = False

    @abc.abstractmethod
    def start(
        self,
        settings: Settings,
        saved: Mapping[str, Any] | None,
        start_inner: Callable[[Settings, Mapping[str, Any] | None], MechanismState],
    ) -> StateWrapper:
        """A state that wraps that of the mechanism.

        Parameters
        ----------
        settings
            Validated parameters of both.
        saved
            Fitted numbers of an earlier run, used unchanged; None: fit them here.
        start_inner
            Makes the inner state, from settings with the rest of the budget and its saved numbers.
        """

    def describe(self) -> str:
        """Description for the report; empty: nothing is released."""
        return ""

    def notes(self, run: Any) -> list[str]:
        """Further notes of the report; `run`: the state that `start` returned."""
        return []


@dataclass(frozen=True)
class CompanionPlan(abc.ABC):
    """Calibrated plan of sums over blocks of learned slots, each released once: a record is in one block.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record, or of all of an entity's.
    forks
        Number of forks that the budget covers: in each a record is in one block.
    horizon
        Learning slots, None for no end. The last block ends there.
    records
        Largest number of records of an entity.
    sigma
        Noise std of each of the sums.
    """

    mu: float
    forks: int = 0
    horizon: int | None = None
    records: int = 1
    sigma: float = field(init=False)

    #: Name of `sigma` among the fitted numbers of a `CombinedPlan`.
    FITTED_AS: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", math.sqrt(1.0 + self.forks) * self.sensitivity / self.mu)

    def with_saved(self, saved: Mapping[str, Any] | None) -> tuple[Self, Mapping[str, Any] | None]:
        """The same plan with exactly the saved sigma and the saved numbers of the mechanism.

        Parameters
        ----------
        saved
            `CombinedPlan.fitted` of an earlier run; None: this plan, and None.

        Raises
        ------
        ValueError
            If the saved sigma is not of such a plan.
        """
        if saved is None:
            return self, None
        out = copy.copy(self)
        sigma = check_close(self.FITTED_AS, saved[self.FITTED_AS], self.sigma)
        object.__setattr__(out, "sigma", sigma)
        return out, {name: value for name, value in saved.items() if name != self.FITTED_AS}

    @property
    @abc.abstractmethod
    def sensitivity(self) -> float:
        """l2 sensitivity of a block's sums, with the rounding."""

    @abc.abstractmethod
    def end(self, start: int) -> int:
        """End of the block that begins after `start` learned slots."""

    @property
    def move(self) -> float:
        """mu of all blocks of one view: a record is in one block, an entity in several."""
        return self.sensitivity / self.sigma

    def mu_spent(self, steps: int) -> float:
        """mu of the blocks that have ended."""
        return self.move if steps >= self.end(0) else 0.0

    def fork_mu2(self, window: int) -> float:
        """Cost of a fork in mu^2: a record is in one of its blocks."""
        return self.move**2 if window > 0 else 0.0


@dataclass(frozen=True)
class CombinedPlan:
    """The plan of a mechanism together with that of a companion, whose mu^2 add up.

    Parameters
    ----------
    mechanism
        Plan of the mechanism, or of the mechanism with another companion.
    companion
        Plan of the companion.

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> gradients = privacy.PairGradients(positive_rate="released")
    >>> model = auc.PairFTRL(1.0, 1e-4, 1000, features=["a"], warmup=0, mechanism=gradients)
    >>> plan = model.run.state.plan
    >>> spends = [privacy.Spend(part.mu_spent(1000)) for part in (plan.mechanism, plan.companion)]
    >>> spends[0].then(spends[1]) == privacy.Spend(plan.mu_spent(1000))
    True
    """

    mechanism: MechanismPlan
    companion: CompanionPlan

    @property
    def sigma(self) -> float:
        """Noise std of the mechanism, a coordinate."""
        return self.mechanism.sigma

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.mechanism.relation

    def fitted(self) -> dict[str, Any]:
        """The fitted numbers of both plans."""
        return {**self.mechanism.fitted(), self.companion.FITTED_AS: self.companion.sigma}

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""
        return math.hypot(self.mechanism.mu_spent(steps), self.companion.mu_spent(steps))

    def fork_mu2(self, window: int) -> float:
        """Upper bound of what a fork of `window` consecutive slots adds to mu^2."""
        return self.mechanism.fork_mu2(window) + self.companion.fork_mu2(window)


class StateWrapper(MechanismState):
    """A mechanism state that adds a release to those of `inner`.

    It defers no fits: what it releases may depend on the model in use.

    Parameters
    ----------
    inner
        The wrapped state.
    """

    inner: MechanismState

    def __init__(self, inner: MechanismState) -> None:
        self.inner = inner
        self.steps = inner.steps
        self.spread, self.cap, self.secret_iterate = inner.spread, inner.cap, inner.secret_iterate

    @property
    def mechanism_plan(self) -> Any:
        """The plan of the mechanism alone, without its companions."""
        return self.inner.mechanism_plan

    @property
    def average(self) -> Floats:
        """The published weights: a view."""
        return self.inner.average

    @property
    def link(self) -> Link:
        """Link from a score to a probability."""
        return self.inner.link

    @property
    def noise(self) -> Floats | None:
        """Standard deviation of the noise in each published weight."""
        return self.inner.noise

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that `link` uses."""
        return self.inner.prior

    @property
    def auc(self) -> Mapping[str, Any] | None:
        """The private AUC."""
        return self.inner.auc

    @property
    def gate(self) -> Any:
        """The release of gradients, with its exact sums."""
        return self.inner.gate  # type: ignore[attr-defined]

    @property
    def released(self) -> Floats:
        """The last release of the wrapped state."""
        return self.inner.released

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records included."""
        return self.inner.buffer_records

    def centre(self, mean: float) -> None:
        """Set the released mean of the labels, before the first record."""
        self.inner.centre(mean)

    def begin_with(self, cross: Floats) -> None:
        """Compute a first model from the warm-up's covariances of labels and features."""
        self.inner.begin_with(cross)

    def begin_at(self, weights: Floats) -> None:
        """Begin at the weights of a start model."""
        self.inner.begin_at(weights)


@dataclass(frozen=True)
class Link:
    """`p = sigmoid(slope score + offset)`, a function of releases and public parameters.

    Parameters
    ----------
    slope
        Above 0: probabilities rank as scores do.
    offset
        Log-odds of the score 0.
    """

    slope: float = 1.0
    offset: float = 0.0

    def one(self, score: float) -> float:
        """Probability at a score."""
        return float(numerics.sigmoid(self.slope * score + self.offset))

    def many(self, scores: Floats) -> Floats:
        """Probabilities of scores (n,): the same bits."""
        out = np.empty(len(scores))
        numerics.sigmoid_many(self.slope * scores + self.offset, out)
        return out


def _log_odds(rate: float) -> float:
    # The kernels' logarithm: that of a library may differ in the last digits between processors.
    return float(numerics.log_positive(rate) - numerics.log_positive(1.0 - rate))


def rate_link(rate: float) -> Link:
    """Link of a learner that knows the share of positives and has no weights yet."""
    return Link(1.0, 0.0 if rate == 0.5 else _log_odds(rate))


def unit_link(weights: Floats, spread: float) -> Link:
    """Link without calibration: scores in units of their standard deviation, no offset.

    Parameters
    ----------
    weights
        Released weights (d,).
    spread
        Root mean squared length of a record; all d coordinates count for an equal share.
    """
    length = math.sqrt(float(vectors.dot(weights, weights)))
    return Link(math.sqrt(len(weights)) / (spread * length)) if length > 0.0 else Link()


def normal_link(along: float, variance: float, rate: float) -> Link:
    """Link by linear discriminant analysis: the scores of both classes are normal with one variance.

    Parameters
    ----------
    along
        Covariance of the score with the label (1 for a positive, 0 for a negative), corrected for noise.
    variance
        Variance of the score over all records, above 0.
    rate
        Share of positives, in (0, 1).

    Notes
    -----
    The class means differ by `along / (rate (1 - rate))`; the variance within a class is the rest of the
    variance. Scores have mean 0, since records are centred. The slope is at least `kernels.LEAST` log-odds
    in a standard deviation, so that noise never reverses the ranking.
    """
    odds = rate * (1.0 - rate)
    gap = max(along, 0.0) / odds
    within = max(variance - odds * gap * gap, 1e-3 * variance)
    slope = float(max(gap / within, platt.LEAST / math.sqrt(variance)))
    # Of the class means (1 - rate) gap and -rate gap the middle has the log-odds of the rate.
    return Link(slope, float(_log_odds(rate) - slope * (0.5 - rate) * gap))
