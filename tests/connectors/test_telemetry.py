"""The series: all there, committed only, and nothing raw on the public registry."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from harness.label_series import label_metrics, late_gauges
from prometheus_client.parser import text_string_to_metric_families
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Address, Changes, Config, MetricsConfig, parse_config
from streampair_connectors.host import Host
from streampair_connectors.observability.metric_definitions import (
    HEALTH_STATES,
    OUTCOMES,
    SERIES,
    STAGES,
    LaneLabels,
    MetricDefinition,
)
from streampair_connectors.observability.metric_history import _point
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.checkpoint import Checkpoint
from streampair_connectors.worker.factory import build_lane, build_logged_lane
from streampair_connectors.worker.timing import DecodeClock, Estimates, LaneTimer

from streampair.engine import ExternalState, LaneGauges, LaneId, Record
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StoreError
from streampair.privacy import NoiseKey

LABELS: LaneLabels = ("fraud", "events", "PairFTRL")

REGRET = "streampair_regret_total"  # no counter: it may fall

# Not read from the table: nothing else may ever be public, whatever a row of the table says of itself.
PUBLIC = {
    *("privacy_epsilon_spent", "privacy_epsilon_budget", "privacy_delta", "privacy_mu_spent"),
    *(
        "privacy_mu_budget",
        "privacy_horizon",
        "privacy_horizon_left",
        "privacy_releases_total",
        "privacy_guarantee",
    ),
    *("privacy_forks", "privacy_generation", "noise_std", "build_info"),
    *("private_auc", "private_auc_stderr", "privacy_since_seconds"),
}


# With enough of both classes for a private AUC.
EVALUATED = {"epsilon": 24.0, "horizon": 40, "auc_share": 0.5}


def config(**options: float) -> Config:
    return parse_config(
        {
            "app": "fraud",
            "input": {"topic": "events", "label": "y", "features": {"a": [-1, 1], "b": [-1, 1]}},
            "learner": {
                "class": "streampair.auc.PairFTRL",
                "options": {"epsilon": 2.0, "delta": 1e-4, "horizon": 100, "warmup": 10, **options},
            },
        }
    )


def gauges(**options: float) -> LaneGauges:
    settings = config(**options)
    # With fresh noise one run in some hundreds finds too few records of a class for a private AUC.
    key, place = NoiseKey(bytes(range(32))), LaneId(settings.app, "events", 0)
    lane = build_logged_lane(settings, json_decoder(settings.input), place, noise_key=key)
    lane.read(b"")
    lane.start(ExternalState(registers=False))
    values = [json.dumps({"a": i % 3 - 1, "b": 0.1 * (i % 5), "y": i % 2 == 0}).encode() for i in range(40)]
    values[3] = b'{"a": 0, "b": 1.5, "y": true}'  # beyond its bounds
    lane.process([Record(i, value, None, 1_700_000_000_000 + i) for i, value in enumerate([*values, b"bad"])])
    lane.commit(snapshot=True)
    lane.committed()
    return lane.gauges(solve=True)


def working() -> Telemetry:
    """Series of two applications, one of which has just committed a batch."""
    telemetry = Telemetry()
    telemetry.health("fraud", "running")
    telemetry.configured("fraud", Changes(config()))
    telemetry.publish(LABELS, gauges(), 7, dict.fromkeys(STAGES, 0.25), event_time=1_700_000_000.0)
    telemetry.health("evaluated", "running")
    evaluated = gauges(**EVALUATED)
    telemetry.publish(("evaluated", *LABELS[1:]), evaluated, 7)
    telemetry.health("late", "running")
    telemetry.publish(("late", *LABELS[1:]), late_gauges(evaluated), 7, late_labels=label_metrics())
    telemetry.fetched("fraud", 0.02)
    telemetry.batch(LABELS, 1e-5, 1e-6)
    telemetry.committed("fraud", 0.01)
    telemetry.rebalanced("fraud")
    telemetry.scored("fraud", 5, 1_700_000_000.0)
    telemetry.scoring("fraud", lag=7, behind=2, slots=40, learned_ms=1_699_999_999_000)
    return telemetry


@pytest.fixture(scope="module")
def telemetry() -> Telemetry:
    return working()


def names(text: bytes) -> set[str]:
    """Of the series, without the prefix, the parts of histograms, and when a counter was made."""
    found = re.findall(r"^streampair_(\w+?)(_bucket|_sum|_count|_created)?(?:\{| )", text.decode(), re.M)
    return {name for name, part in found if part != "_created"}


def value(text: bytes, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == f"streampair_{name}" and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, found)
    return found[0]


def of(public: bool) -> dict[str, MetricDefinition]:
    """The rows of the table that an endpoint has, by name without the prefix."""
    return {s.name.removeprefix("streampair_"): s for s in SERIES if s.public or not public}


@pytest.mark.parametrize("public", [False, True], ids=["operator", "public"])
def test_an_endpoint_has_exactly_its_rows_of_the_table(telemetry: Telemetry, public: bool) -> None:
    """Name, kind, labels and help, of each of them."""
    text = telemetry.render(public=public)
    rows = of(public)
    assert names(text) == rows.keys()
    for family in text_string_to_metric_families(text.decode()):
        if family.name.endswith("_created") or (family.name.startswith("process_") and not public):
            continue
        name = family.name.removeprefix("streampair_")
        row = rows[f"{name}_total" if family.type == "counter" else name]
        assert (family.type, family.documentation) == (row.kind, row.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(row.labels), sample


def test_only_operators_see_the_metrics_of_late_labels(telemetry: Telemetry) -> None:
    """Where every message says positive, the share with a label is the positive rate (docs/privacy 7)."""
    text = telemetry.render()
    assert value(text, "label_messages_total", app="late", outcome="contradicting") == 2
    assert value(text, "due_events_total", app="late", labelled="no") == 1_860
    assert value(text, "due_events_total", app="late", labelled="stopped") == 40
    assert value(text, "explored_events_total", app="late", explored="no") == 3
    assert value(text, "sampled_labels_total", app="late", came="late") == 10
    assert value(text, "label_delay_seconds_bucket", app="late", le="86400.0") == 50
    assert value(text, "label_delay_seconds_bucket", app="late", le="+Inf") == 100
    assert value(text, "label_delay_seconds_sum", app="late") == 50 * (0.5 + 20) * 86_400
    assert value(text, "recall_at_threshold", app="late") == 0.625
    assert value(text, "evaluated_events", app="fraud") == 40
    assert value(text, "expected_auc", app="late") == 0.75
    assert value(text, "feature_psi", app="late") == 0.5
    # The past of the page counts an event once, also where it was scored, and learned when it was due.
    due = {"learned": 1_900, "skipped": 100}
    late = late_gauges(gauges(**EVALUATED))
    for events, seen in (({**due, "scored": 2_500}, 2_500), (due, 2_000)):
        assert _point(dataclasses.replace(late, events=events), 7)["events"] == seen
    assert value(text, "features_moved", app="late") == 0
    public = names(telemetry.render(public=True))
    secret = "label|due|pending|sample|learn|recall|events|expected|_psi|moved"
    assert [name for name in public if re.search(secret, name)] == []


def test_the_lag_of_learning_grows_between_commits() -> None:
    telemetry, labels = Telemetry(), ("late", *LABELS[1:])
    telemetry.publish(labels, late_gauges(gauges(**EVALUATED)), 7, late_labels=label_metrics())
    counts = telemetry.history.counts
    telemetry.lag(labels, 7, late_labels=label_metrics())
    assert telemetry.history.counts == counts
    telemetry.lag(labels, 7, late_labels=label_metrics(lag=900.0, reading=True, newest=None))
    text = telemetry.render()
    assert value(text, "learning_lag_seconds") == 900
    assert value(text, "labels_reading") == 1
    assert b"streampair_label_newest_seconds{" not in text
    # an operator's number has changed, and no public one
    assert telemetry.history.counts == (counts[0] + 1, counts[1])


def test_the_public_sees_nothing_that_depends_on_raw_data(telemetry: Telemetry) -> None:
    assert names(telemetry.render(public=True)) == PUBLIC == of(True).keys()


def test_the_process_has_its_usual_series_for_operators_alone(telemetry: Telemetry) -> None:
    for public in (False, True):
        text = telemetry.render(public=public).decode()
        for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
            assert bool(re.search(f"^{name} [0-9.e+]+$", text, re.M)) != public


def test_how_long_records_wait() -> None:
    """From the last one that is committed, or from when nothing waited: an idle topic is not late."""
    now = 1_000.0
    telemetry, numbers = Telemetry(clock=lambda: now), gauges()

    def seconds() -> float | None:
        found = telemetry.values(LABELS).get("lag_seconds")
        return None if found is None else float(found)

    telemetry.publish(LABELS, numbers, 5)
    assert seconds() is None  # nobody has said a date
    telemetry.publish(LABELS, numbers, 5, event_time=400.0)
    assert seconds() == 600.0
    now = 1_100.0
    telemetry.lag(LABELS, 5)
    assert seconds() == 700.0
    telemetry.publish(LABELS, numbers, 0, event_time=900.0)
    assert seconds() == 0.0
    now = 5_000.0
    telemetry.lag(LABELS, 0)
    now = 5_002.0
    telemetry.lag(LABELS, 1)
    assert seconds() == 2.0  # not 4,102: none came for an hour
    telemetry.publish(LABELS, numbers, 1, event_time=9_999.0)  # a clock that is ahead
    assert seconds() == 0.0


def test_the_table() -> None:
    assert len({s.name for s in SERIES}) == len(SERIES)
    for series in SERIES:
        assert re.fullmatch(r"streampair_[a-z_]+", series.name)
        assert (series.kind == "counter") == (series.name.endswith("_total") and series.name != REGRET)
        assert series.help.endswith(".")
        assert "|" not in series.help
        assert re.fullmatch(r"[A-Z].{1,34}[^.]", series.title)
        assert series.unit == series.unit.strip(". ")
    assert len({s.title for s in SERIES}) == len(SERIES)


def test_a_private_auc_is_that_of_the_report() -> None:
    telemetry, numbers = Telemetry(), gauges(**EVALUATED)
    telemetry.publish(LABELS, numbers, 7)
    telemetry.publish(("few", *LABELS[1:]), gauges(auc_share=0.01), 7)
    for public in (False, True):
        text = telemetry.render(public=public)
        assert value(text, "private_auc") == numbers.privacy.auc["value"]
        assert value(text, "private_auc_stderr") == numbers.privacy.auc["stderr"] > 0.0


def test_the_numbers(telemetry: Telemetry) -> None:
    text = telemetry.render()
    lane = {"app": "fraud", "topic": "events", "learner": "PairFTRL"}
    assert value(text, "events_total", **lane, outcome="learned") == 40
    assert value(text, "events_total", **lane, outcome="dead_letter") == 1
    assert value(text, "dead_letters_total", **lane, stage="decode") == 1
    assert value(text, "lag", **lane) == 7
    assert value(text, "values_outside_bounds_total", **lane) == 1
    assert value(text, "privacy_epsilon_budget", **lane) == pytest.approx(2.0)
    assert 0 < value(text, "privacy_epsilon_spent", **lane) <= 2.0 + 1e-9
    assert value(text, "privacy_guarantee", **lane, kind="holds") == 1
    assert value(text, "privacy_guarantee", **lane, kind="void") == 0
    assert value(text, "privacy_horizon_left", **lane) == 59
    assert value(text, "regret_stderr", **lane) >= 0
    assert value(text, "health", app="fraud", state="running") == 1
    assert sum(value(text, "health", app="fraud", state=state) for state in HEALTH_STATES) == 1


@pytest.mark.parametrize("features", [["a", "b"], None], ids=["whole batches", "event by event"])
def test_the_time_of_a_lane_is_split_by_stage(features: list[str] | None) -> None:
    table = {"topic": "events", "label": "y", **({"features": features} if features else {})}
    learner = {"class": "streampair.auc.PairOGD"}
    config = parse_config({"app": "fraud", "input": table, "learner": learner})
    clock = DecodeClock(json_decoder(config.input))
    lane = build_lane(config, clock.decode)
    timer = LaneTimer(lane, clock, Telemetry(), LABELS)
    total = 0.0
    for batch in range(3):
        values = [json.dumps({"a": 0.1 * i, "b": 1.0, "y": i % 2 == 0}).encode() for i in range(20)]
        timer.process([Record(20 * batch + i, value) for i, value in enumerate(values)])
        total += 20 * timer.seconds_by_event
    timer.encoded(0.5)
    assert timer.seconds.keys() == set(STAGES)
    assert timer.seconds["decode"] > 0
    assert timer.seconds["decode"] + timer.seconds["learn"] == pytest.approx(total)
    assert timer.seconds["encode"] == 0.5


def test_drift_is_looked_at_while_estimates_of_the_regret_take_their_time() -> None:
    """Looks have a share of the time too: here each takes a second, and has to save up for it."""
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 1.0
        return now

    host = Host(monotonic)
    table = {"topic": "events", "label": "y", "features": ["a"]}
    learner = {"class": "streampair.auc.PairOGD"}
    worker = {"drift_reference": 1000}
    config = parse_config({"app": "fraud", "input": table, "learner": learner, "worker": worker})
    clock, estimates = DecodeClock(json_decoder(config.input), host=host), Estimates(monotonic)
    timer = LaneTimer(build_lane(config, clock.decode), clock, Telemetry(), LABELS, estimates, host=host)
    estimates.spent(1e9)
    found = []
    for batch, pause in enumerate((0.0, 0.0, 0.0, 0.0, 600.0)):
        values = [json.dumps({"a": 0.1 * i, "y": i % 2 == 0}).encode() for i in range(1000)]
        timer.process([Record(1000 * batch + i, value) for i, value in enumerate(values)])
        now += pause
        found.append(timer.gauges().expected)
    assert found[0] is None
    assert found[1] is not None
    assert found[2] is found[3] is not found[1]
    assert found[4] is not found[3]
    values = [json.dumps({"a": 0.1 * i, "y": i % 2 == 0}).encode() for i in range(1000)]
    timer.process([Record(5000 + i, value) for i, value in enumerate(values)])
    assert timer.gauges().expected is found[4]
    assert timer.gauges(final=True).expected is not found[4]


def test_a_lane_that_left_leaves_no_series() -> None:
    telemetry = Telemetry()
    telemetry.publish(LABELS, gauges(), 0)
    telemetry.batch(LABELS, 1e-5, 1e-6)
    telemetry.withdraw(LABELS)
    telemetry.withdraw(LABELS)
    assert b'topic="events"' not in telemetry.render()
    assert b'topic="events"' not in telemetry.render(public=True)


def test_registries_are_not_shared() -> None:
    one, other = Telemetry(), Telemetry()
    one.health("only-here", "running")
    assert b"only-here" not in other.render()


async def get(url: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def test_http() -> None:
    telemetry = working()  # a worker that has committed nothing for long is not healthy
    server = MetricsServer(
        telemetry, MetricsConfig(address=Address("127.0.0.1", 0), public_address=Address("127.0.0.1", 0))
    )
    await server.start()
    try:
        assert server.public_url is not None
        status, text = await get(f"{server.url}/metrics")
        assert (status, "streampair_lag" in text) == (200, True)
        status, text = await get(f"{server.public_url}/metrics")
        assert (status, "streampair_lag" in text) == (200, False)
        assert (await get(f"{server.public_url}/healthz"))[0] == 404
        assert (await get(f"{server.url}/healthz"))[0] == 200
        telemetry.health("fraud", "waiting", "no broker answers", "start it")
        status, text = await get(f"{server.url}/healthz")
        assert status == 503
        assert json.loads(text)["apps"]["fraud"]["next_step"] == "start it"
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(SourceError, match=r"metrics\.address"):
            await MetricsServer(telemetry, MetricsConfig(address=Address("127.0.0.1", port))).start()
    finally:
        telemetry.health("fraud", "running")
        await server.stop()


async def test_each_endpoint_has_an_address_of_its_own(telemetry: Telemetry) -> None:
    """Whoever shows the public one to others shows nothing else, and the other way round."""
    assert MetricsConfig().address.host == "127.0.0.1"
    assert MetricsConfig().public_address is None
    config = MetricsConfig(address=Address("127.0.0.2", 0), public_address=Address("0.0.0.0", 0))
    server = MetricsServer(telemetry, config)
    await server.start()
    try:
        assert server.url.startswith("http://127.0.0.2:")
        assert server.public_url is not None
        assert server.public_url.startswith("http://0.0.0.0:")
        assert "streampair_lag" not in (await get(f"{server.public_url}/metrics"))[1]
        port = server.url.rpartition(":")[2]
        with pytest.raises(urllib.error.URLError):
            await get(f"http://127.0.0.3:{port}/metrics")
        port = server.public_url.rpartition(":")[2]
        assert (await get(f"http://127.0.0.3:{port}/metrics"))[0] == 200
    finally:
        await server.stop()


async def test_a_host_that_is_not_this_machines(telemetry: Telemetry) -> None:
    config = MetricsConfig(address=Address("192.0.2.1", 0))  # for documents, nobody's
    server = MetricsServer(telemetry, config)
    try:
        with pytest.raises(SourceError, match=r"correct metrics\.address"):
            await server.start()
    finally:
        await server.stop()


def test_commits_are_counted_by_what_came_of_them() -> None:
    """Of each lane; what another has taken, or nobody knows of, is told apart from what failed."""
    dates: list[int] = []

    def commit_of(*, snapshot: bool, clean: bool, when: int) -> Any:
        dates.append(when)
        return SimpleNamespace(content=None)

    lane: Any = SimpleNamespace(commit=commit_of, committed=lambda: None)

    def outcome_of(error: Exception | None) -> Any:
        async def commit(_: object) -> None:
            if error is not None:
                raise error

        async def release(_: object) -> None: ...

        store = SimpleNamespace(commit=commit, release=release)
        return SimpleNamespace(logged_lane=lane, store=store, snapshot_due=False, dirty=True)

    async def flush(*_: object) -> bool:
        return True

    telemetry, store = Telemetry(), SimpleNamespace(flush=flush)
    telemetry.health("fraud", "running")
    assert telemetry.process()["transactions_total"] == [
        {"app": "fraud", "outcome": outcome, "value": 0.0} for outcome in OUTCOMES
    ]

    async def commits() -> None:
        checkpoint = Checkpoint(store, lambda _: None, telemetry.counted("fraud"))  # type: ignore[arg-type]
        for error in (
            None,
            None,
            FencedError("x", fix="y"),
            CommitOutcomeUnknownError("x", fix="y"),
            StoreError("x", fix="y"),
        ):
            committing = checkpoint.run(outcome_of(error), clean=False, give_up=asyncio.Event())
            if error is None:
                assert await committing
                continue
            with pytest.raises(type(error)):
                await committing

    begin = time.time()
    asyncio.run(commits())
    assert len(dates) == 5
    assert all(begin - 1.0 <= date / 1000.0 <= time.time() + 1.0 for date in dates)  # a lane has no clock
    counts = {row["outcome"]: row["value"] for row in telemetry.process()["transactions_total"]}
    assert counts == {"committed": 2.0, "fenced": 1.0, "unknown": 1.0, "failed": 1.0}
    assert "transactions" not in telemetry.render(public=True).decode()


def scoring(telemetry: Telemetry) -> dict[str, float]:
    rows = telemetry.process()
    names = ("scored_events_total", "scoring_lag", "events_behind", "model_slots", "model_age_seconds")
    return {name: rows[name][0]["value"] for name in names if rows.get(name)}


def test_the_age_of_a_model_is_in_the_time_of_events_and_ends_with_a_newer_model() -> None:
    telemetry = Telemetry()
    assert scoring(telemetry) == {}
    telemetry.scoring("fraud", lag=7, behind=0, slots=0, learned_ms=None)
    assert scoring(telemetry) == {"scoring_lag": 7, "events_behind": 0, "model_slots": 0}
    # A model that has learned nothing is as old as the first scored event.
    telemetry.scored("fraud", 5, 1_000.0)
    telemetry.scored("fraud", 2, 1_600.0)
    telemetry.scoring("fraud", lag=0, behind=7, slots=0, learned_ms=None)
    assert scoring(telemetry)["model_age_seconds"] == 600
    telemetry.scoring("fraud", lag=0, behind=2, slots=5, learned_ms=1_000_000)
    assert scoring(telemetry)["model_age_seconds"] == 600
    # The learner has caught up: no event need come for the age to fall.
    telemetry.scoring("fraud", lag=0, behind=0, slots=7, learned_ms=1_600_000)
    assert scoring(telemetry) == {
        "scored_events_total": 7,
        "scoring_lag": 0,
        "events_behind": 0,
        "model_slots": 7,
        "model_age_seconds": 0,
    }
    # The learner reads on its own, and may be ahead.
    telemetry.scoring("fraud", lag=9, behind=0, slots=9, learned_ms=1_700_000)
    assert scoring(telemetry)["model_age_seconds"] == 0
