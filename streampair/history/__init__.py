"""Learn a private model from a table of any size, on any engine: sums of its parts, then one release.

An engine that reads the table (Spark, Dask, Ray, or a loop) calls `Job.sums` on each of its batches, and adds
up what comes back. Noise is drawn once, on the driver, which alone has the key (docs/history.md).
"""

from __future__ import annotations

from streampair.history.jobs import ASSUMED, Job, Sums, fit

__all__ = ["ASSUMED", "Job", "Sums", "fit"]
