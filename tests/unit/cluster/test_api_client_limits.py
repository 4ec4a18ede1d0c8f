"""What fleet's own requests take of a server: over TLS on loopback, one server a test."""

import asyncio
import gzip
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from test_cluster_connection import Handler, connected, kubeconfig_for, serving
from test_cluster_connection import certificate as certificate  # noqa: PLC0414 - a fixture

from fleet.cluster import api_client
from fleet.cluster.api_client import CALLS_MAX, RETRY_AFTER_S_MAX, Answer, Cluster, Gate
from fleet.cluster.credentials import ClusterSelection
from fleet.errors import SetupError
from fleet.wire.http2.messages import Request

Outcome = tuple[Answer, list[float]]


def ask(tmp_path: Path, certificate: Path, handler: Handler) -> Outcome:
    """Return the answer, and how long was waited before each further try."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def scenario() -> Outcome:
        async with connected(tmp_path, certificate, handler, sleep) as channel:
            return await channel.api("preflight").request("GET", "/x"), waits

    return asyncio.run(scenario())


def answering(body: bytes, **headers: str) -> Handler:
    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return handler


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_answer_stops_at_the_limit(
    tmp_path: Path,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    pack: Callable[[bytes], bytes],
) -> None:
    monkeypatch.setattr(api_client, "BODY_BYTES_MAX", 2**20)
    headers = {} if pack is bytes else {"Content-Encoding": "gzip"}
    small = answering(pack(b'{"a":1}'), **headers)
    assert ask(tmp_path, certificate, small)[0].body == {"a": 1}
    large = answering(pack(b" " * (2**20 + 1)), **headers)
    with pytest.raises(SetupError, match=r"127.0.0.1:\d+: an answer above"):
        ask(tmp_path, certificate, large)


@pytest.mark.parametrize(
    ("value", "wait_s"), [("2", 2.0), ("900", RETRY_AFTER_S_MAX), ("0", 0.3)] + [
        (value, 0.1 * 3.0) for value in ("-1", "9" * 400, "1e9", "\u00b2", "Fri, 1 Jan 2100")
    ],
)  # fmt: skip
def test_a_retry_after_beyond_sense_is_ignored(
    tmp_path: Path, certificate: Path, value: str, wait_s: float
) -> None:
    tries = []

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        tries.append(1)
        return web.Response(status=503 if len(tries) == 1 else 200, headers={"Retry-After": value})

    answer, waits = ask(tmp_path, certificate, handler)
    assert answer.ok
    assert waits == pytest.approx([wait_s])


def test_a_server_that_names_no_time_is_left_alone_longer_each_time(
    tmp_path: Path, certificate: Path
) -> None:
    """Source: client-go/rest/with_retry.go, Before: the larger of back-off and Retry-After."""

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "0"})

    answer, waits = ask(tmp_path, certificate, handler)
    assert answer.code == 429
    assert waits == pytest.approx([0.3, 0.9, 2.7, 5.0, 5.0])


async def test_a_busy_server_gets_fewer_calls_at_once(tmp_path: Path, certificate: Path) -> None:
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

    async def no_sleep(_seconds: float) -> None:
        await asyncio.sleep(0)

    async with connected(tmp_path, certificate, handler, no_sleep) as channel:
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


def test_whoever_waits_at_a_gate_is_let_in_as_others_leave() -> None:
    order: list[str] = []

    async def call(gate: Gate, name: str) -> None:
        async with gate:
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    async def scenario() -> None:
        gate = Gate()
        gate.calls = 1.9
        names = ("a", "b", "c")
        await asyncio.gather(*(call(gate, name) for name in names))

    asyncio.run(scenario())
    assert order == [f"{name} {way}" for name in ("a", "b", "c") for way in ("in", "out")]


def test_an_open_watch_takes_no_room_from_calls(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
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

    async def scenario() -> int:
        async with connected(tmp_path, certificate, handler) as channel:
            api = channel.api("storage")
            streams = [api.stream(Request(b"GET", b"/watch", stream=True)) for _ in range(40)]
            for stream in streams:
                await anext(stream)
            code = (await api.request("GET", "/x")).code
            is_over.set()
            for stream in streams:
                await stream.aclose()
            return code

    assert asyncio.run(scenario()) == 200


async def test_a_status_is_asked_for_once_and_raises_nothing(
    tmp_path: Path, certificate: Path
) -> None:
    answers, is_over = [200, 500, 429, 403], asyncio.Event()

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        if not answers:
            await is_over.wait()
        return web.Response(status=answers.pop(0) if answers else 200)

    async with serving(certificate, handler) as port:
        path = kubeconfig_for(tmp_path, port, certificate)
        credentials = await ClusterSelection(kubeconfig=path).load()
        async with Cluster(credentials) as channel:
            api = channel.api("health")
            codes = [await api.status("/readyz", 5.0) for _ in range(4)]
            codes.append(await api.status("/readyz", 0.01))  # it hangs
            asked = channel.requests["health"]
        is_over.set()
    async with Cluster(credentials) as channel:
        codes.append(await channel.api("health").status("/readyz", 5.0))  # nobody listens
    assert (codes, asked) == ([200, 500, 429, 403, 0, 0], 5)


@pytest.mark.parametrize("is_tls", [True, False])
async def test_no_token_goes_over_plain_http(
    tmp_path: Path, certificate: Path, *, is_tls: bool
) -> None:
    """Of a local control plane all components are asked for metrics, and etcd has no TLS."""
    seen: list[str | None] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="up 1\n", status=200 if len(seen) == 1 else 404)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    path = kubeconfig_for(tmp_path, 1, certificate)
    credentials = await ClusterSelection(kubeconfig=path).load()
    loop, tls = asyncio.get_running_loop(), context if is_tls else None
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
