"""Regret on recorded streams: estimate, band and sample are those that were recorded.

    golden/regret.json            estimates, and a digest of which events are in the sample
    golden/regret-samples.json    samples of the same streams by other random numbers, and their estimates

cd tests && python -m unit.test_recorded_regret   # records the former anew
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from harness import support
from river import datasets

from streampair import auc, losses, metric, ranking
from streampair.evaluation import Regret
from streampair.evaluation.regret import Kept, Step
from streampair.metric import PairOGD

FILE = support.ROOT / "tests" / "golden" / "regret.json"
SAMPLES = support.ROOT / "tests" / "golden" / "regret-samples.json"
#: Estimates are recorded after so many events, and in the end.
EVERY = 500


def phishing() -> Iterator[tuple[dict[str, float], Any]]:
    """Twice: more events than the sample takes all of."""
    return itertools.chain(datasets.Phishing(), datasets.Phishing())


def relevances() -> Iterator[tuple[dict[str, float], Any]]:
    for x, y in phishing():
        yield x, 0.5 * x["anchor_from_other_domain"] - x["empty_server_form_handler"] + 0.25 * y


def rankings(loss: Any) -> tuple[Any, Any]:
    model = ranking.PairOGD(loss=loss, seed=1, scale=None)
    return model, Regret(model.pair_loss, 1.0, label=model.label_number, pairs=64, exact=32)


def pairs(loss: Any, pairs: int = 64) -> tuple[Any, Any]:
    model = auc.PairOGD(loss=loss, seed=1, scale=None)
    return model, Regret(model.pair_loss, model.comparator_radius, pairs=pairs, exact=32)


def distances(psd: bool) -> tuple[PairOGD, Regret]:
    model = metric.PairOGD(seed=1, psd=psd)
    made = Regret(
        model.pair_loss,
        model.comparator_radius,
        quadratic=model.quadratic_many,
        label=model.label_number,
        psd=psd,
        pairs=64,
        exact=32,
    )
    return model, made


STREAMS = {
    "auc, hinge": (phishing, lambda: pairs(losses.Hinge())),
    "auc, logistic": (phishing, lambda: pairs(losses.Logistic(), 1024)),
    "auc, squared hinge": (phishing, lambda: pairs(losses.SquaredHinge())),
    "ranking, hinge": (relevances, lambda: rankings(losses.Hinge())),
    "ranking, errors": (relevances, lambda: rankings(losses.MinimumErrorEntropy(1.0))),
    "metric": (phishing, lambda: distances(psd=False)),
    "metric, semi-definite": (phishing, lambda: distances(psd=True)),
}


def followed(name: str) -> list[dict[str, Any]]:
    """The estimates of a stream, and a digest of which events are in the sample."""
    stream, make = STREAMS[name]
    model, regret = make()
    found = []
    for n, (x, y) in enumerate(stream(), 1):
        learn(model, [regret], x, y)
        if n % EVERY == 0:
            estimate, state = regret.estimate(model.design_many), regret.to_state()
            parts = [("steps", "ids"), ("steps", "partners"), ("records", "ids")]
            digest = hashlib.sha256(
                b"".join(
                    np.asarray(stratum[ids], dtype=np.int64).tobytes()
                    for part, ids in parts
                    for stratum in state[part]
                )
            )
            found.append({"n": n, **numbers(estimate), "sample": digest.hexdigest()})
    return found


def learn(model: Any, regrets: list[Regret], x: Any, y: Any) -> None:
    """Let a model learn an event that its regrets observe."""
    score = getattr(model, "score_one", None)
    for regret in regrets:
        regret.observe(x, y, 0.0 if score is None else score(x), score or float)
    model.learn_one(x, y)


def numbers(estimate: Any) -> dict[str, float]:
    names = ("total", "stderr", "comparator_loss", "pair_loss")
    return {name: getattr(estimate, name) for name in names}


@pytest.mark.parametrize("name", STREAMS)
def test_estimates_are_those_that_were_recorded(name: str) -> None:
    """The sample and the learner's loss exactly, the comparator as well as the search finds it."""
    recorded = json.loads(FILE.read_text())[name]
    for now, then in zip(followed(name), recorded, strict=True):
        assert now["n"] == then["n"]
        assert now["sample"] == then["sample"]
        assert now["pair_loss"] == pytest.approx(then["pair_loss"], rel=1e-9)
        assert now["comparator_loss"] == pytest.approx(then["comparator_loss"], rel=2e-3, abs=1e-4)
        assert now["stderr"] == pytest.approx(then["stderr"], rel=0.05)
        assert abs(now["total"] - then["total"]) < 0.1 * then["stderr"]


def restored(name: str, sample: dict[str, Any]) -> tuple[Any, Regret]:
    """The regret of a stream with a sample that was recorded."""
    stream, make = STREAMS[name]
    events = list(stream())
    model, regret = make()
    for x, y in events[:EVERY]:
        model.learn_one(x, y)

    def kept(id: int) -> Kept:
        x, y = events[id]
        found = regret._keep([id], [regret._number(y)], [x])
        assert found is not None
        return found[0]

    regret.n_seen = sample["n"]
    regret._first = [kept(id) for id in range(regret.exact)]
    regret._first_loss, regret._warm = sample["first_loss"], np.array(sample["warm"])
    for steps, saved in zip(regret._steps, sample["strata"], strict=True):
        columns = (saved[each] for each in ("order", "ranks", "ids", "partners", "weights", "margins"))
        steps.count = saved["count"]
        steps.items = [
            Step(number, rank, kept(id), None if partner < 0 else kept(partner), weight, margin)
            for number, rank, id, partner, weight, margin in zip(*columns, strict=True)
        ]
    return model, regret


@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_sample_has_the_recorded_estimate(name: str) -> None:
    sample = json.loads(SAMPLES.read_text())[name]
    model, regret = restored(name, sample)
    now, then = numbers(regret.estimate(model.design_many)), sample["estimate"]
    assert now["pair_loss"] == pytest.approx(then["pair_loss"], rel=1e-12)
    # The search stops at 1e-7, and its products may be rounded otherwise on another processor.
    assert now == pytest.approx(then, rel=1e-6)


@pytest.mark.parametrize("name", STREAMS)
def test_samples_agree_within_their_bands(name: str) -> None:
    """Of four other seeds, and the recorded one."""
    stream, make = STREAMS[name]
    (model, first), then = make(), json.loads(SAMPLES.read_text())[name]["estimate"]
    regrets = [first, *(make()[1] for _ in range(3))]
    for seed, regret in enumerate(regrets, 1):
        regret.seed = seed
        regret._empty()
    for x, y in stream():
        learn(model, regrets, x, y)
    estimates = [numbers(regret.estimate(model.design_many)) for regret in regrets]
    apart = [
        (each["total"] - then["total"]) / math.hypot(each["stderr"], then["stderr"]) for each in estimates
    ]
    assert max(map(abs, apart)) < 3.0
    assert 0.4 < np.mean([each["stderr"] for each in estimates]) / then["stderr"] < 2.5


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: followed(name) for name in STREAMS}, indent=1) + "\n")
