"""The dashboards of streampair, as a program: `make dashboards` writes them as JSON for Grafana.

One is for operators: it shows functions of raw data. The other is for officers and asks for public series
only, so that it works over a Prometheus that scrapes nothing but the public port. Grafana shows them in the
words of the worker's own page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, gauge, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model

__all__ = ["DASHBOARDS", "main", "text"]

LANE = '{app=~"$app",topic=~"$topic",partition=~"$partition"}'
APP = '{app=~"$app"}'
NAME = "{{app}} {{topic}}/{{partition}}"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

Kind = Literal["lines", "number", "state", "gauge", "table"]
Any4 = timeseries.Panel | stat.Panel | gauge.Panel | table.Panel


class Panel(NamedTuple):
    """A panel: what it asks, and how it shows the answer."""

    title: str
    about: str
    queries: Sequence[tuple[str, str]]  # PromQL and legend
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 8
    band: bool = False  # the second and third query are the edges of a band
    by_app: bool = False  # one for each application
    marks: Sequence[tuple[float, str]] = ()  # colours from a value on
    right: Sequence[tuple[str, str]] = ()  # ends of legends whose axis is on the right, with its unit


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """A dashboard, by the name of its file."""

    uid: str
    title: str
    about: str
    series: str  # whose labels the variables take
    rows: Sequence[Row]


def lane(name: str) -> str:
    """A series of the chosen lanes."""
    return f"streampair_{name}{LANE}"


def rate(name: str) -> str:
    """How fast a counter of the chosen lanes grows."""
    return f"rate({lane(name)}[$__rate_interval])"


def quantiles(name: str, what: str, select: str = LANE) -> list[tuple[str, str]]:
    """Median and 95th percentile of a histogram."""
    buckets = f"sum by (le) (rate(streampair_{name}_bucket{select}[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {buckets})", f"{what} p{round(100 * q)}") for q in (0.5, 0.95)]


def band(middle: str, error: str, name: str) -> list[tuple[str, str]]:
    """A line, and two standard errors on each side of it."""
    return [(middle, name), (f"{middle} - 2 * {error}", "low"), (f"{middle} + 2 * {error}", "high")]


def until(what: str, window: str = "$__rate_interval") -> str:
    """Seconds until a gauge that falls is at zero, at its present rate; nothing while it does not fall."""
    return f"{lane(what)} / -(deriv({lane(what)}[{window}]) < 0)"


ESTIMATE = "Loss beyond that of the best fixed weights so far, estimated from a sample of pairs."
BAND = "The band is two standard errors on each side."
_MEAN = f"avg({lane('regret_average')})"
_MEAN_ERROR = (
    f"sqrt(sum(({lane('regret_stderr')} * {lane('regret_average')} / {lane('regret_total')}) ^ 2))"
    f" / count({lane('regret_average')})"
)

GUARANTEE = Panel(
    "Guarantee",
    "What can be said of it. Anything but holds: read the learner's privacy report.",
    [(f"{lane('privacy_guarantee')} == 1", f"{NAME}: {{{{kind}}}}")],
    kind="state",
)
VERSION = Panel("Version", "Of each process.", [("streampair_build_info", "{{instance}}")], kind="table")

LEARNING = Row(
    "Learning",
    [
        Panel(
            "Regret of $app, total",
            f"Sum over the application's partitions. {ESTIMATE} {BAND}",
            band(f"sum({lane('regret_total')})", f"sqrt(sum({lane('regret_stderr')} ^ 2))", "regret"),
            width=24,
            band=True,
            by_app=True,
        ),
        Panel(
            "Regret of $app, per event",
            f"Mean of the application's partitions. It falls while the learner learns. {ESTIMATE} {BAND}",
            band(_MEAN, _MEAN_ERROR, "regret per event"),
            width=24,
            band=True,
            by_app=True,
        ),
        Panel(
            "AUC of the latest scores",
            "Each score was given before its event was learned. Ties count one half.",
            [(lane("prequential_auc"), f"{NAME} {{{{learner}}}}")],
            unit="percentunit",
        ),
        Panel(
            "What privacy costs",
            "AUC of the latest scores of a learner beside it that is not private; absent without [shadow].",
            [(lane("shadow_auc"), f"{NAME} shadow"), (lane("prequential_auc"), f"{NAME} {{{{learner}}}}")],
            unit="percentunit",
        ),
        Panel(
            "Standard error of that AUC",
            "As if the events of its window were independent.",
            [(lane("prequential_auc_stderr"), f"{NAME} {{{{learner}}}}")],
            unit="percentunit",
        ),
        Panel(
            "Average precision, and recall of the highest scores",
            "Of the same scores. Recall: the share of all positives that is among them.",
            [
                (lane("average_precision"), f"{NAME} average precision"),
                (lane("recall_at_top"), f"{NAME} recall at the top {{{{share}}}}"),
            ],
            unit="percentunit",
        ),
        Panel(
            "Drift",
            "1 where the latest scores rank otherwise than those before them. It steers nothing.",
            [(lane("drift"), NAME)],
        ),
        Panel(
            "Pair loss, and that of the best fixed weights",
            "Their difference is the regret per event.",
            [(lane("pair_loss"), f"{NAME} as given"), (lane("comparator_loss"), f"{NAME} best fixed")],
        ),
        Panel("Norm of the weights", "Of the published model.", [(lane("weight_norm"), NAME)]),
    ],
)

OPERATION = Row(
    "Operation",
    [
        Panel(
            "Health",
            "The state that each application is in; /healthz says why, and the next step.",
            [(f"streampair_health{APP} == 1", "{{app}}: {{state}}")],
            kind="state",
        ),
        Panel(
            "Alerts that fire",
            "The operations page has a heading for each: what it means, and what to do.",
            [
                (
                    'count by (alertname) (ALERTS{alertname=~"Streampair.+",alertstate="firing"}) '
                    "or vector(0)",
                    "{{alertname}}",
                )
            ],
            kind="number",
            marks=[(1, "red")],
        ),
        Panel(
            "Events, by outcome",
            "learned, scored (no label, or past the horizon), dead_letter, tombstone.",
            [(f"sum by (outcome) ({rate('events_total')})", "{{outcome}}")],
            unit="cps",
        ),
        Panel(
            "Lag",
            "Events of the partition that are not yet committed.",
            [(lane("lag"), NAME)],
        ),
        Panel(
            "Lag in seconds",
            "How long records have waited to be committed, at most.",
            [(lane("lag_seconds"), NAME)],
            unit="s",
        ),
        Panel(
            "Time to catch up",
            "At the present rate; nothing while the lag does not fall.",
            [(until("lag"), NAME)],
            unit="s",
        ),
        Panel(
            "Events committed",
            "How fast the offset of the committed state moves. Zero, while there is a lag: it is stuck.",
            [(f"deriv({lane('offset')}[$__rate_interval])", NAME)],
            unit="cps",
        ),
        Panel(
            "Dead letters, by stage",
            "Where they failed: decode, features, label, learn.",
            [(f"sum by (stage) ({rate('dead_letters_total')})", "{{stage}}")],
            unit="cps",
        ),
        Panel(
            "Values outside of their bounds",
            "Learners that take bounds clip them; the log names the features.",
            [(rate("values_outside_bounds_total"), NAME)],
            unit="cps",
        ),
        Panel(
            "Null slots",
            "Events that a private learner took as null records.",
            [(rate("null_slots_total"), NAME)],
            unit="cps",
        ),
        Panel(
            "Buffer and state",
            "Records in the buffer; size of the last snapshot on the right.",
            [(lane("buffer_records"), f"{NAME} records"), (lane("state_bytes"), f"{NAME} bytes")],
            right=[("bytes", "bytes")],
        ),
        Panel(
            "Time of an event",
            "To score; and to decode, score and learn, averaged over each batch.",
            [*quantiles("score_seconds", "score"), *quantiles("learn_seconds", "learn")],
            unit="s",
        ),
        Panel(
            "Time of a commit",
            "Outputs stored, snapshot saved, offsets sent.",
            quantiles("commit_seconds", "commit", APP),
            unit="s",
        ),
        Panel(
            "Where the time goes",
            "Share of a second: decode, learn (which scores too) and encode of the lanes, fetch and commit.",
            [
                (f"sum by (stage) ({rate('lane_seconds_total')})", "{{stage}}"),
                (
                    f"sum by (stage) (rate(streampair_worker_seconds_total{APP}[$__rate_interval]))",
                    "{{stage}}",
                ),
            ],
            unit="percentunit",
        ),
        Panel(
            "Rebalances",
            "Times that partitions were assigned anew, in an hour.",
            [(f"increase(streampair_rebalances_total{APP}[1h])", "{{app}}")],
        ),
        Panel(
            "Commits by outcome",
            "Of single lanes, by second: committed, fenced by another owner, unknown, failed.",
            [(f"rate(streampair_transactions_total{APP}[$__rate_interval])", "{{app}} {{outcome}}")],
        ),
        Panel(
            "Restores and fences",
            "Lanes brought back from what is stored, and lanes given up to another owner, in an hour.",
            [
                (f"increase(streampair_restores_total{APP}[1h])", "{{app}} restored"),
                (f"increase(streampair_fences_total{APP}[1h])", "{{app}} fenced"),
            ],
        ),
        Panel(
            "What changed in the configuration since the start",
            "Keys of the file that are no longer what the worker runs with; its page names them.",
            [(f"streampair_configuration_changes{APP}", "{{app}}")],
            kind="number",
            marks=[(1, "orange")],
        ),
        VERSION,
    ],
)

PROMISE = Row(
    "What is promised, and whether it holds",
    [
        GUARANTEE,
        Panel(
            "Share of the horizon used",
            "Epsilon is never passed: at the horizon the learner stops learning, and goes on scoring. Absent "
            "without a horizon, where epsilon lasts for ever.",
            [(f"1 - {lane('privacy_horizon_left')} / {lane('privacy_horizon')}", NAME)],
            unit="percentunit",
            kind="gauge",
            marks=[(0.9, "orange")],
        ),
        Panel(
            "Since when",
            "Date of the first record of the account, as its source says.",
            [(f"{lane('privacy_since_seconds')} * 1000", NAME)],
            unit="dateTimeAsIso",
            kind="number",
        ),
        Panel("Delta", "Of both epsilons.", [(lane("privacy_delta"), NAME)], unit="sci", kind="number"),
        Panel(
            "Epsilon accounted so far, and promised",
            "At the delta of the plan. From the accountant of the run.",
            [
                (lane("privacy_epsilon_spent"), f"{NAME} accounted"),
                (lane("privacy_epsilon_budget"), f"{NAME} promised"),
            ],
        ),
        Panel(
            "mu spent (Gaussian differential privacy)",
            "It composes exactly: the squares add up.",
            [(lane("privacy_mu_spent"), f"{NAME} spent"), (lane("privacy_mu_budget"), f"{NAME} budget")],
        ),
        Panel(
            "Noise",
            "Standard deviation, a coordinate, of the noise behind the releases.",
            [(lane("noise_std"), NAME)],
            kind="number",
        ),
        Panel(
            "Private AUC",
            f"Released under noise, for a share of mu squared; absent without auc_share. {BAND}",
            band(lane("private_auc"), lane("private_auc_stderr"), NAME),
            unit="percentunit",
            band=True,
        ),
    ],
)

LEFT = Row(
    "How much is left",
    [
        Panel(
            "Slots left to learn",
            "Until the horizon of the plan; absent without one.",
            [(lane("privacy_horizon_left"), NAME)],
            kind="number",
        ),
        Panel(
            "Time until the horizon",
            "At the rate of the last hour; nothing while no event comes, or without a horizon.",
            [(until("privacy_horizon_left", "1h"), NAME)],
            unit="s",
            kind="number",
        ),
        Panel(
            "Models released",
            "One a learning slot, or a window of them.",
            [(rate("privacy_releases_total"), NAME)],
            unit="cps",
        ),
    ],
)

VIEWS = Row(
    "What was charged twice",
    [
        Panel(
            "Second views that are charged",
            "Windows that may have been released twice, after a crash or an operator's word. "
            "Absent without a ledger.",
            [(lane("privacy_forks"), NAME)],
            kind="number",
            marks=[(1, "orange")],
        ),
        Panel(
            "Generation of the noise",
            "Raised by each start where the events at an offset can change.",
            [(lane("privacy_generation"), NAME)],
            kind="number",
        ),
        VERSION,
    ],
)

DASHBOARDS: dict[str, Dashboard] = {
    "streampair.json": Dashboard(
        "streampair",
        "streampair: learning and operation",
        "For operators: it shows functions of raw data.",
        "events_total",
        [OPERATION, LEARNING],
    ),
    "streampair-privacy.json": Dashboard(
        "streampair-privacy",
        "streampair: privacy",
        "For officers: public series alone, of which none is a function of raw data.",
        "privacy_epsilon_spent",
        [PROMISE, LEFT, VIEWS],
    ),
}


def _shaped(panel: Panel) -> Any4:
    """The panel of its kind, without what all kinds share."""
    if panel.kind in ("number", "state"):
        reduce = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
        coloured = panel.kind == "state" or panel.marks
        return (
            stat.Panel()
            .reduce_options(reduce)
            .color_mode(shapes.BigValueColorMode.BACKGROUND if coloured else shapes.BigValueColorMode.NONE)
            .text_mode(
                shapes.BigValueTextMode.NAME if panel.kind == "state" else shapes.BigValueTextMode.AUTO
            )
        )
    if panel.kind == "gauge":
        reduce = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
        return gauge.Panel().reduce_options(reduce).min(0).max(1)
    if panel.kind == "table":
        return table.Panel()
    shaped = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .show_points(shapes.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(shapes.LegendDisplayMode.LIST)
            .placement(shapes.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI))
    )
    if panel.band:
        hidden = {"legend": True, "tooltip": False, "viz": False}
        value = model.DynamicConfigValue
        shaped = shaped.override_by_regexp(
            "/^(low|high)$/",
            [value(id_val="custom.lineWidth", value=0), value(id_val="custom.hideFrom", value=hidden)],
        ).override_by_name(
            "high",
            [
                value(id_val="custom.fillBelowTo", value="low"),
                value(id_val="custom.fillOpacity", value=15),
            ],
        )
    return shaped


def _panel(panel: Panel, number: int) -> Any4:
    made = (
        _shaped(panel)
        .id(number)
        .title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(8)
    )
    steps = [model.Threshold(color="green", value=None)]
    steps += [model.Threshold(color=color, value=value) for value, color in panel.marks]
    made.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.kind == "state":
        for words, color in (
            ("holds|running|rebalancing", "green"),
            ("starting|waiting|stopping|stopped", "orange"),
            ("void|unvouched|failed", "red"),
        ):
            fixed = {"mode": "fixed", "fixedColor": color}
            made.override_by_regexp(
                f"/: ({words})$/", [model.DynamicConfigValue(id_val="color", value=fixed)]
            )
    for words, unit in panel.right:
        side = [
            model.DynamicConfigValue(id_val="custom.axisPlacement", value="right"),
            model.DynamicConfigValue(id_val="unit", value=unit),
        ]
        made.override_by_regexp(f"/ {words}$/", side)
    if panel.by_app:
        made.repeat("app").repeat_direction("h")
    for letter, (expression, legend) in zip("ABCD", panel.queries, strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)
        query = query.datasource(SOURCE)
        made.with_target(query.range() if panel.kind == "lines" else query.instant())
    return made


def _variable(name: str, label: str, series: str, select: str) -> dashboard.QueryVariable:
    every = model.VariableOption(text="All", value="$__all", selected=True)
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": f"label_values(streampair_{series}{select}, {name})", "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(every)
    )


def text(of: Dashboard) -> str:
    """A dashboard as Grafana reads it."""
    made = (
        dashboard.Dashboard(of.title)
        .uid(of.uid)
        .description(of.about)
        .tags(["streampair"])
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .refresh("5s")
        .time("now-15m", "now")
        .version(2)
        .link(
            dashboard.DashboardLink("streampair")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["streampair"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
            .current(model.VariableOption(text="Prometheus", value="prometheus", selected=True))
        )
    )
    selects = ["", '{app=~"$app"}', '{app=~"$app",topic=~"$topic"}']
    labels = [("app", "Application"), ("topic", "Topic"), ("partition", "Partition")]
    for (name, label), select in zip(labels, selects, strict=True):
        made.with_variable(_variable(name, label, of.series, select))
    number = 0
    for row in of.rows:
        made.with_row(dashboard.Row(row.title).id(number := number + 1))
        for panel in row.panels:
            made.with_panel(_panel(panel, number := number + 1))
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(made.build())), indent=1) + "\n"


def main() -> None:
    """Write every dashboard, into the directory that is named or the one that Grafana is given."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("dashboards")
    for name, of in DASHBOARDS.items():
        (directory / name).write_text(text(of))


if __name__ == "__main__":
    main()
