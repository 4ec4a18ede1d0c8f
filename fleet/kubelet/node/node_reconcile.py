"""What a kubelet finds otherwise on its Node: as it starts on one that exists, and later.

    GET --> the patch of registration: default labels, an annotation, extended resources, huge pages
        --> the first status patch: capacity, allocatable, nodeInfo, addresses, ports, features
    an edit that its watch shows --> the next status patch: the same, and the labels of os and arch

Taints, other labels and what others wrote stay as they are. Of a Node that others make (`--manage`)
all that it says stays: a label, an address or a version that it lacks is added at most.
Source: pkg/kubelet/kubelet_node_status.go, tryRegisterWithAPIServer, updateNode;
pkg/kubelet/nodestatus/setters.go; component-helpers/node/util/status.go.
Differs: there is no checkpoint of the device manager, so extended resources begin with 0 at each
start; in light everything goes in one patch, and nobody looks later.
"""

from collections.abc import Mapping
from typing import NamedTuple

import orjson

from fleet.k8s.admission import is_extended
from fleet.k8s.effects import NodeId, NodeStatusPatch
from fleet.k8s.holds import MACHINE_IDS
from fleet.k8s.pods import NodeDetails, NodeView
from fleet.k8s.schema import part_of
from fleet.k8s.well_known import MANAGED_ANNOTATION, PROVIDED_ADDRESS, USER_NAMESPACE
from fleet.kubelet.environment import Environment
from fleet.profile.node_model import (
    NodeIdentity,
    NodeModel,
    boot_id,
    daemon_endpoints,
    machine_identifiers,
)
from fleet.quantity import parse_quantity

ATTACH_ANNOTATION = "volumes.kubernetes.io/controller-managed-attach-detach"
OWN_ANNOTATIONS = (ATTACH_ANNOTATION, MANAGED_ANNOTATION, PROVIDED_ADDRESS)
DEFAULT_LABELS = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
)
"""Source: updateDefaultLabels."""
REQUIRED_LABELS = ("kubernetes.io/os", "kubernetes.io/arch")
HUGE_PAGES = "hugepages-"
WHOLE = ("daemonEndpoints", "runtimeHandlers", "features", "declaredFeatures")
"""Members of the status that are sent as a whole."""
AMOUNTS = ("capacity", "allocatable")
VERSION = "containerRuntimeVersion"
UNKNOWN = "://Unknown"


class Differences(NamedTuple):
    """What a Node lacks. `status` are members as a strategic merge patch has them."""

    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    status: dict[str, object]

    def patch(self) -> NodeStatusPatch | None:
        """Return the patch that makes it good; None if it lacks nothing."""
        if not any(self):
            return None
        members = orjson.dumps(self.status)[1:-1]
        return NodeStatusPatch((), self.labels, self.annotations, members)


def reconcile(
    node: NodeId, view: NodeView, address: str, env: Environment
) -> NodeStatusPatch | None:
    """Return what registration patches, None for nothing; keep the rest in `env.outdated`.

    `address` is the node's own.
    """
    model, facts = env.model, _facts(node, view.name, address, env)
    assert view.details is not None, view
    if not env.registers:
        facts = _as_found(facts, view, view.details)
    first = _registration(view, view.details, facts, model)
    rest = Differences((), (), _setters(view.details, facts, model, first.status))
    if not env.fidelity.registers_in_steps:
        rest = first._replace(status=_joined(rest.status, first.status))
        first = Differences((), (), {})
    env.outdated.pop(node, None)
    later = rest.patch()
    if later is not None:
        env.outdated[node] = later
    return first.patch()


def put_right(
    node: NodeId, view: NodeView, address: str, env: Environment
) -> NodeStatusPatch | None:
    """Return what makes good the edits of others, None if there are none.

    Source: updateNode; of the labels two are required, the others are registration's.
    """
    assert view.report is not None, view
    facts = _facts(node, view.name, address, env)
    labels = tuple(
        (label, facts.labels[label])
        for label in REQUIRED_LABELS
        if facts.labels[label] != view.labels.get(label)
    )
    status = _setters(NodeDetails({}, view.report.status()), facts, env.model, {})
    return Differences(labels, (), status).patch()


def _facts(node: NodeId, name: str, address: str, env: Environment) -> NodeIdentity:
    facts = env.model.identity(env.index_of(name, address), name)
    info = facts.node_info
    if node in env.boots:
        info = info | {"bootID": boot_id(name, env.boots[node])}
    if node in env.silent:
        info = info | {VERSION: runtime_version(node, env)}
    return facts._replace(node_info=info)


def runtime_version(node: NodeId, env: Environment) -> str:
    """Return what a Node says of its runtime. Source: setters.go, VersionInfo."""
    version = env.model.node_info[VERSION]
    return version.partition("://")[0] + UNKNOWN if node in env.silent else version


def follow_runtime(node: NodeId, env: Environment, *, answers: bool) -> None:
    """Have the next status say the version of a runtime that answers again, or no more."""
    if answers is (node not in env.silent):
        return
    env.silent.symmetric_difference_update((node,))
    info = orjson.dumps({VERSION: runtime_version(node, env)})
    patch = NodeStatusPatch(status_json=b'"nodeInfo":' + info)
    pending = env.outdated.pop(node, None)
    if pending is None:
        env.outdated[node] = patch
    elif UNKNOWN.encode() not in pending.status_json:  # else it has not been said yet
        env.outdated[node] = both(patch, pending)


def _as_found(facts: NodeIdentity, view: NodeView, details: NodeDetails) -> NodeIdentity:
    """Return what a node of others is like: as its Node says, the profile where that is silent.

    Source: cmd/kubelet/app/options, --register-node=false: labels are the creator's alone. KWOK's
    stage node-initialize fills in nodeInfo and addresses alike.
    """
    shown = {key: value for key, value in _strings(details, "nodeInfo").items() if value}
    listed = details.status.get("addresses")
    addresses = tuple(
        (each["type"], each["address"])
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict)
    )
    return facts._replace(
        labels=view.labels,
        annotations=facts.annotations | {MANAGED_ANNOTATION: "true"},
        node_info=facts.node_info | shown,
        addresses=addresses or facts.addresses,
    )


def rebooted(node: NodeId, view: NodeView, env: Environment) -> str:
    """Return the bootID of a machine of which the Node has an older one, else "".

    Source: setters.go, MachineInfo, which says it once.
    """
    assert view.details is not None, view
    shown = _strings(view.details, "nodeInfo").get("bootID", "")
    found = boot_id(view.name, env.boots.get(node, 0))
    return found if node in env.boots and shown not in {"", found} else ""


def machine_ids(node: NodeId, name: str, env: Environment) -> set[str]:
    """Return all ids that a simulated machine has had since fleet has it."""
    boots = (boot_id(name, number) for number in range(env.boots.get(node, 0) + 1))
    given = (env.model.node_info.get(member, "") for member in MACHINE_IDS)
    return {*machine_identifiers(name), *boots, *given}


def node_info(view: NodeView) -> dict[str, str]:
    """Return the member `nodeInfo` of what a Node says."""
    if view.details is not None:
        return _strings(view.details, "nodeInfo")
    return _strings(NodeDetails({}, view.report.status()), "nodeInfo") if view.report else {}


def both(patch: NodeStatusPatch, outdated: NodeStatusPatch) -> NodeStatusPatch:
    """Return a status patch that makes good what `reconcile` kept, too."""
    status = _joined(*(orjson.loads(b"{%b}" % each.status_json) for each in (patch, outdated)))
    return patch._replace(
        labels=outdated.labels,
        annotations=outdated.annotations,
        status_json=orjson.dumps(status)[1:-1],
    )


def _registration(
    view: NodeView, details: NodeDetails, facts: NodeIdentity, model: NodeModel
) -> Differences:
    """Source: tryRegisterWithAPIServer and the four functions that it calls."""
    labels = tuple(
        (label, facts.labels[label])
        for label in DEFAULT_LABELS
        if facts.labels.get(label) and facts.labels[label] != view.labels.get(label)
    )
    annotations = tuple(
        (key, facts.annotations[key])
        for key in OWN_ANNOTATIONS
        if key in facts.annotations and facts.annotations[key] != details.annotations.get(key)
    )
    status: dict[str, object] = {}
    offered = {device.resource for device in model.devices}  # their plugins say how much
    extended = {
        name
        for name in _strings(details, "capacity")
        if is_extended(name) and name not in model.capacity and name not in offered
    }
    for member, ours in _amounts(model):
        shown = _strings(details, member)
        changed: dict[str, str | None] = {
            name: amount
            for name, amount in ours.items()
            if (not shown or name.startswith(HUGE_PAGES)) and _differs(shown.get(name), amount)
        }
        for name in shown:
            if name not in ours and name.startswith(HUGE_PAGES):
                changed[name] = None
        changed |= dict.fromkeys((each for each in extended if shown.get(each) != "0"), "0")
        if changed:
            status[member] = changed
    return Differences(labels, annotations, status)


def _setters(
    details: NodeDetails, facts: NodeIdentity, model: NodeModel, patched: Mapping[str, object]
) -> dict[str, object]:
    """Return what setNodeStatus changes once registration has `patched` the status."""
    status: dict[str, object] = {}
    for member, ours in _amounts(model):
        shown, done = _strings(details, member), part_of(patched, member)
        changed = {
            name: amount
            for name, amount in ours.items()
            if name not in done and _differs(shown.get(name), amount)
        }
        if changed:
            status[member] = changed
    shown = _strings(details, "nodeInfo")
    info: dict[str, object] = {
        key: value for key, value in facts.node_info.items() if shown.get(key, "") != value
    }
    if model.says_user_namespace and shown.get(USER_NAMESPACE) != str(False):
        info[USER_NAMESPACE] = False
    if info:
        status["nodeInfo"] = info
    ours_whole = {**model.status_json(), "daemonEndpoints": daemon_endpoints(facts.kubelet_port)}
    for member in WHOLE:
        if details.status.get(member) != ours_whole.get(member):
            status[member] = ours_whole.get(member)
    addresses = [{"address": address, "type": kind} for kind, address in facts.addresses]
    listed = details.status.get("addresses")
    if listed != addresses and not (listed and model.cloud_is_external):
        # The API merges them by type, so that a list with two InternalIPs could not be changed.
        status["addresses"] = [*addresses, *([{"$patch": "replace"}] if listed else [])]
    return status


def _amounts(model: NodeModel) -> tuple[tuple[str, dict[str, str]], ...]:
    return tuple(zip(AMOUNTS, (model.capacity, model.allocatable), strict=True))


def _strings(details: NodeDetails, member: str) -> dict[str, str]:
    """Return a member of the status that is a map of strings."""
    shown = part_of(details.status, member)
    return {str(key): str(value) for key, value in shown.items() if not isinstance(value, dict)}


def _differs(shown: str | None, ours: str) -> bool:
    """Compare two quantities; what is shown may be none, for another client wrote it."""
    if shown is None or shown == ours:
        return shown is None
    try:
        return parse_quantity(shown).nano != parse_quantity(ours).nano
    except ValueError:
        return True


def _joined(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Join members of a status; of maps that both have, the entries, those of `other` last."""
    joined = {**one, **other}
    for member in AMOUNTS:
        mine, theirs = one.get(member), other.get(member)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            joined[member] = {**mine, **theirs}
    return joined
