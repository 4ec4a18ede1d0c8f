"""What others write into a Node of what its kubelet says, as the API server shows it."""

import json

import pytest
import yaml

from e2e.e2e_world import World, eventually
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "edited"
REPORTED = ("capacity", "allocatable", "addresses", "daemonEndpoints", "runtimeHandlers")
OS = "kubernetes.io/os"


def test_a_kubelet_puts_right_what_others_write(world: World) -> None:
    """At its next look, within 10 s; also on a Node that somebody made bare after deleting it."""
    with world.spawn(PREFIX, 2) as run:
        run.until_ready()
        name = f"{PREFIX}-00001"
        before = world.get("node", name)

        def is_right(*, has_labels: bool = True) -> bool:
            node = world.get("node", name)
            status = node["status"]
            info = {key: value for key, value in before["status"]["nodeInfo"].items() if value}
            return (
                all(status.get(member) == before["status"][member] for member in REPORTED)
                and {key: status["nodeInfo"].get(key) for key in info} == info
                and node["metadata"]["labels"].get(OS) == before["metadata"]["labels"][OS]
                and (not has_labels or node["metadata"]["labels"] == before["metadata"]["labels"])
            )

        assert is_right()
        edits = {
            "capacity": {"cpu": "1"},
            "allocatable": {"pods": "1"},
            "nodeInfo": {"kernelVersion": "0.1"},
        }
        patch = json.dumps({"status": edits})
        world.kubectl("patch", "node", name, "--subresource=status", "-p", patch)
        assert not is_right()
        eventually(is_right, "the status is right again")
        world.kubectl("label", "node", name, f"{OS}=plan9", "--overwrite")
        eventually(is_right, "the label is right again")
        world.kubectl("delete", "node", name)
        bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        world.kubectl("create", "-f", "-", stdin=json.dumps(bare))
        eventually(lambda: is_right(has_labels=False), "the bare Node has all that it had")
        conditions = world.get("node", name)["status"]["conditions"]
        assert {each["type"]: each["status"] for each in conditions}["Ready"] == "True"
        world.kubectl("delete", "node", name)  # it has no mark of the run
        run.end_well_or_late()
    world.assert_nothing_left(PREFIX)


@pytest.mark.slow
def test_a_cloud_controller_manager_initializes_nodes(world: World) -> None:
    """The test is the manager: it says an address and takes the taint away, as its own do."""
    prefix, taint = "cloud", "node.cloudprovider.kubernetes.io/uninitialized"
    document = yaml.safe_load(show_profile("default"))
    document["spec"]["cloudProvider"] = "external"
    document["spec"].setdefault("kubeletConfiguration", {})["nodeStatusUpdateFrequency"] = "2s"
    path = world.root / "cloud.yaml"
    path.write_text(yaml.safe_dump(document))
    with world.spawn(prefix, 1, f"--profile={path}") as run:
        run.until_ready()
        name = f"{prefix}-00000"
        node = world.get("node", name)
        [address] = [
            each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"
        ]
        provided = node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"]
        assert provided == address
        assert taint in {each["key"] for each in node["spec"]["taints"]}
        external = {"type": "ExternalIP", "address": "203.0.113.7"}
        patch = json.dumps({"status": {"addresses": [external]}})
        world.kubectl("patch", "node", name, "--subresource=status", "-p", patch)
        world.kubectl("taint", "node", name, f"{taint}-")
        reports = world.get("node", name)["status"]["conditions"][0]["lastHeartbeatTime"]

        def has_reported() -> bool:
            conditions = world.get("node", name)["status"]["conditions"]
            return bool(conditions[0]["lastHeartbeatTime"] != reports)

        eventually(has_reported, "the kubelet has reported again")
        node = world.get("node", name)
        assert external in node["status"]["addresses"]
        assert taint not in {each["key"] for each in node["spec"].get("taints", ())}
        run.end_well_or_late()
    world.assert_nothing_left(prefix)
