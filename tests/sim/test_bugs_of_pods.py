"""A bug in fleet that a pod brings to light costs that pod, and its node only if it goes on."""

from collections.abc import Callable

import pytest
from world.api_server import SimApiServer
from world.simulation import Simulation, pod_json

from fleet.k8s.effects import ApiCall, PodStatusPatch
from fleet.k8s.pods import Pod
from fleet.kubelet.containers import kuberuntime_manager
from fleet.kubelet.containers.probe_manager import ProbeManager
from fleet.kubelet.pods.pod_admission import PodAdmission
from fleet.kubelet.pods.pod_status import StatusGenerator
from fleet.kubelet.pods.pod_sync import PodSyncer
from fleet.wire.api import operations
from fleet.wire.http2.messages import Request

pytest_plugins = ("sim_encodings",)


def bug(act: Callable[..., object], pod_at: int) -> Callable[..., object]:
    """Return what a part does, with a bug for the pod `bad`."""

    def broken(*given: object, **named: object) -> object:
        pod = given[pod_at]
        pod = pod if isinstance(pod, Pod) else getattr(pod, "pod", None)
        if isinstance(pod, Pod) and pod.name == "bad":
            raise RecursionError("a bug")
        return act(*given, **named)

    return broken


WHERE = {
    "a start": (kuberuntime_manager, "config_error", 0),
    "a sync": (StatusGenerator, "generate", 1),
    "probes": (ProbeManager, "add_pod", 1),
}


def started() -> Simulation:
    return Simulation(nodes=2, seed=1, raise_bugs=False).run_for(seconds=60)


def status(sim: Simulation, name: str) -> tuple[str, str]:
    found = sim.status(name)
    return found["phase"], found.get("reason", "")


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
def test_it_fails_that_pod_and_nothing_else(
    where: tuple[object, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, pod_at = where
    monkeypatch.setattr(owner, name, bug(getattr(owner, name), pod_at))
    sim = started()
    sim.create_pod("good", node="n-0")
    sim.create_pod("bad", node="n-0")
    sim.run_for(seconds=30)
    sim.create_pod("later", node="n-0")
    sim.run_for(seconds=30)
    assert status(sim, "bad") == ("Failed", "FleetError")
    assert status(sim, "good") == status(sim, "later") == ("Running", "")
    counts = sim.reactor.counts
    assert (counts.quarantined, counts.bugs) == (0, 1)
    (event,) = sim.events("Failed", "bad")
    assert "RecursionError('a bug')" in event["message"]
    sim.server.delete_pod("bad")
    sim.run_for(seconds=60)
    assert sim.phase("bad") == ""


def test_it_costs_no_other_pod_of_the_same_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodAdmission, "on_addition", bug(PodAdmission.on_addition, 1))

    def setup(server: SimApiServer) -> None:
        for name in ("a", "bad", "c", "d"):
            server.create(("pods", "default", name), pod_json(name, "n-0"))

    sim = Simulation(nodes=2, seed=1, raise_bugs=False, setup=setup).run_for(seconds=60)
    assert status(sim, "bad") == ("Failed", "FleetError")
    assert [sim.phase(name) for name in ("a", "c", "d")] == ["Running"] * 3
    assert (sim.reactor.counts.quarantined, sim.reactor.counts.bugs) == (0, 1)


def test_a_request_that_cannot_be_written_fails_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(call: ApiCall, *rest: object) -> Request:
        if isinstance(call.payload, PodStatusPatch) and call.payload.new.phase == "Running":
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return written(call, *rest)

    written: Callable[..., Request] = operations.build
    monkeypatch.setattr("fleet.reactor.calls.build", build)
    sim = started()
    sim.create_pod("bad", node="n-0")
    sim.run_for(seconds=60)
    assert status(sim, "bad") == ("Failed", "FleetError")
    assert (sim.reactor.counts.quarantined, sim.reactor.counts.bugs) == (0, 1)
    assert sim.ready() == 2


def test_a_bug_that_goes_on_takes_the_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusGenerator, "generate", bug(StatusGenerator.generate, 1))
    monkeypatch.setattr(PodSyncer, "abandon", bug(PodSyncer.abandon, 1))
    sim = started()
    sim.create_pod("bad", node="n-0")
    sim.run_for(seconds=60)
    assert sim.reactor.counts.quarantined == 1
    assert [entry.kubelet is None for entry in sim.reactor.entries] == [True, False]


HOSTILE = {
    "patterns": 'grep ".*.*.*.*.*.*x" /tmp/a',
    "nesting": "(" * 1000 + "true" + ")" * 1000,
    "substitutions": '"$(echo ' * 300 + "a" + ')"' * 300,
    "doubling": "export A=aaaaaaaa; " + "export A=$A$A$A$A; " * 20,
    "spinning": "while :; do :; done",
    "negations": "! " * 1500 + "true",
    "brackets": "echo $((" + "[" * 200 + "))",
}


def test_a_daemon_set_of_hostile_pods_takes_no_node_out() -> None:
    sim = started()
    for node in sim.names:
        for name, script in HOSTILE.items():
            sim.create_pod(
                f"{name}-{node}",
                node=node,
                command=["sh", "-c", script],
                livenessProbe={"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1},
            )
    sim.run_for(seconds=120)
    assert sim.ready() == 2
    assert (sim.reactor.counts.quarantined, sim.reactor.counts.bugs) == (0, 0)
    sim.create_pod("good")
    sim.run_for(seconds=10)
    assert sim.phase("good") == "Running"
    for node in sim.names:
        for name in HOSTILE:
            sim.server.delete_pod(f"{name}-{node}", grace_s=1)
    sim.run_for(seconds=120)
    assert not any(sim.phase(f"{name}-{node}") for name in HOSTILE for node in sim.names)
