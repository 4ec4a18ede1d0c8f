"""What fleet's own requests take of a server: over TLS on loopback, one server a test."""

import asyncio
import gzip
from collections.abc import Callable

import pytest
from aiohttp import web
from world.tls_server import Handler, TlsServer
from world.tls_server import certificate as certificate  # noqa: PLC0414 - a fixture
from world.tls_server import server as server  # noqa: PLC0414 - a fixture

from fleet.cluster import api_client
from fleet.cluster.api_client import CALLS_MAX, RETRY_AFTER_S_MAX, Answer, Cluster, Gate
from fleet.errors import SetupError
from fleet.wire.http2.messages import Request


async def ask(server: TlsServer, handler: Handler) -> tuple[Answer, list[float]]:
    """Return the answer, and how long was waited before each further try."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    answer, _ = await server.ask(handler, sleep)
    return answer, waits


def answering(body: bytes, **headers: str) -> Handler:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return handler


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
async def test_an_answer_stops_at_the_limit(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(api_client, "BODY_BYTES_MAX", 2**20)
    headers = {} if pack is bytes else {"Content-Encoding": "gzip"}
    small = answering(pack(b'{"a":1}'), **headers)
    assert (await server.ask(small))[0].body == {"a": 1}
    large = answering(pack(b" " * (2**20 + 1)), **headers)
    with pytest.raises(SetupError, match=r"127.0.0.1:\d+: an answer above"):
        await server.ask(large)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("2", 2.0),
        ("900", RETRY_AFTER_S_MAX),
        *((odd, 0.3) for odd in ("0", "-1", "9" * 400, "1e9", "86400", "²", "Fri, 1 Jan 2100")),
    ],
)
async def test_a_retry_after_beyond_sense_is_ignored(
    server: TlsServer, value: str, wait_s: float
) -> None:
    tries = []

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        tries.append(1)
        return web.Response(status=503 if len(tries) == 1 else 200, headers={"Retry-After": value})

    answer, waits = await ask(server, handler)
    assert answer.ok
    assert waits == pytest.approx([wait_s])


async def test_a_server_that_names_no_time_is_left_alone_longer_each_time(
    server: TlsServer,
) -> None:
    """Source: client-go/rest/with_retry.go, Before: the larger of back-off and Retry-After."""

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "0"})

    answer, waits = await ask(server, handler)
    assert answer.code == 429
    assert waits == pytest.approx([0.3, 0.9, 2.7, 5.0, 5.0])


async def test_a_busy_server_gets_fewer_calls_at_once(server: TlsServer) -> None:
    """A clean-up has 32 workers: after refusals few of them ask at the same time."""
    under_way, most, asked = 0, [0], 0

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        nonlocal under_way, asked
        asked += 1
        under_way += 1
        most[-1] = max(most[-1], under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return web.json_response({}, status=429 if asked <= CALLS_MAX else 200)

    async with server.connected(handler) as channel:
        api = channel.api("cleanup")
        for _ in range(2):
            await asyncio.gather(*(api.request("GET", "/x") for _ in range(CALLS_MAX)))
            most.append(0)
            channel.gate.calls = min(channel.gate.calls, 2.0)
    assert most[1] <= 9  # it begins with two, and each good answer adds its share of one


def test_a_gate_halves_at_refusals_and_opens_again() -> None:
    gate = Gate()
    for _ in range(10):
        gate.take(is_overloaded=True)
    assert gate.calls == 1
    for _ in range(2000):
        gate.take(is_overloaded=False)
    assert gate.calls == CALLS_MAX


async def test_whoever_waits_at_a_gate_is_let_in_as_others_leave() -> None:
    order: list[str] = []
    gate = Gate()
    gate.calls = 1.9

    async def call(name: str) -> None:
        async with gate:
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(*map(call, ("a", "b", "c")))
    assert order == [f"{name} {way}" for name in ("a", "b", "c") for way in ("in", "out")]


async def test_an_open_watch_takes_no_room_from_calls(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "CALLS_MAX", 1)
    is_over = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if "watch" not in request.path:
            return web.json_response({})
        response = web.StreamResponse()
        await response.prepare(request)
        await is_over.wait()
        return response

    async with server.connected(handler) as channel:
        api = channel.api("storage")
        streams = [api.stream(Request(b"GET", b"/watch", stream=True)) for _ in range(40)]
        for stream in streams:
            await anext(stream)
        assert (await api.request("GET", "/x")).code == 200
        is_over.set()
        for stream in streams:
            await stream.aclose()


async def test_a_status_is_asked_for_once_and_raises_nothing(server: TlsServer) -> None:
    answers, is_over = [200, 500, 429, 403], asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        if not answers:
            await is_over.wait()
        return web.Response(status=answers.pop(0) if answers else 200)

    async with server.serving(handler) as port:
        credentials = await server.selection(port).load()
        async with Cluster(credentials) as channel:
            api = channel.api("health")
            assert [await api.status("/readyz", 5.0) for _ in range(4)] == [200, 500, 429, 403]
            assert await api.status("/readyz", 0.01) == 0  # it hangs
            assert channel.requests["health"] == 5
        is_over.set()
    async with Cluster(credentials) as channel:
        assert await channel.api("health").status("/readyz", 5.0) == 0  # nobody listens


@pytest.mark.parametrize("is_tls", [True, False])
async def test_no_token_goes_over_plain_http(server: TlsServer, *, is_tls: bool) -> None:
    """Of a local control plane all components are asked for metrics, and etcd has no TLS."""
    seen: list[str | None] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="up 1\n", status=200 if len(seen) == 1 else 404)

    credentials = await server.selection(1).load()
    loop, tls = asyncio.get_running_loop(), server.context if is_tls else None
    other = await loop.create_server(web.Server(handler), "127.0.0.1", 0, ssl=tls)
    url = f"http{'s' * is_tls}://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with other, Cluster(credentials) as cluster:
        api = cluster.api("metrics")
        assert [chunk async for chunk in api.text("/metrics", url)] == [b"up 1\n"]
        with pytest.raises(SetupError, match="up 1"):
            [chunk async for chunk in api.text("/metrics", url)]
        assert not cluster.requests["metrics"]  # of the API server
    [token, _] = seen
    assert bool(token) is is_tls
