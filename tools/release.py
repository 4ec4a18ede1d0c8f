"""Make everything that a release consists of.

    python tools/release.py [--without-controlplane]

writes into dist/: sdist and wheel of fleet, requirements.txt (every dependency with its hashes),
the bill of materials (CycloneDX), the Helm chart, the wheel of the control plane's programs, and
SHA256SUMS of all of them. The files are the same, byte for byte, whenever and wherever this commit
is built with the same tools. A stale requirements.txt is refused before anything is built.
"""

import asyncio
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml

from fleet.controlplane.binaries import PROGRAM, cache_directory
from fleet.controlplane.build import build_binaries
from tools import controlplane_wheel, lock, sbom

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
REQUIREMENTS = lock.LOCK
CHART = ROOT / "charts" / "fleet"
SUMS = "SHA256SUMS"


def build(directory: Path) -> None:
    """Build sdist and wheel. hatchling dates all files alike; the variable would change that."""
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    command = (sys.executable, "-m", "hatchling", "build", "--directory", str(directory))
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    shutil.copyfile(REQUIREMENTS, directory / REQUIREMENTS.name)


def pack_chart(directory: Path) -> Path:
    """Pack the chart as `helm package` does, but the same bytes each time; return the archive."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(CHART.parent)))
            entry.size = path.stat().st_size
            entry.mode = 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    target = directory / f"{CHART.name}-{version}.tgz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return target


def checksums(directory: Path) -> str:
    """Return a line for each file, as `sha256sum --check` reads them."""
    files = sorted(path for path in directory.iterdir() if path.name != SUMS)
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def main() -> None:
    """Empty dist/ and fill it."""
    lock.check()
    shutil.rmtree(DIST, ignore_errors=True)
    build(DIST)
    sbom.write(DIST)
    pack_chart(DIST)
    if "--without-controlplane" not in sys.argv[1:]:
        asyncio.run(build_binaries(print))
        controlplane_wheel.pack(cache_directory() / PROGRAM, DIST)
    (DIST / SUMS).write_text(checksums(DIST))
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
