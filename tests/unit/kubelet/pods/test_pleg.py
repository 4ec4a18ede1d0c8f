from world.pod_world import UID, container, make_pod

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.k8s.pods import Pod
from fleet.kubelet.pods.pleg import Pleg
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime.containers import Sandbox
from fleet.runtime.runtime import Runtime


def sandbox_of(runtime: Runtime, pod: Pod, *names: str) -> Sandbox:
    sandbox = runtime.create_sandbox(pod)
    assert sandbox is not None
    for name in names:
        runtime.start_container(pod, container(name, "sleep", "2"), DEFAULT_BEHAVIOR, 0, 0)
    return sandbox


def make() -> tuple[Pleg, Runtime]:
    draws = Draws(1)
    return Pleg(0, draws), Runtime(0, "192.0.2.1", "10.0.0.0/24", draws)


def test_relists_are_a_second_apart_in_the_phase_of_the_node() -> None:
    pleg = Pleg(0, Draws(1))
    first = pleg.next_relist_ns(0)
    assert 0 <= first < NS_PER_S
    assert pleg.next_relist_ns(first) == first
    assert pleg.next_relist_ns(first + 1) == first + NS_PER_S
    assert pleg.last_relist_ns(first + NS_PER_MS) == first
    assert pleg.last_relist_ns(first) == first
    phases = {Pleg(node, Draws(1)).next_relist_ns(0) for node in range(50)}
    assert len(phases) == 50


def test_a_relist_tells_what_started_and_died_once() -> None:
    pleg, runtime = make()
    pod = make_pod()
    sandbox = sandbox_of(runtime, pod, "a", "b")
    assert pleg.is_stale(UID, sandbox)
    assert pleg.relist(UID, sandbox)
    assert not pleg.relist(UID, sandbox)
    assert not pleg.is_stale(UID, sandbox)
    runtime.advance(UID, 2 * NS_PER_S, 0)
    assert pleg.relist(UID, sandbox)
