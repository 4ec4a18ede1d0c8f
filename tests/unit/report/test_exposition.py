"""Reading what components tell: each series is parsed once, and read again by its value alone."""

import pytest
from run_files import SCRAPED

from fleet.controlplane.options import APISERVER, SCHEDULER
from fleet.report.control_plane import FAMILIES, Exposition, Wanted, node_queues


def kept(wanted: Wanted, name: str) -> list[bytes]:
    return wanted.keep((SCRAPED / f"{name}.txt").read_bytes().split(b"\n"))


@pytest.mark.parametrize("component", [APISERVER, SCHEDULER])
def test_a_second_answer_is_read_as_if_it_were_the_first(component: str) -> None:
    name = component.removeprefix("kube-")
    wanted, fresh = Wanted(FAMILIES[component]), Wanted(FAMILIES[component])
    first = wanted.read(kept(wanted, f"{name}-1"))
    second = wanted.read(kept(wanted, f"{name}-2"))
    assert second.values or second.buckets
    assert second == fresh.read(kept(fresh, f"{name}-2"))
    assert second != first


def test_series_that_are_of_no_use_stay_out_the_second_time_too() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    line = b'apiserver_longrunning_requests{resource="pods",verb="LOG"} %d'
    for count in (3, 4):
        assert wanted.read(wanted.keep([line % count])) == Exposition()


def test_a_time_behind_the_value_is_not_the_value() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    for line in (
        b"process_cpu_seconds_total %d 1764000000",
        b'apiserver_resource_objects{resource="nodes"} %d 1764000000',
    ):
        for count in (7, 8):
            assert [*wanted.read(wanted.keep([line % count])).values.values()] == [count]


def test_what_is_no_number_is_refused_the_second_time_too() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    wanted.read([b"process_cpu_seconds_total 7"])
    with pytest.raises(ValueError, match="seven"):
        wanted.read([b"process_cpu_seconds_total seven"])


def test_the_queues_of_nodes_are_those_of_their_levels_and_schemas() -> None:
    wanted = Wanted(FAMILIES[APISERVER])
    lines = [b"process_cpu_seconds_total 7"]
    assert node_queues(wanted.read(lines)) == (0.0, 0.0)
    family = b"apiserver_flowcontrol_request_wait_duration_seconds_bucket"
    for level, counts in ((b"system", (5, 5)), (b"node-high", (5, 15)), (b"catch-all", (0, 900))):
        for bound, count in zip((b"1", b"2", b"+Inf"), (*counts, counts[-1]), strict=True):
            labels = (family, bound, level, count)
            lines.append(b'%b{execute="true",le="%b",priority_level="%b"} %d' % labels)
    family = b"apiserver_flowcontrol_rejected_requests_total"
    for schema, count in ((b"system-nodes", 3), (b"system-node-high", 4), (b"catch-all", 90)):
        for reason in (b"queue-full", b"time-out"):
            labels = (family, schema, reason, count)
            lines.append(b'%b{flow_schema="%b",reason="%b"} %d' % labels)
    assert node_queues(wanted.read(wanted.keep(lines))) == (1.8, 14.0)
