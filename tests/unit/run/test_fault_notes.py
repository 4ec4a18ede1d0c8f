"""Annotations of Nodes as fleet's own watch shows them, and faults that come and go with them."""

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest
from world.sim_clock import SimClock

from fleet.clock import Draws
from fleet.errors import UsageError
from fleet.faults.fault import FAULT_ANNOTATION, FaultSpec, FaultType, words_of
from fleet.k8s.admission import NodeState
from fleet.k8s.effects import WatchEvent, WatchKind
from fleet.k8s.pods import EventType, NodeView
from fleet.reactor.reactor import Reactor
from fleet.run.fault_control import FaultControl, FaultNotes


class Noted:
    """A control that notes what it is told. `absent` nodes have not registered."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.absent: set[str] = set()
        self.numbers = 0
        self.tasks: list[asyncio.Task[None]] = []

    def soon(self, work: Coroutine[object, object, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def inject_here(self, spec: FaultSpec, for_ns: int | None) -> int:
        [node] = spec.nodes
        if node in self.absent:
            return 0
        if spec.type is FaultType.PARTITION:
            raise UsageError("Partition: the nodes of this run share connections")
        self.numbers += 1
        self.told.append(f"{self.numbers} {node} {words_of(spec)} {for_ns or 0}")
        return self.numbers

    async def heal(self, number: int) -> None:
        self.told.append(f"{number} healed")


def shown(name: str, note: str, kind: EventType = EventType.MODIFIED) -> WatchEvent:
    notes = ((FAULT_ANNOTATION, note),) if note else ()
    state = NodeState(annotations=(*notes, ("fleet.emulator/owner", "x")))
    view = NodeView(name, "uid", "1", False, (), {}, (), (), (), state=state)  # noqa: FBT003
    return WatchEvent(WatchKind.NODE, kind, view)


def play(*events: WatchEvent, control: Noted) -> None:
    async def run() -> None:
        for event in events:
            assert reactor.on_observed is not None
            reactor.on_observed(event)
            for _ in range(5):
                await asyncio.sleep(0)

    reactor = Reactor(SimClock(), Draws(1))
    handed: list[WatchEvent] = []
    reactor.on_observed = handed.append
    FaultNotes(reactor, cast("FaultControl", control))
    asyncio.run(run())
    assert handed == list(events)


def test_faults_begin_and_end_with_their_annotation() -> None:
    control = Noted()
    play(
        shown("a", ""),
        shown("a", "KubeletDown:8m"),
        shown("a", "KubeletDown:8m"),  # a heartbeat
        shown("b", "KubeletRestart; NodeDown"),
        shown("a", "NodeDown"),
        shown("a", ""),
        shown("b", "KubeletRestart; NodeDown", EventType.DELETED),
        control=control,
    )
    assert control.told == [
        "1 a KubeletDown 480000000000",
        "2 b KubeletRestart 0",
        "3 b NodeDown 0",
        "1 healed",
        "4 a NodeDown 0",
        "4 healed",
        "2 healed",  # which ended at once: that does no harm
        "3 healed",
    ]


def test_a_node_that_has_not_registered_is_tried_at_its_next_status() -> None:
    control = Noted()
    control.absent.add("a")
    play(shown("a", "NodeDown"), control=control)
    assert not control.told
    control.absent.clear()
    play(shown("a", "NodeDown"), shown("a", "NodeDown"), control=control)
    assert control.told == ["1 a NodeDown 0"]


def test_what_cannot_be_is_told_once_and_nothing_of_it_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    control = Noted()
    bad = "NodeDown; Partition"
    play(shown("a", bad), shown("a", bad), shown("b", "Earthquake"), control=control)
    assert control.told == ["1 a NodeDown 0", "1 healed"]
    told = [each.getMessage() for each in caplog.records]
    assert told[0] == "node a: Partition: the nodes of this run share connections"
    assert told[1].startswith("node b: fleet.emulator/fault: 'Earthquake' is no fault; these are")
    assert len(told) == 2
