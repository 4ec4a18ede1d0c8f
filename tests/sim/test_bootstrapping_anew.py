"""Client certificates that are over: the nodes are refused, bootstrap anew, and are back."""

import base64
import ssl
from pathlib import Path
from typing import cast

import pytest
from support.issued_certificates import issue
from world.api_server import SimApiServer
from world.encodings import ENCODINGS
from world.pod_world import model_of
from world.simulation import LEASE_DURATION_S, Simulation, default_model
from world.strategic_merge import Object
from world.targets import Key
from world.transport import SimTransport

from fleet.clock import NS_PER_S, Draws
from fleet.controlplane.pki import new_request
from fleet.errors import UsageError
from fleet.faults.injector import Injector
from fleet.host.node_certificates import CertificateContext, CertificateStore, NodeCertificates
from fleet.k8s.effects import NodeId, Op
from fleet.k8s.objects import CertificateKind
from fleet.profile.node_model import NodeModel
from fleet.profile.release import RELEASES, V1_34, Release
from fleet.wire.sockets.transport import Transport

pytest_plugins = ("sim_encodings",)

CLIENT = CertificateKind.CLIENT
SIGNED_AFTER_S = 2
SEEN_WITHIN_S = 10  # a kubelet looks each 10 s for another one


class RequestWire(SimTransport):
    """The connections of signing requests: each is there for one of them."""

    def open_pool(self, pool: int, **_: object) -> None:
        """Be there."""

    def close_pool(self, pool: int) -> None:
        """Give up what is on it."""
        self.hang_up(pool)


class Signer:
    """Issues what is asked for a little later, while it is at work."""

    def __init__(self, sim: Simulation) -> None:
        self.is_at_work = True
        self.server = SimApiServer(sim.clock, ENCODINGS["json"])
        self.server.listeners.append(self._on_change)
        self._sim = sim

    def _on_change(self, key: Key, before: Object | None, _now: Object | None) -> None:
        if before is None:
            self._sim.after(SIGNED_AFTER_S, lambda: self._sign(key))

    def _sign(self, key: Key) -> None:
        if not self.is_at_work:
            return
        request = base64.b64decode(self.server.get(key[0], key[2])["spec"]["request"])
        pem = issue(request, self._sim.clock.wall_ns() / NS_PER_S)
        status = {
            "certificate": base64.b64encode(pem).decode(),
            "conditions": [{"type": "Approved", "status": "True"}],
        }
        self.server.update(key[0], key[2], {"status": status})

    def resume(self) -> None:
        """Be at work again, and sign what has waited."""
        self.is_at_work = True
        for each in self.server.all("certificatesigningrequests"):
            self._sign(("certificatesigningrequests", "", each["metadata"]["name"]))


class Certified:
    """Nodes that have certificates of their own, which the API server looks at as they dial."""

    def __init__(self, directory: Path, nodes: int, model: NodeModel | None = None) -> None:
        self.sim = sim = Simulation(nodes=nodes, seed=7, monitored=True, model=model)
        self.signer = Signer(sim)
        names = [name for name in sim.names for _ in CertificateKind]
        self.bootstrap, self.renewal = (
            RequestWire(self.signer.server, sim.clock, sim.reactor.inbox, Draws(seed), names)
            for seed in (8, 9)
        )
        sim.wires += [self.bootstrap, self.renewal]
        self.store = CertificateStore(directory, "uid")
        self.presented = 0
        self.certificates = NodeCertificates(
            sim.reactor,
            sim.draws,
            self.store,
            ssl.create_default_context(),
            bootstrap=cast("Transport", self.bootstrap),
            renewal=cast("Transport", self.renewal),
            on_ready=self._look,
            on_renewed=self._present,
            approve=None,
        )
        sim.run_for(seconds=60)
        for node, name in enumerate(sim.names):
            key, request = new_request(name)
            pem = issue(request, sim.clock.wall_ns() / NS_PER_S)
            self.store.update(name, CLIENT, pem, key)
            self.certificates.add(NodeId(node), name, (), sim.model)
        sim.injector = Injector(
            sim.reactor, sim.draws, has_own_connections=True, expire=self.certificates.expire
        )
        sim.run_for(seconds=1)
        assert sim.ready() == nodes
        assert not self.asked(), "they have good ones"

    def _look(self, node: NodeId, _context: CertificateContext | None = None) -> None:
        """Judge a connection by the certificate that it was made with."""
        now_s = self.sim.clock.wall_ns() / NS_PER_S
        held = self.store.current(self.sim.names[node], CLIENT, now_s)
        self.sim.transport.expire_token(node, is_over=held is None)

    def _present(self, node: NodeId) -> None:
        self.presented += 1
        self.sim.transport.drop(frozenset((node,)))
        self._look(node)

    def asked(self) -> list[str]:
        """Return who has asked for a certificate, as who is to be bootstrapped."""
        return sorted(each.node for each in self.bootstrap.trace if each.verb == "POST")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_signing_request_is_watched_as_that_minor_does(tmp_path: Path, release: Release) -> None:
    model = default_model().on_server(release.newest).adapted(zone_labels=True)
    fleet = Certified(tmp_path, nodes=1, model=model)
    fleet.sim.go_wrong(type="CertificateExpired")
    fleet.sim.run_for(seconds=SIGNED_AFTER_S + SEEN_WITHIN_S + 1)
    paths = [*dict.fromkeys(each.path for each in fleet.bootstrap.trace)]
    assert len(paths) == (4 if release is V1_34 else 3)  # POST, LIST, the snapshot, WATCH
    assert ("&limit=500&resourceVersion=0" in paths[-2]) == (release is V1_34)
    assert ("&resourceVersion=" in paths[-1]) == (release is V1_34)
    assert ("sendInitialEvents=true" in paths[-1]) == (release is not V1_34)
    assert fleet.sim.ready() == 1


def test_nodes_bootstrap_anew_and_lose_no_lease(tmp_path: Path) -> None:
    fleet = Certified(tmp_path, nodes=9)
    sim = fleet.sim
    hit = sim.go_wrong(type="CertificateExpired", zone="zone-b")
    assert hit == ["n-1", "n-4", "n-7"]
    assert not sim.injector.active, "it is over at once"
    begun_s = sim.now_s
    sim.run_for(seconds=SIGNED_AFTER_S + SEEN_WITHIN_S + 1)
    assert fleet.asked() == hit
    assert not fleet.renewal.trace, "there is nothing that they could renew with"
    assert {each.node for each in sim.calls(code=401)} == set(hit)
    refused_until_s = max(each.t_ns for each in sim.calls(code=401)) / NS_PER_S
    for name in sim.names:
        sim.create_pod(f"pod-{name}", name)
    sim.run_for(seconds=60)
    assert sim.ready() == 9
    assert refused_until_s < begun_s + SIGNED_AFTER_S + SEEN_WITHIN_S + 1
    assert sim.longest_gap_s(Op.RENEW_LEASE, begun_s) < LEASE_DURATION_S
    assert {sim.phase(f"pod-{name}") for name in sim.names} == {"Running"}
    opened = sim.calls(verb="WATCH", path="/api/v1/nodes?", code=200, since_s=begun_s)
    assert {each.node for each in opened} == set(hit)


def test_nodes_are_lost_while_nobody_signs_and_come_back(tmp_path: Path) -> None:
    fleet = Certified(tmp_path, nodes=6)
    sim = fleet.sim
    fleet.signer.is_at_work = False
    hit = sim.go_wrong(type="CertificateExpired", nodes=["n-2", "n-5"])
    begun_s = sim.now_s
    sim.create_pod("late", "n-2")
    sim.run_for(seconds=100)
    found = {name: sim.condition(name) for name in sim.names}
    assert found == {name: "Unknown" if name in hit else "True" for name in sim.names}
    assert sim.phase("late") == "Pending"
    assert {each.code for name in hit for each in sim.calls(name, since_s=begun_s)} <= {0, 401}
    fleet.signer.resume()
    sim.run_for(seconds=SEEN_WITHIN_S + 60)
    assert sim.ready() == 6
    assert sim.phase("late") == "Running"
    assert fleet.asked() == hit, "once each: the request is valid still"


def test_nodes_that_do_not_rotate_are_spared(tmp_path: Path) -> None:
    model = model_of(kubeletConfiguration={"rotateCertificates": False})
    fleet = Certified(tmp_path, nodes=1, model=model)
    with pytest.raises(UsageError, match="profile test has rotateCertificates: false"):
        fleet.sim.go_wrong(type="CertificateExpired")


def test_a_node_that_has_no_certificate_yet_loses_none(tmp_path: Path) -> None:
    fleet = Certified(tmp_path, nodes=1)
    fleet.signer.is_at_work = False
    assert fleet.certificates.forget(NodeId(0))
    fleet.store.path("n-0", CLIENT).unlink()
    fleet.certificates.add(NodeId(0), "n-0", (), fleet.sim.model)
    for node in (NodeId(0), NodeId(7)):
        fleet.certificates.expire(node)
    assert fleet.certificates.waiting() == [NodeId(0)]
    fleet.sim.run_for(seconds=1)
    assert fleet.asked() == ["n-0"]
    assert fleet.presented == 0
