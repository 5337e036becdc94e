"""Conversion between mu-GDP and (epsilon, delta), against an independent accountant."""

from __future__ import annotations

import math

import pytest
from dp_accounting import gaussian_mechanism
from harness.support import in_one_case
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from streampair.errors import ConfigError
from streampair.privacy import (
    PrivacyReport,
    Spend,
    compose,
    delta_from,
    epsilon_from,
    epsilon_from_rho,
    mu_from,
    rho_from,
)
from streampair.privacy.accounting import promised_epsilon

EPSILONS = [0.01, 0.1, 0.5, 1.0, 2.0, 8.0, 30.0]
DELTAS = [1e-12, 1e-8, 1e-6, 1e-4, 1e-2, 0.3]


@in_one_case("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    independent = 1.0 / gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert mu_from(epsilon, delta) == pytest.approx(independent, rel=1e-6)


@in_one_case("mu", [0.03, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_agrees_with_dp_accounting(mu: float, delta: float) -> None:
    independent = gaussian_mechanism.get_epsilon_gaussian(1.0 / mu, delta)
    assert epsilon_from(mu, delta) == pytest.approx(independent, rel=1e-6, abs=1e-9)


@in_one_case("mu", [1e-3, 0.2, 0.49, 0.51, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0, 4.0])
def test_delta_is_the_hockey_stick_divergence(mu: float, share: float) -> None:
    epsilon = share * mu + mu**2 / 2

    def excess(x: float) -> float:
        return max(stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2
    integral, _ = integrate.quad(excess, start, start + 12.0, epsabs=1e-16, epsrel=1e-10)
    assert delta_from(epsilon, mu) == pytest.approx(integral, rel=1e-7, abs=1e-15)


@given(epsilon=st.floats(-9, 3).map(lambda e: 10.0**e), delta=st.floats(-80, -0.3).map(lambda e: 10.0**e))
def test_the_inversions_agree_and_never_promise_too_much(epsilon: float, delta: float) -> None:
    mu = mu_from(epsilon, delta)
    assert 0 < mu < math.inf
    assert delta_from(epsilon, mu) <= delta * (1 + 1e-12)
    back = epsilon_from(mu, delta)
    # Where delta hardly depends on epsilon the last digits of mu are many digits of epsilon.
    assert back <= epsilon * (1 + 1e-9)
    assert delta_from(back, mu) == pytest.approx(delta, rel=1e-9)


@given(mu=st.floats(1e-4, 20.0), epsilon=st.floats(0.0, 50.0))
def test_delta_falls_with_epsilon_and_rises_with_mu(mu: float, epsilon: float) -> None:
    assert delta_from(epsilon, mu) >= delta_from(epsilon * 1.01 + 0.01, mu)
    assert delta_from(epsilon, mu * 1.01) >= delta_from(epsilon, mu)


def test_the_edges() -> None:
    assert delta_from(1.0, 0.0) == 0.0
    assert delta_from(1.0, math.inf) == 1.0
    assert epsilon_from(0.0, 1e-6) == 0.0
    assert epsilon_from(math.inf, 1e-6) == math.inf
    assert epsilon_from(1e-9, 1e-6) == 0.0
    assert compose([]) == 0.0
    assert compose([0.1] * 100) == pytest.approx(1.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_a_bad_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        mu_from(epsilon, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-9, math.nan, "x", None, True])
def test_a_bad_delta_is_refused(delta: object) -> None:
    with pytest.raises(ConfigError, match="delta"):
        mu_from(1.0, delta)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [lambda: delta_from(-1.0, 1.0), lambda: delta_from(1.0, math.nan), lambda: epsilon_from(-1.0, 0.1)],
)
def test_negative_arguments_are_refused(call: object) -> None:
    with pytest.raises(ConfigError):
        call()  # type: ignore[operator]


def test_the_classical_calibration_is_a_mutant_that_the_check_rejects() -> None:
    # sqrt(2 ln(1.25 / delta)) / epsilon is invalid for large epsilon (docs/privacy 1).
    delta = 1e-3
    mu = 8.0 / math.sqrt(2 * math.log(1.25 / delta))
    assert epsilon_from(mu, delta) > 8.0 * 1.01


@given(epsilon=st.floats(1e-6, 50.0), log_delta=st.floats(-40, -0.3))
def test_zcdp_inverts_and_never_beats_the_exact_conversion(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    rho = rho_from(epsilon, delta)
    assert epsilon_from_rho(rho, delta) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon_from(math.sqrt(2 * rho), delta) <= epsilon * (1 + 1e-9)


def test_zcdp_loses_what_the_docstring_says() -> None:
    # The noise for the same budget, through zCDP against exactly.
    more = [mu_from(e, d) / math.sqrt(2 * rho_from(e, d)) - 1 for e in (0.5, 1.0, 8.0) for d in (1e-4, 1e-6)]
    assert (round(min(more), 2), round(max(more), 2)) == (0.14, 0.48)


spends = st.builds(Spend, mu=st.floats(0, 5), rho=st.floats(0, 2), pure=st.floats(0, 3))


@given(one=spends, two=spends, three=spends)
def test_spends_compose_in_any_order(one: Spend, two: Spend, three: Spend) -> None:
    together = one.then(two, three)
    for other in (three.then(one).then(two), one.then(two.then(three))):
        assert (other.mu, other.rho, other.pure) == pytest.approx((together.mu, together.rho, together.pure))
    assert together.mu**2 == pytest.approx(one.mu**2 + two.mu**2 + three.mu**2, abs=1e-12)
    side = one.parallel(two)
    for delta in (1e-9, 1e-3):
        assert max(one.epsilon(delta), two.epsilon(delta)) <= side.epsilon(delta) * (1 + 1e-9)
        assert side.epsilon(delta) <= one.then(two).epsilon(delta) * (1 + 1e-9)
        assert (
            epsilon_from(one.mu, delta) <= Spend(mu=one.mu).epsilon(delta) <= promised_epsilon(one.mu, delta)
        )
        assert Spend(pure=one.pure).epsilon(delta) <= one.pure


def report(**changes: object) -> PrivacyReport:
    base = PrivacyReport(
        epsilon_spent=0.25,
        epsilon_budget=1.0,
        delta=1e-6,
        mu_spent=0.06,
        mu_budget=0.23,
        unit="one record",
        adjacency="replace-one",
        releases=10,
        guarantee="exact accounting",
        kind="holds",
        horizon=100,
        horizon_left=90,
        noise_std=1.0,
    )
    return base.replace(**changes)


def test_the_report_answers_a_question_a_line() -> None:
    text = str(report())
    heads = [line.split(":")[0] for line in text.splitlines()]
    questions = ["Promised", "Spent", "Left", "Not covered", "Void by", "Details"]
    assert heads == ["Differential privacy holds", *questions]
    assert len(text.split()) < 200
    assert "epsilon 1 at delta 1e-06" in text.splitlines()[1]
    for phrase in (
        "one record",
        "replace-one",
        "0.25 of 1",
        "10 releases",
        "90 of 100 records",
        "whether a record exists",
        "own features",
        "otherwise than by releases of this learner",
    ):
        assert phrase in text
    assert "Lemma 21" in report().details
    assert str(report(kind="void", guarantee="void (fixed seed)")).startswith(
        "NO GUARANTEE HOLDS: void (fixed seed)"
    )
    assert str(report(kind="unvouched", guarantee="restarted")).startswith(
        "THE GUARANTEE CANNOT BE VOUCHED FOR"
    )
    assert "may be infinite" in str(report(horizon=None, horizon_left=None))
    assert "horizon is reached" in str(report(horizon_left=0))
