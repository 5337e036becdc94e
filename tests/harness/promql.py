"""What a PromQL expression asks of our series: enough of the language to check names, labels, functions."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from streampair_connectors.observability.metric_definitions import SERIES, MetricDefinition
from streampair_connectors.serve.series import ServerMetrics

# Labels that Prometheus adds to what it scrapes, and that of a histogram's buckets.
ADDED = frozenset({"instance", "job"})
PARTS = ("_bucket", "_sum", "_count")
FOR_COUNTERS = frozenset({"rate", "irate", "increase", "resets"})
FOR_GAUGES = frozenset({"delta", "idelta", "deriv", "predict_linear"})


def _of_server() -> tuple[MetricDefinition, ...]:
    """The series of `streampair serve`, as it shows them once it has answered a request."""
    metrics = ServerMetrics(["score"])
    metrics.request(0, 200, 0.01)
    return tuple(
        MetricDefinition(
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            public=False,
            title="",
            unit="",
            help=family.documentation,
            labels=tuple({label for sample in family.samples for label in sample.labels} - {"le"}),
        )
        for family in text_string_to_metric_families(metrics.render().decode())
    )


EVERY_SERIES = (*SERIES, *_of_server())
"""Those of workers, and those of servers."""


@dataclass(frozen=True)
class Use:
    """One series in an expression: name as written, labels that select it, function around it."""

    name: str
    labels: frozenset[str]
    function: str


def uses(expression: str) -> list[Use]:
    """Every use of one of our series."""
    return [
        Use(
            found["name"],
            frozenset(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", found["selector"] or "")),
            found["function"] or "",
        )
        for found in re.finditer(
            r"(?:(?P<function>\w+)\(\s*)?\b(?P<name>streampair_\w+)(?:\{(?P<selector>[^}]*)\})?", expression
        )
    ]


def series_of(name: str, table: Collection[MetricDefinition] = EVERY_SERIES) -> MetricDefinition | None:
    """The row of the table behind a name, which may be that of a histogram's part; None without one."""
    for series in table:
        if name == series.name and series.kind != "histogram":
            return series
        if series.kind == "histogram" and name in {series.name + part for part in PARTS}:
            return series
    return None


def mistakes(expression: str) -> list[str]:
    """What does not fit the table: unknown series and labels, rates of gauges, derivatives of counters."""
    found: list[str] = []
    everywhere: set[str] | None = None
    for use in uses(expression):
        series = series_of(use.name)
        if series is None:
            found.append(f"{use.name} is no series")
            continue
        labels = set(series.labels) | ADDED | ({"le"} if use.name.endswith("_bucket") else set())
        everywhere = labels if everywhere is None else everywhere & labels
        found += [f"{use.name} has no label {label}" for label in sorted(use.labels - labels)]
        grows = series.kind != "gauge"
        if use.function in (FOR_GAUGES if grows else FOR_COUNTERS):
            found.append(f"{use.function} of {use.name}, a {series.kind}")
    for names in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        for label in filter(None, (name.strip() for name in names.split(","))):
            if everywhere is not None and label not in everywhere:
                found.append(f"grouped by {label}, which not every series has")
    return found
