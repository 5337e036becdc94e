"""The requests of the page on serving, as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

from harness import pages, support
from harness.serving import Serving
from streampair_connectors.serve.series import STATUSES

from streampair import auc, models

PAGE = "docs/serving.md"


def test_the_requests_are_answered_as_shown() -> None:
    if shutil.which("curl") is None:
        support.unavailable("curl", "install it (Debian: apt-get install curl)")
    learner = auc.PairOGD()
    for i in range(300):
        learner.learn_one({"amount": float(i % 100), "distance": float(i % 7)}, i % 100 > 50)
    model = models.export(learner, time=1_700_000_000_000)
    requests = [block for block in pages.blocks(PAGE) if block.language == "bash" and "/score" in block.text]
    assert len(requests) == 2
    with Serving.of(model) as serving:
        for block in requests:
            command = shlex.split(block.text.replace("localhost:8080", serving.address))
            answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            example = block.following
            assert example is not None
            expected = json.loads(example.text)
            assert answer.keys() == expected.keys()
            assert answer["model"] == expected["model"]
            events = json.loads(command[-1])
            if isinstance(events, list):
                assert answer["scores"] == [model.score_one(x) for x in events]
                assert len(expected["scores"]) == len(events)
            else:
                assert answer["score"] == model.score_one(events)


def test_every_status_has_a_row() -> None:
    statuses = {int(row[0]) for row in pages.rows(pages.section(pages.text_of(PAGE), "## Refusals"))}
    assert statuses == set(STATUSES) - {200}


def test_every_series_has_a_row() -> None:
    rows = pages.rows(pages.section(pages.text_of(PAGE), "## Operation"))
    series = {row[0].strip("`") for row in rows}
    with Serving.of(models.export(auc.PairOGD())) as serving:
        serving.post("/score", {"a": 1})
        text = serving.get("/metrics").body.decode()
    assert series == {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
