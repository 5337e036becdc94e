"""A schema registry with the part of Confluent's REST API that is used, and messages with its ids."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro


def record_schema(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "namespace": "test", "fields": fields}


def avro(fields: list[dict[str, Any]], row: dict[str, Any], number: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(record_schema(fields)), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + stream.getvalue()


class Registry:
    """A registry that answers as Confluent's REST API says, or does not."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[str, Any]] = {}
        self.locked: set[str] = set()  # paths of subjects that take no other schema
        self.status = 200
        self.requests: list[str] = []
        self._changed = threading.Condition()
        self.headers: list[dict[str, str]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(*registry.register(self.path, json.loads(body)))

            def do_GET(self) -> None:
                self._answer(*registry.answer(self.path))

            def _answer(self, status: int, body: Any) -> None:
                with registry._changed:
                    registry.requests.append(self.path)
                    registry.headers.append(dict(self.headers))
                    registry._changed.notify_all()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str) -> tuple[int, Any]:
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": "secret"}
        if path == "/subjects":
            return 200, sorted({each.split("/")[2] for each in self.subjects})
        head, _, last = path.rpartition("/")
        if head == "/schemas/ids":
            found, code = self.schemas.get(int(last)), 40403
        else:
            subject = head.removesuffix("/versions")
            found, code = self.subjects.get(path), 40402 if self._versions(subject) else 40401
        return (404, {"error_code": code}) if found is None else (200, found)

    def _versions(self, subject: str) -> list[dict[str, Any]]:
        return [each for of, each in self.subjects.items() if of.startswith(f"{subject}/versions/")]

    def register(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Add a version to a subject; a schema that is known keeps its id."""
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": "secret"}
        known = next((number for number, each in self.schemas.items() if each == body), None)
        if not path.endswith("/versions"):  # a question whether the subject has it
            versions = self._versions(path)
            code = 40403 if versions else 40401
            return (200, {"id": known}) if body in versions else (404, {"error_code": code})
        if body in self._versions(path.removesuffix("/versions")):
            return 200, {"id": known}
        if path in self.locked:
            return 409, {"error_code": 409, "message": "secret"}
        number = len(self.schemas) + 1 if known is None else known
        self.schemas[number] = body
        version = 1 + sum(each.startswith(f"{path}/") for each in self.subjects)
        self.subjects[f"{path}/{version}"] = body
        return 200, {"id": number}

    def add(self, number: int, fields: list[dict[str, Any]], **more: Any) -> None:
        self.schemas[number] = {"schema": json.dumps(record_schema(fields)), **more}

    def await_request(self, before: int) -> None:
        """Wait until more requests than `before` have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) > before, 60)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
