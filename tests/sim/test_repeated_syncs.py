"""What a kubelet until 1.36 says, or does, at each sync of a pod that runs: once in 60 to 90 s."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.profile.release import V1_36

pytest_plugins = ("sim_encodings",)

MINUTES_S = 600
FEWEST, MOST = MINUTES_S // 91, MINUTES_S // 60
"""Resyncs in that time."""
PULL_SECRET = "FailedToRetrieveImagePullSecret"


def counted(sim: Simulation, about: str, reason: str) -> int:
    """Return how often something was said of an object."""
    found = sim.events(reason, about)
    return sum(each["count"] for each in found)


def messages(sim: Simulation, about: str, reason: str) -> list[str]:
    return [each["message"] for each in sim.events(reason, about)]


def started(**kubelet: object) -> Simulation:
    sim = Simulation(
        seed=1, model=model_of(kubeletVersion=V1_36.newest, kubeletConfiguration=kubelet)
    )
    sim.run_for(seconds=60)
    return sim


@pytest.mark.parametrize("volumes", [True, False], ids=["volumes", "no volumes"])
def test_a_missing_pull_secret_is_told_at_each_sync_until_it_comes(*, volumes: bool) -> None:
    sim = started()
    more: Object = {} if volumes else {"volumes": []}
    sim.create_pod("web", imagePullSecrets=[{"name": "regcred"}], **more)
    sim.run_for(seconds=10)
    first = counted(sim, "web", PULL_SECRET)
    assert 1 <= first <= 2  # the relist after the start has it synced once more
    sim.run_for(seconds=MINUTES_S)
    told = counted(sim, "web", PULL_SECRET)
    assert FEWEST <= told - first <= MOST
    key = ("secrets", "default", "regcred")
    sim.server.create(key, {"data": {}})
    sim.run_for(seconds=MINUTES_S)
    assert counted(sim, "web", PULL_SECRET) == told
    sim.server.remove(key)
    sim.run_for(seconds=MINUTES_S)
    assert FEWEST <= counted(sim, "web", PULL_SECRET) - told <= MOST


def test_a_pull_secret_that_is_there_is_not_missed_by_a_pod_without_volumes() -> None:
    sim = started()
    sim.server.create(("secrets", "default", "regcred"), {"data": {}})
    sim.create_pod("web", imagePullSecrets=[{"name": "regcred"}], volumes=[])
    sim.run_for(seconds=100)
    assert sim.phase("web") == "Running"
    assert counted(sim, "web", PULL_SECRET) == 0


def test_a_pull_secret_without_a_name_is_none() -> None:
    """What a chart makes of an empty value: the API server takes it."""
    sim = started()
    sim.create_pod("web", imagePullSecrets=[{"name": ""}, {}])
    sim.run_for(seconds=100)
    assert sim.phase("web") == "Running"
    assert counted(sim, "web", PULL_SECRET) == 0


def test_a_missing_pull_secret_is_told_before_the_sandbox() -> None:
    sim = started()
    secrets = [{"name": "regcred"}]
    sim.create_pod("web", runtimeClassName="none", imagePullSecrets=secrets)  # it gets no sandbox
    sim.run_for(seconds=30)
    assert counted(sim, "web", PULL_SECRET) == counted(sim, "web", "FailedCreatePodSandBox") > 0


@pytest.mark.parametrize("strategy", ["Get", "Cache"])
def test_a_pull_secret_that_is_asked_for_is_missed_too(strategy: str) -> None:
    sim = started(configMapAndSecretChangeDetectionStrategy=strategy)
    key = ("secrets", "default", "regcred")
    sim.server.create(key, {"data": {}})
    sim.create_pod("web", imagePullSecrets=[{"name": "regcred"}])
    sim.run_for(seconds=MINUTES_S)
    assert counted(sim, "web", PULL_SECRET) == 0
    sim.server.remove(key)
    sim.run_for(seconds=90 + MINUTES_S)
    assert FEWEST - 1 <= counted(sim, "web", PULL_SECRET) <= MOST + 2


@pytest.mark.parametrize("policy", ["IfNotPresent", "Always"])
def test_the_image_of_a_volume_is_looked_at_by_each_sync(policy: str) -> None:
    sim = started()
    image = {"reference": "quay.io/models/llm:1", "pullPolicy": policy}
    sim.create_pod("web", volumes=[{"name": "model", "image": image}])
    sim.run_for(seconds=30)
    pulled, pulling = (counted(sim, "web", each) for each in ("Pulled", "Pulling"))
    sim.run_for(seconds=MINUTES_S)
    again = counted(sim, "web", "Pulled") - pulled
    assert FEWEST <= again <= MOST
    assert counted(sim, "web", "Pulling") - pulling == (again if policy == "Always" else 0)
    assert sim.phase("web") == "Running"


def test_dns_that_does_not_fit_is_told_at_each_sync() -> None:
    sim = started()
    asked = ["192.0.2.61", "192.0.2.62", "192.0.2.63"]
    searches = [f"zone-{number}.example" for number in range(31)]
    sim.create_pod("web", dnsConfig={"nameservers": asked, "searches": searches})
    sim.run_for(seconds=10)
    [servers, line] = messages(sim, "web", "DNSConfigForming")
    assert servers == (
        "Nameserver limits were exceeded, some nameservers have been omitted, "
        "the applied nameserver line is: 10.96.0.10 192.0.2.61 192.0.2.62"
    )
    assert line.startswith("Search Line limits were exceeded, some search paths have been omitted")
    assert line.endswith(" zone-28.example")
    first = counted(sim, "web", "DNSConfigForming")
    assert first % 2 == 0
    assert 2 <= first // 2 <= 3  # for the sandbox, for the containers, and by the next sync
    sim.run_for(seconds=MINUTES_S)
    assert FEWEST <= (counted(sim, "web", "DNSConfigForming") - first) // 2 <= MOST


def test_a_kubelet_without_cluster_dns_says_so_of_each_pod_and_of_its_node() -> None:
    sim = started(clusterDNS=[])
    uid = sim.create_pod("web")
    sim.create_pod("own", dnsPolicy="Default")
    sim.run_for(seconds=10)
    text = (
        'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" '
        'policy. Falling back to "Default" policy.'
    )
    assert messages(sim, "n-0", "MissingClusterDNS") == [text]
    assert messages(sim, "web", "MissingClusterDNS") == [f'pod: "web_default({uid})". {text}']
    assert messages(sim, "own", "MissingClusterDNS") == []
    first = counted(sim, "web", "MissingClusterDNS")
    sim.run_for(seconds=MINUTES_S)
    again = counted(sim, "web", "MissingClusterDNS") - first
    assert FEWEST <= again <= MOST
    assert counted(sim, "n-0", "MissingClusterDNS") == first + again


def test_a_pod_that_has_nothing_to_say_is_not_synced_again() -> None:
    """No timer for it: a fleet has hundreds of thousands of them."""
    sim = started()
    sim.create_pod("web")
    sim.run_for(seconds=30)
    kubelet = sim.kubelet()
    assert kubelet.pods is not None
    [worker] = kubelet.pods.workers.values()
    assert worker.sync_ns == 0
