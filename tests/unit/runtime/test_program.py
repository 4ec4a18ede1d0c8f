"""What a container's process does: its role, and for how long."""

import pytest
from world.pod_world import container, make_pod, model_of

from fleet.clock import NS_PER_S as S
from fleet.k8s.pods import ContainerSpec
from fleet.profile.pod_behavior import USUAL_RUN_TIMES, RunTimes
from fleet.runtime.program import (
    UNKNOWN,
    End,
    Process,
    Program,
    Role,
    natural_end,
    role_of,
    term_exit_code,
)
from fleet.runtime.programs import program_of

PROGRAM = Program()


@pytest.mark.parametrize(
    ("spec", "policy", "is_controlled", "role", "code"),
    [
        (container(), "Always", True, Role.SERVER, 0),
        (container(), "Never", False, Role.SERVER, 143),
        (container(), "Never", True, Role.BATCH, 143),
        (container(), "OnFailure", True, Role.BATCH, 143),
        (container("c", restart_policy="Always"), "Never", True, Role.SERVER, 0),
        (container("c", restart_policy="Never"), "Always", True, Role.BATCH, 143),
    ],
)
def test_the_role_of_a_container(
    spec: ContainerSpec,
    policy: str,
    is_controlled: bool,  # noqa: FBT001
    role: Role,
    code: int,
) -> None:
    pod = make_pod(spec, restart_policy=policy, is_controlled=is_controlled)
    assert (role_of(pod, spec, PROGRAM), term_exit_code(pod, spec, PROGRAM)) == (role, code)


def test_the_role_of_a_container_beside_the_regular_ones() -> None:
    init, sidecar = container("i"), container("s", restart_policy="Always")
    debugger = container("d")
    pod = make_pod(
        container(),
        restart_policy="Never",
        is_controlled=True,
        init_containers=(init, sidecar),
        ephemeral_containers=(debugger,),
    )
    assert [role_of(pod, each, PROGRAM) for each in (init, sidecar, debugger)] == [
        *(Role.INIT, Role.SERVER, Role.SERVER)
    ]
    assert [term_exit_code(pod, each, PROGRAM) for each in (init, sidecar, debugger)] == [143, 0, 0]


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_an_ephemeral_container_is_never_restarted(policy: str) -> None:
    debugger = container("d", "sh", "-c", "sleep 2; netstat -tlpn")
    pod = make_pod(container(), restart_policy=policy, ephemeral_containers=(debugger,))
    run = program_of(pod, debugger).run(Process(pod, debugger))
    assert natural_end(pod, debugger, PROGRAM, run, USUAL_RUN_TIMES, 0.5) == End(2 * S, 0)
    assert natural_end(pod, debugger, PROGRAM, UNKNOWN, USUAL_RUN_TIMES, 0.5) is None
    assert (role_of(pod, debugger, PROGRAM), term_exit_code(pod, debugger, PROGRAM)) == (
        Role.SERVER,
        0,
    )


def test_a_profile_says_how_long_unknown_programs_run() -> None:
    init = container("i")
    pod = make_pod(container(), restart_policy="Never", is_controlled=True, init_containers=(init,))
    uniform = {"distribution": "Uniform", "min": "10s", "max": "30s"}
    given = model_of(defaults={"initContainerRunTime": "3s", "batchRunTime": uniform}).run_times

    def end_s(spec: ContainerSpec, run_times: RunTimes, u: float) -> float:
        found = natural_end(pod, spec, PROGRAM, UNKNOWN, run_times, u)
        assert found is not None
        assert found.exit_code == 0
        return found.after_ns / S

    assert [end_s(init, each, 0.5) for each in (USUAL_RUN_TIMES, given)] == [1, 3]
    assert end_s(pod.spec.containers[0], USUAL_RUN_TIMES, 0.5) == 5
    assert [end_s(pod.spec.containers[0], given, u) for u in (0.0, 0.5)] == [10, 20]


@pytest.mark.parametrize(
    ("script", "policy", "end"),
    [
        ("setup; serve", "Always", None),
        ("setup; serve", "Never", End(0, 0)),
        ("sleep 2; exec train", "Never", End(7 * S, 0)),
        ("setup; sleep 2; exit 3", "Always", End(2 * S, 3)),
        ("while true; do sleep 1; done", "Never", None),
    ],
)
def test_the_end_of_a_script(script: str, policy: str, end: End | None) -> None:
    spec = container("c", "sh", "-c", script)
    pod = make_pod(spec, restart_policy=policy, is_controlled=True)
    run = program_of(pod, spec).run(Process(pod, spec))
    assert natural_end(pod, spec, PROGRAM, run, USUAL_RUN_TIMES, 0.5) == end
