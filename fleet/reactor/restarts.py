"""Kubelets that restart: the old one ends at once, its successor waits for its moment.

What the new process knows and what it must learn anew is said in `kubelet.restart`.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from fleet.clock import NS_PER_S
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.restart import can_restart, restarted
from fleet.objects.effects import NodeId, Outbox, Timer
from fleet.reactor.client_tally import ClientTally
from fleet.reactor.milestones import uncount
from fleet.reactor.roster import Process

RESTART_NS_MAX = 1 * NS_PER_S
"""A process is back within a second: each at its own moment, else all would tick in step."""
_STREAM_RESTART = 0x4E57A47


class Restarts:
    """The kubelets of one process that are about to start once more."""

    __slots__ = ("_held", "_process", "_waiting")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: dict[NodeId, VirtualKubelet] = {}
        self._held: set[NodeId] = set()  # that are not started before `release`

    def is_waiting(self, node: NodeId) -> bool:
        """Return whether a node has no kubelet just now, but will have one."""
        return node in self._waiting

    def begin(self, nodes: Iterable[NodeId]) -> AbstractSet[NodeId]:
        """Stop kubelets and make their successors; return the nodes of those that stopped.

        Nodes that are silent, shut down or already between two kubelets are left alone.
        """
        ended = set()
        for node in nodes:
            kubelet = self._process.roster.entries[node].kubelet
            if kubelet is not None and node not in ended and can_restart(kubelet):
                uncount(self._process.counts, kubelet)
                self._waiting[node] = restarted(kubelet)
                ended.add(node)
        return ended

    def end(self, node: NodeId, now_ns: int, *, is_held: bool) -> None:
        """Close what a stopped kubelet had open, and say when its successor starts, if it may."""
        entry = self._process.roster.entries[node]
        assert entry.kubelet is not None, node
        if not entry.kubelet.env.light:
            self._process.wires.nodes.hang_up(entry.pool)
        entry.kubelet = None
        if is_held:
            self._held.add(node)
        else:
            self._start_soon(node, now_ns)

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

    def on_due(self, node: NodeId, now_ns: int, out: Outbox) -> None:
        """Start the successor, unless its node was removed meanwhile."""
        kubelet = self._waiting.pop(node, None)
        if kubelet is not None:
            entry = self._process.roster.entries[node]
            entry.kubelet = kubelet
            entry.client = ClientTally()  # it counts anew
            self._process.counts.restarts += 1
            kubelet.start(now_ns, out)
