"""Which module may import what: the walls of the house, read from the source itself."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
JIT_MAY = {"collections", "hashlib", "os", "warnings"}
# The one module, or the package with all its modules, that knows a third party.
ONLY_IN = {
    "aiokafka": "streampair_connectors.kafka",
    "prometheus_client": "streampair_connectors.telemetry",
    "confluent_kafka": "streampair_connectors.embedded",
}


def for_types_only(node: ast.AST) -> bool:
    """Whether a statement is an ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imported(source: str, package: str, *, types: bool = True) -> Iterator[str]:
    """Absolute names of everything a module imports, wherever in it; ``types``: for annotations only, too.

    ``from a import b`` gives both ``a`` and ``a.b``: b may be a module.
    """
    tree = ast.parse(source)
    if not types:
        tree.body = [node for node in tree.body if not for_types_only(node)]
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
            own = {n for n in names if top(n) == "streampair" and not n.startswith("streampair.kernels")}
            allowed = KERNELS_MAY | (JIT_MAY if parts[2] == "_jit.py" else set())
            forbid((tops - allowed) | own, "kernels: numpy and numba only")
            if parts[2] != "_jit.py":
                forbid(names & {"numba.njit", "numba.jit"}, "every kernel is made by `_jit.kernel`")
        else:
            forbid(tops & {"numba", "llvmlite"}, "all kernels are in kernels/")
        if parts[1] == "engine":
            forbid(tops & CLOCKS, "a lane has no clock and no global randomness")
        if parts[1] == "privacy" and not parts[2].startswith(("plan", "__init__")):
            own = f"streampair.privacy.{parts[2].removesuffix('.py')}"
            run = imported(source, package, types=False)  # a type in an annotation couples nothing
            others = {n for n in run if n.startswith("streampair.privacy.") and not n.startswith(own)}
            forbid(others, "inside privacy/ only the plans couple the parts")
    else:
        module = path.removesuffix(".py").replace("/", ".")
        for name, only in ONLY_IN.items():
            if module != only and not module.startswith(f"{only}."):
                forbid(tops & {name}, f"only {only} does")
        forbid(tops & {"numba"}, "all kernels are in streampair/kernels/")
    return found


def modules() -> list[Path]:
    return sorted([*LIBRARY.rglob("*.py"), *CONNECTORS.rglob("*.py")])


@pytest.mark.parametrize("file", modules(), ids=lambda f: f"{f.parent.name}/{f.name}")
def test_modules_import_only_what_they_may(file: Path) -> None:
    root = LIBRARY.parent if file.is_relative_to(LIBRARY) else CONNECTORS.parent
    assert violations(file.relative_to(root).as_posix(), file.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source", "culprit"),
    [
        ("streampair/auc.py", "import asyncio", "asyncio"),
        ("streampair/auc.py", "from aiokafka.errors import KafkaError", "aiokafka"),
        ("streampair/auc.py", "def f():\n    import streampair_connectors.kafka", "streampair_connectors"),
        ("streampair/auc.py", "from numba import njit", "numba"),
        ("streampair/kernels/ogd.py", "from .. import losses", "streampair"),
        ("streampair/kernels/ogd.py", "from streampair.errors import ConfigError", "streampair.errors"),
        ("streampair/kernels/ogd.py", "from scipy.special import expit", "scipy"),
        ("streampair/kernels/ogd.py", "from numba import njit", "numba.njit"),
        ("streampair/engine/lane.py", "from time import monotonic", "time"),
        ("streampair/privacy/noise.py", "from .accounting import mu_from", "streampair.privacy.accounting"),
        ("streampair/privacy/noise.py", "from streampair.privacy import plan", "streampair.privacy.plan"),
        ("streampair_connectors/worker.py", "import aiokafka", "aiokafka"),
        ("streampair_connectors/kafka_tools.py", "from aiokafka import errors", "aiokafka"),
        ("streampair_connectors/deploy/kafka.py", "import aiokafka", "aiokafka"),
        ("streampair_connectors/kafka/admin.py", "import confluent_kafka", "confluent_kafka"),
        ("streampair_connectors/cli.py", "from prometheus_client import Gauge", "prometheus_client"),
        ("streampair_connectors/cli.py", "import confluent_kafka as ck", "confluent_kafka"),
    ],
)
def test_the_rules_catch_what_breaks_them(path: str, source: str, culprit: str) -> None:
    assert any(f"imports {culprit}" in line for line in violations(path, source))


def test_importing_the_library_loads_no_connector() -> None:
    names = sorted(THIRD_PARTIES_THAT_DO_IO | {"streampair_connectors"})
    code = (
        "import pkgutil, sys, importlib, streampair\n"
        "for module in pkgutil.walk_packages(streampair.__path__, 'streampair.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print([n for n in {names} if n in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("file", modules(), ids=lambda f: f"{f.parent.name}/{f.name}")
def test_listed_public_names_exist(file: Path) -> None:
    tree = ast.parse(file.read_text())
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    if not listed:
        return
    root = LIBRARY.parent if file.is_relative_to(LIBRARY) else CONNECTORS.parent
    name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    module = importlib.import_module(name)
    (names,) = listed
    assert len(names) == len(set(names))
    assert [n for n in names if not hasattr(module, n)] == []


def test_the_benchmark_of_imports_names_modules_that_exist() -> None:
    tree = ast.parse((support.ROOT / "benchmarks" / "speed.py").read_text())
    named = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    modules = ast.literal_eval(named["MODULES"])
    assert modules
    assert [name for name in modules if importlib.util.find_spec(f"streampair.{name}") is None] == []
