"""Learn from pairs, online, from event streams, under differential privacy."""

from __future__ import annotations

from importlib.metadata import version as _version

__version__ = _version("streampair")
