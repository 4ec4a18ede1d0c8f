"""A fleet at an API server whose frames are changed for a while, and what must hold after it.

What is changed may still be valid, and say what is not so: a pod that is not there, or is to end.
A kubelet believes it. So pods of that time may have ended; those that come after it may not.
"""

from collections import Counter
from functools import partial
from itertools import count

from world.mangled_link import FramesMangled
from world.sim_faults import VersionsExpired
from world.simulation import Simulation

NODES = 4
MANGLED_S = 180
CONVERGE_S = 400
"""After a timeout of calls, back-offs of mounts and reflectors, and a resync."""
POD_EVERY_S = 5
POD_S = 30


def play(
    seed: int,
    *,
    light: bool,
    share: float = 0.2,
    encoding: str | None = None,
    mangled_s: int = MANGLED_S,
) -> Counter[str]:
    """Play a story; return how many frames were changed, by how. Raises AssertionError."""
    sim = Simulation(nodes=NODES, seed=seed, light=light, encoding=encoding).run_for(seconds=20)
    fault = FramesMangled(seed, share)
    sim.inject(fault, seconds=mangled_s)
    for number, at_s in zip(count(), range(0, mangled_s - POD_S, POD_EVERY_S), strict=False):
        name, node = f"p-{number}", f"n-{number % NODES}"
        sim.after(at_s, partial(create, sim, name, node))
        if number % NODES:
            sim.after(at_s + POD_S, partial(delete, sim, name))
        if number % NODES == 0:
            sim.after(at_s, partial(restart, sim))
    sim.run_for(seconds=mangled_s + 1)
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
    return fault.mangler.counts


def restart(sim: Simulation) -> None:
    sim.go_wrong(type="KubeletRestart")


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
