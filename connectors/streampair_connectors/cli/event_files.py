"""Files of events or labels: their format, their header, and their lines, in batches.

A line is a row: of JSON lines a line of the file, of CSV the lines of a row whose quoted cells have line
breaks. Blank lines are none. The first line of the file may begin with a byte order mark.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import gzip
import io
import os
import re
import shlex
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from streampair.engine import Record
from streampair.errors import RecordError, SourceError
from streampair_connectors.codecs.fields import is_outer, unnested
from streampair_connectors.codecs.fixes import is_number, nearest_fix
from streampair_connectors.codecs.json_fields import is_json, json_object
from streampair_connectors.codecs.records import (
    Decoder,
    csv_decoder,
    declared_names,
    json_decoder,
)
from streampair_connectors.config import Config
from streampair_connectors.config.file_kinds import kind_of
from streampair_connectors.worker.factory import taken_cells

__all__ = ["EventFile", "Lines", "display_name", "open_labels", "open_lines", "open_source"]

_BLOCK = 1 << 18  # bytes: some thousand lines, so that the cost per block is negligible
_READ_ERRORS = (OSError, EOFError, zlib.error)
_GZIP = b"\x1f\x8b"
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_PEEK = 4096
# A quoted cell: its quote begins the cell, and a doubled quote inside is a character. What follows the
# closing quote, which may be missing, is a group. And the rest of a cell that began in the block before.
_CELL = re.compile(rb'(?:\A|(?<=[,\n]))"[^"]*(?:""[^"]*)*(?:"(\r?\n|.?))?', re.DOTALL)
_REST = re.compile(rb'[^"]*(?:""[^"]*)*(?:"(\r?\n|.?))?', re.DOTALL)
_AFTER = (b",", b"\n", b"\r\n", b"")  # what may follow a quoted cell


class Lines(NamedTuple):
    """Lines of a file.

    Attributes
    ----------
    name
        Of the file.
    header
        Names of the columns of a CSV file; None: JSON lines.
    batches
        The lines, without the header. The offset of a record is the number of its line in the file, from 0
        and without the header: a blank line leaves a gap.
    find
        As of `unnested`, of JSON lines.
    first
        The number of the line with offset 0, as editors show it.
    """

    name: str
    header: list[str] | None
    batches: Iterator[Sequence[Record]]
    find: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    first: int = 1

    def fields(self, line: bytes) -> Callable[[str], object]:
        """Return the lookup of the fields of a line.

        Raises
        ------
        RecordError
            The line cannot be read.
        """
        try:
            if self.header is None:
                data = json_object(line)
                return (data if self.find is None else self.find(data)).get
            cells = next(csv.reader([line.decode("utf-8")], strict=True), [])
            if len(cells) != len(self.header):
                raise ValueError(f"it has {len(cells)} cells, the header {len(self.header)}")
        except (ValueError, AttributeError, RecursionError, csv.Error) as error:
            reason = "it is no JSON object" if isinstance(error, AttributeError) else error
            raise RecordError(
                f"the line cannot be read: {reason}", fix="write CSV, or JSON objects", stage="label"
            ) from None
        return {name: cell for name, cell in zip(self.header, cells, strict=True) if cell != ""}.get

    def number(self, record: Record) -> int:
        """The number of a line as editors show it."""
        return record.offset + self.first


@dataclass(frozen=True)
class EventFile:
    """An open file of events.

    Attributes
    ----------
    decode
        Decoder of records.
    lines
        The records, one per line.
    size
        Bytes of the file on disk, compressed or not; None for a pipe.
    position
        Returns how many of them were read.
    """

    decode: Decoder
    lines: Lines
    size: int | None
    position: Callable[[], int]


@contextlib.contextmanager
def open_source(config: Config, path: str) -> Iterator[EventFile]:
    """Open a file of events, as a context manager.

    Parameters
    ----------
    config
        Names the fields of features and label, and the maximum records of a batch (`worker.batch_size`).
    path
        CSV with a header, or JSON lines, compressed by gzip or not; `-` reads standard input. The suffix
        determines the format (`.csv`, `.json`, `.jsonl`, `.ndjson`), otherwise the first byte: JSON lines
        begin with a brace. From a pipe a batch has the available lines and does not wait for more.

    Raises
    ------
    SourceError
        On opening or while reading: the file cannot be read, is no text in UTF-8, has a quote that is never
        closed, or a CSV header lacks a configured column or has one twice.
    """
    wanted = config.input.source_names()
    others = [name for name in (config.input.id, config.input.time) if name is not None]
    if config.label_input is None:
        # A file has no keys and headers of messages; without them an event has no id.
        others = [config.input.label_field, *(name for name in others if not is_outer(name))]
    wanted = [*wanted, *others]
    with _open(path) as raw:
        size = None if path == "-" else _size(raw)
        nearest = functools.partial(nearest_fix, config.input)
        lines = _read_lines(
            path, raw, wanted, config.worker.batch_size, nearest, wait=size is not None
        )._replace(find=unnested(config.input, declared_names(config.input)))
        decode = (
            json_decoder(config.input, **taken_cells(config))
            if lines.header is None
            else csv_decoder(config.input, lines.header, **taken_cells(config))
        )
        yield EventFile(decode, lines, size, raw.tell)


@contextlib.contextmanager
def open_labels(config: Config, path: str) -> Iterator[Lines]:
    """Open a file of labels, as a context manager."""
    table = config.label_input
    assert table is not None
    wanted = [name for name in (config.input.id, config.input.time, table.label) if name is not None]
    with _open(path) as raw:
        lines = _read_lines(path, raw, wanted, config.worker.batch_size, _no_fix, wait=True)
        yield lines._replace(find=unnested(table, wanted))


@contextlib.contextmanager
def open_lines(path: str, batch_size: int) -> Iterator[Lines]:
    """Open a file of events whose columns and fields are not known yet, as a context manager."""
    with _open(path) as raw:
        lines = _read_lines(path, raw, [], batch_size, _no_fix, wait=True)
        if (other := _other_delimiter(lines.name, lines.header or [])) is not None:
            raise _refuse(*other)
        yield lines


# From a configured name and the columns of a file to the fix that names one of them; None: none is like it.
_Nearest = Callable[[str, Sequence[str]], str | None]


def _no_fix(name: str, header: Sequence[str]) -> str | None:
    return None


def _read_lines(
    path: str,
    raw: io.BufferedReader,
    wanted: Sequence[str],
    batch_size: int,
    nearest: _Nearest,
    *,
    wait: bool,
) -> Lines:
    """Return the lines of a file; `wanted`: columns that the header of a CSV file must have."""
    name = display_name(path)
    with _read_errors(path):
        file = _decompressed(path, raw)
        _check_kind(name, file)
        header, lines = _header(name, file, wanted, nearest) if _is_csv(path, file) else (None, 0)
        if header is None:
            _check_lines(name, file)
    blocks = _blocks(file)
    chunks = _json_lines(blocks) if header is None else _rows(blocks, name, lines + 1)
    batches = _with_read_errors(path, _batches(chunks, batch_size, wait=wait))
    return Lines(name, header, batches, first=lines + 1)


def _open(path: str) -> io.BufferedReader:
    with _read_errors(path):
        return cast("io.BufferedReader", sys.stdin.buffer) if path == "-" else open(path, "rb")


def display_name(path: str) -> str:
    """The name of a file in messages."""
    return "standard input" if path == "-" else path


def _size(file: IO[bytes]) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def _read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except _READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = "check the path, its permissions and that a .gz file is complete"
        if isinstance(error, FileNotFoundError):
            fix = f"correct the path; a relative one starts at {Path.cwd()}"
        raise SourceError(
            f"{display_name(path)} cannot be read: {reason}",
            fix=fix,
            retriable=False,
        ) from None


def _with_read_errors(path: str, batches: Iterator[list[Record]]) -> Iterator[list[Record]]:
    with _read_errors(path):
        yield from batches


# ---- formats -----------------------------------------------------------------------------------------------


def _refuse(problem: str, fix: str) -> SourceError:
    return SourceError(problem, fix=fix, retriable=False)


def _decompressed(path: str, raw: io.BufferedReader) -> io.BufferedReader:
    """Return the file's content, decompressed if it begins with the gzip magic number."""
    begin = raw.peek(2)[:2]
    if begin == _GZIP:
        return cast("io.BufferedReader", gzip.GzipFile(fileobj=raw))
    if path.endswith(".gz") and begin:
        raise _refuse(
            f"{path} is not a gzip file: it begins with {begin!r}",
            "compress it with gzip, or remove .gz from its name if it is not compressed",
        )
    return raw


def _check_kind(name: str, file: io.BufferedReader) -> None:
    kind = kind_of(file.peek(_PEEK)[:_PEEK])
    if kind is not None:
        raise _refuse(f"{name} is {kind[0]}, not CSV or JSON lines in UTF-8", kind[1])


def _is_csv(path: str, file: io.BufferedReader) -> bool:
    """Whether the file is CSV: by its suffix, otherwise by its first byte that is not a space."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in (".csv", *_JSON_SUFFIXES):
        return suffix == ".csv"
    begin = file.peek(_PEEK)[:_PEEK].removeprefix(codecs.BOM_UTF8).lstrip()
    return bool(begin) and not begin.startswith((b"{", b"["))


def _header(name: str, file: IO[bytes], wanted: Sequence[str], nearest: _Nearest) -> tuple[list[str], int]:
    """Return the columns of a CSV file, and the number of lines before the first row."""
    row, count, inside = b"", 0, False
    while (inside or not row) and (line := file.readline()):
        line = line if count else line.removeprefix(codecs.BOM_UTF8)
        inside = _quoted(line, inside=inside)[1]
        row += line if inside or line.strip() else b""
        count += 1
    if inside:
        raise _unclosed(name, 1)
    try:
        header = next(csv.reader([row.decode("utf-8").rstrip("\r\n")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refuse(f"the first line of {name} is no header: {error}", _header_fix(error)) from None
    _check_columns(name, header, wanted, nearest)
    return header, count


def _header_fix(error: Exception) -> str:
    if "new-line character" in str(error):
        return "end lines with line feeds: its lines end with carriage returns alone"
    plain = "write the names of the columns, separated by commas, in UTF-8"
    if isinstance(error, UnicodeDecodeError):
        return f"{plain}; this command converts a file of Latin-1: iconv -f latin1 -t utf-8 FILE > NEW"
    return plain


def _check_columns(name: str, header: list[str], wanted: Sequence[str], nearest: _Nearest) -> None:
    """Refuse a header without a column that is wanted, or with one name for two columns."""
    absent = [column for column in wanted if column not in header]
    if absent:
        raise _refuse(*_no_column(name, header, absent[0], nearest))
    column, count = Counter(header).most_common(1)[0] if header else ("", 1)
    if count > 1:
        places = ", ".join(str(number) for number, each in enumerate(header, 1) if each == column)
        fix = "give each column a name of its own in the file's first line, or remove all but one"
        if is_number(column):
            fix = "does the file have a header? If not, write the names of the columns above its first line"
        raise _refuse(f"{count} columns of {name} have the name {column!r}: numbers {places}", fix)


def _no_column(name: str, header: list[str], column: str, nearest: _Nearest) -> tuple[str, str]:
    """Return the problem of a header without a column, and the fix."""
    if not header:
        return f"{name} is empty", "name a file of CSV with its header, or of JSON lines"
    if (other := _other_delimiter(name, header)) is not None:
        return other
    padded = next((each for each in header if each.strip() == column.strip()), None)
    if padded is not None:
        return (
            f"{name} has no column {column!r}, but {padded!r}: blanks count",
            "remove the blanks around the names in the file, or name the column "
            f"{padded!r} in the configuration",
        )
    columns = ", ".join(map(repr, header[:20]))
    plain = (
        "correct the key of the configuration that names it, such as input.features, input.label or "
        "input.id, or the file's first line (CSV has a header; a line of JSON begins with a brace)"
    )
    return f"{name} has no column {column!r}; its columns are {columns}", nearest(column, header) or plain


def _other_delimiter(name: str, header: list[str]) -> tuple[str, str] | None:
    """Return the problem of a header without commas, and the fix; None: that is not its problem."""
    if len(header) == 1:
        for delimiter, what in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
            if delimiter in header[0]:
                # Where cells are separated by semicolons, the comma is usually that of decimals.
                options = f'sep="{delimiter}"' + (', decimal=","' if delimiter == ";" else "")
                options = options.replace("\t", "\\t")
                return (
                    f"the columns of {name} are separated by {what}: {header[0]!r}",
                    f"separate them by commas; pandas.read_csv(..., {options}).to_csv(..., index=False)"
                    " does so",
                )
    return None


def _check_lines(name: str, file: io.BufferedReader) -> None:
    """Refuse JSON over several lines, or a list of events: a line is an event."""
    begin = file.peek(_PEEK)[:_PEEK].removeprefix(codecs.BOM_UTF8).lstrip()
    first, _, rest = begin.partition(b"\n")
    if first.startswith(b"["):
        what, tool = "is a list of JSON", "jq -c '.[]'"
    # The next line of an object goes on with a key, or ends it; that of a damaged event begins another one.
    elif first.startswith(b"{") and rest.lstrip()[:1] in (b'"', b"}") and not is_json(first):
        what, tool = "has JSON over several lines", "jq -c ."
    else:
        return
    command = tool if name == display_name("-") else f"{tool} {shlex.quote(name)} > events.jsonl"
    raise _refuse(
        f"{name} {what}, and each event must be a line of its own",
        f"write a line for each event, as this command does: {command}",
    )


# ---- lines -------------------------------------------------------------------------------------------------

# Lines, and the number of each, from 0.
_Chunk = tuple[Sequence[int], list[bytes]]


def _blocks(file: Any) -> Iterator[bytes]:
    """Blocks of the file that end with a complete line, except perhaps the last; of a pipe, what is there."""
    partial: list[bytes] = []  # an incomplete line
    while block := file.read1(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            partial.append(block[:end])
            yield b"".join(partial)
            partial = []
        if end < len(block):
            partial.append(block[end:])
    if partial:
        yield b"".join(partial)


def _lines(block: bytes) -> list[bytes]:
    lines = block.split(b"\n")
    if not lines[-1]:
        del lines[-1]  # after the last newline
    return [line.rstrip(b"\r") for line in lines] if b"\r" in block else lines


def _without_blank(numbers: Sequence[int], lines: list[bytes]) -> _Chunk:
    if all(lines) and not any(map(bytes.isspace, lines)):
        return numbers, lines
    kept = [(number, line) for number, line in zip(numbers, lines, strict=True) if line.strip()]
    return [number for number, _ in kept], [line for _, line in kept]


def _json_lines(blocks: Iterable[bytes]) -> Iterator[_Chunk]:
    """The lines of a file of JSON that are not blank."""
    number = 0
    for block in blocks:
        lines = _lines(block if number else block.removeprefix(codecs.BOM_UTF8))
        yield _without_blank(range(number, number + len(lines)), lines)
        number += len(lines)


def _rows(blocks: Iterable[bytes], name: str, first: int) -> Iterator[_Chunk]:
    """The rows of a CSV file that are not blank: lines, joined where a quoted cell contains line breaks.

    A quote that does not begin a cell is a character.

    Raises
    ------
    SourceError
        A quote is never closed, or lines after it were taken into its cell: a quote closes it and no comma
        follows. These lines would be lost. `first` is the number of line 0 for the message.
    """
    number, opened = 0, 0  # of the next line, and of the line with the quote that is open
    partial: list[bytes] = []  # lines of the row with that quote
    for block in blocks:
        if b'"' not in block and not partial:
            lines = _lines(block)
            yield _without_blank(range(number, number + len(lines)), lines)
            number += len(lines)
            continue
        numbers, rows, begin = [], [], 0
        cells, inside = _quoted(block, inside=bool(partial))
        for start, _, closed in cells:
            opened = number + block.count(b"\n", 0, start) if start >= 0 else opened
            if not closed:
                raise _unclosed(name, first + opened)
        breaking = iter(cells)
        cell = next(breaking, None)
        for line in io.BytesIO(block):
            partial.append(line)
            begin += len(line)
            number += 1
            while cell is not None and cell[1] <= begin:
                cell = next(breaking, None)
            if cell is None or cell[0] >= begin:
                numbers.append(number - len(partial))
                rows.append(b"".join(partial).rstrip(b"\r\n"))
                partial = []
        assert inside == bool(partial)
        yield _without_blank(numbers, rows)
    if partial:
        raise _unclosed(name, first + opened)


def _quoted(block: bytes, *, inside: bool) -> tuple[list[tuple[int, int, bool]], bool]:
    """Return where quoted cells with line breaks are in a block, and whether the last one goes on after it.

    Of each its begin, -1 if that was before the block; its end; and whether a comma or the end of its row
    follows. `inside`: whether the block begins inside of one.
    """
    cells: list[tuple[int, int, bool]] = []
    matches: Iterable[re.Match[bytes]] = _CELL.finditer(block)
    if inside:
        rest = _REST.match(block)
        assert rest is not None  # it matches anything
        matches = chain([rest], _CELL.finditer(block, max(rest.end(), 1)))
    for match in matches:
        after = match[1]
        end = len(block) + 1 if after is None else match.start(1)
        begins = -1 if inside and not cells else match.start()
        if after is None or begins < 0 or block.find(b"\n", begins, end) >= 0:
            good = after is None or after in _AFTER or (after == b"\r" and match.end() == len(block))
            cells.append((begins, end, good))
        if after is None:
            return cells, True
    return cells, False


def _unclosed(name: str, line: int) -> SourceError:
    return _refuse(
        f"line {line:,} of {name} has a quote that begins a cell and is not closed: it hides later lines",
        "close it, or double each quote inside a quoted cell; the lines before it were processed",
    )


def _batches(chunks: Iterable[_Chunk], size: int, *, wait: bool) -> Iterator[list[Record]]:
    """Records in batches of this size; `wait`: whether a batch waits until it is full."""
    pending: list[Record] = []
    for numbers, lines in chunks:
        pending += map(Record, numbers, lines)
        done = 0
        while len(pending) - done >= size or (not wait and done < len(pending)):
            yield pending[done : done + size]
            done += size
        del pending[:done]
    if pending:
        yield pending
