"""`streampair backfill`: the model of a table in files, for a lane to begin with."""

from __future__ import annotations

import contextlib
import decimal
import fcntl
import gzip
import itertools
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from harness import support
from harness.applications import write_key
from rich.console import Console
from streampair_connectors.cli import backfill
from streampair_connectors.cli.app import app
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.history import passes, tables
from streampair_connectors.observability import logs
from streampair_connectors.worker.factory import build_learner
from typer.testing import CliRunner

from streampair import auc, history, metric, models
from streampair.engine import Record
from streampair.errors import ConfigError, RecordError, SnapshotError, StoreError, StreampairError
from streampair.history import jobs
from streampair.history.account import AttemptAccount
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms.table_moments import SumsRelease

N = 3000
KEY = bytes(range(32))
TOML = """
app = "fraud"
[input]
topic = "payments"
label = "y"
id = "id"
{input}
[learner]
class = "streampair.{name}"
{learner}
"""
FEATURES = "features = { a = [-1, 1], b = [-1, 1] }"
PRIVATE = 'options = { epsilon = 1.0, delta = 1e-6, horizon = 7000 }\nnoise_key_file = "noise.key"'


def frame(rows: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 2))
    y = x[:, 0] + rng.normal(0, 0.3, rows) > 0.3
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "id": np.arange(rows), "other": "text"})


def parquet(data: pd.DataFrame, *files: Path, group: int = 400) -> None:
    """Write a table to files, of about equal parts, in row groups."""
    ends = np.linspace(0, len(data), len(files) + 1).astype(int)
    for file, low, high in zip(files, ends, ends[1:], strict=False):
        file.parent.mkdir(parents=True, exist_ok=True)
        arrow = pa.Table.from_pandas(data.iloc[low:high], preserve_index=False)
        pq.write_table(arrow, file, row_group_size=group)


def configured(
    folder: Path, name: str = "auc.PairFTRL", learner: str = PRIVATE, declared: str = FEATURES
) -> Path:
    path = folder / "fraud.toml"
    path.write_text(TOML.format(input=declared, name=name, learner=learner))
    if not (folder / "noise.key").exists():
        write_key(folder / "noise.key", KEY.hex())
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    configured(tmp_path)
    parquet(frame(), tmp_path / "t" / "1.parquet", tmp_path / "t" / "2.parquet")
    monkeypatch.setattr(tables, "_PART_ROWS", 500)
    return tmp_path


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["backfill", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def made(*arguments: object) -> bytes:
    """The file that a command writes, in place of that of another."""
    Path("start.json").unlink(missing_ok=True)
    call("fraud.toml", *arguments, "--output", "start.json")
    return Path("start.json").read_bytes()


def account(path: str = "fraud-history.account.json") -> list[tuple[int, bool]]:
    document = json.loads(Path(path).read_text())
    return [(attempt["stage"], attempt["finished"]) for attempt in document["attempts"]]


def wanted(learner: Any, label: str = "y") -> bytes:
    """The model that `history.fit` makes in this process."""
    job = history.Job(learner, label=label, rows=N, row_id="id", salt="fraud history")
    return models.dumps(history.fit(job, [frame()], KEY, account="fit.account.json"))


BOUNDS = {"a": (-1, 1), "b": (-1, 1)}


def test_any_cut_of_the_table_and_any_number_of_processes_give_one_file(folder: Path) -> None:
    model = wanted(auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS))
    assert made("t", "--processes", 2) == model
    assert not [file for file in folder.iterdir() if file.name.startswith("start.json.")]
    assert account() == [(1, True), (2, True)]
    data = frame()
    parquet(data.sample(frac=1.0, random_state=1), folder / "one.pq", group=N)
    arrow = pa.Table.from_pandas(data, preserve_index=False)
    pa.feather.write_feather(arrow, "table.feather")
    data.to_csv("table.csv.gz", index=False)
    for number, row in enumerate(data.groupby(data["id"] % 3)):
        parquet(row[1], folder / "parts" / f"third={number}" / "x.parquet")
    for table in ("one.pq", "table.feather", "table.csv.gz", "parts"):
        assert made(table, "--processes", 1, "--account", f"{table}.json") == model
    assert made("t/2.parquet", "t/1.parquet", "--account", "files.json") == model


def test_a_long_table_in_the_order_of_its_ids_is_read_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 2**20
    data = frame(rows)
    parquet(data, folder / "long" / "1.parquet", folder / "long" / "2.parquet", group=2**12)
    monkeypatch.setattr(tables, "_PART_ROWS", 2**17)
    read: list[int] = []
    true = history.Job.sums
    with monkeypatch.context() as patch:
        patch.setattr(history.Job, "sums", lambda job, batch: read.append(len(batch)) or true(job, batch))
        with monkeypatch.context() as ids:  # its ids are compared on the way
            ids.setattr(backfill, "_compare_ids", lambda *_: pytest.fail("ids were read once more"))
            model = made("long", "--processes", 1)
        assert sum(read) == rows
        # Where each row group has rows of both stages, both read it, and the bytes are the same.
        parquet(data.sample(frac=1.0, random_state=1), folder / "shuffled.parquet", group=2**17)
        Path("fraud-history.account.json").unlink()
        assert made("shuffled.parquet", "--processes", 1) == model
        assert sum(read) == 3 * rows
    Path("fraud-history.account.json").unlink()
    assert made("long", "--processes", 2) == model


def test_the_benchmark_of_both_stages_runs() -> None:
    program = support.ROOT / "benchmarks" / "history.py"
    command = [sys.executable, program, "--groups", "1", "--rounds", "1", "--json"]
    assert '"groups": 1' in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_row_that_stage_1_has_not_read_may_be_corrected_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_LONG", N)
    parquet(frame(), folder / "t.parquet", group=8)
    model = made("t.parquet", "--processes", 1)
    Path("start.json").unlink()
    Path("fraud-history.account.json").unlink()
    skipped = next(row for row in range(0, N, 8) if not _job().needs(row, row + 7))
    data = frame().astype({"y": object})
    data.loc[skipped, "y"] = None
    parquet(data, folder / "t.parquet", group=8)
    assert "no usable label" in error("t.parquet")
    assert account() == [(1, True)]
    parquet(frame(), folder / "t.parquet", group=8)
    assert "remove that file, to read the table from its beginning" in error("t.parquet")
    Path("start.json.sums").unlink()
    assert made("t.parquet", "--processes", 1) == model
    assert account() == [(1, True), (2, True)]


def test_a_lane_begins_with_the_file(folder: Path) -> None:
    command = "fraud.toml", "t", "--output", "start.json", "--processes", 1
    result = json.loads(call(*command, "--json").stdout)
    assert result["rows"] == N
    assert result["epsilon_spent"] == pytest.approx(1.0)
    assert result["attempts"] == [1, 1]
    text = Path("fraud.toml").read_text().replace("[learner]", '[learner]\nstart = "start.json"')
    Path("fraud.toml").write_text(text)
    learner = build_learner(load_config(Path("fraud.toml")))
    assert learner.score_one({"a": 0.9, "b": 0.0}) > learner.score_one({"a": -0.9, "b": 0.0})
    # The configuration may name the file that is not there yet.
    Path("start.json").unlink()
    call(*command, "--new-attempt")


def test_a_partition_of_the_path_may_be_the_label(folder: Path) -> None:
    for y, rows in frame().groupby("y"):
        parquet(rows.drop(columns="y"), folder / "parts" / f"y={int(y)}" / "x.parquet")
    model = wanted(auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS))
    assert made("parts", "--processes", 1) == model


@pytest.mark.filterwarnings("default:fewer than two classes:streampair.errors.PrivacyWarning")
def test_relevances_are_learned_too(folder: Path) -> None:
    configured(
        folder,
        "ranking.PairFTRL",
        PRIVATE.replace("1.0,", "1.0, relevance = [0, 4],"),
        f'{FEATURES}\nlabel_type = "any"',
    )
    assert b"ranking.PairFTRL" in made("t", "--processes", 1)
    # And classes; a lane does not begin with a metric.
    configured(folder, "metric.PairFTRL", PRIVATE.replace("1.0,", "1.0, classes = [true, false],"))
    model = wanted(metric.PairFTRL(1.0, 1e-6, classes=[True, False], bounds=BOUNDS))
    assert made("t", "--processes", 2, "--account", "metric.json") == model
    # What the table has spent is in no figure of the lane.
    for command in (["check"], ["budget", "card"]):
        said = CliRunner().invoke(app, [*command, "fraud.toml", "--json", "--account", "metric.json"]).stdout
        assert "metric.json has 1 attempts at a table, of which the figures of this learner hold" in said
    learned = call("fraud.toml", "t", "--output", "2.json", "--account", "2").stderr
    assert "fewer than two classes" not in learned
    parquet(frame().assign(y=True), folder / "one.parquet")
    one = call("fraud.toml", "one.parquet", "--output", "one.json", "--account", "one.account")
    assert "fewer than two classes exceed the noise" in one.stderr
    text = Path("fraud.toml").read_text().replace("[learner]", '[learner]\nstart = "start.json"')
    Path("fraud.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"metric\.PairFTRL cannot begin with a model"):
        build_learner(load_config(Path("fraud.toml")))


def test_a_private_forest_is_learned_in_parts(folder: Path) -> None:
    options = PRIVATE.replace("1.0,", "1.0, trees = 4, depth = 3,")
    configured(folder, "auc.PrivateForest", options)
    model = wanted(auc.PrivateForest(1.0, 1e-6, trees=4, depth=3, bounds=BOUNDS))
    assert made("t", "--processes", 1) == model
    assert b"random_forest" in model
    configured(folder, "auc.PrivateForest", options, 'features = ["a", "b"]')
    Path("start.json").unlink()
    assert "have no bounds" in error("t", code=2)


def test_declared_values_and_parts_of_times_are_those_of_the_lane(folder: Path) -> None:
    declared = (
        'features = { a = [-1, 1], country = ["NL", "5", "true"], code = ["5", "7"], '
        '"when.hour" = [0, 23], "when.weekday" = [0, 6] }\nfields = { when = "epoch-ms" }'
    )
    config = load_config(configured(folder, declared=declared))
    data = frame(200)
    data["country"] = ["NL", None, "5", "DE"] * 50
    data["code"] = [5, 7, 9, 7] * 50
    data["when"] = 1_700_000_000_000 + 3_600_000 * np.arange(200)
    parquet(data, folder / "x.parquet")
    table = tables.open_table([folder / "x.parquet"], config.input, ["y", "id"])
    found = pd.concat(batch.to_pandas() for part, _ in table.parts for batch in table.reader.batches(part))
    decode = json_decoder(config.input)
    names = config.input.feature_names()
    for i, row in enumerate(json.loads(data.to_json(orient="records"))):
        event = decode(Record(i, json.dumps(row).encode()))
        assert event.x == pytest.approx(found[names].iloc[i].astype(float).to_dict())


def test_a_later_record_of_csv_may_have_a_fraction(folder: Path) -> None:
    data = frame(100)
    data["a"] = [0] * 99 + [0.5]
    data.to_csv("x.csv", index=False)
    table = tables.open_table([folder / "x.csv"], load_config(Path("fraud.toml")).input, ["y", "id"])
    assert table.reader.schema.field("b").type == pa.float64()
    assert table.rows == 100


def test_declared_values_of_csv_are_its_texts(folder: Path) -> None:
    config = load_config(
        configured(
            folder,
            declared='features = { a = [-1, 1], code = ["01", "02"], version = ["1.0", "1.10"], '
            '"when.hour" = [0, 23] }\nfields = { when = "epoch-s" }',
        )
    )
    lines = (
        *("a,code,version,when,y,id", "0,01,1.0,1704067200,0,1"),
        *("1,02,1.10,1704070800,1,2", "0.5,,,1704074400,1,3"),
    )
    Path("x.csv").write_text("\n".join([*lines, ""]))
    table = tables.open_table([folder / "x.csv"], config.input, ["y", "id"])
    (batch,) = (batch.to_pandas() for part, _ in table.parts for batch in table.reader.batches(part))
    names = ["a", "when.hour", "code=01", "code=02", "version=1.0", "version=1.10"]
    assert set(config.input.feature_names()) == set(names)
    wanted = [[0, 0, 1, 0, 1, 0], [1, 1, 0, 1, 0, 1], [0.5, 2, 0, 0, 0, 0]]
    assert batch[names].astype(float).to_numpy().tolist() == wanted


def far(rows: int) -> pd.DataFrame:
    """A table whose column `b` is in cents, and the bounds are those of euros."""
    return frame(rows).assign(b=100.0 + frame(rows)["b"])


def test_values_outside_bounds_are_counted_for_learners_without_privacy(folder: Path) -> None:
    parquet(far(1200), folder / "far" / "1.parquet", folder / "far" / "2.parquet")
    for learner in ("PairOGD", "PairMoments"):
        configured(folder, f"auc.{learner}", "")
        result = call("fraud.toml", "far", "--output", f"{learner}.json", "--processes", 2, "--json")
        assert json.loads(result.stdout)["values_outside_bounds"] == {"b": 1200}
        assert "most values of 'b' in 1,200 rows are outside of the bounds" in result.stderr
        assert "outside" not in call("fraud.toml", "t", "--output", f"{learner} in.json", "--json").output


def test_private_bounds_are_judged_by_released_means_alone(folder: Path) -> None:
    # So many rows that the gap between threshold and bound is eight standard deviations of the noise.
    parquet(far(20 * N), folder / "far" / "1.parquet", group=N)
    result = call("fraud.toml", "far", "--output", "far.json", "--account", "far.account", "--json")
    assert "values_outside_bounds" not in result.output
    (line,) = [json.loads(each) for each in result.stderr.splitlines() if "means_at_bounds" in each]
    assert line["features"] == ["b"]
    assert "means_at_bounds" not in call("fraud.toml", "t", "--output", "in.json").stderr
    parquet(frame(100), folder / "few.parquet")
    few = call("fraud.toml", "few.parquet", "--output", "few.json", "--account", "few.account")
    assert "means_at_bounds" not in few.stderr


def rows_of(file: Path, declared: str, name: str = "auc.PairOGD") -> Any:
    """A table as it is read with these features, as a data frame."""
    config = load_config(configured(file.parent, name, "", declared=declared))
    texts = backfill.taken_cells(config)["texts"]
    table = tables.open_table([file], config.input, ["y"], texts=texts)
    return pd.concat(batch.to_pandas() for part, _ in table.parts for batch in table.reader.batches(part))


def decoded(data: pd.DataFrame, declared: str, folder: Path) -> list[dict[str, Any]]:
    """The features of each row as an event of a lane."""
    config = load_config(configured(folder, "auc.PairOGD", "", declared=declared))
    decode = json_decoder(config.input, gaps=True, texts=True)
    rows = json.loads(data.to_json(orient="records"))
    return [decode(Record(i, json.dumps(row).encode())).x for i, row in enumerate(rows)]


def test_cells_of_csv_are_those_of_a_lane(folder: Path) -> None:
    """True and dates are texts; a column of texts and numbers is refused, since a cell has one type there."""
    rows = [["true", "2026-11-30", '"one\ntwo"'], ["false", "2026-12-01", "three"]] * 30_000
    lines = [f"{','.join(cells)},{i % 2}" for i, cells in enumerate(rows)]
    Path("x.csv").write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    found = rows_of(folder / "x.csv", 'features = ["a", "b", "c"]')
    assert len(found) == 60_000  # in more than one block, with line breaks in cells
    assert found[["a", "b", "c"]].iloc[:2].to_numpy().tolist() == [
        ["true", "2026-11-30", "one\ntwo"],
        ["false", "2026-12-01", "three"],
    ]
    Path("gap.csv").write_text("a,b,y\n,1,True\nNA,2,False\n")
    assert rows_of(folder / "gap.csv", 'features = ["a", "b"]')["a"].isna().tolist() == [True, False]
    Path("mixed.csv").write_text("a,b,y\n1,unknown,1\n0,1,0\n")
    configured(folder, "auc.PairOGD", "", 'features = ["a", "b"]')
    assert "the column 'b' has texts and numbers" in error("mixed.csv")


def test_declared_values_are_texts_wherever_they_stand(folder: Path) -> None:
    declared = 'features = { a = [-1, 1], code = ["01", "02"] }'
    config = load_config(configured(folder, "auc.PairOGD", "", declared))
    for code in ("01", "02"):
        parquet(frame(40), folder / "h" / f"code={code}" / "x.parquet")
    table = tables.open_table([folder / "h"], config.input, ["y"])
    both = pd.concat(batch.to_pandas() for part, _ in table.parts for batch in table.reader.batches(part))
    assert both[["code=01", "code=02"]].sum().tolist() == [40, 40]
    codes = pa.array([decimal.Decimal("1.00"), decimal.Decimal("2.00")])
    data = pa.table({"a": [0.5, 0.5], "y": [True, False], "code": codes})
    pq.write_table(data, "decimal.parquet")
    assert "'code' is of type decimal128(3, 2)" in error("decimal.parquet")


def test_names_in_a_path_are_columns_below_the_folder_that_is_given(folder: Path) -> None:
    """Not those above it; of a file that is given, none."""
    above = folder / "day=1" / "a=2"
    for code in ("01", "02"):
        parquet(frame(40).drop(columns="other"), above / "t" / f"code={code}" / "x.parquet")
        parquet(frame(40).drop(columns="other"), above / "u" / f"code={code}" / "x.parquet")
    config = load_config(configured(folder, "auc.PairOGD", "", ""))

    def columns(*paths: Path) -> list[str]:
        found = tables.open_table(paths, config.input, ["y"])
        assert found.rows == sum(
            len(batch) for part, _ in found.parts for batch in found.reader.batches(part)
        )
        return found.reader.schema.names

    below = ["a", "b", "code", "y"]
    assert columns(above / "t") == columns(above / "t", above / "u") == below
    assert columns(above) == below
    assert columns(folder / "day=1" / "a=2" / "t" / "code=01" / "x.parquet") == ["a", "b", "y"]
    configured(folder, "auc.PairOGD", "", 'features = ["b", "code"]')
    assert "give the folder above code=..." in error(above / "t" / "code=01")
    configured(folder, "auc.PairOGD", "", 'features = ["b", "day"]')
    assert "give the folder above day=..." in error(above)


def test_fields_of_structs_and_texts_of_times_are_those_of_a_lane(folder: Path) -> None:
    declared = (
        'features = { "user.age" = [0, 99], "user.home.country" = ["NL", "BE"], "sent.at.hour" = [0, 23], '
        '"sent.at.weekday" = [0, 6], "seen.hour" = [0, 23], "n.spelled" = [0, 9] }\n'
        'fields = { "sent.at" = "iso-8601", seen = "epoch-s", "n.spelled" = "number" }'
    )
    path = configured(folder, "auc.PairOGD", "", declared)
    path.write_text(path.read_text().replace('label = "y"', 'label = "y.known"'))
    config = load_config(path)
    times = ["2026-11-30T23:30:00+01:00", "2026-12-01", "20261201T050607Z", "2026-12-01 07:08", "", None]
    ages = [1.0, None, 3.0, 4.0, 5.0, 6.0]
    homes = [
        {"country": "NL"},
        {"country": "BE"},
        None,
        {"country": None},
        {"country": "FR"},
        {"country": "NL"},
    ]
    users = [{"age": age, "home": home, "more": "x"} for age, home in zip(ages, homes, strict=True)]
    users[3] = None
    seen = ["1700000000", "1700003600.5", None, "1.7e9", "", "1700000000"]
    data = pa.table(
        {
            "user": users,
            "sent": [{"at": time} for time in times],
            "seen": seen,
            "n.spelled": ["1", "2", "", "4", "5", "6"],
            "n": [{"spelled": 9.0}] * 6,
            "y": [{"known": i % 2 == 0} for i in range(6)],
        }
    )
    numbers = pa.array([1700000000.0, 1700003600.5, None, 1.7e9, None, 1.7e9])
    views = data.set_column(2, "seen", data.column("seen").cast(pa.string_view()))
    codes = data.set_column(2, "seen", data.column("seen").dictionary_encode())
    for number, table in enumerate((data, data.set_column(2, "seen", numbers), views, codes)):
        pa.feather.write_feather(table, f"{number}.arrow") if number == 2 else pq.write_table(
            table, f"{number}.parquet"
        )
        (file,) = folder.glob(f"{number}.*")
        found = tables.open_table([file], config.input, ["y.known"])
        (batch,) = (batch for part, _ in found.parts for batch in found.reader.batches(part))
        names = config.input.feature_names()
        decode = json_decoder(config.input, gaps=True)
        for i, row in enumerate(data.to_pylist()):
            read = {name: batch.column(name)[i].as_py() for name in names}
            assert {k: float(v) for k, v in read.items() if v is not None} == decode(
                Record(i, json.dumps(row).encode())
            ).x
        assert batch.column("y.known").to_pylist() == [True, False] * 3
    made("0.parquet")
    Path("start.json").unlink()
    plain = pa.table({"user.age": ages, **{name: data.column(name) for name in data.column_names[1:]}})
    pq.write_table(plain, "plain.parquet")
    configured(folder, "auc.PairOGD", "", 'features = ["user.age"]')
    assert "a field of a struct there" in error("0.parquet", "plain.parquet", "--label", "y.known")
    assert "has no column 'user.age.x'" in error("0.parquet", "--label", "user.age.x")
    Path("times.csv").write_text("a,at,y\n1,2026-11-30T23:30:00+01:00,1\n2,,0\n3,2026-12-01,1\n")
    declared = 'features = ["a", "at.hour"]\nfields = { at = "iso-8601" }'
    assert rows_of(folder / "times.csv", declared)["at.hour"].fillna(-1).tolist() == [22, -1, 0]
    Path("bad.csv").write_text("a,at,y\n1,2026-11-30,1\n2,secret,0\n")
    assert "the column 'at' has a value that is no time as iso-8601" in error("bad.csv")


def test_numbers_of_16_bits_are_those_of_64(folder: Path) -> None:
    data = pa.Table.from_pandas(frame().round(1), preserve_index=False)
    short = pa.array(data["a"].to_numpy().astype(np.float16))
    short_as_double = pa.array(short.to_numpy().astype(np.float64))
    pq.write_table(data.set_column(0, "a", short), "16.parquet")
    pq.write_table(data.set_column(0, "a", short_as_double), "64.parquet")
    assert made("16.parquet", "--account", "16.account") == made("64.parquet", "--account", "64.account")


def test_texts_of_polars_are_read(folder: Path) -> None:
    pl.from_pandas(frame(40)).write_ipc("x.arrow")
    configured(folder, "auc.PairOGD", "", 'features = ["a", "other"]')
    call("fraud.toml", "x.arrow", "--output", "start.json")


def test_a_forest_leaves_out_rows_without_a_feature(folder: Path) -> None:
    data = frame(200)
    data.loc[150, ["a", "b"]] = None
    parquet(data, folder / "x.parquet")
    configured(folder, "auc.Forest", "options = { seed = 1 }")
    learner = auc.Forest(seed=1)
    whole = data.drop(index=150)
    learner.learn_many(whole[["a", "b"]], whole["y"])
    assert made("x.parquet") == models.dumps(learner)


NUMBER = 'features = ["a", "b"]\nfields = { a = "number" }'


def test_texts_that_are_declared_as_numbers_are_numbers(folder: Path) -> None:
    data = frame(4).assign(a=["1e1", " -0.5", "", "+2"])
    bounded = f'{FEATURES}\nfields = {{ a = "number" }}'
    for suffix, declared in itertools.product(("parquet", "csv"), (NUMBER, bounded)):
        file = folder / f"x.{suffix}"
        parquet(data, file) if suffix == "parquet" else data.to_csv(file, index=False)
        found = [
            {k: v for k, v in row.items() if v == v}
            for row in rows_of(file, declared)[["a", "b"]].to_dict("records")
        ]
        assert found == [pytest.approx(x) for x in decoded(data, declared, folder)]


def test_a_column_that_the_lane_would_not_read_as_a_number_is_refused(folder: Path) -> None:
    texts = frame(120).assign(a=["secret", "1", "2"] * 40)
    parquet(texts, folder / "x.parquet")
    texts.to_csv("x.csv", index=False)
    parquet(frame(120).assign(a=True), folder / "flag.parquet")
    for learner, options in (("auc.PairOGD", ""), ("auc.PairFTRL", PRIVATE)):
        configured(folder, learner, options)
        assert 'add a = "number" to input.fields' in error("x.parquet")
        assert "a text that spells no number" in error("x.csv")
        assert "of type bool, and [input] declares a number" in error("flag.parquet")
        configured(folder, learner, options, f'{FEATURES}\nfields = {{ a = "number" }}')
        assert "a text that spells no number" in error("x.parquet")
    configured(folder, "auc.PairOGD", "", NUMBER)
    assert "a text that spells no number" in error("x.csv")
    configured(folder, "auc.PairOGD", "", 'features = ["a", "b"]')
    assert models.loads(made("x.parquet")).takes_text


@support.in_one_case("name", ["auc.PairOGD", "auc.PairMoments"])
def test_a_row_without_a_label_is_not_learned(folder: Path, name: str) -> None:
    """As in a lane: not even where a whole batch has none."""
    configured(folder, name, "")
    data, known = frame(1200), np.arange(1200) % 3 > 0
    known[400:800] = False
    rows = data.assign(y=data["y"].astype("object").where(known, None))
    parquet(rows, folder / "x.parquet")
    parquet(rows[known], folder / "known" / "x.parquet")
    if name == "auc.PairOGD":
        assert made("x.parquet") == made("known")
    assert models.loads(made("x.parquet")).slots == known.sum()
    Path("start.json").unlink()
    parquet(rows[~known].astype({"y": "boolean"}), folder / "none.parquet")
    assert "no row has a label in the column 'y'" in error("none.parquet")


def test_times_in_another_unit_are_refused(folder: Path) -> None:
    declared = 'features = { a = [-1, 1], "when.hour" = [0, 23] }\nfields = { when = "KIND" }'
    data = frame(3).assign(when=[1_700_000_000, None, 1_700_003_600]).astype({"when": "Int64"})
    parquet(data, folder / "x.parquet")
    assert rows_of(folder / "x.parquet", declared.replace("KIND", "epoch-s"))["when.hour"].tolist()[::2] == [
        22,
        23,
    ]
    configured(folder, "auc.PairOGD", "", declared.replace("KIND", "epoch-ms"))
    assert "no times from 1990 to 2100 as epoch-ms" in error("x.parquet")
    parquet(frame(1).assign(when=pd.Timestamp("2024-01-31").date()), folder / "day.parquet")
    assert rows_of(folder / "day.parquet", declared.replace("KIND", "iso-8601"))["when.hour"].tolist() == [0]


def test_a_model_is_not_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for learner, options in (("auc.PairMoments", ""), ("auc.PairFTRL", PRIVATE)):
        configured(folder, learner, options)
        Path("start.json").write_text("of a lane")
        said = call("fraud.toml", "t", "--output", "start.json", code=2).stderr
        assert "start.json exists" in said
        assert "name another --output" in said
        assert Path("start.json").read_text() == "of a lane"
        assert not Path("fraud-history.account.json").exists()
    # A run that has ended between its model and the removal of its sums goes on, and no other one does.
    for learner, options in (("auc.PairMoments", ""), ("auc.PairFTRL", PRIVATE)):
        configured(folder, learner, options)
        model = made("t", "--processes", 1)
        Path("start.json").unlink()
        Path("fraud-history.account.json").unlink(missing_ok=True)
        killed_before_the_sums_are_removed(monkeypatch)
        assert Path("start.json").read_bytes() == model
        for other, more in (("auc.PairOGD", ()), ("auc.PairFTRL", ("--account", "other.json"))):
            configured(folder, other, PRIVATE.replace("1.0", "2.0") if more else "")
            command = "fraud.toml", "t", "--output", "start.json"
            assert "start.json exists" in call(*command, *more, code=2).stderr
        assert Path("start.json").read_bytes() == model
        assert not Path("other.json").exists()
        configured(folder, learner, options)
        call("fraud.toml", "t", "--output", "start.json")
        assert Path("start.json").read_bytes() == model
        assert not Path("start.json.sums").exists()
    assert account() == [(1, True), (2, True)]
    # Nor one that asks for a new attempt when the attempt has ended.
    Path("start.json").unlink()
    Path("fraud-history.account.json").unlink()
    killed_before_the_sums_are_removed(monkeypatch, attempt_ended=True)
    command = "fraud.toml", "t", "--output", "start.json"
    assert "start.json exists" in call(*command, "--new-attempt", code=2).stderr
    assert "start.json exists" in call(*command, code=2).stderr
    assert Path("start.json").read_bytes() == model
    assert not Path("start.json.sums").exists()


def killed_before_the_sums_are_removed(
    monkeypatch: pytest.MonkeyPatch, *, attempt_ended: bool = False
) -> None:
    """End a run that has written its model; `attempt_ended`: the account says that its attempt is over."""
    true, finish = backfill.write_file, AttemptAccount.finish

    def write(path: Path, data: bytes) -> None:
        true(path, data)
        if not attempt_ended:
            raise KeyboardInterrupt

    def finished(self: AttemptAccount, stage: Any, released: Any) -> None:
        finish(self, stage, released)
        if stage == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backfill, "write_file", write)
        patch.setattr(AttemptAccount, "finish", finished)
        said = call("fraud.toml", "t", "--output", "start.json", code=130).stderr
    assert "the same command goes on where it was" in said
    assert Path("start.json.sums").exists()


# ---- interrupted runs ------------------------------------------------------------------------------------

KILLED = """
import multiprocessing, os, signal, sys
from streampair_connectors.cli import backfill
from streampair_connectors.history import passes, tables
from streampair.privacy.noise import ChainedNoise

def die(*_):
    with open("children", "w") as file:
        file.write(" ".join(str(child.pid) for child in multiprocessing.active_children()))
    os.kill(os.getpid(), int(sys.argv[2]))

def dying(where, name, number):
    true, calls = getattr(where, name), []
    def method(*arguments):
        calls.append(1)
        if len(calls) == number:
            die()
        return true(*arguments)
    setattr(where, name, method)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C
    tables._PART_ROWS, passes._SAVE_EVERY = 500, -1.0
    dying({where}, "{name}", {number})
    from streampair_connectors.cli.app import app
    app(["backfill", "fraud.toml", "t", "--output", "start.json", "--processes", sys.argv[1]])
"""


@pytest.mark.parametrize(
    ("where", "name", "number", "before", "left"),
    [
        ("passes.Partial", "save", 3, [], 4 + 6),  # in the middle of the first stage, which has six parts
        ("ChainedNoise", "take", 1, [(1, False)], 6),
        ("passes.Partial", "save", 11, [(1, True)], 3),  # in the middle of the second one
        ("ChainedNoise", "take", 2, [(1, True), (2, False)], 0),
        ("backfill", "write_file", 1, [(1, True), (2, False)], 0),
    ],
)
def test_after_kill_9_the_same_command_gives_the_same_bytes_by_one_attempt(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    name: str,
    number: int,
    before: list[Any],
    left: int,
) -> None:
    # Some row groups have no row of the sample.
    parquet(frame(), folder / "t" / "1.parquet", folder / "t" / "2.parquet", group=5)
    processes = 2 if number == 3 else 1
    script = folder / "killed.py"
    script.write_text(
        KILLED.replace("{where}", where).replace("{name}", name).replace("{number}", str(number))
    )
    ended = subprocess.run([sys.executable, script, str(processes), "9"], check=False, timeout=120)
    assert ended.returncode == -9
    assert not Path("start.json").exists()
    assert (account() if Path("fraud-history.account.json").exists() else []) == before
    sums = Path("start.json.sums")
    assert stat.S_IMODE(sums.stat().st_mode) == 0o600
    assert len(Path("children").read_text().split()) == (2 if processes == 2 else 0)
    wait_for_children()
    read: list[int] = []
    true = passes.JobPass.part
    monkeypatch.setattr(passes.JobPass, "part", lambda self, part: read.append(1) or true(self, part))
    model = made("t", "--processes", 1)
    assert len(read) == left
    assert model == wanted(auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS))
    assert account() == [(1, True), (2, True)]
    assert not sums.exists()


def wait_for_children() -> None:
    """Wait until the processes that read have ended."""
    children = []
    for pid in map(int, Path("children").read_text().split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            children.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(children, 60)
    left = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    assert not left


def test_ctrl_c_ends_all_processes_at_once(folder: Path) -> None:
    script = folder / "killed.py"
    text = KILLED.replace("{where}", "passes.Partial").replace("{name}", "save").replace("{number}", "3")
    script.write_text(text)
    command = [sys.executable, script, "2", str(int(signal.SIGINT))]
    ended = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    wait_for_children()
    assert made("t", "--processes", 1) == wanted(auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS))


def interrupted(
    monkeypatch: pytest.MonkeyPatch, kind: Any = passes.JobPass, parts: int = 3, *more: object
) -> None:
    """Press Ctrl-C while that many parts have been read by a kind of passes; `more`: options."""
    read: list[int] = []
    true = kind.part

    def part(self: Any, part: Any) -> Any:
        read.append(1)
        if len(read) == parts:
            raise KeyboardInterrupt
        return true(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(passes, "_SAVE_EVERY", -1.0)
        patch.setattr(kind, "part", part)
        call("fraud.toml", "t", "--output", "start.json", "--processes", 1, *more, code=130)
    assert Path("start.json.sums").exists()


def error(*arguments: object, code: int = 1) -> str:
    """What a command that fails says."""
    result = call("fraud.toml", *arguments, "--output", "start.json", "--processes", 1, code=code)
    assert not Path("start.json").exists()
    assert "secret" not in result.stderr
    assert "fix: " in result.stderr
    return str(result.stderr)


@pytest.mark.parametrize("change", ["value", "order", "touched", "more"])
def test_a_table_that_has_changed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    interrupted(monkeypatch)
    file, data = folder / "t" / "2.parquet", frame().iloc[1500:]
    status = file.stat()
    if change == "value":
        parquet(data.assign(a=data["a"].to_numpy()[::-1]), file)
    elif change == "order":
        parquet(data.iloc[::-1], file)
    elif change == "more":
        parquet(frame(10).assign(id=range(N, N + 10)), folder / "t" / "3.parquet")
    if change != "touched":  # a copy that keeps the time of change is told by the end of the file
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert "the table has changed since" in error("t")
    assert not Path("fraud-history.account.json").exists()
    Path("start.json.sums").unlink()
    call("fraud.toml", "t", "--output", "start.json", "--processes", 1)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_table_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    true = passes.JobPass.part

    def part(self: passes.JobPass, part: Any) -> Any:
        if self.job.stage == stage:
            parquet(frame().iloc[1500:], folder / "t" / "2.parquet")
        return true(self, part)

    monkeypatch.setattr(passes.JobPass, "part", part)
    assert "the table has changed while it was read" in error("t")
    assert stage == 2 or not Path("fraud-history.account.json").exists()


def test_sums_of_another_job_are_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    configured(folder, learner=PRIVATE.replace("1.0", "2.0"))
    assert made("t", "--processes", 1) == wanted(auc.PairFTRL(2.0, 1e-6, bounds=BOUNDS))


def test_sums_of_another_attempt_are_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = passes.JobPass(_job(), _table().reader, 1)
    partial = passes.Partial(Path("sums"), "fingerprint")
    partial.save(work, 1, work.part(_table().parts[0][0]))
    assert partial.load(work) == (1, work.part(_table().parts[0][0]))
    assert partial.load(passes.JobPass(_job(), _table().reader, 2)) == (0, None)


def test_sums_of_other_columns_are_not_used(folder: Path) -> None:
    """Neither of a learner nor of a job, whose digests know no unit of a time."""
    data = frame(400).assign(confirmed=frame(400)["y"], when=10**9 * np.arange(400), code="x")
    parquet(data, folder / "c.parquet")

    def reader(features: str, unit: str = "epoch-s") -> tables.Reader:
        declared = f'features = {{ {features}, "when.hour" = [0, 23] }}\nfields = {{ when = "{unit}" }}'
        found = load_config(configured(folder, declared=declared)).input
        return tables.open_table([Path("c.parquet")], found, ["y", "confirmed", "id"]).reader

    before = reader('a = [-1, 1], code = ["x", "y"]')
    changes = {
        "label": before,
        "features": reader('b = [-1, 1], code = ["x", "y"]'),
        "unit of a time": reader('a = [-1, 1], code = ["x", "y"]', "epoch-ms"),
        "declared values": reader('a = [-1, 1], code = ["x", "z"]'),
    }
    for change, after in changes.items():
        names = [
            [kind(auc.PairMoments(), read, label, {}).name for kind in (passes.InOrder, passes.MomentsPass)]
            + [passes.JobPass(_job(), read, 1).name] * (change != "label")  # which the job has in its digest
            for read, label in ((before, "y"), (after, "confirmed" if change == "label" else "y"))
        ]
        assert all(one != other for one, other in zip(*names, strict=True)), change


def test_a_run_that_was_interrupted_does_not_go_on_with_another_label(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(folder, "auc.PairMoments", "")
    for file, rows in (("1", frame().iloc[:1500]), ("2", frame().iloc[1500:])):
        parquet(rows.assign(other=~rows["y"]), folder / "t" / f"{file}.parquet")
    right = made("t", "--processes", 1, "--label", "other")
    Path("start.json").unlink()
    interrupted(monkeypatch, passes.MomentsPass)
    assert made("t", "--processes", 1, "--label", "other") == right


def test_sums_are_written_to_a_new_file_that_others_cannot_read(folder: Path) -> None:
    work, part = passes.JobPass(_job(), _table().reader, 1), Path("sums.part")
    partial = passes.Partial(Path("sums"), "fingerprint")
    Path("elsewhere").touch()
    for left in (lambda: part.touch(0o644), lambda: part.symlink_to("elsewhere")):
        left()
        partial.save(work, 1, work.part(_table().parts[0][0]))
        assert stat.S_IMODE(Path("sums").lstat().st_mode) == 0o600
    assert Path("elsewhere").read_bytes() == b""


def test_a_lock_that_its_owner_removed_meanwhile_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, true, calls = Path("x.lock"), fcntl.flock, list[int]()

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            path.unlink()  # as another process does at its end
        calls.append(1)
        true(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with passes.lock(path), pytest.raises(StoreError, match="it has locked"), passes.lock(path):
        pass
    assert not path.exists()


def test_an_error_in_the_body_of_a_lock_is_not_one_of_the_lock(folder: Path) -> None:
    with pytest.raises(BlockingIOError), passes.lock(Path("x.lock")):
        raise BlockingIOError  # as where no more processes may begin


def _job() -> history.Job:
    learner = auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS)
    return history.Job(learner, label="y", rows=N, row_id="id", salt="fraud history")


def _table() -> tables.TableFiles:
    return tables.open_table([Path("t")], load_config(Path("fraud.toml")).input, ["y", "id"])


def test_on_a_full_disk_nothing_is_spent_and_the_same_command_goes_on(folder: Path) -> None:
    model = wanted(auc.PairFTRL(1.0, 1e-6, bounds=BOUNDS))
    with support.full_disk(0):
        assert "start.json.sums cannot be written: File too large" in error("t")
        job = _job()
        with pytest.raises(StoreError, match="cannot be written: File too large"):
            job.standardised(job.sums(frame()), KEY, account="full.json")
    assert not Path("fraud-history.account.json").exists()
    assert not Path("full.json").exists()
    assert made("t") == model


def test_damaged_sums_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(monkeypatch)
    sums = Path("start.json.sums")
    for damaged in (b"", sums.read_bytes()[:-1], b"x" * 200):
        sums.write_bytes(damaged)
        assert "cannot be read" in error("t")


def test_a_second_driver_is_refused(folder: Path) -> None:
    with passes.lock(Path("start.json.lock")):
        assert "another process makes the same file" in error("t")
    call("fraud.toml", "t", "--output", "start.json", "--processes", 1)


def test_a_second_model_is_asked_for_before_the_table_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("t", "--processes", 1)
    Path("start.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(passes.JobPass, "part", lambda *_: pytest.fail("the table was read"))
        assert "attempt 1 at stage 2 has been released" in error("t")
    made("t", "--processes", 1, "--new-attempt")
    assert account() == [(1, True), (2, True)] * 2


def test_a_new_attempt_that_was_interrupted_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made("t", "--processes", 1)
    Path("start.json").unlink()
    interrupted(monkeypatch, passes.JobPass, 4 + 1, "--new-attempt")  # at the first part of the second stage
    assert account() == [(1, True), (2, True), (1, True)]
    made("t", "--processes", 1, "--new-attempt")
    assert account() == [(1, True), (2, True)] * 2


@pytest.mark.parametrize("stage", [1, 2])
def test_a_new_attempt_whose_file_could_not_be_written_is_finished_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    made("t", "--processes", 1)
    Path("start.json").unlink()

    def full(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage == 1:
            patch.setattr(SumsRelease, "draw", full)
        else:
            patch.setattr(backfill, "write_file", full)
        call("fraud.toml", "t", "--output", "start.json", "--processes", 1, "--new-attempt", code=130)
    assert account() == [(1, True), (2, True), (1, stage == 2), *[(2, False)] * (stage == 2)]
    made("t", "--processes", 1, "--new-attempt")
    assert account() == [(1, True), (2, True)] * 2


def test_check_and_card_count_attempts_after_the_model_of_the_lane(folder: Path) -> None:
    model = models.loads(made("t", "--processes", 1))
    text = Path("fraud.toml").read_text().replace("[learner]", '[learner]\nstart = "start.json"')
    approved = promised_epsilon(math.sqrt(2.0) * model.privacy["mu_spent"], model.privacy["delta"])
    text += f"""
[store]
directory = "state"
[card]
approved_by = "B. Officer"
approved_on = 2026-01-01
review_by = 2100-01-01
reason = "a test"
approved_epsilon = {approved!r}
approved_delta = 1e-6
"""
    Path("fraud.toml").write_text(text)

    def warned(*more: str) -> list[str]:
        check = CliRunner().invoke(app, ["check", "fraud.toml", "--json", *more])
        return [each["text"] for each in json.loads(check.stdout)["findings"] if each.get("warning")]

    def said(*more: str) -> list[str]:
        card = json.loads(CliRunner().invoke(app, ["budget", "card", "fraud.toml", "--json", *more]).stdout)
        return [text for text in [*warned(*more), *card["notes"]] if "attempts at the table" in text]

    assert said() == []
    assert not any("promises less" in each for each in warned())
    Path("other.toml").write_text(text.replace("[-1, 1]", "[-2, 2]"))
    call("other.toml", "t", "--output", "other.json", "--account", "other.account.json")
    mine = Path("fraud-history.account.json")
    whole = mine.read_bytes()
    mine.write_bytes(Path("other.account.json").read_bytes())
    assert any("is the account of another job than the model's, with 1 attempts" in each for each in warned())
    mine.write_bytes(whole)
    call("fraud.toml", "t", "--output", "again.json", "--new-attempt")
    assert any("promises less" in each for each in warned())
    spent = models.load(Path("again.json")).privacy
    for each in said():
        assert "has 2 attempts at the table, and the model counts 1" in each
        assert f"has spent mu {spent['mu_spent']:.4g} on it, epsilon {spent['epsilon_spent']:.4g} at" in each
    assert len(said()) == 2
    counted = said()
    mine.rename("elsewhere.json")
    assert ["there is no account" in each for each in [text for text in warned() if "account" in text]] == [
        True
    ]
    assert not any("promises less" in each for each in warned())
    found = [each.replace("elsewhere.json", mine.name) for each in said("--account", "elsewhere.json")]
    assert found == counted
    assert any("promises less" in each for each in warned("--account", "elsewhere.json"))
    Path("elsewhere.json").rename(mine)
    Path("fraud.toml").write_text(Path("fraud.toml").read_text().replace("start.json", "again.json"))
    assert said() == []


def test_sums_of_a_model_that_has_been_released_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a run that was killed between the end of its attempt and their removal."""
    sums, true = Path("start.json.sums"), backfill.write_file

    def write(path: Path, data: bytes) -> None:
        shutil.copy(sums, "kept")
        true(path, data)

    monkeypatch.setattr(backfill, "write_file", write)
    made("t", "--processes", 1)
    assert not sums.exists()
    Path("start.json").unlink()
    Path("kept").rename(sums)
    assert "attempt 1 at stage 2 has been released" in error("t")
    assert not sums.exists()
    # Those of another job, which was interrupted, stay.
    configured(folder, learner=PRIVATE.replace("1.0", "2.0"))
    interrupted(monkeypatch, passes.JobPass, 2, "--account", "other")
    configured(folder)
    assert "attempt 1 at stage 2 has been released" in error("t")
    assert sums.exists()


# ---- bad tables ------------------------------------------------------------------------------------------


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _values(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    return lambda file: parquet(change(frame().iloc[1500:]), file)


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (lambda file: file.write_bytes(b"") and None, "cannot be read: Parquet file size is 0 bytes"),
    "cut": (_cut, "cannot be read: Parquet magic bytes not found in footer"),
    "other": (
        lambda file: file.write_text("secret") and None,
        "Parquet file size is 6 bytes",
    ),
    "ending": (lambda file: file.rename(file.with_suffix(".orc")) and None, "of another format"),
    "no feature": (_values(lambda t: t.drop(columns="b")), "2.parquet has no column 'b'"),
    "no label": (_values(lambda t: t.drop(columns="y")), "2.parquet has no column 'y'"),
    "no id": (_values(lambda t: t.drop(columns="id")), "2.parquet has no column 'id'"),
    "other type": (_values(lambda t: t.assign(a="secret")), "other columns than the files before it"),
    "other id": (_values(lambda t: t.astype({"id": str})), "other columns than the files before it"),
    "null label": (_values(lambda t: t.assign(y=[None, *t["y"][1:]])), "no usable label"),
    "twice": (_values(lambda t: t.assign(id=[1501, *t["id"][1:]])), "occurs twice"),
    "id gap": (_values(lambda t: t.astype({"id": "Int64"}).assign(id=None)), "row ids are"),
}


def test_a_row_id_in_two_files_is_refused_and_nothing_is_spent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frame().iloc[1500:]
    # That of the batch before, in one part and in two; or one within a batch.
    for place, other in ((400, 1899), (0, 1499), (10, 0)):
        ids = data["id"].to_numpy().copy()
        ids[place] = other
        parquet(data.assign(id=ids), folder / "t" / "2.parquet")
        assert "1 row id occurs twice in the table" in error("t")
        assert not Path("fraud-history.account.json").exists()
        assert not Path("start.json.sums").exists()
    monkeypatch.setattr(jobs, "_COMPARED", N // 3)
    twice = call("fraud.toml", "t", "--output", "start.json", "--processes", 2, code=1)
    assert "1 row id occurs twice in the table" in twice.stderr
    monkeypatch.setattr(jobs, "_MOST_CHECKED", N - 1)
    result = call("fraud.toml", "t", "--output", "start.json", "--processes", 1)
    assert "ids_not_compared" in result.stderr


def test_a_column_of_the_files_and_of_their_paths_is_named(folder: Path) -> None:
    for kind in ("int32", "int64"):
        parquet(frame(120).assign(a=2025).astype({"a": kind}), folder / "s" / "a=2026" / "1.parquet")
        assert "'a' is a column of" in (said := error("s"))
        assert "rename the folders a=..." in said


@pytest.mark.parametrize("name", SPOILED)
def test_a_bad_table_is_refused_and_nothing_is_spent(folder: Path, name: str) -> None:
    spoil, message = SPOILED[name]
    spoil(folder / "t" / "2.parquet")
    assert message in error("t", code=2 if name == "ending" else 1)
    assert not Path("fraud-history.account.json").exists()
    assert not Path("start.json.lock").exists()


def test_a_table_that_is_cut_off_or_damaged_says_where_and_how(folder: Path) -> None:
    arrow = pa.Table.from_pandas(frame().drop(columns="other"), preserve_index=False)
    twice = arrow.append_column("a", arrow["a"])
    pq.write_table(twice, "t/3.parquet")
    assert "3.parquet has 2 columns 'a'" in error("t")
    pq.write_table(arrow, "page.parquet", write_page_checksum=True)
    page = bytearray(Path("page.parquet").read_bytes())
    page[3000] ^= 1
    Path("page.parquet").write_bytes(page)
    pa.feather.write_feather(arrow, "whole.arrow", compression="uncompressed")
    lines = frame().drop(columns="other").to_csv(index=False)
    packed = gzip.compress(lines.encode())
    files = {
        "twice.parquet": (Path("t/3.parquet").read_bytes(), "cannot be read: duplicate field names"),
        "page.parquet": (page, "cannot be read: CRC checksum verification failed"),
        "cut.arrow": (Path("whole.arrow").read_bytes()[:-100], "cannot be read: Not an Arrow file"),
        "twice.csv": (lines.replace("b,y", "a,y", 1), "cannot be read: duplicate field names"),
        "cut.csv": (lines[:-3], "the last line of"),
        "cut.csv.gz": (packed[: len(packed) // 2], "cannot be read: Truncated compressed stream"),
        "empty.csv": ("", "cannot be read: Empty CSV file"),
        "semicolon.csv": (lines.replace(",", ";"), "files with these columns, separated by commas"),
    }
    for name, (content, message) in files.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        assert message in error(name), name
    assert not Path("fraud-history.account.json").exists()
    Path("cut.csv").write_bytes(lines.replace("\n", "\r\n").encode())
    made("cut.csv")


def test_errors_name_the_file_and_the_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the rows has no label, and is not learned."""
    monkeypatch.setattr(tables, "_BATCH_ROWS", 150)
    data = frame()
    data["y"] = data["y"].astype("object").where(data["id"] % 3 > 0, None)
    file = folder / "t" / "2.parquet"
    for learner in ("auc.PairOGD", "auc.PairMoments", "auc.Forest"):
        configured(folder, learner, "")
        Path("start.json.sums").unlink(missing_ok=True)
        parquet(data.assign(a=[*data["a"][:2500], math.inf, *data["a"][2501:]]).iloc[1500:], file)
        where = f"in row 1000 of {file} (row group 2, rows from 0) is infinite"
        assert where in error("t")
    texts = data["y"].map({True: "yes", False: "no"})
    texts[2501] = "odd"
    parquet(data.assign(y=texts), folder / "texts" / "1.parquet", folder / "texts" / "2.parquet")
    for learner in ("auc.PairOGD", "auc.PairMoments"):
        configured(folder, learner, "")
        assert f"in row 1001 of {folder / 'texts' / '2.parquet'} (row group 2" in error("texts")
    configured(folder)
    parquet(frame(), folder / "t" / "1.parquet", file)
    parquet(frame().assign(y=[*frame()["y"][:2500], None, *frame()["y"][2501:]]).iloc[1500:], file)
    Path("start.json.sums").unlink(missing_ok=True)
    place = f"in rows 950 to 1099 of {file} (row group 2, rows from 0)"
    assert f"{place}: in a batch 1 row has all features" in error("t")
    with pytest.raises(ValueError, match="row 5 is not in the message: row 4 is empty"):
        RecordError("row 4 is empty", fix="fill it", row=5)


def test_a_bad_cell_of_csv_is_not_quoted(folder: Path) -> None:
    data = frame(60_000).drop(columns="other")  # more than the block of which pyarrow takes the types
    lines = data.to_csv(index=False).splitlines()
    for column, line in (("y", "0.1,0.1,secret,59999"), ("a", "secret,0.1,True,59999")):
        Path("x.csv").write_text("\n".join([*lines[:-1], line, ""]))
        said = error("x.csv")
        assert "x.csv cannot be read: Row #60001: CSV conversion error to" in said, column


def test_a_later_file_of_csv_is_not_quoted(folder: Path) -> None:
    frame(10).drop(columns="other").to_csv("x1.csv", index=False)
    for text, message in (
        ("a,b,y,id\n0.1,0.1,True,1\n0.1,0.1,True,2,secret\n", "Row #3: Expected 4 columns, got 5\n"),
        ("0.1,secret,True,1\n0.2,0.2,True,2\n", "x2.csv has no column 'a'\n"),
    ):
        Path("x2.csv").write_text(text)
        for tables_of in (["x1.csv", "x2.csv"], ["x2.csv"]):
            assert message in error(*tables_of)  # which looks for the secret


def test_what_the_configuration_lacks_is_named(folder: Path) -> None:
    text = Path("fraud.toml").read_text()
    assert "no file or folder" in error("nowhere", code=2)
    assert "is given twice" in error("t", "t/1.parquet", code=2)
    for old, message in (
        ('id = "id"\n', "with --row-id"),
        ('noise_key_file = "noise.key"', "learner.noise_key_file is not set"),
        (
            "noise.key",
            "other.key cannot be read: No such file or directory\n  fix: correct the path; the first",
        ),
        (FEATURES, "features = { NAME = [LOW, HIGH], ... }"),
    ):
        Path("fraud.toml").write_text(text.replace(old, "other.key" if old == "noise.key" else ""))
        assert message in error("t", code=2)
    Path("fraud.toml").write_text(text.replace('id = "id"\n', 'id = ""\n'))
    assert "with --row-id" in error("t", code=2)
    Path("fraud.toml").write_text(text.replace(FEATURES, 'features = ["a", "b"]'))
    assert "features = { a = [LOW, HIGH], ... }" in error("t", code=2)
    assert not Path("fraud-history.account.json").exists()
    Path("fraud.toml").write_text(text.replace('id = "id"\n', ""))
    made("t", "--row-id", "id", "--label", "y", "--processes", 1)


def test_the_account_is_no_file_that_a_run_removes(folder: Path) -> None:
    made("t", "--processes", 1)
    Path("start.json").unlink()
    path = Path("fraud-history.account.json")
    for ending in ("sums", "lock"):
        path = path.rename(f"start.json.{ending}")
        assert "is the same file as that of the" in error("t", "--account", path, "--new-attempt", code=2)
        assert account(str(path)) == [(1, True), (2, True)]


def test_a_table_without_rows_is_refused(folder: Path) -> None:
    pq.write_table(pq.read_table("t/1.parquet").slice(0, 0), "none.parquet")
    for learner in ("auc.PairFTRL", "auc.PairMoments", "auc.PairOGD"):
        if learner != "auc.PairFTRL":
            configured(folder, learner, "")
        assert "the table has no rows" in error("none.parquet")


def test_options_of_private_learners_are_refused_for_others(folder: Path) -> None:
    configured(folder, "auc.PairMoments", "", declared="")
    for option in (("--row-id", "id"), ("--account", "account.json"), ("--new-attempt",), ("--entity", "id")):
        assert f"{option[0]} is for private learners, and PairMoments is not" in error("t", *option, code=2)


def test_a_label_or_an_id_that_is_a_feature_is_refused_before_the_table_is_read(folder: Path) -> None:
    declared = FEATURES.replace("}", ', "when.hour" = [0, 23] }\nfields = { when = "epoch-s" }')
    configured(folder, declared=declared)
    for option, what in (("--label", "the label"), ("--row-id", "the id of a row")):
        for name in ("a", "when"):
            message = f"the column '{name}' is {what}, and a feature too"
            assert message in error("t", option, name, code=2)
    configured(folder, "auc.PairMoments", "")
    assert "the column 'a' is the label, and a feature too" in error("t", "--label", "a", code=2)


def test_learners_that_learn_no_table_are_refused(folder: Path) -> None:
    for name in ("auc.OnPairC", "preprocessing.RandomFourier"):
        configured(folder, name, "options = {}" if "pre" in name else PRIVATE)
        assert "no table is learned by" in error("t", code=2)


def test_all_rows_of_an_entity_are_counted(folder: Path) -> None:
    limit = '{class = "streampair.privacy.EntityLimit", records = 2, separation = 50}'
    configured(folder, learner=PRIVATE.replace("horizon", f"entity = {limit}, horizon"))
    command = "fraud.toml", "t", "--output", "start.json"
    assert "with --entity" in call(*command, code=2).stderr
    assert "no column 'who'" in call(*command, "--entity", "who", code=1).stderr
    for most in (2, 3):
        data = frame().assign(who=np.arange(N) // most)
        parquet(data, folder / "t" / "1.parquet", folder / "t" / "2.parquet")
        if most == 2:
            model = models.loads(made("t", "--entity", "who", "--account", "two.json"))
            assert "at most 2 are learned from" in model.privacy["unit"]
        else:
            Path("start.json").unlink()
            said = call(*command, "--entity", "who", code=1).stderr
            assert "1000 entities of the column 'who' have more than 2 rows" in said
    assert not Path("fraud-history.account.json").exists()
    configured(folder)
    assert "learner.options.entity is not" in call(*command, "--entity", "who", code=2).stderr


def test_without_pyarrow_the_error_names_the_extra(folder: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\nfrom streampair_connectors.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program, "backfill", "fraud.toml", "t", "--output", "start.json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "pip install '.[history]'" in ended.stderr


# ---- learners without privacy ----------------------------------------------------------------------------


def test_moments_of_parts_add_up(folder: Path) -> None:
    configured(folder, "auc.PairMoments", "")
    one = made("t", "--processes", 1)
    assert made("t", "--processes", 2) == one
    learner = auc.PairMoments(half_life=None)
    learner.learn_many(frame()[["a", "b"]], frame()["y"])
    learner += learner.clone()  # which solves for the weights
    found = models.loads(one)
    x = frame(50)[["a", "b"]].to_dict("records")
    scores, theirs = ([model.score_one(r) for r in x] for model in (found, learner))
    assert np.diff(scores) == pytest.approx(np.diff(theirs), abs=1e-8)


@pytest.mark.parametrize(("name", "kind"), [("auc.PairOGD", auc.PairOGD), ("auc.Forest", auc.Forest)])
def test_other_learners_read_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any
) -> None:
    configured(folder, name, "options = { seed = 1 }")
    learner = kind(seed=1)
    learner.learn_many(frame()[["a", "b"]], frame()["y"])
    assert made("t") == models.dumps(learner)
    Path("start.json").unlink()
    interrupted(monkeypatch, passes.InOrder)
    true, read = passes.InOrder.part, list[int]()
    monkeypatch.setattr(passes.InOrder, "part", lambda self, part: read.append(1) or true(self, part))
    assert made("t") == models.dumps(learner)
    assert len(read) == 2


def started(name: str, learner: str = "") -> Any:
    """The learner of a lane that begins with start.state."""
    configured(Path.cwd(), name, f'{learner}\nstart = "start.state"', "")
    return build_learner(load_config(Path("fraud.toml")))


def test_a_lane_goes_on_from_a_state_as_if_it_had_read_the_table(folder: Path) -> None:
    rng = np.random.default_rng(1)
    gap = np.where(rng.random(N) < 0.3, None, 1.5)
    data = frame().assign(city=rng.choice(["Oslo", "Rome", "Bern"], N), gap=gap)
    data = data.drop(columns="other")
    parquet(data, folder / "t" / "1.parquet", folder / "t" / "2.parquet")
    more = frame(200).drop(columns=["id", "other"]).to_dict("records")
    for name in ("PairOGD", "OAM", "Forest"):
        configured(folder, f"auc.{name}", "options = { seed = 1 }", "")
        Path("start.state").unlink(missing_ok=True)
        call("fraud.toml", "t", "--output", "start.state")
        assert stat.S_IMODE(Path("start.state").stat().st_mode) == 0o600
        learner = getattr(auc, name)(seed=1)
        learner.learn_many(data.drop(columns=["y", "id"]), data["y"])
        begun = started(f"auc.{name}", "options = { seed = 1 }")
        for record in more:
            for each in (learner, begun):
                each.learn_one({"a": record["a"], "city": "Rome"}, record["y"])
        assert models.dumps(begun) == models.dumps(learner), name


def test_a_lane_of_moments_with_a_half_life_scores_with_the_table_until_it_has_learned(folder: Path) -> None:
    configured(folder, "auc.PairMoments", "")
    call("fraud.toml", "t", "--output", "start.state")
    model = models.loads(made("t"))
    options = "options = { half_life = 200 }"
    learner = started("auc.PairMoments", options)
    rows = frame(400)[["a", "b"]].to_dict("records")
    for x in rows[:20]:  # 0.05 of 289 records
        assert learner.score_one(x) == pytest.approx(model.score_one(x), abs=1e-12)
    plain = auc.PairMoments(half_life=200)
    for x in 10 * rows:
        for each in (learner, plain):
            each.learn_one(x, x["b"] > 0.0)
    assert learner.weights == pytest.approx(plain.weights, abs=0.01)  # both are solved for at other records


def test_a_state_of_another_learner_is_refused(folder: Path) -> None:
    configured(folder, "auc.PairOGD", "")
    call("fraud.toml", "t", "--output", "start.state")
    for name, more, message in (
        ("auc.Forest", "", "no state of a streampair.auc.Forest, but of 'streampair.auc.PairOGD'"),
        ("auc.PairOGD", "options = { radius = 3.0 }", "belongs to a learner with radius"),
        ("auc.PairFTRL", PRIVATE, "PairFTRL is private: it begins with a model"),
    ):
        with pytest.raises(StreampairError, match=re.escape(message)):
            started(name, more)
    whole = Path("start.state").read_bytes()
    Path("start.state").write_bytes(whole[:-1])
    with pytest.raises(SnapshotError, match=r"learner\.start: .*damaged"):
        started("auc.PairOGD")


def test_a_file_that_exists_is_kept_next_to_the_sums_of_another_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(passes, "_SAVE_EVERY", -1.0)
        patch.setattr(passes.Partial, "check", stop)
        call("fraud.toml", "t", "--output", "start.json", "--processes", 1, code=130)
    assert Path("start.json.sums").exists()
    os.utime("start.json.sums", (1, 1))
    Path("start.json").write_text("the model of a lane")
    parquet(frame(N - 1), folder / "u" / "1.parquet")
    said = call("fraud.toml", "u", "--output", "start.json", code=2).stderr
    assert "exists, and a lane may have begun with it" in said
    assert Path("start.json").read_text() == "the model of a lane"
    assert "is written to a file" in call("fraud.toml", "u", "--output", ".", code=2).stderr


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_private_learner_writes_no_state(folder: Path) -> None:
    assert (
        "releases a model, and no state" in call("fraud.toml", "t", "--output", "start.state", code=2).output
    )


def test_label_and_id_of_the_lane_are_no_features_of_a_table(folder: Path) -> None:
    """As in the lane, if no features are declared; with another label, too."""
    configured(folder, "auc.PairOGD", "", declared="")
    table = frame().assign(confirmed=frame()["y"], id=[f"p{i}" for i in range(N)]).drop(columns="other")
    parquet(table, folder / "s" / "1.parquet")
    assert models.loads(made("s")).features == ("a", "b", "confirmed")
    assert models.loads(made("s", "--label", "confirmed")).features == ("a", "b")


def test_small_tables_are_read_by_one_process() -> None:
    assert backfill._processes(9_999_999) == 1
    assert backfill._processes(10**12) == (os.cpu_count() or 1)


def test_progress_is_a_line_of_the_log_or_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Console(force_terminal=True, width=120)
    with backfill._progress(terminal, "rows", 1000) as progress:
        progress(0)
        progress(500)
    assert "500/1,000" in capsys.readouterr().out
    logs.configure("info")
    with backfill._progress(Console(stderr=True, force_terminal=False), "rows", 1000) as progress:
        progress(0)
        progress(500)
        progress(1000)
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["event"], found["rows"], found["of"], found["seconds_left"]) == ("rows_read", 1000, 1000, 0)
    assert found["rows_per_second"] > 0
