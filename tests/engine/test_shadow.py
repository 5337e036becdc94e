"""A shadow learner sees what a lane sees, and nothing of it leaves but the AUC that operators are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streampair import auc
from streampair.engine import ExternalState, Lane, LoggedLane, Record, Shadow
from streampair.engine.lane import SHADOWED
from streampair.engine.testing import decode_json
from streampair.errors import ConfigError
from streampair.privacy import NoiseKey

WHERE: dict[str, Any] = {"app": "a", "topic": "t", "partition": 0}
OPTIONS = {"epsilon": 1.0, "delta": 1e-4, "horizon": 400, "warmup": 10, "features": ["a"]}
ROWS = [json.dumps({"x": {"a": i % 7 / 7}, "y": i % 7 > 3}).encode() for i in range(60)]
ROWS[20:22] = [b"bad", b'{"x": {"a": 0.5}}']
RECORDS = [Record(i, row, None, 1000 + i) for i, row in enumerate(ROWS)]


def shadow(learner: Any = None) -> Shadow:
    return Shadow(auc.PairOGD(seed=3) if learner is None else learner, decode_json, **WHERE)


def logged(challenger: Shadow | None) -> LoggedLane:
    learner = auc.PairFTRL(**OPTIONS, noise_key=NoiseKey(bytes(range(32))))
    made = LoggedLane(learner, decode_json, **WHERE, shadow=challenger)
    made.read(b"")
    made.start(ExternalState(registers=False))
    return made


def life(challenger: Shadow | None) -> list[Any]:
    """All that leaves a lane: scores, dead letters, lines, commits with their snapshots."""
    made, out = logged(challenger), []
    for start in range(0, 60, 15):
        output = made.process(RECORDS[start : start + 15])
        out += [output.scores, output.dead_letters, output.line, made.commit(snapshot=True)]
        made.committed()
    return out


def test_what_leaves_a_lane_is_the_same_with_it_bit_for_bit() -> None:
    assert life(None) == life(shadow())


class Loud(Shadow):
    """A mutant, which lends its state to the lane's snapshots."""

    def process(self, records: Any) -> None:
        super().process(records)
        assert self._lane is not None
        self.of._state_of_shadow = self._lane.learner.to_state()

    of: Any


def test_the_comparison_can_tell() -> None:
    class Leaky(LoggedLane):
        def snapshot(self, *, clean: bool = False) -> bytes:
            return super().snapshot(clean=clean) + repr(self._state_of_shadow).encode()

        _state_of_shadow: Any = None

    challenger = Loud(auc.PairOGD(seed=3), decode_json, **WHERE)
    learner = auc.PairFTRL(**OPTIONS, noise_key=NoiseKey(bytes(range(32))))
    made = Leaky(learner, decode_json, **WHERE, shadow=challenger)
    challenger.of = made
    made.read(b"")
    made.start(ExternalState(registers=False))
    made.process(RECORDS[:15])
    assert made.commit(snapshot=True) != life(None)[3]


def test_operators_see_the_auc_that_it_has_alone() -> None:
    made = logged(shadow())
    alone = Lane(auc.PairOGD(seed=3), decode_json, **WHERE, on_bad="skip", breaker=None)
    for records in (RECORDS[:30], RECORDS[30:]):
        made.process(records)
        made.commit()
        made.committed()
        alone.process(records)
        quality = made.gauges().quality
        assert quality is not None
        assert quality.shadow_auc == alone.gauges().auc > 0.5
    without = logged(None)
    without.process(RECORDS)
    assert without.gauges().quality.shadow_auc is None  # type: ignore[union-attr]


@pytest.mark.parametrize("void", [False, True])
def test_the_report_says_that_it_is_there(void: bool) -> None:
    for kind in (Lane, LoggedLane):
        options = {"seed": 1} if void else {"noise_key": NoiseKey(bytes(range(32)))}
        made = kind(auc.PairFTRL(**OPTIONS, **options), decode_json, **WHERE, shadow=shadow())
        assert SHADOWED in made.privacy.notes
        assert SHADOWED in made.privacy.details
        assert (made.privacy.kind == "void") is void
    assert SHADOWED not in str(logged(None).privacy)
    assert Lane(auc.PairOGD(), decode_json, **WHERE, shadow=shadow()).privacy is None


def test_a_private_one_is_refused_for_nobody_would_account_for_it() -> None:
    with pytest.raises(ConfigError, match="private learner"):
        shadow(auc.PairFTRL(**OPTIONS))


def test_one_that_fails_stops_nothing() -> None:
    challenger = shadow()
    challenger._lane.process = None  # type: ignore[method-assign, assignment, union-attr]
    made = logged(challenger)
    with pytest.warns(UserWarning, match="is disabled until"):
        output = made.process(RECORDS[:15])
    assert len(output.scores) == 15
    made.commit()
    made.committed()
    made.process(RECORDS[15:30])
    assert challenger.auc is None
