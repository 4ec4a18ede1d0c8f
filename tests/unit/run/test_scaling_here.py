"""`fleet scale` on this machine: the first process shares the nodes out, each follows its part."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from world.cluster_fakes import FakeApi

from fleet.background import Background
from fleet.cluster.runs import RunLease, Size
from fleet.errors import UsageError
from fleet.host.node_host import NodeHost
from fleet.host.siblings import Siblings
from fleet.profile.settings import Settings
from fleet.run.control_socket import Json, open_socket
from fleet.run.observation import Observation
from fleet.run.scaling import Scaling


async def scaled(directory: Path, *numbers: int) -> tuple[list[Json], list[int], Size | None]:
    """Scale a run of two processes; return the answers, what the other was asked, our size."""
    settings = Settings.from_options(nodes=4, processes=2, max_nodes=9)
    own = settings.share(0)
    host = SimpleNamespace(
        settings=own, counts=None, nodes_max=own.most, zones=[], wanted=2, size=2, strays=list
    )
    host.readiness = SimpleNamespace(present=())
    host.room = lambda: 0
    size = Size(own.nodes, own.most, own.nodes)
    lease = RunLease(FakeApi(), "fleet-0000", "r", size=size)
    asked: list[int] = []

    async def other(order: Json) -> Json:
        asked.append(order["nodes"])
        return {"nodes": order["nodes"], "told": ""}

    siblings = cast("Siblings", SimpleNamespace(run_directories=lambda: [directory]))
    background = Background(print)
    scaling = Scaling(
        settings,
        cast("NodeHost", host),
        lease,
        FakeApi(),
        background,
        cast("Observation", SimpleNamespace(follow=asyncio.Event().wait)),
    )
    scaling.open()
    async with open_socket(directory, other):
        try:
            answers = [await scaling.scale(each, siblings) for each in numbers]
        finally:
            await background.stop()
    assert host.wanted == (lease.size.nodes if lease.size else -1)
    return answers, asked, lease.size


def test_the_processes_of_a_run_share_the_nodes(tmp_path: Path) -> None:
    answers, asked, size = asyncio.run(scaled(tmp_path, 9, 3))
    told = [each["told"] for each in answers]
    assert told == ["9 nodes from now on, 4 before", "3 nodes from now on, 9 before"]
    assert asked == [4, 1]
    assert size == Size(2, 5, 2)


def test_more_nodes_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--nodes 10: this run has room for 9; see --max-nodes"):
        asyncio.run(scaled(tmp_path, 10))
