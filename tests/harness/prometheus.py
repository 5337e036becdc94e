"""A Prometheus for the tests: deploy's rules, a copy of them in a hurry, and targets that come and go."""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import support
from harness.worker_process import fetch, wait_for

INTERVAL = "250ms"
HURRIED = "hurried"

_SECONDS = {"5m": "5s", "10m": "5s", "30m": "1m", "6h": "1m", "1d": "5m", "7d": "5m"}


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """The same rules, for a test that cannot wait: no `for:`, and seconds where windows are minutes or hours.

    Nothing else is changed, thresholds in particular. Their alerts have a label `copy`, so that they are told
    apart from those of the original.
    """
    made = copy.deepcopy(rules)
    for group in made["groups"]:
        group["name"] = HURRIED
        for rule in group["rules"]:
            rule.pop("for", None)
            rule["labels"]["copy"] = HURRIED
            rule["expr"] = re.sub(r"\[(\w+)\]", lambda found: f"[{_SECONDS[found[1]]}]", rule["expr"])
    return made


class Prometheus:
    """A Prometheus server on a free port, ended by its process id."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            support.unavailable("Prometheus", "install it (Debian: apt-get install prometheus)")
        result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"version (\S+)", result.stdout + result.stderr)
        support.note_used("prometheus", version[1] if version else "unknown version")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self._targets = directory / "targets.json"
        self._addresses: list[str] = []
        self._lock = threading.Lock()  # several may come and go at a time
        self._write_targets()
        for scrape in config["scrape_configs"]:
            scrape.pop("dns_sd_configs", None)
            scrape["file_sd_configs"] = [{"files": [str(self._targets)], "refresh_interval": "1s"}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = directory / "prometheus.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for("Prometheus", lambda: fetch(f"{self.url}/-/ready"), explain=self._log.read_text)

    def scrape(self, metrics_url: str) -> str:
        """Take one more target; its name as `instance`."""
        address = urllib.parse.urlsplit(metrics_url).netloc
        with self._lock:
            self._addresses.append(address)
            self._write_targets()
        return address

    def forget(self, address: str) -> None:
        """Scrape it no longer."""
        with self._lock:
            self._addresses.remove(address)
            self._write_targets()

    def _write_targets(self) -> None:
        # at once, for a server that reads while this is written
        whole = self._targets.with_suffix(".new")
        whole.write_text(json.dumps([{"targets": self._addresses}]))
        whole.rename(self._targets)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP interface; fails with its message on an error."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                answer_data = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{parameters}: {error.read().decode()}", pytrace=False)
        assert answer_data["status"] == "success", answer_data
        assert not answer_data.get("warnings"), answer_data
        return answer_data["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Result of an instant query."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Result of a query at each step of a span of time."""
        found: list[dict[str, Any]] = self.ask(
            "query_range", query=expression, start=f"{start}", end=f"{end}", step=f"{step}"
        )["result"]
        return found

    def firing(self) -> list[dict[str, Any]]:
        """The alerts of the hurried rules that fire now, as its interface for alerts has them."""
        return [
            alert
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing" and alert["labels"].get("copy") == HURRIED
        ]

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
