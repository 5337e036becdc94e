"""Options of a mechanism: values without state, as losses and buffers are."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import pytest
from streampair_connectors.config import parse_config
from streampair_connectors.worker.factory import build_learner

from streampair import auc, buffers, losses, metric, privacy, ranking
from streampair.errors import ConfigError

OPTIONS = [
    privacy.SecondMoments(),
    privacy.DecayedMoments(half_life=80),
    privacy.PairGradients(losses.Logistic(), buffers.Reservoir(8, max_uses=4), 0.5, "blt", 0.2),
]


def learner(mechanism: Any) -> auc.PairFTRL:
    horizon = None if isinstance(mechanism, privacy.DecayedMoments) else 400
    return auc.PairFTRL(1.0, 1e-4, horizon, mechanism=mechanism, warmup=20, seed=1)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: type(options).__name__)
def test_they_are_values(options: Any) -> None:
    again = dataclasses.replace(options)
    assert again == options == pickle.loads(pickle.dumps(options)) == options.clone()
    assert hash(again) == hash(options)
    assert repr(options) == str(options)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.clip = None
    assert learner(options).clone().mechanism == options


def test_a_part_is_changed_as_river_says() -> None:
    model = learner(OPTIONS[2]).clone({"mechanism": (privacy.PairGradients, {"clip": 2.0})})
    assert model.mechanism == dataclasses.replace(OPTIONS[2], clip=2.0)  # type: ignore[type-var]
    assert model.settings.clip == 2.0


def test_all_that_is_said_arrives() -> None:
    settings = learner(OPTIONS[2]).settings
    assert settings.loss == losses.Logistic()
    assert settings.clip == 0.5
    assert "a reservoir of 8 places, where each record is used at most 4 times" in settings.buffer.describe()
    assert learner(OPTIONS[0]).run is None
    assert learner(privacy.PairGradients()).settings.buffer.describe() == "a FIFO buffer of 32 places"


@pytest.mark.parametrize("module", [ranking, metric])
def test_other_families_refuse_what_is_of_two_classes(module: Any) -> None:
    classes = {"classes": ["x", "y"]} if module is metric else {}
    for options in OPTIONS[1:]:
        with pytest.raises(ConfigError, match=r"mechanism is .*Fix: "):
            module.PairFTRL(mechanism=options, **classes)


def test_a_configuration_says_the_same() -> None:
    mechanism = {
        "class": "streampair.privacy.PairGradients",
        "loss": {"class": "streampair.losses.Logistic"},
        "buffer": {"class": "streampair.buffers.Reservoir", "size": 8, "max_uses": 4},
    }
    table = {"topic": "events", "label": "y", "features": {"a": [-1, 1]}}

    def built(mechanism: Any) -> Any:
        options = {"epsilon": 1.0, "delta": 1e-4, "mechanism": mechanism}
        parts = {"class": "streampair.auc.PairFTRL", "options": options}
        return build_learner(parse_config({"app": "a", "input": table, "learner": parts}))

    expected = privacy.PairGradients(losses.Logistic(), buffers.Reservoir(8, max_uses=4))
    assert built(mechanism).mechanism == expected
    with pytest.raises(ConfigError, match=r"learner\.options\.mechanism: PairGradients has no option 'los'"):
        built({**mechanism, "los": 1})


def test_a_reservoir_of_a_learner_without_privacy_blanks_no_record() -> None:
    for kind in (auc.PairOGD, ranking.PairOGD, metric.PairOGD):
        with pytest.raises(ConfigError, match="leave max_uses out"):
            kind(buffer=buffers.Reservoir(4, max_uses=2))
    for wrong in (0, 2.5, True):
        with pytest.raises(ConfigError, match="max_uses is"):
            buffers.Reservoir(4, max_uses=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("loss", "mechanism=privacy.PairGradients(loss=...)"),
        ("half_life", "mechanism=privacy.DecayedMoments(half_life=...)"),
    ],
)
def test_the_error_for_an_option_of_a_mechanism_names_its_place(name: str, fix: str) -> None:
    with pytest.raises(TypeError, match=f"no parameter '{name}'. Fix: give {re.escape(fix)}"):
        auc.PairFTRL(epsilon=1.0, delta=1e-5, **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Fix: use one of"):
        auc.OAM(**{"half_life": 1})  # type: ignore[arg-type]
