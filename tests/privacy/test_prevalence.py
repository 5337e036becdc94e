"""A share of positives for the probabilities of gradients, declared or released (docs/privacy 10.9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampair import auc, privacy, ranking
from streampair.errors import ConfigError
from streampair.kernels import dp_steps
from streampair.privacy import ChainedNoise, EntityLimit, Origin
from streampair.privacy.mechanisms.prevalence import SHARE, PrevalencePlan

NAMES = ["a", "b", "c"]
MAKERS: dict[str, Callable[..., Any]] = {
    "PairFTRL": lambda n, *, positive_rate=None, **more: auc.PairFTRL(
        1.0, 1e-4, n, mechanism=privacy.PairGradients(positive_rate=positive_rate), features=NAMES, **more
    ),
    "OnPairStrC": lambda n, **more: auc.OnPairStrC(1.0, 1e-4, n, l2=0.1, features=NAMES, **more),
    "OnPairC": lambda n, **more: auc.OnPairC(1.0, 1e-4, n, features=NAMES, **more),
}


def stream(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A fifth positive, and features that do not lie around 0."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.2
    x = 0.2 * rng.normal(size=(n, 3)) + np.outer(y - 0.5, [0.3, -0.2, 0.0]) + [0.3, 0.2, -0.3]
    return pd.DataFrame(np.clip(x, -1.0, 1.0), columns=NAMES), y


# ---- Lemma 50 ------------------------------------------------------------------------------------------


def farthest(cut: float, long: float) -> float:
    """Largest distance of F of two records, or of one and a null record, over a grid of them all.

    Records (a, b) of a length up to 1, with scores `long a` cut to `cut`.
    """
    points = [np.zeros(7)]
    for s in (-1.0, 1.0):
        for a in np.linspace(-1.0, 1.0, 21):
            for b in (0.0, -math.sqrt(1.0 - a * a), math.sqrt(1.0 - a * a)):
                t = min(max(long * a, -cut), cut)
                points.append(np.array([1.0, s, t * t, a, b, s * a, s * b]))
    p = np.array(points)
    return float(np.sqrt(((p[:, None] - p[None]) ** 2).sum(axis=2)).max())


def test_a_record_moves_labels_and_scores_by_at_most_three() -> None:
    """Reached; the mutant that cuts no score moves further."""
    assert farthest(1.0, 4.0) == pytest.approx(3.0)
    assert farthest(4.0, 4.0) > 3.3


def test_what_leaves_moves_no_further_than_the_plan_says() -> None:
    """The sums as they are rounded, over random pairs of records and weights of any size."""
    plan, rng, most = PrevalencePlan(1.0, features=2), np.random.default_rng(0), 0.0
    for _ in range(400):
        w, sums = rng.choice([0.5, 1.5, 9.0]) * rng.normal(size=2), np.zeros((2, 7), dtype=np.int64)
        for side in sums:
            x = rng.normal(size=(1, 2))
            x /= max(np.linalg.norm(x), 1.0)
            dp_steps.score_sums(x, np.array([rng.choice([-1.0, 1.0, np.nan])]), w, 1024.0, side)
        most = max(most, float(np.linalg.norm(sums[0] - sums[1])) / 1024.0)
    assert 0.9 * plan.sensitivity < most <= plan.sensitivity


@pytest.mark.parametrize("horizon", [None, 1, 60, 100, 101, 777, 20_000])
def test_a_slot_is_in_one_block(horizon: int | None) -> None:
    plan = PrevalencePlan(0.05, horizon=horizon)
    ends = [0]
    while ends[-1] < (horizon or 10_000):
        ends.append(plan.end(ends[-1]))
        assert ends[-1] > ends[-2]
    assert horizon is None or ends[-1] == horizon
    assert plan.mu_spent(ends[1]) > 0.0 == plan.mu_spent(ends[1] - 1)


def observed_mu(scale: float, runs: int = 300) -> float:
    """mu that the releases of a block show, for records that reach the bound; `scale` scales the noise."""
    plan, rng = PrevalencePlan(3.0, features=2), np.random.default_rng(1)
    sums = np.zeros((2, plan.cells), dtype=np.int64)
    for side, s, x in zip(sums, (1.0, -1.0), np.eye(2), strict=True):
        dp_steps.score_sums(x[None], np.array([s]), np.array([9.0, 0.0]), 1024.0, side)
    along = (sums[0] - sums[1]) / np.linalg.norm(sums[0] - sums[1])
    values = [
        np.array(
            [(side / 1024.0 + scale * plan.sigma * rng.normal(size=plan.cells)) @ along for _ in range(runs)]
        )
        for side in sums
    ]
    spread = math.sqrt((values[0].var() + values[1].var()) / 2.0)
    return float((values[0].mean() - values[1].mean()) / spread)


def test_an_audit_shows_nine_tenths_and_catches_less_noise() -> None:
    error = math.sqrt(2.0 / 300 + 9.0 / 1200)
    assert 0.9 * 3.0 < observed_mu(1.0) < 3.0 + 4.0 * error
    assert observed_mu(0.7) > 3.0 + 4.0 * error


# ---- the account ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("more", [{}, {"forks": 2, "window": 50}, {"entity": EntityLimit(3, 10)}])
def test_the_account_composes_both(name: str, more: dict[str, Any]) -> None:
    model = MAKERS[name](300, positive_rate="released", **more)
    plan = model.run.state.plan
    forks = more.get("forks", 0)
    for part, budget in ((plan.mechanism, 1.0 - SHARE), (plan.companion, SHARE)):
        spent = part.mu_spent(300) ** 2 + forks * part.fork_mu2(50)
        assert spent == pytest.approx(budget * model.settings.mu**2, rel=1e-6)
    x, y = stream(300)
    if "entity" not in more:
        model.learn_many(x, y)
        assert model.privacy.mu_spent == pytest.approx(plan.mu_spent(300))
        assert model.privacy.mu_spent <= model.settings.mu
    names = [line["name"] for line in model.privacy.card]
    assert "labels and scores of a block, for probabilities" in names
    # What a learner without them would spend is the budget already.
    plain = MAKERS[name](300, **more).run.state.plan
    assert math.hypot(plain.mu_spent(300), plan.companion.mu_spent(300)) > (
        model.settings.mu if not forks else plan.mu_spent(300)
    )


def first_noise(label: bool, monkeypatch: pytest.MonkeyPatch | None) -> np.ndarray:
    """Noise of the first block of records that are all alike, so that no gradient tells a label."""
    if monkeypatch is not None:
        monkeypatch.setattr(ChainedNoise, "extend", lambda *_: None)
    model = MAKERS["PairFTRL"](200, positive_rate="released", warmup=0, noise_key=bytes(32))
    sums: list[np.ndarray] = []
    privatize = model.run.state.sums.privatize

    class Gate:
        release = model.run.state.sums.release

        def __getattr__(self, name: str) -> Any:
            return getattr(model_sums, name)

        def privatize(self, noise: np.ndarray) -> np.ndarray:
            sums.append(noise.copy())
            return np.asarray(privatize(noise))

    model_sums = model.run.state.sums
    model.run.state.sums = Gate()
    for slot in range(200):
        y = label if slot == 7 else True
        model.learn_one(dict.fromkeys(NAMES, 0.5), y, Origin(context=str(slot).encode()))
    return sums[0]


@pytest.mark.parametrize("mutant", [False, True])
def test_noise_of_labels_depends_on_them(mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant keys it by gradients alone: two views of other labels, subtracted, then show them."""
    one, two = (first_noise(label, monkeypatch if mutant else None) for label in (True, False))
    assert np.array_equal(one, two) is mutant


# ---- probabilities -------------------------------------------------------------------------------------


def log_loss(model: Any) -> float:
    x, y = stream(3000, seed=1)
    p = np.asarray(model.predict_proba_many(x)[True])
    return -float(np.mean(np.log(np.where(y, p, 1.0 - p))))


@pytest.mark.parametrize("name", ["PairFTRL", "OnPairStrC", "OnPairC"])
def test_probabilities_are_worth_more_than_a_constant(name: str) -> None:
    """Without a share they are worth less, for the scores do not lie around 0."""
    x, y = stream(4000)
    constant = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    models = {rate: MAKERS[name](4000, positive_rate=rate, seed=3) for rate in ("released", None)}
    for model in models.values():
        model.learn_many(x, y)
    assert log_loss(models["released"]) < constant - 0.03
    assert log_loss(models[None]) > constant + 0.05


def test_before_a_release_a_score_of_zero_is_a_coin_and_then_has_the_rate() -> None:
    x, y = stream(500)
    model = MAKERS["PairFTRL"](2000, positive_rate="released", seed=1)
    first = model.run.state.plan.companion.first
    model.learn_many(x[: first - 1], y[: first - 1])
    assert model._proba(0.0) == 0.5
    model.learn_many(x[first - 1 : first], y[first - 1 : first])
    assert model._proba(0.0) != 0.5


@pytest.mark.parametrize("name", MAKERS)
def test_a_declared_share_costs_nothing(name: str) -> None:
    x, y = stream(200)
    declared, plain = (MAKERS[name](200, positive_rate=rate, seed=1) for rate in (0.2, None))
    for model in (declared, plain):
        model.learn_many(x, y)
    assert declared.weights_vector.tolist() == plain.weights_vector.tolist()
    assert declared.privacy.mu_spent == plain.privacy.mu_spent
    assert declared._proba(0.0) == pytest.approx(0.2)
    assert "The declared share of positives, 0.2, is taken as public" in declared.privacy.details
    assert "uncalibrated" not in declared.privacy.details


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ranking.PairFTRL(mechanism=privacy.PairGradients(positive_rate=0.5)),
            "there are no two classes",
        ),
        (lambda: MAKERS["PairFTRL"](50, positive_rate="yes"), "positive_rate is 'yes'"),
        (lambda: MAKERS["PairFTRL"](50, positive_rate=True), "positive_rate is True"),
        (lambda: MAKERS["OnPairC"](50, positive_rate=1.0), "positive_rate is 1.0"),
        (
            lambda: auc.OnPairC(1.0, 1e-4, 50, calibration="paper", positive_rate="released"),
            "the paper's calibration leaves nothing",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        make()
