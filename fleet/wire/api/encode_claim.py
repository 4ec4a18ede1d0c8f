"""The patch of a claim's status by a kubelet that expands its volume.

Source: pkg/volume/util/resize_util.go, MarkNodeExpansionInProgress, MarkNodeExpansionInfeasible,
MarkNodeExpansionFailedCondition, MarkNodeExpansionFinishedWithRecovery, createPVCPatch.
"""

import orjson

from fleet.k8s.effects import ApiCall
from fleet.k8s.times import rfc3339
from fleet.k8s.volumes import NODE_RESIZE_ERROR, RESIZE_CONDITIONS, ClaimStatusPatch
from fleet.wire.api.callers import CALL_TIMEOUT_NS, Caller
from fleet.wire.http2.messages import ContentType, Request


def patch_claim_status(call: ApiCall, caller: Caller) -> Request:
    """Return the request of PATCH_CLAIM_STATUS."""
    del caller
    patch = call.payload
    assert isinstance(patch, ClaimStatusPatch), patch
    where = patch.namespace.encode(), patch.name.encode()
    path = b"/api/v1/namespaces/%b/persistentvolumeclaims/%b/status" % where
    body = orjson.dumps(_two_way(patch))
    return Request(
        b"PATCH", path, body, ContentType.STRATEGIC_MERGE_PATCH, timeout_ns=CALL_TIMEOUT_NS
    )


def _two_way(patch: ClaimStatusPatch) -> dict[str, object]:
    status: dict[str, object] = {}
    if patch.resize_status != patch.old.resize_status:
        status["allocatedResourceStatuses"] = (
            {"storage": patch.resize_status} if patch.resize_status else None
        )
    if patch.capacity and patch.capacity != patch.old.capacity:
        status["capacity"] = {"storage": patch.capacity}
    status |= _conditions(patch)
    whole: dict[str, object] = {"status": status} if status else {}
    if not patch.error:
        whole["metadata"] = {"resourceVersion": patch.old.resource_version}
    return whole


def _conditions(patch: ClaimStatusPatch) -> dict[str, object]:
    """Return what changes of the conditions. Source: MergeResizeConditionOnPVC."""
    old = patch.old.conditions
    if patch.capacity:
        kept = [each for each in old if each not in RESIZE_CONDITIONS]
        gone = [each for each in old if each in RESIZE_CONDITIONS]
        if not kept:
            return {"conditions": None} if gone else {}
        changes: list[dict[str, object]] = [{"$patch": "delete", "type": each} for each in gone]
    elif patch.error and NODE_RESIZE_ERROR not in old:
        kept = [*old, NODE_RESIZE_ERROR]
        condition: dict[str, object] = {"type": NODE_RESIZE_ERROR, "status": "True"}
        condition["lastProbeTime"] = None
        condition["lastTransitionTime"] = rfc3339(patch.now_s).decode()
        condition["message"] = f"failed to expand pvc with {patch.error}"
        changes = [condition]
    else:
        return {}
    order = [{"type": each} for each in kept]
    return {"conditions": changes, "$setElementOrder/conditions": order} if changes else {}
