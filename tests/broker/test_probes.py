"""`/livez` and `/readyz` of a real worker, whose broker or disk is taken away."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.apache_kafka import KafkaBroker
from harness.applications import App, Running, events
from harness.tiers import open_cluster
from harness.worker_process import wait_for

Unique = Callable[[str], str]


class Impatient(Running):
    """A worker that lets events wait for a second; /livez fails after three times as long."""

    before = "from streampair_connectors.observability import progress; progress.STUCK_SECONDS = 1.0"


class Probes:
    """Asks both pages of a worker."""

    def __init__(self, worker: Running) -> None:
        self._url = worker.metrics_url().removesuffix("/metrics")
        self.log = worker.log

    def ask(self, page: str) -> tuple[int, Any]:
        """Status and answer of a page; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/{page}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def wait(self, page: str, status: int) -> Any:
        """The answer of a page, once it has this status."""
        found = wait_for(
            f"{page}: {status}",
            lambda: (answer := self.ask(page))[0] == status and answer,
            explain=lambda: f"{self.ask('healthz')}\n{self.log()}",
        )
        return found[1]

    def committed(self) -> float:
        """The next offset of the only lane's last commit, once that has ended."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=10) as answer:
            found = re.search(r"^streampair_offset{.*} (\S+)$", answer.read().decode(), re.M)
        return float(found[1]) if found else float("nan")

    def await_start(self) -> None:
        """Wait until it is ready; it lives all the time."""
        while self.ask("readyz")[0] != 200:
            assert self.ask("livez") == (200, {"ok": True, "problems": []})


@pytest.fixture
def app(unique: Unique, tmp_path: Path) -> Iterator[App]:
    """On the in-process broker: it has no part in what goes wrong."""
    cluster = open_cluster("embedded")
    yield App(cluster, tmp_path, unique("app")).create_topics()
    cluster.close()


def both_say(probes: Probes, reason: str, step: str) -> None:
    """Both pages fail, the stricter one first, and say why and what to do."""
    for page in ("readyz", "livez"):
        answer = probes.wait(page, 503)
        assert not answer["ok"]
        assert [problem["app"] for problem in answer["problems"]]
        assert reason in answer["problems"][0]["reason"]
        assert step in answer["problems"][0]["next_step"]
    whole = probes.ask("healthz")
    assert whole[0] == 503
    (state,) = whole[1]["apps"].values()
    assert reason in state["detail"]


@pytest.mark.verifier(short=True)  # on the newest version alone, but with -m verifier
def test_a_broker_that_stands_still(stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path) -> None:
    app = App(stoppable_kafka, tmp_path, unique("app")).create_topics()
    with Impatient(app) as worker:
        probes = Probes(worker)
        probes.await_start()
        app.produce(events(40))
        app.await_scores({0: 40}, worker)
        stoppable_kafka.freeze()
        try:
            both_say(probes, "no Kafka broker answers", "start the broker")
        finally:
            stoppable_kafka.thaw()
        app.produce(events(40))
        app.await_scores({0: 80}, worker)
        for page in ("livez", "readyz", "healthz"):
            probes.wait(page, 200)


@pytest.mark.embedded
def test_a_disk_that_hangs_and_then_refuses(app: App) -> None:
    """The broker answers, events wait, and no commit comes: the offsets stand still while the lag grows."""
    with Impatient(app) as worker:
        probes = Probes(worker)
        probes.await_start()
        app.produce(events(40))
        # The offset is stored before the log is begun anew with the snapshot, which would take the place of
        # what is put there: so the end of the commit is waited for, not its offset.
        wait_for("a commit", lambda: probes.committed() == 40, explain=worker.log)
        log = app.log_file
        log.rename(log.with_suffix(".aside"))
        os.mkfifo(log)  # whoever opens it to write waits until somebody reads
        app.produce(events(40))
        both_say(probes, f"{app.input} has 40 events", "start it again")
        with log.open("rb"):
            failed = worker.await_log("failed")
        assert "cannot be written" in failed["error"]
        assert failed["fix"]
        wait_for("nobody answers", lambda: probes.ask("livez")[0] == 0)
        assert worker.end() == 1
