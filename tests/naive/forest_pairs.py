"""Leaves fitted to pairs, each pair written down as the two records that it is."""

from __future__ import annotations

from naive.forest import ETA, GAMMA, Forest, Text, Value, Weight
from naive.link import Link
from naive.losses import loss_slope


class PairForest(Forest):
    """`auc.Forest` with a pair loss."""

    def __init__(self, trees: int, nodes: int, seed: int, loss: str, guided: bool = False) -> None:
        super().__init__(trees, nodes, seed, guided=guided)
        self.pair_loss = loss
        self.came: dict[bool, list[list[Value]]] = {True: [], False: []}
        self.link = Link()

    def learn(self, x: list[Value], label: float) -> None:
        y = label > 0.0
        self.link.learn(self.stacked(x), 1.0 if y else -1.0)
        last = self.came[not y][-32:]
        if last:
            # The places of those that are kept are taken in turn.
            turn = (len(self.came[not y]) - len(last)) % 32
            i = int(self.draw() * len(last))
            partner = last[(i - turn) % 32]
            differences = self.fit_pair(x, partner, 1.0 if y else -1.0)
            for k in range(4):
                self.losses[k].append(self.loss(differences[k], float(y)))
            self.judge()
        self.gain(x, float(y))
        self.came[y].append(x)
        self.visit_all(x)

    def fit_pair(self, x: list[Value], partner: list[Value], sign: float) -> list[float]:
        """Step along the loss of a pair; the differences of the scores before that."""
        apart = [one - two for one, two in zip(self.scores(x), self.scores(partner), strict=True)]
        q = sign * loss_slope(
            self.pair_loss, sign * sum(a * s for a, s in zip(self.stack, apart, strict=True))
        )
        for k in range(4):
            g = sign * loss_slope(self.pair_loss, sign * apart[k])
            for j, (one, two) in enumerate(zip(x, partner, strict=True)):
                numbers = [self.z(j, v) if isinstance(v, float) else 0.0 for v in (one, two)]
                if isinstance(one, float) or isinstance(two, float):
                    weight = self.linear.setdefault((k, j), Weight())
                    weight.step(g * (numbers[0] - numbers[1]), 1.0, ETA[k], GAMMA[k])
                terms = self.terms(k, x)[j], self.terms(k, partner)[j]
                if one != two:
                    for value, term, h in zip((one, two), terms, (g, -g), strict=True):
                        if isinstance(value, Text) and term is not None:
                            term[0].step(h, 1.0, ETA[k], GAMMA[k])
            if k > 0:
                for root in self.roots:
                    leaves = self.leaf(k, root, x), self.leaf(k, root, partner)
                    if leaves[0] is not leaves[1]:
                        for leaf, h in zip(leaves, (g, -g), strict=True):
                            leaf.weights[k].step(h, 50.0 / len(self.roots), ETA[k], GAMMA[k])
            r = q * apart[k]
            self.steps[k] = 0.999 * self.steps[k] + r * r
            self.stack[k] = max(0.0, self.stack[k] - 0.03 * r / (self.steps[k] + 1.0) ** 0.5)
        return apart
