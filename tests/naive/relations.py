"""Where a graph falls apart, by leaving out each node and each edge in turn."""

from __future__ import annotations


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
