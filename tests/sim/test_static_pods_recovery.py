"""Static pods through trouble: whatever happens, each node ends with the mirrors it should have."""

import pytest
import yaml
from world.pod_world import model_of
from world.sim_faults import ApiServerAnswers, ConnectionsDropped, ConnectionsRefused
from world.simulation import Simulation, seeded

from fleet.clock import Draws
from fleet.host.static_pods import parse_manifest
from fleet.k8s.static_pods import StaticManifest

pytest_plugins = ("sim_encodings",)

NODES = 4
NAMES = ("agent", "proxy")
FAULTS = (
    ApiServerAnswers(503),
    ApiServerAnswers(500, 1),
    ConnectionsDropped(),
    ConnectionsRefused(),
)
SETTLED_S = 150  # a mirror that was refused is tried again after 60 to 90 s
HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"


def put(sim: Simulation, versions: dict[str, int]) -> None:
    """Let the directory hold these pods, each with an image of some version; 0 is no pod."""
    found: list[StaticManifest] = []
    for name, version in versions.items():
        if version:
            container = {"name": "c", "image": f"{name}:{version}"}
            pod = {
                "kind": "Pod",
                "metadata": {"name": name},
                "spec": {"hostNetwork": True, "containers": [container]},
            }
            found.append(parse_manifest(yaml.safe_dump(pod).encode(), f"/m/{name}.yaml"))
    sim.env.static = tuple(found)
    sim.reactor.static_pods_changed(sim.env)


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@seeded(6)
def test_mirrors_converge_after_trouble(seed: int, *, light: bool) -> None:
    configuration = {"staticPodPath": "/m", "fileCheckFrequency": "2s"}
    model = model_of(kubeletConfiguration=configuration)
    sim = Simulation(nodes=NODES, seed=seed, light=light, model=model)
    draws = Draws(seed)
    versions = dict.fromkeys(NAMES, 1)
    put(sim, versions)
    sim.run_for(seconds=20)
    for step in range(8):
        name = NAMES[draws.bits(1, 1, step) % len(NAMES)]
        versions[name] = draws.bits(1, 2, step) % 4
        sim.inject(FAULTS[draws.bits(1, 3, step) % len(FAULTS)], seconds=5)
        put(sim, versions)
        sim.run_for(seconds=6 + draws.uniform(1, 4, step) * 10)
        victim = f"{name}-n-{draws.bits(1, 5, step) % NODES}"
        if sim.server.find("pods", victim, "default") is not None:
            sim.server.delete_pod(victim)
    sim.run_for(seconds=SETTLED_S)
    wanted = {
        f"{name}-{node}" for name, version in versions.items() if version for node in sim.names
    }
    pods = {str(pod["metadata"]["name"]): pod for pod in sim.server.all("pods")}
    assert set(pods) == wanted
    for name, pod in pods.items():
        notes = pod["metadata"]["annotations"]
        assert notes[HASH] == notes[MIRROR]
        version = versions[name.partition("-")[0]]
        assert pod["spec"]["containers"][0]["image"].endswith(f":{version}")
        assert pod["status"]["phase"] == "Running", name
        [container] = pod["status"]["containerStatuses"]
        assert container["ready"]
        assert container["image"].endswith(f":{version}")


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_a_pod_that_comes_back_reports_to_the_mirror_that_stayed(*, light: bool) -> None:
    """A manifest is changed, and changed back, while the server does not delete the mirror."""
    model = model_of(kubeletConfiguration={"staticPodPath": "/m", "fileCheckFrequency": "2s"})
    sim = Simulation(seed=1, light=light, model=model)
    put(sim, {"agent": 1})
    sim.run_for(seconds=30)
    before = sim.server.get("pods", "agent-n-0", "default")
    sim.inject(ApiServerAnswers(503), seconds=60)
    put(sim, {"agent": 2})
    sim.run_for(seconds=50)
    put(sim, {"agent": 1})
    sim.run_for(seconds=SETTLED_S)
    after = sim.server.get("pods", "agent-n-0", "default")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    [old], [new] = (each["status"]["containerStatuses"] for each in (before, after))
    assert new["state"]["running"]["startedAt"] > old["state"]["running"]["startedAt"]
