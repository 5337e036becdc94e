"""CapyMOA's learners over one pass of a stream. For `rivals.py`; needs Java.

MOA reads texts as nominal attributes, and knows gaps: the stream is an ARFF file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _rival import Task, main
from capymoa import classifier
from capymoa.stream import ARFFStream


def _write(task: Task, path: Path) -> None:
    codes = [{value: f"v{i}" for i, value in enumerate(filter(None, values))} for values in task.levels()]
    with path.open("w") as file:
        file.write("@relation stream\n")
        for j in range(len(task.number_names)):
            file.write(f"@attribute n{j} numeric\n")
        for j, code in enumerate(codes):
            file.write(f"@attribute t{j} {{{','.join(code.values())}}}\n")
        file.write("@attribute class {0,1}\n@data\n")
        for numbers, texts, y in zip(task.numbers.tolist(), task.texts.tolist(), task.labels, strict=True):
            cells = [repr(v) if v == v else "?" for v in numbers]
            cells += [code.get(v, "?") for code, v in zip(codes, texts, strict=True)]
            file.write(",".join([*cells, str(int(y))]) + "\n")


def _of(learner: Any) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stream.arff"
            _write(task, path)
            stream = ARFFStream(str(path))
            model = learner(schema=stream.get_schema(), random_seed=seed)
            while stream.has_more_instances():
                instance = stream.next_instance()
                found = model.predict_proba(instance)
                total = 0.0 if found is None else float(np.sum(found))
                yield float(found[1]) / total if found is not None and len(found) > 1 and total else 0.0
                model.train(instance)

    return run


if __name__ == "__main__":
    main(
        {
            "ARF": _of(classifier.AdaptiveRandomForestClassifier),
            "SRP": _of(classifier.StreamingRandomPatches),
            "SGBT": _of(classifier.StreamingGradientBoostedTrees),
            "LeveragingBagging": _of(classifier.LeveragingBagging),
        },
        ("capymoa",),
    )
