"""Embedded Kafka broker: librdkafka's mock cluster, for the demo and the tests.

It serves topics, groups and offsets by Kafka's protocol on a local port. It keeps about 5 MB a partition in
memory, does not fence writers and loses everything when closed. It finds no record by its time, so a worker
that is started again does not read the labels that came before. For durable data use Apache Kafka.
"""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

from streampair.errors import SourceError

__all__ = ["EmbeddedBroker"]

_PRODUCER = 0  # RD_KAFKA_PRODUCER: the kind of the handle that owns the cluster


def _library() -> Any:
    try:
        from confluent_kafka import cimpl
    except ImportError:
        raise SourceError(
            "the embedded broker needs the package confluent-kafka, which is not installed",
            fix="pip install '.[demo]' in the clone, or pip install confluent-kafka",
            retriable=False,
        ) from None
    # The extension module gives access to the symbols of its librdkafka. The Python binding cannot create a
    # topic with one partition.
    library = ctypes.CDLL(cimpl.__file__)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set_log_cb", None, [pointer, pointer]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_broker_set_down", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [pointer, ctypes.c_int32]),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, [pointer, ctypes.c_int32]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class EmbeddedBroker:
    """One broker on a free local port, stopped by `close` or at the end of a `with` block.

    Raises
    ------
    SourceError
        confluent-kafka is missing, or librdkafka cannot open a port.

    Examples
    --------
    >>> with EmbeddedBroker() as broker:
    ...     broker.create_topic("events", partitions=1)
    ...     broker.bootstrap_servers.startswith("127.0.0.1:")
    True
    """

    def __init__(self) -> None:
        self._library = _library()
        self._handle: int | None = None
        self._cluster: int | None = None
        message = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        # Without a callback its log would be printed to the terminal.
        self._library.rd_kafka_conf_set_log_cb(settings, None)
        self._handle = self._library.rd_kafka_new(_PRODUCER, settings, message, len(message))
        if not self._handle:
            raise SourceError(
                f"the embedded broker cannot start: {message.value.decode()}",
                fix="report it with the version of confluent-kafka",
                retriable=False,
            )
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        if not self._cluster:
            self.close()
            raise SourceError(
                "the embedded broker cannot open a local port",
                fix="allow this process to listen on 127.0.0.1",
            )
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.bootstrap_servers = servers.decode()
        """Its address, `host:port`."""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create an empty topic. A topic that a client requests first gets four partitions."""
        code = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        if code:
            raise SourceError(
                f"the embedded broker cannot create topic {name!r} (error {code})",
                fix="use another name; it may exist already",
            )

    def set_down(self) -> None:
        """Drop all connections and refuse new ones, like a broker that is down."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def set_up(self) -> None:
        """Accept connections again, with all topics."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def close(self) -> None:
        """Stop. Closing twice is harmless."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._cluster = None
        if self._handle:
            self._library.rd_kafka_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> EmbeddedBroker:
        """Return the running broker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.close()
