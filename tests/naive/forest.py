"""The forest, a record at a time, with objects for nodes."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

from naive.boosted_trees import Boosted, Text, Value, boosted_importances, boosted_parts
from naive.losses import loss_slope
from naive.numerics import sigmoid, uniform
from naive.platt import Link

CUTS = (0, 31, 127, 10**9)


def forest_cut(expert: int, nodes: int) -> int:
    """How many nodes of a tree an expert sees."""
    return min(CUTS[expert], nodes)


def places(trees: int, nodes: int, cap: int, texts: int) -> list[int]:
    """Where the sections begin, and where the last ends."""
    lengths = [
        44 + 19 * cap,  # scalars and columns
        8 * texts,  # a weight and its sum for each expert
        sum(2 * trees * min(cut, nodes) for cut in CUTS),
        trees,
        2 * trees * nodes,
        5 * trees,
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def kept_places(trees: int, nodes: int, cap: int) -> list[int]:
    """Where the parts of what is kept between two explanations begin, and where the last ends."""
    lengths = [
        2,  # records and boosted trees that the means are of
        sum(trees * min(cut, nodes) for cut in CUTS),
        50 * 127,  # means of the boosted trees
        cap,  # the record
        50,  # its leaves in the boosted trees
        trees * 49,  # depth and nodes of its paths
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def pair_places(trees: int, cap: int) -> list[int]:
    """Where what pairs need begins, and where it ends."""
    lengths = [
        32,  # the link
        2,  # how many came, of each class
        2 * cap,  # the record and its standardised values
        4 * trees + 5,  # its leaves and scores
        2 * 32 * cap,  # 32 records of each class
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


ETA = (0.1, 0.2, 0.02, 0.1)
GAMMA = (0.99, 0.95, 1.0, 1.0)


@dataclass
class Weight:
    """A weight, and the sum of squares that sets its steps."""

    w: float = 0.0
    total: float = 0.0

    def step(self, h: float, scale: float, eta: float, gamma: float) -> None:
        self.total = gamma * self.total + h * h
        self.w -= eta * scale * h / math.sqrt(self.total + 0.1)


@dataclass
class Node:
    """A leaf, which keeps a value of a column, or with children one that parts."""

    number: int = 0
    column: int = 0
    kept: Value = None
    visits: int = 0
    mark: float = 0.0
    by_text: bool = False
    children: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=lambda: [Weight() for _ in range(4)])

    def child(self, x: list[Value]) -> Node:
        value = x[self.column]
        if self.by_text:
            hashed = value.hashed if isinstance(value, Text) else 0
            return self.children[uniform(hashed, int(self.mark), 7) < 0.5]
        return self.children[isinstance(value, Text) or (value is not None and value > self.mark)]

    def seen_by(self, k: int) -> list[Node]:
        """The children, as far as an expert sees them."""
        return self.children if self.children and self.children[1].number < CUTS[k] else []


class Forest:
    """All of `auc.Forest` on the columns of a row."""

    def __init__(
        self,
        trees: int,
        nodes: int,
        seed: int,
        squared: bool = False,
        guided: bool = False,
        brisk: bool = False,
    ) -> None:
        self.most, self.seed, self.squared, self.guided = nodes, seed, squared, guided
        self.brisk = brisk
        self.gains: list[list[tuple[int, float]]] = []  # of each record, by column
        self.base = 0.0
        self.roots = [Node() for _ in range(trees)]
        self.used = [1] * trees
        self.linear: dict[tuple[int, int], Weight] = {}  # by expert and column
        self.texts: dict[tuple[int, int], Weight] = {}  # by expert and place
        self.past: dict[int, list[float]] = {}
        self.scales: dict[int, tuple[float, float]] = {}  # mean and standard deviation of a column
        self.draws = self.records = 0
        self.stack, self.steps = [0.2] * 5, [0.0] * 5
        self.losses: list[list[float]] = [[] for _ in range(5)]
        self.boosted: Boosted | None = None  # until the columns are known
        self.best, self.resets = 5.0, 0
        self.labels: list[float] = []

    def draw(self) -> float:
        self.draws += 1
        return uniform(self.seed, self.draws - 1, 0)

    def worth(self, j: int) -> float:
        """What a decision by a column has gained in the mean; each record counts .999 of the next."""
        scores = [
            (0.999**age, gain)
            for age, decisions in enumerate(self.gains[::-1])
            for column, gain in decisions
            if column == j
        ]
        return max(sum(w * gain for w, gain in scores), 0.0) / (1.0 + sum(w for w, _ in scores))

    def column(self, d: int) -> int:
        """Any; in a guided forest for one half of the draws in proportion to the worth."""
        u = self.draw()
        if not self.guided:
            return int(u * d)
        if u < 0.5:
            return int(2.0 * u * d)
        u = 2.0 * u - 1.0
        worths = [self.worth(j) for j in range(d)]
        if sum(worths) == 0.0:
            return int(u * d)
        left = u * sum(worths)
        for j, worth in enumerate(worths):
            left -= worth
            if left < 0.0:
                return j
        return max(j for j, worth in enumerate(worths) if worth > 0.0)

    def gain(self, x: list[Value], y: float) -> None:
        """What the decisions of one tree about a record have gained."""
        apart, self.base = y - self.base, self.base + 0.01 * (y - self.base)
        node, decisions = self.roots[self.records % len(self.roots)], []
        while node.children:
            to = node.child(x)
            other = next(child for child in node.children if child is not to)
            decisions.append((node.column, (to.weights[3].w - other.weights[3].w) * apart))
            node = to
        self.gains.append(decisions)

    def z(self, j: int, value: float) -> float:
        mean, deviation = self.scales.get(j, (0.0, 0.0))
        if deviation > 0.0:
            return min(max((value - mean) / deviation, -4.0), 4.0)
        return 1.0 if 5 <= len(self.past.get(j, [])) < self.records else 0.0

    def keep(self, j: int, value: float) -> None:
        past = self.past.setdefault(j, [])
        past.append(value)
        mean = sum(past) / len(past)
        self.scales[j] = (mean, math.sqrt(sum((v - mean) ** 2 for v in past) / len(past)))

    def terms(self, k: int, x: list[Value]) -> list[tuple[Weight, float] | None]:
        """What expert k multiplies, of each column."""
        out: list[tuple[Weight, float] | None] = []
        for j, value in enumerate(x):
            if isinstance(value, Text):
                place = int(uniform(value.hashed, j, 11) * 4096)
                out.append((self.texts.setdefault((k, place), Weight()), 1.0))
            elif value is not None:
                out.append((self.linear.setdefault((k, j), Weight()), self.z(j, value)))
            else:
                out.append(None)
        return out

    def leaf(self, k: int, root: Node, x: list[Value]) -> Node:
        node = root
        while node.seen_by(k):
            node = node.child(x)
        return node

    def scores(self, x: list[Value]) -> list[float]:
        """Of each expert."""
        out = []
        for k in range(4):
            score = sum(term[0].w * term[1] for term in self.terms(k, x) if term is not None)
            if k > 0:
                score += sum(self.leaf(k, root, x).weights[k].w for root in self.roots)
            out.append(score)
        return [*out, self.boosted.score(x) if self.boosted is not None else 0.0]

    def score(self, x: list[Value]) -> float:
        """As others are told it: in the unit of the labels, if the loss is squared."""
        mean, deviation = self.of_labels() if self.squared else (0.0, 1.0)
        return mean + deviation * self.stacked(x)

    def of_labels(self) -> tuple[float, float]:
        """Their mean and deviation."""
        mean = sum(self.labels) / max(len(self.labels), 1)
        return mean, math.sqrt(sum((y - mean) ** 2 for y in self.labels) / max(len(self.labels), 1))

    def stacked(self, x: list[Value]) -> float:
        return sum(a * s for a, s in zip(self.stack, self.scores(x), strict=True))

    def slope(self, score: float, y: float) -> float:
        return score - y if self.squared else sigmoid(score) - y

    def loss(self, score: float, y: float) -> float:
        if self.squared:
            return min(0.5 * (score - y) ** 2, 5.0)
        return min(math.log1p(math.exp(-abs(score))) + max(score if y < 0.5 else -score, 0.0), 5.0)

    def learn(self, x: list[Value], label: float) -> None:
        if self.boosted is None:
            self.boosted = Boosted(len(x), self.seed, self.squared)
        scores, score = self.scores(x), self.stacked(x)
        y = float(label > 0.0)
        if self.squared:
            self.labels.append(label)
            mean, deviation = self.of_labels()
            y = (label - mean) / deviation if deviation > 0.0 else 0.0
        q = self.slope(score, y)
        moved = self.brisk and self.resets > 0 and len(self.losses[2]) < 4000
        for k in range(4):
            g = self.slope(scores[k], y)
            for term in self.terms(k, x):
                if term is not None:
                    term[0].step(g * term[1], 1.0, ETA[k], GAMMA[k])
            if k > 0:
                eta = 0.15 if moved and k == 3 else ETA[k]
                for root in self.roots:
                    self.leaf(k, root, x).weights[k].step(g, 50.0 / len(self.roots), eta, GAMMA[k])
        for k in range(5):
            pace = 0.1 if moved else 0.03
            r = q * scores[k]
            self.steps[k] = 0.999 * self.steps[k] + r * r
            self.stack[k] = max(0.0, self.stack[k] - pace * r / math.sqrt(self.steps[k] + 1.0))
        for k in range(5):
            self.losses[k].append(self.loss(scores[k], y))
        self.judge()
        self.gain(x, y)
        self.boost(x, y)
        self.visit_all(x)

    def boost(self, x: list[Value], y: float) -> None:
        """Let a record into the ring of the boosted trees."""
        assert self.boosted is not None
        self.boosted.learn(x, y, self.boosted.score(x), self.boosted.leaves(x))

    def visit_all(self, x: list[Value]) -> None:
        """Let a record that is learned into the moments and the trees."""
        deepest = [self.leaf(3, root, x) for root in self.roots]
        for j, value in enumerate(x):
            if isinstance(value, float):
                self.keep(j, value)
        for t, leaf in enumerate(deepest):
            if self.used[t] + 2 <= self.most:
                self.visit(t, leaf, x)
        self.records += 1
        past = self.records - 2 * self.most
        if past >= 0 and past % 1000 == 0:
            t = past // 1000 % len(self.roots)
            self.roots[t], self.used[t] = Node(), 1

    def average(self, k: int) -> float:
        """Of the losses, each .995 of the next."""
        weights = [0.995**age for age in range(len(self.losses[k]))]
        return sum(w * v for w, v in zip(weights, self.losses[k][::-1], strict=True)) / sum(weights)

    def judge(self) -> None:
        assert self.boosted is not None
        self.boosted.since += 1
        if max(self.boosted.since, len(self.losses[2])) < 200:
            return
        averages = [self.average(k) for k in range(5)]
        if self.boosted.judge(averages.pop(), min(averages[k] for k in (0, 1, 3))):
            self.losses[4] = []
        if len(self.losses[2]) < 200:
            return
        if averages[2] > min(averages) + 0.1 and averages[2] > self.best + 0.1:
            for name in (self.linear, self.texts):
                for k, place in list(name):
                    if k == 2:
                        name[k, place] = Weight()
            for root in self.roots:
                self.forget(root)
            self.losses[2], self.best = [], 5.0
            self.resets += 1
        else:
            self.best = min(self.best, averages[2])

    def forget(self, node: Node) -> None:
        node.weights[2] = Weight()
        for child in node.children:
            self.forget(child)

    def visit(self, t: int, leaf: Node, x: list[Value]) -> None:
        leaf.visits += 1
        if leaf.visits == 1:
            leaf.column = self.column(len(x))
            leaf.kept = x[leaf.column]
        elif leaf.visits < 20:
            if self.draw() * leaf.visits < 1.0:
                leaf.kept = x[leaf.column]
        elif not self.split(leaf, x):
            leaf.column = self.column(len(x))
            leaf.kept = x[leaf.column]
        else:
            for number in (self.used[t], self.used[t] + 1):
                child = Node(number)
                child.weights = [Weight(each.w, 0.5 * each.total) for each in leaf.weights]
                leaf.children.append(child)
            self.used[t] += 2

    def split(self, leaf: Node, x: list[Value]) -> bool:
        one, two = leaf.kept, x[leaf.column]
        if one == two:
            return False
        if isinstance(one, Text) or isinstance(two, Text):
            hashes = [v.hashed if isinstance(v, Text) else 0 for v in (one, two)]
            for _ in range(8):
                salt = int(self.draw() * 2**20)
                coins = [uniform(h, salt, 7) < 0.5 for h in hashes]
                if coins[0] != coins[1]:
                    leaf.by_text, leaf.mark = True, float(salt)
                    return True
            return False
        if one is None or two is None:
            leaf.mark = -math.inf
            return True
        low, high = min(one, two), max(one, two)
        leaf.mark = low + self.draw() * (high - low)
        return True


class PairForest(Forest):
    """`auc.Forest` with a pair loss."""

    def __init__(self, trees: int, nodes: int, seed: int, loss: str, guided: bool = False) -> None:
        super().__init__(trees, nodes, seed, guided=guided)
        self.pair_loss = loss
        self.came: dict[bool, list[list[Value]]] = {True: [], False: []}
        self.link = Link()

    def learn(self, x: list[Value], label: float) -> None:
        if self.boosted is None:
            self.boosted = Boosted(len(x), self.seed)
        y = label > 0.0
        self.link.learn(self.stacked(x), 1.0 if y else -1.0)
        last = self.came[not y][-32:]
        if last:
            # The places of those that are kept are taken in turn.
            turn = (len(self.came[not y]) - len(last)) % 32
            i = int(self.draw() * len(last))
            partner = last[(i - turn) % 32]
            differences = self.fit_pair(x, partner, 1.0 if y else -1.0)
            for k in range(5):
                self.losses[k].append(self.loss(differences[k], float(y)))
            self.judge()
        self.gain(x, float(y))
        self.boost(x, float(y))
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
        for k in range(5):
            r = q * apart[k]
            self.steps[k] = 0.999 * self.steps[k] + r * r
            self.stack[k] = max(0.0, self.stack[k] - 0.03 * r / (self.steps[k] + 1.0) ** 0.5)
        return apart


def below(node: Node, k: int) -> float:
    """The weight of an expert, or the mean of the children that it sees."""
    children = node.seen_by(k)
    return sum(below(child, k) for child in children) / 2 if children else node.weights[k].w


def parts(forest: Forest, x: list[Value]) -> list[float]:
    """Of each column, and of none."""
    out = [0.0] * (len(x) + 1)
    if forest.boosted is not None:
        out = boosted_parts(forest.boosted, x, forest.stack[4])
    for k, a in enumerate(forest.stack[:4]):
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


def largest(parts: list[float], count: int) -> list[tuple[int, float]]:
    """Columns and parts: those of the largest absolute value, of equal ones the first, and none of 0."""
    ranked = sorted(enumerate(parts), key=lambda pair: (-abs(pair[1]), pair[0]))
    return [(j, part) for j, part in ranked[:count] if part != 0.0]


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

    if forest.boosted is not None:
        out = boosted_importances(forest.boosted, forest.stack[4])
    for k, a in enumerate(forest.stack[:4]):
        for j in range(d):
            if (k, j) in forest.linear:
                out[j] += a * abs(forest.linear[k, j].w)
        for root in forest.roots if k > 0 else []:
            add(root, k, a)
    return out


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
            other.stack, other.steps = [0.2] * 5, [0.0] * 5
            other.losses, other.best, other.resets = [[] for _ in range(5)], 5.0, 0
            if other.boosted is not None:
                other.boosted.fresh()
                other.boosted.draws = 0
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
