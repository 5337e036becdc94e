"""Where everything is in the state of a forest, counted cell by cell."""

from __future__ import annotations

CUTS = (0, 31, 127, 10**9)


def places(trees: int, nodes: int, cap: int, texts: int) -> list[int]:
    """Where the sections begin, and where the last ends."""
    lengths = [
        38 + 19 * cap,  # scalars and columns
        8 * texts,  # a weight and its sum for each expert
        sum(2 * trees * min(cut, nodes) for cut in CUTS),
        trees,
        2 * trees * nodes,
        5 * trees,
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def pair_places(trees: int, cap: int) -> list[int]:
    """Where what pairs need begins, and where it ends."""
    lengths = [
        32,  # the link
        2,  # how many came, of each class
        2 * cap,  # the record and its standardised values
        4 * trees + 4,  # its leaves and scores
        2 * 32 * cap,  # 32 records of each class
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]
