"""Starts Prometheus over a worker on this machine, with deploy's rules: `make prometheus`.

    python local.py [METRICS_URL] [--port 9090] [--data DIRECTORY] [--print]

METRICS_URL is what `streampair run` and `demo --serve` print; http://127.0.0.1:9464/metrics
without it. The configuration is deploy/prometheus/prometheus.yml with that one target; --print shows it and
starts nothing. Ctrl-C ends Prometheus.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import urllib.parse
from pathlib import Path

HERE = Path(__file__).resolve().parent


def configuration(url: str) -> str:
    """deploy's configuration, with one target and the rules by their whole path."""
    target = urllib.parse.urlsplit(url if "//" in url else f"//{url}").netloc
    if not re.fullmatch(r"[\w.\-\[\]:]+:\d+", target):
        sys.exit(f"{url!r} is no address of metrics; write http://127.0.0.1:9464/metrics")
    text = (HERE / "prometheus.yml").read_text()
    static = f"    static_configs:\n      - targets: [{json.dumps(target)}]\n"
    text, found = re.subn(r" +dns_sd_configs:\n(?: {6,}.*\n)+", static, text)
    text, rules = re.subn(r"- rules\.yml", f"- {json.dumps(str(HERE / 'rules.yml'))}", text)
    assert (found, rules) == (1, 1), "prometheus.yml is no longer what this program knows"
    return text


def main() -> None:
    """Write the configuration, and become Prometheus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:9464/metrics", metavar="METRICS_URL")
    parser.add_argument("--port", type=int, default=9090)
    parser.add_argument("--data", type=Path, help="where it keeps its data; without it a temporary directory")
    parser.add_argument("--print", action="store_true", dest="show")
    arguments = parser.parse_args()
    text = configuration(arguments.url)
    if arguments.show:
        print(text, end="")
        return
    program = shutil.which("prometheus")
    if program is None:
        sys.exit("there is no prometheus on the path; install it (Debian: apt-get install prometheus)")
    directory = (
        Path(tempfile.mkdtemp(prefix="streampair-prometheus-")) if arguments.data is None else arguments.data
    )
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "prometheus.yml"
    file.write_text(text)
    print(f"Prometheus: http://127.0.0.1:{arguments.port}/alerts (data in {directory})", flush=True)
    command = [
        program,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{arguments.port}",
    ]
    os.execv(program, command)  # noqa: S606  # a program and its arguments: no shell is wanted


if __name__ == "__main__":
    main()
