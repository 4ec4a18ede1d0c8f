"""What others see of virtual nodes: kubectl, the audit log, priority-and-fairness."""

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from support.go_program import TESTED

from e2e.audit_requests import assert_refusals_end
from e2e.e2e_world import Json, Running, World, condition, eventually, six_nodes, workload
from e2e.lateness import assert_done

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GPU = "nvidia.com/gpu"
CONDITIONS = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
    "Ready": "KubeletReady",
}
TOLD = {"Starting", "NodeReady", "NodeHasSufficientMemory", "NodeHasNoDiskPressure"}


@pytest.fixture(scope="module")
def cold(world: World) -> Iterator[Running]:
    """Run six kubelets that say what those say that start, by a name that only they have.

    The node lifecycle controller looks every 5 s and knows nodes by name: to one that is deleted
    and made again in between it gives no event.
    """
    yield from six_nodes(world, "cold", "--start=cold")


def by_node(events: list[Json], prefix: str) -> dict[str, list[Json]]:
    """Return the audited requests that were made as nodes, by the node's name."""
    found: dict[str, list[Json]] = {}
    for event in events:
        user = event.get("impersonatedUser", {}).get("username", "")
        is_probe = event["userAgent"].startswith("fleet/")  # whether we may impersonate at all
        if user.startswith(f"system:node:{prefix}-") and not is_probe:
            found.setdefault(user.removeprefix("system:node:"), []).append(event)
    return found


def told(world: World, node: str) -> set[str]:
    """Return the reasons of the events that a kubelet has sent about its node."""
    events = world.items("events", f"--field-selector=involvedObject.name={node}")
    return {event["reason"] for event in events if event["source"].get("component") == "kubelet"}


def has_pod_cidr(world: World, prefix: str, name: str) -> bool:
    return "podCIDR" in world.nodes(prefix)[name]["spec"]


def has_csi_node(world: World, node: str) -> bool:
    return node in {each["metadata"]["name"] for each in world.items("csinodes")}


OLD_PROFILE = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: old}
spec:
  kubeletVersion: v1.35.4
  addressPool: 10.99.0.0/16
  template:
    metadata: {labels: {node.kubernetes.io/instance-type: small, mine: kept}}
    status:
      capacity: {cpu: "4", memory: 8Gi, hugepages-1Gi: 2Gi, hugepages-64Ki: "0"}
      nodeInfo: {osImage: Old Linux, containerRuntimeVersion: "containerd://1.7.0"}
"""


def test_a_node_that_is_taken_over_shows_its_new_profile(world: World) -> None:
    """As after `helm upgrade`: what a kubelet reports is new, what others own has stayed."""
    prefix, extended = "anew", "example.com/dongle"
    name = f"{prefix}-00001"
    profile = world.root / f"{prefix}.yaml"
    profile.write_text(OLD_PROFILE)
    options = ("--nodes=2", f"--name-prefix={prefix}")
    done = world.fleet("spawn", *options, f"--profile={profile}", "--keep", "--until-ready")
    assert_done(done.returncode, done.stdout, done.stderr)
    old = world.nodes(prefix)[name]
    assert old["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.4"
    written = json.dumps({"status": {"capacity": {extended: "3"}, "allocatable": {extended: "3"}}})
    world.kubectl("patch", "node", name, "--subresource=status", "-p", written)
    with world.spawn("fresh", 1) as other:
        other.until_ready()
        fresh = world.nodes("fresh")["fresh-00000"]["status"]
        with world.spawn(prefix, 2) as run:
            eventually(
                lambda: world.nodes(prefix)[name]["status"]["capacity"]["cpu"] == "8", "capacity"
            )
            node = world.nodes(prefix)[name]
            status = node["status"]
            for member in ("capacity", "allocatable"):
                assert status[member].pop(extended) == "0"
            for member in ("capacity", "allocatable", "runtimeHandlers", "declaredFeatures"):
                assert status[member] == fresh[member]
            for key in set(fresh["nodeInfo"]) - {"machineID", "systemUUID", "bootID"}:
                assert status["nodeInfo"][key] == fresh["nodeInfo"][key]
            assert status["nodeInfo"]["bootID"] == old["status"]["nodeInfo"]["bootID"]
            internal, hostname = (each["address"] for each in status["addresses"])
            assert internal.startswith("127.128.")
            assert internal != fresh["addresses"][0]["address"]  # the other fleet's
            assert hostname == name
            labels = node["metadata"]["labels"]
            assert labels["node.kubernetes.io/instance-type"] == "general-8x32"
            assert labels["mine"] == "kept"
            assert node["metadata"]["uid"] == old["metadata"]["uid"]
            run.end_well_or_late()
        other.end_well_or_late()
    world.assert_nothing_left(prefix)


PASTED = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: kwok}
spec:
  template:
    metadata:
      annotations: {kwok.x-k8s.io/node: fake}
      labels: {node-role.kubernetes.io/agent: "", a.node-restriction.kubernetes.io/team: x}
    spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
    status: {capacity: {cpu: 32, memory: 256Gi}, nodeInfo: {kubeletVersion: fake}}
---
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: win}
spec:
  template:
    status: {capacity: {cpu: "8"}, nodeInfo: {operatingSystem: windows}}
---
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {name: provider}
spec:
  kubeletVersion: v1.35.4-eks-1
  userAgent: "kubelet/{{version}} (linux/{{arch}}) kubernetes/a1b2c3d"
"""


def addresses_of(world: World, prefix: str) -> set[str]:
    found = (node["status"]["addresses"] for node in world.nodes(prefix).values())
    return {each["address"] for listed in found for each in listed if each["type"] != "Hostname"}


def test_pasted_nodes_of_kwok_windows_and_a_provider_register_and_run_pods(world: World) -> None:
    """NodeRestriction forbids their labels, validation the user of Linux in a pod's status.

    The provider's have a version and a user agent of their own.
    """
    lines = len(world.audit())
    profile = world.root / "pasted.yaml"
    profile.write_text(PASTED)
    with (
        world.spawn("pasted", 3, f"--profile={profile}") as run,
        world.spawn("beside", 2) as other,
    ):
        run.until_ready()
        other.until_ready()
        nodes = world.nodes("pasted").values()
        [win] = [each for each in nodes if each["status"]["nodeInfo"]["operatingSystem"] != "linux"]
        versions = [each["status"]["nodeInfo"]["kubeletVersion"] for each in nodes]
        [provider] = [node for node, each in zip(nodes, versions, strict=True) if "-eks-" in each]
        [kwok] = [each for each in nodes if each is not win and each is not provider]
        assert {"node-role.kubernetes.io/agent", "a.node-restriction.kubernetes.io/team"} <= set(
            kwok["metadata"]["labels"]
        )
        assert [each["key"] for each in kwok["spec"]["taints"]] == ["kwok.x-k8s.io/node"]
        assert kwok["status"]["nodeInfo"]["kubeletVersion"] == world.info.server_version
        assert provider["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.4-eks-1"
        agents = {
            name: {event["userAgent"] for event in events}
            for name, events in by_node(world.audit()[lines:], "pasted").items()
        }
        for each in nodes:
            name = each["metadata"]["name"]
            of_provider = "kubelet/v1.35.4 (linux/amd64) kubernetes/a1b2c3d"
            assert (agents[name] == {of_provider}) is (each is provider), agents
        assert len(addresses_of(world, "pasted") | addresses_of(world, "beside")) == 5
        pod = {"os": {"name": "windows"}, "nodeName": win["metadata"]["name"]}
        world.apply(workload("Deployment", "of-windows", 1, **pod))
        world.apply(workload("Deployment", "next-to-it", 1, nodeName="beside-00001"))
        for name in ("of-windows", "next-to-it"):
            world.kubectl("rollout", "status", f"deployment/{name}", "--timeout=120s")
            world.kubectl("logs", f"deployment/{name}")  # its node is found by its address
            world.kubectl("delete", "deployment", name, "--wait=false")
        run.end_well_or_late()
        other.end_well_or_late()
    assert "'fake' is no version" in run.log


def capacities(world: World, prefix: str) -> Counter[str]:
    """Count the nodes by how many GPUs they have."""
    nodes = world.nodes(prefix).values()
    return Counter(node["status"]["capacity"].get(GPU, "0") for node in nodes)


def test_profiles_mix_by_weight(world: World) -> None:
    """One node of four has eight GPUs, and a pod that asks for one gets there."""
    profiles = ("--profile=gpu", "--profile=default=3")
    with world.spawn("mix", 8, *profiles) as run:
        run.until_ready()
        expected = {"8": 2, "0": 6}  # once the device plugins have registered
        eventually(lambda: capacities(world, "mix") == expected, "eight GPUs on one node of four")
        nodes = world.nodes("mix").values()
        names = {node["metadata"]["name"] for node in nodes if GPU in node["status"]["capacity"]}
        trained = workload(
            "Deployment", "train", 3, tolerations=[{"key": GPU, "operator": "Exists"}]
        )
        [container] = trained["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {GPU: "4"}}
        world.apply(trained)
        world.kubectl("rollout", "status", "deployment/train", "--timeout=120s")
        assert {pod["spec"]["nodeName"] for pod in world.pods("train")} == names
        world.kubectl("delete", "deployment", "train", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("mix")


def test_each_node_is_itself_and_none_is_exempt(world: World) -> None:
    """Every request of a node is its own user's, and waits in the nodes' priority levels."""
    levels, lines = world.dispatched(), len(world.audit())
    with world.spawn("who", 5) as run:
        run.until_ready()
        world.apply(workload("Deployment", "who", 5))
        world.kubectl("rollout", "status", "deployment/who", "--timeout=120s")
        world.kubectl("delete", "deployment", "who")
        eventually(lambda: not world.pods("who"), "the pods are gone")
        requests = by_node(world.audit()[lines:], "who")
        later = world.dispatched()
        run.end_well_or_late()
    assert set(requests) == {f"who-{slot:05d}" for slot in range(5)}
    for name, events in requests.items():
        for event in events:
            assert "system:nodes" in event["impersonatedUser"]["groups"]
            assert event["userAgent"].startswith(f"kubelet/{TESTED} (linux/amd64) kubernetes/")
            if event["objectRef"]["resource"] in ("nodes", "csinodes"):
                assert event["objectRef"].get("name", name) == name
        assert_refusals_end(events)
        watched = {event["objectRef"]["resource"] for event in events if event["verb"] == "watch"}
        assert watched >= {"nodes", "pods", "services", "csidrivers", "runtimeclasses"}
    # Nobody but the nodes speaks as kubelet.
    others = [event for event in world.audit()[lines:] if "impersonatedUser" not in event]
    assert not [event for event in others if event["userAgent"].startswith("kubelet/")]
    done = [e for events in requests.values() for e in events if e["stage"] == "ResponseComplete"]
    gained = {level: later[level] - levels.get(level, 0) for level in later}
    made = Counter("node-high" if is_heartbeat(event) else "system" for event in done)
    assert gained["node-high"] >= made["node-high"] > 0
    assert gained["system"] >= made["system"] > 0


def is_heartbeat(event: Json) -> bool:
    """Return whether the flow schema system-node-high takes the request."""
    return event["objectRef"]["resource"] in ("nodes", "leases")


def test_a_shared_identity_is_the_given_user(world: World) -> None:
    lines = len(world.audit())
    with world.spawn("one", 3, "--identity=shared") as run:
        run.until_ready()
        run.end_well_or_late()
    kubelets = [
        event for event in world.audit()[lines:] if event["userAgent"].startswith("kubelet/")
    ]
    assert {event["user"]["username"] for event in kubelets} == {"kubernetes-admin"}
    assert not [event for event in kubelets if "impersonatedUser" in event]
    created = {
        event["objectRef"]["name"]
        for event in kubelets
        if event["verb"] == "create" and event["objectRef"]["resource"] == "nodes"
    }
    assert created <= {f"one-{slot:05d}" for slot in range(3)}
    world.assert_nothing_left("one")


def test_light_nodes_are_themselves_too(world: World) -> None:
    """Fewer connections and requests; writes still go as each node, one watch serves all."""
    lines = len(world.audit())
    with world.spawn("few", 5, "--fidelity=light") as run:
        run.until_ready()
        run.end_well_or_late()
    requests = by_node(world.audit()[lines:], "few")
    assert len(requests) == 5
    verbs = {event["verb"] for events in requests.values() for event in events}
    assert "watch" not in verbs
    assert "create" in verbs
    assert {event["userAgent"] for events in requests.values() for event in events} == {
        f"kubelet/{TESTED} (linux/amd64) kubernetes/f1ee700"
    }
    world.assert_nothing_left("few")


@pytest.mark.usefixtures("cold")
def test_kubectl_shows_a_node_like_a_real_one(world: World) -> None:
    eventually(lambda: has_pod_cidr(world, "cold", "cold-00001"), "the controller's pod CIDR")
    node = world.nodes("cold")["cold-00001"]
    wide = world.kubectl("get", "nodes", "cold-00001", "-o", "wide", "--no-headers").split()
    # A kubelet that looks for its Node before it is there makes its Lease 10 s later.
    leases = ("leases", "-n", "kube-node-lease", "--field-selector=metadata.name=cold-00002")
    eventually(lambda: world.items(*leases), "the node's Lease")
    [lease] = world.items(*leases)
    # A kubelet of 1.35 or 1.36 names no uid in its node's events: describe does not find them.
    eventually(lambda: told(world, "cold-00001") >= TOLD, "the kubelet's events")
    eventually(
        lambda: "RegisteredNode" in world.kubectl("describe", "node", "cold-00001"),
        "the controller's event",
    )
    described = world.kubectl("describe", "node", "cold-00001")
    eventually(lambda: has_csi_node(world, "cold-00001"), "the CSINode")
    csi_node = world.get("csinode", "cold-00001")
    metadata, status = node["metadata"], node["status"]
    for key, value in {
        "kubernetes.io/hostname": "cold-00001",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "general-8x32",
    }.items():
        assert metadata["labels"][key] == value
    assert metadata["labels"]["topology.kubernetes.io/zone"].startswith("zone-")
    assert metadata["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"]
    assert node["spec"]["podCIDR"] in node["spec"]["podCIDRs"]
    assert node["spec"]["providerID"].endswith("/cold-00001")
    assert not node["spec"].get("taints")
    shown = {each["type"]: each for each in status["conditions"]}
    assert {kind: each["reason"] for kind, each in shown.items()} == CONDITIONS
    assert shown["Ready"]["message"] == "kubelet is posting ready status"
    assert [each["type"] for each in status["addresses"]] == ["InternalIP", "Hostname"]
    assert set(status["capacity"]) >= {"cpu", "memory", "pods", "ephemeral-storage"}
    assert (status["capacity"]["cpu"], status["allocatable"]["cpu"]) == ("8", "7810m")
    assert status["capacity"]["pods"] == status["allocatable"]["pods"] == "110"
    assert len(status["images"]) == 47  # of the 50 that a status shows
    assert 10_000 < len(json.dumps(node, separators=(",", ":"))) < 15_000
    assert status["nodeInfo"]["kubeletVersion"] == world.info.server_version
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert re.fullmatch(r"[0-9a-f-]{32,36}", status["nodeInfo"]["machineID"])
    for line in (
        "Roles:              <none>",
        "Unschedulable:      false",
        "Ready            True",
    ):
        assert line in described, described
    assert wide[:2] == ["cold-00001", "Ready"]
    assert lease["spec"]["holderIdentity"] == "cold-00002"
    assert lease["spec"]["leaseDurationSeconds"] == 40
    [owner] = csi_node["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", metadata["uid"])


@pytest.mark.usefixtures("cold")
def test_kubectl_shows_a_pod_like_a_real_one(world: World) -> None:
    world.apply(workload("Deployment", "shown", 1))
    world.kubectl("rollout", "status", "deployment/shown", "--timeout=120s")
    [pod] = world.pods("shown")
    name = pod["metadata"]["name"]
    steps = ("Scheduled", "Pulled", "Created", "Started")

    def reasons() -> set[str]:
        found = world.items("events", f"--field-selector=involvedObject.name={name}")
        return {each["reason"] for each in found}

    eventually(lambda: reasons() >= set(steps), "the pod's events", seen=reasons)
    described = world.kubectl("describe", "pod", name)
    on = pod["spec"]["nodeName"]
    eventually(lambda: has_pod_cidr(world, "cold", on), "the controller's pod CIDR")
    node = world.nodes("cold")[on]
    world.kubectl("delete", "deployment", "shown", "--wait=false")
    status = pod["status"]
    kinds = {each["type"] for each in status["conditions"]}
    assert kinds == {
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    }
    assert all(condition(pod, kind) == "True" for kind in kinds)
    [container] = status["containerStatuses"]
    assert (container["ready"], container["started"], container["restartCount"]) == (True, True, 0)
    assert container["containerID"].startswith("containerd://")
    assert "startedAt" in container["state"]["running"]
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["hostIPs"] == [{"ip": status["hostIP"]}]
    assert status["qosClass"] == "BestEffort"
    network, _, bits = node["spec"]["podCIDR"].partition("/")
    assert bits == "24"
    assert status["podIP"].rpartition(".")[0] == network.rpartition(".")[0]
    for reason in steps:
        assert re.search(rf"Normal\s+{reason}\s", described), described
    assert "Status:           Running" in described
