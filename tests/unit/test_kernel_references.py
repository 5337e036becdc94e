"""Each kernel that the library calls, by itself, against its reference implementation in `tests/naive`.

More about a kernel (its corners, its last bits) is in the tests of what it is for.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import naive
import numpy as np
import pytest
from harness import support
from harness.every_loss import EVERY, MARGIN, name_of
from naive import label_table, random_trees, table_sums

from streampair import losses
from streampair.kernels import Kernel, buffers, dp_steps, numerics, pair_graph, pair_moments, scaling
from streampair.kernels import boosted_trees as boosted_kernels
from streampair.kernels import forest as forest_kernels
from streampair.kernels import label_table as label_kernels
from streampair.kernels import losses as losses_kernels
from streampair.kernels import platt as link_kernels
from streampair.kernels import random_trees as tree_kernels
from streampair.kernels import rolling_auc as rolling_auc_kernels
from streampair.kernels import state as state_kernels
from streampair.kernels import vectors as vector_kernels
from streampair.kernels.pairs import BLOCK
from streampair.offline.risk import packed
from streampair.records.features import as_code, which

Rng = np.random.Generator
Check = Callable[[Any, Rng], None]


def called() -> dict[str, Kernel]:
    """Kernels that the library calls, by name: attributes of the submodules that a module imports."""
    found: dict[str, Kernel] = {}
    for file in sorted((support.ROOT / "streampair").rglob("*.py")):
        if file.parent.name == "kernels":
            continue
        tree = ast.parse(file.read_text())
        homes: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streampair.kernels"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    homes[alias.asname or alias.name] = getattr(
                        module, alias.name, None
                    ) or importlib.import_module(f"{node.module}.{alias.name}")
        used = [home for home in homes.values() if isinstance(home, Kernel)]
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in homes
            ):
                used.append(getattr(homes[node.value.id], node.attr, None))
        found.update({kernel.__name__: kernel for kernel in used if isinstance(kernel, Kernel)})
    return dict(sorted(found.items()))


def kernels() -> dict[str, Kernel]:
    """Every kernel, by name."""
    modules = (
        importlib.import_module(f"streampair.kernels.{file.stem}")
        for file in (support.ROOT / "streampair" / "kernels").glob("*.py")
    )
    found = (value for module in modules for value in vars(module).values() if isinstance(value, Kernel))
    return {kernel.__name__: kernel for kernel in found}


KERNELS = kernels()
CHECKS: dict[str, tuple[Any, Check]] = {}
SEEDS = range(4)


def against(reference: Any, *names: str) -> Callable[[Check], Check]:
    """Register how kernels are compared with their reference; their names are the function's if not given."""

    def register(check: Check) -> Check:
        for name in names or (check.__name__,):
            assert name not in CHECKS
            CHECKS[name] = (reference, check)
        return check

    return register


def double_doubles(rng: Rng, *shape: int) -> np.ndarray:
    """Sums of two doubles, (2, *shape), the first of them halves."""
    high = 100.0 * rng.normal(size=shape or 9)
    high.flat[:2] = -3.5, 4.5
    return np.stack((high, rng.uniform(-0.4, 0.4, high.shape) * np.spacing(np.abs(high))))


def unset(shape: Any, dtype: Any = float) -> np.ndarray:
    """An array that a kernel is to fill. `np.empty` may hold what was computed before, or any other bits.

    `bent` would not see a cell as written that had the right value before, and fail to multiply some NaNs.
    """
    return np.full(shape, np.nan if dtype is float else -1, dtype=dtype)


def whole_steps(noise: np.ndarray) -> np.ndarray:
    return np.floor(noise / GRID + 0.5).astype(np.int64)


def close(value: Any, wanted: Any, tolerance: float = 1e-9) -> None:
    assert value == pytest.approx(wanted, rel=tolerance, abs=tolerance)


# ---- functions of their arguments ------------------------------------------------------------------------


class Case(NamedTuple):
    """A kernel that does nothing but compute something of its arguments.

    Attributes
    ----------
    reference
        The reference implementation: it takes the same arguments, arrays as lists, and returns the result.
    draw
        The arguments.
    within
        By how much the results may differ, relatively and absolutely; 0: not at all.
    out
        The array that the kernel writes to, after the arguments; ``"first"``: it changes its first argument.
        None: it returns the result.
    times
        Calls of each seed.
    """

    reference: Callable[..., Any]
    draw: Callable[[Rng], tuple[Any, ...]]
    within: float = 0.0
    out: Callable[[], np.ndarray] | Literal["first"] | None = None
    times: int = 1

    def check(self, kernel: Any, rng: Rng) -> None:
        """Compare the kernel with the reference."""
        for _ in range(self.times):
            args = self.draw(rng)
            wanted = self.reference(*(a.tolist() if isinstance(a, np.ndarray) else a for a in args))
            if self.out is None:
                found = kernel(*args)
            else:
                written = [] if self.out == "first" else [self.out()]
                assert not kernel(*args, *written)  # nothing, or 0: every row can be used
                found = (*written, *args)[0].tolist()
            found, wanted = np.array(found), np.array(wanted)
            assert found.shape == wanted.shape
            if self.within:
                close(found, wanted, self.within)
            else:
                assert (found == wanted).all()


def floats(*shape: int) -> Callable[[], np.ndarray]:
    return lambda: unset(shape)


def whole(*shape: int) -> Callable[[], np.ndarray]:
    return lambda: np.zeros(shape, dtype=np.int64)


LABELS = np.array([1.0, -1.0, math.nan, 0.3, -0.77]), np.array([1.0, -1.0, math.nan, 1.0, 1.0, -1.0])
OCTANT = math.pi / 4

# fmt: off
CASES = {
    "exp_negative": Case(naive.exp_negative, lambda rng: (rng.uniform(0, 50),), 1e-14),
    "sigmoid": Case(naive.sigmoid, lambda rng: (rng.normal() * 5,), 1e-14),
    "sigmoid_many": Case(naive.sigmoid_many, lambda rng: (rng.normal(size=7),), 1e-14, floats(7)),
    "log_one_plus": Case(
        naive.log_one_plus, lambda rng: (rng.uniform(math.sqrt(0.5) - 1, math.sqrt(2) - 1),), 1e-15
    ),
    "log_positive": Case(naive.log_positive, lambda rng: (10.0 ** rng.uniform(-20, 20),), 1e-15),
    "sin_octant": Case(naive.sin_octant, lambda rng: (rng.uniform(0, OCTANT),), 1e-15),
    "cos_octant": Case(naive.cos_octant, lambda rng: (rng.uniform(0, OCTANT),), 1e-15),
    "sin_cos": Case(naive.sin_cos, lambda rng: (rng.normal() * 100,), 1e-14),
    "forest_cut": Case(naive.forest_cut, lambda rng: (int(rng.integers(0, 4)), int(rng.integers(1, 300)))),
    "uniform": Case(naive.uniform, lambda rng: tuple(rng.integers(0, 2**53, 3).tolist()), times=20),
    "dot": Case(naive.dot, lambda rng: tuple(rng.normal(size=(2, 11))), 1e-13),
    "project_ball": Case(naive.project_ball, lambda rng: (rng.normal(size=5), 1.5), 1e-13, "first"),
    "first_unusable": Case(
        naive.first_unusable, lambda rng: (rng.choice([0.5, 1e49, -1e50, 2e50, math.nan, -math.inf], 4),)
    ),
    "first_beyond": Case(
        naive.first_beyond, lambda rng: (rng.choice([0.5, 0.99, -1.0, 1.5, math.nan, -math.inf], 4), 1.0)
    ),
    "unusable_row": Case(
        naive.unusable_row,
        lambda rng: (
            rng.choice([0.5, 1e10, 1e31, math.nan, math.inf], (4, 3), p=[0.5, 0.4, 0.04, 0.03, 0.03]), 1e30
        ),
    ),
    "first_large": Case(
        naive.first_large,
        lambda rng: (rng.choice([0.5, 1e29, -1e31, math.nan], (4, 3), p=[0.5, 0.4, 0.04, 0.06]), 1e30),
    ),
    "score_many": Case(
        naive.score_many, lambda rng: (rng.normal(size=4), rng.normal(size=(3, 4))), 1e-13, floats(3)
    ),
    "rows_of_columns": Case(
        naive.rows_of_columns,
        lambda rng: (rng.normal(size=(4, 3)), rng.permutation(4)[:3].astype(np.uintp)), out=floats(3, 3),
    ),
    "positive_definite": Case(
        naive.positive_definite, lambda rng: (symmetric(rng) + rng.uniform(0, 6) * np.eye(4),)
    ),
    "project_psd": Case(naive.project_psd, lambda rng: (symmetric(rng),), 1e-9, "first"),
    "normals_from_bits": Case(
        naive.normals, lambda rng: (rng.integers(0, 2**64, 9, dtype=np.uint64),), 1e-13, floats(2, 6)
    ),
    "rounded_noise": Case(naive.rounded_noise, lambda rng: (double_doubles(rng),), out=whole(9)),
    "scaled_noise": Case(
        naive.scaled_noise, lambda rng: (double_doubles(rng), rng.uniform(0, 9, 9)), 1e-27, floats(2, 9)
    ),
    "cross_sums": Case(
        naive.cross_sums, lambda rng: (rng.uniform(-1, 1, (5, 3)), LABELS[0], 64.0), out=whole(3)
    ),
    "score_sums": Case(
        naive.score_sums,
        lambda rng: (rng.uniform(-1, 1, (6, 3)), LABELS[1], rng.uniform(-1, 1, 3), 64.0), out=whole(9),
    ),
    "forest_places": Case(
        naive.places, lambda rng: tuple(rng.integers(1, 300, 4).tolist()), times=20
    ),
    "forest_kept_places": Case(
        naive.kept_places, lambda rng: tuple(rng.integers(1, 300, 3).tolist()), times=20
    ),
    "forest_pair_places": Case(
        naive.pair_places, lambda rng: tuple(rng.integers(1, 300, 2).tolist()), times=20
    ),
    "ring_rows": Case(
        naive.ring_rows, lambda rng: (int(rng.choice([1, 25, 1000, 1001, 2000, 2001, 4000, 4001, 8000])),),
        times=20,
    ),
    "ring_places": Case(
        naive.ring_places, lambda rng: tuple(rng.integers(1, 300, 2).tolist()), times=20
    ),
    "boosted_places": Case(
        naive.boosted_places, lambda rng: tuple(rng.integers(1, 300, 2).tolist()), times=20
    ),
    "boosted_cost": Case(
        naive.boosted_cost, lambda rng: tuple(rng.integers(1, 3000, 2).tolist()), times=20
    ),
}
# fmt: on
for _name, _case in CASES.items():
    against(_case.reference, _name)(_case.check)


# ---- the link --------------------------------------------------------------------------------------------


def linked(rng: Rng) -> tuple[Any, Any, list[float]]:
    """A state, and the reference, that have learned the same; and scores."""
    state, reference, scores = np.zeros(state_kernels.HEADER), naive.Link(), rng.normal(size=20).tolist()
    state[state_kernels.LINK] = state[state_kernels.SLOPE] = 1.0
    for score in scores[:10]:
        y = float(rng.choice([-1.0, 1.0]))
        link_kernels.link_learn(state, score, y)
        reference.learn(score, y)
    return state, reference, scores[10:]


@against(naive.Link)
def link_learn(kernel: Any, rng: Rng) -> None:
    state, reference, scores = linked(rng)
    kernel(state, scores[0], 1.0)
    reference.learn(scores[0], 1.0)
    close(state[state_kernels.INFORMATION], reference.information)
    close((state[state_kernels.CENTRE], state[state_kernels.SPREAD]), (reference.centre, reference.spread))
    close((state[state_kernels.OFFSET], state[state_kernels.SLOPE]), (reference.offset, reference.slope))


@against(naive.Link)
def link_proba(kernel: Any, rng: Rng) -> None:
    state, reference, scores = linked(rng)
    close(kernel(state, scores[0]), reference.probability(scores[0]))


@against(naive.probabilities)
def link_many(kernel: Any, rng: Rng) -> None:
    state, reference, scores = linked(rng)
    out = unset(len(scores))
    kernel(state, np.array(scores), out)
    close(out.tolist(), naive.probabilities(reference, scores))


# ---- graphs ----------------------------------------------------------------------------------------------


@against(naive.graph_pieces)
def graph_pieces(kernel: Any, rng: Rng) -> None:
    for n in (2, 5, 9):
        edges = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.3] or [(0, 1)]
        near: list[list[int]] = [[] for _ in range(n)]
        for a, b in edges:
            near[a].append(b)
            near[b].append(a)
        starts = np.cumsum([0, *map(len, near)])
        pieces = np.zeros(n, dtype=np.int64)
        found = kernel(starts, np.array(list(itertools.chain(*near))), pieces)
        wanted, bridges = naive.graph_pieces(n, edges)
        assert pieces.tolist() == wanted
        assert {(min(e), max(e)) for e in found.tolist()} == bridges


@against(naive.contrastive_sum)
def contrastive_sum(kernel: Any, rng: Rng) -> None:
    codes = {"l1": pair_graph.NORM_L1, "l2": pair_graph.NORM_L2, "max": pair_graph.NORM_MAX}
    for norm, by_row in itertools.product(codes, (False, True)):
        # More pairs than are added up together, some at no distance, and some on both sides of the margin.
        rows, w = rng.normal(size=(30, 4)) / 2, rng.normal(size=(3, 4)) / 2
        rows[1] = rows[0]
        pairs = np.stack([rng.integers(30, size=1500), rng.integers(30, size=1500)], axis=1)
        pairs[0] = [0, 1]
        similar, batch = rng.random(1500) < 0.5, rng.permutation(1500)[: int(rng.integers(1, 1500))]
        batch[0], similar[0] = 0, False
        total, peaks = rng.normal(size=(3, 4)), rng.normal(size=3)  # what is in them does not count
        kernel(rows, pairs, batch, similar, w.T.copy(), 1.0, 0.3, codes[norm], by_row, total, peaks)
        chosen = [(rows[a].tolist(), rows[b].tolist(), s) for (a, b), s in zip(pairs, similar, strict=True)]
        wanted, most = naive.contrastive_sum([chosen[i] for i in batch], w.tolist(), 1.0, 0.3, norm, by_row)
        close(total, np.array(wanted), 1e-11)
        close(peaks, np.array(most), 1e-11)


@against(naive.laplace_integers)
def laplace_integers(kernel: Any, rng: Rng) -> None:
    for width, inner, scale in [(1, 1, 1), (1, 1, 3), (1, 1, 2**55 - 1), (5, 2, 3), (4, 4, 10**6)]:
        words = rng.integers(2**64, size=int(rng.integers(0, 400)), dtype=np.uint64)
        out = np.zeros(12, dtype=np.int64)
        made, used = kernel(words, np.uint64(width), np.uint64(inner), np.uint64(scale), out)
        wanted, taken = naive.laplace_integers(words.tolist(), width, inner, scale, 12)
        assert (out[: len(wanted)].tolist(), made, used) == (wanted, len(wanted), taken)


@against(naive.pair_descent)
def pair_descent(kernel: Any, rng: Rng) -> None:
    for loss, metric, l2 in itertools.product(MARGIN, (False, True), (0.0, 0.3)):
        rows, labels = rng.normal(size=(20, 3)) / 2, rng.choice([-1.0, 1.0], size=20)
        one, other = rng.integers(20, size=40), rng.integers(20, size=40)
        start = rng.normal(size=(3, 3)) if metric else rng.normal(size=3)
        start = (start + start.T) / 2  # a row as it stands
        start /= np.linalg.norm(start)
        w = packed(start) if metric else start.copy()
        before, total = rng.normal(size=len(w)), rng.normal(size=len(w))
        wanted = [before.copy()]
        offset = total.copy()
        etas, worth = rng.uniform(0.1, 0.3, size=40), rng.uniform(size=40)
        table = (rows, labels, one, other)
        kernel(loss.code, metric, l2, 1.1, etas, worth, *table, w, before, total)
        indices = zip(one, other, strict=True)
        pairs = [(rows[a].tolist(), labels[a], rows[b].tolist(), labels[b]) for a, b in indices]
        name = name_of(loss)
        iterates = naive.pair_descent(name, etas.tolist(), 1.1, pairs, start, l2)
        wanted += [packed(each) if metric else each for each in iterates]
        close(w, wanted[-1], 1e-11)
        close(before, wanted[-2], 1e-11)
        close(total - offset, worth @ np.array(wanted[:-2]), 1e-11)


# ---- numbers and vectors -------------------------------------------------------------------------------


@against(naive.cube_root)
def cube_root(kernel: Any, rng: Rng) -> None:
    for x in (10.0 ** rng.uniform(-300, 300), rng.uniform(0.1, 8.0), 8.0, 0.125, 27.0):
        close(kernel(x), naive.cube_root(x), 1e-12)
        assert math.isclose(kernel(x) ** 3, x, rel_tol=2e-15)


@against(naive.two_thirds)
def two_thirds(kernel: Any, rng: Rng) -> None:
    x, out = 10.0 ** rng.uniform(-9, 9, 5), unset(5)
    kernel(x, out)
    assert np.allclose(out, naive.two_thirds(x.tolist()), rtol=1e-13, atol=0.0)


@against(naive.scatter)
def scatter(kernel: Any, rng: Rng) -> None:
    places, values, row = rng.permutation(6)[:3], rng.normal(size=3), rng.normal(size=6)
    values[1] = as_code("a text")
    fill = float(rng.choice([0.0, math.nan]))
    x = dict(zip(places.tolist(), values.tolist(), strict=True))
    kernel(*as_given(x), fill, row)
    wanted = naive.scatter(x, fill, 6)
    assert row.view(np.int64).tolist() == np.array(wanted).view(np.int64).tolist()


@against(naive.loss_slope)
def loss_slope(kernel: Any, rng: Rng) -> None:
    for loss in MARGIN:
        for m in (rng.normal() * 2, 0.0, 1.0):
            close(kernel(loss.code, m), naive.loss_slope(name_of(loss), m), 1e-13)


@against(naive.loss_value)
def loss_value(kernel: Any, rng: Rng) -> None:
    for loss in MARGIN:
        for m in (rng.normal() * 2, 0.0, 1.0):
            close(kernel(loss.code, m), naive.loss_value(name_of(loss), m), 1e-13)


@against(naive.loss_of_errors)
def loss_of_errors(kernel: Any, rng: Rng) -> None:
    for loss in EVERY:
        assert kernel(loss.code) == naive.loss_of_errors(name_of(loss)) == loss.of_errors


@against(naive.pair_slope)
def pair_slope(kernel: Any, rng: Rng) -> None:
    for loss in EVERY:
        for _ in range(10):
            c, s, width = rng.uniform(-2, 2), rng.uniform(-20, 20), rng.uniform(0.1, 10)
            wanted = naive.pair_slope(name_of(loss), c, s, width)
            close(kernel(loss.code, c, s, width), wanted, 1e-12)


@against(naive.row_to_replace)
def row_to_replace(kernel: Any, rng: Rng) -> None:
    for code, name in ((buffers.FIFO, "fifo"), (buffers.RESERVOIR, "reservoir"), (buffers.FULL, "full")):
        seed, t, size, coin = (int(rng.integers(1, most)) for most in (2**53, 60, 20, 3))
        assert kernel(code, seed, t, size, coin) == naive.row_to_replace(name, seed, t, size, coin)


# ---- learners without privacy --------------------------------------------------------------------------


def flat(d: int, policy: int, size: int, room: int, *, cells: int = 0, **header: float) -> np.ndarray:
    """An empty metric learner's state, for d features, weights of `cells`, and with `room` for its buffer."""
    s = np.zeros(state_kernels.HEADER + d + 4 * cells + room)
    return with_scalars(s, d, policy, size, header)


def with_scalars(s: np.ndarray, d: int, policy: int, size: int, header: Mapping[str, float]) -> np.ndarray:
    fixed = {"D": d, "CAP": d, "SIZE": size, "POLICY": policy, "RADIUS": 2.0, "L2": 0.01, "SEED": 5}
    for name, value in {**fixed, **header}.items():
        s[getattr(state_kernels, name)] = value
    return s


def linear(d: int, policy: int, size: int, cells: int = -1, **header: float) -> np.ndarray:
    """An empty state of a linear learner, whose columns are there from the first record on.

    Its buffer has `cells`; or rows with room for d features, of each class for CLASSES.
    """
    if cells < 0:
        cells = size * (2 + 2 * d) * (2 if policy == buffers.CLASSES else 1)
        header = {"ROOM": d, **header}
    s = np.zeros(state_kernels.HEADER + scaling.VECTORS * d + cells)
    with_scalars(s, d, policy, size, header)
    scaling._column(s, scaling.UNIT)[:] = 1.0
    scaling._column(s, scaling.KIND)[:] = scaling.DENSE
    return s


def all_past(s: np.ndarray, d: int, room: int) -> tuple[np.ndarray, ...]:
    """One block for a full history, whose addresses go to the state. To be held while the state is used."""
    rows, labels = np.zeros((room, d)), np.zeros((room, 1))
    table = np.array([[rows.ctypes.data, labels.ctypes.data, d, room]], dtype=np.int64)
    s[state_kernels.TABLE], s[state_kernels.BLOCKS] = table.ctypes.data, 1
    return table, rows, labels


Records = list[tuple[dict[int, float], float]]


def records(rng: Rng, d: int, labels: Any = (1.0, -1.0), count: int = 14) -> Records:
    """Records that have all features."""
    return [(dict(enumerate(rng.normal(size=d).tolist())), float(rng.choice(labels))) for _ in range(count)]


#: Of `of_each_kind`.
MIXED, INDICATOR = 7, 6


def of_each_kind(rng: Rng, labels: Any = (1.0, -1.0), count: int = 80) -> Records:
    """Records with features of each kind: with an offset, of 0 and 1 for long, of 0 and 1 for ever, with gaps
    and values that are far out, given at first and then hardly, never given at first, an indicator.
    """
    out: Records = []
    for t in range(count):
        x = {0: 1000.0 + rng.normal(), 1: float(rng.integers(0, 2 if t < 12 else 4))}
        if rng.random() < 0.7:
            x[2] = float(rng.random() < 0.5)
        x[3] = math.nan if rng.random() < 0.2 else 1e9 if t in (45, 70) else 5.0 * rng.normal()
        if rng.random() < (0.9 if t < 20 else 0.1):
            x[4] = rng.normal() - 3.0
        if t > 9 and rng.random() < 0.6:
            x[5] = rng.normal() ** 2
        if rng.random() < 0.2:
            x[INDICATOR] = 1.0
        places = rng.permutation(sorted(x)).tolist()
        out.append(({i: x[i] for i in places}, float(rng.choice(labels))))
    return out


def packed_row(x: Mapping[int, float], d: int) -> np.ndarray:
    """A record as a row: what it lacks has bits of its own."""
    row = np.full(d, scaling.ABSENT_BITS, dtype=np.int64).view(np.float64)
    row[list(x)] = list(x.values())
    return row


def as_given(values: Mapping[int, float]) -> tuple[np.ndarray, int]:
    """Places, as the bits of integers, and values; and how many."""
    places = np.array(list(values), dtype=np.int64).view(np.float64)
    return np.concatenate((places, list(values.values()), [7.0])), len(values)


def teach(kernel: Any, s: np.ndarray, x: Mapping[int, float], y: float) -> None:
    """One record by a kernel for one or for many, in whichever form that takes."""
    d = int(s[state_kernels.D])
    if kernel.__name__.endswith("few"):
        assert kernel(s, *as_given(x), any(map(math.isnan, x.values())), y) == 0
    elif kernel.__name__.endswith("many"):
        assert kernel(s, packed_row(x, d)[None], np.array([y]), np.empty(0)) == 0
    elif len(x) < d or any(map(math.isnan, x.values())):
        other = KERNELS[
            f"{kernel.__name__}_few" if kernel.__name__ == "ogd_learn" else f"{kernel.__name__}_many"
        ]
        teach(other, s, x, y)
    else:
        s[state_kernels.HEADER : state_kernels.HEADER + d] = packed_row(x, d)
        refused = kernel(s, y)
        if kernel.__name__ == "ogd_learn" and refused < 0:  # rows of the buffer lack features
            refused = KERNELS["ogd_learn_few"](s, np.empty(0), -1, False, y)
        assert refused == 0


def learn(kernel: Any, s: np.ndarray, reference: Any, data: Records) -> None:
    """Both learn: the kernel one record at a time, or all rows at once; then the weights are compared.

    `kernel` itself takes the last call alone: if it is bent, the state must not be used again.
    """
    d, many = int(s[state_kernels.D]), kernel.__name__.endswith("many")
    metric = kernel.__name__.startswith("metric")
    scores = np.zeros(0)
    if many and not metric:  # a record without a label is scored, not learned
        data = [*data[:5], (data[3][0], math.nan), *data[5:]]
        scores = np.zeros(len(data))
    if many:
        rows = np.array([packed_row(x, d) for x, _ in data])
        assert kernel(s, rows, np.array([y for _, y in data]), scores) == 0
    else:
        for x, y in data[:-1]:
            teach(KERNELS[kernel.__name__], s, x, y)
        teach(kernel, s, *data[-1])
    for i, (x, y) in enumerate(data):
        if len(scores):  # before it is learned
            close(scores[i], reference.score(x, average=s[state_kernels.AVERAGE] > 0.0), 1e-8)
        if y == y:
            reference.learn([x[j] for j in range(d)] if metric else x, y)
    if metric:
        cells = len(np.ravel(reference.last))
        vectors = s[state_kernels.HEADER + d : state_kernels.HEADER + d + 4 * cells].reshape(4, cells)[1:]
    else:
        vectors = [scaling._column(s, scaling.WEIGHTS + i) for i in range(3)]
        check_columns(s, reference)
    close(vectors[0], np.ravel(reference.last), 1e-8)
    if s[state_kernels.SCHEDULE] != state_kernels.ADAGRAD:
        close(vectors[2], np.ravel(reference.average), 1e-8)


def check_columns(s: np.ndarray, reference: Any) -> None:
    """Compare centres, units and kinds."""
    columns, d = reference.columns, reference.d
    close(scaling._column(s, scaling.CENTRE), [columns.centre(i) for i in range(d)], 1e-9)
    close(scaling._column(s, scaling.UNIT), [columns.unit(i) for i in range(d)], 1e-8)
    kinds = scaling._column(s, scaling.KIND)
    for i, known in columns.by_place.items():
        wanted = (
            scaling.DENSE * (known.dense and not known.fixed)
            + scaling.SCALED * known.scaled
            + scaling.FIXED * known.fixed
            + scaling.BEGUN * known.begun
        )
        assert kinds[i] == wanted


def every_kind(
    kernel: Any,
    rng: Rng,
    state: Callable[..., np.ndarray],
    reference: Callable[..., Any],
    labels: Any = (1.0, -1.0),
) -> None:
    """Whole records without scale and with it; then records of each kind of column, both ways."""
    learn(kernel, state(3), reference(3), records(rng, 3, labels))
    if kernel.__name__ != "ogd_learn_few":
        learn(kernel, state(3, SCALE=1), reference(3, scale=True), records(rng, 3, labels, 70))
    for scale in (False, True):
        s, data = state(MIXED, SCALE=scale), of_each_kind(rng, labels)
        if scale:
            scaling._column(s, scaling.KIND)[INDICATOR] = scaling.FIXED
        learn(kernel, s, reference(MIXED, scale=scale, fixed=(INDICATOR,)), data)


BUFFERS = {
    buffers.FIFO: "fifo",
    buffers.RESERVOIR: "reservoir",
    buffers.CLASSES: "classes",
    buffers.RESERVOIR_REPLACE: "replace",
}
SHRINKS = {
    state_kernels.INVERSE_SQRT: "sqrt",
    state_kernels.CONSTANT: "constant",
    state_kernels.INVERSE_TIME: "time",
    state_kernels.ADAGRAD: "adagrad",
}


class Setting(NamedTuple):
    """Parameters of a learner."""

    loss: losses.PairLoss = losses.Logistic()
    policy: int = buffers.FIFO
    size: int = 4
    rate: float | None = None
    schedule: int = state_kernels.INVERSE_SQRT
    keep: float = 1.0
    radius: float = 2.0
    l2: float = 0.01
    average: int = 1
    start: float = 0.0

    def state(self, d: int, **header: float) -> np.ndarray:
        scalars = {
            "LOSS": self.loss.code,
            "WIDTH": self.loss.width,
            "RATE": self.rate or 0.0,
            "SCHEDULE": self.schedule,
            "KEEP": self.keep % 1.0,
            "RADIUS": self.radius,
            "L2": self.l2,
            "AVERAGE": self.average,
            "START": self.start,
        }
        return linear(d, self.policy, self.size, **scalars, **header)

    def reference(self, d: int, **scaled: Any) -> naive.PairOGD:
        parts = name_of(self.loss), BUFFERS[self.policy], self.size, self.rate, self.radius, self.l2, 5
        steps = self.loss.width, self.keep, SHRINKS[self.schedule], self.average == 2
        return naive.PairOGD(d, *parts, *steps, first=self.start, **scaled)


ADAGRAD = Setting(rate=0.3, schedule=state_kernels.ADAGRAD, average=0, start=1.0, l2=0.0, radius=math.inf)
SETTINGS = [
    *(Setting(policy=policy) for policy in BUFFERS),
    *(Setting(losses.Square(), policy, rate=0.02) for policy in BUFFERS),
    *(ADAGRAD._replace(policy=policy) for policy in BUFFERS),
    *(Setting(rate=0.3, schedule=code, average=1 + more) for code in list(SHRINKS)[:3] for more in (0, 1)),
    *(Setting(rate=rate, keep=0.8) for rate in (None, 0.3)),
    # With a ball and a ridge term, whose steps take all weights: 0.2 is less than a first step. Without a
    # start a first gradient of rounding alone would be a whole step.
    *(ADAGRAD._replace(keep=k, radius=r, l2=0.01, start=0.01) for k in (1.0, 0.8) for r in (0.2, 2.0)),
    ADAGRAD._replace(keep=0.8),
    *(ADAGRAD._replace(loss=loss) for loss in (*MARGIN, losses.MinimumErrorEntropy(2.0))),
]


@against(naive.PairOGD, "ogd_learn", "ogd_learn_few", "ogd_learn_many")
def ogd(kernel: Any, rng: Rng) -> None:
    for setting in SETTINGS:
        every_kind(kernel, rng, setting.state, setting.reference)


@against(naive.FullHistory, "history_learn", "history_learn_many")
def history(kernel: Any, rng: Rng) -> None:
    alive = []  # what the states have addresses of

    def state(d: int, **header: float) -> np.ndarray:
        s = linear(d, buffers.FULL, 100, 0, LOSS=losses_kernels.LOGISTIC, AVERAGE=1, **header)
        alive.append(all_past(s, d, 100))
        return s

    every_kind(
        kernel,
        rng,
        state,
        lambda d, **scaled: naive.FullHistory(d, "Logistic", 2.0, 0.01, **scaled),
        (1.0, -1.0, 0.3),
    )
    assert all(rows.any() for _, rows, _ in alive)


@against(naive.LeastSquares, "moments_learn", "moments_learn_many")
def moments(kernel: Any, rng: Rng) -> None:
    for policy, parts, labels in (
        (buffers.MOMENTS, 2, (1.0, -1.0)),
        (buffers.MOMENTS_REAL, 3, (0.9, -0.2, 0.4)),
    ):

        def state(d: int, policy: int = policy, parts: int = parts, **header: float) -> np.ndarray:
            return linear(
                d, policy, 0, parts * (1 + d + d * d), LOSS=losses_kernels.SQUARE, AVERAGE=1, **header
            )

        every_kind(kernel, rng, state, lambda d, **scaled: naive.LeastSquares(d, 2.0, 0.01, **scaled), labels)


@against(naive.PairMetric, "metric_learn", "metric_learn_many")
def metric(kernel: Any, rng: Rng) -> None:
    for psd in (True, False):
        s = flat(2, buffers.RESERVOIR, 4, 4 * 3, cells=4, LOSS=losses_kernels.LOGISTIC, PSD=psd)
        reference = naive.PairMetric(2, "Logistic", "reservoir", 4, None, 2.0, 0.01, 5, psd)
        learn(kernel, s, reference, records(rng, 2, (0.0, 1.0, 2.0)))


@against(naive.PairMetric, "metric_history_learn", "metric_history_learn_many")
def metric_history(kernel: Any, rng: Rng) -> None:
    s = flat(2, buffers.FULL, 20, 0, cells=4, LOSS=losses_kernels.LOGISTIC, PSD=1)
    blocks = all_past(s, 2, 20)
    reference = naive.PairMetric(2, "Logistic", "full", 1, None, 2.0, 0.01, 5)
    learn(kernel, s, reference, records(rng, 2, (0.0, 1.0)))
    assert blocks[1].any()


def test_oam_against_the_reference() -> None:
    """Its step is one of the kernels of `ogd`."""
    names = "ogd_learn", "ogd_learn_few", "ogd_learn_many"
    for name, seed, average in itertools.product(names, SEEDS, (0, 1)):

        def state(d: int, average: int = average, **header: float) -> np.ndarray:
            sampled = {"SCHEDULE": state_kernels.SAMPLED, "LOSS": losses_kernels.HINGE}
            return linear(d, buffers.CLASSES, 4, RATE=0.03, L2=0, AVERAGE=average, **sampled, **header)

        every_kind(
            KERNELS[name],
            np.random.default_rng(seed),
            state,
            lambda d, **scaled: naive.OAM(d, 0.03, 4, 2.0, 5, **scaled),
        )


@against(naive.SPAUC, "spauc_learn", "spauc_learn_many")
def spauc(kernel: Any, rng: Rng) -> None:
    for rate in (None, 0.3):

        def state(d: int, rate: float | None = rate, **header: float) -> np.ndarray:
            return linear(d, buffers.FIFO, 0, 2 * d, RATE=rate or 0.0, AVERAGE=1, **header)

        every_kind(
            kernel, rng, state, lambda d, rate=rate, **scaled: naive.SPAUC(d, rate, 2.0, 0.01, **scaled)
        )


def closed_form(d: int, keep: float = 1.0, real: bool = False, **header: float) -> np.ndarray:
    """An empty state of `PairMoments`."""
    policy = buffers.MOMENTS_REAL if real else buffers.MOMENTS
    room = pair_moments.SCALARS + 2 * d + pair_moments.BLOCK * (1 + d) + d * (d + 1) // 2
    return linear(d, policy, 1, room, KEEP=keep % 1.0, L2=0.03, **header)


@against(naive.PairMoments, "pair_moments_learn", "pair_moments_learn_many")
def closed_forms(kernel: Any, rng: Rng) -> None:
    for keep, real in itertools.product((1.0, 0.95, 0.5), (False, True)):
        every_kind(
            kernel,
            rng,
            partial(closed_form, keep=keep, real=real),
            lambda d, keep=keep, real=real, **scaled: naive.PairMoments(d, 0.03, keep, real=real, **scaled),
            (0.0, 1.0, 2.5) if real else (1.0, -1.0),
        )


def region_of(s: np.ndarray) -> np.ndarray:
    """What `PairMoments` keeps behind the columns."""
    return s[state_kernels.HEADER + scaling.VECTORS * int(s[state_kernels.CAP]) :]


def waiting(rng: Rng, keep: float) -> tuple[np.ndarray, list[list[float]]]:
    """A state in which some records are in the moments and others wait; and all of them, label first."""
    s = closed_form(9, keep)
    s[state_kernels.HEADER + scaling.KIND * 9 :][:9] = scaling.DENSE
    rows = [[y, *x.values()] for x, y in records(rng, 9, count=49)]
    for y, *x in rows:
        teach(KERNELS["pair_moments_learn"], s, dict(enumerate(x)), y)
    assert 0 < s[state_kernels.FILLED] < len(rows)
    return s, rows


@against(naive.merge_rows)
def merge_rows(kernel: Any, rng: Rng) -> None:
    for keep in (1.0, 0.9):
        s, rows = waiting(rng, keep)
        kernel(s)
        wanted, region, d = naive.merge_rows(rows, keep), region_of(s), 9
        close(region[pair_moments.WEIGHT], wanted.weight)
        close(region[pair_moments.SCALARS :][:d], wanted.means[:d])
        close(region[pair_moments.SCALARS + d :][:d], wanted.products[:d, d])
        close(region[[pair_moments.LABEL, pair_moments.LABELS]], (wanted.means[d], wanted.products[d, d]))
        close(region[-d * (d + 1) // 2 :], wanted.products[np.tril_indices(d)])
        assert s[state_kernels.FILLED] == 0.0


@against(naive.solve)
def solve(kernel: Any, rng: Rng) -> None:
    for keep in (1.0, 0.9):
        s, rows = waiting(rng, keep)
        KERNELS["merge_rows"](s)
        kernel(s)
        wanted = naive.solve(naive.merge_rows(rows, keep), 0.03, real=False)
        close(scaling._column(s, scaling.WEIGHTS), wanted)
        assert not region_of(s)[[pair_moments.FRESH, pair_moments.SINCE]].any()


def grown(rng: Rng, *, scale: bool) -> tuple[np.ndarray, naive.PairOGD, Records]:
    """A state and its reference that have learned records of each kind; and further records."""
    s, reference = (
        Setting().state(MIXED, SCALE=scale),
        Setting().reference(MIXED, scale=scale, fixed=(INDICATOR,)),
    )
    if scale:
        scaling._column(s, scaling.KIND)[INDICATOR] = scaling.FIXED
    data = of_each_kind(rng)
    for x, y in data[:60]:
        teach(KERNELS["ogd_learn_few"], s, x, y)
        reference.learn(x, y)
    return s, reference, data[60:]


def link_of(s: np.ndarray, rng: Rng) -> list[float]:
    link = rng.uniform(0.2, 2.0, 4)
    s[[state_kernels.CENTRE, state_kernels.SPREAD, state_kernels.OFFSET, state_kernels.SLOPE]] = link
    return link.tolist()


@against(naive.score)
def ogd_score(kernel: Any, rng: Rng) -> None:
    for scale in (False, True):
        s, reference, _ = grown(rng, scale=scale)
        x = rng.normal(size=MIXED)
        s[state_kernels.HEADER : state_kernels.HEADER + MIXED] = x
        close(kernel(s), naive.score(reference, x.tolist()))
        s[state_kernels.HEADER] = 2e50
        assert math.isnan(KERNELS["ogd_score"](s))


@against(naive.probability)
def ogd_proba(kernel: Any, rng: Rng) -> None:
    for scale in (False, True):
        s, reference, _ = grown(rng, scale=scale)
        x, link = rng.normal(size=MIXED), link_of(s, rng)
        s[state_kernels.HEADER : state_kernels.HEADER + MIXED] = x
        close(kernel(s), naive.probability(reference, x.tolist(), link))


@against(naive.score)
def ogd_score_few(kernel: Any, rng: Rng) -> None:
    for scale in (False, True):
        s, reference, data = grown(rng, scale=scale)
        for x, _ in data:
            close(kernel(s, *as_given(x), True), naive.score(reference, x))
        for bad in ({1: 2e50}, {1: math.nan}):
            assert math.isnan(KERNELS["ogd_score_few"](s, *as_given(bad), False))


@against(naive.score_rows)
def ogd_score_many(kernel: Any, rng: Rng) -> None:
    for scale in (False, True):
        s, reference, data = grown(rng, scale=scale)
        rows = [x for x, _ in data]
        out = unset(len(rows))
        assert kernel(s, np.array([packed_row(x, MIXED) for x in rows]), out) == 0
        close(out, naive.score_rows(reference, rows))


@against(naive.weigh_all)
def weigh_all(kernel: Any, rng: Rng) -> None:
    s, reference, _ = grown(rng, scale=True)
    scaling._column(s, scaling.EFFECT)[:] = 0.0
    kernel(s)
    units = [reference.columns.unit(i) for i in range(MIXED)]
    close(scaling._column(s, scaling.EFFECT), naive.weigh_all(reference.last, units))


@against(naive.restore)
def restore(kernel: Any, rng: Rng) -> None:
    s, reference, _ = grown(rng, scale=True)
    for vector in (scaling.CENTRE, scaling.EFFECT, scaling.LISTED):
        scaling._column(s, vector)[:] = 0.0
    s[state_kernels.CENTRED] = 0.0
    kernel(s)
    centres, centred = naive.restore(reference.columns.by_place, MIXED)
    close(scaling._column(s, scaling.CENTRE), centres)
    assert scaling._column(s, scaling.LISTED)[: int(s[state_kernels.CENTRED])].tolist() == centred
    units = [reference.columns.unit(i) for i in range(MIXED)]
    close(scaling._column(s, scaling.EFFECT), naive.weigh_all(reference.last, units))


@against(naive.history_gradient)
def history_gradient(kernel: Any, rng: Rng) -> None:
    s = flat(3, buffers.FULL, 9, 0)
    past = [(np.array(list(x.values())), y) for x, y in records(rng, 3)[:9]]
    table, rows, labels = all_past(s, 3, 9)
    rows[:], labels[:, 0] = [x for x, _ in past], [y for _, y in past]
    w, x = rng.normal(size=(2, 3))
    out = np.zeros(3)
    kernel(w, x, 1.0, table, 9, False, losses_kernels.LOGISTIC, 0.0, out)
    close(out, naive.history_gradient(w.tolist(), x.tolist(), 1.0, past, "Logistic"))


@against(naive.history_store)
def history_store(kernel: Any, rng: Rng) -> None:
    table, rows, labels = all_past(flat(3, buffers.FULL, 9, 0), 3, 9)
    kept: list[Any] = []
    for t, (x, y) in enumerate(records(rng, 3)[:9]):
        row = list(x.values())
        kernel(np.array(row), y, table, t, False)
        kept = naive.history_store(kept, row, y)
    assert [(x.tolist(), y) for x, y in zip(rows, labels[:, 0], strict=True)] == kept


# ---- symmetric matrices --------------------------------------------------------------------------------


def symmetric(rng: Rng, d: int = 4) -> np.ndarray:
    w = rng.normal(size=(d, d))
    return w + w.T


@against(naive.eigenvalues)
def eigen(kernel: Any, rng: Rng) -> None:
    w, values = symmetric(rng), unset(4)
    vectors = w.copy()
    kernel(vectors, values)
    close(sorted(values.tolist()), naive.eigenvalues(w))
    close(vectors.T @ np.diag(values) @ vectors, w)


@against(naive.ridge_solution)
def ridge_solution(kernel: Any, rng: Rng) -> None:
    for d, noise in itertools.product((1, 4, 9), (0.0, 0.1)):
        w, right, out = symmetric(rng, d), rng.normal(size=d), unset(d)
        trace = kernel(w, right, 0.3, noise, out)
        solution, wanted = naive.ridge_solution(w, right, 0.3, noise)
        close(out, solution)
        close(trace, wanted)


@against(naive.blt_variances)
def blt_variances(kernel: Any, rng: Rng) -> None:
    for h in (1, 2, 5):
        # Some memories have an eigenvalue below 0: of those the power's sign counts.
        omega, decay = rng.uniform(0.05, 0.9, h), 10.0 ** rng.uniform(-6, 0, h)
        steps, out = np.array([1.0, 2.0, 7.0, 30.0, 0.0]), unset(5)
        kernel(omega, decay, steps, out)
        close(out.tolist(), naive.blt_variances(omega.tolist(), decay.tolist(), steps.tolist()), 1e-8)


@against(naive.psd_root)
def psd_root(kernel: Any, rng: Rng) -> None:
    w, out = symmetric(rng), unset((4, 4))
    assert kernel(w, out) == bool(np.linalg.eigvalsh(w)[-1] > 0)
    close(out, naive.psd_root(w))


@against(naive.map_rows)
def map_rows(kernel: Any, rng: Rng) -> None:
    w, rows, out = symmetric(rng), rng.normal(size=(3, 4)), unset((3, 4))
    assert kernel(w, rows, out) == 0
    close(out, naive.map_rows(w, rows))


# ---- evaluation, random features, entities -------------------------------------------------------------


@against(naive.Window, "auc_add", "auc_add_many", "auc_revert")
def rolling_auc(kernel: Any, rng: Rng) -> None:
    s = np.zeros(rolling_auc_kernels.AUC_HEADER + 2 * 6 + 7 * rolling_auc_kernels.AUC_NODE)
    s[rolling_auc_kernels.AUC_WINDOW] = 6
    reference = naive.Window(6)
    events = [
        (float(score), int(y))
        for score, y in zip(rng.integers(0, 5, 15), rng.integers(0, 2, 15), strict=True)
    ]
    for score, label in events[:-1]:
        rolling_auc_kernels.auc_add(s, score, label)
        reference.add(score, label)
    if kernel.__name__ == "auc_revert":
        assert kernel(s, *events[-3]) == reference.revert(*events[-3])
    elif kernel.__name__ == "auc_add":
        kernel(s, *events[-1])
        reference.add(*events[-1])
    else:
        kernel(s, np.array([score for score, _ in events]), np.array([bool(y) for _, y in events]))
        for event in events:
            reference.add(*event)
    close(
        [
            s[rolling_auc_kernels.AUC_POSITIVE],
            s[rolling_auc_kernels.AUC_NEGATIVE],
            s[rolling_auc_kernels.AUC_WINS],
        ],
        list(reference.counts),
    )


@against(naive.normals_from_seed)
def normals_from_seed(kernel: Any, rng: Rng) -> None:
    seed, out = int(rng.integers(2**53)), unset(9)
    kernel(seed, out)
    close(out.tolist(), naive.normals_from_seed(seed, 9))


@against(naive.fourier)
def fourier_rows(kernel: Any, rng: Rng) -> None:
    rows, frequencies, out = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), unset((2, 8))
    kernel(rows, frequencies, out)
    close(out.tolist()[1], naive.fourier(rows[1].tolist(), frequencies.tolist()))


@against(naive.cell)
def entity_cell(kernel: Any, rng: Rng) -> None:
    keys = np.zeros(16, dtype=np.uint64)
    for key in rng.integers(1, 2**63, 12).tolist():
        cell = kernel(keys, np.uint64(key))
        assert cell == naive.cell(keys.tolist(), key)
        keys[cell] = key


@against(naive.admitted)
def entity_admit(kernel: Any, rng: Rng) -> None:
    # Three records an entity, four slots apart. Three entities have room, all others share two accounts.
    limits = {"records": 3, "separation": 4, "capacity": 3, "shared": 2}
    entities = np.concatenate([[0], rng.integers(3, 2**63, 6)]).astype(np.uint64)
    keys, last, count = (np.zeros(16, dtype=t) for t in ("u8", "i8", "u2"))
    history: dict[int, list[int]] = {}
    used, slot = 0, 1
    for n in (9, 0, 1, 30):
        coming, admitted = rng.choice(entities, n), rng.choice([True, False], n)
        used = kernel(keys, last, count, coming, slot, 3, 4, used, 3, 2, admitted)
        assert admitted.tolist() == naive.admitted(history, coming.tolist(), slot, **limits)
        slot += n
    occupied = keys != 0
    got = zip(keys[occupied].tolist(), last[occupied].tolist(), count[occupied].tolist(), strict=True)
    assert used == len(history)
    assert naive.table(list(got)) == {key: (slots[-1], len(slots)) for key, slots in history.items()}
    assert [naive.cell(keys.tolist(), key) for key in keys[occupied].tolist()] == np.flatnonzero(
        occupied
    ).tolist()


@against(naive.table)
def entity_fill(kernel: Any, rng: Rng) -> None:
    entries = [(int(rng.integers(1, 2**63)), i, i % 3) for i in range(1, 9)]
    new = [np.array(v, dtype=t) for v, t in zip(zip(*entries, strict=True), ("u8", "i8", "u2"), strict=True)]
    keys, last, count = (np.zeros(16, dtype=a.dtype) for a in new)
    kernel(keys, last, count, *new)
    used = keys != 0
    got = zip(keys[used].tolist(), last[used].tolist(), count[used].tolist(), strict=True)
    assert naive.table(list(got)) == naive.table(entries)


# ---- labels ----------------------------------------------------------------------------------------------


def some_labels(rng: Rng, n: int) -> tuple[Any, Any, Any]:
    """Digests, times and which are used; some digests share their cell, and some of these their tag."""
    words = np.array([[3, 1], [3, 2], [3, 2**63], [35, 1], [2**64 - 1, 2**64 - 1]], dtype=np.uint64)
    return (
        words[rng.integers(0, len(words), n)],
        rng.integers(0, 50, n),
        rng.integers(0, 2, n).astype(np.uint8),
    )


def indexed(kernel: Any, digests: Any, used: Any) -> tuple[Any, Any]:
    following, index = np.zeros(len(used), dtype=np.uint32), np.zeros(32, dtype=np.uint32)
    for start, stop in itertools.pairwise((0, len(used) // 2, len(used))):
        kernel(digests, used, following, index, start, stop)
        assert ((index & label_kernels.MAX_ROWS) <= len(used)).all()  # else no kernel may go on with it
    return following, index


@against(label_table.label_lists)
def label_index(kernel: Any, rng: Rng) -> None:
    digests, _, used = some_labels(rng, 14)
    following, index = indexed(kernel, digests, used)
    found: dict[tuple[int, ...], set[int]] = {}
    for cell in index[index > 0].tolist():
        row, rows = (cell & label_kernels.MAX_ROWS) - 1, set[int]()
        digest = tuple(digests[row % 14].tolist())
        assert cell >> label_kernels.ROW_BITS == digest[1] >> 52
        while row >= 0:
            assert row < 14
            assert row not in rows
            rows.add(row)
            row = int(following[row]) - 1
        found[digest] = rows
    assert found == label_table.label_lists(digests.tolist(), used.tolist())


@against(label_table.label_take)
def label_take(kernel: Any, rng: Rng) -> None:
    digests, times, used = some_labels(rng, 16)
    following, index = indexed(label_kernels.label_index, digests, used)
    unused = used.tolist()
    for expired in (0, 10, 30):  # those that were taken or have expired are no longer in a list
        wanted = some_labels(rng, 6)[0]
        earliest = np.maximum(rng.integers(0, 40, 6), expired)
        latest = earliest + rng.integers(0, 20, 6)
        event, found = 0, []
        rows, events = np.full(3, -1), np.full(3, -1)
        while event < len(wanted):
            event, taken = kernel(
                *(
                    digests,
                    times,
                    used,
                    following,
                    index,
                    wanted,
                    earliest,
                    latest,
                    event,
                    expired,
                    rows,
                    events,
                )
            )
            found += zip(rows[:taken].tolist(), events[:taken].tolist(), strict=True)
            assert event == len(wanted) or taken == 3
        arrays = (a.tolist() for a in (wanted, earliest, latest))
        assert sorted(found) == sorted(
            label_table.label_take(digests.tolist(), times.tolist(), unused, *arrays)
        )
        assert used.tolist() == unused


@against(label_table.label_first)
def label_first(kernel: Any, rng: Rng) -> None:
    parts = []
    for count in (16, 9):  # two segments
        digests, times, _ = some_labels(rng, count)
        following, index = indexed(label_kernels.label_index, digests, np.zeros(count, np.uint8))
        places = rng.permutation(1000)[:count].astype(np.uint64)
        parts.append((digests, times, places, following, index))
    digests, times, places = (list(itertools.chain(*(part[i].tolist() for part in parts))) for i in range(3))
    for expired in (0, 10, 30):
        wanted = some_labels(rng, 6)[0]
        earliest = np.maximum(rng.integers(0, 40, 6), expired)
        latest = earliest + rng.integers(0, 20, 6)
        first_times, first_places = np.full(6, 2**63 - 1), np.full(6, 2**64 - 1, np.uint64)
        for part in parts:
            kernel(*part, wanted, earliest, latest, expired, first_times, first_places)
        known = label_table.label_first(
            digests, times, places, *(a.tolist() for a in (wanted, earliest, latest))
        )
        found = zip(first_times.tolist(), first_places.tolist(), strict=True)
        assert [None if place == 2**64 - 1 else (time, place) for time, place in found] == known


@against(label_table.label_resolve)
def label_resolve(kernel: Any, rng: Rng) -> None:
    events, codes = rng.integers(0, 8, 30), rng.integers(1, 4, 30).astype(np.uint8)
    times, places = rng.integers(0, 3, 30), rng.permutation(30).astype(np.uint64)
    best, joined, joined_times = np.full(8, -1), np.zeros(8, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    counts = kernel(events, codes, times, places, best, joined, joined_times)
    wanted = label_table.label_resolve(*(a.tolist() for a in (events, codes, times, places)), 8)
    assert (joined.tolist(), joined_times.tolist(), *counts) == wanted
    assert [codes[i] for i in best[best >= 0]] == joined[best >= 0].tolist()


# ---- hashes --------------------------------------------------------------------------------------------


def some_bytes(rng: Rng, *shape: int) -> Any:
    return rng.integers(0, 256, shape).astype(np.uint8)


@against(naive.blake2b)
def blake2b(kernel: Any, rng: Rng) -> None:
    for length in (0, 1, 127, 128, 129, 256, *rng.integers(0, 1000, 20).tolist()):
        data, digest = some_bytes(rng, length), np.zeros(int(rng.integers(1, 65)), dtype=np.uint8)
        key = some_bytes(rng, int(rng.integers(0, 65)))
        block = np.zeros(128 if len(key) else 0, dtype=np.uint8)
        block[: len(key)] = key
        with np.errstate(over="ignore"):  # not compiled, its sums warn of what they are meant to do
            kernel(np.concatenate((block, data)), len(key), digest)
        assert digest.tobytes() == naive.blake2b(data.tobytes(), key.tobytes(), len(digest))


@against(naive.hash_chain)
def hash_chain(kernel: Any, rng: Rng) -> None:
    for length in (0, 95, 96, 97, *rng.integers(0, 400, 5).tolist()):
        chain, rows = some_bytes(rng, 32), some_bytes(rng, 5, length)
        wanted = naive.hash_chain(chain.tobytes(), [row.tobytes() for row in rows])
        with np.errstate(over="ignore"):
            kernel(chain, rows)
        assert chain.tobytes() == wanted


# ---- design and noise ----------------------------------------------------------------------------------


@against(naive.prepared)
def prepare_rows(kernel: Any, rng: Rng) -> None:
    raw, out, usable = rng.normal(size=(3, 2)) * 2, unset((3, 2)), unset(3)
    raw[1, 0] = math.nan
    mean, std = np.array([0.1, -0.2]), np.array([0.5, 0.8])
    scale, shift = np.array([2 / 5, 2.0]), np.array([-1 / 5, -1.0])
    kernel(raw, np.array([scale, shift, mean, 1 / std / math.sqrt(2)]), True, 0.9, out, usable)
    for row, value in zip(raw.tolist(), out, strict=True):
        wanted = naive.prepared(row, [(-2.0, 3.0), (0.0, 1.0)], (mean.tolist(), std.tolist()), 0.9)
        close(value.tolist(), wanted)
    assert usable.tolist() == [1.0, 0.0, 1.0]


@against(table_sums.design_columns)
def design_columns(kernel: Any, rng: Rng) -> None:
    d = int(rng.integers(1, 10))
    rows, labels = rng.normal(size=(7, d)) * 3.0, rng.choice([1.0, -1.0], 7)
    rows[1, 0], rows[2, -1], rows[3], labels[4] = math.nan, -math.inf, 1e200, math.nan
    mean, std, low = rng.uniform(-0.3, 0.3, d), rng.uniform(0.3, 1.0, d), rng.uniform(-3.0, -1.0, d)
    scaling = np.array([1.0 / -low, np.zeros(d), mean, 1 / std / math.sqrt(d)])
    bounds = [(value, -value) for value in low.tolist()]
    out, found = unset((d, 7)), labels.copy()
    kernel(rows.T.copy(), scaling, 0.9, out, found)
    wanted = table_sums.design_columns(
        rows.tolist(), bounds, (mean.tolist(), std.tolist()), 0.9, labels.tolist()
    )
    assert found.tolist() == pytest.approx(wanted[1], nan_ok=True)
    whole = np.isfinite(rows).all(axis=1)
    close(out.T[whole].ravel().tolist(), np.array(wanted[0])[whole].ravel().tolist())


@against(table_sums.ball_steps)
def ball_steps(kernel: Any, rng: Rng) -> None:
    rows, labels = rng.normal(size=(9, 3)), np.array([1.0, -1.0, math.nan] * 3)
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows[3] *= 2.0
    rows[4], rows[6, 1], rows[7] = 0.25, math.nan, 2.0
    columns = rows.T.copy()
    kernel(columns, labels, float(2**16))
    assert columns.T.tolist() == table_sums.ball_steps(rows.tolist(), labels.tolist())


def words(rng: Rng, count: int) -> np.ndarray:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


@against(table_sums.id_hashes)
def id_hashes(kernel: Any, rng: Rng) -> None:
    ids, key, out = words(rng, 9), words(rng, 2), np.zeros(9, dtype=np.uint64)
    kernel(ids, *key, out)
    assert out.tolist() == table_sums.id_hashes(ids.tolist(), *key.tolist())


@against(table_sums.id_sum)
def id_sum(kernel: Any, rng: Rng) -> None:
    ids = words(rng, 9)
    assert kernel(ids) == table_sums.id_sum(ids.tolist())


@against(table_sums.repeated)
def repeated(kernel: Any, rng: Rng) -> None:
    for count in (0, 1, 40, 63):
        # Of few cells, so that they collide; with 0, which marks an empty cell, and many that are equal.
        hashes = rng.integers(0, 40, count).astype(np.uint64) * np.uint64(rng.choice([1, 64, 1 << 40]))
        table = np.zeros(2 ** int(count).bit_length(), dtype=np.uint64)
        assert kernel(hashes, table) == table_sums.repeated(hashes.tolist())


@against(naive.clipped)
def clip_rows(kernel: Any, rng: Rng) -> None:
    raw, out, usable = rng.normal(size=(3, 2)) * 2, unset((3, 2)), unset(3)
    raw[1, 0] = math.inf
    scale, shift = np.array([0.5, 2.0]), np.array([0.1, -1.0])
    kernel(raw, np.array([scale, shift]), out, usable)
    for row, value in zip(raw.tolist(), out.tolist(), strict=True):
        close(value, naive.clipped(row, scale.tolist(), shift.tolist()))
    assert usable.tolist() == [1.0, 0.0, 1.0]


@against(naive.blt_noise)
def blt_noise(kernel: Any, rng: Rng) -> None:
    z, memory = double_doubles(rng, 8, 3), np.zeros((2, 2, 3))
    omega, theta = rng.uniform(0.1, 0.5, 2), rng.uniform(0.1, 0.9, 2)
    wanted = naive.blt_noise(omega, theta, 1.5, z[0])
    kernel(omega, theta, memory, 1.5, z)
    close(z[0], wanted)


@against(naive.toeplitz_noise)
def toeplitz_noise(kernel: Any, rng: Rng) -> None:
    inverse, z = rng.normal(size=8), double_doubles(rng, 8, 3)
    out = z[:, 5:].copy()
    kernel(inverse, z[0].copy(), 5, 1.5, out)
    close(out[0], naive.toeplitz_noise(inverse, z[0], 5, 1.5))


@against(naive.moment_sums)
def moment_sums(kernel: Any, rng: Rng) -> None:
    rows, sums = rng.uniform(-1, 1, (5, 3)), np.zeros((2, 3), dtype=np.int64)
    kernel(rows, np.array([1.0, 1.0, 0.0, 1.0, 1.0]), 64.0, sums)
    assert sums.tolist() == naive.moment_sums(np.delete(rows, 2, axis=0).tolist(), 64.0)


@against(naive.class_sums)
def class_sums(kernel: Any, rng: Rng) -> None:
    rows, sums = rng.uniform(-1, 1, (6, 3)), np.zeros(6 + 9 + 3, dtype=np.int64)
    labels, classes = np.array([5.0, 2.0, math.nan, 7.0, 5.0, 9.0]), np.array([2.0, 5.0, 9.0])
    kernel(rows, labels, classes, 2.0**-9, sums)
    assert (
        np.abs(sums - naive.class_sums(rows.tolist(), labels.tolist(), [2.0, 5.0, 9.0], 2.0**-9)).max() <= 1
    )


@against(naive.second_moment_slot)
def second_moment_slot(kernel: Any, rng: Rng) -> None:
    coefficients = np.array([[2 / 5, 2.0], [-1 / 5, -1.0], [0.1, -0.2], [1.1, 0.8]])
    for label, value in ((1.0, 0.3), (-1.0, 0.3), (math.nan, 0.3), (1.0, math.nan), (-1.0, -math.inf)):
        cells, sums = np.array([value, *rng.normal(size=1), label]), np.zeros(5, dtype=np.int64)
        wanted = naive.second_moment_slot(cells.tolist(), coefficients.tolist(), 0.9, 0.2, 0.6, 2.0**-9)
        kernel(cells, coefficients, True, np.array([0.9, 0.2, 0.6, 2.0**-9]), sums)
        assert np.abs(sums - wanted).max() <= 1
        assert math.isnan(cells[-1]) is (math.isnan(label) or not math.isfinite(value))
        assert any(sums) is not math.isnan(cells[-1])


@against(naive.second_moment_sums)
def second_moment_sums(kernel: Any, rng: Rng) -> None:
    rows, sums = rng.uniform(-1, 1, (5, 3)), np.zeros(9, dtype=np.int64)
    labels = np.array([1.0, -1.0, math.nan, 1.0, 1.0])
    kernel(rows, labels, 0.2, 0.6, 2.0**-9, sums)
    assert (
        np.abs(sums - naive.second_moment_sums(rows.tolist(), labels.tolist(), 0.2, 0.6, 2.0**-9)).max() <= 1
    )


@against(naive.class_bins)
def class_bins(kernel: Any, rng: Rng) -> None:
    scores, labels = rng.normal(size=40), rng.choice([1.0, -1.0, math.nan], 40)
    scores[:2] = 1e9, -1e9
    labels[:2] = 1.0
    counts = np.zeros((2, 8), dtype=np.int64)
    kernel(scores, labels, 1.7, -0.3, counts)
    capped = np.clip(scores, -100.0, 100.0)
    assert counts.tolist() == naive.class_bins(capped.tolist(), labels.tolist(), 1.7, -0.3, 8)


# ---- private gradients, buffers and steps --------------------------------------------------------------

D, N, PLACES, GRID = 2, 9, 3, 2.0**-16
POLICIES = {"window": buffers.FIFO, "sample": buffers.RESERVOIR, "all": buffers.FULL}
FAMILIES = {dp_steps.LINEAR_PAIRS: naive.linear_pair, dp_steps.METRIC_PAIRS: naive.metric_pair}


class PrivateBuffer:
    """The buffer of a private run as the kernels take it, and its reference."""

    def __init__(
        self, policy: str, family: int = dp_steps.LINEAR_PAIRS, *, tangent: bool = False, uses: int = 4
    ) -> None:
        room = N if policy == "all" else PLACES
        uses = uses if policy == "sample" else 0
        ints = [family, losses_kernels.LOGISTIC, POLICIES[policy], room, uses, 5, int(tangent)]
        # Clip, radius, grid, sigma or ridge.
        self.numbers = np.array([*ints, 0.7, 1.5, GRID, 0.1])
        self.places = np.zeros((room, D + 2))
        self.reference = naive.Places(policy, PLACES, uses, seed=5)
        self.gradient = partial(naive.gradient, pair=FAMILIES[family], code=losses_kernels.LOGISTIC, clip=0.7)

    def store(self, kernel: Any, x: np.ndarray, y: float) -> None:
        kernel(x, y, self.reference.slots, self.numbers, self.places)
        self.reference.store([0.0] * D if math.isnan(y) else x.tolist(), y)


def slots(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    rows = rng.uniform(-0.7, 0.7, (N, D))
    return rows, rng.choice([1.0, -1.0, math.nan], N, p=[0.45, 0.45, 0.1])


def runs() -> Iterator[PrivateBuffer]:
    """A buffer of each kind for each family, empty."""
    yield from (PrivateBuffer(policy, family) for policy in POLICIES for family in FAMILIES)


def size_of(buffer: PrivateBuffer) -> int:
    return D if buffer.numbers[dp_steps.FAMILY] == dp_steps.LINEAR_PAIRS else D * (D + 1) // 2


@against(naive.mean_gradient)
def pair_gradient(kernel: Any, rng: Rng) -> None:
    rows, _ = slots(rng)
    labels = rng.choice([1.0, -1.0], N)
    w, out = rng.normal(size=D), unset(D)
    partners = list(zip(rows[1:4].tolist(), labels[1:4].tolist(), strict=True))
    for tangent in (False, True):
        places = np.column_stack([rows[1:4], labels[1:4], np.zeros(3)])
        kernel(w, rows[0], labels[0], places, 3, 5.0, losses_kernels.LOGISTIC, 0.2, tangent, out)
        wanted = naive.mean_gradient(
            w.tolist(), rows[0].tolist(), labels[0], partners, 5, losses_kernels.LOGISTIC, 0.2, tangent
        )
        close(out.tolist(), wanted)


@against(naive.gradient, "metric_gradient")
def metric_gradient(kernel: Any, rng: Rng) -> None:
    buffer, (rows, labels) = PrivateBuffer("window", dp_steps.METRIC_PAIRS), slots(rng)
    for x, y in zip(rows, labels, strict=True):
        buffer.store(dp_steps.private_store, x, y)
    w, out = rng.normal(size=3), unset(3)
    kernel(
        w,
        rows[0],
        1.0,
        buffer.places,
        PLACES,
        float(PLACES),
        losses_kernels.LOGISTIC,
        0.7,
        out,
    )
    close(out, buffer.gradient(w, rows[0].tolist(), 1.0, buffer.reference))


@against(naive.gradient, "private_gradient")
def private_gradient(kernel: Any, rng: Rng) -> None:
    rows, labels = slots(rng)
    for buffer in runs():
        for t, (x, y) in enumerate(zip(rows, labels, strict=True)):
            w, out = rng.normal(size=size_of(buffer)), unset(size_of(buffer))
            kernel(w, x, y, t, buffer.numbers, buffer.places, out)
            close(out, buffer.gradient(w, x.tolist(), y, buffer.reference))
            buffer.store(dp_steps.private_store, x, y)


@against(naive.Places, "private_store")
def private_store(kernel: Any, rng: Rng) -> None:
    rows, labels = slots(rng)
    for buffer in runs():
        for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
            buffer.store(kernel if i == N - 1 else dp_steps.private_store, x, y)
        order = [(*row, repr(float(label))) for row, label in buffer.reference.pairs()]
        kept = len(order)
        got = [(*row, repr(label)) for *row, label, _ in buffer.places.tolist()]
        assert sorted(got[:kept]) == sorted(order)


def start(buffer: PrivateBuffer) -> np.ndarray:
    """The vectors."""
    return np.zeros((4, size_of(buffer)))


def ftrl_reference(rows: Any, labels: Any, noise: Any, etas: Any, origin: Any) -> Any:
    gradient = partial(naive.mean_gradient, size=PLACES, code=losses_kernels.LOGISTIC, clip=0.7)
    arguments = (rows.tolist(), labels.tolist(), noise.tolist(), etas.tolist())
    return naive.ftrl(
        *arguments, size=PLACES, radius=1.5, grid=GRID, gradient=gradient, start=origin.tolist()
    )


@against(naive.ftrl)
def ftrl_steps(kernel: Any, rng: Rng) -> None:
    buffer, (rows, labels) = PrivateBuffer("window"), slots(rng)
    noise, etas = rng.normal(size=(N, D)), np.linspace(0.5, 0.1, N)
    vectors = start(buffer)
    vectors[:2] = vectors[3] = np.linspace(-0.3, 0.2, D)
    total = np.zeros(D, dtype=np.int64)
    kernel(rows, labels, whole_steps(noise), etas, 0, buffer.numbers, vectors, total, buffer.places)
    wanted = ftrl_reference(rows, labels, noise, etas, vectors[3])
    close(vectors[0], wanted["w"][-1], 1e-3)
    close(vectors[1], wanted["average"][-1], 1e-3)


@against(naive.score_and_cells)
def score_and_cells(kernel: Any, rng: Rng) -> None:
    rows, labels = slots(rng)
    for buffer in runs():
        for x, y in zip(rows[2:], labels[2:], strict=True):
            buffer.store(dp_steps.private_store, x, y)
        vectors = start(buffer)
        vectors[:2] = rng.normal(size=(2, size_of(buffer)))
        queries, y = rng.normal(size=(2, size_of(buffer))), np.array([-1.0, 1.0])
        g = buffer.gradient(vectors[0], rows[1].tolist(), 1.0, buffer.reference)
        score, wanted = naive.score_and_cells(vectors[1].tolist(), queries[1].tolist(), g, GRID)
        for scores in (np.full(2, 7.0), np.empty(0)):  # empty: nobody asks
            cells = unset(size_of(buffer), dtype=np.int64)
            kernel(rows[:2], y, queries, scores, 1, N - 2, buffer.numbers, vectors, buffer.places, cells)
            assert np.abs(cells - wanted).max() <= 1
            close(scores.tolist(), [7.0, score][: len(scores)])


@against(naive.ftrl_turns)
def ftrl_turn(kernel: Any, rng: Rng) -> None:
    buffer, (rows, labels) = PrivateBuffer("window"), slots(rng)
    words, etas = rng.integers(0, 2**64, (N, 3), dtype=np.uint64), np.linspace(0.5, 0.1, N)
    shape, memory = np.array([[0.3, 0.2], [0.5, 0.8]]), np.zeros((2, 2, D))
    buffer.numbers = np.concatenate([buffer.numbers, *shape])
    vectors = start(buffer)
    batch = rows, labels, rng.normal(size=(N, D)), np.full(N, 7.0)
    total, cells = np.zeros(D, dtype=np.int64), unset(D, dtype=np.int64)
    dp_steps.score_and_cells(*batch, 0, 0, buffer.numbers, vectors, buffer.places, cells)
    for t in range(N):
        noise = words[t], memory, cells
        kernel(*batch, t, *noise, etas[t], t, buffer.numbers, vectors, total, buffer.places)
    wanted = naive.ftrl_turns(
        batch[2].tolist(), rows.tolist(), labels.tolist(), words.tolist(), etas.tolist(),
        omega=shape[0], theta=shape[1], sigma=0.1, size=PLACES, radius=1.5, grid=GRID,
        gradient=partial(naive.mean_gradient, size=PLACES, code=losses_kernels.LOGISTIC, clip=0.7),
    )  # fmt: skip
    assert total.tolist() == wanted["total"][-1]
    assert cells.tolist() == wanted["gradient"][-1]
    close(batch[3].tolist(), wanted["scores"])
    close(vectors[:2], np.array([wanted["w"][-1], wanted["average"][-1]]))


@against(naive.output)
def output_steps(kernel: Any, rng: Rng) -> None:
    rows, labels = slots(rng)
    for buffer in runs():
        etas, centre = np.concatenate([[0.0], np.full(N - 1, 0.2)]), np.full(size_of(buffer), 0.05)
        vectors, cells = np.stack([centre, centre, centre]), unset((N, size_of(buffer)), dtype=np.int64)
        buffer.numbers[dp_steps.RIDGE] = 0.3
        kernel(rows, labels, etas, np.full(N, GRID), 0, buffer.numbers, vectors, buffer.places, cells)
        wanted = naive.output(
            rows.tolist(), labels.tolist(), etas.tolist(), buffer.reference,
            radius=1.5, alpha=0.3, centre=centre, gradient=buffer.gradient,
        )  # fmt: skip
        close(cells * GRID, wanted, 1e-4)


@against(naive.released)
def output_releases(kernel: Any, rng: Rng) -> None:
    cells, z = rng.integers(-50, 50, (4, D)), rng.normal(size=(4, D))
    sigmas, gammas = rng.uniform(0.5, 2, 4), np.full(4, 0.25)
    average, published = np.zeros(D), np.zeros(D)
    normals = np.stack((z.ravel(), np.zeros(z.size)))
    total = kernel(cells, normals, sigmas, gammas, False, 2.0, 0.0, average, published)
    wanted, weight = naive.released(cells, z, sigmas.tolist(), gammas.tolist())
    close(total, weight)
    close(average, wanted)
    close(published.tolist(), naive.project_ball(wanted.tolist(), 2.0))


# ---- sensitivity ---------------------------------------------------------------------------------------


@against(naive.worst, "stay_sensitivities", "stay_spend", "window_sensitivities", "window_spend")
def sensitivity(kernel: Any, rng: Rng) -> None:
    steps, size = 12, 3
    # Records that stay have a radius; the windows' bounds are cut where they are used.
    stays = kernel.__name__.startswith("stay")
    uses, radius = None if stays else 4, 0.6 if kernel.__name__ == "stay_sensitivities" else math.inf
    etas, factors, shares = rng.uniform(0.1, 1, steps), rng.uniform(0.5, 1, steps), np.full(steps, 1 / size)
    owns = np.minimum(np.arange(steps), size) / size
    grids, precisions = rng.uniform(0, 0.1, steps), rng.uniform(0, 4, steps)
    moves, cost = naive.worst(
        etas.tolist(), factors.tolist(), grids, precisions, size=size, uses=uses, diameter=2.0, radius=radius
    )
    out = unset(steps)
    if kernel.__name__ == "stay_sensitivities":
        kernel(etas, factors, owns, shares, 2.0, 2 * radius, out)
    elif kernel.__name__ == "window_sensitivities":
        kernel(etas, factors, owns, shares, uses, 2.0, out)
    else:
        # Without a radius no bound cuts anything off.
        most = np.full(steps, 1e9)
        if stays:
            close(kernel(etas, factors, owns, shares, 2.0, most, grids, precisions, steps), cost)
            return
        close(kernel(etas, factors, owns, shares, uses, 2.0, most, grids, precisions, steps), cost)
        return
    close(out, moves)


@against(naive.pairs, "window_pairs")
def sensitivity_of_pairs(kernel: Any, rng: Rng) -> None:
    steps, size, uses = 14, 3, 4
    etas, factors, shares = rng.uniform(0.1, 1, steps), rng.uniform(0.5, 1, steps), np.full(steps, 1 / size)
    precisions = rng.uniform(0, 4, steps)
    wanted = naive.pairs(etas.tolist(), factors.tolist(), precisions, size=size, window=uses, diameter=2.0)
    merged, lasting = unset(steps), unset(steps)
    kernel(etas, factors, shares, uses, 2.0, np.full(steps, 1e9), precisions, merged, lasting)
    close(merged, wanted[0])
    close(lasting, wanted[1])


# ---- forests -----------------------------------------------------------------------------------------------


def mixed(rng: Rng, n: int) -> tuple[np.ndarray, list[list[Any]]]:
    """Rows of numbers (some equal), texts and gaps: for the kernels, and for the reference."""
    rows = np.round(rng.normal(size=(n, 5)), 1)
    rows[:, 2] = [as_code("abcd"[i]) for i in rng.integers(4, size=n)]
    rows[rng.random(n) < 0.2, 1] = np.nan
    rows[rng.random(n) < 0.2, 2] = np.nan
    rows[rng.random(n) < 0.1, 3] = as_code("odd")  # a text among numbers
    payload = rows.view(np.int64) & ((1 << 51) - 1)
    values = [
        [v if v == v else naive.Text(p) if p else None for v, p in zip(row, bits, strict=True)]
        for row, bits in zip(rows.tolist(), payload.tolist(), strict=True)
    ]
    return rows, values


def forest(
    trees: int,
    nodes: int,
    d: int,
    seed: int,
    squared: bool = False,
    guided: bool = True,
    brisk: bool = False,
    several: bool = False,
) -> np.ndarray:
    end = forest_kernels.forest_places(trees, nodes, d, forest_kernels.FOREST_BUCKETS)[-1]
    pairs = forest_kernels.forest_pair_places(trees, d)[-1]
    ring, block = new_ring(d, seed, 1 if squared else 2 if several else 0)
    state = np.concatenate((np.zeros(end + pairs), ring, block))
    state[forest_kernels.FOREST_RING] = end + pairs
    state[forest_kernels.FOREST_BOOSTED] = end + pairs + len(ring)
    state[forest_kernels.FOREST_D] = state[forest_kernels.FOREST_CAP] = d
    (
        state[forest_kernels.FOREST_TREES],
        state[forest_kernels.FOREST_NODES],
        state[forest_kernels.FOREST_SEED],
    ) = (
        trees,
        nodes,
        seed,
    )
    state[forest_kernels.FOREST_TEXTS], state[forest_kernels.FOREST_TASK] = (
        forest_kernels.FOREST_BUCKETS,
        squared,
    )
    state[forest_kernels.FOREST_GUIDED], state[forest_kernels.FOREST_BRISK] = guided, brisk
    forest_kernels.forest_fresh(state)
    return state


def new_ring(d: int, seed: int, task: int, rows: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An empty ring, and a block of boosted trees."""
    rows = rows or boosted_kernels.ring_rows(d)
    ring = np.zeros(boosted_kernels.ring_places(d, rows)[-1])
    ring[boosted_kernels.RING_WIDTH], ring[boosted_kernels.RING_ROWS] = d, rows
    ring[boosted_kernels.RING_TASK], ring[boosted_kernels.RING_SEED] = task, seed
    block = np.zeros(boosted_kernels.boosted_places(d, rows)[-1])
    boosted_kernels.boosted_fresh(block, d, rows)
    return ring, block


def unboosted(state: np.ndarray, reference: Any, d: int = 5) -> None:
    """Let no boosted tree be built, which takes the reference long, nor begin again."""
    block = forest_kernels.forest_boosted(state)
    block[boosted_kernels.BOOSTED_CREDIT], block[boosted_kernels.BOOSTED_BEST] = -math.inf, math.inf
    reference.boosted = naive.Boosted(d, reference.seed, reference.squared)
    reference.boosted.credit, reference.boosted.best = -math.inf, math.inf


NO_CLASSES = np.empty((0, 0))


def learn_rows(state: np.ndarray, step: Callable[[int], int], others: np.ndarray = NO_CLASSES) -> None:
    """Let a kernel learn rows from one on, and rebuild boosted trees whenever it says that it is due."""
    begin = 0
    while after := step(begin):
        assert after > begin
        assert state[forest_kernels.FOREST_RECORDS] % 1.0 == 0.0  # else no kernel may go on with it
        forest_kernels.forest_rebuild(state, others)
        begin = after


def rebuild_if_due(state: np.ndarray, done: int, others: np.ndarray = NO_CLASSES) -> None:
    """What is due after a record was learned."""
    assert done in (0, forest_kernels.DUE)
    if done:
        forest_kernels.forest_rebuild(state, others)


def learned(rng: Rng, n: int = 150) -> tuple[np.ndarray, Any, np.ndarray, list[list[Any]]]:
    """A state and the reference after n rows, more than its small trees hold; and ten more rows."""
    seed, squared = int(rng.integers(1000)), bool(rng.integers(2))
    rows, values = mixed(rng, n + 10)
    rows[:, 4] = np.where(rng.random(n + 10) < 0.4, 2.0, np.nan)  # as a word: it is there or not
    for x, word in zip(values, rows[:, 4].tolist(), strict=True):
        x[4] = word if word == word else None
    state, reference = forest(3, 35, 5, seed, squared), naive.Forest(3, 35, seed, squared, guided=True)
    if squared:
        unboosted(state, reference)
    labels = np.where(np.nan_to_num(rows[:, 0]) + 0.3 * rng.normal(size=n + 10) > 0, 1.0, -1.0)
    if squared:
        labels = 50.0 + 7.0 * labels + rng.normal(size=n + 10)
    learn_rows(
        state,
        lambda row: forest_kernels.forest_learn_many(state, rows[:n], labels[:n], np.empty(0), row),
    )
    for x, y in zip(values[:n], labels, strict=False):
        reference.learn(x, y)
    return state, reference, rows[n:], values[n:]


def put(state: np.ndarray, row: np.ndarray) -> None:
    position = forest_kernels.FOREST_HEADER + forest_kernels.RECORD_AT * len(row)
    state[position : position + len(row)] = row


@against(naive.Forest)
def forest_fresh(kernel: Any, rng: Rng) -> None:
    state = forest(2, 7, 1, 0)
    end = int(state[forest_kernels.FOREST_RING])
    state[forest_kernels.FOREST_HEADER : end] = rng.normal(size=end - forest_kernels.FOREST_HEADER)
    kernel(state)
    reference = naive.Forest(2, 7, 0)
    close(state[forest_kernels.FOREST_STACK : forest_kernels.FOREST_STACK + 5].tolist(), reference.stack)
    at_texts, at_weights, at_used, at_nodes, at_scratch, _ = forest_kernels.forest_places(
        2, 7, 1, forest_kernels.FOREST_BUCKETS
    )
    assert state[at_used:at_nodes].tolist() == reference.used
    assert not state[at_weights:at_used].any()
    assert not state[at_nodes:at_scratch].any()
    assert state[at_texts:at_weights].all()  # what is not the trees' stays


@against(naive.Forest)
def forest_score(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    for row, x in zip(rows, values, strict=True):
        put(state, row)
        close(kernel(state, True), reference.score(x))
    for bad in (math.inf, 1e51):
        put(state, np.array([0.0, 0.0, bad, 0.0, 0.0]))
        assert math.isnan(kernel(state, True))
    put(state, np.array([0.0, 0.0, math.nan, 0.0, 0.0]))
    assert math.isnan(kernel(state, False))
    assert not math.isnan(kernel(state, True))


@against(naive.Forest)
def forest_scatter(kernel: Any, rng: Rng) -> None:
    """Rows with gaps, in any order of their columns, beside whole ones that are packed."""
    state, reference, rows, values = learned(rng)
    for i, (row, x) in enumerate(zip(rows, values, strict=True)):
        there = rng.permutation([j for j, value in enumerate(x) if value is not None])
        if i % 4 == 3 and len(there) == len(row):
            put(state, row)
            rebuild_if_due(state, forest_kernels.forest_learn(state, 1.0, False))
        else:
            kept = state.copy()
            places = there.astype(np.int64).view(np.float64)
            kernel(state, np.concatenate((places, row[there])), len(there))
            if i % 2:
                close(forest_kernels.forest_score(state, True), reference.score(x))
            rebuild_if_due(state, forest_kernels.forest_learn(state, 1.0, True))
            if i == 0:  # the bits of the same row in full, with its gaps
                put(kept, row)
                kept[forest_kernels.FOREST_FEW] = 0.0
                rebuild_if_due(kept, forest_kernels.forest_learn(kept, 1.0, True))
                assert forest_kernels.forest_score(kept, True) == forest_kernels.forest_score(state, True)
        reference.learn(x, 1.0)
    entries = np.array([np.int64(2).view(np.float64), 2e50])
    forest_kernels.forest_scatter(state, entries, 1)
    assert math.isnan(forest_kernels.forest_score(state, True))


@against(naive.Forest)
def forest_proba(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    state[forest_kernels.FOREST_TASK], reference.squared = 0.0, False
    for row, x in zip(rows, values, strict=True):
        put(state, row)
        close(kernel(state, True), naive.sigmoid(reference.score(x)))
        assert kernel(state, True) == numerics.sigmoid(forest_kernels.forest_score(state, True))
    put(state, np.array([0.0, 0.0, math.nan, 0.0, 0.0]))
    assert math.isnan(kernel(state, False))


@against(naive.Forest)
def forest_score_many(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    scores = unset(len(rows))
    kernel(state, rows, scores)
    close(scores.tolist(), [reference.score(x) for x in values])


@against(naive.Forest)
def forest_learn(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    for i, (row, x) in enumerate(zip(rows, values, strict=True)):
        put(state, row)
        if i % 2:  # its leaves are at hand then
            forest_kernels.forest_score(state, True)
        rebuild_if_due(state, kernel(state, -1.0, True))
        reference.learn(x, -1.0)
    close(state[forest_kernels.FOREST_STACK : forest_kernels.FOREST_STACK + 5].tolist(), reference.stack)
    put(state, rows[0])
    close(forest_kernels.forest_score(state, True), reference.score(values[0]))
    put(state, np.full(5, math.nan))
    assert kernel(state, 1.0, False) == forest_kernels.UNUSABLE
    assert state[forest_kernels.FOREST_RECORDS] == reference.records


@against(naive.Forest)
def forest_learn_many(kernel: Any, rng: Rng) -> None:
    """Past the first tree that is emptied, and past a change of labels after which an expert begins again."""
    n, flipped, seed = 480, 300, int(rng.integers(1000))
    rows, values = mixed(rng, n)
    rows[:, 0] = rng.choice([-1.0, 1.0], n) * rng.integers(1, 4, n)
    for x, value in zip(values, rows[:, 0].tolist(), strict=True):
        x[0] = value
    labels = np.sign(rows[:, 0])
    labels[flipped:] *= -1.0
    squared = bool(rng.integers(2))
    if squared:
        labels = 20.0 * labels - 300.0
    guided = bool(rng.integers(3))  # if not, it began before gains were counted
    brisk = bool(rng.integers(2))
    state, scores = forest(2, 33, 5, seed, squared, guided, brisk), unset(n)
    reference = naive.Forest(2, 33, seed, squared, guided, brisk)
    unboosted(state, reference)
    learn_rows(state, lambda row: kernel(state, rows, labels, scores, row))
    for x, y, score in zip(values, labels.tolist(), scores.tolist(), strict=True):
        close(score, reference.score(x), 1e-7)
        reference.learn(x, y)
    assert state[forest_kernels.FOREST_DRAWS] == reference.draws
    assert reference.resets == (state[forest_kernels.FOREST_SINCE] < n)
    assert squared or reference.resets == 1


def pair_forest(loss: losses.PairLoss, seed: int) -> tuple[np.ndarray, Any, np.ndarray]:
    """A state that learns from pairs, its reference, and what of the state pairs need."""
    state = forest(2, 33, 5, seed)
    state[forest_kernels.FOREST_TASK] = forest_kernels.FOREST_PAIRS + loss.code
    tail = state[forest_kernels.forest_places(2, 33, 5, forest_kernels.FOREST_BUCKETS)[-1] :]
    tail[state_kernels.SLOPE] = 1.0
    reference = naive.PairForest(2, 33, seed, name_of(loss), guided=True)
    unboosted(state, reference)
    return state, reference, tail


@against(naive.PairForest)
def forest_learn_pairs(kernel: Any, rng: Rng) -> None:
    rows, values = mixed(rng, 60)
    labels, scores = np.where(rows[:, 0] > 0.0, 1.0, -1.0), unset(60)
    state, reference, _ = pair_forest(losses.Logistic(), int(rng.integers(1000)))
    learn_rows(state, partial(kernel, state, rows, labels, scores))
    for x, y, score in zip(values, labels.tolist(), scores.tolist(), strict=True):
        close(score, reference.score(x), 1e-7)
        reference.learn(x, y)


@against(naive.PairForest)
def forest_learn_pair(kernel: Any, rng: Rng) -> None:
    rows, values = mixed(rng, 60)
    state, reference, _ = pair_forest(losses.Logistic(), int(rng.integers(1000)))
    for row, x in zip(rows, values, strict=True):
        y = 1.0 if row[0] > 0.0 else -1.0
        put(state, row)
        close(forest_kernels.forest_score(state, True), reference.score(x), 1e-7)
        rebuild_if_due(state, kernel(state, y, True))
        reference.learn(x, y)
    put(state, np.full(5, math.nan))
    assert kernel(state, 1.0, False) == forest_kernels.UNUSABLE


@pytest.mark.parametrize("loss", MARGIN, ids=str)
def test_a_forest_from_pairs_against_its_reference(loss: losses.PairLoss) -> None:
    """Past the first tree that is emptied, past rings that are full, and past a change of labels."""
    for seed in SEEDS[:2]:
        rng = np.random.default_rng(seed)
        rows, values = mixed(rng, 480)
        labels = np.where(np.nan_to_num(rows[:, 0]) + 0.3 * rng.normal(size=480) > 0.8, 1.0, -1.0)
        labels[300:] *= -1.0
        (state, reference, tail), scores = pair_forest(loss, seed), unset(480)
        arguments = state, rows, labels, scores
        learn_rows(state, partial(forest_kernels.forest_learn_pairs, *arguments))
        for x, y, score in zip(values, labels.tolist(), scores.tolist(), strict=True):
            close(score, reference.score(x), 1e-6)
            reference.learn(x, y)
        assert state[forest_kernels.FOREST_DRAWS] == reference.draws
        assert state[forest_kernels.FOREST_SINCE] == len(reference.losses[2])
        close(link_kernels.link_proba(tail, 0.1), reference.link.probability(0.1), 1e-6)


@against(naive.Forest)
def forest_rebuild(kernel: Any, rng: Rng) -> None:
    """The columns are binned at the 50th record, and trees built from then on."""
    rows, values = mixed(rng, 70)
    seed, due = int(rng.integers(1000)), []
    state, reference = forest(3, 35, 5, seed), naive.Forest(3, 35, seed, guided=True)
    for i, (row, x) in enumerate(zip(rows, values, strict=True)):
        put(state, row)
        close(forest_kernels.forest_score(state, True), reference.score(x))
        y = 1.0 if row[0] > 0.0 else -1.0
        if forest_kernels.forest_learn(state, y, True) == forest_kernels.DUE:
            kernel(state, NO_CLASSES)
            due.append(i + 1)
            kinds = forest_kernels.forest_ring(state)[boosted_kernels.RING_HEADER :][63 : 5 * 64 : 64]
            assert (kinds % 1.0 == 0.0).all()  # else no kernel may go on with them
        reference.learn(x, y)
    assert due[0] == 50
    assert len(due) > 5


@against(naive.Forest)
def forest_begin(kernel: Any, rng: Rng) -> None:
    block = np.zeros(50)
    kernel(block)
    reference = naive.Forest(2, 7, 0)
    close(block[forest_kernels.FOREST_STACK : forest_kernels.FOREST_STACK + 5].tolist(), reference.stack)
    close(float(block[forest_kernels.FOREST_BEST]), reference.best)
    close(float(block.sum()), sum(reference.stack) + reference.best)


def sorted_out(rng: Rng, n: int, late: int) -> tuple[np.ndarray, list[list[Any]], np.ndarray]:
    """Rows and classes: two from the first rows on, a third from `late` on; at 260 two change places."""
    rows, values = mixed(rng, n)
    rows[:, 0] = rng.integers(0, 3, n)
    for x, value in zip(values, rows[:, 0].tolist(), strict=True):
        x[0] = value
    classes = rows[:, 0].astype(int)
    classes[260:] = 2 - classes[260:]
    classes[:late] %= 2
    classes[:2] = 0, 1
    return rows, values, classes


def of_classes(
    rng: Rng, n: int = 150
) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray, list[list[Any]], np.ndarray]:
    """A state, blocks of two further classes and the reference after n rows; and ten more rows."""
    seed, late = int(rng.integers(1000)), 90
    rows, values, classes = sorted_out(rng, n + 10, late)
    state, reference = forest(3, 35, 5, seed, guided=False, several=True), naive.Classes(3, 35, seed)
    others = np.zeros((0, 0))
    for begin, end in ((0, 1), (1, late), (late, n)):
        reference.admit()
        if begin > 0:
            block = further_class(3, 35)
            others = np.vstack((others.reshape(-1, len(block)), block))
        part = slice(begin, end)
        arguments = others, rows[part], classes[part], unset((end - begin, reference.known))
        learn_rows(state, partial(forest_kernels.forest_learn_classes, state, *arguments), others)
        for x, number in zip(values[part], classes[part].tolist(), strict=True):
            reference.learn(x, number)
    return state, others, reference, rows[n:], values[n:], classes[n:]


def further_class(trees: int, nodes: int) -> np.ndarray:
    """The block of a further class."""
    end = forest_kernels.forest_places(trees, nodes, 5, forest_kernels.FOREST_BUCKETS)[2]
    block = np.concatenate((np.zeros(end), new_ring(5, 0, 2)[1]))
    block[forest_kernels.FOREST_BOOSTED] = end
    forest_kernels.forest_begin(block)
    return block


@against(naive.Classes)
def forest_score_classes(kernel: Any, rng: Rng) -> None:
    state, others, reference, rows, values, _ = of_classes(rng)
    scores = unset(3)
    for row, x in zip(rows, values, strict=True):
        put(state, row)
        assert kernel(state, others, True, scores) == 0
        close(scores.tolist(), reference.scores(x))
    put(state, np.full(5, math.nan))
    assert kernel(state, others, False, scores) == 1


@against(naive.Classes)
def forest_score_classes_many(kernel: Any, rng: Rng) -> None:
    state, others, reference, rows, values, _ = of_classes(rng)
    scores = unset((len(rows), 3))
    kernel(state, others, rows, scores)
    close(scores.ravel().tolist(), [score for x in values for score in reference.scores(x)])


@against(naive.Classes)
def forest_learn_class(kernel: Any, rng: Rng) -> None:
    state, others, reference, rows, values, classes = of_classes(rng)
    for i, (row, x) in enumerate(zip(rows, values, strict=True)):
        put(state, row)
        if i % 2:  # its leaves are at hand then
            forest_kernels.forest_score_classes(state, others, True, unset(3))
        rebuild_if_due(state, kernel(state, others, int(classes[i]), True), others)
        reference.learn(x, int(classes[i]))
    scores = unset((10, 3))
    forest_kernels.forest_score_classes_many(state, others, rows, scores)
    close(scores.ravel().tolist(), [score for x in values for score in reference.scores(x)])
    put(state, np.full(5, math.nan))
    assert kernel(state, others, 1, False) == forest_kernels.UNUSABLE
    assert state[forest_kernels.FOREST_RECORDS] == reference.forests[0].records


@against(naive.Classes)
def forest_learn_classes(kernel: Any, rng: Rng) -> None:
    """Past the first tree that is emptied, and past a change after which experts may begin again."""
    n, seed = 480, int(rng.integers(1000))
    rows, values, classes = sorted_out(rng, n, 2)
    state, reference = forest(2, 33, 5, seed, guided=False, several=True), naive.Classes(2, 33, seed)
    others = np.array([further_class(2, 33), further_class(2, 33)])
    for _ in range(3):
        reference.admit()
    for block, each in zip((state, *others), reference.forests, strict=True):
        unboosted(block, each)
    scores = unset((n, 3))
    learn_rows(state, lambda row: kernel(state, others, rows, classes, scores, row), others)
    for x, number, scored in zip(values, classes.tolist(), scores.tolist(), strict=True):
        close(scored, reference.scores(x), 1e-7)
        reference.learn(x, number)
    assert state[forest_kernels.FOREST_DRAWS] == reference.forests[0].draws
    since = [int(block[forest_kernels.FOREST_SINCE]) for block in (state, *others)]
    assert [count < n for count in since] == [each.resets > 0 for each in reference.forests]


def kept_means(state: np.ndarray) -> np.ndarray:
    sizes = (forest_kernels.FOREST_TREES, forest_kernels.FOREST_NODES, forest_kernels.FOREST_CAP)
    return np.zeros(forest_kernels.forest_kept_places(*(int(state[i]) for i in sizes))[-1])


@against(naive.parts)
def forest_explain(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    kept, out = kept_means(state), unset(6)
    for row, x in zip(rows, values, strict=True):
        put(state, row)
        kernel(state, state, kept, out)
        close(out.tolist(), naive.parts(reference, x))
        close(float(out.sum()), reference.score(x))


@against(naive.largest)
def forest_largest(kernel: Any, rng: Rng) -> None:
    for d in range(9):
        parts = rng.integers(-3, 4, d) * rng.choice([1.0, 0.5], d)  # some are equal, some are 0
        columns, values = np.full(4, 7), np.full(4, 7.0)
        kernel(parts, columns, values)
        found = [(j, value) for j, value in zip(columns.tolist(), values.tolist(), strict=True) if j >= 0]
        assert found == naive.largest(parts.tolist(), 4)


@against(naive.parts)
def forest_learn_explained(kernel: Any, rng: Rng) -> None:
    state, reference, rows, values = learned(rng)
    kept, n = kept_means(state), len(rows)
    labels = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    labels[rng.integers(n)] = math.nan
    scores, columns, parts = unset(n), np.zeros((n, 2), dtype=np.int64), unset((n, 2))
    learn_rows(state, lambda row: kernel(state, kept, rows, labels, scores, columns, parts, row))
    for i, (x, y) in enumerate(zip(values, labels.tolist(), strict=True)):
        close(scores[i], reference.score(x), 1e-7)
        wanted = naive.largest(naive.parts(reference, x)[:-1], 2)
        assert [j for j in columns[i].tolist() if j >= 0] == [j for j, _ in wanted]
        close(parts[i, : len(wanted)].tolist(), [part for _, part in wanted], 1e-7)
        if y == y:
            reference.learn(x, y)
    assert state[forest_kernels.FOREST_RECORDS] == reference.records


@against(naive.importances)
def forest_importances(kernel: Any, rng: Rng) -> None:
    state, reference, _, _ = learned(rng)
    out = unset(5)
    kernel(state, state, out)
    close(out.tolist(), naive.importances(reference, 5))


# ---- boosted trees -----------------------------------------------------------------------------------------


def boosted_rows(rng: Rng, n: int, d: int) -> tuple[np.ndarray, list[list[Any]], np.ndarray]:
    """Rows of `mixed` and of further numbers, and labels that an interval and a text decide."""
    rows, values = mixed(rng, n)
    more, texts = rng.normal(size=(n, d)), [x[2] for x in values]
    more[:, :5] = rows[:, :d]
    more[:, :5].view(np.int64)[:] = rows[:, :d].view(np.int64)
    columns = [[*x[:d], *row[5:]] for x, row in zip(values, more.tolist(), strict=True)]
    labels = (np.abs(rows[:, 0]) < 0.7) ^ np.array([value == naive.Text(A) for value in texts])
    return more, columns, (labels ^ (rng.random(n) < 0.1)).astype(float)


A = int(np.array([as_code("a")]).view(np.int64)[0]) & ((1 << 51) - 1)


class BoostedRun(NamedTuple):
    """A ring, a block and their reference, after some rows; and those that come next."""

    ring: np.ndarray
    block: np.ndarray
    reference: Any
    rows: np.ndarray
    values: list[list[Any]]

    def view(self, part: int, kind: Any = np.float64) -> np.ndarray:
        """A part of the block, by its number among the places, for each tree."""
        places = boosted_kernels.boosted_places(
            int(self.ring[boosted_kernels.RING_WIDTH]), int(self.ring[boosted_kernels.RING_ROWS])
        )
        return self.block[places[part] : places[part + 1]].view(kind)

    def leaves(self) -> list[list[int]]:
        """The leaves of the records that the block learns from, the oldest first."""
        count = int(self.block[boosted_kernels.BOOSTED_KEPT])
        slots = (int(self.ring[boosted_kernels.RING_HEAD]) - count + np.arange(count)) % self.rows_of_ring()
        table = self.view(7, np.uint8)[: 50 * self.rows_of_ring()].reshape(-1, 50)
        return [row.tolist() for row in table[slots]]

    def rows_of_ring(self) -> int:
        return int(self.ring[boosted_kernels.RING_ROWS])

    def score(self, row: np.ndarray, kernel: Any = boosted_kernels.boosted_score) -> float:
        present = np.flatnonzero((row == row) | which(row[None])[0])
        boosted_kernels.ring_codes(self.ring, row, present)
        return float(kernel(self.ring, self.block, row))


def boosted_run(
    rng: Rng,
    n: int = 110,
    d: int = 4,
    task: int = 0,
    rows_of_ring: int = 90,
    reset: int = -1,
    rebuild: Any = boosted_kernels.boosted_rebuild,
) -> BoostedRun:
    """Learn rows, each scored before: every score and every leaf is the reference's, bit by bit."""
    kernels, seed = boosted_kernels, int(rng.integers(1000))
    rows, values, labels = boosted_rows(rng, n + 10, d)
    if task == 1:
        labels = labels - 0.5 + 0.1 * rng.normal(size=n + 10)
    ring, block = new_ring(d, seed, task, rows_of_ring)
    run = BoostedRun(ring, block, naive.Boosted(d, seed, task == 1, rows_of_ring), rows[n:], values[n:])
    for i, (row, x, label) in enumerate(zip(rows[:n], values[:n], labels.tolist(), strict=False)):
        score, leaves = run.score(row), run.reference.leaves(x)
        assert score == run.reference.score(x)
        assert run.view(6, np.int64).tolist() == leaves
        if task == 2:
            label = 1.0 - label  # the block is of the class 0
        target = 1.0 - label if task == 2 else label
        losses_of = (0.9, 0.1) if i == reset else (0.1, 0.1)
        ring_loss = losses_of[0] * (0.995 * block[kernels.BOOSTED_SEEN] + 0.005)
        run.reference.since += 1
        again = kernels.boosted_judge(ring, block, ring_loss, losses_of[1])
        assert again == run.reference.judge(*losses_of) == (i == reset)
        if again:
            score, leaves = 0.0, [0] * 50
        kernels.boosted_keep(ring, block, score)
        kernels.boosted_step(ring, block, kernels.ring_slope(ring, score, target))
        present = np.flatnonzero((row == row) | which(row[None])[0])
        kernels.ring_append(ring, row, present, label)
        if kernels.ring_due(ring):
            kernels.ring_bin_due(ring)
        kernels.boosted_save(block)
        if kernels.boosted_due(ring, block):
            rebuild(ring, block, 0)
            assert block[kernels.BOOSTED_BUILT] % 1.0 == 0.0  # else no kernel may go on with it
        run.reference.learn(x, target, score, leaves)
    kept = [record.leaves for record in run.reference.kept]
    assert run.leaves() == kept
    return run


@against(naive.Boosted)
def boosted_rebuild(kernel: Any, rng: Rng) -> None:
    boosted_run(rng, rebuild=kernel)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_boosted_trees_of_many_columns_against_their_reference(task: int) -> None:
    """With columns that are drawn, a ring that is full, and a block that begins again."""
    run = boosted_run(np.random.default_rng(task), 420, 12, task, 300, reset=210)
    assert run.reference.draws > 0
    assert run.reference.built > 10
    kinds = [column.codes is not None for column in run.reference.columns]
    assert kinds == [False, False, True, True, *[False] * 8]
    parts = [part for tree in run.reference.trees for part in tree.parts.values()]
    assert {isinstance(part.mark, frozenset) for part in parts} == {True, False}


def test_texts_are_ordered_by_smoothed_ratios() -> None:
    """Texts of few records and of many: without the smoothing the few would be first and last."""
    rng = np.random.default_rng(1)
    sums = np.zeros((boosted_kernels.BINS, 2))
    sums[:40, 1] = np.exp(rng.uniform(-1.0, 6.0, 40))
    sums[:40, 0] = rng.normal(size=40) * np.sqrt(sums[:40, 1])
    bins, many = np.zeros(boosted_kernels.BINS, dtype=np.int64), np.flatnonzero(sums[:, 1] >= 2.0).tolist()
    count, filled = boosted_kernels._order(sums, 2.0, bins)
    assert (count, filled) == (len(many), 40)
    assert bins[:count].tolist() == sorted(many, key=lambda q: sums[q, 0] / (sums[q, 1] + 10.0))
    assert bins[:count].tolist() != sorted(many, key=lambda q: sums[q, 0] / sums[q, 1])


@pytest.mark.parametrize("n", [3, 40, 49, 200, 2000])
def test_edges_against_their_reference(n: int) -> None:
    rng = np.random.default_rng(n)
    for values in (rng.normal(size=n), rng.integers(0, 60, n).astype(float), np.full(n, 2.0)):
        edges = unset(64)
        boosted_kernels.edges_of(np.sort(values), edges)
        assert edges[: int(edges[63])].tolist() == naive.edges_of(sorted(values.tolist()))


@against(naive.Boosted)
def boosted_score(kernel: Any, rng: Rng) -> None:
    run = boosted_run(rng)
    for row, x in zip(run.rows, run.values, strict=True):
        assert run.score(row, kernel) == run.reference.score(x)


@against(naive.boosted_parts)
def boosted_explain(kernel: Any, rng: Rng) -> None:
    run, means = boosted_run(rng), unset(50 * 127)
    boosted_kernels.boosted_average(run.ring, run.block, means, np.zeros(50, dtype=np.int64), -1.0)
    for row, x in zip(run.rows, run.values, strict=True):
        score, out = run.score(row), np.zeros(5)
        kernel(run.ring, run.block, 0.5, means, out)
        close(out.tolist(), naive.boosted_parts(run.reference, x, 0.5))
        close(float(out.sum()), 0.5 * score)


@against(naive.boosted_importances)
def boosted_importances(kernel: Any, rng: Rng) -> None:
    run, out = boosted_run(rng), np.zeros(4)
    kernel(run.ring, run.block, 0.5, out)
    close(out.tolist(), naive.boosted_importances(run.reference, 0.5))
    assert out.any()


@against(naive.Boosted)
def boosted_fresh(kernel: Any, rng: Rng) -> None:
    run = boosted_run(rng)
    kernel(run.block, 4, 90)
    run.reference.fresh()
    assert (run.view(0) == math.inf).all()
    run.view(0)[:] = 0.0
    assert run.block[boosted_kernels.BOOSTED_BEST] == run.reference.best == run.block.sum()


@against(naive.Boosted)
def boosted_find(kernel: Any, rng: Rng) -> None:
    """The leaves follow from the trees and the records."""
    run = boosted_run(rng)
    run.view(7)[:] = 0.0
    kernel(run.ring, run.block)
    assert run.leaves() == [record.leaves for record in run.reference.kept]


@against(naive.Boosted, "ring_fill", "ring_bins")
def bins_of_the_ring(kernel: Any, rng: Rng) -> None:
    """The bins follow from the edges and the records."""
    run = boosted_run(rng)
    wanted = [record.bins for record in run.reference.records]
    slots = (int(run.ring[boosted_kernels.RING_HEAD]) + np.arange(90)) % 90
    if kernel.__name__ == "ring_bins":
        assert kernel(run.ring)[: 4 * 90].reshape(90, 4)[slots].tolist() == wanted
        return
    bins = boosted_kernels.ring_bins(run.ring)
    bins[: 4 * 90] = 255
    for column in range(4):
        kernel(run.ring, column)
    assert bins[: 4 * 90].reshape(90, 4)[slots].tolist() == wanted


# ---- all pairs of a table --------------------------------------------------------------------------------


@against(naive.pair_sums, "pair_sums")
def all_pairs_by_sorting(kernel: Any, rng: Rng) -> None:
    # Scores on a grid, so that some margins are exactly at the kink.
    high, low = (np.sort(rng.integers(-6, 7, size) / 8) for size in (9, 7))
    for loss in MARGIN:
        if loss.pieces is None:
            continue
        found = unset(9), unset(7)
        kernel(np.array(loss.pieces), high, low, *found)
        wanted = naive.pair_sums(name_of(loss), high.tolist(), low.tolist())
        for values, one in zip(found, wanted, strict=True):
            close(values.tolist(), one)


@against(naive.pair_sums)
def pair_sums_any(kernel: Any, rng: Rng) -> None:
    high, low = rng.normal(size=9), rng.normal(size=7)
    for loss in MARGIN:
        found = unset(9), unset(7)
        kernel(loss.code, high, low, *found)
        wanted = naive.pair_sums(name_of(loss), high.tolist(), low.tolist())
        for values, one in zip(found, wanted, strict=True):
            close(values.tolist(), one)


@against(naive.pair_sums_logistic)
def pair_sums_logistic(kernel: Any, rng: Rng) -> None:
    # High scores are taken four at a time, and low ones by blocks: some of each are left over.
    for n, m in ((9, 7), (4, 3), (6, BLOCK + 1)):
        high, low = rng.normal(0, 3, n), rng.normal(0, 3, m)
        found = unset(n), unset(m)
        kernel(high, low, *found)
        wanted = naive.pair_sums_logistic(high.tolist(), low.tolist())
        for values, one in zip(found, wanted, strict=True):
            close(values.tolist(), one)


# ---- random trees ----------------------------------------------------------------------------------------


SIZES = np.array([1, 3, 1, 5, 2])  # of fields: numbers, and categories
COLUMNS = [0, 1, 1, 1, 2, 3, 3, 3, 3, 3, 4, 4]


def wood(trees: int = 6, nodes: int = 16) -> tuple[Any, Any, list[Any]]:
    """Trees as the kernels and as the reference have them."""
    fields, cuts = np.zeros((trees, nodes), dtype=np.int64), np.zeros((trees, nodes))
    tree_kernels.tree_splits(SIZES, fields, cuts)
    return fields, cuts, [random_trees.tree(SIZES.tolist(), t, nodes) for t in range(trees)]


def placed(rng: Rng, n: int) -> Any:
    """Places of n rows: in (0, 1), or the number of a category, one more than there are for none."""
    out = np.stack([rng.uniform(size=n) if s == 1 else rng.integers(0, s + 1, n) for s in SIZES], axis=1)
    out[2, 0] = out[3, 2] = math.nan
    return out


def fallen(rng: Rng) -> tuple[Any, Any, Any]:
    """Leaves (trees, n) of rows, weights of the rows, and shares of the leaves."""
    fields, cuts, _ = wood(4, 8)
    leaves = np.zeros((40, 4), dtype=np.int64)
    tree_kernels.tree_leaves(placed(rng, 40), SIZES, fields, cuts, leaves)
    weights, shares = rng.uniform(size=40), rng.uniform(size=(4, 8))
    return (
        leaves.T.astype(np.uint8, order="C"),
        weights / weights.sum(),
        shares / shares.sum(axis=1, keepdims=True),
    )


@against(random_trees.tree)
def tree_splits(kernel: Any, rng: Rng) -> None:
    for sizes in (SIZES, np.ones(3, dtype=np.int64), np.array([2]), np.array([2, 2])):
        fields, cuts = np.zeros((8, 16), dtype=np.int64), np.zeros((8, 16))
        kernel(sizes, fields, cuts)
        for t in range(8):
            wanted = random_trees.tree(sizes.tolist(), t, 16)[1:]
            assert fields[t, 1:].tolist() == [f for f, _ in wanted]
            close(cuts[t, 1:].tolist(), [cut for _, cut in wanted])


@against(random_trees.leaf)
def tree_leaves(kernel: Any, rng: Rng) -> None:
    fields, cuts, references = wood()
    places, leaves = placed(rng, 30), np.zeros((30, 6), dtype=np.int64)
    kernel(places, SIZES, fields, cuts, leaves)
    wanted = [
        [random_trees.leaf(r, SIZES.tolist(), t, tree) for t, tree in enumerate(references)] for r in places
    ]
    assert leaves.tolist() == wanted


@against(random_trees.place)
def tree_places(kernel: Any, rng: Rng) -> None:
    raw, sizes = rng.uniform(-3, 3, (6, 5)), np.array([1, 3, 1])
    raw[:, 1:4] = 0.0
    raw[0, 1] = raw[1, 3] = raw[2, 2] = raw[2, 3] = raw[4, 2] = 1.0
    raw[1, 0], raw[2, 4], raw[3, 4], raw[5, 2] = math.nan, math.inf, -1e300, math.nan
    raw[3, 2] = math.inf  # a gap is no category
    scale, shift = np.array([0.5, 1.0, 1.0, 1.0, 2.0]), np.array([0.1, 0.0, 0.0, 0.0, 0.0])
    mean, factor = np.array([0.1, 0.0, 0.0, 0.0, -0.2]), np.array([1.5, 1.0, 1.0, 1.0, 0.7])
    places = unset((6, 3))
    kernel(raw, sizes, np.array([scale, shift, mean, factor]), 0.9, 3.0 / 0.9, places)
    assert places[:, 1].tolist() == [0, 2, 1, 3, 1, 3]
    columns = [0, 4]
    for row, found in zip(raw[:, columns], places[:, [0, 2]], strict=True):
        x = np.clip(
            (np.clip(row * scale[columns] + shift[columns], -1, 1) - mean[columns]) * factor[columns],
            -0.9,
            0.9,
        )
        wanted = [
            random_trees.place(z) if math.isfinite(v) else math.nan for v, z in zip(row, x / 0.3, strict=True)
        ]
        assert found == pytest.approx(wanted, rel=1e-9, nan_ok=True)


def marked_rows(rng: Rng) -> Any:
    """Two values, two trees of four leaves, and a bin of two in each of two fields, or none."""
    marks = [2 + rng.integers(0, 4, 6), 6 + rng.integers(0, 4, 6), [10, 11, -1, 10, -1, 11], [-1, 12, 13] * 2]
    return np.concatenate((rng.normal(size=(6, 2)), np.transpose(marks)), axis=1)


@against(random_trees.marks)
def tree_marks(kernel: Any, rng: Rng) -> None:
    fields, cuts, references = wood()
    places, leaves = placed(rng, 9), np.zeros((9, 6), dtype=np.int64)
    d = len(COLUMNS)
    out = np.full((9, d + 6 + len(SIZES)), 7.0)
    kernel(places, SIZES, fields, cuts, 5, leaves, out)
    assert (out[:, :d] == 7.0).all()
    wide = random_trees.indicators(out, d + 6 * 16 + 2 * 5 + 10, d)
    for row, found in zip(places.tolist(), wide[:, d:].tolist(), strict=True):
        assert found == random_trees.marks(row, SIZES.tolist(), references, 5)


@against(random_trees.tree_sums)
def tree_sums(kernel: Any, rng: Rng) -> None:
    rows, sums = marked_rows(rng), np.zeros(5 + 8 + 8 + 4, dtype=np.int64)
    labels = np.array([1.0, -1.0, math.nan, 1.0, 0.3, -1.0])
    kernel(rows, labels, 2, 2, 8, sums)
    assert not sums[:5].any()
    wide = random_trees.indicators(rows, 2 + 8 + 4, 2)
    assert sums[5:].tolist() == random_trees.tree_sums(wide[:, 2:].tolist(), labels.tolist(), 8)


@against(random_trees.indicators)
def tree_row_scores(kernel: Any, rng: Rng) -> None:
    """The bits of `vectors.dot` of the wide rows, whatever is left over of four, and where weights are -0."""
    for length in (2, 10, 11, 12, 13, 14):
        rows, w, scores = marked_rows(rng), rng.normal(size=length), unset(6)
        w[10:] = 0.0  # of bins
        w[rng.uniform(size=length) < 0.3] = -0.0
        if length == 2:  # of a start model, before there are leaves
            rows[:, 2:] = -1.0
        kernel(w, rows, 2, 2, scores)
        wide = random_trees.indicators(rows, length if length == 2 else 14, 2)[:, :length]
        wanted = [vector_kernels.dot(w, row.copy()) for row in wide]
        assert scores.tobytes() == np.array(wanted).tobytes()


@against(random_trees.tree_rake)
def tree_rake(kernel: Any, rng: Rng) -> None:
    leaves, weights, shares = fallen(rng)
    ridge, tilt = np.array([1e-3, 0.1, 0.01, 1.0]), np.zeros((4, 8))
    wanted = random_trees.tree_rake(leaves, shares, ridge, 3, weights.copy())
    kernel(leaves, shares, ridge, 3, tilt, weights)
    close(tilt.ravel().tolist(), wanted[0].ravel().tolist())
    close(weights.tolist(), wanted[1].tolist())


@against(random_trees.tree_scores)
def tree_scores(kernel: Any, rng: Rng) -> None:
    leaves, _, shares = fallen(rng)
    # Some trees of a group of four, and more; fewer rows than a block, and more.
    for trees, repeats in ((3, 1), (4, 60), (6, 60)):
        which = np.arange(trees) % 4
        many, scores = np.tile(leaves[which], repeats), np.full(40 * repeats, 7.0)
        kernel(many, shares[which], scores)
        close(scores.tolist(), random_trees.tree_scores(many, shares[which]))


@against(random_trees.tree_totals)
def tree_totals(kernel: Any, rng: Rng) -> None:
    leaves, weights, _ = fallen(rng)
    for trees in (3, 4, 6):
        many, values, out = leaves[np.arange(trees) % 4], weights, np.full((trees, 8), 7.0)
        kernel(many, values, out)
        close(out.ravel().tolist(), np.ravel(random_trees.tree_totals(many, values, 8)).tolist())


@against(random_trees.logistic_terms)
def logistic_terms(kernel: Any, rng: Rng) -> None:
    half, wanted, weights = rng.normal(size=9) * 3.0, rng.uniform(-1.0, 1.0, 9), rng.uniform(size=9)
    half[0] = 0.0
    gradient, curvature = unset(9), unset(9)
    loss = kernel(half, wanted, weights, gradient, curvature)
    expected = random_trees.logistic_terms(half.tolist(), wanted.tolist(), weights.tolist())
    close(loss, expected[0])
    close(gradient.tolist(), expected[1])
    close(curvature.tolist(), expected[2])


# ---- the comparisons ---------------------------------------------------------------------------------------


def lacking(names: list[str], references: dict[str, tuple[Any, Check]]) -> list[str]:
    """Kernels without a reference implementation in the module of the same name."""
    homes = {name: KERNELS[name].__module__.replace("streampair.kernels", "naive") for name in names}
    return [name for name in names if name not in references or references[name][0].__module__ != homes[name]]


def test_every_kernel_has_a_reference_where_its_own_module_is_mirrored() -> None:
    """Every kernel that the library calls, and those of the others that are compared here."""
    assert lacking([*called()], CHECKS) == []
    assert lacking([*CHECKS], CHECKS) == []
    # It must be able to fail.
    assert lacking([*CHECKS], {**CHECKS, "dot": CHECKS["sigmoid"]}) == ["dot"]
    assert lacking(["dot"], {}) == ["dot"]


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_against_the_reference(name: str) -> None:
    for seed in SEEDS:
        CHECKS[name][1](KERNELS[name], np.random.default_rng(seed))


def bent(kernel: Any) -> Any:
    """A mutant: the kernel, with everything that it returns or writes a little off."""

    def off(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(off(v) for v in value)
        if isinstance(value, bool | np.bool_):
            return not value
        return value + 1 if isinstance(value, int | np.integer) else value * 1.001 + 1e-3

    def call(*args: Any) -> Any:
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        before = [a.copy() for a in arrays]
        result = kernel(*args)
        for a, b in zip(arrays, before, strict=True):
            changed = a != b
            more = 1000 if a.itemsize > 1 else 1
            a[changed] = a[changed] + more if a.dtype.kind in "iu" else a[changed] * 1.001 + 1e-3
        return None if result is None else off(result)

    call.__name__ = kernel.__name__
    return call


@pytest.mark.parametrize("name", [name for name in sorted(CHECKS) if name != "history_store"])
def test_a_mutant_is_caught(name: str) -> None:
    """All but `history_store`, which writes where only `history_gradient` looks.

    A check must see what came of it before an index is out of bounds: compiled, that is no IndexError.
    """
    kernel = bent(KERNELS[name])
    with pytest.raises(AssertionError):
        _, *_ = (CHECKS[name][1](kernel, np.random.default_rng(seed)) for seed in SEEDS)
