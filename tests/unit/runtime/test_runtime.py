import pytest
from world.pod_world import container as spec

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.k8s.pods import (
    ContainerLifecycle,
    ContainerSpec,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    PodUid,
    RunningState,
    ScriptSpec,
)
from fleet.profile.distribution import constant
from fleet.profile.pod_behavior import DEFAULT_BEHAVIOR, PodBehavior, select_behavior
from fleet.runtime.containers import BackOff, RunState, Sandbox, image_name, last_words, shown_image
from fleet.runtime.pod_addresses import AddressPool
from fleet.runtime.program import Process
from fleet.runtime.programs import program_of
from fleet.runtime.runtime import Runtime

UID = PodUid("u")
OFFSET_NS = 1000 * NS_PER_S
MAX_NS = 300 * NS_PER_S


def pod(*containers: ContainerSpec, status: PodStatus | None = None, host: bool = False) -> Pod:
    return Pod(
        namespace="default",
        name="web",
        uid=UID,
        spec=PodSpec(containers=containers, host_network=host),
        status=status or PodStatus(),
    )


def runtime(cidr: str = "10.1.2.0/24") -> Runtime:
    return Runtime(3, "192.0.2.1", cidr, Draws(5))


def sandbox_of(it: Runtime) -> Sandbox:
    found = it.sandbox(UID)
    assert found is not None
    return found


def started(*containers: ContainerSpec) -> Runtime:
    it = runtime()
    assert it.create_sandbox(pod()) is not None
    for each in containers:
        it.start_container(pod(), each, DEFAULT_BEHAVIOR, 0, 1000)
    return it


def test_addresses_rotate_and_come_back() -> None:
    pool = AddressPool("10.1.2.0/29")  # .2 to .6: five of them
    first = [pool.take() for _ in range(5)]
    assert first == [f"10.1.2.{last}" for last in range(2, 7)]
    assert pool.take() == ""
    pool.free("10.1.2.3")
    pool.free("10.1.2.5")
    assert [pool.take(), pool.take()] == ["10.1.2.3", "10.1.2.5"]


def stop(it: Runtime, at_ns: int = 0, grace_ns: int = 30 * NS_PER_S, **notes: str) -> int:
    """Stop the first container; notes are annotations under fleet.emulator/."""
    sandbox = sandbox_of(it)
    given = tuple((f"fleet.emulator/{key.replace('_', '-')}", notes[key]) for key in notes)
    behavior = select_behavior((), (), "default", given)
    pair = pod(spec("a"), spec("b"))
    return it.stop_container(pair, sandbox.containers[0], behavior, at_ns, grace_ns, OFFSET_NS)


def test_the_handlers_of_all_pods_run_that_are_stopped_at_once() -> None:
    script = "trap 'echo bye; exit 3' TERM; while true; do touch /tmp/a; sleep 5; done"
    loop = spec("c", "sh", "-c", script, script=ScriptSpec())
    it, ends = runtime(), []
    for number in range(20):
        each = pod(loop)
        each.uid = PodUid(f"u{number}")
        assert it.create_sandbox(each) is not None
        made = it.start_container(each, loop, DEFAULT_BEHAVIOR, 0, 1000)
        at_ns, grace_ns = 3 * NS_PER_S, 30 * NS_PER_S
        it.stop_container(each, made, DEFAULT_BEHAVIOR, at_ns, grace_ns, OFFSET_NS)
        ends.append((made.exit_ns, made.exit_code))
    assert ends == [(5 * NS_PER_S, 3)] * 20


def first(it: Runtime) -> tuple[int, str]:
    sandbox = sandbox_of(it)
    return sandbox.containers[0].exit_code, sandbox.containers[0].reason


def test_a_container_stops_promptly_when_asked() -> None:
    it = started(spec("a"), spec("b"))
    end_ns = stop(it, NS_PER_S)
    assert 20 * NS_PER_MS <= end_ns - NS_PER_S <= 50 * NS_PER_MS
    assert first(it) == (0, "Completed")


def test_a_container_that_ends_by_itself_first_keeps_its_code() -> None:
    it = started(spec("a", "sh", "-c", "sleep 0.01; exit 3"))
    assert stop(it) == 10 * NS_PER_MS
    assert first(it) == (3, "Error")


def test_a_container_that_fails_to_start_has_exited() -> None:
    it = runtime()
    it.create_sandbox(pod(spec()))
    container = it.fail_container(pod(spec()), spec(), "no such file", NS_PER_S, 1001)
    ended = container.terminated()
    assert (ended.exit_code, ended.reason, ended.message) == (128, "StartError", "no such file")
    assert (ended.started_s, ended.finished_s) == (0, 1001)


def test_removed_containers_are_still_counted() -> None:
    it = started(spec("a"))
    it.remove_containers(pod(spec("a")))
    assert it.attempt(pod(), spec("a")) == 1
    assert it.attempt(pod(), spec("b")) == 0


def test_last_words() -> None:
    says = spec("a", "sh", "-c", "echo log; sleep 1; echo bye > /dev/termination-log; exit 1")
    run = program_of(pod(), says).run(Process(pod(), says))
    assert last_words(says, run, "", 1, NS_PER_S) == "bye\n"
    assert last_words(says, run, "declared", 1, NS_PER_S) == "declared"
    assert last_words(says, run, "", 1, 0) == ""
    falls_back = says._replace(life=ContainerLifecycle(message_from_logs=True))
    assert last_words(falls_back, run, "", 1, 0) == "log\n"
    assert last_words(falls_back, run, "", 0, 0) == ""


def test_containers_share_the_room_for_last_words() -> None:
    says = spec("a", "sh", "-c", f"echo {'a' * 3000} > /dev/termination-log; exit 1")
    container = started().start_container(pod(*[says] * 6), says, DEFAULT_BEHAVIOR, 0, 0)
    assert container.message == "a" * 2048


def test_a_node_gets_another_range() -> None:
    it = runtime()
    it.use_cidrs("10.9.0.0/24")
    it.use_cidrs("10.9.0.0/24")
    sandbox = it.create_sandbox(pod())
    assert sandbox is not None
    assert sandbox.ips == "10.9.0.2"


def test_delays_are_drawn_once_per_start() -> None:
    it = runtime()
    delays = {it.start_delay_ns(pod(), spec(), DEFAULT_BEHAVIOR) for _ in range(3)}
    assert len(delays) == 1
    notes = (("fleet.emulator/start-delay", "7s"),)
    slow = select_behavior((), (), "default", notes)
    assert it.start_delay_ns(pod(), spec(), slow) == 7 * NS_PER_S
    sandboxed = PodBehavior(name="b", sandbox_delay=constant(9))
    assert it.sandbox_delay_ns(pod(), sandboxed) == 9


def test_adoption_rebuilds_what_the_status_shows() -> None:
    before = started(spec("c", "sleep", "100"), spec("d", "false"), spec("e"))
    before.advance(UID, NS_PER_S, OFFSET_NS)
    from_status = PodStatus(phase="Running", pod_ips="10.1.2.2")
    sandbox = sandbox_of(before)
    statuses = tuple(
        ContainerStatus(
            each.name,
            RunningState(each.started_s) if each.state is RunState.RUNNING else each.terminated(),
            None,
            ready=True,
            started=True,
            restart_count=4,
            image="",
            image_id="",
            container_id=each.id,
        )
        for each in sandbox.containers
    )
    specs = (spec("c", "sleep", "100"), spec("d", "false"), spec("e"))
    found = pod(*specs, status=from_status._replace(containers=statuses))
    after = runtime()
    later_ns = 20 * NS_PER_S
    assert after.adopt(found, DEFAULT_BEHAVIOR, later_ns, OFFSET_NS)
    again = sandbox_of(after)
    ids = {each.name: each.id for each in sandbox.containers}
    assert {each.name: each.id for each in again.containers} == ids
    assert {each.attempt for each in again.containers} == {4}
    running = again.find("c")
    assert running is not None
    assert running.exit_ns == 100 * NS_PER_S
    ended = again.find("d")
    assert ended is not None
    assert ended.terminated().exit_code == 1
    assert after.create_sandbox(_other()).ips == "10.1.2.3"  # type: ignore[union-attr]
    assert not after.adopt(_other(), DEFAULT_BEHAVIOR, later_ns, OFFSET_NS)


def _other() -> Pod:
    other = pod()
    other.uid = PodUid("other")
    return other


def test_back_off_doubles_to_five_minutes() -> None:
    back_off = BackOff()
    now_ns = 0
    delays = []
    for _ in range(9):
        exited_ns = now_ns
        wait_ns = back_off.wait_ns(UID, "c", exited_ns, exited_ns)
        delays.append(wait_ns // NS_PER_S)
        now_ns = exited_ns + wait_ns
        assert back_off.wait_ns(UID, "c", exited_ns, now_ns) == 0
        back_off.next(UID, "c", exited_ns, now_ns, MAX_NS)
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300, 300]


def test_back_off_starts_anew_after_ten_quiet_minutes() -> None:
    back_off = BackOff()
    for _ in range(4):
        back_off.next(UID, "c", 0, 0, MAX_NS)
    assert back_off.wait_ns(UID, "c", 601 * NS_PER_S, 601 * NS_PER_S) == 0
    back_off.next(UID, "c", 601 * NS_PER_S, 601 * NS_PER_S, MAX_NS)
    assert back_off.wait_ns(UID, "c", 601 * NS_PER_S, 601 * NS_PER_S) == 10 * NS_PER_S
    back_off.forget(UID)
    assert back_off.wait_ns(UID, "c", 601 * NS_PER_S, 601 * NS_PER_S) == 0


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1", "docker.io/library/nginx:1"),
        ("me/app:2", "docker.io/me/app:2"),
        ("localhost/app", "localhost/app:latest"),
        ("host:5000/app", "host:5000/app:latest"),
        ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
    ],
)
def test_image_names_are_spelled_out(image: str, name: str) -> None:
    assert image_name(image) == name


def test_an_image_id_is_a_digest() -> None:
    shown, found = shown_image("quay.io/a/b@sha256:00")
    assert shown.startswith("sha256:")  # it has no tag
    assert found == "quay.io/a/b@sha256:00"
    head, _, digest = shown_image("host:5000/app:2")[1].partition("@sha256:")
    assert head == "host:5000/app"
    assert len(digest) == 64
    assert shown_image("nginx") == shown_image("docker.io/library/nginx:latest")
