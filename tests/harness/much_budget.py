"""Budgets under which noise hides nothing, for tests of what else learners do: no delta is kept with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streampair.privacy.mechanisms import base, offline
from streampair.privacy.sensitivity import LONGEST


@contextmanager
def much_budget() -> Iterator[None]:
    """Accept any epsilon while it is open."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (base, offline):
            patch.setattr(module, "rounding_limit", lambda *_, **__: LONGEST)
        yield
