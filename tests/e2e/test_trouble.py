"""Trouble from outside: a deleted node, an API server that restarts, a fleet that is killed."""

import asyncio
import json
import signal
from collections.abc import Iterator
from http.client import OK
from pathlib import Path

import pytest

from e2e.e2e_world import DEDICATED, Json, Running, World, condition, eventually, workload
from e2e.own_control_plane import own_control_plane, restart_apiserver
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import APISERVER

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GOAWAY_CHANCE = "goaway-chance=0.02"  # of a request; the most that it takes
STREAMS_MAX = "http2-max-streams-per-connection=7"  # of five watches, and one a ConfigMap
DELETED = "SuccessfulDelete"  # by the controller, "Deleted pod: NAME"
FIDELITIES = pytest.mark.parametrize(
    "fidelity", ["kubelet", pytest.param("light", marks=pytest.mark.slow)]
)


def uids(items: list[Json]) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def restarts(pods: list[Json]) -> int:
    return sum(each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"])


@FIDELITIES
def test_a_node_that_somebody_deletes_stays_deleted(world: World, fidelity: str) -> None:
    """As with a real kubelet: it registers once, at its start."""
    prefix = f"del-{fidelity}"
    with world.spawn(prefix, 3, f"--fidelity={fidelity}", world.quick()) as run:
        run.until_ready()
        world.apply(workload("Deployment", prefix, 6))
        world.kubectl("rollout", "status", f"deployment/{prefix}", "--timeout=120s")
        others = uids(list(world.nodes(prefix).values()))
        world.kubectl("delete", "node", f"{prefix}-00001")
        gone = others.pop(f"{prefix}-00001")
        # Its kubelet goes on with the pods that it has, and asks for its Lease, which went, too.
        on_gone = ("delete", "pods", f"--field-selector=spec.nodeName={prefix}-00001")
        world.kubectl(*on_gone, "--timeout=120s")
        eventually(lambda: len(world.ready_pods(prefix)) >= 4, "the others' pods run")
        seen = len(world.audit())
        eventually(lambda: heartbeats(world, seen, OK) >= set(others), "a heartbeat of each")
        eventually(lambda: f"{prefix}-00001" in heartbeats(world, seen), "and one of the gone")
        assert uids(list(world.nodes(prefix).values())) == others
        assert gone not in uids(world.items("nodes")).values()
        world.kubectl("delete", "deployment", prefix, "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left(prefix)


def heartbeats(world: World, after: int, *codes: int) -> set[str]:
    """Name the nodes that spoke of their Leases, by the audit log from a line on."""
    return {
        event["objectRef"].get("name", "")
        for event in world.audit()[after:]
        if event.get("objectRef", {}).get("resource") == "leases"
        and event["userAgent"].startswith("kubelet/")
        and (not codes or event["responseStatus"]["code"] in codes)
    }


@FIDELITIES
def test_a_killed_fleet_adopts_its_nodes_and_pods(world: World, fidelity: str) -> None:
    prefix = f"kill-{fidelity}"
    arguments = (prefix, 5, f"--fidelity={fidelity}")
    with world.spawn(*arguments) as first:
        first.until_ready()
        world.apply(workload("Deployment", prefix, 10))
        world.kubectl("rollout", "status", f"deployment/{prefix}", "--timeout=120s")
        nodes, pods = uids(list(world.nodes(prefix).values())), uids(world.pods(prefix))
        before = world.run_id(prefix)
        first.process.send_signal(signal.SIGKILL)
        first.wait()
    lease = f"lease/fleet-run-{prefix}"
    # A busy machine might need the 40 s that it lasts to start a fleet twice.
    for_long = json.dumps({"spec": {"leaseDurationSeconds": 3600}})
    world.kubectl("patch", lease, "--type=merge", "-p", for_long)
    refused = world.fleet("spawn", f"--name-prefix={prefix}", "--nodes=5", "--until-ready")
    assert refused.returncode == 3
    assert "if it crashed, its nodes can be taken over in" in refused.stderr
    assert "left behind" not in world.fleet("clean").stdout  # not yet
    # Time passes: its Lease, written now, is over in a second.
    patch = json.dumps({"spec": {"leaseDurationSeconds": 1}})
    world.kubectl("patch", lease, "--type=merge", "-p", patch)
    eventually(lambda: "left behind" in world.fleet("clean").stdout, "the run is over")
    with world.spawn(*arguments) as second:
        second.until_ready()
        assert "adopted 5 nodes that an earlier run left" in second.log
        assert uids(list(world.nodes(prefix).values())) == nodes
        assert world.run_id(prefix) != before
        assert uids(world.pods(prefix)) == pods
        world.kubectl("scale", f"deployment/{prefix}", "--replicas=20")
        world.kubectl("rollout", "status", f"deployment/{prefix}", "--timeout=120s")
        found = uids(world.ready_pods(prefix))
        assert found.items() >= pods.items()
        # What ran before can still be stopped, and was not started a second time.
        assert restarts(world.pods(prefix)) == 0
        world.kubectl("delete", "deployment", prefix, "--wait=false")
        eventually(lambda: not world.pods(prefix), "the pods are gone")
        second.end_well_or_late()
    world.assert_nothing_left(prefix)


@pytest.fixture(scope="module")
def restartable(environment: Path) -> Iterator[tuple[World, asyncio.Runner, ControlPlane]]:
    """Run a control plane whose API server can be killed alone.

    It sends clients away (GOAWAY) now and then, as those behind a load balancer do, and takes few
    streams of a connection.
    """
    flags = {APISERVER: (GOAWAY_CHANCE, STREAMS_MAX)}
    with own_control_plane(environment, flags) as own:
        yield own


@FIDELITIES
def test_nothing_is_lost_while_the_api_server_is_away(
    restartable: tuple[World, asyncio.Runner, ControlPlane], fidelity: str
) -> None:
    """SIGKILL in the middle of a roll-out: the same nodes and pods go on."""
    world, runner, plane = restartable
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    with world.spawn("outage", 20, f"--fidelity={fidelity}", *named) as run:
        run.until_ready()
        world.apply(workload("Deployment", "outage", 40))
        world.kubectl("rollout", "status", "deployment/outage", "--timeout=120s")
        nodes, pods = uids(list(world.nodes("outage").values())), uids(world.pods("outage"))
        world.kubectl("scale", "deployment/outage", "--replicas=80")
        runner.run(restart_apiserver(plane, down_s=2.0))
        assert_nothing_was_lost(world, run, nodes, pods)
        world.kubectl("scale", "deployment/outage", "--replicas=10")
        eventually(lambda: len(world.pods("outage")) == 10, "scaled down")
        world.kubectl("delete", "deployment", "outage")
        eventually(lambda: not world.pods("outage"), "the pods are gone")
        run.end_well_or_late()
    summary = run.summary()
    assert summary["nodes"]["ready"] == 20
    assert summary["watch"]["restarts"] > 0
    assert not summary["pods"]["failed"]
    world.assert_nothing_left("outage")


def test_no_request_is_lost_when_the_server_sends_clients_away(
    restartable: tuple[World, asyncio.Runner, ControlPlane],
) -> None:
    """Answers that are on their way come, what was not seen is sent again, watches go on."""
    world = restartable[0]
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    with world.spawn("away", 20, world.quick(), *named) as run:
        run.until_ready()
        world.apply(workload("Deployment", "away", 40))
        world.kubectl("rollout", "status", "deployment/away", "--timeout=120s")
        world.kubectl("delete", "deployment", "away")
        eventually(lambda: not world.pods("away"), "the pods are gone")
        run.interrupt()
        run.wait()
    summary = json.loads((run.directory / "summary.json").read_text())
    assert summary["connections"]["goaways"] > 0  # of a thousand requests and more
    assert summary["connections"]["dials"] > 20
    assert [row for row in summary["requests"] if row["code"] == 0] == []
    assert summary["nodes"]["ever_not_ready"] == 0
    assert summary["pods"]["failed"] == 0
    assert min(summary["pods"]["started"], summary["pods"]["deleted"]) >= 40


def assert_nothing_was_lost(
    world: World, run: Running, nodes: dict[str, str], pods: dict[str, str]
) -> None:
    world.kubectl("rollout", "status", "deployment/outage", "--timeout=120s")
    assert run.process.poll() is None, run.log
    eventually(
        lambda: {condition(node, "Ready") for node in world.nodes("outage").values()} == {"True"},
        "all nodes are Ready",
    )
    assert uids(list(world.nodes("outage").values())) == nodes
    # A POST whose answer was lost made a pod that the controller did not count; any may go for it.
    eventually(lambda: len(world.pods("outage")) == 80, "no pod too many")
    eventually(lambda: len(world.ready_pods("outage")) == 80, "80 pods are Ready")
    ready = world.ready_pods("outage")
    told = [event["message"] for event in world.items("events") if event["reason"] == DELETED]
    lost = pods.items() - uids(ready).items()
    assert {name for name, _ in lost} <= {message.rpartition(" ")[2] for message in told}
    assert restarts(ready) == 0
    assert len({pod["status"]["podIP"] for pod in ready}) == 80
