"""Files as `replay` reads them, and what it shows meanwhile."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pty
import queue
import random
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streampair_connectors.cli import event_files, replay
from streampair_connectors.cli.replay import Replay
from streampair_connectors.config import load_config, parse_config

from streampair.engine import Record
from streampair.errors import ConfigError, SourceError

TOML = """
app = "fraud"
[input]
label = "y"
features = ["a", "b"]
id = "id"
[learner]
class = "streampair.auc.PairOGD"
[worker]
batch_size = {}
"""


def config_of(batch_size: int = 1000) -> Any:
    return parse_config(tomllib.loads(TOML.format(batch_size)))


# ---- lines and rows ------------------------------------------------------------------------------------

BOM = b"\xef\xbb\xbf"
PIECES = st.lists(
    st.sampled_from([b"1", b",", b"\n", b"\r\n", b"\r", b'"', b',"', b'""', b" ", b"x\x0c\x1c\xc2\x85", BOM])
)


def lines_one_by_one(data: bytes) -> list[Record]:
    lines = enumerate(io.BytesIO(data.removeprefix(BOM)))
    return [Record(number, line.rstrip(b"\r\n")) for number, line in lines if line.strip()]


def rows_one_by_one(data: bytes) -> list[Record] | int:
    """The naive way, byte by byte; the number of a line whose quote takes other lines into its cell."""
    rows, row, state, line, first, opened = [], b"", "begin", 0, 0, 0
    for index in range(len(data)):
        byte, following = data[index : index + 1], data[index + 1 : index + 2]
        row += byte
        if state == "quoted":
            state = "quote" if byte == b'"' else state
        elif state == "quote" and byte == b'"':
            state = "quoted"
        elif (
            state == "quote"
            and byte not in (b",", b"\n")
            and (byte != b"\r" or following not in (b"\n", b""))
        ):
            if line > opened:
                return opened
            state = "plain"
        elif state == "begin" and byte == b'"':
            state, opened = "quoted", line
        else:
            state = "begin" if byte in b",\n" else "plain"
        line += byte == b"\n"
        if byte == b"\n" and state != "quoted":
            rows.append(Record(first, row.rstrip(b"\r\n")))
            row, first = b"", line
    if state == "quoted":
        return opened
    return [each for each in [*rows, Record(first, row.rstrip(b"\r\n"))] if (each.value or b"").strip()]


@settings(max_examples=500)
@given(PIECES.map(b"".join), st.integers(1, 9), st.integers(1, 4))
def test_blocks_give_the_records_that_lines_give(data: bytes, block: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "_BLOCK", block)
        for csv in (False, True):
            wanted = rows_one_by_one(data) if csv else lines_one_by_one(data)
            for wait in (False, True):
                blocks = event_files._blocks(io.BytesIO(data))
                chunks = event_files._rows(blocks, "e.csv", 2) if csv else event_files._json_lines(blocks)
                batches = event_files._batches(chunks, size, wait=wait)
                if isinstance(wanted, int):
                    with pytest.raises(SourceError, match=rf"^line {wanted + 2} of e\.csv has a quote"):
                        list(batches)
                    continue
                done = list(batches)
                assert [record for batch in done for record in batch] == wanted
                sizes = list(map(len, done))
                assert all(0 < n <= size for n in sizes)
                assert not wait or all(n == size for n in sizes[:-1])


# ---- rows that must not vanish -------------------------------------------------------------------------


def many(header: str = "a,b,y,id", line: str = "{},0.5,{},e{}", count: int = 50) -> list[str]:
    return [header, *(line.format(number, number % 2, number) for number in range(count))]


def scored(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Scores and dead letters of a replay of a file."""
    scores, letters = replayed(path, 1000)
    return list(map(json.loads, scores.splitlines())), list(map(json.loads, letters))


def test_a_quote_inside_of_a_cell_is_a_character(tmp_path: Path) -> None:
    lines = many()
    lines[3] = '2,0.5,0,5" screen'
    lines[7] = '6,0.5,0,"a ""wide"" screen, black"'
    (tmp_path / "e.csv").write_text("\n".join(lines))
    scores, letters = scored(tmp_path / "e.csv")
    assert [row["outcome"] for row in scores] == ["learned"] * 50
    assert [scores[n]["id"] for n in (2, 6, 49)] == ['5" screen', 'a "wide" screen, black', "e49"]
    assert not letters


@pytest.mark.parametrize("rest", [[], ['9,1,1,"x"'], ['9,1,1,"x"', '9,1,1,"y"']])
def test_a_quote_that_is_never_closed_is_an_error_with_its_line(tmp_path: Path, rest: list[str]) -> None:
    lines = [*many(), *rest]
    lines[3] = '2,0.5,0,"5 inches'
    (tmp_path / "e.csv").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"line 4 of .*e\.csv has a quote that begins a cell and is not"):
        scored(tmp_path / "e.csv")
    # The cell may begin after a line break in a cell of its row.
    lines[3] = '2,"0\n5",0,"5 inches'
    (tmp_path / "e.csv").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=r"line 5 of .*e\.csv has a quote that begins a cell and is not"):
        scored(tmp_path / "e.csv")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_blank_lines_are_no_events(tmp_path: Path, suffix: str) -> None:
    events = [{"a": n, "b": 0.5, "y": n % 2, "id": f"e{n}"} for n in range(50)]
    lines = many() if suffix == ".csv" else list(map(json.dumps, events))
    plain, blank = tmp_path / f"plain{suffix}", tmp_path / f"blank{suffix}"
    plain.write_text("\n".join(lines))
    blank.write_bytes("".join(f"{line}\r\n\n   \t\n" for line in lines).encode())
    wanted, found = scored(plain)[0], scored(blank)[0]
    # An offset is the number of a line.
    assert [row.pop("offset") for row in found] == [3 * n + 2 * (suffix == ".csv") for n in range(50)]
    assert [{**row, "offset": n, "topic": wanted[n]["topic"]} for n, row in enumerate(found)] == wanted
    blank.write_text("\n\n" + blank.read_text())
    assert len(scored(blank)[0]) == 50


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ""])
def test_a_byte_order_mark_loses_no_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"e{suffix}"
    path.write_text(
        json.dumps({"a": 1, "b": 2, "y": 1}) if suffix != ".csv" else "a,b,y,id\n1,2,1,e", "utf-8-sig"
    )
    assert [row["outcome"] for row in scored(path)[0]] == ["learned"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PAR1\x15\x04\x15\x90", "a Parquet file"),
        (b"PK\x03\x04\x14\x00", "a zip archive or a spreadsheet"),
        (lzma.compress(b"a,b,y\n1,2,1\n"), "compressed by xz"),
        (bz2.compress(b"a,b,y\n1,2,1\n"), "compressed by bzip2"),
        (gzip.compress(gzip.compress(b"a,b,y\n1,2,1\n", mtime=0), mtime=0), "compressed by gzip"),
        ("a,b,y\n1,2,1\n".encode("utf-16"), "text in UTF-16"),
        ('{"a": 1}\n'.encode("utf-16-le"), "text in UTF-16"),
        ('{"a": 1}\n'.encode("utf-16-be"), "text in UTF-16"),
        ("a,b,y\n".encode("utf-32"), "text in UTF-32"),
    ],
)
def test_files_of_other_formats_are_named(tmp_path: Path, content: bytes, kind: str) -> None:
    for name in ("e.csv", "e.jsonl", "e", "c.toml"):
        path = tmp_path / name
        path.write_bytes(content)
        if name != "c.toml":
            with pytest.raises(SourceError, match=f"{name} is {kind}, not CSV or JSON lines in UTF-8"):
                scored(path)
        elif not content.startswith(b"\x1f\x8b"):
            with pytest.raises(ConfigError, match=f"{name} is {kind}, not TOML in UTF-8"):
                load_config(path)


def test_a_column_may_have_the_name_of_a_format(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("PAR1,a,b,y,id\n1,2,3,1,e\n")
    assert len(scored(tmp_path / "e.csv")[0]) == 1


def test_a_configuration_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(TOML.format(10).replace("\n", "\r\n"), "utf-8-sig", newline="")
    assert load_config(tmp_path / "c.toml").fingerprint() == config_of(10).fingerprint()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a,b,y,id,a", "2 columns of .* have the name 'a': numbers 1, 5. Fix: give each column"),
        ("a,b,y,id,,", "2 columns of .* have the name '': numbers 5, 6"),
        (
            "a, b,y,id",
            "has no column 'b', but ' b': blanks count. Fix: remove .* name the column ' b'",
        ),
        ("a,c ,y,id", "has no column 'b'; its columns are 'a', 'c ', 'y', 'id'"),
        ("a,b,y,ids", "has no column 'id'; .* Fix: write in .input.: id = \"ids\""),
        ("a,b,y,payment", "has no column 'id'; .* Fix: correct the key .* input.id"),
        ("a,b,y,id\r1,2,3,4\r", "no header: new-line .* Fix: end lines with line feeds"),
        ('a,"b,y,id', "line 1 of .* has a quote that begins a cell and is not closed"),
        ('"a"x,b,y,id', "is no header: .* expected after"),
        ("a,b,y,id" + "x" * 200_000, "is no header: field larger than field limit"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "e.csv").write_text(f"{header}\n1,2,1,e\n", newline="")
    with pytest.raises(SourceError, match=message):
        scored(tmp_path / "e.csv")


def test_a_time_is_a_column_and_a_key_of_a_message_is_none(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("a,b,y,when\n1,2,1,3\n")
    tables = tomllib.loads(TOML.format(1000))
    tables["input"] |= {"id": "$key", "time": "when"}
    with event_files.open_source(parse_config(tables), str(path)) as file:
        assert [file.decode(record).id for batch in file.lines.batches for record in batch] == [None]
    tables["input"]["time"] = "wehn"
    with (
        pytest.raises(SourceError, match="has no column 'wehn'"),
        event_files.open_source(parse_config(tables), str(path)),
    ):
        pass


def test_a_header_may_have_line_breaks_in_its_cells(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('\n"the\nid",a,b,y,id\n0,1,2,1,e\n0,1,2,maybe,"\n')
    with pytest.raises(SourceError, match=r"line 5 of .*e\.csv has a quote"):
        scored(tmp_path / "e.csv")


# ---- the same outputs, whatever the way ----------------------------------------------------------------


def odd_file(draw: random.Random) -> str:
    """Mostly plain lines, some with quotes, ids, missing cells, other spellings and line breaks in a cell."""
    odd = ['1,"0.5",1,e', "1,,1,e", "nan,1,1,e", "1,1,,e", "1,2", '"1\n",2,1,"two\nlines"', "1_0,+2, 1 ,"]
    odd += ["x,1,1,e", "1,1,maybe,e", "", "-0,1e999,1,e", "-0,01,0,7", '1,2,1,e""', '1",2,1', "1,2,1,é"]
    usual = (f"{draw.gauss(0, 1):.6g},{draw.random()!r},{draw.randrange(2)},{index}" for index in range(300))
    lines = [line if draw.random() < 0.97 else draw.choice(odd) for line in usual]
    return "\n".join(["a,b,y,id", *lines, '1,2,1,"x"', "1,2,1,9"])


def replayed(path: Path, batch_size: int) -> tuple[bytes, list[bytes]]:
    scores, letters = io.BytesIO(), []
    replay = Replay(config_of(batch_size), str(path), scores.write, letters.append)
    replay.run()
    assert replay.size == path.stat().st_size
    return scores.getvalue(), letters


def test_a_file_gives_the_same_in_batches_and_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that the reader of blocks cuts, or decodes otherwise."""
    draw = random.Random(1)
    decoders = event_files.csv_decoder
    for number in range(6):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(odd_file(draw).encode("latin-1" if number == 5 else "utf-8"))
        one_by_one = replayed(path, 1)
        assert b'"learned"' in one_by_one[0]
        assert one_by_one[1]
        monkeypatch.setattr(event_files, "_BLOCK", draw.choice([100, 1000, 1 << 18]))
        for size in (7, 1000):
            assert replayed(path, size) == one_by_one
        monkeypatch.setattr(
            event_files,
            "csv_decoder",
            lambda *args, **taking: lambda record: decoders(*args, **taking)(record),
        )
        assert replayed(path, 1000) == one_by_one
        monkeypatch.undo()


# ---- pipes and terminals -------------------------------------------------------------------------------


def test_a_line_that_comes_through_a_pipe_is_scored_before_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.pipe()
    scores: queue.Queue[bytes] = queue.Queue()
    with open(ours, encoding="utf-8") as stdin, open(theirs, "wb", buffering=0) as user:
        monkeypatch.setattr("sys.stdin", stdin)
        replay = Replay(config_of(), "-", scores.put, scores.put)
        working = threading.Thread(target=replay.run)
        working.start()
        for number in range(3):
            user.write(json.dumps({"a": number, "b": 1, "y": bool(number % 2)}).encode() + b"\n")
            score = json.loads(scores.get(timeout=120))
            assert (score["offset"], score["outcome"]) == (number, "learned")
        user.write(b'{"a": 1, "b": 1, "y": true}')  # a last line without its end
        user.close()
        working.join()
    assert json.loads(scores.get_nowait())["offset"] == 3
    assert (replay.events, replay.size, replay.position) == (4, None, 0)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A terminal as standard error; at the end what it was sent."""
    ours, theirs = pty.openpty()
    written: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 4096):
                written.append(part)
        except OSError:  # nobody holds the other end
            pass

    reading_it = threading.Thread(target=read)
    with open(theirs, "w", encoding="utf-8") as stderr:
        reading_it.start()
        monkeypatch.setattr("sys.stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        yield written
        monkeypatch.undo()
    reading_it.join()
    os.close(ours)


@pytest.mark.parametrize("piped", [False, True])
def test_a_bar_shows_how_much_of_a_file_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piped: bool
) -> None:
    line = json.dumps({"a": 1.5, "b": 2, "y": True}) + "\n"
    file, output = tmp_path / "events.jsonl", tmp_path / "scores.jsonl"
    file.write_text(line * 40)
    monkeypatch.setattr(event_files, "_BLOCK", len(line) * 10)
    summaries: list[dict[str, Any]] = []
    with terminal(monkeypatch) as written, file.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        name = "-" if piped else str(file)
        replay.replay_file(config_of(10), name, output=output, dead_letters=None, report=summaries.append)
    assert summaries[0]["learned"] == len(output.read_text().splitlines()) == 40
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", b"".join(written)).decode()
    assert "40 events" in text
    assert "events/s" in text
    assert ("100%" in text, "left" in text, "━" in text) == ((False,) * 3 if piped else (True,) * 3)


def test_the_numbers_of_a_lane_are_published_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"a": 1, "b": 1, "y": true}\n' * 40)
    monkeypatch.setattr(replay, "_PUBLISH_SECONDS", 1e9)
    run = Replay(config_of(10), str(file), len, len)
    seen = []
    run.run(lambda _: seen.extend(run.telemetry.gauges("fraud").values()))
    assert [gauges.events["learned"] for gauges in seen] == [10] * 4
    (final,) = run.telemetry.gauges("fraud").values()
    assert final.events["learned"] == 40
