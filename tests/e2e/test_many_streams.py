"""400 sessions at once, 50 of which nobody reads: what they hold, and whom they hold up.

The kubelet is asked without the API server between, whose own buffers would hide what it does.
"""

import asyncio
import contextlib
import socket
import ssl
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import aiohttp
import psutil
import pytest
import yaml

from e2e.e2e_world import World, pod

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PREFIX = "manystreams"
LOGS = EXECS = 200
UNREAD = 25
"""Of either; each has more to say than all buffers on the way hold."""
TICKS = "while true; do echo tick; sleep 0.5; done"
LOUD_TEXT = "while true; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"
LOUD_LOGS = {"linesPerSecond": 50_000, "size": 200}  # 10 MB a second
RECEIVED_BYTES = 16 << 10
"""What the kernel holds for a client that does not read."""
HELD_BYTES_MAX = 384 << 10
"""Of a session: its TLS connection, one chunk, and what waits for its client."""
GROWN_BYTES_MAX = 24 << 20
"""Of all sessions in `LATER_S`; without a bound the unread logs alone would add 250 MB a second."""
LATER_S = 8.0
SLOWER_MAX = 2.0
QUICK_S = 0.25
"""An answer within this is quick, whatever it took without the others: the machine is shared."""
LIMIT_S = 180.0
AT_ONCE = 16
"""Sessions that begin together."""
SHOTS = 9


class Kubelet(NamedTuple):
    """The server of a node, who may ask it, and the process that it is in."""

    url: str
    token: str
    process: psutil.Process

    def held_bytes(self) -> int:
        """Return what fleet holds of memory."""
        tree = (self.process, *self.process.children(recursive=True))
        return int(sum(each.memory_info().rss for each in tree))


@pytest.fixture(scope="module")
def kubelet(world: World) -> Iterator[Kubelet]:
    """Run a node with a pod that says a line now and then, and one that says all it can."""
    with world.spawn(PREFIX, 1) as run:
        run.until_ready()
        loud = {"fleet.emulator/logs": yaml.safe_dump(LOUD_LOGS)}
        world.apply(pod("ticks", TICKS), pod("loud", "sleep 3600", annotations=loud))
        world.kubectl("wait", "--for=condition=Ready", "pod/ticks", "pod/loud", "--timeout=240s")
        world.kubectl("create", "serviceaccount", PREFIX)
        world.kubectl(
            *("create", "clusterrolebinding", PREFIX, "--clusterrole=system:kubelet-api-admin"),
            f"--serviceaccount=default:{PREFIX}",
        )
        [status] = [each["status"] for each in world.nodes(PREFIX).values()]
        [address] = [e["address"] for e in status["addresses"] if e["type"] == "InternalIP"]
        port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        token = world.kubectl("create", "token", PREFIX).strip()
        yield Kubelet(f"https://{address}:{port}", token, psutil.Process(run.process.pid))
        run.end_well_or_late()
    world.kubectl("delete", "clusterrolebinding", PREFIX)
    world.assert_nothing_left(PREFIX)


class Sessions:
    """Those that are open, and how much each that is read has said."""

    def __init__(self, kubelet: Kubelet, http: aiohttp.ClientSession) -> None:
        self._kubelet = kubelet
        self._http = http
        self._open: list[aiohttp.ClientResponse] = []
        self._readers: list[asyncio.Task[None]] = []
        self.said: list[int] = []

    async def close(self) -> None:
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for each in self._open:
            each.close()

    async def open_all(self) -> None:
        """Begin with those that are not read."""
        few = asyncio.Semaphore(AT_ONCE)

        async def begin(at: int) -> None:
            is_read = at >= 2 * UNREAD
            async with few:
                if at % 2:
                    await self.follow_log("ticks" if is_read else "loud", is_read=is_read)
                else:
                    await self.execute(TICKS if is_read else LOUD_TEXT, is_read=is_read)

        await asyncio.gather(*map(begin, range(LOGS + EXECS)))

    async def follow_log(self, pod: str, *, is_read: bool) -> None:
        path = f"/containerLogs/default/{pod}/c?follow=true"
        answer = await self._http.get(self._kubelet.url + path)
        assert answer.status == 200
        self._open.append(answer)
        if is_read:
            self._read(answer.content.iter_any())

    async def execute(self, script: str, *, is_read: bool) -> None:
        socket_ = await self.exec_socket("sh", "-c", script)
        self._open.append(socket_._response)  # its own close() would read to the end
        if is_read:
            self._read(pieces(socket_))

    async def exec_socket(self, *command: str) -> aiohttp.ClientWebSocketResponse:
        query = [("command", each) for each in command]
        return await self._http.ws_connect(
            f"{self._kubelet.url}/exec/default/ticks/c",
            params=[*query, ("output", "1")],
            protocols=("v5.channel.k8s.io",),
        )

    async def answer_s(self) -> float:
        """Run a command in a session of its own; return how long it took."""
        began_s = time.monotonic()
        said = b"".join([piece async for piece in pieces(await self.exec_socket("echo", "alive"))])
        assert said == b"alive\n"
        return time.monotonic() - began_s

    async def usual_s(self) -> float:
        """Return the median of some answers."""
        return statistics.median([await self.answer_s() for _ in range(SHOTS)])

    def _read(self, pieces: AsyncIterator[bytes]) -> None:
        at = len(self.said)
        self.said.append(0)

        async def read() -> None:
            async for piece in pieces:
                self.said[at] += len(piece)

        self._readers.append(asyncio.create_task(read()))


async def pieces(socket_: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """Yield what a command says on its standard output."""
    async for message in socket_:
        if message.data[:1] == b"\1":
            yield message.data[1:]


@contextlib.asynccontextmanager
async def sessions_at(kubelet: Kubelet) -> AsyncIterator[Sessions]:
    """Be a client with small buffers."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def small(address: tuple[Any, ...]) -> socket.socket:
        found = socket.socket(*address[:3])
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        return found

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=context, limit=0, force_close=True, socket_factory=small
        ),
        headers={"Authorization": f"Bearer {kubelet.token}"},
        timeout=aiohttp.ClientTimeout(total=None, connect=LIMIT_S),
        read_bufsize=RECEIVED_BYTES,
    ) as http:
        found = Sessions(kubelet, http)
        try:
            yield found
        finally:
            await found.close()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_true():  # noqa: ASYNC110 - of what many tasks count
            await asyncio.sleep(0.2)


def test_400_sessions_hold_little_and_slow_nobody_down(kubelet: Kubelet) -> None:
    """Half of them logs, half of them commands; those that are read go on, the others wait."""

    async def main() -> None:
        async with sessions_at(kubelet) as sessions:
            alone_s = min([await sessions.usual_s() for _ in range(2)])
            before = kubelet.held_bytes()
            await sessions.open_all()
            assert len(sessions.said) == LOGS + EXECS - 2 * UNREAD
            await until(lambda: all(sessions.said))
            held = kubelet.held_bytes()
            assert held - before < (LOGS + EXECS) * HELD_BYTES_MAX, (before, held)

            said = list(sessions.said)
            await asyncio.sleep(LATER_S)
            later = kubelet.held_bytes()
            assert later - held < GROWN_BYTES_MAX, (held, later)
            await until(
                lambda: all(now > then for now, then in zip(sessions.said, said, strict=True))
            )  # each that is read goes on

            deadline_s = time.monotonic() + LIMIT_S
            while (beside_s := await sessions.usual_s()) > max(SLOWER_MAX * alone_s, QUICK_S):
                assert time.monotonic() < deadline_s, (alone_s, beside_s)
            print(f"{alone_s=} {beside_s=} {before=} {held=} {later=}")

    asyncio.run(main())
