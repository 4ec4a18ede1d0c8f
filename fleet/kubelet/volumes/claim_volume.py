"""One volume of one pod that stands behind a claim, and the steps that it takes."""

import enum

from fleet.k8s.effects import Reply
from fleet.k8s.pods import Pod, VolumeSpec
from fleet.k8s.volumes import ClaimView, VolumeView
from fleet.kubelet.turn import Turn
from fleet.profile.pod_behavior import VolumeBehavior, volume_behavior

AT_ONCE = -1  # due before any instant; 0 means that something is awaited


def behavior_of(pod: Pod, each: "ClaimVolume", turn: Turn) -> VolumeBehavior:
    """Return how a volume behaves."""
    return volume_behavior(turn.behavior(pod).volumes, each.volume.name, pod.annotations)


class Step(enum.IntEnum):
    """What the volume of a claim waits for."""

    CLAIM = 0
    VOLUME = 1
    FAILED = 2  # the next sync of the pod
    REPORT = 3  # its name in the node's volumesInUse
    ATTACH = 4  # its name in the node's volumesAttached
    SIZE = 5  # the claim again, for its size
    VERIFY = 6  # the Node, by GET
    MOUNT = 7  # the reconciler
    WAIT = 8  # the VolumeAttachment, by GET
    STAGED = 9  # again: MountDevice wants its metadata
    PUBLISH = 10  # and SetUp
    SET_UP = 11  # the driver, to be asked
    DELAY = 12  # the driver
    MOUNTED = 13
    LIMIT = 14  # of no step: a sync that gives up asks whether the node is full
    REFRESH = 15  # of a step that goes on: claim and volume are read at each sync of the pod
    TOKENS = 17  # those that its driver wants
    STAGE_SECRET = 18  # of NodeStageVolume, by GET
    PUBLISH_SECRET = 19  # of NodePublishVolume, by GET
    EXPAND = 16  # what has grown before it was mounted: its NodeExpander


class ClaimVolume:
    """One volume of one pod that stands behind a claim."""

    __slots__ = (
        "claim",
        "claim_uid",
        "due_ns",
        "error",
        "has_secret",
        "is_asked",
        "is_exhausted",
        "step",
        "view",
        "volume",
    )

    def __init__(self, pod: Pod, volume: VolumeSpec) -> None:
        self.volume = volume
        self.claim = volume.claim or f"{pod.name}-{volume.name}"
        self.claim_uid = ""
        self.step = Step.CLAIM
        self.has_secret = False  # that of the driver's next call was read
        self.is_asked = False  # whether that is so, by a sync that gives up
        self.is_exhausted = False  # its driver says that the node takes no more volumes
        self.view: VolumeView | None = None
        self.error = ""  # of an answer, for the next attempt; or why the populator failed
        self.due_ns = 0  # the next attempt, 0 while something else is awaited

    @property
    def name(self) -> str:
        """Return what operations call the volume: its PersistentVolume, once that is known."""
        return self.view.name if self.view is not None else self.volume.name


def claim_problem(pod: Pod, each: ClaimVolume, reply: Reply) -> str:
    """Return why a claim cannot be used, "" if it can. Source: getPVCExtractPV, VolumeIsForPod."""
    claim = reply.record
    where = f"{pod.namespace}/{each.claim}"
    error = ""
    if not reply.ok or not isinstance(claim, ClaimView):
        error = f"failed to fetch PVC from API server: {reply.message}"
    elif claim.deleting and not claim.protected:
        error = "PVC is being deleted"
    elif claim.phase != "Bound":
        error = "PVC is not bound"
    elif not claim.volume_name:
        error = "PVC has empty pvc.Spec.VolumeName"
    elif each.volume.kind == "ephemeral" and claim.owner_uid != pod.uid:
        own = f"{pod.namespace}/{pod.name}"
        return f"PVC {where} was not created for pod {own} (pod is not owner)"
    return f"error processing PVC {where}: {error}" if error else ""


def volume_problem(pod: Pod, each: ClaimVolume, reply: Reply) -> str:
    """Return why the volume of a claim cannot be used. Source: getPVSpec, createVolumeSpec."""
    view = reply.record
    error = ""
    if not reply.ok or not isinstance(view, VolumeView):
        error = f"failed to fetch PV from API server: {reply.message}"
    elif view.claim_uid is None:
        error = (
            f"found PV object {view.name} but it has a nil pv.Spec.ClaimRef "
            "indicating it is not yet bound to the claim"
        )
    elif view.claim_uid != each.claim_uid:
        error = (
            f"found PV object {view.name} but its pv.Spec.ClaimRef.UID {view.claim_uid} "
            f"does not point to claim.UID {each.claim_uid}"
        )
    else:
        wanted, field = (
            ("Block", "volumeDevices") if each.volume.block else ("Filesystem", "volumeMounts")
        )
        if wanted != view.mode:
            text = f"has volumeMode {view.mode}, but is specified in {field}"
            return f"volume {each.volume.name} {text}"
    return f"error processing PVC {pod.namespace}/{each.claim}: {error}" if error else ""
