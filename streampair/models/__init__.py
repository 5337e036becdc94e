"""Models as files: what a fitted learner needs to score, as JSON or as an ONNX graph (docs/models.md).

A model scores and never learns; `Model.to_online` lets a new learner begin with it. Its scores have the bits
of the learner's at the moment of the export. It holds what may be published: of a private learner releases
and public facts, never records, sums or noise.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.metadata import version as _version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.auc import MulticlassForest
from streampair.base.forest import Reasons
from streampair.base.learner import Explanation
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.models.exporting import document_of
from streampair.models.format import (
    Curve,
    Document,
    Labels,
    MetricModel,
    classes_of,
    decode,
    encode,
    fields_of,
    plain_metadata,
)
from streampair.models.onnx_export import front_graph, inputs_of, onnx_of
from streampair.models.onnx_steps import FrontGraph
from streampair.models.scoring import ForestScorer, OnlineScorer, each, front_of, probabilities, scorer_of
from streampair.models.starting import begin_from
from streampair.records.frames import FeatureTable

if TYPE_CHECKING:
    import onnx

__all__ = ["Model", "dumps", "export", "load", "loads", "onnx_inputs", "save", "to_onnx"]

Array = NDArray[np.float64]


class Model:
    """A fitted model that scores records and learns nothing; `export` and `load` make one.

    `to_online` lets a new learner begin with it.

    Attributes
    ----------
    metadata
        Public facts that the caller adds, as JSON can hold them: application, digest of the configuration,
        positions. They are saved with the model.

    Notes
    -----
    Scores and probabilities have the same bits as those of the learner at the moment of the export, and the
    same records raise `RecordError`. A model is for one thread at a time: scoring uses memory of its own.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc, models
    >>> learner = auc.PairOGD()
    >>> for x, y in datasets.Phishing().take(500):
    ...     learner.learn_one(x, y)
    >>> model = models.export(learner)
    >>> model.class_name, model.kind, model.slots, model.privacy
    ('auc.PairOGD', 'linear', 500, None)
    >>> model.score_one(x) == learner.score_one(x)
    True
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self.metadata: dict[str, Any] = document.metadata
        self._scorer = scorer_of(document)
        self._front = front_of(document)
        self._labels: Labels | None = getattr(document, "labels", None)
        self._curve: Curve | None = getattr(document, "probability", None)
        learner = self._scorer.learner if isinstance(self._scorer, ForestScorer) else None
        self._multiclass = learner if isinstance(learner, MulticlassForest) else None

    def __repr__(self) -> str:
        return f"Model({self.class_name}, {len(self.features)} features, {self.slots} slots)"

    @property
    def class_name(self) -> str:
        """Class of the learner, such as ``"auc.PairOGD"``."""
        return self._document.class_name

    @property
    def kind(self) -> str:
        """How a score is computed: ``"linear"``, ``"metric"``, ``"forest"`` or ``"random_forest"``."""
        tag = type(self._document).__struct_config__.tag
        assert isinstance(tag, str)
        return tag

    @property
    def features(self) -> tuple[Any, ...]:
        """Names of the fields of a record that the model reads; without steps in the order of the weights.

        Fields that have only had texts are the last. Empty if steps read whatever a record has.
        """
        if self._front is None:
            return fields_of(self._document)
        return tuple(self._front.reads(fields_of(self._document)) or ())

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps in front of the learner, in order.

        Examples
        --------
        >>> from river import preprocessing
        >>> from streampair import auc, models
        >>> pipeline = preprocessing.StandardScaler() | auc.PairOGD()
        >>> for a, y in [(1.0, True), (0.0, False)] * 10:
        ...     pipeline.learn_one({"a": a}, y)
        >>> model = models.export(pipeline)
        >>> model.steps, model.score_one({"a": 0.7}) == pipeline.score_one({"a": 0.7})
        (('StandardScaler',), True)
        """
        return () if self._front is None else tuple(self._front.steps)

    @property
    def takes_gaps(self) -> bool:
        """Whether the learner, or a step, is made for records with missing values."""
        return self._scorer.takes_gaps or (self._front is not None and self._front.gaps)

    @property
    def takes_text(self) -> bool:
        """Whether the learner, or a step, is made for texts."""
        return self._scorer.takes_text or (self._front is not None and self._front.texts)

    @functools.cached_property
    def _graph(self) -> FrontGraph | None:
        """What is in front of the learner in the graph of the model."""
        return front_graph(self._document, self._front)

    def _prepared(self, x: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """What the learner gets of a record."""
        return x if self._front is None else self._front.transform_one(x)

    @property
    def slots(self) -> int:
        """Number of records by then; of a private learner with those that could not be used."""
        return self._document.slots

    @property
    def time(self) -> int | None:
        """What the caller gave as its time, in milliseconds since the epoch; None: unknown."""
        return self._document.time

    @property
    def privacy(self) -> dict[str, Any] | None:
        """Guarantee and spend at the export, as in `PrivacyReport`; None: the learner is not private.

        With `assumed`, if it holds only as far as something of a table does, which nothing shows.
        """
        promise = self._document.privacy
        if promise is None:
            return None
        values = msgspec.structs.asdict(promise)
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    @property
    def classes(self) -> tuple[Any, ...]:
        """Labels that `predict_proba_one` knows, of two the one that ranks high last; else empty."""
        return classes_of(self._document)

    @property
    def multiclass(self) -> bool:
        """Whether it is a classifier of any number of classes."""
        return self._multiclass is not None

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record: higher ranks higher; of a metric the distance from the neutral record.

        Parameters
        ----------
        x
            Values by feature name, as the learner takes them.

        Raises
        ------
        RecordError
            If a feature cannot be used; `NoScoreError` if steps in front of the learner have learned too
            little to make numbers of it.
        """
        return self._scorer.score_one(self._prepared(x))

    def score_many(self, X: Any) -> Any:
        """Scores (n,) of several records.

        Parameters
        ----------
        X
            Data frame or NumPy array (n, d), as the learner takes them; or a list of records.

        Returns
        -------
        series or array
            Of a frame as a series of the same kind with its index, of an array or a list as an array.

        Raises
        ------
        RecordError
            If a feature cannot be used.

        Examples
        --------
        >>> from streampair import auc, models
        >>> learner = auc.PairOGD()
        >>> for a, y in [(1.0, True), (0.0, False)] * 10:
        ...     learner.learn_one({"a": a}, y)
        >>> low, high = models.export(learner).score_many([{"a": 0.0}, {"a": 1.0}])
        >>> bool(low < high)
        True
        """
        if isinstance(X, list | tuple):
            return self._scorer.score_records(X if self._front is None else each(self._prepared, X))
        if self._front is not None:
            table = FeatureTable.of_cells(X)
            table.check_names(self.features)
            records = each(self._prepared, table.records or [])
            return table.series(self._scorer.score_records(records), None)
        if isinstance(self._scorer, OnlineScorer):
            return self._scorer.learner.score_many(X)
        table = FeatureTable(X, names=self.features, read=self._scorer.read_cell)
        table.check_names(self.features)
        try:
            scores = self._scorer.score_rows(table.columns, table.rows)
        except RecordError:  # names the first cell of a row, in what order its frame has
            scores = self._scorer.score_rows(*table.columns_and_rows())
        return table.series(scores, None)

    def score_rows(self, columns: Sequence[Hashable], rows: Array) -> Array:
        """Scores (n,) of an array (n, d) whose columns have these names.

        Parameters
        ----------
        columns
            Names of the columns, in any order; those that the model does not know are checked and ignored.
        rows
            Numbers, as doubles in C order. NaN is a missing value; of a metric or a private learner it is a
            `RecordError`.

        Raises
        ------
        RecordError
            If a value cannot be used; it names the first.

        Examples
        --------
        >>> import numpy as np
        >>> from streampair import auc, models
        >>> models.export(auc.PairOGD()).score_rows(["a", "b"], np.zeros((2, 2)))
        array([0., 0.])
        """
        if self._front is not None:
            return self._scorer.score_records(each(self._prepared, _records(columns, rows)))
        return self._scorer.score_rows(list(columns), np.require(rows, np.float64, ["C", "A", "W"]))

    def predict_proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Probability of each known label, of a classifier.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        ConfigError
            If the learner is no classifier.
        """
        if self._multiclass is not None:
            return self._multiclass.predict_proba_one(self._prepared(x))
        if self._labels is None or self._curve is None:
            raise ConfigError(f"{self.class_name} gives no probabilities", fix="use score_one")
        p = float(probabilities(self._curve, np.array([self.score_one(x)]))[0])
        positive, negative = self._labels.positive, self._labels.negative
        return {positive: p} if negative is None else {negative: 1.0 - p, positive: p}

    def predict_one(self, x: Mapping[Any, Any]) -> Any:
        """The predicted label, of a classifier, None if it is not known yet; else the predicted relevance.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        ConfigError
            If the learner predicts nothing: a metric compares records.
        """
        if self._multiclass is not None:
            return self._multiclass.predict_one(self._prepared(x))
        if self._labels is not None:
            p = self.predict_proba_one(x)[self._labels.positive]
            return self._labels.positive if p > 0.5 else self._labels.negative
        if isinstance(self._document, MetricModel):
            raise ConfigError(f"{self.class_name} predicts nothing", fix="use score_one")
        score = self.score_one(x)
        relevance = getattr(self._document, "relevance", None)
        return score if relevance is None else relevance.middle + relevance.half * score

    def explain_one(self, x: Mapping[Any, Any]) -> Explanation:
        """Contribution of each feature to the score of a record, as the learner's `explain_one` gives it.

        Behind other steps the features are those that the learner gets.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        ConfigError
            If the learner gives no reasons.

        Examples
        --------
        >>> from streampair import auc, models
        >>> learner = auc.Forest(seed=1)
        >>> for a, y in [(1.0, True), (0.0, False)] * 100:
        ...     learner.learn_one({"a": a}, y)
        >>> models.export(learner).explain_one({"a": 1.0}) == learner.explain_one({"a": 1.0})
        True
        """
        if not isinstance(self._scorer, ForestScorer | OnlineScorer):
            raise ConfigError(
                f"a model of {self.class_name} gives no reasons",
                fix="use a forest or a linear learner without privacy",
            )
        return self._scorer.learner.explain_one(self._prepared(x))

    @property
    def explain_rows(self) -> Callable[[Sequence[Hashable], Array, int], tuple[list[float], Reasons]] | None:
        """Function from columns, rows and a number k, as `score_rows`, to scores and their k largest reasons.

        None: the model explains records one by one, or gives no reasons.

        Examples
        --------
        >>> import numpy as np
        >>> from streampair import auc, models
        >>> learner = auc.Forest(seed=1)
        >>> for a, y in [(1.0, True), (0.0, False)] * 100:
        ...     learner.learn_one({"a": a}, y)
        >>> scores, reasons = models.export(learner).explain_rows(["a"], np.ones((2, 1)), 3)
        >>> reasons[0] == [("a", learner.explain_one({"a": 1.0}).features["a"])]
        True
        """
        if self._front is not None or not isinstance(self._scorer, ForestScorer):
            return None
        return self._scorer.learner.explain_rows

    def to_online(self, learner: Any, records: int | None = None, *, public: bool = False) -> Any:
        """Let a new learner begin with this model (warm start).

        Its first scores and probabilities are the model's, and it learns on from there.

        Parameters
        ----------
        learner
            A new `auc.PairOGD`, with the labels of the model; or `ranking.PairOGD` for a model of
            relevances. It may have another loss, buffer or step size. A model with steps needs a new pipeline
            of the same steps and such a learner. Or a private linear learner: `auc.PairFTRL`, `OnPairStrC`,
            `OnPairC`, and those of `ranking`. Or `auc.PrivateForest`, with the model that one has learned
            from a table.
        records
            As of `PairOGD.begin_at`: how many records the model counts for. None: as many as it has learned.
            For a private learner None: its releases show how much the model is worth.
        public
            For a private learner: declares that the model was learned without any record that the learner
            protects. The model then adds nothing to the account, and the report says so. If it is not
            declared, the spend of the model is added, and a model without one is refused.

        Returns
        -------
        learner
            The same.

        Raises
        ------
        ConfigError
            If this learner cannot begin with this model.

        Notes
        -----
        The model is to be linear. For a learner that is not private it is to be of one that is not, either. A
        forest and a metric do not begin with a model: a file holds what they score by, and not what they
        learn by.

        A private learner scores with the model until its warm-up has ended. Then its learning begins at the
        model's weights, in its own coordinates (docs/privacy, Lemma 97). Without `features=` its features are
        those of the model. Budgets add: `mu^2` of the model's releases and of the learner's own, for it is
        not known whether both learned from the same people. A model of `streampair.history` brings the
        released moments of its table, which a learner of the same features by second moments pools with its
        own until they differ (docs/privacy, Lemma 99). An `auc.PrivateForest` begins with no other model: its
        features, bounds, trees and depth are to be those of the model, whose leaves it pools, too.

        Examples
        --------
        >>> from river import datasets
        >>> from streampair import auc, models
        >>> learner = auc.PairOGD()
        >>> for x, y in datasets.Phishing().take(500):
        ...     learner.learn_one(x, y)
        >>> model = models.loads(models.dumps(learner))
        >>> online = model.to_online(auc.PairOGD())
        >>> online.score_one(x) == model.score_one(x)
        True
        >>> online.learn_one(x, y)
        >>> private = model.to_online(auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1250), public=True)
        >>> bool(abs(private.score_one(x) - model.score_one(x)) < 1e-12)
        True
        """
        begin_from(self._document, learner, records, public)
        return learner


def _records(names: Sequence[Hashable], rows: Array) -> list[dict[Any, Any]]:
    """Rows as records; NaN is None."""
    return [
        {name: None if cell != cell else cell for name, cell in zip(names, row, strict=True)}
        for row in rows.tolist()
    ]


def export(
    learner: Any,
    slots: int | None = None,
    time: int | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Model:
    """The model of a learner at this moment; the learner may go on, and the model stays as it is.

    Parameters
    ----------
    learner
        A learner of `streampair.auc`, `streampair.ranking` or `streampair.metric`; or a pipeline that ends
        in one, of the steps that docs/learners.md lists under Pipelines.
    slots
        Number of records by then, unusable ones included. None: what the learner has counted.
    time
        Milliseconds since the epoch: of the export, or of the newest record.
    metadata
        Public facts to be saved with the model: texts, finite numbers, True, False, None, lists, and dicts
        with text keys.

    Raises
    ------
    ConfigError
        If it is no such learner, has other steps in front of it, is a subclass with methods of its own, or
        has names or labels that JSON cannot hold.

    Notes
    -----
    Post-processing (docs/privacy, Lemma 4): of a private learner the model holds published weights, released
    moments, declared parameters, the number of slots, and the account of the budget. It holds no record, no
    sum without noise, no noise key, no seed, and no count that depends on what was in the records.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc, models
    >>> learner = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1250)
    >>> for x, y in datasets.Phishing():
    ...     learner.learn_one(x, y)
    >>> model = models.export(learner, metadata={"application": "phishing"})
    >>> model.slots, round(model.privacy["epsilon_spent"], 6), model.privacy["kind"]
    (1250, 1.0, 'holds')
    """
    document = document_of(learner, slots, time, plain_metadata({} if metadata is None else metadata))
    # Through bytes, so that what cannot be written is found now.
    return Model(decode(encode(document)))


def dumps(
    model: Any,
    slots: int | None = None,
    time: int | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON of a model, or of the model of a learner.

    Parameters
    ----------
    model
        A `Model`, or a learner.
    slots, time, metadata
        Of the model of a learner, as of `export`.

    Raises
    ------
    ConfigError
        As `export`, or if `metadata` holds what JSON cannot.

    Examples
    --------
    >>> from streampair import auc, models
    >>> data = models.dumps(auc.PairOGD())
    >>> models.loads(data).score_one({"a": 1.0})
    0.0
    """
    if not isinstance(model, Model):
        return encode(document_of(model, slots, time, plain_metadata({} if metadata is None else metadata)))
    return encode(msgspec.structs.replace(model._document, metadata=plain_metadata(model.metadata)))


def loads(data: bytes) -> Model:
    """The model in JSON that `dumps` has written. All of it is checked, and nothing in it is run.

    Raises
    ------
    SnapshotError
        If the data are no model, damaged, cut short, or of another version.

    Examples
    --------
    >>> from streampair import auc, models
    >>> models.loads(models.dumps(auc.PairOGD())[:-9])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    streampair.errors.SnapshotError: this is not a model: it is damaged or cut short (...
    """
    try:
        return Model(decode(bytes(data)))
    except ValueError as error:
        raise SnapshotError(
            f"the model is damaged ({error})", fix="load an undamaged copy, or export the learner again"
        ) from None


def to_onnx(model: Model) -> onnx.ModelProto:
    """The ONNX graph of a model.

    Its input ``features`` are doubles (n, d) in the order of `Model.features`, NaN where a record has no
    number. A model that has learned texts has a second input, ``texts``: integers (n, t), hashes of the texts
    of its text features, 0 where there is none (docs/models.md); `onnx_inputs` computes both. The outputs are
    ``score``, doubles (n,), and of a classifier ``probabilities``, doubles (n, classes) in the order of
    `Model.classes`. The metadata of the graph have names, classes and the privacy guarantee as JSON.

    Parameters
    ----------
    model
        What `export` and `load` return.

    Raises
    ------
    ConfigError
        If it is no model, if the package onnx is not installed, or if the model has learned nothing that a
        graph could compute.

    Notes
    -----
    The graph computes in doubles, so its scores differ from those of the model by rounding alone. It does
    not check records, and takes any size of values.

    Examples
    --------
    >>> from streampair import auc, models
    >>> learner = auc.PairOGD()
    >>> learner.learn_one({"a": 1.0}, True)
    >>> [output.name for output in models.to_onnx(models.export(learner)).graph.output]
    ['score', 'probabilities']
    """
    if not isinstance(model, Model):
        raise ConfigError(
            f"a {type(model).__name__} is no model", fix="give models.export(learner), or use models.save"
        )
    facts = plain_metadata(model.metadata)
    return onnx_of(msgspec.structs.replace(model._document, metadata=facts), _version("streampair"))


def onnx_inputs(model: Model, records: Sequence[Mapping[Any, Any]]) -> dict[str, NDArray[Any]]:
    """The inputs of the ONNX graph of a model for some records.

    Parameters
    ----------
    model
        The model of the graph.
    records
        Values by feature name, as the learner takes them.

    Returns
    -------
    dict
        Arrays by the names of the inputs: ``features`` (n, d), and ``texts`` (n, t) if the graph has it.

    Raises
    ------
    RecordError
        If a record cannot be used, as of `Model.score_many`; or if it has a text where the model has learned
        none.

    Examples
    --------
    >>> from streampair import auc, models
    >>> learner = auc.Forest(seed=1)
    >>> learner.learn_one({"a": 1.0, "country": "NL"}, True)
    >>> inputs = models.onnx_inputs(models.export(learner), [{"a": 2.0}, {"country": "NL"}])
    >>> inputs["features"].tolist(), (inputs["texts"] > 0).tolist()
    ([[2.0, nan], [nan, nan]], [[False], [True]])
    """
    model.score_many(list(records))
    return inputs_of(model._document, model._graph, records, model._scorer.read_cell)


def save(model: Any, path: str | Path) -> None:
    """Write a model, or the model of a learner, to a file, which is replaced at once or not at all.

    Parameters
    ----------
    model
        A `Model`, or a learner.
    path
        The file. With the ending ``.onnx`` it is a graph (`to_onnx`), which `load` cannot read; else JSON.

    Raises
    ------
    ConfigError
        As `dumps`, or of a graph as `to_onnx`.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from streampair import auc, models
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     models.save(auc.PairOGD(), Path(folder) / "model.json")
    ...     models.load(Path(folder) / "model.json")
    Model(auc.PairOGD, 0 features, 0 slots)
    """
    target = Path(path)
    if target.suffix.lower() == ".onnx":
        whole = model if isinstance(model, Model) else export(model)
        data = to_onnx(whole).SerializeToString(deterministic=True)
    else:
        data = dumps(model)
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def load(path: str | Path) -> Model:
    """The model in a file that `save` has written.

    Raises
    ------
    SnapshotError
        As `loads`, with the name of the file; or if it is an ONNX graph.
    OSError
        If the file cannot be read.
    """
    if Path(path).suffix.lower() == ".onnx":
        raise SnapshotError(
            f"{path} is an ONNX graph, which cannot be loaded as a model",
            fix="load the model's JSON file; ONNX Runtime scores with a graph",
        )
    data = Path(path).read_bytes()
    try:
        return loads(data)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error.problem}", fix=error.fix) from None
