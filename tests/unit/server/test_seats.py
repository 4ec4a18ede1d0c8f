"""Sessions and readers of logs are counted, and refused before anything begins."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from multidict import CIMultiDict, MultiDict

from fleet.server.counts import HttpCounts
from fleet.server.endpoints import Answers, Asked, Endpoints
from fleet.server.host import Host
from fleet.server.questions import Questions
from fleet.server.routes import Endpoint
from fleet.server.seats import Seats
from fleet.server.streaming import Streaming

SESSIONS = (Endpoint.EXEC, Endpoint.ATTACH, Endpoint.RUN, Endpoint.PORT_FORWARD)


class Unasked:
    """Whoever begins something asks it."""

    def hit_limit(self, what: str) -> None:
        """Take it: nothing has begun."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


class BeganError(Exception):
    """Something began."""


class Begins:
    """Nobody gets further than this."""

    async def ask(self, *_about: object) -> object:
        raise BeganError

    def hit_limit(self, what: str) -> None:
        raise AssertionError(what)


def answers(questions: object) -> tuple[Streaming, Endpoints, Answers]:
    streaming = Streaming(cast("Questions", questions), cast("Host", Unasked()))
    endpoints = Endpoints(
        cast("Questions", questions), cast("Host", Unasked()), HttpCounts(), lambda _node: {}
    )
    return streaming, endpoints, {**endpoints.answers, **streaming.answers}


def asked() -> Asked:
    query = MultiDict({"output": "1", "command": "true", "follow": "true"})
    request = SimpleNamespace(query=query, headers=CIMultiDict())
    configuration = SimpleNamespace(feature_gates={})
    parameters = {"podNamespace": "n", "podID": "p", "containerName": "c"}
    return Asked(request, 0, "n-0", configuration, parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("endpoint", [*SESSIONS, Endpoint.CONTAINER_LOGS])
def test_over_the_limit_nothing_begins(endpoint: Endpoint) -> None:
    streaming, endpoints, all_answers = answers(Unasked())
    seats = endpoints.logs if endpoint is Endpoint.CONTAINER_LOGS else streaming.sessions
    seats.taken = seats.most
    response: web.StreamResponse = asyncio.run(all_answers[endpoint](asked()))  # type: ignore[arg-type]
    assert response.status == 429
    assert (seats.taken, seats.refused) == (seats.most, 1)


@pytest.mark.parametrize("endpoint", [*SESSIONS, Endpoint.CONTAINER_LOGS])
def test_whatever_fails_gives_its_seat_back(endpoint: Endpoint) -> None:
    streaming, endpoints, all_answers = answers(Begins())
    with pytest.raises(BeganError):
        asyncio.run(all_answers[endpoint](asked()))  # type: ignore[arg-type]
    assert streaming.sessions.taken == endpoints.logs.taken == 0


def test_seats_are_as_many_as_there_are() -> None:
    seats = Seats(2)
    assert [seats.take() for _ in range(3)] == [True, True, False]
    seats.give_back()
    with seats.one() as has_seat:
        assert has_seat
        with seats.one() as has_another:
            assert not has_another
    assert (seats.taken, seats.refused) == (1, 2)
