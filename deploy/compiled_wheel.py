"""Put compiled kernels into a wheel, for any processor of this architecture: `make wheel`.

    python deploy/compiled_wheel.py WHEEL FOLDER

Writes a wheel for this version of Python, whose kernels were compiled with this version of numba, into the
folder, and prints its path. With another Python pip does not take it; with another numba its kernels are
compiled when they are first used, as without it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

COMPILED = Path("streampair", "kernels", "compiled")
TESTS = Path(__file__).parent.parent / "tests"
#: What a worker calls, what a program calls, and the first record of one.
_PROGRAMS = (
    "from streampair_connectors.worker.factory import compile_kernels; compile_kernels()",
    "from harness import warm; warm.main()",
    "from streampair import auc; auc.PairOGD().predict_proba_one({'a': 1.0})",
)


def compile_kernels(folder: Path) -> None:
    """Compile the kernels of an unpacked wheel into the folder of it that is looked in."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environment |= {
        "NUMBA_CPU_NAME": "generic",
        "PYTHONPATH": f"{folder}:{TESTS}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for code in _PROGRAMS:
        command = [sys.executable, "-W", "ignore", "-c", code]
        subprocess.run(command, env=environment, cwd=TESTS, check=True)  # noqa: S603  # our own code
    written = folder / COMPILED.parent / "__pycache__"
    (folder / COMPILED).mkdir()
    for file in sorted(written.glob("*.nb[ic]")):
        shutil.move(file, folder / COMPILED / file.name)
    shutil.rmtree(written)


def main() -> None:
    pure, out = Path(sys.argv[1]), Path(sys.argv[2])
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    abi = python + getattr(sys, "abiflags", "")  # "t" where threads are free; Windows has none
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name, version, *_ = pure.stem.split("-")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        with zipfile.ZipFile(pure) as archive:
            archive.extractall(folder)
        compile_kernels(folder)
        info = folder / f"{name}-{version}.dist-info"
        lines = (info / "WHEEL").read_text().splitlines()
        lines = [line for line in lines if line.split(":")[0] not in ("Tag", "Root-Is-Purelib")]
        lines += ["Root-Is-Purelib: false", f"Tag: {python}-{abi}-{platform}"]
        (info / "WHEEL").write_text("\n".join(lines) + "\n")
        (info / "RECORD").unlink()
        target = out / f"{name}-{version}-{python}-{abi}-{platform}.whl"
        record = []
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                path, content = file.relative_to(folder).as_posix(), file.read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record.append(f"{path},sha256={digest},{len(content)}")
                archive.writestr(path, content)
            path = (info / "RECORD").relative_to(folder).as_posix()
            archive.writestr(path, "\n".join([*record, f"{path},,", ""]))
    print(target)


if __name__ == "__main__":
    main()
