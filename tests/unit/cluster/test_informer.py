"""Copies of a cluster's objects, kept by list and watch from a real server with its troubles."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from world.tls_server import Handler as Step
from world.tls_server import TlsServer
from world.tls_server import certificate as certificate  # noqa: PLC0414 - a fixture
from world.tls_server import server as server  # noqa: PLC0414 - a fixture

from fleet.clock import Draws
from fleet.cluster import api_client
from fleet.cluster.api_client import Cluster, Json
from fleet.cluster.informer import Informer, ObjectWatch
from fleet.wire.api.framing import EVENT_BYTES_MAX

CLAIMS = "/api/v1/persistentvolumeclaims"


def item(name: str, version: int, **more: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "managedFields": [{}], **more}}


def event(kind: str, obj: Json) -> bytes:
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def bookmark(version: int, *, is_end: bool = False) -> bytes:
    notes = {"k8s.io/initial-events-end": "true"} if is_end else {}
    meta = {"resourceVersion": str(version), "annotations": notes}
    return event("BOOKMARK", {"metadata": meta})


def streaming(*chunks: bytes, stays: bool = False) -> Step:
    async def step(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        while stays and request.transport is not None:  # noqa: ASYNC110 - until the client leaves
            await asyncio.sleep(0.001)
        return response

    return step


def answering(code: int, body: object = None, **headers: str) -> Step:
    async def step(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=code, body=orjson.dumps(body), headers=headers)

    return step


async def cut_off(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class World:
    """A server that answers each request by its step, and the informer that asks it."""

    def __init__(self, server: TlsServer, *steps: Step) -> None:
        self._server = server
        self._steps = [*steps]
        self.queries: list[dict[str, str]] = []
        self.waits: list[float] = []
        self.changes: list[tuple[str, bool, bool]] = []
        self.synced = 0
        self.objects: dict[str, Json] = {}

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if not self._steps:
            return await streaming(stays=True)(request)
        return await self._steps.pop(0)(request)

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _informer(self) -> AsyncIterator[Informer]:
        async with self._server.connected(self._handle, asyncio.sleep) as channel:
            yield Informer(
                channel.api("csi"),
                ObjectWatch(0, CLAIMS),
                Draws(1),
                keeps=lambda obj: not obj["metadata"]["name"].startswith("other"),
                on_change=lambda key, before, now: self.changes.append(
                    (key, before is not None, now is not None)
                ),
                on_synced=lambda: setattr(self, "synced", self.synced + 1),
                sleep=self._wait,
            )

    async def run(self) -> None:
        """Run until the request after the last step's has come."""
        wanted = len(self._steps) + 1
        async with self._informer() as informer, asyncio.timeout(120):
            self.objects = informer.objects
            task = asyncio.create_task(informer.run())
            while len(self.queries) < wanted and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


WATCH_LIST = (event("ADDED", item("one", 3)), bookmark(7, is_end=True))


async def test_a_watch_list_then_changes_then_it_goes_on(server: TlsServer) -> None:
    changes = (
        event("MODIFIED", item("one", 8))[:20],  # a chunk ends anywhere
        event("MODIFIED", item("one", 8))[20:] + event("ADDED", item("other", 9)),
        event("ADDED", item("two", 10)) + event("DELETED", item("one", 11)) + bookmark(12),
    )
    world = World(server, streaming(*WATCH_LIST, *changes))
    await world.run()
    first, second = world.queries
    timeout_s = int(first.pop("timeoutSeconds"))
    assert 300 <= timeout_s <= 600
    assert first == {
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
        "sendInitialEvents": "true",
        "watch": "true",
        "timeout": f"{timeout_s // 60}m{timeout_s % 60}s",
    }
    assert second["resourceVersion"] == "12"
    assert "sendInitialEvents" not in second
    assert world.waits == [0]
    one, two = "default/one", "default/two"
    assert world.changes == [
        (one, False, True), (one, True, True), (two, False, True), (one, True, False)
    ]  # fmt: skip
    assert world.synced == 1
    assert world.objects[two]["metadata"]["resourceVersion"] == "10"
    assert "managedFields" not in world.objects[two]["metadata"]


async def test_a_server_without_watch_lists_is_listed_page_by_page(server: TlsServer) -> None:
    page = {"metadata": {"resourceVersion": "5", "continue": "next"}, "items": [item("one", 2)]}
    last = {"metadata": {"resourceVersion": "5"}, "items": [item("two", 3)]}
    steps = (answering(422, {"message": "no"}), answering(200, page), answering(200, last))
    world = World(server, *steps)
    await world.run()
    _, first, second, watch = world.queries
    assert first == {"limit": "500", "resourceVersion": "0"}
    assert second == {"limit": "500", "continue": "next"}
    assert watch["resourceVersion"] == "5"
    assert list(world.objects) == ["default/one", "default/two"]
    assert world.synced == 1
    assert world.waits == [0, 0, 0]


async def test_what_went_while_the_watch_was_expired_is_told(server: TlsServer) -> None:
    expired = event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
    both = (event("ADDED", item("one", 3)), event("ADDED", item("two", 4)), WATCH_LIST[1])
    anew = (event("ADDED", item("two", 9)), bookmark(9, is_end=True))
    world = World(server, streaming(*both, expired), streaming(*anew))
    await world.run()
    assert world.changes[2:] == [("default/two", True, True), ("default/one", True, False)]
    assert list(world.objects) == ["default/two"]
    assert world.synced == 2
    assert 0.8 <= world.waits[0] <= 1.6


@pytest.mark.parametrize(
    "trouble",
    [
        answering(403, {"message": "forbidden"}),
        answering(200, b"no list".decode()),
        answering(200, {"metadata": {"resourceVersion": 5}}),
        answering(200, {"items": []}),
    ],
    ids=["forbidden", "no list", "no version", "no metadata"],
)
async def test_failures_back_off_further_and_further(server: TlsServer, trouble: Step) -> None:
    """A list that fails is asked for as a watch-list again, after the back-off."""
    refused = answering(403, {"message": "forbidden"})
    world = World(server, *(refused, trouble) * 4)
    await world.run()
    assert world.waits[::2] == [0] * 4  # the other way of asking, at once
    for wait_s, least_s in zip(world.waits[1::2], (0.8, 1.6, 3.2, 6.4), strict=True):
        assert least_s <= wait_s <= 2 * least_s
    assert world.objects == {}


async def test_a_server_that_says_when_is_asked_then(server: TlsServer) -> None:
    later = {"Retry-After": "7"}
    world = World(server, answering(429, {}, **later), answering(503, {}, **later))
    await world.run()
    assert world.waits == [7, 7]


async def test_lost_connections_are_no_refusals(server: TlsServer) -> None:
    """Before the answer: again after a second. In the stream: it goes on where it was."""

    async def broken(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in WATCH_LIST:
            await response.write(chunk)
        await response.write(bookmark(30))
        await asyncio.sleep(0.05)  # else what was written goes with the connection
        return await cut_off(request)

    world = World(server, cut_off, cut_off, broken)  # aiohttp tries twice itself
    await world.run()
    assert world.waits == [1, 0]
    assert world.queries[2]["sendInitialEvents"] == "true"
    assert world.queries[3]["resourceVersion"] == "30"
    assert list(world.objects) == ["default/one"]


async def test_a_watch_that_falls_silent_is_given_up(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "_STREAM_LIMITS", aiohttp.ClientTimeout(sock_read=0.1))
    world = World(server, streaming(*WATCH_LIST, stays=True))
    await world.run()
    assert len(world.waits) == 1
    assert 0.8 <= world.waits[0] <= 1.6
    assert world.queries[1]["sendInitialEvents"] == "true"


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"[]\n", b'{"type":"ADDED"}\n', b"\n", b"x" * (EVENT_BYTES_MAX + 99)]
)
async def test_what_is_no_event_ends_the_watch(
    server: TlsServer, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(server, streaming(*WATCH_LIST, line, stays=True))
    await world.run()
    assert 0.8 <= world.waits[0] <= 1.6
    assert f"{CLAIMS}: the server sent a watch event" in caplog.text
    assert "sendInitialEvents" in world.queries[1]


async def test_a_large_event_is_taken(server: TlsServer) -> None:
    large = event("ADDED", item("large", 8, annotations={"a": "x" * (EVENT_BYTES_MAX - 999)}))
    world = World(server, streaming(*WATCH_LIST, large))
    await world.run()
    assert list(world.objects) == ["default/one", "default/large"]


async def test_a_page_beyond_the_limit_is_refused(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "BODY_BYTES_MAX", 2**16)
    page = {"metadata": {"resourceVersion": "5"}, "items": [item("one", 2, a="x" * 2**16)]}
    world = World(server, answering(403, {}), answering(200, page))
    await world.run()
    assert world.objects == {}
    assert 0.8 <= world.waits[1] <= 1.6


async def test_a_server_that_is_gone_is_asked_less_and_less(server: TlsServer) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise asyncio.CancelledError

    async with server.serving() as port:
        pass
    async with Cluster(await server.selection(port).load()) as channel:
        informer = Informer(
            channel.api("csi"),
            ObjectWatch(0, CLAIMS),
            Draws(1),
            keeps=lambda _: True,
            on_change=lambda *_: None,
            on_synced=lambda: None,
            sleep=wait,
        )
        with pytest.raises(asyncio.CancelledError):
            await informer.run()
    for wait_s, least_s in zip(waits, (0.8, 1.6, 3.2, 6.4), strict=True):
        assert least_s <= wait_s <= 2 * least_s
