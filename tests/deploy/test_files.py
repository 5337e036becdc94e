"""The files in deploy/ fit together, and fit the program."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import re
import shutil
import socket
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import support
from packaging.requirements import Requirement
from river import datasets
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_learner

DEPLOY = support.ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        support.unavailable("promtool", "install Prometheus (Debian: apt-get install prometheus)")
    completed = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", str(Path(__file__).with_name("rules_test.yml")))


def test_every_alert_has_a_unit_test() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    healthy, ill, *_ = yaml.safe_load(Path(__file__).with_name("rules_test.yml").read_text())["tests"]
    assert [test["alertname"] for test in healthy["alert_rule_test"]] == alerts
    assert {s["value"] for t in ill["promql_expr_test"] for s in t["exp_samples"]} == {len(alerts)}


def test_the_example_configuration_is_accepted_and_fits_the_sample_events() -> None:
    config = load_config(DEPLOY / "example.toml")
    build_learner(config)
    x, _ = next(iter(datasets.Phishing()))
    assert config.input.feature_names() == list(x)
    bounds = config.input.bounds()
    assert bounds is not None
    assert all(
        bounds[n][0] <= value <= bounds[n][1] for x, _ in datasets.Phishing() for n, value in x.items()
    )


def test_the_extras_name_packages_that_the_constraints_pin() -> None:
    """An extra of another package's, such as aiokafka[all], may bring what no plain machine can install."""
    project = tomllib.loads((support.ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        Requirement(line).name for line in (support.ROOT / "constraints.txt").read_text().splitlines()[1:]
    }
    extras = [Requirement(text) for texts in project["optional-dependencies"].values() for text in texts]
    assert extras
    assert {requirement.name for requirement in extras} <= pinned
    assert not any(requirement.extras for requirement in extras)


def test_a_plain_installation_reads_every_codec_of_kafka() -> None:
    """aiokafka reads snappy, lz4 and zstd with it, and gzip by itself."""
    project = tomllib.loads((support.ROOT / "pyproject.toml").read_text())["project"]
    assert "cramjam" in {Requirement(text).name for text in project["dependencies"]}


def test_the_worker_of_the_compose_file_runs_the_example_configuration() -> None:
    config = load_config(DEPLOY / "example.toml")
    worker = SERVICES["worker"]
    mounts = dict(volume.split(":")[:2] for volume in worker["volumes"])
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert mounts["./example.toml"] == re.findall(r'CMD \["run", "(.*?)"\]', dockerfile)[0]
    assert mounts["worker-state"] == str(config.state_directory)
    assert config.kafka is not None
    assert config.kafka.bootstrap_servers == "kafka:9092"
    assert config.metrics.address.host == "0.0.0.0"
    assert "ports" not in worker, (
        "the operator's endpoint shows functions of raw data: not for the host's network"
    )
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["dns_sd_configs"] == [
        {"names": ["worker"], "type": "A", "port": config.metrics.address.port}
    ]
    script = SERVICES["topics"]["command"][0]
    (created,) = re.findall(r"for topic in (.*?);", script)
    assert set(created.split()) == {config.output_topic, config.dead_letter_topic}
    assert re.search(rf"--topic {config.input.topic} .*--config message.timestamp.type=LogAppendTime", script)
    assert SERVICES["sample-events"]["command"][:2] == ["kafka:9092", config.input.topic]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_refers_only_to_what_exists(name: str) -> None:
    service = SERVICES[name]
    for other in service.get("depends_on", {}):
        assert other in SERVICES
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    if "build" in service:
        context = (DEPLOY / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).exists()
    elif service["image"] != "streampair":
        assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", service["image"]), "images are pinned"
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "nothing is open to the network"


def test_the_image_copies_what_its_build_context_has() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)
        for source in line.split()[:-1]
    ]
    assert "streampair" in copied
    for source in copied:
        assert (support.ROOT / source).exists()
        assert f"!{source}" in ignore


def test_grafana_is_provisioned_with_the_dashboard() -> None:
    grafana = DEPLOY / "grafana"
    (source,) = yaml.safe_load((grafana / "provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((grafana / "provisioning/dashboards/streampair.yml").read_text())[
        "providers"
    ]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).name in [file.name for file in (grafana / "dashboards").iterdir()]


def test_the_supported_versions_of_python_are_one_list() -> None:
    """What the package says, what .ci/run goes through, and what make looks for."""
    project = tomllib.loads((support.ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)\b", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]}"
    (reads,) = re.findall(r"^supported\(\) .*$", (support.ROOT / ".ci" / "run").read_text(), re.M)
    completed = subprocess.run(
        ["bash", "-c", f"{reads}\nsupported"], capture_output=True, text=True, check=True, cwd=support.ROOT
    )
    assert completed.stdout.split() == versions
    (looked_for,) = re.findall(
        r"for python in \$\(PYTHON\) (.*) python3;", (support.ROOT / "Makefile").read_text()
    )
    assert looked_for.split() == [f"python{version}" for version in versions]


# ---- health of the image -------------------------------------------------------------------------------


def health() -> Any:
    spec = importlib.util.spec_from_file_location("healthcheck", DEPLOY / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def answering(code: int) -> Iterator[int]:
    """A server of HTTP on a free port that answers everything with a status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_the_image_is_healthy_on_whatever_port_it_listens() -> None:
    """The check asked port 9464, which another metrics.address, or `serve`, does not have."""
    module = health()
    with answering(200) as alive, answering(503) as stuck, answering(404) as other, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        module.SECONDS = 0.2  # of a port that takes connections and never answers
        nothing = silent.getsockname()[1]
        assert {alive, stuck, other, nothing} <= module.listening(Path("/proc/net/tcp").read_text())
        assert module.healthy({alive})
        assert module.healthy({alive, other, nothing})
        assert not module.healthy({alive, stuck})
        assert not module.healthy({other, nothing})
        assert not module.healthy(set())
    assert not module.healthy({alive})
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "COPY deploy/healthcheck.py /opt/streampair/healthcheck.py" in dockerfile
    assert 'CMD ["python", "/opt/streampair/healthcheck.py"]' in dockerfile


def test_the_image_has_the_signer_of_msk() -> None:
    assert '"${wheel}[msk]"' in (DEPLOY / "Dockerfile").read_text()


def test_extras_are_installed_from_the_clone() -> None:
    """The name on the index is nobody's: an advice to install it would install what somebody puts there."""
    advice = re.escape("pip install 'streampair") + r"\["
    command = ["git", "grep", "-nE", advice, "--", "*.py", "*.md", "*.toml", "deploy", "Makefile"]
    found = subprocess.run(command, cwd=support.ROOT, capture_output=True, text=True)
    assert found.stdout == ""
    assert found.returncode == 1  # nothing was found; above 1 git has failed
