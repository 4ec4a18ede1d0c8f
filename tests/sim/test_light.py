"""Fidelity light: the fewest requests, and still true to what is on the API."""

import pytest
from world.sim_faults import ConnectionsRefused, VersionsExpired
from world.simulation import Simulation, pod_json
from world.strategic_merge import Object

from fleet.k8s.effects import Op

pytest_plugins = ("sim_encodings",)


def by_verb(sim: Simulation, since_s: float = 0) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in sim.calls(since_s=since_s):
        found[each.verb] = found.get(each.verb, 0) + 1
    return found


def test_a_node_costs_a_post_and_a_lease() -> None:
    sim = Simulation(nodes=50, seed=1, light=True).run_for(seconds=9)
    assert by_verb(sim) == {"POST": 100}
    assert sim.ready() == 50
    assert [each.verb for each in sim.observer.trace] == ["WATCH", "WATCH"]
    sim.run_for(seconds=600)
    found = by_verb(sim, since_s=9)
    assert set(found) == {"PUT", "PATCH"}
    assert 50 * 57 <= found["PUT"] <= 50 * 61
    assert 50 <= found["PATCH"] <= 150


def test_every_request_names_its_node() -> None:
    sim = Simulation(nodes=5, seed=1, light=True).run_for(seconds=30)
    assert {each.node for each in sim.trace} == set(sim.names)


def test_a_pod_costs_one_patch_and_one_delete() -> None:
    sim = Simulation(nodes=10, seed=2, light=True).run_for(seconds=60)
    for index in range(10):
        sim.create_pod(f"web-{index}", f"n-{index}")
    sim.run_for(seconds=30)
    assert all(sim.phase(f"web-{index}") == "Running" for index in range(10))
    assert len(sim.calls(verb="PATCH", path="/pods/")) == 10
    for index in range(10):
        sim.server.delete_pod(f"web-{index}")
    sim.run_for(seconds=60)
    assert sim.server.all("pods") == []
    assert len(sim.calls(verb="DELETE", path="/pods/")) == 10
    assert not sim.calls(verb="GET", path="/pods/")
    assert not sim.calls(path="token")
    assert not sim.calls(path="events")


FINALIZER = {"finalizers": ["example.com/keeps"]}
JOB = {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]}
SET = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r"}]}


def create(sim: Simulation, meta: Object, **spec: object) -> str:
    """Create the pod `web` with more in its metadata; return its uid."""
    obj = pod_json("web", "n-0", **spec)
    stored = sim.server.create(("pods", "default", "web"), obj | {"metadata": meta})
    assert stored is not None
    return str(stored.obj["metadata"]["uid"])


@pytest.mark.parametrize(("meta", "verbs"), [(FINALIZER, 2), (JOB, 2), (SET, 1), ({}, 1)])
def test_a_deleted_pod_is_told_as_ended_where_somebody_waits_for_it(
    meta: Object, verbs: int
) -> None:
    sim = Simulation(seed=6, light=True).run_for(seconds=60)
    uid = create(sim, meta, restartPolicy="Never", terminationGracePeriodSeconds=5)
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Running"
    statuses = []
    sim.server.listeners.append(lambda _key, _old, new: statuses.append(new))
    since_s = sim.now_s
    sim.server.delete_pod("web")
    sim.run_for(seconds=60)
    sent = [each.verb for each in sim.calls(path="/pods/web", since_s=since_s)]
    assert sent == ["PATCH", "DELETE"][-verbs:]
    assert sim.server.phases[uid] == ["Pending", "Running", "Failed"][: verbs + 1]
    if verbs == 2:
        [ended] = [
            each["status"] for each in statuses if each and each["status"].get("phase") == "Failed"
        ][:1]
        assert ended["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
        ready = next(each for each in ended["conditions"] if each["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "PodFailed")
    assert bool(sim.phase("web")) is (meta is FINALIZER)
    if meta is FINALIZER:
        sim.server.remove(("pods", "default", "web"))
        sim.run_for(seconds=1)
    assert sim.kubelet().pods is None


def test_a_deleted_pod_that_never_ran_is_told_as_failed_where_somebody_waits_for_it() -> None:
    sim = Simulation(seed=7, light=True).run_for(seconds=60)
    notes = {"fleet.emulator/start-failure": "CreateContainerError"}
    create(sim, FINALIZER | {"annotations": notes})
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Pending"
    sim.server.delete_pod("web")
    sim.run_for(seconds=40)
    status = sim.status("web")
    assert status["phase"] == "Failed"
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")


def test_a_job_completes() -> None:
    sim = Simulation(nodes=2, seed=3, light=True).run_for(seconds=30)
    uid = sim.create_pod("job", "n-1", command=["sleep", "5"], restartPolicy="Never")
    sim.run_for(seconds=20)
    assert sim.server.phases[uid] == ["Pending", "Running", "Succeeded"]


def test_an_outage_and_an_expired_watch_are_survived() -> None:
    sim = Simulation(nodes=20, seed=4, light=True).run_for(seconds=60)
    for index in range(20):
        sim.create_pod(f"web-{index}", f"n-{index}")
    sim.inject(ConnectionsRefused(), seconds=20)
    sim.run_for(seconds=20)
    sim.inject(VersionsExpired())
    sim.server.remove(("pods", "default", "web-3"))
    sim.run_for(seconds=60)
    assert sum(sim.phase(f"web-{index}") == "Running" for index in range(20)) == 19
    assert sim.longest_gap_s(Op.RENEW_LEASE) < 40
    kubelet = sim.kubelet(3)
    assert kubelet.pods is None


def test_unknown_conditions_flip_back_within_a_tick() -> None:
    sim = Simulation(nodes=2, seed=5, light=True).run_for(seconds=60)
    conditions = [{"type": "Ready", "status": "Unknown"}]
    sim.server.update("nodes", "n-1", {"status": {"conditions": conditions}})
    sim.run_for(seconds=10.5)
    assert sim.condition("n-1") == "True"
