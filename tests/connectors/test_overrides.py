"""Keys from the environment and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streampair_connectors.cli.app import app as command
from streampair_connectors.config import Changes, Config, load_config
from typer.testing import CliRunner

from streampair.errors import ConfigError

FILE = """
app = "fraud"
kafka.bootstrap_servers = "localhost:9092"
input.topic = "events"
input.label = "y"
input.features = { amount = [0, 1000] }
learner.class = "streampair.auc.PairOGD"
store.directory = "state"
worker.batch_size = 100
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fraud.toml"
    path.write_text(FILE)
    return path


def refusal(file: Path, *settings: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(file, settings)
    return caught.value


def test_the_command_line_goes_before_the_environment_before_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_config(file).worker.batch_size == 100
    monkeypatch.setenv("STREAMPAIR_WORKER__BATCH_SIZE", "200")
    monkeypatch.setenv("STREAMPAIR_KAFKA__BOOTSTRAP_SERVERS", "broker:9092")
    config = load_config(file)
    assert (config.worker.batch_size, config.require_kafka().bootstrap_servers) == (200, "broker:9092")
    config = load_config(file, ["worker.batch_size=300", "output.topic=a", "output.topic=b"])
    assert (config.worker.batch_size, config.output.topic) == (300, "b")
    assert config.places == {
        "kafka.bootstrap_servers": "STREAMPAIR_KAFKA__BOOTSTRAP_SERVERS",
        "worker.batch_size": "--set",
        "output.topic": "--set",
    }


def topic(config: Config) -> Any:
    return config.input.topic


def test_a_value_is_one_of_toml_or_a_text(file: Path) -> None:
    cases: list[tuple[str, Any, Any]] = [
        ("input.topic=plain", topic, "plain"),
        ('input.topic="quoted"', topic, "quoted"),
        ("input.topic=2024", topic, "2024"),  # a key that takes text only
        ("input.topic = spaced ", topic, "spaced"),
        ("input.features=['a', \"b.c\"]", lambda c: c.input.field_names(), ["a", "b.c"]),
        ('input.features."b.c"=[0, 1]', lambda c: c.input.field_names(), ["amount", "b.c"]),
        ("input.features.Age=[0, 9]", lambda c: c.input.field_names(), ["amount", "Age"]),
        ("input.positive=1\ninput.negative=0", lambda c: c.input.positive, "1\ninput.negative=0"),
        ("input.payloads_change=true", lambda c: c.input.payloads_change, True),
        ("learner.options={radius = 2.0}", lambda c: c.learner.options, {"radius": 2.0}),
        ("learner.options.radius=2.0", lambda c: c.learner.options, {"radius": 2.0}),
        ("app=7", lambda c: c.app, "7"),
        ("store.directory=other", lambda c: c.state_directory, file.parent / "other"),
    ]
    for setting, look, wanted in cases:
        more = ["input.negative=zero"] if setting.startswith("input.positive") else []
        assert look(load_config(file, [setting, *more])) == wanted, setting


def test_an_application_is_named_by_its_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMPAIR_APP", "other")
    monkeypatch.setenv("STREAMPAIR_LEARNER__OPTIONS__RADIUS", "3.0")
    config = load_config(file)
    assert (config.app, config.learner.options) == ("other", {"radius": 3.0})


@pytest.mark.parametrize(
    ("setting", "problem", "fix"),
    [
        (
            "kafka.bootstrap_server=a:1",
            "unknown key kafka.bootstrap_server (from --set)",
            "bootstrap_servers",
        ),
        ("kafk.bootstrap_servers=a:1", "unknown key kafk (from --set)", "write kafka instead of kafk"),
        ("worker.batch_size=many", "worker.batch_size (from --set): input should be a valid integer", ""),
        ("input.features=[1, 2, 3]", "input.features.0 (from --set): input should be a valid string", ""),
        ("worker.batch_size", "--set worker.batch_size has no value", "write --set KEY=VALUE"),
        ("=7", "--set : that is not a key", "write it as in the file"),
        ("#=7", "--set #: that is not a key", "write it as in the file"),
        ("app.name=7", "app.name (from --set): app is no table", "set app as a whole"),
    ],
)
def test_what_sets_no_key_is_refused(file: Path, setting: str, problem: str, fix: str) -> None:
    error = refusal(file, setting)
    assert problem in error.problem
    assert fix in error.fix


@pytest.mark.parametrize(
    ("variable", "problem", "fix"),
    [
        (
            "STREAMPAIR_KAFKA_BOOTSTRAP_SERVERS",
            "STREAMPAIR_KAFKA_BOOTSTRAP_SERVERS sets no key",
            "write STREAMPAIR_KAFKA__BOOTSTRAP_SERVERS",
        ),
        (
            "STREAMPAIR_KAFKA__BOOTSTRAP_SERVER",
            "unknown key kafka.bootstrap_server (from STREAMPAIR_KAFKA__BOOTSTRAP_SERVER)",
            "write bootstrap_servers",
        ),
        ("STREAMPAIR_KAFK__X", "unknown key kafk (from STREAMPAIR_KAFK__X)", "write kafka"),
    ],
)
def test_a_variable_that_sets_no_key_is_refused_without_its_value(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, problem: str, fix: str
) -> None:
    monkeypatch.setenv(variable, "hunter2")
    error = refusal(file)
    assert problem in error.problem
    assert fix in error.fix
    assert "hunter2" not in str(error)


def test_variables_of_others_are_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets variables for a service called streampair-metrics, and this project has its own."""
    for name, value in (
        ("STREAMPAIR_METRICS_PORT", "tcp://10.0.0.1:9464"),
        ("STREAMPAIR_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("STREAMPAIR_METRICS_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
        ("STREAMPAIR_DATA", "/data"),
    ):
        monkeypatch.setenv(name, value)
    assert load_config(file).places == {}


def test_a_changed_file_is_compared_with_the_same_overrides(file: Path) -> None:
    changes = Changes(load_config(file, ["worker.batch_size=300"]))
    file.write_text(FILE.replace("batch_size = 100", "batch_size = 1000"))
    assert changes.look() == 0
    file.write_text(FILE + "worker.on_bad = 'skip'\n")
    assert changes.look() == 1
    assert changes.keys == ("worker.on_bad",)


def test_every_command_that_reads_a_configuration_takes_overrides(file: Path) -> None:
    unknown = ["--set", "zzz=1"]
    for words in (
        *(["check"], ["run"], ["audit"], ["serve"], ["state", "show"], ["dlq", "list"], ["budget", "card"]),
        *(["budget", "show"], ["state", "export", "--output", "x"], ["model", "export", "--output", "x"]),
        *(["erasure", "key"], ["compare", "other.toml"], ["replay", "-"], ["state", "import", "x"]),
        *(["dlq", "show"], ["dlq", "replay", "--yes"], ["state", "recover", "--yes", "--skip-span"]),
    ):
        depth = 2 if words[0] in ("state", "dlq", "budget", "model") else 1
        result = CliRunner().invoke(command, [*words[:depth], str(file), *words[depth:], *unknown])
        assert result.exit_code == 2, (words, result.output)
        assert "zzz" in result.output, (words, result.output)
    for words in (["budget", "plan", "--n", "1e6", "--d", "3"], ["serve", "--model", "x"]):
        result = CliRunner().invoke(command, [*words, *unknown])
        assert "--set zzz without a configuration" in result.output, (words, result.output)


def test_check_names_the_keys_that_are_not_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMPAIR_WORKER__BATCH_SIZE", "200")
    result = CliRunner().invoke(command, ["check", str(file), "--set", "kafka.bootstrap_servers=127.0.0.1:1"])
    line = "worker.batch_size from STREAMPAIR_WORKER__BATCH_SIZE, kafka.bootstrap_servers from --set"
    assert f"ok   overrides: {line}" in result.output


# Secrets

SASL = """
kafka.security_protocol = "SASL_PLAINTEXT"
kafka.sasl_mechanism = "PLAIN"
kafka.username = "ann"
"""


def test_the_environment_gives_a_secret_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(FILE + SASL + 'kafka.password_file = "nowhere"\n')
    for name, secret in (
        ("KAFKA__PASSWORD", "12345"),
        ("KAFKA__OAUTH_CLIENT_SECRET", '"quoted"'),
        ("LEARNER__NOISE_KEY", "4f" * 32 + "\n"),
        ("STORE__KEY", "5e" * 32 + "\n" + "6d" * 32),
    ):
        monkeypatch.setenv(f"STREAMPAIR_{name}", secret)
    config = load_config(file)
    kafka = config.require_kafka()
    found = [kafka.password(), kafka.oauth_client_secret()]
    assert [each.get_secret_value() for each in found if each is not None] == ["12345", '"quoted"']
    assert config.learner.noise_key() == b"\x4f" * 32
    assert len(config.store.sealing_keys()) == 2
    texts = f"{config!r}{config}{config.model_dump()}{config.model_dump_json()}{config.places}"
    for secret in ("12345", "quoted", "4f4f", "5e5e", "6d6d"):
        assert secret not in texts


def test_a_secret_on_the_command_line_or_in_the_file_is_refused(file: Path) -> None:
    """Other users of the machine see the command line."""
    file.write_text(FILE + SASL)
    error = refusal(file, "kafka.password=hunter2")
    assert "unknown key kafka.password (from --set): secrets do not belong here" in error.problem
    assert "set the environment variable STREAMPAIR_KAFKA__PASSWORD" in error.fix
    assert "hunter2" not in str(error)
    file.write_text(FILE + SASL + 'kafka.password = "hunter2"\n')
    assert "secrets do not belong here" in refusal(file).problem
    assert "hunter2" not in str(refusal(file))


def test_a_secret_that_is_empty_or_given_twice_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMPAIR_KAFKA__PASSWORD", " \n")
    assert "STREAMPAIR_KAFKA__PASSWORD is empty" in refusal(file).problem
    monkeypatch.setenv("STREAMPAIR_KAFKA__PASSWORD", "hunter2")
    monkeypatch.setenv("STREAMPAIR_KAFKA__PASSWORD_FILE", "password")
    assert "are both set" in refusal(file).problem
    assert "hunter2" not in str(refusal(file))
    monkeypatch.setenv("STREAMPAIR_STORE__KEY", "no key")
    monkeypatch.delenv("STREAMPAIR_KAFKA__PASSWORD_FILE")
    with pytest.raises(ConfigError, match="not 64 or more hexadecimal digits"):
        load_config(file).store.sealing_keys()


def test_the_command_draws_a_key(tmp_path: Path) -> None:
    file = tmp_path / "noise.key"
    result = CliRunner().invoke(command, ["key", "--output", str(file)])
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() not in result.output
    assert CliRunner().invoke(command, ["key", "--output", str(file)]).exit_code == 2
