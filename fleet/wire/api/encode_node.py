"""What a kubelet writes of its Node, rendered: all of it, and patches of the status."""

from typing import Any

import orjson

from fleet.k8s.effects import NodeObject, NodeStatusPatch
from fleet.k8s.schema import render, shown, shown_all
from fleet.k8s.strategic_merge import two_way_patch
from fleet.profile.controller_preset import TTL_ANNOTATION
from fleet.profile.node_model import NodeIdentity, daemon_endpoints
from fleet.wire.api.callers import Caller


def node_status_patch(patch: NodeStatusPatch) -> bytes:
    """Render a two-way strategic-merge patch of a Node; `{}` when nothing differs.

    Source: component-helpers/node/util/status.go, PatchNodeStatus.
    """
    status: dict[str, object] = orjson.loads(b"{%b}" % patch.status_json)
    if any(old != new for old, new in patch.conditions):
        status |= two_way_patch(
            {"conditions": [shown(old) for old, _ in patch.conditions if old is not None]},
            {"conditions": [shown(new) for _, new in patch.conditions]},
        )
    if patch.volumes_in_use is not None:
        status["volumesInUse"] = patch.volumes_in_use or None
    metadata = {
        "annotations": dict(patch.annotations),
        "labels": dict(patch.labels),
        "resourceVersion": patch.version,
    }
    metadata = {name: value for name, value in metadata.items() if value}
    members = (("metadata", metadata), ("status", status))
    return render({name: member for name, member in members if member})


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
                b'"conditions":' + orjson.dumps(shown_all(made.conditions)),
                b'"addresses":' + orjson.dumps(addresses),
                b'"daemonEndpoints":' + orjson.dumps(daemon_endpoints(facts.kubelet_port)),
                b'"nodeInfo":' + orjson.dumps(info),
                *((made.images_json,) if made.images_json else ()),
            )
        ),
    )
