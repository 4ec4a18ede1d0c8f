"""ObjectManager: the ConfigMaps and Secrets that the pods of a node refer to, one watch for each.

The pods that refer to an object share its watch; it ends with the last of them. Of an object only
its keys are kept. An immutable one is watched until it was read once.
Source: pkg/kubelet/util/manager/watch_based_manager.go; configmap/configmap_manager.go;
secret/secret_manager.go.
Differs: an idle watch is not stopped before its pod goes.
"""

from collections.abc import Iterator

from fleet.effects import NodeId, Outbox, StartWatch, StopWatch, WatchEvent, WatchKind
from fleet.objects import EnvSource, EventType, ObjectSource, Pod, VolumeSpec
from fleet.volume_objects import ObjectData

NOT_SYNCED = "failed to sync %s cache: timed out waiting for the condition"
NAMES = {WatchKind.CONFIG_MAP: "configmap", WatchKind.SECRET: "secret"}
_KEY_MISSING = {
    WatchKind.CONFIG_MAP: "configmap references non-existent config key: %s",
    WatchKind.SECRET: "references non-existent secret key: %s",
}

ObjectKey = tuple[WatchKind, str, str]
"""Kind, namespace, name."""


class _Object:
    """A ConfigMap or Secret as its watch shows it."""

    __slots__ = ("exists", "immutable", "keys", "refs", "stopped", "synced")

    def __init__(self) -> None:
        self.refs = 0
        self.synced = False
        self.exists = False
        self.keys: tuple[str, ...] = ()
        self.immutable = False
        self.stopped = False  # the watch: an immutable object was read


class ObjectManager:
    """The objects that the pods of one node refer to."""

    __slots__ = ("_node", "_objects")

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._objects: dict[ObjectKey, _Object] = {}

    def register_pod(self, pod: Pod, out: Outbox) -> None:
        """Watch what a pod refers to. Source: secret and configmap Manager.RegisterPod."""
        for key in references(pod):
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = _Object()
                out.append(StartWatch(self._node, *key))
            found.refs += 1

    def unregister_pod(self, pod: Pod, out: Outbox) -> None:
        """Stop the watches that no other pod needs."""
        for key in references(pod):
            found = self._objects[key]
            found.refs -= 1
            if not found.refs:
                del self._objects[key]
                if not found.stopped:
                    out.append(StopWatch(self._node, *key))

    def stop_immutable(self, pod: Pod, out: Outbox) -> None:
        """Stop to watch what was read and will never change."""
        for key in references(pod):
            found = self._objects.get(key)
            if found is not None and found.immutable and found.exists and not found.stopped:
                found.stopped = True
                out.append(StopWatch(self._node, *key))

    def on_event(self, event: WatchEvent) -> bool:
        """Note what a watch says; return whether the object can be read by now."""
        found = self._objects.get((event.kind, event.namespace, event.name))
        if found is None or found.stopped:
            return False
        if event.type is EventType.SYNCED:
            found.synced = True
        elif event.type in (EventType.ADDED, EventType.MODIFIED):
            found.exists = True
            if isinstance(event.record, ObjectData):
                found.keys = event.record.keys
                found.immutable = event.record.immutable
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
        if source.optional:
            return "", False
        if not found.exists:
            return f'{NAMES[kind]} "{name}" not found', False
        for each in source.keys:
            if each not in found.keys:
                return _KEY_MISSING[kind] % each, False
        return "", False

    def missing(self, pod: Pod, sources: tuple[EnvSource, ...]) -> str:
        """Return why the environment of a container cannot be built, "" when it can.

        Source: kubelet_pods.go, makeEnvironmentVariables.
        """
        for source in sources:
            kind = WatchKind.SECRET if source.kind == "Secret" else WatchKind.CONFIG_MAP
            found = self._objects[kind, pod.namespace, source.name]
            if not found.synced:
                return NOT_SYNCED % NAMES[kind]
            if source.optional:
                continue
            if not found.exists:
                return f'{NAMES[kind]} "{source.name}" not found'
            if source.key and source.key not in found.keys:
                where = f"{source.kind} {pod.namespace}/{source.name}"
                return f"couldn't find key {source.key} in {where}"
        return ""

    def exists(self, kind: WatchKind, namespace: str, name: str) -> bool:
        """Return whether an object that a pod refers to is there."""
        found = self._objects.get((kind, namespace, name))
        return found is not None and found.exists


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
            for key, _ in sources_of(volume, pod.namespace):
                if key[0] is kind:
                    seen[key] = None
    return iter(seen)


def sources_of(volume: VolumeSpec, namespace: str) -> Iterator[tuple[ObjectKey, ObjectSource]]:
    """Yield what a volume shows."""
    for source in volume.secrets:
        yield (WatchKind.SECRET, namespace, source.name), source
    for source in volume.config_maps:
        yield (WatchKind.CONFIG_MAP, namespace, source.name), source
