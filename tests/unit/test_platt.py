"""From score to probability: the link of the learners that are not private, and of those by moments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import naive
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import auc, buffers, losses, ranking
from streampair.errors import SnapshotError
from streampair.kernels import numerics, platt
from streampair.kernels import state as layout

Labelled = list[tuple[float, bool]]

scores = st.floats(-1e3, 1e3) | st.sampled_from([0.0, 1e50, -1e50, 1e-200])


def fresh() -> Any:
    """A state with a link and nothing else."""
    state = np.zeros(layout.HEADER)
    state[layout.LINK] = state[layout.SLOPE] = 1.0
    return state


def taught(state: Any, rows: Labelled) -> list[float]:
    """The probabilities that scores had when they came; then each teaches."""
    probabilities = []
    for score, y in rows:
        probabilities.append(platt.link_proba(state, score))
        platt.link_learn(state, score, 1.0 if y else -1.0)
    return probabilities


def log_loss(p: list[float], y: list[bool]) -> float:
    return -math.fsum(math.log(a if b else 1.0 - a) for a, b in zip(p, y, strict=True)) / len(p)


def known(n: int, slope: float, offset: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal scores, their true probabilities, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    p = 1.0 / (1.0 + np.exp(-slope * z - offset))
    return z, p, rng.random(n) < p


# ---- the kernel ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-50, 50).map(lambda v: round(v, 3)), st.booleans()), max_size=25))
def test_the_link_against_the_whole_history(rows: Labelled) -> None:
    state, reference = fresh(), naive.Link()
    for score, y in rows:
        assert platt.link_proba(state, score) == pytest.approx(
            reference.probability(score), rel=1e-6, abs=1e-12
        )
        platt.link_learn(state, score, 1.0 if y else -1.0)
        reference.learn(score, 1.0 if y else -1.0)
    assert state[layout.INFORMATION] == pytest.approx(reference.information)
    assert state[layout.SPREAD] == pytest.approx(reference.spread, rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(scores, st.booleans()), max_size=40), st.lists(scores, min_size=2, max_size=10))
def test_probabilities_rise_with_scores_whatever_was_taught(rows: Labelled, points: list[float]) -> None:
    """Never turned; two are equal only where the numbers between 0 and 1 end."""
    state = fresh()
    taught(state, rows)
    assert np.isfinite(state).all()
    assert state[layout.SLOPE] >= platt.LEAST
    p = [platt.link_proba(state, score) for score in sorted(points)]
    assert all(0.0 <= a <= b <= 1.0 for a, b in pairwise(p))


def test_the_true_probabilities_are_found() -> None:
    """Within .005 nats of what knowing them costs, at any rate; a fixed sigmoid of small scores is not."""
    for slope, offset in ((0.5, 0.0), (2.0, -1.0), (1.0, -4.0), (4.0, 2.0)):
        z, p, y = known(10_000, slope, offset, seed=1)
        probabilities = taught(fresh(), list(zip((0.01 * z).tolist(), y.tolist(), strict=True)))
        best = log_loss(p[2000:].tolist(), y[2000:].tolist())
        assert log_loss(probabilities[2000:], y[2000:].tolist()) < best + 0.005
        fixed = [numerics.sigmoid(score) for score in (0.01 * z).tolist()]
        assert log_loss(fixed[2000:], y[2000:].tolist()) > best + 0.02


def test_what_is_predicted_comes_true() -> None:
    z, _, y = known(40_000, 2.0, -1.5, seed=2)
    probabilities = np.array(taught(fresh(), list(zip(z.tolist(), y.tolist(), strict=True))))
    for low in np.arange(0.0, 1.0, 0.2):
        cell = (probabilities >= low) & (probabilities < low + 0.2) & (np.arange(len(z)) > 1000)
        off = y[cell].mean() - probabilities[cell].mean()
        assert abs(off) < 4.0 * 0.5 / math.sqrt(cell.sum()) + 0.01


def test_a_link_that_does_not_fade_is_caught_where_the_scale_drifts() -> None:
    """Scores that grow tenfold and move; the mutant keeps what the first thousand taught it."""
    n = 20_000
    z, p, y = known(n, 2.0, -0.5, seed=3)
    scale = 10.0 ** np.linspace(0.0, 1.0, n)
    drifting = (scale * (z + np.linspace(0.0, 3.0, n))).tolist()
    state, frozen = fresh(), fresh()
    probabilities = taught(state, list(zip(drifting, y.tolist(), strict=True)))
    taught(frozen, list(zip(drifting[:1000], y[:1000].tolist(), strict=True)))
    late = slice(n // 2, n)
    best = log_loss(p[late].tolist(), y[late].tolist())
    assert log_loss(probabilities[late], y[late].tolist()) < best + 0.01
    stale = np.clip([platt.link_proba(frozen, score) for score in drifting[late]], 1e-15, 1 - 1e-15).tolist()
    assert log_loss(stale, y[late].tolist()) > best + 0.1


def test_a_scale_a_thousand_times_larger_is_taken_up_within_some_hundred_records() -> None:
    z, p, y = known(4000, 2.0, 0.0, seed=4)
    jumping = np.where(np.arange(4000) < 2000, z, 1000.0 * z).tolist()
    probabilities = taught(fresh(), list(zip(jumping, y.tolist(), strict=True)))
    late = slice(3000, 4000)
    assert (
        log_loss(probabilities[late], y[late].tolist()) < log_loss(p[late].tolist(), y[late].tolist()) + 0.03
    )


@pytest.mark.parametrize("y", [True, False])
def test_one_class_only_so_far(y: bool) -> None:
    """The share goes to that class at the pace of what was seen, and comes back with the other."""
    state = fresh()
    probabilities = taught(state, [(0.0, y)] * 1000)
    right = [p if y else 1.0 - p for p in probabilities]
    assert right[0] == 0.5
    assert all(a < b < 1.0 for a, b in pairwise(right))
    assert 0.01 > 1.0 - right[-1] > 1e-4
    rng = np.random.default_rng(0)
    later = taught(state, [(0.0, bool(v)) for v in rng.random(2000) < 0.5])
    assert abs(np.mean(later[-500:]) - 0.5) < 0.1


def test_one_wild_score_does_not_set_the_scale() -> None:
    z, p, y = known(3000, 2.0, 0.0, seed=5)
    rows = list(zip(z.tolist(), y.tolist(), strict=True))
    state = fresh()
    taught(state, rows[:1000])
    before = state[layout.SPREAD]
    for wild in (1e50, -1e50):
        taught(state, [(wild, False)])
        assert before <= state[layout.SPREAD] < 1.5 * before
    best = log_loss(p[1000:].tolist(), y[1000:].tolist())
    assert log_loss(taught(state, rows[1000:]), y[1000:].tolist()) < best + 0.02


def test_a_surprise_moves_its_own_log_odds_by_little_more_than_two() -> None:
    rng = np.random.default_rng(6)
    for _ in range(300):
        state = fresh()
        taught(state, list(zip(rng.normal(size=30).tolist(), (rng.random(30) < 0.5).tolist(), strict=True)))
        score, before = float(rng.normal(scale=5.0)), state.copy()
        platt.link_learn(state, score, float(rng.choice([-1.0, 1.0])))
        # In the new standard units, whose own change is that of the scale.
        z = (score - state[layout.CENTRE]) / state[layout.SPREAD]
        assert (
            abs(
                state[layout.OFFSET]
                - before[layout.OFFSET]
                + (state[layout.SLOPE] - before[layout.SLOPE]) * z
            )
            <= 3.0
        )


# ---- learners ------------------------------------------------------------------------------------------

LEARNERS: dict[str, Callable[[], Any]] = {
    "fifo": lambda: auc.PairOGD(),
    "last iterate": lambda: auc.PairOGD(average=False, positive=False),
    "reservoir": lambda: auc.PairOGD(losses.Logistic(), buffers.Reservoir(40), seed=1),
    "classes": lambda: auc.PairOGD(buffer=buffers.ClassReservoir(4), seed=1),
    "history": lambda: auc.PairOGD(losses.Logistic(), buffers.FullHistory("float32")),
    "moments": lambda: auc.PairOGD(losses.Square(), buffers.FullHistory()),
    "OAM": lambda: auc.OAM(size=4, seed=1),
    "SPAUC": lambda: auc.SPAUC(),
    "PairMoments": lambda: auc.PairMoments(),
}


def stream(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, rng.random(n) < 1.0 / (1.0 + np.exp(2.0 - 2.0 * X[:, 0] + X[:, 1]))


def columns(model: Any, X: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict_proba_many(X))


@pytest.mark.parametrize("name", LEARNERS)
def test_every_way_to_cut_a_stream_gives_the_same_probabilities(name: str) -> None:
    """One by one, in batches, scored as learned, through snapshots, copies: the bits of the reference."""
    X, y = stream(1200 if name not in ("history", "moments") else 300)
    rows = [dict(enumerate(row)) for row in X.tolist()]
    one, reference, p = LEARNERS[name](), naive.Link(), []
    for t, (x, label) in enumerate(zip(rows, y.tolist(), strict=True)):
        if t % 97 == 0:
            one = copy.deepcopy(one)
            other = LEARNERS[name]()
            other.load_state(one.to_state())
            one = other
        score = one.score_one(x)
        p.append(one.predict_proba_one(x)[one.positive])
        sign = (label is True) is (one.positive is True)
        if t < 100:  # the reference's time grows with the square
            assert p[-1] == pytest.approx(reference.probability(score), rel=1e-6)
            reference.learn(score, 1.0 if sign else -1.0)
        one.learn_one(x, label)
    many, both = LEARNERS[name](), LEARNERS[name]()
    cuts = [0, 1, 2, 50, 51, 200, 290, len(X)]
    for a, b in pairwise(cuts):
        assert columns(many, X[a : a + 1])[0][1] == p[a]
        many.learn_many(X[a:b], y[a:b])
        both.score_learn_many(pd.DataFrame(X[a:b]), pd.Series(y[a:b]))
    wanted = columns(one, X[:50]).tobytes()
    for model in (many, both, one.clone(include_attributes=True)):
        assert columns(model, X[:50]).tobytes() == wanted
        one_by_one = [model.predict_proba_one(x)[model.positive] for x in rows[:50]]
        assert one_by_one == columns(one, X[:50])[:, 1].tolist()
        assert [model.predict_one(x) for x in rows[:50]] == np.asarray(model.predict_many(X[:50])).tolist()
        high = (columns(one, X[:50])[:, 1] > 0.5).tolist()
        assert [model.predict_one(x) is model.positive for x in rows[:50]] == high


@pytest.mark.parametrize("name", LEARNERS)
def test_probabilities_rank_as_scores_do(name: str) -> None:
    X, y = stream(300)
    model = LEARNERS[name]()
    model.learn_many(X, y)
    scores, p = np.asarray(model.score_many(X)), columns(model, X)[:, 1]
    assert np.array_equal(np.argsort(scores, kind="stable"), np.argsort(p, kind="stable"))
    assert len(set(p)) == len(set(scores))


def test_a_state_with_a_link_that_cannot_be_is_refused() -> None:
    X, y = stream(300)
    model = auc.PairOGD()
    model.learn_many(X, y)
    state = model.to_state()
    with pytest.raises(SnapshotError):
        auc.PairOGD().load_state({**state, "link": -state["link"]})
    with pytest.raises(SnapshotError):
        auc.PairOGD().load_state({name: value for name, value in state.items() if name != "link"})


def test_a_relevance_has_no_probability_to_learn() -> None:
    X, y = stream(50)
    model = ranking.PairOGD()
    model.learn_many(X, y.astype(float))
    assert "link" not in model.to_state()
    assert model._state[layout.INFORMATION] == 0.0
