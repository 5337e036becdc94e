"""The tutorials are followed, step by step, as a reader would follow them."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pyspark
import pytest
from harness import pages, support
from harness.follow import agree, follow

# What installs, or needs what a test may not assume.
LEFT_OUT = r"(python3 -m venv|\.venv/bin/pip|\. \.venv|pip install|docker) ?"


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def check(
    page: str,
    directory: Path,
    replace: dict[str, str] | None = None,
    *,
    steps: list[pages.Block] | None = None,
    **options: Any,
) -> None:
    steps = pages.blocks(page) if steps is None else steps
    outputs = follow(steps, directory, replace=replace, leave_out=LEFT_OUT, **options)
    wrong = []
    for step, output in zip(steps, outputs, strict=True):
        after = step.following
        if step.language in ("python", "console") and after is not None and after.language == "text":
            if not agree(after.text, output, varies=after.varies):
                wrong.append(f"{after.id}: the page says\n{after.text}\nit said\n{output}")
        elif step.language == "python" and output:
            wrong.append(f"{step.id} prints, and the page does not say so:\n{output}")
    assert not wrong, "\n".join(wrong)


def test_a_river_pipeline(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    check("docs/tutorials/river.md", tmp_path)
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 1250


def test_from_a_random_forest(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    check("docs/tutorials/forest.md", tmp_path)


def test_a_table(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    check("docs/history.md", tmp_path)


def test_a_gallery_of_plots(tmp_path: Path) -> None:
    """A plot that fails; what each one draws is compared in tests/unit/test_plots.py."""
    check("docs/gallery.md", tmp_path)


def test_figures_stand_below_the_code_that_draws_them() -> None:
    """A figure that is lost, drawn twice, or without words for those who do not see it."""
    spec = importlib.util.spec_from_file_location("figures", support.ROOT / "docs" / "hooks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    text = figures.with_figures(pages.text_of("docs/gallery.md"))
    found = re.findall(
        r'^```python\n(.*?)^```\n(?:\n<p><img alt="([^"]+)" src="data:image/svg)?', text, re.M | re.S
    )
    assert len(found) == 10
    assert [bool(alt) for _, alt in found] == ["plots." in code and "import" not in code for code, _ in found]
    assert text.count("<img") == sum(bool(alt) for _, alt in found) == 8


@pytest.mark.embedded
def test_scores_of_a_topic_are_read(tmp_path: Path) -> None:
    """The reader of the gallery, on a topic with messages in two partitions and on an empty one."""
    need()
    from aiokafka import AIOKafkaProducer
    from streampair_connectors.kafka.embedded import EmbeddedBroker

    code = next(b.text for b in pages.blocks("docs/gallery.md") if "AIOKafkaConsumer" in b.text)
    namespace: dict[str, Any] = {}
    exec(code, namespace)

    async def read(broker: EmbeddedBroker) -> tuple[Any, Any]:
        servers = broker.bootstrap_servers
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for i in range(50):
                await producer.send_and_wait("scores", b'{"offset": %d}' % i, partition=i % 2)
        return [await namespace["messages_of"](topic, servers) for topic in ("scores", "none")]

    with EmbeddedBroker() as broker:
        broker.create_topic("scores", 2)
        broker.create_topic("none", 2)
        found, nothing = asyncio.run(read(broker))
    assert sorted(row["offset"] for row in found) == list(range(50))
    assert nothing == []


def need(*programs: str) -> None:
    """Skip where the in-process broker or a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            support.unavailable(program, f"install it (Debian: apt-get install {program})")
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        support.unavailable("the in-process broker", "pip install '.[demo]'", made=True)


@pytest.mark.embedded
def test_fraud_with_chargebacks(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    need("curl")
    first, second = free_ports(2)
    check("docs/tutorials/chargebacks.md", tmp_path, {"9464": str(first), "9465": str(second)})


@pytest.mark.embedded
def test_kafka_with_prometheus(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    need("prometheus", "curl")
    (tmp_path / "deploy").symlink_to(support.ROOT / "deploy")
    metrics, prometheus = free_ports(2)
    check("docs/tutorials/kafka.md", tmp_path, {"9464": str(metrics), "9090": str(prometheus)})


def spark_page() -> tuple[list[pages.Block], list[pages.Block]]:
    """The steps on Spark, and the recipes of other engines with the table that they read."""
    steps = pages.blocks("docs/tutorials/spark.md")
    recipes = [step for step in steps if step.text.startswith(("import dask", "import ray"))]
    assert len(recipes) == 2
    after = [
        step for step in steps if step.id in {recipe.following.id for recipe in recipes if recipe.following}
    ]
    rest = [step for step in steps if step not in recipes and step not in after]
    return rest, [rest[0], *recipes]


@pytest.mark.timeout(660)  # ten programs of Java begin, next to whatever else runs
@pytest.mark.parametrize("version", ["4", pytest.param("3.5", marks=pytest.mark.everything)])
def test_a_table_on_spark(tmp_path: Path, version: str) -> None:
    """A step that fails, or prints something else than the page shows: a failure that did not happen, too."""
    home = Path(pyspark.__file__).parent
    environment = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}  # of short lives
    ignore = "PySpark does not yet fully support pandas"
    if version == "3.5":
        home = support.CACHE / "pyspark-3.5" / "pyspark"
        environment["PYTHONPATH"] = str(home.parent)
        ignore = "The distutils package is deprecated"
        if not home.is_dir():
            command = "pip install --no-deps --target .cache/pyspark-3.5 'pyspark==3.5.*'"
            support.unavailable("PySpark 3.5", command)
    if shutil.which("java") is None:
        support.unavailable("Java", "install it (Debian: apt-get install openjdk-17-jdk-headless)")
    program = tmp_path / ".bin" / "spark-class"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{home}/bin/spark-class" "$@"\n')
    program.chmod(0o755)
    [port] = free_ports(1)
    check(
        "docs/tutorials/spark.md",
        tmp_path,
        {"7077": str(port)},
        steps=spark_page()[0],
        environment=environment,
        ignore=ignore,
        seconds=600,
    )


@pytest.mark.everything
def test_a_table_on_dask_and_ray(tmp_path: Path) -> None:
    """A recipe that fails, or whose sums are not those of one process."""
    for package in ("dask", "ray"):
        if importlib.util.find_spec(package) is None:
            support.unavailable(package, "pip install --group engines")
    check("docs/tutorials/spark.md", tmp_path, steps=spark_page()[1])


def test_what_a_page_shows_is_compared() -> None:
    assert agree("RollingAUC: 93.6%\n", "RollingAUC: 93.6%\n")
    assert not agree("RollingAUC: 94.78%\n", "RollingAUC: 95.72%\n")
    assert agree("RollingAUC: 93.6%\n", "RollingAUC: 91.2%\n", varies=True)
    assert agree("at ...\nend", "at 127.0.0.1:9\nend\n")
    assert not agree("RollingAUC: 93.6%", "RollingAUC: 63.6%", varies=True)
    assert not agree("void\nholds", "holds\nholds")
    assert not agree("16 models", "17 models")


def test_a_page_that_does_not_work_is_caught(tmp_path: Path) -> None:
    broken = "```python\nx = 1\n```\n\n```console\n$ test -f not-there\n```\n"
    with pytest.raises(AssertionError, match=r"text:5: RuntimeError: test -f not-there"):
        follow(pages.blocks_in(broken), tmp_path)
