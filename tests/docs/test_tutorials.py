"""The tutorials are followed, step by step, as a reader would follow them."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

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


def check(page: str, directory: Path, replace: dict[str, str] | None = None) -> None:
    steps = pages.blocks(page)
    outputs = follow(steps, directory, replace=replace, leave_out=LEFT_OUT)
    for step, output in zip(steps, outputs, strict=True):
        after = step.following
        if step.language in ("python", "console") and after is not None and after.language == "text":
            assert agree(after.text, output), f"{after.id}: the page says\n{after.text}\nit said\n{output}"


def test_a_river_pipeline(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    check("docs/tutorials/river.md", tmp_path)
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 1250


def test_from_a_random_forest(tmp_path: Path) -> None:
    """A step that fails, or prints something else than the page shows."""
    check("docs/tutorials/forest.md", tmp_path)


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


def test_what_a_page_shows_is_compared() -> None:
    assert agree("RollingAUC: 93.6%\n", "RollingAUC: 91.2%\n")
    assert agree("at ...\nend", "at 127.0.0.1:9\nend\n")
    assert not agree("RollingAUC: 93.6%", "RollingAUC: 63.6%")
    assert not agree("void\nholds", "holds\nholds")
    assert not agree("16 models", "17 models")


def test_a_page_that_does_not_work_is_caught(tmp_path: Path) -> None:
    broken = "```python\nx = 1\n```\n\n```console\n$ test -f not-there\n```\n"
    with pytest.raises(AssertionError, match=r"text:5: RuntimeError: test -f not-there"):
        follow(pages.blocks_in(broken), tmp_path)
