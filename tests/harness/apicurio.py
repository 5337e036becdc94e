"""Apicurio Registry for the tests: a real schema registry with Confluent's REST API.

It is a Java process of this user's, started from jars that Maven resolves once from ``registry-pom.xml`` into
``.cache/apicurio/``. It listens on a free loopback port, keeps its data in memory, and is ended by its
process id only. The first one of all leaves its classes next to the jars, as the JVM keeps them, which halves
the starts after it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from harness import support
from harness.apache_kafka import dismiss, free_ports, guard, java
from harness.maven import fetched

__all__ = ["ApicurioRegistry", "jars", "request", "version"]

POM = Path(__file__).with_name("registry-pom.xml")
START_SECONDS = 120.0
STOP_SECONDS = 60.0


def version() -> str:
    """Version of the registry, read from the pom."""
    found = re.search("<registry.version>(.*)</", POM.read_text())
    assert found is not None
    return found[1]


def jars() -> Path:
    """Directory with the folders ``registry`` and ``serializer``: from the cache, else resolved by Maven."""
    target = (support.CACHE / "apicurio" / version()).resolve()  # the JVM knows its classes by their path
    return fetched(f"Apicurio Registry {version()}", POM, target, ["package", "-Dfolder={folder}"])


def request(url: str, posted: Any = None, method: str | None = None) -> tuple[int, Any]:
    """Status and JSON of an answer of a schema registry's REST API."""
    data = None if posted is None else json.dumps(posted).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    prepared = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(prepared, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


class ApicurioRegistry:
    """One registry, with its storage in memory.

    Attributes
    ----------
    url
        Of Confluent's REST API, as `[schema_registry] url` takes it.
    home
        Of the registry, for clients of its own API.

    Raises
    ------
    Unavailable
        This machine has no Java or no Maven, or Maven cannot fetch the registry.
    RuntimeError
        It does not start.
    """

    def __init__(self) -> None:
        runtime, _ = java()
        folder = jars() / "registry"
        (port,) = free_ports(1)
        self.home = f"http://127.0.0.1:{port}"
        self.url = f"{self.home}/apis/ccompat/v7"
        self._work = Path(tempfile.mkdtemp(prefix="apicurio-"))
        self._kept = folder / "classes.jsa"
        self._fresh = None if self._kept.exists() else self._work / "classes.jsa"
        option = "SharedArchiveFile" if self._fresh is None else "ArchiveClassesAtExit"
        atexit.register(self.close)
        with (self._work / "log").open("wb") as log:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [
                    *(runtime, f"-XX:{option}={self._fresh or self._kept}", "-Xlog:disable"),
                    *("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    f"-Djava.io.tmpdir={self._work}",
                    *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"),
                    *("-jar", str(folder / f"apicurio-registry-app-{version()}-runner.jar")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                start_new_session=True,  # Ctrl-C in a terminal must not end it before the tests let go of it
            )
        self._guard = guard(self._process.pid)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self.log_tail()
                self.close()
                raise RuntimeError(f"Apicurio Registry {version()} did not start:\n{tail}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return request(f"{self.url}/subjects")[0] == 200
        return False

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join((self._work / "log").read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        if self._process is None:
            return
        dismiss(self._guard)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._fresh is not None and self._fresh.exists():
            part = self._kept.with_suffix(f".{self._work.name}")
            shutil.move(self._fresh, part)
            part.rename(self._kept)
        shutil.rmtree(self._work, ignore_errors=True)


if __name__ == "__main__":
    ApicurioRegistry().close()
    print(f"Apicurio Registry {version()}: {jars()}")
