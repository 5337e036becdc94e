"""Metric learning from labelled pairs with privacy of each relation of two individuals (Li et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import TransformerTags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from streampair.errors import ConfigError
from streampair.kernels import pair_graph
from streampair.offline.base import designs, validated, warn_of_scale
from streampair.offline.dpgd import checked_steps
from streampair.offline.pair_graph import PairGraph, ring_pairs
from streampair.privacy.accounting import warn_if_doubtful
from streampair.privacy.mechanisms.offline import TablePlan, TableReport, VectorGate, report_of
from streampair.privacy.mechanisms.pair_graph import (
    PairRelation,
    PairsPlan,
    SignGate,
    SignPlan,
    flipped,
    plan_inputs,
    plan_pairs,
    plan_signs,
    plan_staircase,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["DPPMetricLearner"]

# Noise, and in which norm a pair's gradient is clipped for it.
_NORMS = {
    "gaussian": pair_graph.NORM_L2,
    "laplace": pair_graph.NORM_L1,
    "staircase": pair_graph.NORM_MAX,
    "duchi": pair_graph.NORM_MAX,
    "inputs": pair_graph.NORM_L2,
    "batch-maximum": pair_graph.NORM_L1,
}


# What is released of a gradient, given the weights and the largest norm of each row in the batch.
_Emit: TypeAlias = Callable[["Floats", "Floats", "Floats"], "Floats"]


def _as_it_is(gradient: Floats, w: Floats, peaks: Floats) -> Floats:
    return gradient


@dataclass(frozen=True)
class NoGuarantee:
    """Placeholder of a report, for a reproduction of a paper without a privacy guarantee.

    Examples
    --------
    >>> from streampair.offline.dpp_metric import NoGuarantee
    >>> NoGuarantee("the noise depends on the data").kind
    'void'
    """

    guarantee: str
    kind: Literal["void"] = "void"

    def __str__(self) -> str:
        return f"NO GUARANTEE HOLDS: {self.guarantee}."


def _positive(name: str, value: Any) -> float:
    """A parameter, if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigError(f"{name} is {value!r}, not a number", fix="give a finite number above 0")
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} is {value!r}", fix="give a finite number above 0")
    return float(value)


@dataclass(eq=False, repr=False)
class DPPMetricLearner(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A metric from pairs that are alike or not, with pairwise privacy (Li et al., Algorithm 1).

    The contrastive loss of pairs of individuals is descended with noise in every gradient. Hidden is the
    relation of any two individuals: all that a reader who knows other pairs could infer it from, by the
    graph of pairs (`PairGraph`).

    Parameters
    ----------
    epsilon, delta
        The promise. With ``delta=0`` it is pure epsilon, and the noise Laplace's; else it is Gaussian.
    relation
        ``"transitive"``: kappa' pairs change together: relations can be inferred along paths, and features
        around cycles. ``"intransitive"``: features only. ``"node"``: all pairs of an individual, whose own
        features are then hidden too; the others do not hide these.
    bounds
        Declared public (low, high): two numbers, or one for each feature in both. Features are scaled by them
        to [-1, 1], then each individual is pulled into the unit ball. None: they are scaled.
    calibration
        ``"tight"``: the whole gradient of a pair is clipped, and noise is exact. ``"paper"``: to the letter,
        which clips rows and gives the noise that one of them needs to each; the report says what it
        guarantees.
    random_state
        None: noise under a key of the operating system. Anything else is for tests: the noise can be computed
        from it, and the report says that nothing is guaranteed.
    noise
        None: Gaussian, or Laplace's with ``delta=0``. Pure too: ``"staircase"``, and ``"duchi"``, which
        releases signs; for both the entries of a gradient are clipped. ``"inputs"``: features and labels are
        perturbed once, with ``relation="node"``. ``"batch-maximum"`` (the paper's DPP-S): no guarantee holds.
    reproduction_only
        Has to be True for what has no guarantee.
    n_components
        Rows d' of W; None: as many as features.
    margin
        How far apart pairs that are not alike should be: a number that is chosen without a look at the data.
    clip
        Largest norm h of the gradient of one pair.
    batch_size
        Pairs of a batch; None: all of them, which learns most from the least noise.
    epochs
        How often each pair is used.
    learning_rate
        Size of the first step; step t has a size of ``learning_rate / sqrt(t)``.
    pairs_each
        Where no pairs are given: as many pairs as individuals, so many times.
    connected
        Refuse pairs whose graph falls apart; False: it may.

    Attributes
    ----------
    components_
        W, (d', d).
    metric_
        ``W^T W``, (d, d), positive semi-definite.
    graph_
        The `PairGraph`.
    privacy
        The report of the last fit; None before it.

    Notes
    -----
    Guarantee: docs/privacy 6, for tables that differ in the contents of so many pairs. Who is in a pair
    with whom is public. An epoch takes O(m d d') time and O(m) memory for m pairs: a million of
    them with d = d' = 20 take half a second.

    References
    ----------
    Li, J., Pan, Y., Sui, Y. and Tsang, I. W. (2020). Secure metric learning via differential pairwise
    privacy. Algorithm 1, without the sensitivity reduction, which is not private.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(-0.5, 0.5, (4000, 3))
    >>> pairs = np.stack([np.arange(3999), np.arange(1, 4000)], axis=1)  # a chain: kappa' is 1
    >>> alike = (X[pairs[:, 0], 0] > 0) == (X[pairs[:, 1], 0] > 0)  # one feature matters
    >>> model = offline.DPPMetricLearner(epsilon=1.0, delta=1e-5).fit(X, alike, pairs)
    >>> int(model.metric_.diagonal().argmax()), model.privacy.epsilon_spent
    (0, 1.0)
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    relation: Literal["transitive", "intransitive", "node"] = "transitive"
    bounds: tuple[Any, Any] | None = None
    calibration: Literal["tight", "paper"] = "tight"
    random_state: Any = None
    noise: Literal["gaussian", "laplace", "staircase", "duchi", "inputs", "batch-maximum"] | None = None
    reproduction_only: bool = False
    n_components: int | None = None
    margin: float = 1.0
    clip: float = 0.5
    batch_size: int | None = None
    epochs: int = 20
    learning_rate: float = 1.0
    pairs_each: int = 2
    connected: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.estimator_type = "transformer"
        tags.transformer_tags = TransformerTags()
        return tags

    def fit(self, X: Any, y: Any, pairs: Any = None) -> Any:
        """Learn from pairs: every call is a release of its own, and the releases about a pair add up.

        Parameters
        ----------
        X
            Features of individuals, (n, d): numbers, and none of them missing.
        y
            With `pairs` whether each of them is alike, (m,): True or 1, else False, 0 or -1. Without them the
            class of each individual, (n,).
        pairs
            Which rows of X, (m, 2). None: everybody is in pairs with the next in a random ring, and two are
            alike if their classes agree.

        Raises
        ------
        ConfigError
            If a parameter is out of range, or the pairs cannot be learned: fewer than two individuals, no
            pair, a graph that falls apart, values that are not finite, pairs that are all alike or all not.
        """
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        rows, similar, graph = self._pairs(X, y, pairs, rng)
        relation, noise = self._hidden(graph), self._noise()
        size = self._size(len(similar))
        warn_if_doubtful(float(self.epsilon), float(self.delta), len(similar), "pairs", stacklevel=2)
        plans: list[TablePlan] = []
        releases = 0
        privatize: _Emit = _as_it_is
        words = "the features and labels of individuals were perturbed once, and the rest follows from them"
        if noise == "inputs":
            rows, similar, plans = self._perturbed(rows, similar, relation, seed)
            releases = sum(plan.releases for plan in plans)
        elif noise == "batch-maximum":
            privatize = self._reduced(relation, size, rng)
        else:
            plan = self._plan(noise, rows.shape[1], len(similar), relation)
            gate = SignGate(plan, seed) if isinstance(plan, SignPlan) else VectorGate(plan, seed)
            plans, releases = [plan], plan.releases
            words = f"each of {plan.releases} gradients is released under noise ({noise})"

            def released(gradient: Floats, w: Floats, peaks: Floats) -> Floats:
                return gate.privatize(gradient.ravel()).reshape(gradient.shape)

            privatize = released

        self.components_ = self._descend(rows, similar, graph, privatize, size, rng)
        self.graph_, self.metric_ = graph, self.components_.T @ self.components_
        if noise == "batch-maximum":
            self._report: TableReport | NoGuarantee = NoGuarantee(
                "the size of the noise is a maximum over private gradients, which nothing hides; this is to "
                "reproduce the DPP-S of Li et al. (2020) only"
            )
            return self
        self._report = report_of(
            float(self.epsilon),
            float(self.delta),
            plans,
            parallel=False,
            releases=releases,
            seeded=seed is not None,
            mechanism=(
                f"Mechanism: the contrastive loss of {len(similar)} pairs is descended; {words}. The number "
                f"kappa of pairs that change together is {relation.pairs}, by the graph of pairs."
            ),
            notes=self._notes(pairs is None),
            source="Li et al. (2020), Algorithm 1" if self.calibration == "paper" else "",
            relation=relation,
        )
        return self

    def _notes(self, drawn: bool) -> list[str]:
        notes = ["Who is in a pair with whom is taken as public."]
        if self.relation != "node":
            notes.append(
                "An individual's own features are in all its pairs, and are not hidden by this; "
                'relation="node" hides them.'
            )
        if drawn:
            notes.append("Pairs were drawn at random, and labelled by whether the classes of the two agree.")
        if self.bounds is not None:
            notes.append("The declared bounds are taken as public.")
        return notes

    def _pairs(
        self, X: Any, y: Any, pairs: Any, rng: np.random.Generator
    ) -> tuple[Floats, NDArray[np.bool_], PairGraph]:
        """Designs in the unit ball, whether each pair is alike, and the graph."""
        if pairs is None:
            X, y = validated(self, X, y)
            check_classification_targets(y)
        else:
            X = validated(self, X)
        if not np.isfinite(X).all():
            raise ConfigError(
                "X has NaN or infinity", fix="leave out or fill in such records before they are learned"
            )
        if len(X) < 2:
            raise ConfigError("n_samples = 1, and one record makes no pair", fix="give two records or more")
        warn_of_scale(X, self.bounds, "give bounds=(low, high), which are taken as public")
        if pairs is None:
            if len(np.unique(y)) < 2:
                raise ConfigError("y has one class, and pairs need two", fix="give records of both classes")
            each = checked_steps(self.pairs_each, "pairs_each")
            graph = PairGraph(ring_pairs(len(X), each, rng.permutation(len(X))), len(X))
            similar = y[graph.pairs[:, 0]] == y[graph.pairs[:, 1]]
            return designs(X, self.bounds), np.asarray(similar, dtype=bool), graph
        graph = PairGraph(pairs, len(X))
        similar = self._alike(y, len(graph.pairs))
        if self.connected and graph.components > 1:
            raise ConfigError(
                f"the graph is disconnected: it is in {graph.components} pieces",
                fix="fit each piece by itself, add pairs that join them, or give connected=False",
            )
        return designs(X, self.bounds), similar, graph

    @staticmethod
    def _alike(y: Any, m: int) -> NDArray[np.bool_]:
        labels = np.asarray(y)
        if labels.shape != (m,):
            raise ConfigError(
                f"y has shape {labels.shape}, and there are {m} pairs", fix="give a label a pair"
            )
        if labels.dtype.kind not in "biuf" or not np.isin(labels, (-1, 0, 1)).all():
            raise ConfigError(
                "y is not binary", fix="give True or 1 for pairs that are alike, else False or 0"
            )
        similar: NDArray[np.bool_] = labels == 1
        if similar.all() or not similar.any():
            raise ConfigError(
                "y has one class: pairs are all alike, or all not", fix="give pairs of both kinds"
            )
        return similar

    def _hidden(self, graph: PairGraph) -> PairRelation:
        if self.relation == "transitive":
            return PairRelation(pairs=graph.kappa_prime)
        if self.relation == "intransitive":
            return PairRelation(pairs=max(graph.kappa_intransitive, 1))
        if self.relation == "node":
            return PairRelation(pairs=graph.max_degree, person=True)
        raise ConfigError(f"relation is {self.relation!r}", fix='give "transitive", "intransitive" or "node"')

    def _width(self, d: int) -> int:
        width = d if self.n_components is None else checked_steps(self.n_components, "n_components")
        if width > d:
            raise ConfigError(f"n_components is {width}, and there are {d} features", fix=f"give at most {d}")
        return width

    def _noise(self) -> str:
        """Name of the noise, if it can give the guarantee."""
        noise = ("gaussian" if self.delta else "laplace") if self.noise is None else self.noise
        if noise not in _NORMS:
            raise ConfigError(f"noise is {noise!r}", fix=f"give one of {', '.join(_NORMS)}")
        if noise == "gaussian" and self.delta == 0.0:
            raise ConfigError(
                "delta is 0, and Gaussian noise has one", fix='give a delta, or noise="laplace"'
            )
        if noise in ("laplace", "staircase", "duchi") and self.delta != 0.0:
            raise ConfigError(f"{noise} noise is pure, and delta is {self.delta!r}", fix="give delta=0")
        if noise == "batch-maximum" and self.reproduction_only is not True:
            raise ConfigError(
                "this noise is as large as a maximum over private gradients, so that no guarantee holds",
                fix="give reproduction_only=True to reproduce the paper, or another noise",
            )
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration is {self.calibration!r}", fix='give "tight" or "paper"')
        if self.calibration == "paper" and noise not in ("gaussian", "laplace"):
            raise ConfigError(f"the paper has no constants for {noise} noise", fix='give calibration="tight"')
        if noise == "inputs" and self.relation != "node":
            raise ConfigError("perturbed inputs hide individuals", fix='give relation="node"')
        return noise

    def _size(self, m: int) -> int:
        """Number of pairs in a batch."""
        return m if self.batch_size is None else min(checked_steps(self.batch_size, "batch_size"), m)

    def _plan(self, noise: str, d: int, m: int, relation: PairRelation) -> PairsPlan:
        """Plan of the gradients' release."""
        size, epochs = self._size(m), checked_steps(self.epochs, "epochs")
        width, clip = self._width(d), _positive("clip", self.clip)
        move = 2.0 * clip / size
        options: dict[str, Any] = {
            "relation": relation,
            "dim": width * d,
            "batch": size,
            "batches": m // size,
            "epochs": epochs,
            "name": "mean gradients of batches of pairs",
        }
        if noise == "staircase":
            return plan_staircase(self.epsilon, sensitivity=move, **options)
        if noise == "duchi":
            return plan_signs(self.epsilon, limit=clip, **options)
        std = None
        if self.calibration == "paper":
            std = relation.pairs * move * epochs / _positive("epsilon", self.epsilon)
            if self.delta:
                std *= math.sqrt(2.0 * math.log(1.25 / self.delta))
            move *= math.sqrt(width) if self.delta else width  # all rows are released together
        lemma = f"docs/privacy, Lemma {80 if self.calibration == 'paper' else 79}"
        return plan_pairs(self.epsilon, self.delta, sensitivity=move, lemma=lemma, noise=std, **options)

    def _perturbed(
        self, rows: Floats, similar: NDArray[np.bool_], relation: PairRelation, seed: int | None
    ) -> tuple[Floats, NDArray[np.bool_], list[TablePlan]]:
        """Features of individuals and labels of pairs, perturbed once, and their spend."""
        n, d = rows.shape
        labels, persons = plan_inputs(
            self.epsilon, self.delta, relation=relation, individuals=n, features=d, pairs=len(similar)
        )
        gate = VectorGate(persons, seed)
        return (
            np.array([gate.privatize(row) for row in rows]),
            flipped(similar, labels, seed),
            [labels, persons],
        )

    def _reduced(self, relation: PairRelation, size: int, rng: np.random.Generator) -> _Emit:
        """Noise scaled to a batch's contents (Algorithm 1, steps 8 to 10): without a privacy guarantee."""
        scale = relation.pairs * checked_steps(self.epochs, "epochs") / _positive("epsilon", self.epsilon)

        def privatize(gradient: Floats, w: Floats, peaks: Floats) -> Floats:
            norms = np.abs(w).sum(axis=1)
            largest = np.minimum(self.clip, np.maximum(4.0 * norms, 2.0 * self.margin * math.sqrt(len(w))))
            out: Floats = gradient + rng.laplace(size=gradient.shape) * (
                scale * (peaks + largest)[:, None] / size
            )
            return out

        return privatize

    def _descend(
        self,
        rows: Floats,
        similar: NDArray[np.bool_],
        graph: PairGraph,
        privatize: _Emit,
        size: int,
        rng: np.random.Generator,
    ) -> Floats:
        d = rows.shape[1]
        width, epochs = self._width(d), checked_steps(self.epochs, "epochs")
        eta, margin = _positive("learning_rate", self.learning_rate), _positive("margin", self.margin)
        w: Floats = np.eye(d)
        if width < d:
            w = np.linalg.qr(rng.normal(size=(d, width)))[0].T
        m, step = len(similar), 0
        for _ in range(epochs):
            # A batch of all has no order, and as they are in memory it takes two thirds of the time.
            order = rng.permutation(m) if size < m else np.arange(m)
            for number in range(m // size):
                step += 1
                batch = order[number * size : (number + 1) * size]
                gradient, peaks = self._gradient(rows, graph.pairs, similar, batch, w, margin)
                w = w - eta / math.sqrt(step) * privatize(gradient, w, peaks)
        return w

    def _gradient(
        self,
        rows: Floats,
        pairs: NDArray[np.int64],
        similar: NDArray[np.bool_],
        batch: NDArray[np.int64],
        w: Floats,
        margin: float,
    ) -> tuple[Floats, Floats]:
        """The mean of the clipped gradients of a batch, (d', d), and the largest norm of each row: secret."""
        noise, clip = self._noise(), _positive("clip", self.clip)
        by_row = self.calibration == "paper" or noise == "batch-maximum"
        total, peaks, across = np.empty_like(w), np.empty(len(w)), np.ascontiguousarray(w.T)
        pair_graph.contrastive_sum(
            rows, pairs, batch, similar, across, margin, clip, _NORMS[noise], by_row, total, peaks
        )
        return total / len(batch), peaks

    @property
    def privacy(self) -> TableReport | NoGuarantee | None:
        """Privacy report of the last fit; None before it."""
        return getattr(self, "_report", None)

    def transform(self, X: Any) -> Floats:
        """Records in coordinates in which the Euclidean distance is the learned one, (n, d')."""
        check_is_fitted(self, "components_")
        X = validated(self, X, reset=False)
        if not np.isfinite(X).all():
            raise ConfigError("X has NaN or infinity", fix="leave out or fill in such records")
        out: Floats = designs(X, self.bounds) @ self.components_.T
        return out

    def fit_transform(self, X: Any, y: Any, pairs: Any = None) -> Floats:
        """`fit`, then `transform` of the same records: the result is as secret as they are."""
        out: Floats = self.fit(X, y, pairs).transform(X)
        return out
