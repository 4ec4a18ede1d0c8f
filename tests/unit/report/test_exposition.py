"""Reading what components tell: each series is parsed once, and read again by its value alone."""

from pathlib import Path

import pytest

from fleet.controlplane.options import APISERVER, SCHEDULER
from fleet.report.control_plane import FAMILIES, Exposition, Wanted

SCRAPED = Path(__file__).parent / "scraped"


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
