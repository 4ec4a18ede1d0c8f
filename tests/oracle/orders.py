"""The order of requests about different objects, where a kubelet's source decides it.

Requests about one object are compared in their order. Of two requests about different objects the
order is chance, unless one goroutine sends both, or the second follows from what the first one
brought. Each row names such a pair. The two nodes are compared: a pair that comes the other way
round on one of them only is a difference.

Events have a goroutine of their own that sends one after the other, so that an Event may come later
than it was recorded, by `event_lag_s` of differences.md. Statuses have one as well.

The order is not decided, and not compared, between
- a pod's first status and its first token: the populator of volumes reads the pods each 100 ms,
  whether their worker has begun or not (desired_state_of_world_populator.go, populatorLoop);
- Events about different pods, and Killing of the containers of one pod: each has a goroutine
  (pod_workers.go; kuberuntime_container.go, killContainersWithSyncResult);
- a static pod and its mirror, which comes and goes by itself (kubelet.go, tryReconcileMirrorPods);
- renewals of the Lease, reports of the Node's status and all else, which go by clocks of their own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from oracle.exchange import NODE_SCOPE, Exchange
from oracle.identities import owner_of_request
from oracle.normalisation import Leaf
from oracle.oracle_limits import LIMITS

[EVENT_LAG_S] = LIMITS["event_lag_s"]
WHO = ("real", "fleet")
_STATUS = re.compile(
    r"status\.\w*ontainerStatuses\[name=([^\]]+)\]\.(restartCount|state\.(\w+)\.\w+)"
)
_FIELD = re.compile(r"\{([^}]+)\}")
_STARTING = ("Pulling", "Pulled", "Created", "Started", "Failed")


@dataclass(frozen=True, slots=True)
class Order:
    """One pair: the moments that `first` and `then` name, with what they are about left open.

    Both are about the same, or only the first one is about something: each token comes first.
    """

    first: str
    then: str
    lag_s: float
    source: str

    def pairs(self, moments: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Return the pairs of moments that it is about."""
        names = {*moments}
        for name in sorted(names):
            what, _, about = name.partition(" ")
            if what == self.first:
                then = f"{self.then} {about}".strip()
                if then not in names:
                    then = self.then
                if then in names:
                    yield name, then


POD_ORDERS = (
    Order(
        "first-status",
        "first-start",
        EVENT_LAG_S,
        "pkg/kubelet/kubelet.go, SyncPod: SetPodStatus comes before containerRuntime.SyncPod",
    ),
    Order(
        "token",
        "first-start",
        0.0,
        "pkg/kubelet/kubelet.go, SyncPod: WaitForAttachAndMount returns before containers start",
    ),
    Order(
        "started",
        "runs",
        EVENT_LAG_S,
        "pkg/kubelet/kuberuntime/kuberuntime_container.go, startContainer: the status comes with a "
        "later sync",
    ),
    Order(
        "started",
        "ended",
        EVENT_LAG_S,
        "pkg/kubelet/kuberuntime/kuberuntime_container.go, startContainer",
    ),
    Order(
        "killing",
        "ended",
        EVENT_LAG_S,
        "pkg/kubelet/kuberuntime/kuberuntime_container.go, killContainer: it is recorded first",
    ),
    Order(
        "killing",
        "restarted",
        EVENT_LAG_S,
        "pkg/kubelet/kuberuntime/kuberuntime_manager.go, SyncPod: it kills, then starts",
    ),
    Order(
        "any-killing",
        "delete",
        EVENT_LAG_S,
        "pkg/kubelet/kubelet.go, SyncTerminatingPod; status/status_manager.go, canBeDeleted",
    ),
    Order(
        "back-off",
        "waits",
        EVENT_LAG_S,
        "pkg/kubelet/kuberuntime/kuberuntime_manager.go, doBackOff; kubelet.go, "
        "reasonCache.Update: the next sync reports it",
    ),
    Order(
        "told",
        "failed",
        EVENT_LAG_S,
        "pkg/kubelet/kubelet.go, rejectPod; eviction/eviction_manager.go, evictPod; "
        "preemption/preemption.go, evictPodsToFreeRequests",
    ),
)
SCENE_ORDERS = (
    Order(
        "watch-certificates",
        "any-token",
        0.0,
        "pkg/kubelet/kubelet.go, SyncPod: RegisterPod comes before WaitForAttachAndMount; token "
        "and kube-root-ca.crt are of one volume",
    ),
)
NODE_ORDERS = (
    Order(
        "node",
        "lease",
        0.0,
        "component-helpers/apimachinery/lease/controller.go, ensureLease: without its owner it is "
        "not created",
    ),
    Order("node", "csinode", 0.0, "pkg/volume/csi/nodeinfomanager/nodeinfomanager.go: its owner"),
    Order(
        "node",
        "report",
        0.0,
        "pkg/kubelet/kubelet_node_status.go, syncNodeStatus: registerWithAPIServer comes first",
    ),
)


def late(real: Sequence[Exchange], fleet: Sequence[Exchange], scenes: Iterable[str]) -> list[str]:
    """Return a line for each pair of which an Event or a status came late, within `event_lag_s`."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for scene in scenes:
        for side, some in enumerate((real, fleet)):
            groups = _by_pod([each for each in some if each.scene == scene])
            for moments in map(pod_moments, groups.values()):
                for order in POD_ORDERS:
                    lags_s = found.setdefault(f"{order.first} before {order.then}", ([], []))[side]
                    lags_s += [
                        moments[first] - moments[then] for first, then in order.pairs(moments)
                    ]
    return [
        f"order: {name}: late by real {_told(real_s)}, by fleet {_told(fleet_s)}"
        for name, (real_s, fleet_s) in found.items()
        if max((*real_s, *fleet_s), default=0) > 0
    ]


def _told(lags_s: Sequence[float]) -> str:
    late_s = [each for each in lags_s if each > 0]
    return f"{len(late_s)} of {len(lags_s)} (most {max(late_s, default=0):.2f} s)"


def misordered(scene: str, real: Sequence[Exchange], fleet: Sequence[Exchange]) -> Iterator[str]:
    """Return a line for each pair that comes the other way round on one of the nodes."""
    whole = NODE_ORDERS if scene == NODE_SCOPE else SCENE_ORDERS
    yield from _misordered("", whole, *(scene_moments(some) for some in (real, fleet)))
    groups = [_by_pod(some) for some in (real, fleet)]
    for pod in groups[0]:
        if pod in groups[1]:
            moments = [pod_moments(some[pod]) for some in groups]
            yield from _misordered(f" of {pod}", POD_ORDERS, *moments)


def _misordered(
    about: str, orders: Iterable[Order], real: dict[str, float], fleet: dict[str, float]
) -> Iterator[str]:
    for order in orders:
        for first, then in order.pairs(real.keys() & fleet.keys()):
            is_kept = [some[first] <= some[then] + order.lag_s for some in (real, fleet)]
            if is_kept[0] is not is_kept[1]:
                yield f"order{about}: {first} before {then}: only {WHO[is_kept[0]]} differs"


def _by_pod(exchanges: Sequence[Exchange]) -> dict[str, list[Exchange]]:
    found: dict[str, list[Exchange]] = defaultdict(list)
    for each in exchanges:
        owner = owner_of_request(each)
        if " " not in owner.name and each.scene != NODE_SCOPE:
            found[owner.name].append(each)
    return found


def scene_moments(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Return when what concerns no pod by itself first came."""
    names = {
        ("create", "serviceaccounts/token"): "any-token",
        ("create", "nodes"): "node",
        ("create", "leases"): "lease",
        ("create", "csinodes"): "csinode",
        ("patch", "nodes/status"): "report",
    }
    found: dict[str, float] = {}
    for each in exchanges:
        name = names.get((each.verb, each.resource))
        if is_watch_of_certificates(each):
            name = "watch-certificates"
        if name is not None:
            found.setdefault(name, each.at_s)
    return found


def is_watch_of_certificates(each: Exchange) -> bool:
    """Whether it is the watch of what each pod with a token needs: the API server's certificate."""
    return each.verb == "watch" and "kube-root-ca.crt" in each.stream


def pod_moments(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Return when each thing about a pod first came: its requests, Events and statuses."""
    found: dict[str, float] = {}
    starts: dict[str, int] = defaultdict(int)
    for each in exchanges:
        for name in _moments(each, starts):
            found.setdefault(name, each.at_s)
    return found


def _moments(each: Exchange, starts: dict[str, int]) -> Iterator[str]:
    if each.resource == "events":
        yield from _of_event(each, starts)
    elif each.resource == "serviceaccounts/token":
        yield f"token {each.body.get('spec.audiences[0]') or ''}".strip()
    elif each.verb == "delete" and not each.is_of_mirror:
        yield "delete"
    elif each.state:
        if not each.is_of_mirror:
            yield "first-status"
        yield from _of_status(each)


def _of_event(each: Exchange, starts: dict[str, int]) -> Iterator[str]:
    reason = str(each.body.get("reason", ""))
    field = _FIELD.search(str(each.body.get("involvedObject.fieldPath", "")))
    if field is None:
        yield f"told {reason}"
        return
    container = field[1]
    if reason in _STARTING:
        yield "first-start"
    if reason == "Started":
        yield f"started {container} {starts[container]}"
        starts[container] += 1
    elif reason == "Killing":
        yield f"killing {container}"
        yield f"killing {container} {starts[container] - 1}"
        yield "any-killing"
    elif reason == "BackOff":
        yield f"back-off {container}"


def _of_status(each: Exchange) -> Iterator[str]:
    counts: dict[str, Leaf] = {}
    states: dict[str, str] = {}
    for path, value in each.state.items():
        if match := _STATUS.fullmatch(path):
            if match[2] == "restartCount":
                counts[match[1]] = value
            else:
                states.setdefault(match[1], match[3])
            if path.endswith("waiting.reason") and str(value).endswith("BackOff"):
                yield f"waits {match[1]}"
    for container, state in states.items():
        word = {"running": "runs", "terminated": "ended"}.get(state)
        if word is not None:
            yield f"{word} {container} {counts.get(container, 0)}"
        if counts.get(container):
            yield f"restarted {container}"
    if reason := each.state.get("status.reason"):
        yield f"failed {reason}"
