"""Health of the container: what listens in it says at /livez whether it is alive, on whatever port.

`run` listens on `metrics.address`, and `serve` on `--port`: the image knows neither.
"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

SECONDS = 2.0
LISTENS = "0A"


def listening(table: str) -> set[int]:
    """Ports of a table such as /proc/net/tcp on which something listens."""
    rows = (line.split() for line in table.splitlines()[1:])
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == LISTENS}


def status(port: int) -> int | None:
    """HTTP status of /livez on a port of this host; None: it is no server of HTTP, or does not answer."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    for url in (f"http://localhost:{port}/livez", f"https://localhost:{port}/livez"):
        try:
            with urllib.request.urlopen(url, timeout=SECONDS, context=unverified) as answer:  # noqa: S310  # http(s) alone
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, ValueError):
            continue
    return None


def healthy(ports: Iterable[int]) -> bool:
    """Whether some server says that it is alive, and none that it is not."""
    found = [status(port) for port in sorted(ports)]
    return 200 in found and 503 not in found


if __name__ == "__main__":
    tables = (Path(path) for path in ("/proc/net/tcp", "/proc/net/tcp6"))
    ports = set().union(*(listening(table.read_text()) for table in tables if table.exists()))
    sys.exit(0 if healthy(ports) else 1)
