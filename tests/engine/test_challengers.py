"""Challengers learn what they would learn alone, cost the champion nothing, and are promoted exactly once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from river import linear_model

from streampair import auc
from streampair.engine import (
    Challenger,
    ExternalState,
    Lane,
    LearnerIdentity,
    LoggedLane,
    Record,
    learners_of,
)
from streampair.engine.challengers import NOT_PRIVATE, REMOVED
from streampair.engine.recovery import OVERRIDDEN
from streampair.engine.testing import Died, Driver, decode_json
from streampair.errors import ConfigError, PrivacyError, SnapshotError
from streampair.privacy import EntityLimit, NoiseKey
from streampair.privacy.accounting import promised_epsilon

WHERE: dict[str, Any] = {"app": "test", "topic": "events", "partition": 0}
KEY = NoiseKey(bytes(range(32)))
OPTIONS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "horizon": 400, "warmup": 10, "features": ["a"]}
ROWS = [
    json.dumps({"x": {"a": (37 * i % 100) / 100}, "y": (37 * i + 11 * (i % 5)) % 100 > 55}).encode()
    for i in range(120)
]
ROWS[20:22] = [b"bad", b'{"x": {"a": 0.5}}']
RECORDS = [Record(i, row, None, 1000 + i) for i, row in enumerate(ROWS)]
UP_TO_DATE = ExternalState(end=len(RECORDS), registers=False)

Makers = dict[str, Callable[[], Any]]


def ftrl(**options: Any) -> Any:
    return auc.PairFTRL(**{**OPTIONS, "noise_key": KEY, **options})


PUBLIC: Makers = {
    "": lambda: auc.PairOGD(seed=1),
    "b": lambda: auc.PairOGD(learning_rate=0.01, seed=2),
    "c": lambda: auc.Forest(trees=5, seed=3),
}
PRIVATE: Makers = {"": ftrl, "b": lambda: ftrl(epsilon=0.5), "c": lambda: auc.PairOGD(seed=3)}


class Several(Driver):
    """A driver of a lane with several learners, by name; that of the empty name is the first champion."""

    def __init__(self, makers: Makers, tokens: Makers | None = None, **options: Any) -> None:
        self.makers = dict(makers)
        self.tokens = {name: f"token of {name}" for name in makers}
        super().__init__(lambda: None, **{"snapshot_every": 3, **options})

    def new_lane(self) -> LoggedLane:
        champion, tokens = learners_of(self.store.read())
        learners = {
            name: Challenger(
                name,
                make(),
                f"settings of {name}",
                tokens.get(name, self.tokens.get(name, "")) if name else "",
                title=name or "first",
            )
            for name, make in self.makers.items()
        }
        chosen = learners.pop(champion)
        return LoggedLane(
            chosen.learner,
            decode_json,
            **self._options,
            name=chosen.title,
            member=LearnerIdentity(chosen.name, chosen.fingerprint, chosen.token),
            challengers=tuple(learners.values()),
        )

    def promote(self, name: str, void: str = "") -> None:
        """As `streampair promote` does."""
        lane = self.new_lane()
        wanted = lane.read(self.store.read())
        self.append(lane.promote(name, self.found(wanted), f"today: {name}", void))

    def take_to(self, end: int, batch: int = 10) -> None:
        """Let the topic have this many records, and take them."""
        self.topic = RECORDS[:end]
        self.catch_up(batch)

    def restart(self) -> None:
        self.commit(clean=True)
        self.start()

    def table(self) -> dict[str, list[Any]]:
        """The scores that learners are compared on, and the labels."""
        state = self.lane.challengers.table.to_state()
        columns = {"labels": state["labels"], **state["scores"]}
        return {name: column.tolist() for name, column in columns.items()}


def alone(make: Callable[[], Any], end: int = len(RECORDS), member: LearnerIdentity | None = None) -> Lane:
    made = Lane(
        make(),
        decode_json,
        **WHERE,
        on_bad="skip",
        breaker=None,
        **({} if member is None else {"member": member}),
    )
    if made.private:  # as in a lane with a log
        made.learner.bind_noise(f"{made.identity}|0")
    made.process(RECORDS[:end])
    return made


def gauges(driver: Driver) -> dict[str, Any]:
    return {each.name: each for each in driver.lane.gauges(solve=False).challengers}


# What they learn


@pytest.mark.parametrize("makers", [PUBLIC, PRIVATE], ids=["public", "private"])
def test_each_learns_what_it_would_learn_alone(makers: Makers) -> None:
    driver = Several(makers)
    for end in (30, 60, 120):
        driver.take_to(end)
        driver.commit()
    for name in ("b", "c"):
        found = gauges(driver)[name]
        by_itself = alone(makers[name], member=LearnerIdentity(name, "", f"token of {name}"))
        assert found.comparison.second == pytest.approx(by_itself.auc, abs=1e-12)
        assert found.comparison.first == pytest.approx(driver.lane.auc, abs=1e-12)
        assert found.comparison.events == 118  # one bad record, one without a label
        assert (found.since, found.ended) == (0, "")
        lane = driver.lane.challengers.lane_of(name)
        assert lane is not None
        assert lane.learner.weights == by_itself.learner.weights or name == "c"


def test_nothing_that_leaves_the_champion_depends_on_them() -> None:
    def life(makers: Makers) -> list[Any]:
        driver = Several(makers)
        driver.store.append = lambda append: None
        out: list[Any] = []
        for start in range(0, 60, 15):
            output = driver.lane.process(RECORDS[start : start + 15])
            out += [output.scores, output.dead_letters, output.line and output.line.frames]
            driver.lane.commit()
            driver.lane.committed()
        return out

    without = {"": ftrl}
    lines = [life({**without, **more}) for more in ({}, {"c": PUBLIC["c"]}, {"c": PUBLIC["b"]})]
    # The tags of later lines cover the commits between, which hold the digests of challengers.
    scores = [[part for part in life_ if not isinstance(part, tuple)] for life_ in lines]
    assert scores[0] == scores[1] == scores[2]
    first_line = [next(part for part in life_ if isinstance(part, tuple)) for life_ in lines]
    assert first_line[0] == first_line[1] == first_line[2]


def test_records_are_decoded_once() -> None:
    whole: list[int] = []
    single: list[int] = []

    def decode(record: Record) -> Any:
        single.append(record.offset)
        return decode_json(record)

    def challengers() -> list[Challenger]:
        return [Challenger("b", auc.PairOGD(seed=2)), Challenger("c", linear_model.LogisticRegression())]

    for start in (Lane(auc.PairOGD(seed=1), decode, **WHERE, snapshots=False, challengers=challengers()),):
        start.process(RECORDS[:50])
    assert sorted(single) == list(range(50))

    def many(records: Any) -> Any:
        whole.extend(record.offset for record in records)
        events = [decode_json(record) for record in records]
        values = [[event.x["a"]] for event in events]
        import numpy as np

        from streampair.engine import EventRows

        return EventRows(["a"], np.array(values), [event.y for event in events])

    decode.many = many  # type: ignore[attr-defined]
    single.clear()
    good = [record for record in RECORDS if record.offset not in (20, 21)]
    lanes = [
        Lane(make(), decode, **WHERE, snapshots=False, challengers=challengers())
        for make in (lambda: auc.PairOGD(seed=1), linear_model.LogisticRegression)
    ]
    for lane in lanes:
        whole.clear()
        lane.process(good)
        assert (whole, single) == ([record.offset for record in good], [])
    alone_ = Lane(linear_model.LogisticRegression(), decode_json, **WHERE, snapshots=False)
    alone_.process(good)
    (found,) = [each for each in lanes[0].gauges().challengers if each.name == "c"]
    assert found.comparison.second == pytest.approx(alone_.auc, abs=1e-12)


# Restarts and promotions


def complete(driver: Several, script: list[tuple[str, Any]]) -> None:
    """Carry out a script; a step that a crash interrupts is repeated after a start, unless it is done."""
    for word, argument in script:
        while True:
            try:
                if word == "to":
                    driver.take_to(argument)
                    driver.commit()
                elif word == "stop":
                    driver.commit(clean=True)
                elif learners_of(driver.store.read())[0] != argument:
                    try:
                        driver.promote(argument)
                    except SnapshotError:  # no clean end: one more start and stop
                        driver.start(die_after=driver.die_after)
                        driver.commit(clean=True)
                        continue
                    driver.start(die_after=driver.die_after)
                elif driver.lane.member.name != argument:
                    driver.start(die_after=driver.die_after)
                break
            except Died:
                driver.start()


SCRIPT: list[tuple[str, Any]] = [
    *(("to", 30), ("to", 45), ("stop", None), ("promote", "b"), ("to", 60), ("to", 75)),
    *(("stop", None), ("promote", ""), ("to", 90), ("to", 105)),
]


@pytest.mark.parametrize("makers", [PUBLIC, PRIVATE], ids=["public", "private"])
def test_a_kill_at_any_step_changes_nothing(makers: Makers) -> None:
    whole = Several(makers)
    complete(whole, SCRIPT)
    assert whole.lane.name == "first"
    wanted = {scored.offset: scored.score for scored in whole.scores}
    for deaths in range(0, 80, 1 if makers is PUBLIC else 2):
        driver = Several(makers)
        driver.die_after = deaths
        complete(driver, SCRIPT)
        if driver.die_after is not None:
            break  # it lived
        assert driver.table() == whole.table(), deaths
        # What is sent again is the same, and each record was scored by the champion of its time.
        assert all(scored.score == wanted[scored.offset] for scored in driver.scores), deaths
        if makers is PRIVATE:
            assert driver.lane.privacy.mu_spent == whole.lane.privacy.mu_spent
            assert driver.lane.gauges().forks == 0
    else:
        pytest.fail("the last run still died: there are more steps")


def test_after_a_promotion_the_challengers_scores_are_published() -> None:
    driver = Several(PUBLIC)
    driver.take_to(50)
    driver.commit(clean=True)
    driver.promote("c")
    driver.start()
    assert (driver.lane.name, driver.lane.seen) == ("c", 50)
    driver.take_to(120)
    by_itself = {
        name: Lane(make(), decode_json, **WHERE, on_bad="skip", breaker=None).process(RECORDS).scores
        for name, make in PUBLIC.items()
    }
    sent = driver.scores
    assert [s.score for s in sent[:50]] == [s.score for s in by_itself[""][:50]]
    assert [s.score for s in sent[50:]] == [s.score for s in by_itself["c"][50:]]
    assert set(gauges(driver)) == {"first", "b"}
    assert driver.lane.gauges().events["dead_letter"] == 1  # the counts are the lane's


def test_a_promotion_needs_a_clean_end() -> None:
    driver = Several(PUBLIC)
    driver.take_to(50)
    driver.commit()
    with pytest.raises(SnapshotError, match="did not stop cleanly"):
        driver.promote("b")
    driver.commit(clean=True)
    lane = driver.new_lane()
    facts = driver.found(lane.read(driver.store.read()))
    with pytest.raises(ConfigError, match="first is the champion already"):
        lane.promote("", facts, "", titles={"": "first"})
    with pytest.raises(ConfigError, match="has not learned from any record"):
        driver.promote("z")
    driver.start()  # and crashes at once: what it took and sent is not known
    with pytest.raises(SnapshotError, match="did not stop cleanly"):
        driver.promote("b")


def test_a_lane_built_for_another_champion_is_refused() -> None:
    driver = Several(PUBLIC)
    driver.take_to(20)
    driver.commit(clean=True)
    driver.promote("b")
    lane = Several(PUBLIC).lane
    fresh = LoggedLane(lane.learner, decode_json, **WHERE)
    with pytest.raises(SnapshotError, match="the champion of the log is 'b'"):
        fresh.read(driver.store.read())


# Learners that come, go and fail


def test_a_new_challenger_begins_at_the_next_record() -> None:
    driver = Several({"": PUBLIC[""]})
    driver.take_to(50)
    driver.commit()
    driver.take_to(60)
    driver.commit(snapshot=False)
    driver.makers = PUBLIC
    driver.start()
    assert {each.since for each in gauges(driver).values()} == {60}
    driver.take_to(120)
    driver.commit(snapshot=False)
    driver.start()
    rest = Lane(PUBLIC["b"](), decode_json, **WHERE, on_bad="skip", breaker=None)
    rest.process(RECORDS[60:])
    lane = driver.lane.challengers.lane_of("b")
    assert lane is not None
    assert lane.learner.weights == rest.learner.weights
    assert gauges(driver)["b"].comparison.events == 60


def test_a_removed_one_is_forgotten_and_the_account_of_a_private_one_stays() -> None:
    driver = Several(PRIVATE)
    driver.take_to(50)
    driver.restart()
    before = driver.lane.privacy.mu_spent
    spent = dict(gauges(driver)["b"].privacy)
    driver.makers = {"": PRIVATE[""]}
    for end in (70, 90):
        driver.start()
        driver.take_to(end)
        driver.commit()
    assert driver.lane.privacy.mu_spent >= before
    report = driver.lane.learner.privacy
    driver.makers["d"] = PUBLIC["b"]
    driver.start()
    assert driver.lane.privacy.mu_spent == pytest.approx(math.hypot(report.mu_spent, spent["mu_spent"]))
    assert driver.lane.privacy.mu_budget == pytest.approx(math.hypot(report.mu_budget, spent["mu_spent"]))
    assert driver.lane.log.known is not None
    assert driver.lane.log.known.learners["b"].ended == REMOVED
    driver.makers = PRIVATE
    with pytest.raises(SnapshotError, match="give it another name"):
        driver.start()


def test_other_settings_need_another_name() -> None:
    driver = Several(PUBLIC)
    driver.take_to(20)
    driver.commit()
    lane = LoggedLane(
        PUBLIC[""](),
        decode_json,
        **WHERE,
        member=LearnerIdentity("", "settings of ", ""),
        challengers=[Challenger("b", auc.PairOGD(), "others", "token of b")],
    )
    request = lane.read(driver.store.read())
    with pytest.raises(SnapshotError, match="settings of the challenger b changed"):
        lane.start(driver.found(request), driver.store.snapshot(request.content))


class Failing(auc.PairOGD):
    """Raises an error of its own once it has learned from thirty records."""

    def prepare_many(self, *args: Any, **options: Any) -> Any:
        return None

    prepare_rows = prepare_many

    def learn_one(self, x: Any, y: Any, *args: Any) -> None:
        self.count = getattr(self, "count", 0) + 1
        if self.count > 30:
            raise RuntimeError("a secret of the record")
        super().learn_one(x, y)


class Diverging(auc.PairOGD):
    """Gives infinite scores."""

    def prepare_many(self, *args: Any, **options: Any) -> Any:
        return None

    prepare_rows = prepare_many

    def score_one(self, x: Any) -> float:
        return math.inf


@pytest.mark.parametrize("kind", [Failing, Diverging])
def test_one_that_fails_stops_alone_and_stays_so(kind: Any) -> None:
    driver = Several({**PUBLIC, "b": lambda: kind(seed=1)})
    with pytest.warns(UserWarning, match="challenger b failed") as caught:
        driver.take_to(60)
    assert "secret" not in str(caught[0].message)
    assert gauges(driver)["b"].ended.startswith("failed (")
    assert gauges(driver)["c"].comparison.events == 58
    driver.commit()
    driver.start()
    assert gauges(driver)["b"].ended.startswith("failed (")
    driver.take_to(120)
    assert len({scored.offset for scored in driver.scores}) == 120
    driver.commit(clean=True)
    with pytest.raises(ConfigError, match="b has ended: failed"):
        driver.promote("b")


def test_a_private_one_that_fails_voids_the_guarantee() -> None:
    driver = Several(PRIVATE)
    driver.take_to(30)
    driver.commit()
    assert driver.lane.privacy.kind == "holds"
    lane = driver.lane.challengers.lane_of("b")
    lane.process = None  # type: ignore[method-assign, assignment, union-attr]
    with pytest.warns(UserWarning, match="challenger b failed"):
        driver.take_to(40)
    for _ in range(2):
        assert driver.lane.privacy.kind == "void"
        assert "b stopped: failed" in driver.lane.privacy.guarantee
        driver.commit()
        driver.start()


def test_one_that_cannot_be_saved_begins_anew_and_is_not_promoted() -> None:
    driver = Several({**PUBLIC, "b": linear_model.LogisticRegression})
    driver.take_to(60)
    assert gauges(driver)["b"].comparison.events == 58
    assert not gauges(driver)["b"].saved
    driver.commit(clean=True)
    with pytest.raises(ConfigError, match=r"needs learner\.allow_pickle"):
        driver.promote("b")
    driver.start()
    assert gauges(driver)["b"].since == 60
    driver = Several(
        {**PUBLIC, "b": linear_model.LogisticRegression}, allow_pickle=True, signing_key=b"s" * 32
    )
    driver.take_to(60)
    driver.commit(clean=True)
    driver.promote("b")
    driver.start()
    assert driver.lane.name == "b"
    driver.take_to(120)
    river = Lane(
        linear_model.LogisticRegression(), decode_json, **WHERE, snapshots=False, on_bad="skip", breaker=None
    )
    assert [s.score for s in driver.scores[60:]] == [s.score for s in river.process(RECORDS).scores[60:]]


# Privacy


def test_accounts_of_private_learners_add_up() -> None:
    driver = Several(PRIVATE)
    driver.take_to(50)
    driver.commit()
    report, first, other = driver.lane.privacy, driver.lane.learner.privacy, gauges(driver)["b"].privacy
    assert first.mu_spent > 0.0 < other["mu_spent"]
    assert report.mu_spent == pytest.approx(math.hypot(first.mu_spent, other["mu_spent"]))
    assert report.mu_budget == pytest.approx(math.hypot(first.mu_budget, other["mu_budget"]))
    assert report.epsilon_spent == promised_epsilon(report.mu_spent, report.delta) > first.epsilon_spent
    assert any("from the same records (first, b), so their accounts add up" in note for note in report.notes)
    assert NOT_PRIVATE in report.notes
    assert report.kind == "holds"
    known = driver.lane.log.known
    assert known is not None
    assert known.tip is not None
    assert known.tip.privacy is not None
    assert known.tip.privacy["mu_spent"] == report.mu_spent


def test_a_choice_by_raw_data_is_in_the_report_for_good() -> None:
    driver = Several(PRIVATE)
    driver.take_to(50)
    driver.commit(clean=True)
    driver.promote("b", void="chosen by raw data")
    for end in (60, 70):
        driver.start()
        driver.take_to(end)
        driver.commit()
        assert driver.lane.privacy.kind == "void"
        assert "chosen by raw data" in driver.lane.privacy.guarantee
        assert driver.lane.log.known is not None
        assert driver.lane.log.known.tip is not None
        assert driver.lane.log.known.tip.promotions == ["today: b"]


def test_what_no_account_would_cover_is_refused() -> None:
    def lane(learner: Any, *challengers: Any) -> Lane:
        return Lane(learner, decode_json, **WHERE, challengers=[Challenger("b", c) for c in challengers])

    with pytest.raises(ConfigError, match="make the private one the learner"):
        lane(auc.PairOGD(), ftrl())
    with pytest.raises(ConfigError, match="their accounts do not add up"):
        lane(ftrl(), ftrl(entity=EntityLimit(3), warmup=None))
    with pytest.raises(ConfigError, match="have one name"):
        lane(auc.PairOGD(), auc.PairOGD(), auc.PairOGD())
    driver = Several(PRIVATE)
    driver.take_to(50)
    driver.commit(clean=True)
    with pytest.raises(ConfigError, match="c is not private, and the champion is"):
        driver.promote("c")


def test_after_an_override_a_private_challenger_ends_with_its_whole_budget() -> None:
    makers = {**PRIVATE, "": lambda: ftrl(forks=4), "b": lambda: ftrl(epsilon=0.5, forks=4)}
    driver = Several(makers)
    driver.take_to(30)
    driver.commit()
    older = driver.store.log, dict(driver.store.snapshots)
    driver.take_to(60)
    driver.commit()
    driver.store.log, driver.store.snapshots = older
    with pytest.raises(PrivacyError, match="older than what was released"):
        driver.start()
    lane = driver.new_lane()
    wanted = lane.read(driver.store.read())
    spent = lane.override(
        "rollback", driver.found(wanted), "today", driver.store.snapshot(wanted.content or "")
    ).mu
    assert spent is not None
    driver.override("rollback", "today")
    driver.start()
    assert driver.lane.privacy.mu_spent <= spent[1] + 1e-12
    found = gauges(driver)["b"]
    assert found.ended == OVERRIDDEN
    assert found.privacy["mu_spent"] == found.privacy["mu_budget"] > 0.0
    driver.take_to(90)
    driver.commit()
    driver.start()
    report, learner = driver.lane.privacy, driver.lane.learner.privacy
    assert report.mu_spent >= math.hypot(learner.mu_spent, found.privacy["mu_budget"]) - 1e-12
    assert gauges(driver)["c"].ended == ""


def test_learners_of_one_lane_never_share_noise() -> None:
    """Two of the same settings, and one of the same name with another token."""
    makers = {"": ftrl, "b": ftrl}
    driver = Several(makers)
    driver.take_to(60)
    lane = driver.lane.challengers.lane_of("b")
    assert lane is not None
    assert lane.learner.weights != driver.lane.learner.weights
    again = Several(makers)
    again.tokens["b"] = "another"
    again.start()
    again.take_to(60)
    other = again.lane.challengers.lane_of("b")
    assert other is not None
    assert other.learner.weights != lane.learner.weights
    assert again.lane.learner.weights == driver.lane.learner.weights


def test_a_rejoined_lane_goes_on() -> None:
    driver = Several(PRIVATE)
    driver.take_to(30)
    driver.commit()
    assert driver.rejoin()
    driver.take_to(60)
    driver.commit()
    whole = Several(PRIVATE)
    whole.take_to(60)
    assert driver.table() == whole.table()
