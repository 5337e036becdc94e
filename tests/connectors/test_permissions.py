"""Keys and state that others may read are refused, with the command that mends it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from streampair_connectors.config import KafkaConfig, parse_config
from streampair_connectors.config.secrets import _refused_bits, check_directory, check_private
from streampair_connectors.kafka.client import client_options
from streampair_connectors.stores import DirectoryStore

from streampair.errors import ConfigError, StoreError, StreampairError

KEY = "ab" * 32


def mend(error: StreampairError) -> None:
    """Do what the message says."""
    assert error.fix is not None
    command = error.fix.partition(";")[0].partition(", or")[0].partition(". If")[0]
    assert command.startswith("chmod ")
    subprocess.run(["/bin/sh", "-c", command], check=True)


def naive(mode: int, root: bool) -> bool:
    """Whether the text of the rule accepts a key file: character by character of what ``ls -l`` shows."""
    text = stat.filemode(stat.S_IFREG | mode)
    of_group, of_others = text[4:7].lower().replace("s", "x"), text[7:10].lower().replace("t", "x")
    if of_others not in ("---", "--t"):
        return False
    return of_group == "---" or (root and of_group == "r--")


def test_the_rule_for_every_mode() -> None:
    for mode in range(0o1000):
        for root in (False, True):
            accepted = not _refused_bits(mode, owned_by_root=root)
            assert accepted == naive(mode, root), (oct(mode), root)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o601, 0o660, 0o620])
def test_a_key_that_others_may_read_is_refused_and_the_command_mends_it(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "a key's file"
    file.write_text(KEY)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}") as caught:
        check_private(file, "noise key")
    mend(caught.value)
    check_private(file, "noise key")
    assert file.read_text() == KEY


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_of_its_owner_is_taken(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(mode)
    check_private(file, "noise key")
    with pytest.raises(ConfigError, match="is a directory"):  # chmod would close it
        check_private(tmp_path, "noise key")


def test_a_secret_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    """A link to a link, the file root's, its group from fsGroup: 0440 is taken, the default of 0644 not."""
    version = tmp_path / "..2026_01_01"
    version.mkdir()
    file = version / "noise-key"
    file.write_text(KEY)
    (tmp_path / "..data").symlink_to(version.name)
    link = tmp_path / "noise-key"
    link.symlink_to("..data/noise-key")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        check_private(link, "noise key")
    file.chmod(0o400)
    check_private(link, "noise key")
    if os.geteuid() != 0:  # nobody else can make a file of root's; the rule itself is tested above
        return
    os.chown(file, 0, 10001)
    for mode in (0o440, 0o400, 0o640):
        file.chmod(mode)
        check_private(link, "noise key")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="defaultMode: 0440"):
        check_private(link, "noise key")
    # The same mode on a file of another user is no mount of a secret.
    file.chmod(0o440)
    os.chown(file, 10001, 10001)
    with pytest.raises(ConfigError, match="its group may read it"):
        check_private(link, "noise key")


SASL = {
    "bootstrap_servers": "localhost:9092",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "username": "me",
}


def store_key(file: Path) -> object:
    learner = {"class": "streampair.auc.PairOGD"}
    tables = {"app": "a", "input": {"label": "y"}, "learner": learner, "store": {"key_file": str(file)}}
    return parse_config(tables).store.signing_keys()


def noise_key(file: Path) -> object:
    learner = {"class": "streampair.auc.PairOGD", "noise_key_file": str(file)}
    return parse_config({"app": "a", "input": {"label": "y"}, "learner": learner}).learner.noise_key()


def password(file: Path) -> object:
    return KafkaConfig.model_validate({**SASL, "password_file": str(file)}).password()


@pytest.mark.parametrize("read", [store_key, noise_key, password])
def test_every_secret_of_a_configuration(tmp_path: Path, read: Callable[[Path], object]) -> None:
    file = tmp_path / "secret"
    file.write_text(KEY)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="every user of this machine may read it") as caught:
        read(file)
    assert KEY not in str(caught.value)
    file.chmod(0o600)
    assert read(file) is not None
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "nothing")


def test_the_key_of_a_tls_certificate(tmp_path: Path) -> None:
    """Refused before it is looked at; a private one is opened (and here is no certificate)."""
    file = tmp_path / "client.pem"
    file.write_text("no certificate")
    settings = KafkaConfig(
        bootstrap_servers="localhost:9092", security_protocol="SSL", ssl_certfile=file, ssl_keyfile=None
    )
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="the TLS key file"):
        client_options(settings)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        client_options(settings)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701, 0o770, 0o1777])
def test_a_directory_that_others_may_reach_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "our state"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(StoreError, match=f"mode {mode:04o}") as caught:
        DirectoryStore(directory)
    mend(caught.value)
    DirectoryStore(directory).probe()


@pytest.mark.parametrize("mode", [0o770, 0o2770, 0o750])
def test_a_group_that_may_reach_it_is_refused(tmp_path: Path, mode: int) -> None:
    """As Kubernetes opens a volume; the message says how to stop that."""
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match=r"its group may .* fsGroupChangePolicy: OnRootMismatch") as caught:
        check_directory(tmp_path)
    mend(caught.value)
    check_directory(tmp_path)


def test_a_directory_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        DirectoryStore(tmp_path / "new" / "state")
    finally:
        os.umask(old)
    check_directory(tmp_path / "new" / "state")
