"""The parts of a score by feature, and the importances of features, node by node."""

from __future__ import annotations

from naive.forest import Forest, Node, Value


def below(node: Node, k: int) -> float:
    """The weight of an expert, or the mean of the children that it sees."""
    children = node.seen_by(k)
    return sum(below(child, k) for child in children) / 2 if children else node.weights[k].w


def parts(forest: Forest, x: list[Value]) -> list[float]:
    """Of each column, and of none."""
    out = [0.0] * (len(x) + 1)
    for k, a in enumerate(forest.stack):
        for j, term in enumerate(forest.terms(k, x)):
            if term is not None:
                out[j] += a * term[0].w * term[1]
        for root in forest.roots if k > 0 else []:
            node = root
            out[-1] += a * below(root, k)
            while node.seen_by(k):
                child = node.child(x)
                out[node.column] += a * (below(child, k) - below(node, k))
                node = child
    if forest.squared:
        mean, deviation = forest.of_labels()
        return [deviation * part for part in out[:-1]] + [mean + deviation * out[-1]]
    return out


def importances(forest: Forest, d: int) -> list[float]:
    """Of each column: its linear weights, and what its splits change, halved at each level."""
    out = [0.0] * d

    def add(node: Node, k: int, share: float) -> None:
        children = node.seen_by(k)
        if children:
            low, high = (below(child, k) for child in children)
            out[node.column] += share * abs(high - low)
            for child in children:
                add(child, k, 0.5 * share)

    for k, a in enumerate(forest.stack):
        for j in range(d):
            if (k, j) in forest.linear:
                out[j] += a * abs(forest.linear[k, j].w)
        for root in forest.roots if k > 0 else []:
            add(root, k, a)
    return out
