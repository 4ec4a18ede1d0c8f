"""The table by which the worker of a pod moves: it has no gap and no stage without a way on."""

from fleet.kubelet.pod_worker import Happened, SyncStage
from fleet.kubelet.pods.pod_sync import PodSyncer

TABLE = PodSyncer.TRANSITIONS
PASSED = {stage for stage, happened in TABLE if happened is Happened.ENTERED}


def test_each_stage_that_a_step_returns_can_be_entered() -> None:
    found = {stage for row in TABLE.values() for stage in row.leads_to}
    assert found <= PASSED
    assert found == PASSED, "a stage that nothing leads to"


def test_each_stage_that_waits_has_a_way_on() -> None:
    waits = set(SyncStage) - PASSED
    for stage in waits:
        assert TABLE.get((stage, Happened.DUE)) or TABLE.get((stage, Happened.DONE)), stage


def test_only_a_pod_that_waits_for_others_is_interrupted() -> None:
    given_up = {stage for stage, happened in TABLE if happened is Happened.ENDED}
    assert given_up == {
        SyncStage.IDLE,
        SyncStage.MOUNT,
        SyncStage.MOUNTED,
        SyncStage.SECRETS,
        SyncStage.ORPHAN,
    }
