"""Integers of Laplace's law and of staircases, word by word, with Python's integers of any size."""

from __future__ import annotations

from collections.abc import Iterator


class UsedUp(Exception):
    """There are no words left."""


def _below(words: Iterator[int], bound: int) -> int:
    mask = (1 << (bound - 1).bit_length()) - 1
    for word in words:
        if word & mask < bound:
            return word & mask
    raise UsedUp


def _falls(words: Iterator[int], above: int, below: int) -> bool:
    """True with probability exp(-above / below): by whether a series of coins is odd."""
    k = 1
    while _below(words, below * k) < above:
        k += 1
    return k % 2 == 1


def _one(words: Iterator[int], width: int, inner: int, scale: int) -> int:
    while True:
        within = _below(words, width) if width > 1 else 0
        kept = within < inner or _falls(words, 1, scale)
        low = _below(words, scale)
        if not _falls(words, low, scale):
            continue
        steps = low
        while _falls(words, 1, 1):
            steps += scale
        if not kept:
            continue
        size = steps * width + within
        negative = _below(words, 2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def laplace_integers(
    words: list[int], width: int, inner: int, scale: int, count: int
) -> tuple[list[int], int]:
    """As many as the words are enough for, and how many words these took."""
    out: list[int] = []
    used = 0
    while len(out) < count:
        taken = 0

        def counted(start: int = used) -> Iterator[int]:
            nonlocal taken
            for word in words[start:]:
                taken += 1
                yield word

        try:
            out.append(_one(counted(), width, inner, scale))
        except UsedUp:
            break
        used += taken
    return out, used
