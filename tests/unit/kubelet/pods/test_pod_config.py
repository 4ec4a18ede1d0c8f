import pytest
from world.pod_world import SCHEDULED, make_pod, replaced

from fleet.k8s.pods import EventType, Pod
from fleet.kubelet.pods.pod_config import PodConfig, PodOp


def ops(updates: object) -> list[tuple[PodOp, str]]:
    assert isinstance(updates, (list, tuple))
    return [(each.op, each.pod.uid) for each in updates]


def started(*pods: Pod) -> PodConfig:
    config = PodConfig()
    for pod in pods:
        config.on_event(EventType.ADDED, pod)
    return config


KNOWN = make_pod(uid="u", fingerprint=1)
RUNNING = SCHEDULED._replace(phase="Running")
GOING = replaced(KNOWN, deletion_s=100, deletion_grace_s=30)


@pytest.mark.parametrize(
    ("known", "event", "pod", "told"),
    [
        ((), EventType.ADDED, KNOWN, [PodOp.ADD]),
        ((), EventType.MODIFIED, KNOWN, [PodOp.ADD]),
        ((), EventType.BOOKMARK, None, []),
        ((KNOWN,), EventType.MODIFIED, replaced(KNOWN, status=RUNNING), [PodOp.RECONCILE]),
        ((KNOWN,), EventType.MODIFIED, replaced(KNOWN, fingerprint=2), [PodOp.UPDATE]),
        ((KNOWN,), EventType.MODIFIED, GOING, [PodOp.DELETE]),
        ((GOING,), EventType.MODIFIED, replaced(GOING, deletion_grace_s=5), [PodOp.DELETE]),
        ((KNOWN,), EventType.DELETED, KNOWN, [PodOp.REMOVE]),
        ((), EventType.DELETED, KNOWN, []),
    ],
)
def test_what_becomes_of_an_event(
    known: tuple[Pod, ...], event: EventType, pod: Pod | None, told: list[PodOp]
) -> None:
    config = started(*map(replaced, known))
    seen = replaced(pod) if pod is not None else None
    updates = config.on_event(event, seen)
    assert [each.op for each in updates] == told
    assert told == [PodOp.REMOVE] or all(each.pod is seen for each in updates)
    assert len(config) == (told not in ([], [PodOp.REMOVE]))


def test_an_unchanged_pod_is_nothing_and_shares_its_parts() -> None:
    pod = make_pod(uid="u", fingerprint=1)
    config = started(pod)
    same = make_pod(uid="u", fingerprint=1, status=SCHEDULED._replace())
    assert ops(config.on_event(EventType.ADDED, same)) == []
    assert same.status is pod.status
    assert same.spec.containers is pod.spec.containers


def test_events_keep_the_version_first_seen() -> None:
    pod = make_pod(uid="u", fingerprint=1)
    config = started(pod)
    new = make_pod(uid="u", fingerprint=2)
    new.resource_version = "900"
    config.on_event(EventType.MODIFIED, new)
    assert new.resource_version == "7"


def test_a_relist_removes_what_it_does_not_mention() -> None:
    one, two = make_pod(uid="1", name="one"), make_pod(uid="2", name="two")
    config = started(one, two)
    config.on_relist_started(is_own=False)
    assert ops(config.on_event(EventType.ADDED, replaced(two))) == []
    assert ops(config.on_event(EventType.SYNCED, None)) == [(PodOp.REMOVE, "1")]
    assert ops(config.on_event(EventType.SYNCED, None)) == []


def test_a_relist_removes_a_pod_before_it_adds_its_namesake() -> None:
    config = started(make_pod(uid="1", name="same"))
    config.on_relist_started(is_own=False)
    added = config.on_event(EventType.ADDED, make_pod(uid="2", name="same"))
    assert ops(added) == [(PodOp.REMOVE, "1"), (PodOp.ADD, "2")]
    assert ops(config.on_event(EventType.SYNCED, None)) == []


def test_a_deletion_during_a_relist_is_said_once() -> None:
    pod = make_pod(uid="1")
    config = started(pod)
    config.on_relist_started(is_own=False)
    assert ops(config.on_event(EventType.DELETED, pod)) == [(PodOp.REMOVE, "1")]
    assert ops(config.on_event(EventType.SYNCED, None)) == []


def test_a_snapshot_of_an_own_watch_is_one_merge_in_the_order_of_creation() -> None:
    """As upstream: REMOVE, ADD by age, UPDATE, DELETE, RECONCILE, all once it is complete."""
    gone, edited, going, same = (make_pod(uid=uid, name=uid, fingerprint=1) for uid in "abcd")
    config = started(going, edited, gone, same)
    config.on_relist_started(is_own=True)
    young, old = (make_pod(uid=uid, name=uid, created_s=s) for uid, s in (("young", 9), ("old", 8)))
    late = make_pod(uid="late", name="late", created_s=10)
    listed = [
        replaced(same, status=SCHEDULED._replace(phase="Running")),
        replaced(going, deletion_s=100, deletion_grace_s=30),
        late,
        young,
        replaced(edited, fingerprint=2),
        old,
    ]
    for pod in listed:
        assert ops(config.on_event(EventType.ADDED, pod)) == []
    assert ops(config.on_event(EventType.DELETED, late)) == []
    assert ops(config.on_event(EventType.SYNCED, None)) == [
        (PodOp.REMOVE, "a"),
        (PodOp.ADD, "old"),
        (PodOp.ADD, "young"),
        (PodOp.UPDATE, "b"),
        (PodOp.DELETE, "c"),
        (PodOp.RECONCILE, "d"),
    ]
    assert ops(config.on_event(EventType.ADDED, late)) == [(PodOp.ADD, "late")]
