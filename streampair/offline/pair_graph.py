"""The pair graph of individuals, and kappa: the number of pairs that reveal a relation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from streampair.errors import ConfigError
from streampair.kernels import pair_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["PairGraph", "ring_pairs"]

# Families of paths that are tried for the exact kappa.
_MOST_FAMILIES = 100_000


class PairGraph:
    """Individuals are nodes, and labelled pairs of them are edges.

    Whoever knows the other pairs may infer a relation from them: along paths between the two individuals (a
    friend of a friend), and, of features, around cycles. `kappa_prime` bounds how many pairs such a reader
    has to be without; noise that hides that many hides the relation.

    Parameters
    ----------
    pairs
        Two different individuals each, (m, 2): whole numbers from 0 on. Each pair once, in either order.
    individuals
        How many there are; None: one more than the largest number.

    Attributes
    ----------
    pairs
        As given, (m, 2).
    individuals
        How many.

    Raises
    ------
    ConfigError
        If there is no pair, one of an individual with itself, one twice, or one of nobody.

    Notes
    -----
    Everything but `kappa` takes O(individuals + pairs).

    References
    ----------
    Li, J., Pan, Y., Sui, Y. and Tsang, I. W. (2020). Secure metric learning via differential pairwise
    privacy. Section V and Appendices A and B.

    Examples
    --------
    A triangle, and somebody who knows one of its corners:

    >>> from streampair.offline import PairGraph
    >>> graph = PairGraph([(0, 1), (1, 2), (2, 0), (2, 3)])
    >>> graph.kappa(), graph.kappa_prime, graph.kappa_intransitive, graph.max_degree
    (2, 2, 1, 3)
    """

    def __init__(self, pairs: Any, individuals: int | None = None) -> None:
        array = np.asarray(pairs)
        if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
            if array.size == 0:
                raise ConfigError("the graph is empty: there is no pair", fix="give at least one pair")
            raise ConfigError(
                f"pairs have shape {array.shape} and type {array.dtype}",
                fix="give whole numbers, (m, 2): the rows of X that each pair is of",
            )
        if len(array) == 0:
            raise ConfigError("the graph is empty: there is no pair", fix="give at least one pair")
        low, high = int(array.min()), int(array.max())
        n = high + 1 if individuals is None else int(individuals)
        if low < 0 or high >= n:
            raise ConfigError(
                f"a pair is of individual {low if low < 0 else high}, and there are {n}",
                fix="number individuals by their rows of X, from 0 on",
            )
        ends = np.sort(array.astype(np.int64), axis=1)
        if (ends[:, 0] == ends[:, 1]).any():
            raise ConfigError("an individual is in a pair with itself", fix="leave such pairs out")
        keys = np.sort(ends[:, 0] * n + ends[:, 1])
        if (keys[1:] == keys[:-1]).any():
            raise ConfigError("a pair is given twice", fix="give each pair once, with one label")
        self.pairs: Ints = np.ascontiguousarray(array, dtype=np.int64)
        self.individuals = n

    @cached_property
    def _rows(self) -> tuple[Ints, Ints]:
        """Neighbours in compressed rows."""
        n, m = self.individuals, len(self.pairs)
        both = np.concatenate([self.pairs, self.pairs[:, ::-1]])
        rows = scipy.sparse.coo_array(
            (np.ones(2 * m, dtype=np.int8), (both[:, 0], both[:, 1])), shape=(n, n)
        ).tocsr()
        return rows.indptr.astype(np.int64), rows.indices.astype(np.int64)

    @cached_property
    def degrees(self) -> Ints:
        """Pairs that each individual is in, (individuals,)."""
        return np.diff(self._rows[0])

    @property
    def max_degree(self) -> int:
        """Largest number of pairs of an individual: the sensitivity of node DP."""
        return int(self.degrees.max())

    @cached_property
    def components(self) -> int:
        """Number of connected components, without individuals that have no pair."""
        starts, ends = self._rows
        n = self.individuals
        graph = scipy.sparse.csr_array((np.ones(len(ends), dtype=np.int8), ends, starts), shape=(n, n))
        pieces, _ = scipy.sparse.csgraph.connected_components(graph, directed=False)
        return int(pieces) - int((self.degrees == 0).sum())

    @cached_property
    def _walked(self) -> tuple[Ints, Ints]:
        """Pairs that close a cycle at each node (degree less components around it); and the bridges."""
        pieces = np.zeros(self.individuals, dtype=np.int64)
        bridges = pair_graph.graph_pieces(*self._rows, pieces)
        return self.degrees - pieces, bridges

    @property
    def kappa_prime(self) -> int:
        """An upper bound of kappa, in one walk (Eq. 15; docs/privacy, Lemma 77).

        ``1 + max over s of the sum over blocks B with s of (deg_B(s) - 1)``: 1 for a tree, the largest degree
        where nobody holds two parts together.
        """
        return 1 + int(self._walked[0].max())

    @property
    def kappa_intransitive(self) -> int:
        """Kappa, exactly (Lemma 78), if relations cannot be inferred along paths (Appendix B)."""
        closing, bridges = self._walked
        most = int(np.partition(closing, -2)[-2])
        if len(bridges):
            most = max(most, 1 + int(closing[bridges].min(axis=1).max()))
        return most

    def kappa(self) -> int:
        """Kappa exactly (Eq. 5), for small graphs: the number of pairs that must be unknown to an adversary.

        The greatest ``|P_st| + min(c_s, c_t)`` over individuals s and t, and over all ways to choose the most
        paths P_st from s to t without a common pair: c_s is how many of the other pairs have to go until s is
        in no cycle. The paper leaves the choice of the paths open.

        Raises
        ------
        ConfigError
            If the graph is not small: there are too many ways.
        """
        n = self.individuals
        if n > 1000:
            raise ConfigError(
                f"kappa of {n} individuals is too much work", fix="use kappa_prime, which bounds it"
            )
        edges = [(int(a), int(b)) for a, b in self.pairs]
        closing = self._walked[0]
        piece = scipy.sparse.csgraph.connected_components(self._csr(n), directed=False)[1]
        # Most promising first: what Lemma 77 allows a pair of nodes.
        couples = sorted(
            (
                (min(int(closing[s]), int(closing[t])) + int(piece[s] == piece[t]), s, t)
                for s in range(n)
                for t in range(s + 1, n)
            ),
            reverse=True,
        )
        best, left = 0, _MOST_FAMILIES
        for most, s, t in couples:
            if most <= best:
                break
            for used in _families(edges, s, t, self._flow(s, t)):
                left -= 1
                if left < 0:
                    raise ConfigError(
                        "kappa of this graph is too much work", fix="use kappa_prime, which bounds it"
                    )
                rest = [edge for index, edge in enumerate(edges) if index not in used[0]]
                best = max(best, used[1] + min(_closing(rest, s), _closing(rest, t)))
                if best >= most:
                    break
        return best

    def _csr(self, n: int) -> Any:
        starts, ends = self._rows
        return scipy.sparse.csr_matrix(
            (np.ones(len(ends), dtype=np.int32), ends.astype(np.int32), starts.astype(np.int32)), shape=(n, n)
        )

    def _flow(self, s: int, t: int) -> int:
        """Largest number of edge-disjoint paths from s to t (Menger)."""
        return int(scipy.sparse.csgraph.maximum_flow(self._csr(self.individuals), s, t).flow_value)


def _families(
    edges: list[tuple[int, int]], s: int, t: int, size: int
) -> Iterator[tuple[frozenset[int], int]]:
    """Each set of edges that is `size` paths from s to t without a common edge, and the size."""
    near: dict[int, list[tuple[int, int]]] = {}
    for edge, (a, b) in enumerate(edges):
        near.setdefault(a, []).append((edge, b))
        near.setdefault(b, []).append((edge, a))

    def paths(v: int, used: frozenset[int], been: frozenset[int], after: int) -> Iterator[frozenset[int]]:
        for edge, w in near.get(v, ()):
            if edge in used or w in been or (v == s and edge <= after):
                continue
            if w == t:
                yield used | {edge}
            else:
                yield from paths(w, used | {edge}, been | {w}, after)

    def families(used: frozenset[int], left: int, after: int) -> Iterator[frozenset[int]]:
        if left == 0:
            yield used
            return
        for more in paths(s, used, frozenset({s}), after):
            first = next(edge for edge, _ in near[s] if edge in more and edge not in used)
            yield from families(more, left - 1, first)

    for used in families(frozenset(), size, -1):
        yield used, size


def _closing(edges: list[tuple[int, int]], s: int) -> int:
    """Number of edges to remove until s is in no cycle: its degree less the components around it."""
    around = [b if a == s else a for a, b in edges if s in (a, b)]
    near: dict[int, list[int]] = {}
    for a, b in edges:
        if s not in (a, b):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    seen: set[int] = set()
    pieces = 0
    for v in around:
        if v in seen:
            continue
        pieces += 1
        stack = [v]
        seen.add(v)
        while stack:
            for w in near.get(stack.pop(), ()):
                if w not in seen:
                    seen.add(w)
                    stack.append(w)
    return len(around) - pieces


def ring_pairs(individuals: int, each: int, order: Ints) -> Ints:
    """Data-independent pairs: each individual with the next `each` in a ring of the given order.

    Nobody is in more than ``2 each`` pairs, so kappa_prime is at most that, and the graph is connected.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.offline.pair_graph import PairGraph, ring_pairs
    >>> pairs = ring_pairs(100, 2, np.random.default_rng(1).permutation(100))
    >>> len(pairs), PairGraph(pairs).kappa_prime
    (200, 4)
    """
    nodes = np.arange(individuals)
    steps = range(1, min(each, individuals // 2) + 1)
    places = np.concatenate([np.stack([nodes, (nodes + step) % individuals], axis=1) for step in steps])
    found: Ints = np.unique(np.sort(order[places], axis=1), axis=0)
    return found
