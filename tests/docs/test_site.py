"""The site is built strictly, fetches nothing, and shows its formulas without a script."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

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
    """A page that asks another host for a font or a script; the site is built here."""
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
    """An index that only a server can hand out."""
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


def text_of(site: Path, page: str) -> str:
    return (site / "api" / page).read_text(encoding="utf-8")


def test_each_class_has_a_page_and_the_module_lists_it(site: Path) -> None:
    from streampair import auc, losses, privacy

    for module in (auc, losses, privacy):
        name = module.__name__.rpartition(".")[2]
        overview = text_of(site, f"{name}.html")
        for each in module.__all__:
            if isinstance(getattr(module, each), type):
                assert f'href="{name}/{each}.html"' in overview, each
                assert f'id="streampair.{name}.{each}"' in text_of(site, f"{name}/{each}.html"), each
            else:
                assert f'id="streampair.{name}.{each}"' in overview, each


def test_what_a_class_inherits_is_on_the_page_of_its_base_alone(site: Path) -> None:
    page = text_of(site, "auc/PairFTRL.html")
    assert 'id="streampair.auc.PairFTRL.weights"' not in page
    for base, module, name in (
        ("PrivateLearner", "private", "learn_one"),
        ("PrivateLearner", "private", "privacy"),
        ("ClassifierMixin", "learner", "predict_proba_one"),
        ("Learner", "learner", "weights"),
    ):
        anchor = f"streampair.base.{module}.{base}.{name}"
        assert f'href="../bases/{base}.html#{anchor}"' in page, anchor
        assert f'id="{anchor}"' in text_of(site, f"bases/{base}.html"), anchor
    # a method of its own
    assert 'id="streampair.auc.Forest.predict_proba_one"' in text_of(site, "auc/Forest.html")


@pytest.fixture(scope="module")
def count() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(support.ROOT / "benchmarks"))
        return importlib.import_module("count")


def test_no_page_of_the_reference_is_long(site: Path, count: ModuleType) -> None:
    """The words that a reader sees, as `make count` counts them."""
    words = {page: count.words(page.read_text("utf-8")) for page in (site / "api").rglob("*.html")}
    assert len(words) > 80
    assert {page: each for page, each in words.items() if each > 4000} == {}


def test_parameters_that_share_a_line_have_their_own_defaults(site: Path) -> None:
    row = r'<tr class="doc-section-item">\s*<td>\s*<code>delta</code>.*?</tr>'
    for page, default in (("PairFTRL", "1e-06"), ("OnPairStrC", "required")):
        found = re.search(row, text_of(site, f"auc/{page}.html"), re.S)
        assert found is not None, page
        assert default in found[0], page
