"""A client certificate whose life is over: what its node asks for, and by which credentials."""

import base64
import ssl
from pathlib import Path
from typing import cast

import orjson
from support.issued_certificates import issue
from world.sim_clock import SimClock

from fleet.clock import NS_PER_S, Draws
from fleet.controlplane.pki import new_request
from fleet.host.node_certificates import CertificateContext, CertificateStore, NodeCertificates
from fleet.k8s.effects import NodeId
from fleet.k8s.objects import CertificateKind
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.loader import load_mix
from fleet.reactor.process import Entry
from fleet.reactor.reactor import Reactor
from fleet.wire.api.requests import Caller
from fleet.wire.http2.messages import Request, Response, StreamOpened
from fleet.wire.sockets.transport import Transport

NODE, NAME = NodeId(0), "n-0"
DAY_S = 86_400
CLIENT = CertificateKind.CLIENT


class NotedTransport:
    """A connection that notes what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Request, object]] = []

    def open_pool(self, pool: int, **_: object) -> None:
        """Be there."""

    def close_pool(self, pool: int) -> None:
        """Be there no more."""

    def send(self, _pool: int, request: Request, token: object) -> None:
        self.sent.append((request, token))

    def on_edge(self, *, rests: bool) -> None:
        pass

    def flush(self) -> None:
        """Have nothing to write."""

    def sweep(self, now_ns: int) -> None:
        """Have nothing to look after."""


class World:
    def __init__(self, directory: Path) -> None:
        self.clock = SimClock()
        self.store = CertificateStore(directory, "uid")
        self.reactor = Reactor(self.clock, Draws(1))
        self.reactor.kubelets.entries.append(
            Entry(cast("VirtualKubelet", object()), cast("Caller", None), 0)
        )
        self.bootstrap, self.renewal = NotedTransport(), NotedTransport()
        self.ready: list[CertificateContext] = []
        self.presented: list[float] = []
        self.certificates = NodeCertificates(
            self.reactor,
            Draws(1),
            self.store,
            ssl.create_default_context(),
            bootstrap=cast("Transport", self.bootstrap),
            renewal=cast("Transport", self.renewal),
            on_ready=lambda _node, context: self.ready.append(context),
            on_renewed=lambda _node: self.presented.append(self.clock.now_ns() / NS_PER_S),
            approve=None,
        )

    @property
    def wall_s(self) -> float:
        return self.clock.wall_ns() / NS_PER_S

    def after(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_ns() + int(seconds * NS_PER_S))
        while self.reactor.turn():
            pass

    def answers(self, message: object) -> None:
        """Let the newest request of the bootstrap connection be answered."""
        _, token = self.bootstrap.sent[-1]
        self.reactor.inbox.append((token, message))
        self.after(0)


def answer(code: int, content: object) -> Response:
    return Response(code, orjson.dumps(content), 0, 0)


def test_a_node_whose_certificate_is_over_bootstraps_and_is_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    key, request = new_request(NAME)
    world.after(1)
    world.store.update(NAME, CLIENT, issue(request, world.wall_s), key)
    world.certificates.add(NODE, NAME, (), load_mix().model_of(0))
    assert len(world.ready) == 1
    assert world.certificates.waiting() == []
    assert not world.bootstrap.sent, "it has a good one"
    world.after(33)
    world.certificates.expire(NODE)
    assert world.presented == [34], "what is open is closed, and dialled with what is over"
    assert world.store.current(NAME, CLIENT, world.wall_s) is None
    [(asked, _)] = world.bootstrap.sent
    assert asked.method == b"POST"
    assert not world.renewal.sent, "there is nothing that it could renew with"
    meta = {"name": "csr-1", "uid": "u", "resourceVersion": "5"}
    created = {"metadata": meta, "spec": {}, "status": {}}
    world.answers(answer(201, created))
    world.answers(answer(200, {"items": []}))
    world.answers(StreamOpened(0, 0))
    pem = issue(base64.b64decode(orjson.loads(asked.body)["spec"]["request"]), world.wall_s)
    status = {
        "certificate": base64.b64encode(pem).decode(),
        "conditions": [{"type": "Approved", "status": "True"}],
    }
    event = {"type": "ADDED", "object": {**created, "status": status}}
    world.answers(orjson.dumps(event) + b"\n")
    held = world.store.current(NAME, CLIENT, world.wall_s)
    assert held is not None
    assert held.not_after_s == int(world.wall_s) + DAY_S
    world.after(6)
    assert world.presented == [34]
    world.after(1)
    assert world.presented == [34, 41], "the kubelet looks each 10 s for another one"
    assert len(world.ready) == 1


def test_a_node_that_has_no_certificate_yet_loses_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.certificates.add(NODE, NAME, (), load_mix().model_of(0))
    world.certificates.expire(NODE)
    assert world.certificates.waiting() == [NODE]
    world.certificates.expire(NodeId(7))
    assert len(world.bootstrap.sent) == 1
    assert not world.presented
