"""Pods of random usage on small nodes: trouble, then calm. Held is what must hold in any order."""

import json

import pytest
from world.pod_world import model_of
from world.simulation import Simulation, pod_json, seeded

from fleet.clock import Draws
from fleet.k8s.effects import Outbox
from fleet.kubelet.events import EventRecorder
from fleet.kubelet.pods.resource_monitor import is_always_needed
from fleet.kubelet.turn import Turn

pytest_plugins = ("sim_encodings",)

NODES = 3
PODS = 30
CRITICAL = 2_000_000_000
GROUND = {
    "template": {"status": {"capacity": {"memory": "8Gi", "ephemeral-storage": "40Gi"}}},
    "kubeletConfiguration": {
        "maxPods": 40,
        "evictionSoft": {"memory.available": "1Gi"},
        "evictionSoftGracePeriod": {"memory.available": "30s"},
        "evictionMinimumReclaim": {"memory.available": "200Mi"},
        "evictionPressureTransitionPeriod": "1m",
    },
}


def curve(draws: Draws, at: int, stream: int, largest_mi: int) -> str:
    """Return a random curve of up to so many MiB."""

    def number(salt: int, limit: int) -> int:
        return int(draws.uniform(at, stream + salt, 0) * limit)

    low, high = f"{number(1, largest_mi // 4)}Mi", f"{number(2, largest_mi)}Mi"
    span = f"{20 + number(3, 200)}s"
    shapes: list[dict[str, object]] = [
        {"curve": "Constant", "value": high},
        {"curve": "Ramp", "from": low, "to": high, "duration": span},
        {"curve": "Step", "from": low, "to": high, "after": span},
        {"curve": "Sawtooth", "from": low, "to": high, "period": span},
    ]
    return json.dumps(shapes[number(4, len(shapes))])


def create(sim: Simulation, at: int) -> None:
    draws = Draws(sim.seed * 1000)
    notes = {
        "fleet.emulator/stop-exit-code": "143",
        "fleet.emulator/memory-usage": curve(draws, at, 10, 2500),
        "fleet.emulator/ephemeral-storage-usage": curve(draws, at, 20, 9000),
    }
    pod = pod_json(f"pod-{at}", f"n-{at % NODES}", annotations=notes)
    kind = int(draws.uniform(at, 30, 0) * 4)
    [container] = pod["spec"]["containers"]
    if kind == 1:
        container["resources"] = {"requests": {"memory": "500Mi"}}
    elif kind == 2:
        container["resources"] = {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}
    if at % 7 == 0:
        pod["spec"]["priority"] = CRITICAL
    assert sim.server.create(("pods", "default", f"pod-{at}"), pod) is not None


def hold(sim: Simulation) -> int:
    """Check each node: nobody uses memory that is not there, and the critical are spared.

    Returns how many nodes and critical pods there were to look at.
    """
    looked_at = 0
    for entry in sim.reactor.entries:
        assert entry.kubelet is not None
        loop = entry.kubelet.pods
        if loop is None or loop.monitor is None:
            continue
        out: Outbox = []
        now_ns = sim.clock.now_ns()
        turn = Turn(entry.kubelet.facts, sim.env, EventRecorder.silent(), now_ns, out)
        memory = loop.monitor.use(turn).memory
        assert not memory.is_over(now_ns), (sim.now_s, memory)
        looked_at += 1
    for pod in sim.server.all("pods"):
        if pod["spec"].get("priority"):
            assert pod["status"].get("reason") != "Evicted", pod["metadata"]["name"]
            looked_at += 1
    return looked_at


@pytest.mark.timeout(300)
@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(2)
def test_pressure_comes_and_goes(seed: int, *, light: bool) -> None:
    model = model_of(**GROUND)
    assert not is_always_needed(model)
    sim = Simulation(nodes=NODES, seed=seed, light=light, model=model).run_for(seconds=30)
    for at in range(PODS):
        create(sim, at)
        sim.run_for(seconds=7)
        assert hold(sim)
    for _ in range(60):
        sim.run_for(seconds=5)
        assert hold(sim) > NODES
    found = [pod["status"] for pod in sim.server.all("pods")]
    evicted = [s for s in found if s.get("message", "").startswith("The node was low on")]
    assert evicted, "no trouble, no test"
    for status in evicted:
        assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
        assert "DisruptionTarget" in [each["type"] for each in status["conditions"]]
    for at in range(PODS):
        sim.server.delete_pod(f"pod-{at}")
    sim.run_for(seconds=240)
    assert sim.server.all("pods") == []
    for name in sim.names:
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure"):
            assert sim.condition(name, kind) == "False"
    assert all(entry.kubelet.pods is None for entry in sim.reactor.entries if entry.kubelet)
    for phases in sim.server.phases.values():
        ends = [at for at, phase in enumerate(phases) if phase in {"Failed", "Succeeded"}]
        assert ends in ([], [len(phases) - 1]), phases
