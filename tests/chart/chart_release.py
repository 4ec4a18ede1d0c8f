"""One release of the chart, and what the clusters have of it."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from e2e.e2e_world import FLEET, WAIT_MAX_S, Json, World, condition, eventually

from chart.helm_commands import NAMESPACE, RELEASE, RUN, Helm
from chart.played_node import PlayedNode
from fleet.cluster.ownership import RUN_LABEL
from fleet.controlplane.standing import attach

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
NODES_PER_POD = 5
WITHOUT_CONSTRAINED_IMPERSONATION = "--apiserver-flag=feature-gates=ConstrainedImpersonation=false"
"""Makes a server that grants impersonation as those before 1.36 did."""
OF_RELEASE = f"app.kubernetes.io/instance={RELEASE}"


class Places(NamedTuple):
    """Where a release is: Helm and pods in one cluster, virtual nodes there or in another one."""

    helm: Helm
    home: World
    node: PlayedNode
    target: World
    accounts: tuple[str, ...] = (ACCOUNT,)
    """Who asks in the name of fleet itself."""


class Release:
    """One release of the chart and what the clusters have of it."""

    def __init__(self, places: Places) -> None:
        self.world = places.target
        self.home = places.home
        self.node = places.node
        self._helm = places.helm
        self._accounts = places.accounts
        self._uid = places.target.get("namespace", "kube-system")["metadata"]["uid"]
        self._foreign = self._named_alike()
        # Other tests take rights away.
        self._audited = {id(world): len(world.audit()) for world in self._worlds}

    @property
    def _worlds(self) -> list[World]:
        return [self.home] if self.world is self.home else [self.home, self.world]

    def values(self, **values: object) -> Json:
        return {"confirmCluster": self._uid, "nodesPerPod": NODES_PER_POD, **values}

    def apply(self, verb: str, *flags: str, **values: object) -> str:
        """Install or upgrade; return what Helm says, the notes of the chart at its end."""
        path = self._helm.values(self.values(**values))
        chart = ("charts/fleet", f"--values={path}", f"--namespace={NAMESPACE}")
        return self._helm.run(verb, RELEASE, *chart, *flags).stdout

    def install(self, **values: object) -> str:
        return self.apply("install", "--create-namespace", **values)

    def uninstall(self) -> None:
        self._helm.run("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--timeout=180s")

    def uninstall_and_leave_nothing(self) -> None:
        """Uninstall; nothing may be left, and nothing was forbidden since the beginning."""
        self.uninstall()
        try:
            eventually(lambda: not self.left(), "nothing is left")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.left()} {self.node.logs()}") from error
        assert self.refused() == []

    def test(self) -> list[Json]:
        """Run `helm test`, which must pass; return the smoke pod in all its states."""
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        before = self.world.get("pods", "-n", NAMESPACE)["metadata"]["resourceVersion"]
        self._helm.run("test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=120s")
        smoke = "labelSelector=app.kubernetes.io/component=smoke"
        since = f"{pods}?watch=true&resourceVersion={before}&timeoutSeconds=3&{smoke}"
        events = map(json.loads, self.world.kubectl("get", "--raw", since).splitlines())
        return [event["object"] for event in events if event["type"] != "DELETED"]

    def passes(self) -> bool:
        """Return whether `helm test` passes."""
        test = ("test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=120s")
        return self._helm.run(*test, check=False).returncode == 0

    def nodes(self) -> dict[str, Json]:
        found = self.world.items("nodes", "-l", f"{RUN_LABEL}={RUN}")
        return {node["metadata"]["name"]: node for node in found}

    def uids(self) -> dict[str, str]:
        return {name: node["metadata"]["uid"] for name, node in self.nodes().items()}

    def until_ready(self, *shards: int, of: int = NODES_PER_POD, processes: int = 1) -> None:
        """Wait until there are exactly the nodes of these shards, and all pods are Ready."""
        wanted = {f"{RELEASE}-{shard:04d}-{slot:05d}" for shard in shards for slot in range(of)}
        pods_wanted = len(shards) // processes

        def is_so() -> bool:
            assert self.node.failure is None, self.node.failure
            nodes = self.nodes()
            ready = [name for name, node in nodes.items() if condition(node, "Ready") == "True"]
            found = self.home.get("statefulset", "-n", NAMESPACE, RELEASE)["status"]
            pods = (found.get("readyReplicas", 0), found["replicas"])
            return set(nodes) == set(ready) == wanted and pods == (pods_wanted, pods_wanted)

        try:
            eventually(is_so, f"shards {shards}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {sorted(self.nodes())} {self.node.logs()}") from error

    def scale(self, replicas: int) -> None:
        scale = ("scale", "statefulset", RELEASE, f"--replicas={replicas}")
        self.home.kubectl(*scale, "-n", NAMESPACE)

    def left(self) -> set[str]:
        """Return what came of Nodes, their Leases and CSINodes, run Leases and grants."""
        return self._named_alike() - self._foreign

    def _named_alike(self) -> set[str]:
        """Return what has our names; another test may have left a Lease of the default prefix."""
        kinds = "nodes,leases,csinodes,clusterroles,clusterrolebindings,roles,rolebindings"
        found = [
            name
            for world in self._worlds
            for name in world.kubectl("get", kinds, "-A", "-o", "name").split()
        ]
        return {name for name in found if f"/{RELEASE}-" in name or f"{NAMESPACE}-" in name}

    def refused(self) -> list[tuple[str, str]]:
        """Return what fleet itself was not allowed to do."""
        return [
            (event["verb"], event["requestURI"])
            for world in self._worlds
            for event in world.audit()[self._audited[id(world)] :]
            if event["user"]["username"] in self._accounts
            and not event.get("impersonatedUser")
            and event.get("responseStatus", {}).get("code") == 403
        ]


@contextlib.contextmanager
def released(places: Places) -> Iterator[Release]:
    """Give a release that is gone afterwards, whatever happened to it."""
    helm, home, target = places.helm, places.home, places.target
    try:
        yield Release(places)
    finally:
        helm.run("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--no-hooks", check=False)
        for world in (home, target):
            world.fleet("clean", f"--run={RUN}", f"--kubeconfig={world.info.token_kubeconfig}")
        home.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s", check=False)


@contextlib.contextmanager
def another_world(root: Path, *flags: str) -> Iterator[World]:
    """Give a second control plane, as other users of this machine would have it."""
    root.mkdir()
    audit_log = root / "audit.jsonl"
    environment = {**os.environ, "XDG_STATE_HOME": str(root / "state")}

    def plane(verb: str, *more: str) -> None:
        command = (*FLEET, "controlplane", verb, f"--dir={root / 'plane'}", *more)
        subprocess.run(
            command, env=environment, check=True, timeout=WAIT_MAX_S, stdout=subprocess.DEVNULL
        )

    plane("up", f"--audit-log={audit_log}", *flags)
    try:
        info = attach(root / "plane")
        assert info is not None
        yield World(root, info, audit_log)
    finally:
        plane("down")
