"""The faults of a run: injected in all of its processes, healed in time, written down as phases.

A request and its answer are one JSON object each, so that they go over a socket as they are:

    {"do": "inject", "fault": {...}, "for": "8m"}  -> {"number": 1, "nodes": 5, "of": 20, ...}
    {"do": "heal", "what": "1" | "Partition" | ""} -> {"healed": [...]}   "" is all
    {"do": "list"}                                 -> {"active": [...]}
    what cannot be done                            -> {"error": "...", "code": 2}
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from pydantic import Field, ValidationError

from fleet.clock import Draws
from fleet.errors import FleetError, UsageError
from fleet.faults.fault import FAULTS, FaultSpec, FaultType, document_of, words_of
from fleet.faults.injector import Injector
from fleet.host.node_certificates import NodeCertificates
from fleet.host.siblings import Siblings
from fleet.profile.schema import DurationNs, Spec, explain
from fleet.profile.settings import Settings
from fleet.reactor.reactor import Reactor
from fleet.report.report import Phase
from fleet.run.component_faults import ComponentFaults, Plane
from fleet.run.fault_notes import FaultNotes
from fleet.run.fault_socket import Json, ask

ACTIVE_MAX = 1_000
NOTED_FIRST = 1_000_000
"""From here on faults of annotations are numbered: each process begins those of its own nodes."""

log = logging.getLogger(__name__)


class Inject(Spec):
    """Let something go wrong."""

    do: Literal["inject"]
    fault: FaultSpec
    for_ns: Annotated[DurationNs | None, Field(alias="for")] = None  # None: until it is healed
    number: int = 0  # as the first process of the run counts; 0: it is this one


class Heal(Spec):
    """Let faults end: a number, a type, or "" for all."""

    do: Literal["heal"]
    what: str = ""


class List(Spec):
    """Tell what is on."""

    do: Literal["list"]


Order = Inject | Heal | List
_ORDERS: dict[str, type[Order]] = {"inject": Inject, "heal": Heal, "list": List}


class Hosted(Protocol):
    """The nodes that faults hit."""

    settings: Settings
    reactor: Reactor
    certificates: NodeCertificates | None

    @property
    def draws(self) -> Draws:
        """What is drawn with the seed of the run."""
        ...

    @property
    def has_own_connections(self) -> bool:
        """Whether all that reaches a node comes by connections of its own."""
        ...

    @property
    def size(self) -> int:
        """How many nodes there are."""
        ...


class FaultControl:
    """Takes orders for the nodes of this process, and hands them on to the others of the run."""

    def __init__(
        self,
        node_host: Hosted,
        elapsed_s: Callable[[], float],
        note: Callable[[str], None],
        siblings: Callable[[], Siblings | None],
        plane: Callable[[], Plane | None] = lambda: None,
    ) -> None:
        has_own = node_host.has_own_connections
        certificates = node_host.certificates
        self._injector = Injector(
            node_host.reactor,
            node_host.draws,
            has_own_connections=has_own,
            expire=certificates.expire if certificates is not None else None,
        )
        self._components = ComponentFaults(plane)
        self._node_host = node_host
        self._elapsed_s = elapsed_s
        self._note = note
        self._siblings = siblings
        self._is_first = node_host.settings.shared is None  # process of the run
        self._numbers = 0
        self._noted = NOTED_FIRST
        self._phases: dict[int, Phase] = {}
        self._reach: dict[int, tuple[int, int]] = {}  # by number: nodes hit, of how many
        self._ends: dict[int, asyncio.TimerHandle] = {}
        self._turns: dict[int, asyncio.TimerHandle] = {}  # of those that come and go
        FaultNotes(node_host.reactor, self)

    @property
    def seed(self) -> int:
        """Return that of the run: what is drawn is drawn from it."""
        return self._node_host.settings.seed

    def phases(self) -> list[Phase]:
        """Return when which fault was on, for the summary."""
        return list(self._phases.values())

    async def answer(self, order: Json) -> Json:
        """Carry an order out; what cannot be done is told in the answer."""
        try:
            found = _read(order)
            if isinstance(found, Inject):
                return await self._inject(found)
            if isinstance(found, Heal):
                return await self._heal(found.what)
        except FleetError as error:
            return {"error": str(error), "code": int(error.exit_code)}
        return {"active": self.on()}

    def on(self) -> list[Json]:
        """Return what is on: its number, name, nodes, and the seconds that are left."""
        return [self._told(number) for number in self._active()]

    def _active(self) -> dict[int, FaultSpec]:
        """Return what is on, by number; the components of a control plane in order."""
        of_nodes = {number: each.spec for number, each in self._injector.active.items()}
        of_plane = {each: self._components.active[each] for each in self._components.in_order()}
        return dict(sorted((of_nodes | of_plane).items()))

    async def inject(self, spec: FaultSpec, for_ns: int | None = None) -> int:
        """Let something go wrong in the whole run; return its number.

        Raises UsageError if it hits no node, or nodes that cannot have it.
        """
        order = Inject.model_construct(do="inject", fault=spec, for_ns=for_ns)
        answer = await self._inject(order)
        return int(answer["number"])

    def inject_here(self, spec: FaultSpec, for_ns: int | None) -> int:
        """Let something go wrong in this process; return its number, 0 if it hits no node.

        Raises UsageError if the nodes cannot have it.
        """
        self._check_room()
        number = self._noted
        hit = len(self._injector.inject(spec, number).nodes)
        if not hit:
            if not spec.is_instant:
                self._injector.heal(number)
            return 0
        self._noted += 1
        order = Inject.model_construct(do="inject", fault=spec, for_ns=for_ns, number=0)
        self._keep(number, order, (hit, self._node_host.size), self._elapsed_s())
        return number

    async def heal(self, number: int) -> None:
        """End a fault everywhere, unless it has ended: a user may have healed it."""
        await self._end(number)

    async def close(self) -> None:
        """Let faults end with the run: what is to be cleaned up needs the control plane."""
        for handles in (self._ends, self._turns):
            for handle in handles.values():
                handle.cancel()
            handles.clear()
        for number in self._components.in_order():
            try:
                await self._end(number)
            except FleetError as error:
                log.error("fault %d could not be healed: %s", number, error)  # noqa: TRY400

    async def _inject(self, order: Inject) -> Json:
        spec, number = order.fault, order.number or self._numbers + 1
        self._check_room()
        settings = self._node_host.settings
        if spec.type is FaultType.ATTACH_FAILURE and (self._siblings() or settings.shard):
            raise UsageError(
                "AttachFailure: CSI drivers are simulated in the first process of a run; "
                "it needs a run of one process"
            )
        begun_s = self._elapsed_s()
        if FAULTS[spec.type].of_control_plane:
            await self._components.begin(number, spec)
            self._numbers = number
            self._keep(number, order, (0, 0), begun_s)
            return self._told(number)
        hit = len(self._injector.inject(spec, number).nodes)
        of = self._node_host.size
        self._numbers = number
        for answer in await self._pass_on(order.model_copy(update={"number": number})):
            hit, of = hit + answer.get("nodes", 0), of + answer.get("of", 0)
        if not hit and not order.number:
            if not spec.is_instant:
                await self._end(number)
            raise UsageError(f"{words_of(spec)} hits none of {of} nodes: no node matches")
        self._keep(number, order, (hit, of), begun_s)
        return self._told(number)

    def _check_room(self) -> None:
        if len(self._active()) >= ACTIVE_MAX:
            raise UsageError(f"{ACTIVE_MAX} faults are on; heal some first")

    def _keep(self, number: int, order: Inject, reach: tuple[int, int], begun_s: float) -> None:
        """Write a fault down that has begun, and set its timers."""
        spec = order.fault
        words, is_instant = words_of(spec), spec.is_instant
        until_s = begun_s if is_instant else None
        self._phases[number] = Phase(name=words, kind="fault", from_s=begun_s, until_s=until_s)
        self._reach[number] = reach
        if order.for_ns is not None and not is_instant and not order.number:
            self._ends[number] = asyncio.get_running_loop().call_later(
                order.for_ns / 1e9, self._heal_soon, number
            )
        if spec.every_ns:
            self._turn_at(number, self._first_turn_ns(number, spec))
        if self._is_first:
            self._note(f"fault {number}: {words}{reach_words(*reach)}")

    def _first_turn_ns(self, number: int, spec: FaultSpec) -> int:
        if number in self._components.active:
            return self._node_host.reactor.clock.now_ns() + spec.every_ns // 2
        return self._injector.first_turn_ns(number)

    def _turn_at(self, number: int, due_ns: int) -> None:
        """Let a fault come or go at an instant; each process of the run does so by itself."""
        left_s = (due_ns - self._node_host.reactor.clock.now_ns()) / 1e9
        self._turns[number] = asyncio.get_running_loop().call_later(
            max(left_s, 0), self._turn, number
        )

    def _turn(self, number: int) -> None:
        if number in self._components.active:
            task = asyncio.get_running_loop().create_task(self._turn_component(number))
            task.add_done_callback(_log_failure)
        else:
            self._turn_at(number, self._injector.turn(number))

    async def _turn_component(self, number: int) -> None:
        spec = self._components.active[number]
        due_ns = self._node_host.reactor.clock.now_ns() + spec.every_ns // 2
        await self._components.turn(number)
        if number in self._components.active:  # it may have been healed meanwhile
            self._turn_at(number, due_ns)

    def _heal_soon(self, number: int) -> None:
        """End a fault whose time is over."""
        task = asyncio.get_running_loop().create_task(self._end(number))
        task.add_done_callback(_log_failure)

    async def _heal(self, what: str) -> Json:
        active = self._active()
        numbers = [
            number for number, each in active.items() if what in {"", str(number), each.type.value}
        ]
        of_plane = [each for each in self._components.in_order() if each in numbers]
        numbers = [*of_plane, *(each for each in numbers if each not in of_plane)]
        if what and not numbers:
            known = ", ".join(f"{n} ({each.type.value})" for n, each in active.items())
            raise UsageError(f"no fault {what!r} is on; these are: {known or 'none'}")
        told = [self._told(number) for number in numbers]
        for number in numbers:
            await self._end(number)
        return {"healed": told}

    async def _end(self, number: int) -> None:
        """End a fault here and in the other processes, unless it has ended meanwhile."""
        for handles in (self._ends, self._turns):
            handle = handles.pop(number, None)
            if handle is not None:
                handle.cancel()
        is_of_plane = number in self._components.active
        if is_of_plane:
            await self._components.end(number)
        elif number in self._injector.active:
            self._injector.heal(number)
        else:
            return
        phase = self._phases.get(number)
        if phase is not None:
            ended = Phase(
                name=phase.name, kind=phase.kind, from_s=phase.from_s, until_s=self._elapsed_s()
            )
            self._phases[number] = ended
            if self._is_first:
                self._note(f"fault {number}: {phase.name} is healed")
        if not is_of_plane and number < NOTED_FIRST:
            await self._pass_on(Heal(do="heal", what=str(number)))

    def _told(self, number: int) -> Json:
        phase, (hit, of) = self._phases[number], self._reach[number]
        handle = self._ends.get(number)
        left_s = None if handle is None else handle.when() - asyncio.get_running_loop().time()
        on_s = self._elapsed_s() - phase.from_s
        return {
            "number": number,
            "fault": phase.name,
            "nodes": hit,
            "of": of,
            "for_s": round(on_s, 1),
            "left_s": None if left_s is None else round(left_s, 1),
        }

    async def _pass_on(self, order: Inject | Heal) -> list[Json]:
        """Hand an order to the other processes; one that has just died misses it."""
        siblings = self._siblings()
        if siblings is None:
            return []
        document = order.model_dump(mode="json", by_alias=True, exclude_none=True)
        if isinstance(order, Inject):
            document["fault"] = document_of(order.fault)
            document.pop("for", None)  # the first process keeps the time
        found = []
        for directory in siblings.run_directories():
            try:
                found.append(await ask(directory, document))
            except FleetError as error:
                log.warning("%s misses a fault: %s", directory, error)
        return found


def reach_words(hit: int, of: int) -> str:
    """Say how many nodes a fault hits, "" if it is none of nodes."""
    return f" on {hit} of {of} nodes" if of else ""


def _read(order: Json) -> Order:
    """Read an order. Raises UsageError in one line."""
    model = _ORDERS.get(str(order.get("do")))
    if model is None:
        raise UsageError(f"do: {order.get('do')!r} is not one of {', '.join(_ORDERS)}")
    try:
        return model.model_validate(order)
    except ValidationError as error:
        told = explain(error, model)
        raise UsageError(told.removeprefix("fault: ").removeprefix("fault.")) from error


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a fault could not be healed: %r", error, exc_info=error)
