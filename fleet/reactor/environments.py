"""The environments of a process's kubelets: what each sees of its machine, and the time there."""

from collections.abc import Iterable

from fleet.k8s.effects import NodeId
from fleet.kubelet.environment import Environment
from fleet.reactor.restarts import Restarts
from fleet.reactor.roster import Process
from fleet.reactor.watches import Watches


class Environments:
    """Those of the profiles, and of machines that are not as their profile says."""

    __slots__ = ("_all", "_process", "_restarts", "_watches")

    def __init__(self, process: Process, watches: Watches, restarts: Restarts) -> None:
        self._process = process
        self._watches = watches
        self._restarts = restarts
        self._all: list[Environment] = []

    def add(self, env: Environment) -> None:
        """Take the environment of a profile, before its kubelets."""
        self._all.append(env)
        env.csi_drivers = self._watches.csi_drivers
        env.services = self._watches.services
        env.runtime_classes = self._watches.runtime_classes
        clock = self._process.clock
        env.wall_offset_ns = clock.wall_ns() - clock.now_ns()

    def use(self, env: Environment) -> None:
        """Take that of machines which are not as their profile says, if it is not known yet."""
        if env not in self._all:
            env.wall_offset_ns = env.origin.wall_offset_ns + env.skew_ns
            self._all.append(env)

    def forget(self, env: Environment) -> None:
        """Drop one that no node has any more."""
        self._all.remove(env)

    def of(self, node: NodeId) -> Environment | None:
        """Return what a node's kubelet, or the one that will follow, sees of its machine."""
        kubelet = self._process.roster.entries[node].kubelet or self._restarts.successor(node)
        return kubelet.env if kubelet is not None else None

    def in_use(self) -> Iterable[Environment]:
        """Yield those of all kubelets, of the ones that will follow too."""
        for node in range(len(self._process.roster.entries)):
            env = self.of(NodeId(node))
            if env is not None:
                yield env

    def set_clocks(self, now_ns: int) -> None:
        """Let their time be that of the wall clock, which may be set while we run."""
        offset_ns = self._process.clock.wall_ns() - now_ns
        for env in self._all:
            env.wall_offset_ns = offset_ns + env.skew_ns
