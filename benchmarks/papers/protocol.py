"""One measurement of a cell: a learner fitted under one seed, and its result.

Features are scaled to [-1, 1] by the range of the whole set, which is taken as public, and each record is
pulled into the unit ball. A seed draws which n records are learned, and the noise; the others are the test.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair import auc, buffers, losses, metric
from streampair.errors import ConfigError
from streampair.evaluation import RollingAUC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Outcome", "Sample", "fitted", "learned", "objective", "ranked", "sample", "split"]

#: The label that ranks high: in AUC the rarer one, as the files are described.
POSITIVE = {
    "diabetes": "-1",
    "diabetic_retinopathy": "1",
    "hepatitis": "1",
    "breast_cancer": "0",
    "german": "2",
    "adult": ">50K",
    "bank": "yes",
}
_LETTERS = frozenset("NOPQRSTUVWXYZ")

#: Of a risk that nobody perturbs: so large that what noise there is vanishes. Its delta is 0, since the
#: rounding of Gaussian noise would need more than any other.
_WITHOUT_NOISE = 1e6
_NEIGHBOURS = 3


@dataclass(frozen=True)
class Sample:
    """A set, ready to be learned.

    Attributes
    ----------
    name
        Of the set.
    rows
        Records in the unit ball, (n, d).
    positive
        Which of them should rank high, (n,).
    """

    name: str
    rows: Floats
    positive: NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """Result of one measurement: a value, or a reason why there is none.

    Attributes
    ----------
    value
        The measure; nan with a reason.
    epsilon
        What the accountant says was spent; nan without privacy.
    reason
        Why there is no value; empty if there is one.
    extra
        Further numbers by name: the bound of a theorem.
    """

    value: float = math.nan
    epsilon: float = math.nan
    reason: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)


def sample(name: str, columns: Sequence[Sequence[str]], labels: Sequence[str]) -> Sample:
    """A set from the texts of its file.

    A column that is not of numbers has one feature for each of its values. A missing number is the median of
    its column, a missing text a value of its own. A column of one value is left out.

    Parameters
    ----------
    name
        A set of the manifests.
    columns
        Of the features, each with the text of every record.
    labels
        One for each record.

    Raises
    ------
    ConfigError
        If it is not known which label ranks high, or if a class is missing.

    Examples
    --------
    >>> from benchmarks.papers.protocol import sample
    >>> sample("diabetes", [["0", "1", "2"], ["a", "", "a"]], ["1", "-1", "1"]).rows.shape
    (3, 3)
    """
    if name == "letter":
        positive = np.array([label in _LETTERS for label in labels])
    elif name in POSITIVE:
        positive = np.array([label == POSITIVE[name] for label in labels])
    else:
        raise ConfigError(f"no protocol knows a set {name!r}", fix=f"use {', '.join([*POSITIVE, 'letter'])}")
    if positive.all() or not positive.any():
        raise ConfigError(f"{name} has one class", fix="give the set with its original labels")
    features = [feature for column in columns for feature in _features(column)]
    scaled = []
    for feature in features:
        low, high = float(feature.min()), float(feature.max())
        if high > low:
            scaled.append(2.0 * (feature - low) / (high - low) - 1.0)
    rows = np.stack(scaled, axis=1)
    rows /= np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    return Sample(name, np.ascontiguousarray(rows), positive)


def _features(column: Sequence[str]) -> list[Floats]:
    try:
        numbers = np.array([float(cell) if cell else math.nan for cell in column])
    except ValueError:
        values = sorted(set(column))
        return [np.array([float(cell == value) for cell in column]) for value in values]
    known = np.isfinite(numbers)
    if not known.all():
        numbers[~known] = np.median(numbers[known]) if known.any() else 0.0
    return [numbers]


def split(data: Sample, n: int, seed: int) -> tuple[Sample, Sample]:
    """The n records that a seed draws, and the others.

    Raises
    ------
    ConfigError
        If there are not so many, or one part lacks a class.
    """
    if n >= len(data.rows):
        raise ConfigError(f"{data.name} has {len(data.rows)} records, and {n} are too many", fix="take fewer")
    order = np.random.default_rng(seed).permutation(len(data.rows))
    parts = [
        Sample(data.name, data.rows[part_rows], data.positive[part_rows])
        for part_rows in (order[:n], order[n:])
    ]
    if any(part.positive.all() or not part.positive.any() for part in parts):
        raise ConfigError("the records that the seed draws are of one class", fix="use another seed")
    return parts[0], parts[1]


def learned(job: Mapping[str, Any], data: Sample, seed: int) -> Outcome:
    """AUC, accuracy or objective of one fit: see `measuring.measure`."""
    if job["measure"] not in ("AUC", "accuracy", "objective"):
        raise ConfigError(f"no protocol measures {job['measure']!r}", fix="take another manifest")
    known, others = split(data, job["n"], seed)
    model, epsilon = fitted(job, known, seed)
    if job["measure"] == "AUC":
        return Outcome(ranked(model, others), epsilon)
    if job["measure"] == "accuracy":
        return Outcome(_voted(model, known, others), epsilon)
    return Outcome(objective(model, known, job["task"], job["l2"]), epsilon)


def fitted(job: Mapping[str, Any], known: Sample, seed: int) -> tuple[Any, float]:
    """A learner that has learned the records, and the epsilon that it has spent.

    Parameters
    ----------
    job
        What `Cell.job` gave.
    known
        What is learned.
    seed
        Of noise and coins.

    Raises
    ------
    StreampairError
        If it refuses.
    """
    n = len(known.rows)
    delta = 0.0 if job["pure"] else 1.0 / n
    if job["variant"] == "default":
        model = _default(job, known, delta, seed)
    else:
        model = _of_paper(job, known, delta, seed)
    report = getattr(model, "privacy", None)
    spent = float(report.epsilon_spent) if report is not None and job["epsilon"] else math.nan
    return model, spent


def _default(job: Mapping[str, Any], known: Sample, delta: float, seed: int) -> Any:
    """What the library takes: moments for (epsilon, delta), gradients of all pairs for pure epsilon."""
    online = auc if job["task"] == "auc" else metric
    if not job["epsilon"]:
        return _streamed(online.PairOGD(seed=seed), known)
    if job["pure"]:
        from streampair import offline

        learner = offline.DPGDC(job["epsilon"], 0.0, task=job["task"], random_state=seed)
        return learner.fit(known.rows, known.positive)
    more: dict[str, Any] = {"classes": [False, True]} if job["task"] == "metric" else {}
    n, d = known.rows.shape
    model = online.PairFTRL(
        job["epsilon"],
        delta,
        n,
        bounds=dict.fromkeys(range(d), (-1.0, 1.0)),
        features=range(d),
        noise_key=_key(seed),
        **more,
    )
    return _streamed(model, known)


def no_privacy() -> ConfigError:
    """Note on the tight calibration of a learner without a privacy guarantee."""
    return ConfigError("no privacy is promised here", fix="read the other columns")


def _of_paper(job: Mapping[str, Any], known: Sample, delta: float, seed: int) -> Any:
    n, d = known.rows.shape
    options = dict(job["options"])
    if not job["epsilon"] and job["variant"] == "tight":
        raise no_privacy()
    dim = d if job["task"] == "auc" else d * (d + 1) // 2
    epsilon = job["epsilon"] or _WITHOUT_NOISE
    if options.get("steps") == "theorem 2":  # T of Xue et al., Theorem 2
        options["steps"] = max(1, min(n, int(n**2 * epsilon**2 / (dim * math.log(n)))))
    elif options.get("steps") == "remark 2":  # T of Kang et al., Remark 2
        options["steps"] = max(1, math.ceil(math.log(n * epsilon / math.sqrt(dim))))
    if job["l2"]:
        options["l2"] = job["l2"]
    room, _, name = job["learner"].rpartition(".")
    if room == "offline":
        made = learner_of(job["learner"])
        # Without noise there is no need for the random first iterates, which are there for its proof.
        calibration = job["variant"] if job["epsilon"] else "tight"
        delta = delta if job["epsilon"] else 0.0
        model = made(epsilon, delta, task=job["task"], calibration=calibration, random_state=seed, **options)
        return model.fit(known.rows, known.positive)
    made = getattr(auc if job["task"] == "auc" else metric, name)
    if not job["epsilon"]:
        # Each record meets all before it, as in Kar et al. (2013).
        model = made(loss=losses.Logistic(), buffer=buffers.FullHistory(), **options)
        return _streamed(model, known)
    model = made(
        epsilon,
        delta,
        n,
        features=range(d),
        bounds=dict.fromkeys(range(d), (-1.0, 1.0)),
        buffer=buffers.FullHistory(),  # each record meets all before it
        calibration=job["variant"],
        noise_key=_key(seed),
        **options,
    )
    return _streamed(model, known)


def learner_of(path: str) -> Any:
    """A learner of `streampair.offline` by its path.

    Raises
    ------
    ConfigError
        If this version has none of that name.
    """
    from streampair import offline

    name = path.rpartition(".")[2]
    if not hasattr(offline, name):
        raise ConfigError(f"needs {path}, which this version does not have", fix="use one that has it")
    return getattr(offline, name)


def _key(seed: int) -> bytes:
    return hashlib.sha256(f"reproduce {seed}".encode()).digest()


def _streamed(model: Any, known: Sample) -> Any:
    model.learn_many(known.rows, known.positive)
    return model


def scores(model: Any, rows: Floats) -> Floats:
    """Scores of a learner of either kind, (n,)."""
    many = getattr(model, "score_many", None)
    out: Floats = np.asarray(model.decision_function(rows) if many is None else many(rows), dtype=np.float64)
    return out


def ranked(model: Any, others: Sample) -> float:
    """AUC on records that were not learned."""
    made = RollingAUC(window=len(others.rows))
    made.extend(others.positive.tolist(), scores(model, others.rows).tolist())
    return made.get()


def _voted(model: Any, known: Sample, others: Sample) -> float:
    """Share of records whose three nearest learned ones, in the learned metric, outvote none of it."""
    from sklearn.neighbors import KNeighborsClassifier

    many: Callable[[Floats], Any] = getattr(model, "transform_many", None) or model.transform
    vote = KNeighborsClassifier(_NEIGHBOURS).fit(np.asarray(many(known.rows)), known.positive)
    return float(vote.score(np.asarray(many(others.rows)), others.positive))


def objective(model: Any, known: Sample, task: str, l2: float) -> float:
    """Mean logistic pair loss of all ordered pairs of two records, and ``l2 / 2 |w|^2``.

    Weights outside the unit ball are pulled into it: the papers' are in it.

    Parameters
    ----------
    model
        That has learned.
    known
        The records whose pairs count.
    task
        ``"auc"`` or ``"metric"``.
    l2
        Strength of the ridge term.
    """
    loss, n = losses.Logistic(), len(known.rows)
    if task == "metric":
        matrix = np.asarray(model.metric_, dtype=np.float64)
        norm = float(np.linalg.norm(matrix))
        matrix = matrix / max(norm, 1.0)
        mapped = known.rows @ matrix
        norms = np.einsum("ij,ij->i", mapped, known.rows)
        squares = norms[:, None] + norms - 2.0 * mapped @ known.rows.T
        signs = np.where(known.positive[:, None] == known.positive, 1.0, -1.0)
        values = loss.value(signs * (1.0 - squares))
    else:
        # A linear score: its slope along each feature is its weight.
        d = known.rows.shape[1]
        weights = scores(model, np.eye(d)) - scores(model, np.zeros((1, d)))
        norm = float(np.linalg.norm(weights))
        found = known.rows @ (weights / max(norm, 1.0))
        c = known.positive[:, None].astype(float) - known.positive
        values = loss.value(2.0 * c * (found[:, None] - found))
    np.fill_diagonal(values, 0.0)
    return float(values.sum() / (n * (n - 1.0)) + 0.5 * l2 * min(norm, 1.0) ** 2)
