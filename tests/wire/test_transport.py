"""The transport against a real TLS server on loopback. Time is a number that the test moves."""

import asyncio
import errno
import os
import selectors
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import uvloop
from e2e.free_ports import free_port
from hyperframe.frame import PushPromiseFrame
from peer import (
    Certificate,
    Handler,
    Peer,
    PeerConnection,
    Received,
    by_path,
    make_certificate,
)
from support.connect_proxy import ConnectProxy
from support.stories import Story, as_test

from fleet.host.node_certificates import CertificateContext
from fleet.wire.http2.http2_codec import ErrorCode, Inbox
from fleet.wire.http2.messages import ContentType, Failure, Request, Response, StreamOpened
from fleet.wire.sockets import poller
from fleet.wire.sockets.connection import (
    Address,
    Connection,
    ConnectionHealth,
    ConnectionState,
    PoolLimits,
    Proxy,
    prepare_context,
)
from fleet.wire.sockets.dials import (
    LOCAL_PORTS,
    LOOK_UPS_NS_MIN,
    OPEN_FILES,
    QUEUE,
    SOCKET_MEMORY,
    STREAMS,
    TTL_NS,
    Endpoint,
    LookUp,
    own_limit,
)
from fleet.wire.sockets.transport import Transport

pytest_plugins = ("peer_certificate",)

S = 1_000_000_000
GET = Request(b"GET", b"/bytes")
WATCH = Request(b"GET", b"/watch", stream=True)
SILENT = Request(b"GET", b"/silent")
CREATE = Request(b"POST", b"/status?code=201")


class Harness:
    """A transport with a clock that stands still, and what it delivered."""

    def __init__(
        self,
        endpoint: Endpoint,
        certificate: Certificate,
        authorization: bytes = b"Bearer token",
        health: ConnectionHealth = ConnectionHealth(),  # noqa: B008 - immutable
        look_up: LookUp | None = None,
    ) -> None:
        self.certificate = certificate
        self.peer: Peer
        self.now_ns = S
        self.inbox: Inbox = []
        self.seen: Inbox = []
        self.news = asyncio.Event()
        self.transport = Transport(
            endpoint,
            ssl.create_default_context(cafile=certificate.certificate),
            user_agent=b"kubelet/v1.36.3",
            authorization=authorization,
            accept=b"application/json",
            now_ns=lambda: self.now_ns,
            inbox=self.inbox,
            on_ready=self.take,
            loop=asyncio.get_running_loop(),
            health=health,
            look_up=look_up,
        )
        self.stats = self.transport.stats

    def take(self) -> None:
        self.seen += self.inbox
        self.inbox.clear()
        self.news.set()

    def send(self, request: Request = GET, token: object = "a", pool: int = 1) -> None:
        self.transport.send(pool, request, token)

    def sweep(self, seconds: float = 0) -> None:
        self.now_ns += int(seconds * S)
        self.transport.sweep(self.now_ns)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                self.news.clear()
                await self.news.wait()

    async def answers(self, count: int) -> dict[object, Response]:
        """Wait until that many requests are answered; return the answers by token."""
        self.transport.flush()
        await self.until(lambda: len(self.responses()) >= count)
        found = self.responses()
        assert len(found) == count
        self.seen.clear()
        return dict(found)

    async def answer(self, token: object = "a") -> Response:
        """Wait until one request is answered, and return the answer."""
        return (await self.answers(1))[token]

    def responses(self) -> list[tuple[object, Response]]:
        return [(token, entry) for token, entry in self.seen if isinstance(entry, Response)]

    async def opened(self, count: int) -> None:
        self.transport.flush()
        await self.until(lambda: self.count(StreamOpened) >= count)

    def streams(self) -> int:
        connections = self.transport._by_fd.values()
        return sum(len(each.http2.streams) for each in connections)

    def count(self, kind: type) -> int:
        return sum(isinstance(entry, kind) for _, entry in self.seen)


@asynccontextmanager
async def running(peer: Peer, certificate: Certificate, *pools: int) -> AsyncIterator[Harness]:
    harness = Harness(Endpoint("127.0.0.1", peer.port), certificate)
    harness.peer = peer
    for pool in pools or (1,):
        harness.transport.open_pool(pool, b"system:node:%d" % pool)
    try:
        yield harness
    finally:
        await harness.transport.close()


async def spin(done: Callable[[], bool]) -> None:
    """Turn the loop until something that delivers nothing has happened."""
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0)


def with_peer(
    certificate: Certificate,
    story: Story,
    handler: Handler = by_path,
    settings: dict[int, int] | None = None,
    **parameters: object,
) -> None:
    """Run a story about a harness, which has one pool open to a peer."""

    async def body(peer: Peer) -> None:
        async with running(peer, certificate) as harness:
            await story(harness, **parameters)

    with Peer(certificate, handler, settings) as peer:
        uvloop.run(body(peer))


def on_a_peer(
    handler: Handler = by_path, settings: dict[int, int] | None = None
) -> Callable[[Story], Callable[..., None]]:
    """Make a test of such a story."""

    def play(story: Story, certificate: Certificate, **parameters: object) -> None:
        with_peer(certificate, story, handler, settings, **parameters)

    return lambda story: as_test(story, play, "certificate")


@on_a_peer()
async def test_requests_share_one_connection(harness: Harness) -> None:
    harness.send()
    answer = await harness.answer()
    assert answer.code == 200
    assert answer.body == b"ok"
    harness.send(Request(b"PUT", b"/bytes", b"{}", ContentType.JSON), "put")
    harness.send(Request(b"GET", b"/status?code=429&retry=7"), "busy")
    harness.send(Request(b"POST", b"/status?code=201"), "created")
    answers = await harness.answers(3)
    assert [(answers[t].code, answers[t].retry_after_s) for t in ("put", "busy", "created")] == [
        (200, -1),
        (429, 7),
        (201, -1),
    ]
    assert len(harness.peer.connections) == 1
    assert [r.headers["impersonate-user"] for r in harness.peer.requests] == ["system:node:1"] * 4
    assert harness.peer.requests[1].body == b"{}"
    assert harness.stats.requests == 4


def test_a_rotated_token_and_a_small_table(certificate: Certificate) -> None:
    async def test(harness: Harness) -> None:
        harness.send()
        await harness.answers(1)
        harness.send()
        await harness.answers(1)
        harness.transport.set_authorization(b"Bearer " + b"n" * 2048)
        for _ in range(2):
            harness.send()
            await harness.answers(1)
        tokens = [r.headers["authorization"][-5:] for r in harness.peer.requests]
        assert tokens == ["token", "token", "nnnnn", "nnnnn"]

    with_peer(certificate, test, settings={1: 150})
    with_peer(certificate, test)


async def assert_dials_again(harness: Harness) -> None:
    """The watch "w" is lost with its connection, and a request is answered on another."""
    harness.send()
    answers = await harness.answers(2)
    assert answers["w"].failure is Failure.LOST
    assert answers["a"].code == 200
    assert len(harness.peer.connections) == 2


@on_a_peer()
async def test_another_client_certificate_is_shown_on_new_connections(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.use_certificate(
        (str(harness.certificate.certificate), str(harness.certificate.key))
    )
    await assert_dials_again(harness)


@on_a_peer()
async def test_one_pool_sends_a_token_that_is_over_and_its_connection_stays(
    harness: Harness,
) -> None:
    harness.transport.open_pool(2)

    async def tokens() -> list[str]:
        for pool in (1, 2):
            harness.transport.send(pool, GET, pool)
            harness.transport.flush()
            await harness.answers(1)
        return [each.headers["authorization"] for each in harness.peer.requests[-2:]]

    good, over = "Bearer token", "Bearer expired"
    assert harness.transport.has_token
    assert await tokens() == [good, good]
    harness.transport.expire_token(2, is_over=True)
    harness.transport.expire_token(3, is_over=True)  # it is gone
    assert await tokens() == [good, over]
    harness.transport.set_authorization(b"Bearer other")
    assert await tokens() == ["Bearer other", over]
    harness.transport.expire_token(2, is_over=False)
    assert await tokens() == ["Bearer other"] * 2
    assert len(harness.peer.connections) == 2


@on_a_peer()
async def test_the_101st_stream_opens_a_second_connection(harness: Harness) -> None:
    for number in range(101):
        harness.send(WATCH, number)
    await harness.opened(101)
    assert len(harness.peer.connections) == 2
    assert sorted(r.connection for r in harness.peer.requests) == [0] * 100 + [1]
    harness.sweep()
    assert harness.streams() == 101
    assert harness.stats.connections == 2


def takes_few(connection: PeerConnection, request: Received) -> None:
    if connection.number == 0 and request.sid > 5:
        connection.reset(request.sid, ErrorCode.REFUSED_STREAM)
    else:
        connection.answer(request.sid, end=False)


@on_a_peer(takes_few, settings={3: 3})
async def test_a_small_stream_limit_is_learnt(harness: Harness) -> None:
    """The first connection refuses what it does not take; later ones are not tried with 100."""
    for number in range(9):
        harness.send(WATCH, number)
    await harness.opened(9)
    assert len(harness.peer.connections) == 3
    assert harness.stats.retries == harness.stats.resets == 6


def goes_at_the_last(connection: PeerConnection, request: Received) -> None:
    if connection.number == 0 and request.headers[":path"] == "/last":
        connection.go_away(3)
    else:
        by_path(connection, request)


@on_a_peer(goes_at_the_last)
async def test_goaway_drains_watches_and_sends_the_unseen_again(harness: Harness) -> None:
    harness.send(WATCH, "w1")
    harness.send(WATCH, "w2")
    await harness.opened(2)
    harness.send(Request(b"GET", b"/last"), "last")
    assert (await harness.answer("last")).code == 200
    assert [r.connection for r in harness.peer.requests] == [0, 0, 0, 1]
    old = harness.peer.connections[0]
    harness.peer.call(lambda: old.more(1, b"still here"))
    await harness.until(lambda: ("w1", b"still here") in harness.seen)
    harness.peer.call(lambda: old.more(1, end=True))
    harness.peer.call(lambda: old.more(3, end=True))
    answers = await harness.answers(2)
    assert [answers[token].failure for token in ("w1", "w2")] == [Failure.NONE] * 2
    harness.sweep()
    assert (harness.stats.connections, harness.stats.goaways) == (1, 1)


def sends_away_three_times(connection: PeerConnection, request: Received) -> None:
    if connection.number < 3:
        connection.go_away(0)
    else:
        by_path(connection, request)


@on_a_peer(sends_away_three_times)
async def test_what_is_sent_away_again_waits_longer_each_time(harness: Harness) -> None:
    harness.send(CREATE, "created")
    harness.transport.flush()
    await spin(lambda: harness.stats.goaways == 2)  # the second time at once
    harness.sweep(0.9)
    assert (len(harness.peer.connections), harness.stats.retries) == (2, 2)
    harness.sweep(0.1)
    await spin(lambda: harness.stats.goaways == 3)
    harness.sweep(1.9)
    assert (len(harness.peer.connections), harness.streams()) == (3, 0)
    harness.sweep(0.1)
    assert (await harness.answer("created")).code == 201
    assert (len(harness.peer.connections), harness.stats.retries) == (4, 3)


@on_a_peer(lambda connection, _: connection.go_away(0))
async def test_what_is_sent_away_eight_times_fails(harness: Harness) -> None:
    harness.send(CREATE, "created")
    harness.transport.flush()
    for times in range(2, 9):  # the second time at once
        await spin(lambda: harness.stats.goaways == times)  # noqa: B023 - awaited here
        harness.sweep(64)
    assert (await harness.answer("created")).failure is Failure.LOST
    assert harness.stats.retries == 7


@on_a_peer(lambda connection, _: connection.go_away(0))
async def test_what_is_to_be_sent_again_later_can_be_given_up(harness: Harness) -> None:
    harness.send(CREATE, "created")
    harness.send(CREATE, "kept")
    harness.transport.flush()
    await spin(lambda: harness.stats.retries == 4)
    harness.transport.cancel(1, "created")
    harness.sweep(1)
    await spin(lambda: harness.stats.retries == 5)
    harness.transport.close_pool(1)
    assert [token for token, _ in harness.responses()] == ["kept"]


@on_a_peer()
async def test_a_draining_connection_closes_when_its_last_watch_is_given_up(
    harness: Harness,
) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.peer.call(lambda: harness.peer.connections[0].go_away(2**31 - 1))
    await spin(lambda: harness.stats.goaways == 1)
    harness.transport.cancel(1, "w")
    harness.sweep()
    assert harness.stats.connections == 0


def goes_and_closes(connection: PeerConnection, request: Received) -> None:
    if connection.number == 0:
        connection.go_away(0, text=b"x" * 5000)  # so long that a second read follows at once
        assert connection.transport is not None
        connection.transport.close()
    else:
        by_path(connection, request)


@on_a_peer(goes_and_closes)
async def test_a_goaway_and_the_end_in_one_read(harness: Harness) -> None:
    harness.send()
    assert (await harness.answer()).code == 200  # it was not processed, so it was sent once more
    assert (harness.stats.goaways, harness.stats.retries) == (1, 1)
    assert len(harness.peer.connections) == 2


@on_a_peer()
async def test_a_lost_connection_answers_for_everything(harness: Harness) -> None:
    harness.send(WATCH, "w")
    harness.send(SILENT, "s")
    await harness.opened(1)
    harness.peer.call(harness.peer.connections[0].drop)
    answers = await harness.answers(2)
    assert {answer.failure for answer in answers.values()} == {Failure.LOST}
    harness.send()
    assert (await harness.answer()).code == 200
    assert len(harness.peer.connections) == 2


@on_a_peer()
async def test_a_descriptor_that_something_else_closed_is_a_lost_connection(
    harness: Harness,
) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    [descriptor] = harness.transport._by_fd
    os.close(descriptor)
    await assert_dials_again(harness)


def test_a_breach_closes_only_its_connection(certificate: Certificate) -> None:
    async def body(peer: Peer) -> None:
        async with running(peer, certificate, 1, 2) as harness:
            harness.send(WATCH, "one", pool=1)
            harness.send(WATCH, "two", pool=2)
            await harness.opened(2)
            bad = peer.connections[peer.requests[0].connection]
            peer.call(
                lambda: bad.raw(PushPromiseFrame(1, promised_stream_id=2, flags=["END_HEADERS"]))
            )
            answers = await harness.answers(1)
            (answer,) = answers.values()
            assert answer.failure is Failure.LOST
            assert answer.detail == "HTTP/2: PUSH_PROMISE, which we refused"
            harness.sweep()
            assert harness.streams() == 1
            peer.call(lambda: None)
            assert bad.goaways == [1]

    with Peer(certificate) as peer:
        uvloop.run(body(peer))


@on_a_peer()
async def test_requests_time_out_wherever_they_are(harness: Harness) -> None:
    harness.send(SILENT._replace(timeout_ns=S), "short")
    harness.send(SILENT._replace(timeout_ns=5 * S), "long")
    harness.send(WATCH._replace(timeout_ns=S), "watch")  # until its headers
    await harness.opened(1)
    harness.sweep(0.9)
    assert harness.responses() == []
    harness.sweep(0.2)
    assert (await harness.answer("short")).failure is Failure.TIMEOUT
    harness.sweep(5)
    assert (await harness.answer("long")).failure is Failure.TIMEOUT
    harness.send()
    await harness.answers(1)
    assert [code for _, code in harness.peer.connections[0].resets] == [ErrorCode.CANCEL] * 2


@on_a_peer()
async def test_a_cancelled_request_is_not_answered(harness: Harness) -> None:
    harness.send(GET, "waits")
    harness.send(SILENT, "other")
    harness.transport.cancel(1, "waits")
    harness.transport.cancel(1, "nobody")
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.cancel(1, "w")
    harness.send(GET, "last")
    answers = await harness.answers(1)
    assert list(answers) == ["last"]
    assert [r.headers[":path"] for r in harness.peer.requests] == ["/silent", "/watch", "/bytes"]
    assert harness.peer.connections[0].resets == [(3, ErrorCode.CANCEL)]


@on_a_peer()
async def test_pings_are_sent_when_idle_and_missed_when_lost(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.sweep(29)
    connection = next(iter(harness.transport._by_fd.values()))
    assert connection.ping_ns == 0
    harness.sweep(2)
    asked_ns = connection.ping_ns
    assert asked_ns == harness.now_ns
    harness.now_ns += S
    read_ns = connection.read_ns
    await spin(lambda: connection.read_ns != read_ns)
    harness.sweep(15)
    assert connection.ping_ns == 0
    harness.peer.answers_pings = False
    harness.sweep(31)
    harness.sweep(14)
    assert harness.responses() == []
    harness.sweep(2)
    answer = await harness.answer("w")
    assert answer.failure is Failure.SILENT
    assert answer.detail == "the server did not answer a ping"
    assert harness.stats.pings_lost == 1


@on_a_peer()
async def test_what_was_read_puts_the_next_ping_off(harness: Harness) -> None:
    harness.send()
    await harness.answers(1)
    connection = next(iter(harness.transport._by_fd.values()))
    for _ in range(5):
        harness.sweep(29)
        harness.send()
        await harness.answers(1)
    assert connection.ping_ns == 0
    harness.sweep(29)
    assert connection.ping_ns == 0
    harness.sweep(2)
    assert connection.ping_ns == harness.now_ns


def test_how_long_silence_may_last_can_be_set(certificate: Certificate) -> None:
    async def body(peer: Peer) -> None:
        endpoint = Endpoint("127.0.0.1", peer.port)
        quick = Harness(endpoint, certificate, health=ConnectionHealth(3 * S, 2 * S))
        patient = Harness(endpoint, certificate, health=ConnectionHealth(0, 2 * S))
        for harness in (quick, patient):
            harness.transport.open_pool(1)
            harness.send(WATCH, "w")
            await harness.opened(1)
        peer.answers_pings = False
        for harness in (quick, patient):
            for seconds in (4, 1, 2):
                harness.sweep(seconds)
        assert (quick.stats.pings_lost, patient.stats.pings_lost) == (1, 0)
        patient.sweep(10_000)
        assert patient.transport._by_fd.popitem()[1].ping_ns == 0
        for harness in (quick, patient):
            await harness.transport.close()

    with Peer(certificate, by_path) as peer:
        uvloop.run(body(peer))


@on_a_peer()
async def test_a_closed_pool_answers_for_everything(harness: Harness) -> None:
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.transport.open_pool(2)
    harness.send(GET, "never", pool=2)
    harness.transport.close_pool(1)
    harness.transport.close_pool(2)
    answers = await harness.answers(2)
    assert {answer.failure for answer in answers.values()} == {Failure.CANCELLED}
    assert harness.stats.connections == 0
    await spin(lambda: bool(harness.peer.connections[0].goaways))


@on_a_peer()
async def test_what_is_abandoned_is_not_answered_and_a_hang_up_dials_anew(harness: Harness) -> None:
    harness.send(WATCH, "ours")
    harness.send(WATCH, "theirs")
    await harness.opened(2)
    harness.send(GET, "ours")
    harness.transport.abandon(lambda token: token == "ours")
    harness.transport.hang_up(1)
    answers = await harness.answers(1)
    assert {token: answer.failure for token, answer in answers.items()} == {
        "theirs": Failure.CANCELLED
    }
    assert harness.stats.connections == 0
    harness.send(GET, "next")
    assert (await harness.answer("next")).code == 200
    assert harness.stats.dials == 2
    assert len(harness.peer.connections) == 2


@pytest.mark.parametrize("window", [2**16 - 1, 2**20, 2**31 - 1])
def test_a_large_upload_meets_the_windows_and_a_full_socket(
    certificate: Certificate, window: int
) -> None:
    stuck = []

    async def test(harness: Harness) -> None:
        harness.send()
        await harness.answers(1)  # so that the windows are known
        pipe = harness.peer.connections[0].transport
        assert pipe is not None
        harness.peer.call(pipe.pause_reading)
        body = bytes(range(256)) * 40_000
        harness.send(Request(b"POST", b"/bytes", body, ContentType.JSON))
        harness.transport.flush()
        stuck.append(bool(next(iter(harness.transport._by_fd.values())).unsent))
        harness.peer.call(pipe.resume_reading)
        harness.send(GET, "b")  # a stuck write is repeated with more behind it
        answers = await harness.answers(2)
        assert {answer.code for answer in answers.values()} == {200}
        assert body in [request.body for request in harness.peer.requests]
        assert all(answer.sent_ns for answer in answers.values())

    with_peer(certificate, test, settings={4: window})
    assert stuck == [window > 2**30]


@on_a_peer()
async def test_a_watch_that_ends_early_after_a_lag_was_closed_as_slow(harness: Harness) -> None:
    for closed_slow, age_ns, is_full in (
        (0, 10**10, True),
        (0, 10**9, True),
        (0, 10**10, False),
        (1, 10**10, True),
    ):
        harness.send(Request(b"GET", b"/watch?timeoutSeconds=300", stream=True))
        await harness.opened(1)
        [connection] = harness.transport._by_fd.values()
        connection.up_ns = harness.now_ns - age_ns  # a young one's watches end for its server
        if is_full:
            harness.peer.call(
                partial(
                    harness.peer.connections[0].more, harness.peer.requests[-1].sid, bytes(1 << 20)
                )
            )
            time.sleep(0.2)  # noqa: ASYNC251 - nothing is read meanwhile
            await harness.until(partial(getattr, connection, "full_ns"))
        else:
            connection.full_ns = 0
        harness.peer.call(
            lambda: harness.peer.connections[0].more(harness.peer.requests[-1].sid, end=True)
        )
        await harness.answers(1)
        assert harness.stats.closed_slow == closed_slow
        harness.transport._poller.behind_ns = harness.now_ns


@pytest.mark.parametrize("call", ["read", "write_out"])
@on_a_peer()
async def test_a_reset_by_the_network_is_told(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    harness.send(WATCH, "w")
    await harness.opened(1)
    monkeypatch.setattr(Connection, call, fails)
    harness.send(WATCH, "v")
    harness.transport.flush()
    await harness.until(lambda: len(harness.responses()) >= 1)
    token, answer = harness.responses()[0]
    assert (token, answer.failure) == ("w", Failure.LOST)
    assert answer.detail == "connection reset by peer"
    monkeypatch.undo()
    if call == "write_out":
        await harness.opened(2)  # "v" had never reached the socket: it was sent again
        assert harness.stats.retries == 1


def half(connection: PeerConnection, request: Received) -> None:
    connection.answer(request.sid, 200, b"half", end=False)


@on_a_peer(half)
async def test_an_answer_that_breaks_off_is_not_a_lost_request(harness: Harness) -> None:
    """client-go reads bodies after its tries, and so sends no such request again."""
    harness.send(GET, "read")
    harness.send(WATCH, "w")
    await harness.until(lambda: ("w", b"half") in harness.seen)
    harness.peer.call(harness.peer.connections[0].drop)
    answers = await harness.answers(2)
    assert answers["read"].failure is Failure.RESET
    assert answers["w"].failure is Failure.LOST


@on_a_peer()
async def test_too_many_waiting_requests_are_turned_away(harness: Harness) -> None:
    harness.transport.open_pool(2, limits=PoolLimits(waiting=3))
    for number in range(5):
        harness.send(GET, number, pool=2)
    assert harness.stats.own_limits == {QUEUE: 2}
    answers = await harness.answers(5)
    assert [answers[number].code for number in range(5)] == [200, 200, 200, 0, 0]
    assert answers[4].failure is Failure.OWN_LIMIT
    assert answers[4].detail == "too many requests wait"


@pytest.mark.parametrize("streams", [100, 20])
def test_a_pool_with_all_its_connections_full_says_so(
    certificate: Certificate, streams: int
) -> None:
    """Two connections of 100 streams, or ten where the server allows 20 each."""

    async def test(harness: Harness) -> None:
        harness.transport.open_pool(2, limits=PoolLimits(connections=2))
        harness.send(GET, "first", pool=2)  # its connection tells how many streams there may be
        await harness.answers(1)
        for number in range(200):
            harness.send(WATCH, number, pool=2)
        await harness.opened(200)
        assert not harness.stats.own_limits
        assert len(harness.peer.connections) == 200 // streams
        for number in range(3):
            harness.send(GET._replace(timeout_ns=5 * S), f"held {number}", pool=2)
        assert harness.stats.own_limits == {STREAMS: 3}
        harness.send(GET, "other", pool=1)  # calls of another pool do not wait
        assert (await harness.answer("other")).code == 200
        harness.sweep(6)
        late = await harness.answers(3)
        assert {each.failure for each in late.values()} == {Failure.OWN_LIMIT}
        assert harness.stats.own_limits == {STREAMS: 3}  # each request once

    with_peer(certificate, test, settings={3: streams})


@pytest.mark.parametrize(
    ("number", "limit"),
    [
        (errno.EMFILE, OPEN_FILES),
        (errno.ENFILE, OPEN_FILES),
        (errno.EADDRNOTAVAIL, LOCAL_PORTS),
        (errno.ENOBUFS, SOCKET_MEMORY),
        (errno.ENOMEM, SOCKET_MEMORY),
        (errno.ECONNREFUSED, ""),
        (errno.ENETUNREACH, ""),
    ],
)
@on_a_peer()
async def test_a_dial_that_fails_here_is_no_failure_of_the_server(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, number: int, limit: str
) -> None:
    def begin(_connection: Connection, _limit_ns: int, *, hangs: bool) -> None:
        assert not hangs
        raise OSError(number, "it fails")

    monkeypatch.setattr(Connection, "begin", begin)
    harness.send(GET, "a")
    answer = await harness.answer()
    assert harness.stats.own_limits == ({limit: 1} if limit else {})
    assert (answer.failure is Failure.OWN_LIMIT) is bool(limit)
    assert harness.stats.dial_failures == 1


def test_an_ipv6_address_that_a_machine_has_not_is_no_limit() -> None:
    error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert own_limit(error, socket.AF_INET) == LOCAL_PORTS
    assert own_limit(error, socket.AF_INET6) == ""
    assert own_limit(ValueError()) == ""


async def dial_once(endpoint: Endpoint, certificate: Certificate) -> tuple[Failure, str]:
    harness = Harness(endpoint, certificate)
    harness.transport.open_pool(1)
    harness.send()
    answers = await harness.answers(1)
    await harness.transport.close()
    assert harness.stats.dial_failures == 1
    return answers["a"].failure, answers["a"].detail


@pytest.mark.parametrize(
    ("alpn", "server_name", "detail"),
    [
        ("", "", "the server does not offer HTTP/2 (no ALPN protocol h2)"),
        ("h2", "other.example", "TLS: the server's certificate is not trusted: Hostname mismatch"),
    ],
)
def test_a_server_that_we_cannot_use(
    certificate: Certificate, alpn: str, server_name: str, detail: str
) -> None:
    with Peer(certificate, alpn=alpn) as peer:
        endpoint = Endpoint("127.0.0.1", peer.port, server_name)
        found: list[tuple[Failure, str]] = []

        async def body() -> None:
            found.append(await dial_once(endpoint, certificate))

        uvloop.run(body())
        [(failure, said)] = found
        assert failure is Failure.UNUSABLE
        assert detail in said


def test_dials_that_fail_say_why(certificate: Certificate) -> None:
    async def body() -> None:
        port = free_port()
        failure, detail = await dial_once(Endpoint("127.0.0.1", port), certificate)
        assert failure is Failure.DIAL
        assert detail == f"127.0.0.1:{port}: connection refused"
        failure, detail = await dial_once(Endpoint("localhost", port), certificate)
        assert failure is Failure.DIAL
        assert "connection refused" in detail
        failure, detail = await dial_once(Endpoint("name.invalid", 1), certificate)
        assert failure is Failure.UNUSABLE
        assert "host not found" in detail

    uvloop.run(body())


def four(port: int) -> Address:
    return Address(socket.AF_INET, ("127.0.0.1", port))


@asynccontextmanager
async def named(
    certificate: Certificate, found: list[Address], pools: int
) -> AsyncIterator[Harness]:
    """Make a transport to a name; `found` are its addresses at the next look-up."""

    async def look_up(_endpoint: Endpoint) -> tuple[Address, ...]:
        return tuple(found)

    endpoint = Endpoint("api.example", 443, "localhost")
    harness = Harness(endpoint, certificate, look_up=look_up)
    for pool in range(1, pools + 1):
        harness.transport.open_pool(pool)
    try:
        yield harness
    finally:
        await harness.transport.close()


def test_dials_go_round_all_addresses_and_past_dead_ones(certificate: Certificate) -> None:
    async def body(one: Peer, other: Peer) -> None:
        dead_six = Address(socket.AF_INET6, ("::1", free_port(), 0, 0))
        found = [dead_six, four(free_port()), four(one.port), four(other.port)]
        async with named(certificate, found, 8) as harness:
            for pool in range(1, 9):
                harness.send(token=pool, pool=pool)
                assert (await harness.answer(pool)).code == 200
            assert harness.stats.dial_failures == 0
            assert sorted((len(one.connections), len(other.connections))) == [4, 4]

    with Peer(certificate, by_path) as one, Peer(certificate, by_path) as other:
        uvloop.run(body(one, other))


def test_a_server_that_moves_is_found_by_its_name(certificate: Certificate) -> None:
    async def body(old: Peer, new: Peer) -> None:
        found = [four(free_port())]
        async with named(certificate, found, 3) as harness:
            harness.send(token="early")
            assert (await harness.answer("early")).failure is Failure.DIAL
            found[:] = [four(old.port)]
            harness.now_ns += LOOK_UPS_NS_MIN  # a dial has failed: at once, as it were
            harness.send(token="now")
            assert (await harness.answer("now")).code == 200
            found[:] = [four(new.port)]
            for after_ns, peer in ((TTL_NS - 1, old), (1, new)):
                harness.now_ns += after_ns
                harness.send(token="later", pool=2 + (peer is new))
                assert (await harness.answer("later")).code == 200
                assert len(peer.connections) == 1 + (peer is old)
            assert len(old.connections) == 2  # a connection that is up is kept

    with Peer(certificate, by_path) as old, Peer(certificate, by_path) as new:
        uvloop.run(body(old, new))


def test_a_silent_address_costs_its_part_of_the_time_once(certificate: Certificate) -> None:
    async def body(peer: Peer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            found = [four(silent.getsockname()[1]), four(peer.port)]
            async with named(certificate, found, 2) as harness:
                harness.send()
                await spin(lambda: bool(harness.transport._by_fd))
                silent.accept()[0].detach()
                [connection] = harness.transport._by_fd.values()
                await spin(lambda: connection.state is ConnectionState.HANDSHAKE)
                assert connection.limit_ns - harness.now_ns == 10 * S  # of the handshake
                harness.sweep(11)
                assert (await harness.answer()).code == 200
                for pool in (2, 2):
                    harness.send(token="b", pool=pool)
                    assert (await harness.answer("b")).code == 200
                assert len(peer.connections) == 2

    with Peer(certificate, by_path) as peer:
        uvloop.run(body(peer))


def test_a_silent_server_fails_the_handshake(certificate: Certificate) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            harness = Harness(Endpoint("127.0.0.1", listener.getsockname()[1]), certificate)
            harness.transport.open_pool(1)
            harness.send()
            listener.accept()[0].detach()
            connection = next(iter(harness.transport._by_fd.values()))
            await spin(lambda: connection.state is ConnectionState.HANDSHAKE)
            harness.sweep(9)
            assert harness.responses() == []
            harness.sweep(2)
            answer = await harness.answer()
            assert answer.failure is Failure.UNREACHABLE
            assert answer.detail.endswith("TLS handshake timed out")
            await harness.transport.close()

    uvloop.run(body())


@pytest.mark.parametrize("reads_first", [False, True], ids=["reset", "end"])
def test_a_server_that_hangs_up_in_the_handshake_is_like_a_lost_connection(
    certificate: Certificate, *, reads_first: bool
) -> None:
    """As behind a balancer without a server: client-go sends a GET again.

    A server that has not read the client's hello resets the connection; one that has ends it.
    """

    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            harness = Harness(Endpoint("127.0.0.1", listener.getsockname()[1]), certificate)
            harness.transport.open_pool(1)
            harness.send()
            connection = next(iter(harness.transport._by_fd.values()))
            await spin(lambda: connection.state is ConnectionState.HANDSHAKE)
            accepted = listener.accept()[0]
            if reads_first:
                accepted.recv(1 << 16)
            accepted.close()
            assert (await harness.answer()).failure is Failure.LOST
            await harness.transport.close()

    uvloop.run(body())


@on_a_peer()
async def test_a_server_whose_certificate_changes(harness: Harness, tmp_path: Path) -> None:
    """What is open goes on; a new connection needs a certificate that is trusted."""
    other = make_certificate(tmp_path)
    harness.send(WATCH, "w")
    await harness.opened(1)
    harness.peer.context.load_cert_chain(other.certificate, other.key)
    harness.send()
    assert (await harness.answer()).code == 200
    harness.peer.call(harness.peer.connections[0].drop)
    assert (await harness.answer("w")).failure is Failure.LOST
    harness.send()
    answer = await harness.answer()
    assert answer.failure is Failure.UNUSABLE
    assert "TLS: the server's certificate is not trusted" in answer.detail
    harness.peer.context.load_cert_chain(harness.certificate.certificate, harness.certificate.key)
    harness.send()
    assert (await harness.answer()).code == 200


@on_a_peer()
async def test_a_reset_before_the_flush_is_sent_again(harness: Harness) -> None:
    harness.send()
    await harness.answers(1)
    harness.peer.call(harness.peer.connections[0].drop)
    harness.send(GET, "b")  # queued on a connection whose end we have not seen yet
    await harness.until(lambda: harness.stats.retries == 1)
    assert (await harness.answer("b")).code == 200


CONNECTIONS = 500


def test_a_400_kb_list_leaves_nothing_behind(certificate: Certificate) -> None:
    """On 500 connections, with the peer in another process: at most 5 KB each."""
    program = [sys.executable, str(Path(__file__).with_name("peer.py")), *map(str, certificate)]

    async def each(harness: Harness, request: Request, at_once: int) -> None:
        for begin in range(0, CONNECTIONS, at_once):
            for pool in range(begin, begin + at_once):
                harness.send(request, pool, pool)
            answers = await harness.answers(at_once)
            assert {answer.code for answer in answers.values()} == {200}

    async def body(port: int) -> None:
        harness = Harness(Endpoint("127.0.0.1", port), certificate)
        for pool in range(CONNECTIONS):
            harness.transport.open_pool(pool, b"system:node:%d" % pool)
        await each(harness, GET, 50)
        before = psutil.Process().memory_info().rss
        # One by one: what the allocator keeps of many answers at hand is not of a connection.
        await each(harness, Request(b"GET", b"/bytes?n=400000"), 1)
        left = psutil.Process().memory_info().rss - before
        assert left < CONNECTIONS * 5 * 1024
        await harness.transport.close()

    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        uvloop.run(body(int(child.stdout.readline())))
        child.stdin.close()


@asynccontextmanager
async def through(
    proxy: ConnectProxy, port: int, certificate: Certificate, authorization: bytes = b""
) -> AsyncIterator[Harness]:
    way = Proxy("127.0.0.1", proxy.port, authorization)
    harness = Harness(Endpoint("127.0.0.1", port, proxy=way), certificate)
    try:
        yield harness
    finally:
        await harness.transport.close()


@pytest.mark.parametrize("piecewise", [False, True])
def test_a_proxy_is_asked_for_a_tunnel(certificate: Certificate, *, piecewise: bool) -> None:
    async def test(peer: Peer, proxy: ConnectProxy) -> None:
        async with through(proxy, peer.port, certificate, b"Basic secret") as harness:
            for pool in (1, 2):
                harness.transport.open_pool(pool, b"system:node:%d" % pool)
                harness.send(pool=pool, token=pool)
            answers = await harness.answers(2)
        assert [each.code for each in answers.values()] == [200, 200]
        assert proxy.asked == [f"127.0.0.1:{peer.port}"] * 2
        assert proxy.authorizations == ["Basic secret"] * 2

    with Peer(certificate, by_path) as peer, ConnectProxy(piecewise=piecewise) as proxy:
        uvloop.run(test(peer, proxy))


def test_a_proxy_that_refuses_is_named_in_the_answer(certificate: Certificate) -> None:
    async def test(proxy: ConnectProxy) -> None:
        async with through(proxy, 1, certificate) as harness:
            harness.transport.open_pool(1, b"system:node:1")
            harness.send()
            [answer] = (await harness.answers(1)).values()
        assert answer.failure is Failure.UNUSABLE
        where = f"127.0.0.1:1 by the proxy 127.0.0.1:{proxy.port}"
        assert answer.detail == f"{where}: the proxy answered 403 Forbidden to CONNECT"

    with ConnectProxy(403) as proxy:
        uvloop.run(test(proxy))


@pytest.mark.parametrize(
    "test",
    [
        test_goaway_drains_watches_and_sends_the_unseen_again,
        test_a_lost_connection_answers_for_everything,
        partial(test_a_large_upload_meets_the_windows_and_a_full_socket, window=2**31 - 1),
        test_dials_go_round_all_addresses_and_past_dead_ones,
    ],
)
def test_connections_work_without_epoll(
    monkeypatch: pytest.MonkeyPatch, certificate: Certificate, test: Callable[..., None]
) -> None:
    """As on macOS."""
    monkeypatch.setattr(poller, "HAS_EPOLL", False)
    monkeypatch.setattr("selectors.DefaultSelector", selectors.PollSelector)
    test(certificate=certificate)


@on_a_peer()
async def test_a_node_shows_its_own_certificate_and_one_without_is_turned_away(
    harness: Harness, tmp_path: Path
) -> None:
    """A client of TLS 1.3 has ended its handshake before the server looks for a certificate."""
    pair = tmp_path / "node.pem"
    pair.write_bytes(
        harness.certificate.certificate.read_bytes() + harness.certificate.key.read_bytes()
    )
    harness.peer.context.verify_mode = ssl.CERT_REQUIRED
    harness.peer.context.load_verify_locations(harness.certificate.certificate)
    shared = ssl.create_default_context(cafile=harness.certificate.certificate)
    prepare_context(shared)
    harness.transport.open_pool(2, ssl_context=CertificateContext(shared, pair))
    harness.send()
    harness.transport.flush()
    async with asyncio.timeout(60):
        while not harness.responses():
            if harness.transport._delayed:  # turned away before the request was written
                harness.sweep(64)
            await asyncio.sleep(0.001)
    assert (await harness.answer()).failure is Failure.LOST
    harness.send(pool=2)
    assert (await harness.answer()).code == 200
