"""What an autoscaler does with the nodes of a scenario: more for pods without room, fewer if empty.

    each scan   pods that the scheduler could not place --packed--> so many nodes more, to a limit
                the highest nodes, empty for long --cordoned, looked at again--> gone

Nodes that are there or on their way count as room. Pods that no empty node could take do not count.
Source: kubernetes/autoscaler, cluster-autoscaler/core/static_autoscaler.go, RunOnce;
estimator/binpacking_estimator.go; core/scaledown/unneeded.
Differs: one group; only requests decide whether a pod fits; no pod is moved, so that nodes go only
when they are empty, and from the highest name on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from fleet.background import Background
from fleet.cluster.api_client import MERGE_PATCH, METADATA_ONLY, Api, Cluster, Json, each, expect
from fleet.cluster.daemonsets import Taint, tolerates
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.dashboard.elastic import ElasticFleet
from fleet.host.node_host import NodeHost
from fleet.profile.loader import NodeMix
from fleet.quantity import parse_quantity
from fleet.scenario.scenario import AutoscalerSpec

PODS = "/api/v1/pods"
OVER = ("Succeeded", "Failed")
GONE = (404, 409)
"""A Node that is not there, or is another one of the same name."""
Amounts = Mapping[str, int]
"""By resource, in nano-units; each pod takes one of `pods`."""

log = logging.getLogger(__name__)


class Autoscaler:
    """Changes how many nodes there are. `run` does it until cancelled."""

    def __init__(
        self,
        spec: AutoscalerSpec,
        fleet: ElasticFleet,
        api: Api,
        allocatable: Mapping[str, str],
        names: Sequence[str],
        minimum: int,
        *,
        may_come: Callable[[Json], bool] = lambda _pod: True,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`names` are those of all nodes that there may be, in order.

        `may_come` says whether a pod may have one of them: for the others none are added.
        """
        self.minimum = minimum
        self._may_come = may_come
        self._spec = spec
        self._fleet = fleet
        self._api = api
        self._free = {name: parse_quantity(amount).nano for name, amount in allocatable.items()}
        self._names = names
        self._now_s = now_s
        self._sleep = sleep
        self._busy_s: dict[str, float] = {}  # by node, when it was seen with a pod, or made, last
        self._grown_s = now_s()

    @property
    def wanted(self) -> int:
        """Return how many nodes there are to be now."""
        return self._fleet.aimed

    @property
    def existing(self) -> int:
        """Return how many Nodes there are, as another client sees it."""
        return max(self._fleet.existing, self._fleet.aimed)

    async def run(self) -> None:
        """Scan again and again."""
        while True:
            await self._sleep(self._spec.scan_interval_ns / 1e9)
            await self.scan()

    async def scan(self) -> None:
        """Look once, and ask for more nodes or fewer."""
        pods: list[Json] = []
        async for page in self._api.pages(PODS, "pods"):
            pods += [pod for pod in page if pod.get("status", {}).get("phase") not in OVER]
        waiting = [
            requests_of(pod) for pod in pods if is_unschedulable(pod) and self._may_come(pod)
        ]
        room = {name: dict(self._free) for name in self._names[: self.wanted]}
        for pod in pods:
            left = room.get(pod["spec"].get("nodeName"), {})
            for resource, amount in requests_of(pod).items() if left else ():
                left[resource] = left.get(resource, 0) - amount
        missing = packed(waiting, self._free, room.values())
        missing = min(missing, self._fleet.nodes_max - self.wanted)
        now_s = self._now_s()
        for node in (pod["spec"].get("nodeName") for pod in pods if not is_daemon(pod)):
            self._busy_s[node] = now_s
        if missing > 0:
            for name in self._names[self.wanted : self.wanted + missing]:
                self._busy_s[name] = now_s
            self._grown_s = now_s
            log.info("%d pods find no room: %d nodes more", len(waiting), missing)
            self._fleet.aim(self.wanted + missing)
        elif not waiting and self._fleet.ready >= self.wanted:
            await self._shrink(now_s)

    async def _shrink(self, now_s: float) -> None:
        """Let the highest nodes go that have been empty for long enough."""
        limit_s = now_s - self._spec.unneeded_ns / 1e9
        if self._grown_s > limit_s:
            return
        gone = self.wanted
        while gone > self.minimum and self._busy_s.get(self._names[gone - 1], 0.0) <= limit_s:
            gone -= 1
        names = self._names[gone : self.wanted]
        if not names:
            return
        uids = await self._uids(names)
        await self._cordon(uids, is_on=True)
        async for page in self._api.pages(PODS, "pods"):
            found = {pod["spec"].get("nodeName") for pod in page if not is_daemon(pod)}
            if found.intersection(names):  # the scheduler was faster; they have their time again
                self._busy_s.update(dict.fromkeys(found, now_s))
                await self._cordon(uids, is_on=False)
                return
        log.info("%d nodes are empty, and go", len(names))
        self._fleet.aim(gone)

    async def _uids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the uids of those Nodes that a run made; others may have had the same names."""
        wanted, found = frozenset(names), {}
        selector = {"labelSelector": RUN_LABEL}
        async for page in self._api.pages(NODES, "nodes", accept=METADATA_ONLY, **selector):
            for metadata in (node["metadata"] for node in page):
                if metadata["name"] in wanted:
                    found[metadata["name"]] = metadata["uid"]
        return found

    async def _cordon(self, uids: Mapping[str, str], *, is_on: bool) -> None:
        async def patch(name: str) -> None:
            body = {"metadata": {"uid": uids[name]}, "spec": {"unschedulable": is_on or None}}
            path = f"{NODES}/{name}"
            answer = await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            if answer.code not in GONE:
                expect(answer, f"cannot cordon node {name}")

        await each(uids, patch)


def start_autoscaler(
    spec: AutoscalerSpec,
    node_host: NodeHost,
    mix: NodeMix,
    cluster: Cluster,
    background: Background,
) -> Autoscaler:
    """Let the nodes of a run be as many as its pods need, from now on."""
    fleet = ElasticFleet(node_host, cluster.api("cleanup"))
    fleet.aim(node_host.size)
    settings, model = node_host.settings, mix.model_of(0)
    names = list(settings.node_names())
    taint = Taint(*node_host.taint) if node_host.taint is not None else None
    autoscaler = Autoscaler(
        spec,
        fleet,
        cluster.api("autoscaler"),
        model.allocatable,
        names,
        settings.nodes,
        may_come=lambda pod: may_have(pod, node_host.run_id, taint),
    )
    background.keep("the nodes", fleet.run)
    background.keep("the autoscaler", autoscaler.run)
    return autoscaler


def may_have(pod: Json, run_id: str, taint: Taint | None) -> bool:
    """Return whether a pod may have nodes of a run: the pods of others wait for other nodes."""
    spec = pod["spec"]
    if (spec.get("nodeSelector") or {}).get(RUN_LABEL, run_id) != run_id:
        return False
    return taint is None or any(tolerates(each, taint) for each in spec.get("tolerations") or ())


def is_unschedulable(pod: Json) -> bool:
    """Return whether the scheduler has found no room for a pod. Source: kube_util.ArrangePods."""
    if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        each["type"] == "PodScheduled"
        and each["status"] == "False"
        and each.get("reason") == "Unschedulable"
        for each in pod.get("status", {}).get("conditions") or ()
    )


def is_daemon(pod: Json) -> bool:
    """Return whether a pod is there because its node is. Source: utils/pod.IsDaemonSetPod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] in {"DaemonSet", "Node"} for owner in owners)


def requests_of(pod: Json) -> dict[str, int]:
    """Return what a pod takes of a node: its containers together, or the largest of the first."""
    total = {"pods": parse_quantity("1").nano}
    for container in pod["spec"]["containers"]:
        for name, amount in _requests(container).items():
            total[name] = total.get(name, 0) + amount
    for container in pod["spec"].get("initContainers") or ():
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, 0), amount)
    return total


def packed(pods: Iterable[Amounts], free: Amounts, room: Iterable[Amounts] = ()) -> int:
    """Return how many empty nodes it takes beside the `room` that there is.

    The largest pods come first, each goes where it fits first; a pod that finds room on a node may
    wait for nothing but the scheduler's next try. Source: filter_out_schedulable.go.
    """
    fitting = [pod for pod in pods if _fits(pod, free)]
    fitting.sort(key=lambda pod: max(_shares(pod, free)), reverse=True)
    nodes = [dict(each) for each in room]
    existing = len(nodes)
    for pod in fitting:
        left = next((node for node in nodes if _fits(pod, node)), None)
        if left is None:
            left = dict(free)
            nodes.append(left)
        for name, amount in pod.items():
            left[name] -= amount
    return len(nodes) - existing


def _requests(container: Json) -> dict[str, int]:
    found = (container.get("resources") or {}).get("requests") or {}
    return {name: parse_quantity(amount).nano for name, amount in found.items()}


def _fits(pod: Amounts, free: Amounts) -> bool:
    return all(amount <= free.get(name, 0) for name, amount in pod.items())


def _shares(pod: Amounts, free: Amounts) -> list[float]:
    return [amount / free[name] for name, amount in pod.items() if free.get(name)]
