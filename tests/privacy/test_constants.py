"""Constants of the clipped pair gradient: search for the worst record (docs/privacy 2, 9.1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from streampair import losses
from streampair.kernels import dp_steps

Gradient = Callable[[np.ndarray, np.ndarray, float, np.ndarray, float], np.ndarray]

CASES = [
    (losses.Hinge(), 1.0, False),
    (losses.Hinge(), 1.0, True),
    (losses.Hinge(), 0.25, True),
    (losses.Hinge(), 9.0, True),
    (losses.Hinge(), 9.0, False),
    (losses.Logistic(), 1.0, False),
    (losses.Logistic(), 1.0, True),
    (losses.SquaredHinge(), 2.0, True),
    (losses.Square(), 2.0, False),
]
RADIUS = 3.0


def kernel(loss: losses.PairLoss, clip: float, tangent: bool) -> Gradient:
    def gradient(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float) -> np.ndarray:
        out = np.empty(len(x))
        dp_steps.pair_gradient(w, x, y, np.array([[*p, label, 0.0]]), 1, 1.0, loss.code, clip, tangent, out)
        return out

    return gradient


def in_ball(v: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(v))
    return v * (radius / norm) if norm > radius else v


def worst_move(gradient: Gradient, *, partner_moves: bool, seed: int) -> float:
    """Largest move of a pair's gradient when one record is replaced, by search and hill climbing."""
    rng = np.random.default_rng(seed)

    def move(
        w: np.ndarray, p: np.ndarray, a: np.ndarray, b: np.ndarray, labels: tuple[float, float, float]
    ) -> float:
        fixed, one, two = labels
        if partner_moves:
            both = gradient(w, p, fixed, a, one), gradient(w, p, fixed, b, two)
        else:
            both = gradient(w, a, one, p, fixed), gradient(w, b, two, p, fixed)
        return float(np.linalg.norm(both[0] - both[1]))

    best = 0.0
    for labels in ((1.0, -1.0, -1.0), (1.0, -1.0, 1.0), (1.0, -1.0, math.nan), (-1.0, 1.0, 1.0)):
        for dim in (1, 2, 3):
            starts = []
            for _ in range(200):
                w = in_ball(rng.normal(size=dim) * 10.0 ** rng.uniform(-3, 1), RADIUS)
                p, a, b = (in_ball(rng.normal(size=dim), 1.0) for _ in range(3))
                starts.append((move(w, p, a, b, labels), w, p, a, b))
            starts.sort(key=lambda s: -s[0])
            for value, w, p, a, b in starts[:4]:
                step = 0.5
                for _ in range(150):
                    tried = [
                        in_ball(v + step * rng.normal(size=dim), r)
                        for v, r in ((w, RADIUS), (p, 1.0), (a, 1.0), (b, 1.0))
                    ]
                    new = move(*tried, labels)  # type: ignore[arg-type]
                    if new > value:
                        value, (w, p, a, b) = new, tried
                    else:
                        step = max(0.97 * step, 1e-3)
                best = max(best, value)
    return best


@pytest.mark.parametrize(("loss", "clip", "tangent"), CASES)
@pytest.mark.parametrize("partner_moves", [False, True])
def test_the_diameter_is_never_exceeded_and_nearly_reached(
    loss: losses.PairLoss, clip: float, tangent: bool, partner_moves: bool
) -> None:
    diameter = loss.diameter(1.0, RADIUS, clip)
    found = worst_move(kernel(loss, clip, tangent), partner_moves=partner_moves, seed=1)
    assert found <= diameter * (1 + 1e-9)
    assert found >= (0.95 if clip < 9 else 0.9) * diameter


def test_mutants_that_the_search_must_catch() -> None:
    loss = losses.Hinge()

    def one_ball(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float) -> np.ndarray:
        """Tangent for the partner only: the other role has another bound."""
        g = kernel(loss, math.inf, False)(w, x, y, p, label)
        if not g.any():
            return g
        along = float(g @ p) * label
        room = max(1.0 - float(p @ p), 0.0)
        square = float(g @ g)
        share = (-along + math.sqrt(along**2 + square * room)) / square
        return g * min(1.0, max(share, 0.0))

    def twice(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float) -> np.ndarray:
        """Norms up to twice the clip, without the tangent ball."""
        return kernel(loss, 2.0, False)(w, x, y, p, label)

    assert worst_move(one_ball, partner_moves=False, seed=1) <= 2.0 * (1 + 1e-9)
    assert worst_move(one_ball, partner_moves=True, seed=1) > 2.05
    assert worst_move(twice, partner_moves=False, seed=1) > 2.05
