"""Which DaemonSets will put a pod on a fleet node: the scheduler's predicates that count.

A DaemonSet lands where its node selector and required node affinity match and where it tolerates
every taint that keeps pods away. Resources are not looked at: too few of them delay a pod and do
not keep it from being created.
Source: kubernetes/pkg/controller/daemon/daemon_controller.go, NodeShouldRunDaemonPod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import convert

from fleet.k8s.schema import read_kind, without_nulls
from fleet.k8s.selectors import NodeRequirement, Toleration, node_terms

Json = dict[str, Any]

FAKE_KEY = "fleet.emulator/fake"

EFFECTS_THAT_REPEL = frozenset({"NoSchedule", "NoExecute"})
# What the controller adds to every pod. Source: daemon/util, AddOrUpdateDaemonPodTolerations.
TOLERATED_BY_ALL = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
    )
)
NETWORK_UNAVAILABLE = "node.kubernetes.io/network-unavailable"


class Taint(NamedTuple):
    """Source: core/v1 Taint."""

    key: str
    value: str
    effect: str


FAKE_TAINT = Taint(FAKE_KEY, "true", "NoSchedule")
EXCLUDE_FROM_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """Nodes of one profile: what decides which DaemonSets land on them."""

    count: int
    labels: Mapping[str, str] = field(
        default_factory=lambda: {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    )
    taints: Sequence[Taint] = (FAKE_TAINT,)


class Landing(NamedTuple):
    """A DaemonSet that will put pods on fleet nodes."""

    namespace: str
    name: str
    pods: int
    knows_fleet: bool  # tolerates fleet's key by name; its pods may become Ready


def landings(daemon_sets: Iterable[Json], shapes: Sequence[NodeShape]) -> list[Landing]:
    """Return the DaemonSets that land on any of the nodes, the most pods first."""
    found = []
    for daemon_set in daemon_sets:
        template = daemon_set["spec"]["template"]["spec"]
        pods = sum(shape.count for shape in shapes if lands_on(template, shape))
        if pods:
            metadata = daemon_set["metadata"]
            by_name = any(t.get("key") == FAKE_KEY for t in template.get("tolerations") or ())
            found.append(Landing(metadata["namespace"], metadata["name"], pods, by_name))
    return sorted(found, key=lambda landing: (-landing.pods, landing.namespace, landing.name))


def lands_on(template: Json, shape: NodeShape) -> bool:
    """Return whether a pod of this template is created on nodes of this shape."""
    if template.get("nodeName"):
        return False
    selector = template.get("nodeSelector") or {}
    if any(shape.labels.get(key) != str(value) for key, value in selector.items()):
        return False
    affinity = (template.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    # Terms are alternatives; the requirements of a term must all hold. An empty term matches none.
    if required and not any(_term_matches(term, shape) for term in node_terms(required)):
        return False
    return _tolerates_all(template, shape.taints)


def _term_matches(term: tuple[NodeRequirement, ...], shape: NodeShape) -> bool:
    # Fields are names of nodes that exist; In cannot mean ours, NotIn always can.
    if not term or any(each.is_field and each.operator == "In" for each in term):
        return False
    return all(each.is_field or each.matches("", shape.labels) for each in term)


def _tolerates_all(template: Json, taints: Iterable[Taint]) -> bool:
    tolerations = template.get("tolerations") or ()
    is_host_network = bool(template.get("hostNetwork"))
    for taint in taints:
        if taint.effect not in EFFECTS_THAT_REPEL or taint.key in TOLERATED_BY_ALL:
            continue
        if taint.key == NETWORK_UNAVAILABLE and is_host_network:
            continue
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return False
    return True


def tolerates(toleration: Json, taint: Taint) -> bool:
    """Return whether one toleration, as JSON has it, covers one taint."""
    found = convert(without_nulls(toleration), Toleration, dec_hook=read_kind)
    return found.tolerates(taint.key, taint.value, taint.effect)
