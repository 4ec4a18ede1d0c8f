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
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fleet.errors import FleetError, UsageError
from fleet.faults.fault import FaultSpec, document_of, words_of
from fleet.faults.injector import Injector
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.schema import DurationNs, Spec, explain
from fleet.report.report import Phase
from fleet.run.fault_socket import Json, ask

ACTIVE_MAX = 1_000

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


class FaultControl:
    """Takes orders for the nodes of this process, and hands them on to the others of the run."""

    def __init__(
        self,
        node_host: NodeHost,
        elapsed_s: Callable[[], float],
        note: Callable[[str], None],
        siblings: Callable[[], Siblings | None],
    ) -> None:
        has_own = node_host.has_own_connections
        self._injector = Injector(node_host.reactor, node_host.draws, has_own_connections=has_own)
        self._node_host = node_host
        self._elapsed_s = elapsed_s
        self._note = note
        self._siblings = siblings
        self._is_first = node_host.settings.shared is None  # process of the run
        self._numbers = 0
        self._phases: dict[int, Phase] = {}
        self._reach: dict[int, tuple[int, int]] = {}  # by number: nodes hit, of how many
        self._ends: dict[int, asyncio.TimerHandle] = {}
        self._turns: dict[int, asyncio.TimerHandle] = {}  # of those that come and go

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
        return {"active": [self._told(number) for number in self._injector.active]}

    async def inject(self, spec: FaultSpec, for_ns: int | None = None) -> int:
        """Let something go wrong in the whole run; return its number.

        Raises UsageError if it hits no node, or nodes that cannot have it.
        """
        order = Inject.model_construct(do="inject", fault=spec, for_ns=for_ns)
        answer = await self._inject(order)
        return int(answer["number"])

    async def heal(self, number: int) -> None:
        """End a fault everywhere, unless it has ended: a user may have healed it."""
        await self._end(number)

    def close(self) -> None:
        """Write down the end of what is still on; the nodes are about to fall silent."""
        for handles in (self._ends, self._turns):
            for handle in handles.values():
                handle.cancel()
            handles.clear()

    async def _inject(self, order: Inject) -> Json:
        spec, number = order.fault, order.number or self._numbers + 1
        if len(self._injector.active) >= ACTIVE_MAX:
            raise UsageError(f"{ACTIVE_MAX} faults are on; heal some first")
        begun_s = self._elapsed_s()
        hit = len(self._injector.inject(spec, number).nodes)
        of = self._node_host.size
        self._numbers = number
        for answer in await self._pass_on(order.model_copy(update={"number": number})):
            hit, of = hit + answer.get("nodes", 0), of + answer.get("of", 0)
        words, is_instant = words_of(spec), spec.is_instant
        if not hit and not order.number:
            if not is_instant:
                await self._end(number)
            raise UsageError(f"{words} hits none of {of} nodes: no node matches")
        until_s = begun_s if is_instant else None
        self._phases[number] = Phase(name=words, kind="fault", from_s=begun_s, until_s=until_s)
        self._reach[number] = (hit, of)
        if order.for_ns is not None and not is_instant and not order.number:
            self._ends[number] = asyncio.get_running_loop().call_later(
                order.for_ns / 1e9, self._heal_soon, number
            )
        if spec.every_ns:
            self._turn_at(number, self._injector.first_turn_ns(number))
        if self._is_first:
            self._note(f"fault {number}: {words} on {hit} of {of} nodes")
        return self._told(number)

    def _turn_at(self, number: int, due_ns: int) -> None:
        """Let a fault come or go at an instant; each process of the run does so by itself."""
        left_s = (due_ns - self._node_host.reactor.clock.now_ns()) / 1e9
        self._turns[number] = asyncio.get_running_loop().call_later(
            max(left_s, 0), self._turn, number
        )

    def _turn(self, number: int) -> None:
        self._turn_at(number, self._injector.turn(number))

    def _heal_soon(self, number: int) -> None:
        """End a fault whose time is over."""
        task = asyncio.get_running_loop().create_task(self._end(number))
        task.add_done_callback(_log_failure)

    async def _heal(self, what: str) -> Json:
        active = self._injector.active
        numbers = [
            number
            for number, each in active.items()
            if what in {"", str(number), each.spec.type.value}
        ]
        if what and not numbers:
            known = ", ".join(f"{n} ({each.spec.type.value})" for n, each in active.items())
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
        if number not in self._injector.active:
            return
        self._injector.heal(number)
        phase = self._phases.get(number)
        if phase is not None:
            ended = Phase(
                name=phase.name, kind=phase.kind, from_s=phase.from_s, until_s=self._elapsed_s()
            )
            self._phases[number] = ended
            if self._is_first:
                self._note(f"fault {number}: {phase.name} is healed")
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
