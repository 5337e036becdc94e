"""A service that stops events by their scores, and lets explored ones pass: what is then reported."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.applications import FEATURES, App, Inside, ends, write_key
from harness.kafka import Cluster
from harness.late_labels import STOPPED, Event, Label, create, late_app, n_due, send_events, send_labels
from harness.worker_process import wait_for
from sklearn.metrics import roc_auc_score
from streampair_connectors.host import THIS_HOST

from streampair.engine import LaneGauges
from streampair.engine.exploration import Exploration, weight_of

ROUND, ROUNDS, SHARE = 300, 12, 0.25
KEY = bytes(range(32))
Place = tuple[int, int]


class Service:
    """Sends payments, reads their scores, and says what became of them: it stops those with a high score."""

    def __init__(self, app: App) -> None:
        self._app, self._coin = app, random.Random(3)
        self.frauds: dict[Place, bool] = {}
        self.rows: dict[Place, dict[str, Any]] = {}
        self.outcomes: dict[Place, bool | str] = {}

    def weight(self, place: Place) -> float:
        """The weight of the outcome of a payment, by what its score said."""
        row = self.rows[place]
        return weight_of(row["score"], row["threshold"], row["share"], explored=row["explore"])

    def counted(self) -> int:
        """Number of payments whose outcomes are in figures."""
        return sum(outcome != STOPPED and self.weight(p) > 0.0 for p, outcome in self.outcomes.items())

    def send(self) -> None:
        """A round of payments."""
        begin, events = len(self.frauds), []
        for number in range(begin, begin + ROUND):
            place = number % 2, number // 2
            self.frauds[place] = fraud = self._coin.random() < 0.15
            x = {name: round(self._coin.gauss(0.9 * fraud, 1.0), 6) for name in FEATURES}
            value = json.dumps({**x, "payment": f"p{number}"}).encode()
            events.append(Event(place[0], THIS_HOST.now_ms, f"p{number}", value))
        send_events(self._app, events)

    def read(self, worker: Inside) -> None:
        """Wait for the scores of all payments."""
        for row in self._app.await_scores(ends(len(self.frauds), 2), worker, committed=True):
            self.rows.setdefault((row["partition"], row["offset"]), row)

    def tell(self) -> None:
        """Send the outcomes of the payments that passed, and say which were stopped. A few pass unasked."""
        labels = []
        for place in self.rows.keys() - self.outcomes.keys():
            row = self.rows[place]
            stopped = row["score"] >= row["threshold"] and not row["explore"] and place[1] % 10 > 0
            self.outcomes[place] = STOPPED if stopped else self.frauds[place]
            labels.append(Label(0, THIS_HOST.now_ms, row["id"], self.outcomes[place]))
        send_labels(self._app, sorted(labels, key=lambda label: int(label.id[1:])))


def waiting(worker: Inside) -> int:
    assert worker.worker is not None
    lane = worker.worker.lane
    return 0 if lane is None else len(lane.logged_lane.score_sample or ())


@pytest.mark.parametrize("scoring", ["inline", "parallel"])
def test_figures_are_those_of_all_events_where_high_scores_stop_them(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, scoring: str
) -> None:
    """The threshold changes between the scores and the labels of a round, and a worker takes over another.

    The topic has another name in each run, and so other coins, and scorers take the newest model: an AUC that
    is off by three standard errors of independent samples, or a recall by four, comes less than once in
    10,000 runs.
    """
    learner = f'class = "streampair.auc.PairOGD"\noptions = {{ seed = 1 }}\nscoring = "{scoring}"'
    output = f'[output]\nalert_above = 0.5\nexplore = {SHARE}\nexplore_key_file = "explore.key"\n'
    app = App(
        *(apache_kafka, tmp_path, unique("app")),
        **{
            "partitions": 2,
            "learner": learner,
            "store": "kafka",
            "settings": f"auc_window = 10000\n{output}",
        },
    )
    app = create(late_app(app, f'order = "arrival"\nstopped = "{STOPPED}"'))
    apache_kafka.create_topic(f"{app.name}-alerts")
    apache_kafka.create_topic(f"{app.name}-model")
    write_key(tmp_path / "explore.key", KEY.hex())
    service = Service(app)

    def lane(worker: Inside) -> LaneGauges:
        (gauges,) = worker.telemetry.gauges(app.name).values()
        return gauges

    for part in range(2):
        with Inside(app) as worker:
            if part:
                wait_for("the scores from before are known", lambda: waiting(worker) == ROUND)
                service.tell()
            for number in range(ROUNDS // 2):
                service.send()
                service.read(worker)
                wait_for("the scores wait", lambda: waiting(worker) >= ROUND)
                if part or number < ROUNDS // 2 - 1:
                    service.tell()
                    count = len(service.outcomes)
                    wait_for("all are learned", lambda count=count: n_due(worker) == count)
            # They are computed within a share of the time, and once more when the stream pauses.
            wait_for("the figures are of all", lambda: lane(worker).quality.events == service.counted())
            found = lane(worker)
            assert worker.stop() is None
        app.path.write_text(app.path.read_text().replace("alert_above = 0.5", "alert_above = 0.7"))
    assert {row["threshold"] for row in service.rows.values()} == {0.5, 0.7}
    places = [*service.rows]
    scores, frauds = [service.rows[p]["score"] for p in places], [service.frauds[p] for p in places]
    coins = Exploration(0.5, SHARE, KEY, app.input)
    for place in places:
        row = service.rows[place]
        assert row["explore"] == (row["score"] >= row["threshold"] and coins.marks(9.0, *place))
    weights = [service.weight(place) for place in places]
    stopped = [service.outcomes[p] == STOPPED for p in places]
    truth, weighed = roc_auc_score(frauds, scores), roc_auc_score(frauds, scores, sample_weight=weights)
    passed = roc_auc_score(frauds, scores, sample_weight=~np.array(stopped))
    late, quality = found.late, found.quality
    assert late is not None
    unmarked = sum(not w and not s for w, s in zip(weights, stopped, strict=True))
    assert late.explored == {"yes": sum(w > 1.0 for w in weights), "no": unmarked, "stopped": 0}
    assert unmarked > 10
    assert late.stopped == sum(stopped)
    assert quality is not None
    assert quality.auc_stderr is not None
    assert found.auc == pytest.approx(weighed)
    assert abs(found.auc - truth) < 3 * quality.auc_stderr
    if scoring == "inline":  # the models of scorers are behind, by how much differs from run to run
        assert truth - passed > 0.03
    assert quality.explored_positives is not None
    assert quality.explored_positives > 30
    positive = np.array(frauds)
    above = np.array(scores)[positive] >= 0.7
    weighed_recall = np.average(above, weights=np.array(weights)[positive])
    assert quality.recall_at_threshold == pytest.approx(weighed_recall)
    # A positive that was to be stopped is explored with the probability SHARE, and else without weight.
    acted = np.array([service.rows[p]["score"] >= service.rows[p]["threshold"] for p in places])[positive]
    terms = (above - above.mean())[acted] * np.sqrt(1.0 / SHARE - 1.0) / len(above)
    assert abs(weighed_recall - above.mean()) < 4 * np.sqrt((terms**2).sum())
