"""ClaimVolumes: from the claim of a pod to a volume that is attached and mounted.

Here, too: what CSI drivers want of all their volumes, inline ones included.

    CLAIM --GET PVC--> VOLUME --GET PV--> REPORT --volumesInUse--> ATTACH --volumesAttached--+
      ^ |refused, not bound            |not attachable                                       |
      | v                              +--------------------> SIZE --GET PVC--> VERIFY <-----+
      FAILED until the pod's next sync                                             |GET Node
   MOUNTED <--EXPAND <--delay-- TOKENS <-- PUBLISH <--GET-- STAGED <--GET-- WAIT <-+
                        GET Secret: PUBLISH_SECRET   STAGE_SECRET, unless the device is mounted

The left half is the desired, the right half the actual state of world. What a node has attached or
wants attached is in use, and its status says so before the controller may attach. What a driver
wants to be published again and again goes once more from MOUNT to MOUNTED, after each read.
Source: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go;
pkg/volume/util/operationexecutor/operation_generator.go, GenerateMountVolumeFunc,
GenerateVerifyControllerAttachedVolumeFunc; pkg/volume/csi/csi_attacher.go, csi_mounter.go.
Differs: a claim that a pod mounts read-only is not expanded, and nothing is said of it again.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from fleet.k8s.effects import Op, Reply, Timer, TokenRequest
from fleet.k8s.pods import NodeView, Pod, PodUid, VolumeSpec
from fleet.k8s.volumes import (
    MIGRATED,
    NO_SECRET,
    AttachmentView,
    ClaimTarget,
    ClaimView,
    SecretRef,
    VolumeView,
    attachment_name,
)
from fleet.kubelet.environment import Environment
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.node_expander import NodeExpander
from fleet.kubelet.volumes.pod_volume import (
    AT_ONCE,
    LOOP_NS,
    ClaimVolume,
    Step,
    behavior_of,
    claim_problem,
    driver_missing,
    failed,
    unpublished,
    unread_attachment,
    unstaged,
    volume_problem,
)
from fleet.kubelet.volumes.token_cache import CSITokens

QUIET = "-"  # an operation failed without an event: it is tried again after its back-off
_SECRET_STEPS = frozenset((Step.STAGE_SECRET, Step.PUBLISH_SECRET))
LOST_KINDS = frozenset(
    (
        *("cephfs", "flexVolume", "flocker", "glusterfs", "photonPersistentDisk", "quobyte"),
        *("rbd", "scaleIO", "storageos"),
    )
)
"""No kubelet has their plug-ins any more, and none has a driver of flexVolume by itself."""
MIGRATED_KINDS = frozenset(("azureFile", *MIGRATED))
"""Those that pods name themselves wait as if no driver attached them, and no event says so."""
CLAIM_KINDS = frozenset(("persistentVolumeClaim", "ephemeral")) | LOST_KINDS | MIGRATED_KINDS
_STREAM_MOUNT = 0x70103
_STREAM_RESYNC = 0x70104
_STREAM_AGAIN = 0x7010A


@dataclass(slots=True, eq=False)
class ClaimVolumes:
    """The claims of the pods of one node."""

    _pods: dict[PodUid, tuple[ClaimVolume, ...]] = field(default_factory=dict)
    # attachable volumes, and whose they are
    _devices: dict[str, list[PodUid]] = field(default_factory=dict)
    _resyncs: dict[PodUid, int] = field(default_factory=dict)
    attached: tuple[str, ...] = ()  # as the informer shows the Node
    reported: tuple[str, ...] = ()  # volumesInUse as the server has them
    _labels: dict[str, str] | None = None  # of a Node read since the informer showed it
    _expander: NodeExpander = field(default_factory=NodeExpander)
    tokens: CSITokens = field(default_factory=CSITokens)
    _again: tuple[ClaimVolume, ...] = ()  # that are being published once more
    _staged: frozenset[str] = field(default_factory=frozenset)  # devices that are mounted globally
    _found: frozenset[str] = frozenset()  # devices that a kubelet before us left attached

    @classmethod
    def read(cls, devices: dict[str, list[PodUid]]) -> "ClaimVolumes | None":
        """Return what `checkpoint` left, None if that is nothing. Source: reconstruct.go."""
        return cls(_devices=devices, _found=frozenset(devices)) if devices else None

    def checkpoint(self) -> dict[str, list[PodUid]]:
        """Return the volumes that are attached, and the pods for which their mounts began.

        What was found stays found, also of pods whose claims were not read yet.
        """
        left = {name: self._devices[name] for name in self._found}
        for uid, volumes in self._pods.items():
            for each in volumes:
                name = each.view.unique_name if each.view else ""
                if name in self._devices and name not in self._found and each.step >= Step.MOUNT:
                    left.setdefault(name, []).append(uid)
        return left

    def keep(self, uids: Container[PodUid]) -> None:
        """Unmount what was left for pods that went, or ended, while no kubelet looked."""
        for uid in [uid for pods in self._devices.values() for uid in pods if uid not in uids]:
            self.release(uid)

    def in_use(self) -> tuple[str, ...]:
        """Return the attachable volumes that are wanted or attached.

        Source: volume_manager.go, GetVolumesInUse.
        """
        return tuple(sorted(self._devices))

    def is_idle(self) -> bool:
        """Return whether no pod has a claim and nothing is left to report."""
        return not self._pods and not self._devices and not self.reported

    def add(self, pod: Pod, volume: VolumeSpec, *, is_found: bool) -> ClaimVolume:
        """Take one more volume of a pod."""
        claim = volume.claim or f"{pod.name}-{volume.name}"
        found = ClaimVolume(volume, claim=claim, is_found=is_found)
        self._pods[pod.uid] = (*self._pods.get(pod.uid, ()), found)
        return found

    def release(self, uid: PodUid) -> list[str]:
        """Unmount the volumes of a pod that is gone; those of no other pod are detached.

        Return what was mounted of volumes that are mounted once for all pods.
        """
        self._resyncs.pop(uid, None)
        self._expander.release(uid)
        self.tokens.forget(uid)
        gone = self._pods.get(uid, ())
        self._again = tuple(each for each in self._again if each not in gone)
        unmounted = []
        for name in [name for name, pods in self._devices.items() if uid in pods]:
            self._devices[name] = [each for each in self._devices[name] if each != uid]
            if not self._devices[name]:
                del self._devices[name]
                self._found -= {name}
        for each in self._pods.pop(uid, ()):
            if each.view is None:
                continue
            name = each.view.unique_name
            if each.view.is_device and each.step is Step.MOUNTED:
                unmounted.append(name)
            if name not in self._devices:
                self._expander.forget(name)
            if not any(True for _ in self._others(uid, each.view)):
                self._staged -= {name}
        return unmounted

    def reprocess(self, pod: Pod, turn: Turn) -> None:
        """Read claims and volumes again for a new sync of the pod. Source: ReprocessPod."""
        for each in self._pods.get(pod.uid, ()):
            if each.step is Step.FAILED:
                each.step = Step.CLAIM
                each.error = ""
                each.due_ns = AT_ONCE
            elif each.step > Step.FAILED:
                self._get(pod, each, Op.GET_CLAIM, each.claim, turn, Step.REFRESH)

    # ---- what happened ----

    def on_reported(self, names: tuple[str, ...]) -> list[PodUid]:
        """Note what the server shows as in use; return the pods that may go on.

        Source: kubelet_node_status.go, markVolumesFromNode.
        """
        self.reported = names
        found = self._advance(Step.REPORT, Step.ATTACH, names)
        return found + self._advance(Step.ATTACH, Step.SIZE, self.attached)

    def on_node(self, attached: tuple[str, ...]) -> list[PodUid]:
        """Learn that the informer showed the Node; return the pods that may go on."""
        self._labels = None
        self.attached = attached
        return self._advance(Step.ATTACH, Step.SIZE, attached)

    def _advance(self, at: Step, to: Step, names: tuple[str, ...]) -> list[PodUid]:
        found = []
        for uid, volumes in self._pods.items():
            for each in volumes:
                if each.step is at and each.view is not None and each.view.unique_name in names:
                    each.step = to
                    each.due_ns = AT_ONCE if to is Step.SIZE else 0
                    found.append(uid)
        return found

    def on_reply(self, pod: Pod, target: ClaimTarget, reply: Reply, turn: Turn) -> bool:
        """Take an answer; return whether the volume may go on, or is to be published once more."""
        each = self._find(pod.uid, target.volume)
        if each is None:
            return False
        if target.step == Step.REFRESH:
            return self._on_refresh(pod, each, reply, turn)
        if target.step == Step.EXPAND:
            return self._expander.on_reply(pod, each, reply, turn)
        if target.step == Step.LIMIT:
            return self._on_limit(pod, each, reply, turn)
        if each.step != target.step:
            return False
        each.due_ns = AT_ONCE
        if each.step is Step.CLAIM:
            self._on_claim(pod, each, reply, turn)
        elif each.step is Step.VOLUME:
            self._on_volume(pod, each, target.name, reply, turn.env)
        elif not reply.ok:
            each.error = _unread(each, target, reply.message)
        elif each.step is Step.SIZE:
            self._note_size(each, reply)
            each.step = Step.VERIFY if self._is_attachable(each) else Step.MOUNT
        elif each.step is Step.VERIFY:
            self._on_node(each, reply)
        elif each.step in _SECRET_STEPS:
            each.has_secret = True
        else:
            self._on_attachment(each, target.name, reply, turn)
        return True

    def _on_limit(self, pod: Pod, each: ClaimVolume, reply: Reply, turn: Turn) -> bool:
        """Take what an attachment says; a driver that is full is asked how many it takes."""
        found = reply.record
        each.is_exhausted = isinstance(found, AttachmentView) and found.is_exhausted
        each.is_asked = False
        if each.is_exhausted and each.view is not None:
            turn.arm(turn.now_ns, Timer.CSI_NODE, each.view.driver)
        return each.is_exhausted or not self.is_asking(pod.uid)

    def _find(self, uid: PodUid, volume: str) -> ClaimVolume | None:
        found = (each for each in self._pods.get(uid, ()) if each.spec.name == volume)
        return next(found, None)

    def _on_claim(self, pod: Pod, each: ClaimVolume, reply: Reply, turn: Turn) -> None:
        """Source: getPVCExtractPV, VolumeIsForPod."""
        claim = reply.record
        error = claim_problem(pod, each, reply)
        if error:
            self._fail(each, error)
            return
        assert isinstance(claim, ClaimView), claim
        each.claim_uid = claim.uid
        each.step = Step.VOLUME
        each.due_ns = 0
        self._get(pod, each, Op.GET_VOLUME, claim.volume_name, turn)

    def _on_volume(
        self, pod: Pod, each: ClaimVolume, name: str, reply: Reply, env: Environment
    ) -> None:
        """Source: getPVSpec, createVolumeSpec, AddPodToVolume; reconstruct.go, updateStates."""
        view = reply.record
        error = volume_problem(pod, each, name, reply)
        if error:
            self._fail(each, error)
            return
        assert isinstance(view, VolumeView), view
        each.view = view
        driver = env.csi_drivers.get(view.driver)
        is_attachable = view.driver and (driver is None or driver.attach_required)
        if is_attachable:
            self._devices.setdefault(view.unique_name, []).append(pod.uid)
        if each.is_found or self._is_attached(pod, view):
            each.step = Step.MOUNT
        elif not is_attachable:
            each.step = Step.SIZE
        else:
            each.step = Step.REPORT
            each.due_ns = 0
            if view.unique_name in self.reported:
                self.on_reported(self.reported)

    def _on_refresh(self, pod: Pod, each: ClaimVolume, reply: Reply, turn: Turn) -> bool:
        """Take claim or volume as they are by now; return whether it is to be published once more.

        Source: checkVolumeFSResize, MarkRemountRequired; csi_plugin.go, RequiresRemount.
        """
        found, view = reply.record, each.view
        if not reply.ok:
            return False
        if isinstance(found, ClaimView):
            self._note_size(each, reply)
            self._get(pod, each, Op.GET_VOLUME, found.volume_name, turn, Step.REFRESH)
        elif isinstance(found, VolumeView) and view is not None and found.name == view.name:
            if found.capacity != view.capacity:
                each.view = view._replace(capacity=found.capacity)
            if each.step is Step.MOUNTED and republishes(view.driver, turn.env):
                return True
            self._expander.check(pod, each, turn)
        return False

    def publish_again(self, uid: PodUid, volume: str, turn: Turn) -> ClaimVolume | None:
        """Begin to mount a mounted volume once more, when the reconciler turns."""
        each = self._find(uid, volume)
        if each is None or each.step is not Step.MOUNTED:
            return None
        self._again += (each,)
        each.step, each.tries = Step.MOUNT, 0
        each.due_ns = turn.now_ns + int(LOOP_NS * turn.draw(_STREAM_AGAIN, each.name)) + 1
        return each

    def on_token(self, pod: Pod, request: TokenRequest, reply: Reply, turn: Turn) -> str | None:
        """Take a token; return None if a claim goes on with it, else what an inline volume gets."""
        error = self.tokens.on_reply(pod, request, reply, turn)
        each = self._find(pod.uid, request.volume)
        if each is None:
            return error
        if each.step is Step.TOKENS:
            each.step = Step.SET_UP
            each.due_ns = AT_ONCE
            if error:
                each.error = failed(each.name, each.spec, "SetUp", error)
        return None

    def _note_size(self, each: ClaimVolume, reply: Reply) -> None:
        if each.view is not None and each.view.driver and isinstance(reply.record, ClaimView):
            self._expander.initialize(each.view.unique_name, reply.record.capacity)

    def _on_node(self, each: ClaimVolume, reply: Reply) -> None:
        node, view = reply.record, each.view
        assert isinstance(node, NodeView), reply
        assert view is not None, each.claim
        if view.unique_name in node.volumes_attached:
            self._labels = node.labels
            each.step = Step.MOUNT
        else:
            each.step = Step.SIZE
            each.error = QUIET

    def _on_attachment(self, each: ClaimVolume, name: str, reply: Reply, turn: Turn) -> None:
        """Source: csi_attacher.go, WaitForAttach, verifyAttachmentStatus; getPublishContext."""
        found, view = reply.record, each.view
        assert isinstance(found, AttachmentView), reply
        assert view is not None, each.claim
        error = ""
        if each.step is Step.WAIT and found.deleting:
            error = "volume attachment is being deleted"
        elif each.step is Step.WAIT and not found.attached:
            error = found.error or (
                f"volume {view.handle} is not attached for volume attachment {name}"
            )
        # SetUpDevice looks for its driver once it has read the attachment, MountDevice before.
        stages = each.step is (Step.STAGED if each.spec.block else Step.WAIT)
        if error:
            each.error = failed(each.name, each.spec, "WaitForAttach", error)
        elif stages and view.driver not in turn.env.model.csi_driver_names:
            each.error = driver_missing(each.name, each.spec, view.driver)
        elif each.step is Step.WAIT:
            each.step = Step.STAGED
        else:
            each.step = Step.STAGE_SECRET if each.step is Step.STAGED else Step.PUBLISH_SECRET

    def _fail(self, each: ClaimVolume, error: str) -> None:
        each.step = Step.FAILED
        each.error = error
        each.due_ns = 0

    # ---- what is done ----

    def attempt(self, pod: Pod, each: ClaimVolume, turn: Turn) -> str | None:
        """Go on; return None while something is awaited, "" once mounted, else the error."""
        each.due_ns = 0
        if each.error and each.step is not Step.FAILED:
            error, each.error = each.error, ""
            if each.step > Step.MOUNT:
                each.step = Step.MOUNT
            return error
        if each.step in _SECRET_STEPS:
            self._look_for_secrets(pod, each, turn)
        if each.spec.kind in LOST_KINDS:
            what = f'failed to get Plugin from volumeSpec for volume "{each.spec.name}"'
            self._fail(each, f"{what} err=no volume plugin matched")
        elif each.step in (Step.CLAIM, Step.SIZE):
            if each.spec.kind not in MIGRATED_KINDS:
                self._get(pod, each, Op.GET_CLAIM, each.claim, turn)
        elif each.step is Step.VERIFY:
            self._get(pod, each, Op.GET_NODE_ATTACHED, "", turn)
        elif each.step is Step.MOUNT:
            return self._mount(pod, each, turn)
        elif each.step in (Step.WAIT, Step.STAGED, Step.PUBLISH):
            return self._read_attachment(pod, each, turn)
        elif each.step in (Step.SET_UP, Step.DELAY):
            return self._set_up(pod, each, turn)
        elif each.step is Step.MOUNTED:
            self._again = tuple(found for found in self._again if found is not each)
            self._expander.check(pod, each, turn)
            return ""
        return None

    def _look_for_secrets(self, pod: Pod, each: ClaimVolume, turn: Turn) -> None:
        """Go on to the next step unless the driver's next call needs a Secret that is not read."""
        view = each.view
        assert view is not None, each.claim
        if each.step is Step.STAGE_SECRET:
            if self._asks_secret(pod, each, view.secrets.stage, turn):
                return
            self._staged |= {view.unique_name}
            each.step = Step.PUBLISH if self._is_attachable(each) else Step.PUBLISH_SECRET
        if each.step is Step.PUBLISH_SECRET:
            is_asked = self._asks_secret(pod, each, view.secrets.publish, turn)
            each.step = Step.PUBLISH_SECRET if is_asked else Step.SET_UP

    def _asks_secret(self, pod: Pod, each: ClaimVolume, ref: SecretRef, turn: Turn) -> bool:
        """Ask for the Secret of the driver's next call, unless it needs none, or has it."""
        if ref == NO_SECRET or each.has_secret:
            each.has_secret = False
            return False
        namespace, name = ref
        target = ClaimTarget(namespace, name, each.spec.name, int(each.step))
        turn.call(Op.GET_CSI_SECRET, pod.uid, target)
        return True

    def _mount(self, pod: Pod, each: ClaimVolume, turn: Turn) -> str | None:
        """Begin to mount. Source: GenerateMountVolumeFunc, GenerateMapVolumeFunc.

        A volume whose plug-in makes no block devices is never mapped, and no event says so.
        """
        view = each.view
        assert view is not None, each.claim
        if each.spec.block and not view.maps_blocks:
            return None
        problem = self._mount_problem(pod, each, view, turn)
        if problem:
            return problem
        if self._is_attachable(each):
            each.step = Step.WAIT
            return self._read_attachment(pod, each, turn)
        if view.driver and view.driver not in turn.env.model.csi_driver_names:
            return driver_missing(each.name, each.spec, view.driver)
        is_staged = view.unique_name in self._staged
        each.step = Step.PUBLISH_SECRET if is_staged else Step.STAGE_SECRET
        return self.attempt(pod, each, turn)

    def _mount_problem(self, pod: Pod, each: ClaimVolume, view: VolumeView, turn: Turn) -> str:
        """Return why a volume cannot be mounted here, "" if it can."""
        if not view.fits(turn.facts.labels if self._labels is None else self._labels):
            return failed(
                each.name, each.spec, "NodeAffinity check", "no matching NodeSelectorTerms"
            )
        if view.has_mount_options and not (each.spec.block or view.takes_mount_options):
            error = "mount options are not supported for this volume type"
            return failed(each.name, each.spec, "MountOptionSupport check", error)
        is_for_one = view.access_modes == ("ReadWriteOncePod",) and view.is_device
        # Source: actual_state_of_world.go, IsVolumeMountedElsewhere.
        others = self._others(pod.uid, view) if is_for_one else ()
        if any(other.step is Step.MOUNTED for other in others):
            error = (
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
            )
            what = "MountDevice" if each.spec.block else "SetUp"
            return failed(each.name, each.spec, what, error)
        return ""

    def _read_attachment(self, pod: Pod, each: ClaimVolume, turn: Turn) -> str | None:
        view = each.view
        assert view is not None, each.claim
        if each.step is Step.STAGED and view.unique_name in self._staged:
            each.step = Step.PUBLISH  # the device is mounted already
        name = attachment_name(view.handle, view.driver, turn.facts.name)
        self._get(pod, each, Op.GET_ATTACHMENT, name, turn)
        return None

    def _set_up(self, pod: Pod, each: ClaimVolume, turn: Turn) -> str | None:
        """Let the driver stage and publish: first its delay, then its result."""
        behavior, view = behavior_of(pod, each, turn), each.view
        if each.step is Step.SET_UP:
            if view is not None and view.driver and not each.spec.block:
                each.step = Step.TOKENS
                if not self.tokens.are_there(pod, each.spec.name, view.driver, turn):
                    return None
            each.step = Step.DELAY
            share = turn.draw(_STREAM_MOUNT, f"{pod.uid}/{each.spec.name}")
            each.due_ns = turn.now_ns + max(behavior.mount_delay.sample(share), 1)
            return None
        mount_error = turn.env.model.broken.mounts or behavior.mount_error
        if mount_error:
            each.step = Step.MOUNT
            return failed(
                each.name, each.spec, "SetUp", f"rpc error: code = Internal desc = {mount_error}"
            )
        if view is None or not view.driver:
            each.step = Step.MOUNTED
            return ""
        self._expander.mount(pod, each, turn)
        return None

    def on_timer(self, pod: Pod, turn: Turn) -> bool:
        """Go on with what is expanded for a pod; return whether a volume may be mounted."""
        return self._expander.on_timer(pod, turn)

    def on_expanding(self, pod: Pod, volume: str, reply: Reply, turn: Turn) -> bool:
        """Take an answer to what an expansion asked; return whether a volume may be mounted."""
        each = self._find(pod.uid, volume)
        return each is not None and self._expander.on_reply(pod, each, reply, turn)

    def _is_attachable(self, each: ClaimVolume) -> bool:
        return each.view is not None and each.view.unique_name in self._devices

    def _is_attached(self, pod: Pod, view: VolumeView) -> bool:
        """Return whether a volume is attached already, so that nothing verifies it once more.

        Source: reconciler_common.go, mountOrAttachVolumes; actual_state_of_world.go,
        PodExistsInVolume.
        """
        if view.unique_name in self._found:
            return True
        others = self._others(pod.uid, view)
        return view.is_device and any(each.step >= Step.MOUNT for each in others)

    def _others(self, uid: PodUid, view: VolumeView) -> Iterator[ClaimVolume]:
        """Yield what other pods have of a volume."""
        name = view.unique_name
        for other, volumes in self._pods.items():
            for each in volumes if other != uid else ():
                if each.view is not None and each.view.unique_name == name:
                    yield each

    def _get(
        self, pod: Pod, each: ClaimVolume, op: Op, name: str, turn: Turn, step: Step | None = None
    ) -> None:
        at = each.step if step is None else step
        target = ClaimTarget(pod.namespace, name, each.spec.name, int(at))
        turn.call(op, pod.uid, target)

    def ask_limits(self, pod: Pod, turn: Turn) -> bool:
        """Ask why volumes are not attached, if their drivers may say that a node is full.

        Source: csi_plugin.go, VerifyExhaustedResource.
        """
        for each in self._pods.get(pod.uid, ()):
            view = each.view
            if view is None or each.step not in (Step.REPORT, Step.ATTACH):
                continue
            driver = turn.env.csi_drivers.get(view.driver)
            updates = turn.env.model.release.updates_volume_limits
            if updates and driver is not None and driver.allocatable_period_s:
                name = attachment_name(view.handle, view.driver, turn.facts.name)
                self._get(pod, each, Op.GET_ATTACHMENT, name, turn, Step.LIMIT)
                each.is_asked = True
        return self.is_asking(pod.uid)

    def is_asking(self, uid: PodUid) -> bool:
        """Return whether such an answer is awaited."""
        return any(each.is_asked for each in self._pods.get(uid, ()))

    def is_full(self, uid: PodUid) -> bool:
        """Return whether a driver said that the node takes no more volumes."""
        return any(each.is_exhausted for each in self._pods.get(uid, ()))

    # ---- what messages and timers ask ----

    def names_of(self, uid: PodUid, *, desired: bool) -> list[str]:
        """Return volumes that the populator has not taken, or that are desired but not attached."""
        return [
            each.spec.name
            for each in self._pods.get(uid, ())
            if (each.step in (Step.REPORT, Step.ATTACH) if desired else each.step <= Step.FAILED)
        ]

    def failures(self, uid: PodUid) -> list[str]:
        """Return why claims of a pod could not be processed. Source: PopPodErrors."""
        return sorted({each.error for each in self._pods.get(uid, ()) if each.step is Step.FAILED})

    def has(self, uid: PodUid) -> bool:
        """Return whether a pod has claims, or CSI volumes of its own."""
        return uid in self._pods or uid in self._resyncs

    def plan_resync(self, uid: PodUid, turn: Turn) -> None:
        """Have the claims of a running pod read again. Source: completeWork."""
        share = turn.draw(_STREAM_RESYNC, uid)
        period_ns = turn.env.model.kubelet.sync_frequency_ns
        due_ns = self._resyncs[uid] = turn.now_ns + int(period_ns * (1 + share / 2))
        turn.arm(due_ns, Timer.VOLUMES, uid)

    def plan_look(self, uid: PodUid, turn: Turn) -> None:
        """Have them read again by the next turn of the populator, for a sync of the pod."""
        due_ns = turn.now_ns + LOOP_NS
        if uid in self._resyncs and self._resyncs[uid] > due_ns:
            self._resyncs[uid] = due_ns
            turn.arm(due_ns, Timer.VOLUMES, uid)

    def is_resync_due(self, uid: PodUid, now_ns: int) -> bool:
        """Return whether it is time to read them again."""
        return 0 < self._resyncs.get(uid, 0) <= now_ns


def _unread(each: ClaimVolume, target: ClaimTarget, message: str) -> str:
    """Say what could not be read for a volume; of some reads nothing is said."""
    ref = (target.namespace, target.name)
    if each.step is Step.STAGE_SECRET:
        return unstaged(each, ref, message)
    if each.step is Step.PUBLISH_SECRET:
        return unpublished(each.name, each.spec, ref, message)
    return unread_attachment(each, target.name, message) if each.step > Step.MOUNT else QUIET


def republishes(driver: str, env: Environment) -> bool:
    """Return whether a CSI driver wants its volumes published again and again."""
    found = env.csi_drivers.get(driver)
    return found is not None and found.requires_republish
