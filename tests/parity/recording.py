"""The same script on two nodes, one of them Kubernetes' own kubelet; the audit log has both.

Each node has a namespace of its own with the very same names in it, so that the two traces differ
in one word. Everything is done to both at the same time.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from audit_trace import Window, parse, trace
from e2e_world import WAIT_MAX_S, Json, World, condition, eventually

from fleet.controlplane.certificates import Authority, Pair
from fleet.controlplane.directory import Layout
from fleet.controlplane.kubeconfig import certificate_kubeconfig

HOLLOW, FLEET = "hollow-00000", "parity-00000"
NODES = {"parity-hollow": HOLLOW, "parity-fleet": FLEET}
"""The namespace of each node."""
IDLE_S = 60.0
PAUSE_S = 2.5
"""What a kubelet does after an event it does within a relist of its runtime, and a second."""
TICK_S = 11.0
"""The node status is looked at every 10 s x U[1, 1.04]."""
SCENES_MAX = 4
IMAGE = "registry.k8s.io/pause:3.10.1"
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:serviceaccounts"]
- level: None
  users: ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager"]
- level: Request
"""
PROFILE = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: parity}
spec:
  template:
    spec: {providerID: "kubemark://{{name}}"}
    status: {capacity: {cpu: "1", memory: 4Gi, pods: "110"}}
  kubeletConfiguration: {syncFrequency: 10s}
"""
"""What kubemark configures: pkg/kubemark/hollow_kubelet.go, GetHollowKubeletConfig."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What the audit log has of both nodes, and when each step of the script began."""

    events: list[Json]
    steps: list[float]
    """In seconds since the epoch."""
    void: list[Window]
    """When chance parted the nodes, and a part of the script was played again."""


@dataclass(slots=True)
class Script:
    """What is done to both nodes."""

    world: World
    steps: list[float] = field(default_factory=list)
    void: list[Window] = field(default_factory=list)

    def step(self) -> None:
        """Go on: the next requests follow from what is done now."""
        self.steps.append(time.time())

    def scene(self, body: Callable[[], None]) -> None:
        """Play a part of the script, and again if chance parted the nodes.

        The node authorizer learns of a pod by a watch; a kubelet that is faster gets a 403, and its
        next status comes with the following change. On a busy machine two changes may become one.
        What is no chance happens each time: the last time counts whatever happens.
        """
        for _ in range(SCENES_MAX - 1):
            begun = time.time()
            body()
            time.sleep(PAUSE_S)
            since = [each for each in read_audit(self.world) if is_since(each, begun)]
            if not any(is_refusal(each) for each in since) and have_equal_writes(since):
                return
            self.void.append((begun, time.time()))
        body()
        time.sleep(PAUSE_S)


def is_since(event: Json, begun: float) -> bool:
    """Whether a request came after the script had begun something."""
    return parse(event, {}).at_s >= begun


def have_equal_writes(events: list[Json]) -> bool:
    """Whether both nodes wrote as often about each pod, but for what probes add."""
    written = [
        Counter(
            each.token
            for each in trace(events, node, namespace, ())
            if each.is_namespaced and each.verb in ("patch", "delete") and each.name != "probed"
            if each.resource != "events"
        )
        for namespace, node in NODES.items()
    ]
    return written[0] == written[1]


def read_audit(world: World) -> list[Json]:
    lines = world.audit_log.read_text().splitlines()
    return [json.loads(line) for line in lines]


def is_refusal(event: Json) -> bool:
    """Whether a node was refused its own pod."""
    request = parse(event, {})
    is_ours = event.get("objectRef", {}).get("namespace") in NODES
    return is_ours and request.resource == "pods" and request.code == 403


def record(world: World, kubemark: Path) -> Recording:
    """Play the script; takes some two minutes."""
    profile = world.root / "parity.yaml"
    profile.write_text(PROFILE)
    for namespace in NODES:
        world.kubectl("create", "namespace", namespace)
    script = Script(world)
    # Fleet first: beside a node that is there already it would take the cluster for a shared one.
    with world.spawn("parity", 1, f"--profile={profile}") as run:
        run.until_ready()
        with hollow_node(world, kubemark):
            eventually(lambda: all(is_ready(world, node) for node in NODES.values()), "Ready")
            play(script)
            events = read_audit(world)
        run.end()
    return Recording(events, script.steps, script.void)


def is_ready(world: World, node: str) -> bool:
    found = world.items("nodes", f"--field-selector=metadata.name={node}")
    return bool(found) and condition(found[0], "Ready") == "True"


@contextlib.contextmanager
def hollow_node(world: World, kubemark: Path) -> Iterator[None]:
    """Run one hollow node with a certificate of its own."""
    directory = world.root / "hollow"
    directory.mkdir()
    layout = Layout(world.info.directory)
    authority = Authority(Pair(layout.pki / "ca.crt", layout.pki / "ca.key"))
    pair = Pair(directory / "node.crt", directory / "node.key")
    user = f"system:node:{HOLLOW}"
    authority.client(pair, user, ("system:nodes",))
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_bytes(certificate_kubeconfig(world.info.url, world.info.ca_file, user, pair))
    port, read_only = free_port(), free_port()
    command = (str(kubemark), "--morph=kubelet", f"--name={HOLLOW}", f"--kubeconfig={kubeconfig}")
    ports = (f"--kubelet-port={port}", f"--kubelet-read-only-port={read_only}")
    limits = ("--kube-api-qps=50", "--kube-api-burst=100")  # a kubelet's; kubemark has 10 and 20
    others = ("--use-host-image-service=false", f"--cert-dir={directory}", *limits)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            (*command, *ports, *others),
            env={**os.environ, "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
        assert process.poll() is None, (directory / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def play(script: Script) -> None:
    """Do to both nodes what users do."""
    world = script.world
    begun = time.monotonic()
    script.scene(lambda: live(script, pod("warm-up", CONTAINER)))
    script.void.append((0, time.time()))  # the first pod of a namespace makes its watches
    script.scene(lambda: live(script, pod("plain", CONTAINER)))
    script.scene(lambda: volumes(script))
    script.scene(lambda: ends_by_itself(script))
    script.scene(lambda: live(script, pod("init", CONTAINER, initContainers=[INIT])))
    script.scene(lambda: live(script, pod("evicted", CONTAINER), evict))
    script.scene(lambda: live(script, pod("probed", PROBED)))
    script.scene(lambda: rolled(script))
    script.scene(lambda: job(script))
    script.step()
    for node in NODES.values():
        world.kubectl("cordon", node)
    create(world, service())
    time.sleep(max(TICK_S, begun + IDLE_S - time.monotonic()))


def live(script: Script, made: Json, end: Callable[[World, str], None] | None = None) -> None:
    """Create a pod, wait until it runs, and end it: by deletion if nothing else is asked."""
    world, name = script.world, made["metadata"]["name"]
    script.step()
    create(world, made)
    eventually(lambda: is_up(world, name), f"{name} runs")
    time.sleep(PAUSE_S)
    script.step()
    (end or delete)(world, name)


def volumes(script: Script) -> None:
    """Mount volumes of each kind, and change the content of one."""
    world = script.world
    config, secret, made = web()
    create(world, config, secret)

    def end(world: World, name: str) -> None:
        for namespace in NODES:
            change = '{"data":{"a":"2"}}'
            world.kubectl("-n", namespace, "patch", "configmap", "config", "-p", change)
        time.sleep(PAUSE_S)
        script.step()
        delete(world, name)

    live(script, made, end)
    for namespace in NODES:
        world.kubectl("-n", namespace, "delete", "configmap/config", "secret/secret")


def ends_by_itself(script: Script) -> None:
    """Let a pod exceed its deadline."""
    world = script.world
    script.step()
    create(world, pod("deadline", CONTAINER, activeDeadlineSeconds=4))
    eventually(lambda: phases(world, "deadline") == ["Failed", "Failed"], "DeadlineExceeded")
    time.sleep(PAUSE_S)
    script.step()
    delete(world, "deadline")


def rolled(script: Script) -> None:
    """Roll a Deployment: its new pod starts, then the old one ends."""
    world = script.world
    script.step()
    create(world, workload("Deployment", {"replicas": 1, "selector": {"matchLabels": LABELS}}))
    until_deployed(world, 1)
    time.sleep(PAUSE_S)
    script.step()
    change = {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}
    for namespace in NODES:
        command = ("-n", namespace, "patch", "deployment", "made")
        world.kubectl(*command, "-p", json.dumps(change))
    until_deployed(world, 2)
    eventually(lambda: len(world.items("pods", "-A", "-l", "app=made")) == len(NODES), "rolled")
    time.sleep(PAUSE_S)
    script.step()
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
    script.step()
    create(world, workload("Job", {}))
    pods = ("pods", "-A", "-l", "app=made", "--field-selector=status.phase=Running")
    eventually(lambda: len(world.items(*pods)) == len(NODES), "the Jobs' pods run")
    time.sleep(PAUSE_S)
    script.step()
    remove(world, "job")


def workload(kind: str, spec: Json) -> Json:
    """Return a Deployment or a Job; the node of its pods is set when it is created."""
    body = {"containers": [CONTAINER]}
    if kind == "Job":
        body["restartPolicy"] = "Never"  # type: ignore[assignment]
    group = "batch/v1" if kind == "Job" else "apps/v1"
    template = {"metadata": {"labels": LABELS}, "spec": body}
    made: Json = {"apiVersion": group, "kind": kind, "metadata": {"name": "made"}}
    return {**made, "spec": {**spec, "template": template}}


def remove(world: World, kind: str) -> None:
    """Delete a workload and its pods."""
    for namespace in NODES:
        world.kubectl("-n", namespace, "delete", kind, "made", "--wait=false")
    eventually(lambda: not world.items("pods", "-A", "-l", "app=made"), "its pods are gone")


LABELS = {"app": "made"}
CONTAINER: Json = {"name": "c", "image": IMAGE}
PROBED: Json = {**CONTAINER, "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1}}
INIT: Json = {"name": "i", "image": IMAGE}
"""Containers of kubemark's runtime never end by themselves."""


def is_up(world: World, name: str) -> bool:
    """Whether on both nodes the first container runs that is to."""
    found = world.items("pods", "-A", f"--field-selector=metadata.name={name}")
    first = "initContainerStatuses" if name == "init" else "containerStatuses"
    states = [each["status"].get(first, [{}])[0].get("state", {}) for each in found]
    return len(states) == len(NODES) and all("running" in state for state in states)


def pod(name: str, *containers: Json, **spec: object) -> Json:
    """Return a pod; its node is set when it is created."""
    body: Json = {"containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


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


def delete(world: World, name: str) -> None:
    for namespace in NODES:
        world.kubectl("-n", namespace, "delete", "pod", name, "--wait=false")
    until_gone(world, name)


def evict(world: World, name: str) -> None:
    """Evict a pod through the API."""
    for namespace in NODES:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body["metadata"] = {"name": name, "namespace": namespace}
        world.kubectl("create", f"--raw={path}", "-f", "-", stdin=json.dumps(body))
    until_gone(world, name)
