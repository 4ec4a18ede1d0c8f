"""Faults on a running fleet, as the API server shows them: who is hit, who is not, and the end."""

import json
import time

import pytest

from e2e.e2e_world import DEDICATED, Json, Running, World, condition, eventually
from e2e.fault_world import lively, order
from fleet.k8s.times import parse_rfc3339

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "fault"
NODES = 16
HOUR_S = 3600
IMAGE = "registry.example.com/nobody-has-it:1"


def name_of(number: int) -> str:
    return f"{PREFIX}-{number:05d}"


def ready_since(node: Json) -> tuple[str, str]:
    found = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return found["status"], found["lastTransitionTime"]


def ahead_s(world: World, node: str) -> int:
    """Return how far ahead of ours the clock is by which a node renewed its Lease last.

    A node that has no Lease yet is not ahead.
    """
    found = world.items("leases", "-n", "kube-node-lease")
    times = [each["spec"]["renewTime"] for each in found if each["metadata"]["name"] == node]
    return parse_rfc3339(times[0]) - int(time.time()) if times else 0


def bare_pod(name: str, node: str) -> Json:
    container = {"name": "c", "image": IMAGE}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def waiting_reason(world: World, pod: str) -> str:
    status = world.get("pod", pod)["status"]
    states = [each["state"] for each in status.get("containerStatuses", ())]
    return str(states[0].get("waiting", {}).get("reason", "")) if states else ""


def inject(run: Running, faults: dict[str, list[int]]) -> None:
    """Inject faults by name and mode, on nodes by number."""
    for number, (fault, hit) in enumerate(faults.items(), start=1):
        kind, _, mode = fault.partition(" ")
        spec: Json = {"type": kind, "nodes": [name_of(each) for each in hit]}
        spec |= {"mode": mode} if mode else {}
        spec |= {"by": "1h"} if kind == "ClockSkew" else {}
        told = order(run, do="inject", fault=spec)
        assert told["number"] == number
        assert told["fault"] == fault
        assert (told["nodes"], told["of"]) == (len(hit), NODES)


@pytest.mark.slow  # nodes are Unknown after 25 s; the simulations have each fault
def test_faults_hit_whom_they_name_and_end_when_they_are_healed(eager: World) -> None:
    world = eager
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    silent = {
        "HeartbeatLoss": [0, 1, 2],
        "Partition": [3, 4],
        "Partition Reset": [5, 6],
        "KubeletDown": [7],
    }
    others = {
        "ClockSkew": [8],
        "NetworkNotReady": [9],
        "MemoryPressure": [10],
        "DiskPressure": [11],
        "RegistryOutage": [12],
    }
    with world.spawn(PREFIX, NODES, lively(world), *named) as run:
        run.until_ready()
        at = f"--run-dir={run.directory}"

        def status(kind: str, numbers: list[int]) -> list[str]:
            nodes = world.nodes(PREFIX)
            return [condition(nodes[name_of(each)], kind) for each in numbers]

        before = world.nodes(PREFIX)
        inject(run, silent | others)
        listed = world.fleet("heal", at)
        assert len(listed.stdout.splitlines()) == 1 + 9, listed.stderr
        world.apply(bare_pod("far", name_of(12)), bare_pod("near", name_of(13)))
        dead = [each for hit in silent.values() for each in hit]
        eventually(lambda: set(status("Ready", dead)) == {"Unknown"}, "silent nodes are Unknown")
        eventually(lambda: status("Ready", [9]) == ["False"], "no network, not Ready")
        eventually(lambda: status("MemoryPressure", [10]) == ["True"], "memory pressure")
        eventually(lambda: status("DiskPressure", [11]) == ["True"], "disk pressure")
        eventually(lambda: ahead_s(world, name_of(8)) > HOUR_S - 60, "a Lease of the future")
        pulls = {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"}
        eventually(lambda: waiting_reason(world, "far") in pulls, "no image comes")
        eventually(lambda: condition(world.get("pod", "near"), "Ready") == "True", "one comes")
        nodes = world.nodes(PREFIX)
        for number in (8, 10, 11, 12, 13, 14, 15):
            assert ready_since(nodes[name_of(number)]) == ready_since(before[name_of(number)])
        refused = world.fleet("inject", "Partition", "--zone=nowhere", at)
        assert refused.returncode == 2
        assert refused.stderr == (f"fleet: Partition hits none of {NODES} nodes: no node matches\n")
        assert len(order(run, do="heal", what="Partition")["healed"]) == 2
        healed = world.fleet("heal", "--all", at)
        assert healed.stdout.count("is healed") == 7, healed.stderr
        everybody = list(range(NODES))
        eventually(lambda: set(status("Ready", everybody)) == {"True"}, "all are Ready")
        eventually(lambda: status("MemoryPressure", [10]) == ["False"], "memory to spare")
        eventually(lambda: status("DiskPressure", [11]) == ["False"], "disk to spare")
        eventually(lambda: abs(ahead_s(world, name_of(8))) < 60, "a Lease of the present")
        assert order(run, do="list") == {"active": []}
        world.kubectl("delete", "pod", "far", "near", "--wait=false")
        run.end_well_or_late()
    faults = [each for each in run.summary()["phases"] if each["kind"] == "fault"]
    assert [each["name"] for each in faults] == [*silent, *others]
    assert all(each["from_s"] < each["until_s"] for each in faults)
    assert "bug in fleet" not in run.log
    assert not (run.directory / "control.sock").exists()
    world.assert_nothing_left(PREFIX)


def test_a_fault_reaches_all_processes_and_ends_by_itself(world: World) -> None:
    with world.spawn("shards", 6, "--processes=2", lively(world)) as run:
        run.until_ready()
        at = f"--run-dir={run.directory}"
        names = list(world.nodes("shards"))
        told = world.fleet("inject", "ClockSkew", "--by=-1h", "--for=20s", at)
        assert told.stdout == "fault 1: ClockSkew on 6 of 6 nodes for 20s\n", told.stderr

        seen: set[str] = set()

        def behind() -> set[str]:
            return {name for name in names if ahead_s(world, name) < 60 - HOUR_S}

        def was_each_behind() -> bool:
            seen.update(behind())
            return len(seen) == len(names)

        eventually(was_each_behind, "each Lease was of the past")
        eventually(lambda: not behind(), "and no more")
        assert (run.directory / "control.sock").stat().st_mode & 0o777 == 0o600
        run.until("fault 1: ClockSkew is healed")
        run.end_well_or_late()
    assert json.loads((run.directory / "summary.json").read_text())["phases"]
    world.assert_nothing_left("shards")
