"""Static pods and their mirrors: made, kept in step, made again, ended."""

import json
from datetime import datetime

import yaml
from world.pod_world import model_of
from world.sim_faults import ApiServerAnswers, EventsLate
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.clock import NS_PER_S
from fleet.host.static_pods import parse_manifest
from fleet.profile.node_model import NodeModel
from fleet.profile.release import V1_36, V1_37
from fleet.server.pod_lists import all_pods

pytest_plugins = ("sim_encodings",)

PATH = "/etc/kubernetes/manifests/proxy.yaml"
STATIC = {"staticPodPath": "/etc/kubernetes/manifests"}
MODEL = model_of(kubeletVersion=V1_36.newest, kubeletConfiguration=STATIC)
"""Kubelets until 1.36 sync a pod at once when its mirror is being deleted."""


def manifest(name: str = "proxy", image: str = "proxy:1", **spec: object) -> bytes:
    container = {"name": "c", "image": image}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"tier": "node"}},
        "spec": {"hostNetwork": True, "containers": [container], **spec},
    }
    return yaml.safe_dump(pod).encode()


def put(sim: Simulation, *manifests: bytes) -> None:
    """Let the directory of the profile hold these files."""
    sim.env.static = tuple(
        parse_manifest(data, PATH if not index else f"{PATH}.{index}")
        for index, data in enumerate(manifests)
    )
    sim.reactor.static_pods_changed(sim.env)


def started(
    seed: int = 1,
    *manifests: bytes,
    light: bool = False,
    nodes: int = 1,
    model: NodeModel = MODEL,
) -> Simulation:
    sim = Simulation(nodes=nodes, seed=seed, light=light, model=model)
    put(sim, *(manifests or (manifest(),)))
    sim.run_for(seconds=40)
    return sim


def mirror(sim: Simulation, name: str = "proxy-n-0") -> Object:
    return sim.server.get("pods", name, "kube-system")


def test_each_node_runs_the_pod_and_shows_it_in_a_mirror() -> None:
    for light in (False, True):
        sim = started(nodes=3, light=light)
        hashes = set()
        for name in sim.names:
            pod = mirror(sim, f"proxy-{name}")
            notes = pod["metadata"]["annotations"]
            assert notes["kubernetes.io/config.source"] == "file"
            assert notes["kubernetes.io/config.hash"] == notes["kubernetes.io/config.mirror"]
            assert notes["kubernetes.io/config.seen"].startswith("2026-01-01T00:00:")
            hashes.add(notes["kubernetes.io/config.hash"])
            node = sim.server.get("nodes", name)
            assert pod["metadata"]["ownerReferences"] == [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": name,
                    "uid": node["metadata"]["uid"],
                    "controller": True,
                }
            ]
            assert pod["metadata"]["labels"] == {"tier": "node"}
            assert pod["spec"]["nodeName"] == name
            assert pod["spec"]["tolerations"] == [{"operator": "Exists", "effect": "NoExecute"}]
            assert pod["status"]["phase"] == "Running"
            assert pod["status"]["podIP"] == pod["status"]["hostIP"]
            [container] = pod["status"]["containerStatuses"]
            assert container["ready"]
        assert len(hashes) == 3
        assert {len(each) for each in hashes} == {32}


def test_the_server_of_a_kubelet_knows_the_static_pod_and_no_mirror() -> None:
    """By this UID its runtime knows it, for logs and exec. Source: pod_manager.go, GetPods."""
    sim = started()
    [shown] = json.loads(all_pods(sim.kubelet(), 0))["items"]
    notes = mirror(sim)["metadata"]["annotations"]
    assert shown["metadata"]["uid"] == notes["kubernetes.io/config.hash"]
    assert shown["status"]["containerStatuses"] == mirror(sim)["status"]["containerStatuses"]


def test_a_mirror_that_is_deleted_is_made_again_and_the_pod_runs_on() -> None:
    sim = started()
    before = mirror(sim)
    sim.server.delete_pod("proxy-n-0", "kube-system")  # by a user, with grace
    sim.run_for(seconds=15)
    after = mirror(sim)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    old, new = before["status"], after["status"]
    assert old["containerStatuses"][0]["containerID"] == new["containerStatuses"][0]["containerID"]
    deleted = [key for key, _ in sim.server.deleted]
    assert deleted == [("pods", "kube-system", "proxy-n-0")]


def requests(sim: Simulation, since_s: float) -> list[tuple[str, int, float]]:
    """Return what the node asked about its mirror but for statuses: verb, code, when."""
    found = [
        *sim.calls("n-0", "DELETE", "/pods", since_s=since_s),
        *sim.calls("n-0", "POST", "/pods", since_s=since_s),
    ]
    found.sort(key=lambda each: each.t_ns)
    return [(each.verb, each.code, each.t_ns / NS_PER_S - since_s) for each in found]


def test_a_mirror_that_is_being_deleted_waits_for_a_sync_of_its_pod_since_1_37() -> None:
    sim = started(model=model_of(kubeletVersion=V1_37.newest, kubeletConfiguration=STATIC))
    since_s = sim.now_s
    sim.server.delete_pod("proxy-n-0", "kube-system")
    sim.run_for(seconds=100)
    deleted, made = requests(sim, since_s)
    assert [deleted[:2], made[:2]] == [("DELETE", 200), ("POST", 201)]
    assert 10 < deleted[2] <= 91
    assert mirror(sim)["status"]["phase"] == "Running"


def test_a_mirror_that_is_deleted_at_once_is_deleted_twice_in_vain_and_made_by_a_resync() -> None:
    """An API server marks it, then removes it, and for each of the two the pod is synced.

    Source: kubelet.go, HandlePodRemoves hands on the mirror that is gone; tryReconcileMirrorPods.
    """
    sim = started()
    since_s = sim.now_s
    sim.server.delete_pod("proxy-n-0", "kube-system")
    sim.server.remove(("pods", "kube-system", "proxy-n-0"))
    sim.run_for(seconds=100)
    first, second, made = requests(sim, since_s)
    assert [each[:2] for each in (first, second, made)] == [
        ("DELETE", 404),
        ("DELETE", 404),
        ("POST", 201),
    ]
    assert 0 < second[2] - first[2] <= 1.1  # a sync waits for the relist after the last one
    assert 60 <= made[2] - second[2] <= 91
    assert mirror(sim)["status"]["phase"] == "Running"


def test_a_mirror_that_is_gone_without_a_mark_is_made_by_a_resync() -> None:
    """The sync that its removal asks for has it still, and finds nothing to do."""
    sim = started()
    since_s = sim.now_s
    sim.server.remove(("pods", "kube-system", "proxy-n-0"))
    sim.run_for(seconds=100)
    [(method, code, at_s)] = requests(sim, since_s)
    assert (method, code) == ("POST", 201)
    assert 60 <= at_s <= 91


def test_a_sync_acts_on_the_mirror_as_it_was_when_it_was_asked_for() -> None:
    """Its successor is there by then, so that the API server refuses. Source: startPodSync."""
    sim = started()
    sim.inject(EventsLate(0.2), seconds=1_000)
    since_s = sim.now_s
    sim.server.delete_pod("proxy-n-0", "kube-system")
    sim.run_for(seconds=100)
    assert [each[:2] for each in requests(sim, since_s)] == [
        ("DELETE", 200),
        ("POST", 201),
        ("DELETE", 409),
    ]
    assert mirror(sim)["status"]["phase"] == "Running"


def test_a_changed_manifest_replaces_the_pod_and_its_mirror() -> None:
    sim = started()
    before = mirror(sim)
    put(sim, manifest(image="proxy:2"))
    sim.run_for(seconds=40)
    after = mirror(sim)
    assert after["spec"]["containers"][0]["image"] == "proxy:2"
    key = "kubernetes.io/config.hash"
    assert after["metadata"]["annotations"][key] != before["metadata"]["annotations"][key]
    assert after["status"]["phase"] == "Running"
    assert after["status"]["containerStatuses"][0]["image"].endswith("proxy:2")
    killed = sim.events("Killing")
    assert [each["involvedObject"]["name"] for each in killed] == ["proxy-n-0"]


def test_a_changed_static_pod_starts_a_back_off_after_the_end_of_its_namesake() -> None:
    """It is looked again after 10 s x U[1, 1.5] whether the name is free; until then nothing."""
    sim = started(nodes=20)
    put(sim, manifest(image="proxy:2"))
    sim.run_for(seconds=50)
    ends = {}
    for each in sim.events():
        if each["reason"] == "Killing":
            ends[each["involvedObject"]["name"]] = each["firstTimestamp"]
    assert len(ends) == 20
    for name, ended in ends.items():
        running = mirror(sim, name)["status"]["containerStatuses"][0]["state"]["running"]
        assert mirror(sim, name)["spec"]["containers"][0]["image"] == "proxy:2"
        waited = datetime.fromisoformat(running["startedAt"]) - datetime.fromisoformat(ended)
        assert 10 <= waited.total_seconds() <= 17


def test_the_events_of_a_static_pod_carry_its_hash() -> None:
    """`kubectl describe` looks for the hash, not for the mirror's uid."""
    sim = started()
    key = "kubernetes.io/config.mirror"
    wanted = mirror(sim)["metadata"]["annotations"][key]
    events = [each for each in sim.events() if each["involvedObject"]["kind"] == "Pod"]
    assert events
    assert {each["involvedObject"]["uid"] for each in events} == {wanted}


def test_a_changed_static_pod_goes_on_from_what_the_mirror_of_its_name_shows() -> None:
    """What the old pod comes to is not told any more; its times are the new one's."""
    sim = started()
    before = mirror(sim)
    put(sim, manifest(image="proxy:2"))
    seen = []
    while (now := mirror(sim))["metadata"]["uid"] == before["metadata"]["uid"]:
        seen.append(now["status"])
        sim.run_for(seconds=0.1)
    assert all(each == before["status"] for each in seen)
    sim.run_for(seconds=5)
    after = mirror(sim)["status"]
    assert after["phase"] == "Running"
    assert after["startTime"] == before["status"]["startTime"]
    old, new = (
        {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
        for status in (before["status"], after)
    )
    assert new["Initialized"] == old["Initialized"]
    assert new["Ready"] > old["Ready"]


def test_a_static_pod_that_ends_is_told_to_have_ended_at_once() -> None:
    """Of another pod that would be told once its worker has seen that nothing runs any more.

    Source: status_manager.go, mergePodStatus; pod_workers.go, CouldHaveRunningContainers.
    """
    ends = manifest(
        containers=[{"name": "c", "image": "i:1", "command": ["sh", "-c", "sleep 60"]}],
        restartPolicy="Never",
    )
    sim = started(1, ends)
    seen = []
    while mirror(sim)["status"]["conditions"][0]["status"] != "False":
        [container] = mirror(sim)["status"].get("containerStatuses", [{}])
        seen.append((mirror(sim)["status"]["phase"], *container.get("state", ())))
        sim.run_for(seconds=0.02)
        assert sim.now_s < 200
    assert ("Running", "terminated") not in seen
    assert ("Succeeded", "terminated") in seen


def test_a_static_pod_that_is_removed_gets_no_terminal_phase() -> None:
    """Its containers ended well, but its policy would start them again. Source: getPhase."""
    sim = started()
    put(sim)
    while (found := sim.server.find("pods", "proxy-n-0", "kube-system")) is not None:
        shown = found
        sim.run_for(seconds=0.1)
    [container] = shown["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 0
    assert shown["status"]["phase"] == "Running"
    ready = next(each for each in shown["status"]["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ContainersNotReady")


def test_a_mirror_without_a_manifest_is_deleted_within_housekeeping() -> None:
    """The file went while no kubelet was there."""
    sim = Simulation(seed=4, model=MODEL)
    put(sim)
    sim.run_for(seconds=30)
    notes = {"kubernetes.io/config.mirror": "0" * 32}
    body: Object = {
        "metadata": {"annotations": notes},
        "spec": {"nodeName": "n-0", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running"},
    }
    sim.server.create(("pods", "kube-system", "left-n-0"), body)
    sim.run_for(seconds=2.5)
    assert sim.server.find("pods", "left-n-0", "kube-system") is None


def test_of_two_manifests_of_one_name_the_last_counts() -> None:
    sim = started(1, manifest(), manifest(image="proxy:3"))
    assert not sim.events("FailedValidation")
    assert mirror(sim)["spec"]["containers"][0]["image"] == "proxy:3"


def test_the_mirror_waits_for_the_node() -> None:
    sim = Simulation(seed=5, model=MODEL)
    put(sim, manifest())
    sim.run_for(seconds=30)
    [made] = sim.calls("n-0", "POST", "/pods")
    [registered] = sim.calls("n-0", "POST", "/api/v1/nodes")
    assert registered.t_ns < made.t_ns


def test_a_mirror_that_was_refused_is_tried_again_with_each_sync_of_its_pod() -> None:
    sim = Simulation(seed=7, model=MODEL)
    put(sim)
    sim.run_for(seconds=30)
    sim.inject(ApiServerAnswers(503), seconds=25)
    put(sim, manifest())
    sim.run_for(seconds=24)
    refused = sim.calls("n-0", "POST", "/pods", since_s=30)
    assert {each.code for each in refused} == {503}
    assert len(refused) > 1  # it starts, and then it runs
    sim.run_for(seconds=100)
    *_, last, made = sim.calls("n-0", "POST", "/pods", since_s=30)
    assert (last.code, made.code) == (503, 201)
    assert 60 <= (made.t_ns - last.t_ns) / NS_PER_S <= 91  # the resync
    assert mirror(sim)["status"]["phase"] == "Running"


def test_a_crash_of_a_static_pod_brings_the_mirror_that_was_refused() -> None:
    sim = Simulation(seed=7, model=MODEL)
    put(sim)
    sim.run_for(seconds=30)
    sim.inject(ApiServerAnswers(503), seconds=25)
    put(sim, manifest(containers=[{"name": "c", "image": "crash:1", "command": ["false"]}]))
    sim.run_for(seconds=58)  # less than the shortest resync takes
    assert mirror(sim)["status"]["containerStatuses"][0]["restartCount"]


def test_nothing_is_removed_before_every_source_was_read() -> None:
    model = MODEL
    sim = Simulation(seed=6, model=model).run_for(seconds=30)
    sim.create_pod("web")
    sim.run_for(seconds=10)
    sim.server.remove(("pods", "default", "web"))
    sim.run_for(seconds=60)
    kubelet = sim.kubelet()
    assert kubelet.pods is not None  # it runs on
    sim.env.static = (parse_manifest(manifest("agent"), "/m/agent.yaml"),)
    sim.reactor.static_pods_changed(sim.env)
    sim.run_for(seconds=60)
    assert [worker.pod.name for worker in kubelet.pods.workers.values()] == ["agent-n-0"]
    pod = mirror(sim, "agent-n-0")
    assert pod["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"


def test_a_node_that_is_being_deleted_gets_no_mirror_and_its_successor_does() -> None:
    """The pod side is made meanwhile. Source: kubelet.go, tryReconcileMirrorPods."""
    sim = Simulation(seed=8, model=MODEL)
    put(sim)
    sim.run_for(seconds=60)
    kubelet = sim.kubelet()
    assert kubelet.pods is None
    node = sim.server.get("nodes", "n-0")
    sim.server.update("nodes", "n-0", {"metadata": {"deletionTimestamp": sim.server.now()}})
    sim.run_for(seconds=5)
    put(sim, manifest())
    sim.run_for(seconds=60)
    pods = kubelet.pods
    assert pods is not None
    assert [worker.pod.name for worker in pods.workers.values()] == ["proxy-n-0"]
    assert sim.calls("n-0", "POST", "/pods") == []
    gone = sim.server.remove(("nodes", "", "n-0"))
    del node["metadata"]["uid"]
    sim.server.create(("nodes", "", "n-0"), node)
    sim.run_for(seconds=60)
    uid = sim.server.get("nodes", "n-0")["metadata"]["uid"]
    assert uid != gone.obj["metadata"]["uid"]
    assert [each["uid"] for each in mirror(sim)["metadata"]["ownerReferences"]] == [uid]
    assert mirror(sim)["status"]["phase"] == "Running"


def test_nodes_see_a_change_each_at_its_own_look() -> None:
    sim = started(nodes=20)
    before_ns = sim.clock.now_ns()
    put(sim, manifest(), manifest("second"))
    sim.run_for(seconds=25)
    made = [
        each.t_ns - before_ns for each in sim.calls("", "POST", "/pods") if each.t_ns > before_ns
    ]
    assert len(made) == 20
    assert max(made) <= 21 * NS_PER_S
    assert max(made) - min(made) > 10 * NS_PER_S


def test_a_static_pod_makes_room_for_itself_on_a_full_node() -> None:
    """It is critical, whatever its priority; a taint does not keep it out."""
    cpu = {"resources": {"requests": {"cpu": "5"}}}
    model = model_of(
        kubeletConfiguration={"staticPodPath": "/etc/kubernetes/manifests"},
        template={"status": {"capacity": {"cpu": "8", "memory": "32Gi"}}},
    )
    sim = Simulation(seed=9, model=model)
    put(sim)
    sim.run_for(seconds=30)
    sim.create_pod("web", containers=[{"name": "c", "image": "nginx:1", **cpu}])
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Running"
    big = {"name": "c", "image": "big:1", **cpu}
    put(sim, manifest(containers=[big]))
    sim.run_for(seconds=40)
    assert sim.phase("web") == "Succeeded"  # it exits with 0
    [event] = sim.events("Preempting")
    assert event["involvedObject"]["name"] == "web"
    assert mirror(sim)["status"]["phase"] == "Running"
