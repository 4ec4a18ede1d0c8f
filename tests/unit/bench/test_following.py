"""A watch that goes on when its server was gone."""

import asyncio
import json

import aiohttp
from aiohttp import web
from e2e.free_ports import free_port

from bench.inside import Json, follow


def event(version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    return json.dumps({"type": "ADDED", "object": {"metadata": metadata}}).encode() + b"\n"


class Server:
    """An API server that starts with a refusal, then sends one event a watch."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = [(503, b"{}"), (200, event(3)), (410, b"{}"), (200, event(5))]

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["resourceVersion"])
        status, body = self.answers.pop(0) if self.answers else (503, b"{}")
        return web.Response(status=status, body=body)


async def follow_across_refusals() -> tuple[list[int], list[str]]:
    port, seen, server = free_port(), list[int](), Server()

    def see(event: Json, version: int) -> int:
        seen.append(int(event["object"]["metadata"]["resourceVersion"]))
        return max(version, seen[-1])

    async with aiohttp.ClientSession() as session:
        watching = asyncio.create_task(follow(session, f"http://127.0.0.1:{port}/", see))
        await asyncio.sleep(0)  # the first connection is refused
        app = web.Application()
        app.router.add_get("/", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        while len(server.asked) < 5:
            assert not watching.done()
            await asyncio.sleep(0.01)
        watching.cancel()
        await runner.cleanup()
    return seen, server.asked[:5]


def test_a_watch_survives_refusals_and_goes_on_or_begins_anew() -> None:
    seen, asked = asyncio.run(follow_across_refusals())
    assert seen == [3, 5]
    assert asked == ["0", "0", "3", "0", "5"]
