"""configMapAndSecretChangeDetectionStrategy Cache and Get: reads, and nothing that is watched."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation

pytest_plugins = ("sim_encodings",)

MOUNTS = {"volumeMounts": [{"name": "cfg", "mountPath": "/cfg"}]}
CONFIG = {"name": "cfg", "configMap": {"name": "cfg"}}
CONFIG_KEY = ("configmaps", "default", "cfg")
SECRET_KEY = ("secrets", "default", "env")


def started(strategy: str, ttl_s: int | None = None) -> Simulation:
    """Start a node with a strategy, and maybe with the annotation of the TTL controller."""
    key = "configMapAndSecretChangeDetectionStrategy"
    sim = Simulation(model=model_of(kubeletConfiguration={key: strategy})).run_for(seconds=60)
    if ttl_s is not None:
        notes = {"node.alpha.kubernetes.io/ttl": str(ttl_s)}
        sim.server.update("nodes", "n-0", {"metadata": {"annotations": notes}})
        sim.run_for(seconds=1)
    return sim


def container(**fields: object) -> dict[str, object]:
    return {"name": "c", "image": "nginx:1", **fields}


def reads(sim: Simulation, resource: str, since_s: float = 0) -> list[str]:
    """Return the queries of the reads of ConfigMaps or Secrets."""
    found = sim.calls(verb="GET", path=f"/{resource}/", since_s=since_s)
    return [each.path.partition("?")[2] for each in found]


def watches(sim: Simulation) -> int:
    return sum(
        1 for each in sim.calls(verb="WATCH") if "configmaps" in each.path or "secrets" in each.path
    )


@pytest.mark.parametrize(
    ("strategy", "ttl_s", "least", "most", "query"),
    [
        ("Cache", 0, 10, 15, "resourceVersion=0"),  # at each resync, 60 to 90 s
        ("Cache", None, 10, 15, "resourceVersion=0"),  # a minute
        ("Cache", 300, 2, 3, "resourceVersion=0"),
        ("Get", 300, 10, 15, ""),
    ],
)
def test_a_running_pod_reads_its_volume_again_when_it_is_old(
    strategy: str, ttl_s: int | None, least: int, most: int, query: str
) -> None:
    sim = started(strategy, ttl_s)
    sim.server.create(CONFIG_KEY, {"data": {"a": "1"}})
    sim.create_pod("web", volumes=[CONFIG], containers=[container(**MOUNTS)])
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Running"
    assert reads(sim, "configmaps") == [""]
    since_s = sim.now_s
    sim.run_for(seconds=900)
    found = reads(sim, "configmaps", since_s)
    assert least <= len(found) <= most
    assert set(found) == {query}
    assert watches(sim) == 0
    sim.server.delete_pod("web", grace_s=1)
    sim.run_for(seconds=20)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert reads(sim, "configmaps", since_s) == []


def test_pods_share_what_one_of_them_has_read() -> None:
    sim = started("Cache", 300)
    sim.server.create(CONFIG_KEY, {"data": {"a": "1"}})
    sim.create_pod("one", volumes=[CONFIG], containers=[container(**MOUNTS)])
    sim.run_for(seconds=20)
    sim.create_pod("two", volumes=[CONFIG], containers=[container(**MOUNTS)])
    sim.run_for(seconds=20)
    assert reads(sim, "configmaps") == ["", ""]  # a pod that comes is a reason to look again
    since_s = sim.now_s
    sim.run_for(seconds=900)
    assert 2 <= len(reads(sim, "configmaps", since_s)) <= 3  # as of one


@pytest.mark.parametrize("strategy", ["Cache", "Get"])
def test_a_volume_waits_for_an_object_that_is_missing_and_misses_it_again(strategy: str) -> None:
    sim = started(strategy, 0)
    sim.create_pod("web", volumes=[CONFIG], containers=[container(**MOUNTS)])
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Pending"
    # configmaps: the API server's words; kubelets that watch have their own, of a "configmap"
    text = 'MountVolume.SetUp failed for volume "cfg" : configmaps "cfg" not found'
    assert sim.said("FailedMount").keys() == {text}
    assert 4 <= len(reads(sim, "configmaps")) <= 6  # one for each try: 0.5 s, 1 s, 2 s...
    sim.server.create(CONFIG_KEY, {"data": {"a": "1"}})
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Running"
    [before] = [each["count"] for each in sim.events() if each["message"] == text]
    sim.server.remove(CONFIG_KEY)
    sim.run_for(seconds=120)
    [after] = [each["count"] for each in sim.events() if each["message"] == text]
    assert after > before
    sim.server.create(CONFIG_KEY, {"data": {"a": "2"}})
    sim.run_for(seconds=130)
    since_s = sim.now_s
    sim.run_for(seconds=300)
    assert 3 <= len(reads(sim, "configmaps", since_s)) <= 6  # as before the trouble
    assert sim.phase("web") == "Running"


@pytest.mark.parametrize(("strategy", "found"), [("Cache", 1), ("Get", 2)])
def test_the_environment_of_each_container_is_read_before_it_starts(
    strategy: str, found: int
) -> None:
    sim = started(strategy, 300)
    sim.server.create(SECRET_KEY, {"data": {"K": "dg=="}})
    env = [{"secretRef": {"name": "env"}}]
    one, two = container(envFrom=env), container(envFrom=env) | {"name": "d"}
    sim.create_pod("web", containers=[one, two])
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Running"
    assert len(reads(sim, "secrets")) == found
    assert sim.said("Failed").keys() == set()
    assert watches(sim) == 0


def test_a_container_without_its_secret_starts_once_a_try_finds_it() -> None:
    sim = started("Cache")
    sim.create_pod("web", containers=[container(envFrom=[{"secretRef": {"name": "env"}}])])
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Pending"
    assert sim.said("Failed").keys() == {'Error: secrets "env" not found'}
    sim.server.create(SECRET_KEY, {"data": {"K": "dg=="}})
    sim.run_for(seconds=30)
    assert sim.phase("web") == "Running"


def test_pull_secrets_are_read_at_each_resync() -> None:
    sim = started("Get")
    sim.server.create(SECRET_KEY, {"data": {}})
    sim.create_pod("web", containers=[container()], imagePullSecrets=[{"name": "env"}])
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Running"
    since_s = sim.now_s
    sim.run_for(seconds=900)
    assert 10 <= len(reads(sim, "secrets", since_s)) <= 15
    assert watches(sim) == 0
