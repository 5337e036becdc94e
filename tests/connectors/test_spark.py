"""Sums and scores of tables on Spark. Failures of tasks, executors and drivers: docs/tutorials/spark.md."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import support
from pyspark.errors import PythonException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from streampair_connectors import spark

from streampair import auc, history, metric, models, privacy
from streampair.errors import ConfigError, RecordError

N = 3000
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    if shutil.which("java") is None:
        support.unavailable("Java", "install it (Debian: apt-get install openjdk-17-jdk-headless)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")  # its life is short
        # A partition has several batches.
        options = {"spark.ui.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
        options["spark.driver.maxResultSize"] = "2m"
        session = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
        yield session
        session.stop()


def table(rows: int = N) -> pa.Table:
    rng = np.random.default_rng(3)
    amount, age = rng.uniform(0, 500, rows), rng.uniform(18, 90, rows)
    fraud = np.where(amount + rng.normal(0, 100, rows) > 400, "yes", "no")
    return pa.table(
        {
            "row": [f"r{i}" for i in range(rows)],
            "a.mount": pa.array(amount, mask=rng.random(rows) < 0.05),
            "`age": age,
            "fraud": fraud,
            "note": ["never read"] * rows,
        }
    )


def new_job(rows: int = N) -> history.Job:
    learner = auc.PairFTRL(
        1.0, 1e-6, bounds={"a.mount": (0, 500), "`age": (18, 90)}, positive="yes", negative="no"
    )
    return history.Job(learner, label="fraud", rows=rows, row_id="row", salt="payments, November")


def in_parts(session: SparkSession, data: pa.Table, parts: int) -> DataFrame:
    """The table, its rows in another order, by the hash of their ids."""
    return session.createDataFrame(data).repartition(parts, "row")


def test_a_model_has_the_bits_of_one_process(session: SparkSession, tmp_path: Path) -> None:
    data, key = table(), secrets.token_bytes(32)
    expected = history.fit(new_job(), [data], key, account=tmp_path / "local.json")
    job, account = new_job(), tmp_path / "spark.json"
    for parts in (1, 2, 7):
        assert spark.sums(in_parts(session, data, parts), job) == job.sums(data), parts
    second = job.standardised(spark.sums(in_parts(session, data, 5), job), key, account=account)
    for parts in (2, 7):
        assert spark.sums(in_parts(session, data, parts), second) == second.sums(data), parts
    model = second.release(spark.sums(in_parts(session, data, 3), second), key, account=account)
    assert models.dumps(model) == models.dumps(expected)
    assert model.metadata["history"]["attempts"] == [1, 1]


def test_tasks_get_no_key_and_no_column_that_the_job_does_not_name(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, key, sent, read = table(), secrets.token_bytes(32), [], []
    to_tasks = type(in_parts(session, data, 1)).mapInArrow

    def recorded(df: DataFrame, func: Callable[..., Any], *rest: Any) -> DataFrame:
        sent.append(CloudPickleSerializer().dumps(func))  # as Spark sends it
        read.append(df.columns)
        return to_tasks(df, func, *rest)

    job = new_job()
    first = job.sums(data)
    second = job.standardised(first, key, account=tmp_path / "account.json")
    monkeypatch.setattr(type(in_parts(session, data, 1)), "mapInArrow", recorded)
    for each in (job, second):
        spark.sums(in_parts(session, data, 2), each)
    assert job.columns == ("`age", "a.mount", "fraud", "row")
    assert read == 2 * [[f"c{data.column_names.index(name)}" for name in job.columns], ["part", "sums"]]
    forms = [key, key.hex().encode(), hashlib.blake2b(key, digest_size=32).digest()]
    assert len(sent) == 4
    assert not any(form in task for task in sent for form in forms)
    assert key in CloudPickleSerializer().dumps(lambda batches: (batches, key))  # the search finds one


def fitted(kind: str, tmp_path: Path) -> models.Model:
    if kind == "table":
        return history.fit(new_job(), [table()], bytes(range(32)), account=tmp_path / "score.json")
    learner = {"linear": auc.PairOGD, "forest": auc.Forest}[kind]()
    rows = table().select(["a.mount", "`age", "fraud"]).slice(0, 400).to_pylist()
    for row in rows:
        label = row.pop("fraud") == "yes"
        row["kind"] = "x" if label else "z"
        learner.learn_one({name: value for name, value in row.items() if value is not None}, label)
    return models.export(learner)


@support.in_one_case("kind", ["linear", "forest", "table"])
def test_scores_have_the_bits_of_one_process(session: SparkSession, tmp_path: Path, kind: str) -> None:
    model, data = fitted(kind, tmp_path), table()
    if kind == "table":
        data = data.filter(data["a.mount"].is_valid())
    else:
        data = data.append_column("kind", pa.array(["x", "y", None] * (N // 3)))
    scores = model.score_many(data.select(list(model.features))).to_pylist()
    expected = dict(zip(data["row"].to_pylist(), scores, strict=True))
    scored = spark.score(in_parts(session, data, 5), model)
    assert scored.columns == [*data.column_names, "score"]
    found = scored.toArrow()
    assert dict(zip(found["row"].to_pylist(), found["score"].to_pylist(), strict=True)) == expected
    assert found.drop_columns("score").sort_by("row") == data.sort_by("row")


def test_rows_of_an_entity_have_the_bits_of_one_process(session: SparkSession) -> None:
    data = table().append_column("who", pa.array(np.arange(N) // 3))
    learner = auc.PairFTRL(
        1.0,
        1e-6,
        features=["a.mount", "`age"],
        bounds={"a.mount": (0, 500), "`age": (18, 90)},
        positive="yes",
        negative="no",
        entity=privacy.EntityLimit(3, field="who"),
    )
    job = history.Job(learner, label="fraud", rows=N, row_id="row", salt="payments")
    assert spark.sums(in_parts(session, data, 4), job) == job.sums(data)


def test_a_metric_has_the_bits_of_one_process(session: SparkSession, tmp_path: Path) -> None:
    data = table()
    data, key = data.filter(data["a.mount"].is_valid()), bytes(range(32))
    bounds = {"a.mount": (0, 500), "`age": (18, 90)}
    learner = metric.PairFTRL(8.0, 1e-6, bounds=bounds, classes=["yes", "no"])
    job = history.Job(learner, label="fraud", rows=len(data), row_id="row", salt="payments")
    sums = spark.sums(in_parts(session, data, 4), job)
    assert sums == job.sums(data)
    second = job.standardised(sums, key, account=tmp_path / "account.json")
    total = spark.sums(in_parts(session, data, 4), second)
    assert total == second.sums(data)
    model = second.release(total, key, account=tmp_path / "account.json")
    expected = model.score_many(data.sort_by("row").select(list(model.features))).to_pylist()
    scored = spark.score(in_parts(session, data, 3), model).toArrow().sort_by("row")
    assert scored["score"].to_pylist() == expected


def test_a_driver_gets_the_sums_of_few_tasks(session: SparkSession, tmp_path: Path) -> None:
    """Of 32 partitions they are more than the driver takes: 11,324 integers each."""
    rng = np.random.default_rng(4)
    names = [f"x{i}" for i in range(149)]
    data = pa.table({"row": np.arange(256), "y": np.arange(256) < 99, **{x: rng.random(256) for x in names}})
    learner = auc.PairFTRL(1.0, 1e-6, bounds=dict.fromkeys(names, (0, 1)))
    job = history.Job(learner, label="y", rows=256, row_id="row", salt="")
    job = job.standardised(job.sums(data), secrets.token_bytes(32), account=tmp_path / "account.json")
    expected = job.sums(data)
    assert 32 * expected.cells.nbytes > 2 * 2**20 > 2 * 8 * expected.cells.nbytes
    assert spark.sums(session.createDataFrame(data).repartition(32, "row"), job) == expected


def test_what_is_refused(session: SparkSession) -> None:
    data, job = table(300), new_job(300)
    df = session.createDataFrame(data)
    with pytest.raises(RecordError, match="the table has no column '`age'"):
        spark.sums(df.select("row", "fraud"), job)
    with pytest.raises(RecordError, match="the table has no rows"):
        spark.sums(df.where("note = ''"), job)
    by_number = history.Job(
        auc.PairFTRL(1.0, 1e-6, features=[0, 1], bounds={0: (0, 1), 1: (0, 1)}),
        label=2,
        rows=300,
        row_id=3,
        salt="",
    )
    with pytest.raises(ConfigError, match="the job names a column by the number 0"):
        spark.sums(df, by_number)
    # Of one partition: tasks that fail next to it would say so after this test. Its first batch has 500 rows.
    twice = df.unionAll(df).coalesce(1)
    with pytest.raises(PythonException, match="200 row ids occur twice in the column 'row'"):
        spark.sums(twice, job)
    model = fitted("linear", Path())
    with pytest.raises(RecordError, match="the table has no column 'kind'"):
        spark.score(df.withColumnRenamed("note", "Kind"), model)
    both = df.toDF("row", "a.mount", "`age", "fraud", "fraud")
    with pytest.raises(RecordError, match="the table has 2 columns 'fraud'"):
        spark.sums(both, job)
    with pytest.raises(ConfigError, match="the table has a column 'note' already"):
        spark.score(df, fitted("linear", Path()), column="note")
