"""The pair losses of the registry: tests that are parametrised over these meet a new loss by themselves."""

from __future__ import annotations

from streampair import losses

EVERY: list[losses.PairLoss] = [kind() for kind in losses.registry.values()]
#: Those that are functions of the margin.
MARGIN: list[losses.PairLoss] = [loss for loss in EVERY if not loss.of_errors]


def name_of(loss: losses.PairLoss) -> str:
    """The name by which the reference implementations know it."""
    return type(loss).__name__
