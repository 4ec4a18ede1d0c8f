"""`make parity`: what a fleet node asks of the API server, against Kubernetes' own kubelet code."""

import asyncio
import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from audit_trace import Request, trace
from comparison import compare, judge, read_listed
from e2e_world import FLEET, WAIT_MAX_S, World
from recording import NODES, POLICY, Recording, record

from fleet.controlplane import attach
from fleet.controlplane.build import build_kubemark

pytest_plugins = ("e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LISTED = read_listed(Path(__file__).with_name("differences.toml"))
Trace = list[Request]


@pytest.fixture(scope="session")
def recording(environment: Path) -> Iterator[Recording]:
    """Play the script on a control plane whose audit log has the bodies of requests."""
    kubemark = asyncio.run(build_kubemark())
    root = environment / "parity"
    root.mkdir()
    policy, audit_log = root / "policy.yaml", root / "audit.jsonl"
    policy.write_text(POLICY)
    log = (f"--audit-log={audit_log}", f"--apiserver-flag=audit-policy-file={policy}")
    up = ("controlplane", "up", f"--dir={root / 'controlplane'}", *log)
    subprocess.run((*FLEET, *up), check=True, timeout=WAIT_MAX_S, stdout=subprocess.DEVNULL)
    info = attach()
    assert info is not None
    try:
        yield record(World(root, info, audit_log), kubemark)
    finally:
        down = (*FLEET, "controlplane", "down")
        subprocess.run(down, check=True, timeout=WAIT_MAX_S, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def traces(recording: Recording) -> tuple[Trace, Trace]:
    hollow, fleet = (
        trace(recording.events, node, namespace, recording.void)
        for namespace, node in NODES.items()
    )
    return hollow, fleet


def test_every_difference_is_listed(recording: Recording, traces: tuple[Trace, Trace]) -> None:
    faults = judge(compare(*traces, recording.steps), LISTED)
    assert not faults, "\n".join(faults)


def test_starts_and_stops_of_pods_cost_as_many_requests(traces: tuple[Trace, Trace]) -> None:
    writes = [
        sum(is_write(each) for each in some if each.name != "probed")  # which is listed
        for some in traces
    ]
    assert writes[0] == writes[1] > 0


def is_write(request: Request) -> bool:
    return request.resource.startswith("pods") and request.verb in ("patch", "delete")


def without(verb: str, resource: str) -> Callable[[Trace], Trace]:
    """Drop the last request of a kind."""

    def change(requests: Trace) -> Trace:
        kind = (verb, resource)
        last = max(i for i, each in enumerate(requests) if (each.verb, each.resource) == kind)
        return requests[:last] + requests[last + 1 :]

    return change


def without_parameter(requests: Trace) -> Trace:
    at = next(i for i, each in enumerate(requests) if each.verb == "update")
    changed = dataclasses.replace(requests[at], query=requests[at].query[1:])
    return [*requests[:at], changed, *requests[at + 1 :]]


def with_a_late_renewal(requests: Trace) -> Trace:
    at = max(i for i, each in enumerate(requests) if each.verb == "update")
    late = dataclasses.replace(requests[at], at_s=requests[at].at_s + 2)
    return [*requests[:at], late, *requests[at + 1 :]]


@pytest.mark.parametrize(
    "change",
    [
        without("get", "csinodes"),
        without("patch", "pods/status"),
        without("delete", "pods"),
        without("watch", "runtimeclasses"),
        without("create", "serviceaccounts/token"),
        without_parameter,
        with_a_late_renewal,
    ],
)
def test_a_request_less_or_late_is_found(
    change: Callable[[Trace], Trace], recording: Recording, traces: tuple[Trace, Trace]
) -> None:
    hollow, fleet = traces
    before = judge(compare(hollow, fleet, recording.steps), LISTED)
    after = judge(compare(hollow, change(fleet), recording.steps), LISTED)
    assert set(after) - set(before)
