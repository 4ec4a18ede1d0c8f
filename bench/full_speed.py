"""API users that never wait: one request after the other, for `bench.dashboard`."""

import random
import uuid

from locust import constant, task

from fleet.dashboard.kube_user import KubeUser


class NodeGetter(KubeUser):
    """Reads one node after another."""

    weight = 2
    wait_time = constant(0)

    def on_start(self) -> None:
        listed = self.ask("LIST", "/api/v1/nodes?limit=100", "nodes")
        self.names = [each["metadata"]["name"] for each in listed.get("items") or []]

    @task
    def read(self) -> None:
        if self.names:
            name = random.choice(self.names)
            self.ask("GET", f"/api/v1/nodes/{name}", "nodes", expected=(404,))


class ConfigMapMaker(KubeUser):
    """Creates and deletes one ConfigMap after another."""

    wait_time = constant(0)

    def on_start(self) -> None:
        self.ensure_namespace()

    @task
    def write(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        name = f"load-{uuid.uuid4().hex[:8]}"
        self.ask("POST", path, "configmaps", {"metadata": {"name": name}, "data": {"key": "0"}})
        self.ask("DELETE", f"{path}/{name}", "configmaps")
