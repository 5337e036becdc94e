"""Texts among numbers: a hash of the text, carried by a NaN, so that a row of floats holds both."""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.records.features import as_number

__all__ = ["as_code", "code_or_number", "which"]

Array = NDArray[np.float64]

_QUIET = 0x7FF8_0000_0000_0000
_PAYLOAD = (1 << 51) - 1
_LONG = 100


def as_code(text: str) -> float:
    """The NaN that stands for a text: the same in every process, and another for nearly every other text.

    Two of n texts share one with a probability of about n^2 / 2^51. A NaN that carries nothing is no text.
    """
    # Long texts are not remembered: a thousand of them could be much.
    return _code.__wrapped__(text) if len(text) > _LONG else _code(text)


def code_or_number(cell: Any) -> float:
    """`as_code` of a text, and `as_number` of anything else."""
    return as_code(cell) if isinstance(cell, str) else as_number(cell)


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    bits = _QUIET | (1 + (int.from_bytes(digest, "big") >> 14))
    code: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return code


def which(rows: Array) -> NDArray[np.bool_]:
    """Which cells of an array in C order are texts."""
    found: NDArray[np.bool_] = np.isnan(rows) & ((rows.view(np.int64) & _PAYLOAD) != 0)
    return found
