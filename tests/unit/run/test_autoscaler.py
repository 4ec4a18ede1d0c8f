"""How many nodes an autoscaler asks for, and which it lets go."""

import asyncio
from typing import Any, cast

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.daemonsets import FAKE_TAINT
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.dashboard.elastic import ElasticFleet
from fleet.quantity import parse_quantity
from fleet.run.autoscaler import Autoscaler, may_have, packed, requests_of
from fleet.scenario.scenario import AutoscalerSpec

Json = dict[str, Any]
ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "10"}
NAMES = [f"f-{slot}" for slot in range(6)]
SPEC = AutoscalerSpec.model_validate({"maxReplicas": 6, "unneeded": "60s"})


class Fleet:
    """As many nodes as are asked for, all of them Ready unless it says otherwise."""

    nodes_max = 6

    def __init__(self, size: int) -> None:
        self.aimed = size
        self.unready = 0

    @property
    def ready(self) -> int:
        return self.aimed - self.unready

    def aim(self, nodes: int) -> None:
        self.aimed = nodes


class World:
    def __init__(self, size: int = 2, minimum: int = 2) -> None:
        self.api = FakeApi()
        self.fleet = Fleet(size)
        self.now_s = 0.0
        for name in NAMES:
            self.api.put(f"{NODES}/{name}", metadata={"labels": {RUN_LABEL: "r"}}, spec={})
        self.autoscaler = Autoscaler(
            SPEC,
            cast("ElasticFleet", self.fleet),
            self.api,
            ALLOCATABLE,
            NAMES,
            minimum,
            now_s=lambda: self.now_s,
        )

    def pod(self, name: str, node: str = "", cpu: str = "1", owner: str = "ReplicaSet") -> str:
        """Create a pod on a node, or one that finds no room."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        path = f"/api/v1/namespaces/default/pods/{name}"
        self.api.put(
            path,
            metadata={"name": name, "ownerReferences": [{"kind": owner}]},
            spec={
                "nodeName": node,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
            status={"phase": "Pending", "conditions": [] if node else [condition]},
        )
        return path

    def scan(self, after_s: float = 0.0) -> int:
        """Let time go by and look; return how many nodes are asked for then."""
        self.now_s += after_s
        asyncio.run(self.autoscaler.scan())
        return self.fleet.aimed


def test_so_many_nodes_come_as_take_the_pods_that_wait() -> None:
    world = World()
    for number in range(8):  # four on each of the two that there are
        world.pod(f"on-{number}", NAMES[number % 2])
    for number in range(5):
        world.pod(f"waits-{number}")
    assert world.scan() == 4
    world.fleet.unready = 2
    assert world.scan(10) == 4, "those on their way are room"


def test_a_pod_that_has_room_waits_for_the_scheduler_alone() -> None:
    world = World()
    world.pod("waits")
    assert world.scan() == 2


def test_no_more_come_than_may_be_and_none_for_what_fits_nowhere() -> None:
    world = World()
    world.pod("huge", cpu="5")
    assert world.scan() == 2
    for number in range(100):
        world.pod(f"waits-{number}")
    assert world.scan() == 6


def test_the_highest_nodes_go_when_they_have_been_empty_for_long() -> None:
    world = World(size=5)
    path = world.pod("stays", NAMES[2])
    world.pod("daemon", NAMES[4], owner="DaemonSet")
    assert world.scan() == 5
    assert world.scan(59) == 5, "the fleet has just begun"
    assert world.scan(2) == 3, "down to the one with a pod"
    assert world.api.objects[f"{NODES}/{NAMES[4]}"]["spec"] == {"unschedulable": True}
    del world.api.objects[path]
    assert world.scan(59) == 3
    assert world.scan(2) == 2, "never below the least"
    assert world.scan(1_000) == 2


def test_none_goes_while_pods_wait_or_nodes_are_not_ready() -> None:
    world = World(size=4)
    world.fleet.unready = 1
    assert world.scan(100) == 4
    world.fleet.unready = 0
    path = world.pod("waits")
    assert world.scan(100) == 4
    del world.api.objects[path]
    assert world.scan() == 2


def test_a_pod_that_came_meanwhile_keeps_its_node() -> None:
    world = World(size=3)
    world.scan()
    world.now_s += 61

    def meanwhile(method: str, _path: str) -> None:
        if method == "PATCH":
            world.pod("quick", NAMES[2])

    world.api.before_request = meanwhile
    assert world.scan() == 3
    assert not world.api.objects[f"{NODES}/{NAMES[2]}"]["spec"].get("unschedulable")


@pytest.mark.parametrize(("cpus", "nodes"), [("", 0), ("4", 1), ("2 2", 1), ("3 3 1 1", 2)])
def test_pods_are_packed_the_largest_first(cpus: str, nodes: int) -> None:
    free = {"cpu": parse_quantity("4").nano}
    pods = [{"cpu": parse_quantity(cpu).nano} for cpu in cpus.split()]
    assert packed(pods, free) == nodes


def test_a_pod_takes_its_containers_or_the_largest_of_the_first() -> None:
    def container(cpu: str) -> Json:
        return {"resources": {"requests": {"cpu": cpu}}}

    pod = {"spec": {"containers": [container("1"), container("500m")]}}
    nano = parse_quantity("1").nano
    assert requests_of(pod) == {"pods": nano, "cpu": nano * 3 // 2}
    pod["spec"]["initContainers"] = [container("2"), container("3")]
    assert requests_of(pod) == {"pods": nano, "cpu": 3 * nano}


def test_for_pods_of_others_no_nodes_come_and_none_stay() -> None:
    """They wait for machines. One that stays pending must not keep a scenario from its end."""
    ours: Json = {"tolerations": [{"key": FAKE_TAINT.key, "operator": "Exists"}]}
    assert may_have({"spec": ours}, "r1", FAKE_TAINT)
    assert may_have({"spec": {**ours, "nodeSelector": {RUN_LABEL: "r1"}}}, "r1", FAKE_TAINT)
    assert may_have({"spec": {}}, "r1", None)
    assert not may_have({"spec": {}}, "r1", FAKE_TAINT)
    assert not may_have({"spec": {**ours, "nodeSelector": {RUN_LABEL: "r2"}}}, "r1", FAKE_TAINT)
    world = World(size=4)
    world.autoscaler._may_come = lambda pod: may_have(pod, "r1", FAKE_TAINT)
    world.pod("theirs", cpu="3")
    assert world.scan() == 4
    assert world.scan(61) == 2


def test_a_node_of_somebody_else_is_not_cordoned() -> None:
    """One of the name of ours was there before; another one takes its place while we look."""
    world = World(size=4)
    world.api.put(f"{NODES}/{NAMES[3]}", spec={})
    world.scan()
    world.now_s += 61

    def meanwhile(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(NAMES[2]):
            world.api.put(path, metadata={"labels": {RUN_LABEL: "r"}}, spec={})

    world.api.before_request = meanwhile
    assert world.scan() == 2
    for name in NAMES[2:4]:
        assert world.api.objects[f"{NODES}/{name}"]["spec"] == {}
