"""Tables in files: Parquet, Arrow IPC and CSV, read with pyarrow in parts that several processes share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError
from streampair.evaluation.epochs import unit_of
from streampair_connectors.codecs.fields import EPOCH_UNITS, moment_of, number_of_text
from streampair_connectors.config.models import InputConfig

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.dataset as ds
except ImportError:
    raise ConfigError(
        "tables are read with pyarrow, which is not installed",
        fix="pip install '.[history]' in the clone, or pip install pyarrow",
    ) from None

__all__ = [
    "BatchPlace",
    "Part",
    "Reader",
    "TableColumns",
    "TableFiles",
    "ascending_ends",
    "id_ends",
    "one_thread",
    "open_table",
    "rows_with_value",
]

# As in a lane, an empty cell alone is a gap, of texts too.
_CSV = ds.CsvFileFormat(
    parse_options=pa_csv.ParseOptions(newlines_in_values=True),
    convert_options=pa_csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
)
# Files are local. Spark writes checksums of pages, pyarrow does not by default.
_PAGES = ds.ParquetFragmentScanOptions(pre_buffer=False, page_checksum_verification=True)
_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
    ".csv": "csv",
    ".csv.gz": "csv",
}
_PART_ROWS = 2**18  # of a task: some tenths of a second
_BATCH_ROWS = 2**16
_TAIL = 2**16  # bytes at the end of a file, where Parquet and IPC say what is in it
# What Arrow says of a file without quoting a cell.
_REASONS = re.compile(
    "(?:Row #[0-9]+: )?(?:Expected [0-9]+ columns, got [0-9]+|CSV conversion error to [a-z0-9]+)"
    "|Parquet (?:file size is [0-9]+ bytes|magic bytes not found in footer)|CRC checksum verification failed"
    "|Empty CSV file|File is too small|Not an Arrow file|[Tt]runcated [a-z]+ stream"
    "|duplicate field names"
)

Part = list[Any]
"""Fragments of files, some row groups of each, as a task reads them: they can be pickled."""


class BatchPlace(NamedTuple):
    """Where the rows of a batch are.

    Attributes
    ----------
    fragment
        The file, of Parquet a row group of it.
    first, number
        The first one of the fragment, from 0, and how many they are.
    """

    fragment: Any
    first: int
    number: int

    @contextlib.contextmanager
    def named(self, used: NDArray[np.intp] | None = None) -> Iterator[None]:
        """Name the file and the rows in errors of this block; `used`: the rows that it has, None: all."""
        try:
            yield
        except RecordError as error:
            raise self._named(error, used) from None

    def _named(self, error: RecordError, used: NDArray[np.intp] | None) -> RecordError:
        first, group = self.first, ""
        for each in getattr(self.fragment, "row_groups", ())[:1]:
            whole = self.fragment.metadata
            first += sum(whole.row_group(i).num_rows for i in range(each.id))
            group = f"row group {each.id}, "
        place = f"{self.fragment.path} ({group}rows from 0)"
        if error.row is None:
            problem = f"in rows {first} to {first + self.number - 1} of {place}: {error.problem}"
        else:
            row = first + (error.row if used is None else int(used[error.row]))
            problem = error.problem.replace(f"row {error.row}", f"row {row} of {place}", 1)
        return RecordError(problem, fix=error.fix, stage=error.stage)


@dataclass(frozen=True)
class Reader:
    """Reads parts of a table as the lane reads events: plain data, to be sent to tasks.

    Attributes
    ----------
    schema
        Columns that are read, the same in every file. A name with dots is that of a field of a struct, unless
        the table has a column of that whole name.
    stored
        The columns that have them.
    categories
        For each field with declared values, these as texts, and the columns that stand for them.
    times
        For each part of a time that is a feature, the column of the time, its unit, and the part.
    texts
        Columns of texts that spell numbers.
    words
        Columns of CSV in which none does: a lane would read some cells as numbers.
    """

    schema: Any
    stored: Any
    categories: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    times: tuple[tuple[str, tuple[str, str, str]], ...] = ()
    texts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of what is read, and how."""
        columns = [(field.name, str(field.type)) for field in self.schema]
        plain = repr((columns, self.categories, self.times, self.texts, self.words))
        return hashlib.blake2b(plain.encode(), digest_size=32).hexdigest()

    def of_columns(self, names: Sequence[str]) -> Reader:
        """A reader of these columns, as they are in the files."""
        roots = dict.fromkeys(_path(name, self.stored)[0] for name in names)
        return Reader(pa.schema(map(self.schema.field, names)), pa.schema(map(self.stored.field, roots)))

    def batches(self, part: Part) -> Iterator[Any]:
        """The rows of a part, in order, as Arrow tables of bounded size.

        Raises
        ------
        RecordError
            If a file cannot be read; the message quotes no value.
        """
        return (batch for _, batch in self.placed(part))

    def placed(self, part: Part) -> Iterator[tuple[BatchPlace, Any]]:
        """`batches`, each with the place of its rows."""
        options = {
            "schema": self.stored,
            "columns": {name: ds.field(*_path(name, self.stored)) for name in self.schema.names},
            "batch_size": _BATCH_ROWS,
            "batch_readahead": 1,
            "fragment_readahead": 1,
            "use_threads": True,  # of which `one_thread` leaves one; it decodes faster than none
        }
        for fragment in part:
            first = 0
            if isinstance(fragment, ds.ParquetFileFragment):
                options["fragment_scan_options"] = _PAGES
            try:
                for batch in fragment.scanner(**options).to_batches():
                    if batch.num_rows:
                        place = BatchPlace(fragment, first, batch.num_rows)
                        with place.named():
                            table = self._prepared(pa.Table.from_batches([batch]))
                        yield place, table
                        first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(
                    fragment.path,
                    error,
                    "write the file anew, if it is damaged; a column of CSV has one type from its first row "
                    "to its last",
                ) from None

    def _prepared(self, table: Any) -> Any:
        """The columns as the learner takes them: those of declared values, parts of times, and numbers."""
        out = {name: _with_functions(table.column(name)) for name in self.schema.names}
        read = dict(out)
        for field, columns in self.categories:
            values = pc.cast(out.pop(field), pa.string())
            for text, name in columns:
                out[name] = pc.fill_null(pc.equal(values, text), False)
        for time, kind in {time: kind for _, (time, kind, _) in self.times}.items():
            out.pop(time)
            read[time] = _moments(time, kind, read[time])
        for name, (time, _, part) in self.times:
            take = pc.day_of_week if part == "weekday" else getattr(pc, part)
            out[name] = take(read[time])
        for name, column in out.items():
            if name in self.words:
                _check_words(name, column)
            if name in self.texts:
                out[name] = _spelled(name, column)
            elif pa.types.is_decimal(column.type):
                out[name] = pc.cast(column, pa.float64())
        return pa.table(out)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Arrow has one thread for the decoding of files in this block."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(before)


def id_ends(fragment: Any, name: str) -> tuple[int, int] | None:
    """The smallest and the largest whole number of a column, as Parquet has them; None: not known."""
    # A name with dots may be that of a column, and that of a field.
    groups = [] if "." in name else getattr(fragment, "row_groups", None) or []
    try:
        found = [(group.statistics or {}).get(name, {}) for group in groups]
    except pa.ArrowException:  # of another column: those of float16 are bytes, which Arrow does not convert
        return None
    ends = [end for each in found for end in (each.get("min"), each.get("max"))]
    return (min(ends), max(ends)) if ends and all(type(end) is int for end in ends) else None


def ascending_ends(batch: Any, name: str) -> tuple[int, int] | None:
    """The first and the last id of an Arrow table with rows; None: they do not ascend, or are no integers."""
    column = batch.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    ids = column.to_numpy()
    return (int(ids[0]), int(ids[-1])) if bool((ids[1:] > ids[:-1]).all()) else None


def _with_functions(column: Any) -> Any:
    """A column of texts in a type that has all functions of texts; any other one as it is."""
    return pc.cast(column, pa.large_string()) if pa.types.is_string_view(column.type) else column


def _spelled(name: str, column: Any) -> Any:
    """The numbers that a column of texts spells, as a lane reads them; an empty text is a gap."""
    texts = pc.unique(column).to_pylist()
    try:
        numbers = [number_of_text(text) if text else None for text in texts]
    except ValueError:
        raise RecordError(
            f"the column {name!r} has a text that spells no number, and [input] declares a number",
            fix="write numbers, such as 12.5, and nothing where there is none; or correct input.features",
        ) from None
    return pc.take(pa.array(numbers, pa.float64()), pc.index_in(column, pa.array(texts, column.type)))


def rows_with_value(table: Any, *columns: Sequence[str]) -> NDArray[np.intp]:
    """The rows (n,) of an Arrow table that have a value in one of each group of columns."""
    there = (reduce(pc.or_, (table.column(name).is_valid() for name in names)) for names in columns if names)
    return np.flatnonzero(reduce(pc.and_, there).to_numpy())


def _check_words(name: str, column: Any) -> None:
    """Refuse numbers in a column of texts of CSV."""
    if any(_spells(text) for text in pc.unique(column).to_pylist() if text is not None):
        raise RecordError(
            f"the column {name!r} has texts and numbers, which a lane reads each as what it is",
            fix=f'leave the texts out and add {name} = "number" to input.fields; or declare its values, '
            f'{name} = ["...", ...], in input.features',
        )


def _spells(text: str) -> bool:
    try:
        number_of_text(text)
    except ValueError:
        return False
    return True


def _moments(name: str, kind: str, column: Any) -> Any:
    """A column of times in UTC."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_integer(column.type) and kind in EPOCH_UNITS:
        ends = (end for end in pc.min_max(column).as_py().values() if end is not None)
        if {EPOCH_UNITS[kind]} < {EPOCH_UNITS[kind], *map(unit_of, ends)}:
            raise RecordError(
                f"the column {name!r} has numbers that are no times from 1990 to 2100 as {kind}, which "
                "input.fields declares",
                fix="correct the unit in input.fields, or these numbers",
            )
        return pc.cast(pc.cast(column, pa.int64()), pa.timestamp(kind.removeprefix("epoch-"), "UTC"))
    if pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("ms"))
    if pa.types.is_timestamp(column.type) and kind == "iso-8601":
        return pc.cast(column, pa.timestamp(column.type.unit, "UTC"))
    if _is_text(column.type) or (pa.types.is_floating(column.type) and kind in EPOCH_UNITS):
        values = pc.unique(column)
        try:
            moments = [None if cell in (None, "") else moment_of(cell, kind) for cell in values.to_pylist()]
        except (ValueError, TypeError, OverflowError):
            raise RecordError(
                f"the column {name!r} has a value that is no time as {kind}, which input.fields declares",
                fix="write ISO 8601, such as 2024-01-31T12:00:00Z, or numbers of times from 1990 to 2100; or "
                "correct input.fields",
            ) from None
        return pc.take(pa.array(moments, pa.timestamp("us", "UTC")), pc.index_in(column, values))
    raise RecordError(
        f"the column {name!r} is of type {column.type}, and input.fields declares it as {kind}",
        fix="make it a timestamp or a text for iso-8601, or numbers for epoch-s, epoch-ms and epoch-us",
    )


@dataclass(frozen=True)
class TableColumns:
    """Some columns of a table, read from its beginning at each iteration: plain data, to be sent to tasks.

    Attributes
    ----------
    parts
        Of the table.
    reader
        Reads the columns of a part.
    """

    parts: tuple[Part, ...]
    reader: Reader

    def __iter__(self) -> Iterator[Any]:
        for part in self.parts:
            yield from self.reader.batches(part)


@dataclass(frozen=True)
class TableFiles:
    """A table in files.

    Attributes
    ----------
    files
        Their paths, in order.
    parts
        What tasks read, in order, with the number of rows of each.
    reader
        Reads a part.
    rows
        Number of rows, from the metadata of the files; of CSV they are counted.
    """

    files: tuple[str, ...]
    parts: tuple[tuple[Part, int], ...]
    reader: Reader

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(rows for _, rows in self.parts)

    def columns(self, names: Sequence[str]) -> TableColumns:
        """The batches of these columns, in order."""
        return TableColumns(tuple(part for part, _ in self.parts), self.reader.of_columns(names))

    def fingerprint(self) -> str:
        """A digest of path, size, time of change and end of each file, as they are now."""
        found = hashlib.blake2b(digest_size=32)
        for path in self.files:
            try:
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    file.seek(max(0, status.st_size - _TAIL))
                    found.update(f"{path!r} {status.st_size} {status.st_mtime_ns} ".encode())
                    found.update(hashlib.blake2b(file.read()).digest())
            except OSError as error:
                raise _unreadable(path, error) from None
        return found.hexdigest()


def _unreadable(
    path: str, error: Exception, fix: str = "correct the path, or write the file anew"
) -> RecordError:
    said = _REASONS.search(str(error).replace("multiple columns", "duplicate field names"))
    reason = getattr(error, "strerror", None) or (said.group() if said else type(error).__name__)
    return RecordError(f"{path} cannot be read: {reason}", fix=fix)


def open_table(
    paths: Sequence[Path], declared: InputConfig, others: Sequence[str], *, texts: bool = False
) -> TableFiles:
    """Look at all files of a table, without reading its rows.

    Parameters
    ----------
    paths
        Files of one format, and folders of them; ``name=value`` in a path below a folder is a column.
    declared
        The features. None: all columns but `others`, and label, id and time of the lane, as in the lane.
    others
        The other columns: label, and id.
    texts
        Whether the learner takes texts and booleans, of features that are not declared as numbers.

    Raises
    ------
    ConfigError
        If there is no such file, or a format is not known.
    RecordError
        If a file is empty or damaged, has no such column, or one of another type than the files before it.
    """
    found = _files(paths)
    files = [file for _, file in found]
    suffixes = [next((s for s in _FORMATS if file.lower().endswith(s)), None) for file in files]
    kinds = {None if suffix is None else _FORMATS[suffix] for suffix in suffixes}
    if len(kinds) != 1 or None in kinds:
        odd = next((f for f, suffix in zip(files, suffixes, strict=True) if suffix is None), files[-1])
        raise ConfigError(
            f"{odd} is of another format than is read, or than the other files",
            fix=f"give files of one format, with one of the endings {', '.join(_FORMATS)}",
        )
    (kind,) = kinds
    categories, times = declared.categories(), declared.time_parts()
    codes = set() if categories is None else set(map(str, categories.places))
    datasets = _datasets(found, kind, codes)
    features = declared.source_names() if declared.features is not None else None
    if features is None:
        taken = {*others, declared.label, declared.id, declared.time}
        features = [name for name in datasets[0].schema.names if name not in taken]
    plain = set(features) - codes - {time for time, _ in times.values()}
    texts = declared.features is None or (texts and not isinstance(declared.features, dict))
    numbers = {name for name in plain if not texts or declared.fields.get(name) == "number"}
    types = dict.fromkeys(plain, pa.float64()) | dict.fromkeys(codes, pa.string())
    types |= {time: pa.string() for time, _ in times.values() if declared.fields[time] == "iso-8601"}
    schema, stored = _common_schema(datasets, [*features, *others], types if kind == "csv" else {})
    spelled = [name for name in features if name in numbers and _is_text(schema.field(name).type)]
    for name in numbers:
        known = kind == "csv" or declared.fields.get(name) == "number"
        _check_number(name, schema.field(name).type, known=known)
    for name in codes:
        _check_code(name, schema.field(name).type)
    words = [name for name in plain - numbers if kind == "csv" and _is_text(schema.field(name).type)]
    reader = Reader(
        schema,
        stored,
        ()
        if categories is None
        else tuple(
            (str(field), tuple((str(value), categories.columns[i]) for value, i in places.items()))
            for field, places in categories.places.items()
        ),
        tuple((name, (time, declared.fields[time], part)) for name, (time, part) in times.items()),
        tuple(spelled),
        tuple(sorted(words)),
    )
    return TableFiles(tuple(files), tuple(_parts(datasets)), reader)


def _datasets(files: Sequence[tuple[str, str]], kind: Any, codes: Container[str]) -> list[Any]:
    """The files by folders that were given, as of `_files`; `codes`: columns of texts, such as 01."""
    form = _CSV if kind == "csv" else kind
    groups = groupby(files, key=itemgetter(0))
    return [_dataset(folder, [file for _, file in inside], form, codes) for folder, inside in groups]


def _dataset(folder: str, files: Sequence[str], form: Any, codes: Container[str]) -> Any:
    """The files of a folder, with the columns in their paths below it."""
    try:
        dataset = ds.dataset(files, format=form)
        below = [Path(file).parent.relative_to(folder).parts for file in files]
        of_paths = {part.partition("=")[0] for parts in below for part in parts if "=" in part}
        for name in of_paths.intersection(dataset.schema.names):
            raise RecordError(
                f"{name!r} is a column of {files[0]}, and in the paths of the files too",
                fix=f"rename the folders {name}=..., or leave the column out of the files",
            )
        if not of_paths:
            return dataset
        found = ds.dataset(files, format=form, partitioning="hive", partition_base_dir=folder).schema
        fields = [found.field(name) for name in sorted(of_paths)]
        columns = pa.schema([f.with_type(pa.string()) if f.name in codes else f for f in fields])
        hive = ds.partitioning(columns, flavor="hive")
        return ds.dataset(files, format=form, partitioning=hive, partition_base_dir=folder)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(files[0], error) from None


def _check_last_line(path: str) -> None:
    """Refuse CSV that was cut off within a line; at the end of one nothing shows it."""
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() not in b"\r\n" and not path.lower().endswith(".gz"):  # which has a checksum
            raise RecordError(
                f"the last line of {path} has no line break, as in a file that was cut off",
                fix="write the file anew; or, if its last line is whole, add a line break",
            )


def _check_number(name: str, kind: Any, *, known: bool) -> None:
    """Refuse a column that a lane would not read as a number; `known`: texts are."""
    if (known and _is_text(kind)) or _is_number(kind) or pa.types.is_decimal(kind):
        return
    texts = f'; or, if these texts are numbers, add {name} = "number" to input.fields' * _is_text(kind)
    raise RecordError(
        f"the column {name!r} is of type {kind}, and [input] declares a number",
        fix=f'write numbers, or declare its values, {name} = ["...", ...], in input.features{texts}',
    )


def _check_code(name: str, kind: Any) -> None:
    """Refuse a column whose values are not written as those that are declared, such as 1.00 for 1."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(values) or _is_number(values) or pa.types.is_boolean(values)):
        raise RecordError(
            f"the column {name!r} is of type {kind}, and input.features declares its values",
            fix="make it a column of texts, as they are in the events of the lane",
        )


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _files(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """The folder and the path of each file, absolute, those of a folder in order; not hidden ones and `_`.

    The folder is the one that was given; of a file that was given, the one that it is in.
    """
    found: list[tuple[str, str]] = []
    for path in paths:
        if path.is_dir():
            inside = (f for f in path.rglob("*") if f.is_file() and _is_data(f.relative_to(path)))
            found += [(os.path.abspath(path), os.path.abspath(file)) for file in sorted(inside)]
        elif path.exists():
            found.append((os.path.dirname(os.path.abspath(path)), os.path.abspath(path)))
        else:
            raise ConfigError(f"there is no file or folder {path}", fix="correct the path of the table")
    files = [file for _, file in found]
    if len(set(files)) != len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise ConfigError(f"{twice} is given twice", fix="give each file once")
    if not found:
        raise ConfigError(f"there is no file in {paths[0]}", fix="give the folder of the table")
    return found


def _is_data(path: Path) -> bool:
    return not any(name.startswith((".", "_")) for name in path.parts)


def _path(name: str, schema: Any) -> list[str]:
    """Where the values of a name are, as in a lane: a column, or a field of a struct."""
    return [name] if name in schema.names else name.split(".")


def _nested(name: str, schema: Any) -> Any:
    """The type of a field of a struct; None: there is none of this name."""
    first, *path = _path(name, schema)
    kind: Any = schema.field(first).type if path and first in schema.names else None
    for part in path:
        place = kind.get_field_index(part) if pa.types.is_struct(kind) else -1
        if place < 0:
            return None
        kind = kind.field(place).type
    return kind


def _common_schema(
    datasets: Sequence[Any], names: Sequence[str], of_csv: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The types of the columns, the same in every file, and of the columns that have them.

    `of_csv`: texts, and numbers that look like such.
    """
    common: list[Any] = []
    for of_files, fragment in ((each, fragment) for each in datasets for fragment in each.get_fragments()):
        csv = fragment.format.default_extname == "csv"
        try:
            found = fragment.physical_schema
            if csv:
                _check_last_line(fragment.path)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(fragment.path, error) from None
        of_path = ds.get_partition_keys(fragment.partition_expression)
        nested = {name: _nested(name, found) for name in names if name not in of_path}
        nested = {name: kind for name, kind in nested.items() if kind is not None}
        for name in names:
            if name not in found.names and name not in of_path and name not in nested:
                # Names that a CSV file without a header seems to have are values.
                known = "" if csv else f"; it has {', '.join(found.names[:8])}"
                raise RecordError(
                    f"{fragment.path} has no column {name!r}{known}",
                    fix=f"give the folder above {name}=..., in whose paths it is a column"
                    if f"{os.sep}{name}=" in fragment.path
                    else "correct input.features, input.label or the id; or give files with these columns"
                    + ("" if known else ", separated by commas"),
                )
            if found.names.count(name) > 1:
                raise RecordError(
                    f"{fragment.path} has {found.names.count(name)} columns {name!r}",
                    fix="give each column a name of its own",
                )
        roots = dict.fromkeys(name.split(".")[0] if name in nested else name for name in names)
        fields = [found.field(n) if n in found.names else of_files.schema.field(n) for n in roots]
        stored = pa.schema(
            [
                (
                    # A lane reads numbers and texts: true and 2026-11-30 are texts.
                    f.with_type(of_csv[f.name] if _is_number(f.type) else pa.string())
                    if f.name in of_csv
                    else f
                ).remove_metadata()
                for f in fields
            ]
        )
        columns = pa.schema([pa.field(n, nested[n]) if n in nested else stored.field(n) for n in names])
        try:
            if common and set(stored.names) != set(common[1].names):
                raise pa.ArrowInvalid("a name with dots is a column here, and a field of a struct there")
            both = (columns, stored)
            common = [pa.unify_schemas([*each]) for each in zip(common or both, both, strict=True)]
        except pa.ArrowException as error:
            raise RecordError(
                f"{fragment.path} has other columns than the files before it: {error}",
                fix="write all files with one schema",
            ) from None
    schema, stored = common
    return schema, stored


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _parts(datasets: Sequence[Any]) -> Iterator[tuple[Part, int]]:
    """Fragments with their row groups, in order, of about `_PART_ROWS` rows each."""
    part: Part = []
    count = 0
    for fragment, rows in _pieces(datasets):
        if rows:
            part, count = [*part, fragment], count + rows
        if count >= _PART_ROWS:
            yield part, count
            part, count = [], 0
    if part:
        yield part, count


def _pieces(datasets: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    for fragment in chain.from_iterable(dataset.get_fragments() for dataset in datasets):
        try:
            groups = getattr(fragment, "row_groups", None)
            if groups is None:
                yield fragment, fragment.count_rows()
                continue
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(fragment.path, error) from None
        for group in groups:
            yield fragment.subset(row_group_ids=[group.id]), group.num_rows
