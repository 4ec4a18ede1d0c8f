"""Sessions and readers of logs are counted, and refused before anything begins."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from multidict import CIMultiDict, MultiDict

from fleet.server.endpoints import LOGS, Answers, Asked, ConcurrencyLimit, Endpoints
from fleet.server.reactor_thread import ReactorThread
from fleet.server.routes import Endpoint
from fleet.server.streaming import STREAMS, Streaming

SESSIONS = (Endpoint.EXEC, Endpoint.ATTACH, Endpoint.PORT_FORWARD)


class Unasked:
    """Whoever begins something asks it; nothing begins, and the limits are counted."""

    hit = ""

    def hit_limit(self, what: str) -> None:
        self.hit += what

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


class BeganError(Exception):
    """Something began."""


class Begins:
    """Nobody gets further than this."""

    async def call(self, *_about: object) -> object:
        raise BeganError

    def hit_limit(self, what: str) -> None:
        raise AssertionError(what)


def answers(reactor_thread: object) -> tuple[Streaming, Endpoints, Answers]:
    streaming = Streaming(cast("ReactorThread", reactor_thread))
    endpoints = Endpoints(cast("ReactorThread", reactor_thread), [])
    return streaming, endpoints, {**endpoints.answers, **streaming.answers}


def asked() -> Asked:
    query = MultiDict({"output": "1", "command": "true", "follow": "true"})
    request = SimpleNamespace(query=query, headers=CIMultiDict())
    configuration = SimpleNamespace(feature_gates={})
    parameters = {"podNamespace": "n", "podID": "p", "containerName": "c"}
    return Asked(request, 0, configuration, parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", [*SESSIONS, Endpoint.CONTAINER_LOGS])
def test_over_the_limit_nothing_begins(endpoint: Endpoint) -> None:
    unasked, is_log = Unasked(), endpoint is Endpoint.CONTAINER_LOGS
    streaming, endpoints, all_answers = answers(unasked)
    limit = endpoints.logs if is_log else streaming.sessions
    limit.in_use = limit.most
    response: web.StreamResponse = asyncio.run(all_answers[endpoint](asked()))  # type: ignore[arg-type]
    assert (response.status, unasked.hit) == (429, LOGS if is_log else STREAMS)
    assert limit.in_use == limit.most


@pytest.mark.parametrize("endpoint", [*SESSIONS, Endpoint.CONTAINER_LOGS])
def test_what_fails_counts_no_more(endpoint: Endpoint) -> None:
    streaming, endpoints, all_answers = answers(Begins())
    with pytest.raises(BeganError):
        asyncio.run(all_answers[endpoint](asked()))  # type: ignore[arg-type]
    assert streaming.sessions.in_use == endpoints.logs.in_use == 0


def test_a_limit_refuses_what_is_too_many() -> None:
    limit = ConcurrencyLimit(1)
    with limit.held() as is_admitted:
        assert is_admitted
        with limit.held() as is_another:
            assert not is_another
    assert limit.in_use == 0
