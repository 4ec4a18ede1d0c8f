"""One run over several processes: a shard each, and none of them is lost for good."""

import json
import socket

import pytest

from e2e.e2e_world import World, assert_killed_and_adopted, eventually
from e2e.free_ports import free_port
from fleet.cluster.ownership import SHARD_LABEL

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "multi"


def test_nodes_are_shared_out_and_summed_up(world: World) -> None:
    """They are no guests: the processes have a kubeconfig of a cluster that nobody has named."""
    arguments = ("--processes=2", "--fidelity=light", "--output=json")
    with world.spawn(PREFIX, 7, world.quick(), *arguments) as run:
        run.until("all 7 nodes are Ready")
        nodes = world.nodes(PREFIX)
        first = {f"{PREFIX}-0000-{slot:05d}" for slot in range(4)}
        second = {f"{PREFIX}-0001-{slot:05d}" for slot in range(3)}
        assert set(nodes) == first | second
        assert {nodes[name]["metadata"]["labels"][SHARD_LABEL] for name in second} == {"0001"}
        for node in nodes.values():
            assert not node["spec"].get("taints")
            assert "topology.kubernetes.io/zone" in node["metadata"]["labels"]
        addresses = {node["status"]["addresses"][0]["address"] for node in nodes.values()}
        assert len(addresses) == 7
        assert len(world.run_id(PREFIX)) > 0  # one run
        found = json.loads(run.end_well_or_late())
    assert (found["nodes"]["requested"], found["nodes"]["registered"]) == (7, 7)
    assert found["nodes"]["ready"] == 7
    [created] = [
        row["count"]
        for row in found["requests"]
        if (row["verb"], row["resource"], row["code"]) == ("POST", "nodes", 201)
    ]
    assert created == 7
    world.assert_nothing_left(PREFIX)


def test_a_process_that_is_killed_comes_back_and_adopts_its_nodes(world: World) -> None:
    with world.spawn(PREFIX, 6, world.quick(), "--processes=2", "--fidelity=light") as run:
        run.until("all 6 nodes are Ready")
        before = world.uids(PREFIX)
        assert_killed_and_adopted(run, 3)
        assert "process-0001 ended with -9; starting it again in 1 s" in run.log
        log = run.directory / "process-0001" / "log"
        eventually(lambda: log.read_text().count("all 3 nodes are Ready") == 2, "Ready again")
        after = world.uids(PREFIX)
        assert after == before
        run.interrupt()
        printed, _ = run.process.communicate(timeout=240)
        assert run.process.returncode == 4, run.log  # a process died: the figures lack its part
        assert "a process of the fleet died and was started again" in printed
    world.assert_nothing_left(PREFIX)


def test_a_process_that_cannot_start_ends_the_run_with_its_line(world: World) -> None:
    first = free_port(in_a_row=2)
    port = first + 1  # the second process's
    with socket.create_server(("127.0.0.1", port)):
        options = ("--processes=2", f"--metrics-port={first}", "--fidelity=light")
        with world.spawn(PREFIX, 4, world.quick(), *options) as run:
            assert run.wait() == 3, run.log
    last = run.log.splitlines()[-1].lower()
    assert last.startswith(f"fleet: process-0001: --metrics-port {port}: "), run.log
    assert last.endswith("address already in use")
    assert run.summary()["verdict"] == "incomplete"
    world.assert_nothing_left(PREFIX)
