"""The privacy card: what it says is what the accountant says, on both ports, on paper and for machines."""

from __future__ import annotations

import asyncio
import html
import json
import re
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.applications import write_key
from harness.lane_on_disk import LaneOnDisk
from harness.support import in_one_case
from streampair_connectors.cli.app import app
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Address, CardConfig, MetricsConfig, load_config
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.privacy_card import card_html, card_lines, card_of, lane_card
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.stores.spending import read_stored
from streampair_connectors.worker.factory import build_lane
from typer.testing import CliRunner

from streampair import auc, history, metric, models, privacy, ranking
from streampair.engine import LaneGauges, Record
from streampair.errors import ConfigError

TOML = """
app = "fraud"
[input]
topic = "payments"
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.PairFTRL"
options = {epsilon = 24.0, delta = 1e-4, horizon = 200, warmup = 20, auc_share = 0.5}
[store]
directory = "state"
"""
LABELS = ("fraud", "payments", "PairFTRL")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fraud.toml"
    path.write_text(TOML)
    return path


def lane(config: Path) -> Any:
    settings = load_config(config)
    return build_lane(settings, json_decoder(settings.input))


def records(count: int) -> list[Record]:
    return [
        Record(i, json.dumps({"a": i % 7 / 7, "b": 0.1 * (i % 3), "y": i % 3 == 0}).encode())
        for i in range(count)
    ]


@pytest.fixture
def gauges(config: Path) -> LaneGauges:
    running = lane(config)
    running.process(records(200))
    running.snapshot()
    gauges_now: LaneGauges = running.gauges()
    return gauges_now


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["budget", "card", *map(str, arguments)])


def test_the_numbers_are_the_accountants(gauges: LaneGauges) -> None:
    report, card = gauges.privacy, lane_card(LABELS, gauges, public=False)
    loss = card["privacy_loss"]
    assert (loss["epsilon"], loss["delta"], loss["mu"]) == (24.0, 1e-4, report.mu_budget)
    assert (loss["epsilon spent"], loss["mu spent"]) == (report.epsilon_spent, report.mu_spent)
    assert card["accounting"]["kinds of release"] == [dict(line) for line in report.card]
    assert sum(line["mu2"] for line in report.card if "AUC" in line["name"]) == pytest.approx(
        card["utility"]["mu^2"]
    )
    assert card["utility"]["private AUC"] == report.auc["value"]
    assert card["status"]["guarantee"] == "holds"
    assert json.loads(json.dumps(card)) == card


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_has_no_script_and_lets_nothing_in(gauges: LaneGauges) -> None:
    """Names are text, whatever they are; light and dark, and for paper."""
    nasty = "<script>alert(1)</script>"
    page = card_html(lane_card((nasty, nasty, nasty), gauges, public=True))
    found = Tags()
    found.feed(page)
    assert "script" not in found.tags
    assert found.outside == []
    assert nasty in found.words
    assert "http" not in page.replace("http-equiv", "")
    for wanted in ("@media print", "color-scheme: light dark", "@media (max-width"):
        assert wanted in page
    assert f"{gauges.privacy.epsilon_spent:.6g}" in page


APPROVAL = {
    "approved by": "Ada Example, privacy officer",
    "date": "2026-11-02",
    "approved": "epsilon 1 at delta 1e-06",
    "reason for epsilon and delta": "one record protected; <5 % for an attacker",
    "next review": "2027-11-02",
}
APPROVED = CardConfig(
    approved_by=APPROVAL["approved by"],
    approved_on=date.fromisoformat(APPROVAL["date"]),
    approved_epsilon=1.0,
    approved_delta=1e-6,
    reason=APPROVAL["reason for epsilon and delta"],
    review_by=date.fromisoformat(APPROVAL["next review"]),
)


def test_a_printed_card_has_lines_to_sign() -> None:
    page = card_html(card_of(auc.PairFTRL().privacy, deployment={}))
    approval = page.partition('<section class="approval unsigned">')[2].partition("</section>")[0]
    lines = re.findall(r'<th scope="row">([^<]*)</th><td></td>', approval)
    assert lines == [*APPROVAL, "signature"]
    screen, _, paper = page.partition("</style>")[0].partition("@media print")
    assert "<p>not declared: set card.approved_by" in approval
    assert ".unsigned table, .signature { display: none; }" in screen
    assert ".unsigned p { display: none; } .unsigned table { display: table; }" in paper


def test_a_card_explains_the_words_of_its_releases(gauges: Any) -> None:
    accounting = lane_card(LABELS, gauges, public=False)["accounting"]
    explained = {word for words in accounting["words of these lines"] for word in words.split(", ")}
    used = {name for line in accounting["kinds of release"] for name in line}
    assert used - explained == {"name", "lemma", "cipher"}
    assert explained <= used


def test_a_card_has_the_approval_of_the_configuration() -> None:
    """On the screen and on paper, where a line is left for the signature."""
    card = card_of(auc.PairFTRL().privacy, deployment={}, curator=APPROVED)
    assert card["approval"] == APPROVAL
    approval = card_html(card).partition('<section class="approval">')[2].partition("</section>")[0]
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', approval)
    assert {name: html.unescape(value) for name, value in rows} == {**APPROVAL, "signature": ""}
    lines = "\n".join(card_lines(card))
    assert "\nApproval\n  approved by: Ada Example, privacy officer\n  date: 2026-11-02\n" in lines
    nobody = "\n".join(card_lines(card_of(auc.PairFTRL().privacy, deployment={})))
    assert "\nApproval\n  not declared: set card.approved_by and the other keys of an approval" in nobody


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            'approved_by = "Ada"',
            "card: an approval is not complete without approved_on and approved_epsilon and",
        ),
        ("review_by = 2027-01-31", "card: an approval is not complete without approved_by and"),
        ('approved_on = "2026-11-02"', "card.approved_on: that is no day; write it without quotes"),
        ("approved_on = 2026-11-02T08:00:00Z", "card.approved_on: that is no day; write it without quotes"),
        ("approved_epsilon = 0", "card.approved_epsilon: input should be greater than 0"),
        ('reason = ""', "card.reason: string should have at least 1 character"),
        (
            'approved_by = "Ada"\nreason = "few"\napproved_on = 2026-11-02\nreview_by = 2026-11-02\n'
            "approved_epsilon = 1.0\napproved_delta = 1e-6",
            "card: review_by, 2026-11-02, must be a day after approved_on, 2026-11-02",
        ),
    ],
)
def test_what_is_no_approval(config: Path, more: str, problem: str) -> None:
    config.write_text(f"{TOML}[card]\n{more}\n")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_config(config)


def test_check_warns_of_a_private_lane_without_an_approval(config: Path) -> None:
    """And of a weaker promise than was approved, and when the review is due: the day itself is in time."""

    def says(*settings: str) -> tuple[str, bool]:
        options = [f"--set=card.{setting}" for setting in settings]
        result = CliRunner().invoke(app, ["check", str(config), "--json", *options])
        (finding,) = [f for f in json.loads(result.stdout)["findings"] if f["check"] == "card"]
        assert finding["ok"]
        return finding["text"], finding.get("warning", False)

    today = datetime.now(UTC).date()
    what = "approved_epsilon=24.0", "approved_delta=1e-4"
    who = "approved_by=Ada Example", "reason=a record is a click", *what
    text, warns = says()
    assert warns
    assert text.startswith("nobody has approved epsilon and delta")
    before, due = today - timedelta(days=400), today - timedelta(days=1)
    text, warns = says(*who, f"approved_on={before}", f"review_by={due}")
    assert warns
    approved = f"epsilon 24 at delta 0.0001, approved on {before} by Ada Example"
    assert text.startswith(f"{approved}, and the review was due by {due}")
    text, warns = says(*who, f"approved_on={before}", f"review_by={today + timedelta(days=1)}")
    assert (text, warns) == (
        f"{approved}, to be reviewed by {today + timedelta(days=1)}",
        False,
    )
    days = f"approved_on={before}", f"review_by={today + timedelta(days=1)}"
    for weaker in ("approved_epsilon=23.99", "approved_delta=0.99e-4"):
        text, warns = says(*who, *days, weaker)
        assert warns
        assert "the configuration promises less: epsilon 24 at delta 0.0001" in text
    assert not says(*who, *days, "approved_epsilon=25.0", "approved_delta=1e-3")[1]
    later = today + timedelta(days=3)
    text, warns = says(*who, f"approved_on={later}", f"review_by={later + timedelta(days=1)}")
    assert warns
    assert "correct card.approved_on" in text
    config.write_text(re.sub(r"options = .*", "", TOML.replace("PairFTRL", "PairOGD")))
    output = CliRunner().invoke(app, ["check", str(config), "--json"]).stdout
    assert not [f for f in json.loads(output)["findings"] if f["check"] == "card"]


def test_why_a_guarantee_is_void_is_not_for_everybody(gauges: LaneGauges) -> None:
    void = replace(gauges, privacy=gauges.privacy.replace(kind="void", guarantee="void (event 7 was bad)"))
    assert "event 7" in json.dumps(lane_card(LABELS, void, public=False))
    public_card = lane_card(LABELS, void, public=True)
    assert "event 7" not in json.dumps(public_card)
    assert "No guarantee holds" in card_html(public_card)


def test_it_is_served_on_both_ports(gauges: LaneGauges) -> None:
    telemetry = Telemetry()
    telemetry.health("fraud", "running")
    telemetry.publish(LABELS, gauges, 0)
    telemetry.publish(("fraud", "payments", "PairOGD"), replace(gauges, privacy=None), 0)

    def fetch(url: str) -> tuple[int, str, Any]:
        try:
            with urllib.request.urlopen(url) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    async def body() -> None:
        server = MetricsServer(
            telemetry, MetricsConfig(address=Address("127.0.0.1", 0), public_address=Address("127.0.0.1", 0))
        )
        await server.start()
        try:
            for url, public in ((server.url, False), (server.public_url, True)):
                wanted = lane_card(LABELS, gauges, public=public)
                query = "app=fraud&topic=payments&learner=PairFTRL"
                status, text, headers = await asyncio.to_thread(fetch, f"{url}/card?{query}")
                assert (status, text) == (200, card_html(wanted))
                assert headers["Content-Security-Policy"].startswith("default-src 'none'")
                for parameters in (query, "app=fraud", ""):
                    status, text, _ = await asyncio.to_thread(fetch, f"{url}/card.json?{parameters}")
                    assert (status, json.loads(text)) == (200, wanted)
                for parameters in ("topic=other", "app=other", "learner=x"):
                    assert (await asyncio.to_thread(fetch, f"{url}/card.json?{parameters}"))[0] == 404
        finally:
            await server.stop()

    asyncio.run(body())


def test_the_command_before_and_after_a_run(config: Path, tmp_path: Path) -> None:
    before = run(config, "--json")
    assert before.exit_code == 0, before.output
    card = json.loads(before.stdout)
    assert card["privacy_loss"]["epsilon spent"] == 0.0
    assert card["status"]["lanes"].startswith("none has begun")
    stored_lane = LaneOnDisk(config, records(120))
    stored_lane.take(120)
    stored_lane.commit()
    stored_lane.close()
    page = tmp_path / "card.html"
    after = run(config, "--output", page, "--json")
    assert after.exit_code == 0, after.output
    card = json.loads(after.stdout)
    assert (
        card["privacy_loss"]["epsilon spent"]
        == asyncio.run(read_stored(load_config(config))).epsilon_spent
        > 0.0
    )
    assert card["status"]["lanes"][0]["topic"] == "payments"
    assert page.read_text() == card_html(card)
    text = run(config)
    assert text.stdout.splitlines() == "\n".join(card_lines(card)).splitlines()
    assert re.search(r"epsilon spent: \d", text.stdout)


def test_an_audit_is_on_it_if_it_is_of_this_learner(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    words = ["audit", str(config), "--runs", "8", "--slots", "8", "--output"]
    audited = CliRunner().invoke(app, [*words, str(file)])
    assert "\nverdict: " in audited.stdout
    written = file.read_text()
    assert json.loads(CliRunner().invoke(app, [*words, "-"]).stdout).keys() == json.loads(written).keys()
    card = run(config, "--audit", file, "--json")
    assert card.exit_code == 0, card.output
    parts = json.loads(card.stdout)["audit"]["parts"]
    assert [part["part"] for part in parts] == ["warm-up", "learning", "auc"]
    file.write_text(written.replace('"epsilon": 24.0', '"epsilon": 1.0'))
    assert run(config, "--audit", file).exit_code == 2
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        assert "the audit cannot be read" in run(config, "--audit", file).output
    assert "cannot be read" in run(config, "--audit", tmp_path / "missing").output


@pytest.mark.parametrize(
    ("kafka", "why"),
    [
        ("", "the configuration has no [kafka] table"),
        ('[kafka]\nbootstrap_servers = "127.0.0.1:1"\n', "no Kafka broker answers at 127.0.0.1:1"),
    ],
)
def test_without_a_broker_the_card_has_the_promise(config: Path, kafka: str, why: str) -> None:
    """It says what it has not read, and why; never that the guarantee holds."""
    text, _, _ = TOML.partition("[store]")
    config.write_text(f'{text}noise_key_file = "noise.key"\n{kafka}')
    write_key(config.with_name("noise.key"), "4f" * 32)
    found = run(config)
    assert found.exit_code == 0, found.output
    first = found.stdout.splitlines()[0]
    assert first.startswith(
        "The configuration promises differential privacy: for the content of one record ("
    )
    assert first.endswith(f", epsilon at most 24 at delta 0.0001; what is spent was not read: {why}.")
    assert found.stderr == ""
    for line in ("mechanism: Mechanism: ", "epsilon spent: not known", "several records of one person"):
        assert line in found.stdout
    card = json.loads(run(config, "--json").stdout)
    assert card["privacy_loss"]["epsilon"] == 24.0
    assert (card["privacy_loss"]["epsilon spent"], card["privacy_loss"]["mu spent"]) == (None, None)
    assert card["status"]["guarantee"] == "promised"
    assert "holds" not in (card["status"]["guarantee"], card["status"]["statement"])
    file = config.with_name("card.html")
    assert run(config, "--output", file).exit_code == 0
    assert f"what is spent was not read: {why}" in file.read_text()


def test_without_a_broker_the_card_promises_nothing_that_the_configuration_voids(config: Path) -> None:
    text, _, _ = TOML.partition("[store]")
    config.write_text(text.replace("warmup = 20", "warmup = 20, seed = 3"))
    printed = run(config).stdout
    assert printed.startswith("No guarantee holds: ")
    assert "what is spent was not read" in printed.splitlines()[0]
    assert "promise" not in printed.splitlines()[0]
    status = json.loads(run(config, "--json").stdout)["status"]
    assert (status["guarantee"], status["statement"]) == ("void", "void (fixed seed)")


@pytest.mark.parametrize("public", [True, False])
def test_without_a_broker_the_card_says_what_a_start_leaves_open(config: Path, public: bool) -> None:
    """A model that is declared public, or that of a table of which something is assumed."""
    rng = np.random.default_rng(0)
    table = {"id": np.arange(500), "a": rng.uniform(-1, 1, 500), "b": rng.uniform(-1, 1, 500)}
    table["y"] = table["a"] > 0.2
    learner = auc.PairFTRL(1.0, 1e-4, bounds={"a": (-1, 1), "b": (-1, 1)})
    job = history.Job(learner, label="y", rows=500, row_id="id", salt="salt")
    model = history.fit(job, [table], bytes(32), account=config.with_name("account"))
    models.save(model, config.with_name("start.json"))
    text, _, _ = TOML.partition("[store]")
    config.write_text(f'{text}start = "start.json"\npublic_start = {str(public).lower()}\n')
    status = json.loads(run(config, "--json").stdout)["status"]
    assert status["guarantee"] == "promised"
    said = "that is declared public" if public else "whose rows are as streampair.history.ASSUMED says"
    assert said in status["statement"]


def test_a_learner_that_is_not_private_has_none(config: Path) -> None:
    config.write_text(
        re.sub(r"options = .*", "", TOML.replace("PairFTRL", "PairOGD")),
    )
    found = run(config)
    assert found.exit_code == 2
    assert "PairOGD is not private" in found.output


def test_the_card_names_horizon_readers_curator_and_what_would_void_it() -> None:
    curator = CardConfig(curator="Risk, risk@example.com", intended_use="card fraud")
    model = auc.PairFTRL(horizon=1250, features=["a"])
    card = card_of(model.privacy, deployment={}, curator=curator)
    assert card["deployment"]["data curator"] == "Risk, risk@example.com"
    assert card["deployment"]["intended use"] == "card fraud"
    assert "a declared horizon of 1,250 records" in card["flavor"]["bound"]
    assert any("fixed seed" in line for line in card["status"]["what would void it"])
    assert "may see the features" in card["model"]["who may see scores"]
    bare = card_of(model.privacy, deployment={})["deployment"]
    assert bare["data curator"] == "not declared: set card.curator in the configuration"
    assert bare["intended use"] == "not declared: set card.intended_use in the configuration"


@in_one_case(("entity", "covered"), [(None, False), (privacy.EntityLimit(20), True)])
def test_the_card_of_an_entity_covers_all_of_its_records(entity: Any, covered: bool) -> None:
    report = auc.PairFTRL(2.0, 1e-5, 1000, features=["a"], entity=entity).privacy
    open_ = card_of(report, deployment={})["flavor"]["unprotected quantities"]
    other = "other learners on the same records: their spends add up (mu^2 adds up)"
    several = f"several records of one person, as further attempts after a stop, and {other}"
    whose = "records of others that depend on it otherwise than by releases of this learner, "
    assert open_[3] == f"{whose}as where a model without privacy acts"
    assert open_[4] == (other if covered else several)
    assert f"schema; {open_[3]}; {open_[4]}." in str(report)


@pytest.mark.parametrize(
    ("learner", "product"),
    [
        (auc.PairFTRL(), "weights of a linear scorer"),
        (auc.OnPairStrC(1.0, 1e-5, 100, l2=0.1), "weights of a linear scorer"),
        (ranking.PairFTRL(), "weights of a linear scorer"),
        (metric.PairFTRL(), "weights of a metric"),
        (
            auc.PrivateForest(1.0, 1e-5, 20_000),
            "weights of a linear scorer and of the leaves of random trees",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_card_names_the_model_that_is_released(learner: Any, product: str) -> None:
    card = card_of(learner.privacy, deployment={})
    assert card["deployment"]["data product"] == f"{product}, released again and again while it learns"


def test_what_is_not_known_is_said() -> None:
    card = card_of(auc.PairFTRL().privacy, deployment={})
    assert card["flavor"]["data domain"] == ["known once the features are known"]
    assert card["utility"] == "no private AUC is released"
    assert card["status"]["records that can still be learned"] == "no end"


def test_the_audit_that_the_configuration_names_is_served(config: Path, gauges: LaneGauges) -> None:
    """Read at each look; what cannot be used is said to be so, without the path."""
    file = config.parent / "audit.json"
    config.write_text(TOML + '[metrics]\naudit_file = "audit.json"\n')
    named = load_config(config).metrics.audit_file
    assert named == file

    def card() -> Any:
        return lane_card(LABELS, gauges, public=True, audit=named)["audit"]

    assert "cannot be read" in card()
    assert str(config.parent) not in card()
    assert run(config).exit_code == 2
    checked = CliRunner().invoke(app, ["check", str(config)])
    assert "metrics.audit_file" in checked.output
    audited = CliRunner().invoke(app, ["audit", str(config), "--runs", "8", "--slots", "8", "--json"])
    file.write_text(audited.stdout)
    audited_card = json.loads(audited.stdout)
    assert card()["verdict"] == audited_card["verdict"]
    assert card()["date"] == audited_card["date"] == datetime.now(UTC).date().isoformat()
    assert json.loads(run(config, "--json").stdout)["audit"] == card()
    assert (
        f"ok   metrics.audit_file: {audited_card['date']}"
        in CliRunner().invoke(app, ["check", str(config)]).output
    )
    file.write_text(audited.stdout.replace("PairFTRL", "OnPairC"))
    assert "the audit is of streampair.auc.OnPairC" in card() or "the audit is of OnPairC" in card()


LATE = (
    TOML.replace('label = "y"\n', "")
    + """
[label_input]
topic = "chargebacks"
id = "key"
label = "y"
after = "30d"
absent = false
"""
)


EXPLORES = """stopped = "gone"
[output]
alert_above = 1.5
explore = 0.02
explore_key_file = "explore.key"
"""


def test_every_card_says_that_labels_come_later(config: Path) -> None:
    """How long learning lags, what an event without a label is, and which id must name one event."""
    for text, meaning in (
        (LATE, "learned with label False."),
        (LATE.replace("absent = false\n", ""), "a null record."),
        (LATE + 'stopped = "no"', "learned with label False"),
        (LATE + EXPLORES, "learned with label False, one with the label 'gone' is a null record."),
    ):
        config.write_text(text)
        if EXPLORES in text:  # which refuses a learner that releases its AUC
            config.write_text(text.replace(", auc_share = 0.5", ""))
            write_key(config.with_name("explore.key"), "5a" * 32)
        of_card = CliRunner().invoke(app, ["budget", "card", str(config), "--json"]).output
        if 'stopped = "no"' in text:
            assert "the labels of events whose outcome is known are true and false" in of_card
            continue
        for notes in (" ".join(json.loads(of_card)["notes"]), " ".join(lane(config).privacy.notes)):
            assert "an event is learned 30 days after it came" in notes
            assert f"An event without a label is {meaning}" in notes
            assert ("score is at least 1.5, a share of 0.02 is marked" in notes) == (EXPLORES in text)
            assert "in the key of both, is not protected, and must name one event" in notes
    config.write_text(TOML)
    assert "labels" not in str(lane(config).privacy.notes).lower()


def test_a_plan_says_how_much_later_learning_is(config: Path) -> None:
    config.write_text(LATE)
    command = ["budget", "plan", "--n", "2000", "--config", str(config)]
    output = CliRunner().invoke(app, command, env={"COLUMNS": "400"}).output
    assert "each record is learned 30 days after it came" in output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert found["learning_lag_seconds"] == 30 * 86_400 + 60
    config.write_text(TOML)
    assert "learned" not in CliRunner().invoke(app, command, env={"COLUMNS": "400"}).output
    assert "learning_lag_seconds" not in json.loads(CliRunner().invoke(app, [*command, "--json"]).output)


def test_a_card_lists_the_features_and_their_bounds(config: Path) -> None:
    features = '{ amount = [0, 1000.5], country = ["BE", "NL"] }'
    for line, wanted in (
        (f"features = {features}", {"amount": "0 to 1000.5", "country": "BE, NL"}),
        ('features = ["a", "b"]', dict.fromkeys("ab", "no bounds are declared: from -1 to 1")),
        ("", "not declared: those of the first record"),
    ):
        config.write_text(TOML.replace('features = ["a", "b"]', line))
        card = json.loads(run(config, "--json").stdout)
        assert card["deployment"]["features"] == wanted
