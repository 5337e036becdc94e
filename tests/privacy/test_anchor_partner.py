"""Partners made of releases: what a record can move, and that no other is kept (docs/privacy 10.5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streampair import auc, losses, privacy
from streampair.errors import ConfigError
from streampair.kernels import dp_steps
from streampair.privacy import EntityLimit, Influence
from streampair.privacy.mechanisms.ftrl import AnchorFTRLState, partner_of

Gradient = Callable[[np.ndarray, np.ndarray, float, np.ndarray, float, float], np.ndarray]
CLIPS = (0.25, 1.0, 9.0)
RADIUS = 3.0


def of_kernel(loss: losses.PairLoss) -> Gradient:
    def gradient(
        w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, centre: float, clip: float
    ) -> np.ndarray:
        out = np.empty(len(x))
        dp_steps.partner_gradient(w, x, y, p, centre, loss.code, clip, out)
        return out

    return gradient


def within(v: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(v))
    return v * (radius / norm) if norm > radius else v


def worst_move(
    gradient: Gradient, clip: float, *, seed: int = 0, centres: tuple[float, ...] = (0.0, 0.5, -0.8)
) -> float:
    """Largest move of a slot's gradient when its record is replaced or blanked, by hill climbing."""
    rng = np.random.default_rng(seed)
    best = 0.0
    for labels in ((1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (1.0, math.nan), (-1.0, math.nan)):
        for centre in centres:
            for dim in (1, 2, 3):
                radii = (RADIUS, abs(centre), 1.0, 1.0)

                def move(
                    w: np.ndarray,
                    p: np.ndarray,
                    a: np.ndarray,
                    b: np.ndarray,
                    labels: tuple[float, float] = labels,
                    centre: float = centre,
                ) -> float:
                    one = gradient(w, a, labels[0], p, centre, clip)
                    return float(np.linalg.norm(one - gradient(w, b, labels[1], p, centre, clip)))

                tried = [
                    [within(rng.normal(size=dim) * scale, radius) for radius in radii]
                    for scale in 10.0 ** rng.uniform(-3, 1, size=60)
                ]
                tried.sort(key=lambda each: -move(*each))
                for position in tried[:3]:
                    here, value, step = position, move(*position), 0.5
                    for _ in range(120):
                        new = [
                            within(v + step * rng.normal(size=dim), r)
                            for v, r in zip(here, radii, strict=True)
                        ]
                        found = move(*new)
                        here, value, step = (
                            (new, found, step) if found > value else (here, value, max(0.97 * step, 1e-3))
                        )
                    best = max(best, value)
    return best


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic()], ids=["hinge", "logistic"])
def test_no_replacement_moves_a_gradient_by_more_than_the_diameter(
    loss: losses.PairLoss, clip: float
) -> None:
    """Lemma 61, against brute force over weights, partner, shares and both records."""
    claimed = loss.diameter(1.0, RADIUS, clip)
    found = worst_move(of_kernel(loss), clip)
    assert 0.9 * claimed < found <= claimed * (1 + 1e-9)


def test_a_partner_longer_than_the_mean_of_labels_would_be_seen() -> None:
    """With |p| above |b| the ball of the frequent class sticks out of that of the rare one."""
    true = of_kernel(losses.Hinge())

    def longer(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, b: float, clip: float) -> np.ndarray:
        return true(w, x, y, within(p * 1.9, 1.0), b, clip)

    assert worst_move(longer, 1.0, centres=(0.5,)) > 2.05


def test_classes_that_both_count_whole_would_be_seen() -> None:
    """The share of the frequent class is part of the bound, not only of the accuracy."""
    true = of_kernel(losses.Hinge())

    def whole(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, b: float, clip: float) -> np.ndarray:
        return true(w, x, y, p, -b if y * b > 0 else b, clip)

    assert worst_move(whole, 1.0, centres=(0.5,)) > 2.05


def test_a_clip_around_zero_that_is_too_wide_would_be_seen() -> None:
    def wide(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, b: float, clip: float) -> np.ndarray:
        return of_kernel(losses.Hinge())(w, x, y, p, b, 1.1 * clip)

    assert worst_move(wide, 0.25) > 0.53


@pytest.mark.parametrize("centre", [-0.9, -0.3, 0.0, 0.6, 0.98])
def test_the_partner_is_within_its_ball_whatever_the_release_says(centre: float) -> None:
    rng = np.random.default_rng(3)
    for scale in (1e-6, 1e-2, 1.0, 1e3):
        cross = scale * np.abs(rng.normal(size=(2, 5)))
        cross[1] *= rng.uniform(0, 0.5)
        cross[0] *= rng.choice([-1.0, 1.0], 5)
        assert np.linalg.norm(partner_of(cross, centre)) <= abs(centre)
    assert not partner_of(np.zeros((2, 3)), centre).any()


def made(**options: Any) -> auc.PairFTRL:
    parameters: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "horizon": 400, "features": [0, 1]}
    parameters["mechanism"] = privacy.AnchorGradients()
    return auc.PairFTRL(**{**parameters, "seed": 1, **options})


def stream(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.3
    return np.clip(rng.normal(size=(n, 2)) / 3 + 0.3 * y[:, None], -1, 1), y


def test_a_record_moves_the_gradient_of_its_own_slot_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams that differ in one learned record, under one noise, over the released sums."""
    rows, labels = stream(300)
    other, flipped = rows.copy(), labels.copy()
    other[200], flipped[200] = -rows[200], not labels[200]
    sums = []
    for x, y in ((rows, labels), (other, flipped)):
        model = made(warmup=100)
        model.learn_many(x[:200], y[:200])
        before = model.run.state.released.copy()  # type: ignore[union-attr]
        # The weights of both go the same way from here: what is left is what the record itself moves.
        rule = model.run.state  # type: ignore[union-attr]
        assert isinstance(rule, AnchorFTRLState)
        sums.append([before])
        for i in range(200, 300):
            rule.gate.vectors[0] = 0.0
            model.learn_many(x[i : i + 1], y[i : i + 1])
            sums[-1].append(rule.released.copy())
    steps = [np.diff(np.array(each), axis=0) for each in sums]
    apart = np.linalg.norm(steps[0] - steps[1], axis=1)
    plan = rule.plan
    assert 0 < apart[0] <= plan.diameter + plan.grid * math.sqrt(2)
    assert not apart[1:].any()


def test_the_account_is_that_of_one_step() -> None:
    with_buffer = made(mechanism=privacy.PairGradients(), warmup=100).run.state.plan  # type: ignore[union-attr]
    plan = made(warmup=100).run.state.plan  # type: ignore[union-attr]
    assert plan.influence.pattern(300).tolist() == [1.0]
    assert plan.diameter == with_buffer.diameter
    assert 1.5 < with_buffer.sigma / plan.sigma < 1.9
    assert plan.release().lemma == "docs/privacy, Lemma 61 and Lemma 16"
    assert plan.mu_spent(300) == pytest.approx(plan.mu)
    entity = made(warmup=100, entity=EntityLimit(3, 5)).run.state.plan  # type: ignore[union-attr]
    assert entity.influence.pattern(300).tolist() == [1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 1.0]


def test_no_record_is_kept() -> None:
    rows, labels = stream(400)
    model = made(warmup=100)
    model.learn_many(rows, labels)
    assert model.buffer_records == 0
    state = model.run.state.to_state()  # type: ignore[union-attr]
    assert state["buffer"]["rows"].shape == (1, 2)
    assert np.linalg.norm(state["buffer"]["rows"]) <= abs(state["buffer"]["labels"][0])
    assert "No record is kept" in model.privacy.details


def test_a_state_with_a_partner_outside_its_ball_is_refused() -> None:
    rows, labels = stream(200)
    model = made(warmup=100)
    model.learn_many(rows, labels)
    rule = model.run.state  # type: ignore[union-attr]
    state = rule.to_state()
    for damage in ([0.6, 0.0], [math.nan, 0.0]):
        broken = {**state, "buffer": {**state["buffer"], "rows": np.array([damage])}}
        with pytest.raises(ValueError, match="no release gives"):
            made(warmup=100).run.state.load_state(broken)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"warmup": 0}, "warmup is 0"),
        ({"mechanism": privacy.AnchorGradients(loss=losses.Square())}, "rises somewhere"),
    ],
)
def test_what_does_not_go_with_a_released_partner(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made(**options)


def test_a_buffer_of_no_uses_is_a_released_partner() -> None:
    assert Influence.released() == Influence(1, 0)
    with pytest.raises(ConfigError):
        Influence(2, 0)
