"""Faults of what nodes have beside their kubelets, as the API server shows them, and their end."""

import pytest

from e2e.e2e_world import DEDICATED, Json, World, condition, eventually
from e2e.fault_world import lively, order

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def refused_logins(world: World) -> int:
    """Return how often the API server could not tell who somebody is."""
    found = world.kubectl("get", "--raw=/metrics").splitlines()
    name = 'authentication_attempts{result="error"} '
    return sum(int(float(each.removeprefix(name))) for each in found if each.startswith(name))


def bootstraps(world: World) -> list[str]:
    """Return who of those that bootstrapped asked for client certificates."""
    return [
        each["spec"]["username"]
        for each in world.items("certificatesigningrequests")
        if each["spec"]["username"].startswith("system:bootstrap:")
        and each["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    ]


def test_certificates_that_are_over_are_refused_and_asked_for_anew(world: World) -> None:
    prefix = "expired"
    names = [f"{prefix}-{number:05d}" for number in range(3)]
    with world.spawn(prefix, 3, lively(world), "--identity=csr") as run:
        run.until_ready()
        refused, asked = refused_logins(world), len(bootstraps(world))
        order(run, do="inject", fault={"type": "CertificateExpired", "nodes": names[1:]})
        eventually(lambda: refused_logins(world) > refused, "what they send is refused")
        eventually(lambda: len(bootstraps(world)) == asked + 2, "two have bootstrapped")

        def renewals() -> set[str]:
            leases = world.items("leases", "-n", "kube-node-lease")
            return {
                each["spec"]["renewTime"]
                for each in leases
                if each["metadata"]["name"] in names[1:]
            }

        before = renewals()
        eventually(lambda: not before & renewals(), "both renew their Leases")
        eventually(
            lambda: {condition(world.get("node", each), "Ready") for each in names} == {"True"},
            "all are Ready",
        )
        assert len(bootstraps(world)) == asked + 2
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


def test_nodes_whose_token_is_over_are_refused_until_they_have_another(eager: World) -> None:
    world, prefix = eager, "unknown"
    names = [f"{prefix}-{number:05d}" for number in range(3)]
    token = f"--kubeconfig={world.info.token_kubeconfig}"

    def ready() -> list[str]:
        return [condition(world.get("node", name), "Ready") for name in names]

    def renewed() -> list[str]:
        found = world.items("leases", "-n", "kube-node-lease")
        times = {each["metadata"]["name"]: each["spec"]["renewTime"] for each in found}
        return [times[name] for name in names if name in times]

    with world.spawn(prefix, 3, lively(world), token, *DEDICATED) as run:
        run.until_ready()
        eventually(lambda: len(renewed()) == 3, "each has its Lease", seen=renewed)
        refused = refused_logins(world)
        order(run, do="inject", fault={"type": "TokenExpired", "nodes": names[1:]})
        eventually(lambda: refused_logins(world) > refused + 4, "what they send is refused")
        before = renewed()
        eventually(lambda: ready() == ["True", "Unknown", "Unknown"], "two are lost", seen=ready)
        after = renewed()
        assert [a != b for a, b in zip(before, after, strict=True)] == [True, False, False]
        assert len(order(run, do="heal", what="TokenExpired")["healed"]) == 1
        eventually(lambda: ready() == ["True"] * 3, "all are Ready", seen=ready)
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


DRIVER = "csi.fleet.emulator"


def test_volumes_that_do_not_attach_or_mount_keep_their_pods_waiting(eager: World) -> None:
    world, prefix = eager, "unattached"
    profile = lively(world, "lively-storage", csiDrivers=[{"name": DRIVER}])
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    names = [f"{prefix}-{number:05d}" for number in range(3)]

    def waits(pod: str, reason: str, words: str) -> bool:
        selector = f"--field-selector=involvedObject.name={pod},reason={reason}"
        return any(words in each["message"] for each in world.items("events", selector))

    def are_ready(*pods: str) -> bool:
        return all(condition(world.get("pod", pod), "Ready") == "True" for pod in pods)

    def objects(name: str, node: str) -> list[Json]:
        wanted = {"requests": {"storage": "1Gi"}}
        spec: Json = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "odd",
            "resources": wanted,
        }
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        mounts = [{"name": "data", "mountPath": "/data"}]
        container = {"name": "c", "image": "nginx", "volumeMounts": mounts}
        uses: Json = {"nodeName": node, "containers": [container], "volumes": volumes}
        uses |= {"terminationGracePeriodSeconds": 0}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": uses}
        return [{**claim, "spec": spec}, pod]

    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "odd"},
        "provisioner": DRIVER,
    }
    with world.spawn(prefix, 3, profile, *named) as run:
        run.until_ready()
        for kind, node in (("AttachFailure", names[1]), ("MountFailure", names[2])):
            order(run, do="inject", fault={"type": kind, "nodes": [node], "message": "no slot"})
        pods = ("held", "far", "bad")
        claims = [
            each for pod, node in zip(pods, names, strict=True) for each in objects(pod, node)
        ]
        world.apply(storage_class, *claims)
        eventually(lambda: are_ready("held"), "the first is attached")
        eventually(lambda: waits("far", "FailedAttachVolume", "no slot"), "the second is not")
        eventually(lambda: waits("bad", "FailedMount", "no slot"), "the third is not mounted")
        assert [world.get("pod", pod)["status"]["phase"] for pod in ("far", "bad")] == [
            "Pending",
            "Pending",
        ]
        assert len(order(run, do="heal", what="")["healed"]) == 2
        eventually(lambda: are_ready(*pods), "all are attached and mounted")
        world.kubectl("delete", "pod", *pods, "--wait=false")
        world.kubectl("delete", "pvc", *pods, "--wait=false")
        eventually(lambda: not world.items("pv"), "the volumes are gone")
        run.end_well_or_late()
        world.kubectl("delete", "storageclass", "odd")
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


def test_an_annotation_injects_and_heals(eager: World) -> None:
    """Also at a node that is cut off: fleet's own watch shows it, the node's cannot."""
    world, prefix = eager, "annotated"
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    names = [f"{prefix}-{number:05d}" for number in range(4)]
    cut, timed, refused, spared = names

    def annotate(node: str, value: str) -> None:
        note = f"fleet.emulator/fault={value}" if value else "fleet.emulator/fault-"
        world.kubectl("annotate", "--overwrite", "node", node, note)

    def ready() -> list[str]:
        return [condition(world.get("node", name), "Ready") for name in names]

    def refusals() -> list[tuple[str, str]]:
        found = world.items("events", "--field-selector=reason=FaultRefused")
        return [(each["involvedObject"]["name"], each["message"]) for each in found]

    with world.spawn(prefix, 4, lively(world), *named) as run:
        run.until_ready()
        annotate(cut, "Partition mode=Reset; NodeCondition condition=Odd")
        annotate(timed, "NetworkNotReady:20s message=cut")
        annotate(refused, "Earthquake:8m")
        eventually(lambda: ready() == ["Unknown", "True", "True", "True"], "one is cut off")
        eventually(lambda: refusals() != [], "what cannot be is told", seen=refusals)
        [(node, message)] = refusals()
        assert node == refused
        assert message.startswith("fleet.emulator/fault: 'Earthquake' is no fault; these are: ")
        annotate(cut, "")
        eventually(lambda: ready() == ["True"] * 4, "all are Ready", seen=ready)
        annotate(spared, "NetworkNotReady")
        eventually(lambda: ready() == ["True", "True", "True", "False"], "another", seen=ready)
        annotate(spared, "NodeCondition condition=Odd")
        eventually(lambda: ready() == ["True"] * 4, "it is another fault now", seen=ready)
        eventually(lambda: told(world, spared, "Odd")[0] == "True", "which is told")
        run.end_well_or_late()
    assert "NetworkNotReady on 1 of 4 nodes" in run.log
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


def told(world: World, node: str, kind: str) -> tuple[str, str]:
    conditions = world.get("node", node)["status"]["conditions"]
    found = [each for each in conditions if each["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def taints(world: World, node: str) -> set[str]:
    return {each["key"] for each in world.get("node", node)["spec"].get("taints", ())}


def test_daemons_say_conditions_and_take_them_back(eager: World) -> None:
    """As node-problem-detector and a network's agent do; what follows is the controllers'."""
    world, prefix = eager, "conditioned"
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    hit, spared = f"{prefix}-00001", f"{prefix}-00000"

    def odd() -> list[str]:
        return sorted(told(world, name, "Odd")[0] for name in (hit, spared))

    with world.spawn(prefix, 2, lively(world), *named) as run:
        run.until_ready()
        what = {"condition": "KernelDeadlock", "reason": "TaskHung", "nodes": [hit]}
        order(run, do="inject", fault={"type": "NodeCondition", **what})
        order(run, do="inject", fault={"type": "NodeCondition", "condition": "Odd", "share": 0.5})
        order(run, do="inject", fault={"type": "NetworkUnavailable", "nodes": [hit]})
        bad = ("True", "TaskHung")
        eventually(lambda: told(world, hit, "KernelDeadlock") == bad, "the kernel hangs")
        cut = "node.kubernetes.io/network-unavailable"
        eventually(lambda: cut in taints(world, hit), "the controller has tainted the node")
        eventually(lambda: odd() == ["", "True"], "one of two nodes is odd", seen=odd)
        assert told(world, spared, "KernelDeadlock") == ("", "")
        assert cut not in taints(world, spared)
        assert len(order(run, do="heal", what="")["healed"]) == 3
        fine = ("False", "NoKernelDeadlock")
        eventually(lambda: told(world, hit, "KernelDeadlock") == fine, "the kernel goes on")
        eventually(lambda: cut not in taints(world, hit), "the taint is gone")
        eventually(lambda: odd() == ["", "False"], "it is so no more", seen=odd)
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


ODD: tuple[tuple[str, Json], ...] = (
    ("RuntimeDown", {}),
    ("RuntimeNotReady", {"message": "the shim is gone"}),
    ("PLEGStall", {}),
    ("PIDPressure", {}),
    ("LateHeartbeats", {"by": "3s", "heartbeats": ["Lease"]}),
    ("SlowLink", {"by": "3s"}),
)
"""By the number of the node that each hits; the node after them is spared."""
NOT_READY = {
    0: "container runtime is down",
    1: "container runtime not ready: RuntimeReady=false",
    2: "PLEG is not healthy: pleg was last seen active",
}
PLEG_S_MAX = 240.0  # a PLEG is unhealthy after 3 minutes
KUBELET: Json = {
    "nodeLeaseDurationSeconds": 8,
    "nodeStatusUpdateFrequency": "4s",
    "evictionPressureTransitionPeriod": "5s",
    "evictionHard": {"memory.available": "100Mi", "pid.available": "10%"},
}


def test_runtimes_links_and_processes_fail_and_are_well_again(eager: World) -> None:
    world, prefix = eager, "odd"
    profile = lively(world, "lively-odd", kubeletConfiguration=KUBELET)
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    names = [f"{prefix}-{number:05d}" for number in range(len(ODD) + 1)]

    def said(number: int, kind: str = "Ready") -> tuple[str, str]:
        conditions = world.get("node", names[number])["status"]["conditions"]
        [found] = [each for each in conditions if each["type"] == kind]
        return found["status"], found["message"]

    def is_told(number: int) -> bool:
        status, message = said(number)
        return status == "False" and NOT_READY[number] in message

    with world.spawn(prefix, len(names), profile, *named) as run:
        run.until_ready()
        for (kind, more), name in zip(ODD, names, strict=False):
            order(run, do="inject", fault={"type": kind, "nodes": [name], **more})
        eventually(lambda: said(3, "PIDPressure")[0] == "True", "no process can be started")
        for number in (0, 1):
            eventually(lambda: is_told(number), NOT_READY[number], seen=lambda: said(number))  # noqa: B023
        eventually(lambda: is_told(2), NOT_READY[2], limit_s=PLEG_S_MAX, seen=lambda: said(2))
        assert [said(number)[0] for number in (3, 4, 5, 6)] == ["True"] * 4
        assert said(6, "PIDPressure")[0] == "False"
        assert len(order(run, do="heal", what="")["healed"]) == len(ODD)
        numbers = range(len(names))
        eventually(lambda: {said(each)[0] for each in numbers} == {"True"}, "all are Ready")
        eventually(lambda: said(3, "PIDPressure")[0] == "False", "processes can be started")
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)


def test_a_kubelet_that_restarts_admits_its_pods_anew(eager: World) -> None:
    """One of whose node a label has gone is refused and ends; the other one goes on."""
    world, prefix = eager, "anew"
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    node = f"{prefix}-00000"

    def bound(name: str, **spec: object) -> Json:
        containers = [{"name": "c", "image": "nginx"}]
        spec = {"containers": containers, "terminationGracePeriodSeconds": 0, **spec}
        spec["nodeName"] = node
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def ids(pod: str) -> tuple[str, int]:
        [status] = world.get("pod", pod)["status"]["containerStatuses"]
        return status["containerID"], status["restartCount"]

    with world.spawn(prefix, 1, lively(world), *named) as run:
        run.until_ready()
        world.kubectl("label", "node", node, "example.com/here=yes")
        world.apply(bound("picky", nodeSelector={"example.com/here": "yes"}), bound("easy"))
        world.kubectl("wait", "--for=condition=Ready", "pod/picky", "pod/easy", "--timeout=120s")
        before = ids("easy")
        world.kubectl("label", "node", node, "example.com/here-")
        assert world.get("pod", "picky")["status"]["phase"] == "Running", "nobody looks before"
        order(run, do="inject", fault={"type": "KubeletRestart"})
        ended = ("Succeeded", "Failed")
        eventually(lambda: world.get("pod", "picky")["status"]["phase"] in ended, "it is refused")
        selector = "--field-selector=involvedObject.name=picky,reason=NodeAffinity"
        eventually(lambda: world.items("events", selector), "which is told")
        assert ids("easy") == before
        assert condition(world.get("pod", "easy"), "Ready") == "True"
        world.kubectl("delete", "pod", "picky", "easy", "--wait=false")
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(prefix)
