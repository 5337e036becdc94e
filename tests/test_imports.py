"""Which module may import what: the walls of the house, read from the source itself."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import support

LIBRARY = support.ROOT / "streampair"
CONNECTORS = support.ROOT / "connectors" / "streampair_connectors"

# Standard-library modules that reach the network, other threads or the clock. `streampair` has none of them.
OUTSIDE = {"asyncio", "socket", "ssl", "http", "urllib", "subprocess", "threading", "multiprocessing"}
CLOCKS = {"time", "datetime", "random"}
THIRD_PARTIES_THAT_DO_IO = {
    *("aiokafka", "kafka", "confluent_kafka", "prometheus_client", "aiohttp", "typer", "rich", "pydantic"),
}
# What kernels are made of, and what the module that compiles them needs besides.
KERNELS_MAY = {"numpy", "numba", "llvmlite", "math", "typing", "__future__", "streampair"}
JIT_MAY = {"collections", "contextlib", "hashlib", "io", "logging", "os", "warnings"}
# The one module, or the package with all its modules, that knows a third party.
ONLY_IN = {
    "aiokafka": "streampair_connectors.kafka",
    "prometheus_client": "streampair_connectors.observability.metrics",
    "confluent_kafka": "streampair_connectors.kafka.embedded",
    "pyspark": "streampair_connectors.spark",
}


# The house, floor by floor: a room may import what stands before it in one of these rows, and nothing beside
# it.
FLOORS = (
    (
        *("errors", "kernels", "losses buffers schedules", "records", "privacy", "base"),
        *(
            "auc ranking metric preprocessing offline",
            "steps",
            "assurance models plots sklearn",
            "history",
            "connectors",
        ),
    ),
    ("errors", "kernels", "losses", "evaluation", "engine", "connectors"),
)
# Besides: a lane keeps the ledger of a private learner and refuses pipelines that break its guarantee; both
# know no learner. It tells one where a record comes from. The rest of privacy/ is none of its business.
# It saves the steps in front of a learner by the table of steps. A plot of scores shows their AUC.
ALSO = {
    "engine": {
        "steps",
        "privacy.accounting",
        "privacy.ledger",
        "privacy.provenance",
        "privacy.pipeline_check",
    },
    "evaluation": {"records.features"},
    "plots": {"evaluation"},
}
# The floors inside a room.
INSIDE = {
    "privacy": (
        (
            "_repr_html",
            "provenance",
            "accounting contraction ledger noise pipeline_check sensitivity",
            "user_level",
            "mechanisms",
            "report",
        ),
    ),
}
# The packages that give public names of rooms above them, by importing them when they are asked for.
DOORS = {"streampair", "streampair.evaluation", "streampair.privacy"}


def for_types_only(node: ast.AST) -> bool:
    """Whether a statement is an ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imported(source: str, package: str) -> Iterator[str]:
    """Absolute names of everything a module imports, wherever in it.

    ``from a import b`` gives both ``a`` and ``a.b``: b may be a module.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def top(name: str) -> str:
    return name.partition(".")[0]


def violations(path: str, source: str) -> list[str]:
    """What a module at ``path`` (relative to the repository's two packages) imports and must not."""
    parts = path.split("/")
    package = ".".join(parts[:-1])
    names = set(imported(source, package))
    tops = {top(name) for name in names}
    found: list[str] = []

    def forbid(wrong: set[str], why: str) -> None:
        found.extend(f"{path} imports {name}: {why}" for name in sorted(wrong))

    if parts[0] == "streampair":
        forbid(tops & {"streampair_connectors"}, "the library does not know the connectors")
        forbid(tops & (OUTSIDE | THIRD_PARTIES_THAT_DO_IO), "the library does no I/O")
        if parts[1] == "kernels":
            package_names = {
                n for n in names if top(n) == "streampair" and not n.startswith("streampair.kernels")
            }
            allowed = KERNELS_MAY | (JIT_MAY if parts[2] in ("_jit.py", "_dispatch.py") else set())
            forbid((tops - allowed) | package_names, "kernels: numpy and numba only")
            if parts[2] != "_jit.py":
                forbid(names & {"numba.njit", "numba.jit"}, "every kernel is made by `_jit.kernel`")
        else:
            forbid(tops & {"numba", "llvmlite"}, "all kernels are in kernels/")
        if parts[1] == "engine":
            forbid(tops & CLOCKS, "a lane has no clock and no global randomness")
    else:
        module = path.removesuffix(".py").replace("/", ".")
        for name, only in ONLY_IN.items():
            if module != only and not module.startswith(f"{only}."):
                forbid(tops & {name}, f"only {only} does")
        forbid(tops & {"numba"}, "all kernels are in streampair/kernels/")
        if parts[1] == "worker" and parts[2] != "factory.py":  # which says how long kernels took to compile
            forbid(tops & CLOCKS, "a worker has the clock of its Host")
    forbid(tops & {"benchmarks"}, "benchmarks are not installed")
    return found


def modules() -> list[Path]:
    return sorted([*LIBRARY.rglob("*.py"), *CONNECTORS.rglob("*.py")])


def house() -> dict[str, str]:
    """The source of every module of the two packages, by its path as in `violations`."""
    found = {}
    for file in modules():
        root = LIBRARY.parent if file.is_relative_to(LIBRARY) else CONNECTORS.parent
        found[file.relative_to(root).as_posix()] = file.read_text()
    return found


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def without_types(tree: ast.Module) -> ast.Module:
    """The module as it runs: no ``if TYPE_CHECKING``, wherever it stands."""

    class Strip(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> Any:
            return (
                [self.visit(other) for other in node.orelse]
                if for_types_only(node)
                else self.generic_visit(node)
            )

    stripped = Strip().visit(tree)
    assert isinstance(stripped, ast.Module)
    return stripped


@functools.cache
def at_work(source: str, package: str) -> frozenset[str]:
    """What a module imports when it runs. The same house is read again and again."""
    return frozenset(imported(ast.unparse(without_types(ast.parse(source))), package))


def behind_door(source: str) -> dict[str, str]:
    """Names that a package gives from rooms above, as its ``if TYPE_CHECKING`` says: the module of each."""
    blocks = [node for node in ast.parse(source).body if for_types_only(node)]
    return {
        alias.asname or alias.name: node.module
        for block in blocks
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def arrows(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which module imports which when it runs, in functions too; a name behind a door is its module."""
    files = {name_of(path): path for path in sources}
    doors = {name: behind_door(sources[files[name]]) for name in DOORS & set(files)}
    out: dict[str, set[str]] = {}
    for name, path in files.items():
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        found = set()
        for target in at_work(sources[path], package):
            package_of, _, last = target.rpartition(".")
            if target in files:
                found.add(target)
            elif last in doors.get(package_of, {}):
                found.add(doors[package_of][last])
        # Both are doors, and hold nothing themselves.
        out[name] = found - {name, "streampair", "streampair_connectors"}
    return out


def room_of(module: str) -> str:
    parts = module.split(".")
    return "connectors" if parts[0] == "streampair_connectors" else parts[1] if len(parts) > 1 else ""


def before(floors: tuple[tuple[str, ...], ...], room: str) -> set[str]:
    """What stands before a room in any row that has it."""
    found: set[str] = set()
    for row in floors:
        for column, floor in enumerate(row):
            if room in floor.split():
                found.update(other for lower in row[:column] for other in lower.split())
    return found


def upward(sources: dict[str, str]) -> list[str]:
    """Imports of what does not stand before the importer, and modules that stand nowhere."""
    found = []
    known = {room for row in FLOORS for floor in row for room in floor.split()}
    for module, targets in arrows(sources).items():
        room = room_of(module)
        if room and room not in known:
            found.append(f"{module} is in no room")
        for target in sorted(targets):
            other = room_of(target)
            if other == room:
                floors = INSIDE.get(room)
                if floors is None or len(module.split(".")) < 3:
                    continue
                ours, theirs = module.split(".")[2], [*target.split("."), ""][2]
                if ours != theirs and theirs not in before(floors, ours):
                    found.append(f"{module} imports {target}")
            elif other not in before(FLOORS, room):
                inner = ".".join(target.split(".")[1:3])
                if not ALSO.get(room, set()) & {other, inner}:
                    found.append(f"{module} imports {target}")
    return found


def circle(sources: dict[str, str]) -> list[str]:
    """Modules that import each other in a ring; who imports from a package imports its __init__ as well."""
    graph = arrows(sources)
    for module, targets in graph.items():
        for target in list(targets):
            parts = target.split(".")
            packages = {".".join(parts[:n]) for n in range(2, len(parts))}
            targets |= {p for p in packages & set(graph) if not f"{module}.".startswith(f"{p}.")}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        ring: list[str] = error.args[1]
        return ring
    return []


def hidden(sources: dict[str, str]) -> list[str]:
    """Modules of a package's root that begin with an underscore: what a room is for has a name."""
    return [path for path in sources if path.count("/") == 1 and re.match(r"_(?!_)", path.split("/")[1])]


def by_name(sources: dict[str, str]) -> list[str]:
    """Modules of the library that import by a text, which no rule here sees, and are no door."""
    calls = re.compile(r"\bimport_module\(|\b__import__\(")
    library = {path: text for path, text in sources.items() if top(name_of(path)) == "streampair"}
    return [path for path, text in library.items() if calls.search(text) and name_of(path) not in DOORS]


def test_every_module_imports_only_what_stands_before_it() -> None:
    sources = house()
    assert upward(sources) == []
    # It is this house that was read.
    assert "streampair.engine.batch" in arrows(sources)["streampair.engine.lane"]
    broken = {**sources, "streampair/evaluation/regret.py": "from streampair.engine import Lane"}
    assert upward(broken) == ["streampair.evaluation.regret imports streampair.engine"]


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert circle(house()) == []


def test_no_module_of_a_root_is_hidden() -> None:
    assert hidden(house()) == []


def test_only_the_doors_import_by_name() -> None:
    assert by_name(house()) == []


@pytest.mark.parametrize(
    ("path", "source", "culprit"),
    [
        ("streampair/losses.py", "from streampair import evaluation", "streampair.evaluation"),
        ("streampair/losses.py", "from . import buffers", "streampair.buffers"),  # beside it, not before it
        (
            "streampair/kernels/ogd.py",
            "from streampair.errors import E\nimport streampair.auc",
            "streampair.auc",
        ),
        (
            "streampair/privacy/noise.py",
            "def f():\n    from ..base import learner",
            "streampair.base.learner",
        ),
        ("streampair/privacy/noise.py", "from .ledger import Ledger", "streampair.privacy.ledger"),
        (
            "streampair/privacy/noise.py",
            "from streampair.privacy import plan",
            "streampair.assurance.planner",
        ),
        (
            "streampair/privacy/user_level.py",
            "from .mechanisms import base",
            "streampair.privacy.mechanisms.base",
        ),
        ("streampair/base/learner.py", "from streampair.privacy import audit", "streampair.assurance.audit"),
        ("streampair/base/learner.py", "from streampair.auc import PairOGD", "streampair.auc"),
        ("streampair/auc.py", "from streampair import ranking", "streampair.ranking"),
        ("streampair/auc.py", "from streampair.evaluation import RollingAUC", "streampair.evaluation"),
        (
            "streampair/engine/lane.py",
            "from streampair.base.learner import Learner",
            "streampair.base.learner",
        ),
        ("streampair/engine/lane.py", "from streampair.privacy import Ledger", "streampair.privacy"),
        ("streampair/engine/lane.py", "from ..privacy import noise", "streampair.privacy.noise"),
        ("streampair/evaluation/regret.py", "from streampair.engine import Lane", "streampair.engine"),
    ],
)
def test_an_arrow_that_runs_upwards_is_seen(path: str, source: str, culprit: str) -> None:
    rooms = {
        f"streampair/{room}/__init__.py": ""
        for room in ("kernels", "base", "engine", "evaluation", "assurance")
    }
    rooms |= {f"streampair/{name}.py": "" for name in ("errors", "losses", "buffers", "auc", "ranking")}
    parts = (
        "privacy/noise",
        "privacy/ledger",
        "privacy/mechanisms/base",
        "base/learner",
        "assurance/audit",
        "assurance/planner",
    )
    rooms |= {f"streampair/{name}.py": "" for name in parts}
    rooms["streampair/privacy/mechanisms/__init__.py"] = ""
    rooms["streampair/privacy/__init__.py"] = (
        "if TYPE_CHECKING:\n    from streampair.assurance.audit import AuditReport, audit\n"
        "    from streampair.assurance.planner import plan\n"
    )
    assert upward(rooms) == []
    assert f"{name_of(path)} imports {culprit}" in upward({**rooms, path: source})


def test_what_a_lane_may_know_of_privacy_is_not_seen() -> None:
    names = ("privacy/__init__", "privacy/ledger", "privacy/pipeline_check", "auc")
    parts = {f"streampair/{name}.py": "" for name in names}
    lane = "from streampair.privacy.ledger import Ledger\nfrom ..privacy.pipeline_check import walk\n"
    types = "if TYPE_CHECKING:\n    from streampair.auc import PairOGD\n"
    assert upward({**parts, "streampair/engine/lane.py": lane + types}) == []


def test_a_module_without_a_room_is_seen() -> None:
    assert upward({"streampair/helpers.py": ""}) == ["streampair.helpers is in no room"]


def test_a_ring_is_seen() -> None:
    one, other = "streampair/engine/lane.py", "streampair/engine/batch.py"
    late = "def f():\n    from streampair.engine.lane import Lane\n"
    assert set(circle({one: "from .batch import Batch", other: late})) == {name_of(one), name_of(other)}
    typed = "if TYPE_CHECKING:\n    from streampair.engine.lane import Lane\n"
    assert circle({one: "from .batch import Batch", other: typed}) == []
    # privacy/__init__ runs before privacy/ledger does, whoever imports that.
    package, ledger, auc = (f"streampair/{name}.py" for name in ("privacy/__init__", "privacy/ledger", "auc"))
    rooms = {
        package: "import streampair.auc",
        ledger: "",
        auc: "from streampair.privacy.ledger import Ledger",
    }
    assert set(circle(rooms)) == {"streampair.privacy", "streampair.auc"}
    assert circle({**rooms, package: "from streampair.privacy.ledger import Ledger"}) == []


def test_a_hidden_module_and_an_import_by_name_are_seen() -> None:
    paths = ("_regret.py", "__init__.py", "kernels/_jit.py", "auc.py")
    assert hidden({f"streampair/{path}": "" for path in paths}) == ["streampair/_regret.py"]
    named = "def __getattr__(name):\n    return importlib.import_module(name)\n"
    assert by_name({"streampair/__init__.py": named, "streampair/auc.py": named}) == ["streampair/auc.py"]


def test_modules_import_only_what_they_may() -> None:
    assert [line for path, source in house().items() for line in violations(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source", "culprit"),
    [
        ("streampair/auc.py", "import asyncio", "asyncio"),
        ("streampair/auc.py", "from aiokafka.errors import KafkaError", "aiokafka"),
        ("streampair/auc.py", "def f():\n    import streampair_connectors.kafka", "streampair_connectors"),
        ("streampair/auc.py", "from numba import njit", "numba"),
        ("streampair/auc.py", "from benchmarks.papers import manifest", "benchmarks"),
        ("streampair_connectors/cli/app.py", "from benchmarks.papers import runs", "benchmarks"),
        ("streampair/kernels/ogd.py", "from .. import losses", "streampair"),
        ("streampair/kernels/ogd.py", "from streampair.errors import ConfigError", "streampair.errors"),
        ("streampair/kernels/ogd.py", "from scipy.special import expit", "scipy"),
        ("streampair/kernels/ogd.py", "from numba import njit", "numba.njit"),
        ("streampair/engine/lane.py", "from time import monotonic", "time"),
        ("streampair_connectors/worker/worker.py", "import aiokafka", "aiokafka"),
        ("streampair_connectors/worker/sources.py", "from time import monotonic", "time"),
        ("streampair_connectors/kafka_tools.py", "from aiokafka import errors", "aiokafka"),
        ("streampair_connectors/deploy/kafka.py", "import aiokafka", "aiokafka"),
        ("streampair_connectors/kafka/admin.py", "import confluent_kafka", "confluent_kafka"),
        ("streampair_connectors/cli/app.py", "from prometheus_client import Gauge", "prometheus_client"),
        ("streampair_connectors/cli/app.py", "import confluent_kafka as ck", "confluent_kafka"),
    ],
)
def test_the_rules_catch_what_breaks_them(path: str, source: str, culprit: str) -> None:
    assert any(f"imports {culprit}" in line for line in violations(path, source))


def test_importing_the_library_loads_no_connector() -> None:
    names = sorted(THIRD_PARTIES_THAT_DO_IO | {"streampair_connectors"})
    code = (
        # What scikit-learn loads of itself, where it is installed, is not ours: its progress bars are rich's.
        "import pkgutil, sys, importlib, streampair, sklearn.metrics\n"
        "theirs = set(sys.modules)\n"
        "for module in pkgutil.walk_packages(streampair.__path__, 'streampair.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print([n for n in {names} if n in sys.modules and n not in theirs])\n"
        f"print([n for n in {names} if n in theirs])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, theirs = completed.stdout.splitlines()
    assert ours == "[]"
    assert theirs in ("[]", "['rich']")


# Parts of scipy and of River that take as long to import as all the rest, and more.
SLOW = ("scipy.stats", "scipy.special", "scipy.optimize", "river.metrics", "pandas", "sklearn")


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        (
            "import streampair_connectors.worker.worker, streampair.auc\n"
            "import streampair_connectors.observability.server",
            [],
        ),
        ("import river.metrics", ["scipy.stats", "scipy.special", "scipy.optimize", "river.metrics"]),
    ],
    ids=["ours", "a mutant that is slow"],
)
def test_a_worker_starts_without_what_it_does_not_need(code: str, slow: list[str]) -> None:
    """A killed worker is back the sooner. Accounting imports what it needs of them when it is asked."""
    code = f"{code}; import sys; print([name for name in {SLOW} if name in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == str(slow)


def listed_names(source: str) -> list[str]:
    """What the ``__all__`` of a module lists; nothing if it has none."""
    listed: list[list[str]] = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    assert len(listed) < 2
    return listed[0] if listed else []


def test_listed_public_names_exist() -> None:
    for path, source in house().items():
        names = listed_names(source)
        assert len(names) == len(set(names)), path
        module = importlib.import_module(name_of(path)) if names else None
        assert [name for name in names if not hasattr(module, name)] == [], path


def test_the_benchmark_of_imports_names_modules_that_exist() -> None:
    tree = ast.parse((support.ROOT / "benchmarks" / "speed.py").read_text())
    named = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    modules = ast.literal_eval(named["MODULES"])
    assert modules
    assert [name for name in modules if importlib.util.find_spec(f"streampair.{name}") is None] == []
