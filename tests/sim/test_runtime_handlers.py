"""Pods whose RuntimeClass names a handler that their node lacks, in JSON and in protobuf."""

from world.simulation import Simulation

pytest_plugins = ("sim_encodings",)


def test_a_pod_runs_once_its_node_has_the_handler() -> None:
    sim = Simulation().run_for(seconds=30)
    sim.server.create(("runtimeclasses", "", "vm"), {"handler": "kata"})
    sim.server.create(("runtimeclasses", "", "plain"), {"handler": "runc"})
    sim.run_for(seconds=1)
    sim.create_pod("plain", runtimeClassName="plain")
    sim.create_pod("waits", runtimeClassName="vm")
    sim.run_for(seconds=60)
    assert sim.phase("plain") == "Running"
    assert sim.phase("waits") == "Pending"
    refused = sim.said("FailedCreatePodSandBox")
    assert refused
    assert all('no runtime for "kata" is configured' in each for each in refused)
    sim.server.remove(("runtimeclasses", "", "vm"))
    sim.run_for(seconds=30)
    missing = 'Failed to create pod sandbox: runtimeclass.node.k8s.io "vm" not found'
    assert missing in sim.said("FailedCreatePodSandBox")
    sim.server.create(("runtimeclasses", "", "vm"), {"handler": "runc"})
    sim.run_for(seconds=60)
    assert sim.phase("waits") == "Running"
