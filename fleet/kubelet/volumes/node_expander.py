"""NodeExpander: volumes that have grown are expanded on their node, mounted or about to be.

    begin --GET PVC--> CLAIM --allowed--> PATCH in progress --> DRIVER --delay--> PATCH finished
              ^           | not (yet)          [GET Secret] before | refuses        |
              +--100 ms---+                                        +--> PATCH error +--> done
                                                                        | 0.5 s doubling to 122 s

What a volume had when it was attached is kept: a PersistentVolume that shows more is expanded. One
whose resizer is not that far, or gave up, is asked about at every turn of the reconciler.
Source: pkg/volume/util/operationexecutor/node_expander.go, operation_generator.go,
GenerateExpandInUseVolumeFunc, expandVolumeDuringMount, legacyCallNodeExpandOnPlugin;
pkg/volume/csi/expander.go; pkg/kubelet/volumemanager/cache/actual_state_of_world.go,
volumeNeedsExpansion.
Differs: only CSI volumes are expanded, none of the in-tree plug-in `local`.
"""

import enum
from dataclasses import dataclass, field

from fleet.k8s import volumes
from fleet.k8s.effects import Op, Reply, Timer
from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import Pod, PodUid
from fleet.kubelet.events import Reason
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes import pod_volume
from fleet.profile.pod_behavior import RpcError
from fleet.quantity import parse_quantity

INFEASIBLE = frozenset(("InvalidArgument", "NotFound", "OutOfRange"))
"""What ends an expansion for good, until its controller decides. Source: isInfeasibleError."""
IN_USE = "FailedPrecondition"
_OPERATION = "MountVolume.NodeExpandVolume"
_STREAM_LOOP = 0x70107
_STREAM_EXPAND = 0x70108


class ExpandStep(enum.IntEnum):
    """What an expansion waits for."""

    WAIT = 0  # its turn
    CLAIM = 1  # the claim, by GET
    MARK = 2  # NodeResizeInProgress is written
    DRIVER = 3  # NodeExpandVolume, to be done
    FAILURE = 4  # its error is written
    FINISH = 5  # the new capacity is written
    SECRET = 6  # of NodeExpandVolume, by GET


@dataclass(slots=True, eq=False)
class _Expansion:
    """One volume that is being expanded, as a pod has it."""

    uid: PodUid
    volume: pod_volume.ClaimVolume
    view: volumes.VolumeView
    size: str  # what it grows to
    is_mounting: bool  # else it is mounted, and in use
    step: ExpandStep = ExpandStep.WAIT
    claim: volumes.ClaimView | None = None
    due_ns: int = 0  # of the next step, 0 while an answer is awaited
    error: str = ""
    tries: int = 0

    @property
    def known(self) -> volumes.ClaimView:
        """Return the claim as it was read."""
        assert self.claim is not None, self.volume
        return self.claim


@dataclass(slots=True, eq=False)
class NodeExpander:
    """The sizes of the CSI volumes of one node, and those that are being expanded.

    A step returns what an expansion came to: None while it goes on, "" if nothing went wrong.
    """

    # by unique name: what the node has of them
    _sizes: dict[str, str] = field(default_factory=dict)
    _running: dict[str, _Expansion] | None = None
    _failed: frozenset[str] = field(default_factory=frozenset)  # with a final error
    # the driver expands none that is in use
    _refused: frozenset[str] = field(default_factory=frozenset)

    def initialize(self, name: str, capacity: str) -> None:
        """Note what a volume has, unless that is known. Source: InitializeClaimSize."""
        if capacity:
            self._sizes.setdefault(name, capacity)

    def forget(self, name: str) -> None:
        """Drop a volume that is detached."""
        self._sizes.pop(name, None)
        self._failed -= {name}
        self._refused -= {name}

    def release(self, uid: PodUid) -> None:
        """Give up what is done for a pod that is gone."""
        if self._running is not None:
            kept = {name: each for name, each in self._running.items() if each.uid != uid}
            self._running = kept or None

    # ---- what is asked of it ----

    def check(self, pod: Pod, each: pod_volume.ClaimVolume, turn: Turn) -> None:
        """Expand a mounted volume that has grown. Source: PodExistsInVolume."""
        view = each.view
        if each.step is not pod_volume.Step.MOUNTED or view is None or each.spec.is_read_only:
            return
        name = view.unique_name
        known = self._sizes.get(name, "")
        if not view.driver or not known or name in self._refused or self._find(name) is not None:
            return
        if _is_less(known, view.capacity):
            due_ns = turn.now_ns + int(pod_volume.LOOP_NS * turn.draw(_STREAM_LOOP, view.name))
            self._begin(
                _Expansion(pod.uid, each, view, view.capacity, is_mounting=False, due_ns=due_ns)
            )
            self._arm(pod.uid, turn)

    def mount(self, pod: Pod, each: pod_volume.ClaimVolume, turn: Turn) -> None:
        """Expand a volume as it is mounted, if it has grown; one operation at a time."""
        view = each.view
        assert view is not None, each.claim
        found = self._find(view.unique_name)  # another pod's is the same
        if found is not None and found.step is not ExpandStep.WAIT:
            each.due_ns = turn.now_ns + pod_volume.LOOP_NS
            return
        each.step = pod_volume.Step.EXPAND
        self._begin(
            _Expansion(pod.uid, each, view, view.capacity, is_mounting=True, due_ns=turn.now_ns)
        )
        self.on_timer(pod, turn)

    def on_timer(self, pod: Pod, turn: Turn) -> bool:
        """Go on with what is expanded for a pod; return whether a volume may be mounted."""
        can_mount = False
        for each in tuple((self._running or {}).values()):
            if each.uid == pod.uid and 0 < each.due_ns <= turn.now_ns:
                can_mount |= self._follow(pod, each, self._go_on(pod, each, turn), turn)
        return can_mount

    def on_reply(self, pod: Pod, volume: pod_volume.ClaimVolume, reply: Reply, turn: Turn) -> bool:
        """Take an answer to what an expansion asked; return whether a volume may be mounted."""
        found = None if volume.view is None else self._find(volume.view.unique_name)
        if found is None or found.uid != pod.uid:
            return False
        return self._follow(pod, found, self._on_reply(pod, found, reply, turn), turn)

    def _follow(self, pod: Pod, each: _Expansion, error: str | None, turn: Turn) -> bool:
        """Do what follows from an expansion, ended or not."""
        self._arm(pod.uid, turn)
        volume = each.volume
        if error is None:
            return False
        if not each.is_mounting:
            if error:
                text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{volume.name}"'
                turn.event(pod, Reason.VOLUME_RESIZE_FAILED, f"{text} : {error}")
            return False
        volume.due_ns = pod_volume.AT_ONCE
        if error:
            volume.error = pod_volume.expansion_failed(volume.name, volume.spec, error)
        else:
            volume.step = pod_volume.Step.MOUNTED
        return True

    def _begin(self, each: _Expansion) -> None:
        if self._running is None:
            self._running = {}
        self._running[each.view.unique_name] = each

    def _find(self, name: str) -> _Expansion | None:
        return None if self._running is None else self._running.get(name)

    def _arm(self, uid: PodUid, turn: Turn) -> None:
        """Set a timer for what is due next for a pod."""
        found = self._running.values() if self._running is not None else ()
        dues = [each.due_ns for each in found if each.uid == uid and each.due_ns]
        if dues:
            turn.arm(min(dues), Timer.VOLUMES, uid)

    # ---- what is done ----

    def _go_on(self, pod: Pod, each: _Expansion, turn: Turn) -> str | None:
        """Take the step that is due."""
        each.due_ns = 0
        if each.step is ExpandStep.WAIT:
            each.step = ExpandStep.CLAIM
            volume = each.volume
            target = volumes.ClaimTarget(
                pod.namespace, volume.claim, volume.spec.name, pod_volume.Step.EXPAND
            )
            turn.call(Op.GET_CLAIM, pod.uid, target)
            return None
        assert each.step is ExpandStep.DRIVER, each.step
        return self._expand(pod, each, turn)

    def _on_reply(self, pod: Pod, each: _Expansion, reply: Reply, turn: Turn) -> str | None:
        claim = reply.record if reply.ok and isinstance(reply.record, volumes.ClaimView) else None
        if each.step is ExpandStep.FAILURE:
            # What is refused in use neither keeps a mount nor is tried again.
            is_refused = each.view.unique_name in self._refused
            return self._end(each, "" if is_refused else each.error, turn)
        if each.step is ExpandStep.SECRET:
            return self._on_secret(pod, each, reply, turn)
        if claim is None:
            return self._end(each, _lost(each, reply.message), turn)
        each.claim = claim
        if each.step is ExpandStep.CLAIM:
            return self._on_claim(pod, each, turn)
        if each.step is ExpandStep.MARK:
            self._call_driver(pod, each, turn)
            return None
        assert each.step is ExpandStep.FINISH, each.step
        return self._done(each, turn)

    def _on_claim(self, pod: Pod, each: _Expansion, turn: Turn) -> str | None:
        """Decide what there is to do. Source: nodeExpandVolume, expandVolumeDuringMount."""
        claim = each.known
        if each.is_mounting and not _is_less(claim.capacity, each.view.capacity):
            return self._end(each, "", turn)
        if each.volume.spec.is_read_only:
            text = f'{_OPERATION} failed for volume "{each.view.name}"'
            text += " requested read-only file system"
            self._tell(pod, each, Reason.FILE_SYSTEM_RESIZE_FAILED, text, turn)
            return self._end(each, "", turn)
        if not _is_legacy(claim):
            each.size = claim.allocated or "0"
        is_shared = _is_updated(each) and claim.is_shared  # each of its nodes expands it
        status = claim.resize_status
        if _is_legacy(claim) or is_shared:
            self._call_driver(pod, each, turn)
        elif status in (volumes.ResizeStatus.NODE_PENDING, volumes.ResizeStatus.NODE_IN_PROGRESS):
            each.step = ExpandStep.MARK
            self._patch(pod, each, turn, status=volumes.ResizeStatus.NODE_IN_PROGRESS)
        elif _is_updated(each):
            return self._done(each, turn)
        elif each.is_mounting:  # it is mounted, and expanded afterwards
            return self._end(each, "", turn)
        else:
            each.step, each.tries = ExpandStep.WAIT, 0
            each.due_ns = turn.now_ns + pod_volume.LOOP_NS
        return None

    def _call_driver(self, pod: Pod, each: _Expansion, turn: Turn) -> None:
        """Read the Secret of the call, if it has one, then let the driver take its time."""
        namespace, name = ref = each.view.secrets.expand
        driver = turn.env.model.csi_driver(each.view.driver)
        if ref != volumes.NO_SECRET and driver is not None and driver.node_expansion:
            each.step = ExpandStep.SECRET
            target = volumes.ClaimTarget(
                namespace, name, each.volume.spec.name, pod_volume.Step.EXPAND
            )
            turn.call(Op.GET_CSI_SECRET, pod.uid, target)
        else:
            self._wait_for_driver(pod, each, turn)

    def _on_secret(self, pod: Pod, each: _Expansion, reply: Reply, turn: Turn) -> str | None:
        """Take that Secret. Source: csi/expander.go, nodeExpandWithClient."""
        if reply.ok:
            self._wait_for_driver(pod, each, turn)
            return None
        ref = each.view.secrets.expand
        what = (
            f"NodeExpandSecretRef {'/'.join(ref)}: {pod_volume.unread_secret(ref, reply.message)}"
        )
        each.error = f"expander.NodeExpand failed to get {what}"
        if _is_legacy(each.known):
            return self._end(each, each.error, turn)
        self._fail(pod, each, volumes.ResizeStatus(each.known.resize_status), turn)
        return None

    def _wait_for_driver(self, pod: Pod, each: _Expansion, turn: Turn) -> None:
        """Let the driver take its time; what it says comes then."""
        each.step = ExpandStep.DRIVER
        share = turn.draw(_STREAM_EXPAND, each.view.name)
        delay = pod_volume.behavior_of(pod, each.volume, turn).expand_delay
        each.due_ns = turn.now_ns + max(delay.sample(share), 1)

    def _expand(self, pod: Pod, each: _Expansion, turn: Turn) -> str | None:
        """Hear what the driver says. Source: csi/expander.go, NodeExpand; expandOnPlugin."""
        claim = each.known
        driver = turn.env.model.csi_driver(each.view.driver)
        if driver is None or not driver.node_expansion:
            if _is_legacy(claim) or _is_updated(each):
                return self._done(each, turn)
            each.error = f"NodeExpand is not supported by the CSI driver {each.view.driver}"
            self._fail(pod, each, volumes.ResizeStatus(claim.resize_status), turn)
            return None
        error = pod_volume.behavior_of(pod, each.volume, turn).expand_error
        if error:
            return self._on_error(pod, each, RpcError.of(error), turn)
        text = f'{_OPERATION} succeeded for volume "{each.view.name}" {turn.facts.name}'
        self._tell(pod, each, Reason.FILE_SYSTEM_RESIZE_SUCCESSFUL, text, turn)
        if _is_updated(each):
            return self._done(each, turn)
        each.step = ExpandStep.FINISH
        self._patch(pod, each, turn, status=volumes.ResizeStatus.NONE, capacity=each.size)
        return None

    def _tell(self, pod: Pod, each: _Expansion, reason: Reason, text: str, turn: Turn) -> None:
        """Record an event about the pod, and one about its claim."""
        turn.event(pod, reason, text)
        claim, kind = each.known, "PersistentVolumeClaim"
        about = ObjectRef(kind, pod.namespace, each.volume.claim, claim.uid, claim.resource_version)
        turn.recorder.event(about, reason, text, turn)

    def _on_error(self, pod: Pod, each: _Expansion, found: RpcError, turn: Turn) -> str | None:
        claim, name = each.known, each.view.unique_name
        is_infeasible = found.code in INFEASIBLE
        colon = " " if is_infeasible else " : "
        each.error = f"Expander.NodeExpand failed to expand the volume{colon}{found}"
        if found.code == IN_USE:
            self._refused |= {name}
        if _is_legacy(claim):
            if found.code != IN_USE:
                return self._end(each, each.error, turn)
            return self._done(each, turn)
        is_other = _is_less(claim.requested, each.size) or _is_less(each.size, claim.requested)
        if is_other and name in self._failed:
            is_infeasible = True
        self._failed |= {name}
        status = volumes.ResizeStatus.NODE_INFEASIBLE if is_infeasible else claim.resize_status
        self._fail(pod, each, volumes.ResizeStatus(status), turn)
        return None

    def _fail(self, pod: Pod, each: _Expansion, status: volumes.ResizeStatus, turn: Turn) -> None:
        """Write an error down. Source: MarkNodeExpansionInfeasible, ...FailedCondition."""
        each.step = ExpandStep.FAILURE
        self._patch(pod, each, turn, status=status, error=each.error)

    def _patch(
        self,
        pod: Pod,
        each: _Expansion,
        turn: Turn,
        *,
        status: volumes.ResizeStatus,
        capacity: str = "",
        error: str = "",
    ) -> None:
        where = pod.namespace, each.volume.claim, each.volume.spec.name, each.known
        patch = volumes.ClaimStatusPatch(*where, status, capacity, error, turn.wall_s)
        turn.call(Op.PATCH_CLAIM_STATUS, pod.uid, patch)

    def _done(self, each: _Expansion, turn: Turn) -> str:
        """End well. A mount keeps the size as it was: the reconciler looks at the claim again."""
        if not each.is_mounting:
            self._sizes[each.view.unique_name] = each.size
        return self._end(each, "", turn)

    def _end(self, each: _Expansion, error: str, turn: Turn) -> str:
        """End a mount's expansion; one that failed in use is tried again after its back-off."""
        if not error or each.is_mounting:
            assert self._running is not None, each.volume
            del self._running[each.view.unique_name]
            self._running = self._running or None
            return error
        each.step = ExpandStep.WAIT
        each.due_ns = turn.now_ns + pod_volume.back_off_ns(each.tries)
        each.tries += 1
        return error


def _is_less(one: str, other: str) -> bool:
    return parse_quantity(one or "0").nano < parse_quantity(other or "0").nano


def _is_legacy(claim: volumes.ClaimView) -> bool:
    """Return whether an older resizer works on it. Source: checkForRecoveryFromExpansion."""
    return not claim.resize_status and claim.allocated is None


def _is_updated(each: _Expansion) -> bool:
    """Return whether the claim shows the new size. Source: runPreCheck, pvcAlreadyUpdated."""
    claim = each.known
    return not claim.resize_status and not _is_less(claim.capacity, each.size)


def _lost(each: _Expansion, message: str) -> str:
    """Say which request of an expansion failed."""
    patch = f'patchPVCStatus failed to patch PVC "{each.volume.claim}": {message}'
    if each.step is ExpandStep.CLAIM:
        return f"mountVolume.NodeExpandVolume get PVC failed : {message}"
    if each.step is ExpandStep.MARK:
        return patch
    if _is_legacy(each.known):
        return f"mountVolume.NodeExpandVolume update PVC status failed : {patch}"
    return f"mountVolume.NodeExpandVolume update pvc status failed: {patch}"
