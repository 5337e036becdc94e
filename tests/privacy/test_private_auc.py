"""A private AUC: histograms of probabilities by class, over windows of slots (docs/privacy 10.8)."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampair import auc, privacy
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation import AUCWindow
from streampair.kernels import dp_steps
from streampair.privacy import ChainedNoise, EntityLimit, Origin
from streampair.privacy.mechanisms.private_auc import BINS, AucPlan, PrivateAUC, keep

NAMES = ["a", "b", "c"]
MAKERS: dict[str, Callable[..., Any]] = {
    "moments": lambda n, **more: auc.PairFTRL(1.0, 1e-4, n, warmup=100, features=NAMES, **more),
    "gradients": lambda n, **more: auc.PairFTRL(
        1.0, 1e-4, n, warmup=0, mechanism=privacy.PairGradients(), features=NAMES, **more
    ),
    "OnPairC": lambda n, **more: auc.OnPairC(1.0, 1e-4, n, features=NAMES, **more),
    "rated": lambda n, **more: auc.OnPairC(
        1.0, 1e-4, n, warmup=0, features=NAMES, positive_rate="released", **more
    ),
}


def stream(n: int, seed: int = 0, rate: float = 0.3, far: float = 2.0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < rate
    x = 0.2 * (rng.normal(size=(n, 3)) + np.outer(y - 0.5, [far, -far / 2, 0.0]))
    return pd.DataFrame(np.clip(x, -1.0, 1.0), columns=NAMES), y


def exact(scores: Any, labels: Any) -> float:
    window = AUCWindow(len(scores))
    window.extend([bool(y) for y in labels], [float(s) for s in scores])
    return window.get()


# ---- Lemma 65 ------------------------------------------------------------------------------------------


def moved(counted: Callable[..., None]) -> float:
    """How far the counts move, at most, over random pairs of records and links of any size."""
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(500):
        sums = np.zeros((2, 2, BINS), dtype=np.int64)
        slope, offset = rng.choice([1e-9, 1.0, 1e9]), rng.normal()
        for side in sums:
            score, label = rng.normal(size=1), rng.choice([1.0, -1.0, math.nan], 1)
            counted(score, label, float(slope), float(offset), side)
        most = max(most, float(np.linalg.norm(sums[0] - sums[1])))
    return most


def smoothed(scores: np.ndarray, labels: np.ndarray, slope: float, offset: float, counts: Any) -> None:
    """A mutant that counts a record in two bins next to each other, for a smoother curve."""
    dp_steps.class_bins(scores, labels, slope, offset, counts)
    dp_steps.class_bins(scores, labels, slope, offset + 0.2, counts)


def test_a_record_moves_the_counts_by_at_most_the_root_of_two() -> None:
    """Reached, by any two bins; the mutant that counts a record twice moves further."""
    assert moved(dp_steps.class_bins) == math.sqrt(2.0) == AucPlan(1.0).sensitivity
    assert moved(smoothed) > 1.9


@pytest.mark.parametrize("horizon", [None, 1, 250, 1000, 12_345])
def test_a_slot_is_in_one_window(horizon: int | None) -> None:
    plan = AucPlan(1.0, horizon=horizon)
    ends = [0]
    while ends[-1] < (horizon or 5_000):
        ends.append(plan.end(ends[-1]))
        assert ends[-1] > ends[-2]
    assert horizon is None or ends[-1] == horizon
    for steps in range(0, ends[-1] + 1, 7):
        ended = sum(end <= steps for end in ends[1:])
        assert plan.windows(steps) == ended
        assert plan.slots(max(ended - 2, 0), ended) == ends[ended] - ends[max(ended - 2, 0)]
    assert plan.mu_spent(ends[1]) == pytest.approx(1.0)
    assert plan.mu_spent(ends[1] - 1) == 0.0


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("more", [{}, {"forks": 2, "window": 50}, {"entity": EntityLimit(3, 10)}])
def test_the_account_composes_both(name: str, more: dict[str, Any]) -> None:
    model = MAKERS[name](300, auc_share=0.2, **more)
    plan, forks = model.run.state.plan, more.get("forks", 0)
    learning = model.settings.mu_learning**2
    spent = plan.companion.mu_spent(300) ** 2 + forks * plan.companion.fork_mu2(50)
    assert spent == pytest.approx(0.2 * learning)
    assert plan.mu_spent(300) ** 2 + forks * plan.fork_mu2(50) == pytest.approx(learning, rel=1e-3)
    assert plan.companion.sensitivity == pytest.approx(math.sqrt(2.0) * (3 if "entity" in more else 1))
    x, y = stream(300)
    if "entity" not in more:
        model.learn_many(x, y)
        assert model.privacy.mu_spent <= model.settings.mu
        before = model.privacy.mu_spent
        model.charge(1)
        charged = math.sqrt(model.privacy.mu_spent**2 - before**2)
        assert charged >= math.sqrt(plan.fork_mu2(model.settings.window)) * (1.0 - 1e-9) or not forks
    line = model.privacy.card[-1]
    assert line["lemma"] == "docs/privacy, Lemma 65"
    assert line["mu2"] == pytest.approx(plan.companion.move**2)


def first_counts(label: bool, monkeypatch: pytest.MonkeyPatch | None) -> np.ndarray:
    """The first histogram, noise and all, of records so much alike that no gradient tells a label."""
    if monkeypatch is not None:
        monkeypatch.setattr(ChainedNoise, "extend", lambda *_: None)
    model = MAKERS["gradients"](200, auc_share=0.2, noise_key=bytes(32))
    for slot in range(200):
        y = label if slot == 7 else True
        model.learn_one(dict.fromkeys(NAMES, 0.5), y, Origin(context=str(slot).encode()))
    return np.asarray(model.run.state.histograms)


@pytest.mark.parametrize("mutant", [False, True])
def test_noise_of_counts_depends_on_them(mutant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant keys it by gradients alone: two views of other labels, subtracted, then show them."""
    one, two = (first_counts(label, monkeypatch if mutant else None) for label in (True, False))
    assert bool(np.abs(one - two).sum() == 2.0) is mutant


# ---- what it tells -------------------------------------------------------------------------------------


def errors(mutant: Callable[[PrivateAUC, float], float], runs: int = 400) -> float:
    """Mean squared error of the AUC, in squared standard errors, over draws of sample and noise."""
    rng, sigma, gap, squares = np.random.default_rng(5), 4.0, 1.2, []
    true = 0.5 * (1.0 + math.erf(gap / 2.0))  # of normals of variance 1
    for _ in range(runs):
        y = rng.random(1500) < 0.25
        scores, counts = rng.normal(size=1500) + gap * y, np.zeros((2, BINS), dtype=np.int64)
        dp_steps.class_bins(scores, np.where(y, 1.0, -1.0), 1.0, -0.4, counts)
        found = PrivateAUC.of(counts + sigma * rng.normal(size=counts.shape), sigma, mu2=0.1)
        assert found.value is not None
        squares.append(((found.value - true) / mutant(found, sigma)) ** 2)
    return float(np.mean(squares))


def stated(found: PrivateAUC, sigma: float) -> float:
    assert found.stderr is not None
    return found.stderr


def without_noise(found: PrivateAUC, sigma: float) -> float:
    """A mutant that forgets the noise of the counts."""
    return stated(PrivateAUC.of(np.array([found.positives, found.negatives]), 1e-9, mu2=0.1), sigma)


def twice_the_noise(found: PrivateAUC, sigma: float) -> float:
    return stated(PrivateAUC.of(np.array([found.positives, found.negatives]), 2.0 * sigma, mu2=0.1), sigma)


def test_the_standard_error_is_the_error() -> None:
    """Two-sided, at p < 1e-4: of 400 squares the mean is within 0.28 of 1; Hanley and McNeil's is wide."""
    assert 0.7 < errors(stated) < 1.28
    assert errors(without_noise) > 1.6
    assert errors(twice_the_noise) < 0.5


@pytest.mark.parametrize("name", ["moments", "gradients", "rated"])
def test_it_agrees_with_the_exact_one(name: str) -> None:
    """The AUC of the same scores, exactly, over seeds: within what is stated; a coin's is not."""
    apart, coins = [], []
    for seed in range(6):
        x, y = stream(3000, seed)
        model = MAKERS[name](3000, auc_share=0.4, seed=seed)
        scores = model.score_learn_many(x, y)
        auc_report = model.privacy.auc
        kept = np.asarray(scores)[-auc_report["slots"] :]
        apart.append((auc_report["value"] - exact(kept, y[-auc_report["slots"] :])) / auc_report["stderr"])
        coins.append((auc_report["value"] - 0.5) / auc_report["stderr"])
        assert auc_report["ties"] < 0.2
    # 22.5 is the point of chi squared of 6 that is passed once in a thousand times.
    assert np.sum(np.square(apart)) < 22.5 < np.sum(np.square(coins))


def test_rare_positives_are_not_all_in_the_lowest_bin() -> None:
    """Bins of the calibrated probability itself, as 10.8 had them, hold one record beside the other."""
    x, y = stream(20_000, rate=0.02, far=1.0)
    model = auc.PairFTRL(20.0, 1e-4, 20_000, warmup=1000, features=NAMES, auc_share=0.2, seed=1)
    scores = np.asarray(model.score_learn_many(x, y))
    auc_report = model.privacy.auc
    assert auc_report is not None
    true = exact(scores[-auc_report["slots"] :], y[-auc_report["slots"] :])
    assert abs(auc_report["value"] - true) < 4.0 * auc_report["stderr"] + auc_report["ties"] / 2.0
    assert auc_report["ties"] < 1.5 / BINS  # evenly filled bins hold one pair in as many as there are bins
    p, counts = model._probas(scores), np.zeros((2, BINS), dtype=np.int64)
    for label, row in zip((True, False), counts, strict=True):
        row[:] = np.histogram(p[y == label], bins=BINS, range=(0.0, 1.0))[0]
    assert PrivateAUC.of(counts.astype(float), 1e-9, mu2=1.0).ties > 0.2  # type: ignore[operator]


def test_windows_are_merged_and_none_is_lost() -> None:
    """Each is in one of the sums; the newest are by themselves, and there are few sums."""
    sums: list[np.ndarray] = []
    sizes: list[int] = []
    for number in range(1000):
        keep(sums, sizes, np.array([1.0, number]))
        assert sum(sizes) == number + 1
        assert [entry[0] for entry in sums] == sizes
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-2:] == [1, 1][: number + 1]
    assert sum(entry[1] for entry in sums) == 1000 * 999 / 2
    assert len(sums) < 40


def test_too_few_is_said_and_a_number_is_not() -> None:
    counts = np.zeros((2, BINS))
    counts[0, 20], counts[1, 10] = 100.0, 5000.0
    sigma = 100.0 / (4.0 * math.sqrt(BINS))
    assert not PrivateAUC.of(counts, sigma * 0.999, mu2=0.1).too_few
    few = PrivateAUC.of(counts, sigma * 1.001, mu2=0.1)
    assert few.too_few
    assert few.value is few.stderr is few.ties is None
    report = MAKERS["moments"](1000, auc_share=0.05).privacy
    assert report.auc["too_few"]
    assert "Private AUC: too few" in report.details
    assert MAKERS["moments"](1000).privacy.auc is None


# ---- neighbours, copies, batches -----------------------------------------------------------------------


class Same:
    """The same normals for two streams."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(4)

    def take(self, count: int) -> np.ndarray:
        return self._rng.normal(size=count) * [[1.0], [0.0]]


def public_values(slot: int, content: tuple[dict[str, float], Any] | None) -> list[Any]:
    """What is public along a stream whose record of one slot is `content`, with shared noise."""
    model = auc.PairFTRL(20.0, 1e-4, 900, warmup=100, features=NAMES, auc_share=0.4)
    model.run.use(Same())  # type: ignore[union-attr]
    x, y = stream(900)
    out = []
    window = model.run.state.plan.companion.window  # type: ignore[union-attr]
    for index, (row, label) in enumerate(zip(x.to_dict("records"), y, strict=True)):
        model.learn_one(*((row, label) if index != slot or content is None else content))
        if index % 50 == 49 or index in (slot, slot + 1):
            report = model.privacy
            out.append((report.releases, repr(report.auc), report.mu_spent))
    assert 100 < window < 400
    return out


def test_neighbours_show_the_same_until_the_window_of_the_record_ends() -> None:
    """With shared noise: before, everything; for two contents of a null record everything, always."""
    slot = 850
    one, two = (
        public_values(slot, None),
        public_values(slot, ({"a": 1.0, "b": -1.0, "c": 1.0}, not stream(900)[1][slot])),
    )
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]
    assert [each[0] for each in one] == [each[0] for each in two]
    bad = [
        public_values(200, content)
        for content in (({"a": 1.0}, True), ({"a": 0.1, "b": 9.0, "c": 0.0}, None))
    ]
    assert bad[0] == bad[1]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_rows_at_once_are_rows_one_by_one(name: str, key: bytes | None) -> None:
    x, y = stream(700)
    one, many = (MAKERS[name](700, auc_share=0.5, noise_key=key, seed=None if key else 1) for _ in range(2))
    for index, (row, label) in enumerate(zip(x.to_dict("records"), y, strict=True)):
        if index == 333 and key:  # a state in the middle of a window, and of a stretch of one scale
            state = pickle.loads(pickle.dumps(one.to_state()))
            one = MAKERS[name](700, auc_share=0.5, noise_key=key)
            one.load_state(state)
        one.learn_one(row, label)
    for part in (slice(0, 5), slice(5, 400), slice(400, 700)):
        many.score_learn_many(x[part], y[part])
    assert one.privacy.auc == many.privacy.auc
    assert one.privacy.auc["windows"] > 0
    copied = copy.deepcopy(many)
    assert copied.privacy.auc == many.privacy.auc
    assert one.weights_vector.tolist() == many.weights_vector.tolist()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: auc.PairFTRL(auc_share=0.0), "auc_share is 0.0"),
        (lambda: auc.PairFTRL(auc_share=0.6), "auc_share is 0.6"),
        (lambda: auc.PairFTRL(auc_share=True), "auc_share is True"),
        (lambda: auc.OnPairC(1.0, 1e-4, 50, calibration="paper", auc_share=0.1), "the paper's calibration"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_plan_of_another_noise_is_refused() -> None:
    model = MAKERS["moments"](200, auc_share=0.1)
    plan = model.plan()
    assert plan["plan"]["mechanism"]["auc_sigma"] == model.run.state.plan.companion.sigma
    MAKERS["moments"](200, auc_share=0.1).load_plan(plan)
    plan["plan"]["mechanism"]["auc_sigma"] *= 0.9
    with pytest.raises(SnapshotError, match="auc_sigma"):
        MAKERS["moments"](200, auc_share=0.1).load_plan(plan)


def test_the_audit_has_a_part_for_it_without_an_end_too() -> None:
    model = auc.PairFTRL(20.0, 1e-3, warmup=0, features=["a"], auc_share=0.5)
    *_, part = privacy.audit(model, slots=8, runs=30).parts
    assert part.part == "auc"
    assert part.slots == model.run.state.plan.companion.window  # type: ignore[union-attr]
    assert not part.failures
    assert part.exact == pytest.approx(part.accounted)
