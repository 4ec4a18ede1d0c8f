"""Kubelets that restart: the old one ends at once, its successor waits for its moment.

What the new process knows and what it must learn again is said in `VirtualKubelet.restarted`.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId, Outbox, Timer
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.reactor.process import Entry, Process, uncount_reports

RESTART_NS_MAX = 1 * NS_PER_S
"""A process is back within a second: each at its own moment, else all would tick in step."""
_STREAM_RESTART = 0x4E57A47


class Restarts:
    """The kubelets of one process that are about to start once more."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: dict[NodeId, VirtualKubelet] = {}
        self._held: set[NodeId] = set()  # that are not started before `release`
        self._down_ns: dict[NodeId, int] = {}  # of machines that boot then: since when they are off

    def is_waiting(self, node: NodeId) -> bool:
        """Return whether a node has no kubelet just now, but will have one."""
        return node in self._waiting

    def begin(self, nodes: Iterable[NodeId]) -> AbstractSet[NodeId]:
        """Stop kubelets and make their successors; return the nodes of those that stopped.

        Nodes that are silent, shut down or already between two kubelets are left alone.
        """
        ended = set()
        for node in nodes:
            kubelet = self._process.kubelets.entries[node].kubelet
            if kubelet is not None and node not in ended and kubelet.shutdown is None:
                self._end_process(kubelet)
                ended.add(node)
        return ended

    def _end_process(self, kubelet: VirtualKubelet) -> None:
        uncount_reports(self._process.counts, kubelet)
        self._waiting[kubelet.node] = kubelet.restarted()

    def power_off(self, node: NodeId, now_ns: int, off_ns: int) -> None:
        """Let a machine be off for a time, and boot then."""
        entry = self._process.kubelets.entries[node]
        assert entry.kubelet is not None, node
        self._end_process(entry.kubelet)
        self._hang_up(entry)
        self._down_ns[node] = now_ns
        self._process.wheel.set(now_ns + off_ns, node, Timer.RESTART)

    def end(self, node: NodeId, now_ns: int, *, is_held: bool) -> None:
        """Close what a stopped kubelet had open, and say when its successor starts, if it may."""
        entry = self._process.kubelets.entries[node]
        self._hang_up(entry)
        if is_held:
            self._held.add(node)
        else:
            self._start_soon(node, now_ns)

    def _hang_up(self, entry: Entry) -> None:
        assert entry.kubelet is not None
        if entry.kubelet.env.fidelity.has_connections:
            self._process.wires.nodes.hang_up(entry.pool)
        entry.kubelet = None

    def release(self, nodes: Iterable[NodeId], now_ns: int) -> int:
        """Let kubelets that were held start now; return how many there are."""
        held = [node for node in nodes if node in self._held]
        for node in held:
            self._held.remove(node)
            self._start_soon(node, now_ns)
        return len(held)

    def successor(self, node: NodeId) -> VirtualKubelet | None:
        """Return the kubelet that a node will have, if it has none just now."""
        return self._waiting.get(node)

    def _start_soon(self, node: NodeId, now_ns: int) -> None:
        share = self._process.draws.uniform(node, _STREAM_RESTART, now_ns)
        self._process.wheel.set(now_ns + int(share * RESTART_NS_MAX), node, Timer.RESTART)

    def cancel(self, node: NodeId) -> None:
        """Forget the successor of a node that is removed."""
        self._waiting.pop(node, None)
        self._held.discard(node)
        self._down_ns.pop(node, None)

    def on_due(self, node: NodeId, now_ns: int, out: Outbox) -> bool:
        """Start the successor, unless its node was removed; return whether its machine booted."""
        kubelet = self._waiting.pop(node, None)
        down_ns = self._down_ns.pop(node, None)
        if kubelet is None:
            return False
        if down_ns is not None:
            kubelet.env.boot(node, down_ns, now_ns)
        entry = self._process.kubelets.entries[node]
        entry.kubelet = kubelet
        self._process.counts.restarts += 1
        kubelet.start(now_ns, out)
        return down_ns is not None
