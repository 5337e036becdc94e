"""Lines of the configuration, for messages that say what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

__all__ = ["toml_key", "toml_line", "toml_value"]


def toml_key(name: str) -> str:
    """A name as TOML takes it for a key.

    Examples
    --------
    >>> toml_key("amount"), toml_key("payload.amount")
    ('amount', '"payload.amount"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: object) -> str:
    """A value in TOML: a text, a number, a boolean, a list or a table on one line.

    Examples
    --------
    >>> toml_value("Y"), toml_value(True), toml_value(["a", 1.5]), toml_value({"amount": [0, 9]})
    ('"Y"', 'true', '["a", 1.5]', '{ amount = [0, 9] }')
    """
    if isinstance(value, Mapping):
        return f"{{ {', '.join(toml_line(str(name), item) for name, item in value.items())} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(toml_value, value))}]"
    # JSON spells texts, numbers and booleans as TOML does, but for a character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_line(key: str, value: object) -> str:
    """A key with its value, as a line of the configuration.

    Examples
    --------
    >>> toml_line("positive", "Y")
    'positive = "Y"'
    """
    return f"{toml_key(key)} = {toml_value(value)}"
