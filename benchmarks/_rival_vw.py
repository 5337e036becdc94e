"""Vowpal Wabbit over one pass of a stream. For `rivals.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from _rival import Task, main
from vowpalwabbit import Workspace


def _lines(task: Task) -> Iterator[str]:
    for numbers, texts in zip(task.numbers.tolist(), task.texts.tolist(), strict=True):
        cells = [f"n{j}:{v!r}" for j, v in enumerate(numbers) if v == v]
        cells += [f"t{j}={_escaped(v)}" for j, v in enumerate(texts) if v]
        yield "|f " + " ".join(cells)


def _escaped(text: str) -> str:
    """A text without the characters that its format gives a meaning."""
    return text.replace(" ", "_").replace(":", "_").replace("|", "_")


def _of(options: str) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        model = Workspace(f"--loss_function logistic --link logistic --quiet --random_seed {seed} {options}")
        for line, y in zip(_lines(task), task.labels.tolist(), strict=True):
            yield float(model.predict(line))
            model.learn(f"{1 if y else -1} {line}")
        model.finish()

    return run


if __name__ == "__main__":
    main({"VW": _of(""), "VW, pairs": _of("--interactions ff")}, ("vowpalwabbit",))
