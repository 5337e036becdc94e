"""Avro schemas by their id, from a schema registry with Confluent's REST API."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated, Any, TypeVar

import msgspec

from streampair.errors import ConfigError, RecordError, SourceError
from streampair_connectors.config import SchemaRegistryConfig

__all__ = ["MOST_IDS", "SchemaRegistry"]

_T = TypeVar("_T")

_MAX_BYTES = 10_000_000
# A registry answers from memory. While a lane waits for it, nothing is scored.
_TIMEOUT_SECONDS = 3.0
_MAX_REFERENCES = 100
_OF_THE_CLIENT = (401, 407, 429)  # statuses that say nothing of what was asked for
MOST_IDS = 2**31
"""Ids are positive integers of 32 bits with a sign: some registries refuse to be asked for others."""
_CONFLICT = "conflict"  # the answer to a schema that may not follow the one before


class _Reference(msgspec.Struct):
    subject: str
    version: int


class _SchemaAnswer(msgspec.Struct):
    """A schema, as the registry answers with it; other fields do not matter."""

    schema: str
    schemaType: str | None = None  # as it is sent
    references: list[_Reference] | None = None


class _Registered(msgspec.Struct):
    id: Annotated[int, msgspec.Meta(ge=0, lt=MOST_IDS)]


class _RefusedError(SourceError):
    """An answer that says nothing of the registry, if it answers other questions."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password would go to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class SchemaRegistry:
    """Client of a schema registry.

    Requests are synchronous: a topic has a handful of schemas in its lifetime, and each is asked for once.

    Parameters
    ----------
    config
        The registry.

    Raises
    ------
    ConfigError
        The password cannot be read.
    """

    def __init__(self, config: SchemaRegistryConfig) -> None:
        self._url = config.url
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if (password := config.password()) is not None:
            pair = f"{config.username}:{password.get_secret_value()}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        self._open = urllib.request.build_opener(_NoRedirect()).open

    def check(self) -> None:
        """Ask for the subjects.

        Raises
        ------
        SourceError
            The registry does not answer, refuses, or answers with something else.
        """
        if not isinstance(self._ask("/subjects"), list):
            raise self._unusable("its answer is no list of subjects")

    def schema(self, number: int) -> tuple[Any, list[Any]]:
        """Return a schema and those that it refers to, which come before the ones that need them.

        Raises
        ------
        RecordError
            The registry has no schema with this id, refuses it, or has one that is not Avro.
        SourceError
            The registry does not answer, or refuses everything.
        """
        try:
            return self._schema(number)
        except _RefusedError as error:
            # A registry that refuses one id answers other questions. A proxy in front of none does not.
            self.check()
            raise RecordError(
                f"the schema registry has no usable schema with id {number}: {error.problem}",
                fix="register it, or name the registry of the producers in [schema_registry]",
                stage="decode",
            ) from None

    def _schema(self, number: int) -> tuple[Any, list[Any]]:
        answer = self._ask(f"/schemas/ids/{number}")
        if answer is None:
            raise RecordError(
                f"the schema registry has no schema with id {number}",
                fix="register it, or name the registry of the producers in [schema_registry]",
                stage="decode",
            )
        found = self._typed(answer, _SchemaAnswer, "schema")
        if found.schemaType not in (None, "AVRO"):
            raise RecordError(
                f"the schema with id {number} is of another kind than Avro",
                fix='set input.format = "json-schema" for JSON, or convert the topic',
                stage="decode",
            )
        named: dict[tuple[str, int], Any] = {}
        self._add_references(found, named, set())
        return self._parsed(found), list(named.values())

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema under a subject; registers it if it is not there.

        Raises
        ------
        ConfigError
            The subject has a schema that this one may not follow.
        SourceError
            The registry does not answer, or refuses.
        """
        path, posted = f"/subjects/{urllib.parse.quote(subject, safe='')}", {"schema": schema}
        found = self._ask(path, posted) or self._ask(f"{path}/versions", posted)
        if found == _CONFLICT:
            raise ConfigError(
                f"the schema registry has another schema for subject {subject!r}, and refuses that of scores",
                fix="write the scores to another topic (output.topic), or delete the subject",
            )
        return self._typed(found, _Registered, "id").id

    def _add_references(
        self, found: _SchemaAnswer, named: dict[tuple[str, int], Any], seen: set[tuple[str, int]]
    ) -> None:
        for each in found.references or ():
            key = each.subject, each.version
            if key in seen:
                continue
            seen.add(key)
            subject = urllib.parse.quote(key[0], safe="", errors="replace")
            answer = self._ask(f"/subjects/{subject}/versions/{key[1]}")
            if answer is None or len(seen) > _MAX_REFERENCES:
                raise RecordError(
                    f"the schema refers to version {key[1]} of subject {key[0]!r}, which cannot be resolved",
                    fix="register it",
                    stage="decode",
                )
            other = self._typed(answer, _SchemaAnswer, "schema")
            self._add_references(other, named, seen)
            named[key] = self._parsed(other)

    def _typed(self, answer: Any, kind: type[_T], what: str) -> _T:
        try:
            return msgspec.convert(answer, kind)
        except (msgspec.ValidationError, ValueError):  # half of a surrogate pair is no text
            raise self._unusable(f"its answer has no {what}", _RefusedError) from None

    def _parsed(self, found: _SchemaAnswer) -> Any:
        try:
            return json.loads(found.schema)
        except (ValueError, RecursionError):
            raise self._unusable("its answer has no schema", _RefusedError) from None

    def _ask(self, path: str, posted: Any = None) -> Any:
        """Return an answer; None: there is no such thing; `_CONFLICT`: what is posted may not be there."""
        headers, data = self._headers, None
        if posted is not None:
            headers = {**headers, "Content-Type": "application/vnd.schemaregistry.v1+json"}
            data = json.dumps(posted).encode()
        request = urllib.request.Request(self._url + path, data, headers)  # noqa: S310  # checked: http(s)
        try:
            with self._open(request, timeout=_TIMEOUT_SECONDS) as answer:
                body = answer.read(_MAX_BYTES + 1)
            if len(body) > _MAX_BYTES:
                raise self._unusable(f"its answer has more than {_MAX_BYTES} bytes", _RefusedError)
            found = json.loads(body)
            if found is None:  # not the same as that there is no such thing
                raise self._unusable("its answer has no schema", _RefusedError)
            return found
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read(10_000)
            if status == 404 and _has_error_code(body):
                return None
            if status == 409 and posted is not None:
                return _CONFLICT
            refused = 400 <= status < 500 and status not in _OF_THE_CLIENT
            kind = _RefusedError if refused else SourceError
            raise self._unusable(f"it answers with status {status}", kind) from None
        except urllib.error.URLError as error:
            reason = type(error.reason).__name__ if isinstance(error.reason, Exception) else error.reason
            raise self._unusable(f"it cannot be reached ({reason})") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unusable(f"it does not answer ({type(error).__name__})") from None
        except (ValueError, RecursionError):
            raise self._unusable("its answer is not JSON", _RefusedError) from None

    def _unusable(self, what: str, kind: type[SourceError] = SourceError) -> SourceError:
        return kind(
            f"the schema registry {self._url}: {what}",
            fix="check that it runs, and url, username and password of [schema_registry]",
        )


def _has_error_code(body: bytes) -> bool:
    """Whether a registry has said 404, and not a proxy in front of it, or a server at another path."""
    try:
        return json.loads(body)["error_code"] in (40401, 40402, 40403)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
