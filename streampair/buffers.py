"""Which past records a new one is paired with.

These objects say only the policy; the rows themselves live in the learner's state, so that learners never
share them and a snapshot has them all. All but `FullHistory` use constant memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from river import base

from streampair.errors import ConfigError
from streampair.kernels import buffers

__all__ = ["Buffer", "ClassReservoir", "FIFO", "FullHistory", "Reservoir"]  # noqa: RUF022 (plain sorting, as everywhere)


class Buffer(base.Base):
    """Base of the buffer policies: parameters only, no state.

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


def _check_size(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1_000_000:
        raise ConfigError(f"the buffer size is {size!r}", fix="give an integer from 1 to 1000000")


@dataclass(frozen=True)
class ClassReservoir(Buffer):
    """A uniform sample of the past positives, and one of the past negatives.

    Where one label is rare, a common sample holds few records of it; here each class has `size` rows of its
    own, filled and replaced by Algorithm R of Vitter (1985) over the records of that class. A new record is
    paired with the sample of the other class, and the sum is weighted as if it were with all of that class:
    an estimate, without bias, of the gradient that `FullHistory` gives. For two classes only, and not for
    private learners: which slot a record takes depends on its label (Zhao et al. 2011 keep such buffers).

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
        _check_size(self.size)

    @property
    def code(self) -> int:
        return buffers.CLASSES


@dataclass(frozen=True)
class FIFO(Buffer):
    """The last `size` records, oldest out first.

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
        _check_size(self.size)

    @property
    def code(self) -> int:
        return buffers.FIFO


@dataclass(frozen=True)
class FullHistory(Buffer):
    """Every past record.

    A step takes time O(d t) after t records, and memory grows by d numbers a record, in blocks: nothing is
    copied when it grows. A lane writes the whole history with every commit. With the least-squares loss only
    counts, means and second moments are kept, which give the same gradient in O(d^2) time and memory whatever
    t is; `dtype` and `max_records` have no effect then. (Not for metrics.)

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
    """A uniform sample of all past records.

    Parameters
    ----------
    size
        Number of rows, at least 1.
    replacement
        False: a sample without replacement (Algorithm R of Vitter 1985): record t is kept with probability
        ``size / t`` and evicts a uniformly drawn row. True: every row is replaced by record t independently
        with probability ``1 / t`` (RS-x of Kar et al. 2013), so a row may occur many times; at t = 1 it fills
        every row. The learner's `seed` decides the coins.

    Raises
    ------
    ConfigError
        If the size is not a positive integer.

    References
    ----------
    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Examples
    --------
    >>> from streampair import buffers
    >>> buffers.Reservoir(100)
    Reservoir(size=100, replacement=False)
    """

    size: int = 200
    replacement: bool = False

    def __post_init__(self) -> None:
        _check_size(self.size)

    @property
    def code(self) -> int:
        return buffers.RESERVOIR_REPLACE if self.replacement else buffers.RESERVOIR
