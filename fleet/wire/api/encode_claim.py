"""The patch of a claim's status by a kubelet that expands its volume.

Source: pkg/volume/util/resize_util.go, MarkNodeExpansionInProgress, MarkNodeExpansionInfeasible,
MarkNodeExpansionFailedCondition, MarkNodeExpansionFinishedWithRecovery, createPVCPatch.
"""

import orjson

from fleet.k8s.effects import ApiCall
from fleet.k8s.strategic_merge import Json, two_way_patch
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


def _two_way(patch: ClaimStatusPatch) -> Json:
    old: Json = {"conditions": [{"type": each} for each in patch.old.conditions]}
    new = {**old}
    for status, resize, capacity in (
        (old, patch.old.resize_status, patch.old.capacity),
        (new, patch.resize_status, patch.capacity or patch.old.capacity),
    ):
        if resize:
            status["allocatedResourceStatuses"] = {"storage": resize}
        status["capacity"] = {"storage": capacity}
    # Source: MergeResizeConditionOnPVC.
    if patch.capacity:
        kept = [each for each in old["conditions"] if each["type"] not in RESIZE_CONDITIONS]
        new["conditions"] = kept or None
    elif patch.error and NODE_RESIZE_ERROR not in patch.old.conditions:
        error = {
            "type": NODE_RESIZE_ERROR,
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": rfc3339(patch.now_s).decode(),
            "message": f"failed to expand pvc with {patch.error}",
        }
        new["conditions"] = [*old["conditions"], error]
    status = two_way_patch(old, new)
    whole: Json = {"status": status} if status else {}
    if not patch.error:
        whole["metadata"] = {"resourceVersion": patch.old.resource_version}
    return whole
