"""Programs of others that tests run, each built once with Go into the user's cache, as kubemark is.

A program has a directory with a go.mod that names it as a tool, and the go.sum of all it needs.
`go_program.py NAME...` builds them.
"""

import asyncio
import fcntl
import hashlib
import sys
from pathlib import Path
from typing import NamedTuple

from fleet.controlplane.binaries import cache_directory
from fleet.controlplane.build import GoBuild, find_go, to_stderr
from fleet.controlplane.options import Progress


class GoProgram(NamedTuple):
    """What to build, and from where."""

    name: str
    what: str
    module: Path
    package: str

    def path(self) -> Path:
        """Return the program, building it if it is not there: two minutes on 2 cores."""
        digest = hashlib.sha256((self.module / "go.sum").read_bytes()).hexdigest()[:12]
        target = cache_directory().parent.parent / self.name / digest / self.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                asyncio.run(_build(self, target))
        return target


async def _build(program: GoProgram, target: Path) -> None:
    built = target.with_name("built")
    await _ProgramBuild(program, await find_go(), built, to_stderr).run()
    (built / program.name).rename(target)


class _ProgramBuild(GoBuild):
    def __init__(self, program: GoProgram, go: str, target: Path, progress: Progress) -> None:
        self.what = program.what
        self.module = program.module
        super().__init__(go, target, progress)
        self._program = program

    async def _make(self, work: Path) -> None:
        program = self._program
        await self._build(work / program.name, program.package, "-ldflags", "-s -w")


_HERE = Path(__file__).parent
HELM = GoProgram("helm", "Helm", _HERE / "chart" / "helm", "helm.sh/helm/v4/cmd/helm")
METRICS_SERVER = GoProgram(
    "metrics-server",
    "metrics-server",
    _HERE / "metrics_server" / "module",
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
)
KWOK = GoProgram("kwok", "KWOK", _HERE / "bench" / "kwok", "sigs.k8s.io/kwok/cmd/kwok")

if __name__ == "__main__":
    for each in (HELM, METRICS_SERVER, KWOK):
        if each.name in sys.argv[1:]:
            print(each.path())
