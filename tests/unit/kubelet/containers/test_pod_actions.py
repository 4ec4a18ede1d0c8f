import pytest
from world.pod_world import UID, container, make_pod

from fleet.clock import Draws
from fleet.k8s.pods import ContainerLifecycle, ContainerSpec, Pod, PodUid, RestartRule
from fleet.kubelet.containers.pod_actions import compute_pod_actions, should_restart
from fleet.kubelet.pod_worker import KillReason
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime.containers import Container, RunState, Sandbox
from fleet.runtime.runtime import Runtime

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
    return [spec.name for spec in compute_pod_actions(pod, after(pod, **runs)).start]


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


def test_only_sidecars_are_left() -> None:
    pod = make_pod(init_containers=(side("s"),), restart_policy="Never")
    assert compute_pod_actions(pod, after(pod, s=RUNS, c=OK)).kill_pod
    assert not compute_pod_actions(pod, after(pod, s=RUNS, c=RUNS)).kill_pod
    assert not compute_pod_actions(pod, after(pod, s=RUNS)).kill_pod
    assert not compute_pod_actions(pod, after(pod, s=OK, c=OK)).kill_pod


@pytest.mark.parametrize(("counts_ended", "both"), [(True, ["s", "c"]), (False, ["s"])])
def test_a_container_that_ended_tells_that_its_pod_was_initialized(
    counts_ended: bool,  # noqa: FBT001
    both: list[str],
) -> None:
    pod = make_pod(init_containers=(side("s"),))
    found = compute_pod_actions(pod, after(pod, s=BAD, c=BAD), counts_ended=counts_ended)
    assert [spec.name for spec in found.start] == both


def rule(action: str, operator: str, *values: int) -> ContainerLifecycle:
    return ContainerLifecycle(restart_rules=(RestartRule(action, operator, values),))


@pytest.mark.parametrize(
    ("operator", "code", "again"),
    [("In", 42, True), ("In", 1, False), ("NotIn", 42, False), ("NotIn", 1, True)],
)
def test_a_restart_rule_goes_before_the_policy(operator: str, code: int, *, again: bool) -> None:
    spec = container(restart_policy="Never", life=rule("Restart", operator, 42))
    assert should_restart(spec, make_pod(restart_policy="Never"), code) is again


def test_rules_need_a_policy_of_the_container() -> None:
    spec = container(life=rule("Restart", "In", 42))
    assert not should_restart(spec, make_pod(restart_policy="Never"), 42)


class Failing:
    """A probe manager of which one probe of each container fails."""

    def __init__(self, reason: KillReason | None, *, started: bool = True) -> None:
        self.reason = reason
        self.started = started

    def failed_probe(self, uid: PodUid, container: Container) -> KillReason | None:
        assert uid == UID
        assert container.state is RunState.RUNNING
        return self.reason

    def is_started(self, uid: PodUid, spec: ContainerSpec, container: Container) -> bool:
        assert uid == UID
        assert container.name == spec.name
        return self.started


def test_a_failed_probe_ends_a_pod_that_never_restarts() -> None:
    pod = make_pod(restart_policy="Never")
    probes = Failing(KillReason.STARTUP_PROBE)
    assert compute_pod_actions(pod, after(pod, c=RUNS), probes).kill_pod
    two = make_pod(container("c"), container("d", restart_policy="Always"), restart_policy="Never")
    actions = compute_pod_actions(two, after(two, c=RUNS, d=RUNS), probes)
    assert [each.message for each in actions.kill] == [
        "Container c failed startup probe",
        "Container d failed startup probe, will be restarted",
    ]
    assert [spec.name for spec in actions.start] == ["d"]
