"""The agents of one process: each kind reads what it asked for."""

from unittest.mock import Mock

import pytest
from world.agents import agent_model
from world.encodings import ENCODINGS
from world.sim_clock import SimClock

from fleet.agents.runner import Agents
from fleet.clock import Draws, TimerWheel
from fleet.wire.http2.messages import Response, StreamOpened

BOOKMARK = (
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"3","annotations":'
    b'{"k8s.io/initial-events-end":"true"}}}}\n'
)


def agents_that_watch(watch: dict[str, str], encoding: str) -> tuple[Agents, Mock]:
    """Return agents of one kind on a node, which have just sent their first request."""
    model, wire = agent_model(encoding=encoding, watches=[watch]), Mock()
    agents = Agents(SimClock(), Draws(1), TimerWheel(), lambda _: wire, impersonates=False)
    agents.add_kind(model)
    agents.start(0, "n", (model,))
    agents.on_timer(0, "0:s0/0")
    return agents, wire


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_an_agent_reads_lists_in_its_own_encoding_and_goes_on_to_watch(encoding: str) -> None:
    agents, wire = agents_that_watch({"resource": "pods", "method": "ListWatch"}, encoding)
    _, listed, opening = wire.send.call_args.args
    assert b"resourceVersion=0" in listed.path
    page = ENCODINGS[encoding].page(("v1", "Pod"), "4", [])
    agents.on_stream(opening.reflector, Response(200, page, 1, 2))
    assert not agents.kinds["a"].counts.rejected
    assert b"watch=true" in wire.send.call_args.args[1].path


@pytest.mark.parametrize("method", ["ListWatch", "WatchList"])
def test_custom_resources_come_as_json_to_an_agent_that_asks_for_protobuf(method: str) -> None:
    watch = {"resource": "ciliumnodes", "apiVersion": "cilium.io/v2", "method": method}
    agents, wire = agents_that_watch(watch, "protobuf")
    reflector, counts = wire.send.call_args.args[2].reflector, agents.kinds["a"].counts
    if method == "ListWatch":
        body = b'{"metadata":{"resourceVersion":"3"},"items":[{}]}'
        agents.on_stream(reflector, Response(200, body, 1, 2))
    agents.on_stream(reflector, StreamOpened(1, 2))
    for at in range(0, len(BOOKMARK), 16):
        agents.on_stream(reflector, BOOKMARK[at : at + 16])
    assert not counts.rejected
    assert (counts.watch_events, reflector.version) == (1, "3")
