"""The site is built strictly, fetches nothing, and shows its formulas without a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import support
from harness.browser import browser

HINT = "make docs, or pip install --group docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        support.unavailable("mkdocs", HINT, made=True)
    directory = tmp_path_factory.mktemp("site")
    completed = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=support.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return directory


def fetched(page: str) -> list[str]:
    """What a browser would ask another host for, to show a page."""
    tags = re.findall(r"<(?:script|img|iframe|source|video|audio|object|embed)\b[^>]*>", page)
    tags += [tag for tag in re.findall(r"<link\b[^>]*>", page) if not re.search(r'rel="?canonical', tag)]
    return [tag for tag in tags if re.search(r"""(?:src|href|data)=["']?(?:https?:)?//""", tag)]


def test_no_page_fetches_anything(site: Path) -> None:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 15
    for page in found:
        assert fetched(page.read_text(encoding="utf-8")) == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/mathjax.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css?family=Roboto">',
    ],
)
def test_a_page_that_fetches_is_caught(page: str) -> None:
    assert fetched(page)


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "protection.html").read_text(encoding="utf-8")
    assert page.count("<math ") >= 4
    for other in site.rglob("*.html"):
        text = other.read_text(encoding="utf-8")
        assert 'class="arithmatex"' not in text, other.name
        # What is left of $$ where a blank line is missing before or behind it.
        assert not re.search(r"\$\s*<math|</math>\s*\$", text), other.name


def test_the_search_works_from_the_disk(site: Path) -> None:
    with browser() as started:
        page = started.new_page(viewport={"width": 1440, "height": 900})
        page.goto((site / "privacy" / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").press_sequentially("neighbouring streams")
        page.locator(".md-search-result__item a", has_text="Neighbouring streams").first.click()
        page.wait_for_url("**/concepts.html*#neighbouring-streams")


def test_the_command_line_is_all_there(site: Path) -> None:
    page = (site / "api" / "cli.html").read_text(encoding="utf-8")
    for command in ("run", "check", "replay", "demo", "audit", "budget-plan", "budget-show"):
        assert f'id="streampair-{command}"' in page, command


def test_a_notebook_is_shown_with_its_plots_and_tables(site: Path) -> None:
    page = (site / "tutorials" / "notebook.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') == 3
    assert "<caption" in page
    assert "Differential privacy holds</caption>" in page


def test_the_reference_has_the_learners_with_their_methods(site: Path) -> None:
    page = (site / "api" / "auc.html").read_text(encoding="utf-8")
    for name in ("PairOGD", "PairFTRL", "PairFTRL.learn_one", "PairFTRL.privacy", "OAM.score_one"):
        assert f'id="streampair.auc.{name}"' in page, name
    assert 'id="streampair.losses.Hinge"' in (site / "api" / "losses.html").read_text(encoding="utf-8")


def test_parameters_that_share_a_line_have_their_own_defaults(site: Path) -> None:
    page = (site / "api" / "auc.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="doc-section-item">\s*<td>\s*<code>delta</code>.*?</tr>', page, re.S)
    assert any("1e-06" in row for row in rows)
    assert any("required" in row for row in rows)
