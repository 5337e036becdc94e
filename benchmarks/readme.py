"""Write what the benchmarks print into the README, between its markers.

    python benchmarks/readme.py [NAME ...]

Each block is what its commands printed on the code as it is, with the commands above it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = {
    "demo": ["make demo"],
    "bench": ["make bench"],
    "utility": ["make utility"],
    "yang2021": ["streampair reproduce yang2021"],
    "plan": ["streampair budget plan --n 1e6 --d 20 --epsilon 1 --delta 1e-6 --positive-rate 0.01"],
    "broker-run": ["python benchmarks/broker_run.py"],
}


def run(command: str) -> str:
    """What a command prints, with the recipe lines that make echoes left out."""
    words = command.replace("make ", "make --silent ").replace("python ", f"{sys.executable} ").split()
    if words[0] == "streampair":
        words[:1] = [sys.executable, "-m", "streampair_connectors"]
    told = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return told.stdout.rstrip()


def main() -> None:
    names = sys.argv[1:] or list(BLOCKS)
    for name in names:
        blocks = [f"$ {command}\n{run(command)}" for command in BLOCKS[name]]
        text = "```text\n" + "\n".join(blocks) + "\n```"
        readme = ROOT / "README.md"
        pattern = rf"(<!-- begin: {re.escape(name)} -->\n).*?(<!-- end -->)"
        old = readme.read_text()
        if not re.search(pattern, old, re.S):
            sys.exit(f"README.md has no markers for {name!r}")
        readme.write_text(re.sub(pattern, lambda m, t=text: f"{m[1]}{t}\n{m[2]}", old, count=1, flags=re.S))
        print(f"README.md: {name}")


if __name__ == "__main__":
    main()
