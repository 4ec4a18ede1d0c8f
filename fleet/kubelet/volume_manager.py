"""VolumeManager: what must be read before the containers of a pod may start.

    begin --reconciler's tick--> ask for tokens --all here--> look objects up --found--> mounted
                                                     |missing
                                                     v  FailedMount, wait 0.5 s, doubling to 122 s

Each ConfigMap and Secret that a pod on this node refers to has one watch of its own, shared by the
pods. Tokens are renewed at 80 % of their life, at a pod's resync.
Source: pkg/kubelet/volumemanager/volume_manager.go, reconciler/reconciler.go;
pkg/kubelet/util/manager/watch_based_manager.go; pkg/kubelet/token/token_manager.go.
Differs: only what the API sees is emulated; an idle watch is not stopped before its pod goes.
"""

import enum
from collections.abc import Iterator

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.effects import (
    ApiCall,
    NodeId,
    Op,
    Outbox,
    Reply,
    SetTimer,
    StartWatch,
    StopWatch,
    Timer,
    TokenRequest,
    WatchEvent,
    WatchKind,
)
from fleet.objects import (
    TOKEN_VOLUME,
    TOKEN_VOLUME_START,
    ContainerSpec,
    EventType,
    Pod,
    PodUid,
    Token,
    VolumeSpec,
)

LOOP_NS = 100 * NS_PER_MS  # populator and reconciler
MOUNT_POLL_NS = 300 * NS_PER_MS
SYNC_WAIT_NS = 1 * NS_PER_S
RETRY_FIRST_NS = 500 * NS_PER_MS
RETRY_MAX_NS = 122 * NS_PER_S
TOKEN_JITTER_S = 10
RESYNC_NS = 75 * NS_PER_S  # the mean interval at which a pod looks at its tokens
NOT_SYNCED = "failed to sync %s cache: timed out waiting for the condition"
_STREAM_LOOP = 0x70101
_STREAM_TOKEN = 0x70102
_NAMES = {WatchKind.CONFIG_MAP: "configmap", WatchKind.SECRET: "secret"}

ObjectKey = tuple[WatchKind, str, str]


class MountResult(enum.Enum):
    """How an attempt to mount the volumes of a pod went."""

    WAITING = 0
    MOUNTED = 1
    FAILED = 2


class _Object:
    """A watched ConfigMap or Secret."""

    __slots__ = ("exists", "refs", "synced")

    def __init__(self) -> None:
        self.refs = 0
        self.synced = False
        self.exists = False


class _Mount:
    """The volumes of one pod while they are being mounted."""

    __slots__ = ("began_ns", "due_ns", "error", "patience_ns", "tokens", "tries")

    def __init__(self, now_ns: int, due_ns: int) -> None:
        self.began_ns = now_ns
        self.due_ns = due_ns  # the next attempt, 0 while an answer is awaited
        self.tokens = -1  # how many are awaited; -1 when they have to be asked for
        self.error = ""  # why a token was refused
        self.patience_ns = 0  # until when an unsynced cache is waited for
        self.tries = 0


class VolumeManager:
    """Volumes, and the objects behind them, of the pods of one node."""

    __slots__ = ("_draws", "_mounts", "_node", "_objects", "_refresh")

    def __init__(self, node: NodeId, draws: Draws) -> None:
        self._node = node
        self._draws = draws
        self._objects: dict[ObjectKey, _Object] = {}
        self._mounts: dict[PodUid, _Mount] = {}
        self._refresh: dict[PodUid, int] = {}  # when a pod's tokens are renewed

    def register_pod(self, pod: Pod, out: Outbox) -> None:
        """Watch what a pod refers to. Source: secret and configmap Manager.RegisterPod."""
        for key in references(pod):
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = _Object()
                out.append(StartWatch(self._node, *key))
            found.refs += 1

    def update_pod(self, old: Pod, new: Pod, out: Outbox) -> None:
        """Follow a change of what a pod refers to: an ephemeral container may add some."""
        if old.ephemeral_containers != new.ephemeral_containers:
            self.register_pod(new, out)
            self._release(old, out)

    def unregister_pod(self, pod: Pod, out: Outbox) -> None:
        """Stop the watches that no other pod needs; forget the pod."""
        self._release(pod, out)
        self.abort(pod.uid)
        self._refresh.pop(pod.uid, None)

    def on_object_event(self, event: WatchEvent) -> list[PodUid]:
        """Note what a watch says; return the pods that may go on."""
        found = self._objects.get((event.kind, event.namespace, event.name))
        if found is None:
            return []
        if event.type is EventType.SYNCED:
            found.synced = True
        elif event.type in (EventType.ADDED, EventType.MODIFIED):
            found.exists = True
        elif event.type is EventType.DELETED:
            found.exists = False
        if not found.synced:
            return []
        return [uid for uid, mount in self._mounts.items() if mount.patience_ns]

    def begin(self, pod: Pod, now_ns: int, out: Outbox) -> None:
        """Begin to mount: populator and reconciler each need up to one turn of 100 ms."""
        share = self._draws.uniform(self._node, _STREAM_LOOP, now_ns)
        due_ns = now_ns + LOOP_NS + int(LOOP_NS * share)
        self._mounts[pod.uid] = _Mount(now_ns, due_ns)
        out.append(SetTimer(self._node, due_ns, Timer.VOLUMES, pod.uid))

    def abort(self, uid: PodUid) -> None:
        """Give the mounting up: the pod is to end."""
        self._mounts.pop(uid, None)

    def is_due(self, uid: PodUid, now_ns: int) -> bool:
        """Return whether an attempt to mount is due, or was woken."""
        mount = self._mounts.get(uid)
        return mount is not None and bool(mount.due_ns) and now_ns >= mount.due_ns

    def attempt(self, pod: Pod, now_ns: int, out: Outbox) -> tuple[MountResult, list[str]]:
        """Try to mount; return how it went and the messages of FailedMount events."""
        mount = self._mounts[pod.uid]
        mount.due_ns = 0
        if mount.tokens < 0:
            mount.error = ""
            mount.tokens = self._request_tokens(pod, out)
        if mount.tokens:
            return MountResult.WAITING, []
        errors, unsynced = self._errors(pod, mount)
        if not errors:
            del self._mounts[pod.uid]
            return MountResult.MOUNTED, []
        if unsynced and not mount.patience_ns:
            mount.patience_ns = now_ns + SYNC_WAIT_NS
        if unsynced and now_ns < mount.patience_ns:
            self._wait(pod.uid, mount, mount.patience_ns, out)
            return MountResult.WAITING, []
        mount.patience_ns = 0
        if mount.error:
            mount.tokens = -1
        delay_ns = min(RETRY_FIRST_NS << min(mount.tries, 8), RETRY_MAX_NS)
        mount.tries += 1
        self._wait(pod.uid, mount, now_ns + delay_ns, out)
        return MountResult.FAILED, errors

    def on_token(
        self, pod: Pod, request: TokenRequest, reply: Reply, now_ns: int, wall_ns: int, out: Outbox
    ) -> bool:
        """Take the answer to a token request; return whether a mount waited for it."""
        if reply.ok:
            self._plan_refresh(pod, request, reply, now_ns, wall_ns, out)
        mount = self._mounts.get(pod.uid)
        if mount is None or mount.tokens <= 0:
            return False
        if not reply.ok:
            mount.error = f"failed to fetch token: {reply.message}"
        mount.tokens -= 1
        return not mount.tokens

    def on_refresh_timer(self, pod: Pod, now_ns: int, out: Outbox) -> None:
        """Ask for new tokens if it is time."""
        due_ns = self._refresh.get(pod.uid, 0)
        if due_ns and now_ns >= due_ns:
            del self._refresh[pod.uid]
            self._request_tokens(pod, out)

    def missing(self, pod: Pod, spec: ContainerSpec) -> str:
        """Return why the environment of a container cannot be built, "" when it can.

        Source: kubelet_pods.go, makeEnvironmentVariables.
        """
        for source in spec.env_sources:
            kind = WatchKind.SECRET if source.kind == "Secret" else WatchKind.CONFIG_MAP
            error = self._missing(kind, pod.namespace, source.name)
            if error and not source.optional:
                return error
        return ""

    def _release(self, pod: Pod, out: Outbox) -> None:
        for key in references(pod):
            found = self._objects[key]
            found.refs -= 1
            if not found.refs:
                del self._objects[key]
                out.append(StopWatch(self._node, *key))

    def _request_tokens(self, pod: Pod, out: Outbox) -> int:
        count = 0
        for volume in pod.volumes:
            for token in volume.tokens:
                request = TokenRequest(
                    pod.namespace,
                    pod.service_account or "default",
                    token.audience,
                    token.expiration_s,
                    pod.name,
                    pod.uid,
                )
                out.append(ApiCall(self._node, Op.CREATE_TOKEN, pod.uid, request))
                count += 1
        return count

    def _plan_refresh(
        self,
        pod: Pod,
        request: TokenRequest,
        reply: Reply,
        now_ns: int,
        wall_ns: int,
        out: Outbox,
    ) -> None:
        """Renew with less than 20 % of the life left, at a resync. Source: requiresRefresh."""
        left_ns = request.expiration_s * NS_PER_S
        if isinstance(reply.record, Token) and reply.record.expires_s:
            left_ns = reply.record.expires_s * NS_PER_S - wall_ns
        share = self._draws.uniform(self._node, _STREAM_TOKEN, now_ns)
        due_ns = now_ns + max(left_ns * 4 // 5 - int(share * TOKEN_JITTER_S * NS_PER_S), NS_PER_S)
        due_ns += int(share * RESYNC_NS)
        known_ns = self._refresh.get(pod.uid, 0)
        if not known_ns or due_ns < known_ns:
            self._refresh[pod.uid] = due_ns
            out.append(SetTimer(self._node, due_ns, Timer.VOLUMES, pod.uid))

    def _wait(self, uid: PodUid, mount: _Mount, due_ns: int, out: Outbox) -> None:
        mount.due_ns = due_ns
        out.append(SetTimer(self._node, due_ns, Timer.VOLUMES, uid))

    def _errors(self, pod: Pod, mount: _Mount) -> tuple[list[str], bool]:
        """Return the message of each volume that cannot be mounted, and whether a cache lags."""
        messages = []
        unsynced = False
        for volume in pod.volumes:
            errors = [mount.error] if mount.error and volume.tokens else []
            for key, optional in _sources(volume, pod.namespace):
                error = self._missing(*key)
                if error and not (optional and self._objects[key].synced):
                    errors.append(error)
                    unsynced = unsynced or not self._objects[key].synced
            if errors:
                text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
                name = _volume_name(volume, pod)
                messages.append(f'MountVolume.SetUp failed for volume "{name}" : {text}')
        return messages, unsynced

    def _missing(self, kind: WatchKind, namespace: str, name: str) -> str:
        found = self._objects[kind, namespace, name]
        if not found.synced:
            return NOT_SYNCED % _NAMES[kind]
        return "" if found.exists else f'{_NAMES[kind]} "{name}" not found'


def _volume_name(volume: VolumeSpec, pod: Pod) -> str:
    """Return the name of a volume as the API has it."""
    if pod.token_suffix and volume.name == TOKEN_VOLUME.decode():
        return TOKEN_VOLUME_START.decode() + pod.token_suffix
    return volume.name


def mount_seen_ns(began_ns: int, now_ns: int) -> int:
    """Return when a sync that waits since `began_ns` sees what was mounted now.

    Source: volume_manager.go, WaitForAttachAndMount: it looks at once, then every 300 ms.
    """
    return began_ns - (began_ns - now_ns) // MOUNT_POLL_NS * MOUNT_POLL_NS


def references(pod: Pod) -> Iterator[ObjectKey]:
    """Yield each object that a pod refers to, once: secrets first, as upstream registers them."""
    seen: dict[ObjectKey, None] = {}
    for name in pod.pull_secrets:
        seen[WatchKind.SECRET, pod.namespace, name] = None
    specs = (*pod.init_containers, *pod.containers, *pod.ephemeral_containers)
    for kind, wanted in ((WatchKind.SECRET, "Secret"), (WatchKind.CONFIG_MAP, "ConfigMap")):
        for spec in specs:
            for source in spec.env_sources:
                if source.kind == wanted:
                    seen[kind, pod.namespace, source.name] = None
        for volume in pod.volumes:
            for key, _ in _sources(volume, pod.namespace):
                if key[0] is kind:
                    seen[key] = None
    return iter(seen)


def _sources(volume: VolumeSpec, namespace: str) -> Iterator[tuple[ObjectKey, bool]]:
    for name, optional in volume.secrets:
        yield (WatchKind.SECRET, namespace, name), optional
    for name, optional in volume.config_maps:
        yield (WatchKind.CONFIG_MAP, namespace, name), optional
