"""Faults by annotation of a Node: begun when it appears, healed when it goes or changes.

Fleet's own watch of its Nodes shows it, not that of the node itself: so a node that a fault has cut
off is healed as well. Each process sees to its own nodes.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import NamedTuple, Protocol

from fleet.agents.agent import create_event
from fleet.errors import FleetError
from fleet.faults.fault import FaultSpec
from fleet.faults.note import FAULT_ANNOTATION, NotedFault, read_note
from fleet.k8s.effects import WatchEvent
from fleet.k8s.pods import EventType, NodeView
from fleet.profile.agent_behavior import AgentEvent
from fleet.reactor.calls import Errand
from fleet.reactor.reactor import Reactor

REFUSED = "FaultRefused"
"""The reason of the event about a Node whose annotation cannot be."""

log = logging.getLogger(__name__)


class Control(Protocol):
    """What begins and heals faults."""

    def inject_here(self, spec: FaultSpec, for_ns: int | None) -> int:
        """Begin a fault on nodes of this process; return its number, 0 if no node is there yet."""
        ...

    async def heal(self, number: int) -> None:
        """End it, unless it has ended."""
        ...


class _Taken(NamedTuple):
    """An annotation as it was taken, and the faults that came of it so far."""

    text: str = ""
    begun: tuple[tuple[NotedFault, int], ...] = ()  # with their numbers; some may have ended
    is_whole: bool = True  # else some of its faults found no node yet


_NOTHING = _Taken()


class FaultNotes:
    """What the annotations of the Nodes of one process say, and the faults that came of it."""

    def __init__(self, reactor: Reactor, control: Control) -> None:
        self._reactor = reactor
        self._control = control
        self._taken: dict[str, _Taken] = {}  # by node
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = reactor.on_observed
        reactor.on_observed = self.on_event

    def on_event(self, event: WatchEvent) -> None:
        """Take one event of fleet's own watch, and hand it on."""
        if self._next is not None:
            self._next(event)
        view = event.record
        if not isinstance(view, NodeView):
            return
        text = ""
        if event.type is not EventType.DELETED:
            text = dict(view.state.annotations).get(FAULT_ANNOTATION, "")
        taken = self._taken.get(view.name, _NOTHING)
        if text != taken.text or not taken.is_whole:
            # Outside of the reactor's turn: a fault may end the kubelet that it is at.
            self._soon(self._take(view.name, text))

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, name: str, text: str) -> None:
        """Heal what an annotation names no more, and begin what it names and did not before.

        What stays in a list goes on: a kubelet that was restarted for it is not restarted again.
        """
        taken = self._taken.pop(name, _NOTHING)
        error = ""
        try:
            missing = list(read_note(text, name))
        except FleetError as refused:
            missing, error = [], str(refused)
        begun: list[tuple[NotedFault, int]] = []
        for fault, number in taken.begun:
            if fault in missing:
                missing.remove(fault)
                begun.append((fault, number))
            else:
                await self._control.heal(number)
        try:
            for fault in missing.copy():
                number = self._control.inject_here(fault.spec, fault.for_ns)
                if not number:
                    break  # it has not registered: its next status brings us back
                begun.append((fault, number))
                missing.remove(fault)
        except FleetError as refused:
            error, missing = str(refused), []
            while begun:
                await self._control.heal(begun.pop()[1])
        if error:
            self._tell(name, error)
        if text:
            self._taken[name] = _Taken(text, tuple(begun), is_whole=not missing)

    def _tell(self, name: str, message: str) -> None:
        """Say what is wrong with an annotation: in the log, and by an event about the Node."""
        log.warning("node %s: %s", name, message)
        entry = next(
            (each for each, kubelet in self._reactor.kubelets.living() if kubelet.name == name),
            None,
        )
        if entry is None:
            return
        event = AgentEvent(
            reason=REFUSED, message=message, component="fleet", type="Warning", api_version="v1"
        )
        caller = entry.caller
        request = create_event(caller.name, event, self._reactor.clock.wall_ns())
        if caller.template.impersonate:
            request = request._replace(user=caller.user)
        self._reactor.wires.nodes.send(entry.pool, request, _Told())


class _Told(Errand):
    """An event on its way; nobody waits for the answer."""

    __slots__ = ()

    def on_message(self, message: object, now_ns: int) -> None:
        """Leave it at that."""
