import pytest
from world.pod_world import HOST_IP, SCHEDULED, container, make_pod, replaced

from fleet.clock import Draws
from fleet.k8s.pods import (
    ContainerSpec,
    Pod,
    PodCondition,
    PodStatus,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.selectors import Toleration
from fleet.kubelet.pods.status_generate import (
    INITIALIZING,
    PodInputs,
    generate_pod_status,
    terminate_pod_status,
    untolerated_key,
    with_container_ready,
)
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR
from fleet.runtime.containers import Sandbox
from fleet.runtime.runtime import Runtime

OK, BAD, RUNS = ("true",), ("false",), ()
CRASH = WaitingState("CrashLoopBackOff", "back-off 10s")
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


def test_the_first_status_of_a_pod() -> None:
    pod = make_pod(container("b"), container("a"), generation=4)
    status = generate(pod)
    unready = ("False", "ContainersNotReady", "containers with unready status: [b a]")
    assert conditions(status) == {
        "PodReadyToStartContainers": ("False", "", ""),
        "Initialized": ("True", "", ""),
        "Ready": unready,
        "ContainersReady": unready,
        "PodScheduled": ("True", "", ""),
    }
    assert next(iter(conditions(status))) == "PodReadyToStartContainers"
    assert [each.name for each in status.containers] == ["a", "b"]
    first = status.containers[0]
    assert first.state == WaitingState("ContainerCreating")
    assert (first.image, first.image_id, first.container_id) == ("nginx:1", "", "")
    assert (first.resources_json, first.user_json) == (b"", b"")
    assert (status.phase, status.host_ips, status.pod_ip) == ("Pending", HOST_IP, "")
    assert (status.observed_generation, status.qos_class) == (4, "BestEffort")
    assert (status.allocated_json, status.resources_json) == (b"", b"{}")


def test_a_running_pod() -> None:
    pod = make_pod(
        container(requests_json=b'{"cpu":"1"}', resources_json=b'{"requests":{"cpu":"1"}}'),
        allocated_json=b'{"cpu":"1"}',
    )
    status = generate(pod, after(pod, c=RUNS))
    assert status.phase == "Running"
    assert {each[0] for each in conditions(status).values()} == {"True"}
    (shown,) = status.containers
    assert shown.state == RunningState(100)
    assert (shown.ready, shown.started) == (True, True)
    assert shown.user_json == b'{"linux":{"gid":0,"supplementalGroups":[0],"uid":0}}'
    assert shown.image == "docker.io/library/nginx:1"
    assert shown.image_id.startswith("docker.io/library/nginx@sha256:")
    assert (shown.allocated_json, shown.resources_json) == (
        b'{"cpu":"1"}',
        b'{"requests":{"cpu":"1"}}',
    )
    assert status.pod_ips == "10.0.0.2"
    assert status.allocated_json == b'{"cpu":"1"}'
    assert generate(pod, after(pod, c=RUNS), pod_resources=False).resources_json == b""


def test_a_node_that_becomes_one_of_two_families_gives_its_own_pods_the_second() -> None:
    both = f"{HOST_IP},2001:db8::1"
    pod = make_pod(host_network=True)
    assert generate(pod, after(pod)).pod_ips == HOST_IP
    assert generate(pod, after(pod), host_ips=both).pod_ips == both
    assert generate(pod, host_ips=both).pod_ips == both
    other = make_pod()
    assert generate(other, after(other), host_ips=both).pod_ips == "10.0.0.2"


def test_resources_are_the_cgroup_s_once_the_api_shows_the_pod_running() -> None:
    asked, running, ended = (b'{"requests":{"cpu":"%d"}}' % cpu for cpu in (1, 2, 3))
    pod = make_pod(container(), resources_json=asked, running_json=running, ended_json=ended)
    assert generate(pod, after(pod, c=RUNS)).resources_json == asked
    pod.status = pod.status._replace(phase="Running")
    assert generate(pod, after(pod, c=RUNS)).resources_json == running
    over = pod.status._replace(phase="Succeeded")
    assert generate(pod, after(pod, c=OK), old=over).resources_json == ended


@pytest.mark.parametrize(
    ("policy", "runs", "final", "phase"),
    [
        ("Always", {"a": OK, "b": OK}, False, "Running"),
        ("Always", {"a": OK, "b": OK}, True, "Succeeded"),
        ("Always", {"a": BAD, "b": OK}, True, "Failed"),
        ("Always", {"a": RUNS}, False, "Pending"),
        ("Never", {"a": OK, "b": OK}, False, "Succeeded"),
        ("Never", {"a": OK, "b": BAD}, False, "Failed"),
        ("Never", {"a": BAD, "b": RUNS}, False, "Running"),
        ("OnFailure", {"a": OK, "b": BAD}, False, "Running"),
        ("OnFailure", {"a": OK, "b": OK}, False, "Succeeded"),
        ("Always", {}, True, "Pending"),
    ],
)
def test_phase(policy: str, runs: dict[str, tuple[str, ...]], *, final: bool, phase: str) -> None:
    pod = make_pod(container("a"), container("b"), restart_policy=policy)
    assert generate(pod, after(pod, **runs), is_terminal=final).phase == phase


@pytest.mark.parametrize(
    ("policy", "runs", "phase"),
    [
        ("Always", {}, "Pending"),
        ("Always", {"i": RUNS}, "Pending"),
        ("Always", {"i": OK}, "Pending"),
        ("Always", {"i": BAD}, "Pending"),
        ("Never", {"i": BAD}, "Failed"),
        ("Always", {"i": OK, "s": RUNS}, "Pending"),
        ("Always", {"i": OK, "s": RUNS, "c": RUNS}, "Running"),
        ("Always", {"i": OK, "c": RUNS}, "Pending"),
        ("Never", {"i": OK, "s": OK, "c": OK}, "Succeeded"),
        ("Never", {"i": OK, "s": RUNS, "c": OK}, "Running"),
    ],
)
def test_phase_with_init_containers(
    policy: str, runs: dict[str, tuple[str, ...]], phase: str
) -> None:
    pod = make_pod(init_containers=(container("i"), side("s")), restart_policy=policy)
    assert generate(pod, after(pod, **runs)).phase == phase


def test_a_pod_does_not_leave_a_terminal_phase() -> None:
    pod = make_pod(status=SCHEDULED._replace(phase="Failed", reason="Evicted", message="m"))
    status = generate(pod, after(pod, c=RUNS))
    assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "m")
    fresh = make_pod()
    ended = SCHEDULED._replace(phase="Succeeded")
    assert generate(fresh, after(fresh, c=RUNS), old=ended).phase == "Succeeded"


def test_conditions_of_a_pod_that_ended() -> None:
    pod = make_pod(restart_policy="Never")
    assert conditions(generate(pod, after(pod, c=OK))) == {
        "PodReadyToStartContainers": ("True", "", ""),
        "Initialized": ("True", "PodCompleted", ""),
        "Ready": ("False", "PodCompleted", ""),
        "ContainersReady": ("False", "PodCompleted", ""),
        "PodScheduled": ("True", "", ""),
    }
    failed = conditions(generate(pod, after(pod, c=BAD)))
    assert failed["Ready"] == ("False", "PodFailed", "")
    assert failed["Initialized"] == ("True", "", "")


def test_initialized_stays_once_it_was() -> None:
    pod = make_pod(init_containers=(container("i"), side("s")))
    assert conditions(generate(pod, after(pod, i=OK)))["Initialized"] == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [s]",
    )
    old = PodStatus(conditions=(PodCondition("Initialized", "True"),))
    assert conditions(generate(pod, after(pod, i=OK), old=old))["Initialized"][0] == "True"


def test_sidecars_count_in_ready() -> None:
    pod = make_pod(init_containers=(side("s"),))
    ready = conditions(generate(pod, after(pod, s=BAD, c=RUNS)))["Ready"]
    assert ready[2] == "containers with unready status: [s]"


def test_unready_containers_are_named_in_the_order_of_the_spec() -> None:
    names = ("b", "c", "a")
    pod = make_pod(*map(container, names), init_containers=(side("z"), side("y")))
    status = generate(pod, after(pod, z=BAD, y=BAD, c=BAD, a=BAD, b=BAD))
    assert [each.name for each in status.containers] == ["a", "b", "c"]
    told = "containers with unready status: [z y b c a]"
    assert conditions(status)["Ready"][2] == conditions(status)["ContainersReady"][2] == told
    running = generate(pod, after(pod, z=RUNS, y=RUNS, c=RUNS, a=RUNS, b=RUNS))
    for name in ("a", "b", "y"):
        running = with_container_ready(pod, running, name, ready=False)
    told = "containers with unready status: [y b a]"
    assert conditions(running)["Ready"][2] == conditions(running)["ContainersReady"][2] == told


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (None, 'corresponding condition of pod readiness gate "lb" does not exist.'),
        ("False", 'the status of pod readiness gate "lb" is not "True", but False'),
        ("True", ""),
    ],
)
def test_readiness_gates(gate: str | None, message: str) -> None:
    told = () if gate is None else (PodCondition("lb", gate),)
    pod = make_pod(readiness_gates=("lb",), status=SCHEDULED._replace(conditions=told))
    status = generate(pod, after(pod, c=RUNS))
    ready = conditions(status)["Ready"]
    assert ready[2] == message
    assert (ready[1] == "ReadinessGatesNotReady") is bool(message)
    assert conditions(status)["ContainersReady"][0] == "True"


@pytest.mark.parametrize(
    ("gate", "ready"),
    [("Initialized", "True"), ("PodReadyToStartContainers", "True"), ("PodScheduled", "False")],
)
def test_a_readiness_gate_sees_the_conditions_that_stand_before_ready(
    gate: str, ready: str
) -> None:
    pod = make_pod(readiness_gates=(gate,), status=SCHEDULED._replace(conditions=()))
    status = generate(pod, after(pod, c=RUNS))
    assert conditions(status)["Ready"][0] == ready
    status = with_container_ready(pod, status, "c", ready=True)
    assert conditions(status)["Ready"][0] == "True"


def test_foreign_conditions_come_first() -> None:
    foreign = PodCondition("lb", "False", "r", "m", 5)
    pod = make_pod(status=SCHEDULED._replace(conditions=(*SCHEDULED.conditions, foreign)))
    assert generate(pod).conditions[0] == foreign


def test_a_crash_loop_shows_why_it_waits() -> None:
    pod = make_pod()
    (shown,) = generate(pod, after(pod, c=BAD), reasons={"c": CRASH}).containers
    assert shown.state == CRASH
    assert shown.last_state is not None
    assert shown.last_state.exit_code == 1
    going = replaced(pod, deletion_s=1)
    (shown,) = generate(going, after(pod, c=BAD), reasons={"c": CRASH}).containers
    assert isinstance(shown.state, TerminatedState)


@pytest.mark.parametrize("command", [OK, BAD])
def test_a_sidecar_shows_that_it_waits_only_after_a_failure(command: tuple[str, ...]) -> None:
    """A sidecar starts again whatever its exit code; an init container with 0 never waits."""
    pod = make_pod(init_containers=(side("c"),))
    (shown,) = generate(pod, after(pod, c=command), reasons={"c": CRASH}).init_containers
    assert (shown.state == CRASH) is (command is BAD)
    assert (shown.ready, shown.started) == (False, False)


def test_a_container_that_the_runtime_lost_shows_that_it_ran() -> None:
    """A new sandbox has no init containers any more, and a sidecar may have run in the old one."""
    pod = make_pod(init_containers=(side("s"),))
    old = generate(pod, after(pod, s=RUNS, c=RUNS))
    found = generate(pod, after(pod, c=BAD), old=old)
    (shown,) = found.init_containers
    assert shown.state == WaitingState("PodInitializing")
    assert shown.last_state is not None
    assert (shown.last_state.exit_code, shown.last_state.reason) == (137, "ContainerStatusUnknown")
    assert shown.last_state.message.endswith("deleted.  The container used to be Running")
    assert (shown.restart_count, shown.container_id) == (1, "")
    assert generate(pod, after(pod, c=BAD), old=found).init_containers == found.init_containers
    going = replaced(pod, deletion_s=1)
    assert generate(going, after(pod, c=BAD), old=old).init_containers[0].restart_count == 0
    tried = generate(pod, after(pod, c=BAD), old=old, reasons={"s": CRASH}).init_containers[0]
    assert (tried.state, tried.last_state, tried.restart_count) == (CRASH, shown.last_state, 1)


def test_what_all_containers_show_while_they_restart() -> None:
    """What had ended keeps its image, ID and user; what was killed for it shows none."""
    init, source, other = (
        container("i", resources_json=b'{"a":"1"}'),
        container("c"),
        container("o"),
    )
    pod = make_pod(source, other, init_containers=(init, side("s")))
    old = generate(pod, after(pod, i=OK, s=RUNS, c=BAD, o=RUNS))
    found = generate(pod, after(pod), old=old, restarting=True)
    before = {each.name: each for each in (*old.init_containers, *old.containers)}
    for shown in (*found.init_containers, *found.containers):
        was = before[shown.name]
        assert shown.state == WaitingState(
            "RestartingAllContainers",
            "The container is removed because RestartAllContainers in place",
        )
        assert shown.last_state is not None
        assert (shown.last_state.exit_code, shown.last_state.reason) == (
            137,
            "RestartingAllContainers",
        )
        assert (shown.restart_count, shown.started) == (1, False)
        if shown.name in {"i", "c"}:
            assert shown.ready is was.ready is (shown.name == "i")
            kept = was
        else:
            assert not shown.ready
            kept = generate(pod).containers[0]
        for field in ("image", "image_id", "container_id", "resources_json", "user_json"):
            assert getattr(shown, field) == getattr(kept, field), (shown.name, field)


def test_what_a_crash_loop_showed_last_stays_when_the_pod_is_deleted() -> None:
    """The end before it is known no more: of those that have ended a kubelet keeps one."""
    pod = make_pod()
    sandbox = after(pod, c=BAD)
    (held,) = sandbox.containers
    held.last = TerminatedState(9, "Error", "", 1, 2, "an earlier one")
    waiting = generate(pod, sandbox, reasons={"c": CRASH})
    going = generate(replaced(pod, deletion_s=1), sandbox, old=waiting, reasons={"c": CRASH})
    (shown,) = going.containers
    assert shown.state == shown.last_state == waiting.containers[0].last_state


def test_the_end_before_is_told_of_a_container_that_runs() -> None:
    pod = make_pod()
    sandbox = after(pod, c=RUNS)
    (held,) = sandbox.containers
    held.last = TerminatedState(9, "Error", "", 1, 2, "an earlier one")
    (shown,) = generate(pod, sandbox).containers
    assert shown.last_state == held.last


def test_nothing_of_a_deleted_pod_waits_to_be_started() -> None:
    reasons = {"c": WaitingState("CreateContainerError", "no space")}
    for deletion_s, shown in ((0, "CreateContainerError"), (1, "ContainerCreating")):
        pod = replaced(make_pod(), deletion_s=deletion_s)
        state = generate(pod, reasons=reasons).containers[0].state
        assert isinstance(state, WaitingState)
        assert state.reason == shown


def test_ephemeral_containers_are_never_ready_and_go_by_name() -> None:
    pod = make_pod(ephemeral_containers=(container("z"), container("e")))
    found = generate(pod, after(pod, c=RUNS, z=RUNS, e=BAD)).ephemeral_containers
    assert [(each.name, each.ready, each.started) for each in found] == [
        ("e", False, False),
        ("z", False, False),
    ]


def test_a_container_that_ended_is_remembered_without_its_sandbox() -> None:
    pod = make_pod(restart_policy="Never")
    ended = generate(pod, after(pod, c=OK))
    assert generate(pod, None, old=ended).containers == ended.containers


def test_an_untolerated_pod_is_never_ready() -> None:
    pod = make_pod()
    status = generate(pod, after(pod, c=RUNS), untolerated="fleet.emulator/fake")
    assert not status.containers[0].ready
    assert status.containers[0].started
    told = conditions(status)
    assert told["Ready"][:2] == ("False", "EmulatedNodeNotTolerated")
    assert told["ContainersReady"][1] == "ContainersNotReady"


@pytest.mark.parametrize(
    ("key", "tolerations", "missing"),
    [
        ("", (), ""),
        ("k", (), "k"),
        ("k", (Toleration("", "Exists", "", ""),), "k"),
        ("k", (Toleration("k", "Exists", "", ""),), ""),
    ],
)
def test_only_a_named_key_counts(
    key: str, tolerations: tuple[Toleration, ...], missing: str
) -> None:
    assert untolerated_key(make_pod(tolerations=tolerations), key) == missing


def test_a_pod_that_never_ran_ends_as_failed() -> None:
    pod = make_pod()
    last = terminate_pod_status(pod, generate(pod), pod.status)
    assert last.phase == "Failed"
    (shown,) = last.containers
    assert isinstance(shown.state, TerminatedState)
    assert (shown.state.exit_code, shown.state.reason) == (137, "ContainerStatusUnknown")


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
