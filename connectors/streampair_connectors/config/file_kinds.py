"""What a file is that is no text in UTF-8, by its first bytes."""

from __future__ import annotations

import re

__all__ = ["kind_of"]

_UNPACK = "decompress it: {} -d"
_ENCODING = "write it as UTF-8: iconv -f {} -t UTF-8"
_KINDS = (
    # A column of a CSV file can be named PAR1.
    (rb"PAR1(?![\w \t\r\n,;|.\"'-])", "a Parquet file", "write CSV: pandas.read_parquet(...).to_csv(...)"),
    (rb"ARROW1\0", "an Arrow file", "write CSV: pandas.read_feather(...).to_csv(...)"),
    (rb"Obj\x01", "an Avro file", "write JSON lines: fastavro FILE"),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive or a spreadsheet", "unpack it, or save it as CSV"),
    (rb"\xd0\xcf\x11\xe0", "an Excel file", "save it as CSV, in UTF-8"),
    (rb"\x1f\x8b", "compressed by gzip", _UNPACK.format("gzip")),
    (rb"\xfd7zXZ\0", "compressed by xz", _UNPACK.format("xz")),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2", _UNPACK.format("bzip2")),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", _UNPACK.format("zstd")),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "text in UTF-32", _ENCODING.format("UTF-32")),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16", _ENCODING.format("UTF-16")),
    (rb"(?:[^\0]\0){4}", "text in UTF-16", _ENCODING.format("UTF-16LE")),
    (rb"(?:\0[^\0]){4}", "text in UTF-16", _ENCODING.format("UTF-16BE")),
)
_PATTERNS = [(re.compile(begin, re.DOTALL), kind, fix) for begin, kind, fix in _KINDS]


def kind_of(begin: bytes) -> tuple[str, str] | None:
    """What a file is, and what to do about it; None: it may be text in UTF-8.

    Parameters
    ----------
    begin
        The first bytes of the file, at least eight if it has them.

    Examples
    --------
    >>> kind_of(b"\\xfd7zXZ\\x00\\x00")
    ('compressed by xz', 'decompress it: xz -d')
    >>> kind_of(b'{"amount": 3}') is None
    True
    """
    return next(((kind, fix) for pattern, kind, fix in _PATTERNS if pattern.match(begin)), None)
