"""docs/privacy against the repository: what it names exists, and what cites it finds a section."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
from harness.support import at_row

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "privacy"
PAGES = sorted(FOLDER.glob("[0-9]*.md"), key=lambda page: int(page.stem.partition("-")[0]))
INDEX = (FOLDER / "index.md").read_text("utf-8")
TEXT = "\n".join([INDEX, *(page.read_text("utf-8") for page in PAGES)])

LEMMA = re.compile(r"^### Lemma (\d+) \((.+)\)$", re.MULTILINE)
PARTS = ("Statement", "Proof", "Code", "Test")
TESTS = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
REFERENCE = re.compile(r"`(streampair(?:_connectors)?(?:\.\w+)+)`")
SECTION = re.compile(r"^#{1,3} (\d+(?:\.\d+)*)\.? ", re.MULTILINE)
CITED = re.compile(r"docs/privacy,? (?=\d|Lemma)")
NUMBER = re.compile(r"\d+(?:\.\d+)*")


def lemmas() -> dict[int, str]:
    """The text of each lemma, by its number."""
    found = list(LEMMA.finditer(TEXT))
    out = {}
    for match in found:
        rest = TEXT[match.end() :]
        end = re.search(r"^#{1,3} ", rest, re.MULTILINE)
        out[int(match[1])] = rest[: end.start()] if end else rest
    assert len(out) == len(found)
    return out


LEMMAS = lemmas()


@functools.cache
def functions(path: Path) -> set[str]:
    """Names of the functions that a test file defines."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def resolve(reference: str) -> object:
    """What a dotted name stands for: a module, a name in it, or an attribute or field of that."""
    parts = reference.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AttributeError(reference)


def cited(text: str) -> set[str]:
    """Section numbers, and lemmas as "Lemma N", that a text cites.

    A citation is a number behind the page's name, and further ones behind "," or "to" or "and".
    """
    numbers = set()
    for match in CITED.finditer(text):
        position = match.end()
        while True:
            lemma = re.compile(r"Lemmas? ").match(text, position)
            number = NUMBER.match(text, lemma.end() if lemma else position)
            if number is None:
                break
            numbers.add(f"Lemma {number[0]}" if lemma else number[0])
            more = re.compile(r"(?:, | to | and )(?=\d|Lemma)").match(text, number.end())
            if more is None:
                break
            position = more.end()
    return numbers


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".json"}
    return [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in kinds]


@functools.cache
def known() -> set[str]:
    return set(SECTION.findall(TEXT)) | {f"Lemma {number}" for number in LEMMAS}


def test_a_lemma_has_all_its_parts() -> None:
    for number, body in LEMMAS.items():
        with at_row("Lemma", number):
            check_parts(body)


def check_parts(body: str) -> None:
    places = [body.find(f"**{part}.** ") for part in PARTS]
    assert min(places) >= 0
    assert places == sorted(places)
    assert all(body.count(f"**{part}.**") == 1 for part in PARTS)
    code, test = body[places[2] : places[3]], body[places[3] :]
    assert REFERENCE.search(code)
    assert all(name for _, name in TESTS.findall(test))
    assert TESTS.search(test)


def test_the_tests_that_it_names_exist() -> None:
    named = sorted(set(TESTS.findall(TEXT)))
    files = {path for path, _ in named}
    assert [path for path in sorted(files) if not (ROOT / path).is_file()] == []
    assert [f"{path}::{name}" for path, name in named if name and name not in functions(ROOT / path)] == []


def test_the_code_that_it_names_exists() -> None:
    for reference in sorted(set(REFERENCE.findall(TEXT))):
        with at_row(reference):
            resolve(reference)


def test_its_own_lemmas_and_sections_exist() -> None:
    named = {int(n) for n in re.findall(r"Lemmas? (\d+)", TEXT)}
    named |= {int(n) for n in re.findall(r"Lemmas \d+ (?:and|to) (\d+)", TEXT)}
    assert named <= set(LEMMAS)
    sections = set(re.findall(r"[Ss]ections? (\d+(?:\.\d+)*)", TEXT))
    assert sections <= known()
    assert len(SECTION.findall(TEXT)) == len(set(SECTION.findall(TEXT)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_sections_of_its_number(page: Path) -> None:
    sections = SECTION.findall(page.read_text("utf-8"))
    assert {number.partition(".")[0] for number in sections} == {page.stem.partition("-")[0]}
    assert f"]({page.name})" in INDEX


def index_row(page: Path, number: int, title: str) -> str:
    """The row of a lemma in the index: its number, its title and the names of its code."""
    code = LEMMAS[number].partition("**Code.**")[2].partition("**Test.**")[0]
    slug = re.sub(r"[^\w\s-]", "", f"lemma {number} {title}").lower().replace(" ", "-")
    names = ", ".join(f"`{name.removeprefix('streampair.')}`" for name in REFERENCE.findall(code))
    return f"| [{number}]({page.name}#{slug}) | {title} | {names} |"


def test_the_index_lists_every_lemma_by_number() -> None:
    rows = {
        int(number): index_row(page, int(number), title)
        for page in PAGES
        for number, title in LEMMA.findall(page.read_text("utf-8"))
    }
    written = [line for line in INDEX.splitlines() if re.match(r"\| \[\d+\]\(", line)]
    assert written == [rows[number] for number in sorted(rows)], "the lemmas of docs/privacy/index.md"


def test_what_cites_it_finds_a_section() -> None:
    """Of all texts of the repository, which takes some seconds."""
    missing = {}
    for path in sources():
        text = path.read_text("utf-8")
        if path.parent.name == "extending":  # its example cites the lemma that it adds
            text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        if path != Path(__file__).resolve() and "docs/privacy" in text:
            missing[path] = cited(re.sub(r"\s*\n\s*(?:#\s*)?", " ", text)) - known()
    assert len(missing) > 50
    assert {str(path.relative_to(ROOT)): sorted(names) for path, names in missing.items() if names} == {}


def test_the_checks_see_what_is_wrong() -> None:
    assert cited("as in docs/privacy 3, 4.1 to 4.3).") == {"3", "4.1", "4.3"}
    assert cited("(docs/privacy, Lemma 7) and docs/privacy 4.4, 99.") == {"Lemma 7", "4.4", "99"}
    assert cited("docs/privacy 8). 5 more") == {"8"}
    assert {"1", "3.3", "4.3", "9.11", "10.10"} <= known()
    assert "9.12" not in known()
    assert f"Lemma {max(LEMMAS) + 1}" not in known()
    with pytest.raises(AttributeError):
        resolve("streampair.privacy.plan_nothing")


# ---- pages that repeat the specification ---------------------------------------------------------------

PROTECTION = (ROOT / "docs" / "protection.md").read_text("utf-8")
NUMBERS = ("eight", "nine", "ten", "eleven", "twelve", "thirteen")


def undetected(text: str) -> list[str]:
    """The cases that a page says are not detected, in order."""
    _, _, rest = text.partition("Three cases are not detected")
    items = rest.partition("\n\n- ")[2].partition("\n\n")[0].split("\n- ")
    return [" ".join(item.split()).strip(";.") for item in items]


def test_what_is_not_detected_is_on_every_page() -> None:
    """docs/protection.md said that every rollback is noticed, which section 8.2 denies."""
    cases = undetected(TEXT)
    assert len(cases) == 3
    assert undetected(PROTECTION) == cases
    security = " ".join((ROOT / "SECURITY.md").read_text("utf-8").split())
    assert [case for case in cases if case not in security] == []
    assert undetected(PROTECTION.replace("- a forger", "- somebody")) != cases


def test_the_kinds_of_evidence_are_those_of_the_specification() -> None:
    sections = re.findall(r"^## 9\.(\d+) (.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (\d+) .*\| (.*) \|$", PROTECTION.partition("## The evidence")[2], re.MULTILINE)
    assert [number for number, _ in rows] == [number for number, _ in sections]
    assert f"asks for {NUMBERS[len(rows) - 8]} kinds of evidence" in PROTECTION
    for (number, section), (_, files) in zip(sections, rows, strict=True):
        for path in re.findall(r"`(.+?)`", files):
            folder = "" if "/" in path else "privacy/"
            assert f"tests/{folder}{path}" in section, (number, path)


def test_the_private_learners_are_those_that_the_page_names() -> None:
    sentence = PROTECTION.partition(" are private;")[0].rpartition("\n\n")[2]
    modules = [importlib.import_module(f"streampair.{name}") for name in ("auc", "ranking", "metric")]
    private = {
        name for module in modules for name in module.__all__ if hasattr(getattr(module, name), "learn_null")
    }
    assert set(re.findall(r"`(\w+)`", sentence)) == private


def test_the_kinds_of_a_report_and_the_safe_steps_are_those_of_the_code() -> None:
    accounting = importlib.import_module("streampair.privacy.accounting")
    rows = PROTECTION.partition("| `report.kind` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == set(get_args(accounting.Kind))
    steps = PROTECTION.partition("are not fitted to the stream and never raise")[0].rpartition(
        "`preprocessing."
    )[2]
    named = re.findall(r"\w+", steps)
    total = importlib.import_module("streampair.privacy.pipeline_check").TOTAL
    assert [name for name in named if name != "and" and f"streampair.preprocessing.{name}" not in total] == []
    assert len(named) >= 5
