"""The watches of the fleet: reflectors, their streams, and to whom goes what they bring.

A node's own reflectors serve its kubelet. Shared ones, on fleet's own connection, serve whom an
object names: NODE events decide what counts as Ready, PODS reach the kubelets in `light`. Nothing
is handed to a kubelet here: each input returns the events that follow from it, by node.

With `--watches shared` a kubelet that asks for a watch becomes a subscriber of the process's one:
    nodes, pods                             one watch each; an object goes to the node that it names
    services, runtimeclasses, csidrivers    one watch each; no kubelet reads what they bring
    configmaps, secrets                     one watch per object, for all nodes that refer to it
Events for a node that has not subscribed yet are kept until it does: nodes that exist before their
kubelet starts have pods already.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from fleet.errors import RemoteProtocolError
from fleet.k8s.effects import NodeId, StartWatch, StopWatch, Timer, WatchEvent, WatchKind
from fleet.k8s.objects import RuntimeClassView, ServiceView
from fleet.k8s.pods import EventType, NodeView, Pod
from fleet.k8s.volumes import CSIDriverView
from fleet.kubelet.environment import CATALOG_KINDS, on_catalog
from fleet.kubelet.kubelet import VirtualKubelet, base_watches
from fleet.kubelet.volumes.watched_objects import ObjectKey
from fleet.reactor.process import NOBODY, Entry, Process
from fleet.reactor.watch_delays import WatchDelays
from fleet.wire.api import watch
from fleet.wire.api.requests import slices_selector
from fleet.wire.http2.messages import Response, StreamOpened

NODE_KINDS = frozenset((WatchKind.NODE, WatchKind.PODS, WatchKind.CERTIFICATE_REQUESTS))
"""Of which a node watches what names it."""
OBJECT_KINDS = frozenset((WatchKind.CONFIG_MAP, WatchKind.SECRET))
SHARED_KINDS = CATALOG_KINDS | OBJECT_KINDS | {WatchKind.NODE, WatchKind.PODS}
"""All but PodCertificateRequests, and the watches of DRA drivers, which are no kubelet's."""


@dataclass(slots=True, eq=False)
class SharedObject:
    """One ConfigMap or Secret that several nodes refer to."""

    reflector: watch.Reflector
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
        if kind is WatchKind.PODS:
            found.sort(key=attrgetter("record.created_s"))
        return found


def node_name(record: object) -> str:
    """Return the node that an object is about."""
    if isinstance(record, Pod):
        return record.node_name
    assert isinstance(record, NodeView), record
    return record.name


def _object_key(record: object) -> str:
    return record.uid if isinstance(record, Pod) else node_name(record)


def _find(entry: Entry, key: ObjectKey) -> watch.Reflector | None:
    found = (each for each in entry.reflectors if (each.kind, each.namespace, each.name) == key)
    return next(found, None)


_OPENED = (watch.WatchPhase.STREAM, watch.WatchPhase.STOPPED)  # the latter for being idle
_ONE_BOOKMARK = [(EventType.BOOKMARK, None)]

Deliveries = list[tuple[NodeId, WatchEvent]]
"""Events by the node whose kubelet takes them; NOBODY's are the observer's."""


class Watches:
    """Keeps the reflectors of one process going."""

    def __init__(self, process: Process, delays: WatchDelays) -> None:
        self._process = process
        self._delays = delays
        self._bookmarks = watch.Bookmarks()
        self._shared: list[watch.Reflector] = []
        self._relisting: set[WatchKind] = set()  # of which everything comes once more
        self._waiting: dict[int, watch.Reflector] = {}  # for their back-off, by number
        self._numbers = 0
        self.are_shared = False  # nodes without watches of their own take part in the process's
        self.subscriptions = Subscriptions()
        self.services: dict[tuple[str, str], ServiceView] = {}  # as any watch shows them
        self.runtime_classes: dict[str, RuntimeClassView] = {}  # as any watch shows them
        self.csi_drivers: dict[str, CSIDriverView] = {}  # as any watch shows them

    # ---- what is asked for ----

    def start(self, want: StartWatch) -> Deliveries:
        """Open a watch of a kubelet, or give it its part of the process's."""
        node, kind, namespace, name = want
        entry = self._process.kubelets.entries[node]
        kubelet = entry.kubelet
        if kubelet is None:
            return []
        if kind in SHARED_KINDS and not kubelet.env.own_watches:
            return self._subscribe(want, kubelet)
        # Source: watch_based_manager.go, restartReflectorIfNeeded: Run of the same reflector.
        if kind in OBJECT_KINDS and (idle := _find(entry, (kind, namespace, name))) is not None:
            idle.phase = watch.WatchPhase.IDLE
            return self._open(idle)
        if kind is WatchKind.RESOURCE_SLICES:
            selector = slices_selector(kubelet.name.encode(), name.encode())
            reflector = watch.Reflector(node, kind, name, selector=selector)
        else:
            release = kubelet.env.model.release
            about = kubelet.name if kind in NODE_KINDS else name
            reflector = watch.Reflector(node, kind, about, namespace)
            reflector.lists_first = not release.streams_lists
            reflector.resets_backoff = release.resets_backoff
        entry.reflectors = (*entry.reflectors, reflector)
        return self._open(reflector)

    def stop(self, want: StopWatch) -> None:
        """End a watch of a kubelet, and a shared one that nobody else refers to."""
        node, kind, namespace, name, is_idle = want
        key = (kind, namespace, name)
        if self.subscriptions.leave(node, key):
            self._close_object(key)
        entry = self._process.kubelets.entries[node]
        reflector = _find(entry, key)
        if reflector is not None:
            watch.hang_up(reflector, self._lane(reflector))
            if not is_idle:
                entry.reflectors = tuple(each for each in entry.reflectors if each is not reflector)

    def end_all(self, node: NodeId, *, hangs_up: bool = False) -> None:
        """End all watches of a node; its connection is closed by others, unless `hangs_up`."""
        for key in self.subscriptions.remove(node):
            self._close_object(key)
        entry = self._process.kubelets.entries[node]
        for reflector in entry.reflectors:
            if hangs_up:
                watch.hang_up(reflector, self._lane(reflector))
            else:
                watch.end(reflector, self._process.counts)
        entry.reflectors = ()

    def share(self, kind: WatchKind, label: str = "") -> Deliveries:
        """Open a watch for the whole fleet on the observer's connection.

        NODE events go to the observer, and to the kubelets that have no watch of their own; PODS
        to the kubelet of their node name.
        """
        selector = watch.label_selector(label) if label else b""
        reflector = watch.SharedReflector(NOBODY, kind, "", selector=selector)
        self._shared.append(reflector)
        return self._open(reflector)

    def expect_relist(self) -> bool:
        """Let nothing count as synced until `relist`; return whether there is what to wait for."""
        self._relisting = {each.kind for each in self._shared}
        return bool(self._relisting)

    def relist(self) -> Deliveries:
        """Begin the shared watches again, for kubelets that have seen nothing yet."""
        self.expect_relist()
        found: Deliveries = []
        for reflector in self._shared:
            watch.hang_up(reflector, self._lane(reflector))
            reflector.phase = watch.WatchPhase.IDLE
            found += self._open(reflector)
        return found

    def kept_for(self, kubelet: VirtualKubelet) -> Deliveries:
        """Return what came for a node in `light` before its kubelet."""
        if kubelet.env.fidelity.asks_for_watches or kubelet.env.own_watches:
            return []
        return [
            (kubelet.node, event)
            for kind in (WatchKind.NODE, WatchKind.PODS)
            for event in self.subscriptions.claim(kind, kubelet.name)
        ]

    def are_open(self, node: NodeId) -> bool:
        """Return whether a node has opened the watches of its own that every kubelet has."""
        entry = self._process.kubelets.entries[node]
        kubelet, reflectors = entry.kubelet, entry.reflectors
        if kubelet is None or len(reflectors) <= len(base_watches(kubelet.env)):  # its pods follow
            return False
        return all(each.phase in _OPENED for each in reflectors)

    # ---- what happened ----

    def on_message(self, opening: watch.Opening, message: object, now_ns: int) -> Deliveries:
        """Take what the transport brought for a request of a reflector."""
        reflector = opening.reflector
        assert isinstance(reflector, watch.Reflector), opening
        if opening.number != reflector.opens or reflector.phase is watch.WatchPhase.STOPPED:
            return []
        found: Deliveries = []
        try:
            if type(message) is bytes:
                return self._on_chunk(reflector, message, now_ns)
            assert isinstance(message, (StreamOpened, Response)), message
            step = watch.on_message(reflector, self._lane(reflector), message, now_ns)
            if step.page is not None:
                events = reflector.on_page(step.page, self._process.codec.decode_list)
                found = self._deliver(reflector, events, now_ns)
        except RemoteProtocolError as error:
            step = watch.on_unreadable(reflector, self._lane(reflector), error, now_ns)
        return found + self._go_on(reflector, step, now_ns)

    def _on_chunk(self, reflector: watch.Reflector, chunk: bytes, now_ns: int) -> Deliveries:
        """Take bytes of a stream; most are one bookmark. Raises RemoteProtocolError."""
        kind, is_between = reflector.kind, reflector.is_between_events
        if is_between and (version := self._bookmarks.version_in(chunk, kind)):
            reflector.on_bookmark(version)
            self._process.counts.watch_events += 1
            return []
        codec = self._process.codec
        events = reflector.on_chunk(chunk, codec.decode_watch_event, codec.split)
        if is_between and reflector.is_between_events and events == _ONE_BOOKMARK:
            self._bookmarks.learn(chunk, kind, reflector.version)
        return self._deliver(reflector, events, now_ns)

    def on_due(self, number: int) -> Deliveries:
        """Open what had to wait, unless it has been stopped or begun again."""
        reflector = self._waiting.pop(number, None)
        if reflector is None or reflector.waits != number:
            return []
        return self._open(reflector)

    # ---- streams ----

    def _lane(self, reflector: watch.Reflector) -> watch.Lane:
        """Return the connection that a reflector uses; a shared one gets the user."""
        process = self._process
        if reflector.node == NOBODY:
            return watch.Lane(process.wires.observer, 0, process.counts, process.draws)
        entry = process.kubelets.entries[reflector.node]
        caller = entry.caller
        user = caller.user if caller.template.impersonate else b""
        return watch.Lane(
            process.wires.nodes, entry.watch_pool, process.counts, process.draws, user
        )

    def _open(self, reflector: watch.Reflector) -> Deliveries:
        """Send the next request; those who read a snapshot learn that one begins."""
        watch.open_watch(reflector, self._lane(reflector), self._process.clock.now_ns())
        if not reflector.begins:
            return []
        begins = WatchEvent(reflector.kind, EventType.RESTARTED)
        if reflector.node != NOBODY or reflector.kind is WatchKind.NODE:
            return [(NodeId(reflector.node), begins)]
        return [
            (kubelet.node, begins)
            for _, kubelet in self._process.kubelets.living()
            if not kubelet.env.own_watches
        ]

    def _go_on(self, reflector: watch.Reflector, step: watch.Step, now_ns: int) -> Deliveries:
        """Ask again, now or after the back-off."""
        if step.wait_ns == 0:
            return self._open(reflector)
        if step.wait_ns > 0:
            self._numbers += 1
            self._waiting[self._numbers] = reflector
            reflector.waits = self._numbers
            self._process.wheel.set(now_ns + step.wait_ns, self._numbers, Timer.WATCH_RETRY)
        return []

    def _close_object(self, key: ObjectKey) -> None:
        reflector = self.subscriptions.objects.pop(key).reflector
        watch.hang_up(reflector, self._lane(reflector))

    # ---- who takes it ----

    def _deliver(
        self, reflector: watch.Reflector, events: list[tuple[EventType, object]], now_ns: int
    ) -> Deliveries:
        """Return for whom events are; an ERROR ends the stream."""
        self._process.counts.watch_events += len(events)
        found: Deliveries = []
        kind, node = reflector.kind, NodeId(reflector.node)
        if self._delays.looked_for:
            for _, record in events:
                self._delays.on_event(node, record, now_ns)
        for event_type, record in events:
            if event_type is EventType.BOOKMARK:
                continue
            if event_type is EventType.ERROR:
                code = record if isinstance(record, int) else 0
                step = watch.on_error_event(reflector, self._lane(reflector), code, now_ns)
                return found + self._go_on(reflector, step, now_ns)
            event = WatchEvent(kind, event_type, record, reflector.namespace, reflector.name)
            if node == NOBODY:
                found += self._shared_event(event)
            else:
                found.append((node, event))
        return found

    def _shared_event(self, event: WatchEvent) -> Deliveries:
        """Route an event of a shared watch by the node that it names, or by who refers to it."""
        kind = event.kind
        if kind in OBJECT_KINDS:
            nodes = self.subscriptions.on_object(event)
            return [(node, event) for node in nodes]
        if kind in CATALOG_KINDS:
            on_catalog(self, event)
            return self._to_csi_nodes(event) if kind is WatchKind.CSI_DRIVERS else []
        if event.type is EventType.SYNCED:
            self._relisting.discard(kind)
            entries: Iterator[Entry] = iter(self._process.kubelets.entries)
        else:
            entries = self._named_by(event)
        takers = (self._taker(entry, kind) for entry in entries)
        found = [(node, event) for node in takers if node is not None]
        return [*found, (NOBODY, event)] if kind is WatchKind.NODE else found

    def _to_csi_nodes(self, event: WatchEvent) -> Deliveries:
        """Send what a CSIDriver says to the nodes that have some driver."""
        if event.record is None:
            return []
        kubelets = (entry.kubelet for entry in self._process.kubelets.entries)
        return [
            (kubelet.node, event)
            for kubelet in kubelets
            if kubelet is not None
            and kubelet.env.model.csi_drivers
            and kubelet.env.fidelity.asks_for_watches
            and not kubelet.env.own_watches
        ]

    def _named_by(self, event: WatchEvent) -> Iterator[Entry]:
        """Return the entry of the node that an object names; keep what nobody can take yet."""
        name = node_name(event.record)
        node = self._process.kubelets.by_name.get(name)
        entry = self._process.kubelets.entries[node] if node is not None else None
        if entry is not None and self._taker(entry, event.kind) is not None:
            yield entry
        elif self.are_shared and (entry is None or entry.kubelet is not None):
            self.subscriptions.keep(event, name)

    def _taker(self, entry: Entry, kind: WatchKind) -> NodeId | None:
        """Return the node of an entry if it gets its nodes or pods from a shared watch by now."""
        kubelet = entry.kubelet
        if kubelet is None or kubelet.env.own_watches:
            return None
        if not kubelet.env.fidelity.asks_for_watches or self.subscriptions.has(kind, kubelet.node):
            return kubelet.node
        return None

    def _subscribe(self, want: StartWatch, kubelet: VirtualKubelet) -> Deliveries:
        """Give a kubelet its part of a shared watch: what there is, and from now on what comes."""
        node, kind, namespace, name = want
        if kind in CATALOG_KINDS:
            return []
        found: Deliveries = []
        if kind in OBJECT_KINDS:
            reflector, found = self._subscribe_object(want)
        else:
            reflector = next(each for each in self._shared if each.kind is kind)
            self.subscriptions.add(kind, node)
            found = [(node, event) for event in self.subscriptions.claim(kind, kubelet.name)]
        if reflector.phase is watch.WatchPhase.STREAM and kind not in self._relisting:
            found.append((node, WatchEvent(kind, EventType.SYNCED, None, namespace, name)))
        return found

    def _subscribe_object(self, want: StartWatch) -> tuple[watch.Reflector, Deliveries]:
        node, kind, namespace, name = want
        key = (kind, namespace, name)
        shared = self.subscriptions.objects.get(key)
        if shared is None:
            reflector = watch.SharedReflector(NOBODY, kind, name, namespace)
            shared = self.subscriptions.objects[key] = SharedObject(reflector)
            self._open(reflector)
        shared.nodes[node] = None
        if shared.record is None:
            return shared.reflector, []
        event = WatchEvent(kind, EventType.ADDED, shared.record, namespace, name)
        return shared.reflector, [(node, event)]
