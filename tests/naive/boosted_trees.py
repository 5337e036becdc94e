"""The boosted trees of a forest, with lists and objects, and sums in the order of the kernel's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from naive.numerics import uniform
from streampair.kernels.numerics import sigmoid  # its last bits decide which of two equal splits is taken

TREES, DEPTH, BINS = 50, 6, 64


class Text(NamedTuple):
    """A text, by its hash."""

    hashed: int


Value = float | Text | None
Sums = list[float]  # of gradients and hessians


def ring_rows(d: int) -> int:
    """How many records are kept: 4,000, fewer where there are many columns."""
    return next((rows for rows in (4000, 2000, 1000) if rows * d <= 4_000_000), 500)


def ring_places(width: int, rows: int) -> list[int]:
    """Where the parts of a ring begin, and where the last ends."""
    lengths = [
        10,  # scalars
        64 * width,  # edges and codes
        width * rows,
        rows,  # labels
        math.ceil(width * (rows + 1) / 8),  # bins, and those of the record at hand: bytes
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def boosted_places(width: int, rows: int) -> list[int]:
    """Where the parts of a block begin, and where the last ends."""
    lengths = [
        10,  # scalars
        64 * TREES,  # marks
        64 * TREES // 4,  # columns, of 16 bits
        64 * TREES,  # leaves
        64 * TREES,  # their sums
        width,  # gains
        rows,  # scores
        TREES,  # leaves of the record at hand
        math.ceil(TREES * rows / 8),  # those of the records, bytes
    ]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]


def boosted_cost(n: int, d: int) -> float:
    """Units of work of a tree."""
    columns = min(d, 10)
    return 3.6 * n * columns + 6.0 * n + 0.7 * min(n / 20, 63.0) * columns * 64


def bin_of(edges: list[float], value: float) -> int:
    """1 + the number of edges below a number."""
    return 1 + sum(edge < value for edge in edges)


def edges_of(values: list[float]) -> list[float]:
    """Edges between ascending numbers: between all if few differ, or at 48 quantiles."""
    n, few = len(values), len(set(values)) <= 48
    edges: list[float] = []
    for q in range(1, n if few else 48):
        low, high = values[(q if few else q * n // 48) - 1], values[q if few else q * n // 48]
        edge = 0.5 * (low + high) if 0.5 * (low + high) < high else low
        if not (few and low == high) and edge < values[-1] and edge not in edges:
            edges.append(edge)
    return edges


@dataclass
class Column:
    """The edges of numbers, or the codes of texts: a column that had a text has only these."""

    edges: list[float] = field(default_factory=list)
    codes: list[Value] | None = None

    def bin(self, value: Value) -> int:
        if value is None:
            return 0
        if self.codes is None:
            assert not isinstance(value, Text)
            return bin_of(self.edges, value)
        if value not in self.codes and len(self.codes) < 62:
            self.codes.append(value)
        return self.code(value)

    def code(self, value: Value) -> int:
        if value is None or self.codes is None:
            return 0
        return self.codes.index(value) + 1 if value in self.codes else 63


class Part(NamedTuple):
    """How a node splits: by a threshold, or by the bins that go right."""

    column: int
    mark: float | frozenset[int]


@dataclass
class Tree:
    """A complete tree: its nodes, and the weights of its leaves with their sums of squares."""

    parts: dict[int, Part] = field(default_factory=dict)
    values: list[float] = field(default_factory=lambda: [0.0] * 64)
    sums: list[float] = field(default_factory=lambda: [0.0] * 64)


@dataclass
class Record:
    """A record in the ring, with what the trees made of it."""

    values: list[Value]
    label: float
    score: float
    leaves: list[int]
    bins: list[int] = field(default_factory=list)


class Boosted:
    """The ring and the trees of one class; `kept` are the records that it learns from."""

    def __init__(self, d: int, seed: int, squared: bool = False, rows: int = 0) -> None:
        self.d, self.seed, self.squared = d, seed, squared
        self.rows = rows or ring_rows(d)
        self.columns = [Column() for _ in range(d)]
        self.binning, self.column = 0.0, 0
        self.records: list[Record] = []  # of the ring, the oldest first
        self.draws = 0
        self.fresh()

    def fresh(self, kept: int = 0) -> None:
        """Forget all but the newest records."""
        self.kept: list[Record] = self.records[len(self.records) - kept :]
        for record in self.kept:
            record.score, record.leaves = 0.0, [0] * TREES
        self.trees = [Tree() for _ in range(TREES)]
        self.next, self.built, self.bias, self.credit = 0, 0, 0.0, 0.0
        self.gains = [0.0] * self.d
        self.since, self.best = 0, 5.0

    def draw(self) -> float:
        self.draws += 1
        return uniform(self.seed, self.draws - 1, 13)

    # ---- scores

    def leaf(self, tree: Tree, x: list[Value]) -> int:
        node = 0
        while node < 63:
            part, right = tree.parts.get(node), False
            if part is not None and isinstance(part.mark, frozenset):
                right = self.columns[part.column].code(x[part.column]) in part.mark
            elif part is not None:
                value = x[part.column]
                right = value is not None and not isinstance(value, Text) and value > part.mark
            node = 2 * node + 1 + right
        return node - 63

    def leaves(self, x: list[Value]) -> list[int]:
        return [self.leaf(tree, x) for tree in self.trees]

    def score(self, x: list[Value]) -> float:
        score = self.bias
        for tree, leaf in zip(self.trees, self.leaves(x), strict=True):
            score += tree.values[leaf]
        return score

    def slope(self, score: float, target: float) -> float:
        return score - target if self.squared else float(sigmoid(score)) - target

    def step(self, score: float, leaves: list[int], target: float) -> None:
        """AdaGrad steps of the leaves."""
        slope = self.slope(score, target)
        for tree, leaf in zip(self.trees, leaves, strict=True):
            tree.sums[leaf] = 0.999 * tree.sums[leaf] + slope * slope
            tree.values[leaf] -= 0.05 * slope / math.sqrt(tree.sums[leaf] + 1.0)

    def judge(self, mean: float, least: float) -> bool:
        """Begin again where the mean loss is above that of others and its own best, once it was counted."""
        if self.since >= 200 and mean > least + 0.1 and mean > self.best + 0.1:
            self.fresh(min(len(self.kept), 200))
            return True
        if self.since >= 200:
            self.best = min(self.best, mean)
        return False

    # ---- the ring

    def learn(self, x: list[Value], label: float, score: float, leaves: list[int]) -> None:
        """Take a record whose score and leaves were found before it."""
        record = Record(x, label, score, leaves)
        self.step(score, leaves, label)
        for column, value in enumerate(x):
            if isinstance(value, Text) and self.columns[column].codes is None:
                self.columns[column].codes = []
                self.fill(column)
        record.bins = [column.bin(value) for column, value in zip(self.columns, x, strict=True)]
        self.records = [*self.records, record][-self.rows :]
        self.kept = [*self.kept, record][-self.rows :]
        self.bin_due()
        if len(self.kept) >= 50:
            self.credit += 1500.0
            if self.credit >= boosted_cost(len(self.kept), self.d):
                self.credit -= boosted_cost(len(self.kept), self.d)
                self.rebuild()

    def fill(self, column: int) -> None:
        for record in self.records:
            record.bins[column] = self.columns[column].bin(record.values[column])

    def bin(self, column: int) -> None:
        if self.columns[column].codes is None:
            n = len(self.records)
            sample = [self.records[i * n // min(n, 256)].values[column] for i in range(min(n, 256))]
            numbers = sorted(value for value in sample if value is not None and not isinstance(value, Text))
            if numbers:
                self.columns[column].edges = edges_of(numbers)
        self.fill(column)

    def bin_due(self) -> None:
        n = len(self.records)
        if n == 50:
            for column in range(self.d):
                self.bin(column)
        if n >= 50:
            self.binning += min(self.d / n, 1000.0 / (n + 1000.0))
        while self.binning >= 1.0:
            self.binning -= 1.0
            self.column %= self.d
            self.bin(self.column)
            self.column += 1

    # ---- trees

    def chosen(self) -> list[int]:
        """The columns of a tree: half at random, half by what they have gained."""
        if self.d <= 10:
            return list(range(self.d))
        total, columns = sum(self.gains, 0.0), list[int]()
        for place in range(10):
            column = int(self.draw() * self.d)
            if total > 0.0 and place % 2:
                left = self.draw() * total
                for j, gain in enumerate(self.gains):
                    left -= gain
                    if left < 0.0 and gain > 0.0:
                        column = j
                        break
            for other in columns:
                if other == column:
                    column = int(self.draw() * self.d)
            columns.append(column)
        return columns

    def rebuild(self) -> None:
        """Fit the oldest tree to what the others leave."""
        which, tree, slopes = self.next, self.trees[self.next], list[Sums]()
        columns = self.chosen()
        for record in self.kept:
            record.score -= tree.values[record.leaves[which]]
            p = record.score if self.squared else float(sigmoid(record.score))
            slopes.append([p - record.label, 1.0 if self.squared else max(p * (1.0 - p), 1e-6)])
        self.gains = [0.97 * gain for gain in self.gains]
        whole = [0.0, 0.0]
        for g, h in slopes:
            whole = [whole[0] + g, whole[1] + h]
        tree = self.trees[which] = Tree()
        members: dict[int, tuple[list[int], Sums]] = {}  # of the leaves
        everyone = list(range(len(self.kept)))
        counted = self.counted(everyone, slopes, columns) if len(everyone) >= 40 else None
        self.grow(tree, 0, everyone, whole, counted, columns, slopes, members)
        for leaf in range(64):
            records, (g, h) = members.get(63 + leaf, ([], [0.0, 0.0]))
            tree.values[leaf] = -0.1 * g / (h + 1.0)
            for i in records:
                self.kept[i].score += tree.values[leaf]
                self.kept[i].leaves[which] = leaf
        self.next = (which + 1) % TREES
        self.built += 1
        if self.next == 0 or self.built <= 3:
            self.shift()

    def counted(self, records: list[int], slopes: list[Sums], columns: list[int]) -> list[list[Sums]]:
        """Sums by column and bin."""
        sums = [[[0.0, 0.0] for _ in range(BINS)] for _ in columns]
        for i in records:
            for place, column in enumerate(columns):
                cell = sums[place][self.kept[i].bins[column]]
                cell[0] += slopes[i][0]
                cell[1] += slopes[i][1]
        return sums

    def grow(
        self,
        tree: Tree,
        node: int,
        records: list[int],
        total: Sums,
        counted: list[list[Sums]] | None,
        columns: list[int],
        slopes: list[Sums],
        members: dict[int, tuple[list[int], Sums]],
    ) -> None:
        """Split a node and what is below it."""
        if node >= 63:
            members[node] = (records, total)
            return
        found = None if counted is None else self.split(counted, columns, total, len(records))
        if found is None:
            self.grow(tree, 2 * node + 1, records, total, None, columns, slopes, members)
            return
        place, mark, cut, left, gain = found
        column = columns[place]
        tree.parts[node] = Part(column, mark)
        self.gains[column] += gain
        sides: tuple[list[int], list[int]] = ([], [])
        for i in records:
            q = self.kept[i].bins[column]
            sides[q in mark if isinstance(mark, frozenset) else q > cut].append(i)
        small = 0 if len(sides[0]) <= len(sides[1]) else 1
        below: list[list[list[Sums]] | None] = [None, None]
        if node < 31 and max(len(sides[0]), len(sides[1])) >= 40:
            assert counted is not None
            few = self.counted(sides[small], slopes, columns)
            many = [
                [[w[0] - f[0], w[1] - f[1]] for w, f in zip(row, few_row, strict=True)]
                for row, few_row in zip(counted, few, strict=True)
            ]
            for side, sums in ((small, few), (1 - small, many)):
                below[side] = sums if len(sides[side]) >= 40 else None
        totals = (left, [total[0] - left[0], total[1] - left[1]])
        for side in range(2):
            child = 2 * node + 1 + side
            self.grow(tree, child, sides[side], totals[side], below[side], columns, slopes, members)

    def split(
        self, counted: list[list[Sums]], columns: list[int], total: Sums, n: int
    ) -> tuple[int, float | frozenset[int], int, Sums, float] | None:
        """Column, mark, last bin to the left, sums to the left and gain of the best split, if any."""
        g, h = total
        least, base, best = 20 * h / n, g * g / (h + 1.0), 1e-3
        found: tuple[int, float | frozenset[int], int, Sums, float] | None = None
        for place, column in enumerate(columns):
            texts, sums = self.columns[column].codes is not None, counted[place]
            ridge, order = 1.0, list(range(len(self.columns[column].edges) + 1))
            if texts:
                ridge = 11.0
                filled = [q for q in range(BINS) if sums[q][1] > 1e-6]
                order = sorted(
                    (q for q in filled if sums[q][1] >= least),
                    key=lambda q: (sums[q][0] / (sums[q][1] + 10.0), q),
                )
                if len(order) == len(filled):
                    order = order[:-1]
            left_g = left_h = 0.0
            for count, q in enumerate(order, start=1):
                left_g, left_h = left_g + sums[q][0], left_h + sums[q][1]
                if not texts and h - left_h < 0.999 * least:
                    break
                if left_h >= 0.999 * least and h - left_h >= 0.999 * least:
                    right_g, right_h = g - left_g, h - left_h
                    gain = left_g * left_g / (left_h + ridge) + right_g * right_g / (right_h + ridge) - base
                    if gain > best:
                        mark: float | frozenset[int] = frozenset(range(BINS)) - set(order[:count])
                        if not texts:
                            mark = self.columns[column].edges[q - 1] if q > 0 else -math.inf
                        best, found = gain, (place, mark, q, [left_g, left_h], gain)
        return found

    def shift(self) -> None:
        """A Newton step of the bias."""
        g = h = 0.0
        for record in self.kept:
            p = record.score if self.squared else float(sigmoid(record.score))
            g, h = g + (p - record.label), h + (1.0 if self.squared else p * (1.0 - p))
        shift = min(max(-g / (h + 1.0), -3.0), 3.0)
        self.bias += shift
        for record in self.kept:
            record.score += shift


def means(tree: Tree) -> list[float]:
    """Value of each node: the mean of its children, or the left one's where all go left."""
    out = [0.0] * 63 + tree.values
    for node in range(62, -1, -1):
        left, right = out[2 * node + 1], out[2 * node + 2]
        out[node] = 0.5 * (left + right) if node in tree.parts else left
    return out


def boosted_parts(boosted: Boosted, x: list[Value], share: float) -> list[float]:
    """A share of the parts of a score: of each column, and of none."""
    out = [0.0] * boosted.d + [share * boosted.bias]
    for tree in boosted.trees:
        values, node = means(tree), 63 + boosted.leaf(tree, x)
        out[-1] += share * values[0]
        while node > 0:
            parent = (node - 1) // 2
            if parent in tree.parts:
                out[tree.parts[parent].column] += share * (values[node] - values[parent])
            node = parent
    return out


def boosted_importances(boosted: Boosted, share: float) -> list[float]:
    """A share of the importance of each column: what its splits change, halved at each split above."""
    out = [0.0] * boosted.d
    for tree in boosted.trees:
        values, weight = means(tree), {0: share}
        for node in range(63):
            if node not in tree.parts:
                weight[2 * node + 1], weight[2 * node + 2] = weight[node], 0.0
                continue
            left, right = values[2 * node + 1], values[2 * node + 2]
            out[tree.parts[node].column] += weight[node] * abs(right - left)
            weight[2 * node + 1] = weight[2 * node + 2] = 0.5 * weight[node]
    return out
