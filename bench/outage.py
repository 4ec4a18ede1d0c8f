"""45 s without an API server: which nodes are lost, when all are back, and what that costs.

A node is lost if the node-lifecycle controller writes that it is not Ready, 50 s after the last
renewal that it saw. That may be 10 s older than the outage, a server takes two seconds to start,
and the controller's own watches back off meanwhile: how many are lost depends on when they had
renewed and on the controller more than on the tool. What the tool itself does is when all Leases
are renewed. The nodes are watched for a minute after the server's return, and longer until all are
back.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import psutil

from fleet.controlplane.flags import LOOPBACK
from fleet.controlplane.options import CONTROLLER_MANAGER

from .inside import DEADLINE_S, Json, follow, session_of, until
from .peer_plane import Plane

DOWN_S = 45.0
CPU_S = 30.0
"""Of the tool, from the moment at which the server is ready again."""
WATCHED_S = 60.0
"""The controller's reflectors back off up to 30 s, at most doubled by chance."""
BEFORE_S = 60.0
PROBE_S = 0.05
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NOT_READY = "node.kubernetes.io/not-ready"
HEALTH_CHECKS = "node_collector_update_node_health_duration_seconds_count"
"""How often the node-lifecycle controller has looked at nodes. Source: nodelifecycle/metrics.go."""


class UnsoundError(Exception):
    """Why a run is no measurement."""


@dataclass(slots=True)
class Nodes:
    """The Nodes as a watch shows them."""

    ready: set[str] = field(default_factory=set)
    fine: set[str] = field(default_factory=set)
    """Ready, and without the not-ready taint."""
    lost: set[str] = field(default_factory=set)
    """Ready once, then not."""
    seen_s: float = 0.0
    """When the last event came, by the monotonic clock."""
    gained_s: float = 0.0
    """When a node last became fine."""

    def see(self, event: Json, version: int) -> int:
        """Take one event of the watch; return the version to go on from."""
        if event["type"] == "ERROR":
            return 0  # what was Ready stays known: the watch that begins anew shows who is not
        self.seen_s = time.monotonic()
        node = event["object"]
        name = node["metadata"]["name"]
        if event["type"] == "DELETED":
            self.ready.discard(name)
            self.fine.discard(name)
        else:
            self._take(name, node)
        return max(version, int(node["metadata"]["resourceVersion"]))

    def _take(self, name: str, node: Json) -> None:
        taints = {taint["key"] for taint in node["spec"].get("taints", ())}
        if any(
            (each["type"], each["status"]) == ("Ready", "True")
            for each in node.get("status", {}).get("conditions", ())
        ):
            self.ready.add(name)
        elif name in self.ready:
            self.ready.discard(name)
            self.lost.add(name)
        if name not in self.ready or NOT_READY in taints:
            self.fine.discard(name)
        elif name not in self.fine:
            self.fine.add(name)
            self.gained_s = self.seen_s


@dataclass(slots=True)
class Leases:
    """The Leases of the nodes as a watch shows them."""

    renewed_at: dict[str, str] = field(default_factory=dict)
    """When each node renewed last, as it says itself."""
    old: dict[str, str] = field(default_factory=dict)
    """The same, of those that have not renewed since `begin`."""
    done_s: float = 0.0
    """When the last of them had, by the monotonic clock."""

    def begin(self) -> None:
        """Wait for a renewal of each from now on."""
        self.old = dict(self.renewed_at)

    def see(self, event: Json, version: int) -> int:
        """Take one event of the watch; return the version to go on from."""
        if event["type"] == "ERROR":
            return 0
        lease = event["object"]
        name, renewed_at = lease["metadata"]["name"], lease["spec"].get("renewTime", "")
        self.renewed_at[name] = renewed_at
        if self.old.get(name, renewed_at) != renewed_at:
            del self.old[name]
            if not self.old:
                self.done_s = time.monotonic()
        return max(version, int(lease["metadata"]["resourceVersion"]))


async def outage(
    plane: Plane, context: ssl.SSLContext, count: int, tool_cpu_s: Callable[[], float]
) -> Json:
    """Kill the API server, start it again after DOWN_S, and look at the nodes meanwhile.

    All figures but the first are from /readyz of the new server on, in seconds.
    `outage_renewed_s`: until each node had renewed its Lease, as a watch shows it. `outage_back_s`:
    until the last node became Ready without the not-ready taint, after which all were so when
    WATCHED_S were over; 0 if none was lost. None: not within WATCHED_S and DEADLINE_S. Raises
    UnsoundError if nothing can be said.
    """
    nodes, leases = Nodes(), Leases()
    async with session_of(context) as session:
        view = _View(session, plane, count, tool_cpu_s, nodes, leases)
        watches = [
            asyncio.create_task(follow(session, f"{plane.info.url}{NODES}", nodes.see)),
            asyncio.create_task(follow(session, f"{plane.info.url}{LEASES}", leases.see)),
        ]
        try:
            await view.before()
            plane.kill_apiserver()
            await asyncio.sleep(DOWN_S)
            leases.begin()
            plane.revive_apiserver()
            start_s = await _until_ready(session, plane)
            return {"outage_apiserver_start_s": start_s, **await view.after()}
        finally:
            for watch in watches:
                watch.cancel()


@dataclass(frozen=True, slots=True)
class _View:
    """What is looked at before an outage and after it."""

    session: aiohttp.ClientSession
    plane: Plane
    count: int
    tool_cpu_s: Callable[[], float]
    nodes: Nodes
    leases: Leases

    async def before(self) -> None:
        """Wait until the watches have shown all nodes."""
        fine, known = self.nodes.fine, self.leases.renewed_at
        if await until(lambda: len(fine) == len(known) == self.count, BEFORE_S) is None:
            raise UnsoundError(
                f"at the outage {len(fine)} of {self.count} nodes were Ready, {len(known)} had "
                "a Lease"
            )
        self.nodes.lost.clear()

    async def after(self) -> Json:
        """Look from now, at which the server is ready, until all nodes are back."""
        nodes, leases = self.nodes, self.leases
        ready_s, before_s = time.monotonic(), self.tool_cpu_s()
        checks = await health_checks(self.session, self.plane)
        await asyncio.sleep(ready_s + CPU_S - time.monotonic())
        used_s = self.tool_cpu_s() - before_s
        await asyncio.sleep(ready_s + WATCHED_S - time.monotonic())
        back = await until(lambda: len(nodes.fine) == self.count and not leases.old)
        if nodes.seen_s < ready_s:
            raise UnsoundError("the watch of the Nodes did not come back after the outage")
        if await health_checks(self.session, self.plane) <= checks:
            raise UnsoundError("the node-lifecycle controller looked at no node after the outage")
        is_back = back is not None or len(nodes.fine) == self.count
        return {
            "outage_renewed_s": None if leases.old else _since(ready_s, leases.done_s),
            "outage_lost": len(nodes.lost),
            "outage_back_s": _since(ready_s, nodes.gained_s) if is_back else None,
            "outage_cpu_s": used_s,
        }


def _since(ready_s: float, then_s: float) -> float:
    return round(max(0.0, then_s - ready_s), 1)


async def _until_ready(session: aiohttp.ClientSession, plane: Plane) -> float:
    """Wait for the API server's /readyz; return after how many seconds."""
    began_s = time.monotonic()
    while not await _is_ok(session, f"{plane.info.url}/readyz"):
        if time.monotonic() - began_s > DEADLINE_S:
            raise UnsoundError("the API server was not ready again in time")
        await asyncio.sleep(PROBE_S)
    return round(time.monotonic() - began_s, 1)


async def _is_ok(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.status == 200
    return False


async def health_checks(session: aiohttp.ClientSession, plane: Plane) -> float:
    """Return how often the node-lifecycle controller has looked at a node.

    Raises UnsoundError if the controller-manager does not run, or does not tell.
    """
    if not _runs(plane.processes[CONTROLLER_MANAGER]):
        raise UnsoundError("kube-controller-manager, with the node-lifecycle controller, has ended")
    url = f"https://{LOOPBACK}:{plane.info.ports[CONTROLLER_MANAGER]}/metrics"
    try:
        async with session.get(url) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError) as error:
        raise UnsoundError(f"kube-controller-manager does not answer: {error!r}") from error
    for line in text.splitlines():
        if line.startswith(HEALTH_CHECKS):
            return float(line.split()[-1])
    raise UnsoundError(f"kube-controller-manager tells {response.status}, no {HEALTH_CHECKS}")


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
