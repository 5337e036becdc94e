"""What the page is told, and how: the endpoints' own numbers, nothing raw in public, nothing from outside."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import itertools
import json
import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Address, Changes, MetricsConfig, load_config, parse_config
from streampair_connectors.observability.dashboard import frame, frame_json, page
from streampair_connectors.observability.metric_definitions import SERIES, STAGES, LaneLabels
from streampair_connectors.observability.metric_history import (
    POINTS,
    RELEASES,
    LetterCause,
    MetricHistory,
    Track,
)
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.privacy_card import lane_card
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.factory import build_logged_lane

from streampair.engine import ExternalState, LaneGauges, LaneId, Record
from streampair.privacy import NoiseKey

LABELS: LaneLabels = ("fraud", "events", "PairFTRL")
OPEN: LaneLabels = ("fraud", "events", "PairOGD")
PRIVATE = {"epsilon": 2.0, "delta": 1e-4, "horizon": 60, "warmup": 10}
BEGAN = 1_700_000_000_000  # milliseconds: the date of the first record
EVENTS = [{"a": i % 3 - 1, "b": 0.1 * (i % 5), "y": i % 2 == 0} for i in range(80)]


def lane(name: str = "PairFTRL", key: NoiseKey | None = None, **options: Any) -> Any:
    config = parse_config(
        {
            "app": "fraud",
            "input": {"topic": "events", "label": "y", "features": {"a": [-1, 1], "b": [-1, 1]}},
            "learner": {"class": f"streampair.auc.{name}", "options": options},
        }
    )
    identity = LaneId(config.app, "events", 0)
    made = build_logged_lane(config, json_decoder(config.input), identity, noise_key=key)
    made.read(b"")
    made.start(ExternalState(registers=False))
    return made


def feed(made: Any, values: list[bytes], start: int) -> LaneGauges:
    made.process([Record(start + i, value, None, BEGAN + start + i) for i, value in enumerate(values)])
    made.commit(snapshot=False)
    made.committed()
    gauges: LaneGauges = made.gauges(solve=True)
    return gauges


def encoded(events: list[Any]) -> list[bytes]:
    return [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]


def ticking() -> MetricHistory:
    """A past whose clock goes one second at each look."""
    seconds = itertools.count(1_000.0)
    return MetricHistory(lambda: next(seconds))


@pytest.fixture(scope="module")
def telemetry() -> Telemetry:
    metrics = Telemetry()
    metrics.history = ticking()
    metrics.health("fraud", "running")
    for labels, made in ((LABELS, lane(**PRIVATE)), (OPEN, lane("PairOGD"))):
        for start in range(0, 40, 20):
            gauges = feed(made, encoded([*EVENTS[start : start + 19], b"bad"]), start)
            metrics.publish(labels, gauges, 7, dict.fromkeys(STAGES, 0.25))
    metrics.committed("fraud", 0.01)
    return metrics


def scraped(telemetry: Telemetry, public: bool) -> dict[LaneLabels, dict[str, Any]]:
    """What an endpoint shows of each lane, read from its text."""
    found: dict[LaneLabels, dict[str, Any]] = {}
    lane_labels = {"app", "topic", "learner"}
    for family in text_string_to_metric_families(telemetry.render(public=public).decode()):
        for sample in family.samples:
            if not lane_labels <= sample.labels.keys() or family.type == "histogram":
                continue
            labels = tuple(sample.labels[name] for name in ("app", "topic", "learner"))
            name = sample.name.removeprefix("streampair_")
            row = found.setdefault(labels, {})  # type: ignore[arg-type]
            more = [value for key, value in sample.labels.items() if key not in lane_labels]
            if more:
                row.setdefault(name, {})[more[0]] = sample.value
            else:
                row[name] = sample.value
    return found


@pytest.mark.parametrize("public", [False, True], ids=["operator", "public"])
def test_the_numbers_are_those_of_the_endpoint(telemetry: Telemetry, public: bool) -> None:
    answer = json.loads(frame_json(telemetry, public=public)[1])
    by_lane = {(e["app"], e["topic"], e["learner"]): e["values"] for e in answer["lanes"]}
    assert by_lane == scraped(telemetry, public)
    assert by_lane.keys() == ({LABELS} if public else {LABELS, OPEN})


def test_the_public_page_has_nothing_raw(telemetry: Telemetry) -> None:
    shown_frame = frame(telemetry, public=True)
    public = {s.name.removeprefix("streampair_") for s in SERIES if s.public}
    assert shown_frame.keys() == {
        *("boot", "seq", "roster", "now", "public", "card", "version", "process", "series", "lanes"),
        *("terms", "limits", "approval"),
    }
    assert shown_frame["series"].keys() == public
    assert shown_frame["process"].keys() == {"build_info"}
    for entry in shown_frame["lanes"]:
        assert entry.keys() == {
            *("app", "topic", "learner", "since", "releases", "values", "report", "history"),
        }
        assert entry["values"].keys() <= public
        assert entry["history"].keys() - {"t"} <= public
        assert "privacy_mu_spent" in entry["history"]
    operator = frame(telemetry, public=False)
    assert "prequential_auc" in operator["lanes"][0]["history"]
    assert operator["apps"]["fraud"]["state"] == "running"
    for series in SERIES:
        words = operator["series"][series.name.removeprefix("streampair_")]
        assert words == {"title": series.title, "unit": series.unit, "help": series.help}


def view(events: list[Any], public: bool) -> list[bytes]:
    """What a port shows after every commit of a stream, under one key for the noise: the card too."""
    metrics, answers = Telemetry(), []
    made = lane(key=NoiseKey(bytes(range(32))), **PRIVATE)
    metrics.history, letters = ticking(), 0
    for start in range(0, len(events), 20):
        gauges = feed(made, encoded(events[start : start + 20]), start)
        metrics.publish(LABELS, gauges, len(events) - start, dict.fromkeys(STAGES, 0.0))
        if sum(gauges.dead_letters.values()) > letters:  # as a worker tells of them, once a commit
            letters += 1
            metrics.history.dead_letters(LABELS, {"1f09ac": LetterCause("decode", "not JSON", 1, start)})
        answers += [metrics.render(public=public), frame_json(metrics, public=public)[1]]
        answers.append(frame_json(metrics, public=public, after=start // 20)[1])
        answers.append(json.dumps(lane_card(LABELS, gauges, public=public)).encode())
    return answers


@pytest.mark.parametrize("other", [{"a": 1, "b": -0.9, "y": True}, {"a": 1, "b": 0.5}, b"\xff"])
@pytest.mark.parametrize("place", [0, 3, 25, 70])
def test_neighbouring_streams_look_the_same_to_the_public(place: int, other: Any) -> None:
    """Page, card and scrape, byte for byte; and the operator's, which may differ, do."""
    changed = [*EVENTS[:place], other, *EVENTS[place + 1 :]]
    assert view(EVENTS, public=True) == view(changed, public=True)
    assert view(EVENTS, public=False) != view(changed, public=False)


def test_why_a_guarantee_is_void_is_not_for_everybody(telemetry: Telemetry) -> None:
    metrics, gauges = Telemetry(), telemetry.gauges("fraud")[LABELS]
    void = gauges.privacy.replace(kind="void", guarantee="void (event 7)", notes=("Event 7.",))
    metrics.publish(LABELS, dataclasses.replace(gauges, privacy=void), 0)
    assert b"vent 7" in frame_json(metrics, public=False)[1]
    answer = frame_json(metrics, public=True)[1]
    assert b"void" in answer
    assert b"vent 7" not in answer


def test_since_when_is_for_everybody(telemetry: Telemetry) -> None:
    for public in (True, False):
        values = frame(telemetry, public=public)["lanes"][0]["values"]
        assert values["privacy_since_seconds"] == BEGAN / 1000
        assert "privacy_since_seconds{" in telemetry.render(public=public).decode()
    assert "privacy_since_seconds" not in frame(telemetry, public=False)["lanes"][1]["values"]
    card = lane_card(LABELS, telemetry.gauges("fraud")[LABELS], public=True)
    assert card["status"]["date of the first record"] == "2023-11-14T22:13:20+00:00"


def test_restores_fences_and_what_changed_in_the_file_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "fraud.toml"
    text = (
        'app = "fraud"\n[input]\ntopic = "events"\nlabel = "y"\nfeatures = ["a"]\n'
        '[learner]\nclass = "streampair.auc.PairOGD"\noptions = { l2 = 0.1 }\n[worker]\nbatch_size = 50\n'
    )
    file.write_text(text)
    metrics, config = Telemetry(), load_config(file)
    metrics.health("fraud", "running")
    metrics.configured("fraud", Changes(config))

    def counts_shown() -> tuple[dict[str, float], dict[str, Any]]:
        operator = frame(metrics, public=False)
        scrape = metrics.render(public=False).decode()
        counts = {}
        for name in ("restores_total", "fences_total", "configuration_changes"):
            (row,) = operator["process"][name]
            assert row["app"] == "fraud"
            assert f'streampair_{name}{{app="fraud"}} {row["value"]}' in scrape
            counts[name] = row["value"]
        everybody = {**frame(metrics, public=True), "terms": None, "limits": None}  # words that never change
        public = json.dumps(everybody) + metrics.render(public=True).decode()
        assert not re.search("restores|fences|opening|configuration", public)
        return counts, operator["apps"]["fraud"]["configuration"]

    none = {"restores_total": 0.0, "fences_total": 0.0, "configuration_changes": 0.0}
    assert counts_shown() == (none, {"keys": [], "refused": ""})
    metrics.restored("fraud")
    metrics.fenced("fraud")
    metrics.fenced("fraud")
    file.write_text(text.replace("50", "60") + '[metrics]\nlinger = "9s"\n')
    keys = ["metrics.linger", "worker.batch_size"]
    counts = {"restores_total": 1.0, "fences_total": 2.0, "configuration_changes": 2.0}
    assert counts_shown() == (counts, {"keys": keys, "refused": ""})
    file.write_text(text.replace("0.1", "0.25"))
    _, changes = counts_shown()
    assert changes["keys"] == ["learner.options.l2"]
    assert "learner" in changes["refused"]
    file.write_text("password = 'hunter2'")
    counts, changes = counts_shown()
    assert counts["configuration_changes"] == 1.0
    assert "hunter2" not in json.dumps(changes)
    assert "no configuration" in changes["refused"]
    file.unlink()
    assert counts_shown()[1]["keys"] == ["the file"]
    file.write_text(text)
    assert counts_shown()[1] == {"keys": [], "refused": ""}


def test_what_changed_since(telemetry: Telemetry) -> None:
    seq = frame(telemetry, public=False)["seq"]
    later = frame(telemetry, public=False, after=seq)
    assert later["lanes"] == []
    assert "series" not in later  # titles are sent once
    telemetry.lag(OPEN, 3)
    (changed,) = frame(telemetry, public=False, after=seq)["lanes"]
    assert (changed["learner"], changed["values"]["lag"]) == ("PairOGD", 3)
    assert "report" not in changed
    assert {len(column) for column in changed["history"].values()} == {1}


def test_a_lane_that_goes_leaves_no_past() -> None:
    metrics = Telemetry()
    metrics.publish(OPEN, feed(lane("PairOGD"), encoded(EVENTS[:5]), 0), 0)
    metrics.history.dead_letters(OPEN, {"1f09ac": LetterCause("decode", "the event is not JSON", 1, 4)})
    metrics.history.dead_letters(OPEN, {"1f09ac": LetterCause("decode", "the event is not JSON", 2, 9)})
    (found,) = frame(metrics, public=False)["lanes"]
    assert found["dead_letter_offsets"] == {"decode": 9}
    assert found["dead_letter_causes"] == [["1f09ac", "decode", "the event is not JSON", 3, 9]]
    roster = frame(metrics, public=False)["roster"]
    metrics.withdraw(OPEN)
    assert metrics.history.tracks == metrics.history.letters == metrics.history.causes == {}
    assert frame(metrics, public=False)["roster"] == roster + 1


def test_the_past_is_bounded_and_keeps_its_ends() -> None:
    track = Track(since=0.0)
    for second in range(50 * POINTS):
        track.add(float(second), {"lag": float(second), "late": None if second < 3_000 else 1.0})
        assert len(track.times) <= POINTS
    assert track.points(["lag"], POINTS)["t"][0] == 0.0
    assert track.times[-1] == 50 * POINTS - 1
    assert {len(c) for c in track.columns.values()} == {len(track.times)}
    some = track.points(["lag", "late", "unknown"], 10)
    assert some.keys() == {"t", "lag", "late"}
    assert len(some["t"]) <= 10
    assert (some["lag"][-1], some["late"][0]) == (50 * POINTS - 1, None)
    assert all(math.isclose(t, lag) for t, lag in zip(some["t"], some["lag"], strict=True) if lag is not None)


def test_an_estimate_is_drawn_where_it_was_made_and_not_lost(telemetry: Telemetry) -> None:
    """One that is told again at later commits is not of their events; points that go leave theirs behind."""
    metrics, gauges = Telemetry(), telemetry.gauges("fraud")[OPEN]
    metrics.history = ticking()
    assert gauges.regret is not None
    for commit in range(3 * POINTS):
        if commit % 50 == 7:
            gauges = dataclasses.replace(
                gauges, regret=dataclasses.replace(gauges.regret, average=commit / 8)
            )
        metrics.publish(OPEN, gauges, 0)
    track = metrics.history.tracks[OPEN]
    for most in (POINTS, POINTS // 4):
        found = [v for v in track.points(["regret_average"], most)["regret_average"] if v is not None]
        assert found[1:] == [commit / 8 for commit in range(7, 3 * POINTS, 50)]
    assert track.points(["regret_average"], 1)["regret_average"] == [None]


def test_the_dates_of_releases_stay_when_points_go(telemetry: Telemetry) -> None:
    metrics, gauges = Telemetry(), telemetry.gauges("fraud")[LABELS]
    seconds = itertools.count(1_000)
    metrics.history = MetricHistory(lambda: float(next(seconds)))
    dates = {}
    for commit in range(5 * POINTS):
        count = commit // 100  # twelve dates, of which the first is none
        report = gauges.privacy.replace(releases=count, mu_spent=count / 16, horizon_left=7)
        metrics.publish(LABELS, dataclasses.replace(gauges, privacy=report), 0)
        dates.setdefault(count, metrics.history.tracks[LABELS].times[-1])
    expected = [[dates[count], count, count / 16, 7] for count in range(12 - RELEASES, 12)]
    for public in (True, False):
        assert frame(metrics, public=public)["lanes"][0]["releases"] == expected
    metrics.publish(OPEN, telemetry.gauges("fraud")[OPEN], 0)
    assert frame(metrics, public=False)["lanes"][1]["releases"] == []


def test_what_the_state_dates_is_for_operators_and_what_a_worker_saw_for_everybody() -> None:
    """When a process got so far is no function of the plan: from before somebody looked nobody is told it."""
    metrics, released = Telemetry(), ((BEGAN, 1, 0.25, 59, 1), (BEGAN + 5000, 2, 0.5, 58, 2))
    metrics.history = ticking()
    gauges = dataclasses.replace(feed(lane(**PRIVATE), encoded(EVENTS[:20]), 0), release_dates=released)
    metrics.publish(LABELS, dataclasses.replace(gauges, fork_dates=((BEGAN + 9000, 1),)), 0)
    operators, everybody = (frame(metrics, public=public)["lanes"][0] for public in (False, True))
    seconds = BEGAN / 1000
    assert operators["releases"] == [[seconds, 1, 0.25, 59, 1], [seconds + 5, 2, 0.5, 58, 2]]
    assert operators["fork_dates"] == [[seconds + 9, 1]]
    assert "fork_dates" not in everybody
    assert [row[0] for row in everybody["releases"]] == [metrics.history.tracks[LABELS].since]
    assert str(BEGAN // 1000) not in json.dumps({**everybody, "values": 0})


def test_the_data_of_a_hundred_lanes_are_small(telemetry: Telemetry) -> None:
    metrics = Telemetry()
    gauges = telemetry.gauges("fraud")[LABELS]
    for number in range(100):
        track = metrics.history.tracks
        metrics.publish(("fraud", f"events-{number}", "PairFTRL"), gauges, 0, dict.fromkeys(STAGES, 1.0))
        one = next(iter(track.values()))
        for second in range(POINTS * 2):
            track["fraud", f"events-{number}", "PairFTRL"].add(
                one.since + second, dict.fromkeys(one.columns, second * 0.1234567)
            )
    assert len(gzip.compress(frame_json(metrics, public=False)[1])) < 600_000


def test_the_files_of_the_page_are_found_and_small() -> None:
    folder = resources.files("streampair_connectors.observability.dashboard") / "assets"
    names = {file.name for file in folder.iterdir()}
    assert names == {"page.html", *page.ASSETS}
    texts = {name: page.asset(name).decode() for name in names}
    assert sum(len(gzip.compress(text.encode())) for text in texts.values()) < 300_000
    assert len(texts["chart.js"].splitlines()) < 400
    for text in texts.values():
        assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, Any, bytes]:
    async with session.get(url) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_the_page_is_served_and_nothing_else_may_be_loaded(telemetry: Telemetry) -> None:
    server = MetricsServer(
        telemetry, MetricsConfig(address=Address("127.0.0.1", 0), public_address=Address("127.0.0.1", 0))
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            for url, public in ((server.url, False), (str(server.public_url), True)):
                for path in ("/", "/page/page.js", "/page/chart.js", "/page/page.css", "/page/data"):
                    status, headers, body = await get(session, url + path)
                    assert status == 200
                    assert body
                    assert "default-src 'none'" in headers["Content-Security-Policy"]
                    assert "unsafe" not in headers["Content-Security-Policy"]
                    assert headers["X-Content-Type-Options"] == "nosniff"
                for path in ("/page/page.py", "/page/page.html", "/page/..%2Fpage.py"):
                    assert (await get(session, url + path))[0] == 404
                page_data = json.loads((await get(session, f"{url}/page/data"))[2])
                assert page_data["public"] is public
                assert (b"prequential_auc" in (await get(session, f"{url}/page/data"))[2]) is not public
    finally:
        await server.stop()


async def messages(answer: aiohttp.ClientResponse) -> Any:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def test_changes_are_streamed_to_so_many_readers_and_a_stop_waits_for_none(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "STREAMS", 2)
    server = MetricsServer(telemetry, MetricsConfig(address=Address("127.0.0.1", 0)))
    await server.start()
    url = f"{server.url}/page/events"
    async with aiohttp.ClientSession(read_bufsize=2**20) as session:
        seq = frame(telemetry, public=False)["seq"]
        async with session.get(f"{url}?after={seq}") as one, session.get(f"{url}?after=nonsense") as two:
            assert one.headers["Content-Type"] == "text/event-stream"
            assert (await get(session, url))[0] == 503
            first = messages(one)
            beat = await anext(first)  # nothing has changed: it says that it lives
            assert (beat["seq"], beat["lanes"]) == (seq, [])
            telemetry.lag(OPEN, 41)
            async for message in first:
                if message["lanes"]:
                    break
            assert message["lanes"][0]["values"]["lag"] == 41
            assert len((await anext(messages(two)))["lanes"]) == 2
            await asyncio.wait_for(server.stop(), 20)  # with two that still read
