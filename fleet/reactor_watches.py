"""The watches of the fleet: reflectors, their streams, and who gets what they bring.

A node's own reflectors serve its kubelet. Shared ones, on fleet's own connection, serve whom an
object names: NODE events decide what counts as Ready, PODS reach the kubelets in `light`.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from fleet.clock import Clock, Draws, TimerWheel
from fleet.effects import NodeId, Outbox, StartWatch, Timer, WatchEvent, WatchKind
from fleet.kubelet.environment import on_csi_driver
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.list_watches import ListWatches, Opening, Wire
from fleet.metrics import FleetCounts
from fleet.objects import EventType
from fleet.shared_watches import (
    OBJECT_KINDS,
    UNREAD_KINDS,
    ObjectKey,
    SharedObject,
    Subscriptions,
    node_name,
)
from fleet.volume_objects import CSIDriverView
from fleet.wire.calls import Caller
from fleet.wire.codec import JSON, Codec
from fleet.wire.messages import Request
from fleet.wire.watch import Phase, Reflector

NOBODY = NodeId(-1)
"""The owner of watches and timers that belong to no single kubelet."""


WATCH_KEY = "watch/"


class Entry:
    """What the reactor keeps of one kubelet."""

    __slots__ = ("caller", "kubelet", "pool", "reflectors", "story")

    def __init__(self, kubelet: VirtualKubelet, caller: Caller, pool: int) -> None:
        self.kubelet: VirtualKubelet | None = kubelet  # None once quarantined or removed
        self.caller = caller
        self.pool = pool
        self.reflectors: tuple[Reflector, ...] = ()
        self.story: deque[str] | None = None


class Watches(ListWatches[Reflector]):
    """The lower half of `Reactor`."""

    def __init__(self, clock: Clock, draws: Draws, codec: Codec = JSON) -> None:
        super().__init__(clock, draws)
        self.codec = codec
        self.counts = FleetCounts()
        self.wire: Wire | None = None  # set before the first kubelet is added
        self.observer: Wire | None = None  # fleet's own connection: Ready counts, shared watches
        self.on_observed: Callable[[WatchEvent], None] | None = None
        self.on_observed_anew: Callable[[], None] = lambda: None  # a snapshot follows
        self.entries: list[Entry] = []
        self.by_name: dict[str, NodeId] = {}
        self._wheel = TimerWheel()
        self._shared: list[Reflector] = []
        self._relisting: set[WatchKind] = set()  # of which everything comes once more
        self.are_shared = False  # nodes without watches of their own take part in the process's
        self.shared = Subscriptions()
        self.csi_drivers: dict[str, CSIDriverView] = {}  # as any watch shows them

    @abstractmethod
    def on_bug(self, error: Exception) -> None:
        """Mark the run for a bug that no single kubelet is to blame for, and go on."""

    @abstractmethod
    def _input(self, entry: Entry, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        """Hand an event to a kubelet."""

    @abstractmethod
    def _quarantine(self, entry: Entry, error: Exception) -> None:
        """Take one kubelet out of the run."""

    def watch_shared(self, kind: WatchKind, label: str = "") -> None:
        """Open a watch for the whole fleet on the observer's connection.

        NODE events go to `on_observed`, and to the kubelets that have no watch of their own; PODS
        to the kubelet that their node name tells.
        """
        reflector = Reflector(NOBODY, kind, "", label)
        self._shared.append(reflector)
        self._open(reflector)

    def _relist_shared(self) -> None:
        """Begin the shared watches anew, for kubelets that have seen nothing yet."""
        self._relisting = {each.kind for each in self._shared}
        for reflector in self._shared:
            wire, pool = self._way(reflector)
            wire.cancel(pool, Opening(reflector, reflector.opens))
            self._closed(reflector)
            reflector.phase = Phase.IDLE
            self._open(reflector)

    def _on_stream_safely(
        self, reflector: Reflector, message: object, now_ns: int, out: Outbox
    ) -> None:
        """Keep what a bug in reading one watch harms to the node whose watch it is."""
        try:
            self._on_stream(reflector, message, now_ns, out)
        except Exception as error:  # noqa: BLE001
            if reflector.node == NOBODY:
                self.on_bug(error)
            else:
                self._quarantine(self.entries[reflector.node], error)

    def _on_chunk(self, reflector: Reflector, data: bytes, now_ns: int, out: Outbox) -> None:
        found = reflector.on_chunk(data, self.codec.decode_watch_event, self.codec.split)
        self._deliver(reflector, found, now_ns, out)

    def _on_page(self, reflector: Reflector, body: bytes, now_ns: int, out: Outbox) -> None:
        found = reflector.on_page(body, self.codec.decode_list)
        self._deliver(reflector, found, now_ns, out)

    def _counts_of(self, reflector: Reflector) -> FleetCounts:
        del reflector
        return self.counts

    def _deliver(
        self,
        reflector: Reflector,
        found: list[tuple[EventType, object]],
        now_ns: int,
        out: Outbox,
    ) -> None:
        """Pass events on to the kubelet, or to whom a shared watch concerns."""
        kind = reflector.kind
        self.counts.watch_events += len(found)
        for event_type, record in found:
            if event_type is EventType.BOOKMARK:
                continue
            if event_type is EventType.ERROR:
                code = record if isinstance(record, int) else 0
                self._on_error_event(reflector, code, now_ns)
                return
            event = WatchEvent(kind, event_type, record, reflector.namespace, reflector.name)
            if reflector.node == NOBODY:
                self._deliver_shared(event, now_ns, out)
            else:
                self._input(self.entries[reflector.node], event, now_ns, out)

    def _deliver_shared(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        """Route an event of a shared watch by the node that it names, or by who refers to it."""
        kind = event.kind
        if kind in OBJECT_KINDS:
            self._deliver_object(event, now_ns, out)
        elif kind is WatchKind.CSI_DRIVERS:
            on_csi_driver(self.csi_drivers, event)
        elif kind not in UNREAD_KINDS:
            if event.type is EventType.SYNCED:
                self._on_shared_synced(event, now_ns, out)
            else:
                self._deliver_to_node(event, now_ns, out)
            if kind is WatchKind.NODE and self.on_observed is not None:
                self.on_observed(event)

    def _on_shared_synced(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        self._relisting.discard(event.kind)
        for entry in self.entries:
            if self._takes(entry, event.kind):
                self._input(entry, event, now_ns, out)

    def _takes(self, entry: Entry, kind: WatchKind) -> bool:
        """Return whether a kubelet gets its nodes or pods from a shared watch by now."""
        kubelet = entry.kubelet
        if kubelet is None or kubelet.env.own_watches:
            return False
        return kubelet.env.light or self.shared.has(kind, kubelet.node)

    def _deliver_to_node(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        name = node_name(event.record)
        node = self.by_name.get(name)
        entry = self.entries[node] if node is not None else None
        if entry is not None and self._takes(entry, event.kind):
            self._input(entry, event, now_ns, out)
        elif self.are_shared and (entry is None or entry.kubelet is not None):
            self.shared.keep(event, name)

    def _deliver_object(self, event: WatchEvent, now_ns: int, out: Outbox) -> None:
        shared = self.shared.objects.get((event.kind, event.namespace, event.name))
        if shared is None:
            return
        if event.type is not EventType.SYNCED:
            shared.record = None if event.type is EventType.DELETED else event.record
        for node in list(shared.nodes):
            self._input(self.entries[node], event, now_ns, out)

    def subscribe(self, want: StartWatch, now_ns: int, out: Outbox) -> None:
        """Give a kubelet its part of a shared watch: what there is, and from now on what comes."""
        kind, node = want.kind, want.node
        if kind in UNREAD_KINDS:
            return
        entry = self.entries[node]
        if kind in OBJECT_KINDS:
            reflector, events = self._subscribe_object(want)
        else:
            reflector = next(each for each in self._shared if each.kind is kind)
            self.shared.add(kind, node)
            assert entry.kubelet is not None
            events = self.shared.claim(kind, entry.kubelet.name)
        for event in events:
            self._input(entry, event, now_ns, out)
        if reflector.phase is Phase.STREAM and kind not in self._relisting:
            synced = WatchEvent(kind, EventType.SYNCED, None, want.namespace, want.name)
            self._input(entry, synced, now_ns, out)

    def _subscribe_object(self, want: StartWatch) -> tuple[Reflector, list[WatchEvent]]:
        key = (want.kind, want.namespace, want.name)
        shared = self.shared.objects.get(key)
        if shared is None:
            reflector = Reflector(NOBODY, want.kind, want.name, want.namespace)
            shared = self.shared.objects[key] = SharedObject(reflector)
            self._open(reflector)
        shared.nodes[want.node] = None
        if shared.record is None:
            return shared.reflector, []
        event = WatchEvent(want.kind, EventType.ADDED, shared.record, want.namespace, want.name)
        return shared.reflector, [event]

    def _kept_for(self, kubelet: VirtualKubelet) -> list[WatchEvent]:
        """Return what came for a node in `light` before its kubelet."""
        if not kubelet.env.light or kubelet.env.own_watches:
            return []
        kinds = (WatchKind.NODE, WatchKind.PODS)
        return [event for kind in kinds for event in self.shared.claim(kind, kubelet.name)]

    def _unsubscribe(self, node: NodeId) -> None:
        """Take a node off the shared watches; those that it was the last one of end."""
        for key in self.shared.remove(node):
            self._close_object(key)

    def _close_object(self, key: ObjectKey) -> None:
        reflector = self.shared.objects.pop(key).reflector
        wire, pool = self._way(reflector)
        wire.cancel(pool, Opening(reflector, reflector.opens))
        self._closed(reflector)
        reflector.stop()

    def _way(self, reflector: Reflector) -> tuple[Wire, int]:
        """Return the connection that a reflector uses."""
        if reflector.node == NOBODY:
            assert self.observer is not None
            return self.observer, 0
        assert self.wire is not None
        return self.wire, self.entries[reflector.node].pool

    def _request(self, reflector: Reflector) -> Request:
        """Return the next request; on shared connections it names its user."""
        request = super()._request(reflector)
        caller = self.entries[reflector.node].caller if reflector.node != NOBODY else None
        if caller is not None and caller.template.impersonate:
            return request._replace(user=caller.user)
        return request

    def _open(self, reflector: Reflector) -> None:
        super()._open(reflector)
        if reflector.begins:
            if reflector.node == NOBODY and reflector.kind is WatchKind.NODE:
                self.on_observed_anew()
            owners = self.entries if reflector.node == NOBODY else [self.entries[reflector.node]]
            for entry in owners:
                if entry.kubelet is not None:
                    entry.kubelet.on_relist_started(reflector.kind)

    def _open_later(self, reflector: Reflector, due_ns: int) -> None:
        reflector.due_ns = due_ns
        key = f"{WATCH_KEY}{reflector.kind}/{reflector.namespace}/{reflector.name}"
        self._wheel.set(due_ns, reflector.node, Timer.CALL_RETRY, key)

    def _open_due(self, node: NodeId, key: str) -> None:
        """Open what had to wait, unless it was stopped, or asked for anew, meanwhile."""
        kind, rest = key.removeprefix(WATCH_KEY).split("/", 1)
        namespace, name = rest.rsplit("/", 1)
        reflector = self._find(node, WatchKind(int(kind)), namespace, name)
        if reflector is not None and 0 < reflector.due_ns <= self.clock.now_ns():
            self._open(reflector)

    def _find(self, node: NodeId, kind: WatchKind, namespace: str, name: str) -> Reflector | None:
        reflectors: Iterable[Reflector] = (
            self.entries[node].reflectors
            if node >= 0
            else (
                *self._shared,
                *(each.reflector for each in self.shared.objects.values()),
            )
        )
        for each in reflectors:
            if each.kind is kind and each.namespace == namespace and each.name == name:
                return each
        return None

    def _stop_watch(self, node: NodeId, kind: WatchKind, namespace: str, name: str) -> None:
        shared = self.shared.objects.get((kind, namespace, name))
        if shared is not None and shared.nodes.pop(node, self) is None and not shared.nodes:
            self._close_object((kind, namespace, name))
        reflector = self._find(node, kind, namespace, name)
        if reflector is None:
            return
        entry = self.entries[node]
        entry.reflectors = tuple(each for each in entry.reflectors if each is not reflector)
        assert self.wire is not None
        self.wire.cancel(entry.pool, Opening(reflector, reflector.opens))
        self._closed(reflector)
        reflector.stop()
