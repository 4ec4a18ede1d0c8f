"""A cluster with what runs left in it, and with nodes and pods of its own."""

import asyncio

from fleet.cluster.cleanup import CSI_NODES, NODE_LEASES
from fleet.cluster.runs import DURATION_S, RUN_LEASES, RunLease
from world.cluster_fakes import FakeApi, add_owned, no_sleep, node_marks


def add_node(api: FakeApi, name: str, run: str = "") -> None:
    add_owned(api, name, node_marks(run, name.partition("-")[0]) if run else {})


def add_pod(api: FakeApi, name: str, node: str) -> None:
    metadata = {"namespace": "ns"}
    api.put(f"/api/v1/namespaces/ns/pods/{name}", metadata=metadata, spec={"nodeName": node})


def cluster(nodes: int = 3) -> FakeApi:
    """A cluster with a run that left something, a running one, and nodes and pods of its own."""
    api = FakeApi()
    api.put("/api/v1/namespaces/ns")
    for index in range(nodes):
        add_node(api, f"a-{index}", "left")
        add_pod(api, f"on-a-{index}", f"a-{index}")
    add_node(api, "b-0", "running")
    add_pod(api, "on-b", "b-0")
    for run in ("left", "running"):
        lease = RunLease(api, "a" if run == "left" else "b", run, sleep=no_sleep)
        asyncio.run(lease.acquire())
    time = "2027-01-15T08:00:00Z"
    api.date_s = 1_800_000_000 + DURATION_S
    api.objects[f"{RUN_LEASES}/fleet-run-a"]["metadata"]["managedFields"] = [{"time": time}]
    time = "2027-01-15T08:00:39Z"
    api.objects[f"{RUN_LEASES}/fleet-run-b"]["metadata"]["managedFields"] = [{"time": time}]
    add_node(api, "real-0")
    add_pod(api, "real", "real-0")
    add_pod(api, "pending", "")
    api.log.clear()
    return api


def belongs(api: FakeApi, part: str) -> list[str]:
    return [path for path in api.objects if part in path.rsplit("/", 1)[1]]


REAL = [
    "/api/v1/nodes/real-0",
    f"{NODE_LEASES}/real-0",
    f"{CSI_NODES}/real-0",
    "/api/v1/namespaces/ns/pods/real",
]
