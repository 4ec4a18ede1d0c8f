"""What a kubelet says of volumes: the words of its operations and of its CSI plug-in."""

from fleet.k8s.pods import TOKEN_VOLUME, TOKEN_VOLUME_START, Pod, PodUid, VolumeSpec
from fleet.k8s.volumes import SecretRef, VolumeView
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import AnyReason, OpenReason, Reason
from fleet.kubelet.volumes.claim_volume import ClaimVolume, Step

VolumeEvent = tuple[AnyReason, str]
LIMIT_EXCEEDED = OpenReason("VolumeAttachmentLimitExceeded")
DRIVER_MISSING = "driver name %s not found in the list of registered CSI drivers"
_BLOCK_NAMES = {"MountDevice": "SetUpDevice", "SetUp": "MapPodDevice"}


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
        return failed(each.name, each.volume, "WaitForAttach", error)
    if each.step is Step.STAGED:
        return failed(each.name, each.volume, "MountDevice", message)
    error = f"kubernetes.io/csi: mounter.SetUpAt failed to fetch publishContext: {message}"
    return failed(each.name, each.volume, "SetUp", error)


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
    if each.volume.block:
        error = f"kubernetes.io/csi: failed to get {what}: {unread_secret(ref, message)}"
    return failed(each.name, each.volume, "MountDevice", error)


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
