"""What a user with a strict type checker writes. Checked by mypy, and run, in test_typing.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

from river import base, compose, datasets, evaluate, neighbors
from streampair_connectors.config import Config, parse_config

from streampair import auc, buffers, evaluation, losses, metric, preprocessing, privacy, ranking
from streampair.engine import LaneId
from streampair.engine.lane import Event, Lane, LaneOutput, Record
from streampair.errors import RecordError, StreampairError
from streampair.privacy import PrivacyReport


def learners() -> list[auc.PairOGD | auc.PairFTRL]:
    return [
        auc.PairOGD(loss=losses.Logistic(), buffer=buffers.Reservoir(50), learning_rate=0.5, seed=1),
        auc.PairFTRL(
            epsilon=1.0, delta=1e-4, horizon=1250, features=["a", "b"], bounds={"a": (0, 1), "b": (0, 1)}
        ),
    ]


def spent(model: auc.PairOGD | auc.PairFTRL) -> float:
    report = model.privacy
    assert_type(report, PrivacyReport | None)
    return 0.0 if report is None else report.epsilon_spent


def learn_and_score(model: auc.PairOGD | auc.PairFTRL) -> float:
    for y in (True, False, True):
        model.learn_one({"a": float(y), "b": 0.5}, y)
    score = model.score_one({"a": 1.0, "b": 0.0})
    assert_type(score, float)
    weights = model.weights
    return score + sum(weights.values())


def audited(model: auc.PairFTRL) -> str:
    report = privacy.audit(model, runs=10)
    assert_type(report.parts[0].exact, float)
    return report.verdict if report.holds else ""


def beyond_linear() -> float:
    model: compose.Pipeline = preprocessing.RandomFourier(20, gamma=0.5, features=["a"]) | auc.SPAUC(l2=0.01)
    model.learn_one({"a": 1.0}, True)
    hashed = preprocessing.Hashing(8).transform_one({"country": "NL"})
    hashed |= preprocessing.OneHot({"country": ["NL"]}).transform_one({"country": "NL"})
    return auc.OAM(seed=1).score_one(hashed)


def grades_and_distances() -> tuple[float, float]:
    ranker = ranking.PairOGD(losses.MinimumErrorEntropy(0.5), relevance=(0, 4))
    learner = metric.PairOGD(psd=False, radius=2.0)
    for grade in (0, 3, 4):
        ranker.learn_one({"a": float(grade)}, grade)
        learner.learn_one({"a": float(grade)}, "low" if grade < 2 else "high")
    assert_type(ranker.predict_one({"a": 1.0}), float)
    assert_type(learner.transform_one({"a": 1.0}), dict[Any, float])
    pipeline: compose.Pipeline = learner | neighbors.KNNClassifier()
    pipeline.learn_one({"a": 2.0}, "high")
    return ranker.score_one({"a": 1.0}), learner.distance_one({"a": 0.0}, {"a": 3.0})


def evaluate_on_phishing(model: base.Classifier) -> float:
    rolling = evaluation.RollingAUC(window=200)
    evaluate.progressive_val_score(datasets.Phishing(), model, rolling)
    return rolling.get()


def decoder(known: dict[bytes, Event]) -> Callable[[Record], Event]:
    def decode(record: Record) -> Event:
        try:
            return known[record.value or b""]
        except KeyError:
            raise RecordError("unknown", fix="send what is known", stage="decode") from None

    return decode


def lane() -> LaneOutput:
    known = {b"p": Event({"a": 1.0}, True), b"n": Event({"a": 0.0}, False)}
    first, second = (
        Lane(auc.PairOGD(), decoder(known), LaneId("app", "events", 0), name="ogd") for _ in range(2)
    )
    output = first.process([Record(0, b"p"), Record(1, b"n"), Record(2, b"?")])
    second.restore(first.snapshot())
    return output


def configuration(directory: Path) -> Config:
    try:
        return parse_config(
            {"app": "a", "input": {"label": "y"}, "learner": {"class": "streampair.auc.PairOGD"}},
            base=directory,
        )
    except StreampairError as error:
        raise SystemExit(error.fix) from error


if __name__ == "__main__":
    print(
        [round(learn_and_score(model), 3) for model in learners()],
        [spent(model) for model in learners()],
        grades_and_distances(),
        beyond_linear(),
        audited(
            auc.PairFTRL(
                epsilon=8.0, horizon=20, warmup=0, mechanism=privacy.PairGradients(buffer=buffers.FIFO(2))
            )
        ),
    )
    print(evaluate_on_phishing(auc.PairOGD()) > 0.5)
    print([scored.outcome for scored in lane().scores])
    print(configuration(Path()).state_directory.name)
