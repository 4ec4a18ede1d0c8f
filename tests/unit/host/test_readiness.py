from fleet.host.readiness import NOT_READY_TAINT, Readiness, is_ready
from fleet.metrics import FleetCounts
from fleet.objects.effects import WatchEvent, WatchKind
from fleet.objects.pods import EventType, NodeCondition, NodeView
from fleet.report.figures import request_figures
from fleet.run.meter import _answered, _errors, _latency, _pods

READY = NodeCondition("Ready", "True", "", "", 0, 0)


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
        boot_id="",
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


def test_a_node_that_went_while_nobody_watched_is_gone() -> None:
    readiness = Readiness(2)
    for name in "ab":
        readiness.on_event(event(view(name)))
    readiness.on_event(event(None, EventType.RESTARTED))
    readiness.on_event(event(view("b"), EventType.ADDED))
    assert readiness.present == {"a", "b"}
    readiness.on_event(event(None, EventType.SYNCED))
    assert readiness.present == readiness.ready == {"b"}


def counted() -> FleetCounts:
    counts = FleetCounts()
    for row, code in (
        (("GET", "pods"), 200),
        (("GET", "pods"), 404),
        (("GET", "pods"), 0),
        (("POST", "events"), 201),
        (("POST", "events"), 429),
        (("WATCH", "pods"), 200),
    ):
        counts.requests.record(row, code, 100)
    return counts


def test_figures_leave_out_watches_and_expected_refusals() -> None:
    counts = counted()
    assert _errors(counts) == 2  # no answer, and the 429
    assert _latency(counts).count == 5
    assert _answered(counts, ("POST", "events")) == 1
    assert [(each.verb, each.code, each.count) for each in request_figures(counts.requests)] == [
        ("GET", 0, 1),
        ("GET", 200, 1),
        ("GET", 404, 1),
        ("POST", 201, 1),
        ("POST", 429, 1),
        ("WATCH", 200, 1),
    ]


def test_figures_of_pods_are_empty_without_pods() -> None:
    counts = FleetCounts()
    assert _pods(counts) == {}
    counts.pods_added, counts.pods_running, counts.pods_removed = 3, 2, 1
    assert _pods(counts) == {"on nodes": 2, "started": 2, "removed": 1}
    counts.pods_failed = 1
    assert _pods(counts)["Failed"] == 1
