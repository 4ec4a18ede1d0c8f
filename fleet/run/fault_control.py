"""The one door for faults of a run: begun in all of its shards, ended in time, kept as phases.

Commands and the dashboard give orders; a scenario and the annotations of Nodes call `inject`,
`inject_here` and `heal`; in all shards but the first the plan of the run does, by `follow`:

    {"do": "inject", "fault": {...}, "for": "8m"}  -> {"number": 1, "nodes": 5, "of": 20, ...}
    {"do": "inject", "form": {"type": "Partition", "zone": "b", "for": "8m"}}   in flat words
    {"do": "heal", "what": "1" | "Partition" | ""} -> {"healed": [...]}   "" is all
    {"do": "list"}                                 -> {"active": [...]}
    what cannot be done                            -> {"error": "...", "code": 2}

An answer has as `told` what to show to a person.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from signal import SIGCONT, SIGSTOP
from typing import NamedTuple

from pydantic import ValidationError

from fleet.agents.agent import create_event
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import COMPONENTS
from fleet.errors import FleetError, UsageError
from fleet.faults.fault import (
    FAULT_ANNOTATION,
    FaultSpec,
    FaultType,
    NotedFault,
    read_fault,
    read_lasting,
    read_note,
    words_of,
)
from fleet.faults.injector import Injector
from fleet.host.node_host import NodeHost
from fleet.k8s.effects import WatchEvent
from fleet.k8s.pods import EventType, NodeView
from fleet.profile.agent_behavior import AgentEvent
from fleet.profile.schema import explain
from fleet.quantity import format_duration
from fleet.reactor.calls import Errand
from fleet.reactor.reactor import Reactor
from fleet.report.report import Phase
from fleet.run.control_socket import Json
from fleet.run.lead import Leader, Plan

ACTIVE_MAX = 1_000
OWN_FIRST = 500_000
"""From here on a shard that follows numbers the faults of orders to itself."""
NOTED_FIRST = 1_000_000
"""From here on faults of annotations are numbered: each process begins those of its own nodes."""
REFUSED = "FaultRefused"  # the reason of the event about a Node whose annotation cannot be

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fault:
    """A fault that was begun. One that comes and goes is not `is_on` in between."""

    number: int
    spec: FaultSpec
    begun_s: float
    hit: int = 0  # nodes, of so many
    of: int = 0
    end: asyncio.TimerHandle | None = None
    turn: asyncio.TimerHandle | None = None
    is_on: bool = True

    def stop_timers(self) -> None:
        """Have it neither end nor turn by itself."""
        for handle in (self.end, self.turn):
            if handle is not None:
                handle.cancel()

    @property
    def words(self) -> str:
        """Name it and what it hits, for people."""
        return f"fault {self.number}: {words_of(self.spec)}{reach_words(self.hit, self.of)}"


@dataclass(eq=False)
class FaultControl:
    """Takes orders for the nodes of this process; as `lead` says, those of the other shards too.

    `plane` returns the control plane if the run has started it: no other one is ever touched.
    """

    _node_host: NodeHost
    _elapsed_s: Callable[[], float]
    _note: Callable[[str], None]
    _lead: Leader | None
    _plane: Callable[[], ControlPlane | None] = lambda: None
    _made_s: float = 0.0  # of the plan that is followed
    _followed: int = 0  # the last fault of the plan that has begun here
    _hits: dict[int, int] = field(default_factory=dict)  # by fault of the plan
    _noted: int = NOTED_FIRST
    _phases: dict[int, Phase] = field(default_factory=dict)
    _faults: dict[int, _Fault] = field(default_factory=dict)  # those that have not ended
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        node_host, lead = self._node_host, self._lead
        certificates = node_host.certificates
        self._injector = Injector(
            node_host.reactor,
            node_host.draws,
            has_own_connections=node_host.has_own_connections,
            expire=certificates.expire if certificates is not None else None,
        )
        self._follows = node_host.settings.follows
        self._numbers = OWN_FIRST if self._follows else lead.plan.last if lead else 0
        FaultNotes(node_host.reactor, self)

    @property
    def seed(self) -> int:
        """Return that of the run: what is drawn is drawn from it."""
        return self._node_host.settings.seed

    def phases(self) -> list[Phase]:
        """Return when which fault was on, for the summary."""
        return list(self._phases.values())

    def on(self) -> list[Json]:
        """Return what is on: its number, name, nodes, and the seconds that are left."""
        return [self._shown(self._faults[number]) for number in sorted(self._faults)]

    async def answer(self, order: Json) -> Json:
        """Carry an order out; the answer says what cannot be done."""
        try:
            match order.get("do"):
                case "inject":
                    spec, for_ns = _read(order)
                    fault = await self.inject(spec, for_ns)
                    until = "" if for_ns is None else f" for {format_duration(for_ns)}"
                    return {**self._shown(fault), "told": f"{fault.words}{until}"}
                case "heal":
                    return await self._heal(str(order.get("what", "")))
                case "list":
                    return {"active": self.on()}
            raise UsageError(f"do: {order.get('do')!r} is not one of inject, heal, list")
        except FleetError as error:
            return {"error": str(error), "code": int(error.exit_code)}

    async def inject(self, spec: FaultSpec, for_ns: int | None = None, of: str = "") -> _Fault:
        """Let something go wrong in the whole run; `of` says where in its scenario that is.

        Raises UsageError if it hits no node, or nodes that cannot have it.
        """
        self._check_room()
        settings = self._node_host.settings
        has_others = self._lead is not None and self._lead.standings
        if spec.type is FaultType.ATTACH_FAILURE and (has_others or settings.shard):
            raise UsageError(
                "AttachFailure: CSI drivers are simulated in the first process of a run; "
                "it needs a run of one process"
            )
        number = self._numbers + 1
        fault = _Fault(number, spec, self._elapsed_s())
        if spec.component is not None:
            self._check_component(spec)
            self._faults[number] = fault  # while it begins: a second one of it is refused
            self._numbers = number
            await self._switch(fault)
        else:
            fault.hit = len(self._injector.inject(spec, number).nodes)
            fault.of, self._numbers = self._node_host.size, number
            is_all = True
            if self._lead is not None:
                hit, others, is_all = await self._lead.begin(number, spec, for_ns, of)
                fault.hit, fault.of = fault.hit + hit, fault.of + others
            if not fault.hit and is_all:
                if not spec.is_instant:
                    self._injector.heal(number)
                if self._lead is not None:
                    self._lead.end(number)
                raise UsageError(f"{words_of(spec)} hits none of {fault.of} nodes: no node matches")
        self._keep(fault, for_ns)
        return fault

    async def follow(self, plan: Plan, before_s: float, now_s: float) -> dict[int, int]:
        """Have those faults on that the first shard has planned; return how many nodes each hits.

        Of a plan that is new to this shard it leaves out what was over at once before `before_s`,
        and what comes and goes since then does so in step with the other shards.
        """
        is_new, self._made_s = plan.made_s != self._made_s, plan.made_s
        planned = {each.number: each for each in plan.faults}
        for number in [each for each in self._faults if each < OWN_FIRST]:
            if is_new or number not in planned:
                await self.heal(number)
        if is_new:
            self._followed = 0
            self._hits.clear()
        for number, each in sorted(planned.items()):
            if number <= self._followed:
                continue
            self._followed = number
            spec = FaultSpec.model_validate(each.fault)
            if not is_new or each.began_s > before_s:
                self._take_over(number, spec)
            elif not spec.is_instant:
                self._take_over(number, spec, max(now_s - each.began_s, 0.0))
        return {number: hit for number, hit in self._hits.items() if number in planned}

    def go_on(self, lead: Leader) -> None:
        """Go on with a plan that an earlier start of this first shard has left."""
        plan, now_s, active = lead.plan, lead.now_s(), self._injector.active
        for each in plan.faults:
            if each.number in active:  # by an order, while the nodes came up
                continue
            spec, left_s = FaultSpec.model_validate(each.fault), (each.ends_s or now_s) - now_s
            if not spec.is_instant and left_s >= 0:
                self._take_over(each.number, spec, now_s - each.began_s)
                if (fault := self._faults.get(each.number)) is not None and each.ends_s:
                    self._end_in(fault, left_s)
        plan.faults = [each for each in plan.faults if each.is_instant or each.number in active]
        lead.change()

    def _take_over(self, number: int, spec: FaultSpec, since_s: float = 0.0) -> None:
        """Have a fault of the plan on here, which has been on for so long."""
        try:
            hit = len(self._injector.inject(spec, number, round(since_s * 1e9)).nodes)
        except UsageError as error:  # the nodes of this shard cannot have it
            log.warning("fault %d: %s", number, error)
            return
        self._hits[number] = hit
        begun_s = self._elapsed_s() - since_s
        self._keep(_Fault(number, spec, begun_s, hit, self._node_host.size), None)

    def inject_here(self, spec: FaultSpec, for_ns: int | None) -> int:
        """Let something go wrong in this process; return its number, 0 if it hits no node.

        Raises UsageError if the nodes cannot have it.
        """
        self._check_room()
        number, begun_s = self._noted, self._elapsed_s()
        hit = len(self._injector.inject(spec, number).nodes)
        if not hit:
            if not spec.is_instant:
                self._injector.heal(number)
            return 0
        self._noted += 1
        self._keep(_Fault(number, spec, begun_s, hit, self._node_host.size), for_ns)
        return number

    async def heal(self, number: int) -> None:
        """End a fault here and in the other processes, unless it has ended."""
        fault = self._faults.pop(number, None)
        if fault is None:
            return
        fault.stop_timers()
        if fault.spec.component is None:
            self._injector.heal(number)
        elif fault.is_on and self._plane() is not None:
            fault.is_on = False
            await self._switch(fault)
        if number in self._phases:
            self._phases[number] = replace(self._phases[number], until_s=self._elapsed_s())
            if not self._follows:
                self._note(f"fault {number}: {words_of(fault.spec)} is healed")
        if self._lead is not None and fault.spec.component is None and number < NOTED_FIRST:
            self._lead.end(number)

    async def close(self) -> None:
        """Let faults end with the run: what is to be cleaned up needs the control plane."""
        for fault in self._faults.values():
            fault.stop_timers()
        for number in self._in_order():
            left = self._faults.get(number)  # None: another order has already healed it
            if left is None or left.spec.component is None:
                continue
            try:
                await self.heal(number)
            except FleetError as error:
                log.error("fault %d could not be healed: %s", number, error)  # noqa: TRY400
        if self._lead is not None:
            await self._lead.close()

    def _check_room(self) -> None:
        if len(self._faults) >= ACTIVE_MAX:
            raise UsageError(f"{ACTIVE_MAX} faults are on; heal some first")

    def _keep(self, fault: _Fault, for_ns: int | None) -> None:
        """Write a fault down that has begun, and set its timers."""
        spec, number = fault.spec, fault.number
        until_s = fault.begun_s if spec.is_instant else None
        self._phases[number] = Phase(
            name=words_of(spec), kind="fault", from_s=fault.begun_s, until_s=until_s
        )
        if not self._follows:
            self._note(fault.words)
        if spec.is_instant:
            return
        self._faults[number] = fault
        if for_ns is not None:
            # The nodes have had it while the other shards took it over.
            spent_s = self._elapsed_s() - fault.begun_s if spec.component is None else 0.0
            self._end_in(fault, for_ns / 1e9 - spent_s)
        if spec.every_ns and spec.component is None:
            self._turn_at(fault, self._injector.first_turn_ns(number))
        elif spec.every_ns:
            self._turn_at(fault, self._now_ns() + spec.every_ns // 2)

    def _end_in(self, fault: _Fault, left_s: float) -> None:
        fault.end = asyncio.get_running_loop().call_later(
            max(left_s, 0), lambda: self.soon(self.heal(fault.number))
        )

    def _turn_at(self, fault: _Fault, due_ns: int) -> None:
        """Let a fault come or go at an instant; each process of the run does so by itself."""
        left_s = max((due_ns - self._now_ns()) / 1e9, 0)
        fault.turn = asyncio.get_running_loop().call_later(left_s, self._turn, fault)

    def _turn(self, fault: _Fault) -> None:
        if fault.spec.component is None:
            self._turn_at(fault, self._injector.turn(fault.number))
        else:
            self.soon(self._turn_component(fault))

    async def _turn_component(self, fault: _Fault) -> None:
        if fault.number not in self._faults:
            return  # it ended as it was to turn
        due_ns = self._now_ns() + fault.spec.every_ns // 2
        fault.is_on = not fault.is_on
        await self._switch(fault)
        if fault.number in self._faults:  # it may have been healed by now
            self._turn_at(fault, due_ns)

    def _now_ns(self) -> int:
        return self._node_host.reactor.clock.now_ns()

    def soon(self, work: Coroutine[object, object, None]) -> None:
        """Do something outside of the caller's turn; a bug in it makes the run invalid."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, FleetError):
            log.error("a fault could not be healed: %s", error)
        elif error is not None:
            what = "a fault that begins or ends by itself"
            task.get_loop().call_exception_handler(
                {"message": what, "exception": error, "task": task}
            )

    def _check_component(self, spec: FaultSpec) -> None:
        """Raise UsageError if a component of the control plane cannot have a fault."""
        assert spec.component is not None, spec
        name, kind, plane = spec.component.value, spec.type.value, self._plane()
        if plane is None:
            raise UsageError(f"{kind}: it needs a local control plane that the run has started")
        if name not in plane.pids:
            raise UsageError(f"{kind}: {name} does not run")
        for number, each in self._faults.items():
            if each.spec.component is spec.component:
                have = f"{number} ({each.spec.type.value})"
                raise UsageError(f"{kind}: {name} has fault {have} already")

    async def _switch(self, fault: _Fault) -> None:
        """Have a component fail or work, as `is_on` says. Raises SetupError if it stays down."""
        plane, component = self._plane(), fault.spec.component
        assert plane is not None, fault
        assert component is not None, fault
        if fault.spec.type is FaultType.COMPONENT_STALL:
            plane.signal(component.value, SIGSTOP if fault.is_on else SIGCONT)
        elif fault.is_on:
            await plane.kill(component.value)
        else:
            await plane.revive(component.value)

    def _in_order(self) -> list[int]:
        """Return the numbers as faults end: a component that others need comes first."""

        def place(number: int) -> tuple[int, int]:
            component = self._faults[number].spec.component
            last = len(COMPONENTS)
            return (COMPONENTS.index(component.value) if component else last), number

        return sorted(self._faults, key=place)

    async def _heal(self, what: str) -> Json:
        numbers = [
            number
            for number in self._in_order()
            if what in {"", str(number), self._faults[number].spec.type.value}
        ]
        if what and not numbers:
            active = sorted(self._faults.items())
            known = ", ".join(f"{number} ({each.spec.type.value})" for number, each in active)
            raise UsageError(f"no fault {what!r} is on; these are: {known or 'none'}")
        healed = [self._shown(self._faults[number]) for number in numbers]
        for number in numbers:
            await self.heal(number)
        lines = [f"fault {each['number']}: {each['fault']} is healed" for each in healed]
        return {"healed": healed, "told": "\n".join(lines) or "no fault is on"}

    def _shown(self, fault: _Fault) -> Json:
        left_s = None
        if fault.end is not None:
            left_s = round(fault.end.when() - asyncio.get_running_loop().time(), 1)
        return {
            "number": fault.number,
            "fault": words_of(fault.spec),
            "nodes": fault.hit,
            "of": fault.of,
            "for_s": round(self._elapsed_s() - fault.begun_s, 1),
            "left_s": left_s,
        }


def reach_words(hit: int, of: int) -> str:
    """Say how many nodes a fault hits, "" if it is none of nodes."""
    return f" on {hit} of {of} nodes" if of else ""


def _read(order: Json) -> tuple[FaultSpec, int | None]:
    """Return the fault that an order is about, and how long it lasts. Raises UsageError."""
    if isinstance(order.get("form"), dict):
        given = dict(order["form"])
        lasts = given.pop("for", None)
        spec = read_fault(str(given.pop("type", "")), given)
    else:
        lasts = order.get("for")
        try:
            spec = FaultSpec.model_validate(order.get("fault"))
        except ValidationError as error:
            raise UsageError(explain(error, FaultSpec)) from error
    return spec, read_lasting(spec, lasts, "for")


class _Taken(NamedTuple):
    """An annotation as it was taken, and the faults that came of it so far."""

    text: str = ""
    begun: tuple[tuple[NotedFault, int], ...] = ()  # with their numbers; some may have ended
    is_whole: bool = True  # else some of its faults found no node yet


class FaultNotes:
    """What the annotations of the Nodes of one process say, and the faults that came of it.

    A fault begins when its annotation appears, and ends when it goes or changes. Fleet's own watch
    of its Nodes shows it, not that of the node itself: so a node that a fault has cut off is healed
    as well.
    """

    def __init__(self, reactor: Reactor, control: FaultControl) -> None:
        self._reactor = reactor
        self._control = control
        self._taken: dict[str, _Taken] = {}  # by node
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
        taken = self._taken.get(view.name, _Taken())
        if text != taken.text or not taken.is_whole:
            # Outside of the reactor's turn: a fault may end the kubelet that it is at.
            self._control.soon(self._take(view.name, text))

    async def _take(self, name: str, text: str) -> None:
        """Heal what an annotation names no more, and begin what it names and did not before.

        What stays in a list goes on: a kubelet that was restarted for it is not restarted again.
        """
        taken = self._taken.pop(name, _Taken())
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
        self._reactor.wires.nodes.send(entry.pool, request, Unanswered())


class Unanswered(Errand):
    """An event on its way; nobody waits for the answer."""

    __slots__ = ()

    def on_message(self, message: object, now_ns: int) -> None:
        """Leave it at that."""
