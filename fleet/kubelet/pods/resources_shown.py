"""What the status of a pod says of its resources as a whole, and of those of its containers.

    Pending: all that was asked for -> Running: CPU and memory as its cgroup has them -> ended

A kubelet reads them back from the pod's cgroup, and what that cannot tell stays as it was shown: a
limit that not every container has, and the request of memory, which a resize therefore leaves as
it was. Source: pkg/kubelet/kubelet_pods.go, convertToAPIPodLevelResourcesStatus.
Differs: a cgroup is there until the last status; a kubelet may have removed it by then.
"""

from functools import lru_cache
from typing import Any

import orjson

from fleet.k8s.pods import Pod, PodSpec, PodStatus
from fleet.kubelet.pod_worker import TERMINAL_PHASES
from fleet.quantity import parse_quantity

RESIZES_MAX = 256
SHARES_MIN_MILLI = 2
"""What cpu.shares of 2 are read as, which a container without a request has (MinShares)."""
QUOTA_MIN_MILLI = 10
"""A shorter quota than 1 ms of 100 there is not (MinMilliCPULimit)."""


def resources_shown(pod: Pod, in_cgroup: PodSpec, old: PodStatus) -> bytes:
    """Return the resources of a pod as JSON; `in_cgroup` is the spec that its cgroup is by."""
    phase, shown = pod.status.phase, old.resources_json
    asked = pod.spec.resources_json
    # A worker goes on with the pod as it was synced last: the end is not in it yet.
    has_run = phase == "Running" or (
        phase in TERMINAL_PHASES and shown and (shown != asked or asked == pod.spec.running_json)
    )
    if not has_run:  # the API's phase counts, not the one just made
        return asked
    if old.phase != "Running":
        return in_cgroup.ended_json
    if shown in {in_cgroup.running_json, in_cgroup.resources_json, b""}:
        return in_cgroup.running_json
    return _kept(in_cgroup.running_json, in_cgroup.ended_json, shown)


@lru_cache(maxsize=RESIZES_MAX)
def _kept(running: bytes, ended: bytes, shown: bytes) -> bytes:
    """Return the resources after a resize. Source: preserveOldResourcesValue."""
    new, cgroup, old = (_amounts(each) for each in (running, ended, shown))
    limits, requests = new["limits"], new["requests"]
    for name in limits.keys() - cgroup["limits"]:
        limits[name] = old["limits"].get(name)
    requests["memory"] = old["requests"].get("memory", requests.get("memory"))
    found = {
        kind: {name: amount for name, amount in amounts.items() if amount is not None}
        for kind, amounts in (("limits", limits), ("requests", requests))
    }
    told = {kind: amounts for kind, amounts in found.items() if amounts}
    return bytes(orjson.dumps(told, option=orjson.OPT_SORT_KEYS))


def _amounts(json: bytes) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = orjson.loads(json)
    return {"limits": {}, "requests": {}, **found}


@lru_cache(maxsize=RESIZES_MAX)
def container_resources_shown(allocated: bytes, actuated: bytes) -> bytes:
    """Return what is told of a running container that has not all it was given yet, as JSON.

    What it was given, but for what its cgroup can be asked: so a limit that it never had is told
    at once, and one that only changes when it is applied.
    Source: pkg/kubelet/kubelet_pods.go, convertContainerStatusResources;
    kuberuntime_container.go, toKubeContainerStatus.
    """
    if allocated == actuated:
        return allocated
    told, had = orjson.loads(allocated), _amounts(actuated)
    limits, requests = had["limits"], had["requests"]
    if "limits" in told:
        _tell_cpu(told["limits"], limits.get("cpu"), QUOTA_MIN_MILLI)
        if "memory" in limits:
            told["limits"]["memory"] = limits["memory"]
    if "requests" in told:
        shares = requests.get("cpu") or limits.get("cpu") or f"{SHARES_MIN_MILLI}m"
        _tell_cpu(told["requests"], shares, SHARES_MIN_MILLI)
        if "memory" in requests:
            told["requests"]["memory"] = requests["memory"]
    return bytes(orjson.dumps(told, option=orjson.OPT_SORT_KEYS))


def _tell_cpu(told: dict[str, Any], had: str | None, least_milli: int) -> None:
    """Tell of CPU what a container has; up to the least that there is, what it was given."""
    if had is None:
        return
    if parse_quantity(had).milli <= least_milli:
        if parse_quantity(told.get("cpu", "0")).milli <= least_milli:
            return
        had = f"{least_milli}m"
    told["cpu"] = had
