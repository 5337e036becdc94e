"""A canary audit of a table and of the lane that begins with its model, as one mechanism (docs/privacy 9.5).

One person has a row of the table and a record of the lane. Seen are the releases of both stages, the sums in
the model file, the release of the lane's warm-up and those of its blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness.audit_mutants import small_noise
from harness.table_mutants import both_stages, less_noise

from streampair import auc, history, models, privacy
from streampair.assurance.audit import _outcome
from streampair.assurance.canary import Impulses
from streampair.history.jobs import Job
from streampair.models import starting
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms.standardization import Warmup
from streampair.privacy.mechanisms.table_moments import SumsRelease, TableMomentsState
from streampair.privacy.noise import ChainedNoise

EPSILON, DELTA = 8.0, 1e-4
NAMES, BOUNDS = ("a", "b"), {"a": (-2.0, 2.0), "b": (-2.0, 2.0)}
ROWS, WARM, SLOTS = 600, 8, 12
IMPULSE = 64.0
REJECT = 3.719  # one-sided, p = 1e-4
RUNS = 40

#: Where the proof of Lemma 60 says; and of length 1, at an angle at which the product is -1/2 (Lemma 31).
WORST = {
    "first": (((2.0, 2.0), True), ((-0.365, -0.365), False)),
    "second": (((2.0, 0.0), True), ((-1.0, math.sqrt(3.0)), True)),
}


def public_standardisation(self: Warmup, released: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """As if every release of means and spreads were this, so that the worst later rows are known."""
    d = len(NAMES)
    self.released, self.cross = released.ravel(), np.stack((np.zeros(d), np.ones(d)))
    return np.zeros(d), np.ones(d), 0.0


class Audited(NamedTuple):
    """What the report promises, and mu: of the best attack, its lower bound, and the share of the noise."""

    claim: float
    epsilon: float
    exact: float
    lower: float
    noise: float


class Trial:
    """Runs of the whole path with a canary in a stage of the table and in a part of the lane."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, stage: str, part: str) -> None:
        patch.setattr(Warmup, "read", public_standardisation)
        draw = SumsRelease.draw

        def look(release: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
            self.seen.append(draw(release, sums, stream))
            return self.seen[-1].copy()

        patch.setattr(SumsRelease, "draw", look)
        self.patch, self.folder, self.number = patch, folder, 0
        self.seen: list[np.ndarray] = []
        self.claim = self.epsilon = math.nan
        x = np.random.default_rng(0).uniform(
            -2.0, 2.0, (ROWS, len(NAMES))
        )  # a lane begins with no empty model
        self.table = {**dict(zip(NAMES, x.T, strict=True)), "y": x[:, 0] > 0.0, "id": np.arange(ROWS)}
        job = self.job()
        rows = [job.sums({name: column[[i]] for name, column in self.table.items()}) for i in range(ROWS)]
        self.row = next(i for i, sums in enumerate(rows) if bool(sums.taken) == (stage == "first"))
        self.slot = WARM // 2 if part == "first" else WARM + 1
        self.contents = list(zip(WORST[stage], WORST[part], strict=True))

    def learner(self, **options: Any) -> auc.PairFTRL:
        return auc.PairFTRL(EPSILON, DELTA, bounds=BOUNDS, **options)

    def job(self) -> Job:
        return Job(self.learner(), label="y", rows=ROWS, row_id="id", salt="salt")

    def run(self, side: int, stream: Impulses | None = None) -> np.ndarray:
        """All that is released, under noise of new keys or under numbers of a stream."""
        self.seen, self.number = [], self.number + 1
        keys = [hashlib.sha256(f"{who} {self.number}".encode()).digest() for who in ("table", "lane")]
        (values, y), (record, label) = self.contents[side]
        table = {name: column.copy() for name, column in self.table.items()}
        table["y"][self.row] = y
        for name, value in zip(NAMES, values, strict=True):
            table[name][self.row] = value
        with self.patch.context() as patch:
            if stream is not None:
                patch.setattr(ChainedNoise, "take", lambda noise, count: stream.take(count))
            account = self.folder / str(self.number)
            model = history.fit(self.job(), [table], keys[0], account=account)
        lane = models.loads(models.dumps(model)).to_online(
            self.learner(
                warmup=WARM, horizon=WARM + SLOTS, mechanism=privacy.SecondMoments(), noise_key=keys[1]
            )
        )
        if stream is not None:
            lane.run.use(stream)
        lane.run.state.fits_model = False  # models are post-processing of the releases
        cells = len(NAMES) * (len(NAMES) + 3) // 2
        parts = [*self.seen, model._document.moments.array(cells)]  # type: ignore[union-attr]
        for slot in range(WARM + SLOTS):
            x = record if slot == self.slot else (0.0, 0.0)
            lane.learn_one(dict(zip(NAMES, x, strict=True)), label if slot == self.slot else False)
            if slot >= WARM - 1:
                parts.append(lane.run.warmup.released if slot == WARM - 1 else lane.run.released)
        report = lane.privacy
        self.claim, self.epsilon = report.mu_budget, report.epsilon_budget
        return np.concatenate([np.ravel(part) for part in parts])

    def audited(self, runs: int = 4) -> Audited:
        """The best attack, from the response of all that is seen to each single normal."""
        counter = Impulses()
        base, other = self.run(0, counter), self.run(1, Impulses())
        response = np.array(
            [(self.run(0, Impulses(i, IMPULSE)) - base) / IMPULSE for i in range(counter.drawn)]
        ).T
        gap, inverse = base - other, np.linalg.pinv(response, rcond=1e-10)
        attack = inverse @ gap
        bare = gap - response @ attack
        exact = float(np.linalg.norm(attack))
        weights = attack / exact @ inverse
        if np.linalg.norm(bare) > 1e-6 * np.linalg.norm(gap):  # a part of it has no noise
            exact, weights = math.inf, bare
        middle = (base + other) / 2
        sides = np.array([[weights @ (self.run(side) - middle) for _ in range(runs)] for side in (0, 1)])
        noise, measured, stderr = _outcome(sides)
        return Audited(self.claim, self.epsilon, exact, measured - REJECT * stderr, noise)


@pytest.mark.parametrize("part", ["first", "second"])
@pytest.mark.parametrize("stage", ["first", "second"])
def test_the_audit_of_the_whole_path_reaches_what_is_claimed(
    stage: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the runs are fixed, and so is the outcome."""
    found = Trial(monkeypatch, tmp_path, stage, part).audited(RUNS)
    assert 0.99 * found.claim < found.exact <= found.claim * (1 + 1e-6)
    assert 0.0 < found.lower <= found.claim
    assert promised_epsilon(found.lower, DELTA) < found.epsilon
    assert abs(found.noise - 1.0) < REJECT / math.sqrt(4 * (RUNS - 1))


def exact_start(patch: pytest.MonkeyPatch) -> None:
    """The lane begins with sums as they are."""
    draw, exact = SumsRelease.draw, []

    def look(release: SumsRelease, sums: np.ndarray, stream: Any) -> np.ndarray:
        exact[:] = [np.ldexp(release.grid * sums, -release.bits)]
        return draw(release, sums, stream)

    patch.setattr(SumsRelease, "draw", look)
    patch.setattr(TableMomentsState, "released_sums", property(lambda state: exact[0]))


def free_start(patch: pytest.MonkeyPatch) -> None:
    """What the table has spent is in no account."""
    true = starting._account_of
    patch.setattr(starting, "_account_of", lambda document, learner, public: true(document, learner, True))


MUTANTS = [
    (less_noise, "first", "second"),
    (less_noise, "second", "first"),
    (both_stages, "first", "second"),
    (exact_start, "second", "second"),
    (free_start, "first", "first"),
    (small_noise, "second", "second"),
]


@pytest.mark.parametrize(("mutant", "stage", "part"), MUTANTS, ids=lambda v: getattr(v, "__name__", v))
def test_a_defect_of_the_whole_path_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    stage: str,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    found = Trial(monkeypatch, tmp_path, stage, part).audited()
    assert found.exact > 1.03 * found.claim
    assert (found.exact == math.inf) == (mutant is exact_start)


def test_small_noise_of_the_whole_path_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = ChainedNoise.take
    trial = Trial(monkeypatch, tmp_path, "second", "second")
    monkeypatch.setattr(ChainedNoise, "take", lambda self, count: 0.4 * take(self, count))
    assert trial.audited(RUNS).noise < 1.0 - REJECT / math.sqrt(4 * (RUNS - 1))
