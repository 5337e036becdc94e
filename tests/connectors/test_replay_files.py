"""Files as `replay` reads them, and what it shows meanwhile."""

from __future__ import annotations

import io
import json
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
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors.cli import replay
from streampair_connectors.cli.replay import Replay
from streampair_connectors.config import parse_config

from streampair.engine import Record

TOML = """
app = "fraud"
[input]
label = "y"
features = ["a", "b"]
id = "id"
[learner]
class = "streampair.auc.PairOGD"
[worker]
breaker = "off"
batch_size = {}
"""


def config_of(batch_size: int = 1000) -> Any:
    return parse_config(tomllib.loads(TOML.format(batch_size)))


# ---- lines and rows ------------------------------------------------------------------------------------

PIECES = st.lists(st.sampled_from([b"1", b",", b"\n", b"\r\n", b"\r", b'"', b'""', b"x\x0c\x1c\xc2\x85"]))


def rows_one_by_one(data: bytes, *, csv: bool) -> Iterator[bytes]:
    """The naive way: one line after the other."""
    row = b""
    for line in io.BytesIO(data):
        row += line
        if not csv or row.count(b'"') % 2 == 0:
            yield row.rstrip(b"\r\n")
            row = b""
    if row:
        yield row.rstrip(b"\r\n")


@given(PIECES.map(b"".join), st.integers(1, 9), st.integers(1, 4))
def test_blocks_give_the_records_that_lines_give(data: bytes, block: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_BLOCK", block)
        for csv in (False, True):
            wanted = [Record(index, value) for index, value in enumerate(rows_one_by_one(data, csv=csv))]
            for wait in (False, True):
                blocks = replay._blocks(io.BytesIO(data))
                lines = replay._rows(blocks) if csv else map(replay._lines, blocks)
                batches = list(replay._batches(lines, size, wait=wait))
                assert [record for batch in batches for record in batch] == wanted
                sizes = list(map(len, batches))
                assert all(0 < n <= size for n in sizes)
                assert not wait or all(n == size for n in sizes[:-1])


# ---- the same outputs, whatever the way ----------------------------------------------------------------


def odd_file(draw: random.Random) -> str:
    """Mostly plain lines, some with quotes, ids, missing cells, other spellings and line breaks in a cell."""
    odd = ['1,"0.5",1,e', "1,,1,e", "nan,1,1,e", "1,1,,e", "1,2", '"1\n",2,1,"two\nlines"', "1_0,+2, 1 ,"]
    odd += ["x,1,1,e", "1,1,maybe,e", "", "-0,1e999,1,e", "-0,01,0,7", '1,2,1,"e""', '"', "1,2,1,é"]
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
    draw = random.Random(1)
    decoders = replay.csv_decoder
    for number in range(6):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(odd_file(draw).encode("latin-1" if number == 5 else "utf-8"))
        one_by_one = replayed(path, 1)
        assert b'"learned"' in one_by_one[0]
        assert one_by_one[1]
        monkeypatch.setattr(replay, "_BLOCK", draw.choice([100, 1000, 1 << 18]))
        for size in (7, 1000):
            assert replayed(path, size) == one_by_one
        monkeypatch.setattr(
            replay, "csv_decoder", lambda *args, **taking: lambda record: decoders(*args, **taking)(record)
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
    monkeypatch.setattr(replay, "_BLOCK", len(line) * 10)
    summaries: list[dict[str, Any]] = []
    with terminal(monkeypatch) as written, file.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        name = "-" if piped else str(file)
        replay.replay_file(
            config_of(10), name, output=output, dead_letters=None, serve=False, report=summaries.append
        )
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
