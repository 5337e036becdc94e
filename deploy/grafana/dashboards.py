"""The dashboards of streampair, as a program: `make dashboards` writes them as JSON for Grafana.

One is for operators: it shows functions of raw data. The other is for officers and queries public series
only, so that it works over a Prometheus that scrapes nothing but the public endpoint. A panel of one series
has title, unit and description of `metric_definitions.SERIES`, as the worker's own page has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, gauge, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from streampair_connectors.observability.metric_definitions import SERIES

__all__ = ["DASHBOARDS", "main", "text"]

LANE = '{app=~"$app",topic=~"$topic"}'
APP = '{app=~"$app"}'
NAME = "{{app}} {{topic}}"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

Kind = Literal["lines", "number", "state", "gauge", "table"]
AnyPanel = timeseries.Panel | stat.Panel | gauge.Panel | table.Panel


_SERIES = {series.name.removeprefix("streampair_"): series for series in SERIES}
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}  # Grafana's names of units


class Panel(NamedTuple):
    """A panel: queries, and how their results are drawn."""

    title: str
    description: str
    queries: Sequence[tuple[str, str]]  # PromQL and legend
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 8
    band: bool = False  # the second and third query are the edges of a band
    by_app: bool = False  # one for each application
    marks: Sequence[tuple[float, str]] = ()  # colours from a value on
    right: Sequence[tuple[str, str]] = ()  # ends of legends whose axis is on the right, with its unit
    steps: bool = False  # from one value to the next at once, as at a release; the limits are dashed


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """A dashboard, by the name of its file."""

    uid: str
    title: str
    description: str
    series: str  # whose labels the variables take
    rows: Sequence[Row]


def lane(name: str, more: str = "") -> str:
    """A series of the chosen lanes; `more` selects by further labels."""
    return f"streampair_{name}{LANE[:-1]},{more}}}" if more else f"streampair_{name}{LANE}"


def rate(name: str, more: str = "") -> str:
    """How fast a counter of the chosen lanes grows."""
    return f"rate({lane(name, more)}[$__rate_interval])"


def share(name: str, of: str) -> str:
    """Which share of a counter of the chosen lanes has these labels."""
    return f"sum({rate(name, of)}) / sum({rate(name)})"


def quantiles(name: str, what: str, select: str = LANE, high: float = 0.95) -> list[tuple[str, str]]:
    """Median and a high percentile of a histogram."""
    buckets = f"sum by (le) (rate(streampair_{name}_bucket{select}[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {buckets})", f"{what} p{round(100 * q)}") for q in (0.5, high)]


def band(middle: str, error: str, name: str) -> list[tuple[str, str]]:
    """A line, and two standard errors on each side of it."""
    return [(middle, name), (f"{middle} - 2 * {error}", "low"), (f"{middle} + 2 * {error}", "high")]


def until(what: str, window: str = "$__rate_interval") -> str:
    """Seconds until a gauge that falls is at zero, at its present rate; nothing while it does not fall."""
    return f"{lane(what)} / -(deriv({lane(what)}[{window}]) < 0)"


BAND = "The band is two standard errors on each side."
_MEAN = f"avg({lane('regret_average')})"
_MEAN_ERROR = (
    f"sqrt(sum(({lane('regret_stderr')} * {lane('regret_average')} / {lane('regret_total')}) ^ 2))"
    f" / count({lane('regret_average')})"
)


def one(
    name: str,
    queries: Sequence[tuple[str, str]] | None = None,
    *,
    title: str = "",
    description: str = "",
    unit: str = "",
    **drawn: Any,
) -> Panel:
    """A panel of one series, in the words of `SERIES`; `title` and `description` are added to them."""
    series = _SERIES[name]
    return Panel(
        f"{series.title}{title}",
        f"{series.help} {description}".rstrip(),
        [(lane(name), NAME)] if queries is None else queries,
        unit or _UNITS.get(series.unit, "short"),
        **drawn,
    )


def speed(name: str, queries: Sequence[tuple[str, str]] | None = None) -> Panel:
    """A panel of one counter: how fast it grows, by second."""
    return one(name, [(rate(name), NAME)] if queries is None else queries, unit="cps")


LEARNER = f"{NAME} {{{{learner}}}}"
VERSION = one("build_info", [("streampair_build_info", "{{instance}}")], kind="table")

LEARNING = Row(
    "Learning",
    [
        one(
            "regret_total",
            band(f"sum({lane('regret_total')})", f"sqrt(sum({lane('regret_stderr')} ^ 2))", "regret"),
            title=" of $app",
            description=f"Sum over the application's lanes. {BAND}",
            width=24,
            band=True,
            by_app=True,
        ),
        one(
            "regret_average",
            band(_MEAN, _MEAN_ERROR, "average regret"),
            title=" of $app",
            description=f"Mean of the application's lanes. {BAND}",
            width=24,
            band=True,
            by_app=True,
        ),
        one("prequential_auc", [(lane("prequential_auc"), LEARNER)]),
        one("prequential_auc_stderr", [(lane("prequential_auc_stderr"), LEARNER)]),
        one("evaluated_events"),
        Panel(
            "Average precision and recall",
            "Of the scores of the prequential AUC.",
            [
                (lane("average_precision"), f"{NAME} average precision"),
                (lane("recall_at_top"), f"{NAME} recall at the top {{{{share}}}}"),
                (lane("recall_at_threshold"), f"{NAME} recall at the threshold"),
                (lane("precision_at_threshold"), f"{NAME} precision at the threshold"),
            ],
            unit="percentunit",
        ),
        one("drift"),
        Panel(
            "Expected AUC and share of positives",
            "Before labels come; absent while a feature is outside its reference. Blind to concept drift.",
            [
                (lane("expected_auc"), f"{NAME} AUC"),
                (lane("expected_positive_share"), f"{NAME} share of positives"),
            ],
            unit="percentunit",
        ),
        Panel(
            "Drift of features and scores",
            "Population stability index against the reference; from 0.2 on a distribution has moved.",
            [
                (lane("feature_psi"), f"{NAME} the worst feature"),
                (lane("score_psi"), f"{NAME} scores"),
            ],
        ),
        one("features_moved"),
        Panel(
            "Pair loss, and that of the best fixed model",
            "Their difference is the average regret.",
            [(lane("pair_loss"), f"{NAME} published"), (lane("comparator_loss"), f"{NAME} best fixed")],
        ),
        one("weight_norm"),
        one("weight_noise"),
    ],
)

OPERATION = Row(
    "Operation",
    [
        one(
            "health",
            [('streampair_health{app=~"($app)([.]scorers)?"} == 1', "{{app}}: {{state}}")],
            description="/healthz has the reason and the next step.",
            kind="state",
        ),
        Panel(
            "Firing alerts",
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
        speed("events_total", [(f"sum by (outcome) ({rate('events_total')})", "{{outcome}}")]),
        one("lag"),
        one("lag_seconds"),
        Panel(
            "Time to catch up",
            "At the present rate; nothing while the lag does not fall.",
            [(until("lag"), NAME)],
            unit="s",
        ),
        Panel(
            "Events committed",
            "Rate of the next offset. Zero with a lag: the lane is stuck.",
            [(f"deriv({lane('offset')}[$__rate_interval])", NAME)],
            unit="cps",
        ),
        speed("dead_letters_total", [(f"sum by (stage) ({rate('dead_letters_total')})", "{{stage}}")]),
        speed("values_outside_bounds_total"),
        speed("null_slots_total"),
        Panel(
            "Buffer and snapshot",
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
        one("commit_seconds", quantiles("commit_seconds", "commit", APP)),
        Panel(
            "Time by stage",
            "Share of a second: decode, learn (scoring included) and encode of the lanes; fetch and commit.",
            [
                (f"sum by (stage) ({rate('lane_seconds_total')})", "{{stage}}"),
                (
                    f"sum by (stage) (rate(streampair_worker_seconds_total{APP}[$__rate_interval]))",
                    "{{stage}}",
                ),
            ],
            unit="percentunit",
        ),
        one(
            "rebalances_total",
            [(f"increase(streampair_rebalances_total{APP}[1h])", "{{app}}")],
            description="In an hour.",
        ),
        speed(
            "transactions_total",
            [(f"rate(streampair_transactions_total{APP}[$__rate_interval])", "{{app}} {{outcome}}")],
        ),
        Panel(
            "Restores and fences",
            "Lanes restored from what is stored, and lanes given up to another owner, in an hour.",
            [
                (f"increase(streampair_restores_total{APP}[1h])", "{{app}} restored"),
                (f"increase(streampair_fences_total{APP}[1h])", "{{app}} fenced"),
            ],
        ),
        one("opening_seconds", [(f"streampair_opening_seconds{APP}", "{{app}}")]),
        Panel(
            "Reads repeated and count differences",
            "Reads that a rebalance had overtaken, and commits not made as counts differed, in an hour.",
            [
                (f"increase(streampair_read_again_total{APP}[1h])", "{{app}} read again"),
                (f"increase(streampair_count_differences_total{APP}[1h])", "{{app}} counts differ"),
            ],
        ),
        one(
            "configuration_changes",
            [(f"streampair_configuration_changes{APP}", "{{app}}")],
            description="The worker's page names them.",
            kind="number",
            marks=[(1, "orange")],
        ),
        VERSION,
    ],
)

SCORING = Row(
    "Scoring in parallel",
    [
        one("scoring_lag", [(f"streampair_scoring_lag{APP}", "{{app}} {{instance}}")]),
        one(
            "scored_events_total",
            [(f"rate(streampair_scored_events_total{APP}[$__rate_interval])", "{{app}} {{instance}}")],
            unit="cps",
        ),
        one("model_age_seconds", [(f"streampair_model_age_seconds{APP}", "{{app}} {{instance}}")]),
        one("events_behind", [(f"streampair_events_behind{APP}", "{{app}} {{instance}}")]),
        one("model_slots", [(f"streampair_model_slots{APP}", "{{app}} {{instance}}")]),
    ],
)

ANSWERED = '{route!~"live|.*ready|metrics"}'
SERVERS = Row(
    "Scores over HTTP",
    [
        Panel(
            "Requests and scored events",
            "Requests to all servers by status, without probes and scrapes; scored events on the right.",
            [
                (
                    f"sum by (status) (rate(streampair_serve_requests_total{ANSWERED}[$__rate_interval]))",
                    "{{status}}",
                ),
                ("sum(rate(streampair_serve_events_total[$__rate_interval]))", "scored events"),
            ],
            unit="cps",
            width=6,
            right=[("events", "cps")],
        ),
        Panel(
            "Time to answer",
            "Of requests to all servers, without probes and scrapes.",
            quantiles("serve_request_seconds", "request", ANSWERED, 0.99),
            unit="s",
            width=6,
        ),
        Panel(
            "Served model",
            "Time since the newest record that it has learned; records that it has learned on the right. The "
            "age grows also while there are no new events.",
            [
                ("time() - streampair_serve_model_timestamp_seconds", "{{instance}} age"),
                ("streampair_serve_model_slots", "{{instance}} records"),
            ],
            unit="s",
            width=6,
            right=[("records", "short")],
        ),
        Panel(
            "Servers that are ready",
            "1 if a server is ready; requests that are being answered, the scrape included.",
            [
                ("streampair_serve_ready", "{{instance}} ready"),
                ("streampair_serve_requests_in_flight", "{{instance}} requests"),
            ],
            width=6,
        ),
    ],
)

LABELS = Row(
    "Labels that come later",
    [
        one("events_pending"),
        one("learning_lag_seconds"),
        one("labels_reading"),
        Panel(
            "Share of events with a label",
            "Of the events that were due, those whose label came in time.",
            [(share("due_events_total", 'labelled="yes"'), "with a label")],
            unit="percentunit",
        ),
        speed("due_events_total"),
        one("explored_positives"),
        speed(
            "explored_events_total",
            [(f"sum by (explored) ({rate('explored_events_total')})", "explored: {{explored}}")],
        ),
        one("label_delay_seconds", quantiles("label_delay_seconds", "delay")),
        Panel(
            "Share of labels that come late",
            "Of the labels of a sample of events, those that came after the event was learned.",
            [(share("sampled_labels_total", 'came="late"'), "late")],
            unit="percentunit",
        ),
        speed(
            "label_messages_total", [(f"sum by (outcome) ({rate('label_messages_total')})", "{{outcome}}")]
        ),
        speed("events_without_id_total"),
        Panel(
            "Age of the newest label, and what is usual",
            "If the newest label is older than usual, labels have stopped.",
            [
                (f"time() - {lane('label_newest_seconds')}", f"{NAME} newest"),
                (lane("label_quiet_seconds"), f"{NAME} usual"),
            ],
            unit="s",
        ),
        Panel(
            "Age of the newest event that was due",
            "Later events still wait for their labels.",
            [(f"time() - {lane('learned_to_seconds')}", NAME)],
            unit="s",
        ),
        one("labels_kept"),
        Panel(
            "Sample of scores that wait for labels",
            "The AUC is that of the scores in the sample; its share of the events that wait on the right.",
            [
                (lane("score_sample_events"), f"{NAME} scores"),
                (lane("score_sample_share"), f"{NAME} share"),
            ],
            right=[("share", "percentunit")],
        ),
    ],
)

PROMISE = Row(
    "Promise and state of the guarantee",
    [
        one(
            "privacy_guarantee",
            [(f"{lane('privacy_guarantee')} == 1", f"{NAME}: {{{{kind}}}}")],
            description="Unless it holds, read the learner's privacy report.",
            kind="state",
        ),
        Panel(
            "Share of the horizon used",
            "At the horizon the learner stops learning, and goes on scoring; epsilon stays within its bound. "
            "Absent without a horizon, where the bound holds for any number of events.",
            [(f"1 - {lane('privacy_horizon_left')} / {lane('privacy_horizon')}", NAME)],
            unit="percentunit",
            kind="gauge",
            marks=[(0.9, "orange")],
        ),
        one(
            "privacy_since_seconds",
            [(f"{lane('privacy_since_seconds')} * 1000", NAME)],
            unit="dateTimeAsIso",
            kind="number",
        ),
        one("privacy_delta", unit="sci", kind="number"),
        Panel(
            "Epsilon spent so far, and promised",
            "At the delta of the plan, by the accountant of the run.",
            [
                (lane("privacy_epsilon_spent"), f"{NAME} spent"),
                (lane("privacy_epsilon_budget"), f"{NAME} promised"),
            ],
            steps=True,
        ),
        Panel(
            "Mu spent (Gaussian differential privacy)",
            "It composes exactly: the squares add up.",
            [(lane("privacy_mu_spent"), f"{NAME} spent"), (lane("privacy_mu_budget"), f"{NAME} promised")],
            steps=True,
        ),
        one("noise_std", kind="number"),
        one(
            "private_auc",
            band(lane("private_auc"), lane("private_auc_stderr"), NAME),
            description=BAND,
            band=True,
        ),
    ],
)

LEFT = Row(
    "Remaining horizon",
    [
        one("privacy_horizon_left", kind="number"),
        Panel(
            "Time until the horizon",
            "At the rate of the last hour; nothing while no event comes, or without a horizon.",
            [(until("privacy_horizon_left", "1h"), NAME)],
            unit="s",
            kind="number",
        ),
        speed("privacy_releases_total"),
    ],
)

VIEWS = Row(
    "Forks",
    [
        one("privacy_forks", kind="number", marks=[(1, "orange")]),
        one("privacy_generation", kind="number"),
        VERSION,
    ],
)

DASHBOARDS: dict[str, Dashboard] = {
    "streampair.json": Dashboard(
        "streampair",
        "streampair: learning and operation",
        "For operators: it shows functions of raw data.",
        "events_total",
        [OPERATION, SCORING, SERVERS, LABELS, LEARNING],
    ),
    "streampair-privacy.json": Dashboard(
        "streampair-privacy",
        "streampair: privacy",
        "For officers: public series only; none is a function of raw data.",
        "privacy_epsilon_spent",
        [PROMISE, LEFT, VIEWS],
    ),
}


def _shaped(panel: Panel) -> AnyPanel:
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
    if panel.steps:
        dashes = {"fill": "dash", "dash": [8, 8]}
        shaped = shaped.line_interpolation(shapes.LineInterpolation.STEP_AFTER).override_by_regexp(
            "/ promised$/", [model.DynamicConfigValue(id_val="custom.lineStyle", value=dashes)]
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


def _panel(panel: Panel, number: int) -> AnyPanel:
    made = (
        _shaped(panel)
        .id(number)
        .title(panel.title)
        .description(panel.description)
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
        .description(of.description)
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
    selects = ["", '{app=~"$app"}']
    labels = [("app", "Application"), ("topic", "Topic")]
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
