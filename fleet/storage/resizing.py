"""How far a claim's volume has grown: what an external resizer reads and writes of its status.

    "" --asked for more--> ControllerResizeInProgress --+--> "" and the new capacity
                                                        +--> NodeResizePending, for the kubelet
    NodeResizeInfeasible, from the kubelet --> NodeResizePending: the node tries again

Source: external-resizer/pkg/controller/expand_and_recover.go, pkg/util/util.go; the same is in
kubernetes/pkg/volume/util/operationexecutor/operation_generator.go, expandAndRecoverFunction.
Differs: a claim that asks for less than a volume was to have while that is pending is left alone.
"""

from fleet.k8s.volumes import RESIZE_CONDITIONS, ResizeStatus
from fleet.quantity import parse_quantity
from fleet.storage.csi_objects import Json

PENDING_TEXT = (
    "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
)


def resize_status(claim: Json) -> str:
    """Return how far the resize of a claim is, "" if there is none."""
    found = claim.get("status", {}).get("allocatedResourceStatuses") or {}
    return str(found.get("storage", ""))


def is_infeasible_on_node(claim: Json) -> bool:
    """Return whether a kubelet gave up."""
    return resize_status(claim) == ResizeStatus.NODE_INFEASIBLE


def wants_resize(claim: Json) -> bool:
    """Return whether there is something to do; what waits for a kubelet is its business."""
    status = claim.get("status", {})
    if status.get("phase") != "Bound" or resize_status(claim) in (
        ResizeStatus.NODE_PENDING,
        ResizeStatus.NODE_IN_PROGRESS,
    ):
        return False
    if is_infeasible_on_node(claim):
        return True
    wanted = claim["spec"]["resources"]["requests"]["storage"]
    actual = status.get("capacity", {}).get("storage", "0")
    return parse_quantity(wanted).nano > parse_quantity(actual).nano


def in_progress(claim: Json, size: str, stamp: str) -> Json:
    """Return what changes when the driver is asked. Source: MarkControllerReisizeInProgress."""
    resizing = {"type": "Resizing", "status": "True", "lastTransitionTime": stamp}
    return {
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": {"storage": ResizeStatus.CONTROLLER_IN_PROGRESS.value},
        "conditions": [*_others(claim), resizing],
    }


def pending_on_node(claim: Json, stamp: str = "") -> Json:
    """Return what changes when the node is to go on. Source: markForPendingNodeExpansion."""
    status: Json = {"allocatedResourceStatuses": {"storage": ResizeStatus.NODE_PENDING.value}}
    conditions = claim.get("status", {}).get("conditions") or []
    if stamp and not any(each["type"] == "FileSystemResizePending" for each in conditions):
        pending = {"type": "FileSystemResizePending", "status": "True", "message": PENDING_TEXT}
        pending["lastTransitionTime"] = stamp
        status["conditions"] = [*conditions, pending]
    return status


def grown(claim: Json, size: str) -> Json:
    """Return what changes when that is all. Source: MarkResizeFinished."""
    return {
        "capacity": {"storage": size},
        "allocatedResources": {"storage": size},
        "allocatedResourceStatuses": None,
        "conditions": _others(claim) or None,
    }


def _others(claim: Json) -> list[Json]:
    """Return the conditions that are about something else. Source: MergeResizeConditionOnPVC."""
    found = claim.get("status", {}).get("conditions") or ()
    return [each for each in found if each["type"] not in RESIZE_CONDITIONS]
