"""Programs of others that tests run, each built once with Go into the user's cache, as kubemark is.

A program has a directory with a go.mod that names it as a tool, and the go.sum of all it needs; the
kubelet, its hollow sibling and the Kubernetes project's end-to-end tests are of the control plane's
module. `go_program.py NAME...` builds them, the kubelet of the release that is TESTED; with
`controlplanes` those of all releases, with `outermost` those of the oldest and the newest.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from fleet import KUBERNETES_VERSION
from fleet.controlplane.binaries import (
    BUILT,
    MODULE,
    built_release,
    cache_directory,
    linker_flags,
)
from fleet.controlplane.build import GoBuild, build_binaries, find_go, held_lock
from fleet.controlplane.options import Progress, no_progress

TESTED = built_release(os.environ.get("FLEET_TEST_MINOR", "")) or KUBERNETES_VERSION
"""The release of the control planes and kubelets that tests start: FLEET_TEST_MINOR=1.35."""
E2E_TEST = "e2e.test"
GINKGO = "ginkgo"
E2E_PACKAGES = {E2E_TEST: "k8s.io/kubernetes/test/e2e", GINKGO: "github.com/onsi/ginkgo/v2/ginkgo"}


def to_stderr(line: str) -> None:
    """Print a line as progress."""
    print(line, file=sys.stderr, flush=True)


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
        super().__init__(go, target, progress, release="")
        self._program = program

    async def _make(self, work: Path) -> None:
        program = self._program
        await self._build(work / program.name, program.package, "-ldflags", "-s -w")


class _SiblingBuild(GoBuild):
    """The build of a program with the modules, and the version, of the control plane."""

    def __init__(self, name: str, go: str, target: Path, progress: Progress, release: str) -> None:
        self.what = f"the {name} {release}"
        super().__init__(go, target, progress, release)
        self._name = name

    async def _make(self, work: Path) -> None:
        await self._build(work / self._name, f"k8s.io/kubernetes/cmd/{self._name}")


class _E2eBuild(GoBuild):
    """The build of the Kubernetes project's tests, with the very modules of the control plane.

    They need two modules more. A copy of go.mod takes those, at the versions that Kubernetes
    requires: what ships to users who only want a control plane stays as it is.
    """

    what = "the Kubernetes end-to-end tests"

    async def _make(self, work: Path) -> None:
        modfile = work / "e2e.mod"
        shutil.copyfile(MODULE / f"{self._release}.mod", modfile)
        shutil.copyfile(MODULE / f"{self._release}.sum", modfile.with_suffix(".sum"))
        for name, package in E2E_PACKAGES.items():
            self._shown.begin(f"compiling and linking {name}")
            command = ("test", "-c", "-vet=off") if name == E2E_TEST else ("build",)
            flags = ("-mod=mod", f"-modfile={modfile}", "-trimpath", "-buildvcs=false")
            linking = ("-ldflags", " ".join(linker_flags(self._release)))
            output = (*linking, "-o", str(work / name), package)
            await self._go_command(lambda _line: None, *command, *flags, *output)


async def build_kubemark(progress: Progress = no_progress) -> Path:
    """Build the hollow kubelet that fleet is compared with, unless it is there."""
    return await _build_sibling("kubemark", progress)


async def build_kubelet(progress: Progress = no_progress) -> Path:
    """Build the kubelet that nodes of a cluster run, unless it is there."""
    return await _build_sibling("kubelet", progress, TESTED)


async def _build_sibling(name: str, progress: Progress, release: str = KUBERNETES_VERSION) -> Path:
    target = _sibling(name, release)
    async with held_lock(target, progress):
        if not os.access(target / name, os.X_OK):
            await _SiblingBuild(name, await find_go(), target, progress, release).run()
    return target / name


async def build_e2e_tests(progress: Progress = no_progress) -> Path:
    """Build `e2e.test` and its runner `ginkgo`, unless they are there; return their directory."""
    target = _sibling("e2e")
    async with held_lock(target, progress):
        if not all(os.access(target / name, os.X_OK) for name in E2E_PACKAGES):
            await _E2eBuild(await find_go(), target, progress).run()
    return target


def _sibling(name: str, release: str = KUBERNETES_VERSION) -> Path:
    built = cache_directory(release)
    built.parent.mkdir(parents=True, exist_ok=True)
    return built.with_name(f"{built.name}-{name}")


_ROOT = Path(__file__).parents[2]
HELM = GoProgram("helm", "Helm", _ROOT / "tests" / "chart" / "helm", "helm.sh/helm/v4/cmd/helm")
METRICS_SERVER = GoProgram(
    "metrics-server",
    "metrics-server",
    _ROOT / "tests" / "metrics_server" / "module",
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
)
KWOK = GoProgram("kwok", "KWOK", _ROOT / "bench" / "kwok", "sigs.k8s.io/kwok/cmd/kwok")

if __name__ == "__main__":
    for each in (HELM, METRICS_SERVER, KWOK):
        if each.name in sys.argv[1:]:
            print(each.path())
    of_all = [*BUILT.values()]
    for name, wanted in ("controlplanes", of_all), ("outermost", [of_all[0], of_all[-1]]):
        for release in wanted if name in sys.argv[1:] else ():
            print(asyncio.run(build_binaries(to_stderr, release)).source)
    if "kubelet" in sys.argv[1:]:
        print(asyncio.run(build_kubelet(to_stderr)))
    if "kubemark" in sys.argv[1:]:
        print(asyncio.run(build_kubemark(to_stderr)))
