"""What a kubelet writes of its Node, rendered: all of it, and patches of the status."""

from typing import Any

import orjson

from fleet.k8s.effects import NodeObject, NodeStatusPatch
from fleet.k8s.pods import NodeCondition
from fleet.k8s.times import rfc3339
from fleet.profile.controller_preset import TTL_ANNOTATION
from fleet.profile.node_model import NodeIdentity, daemon_endpoints
from fleet.wire.api.callers import Caller

CONDITION = (
    b'{"type":"%b","status":"%b","lastHeartbeatTime":"%b","lastTransitionTime":"%b",'
    b'"reason":"%b","message":%b}'
)


def condition_json(condition: NodeCondition) -> bytes:
    """Render a condition of a new Node."""
    return CONDITION % (
        condition.type.encode(),
        condition.status.encode(),
        rfc3339(condition.heartbeat_s),
        rfc3339(condition.transition_s),
        condition.reason.encode(),
        orjson.dumps(condition.message),
    )


def node_status_patch(patch: NodeStatusPatch) -> bytes:
    """Render a two-way strategic-merge patch of a Node; `{}` when nothing differs.

    Source: component-helpers/node/util/status.go, PatchNodeStatus.
    """
    members = []
    metadata = []
    if patch.annotations:
        metadata.append(b'"annotations":' + orjson.dumps(dict(patch.annotations)))
    if patch.labels:
        metadata.append(b'"labels":' + orjson.dumps(dict(patch.labels)))
    if patch.version:
        metadata.append(b'"resourceVersion":' + orjson.dumps(patch.version))
    if metadata:
        members.append(b'"metadata":{%b}' % b",".join(metadata))
    status = []
    changed = [
        _condition_patch(old, new) for old, new in patch.conditions if old is None or old != new
    ]
    if changed:
        order = b",".join(b'{"type":"%b"}' % new.type.encode() for _, new in patch.conditions)
        status.append(b'"$setElementOrder/conditions":[%b]' % order)
        status.append(b'"conditions":[%b]' % b",".join(changed))
    if patch.status_json:
        status.append(patch.status_json)
    if patch.volumes_in_use is not None:
        status.append(b'"volumesInUse":' + orjson.dumps(patch.volumes_in_use or None))
    if status:
        members.append(b'"status":{%b}' % b",".join(status))
    return b"{%b}" % b",".join(members)


def _condition_patch(old: NodeCondition | None, new: NodeCondition) -> bytes:
    """Render the fields that differ, and the merge key; keys sorted as Go sorts a map."""
    fields = []
    if old is None or old.heartbeat_s != new.heartbeat_s:
        fields.append(b'"lastHeartbeatTime":"%b"' % rfc3339(new.heartbeat_s))
    if old is None or old.transition_s != new.transition_s:
        fields.append(b'"lastTransitionTime":"%b"' % rfc3339(new.transition_s))
    if old is None or old.message != new.message:
        fields.append(b'"message":' + orjson.dumps(new.message))
    if old is None or old.reason != new.reason:
        fields.append(b'"reason":"%b"' % new.reason.encode())
    if old is None or old.status != new.status:
        fields.append(b'"status":"%b"' % new.status.encode())
    fields.append(b'"type":"%b"' % new.type.encode())
    return b"{%b}" % b",".join(fields)


def node_json(caller: Caller, facts: NodeIdentity, made: NodeObject) -> bytes:
    """Render the Node that registers. Source: kubelet_node_status.go, initialNode."""
    template = caller.template
    model, preset = template.model, template.preset
    taints = (*model.taints, *template.extra_taints)
    spec: dict[str, object] = {}
    if facts.provider_id:
        spec["providerID"] = facts.provider_id
    if taints:
        spec["taints"] = [
            {"key": key, "value": value, "effect": effect}
            if value
            else {"key": key, "effect": effect}
            for key, value, effect in taints
        ]
    labels = {**facts.labels, **template.extra_labels}
    if template.withheld:
        labels = {key: value for key, value in labels.items() if key not in template.withheld}
    metadata: dict[str, Any] = {
        "name": facts.name,
        "labels": labels,
        "annotations": {**facts.annotations, **template.extra_annotations},
    }
    if preset is not None:
        metadata["annotations"].setdefault(TTL_ANNOTATION, preset.ttl(caller.index))
        if cidrs := preset.pod_cidrs(caller.index):
            spec |= {"podCIDR": cidrs[0], "podCIDRs": cidrs}
    info: dict[str, object] = {**facts.node_info}
    if model.swap_bytes:
        info["swap"] = {"capacity": model.swap_bytes}
    addresses = [{"type": kind, "address": address} for kind, address in facts.addresses]
    return b'{"kind":"Node","apiVersion":"v1","metadata":%b,"spec":%b,"status":{%b}}' % (
        orjson.dumps(metadata),
        orjson.dumps(spec),
        b",".join(
            (
                template.status,
                b'"conditions":[%b]' % b",".join(map(condition_json, made.conditions)),
                b'"addresses":' + orjson.dumps(addresses),
                b'"daemonEndpoints":' + orjson.dumps(daemon_endpoints(facts.kubelet_port)),
                b'"nodeInfo":' + orjson.dumps(info),
                *((made.images_json,) if made.images_json else ()),
            )
        ),
    )
