"""The page of a run that has ended, as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import msgspec

from streampair_connectors.observability.dashboard.page import asset

__all__ = ["recorded_page"]

_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.]+)">\n')
_SCRIPT = re.compile(r'<script src="page/([\w.]+)" defer></script>\n')


def recorded_page(run: dict[str, Any]) -> bytes:
    """Return the page of a recorded run.

    Parameters
    ----------
    run
        The result of `frame`.

    Returns
    -------
    bytes
        One HTML file that needs nothing else, and whose policy allows it nothing else.
    """
    html = asset("page.html").decode()
    styles = [asset(name).decode() for name in _STYLE.findall(html)]
    scripts = [asset(name).decode() for name in _SCRIPT.findall(html)]
    # No text of the run can close the script element.
    data = msgspec.json.encode(run).decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += "".join(f"<style>{text}</style>\n" for text in styles)
    tail = f'<script type="application/json" id="data">{data}</script>\n'
    tail += "".join(f"<script>{text}</script>\n" for text in scripts)
    html = _SCRIPT.sub("", _STYLE.sub("", html))
    html = html.replace("<title>", f"{head}<title>", 1)
    return html.replace("</body>", f"{tail}</body>", 1).encode()


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
