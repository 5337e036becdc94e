"""Each mechanism as an audit gets nearest to it, and mutants that the audit has to catch.

Defects that unit tests would find too; here the audit alone has to (docs/privacy 9.11). It shows them in
what it computes exactly, so a few runs are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from streampair import auc, buffers, losses, metric, privacy, ranking
from streampair.base.dp_session import PrivateSession
from streampair.base.targets import RelevanceTarget
from streampair.kernels import dp_steps, random_trees
from streampair.privacy import EntityLimit
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms import (
    decayed_moments,
    dp_forest,
    ftrl,
    private_auc,
    second_moments,
    standardization,
)
from streampair.privacy.mechanisms.base import NoisySums
from streampair.records.features import Design
from streampair.records.random_trees import BINS

Break = Callable[[pytest.MonkeyPatch], None]
Prepare = Callable[[Design, np.ndarray, np.ndarray, np.ndarray], None]


def _scaled(patch: pytest.MonkeyPatch, target: Any, name: str, by: float = 0.9) -> None:
    true = getattr(target, name)
    made = (lambda *args, **options: by * true(*args, **options)) if callable(true) else by * true
    patch.setattr(target, name, made)


def small_diameter(patch: pytest.MonkeyPatch) -> None:
    """D is a tenth too small."""
    for loss in (losses.Hinge, losses.Logistic):
        _scaled(patch, loss, "diameter")
    _scaled(patch, second_moments, "_DIAMETER")
    _scaled(patch, decayed_moments, "_DIAMETER")
    _scaled(patch, dp_forest, "dp_forest_diameter")
    _scaled(patch, standardization, "moment_sensitivity")


def small_noise(patch: pytest.MonkeyPatch) -> None:
    """What leaves has a tenth less noise than the plan says."""
    privatize, output, toeplitz = NoisySums.privatize, dp_steps.output_releases, ftrl.ToeplitzNoise
    patch.setattr(NoisySums, "privatize", lambda self, noise: privatize(self, 0.9 * noise))
    patch.setattr(dp_steps, "output_releases", lambda cells, z, *more: output(cells, 0.9 * z, *more))
    patch.setattr(ftrl, "ToeplitzNoise", lambda c, dim, sigma: toeplitz(c, dim, 0.9 * sigma))


def first_row_alone(patch: pytest.MonkeyPatch) -> None:
    """A record is charged the release of its own block, and none of those that its block fades in."""
    rows = decayed_moments.DecayedMomentsPlan._rows_mu2
    patch.setattr(decayed_moments.DecayedMomentsPlan, "_rows_mu2", lambda self, count: rows(self, 1))


def no_ball(patch: pytest.MonkeyPatch) -> None:
    """Records are learned as long as they are."""
    patch.setattr(Design, "prepare", _as_they_are)


def no_bounds(patch: pytest.MonkeyPatch) -> None:
    """The warm-up takes values as they are."""
    patch.setattr(Design, "clip", _as_they_are)


def _as_they_are(self: Design, raw: np.ndarray, ready: np.ndarray, usable: np.ndarray) -> None:
    ready[:], usable[:] = raw, np.isfinite(raw).all(axis=1)


def wide_relevance(patch: pytest.MonkeyPatch) -> None:
    """Relevances reach a tenth beyond what they are scaled to."""
    true = RelevanceTarget.label
    patch.setattr(RelevanceTarget, "label", lambda self, y: 1.1 * true(self, y))


def learned_twice(patch: pytest.MonkeyPatch) -> None:
    """The last record of the warm-up is learned too, in the first slot of those that follow."""
    take_warmup = PrivateSession._take_warmup

    def both(self: PrivateSession, ready: Any, usable: Any, label: Any, stream: Any, chain: Any) -> None:
        take_warmup(self, ready, usable, label, stream, chain)
        if self.slots == self.settings.warmup:
            self.state.learn(ready, label, stream)
            self.slots += 1  # or the last slot would be one more than the noise is planned for

    patch.setattr(PrivateSession, "_take_warmup", both)


def one_record(patch: pytest.MonkeyPatch) -> None:
    """The account knows of one record of an entity, however many are learned from."""
    true = second_moments.placed.__wrapped__  # what the mutant finds must not be remembered
    patch.setattr(second_moments, "placed", lambda ends, limit, *more: true(ends, EntityLimit(1), *more))
    patch.setattr(EntityLimit, "within", lambda self, slots: min(slots, 1))


def blanked(patch: pytest.MonkeyPatch) -> None:
    """A histogram is charged as if a record could only come or go, and not change bins."""
    patch.setattr(private_auc, "_MOVE", 1.0)


def no_noise_where_empty(patch: pytest.MonkeyPatch) -> None:
    """Bins without a record leave as they are."""
    privatize = NoisySums.privatize

    def occupied(self: NoisySums, noise: np.ndarray) -> np.ndarray:
        return privatize(
            self, noise * (self.to_state() != 0) if noise.shape == (2, 2, private_auc.BINS) else noise
        )

    patch.setattr(NoisySums, "privatize", occupied)


def no_leaves(patch: pytest.MonkeyPatch) -> None:
    """The noise is that of second moments and histograms alone."""
    true = dp_forest.dp_forest_diameter
    patch.setattr(dp_forest, "dp_forest_diameter", lambda d, leaf, mark, trees: true(d, 0.0, mark, trees))


#: Of a forest as an audit makes it: two features, and two trees of four leaves.
PACKED, LEAVES, WIDTH = 5, 8, 5 + 2 * 8 + 2 * BINS


def empty_leaves_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Where nothing was counted nothing is added."""
    privatize = NoisySums.privatize

    def occupied(self: NoisySums, noise: np.ndarray) -> np.ndarray:
        return privatize(self, noise * (self.to_state() != 0) if noise.size == 2 * WIDTH else noise)

    patch.setattr(NoisySums, "privatize", occupied)


def counts_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Labels of leaves have noise, and how many records there are has none."""
    privatize = NoisySums.privatize

    def labels_alone(self: NoisySums, noise: np.ndarray) -> np.ndarray:
        if noise.size == 2 * WIDTH:
            noise = noise.copy()
            noise[:, PACKED : PACKED + LEAVES] = 0.0
        return privatize(self, noise)

    patch.setattr(NoisySums, "privatize", labels_alone)


def centred_leaves(patch: pytest.MonkeyPatch) -> None:
    """Labels are centred before they are summed, and not after that."""
    true = random_trees.tree_sums

    def centred(rows: Any, labels: Any, d: int, trees: int, leaves: int, sums: np.ndarray) -> None:
        first, before = d * (d + 1) // 2 + d, sums.copy()
        true(rows, labels, d, trees, leaves, sums)
        counted = slice(first, first + leaves)
        sums[first + leaves : first + 2 * leaves] -= sums[counted] - before[counted]

    patch.setattr(random_trees, "tree_sums", centred)


@dataclass(frozen=True)
class Case:
    """A learner, slots of a run, what of its account shows at least, and in which parts its mutants do."""

    model: Any
    slots: int
    share: float
    mutants: dict[Break, str] = field(default_factory=dict)


MU, DELTA = 3.0, 1e-3
BUDGET: dict[str, Any] = {"epsilon": promised_epsilon(MU, DELTA), "delta": DELTA}
SMALL: dict[str, Any] = {**BUDGET, "buffer": buffers.FIFO(4)}
FTRL: dict[str, Any] = {**BUDGET, "mechanism": privacy.PairGradients(buffer=buffers.FIFO(4))}
# A logistic loss is steepest, and flattest, everywhere where its gradients are clipped. Where they are not,
# two runs that are far apart lose slope, unless the weights are led away first. What is left over shows in
# runs of few and long steps.
CLIPPED: dict[str, Any] = {**SMALL, "horizon": 40, "clip": 0.25}

BOTH = "warm-up learning"
CASES = {
    "moments": Case(
        auc.PairFTRL(**BUDGET, horizon=10**4, features=["a", "b"]),
        12,
        0.98,
        {small_diameter: BOTH, small_noise: BOTH, no_ball: "learning", no_bounds: "warm-up"},
    ),
    "moments, endless": Case(
        auc.PairFTRL(**BUDGET, features=["a", "b", "c"]), 12, 0.98, {learned_twice: "warm-up"}
    ),
    "moments that fade": Case(
        auc.PairFTRL(**BUDGET, features=["a", "b"], mechanism=privacy.DecayedMoments(10_000)),
        12,
        0.98,
        {small_diameter: BOTH, small_noise: BOTH, first_row_alone: "learning"},
    ),
    "moments, evaluated": Case(
        auc.PairFTRL(**BUDGET, horizon=10**4, features=["a", "b"], auc_share=0.2),
        12,
        0.98,
        {blanked: "auc", no_noise_where_empty: "auc", small_noise: f"{BOTH} auc"},
    ),
    "gradients, evaluated, entities": Case(
        auc.PairFTRL(
            **FTRL,
            horizon=40,
            features=["a"],
            entity=EntityLimit(3, 5),
            warmup=0,
            auc_share=0.2,
        ),
        24,
        0.95,
        {blanked: "auc"},
    ),
    "forest": Case(
        auc.PrivateForest(**BUDGET, horizon=10**4, features=["a", "b"]),
        8,
        0.98,
        {
            **{small_diameter: BOTH, small_noise: BOTH, no_ball: "learning", no_leaves: "learning"},
            **{empty_leaves_as_they_are: "learning", counts_as_they_are: "learning"},
            **{centred_leaves: "learning"},
        },
    ),
    "forest, endless, entities": Case(
        auc.PrivateForest(**BUDGET, features=["a", "b", "c"], entity=EntityLimit(3, 2)),
        8,
        0.9,
        {one_record: BOTH},
    ),
    "gradients": Case(
        auc.PairFTRL(**FTRL, horizon=40), 24, 0.98, {small_diameter: "learning", small_noise: "learning"}
    ),
    "gradients, warm-up": Case(
        auc.PairFTRL(**FTRL, horizon=10**5, features=["a", "b"]), 12, 0.98, {learned_twice: "warm-up"}
    ),
    "OnPairStrC": Case(
        auc.OnPairStrC(**CLIPPED, l2=0.1), 40, 0.98, {small_diameter: "learning", small_noise: "learning"}
    ),
    "OnPairC": Case(auc.OnPairC(**CLIPPED), 40, 0.98, {small_diameter: "learning"}),
    "OnPairStrC, default clip": Case(
        auc.OnPairStrC(**SMALL, horizon=60, l2=1.0), 60, 0.91, {small_diameter: "learning"}
    ),
    "OnPairC, as made": Case(
        auc.OnPairC(**BUDGET, horizon=40), 40, 0.93, {small_diameter: "learning", small_noise: "learning"}
    ),
    "moments, entities": Case(
        auc.PairFTRL(**BUDGET, horizon=10**4, features=["a", "b"], entity=EntityLimit(3, 2)),
        16,
        0.97,
        {small_diameter: BOTH, small_noise: BOTH, one_record: BOTH},
    ),
    "moments, endless, entities": Case(
        auc.PairFTRL(**BUDGET, features=["a", "b"], entity=EntityLimit(3)), 16, 0.95, {one_record: BOTH}
    ),
    "gradients, entities": Case(
        auc.PairFTRL(
            **FTRL,
            horizon=40,
            features=["a"],
            entity=EntityLimit(3, 5),
            warmup=0,
        ),
        24,
        0.95,
        {small_diameter: "learning"},
    ),
    "OnPairStrC, entities": Case(
        auc.OnPairStrC(**CLIPPED, l2=0.1, features=["a"], entity=EntityLimit(3, 6)),
        40,
        0.95,
        {small_diameter: "learning", small_noise: "learning", one_record: "learning"},
    ),
    "OnPairC, entities": Case(
        auc.OnPairC(**CLIPPED, features=["a"], entity=EntityLimit(3, 6)), 40, 0.9, {one_record: "learning"}
    ),
    "ranking": Case(ranking.PairFTRL(**FTRL, horizon=40, relevance=(0, 4)), 24, 0.98),
    "ranking, moments": Case(
        ranking.PairFTRL(**BUDGET, horizon=10**4, relevance=(0, 4), features=["a", "b"]),
        12,
        0.98,
        {small_diameter: BOTH, small_noise: BOTH, wide_relevance: BOTH},
    ),
    "metric": Case(metric.PairFTRL(**FTRL, horizon=90), 90, 0.98),
    "metric, moments": Case(
        metric.PairFTRL(**BUDGET, horizon=10**4, features=["a", "b"], classes=["x", "y", "z"]),
        12,
        0.98,
        {small_diameter: BOTH, small_noise: BOTH, no_ball: "learning"},
    ),
    "metric OnPairStrC": Case(
        metric.OnPairStrC(**{**CLIPPED, "clip": 0.1}, l2=0.1), 40, 0.98, {small_diameter: "learning"}
    ),
}
#: Learners of which less than 0.9 shows, and what does.
LOOSE = {
    "OnPairStrC, long steps": Case(auc.OnPairStrC(**SMALL, horizon=40, l2=0.1), 40, 0.84),
    # The dearest records lie together, and the audit's are where they show most; neither is a bound's sum.
    "OnPairStrC, entities, next to each other": Case(
        auc.OnPairStrC(**CLIPPED, l2=0.1, features=["a"], entity=EntityLimit(3)), 40, 0.7
    ),
    "metric, too short": Case(metric.PairFTRL(**FTRL, horizon=40), 24, 0.7),
}
