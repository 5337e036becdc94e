"""The configuration: what is taken, what is refused, and that secrets stay secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.support import at_row, in_one_case
from pydantic import SecretStr
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Config, Duration, KafkaConfig, load_config, parse_config
from streampair_connectors.config.secrets import draw_key, read_secret
from streampair_connectors.observability.privacy_card import read_audit
from streampair_connectors.worker.factory import build_lane, build_learner, build_logged_lane, exploration_of
from streampair_connectors.worker.worker import Worker

from streampair.auc import PairFTRL, PairOGD
from streampair.errors import ConfigError, PrivacyError, StreampairError

README = """
app = "fraud"
kafka.bootstrap_servers = "localhost:9092"
input.topic = "events"
input.label = "is_fraud"
input.features = { amount = [0, 1000], age = [0, 120] }
output.topic = "scores"
learner.class = "streampair.auc.PairFTRL"
learner.options = { epsilon = 1.0, delta = 1e-5, horizon = 20000 }
store.directory = "state"
metrics.address = "127.0.0.1:9464"
"""


def minimal(**tables: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "app": "fraud",
        "input": {"topic": "events", "label": "y", "features": ["a", "b"]},
        "learner": {"class": "streampair.auc.PairOGD"},
    }
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return data


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    return str(caught.value)


def test_a_file_is_read_and_its_paths_start_at_it(tmp_path: Path) -> None:
    file = tmp_path / "fraud.toml"
    file.write_text(README)
    config = load_config(file)
    assert config.state_directory == tmp_path / "state"
    assert config.dead_letter_topic == "fraud-dead-letters"
    assert config.input.bounds() == {"amount": (0.0, 1000.0), "age": (0.0, 120.0)}
    assert config.input.negative_label() is False


@pytest.mark.parametrize(
    ("data", "problem", "fix"),
    [
        (
            minimal(kafka={"bootstrap_server": "a:1"}),
            "unknown key kafka.bootstrap_server",
            "write bootstrap_servers",
        ),
        (minimal(input={"lable": "y"}), "unknown key input.lable", "write label"),
        (
            minimal(input={"labels": "any"}),
            "unknown key input.labels",
            "write label or label_type instead of labels",
        ),
        (minimal(lerner={}), "unknown key lerner", "write learner"),
        (minimal(worker={"zzz": 1}), "unknown key worker.zzz", "known keys here: batch_size"),
        (
            minimal(learner={"class": None, "steps": [{"clas": "a.b"}]}),
            "unknown key learner.steps.0.clas",
            "write class",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    data: dict[str, Any], problem: str, fix: str
) -> None:
    message = refusal(data)
    assert problem in message
    assert fix in message


@in_one_case(
    ("data", "problem"),
    [
        ({}, "app is missing"),
        (minimal(app="a b"), "cannot name an application"),
        (minimal(kafka={"bootstrap_servers": "localhost"}), "is not host:port"),
        (
            minimal(kafka={"bootstrap_servers": "a:1", "security_protocol": "SASL_SSL"}),
            "needs sasl_mechanism",
        ),
        (minimal(input={"topic": "a/b"}), "is not a topic name"),
        (minimal(input={"features": []}), "no feature is named"),
        (minimal(input={"features": ["a", "a"]}), "'a' is named twice"),
        (minimal(input={"features": {"a": [1, 0]}}), "the first must be smaller"),
        (minimal(input={"features": {"a": [0, float("inf")]}}), "input.features"),
        (minimal(input={"features": {"a": [0, 1, 2]}}), "input.features.a: list should have at most 2 items"),
        (minimal(input={"features": {"a": [0, "x"]}}), "'a' is declared by texts and others"),
        (minimal(input={"features": {"a": []}}), "'a' has no values"),
        (minimal(input={"features": {"a": ["x", "x"]}}), "'x' is twice among the values of 'a'"),
        (minimal(input={"features": {"a": ["x"], "a=x": [0, 1]}}), "'a=x' is a feature, and the column"),
        (minimal(input={"features": {"a": ["b=c"], "a=b": ["c"]}}), "make a column 'a=b=c'"),
        (minimal(input={"features": {"y": ["x"]}}), "feature 'y' is also the label"),
        (minimal(input={"features": ["y"]}), "feature 'y' is also the label"),
        (minimal(input={"features": ["id"], "id": "id"}), "feature 'id' is also the id"),
        (minimal(input={"id": "y"}), "id and label are the same"),
        (minimal(input={"positive": "fraud"}), "the other label must be named"),
        (minimal(input={"positive": 1, "negative": 1}), "are both 1"),
        (minimal(input={"positive": True, "negative": "yes"}), "are the same label"),
        (minimal(output={"topic": "events"}), "'events' is the topic of events and of scores"),
        (minimal(output={"drift_reference": 1}), "move it to the table in which it is a key: [worker]"),
        (
            minimal(label_input={"topic": "l", "id": {"head": "h"}, "after": "1d", "absent": []}),
            "label_input.id.header is missing; unknown key label_input.id.head; label_input.absent: a label",
        ),
        (minimal(learner={"steps": [{"class": "a.b"}]}), "not both"),
        (minimal(learner={"options": {"noise_key": "00"}}), "noise_key is a secret"),
        (
            minimal(worker={"batch_size": "10"}),
            'worker.batch_size: input should be a valid integer, and is "10"',
        ),
        (
            minimal(metrics={"address": "127.0.0.1:70000"}),
            "metrics.address: '127.0.0.1:70000' is not HOST:PORT",
        ),
        (
            minimal(metrics={"address": "127.0.0.1:9000", "public_address": "0.0.0.0:9000"}),
            "address and public_address have the same port, 9000; give each its own",
        ),
        (minimal(worker={"on_bad": "drop"}), "worker.on_bad"),
        (minimal(topics={"input_partitions": 0}), "topics.input_partitions"),
        (minimal(topics={"partitions": 3}), "unknown key topics.partitions"),
        (minimal(topics={"replication_factor": 1.5}), "topics.replication_factor"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], problem: str) -> None:
    assert problem in refusal(data)


def test_declared_values_are_features_with_public_bounds() -> None:
    config = parse_config(
        minimal(
            input={"features": {"card": ["debit", "credit"], "amount": [0, 9]}},
            learner={"class": "streampair.auc.PairFTRL", "options": {"delta": 1e-5}},
        )
    )
    assert config.input.field_names() == ["card", "amount"]
    assert config.input.feature_names() == ["amount", "card=debit", "card=credit"]
    bounds = {"amount": (0.0, 9.0), "card=debit": (0.0, 1.0), "card=credit": (0.0, 1.0)}
    assert config.input.bounds() == bounds
    learner = build_learner(config)
    assert (learner.features, learner.bounds) == (config.input.feature_names(), bounds)
    # Other values are another model; without any the fingerprint is pinned.
    others = parse_config(minimal(input={"features": {"card": ["debit", "x"], "amount": [0, 9]}}))
    same = parse_config(minimal(input={"features": {"card": ["debit", "credit"], "amount": [0, 9]}}))
    assert others.fingerprint() != same.fingerprint()
    plain = {"app": "a", "input": {"label": "y", "features": {"a": [0, 1]}}}
    plain["learner"] = {"class": "streampair.auc.PairFTRL"}
    assert parse_config(plain).fingerprint() == "a00bde5bd3282df1ce2b87a5544f14c0"


def test_all_problems_are_reported_at_once() -> None:
    problem = refusal(minimal(app="", metrics={"address": "9464"}, output={"topc": "x"}))
    assert "app" in problem
    assert "metrics.address" in problem
    assert "output.topc" in problem


@pytest.mark.parametrize(
    ("text", "problem"), [("app = ", "is not TOML"), (b"\xff", "is not TOML"), (None, "cannot be read")]
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str | bytes | None, problem: str) -> None:
    file = tmp_path / "x.toml"
    if text is not None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError, match=problem):
        load_config(file)


def test_a_file_of_events_is_no_configuration(tmp_path: Path) -> None:
    """Whether it exists or not."""
    for name, content in (("events.csv", "a,y\n1,1\n"), ("events.jsonl", ""), ("missing.json", None)):
        with at_row(name):
            if content is not None:
                (tmp_path / name).write_text(content)
            with pytest.raises(ConfigError, match=f"{name} is no configuration") as caught:
                load_config(tmp_path / name)
            assert f"--file {tmp_path / name}" in caught.value.fix


def test_a_byte_order_mark_is_no_part_of_a_secret_or_an_audit(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\r\n", "utf-8-sig")
    file.chmod(0o600)
    secret = read_secret("kafka.password", file)
    assert secret is not None
    assert secret.get_secret_value() == "s3cret"
    file.write_text("{}", "utf-8-sig")
    assert read_audit(file) == "{}"


def test_the_files_of_secrets_start_at_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "fraud.toml"
    file.write_text(README + 'store.key_file = "store.key"\n')
    draw_key(tmp_path / "store.key")
    assert len(load_config(file).store.sealing_keys()) == 1


def test_relative_paths_start_at_the_base_once() -> None:
    """A base that was relative itself came twice into the paths of the state, the audit and the model."""
    tables = minimal(store={"directory": "states"}, metrics={"audit_file": "audit.json"})
    config = parse_config(tables, base=Path("conf"))
    assert config.state_directory == Path("conf/states").absolute()
    assert config.metrics.audit_file == Path("conf/audit.json").absolute()
    assert parse_config(minimal(), base=Path("conf")).state_directory == Path("conf/state").absolute()


# Secrets


SASL = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "username": "ann",
}


def sasl(**more: Any) -> Config:
    return parse_config(minimal(kafka={**SASL, **more}))


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    file.chmod(0o600)
    for config, expected in (
        (sasl(password_file=str(file)), "hunter2"),
        (sasl(password_file=SecretStr("hunter3")), "hunter3"),
    ):
        password = config.require_kafka().password()
        assert password is not None
        assert password.get_secret_value() == expected
        for text in (repr(config), str(config), repr(password), str(password), config.model_dump_json()):
            assert "hunter" not in text


def test_a_password_in_the_configuration_is_refused_without_showing_it() -> None:
    problem = refusal(minimal(kafka={**SASL, "password": "hunter2"}))
    assert "kafka.password" in problem
    assert "password_file" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_secret_that_is_not_there(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    with pytest.raises(ConfigError, match="password"):
        sasl(password_file=str(file)).require_kafka().password()


def test_a_key_is_hexadecimal_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("ab" * 32)
    file.chmod(0o600)
    config = parse_config(minimal(learner={"noise_key_file": str(file)}))
    assert config.learner.noise_key() == b"\xab" * 32
    file.write_text("open sesame")
    with pytest.raises(ConfigError, match="streampair key --output FILE") as caught:
        config.learner.noise_key()
    assert "sesame" not in str(caught.value)


def test_both_keys_of_a_store_are_made_of_each_line_of_its_file(tmp_path: Path) -> None:
    """Different ones for sealing and signing, of which none is the line itself."""
    file = tmp_path / "store.key"
    draw_key(file)
    old = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    store = parse_config(minimal(store={"key_file": str(file)})).store
    [sealing], [signing] = store.sealing_keys(), store.signing_keys()
    assert len({sealing, signing, bytes.fromhex(old)}) == 3
    assert {len(sealing), len(signing)} == {32}
    file.write_text("cd" * 32 + "\n" + old)
    assert store.sealing_keys()[1:] == [sealing]
    assert store.signing_keys()[1:] == [signing]
    assert len({*store.sealing_keys(), *store.signing_keys()}) == 4


def test_a_key_that_exists_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "store.key"
    draw_key(file)
    old = file.read_text()
    with pytest.raises(ConfigError, match="its first line") as caught:
        draw_key(file)
    assert file.read_text() == old
    assert old.strip() not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be written"):
        draw_key(tmp_path / "nowhere" / "store.key")


def test_the_noise_key_is_not_that_of_the_store() -> None:
    """Scorers have the key of the store, and must not be able to compute the noise; coins have one, too."""
    keys = {"learner": {"noise_key_file": "one.key"}, "store": {"key_file": "one.key"}}
    assert "are the same key" in refusal(minimal(**keys))
    explores = {"explore": 0.02, "alert_above": 0.5, "explore_key_file": "one.key"}
    assert "draw another one" in refusal(minimal(output=explores, store={"key_file": "one.key"}))


def test_events_are_explored_above_a_threshold_with_a_secret_and_a_label_of_stopped_ones(
    tmp_path: Path,
) -> None:
    output: dict[str, Any] = {
        "explore": 0.02,
        "alert_above": 0.5,
        "explore_key_file": tmp_path / "explore.key",
    }
    labels = {"topic": "l", "id": "key", "label": "y", "after": "1d", "absent": False, "stopped": "gone"}
    for missing, fix in (
        ({"explore_key_file": None}, "explore needs explore_key_file"),
        ({"explore": None}, "explore_key_file needs explore"),
        ({"alert_above": None}, "the score from which on events are stopped"),
        ({"explore": 1}, "output.explore: input should be less than 1, and is 1"),
        ({"explore": -0.5}, "output.explore: input should be greater than 0, and is -0.5"),
        ({"explore": "5%"}, "write explore = 0.05"),
        ({}, "output.explore needs label_input.stopped"),  # and [label_input]
    ):
        assert fix in refusal(minimal(output={k: v for k, v in (output | missing).items() if v is not None}))
    data = minimal(output=output, label_input=labels)
    del data["input"]["label"]
    assert "needs label_input.stopped" in refusal({**data, "label_input": {**labels, "stopped": None}})
    config = parse_config(data)
    with pytest.raises(ConfigError, match="streampair key --output"):
        exploration_of(config)
    draw_key(tmp_path / "explore.key")
    explore = exploration_of(config)
    assert explore is not None
    assert (explore.now.threshold, explore.now.share) == (0.5, 0.02)
    assert (tmp_path / "explore.key").read_text().strip() not in f"{config!r} {vars(explore)['now']!r}"
    build_lane(config, lambda record: record)  # of files: nothing is explored
    worker = Worker(parse_config({**data, "kafka": {"bootstrap_servers": "localhost:1"}}))
    (tmp_path / "explore.key").unlink()
    draw_key(tmp_path / "explore.key")  # replaced under a worker
    kept, other = exploration_of(worker.config), exploration_of(config)
    assert kept is not None
    assert other is not None
    assert kept.now == explore.now != other.now
    weighs = build_logged_lane(worker.config, lambda record: record)._batch.exploration
    assert weighs is not None
    assert weighs.now == explore.now
    private = {"class": "streampair.auc.PairFTRL", "options": {"epsilon": 1.0, "delta": 1e-6, "horizon": 99}}
    data["input"]["features"] = {"a": [0, 1]}
    private["options"]["auc_share"] = 0.2  # type: ignore[index]
    with pytest.raises(PrivacyError, match="remove auc_share"):
        build_lane(parse_config({**data, "learner": private}), lambda record: record)


# Durations


def test_a_duration_is_a_text_with_its_unit() -> None:
    texts = {"0s": 0, "500ms": 500, "90s": 90_000, "15m": 900_000, "6h": 21_600_000, "30d": 2_592_000_000}
    for text, milliseconds in texts.items():
        assert Duration.of(text) == milliseconds
        assert str(Duration(milliseconds)) in (text, "90s")

    def refused(value: object) -> str:
        return refusal(minimal(kafka={"bootstrap_servers": "a:1", "session_timeout": value}))

    for wrong in (None, True, -30, float("nan"), "30", "1.5h", "-1s", "30 s", "30sec", ""):
        assert f"kafka.session_timeout: {wrong!r} is not a duration; write a whole number and its unit" in (
            refused(wrong)
        )
    for number, text in {30: "30s", 1.5: "1500ms", 0.25: "250ms"}.items():
        assert f'kafka.session_timeout: {number} has no unit; write "{text}" if it is in seconds' in (
            refused(number)
        )
    assert "999ms is too short; write at least 1s" in refused("999ms")


# Static membership


def test_the_name_in_the_group() -> None:
    def named(**more: object) -> KafkaConfig:
        servers = {"bootstrap_servers": "localhost:9092"}
        return parse_config(minimal(kafka={**servers, **more})).require_kafka()

    assert named().group_instance_id is None
    assert named(group_instance_id="worker-0").group_instance_id == "worker-0"
    for wrong in ("", "a b", "..", "x" * 250):
        with pytest.raises(ConfigError, match="not a group instance id"):
            named(group_instance_id=wrong)
    with pytest.raises(ConfigError, match=r"kafka\.max_poll_interval: 500ms is too short"):
        named(max_poll_interval=Duration.of("500ms"))


# The learner


def test_declared_features_bounds_and_labels_reach_our_own_learners() -> None:
    learner = build_learner(
        parse_config(
            minimal(
                input={"features": {"a": [0, 2]}, "positive": "bad", "negative": "good"},
                learner={"class": "streampair.auc.PairFTRL", "options": {"horizon": 100, "delta": 1e-4}},
            )
        )
    )
    assert isinstance(learner, PairFTRL)
    assert learner.positive == "bad"
    assert learner.bounds == {"a": (0.0, 2.0)}
    assert list(learner.features) == ["a"]


def test_ranking_needs_more_than_two_labels() -> None:
    learner = {"class": "streampair.ranking.PairOGD", "options": {"relevance": [0, 4]}}
    data = {"app": "grades", "input": {"label": "grade"}, "learner": learner}
    with pytest.raises(ConfigError, match=r'two labels.*Fix: add label_type = "any" to'):
        build_learner(Config.model_validate(data))
    config = Config.model_validate({**data, "input": {"label": "grade", "label_type": "any"}})
    model = build_learner(config)
    model.learn_one({"a": 1.0}, 4)
    assert model.relevance == [0, 4]
    # A label that ranks high needs no other one then.
    Config.model_validate({**data, "input": {"label": "grade", "label_type": "any", "positive": "a"}})
    assert config.fingerprint() != Config.model_validate({**data, "input": {"label": "grade"}}).fingerprint()


def test_labels_that_come_later_are_of_two_classes() -> None:
    late = {
        "app": "fraud",
        "input": {"features": ["a", "b"]},
        "label_input": {"topic": "grades", "id": "key", "label": "grade", "after": "1d"},
        "learner": {"class": "streampair.auc.MulticlassForest"},
    }
    assert build_learner(parse_config(late)) is not None
    several = {**late, "input": {"features": ["a", "b"], "label_type": "any"}}
    with pytest.raises(ConfigError, match="labels that come later are of two classes"):
        parse_config(several)
    ranks = parse_config({**late, "learner": {"class": "streampair.ranking.PairOGD"}})
    with pytest.raises(ConfigError, match=r"learns from relevances.*Fix: name a learner of two classes"):
        build_learner(ranks)
    private = {"epsilon": 1.0, "delta": 1e-6, "horizon": 1000, "classes": ["red", "blue"]}
    data = {
        "app": "c",
        "input": {"features": {"a": [0, 1]}, "label": "y"},
        "learner": {"class": "streampair.metric.PairFTRL", "options": private},
    }
    with pytest.raises(
        ConfigError, match=r"classes is \['red', 'blue'\], but.*Fix: add label_type = \"any\""
    ):
        build_learner(parse_config(data))
    assert build_learner(parse_config({**data, "input": {**data["input"], "label_type": "any"}})) is not None
    later = {**data, "input": {"features": {"a": [0, 1]}}, "label_input": late["label_input"]}
    with pytest.raises(ConfigError, match=r"Fix: write learner.options.classes = \[true, false\]"):
        build_learner(parse_config(later))


def test_options_may_hold_objects() -> None:
    options = {
        "loss": {"class": "streampair.losses.Logistic"},
        "buffer": {"class": "streampair.buffers.Reservoir", "size": 7},
        "seed": 3,
    }
    learner = build_learner(parse_config(minimal(learner={"options": options})))
    assert isinstance(learner, PairOGD)
    assert type(learner.loss).__name__ == "Logistic"
    assert learner.buffer.size == 7
    assert learner.seed == 3


def test_steps_make_a_pipeline() -> None:
    steps = [
        {"class": "river.preprocessing.StandardScaler"},
        {"class": "streampair.auc.PairOGD", "options": {"seed": 1}},
    ]
    data = minimal(learner={"steps": steps})
    del data["learner"]["class"]
    model = build_learner(parse_config(data))
    assert list(model.steps) == ["StandardScaler", "PairOGD"]


def stepped(*steps: dict[str, Any]) -> Any:
    data = minimal(learner={"steps": [*steps, {"class": "streampair.auc.PairOGD"}]})
    del data["learner"]["class"]
    return parse_config(data)


def test_arguments_without_a_name_are_lists() -> None:
    """Fields of a `Select`, parts of a union, steps of a pipeline, types of a `SelectType`."""
    scaled = [
        {"class": "river.compose.Select", "keys": ["a", "b"]},
        {"class": "river.preprocessing.MaxAbsScaler"},
    ]
    parts = [
        {"class": "river.compose.Pipeline", "steps": scaled},
        {"class": "river.compose.SelectType", "types": ["str"]},
    ]
    union = {"class": "river.compose.TransformerUnion", "options": {"transformers": parts}}
    model = build_learner(stepped(union))
    x = {"a": 1.0, "b": 2.0, "c": 3.0, "d": "text"}
    model.learn_one({"a": 2.0, "b": 2.0, "c": 3.0}, True)
    assert model["TransformerUnion"].transform_one(x) == {"a": 0.5, "b": 1.0, "d": "text"}


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"class": "river.compose.Select", "options": {"keys": "a"}}, "keys of Select is no list"),
        ({"class": "river.compose.SelectType", "options": {"types": ["os"]}}, "selects no type 'os'"),
    ],
)
def test_arguments_without_a_name_are_checked(step: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_learner(stepped(step))


@pytest.mark.parametrize(
    ("learner", "problem"),
    [
        ({"class": "PairOGD"}, "is not an import path"),
        ({"class": "streampair.nothing.PairOGD"}, "cannot be imported"),
        (
            {"class": "streampair.auc.PairOGG"},
            "has no class 'PairOGG'. Fix: write class = .streampair.auc.PairOGD",
        ),
        ({"options": {"radios": 2.0}}, "has no option 'radios'. Fix: write radius"),
        ({"options": {"radius": -1.0}}, "radius"),
        (
            {"options": {"buffer": {"class": "streampair.buffers.FIFO", "sise": 1}}},
            "has no option 'sise'. Fix: write size",
        ),
        ({"class": "river.linear_model.LogisticRegression"}, "allow_pickle"),
        ({"class": "river.linear_model.LogisticRegression", "allow_pickle": True}, "key"),
        ({"class": "river.preprocessing.StandardScaler"}, "score"),
    ],
)
def test_a_learner_that_cannot_be_used(learner: dict[str, Any], problem: str) -> None:
    config = parse_config(minimal(learner=learner))
    with pytest.raises(ConfigError, match=problem.replace("?", r"\?")):
        build_lane(config, json_decoder(config.input))


def test_a_scaler_in_front_of_a_private_learner_is_refused() -> None:
    steps = [
        {"class": "river.preprocessing.StandardScaler"},
        {"class": "streampair.auc.PairFTRL", "options": {"horizon": 100, "delta": 1e-4}},
    ]
    data = minimal(learner={"steps": steps})
    del data["learner"]["class"]
    config = parse_config(data)
    with pytest.raises(PrivacyError):
        build_lane(config, json_decoder(config.input))


def test_the_fingerprint_follows_the_meaning_and_nothing_else() -> None:
    base = parse_config(minimal())
    for harmless in (
        {"metrics": {"address": "127.0.0.1:1"}},
        {"worker": {"batch_size": 7}},
        {"output": {"topic": "s"}},
    ):
        assert parse_config(minimal(**harmless)).fingerprint() == base.fingerprint()
    for change in (
        {"input": {"features": ["b", "a"]}},
        {"input": {"label": "z"}},
        {"input": {"max_event_bytes": 1_000}},
        {"input": {"positive": False}},
        {"learner": {"options": {"radius": 2.0}}},
        {"learner": {"class": "streampair.auc.PairFTRL"}},
    ):
        assert parse_config(minimal(**change)).fingerprint() != base.fingerprint(), change


def test_settings_are_named_as_in_the_file() -> None:
    features = [f"feature_{number}" for number in range(100)]
    steps = [
        {"class": "river.preprocessing.StandardScaler"},
        {"class": "streampair.auc.PairOGD", "options": {"radius": 2.0}},
    ]
    data = minimal(input={"features": features, "label": "fraud"}, learner={"steps": steps})
    del data["learner"]["class"]
    settings = parse_config(data).model_settings()
    assert settings["input.label"] == '"fraud"'
    assert settings["learner.steps[1].options.radius"] == "2.0"
    text = settings["input.features"]
    assert text.startswith('["feature_0","feature_1"')
    assert "... (1,291 bytes, digest " in text
    features[-1] = "another"
    assert (
        parse_config(data | {"input": {**data["input"], "features": features}}).model_settings() != settings
    )


def test_what_was_made_with_other_settings_is_refused_with_what_differs() -> None:
    base, other = parse_config(minimal()), parse_config(minimal(learner={"options": {"radius": 2.0}}))
    base.check_settings("the model", base.fingerprint(), {})
    for known, message in (
        (
            other.model_settings(),
            r"^the model was made.*\[input\]: learner.options.radius was 2.0, now it is not set\. Fix",
        ),
        (None, r"other settings of \[learner\] or \[input\]\. Fix: use"),
    ):
        with pytest.raises(ConfigError, match=message):
            base.check_settings("the model", other.fingerprint(), known)


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(ConfigError, StreampairError)
