"""Every class of the shipped load: it runs without failures and asks what it says it asks."""

from collections import Counter

import pytest
from e2e_world import Json, World, eventually
from locust_dashboard import Dashboard

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "busy"
ACCOUNT = "system:serviceaccount:fleet-load:fleet-load"
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
    "pods of one namespace": ("list", "/api/v1/namespaces/fleet-load/pods?limit=500"),
    "one node": ("get", f"/api/v1/nodes/{PREFIX}-0000"),
    "configmap patched": ("patch", "/api/v1/namespaces/fleet-load/configmaps/load-"),
    "configmap read": ("get", "/api/v1/namespaces/fleet-load/configmaps/load-"),
    "deployment rolled out": ("create", "/apis/apps/v1/namespaces/fleet-load/deployments"),
    "deployment scaled": ("patch", "/apis/apps/v1/namespaces/fleet-load/deployments/load-"),
    "deployment deleted": ("delete", "/apis/apps/v1/namespaces/fleet-load/deployments/load-"),
    "job": ("create", "/apis/batch/v1/namespaces/fleet-load/jobs"),
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


def test_each_class_makes_the_requests_that_it_says_and_none_fails(world: World) -> None:
    arguments = ("--dashboard", "--rate=20", "--load=api_users", "--api-users=12")
    with world.spawn(PREFIX, 3, "--fidelity=light", *arguments) as run:
        run.until("dashboard: http://")
        dashboard = Dashboard(run)
        eventually(dashboard.shows("running", 15), "3 nodes and 12 users")
        assert dashboard.classes() == {**CLASSES, "VirtualNode": 3}
        eventually(lambda: asked(world.audit()) == set(WANTED), "every request")
        rows = dashboard.rows()
        # Before it is ended: Locust itself may fail when a signal and its master end it at once.
        said = (run.directory / "locust-users.log").read_text()
        run.end_well_or_late()
    assert not {row: found["num_failures"] for row, found in rows.items() if found["num_failures"]}
    sizes = Counter({row: found["avg_content_length"] for row, found in rows.items()})
    for row in (("LIST", "pods"), ("GET", "nodes"), ("PATCH", "configmaps"), ("POST", "leases")):
        assert sizes[row] > 100, row
    assert "Traceback" not in said
    world.kubectl("wait", "--for=delete", "namespace/fleet-load", "--timeout=180s")
    assert not world.kubectl("get", "clusterrolebindings", "fleet-load", "--ignore-not-found")
    world.assert_nothing_left(PREFIX)
