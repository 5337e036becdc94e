"""Apache Kafka for the tests: real brokers in KRaft mode.

A real broker is a Java process of this user's, started from jars that Maven resolves once from ``pom.xml``
(kept in ``.cache/kafka/<version>/``; later runs need no network). It listens on free loopback ports, keeps
its data in a temporary directory, and is ended by its process id only. ``kill`` is ``kill -9``; ``start``
after it comes back on the same port with the same data. Most of a start would be the reading and checking of
classes: the first start of all leaves them as the JVM keeps them, beside the jars, for every one after it.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import functools
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import support
from harness.kafka import Cluster, Unavailable, complete, create_topic
from harness.maven import alone, fetched

POM = Path(__file__).with_name("pom.xml")
CACHE = (support.CACHE / "kafka").resolve()  # the JVM knows the classes that it kept by the path of the jars
PROFILES = {"3.9": "kafka-3.9", "4.x": "kafka-4"}
"""The versions that users run: name in the tests -> Maven profile."""

# Kafka 4.3.1 takes partitions without a leader for deleted ones, as after a `kill`. It logs this, does not
# write the end of a transaction to them, and completes the transaction.
LOST_END = "Couldn't find leader endpoint for partitions"

START_SECONDS = 120.0
STOP_SECONDS = 60.0


# ---- jars ----------------------------------------------------------------------------------------


def version_of(name: str) -> str:
    """Full version of Apache Kafka behind a tier's name, read from ``pom.xml``: "3.9" -> "3.9.2"."""
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    for profile in ET.parse(POM).getroot().findall("m:profiles/m:profile", namespace):
        if profile.findtext("m:id", namespaces=namespace) == PROFILES[name]:
            version = profile.findtext("m:properties/m:kafka.version", namespaces=namespace)
            assert version is not None
            return version
    raise KeyError(name)


@functools.cache
def java() -> tuple[str, str]:
    """Path of a Java runtime that Kafka 4 accepts (17 or newer), and what it says of itself."""
    hint = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME", "")
    for candidate in (shutil.which("java"), str(Path(home, "bin", "java")) if home else None):
        if candidate is None or not Path(candidate).exists():
            continue
        completed = subprocess.run([candidate, "-version"], capture_output=True, text=True, check=False)
        found = re.search(r'version "(\d+)', completed.stderr + completed.stdout)
        if found and int(found[1]) >= 17:
            return candidate, completed.stderr + completed.stdout
    raise Unavailable("Apache Kafka", hint)


def jars(name: str) -> Path:
    """Directory with the jars of one Kafka version: from the cache, else resolved by Maven into it."""
    version = version_of(name)
    options = ["-DincludeScope=runtime", "-DoutputDirectory={folder}"]
    arguments = ["-P", PROFILES[name], "dependency:copy-dependencies", *options]
    return fetched(f"Apache Kafka {version}", POM, CACHE / version, arguments)


def classes(name: str) -> list[str]:
    """Options of a JVM that maps the classes of a broker into memory, as the first broker of all left them.

    None where this Java cannot.
    """
    folder, (_, version) = jars(name), java()
    if "sharing" not in version:
        return []
    stamp = hashlib.sha256(f"{folder}\n{version}".encode()).hexdigest()[:16]
    kept = folder / f"{stamp}.jsa"
    with alone(folder / ".keeping"):
        if not kept.exists():
            for old in folder.glob("*.jsa"):  # of another Java, or of a directory that was moved
                old.unlink()
            fresh = kept.with_suffix(".part.jsa")
            broker = KafkaBroker(name, keep=fresh)
            broker.create_topic("first")  # what a broker loads for its first client is kept too
            broker.stop()
            broker.close()
            fresh.rename(kept)
    return [f"-XX:SharedArchiveFile={kept}"]


# ---- Apache Kafka --------------------------------------------------------------------------------

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=4194304
"""

_LOG4J1 = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""

_LOG4J2 = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""

_QUIET1 = "log4j.rootLogger=ERROR, out\n" + _LOG4J1.partition("\n")[2]
_QUIET2 = _LOG4J2.replace("rootLogger.level = info", "rootLogger.level = error")


def free_ports(count: int) -> list[int]:
    """Free ports that stay free while the broker is down.

    Not from the range that outgoing connections take theirs from: a client that tries again and again to
    reach a port of that range is in the end given it as its own, connects to itself, and keeps it.
    """
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32768
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(min(15000, lowest - 5000), lowest)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def guard(pid: int) -> subprocess.Popen[bytes]:
    """A shell that kills a process if this one is killed: its standard input then ends. See `dismiss`."""
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -9 {pid}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def dismiss(shell: subprocess.Popen[bytes]) -> None:
    """End a guard, before the id of its process is free for another one."""
    shell.kill()
    shell.communicate()


class _Life:
    """What is known of one process of a broker."""

    def __init__(self) -> None:
        self.started = False
        self.decided = threading.Event()  # it is up, or it has ended


class KafkaBroker(Cluster):
    """One Apache Kafka broker and controller in one process (KRaft), on loopback.

    Parameters
    ----------
    name
        A key of ``PROFILES``: "3.9" or "4.x".
    heap
        Limit of the JVM's heap, as ``-Xmx`` takes it.
    settings
        Further server properties, ``{"message.max.bytes": "2000000"}``.
    jvm
        Further options of the JVM.
    listeners
        Further listeners: the security protocol of each, by a name in capitals. ``addresses`` has where they
        are.
    keep
        Where to leave the classes at the end, instead of taking those that are kept: see `classes`.
    joins
        Another broker, to whose cluster this one is added; None: it is a cluster of its own.
    """

    kind = "kafka"
    real = True

    def __init__(
        self,
        name: str,
        *,
        heap: str = "384m",
        settings: dict[str, str] | None = None,
        jvm: Sequence[str] = (),
        listeners: dict[str, str] | None = None,
        keep: Path | None = None,
        joins: KafkaBroker | None = None,
    ) -> None:
        self.version = version_of(name)
        self._java, _ = java()
        self._jars = jars(name)
        self._jvm = [*jvm, *(classes(name) if keep is None else [f"-XX:ArchiveClassesAtExit={keep}"])]
        self._heap = heap
        self._work = Path(tempfile.mkdtemp(prefix=f"kafka-{self.version}-"))
        self._process: subprocess.Popen[str] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: collections.deque[str] = collections.deque(maxlen=2000)
        self._reader: threading.Thread | None = None
        self._lost_end = threading.Event()
        more = listeners or {}
        port, controller, *ports = free_ports(2 + len(more))
        self.bootstrap = f"127.0.0.1:{port}"
        self.controller = f"127.0.0.1:{controller}"
        self.addresses = {name: f"127.0.0.1:{port_of}" for name, port_of in zip(more, ports, strict=True)}
        text = _SETTINGS.format(port=port, controller=controller, data=self._work / "data")
        if not self.version.startswith("3."):
            text += "share.coordinator.state.topic.replication.factor=1\n"
            text += (
                "share.coordinator.state.topic.min.isr=1\nshare.coordinator.state.topic.num.partitions=1\n"
            )
        # Of two lines with one key the last counts.
        if joins is not None:
            text += f"process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://{self.bootstrap}\n"
            text += f"controller.quorum.voters=1@{joins.controller}\n"
        if more:
            ours = [f"{name}://{address}" for name, address in self.addresses.items()]
            client_address = f"PLAINTEXT://127.0.0.1:{port}"
            text += f"listeners={','.join([client_address, f'CONTROLLER://127.0.0.1:{controller}', *ours])}\n"
            text += f"advertised.listeners={','.join([client_address, *ours])}\n"
            kinds = [f"{name}:{protocol}" for name, protocol in more.items()]
            text += "listener.security.protocol.map="
            text += f"{','.join(['PLAINTEXT:PLAINTEXT', 'CONTROLLER:PLAINTEXT', *kinds])}\n"
        text += "".join(f"{key}={value}\n" for key, value in (settings or {}).items())
        self._settings = self._work / "server.properties"
        self._settings.write_text(text)
        for file, content in {
            "server.log4j.properties": _LOG4J1,
            "server.log4j2.properties": _LOG4J2,
            "tool.log4j.properties": _QUIET1,
            "tool.log4j2.properties": _QUIET2,
        }.items():
            (self._work / file).write_text(content)
        atexit.register(self.close)
        self.tool(
            "kafka.tools.StorageTool",
            ["format", "--cluster-id", "c3RyZWFtcGFpci10ZXN0cw", "--config", str(self._settings)],
        )
        self.start()

    def _command(self, main: str, arguments: Sequence[str], *, heap: str, logging: str) -> list[str]:
        one, two = self._work / f"{logging}.log4j.properties", self._work / f"{logging}.log4j2.properties"
        return [
            self._java,
            *self._jvm,
            "-Xlog:disable",  # of the JVM itself, which else warns of each class that it cannot keep
            *(
                f"-Xmx{heap}",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1" if logging == "tool" else "-Xms128m",
            ),
            "-Djava.awt.headless=true",
            f"-Dlog4j.configuration=file:{one}",
            f"-Dlog4j2.configurationFile={two}",
            *("-cp", f"{self._jars}/*", main, *arguments),
        ]

    # -- life ------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Process id of the broker, None when it is down."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        if self._process is not None:
            return
        self._process = process = subprocess.Popen(
            self._command("kafka.Kafka", [str(self._settings)], heap=self._heap, logging="server"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self._work,
            start_new_session=True,  # Ctrl-C in a terminal must not end it before the tests let go of it
        )
        self._guard = guard(process.pid)
        life = _Life()  # one for each process: what the one before says at its end is not said of this one
        self._reader = threading.Thread(target=self._read_log, args=(process, life), daemon=True)
        self._reader.start()
        life.decided.wait(START_SECONDS)
        if not life.started:
            tail = self.log_tail()
            self.kill()
            raise RuntimeError(f"Apache Kafka {self.version} did not start:\n{tail}")
        complete(_answers(self.bootstrap))

    def _read_log(self, process: subprocess.Popen[str], life: _Life) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._log.append(line.rstrip("\n"))
                if LOST_END in line:
                    self._lost_end.set()
                    support.note_used("transactions whose end a broker left out", self.version)
                if "Kafka Server started" in line:
                    life.started = True
                    life.decided.set()
        life.decided.set()

    def _finish_log(self) -> None:
        if self._reader is not None:
            self._reader.join()
            self._reader = None

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            dismiss(self._guard)
            self._guard = None

    def stop(self) -> None:
        if self._process is not None:
            self._dismiss_guard()
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
            self._finish_log()

    def kill(self) -> None:
        if self._process is not None:
            self._dismiss_guard()
            self._process.kill()
            self._process.wait()
            self._process = None
            self._finish_log()

    def freeze(self) -> None:
        """Stop it as it stands, and return when all of its threads have: until then it may answer.

        `thaw` lets it go on.
        """
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        while any(_state(thread) not in "TZ" for thread in threads.iterdir()):
            threading.Event().wait(0.001)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def ensure_running(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        self.start()

    def close(self) -> None:
        # nothing on its disk is wanted any more, so there is no point in waiting for a shutdown in good order
        self.kill()
        shutil.rmtree(self._work, ignore_errors=True)
        atexit.unregister(self.close)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(list(self._log)[-lines:])

    # -- Kafka's own tools -----------------------------------------------------------------------------

    def tool(
        self, main: str, arguments: Sequence[str], *, stdin: str | None = None, timeout: float = 120
    ) -> str:
        """Run one of Kafka's command-line tools by its main class; return what it printed."""
        done = subprocess.run(
            self._command(main, arguments, heap="192m", logging="tool"),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self._work,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @property
    def lost_end(self) -> bool:
        """Whether its log says that it did not write the end of a transaction somewhere."""
        return self._lost_end.is_set()

    def hanging(self, broker: int = 1) -> list[list[str]]:
        """What ``kafka-transactions.sh find-hanging`` prints of a broker: heads, then a row a partition."""
        words = ("find-hanging", "--broker-id", str(broker), "--max-transaction-timeout", "0")
        return [line.split() for line in self._transactions(*words).splitlines() if line.strip()]

    def _transactions(self, *words: str) -> str:
        main = "org.apache.kafka.tools.TransactionsCommand"
        return self.tool(main, ["--bootstrap-server", self.bootstrap, *words])

    def move_group_offsets(self, broker: int) -> None:
        """Give the topic of the groups' offsets to another broker of the cluster."""
        place = {"topic": "__consumer_offsets", "partition": 0, "replicas": [broker]}
        plan = self._work / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [place]}))
        main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        common = ("--bootstrap-server", self.bootstrap, "--reassignment-json-file", str(plan))
        self.tool(main, [*common, "--execute"])
        while "is completed" not in self.tool(main, [*common, "--verify"]):
            pass

    def deny(self, operation: str, *resource: str) -> None:
        """Forbid everybody one operation on something, as ``kafka-acls.sh --add --deny-principal`` does."""
        main = "kafka.admin" if self.version.startswith("3.") else "org.apache.kafka.tools"
        common = ("--bootstrap-server", self.bootstrap, "--add", "--force", *resource)
        # a resource with any rule allows only what a rule of it allows
        for rule in (("--allow-principal", "All"), ("--deny-principal", operation)):
            self.tool(f"{main}.AclCommand", [*common, rule[0], "User:*", "--operation", rule[1]])

    def console_producer(self, topic: str, lines: Iterable[str], *arguments: str) -> None:
        """What ``kafka-console-producer.sh --topic TOPIC`` does with ``lines`` on its standard input."""
        main = (
            "kafka.tools.ConsoleProducer"
            if self.version.startswith("3.")
            else "org.apache.kafka.tools.ConsoleProducer"
        )
        text = "".join(f"{line}\n" for line in lines)
        self.tool(main, ["--bootstrap-server", self.bootstrap, "--topic", topic, *arguments], stdin=text)

    def console_consumer(self, topic: str, count: int, *arguments: str, timeout: float = 60) -> list[str]:
        """First ``count`` records of a topic, printed as ``kafka-console-consumer.sh`` does."""
        result = self.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            [
                *("--bootstrap-server", self.bootstrap, "--topic", topic, "--from-beginning"),
                *("--max-messages", str(count), "--timeout-ms", str(int(timeout * 1000)), *arguments),
            ],
            timeout=timeout + 60,
        )
        return result.splitlines()


def _state(thread: Path) -> str:
    """State of a thread: R, S, D, T (stopped), Z."""
    try:
        # The name before it may hold blanks and brackets.
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


async def _answers(bootstrap: str) -> None:
    """Return when the broker answers a metadata request; its own log said before that it is up."""
    from aiokafka.admin import AIOKafkaAdminClient

    deadline = time.monotonic() + 30
    while True:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            await admin.list_topics()
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        finally:
            await admin.close()


class TwoBrokers(Cluster):
    """A cluster of two brokers, of which the second has the last partition of each topic with several.

    Parameters
    ----------
    name
        As of `KafkaBroker`.

    Attributes
    ----------
    first, second
        All else, as groups and transactions, is on the first, which is the controller too.
    """

    kind = "kafka"

    def __init__(self, name: str) -> None:
        jvm = ["-XX:TieredStopAtLevel=1"]
        self.first = KafkaBroker(name, jvm=jvm)
        self.version, self.bootstrap = self.first.version, self.first.bootstrap
        try:
            complete(self._begin())
            self.second = KafkaBroker(name, jvm=jvm, joins=self.first)
        except BaseException:
            self.first.close()
            raise

    async def _begin(self) -> None:
        """Let the topics of groups and transactions be made, while there is one broker."""
        from aiokafka import AIOKafkaProducer, TopicPartition

        self.first.create_topic("first")
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id="first")
        async with producer, producer.transaction():
            await producer.send_offsets_to_transaction({TopicPartition("first", 0): 0}, "first")

    def create_topic(self, name: str, partitions: int = 1, **options: str) -> str:
        places = {p: [2 if 0 < p == partitions - 1 else 1] for p in range(partitions)}
        configs = {key.replace("_", "."): value for key, value in options.items()}
        complete(create_topic(self.bootstrap, name, partitions, configs, places))
        return name

    def log_tail(self, lines: int = 30) -> str:
        return f"{self.first.log_tail(lines)}\nthe second one:\n{self.second.log_tail(lines)}"

    def ensure_running(self) -> None:
        self.first.ensure_running()
        self.second.ensure_running()

    def close(self) -> None:
        self.second.close()
        self.first.close()


if __name__ == "__main__":
    for tier in PROFILES:
        classes(tier)
        print(f"Apache Kafka {version_of(tier)}: {jars(tier)}")
