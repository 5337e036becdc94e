"""Which past records a new one is paired with.

These objects say only the policy; the rows themselves live in the learner's state, so that learners never
share them and a snapshot has them all. `FIFO` and `Reservoir` use constant memory.
"""

from __future__ import annotations

from river import base

from streampair import _kernels
from streampair.errors import ConfigError

__all__ = ["Buffer", "FIFO", "Reservoir"]  # noqa: RUF022 (plain sorting, as everywhere)


class Buffer(base.Base):
    """Base of the buffer policies: parameters only, no state.

    `size` is the number of rows; `code` is the integer by which the compiled kernels know the policy.
    """

    size: int

    @property
    def code(self) -> int:
        """Integer of the policy."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _check_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1_000_000:
        raise ConfigError(f"the buffer size is {size!r}", fix="give an integer from 1 to 1000000")
    return size


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

    def __init__(self, size: int = 1) -> None:
        self.size = _check_size(size)

    @property
    def code(self) -> int:
        return _kernels.FIFO

    def __repr__(self) -> str:
        return f"FIFO(size={self.size})"

    __str__ = __repr__


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

    def __init__(self, size: int = 200, replacement: bool = False) -> None:
        self.size = _check_size(size)
        self.replacement = replacement

    @property
    def code(self) -> int:
        return _kernels.RESERVOIR_REPLACE if self.replacement else _kernels.RESERVOIR

    def __repr__(self) -> str:
        return f"Reservoir(size={self.size}, replacement={self.replacement})"

    __str__ = __repr__
