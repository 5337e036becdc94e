"""Numbers that a file had as texts: a forest takes them for categories, and says so."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from river import stream

from streampair import auc, ranking

MAKES = {
    "Forest": lambda: auc.Forest(3, 31, seed=1),
    "MulticlassForest": lambda: auc.MulticlassForest(3, 31, seed=1),
    "ranking.Forest": lambda: ranking.Forest(3, 31, seed=1),
}
every_forest = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def file(path: Path, rows: int = 150) -> Path:
    draw = random.Random(0)
    lines = [
        f"{draw.gauss(0, 1):.4f},{draw.randrange(3)},{draw.choice(['NL', '7'])},{draw.randrange(2)}"
        for _ in range(rows)
    ]
    path.write_text("\n".join(["amount,code,country,y", *lines]))
    return path


def taught(model: Any, path: Path, converters: dict[str, Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in stream.iter_csv(str(path), target="y", converters={"y": int, **converters}):
            model.learn_one(x, y)
    return [str(warning.message) for warning in caught]


@every_forest
def test_a_column_of_many_numbers_is_warned_of_once(make: Any, tmp_path: Path) -> None:
    """Not one of few, which are codes, nor one with other texts."""
    (warning,) = taught(make(), file(tmp_path / "a.csv"), {})
    assert warning.startswith("'amount' had texts that read as numbers")
    assert "converters=" in warning


@every_forest
@pytest.mark.parametrize(("rows", "converters"), [(150, {"amount": float}), (99, {})])
def test_nothing_is_said_of_numbers_or_of_few_records(
    make: Any, tmp_path: Path, rows: int, converters: dict[str, Any]
) -> None:
    assert taught(make(), file(tmp_path / "a.csv", rows), converters) == []


@every_forest
def test_batches_and_copies_say_it_too(make: Any) -> None:
    draw = random.Random(0)
    xs = [{"amount": f"{draw.random()}"} for _ in range(120)]
    model = make()
    model.learn_one(xs[0], 1)
    other = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="'amount' had texts"):
        model.prepare_many(xs, [1] * 120).take()
    with pytest.warns(UserWarning, match="'amount' had texts"):
        [other.learn_one(x, 0) for x in xs]
