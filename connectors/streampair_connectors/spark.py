"""Tables on Spark: the sums of a job, and scores of a frozen model (docs/tutorials/spark.md).

It needs `pip install '.[spark]'`. Both functions use `DataFrame.mapInArrow`: a task gets its rows as
Arrow batches of at most `spark.sql.execution.arrow.maxRecordsPerBatch` rows, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, StructField, StructType

from streampair import models
from streampair.engine.snapshot import pack, unpack
from streampair.errors import ConfigError, RecordError
from streampair.history import Job, Sums

__all__ = ["score", "sums"]

# Number of results that the driver gets. With one a partition, 1,000 partitions of 512 features are 1 GB, the
# most that a driver takes by default; each of these costs 0.2 seconds of a processor.
_RESULTS = 8
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def sums(df: DataFrame, job: Job) -> Sums:
    """Exact sums of a table on Spark, for the stage of a job; the same bits as of `job.sums` in one process.

    Spark takes the result of each partition once, however often it runs the task: after an error, a lost
    executor, or a speculative copy. Eight more tasks add up these results. The tasks get the columns that the
    job names, and no key.

    Parameters
    ----------
    df
        The table, of any cut and order of partitions. Its rows must be the same each time that Spark reads
        them: without `rand`, `limit`, `sample` or `repartition(n)`.
    job
        Of `streampair.history`, of either stage.

    Returns
    -------
    Sums
        For `job.standardised` or `job.release`. As secret as the table.

    Raises
    ------
    ConfigError
        If the job names a column by a number.
    RecordError
        If the table has no rows, or lacks a column.
    pyspark.errors.PythonException
        If a task meets a batch that `job.sums` refuses: it quotes that RecordError.

    Examples
    --------
    >>> from streampair_connectors import spark
    >>> total = spark.sums(session.read.parquet("payments"), job)  # doctest: +SKIP
    """
    for name in job.columns:
        if not isinstance(name, str):
            raise ConfigError(f"the job names a column by the number {name}", fix="name columns by texts")
    _check_columns(df, job.columns, "name the columns in features= or bounds=, label=, row_id= and entity=")
    used = _numbered(df).select([f"c{df.columns.index(name)}" for name in job.columns])
    parts = used.mapInArrow(_sums_task(job), "part int, sums binary")
    # By number, which is the same when a task runs again: each sum is added to others once.
    added = parts.repartition(_RESULTS, "part").mapInArrow(_add_sums, "sums binary")
    total = sum(Sums(**unpack(bytes(row["sums"]))) for row in added.collect())
    if not isinstance(total, Sums):
        raise RecordError("the table has no rows", fix="read a table that has some")
    return total


def score(df: DataFrame, model: models.Model, column: str = "score") -> DataFrame:
    """A table with one more column, the scores of a model; the same bits as of `model.score_many`.

    Parameters
    ----------
    df
        The table, with the features of the model as columns.
    model
        Such as `models.load("model.json")`. Each task gets its file.
    column
        Name of the column that is added, of doubles.

    Returns
    -------
    pyspark.sql.DataFrame
        Not yet computed, as Spark does.

    Raises
    ------
    ConfigError
        If the table has a column of that name.
    RecordError
        If the table lacks a feature of the model, or has two columns of its name.
    pyspark.errors.PythonException
        When Spark computes it, if a row cannot be scored: it quotes the RecordError of the model.

    Examples
    --------
    >>> from streampair_connectors import spark
    >>> scored = spark.score(session.read.parquet("payments"), models.load("model.json"))  # doctest: +SKIP
    """
    if column in df.columns:
        raise ConfigError(f"the table has a column {column!r} already", fix="name another one with column=")
    _check_columns(df, model.features, "rename or make it: the names are those of the model, with their case")
    schema = StructType([*df.schema.fields, StructField(column, DoubleType(), nullable=False)])
    return _numbered(df).mapInArrow(_score_task(models.dumps(model), df.columns, column), schema)


def _check_columns(df: DataFrame, names: Iterable[object], fix: str) -> None:
    """Refuse a table without one of these columns, or with two of a name, as Spark has after a join."""
    for name in names:
        count = df.columns.count(str(name))
        if count != 1:
            raise RecordError(
                f"the table has {'no column' if count == 0 else f'{count} columns'} {name!r}",
                fix=fix if count == 0 else "drop all but one of them",
            )


def _numbered(df: DataFrame) -> DataFrame:
    """A table whose columns are c0, c1, and so on: `mapInArrow` takes the dots in a name for fields."""
    return df.toDF(*(f"c{i}" for i in range(len(df.columns))))


def _sums_task(job: Job) -> Task:
    """A function that gives the number of a partition and its sums, as one binary value."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        total = sum(job.sums(batch.rename_columns(list(job.columns))) for batch in batches)
        if isinstance(total, Sums):  # a partition may have no rows
            part = pa.array([context.partitionId()], pa.int32())
            yield pa.RecordBatch.from_pydict({"part": part, "sums": _packed(total)})

    return task


def _add_sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add up sums of several partitions, as a task."""
    total = sum(Sums(**unpack(part.as_py())) for batch in batches for part in batch["sums"])
    if isinstance(total, Sums):
        yield pa.RecordBatch.from_pydict({"sums": _packed(total)})


def _packed(sums: Sums) -> pa.Array:
    return pa.array([pack(vars(sums))], pa.binary())


def _score_task(file: bytes, names: list[str], column: str) -> Task:
    """A function that adds scores to the batches of a partition, whose columns have these names."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = models.loads(file)
        for batch in batches:
            named = batch.rename_columns(names)
            known = [name for name in model.features if name in names]
            scores = model.score_many(pa.Table.from_batches([named]).select(known or names))
            yield named.append_column(column, pa.array(scores.to_numpy(), pa.float64()))

    return task
