"""Several classes: a forest for each that tells it from all others, which drew what the first one drew."""

from __future__ import annotations

import copy

from naive.forest import Forest, Node, Value, Weight


class Classes:
    """All of `auc.MulticlassForest` on the columns of a row; classes are numbered as they come."""

    def __init__(self, trees: int, nodes: int, seed: int) -> None:
        self.forests = [Forest(trees, nodes, seed)]
        self.known = 0

    def admit(self) -> None:
        """One more class: a copy of the trees, in which no leaf has learned."""
        if self.known > 0:
            other = copy.deepcopy(self.forests[0])
            other.linear, other.texts = {}, {}
            other.stack, other.steps = [0.25] * 4, [0.0] * 4
            other.losses, other.best, other.resets = [[] for _ in range(4)], 5.0, 0
            for root in other.roots:
                ignorant(root)
            self.forests.append(other)
        self.known += 1

    def learn(self, x: list[Value], which: int) -> None:
        for number, forest in enumerate(self.forests):
            forest.learn(x, 1.0 if number == which else -1.0)

    def scores(self, x: list[Value]) -> list[float]:
        return [forest.score(x) for forest in self.forests]


def ignorant(node: Node) -> None:
    """Nothing is learned in a node, nor below."""
    node.weights = [Weight() for _ in range(4)]
    for child in node.children:
        ignorant(child)
