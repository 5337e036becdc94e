"""What users may import, and that it is documented."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version

import pytest

import streampair

PUBLIC = [
    "auc",
    "buffers",
    "evaluation",
    "history",
    "losses",
    "metric",
    "models",
    "offline",
    "plots",
    "preprocessing",
    "privacy",
    "ranking",
    "schedules",
    "sklearn",
]


def test_the_package() -> None:
    assert streampair.__version__ == version("streampair")
    assert sorted(streampair.__all__) == [*PUBLIC]


@pytest.mark.parametrize("name", [*PUBLIC, "errors"])
def test_a_module_says_what_is_public(name: str) -> None:
    module = importlib.import_module(f"streampair.{name}")
    names = list(module.__all__)
    assert names == sorted(names)
    assert module.__doc__
    for public in names:
        thing = getattr(module, public)
        assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
        if inspect.isclass(thing):
            for attribute, value in vars(thing).items():
                if attribute.startswith("_") or not (callable(value) or isinstance(value, property)):
                    continue
                assert inspect.getdoc(getattr(thing, attribute)), f"{name}.{public}.{attribute}"


@pytest.mark.parametrize("name", ["auc", "metric", "ranking"])
def test_a_learner_is_made_of_at_most_four_classes_of_the_package(name: str) -> None:
    """Itself, its mixin, what it learns with, and `Learner`: whoever reads a learner opens no more."""
    module = importlib.import_module(f"streampair.{name}")
    for public in module.__all__:
        ours = [c.__name__ for c in getattr(module, public).__mro__ if c.__module__.startswith("streampair.")]
        assert len(ours) <= 4, ours
