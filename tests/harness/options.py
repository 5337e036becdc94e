"""Parameters of private learners as flat keywords, for tests that vary one at a time."""

from __future__ import annotations

from typing import Any

from streampair import privacy

_PAIRS = ("loss", "buffer", "clip", "strategy", "positive_rate")


def folded(options: dict[str, Any]) -> dict[str, Any]:
    """Parameters of `PairFTRL`, with those of gradients in its mechanism (`anchor`: with an anchor)."""
    found = {name: value for name, value in options.items() if name not in (*_PAIRS, "anchor")}
    pairs = {name: options[name] for name in _PAIRS if options.get(name) is not None}
    if pairs:
        assert "mechanism" not in found, "what is flat has no place in another mechanism"
        kind = privacy.AnchorGradients if options.get("anchor") else privacy.PairGradients
        found["mechanism"] = kind(**pairs)
    return found
