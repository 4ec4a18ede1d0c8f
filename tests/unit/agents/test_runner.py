"""The agents of one process: each kind reads what it asked for."""

from unittest.mock import Mock

import pytest
import yaml
from world.encodings import ENCODINGS

from fleet.agents.runner import Agents
from fleet.clock import Draws, SimClock, TimerWheel
from fleet.profile.agent_behavior import NodeAgent
from fleet.profile.loader import parse_documents
from fleet.profile.schema import API_VERSION
from fleet.wire.http2.messages import Response


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_an_agent_reads_lists_in_its_own_encoding_and_goes_on_to_watch(encoding: str) -> None:
    watch = {"resource": "pods", "method": "ListWatch"}
    spec = {"userAgent": "a/v1", "serviceAccount": "ns/a", "encoding": encoding, "watches": [watch]}
    document = {"apiVersion": API_VERSION, "kind": "NodeAgent", "metadata": {"name": "a"}}
    [behavior] = parse_documents(yaml.safe_dump({**document, "spec": spec}), "test")
    assert isinstance(behavior, NodeAgent)
    model, wire = behavior.compiled(), Mock()
    agents = Agents(SimClock(), Draws(1), TimerWheel(), lambda _: wire, impersonates=False)
    agents.add_kind(model)
    agents.start(0, "n", (model,))
    agents.on_timer(0, "0:s0/0")
    _, listed, opening = wire.send.call_args.args
    assert b"resourceVersion=0" in listed.path
    page = ENCODINGS[encoding].page(("v1", "Pod"), "4", [])
    agents.on_stream(opening.reflector, Response(200, page, 1, 2))
    assert not agents.kinds["a"].counts.rejected
    assert b"watch=true" in wire.send.call_args.args[1].path
