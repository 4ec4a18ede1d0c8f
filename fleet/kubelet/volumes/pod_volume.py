"""One volume of one pod: the steps that it takes, and what a kubelet says of it.

Source: pkg/volume/util/operationexecutor/operation_generator.go; pkg/volume/csi/csi_client.go;
pkg/kubelet/volumemanager/volume_manager.go, WaitForAttachAndMount.
"""

import enum
from dataclasses import dataclass

from fleet.clock import NS_PER_MS
from fleet.k8s.effects import Reply
from fleet.k8s.pods import TOKEN_VOLUME, TOKEN_VOLUME_START, Pod, PodUid, VolumeSpec
from fleet.k8s.volumes import ClaimView, SecretRef, VolumeView
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import AnyReason, OpenReason, Reason
from fleet.kubelet.turn import Turn
from fleet.profile.pod_behavior import VolumeBehavior, volume_behavior

AT_ONCE = -1  # due before any instant; 0 means that something is awaited
LOOP_NS = 100 * NS_PER_MS  # populator; reconcilerLoopSleepPeriod
RETRY_FIRST_NS = 500 * NS_PER_MS  # exponentialbackoff: initialDurationBeforeRetry
RETRY_MAX_NS = 122_000 * NS_PER_MS  # maxDurationBeforeRetry: no multiple of the first
_DOUBLINGS_MAX = 8  # RETRY_FIRST_NS << 8 is above RETRY_MAX_NS


def back_off_ns(tries: int) -> int:
    """Return how long an operation waits that has failed so often before."""
    return min(RETRY_FIRST_NS << min(tries, _DOUBLINGS_MAX), RETRY_MAX_NS)


def behavior_of(pod: Pod, each: "ClaimVolume", turn: Turn) -> VolumeBehavior:
    """Return how a volume behaves."""
    return volume_behavior(turn.behavior(pod).volumes, each.spec.name, pod.annotations)


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


@dataclass(slots=True, eq=False)
class PendingVolume:
    """A volume that is not mounted yet; -1 of something: it is to be asked for."""

    spec: VolumeSpec
    due_ns: int = AT_ONCE  # of the next attempt, 0 while something else is awaited
    tokens: int = 0  # awaited ones
    reads: int = -1  # awaited objects that are not watched
    secret: int = 0  # 1 while it is awaited
    error: str = ""  # of an answer, for the next attempt; or why the populator failed
    patience_ns: int = 0  # until when an unsynced cache is waited for
    tries: int = 0

    def __post_init__(self) -> None:
        self.tokens = -1 if self.spec.tokens else 0
        self.secret = -1 if self.spec.driver and self.spec.secret else 0


@dataclass(slots=True, eq=False)
class ClaimVolume(PendingVolume):
    """One volume of one pod that stands behind a claim, for as long as the pod has it."""

    claim: str = ""  # its name
    claim_uid: str = ""
    step: Step = Step.CLAIM
    is_found: bool = False  # its pod was mounted by a kubelet before: so it is attached
    has_secret: bool = False  # that of the driver's next call was read
    is_asked: bool = False  # whether that is so, by a sync that gives up
    is_exhausted: bool = False  # its driver says that the node takes no more volumes
    view: VolumeView | None = None

    @property
    def name(self) -> str:
        """Return what operations call the volume: its PersistentVolume, once that is known."""
        return self.view.name if self.view is not None else self.spec.name


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
    elif each.spec.kind == "ephemeral" and claim.owner_uid != pod.uid:
        own = f"{pod.namespace}/{pod.name}"
        return f"PVC {where} was not created for pod {own} (pod is not owner)"
    return f"error processing PVC {where}: {error}" if error else ""


def volume_problem(pod: Pod, each: ClaimVolume, name: str, reply: Reply) -> str:
    """Return why the volume of a claim cannot be used. Source: getPVSpec, createVolumeSpec."""
    view = reply.record
    error = ""
    if not reply.ok or not isinstance(view, VolumeView):
        error = f"failed to fetch PV {name} from API server: {reply.message}"
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
            ("Block", "volumeDevices") if each.spec.block else ("Filesystem", "volumeMounts")
        )
        if wanted != view.mode:
            text = f"has volumeMode {view.mode}, but is specified in {field}"
            return f"volume {each.spec.name} {text}"
    return f"error processing PVC {pod.namespace}/{each.claim}: {error}" if error else ""


VolumeEvent = tuple[AnyReason, str]
LIMIT_EXCEEDED = OpenReason("VolumeAttachmentLimitExceeded")
DRIVER_MISSING = "driver name %s not found in the list of registered CSI drivers"
_BLOCK_NAMES = {"MountDevice": "SetUpDevice", "SetUp": "MapPodDevice"}
NEVER_MAPPED = "MapVolume.NodeAffinity check failed"
"""This is found before an operation begins: it is tried at each turn, and reported as a mount."""


def failed(name: str, volume: VolumeSpec, what: str, error: str) -> str:
    """Word the failure of one operation; those of block volumes have names of their own.

    Source: operation_executor.go, VolumeToMount.GenerateError.
    """
    operation = "MountVolume"
    if volume.block:
        operation, what = "MapVolume", _BLOCK_NAMES.get(what, what)
    return f'{operation}.{what} failed for volume "{name}" : {error}'


def expansion_failed(name: str, volume: VolumeSpec, error: str) -> str:
    """Say that a volume that was to be mounted has not grown.

    Source: operation_generator.go, GenerateMountVolumeFunc, GenerateMapVolumeFunc.
    """
    what = "MapVolume.MarkVolumeAsMounted" if volume.block else "MountVolume.Setup"
    return f'{what} failed while expanding volume for volume "{name}" : {error}'


def unread_attachment(each: ClaimVolume, name: str, message: str) -> str:
    """Say which step of a mount could not read the VolumeAttachment."""
    view = each.view
    assert view is not None, each.claim
    if each.step is Step.WAIT:
        error = f"volume {view.handle} has GET error for volume attachment {name}: {message}"
        return failed(each.name, each.spec, "WaitForAttach", error)
    is_staging = each.step is Step.STAGED
    call, error = ("SetupDevice" if is_staging else "MapPodDevice"), message
    if each.spec.block:
        what = f"blockMapper.{call} failed to get volume attachment [id={name}]"
        error = f"kubernetes.io/csi: {what}: {message}"
    elif not is_staging:
        error = f"kubernetes.io/csi: mounter.SetUpAt failed to fetch publishContext: {message}"
    return failed(each.name, each.spec, "MountDevice" if is_staging else "SetUp", error)


def unread_secret(ref: SecretRef, message: str) -> str:
    """Say that a Secret for a CSI driver could not be read. Source: getCredentialsFromSecret."""
    namespace, name = ref
    where = f"the secret {name} in the namespace {namespace}"
    return f"kubernetes.io/csi: failed to find {where} with error: {message}"


def unstaged(each: ClaimVolume, ref: SecretRef, message: str) -> str:
    """Say that NodeStageVolume lacks its Secret.

    Source: csi_attacher.go, MountDevice; csi_block.go, stageVolumeForBlock.
    """
    what = f"NodeStageSecretRef {'/'.join(ref)}"
    error = f"fetching {what} failed: {unread_secret(ref, message)}"
    if each.spec.block:
        error = f"kubernetes.io/csi: failed to get {what}: {unread_secret(ref, message)}"
    return failed(each.name, each.spec, "MountDevice", error)


def unpublished(name: str, volume: VolumeSpec, ref: SecretRef, message: str) -> str:
    """Say that NodePublishVolume lacks its Secret.

    Source: csi_mounter.go, SetUpAt; csi_block.go, publishVolumeForBlock.
    """
    error = unread_publish_secret(ref, message)
    if volume.block:
        what = f"NodePublishSecretRef {'/'.join(ref)}: {unread_secret(ref, message)}"
        error = f"kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get {what}"
    return failed(name, volume, "SetUp", error)


def unread_publish_secret(ref: SecretRef, message: str) -> str:
    """Say the same as SetUpAt alone does."""
    return f"fetching NodePublishSecretRef {'/'.join(ref)} failed: {unread_secret(ref, message)}"


def mapped_events(uid: PodUid, view: VolumeView) -> list[VolumeEvent]:
    """Return the events of a raw block volume that is there; a mount leaves none.

    Source: operation_generator.go, GenerateMapVolumeFunc; csi_block.go and local.go,
    GetGlobalMapPath.
    """
    name = view.name
    paths = (
        ("globalMapPath", f"plugins/kubernetes.io/csi/volumeDevices/{name}/dev"),
        ("volumeMapPath", f"pods/{uid}/volumeDevices/kubernetes.io~csi"),
    )
    if view.plugin == "local":
        paths = (
            ("globalMapPath", f"plugins/kubernetes.io~local-volume/volumeDevices/{name}"),
            ("volumeMapPath", f"pods/{uid}/volumeDevices/kubernetes.io~local-volume"),
        )
    text = f'MapVolume.MapPodDevice succeeded for volume "{name}" '
    reason = Reason.SUCCESSFUL_MOUNT_VOLUME
    return [(reason, f'{text}{field} "/var/lib/kubelet/{path}"') for field, path in paths]


def driver_missing(name: str, volume: VolumeSpec, driver: str) -> str:
    """Say that a volume's driver is not on the node.

    Source: csi_attacher.go, MountDevice; csi_block.go, SetUpDevice; newCsiDriverClient.
    """
    call = "attacher.MountDevice failed to create newCsiDriverClient"
    if volume.block:
        call = "blockMapper.SetUpDevice failed to get CSI client"
    return failed(
        name, volume, "MountDevice", f"kubernetes.io/csi: {call}: {DRIVER_MISSING % driver}"
    )


def inline_problem(driver: str, env: Environment) -> list[str]:
    """Return why a driver takes no inline volume of a pod.

    Source: csi_mounter.go, SetUpAt, supportsVolumeLifecycleMode.
    """
    if driver not in env.model.csi_driver_names:
        missing = DRIVER_MISSING % driver
        return [f"kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {missing}"]
    found = env.csi_drivers.get(driver)
    if found is not None and "Ephemeral" in found.modes:
        return []
    why = "no CSIDriver object"
    if found is not None:
        why = "only supports [" + " ".join(f'"{mode}"' for mode in found.modes) + "]"
    call = "mounter.SetupAt failed to check volume lifecycle mode"
    error = f'volume mode "Ephemeral" not supported by driver {driver} ({why})'
    return [f"kubernetes.io/csi: {call}: {error}"]


def volume_name(volume: VolumeSpec, pod: Pod) -> str:
    """Return the name of a volume as the API has it."""
    if pod.token_suffix and volume.name == TOKEN_VOLUME.decode():
        return TOKEN_VOLUME_START.decode() + pod.token_suffix
    return volume.name


MOUNT_POLL_NS = 300 * NS_PER_MS  # podAttachAndMountRetryInterval


class MountResult(enum.Enum):
    """How an attempt to mount the volumes of a pod went."""

    WAITING = 0  # maybe for another try of what has failed
    MOUNTED = 1
    GIVEN_UP = 2  # the pod's sync fails
    REJECTED = 3  # the node takes no more volumes: the last event says so, and ends the pod


@dataclass(slots=True, eq=False)
class PodMount:
    """The volumes of one pod while they are being mounted."""

    volumes: list[PendingVolume]
    is_remount: bool = False  # the pod runs already
    began_ns: int = 0
    waited: bool = False  # by a sync of the pod
    due_ns: int = 0
    limits_asked: bool = False  # whether the node is full, before that sync gives up
    seen_ns: int = 0  # when that sync sees a claim that is no good


def mount_seen_ns(began_ns: int, now_ns: int) -> int:
    """Return when a sync that waits since `began_ns` sees what was mounted now.

    Source: volume_manager.go, WaitForAttachAndMount: it looks at once, then every 300 ms.
    """
    return began_ns - (began_ns - now_ns) // MOUNT_POLL_NS * MOUNT_POLL_NS
