"""Defects of a table's releases, which both of its audits have to catch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from streampair.history import jobs
from streampair.history.jobs import Job, Sums


def less_noise(patch: pytest.MonkeyPatch) -> None:
    """Both releases have a tenth less noise than they should."""
    plan, moments = jobs.plan_sample, jobs.moments_release
    patch.setattr(jobs, "plan_sample", lambda mu, *more: plan(1.1 * mu, *more))
    patch.setattr(
        jobs,
        "moments_release",
        lambda plan: dataclasses.replace(moments(plan), sigmas=moments(plan).sigmas / 1.1),
    )


def both_stages(patch: pytest.MonkeyPatch) -> None:
    """The sample is not disjoint: the second stage sums up all rows, and nobody counts."""
    patch.setattr(Job, "_check", lambda self, sums: None)
    true = Job._sums_and_ids

    def all_rows(self: Job, batch: Any) -> tuple[Sums, np.ndarray]:
        sums, ids = true(self, batch)
        if self.stage == 1:
            return sums, ids
        whole = Job.__new__(Job)
        whole.__setstate__((dataclasses.replace(self._plain, below=0), self._standardisation))
        return dataclasses.replace(sums, cells=true(whole, batch)[0].cells), ids

    patch.setattr(Job, "_sums_and_ids", all_rows)
