"""Monitors of devices: a gRPC client of PodResources at each node's own Unix socket."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import yaml
from e2e_world import Json, World, eventually
from google.protobuf import json_format, message_factory

from fleet.server.pod_resources import FILE, SERVICE
from fleet.wire.api.kubernetes_messages import read_pool

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "monitored"
NODES = (f"{PREFIX}-00000", f"{PREFIX}-00001")
GPU = "example.com/gpu"
DRIVER = "lens.example.com"
ANSWER_S_MAX = 60.0
METHODS = read_pool(FILE).FindServiceByName(SERVICE).methods_by_name
SPEC = {
    "devices": [
        {"resource": GPU, "count": 8, "idPrefix": "GPU-", "numaNodes": 2, "registrationDelay": "1s"}
    ],
    "dynamicResources": [{"driver": DRIVER, "count": 2, "registrationDelay": "1s"}],
}


class Monitored(NamedTuple):
    """A control plane, and where the nodes of a fleet on it have their sockets."""

    world: World
    root: Path

    def ask(self, name: str, node: str = NODES[0], **fields: str) -> Json:
        """Call a method of a node's kubelet; return the answer as JSON."""
        asked = message_factory.GetMessageClass(METHODS[name].input_type)
        answer: Any = message_factory.GetMessageClass(METHODS[name].output_type)
        with grpc.insecure_channel(f"unix:{self.root / node / 'kubelet.sock'}") as channel:
            call = channel.unary_unary(
                f"/v1.PodResourcesLister/{name}",
                request_serializer=asked.SerializeToString,
                response_deserializer=answer.FromString,
            )
            found: Json = json_format.MessageToDict(call(asked(**fields), timeout=ANSWER_S_MAX))
        return found

    def pods(self, node: str = NODES[0]) -> dict[str, Json]:
        """List the pods of a node by name."""
        return {each["name"]: each for each in self.ask("List", node).get("podResources", ())}


@pytest.fixture(scope="module")
def monitored(world: World) -> Iterator[Monitored]:
    """Run two nodes with eight devices each; their sockets are gone afterwards."""
    profile = {
        "apiVersion": "fleet.emulator/v1alpha1",
        "kind": "NodeProfile",
        "metadata": {"name": PREFIX},
        "spec": SPEC,
    }
    path = world.root / f"{PREFIX}.yaml"
    path.write_text(yaml.safe_dump(profile))
    root = Path(tempfile.mkdtemp(prefix="fleet-"))  # short: a socket's path has 107 bytes
    try:
        with world.spawn(PREFIX, 2, f"--profile={path}", f"--pod-resources={root}") as run:
            run.until_ready()
            yield Monitored(world, root)
            run.end_well_or_late()
        assert list(root.iterdir()) == []
    finally:
        shutil.rmtree(root)
    eventually(lambda: not world.items("resourceslices"), "what the nodes published is gone")
    world.assert_nothing_left(PREFIX)


def pod(name: str, *containers: Json, **spec: object) -> Json:
    body = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def container(name: str, gpus: int = 0, **fields: object) -> Json:
    amounts = {GPU: str(gpus)} if gpus else {}
    resources = {"limits": amounts, "requests": amounts}
    return {
        "name": name,
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": resources,
        **fields,
    }


def ids(shown: Json) -> dict[str, list[str]]:
    """Return the IDs of the devices of each container."""
    return {
        each["name"]: [id_ for device in each.get("devices", ()) for id_ in device["deviceIds"]]
        for each in shown["containers"]
    }


def ready(monitored: Monitored, name: str) -> Json:
    monitored.world.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    return monitored.world.get("pod", name)


def test_devices_are_told_as_the_pods_status_has_them(monitored: Monitored) -> None:
    """Of containers and sidecars, each device once, among those that the node offers."""
    side = container("side", 1, restartPolicy="Always")
    apart = container("apart", 1, command=["true"])
    world = monitored.world
    world.apply(
        pod("small", container("trains", 2), container("logs"), nodeName=NODES[0]),
        pod("large", container("c", 4), initContainers=[apart, side], nodeName=NODES[0]),
        pod("away", container("c", 3), nodeName=NODES[1]),
    )
    statuses = {name: ready(monitored, name)["status"] for name in ("small", "large", "away")}
    offered = monitored.ask("GetAllocatableResources")
    assert "cpuIds" not in offered  # of the policy none
    nodes = {
        device["deviceIds"][0]: device["topology"]["nodes"][0].get("ID", "0")
        for device in offered["devices"]
    }
    assert sorted(nodes.values()) == ["0"] * 4 + ["1"] * 4
    assert {device["resourceName"] for device in offered["devices"]} == {GPU}

    found = monitored.pods()
    assert sorted(found) == ["large", "small"]
    given = {name: ids(shown) for name, shown in found.items()}
    assert {name: len(each) for name, each in given["small"].items()} == {"trains": 2, "logs": 0}
    assert {name: len(each) for name, each in given["large"].items()} == {"side": 1, "c": 4}
    taken = [id_ for each in given.values() for some in each.values() for id_ in some]
    assert len(set(taken)) == len(taken) == 7
    assert set(taken) < set(nodes)
    for name, each in given.items():
        for shown in statuses[name]["containerStatuses"]:  # of init containers nothing is said
            healths = shown.get("allocatedResourcesStatus", ())
            says = {device["resourceID"] for known in healths for device in known["resources"]}
            assert says == set(each[shown["name"]]), (name, shown)
    [away] = monitored.pods(NODES[1]).values()
    assert away["namespace"] == "default"
    assert not set(ids(away)["c"]) & set(nodes)  # IDs are a node's own


def test_one_pod_is_told_until_it_ends(monitored: Monitored) -> None:
    """List tells of pods that are active, Get of any that the kubelet has."""
    script = ["sh", "-c", "while [ ! -f /tmp/go ]; do sleep 1; done"]
    world = monitored.world
    trains = container("c", 1, command=script)
    world.apply(pod("job", trains, nodeName=NODES[0], restartPolicy="Never"))
    ready(monitored, "job")

    def get() -> Json:
        found: Json = monitored.ask("Get", pod_name="job", pod_namespace="default")["podResources"]
        return found

    assert get() == monitored.pods()["job"]
    assert len(ids(get())["c"]) == 1
    world.kubectl("exec", "job", "--", "touch", "/tmp/go")
    eventually(lambda: "job" not in monitored.pods(), "it is told no more")
    eventually(lambda: world.get("pod", "job")["status"]["phase"] == "Succeeded", "it ended")
    assert (get()["name"], get()["namespace"]) == ("job", "default")
    world.kubectl("delete", "pod", "job")

    def refusal() -> tuple[grpc.StatusCode, str] | None:
        try:
            get()
        except grpc.RpcError as error:
            return error.code(), error.details()
        return None

    said = (grpc.StatusCode.UNKNOWN, "pod job in namespace default not found")
    eventually(lambda: refusal() == said, "the kubelet has forgotten it", seen=refusal)


def test_a_claims_devices_are_told(monitored: Monitored) -> None:
    world, kind = monitored.world, {"apiVersion": "resource.k8s.io/v1"}
    eventually(lambda: len(world.items("resourceslices")) == 2, "both nodes publish devices")
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    request = {"name": "lens", "exactly": {"deviceClassName": DRIVER}}
    claim = {"spec": {"devices": {"requests": [request]}}}
    uses = {"resources": {"claims": [{"name": "lens"}]}}
    world.apply(
        {
            **kind,
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": selectors},
        },
        {**kind, "kind": "ResourceClaim", "metadata": {"name": "sees"}, **claim},
        pod(
            "claims",
            {**container("c"), **uses},
            resourceClaims=[{"name": "lens", "resourceClaimName": "sees"}],
        ),
    )
    node = ready(monitored, "claims")["spec"]["nodeName"]
    [result] = world.get("resourceclaim", "sees")["status"]["allocation"]["devices"]["results"]
    [shown] = monitored.pods(node)["claims"]["containers"]
    [told] = shown["dynamicResources"]
    assert (told["claimName"], told["claimNamespace"]) == ("sees", "default")
    [device] = told["claimResources"]
    assert (device["driverName"], device["poolName"], device["deviceName"]) == (
        DRIVER,
        node,
        result["device"],
    )
    world.kubectl("delete", "pod", "claims")
    world.kubectl("delete", "resourceclaim/sees", f"deviceclass/{DRIVER}")
