"""Model files as a release writes them, for later releases: ``python tests/golden/make_models.py FOLDER``.

Run it with the release whose files are to be kept, and never again. `tests/unit/test_model_files.py` reads
each file and compares the scores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make

from streampair import auc, models, ranking

TEXTS = ["NL", "BE", "DE"]
CATEGORIES = [f"country={text}" for text in TEXTS]

MODELS: dict[str, Callable[[], Any]] = {
    **{name: new for name, new in make.MODELS.items() if name != "pipeline"},
    "auc.PairOGD-texts": lambda: auc.PairOGD(seed=1),
    "auc.PairOGD-shared-texts": lambda: auc.PairOGD(seed=1, max_features=3),
    "ranking.PairOGD-texts": lambda: ranking.PairOGD(seed=1),
    "auc.Forest-texts": lambda: auc.Forest(9, 15, seed=1),
    "auc.MulticlassForest-texts": lambda: auc.MulticlassForest(9, 15, positive="high", seed=1),
    "ranking.Forest-texts": lambda: ranking.Forest(9, 15, relevance=(0, 4), seed=1),
    "auc.PrivateForest-categories": lambda: auc.PrivateForest(
        24.0, 1e-3, 90, warmup=20, trees=3, depth=2, features=["a", *CATEGORIES], noise_key=make.KEY
    ),
}


def stream(name: str) -> list[tuple[dict[str, Any], Any]]:
    """Labelled records that suit a model: those of the snapshots, some with texts, categories and gaps."""
    rows: list[tuple[dict[str, Any], Any]] = []
    for i, (x, y) in enumerate(make.stream(name)):
        text = TEXTS[i % 3] if i % 4 else TEXTS[0]
        label = y
        if name.endswith("-texts"):
            x = {"a": x["a"], "text": text} if i % 5 else {"text": text, "b": x["b"]}
            if "PairOGD" in name and i % 7 == 0:
                x |= {"a": None, "b": 1e9 + i}
        elif name.endswith("-categories"):
            x = {"a": x["a"], **{name: float(name.endswith(text)) for name in CATEGORIES}}
            label = text == TEXTS[0]
        if name.startswith("ranking.Forest"):
            label = 2.0 + x.get("a", 0.0)
        elif name.startswith("auc.Multi"):
            label = "high" if y else text
        rows.append((x, label))
    return rows


def queries(name: str) -> list[dict[str, Any]]:
    """Records to be scored: whole ones, ones with gaps, and names that no model knows."""
    rows = [x for x, _ in stream(name)[make.BEFORE :]]
    return [*rows, *({key: x[key] for key in list(x)[1:]} for x in rows[:5]), {**rows[0], "new": 1.0}]


def results(model: Any, name: str) -> dict[str, list[Any]]:
    """What a model says of these records."""
    out: dict[str, list[Any]] = {"scores": [model.score_one(x) for x in queries(name)]}
    if not name.startswith("metric"):
        out["predictions"] = [model.predict_one(x) for x in queries(name)]
    if name.startswith("auc"):
        out["probabilities"] = [list(model.predict_proba_one(x).values()) for x in queries(name)]
    return out


def main(folder: Path) -> None:
    """Write the file of each model, and what its learner says."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, new in MODELS.items():
        learner = new()
        for x, y in stream(name)[: make.BEFORE]:
            learner.learn_one(x, y)
        models.save(
            models.export(learner, time=1_700_000_000_000, metadata={"application": name}),
            folder / f"{name}.json",
        )
        expected[name] = results(learner, name)
    (folder / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
