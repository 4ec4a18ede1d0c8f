"""VolumeManager: what must be there before the containers of a pod may start.

    begin --the loops' tick--> each volume is set up by itself --all--> MOUNTED
                                 |failed                     |2 min 3 s, or a claim that is no good
                                 v                           v
                               FailedMount,                  GIVEN_UP: the pod's sync fails
                               0.5 s doubling to 122 s

    UnmountVolume fails -> 0.5 s -> again -> 1 s ... 122 s -> again -> it is unmounted

A local volume needs its tokens, ConfigMaps and Secrets, which are asked for at each resync of a
pod where they are not watched; how a claim gets there is in
`claim_volumes.py`. Tokens are renewed at 80 % of their life, at a pod's resync. No event reports a
failed unmount: UnmountVolume has no EventRecorderFunc. Only what fails to unmount is kept.
Source: pkg/kubelet/volumemanager/volume_manager.go, reconciler/reconciler.go,
reconciler_common.go, unmountVolumes; pkg/kubelet/token/token_manager.go;
pkg/volume/util/nestedpendingoperations; pkg/util/goroutinemap/exponentialbackoff.
Differs: only what the API sees is emulated. A wait that times out leaves no event, as in 1.36. What
is mounted once for all pods of a node (UnmountDevice) never fails to unmount.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, Op, Reply, Timer, TokenRequest, WatchEvent, WatchKind
from fleet.k8s.pods import Pod, PodUid, VolumeSpec
from fleet.k8s.volumes import ClaimStatusPatch, ClaimTarget, ObjectTarget
from fleet.kubelet.events import Reason, aggregate
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes import pod_volume, watched_objects
from fleet.kubelet.volumes.claim_volumes import CLAIM_KINDS, QUIET, ClaimVolumes, republishes
from fleet.kubelet.volumes.token_cache import RESYNCS, TokenCache
from fleet.profile.machine import types_by_path
from fleet.profile.pod_behavior import volume_behavior
from fleet.runtime.runtime import Runtime

MOUNT_TIMEOUT_NS = 123 * NS_PER_S  # podAttachAndMountTimeout: longer than one operation waits
_STREAM_LOOP = 0x70101
_STREAM_REMOUNT = 0x70105
_STREAM_POLL = 0x70106
_STREAM_UNMOUNT = 0x70107


@dataclass(slots=True, eq=False)
class _Mounted:
    """A volume that could not be unmounted."""

    spec: VolumeSpec
    due_ns: int = 0  # when it may be tried again
    tries: int = 0


@dataclass(slots=True, eq=False)
class VolumeManager:
    """Volumes, and the objects behind them, of the pods of one node."""

    _runtime: Runtime
    _mounts: dict[PodUid, pod_volume.PodMount] = field(default_factory=dict)
    tokens: TokenCache = field(default_factory=TokenCache)
    _polls: dict[PodUid, int] = field(default_factory=dict)  # of what is not watched
    objects: watched_objects.ObjectManager = field(default_factory=watched_objects.ObjectManager)
    claims: ClaimVolumes | None = None  # made for the first pod that has one
    _mounted: dict[PodUid, list[_Mounted]] = field(default_factory=dict)  # what does not unmount

    def register_pod(self, pod: Pod, turn: Turn) -> None:
        """Watch what a pod refers to, or ask for its pull secrets."""
        self.objects.register_pod(pod, turn)
        if watched_objects.is_polled(turn):
            secrets = ((WatchKind.SECRET, pod.namespace, each) for each in pod.spec.pull_secrets)
            self.objects.ask(secrets, pod.uid, "", turn)
            self._plan_poll(pod, turn)

    def unmount(self, pod: Pod, turn: Turn) -> int:
        """Unmount what is due; return when it is tried again, 0 once nothing is mounted."""
        left = self._mounted.pop(pod.uid, None)
        if left is None:
            left = [_Mounted(each) for each in pod.spec.volumes if each.mounted]
        left = [each for each in left if not _tear_down(pod, each, turn)]
        if left:
            self._mounted[pod.uid] = left
            return min(each.due_ns for each in left)
        return 0

    def update_pod(self, old: Pod, new: Pod, turn: Turn) -> None:
        """Follow a change of what a pod refers to. Source: updatePodsInternal, RegisterPod."""
        if old.spec != new.spec or old.namespace != new.namespace:
            self.objects.register_pod(new, turn)
            self.objects.unregister_pod(old, turn)

    def unregister_pod(self, pod: Pod, turn: Turn) -> None:
        """Stop the watches that no other pod needs, unmount and forget the pod's volumes."""
        is_read = self.objects.unregister_pod(pod, turn)
        self.abort(pod.uid)
        self._polls.pop(pod.uid, None)
        self.objects.forget(pod.uid)
        self.tokens.forget(pod.uid, is_read=is_read)
        self.release(pod.uid, turn)

    def release(self, uid: PodUid, turn: Turn) -> None:
        """Unmount the claims of a pod, also those that a kubelet before us mounted."""
        if self.claims is not None:
            self._retry(self.claims.release(uid), turn)

    def _retry(self, names: Collection[str], turn: Turn) -> None:
        """Mount at once what other pods failed to mount, now that a pod has unmounted it.

        Source: nestedpendingoperations.go, Run: an operation of another name resets the back-off.
        """
        for uid, mount in self._mounts.items() if names else ():
            for each in mount.volumes:
                view = each.view if isinstance(each, pod_volume.ClaimVolume) else None
                if view is None or view.unique_name not in names:
                    continue
                if each.tries and each.due_ns > turn.now_ns:
                    each.tries, each.due_ns = 0, turn.now_ns + pod_volume.LOOP_NS
                    self._arm(uid, mount, turn)

    def on_object_event(self, event: WatchEvent) -> list[PodUid]:
        """Note what a watch says; return the pods that may go on."""
        if not self.objects.on_event(event):
            return []
        found = []
        for uid, mount in self._mounts.items():
            for volume in mount.volumes:
                if volume.patience_ns:
                    volume.due_ns = pod_volume.AT_ONCE
                    found.append(uid)
        return list(dict.fromkeys(found))

    def begin(self, pod: Pod, turn: Turn) -> None:
        """Begin to wait for the volumes: the loops each need up to one turn of 100 ms.

        A sync that waits again finds what went on since; its claims are read again.
        """
        share = turn.draw(_STREAM_LOOP)
        due_ns = turn.now_ns + pod_volume.LOOP_NS + int(pod_volume.LOOP_NS * share)
        mount = self._mounts.get(pod.uid)
        if mount is None:
            volumes = [self._volume(pod, each) for each in pod.spec.volumes if each.mounted]
            mount = self._mounts[pod.uid] = pod_volume.PodMount(volumes)
        elif self.claims is not None:
            self.claims.reprocess(pod, turn)
        mount.began_ns = turn.now_ns
        mount.seen_ns = 0
        mount.limits_asked = False
        mount.waited = True
        self._wait(pod.uid, mount, due_ns, turn)

    def remount(
        self, pod: Pod, key: watched_objects.ObjectKey, turn: Turn
    ) -> list[pod_volume.PendingVolume]:
        """Mount again, at the next resync of a pod that runs, what an object lacks a key for.

        That fails until the key, or the whole object, is back. Return the volumes that are new
        among those that are to be mounted.
        Source: ReprocessPod; configmap.go, RequiresRemount, MakePayload.
        """
        mount = self._mounts.get(pod.uid)
        if mount is not None and not mount.is_remount:
            return []
        pending = () if mount is None else tuple(each.spec.name for each in mount.volumes)
        volumes = [
            self._volume(pod, each)
            for each in pod.spec.volumes
            if each.mounted and each.name not in pending and self._lacks(pod, each, key)
        ]
        if not volumes:
            return []
        if mount is None:
            mount = self._mounts[pod.uid] = pod_volume.PodMount([], is_remount=True)
        mount.volumes += volumes
        share = turn.draw(_STREAM_REMOUNT, pod.uid) * RESYNCS
        for each in volumes:
            each.tokens = 0
            each.due_ns = turn.now_ns + int(share * turn.env.model.kubelet.sync_frequency_ns)
        self._arm(pod.uid, mount, turn)
        return volumes

    def reprocess(self, pod: Pod, turn: Turn) -> None:
        """Mount again, at a sync of a pod, what its next resync was to find lacking.

        Its claims are read again. Source: WaitForAttachAndMount, ReprocessPod; populatorLoop, each
        100 ms.
        """
        if self.claims is not None and self.claims.has(pod.uid):
            self.claims.plan_look(pod.uid, turn)
        mount = self._mounts.get(pod.uid)
        if mount is None or not mount.is_remount:
            return
        for each in mount.volumes:
            if not (isinstance(each, pod_volume.ClaimVolume) or each.spec.driver or each.tries):
                each.due_ns = min(each.due_ns, turn.now_ns + pod_volume.LOOP_NS)
        self._arm(pod.uid, mount, turn)

    def _lacks(self, pod: Pod, volume: VolumeSpec, key: watched_objects.ObjectKey) -> bool:
        """Return whether a volume cannot show what it is to show of an object."""
        sources = watched_objects.sources_of(volume, pod.namespace)
        return any(each == key and self.objects.problem(key, source)[0] for each, source in sources)

    def _volume(self, pod: Pod, spec: VolumeSpec) -> pod_volume.PendingVolume:
        if spec.kind not in CLAIM_KINDS and not spec.driver:
            return pod_volume.PendingVolume(spec)
        if self.claims is None:
            self.claims = ClaimVolumes()
        if spec.driver:
            return pod_volume.PendingVolume(spec)
        return self.claims.add(pod, spec, is_found=self._runtime.sandbox(pod.uid) is not None)

    def abort(self, uid: PodUid) -> None:
        """Give the mounting up: the pod is to end."""
        self._mounts.pop(uid, None)

    def is_due(self, uid: PodUid, now_ns: int) -> bool:
        """Return whether an attempt to mount is due, or was woken."""
        mount = self._mounts.get(uid)
        return mount is not None and bool(mount.due_ns) and now_ns >= mount.due_ns

    def attempt(
        self, pod: Pod, turn: Turn
    ) -> tuple[pod_volume.MountResult, list[pod_volume.VolumeEvent]]:
        """Go on with every volume; return how it went and the events about the pod."""
        mount = self._mounts.get(pod.uid)
        if mount is None:
            return pod_volume.MountResult.WAITING, []
        events = self._attempt_all(pod, mount, turn)
        if not mount.volumes and (mount.waited or mount.is_remount):
            self._complete(pod, mount, turn)
            return pod_volume.MountResult.MOUNTED, events
        if self.claims is not None and self.claims.is_full(pod.uid):
            text = self._state_text(pod, mount, "context deadline exceeded")
            text = f"Node has reached its volume attachment limit, rejecting pod. {text}"
            return pod_volume.MountResult.REJECTED, [*events, (pod_volume.LIMIT_EXCEEDED, text)]
        given_up = self._give_up(pod, mount, turn.now_ns)
        if given_up == [] and self._asks_limits(pod, mount, turn):
            return pod_volume.MountResult.WAITING, events
        if given_up is not None:
            mount.waited = False
        self._arm(pod.uid, mount, turn)
        if given_up is not None:
            events += [(Reason.FAILED_MOUNT, each) for each in given_up]
            return pod_volume.MountResult.GIVEN_UP, events
        return pod_volume.MountResult.WAITING, events

    def _attempt_all(
        self, pod: Pod, mount: pod_volume.PodMount, turn: Turn
    ) -> list[pod_volume.VolumeEvent]:
        events: list[pod_volume.VolumeEvent] = []
        for volume in tuple(mount.volumes):
            if not volume.due_ns or turn.now_ns < volume.due_ns:
                continue
            error = self._attempt_one(pod, volume, turn)
            is_refused = error is not None and error.startswith(pod_volume.NEVER_MAPPED)
            if is_refused:
                volume.due_ns = turn.now_ns + pod_volume.LOOP_NS
            elif error:
                volume.due_ns = turn.now_ns + pod_volume.back_off_ns(volume.tries)
                volume.tries += 1
            elif error is not None:
                mount.volumes.remove(volume)
                if isinstance(volume, pod_volume.ClaimVolume) and volume.view and volume.spec.block:
                    events += pod_volume.mapped_events(pod.uid, volume.view)
            if error and error != QUIET:
                is_map = error.startswith("MapVolume.") and not is_refused
                events.append((Reason.FAILED_MAP_VOLUME if is_map else Reason.FAILED_MOUNT, error))
        return events

    def _asks_limits(self, pod: Pod, mount: pod_volume.PodMount, turn: Turn) -> bool:
        """Ask once, before a sync gives up, whether the node is full; return whether it waits."""
        if self.claims is None:
            return False
        if not mount.limits_asked:
            mount.limits_asked = True
            return self.claims.ask_limits(pod, turn)
        return self.claims.is_asking(pod.uid)

    def _attempt_one(self, pod: Pod, volume: pod_volume.PendingVolume, turn: Turn) -> str | None:
        if isinstance(volume, pod_volume.ClaimVolume):
            assert self.claims is not None, pod.uid
            return self.claims.attempt(pod, volume, turn)
        if volume.spec.host_path:
            return self._set_up_host_path(pod, volume, turn)
        return self._set_up(pod, volume, turn)

    def _set_up_host_path(self, pod: Pod, volume: pod_volume.PendingVolume, turn: Turn) -> str:
        """Look at a path of the machine; return "" if the pod may mount it, else the error.

        Source: pkg/volume/hostpath/host_path.go, SetUp. Differs: Windows has every path.
        """
        volume.due_ns = 0
        spec, model = volume.spec, turn.env.model
        if model.is_windows:
            return ""
        machine = types_by_path(model.machine_paths)
        error = self._runtime.set_up_host_path(
            spec, machine, turn.now_ns, names_type=model.release.names_path_type
        )
        return error and pod_volume.failed(pod_volume.volume_name(spec, pod), spec, "SetUp", error)

    def _set_up(self, pod: Pod, volume: pod_volume.PendingVolume, turn: Turn) -> str | None:
        """Set a local volume up; return None while it waits, "" once done, else the error."""
        volume.due_ns = 0
        spec = volume.spec
        if volume.tokens < 0:
            volume.error = ""
            volume.tokens = self.tokens.request(pod, spec, turn)
        if volume.reads < 0:
            keys = (key for key, _ in watched_objects.sources_of(spec, pod.namespace))
            volume.reads = self.objects.ask(keys, pod.uid, spec.name, turn)
        if volume.tokens or volume.reads:
            return None
        sources = watched_objects.sources_of(spec, pod.namespace)
        found = [self.objects.problem(key, source) for key, source in sources]
        known = (volume.error, spec.flaw, *(error for error, _ in found))
        errors = [error for error in known if error]
        is_unsynced = any(lags for _, lags in found)
        if spec.driver:
            errors += pod_volume.inline_problem(spec.driver, turn.env)
            if not errors and volume.secret:
                # Ask for the Secret that an inline CSI volume is published with, by each attempt.
                # Source: csi_mounter.go, SetUpAt.
                if volume.secret < 0:
                    volume.secret = 1
                    name, step = volume.spec.name, int(pod_volume.Step.PUBLISH_SECRET)
                    target = ClaimTarget(pod.namespace, volume.spec.secret, name, step)
                    turn.call(Op.GET_CSI_SECRET, pod.uid, target)
                return None
            tokens = None if errors or self.claims is None else self.claims.tokens
            if tokens is not None and not tokens.are_there(pod, spec.name, spec.driver, turn):
                return None
        if not errors:
            return ""
        if is_unsynced and not volume.patience_ns:
            volume.patience_ns = turn.now_ns + watched_objects.SYNC_WAIT_NS
        if is_unsynced and turn.now_ns < volume.patience_ns:
            volume.due_ns = volume.patience_ns
            return None
        volume.patience_ns = 0
        volume.reads = -1
        volume.secret = -1 if spec.driver and spec.secret else 0
        if volume.error:
            volume.tokens = -1
        name, text = pod_volume.volume_name(spec, pod), aggregate(errors)
        return f'MountVolume.SetUp failed for volume "{name}" : {text}'

    def _on_inline_secret(self, pod: Pod, target: ClaimTarget, reply: Reply) -> bool:
        """Take that Secret; return whether its volume may go on."""
        for volume in self._waiting(pod.uid, target.volume):
            if volume.spec.secret and volume.secret > 0:
                volume.secret, volume.due_ns = 0, pod_volume.AT_ONCE
                if not reply.ok:
                    ref = (target.namespace, target.name)
                    volume.error = pod_volume.unread_publish_secret(ref, reply.message)
                return True
        return False

    def _complete(self, pod: Pod, mount: pod_volume.PodMount, turn: Turn) -> None:
        del self._mounts[pod.uid]
        self.objects.stop_immutable(pod, turn)
        if mount.is_remount:
            return
        is_csi = any(each.driver for each in pod.spec.volumes)
        if self.claims is not None and (is_csi or self.claims.has(pod.uid)):
            self.claims.plan_resync(pod.uid, turn)

    def _give_up(self, pod: Pod, mount: pod_volume.PodMount, now_ns: int) -> list[str] | None:
        """Return the event of a sync that fails: none of a time-out; None while it waits.

        Source: kubelet.go, SyncPod; WaitForAttachAndMount, verifyVolumesMountedFunc.
        """
        if not mount.waited:
            return None
        failures = self.claims.failures(pod.uid) if self.claims is not None else []
        if failures and not mount.seen_ns:
            mount.seen_ns = pod_volume.mount_seen_ns(mount.began_ns, now_ns)
        if failures and now_ns >= mount.seen_ns:
            text = self._state_text(pod, mount, "; ".join(failures))
            return [f"Unable to attach or mount volumes: {text}"]
        return [] if now_ns >= mount.began_ns + MOUNT_TIMEOUT_NS else None

    def _state_text(self, pod: Pod, mount: pod_volume.PodMount, error: str) -> str:
        """Say which volumes are missing. Source: WaitForAttachAndMount."""
        assert self.claims is not None, pod.uid
        unmounted = " ".join(
            sorted(pod_volume.volume_name(each.spec, pod) for each in mount.volumes)
        )
        unattached = " ".join(sorted(self.claims.names_of(pod.uid, desired=True)))
        unprocessed = " ".join(sorted(self.claims.names_of(pod.uid, desired=False)))
        return (
            f"unmounted volumes=[{unmounted}], unattached volumes=[{unattached}], "
            f"failed to process volumes=[{unprocessed}]: {error}"
        )

    def _arm(self, uid: PodUid, mount: pod_volume.PodMount, turn: Turn) -> None:
        """Set one timer, for what is due next."""
        wanted = [each.due_ns for each in mount.volumes if each.due_ns]
        if mount.waited and any(
            isinstance(each, pod_volume.ClaimVolume) or each.tries for each in mount.volumes
        ):
            wanted.append(mount.began_ns + MOUNT_TIMEOUT_NS)
            if mount.seen_ns:
                wanted.append(mount.seen_ns)
        if wanted:
            self._wait(uid, mount, min(wanted), turn)
        else:
            mount.due_ns = 0

    def _wait(self, uid: PodUid, mount: pod_volume.PodMount, due_ns: int, turn: Turn) -> None:
        if mount.due_ns != due_ns:
            mount.due_ns = due_ns
            turn.arm(due_ns, Timer.VOLUMES, uid)

    # ---- answers ----

    def _waiting(self, uid: PodUid, name: str) -> list[pod_volume.PendingVolume]:
        """Return the volumes of a pod that are being mounted, of a name if there is one."""
        mount = self._mounts.get(uid)
        found = mount.volumes if mount is not None else ()
        return [each for each in found if name in {"", each.spec.name}]

    def on_token(self, pod: Pod, call: ApiCall, reply: Reply, turn: Turn) -> bool:
        """Take the answer to a token request; return whether a volume waited for it."""
        request = call.payload
        assert isinstance(request, TokenRequest), call
        self.tokens.on_reply(pod.uid, request, reply, turn)
        for volume in self._waiting(pod.uid, request.volume):
            if volume.tokens > 0:
                if not reply.ok:
                    volume.error = f"failed to fetch token: {reply.message}"
                volume.tokens -= 1
                volume.due_ns = 0 if volume.tokens else pod_volume.AT_ONCE
                return not volume.tokens
        if not reply.ok:
            self.tokens.try_again(request, turn)
        return False

    def on_claim_reply(self, pod: Pod, call: ApiCall, reply: Reply, turn: Turn) -> bool:
        """Take the answer to a call for a volume; return whether it may go on."""
        if isinstance(call.payload, ClaimStatusPatch):
            volume, claims = call.payload.volume, self.claims
            return claims is not None and claims.on_expanding(pod, volume, reply, turn)
        if isinstance(call.payload, TokenRequest):
            return self._on_csi_token(pod, call.payload, reply, turn)
        if isinstance(call.payload, ObjectTarget):
            return self._on_object(pod, call, call.payload, reply, turn)
        assert isinstance(call.payload, ClaimTarget), call
        if call.op is Op.GET_CSI_SECRET and self._on_inline_secret(pod, call.payload, reply):
            return True
        claims = self.claims
        can_go_on = claims is not None and claims.on_reply(pod, call.payload, reply, turn)
        if can_go_on and call.payload.step == pod_volume.Step.REFRESH:
            self._publish_again(pod, call.payload.volume, turn)
            return False
        return can_go_on

    def _on_csi_token(self, pod: Pod, request: TokenRequest, reply: Reply, turn: Turn) -> bool:
        """Take a token that a CSI driver wants; return whether its volume may go on."""
        error = None if self.claims is None else self.claims.on_token(pod, request, reply, turn)
        for volume in self._waiting(pod.uid, request.volume):
            if error is not None:
                volume.due_ns, volume.error = pod_volume.AT_ONCE, error
        return pod.uid in self._mounts

    def _publish_again(self, pod: Pod, name: str, turn: Turn) -> None:
        """Publish a volume of a pod that runs once more. Source: MarkRemountRequired."""
        mount = self._mounts.get(pod.uid)
        if self.claims is None or (mount is not None and not mount.is_remount):
            return
        if mount is None:
            mount = self._mounts[pod.uid] = pod_volume.PodMount([], is_remount=True)
        for spec in pod.spec.volumes:
            if spec.name == name and all(each.spec.name != name for each in mount.volumes):
                claim = self.claims.publish_again(pod.uid, name, turn)
                volume = pod_volume.PendingVolume(spec) if spec.driver else claim
                if volume is not None:
                    mount.volumes.append(volume)
        if not mount.volumes:
            del self._mounts[pod.uid]
            return
        self._arm(pod.uid, mount, turn)

    def _on_object(
        self, pod: Pod, call: ApiCall, target: ObjectTarget, reply: Reply, turn: Turn
    ) -> bool:
        """Take a ConfigMap or Secret that is not watched; what it lacks is missed at once."""
        kind = WatchKind.SECRET if call.op is Op.GET_SECRET else WatchKind.CONFIG_MAP
        key = (kind, target.namespace, target.name)
        self.objects.take(key, reply, turn)
        if not target.volume:
            self.objects.on_answer(pod.uid)
            lacking = self.remount(pod, key, turn)
            for volume in lacking:
                volume.reads, volume.due_ns = 0, pod_volume.AT_ONCE
            return bool(lacking)
        for volume in self._waiting(pod.uid, target.volume):
            if volume.reads > 0:
                volume.reads -= 1
                volume.due_ns = 0 if volume.reads or volume.tokens else pod_volume.AT_ONCE
        return pod.uid in self._mounts

    def on_node(self, attached: tuple[str, ...], in_use: tuple[str, ...]) -> list[PodUid]:
        """Take what the informer shows of the Node; return the pods that may go on.

        Volumes that a kubelet before us left in use are reported as gone unless a pod has them.
        """
        if self.claims is None:
            if not in_use:
                return []
            self.claims = ClaimVolumes()
        return self.claims.on_reported(in_use) + self.claims.on_node(attached)

    # ---- while a pod runs ----

    def on_timer(self, pod: Pod, turn: Turn) -> bool:
        """Look at the claims again, if it is time.

        Return whether a volume may be mounted: one that has grown.
        """
        self.objects.on_timer(pod.uid, turn)
        due_ns = self._polls.get(pod.uid, 0)
        if due_ns and turn.now_ns >= due_ns:
            if pod.uid not in self._mounts:
                self.objects.ask(watched_objects.reads_of(pod), pod.uid, "", turn)
            self._plan_poll(pod, turn)
        claims = self.claims
        if claims is not None and claims.is_resync_due(pod.uid, turn.now_ns):
            claims.reprocess(pod, turn)
            claims.plan_resync(pod.uid, turn)
            for spec in pod.spec.volumes:
                if spec.mounted and spec.driver and republishes(spec.driver, turn.env):
                    self._publish_again(pod, spec.name, turn)
        return claims is not None and claims.on_timer(pod, turn)

    def _plan_poll(self, pod: Pod, turn: Turn) -> None:
        """Plan the next resync that reads objects. Source: pod_workers.go, completeWork."""
        if any(watched_objects.reads_of(pod)):
            period_ns = turn.env.model.kubelet.sync_frequency_ns
            due_ns = turn.now_ns + int(period_ns * (1 + turn.draw(_STREAM_POLL, pod.uid) / 2))
            self._polls[pod.uid] = due_ns
            turn.arm(due_ns, Timer.VOLUMES, pod.uid)


def _tear_down(pod: Pod, mounted: _Mounted, turn: Turn) -> bool:
    """Try to unmount one volume if that is due; return whether it is unmounted."""
    if turn.now_ns < mounted.due_ns:
        return False
    if not _is_stuck(pod, mounted.spec, turn):
        return True
    loop_ns = int(pod_volume.LOOP_NS * turn.draw(_STREAM_UNMOUNT, f"{pod.uid}/{mounted.spec.name}"))
    mounted.due_ns = turn.now_ns + pod_volume.back_off_ns(mounted.tries) + loop_ns
    mounted.tries += 1
    return False


def _is_stuck(pod: Pod, spec: VolumeSpec, turn: Turn) -> bool:
    """Return whether a volume cannot be unmounted now.

    There is nothing to unmount of a path of the host. Source: host_path.go, TearDown.
    """
    if spec.host_path:
        return False
    if turn.env.model.broken.stuck_mounts:
        return True
    declared = turn.behavior(pod).volumes
    return volume_behavior(declared, spec.name, pod.annotations).unmount_fails
