"""What is done to both nodes: scenes, each in a namespace of its own for each node.

A scene knows nothing of the other scenes and leaves nothing behind, so that many can be played at
once and each can be played again. What both nodes are given differs in two words: the namespace and
the node.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fleet.controlplane.options import ControlPlaneInfo
from fleet.quantity import parse_quantity
from oracle.admin import Admin, RefusedError
from oracle.course import Course, LiveCourse, Step
from oracle.normalisation import Json

REAL, FLEET = "real", "fleet"
SIDES = (REAL, FLEET)
POLL_S = 0.25
WAIT_MAX_S = 60.0
PAUSE_S = 2.5
"""What a kubelet does after an event it does within a relist of its runtime, and a second."""
UNMOUNT_FAILS = "fleet.emulator/unmount-fails"
TOKEN_REQUEST: Json = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenRequest",
    "spec": {},
}
CLUSTER_WIDE = (
    "ClusterRole",
    "ClusterRoleBinding",
    "PersistentVolume",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
)


class Stage(Protocol):
    """The control plane with both nodes, and what can be done to them."""

    @property
    def info(self) -> ControlPlaneInfo: ...

    @property
    def nodes(self) -> Mapping[str, str]: ...

    @property
    def manifests(self) -> Mapping[str, Path]:
        """Where each side looks for static pods."""

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again; who asks meanwhile is refused."""

    def restart_kubelets(self) -> None:
        """Kill both kubelets and start them again at once; their pods run on."""

    def fail_devices(self, resource: str, count: int) -> None:
        """Let device plug-ins say that so many devices are unhealthy, the first ones."""

    def allocated(self, driver: str, namespace: str, claim: str, device: Json) -> None:
        """Let the DRA driver of a real kubelet know which device a claim was given."""

    def set_stuck(self, driver: str, *, is_stuck: bool) -> None:
        """Let the CSI driver of a real kubelet unpublish nothing; fleet reads an annotation."""

    def ask_kubelet(self, side: str, method: str, path: str, token: str) -> int:
        """Ask the kubelet of a side; return the code of its answer."""


@dataclass(frozen=True, slots=True)
class Play:
    """One playing of a scene."""

    begun_s: float
    ended_s: float
    namespaces: Mapping[str, str]
    """By side."""
    failures: tuple[str, ...]
    """What did not come about, and on which side."""
    named: frozenset[str]
    """The pods that the scene named; controllers and kubelets made up the names of others."""
    steps: Sequence[Step] = ()
    """What the scene did, and when; of a play that was written down, as JSON has them."""
    hold_s: float = 0.0
    """By how much later both nodes heard of their pods."""

    def __post_init__(self) -> None:
        read = tuple(each if isinstance(each, Step) else Step(**each) for each in self.steps)
        object.__setattr__(self, "steps", read)


@dataclass(slots=True)
class Scene:
    """The hands of whoever plays a scene."""

    name: str
    stage: Stage
    admin: Admin
    namespaces: Mapping[str, str]
    """By side: those that the scene is played on."""
    course: Course
    failures: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """The pods that it made itself."""

    def create(self, *objects: Json) -> None:
        """Create objects for both nodes; pods are bound to them."""
        for each in objects:
            if each["kind"] == "Pod":
                self.named.add(each["metadata"]["name"])
            self.course.step(f"create {each['kind']} {each['metadata']['name']}")
            for side in self.namespaces:
                self.admin.create(self.placed(each, side))

    def placed(self, each: Json, side: str) -> Json:
        """Return an object as one node is given it."""
        made: Json = json.loads(json.dumps(each))
        if made["kind"] not in CLUSTER_WIDE:
            made["metadata"]["namespace"] = self.namespaces[side]
        node = self.stage.nodes[side]
        spec = made.get("spec", {})
        pod = made if made["kind"] == "Pod" else spec.get("template")
        if pod is not None:
            pod["spec"].setdefault("nodeName", node)
        text = (
            json.dumps(made).replace("{node}", node).replace("{namespace}", self.namespaces[side])
        )
        found: Json = json.loads(text)
        return found

    def get(self, side: str, plural: str, name: str) -> Json | None:
        return self.admin.get(plural, self.namespaces[side], self.name_of(side, name))

    def name_of(self, side: str, name: str) -> str:
        """Return a name that says where the node's stands."""
        placed = name.replace("{node}", self.stage.nodes[side])
        return placed.replace("{namespace}", self.namespaces[side])

    def patch(self, plural: str, name: str, change: Json, subresource: str = "") -> None:
        self.course.step(f"patch {plural} {name} {subresource}".rstrip())
        for side in self.namespaces:
            self.admin.patch(plural, self.namespaces[side], name, change, subresource)

    def patch_node(self, change: Json) -> None:
        self.course.step("patch nodes")
        for side in self.namespaces:
            self.admin.patch("nodes", "", self.stage.nodes[side], change)

    def evict(self, name: str) -> None:
        """Evict a pod of each through the API."""
        self.evict_named(dict.fromkeys(self.namespaces, name))

    def evict_named(self, names: Mapping[str, str]) -> None:
        """Evict a pod of each side, whose name a controller may have made up."""
        self.course.step("evict")
        for side, name in names.items():
            self._evict(side, name)

    def _evict(self, side: str, name: str) -> None:
        namespace = self.namespaces[side]
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body["metadata"] = {"name": name, "namespace": namespace}
        path = self.admin.path("pods", namespace, name)
        self.admin.ask("POST", f"{path}/eviction", body)

    def wait(
        self,
        name: str,
        is_true: Callable[[Json], object],
        what: str,
        *,
        plural: str = "pods",
        limit_s: float = WAIT_MAX_S,
    ) -> None:
        """Wait until something holds of an object of both; note whose does not."""

        def holds(side: str) -> bool:
            found = self.get(side, plural, name)
            return found is not None and bool(is_true(found))

        self.until(holds, f"{name} {what}", limit_s=limit_s)

    def until(
        self, holds: Callable[[str], object], what: str, *, limit_s: float = WAIT_MAX_S
    ) -> None:
        """Wait until something holds on both sides, each asked until it does."""
        deadline_s = self.course.now_s() + limit_s
        left = list(self.namespaces)
        while left and self.course.now_s() < deadline_s:
            left = [side for side in left if not holds(side)]
            if left:
                self.course.sleep(POLL_S)
        self.failures += [f"{side} never: {what}" for side in left]

    def pause(self, wait_s: float = PAUSE_S) -> None:
        self.course.sleep(wait_s)

    def until_running(self, *names: str, limit_s: float = WAIT_MAX_S) -> None:
        for name in names:
            self.wait(name, lambda pod: phase(pod) == "Running", "runs", limit_s=limit_s)

    def until_ready(self, name: str, limit_s: float = WAIT_MAX_S) -> None:
        self.wait(name, is_ready, "is ready", limit_s=limit_s)

    def until_over(self, *names: str, limit_s: float = WAIT_MAX_S) -> None:
        for name in names:
            self.wait(
                name, lambda pod: phase(pod) in ("Failed", "Succeeded"), "ends", limit_s=limit_s
            )

    def delete(
        self,
        *names: str,
        plural: str = "pods",
        grace_s: int | None = None,
        limit_s: float = WAIT_MAX_S,
    ) -> None:
        """Delete objects, and wait until they are gone."""
        self.ask_to_delete(*names, plural=plural, grace_s=grace_s)
        for name in names:
            self.until(
                lambda side, name=name: self.get(side, plural, name) is None,  # type: ignore[misc]
                f"{name} is gone",
                limit_s=limit_s,
            )

    def ask_to_delete(self, *names: str, plural: str = "pods", grace_s: int | None = None) -> None:
        for name in names:
            self.course.step(f"delete {plural} {name}")
            for side in self.namespaces:
                found = self.name_of(side, name)
                self.admin.delete(plural, self.namespaces[side], found, grace_s)

    # What concerns a node

    def place_manifest(self, name: str, made: Json) -> None:
        """Write a static pod for each node, or change it."""
        self.course.step(f"write {name}")
        for side in self.namespaces:
            placed = json.loads(json.dumps(made))
            placed["metadata"]["namespace"] = self.namespaces[side]
            mirror = f"{made['metadata']['name']}-{self.stage.nodes[side]}"
            self.named.add(mirror)
            place = self._manifest(side, name)
            hidden = place.with_name(f".{place.name}")
            hidden.write_text(json.dumps(placed))
            hidden.rename(place)

    def remove_manifest(self, name: str) -> None:
        self.course.step(f"remove {name}")
        for side in self.namespaces:
            self._manifest(side, name).unlink()

    def _manifest(self, side: str, name: str) -> Path:
        return self.stage.manifests[side] / f"{self.namespaces[side]}-{name}.json"

    def resize(self, name: str, container: str, resources: Json) -> None:
        changed = {"name": container, "resources": resources}
        self.patch("pods", name, {"spec": {"containers": [changed]}}, "resize")

    def resize_whole(self, name: str, resources: Json) -> None:
        """Change the resources of the pod itself."""
        self.patch("pods", name, {"spec": {"resources": resources}}, "resize")

    def allocatable_milli_cpu(self) -> int:
        """Return what both nodes have for pods."""
        found = [
            parse_quantity(self.node(side)["status"]["allocatable"]["cpu"]).nano // 10**6
            for side in self.namespaces
        ]
        assert len(set(found)) == 1, found
        return found[0]

    def node(self, side: str) -> Json:
        found = self.admin.get("nodes", "", self.stage.nodes[side])
        assert found is not None, side
        return found

    def has_ready_node(self, side: str) -> bool:
        found = self.admin.get("nodes", "", self.stage.nodes[side])
        return found is not None and is_ready(found)

    def delete_nodes(self) -> None:
        self.course.step("delete nodes")
        for node in self.stage.nodes.values():
            self.admin.delete("nodes", "", node)

    def restart_kubelets(self) -> None:
        self.course.step("restart kubelets")
        self.stage.restart_kubelets()

    def restart_apiserver(self) -> None:
        self.course.step("restart apiserver")
        self.stage.restart_apiserver()

    def token_of(self, side: str, account: str) -> str:
        """Return a new token of a ServiceAccount."""
        path = self.admin.path("serviceaccounts", self.namespaces[side], account)
        made = self.admin.ask("POST", f"{path}/token", TOKEN_REQUEST)
        return str(made["status"]["token"])

    def ask_kubelets(
        self, path: str, code: int, tokens: Mapping[str, str] = MappingProxyType({}), verb: str = ""
    ) -> None:
        """Ask both kubelets; note whose answer has another code."""
        method = verb or "GET"
        self.course.step(f"{method} {path} of kubelets")
        for side in self.namespaces:
            found = self.stage.ask_kubelet(side, method, path, tokens.get(side, ""))
            if found != code:
                self.failures.append(f"{side} never: {method} {path} with {code}, but {found}")

    def fail_devices(self, resource: str, count: int) -> None:
        """Let the first devices of a resource be unhealthy, and no others."""
        self.course.step(f"fail {count} {resource}")
        self.stage.fail_devices(resource, count)

    def set_stuck(self, driver: str, pod: str, *, is_stuck: bool) -> None:
        """Let a CSI driver refuse to unpublish what a pod has, or no longer."""
        note = {UNMOUNT_FAILS: "true" if is_stuck else None}
        self.patch("pods", pod, {"metadata": {"annotations": note}})
        self.stage.set_stuck(driver, is_stuck=is_stuck)

    def provide(self, *objects: Json) -> None:
        """Create objects that are no node's own and stay; each scene may need them."""
        for each in objects:
            self.course.step(f"provide {each['kind']} {each['metadata']['name']}")
            with suppress(RefusedError):
                self.admin.create(each)

    def allocate(self, claim: str, allocation: Json) -> None:
        """Give a ResourceClaim devices of the node, as the scheduler does."""
        self.course.step(f"allocate {claim}")
        for side, namespace in self.namespaces.items():
            given: Json = json.loads(json.dumps(allocation))
            for each in given["devices"]["results"]:
                each["pool"] = self.stage.nodes[side]
            change = {"status": {"allocation": given}}
            self.admin.patch("resourceclaims", namespace, claim, change, "status")
            for each in given["devices"]["results"]:
                self.stage.allocated(each["driver"], namespace, claim, each)

    def running_of_job(self, side: str, job: str) -> str:
        """Return the pod of a Job that runs, "" if none does."""
        selector = f"batch.kubernetes.io/job-name={job}"
        pods = self.admin.items("pods", self.namespaces[side], selector)
        running = (each["metadata"]["name"] for each in pods if phase(each) == "Running")
        return next(running, "")

    def until_bound(self, claim: str) -> None:
        plural = "persistentvolumeclaims"
        self.wait(claim, lambda each: phase(each) == "Bound", "is bound", plural=plural)

    def delete_volumes(self, *names: str) -> None:
        for name in names:
            self.course.step(f"delete persistentvolumes {name}")
            for side in self.namespaces:
                self.admin.delete("persistentvolumes", "", f"{self.namespaces[side]}-{name}")

    def live(self, *pods: Json) -> None:
        """Create pods, wait until they run, and delete them."""
        self.create(*pods)
        names = [each["metadata"]["name"] for each in pods]
        self.until_running(*names)
        self.pause()
        self.delete(*names)


def play(
    name: str,
    body: Callable[[Scene], None],
    stage: Stage,
    admin: Admin,
    suffix: str = "",
    *,
    course: Course | None = None,
) -> Play:
    """Play a scene once on all nodes of a stage, in new namespaces; in real time by default."""
    course = LiveCourse() if course is None else course
    namespaces = {side: f"{name}{suffix}-{side}".replace("_", "-") for side in stage.nodes}
    for namespace in set(namespaces.values()):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    scene = Scene(name, stage, admin, namespaces, course)
    until_account(scene)
    begun_s = course.now_s()
    course.begin()
    try:
        body(scene)
    except RefusedError as refused:
        scene.failures.append(str(refused))
    scene.pause()
    for namespace in set(namespaces.values()):
        with suppress(RefusedError):
            admin.delete("namespaces", "", namespace)
    return Play(
        begun_s,
        course.now_s(),
        namespaces,
        tuple(scene.failures),
        frozenset(scene.named),
        course.steps,
    )


def until_account(scene: Scene) -> None:
    """Wait for what each namespace has: a ServiceAccount, and the certificate of the API server."""
    scene.until(lambda side: scene.get(side, "serviceaccounts", "default"), "has an account")
    scene.until(lambda side: scene.get(side, "configmaps", "kube-root-ca.crt"), "has a certificate")


def phase(pod: Json) -> str:
    return str(pod["status"].get("phase", ""))


def is_ready(item: Json) -> bool:
    conditions = item["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def condition_of(item: Json, kind: str) -> Json:
    """Return a condition of an object, empty if it has none of the kind."""
    conditions = item["status"].get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def container_status(pod: Json, name: str = "c") -> Json:
    """Return the status of a container, of whichever kind."""
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    found = (each for kind in kinds for each in pod["status"].get(kind, ()))
    return next((each for each in found if each["name"] == name), {})


def restarts(pod: Json, name: str = "c") -> int:
    return int(container_status(pod, name).get("restartCount", 0))


def waiting(pod: Json, name: str = "c") -> str:
    """Return why a container waits."""
    state: Json = container_status(pod, name).get("state", {})
    return str(state.get("waiting", {}).get("reason", ""))
