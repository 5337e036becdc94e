"""Parameters of private learners as flat keywords, for tests that vary one at a time."""

from __future__ import annotations

from typing import Any

from streampair import privacy

_PAIRS = ("loss", "buffer", "clip", "strategy", "positive_rate")


def folded(options: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `PairFTRL`, with those of gradients in its mechanism."""
    found = {name: value for name, value in options.items() if name not in _PAIRS}
    pairs = {name: options[name] for name in _PAIRS if options.get(name) is not None}
    if pairs:
        assert "mechanism" not in found, "what is flat has no place in another mechanism"
        found["mechanism"] = privacy.PairGradients(**pairs)
    return found
