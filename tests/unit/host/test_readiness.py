from fleet.host.observed_nodes import NOT_READY_TAINT, Readiness, is_ready
from fleet.k8s.effects import WatchEvent, WatchKind
from fleet.k8s.pods import EventType, NodeCondition, NodeView

READY = NodeCondition("Ready", "True", 0, 0)


def view(name: str = "n", status: str = "True", *taints: str) -> NodeView:
    return NodeView(
        name=name,
        uid="u",
        resource_version="1",
        deleting=False,
        pod_cidrs=(),
        labels={},
        taints=tuple((key, "", "NoSchedule") for key in taints),
        conditions=(READY._replace(status=status),),
        volumes_attached=(),
    )


def event(record: object, type_: EventType = EventType.MODIFIED) -> WatchEvent:
    return WatchEvent(WatchKind.NODE, type_, record)


def test_ready_means_without_the_taint() -> None:
    assert is_ready(view())
    assert is_ready(view("n", "True", "other"))
    assert not is_ready(view("n", "True", NOT_READY_TAINT))
    assert not is_ready(view("n", "Unknown"))


def test_all_ready_is_told_once_and_falls_are_remembered() -> None:
    readiness = Readiness(2)
    readiness.on_event(event(None, EventType.SYNCED))
    readiness.on_event(event(view("a")))
    readiness.on_event(event(view("b", "False")))
    assert not readiness.all_ready.is_set()
    readiness.on_event(event(view("b")))
    assert readiness.all_ready.is_set()
    at_ns = readiness.ready_at_ns
    readiness.on_event(event(view("a", "Unknown")))
    readiness.on_event(event(view("a")))
    readiness.on_event(event(view("b"), EventType.DELETED))
    assert readiness.ready == {"a"}
    assert readiness.ever_not_ready == {"a"}
    assert readiness.ready_at_ns == at_ns


def test_a_late_taint_of_the_controller_loses_no_node() -> None:
    readiness = Readiness(1)
    readiness.on_event(event(view("a")))
    readiness.on_event(event(view("a", "True", NOT_READY_TAINT)))
    assert (readiness.ready, readiness.ever_not_ready) == (set(), set())
    readiness.on_event(event(view("a")))
    readiness.on_event(event(view("a", "False", NOT_READY_TAINT)))
    assert (readiness.ready, readiness.ever_not_ready) == (set(), {"a"})


def test_a_node_that_went_while_nobody_watched_is_gone() -> None:
    readiness = Readiness(2)
    for name in "ab":
        readiness.on_event(event(view(name)))
    readiness.on_event(event(None, EventType.RESTARTED))
    readiness.on_event(event(view("b"), EventType.ADDED))
    assert readiness.present == {"a", "b"}
    readiness.on_event(event(None, EventType.SYNCED))
    assert readiness.present == readiness.ready == {"b"}
