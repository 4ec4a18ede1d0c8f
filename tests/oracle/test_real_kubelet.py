"""`make oracle`: a real kubelet lives in fleet's simulated world beside a node of fleet."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.e2e_world import Json, condition, eventually
from support.go_program import build_kubelet
from support.guard import marked_processes

from oracle.both_nodes import OWN, PAUSE, REAL, BothNodes, Told, both_nodes
from oracle.real_kubelet import SYSCTLS, why_not

pytest_plugins = ("e2e.e2e_fixtures",)
REASON = why_not()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(REASON), reason=f"{REASON}; what remains is `make oracle-recorded`, as was recorded"
    ),
]
STEPS_OF_A_POD = ["Pulled", "Created", "Started"]
CRASHING = {"fleet.emulator/run-time": "1s", "fleet.emulator/exit-code": "3"}
SLOW_TO_STOP = {"fleet.emulator/stop-time": "never"}


@pytest.fixture(scope="module")
def both(environment: Path) -> Iterator[BothNodes]:
    kernel = kernel_parameters()
    with both_nodes(environment / "real-kubelet", asyncio.run(build_kubelet()), Told()) as found:
        yield found
    assert kernel_parameters() == kernel  # a kubelet sets them; not those of this machine


def kernel_parameters() -> list[str]:
    return [Path("/proc/sys", name).read_text() for name in SYSCTLS]


def pod(name: str, annotations: dict[str, str] | None = None, **spec: object) -> Json:
    container: Json = {"name": "c", "image": PAUSE}
    metadata = {"name": name, "annotations": annotations or {}}
    body = {"containers": [container], "terminationGracePeriodSeconds": 2, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def reasons(both: BothNodes, name: str) -> dict[str, list[str]]:
    """Return the reasons of the events about a pod, by node, in their order."""
    found = {}
    for node, requests in both.audit().items():
        bodies = [
            each["requestObject"]
            for each in requests
            if (each["objectRef"]["resource"], each["verb"]) == ("events", "create")
        ]
        found[node] = [each["reason"] for each in bodies if each["involvedObject"]["name"] == name]
    return found


def statuses(both: BothNodes, name: str) -> dict[str, Json]:
    return {node: found["status"] for node, found in both.get("pod", name).items()}


def test_a_pod_starts_and_ends_with_the_same_events(both: BothNodes) -> None:
    both.apply(pod("plain"))
    eventually(
        lambda: all(
            condition(found, "Ready") == "True" for found in both.get("pod", "plain").values()
        ),
        "both pods are Ready",
    )
    real, own = (statuses(both, "plain")[node] for node in (REAL, OWN))
    for key in ("image", "imageID", "user", "ready", "started", "restartCount"):
        assert real["containerStatuses"][0][key] == own["containerStatuses"][0][key], key
    assert real["podIP"].startswith("127.")
    both.kubectl("delete", "pod", "plain")
    events = [*STEPS_OF_A_POD, "Killing"]
    expected = {REAL: events, OWN: events}
    eventually(
        lambda: reasons(both, "plain") == expected, "events", seen=lambda: reasons(both, "plain")
    )


def test_a_container_ends_as_its_behaviour_says(both: BothNodes) -> None:
    both.apply(pod("crashes", CRASHING, restartPolicy="Never"))
    eventually(
        lambda: all(each.get("phase") == "Failed" for each in statuses(both, "crashes").values()),
        "both pods have failed",
    )
    ends = [
        each["containerStatuses"][0]["state"]["terminated"]
        for each in statuses(both, "crashes").values()
    ]
    assert [(each["exitCode"], each["reason"]) for each in ends] == [(3, "Error")] * 2


def test_a_container_that_ignores_sigterm_is_killed(both: BothNodes) -> None:
    both.apply(pod("stays", SLOW_TO_STOP))
    eventually(
        lambda: all(each.get("phase") == "Running" for each in statuses(both, "stays").values()),
        "both pods run",
    )
    both.kubectl("delete", "pod", "stays")  # it returns when they are gone
    for node, requests in both.audit().items():
        codes = {
            status["state"]["terminated"]["exitCode"]
            for each in requests
            if each["objectRef"].get("name") == "stays" and each["verb"] == "patch"
            for status in each["requestObject"].get("status", {}).get("containerStatuses", ())
            if "terminated" in status.get("state", {})
        }
        assert codes == {137}, node


def test_a_kubelet_that_is_killed_finds_its_pods_again(both: BothNodes) -> None:
    both.apply(pod("outlives"))
    eventually(
        lambda: all(
            condition(found, "Ready") == "True" for found in both.get("pod", "outlives").values()
        ),
        "both pods are Ready",
    )
    before = statuses(both, "outlives")[REAL]["containerStatuses"]
    both.real.kill_kubelet()
    both.real.start_kubelet()
    eventually(both.real.pods, "the kubelet has read its pods")
    assert statuses(both, "outlives")[REAL]["containerStatuses"] == before


def test_all_processes_are_marked(both: BothNodes, environment: Path) -> None:
    """So nothing outlives the tests: see guard.py."""
    commands = [" ".join(each.cmdline()) for each in marked_processes(str(environment))]
    for part in ("--hostname-override=real-00000", "-m oracle.cri", "sleep infinity"):
        assert any(part in each for each in commands), (part, commands)
    both.real.assert_runs()
