"""The fixture ``kafka``: the same tests on the in-process broker and on the real ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.apache_kafka import KafkaBroker
from harness.kafka import Cluster
from harness.tiers import REAL_TIERS, STOPPABLE_TIERS, TIERS, open_cluster
from harness.verifier import Nursery, Trial


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each tier that its fixture names: ``kafka``, ``apache_kafka`` or ``stoppable_kafka``."""
    names = metafunc.fixturenames
    if "kafka" not in names:
        return
    tiers = TIERS
    if "stoppable_kafka" in names:
        tiers = STOPPABLE_TIERS
    elif "apache_kafka" in names:
        tiers = REAL_TIERS
    marks: dict[str, Any] = dict.fromkeys(tiers, pytest.mark.broker) | {"embedded": pytest.mark.embedded}
    if metafunc.definition.get_closest_marker("newest") is not None:
        marks |= {tier: [pytest.mark.broker, pytest.mark.verifier] for tier in STOPPABLE_TIERS[:-1]}
    if "store" in names:
        # The in-process broker does not fence, so that no state may lie in it.
        both = [
            pytest.param(tier, store, marks=marks[tier])
            for tier in tiers
            for store in ("directory", "kafka")
            if store == "directory" or tier != "embedded"
        ]
        metafunc.parametrize(("kafka", "store"), both, indirect=True, scope="session")
        return
    params = [pytest.param(tier, marks=marks[tier]) for tier in tiers]
    metafunc.parametrize("kafka", params, indirect=True, scope="session")


def _tier(item: pytest.Item) -> int:
    """The place of an item's broker: of the newest first, whose tests take longest."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    tier = next((params[name] for name in ("kafka", "forgetful", "tier") if name in params), None)
    return -TIERS.index(tier) if tier in TIERS else 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The whole verifier runs with ``-m verifier`` (`make verify`); else the short part, on one version.

    So do tests marked `newest` on the older versions.

    And each broker starts once: pytest's own order knows a parameter by its place among those of one test.
    """
    everything = "verifier" in config.getoption("markexpr")
    dropped = []
    for item in items:
        marks = [mark.kwargs for mark in item.iter_markers("verifier")]
        if not marks or not isinstance(item, pytest.Function):
            continue
        tier, store = item.callspec.params.get("kafka"), item.callspec.params.get("store")
        wanted = everything or (tier in STOPPABLE_TIERS[-1:] and any(mark.get("short") for mark in marks))
        if not wanted or any(mark.get("store", store) != store for mark in marks):
            dropped.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        gone = {id(item) for item in dropped}
        items[:] = [item for item in items if id(item) not in gone]
    folder = f"{Path(__file__).parent}{os.sep}"
    here = [place for place, item in enumerate(items) if str(item.path).startswith(folder)]
    for place, item in zip(here, sorted((items[place] for place in here), key=_tier), strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A Kafka cluster; every test that asks for it runs once on each tier."""
    cluster = open_cluster(request.param)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> str:
    """Where the state lies; a test that asks for it runs for each place."""
    return str(request.param)


@pytest.fixture(scope="session")
def apache_kafka(kafka: Cluster) -> Cluster:
    """Only Apache Kafka itself, not the in-process broker."""
    return kafka


@pytest.fixture(scope="session")
def stoppable_kafka(kafka: Cluster) -> Cluster:
    """Only Apache Kafka started here: for tests that stop, kill or restart the broker, or use its tools."""
    return kafka


@pytest.fixture(autouse=True)
def _broker_is_up(request: pytest.FixtureRequest) -> None:
    """A test that left the broker down must not fail the next one."""
    if "kafka" in request.fixturenames:
        request.getfixturevalue("kafka").ensure_running()


@pytest.fixture(scope="session", params=STOPPABLE_TIERS)
def forgetful(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """Apache Kafka that aborts what takes too long and forgets unused ids every moment, and keeps rules."""
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
        "transactional.id.expiration.ms": "1500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
        "producer.id.expiration.ms": "1500",
        "producer.id.expiration.check.interval.ms": "100",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    cluster = open_cluster(request.param, settings=settings)
    assert isinstance(cluster, KafkaBroker)
    yield cluster
    cluster.close()


_numbers = itertools.count(1)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses on the shared cluster: ``unique("events")``."""
    return lambda prefix: f"{prefix}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where workers come from in a moment."""
    made = Nursery(tmp_path_factory.mktemp("workers"))
    yield made
    made.close()


@pytest.fixture
def trial(
    stoppable_kafka: KafkaBroker, unique: Callable[[str], str], tmp_path: Path, store: str
) -> Callable[..., Trial]:
    """Makes applications under test, their state where `store` says."""

    def make(kind: type[Trial] = Trial, **options: Any) -> Trial:
        name = unique("app")
        (tmp_path / name).mkdir()
        return kind(stoppable_kafka, tmp_path / name, name, store=store, **options)

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Show the end of the broker's log with a failure."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        cluster = item.funcargs.get("kafka")
        if isinstance(cluster, Cluster) and (tail := cluster.log_tail()):
            report.sections.append((f"log of Apache Kafka {cluster.version}", tail))
    return report
