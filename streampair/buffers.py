"""Buffer policies: which past records a new record is paired with.

A policy has parameters and no state. The records are kept in the learner's state, so that learners never
share them and a snapshot contains them all. All policies but `FullHistory` use constant memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from river import base

from streampair.errors import ConfigError
from streampair.kernels import buffers

__all__ = ["Buffer", "ClassReservoir", "FIFO", "FullHistory", "Reservoir"]  # noqa: RUF022 (plain sorting, as everywhere)


class Buffer(base.Base):
    """Base class of the buffer policies, which have parameters and no state.

    `size` is the largest number of rows (for `ClassReservoir`: of each class); `code` is the integer by which
    the compiled kernels know the policy.
    """

    size: int

    def __str__(self) -> str:
        return repr(self)

    @property
    def code(self) -> int:
        """Integer of the policy."""
        raise NotImplementedError


def _check_count(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise ConfigError(f"{what} is {value!r}", fix="give an integer from 1 to 1000000")


@dataclass(frozen=True)
class ClassReservoir(Buffer):
    """Two reservoirs: a uniform sample of the past positives, and one of the past negatives.

    Each class has its own `size` rows, filled and replaced by Algorithm R of Vitter (1985) over the records
    of that class, so that a rare label is well represented (Zhao et al. 2011). A new record is paired with
    the sample of the other class, and the sum is scaled up to all records of that class: an unbiased estimate
    of the gradient with `FullHistory`. For two classes only. Private learners refuse it, because the row that
    a record takes depends on its label.

    Parameters
    ----------
    size
        Number of rows for each class, at least 1.

    Raises
    ------
    ConfigError
        If the size is not a positive integer.

    References
    ----------
    Zhao, P., Hoi, S. C. H., Jin, R. and Yang, T. (2011). Online AUC maximization. ICML.

    Examples
    --------
    >>> from streampair import buffers
    >>> buffers.ClassReservoir(50)
    ClassReservoir(size=50)
    """

    size: int = 100

    def __post_init__(self) -> None:
        _check_count("the buffer size", self.size)

    @property
    def code(self) -> int:
        return buffers.CLASSES


@dataclass(frozen=True)
class FIFO(Buffer):
    """Sliding window: the last `size` records.

    With ``size=1`` each record is paired with the one before it (Yang et al. 2021, Algorithm 2).

    Parameters
    ----------
    size
        Number of records, at least 1.

    Raises
    ------
    ConfigError
        If the size is not a positive integer.

    Examples
    --------
    >>> from streampair import buffers
    >>> buffers.FIFO(32)
    FIFO(size=32)
    """

    size: int = 1

    def __post_init__(self) -> None:
        _check_count("the buffer size", self.size)

    @property
    def code(self) -> int:
        return buffers.FIFO


@dataclass(frozen=True)
class FullHistory(Buffer):
    """All past records.

    After t records a step takes O(d t) time. Memory grows by d numbers a record, in blocks, without copying.
    A lane writes the whole history with every commit. With the least-squares loss only counts, means and
    second moments are kept: they give the same gradient in O(d^2) time and memory for every t, and `dtype`
    and `max_records` have no effect. (Not for metrics.)

    Parameters
    ----------
    dtype
        Type of the stored features, ``"float64"`` or ``"float32"``. The latter halves the memory; records are
        rounded to it before they are learned, and values beyond 3.4e38 are refused.
    max_records
        Largest number of records; one more raises RecordError.

    Raises
    ------
    ConfigError
        If the type is another, or the number not a positive integer.

    Examples
    --------
    >>> from streampair import buffers
    >>> buffers.FullHistory()
    FullHistory(dtype='float64', max_records=10000000)
    """

    dtype: str = "float64"
    max_records: int = 10_000_000

    def __post_init__(self) -> None:
        if self.dtype not in ("float64", "float32"):
            raise ConfigError(f"dtype is {self.dtype!r}", fix="give 'float64' or 'float32'")
        most = self.max_records
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(f"max_records is {most!r}", fix="give an integer of at least 1")

    @property
    def size(self) -> int:  # type: ignore[override]
        """`max_records`."""
        return self.max_records

    @property
    def single(self) -> bool:
        """Whether features are stored in float32."""
        return self.dtype == "float32"

    @property
    def code(self) -> int:
        return buffers.FULL


@dataclass(frozen=True)
class Reservoir(Buffer):
    """Reservoir: a uniform sample of all past records.

    Parameters
    ----------
    size
        Number of rows, at least 1.
    replacement
        False: a sample without replacement (Algorithm R of Vitter 1985): record t is kept with probability
        ``size / t`` and evicts a uniformly drawn row. True: every row is replaced by record t independently
        with probability ``1 / t`` (RS-x of Kar et al. 2013), so that a record may fill several rows; at t = 1
        it fills all. The random draws are determined by the learner's `seed`. Not for private learners.
    max_uses
        For private learners: number of slots after which a record in it is blanked, which bounds the effect
        of one record. None: `size`; for output perturbation, where the effect of a record decays, never. FIFO
        is better.

    Raises
    ------
    ConfigError
        If the size or `max_uses` is not a positive integer.

    References
    ----------
    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Examples
    --------
    >>> from streampair import buffers
    >>> buffers.Reservoir(100)
    Reservoir(size=100, replacement=False, max_uses=None)
    """

    size: int = 200
    replacement: bool = False
    max_uses: int | None = None

    def __post_init__(self) -> None:
        _check_count("the buffer size", self.size)
        if self.max_uses is not None:
            _check_count("max_uses", self.max_uses)

    @property
    def code(self) -> int:
        return buffers.RESERVOIR_REPLACE if self.replacement else buffers.RESERVOIR
