"""Devices of device plug-ins in virtual time: kubelets that restart, and what statuses show."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId

pytest_plugins = ("sim_encodings",)

GPU = "example.com/gpu"
DEVICE = {"resource": GPU, "count": 2, "registrationDelay": "20s"}
STATIC = {"kubeletConfiguration": {"staticPodPath": "/etc/kubernetes/manifests"}}


def started(**spec: object) -> Simulation:
    return Simulation(seed=3, model=model_of(devices=[DEVICE], **spec)).run_for(seconds=60)


def create(sim: Simulation, name: str, count: int, seconds: float = 10) -> None:
    amounts = {GPU: str(count)}
    wants = {"requests": amounts, "limits": amounts}
    sim.create_pod(name, containers=[{"name": "c", "image": "nginx:1", "resources": wants}])
    sim.run_for(seconds=seconds)


@pytest.mark.parametrize("spec", [{}, STATIC], ids=["plain", "static pods"])
def test_a_pod_keeps_its_devices_when_its_kubelet_restarts(spec: Object) -> None:
    sim = started(**spec)
    create(sim, "keeps", 2)
    assert sim.phase("keeps") == "Running"
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=20)
    assert sim.phase("keeps") == "Running"
    create(sim, "none-left", 1)
    assert sim.phase("none-left") == "Failed"
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"][GPU] == "2"


def test_a_plugin_that_runs_registers_at_once_with_a_kubelet_that_restarts() -> None:
    """The delay is that of its pod, which the first start of a machine waits for."""
    sim = started()
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=0.5)
    sent = [each for each in sim.calls(verb="POST") if each.path == "/api/v1/nodes"]
    assert len(sent) == 2
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"][GPU] == "0"
    sim.run_for(seconds=13)
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"][GPU] == "2"


def test_a_plugin_is_awaited_again_once_its_machine_has_booted() -> None:
    """It is a pod, which the boot has ended."""
    sim = started()
    sim.go_wrong(type="NodeDown", nodes=["n-0"], seconds=10)
    sim.run_for(seconds=27)
    assert sim.ready() == 1
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"][GPU] == "0"
    sim.run_for(seconds=25)
    assert sim.server.get("nodes", "n-0")["status"]["allocatable"][GPU] == "2"


def test_the_status_shows_what_a_cgroup_has_with_the_next_resync() -> None:
    """Devices are of no cgroup. Source: convertToAPIPodLevelResourcesStatus."""

    def resources() -> Object:
        found: Object = sim.status("p").get("resources") or {}
        return found

    sim = started()
    create(sim, "p", 1)
    asked = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    assert (sim.phase("p"), resources()) == ("Running", asked)
    sim.run_for(seconds=95)
    assert resources() == {}
    sent = len(sim.calls(verb="PATCH", path="/pods/p/status"))
    sim.run_for(seconds=600)
    assert len(sim.calls(verb="PATCH", path="/pods/p/status")) == sent
