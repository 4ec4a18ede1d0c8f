"""Pods from bind to gone, as requests: kubelet-reference 10.3 and 10.4."""

import pytest
from world.pod_world import model_of
from world.sim_faults import AnswersSlow, ApiServerAnswers, ConnectionsRefused
from world.simulation import WATCHES, Simulation, started
from world.transport import Sent

pytest_plugins = ("sim_encodings",)


def counts(sent: list[Sent]) -> dict[str, int]:
    """Count requests by verb and what they are about."""
    found: dict[str, int] = {}
    for each in sent:
        path = each.path.partition("?")[0]
        about = next(k for k in ("token", "events", "pods", "configmaps", "") if k in path)
        if about:
            key = f"{each.verb} {about}"
            found[key] = found.get(key, 0) + 1
    return found


def reasons(sim: Simulation, about: str) -> list[str]:
    events = sim.events()
    return [str(e["reason"]) for e in events if e["involvedObject"]["name"] == about]


def test_a_pod_starts_within_a_second_or_two() -> None:
    for seed in range(5):
        sim = started(seed)
        sim.create_pod("web")
        sim.run_for(seconds=3)
        pod = sim.server.get("pods", "web", "default")
        assert pod["status"]["phase"] == "Running"
        assert pod["status"]["podIP"]
        assert {c["type"]: c["status"] for c in pod["status"]["conditions"]} == dict.fromkeys(
            (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            ),
            "True",
        )
        assert 0.3 < sim.reactor.counts.pod_start.percentile_us(1) / 1e6 < 2.5


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("light", [False, True])
def test_a_pod_runs_on_a_node_of_windows(light: bool, says_so: bool) -> None:  # noqa: FBT001
    """An API server takes no user of Linux in its status: validateContainerStatusUsers."""
    template = {"status": {"nodeInfo": {"operatingSystem": "windows"}}}
    sim = Simulation(seed=1, light=light, model=model_of(template=template)).run_for(seconds=60)
    if says_so:
        sim.create_pod("web", os={"name": "windows"})
    else:
        sim.create_pod("web", nodeSelector={"kubernetes.io/os": "windows"})
    sim.create_pod("linux", os={"name": "linux"})
    sim.run_for(seconds=5)
    status = sim.status("web")
    assert status["phase"] == "Running"
    assert all("user" not in each for each in status["containerStatuses"])
    refused = sim.status("linux")
    assert (refused["phase"], refused["reason"]) == ("Failed", "PodOSNotSupported")


def test_what_the_machine_takes_is_told_apart_from_the_start_of_a_pod() -> None:
    sim = started()
    sim.create_pod("quick")
    sim.run_for(seconds=30)
    quick = sim.reactor.counts.pod_start_sli.max_us
    pulled = {"fleet.emulator/start-delay": "20s"}
    sim.create_pod("slow", annotations=pulled)
    sim.run_for(seconds=60)
    counts = sim.reactor.counts
    assert counts.pod_start.max_us > 20_000_000
    # The relist of the PLEG and the rounds to the server stay: they are the kubelet's.
    assert 0 < counts.pod_start_sli.max_us < quick + 2_500_000
    assert counts.pod_start.count == counts.pod_start_sli.count == 2


RELIST_S = 1.0
"""Of the PLEG: a change is seen up to so much later."""


def split_of_a_start(*, light: bool = False, way_s: float = 0, delay: str = "") -> list[float]:
    """Start one pod; return what requests, kubelet and machine took, and the whole, in seconds."""
    sim = started(light=light)
    if way_s:
        sim.inject(AnswersSlow(way_s), seconds=100)
    sim.create_pod("web", annotations={"fleet.emulator/start-delay": delay} if delay else {})
    sim.run_for(seconds=80)
    counts = sim.reactor.counts
    parts = (counts.pod_start_api, counts.pod_start_fleet, counts.pod_start_simulated)
    assert [each.count for each in parts] == [1, 1, 1]
    assert sum(each.sum_us for each in parts) == pytest.approx(counts.pod_start.sum_us, abs=3)
    return [each.sum_us / 1e6 for each in (*parts, counts.pod_start)]


@pytest.mark.parametrize("light", [False, True])
def test_a_start_is_split_into_requests_kubelet_and_machine(light: bool) -> None:  # noqa: FBT001
    """What is put into one of them shows there, whole, and not in the others."""
    api, own, machine, _ = split_of_a_start(light=light)
    assert api < 0.1
    slow = split_of_a_start(light=light, delay="5s")
    assert slow[2] - machine == pytest.approx(5, rel=0.3)  # the delay is drawn
    assert slow[0] < 0.1
    far = split_of_a_start(light=light, way_s=2)
    # GET and PATCH of the status, and the token; what is left of a status that was told before.
    least, most = (2, 2) if light else (6, 10)
    assert 0.99 * least <= far[0] <= 1.1 * most
    assert far[1] <= own + RELIST_S
    assert far[2] == pytest.approx(machine, abs=0.1)


def test_the_requests_of_a_pods_start() -> None:
    sim = started()
    sim.create_pod("web")
    sim.run_for(seconds=10)
    assert counts(sim.calls(since_s=60)) == {
        "GET pods": 3,
        "PATCH pods": 3,
        "WATCH configmaps": 1,
        "POST token": 1,
        "POST events": 4,
    }
    assert reasons(sim, "web") == ["Pulling", "Pulled", "Created", "Started"]


def test_the_second_pod_of_a_namespace_shares_its_watch() -> None:
    sim = started()
    sim.create_pod("one")
    sim.run_for(seconds=10)
    sim.create_pod("two")
    sim.run_for(seconds=10)
    assert "WATCH configmaps" not in counts(sim.calls(since_s=70))
    assert sim.server.open_watches == WATCHES + 1


def test_a_running_pod_costs_nothing() -> None:
    sim = started()
    sim.create_pod("web")
    sim.run_for(seconds=300)
    before_s = sim.now_s
    sim.run_for(seconds=600)
    found = counts([each for each in sim.calls(since_s=before_s) if each.verb != "WATCH"])
    assert found == {}


def test_the_requests_of_a_pods_stop() -> None:
    sim = started()
    uid = sim.create_pod("web")
    sim.run_for(seconds=30)
    sim.server.delete_pod("web")
    sim.run_for(seconds=60)
    assert sim.phase("web") == ""
    found = counts(sim.calls(since_s=90))
    assert found.pop("GET pods") in {3, 4}
    assert found.pop("PATCH pods") in {2, 3}
    assert found == {"DELETE pods": 1, "POST events": 1}
    assert reasons(sim, "web")[-1] == "Killing"
    assert sim.server.deleted == [(("pods", "default", "web"), uid)]
    assert sim.server.phases[uid] == ["Pending", "Running", "Succeeded"]
    assert sim.server.open_watches == WATCHES


def test_a_pod_deleted_while_the_server_is_away_is_deleted_after() -> None:
    sim = started()
    uid = sim.create_pod("web")
    sim.run_for(seconds=30)
    sim.server.delete_pod("web")
    sim.inject(ConnectionsRefused(), seconds=30)
    sim.run_for(seconds=100)
    assert sim.phase("web") == ""
    assert sim.server.phases[uid] == ["Pending", "Running", "Succeeded"]


def test_a_pod_that_starts_while_statuses_are_refused_is_reported_after() -> None:
    sim = started()
    sim.create_pod("web")
    sim.inject(ApiServerAnswers(500), seconds=40)
    sim.run_for(seconds=40)
    assert sim.phase("web") == "Pending"
    sim.run_for(seconds=140)  # mounts back off to 65 s meanwhile, as goroutinemap does
    assert sim.phase("web") == "Running"


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    sim = started()
    first = sim.create_pod("web")
    sim.run_for(seconds=30)
    sim.server.delete_pod("web", grace_s=0)
    second = sim.create_pod("web")
    sim.run_for(seconds=60)
    assert first != second
    assert sim.server.phases[second] == ["Pending", "Running"]


def test_a_full_node_starts_all_its_pods() -> None:
    sim = started()
    for index in range(110):
        sim.create_pod(f"web-{index}")
    sim.run_for(seconds=60)
    assert sum(sim.phase(f"web-{index}") == "Running" for index in range(110)) == 110
    for index in range(110):
        sim.server.delete_pod(f"web-{index}", grace_s=5)
    sim.run_for(seconds=60)
    assert sim.server.all("pods") == []


def test_a_node_keeps_a_pod_through_api_server_restarts() -> None:
    sim = started()
    uid = sim.create_pod("web")
    for _ in range(5):
        sim.run_for(seconds=60)
        sim.inject(ConnectionsRefused(), seconds=10)
    sim.run_for(seconds=60)
    assert sim.server.phases[uid] == ["Pending", "Running"]
    [container] = sim.status("web")["containerStatuses"]
    assert container["restartCount"] == 0


@pytest.mark.parametrize(("light", "after_s"), [(True, 11), (False, 22)], ids=["light", "kubelet"])
def test_a_deletion_that_crosses_the_last_status_is_seen(*, light: bool, after_s: int) -> None:
    """The answer to the PATCH of the terminal phase is on its way when the pod is deleted."""
    sim = started(light=light)
    sim.create_pod("job", command=["sleep", "3"], restartPolicy="Never")
    sim.inject(AnswersSlow(8), seconds=25)
    sim.run_for(seconds=after_s)
    sim.server.delete_pod("job")
    sim.run_for(seconds=150)
    assert sim.phase("job") == ""
