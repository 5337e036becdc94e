"""Canary audits of the real learners, with mutants (docs/privacy 9.5)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import naive
import numpy as np
import pytest
from harness.audit_mutants import CASES, LOOSE, Break
from harness.options import folded
from harness.support import in_one_case

from streampair import auc, buffers, losses, privacy
from streampair.assurance import audit
from streampair.base import dp_session
from streampair.errors import ConfigError
from streampair.privacy import EntityLimit
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms import ftrl, second_moments
from streampair.privacy.mechanisms.base import NoisySums
from streampair.privacy.mechanisms.ftrl import FTRLPlan, plan_ftrl
from streampair.privacy.mechanisms.second_moments import plan_second_moments
from streampair.privacy.noise import NormalStream
from streampair.privacy.sensitivity import BLT, pattern_sensitivity
from streampair.privacy.user_level import EntityInfluence

MU, DELTA = 3.0, 1e-3
EPSILON = promised_epsilon(MU, DELTA)
STEPS, SIZE, SPOT = 40, 4, 10
REJECT = 3.719  # one-sided, p = 1e-4


Breaker = Callable[[FTRLPlan], FTRLPlan]


def less_noise(plan: FTRLPlan) -> FTRLPlan:
    return dataclasses.replace(plan, sensitivity=0.7 * plan.sensitivity)


def no_buffer_term(plan: FTRLPlan) -> FTRLPlan:
    sensitivity = pattern_sensitivity(plan.strategy, np.ones(1), plan.diameter, grid=plan.grid, dim=plan.dim)
    return dataclasses.replace(plan, sensitivity=sensitivity)


def unchanged(plan: FTRLPlan) -> FTRLPlan:
    return plan


@functools.lru_cache
def _column(strategy: Any) -> np.ndarray:
    return strategy.column(STEPS) if isinstance(strategy, BLT) else strategy.column


def released(model: auc.PairFTRL, canary: dict[str, float]) -> np.ndarray:
    """Noisy sum after every slot of a run with a canary among records at 0 of the other label."""
    out = []
    for t in range(STEPS):
        if t == SPOT:
            model.learn_one(canary, True)
        else:
            model.learn_one({"a": 0.0}, False)
        assert model.run is not None
        out.append(float(model.run.state.gate.total[0]) * model.run.state.plan.grid)
    return np.array(out)


def statistic(model: auc.PairFTRL, canary: dict[str, float]) -> float:
    """C times the noisy gradients, matched to C v: the most powerful test of the canary's side."""
    sums = released(model, canary)
    gradient_perturbation = np.diff(sums, prepend=0.0)
    assert model.run is not None
    c = naive.dense(_column(model.run.state.plan.strategy))
    direction = c @ naive.fifo_influence(SPOT, STEPS, SIZE)
    return float((c @ gradient_perturbation) @ direction)


def measured_mu(runs: int, seed: int | None, **options: Any) -> tuple[float, float]:
    """Distance of the two sides in standard deviations, and its standard error."""
    base = {
        "radius": 1e-3,
        "epsilon": EPSILON,
        "delta": DELTA,
        "warmup": 0,
        "features": ["a"],
        "buffer": buffers.FIFO(SIZE),
    }
    # The radius is tiny: no pair is ever satisfied, so each keeps its full gradient.
    sides = []
    for side, sign in enumerate((1.0, -1.0)):
        runs_of_side = [
            statistic(
                auc.PairFTRL(
                    **folded({**base, **options}),
                    seed=None if seed is None else 1000 * seed + 2 * k + side,
                ),
                {"a": sign},
            )
            for k in range(runs)
        ]
        sides.append(np.array(runs_of_side))
    pooled = math.sqrt((sides[0].var(ddof=1) + sides[1].var(ddof=1)) / 2)
    mu = abs(sides[0].mean() - sides[1].mean()) / pooled
    return mu, math.sqrt(2 / runs + mu**2 / (4 * runs))


def audit_fails(runs: int, seed: int | None, **options: Any) -> bool:
    """Whether the canary shows more than the promised mu at p < 1e-4."""
    mu, _ = measured_mu(runs, seed, **options)
    return mu > MU + REJECT * math.sqrt(2 / runs + MU**2 / (4 * runs))


SETUPS = [{"horizon": STEPS}, {"horizon": STEPS, "strategy": "blt"}, {}]
IDS = ["square-root", "blt", "blt-endless"]


@pytest.mark.slow
@pytest.mark.parametrize("options", SETUPS, ids=IDS)
def test_the_learner_passes_the_audit(options: dict[str, Any]) -> None:
    for seed in range(4):
        assert not audit_fails(30, seed, **options)
    assert not audit_fails(200, None, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", SETUPS[:1], ids=IDS[:1])
@pytest.mark.parametrize("mutant", [less_noise, no_buffer_term])
def test_mutants_fail_the_audit(
    broken: Callable[[Breaker], None], mutant: Breaker, options: dict[str, Any]
) -> None:
    broken(mutant)
    assert audit_fails(300, 1, **options)


@pytest.mark.slow
def test_the_audit_is_tight() -> None:
    # The canary reaches the bound up to the grid's 1 %, so the promise is not slack either.
    mu, error = measured_mu(600, 3, horizon=STEPS)
    assert abs(mu - MU) < 4.5 * error + 0.03 * MU


# ---- the audit that ships ------------------------------------------------------------------------------

LEARNERS = {
    "square root": {"horizon": STEPS},
    "endless": {},
    "long horizon with a warm-up": {"horizon": 10**6, "features": ["a", "b"], "bounds": {"a": (0, 5)}},
    "keyed": {"horizon": STEPS, "noise_key": b"0123456789abcdef0123456789abcdef"},
    "full history": {"horizon": STEPS, "buffer": buffers.FullHistory()},
    "reservoir": {"horizon": STEPS, "buffer": buffers.Reservoir(SIZE)},
    "logistic": {"horizon": STEPS, "loss": losses.Logistic(), "positive": "fraud", "negative": "fine"},
    "moments": {"horizon": 10**4, "buffer": None, "noise_key": b"0123456789abcdef0123456789abcdef"},
    "moments, endless": {"buffer": None, "features": ["a", "b", "c"]},
    "entities": {"horizon": STEPS, "features": ["a"], "entity": EntityLimit(3, 5)},
    "ordered low": {"horizon": STEPS, "positive": False, "clip": 0.25},
}


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that differs from run to run of a test, but not from one test session to the next."""
    numbers = itertools.count()
    monkeypatch.setattr(dp_session, "NormalStream", lambda seed: NormalStream(next(numbers)))


def audited(runs: int = 60, **options: Any) -> privacy.AuditReport:
    base = {"epsilon": EPSILON, "delta": DELTA, "buffer": buffers.FIFO(SIZE), "seed": None}
    return privacy.audit(auc.PairFTRL(**folded({**base, **options})), slots=24, runs=runs)


@pytest.mark.parametrize("options", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.usefixtures("repeatable")
def test_true_learners_pass_and_the_canary_comes_close(options: dict[str, Any]) -> None:
    report = audited(**options)
    assert report.holds, report.verdict
    *prefix, learning = report.parts
    assert bool(prefix) == (options.get("horizon") != STEPS)
    assert learning.exact > 0.9 * learning.accounted
    assert learning.planned <= MU * (1 + 1e-9)
    assert 0.0 < learning.lower < learning.measured
    assert learning.claimed == pytest.approx(MU)
    for part in prefix:
        assert part.part == "warm-up"
        assert 0.99 * MU < part.exact <= part.claimed


@pytest.mark.parametrize("case", [*CASES, *LOOSE])
@pytest.mark.usefixtures("repeatable")
def test_the_canary_shows_nearly_all_that_is_claimed(case: str) -> None:
    """0.9 of the account of each mechanism, so that a defect of a tenth is caught by the audit alone."""
    wanted = {**CASES, **LOOSE}[case]
    report = privacy.audit(wanted.model, slots=wanted.slots, runs=20)
    assert report.holds, report.verdict
    assert case in LOOSE or wanted.share >= 0.9
    for part in report.parts:
        assert part.exact > wanted.share * part.accounted
        assert abs(part.measured - part.exact) < 4.5 * part.stderr


def test_noise_that_is_too_small_is_caught_in_other_mechanisms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, so it takes no runs."""
    true_plan = plan_second_moments
    monkeypatch.setattr(second_moments, "plan_second_moments", lambda mu, **k: true_plan(1.02 * mu, **k))
    verdict = privacy.audit(auc.PairFTRL(horizon=10**4), slots=12, runs=4).verdict
    assert "learning: the account has mu" in verdict


def wrong_account(monkeypatch: pytest.MonkeyPatch) -> str:
    whole = FTRLPlan.mu_spent

    def own_step_only(self: FTRLPlan, steps: int) -> float:
        sensitivity = pattern_sensitivity(
            self.strategy, np.ones(1), self.diameter, grid=self.grid, dim=self.dim
        )
        return min(whole(self, steps), sensitivity / self.sigma)

    monkeypatch.setattr(FTRLPlan, "mu_spent", own_step_only)
    return "accounted for"


def small_noise(monkeypatch: pytest.MonkeyPatch) -> str:
    true = NormalStream.take
    monkeypatch.setattr(NormalStream, "take", lambda self, count: 0.7 * true(self, count))
    return "of the size that it should have"


def no_noise(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(NormalStream, "take", lambda self, count: np.zeros((2, count)))
    return "the attack saw no noise"


def small_plan(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(ftrl, "plan_ftrl", lambda *a, **k: less_noise(plan_ftrl(*a, **k)))
    return "the account has mu"


def split_buffer(monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan forgets the buffer, and so does the account."""
    monkeypatch.setattr(ftrl, "plan_ftrl", lambda *a, **k: no_buffer_term(plan_ftrl(*a, **k)))
    wrong_account(monkeypatch)
    return "accounted for"


@pytest.mark.parametrize(
    ("mutant", "options"),
    [
        (wrong_account, {"horizon": STEPS}),
        (wrong_account, {"warmup": 0}),
        (small_noise, {"horizon": STEPS}),
        (no_noise, {"horizon": STEPS}),
        (no_noise, {}),
        (small_plan, {"horizon": STEPS}),
        (split_buffer, {"horizon": STEPS}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.usefixtures("repeatable")
def test_the_audit_catches(
    mutant: Callable[[pytest.MonkeyPatch], str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = mutant(monkeypatch)
    report = audited(**options)
    assert not report.holds
    assert report.verdict.startswith("VIOLATED")
    assert reason in report.verdict


@pytest.mark.parametrize(
    ("case", "mutant"),
    [
        # Those of a forest take longest, and all but one run with `make verify`.
        pytest.param(name, mutant, marks=[pytest.mark.verifier] if name == "forest" and later else [])
        for name, case in CASES.items()
        for later, mutant in enumerate(case.mutants)
    ],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_a_small_defect_is_caught(case: str, mutant: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of D, or of the noise; a bound that is missing; a record that is used twice."""
    mutant(monkeypatch)
    report = privacy.audit(CASES[case].model, slots=CASES[case].slots, runs=4)
    parts = [
        part.part for part in report.parts if any("the canary shows" in failure for failure in part.failures)
    ]
    assert " ".join(parts) == CASES[case].mutants[mutant]


def test_what_leaves_without_noise_is_attacked_where_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of the warm-up of which one leaves as it is: the attack is on that one, and every run shows it."""
    privatize = NoisySums.privatize
    monkeypatch.setattr(
        NoisySums,
        "privatize",
        lambda sums, noise: privatize(sums, noise * (np.arange(noise[0].size) > 0).reshape(noise[0].shape)),
    )
    model = CASES["moments"].model
    first = privacy.audit(model, slots=12, runs=4).parts[0]
    assert first.part == "warm-up"
    assert (first.exact, first.noise, first.measured, first.lower) == (math.inf, 0.0, math.inf, math.inf)
    assert [failure.split(":")[0] for failure in first.failures][-1] == "the attack saw no noise"


@in_one_case(
    ("sides", "outcome"),
    [
        ([[0.1] * 7, [0.1] * 7], (0.0, 0.0, 0.0)),
        ([[0.3] * 7, [0.1] * 7], (0.0, math.inf, 0.0)),
        ([[0.0] * 7, [0.0] * 7], (0.0, 0.0, 0.0)),
        ([[3.0, 5.0], [0.0, 2.0]], (math.sqrt(2.0), 3.0 / math.sqrt(2.0), math.sqrt(1.0 + 4.5 / 8.0))),
    ],
)
def test_outcomes_without_noise(sides: Any, outcome: tuple[float, float, float]) -> None:
    assert audit._outcome(np.array(sides)) == pytest.approx(outcome)


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_violation_has_to_be_measured_twice(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 10,000 is that far off by chance; the second has noise of its own."""
    true, measurements = audit._outcome, []

    def outcome(sides: np.ndarray) -> tuple[float, float, float]:
        measurements.append(sides.copy())
        noise, measured, stderr = true(sides)
        return noise, measured + 9.0 * (len(measurements) <= wrong), stderr

    monkeypatch.setattr(audit, "_outcome", outcome)
    report = audited(runs=8, horizon=STEPS)
    assert report.holds == (wrong < 2)
    assert len(measurements) == min(wrong, 1) + 1
    assert len({sides.tobytes() for sides in measurements}) == len(measurements)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_second_measurement_has_fresh_noise(keyed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a noise key, too, whose noise is a function of the number of the run."""
    measurements = []

    def outcome(sides: np.ndarray) -> tuple[float, float, float]:
        measurements.append(sides.copy())
        return 1.0, 99.0, 0.1

    monkeypatch.setattr(audit, "_outcome", outcome)
    assert not audited(runs=4, horizon=STEPS, noise_key=bytes(range(32)) if keyed else None).holds
    assert np.unique(np.concatenate(measurements)).size == 16


def test_a_plan_for_single_records_does_not_protect_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntityInfluence, "of", lambda influence, entity: influence)
    report = audited(runs=4, horizon=STEPS, features=["a"], entity=EntityLimit(3, 5))
    assert "is accounted for" in report.verdict
    assert report.parts[0].exact > 1.5 * report.parts[0].accounted


def test_an_audit_leaves_the_learner_as_it_was() -> None:
    model = auc.PairFTRL(epsilon=EPSILON, horizon=STEPS, features=["a"])
    before = repr(model.to_state())
    steps: list[tuple[str, int, int]] = []
    privacy.audit(model, slots=12, runs=10, progress=lambda *step: steps.append(step))
    assert steps == [("learning", i, 10) for i in range(1, 11)]
    assert repr(model.to_state()) == before
    assert model.privacy.epsilon_spent == 0.0


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(ConfigError, match="not private"):
        privacy.audit(auc.PairOGD())
    with pytest.raises(ConfigError, match="random points"):
        privacy.audit(auc.OnPairStrC(epsilon=1.0, delta=DELTA, horizon=STEPS, calibration="paper"))
    for options in ({"slots": 3}, {"runs": True}, {"runs": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            privacy.audit(auc.PairFTRL(), **options)
