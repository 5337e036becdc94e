"""`ranking.Forest`: the forest for a real-valued relevance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from streampair.learners.faces import Regressor
from streampair.learners.forest import ForestLearner
from streampair.learners.tasks import RelevanceTask

__all__ = ["Forest"]

_MAX_RELEVANCE = 1e50


@dataclass(eq=False, repr=False)
class Forest(Regressor, ForestLearner):
    """Random trees that nobody fitted, whose leaves learn a regression online; not private.

    The forest of `streampair.auc.Forest` with another loss: half the squared error of the relevance, which
    is standardised by the mean and the deviation of all relevances so far. Trees, experts and their stack are
    the same, and so is all that is said there of features, texts, gaps and memory.

    Parameters
    ----------
    trees
        Number of trees, from 1 to 1000; time and memory grow with it.
    nodes
        Most nodes of a tree, from 1 to 32767. A tree that is full splits no more.
    relevance
        Lowest and highest relevance there can be, by declaration; one outside is a RecordError. None takes
        any of a size up to 1e50. Nothing else depends on it but the unit of the score.
    seed
        Of what is drawn; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    `predict_one` is a prediction of the relevance, in its unit: unlike the learners from pairs, which learn
    differences alone. `score_one` is the same number, with a declared relevance scaled to -1 and 1.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.Forest(seed=1)
    >>> for _ in range(3000):
    ...     x = {"price": rng.uniform(0, 10), "kind": rng.choice(["bed", "sofa"])}
    ...     model.learn_one(x, abs(x["price"] - 5.0) + 10.0 * (x["kind"] == "bed"))
    >>> [round(model.predict_one({"price": price, "kind": "bed"})) for price in (1.0, 5.0, 9.0)]
    [14, 10, 14]
    """

    trees: int = 50
    nodes: int = 1023
    _: KW_ONLY
    relevance: tuple[float, float] | None = None
    seed: int | None = None
    max_features: int = 10_000

    _squared: ClassVar[bool] = True
    _derived: ClassVar[frozenset[str]] = ForestLearner._derived | {"_relevance"}

    def _make_task(self) -> RelevanceTask:
        task = RelevanceTask(self.relevance, _MAX_RELEVANCE)
        self._relevance = task.relevance
        return task

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """Prediction of the relevance of a record, in its unit.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return self._relevance(self.score_one(x))

    def predict_many(self, X: Any) -> Any:
        """Predictions for the rows: of a frame as a series of the same kind with its index, or an array."""
        table, scores = self._table_scores(X)
        return table.series(np.array([self._relevance(score) for score in scores.tolist()]), self._y_name)


Forest.__module__ = (
    "streampair.ranking"  # where it is public: states, pickles and configurations name it there
)
