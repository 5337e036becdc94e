"""`auc.Forest`: the forest for two classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from streampair import kernels as k
from streampair import losses
from streampair.learners.faces import Classifier
from streampair.learners.forest import ForestLearner
from streampair.learners.forest_multiclass import MulticlassForest

__all__ = ["Forest", "MulticlassForest"]


@dataclass(eq=False, repr=False)
class Forest(Classifier, ForestLearner):
    """Random trees that nobody fitted, with leaves that learn online; not private.

    A leaf draws a feature and keeps one value of it, by reservoir; from its 20th record on it splits as soon
    as a record has another value, at a threshold drawn between the two, or for texts by a bit of a salted
    hash. Half of the features are drawn alike, half by gain: by how much in common with the labels the
    difference has that a decision by the feature makes, in the mean over the decisions of late. So features
    that tell nothing do not use trees up. No threshold is searched for, and a tree costs next to nothing.
    What is learned is in the leaves:
    four experts of different depth and memory share the trees, each the sum of its leaves and a linear part,
    stepped by AdaGrad along the logistic loss; a stack, stepped alike, weighs them. Trees are emptied in
    turn, and an expert that never forgets begins again where it is left behind, so streams may change; the
    stack and the deepest expert take larger steps for 4000 records from there, if fitted to records.

    Parameters
    ----------
    trees
        Number of trees, from 1 to 1000; time and memory grow with it.
    nodes
        Most nodes of a tree, from 1 to 32767. A tree that is full splits no more.
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any other is a RecordError. None: the opposite of True, False, 1 or 0;
        beside any other `positive` all labels of its type rank low, and predictions show the first one
        learned.
    loss
        None: each expert steps along the logistic loss of the record. Or a pair loss, such as
        `losses.Logistic`: the record is paired with one of the last 32 of the other class, both are scored
        anew, and both step along the loss of the difference of their scores. It takes about three times as
        long; see docs/papers.md for what it is worth.
    seed
        Of what is drawn; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Notes
    -----
    Features are real numbers or texts by name, in any order; nothing has to be scaled or encoded. A known
    feature that is missing is a value of its own, and so is every text; a new name gets a new column. In a
    frame an empty cell is a missing feature; in a record leave it out. A number that comes as text, as from
    `river.stream.iter_csv` without `converters`, is a text; after 100 such records there is a warning. None,
    NaN, infinity, numbers beyond 1e50, bytes and empty records raise `RecordError` before anything has
    changed.

    A record takes O(trees log nodes + features), and memory is bounded: 1.8 MB, with texts 2.0 MB, and 136
    bytes a feature. Texts share 4096 linear weights. A state is as large as the memory.

    The score is the log-odds that the stack gives, and `predict_proba_one` their logistic curve. From pairs,
    which know no intercept, it is a curve of two numbers that follow the scores (Platt), as for `PairOGD`;
    pairs take 528 bytes a feature more. `weights`
    are those of the linear part alone. A `learn_one` after a score of the same record uses its leaves.

    References
    ----------
    Geurts, P., Ernst, D. and Wehenkel, L. (2006). Extremely randomized trees. Machine Learning 63.

    Duchi, J., Hazan, E. and Singer, Y. (2011). Adaptive subgradient methods for online learning and
    stochastic optimization. JMLR 12.

    Gomes, H. M. et al. (2017). Adaptive random forests for evolving data stream classification. Machine
    Learning 106. (The forest that it is compared with.)

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.Forest(seed=1), metric)  # doctest: +ELLIPSIS
    RollingAUC: 96...%

    Texts and gaps are features as they are:

    >>> model = auc.Forest(seed=1)
    >>> for i in range(60):
    ...     model.learn_one({"country": "NL", "amount": 5.0 + i % 7}, False)
    ...     model.learn_one({"country": "XX"}, True)
    >>> model.predict_one({"country": "XX"}), model.predict_one({"country": "NL", "amount": 9.0})
    (True, False)
    >>> told = model.explain_one({"country": "XX"})
    >>> abs(told.baseline + sum(told.features.values()) - model.score_one({"country": "XX"})) < 1e-9
    True
    """

    trees: int = 50
    nodes: int = 1023
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    seed: int | None = None
    max_features: int = 10_000

    def predict_proba_one(  # type: ignore[override]  # as in the base
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """Probabilities of both labels, as of any classifier, in fewer calls: a tenth of a record.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        if self._pairs is not None or not self._in_one:
            return super().predict_proba_one(x)
        if self._coded or type(x) is not dict or len(x) != self._expected:
            gaps = self._read(x, grow=False)
        else:
            try:
                self._pack(*self._take(x))
                gaps = False
            except Exception:  # an unknown name, or a value that struct refuses
                gaps = self._read(x, grow=False)
        p: float = k.forest_proba(self._state, gaps)
        if p != p:
            raise self._unusable(x)
        return self._labelled(p)


Forest.__module__ = "streampair.auc"  # where it is public: states, pickles and configurations name it there
