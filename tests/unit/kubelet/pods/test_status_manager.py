import pytest
from world.pod_world import NODE, SCHEDULED, UID, World, make_pod, replaced, turn_of

from fleet.clock import NS_PER_S
from fleet.k8s.effects import (
    ApiCall,
    Op,
    Outbox,
    PodStatusPatch,
    PodTarget,
    Reply,
    ReplyKind,
    SetTimer,
)
from fleet.k8s.pods import (
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    PodUid,
    PodView,
    RunningState,
    TerminatedState,
)
from fleet.kubelet.environment import Environment
from fleet.kubelet.pods.status_generate import CREATING
from fleet.kubelet.pods.status_manager import StatusManager, merge_pod_status

ENV, LIGHT = World().env, World(light=True).env
TARGET = PodTarget("default", "web")
GET = ApiCall(NODE, Op.GET_POD, UID, TARGET)
DELETE = ApiCall(NODE, Op.DELETE_POD, UID, TARGET)
OK = Reply(ReplyKind.OK)
READY = PodCondition("Ready", "True", "", "", 5, 1)
NOW_S = 40
LB = PodCondition("lb", "True", "", "", 5, 0)


def status(phase: str = "Running", *conditions: PodCondition) -> PodStatus:
    return SCHEDULED._replace(phase=phase, conditions=conditions, start_time_s=9)


def send(manager: StatusManager, pod: Pod | None, **how: bool) -> Outbox:
    """Send what is due; return the effects."""
    out: Outbox = []
    while (uid := manager.next()) is not None:
        turn = turn_of(LIGHT if how.get("light") else ENV, 0, out)
        manager.send(uid, pod, turn, may_run=how.get("may_run", False))
    return out


def got(manager: StatusManager, pod: Pod, *, may_run: bool = False, now_ns: int = 0) -> Outbox:
    out: Outbox = []
    view = PodView(pod.uid, "1", pod.deleting, pod.status)
    manager.on_reply(GET, Reply(ReplyKind.OK, view), turn_of(ENV, now_ns, out), may_run=may_run)
    return out


def answer(
    manager: StatusManager,
    call: ApiCall,
    reply: Reply = OK,
    now_ns: int = 0,
    env: Environment = ENV,
) -> tuple[PodStatus | None, Outbox]:
    out: Outbox = []
    return manager.on_reply(call, reply, turn_of(env, now_ns, out), may_run=False), out


def patched(out: Outbox) -> tuple[ApiCall, str]:
    """Return the one request that patches a status, and the phase that it tells."""
    [call] = out
    assert isinstance(call, ApiCall)
    assert isinstance(call.payload, PodStatusPatch)
    return call, call.payload.new.phase


def make() -> tuple[StatusManager, Pod]:
    return StatusManager(), make_pod()


def test_a_deleted_pod_is_sent_again_whatever_it_says() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status(), 10)
    going = replaced(pod, deletion_s=1)
    assert manager.set_pod_status(going, status(), 11)


def test_a_static_pod_keeps_its_status_when_a_get_shows_its_next_mirror() -> None:
    """It goes there once the watch shows that mirror; another pod of the name drops it."""
    for mirrors, kept in (((PodUid("first"), PodUid("next")), [GET]), ((), [])):
        manager, pod = make()
        for mirror in mirrors[:1]:
            manager.set_mirror(pod.uid, mirror)
        manager.set_pod_status(pod, status(), 10)
        assert send(manager, pod) == [GET]
        assert got(manager, replaced(pod, uid="next")) == []
        for mirror in mirrors[1:]:
            manager.set_mirror(pod.uid, mirror)
        manager.send_again(pod.uid, turn_of(ENV, 0, []))
        manager.suspects(10 * NS_PER_S)
        assert send(manager, pod) == kept


def test_statuses_that_follow_each_other_are_sent_as_one() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status("Pending"), 10)
    assert send(manager, pod) == [GET]
    manager.set_pod_status(pod, status("Running"), 11)
    manager.set_pod_status(pod, status("Succeeded"), 12)
    # What is in flight stays as it was when it was read.
    call, phase = patched(got(manager, pod))
    assert phase == "Pending"
    assert send(manager, pod) == []
    answer(manager, call)
    assert send(manager, pod) == [GET]
    call, phase = patched(got(manager, pod))
    assert phase == "Succeeded"
    answer(manager, call)
    assert send(manager, pod) == []


def told(manager: StatusManager, pod: Pod) -> str:
    """Send the status of a pod, whose turn it is; return the phase that was told."""
    [asked] = send(manager, pod)
    assert isinstance(asked, ApiCall)
    assert asked.key == pod.uid
    out: Outbox = []
    read = Reply(ReplyKind.OK, PodView(pod.uid, "1", deleting=False, status=pod.status))
    manager.on_reply(asked, read, turn_of(ENV, 0, out), may_run=False)
    call, phase = patched(out)
    answer(manager, call)
    return phase


def test_what_a_batch_tells_is_as_it_was_when_the_batch_began() -> None:
    """A pod that waits for the requests of another tells what it was meanwhile, then what it is."""
    manager, first = make()
    pod, other = (make_pod(uid=name, name=name) for name in ("pod", "other"))
    manager.set_pod_status(first, status(), 10)
    for each in (pod, other):
        manager.set_pod_status(each, status("Pending"), 10)
    assert told(manager, first) == "Running"
    [asked] = send(manager, pod)
    assert isinstance(asked, ApiCall)
    assert asked.key == "pod"
    manager.set_pod_status(other, status("Running"), 11)
    manager.set_pod_status(other, status("Succeeded"), 12)
    manager.on_reply(asked, Reply(ReplyKind.NOT_FOUND), turn_of(ENV, 0, []), may_run=False)
    assert [told(manager, other) for _ in range(2)] == ["Pending", "Succeeded"]
    assert send(manager, other) == []


def test_what_nothing_waits_for_is_told_before_what_follows_in_the_same_instant() -> None:
    """A kubelet asks its runtime in between, which takes longer than to begin a batch."""
    manager, pod = make()
    for phase in ("Pending", "Running", "Succeeded"):
        manager.set_pod_status(pod, status(phase), 10)
    assert [told(manager, pod) for _ in range(2)] == ["Pending", "Succeeded"]
    assert send(manager, pod) == []


def test_a_status_that_another_follows_at_once_is_not_sent() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status("Pending"), 10, begins=False)
    manager.set_pod_status(pod, status("Running"), 10)
    assert told(manager, pod) == "Running"
    assert manager.next() is None


def test_a_pod_that_is_gone_and_still_ends_is_read_after_as_many_statuses_as_were_taken() -> None:
    """Source: status_manager.go, syncBatch: apiStatusVersions outlives RemoveOrphanedStatuses."""
    manager, pod = make()
    for phase in ("Pending", "Running"):
        manager.set_pod_status(pod, status(phase), 10)
        assert told(manager, pod) == phase
    manager.drop(UID, knows=True)
    for phase, uid in (("Succeeded", None), ("Failed", None), ("Running", UID)):
        manager.set_pod_status(pod, status(phase), 11)
        assert manager.next() == uid


@pytest.mark.parametrize(
    ("policy", "code", "is_taken"),
    [("Always", 0, True), ("OnFailure", 1, True), ("OnFailure", 0, False), ("Never", 1, False)],
)
def test_no_container_leaves_an_end_that_is_for_good(
    policy: str, code: int, *, is_taken: bool
) -> None:
    """As the init containers of a Job would in another sandbox."""
    manager, pod = StatusManager(), make_pod(restart_policy=policy)
    ended = TerminatedState(code, "", "", 1, 2, "")
    manager.set_pod_status(pod, status()._replace(containers=(ContainerStatus("c", ended),)), 10)
    for state in (RunningState(3), CREATING):
        now = status()._replace(containers=(ContainerStatus("c", state),))
        assert manager.set_pod_status(pod, now, 11) is is_taken


def test_a_namesake_is_left_alone() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status(), 10)
    send(manager, pod)
    view = PodView("another", "1", deleting=False, status=pod.status)
    assert answer(manager, GET, Reply(ReplyKind.OK, view)) == (None, [])
    assert manager.status(UID) is None


def test_a_failure_waits_for_the_full_pass_or_the_next_status() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status(), 10)
    send(manager, pod)
    _, out = answer(manager, GET, Reply(ReplyKind.LOST), NS_PER_S)
    (timer,) = out
    assert isinstance(timer, SetTimer)
    assert NS_PER_S < timer.due_ns <= 11 * NS_PER_S
    assert send(manager, pod) == []
    assert manager.suspects(timer.due_ns - 1) == []
    assert send(manager, pod) == []
    manager.suspects(timer.due_ns)
    assert send(manager, pod) == [GET]
    answer(manager, GET, Reply(ReplyKind.LOST), timer.due_ns)
    manager.set_pod_status(make_pod(uid="other", name="other"), status(), 11)
    first = manager.next()
    assert first == "other"
    assert manager.next() == UID


def test_the_final_delete_needs_no_patch() -> None:
    manager, pod = make()
    going = replaced(pod, deletion_s=1, status=status("Failed"))
    manager.set_pod_status(going, status("Failed"), 10, finished=True)
    send(manager, going)
    assert got(manager, going) == [DELETE]
    assert answer(manager, DELETE) == (None, [])
    assert manager.status(UID) is None


def test_no_delete_before_the_worker_is_done_or_the_phase_terminal() -> None:
    manager, pod = make()
    going = replaced(pod, deletion_s=1, status=status("Failed"))
    manager.set_pod_status(going, status("Failed"), 10)
    send(manager, going)
    assert got(manager, going) == []
    manager.set_pod_status(replaced(going, status=status()), status(), 10, finished=True)
    send(manager, going)
    assert got(manager, replaced(going, status=status())) != [DELETE]


def test_a_terminal_phase_is_held_back_while_containers_may_run() -> None:
    manager, pod = make()
    pod.status = status("Running", READY)
    manager.set_pod_status(pod, status("Failed", READY._replace(status="False")), 10)
    send(manager, pod)
    assert patched(got(manager, pod, may_run=True))[1] == "Running"


def test_light_says_nothing_of_what_the_server_knows() -> None:
    manager, pod = make()
    pod.status = status("Running", READY)
    assert not manager.set_pod_status(pod, status("Running", READY), 10, known=True)
    assert send(manager, pod, light=True) == []


def test_nothing_is_looked_at_while_a_newer_status_waits() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status(), 10)
    out: Outbox = []
    manager.on_pod(pod, turn_of(ENV, 0, out))
    manager.on_pod(make_pod(uid="unknown"), turn_of(ENV, 0, out))
    assert out == []


def test_start_time_and_generation_never_go_back() -> None:
    manager, pod = make()
    manager.set_pod_status(pod, status()._replace(start_time_s=0, observed_generation=3), 10)
    manager.set_pod_status(pod, status("Failed")._replace(start_time_s=99), 11)
    last = manager.status(UID)
    assert last is not None
    assert (last.start_time_s, last.observed_generation) == (10, 3)


def test_merging_keeps_what_others_own_and_no_terminal_pod_ready() -> None:
    old = status("Running", LB, READY)
    new = status("Succeeded", READY, PodCondition("ContainersReady", "True"))
    merged = merge_pod_status(old, new, NOW_S, may_run=False)
    assert merged.conditions == (
        LB,
        READY._replace(status="False", reason="PodCompleted"),
        PodCondition("ContainersReady", "False", "PodCompleted"),
    )
    held = merge_pod_status(old, new._replace(reason="r"), NOW_S, may_run=True)
    assert (held.phase, held.reason) == ("Running", "")
    assert held.conditions[1].status == "True"


def test_a_disruption_target_goes_out_with_the_terminal_phase() -> None:
    target = PodCondition("DisruptionTarget", "True", "TerminationByKubelet", "", 7, 1)
    old, new = status("Running", LB), status("Failed", target)
    assert merge_pod_status(old, new, NOW_S, may_run=True).conditions == (LB,)
    sent = merge_pod_status(old, new, NOW_S, may_run=False).conditions
    assert sent == (LB, target._replace(transition_s=NOW_S))  # not when the end was asked for
    foreign = target._replace(reason="EvictionByEvictionAPI", transition_s=5)
    merged = merge_pod_status(status("Running", foreign), new, NOW_S, may_run=False)
    assert merged.conditions == (target._replace(transition_s=5),)
    merged = merge_pod_status(status("Failed", foreign), new, NOW_S, may_run=False)
    assert merged.conditions == (foreign,)


def test_late_replies_of_nobody_are_ignored() -> None:
    manager, pod = make()
    assert answer(manager, GET) == (None, [])
    manager.set_pod_status(pod, status(), 10)
    send(manager, pod)
    manager.forget(UID)
    assert got(manager, pod) == []
    assert send(manager, pod) == []
