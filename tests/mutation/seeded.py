"""A pytest plugin: the same examples every time; and a failure is not made smaller, which takes longest."""

from __future__ import annotations

import hypothesis
from hypothesis import HealthCheck, Phase

hypothesis.settings.register_profile(
    "seeded",
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
