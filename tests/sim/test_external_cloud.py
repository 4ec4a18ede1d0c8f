"""Nodes whose addresses a cloud controller manager says, in JSON and in protobuf."""

from world.pod_world import model_of
from world.simulation import Simulation

pytest_plugins = ("sim_encodings",)
TAINT = {
    "key": "node.cloudprovider.kubernetes.io/uninitialized",
    "value": "true",
    "effect": "NoSchedule",
}


def test_addresses_of_a_cloud_stay() -> None:
    sim = Simulation(seed=3, model=model_of(cloudProvider="external")).run_for(seconds=30)
    node = sim.server.get("nodes", "n-0")
    assert TAINT in node["spec"]["taints"]
    own = {each["type"]: each["address"] for each in node["status"]["addresses"]}
    provided = node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"]
    assert own == {"InternalIP": provided, "Hostname": "n-0"}
    told = [{"type": "ExternalIP", "address": "203.0.113.7"}]
    sim.server.update("nodes", "n-0", {"spec": {"taints": []}, "status": {"addresses": told}})
    sim.run_for(seconds=30)
    sim.server.update("nodes", "n-0", {"status": {"capacity": {"cpu": "1"}}})
    sim.run_for(seconds=400)
    node = sim.server.get("nodes", "n-0")
    assert told[0] in node["status"]["addresses"]
    assert node["status"]["capacity"]["cpu"] != "1"
    assert not node["spec"].get("taints")  # a registered node is not tainted again


def test_without_a_cloud_a_node_says_its_addresses_itself() -> None:
    sim = Simulation(seed=3).run_for(seconds=30)
    node = sim.server.get("nodes", "n-0")
    assert "alpha.kubernetes.io/provided-node-ip" not in node["metadata"]["annotations"]
    assert TAINT not in node["spec"].get("taints", ())
