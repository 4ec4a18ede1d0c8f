"""What containers use, and when the kernel kills one over its limit."""

from world.pod_world import container

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pods import ContainerSpec, Pod, PodSpec, PodUid
from fleet.profile.pod_behavior import select_behavior
from fleet.profile.usage import UNDECLARED, Curve, Usage, constant_curve
from fleet.runtime.container_usage import Amounts, container_usage, oom_kill_ns, resources_of
from fleet.runtime.containers import NEVER
from fleet.runtime.runtime import Runtime

MI = 1 << 20
UID = PodUid("u")
ASKS = b'{"limits":{"memory":"100Mi"},"requests":{"cpu":"500m","memory":"80Mi"}}'
RAMP = Curve(((0, 0), (10 * NS_PER_S, 200 * MI)))


def spec(resources_json: bytes = ASKS) -> ContainerSpec:
    return container(resources_json=resources_json)


def test_amounts_are_read_from_the_rendered_resources() -> None:
    assert resources_of(ASKS) == (Amounts(500, 80 * MI, 0), Amounts(0, 100 * MI, 0))
    assert resources_of(b"{}") == (Amounts(), Amounts())


def test_an_undeclared_container_uses_half_of_its_request_but_never_more_than_its_limit() -> None:
    usage = container_usage(ASKS, UNDECLARED)
    assert usage.memory == constant_curve(40 * MI)
    assert usage.cpu_milli == constant_curve(250)
    small = b'{"limits":{"memory":"2Mi"},"requests":{"memory":"2Mi"}}'
    assert container_usage(small, UNDECLARED).memory == constant_curve(1 * MI)
    assert container_usage(b'{"limits":{"memory":"2Mi"}}', UNDECLARED).memory.at(0) == 1 * MI
    assert container_usage(ASKS, Usage(memory=RAMP)).memory is RAMP


def test_a_container_is_killed_when_it_comes_above_its_limit() -> None:
    started_ns = 3 * NS_PER_S
    killed_ns = oom_kill_ns(ASKS, RAMP, started_ns, started_ns)
    assert RAMP.at(killed_ns - started_ns) > 100 * MI
    assert RAMP.at(killed_ns - started_ns - 100) <= 100 * MI
    assert oom_kill_ns(b"{}", RAMP, started_ns, started_ns) == NEVER
    assert oom_kill_ns(ASKS, constant_curve(100 * MI), started_ns, started_ns) == NEVER


def test_a_container_that_ends_before_it_is_too_large_just_ends() -> None:
    notes = (
        ("fleet.emulator/memory-usage", '{"curve":"Ramp","from":"0","to":"1Gi","duration":"10s"}'),
        ("fleet.emulator/run-time", "500ms"),
    )
    asked = PodSpec(containers=(spec(),))
    pod = Pod(namespace="d", name="web", uid=UID, spec=asked, annotations=notes)
    runtime = Runtime(3, "192.0.2.1", "10.1.2.0/24", Draws(5))
    assert runtime.create_sandbox(pod) is not None
    behavior = select_behavior((), (), "d", notes)
    container = runtime.start_container(pod, pod.spec.containers[0], behavior, 0, 1)
    assert (container.reason, container.exit_ns) == ("Completed", NS_PER_S // 2)
