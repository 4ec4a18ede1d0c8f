"""A real kubelet and a node of fleet on one control plane, in the same world.

    World(kubelet=..., behaviors=...)  what both nodes are told
      real node: kubelet + python -m cri, with that profile
      own node:  `fleet spawn --nodes 1`, with that profile, and the capacity of the real one

Each speaks to the API server through a proxy of its own that notes headers; the audit log has
everything else, and the bodies of requests.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from e2e.e2e_world import DEDICATED, Json, Running, World, condition, eventually
from support.header_tap import Noted

from fleet.profile.node_import import import_nodes
from oracle.plugins.declared import made
from oracle.real_kubelet import (
    RealKubelet,
    going_first,
    raise_limits,
    running,
    sessions_go_first,
)
from oracle.tapped_plane import ENDED_WELL, TappedPlane

REAL, OWN = "real-00000", "oracle-00000"
OWN_PREFIX = OWN.rpartition("-")[0]
NODES = {"oracle-real": REAL, "oracle-fleet": OWN}
"""The namespace of each node."""
SEED = 7
READY_S = 60.0
HOLD_S = 0.5
"""Both nodes hear of their pods so much later: until then the node authorizer, which learns of them
by a watch as well, knows what they may read. A kubelet that is faster is refused, which is chance.
Source: plugin/pkg/auth/authorizer/node/graph_populator.go.
"""
RUNTIME_VERSION = "containerd://2.1.5"
PAUSE = "registry.k8s.io/pause:3.10.1"
DIGEST = "sha256:6bafff9caf954718a27d4d1950d478f0e0a9f0d455370e4059450e95c03b13ee"
IMAGES = [{"sizeBytes": 319488, "names": [f"registry.k8s.io/pause@{DIGEST}", PAUSE]}]
HANDLERS: list[Json] = [
    {"name": name, "features": {"recursiveReadOnlyMounts": True, "userNamespaces": True}}
    for name in ("", "runc")
]
OF_THE_MACHINE = ("capacity", "nodeInfo")
"""What a kubelet measures, so that fleet has to be told."""


RESOLVER = "/var/lib/resolv.conf"
"""Where the real kubelet has a /var/lib of its own."""
LOOKS = {"fileCheckFrequency": "1s"}
"""A kubelet is told of a new manifest by the kernel; fleet's nodes look for one."""


@dataclass(frozen=True, slots=True)
class Told:
    """What both nodes are told."""

    kubelet: Mapping[str, object] = field(default_factory=dict)
    """Keys of KubeletConfiguration."""
    behaviors: Sequence[Json] = ()
    """PodBehavior documents."""
    image_pulls: Mapping[str, object] = field(default_factory=dict)
    runtime: Mapping[str, object] = field(default_factory=dict)
    """Outages of the runtime."""
    images: Sequence[Json] = field(default_factory=lambda: IMAGES)
    can: bool = True
    """Whether the runtime has user namespaces, recursive read-only mounts and groups policies."""
    resolver: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What RESOLVER says on both machines: nameservers and searches; nothing: there is no file."""
    serves: bool = False
    """Whether fleet's node has a server: the real kubelet has one in any case."""
    plugins: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """What a profile says of plug-ins: `devices`, `dynamicResources`, `csiDrivers`."""
    name: str = ""
    """By which the start of its node is recorded, if it is not the usual one."""

    def kubelet_of(self, root: Path, node: str) -> dict[str, object]:
        """Return the KubeletConfiguration of a node."""
        return {
            **LOOKS,
            "resolvConf": RESOLVER if self.resolver else "",
            **self.kubelet,
            "staticPodPath": str(manifests_of(root, node)),
        }

    @property
    def resolver_file(self) -> str:
        """Return what RESOLVER says on the machine of the real kubelet."""
        lines = [f"nameserver {each}" for each in self.resolver.get("nameservers", ())]
        lines.append(" ".join(("search", *self.resolver.get("searches", ()))))
        return "\n".join((*lines, ""))

    def documents(self, status: Json, kubelet: Mapping[str, object]) -> str:
        """Return the profile of a node with a status and a configuration, and the behaviours."""
        told = {
            "images": list(self.images),
            "runtimeHandlers": [
                {**each, "features": dict.fromkeys(each["features"], self.can)} for each in HANDLERS
            ],
            "features": {"supplementalGroupsPolicy": self.can},
        }
        info = status.get("nodeInfo", {}) | {"containerRuntimeVersion": RUNTIME_VERSION}
        profile = {
            "apiVersion": "fleet.emulator/v1alpha1",
            "kind": "NodeProfile",
            "metadata": {"name": "oracle"},
            "spec": {
                "template": {"status": {**status, **told, "nodeInfo": info}},
                "kubeletConfiguration": dict(kubelet),
                "resolvConf": {key: [*each] for key, each in self.resolver.items()},
                "imagePulls": dict(self.image_pulls),
                "runtime": dict(self.runtime),
                **self.plugins,
            },
        }
        return yaml.safe_dump_all([profile, *self.behaviors])


class BothNodes:
    """Both nodes, Ready."""

    def __init__(self, stage: TappedPlane, real: RealKubelet, own: Running) -> None:
        self.stage = stage
        self.real = real
        self.own = own
        self.world: World = stage.world
        self.began_s = time.time()

    @property
    def manifests(self) -> dict[str, Path]:
        """Where each node looks for static pods."""
        return {node: manifests_of(self.stage.root, node) for node in (REAL, OWN)}

    @property
    def noted(self) -> dict[str, Noted]:
        """The headers of a request by its audit ID; the taps go on noting meanwhile."""
        taps = self.stage.taps.values()
        return {key: each for tap in taps for key, each in [*tap.noted.items()]}

    def audit(self) -> dict[str, list[Json]]:
        """Return what the audit log has of each node so far, in its order."""
        found: dict[str, list[Json]] = {REAL: [], OWN: []}
        for each in self.world.audit():
            node = node_of(each)
            if node in found:
                found[node].append(each)
        return found

    def apply(self, *objects: Json) -> None:
        """Create the objects once for each node: in its namespace, its pods bound to it."""
        for namespace, node in NODES.items():
            self.world.apply(*(placed(each, namespace, node) for each in objects))

    def kubectl(self, *arguments: str) -> None:
        """Do the same in both namespaces."""
        for namespace in NODES:
            self.world.kubectl("--namespace", namespace, *arguments)

    def get(self, kind: str, name: str) -> dict[str, Json]:
        """Return an object of both namespaces, by node."""
        return {
            node: self.world.get(kind, name, "--namespace", namespace)
            for namespace, node in NODES.items()
        }


def manifests_of(root: Path, node: str) -> Path:
    return root / f"manifests-{node}"


def node_of(event: Json) -> str:
    """Return the node that a request came from, "" if it is no node's."""
    user: Json = event.get("impersonatedUser") or event.get("user") or {}
    name = str(user.get("username", ""))
    return name.removeprefix("system:node:") if name.startswith("system:node:") else ""


def placed(obj: Json, namespace: str, node: str) -> Json:
    """Return an object for one node: a pod that names none is bound to it."""
    copy: Json = json.loads(json.dumps(obj))
    if copy["kind"] not in CLUSTER_WIDE:
        copy["metadata"]["namespace"] = namespace
    pod = copy if copy["kind"] == "Pod" else copy.get("spec", {}).get("template")
    if isinstance(pod, dict):
        spec: dict[str, Any] = pod["spec"]
        spec.setdefault("nodeSelector", {"kubernetes.io/hostname": node})
        spec.setdefault("tolerations", [{"operator": "Exists", "effect": "NoSchedule"}])
    return copy


CLUSTER_WIDE = {"Node", "PersistentVolume", "StorageClass", "RuntimeClass", "PriorityClass"}


@contextlib.contextmanager
def both_nodes(
    root: Path, kubelet: Path, told: Told, *, limit_s: float = READY_S, hold_s: float = HOLD_S
) -> Iterator[BothNodes]:
    """Bring both nodes up on a control plane of their own; whatever happens, all of it ends."""
    root.mkdir(parents=True, exist_ok=True)
    if unchanged := raise_limits():
        print(unchanged, flush=True)
    with going_first(), asyncio.Runner() as runner:
        stage = TappedPlane(root, runner, other=REAL, own=OWN, hold_s=hold_s)
        sessions_go_first()
        try:
            for namespace in NODES:
                stage.world.kubectl("create", "namespace", namespace)
            with _both(stage, kubelet, told, limit_s) as both:
                yield both
        finally:
            stage.close()


@contextlib.contextmanager
def _both(stage: TappedPlane, kubelet: Path, told: Told, limit_s: float) -> Iterator[BothNodes]:
    world, root = stage.world, stage.root
    runtime_profile, own_profile = root / "runtime.yaml", root / "own.yaml"
    for name in (REAL, OWN):
        manifests_of(root, name).mkdir()
    runtime_profile.write_text(told.documents({}, told.kubelet_of(root, REAL)))
    real = RealKubelet(
        program=kubelet,
        name=REAL,
        directory=root / "real",
        kubeconfig=stage.others_kubeconfig(),
        profile=runtime_profile,
        seed=SEED,
        options=told.kubelet_of(root, REAL),
        plugins=made(told.plugins, REAL),
        files={RESOLVER: told.resolver_file} if told.resolver else {},
    )
    with running(real):

        def is_real_ready() -> bool:
            real.assert_runs()
            return is_ready(world, REAL)

        eventually(is_real_ready, "the real node is Ready", limit_s=limit_s)
        real.register_plugins()
        node = world.get("node", REAL)
        own_profile.write_text(told.documents(measured(node), told.kubelet_of(root, OWN)))
        served = ("--serve=loopback",) if told.serves else ()
        named = (f"--kubeconfig={stage.own_kubeconfig()}", *DEDICATED, "--zone-labels", *served)
        with world.spawn(
            OWN_PREFIX, 1, "--start=cold", f"--profile={own_profile}", f"--seed={SEED}", *named
        ) as own:
            eventually(lambda: is_ready(world, OWN), "fleet's node is Ready", limit_s=limit_s)
            real.register_drivers()
            yield BothNodes(stage, real, own)
            own.interrupt()
            assert own.wait() in ENDED_WELL, own.log


def measured(node: Json) -> Json:
    """Return what a kubelet found of its machine, as a profile says it."""
    imported = yaml.safe_load(import_nodes(yaml.safe_dump(node)).text)
    status: Json = imported["spec"]["template"]["status"]
    capacity = {name: each for name, each in status["capacity"].items() if "/" not in name}
    return {key: status[key] for key in OF_THE_MACHINE} | {"capacity": capacity}


def is_ready(world: World, node: str) -> bool:
    found = world.items("nodes", f"--field-selector=metadata.name={node}")
    return bool(found) and condition(found[0], "Ready") == "True"
