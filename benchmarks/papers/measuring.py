"""A measurement by its definition, whatever its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampair.errors import StreampairError

from . import curves, pair_graph, protocol

__all__ = ["measure"]


def measure(job: Mapping[str, Any], data: protocol.Sample, seed: int) -> protocol.Outcome:
    """Measure once.

    Parameters
    ----------
    job
        What `Cell.job` gave.
    data
        The set.
    seed
        Draws the learned records and the noise.

    Returns
    -------
    Outcome
        A learner that refuses gives its words as the reason.
    """
    function = pair_graph.related if job["task"] == "pair_graph" else curves.MEASURES.get(job["measure"])
    try:
        return (function or protocol.learned)(job, data, seed)
    except StreampairError as error:
        return protocol.Outcome(reason=error.problem)
