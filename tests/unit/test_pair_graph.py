"""The graph of pairs against what the paper defines, and the learner's interface and refusals."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import naive
import numpy as np
import pytest
from harness.support import in_one_case
from sklearn.base import clone
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from streampair import offline
from streampair.errors import ConfigError
from streampair.kernels import pair_graph
from streampair.offline.pair_graph import ring_pairs

Edges = list[tuple[int, int]]


def closing(edges: Edges, n: int, s: int) -> int:
    """The least number of edges, wherever, that have to go until s is in no cycle: by trying."""

    def in_a_cycle(left: Edges) -> bool:
        whole = len(naive.components(set(range(n)), left))
        return any(
            len(naive.components(set(range(n)), [o for o in left if o != e])) == whole for e in left if s in e
        )

    for size in range(len(edges) + 1):
        for gone in itertools.combinations(edges, size):
            if not in_a_cycle([e for e in edges if e not in gone]):
                return size
    raise AssertionError


def simple_paths(edges: Edges, s: int, t: int, been: tuple[int, ...] = ()) -> list[frozenset[Any]]:
    found = []
    for e in edges:
        if s in e:
            w = e[0] if e[1] == s else e[1]
            if w == t:
                found.append(frozenset({e}))
            elif w not in been and w != s:
                found += [p | {e} for p in simple_paths(edges, w, t, (*been, s))]
    return found


def ways(edges: Edges, n: int, s: int, t: int) -> list[int]:
    """|P| + min(c_s, c_t) for every choice of the most paths without a common edge (Eq. 5)."""
    paths = simple_paths(edges, s, t)
    for size in range(len(paths), -1, -1):
        values = []
        for family in itertools.combinations(paths, size):
            if sum(map(len, family)) == len(frozenset().union(*family)):
                rest = [e for e in edges if e not in frozenset().union(*family)]
                values.append(size + min(closing(rest, n, s), closing(rest, n, t)))
        if values:
            return values
    raise AssertionError


def small_graphs() -> list[tuple[int, Edges]]:
    rng = np.random.default_rng(1)
    graphs: list[tuple[int, Edges]] = []
    for n, m in [
        (2, 1),
        (3, 2),
        (3, 3),
        (4, 3),
        (4, 4),
        (4, 5),
        (4, 6),
        (5, 4),
        (5, 6),
        (5, 6),
        (5, 7),
        (6, 5),
    ]:
        every = list(itertools.combinations(range(n), 2))
        graphs.append((n, [every[index] for index in sorted(rng.permutation(len(every))[:m])]))
    # Two triangles at one corner; a triangle and one apart; a star.
    graphs.append((5, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)]))
    graphs.append((6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]))
    graphs.append((6, [(0, index) for index in range(1, 6)]))
    return graphs


@pytest.mark.parametrize(("n", "edges"), small_graphs(), ids=str)
def test_kappa_is_the_papers_and_kappa_prime_bounds_it(n: int, edges: Edges) -> None:
    """docs/privacy, Lemma 77: whichever paths are chosen."""
    graph = offline.PairGraph(edges, n)
    exact = max(max(ways(edges, n, s, t)) for s, t in itertools.combinations(range(n), 2))
    assert graph.kappa() == exact <= graph.kappa_prime <= max(graph.max_degree, 1)
    nearest = max(closing(edges, n, s) for s in range(n)) + 1
    assert graph.kappa_prime == nearest  # 1 + the sum over blocks, which is the least cut


@pytest.mark.parametrize(("n", "edges"), small_graphs(), ids=str)
def test_kappa_of_intransitive_relations_is_the_papers(n: int, edges: Edges) -> None:
    """docs/privacy, Lemma 78; and a mutant that forgets the pair itself is caught by the star."""
    most = 0
    for s, t in itertools.combinations(range(n), 2):
        rest = [e for e in edges if e != (s, t)]
        most = max(most, (len(rest) < len(edges)) + min(closing(rest, n, s), closing(rest, n, t)))
    assert offline.PairGraph(edges, n).kappa_intransitive == most


def test_kappa_of_known_graphs() -> None:
    star = offline.PairGraph([(0, leaf) for leaf in range(1, 9)])
    assert (star.kappa(), star.kappa_prime, star.max_degree, star.components) == (1, 1, 8, 1)
    full = offline.PairGraph(list(itertools.combinations(range(9), 2)))
    assert (full.kappa(), full.kappa_prime) == (8, 8)
    apart = offline.PairGraph([(0, 1), (2, 3)], 6)
    assert (apart.components, apart.degrees.tolist()) == (2, [1, 1, 1, 1, 0, 0])
    # Half of a ring of even length is met from both sides.
    for n, each in itertools.product(range(2, 9), range(1, 6)):
        ring = offline.PairGraph(ring_pairs(n, each, np.random.default_rng(n).permutation(n)), n)
        assert ring.components == 1
        assert ring.max_degree <= min(2 * each, n - 1)


def test_a_large_graph_is_walked_and_a_hard_one_refused() -> None:
    rng = np.random.default_rng(1)
    n = 100_000  # deep: a chain would be too much for a recursion
    chain = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    assert offline.PairGraph(chain).kappa_prime == 1
    with pytest.raises(ConfigError, match=r"too much work. Fix: use kappa_prime"):
        offline.PairGraph(chain).kappa()
    some = np.unique(np.sort(rng.integers(0, 60, (700, 2)), axis=1), axis=0)
    hard = offline.PairGraph(np.concatenate([some[some[:, 0] != some[:, 1]], [[0, 60], [1, 60], [2, 60]]]))
    assert hard.kappa_prime <= hard.max_degree


@pytest.mark.parametrize(
    ("pairs", "individuals", "message"),
    [
        ([], None, r"empty: there is no pair. Fix: give at least one"),
        (np.zeros((0, 2), dtype=int), 3, r"empty: there is no pair. Fix"),
        ([(0, 1, 2)], None, r"shape \(1, 3\).*Fix: give whole numbers"),
        ([(0.5, 1.0)], None, r"float64. Fix: give whole numbers"),
        ([(0, 3)], 3, r"of individual 3, and there are 3. Fix: number individuals"),
        ([(-1, 2)], 3, r"of individual -1.*Fix"),
        ([(1, 1)], None, r"with itself. Fix: leave such pairs out"),
        ([(0, 1), (1, 0)], None, r"twice. Fix: give each pair once"),
    ],
)
def test_bad_graphs(pairs: Any, individuals: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        offline.PairGraph(pairs, individuals)


def test_the_gradient_is_that_of_the_contrastive_loss() -> None:
    rng = np.random.default_rng(1)
    rows, w, margin = rng.normal(size=(6, 3)) / 4, rng.normal(size=(2, 3)), 0.6
    pairs, similar = np.array([(0, 1), (1, 2), (3, 4), (4, 5)]), np.array([True, False, False, True])

    def loss(w: Any) -> float:
        far = np.linalg.norm((rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ w.T, axis=1)
        return float(np.where(similar, far**2 / 2, np.maximum(margin - far, 0) ** 2 / 2).mean())

    step = 1e-6
    wanted = np.zeros((2, 3))
    for index in np.ndindex(2, 3):
        e = np.zeros((2, 3))
        e[index] = step
        wanted[index] = (loss(w + e) - loss(w - e)) / (2 * step)
    total, peaks = np.empty((2, 3)), np.empty(2)
    across, norm = np.ascontiguousarray(w.T), pair_graph.NORM_L2
    pair_graph.contrastive_sum(
        rows, pairs, np.arange(4), similar, across, margin, 100.0, norm, False, total, peaks
    )
    assert total / 4 == pytest.approx(wanted, abs=1e-8)


def table(n: int = 300) -> tuple[Any, Any, Any, Any]:
    """Individuals, whether each pair is alike, the pairs, and the classes."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.5, 0.5, (n, 3))
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    return X, (X[pairs[:, 0], 0] > 0) == (X[pairs[:, 1], 0] > 0), pairs, X[:, 0] > 0


@pytest.mark.filterwarnings("ignore:more than half of the records")
def test_checks_of_scikit_learn() -> None:
    check_estimator(offline.DPPMetricLearner(epochs=3), on_skip=None)


def test_a_metric_is_learned_from_pairs_or_classes() -> None:
    """A fit that learns nothing of the one feature that matters."""
    X, alike, pairs, y = table(2000)
    for arguments in (("transitive", alike, pairs), ("intransitive", alike, pairs), ("node", y, None)):
        model = offline.DPPMetricLearner(2.0, 1e-5, relation=arguments[0]).fit(X, *arguments[1:])
        assert model.metric_.diagonal().argmax() == 0
        assert model.transform(X).shape == (2000, 3)
        assert model.metric_ == pytest.approx(model.components_.T @ model.components_)
    narrow = offline.DPPMetricLearner(8.0, 1e-3, n_components=1, batch_size=500, epochs=5)
    assert narrow.fit_transform(X, alike, pairs).shape == (2000, 1)
    assert narrow.privacy.releases == 5 * (1999 // 500)
    pure = offline.DPPMetricLearner(8.0, 0.0, epochs=5).fit(X, alike, pairs)
    assert pure.privacy.delta == 0.0
    assert 0.98 * 8.0 < pure.privacy.epsilon_spent <= 8.0
    near = make_pipeline(offline.DPPMetricLearner(8.0, 1e-3), KNeighborsClassifier(3)).fit(X, y)
    assert near.score(X, y) > 0.9


def test_the_report_is_the_accountants() -> None:
    X, alike, pairs, y = table()
    model = offline.DPPMetricLearner()
    assert model.privacy is None
    report = model.fit(X, alike, pairs).privacy
    assert report.kind == "holds"
    assert report.epsilon_spent == 1.0 == report.epsilon_budget
    assert report.releases == 20 == report.card[0]["releases"]
    for words in ("contents of at most 1 pairs", "taken as public", 'relation="node" hides them'):
        assert words in f"{report} {report.details}"
    person = offline.DPPMetricLearner(relation="node", bounds=(-1, 1)).fit(X, y).privacy
    assert "an individual: its features" in person.unit
    assert "at most 4" in person.unit
    assert "hides them" not in str(person)
    assert "void (fixed seed)" in str(offline.DPPMetricLearner(random_state=1).fit(X, alike, pairs).privacy)


def test_a_seed_repeats_and_nothing_else_does_and_copies_are_equal() -> None:
    """Noise that a second fit repeats."""
    X, alike, pairs, _ = table(60)
    options = {"n_components": 2, "batch_size": 20, "epochs": 2}
    one, other = (offline.DPPMetricLearner(random_state=3, **options).fit(X, alike, pairs) for _ in range(2))
    assert (one.components_ == other.components_).all()
    model = offline.DPPMetricLearner(**options).fit(X, alike, pairs)
    again = pickle.loads(pickle.dumps(model))
    assert (again.transform(X) == model.transform(X)).all()
    assert again.privacy == model.privacy
    assert clone(model).privacy is None
    assert (model.components_ != clone(model).fit(X, alike, pairs).components_).any()


X, ALIKE, PAIRS, Y = table(20)
WITH_NAN = np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X)


@in_one_case(
    ("options", "fitted", "message"),
    [
        ({}, (WITH_NAN, ALIKE, PAIRS), r"NaN or infinity. Fix: leave out or fill in"),
        ({}, (X[:1], Y[:1]), r"n_samples = 1.*Fix: give two records"),
        ({}, (X, np.zeros(20)), r"y has one class.*Fix: give records of both"),
        ({}, (X, np.ones(19), PAIRS), r"all alike, or all not. Fix: give pairs of both kinds"),
        ({}, (X, np.arange(19), PAIRS), r"y is not binary. Fix: give True or 1"),
        ({}, (X, ALIKE[:5], PAIRS), r"shape \(5,\), and there are 19 pairs. Fix"),
        ({}, (X, ALIKE[:0], PAIRS[:0]), r"graph is empty.*Fix"),
        (
            {},
            (X, [True, False], PAIRS[[0, 2]]),
            "disconnected.*2 pieces. Fix: fit each",
        ),
        ({"epsilon": 0.0}, (X, ALIKE, PAIRS), r"epsilon is 0.0. Fix"),
        ({"epsilon": -1.0, "calibration": "paper"}, (X, ALIKE, PAIRS), r"epsilon is -1.0. Fix"),
        ({"epsilon": "1"}, (X, ALIKE, PAIRS), r"epsilon is '1', not a number. Fix"),
        ({"delta": 1.0}, (X, ALIKE, PAIRS), r"delta is 1.0. Fix"),
        ({"noise": "uniform"}, (X, ALIKE, PAIRS), r"noise is 'uniform'. Fix: give one of gaussian"),
        ({"noise": "gaussian", "delta": 0.0}, (X, ALIKE, PAIRS), r"Gaussian noise has one. Fix"),
        ({"noise": "laplace"}, (X, ALIKE, PAIRS), r"noise is pure, and delta is 1e-06. Fix: give delta=0"),
        ({"noise": "inputs"}, (X, ALIKE, PAIRS), r"hide individuals. Fix: give relation"),
        (
            {"noise": "duchi", "delta": 0, "calibration": "paper"},
            (X, ALIKE, PAIRS),
            r"no constants for duchi.*Fix",
        ),
        ({"noise": "duchi", "delta": 0, "epsilon": 0.0}, (X, ALIKE, PAIRS), r"epsilon is 0.0. Fix"),
        (
            {"noise": "duchi", "delta": 0, "epsilon": 1e-30},
            (X, ALIKE, PAIRS),
            r"fair coins. Fix: raise epsilon",
        ),
        ({"noise": "staircase", "delta": 0, "epsilon": -1}, (X, ALIKE, PAIRS), r"epsilon is -1. Fix"),
        ({"noise": "staircase", "delta": 0, "epsilon": 1e-14}, (X, ALIKE, PAIRS), r"64-bit sums.*Fix"),
        (
            {"noise": "inputs", "relation": "node", "epsilon": 1e-30, "delta": 0},
            (X, ALIKE, PAIRS),
            r"labels would be fair coins. Fix: raise epsilon",
        ),
        ({"relation": "edge"}, (X, ALIKE, PAIRS), r"relation is 'edge'. Fix"),
        ({"calibration": "loose"}, (X, ALIKE, PAIRS), r"calibration is .loose.. Fix"),
        ({"bounds": (1.0, 0.0)}, (X, ALIKE, PAIRS), r"lower one is not below the upper one. Fix"),
        ({"margin": 0.0}, (X, ALIKE, PAIRS), r"margin is 0.0. Fix"),
        ({"clip": float("nan")}, (X, ALIKE, PAIRS), r"clip is nan. Fix"),
        ({"clip": None}, (X, ALIKE, PAIRS), r"clip is None, not a number. Fix"),
        ({"learning_rate": -1}, (X, ALIKE, PAIRS), r"learning_rate is -1. Fix"),
        ({"n_components": 4}, (X, ALIKE, PAIRS), r"n_components is 4, and there are 3 features. Fix"),
        ({"epsilon": 1e-14, "delta": 0.0}, (X, ALIKE, PAIRS), r"64-bit sums can hold. Fix: raise epsilon"),
    ],
)
def test_bad_input_is_refused_with_a_fix(options: Any, fitted: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        offline.DPPMetricLearner(**options).fit(*fitted)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "n_components", "pairs_each"])
def test_numbers_are_whole_and_what_is_wrong_is_named(name: str) -> None:
    for wrong in (0, 1.5, True):
        with pytest.raises(ConfigError, match=f"{name} is {wrong!r}. Fix: give a whole number of 1 or more"):
            offline.DPPMetricLearner(**{name: wrong}).fit(X, Y)


def test_a_graph_in_pieces_can_be_asked_for() -> None:
    rows = np.array([0, 1, 2, 4, 5, 6])
    model = offline.DPPMetricLearner(connected=False).fit(X, np.arange(6) % 2, PAIRS[rows])
    assert model.graph_.components == 2
    with pytest.raises(ConfigError, match=r"NaN"):
        model.transform(WITH_NAN)
