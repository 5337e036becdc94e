"""The table of steps for tests: at least one pipeline for each row of `streampair.steps.KINDS`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from river import compose, feature_extraction, preprocessing, stats

from streampair import auc
from streampair import preprocessing as own
from streampair.steps import KINDS, public_name

NUMBERS, TEXTS = ("amount", "age"), ("country", "plan")

Row = tuple[dict[str, Any], bool]


def rows(count: int, seed: int = 0) -> list[Row]:
    """Events with numbers, categories, a text and a number that may be missing."""
    rng = random.Random(seed)
    words = ["cheap", "pills", "meeting", "Été", "report", "now", "the"]
    found = []
    for _ in range(count):
        y = rng.random() < 0.4
        x = {
            "amount": round(rng.gauss(100.0 + 30.0 * y, 20.0), 2),
            "age": round(rng.gauss(40.0, 10.0), 1),
            "country": rng.choice(["NL", "BE", "FR", "DE"] if y else ["NL", "BE", "LU"]),
            "plan": rng.choice(["free", "pro"]),
            "note": " ".join(rng.choices(words, weights=[1 + 3 * y, 1 + y, 2, 1, 1, 1, 3], k=6)),
            "income": None if rng.random() < 0.3 else round(rng.gauss(2.0 + y, 1.0), 2),
        }
        found.append((x, y))
    return found


def numbers() -> Any:
    return compose.Select(*NUMBERS)


def texts() -> Any:
    return compose.Select(*TEXTS)


def usual() -> Any:
    """The steps that most users write: numbers scaled, texts as indicators."""
    return (numbers() | preprocessing.StandardScaler()) + (texts() | preprocessing.OneHotEncoder())


def imputed(statistic: Any) -> Any:
    return compose.Select("income", "amount") | preprocessing.StatImputer(("income", statistic))


#: What stands in front of the learner, by name. The rest of a name says what is special.
STEPS: dict[str, Callable[[], Any]] = {
    "StandardScaler": lambda: numbers() | preprocessing.StandardScaler(),
    "StandardScaler without spread": lambda: numbers() | preprocessing.StandardScaler(with_std=False),
    "MinMaxScaler": lambda: numbers() | preprocessing.MinMaxScaler(),
    "MaxAbsScaler": lambda: numbers() | preprocessing.MaxAbsScaler(),
    "OneHotEncoder": lambda: texts() | preprocessing.OneHotEncoder(),
    "OneHotEncoder without zeros": lambda: texts() | preprocessing.OneHotEncoder(drop_zeros=True),
    "OneHotEncoder of categories": lambda: (
        texts() | preprocessing.OneHotEncoder({"country": {"NL", "BE"}, "plan": {"free", "pro"}})
    ),
    "FeatureHasher": lambda: compose.Select(*NUMBERS, *TEXTS) | preprocessing.FeatureHasher(16, seed=1),
    "FeatureHasher without a seed": lambda: texts() | preprocessing.FeatureHasher(16),
    "BagOfWords": lambda: feature_extraction.BagOfWords(on="note", stop_words={"the"}),
    "TFIDF": lambda: feature_extraction.TFIDF(on="note"),
    "TFIDF as it is": lambda: feature_extraction.TFIDF(on="note", normalize=False, lowercase=False),
    "StatImputer by the mean": lambda: imputed(stats.Mean()),
    "StatImputer by the mode": lambda: imputed(stats.Mode()),
    "StatImputer by a constant": lambda: imputed(-1.0),
    "Select": numbers,
    "SelectType": lambda: compose.SelectType(float) | preprocessing.StandardScaler(),
    "Discard": lambda: compose.Discard("note", "income", *TEXTS) | preprocessing.MaxAbsScaler(),
    "TransformerUnion": usual,
    "Pipeline": lambda: numbers() | (preprocessing.StandardScaler() | preprocessing.MaxAbsScaler()),
    "Bounds": lambda: numbers() | own.Bounds({"amount": (0, 200), "age": (0, 120)}),
    "UnitBall": lambda: numbers() | own.UnitBall(50.0),
    "OneHot": lambda: compose.Select("amount", "plan") | own.OneHot({"plan": ["free", "pro"]}),
    "RandomFourier": lambda: own.RandomFourier(6, 0.001, features=list(NUMBERS)),
    "Hashing": lambda: compose.Select("amount", "plan") | own.Hashing(8),
    "Guarded": lambda: own.Guarded(numbers()) | preprocessing.StandardScaler(),
}


#: A learner alone, which takes records as they are: texts, gaps and numbers of any scale.
ALONE = "no step"


def pipeline(name: str, learner: Any = None) -> Any:
    """A pipeline of the steps of this name and a learner, by default a linear one."""
    learner = auc.PairOGD(seed=3) if learner is None else learner
    return learner if name == ALONE else compose.Pipeline(STEPS[name](), learner)


def transformed(model: Any, x: dict[str, Any]) -> dict[Any, Any]:
    """What the learner of a pipeline gets of a record."""
    return model.transform_one(x) if isinstance(model, compose.Pipeline) else x  # type: ignore[no-any-return]


def kinds_in(step: Any) -> set[str]:
    """Names of the rows of the table that a step has, itself and all inside it."""
    inner = getattr(step, "steps", None) or getattr(step, "transformers", None) or {}
    parts = [step.step] if hasattr(step, "step") else inner.values()
    return {public_name(step)}.union(*map(kinds_in, parts))


def kind_tested(name: str) -> str:
    """The row of the table that a case is about: its name begins with that of the class."""
    if name == ALONE:
        return name
    (kind,) = (each for each in KINDS if each.rpartition(".")[2] == name.partition(" ")[0])
    assert kind in kinds_in(pipeline(name)), name
    return kind
