"""The connections of the simulation: what is given up as a real one would be, and when."""

import pytest
from world.api_server import SimApiServer
from world.sim_clock import SimClock
from world.transport import SimTransport

from fleet.clock import NS_PER_S, Draws
from fleet.wire.http2.http2_codec import Inbox
from fleet.wire.http2.messages import Cut, Failure, Request, Response

CALL_S, HEARTBEAT_S = 70, 10
GIVEN_UP_S = 45  # 30 s of silence, 15 s for a ping
LIST = Request(b"GET", b"/api/v1/nodes", timeout_ns=CALL_S * NS_PER_S)
RENEWAL = Request(b"GET", b"/api/v1/nodes/n-0", timeout_ns=HEARTBEAT_S * NS_PER_S)
WATCH = Request(b"GET", b"/api/v1/nodes?watch=true&timeoutSeconds=400", stream=True)


class World:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.inbox: Inbox = []
        server = SimApiServer(self.clock)
        self.wire = SimTransport(server, self.clock, self.inbox, Draws(1), ["n-0"])

    def send(self, request: Request, token: str) -> None:
        self.wire.send(0, request, token)
        self.wire.flush()

    def run_until(self, seconds: float) -> None:
        end_ns = int(seconds * NS_PER_S)
        while (due_ns := self.wire.next_ns()) is not None and due_ns <= end_ns:
            self.clock.advance_to(max(due_ns, self.clock.now_ns()))
            self.wire.advance()
        self.clock.advance_to(end_ns)

    def answers(self) -> dict[object, tuple[int, Failure, float]]:
        """Return code, failure and arrival in seconds of what was answered, by token."""
        return {
            token: (each.code, each.failure, round(each.arrived_ns / NS_PER_S))
            for token, each in self.inbox
            if isinstance(each, Response)
        }


@pytest.mark.parametrize("cut", [Cut.BLACK_HOLE, Cut.INBOUND, Cut.OUTBOUND])
def test_what_is_sent_into_a_black_hole_ends_with_its_connection(cut: Cut) -> None:
    world = World()
    world.run_until(5)
    world.wire.cut(0, cut)
    world.send(LIST, "list")
    world.send(RENEWAL, "renewal")
    world.run_until(100)
    assert world.answers() == {
        "list": (0, Failure.SILENT, 5 + GIVEN_UP_S),
        "renewal": (0, Failure.TIMEOUT, 5 + HEARTBEAT_S),
    }


def test_what_is_open_as_a_black_hole_begins_ends_with_its_connection() -> None:
    world = World()
    world.send(WATCH, "watch")
    world.run_until(5)
    world.send(LIST, "list")
    world.wire.cut(0, Cut.BLACK_HOLE)
    world.run_until(100)
    gone = (0, Failure.SILENT, 5 + GIVEN_UP_S)
    assert world.answers() == {"watch": gone, "list": gone}


def test_a_server_that_answers_pings_alone_keeps_the_connection() -> None:
    world = World()
    world.wire.silent.append(None)
    world.send(LIST, "list")
    world.run_until(100)
    assert world.answers() == {"list": (0, Failure.TIMEOUT, CALL_S)}


def test_a_token_that_is_over_is_refused_and_what_is_open_goes_on() -> None:
    world = World()
    world.send(WATCH, "watch")
    world.run_until(1)
    world.wire.expire_token(0, is_over=True)
    world.send(LIST, "refused")
    world.send(WATCH, "unseen")
    world.run_until(2)
    codes = {token: code for token, (code, _, _) in world.answers().items()}
    assert codes == {"refused": 401, "unseen": 401}
    world.wire.expire_token(0, is_over=False)
    world.send(LIST, "taken")
    world.run_until(3)
    assert world.answers()["taken"][0] == 200
    assert "watch" not in world.answers()
