"""`python -m bench.pod_requests`: what each request of a pod's life costs the control plane.

Sends many of one kind at a time, as a kubelet does: as an impersonated node, in protobuf but for
patches. CPU is the processes' own accounting, less what they take while nobody asks; that of the
controllers and the scheduler, which watch all pods, is part of it. Kubelets use HTTP/2; these
requests go over IN_FLIGHT connections.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import orjson

from fleet.controlplane.options import APISERVER, ETCD
from fleet.wire.api.protobuf import object_from_json

from .accounting import cpu_s
from .inside import NAMESPACE, POD_SPEC, Json, client, each, make_namespace, session_of
from .peer_plane import Plane, control_plane

NODE = "n-0"
REST_S = 5.0
PROTOBUF = "application/vnd.kubernetes.protobuf"
AS_NODE = {"Impersonate-User": f"system:node:{NODE}", "Accept": PROTOBUF}
IN_PROTOBUF = AS_NODE | {"Content-Type": PROTOBUF}
STRATEGIC = AS_NODE | {"Content-Type": "application/strategic-merge-patch+json"}
CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
CONTAINER: Json = {"name": "c", "image": "registry.k8s.io/pause:3.10", "restartCount": 0}


def status(phase: str, state: str, **more: object) -> bytes:
    """Return the patch of a pod's status, as long as a kubelet's."""
    is_ready = "True" if phase == "Running" else "False"
    found: Json = {
        "phase": phase,
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {"type": each, "status": is_ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for each in CONDITIONS
        ],
        "containerStatuses": [
            {**CONTAINER, "imageID": "", "ready": phase == "Running", "state": {state: {}}, **more}
        ],
    }
    return orjson.dumps({"status": found})


WAITING, RUNNING = status("Pending", "waiting"), status("Running", "running", containerID="c://1")
ENDED = status("Succeeded", "terminated", containerID="c://1")


class Requests:
    """The requests about a number of pods, each of which is sent for every pod."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.namespace = f"{url}/api/v1/namespaces/{NAMESPACE}"
        self._uids: dict[int, str] = {}

    def _pod(self, index: int) -> str:
        return f"{self.namespace}/pods/p-{index:05d}"

    async def _ask(self, verb: str, url: str, body: object = None, **headers: str) -> bytes:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self._session.request(
            verb, url, data=data or None, headers={"Content-Type": "application/json", **headers}
        ) as answer:
            content = await answer.read()
            assert answer.status < 300, content
            return content

    async def create(self, index: int) -> None:
        spec = {"nodeName": NODE, **POD_SPEC}
        body = {"metadata": {"name": f"p-{index:05d}"}, "spec": spec}
        made = orjson.loads(await self._ask("POST", f"{self.namespace}/pods", body))
        self._uids[index] = made["metadata"]["uid"]

    async def get(self, index: int) -> None:
        await self._ask("GET", self._pod(index), b"", **AS_NODE)

    def patch(self, body: bytes) -> Callable[[int], Awaitable[None]]:
        async def work(index: int) -> None:
            await self._ask("PATCH", f"{self._pod(index)}/status", body, **STRATEGIC)

        return work

    async def token(self, index: int) -> None:
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": f"p-{index:05d}",
            "uid": self._uids[index],
        }
        body = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"audiences": [], "expirationSeconds": 3607, "boundObjectRef": pod},
        }
        path = f"{self.namespace}/serviceaccounts/default/token"
        await self._ask("POST", path, object_from_json(body), **IN_PROTOBUF)

    async def watch(self, index: int) -> None:
        """Watch the ConfigMap that all pods mount, for a second: the connection stays open."""
        del index
        query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&timeoutSeconds=1"
        query += "&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3Dkube-root-ca.crt"
        url = f"{self.namespace}/configmaps?{query}"
        assert await self._ask("GET", url, b"", **AS_NODE)

    async def event(self, index: int) -> None:
        about = {"kind": "Pod", "namespace": NAMESPACE, "name": f"p-{index:05d}"}
        body = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": f"p-{index:05d}.{time.monotonic_ns():x}", "namespace": NAMESPACE},
            "involvedObject": {**about, "apiVersion": "v1", "uid": self._uids[index]},
            "reason": "Started",
            "message": "Container started",
            "source": {"component": "kubelet", "host": NODE},
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "count": 1,
            "type": "Normal",
        }
        await self._ask("POST", f"{self.namespace}/events", object_from_json(body), **IN_PROTOBUF)

    async def delete(self, index: int) -> None:
        await self._ask("DELETE", self._pod(index), b"")

    async def finish(self, index: int) -> None:
        await self._ask("DELETE", self._pod(index), {"gracePeriodSeconds": 0}, **AS_NODE)


async def keep_node(session: aiohttp.ClientSession, url: str) -> None:
    """Create the Node, and renew its Lease: its pods would be marked otherwise."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node: Json = {"metadata": {"name": NODE}, "status": ready}
    async with session.post(f"{url}/api/v1/nodes", json=node) as answer:
        assert answer.status == 201, await answer.text()
    leases = f"{url}/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    lease: Json = {"metadata": {"name": NODE}, "spec": {"holderIdentity": NODE}}
    while True:
        lease["spec"]["renewTime"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        verb, path = ("PUT", f"{leases}/{NODE}") if "uid" in lease["metadata"] else ("POST", leases)
        async with session.request(verb, path, json=lease) as answer:
            lease = await answer.json()
        await asyncio.sleep(10)


async def measure(plane: Plane, count: int) -> None:
    """Print what each request costs, in the order of a pod's life."""
    groups = {
        "API server": [plane.apiserver],
        "etcd": [plane.processes[ETCD]],
        "others": [each for name, each in plane.processes.items() if name not in {APISERVER, ETCD}],
    }

    def used() -> list[float]:
        return [cpu_s(processes) for processes in groups.values()]

    url, context = client(plane.info.kubeconfig)
    async with session_of(context) as session:
        await make_namespace(session, url)
        asks, keeping = Requests(session, url), asyncio.create_task(keep_node(session, url))
        await asyncio.sleep(REST_S)
        before = used()
        await asyncio.sleep(REST_S)
        idle = [(now - then) / REST_S for now, then in zip(used(), before, strict=True)]
        print("request", *groups, sep=", ")
        for name, work in (
            ("POST pod", asks.create),
            ("GET pod", asks.get),
            ("PATCH status (waiting)", asks.patch(WAITING)),
            ("PATCH status (Running)", asks.patch(RUNNING)),
            ("POST token", asks.token),
            ("WATCH ConfigMap", asks.watch),
            ("POST event", asks.event),
            ("DELETE with grace", asks.delete),
            ("PATCH status (ended)", asks.patch(ENDED)),
            ("DELETE at once", asks.finish),
        ):
            before, began_s = used(), time.monotonic()
            await each(count, work)
            span_s = time.monotonic() - began_s
            more = zip(used(), before, idle, strict=True)
            costs = [(now - then - rest * span_s) / count * 1e3 for now, then, rest in more]
            print(name, *(f"{cost:.2f} ms" for cost in costs), sep=", ", flush=True)
        keeping.cancel()


def main() -> None:
    """Start a control plane, and measure."""
    parser = argparse.ArgumentParser(prog="bench.pod_requests", description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
        environment = {**os.environ, "XDG_STATE_HOME": scratch}
        with control_plane(Path(scratch), environment) as plane:
            asyncio.run(measure(plane, options.pods))


if __name__ == "__main__":
    main()
