"""Evented PLEG: what ends is seen at once, not at the next relist."""

from world.pod_world import model_of
from world.simulation import Simulation

pytest_plugins = ("sim_encodings",)

PODS = 12


def latencies(*, evented: bool) -> list[float]:
    """Return how long after the end of its container each pod's last phase was sent."""
    gates = {"featureGates": {"EventedPLEG": evented}}
    sim = Simulation(seed=3, model=model_of(kubeletConfiguration=gates))
    sim.run_for(seconds=30)
    for index in range(PODS):
        duration = f"{5 + index * 3.17:.2f}"
        sim.create_pod(f"pod-{index}", command=["sleep", duration], restartPolicy="Never")
    sim.run_for(seconds=90)
    found = []
    for index in range(PODS):
        pod = sim.server.get("pods", f"pod-{index}", "default")
        assert pod["status"]["phase"] == "Succeeded"
        patches = sim.calls("n-0", "PATCH", f"/pods/pod-{index}/status")
        running, ended = patches[-3:-1] if len(patches) > 3 else patches[-2:]
        found.append((ended.t_ns - running.t_ns) / 1e9 - (5 + index * 3.17))
    return found


def test_an_end_is_seen_at_once() -> None:
    generic, evented = latencies(evented=False), latencies(evented=True)
    assert max(evented) < 0.1
    assert max(generic) > 0.5
