"""Faults of machines, runtimes, links and of the run's own control plane, as the API shows them."""

import dataclasses
import json
from functools import partial
from pathlib import Path

import pytest

from e2e.e2e_world import DEDICATED, Json, World, condition, eventually, pod
from e2e.fault_world import lively, order
from fleet.errors import FleetError

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PREFIX = "machine"
NODES = 12
PODS = {"booted": 0, "died": 2, "crashed": 4, "killed": 5, "calm": 11}
"""By name: the number of the node on which each runs."""
FAULTS: tuple[tuple[str, list[int], Json], ...] = (
    ("NodeDown", [0, 1], {}),
    ("SandboxDeath", [2], {}),
    ("SandboxFailure", [3], {"message": "no route"}),
    ("ContainerCrash", [4], {"every": "10s"}),
    ("OutOfMemory", [5], {}),
    ("Partition", [6], {"mode": "Inbound"}),
    ("Partition", [7], {"mode": "Outbound"}),
    ("NetworkNotReady", [8], {"every": "20s"}),
    ("SlowLink", [9], {"by": "1s"}),
)


calm = partial(
    pod,
    annotations={"fleet.emulator/memory-usage": "64Mi"},
    container={"image": "nginx"},
    terminationGracePeriodSeconds=0,
)


def name_of(number: int) -> str:
    return f"{PREFIX}-{number:05d}"


def is_ready(world: World, name: str) -> bool:
    return condition(world.get("pod", name), "Ready") == "True"


def ended(world: World, name: str) -> tuple[int, int]:
    """Return how often a pod's container was restarted, and how the last one ended; -1: never."""
    for status in world.get("pod", name)["status"].get("containerStatuses", ()):
        last = status["lastState"].get("terminated", {})
        return status["restartCount"], last.get("exitCode", -1)
    return 0, -1


def told(world: World, reason: str) -> set[str]:
    """Return about whom there are events with a reason."""
    found = world.items("events", f"--field-selector=reason={reason}", "--all-namespaces")
    return {each["involvedObject"]["name"] for each in found}


def test_machines_fail_as_machines_do_and_come_back(eager: World) -> None:
    world = eager
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    with world.spawn(PREFIX, NODES, lively(world), *named) as run:
        run.until_ready()

        def ready(numbers: list[int]) -> set[str]:
            nodes = world.nodes(PREFIX)
            return {condition(nodes[name_of(each)], "Ready") for each in numbers}

        def boots() -> dict[str, str]:
            nodes = world.nodes(PREFIX).items()
            return {name: node["status"]["nodeInfo"]["bootID"] for name, node in nodes}

        flips: set[tuple[str, str]] = set()

        def flaps() -> bool:
            conditions = world.nodes(PREFIX)[name_of(8)]["status"]["conditions"]
            flips.update(
                (each["status"], each["lastTransitionTime"])
                for each in conditions
                if each["type"] == "Ready"
            )
            return len(flips) > 2

        world.apply(*(calm(name, node=name_of(node)) for name, node in PODS.items()))
        eventually(lambda: all(is_ready(world, name) for name in PODS), "all pods are Ready")
        before = boots()
        for kind, hit, more in FAULTS:
            fault = {"type": kind, "nodes": [name_of(each) for each in hit], **more}
            assert order(run, do="inject", fault=fault)["nodes"] == len(hit)
        with pytest.raises(FleetError, match="ComponentDown: it needs a local control plane"):
            order(run, do="inject", fault={"type": "ComponentDown", "component": "etcd"})
        world.apply(calm("made", node=name_of(3)))
        eventually(lambda: ready([0, 1, 6, 7]) == {"Unknown"}, "silent nodes are Unknown")
        eventually(lambda: ended(world, "died")[0] == 1, "the pod has another sandbox")
        eventually(lambda: "died" in told(world, "SandboxChanged"), "which is told")
        eventually(lambda: "made" in told(world, "FailedCreatePodSandBox"), "none can be made")
        eventually(lambda: ended(world, "crashed")[1] == 137, "a container was killed")
        eventually(lambda: name_of(5) in told(world, "SystemOOM"), "no memory is left")
        eventually(flaps, "a node is Ready, and is not, and is", seen=lambda: flips)
        assert world.get("pod", "made")["status"]["phase"] == "Pending"
        assert order(run, do="heal", what="")["healed"]
        eventually(lambda: ready(list(range(NODES))) == {"True"}, "all are Ready")
        eventually(lambda: is_ready(world, "made"), "the sandbox can be made")
        eventually(lambda: is_ready(world, "booted"), "the pod runs again")
        assert ended(world, "booted") == (1, 255)
        eventually(
            lambda: (
                {name for name, boot in boots().items() if boot != before[name]}
                == {name_of(0), name_of(1)}
            ),
            "two machines have booted",
        )
        eventually(lambda: told(world, "Rebooted") == {name_of(0), name_of(1)}, "which is told")
        eventually(
            lambda: condition(world.nodes(PREFIX)[name_of(5)], "MemoryPressure") == "False",
            "memory to spare",
        )
        assert ended(world, "calm") == (0, -1)
        assert is_ready(world, "calm")
        world.kubectl("delete", "pod", *PODS, "made", "--wait=false")
        run.end_well_or_late()
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(PREFIX)


def test_the_control_plane_of_a_run_fails_and_comes_back(
    eager: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # no control plane stands there
    kubeconfig = tmp_path / "kubeconfig"
    world = World(
        eager.root, dataclasses.replace(eager.info, kubeconfig=kubeconfig), eager.audit_log
    )

    def get(*arguments: str) -> Json:
        found: Json = json.loads(world.kubectl("get", *arguments, "--output=json"))
        return found

    def runs(name: str) -> bool:
        return condition(get("pod", name), "Ready") == "True"

    def answers() -> bool:
        shown = world.kubectl("get", "--raw=/readyz", "--request-timeout=5s", check=False)
        return shown == "ok"

    def ready() -> set[str]:
        return {condition(each, "Ready") for each in get("nodes")["items"]}

    def inject(kind: str, component: str) -> None:
        fault = {"type": kind, "component": component}
        shown = order(run, do="inject", fault=fault)
        assert shown["fault"] == f"{kind} {component}"

    with world.spawn("plane", 3, f"--kubeconfig-out={kubeconfig}") as run:
        run.until_ready()
        inject("ComponentDown", "kube-scheduler")
        world.apply(calm("bound", node="plane-00001"), calm("free"))
        eventually(lambda: runs("bound"), "who needs no scheduler runs")
        assert "nodeName" not in get("pod", "free")["spec"]
        assert len(order(run, do="heal", what="ComponentDown")["healed"]) == 1
        eventually(lambda: runs("free"), "the scheduler is back")
        inject("ComponentDown", "kube-apiserver")
        eventually(lambda: not answers(), "nobody answers")
        assert len(order(run, do="heal", what="")["healed"]) == 1
        eventually(answers, "the API server is back")
        inject("ComponentStall", "etcd")
        eventually(lambda: not answers(), "etcd is missed")
        with pytest.raises(FleetError, match="etcd has fault 3"):
            order(run, do="inject", fault={"type": "ComponentDown", "component": "etcd"})
        assert len(order(run, do="heal", what="3")["healed"]) == 1
        eventually(answers, "etcd goes on")
        eventually(lambda: ready() == {"True"}, "all nodes are Ready", seen=ready)
        inject("ComponentStall", "kube-apiserver")
        run.end_well_or_late()  # the fault ends with the run, which could not be cleaned up else
    assert "fault 4: ComponentStall kube-apiserver is healed" in run.log
    assert "bug in fleet" not in run.log
