"""What device plugins offer over time, what pods are given of it, and what is said about it."""

import dataclasses
from typing import Any

import orjson
import pytest
from world.admission_world import container, look, make_pod
from world.pod_world import model_of, turn_of

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.admission import NodeState
from fleet.k8s.pods import ContainerStatus, Pod, PodStatus, RunningState
from fleet.kubelet.devices.container_manager import MESSAGE as TOPOLOGY_ERROR
from fleet.kubelet.devices.device_manager import DeviceManager
from fleet.kubelet.environment import Environment
from fleet.kubelet.node.setters import differing_resources
from fleet.kubelet.pods.admission import Devices
from fleet.kubelet.turn import Turn
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeModel
from fleet.profile.release import V1_35

GPU = "nvidia.com/gpu"
S = NS_PER_S


def model(policy: str = "none", **device: Any) -> NodeModel:
    """Return a node's model with one device plugin, and a policy of the topology manager."""
    spec = {"resource": GPU, "count": 4, "registrationDelay": "2s", **device}
    return model_of(
        devices=[spec],
        template={"status": {"capacity": {GPU: "4"}}},
        kubeletConfiguration={"topologyManagerPolicy": policy},
    )


class Node(DeviceManager):
    """The device manager of a node, asked by instants."""

    def __init__(self, made: NodeModel) -> None:
        self.env = Environment(made, Draws(1))
        super().__init__(self.turn(0))

    def turn(self, now_ns: int) -> Turn:
        return turn_of(self.env, now_ns)

    def at(self, seconds: float) -> tuple[int, int]:
        [(resource, capacity, allocatable)] = self.resources(self.turn(int(seconds * S)))
        assert resource == GPU
        return capacity, allocatable

    def give(self, pod: Pod, now_ns: int) -> str:
        return self.allocate(pod, self.turn(now_ns))


def manager(**device: Any) -> Node:
    return Node(model(**device))


def wants(name: str, *counts: int, inits: tuple[int, ...] = (), sidecar: bool = False) -> Pod:
    def each(label: str, count: int) -> dict[str, Any]:
        amounts = {GPU: str(count)}
        return container(label, resources={"requests": amounts, "limits": amounts})

    first = [each(f"i{at}", count) for at, count in enumerate(inits)]
    if sidecar:
        first[0]["restartPolicy"] = "Always"
    main = [each(f"c{at}", count) for at, count in enumerate(counts)]
    spec: dict[str, Any] = {"initContainers": first} if first else {}
    return make_pod(name, *main, **spec)


def test_capacity_comes_with_the_plugin_and_goes_five_minutes_after_it() -> None:
    found = manager(pluginOutages=[{"after": "10m", "duration": "10m"}])
    assert "nvidia.com/gpu" not in model().capacity  # the Node registers without it
    assert found.at(1) == (-1, -1)
    assert found.at(2) == (4, 4)
    assert found.at(600) == (4, 0)
    assert found.at(899) == (4, 0)
    assert found.at(900) == (0, 0)
    assert found.at(1200) == (4, 4)
    changes = []
    now_ns = 0
    while now_ns := found.next_change_ns(found.turn(now_ns)):
        changes.append(now_ns // S)
    assert changes == [2, 600, 900, 1200]


def test_capacity_counts_all_and_allocatable_the_healthy_ones() -> None:
    health = [
        {"after": "20s", "devices": [1, 2], "state": "Unhealthy"},
        {"after": "30s", "devices": [2], "state": "Healthy"},
        {"after": "40s", "state": "Unhealthy"},
    ]
    found = manager(health=health)
    assert [found.at(seconds) for seconds in (19, 20, 30, 40)] == [(4, 4), (4, 2), (4, 3), (4, 0)]


def test_devices_are_given_out_once_and_come_back() -> None:
    found = manager()
    assert found.give(wants("a", 1, 1), 5 * S) == ""
    assert found.allocated() == {GPU: 2}
    assert found.give(wants("b", 3), 5 * S) == (
        f"requested number of devices unavailable for {GPU}. Requested: 3, Available: 2"
    )
    assert found.give(wants("b", 2), 5 * S) == ""
    found.free(wants("a").uid)
    assert found.give(wants("c", 2), 5 * S) == ""
    assert found.allocated() == {GPU: 4}
    found.keep({wants("c").uid})
    assert found.allocated() == {GPU: 2}


def test_asking_again_gives_the_same() -> None:
    found = manager(health=[{"after": "20s", "devices": [0]}])
    assert found.give(wants("a", 4), 5 * S) == ""
    assert found.give(wants("a", 4), 5 * S) == ""
    assert found.give(wants("a", 4), 20 * S) == (
        "previously allocated devices are no longer healthy; "
        f"cannot allocate unhealthy devices {GPU}"
    )


@pytest.mark.parametrize(("sidecar", "error"), [(False, False), (True, True)])
def test_what_an_init_container_had_the_next_ones_may_have(*, sidecar: bool, error: bool) -> None:
    found = manager()
    text = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
    got = found.give(wants("a", 2, inits=(3,), sidecar=sidecar), 5 * S)
    assert got == (text if error else "")


def test_what_cannot_be_given_out_is_told_apart() -> None:
    found = manager(pluginOutages=[{"after": "1m"}])
    assert found.give(wants("a", 1), S) == ""  # not a device plugin's resource as yet
    assert found.allocated() == {}
    assert found.give(wants("a", 1), 30 * S) == ""
    assert found.give(wants("b", 1), 70 * S) == (
        f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
    )
    assert found.give(wants("b", 1), 400 * S) == f"cannot allocate unregistered device {GPU}"


def shown(*names: str) -> PodStatus:
    return PodStatus(
        containers=tuple(
            ContainerStatus(each, RunningState(0), None, True, True, 0, "", "", "")  # noqa: FBT003
            for each in names
        )
    )


def test_statuses_name_devices_and_their_health() -> None:
    found = manager(idPrefix="GPU-", health=[{"after": "20s", "devices": [1]}])
    pod = wants("a", 2)
    assert found.give(pod, 5 * S) == ""
    assert found.take_affected(found.turn(5 * S)) == []
    status = found.with_health(pod, shown("c0", "other"), found.turn(25 * S))
    assert status.containers[1].devices_json == b""
    [told] = orjson.loads(status.containers[0].devices_json)
    assert told["name"] == GPU
    assert [each["health"] for each in told["resources"]] == ["Healthy", "Unhealthy"]
    ids = {each["resourceID"] for each in told["resources"]}
    assert len(ids) == 2
    assert all(each.startswith("GPU-") and len(each) == 40 for each in ids)
    assert found.take_affected(found.turn(25 * S)) == [pod.uid]
    assert found.take_affected(found.turn(26 * S)) == []
    again = manager(idPrefix="GPU-")
    pod.status = status
    again.adopt(pod, again.turn(0))
    assert again.allocated() == {GPU: 2}
    old = dataclasses.replace(load_mix().model_of(0), release=V1_35)
    assert found.with_health(pod, shown("c0"), Node(old).turn(25 * S)) == shown("c0")


def test_the_node_is_patched_only_where_it_differs() -> None:
    def patch(shown: tuple[tuple[str, int, int], ...], *wanted: tuple[str, int, int]) -> bytes:
        return differing_resources(NodeState(extended=shown), wanted, {"own.io/x": "3"})

    assert patch((), (GPU, -1, -1)) == b""
    assert patch((), (GPU, 4, 3)) == b'"allocatable":{"%b":"3"},"capacity":{"%b":"4"}' % (
        (GPU.encode(),) * 2
    )
    assert patch(((GPU, 4, 4),), (GPU, 4, 3)) == b'"allocatable":{"nvidia.com/gpu":"3"}'
    assert patch(((GPU, 4, 3),), (GPU, 4, 3)) == b""
    assert b'"capacity":{"nvidia.com/gpu":"0"}' in patch(((GPU, 4, 4),), (GPU, -1, -1))
    assert patch((("own.io/x", 3, 2),)) == b""
    assert patch((("foreign.io/x", 5, -1),)) == b'"allocatable":{"foreign.io/x":"5"}'
    assert patch((("foreign.io/x", -1, 5),)) == b'"allocatable":{"foreign.io/x":null}'


def aligned(policy: str, *counts: int, total: int = 8) -> list[str]:
    """Ask for devices of two NUMA nodes, pod after pod; return what went wrong each time."""
    found = Node(model(policy, count=total, registrationDelay="0s", numaNodes=2))
    return [found.give(wants(str(index), count), S) for index, count in enumerate(counts)]


def test_the_topology_manager_keeps_devices_together() -> None:
    """Source: pkg/kubelet/cm/topologymanager/policy_restricted.go, policy_single_numa_node.go."""
    assert aligned("none", 3, 3, 2) == ["", "", ""]
    assert aligned("best-effort", 3, 3, 2) == ["", "", ""]
    assert aligned("restricted", 3, 3, 2) == ["", "", TOPOLOGY_ERROR]
    assert aligned("single-numa-node", 3, 3, 2) == ["", "", TOPOLOGY_ERROR]
    assert aligned("restricted", 6) == [""]  # no single node has as many
    assert aligned("single-numa-node", 6) == [TOPOLOGY_ERROR]
    assert aligned("single-numa-node", 3, 1, 4) == ["", "", ""]
    assert aligned("restricted", 9) == [TOPOLOGY_ERROR]
    assert "Requested: 9, Available: 8" in aligned("best-effort", 9)[0]


def test_a_refusal_of_the_topology_manager_has_a_reason_of_its_own() -> None:
    found = look(wants("a", 1), allocate=lambda _: Devices(TOPOLOGY_ERROR))
    assert found.rejection == ("TopologyAffinityError", TOPOLOGY_ERROR)
