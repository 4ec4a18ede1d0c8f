"""Why a Locust master may not have answered, and what one says that nobody can read."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgpack
import pytest
import zmq
import zmq.asyncio
from world.cluster_fakes import no_sleep

from fleet.background import Background
from fleet.dashboard import locust_worker
from fleet.dashboard.locust_protocol import Json
from fleet.dashboard.locust_worker import LocustLink, obstacle
from fleet.host.elastic import ElasticFleet
from fleet.metrics import FleetCounts

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("listens", "told"),
    [
        (False, "connection refused"),
        (True, "what listens there hangs, or is not the port for workers"),  # a web server
    ],
)
def test_no_master_is_there(monkeypatch: pytest.MonkeyPatch, told: str, *, listens: bool) -> None:
    monkeypatch.setattr(locust_worker, "PROBE_S_MAX", 0.2)
    with socket.socket() as there:
        there.bind((LOOPBACK, 0))
        if listens:
            there.listen()
        assert asyncio.run(obstacle(LOOPBACK, there.getsockname()[1])) == told


def test_a_master_is_there_and_says_nothing() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port(f"tcp://{LOOPBACK}")
        found = asyncio.run(obstacle(LOOPBACK, port))
    assert found == "it is reached, but says nothing that a Locust master says"


class NoNodes:
    """A fleet that has none and is told how many to have."""

    counts = FleetCounts()
    existing = 0
    nodes_max = 10
    zones: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.aimed: list[int] = []

    def aim(self, nodes: int) -> None:
        self.aimed.append(nodes)

    def figures(self) -> dict[str, object]:
        return {}


class Forms:
    """Faults of a run that has none, and takes what it is asked."""

    def __init__(self) -> None:
        self.orders: list[Json] = []

    def on(self) -> list[Json]:
        return self.orders

    async def answer(self, order: Json) -> Json:
        self.orders.append(order)
        return {"told": f"fault {len(self.orders)}"}


@asynccontextmanager
async def linked(
    background: Background, faults: Forms | None = None
) -> AsyncIterator[tuple[zmq.asyncio.Socket, Callable[[str, object], Awaitable[None]]]]:
    """Play a master: what its worker sends is read, and it is sent messages, a last one to quit."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
        link = LocustLink(
            cast("ElasticFleet", NoNodes()),
            host=LOOPBACK,
            port=router.bind_to_random_port(f"tcp://{LOOPBACK}"),
            shard=0,
            holds=False,
            note=print,
            background=background,
            faults=faults,
        )
        serving = asyncio.create_task(link.run())
        who, _ = await router.recv_multipart()

        async def send(kind: str, data: object) -> None:
            await router.send_multipart([who, msgpack.packb((kind, data, None))])

        yield router, send
        await send("quit", None)
        await asyncio.wait_for(serving, 60)


async def test_a_message_that_no_worker_expects_does_not_make_it_deaf() -> None:
    background = Background(print, sleep=no_sleep)
    async with linked(background) as (_, send):
        await send("spawn", "no mapping")
    assert background.bugs == {"a message of the Locust master": 1}


@pytest.mark.parametrize("takes", [True, False])
async def test_an_order_for_faults_is_answered_by_the_process_that_takes_them(
    *, takes: bool
) -> None:
    background, forms = Background(print), Forms()
    order = {"do": "inject", "form": {"type": "NodeDown"}}

    heard: list[tuple[str, Json]] = []
    async with linked(background, forms if takes else None) as (router, send):
        await send("ack", {"index": 0})
        await send("fleet-fault", {"number": 7, "order": order})
        wanted = {"stats", "fleet-fault-told"} if takes else {"stats"}
        async with asyncio.timeout(60):
            while not wanted <= {kind for kind, _ in heard}:
                kind, data, _ = msgpack.unpackb((await router.recv_multipart())[1])
                heard.append((kind, data))
    told = [data for kind, data in heard if kind == "fleet-fault-told"]
    answer = {"number": 7, "answer": {"told": "fault 1"}, "on": [order]}
    assert told == ([answer] if takes else [])
    reports = [data["fleet"] for kind, data in heard if kind == "stats"]
    assert all(("faults" in each) is takes for each in reports)
    assert not background.bugs
