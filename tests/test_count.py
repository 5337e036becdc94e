"""`benchmarks/count.py` counts what its rows say, and reads the tree that it is given."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest
from harness import support
from streampair_connectors.config import KafkaConfig

from streampair.engine import Lane

SOURCE = '''"""A docstring
of two lines."""

# a comment
X = """A text
of two lines."""  # and a comment


class Lane:
    """A docstring."""

    def __init__(self, a, /, b, *, c): """A docstring behind code."""
'''


@pytest.fixture(scope="module")
def count() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(support.ROOT / "benchmarks"))
        return importlib.import_module("count")


def test_a_line_of_code_is_neither_comment_nor_docstring(count: ModuleType) -> None:
    assert count.lines_of_code(SOURCE) == 4  # two of X, class and def
    assert count.lines_of_code("") == 0


def test_parameters_are_those_of_the_class_with_self(count: ModuleType) -> None:
    assert count.parameters(SOURCE, "Lane") == 4
    with pytest.raises(LookupError, match="Other"):
        count.parameters(SOURCE, "Other")
    source = (support.ROOT / "streampair" / "engine" / "lane.py").read_text()
    assert count.parameters(source, "Lane") == len(inspect.signature(Lane.__init__).parameters)


@pytest.mark.parametrize(
    "backward",
    [
        "from p.a import A",
        "from . import a",
        "def f():\n    import p.a",
        "if TYPE_CHECKING:\n    from .a import A",
    ],
)
def test_a_circle_is_seen_wherever_the_import_stands(count: ModuleType, backward: str) -> None:
    sources = {"p/__init__.py": "", "p/a.py": "from p.b import B", "p/b.py": backward, "p/c.py": "import p.a"}
    assert count.circles(sources) == [["p.a", "p.b"]]
    assert count.circles({**sources, "p/b.py": "from p import other"}) == []


def test_a_circle_of_three_is_one_circle(count: ModuleType) -> None:
    sources = {"p/a.py": "import p.b", "p/b.py": "import p.c", "p/c.py": "import p.a, p.b"}
    assert count.circles(sources) == [["p.a", "p.b", "p.c"]]


def test_no_modules_import_one_another_not_for_types_either(count: ModuleType) -> None:
    """Two circles of imports for types alone, which the rules of `test_imports` leave out, had grown."""
    sources = count.modules(support.ROOT)
    observability = "streampair_connectors.observability"
    # The one that is made here is found, and no other.
    sources["streampair_connectors/observability/progress.py"] += f"import {observability}.health"
    assert count.circles(sources) == [[f"{observability}.{n}" for n in ("health", "metrics", "progress")]]


def test_words_are_those_of_the_article(count: ModuleType) -> None:
    page = "<nav>no word</nav><article><h1>Two words</h1><p>and <code>three</code> more</p></article>end"
    assert count.words(page) == 5


def test_keys_are_leaves_of_the_tables(count: ModuleType) -> None:
    keys = count.keys(support.ROOT)
    assert len(keys) == len(set(keys))
    assert {"app", "input.topic", "learner.class", "learner.steps.class"} <= set(keys)
    assert not {"kafka", "learner.steps", "learner.class_"} & set(keys)
    assert {f"kafka.{name}" for name in KafkaConfig.model_fields} <= set(keys)


def test_cases_are_counted_in_the_tree_that_is_given(count: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n): ...\ndef test_one(): ..."
    )
    assert count.cases(tmp_path) == 3
    (tmp_path / "test_two.py").write_text("import there_is_none")
    with pytest.raises(SystemExit, match="there_is_none"):
        count.cases(tmp_path)
