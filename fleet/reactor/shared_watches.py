"""Who takes what the shared watches bring, and what nobody could take yet.

With `--watches shared` a kubelet that asks for a watch becomes a subscriber of the process's one:

    nodes, pods                             one watch each; an object goes to the node that it names
    services, runtimeclasses, csidrivers    one watch each; no kubelet reads what they bring
    configmaps, secrets                     one watch per object, for all nodes that refer to it

Events for a node that has not subscribed yet are kept until it does: nodes that exist before their
kubelet starts have pods already.
"""

from dataclasses import dataclass, field

from fleet.k8s.effects import NodeId, WatchEvent, WatchKind
from fleet.k8s.pods import EventType, NodeView, Pod
from fleet.kubelet.environment import CATALOG_KINDS
from fleet.kubelet.volumes.watched_objects import ObjectKey
from fleet.wire.api.watch import Reflector

OBJECT_KINDS = frozenset((WatchKind.CONFIG_MAP, WatchKind.SECRET))
SHARED_KINDS = CATALOG_KINDS | OBJECT_KINDS | {WatchKind.NODE, WatchKind.PODS}
"""All but the watches of simulated DRA drivers, which are no kubelet's."""


@dataclass(slots=True, eq=False)
class SharedObject:
    """One ConfigMap or Secret that several nodes refer to."""

    reflector: Reflector
    nodes: dict[NodeId, None] = field(default_factory=dict)
    record: object = None  # as it was seen last, None if there is none


class Subscriptions:
    """The books of the shared watches of one process."""

    def __init__(self) -> None:
        self.own_prefix = ""  # of the names of this process's nodes
        self.objects: dict[ObjectKey, SharedObject] = {}
        self._nodes: dict[WatchKind, dict[NodeId, None]] = {}
        self._unclaimed: dict[tuple[WatchKind, str], dict[str, WatchEvent]] = {}

    def has(self, kind: WatchKind, node: NodeId) -> bool:
        """Return whether a node has subscribed."""
        return node in self._nodes.get(kind, ())

    def add(self, kind: WatchKind, node: NodeId) -> None:
        """Note a subscriber."""
        self._nodes.setdefault(kind, {})[node] = None

    def remove(self, node: NodeId) -> list[ObjectKey]:
        """Forget a node; return the objects that nobody refers to any more."""
        for nodes in self._nodes.values():
            nodes.pop(node, None)
        return [key for key in self.objects if self.leave(node, key)]

    def leave(self, node: NodeId, key: ObjectKey) -> bool:
        """Forget that a node refers to an object; return whether nobody does any more."""
        shared = self.objects.get(key)
        if shared is None or node not in shared.nodes:
            return False
        del shared.nodes[node]
        return not shared.nodes

    def on_object(self, event: WatchEvent) -> list[NodeId]:
        """Remember how an object is now; return the nodes that refer to it."""
        shared = self.objects.get((event.kind, event.namespace, event.name))
        if shared is None:
            return []
        if event.type is not EventType.SYNCED:
            shared.record = None if event.type is EventType.DELETED else event.record
        return list(shared.nodes)

    def keep(self, event: WatchEvent, name: str) -> None:
        """Keep the newest state of an object for a node that has not subscribed yet."""
        if not name.startswith(self.own_prefix):
            return
        key = (event.kind, name)
        found = self._unclaimed.setdefault(key, {})
        if event.type is EventType.DELETED:
            found.pop(_object_key(event.record), None)
        else:
            found[_object_key(event.record)] = event._replace(type=EventType.ADDED)
        if not found:
            del self._unclaimed[key]

    def claim(self, kind: WatchKind, name: str) -> list[WatchEvent]:
        """Return what was kept for a node, pods in the order of creation, and keep it no longer."""
        found = list(self._unclaimed.pop((kind, name), {}).values())
        return sorted(found, key=_created_s) if kind is WatchKind.PODS else found


def node_name(record: object) -> str:
    """Return the node that an object is about."""
    if isinstance(record, Pod):
        return record.node_name
    assert isinstance(record, NodeView), record
    return record.name


def _created_s(event: WatchEvent) -> int:
    assert isinstance(event.record, Pod), event
    return event.record.created_s


def _object_key(record: object) -> str:
    if isinstance(record, Pod):
        return record.uid
    assert isinstance(record, NodeView), record
    return record.name
