"""The API clients of a kubelet, as a real API server's audit log shows them."""

import pytest
from audit_requests import requests_of, seconds
from e2e_world import Json, World, eventually, workload

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "clients"
NODE = f"{PREFIX}-00000"
PODS = 105
BURST, QPS = 100, 50


def is_main_client(request: Json) -> bool:
    about = request["objectRef"]["resource"]
    is_heartbeat = about == "leases" or "timeout=10s" in request["requestURI"]
    return not is_heartbeat and about != "events" and str(request["verb"]) != "watch"


def test_a_full_node_is_held_to_50_requests_a_second(world: World) -> None:
    with world.spawn(PREFIX, 1) as run:
        run.until_ready()
        before = len(requests_of(world, NODE))
        world.apply(workload("Deployment", PREFIX, PODS, nodeName=NODE))
        eventually(lambda: len(world.ready_pods(PREFIX)) == PODS, "all pods Ready")
        sent = requests_of(world, NODE)[before:]
        world.kubectl("delete", "deployment", PREFIX, "--cascade=orphan")
        world.kubectl("delete", "replicasets", "-l", f"app={PREFIX}", "--cascade=orphan")
        run.end_well_or_late()
    times = [seconds(each) for each in sent if is_main_client(each)]
    assert len(times) > 3 * PODS
    # What is beyond the burst takes its time; the first may have been on its way for a second.
    assert times[-1] - times[0] > (len(times) - BURST) / QPS - 1
