"""What a test that failed left in its cluster goes before the next test begins.

A test that ends well removes what it made. One that fails is cut off in the middle: its workloads
would send their pods to the nodes of the tests after it, and its runs hold their names. So what is
younger than a failed test is removed before the next one. Of a module whose fleet is still on,
only that; once the module is over, whatever is younger than the module.
"""

import contextlib
import datetime as dt
import json
import math
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.e2e_world import Json, World, eventually
from fleet.cluster.ownership import RUN_LABEL

WORKLOADS = (
    "cronjobs",
    "deployments",
    "daemonsets",
    "statefulsets",
    "jobs",
    "replicasets",
    "pods",
    "services",
    "persistentvolumeclaims",
    "resourceclaimtemplates",
    "resourceclaims",
    "poddisruptionbudgets",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "roles.rbac.authorization.k8s.io",
    "rolebindings",
    "volumeattachments",
    "persistentvolumes",
    "storageclasses",
    "csidrivers",
    "runtimeclasses",
    "deviceclasses",
    "clusterroles",
    "clusterrolebindings",
    "namespaces",
)
"""What others make: first who makes pods, else they would be made anew."""
NODES = ("nodes", "csinodes", "resourceslices")
"""What a fleet that is on has, too."""
OF_THE_SYSTEM = ("pods", "secrets")
"""All that tests make in the namespaces of the system: mirrors, tokens."""
SYSTEM = "kube-"
PRESSURES = ("cpu", "io", "memory")
"""What the machine may be short of: a control plane that stands still may wait for a disk."""
KEPT = frozenset(("default", "kube-root-ca.crt", "kubernetes"))
"""Each namespace is given these by the control plane."""
BOOTSTRAPPING = "kubernetes.io/bootstrapping"
SHOWN = "nodes,pods,deployments,daemonsets,statefulsets,jobs,namespaces"
SHOWN_S_MAX = 30.0
NOW = ("--force", "--grace-period=0", "--wait=false", "--ignore-not-found")


class Left(NamedTuple):
    """An object that should go."""

    kind: str
    namespace: str
    name: str
    is_held: bool
    """It is deleted, and waits for whoever its finalizers are of."""


def left(world: World, since_s: float, kinds: tuple[str, ...]) -> list[Left]:
    """Return what was made in the second of that time, or later, but not by what is older.

    What has an older owner would be made anew, for ever: it is that one's test's to remove.
    """
    found = []
    kept: set[str] = set()
    for kind in kinds:
        for each in world.items(kind, "-A"):
            metadata: Json = each["metadata"]
            made = dt.datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            owners = {each["uid"] for each in metadata.get("ownerReferences", ())}
            if kind in WORKLOADS and (made < math.floor(since_s) or owners & kept):
                kept.add(metadata["uid"])
                continue
            is_system = (namespace or (name if kind == "namespaces" else "")).startswith(SYSTEM)
            if (
                made >= math.floor(since_s)
                and name not in KEPT
                and BOOTSTRAPPING not in metadata.get("labels", ())
                and not (is_system and kind not in OF_THE_SYSTEM)
            ):
                is_held = "deletionTimestamp" in metadata and bool(metadata.get("finalizers"))
                found.append(Left(kind, namespace, name, is_held))
    return found


def remove(world: World, since_s: float) -> None:
    """Remove what is younger; if a fleet is on in this world, only what is not its own."""
    end_runs(world)
    kinds = WORKLOADS if world.running else (*WORKLOADS, *NODES)

    def is_gone() -> bool:
        found = left(world, since_s, kinds)
        for (kind, namespace), names in by_place(found).items():
            where = ("-n", namespace) if namespace else ()
            world.kubectl("delete", kind, *names, *where, *NOW, check=False)
        for each in found:
            if each.is_held and each.kind != "namespaces":
                where = ("-n", each.namespace) if each.namespace else ()
                freed = json.dumps({"metadata": {"finalizers": None}})
                patch = ("patch", each.kind, each.name, *where, "--type=merge", "-p", freed)
                world.kubectl(*patch, check=False)
        return not found

    eventually(is_gone, "what a failed test left", seen=lambda: left(world, since_s, kinds))
    if not world.running:  # else a test might read of another's pod that had the same name
        world.kubectl("delete", "events", "--all", "-n", "default", "--wait=false")


def by_place(found: list[Left]) -> dict[tuple[str, str], list[str]]:
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in found:
        places[each.kind, each.namespace].append(each.name)
    return places


def end_runs(world: World) -> None:
    """Remove runs that are not on, however young their Leases are."""
    on = tuple(f"fleet-run-{prefix}" for prefix in world.running)
    for each in world.items("leases.coordination.k8s.io", "-l", RUN_LABEL):
        name = each["metadata"]["name"]
        if not any(name == lease or name.startswith(f"{lease}-") for lease in on):
            world.kubectl("delete", "lease", name, "--ignore-not-found")
    chosen = "--expired" if world.running else "--all"
    world.fleet("clean", chosen, "--yes", f"--kubeconfig={world.info.kubeconfig}")


def until_the_next_second() -> float:
    """Wait for it, for an object tells only the second in which it was made; return its begin."""
    begin_s = math.floor(time.time()) + 1
    while (rest_s := begin_s - time.time()) > 0:
        time.sleep(rest_s)
    return float(begin_s)


def shown(world: World) -> str:
    """Return what there is while a test fails, for whoever reads of it."""
    command = (*world.info.kubectl, f"--kubeconfig={world.info.kubeconfig}", "get", SHOWN)
    try:
        done = subprocess.run(
            (*command, "--all-namespaces", "--output=wide"),
            capture_output=True,
            text=True,
            timeout=SHOWN_S_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, pytest.fail.Exception) as error:
        return repr(error)  # its server does not answer, or the test has had its time
    return done.stdout + done.stderr


def waits_of(name: str) -> list[str]:
    """Return for what share of the time something waited for this; of all that the machine does."""
    path = Path("/proc/pressure", name)
    return path.read_text().splitlines() if path.exists() else []


class Leftovers:
    """Which tests failed in which worlds, and since when there may be something left of them."""

    def __init__(self) -> None:
        self._worlds: dict[int, tuple[World, float]] = {}
        self._module = Path()
        self._is_first = True
        self._module_s = 0.0
        self._test_s = 0.0
        self._failed = ""
        """The first test of the module that failed."""
        self._due_s = math.inf

    @contextlib.contextmanager
    def watched(self, world: World) -> Iterator[World]:
        """Care for a world as long as it is there."""
        self._worlds[id(world)] = world, time.time()
        try:
            yield world
        finally:
            del self._worlds[id(world)]

    def begin(self, module: Path) -> None:
        """Begin a test, whose fixtures are not there yet."""
        failed, due_s = self._failed, self._due_s
        self._is_first = module != self._module
        if self._is_first:
            due_s = self._module_s if failed else math.inf
            self._module, self._module_s, self._failed = module, time.time(), ""
        self._test_s, self._due_s = time.time(), math.inf
        if due_s < math.inf:
            for world, up_s in self._worlds.values():
                print(f"what {failed} left is removed")
                remove(world, max(due_s, math.ceil(up_s)))

    def call(self) -> None:
        """Begin a test whose fixtures are there, those of its module among them.

        What these made stays, so that no object of the first test may be of their last second.
        """
        if self._is_first and any(world.running for world, _ in self._worlds.values()):
            self._test_s = until_the_next_second()

    def fail(self, test: str) -> str:
        """Note that a test has failed, at its set-up, its call or its end; return what there is."""
        self._failed = self._failed or test
        self._due_s = min(self._due_s, self._test_s)
        pressure = [f"{name}: {line}" for name in PRESSURES for line in waits_of(name)]
        return "\n".join([*pressure, *(shown(world) for world, _ in self._worlds.values())])


leftovers = Leftovers()
