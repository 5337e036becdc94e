"""A proxy before one broker. It holds a request back, lets the second copy pass, and delivers the first one.

A network may do so: the request stands in a queue, its connection breaks, the client uses another one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["API_KEYS", "LateRequests"]

API_KEYS: Final = {
    "Produce": 0,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
}
"""The requests of a transaction."""


class LateRequests:
    """Clients connect to `bootstrap`; all that they ask goes through here.

    Parameters
    ----------
    broker
        host:port, in digits, as the broker names itself to clients. They are given the address of this proxy
        instead.

    Attributes
    ----------
    held_request
        Name of the request that is held back now; None: none is.
    answer
        What the broker has answered to the last late request, without the frame's length.
    seen
        Names of the transactional requests that were passed on, or held back, in order.
    """

    def __init__(self, broker: str) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        self._hold: str | None = None
        self._frame: bytes | None = None
        self._before: tuple[str, Callable[[], None]] | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.held_request: str | None = None
        self.answer: bytes | None = None
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        own_port = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{own_port}"
        # Host and port as answers have them. Both hosts are as long, whatever the version.
        assert len(host) == len("127.0.0.1")
        self._addresses = (
            host.encode() + struct.pack(">i", int(port)),
            b"127.0.0.1" + struct.pack(">i", own_port),
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, name: str) -> None:
        """Hold back the next request of this name, and break its connection."""
        self._hold = name

    def deliver_before(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Deliver the request that is held back just before the next one of this name, then call `then`."""
        self._before = name, then

    def deliver(self) -> None:
        """Deliver the request that is held back, and wait for its answer."""
        frame, self._frame, self.held_request = self._frame, None, None
        assert frame is not None
        with socket.create_connection(self._broker, timeout=30.0) as late:
            late.sendall(frame)
            self.answer = _frame(late)[4:]

    @property
    def error(self) -> int:
        """The error code in the last late answer of EndTxn."""
        assert self.answer is not None
        return int.from_bytes(self.answer[8:10], "big", signed=True)

    def close(self) -> None:
        """Break all connections, and take no more."""
        # A thread that waits for a connection does not notice that the socket is closed.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _break(end)

    def __enter__(self) -> LateRequests:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self._broker)
                except OSError:
                    client.close()
                    continue
                ends = client, broker
                self._open.update(ends)
                for way in (self._requests, self._answers):
                    threading.Thread(target=self._run, args=(way, ends), daemon=True).start()

    def _run(
        self,
        way: Callable[[socket.socket, socket.socket], None],
        ends: tuple[socket.socket, socket.socket],
    ) -> None:
        with contextlib.suppress(OSError):
            way(*ends)
        for end in ends:
            _break(end)
            self._open.discard(end)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        names = {number: name for name, number in API_KEYS.items()}
        while True:
            frame = _frame(client)
            name = names.get(int.from_bytes(frame[4:6], "big"))
            if name is not None and self._holds(name, frame):
                return
            broker.sendall(frame)

    def _holds(self, name: str, frame: bytes) -> bool:
        with self._lock:
            self.seen.append(name)
            if name == self._hold:
                self._hold, self._frame, self.held_request = None, frame, name
                return True
            if self._frame is not None and self._before is not None and self._before[0] == name:
                (_, then), self._before = self._before, None
                self.deliver()
                then()
            return False

    def _answers(self, client: socket.socket, broker: socket.socket) -> None:
        while True:
            client.sendall(_frame(broker).replace(*self._addresses))


def _frame(end: socket.socket) -> bytes:
    """The next request or answer, its length before it."""
    head = _exactly(end, 4)
    return head + _exactly(end, int.from_bytes(head, "big"))


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = end.recv(count - len(parts))
        if not part:
            raise ConnectionError
        parts += part
    return parts


def _break(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
