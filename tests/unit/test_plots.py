"""Plots of recorded runs, and how learners and reports look in a notebook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness import lanes
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from streampair import auc, metric, plots, privacy, ranking
from streampair.engine import Event, Lane, LaneId, Monitoring, Record, RegretConfig
from streampair.errors import ConfigError, SourceError
from streampair.evaluation import Regret
from streampair.sklearn import Classifier

mpl.use("agg")


@pytest.fixture(scope="module")
def run() -> list[dict[str, Any]]:
    """Readings of a private lane."""
    rows = lanes.stream(600)
    model = auc.PairFTRL(1.0, 1e-3, 500, warmup=50, noise_key=bytes(range(32)))
    lane = Lane(
        model,
        lambda record: Event(*rows[record.offset]),
        LaneId("a", "t", 0),
        monitoring=Monitoring(regret=RegretConfig(pairs=64, exact=16)),
    )
    out = []
    for start in range(0, 600, 100):
        lane.process([Record(start + i, b"") for i in range(100)])
        out.append(plots.reading(lane.gauges(solve=True)))
    return out


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def line(ax: Any, label: str) -> tuple[list[float], list[float]]:
    found = next(each for each in ax.get_lines() if each.get_label() == label)
    return list(found.get_xdata()), list(found.get_ydata())


def test_a_reading_is_plain_and_complete(run: list[dict[str, Any]]) -> None:
    assert json.loads(json.dumps(run)) == run
    assert [row["events"] for row in run] == list(range(100, 700, 100))
    assert run[-1].keys() == {
        *("events", "prequential_auc", "regret_events", "regret_average", "regret_average_stderr"),
        *("pair_loss", "comparator_loss", "privacy_epsilon_spent", "privacy_epsilon_budget"),
        *("privacy_delta", "privacy_releases_total", "privacy_guarantee"),
    }


def test_lines_are_the_readings(run: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n\n" for row in run), "utf-8-sig")
    for rows in (run, path, str(path)):
        x, y = line(plots.regret(rows), "average regret")
        assert (x, y) == ([r["regret_events"] for r in run], [r["regret_average"] for r in run])
        x, y = line(plots.privacy(rows), "spent")
        assert (x, y) == ([r["events"] for r in run], [r["privacy_epsilon_spent"] for r in run])
        x, y = line(plots.auc(rows), "AUC")
        assert (x, y) == ([r["events"] for r in run], [r["prequential_auc"] for r in run])


def test_a_run_of_one_lane_is_read_by_its_columns(run: list[dict[str, Any]], tmp_path: Path) -> None:
    names = ("events", "prequential_auc", "regret_average", "regret_average_stderr", "privacy_epsilon_spent")
    past = {"t": [float(i) for i in range(6)], **{name: [row[name] for row in run] for name in names}}
    past["prequential_auc"][0] = None
    values = {"privacy_epsilon_budget": 1.0, "privacy_delta": 1e-3}
    lane = {"app": "a", "history": past, "values": values, "report": {"guarantee": "void (a breaker)"}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"lanes": [lane]}))
    assert line(plots.auc(path), "AUC")[1] == [row["prequential_auc"] for row in run[1:]]
    assert line(plots.regret(path), "average regret")[1] == past["regret_average"]
    ax = plots.privacy(path)
    assert line(ax, "spent")[1] == past["privacy_epsilon_spent"]
    assert (ax.get_title(), line(ax, "budget")[1]) == ("void (a breaker)", [1.0, 1.0])
    path.write_text(json.dumps({"lanes": [lane, lane]}))
    with pytest.raises(SourceError, match="a run of 2 lanes"):
        plots.auc(path)


def test_scores_with_labels_have_an_auc(tmp_path: Path) -> None:
    rows = [{"offset": i, "id": None, "score": (i * 7 % 50) / 50, "outcome": "learned"} for i in range(90)]
    rows[3]["score"] = None  # a dead letter
    labels = [i % 3 == 0 for i in range(90)]
    x, y = line(plots.auc(rows, labels), "AUC")
    kept = [i for i in range(90) if i != 3]
    truth, scores = [labels[i] for i in kept], [rows[i]["score"] for i in kept]
    assert x[-1] == 89
    assert y[-1] == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    named = [{**row, "id": f"e{row['offset']}"} for row in rows]
    again = line(plots.auc(named, {f"e{i}": label for i, label in enumerate(labels)}), "AUC")
    assert again == (x, y)
    _, latest = line(plots.auc(rows, labels, window=10), "AUC")
    assert latest[-1] == pytest.approx(roc_auc_score(truth[-10:], scores[-10:]), abs=1e-12)


def scored(n: int = 300) -> tuple[Any, Any]:
    """Scores, some of them equal, that are probabilities; and labels."""
    rng = np.random.default_rng(1)
    scores = rng.random(n).round(2)
    return scores, rng.random(n) < scores**2


def test_curves_are_those_of_scikit_learn() -> None:
    scores, labels = scored()
    x, y = line(plots.roc(scores, labels), f"AUC {roc_auc_score(labels, scores):.3f}")
    assert np.allclose((x, y), metrics.roc_curve(labels, scores, drop_intermediate=False)[:2])
    ap = metrics.average_precision_score(labels, scores)
    recall, precision = line(plots.precision_recall(scores, labels), f"average precision {ap:.3f}")
    wanted = metrics.precision_recall_curve(labels, scores)
    assert np.allclose(recall, wanted[1][::-1])
    assert np.allclose(precision[1:], wanted[0][-2::-1])
    scores = 0.9 * scores + 0.003  # none is where two bins meet: there scikit-learn takes the other one
    ax = plots.calibration(scores, labels, bins=5)
    mean, share = ax.containers[0][0].get_data()
    wanted = calibration_curve(labels, scores, n_bins=5)
    assert np.allclose((share, mean), wanted)
    assert f"Brier score {metrics.brier_score_loss(labels, scores):.3f}" in ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("draw", [plots.roc, plots.precision_recall, plots.calibration, plots.auc])
def test_scores_come_as_a_loop_or_a_topic_has_them(draw: Any, tmp_path: Path) -> None:
    """Labels that are matched with other events: by offset, though two partitions have the same ones."""
    scores, labels = scored()
    rows = [
        {"partition": i % 2, "offset": i // 2, "id": f"e{i}", "score": s}
        for i, s in enumerate(scores.tolist())
    ]
    rows.insert(7, {"partition": 0, "offset": 999, "id": None, "score": None})  # a dead letter
    (tmp_path / "scores.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    by_place = {(i % 2, i // 2): y for i, y in enumerate(labels.tolist())}
    by_id = {f"e{i}": y for i, y in enumerate(labels.tolist())}
    drawn = [
        draw(scores, labels),
        draw(scores.tolist(), [int(y) for y in labels]),
        draw(pd.Series(scores), pd.Series(labels)),
        draw(pl.Series(scores), pl.Series(labels)),
        draw(rows, by_id),
        draw(rows, by_place),
        draw(tmp_path / "scores.jsonl", by_id),
    ]
    lines = [[each.get_xydata().tolist() for each in ax.get_lines()] for ax in drawn]
    assert all(each == lines[0] for each in lines)


def test_curves_of_two_learners_share_axes() -> None:
    scores, labels = scored()
    ax = plots.roc(scores, labels, name="one")
    assert plots.roc(-scores, labels, name="other", ax=ax) is ax
    assert [text.get_text()[:5] for text in ax.get_legend().get_texts()] == ["one: ", "other", "chanc"]


def test_the_largest_weights_are_drawn_with_their_noise() -> None:
    plain, private = auc.PairOGD(seed=1), auc.PairFTRL(8.0, 1e-3, 400, features=["a", "b"])
    rng = np.random.default_rng(1)
    for a, b in rng.random((400, 2)):
        for model in (plain, private):
            model.learn_one({"a": a, "b": b}, bool(a > 0.5))
    ax = plots.weights(plain)
    widths = {t.get_text(): bar.get_width() for t, bar in zip(ax.get_yticklabels(), ax.patches, strict=True)}
    assert widths == plain.scaled_weights
    assert [t.get_text() for t in plots.weights(plain, top=1).get_yticklabels()] == ["a"]
    assert len(plots.weights(private).containers) > len(ax.containers)  # bars of error


def test_the_regret_of_a_loop_is_drawn() -> None:
    model = auc.PairOGD(seed=1, scale=None, radius=1.0)
    regret = Regret(model.pair_loss, model.comparator_radius)
    estimates = [None]
    for number, a in enumerate(np.random.default_rng(1).random(200)):
        regret.observe({"a": a}, bool(a > 0.5), model.score_one({"a": a}), model.score_one)
        model.learn_one({"a": a}, bool(a > 0.5))
        if number % 50 == 49:
            estimates.append(regret.estimate(model.comparator_design))
    kept = [each for each in estimates if each is not None and each.average > 0.0]
    x, y = line(plots.regret(estimates), "average regret")
    assert (x, y) == ([each.n for each in kept], [each.average for each in kept])


def test_scores_that_cannot_be_drawn_are_reported() -> None:
    with pytest.raises(ConfigError, match="3 scores and 2 labels"):
        plots.roc([1.0, 2.0, 3.0], [True, False])
    with pytest.raises(ConfigError, match="the data lack both labels"):
        plots.precision_recall([1.0, 2.0], [True, True])
    with pytest.raises(ConfigError, match=r"a label is 'yes'.*give True"):
        plots.roc([1.0, 2.0], ["yes", "no"])
    with pytest.raises(ConfigError, match=r"reach from -3 to 0.5.*probabilities_of"):
        plots.calibration([-3.0, 0.5], [True, False])
    for none in ([], [np.nan, np.nan]):
        with pytest.raises(ConfigError, match="the data lack a probability with a label"):
            plots.calibration(none, [True, False][: len(none)])
    with pytest.raises(ConfigError, match="bins is 0"):
        plots.calibration([0.2, 0.5], [True, False], bins=0)
    both = np.array([[0.8, 0.2], [0.5, 0.5]])
    for two in (both, both.tolist(), list(both), pd.DataFrame(both), pl.DataFrame(both)):
        for draw in (plots.roc, plots.precision_recall, plots.calibration, plots.auc):
            with pytest.raises(ConfigError, match=r"scores have shape \(2, 2\).*\[:, 1\]"):
                draw(two, [True, False])
    with pytest.raises(ConfigError, match=r"labels have shape \(2, 2\)"):
        plots.roc([0.2, 0.5], both)


def test_weights_that_cannot_be_drawn_are_reported() -> None:
    X = np.random.default_rng(1).normal(size=(50, 2))
    model = Classifier().fit(X, X[:, 0] > 0.0)
    assert len(plots.weights(model.learner_).patches) == 2
    for top in (0, -1):
        with pytest.raises(ConfigError, match=f"top is {top}"):
            plots.weights(model.learner_, top=top)
    for each in (model, Classifier()):
        with pytest.raises(ConfigError, match=r"Classifier has no weights.*give its \.learner_"):
            plots.weights(each)
    for learner in (auc.Forest(trees=2), auc.PairOGD()):
        with pytest.raises(ConfigError, match=f"{type(learner).__name__} has learned nothing"):
            plots.weights(learner)


@pytest.mark.parametrize("draw", [plots.roc, plots.precision_recall, plots.calibration, plots.auc])
def test_gaps_are_left_out(draw: Any) -> None:
    scores, labels = [0.9, 0.2, 0.4, 0.1], [True, False, True, False]
    drawn = [
        draw(scores, labels),
        draw([*scores, None, 0.3, np.nan], [*labels, True, None, False]),
        draw([*scores, 0.3], [*labels, np.nan]),
        draw(
            pd.Series([*scores, None, 0.3], dtype="Float64"),
            pd.Series([*labels, True, None], dtype="boolean"),
        ),
    ]
    lines = [[each.get_xydata().tolist() for each in ax.get_lines()] for ax in drawn]
    assert all(each == lines[0] for each in lines)


def test_infinite_scores_may_be_equal() -> None:
    inf = np.inf
    for scores in ([inf, inf], [-inf, -inf]):
        assert line(plots.roc(scores, [True, False]), "AUC 0.500") == ([0.0, 1.0], [0.0, 1.0])
        assert line(plots.precision_recall(scores, [True, False]), "average precision 0.500")[1] == [0.5, 0.5]
    line(plots.roc([inf, -inf, 0.0], [True, False, False]), "AUC 1.000")


def test_a_list_of_labels_is_read_by_offset_whatever_the_ids_are() -> None:
    scores, labels = scored()
    rows = [{"offset": i, "id": len(scores) - 1 - i, "score": s} for i, s in enumerate(scores.tolist())]
    line(plots.roc(rows, labels), f"AUC {roc_auc_score(labels, scores):.3f}")


def test_axes_may_be_given_and_a_void_guarantee_is_reported(run: list[dict[str, Any]]) -> None:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(1, 3)
    assert plots.regret(run, ax=axes[0]) is axes[0]
    assert plots.auc(run, ax=axes[2]) is axes[2]
    void = [{**row, "privacy_guarantee": "void (a breaker)"} for row in run]
    assert plots.privacy(void, ax=axes[1]).get_title() == "void (a breaker)"
    assert plots.privacy(run).get_title() == ""


def test_a_run_that_cannot_be_drawn_is_reported(run: list[dict[str, Any]], tmp_path: Path) -> None:
    for draw in (plots.regret, plots.privacy, plots.auc):
        with pytest.raises(ConfigError, match="the data lack"):
            draw([{"events": 5}])
    with pytest.raises(ConfigError, match="labels="):
        plots.auc([{"offset": 0, "score": 0.5}])
    with pytest.raises(SourceError, match="cannot be read"):
        plots.regret(tmp_path / "none")
    (tmp_path / "odd").write_text('{"events": 1}\n[]\n')
    with pytest.raises(SourceError, match="line 2"):
        plots.regret(tmp_path / "odd")


def test_without_matplotlib_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from streampair import plots\n"
        "try: plots.auc([{'events': 1, 'prequential_auc': 0.5}])\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith("ConfigError")
    assert "pip install '.[plot]'" in output


# ---- notebooks -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Every tag is closed in order; what is said, and what is styled."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)
        self.styles += [value for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def checked(html: str) -> Page:
    """A table with a caption and named rows, without a script, in the colours of whatever page it is on."""
    page = Page(html)
    assert {"table", "caption", "th"} <= set(page.tags)
    assert not {"script", "img", "link", "iframe", "style"} & set(page.tags)
    assert not re.search(r"(#[0-9a-f]{3,6}\b|rgb|black|white)", " ".join(page.styles))
    assert html.count('scope="row"') == html.count("<th ")
    return page


@pytest.mark.parametrize(
    "make",
    [
        lambda: auc.PairOGD(seed=1),
        lambda: auc.PairFTRL(1.0, 1e-3, 500, features=["<b>", "b"]),
        lambda: ranking.OnPairC(1.0, 1e-3, 500),
        lambda: metric.PairOGD(seed=1),
    ],
)
def test_a_learner_shows_its_parameters_and_no_number_of_a_record(make: Any) -> None:
    model = make()
    checked(model._repr_html_())
    secret = 0.1234567891
    names = model.feature_names or ("<b>", "b")
    for i in range(40):
        model.learn_one(dict.fromkeys(names, secret * (-1.0) ** i), i % 2 == 0)
    page = checked(model._repr_html_())
    assert f"{type(model).__name__}\n" in page.text
    assert "40\n" in page.text
    assert "<b>" in page.text  # as text
    assert "12345" not in page.text
    assert ("Not private" in page.text) == (model.privacy is None)
    if model.privacy is not None:
        assert str(model.privacy) in page.text


def test_a_key_is_never_shown() -> None:
    model = auc.PairFTRL(1.0, 1e-3, noise_key=b"k3y-" * 8)
    assert "k3y" not in model._repr_html_()
    assert (b"k3y-" * 8).hex() not in model._repr_html_()


@pytest.mark.parametrize("kind", ["holds", "void", "unvouched"])
def test_a_report_says_first_what_holds(kind: Any) -> None:
    report: privacy.PrivacyReport = auc.PairFTRL(1.0, 1e-3, 500, features=["a"]).privacy
    html = report.replace(kind=kind, guarantee="<script>alert(1)</script>")._repr_html_()
    page = checked(html)
    first = page.text.split("\n")[0]
    assert (
        first
        == {
            "holds": "Differential privacy holds",
            "void": "NO GUARANTEE HOLDS",
            "unvouched": "THE GUARANTEE CANNOT BE VOUCHED FOR IN FULL",
        }[kind]
    )
    assert "<script>alert(1)</script>" in page.text
    assert "1 at delta 0.001" in page.text
