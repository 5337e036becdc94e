"""The image, the compose file and the manifests: what linters say of them, and that they fit the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from compose_spec import PyCompose
from harness import support
from streampair_connectors.cli.app import app
from streampair_connectors.config import Config, load_config
from streampair_connectors.serve.routes import ROUTES
from streampair_connectors.worker import session
from streampair_connectors.worker.factory import build_learner

from streampair.errors import ConfigError

DEPLOY = support.ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = (DEPLOY / "docker-compose.yml").read_text()
BASE = DEPLOY / "kubernetes" / "base"
OVERLAYS = DEPLOY / "kubernetes" / "overlays"
KUBERNETES = {
    f"{made['kind']}/{made['metadata']['name']}": made
    for file in sorted(BASE.glob("*.yaml"))
    for made in yaml.safe_load_all(file.read_text())
    if made["kind"] != "Kustomization"
}
PARALLEL = OVERLAYS / "parallel"
# The oldest that is still widely run, and the newest whose schemas the linter has.
VERSIONS = ["1.30", "1.37"]


# The image


def hadolint(text: str) -> str:
    """What it says of a Dockerfile; nothing: it is well."""
    completed = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), "--no-color", "-"],
        input=text,
        capture_output=True,
        text=True,
    )
    assert completed.returncode in (0, 1), completed.stderr
    return completed.stdout


def test_the_dockerfile_is_clean() -> None:
    assert hadolint(DOCKERFILE) == ""


def test_a_dockerfile_that_is_not_is_caught() -> None:
    assert "DL3006" in hadolint(DOCKERFILE.replace("FROM python:3.11-slim\n", "FROM python\n"))


def test_the_image_is_built_in_stages_and_runs_without_rights() -> None:
    build, run = DOCKERFILE.split("\nFROM python:3.11-slim\n")
    assert "FROM python:3.11-slim AS build" in build
    assert "pip install" in build
    assert "pip install" not in run
    assert "\nUSER 10001\n" in run


def compiled_in(dockerfile: str) -> bool:
    """Whether kernels are compiled beside their source, for the processor that they are looked for under."""
    build, run = dockerfile.split("\nFROM python:3.11-slim\n")
    names = [re.findall(r"NUMBA_CPU_NAME=(\S+)", stage) for stage in (build, run)]
    return (
        re.search(r"^RUN /opt/streampair/bin/python -c .*compile_kernels\(\)\"$", build, re.M) is not None
        and "NUMBA_CACHE_DIR" not in build
        and names[0] == names[1] == ["generic"]
        and "COPY --from=build /opt/streampair /opt/streampair" in run
    )


def test_the_image_has_its_kernels_compiled() -> None:
    assert compiled_in(DOCKERFILE)
    mounts = KUBERNETES["StatefulSet/streampair"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert not any("/opt/streampair".startswith(mount["mountPath"]) for mount in mounts)  # nor hidden


@pytest.mark.parametrize("line", ["RUN /opt/streampair/bin/python -c", "ENV NUMBA_CPU_NAME=generic\n"])
def test_an_image_without_them_is_caught(line: str) -> None:
    assert not compiled_in(DOCKERFILE.replace(line, ""))


# The compose file


def test_the_compose_file_is_what_compose_takes() -> None:
    assert "worker" in PyCompose.from_yaml(COMPOSE).service_names()


def test_a_compose_file_that_is_not_is_caught() -> None:
    with pytest.raises(ValueError, match="restrt"):
        PyCompose.from_yaml(COMPOSE.replace("    restart:", "    restrt:"))


def test_the_worker_of_the_compose_file_cannot_write_its_root() -> None:
    worker = yaml.safe_load(COMPOSE)["services"]["worker"]
    assert worker["read_only"]
    assert worker["cap_drop"] == ["ALL"]
    kept = {volume.split(":")[1] for volume in worker["volumes"]}
    # the image says where it writes, and each of these is a volume
    assert set(json.loads(DOCKERFILE.split("VOLUME ")[1].splitlines()[0])) <= kept
    assert "NUMBA_CACHE_DIR=/var/cache/streampair" in DOCKERFILE


# Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", KUBERNETES)
def test_a_manifest_fits_its_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(KUBERNETES[name], version, strict=True)


def test_a_manifest_that_does_not_fit_is_caught() -> None:
    wrong = json.loads(json.dumps(KUBERNETES["StatefulSet/streampair"]).replace("livenessProbe", "liveProbe"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_all_manifests_are_applied() -> None:
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    files = {file.name for file in BASE.glob("*.yaml")}
    assert set(listed) == files - {"kustomization.yaml"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of the manifests, with keys in their place."""
    file = tmp_path / "config.toml"
    file.write_text(KUBERNETES["ConfigMap/streampair-config"]["data"]["config.toml"])
    (worker,) = KUBERNETES["StatefulSet/streampair"]["spec"]["template"]["spec"]["containers"]
    for entry in worker["env"]:
        key = entry["valueFrom"].get("secretKeyRef", {}).get("key")
        keys = {"NOISE_KEY": "4f" * 32, "STORE_KEY": "5e" * 32}
        monkeypatch.setenv(entry["name"], keys.get(key, "streampair-0"))
    return file


def test_the_configuration_is_accepted_and_fits_the_pod(config: Path) -> None:
    completed = load_config(config)
    build_learner(completed)
    pod = KUBERNETES["StatefulSet/streampair"]["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    public = completed.metrics.public_address
    assert public is not None
    assert ports == {"operator": completed.metrics.address.port, "public": public.port}
    environment = {entry["name"]: entry["valueFrom"] for entry in worker["env"]}
    assert completed.require_kafka().group_instance_id == "streampair-0"
    name = environment.pop("STREAMPAIR_KAFKA__GROUP_INSTANCE_ID")
    assert name == {"fieldRef": {"fieldPath": "metadata.name"}}
    # it has time to store its last outputs
    assert pod["terminationGracePeriodSeconds"] > session._STOP_SECONDS
    assert completed.store.in_kafka  # so that no pod needs the disk of another
    secret = KUBERNETES["Secret/streampair-keys"]
    assert completed.learner.noise_key() == b"\x4f" * 32
    assert len(completed.store.sealing_keys()) == 1
    places = {"STREAMPAIR_LEARNER__NOISE_KEY": "NOISE_KEY", "STREAMPAIR_STORE__KEY": "STORE_KEY"}
    assert set(places.values()) == secret["stringData"].keys()
    assert environment == {
        name: {"secretKeyRef": {"name": secret["metadata"]["name"], "key": key}}
        for name, key in places.items()
    }


def test_the_keys_of_the_manifests_are_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody runs under a key that everybody can read here."""
    assert set(KUBERNETES["Secret/streampair-keys"]["stringData"].values()) == {""}
    monkeypatch.setenv("STREAMPAIR_LEARNER__NOISE_KEY", "")
    with pytest.raises(ConfigError):
        build_learner(load_config(config))


def test_the_probes_ask_what_the_worker_answers() -> None:
    (worker,) = KUBERNETES["StatefulSet/streampair"]["spec"]["template"]["spec"]["containers"]
    paths = {kind: worker[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {get["port"] for get in paths.values()} == {"operator"}
    assert [get["path"] for get in paths.values()] == ["/livez", "/livez", "/readyz"]
    # kernels are compiled at a first start: minutes, on a slow machine
    assert worker["startupProbe"]["periodSeconds"] * worker["startupProbe"]["failureThreshold"] >= 300


def test_a_pod_has_no_rights_and_a_root_that_it_cannot_write() -> None:
    pod = KUBERNETES["StatefulSet/streampair"]["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"USER {pod['securityContext']['runAsUser']}" in DOCKERFILE
    assert not pod["automountServiceAccountToken"]
    assert worker["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}
    assert set(json.loads(DOCKERFILE.split("VOLUME ")[1].splitlines()[0])) <= set(mounted)
    assert set(mounted.values()) == {volume["name"] for volume in pod["volumes"]}


def test_the_operators_port_is_for_prometheus_alone() -> None:
    policy = KUBERNETES["NetworkPolicy/streampair"]["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    by_port: dict[int, list[Any]] = {
        port["port"]: rule.get("from", []) for rule in policy["ingress"] for port in rule["ports"]
    }
    assert by_port[9465] == []  # from everywhere
    (source,) = by_port[9464]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    public = KUBERNETES["Service/streampair-public"]["spec"]
    assert [port["port"] for port in public["ports"]] == [9465]


def selects_its_pods(made: dict[str, Any], workload: str, budget: str) -> None:
    """A workload and its budget select its pods alone; services and the policy select those of all."""
    labels = made[workload]["spec"]["template"]["metadata"]["labels"]
    assert made[workload]["spec"]["selector"]["matchLabels"] == labels
    assert made[budget]["spec"]["selector"]["matchLabels"] == labels
    name = {"app.kubernetes.io/name": labels["app.kubernetes.io/name"]}
    assert made["NetworkPolicy/streampair"]["spec"]["podSelector"]["matchLabels"] == name
    for service in ("streampair", "streampair-public"):
        assert made[f"Service/{service}"]["spec"]["selector"] == name


def test_everything_selects_the_pods() -> None:
    selects_its_pods(KUBERNETES, "StatefulSet/streampair", "PodDisruptionBudget/streampair")


# Kubernetes, with scorers


@pytest.fixture(scope="module")
def parallel() -> dict[str, dict[str, Any]]:
    """What is applied with the overlay parallel."""
    return built(PARALLEL)


def built(overlay: Path) -> dict[str, dict[str, Any]]:
    """What is applied with an overlay."""
    if shutil.which("kubectl") is None:
        support.unavailable("kubectl", "install it (https://kubernetes.io/docs/tasks/tools)")
    completed = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    found = yaml.safe_load_all(completed.stdout)
    return {f"{made['kind']}/{made['metadata']['name']}": made for made in found}


# Kubernetes, with TLS and SASL


def test_the_secure_overlay_reaches_kafka_with_tls_and_a_password(tmp_path: Path) -> None:
    secure = built(OVERLAYS / "secure")
    for name, made in secure.items():
        if made["kind"] != "ServiceMonitor":  # the Prometheus operator's own
            kubernetes_validate.validate(made, VERSIONS[-1], strict=True)
        assert made["metadata"].get("namespace", "streampair") == "streampair", name
    config = mounted_config(secure, "StatefulSet/streampair", tmp_path / "secure.toml")
    plain = tmp_path / "plain.toml"
    plain.write_text(KUBERNETES["ConfigMap/streampair-config"]["data"]["config.toml"])
    one, other = (flat(each.model_dump(mode="json")) for each in (config, load_config(plain)))
    keys = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    names = ("bootstrap_servers", "security_protocol", "sasl_mechanism", "username", "password_file")
    assert keys == {f"kafka.{name}" for name in (*names, "ssl_cafile")}
    pod = secure["StatefulSet/streampair"]["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if "secret" in each]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    settings = config.require_kafka()
    secret = secure[f"Secret/{volume['secret']['secretName']}"]["stringData"]
    assert {str(settings.password_file), str(settings.ssl_cafile)} == {
        f"{mount['mountPath']}/{key}" for key in secret
    }
    assert volume["secret"]["defaultMode"] == 0o440
    port = int(settings.bootstrap_servers.rpartition(":")[2])
    assert secure["NetworkPolicy/streampair"]["spec"]["egress"][0]["ports"] == [{"port": port}]


def test_the_monitor_selects_the_operators_port() -> None:
    secure = built(OVERLAYS / "secure")
    monitor, service = secure["ServiceMonitor/streampair"], secure["Service/streampair"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    # The other service of the pods has no such port, so that no pod is scraped twice.
    assert endpoint["port"] not in {p["name"] for p in secure["Service/streampair-public"]["spec"]["ports"]}


def without_hash(name: str) -> str:
    """The name of a ConfigMap, without the hash of its content."""
    return re.sub(r"-[a-z0-9]{10}$", "", name)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_with_scorers_fit_their_schemas(
    parallel: dict[str, dict[str, Any]], version: str
) -> None:
    for name, made in parallel.items():
        if made["kind"] != "ScaledObject":  # KEDA's own
            kubernetes_validate.validate(made, version, strict=True)
        assert made["metadata"].get("namespace", "streampair") == "streampair", name
    inline = {name for name in KUBERNETES if not name.startswith("ConfigMap/")}
    added = {f"{kind}/streampair-scorers" for kind in ("Deployment", "PodDisruptionBudget", "ScaledObject")}
    maps = {without_hash(name) for name in parallel if name.startswith("ConfigMap/")}
    assert {name for name in parallel if not name.startswith("ConfigMap/")} == inline | added
    assert maps == {"ConfigMap/streampair-config", "ConfigMap/streampair-scorers-config"}


def mounted_config(parallel: dict[str, dict[str, Any]], workload: str, file: Path) -> Config:
    """The configuration that the pods of a workload read."""
    volumes = parallel[workload]["spec"]["template"]["spec"]["volumes"]
    (name,) = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    file.write_text(parallel[f"ConfigMap/{name}"]["data"]["config.toml"])
    return load_config(file)


def test_learners_and_scorers_have_one_application_and_a_role_each(
    parallel: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    learner = mounted_config(parallel, "StatefulSet/streampair", tmp_path / "learner.toml")
    scorer = mounted_config(parallel, "Deployment/streampair-scorers", tmp_path / "scorer.toml")
    inline = tmp_path / "inline.toml"
    inline.write_text(KUBERNETES["ConfigMap/streampair-config"]["data"]["config.toml"])
    assert (learner.worker.roles, scorer.worker.roles) == (["learn"], ["score"])
    assert learner.learner.parallel
    assert scorer.learner.parallel
    one, other = (flat(completed.model_dump(mode="json")) for completed in (learner, scorer))
    differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert differing == {"worker.roles", "kafka.session_timeout"}
    before = flat(load_config(inline).model_dump(mode="json"))
    differing = {key for key in one.keys() | before.keys() if one.get(key) != before.get(key)}
    assert differing == {"worker.roles", "learner.scoring"}


def flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def test_a_scorer_has_the_pod_of_a_worker_without_its_noise_key(
    parallel: dict[str, dict[str, Any]],
) -> None:
    pods = [
        parallel[name]["spec"]["template"]["spec"]
        for name in ("StatefulSet/streampair", "Deployment/streampair-scorers")
    ]
    (learner,), (scorer,) = (pod["containers"] for pod in pods)
    assert [entry["name"] for entry in scorer["env"]] == ["STREAMPAIR_STORE__KEY"]
    assert {**learner, "env": None} == {**scorer, "env": None}
    for pod in pods:
        pod = {**pod, "containers": None}
        pod["volumes"] = [volume for volume in pod["volumes"] if "configMap" not in volume]
        assert pod == {**pods[0], "containers": None, "volumes": pod["volumes"]}
    selects_its_pods(parallel, "Deployment/streampair-scorers", "PodDisruptionBudget/streampair-scorers")
    selects_its_pods(parallel, "StatefulSet/streampair", "PodDisruptionBudget/streampair")
    assert parallel["StatefulSet/streampair"]["spec"]["replicas"] == 2  # a learner and its standby


def test_scorers_are_as_many_as_their_lag_needs(parallel: dict[str, dict[str, Any]]) -> None:
    config = load_config(PARALLEL / "scorer.toml")
    made = parallel["ScaledObject/streampair-scorers"]["spec"]
    assert made["scaleTargetRef"] == {"name": "streampair-scorers"}
    assert (
        "replicas" not in parallel["Deployment/streampair-scorers"]["spec"]
    )  # or each apply would set it back
    (trigger,) = made["triggers"]
    assert trigger["type"] == "kafka"
    completed = trigger["metadata"]
    assert completed["bootstrapServers"] == config.require_kafka().bootstrap_servers
    assert (completed["consumerGroup"], completed["topic"]) == (config.scorers_group, config.input.topic)
    assert all(isinstance(value, str) for value in completed.values())
    assert 1 < made["minReplicaCount"] <= made["maxReplicaCount"]


# Kubernetes, with servers


@pytest.fixture(scope="module")
def serving() -> dict[str, dict[str, Any]]:
    """What the overlay serve adds to the overlay parallel."""
    found = yaml.safe_load_all((OVERLAYS / "serve" / "serve.yaml").read_text())
    return {f"{made['kind']}/{made['metadata']['name']}": made for made in found}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_of_servers_fit_their_schemas(serving: dict[str, Any], version: str) -> None:
    for made in serving.values():
        kubernetes_validate.validate(made, version, strict=True)


def command_of(container: dict[str, Any]) -> dict[str, Any]:
    """The options of `streampair serve` that a container starts with."""
    command: Any = typer.main.get_command(app)
    name, *arguments = container["args"]
    found: dict[str, Any] = command.commands[name].make_context(name, arguments).params
    return found


def test_servers_read_the_configuration_of_the_scorers(
    parallel: dict[str, Any], serving: dict[str, Any]
) -> None:
    pods = [
        made["spec"]["template"]["spec"]
        for made in (parallel["Deployment/streampair-scorers"], serving["Deployment/streampair-serve"])
    ]
    (scorer,), (server,) = (pod["containers"] for pod in pods)
    options = command_of(server)
    assert str(options["config"]) == "/etc/streampair/config.toml"
    assert str(options["token_file"]) == "/etc/streampair-tokens/tokens"
    assert options["host"] == "0.0.0.0"
    assert [port["containerPort"] for port in server["ports"]] == [options["port"]]
    assert server["env"] == scorer["env"]  # no noise key
    assert server["securityContext"] == scorer["securityContext"]
    same = ("securityContext", "automountServiceAccountToken", "enableServiceLinks")
    assert [pods[0][key] for key in same] == [pods[1][key] for key in same]
    volumes = {volume["name"]: volume for volume in pods[1]["volumes"]}
    assert {mount["name"] for mount in server["volumeMounts"]} == set(volumes)
    assert volumes["config"]["configMap"]["name"] == "streampair-scorers-config"
    assert volumes["tokens"]["secret"]["defaultMode"] == 0o440
    labels = serving["Deployment/streampair-serve"]["spec"]["template"]["metadata"]["labels"]
    for name, place in (
        ("Deployment/streampair-serve", ("selector", "matchLabels")),
        ("PodDisruptionBudget/streampair-serve", ("selector", "matchLabels")),
        ("NetworkPolicy/streampair-serve", ("podSelector", "matchLabels")),
    ):
        assert serving[name]["spec"][place[0]][place[1]] == labels
    assert serving["Service/streampair-serve"]["spec"]["selector"] == labels


def test_probes_of_a_server_ask_what_it_answers(serving: dict[str, Any]) -> None:
    (server,) = serving["Deployment/streampair-serve"]["spec"]["template"]["spec"]["containers"]
    without_token = {route.path for route in ROUTES if route.method == "GET" and not route.token}
    for kind in ("liveness", "readiness"):
        assert server[f"{kind}Probe"]["httpGet"]["path"] in without_token


def test_servers_with_an_old_model_are_not_ready(serving: dict[str, Any]) -> None:
    (server,) = serving["Deployment/streampair-serve"]["spec"]["template"]["spec"]["containers"]
    assert command_of(server)["max_model_age"] == "1d"


def test_servers_are_scraped_with_a_token(serving: dict[str, Any], tmp_path: Path) -> None:
    """All routes but the probes ask for one, and no example of a scrape had it."""
    monitor = yaml.safe_load((OVERLAYS / "serve" / "monitor.yaml").read_text())
    service = serving["Service/streampair-serve"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"].keys() == {"name", "key"}
    asking = {route.path for route in ROUTES if route.token}
    assert endpoint["path"] in asking
    page = (support.ROOT / "docs" / "serving.md").read_text()
    (example,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    (job,) = yaml.safe_load(example)["scrape_configs"]
    assert job["authorization"]["type"] == endpoint["authorization"]["type"] == "Bearer"
    if shutil.which("promtool") is None:
        support.unavailable("promtool", "install prometheus")
    file = tmp_path / "prometheus.yml"
    file.write_text(example)
    checked = ["promtool", "check", "config", "--syntax-only", str(file)]
    assert subprocess.run(checked, capture_output=True).returncode == 0


def test_servers_are_applied_with_the_workers(serving: dict[str, Any]) -> None:
    applied = built(OVERLAYS / "serve")
    assert serving.keys() <= applied.keys()
    volumes = applied["Deployment/streampair-serve"]["spec"]["template"]["spec"]["volumes"]
    (name,) = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    assert f"ConfigMap/{name}" in applied
    assert without_hash(name) == "streampair-scorers-config"
