"""What each alert is for, done to real workers, while a real Prometheus looks on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from streampair_connectors.cli.app import app as command
from typer.testing import CliRunner

from harness.applications import FEATURES, PAIR_OGD, App, Running, events, read_until, write_key
from harness.kafka import Cluster
from harness.late_labels import STOPPED, Event, Label, create, late_app, send_events, send_labels, stream
from harness.prometheus import Prometheus
from harness.serving import ask
from harness.worker_process import WorkerProcess, fetch, wait_for

PRIVATE = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 1.0, delta = 1e-4, horizon = 400, warmup = 0, window = 20, forks = 60 }"
)
LINGER = '\n[metrics]\naddress = "127.0.0.1:0"\nlinger = "30s"'


class Provoked:
    """Does it, and keeps the first alert of each name that fires for it."""

    def __init__(self, server: Prometheus, cluster: Cluster, apache: Cluster, directory: Path) -> None:
        self._server = server
        self._cluster = cluster
        self._apache = apache  # scorers need a broker that fences generations
        self._directory = directory
        self.alerts: dict[str, dict[str, Any]] = {}

    def _app(self, name: str, cluster: Cluster | None = None, **options: Any) -> App:
        (self._directory / name).mkdir()
        return App(cluster or self._cluster, self._directory / name, name, **options).create_topics()

    def _await(self, name: str, explain: Callable[[], str], seconds: float = 120, **labels: str) -> None:
        def look() -> Any:
            for alert in self._server.firing():
                if alert["labels"]["alertname"] == name and labels.items() <= alert["labels"].items():
                    return alert
            return None

        self.alerts[name] = wait_for(f"{name} of {labels}", look, seconds=seconds, explain=explain)

    def _value(self, expression: str, explain: Callable[[], str]) -> None:
        wait_for(expression, lambda: self._server.query(expression), seconds=120, explain=explain)

    def all(self) -> None:
        """All at once: they mostly wait."""
        with ThreadPoolExecutor(5) as pool:
            works = (self.plain, self.private, self.parallel, self.late, self.fenced)
            for running in [pool.submit(work) for work in works]:
                running.result()

    def plain(self) -> None:
        """A learner that is not private: a backlog, wrong labels, poison, a disk that hangs, and a stop."""
        app = self._app("plain", settings="auc_window = 200")
        app.produce(events(6000))
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            past = '(streampair_prequential_auc{app="plain"} > 0.8)[10s:250ms]'
            self._value(f"count_over_time({past}) > 8", worker.log)
            wrong = [json.loads(event) for event in events(200, seed=2)]
            app.produce([json.dumps({**event, "y": not event["y"]}).encode() for event in wrong])
            self._await("StreampairAucDrop", worker.log, app="plain")
            app.produce([b"poison"] * 200)
            self._await("StreampairDeadLetters", worker.log, app="plain")
            self._catch_up(app, worker, 6400)
            self._value('streampair_expected_auc{app="plain"} > 0.8', worker.log)
            made = [json.loads(event) for event in events(2000, seed=3)]
            app.produce([json.dumps({**x, FEATURES[0]: 100 * x[FEATURES[0]]}).encode() for x in made])
            self._await("StreampairFeaturesMoved", worker.log, app="plain")
            self._await("StreampairFeatureDrift", worker.log, app="plain")
            assert not self._server.query('streampair_expected_auc{app="plain"}'), "it is withheld"
            # What a commit did is shown when it is over, so none runs: one that only appended could yet put
            # a shorter log over the pipe.
            log = app.log_file
            log.rename(log.with_suffix(".aside"))
            os.mkfifo(log)  # whoever opens it to write waits until somebody reads
            for _ in range(3):
                app.produce([b"{}"] * 5000)
            self._await("StreampairLag", worker.log, app="plain")
            self._await("StreampairStuck", worker.log, app="plain")
            worker.send(signal.SIGSTOP)
            self._await("StreampairDown", worker.log, instance=target)
            worker.send(signal.SIGCONT)
            worker.kill()
        self._server.forget(target)

    def _catch_up(self, app: App, worker: Running, sent: int) -> None:
        """Backlogs until one was seen to shrink: a fast machine has it for moments. All are committed."""
        lag = f'streampair_lag{{app="{app.name}"}}'
        shrinking = f"({lag} / -(deriv({lag}[3s]) < 0))[1m:250ms]"
        backlog = events(20_000)
        for _ in range(20):
            app.produce(backlog)
            sent += len(backlog)
            self._value(f'streampair_offset{{app="{app.name}"}} == {sent}', worker.log)
            if self._server.query(f"count_over_time({shrinking}) >= 3"):
                return
        raise AssertionError(f"none of 20 backlogs was seen to shrink\n{worker.log()}")

    async def _kill_in_flow(self, app: App, worker: Running, values: list[bytes], scores: int) -> None:
        """Send events one by one, and kill the worker when so many of all have a score."""

        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=app.kafka.bootstrap) as producer:
                for value in values:
                    # slowly enough that some come after the kill: a worker commits when it has nothing to do
                    await asyncio.sleep(0.02)
                    await producer.send(app.input, value)

        def seen(rows: list[Any]) -> bool:
            if len(rows) < scores:
                return False
            worker.kill()
            return True

        sender = asyncio.create_task(send())
        await worker.unless_it_ends(read_until(app.kafka.bootstrap, app.output, seen))
        await sender

    def _left_open(self, app: App) -> bool:
        """Whether it was killed with releases behind its last commit: those are charged."""
        result = CliRunner().invoke(command, ["budget", "show", str(app.path), "--json"])
        return result.exit_code == 0 and json.loads(result.stdout)["accounts"][0]["uncommitted"] > 0

    def private(self) -> None:
        """A private learner: killed in an open window, learned to its horizon, an older store put back."""
        # What is at an offset can change, so that a crash is charged; and to stop at a bad event breaks the
        # guarantee.
        settings = 'on_bad = "fail"\ncommit_every = "1h"\n' + LINGER
        app = self._app("private", learner=PRIVATE, settings=settings)
        text = app.path.read_text().replace('metrics.address = "127.0.0.1:0"\n', "")
        text = text.replace("events = 50", "events = 5000")
        app.path.write_text(text.replace("[input]\n", "[input]\npayloads_change = true\n"))
        made = events(420)
        sent = 0
        while not self._left_open(app):
            with Running(app) as worker:
                target = self._server.scrape(worker.metrics_url())
                self._value('streampair_privacy_forks{app="private"} == 0', worker.log)
                asyncio.run(self._kill_in_flow(app, worker, made[sent : sent + 50], sent + 25))
            self._server.forget(target)
            sent += 50
        backup = app.state.with_name("backup")
        shutil.copytree(app.state, backup)
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            for name in ("StreampairPrivacyForkCharged", "StreampairPrivacyGuaranteeLost"):
                self._await(name, worker.log, app="private")
            app.produce(made[sent:380])
            self._await("StreampairPrivacyBudgetNearlySpent", worker.log, app="private")
            app.produce(made[380:])
            self._await("StreampairHorizonReached", worker.log, app="private")
            assert worker.stop() == 0
        self._server.forget(target)
        shutil.rmtree(app.state)
        shutil.copytree(backup, app.state)
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            assert "older than what was released" in worker.await_log("failed")["error"]
            for name in ("StreampairRefusedStart", "StreampairFailed", "StreampairNotRunning"):
                self._await(name, worker.log, app="private")
            assert worker.stop() == 1
        self._server.forget(target)

    def _request(self, address: str, server: WorkerProcess, before: int) -> None:
        """Requests to a server: an event, one without its fields, and many, each in a scrape of its own."""
        many = b"[" + b",".join(events(5000)) + b"]"
        for number, (body, status) in enumerate([(events(1)[0], 200), (b"{}", 422), (many, 200)], before + 1):
            answer = ask(address, "POST", "/score", body)
            assert answer.status == status, answer.body
            self._value(f'sum(streampair_serve_requests_total{{route="score"}}) == {number}', server.log)

    def parallel(self) -> None:
        """A scorer and a server before there is a model; the learner is killed, and later a backlog comes."""
        app = self._app("parallel", self._apache, learner=f'scoring = "parallel"\n{PAIR_OGD}')
        begun = round(time.time() * 1000) - 1_000_000
        with Running(app.role("score")) as scorer:
            url = scorer.metrics_url()
            target = self._server.scrape(url)
            self._await("StreampairNoModel", scorer.log, app="parallel.scorers")
            with (
                WorkerProcess(app.path, "--port", "0", command="serve") as server,
                Running(app.role("learn")) as learner,
            ):
                served = self._server.scrape(server.await_log("serving")["url"])
                for number in range(3):
                    app.produce(events(300, seed=number), timestamp_ms=begun + number)
                    learned = f'streampair_model_slots{{app="parallel"}} == {300 * (number + 1)}'
                    self._value(learned, lambda: scorer.log() + learner.log())
                    self._value(f"streampair_serve_model_slots == {300 * (number + 1)}", server.log)
                    self._request(served, server, 3 * number)
                self._server.forget(served)
                # One that scores alone is ready, though it has no lane.
                assert fetch(url.replace("/metrics", "/readyz")), scorer.log()
                learner.kill()
            app.produce(events(100))
            self._await("StreampairModelOld", scorer.log, app="parallel")
            # A fast machine has a backlog for moments: the alert may need several.
            backlog, tries = events(20_000), 10
            while "StreampairScoringLag" not in self.alerts:
                scorer.send(signal.SIGSTOP)
                app.produce(backlog)
                scorer.send(signal.SIGCONT)
                tries -= 1
                with contextlib.suppress(*([AssertionError] if tries else [])):
                    self._await("StreampairScoringLag", scorer.log, 5, app="parallel")
            assert scorer.stop() == 0, scorer.log()
        self._server.forget(target)

    def fenced(self) -> None:
        """A backlog of events that are old at the first start; then another owner opens the lane, often."""
        app, backlog = self._app("fenced", self._apache, store="kafka"), 20_000
        app.produce(events(backlog), timestamp_ms=round(time.time() * 1000) - 1_000_000)
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            self._await("StreampairLagSeconds", worker.log, app="fenced")
            self._value(f'streampair_offset{{app="fenced"}} == {backlog}', worker.log)
            for number in range(8):
                app.produce(events(10, seed=number))
                # Since the last one the lane was fenced, and opened again.
                self._value(f'streampair_offset{{app="fenced"}} == {backlog + 10 * number + 10}', worker.log)
                app.position()  # opens the lane
            app.produce(events(10))
            self._await("StreampairFencedRepeatedly", worker.log, app="fenced")
            assert worker.stop() == 0, worker.log()
        self._server.forget(target)

    def late(self) -> None:
        """Labels that come in time and too late, minutes ago; and labels that stopped half an hour ago."""
        made = stream(400, 1)[0]
        wait = 'after = "10s"\nlateness = "1s"\nquiet = "20m"'

        def application(name: str) -> App:
            (self._directory / name).mkdir()
            app = late_app(App(self._cluster, self._directory / name, name), f'stopped = "{STOPPED}"')
            text = app.path.read_text().replace('after = "30d"', wait)
            explores = 'alert_above = -1000.0\nexplore = 0.8\nexplore_key_file = "explore.key"'
            app.path.write_text(f"{text}[output]\n{explores}\n")
            write_key(app.path.with_name("explore.key"), "5a" * 32)
            self._cluster.create_topic(f"{name}-alerts")
            return create(app)

        def events_of(begun: int, part: int) -> list[Event]:
            """Fifty events, a tenth of a second apart."""
            rows = enumerate(made[50 * part : 50 * part + 50])
            return [each._replace(time=begun + 20_000 * part + 100 * index) for index, each in rows]

        app, begun = application("late"), round(time.time() * 1000) - 900_000
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            self._value('sum(streampair_sampled_labels_total{app="late"}) == 0', worker.log)
            for part in range(5):
                events_ = events_of(begun, part)
                labelled = events_[: 10 + 5 * part]
                delay = 500 + 1500 * part
                # More than thirty explored positives in all: with fewer there is no recall.
                send_labels(app, [Label(0, e.time + delay, e.id, i % 3 > 0) for i, e in enumerate(labelled)])
                # The events are due at once, so that their labels have to be there.
                newest = (labelled[-1].time + delay) / 1000 - 0.01
                self._value(f'streampair_label_newest_seconds{{app="late"}} > {newest}', worker.log)
                send_events(app, events_)
                due = f'sum(streampair_due_events_total{{app="late"}}) == {50 * part + 50}'
                self._value(due, worker.log)
                send_labels(app, [Label(0, e.time + 15_000, e.id, True) for e in events_[-5:]])
            self._await("StreampairLabelsLate", worker.log, app="late")
            assert worker.stop() == 0, worker.log()
        self._server.forget(target)
        app, begun = application("silent"), round(time.time() * 1000) - 2_000_000
        send_labels(app, [Label(0, begun, made[0].id, True)])
        with Running(app) as worker:
            target = self._server.scrape(worker.metrics_url())
            for part in range(4):
                send_events(app, events_of(begun, part))
                pending = f'streampair_events_pending{{app="silent"}} == {50 * part + 50}'
                self._value(pending, worker.log)
            for name in ("StreampairLabelsStopped", "StreampairLearningWaits"):
                self._await(name, worker.log, app="silent")
            assert worker.stop() == 0, worker.log()
        self._server.forget(target)
