"""A headless Chromium of the system; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness import support

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Return the path of a browser; skip without one."""
    named = os.environ.get("STREAMPAIR_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        support.unavailable(
            "a browser", "install Chromium (Debian: apt-get install chromium), or set STREAMPAIR_CHROMIUM"
        )
    support.note_used("browser", found)
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """Start it, and end it afterwards."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()
