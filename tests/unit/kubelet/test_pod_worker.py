import pytest
from world.pod_world import SCHEDULED, make_pod, replaced

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod
from fleet.kubelet.pod_worker import (
    PodKill,
    PodWorker,
    SyncStage,
    WorkerState,
    effective_grace_s,
    kill_timeout_ns,
    requeue_ns,
)


def deleted(pod: Pod, grace_s: int) -> Pod:
    return replaced(pod, deletion_s=1, deletion_grace_s=grace_s)


def test_an_update_does_not_end_a_pod() -> None:
    worker = PodWorker(make_pod(), 0)
    assert not worker.on_pod(make_pod(fingerprint=2))
    assert worker.state is WorkerState.SYNC


def test_a_later_kill_only_shortens_the_grace_period() -> None:
    pod = make_pod()
    worker = PodWorker(pod, 0)
    seen = []
    for grace_s in (30, 60, 10, 0, 5):
        told = worker.on_pod(deleted(pod, grace_s))
        seen.append((told, worker.grace_s))
    assert seen == [(True, 30), (False, 30), (True, 10), (True, 1), (False, 1)]
    assert worker.state is WorkerState.TERMINATING


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_phase_ends_a_pod(phase: str) -> None:
    worker = PodWorker(make_pod(), 0)
    assert worker.on_pod(make_pod(status=SCHEDULED._replace(phase=phase)))
    assert worker.state is WorkerState.TERMINATING


def test_a_removed_pod_has_the_grace_of_its_spec() -> None:
    worker = PodWorker(make_pod(termination_grace_s=7), 0)
    assert worker.kill()
    assert worker.grace_s == 7
    assert not worker.kill()


@pytest.mark.parametrize(
    ("before_s", "deletion_s", "spec_s", "wanted_s"),
    [
        (0, None, 30, 30),
        (0, 5, 30, 5),
        (0, 60, 30, 60),
        (0, 0, 30, 1),
        (10, 60, 30, 10),
        (10, None, 30, 10),
        (10, 3, 30, 3),
        (0, None, 0, 1),
    ],
)
def test_effective_grace(before_s: int, deletion_s: int | None, spec_s: int, wanted_s: int) -> None:
    pod = make_pod(deletion_grace_s=deletion_s, termination_grace_s=spec_s)
    assert effective_grace_s(before_s, pod) == wanted_s


def test_states_only_move_forward() -> None:
    worker = PodWorker(make_pod(), 0)
    with pytest.raises(AssertionError):
        worker.complete_terminating()
    worker.complete_sync()
    with pytest.raises(AssertionError):
        worker.complete_sync()
    worker.complete_terminating()
    assert not worker.on_pod(deleted(make_pod(), 1))
    worker.complete_terminated()
    assert worker.state is WorkerState.FINISHED
    with pytest.raises(AssertionError):
        worker.complete_terminated()


def test_the_end_of_a_sync_says_how_fresh_the_cache_is() -> None:
    worker = PodWorker(make_pod(), 0)
    worker.stage = SyncStage.START
    worker.had_actions = True
    worker.end_sync(9, relisted=True)
    assert (worker.stage, worker.last_sync_ns, worker.fresh) == (SyncStage.IDLE, 9, True)
    assert not worker.had_actions


def test_a_failed_sync_is_tried_again_later() -> None:
    assert requeue_ns(0, 0, 0.0) == 10 * NS_PER_S
    assert requeue_ns(0, 0, 0.5) == 12.5 * NS_PER_S
    assert requeue_ns(5 * NS_PER_S, 25 * NS_PER_S, 0.0) == 25 * NS_PER_S
    # A long back-off is looked at every resync.
    assert requeue_ns(0, 300 * NS_PER_S, 0.0) == 60 * NS_PER_S
    assert requeue_ns(10, 5, 1.0) == 10


@pytest.mark.parametrize(
    ("override_s", "spec_s", "wanted_s"),
    [(None, 30, 45), (None, 5, 10), (0, 600, 10), (1, 600, 10), (11, 30, 16)],
)
def test_a_manager_waits_for_one_and_a_half_grace_periods(
    override_s: int | None, spec_s: int, wanted_s: int
) -> None:
    killed = PodKill("Evicted", "", override_s)
    found_ns = kill_timeout_ns(killed, make_pod(termination_grace_s=spec_s))
    assert found_ns == wanted_s * NS_PER_S
