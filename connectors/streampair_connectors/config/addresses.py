"""Addresses to listen on: HOST:PORT."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

__all__ = ["Address"]

_ADDRESS: Final = re.compile(r"(?P<host>[^\s\[\]:/]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True)
class Address:
    """A host and a port to listen on.

    Parameters
    ----------
    host
        A name, or an address without brackets.
    port
        0: a free one.

    Examples
    --------
    >>> from streampair_connectors.config import Address
    >>> address = Address.of("[::1]:9464")
    >>> address.host, address.port, f"{address}"
    ('::1', 9464, '[::1]:9464')
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: object) -> Address:
        """Return the address that a text says.

        Raises
        ------
        ValueError
            It says none.
        """
        if isinstance(text, Address):
            return text
        found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found["port"]) > 65535:
            raise ValueError(
                f'{text!r} is not HOST:PORT; write "127.0.0.1:9464" for this machine alone, or '
                '"0.0.0.0:9464" for all that reach it'
            )
        return cls(found["host"].strip("[]"), int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.to_string_ser_schema()
        )
