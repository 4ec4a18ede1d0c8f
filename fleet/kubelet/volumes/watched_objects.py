"""ObjectManager: the ConfigMaps and Secrets that the pods of a node refer to.

Each has a watch of its own, unless configMapAndSecretChangeDetectionStrategy says otherwise: `Get`
asks for an object whenever it is read, `Cache` when what it has is older than the TTL of the Node.

The pods that refer to an object share its watch; it ends with the last of them. What it holds is
kept once for all nodes. An immutable one is watched until it was read once. What only environments
need is read when a container starts: once a minute watches are stopped that nobody read for
5 minutes, and the next read starts them again. Volumes and pull secrets are read at each sync of
their pod.
Source: pkg/kubelet/util/manager/watch_based_manager.go, cache_based_manager.go;
configmap/configmap_manager.go; secret/secret_manager.go.
Differs: a read that starts a watch again takes what was known, and does not wait for it. Pods
that read an object at the same moment ask for it each.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fleet.clock import NS_PER_S
from fleet.k8s.effects import (
    Op,
    Reply,
    ReplyKind,
    StartWatch,
    StopWatch,
    Timer,
    WatchEvent,
    WatchKind,
)
from fleet.k8s.objects import ServiceView
from fleet.k8s.pods import EnvRef, EventType, ObjectSource, Pod, PodUid, TokenSource, VolumeSpec
from fleet.k8s.volumes import ObjectData, ObjectTarget
from fleet.k8s.well_known import TTL_ANNOTATION
from fleet.kubelet.environment import Environment
from fleet.kubelet.turn import Turn
from fleet.kubelet.volumes.token_cache import TokenCache
from fleet.profile.kubelet_configuration import DNSSettings
from fleet.runtime.program import Sources
from fleet.runtime.programs import program_of

RECYCLE_NS = 60 * NS_PER_S  # startRecycleIdleWatch runs so often
IDLE_NS = 5 * 60 * NS_PER_S  # maxIdleTime of the watch based manager
SYNC_WAIT_NS = 1 * NS_PER_S  # how long a cache is polled that has not synced
TTL_NS = 60 * NS_PER_S  # defaultTTL, of Nodes without the annotation
_STREAM_RECYCLE = 0x0B1EC7
NOT_SYNCED = "failed to sync %s cache: timed out waiting for the condition"
NAMES = {WatchKind.CONFIG_MAP: "configmap", WatchKind.SECRET: "secret"}
KINDS = {"ConfigMap": WatchKind.CONFIG_MAP, "Secret": WatchKind.SECRET}
_KEY_MISSING = {
    WatchKind.CONFIG_MAP: "configmap references non-existent config key: %s",
    WatchKind.SECRET: "references non-existent secret key: %s",
}

ObjectKey = tuple[WatchKind, str, str]  # kind, namespace, name
LEFT_MAX = 64  # objects of which a node knows the last texts once no pod of it refers to them


_UNREAD = ObjectData("", "")


@dataclass(slots=True, eq=False)
class _Object:
    """A ConfigMap or Secret as its watch shows it."""

    refs: int = 0
    readers: int = 0  # pods that read it at each of their syncs
    read_ns: int = 0  # when a container last needed it, 0 for never
    synced: bool = False
    exists: bool = False
    seen: bool = False  # since the watch was started
    data: ObjectData = _UNREAD  # shared by the nodes that have the same
    stopped: bool = False  # the watch: immutable and read, or idle, or not wanted at all
    asked_ns: int = -1  # when the newest answer to a GET came, -1 for none that counts
    error: str = ""  # why a GET failed


@dataclass(slots=True, eq=False)
class ObjectManager:
    """The objects that the pods of one node refer to."""

    _objects: dict[ObjectKey, _Object] = field(default_factory=dict)
    _awaited: dict[PodUid, int] | None = None  # answers that are no volume's, if it polls
    _idle_ns: int = 0  # when idle watches are looked for next, 0 for never
    _left: dict[ObjectKey, ObjectData] | None = None  # for the logs of pods that ended

    def register_pod(self, pod: Pod, turn: Turn) -> None:
        """Watch what a pod refers to. Source: secret and configmap Manager.RegisterPod."""
        often = read_often(pod)
        for key in references(pod):
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = _Object(stopped=is_polled(turn))
                if not found.stopped:
                    turn.out.append(StartWatch(turn.node, *key))
            found.refs += 1
            found.asked_ns = -1
            if key in often:
                found.readers += 1
            elif not is_polled(turn):
                self._plan_recycling(pod.uid, turn.now_ns, turn)

    def unregister_pod(self, pod: Pod, turn: Turn) -> bool:
        """Stop the watches that no other pod needs; return whether its log depends on them."""
        often = read_often(pod)
        is_read = any(program_of(pod, each).reads_files for each in pod.spec.all_containers)
        for key in references(pod):
            found = self._objects[key]
            found.refs -= 1
            found.readers -= key in often
            if not found.refs:
                del self._objects[key]
                if found.exists and is_read:
                    # Of what the logs of pods that have ended are computed from, the last ones.
                    if self._left is None:
                        self._left = {}
                    self._left.pop(key, None)
                    self._left[key] = found.data
                    if len(self._left) > LEFT_MAX:
                        del self._left[next(iter(self._left))]
                if not is_polled(turn):
                    turn.out.append(StopWatch(turn.node, *key))
        return is_read

    def forget(self, uid: PodUid) -> None:
        """Wait for no more answers for a pod."""
        if self._awaited is not None:
            self._awaited.pop(uid, None)

    def on_timer(self, uid: PodUid, turn: Turn) -> None:
        """Stop idle watches if it is time, but none that has not synced.

        Source: startRecycleIdleWatch, stopIfIdle.
        """
        if not self._idle_ns or turn.now_ns < self._idle_ns:
            return
        self._idle_ns = 0
        for key, found in self._objects.items():
            if found.readers or found.stopped:
                continue
            if found.read_ns and turn.now_ns <= found.read_ns + IDLE_NS:
                due_ns = _tick_after(found.read_ns + IDLE_NS, turn)
                self._idle_ns = min(self._idle_ns or due_ns, due_ns)
            elif not found.synced:
                self._plan_recycling(uid, turn.now_ns, turn)
            else:
                found.stopped = True
                turn.out.append(StopWatch(turn.node, *key, is_idle=True))

    def _plan_recycling(self, uid: PodUid, wanted_ns: int, turn: Turn) -> None:
        due_ns = _tick_after(wanted_ns, turn)
        if not self._idle_ns or due_ns < self._idle_ns:
            self._idle_ns = due_ns
        turn.arm(due_ns, Timer.VOLUMES, uid)

    def stop_immutable(self, pod: Pod, turn: Turn) -> None:
        """Stop to watch what was read and will never change."""
        for key in references(pod):
            found = self._objects.get(key)
            if found is not None and found.data.immutable and found.exists and not found.stopped:
                found.stopped = True
                turn.out.append(StopWatch(turn.node, *key))

    def loses(self, event: WatchEvent) -> bool:
        """Return whether what a watch says takes an object away, or a key of it."""
        found = self._objects.get((event.kind, event.namespace, event.name))
        if found is None or found.stopped or not found.exists:
            return False
        if event.type is EventType.SYNCED:
            return not found.seen
        data = event.record
        if event.type is EventType.DELETED or not isinstance(data, ObjectData):
            return event.type is EventType.DELETED
        return data is not found.data and any(each not in data.keys for each in found.data.keys)

    def on_event(self, event: WatchEvent) -> bool:
        """Note what a watch says; return whether the object can be read by now."""
        found = self._objects.get((event.kind, event.namespace, event.name))
        if found is None or found.stopped:
            return False
        if event.type is EventType.SYNCED:
            found.synced = True
            found.exists = found.exists and found.seen
        elif event.type in (EventType.ADDED, EventType.MODIFIED):
            found.exists = found.seen = True
            if isinstance(event.record, ObjectData):
                found.data = event.record
        elif event.type is EventType.DELETED:
            found.exists = False
        return found.synced

    def problem(self, key: ObjectKey, source: ObjectSource) -> tuple[str, bool]:
        """Return why a volume cannot show an object, "" if it can, and whether the cache lags.

        Source: configmap.go and secret.go, SetUpAt, MakePayload.
        """
        kind, _, name = key
        found = self._objects[key]
        if not found.synced:
            return NOT_SYNCED % NAMES[kind], True
        if found.exists and found.error:
            return found.error, False
        if source.optional:
            return "", False
        if not found.exists:
            return found.error or f'{NAMES[kind]} "{name}" not found', False
        for each in source.keys:
            if each not in found.data.keys:
                return _KEY_MISSING[kind] % each, False
        return "", False

    def missing(self, pod: Pod, sources: tuple[EnvRef, ...], turn: Turn) -> str:
        """Return why the environment of a container cannot be built, "" when it can.

        Source: kubelet_pods.go, makeEnvironmentVariables.
        """
        for source in sources:
            kind = KINDS[source.kind]
            found = self._read((kind, pod.namespace, source.name), pod.uid, turn)
            if not found.synced:
                return found.error or NOT_SYNCED % NAMES[kind]
            if source.optional:
                continue
            if not found.exists:
                return found.error or f'{NAMES[kind]} "{source.name}" not found'
            if source.key and source.key not in {*found.data.keys} - {*found.data.binary}:
                where = f"{source.kind} {pod.namespace}/{source.name}"
                return f"couldn't find key {source.key} in {where}"
        return ""

    def _read(self, key: ObjectKey, uid: PodUid, turn: Turn) -> _Object:
        """Note that a container needs an object. Source: objectCache.Get."""
        found = self._objects[key]
        if is_polled(turn):
            return found
        found.read_ns = turn.now_ns
        if found.stopped and not found.data.immutable:
            found.stopped = found.seen = False
            turn.out.append(StartWatch(turn.node, *key))
        if not found.readers:
            self._plan_recycling(uid, turn.now_ns + IDLE_NS, turn)
        return found

    # ---- without watches ----

    def ask(self, keys: Iterable[ObjectKey], uid: PodUid, volume: str, turn: Turn) -> int:
        """Ask for what has to be read again; return how many answers are awaited.

        Source: objectStore.Get; simpleConfigMapManager.GetConfigMap.
        """
        if not is_polled(turn):
            return 0
        is_cache = _strategy(turn) == "Cache"
        asked = 0
        for key in dict.fromkeys(keys) if is_cache else keys:
            found = self._objects[key]
            is_good = found.exists and not found.error and found.asked_ns >= 0
            if is_cache and is_good and turn.now_ns < found.asked_ns + _ttl_ns(turn):
                continue
            op = Op.GET_SECRET if key[0] is WatchKind.SECRET else Op.GET_CONFIG_MAP
            target = ObjectTarget(key[1], key[2], volume, is_refresh=is_cache and is_good)
            turn.call(op, uid, target)
            asked += 1
        if asked and not volume:
            if self._awaited is None:
                self._awaited = {}
            self._awaited[uid] = self._awaited.get(uid, 0) + asked
        return asked

    def ask_environment(self, pod: Pod, sources: tuple[EnvRef, ...], turn: Turn) -> None:
        """Ask for what the environment of a container needs, each object once."""
        keys = ((KINDS[each.kind], pod.namespace, each.name) for each in sources)
        self.ask(dict.fromkeys(keys), pod.uid, "", turn)

    def is_asking(self, uid: PodUid) -> bool:
        """Return whether a container has to wait for answers."""
        return self._awaited is not None and uid in self._awaited

    def on_answer(self, uid: PodUid) -> None:
        """Count an answer that is no volume's."""
        if self._awaited is None:
            return
        left = self._awaited.pop(uid, 0) - 1
        if left > 0:
            self._awaited[uid] = left

    def take(self, key: ObjectKey, reply: Reply, turn: Turn) -> None:
        """Take an object as a GET shows it.

        Source: objectStore.Get: what was read stays when a refresh fails, or brings an older one.
        """
        found = self._objects.get(key)
        if found is None:
            return
        data = reply.record
        had_one = found.exists and not found.error and found.asked_ns >= 0
        if isinstance(data, ObjectData):
            old = found.data if had_one and _strategy(turn) == "Cache" else None
            if old is not None and int(data.resource_version) < int(old.resource_version):
                return
            found.data, found.synced, found.exists = data, True, True
            found.asked_ns, found.error = turn.now_ns, ""
        elif reply.kind is ReplyKind.NOT_FOUND:
            found.synced, found.exists = True, False
            found.asked_ns, found.error = turn.now_ns, reply.message
        elif not had_one or _strategy(turn) == "Get":
            found.error = reply.message
            found.synced = True

    # ---- what is known ----

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return what a ConfigMap or Secret holds as it was seen last, None if it was not."""
        key = (KINDS[kind], namespace, name)
        found = self._objects.get(key)
        if found is not None:
            data = found.data if found.exists else None
        else:
            data = None if self._left is None else self._left.get(key)
        return None if data is None else dict(zip(data.keys, data.texts, strict=False))

    def exists(self, kind: WatchKind, namespace: str, name: str) -> bool:
        """Return whether an object that a pod refers to is there, and could be read."""
        found = self._objects.get((kind, namespace, name))
        return found is not None and found.exists and not found.error

    def awaits_secrets(self, pod: Pod, since_ns: int, turn: Turn) -> bool:
        """Return whether a sync of a pod still waits for its pull secrets."""
        if is_polled(turn):
            return self.is_asking(pod.uid)
        keys = ((WatchKind.SECRET, pod.namespace, each) for each in pod.spec.pull_secrets)
        are_synced = all(self._objects[key].synced for key in keys)
        return not are_synced and turn.now_ns < since_ns + SYNC_WAIT_NS


def _tick_after(wanted_ns: int, turn: Turn) -> int:
    """Return the first full minute of the kubelet after an instant."""
    phase_ns = int(RECYCLE_NS * turn.env.draws.uniform(turn.node, _STREAM_RECYCLE, 0))
    return wanted_ns + RECYCLE_NS - (wanted_ns - phase_ns) % RECYCLE_NS


def _strategy(turn: Turn) -> str:
    return turn.env.model.kubelet.change_detection


def is_polled(turn: Turn) -> bool:
    """Return whether the node asks for objects instead of watching them."""
    return turn.env.model.kubelet.polls_objects


def _ttl_ns(turn: Turn) -> int:
    """Return for how long an object is good. Source: GetObjectTTLFromNodeFunc."""
    text = dict(turn.facts.state.annotations).get(TTL_ANNOTATION, "")
    try:
        return int(text) * NS_PER_S
    except ValueError:
        return TTL_NS


def references(pod: Pod) -> Iterator[ObjectKey]:
    """Yield each object that a pod refers to, once: secrets first, as upstream registers them."""
    seen: dict[ObjectKey, None] = {}
    for name in pod.spec.pull_secrets:
        seen[WatchKind.SECRET, pod.namespace, name] = None
    for kind, wanted in ((WatchKind.SECRET, "Secret"), (WatchKind.CONFIG_MAP, "ConfigMap")):
        for spec in pod.spec.all_containers:
            for source in spec.env_sources:
                if source.kind == wanted:
                    seen[kind, pod.namespace, source.name] = None
        for volume in pod.spec.volumes:
            for key, _ in sources_of(volume, pod.namespace):
                if key[0] is kind:
                    seen[key] = None
            if volume.secret and kind is WatchKind.SECRET:
                seen[kind, pod.namespace, volume.secret] = None
    return iter(seen)


def read_often(pod: Pod) -> frozenset[ObjectKey]:
    """Return what a pod reads at each sync: its pull secrets, and what its volumes show."""
    return frozenset(reads_of(pod))


def reads_of(pod: Pod) -> Iterator[ObjectKey]:
    """Yield what a sync of a pod that runs reads, as often as it does."""
    for name in pod.spec.pull_secrets:
        yield WatchKind.SECRET, pod.namespace, name
    for volume in pod.spec.volumes:
        if volume.mounted:
            for key, _ in sources_of(volume, pod.namespace):
                yield key


def sources_of(volume: VolumeSpec, namespace: str) -> Iterator[tuple[ObjectKey, ObjectSource]]:
    """Yield what a volume shows."""
    for source in volume.sources:
        yield (KINDS[source.kind], namespace, source.name), source


@dataclass(slots=True, frozen=True)
class PodSources(Sources):
    """The objects of one node; what all nodes see alike is kept once for all."""

    objects: ObjectManager
    tokens: TokenCache
    env: Environment

    def texts(self, kind: str, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return what a ConfigMap or Secret holds, None if that is unknown."""
        return self.objects.texts(kind, namespace, name)

    def token(self, uid: PodUid, source: TokenSource) -> str:
        """Return the token of a pod that a volume shows, "" if it has none yet."""
        return self.tokens.text(uid, source)

    @property
    def services(self) -> Mapping[tuple[str, str], ServiceView]:
        """Return the Services of the cluster, by namespace and name."""
        return self.env.services

    def allocatable(self, resource: str) -> str:
        """Return what the node has of a resource for its pods, "" if it has none."""
        return self.env.model.allocatable.get(resource, "")

    @property
    def dns(self) -> DNSSettings:
        """Return what the DNS settings of pods are made of."""
        return self.env.model.dns
