"""Check a bill of materials: each package is pinned, and says what its licence is.

python deploy/sbom.py dist/streampair.cdx.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# They come with the environment, and are no dependencies.
INSTALLERS = {"pip", "setuptools"}


def normalised(name: str) -> str:
    """The name of a package as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def problems(bill: dict[str, Any], constraints: str) -> list[str]:
    """What is wrong with a bill: one line for each package that is not pinned, or has no licence."""
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    pinned = {normalised(name): version for name, version in (line.split("==") for line in lines)}
    found = []
    for component in bill["components"]:
        name, version = normalised(component["name"]), component["version"]
        if name in INSTALLERS:
            continue
        if pinned.get(name) != version:
            found.append(f"{name} {version}: constraints.txt has {pinned.get(name, 'no pin')}")
        if not component.get("licenses"):
            found.append(f"{name} {version}: no licence")
    return found


def main() -> int:
    bill = json.loads(Path(sys.argv[1]).read_text())
    found = problems(bill, (ROOT / "constraints.txt").read_text())
    print("\n".join(found) or f"{len(bill['components'])} packages, each pinned and with a licence")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
