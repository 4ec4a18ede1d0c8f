import pytest
from pod_world import UID, container, make_pod

from fleet.clock import Draws
from fleet.kubelet.pod_actions import containers_to_start, is_done_but_for_sidecars, should_restart
from fleet.objects import ContainerSpec, Pod
from fleet.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime import Runtime, Sandbox

OK = ("true",)
BAD = ("false",)
RUNS = ()


def side(name: str, *command: str) -> ContainerSpec:
    return container(name, *command, restart_policy="Always")


def after(pod: Pod, **runs: tuple[str, ...]) -> Sandbox:
    """Return a sandbox in which the named containers ran these commands."""
    runtime = Runtime(0, "192.0.2.1", "10.0.0.0/24", Draws(1))
    sandbox = runtime.create_sandbox(pod)
    assert sandbox is not None
    for name, command in runs.items():
        runtime.start_container(pod, container(name, *command), DEFAULT_BEHAVIOR, 0, 0)
    runtime.advance(UID, 10, 0)
    return sandbox


def names(pod: Pod, **runs: tuple[str, ...]) -> list[str]:
    return [spec.name for spec in containers_to_start(pod, after(pod, **runs))]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_restart_policy(policy: str, code: int, *, again: bool) -> None:
    assert should_restart(container(), make_pod(restart_policy=policy), code) is again
    own = container(restart_policy=policy)
    other = "Never" if again else "Always"
    assert should_restart(own, make_pod(restart_policy=other), code) is again


def test_regular_containers_start_together() -> None:
    pod = make_pod(container("a"), container("b"))
    assert names(pod) == ["a", "b"]
    assert names(pod, a=RUNS) == ["b"]
    assert names(pod, a=RUNS, b=RUNS) == []
    assert names(pod, a=BAD, b=RUNS) == ["a"]


def test_init_containers_go_one_by_one() -> None:
    pod = make_pod(init_containers=(container("i"), container("j")))
    assert names(pod) == ["i"]
    assert names(pod, i=RUNS) == []
    assert names(pod, i=OK) == ["j"]
    assert names(pod, i=OK, j=OK) == ["c"]
    assert names(pod, i=OK, j=OK, c=OK) == ["c"]


def test_a_failed_init_container_starts_again_unless_never() -> None:
    inits = (container("i"), container("j"))
    assert names(make_pod(init_containers=inits), i=BAD) == ["i"]
    assert names(make_pod(init_containers=inits, restart_policy="Never"), i=BAD) == []


def test_a_sidecar_lets_the_next_one_start_once_it_runs() -> None:
    pod = make_pod(init_containers=(side("s"), container("i")))
    assert names(pod) == ["s"]
    assert names(pod, s=RUNS) == ["i"]
    assert names(pod, s=BAD) == ["s"]
    assert names(pod, s=BAD, i=RUNS) == ["s"]
    assert names(pod, s=RUNS, i=OK) == ["c"]
    assert names(pod, s=OK, i=OK, c=RUNS) == ["s"]
    last = make_pod(init_containers=(container("i"), side("s")))
    assert names(last, i=OK) == ["s"]
    assert names(last, i=OK, s=RUNS) == ["c"]


def test_ephemeral_containers_start_once_even_during_init() -> None:
    pod = make_pod(init_containers=(container("i"),), ephemeral_containers=(container("e"),))
    assert names(pod, i=RUNS) == ["e"]
    assert names(pod, i=RUNS, e=OK) == []


def test_only_sidecars_are_left() -> None:
    pod = make_pod(init_containers=(side("s"),), restart_policy="Never")
    assert is_done_but_for_sidecars(pod, after(pod, s=RUNS, c=OK))
    assert not is_done_but_for_sidecars(pod, after(pod, s=RUNS, c=RUNS))
    assert not is_done_but_for_sidecars(pod, after(pod, s=RUNS))
    assert not is_done_but_for_sidecars(pod, after(pod, s=OK, c=OK))
