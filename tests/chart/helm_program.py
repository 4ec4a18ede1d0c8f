"""Helm, built once with Go from the module in helm/ into the user's cache; as kubemark is."""

import asyncio
import fcntl
import hashlib
from pathlib import Path

from fleet.controlplane.binaries import cache_directory
from fleet.controlplane.build import GoBuild, find_go, to_stderr

MODULE = Path(__file__).parent / "helm"
PACKAGE = "helm.sh/helm/v4/cmd/helm"


def helm_program() -> Path:
    """Return the program, building it if it is not there: two minutes on 2 cores."""
    digest = hashlib.sha256((MODULE / "go.sum").read_bytes()).hexdigest()[:12]
    target = cache_directory().parent.parent / "helm" / digest / "helm"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            asyncio.run(_build(target))
    return target


async def _build(target: Path) -> None:
    built = target.with_name("built")
    await HelmBuild(await find_go(), built, to_stderr).run()
    (built / "helm").rename(target)


class HelmBuild(GoBuild):
    what = "Helm"
    module = MODULE

    async def _make(self, work: Path) -> None:
        await self._build(work / "helm", PACKAGE, "-ldflags", "-s -w")


if __name__ == "__main__":
    print(helm_program())
