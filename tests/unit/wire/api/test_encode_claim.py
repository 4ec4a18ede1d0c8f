"""The patch of a claim's status is the two-way patch that a kubelet computes."""

import orjson
import pytest
from world.strategic_merge import merge

from fleet.k8s.effects import ApiCall, NodeId, Op
from fleet.k8s.volumes import ClaimStatusPatch, ClaimView, ResizeStatus
from fleet.wire.api.decode_json import decode_claim
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.http2.messages import ContentType

PENDING = {"type": "FileSystemResizePending", "status": "True"}
OTHER = {"type": "ModifyingVolume", "status": "True"}


def claim(
    *conditions: dict[str, str], resize_status: str = "NodeResizePending"
) -> dict[str, object]:
    status: dict[str, object] = {
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "conditions": list(conditions),
    }
    if resize_status:
        status["allocatedResourceStatuses"] = {"storage": resize_status}
    return {"metadata": {"name": "c", "uid": "u", "resourceVersion": "7"}, "status": status}


def patched(old: ClaimView, status: ResizeStatus, capacity: str = "", error: str = "") -> object:
    patch = ClaimStatusPatch("default", "c", "data", old, status, capacity, error, 1_800_000_000)
    call = ApiCall(NodeId(0), Op.PATCH_CLAIM_STATUS, "uid", patch)
    request = OPERATIONS[call.op].build(call, None)  # type: ignore[arg-type]
    assert request.path == b"/api/v1/namespaces/default/persistentvolumeclaims/c/status"
    assert request.content_type is ContentType.STRATEGIC_MERGE_PATCH
    return orjson.loads(request.body)


def test_an_expansion_begins_at_the_version_that_was_read() -> None:
    body = patched(decode_claim(claim(PENDING)), ResizeStatus.NODE_IN_PROGRESS)
    status = {"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}
    assert body == {"metadata": {"resourceVersion": "7"}, "status": status}
    again = decode_claim(claim(PENDING, resize_status="NodeResizeInProgress"))
    assert patched(again, ResizeStatus.NODE_IN_PROGRESS) == {"metadata": {"resourceVersion": "7"}}


def test_the_end_of_an_expansion_says_nothing_of_conditions_where_there_are_none() -> None:
    body = patched(decode_claim(claim()), ResizeStatus.NONE, "2Gi")
    status = {"allocatedResourceStatuses": None, "capacity": {"storage": "2Gi"}}
    assert body == {"metadata": {"resourceVersion": "7"}, "status": status}


@pytest.mark.parametrize("others", [(), (OTHER,)])
def test_the_end_of_an_expansion_takes_its_conditions_along(
    others: tuple[dict[str, str], ...],
) -> None:
    old = claim(PENDING, *others, {"type": "Resizing", "status": "True"})
    new = merge(old, patched(decode_claim(old), ResizeStatus.NONE, "2Gi"))
    assert isinstance(new, dict)
    status = new["status"]
    assert status["capacity"] == {"storage": "2Gi"}
    assert "allocatedResourceStatuses" not in status
    assert tuple(status.get("conditions") or ()) == others


def test_an_error_is_a_condition_and_no_matter_of_versions() -> None:
    old = decode_claim(claim(PENDING))
    body = patched(old, ResizeStatus.NODE_INFEASIBLE, error="Expander.NodeExpand failed")
    assert body == {
        "status": {
            "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
            "conditions": [
                {
                    "type": "NodeResizeError",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": "2027-01-15T08:00:00Z",
                    "message": "failed to expand pvc with Expander.NodeExpand failed",
                }
            ],
            "$setElementOrder/conditions": [
                {"type": "FileSystemResizePending"},
                {"type": "NodeResizeError"},
            ],
        }
    }
    known = decode_claim(claim(PENDING, {"type": "NodeResizeError", "status": "True"}))
    assert patched(known, ResizeStatus.NODE_PENDING, error="again") == {}  # as upstream sends it
