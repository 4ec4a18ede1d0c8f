"""API users next to the nodes: `fleet spawn --dashboard --load api_users --api-users 12`.

Copy it and take what you need. Weights say how often each class is chosen; with 12 users or more
there is one of each.
"""

import random
import time
import uuid
from functools import partial

from locust import between, constant, task

from fleet.dashboard.kube_user import TABLE, KubeUser

MERGE = "application/merge-patch+json"
IMAGE = "registry.k8s.io/pause:3.10"


def pod_template(user: KubeUser, app: str) -> dict:
    """Return a pod for the nodes of this run: without images, real ones would pull and run it."""
    containers = [{"name": "c", "image": IMAGE}]
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {**user.on_our_nodes(), "containers": containers},
    }


class PodLister(KubeUser):
    """Lists all pods, page by page, as dashboards and operators do."""

    weight = 2
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
        template = pod_template(self, name)
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
        template = pod_template(self, "load-job")
        template["spec"]["restartPolicy"] = "Never"
        template["spec"]["containers"][0]["command"] = ["sleep", "2"]
        body = {
            "metadata": {"generateName": "load-"},
            "spec": {"ttlSecondsAfterFinished": 5, "template": template},
        }
        self.ask("POST", f"/apis/batch/v1/namespaces/{self.namespace}/jobs", "jobs", body)


class KubectlWatcher(KubeUser):
    """Is `kubectl get pods -A -w`, for 20 s at a time: pages of a table, then a watch."""

    wait_time = between(1, 5)

    @task
    def get_and_watch(self) -> None:
        token = version = ""
        while not version or token:
            path = f"/api/v1/pods?limit=500&continue={token}"
            listed = self.ask("LIST", path, "pods", accept=TABLE)
            metadata = listed.get("metadata") or {}
            version = metadata.get("resourceVersion") or "0"
            token = metadata.get("continue") or ""
        for _ in self.watch("/api/v1/pods", "pods", version, seconds=20, accept=TABLE):
            pass


class WatchStorm(KubeUser):
    """Opens many watches at one instant, as a restarted fleet of agents does, and drops them."""

    watches = 20
    concurrency = watches
    wait_time = constant(2)

    @task
    def storm(self) -> None:
        self.together(*[self.watch_services] * self.watches)

    def watch_services(self) -> None:
        for _ in self.watch("/api/v1/services", "services", version="0", seconds=5):
            pass


class Informer(KubeUser):
    """Follows what a workload controller follows, each with a LIST and a watch that stays."""

    followed = (
        ("/api/v1/pods", "pods"),
        ("/api/v1/nodes", "nodes"),
        ("/apis/apps/v1/deployments", "deployments"),
        ("/apis/apps/v1/replicasets", "replicasets"),
    )
    concurrency = len(followed)
    wait_time = constant(1)

    @task
    def follow_all(self) -> None:
        self.together(*(partial(self.follow, *each) for each in self.followed))


class EventReader(KubeUser):
    """Reads all events, as log shippers do."""

    wait_time = between(2, 5)

    @task
    def read(self) -> None:
        for _ in self.pages("/api/v1/events", "events"):
            pass
