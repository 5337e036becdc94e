"""Where a graph falls apart, by leaving out each node and each edge in turn; and gradients of its pairs."""

from __future__ import annotations

import math


def components(nodes: set[int], edges: list[tuple[int, int]]) -> list[set[int]]:
    """Nodes that are connected, piece by piece."""
    left, found = set(nodes), []
    while left:
        piece = {left.pop()}
        grown = True
        while grown:
            more = {b for a, b in edges if a in piece} | {a for a, b in edges if b in piece}
            grown = not (more & nodes) <= piece
            piece |= more & nodes
        left -= piece
        found.append(piece)
    return found


def graph_pieces(n: int, edges: list[tuple[int, int]]) -> tuple[list[int], set[tuple[int, int]]]:
    """For each node the components that its neighbours are in without it; and the bridges."""
    pieces = []
    for v in range(n):
        near = {b for a, b in edges if a == v} | {a for a, b in edges if b == v}
        rest = components(set(range(n)) - {v}, [e for e in edges if v not in e])
        pieces.append(sum(bool(piece & near) for piece in rest))
    whole = len(components(set(range(n)), edges))
    bridges = {
        (min(e), max(e))
        for e in edges
        if len(components(set(range(n)), [other for other in edges if other != e])) > whole
    }
    return pieces, bridges


def contrastive_sum(
    pairs: list[tuple[list[float], list[float], bool]],
    w: list[list[float]],
    margin: float,
    clip: float,
    norm: str,
    by_row: bool,
) -> tuple[list[list[float]], list[float]]:
    """The sum of the clipped gradients of pairs (x, x', alike), and the largest l1 norm of each row."""
    size = {
        "l1": lambda values: sum(abs(v) for v in values),
        "l2": lambda values: math.hypot(*values),
        "max": lambda values: max(abs(v) for v in values),
    }[norm]
    total = [[0.0] * len(w[0]) for _ in w]
    peaks = [0.0] * len(w)
    for x, other, alike in pairs:
        u = [a - b for a, b in zip(x, other, strict=True)]
        image = [sum(a * b for a, b in zip(row, u, strict=True)) for row in w]
        distance = math.hypot(*image)
        if alike:
            slope = 1.0
        elif distance == 0.0 or distance >= margin:
            slope = 0.0
        else:
            slope = 1.0 - margin / distance
        gradient = [[slope * a * b for b in u] for a in image]
        whole = size([v for row in gradient for v in row])
        for a, row in enumerate(gradient):
            most = size(row) if by_row else whole
            clipped = [v * min(1.0, clip / most) if most > 0.0 else v for v in row]
            total[a] = [t + v for t, v in zip(total[a], clipped, strict=True)]
            peaks[a] = max(peaks[a], sum(abs(v) for v in clipped))
    return total, peaks
