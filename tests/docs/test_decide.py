"""Every number of the officer's page comes from the accountant, the planner or a page of figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from harness import pages
from scipy.special import ndtr, ndtri
from streampair_connectors.cli.budget import application_card
from streampair_connectors.config import load_config

from streampair import privacy

PAGE = pages.text_of("docs/decide.md")
DELTA = 1e-6


def section(heading: str) -> str:
    return pages.section(PAGE, f"## {heading}")


def three_digits(value: float) -> str:
    """Three digits, and all of the whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """With two decimals where less would show certainty, or nothing."""
    return f"{100 * share:.{2 if share < 0.1 or share > 0.999 else 1}f} %"


def posterior(prior: float, epsilon: float) -> float:
    """The largest probability after odds have grown by the factor e^epsilon."""
    return prior * math.exp(epsilon) / (prior * math.exp(epsilon) + 1.0 - prior)


def right(mu: float) -> str:
    """Of 100 guesses between N(0, 1) and N(mu, 1), equally likely, those of the best test."""
    return f"{100 * ndtr(mu / 2):.1f}".removesuffix(".0")


def test_what_an_attacker_gains() -> None:
    expected = []
    for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
        mu = privacy.mu_from(epsilon, DELTA)
        gains = [percent(posterior(prior, epsilon)) for prior in (0.01, 0.1, 0.5)]
        found = f"{100 * ndtr(ndtri(0.01) + mu):.1f}"
        expected.append([f"{epsilon:g}", three_digits(math.exp(epsilon)), *gains, right(mu), found])
    assert pages.rows(section("What an attacker gains")) == expected


def test_how_rarely_the_factor_is_exceeded() -> None:
    """If P(A) <= e^x Q(A) + delta(x), and P > e^1 Q on A, then P(A) <= delta(x) / (1 - e^(x - 1))."""
    mu = privacy.mu_from(1.0, DELTA)
    most = min(privacy.delta_from(x, mu) / -math.expm1(x - 1.0) for x in np.linspace(0.0, 0.99, 100))
    assert math.ceil(most * 1e5) == 6
    assert "below 6e-5" in section("What an attacker gains")


def test_learners_on_the_same_records_add_up() -> None:
    mu = privacy.mu_from(1.0, DELTA)
    two, four = (privacy.epsilon_from(privacy.compose([mu] * count), DELTA) for count in (2, 4))
    text = " ".join(section("What is decided, and by whom").split())
    assert f"two with epsilon 1 each come to {two:.2f}, four to {four:.2f} (at delta 1e-6)" in text


def test_several_records_of_one_person() -> None:
    mu = privacy.mu_from(1.0, DELTA)
    expected = [
        [str(count), three_digits(privacy.epsilon_from(count * mu, DELTA)), right(count * mu)]
        for count in (1, 5, 10, 20, 500)
    ]
    text = section("A person with 500 events")
    assert pages.rows(text)[:5] == expected
    needed = privacy.epsilon_from(mu / 500, DELTA)
    assert f"a record would need epsilon {needed:.4f}." in " ".join(text.split())


@pytest.mark.everything
@pytest.mark.parametrize(("row", "records"), [(5, None), (6, 20), (7, 500)])
def test_what_protecting_a_person_costs(row: int, records: int | None) -> None:
    """The forecast of the command on the page; 10 s each."""
    entity = None if records is None else privacy.EntityLimit(records)
    found = privacy.plan(1e6, 20, epsilon=1.0, delta=DELTA, positive_rate=0.01, entity=entity)
    _, auc, least = pages.rows(section("A person with 500 events"))[row]
    assert float(auc) == pytest.approx(found.best.auc, abs=0.002)
    assert least == f"{found.best.useful_from:,}"


def measured(name: str) -> list[str]:
    """The row of a set, by the figures of the page that `make utility` writes."""
    block = re.search(
        rf"^{name}: (\d+) rows, (\d+) features.*?\n\n",
        pages.text_of("docs/benchmarks/accuracy.md"),
        re.M | re.S,
    )
    assert block is not None
    lines = {line[:26].strip(): line[26:] for line in block[0].splitlines()}
    cells = [
        f"{mean} ± {error}"
        for learner in ("LogisticRegression", "PairFTRL")
        for mean, error in re.findall(r"(\S+) \+- (\S+)", lines[learner])
    ]
    return [name, f"{int(block[1]):,}", block[2], *cells]


def test_what_it_costs_is_what_was_measured() -> None:
    text = section("What it costs")
    assert pages.rows(text) == [measured(name) for name in ("german", "usps", "bank", "adult")]


def test_the_card_of_the_example_is_approved(tmp_path: Path) -> None:
    """Its reason says what the table says of its epsilon."""
    (block,) = (block for block in pages.blocks("docs/decide.md") if block.language == "toml")
    file = tmp_path / "fraud.toml"
    file.write_text(block.text)
    config = load_config(file)
    card = application_card(config)
    loss, approval = card["privacy_loss"], card["approval"]
    assert (loss["epsilon"], loss["delta"], card["status"]["guarantee"]) == (1.0, DELTA, "promised")
    assert f"in {right(loss['mu'])} of 100 cases" in approval["reason for epsilon and delta"]
    assert approval["approved by"] == config.card.approved_by
    assert config.learner.options["horizon"] == 1 / DELTA
    file.write_text(block.text.partition("approved_by")[0])
    assert set(application_card(load_config(file))["approval"].values()) == {None}


def test_it_fits_on_two_printed_pages() -> None:
    text = re.sub(r"\]\([^)]*\)", "]", PAGE)
    assert len(re.findall(r"[\w.,%-]*\w[\w.,%-]*", text)) <= 1250
