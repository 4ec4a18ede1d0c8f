"""What `make parity` does to both nodes: the same objects, at the same time.

Each node has a namespace of its own with the very same names in it, so that the two traces differ
in one word.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.e2e_world import WAIT_MAX_S, Json, World, condition, eventually
from support.listed_differences import read_listed, unlisted

from parity.audit_trace import Window, parse, trace
from parity.comparison import REPLAYS_OF_SCENE_MAX, compare, uneven
from parity.differences import PAGE

HOLLOW, FLEET = "hollow-00000", "parity-00000"
NODES = {"parity-hollow": HOLLOW, "parity-fleet": FLEET}
"""The namespace of each node."""
IDLE_S = 60.0
PAUSE_S = 2.5
"""What a kubelet does after an event it does within a relist of its runtime, and a second."""
TICK_S = 11.0
"""A Lease is renewed, and the node status looked at, every 10 s x U[1, 1.04]."""
BACK_MAX_S = 90.0
"""Reflectors back off to 30 s, at most doubled by chance, while no API server answers."""
REFLECTORS = 6
"""Of a node with a pod: nodes, services, pods, runtimeclasses, csidrivers, the ConfigMap of it."""
RENEWED_S = 5.2
"""How far apart the renewals of both may be: the API server is away for four seconds more.

However two nodes stand that renew every 10 to 10.4 s, one is at most so much behind the other.
"""
FORBIDDEN = 403
OUTAGE = "API server restarts"
LISTED = read_listed(PAGE)
IMAGE = "registry.k8s.io/pause:3.10.1"


@dataclass(slots=True)
class Script:
    """What is done to both nodes."""

    world: World
    restart: Callable[[], None]
    """Restart the API server."""
    steps: dict[str, float] = field(default_factory=dict)
    """When each began, in seconds since the epoch, in their order."""
    void: list[Window] = field(default_factory=list)
    replays: dict[str, int] = field(default_factory=dict)
    """How often each scene was played again."""

    def step(self, name: str) -> None:
        """Go on: the next requests follow from what is done now."""
        self.steps.pop(name, None)  # of a scene that is played again
        self.steps[name] = time.time()

    def scene(self, name: str, body: Callable[[], None]) -> None:
        """Play a part of the script, and again if the nodes differ in it.

        The node authorizer learns of a pod by a watch; a kubelet that is faster gets a 403, and its
        next status comes with the following change. On a busy machine two changes may become one,
        and a request may be late. What is no chance happens each time: the last time counts
        whatever happens. How often chance may be asked is a row of differences.md.
        """
        self.replays[name] = 0
        while True:
            begun, known = time.time(), len(self.world.audit())
            body()
            time.sleep(PAUSE_S)
            found = self._differences(begun, known)
            if not found or self.replays[name] > REPLAYS_OF_SCENE_MAX:
                return
            self.replays[name] += 1
            print(f"{name} is played again:", *found, sep="\n  ")
            self.void.append((begun, time.time()))

    def _differences(self, begun: float, known: int) -> list[str]:
        """Return in what the nodes differ since a time and a line of the audit log."""
        since = [each for each in self.world.audit()[known:] if is_since(each, begun)]
        hollow, fleet = (
            [each for each in trace(since, node, namespace) if each.is_namespaced]
            for namespace, node in NODES.items()
        )
        steps = {name: at_s for name, at_s in self.steps.items() if at_s >= begun}
        return [
            *(str(each["requestURI"]) for each in since if is_refusal(each)),
            *unlisted(compare(hollow, fleet, list(steps.values())), LISTED),
            *unlisted(uneven(hollow, fleet, steps), LISTED),
        ]


def is_since(event: Json, begun: float) -> bool:
    """Whether a request came after the script had begun something."""
    return parse(event, {}).at_s >= begun


def is_refusal(event: Json) -> bool:
    """Whether a node was refused its own pod, or something of it."""
    is_ours = event.get("objectRef", {}).get("namespace") in NODES
    return is_ours and parse(event, {}).code == FORBIDDEN


def play(script: Script) -> None:
    """Do to both nodes what users do."""
    world = script.world
    script.step("idle")
    time.sleep(IDLE_S)
    script.scene("warm-up", lambda: live(script, pod("warm-up", CONTAINER)))
    script.scene("plain", lambda: live(script, pod("plain", CONTAINER)))
    script.scene("volumes", lambda: volumes(script))
    script.scene("deadline", lambda: ends_by_itself(script))
    script.scene("init", lambda: live(script, pod("init", CONTAINER, initContainers=[INIT])))
    script.scene("evicted", lambda: live(script, pod("evicted", CONTAINER), evict))
    script.scene("probed", lambda: live(script, pod("probed", PROBED), end_ready))
    script.scene("Deployment", lambda: rolled(script))
    script.scene("Job", lambda: job(script))
    script.step("cordon")
    for node in NODES.values():
        world.kubectl("cordon", node)
        world.kubectl("-n", "kube-node-lease", "delete", "lease", node)
    create(world, service())
    time.sleep(TICK_S)
    restarted(script)
    time.sleep(PAUSE_S)


def restarted(script: Script) -> None:
    """Restart the API server under a running pod, and end the pod some time after."""

    def end(script: Script, name: str) -> None:
        until_renewed(script.world)
        script.step(OUTAGE)
        known = len(script.world.audit())
        script.restart()
        back = "all reflectors are back"
        eventually(lambda: have_relisted(script, known), back, limit_s=BACK_MAX_S)
        delete(script, name)

    live(script, pod("stays", CONTAINER), end)


def have_relisted(script: Script, known: int) -> bool:
    """Whether each watch of both nodes has begun anew: the old versions have expired."""
    began = script.steps[OUTAGE]
    since = [each for each in script.world.audit()[known:] if is_since(each, began)]
    return all(
        len(
            {
                each.stream
                for each in trace(since, node, namespace)
                if "sendInitialEvents" in each.token
            }
        )
        == REFLECTORS
        for namespace, node in NODES.items()
    )


def until_renewed(world: World) -> None:
    """Wait until both nodes have just renewed their Leases: the next renewals find a server."""

    def is_renewed() -> bool:
        now, newest = time.time(), dict.fromkeys(NODES.values(), 0.0)
        for event in world.audit():
            if event["verb"] == "update" and event["objectRef"].get("resource") == "leases":
                newest[event["objectRef"]["name"]] = parse(event, {}).at_s
        ages = [now - newest[node] for node in NODES.values()]
        return min(ages) < 1 and max(ages) < RENEWED_S

    eventually(is_renewed, "both have renewed")


def live(script: Script, made: Json, end: Callable[[Script, str], None] | None = None) -> None:
    """Create a pod, wait until it runs, and end it: by deletion if nothing else is asked."""
    world, name = script.world, made["metadata"]["name"]
    script.step(f"{name} starts")
    create(world, made)
    eventually(lambda: is_up(world, name), f"{name} runs")
    time.sleep(PAUSE_S)
    (end or delete)(script, name)


def volumes(script: Script) -> None:
    """Mount volumes of each kind, and change the content of one."""
    world = script.world
    config, secret, made = web()
    create(world, config, secret)

    def end(script: Script, name: str) -> None:
        script.step("ConfigMap changes")
        for namespace in NODES:
            change = '{"data":{"a":"2"}}'
            world.kubectl("-n", namespace, "patch", "configmap", "config", "-p", change)
        time.sleep(PAUSE_S)
        delete(script, name)

    live(script, made, end)
    for namespace in NODES:
        world.kubectl("-n", namespace, "delete", "configmap/config", "secret/secret")


def end_ready(script: Script, name: str) -> None:
    """End a pod once its readiness probe has succeeded, which a kubelet tells apart."""

    def is_ready() -> bool:
        pods = script.world.items("pods", "-A", f"--field-selector=metadata.name={name}")
        return len(pods) == len(NODES) and all(condition(pod, "Ready") == "True" for pod in pods)

    eventually(is_ready, f"{name} is ready")
    time.sleep(PAUSE_S)
    delete(script, name)


def ends_by_itself(script: Script) -> None:
    """Let a pod exceed its deadline."""
    world = script.world
    script.step("deadline passes")
    create(world, pod("deadline", CONTAINER, activeDeadlineSeconds=4))
    eventually(lambda: phases(world, "deadline") == ["Failed", "Failed"], "DeadlineExceeded")
    time.sleep(PAUSE_S)
    delete(script, "deadline")


def rolled(script: Script) -> None:
    """Roll a Deployment: its new pod starts, then the old one ends."""
    world = script.world
    script.step("Deployment starts")
    create(world, workload("Deployment", {"replicas": 1, "selector": {"matchLabels": LABELS}}))
    until_deployed(world, 1)
    time.sleep(PAUSE_S)
    script.step("Deployment rolls")
    change = {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}
    for namespace in NODES:
        command = ("-n", namespace, "patch", "deployment", "made")
        world.kubectl(*command, "-p", json.dumps(change))
    until_deployed(world, 2)
    eventually(lambda: len(world.items("pods", "-A", "-l", "app=made")) == len(NODES), "rolled")
    time.sleep(PAUSE_S)
    script.step("Deployment ends")
    remove(world, "deployment")


def until_deployed(world: World, generation: int) -> None:
    """Wait until both Deployments say so."""

    def is_deployed() -> bool:
        statuses = [each["status"] for each in world.items("deployments", "-A")]
        return len(statuses) == len(NODES) and all(
            each.get("observedGeneration") == generation
            and each.get("updatedReplicas")
            == each.get("readyReplicas")
            == each.get("replicas")
            == 1
            for each in statuses
        )

    eventually(is_deployed, f"generation {generation} is there")


def job(script: Script) -> None:
    """Have the Job controller make a pod, and delete it with its Job."""
    world = script.world
    script.step("Job starts")
    create(world, workload("Job", {}))
    pods = ("pods", "-A", "-l", "app=made", "--field-selector=status.phase=Running")
    eventually(lambda: len(world.items(*pods)) == len(NODES), "the Jobs' pods run")
    time.sleep(PAUSE_S)
    script.step("Job ends")
    remove(world, "job")


def workload(kind: str, spec: Json) -> Json:
    """Return a Deployment or a Job; the node of its pods is set when it is created."""
    body = {"containers": [CONTAINER]}
    if kind == "Job":
        body["restartPolicy"] = "Never"  # type: ignore[assignment]
    notes = NEVER_ENDS if kind == "Job" else {}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    template = {"metadata": {"labels": LABELS, "annotations": notes}, "spec": body}
    made: Json = {"apiVersion": group, "kind": kind, "metadata": {"name": "made"}}
    return {**made, "spec": {**spec, "template": template}}


def remove(world: World, kind: str) -> None:
    """Delete a workload and its pods."""
    for namespace in NODES:
        world.kubectl("-n", namespace, "delete", kind, "made", "--wait=false")
    eventually(lambda: not world.items("pods", "-A", "-l", "app=made"), "its pods are gone")


LABELS = {"app": "made"}
CONTAINER: Json = {"name": "c", "image": IMAGE}
PROBE: Json = {"tcpSocket": {"port": 80}, "periodSeconds": 1, "initialDelaySeconds": 2}
"""Late enough that a kubelet has told before that the container runs."""
PROBED: Json = {**CONTAINER, "readinessProbe": PROBE}
INIT: Json = {"name": "i", "image": IMAGE}
NEVER_ENDS = {"fleet.emulator/run-time": "10000h", "fleet.emulator/stop-exit-code": "0"}
"""Containers of kubemark's runtime never end by themselves, and with 0 when they are stopped."""


def is_up(world: World, name: str) -> bool:
    """Whether on both nodes the first container runs that is to."""
    found = world.items("pods", "-A", f"--field-selector=metadata.name={name}")
    first = "initContainerStatuses" if name == "init" else "containerStatuses"
    states = [each["status"].get(first, [{}])[0].get("state", {}) for each in found]
    return len(states) == len(NODES) and all("running" in state for state in states)


def pod(name: str, *containers: Json, **spec: object) -> Json:
    """Return a pod; its node is set when it is created."""
    body: Json = {"containers": list(containers), **spec}
    notes = NEVER_ENDS if name == "init" else {}
    metadata = {"name": name, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def web() -> list[Json]:
    """Return a pod of three containers with an init container and volumes, and what it mounts."""
    config: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}}
    secret: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}}
    config["data"], secret["stringData"] = {"a": "1"}, {"b": "1"}
    sources = [
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 7200}},
        {"configMap": {"name": "config"}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "secret", "secret": {"secretName": "secret"}},
        {"name": "projected", "projected": {"sources": sources}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    containers = [{"name": name, "image": IMAGE, "volumeMounts": mounts} for name in "abc"]
    made = pod("web", *containers, volumes=volumes)
    return [config, secret, made]


def service() -> Json:
    ports = [{"port": 80, "targetPort": 8080}]
    body = {"selector": {"app": "web"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": body}


def create(world: World, *objects: Json) -> None:
    """Create objects for each node."""
    made = []
    for namespace, node in NODES.items():
        for each in objects:
            body = json.loads(json.dumps(each))
            body["metadata"]["namespace"] = namespace
            if body["kind"] == "Pod":
                body["spec"]["nodeName"] = node
            elif "template" in body.get("spec", {}):
                body["spec"]["template"]["spec"]["nodeName"] = node
            made.append(body)
    world.kubectl(
        "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    )


def phases(world: World, name: str) -> list[str]:
    """Return the phases of the pods of this name."""
    found = world.items("pods", "-A", f"--field-selector=metadata.name={name}")
    return [each["status"]["phase"] for each in found]


def until_gone(world: World, name: str) -> None:
    eventually(lambda: not phases(world, name), f"{name} is gone", limit_s=WAIT_MAX_S)


def delete(script: Script, name: str) -> None:
    script.step(f"{name} ends")
    for namespace in NODES:
        script.world.kubectl("-n", namespace, "delete", "pod", name, "--wait=false")
    until_gone(script.world, name)


def evict(script: Script, name: str) -> None:
    """Evict a pod through the API."""
    script.step(f"{name} ends")
    for namespace in NODES:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body["metadata"] = {"name": name, "namespace": namespace}
        script.world.kubectl("create", f"--raw={path}", "-f", "-", stdin=json.dumps(body))
    until_gone(script.world, name)
