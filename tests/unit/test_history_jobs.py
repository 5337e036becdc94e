"""Jobs of `streampair.history`: batches of every library, bad tables, and what a model is made of."""

from __future__ import annotations

import math
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from streampair import auc, history, metric, models, privacy, ranking
from streampair.errors import ConfigError, PrivacyError, PrivacyWarning, RecordError, StreampairError
from streampair.history import Job, jobs
from streampair.privacy.mechanisms.table_moments import SumsRelease

KEY = bytes(range(32))
N = 500


def frame(rows: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, 2))
    return pd.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] > 0.2, "id": np.arange(rows), "other": "text"}
    )


def learner(**options: Any) -> auc.PairFTRL:
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, **{"bounds": {"a": (-1, 1), "b": (-1, 1)}, **options})


def job(rows: int = N, **options: Any) -> Job:
    return Job(learner(**options), label="y", rows=rows, row_id="id", salt="salt")


def test_a_batch_may_be_of_any_library() -> None:
    table, one = frame(), job()
    table.loc[3, "a"] = math.nan
    wanted = one.sums(table)
    columns = {name: table[name].to_numpy() for name in ("a", "b", "y", "id")}
    polars = pl.DataFrame({name: table[name].to_list() for name in table})
    gap = [None if value != value else value for value in table["a"]]
    for batch in (
        polars,
        polars.with_columns(pl.Series("a", gap)),
        table.astype({"id": "int32", "y": "int8"}),
        table.astype({"id": "float64", "y": "float32"}),
        table.astype({"a": "Float64", "y": "boolean", "id": "Int64"}),
        columns,
        {**columns, "id": columns["id"].tolist(), "y": columns["y"].tolist()},
        {**columns, "y": np.where(columns["y"], "yes", "no")},
        table.sample(frac=1.0, random_state=1),
    ):
        assert one.sums(batch) == wanted
    matrix = Job(learner(bounds=None, features=[0, 1]), label=2, rows=N, row_id=3, salt="salt")
    array = np.column_stack([columns[name].astype(float) for name in ("a", "b", "y", "id")])
    sums = matrix.sums(array)
    assert (sums.cells == wanted.cells).all()
    assert sums.job != wanted.job
    empty = one.sums(table.iloc[:0])
    assert empty.rows == 0
    assert empty + wanted == wanted == wanted + empty
    assert sum([wanted]) == wanted
    for other in (1, 0.0, None):
        with pytest.raises(TypeError):
            other + wanted


def test_what_a_mask_hides_is_a_gap() -> None:
    table, one = frame(), job()
    columns = {name: table[name].to_numpy() for name in ("a", "b", "y", "id")}
    hidden = np.arange(N) < 50
    masked = {**columns, "a": np.ma.MaskedArray(columns["a"], hidden)}
    wanted = one.sums(table.assign(a=np.where(hidden, math.nan, table["a"])))
    assert one.sums(masked) == wanted
    assert one.sums({**masked, "y": np.ma.MaskedArray(columns["y"], hidden)}) == wanted
    with pytest.raises(RecordError, match="no usable label"):
        one.sums({**columns, "y": np.ma.MaskedArray(columns["y"], hidden)})


def test_a_boolean_feature_of_pandas_may_have_gaps() -> None:
    table, one = frame(), job()
    values = [None, *(bool(x > 0) for x in table["a"][1:])]
    gap = [math.nan, *(float(x > 0) for x in table["a"][1:])]
    assert one.sums(table.assign(a=values)) == one.sums(table.assign(a=gap))


def test_a_label_that_a_column_with_gaps_would_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="doubles do not hold"):
        job(positive=2**53 + 1, negative=2**53)


def test_a_text_that_no_file_holds_is_refused_before_a_release() -> None:
    for options in ({"salt": "\ud800"}, {"label": "\ud800"}):
        with pytest.raises(ConfigError, match="cannot be written to a file"):
            Job(learner(), **{"label": "y", "rows": N, "row_id": "id", "salt": "salt", **options})
    with pytest.raises(ConfigError, match="cannot be written to a file"):
        job(positive="\ud800", negative="fine")


def test_texts_name_rows_too() -> None:
    table = frame().astype({"id": str})
    one = job()
    sums = one.sums(table)
    assert sums == one.sums(pl.DataFrame({name: table[name].to_list() for name in table}))
    assert sums.taken != one.sums(frame()).taken or (sums.cells != one.sums(frame()).cells).any()
    with pytest.raises(RecordError, match="numbers in one batch and texts in another"):
        sums + one.sums(frame())


def test_a_wide_table_and_text_labels(tmp_path: Path) -> None:
    table = frame(3000)
    table["y"] = np.where(table["y"], "fraud", "fine")
    one = Job(learner(positive="fraud", negative="fine"), label="y", rows=3000, row_id="id", salt="salt")
    model = history.fit(one, [table.iloc[:1000], table.iloc[1000:]], KEY, account=tmp_path / "a")
    scores = [model.score_one(x) for x in table[["a", "b"]].to_dict("records")]
    assert roc_auc_score(table["y"] == "fraud", scores) > 0.9
    assert set(model.predict_proba_one({"a": 0.0, "b": 0.0})) == {"fraud", "fine"}
    models.save(model, tmp_path / "model.json")
    again = models.load(tmp_path / "model.json")
    assert again.privacy == model.privacy
    assert again.metadata["history"]["assumed"] == list(history.ASSUMED)
    assert again.metadata["history"]["rows"] == 3000
    assert again.metadata["history"]["sample"] == one.sums(table).taken


@pytest.mark.parametrize("stage", [1, 2])
def test_a_new_attempt_of_a_fit_that_was_interrupted_is_finished_free(
    stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, table, account = job(), [frame()], tmp_path / "a"
    history.fit(one, table, KEY, account=account)
    draw, drawn = SumsRelease.draw, list[int]()

    def dies(self: SumsRelease, sums: Any, stream: Any) -> Any:
        drawn.append(1)
        if len(drawn) == stage:
            raise KeyboardInterrupt
        return draw(self, sums, stream)

    with monkeypatch.context() as patch:
        patch.setattr(SumsRelease, "draw", dies)
        with pytest.raises(KeyboardInterrupt):
            history.fit(one, table, KEY, account=account, new_attempt=True)
    model = history.fit(one, table, KEY, account=account, new_attempt=True)
    assert model.metadata["history"]["attempts"] == [2, 2]


def test_a_null_row_adds_nothing_whatever_its_label(tmp_path: Path) -> None:
    table, one = frame(), job()
    second = one.standardised(one.sums(table), KEY, account=tmp_path / "a")
    for missing in (None, math.nan, math.inf):
        row = table.iloc[[7]].astype({"y": object})
        row["a"] = missing
        for label in (True, None, "neither"):
            row["y"] = label
            for stage in (one, second):
                sums = stage.sums(row)
                assert not sums.cells.any()
                assert sums.rows == 1
                assert sums.nulls == sums.taken


SPOILED = {
    "no column": (lambda t: t.drop(columns="b"), "no column 'b'"),
    "no label": (lambda t: t.drop(columns="y"), "no column 'y'"),
    "no id": (lambda t: t.drop(columns="id"), "no column 'id'"),
    "text": (lambda t: t.assign(a="secret"), "'a' is of type"),
    "date": (lambda t: t.assign(a=pd.Timestamp("2026-01-01")), "'a' is of type"),
    "null label": (lambda t: t.assign(y=[None, *t["y"][1:]]), "no usable label"),
    "third label": (lambda t: t.assign(y=["secret", *t["y"][1:]]), "no usable label"),
    "twice": (lambda t: t.assign(id=[1, *t["id"][1:]]), "1 row id occurs twice in the column"),
    "text twice": (
        lambda t: t.assign(id=["1", *map(str, t["id"][1:])]),
        "1 row id occurs twice in the column",
    ),
    "id gap": (lambda t: t.assign(id=[math.nan, *t["id"][1:]]), "row ids are whole numbers or texts"),
    "id none": (lambda t: t.assign(id=[None, *map(str, t["id"][1:])]), "row ids are whole numbers or texts"),
    "id fraction": (lambda t: t.assign(id=t["id"] + 0.5), "row ids are whole numbers or texts"),
    "id truth": (lambda t: t.assign(id=True), "row ids are whole numbers or texts"),
    "id time": (
        lambda t: {**{n: t[n].to_numpy() for n in t}, "id": t["id"].to_numpy().astype("datetime64[ns]")},
        "row ids are whole numbers or texts",
    ),
    "id single": (lambda t: t.assign(id=(t["id"] + 2**25).astype("float32")), "row ids are whole numbers"),
    "id long": (lambda t: t.assign(id=[2**64 + int(i) for i in t["id"]]), "more than 64 bits"),
    "matrix": (lambda t: {**{n: t[n].to_numpy() for n in t}, "id": np.zeros((N, 2))}, "has shape"),
    "no table": (lambda t: [1, 2, 3], "is not a data frame"),
    "one dimension": (lambda t: np.zeros(3), "the array has shape"),
    "lengths": (lambda t: {**{n: t[n].to_numpy() for n in t}, "a": np.zeros(3)}, "different lengths"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_bad_batch_is_refused_without_a_value_in_the_message(name: str, tmp_path: Path) -> None:
    spoil, message = SPOILED[name]
    table, one = frame(), job()
    second = one.standardised(one.sums(table), KEY, account=tmp_path / "a")
    for stage in (one, second):
        with pytest.raises(RecordError, match=message) as error:
            stage.sums(spoil(table))
        assert "secret" not in str(error.value)
        assert "Fix: " in str(error.value)


def test_bad_sums_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    table, one, account = frame(), job(), tmp_path / "account"
    sums = one.sums(table)
    other = job(radius=2.0)
    for wrong, message in (
        (one.sums(table.iloc[:400]), "400 rows were read, and rows=500 was declared"),
        (sums + one.sums(table.iloc[:10]), "510 rows were read"),
        (other.sums(table), "of another job"),
        (None, "the sums are a NoneType"),
    ):
        with pytest.raises(StreampairError, match=message):
            one.standardised(wrong, KEY, account=account)
    with pytest.raises(ConfigError, match="of two jobs"):
        sums + other.sums(table)
    with pytest.raises(ConfigError, match="of the first stage"):
        one.release(sums, KEY, account=account)
    for key, message in ((None, "the noise key is None"), (b"short", "at least 32 bytes")):
        with pytest.raises(ConfigError, match=message):
            one.standardised(sums, key, account=account)  # type: ignore[arg-type]
    assert not account.exists()
    second = one.standardised(sums, KEY, account=account)
    spent = account.read_bytes()
    with pytest.raises(ConfigError, match="standardised already"):
        second.standardised(sums, KEY, account=account)
    with pytest.raises(ConfigError, match="of two jobs"):
        sums + second.sums(table)
    total = second.sums(table)
    for wrong, message in (
        (sums, "of another job"),
        (second.sums(table.iloc[:-1]), "499 rows were read"),
        (second.sums(table.assign(id=table["id"] + 1)), "not those that the first stage has read"),
        (second.sums(table.astype({"id": str})), "not those that the first stage has read"),
    ):
        with pytest.raises(StreampairError, match=message):
            second.release(wrong, KEY, account=account)
    assert account.read_bytes() == spent
    second.release(total, KEY, account=account)


def test_the_order_of_features_makes_no_other_job() -> None:
    one, other = (
        Job(learner(bounds=dict.fromkeys(names, (-1, 1))), label="y", rows=N, row_id="id", salt="salt")
        for names in ("ab", "ba")
    )
    assert one.digest == other.digest != job(warmup=np.int64(60)).digest
    assert Job(learner(), label="y", rows=N, row_id="id", salt="other").digest != one.digest


def test_a_table_that_can_be_read_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be read once"):
        history.fit(job(), iter([frame()]), KEY, account=tmp_path / "a")
    with pytest.raises(RecordError, match="no batches"):
        history.fit(job(), [], KEY, account=tmp_path / "a")


def begun() -> auc.PairFTRL:
    model = learner()
    model.learn_one({"a": 0.0, "b": 0.0}, True)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metric.PairFTRL(epsilon=1.0, delta=1e-4), "the classes are not known"),
        (lambda: metric.PairOGD(), "does not learn from sums"),
        (begun, "the learner has begun"),
        (lambda: learner(noise_key=KEY), "tasks that must hold none"),
        (lambda: learner(seed=1), "tasks that must hold none"),
        (lambda: learner(forks=1), "forks is set"),
        (lambda: learner(auc_share=0.05), "auc_share is set"),
        (lambda: learner(bounds=None), "the features are not known"),
        (lambda: learner(mechanism=privacy.PairGradients()), "another mechanism"),
        (lambda: learner(mechanism=privacy.DecayedMoments(half_life=100)), "half_life|another mechanism"),
        (lambda: learner(horizon=400), "the horizon of the learner is 400, and rows=500"),
    ],
)
def test_a_learner_that_cannot_learn_from_a_table_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Job(make(), label="y", rows=N, row_id="id", salt="salt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": 2**31}, "rows is 2147483648"),
        ({"rows": 500.0}, "rows is 500.0"),
        ({"rows": 50}, "another mechanism"),
        ({"label": "a"}, "'a' is label, and is something else too"),
        ({"row_id": "y"}, "is something else too"),
        ({"salt": b"bytes"}, "salt is a bytes"),
        ({"label": None}, "label is None"),
    ],
)
def test_a_wrong_job_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Job(learner(), **{"label": "y", "rows": N, "row_id": "id", "salt": "salt", **options})


def test_more_rows_than_the_sums_can_hold_are_refused() -> None:
    sums = job().sums(frame())
    for _ in range(22):
        sums = sums + sums
    assert sums.rows == N * 2**22
    with pytest.raises(RecordError, match="more than the sums can hold"):
        sums + sums


def test_a_delta_that_one_row_may_use_up_is_warned_of() -> None:
    with pytest.warns(PrivacyWarning, match="there are 20,000 rows"):
        job(rows=20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job(rows=5000)
    with pytest.raises(ConfigError, match="the rounding of noise alone needs"):
        Job(auc.PairFTRL(1.0, 1e-25, bounds={"a": (0, 1)}), label="y", rows=1000, row_id="id", salt="salt")


def test_the_card_has_both_releases(tmp_path: Path) -> None:
    one, table = job(), frame()
    second = one.standardised(one.sums(table), KEY, account=tmp_path / "a")
    assert [line.lemma.rpartition(" ")[2] for line in second.releases] == ["98", "98"]
    mu = second.release(second.sums(table), KEY, account=tmp_path / "a").privacy["mu_spent"]
    assert [line.replace for line in second.releases] == pytest.approx([mu, mu])
    assert one.releases[0].name == second.releases[0].name


def test_relevances_are_ranked(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    n = 8000
    x = rng.uniform(-1, 1, (n, 2))
    table = pd.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "id": np.arange(n), "stars": 2 + x[:, 0] - 0.5 * x[:, 1]}
    )
    model = ranking.PairFTRL(1.0, 1e-5, relevance=(0, 4), bounds={"a": (-1, 1), "b": (-1, 1)})
    one = Job(model, label="stars", rows=n, row_id="id", salt="salt")
    parts = [table.iloc[i::3] for i in range(3)]
    assert sum(map(one.sums, parts)) == one.sums(pl.DataFrame({c: table[c].to_list() for c in table}))
    fitted = history.fit(one, parts, KEY, account=tmp_path / "a")
    assert fitted.class_name == "ranking.PairFTRL"
    scores = np.array(fitted.score_many(table[["a", "b"]].to_dict("records")))
    assert np.corrcoef(scores, table["stars"])[0, 1] > 0.98
    with pytest.raises(RecordError, match="no usable label"):
        one.sums(table.assign(stars=5.0))
    models.save(fitted, tmp_path / "model.json")
    assert models.load(tmp_path / "model.json").score_one({"a": 1.0, "b": 0.0}) == fitted.score_one(
        {"a": 1.0, "b": 0.0}
    )


def test_a_metric_of_a_table_is_that_of_a_stream(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, names, classes = 20_000, ["a", "b", "c"], ["cat", "no", 3]
    place = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    x = np.array([[-0.4, 0.0, 0.0], [0.3, 0.2, 0.0], [0.2, -0.3, 0.0]])[place]
    x = np.clip(x + rng.normal(size=(n, 3)) * [0.1, 0.2, 0.3], -1, 1)
    table = pd.DataFrame(x, columns=names).assign(y=np.array(classes, dtype=object)[place], id=np.arange(n))

    def learner(**options: Any) -> metric.PairFTRL:
        bounds = dict.fromkeys(names, (-1, 1))
        return metric.PairFTRL(1.0, 1e-6, **{"bounds": bounds, "classes": classes, **options})

    one = Job(learner(), label="y", rows=n, row_id="id", salt="salt")
    parts = [table.iloc[i::3] for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = history.fit(one, parts, KEY, account=tmp_path / "a")
    with pytest.warns(PrivacyWarning, match=r"fewer than two classes exceed the noise.*Fix: give more rows"):
        history.fit(one, [table.assign(y=3)], KEY, account=tmp_path / "of one class")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the release is charged, and the model is returned
        assert history.fit(one, [table.assign(y=3)], KEY, account=tmp_path / "again").slots == n
    # Labels mean what they mean in a lane: texts that spell a number are that number.
    again = history.fit(one, [table.assign(y=table["y"].astype(str))], KEY, account=tmp_path / "b")
    assert models.dumps(again) == models.dumps(model)
    stream = learner(horizon=n, noise_key=KEY)
    stream.learn_many(table[names], table["y"])
    root = np.array(model._document.root)  # type: ignore[union-attr]
    for w in (root @ root, stream.metric_):
        assert w[2, 2] < 0.1 * min(w[0, 0], w[1, 1])  # the feature that tells nothing
    assert root @ root == pytest.approx(stream.metric_, abs=0.2 * np.linalg.norm(stream.metric_))
    assert (model.class_name, model.kind, model.slots) == ("metric.PairFTRL", "metric", n)
    assert round(model.privacy["epsilon_spent"], 6) == 1.0
    assert [each.lemma for each in one.releases] == ["docs/privacy, Lemma 18 and Lemma 98"]
    assert models.loads(models.dumps(model)).score_one(dict.fromkeys(names, 0.5)) == model.score_one(
        dict.fromkeys(names, 0.5)
    )
    with pytest.raises(ConfigError, match=r"cannot begin with a model.*begin without the model"):
        model.to_online(learner())
    with pytest.raises(RecordError, match=r"no usable label; .*declare all of them if classes= is given"):
        one.sums(table.assign(y="dog"))
    others = [{"classes": classes[::-1]}, {"classes": [*classes, 4]}, {"classes": ["cat", "no", "4"]}]
    digests = {Job(learner(**o), label="y", rows=n, row_id="id", salt="salt").digest for o in others}
    assert len({*digests, one.digest}) == 4
    limit = privacy.EntityLimit(3, field="who")
    for options, message in (
        ({"features": names, "entity": limit}, "with an entity, use a learner of auc"),
        ({"classes": [2**53 + 1, 2]}, "is a number that doubles do not hold"),
        ({"classes": ["\ud800", "fine"]}, "cannot be written to a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            Job(learner(**options), label="y", rows=n, row_id="id", salt="salt")


def test_it_ranks_as_a_stream_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    n, names = 30_000, [f"f{i}" for i in range(6)]
    x = np.clip(rng.normal(size=(n, 6)) * 0.3, -1, 1)
    y = x @ rng.normal(size=6) + 0.4 * rng.normal(size=n) > 0.3
    table = pd.DataFrame(x, columns=names).assign(y=y, id=np.arange(n))
    bounds = dict.fromkeys(names, (-1, 1))
    one = Job(auc.PairFTRL(1.0, 1e-5, bounds=bounds), label="y", rows=n, row_id="id", salt="salt")
    model = history.fit(one, [table.iloc[i::7] for i in range(7)], KEY, account=tmp_path / "a")
    best = roc_auc_score(y, x @ np.linalg.lstsq(x - x.mean(axis=0), y - y.mean(), rcond=None)[0])
    assert roc_auc_score(y, np.array(model.score_many(table[names].to_dict("records")))) > best - 0.01
    # Calibrated as a learner of moments is.
    mean = np.mean([model.predict_proba_one(r)[True] for r in table[names][:2000].to_dict("records")])
    assert abs(mean - y.mean()) < 0.05
    with pytest.raises(PrivacyError, match="has been released"):
        history.fit(one, [table], KEY, account=tmp_path / "a")


def squares(rows: int) -> pd.DataFrame:
    """Rows in a square, positive near its centre, which no line tells."""
    x = np.random.default_rng(3).uniform(-1, 1, (rows, 2))
    y = np.square(x).sum(axis=1) < 0.5
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "id": np.arange(rows)})


def test_a_forest_of_a_table_is_that_of_a_stream(tmp_path: Path) -> None:
    n, names = 14_000, ["a", "b"]
    table = squares(n + 2000)
    rest = table.iloc[n:]
    options: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "bounds": {"a": (-1, 1), "b": (-1, 1)}}
    one = Job(auc.PrivateForest(**options), label="y", rows=n, row_id="id", salt="salt")
    batches = [table.iloc[i : min(i + 3000, n)] for i in range(0, n, 3000)]
    model = history.fit(one, batches, KEY, account=tmp_path / "account")
    again = history.fit(one, [table.iloc[:n]], KEY, account=tmp_path / "again")
    assert models.dumps(again) == models.dumps(model)
    stream = auc.PrivateForest(**options, horizon=n, seed=1)
    stream.learn_many(table.iloc[:n][names], table["y"].iloc[:n])
    found, wanted = (roc_auc_score(rest["y"], m.score_many(rest[names]).to_numpy()) for m in (model, stream))
    assert found > wanted - 0.02 > 0.88
    mean = float(np.mean([model.predict_proba_one(x)[True] for x in rest[names].to_dict("records")]))
    assert abs(mean - rest["y"].mean()) < 0.05
    assert model.class_name == "auc.PrivateForest"
    assert model.slots == n
    loaded = models.loads(models.dumps(model))
    assert loaded.score_many(rest[names]).tolist() == model.score_many(rest[names]).tolist()
    with pytest.raises(ConfigError, match="is linear"):
        model.to_online(auc.PairFTRL(**options))
    begun = loaded.to_online(auc.PrivateForest(**options))
    assert begun.score_many(rest[names]).tolist() == model.score_many(rest[names]).tolist()


def test_other_trees_make_another_job_and_a_short_table_has_none(tmp_path: Path) -> None:
    def made(**options: Any) -> Job:
        bounds = {"a": (-1, 1), "b": (-1, 1)}
        forest = auc.PrivateForest(1.0, 1e-4, bounds=bounds, **options)
        return Job(forest, label="y", rows=N, row_id="id", salt="salt")

    jobs = [job(), made(), made(trees=3), made(trees=3, depth=2)]
    assert len({each.digest for each in jobs}) == len(jobs)
    models_of = [
        history.fit(each, [frame()], KEY, account=tmp_path / str(i)) for i, each in enumerate(jobs[1:])
    ]
    kinds = [type(model._document).__name__ for model in models_of]
    assert kinds == ["LinearModel", "RandomForestModel", "RandomForestModel"]


@pytest.mark.parametrize("text", [False, True])
def test_a_fit_refuses_an_id_that_is_in_two_batches(text: bool, tmp_path: Path) -> None:
    """Or a batch that comes twice in place of another one: the sums alone do not show it."""
    table = frame().astype({"id": str if text else int})
    one, account = job(), tmp_path / "a"
    copied = table.copy()
    copied.loc[N - 1, "id"] = copied.loc[0, "id"]
    for batches, count in (
        ([copied[:250], copied[250:]], 1),
        ([table[:250], table[:250]], 250),
    ):
        sum(map(one.sums, batches))
        with pytest.raises(RecordError, match=rf"^{count} row ids? occurs? twice in the table") as caught:
            history.fit(one, batches, KEY, account=account)
        assert str(copied.loc[0, "id"]) not in str(caught.value).split()
    assert not account.exists()  # nothing is spent
    history.fit(one, [table[250:], table[:250]], KEY, account=account)


@pytest.mark.parametrize("text", [False, True])
def test_ids_of_a_large_table_are_compared_in_parts(text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame().astype({"id": str if text else int})[["id"]]
    batches, one, reads, sizes = [table[:250], table[250:]], job(), [0], list[int]()

    class Read:
        def __iter__(self) -> Any:
            reads[0] += 1
            yield from batches

    true = jobs._repeated

    def looked(hashes: list[np.ndarray], records: int) -> np.ndarray:
        sizes.append(len(hashes[0]))
        return true(hashes, records)

    monkeypatch.setattr(jobs, "_repeated", looked)
    monkeypatch.setattr(jobs, "_COMPARED", N // 5)
    assert one.check_ids(Read())
    # Numbers that ascend are compared by the ranges of their batches, in any order of these.
    assert reads == [6 if text else 1]
    batches.reverse()
    if not text:
        assert one.check_ids(Read())
        assert sizes == []
    batches = [batch[::-1] for batch in batches]
    reads[0], sizes = 0, []
    assert one.check_ids(Read())
    assert reads == [6]
    assert sum(sizes) == N
    assert max(sizes) < N // 3  # 100 expected, a standard deviation of 9
    batches = [pd.concat([table[250:460], table[:40]]), table[:250]]
    with pytest.raises(RecordError, match=r"^40 row ids occur twice in the table"):
        one.check_ids(Read())
    batches = [table[210:], table[:250]]
    with pytest.raises(RecordError, match=r"^40 row ids occur twice in the table"):
        one.check_ids(Read())
    batches = [table[249:], table[:250]]
    with pytest.raises(RecordError, match=r"^1 row id occurs twice in the table"):
        one.check_ids(Read())
    with pytest.raises(ConfigError, match="can be read once"):
        one.check_ids(iter(batches))


def test_a_fit_in_the_second_stage_refuses_an_id_that_is_in_two_batches(tmp_path: Path) -> None:
    table, one, account = frame(), job(), tmp_path / "a"
    table.loc[N - 1, "id"] = table.loc[0, "id"]
    batches = [table[:250], table[250:]]
    one.standardised(sum(map(one.sums, batches)), KEY, account=account)
    before = account.read_bytes()
    with pytest.raises(RecordError, match="1 row id occurs twice in the table"):
        history.fit(one, batches, KEY, account=account)
    assert account.read_bytes() == before


def test_ids_of_a_table_of_another_size_than_declared_are_not_compared(tmp_path: Path) -> None:
    for parts in ([frame()[:499]], [frame(), frame(700)[500:]]):
        with pytest.raises(RecordError, match="rows were read, and rows=500 was declared"):
            history.fit(job(), parts, KEY, account=tmp_path / "a")


def test_an_account_is_written_to_a_new_file(tmp_path: Path) -> None:
    """What a killed run has left is neither written through, nor kept with its mode."""
    (tmp_path / "elsewhere").touch(0o644)
    (tmp_path / ".a.part").symlink_to(tmp_path / "elsewhere")
    model = history.fit(job(), [frame()], KEY, account=tmp_path / "a")
    assert (tmp_path / "elsewhere").read_bytes() == b""
    assert (tmp_path / "a").lstat().st_mode == stat.S_IFREG | 0o600
    assert model.privacy["epsilon_spent"] == model.privacy["epsilon_budget"] == 1.0


def test_what_is_assumed_goes_wherever_the_model_goes(tmp_path: Path) -> None:
    """Into the file, into the report of a learner that begins with it, and of one that begins with that."""
    model = history.fit(job(), [frame()], KEY, account=tmp_path / "a")
    said = "of a table whose rows are as streampair.history.ASSUMED says"
    assert said in model.privacy["guarantee"]
    for _ in range(2):
        assert models.loads(models.dumps(model)).privacy["guarantee"] == model.privacy["guarantee"]
        online = model.to_online(learner(horizon=1000, noise_key=KEY))
        assert said in online.privacy.guarantee
        copy = learner(horizon=1000, noise_key=KEY)
        copy.load_state(online.to_state())
        assert said in copy.privacy.guarantee
        for x, y in zip(frame()[["a", "b"]].to_dict("records"), frame()["y"].tolist(), strict=True):
            online.learn_one(x, y)
        model = models.export(online)
    assert said in model.privacy["guarantee"]


# ---- entities --------------------------------------------------------------------------------------------


def entity_job(rows: int = N, records: int = 5) -> Job:
    return job(rows, features=["a", "b"], entity=privacy.EntityLimit(records, separation=7, field="who"))


def test_all_rows_of_an_entity_are_protected_together(tmp_path: Path) -> None:
    rows = 4000
    table = frame(rows).assign(who=np.arange(rows) // 5)
    one = entity_job(rows)
    for alone, together in zip(job(rows).releases, one.releases, strict=True):
        assert together.sigma == pytest.approx(5 * alone.sigma, rel=1e-12)
        assert together.replace == pytest.approx(alone.replace, rel=1e-12)
    model = history.fit(one, [table[::2], table[1::2]], KEY, account=tmp_path / "a.json")
    assert model.privacy["epsilon_spent"] == pytest.approx(1.0)
    assert model.privacy["unit"] == ("the contents of all records of one entity: at most 5 are learned from")
    assert "at most 5 of an entity" in model.privacy["guarantee"]
    assert "its column 'who' names" in model.privacy["assumed"][0]
    limit = privacy.EntityLimit(3, field="who")
    lane = model.to_online(learner(features=["a", "b"], entity=limit, horizon=4000))
    assert lane.privacy.mu_spent == pytest.approx(model.privacy["mu_spent"])
    assert one.columns == ("a", "b", "y", "id", "who")
    # What is known of the noise of the first release, in the square of its size.
    released = [
        each.standardised(each.sums(table), KEY, account=tmp_path / f"{number}")._standardisation
        for number, each in enumerate((one, job(rows, warmup=one._settings().warmup)))
    ]
    noise = [np.array(found.cross[1]) for found in released if found is not None]
    assert noise[0] == pytest.approx(25.0 * noise[1], rel=0.2)  # the spreads are released, too
    # A second stage with other entities of the rows is refused.
    second = one.standardised(one.sums(table), KEY, account=tmp_path / "c.json")
    swapped = second.sums(table.assign(who=table["who"].to_numpy()[::-1]))
    with pytest.raises(RecordError, match="or their entities, are not those"):
        second.release(swapped, KEY, account=tmp_path / "c.json")
    texts = table.assign(who=table["who"].astype(str))
    assert history.fit(one, [texts], KEY, account=tmp_path / "b.json").privacy == model.privacy


@pytest.mark.parametrize(
    ("who", "message"),
    [
        (lambda ids: ids // 6, "83 entities of the column 'who' have more than 5 rows"),
        (lambda ids: np.where(ids < 6, 0, ids), "1 entity of the column 'who' has more than 5 rows"),
        (lambda ids: [None, *map(str, ids[1:])], "entities are whole numbers or texts"),
        (lambda ids: ids + 0.5, "entities are whole numbers or texts"),
        (lambda ids: ["e\u0301"] * 3 + ["\u00e9"] * 3 + [str(i) for i in ids[6:]], "1 entity of the column"),
        (None, "no column 'who'"),
    ],
)
def test_a_table_of_other_entities_is_refused_and_nothing_is_spent(
    tmp_path: Path, who: Any, message: str
) -> None:
    table = frame() if who is None else frame().assign(who=who(np.arange(N)))
    parts = [table[::2], table[1::2]]
    with pytest.raises(RecordError, match=message):
        history.fit(entity_job(), parts, KEY, account=tmp_path / "account.json")
    with pytest.raises(RecordError, match=message):
        entity_job().check_ids(parts)
    assert not (tmp_path / "account.json").exists()


def test_the_column_of_the_entity_is_one_of_its_own() -> None:
    for field, message in (
        (None, r"entity is None\. Fix: give the name of a column in EntityLimit"),
        ("y", "'y' is label"),
        ("id", "'id' is"),
    ):
        with pytest.raises(ConfigError, match=message):
            job(features=["a", "b"], entity=privacy.EntityLimit(5, field=field))
