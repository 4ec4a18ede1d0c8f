"""Which nodes are Ready as another client sees them; it decides what counts, not the kubelets."""

import asyncio
import time
from collections.abc import Callable

from fleet.k8s.effects import WatchEvent
from fleet.k8s.pods import EventType, NodeView

NOT_READY_TAINT = "node.kubernetes.io/not-ready"


class Readiness:
    """Which nodes another client's watch shows Ready, without the not-ready taint."""

    __slots__ = (
        "_clock_ns",
        "_unseen",
        "all_ready",
        "ever_not_ready",
        "present",
        "ready",
        "ready_at_ns",
        "wanted",
    )

    def __init__(self, wanted: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self.wanted = wanted
        self.present: set[str] = set()
        self.ready: set[str] = set()
        self.ever_not_ready: set[str] = set()  # Ready once, then the condition was not
        self.ready_at_ns = 0
        self.all_ready = asyncio.Event()
        self._unseen: set[str] = set()  # during a relist: not mentioned so far

    def aim(self, wanted: int) -> None:
        """Say how many nodes there are to be, where that is known only now."""
        self.wanted = wanted
        self._look()

    def forget(self, name: str) -> None:
        """Forget a node that is not counted any more."""
        self.present.discard(name)
        self.ready.discard(name)

    async def wait(self, stalled_s: float | None = None) -> None:
        """Wait until all are Ready, or no more became so for `stalled_s`."""
        seen = 0
        while not self.all_ready.is_set():
            try:
                await asyncio.wait_for(self.all_ready.wait(), stalled_s)
            except TimeoutError:
                if len(self.ready) <= seen:
                    return
                seen = len(self.ready)

    def on_event(self, event: WatchEvent) -> None:
        """Take one event of the observer's node watch."""
        if event.type is EventType.RESTARTED:
            self._unseen = set(self.present)  # the new snapshot must mention them
            return
        if event.type is EventType.SYNCED:
            self.present -= self._unseen
            self.ready -= self._unseen
            self._unseen = set()
            return
        view = event.record
        if not isinstance(view, NodeView):
            return
        self._unseen.discard(view.name)
        if event.type is EventType.DELETED:
            self.forget(view.name)
            return
        self.present.add(view.name)
        if is_ready(view):
            self.ready.add(view.name)
            self._look()
            return
        if view.name in self.ready and not is_condition_true(view):
            self.ever_not_ready.add(view.name)  # a late taint of the controller loses no node
        self.ready.discard(view.name)

    def _look(self) -> None:
        if len(self.ready) >= self.wanted and not self.all_ready.is_set():
            self.ready_at_ns = self._clock_ns()
            self.all_ready.set()


def is_ready(view: NodeView) -> bool:
    """Return whether the scheduler may use the node as a Ready one."""
    if any(key == NOT_READY_TAINT for key, _, _ in view.taints):
        return False
    return is_condition_true(view)


def is_condition_true(view: NodeView) -> bool:
    """Return whether the Ready condition is True.

    The taint alone says less: a node-lifecycle controller that is behind may still add it, for
    the condition it saw before, to a node that has become Ready.
    Source: pkg/controller/nodelifecycle/node_lifecycle_controller.go, doNoExecuteTaintingPass.
    """
    return any(each.type == "Ready" and each.status == "True" for each in view.conditions)
