"""What Li et al. (2020) measure: a metric from pairs of individuals, whose relations are hidden.

Pairs are drawn at random, twice as many as there are individuals, as in the paper; the larger class is
thinned out to the smaller one's size. The paper's margin is a mean over private distances; here it is
declared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.errors import ConfigError

from .protocol import Outcome, Sample, learner_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["contrastive", "related", "strips"]

#: Individuals of the paper's experiments: half of their pairs.
_MOST = {"adult": 18_700, "bank": 8_464}
#: What is tested: every record that is in no pair, but no more than so many.
_TESTED = 1000
_NEIGHBOURS = 5
_SETTINGS: dict[str, Any] = {"batch_size": 50, "epochs": 3, "clip": 0.5, "margin": 1.0}
_WIDTH = 32


def strips() -> Sample:
    """Two classes of a hundred points, in two aligned strips: the toy example of the paper."""
    rng = np.random.default_rng(20)
    positive = np.arange(200) >= 100
    along, across = rng.normal(0.0, 0.3, 200), rng.normal(0.0, 0.04, 200)
    rows = np.stack([along, across + np.where(positive, 0.12, -0.12)], axis=1)
    return Sample("strips", rows / np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None], positive)


def _forest() -> NDArray[np.int64]:
    """Fifty pairs in each class of the strips and fifty between them, without a cycle."""
    path = np.stack([np.arange(50), np.arange(1, 51)], axis=1)
    between = np.stack([np.arange(51, 100), np.arange(151, 200)], axis=1)
    return np.concatenate([path, path + 100, between, [[0, 100]]])


def contrastive(matrix: Floats, rows: Floats, pairs: NDArray[np.int64], alike: Any, margin: float) -> float:
    """Mean over pairs of half the squared distance of those alike, and of what others lack to the margin.

    Parameters
    ----------
    matrix
        W with rows as directions, (d', d): distances are of ``W x``.
    rows, pairs, alike
        Individuals (n, d), which of them are in a pair (m, 2), and whether these are alike (m,).
    margin
        How far apart others should be.
    """
    distance = np.linalg.norm((rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ matrix.T, axis=1)
    return float(np.mean(np.where(alike, distance**2, np.maximum(margin - distance, 0.0) ** 2)) / 2.0)


def _drawn(data: Sample, seed: int) -> tuple[Sample, NDArray[np.int64], Sample]:
    """Individuals, their pairs, and records that are in none."""
    if data.name == "strips":
        return data, _forest(), data
    rng = np.random.default_rng(seed)
    high, low = (rng.permutation(np.flatnonzero(data.positive == side)) for side in (True, False))
    each = min(len(high), len(low), _MOST[data.name] // 2)
    # Some of the rarer class have to be left to test with.
    each = min(each, int(0.9 * min(len(high), len(low))))
    known = rng.permutation(np.concatenate([high[:each], low[:each]]))
    others = rng.permutation(np.concatenate([high[each:], low[each:]]))[:_TESTED]
    parts = [
        Sample(data.name, data.rows[part_rows], data.positive[part_rows]) for part_rows in (known, others)
    ]
    return parts[0], random_pairs(len(known), rng), parts[1]


def random_pairs(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Pairs of two of n individuals, twice as many as individuals where there are so many, each once."""
    found = np.sort(rng.integers(n, size=(4 * n, 2)), axis=1)
    different = np.unique(found[found[:, 0] < found[:, 1]], axis=0)
    return rng.permutation(different)[: 2 * n]


def _model(job: Mapping[str, Any], data: str, d: int, delta: float, seed: int) -> Any:
    """A learner that has learned nothing yet."""
    made, variant = learner_of("offline.DPPMetricLearner"), job["variant"]
    if variant == "default":
        return made(job["epsilon"], delta, random_state=seed, connected=False)
    settings = {**_SETTINGS, "n_components": min(_WIDTH, d), **job["options"]}
    if data == "strips":
        settings |= {"batch_size": 30, "epochs": 10}
    noise = settings.get("noise")
    if variant == "tight" and noise == "batch-maximum":
        raise ConfigError("nothing makes this noise private", fix="read the row of DPP")
    # The other kinds of noise are exact as they are: the paper has no constants for them.
    literal = variant == "paper" and noise is None
    return made(
        job["epsilon"],
        delta,
        calibration="paper" if literal else "tight",
        random_state=seed,
        connected=False,
        **settings,
    )


def related(job: Mapping[str, Any], data: Sample, seed: int) -> Outcome:
    """Accuracy of five neighbours' vote in the learned metric, or the contrastive loss of the learned pairs.

    Raises
    ------
    ConfigError
        If there is no such learner, or it refuses.
    """
    known, pairs, others = _drawn(data, seed)
    alike = known.positive[pairs[:, 0]] == known.positive[pairs[:, 1]]
    model = _model(job, data.name, known.rows.shape[1], 0.0 if job["pure"] else 1.0 / len(known.rows), seed)
    model.fit(known.rows, alike, pairs)
    spent = float(getattr(model.privacy, "epsilon_spent", math.nan))
    if job["measure"] == "objective":
        return Outcome(contrastive(model.components_, known.rows, pairs, alike, model.margin), spent)
    from sklearn.neighbors import KNeighborsClassifier

    vote = KNeighborsClassifier(_NEIGHBOURS).fit(known.rows @ model.components_.T, known.positive)
    return Outcome(float(vote.score(others.rows @ model.components_.T, others.positive)), spent)
