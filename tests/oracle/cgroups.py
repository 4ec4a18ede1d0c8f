"""A place in the machine's cgroups for one kubelet: below it are those of its pods, all empty.

Nothing runs in them: simulated containers have no processes. They are kernel objects, so that no
mount namespace hides them; what a killed run left is removed by the next one.
"""

import contextlib
import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
NAME = re.compile(r"fleet-oracle-(\d+)")
"""With the process that made it."""
V1, V2 = BOTH = ("cgroup", "cgroup2")
CONTROLLERS = "+cpu +cpuset +memory +pids +hugetlb"


def hierarchies(*kinds: str) -> list[Path]:
    """Return where the cgroups of this machine are mounted: one place for each controller in v1."""
    mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    return [Path(each[1]) for each in mounts if each[2] in (kinds or BOTH)]


def make_root() -> str:
    """Make a cgroup in every hierarchy and return its path in them, "" if that is not possible."""
    sweep()
    name = f"fleet-oracle-{os.getpid()}"
    found = hierarchies(V1) or hierarchies(V2)
    try:
        for place in found:
            if (place / "cgroup.subtree_control").exists():
                for controller in CONTROLLERS.split():
                    with contextlib.suppress(OSError):
                        (place / "cgroup.subtree_control").write_text(controller)
            (place / name).mkdir(exist_ok=True)
    except OSError:
        remove_root(f"/{name}")
        return ""
    return f"/{name}" if found else ""


def remove_root(path: str) -> None:
    """Remove a cgroup with all that are in it."""
    for place in hierarchies():
        top = place / path.strip("/")
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


def sweep() -> None:
    """Remove what processes left that are gone."""
    for place in hierarchies():
        for each in place.glob("fleet-oracle-*"):
            found = NAME.fullmatch(each.name)
            if found is not None and not Path("/proc", found[1]).exists():
                remove_root(f"/{each.name}")
