"""Pods that come and go while runtimes are out of order: afterwards all is as it should be."""

import pytest
from world.pod_world import model_of
from world.sim_faults import ConnectionsDropped, VersionsExpired
from world.simulation import Simulation, seeded

from fleet.clock import Draws
from fleet.profile.machine import OutageKind

pytest_plugins = ("sim_encodings",)

NODES = 4
TROUBLE_S = 320
SETTLED_S = 150  # a paused loop goes on within 5 s; a full pass of statuses and a resync follow
KINDS = tuple(OutageKind)


def outages(draws: Draws) -> list[dict[str, object]]:
    """Return six outages that are over after five minutes; one may be long enough for the PLEG."""
    found: list[dict[str, object]] = []
    for index in range(6):
        kind = KINDS[draws.bits(2, 1, index) % len(KINDS)]
        start_s = draws.uniform(2, 2, index) * 250
        longest_s = 45 if index else 220
        duration_s = min(5 + draws.uniform(2, 3, index) * longest_s, 300 - start_s)
        found.append(
            {
                "kind": kind.value,
                "from": f"{start_s:.2f}s",
                "for": f"{duration_s:.2f}s",
                "share": 0.25 + draws.uniform(2, 4, index) * 0.75,
            }
        )
    return found


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(5)
def test_nodes_and_pods_recover_from_outages_of_their_runtimes(seed: int, *, light: bool) -> None:
    draws = Draws(seed)
    model = model_of(runtime={"networkReadyDelay": "7s", "outages": outages(draws)})
    sim = Simulation(nodes=NODES, seed=seed, light=light, model=model)
    alive: dict[str, str] = {}
    jobs = []
    step = 0
    while sim.now_s < TROUBLE_S:
        step += 1
        name, node = f"pod-{step}", f"n-{draws.bits(3, 1, step) % NODES}"
        if draws.uniform(3, 2, step) < 0.3:
            sim.create_pod(name, node, command=["sleep", "7"], restartPolicy="Never")
            jobs.append(name)
        else:
            alive[name] = sim.create_pod(name, node)
        if alive and draws.uniform(3, 3, step) < 0.3:
            sim.server.delete_pod(next(iter(alive)))
            del alive[next(iter(alive))]
        if draws.uniform(3, 4, step) < 0.1:
            sim.inject(ConnectionsDropped() if step % 2 else VersionsExpired())
        sim.run_for(seconds=1 + draws.uniform(3, 5, step) * 15)
    sim.run_for(seconds=SETTLED_S)
    assert sim.ready() == NODES
    assert {name: sim.phase(name) for name in alive} == dict.fromkeys(alive, "Running")
    assert {name: sim.phase(name) for name in jobs} == dict.fromkeys(jobs, "Succeeded")
    left = {pod["metadata"]["name"] for pod in sim.server.all("pods")}
    assert left == {*alive, *jobs}
    for name in alive:
        [container] = sim.status(name)["containerStatuses"]
        assert (container["restartCount"], container["ready"]) == (0, True)
