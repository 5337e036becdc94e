"""Scores by a published model: those of the lane at that moment, whatever the record and the decoder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from river import compose
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Config, OutputConfig, parse_config
from streampair_connectors.worker.factory import build_lane, build_learner, taken_cells
from streampair_connectors.worker.outputs import SCORING_STAGES
from streampair_connectors.worker.scoring import score_records

from streampair import auc, models
from streampair.engine import DeadLetter, Event, Record, Scored

NAMES = ["a", "b", "c"]
TREES = {"trees": 3, "nodes": 31, "seed": 1}
PRIVATE = {"epsilon": 1.0, "delta": 1e-4, "horizon": 5000, "warmup": 20, "seed": 3}

# What is to be scored: learner and input.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"class": "streampair.auc.PairOGD"}, {"features": NAMES}),
    "linear, id": ({"class": "streampair.auc.OAM"}, {"features": NAMES, "id": "name"}),
    "linear, not declared": ({"class": "streampair.auc.PairOGD"}, {"id": "name"}),
    "categories": (
        {"class": "streampair.auc.PairOGD"},
        {"features": {"a": [-3, 3], "b": [-3, 3], "c": [-3, 3], "kind": ["x", "y"]}},
    ),
    "linear, gaps and texts": ({"class": "streampair.auc.PairOGD"}, {"features": [*NAMES, "kind"]}),
    "linear, shared": (
        {"class": "streampair.auc.PairOGD", "options": {"max_features": 4}},
        {"features": [*NAMES, "kind"], "id": "name"},
    ),
    "explained, linear": ({"class": "streampair.auc.OAM"}, {"features": [*NAMES, "kind"]}),
    "gaps and texts": ({"class": "streampair.auc.Forest", "options": TREES}, {"features": [*NAMES, "kind"]}),
    "gaps and texts, not declared": ({"class": "streampair.auc.Forest", "options": TREES}, {"id": "name"}),
    "several classes": (
        {"class": "streampair.auc.MulticlassForest", "options": {**TREES, "positive": "x"}},
        {"features": NAMES, "label": "kind", "label_type": "any", "positive": "x"},
    ),
    "private": ({"class": "streampair.auc.PairFTRL", "options": PRIVATE}, {"features": NAMES}),
    "private, not declared": ({"class": "streampair.auc.PairFTRL", "options": PRIVATE}, {"id": "name"}),
    "private, bounds": (
        {"class": "streampair.auc.PairFTRL", "options": PRIVATE},
        {"features": {name: [-2, 2] for name in NAMES}, "id": "name"},
    ),
}


# Steps in front of a learner, as a configuration names them.
SELECTED = {"class": "river.compose.Select", "keys": NAMES}
SCALED = {
    "class": "river.compose.Pipeline",
    "steps": [SELECTED, {"class": "river.preprocessing.StandardScaler"}],
}
ENCODED = {
    "class": "river.compose.Pipeline",
    "steps": [
        {"class": "river.compose.SelectType", "types": ["str"]},
        {"class": "river.preprocessing.OneHotEncoder"},
    ],
}
UNION = {"class": "river.compose.TransformerUnion", "options": {"transformers": [SCALED, ENCODED]}}
IMPUTED = {
    "class": "river.preprocessing.StatImputer",
    "options": {"imputers": [[name, {"class": "river.stats.Mean"}] for name in NAMES]},
}
OGD = {"class": "streampair.auc.PairOGD"}
CASES |= {
    "scaled and encoded": ({"steps": [UNION, OGD]}, {"features": [*NAMES, "kind"]}),
    "not declared, scaled and encoded": ({"steps": [UNION, OGD]}, {"id": "name"}),
    "imputed": (
        {"steps": [IMPUTED, {"class": "river.preprocessing.StandardScaler"}, OGD]},
        {"features": NAMES},
    ),
    "smallest to largest": (
        {"steps": [{"class": "river.preprocessing.MinMaxScaler"}, OGD]},
        {"features": NAMES},
    ),
    "explained, behind steps": (
        {"steps": [UNION, {"class": "streampair.auc.Forest", "options": TREES}]},
        {"features": [*NAMES, "kind"]},
    ),
    "guarded, private": (
        {
            "steps": [
                {"class": "streampair.preprocessing.Guarded", "options": {"step": SELECTED}},
                {"class": "streampair.auc.PairFTRL", "options": {**PRIVATE, "features": NAMES}},
            ]
        },
        {"features": NAMES},
    ),
}


def config_of(case: str) -> Config:
    learner, options = CASES[case]
    return parse_config({"app": "a", "input": {"label": "y", **options}, "learner": learner})


def value_of(coin: random.Random, number: int, *, texts: bool) -> bytes | None:
    """One event; every fourth has something wrong, or unusual."""
    x: dict[str, Any] = {name: round(coin.gauss(0, 1), 3) for name in NAMES}
    x |= {"kind": coin.choice(["x", "y"]), "name": f"event {number}"}
    x["y"] = coin.random() < 0.5
    kind = coin.randrange(60)
    if kind == 0:
        return None
    if kind == 1:
        return coin.choice([b"", b"oops", b"[]", b"\xff", b'{"a": ', b"null"])
    if kind in (2, 3):
        del x[coin.choice(NAMES)]
    elif kind in (4, 5):
        x[coin.choice(NAMES)] = coin.choice([None, "text", True, [1], {"a": 1}, float("nan"), float("inf")])
    elif kind == 6:
        x["a"] = 1e300
    elif kind == 7:
        x["y"] = coin.choice(["what", 7, [1]])
    elif kind in (8, 9):
        del x["y"]
    elif kind == 10:
        x["more"] = coin.choice([1, "text", None])
    elif kind == 11:
        x["kind"] = coin.choice(["z", None, 3])
    elif kind == 12:
        x["name"] = coin.choice([None, 5, [1]])
    elif kind == 13:
        return json.dumps({"y": True}).encode()
    if not texts:
        x.pop("kind")
    return json.dumps(x).encode()


def records_of(case: str, count: int, seed: int = 1) -> list[Record]:
    coin, texts = random.Random(seed), case not in ("linear, not declared", "private, not declared")
    return [
        Record(offset, value_of(coin, offset, texts=texts), b"key %d" % offset, 1000 + offset)
        for offset in range(count)
    ]


def comparable(scored: list[Scored], letters: list[DeadLetter]) -> tuple[list[Any], list[DeadLetter]]:
    """Outcomes without the difference between learned and not, and the dead letters that scorers send."""
    rows = [
        (
            *(s.offset, s.key, s.id, s.score, "scored" if s.outcome == "learned" else s.outcome),
            *(s.probabilities, s.reasons),
        )
        for s in scored
    ]
    return rows, [letter for letter in letters if letter.stage in SCORING_STAGES]


def explains(case: str, config: Config) -> bool:
    learner = build_learner(config)
    if case.startswith("linear"):  # in rows
        return False
    return hasattr(learner[-1] if isinstance(learner, compose.Pipeline) else learner, "explain_one")


@pytest.mark.filterwarnings("ignore:there are more than max_features")
@pytest.mark.parametrize("case", CASES)
def test_scores_and_dead_letters_are_those_of_the_lane(case: str) -> None:
    """Record by record: the model of this moment, and the lane before it learns the record."""
    config = config_of(case)
    decode = json_decoder(config.input, **taken_cells(config))
    explain = 2 if explains(case, config) else 0
    config = config.model_copy(update={"output": OutputConfig(explain=explain)})
    lane = build_lane(config, decode, snapshots=False)
    records, classes = records_of(case, 260), config.input.label_type == "any"
    lane.process(records[:100])
    outcomes = set()
    for record in records[100:]:
        model = models.loads(models.dumps(lane.model, lane.seen))
        found = comparable(*score_records(model, decode, [record], classes=classes, explain=explain))
        output = lane.process([record])
        assert found == comparable(output.scores, output.dead_letters), record
        outcomes.add(found[0][0][4])
    assert outcomes == {"scored", "dead_letter", "tombstone"}


def slowly(decode: Callable[[Any], Event]) -> Callable[[Any], Event]:
    """The decoder without its way for many records."""
    return lambda record: decode(record)


@pytest.mark.filterwarnings("ignore:there are more than max_features")
@pytest.mark.parametrize("case", CASES)
def test_many_records_have_the_scores_of_each(case: str) -> None:
    config = config_of(case)
    decode = json_decoder(config.input, **taken_cells(config))
    lane = build_lane(config, decode, snapshots=False)
    lane.process(records_of(case, 200))
    model, options = models.export(lane.model), {"classes": config.input.label_type == "any"}
    if explains(case, config):
        options["explain"] = 2
    for seed in range(20):
        records = records_of(case, 40, seed)
        slow = score_records(model, slowly(decode), records, **options)
        assert score_records(model, decode, records, **options) == slow
        assert [each.offset for each in slow[0]] == [record.offset for record in records]
        one_by_one = [score_records(model, decode, [record], **options) for record in records]
        assert (
            [s for each, _ in one_by_one for s in each],
            [x for _, each in one_by_one for x in each],
        ) == slow
    assert score_records(model, decode, []) == ([], [])


def test_a_model_of_nothing_scores_every_event() -> None:
    config = config_of("linear")
    decode = json_decoder(config.input)
    records = [Record(0, b'{"a": 1, "b": 2, "c": 3}'), Record(1, b"oops")]
    scored, letters = score_records(models.export(auc.PairOGD()), decode, records)
    assert [each.score for each in scored] == [0.0, None]
    assert [letter.stage for letter in letters] == ["decode"]


def test_an_event_that_is_too_early_has_no_score_in_a_scorer_either() -> None:
    """Nothing is known of the range of its feature: it is no dead letter, for the lane learns it."""
    config = config_of("smallest to largest")
    decode = json_decoder(config.input)
    lane, record = build_lane(config, decode, snapshots=False), Record(0, b'{"a": 1, "b": 2, "c": 3}')
    scored, letters = score_records(models.export(lane.model), decode, [record])
    output = lane.process([record])
    assert (scored, letters) == (output.scores, output.dead_letters)
    assert [(each.score, each.outcome) for each in scored] == [(None, "scored")]


def test_an_error_that_is_not_the_records_is_raised() -> None:
    """A decoder may fail in any way, a model may not."""

    class Broken:
        multiclass = False

        def score_one(self, x: Any) -> float:
            raise ZeroDivisionError

    broken: Any = Broken()
    with pytest.raises(ZeroDivisionError):
        score_records(broken, lambda record: Event({"a": 1.0}, None), [Record(0, b"")])
    model = models.export(auc.PairOGD())

    def fails(record: Record) -> Event:
        raise ZeroDivisionError("of the decoder")

    scored, letters = score_records(model, fails, [Record(0, b"x"), Record(1, None)])
    assert [each.outcome for each in scored] == ["dead_letter", "tombstone"]
    assert [letter.error for letter in letters] == ["ZeroDivisionError: of the decoder"]
