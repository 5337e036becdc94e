"""Public coins: hashes of names under a seed, and the frequencies that are drawn from them."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.errors import ConfigError
from streampair.records import features as _features

__all__ = ["checked_seed", "checked_size", "digest", "frequencies"]

Array = NDArray[np.float64]


def digest(seed: int, token: str, bits: int) -> int:
    """A whole number below 2**bits that depends on the seed and the token."""
    salt = seed.to_bytes(16, "little", signed=True)
    text = token.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, salt=salt).digest(), "little") >> (64 - bits)


def checked_seed(seed: Any) -> int:
    """The seed, if it is one.

    Raises
    ------
    ConfigError
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**127) <= seed < 2**127:
        raise ConfigError(
            f"seed is {seed!r}",
            fix="give an integer: the coins are public, and must be the same after every start",
        )
    return seed


def checked_size(name: str, value: Any) -> int:
    """The number of columns that a parameter of this name asks for.

    Raises
    ------
    ConfigError
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise ConfigError(f"{name} is {value!r}", fix="give an integer from 1 to 1000000")
    return value


@functools.lru_cache(maxsize=16)
def frequencies(
    seed: int, pairs: int, gamma: float, columns: tuple[Hashable, ...]
) -> tuple[tuple[Hashable, ...], Array]:
    """Columns in their order, and the frequency vectors (pairs, columns) for the features of that name."""
    names = tuple(_features.in_order(columns))
    out = np.empty((pairs, len(names)))
    column = np.empty(pairs)
    for j, name in enumerate(names):
        kernels.normals_from_seed(digest(seed, f"{type(name).__name__}:{name}", 62), column)
        out[:, j] = math.sqrt(2.0 * gamma) * column
    return names, out
