"""Every class of the shipped load: it runs without failures and asks what it says it asks."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from e2e.e2e_world import Json, World, eventually
from e2e.locust_dashboard import Dashboard
from fleet.cluster.api_client import Cluster
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.run_id import LOAD_LABEL
from fleet.dashboard.dashboard import EVERYWHERE, IN_NAMESPACE

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "busy"
NAMESPACE = "fleet-load-busy-run"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAMESPACE}"
CLASSES = {
    "ConfigMapWriter": 3,
    "DeploymentChurn": 1,
    "EventReader": 1,
    "Informer": 1,
    "JobChurn": 1,
    "KubectlWatcher": 1,
    "NodeReader": 1,
    "PodLister": 2,
    "WatchStorm": 1,
}
WANTED = {
    "pods of all namespaces": ("list", "/api/v1/pods?limit=500&continue="),
    "pods of one namespace": ("list", "/api/v1/namespaces/fleet-load-busy-run/pods?limit=500"),
    "one node": ("get", f"/api/v1/nodes/{PREFIX}-0000"),
    "configmap patched": ("patch", "/api/v1/namespaces/fleet-load-busy-run/configmaps/load-"),
    "configmap read": ("get", "/api/v1/namespaces/fleet-load-busy-run/configmaps/load-"),
    "deployment rolled out": ("create", "/apis/apps/v1/namespaces/fleet-load-busy-run/deployments"),
    "deployment scaled": (
        "patch",
        "/apis/apps/v1/namespaces/fleet-load-busy-run/deployments/load-",
    ),
    "deployment deleted": (
        "delete",
        "/apis/apps/v1/namespaces/fleet-load-busy-run/deployments/load-",
    ),
    "job": ("create", "/apis/batch/v1/namespaces/fleet-load-busy-run/jobs"),
    "kubectl -w": ("watch", "/api/v1/pods?watch=true"),
    "watch storm": ("watch", "/api/v1/services?watch=true"),
    "informer's list": ("list", "/apis/apps/v1/replicasets?resourceVersion=0"),
    "informer's watch": ("watch", "/apis/apps/v1/deployments?watch=true"),
    "events": ("list", "/api/v1/events?limit=500"),
}


def asked(events: list[Json]) -> set[str]:
    """Return which of the wanted requests are among what the API users were answered."""
    found = set()
    for event in events:
        if event["user"]["username"] == ACCOUNT and event.get("responseStatus", {}).get("code"):
            for name, (verb, uri) in WANTED.items():
                if event["verb"] == verb and event["requestURI"].startswith(uri):
                    found.add(name)
    return found


GRANTED = {(*each[:4], "") for each in EVERYWHERE} | {
    (*each[:4], NAMESPACE) for each in IN_NAMESPACE
}
FORBIDDEN = {
    "/api/v1/namespaces",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/kube-system/secrets",
    f"/api/v1/namespaces/{NAMESPACE}/pods",
    f"/api/v1/namespaces/{NAMESPACE}/secrets",
}


def used(events: list[Json]) -> set[tuple[str, str, str, str, str]]:
    """Return the rights that the requests of API users took; a LIST there is one everywhere."""
    found = set()
    for event in events:
        if event["user"]["username"] == ACCOUNT and event["responseStatus"].get("code") != 403:
            about = event["objectRef"]
            right = (event["verb"], about.get("apiGroup", ""), about["resource"], "")
            is_read = (*right, "") in GRANTED
            found.add((*right, "" if is_read else about.get("namespace", "")))
    return found


def nodes_of_pods(world: World) -> set[str]:
    pods = world.items("pods", "-n", NAMESPACE)
    return {pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}


def other_verbs(world: World, directory: Path) -> set[int]:
    """Return how the server answers the account what it was not granted."""
    token = world.kubectl("create", "token", NAMESPACE, "-n", NAMESPACE).strip()
    kubeconfig = world.user(directory / "account", token)

    async def ask() -> set[int]:
        async with await Cluster.connect(ClusterSelection(kubeconfig=kubeconfig)) as cluster:
            api = cluster.api("t")
            return {(await api.request("POST", path, body={})).code for path in FORBIDDEN}

    return asyncio.run(ask())


def test_each_class_makes_the_requests_that_it_says_and_none_fails(
    world: World, tmp_path: Path
) -> None:
    # A user's own, called as an older fleet called its: they stay.
    world.kubectl("create", "namespace", "fleet-load")
    world.kubectl("create", "clusterrolebinding", "fleet-load", "--clusterrole=view", "--user=me")
    arguments = ("--dashboard", "--rate=20", "--load=api_users", "--api-users=12")
    with world.spawn(PREFIX, 3, "--fidelity=light", "--run-id=busy-run", *arguments) as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 15), "3 nodes and 12 users")
        assert dashboard.classes() == {**CLASSES, "VirtualNode": 3}
        eventually(lambda: asked(world.audit()) == set(WANTED), "every request")
        eventually(lambda: used(world.audit()) == GRANTED, "every right is used")
        eventually(lambda: nodes_of_pods(world), "a pod of theirs is scheduled")
        assert nodes_of_pods(world) <= set(world.nodes(PREFIX))
        assert other_verbs(world, tmp_path) == {403}
        rows = dashboard.rows()
        # Before it is ended: Locust itself may fail when a signal and its master end it at once.
        said = (run.directory / "locust-users.log").read_text()
        run.end_well_or_late()
    assert not {row: found["num_failures"] for row, found in rows.items() if found["num_failures"]}
    sizes = Counter({row: found["avg_content_length"] for row, found in rows.items()})
    for row in (("LIST", "pods"), ("GET", "nodes"), ("PATCH", "configmaps"), ("POST", "leases")):
        assert sizes[row] > 100, row
    assert "Traceback" not in said
    refused = [e for e in world.audit() if e["user"]["username"] == ACCOUNT]
    tried = {e["requestURI"] for e in refused if e["responseStatus"].get("code") == 403}
    assert tried == FORBIDDEN  # by this test
    world.kubectl("wait", "--for=delete", f"namespace/{NAMESPACE}", "--timeout=180s")
    kinds = "clusterroles,clusterrolebindings"
    assert not world.kubectl("get", kinds, "-l", LOAD_LABEL, "-o", "name")
    assert world.get("namespace", "fleet-load")["status"]["phase"] == "Active"
    world.kubectl("delete", "clusterrolebinding", "fleet-load")
    world.kubectl("delete", "namespace", "fleet-load", "--wait=false")
    world.assert_nothing_left(PREFIX)


def test_a_foreign_namespace_is_refused_and_stays(world: World) -> None:
    world.kubectl("create", "namespace", "fleet-load-theirs")
    world.kubectl("-n", "fleet-load-theirs", "create", "configmap", "mine")
    arguments = ("--dashboard", "--load=api_users", "--api-users=1", "--run-id=theirs")
    done = world.fleet("spawn", "--name-prefix=theirs", "--nodes=1", "--fidelity=light", *arguments)
    assert done.returncode == 3, done.stderr
    assert "/api/v1/namespaces/fleet-load-theirs is there and not of this run" in done.stderr
    world.fleet("clean", "--run=theirs")
    assert world.get("configmap", "mine", "-n", "fleet-load-theirs")
    world.kubectl("delete", "namespace", "fleet-load-theirs", "--wait=false")
    world.assert_nothing_left("theirs")
