"""What a lane asks of a learner, and that no account is left out without a word."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from harness.driver import Driver
from river import dummy, linear_model, preprocessing

from streampair import auc, metric, ranking
from streampair.engine.foreign import ForeignLearner
from streampair.engine.protocols import LaneLearner, PrivateModel, Scorer, SerializableStep, missing
from streampair.errors import ConfigError
from streampair.privacy.pipeline_check import is_private

LEARNERS = [
    kind
    for family in (auc, metric, ranking)
    for name in family.__all__
    if inspect.isclass(kind := getattr(family, name))
]


@pytest.mark.parametrize("kind", LEARNERS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_both_questions_about_privacy_have_the_same_answer_for_every_learner(kind: Any) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-4, "horizon": 50}
    learner = kind(**(budget if "epsilon" in inspect.signature(kind).parameters else {}))
    assert isinstance(learner, Scorer)
    assert isinstance(learner, PrivateModel) == is_private(learner) == hasattr(learner, "epsilon")
    assert missing(learner, Scorer) == missing(learner, LaneLearner) == []
    assert (missing(learner, PrivateModel) == []) == is_private(learner)


def test_steps_of_river_are_foreign() -> None:
    for step in (linear_model.LogisticRegression(), preprocessing.StandardScaler()):
        assert not isinstance(step, SerializableStep)
        assert not isinstance(step, PrivateModel)
        assert not isinstance(step, LaneLearner)


def test_the_adapter_gives_a_lane_all_that_it_asks() -> None:
    learner = ForeignLearner(linear_model.LogisticRegression(), positive=True)
    assert missing(learner, LaneLearner) == []
    learner.learn_one({"a": 1.0}, True)
    assert list(learner.scaled_weights or ()) == ["a"]
    assert ForeignLearner(dummy.PriorClassifier(), positive=True).scaled_weights is None


@pytest.mark.parametrize("name", ["charge", "mark_restarted", "bind_noise", "take_or_raise", "to_state"])
def test_a_private_learner_whose_account_cannot_be_kept_is_refused(name: str) -> None:
    """The mutant: asked for `PrivateModel` alone, it would run without an account."""

    class Lacking:
        def __init__(self) -> None:
            self._learner = auc.PairFTRL(horizon=50, features=list("abc"))

        def __getattr__(self, wanted: str) -> Any:
            if wanted in (name, "_learner") or wanted.startswith("__"):
                raise AttributeError(wanted)
            return getattr(self._learner, wanted)

    assert is_private(Lacking())
    assert missing(Lacking(), PrivateModel) == [name]
    with pytest.raises(ConfigError, match=f"it lacks {name}"):
        Driver(Lacking)
