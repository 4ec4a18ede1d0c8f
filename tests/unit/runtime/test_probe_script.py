"""Exec probes that look at files which the container's own script makes and removes."""

import pytest

from fleet.profile.container_behavior import ALWAYS_GOOD
from fleet.runtime.probe_script import PHASES_MAX, behavior_of_script

S = 1_000_000_000
EXAMPLE = "touch /tmp/healthy; sleep 30; rm -f /tmp/healthy; sleep 600"
"""Of the page "Configure Liveness, Readiness and Startup Probes" of the documentation."""


def phases(probe: str, script: str) -> list[tuple[float, str, str]]:
    found = behavior_of_script(tuple(probe.split(" ", 2)), ("/bin/sh", "-c", script))
    return [(each.after_ns / S, each.answer.value, each.output) for each in found.phases]


def test_the_example_of_the_documentation() -> None:
    missing = "cat: can't open '/tmp/healthy': No such file or directory\n"
    assert phases("cat /tmp/healthy", EXAMPLE) == [(0, "Success", ""), (30, "Failure", missing)]


@pytest.mark.parametrize(
    ("probe", "script", "expected"),
    [
        ("test -f /tmp/x", "sleep 5; touch /tmp/x; nginx", [(0, "Failure"), (5, "Success")]),
        ("sh -c [ ! -e /tmp/x ]", "sleep 5; echo a > /tmp/x", [(0, "Success"), (5, "Failure")]),
        ("test -f /tmp/../tmp/x", "touch /tmp/x; exit 0", [(0, "Success")]),
        ("cat /tmp/other", EXAMPLE, [(0, "Success")]),
        ("pg_isready", EXAMPLE, [(0, "Success")]),
        ("false", EXAMPLE, [(0, "Failure")]),
        ("cat /data/x", "nginx", [(0, "Success")]),
    ],
)
def test_files_come_and_go(probe: str, script: str, expected: list[tuple[int, str]]) -> None:
    assert [each[:2] for each in phases(probe, script)] == expected


def test_what_is_unknown_costs_nothing() -> None:
    assert behavior_of_script(("pg_isready",), ("postgres",)) is ALWAYS_GOOD
    assert behavior_of_script(("cat", "/x"), ()) is ALWAYS_GOOD


def test_a_script_that_flaps_is_followed_so_far() -> None:
    flaps = "while true; do touch /tmp/x; sleep 1; rm /tmp/x; sleep 1; done"
    found = behavior_of_script(("cat", "/tmp/x"), ("sh", "-c", flaps))
    assert len(found.phases) == PHASES_MAX
