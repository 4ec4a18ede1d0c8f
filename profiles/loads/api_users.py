"""API users beside the nodes: `fleet spawn --dashboard --load api_users --api-users 12`.

Copy it and take what you need. Weights say how often each class is chosen.
"""

import random
import time
import uuid

from locust import between, constant, task

from fleet.kube_user import KubeUser

MERGE = "application/merge-patch+json"
IMAGE = "registry.k8s.io/pause:3.10"


def pod_template(app: str) -> dict:
    """Return a pod that tolerates fleet's nodes."""
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {
            "tolerations": [{"key": "fleet.emulator/fake", "operator": "Exists"}],
            "containers": [{"name": "c", "image": IMAGE}],
        },
    }


class PodLister(KubeUser):
    """Lists all pods, page by page, as dashboards and operators do."""

    weight = 3
    wait_time = between(1, 3)

    @task(3)
    def everywhere(self) -> None:
        for _ in self.pages("/api/v1/pods", "pods"):
            pass

    @task
    def of_a_namespace(self) -> None:
        self.ask("LIST", f"/api/v1/namespaces/{self.namespace}/pods?limit=500", "pods")


class NodeReader(KubeUser):
    """Reads nodes, one and all."""

    weight = 2
    wait_time = between(1, 3)

    @task
    def list_and_get(self) -> None:
        nodes = [node for page in self.pages("/api/v1/nodes", "nodes") for node in page]
        if nodes:
            name = random.choice(nodes)["metadata"]["name"]
            self.ask("GET", f"/api/v1/nodes/{name}", "nodes", expected=(404,))


class ConfigMapWriter(KubeUser):
    """Creates a ConfigMap, patches and reads it, and removes it."""

    weight = 3
    wait_time = between(0.2, 1)

    def on_start(self) -> None:
        self.ensure_namespace()

    @task
    def write(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        name = f"load-{uuid.uuid4().hex[:8]}"
        body = {"metadata": {"name": name}, "data": {"key": "0"}}
        self.ask("POST", path, "configmaps", body)
        for value in range(3):
            patch = {"data": {"key": str(value)}}
            self.ask("PATCH", f"{path}/{name}", "configmaps", patch, content_type=MERGE)
            self.ask("GET", f"{path}/{name}", "configmaps")
        self.ask("DELETE", f"{path}/{name}", "configmaps")


class DeploymentChurn(KubeUser):
    """Rolls a Deployment out, scales it and deletes it, over and over."""

    wait_time = constant(5)

    def on_start(self) -> None:
        self.ensure_namespace()

    @task
    def churn(self) -> None:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        name = f"load-{uuid.uuid4().hex[:8]}"
        template = pod_template(name)
        spec = {"replicas": 5, "selector": {"matchLabels": {"app": name}}, "template": template}
        self.ask("POST", path, "deployments", {"metadata": {"name": name}, "spec": spec})
        for replicas in (10, 2):
            time.sleep(2)
            patch = {"spec": {"replicas": replicas}}
            self.ask("PATCH", f"{path}/{name}", "deployments", patch, content_type=MERGE)
        time.sleep(2)
        self.ask("DELETE", f"{path}/{name}", "deployments")


class JobChurn(KubeUser):
    """Runs short Jobs that clean up after themselves."""

    wait_time = constant(5)

    def on_start(self) -> None:
        self.ensure_namespace()

    @task
    def run_one(self) -> None:
        template = pod_template("load-job")
        template["spec"]["restartPolicy"] = "Never"
        template["spec"]["containers"][0]["command"] = ["sleep", "2"]
        body = {
            "metadata": {"generateName": "load-"},
            "spec": {"ttlSecondsAfterFinished": 5, "template": template},
        }
        self.ask("POST", f"/apis/batch/v1/namespaces/{self.namespace}/jobs", "jobs", body)


class PodWatcher(KubeUser):
    """Lists and watches all pods for a while, as `kubectl get pods -A -w` does."""

    weight = 2
    wait_time = between(1, 5)

    @task
    def list_and_watch(self) -> None:
        listed = self.ask("LIST", "/api/v1/pods?limit=1", "pods")
        version = (listed.get("metadata") or {}).get("resourceVersion") or "0"
        for _ in self.watch("/api/v1/pods", "pods", version, seconds=20):
            pass


class EventReader(KubeUser):
    """Reads all events, as log shippers do."""

    wait_time = between(2, 5)

    @task
    def read(self) -> None:
        for _ in self.pages("/api/v1/events", "events"):
            pass
