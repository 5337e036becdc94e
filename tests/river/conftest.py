"""A fresh copy of a learner of the contract."""

from __future__ import annotations

import copy
from typing import Any

import pytest


@pytest.fixture
def fresh(model: Any) -> Any:
    return copy.deepcopy(model)
