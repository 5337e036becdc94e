"""Base classes of the mechanisms: plans and their files, states, releases of noisy sums, wrappers."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from streampair import losses
from streampair.errors import ConfigError
from streampair.kernels import numerics, platt, vectors
from streampair.privacy.correlated import BLT, Toeplitz
from streampair.privacy.noise import ChainedNoise
from streampair.privacy.user_level import EntityLimit
from streampair.records.design import Design

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.buffer import BufferPlan
    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]


__all__ = [
    "ONE_RECORD",
    "Companion",
    "ExtendedChain",
    "Link",
    "Mechanism",
    "MechanismState",
    "NoisySums",
    "Plan",
    "Relation",
    "Release",
    "ScoreRequest",
    "Settings",
    "StateWrapper",
    "near",
    "normal_link",
    "rate_link",
    "strategy_from",
    "under",
    "unit_link",
    "written",
]

T = TypeVar("T")

# Of two fits on different machines; anything further apart is another plan, or damage.
_TOLERANCE = 1e-6


def near(name: str, saved: Any, computed: float) -> float:
    """A number that was written down, if it can be the one that is fitted here.

    Raises
    ------
    ValueError
        If it is none, or too far away.
    """
    if not isinstance(saved, float) or not (
        saved == computed or math.isclose(saved, computed, rel_tol=_TOLERANCE, abs_tol=0.0)
    ):
        raise ValueError(f"{name} of the plan is {saved!r}, and these parameters give {computed!r}")
    return saved


def written(plan: Any) -> dict[str, Any]:
    """The fitted numbers of a plan, as floats, texts and lists."""
    out: dict[str, Any] = {}
    for name in plan.FITTED:
        value = getattr(plan, name)
        if isinstance(value, BLT):
            out[name] = {"kind": "blt", "omega": value.omega.tolist(), "decay": value.decay.tolist()}
        else:
            out[name] = {"kind": "square_root"} if isinstance(value, Toeplitz) else float(value)
    return out


def under(plan: T, numbers: Mapping[str, Any] | None) -> T:
    """The plan under exactly the numbers that were written down; None: under its own.

    Raises
    ------
    ValueError
        If they are not those of such a plan.
    """
    if numbers is None:
        return plan
    out = copy.copy(plan)
    for name, computed in written(plan).items():
        if isinstance(computed, float):
            object.__setattr__(out, name, near(name, numbers[name], computed))
    if written(out) != numbers:
        raise ValueError("the plan has other numbers")
    return out


def strategy_from(saved: Mapping[str, Any], horizon: int | None) -> Toeplitz | BLT:
    """The matrix C that was written down.

    Raises
    ------
    ValueError
        If it cannot be one.
    """
    if saved["kind"] == "blt":
        return BLT.of(saved["omega"], saved["decay"], horizon)
    if saved["kind"] != "square_root" or horizon is None:
        raise ValueError(f"noise strategy {saved['kind']!r}")
    return Toeplitz.square_root(horizon)


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
        """What a second view of `window` consecutive slots adds to mu^2, at most (docs/privacy 8)."""


class ScoreRequest(NamedTuple):
    """Rows (n, d) to be scored, one before each slot, and where their scores (n,) go.

    A row that is learned may have been blanked, the one that is scored has not.
    """

    rows: Floats
    scores: Floats


class MechanismState(abc.ABC):
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
        """The private AUC as the releases tell it (docs/privacy 10.8); None: none is asked for."""
        return None

    @property
    def noise(self) -> Floats | None:
        """Standard deviation of what noise adds to each published weight, (d,), about: from the releases.

        None before there are weights, and where later steps answer to the noise by as much as the records
        say, so that nobody knows how much of it is left (docs/privacy, Lemma 89).
        """
        return None

    @property
    def slots_until_release(self) -> int:
        """Number of next slots before each of which `average` is that of now; at least 1."""
        return 1

    @property
    @abc.abstractmethod
    def releases(self) -> int:
        """Models released so far, each of which has cost something."""

    @property
    @abc.abstractmethod
    def released(self) -> Floats:
        """What has left through the gate last, before any post-processing: for the audit."""

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
    def releases_nothing(self) -> bool:
        """Whether `accumulate` takes the next slot: it is not the first, and nothing leaves with it."""
        return False

    def accumulate(self, design: Design) -> None:
        """`learn` of the raw record in the scratch of the design, whose label becomes NaN if it is null."""
        raise NotImplementedError

    def take(
        self,
        rows: Floats,
        labels: Floats,
        stream: Stream,
        records: Sequence[bytes],
        request: ScoreRequest | None,
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
        request
            Rows to score, each under the weights published before its slot; None: no scores.
        """
        chain = stream if isinstance(stream, ChainedNoise) else None
        if chain is None and request is None:
            self.learn(rows, labels, stream)
            return
        for i in range(len(rows)):
            row, label = rows[i : i + 1], labels[i : i + 1]
            if request is not None:
                request.scores[i] = vectors.dot(self.average, request.rows[i])
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


# Of a release, what the card tells as it is.
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

# Error of a normal times its std, in units of that std: above the mean error that is measured.
_NORMAL_ERROR = 1e-15


def check_overflow(cells: Any, what: str) -> None:
    """Refuse noise whose rounded sums might not fit 64-bit integers; `cells`: how many steps of the grid."""
    if not np.max(cells, initial=0.0) < _MOST_CELLS:
        raise ConfigError(
            f"the {what} would be {float(np.max(cells)):.3g} steps of the grid, beyond what 64-bit sums can "
            "hold",
            fix="raise epsilon: nothing can be learned under this much noise",
        )


def power_of_two_below(value: Any) -> Any:
    """The largest power of two of at most `value`, elementwise."""
    return np.ldexp(1.0, np.frexp(value)[1] - 1)


@dataclass(frozen=True)
class Relation:
    """Which streams are neighbours: they agree in all metadata, and differ in the content of ...

    Parameters
    ----------
    entity
        ... all records of one entity, which are learned from as often as this says; None: of one record.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.base import Relation
    >>> Relation().unit
    'the content of one record (its feature values and its label)'
    """

    entity: EntityLimit | None = None

    @property
    def unit(self) -> str:
        """Who or what is protected, in words."""
        if self.entity is None:
            return "the content of one record (its feature values and its label)"
        return (
            f"the contents of all records of one entity: at most {self.entity.records} are learned from, at "
            f"least {self.entity.separation} slots apart"
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
    """One kind of release of a run, and what it is worth: a line of the mechanism card.

    Parameters
    ----------
    name
        What is released.
    domain
        What a record is to the mechanism.
    relation
        Which streams are neighbours.
    lemma
        Where the sensitivity is proved, in docs/privacy.
    sensitivity
        l2 sensitivity to replacing a record (or an entity's records): of one release where they are
        independent, of all of them together where their noise is correlated.
    sigma
        Noise std, a coordinate, of the independent normals behind it.
    replace
        mu that replacing costs over all planned releases of the kind.
    blank
        mu that blanking costs.
    releases
        How many are planned; None: no end.
    coordinates, grid
        Of a release, and the step that it is rounded to.

    Notes
    -----
    `floating_point` is what floating point may add to delta, by Lemma 21 of docs/privacy: the normal is
    computed with an error e, which moves a cell of the grid with a probability of 2 e / grid, in one of
    `coordinates` times `releases` cells. It is stated, not charged. The guarantee is computational: it
    holds as far as the cipher's output cannot be told from random bits.
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

    CIPHER: ClassVar[str] = (
        "AES in counter mode, keyed by the operating system or the noise key: the guarantee holds as far as "
        "its output cannot be told from random bits (computational differential privacy)"
    )
    #: Releases that the share of floating point is stated for where there is no end.
    OPEN: ClassVar[int] = 100_000

    @property
    def mu2(self) -> float:
        """What replacing takes of mu^2."""
        return self.replace**2

    def floating_point(self, epsilon: float) -> float:
        """What the errors of floating point may add to delta, at most about."""
        count = self.OPEN if self.releases is None else self.releases
        flips = 2.0 * _NORMAL_ERROR * self.sigma / self.grid if count else 0.0
        return min((1.0 + math.exp(min(epsilon, 700.0))) * count * self.coordinates * flips, 1.0)

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
        What leaves is worth this.
    shape
        Of the sums.
    grid
        Step of each coordinate, in units of the records; None: that of the release.

    Notes
    -----
    Nothing that decides about a model may look at exact sums: a label mean, a ridge, a scale taken from them
    would be a second release that nobody has noised. So they are not an attribute. What else can be had of
    them is as secret as the data: `cells`, which noise is keyed by, and the state of a snapshot.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.base import NoisySums, Relation, Release
    >>> kind = Release("a sum", "x in [-1, 1]", Relation(), "", 2.0, 4.0, 0.5, 0.25, 1, 1, 0.5)
    >>> sums = NoisySums(kind, (1,))
    >>> sums.add(lambda cells: cells.__iadd__(3))
    >>> sums.privatize(np.array([0.7]))
    array([2.])
    """

    __slots__ = ("__cells", "__grid", "release")

    def __init__(self, release: Release, shape: tuple[int, ...], grid: Floats | None = None) -> None:
        self.release = release
        self.__grid: Any = release.grid if grid is None else grid
        self.__cells = np.zeros(shape, dtype=np.int64)

    def add(self, kernel: Callable[..., object], *records: Any) -> None:
        """Let a kernel add records: it gets them, and the sums behind them."""
        kernel(*records, self.__cells)

    def absorb(self, other: NoisySums, times: int = 1) -> None:
        """Add another's sums, over other records, so many times."""
        self.__cells += times * other.__cells

    def privatize(self, noise: Floats) -> Floats:
        """The sums under noise, in units of the records: rounded, added in integers, times the grid.

        Parameters
        ----------
        noise
            As large as the sums, in units of the records.
        """
        grid = self.__grid
        return np.asarray(grid * (self.__cells + np.floor(noise / grid + 0.5).astype(np.int64)))

    def clear(self) -> None:
        """Begin a new block."""
        self.__cells[...] = 0

    def cells(self) -> bytes:
        """What noise will be added to, as bytes: for the chain that keys the noise."""
        return self.__cells.tobytes()

    def to_state(self) -> NDArray[np.int64]:
        """For a snapshot: as secret as the data."""
        return self.__cells.copy()

    def load_state(self, saved: Any) -> None:
        """Continue from `to_state`.

        Raises
        ------
        ValueError
            If they are of another shape.
        """
        if saved.shape != self.__cells.shape:
            raise ValueError("sums of another shape")
        self.__cells[...] = saved


@dataclass(frozen=True)
class Settings:
    """What a private learner promises: its parameters, checked, with the defaults filled in.

    Parameters
    ----------
    mechanism
        How it is kept.
    companions
        What is released beside the mechanism, the innermost first.
    epsilon, delta, mu
        Budget of one record, in both currencies.
    horizon, warmup
        Slots altogether, None for no end, and the first of them that only the warm-up's release is for.
    loss, form, pairs, two_classes
        The pair loss, how two labels make a margin, what the kernels know the pairs by, and whether labels
        are +1 and -1.
    buffer, clip, radius, tangent
        The buffer, the clip of a pair, the radius of the weights, and which ball pairs are clipped into.
    bounds
        Declared (low, high) by feature.
    forks, window
        Second views of so many slots that the budget has room for.
    entity
        Whose records are protected together; None: one record.
    features, dim
        How many features, and coordinates of the weights; None until they are known.
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
        """Which streams are neighbours."""
        return Relation(self.entity)

    @property
    def composes(self) -> bool:
        """Whether the warm-up and the learning may concern the same entity, so that they share the budget."""
        return self.entity is not None and self.warmup > 0

    @property
    def mu_learning(self) -> float:
        """mu of what is learned after the warm-up."""
        return self.mu * math.sqrt(0.5) if self.composes else self.mu

    def mu_warmup(self, fork_mu2: float | None) -> float:
        """mu of one release of the warm-up; a fork of the window that it is in makes another.

        A record can be in the prefix of one view and be learned in another, where the order changed. So with
        forks a release of the warm-up costs neither more than the learning nor more than a second view of a
        window of it, and the plan of the learning has room for every mixture.

        Parameters
        ----------
        fork_mu2
            What such a second view costs, at most; None: not known yet.
        """
        if self.composes or not self.forks or fork_mu2 is None:
            return self.mu_learning / math.sqrt(1.0 + self.forks)
        return math.sqrt(min(fork_mu2, self.mu_learning**2 - self.forks * fork_mu2))

    @property
    def warmup_records(self) -> int:
        """How many records of one entity the warm-up can hold (docs/privacy 4.4)."""
        return 1 if self.entity is None else self.entity.within(self.warmup)

    @property
    def learning(self) -> int | None:
        """Slots that are learned from, after the warm-up."""
        return None if self.horizon is None else self.horizon - self.warmup

    @property
    def learning_records(self) -> int:
        """How many records of one entity are learned from, at most, after the warm-up."""
        if self.entity is None:
            return 1
        return self.entity.records if self.learning is None else self.entity.within(self.learning)

    @property
    def calibrated(self) -> bool:
        """Whether probabilities know the share of positives."""
        return self.mechanism.label_mean or any(companion.calibrated for companion in self.companions)

    def start(self, *, seed: int | None, saved: Mapping[str, Any] | None) -> MechanismState:
        """A run of the mechanism, inside those of its companions: parameters as of `Mechanism.start`."""
        if not self.companions:
            return self.mechanism.start(self, seed=seed, saved=saved)
        *others, outer = self.companions

        def start_inner(settings: Settings, saved: Mapping[str, Any] | None) -> MechanismState:
            return replace(settings, companions=tuple(others)).start(seed=seed, saved=saved)

        return outer.start(self, saved, start_inner)

    def describe(self) -> str:
        """What is done, for the report."""
        words = [self.mechanism.describe(self), *(companion.describe() for companion in self.companions)]
        return " ".join(filter(None, words))

    def notes(self, run: MechanismState) -> list[str]:
        """What the report has to say besides; `run`: what `start` has made."""
        notes: list[str] = []
        for companion in reversed(self.companions):
            assert isinstance(run, StateWrapper)
            notes = [*companion.notes(run), *notes]
            run = run.inner
        return [*self.mechanism.notes(self, run), *notes]

    def warmup_words(self) -> str:
        """What the warm-up does, for the report; empty without one."""
        if not self.warmup:
            return ""
        return (
            f" The first {self.warmup} records are used for one release of means and variances only, the "
            "later ones for learning only, so each has "
            + ("half of mu^2." if self.composes else "the whole budget (parallel composition).")
        )


@dataclass(frozen=True)
class Mechanism(abc.ABC):
    """A way to learn under noise: stateless, equal to its copies, and asked by a learner for everything.

    A subclass is a module of its own: its domain, relation, lemma, plan, calibration, run, and words.
    """

    #: Whether the buffer must bound how often a record is used.
    bounded_uses: ClassVar[bool] = True
    #: Radius of the weights without and with a warm-up.
    radii: ClassVar[tuple[float, float]] = (3.0, 30.0)
    #: Whether the warm-up releases the mean of the labels too.
    label_mean: ClassVar[bool] = False
    #: Whether it also releases how each feature goes with the labels, for a first model.
    label_cross: ClassVar[bool] = False
    #: Whether the partner of a record is made of releases, so that there is no buffer.
    released_partner: ClassVar[bool] = False

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        """What `warmup=None` means; None: by the horizon. `features`: how many, once they are known."""
        return None

    @property
    def default_clip(self) -> float:
        """What `clip=None` means."""
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
        """A run, without a record.

        Parameters
        ----------
        settings
            What is promised, with the number of features.
        seed
            Of what the buffer draws; None takes one from the operating system.
        saved
            What was fitted for the run that this one continues (`fitted.written`): it is taken as it is.
        """

    def design(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> Design:
        """From a record to the vector that the published weights multiply."""
        return Design(names, bounds)

    @abc.abstractmethod
    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""

    def notes(self, settings: Settings, run: MechanismState) -> list[str]:
        """What the report has to say besides."""
        return []


@dataclass(frozen=True)
class Companion(abc.ABC):
    """What is released beside a mechanism, for a share of the learning's mu^2: stateless, as a mechanism."""

    #: Whether probabilities know the share of positives by it.
    calibrated: ClassVar[bool] = False

    @abc.abstractmethod
    def start(
        self,
        settings: Settings,
        saved: Mapping[str, Any] | None,
        start_inner: Callable[[Settings, Mapping[str, Any] | None], MechanismState],
    ) -> StateWrapper:
        """A run around that of the mechanism.

        Parameters
        ----------
        settings
            What is promised, of both.
        saved
            What was fitted for the run that this one continues; None: nothing.
        start_inner
            Makes the inner run, of settings with the rest of the budget, and of what was fitted for it.
        """

    def describe(self) -> str:
        """What is done, for the report; empty: nothing is released."""
        return ""

    def notes(self, run: Any) -> list[str]:
        """What the report has to say besides; `run`: what `start` has made."""
        return []


class ExtendedChain:
    """A noise chain that also hashes `more` at each step."""

    def __init__(self, chain: ChainedNoise, more: bytes) -> None:
        self._chain, self._more = chain, more

    def advance(self, values: bytes) -> None:
        self._chain.advance(values + self._more)

    def take(self, count: int) -> Floats:
        return self._chain.take(count)

    def words(self, count: int) -> Any:
        return self._chain.words(count)


class StateWrapper(MechanismState):
    """A mechanism state that adds a release to those of `inner`.

    Parameters
    ----------
    run
        What learns.
    """

    inner: MechanismState

    def __init__(self, run: MechanismState) -> None:
        self.inner = run
        self.steps = run.steps
        self.spread, self.cap, self.secret_iterate = run.spread, run.cap, run.secret_iterate

    @property
    def average(self) -> Floats:
        """The published weights: a view."""
        return self.inner.average

    @property
    def link(self) -> Link:
        """From a score to a probability."""
        return self.inner.link

    @property
    def noise(self) -> Floats | None:
        """Standard deviation of what noise adds to each published weight."""
        return self.inner.noise

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that `link` counts with."""
        return self.inner.prior

    @property
    def auc(self) -> Mapping[str, Any] | None:
        """The private AUC."""
        return self.inner.auc

    @property
    def gate(self) -> Any:
        """Through which gradients leave."""
        return self.inner.gate  # type: ignore[attr-defined]

    @property
    def released(self) -> Floats:
        """What has left through the gate of what learns, last."""
        return self.inner.released

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too."""
        return self.inner.buffer_records

    def centre(self, mean: float) -> None:
        """Take a released mean of the labels, before the first record."""
        self.inner.centre(mean)

    def begin_with(self, cross: Floats) -> None:
        """Make a first model of what the warm-up has released of labels and features."""
        self.inner.begin_with(cross)

    def learn(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        """Take one slot a row; label NaN makes it a null slot."""
        self.take(rows, labels, stream, (), None)


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
        """Probability of a score."""
        return float(numerics.sigmoid(self.slope * score + self.offset))

    def many(self, scores: Floats) -> Floats:
        """Probabilities of scores (n,): the same bits."""
        out = np.empty(len(scores))
        numerics.sigmoid_many(self.slope * scores + self.offset, out)
        return out


def _log_odds(rate: float) -> float:
    # Our own logarithm: a library's has other last digits elsewhere.
    return float(numerics.log_positive(rate) - numerics.log_positive(1.0 - rate))


def rate_link(rate: float) -> Link:
    """Of a learner that knows the share of positives and has no weights yet."""
    return Link(1.0, _log_odds(rate))


def unit_link(weights: Floats, spread: float) -> Link:
    """Of a learner whose releases do not tell the classes apart: the scores in standard units, no offset.

    Parameters
    ----------
    weights
        Released weights (d,).
    spread
        Root of the mean squared length of a record, which its d coordinates share alike.
    """
    length = math.sqrt(float(vectors.dot(weights, weights)))
    return Link(math.sqrt(len(weights)) / (spread * length)) if length > 0.0 else Link()


def normal_link(along: float, variance: float, rate: float) -> Link:
    """Log-odds where the scores of both classes are normal with one variance.

    Parameters
    ----------
    along
        Covariance of the score with the label (1 for a positive and 0 for a negative), cleared of what noise
        adds to it.
    variance
        Variance of the score over all records, above 0.
    rate
        Share of positives, in (0, 1).

    Notes
    -----
    The class means differ by `along / (rate (1 - rate))`, and the variance within a class is what that leaves
    of the variance. Scores have the mean 0, for records are centred. The slope is at least that of
    `kernels.LEAST` log-odds in a standard deviation: where the noise leaves nothing of the difference, the
    ranking still does not turn.
    """
    odds = rate * (1.0 - rate)
    gap = max(along, 0.0) / odds
    within = max(variance - odds * gap * gap, 1e-3 * variance)
    slope = float(max(gap / within, platt.LEAST / math.sqrt(variance)))
    # Of the class means (1 - rate) gap and -rate gap the middle has the log-odds of the rate.
    return Link(slope, float(_log_odds(rate) - slope * (0.5 - rate) * gap))
