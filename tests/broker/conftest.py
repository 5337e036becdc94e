"""The fixture ``kafka``: the same tests on the in-process broker and on the real ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import support
from harness.apache_kafka import PROFILES, KafkaBroker, TwoBrokers, version_of
from harness.kafka import Cluster
from harness.tiers import REAL_TIERS, STOPPABLE_TIERS, TIERS, open_cluster
from harness.verifier import Nursery, Trial

USUAL = "kafka"
"""The store of a test that runs once."""
NEWEST = REAL_TIERS[-1]


def tier_marks(tier: str) -> list[pytest.MarkDecorator]:
    """What a test on this tier needs; versions of Kafka other than the newest run with ``--everything``."""
    if tier == "embedded":
        return [pytest.mark.embedded]
    return [pytest.mark.broker] if tier == NEWEST else [pytest.mark.broker, pytest.mark.everything]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each tier that its fixture names: ``kafka``, ``apache_kafka`` or ``stoppable_kafka``.

    And in each store, if it asks for ``store``. Without ``--everything`` the tier is the newest Kafka and the
    store is the one in Kafka; tests that are marked `directory` run on the in-process broker too, with the
    state in a directory.
    """
    names = [name for name in ("kafka", "store") if name in metafunc.fixturenames]
    tiers = TIERS
    if "stoppable_kafka" in metafunc.fixturenames:
        tiers = STOPPABLE_TIERS
    elif "apache_kafka" in metafunc.fixturenames:
        tiers = REAL_TIERS
    directory = metafunc.definition.get_closest_marker("directory")
    values = {"kafka": tiers, "store": ("directory", "kafka")}
    cases = []
    for chosen in itertools.product(*(values[name] for name in names)):
        case = dict(zip(names, chosen, strict=True))
        tier = case.get("kafka")
        # The in-process broker does not fence, so that no state may lie in it.
        if tier == "embedded" and case.get("store") == "kafka":
            continue
        marks = [] if tier is None else tier_marks(tier)
        if tier == "embedded" and not directory:
            marks.append(pytest.mark.everything)
        cases.append(pytest.param(*chosen, marks=marks))
    if names:
        metafunc.parametrize(names, cases, indirect=True, scope="session")


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """The parameters of a case, by name."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _tier(item: pytest.Item) -> int:
    """The place of an item's broker: of the newest first, whose tests take longest."""
    params = _parameters(item)
    tier = next((params[name] for name in ("kafka", "forgetful", "tier") if name in params), None)
    return -TIERS.index(tier) if tier in TIERS else 1


def _repeated(items: list[pytest.Function]) -> list[pytest.Item]:
    """Of cases that differ in their store alone, all but one: the one in `USUAL`, if there is one."""
    once: dict[tuple[Any, ...], list[pytest.Function]] = {}
    for item in items:
        others = [(name, str(value)) for name, value in item.callspec.params.items() if name != "store"]
        once.setdefault((item.path, item.originalname, *sorted(others)), []).append(item)
    repeated: list[pytest.Item] = []
    for cases in once.values():
        usual = [case.callspec.params["store"] == USUAL for case in cases]
        repeated += [case for place, case in enumerate(cases) if place != usual.index(max(usual))]
    return repeated


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The whole verifier runs with ``-m verifier`` (`make verify`); else its short part, on the newest Kafka.

    A test runs in one store; with ``--everything`` in each, but on older versions of Kafka: requests differ
    between versions, what stores do with the answers does not.

    And each broker starts once: pytest's own order knows a parameter by its place among those of one test.
    """
    verifier, everything = "verifier" in config.getoption("markexpr"), config.getoption("everything")
    killers: list[pytest.Item] = []
    stores: list[pytest.Function] = []
    elsewhere: list[pytest.Item] = []
    for item in items:
        tier, store = (_parameters(item).get(name) for name in ("kafka", "store"))
        marks = [mark.kwargs for mark in item.iter_markers("verifier")]
        short = tier == NEWEST and any(mark.get("short") for mark in marks)
        if any(mark.get("store", store) != store for mark in marks):
            elsewhere.append(item)  # it is about the other store
        elif marks and not (verifier or short):
            killers.append(item)
        elif isinstance(item, pytest.Function) and store is not None and not (everything and tier == NEWEST):
            # Of a test that is marked `directory` and does not run on the in-process broker, both stay.
            on_disk = item.get_closest_marker("directory") and "apache_kafka" in item.fixturenames
            stores += [] if on_disk and tier == NEWEST else [item]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in elsewhere]
    support.leave_out(config, items, killers, "-m verifier")
    support.leave_out(config, items, _repeated(stores), "--everything")
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
    for name in ("kafka", "two_brokers"):
        if name in request.fixturenames:
            request.getfixturevalue(name).ensure_running()


@pytest.fixture(
    scope="session", params=[pytest.param(tier, marks=tier_marks(tier)) for tier in STOPPABLE_TIERS]
)
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


@pytest.fixture(scope="session")
def two_brokers(stoppable_kafka: KafkaBroker) -> Iterator[TwoBrokers]:
    """Two brokers of the same version: the last partition of a topic is on the second."""
    cluster = TwoBrokers(next(name for name in PROFILES if version_of(name) == stoppable_kafka.version))
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
    """Makes applications under test, their state where `store` says, of three partitions."""

    def make(kafka: Cluster = stoppable_kafka, **options: Any) -> Trial:
        name = unique("app")
        (tmp_path / name).mkdir()
        options = {"partitions": 3, **options}
        return Trial(kafka, tmp_path / name, name, store=store, **options)

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
