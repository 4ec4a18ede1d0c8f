"""Both nodes run out of memory: whom their kubelets evict, in which words, how those pods end."""

import asyncio
import contextlib
import re
from pathlib import Path

import pytest
from e2e.e2e_world import Json, condition, eventually
from support.go_program import build_kubelet

from oracle.both_nodes import NODES, PAUSE, REAL, BothNodes, Told, both_nodes
from oracle.real_kubelet import why_not

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
CONFIGURATION = {
    "evictionHard": {"memory.available": "99%"},
    "evictionPressureTransitionPeriod": "10m",
}
"""More than either machine ever has, and less than its capacity: a kubelet would not start."""
SPARED = "critical"
TRIES = 3
"""A kubelet that asks for a pod, and gets it when its containers have just ended, reports Failed of
what it knew before, and may not take it back. Source: status_manager.go, syncPod: the status is
taken before the GET, whether anything runs is looked at after it.
"""
SETTLED_S = 30.0
"""Within this the last status is sent, whatever a kubelet was busy with."""
NUMBER = re.compile(r"available: \d+(Ki)?")
"""What a machine has is its own."""


def pod(name: str, exit_code: int, usage: str, **container: Json) -> Json:
    notes = {
        "fleet.emulator/stop-exit-code": str(exit_code),
        "fleet.emulator/stop-time": "500ms",  # so that this is seldom met; the grace is a second
        "fleet.emulator/memory-usage": usage,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "containers": [{"name": "c", "image": PAUSE, **container}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


ASKS = {"resources": {"requests": {"memory": "20Mi"}}}
PODS = [
    pod("over", 143, "60Mi", **ASKS),
    pod("over-and-done", 0, "50Mi", **ASKS),
    pod("within", 137, "10Mi", **ASKS),
    pod("within-and-done", 0, "5Mi", **ASKS),
]


def ends(both: BothNodes) -> dict[str, dict[str, list[object]]]:
    """Return how the pods of each node are, with the events about them."""
    found: dict[str, dict[str, list[object]]] = {}
    for namespace, node in NODES.items():
        events = [
            (each["type"], each["reason"], NUMBER.sub("available: N", each["message"]))
            for each in both.world.items("events", "--namespace", namespace)
            if each["reason"] == "Evicted"
        ]
        found[node] = {"events": list[object](sorted(events))}
        for each in both.world.items("pods", "--namespace", namespace):
            status = each["status"]
            message = NUMBER.sub("available: N", status.get("message", ""))
            reasons = {
                one["type"]: (one["status"], one.get("reason"))
                for one in status.get("conditions", ())
            }
            found[node][each["metadata"]["name"]] = [
                status["phase"],
                status.get("reason"),
                message,
                reasons,
            ]
    return found


def are_alike(both: BothNodes) -> bool:
    real, own = ends(both).values()
    return own == real and real["over-and-done"][:2] == ["Succeeded", None]


def test_who_is_evicted_and_how_they_end(environment: Path) -> None:
    kubelet = asyncio.run(build_kubelet())
    with both_nodes(environment / "pressure", kubelet, Told(kubelet=CONFIGURATION)) as both:
        eventually(
            lambda: all(
                condition(both.world.get("node", node), "MemoryPressure") == "True"
                for node in NODES.values()
            ),
            "both nodes are under pressure",
        )
        critical = pod(SPARED, 0, "1Mi")
        critical["spec"]["priorityClassName"] = "system-node-critical"
        both.apply(critical)
        assert any(evicts_alike(both) for _ in range(TRIES)), ends(both)
        real = ends(both)[REAL]
        assert real[SPARED][0] == "Running"
        assert real["over"][:2] == ["Failed", "Evicted"]


def evicts_alike(both: BothNodes) -> bool:
    """Run the pods anew and see them evicted; return whether they end alike on both nodes."""
    for namespace in NODES:
        names = [each["metadata"]["name"] for each in PODS]
        both.world.kubectl("-n", namespace, "delete", "pod", "--ignore-not-found", *names)
    both.apply(*PODS)

    def all_ended() -> bool:
        pods = [pod for node in ends(both).values() for pod in node.items()]
        phases = [each[0] for name, each in pods if name not in {"events", SPARED}]
        return len(phases) == 2 * len(PODS) and set(phases) <= {"Succeeded", "Failed"}

    eventually(all_ended, "all but one are evicted", seen=lambda: ends(both))
    with contextlib.suppress(AssertionError):
        eventually(lambda: are_alike(both), "they end alike", limit_s=SETTLED_S)
    return are_alike(both)
