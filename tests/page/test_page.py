"""The page in a real browser: what it says, that its numbers are the series', and that anybody can use it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from harness.browser import browser
from harness.label_series import DAY, label_metrics, late_gauges
from playwright.sync_api import expect
from prometheus_client.parser import text_string_to_metric_families
from streampair_connectors.cli.app import app
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import (
    Address,
    CardConfig,
    Changes,
    MetricsConfig,
    load_config,
    parse_config,
)
from streampair_connectors.observability.dashboard import frame, recorded_page
from streampair_connectors.observability.metric_definitions import STAGES, LaneLabels
from streampair_connectors.observability.metric_history import CAUSES, LetterCause
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.factory import build_lane
from typer.testing import CliRunner

from streampair.engine import LaneGauges, Record
from streampair.evaluation import ExpectedQuality, FeatureMoved, Quality

CONFIG = """
app = "fraud"
input.topic = "events"
input.label = "y"
input.features = { a = [-1, 1], b = [-1, 1] }
learner.class = "streampair.auc.PairFTRL"
learner.options = { epsilon = 2.0, delta = 1e-4, horizon = 400, warmup = 20 }
metrics.address = "127.0.0.1:0"
"""
NOTHING = "\u2013"  # what is shown of a series that a lane has not
WIDTHS = "all => all.map(e => e.getAttribute('width'))"
TABS = ("Learning", "Privacy", "Operation")


def gauges(name: str, count: int, **options: Any) -> LaneGauges:
    learner = {"class": f"streampair.auc.{name}", "options": options}
    table = {"topic": "events", "label": "y", "features": {"a": [-1, 1], "b": [-1, 1]}}
    config = parse_config({"app": "fraud", "input": table, "learner": learner})
    lane = build_lane(config, json_decoder(config.input), snapshots=False)
    rows = [json.dumps({"a": i % 3 - 1, "b": 0.1 * (i % 5), "y": i % 2 == 0}).encode() for i in range(count)]
    lane.process([Record(i, row) for i, row in enumerate([*rows, b"bad"])])
    return lane.gauges(solve=True)


@dataclasses.dataclass
class Run:
    """A made-up run, whose numbers are those of real lanes."""

    telemetry: Telemetry
    url: str
    public_url: str
    private: LaneGauges
    open: LaneGauges

    def publish_late(self, labels: LaneLabels, **changes: Any) -> None:
        """A lane whose labels come later; `changes` are of its `LabelMetrics`."""
        events = {"learned": 1_900, "scored": 125_000, "skipped": 100}
        events |= dict.fromkeys(("dead_letter", "tombstone", "ignored"), 0)
        gauges = dataclasses.replace(late_gauges(self.open), events=events)
        self.telemetry.health(labels[0], "running")
        self.telemetry.publish(
            labels, gauges, 3, dict.fromkeys(STAGES, 0.25), late_labels=label_metrics(**changes)
        )

    def publish(self, labels: LaneLabels, lag: int = 3, **changes: Any) -> None:
        base = self.private if labels[2] == "PairFTRL" else self.open
        self.telemetry.health(labels[0], "running")
        seconds = dict.fromkeys(STAGES, 0.25)
        self.telemetry.publish(labels, dataclasses.replace(base, **changes), lag, seconds)
        self.telemetry.committed(labels[0], 0.01)

    def six(self) -> None:
        """Three lanes of two learners."""
        for number, topic in enumerate(("events", "logins", "orders")):
            self.publish(("fraud-private", topic, "PairFTRL"))
            self.publish(("fraud-open", topic, "PairOGD"), auc=0.8 + number / 64)


@contextmanager
def serving(server: MetricsServer) -> Iterator[None]:
    """Serve from a thread of its own, while the test looks at the page."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        yield
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def learned() -> tuple[LaneGauges, LaneGauges]:
    private = gauges("PairFTRL", 120, epsilon=2.0, delta=1e-4, horizon=400, warmup=20)
    return dataclasses.replace(private, forks=0, generation=0), gauges("PairOGD", 120)


@pytest.fixture
def run(learned: tuple[LaneGauges, LaneGauges]) -> Iterator[Run]:
    telemetry = Telemetry()
    server = MetricsServer(
        telemetry, MetricsConfig(address=Address("127.0.0.1", 0), public_address=Address("127.0.0.1", 0))
    )
    with serving(server):
        yield Run(telemetry, server.url, str(server.public_url), *learned)


Open = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Open]:
    """Open an address as a visitor; what the browser complains of fails the test."""
    complaints: list[str] = []
    with ExitStack() as stack:

        def go(url: str, *, expect: str = "", **options: Any) -> Any:
            context = stack.enter_context(chromium.new_context(**options))
            page = context.new_page()
            page.set_default_timeout(30_000)
            page.on("console", lambda m: m.type == "error" and not expect and complaints.append(m.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(url)
            return page

        yield go
    assert complaints == []


def says(page: Any, words: str) -> None:
    """Wait until the page does."""
    page.get_by_text(words).first.wait_for()


def numbers(page: Any) -> list[tuple[str, LaneLabels, str]]:
    """Every number that the page shows of a series: its name, its lane, and the text."""
    found = page.eval_on_selector_all(
        "[data-series][data-lane]", "all => all.map(e => [e.dataset.series, e.dataset.lane, e.textContent])"
    )
    return [(name, tuple(json.loads(lane)), text) for name, lane, text in found]


def scraped(url: str) -> dict[tuple[str, LaneLabels], list[float]]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[tuple[str, LaneLabels], list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "learner" in sample.labels:
                labels = tuple(sample.labels[k] for k in ("app", "topic", "learner"))
                found.setdefault((sample.name, labels), []).append(sample.value)  # type: ignore[arg-type]
    return found


def agrees(text: str, value: float) -> bool:
    """Whether a text is this number, to its last digit."""
    plain, _, unit = text.replace(",", "").replace("\u2212", "-").partition(" ")
    scale = {"": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6}[unit]
    mantissa, _, power = plain.partition("e")
    digits = len(mantissa.partition(".")[2])
    last = 10.0 ** (int(power or 0) - digits) * scale
    return abs(float(plain) * scale - value) <= last / 2 * (1 + 1e-9)


def compare(page: Any, url: str) -> set[str]:
    """Check every number of every tab against the scrape; return the series that were shown."""
    truth, seen = scraped(url), set()
    for tab in page.get_by_role("tab").all():
        tab.click()
        for name, labels, text in numbers(page):
            values = truth.get((name, labels), [])
            absent = text == NOTHING and not values
            assert absent or any(agrees(text, value) for value in values), (name, labels, text)
            seen.add(name)
    return seen


def test_it_starts_and_follows(run: Run, visit: Open) -> None:
    page = visit(run.url)
    says(page, "No lane yet.")
    labels = ("fraud-private", "events", "PairFTRL")
    for state, said in (("starting", "The worker is starting."), ("running", "No lane yet.")):
        run.telemetry.health(labels[0], state)
        says(page, said)
    run.publish(labels, auc=0.25)
    says(page, "0.2500")
    page.evaluate("document.body.dataset.same = 'yes'")
    run.publish(labels, auc=0.75)
    says(page, "0.7500")
    says(page, "Live: running")
    assert page.evaluate("document.body.dataset.same") == "yes"  # nothing was loaded anew
    page.get_by_role("tab", name="Operation").click()
    run.telemetry.lag(labels, 12_345)
    says(page, "12,345")
    run.telemetry.history.dead_letters(
        labels, {"1f09ac": LetterCause("features", "feature 'amount' is text", 3_456, 98_765)}
    )
    causes = page.get_by_role("region", name="Dead letters by cause")
    expect(causes).to_contain_text("1f09acfeaturesfeature 'amount' is text3,45698,765")
    further = {f"{n:06x}": LetterCause("decode", "the event is not JSON", 1, n) for n in range(CAUSES)}
    run.telemetry.history.dead_letters(labels, further)
    expect(causes.locator("tbody tr")).to_have_count(CAUSES + 1)
    expect(causes.locator("tbody tr").last).to_have_text(f"further causes{NOTHING}{NOTHING}119")
    run.telemetry.withdraw(labels)
    says(page, "No lane yet.")


def test_three_lanes_of_two_learners_show_the_numbers_of_the_series(run: Run, visit: Open) -> None:
    run.six()
    page = visit(run.url)
    page.locator("#lane option").nth(6).wait_for(state="attached")
    seen = compare(page, run.url)
    page.get_by_label("Lane", exact=True).select_option(index=4)
    seen |= compare(page, run.url)
    page.get_by_label("Lane", exact=True).select_option(index=1)
    page.get_by_role("tab", name="Privacy").click()
    says(page, "This lane keeps no privacy account.")
    for name in ("prequential_auc", "regret_average", "lag", "privacy_epsilon_spent", "privacy_mu_budget"):
        assert f"streampair_{name}" in seen
    assert agrees("0.12", 0.1249)
    assert not agrees("0.12", 0.1251)  # what compares them can tell


def signed(text: str) -> float:
    return float(text.replace("\u2212", "-").removeprefix("\u00b1 "))


def test_weights_with_their_noise_a_band_and_reliability(run: Run, visit: Open) -> None:
    run.publish(("fraud-private", "events", "PairFTRL"))
    page = visit(run.url)
    rows = page.get_by_role("region", name="The largest weights").locator("tbody tr")
    rows.nth(1).wait_for()
    texts = [row.locator("th, td.n").all_inner_texts() for row in rows.all()]
    assert run.private.weights
    for (name, weight, noise), (text, value, error) in zip(run.private.weights, texts, strict=True):
        assert text == name
        assert agrees(value, weight)
        assert noise is not None
        assert agrees(error.removeprefix("\u00b1 "), noise)
    assert [abs(signed(row[1])) for row in texts] == sorted((abs(signed(r[1])) for r in texts), reverse=True)
    says(page, "one standard deviation of the noise")
    says(page, "Reliability: share of positives by probability")
    run.publish(("fraud-private", "events", "PairFTRL"), auc=0.7)  # a band needs two points
    figure = page.locator("figure", has_text="Prequential AUC, with")
    figure.locator("path.band[d*='Z']").wait_for(state="attached")
    # A learner whose weights have no noise says nothing of it; what is not known is told as not known.
    gradients = gauges(
        "PairFTRL",
        120,
        epsilon=2.0,
        delta=1e-4,
        horizon=400,
        warmup=20,
        mechanism={"class": "streampair.privacy.PairGradients"},
    )
    assert {noise for *_, noise in gradients.weights} == {None}
    run.publish(("fraud-private", "events", "PairFTRL"), weights=gradients.weights)
    says(page, "How much of it is left in a weight is not known")
    assert "standard deviation of the noise" not in page.locator("body").inner_text()
    assert rows.locator("td:nth-child(3)").all_inner_texts() == [NOTHING] * len(gradients.weights)
    assert not any(float(w or 0) for w in rows.locator("rect.whisker").evaluate_all(WIDTHS))
    run.publish(("fraud-open", "events", "PairOGD"))
    page.locator("#lane option").nth(2).wait_for(state="attached")
    page.get_by_label("Lane", exact=True).select_option(index=1)
    says(page, "Of the features as the learner scales them.")
    assert page.get_by_role("region", name="The largest weights").locator("tbody tr").count() == 2


def test_what_is_wrong_is_said_in_words(run: Run, visit: Open) -> None:
    labels = ("fraud-private", "events", "PairFTRL")
    run.publish(labels)
    page = visit(f"{run.url}/#privacy")
    says(page, "The guarantee holds")
    report = run.private.privacy
    run.publish(labels, privacy=report.replace(horizon_left=0))
    says(page, "The horizon is reached.")
    says(page, "the model still scores, and learns no more")
    run.publish(labels, privacy=report.replace(kind="unvouched", guarantee="unvouched (restarted): so"))
    says(page, "The guarantee cannot be vouched for in full.")
    run.publish(labels, privacy=report.replace(kind="void", guarantee="void (fixed seed)"))
    says(page, "No guarantee holds.")
    assert "void (fixed seed)" in page.locator("#alarms").inner_text()
    run.telemetry.health("fraud-private", "waiting", "no broker answers", "start the broker")
    says(page, "No broker answers.")
    says(page, "Start the broker.")
    run.telemetry.health("fraud-private", "failed", "the log is <b>damaged</b>", "put it back")
    says(page, "The log is <b>damaged</b>.")  # as text


def test_parts_appear_when_there_is_something_to_show(run: Run, visit: Open) -> None:
    labels = ("fraud-private", "events", "PairFTRL")
    run.publish(labels, quality=None, auc=float("nan"), weights=())
    page = visit(run.url)
    says(page, "Events learned")
    assert page.get_by_text("Largest weights").count() == 0
    page.locator("#panel-learning").focus()
    run.publish(labels, quality=run.private.quality)
    says(page, "Largest weights")
    says(page, "Reliability: share of positives by probability")
    assert page.evaluate("document.activeElement.id") == "panel-learning"
    drifting = dataclasses.replace(run.private.quality, drift=True)
    run.publish(labels, quality=drifting)
    says(page, "the learner has caught up with it")
    expected = ExpectedQuality(0.875, 0.25, (), (("<b>odd</b>", 0.5), ("b", 0.01)), 0.05, 1)
    run.publish(labels, expected=expected)
    says(page, "Expected AUC 0.8750, expected share of positives 25.0 %")
    says(page, "1 feature moved within the reference")
    says(page, "<b>odd</b>")  # as text
    says(page, "cannot be seen before labels come")
    moved = (FeatureMoved("b", "missing", 0.0, 0.5),)
    run.publish(labels, expected=dataclasses.replace(expected, auc=None, positive_share=None, moved=moved))
    says(page, "withheld: features moved. b: missing 0.0 % in the reference, 50.0 % now.")
    run.publish(labels, expected=dataclasses.replace(expected, auc=None, positive_share=None))
    says(page, "fewer than 30 labels of a class have come")
    compare(page, run.url)


def test_what_happened_to_lanes_what_changed_and_since_when(run: Run, visit: Open, tmp_path: Path) -> None:
    file = tmp_path / "fraud.toml"
    file.write_text(CONFIG)
    app, labels = "fraud-private", ("fraud-private", "events", "PairFTRL")
    run.telemetry.configured(app, Changes(load_config(file)))
    run.publish(labels, since=1_700_000_000.0)
    page = visit(f"{run.url}/#operation", timezone_id="UTC")
    says(page, "Nothing. The worker runs with what is in the file.")
    for _ in range(3):
        run.telemetry.restored(app)
    run.telemetry.fenced(app)
    file.write_text(CONFIG.replace("horizon = 400", "horizon = 500") + "worker.batch_size = 9\n")
    run.publish(labels, since=1_700_000_000.0)
    says(page, "2 keys of the file differ from what runs: learner.options.horizon, worker.batch_size.")
    says(page, "The next start would be refused")
    for name, number in (("restores", "3"), ("fences", "1"), ("rebalances", "0")):
        page.locator(
            f'[data-series="streampair_{name}_total"]', has_text=re.compile(f"^{number}$")
        ).wait_for()
    for url in (run.url, run.public_url):
        officer = page if url == run.url else visit(f"{url}/#privacy", timezone_id="UTC")
        officer.get_by_role("tab", name="Privacy").click()
        says(officer, "14 Nov 2023, 22:13:20")
        assert "keys of the file" not in officer.locator("body").inner_text()


def scored(page: Any) -> dict[tuple[str, str], str]:
    """The numbers of workers that score with a published model, by series and application."""
    found = page.eval_on_selector_all(
        "[data-series][data-app]", "all => all.map(e => [e.dataset.series, e.dataset.app, e.textContent])"
    )
    return {(name, app): text for name, app, text in found}


def test_scoring_in_parallel_is_shown_where_there_is_some(run: Run, visit: Open) -> None:
    run.publish(("fraud-open", "events", "PairOGD"))
    page = visit(f"{run.url}/#operation")
    says(page, "Live: running")
    assert page.locator("#lane option").all_inner_texts() == ["fraud-open: events"]
    assert scored(page) == {}
    assert "parallel" not in page.locator("body").inner_text()
    run.telemetry.health(
        "fraud-open.scorers", "waiting", "no model in fraud-open-model yet", "start a worker"
    )
    says(page, "Scoring in parallel")
    says(page, "fraud-open.scorers is waiting.")
    says(page, "Live: waiting")
    assert set(scored(page).values()) == {NOTHING}
    run.telemetry.health("fraud-open.scorers", "running")
    run.telemetry.scored("fraud-open", 12_345, 1_000.0)
    run.telemetry.scoring("fraud-open", lag=678, behind=90, slots=4_321, learned_ms=988_000)
    run.telemetry.committed("fraud-open.scorers", 0.25)
    says(page, "12,345")
    says(page, "committed in 250 ms each")
    says(page, "Live: running")
    assert scored(page) == {
        ("streampair_scored_events_total", "fraud-open"): "12,345",
        ("streampair_scoring_lag", "fraud-open"): "678",
        ("streampair_model_age_seconds", "fraud-open"): "12 s",
        ("streampair_events_behind", "fraud-open"): "90",
        ("streampair_model_slots", "fraud-open"): "4,321",
    }
    states = page.locator("section", has_text="State and next step").locator("p").all_inner_texts()
    assert [state.split()[0] for state in states] == ["fraud-open", "fraud-open.scorers"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_worker_that_scores_alone_has_its_numbers(run: Run, visit: Open, scheme: str) -> None:
    run.telemetry.health("fraud.scorers", "running")
    run.telemetry.scored("fraud", 8, 1_000.0)
    run.telemetry.scoring("fraud", lag=3, behind=0, slots=40, learned_ms=None)
    page = visit(run.url, color_scheme=scheme, bypass_csp=True)
    says(page, "A worker that scores alone has none.")
    says(page, "Live: running")
    page.get_by_role("tab", name="Operation").click()
    says(page, "Scoring in parallel")
    assert scored(page)["streampair_scored_events_total", "fraud"] == "8"
    assert Axe().run(page).violations_count == 0
    with urllib.request.urlopen(f"{run.public_url}/page/data", timeout=10) as answer:
        public = json.loads(answer.read())
    assert "scor" not in json.dumps({**public, "limits": None})  # whose words are those of every guarantee


LATE = ("fraud", "events", "PairOGD")


def test_the_page_has_a_section_on_labels_that_come_later(run: Run, visit: Open) -> None:
    run.publish(("fraud-open", "events", "PairOGD"))
    page = visit(f"{run.url}/#operation")
    says(page, "Live: running")
    assert "abels that come" not in page.locator("body").inner_text()
    run.telemetry.withdraw(("fraud-open", "events", "PairOGD"))
    run.publish_late(LATE, newest=time.time() - 3000, learned_to=time.time() - 30 * DAY)
    says(page, "Events are learned when they are due")
    section = page.locator("section", has_text="Labels that come later").first
    tiles = {
        label: [value, sub]
        for label, value, sub in (t.inner_text().split("\n") for t in section.locator(".tile").all())
    }
    assert tiles == {
        "Events not due yet": ["123,456", "events"],
        "Events with a label": ["5.0 %", "100 of 2,000 that were due"],
        "Delay of labels": ["24 hours", "half of them; 95 % within 28 days"],
        "Labels that come late": ["10.0 %", "10 of 100 in the sample"],
        "Age of the newest label": ["50 min", "usual: up to 6 hours"],
        "Lag of learning": ["2 s", "behind what is due"],
    }
    messages = page.get_by_role("region", name="Labels by outcome").locator("tbody tr").all_inner_texts()
    assert [row.split()[-1] for row in messages] == ["100", "3", "2", "7", "1", "4"]
    says(page, "30 days ago")
    says(page, "Scored; learned when they are due")
    assert {"streampair_events_pending", "streampair_label_messages_total"} <= compare(page, run.url)
    page.get_by_role("tab", name="Learning").click()
    says(page, "Recall at the threshold")
    says(page, "label_input.stopped leaves such events out")
    says(page, "of 125,000 seen")  # an event that was scored and is due was seen once
    page.get_by_role("tab", name="Operation").click()
    assert page.locator("#alarms").inner_text() == ""
    run.publish_late(LATE, messages={**label_metrics().messages, "stopped": 12})
    page.reload()
    says(page, "Its event was stopped")
    messages = page.get_by_role("region", name="Labels by outcome").locator("tbody tr").all_inner_texts()
    assert [row.split()[-1] for row in messages] == ["100", "12", "3", "2", "7", "1", "4"]
    page.get_by_role("tab", name="Learning").click()
    says(page, "Recall at the threshold")
    assert "leaves such events out" not in page.locator("body").inner_text()
    says(page, "12 so far. In the window of these figures 31 of them are positive.")
    says(page, "Left out are 3 outcomes of events that were to be stopped, of the sample of scores.")
    note = page.locator("p.note", has_text="12 so far").bounding_box()
    assert note["width"] == page.locator(".tiles").bounding_box()["width"]
    few_explored_positives(run, page)
    page.get_by_role("tab", name="Operation").click()
    run.publish_late(LATE, reading=True, lag=None, newest=None)
    says(page, "Labels are read again: events are scored, and learned later")
    run.publish_late(LATE, lag=900.0, newest=time.time() - 7 * 3600)
    says(page, "Events that are due are not learned yet")
    says(page, "Labels have stopped.")
    assert "the newest is 7 hours old" in page.locator("#alarms").inner_text()


def few_explored_positives(run: Run, page: Any) -> None:
    """No figure is "too few" before there are any, nor where no event reaches the threshold."""
    gauges = late_gauges(run.open, share=1.0)
    quality = gauges.quality
    assert quality is not None

    def show(quality: Quality | None, words: str) -> dict[str, list[str]]:
        of_quality = dataclasses.replace(gauges, quality=quality)
        run.telemetry.publish(LATE, of_quality, 3, late_labels=label_metrics())
        if quality is None:  # an open page goes on showing the latest figures
            page.reload()
        says(page, words)
        rows = (tile.inner_text().split("\n") for tile in page.locator(".tile").all())
        return {label: more for label, *more in rows}

    # The count differs from the one before: what the page has is then of these figures.
    found = show(
        dataclasses.replace(quality, precision_at_threshold=None, explored_positives=33), "figures 33 of them"
    )
    assert found["Precision at the threshold"][0] == NOTHING
    assert "too few" not in str(found)
    few = {f"{name}_at_threshold": None for name in ("recall", "precision")} | {"average_precision": None}
    counts: dict[str, Any] = {"explored_positives": 0, "too_few": True, "auc_stderr": None}
    words = f"± {NOTHING}, without positives above the threshold"
    found = show(dataclasses.replace(quality, **few, **counts, recall_at_top={}), words)
    assert sum(more[0] == "too few" for more in found.values()) == 4
    found = show(None, "12 so far. Left out")
    assert found["Recall at the threshold"][0] == NOTHING


def test_late_labels_are_for_operators(run: Run, visit: Open) -> None:
    labels = ("fraud-private", "events", "PairFTRL")
    gauges = late_gauges(run.private)
    run.telemetry.publish(labels, gauges, 3, late_labels=label_metrics(newest=1.0))
    public = visit(run.public_url)
    says(public, "The guarantee holds")
    assert public.locator("#alarms").inner_text() == ""
    with urllib.request.urlopen(f"{run.public_url}/page/data", timeout=10) as answer:
        text = json.loads(answer.read())
    late = ("label", "pending", "due_events", "score_sample", "learn", "recall", "evaluated")
    assert [name for name in (*text["series"], *text["lanes"][0]["values"]) if name.startswith(late)] == []


@pytest.mark.parametrize("width", [400, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_that_come_later_fit_a_phone_and_anybody_can_read_them(
    run: Run, visit: Open, width: int, scheme: str
) -> None:
    run.publish_late(LATE, pending=1_234_567_890)
    page = visit(
        f"{run.url}/#operation",
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        bypass_csp=True,
    )
    says(page, "1,234,567,890")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
    assert page.eval_on_selector_all(".tile .value, .chip", cut) == []
    assert Axe().run(page).violations_count == 0


CURATOR = CardConfig(
    curator="Example Bank, privacy@example.org",
    intended_use="rank payments for a review",
    approved_by="A. Officer",
    approved_on=date(2026, 1, 2),
    approved_epsilon=2.0,
    approved_delta=1e-4,
    reason="the smallest that ranks well",
    review_by=date(9999, 1, 1),
)
AUDIT = {
    "learner": "auc.PairFTRL",
    "epsilon": 2.0,
    "delta": 1e-4,
    "date": "2026-01-02",
    "verdict": "nothing speaks against the promise",
    "parts": [{"part": "sums of blocks", "claimed": 0.62, "accounted": 0.5, "exact": 0.48, "lower": 0.4375}],
}


def test_each_question_is_answered_on_one_screen(visit: Open, tmp_path: Path, learned: Any) -> None:
    """On a usual desktop, with something that needs attention above: nothing below the fold, nothing cut."""
    telemetry, file = Telemetry(), tmp_path / "audit.json"
    server = MetricsServer(
        telemetry,
        MetricsConfig(address=Address("127.0.0.1", 0), public_address=Address("127.0.0.1", 0)),
        file,
        CURATOR,
    )
    with serving(server):
        run = Run(telemetry, server.url, str(server.public_url), *learned)
        file.write_text(json.dumps(AUDIT))
        private = dataclasses.replace(learned[0], since=1_700_000_000.0)
        ended = private.privacy.replace(horizon_left=0)
        run.publish(("fraud-private", "events", "PairFTRL"), since=private.since, privacy=ended)
        run.telemetry.committed("fraud-private", 0.01)
        officer = (
            *("The horizon is reached.", "The guarantee holds", "the content of one record"),
            *("14 Nov 2023, 22:13:20", "What is not covered", "Several records of one person"),
            *("What would void it", "a process that forks", "What remains", "forks are charged"),
            *("On 2026-01-02: Nothing speaks against the promise.", "at least 0.4375 of the 0.5000"),
            *(
                "Approved by A. Officer on 2026-01-02, to be reviewed by 9999-01-01.",
                "Privacy card",
                CURATOR.curator,
                CURATOR.intended_use,
                "central: the curator, its hosts",
            ),
        )
        operator = (
            *("Live: running", "Lag", "Time to catch up", "Last commit", "Prequential AUC"),
            *("State and next step", "Nothing to do.", "Ignored: seen before", "The learner refused it"),
        )
        for url, tab, answers in (
            (server.url, "Privacy", officer),
            (run.public_url, "Privacy", officer),
            (server.url, "Operation", operator),
        ):
            page = visit(f"{url}/#{tab.lower()}", viewport={"width": 1440, "height": 900}, timezone_id="UTC")
            for answer in answers:
                found = page.get_by_text(answer).first
                found.wait_for()
                box = found.bounding_box()
                assert 0 <= box["y"] <= 900 - box["height"], answer
            if tab == "Privacy":  # promise, spend, rest, terms, what is not covered, what would void it
                assert [box["y"] + box["height"] <= 900 for box in boxes(page, ".third")] == [True] * 6
            cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
            for width in (1440, 1280, 390):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.eval_on_selector_all(".tile .value, .alarm, .chip", cut) == []
            page.context.close()
        file.write_text("{}")
        page = visit(f"{server.url}/#privacy")
        says(page, "The file of the audit cannot be used")
        assert page.get_by_text("The review of epsilon and delta is due.").count() == 0
        page.context.close()


def test_a_review_that_is_due_needs_attention(visit: Open, tmp_path: Path, learned: Any) -> None:
    due = CURATOR.model_copy(update={"review_by": date(2026, 1, 3)})
    data = frame(_published(learned[0]), public=False, curator=due)
    for day, count in (("2026-01-03", 0), ("2026-01-04", 1)):
        data["now"] = datetime.fromisoformat(f"{day}T12:00:00Z").timestamp()
        file = tmp_path / f"{day}.html"
        file.write_bytes(recorded_page(data))
        page = visit(f"{file.as_uri()}#privacy")
        says(page, "Approved by A. Officer on 2026-01-02, to be reviewed by 2026-01-03.")
        assert page.locator("#alarms").get_by_text("The review of epsilon and delta is due.").count() == count
    data = frame(_published(learned[0]), public=False)
    file.write_bytes(recorded_page(data))
    says(visit(f"{file.as_uri()}#privacy"), "No approval is declared in the configuration.")


def _published(gauges: LaneGauges) -> Telemetry:
    telemetry = Telemetry()
    telemetry.publish(("fraud-private", "events", "PairFTRL"), gauges, 3)
    return telemetry


def boxes(page: Any, selector: str) -> list[dict[str, float]]:
    """The rectangles of the elements that are shown, in pixels of the page."""
    return list(
        page.eval_on_selector_all(selector, "all => all.map(e => e.getBoundingClientRect().toJSON())")
    )


# What is cut, what is outside of the screen or of its card, and which two lie on each other. The heads of a
# stacked table are for screen readers alone.
MISPLACED = """panel => {
    const found = [], cards = [...panel.querySelectorAll(".card")], texts = [];
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
    const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1
                          && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
    for (const e of [document.documentElement, ...panel.querySelectorAll("*:not(svg *)")])
        if (e.clientWidth && e.scrollWidth > e.clientWidth) found.push(`cut: ${e.tagName} ${e.textContent}`);
    const walk = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (walk.nextNode()) {
        const node = walk.currentNode;
        const box = node.parentElement.closest(".card").getBoundingClientRect();
        range.selectNodeContents(node);
        if (node.parentElement.closest(".stacked thead") && innerWidth < 1100) continue;
        if (getComputedStyle(node.parentElement).visibility === "hidden") continue;
        for (const rect of range.getClientRects()) {
            if (!rect.width) continue;
            const shown = inside(rect, box) && rect.left >= 0 && rect.right <= innerWidth;
            if (!shown) found.push(`outside: ${node.data}`);
            texts.push([rect, node.data]);
        }
    }
    for (const list of [cards.map(e => [e.getBoundingClientRect(), "card"]), texts])
        list.forEach(([a, one], i) => list.slice(i + 1).forEach(([b, two]) => {
            if (meet(a, b)) found.push(`on each other: ${one} | ${two}`);
        }));
    return texts.length > 40 ? found : ["too little text"];
}"""


@pytest.mark.parametrize("width", [390, 800, 1280, 1440])
def test_nothing_of_the_privacy_tab_is_cut_or_covered(run: Run, visit: Open, width: int) -> None:
    """By rectangles: of one lane that is well, void, or without an end, and of several."""
    labels = ("fraud-private", "events", "PairFTRL")
    report = run.private.privacy
    dates = tuple((1_700_000_000_000 + i, i, 0.25, 10**9, 10**9) for i in range(8))
    entity = report.unit.replace("the content of one record", "the contents of all records of one entity")
    cases: list[dict[str, Any]] = [
        {"release_dates": dates},
        {"privacy": report.replace(kind="void", guarantee="void (fixed seed)", horizon_left=0)},
        {"privacy": report.replace(horizon=None, horizon_left=None, unit=entity, epsilon_spent=1.5)},
        {"privacy": report.replace(horizon=10**15, horizon_left=123_456_789_012_345, noise_std=1.234e-11)},
    ]
    for changes in cases:
        run.publish(labels, **changes)
        page = visit(f"{run.url}/#privacy", viewport={"width": width, "height": 900})
        says(page, "What remains")
        page.locator("text.limit").wait_for()
        for summary in page.locator("summary").all():
            summary.click()
        assert page.locator("#panel-privacy").evaluate(MISPLACED) == [], changes
    run.six()
    run.publish(("a-bank-with-a-long-name", "payments.of.all.countries.v2", "PairFTRL"))
    page = visit(f"{run.url}/#privacy", viewport={"width": width, "height": 900})
    says(page, "4 lanes keep a privacy account")
    assert page.locator("#panel-privacy").evaluate(MISPLACED) == []


def test_a_promise_does_not_look_like_a_spend_and_noise_is_told_in_the_unit_of_weights(
    run: Run, visit: Open
) -> None:
    labels = ("fraud-private", "events", "PairFTRL")
    report = run.private.privacy.replace(horizon=400, horizon_left=380)
    for spent in (0.0, 0.0, 0.5, 0.5, 1.25):
        run.publish(labels, privacy=report.replace(epsilon_spent=spent, mu_spent=spent / 4))
    page = visit(f"{run.url}/#privacy")
    promise, spend = (page.locator(f".card.{name}") for name in ("promise", "spend"))
    expect(promise.locator(".figure b")).to_have_text("\u2264 2")
    expect(spend.locator(".figure b")).to_have_text("1.250")
    looks = "e => { const s = getComputedStyle(e); return [s.borderStyle, s.backgroundColor, s.color]; }"
    assert not {*promise.evaluate(looks)[:2]} & {*spend.evaluate(looks)[:2]}
    assert promise.locator("b").first.evaluate(looks)[2] != spend.locator("b").first.evaluate(looks)[2]
    # The promise is a limit across the whole chart, from the first moment; the spend below goes up in steps.
    limit = spend.locator("line.limit").bounding_box()
    path = spend.locator("path.c0")
    page.wait_for_function("path => /V/.test(path.getAttribute('d'))", arg=path.element_handle())
    assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+)+", str(path.get_attribute("d")))
    assert path.bounding_box()["y"] > limit["y"]
    assert limit["width"] > path.bounding_box()["width"]
    # Two weights, whose noise is known: that of both has the variance of their sum of squares.
    noise, norm = (sum(row[i] ** 2 for row in run.private.weights) ** 0.5 for i in (2, 1))
    number = page.locator('[data-series="streampair_weight_noise"]')
    assert agrees(number.inner_text(), noise)
    fact = page.locator(".facts div", has_text="Noise in the weights").locator("dd").inner_text()
    assert fact.startswith(f"{100 * noise / norm:.1f} % of their norm: ")
    assert str(run.private.privacy.noise_std)[:4] not in page.locator("#panel-privacy").inner_text()
    run.publish(labels, privacy=report.replace(kind="void", guarantee="void (fixed seed)"))
    says(page, "It was to protect")
    expect(spend.locator("text.limit")).to_have_text("promised, and void")


def test_each_lane_has_one_row_with_promise_and_spend_apart(run: Run, visit: Open) -> None:
    report = run.private.privacy
    run.publish(("churn", "events", "PairFTRL"), privacy=report.replace(unit="one entity", horizon_left=None))
    run.publish(("fraud", "events", "PairFTRL"), privacy=report.replace(epsilon_spent=1.5))
    page = visit(f"{run.url}/#privacy")
    rows = page.get_by_role("region", name="Lanes and their guarantees").locator("tbody tr")
    expect(rows).to_have_count(2)
    cells = [row.locator("th, td").all_inner_texts()[:6] for row in rows.all()]
    spent = [f"{value:.3f}" for value in (report.epsilon_spent, 1.5)]
    assert cells == [
        [f"{app}: events", "PairFTRL", "The guarantee holds", who, "\u2264 2 at delta 1e\u22124", number]
        for app, who, number in zip(("churn", "fraud"), ("one entity", "one record"), spent, strict=True)
    ]


def test_learners_of_one_topic_add_up(run: Run, visit: Open) -> None:
    for name in ("fraud", "churn"):
        run.publish((name, "events", "PairFTRL"))
    page = visit(f"{run.url}/#privacy")
    says(page, "Learners on one topic see the same records: their spends add up")
    assert page.locator("#lane option").all_inner_texts()[1:] == [
        "churn: events, PairFTRL",
        "fraud: events, PairFTRL",
    ]


def test_who_moves_along_the_lanes_stays_in_the_list(run: Run, visit: Open) -> None:
    run.six()
    page = visit(run.url, viewport={"width": 1280, "height": 600})
    page.locator("#lane option").nth(6).wait_for(state="attached")
    page.locator("#lane").focus()
    page.keyboard.press("ArrowDown")
    says(page, "Prequential AUC")
    assert page.evaluate("[document.activeElement.id, scrollY]") == ["lane", 0]


def test_the_public_address_shows_the_officers_tab_alone(run: Run, visit: Open) -> None:
    run.six()
    run.telemetry.health("fraud-open", "failed", "a secret reason", "")
    page = visit(run.public_url)
    says(page, "3 lanes keep a privacy account")
    assert [tab.inner_text() for tab in page.get_by_role("tab").all()] == ["Privacy"]
    compare(page, run.public_url)
    text = page.locator("body").inner_text()
    assert not re.search("PairOGD|secret|AUC|[Ll]ag|Norm", text)


def test_a_worker_that_hangs_or_dies_is_noticed(visit: Open) -> None:
    command = [sys.executable, "-m", "streampair_connectors", "demo", "--serve", "--rate", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(line.split()[1] for line in process.stdout if line.startswith("dashboard: "))
            page = visit(url, expect="connections that are refused")
            says(page, "Live: 3 of 3 applications running")
            process.send_signal(signal.SIGSTOP)
            says(page, "The worker has stopped, or cannot be reached.")
            says(page, "Stopped: no answer since")
            process.send_signal(signal.SIGCONT)
            says(page, "Live: 3 of 3 applications running")
            assert page.locator("#alarms").inner_text() == ""
            process.kill()
            says(page, "The worker has stopped, or cannot be reached.")
        finally:
            process.kill()


def test_lanes_are_sorted_by_name(run: Run, visit: Open) -> None:
    for topic in ("orders", "events", "logins"):
        run.publish(("fraud", topic, "PairOGD"))
    page = visit(run.url)
    page.locator("#lane option").nth(3).wait_for(state="attached")
    names = page.locator("#lane option").all_inner_texts()[1:]
    assert names == [f"fraud: {topic}, PairOGD" for topic in ("events", "logins", "orders")]


def test_one_point_is_a_disc_and_axes_have_units(run: Run, visit: Open) -> None:
    run.publish(("fraud", "events", "PairOGD"))
    page = visit(f"{run.url}/#learning")
    chart = page.locator("figure", has_text="Prequential AUC")
    disc = chart.locator("svg.chart path.c0:not(.band)")
    page.wait_for_function("path => path.getAttribute('d')", arg=disc.element_handle())
    box = disc.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 4
    assert chart.locator("text.unit").all_text_contents() == ["ratio", "events"]
    page.get_by_role("tab", name="Operation").click()
    lag = page.locator("figure", has=page.locator("h2", has_text=re.compile("^Lag$")))
    assert lag.locator("text.unit").all_text_contents() == ["records", "time"]


def test_no_figure_and_no_tick_is_cut(run: Run, visit: Open) -> None:
    """Long numbers in narrow tiles, and marks of an axis left of the drawing."""
    events = {"learned": 1_234_567_890_123, "scored": 0, "dead_letter": 0, "ignored": 0}
    private = run.private.privacy
    assert private is not None
    report = private.replace(horizon=10**15, horizon_left=123_456_789_012_345, noise_std=1.234e-11)
    run.publish(("fraud-private", "events", "PairFTRL"), events=events, privacy=report, auc=-1e-5)
    for width in (380, 1000, 1440):
        for tab in ("learning", "privacy", "operation"):
            page = visit(f"{run.url}/#{tab}", viewport={"width": width, "height": 900})
            page.locator(".tile .value, .figure b").first.wait_for()
            cut = page.eval_on_selector_all(
                ".tile .value, .figure",
                "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)",
            )
            assert cut == [], (width, tab)
            outside = page.eval_on_selector_all(
                "svg.chart text",
                """all => all.filter(e => {
                    const [a, b] = [e.getBoundingClientRect(), e.ownerSVGElement.getBoundingClientRect()];
                    return a.width && (a.left < b.left - 1 || a.right > b.right + 1);
                }).map(e => e.textContent)""",
            )
            assert outside == [], (width, tab)


def test_the_first_release_does_not_look_as_if_the_budget_were_used_up(run: Run, visit: Open) -> None:
    private = run.private.privacy
    assert private is not None
    report = private.replace(epsilon_spent=private.epsilon_budget, horizon=400, horizon_left=380)
    run.publish(("fraud-private", "events", "PairFTRL"), privacy=report)
    page = visit(f"{run.url}/#privacy")
    says(page, "5.0 % of the horizon is used.")
    meter = page.get_by_role("meter", name="Share of the horizon that is used")
    assert meter.get_attribute("aria-valuenow") == "5.0"
    text = page.locator("#panel-privacy").inner_text()
    assert "380 of 400 records can be learned" in text
    assert not re.search(r"(?<![\d.])100(?![\d.])", text)


def test_a_hundred_lanes_do_not_stutter(run: Run, visit: Open) -> None:
    def one(number: int, step: int) -> None:
        events = {"learned": 100 + 10 * step, "scored": 0, "dead_letter": 0, "ignored": 0}
        labels = ("fraud", f"events-{number}", "PairOGD")
        run.publish(labels, auc=0.9 - step / 1000, events=events)

    for number in range(100):
        one(number, 0)
    page = visit(run.url)
    page.locator("tbody tr").nth(99).wait_for()
    page.evaluate(
        """() => {
            window.touched = new Set(); window.frames = [];
            new MutationObserver(list => list.forEach(m => window.touched.add(m.target)))
                .observe(document.body,
                         { subtree: true, childList: true, attributes: true, characterData: true });
            let last = performance.now();
            (function frame(now) { if (now > last) frames.push(now - last); last = now;
                                   requestAnimationFrame(frame); })(last);
        }"""
    )
    one(7, 1)
    page.get_by_text("0.8990").first.wait_for()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    # One row, its line and its band, a few sums: the other lanes' stay as they are.
    assert 0 < page.evaluate("window.touched.size") <= 60
    for step in range(2, 6):
        for number in range(100):
            one(number, step)
        page.get_by_text(f"{0.9 - step / 1000:.4f}").nth(50).wait_for()
    frames = page.evaluate("window.frames")
    assert sum(frame > 250 for frame in frames) <= len(frames) / 4
    assert page.evaluate("document.querySelectorAll('svg path').length") <= 2 * 2 * 100 + 20


def test_by_keyboard_alone(run: Run, visit: Open) -> None:
    run.six()
    page = visit(run.url)
    page.locator("#lane option").nth(6).wait_for(state="attached")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the numbers"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-learning"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-privacy"
    says(page, "3 lanes keep a privacy account")
    page.keyboard.press("End")
    assert page.get_by_role("tab", selected=True).inner_text() == "Operation"
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", selected=True).inner_text() == "Learning"
    page.locator("tbody button").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "panel-learning"
    says(page, "Prequential AUC")
    page.keyboard.press("Tab")
    chart = page.get_by_role("slider").first
    assert chart.evaluate("e => e === document.activeElement")
    run.publish(("fraud-open", "events", "PairOGD"), auc=0.625)
    says(page, "0.6250")
    page.keyboard.press("Home")
    assert "events:" in str(chart.get_attribute("aria-valuetext"))
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("kind", ["light", "dark", "phone"])
def test_nothing_that_axe_knows_is_wrong(run: Run, visit: Open, kind: str) -> None:
    run.six()
    void = run.private.privacy.replace(kind="void", guarantee="void (fixed seed)")
    run.publish(("fraud-private", "events", "PairFTRL"), privacy=void)
    size = {"width": 390, "height": 844} if kind == "phone" else {"width": 1280, "height": 900}
    scheme = "dark" if kind == "dark" else "light"
    page = visit(run.url, viewport=size, color_scheme=scheme, bypass_csp=True)
    page.locator("#lane option").nth(6).wait_for(state="attached")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for index in (0, 4, 6):  # all lanes, the void one, and one that is well
        page.get_by_label("Lane", exact=True).select_option(index=index)
        for tab in TABS:
            page.get_by_role("tab", name=tab).click()
            results = Axe().run(page)
            assert results.violations_count == 0, results.generate_report()
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_too_many_readers_are_refused(run: Run, visit: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampair_connectors.observability.dashboard.page.STREAMS", 0)
    run.six()
    page = visit(run.url, expect="a stream that is refused")
    says(page, "refreshed every 3 seconds")
    monkeypatch.undo()
    page.get_by_text("refreshed every").wait_for(state="hidden")


def call(*arguments: object, code: int = 0) -> str:
    """What a command prints; in a thread of its own, for the browser's has a loop."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(CliRunner().invoke, app, [str(a) for a in arguments]).result()
    assert result.exit_code == code, result.output
    return str(result.output)


def run_of(page: Path) -> dict[str, Any]:
    """The run that a page shows."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return dict(json.loads(found[1]))


def test_a_recorded_run_is_one_file_that_opens_from_a_disk(visit: Open, tmp_path: Path) -> None:
    config, file = tmp_path / "fraud.toml", tmp_path / "events.jsonl"
    config.write_text(CONFIG)
    file.write_text(
        "".join(json.dumps({"a": i % 3 - 1, "b": 0.5, "y": i % 2 == 0}) + "\n" for i in range(90))
    )
    recorded = tmp_path / "run.html"
    call("replay", config, file, "--output", os.devnull, "--page", recorded)
    recording = run_of(recorded)
    page = visit(recorded.as_uri())
    says(page, "Recorded on")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    (lane,) = recording["lanes"]
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.get_by_text("The worker has stopped").count() == 0
        for name, _, text in numbers(page):
            value = lane["values"].get(name.removeprefix("streampair_"))
            values = value.values() if isinstance(value, dict) else [value]
            assert (text == NOTHING and value is None) or any(agrees(text, v) for v in values), (name, text)
    assert requested == []


def test_a_short_file_has_a_past_and_a_record_says_nothing_of_now(visit: Open, tmp_path: Path) -> None:
    """It is read in less time than the page looks anew: its lines are those of its events all the same."""
    config, file, recorded = tmp_path / "fraud.toml", tmp_path / "events.jsonl", tmp_path / "run.html"
    config.write_text(CONFIG)
    rows = [json.dumps({"a": i % 3 - 1, "b": 0.1 * (i % 5), "y": i % 2 == 0}) for i in range(380)]
    file.write_text("\n".join(rows))
    call("replay", config, file, "--output", tmp_path / "scores.jsonl", "--page", recorded)
    past = run_of(recorded)["lanes"][0]["history"]
    assert past["events"] == [64.0, 128.0, 192.0, 256.0, 320.0, 380.0]
    assert len(set(past["regret_average"])) == 6  # no estimate is drawn where it was not made
    page = visit(f"{recorded.as_uri()}#privacy")
    says(page, "When this was recorded, 20 records could still be learned.")
    assert "At the present rate" not in page.locator("body").inner_text()
    page.get_by_role("tab", name="Operation").click()
    says(page, "Nothing runs here: this is what was recorded.")


def test_a_run_cannot_smuggle_a_script_into_its_page(visit: Open, tmp_path: Path) -> None:
    evil = "</script><script>document.title = 'evil'</script><img src=x onerror=alert(1)>"
    data = frame(Telemetry(), public=False)
    data["apps"] = {evil: {"state": "failed", "detail": evil, "next_step": ""}}
    file = tmp_path / "run.html"
    file.write_bytes(recorded_page(data))
    page = visit(file.as_uri())
    says(page, "has failed.")
    assert page.title() == "streampair"
    assert page.locator("img").count() == 0
