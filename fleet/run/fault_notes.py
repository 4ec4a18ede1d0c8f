"""Faults by annotation of a Node: begun when it appears, healed when it goes or changes.

Fleet's own watch of its Nodes shows it, not that of the node itself: so a node that a fault has cut
off is healed as well. Each process sees to its own nodes.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from fleet.agents.node_patches import create_event
from fleet.errors import FleetError
from fleet.faults.fault import FaultSpec
from fleet.faults.note import FAULT_ANNOTATION, read_note
from fleet.objects.effects import WatchEvent
from fleet.objects.pods import EventType, NodeView
from fleet.profile.agent_behavior import AgentEvent
from fleet.reactor.reactor import Reactor
from fleet.reactor.tokens import Errand

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


class FaultNotes:
    """What the annotations of the Nodes of one process say, and the faults that came of it."""

    def __init__(self, reactor: Reactor, control: Control) -> None:
        self._reactor = reactor
        self._control = control
        self._notes: dict[str, str] = {}  # by node, as they were taken
        self._numbers: dict[str, list[int]] = {}
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
        if text != self._notes.get(view.name, ""):
            # Outside of the reactor's turn: a fault may end the kubelet that it is at.
            self._soon(self._take(view.name, text))

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, name: str, text: str) -> None:
        """Heal what an earlier annotation began, and begin what this one says."""
        if text == self._notes.get(name, ""):
            return
        self._notes.pop(name, None)
        for number in self._numbers.pop(name, ()):
            await self._control.heal(number)
        begun: list[int] = []
        try:
            for noted in read_note(text, name):
                number = self._control.inject_here(noted.spec, noted.for_ns)
                if not number:
                    return  # it has not registered: its next status brings us back
                begun.append(number)
        except FleetError as error:
            for number in begun:
                await self._control.heal(number)
            self._tell(name, str(error))
        if text:
            self._notes[name] = text
            self._numbers[name] = begun

    def _tell(self, name: str, message: str) -> None:
        """Say what is wrong with an annotation: in the log, and by an event about the Node."""
        log.warning("node %s: %s", name, message)
        entry = next(
            (each for each, kubelet in self._reactor.roster.living() if kubelet.name == name), None
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
