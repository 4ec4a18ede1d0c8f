"""Pack the programs of the local control plane as a wheel, for machines without Go or network.

    python tools/controlplane_wheel.py DIRECTORY [PROGRAM]

The wheel holds the one static binary that is all components, and fleet finds it by its metadata
(fleet/controlplane/binaries.py). Packed twice it is the same, byte for byte.
"""

import base64
import hashlib
import platform
import shutil
import stat
import sys
import zipfile
from pathlib import Path

from fleet import KUBERNETES_VERSION
from fleet.controlplane.binaries import (
    PACKAGE,
    PACKAGE_MODULE,
    PROGRAM,
    cache_directory,
)

ROOT = Path(__file__).parent.parent
VERSION = KUBERNETES_VERSION.removeprefix("v")
TIMESTAMP = (2020, 2, 2, 0, 0, 0)
"""Of every file in it, as hatchling dates those of a wheel."""

METADATA = f"""\
Metadata-Version: 2.4
Name: {PACKAGE}
Version: {VERSION}
Summary: etcd and the Kubernetes control plane as one program, for fleet-emulator
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
"""


def pack(program: Path, directory: Path) -> Path:
    """Write the wheel into a directory and return its path."""
    machine = platform.machine()
    # The program is static: any Linux of this machine type runs it, whatever its libc.
    platforms = (f"manylinux_2_17_{machine}", f"musllinux_1_1_{machine}")
    info = f"{PACKAGE_MODULE}-{VERSION}.dist-info"
    tags = "".join(f"Tag: py3-none-{each}\n" for each in platforms)
    head = "Wheel-Version: 1.0\nGenerator: fleet\nRoot-Is-Purelib: false\n"
    files = {
        f"{info}/METADATA": METADATA.encode(),
        f"{info}/WHEEL": (head + tags).encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{PACKAGE_MODULE}-{VERSION}-py3-none-{'.'.join(platforms)}.whl"
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as wheel:
        inside = f"{PACKAGE_MODULE}/{PROGRAM}"
        with program.open("rb") as source, wheel.open(_entry(inside, 0o755), "w") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        record = [_record(inside, program.read_bytes())]
        for name, content in files.items():
            wheel.writestr(_entry(name, 0o644), content)
            record.append(_record(name, content))
        lines = "".join(f"{line}\n" for line in (*record, f"{info}/RECORD,,"))
        wheel.writestr(_entry(f"{info}/RECORD", 0o644), lines)
    return partial.rename(path)


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, TIMESTAMP)
    entry.external_attr = (stat.S_IFREG | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def main() -> None:
    """Pack what `fleet controlplane build` left, or a program that is named."""
    directory = Path(sys.argv[1])
    program = Path(sys.argv[2]) if len(sys.argv) > 2 else cache_directory() / PROGRAM
    print(pack(program, directory))


if __name__ == "__main__":
    main()
