"""Requests at random to `streampair serve`: good ones, damaged ones, and ones that are no HTTP."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections import Counter
from typing import Any

TOKEN = "a-token-for-requests-at-random"
PAYLOAD = "payload-that-no-log-has"

_PATHS = [
    *("/score", "/score?explain=true", "/score?explain=maybe", "/score?%ff=%00"),
    *("/v2", "/v2/models/fraud", "/v2/models/fraud/infer", "/v2/models/fraud/infer"),
    *(
        "/v2/models/other/infer",
        "/v2/models/fraud/ready",
        "/v2/health/ready",
        "/livez",
        "/readyz",
        "/metrics",
    ),
    *("/openapi.json", "/", "/nothing", "/%2e%2e/", "/score/", "//score", "/v2/models/%ff/infer", "*"),
]
_METHODS = ["POST"] * 12 + ["GET"] * 4 + ["PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FROB"]
_VALUES: list[Any] = [
    *(0, 1.5, -1e300, 1e400, 10**400, True, None, "", "x", "1.5", PAYLOAD, "\ud800", [], [[]], {}, {"a": 1}),
    float("nan"),
]


def _event(coin: random.Random, names: list[str]) -> Any:
    event: dict[str, Any] = {name: coin.uniform(-3, 3) for name in names}
    if coin.random() < 0.5:
        event[coin.choice([*names, "id", "other", "\ud800", ""])] = coin.choice(_VALUES)
    if coin.random() < 0.2:
        event.pop(coin.choice(names), None)
    return event if coin.random() < 0.95 else coin.choice(_VALUES)


def _tensor(coin: random.Random, names: list[str]) -> tuple[dict[str, Any], bytes]:
    n = coin.choice([0, 1, 3])
    shape = coin.choice([[n, len(names)], [n], [n, 1], [-1], [2**70, 0], [n, n, n], []])
    made: dict[str, Any] = {
        "name": coin.choice([*names, "m"]),
        "shape": shape,
        "datatype": coin.choice(["FP64", "FP32", "INT64", "BYTES", "BOOL", "FP8", ""]),
    }
    tail = b""
    if coin.random() < 0.5:
        tail = coin.randbytes(coin.choice([0, 4, 8, 40, 41, 120]))
        if coin.random() < 0.3:
            tail = struct.pack("<I", 3) + b"abc"
        made["parameters"] = {"binary_data_size": coin.choice([len(tail), len(tail), 10**9, -1, "8", True])}
    else:
        made["data"] = [coin.choice([*_VALUES, 0.5, 0.5, 0.5]) for _ in range(n * len(names))]
    if coin.random() < 0.1:
        made[coin.choice(["name", "shape", "datatype", "parameters"])] = coin.choice(_VALUES)
    return made, tail


def _body(coin: random.Random, names: list[str], path: str) -> tuple[bytes, dict[str, str]]:
    headers: dict[str, str] = {}
    if "infer" in path:
        tensors = [_tensor(coin, names) for _ in range(coin.choice([0, 1, 1, 1, 2, len(names)]))]
        request: dict[str, Any] = {"inputs": [made for made, _ in tensors]}
        if coin.random() < 0.3:
            outputs = coin.choice([[{"name": "score"}], [{"name": "x"}], [], 7])
            request["outputs"] = outputs
            request["parameters"] = coin.choice([{"binary_data_output": True}, {}, 7, None])
        body = json.dumps(request).encode()
        if any(tail for _, tail in tensors):
            headers["Inference-Header-Content-Length"] = str(
                coin.choice([len(body), len(body), len(body) - 1, "", "x", -1, 10**12])
            )
            body += b"".join(tail for _, tail in tensors)
    else:
        many = coin.choice([None, None, 0, 1, 5])
        event = [_event(coin, names) for _ in range(many)] if many is not None else _event(coin, names)
        body = json.dumps(event).encode()
    kind = coin.random()
    if kind < 0.1:
        body = body[: coin.randrange(len(body) + 1)]
    elif kind < 0.2 and body:
        position = coin.randrange(len(body))
        body = body[:position] + coin.randbytes(coin.choice([1, 3])) + body[position + 1 :]
    elif kind < 0.23:
        body = coin.choice([b"[", b'{"a":', b" "]) * coin.choice([1000, 5000])
    elif kind < 0.25:
        body = coin.randbytes(coin.choice([0, 1, 50]))
    return body, headers


def request(coin: random.Random, names: list[str]) -> tuple[bytes, bool]:
    """The bytes of a request, and whether they are as many as it says."""
    if coin.random() < 0.01:
        return coin.randbytes(coin.choice([4, 100])) + b"\r\n\r\n", False
    path = coin.choice(_PATHS)
    body, headers = _body(coin, names, path)
    method = coin.choice(_METHODS)
    if coin.random() < 0.9:
        headers["Authorization"] = f"Bearer {TOKEN}"
    if coin.random() < 0.05:
        headers[coin.choice(["Authorization", "Content-Encoding", "Expect", "Content-Type", "Accept"])] = (
            coin.choice(["", "gzip", "deflate", "Basic x", "wonders", "\xff", PAYLOAD, "br"])
        )
    length = str(len(body))
    if coin.random() < 0.02:
        length = coin.choice(["x", "-1", "99999999999999999999", "5000"])
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {length}"]
    whole = length == str(len(body))
    if coin.random() < 0.03:
        lines[3], whole = "Transfer-Encoding: chunked", False  # which the body is not
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body, whole


def run(address: str, names: list[str], count: int, seed: int) -> Counter[int]:
    """Send requests, each on a connection of its own, and count the statuses of the answers."""
    coin = random.Random(seed)
    host, port = address.split(":")
    counts: Counter[int] = Counter()
    for _ in range(count):
        sent, whole = request(coin, names)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            try:
                connection.sendall(sent)
                if not whole:  # it would wait for the rest
                    connection.shutdown(socket.SHUT_WR)
                with connection.makefile("rb") as answer:
                    line = answer.readline()
                    rest = answer.read()
            except (BrokenPipeError, ConnectionResetError):
                continue  # it has answered before it read a body that is too large
        if not line:
            continue  # a request that was not whole
        status = int(line.split()[1])
        counts[status] += 1
        assert b"Traceback" not in rest, sent
        assert status != 500, (sent, rest)
    return counts
