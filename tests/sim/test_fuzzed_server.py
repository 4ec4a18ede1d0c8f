"""An API server whose answers are mangled on their way: nothing breaks, and all is well after it.

What is mangled may still be valid, and say what is not so: a pod that is not there, or is to end.
A kubelet believes it. So pods of that time may have ended; those that come after it may not.
"""

from functools import partial

import pytest
from world.sim_faults import AnswersMangled, VersionsExpired
from world.simulation import Simulation, seeded

NODES = 4
PODS = 8
MANGLED_S = 180
CONVERGE_S = 400
"""After a timeout of calls, back-offs of mounts and reflectors, and a resync."""

pytest_plugins = ("sim_encodings",)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(2)
def test_a_fleet_survives_mangled_answers(seed: int, *, light: bool) -> None:
    sim = Simulation(nodes=NODES, seed=seed, light=light)
    sim.run_for(seconds=20)
    fault = AnswersMangled(seed, 0.4)
    sim.inject(fault, seconds=MANGLED_S)
    for number in range(PODS):
        name, node = f"p-{number}", f"n-{number % NODES}"
        sim.after(number * 10, partial(create, sim, name, node))
        if number % 2:
            sim.after(number * 10 + 30, partial(delete, sim, name))
    sim.run_for(seconds=MANGLED_S + 1)
    assert fault.count > 50
    sim.inject(VersionsExpired())
    sim.run_for(seconds=CONVERGE_S)
    assert sim.reactor.counts.quarantined == 0
    assert sim.ready() == NODES
    begin_s = sim.now_s
    after = [f"after-{number}" for number in range(NODES)]
    for name, node in zip(after, sim.names, strict=True):
        create(sim, name, node)
    sim.run_for(seconds=60)
    assert {sim.phase(name) for name in after} == {"Running"}
    sent = sim.calls(since_s=begin_s)
    for name in sim.names:
        assert 5 <= sum(each.verb == "PUT" and each.node == name for each in sent) <= 7
    for name in after:
        delete(sim, name)
    sim.run_for(seconds=60)
    assert {sim.phase(name) for name in after} == {""}


def create(sim: Simulation, name: str, node: str) -> None:
    amounts = {"cpu": "100m", "memory": "64Mi"}
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 5}
    container = {
        "name": "c",
        "image": "nginx:1",
        "resources": {"requests": amounts, "limits": amounts},
        "readinessProbe": probe,
        "livenessProbe": probe,
    }
    sim.create_pod(name, node, containers=[container])


def delete(sim: Simulation, name: str) -> None:
    if sim.phase(name):
        sim.server.delete_pod(name, grace_s=1)
