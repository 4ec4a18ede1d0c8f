import asyncio

import aiohttp
import pytest
from aiohttp import web

from fleet.controlplane.controlplane import ROLE_BINDINGS, Probe
from fleet.errors import SetupError
from fleet.k8s.well_known import BINDINGS


async def bound(answers: list[int]) -> tuple[bool, int]:
    """Bind roles at a server that gives these answers, 0 for a connection that it ends, then 201.

    Return whether all are bound, and how many requests there were.
    """
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        status = answers.pop(0) if answers else 201
        if not status:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=status or 500)

    app = web.Application()
    app.router.add_post(BINDINGS, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(_, port, *_)] = runner.addresses
    probe = Probe.__new__(Probe)  # without certificates: this server has no TLS
    probe._session = aiohttp.ClientSession()
    try:
        async with probe:
            return await probe.binds_roles(f"http://127.0.0.1:{port}"), asked
    finally:
        await runner.cleanup()


def test_what_is_bound_already_is_fine() -> None:
    assert asyncio.run(bound([409])) == (True, len(ROLE_BINDINGS))


def test_a_server_that_does_not_answer_is_asked_again_by_the_caller() -> None:
    assert asyncio.run(bound([201, 0])) == (False, 2)


def test_a_server_that_refuses_ends_the_start() -> None:
    with pytest.raises(SetupError, match=r"ClusterRoleBinding .*: 403"):
        asyncio.run(bound([403]))
