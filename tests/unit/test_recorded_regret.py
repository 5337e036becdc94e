"""Regret on recorded streams: estimate, band and sample are those that were recorded (golden/regret.json).

cd tests && python -m unit.test_recorded_regret   # records them anew
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from harness import support
from river import datasets

from streampair import auc, losses, metric, ranking
from streampair.evaluation import Regret
from streampair.metric import PairOGD

FILE = support.ROOT / "tests" / "golden" / "regret.json"
#: Estimates are recorded after so many events, and in the end.
EVERY = 500


def phishing() -> Iterator[tuple[dict[str, float], Any]]:
    """Twice: more events than the sample takes all of."""
    return itertools.chain(datasets.Phishing(), datasets.Phishing())


def relevances() -> Iterator[tuple[dict[str, float], Any]]:
    for x, y in phishing():
        yield x, 0.5 * x["anchor_from_other_domain"] - x["empty_server_form_handler"] + 0.25 * y


def rankings(loss: Any) -> tuple[Any, Any]:
    model = ranking.PairOGD(loss=loss, seed=1)
    return model, Regret(model.pair_loss, 1.0, label=model.label_number, pairs=64, exact=32)


def pairs(loss: Any, pairs: int = 64) -> tuple[Any, Any]:
    model = auc.PairOGD(loss=loss, seed=1)
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
        regret.observe(
            x, y, 0.0 if name.startswith("metric") else model.score_one(x), getattr(model, "score_one", float)
        )
        model.learn_one(x, y)
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
            found.append(
                {
                    "n": n,
                    "total": estimate.total,
                    "stderr": estimate.stderr,
                    "comparator_loss": estimate.comparator_loss,
                    "pair_loss": estimate.pair_loss,
                    "sample": digest.hexdigest(),
                }
            )
    return found


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


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: followed(name) for name in STREAMS}, indent=1) + "\n")
