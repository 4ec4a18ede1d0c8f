"""Faults by annotation of a Node, with the true injector: what comes, stays and goes."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from world.simulation import RUN, Simulation

from fleet.clock import NS_PER_S
from fleet.faults.fault import FAULT_ANNOTATION
from fleet.host.node_host import NodeHost
from fleet.k8s.effects import WatchKind
from fleet.run.fault_control import FaultControl

pytest_plugins = ("sim_encodings",)
HOUR_NS = 3600 * NS_PER_S


class Noted:
    """A fleet whose Nodes are annotated."""

    def __init__(self, nodes: int = 2) -> None:
        self.sim = Simulation(nodes=nodes, seed=3)
        reactor = self.sim.reactor
        reactor.wires.connect(observer=self.sim.observer)
        reactor.share_watch(WatchKind.NODE, RUN)
        hosted = SimpleNamespace(
            settings=SimpleNamespace(seed=3, shard=0, follows=False),
            reactor=reactor,
            certificates=None,
            draws=self.sim.draws,
            has_own_connections=True,
            size=nodes,
        )
        self.said: list[str] = []
        self.control = FaultControl(
            cast("NodeHost", hosted), lambda: self.sim.now_s, self.said.append, None
        )

    async def run(self, *texts: str, seconds: float = 30) -> None:
        """Let the fleet settle, then give `n-0` one annotation after another."""
        await self._settle(60)
        for text in texts:
            patch = {"metadata": {"annotations": {FAULT_ANNOTATION: text or None}}}
            self.sim.server.update("nodes", "n-0", patch)
            await self._settle(seconds)

    async def _settle(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.sim.run_for(1)
            for _ in range(5):
                await asyncio.sleep(0)

    @property
    def on(self) -> list[str]:
        return [str(each["fault"]) for each in self.control.on()]

    def skew_ns(self, node: int = 0) -> int:
        kubelet = self.sim.kubelet(node)
        return kubelet.env.skew_ns


@pytest.fixture
def noted() -> Noted:
    return Noted()


SKEW = "ClockSkew by=1h"


def test_a_restart_in_a_list_happens_once(noted: Noted) -> None:
    asyncio.run(noted.run(f"KubeletRestart; {SKEW}"))
    assert noted.sim.reactor.counts.restarts == 1
    assert noted.on == ["ClockSkew"]
    assert (noted.skew_ns(), noted.skew_ns(1)) == (HOUR_NS, 0)


def test_what_stays_in_a_list_goes_on_and_what_goes_ends(noted: Noted) -> None:
    lists = (
        f"KubeletRestart; {SKEW}; HeartbeatLoss heartbeats=Status",
        f"KubeletRestart; {SKEW}",
        "KubeletRestart",
    )
    asyncio.run(noted.run(*lists))
    assert noted.sim.reactor.counts.restarts == 1
    assert not noted.on
    assert noted.skew_ns() == 0
    assert not noted.sim.reactor.calls.hindrances
    assert [each.partition(": ")[2] for each in noted.said] == [
        "KubeletRestart on 1 of 2 nodes",
        "ClockSkew on 1 of 2 nodes",
        "HeartbeatLoss Status on 1 of 2 nodes",
        "HeartbeatLoss Status is healed",
        "ClockSkew is healed",
    ]


@pytest.mark.parametrize("down", ["KubeletDown", "NodeDown"])
def test_what_follows_the_end_of_a_kubelet_begins_and_ends_too(noted: Noted, down: str) -> None:
    asyncio.run(noted.run(f"{down}; {SKEW}; NodeDown"))
    assert noted.on == [down, "ClockSkew", "NodeDown"]
    assert noted.sim.reactor.entries[0].kubelet is None
    asyncio.run(noted.run(f"{down}; {SKEW}"))
    assert noted.on == [down, "ClockSkew"]
    asyncio.run(noted.run(""))
    assert not noted.on
    assert noted.skew_ns() == 0
    assert noted.sim.ready() == 2


def test_all_that_an_annotation_began_ends_when_it_goes(noted: Noted) -> None:
    text = f"Partition; KubeletRestart; {SKEW}; HeartbeatLoss; RuntimeDown"
    asyncio.run(noted.run(text, "", seconds=60))
    assert not noted.on
    assert noted.skew_ns() == 0
    assert noted.sim.reactor.counts.restarts == 1
    assert noted.sim.ready() == 2


def test_what_cannot_be_ends_what_was_begun_and_is_told_once(
    noted: Noted, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(noted.run(SKEW, f"{SKEW}; CertificateExpired", seconds=400))  # a status or two
    assert not noted.on
    asyncio.run(noted.run(SKEW, "Earthquake"))
    assert not noted.on
    assert noted.skew_ns() == 0
    told = [each.getMessage() for each in caplog.records if each.name == FaultControl.__module__]
    assert [each.partition(";")[0] for each in told] == [
        "node n-0: CertificateExpired: the nodes of this run have no certificates of their own",
        "node n-0: fleet.emulator/fault: 'Earthquake' is no fault",
    ]


async def test_a_fault_ends_with_its_node(noted: Noted) -> None:
    await noted.run("NodeDown")
    assert noted.on == ["NodeDown"]
    noted.sim.server.remove(("nodes", "", "n-0"))
    await noted.run()
    assert not noted.on


async def test_a_node_whose_kubelet_is_not_there_yet_is_tried_at_its_next_status(
    noted: Noted,
) -> None:
    await noted.run()
    entry = noted.sim.reactor.entries[0]
    kubelet, entry.kubelet = entry.kubelet, None
    await noted.run(SKEW)
    assert not noted.on
    entry.kubelet = kubelet
    noted.sim.server.update("nodes", "n-0", {"metadata": {"labels": {"a": "b"}}})
    await noted.run()
    assert noted.on == ["ClockSkew"]


async def test_commands_and_forms_come_through_the_same_door(noted: Noted) -> None:
    """An order has a fault as files have it, a form has flat words; both are told alike."""
    answer = noted.control.answer
    await noted.run()
    form = {"type": "ClockSkew", "by": "1h", "nodes": "n-0", "for": "90s"}
    first = await answer({"do": "inject", "form": form})
    assert first["told"] == "fault 1: ClockSkew on 1 of 2 nodes for 1m30s"
    assert 89 <= first["left_s"] <= 90
    fault = {"type": "RuntimeDown", "share": 0.5}
    second = await answer({"do": "inject", "fault": fault})
    assert second["told"] == "fault 2: RuntimeDown on 1 of 2 nodes"
    assert (await answer({"do": "list"}))["active"] == noted.control.on()
    assert noted.on == ["ClockSkew", "RuntimeDown"]
    assert (noted.skew_ns(), noted.skew_ns(1)) == (HOUR_NS, 0)
    healed = await answer({"do": "heal", "what": "ClockSkew"})
    assert healed["told"] == "fault 1: ClockSkew is healed"
    assert noted.skew_ns() == 0
    assert [each["number"] for each in (await answer({"do": "heal"}))["healed"]] == [2]
    assert (await answer({"do": "heal"}))["told"] == "no fault is on"
    assert [each.until_s is None for each in noted.control.phases()] == [False, False]


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"do": "break"}, "do: 'break' is not one of inject, heal, list"),
        ({"do": "heal", "what": "7"}, "no fault '7' is on; these are: none"),
        ({"do": "inject", "form": {}}, "'' is no fault; these are: HeartbeatLoss"),
        ({"do": "inject", "form": {"type": "NodeDown", "html_file": "/a"}}, "html_file"),
        (
            {"do": "inject", "form": {"type": "NodeDown", "selector": "zone"}},
            "--selector: 'zone' is not KEY=VALUE[,KEY=VALUE...]",
        ),
        (
            {"do": "inject", "form": {"type": "NodeDown", "for": "0s"}},
            "for: '0s' must be above 0s",
        ),
        (
            {"do": "inject", "fault": {"type": "NodeDown", "nodes": ["n-9"]}},
            "NodeDown hits none of 2 nodes: no node matches",
        ),
        (
            {"do": "inject", "fault": {"type": "ComponentStall", "component": "etcd"}},
            "ComponentStall: it needs a local control plane that the run has started",
        ),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_told(
    noted: Noted, order: dict[str, object], told: str
) -> None:
    found = asyncio.run(noted.control.answer(order))
    assert found["error"].startswith(told) or told in found["error"]
    assert found["code"] == 2
    assert not noted.on
