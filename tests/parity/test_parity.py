"""`make parity`: what a fleet node asks of the API server, against Kubernetes' own kubelet code."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from support.go_program import build_kubemark
from support.listed_differences import judge, too_often

from parity.audit_trace import Request, trace
from parity.comparison import GET, compare, costs, uneven
from parity.differences import LIMITS
from parity.parity_script import LISTED, NODES, OUTAGE
from parity.recording import Recording, record

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

START = {"patch pods/status": 3, "create serviceaccounts/token": 1, "watch configmaps": 1}
STOP = {"patch pods/status": 2, "delete pods": 1}
"""Of a pod with one container, GETs apart; docs/explain/fidelity.md names them too."""
Trace = list[Request]


@pytest.fixture(scope="module")
def recording(environment: Path) -> Recording:
    """Play the script, once for all tests."""
    kubemark = asyncio.run(build_kubemark())
    root = environment / "parity"
    root.mkdir()
    return record(root, kubemark)


@pytest.fixture(scope="module")
def traces(recording: Recording) -> tuple[Trace, Trace]:
    hollow, fleet = (
        trace(recording.events, node, namespace, recording.void, recording.noted)
        for namespace, node in NODES.items()
    )
    return hollow, fleet


def faults(recording: Recording, hollow: Trace, fleet: Trace) -> list[str]:
    """Return what is not listed, and what is listed for nothing."""
    steps = recording.steps
    found = compare(hollow, fleet, list(steps.values()), steps[OUTAGE])
    return judge([*found, *uneven(hollow, fleet, steps)], LISTED)


def test_every_difference_is_listed(recording: Recording, traces: tuple[Trace, Trace]) -> None:
    found = faults(recording, *traces)
    assert not found, "\n".join(found)


def test_scenes_are_seldom_replayed(
    recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        counts = ", ".join(f"{name} {count}" for name, count in recording.replays.items())
        print(f"\nreplays of scenes: {counts}")
    assert not too_often(recording.replays, LIMITS)


def test_starts_and_stops_of_pods_cost_as_many_requests(
    recording: Recording, traces: tuple[Trace, Trace]
) -> None:
    found = costs(traces[0], recording.steps)
    for step, expected in (("plain starts", START), ("plain ends", STOP)):
        assert {kind: count for kind, count in found[step].items() if kind != GET} == expected


def without(verb: str, resource: str) -> Callable[[Trace], Trace]:
    """Drop the last request of a kind."""

    def change(requests: Trace) -> Trace:
        kind = (verb, resource)
        last = max(i for i, each in enumerate(requests) if (each.verb, each.resource) == kind)
        return requests[:last] + requests[last + 1 :]

    return change


def without_a_read_of_a_pod(requests: Trace) -> Trace:
    """Drop what was read before the last status patch, as often as it was."""
    patch = max(i for i, each in enumerate(requests) if each.resource == "pods/status")
    pod = requests[patch].name
    before = [i for i in range(patch) if requests[i].name == pod]
    dropped = set()
    while before and requests[before[-1]].verb == "get":
        dropped.add(before.pop())
    assert dropped
    return [each for i, each in enumerate(requests) if i not in dropped]


def without_parameter(requests: Trace) -> Trace:
    at = next(i for i, each in enumerate(requests) if each.verb == "update")
    changed = dataclasses.replace(requests[at], query=requests[at].query[1:])
    return [*requests[:at], changed, *requests[at + 1 :]]


def with_a_late_renewal(requests: Trace) -> Trace:
    """Delay one long before the outage, across which renewals are not compared."""
    at = [i for i, each in enumerate(requests) if each.verb == "update"][1]
    late = dataclasses.replace(requests[at], at_s=requests[at].at_s + 2)
    return [*requests[:at], late, *requests[at + 1 :]]


def with_another_content_type(requests: Trace) -> Trace:
    at = max(i for i, each in enumerate(requests) if each.verb == "patch")
    other = tuple((name, "application/cbor") for name, _ in requests[at].headers)
    changed = dataclasses.replace(requests[at], headers=other)
    return [*requests[:at], changed, *requests[at + 1 :]]


def with_a_late_patch(requests: Trace) -> Trace:
    at = max(i for i, each in enumerate(requests) if each.resource == "pods/status")
    late = dataclasses.replace(requests[at], at_s=requests[at].at_s + 4)
    return [*requests[:at], late, *requests[at + 1 :]]


@pytest.mark.parametrize(
    "change",
    [
        without("get", "csinodes"),
        without_a_read_of_a_pod,
        without("patch", "pods/status"),
        without("delete", "pods"),
        without("watch", "runtimeclasses"),
        without("create", "serviceaccounts/token"),
        without_parameter,
        with_a_late_renewal,
        with_a_late_patch,
        with_another_content_type,
    ],
)
def test_a_request_less_or_late_is_found(
    change: Callable[[Trace], Trace], recording: Recording, traces: tuple[Trace, Trace]
) -> None:
    hollow, fleet = traces
    before = faults(recording, hollow, fleet)
    after = faults(recording, hollow, change(fleet))
    assert set(after) - set(before)
