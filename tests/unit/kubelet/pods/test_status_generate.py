import pytest
from world.pod_world import HOST_IP, container, make_pod

from fleet.clock import Draws
from fleet.k8s.pods import ContainerSpec, Pod, PodStatus, TerminatedState, WaitingState
from fleet.kubelet.containers.probe_worker import Probed
from fleet.kubelet.pods.status_generate import (
    INITIALIZING,
    PodInputs,
    generate_pod_status,
    terminate_pod_status,
)
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime.containers import Sandbox
from fleet.runtime.runtime import Runtime

OK, BAD, RUNS = ("true",), ("false",), ()
ENDED_WELL = TerminatedState(0, "Completed", "", 1, 2, "an earlier one")


def side(name: str) -> ContainerSpec:
    return container(name, restart_policy="Always")


def after(pod: Pod, **runs: tuple[str, ...]) -> Sandbox:
    runtime = Runtime(0, HOST_IP, "10.0.0.0/24", Draws(1))
    sandbox = runtime.create_sandbox(pod)
    assert sandbox is not None
    for name, command in runs.items():
        runtime.start_container(pod, container(name, *command), DEFAULT_BEHAVIOR, 0, 100)
    runtime.advance(pod.uid, 10, 0)
    return sandbox


def generate(pod: Pod, sandbox: Sandbox | None = None, **fields: object) -> PodStatus:
    inputs = PodInputs(old=pod.status, host_ips=HOST_IP, reasons={})
    return generate_pod_status(pod, sandbox, inputs._replace(**fields))  # type: ignore[arg-type]


def conditions(status: PodStatus) -> dict[str, tuple[str, str, str]]:
    return {each.type: (each.status, each.reason, each.message) for each in status.conditions}


@pytest.mark.parametrize(("is_older", "phase"), [(False, "Running"), (True, "Pending")])
def test_what_ran_in_a_sandbox_before_does_not_make_up_for_a_sidecar(
    is_older: bool,  # noqa: FBT001
    phase: str,
) -> None:
    pod = make_pod(init_containers=(side("s"),))
    sandbox = after(pod, s=RUNS, c=BAD)
    sandbox.older = sandbox.containers[1:] if is_older else ()
    unstarted = {"s": Probed(started=False, ready=False)}
    assert generate(pod, sandbox, probed=unstarted).phase == phase


def test_a_pod_was_initialized_once_a_regular_container_has_started() -> None:
    """From 1.36 on it also stays so while what ended waits, and its sidecar starts again."""
    pod = make_pod(init_containers=(side("s"),))
    old = generate(pod, after(pod, s=RUNS, c=RUNS))
    for runs, keeps, told in (
        ({"c": BAD}, False, "True"),
        ({}, True, "True"),
        ({}, False, "False"),
    ):
        found = generate(pod, after(pod, **runs), old=old, keeps_initialized=keeps)
        assert conditions(found)["Initialized"][0] == told


def test_containers_that_initialization_never_reached_stay_as_they_are() -> None:
    pod = make_pod(init_containers=(container("i"), container("j")))
    last = terminate_pod_status(pod, generate(pod, after(pod, i=RUNS)), pod.status)
    assert isinstance(last.init_containers[0].state, TerminatedState)
    assert isinstance(last.init_containers[1].state, WaitingState)
    assert isinstance(last.containers[0].state, WaitingState)
    done = generate(pod, after(pod, i=OK, j=OK))
    for told, state in ((done, TerminatedState), (pod.status, WaitingState)):
        assert isinstance(terminate_pod_status(pod, done, told).containers[0].state, state)
    again = done._replace(
        init_containers=(
            done.init_containers[0],
            done.init_containers[1]._replace(state=INITIALIZING, last_state=ENDED_WELL),
        )
    )
    assert isinstance(terminate_pod_status(pod, done, again).containers[0].state, TerminatedState)
    ended = generate(pod, after(pod, i=OK, j=OK, c=OK), is_terminal=True)
    assert terminate_pod_status(pod, ended, pod.status) == ended


@pytest.mark.parametrize(("command", "state"), [(RUNS, TerminatedState), (OK, WaitingState)])
def test_a_pod_was_initialized_if_its_last_sidecar_had_started(
    command: tuple[str, ...], state: type
) -> None:
    pod = make_pod(init_containers=(side("s"),))
    told = generate(pod, after(pod, s=command))
    assert isinstance(terminate_pod_status(pod, told, told).containers[0].state, state)
