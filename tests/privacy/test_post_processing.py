"""Everything public is computed from what has left through the gates (docs/privacy 9.9).

Stream B is run with the released values of stream A put in the place of its own: then all that an observer
sees must be what stream A showed, bit for bit. Whatever looks past a gate, at a raw label mean, a raw sum or
a raw variance, is seen by this, and by no test of the noise.
"""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampair import auc, buffers, history, metric, models, privacy, ranking
from streampair.base.dp_session import PrivateSession
from streampair.privacy.mechanisms import second_moments as moments_module
from streampair.privacy.mechanisms.base import NoisySums
from streampair.privacy.mechanisms.ftrl import SummedGradients
from streampair.privacy.mechanisms.output_perturbation import SecretIterate
from streampair.privacy.mechanisms.private_auc import WithPrivateAUCState
from streampair.privacy.mechanisms.standardization import Warmup
from streampair.privacy.mechanisms.start_moments import StartMoments
from streampair.privacy.noise import rounded, scaled

NAMES = ["a", "b", "c"]
SLOTS, PREFIX = 120, 30
PROBE = {"a": 0.3, "b": -0.2, "c": 0.1}


def settings(warmup: int = PREFIX, **more: Any) -> dict[str, Any]:
    return {"epsilon": 2.0, "delta": 1e-3, "features": NAMES, "warmup": warmup, "seed": 3, **more}


LEARNERS: dict[str, Callable[[], Any]] = {
    "moments": lambda: auc.PairFTRL(**settings(horizon=SLOTS)),
    "moments without end": lambda: auc.PairFTRL(**settings()),
    "moments that fade": lambda: auc.PairFTRL(**settings(mechanism=privacy.DecayedMoments(16))),
    "gradients, square root": lambda: auc.PairFTRL(
        **settings(horizon=SLOTS, mechanism=privacy.PairGradients())
    ),
    "gradients, BLT": lambda: auc.PairFTRL(
        **settings(mechanism=privacy.PairGradients(buffer=buffers.FIFO(4)))
    ),
    "gradients, reservoir": lambda: auc.PairFTRL(
        **settings(mechanism=privacy.PairGradients(buffer=buffers.Reservoir(4, max_uses=6)))
    ),
    "output": lambda: auc.OnPairStrC(**settings(horizon=SLOTS, l2=0.1)),
    "output, few releases": lambda: auc.OnPairC(**settings(horizon=SLOTS, releases=9)),
    "gradients, with a share": lambda: auc.PairFTRL(
        **settings(horizon=SLOTS, mechanism=privacy.PairGradients(positive_rate="released"))
    ),
    "moments, evaluated": lambda: auc.PairFTRL(**settings(horizon=SLOTS, auc_share=0.4)),
    "gradients, with a share, evaluated": lambda: auc.PairFTRL(
        **settings(horizon=SLOTS, mechanism=privacy.PairGradients(positive_rate="released"), auc_share=0.4)
    ),
    "output, evaluated": lambda: auc.OnPairStrC(**settings(horizon=SLOTS, l2=0.1, auc_share=0.4)),
    "ranking": lambda: ranking.PairFTRL(**settings()),
    "ranking, gradients": lambda: ranking.PairFTRL(**settings(mechanism=privacy.PairGradients())),
    "metric": lambda: metric.PairFTRL(**settings(horizon=SLOTS)),
    "metric, moments": lambda: metric.PairFTRL(**settings(horizon=SLOTS, classes=[True, False])),
    "metric, output": lambda: metric.OnPairStrC(**settings(horizon=SLOTS, l2=0.1)),
}


def begun(name: str) -> Callable[[], Any]:
    """A learner of `LEARNERS` that begins with a model (Lemma 97)."""

    def make() -> Any:
        source = ranking.PairOGD(seed=1) if name == "ranking" else auc.PairOGD(seed=1)
        for i in range(40):
            source.learn_one({"a": 0.1 * (i % 7), "b": 0.2 * (i % 2), "c": -0.1 * (i % 5)}, i % 2 == 0)
        return models.export(source).to_online(LEARNERS[name](), public=True)

    return make


STARTED = ["moments", "moments that fade", "gradients, BLT", "output, few releases"]
LEARNERS |= {f"{name}, from a model": begun(name) for name in [*STARTED, "ranking"]}


@functools.cache
def table_model() -> models.Model:
    """The model of a table whose means of features and labels are those of stream 0."""
    rng, rows = np.random.default_rng(1), 2000
    columns = {name: rng.normal(0.0, 0.2, rows) for name in NAMES}
    job = history.Job(
        auc.PairFTRL(2.0, 1e-3, features=NAMES), label="y", rows=rows, row_id="id", salt="post-processing"
    )
    data = {**columns, "y": rng.random(rows) < 0.2, "id": np.arange(rows)}
    with tempfile.TemporaryDirectory() as folder:
        return history.fit(job, [data], bytes(32), account=Path(folder) / "account.json")


# A budget so large that releases of 120 records decide something.
WITH_TABLE: dict[str, Any] = {"epsilon": 12.0, "delta": 1e-3, "features": NAMES, "warmup": PREFIX, "seed": 3}
LEARNERS |= {
    "moments, with a table": lambda: table_model().to_online(auc.PairFTRL(**WITH_TABLE)),
    "moments, with a table and an end": lambda: table_model().to_online(
        auc.PairFTRL(**WITH_TABLE, horizon=SLOTS)
    ),
}


def stream(model: Any, seed: int) -> list[tuple[dict[str, Any], Any]]:
    """Records of another content for every seed; some cannot be used."""
    rng = random.Random(seed)
    out: list[tuple[dict[str, Any], Any]] = []
    for _ in range(SLOTS):
        x: dict[str, Any] = {name: rng.gauss(0.1 * seed, 0.2 + 0.1 * seed) for name in NAMES}
        if rng.random() < 0.1:
            x["b"] = None
        label: Any = rng.random() < 0.2 + 0.3 * seed
        if type(model).__module__.endswith("ranking"):
            label = rng.uniform(-1.0, 1.0)
        out.append((x, label))
    return out


class Tape:
    """What left through the gates, in order: recorded in one run, played in another."""

    def __init__(self) -> None:
        self.released: list[np.ndarray] = []
        self.position: int | None = None  # None: recording

    def next(self, value: np.ndarray) -> np.ndarray:
        """The value to release in the place of `value`."""
        if self.position is None:
            self.released.append(value.copy())
            return value
        self.position += 1
        return self.released[self.position - 1]


def thread(monkeypatch: pytest.MonkeyPatch, tape: Tape) -> None:
    """Put the tape behind every gate: noise is chosen so that the tape's value leaves."""
    sums, summed, output = NoisySums.privatize, SummedGradients.privatize, SecretIterate.privatize

    def privatize_sums(self: Any, noise: np.ndarray) -> np.ndarray:
        return tape.next(sums(self, noise))

    def privatize_summed(
        self: Any, rows: np.ndarray, labels: np.ndarray, noise: np.ndarray, rates: Any, t: int
    ) -> None:
        cells = self.cells(rows, labels, t).copy()
        wanted = tape.next(self.total + cells + noise[0])
        summed(self, rows, labels, (wanted - self.total - cells)[None, :], rates, t)
        assert np.array_equal(self.total, wanted)

    def privatize_output(self: Any, normals: np.ndarray, t: int) -> None:
        plan, cells = self._plan, np.frombuffer(self.cells(), dtype=np.int64)
        scale = plan.sigmas[t] / plan.grids[t]
        wanted = tape.next(cells + rounded(scaled(normals, scale)))
        output(self, np.stack(((wanted - cells) / scale, np.zeros(len(cells)))), t)

    monkeypatch.setattr(NoisySums, "privatize", privatize_sums)
    monkeypatch.setattr(SummedGradients, "privatize", privatize_summed)
    monkeypatch.setattr(SecretIterate, "privatize", privatize_output)


def public(model: Any) -> list[Any]:
    """All that an observer sees."""
    report = model.privacy
    seen = [
        model.weights_vector.tobytes(),
        model.score_one(PROBE),
        model.design(PROBE).tobytes(),
        str(report),
        repr(report.card),
        repr(report.auc),
        (report.releases, report.mu_spent, report.epsilon_spent, report.noise_std),
        (model.slots, model.horizon_left, model.feature_names, model.buffer_records),
    ]
    if hasattr(model, "predict_proba_one"):
        seen.append(model.predict_proba_one(PROBE))
    if hasattr(model, "transform_one"):
        seen.append(model.transform_one(PROBE))
    return seen


def run(make: Callable[[], Any], seed: int) -> list[list[Any]]:
    """What is seen along the way, and at the end."""
    model, seen = make(), []
    for slot, (x, y) in enumerate(stream(model, seed), start=1):
        model.learn_one(x, y)
        if slot % 8 == 0:
            seen.append(public(model))
    return seen


def agrees(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> bool:
    """Whether stream 1, on the released values of stream 0, shows what stream 0 showed."""
    tape = Tape()
    thread(monkeypatch, tape)
    first = run(make, 0)
    assert tape.released
    tape.position = 0
    second = run(make, 1)
    assert tape.position == len(tape.released)
    return first == second


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_public_is_computed_from_releases(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert agrees(monkeypatch, LEARNERS[name])


def test_without_the_tape_the_streams_differ() -> None:
    assert run(LEARNERS["moments"], 0) != run(LEARNERS["moments"], 1)


# ---- mutants: each looks past a gate --------------------------------------------------------------


def raw_label_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Warmup.release

    def release(self: Warmup, source: Any) -> Any:
        raw = float(self.sums.to_state()[0, -1]) / (self.plan.PER_UNIT * self.plan.slots)
        mean, factor, _ = true(self, source)
        return mean, factor, raw

    monkeypatch.setattr(Warmup, "release", release)


def raw_variances(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Warmup.release

    def release(self: Warmup, source: Any) -> Any:
        d = len(NAMES)
        mean, square = self.sums.to_state()[:2, :d] / (self.plan.PER_UNIT * self.plan.slots)
        released, _, label = true(self, source)
        return released, 1.0 / np.sqrt(np.maximum(square - mean**2, 1e-3) * d), label

    monkeypatch.setattr(Warmup, "release", release)


def raw_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    true, solve, trace = moments_module.ridge_of, moments_module.MomentsState._release, [0.0]

    def release(self: Any, source: Any) -> None:
        gate = self.total if self._at_horizon() else self.block
        trace[0] = float(np.abs(gate.to_state()).sum())
        solve(self, source)

    monkeypatch.setattr(moments_module.MomentsState, "_release", release)
    monkeypatch.setattr(
        moments_module, "ridge_of", lambda second, cross, rate, *rest: true(second, cross, rate, trace[0])
    )


def raw_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiple of the start vector that follows from the exact sums."""
    true, solve, size = moments_module.solve_towards, moments_module.MomentsState._release, [0.0]

    def release(self: Any, source: Any) -> None:
        gate = self.total if self._at_horizon() else self.block
        size[0] = 1.0 + 1e-9 * float(np.abs(gate.to_state()).sum())
        solve(self, source)

    def towards(start: np.ndarray, *rest: Any) -> Any:
        w, trace = true(start, *rest)
        return w + 1e-3 * size[0] * start, trace

    monkeypatch.setattr(moments_module.MomentsState, "_release", release)
    monkeypatch.setattr(moments_module, "solve_towards", towards)


def raw_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning that begins at weights which a record of the warm-up has moved."""
    true = PrivateSession._begin_at_start

    def begin(self: PrivateSession) -> None:
        true(self)
        if self.warmup is not None:
            self.state.begin_at(self.weights + 1e-6 * float(np.sum(self.design.raw[0] > 0.0)))

    monkeypatch.setattr(PrivateSession, "_begin_at_start", begin)


def raw_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of a table that are dropped by the exact sums."""
    true, solve, size = StartMoments.is_of, moments_module.MomentsState._release, [0]

    def release(self: Any, source: Any) -> None:
        gate = self.total if self._at_horizon() else self.block
        size[0] = int(np.abs(gate.to_state()).sum())
        solve(self, source)

    monkeypatch.setattr(moments_module.MomentsState, "_release", release)
    monkeypatch.setattr(StartMoments, "is_of", lambda *arguments: true(*arguments) and size[0] % 3 > 0)


def raw_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standardisation that is chosen by the last record of the warm-up."""
    true = PrivateSession._agrees

    def agrees_with(self: PrivateSession, *arguments: Any) -> bool:
        return true(self, *arguments) and float(self.design.raw[0].sum()) > 0.0

    monkeypatch.setattr(PrivateSession, "_agrees", agrees_with)


def raw_step(gate: type[Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A step size by the norm of the exact gradient."""

    def mutant(monkeypatch: pytest.MonkeyPatch) -> None:
        true = gate.privatize

        def privatize(
            self: Any, rows: np.ndarray, labels: np.ndarray, noise: np.ndarray, rates: Any, t: int
        ) -> None:
            size = 1.0 + float(np.abs(self.cells(rows, labels, t)).sum())
            true(self, rows, labels, noise, rates / size, t)

        monkeypatch.setattr(gate, "privatize", privatize)

    return mutant


def raw_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases weighted by the exact iterate."""
    true = SecretIterate.privatize

    def privatize(self: SecretIterate, normals: np.ndarray, t: int) -> None:
        self.weight *= 1.0 + abs(int(np.frombuffer(self.cells(), dtype=np.int64).sum()) % 7)
        true(self, normals, t)

    monkeypatch.setattr(SecretIterate, "privatize", privatize)


def raw_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AUC of as many windows as have enough positives, by the exact counts."""
    true = WithPrivateAUCState._release_if_due

    def went(self: WithPrivateAUCState, stream: Any) -> None:
        positives = int(self.sums.to_state()[0].sum())
        before = sum(self._sizes)
        true(self, stream)
        if sum(self._sizes) > before:
            self._sums[-1] = self._sums[-1] + positives

    monkeypatch.setattr(WithPrivateAUCState, "_release_if_due", went)


MUTANTS = [
    ("moments, evaluated", raw_counts),
    ("output, evaluated", raw_counts),
    *[(name, raw_variances) for name in LEARNERS if "with a table" not in name],
    *[(name, raw_label_mean) for name in ("moments", "moments without end", "ranking")],
    *[(name, raw_ridge) for name in ("moments", "moments without end", "moments, from a model")],
    ("moments, with a table", raw_comparison),
    ("moments, with a table", raw_agreement),
    ("moments, from a model", raw_gain),
    ("moments, from a model", raw_start),
    ("output, few releases, from a model", raw_start),
    ("gradients, square root", raw_step(SummedGradients)),
    ("gradients, BLT", raw_step(SummedGradients)),
    ("metric", raw_step(SummedGradients)),
    ("output", raw_weight),
    ("output, few releases", raw_weight),
    ("metric, output", raw_weight),
]


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_a_look_past_a_door_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)
    assert not agrees(monkeypatch, LEARNERS[name])
