"""A server whose answers nobody can read: the node goes on as a kubelet would, and counts it."""

from collections.abc import Iterator

import pytest
from test_reactor import ADDED, CLOSED, GET_NODE, SYNCED, Watched, World

from fleet.clock import NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    LeaseRenewal,
    NodeId,
    Op,
    Reply,
    ReplyKind,
    StartWatch,
    WatchKind,
)
from fleet.k8s.pods import EventType
from fleet.reactor.calls import Calls
from fleet.reactor.watch_delays import _Sample
from fleet.wire.api import codec
from fleet.wire.api.framing import EVENT_BYTES_MAX, TOO_LONG
from fleet.wire.http2.http2_codec import OVERSIZED
from fleet.wire.http2.messages import Failure, Response

CHUNK = b"x" * 2**20


def endless(begin: bytes) -> Iterator[bytes]:
    yield begin
    for _ in range(EVENT_BYTES_MAX // len(CHUNK) + 1):
        yield CHUNK


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (list(endless(b'{"type":"ADDED","object":{"metadata":{"name":"')), TOO_LONG),
        ([b"nonsense\n"], "a watch event that cannot be read"),
        ([b'{"type":"ADDED","object":{"metadata":{}}}\n'], "a watch event that cannot be read"),
    ],
    ids=["too long", "no JSON", "no object"],
)
def test_a_watch_that_cannot_be_read_begins_anew(stream: list[bytes], reason: str) -> None:
    watched = Watched()
    watched.push(ADDED + SYNCED)
    token = watched.token
    watched.push(*stream, ADDED, CLOSED)
    counts = watched.world.reactor.counts
    assert watched.world.wire.cancelled == [token]
    assert counts.rejected == {reason: 1}
    assert (counts.watches_open, counts.watch_restarts, counts.quarantined) == (0, 1, 0)
    assert list(watched.events()) == [EventType.ADDED, EventType.SYNCED]
    watched.world.after(1.7)
    [_, (_, request, _)] = watched.world.wire.sent
    assert b"sendInitialEvents" in request.path
    watched.opened()
    watched.push(ADDED + SYNCED)
    assert list(watched.events()) == [EventType.ADDED, EventType.SYNCED] * 2


def test_a_list_that_cannot_be_read_is_asked_for_again_later() -> None:
    watched = Watched()
    watched.push(Response(0, b"", 0, 0, -1, Failure.RESET))  # a LIST follows
    watched.push(Response(200, b"[]", 0, 0, 0))
    counts = watched.world.reactor.counts
    assert counts.rejected == {"a LIST that cannot be read": 1}
    assert len(watched.world.wire.sent) == 2
    watched.world.after(1.7)
    assert len(watched.world.wire.sent) == 3
    watched.push(Response(0, b"", 0, 0, -1, Failure.OVERSIZED, OVERSIZED))
    assert counts.rejected[OVERSIZED] == 1
    assert not counts.quarantined


def test_an_answer_that_cannot_be_read_is_none() -> None:
    world = World(nodes=2)
    world.asks(GET_NODE)
    world.answer(GET_NODE, 200, b'{"kind":"Node"}')
    lost = Reply(ReplyKind.LOST, None, 0, "an answer that cannot be read")
    assert world.kubelets[0].got[-1] == lost
    world.reactor.inbox.append((GET_NODE, Response(0, b"", 0, 0, -1, Failure.OVERSIZED, OVERSIZED)))
    world.reactor.turn()
    assert world.kubelets[0].got[-1] == lost._replace(message=OVERSIZED)
    counts = world.reactor.counts
    assert counts.rejected == {"an answer that cannot be read": 1, OVERSIZED: 1}
    world.asks(StartWatch(NodeId(1), WatchKind.NODE), node=1)  # the other node is as it was
    assert world.wire.sent[-1][0] == 1


@pytest.mark.parametrize("base", [b"", b"k8s\x00", b"{}", b"\xff" * 99])
def test_a_lease_that_cannot_be_renewed_ends_no_reactor(base: bytes) -> None:
    world = World(codec=codec.protobuf())
    world.asks(ApiCall(NodeId(0), Op.RENEW_LEASE, "", LeaseRenewal(base, NS_PER_S)))
    world.reactor.turn()
    assert world.kubelets[0].got[-1] == Reply(
        ReplyKind.LOST, None, 0, "a Lease that cannot be read"
    )
    assert world.reactor.counts.rejected == {"a Lease that cannot be read": 1}


@pytest.mark.parametrize(
    ("code", "body"),
    [(504, b"Timeout: request did not complete"), (429, b"{}"), (200, b"{}"), (200, b"k8s\x00")],
)
def test_a_refusal_of_a_watched_write_costs_nothing_else(code: int, body: bytes) -> None:
    """The event of some write is looked for; what other writes are answered is read then, too."""
    world = World(nodes=2, codec=codec.protobuf())
    patch = ApiCall(NodeId(0), Op.PATCH_NODE_STATUS)
    world.reactor.calls.delays.looked_for["n-0"] = _Sample(patch, NodeId(0), 0)
    world.reactor.inbox += [
        (patch, Response(code, body, 0, 0)),
        (ApiCall(NodeId(1), Op.GET_LEASE), Response(404, b"", 0, 0)),
    ]
    world.reactor.turn()
    assert len(world.kubelets[0].got) == len(world.kubelets[1].got) == 1


def test_a_bug_in_the_count_of_an_answer_costs_one_kubelet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other answers of the same turn are handed on: what waits for one would wait for ever."""
    world = World(nodes=2, raise_bugs=False)
    counted = world.reactor.calls.on_response

    def on_response(token: ApiCall, response: Response, now_ns: int) -> bool:
        assert token.node, "a bug"
        return counted(token, response, now_ns)

    monkeypatch.setattr(Calls, "on_response", staticmethod(on_response))
    for node in (0, 1):
        call = ApiCall(NodeId(node), Op.GET_LEASE)
        world.reactor.inbox.append((call, Response(404, b"", 0, 0)))
    world.reactor.turn()
    assert [entry.kubelet is None for entry in world.reactor.entries] == [True, False]
    assert len(world.kubelets[1].got) == 1
