"""Images in virtual time: what a failing pull looks like, and the list in the node status."""

from dataclasses import replace
from itertools import pairwise

from world.api_server import SimApiServer
from world.simulation import Simulation, default_model
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId
from fleet.profile.distribution import constant
from fleet.profile.image_behavior import ImagePulls
from fleet.profile.node_model import NodeModel

pytest_plugins = ("sim_encodings",)

GB = 10**9
SETTLED_S = 60


def started(model: NodeModel | None = None, *, light: bool = False, seed: int = 1) -> Simulation:
    return Simulation(seed=seed, light=light, model=model).run_for(seconds=SETTLED_S)


def container(image: str = "nginx:1", name: str = "c", policy: str = "IfNotPresent") -> Object:
    return {"name": name, "image": image, "imagePullPolicy": policy}


def annotated(**notes: str) -> dict[str, str]:
    return {f"fleet.emulator/{key.replace('_', '-')}": value for key, value in notes.items()}


def messages(sim: Simulation, about: str) -> list[tuple[str, str, str]]:
    """Return type, reason and message of the events about a pod, as they came first."""
    found = sim.events(about=about)
    return [(e["type"], e["reason"], e["message"]) for e in found]


def waiting(sim: Simulation, pod: str) -> tuple[str, str]:
    [status] = sim.status(pod)["containerStatuses"]
    state = status["state"].get("waiting", {})
    return state.get("reason", ""), state.get("message", "")


def images(sim: Simulation, node: str = "n-0") -> list[str]:
    found = sim.server.get("nodes", node)["status"].get("images") or []
    return [each["names"][-1] for each in found]


def test_pulls_that_fail_are_tried_after_10_20_40_seconds_and_so_on() -> None:
    sim = started()
    sim.create_pod("bad", annotations=annotated(pull_error="Unauthorized"))
    tries: list[float] = []
    count = 0
    for _ in range(400):  # later on the spam filter holds the counts of events back
        sim.run_for(seconds=1)
        found = sim.events("Pulling")
        if found and found[0]["count"] > count:
            count = found[0]["count"]
            tries.append(sim.now_s)
    gaps = [after - before for before, after in pairwise(tries)]
    for gap, least in zip(gaps, (10, 20, 40, 80, 160, 300, 300), strict=False):
        assert least <= gap <= least + 17, gaps
    assert len(gaps) >= 4
    reason, message = waiting(sim, "bad")
    assert reason in {"ErrImagePull", "ImagePullBackOff"}
    assert "pull access denied, repository does not exist or may require authorization" in message


def test_a_pod_recovers_when_its_image_can_be_pulled() -> None:
    sim = started()
    sim.create_pod("bad", annotations=annotated(pull_error="RateLimited"))
    sim.run_for(seconds=5)
    assert waiting(sim, "bad")[0] == "ErrImagePull"
    sim.server.update(
        "pods", "bad", {"metadata": {"annotations": annotated(pull_error="")}}, "default"
    )
    sim.run_for(seconds=30)
    assert sim.phase("bad") == "Running"
    assert messages(sim, "bad")[-3][1:2] == ("Pulled",)


def test_one_container_that_cannot_be_pulled_keeps_the_others_running() -> None:
    sim = started()
    bad = container("Bad", "bad")
    sim.create_pod("two", containers=[bad, container(name="good")])
    sim.run_for(seconds=20)
    found = sim.status("two")
    states = {each["name"]: each["state"] for each in found["containerStatuses"]}
    assert states["bad"]["waiting"]["reason"] == "InvalidImageName"
    assert "running" in states["good"]
    assert found["phase"] == "Pending"
    assert ("Warning", "InspectFailed") in [each[:2] for each in messages(sim, "two")]


def test_an_init_container_that_cannot_be_pulled_holds_the_pod() -> None:
    sim = started()
    never = container(name="i", policy="Never")
    sim.create_pod("held", initContainers=[never])
    sim.run_for(seconds=20)
    found = sim.status("held")
    [init] = found["initContainerStatuses"]
    assert init["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    assert waiting(sim, "held")[0] == "PodInitializing"
    assert ("Warning", "Pulled") not in [each[:2] for each in messages(sim, "held")]


def test_a_new_image_is_reported_once_within_40_seconds() -> None:
    sim = started()
    before = images(sim)
    assert sorted(before) == sorted(each.names[-1] for each in default_model().images_preloaded)
    sim.create_pod("one")
    sim.run_for(seconds=45)
    assert sorted(images(sim)) == sorted([*before, "docker.io/library/nginx:1"])
    patches = len(sim.calls(verb="PATCH", path="/nodes/", since_s=SETTLED_S))
    assert patches == 1
    sim.create_pod("two")
    sim.run_for(seconds=100)
    assert len(sim.calls(verb="PATCH", path="/nodes/", since_s=SETTLED_S)) == patches
    sim.server.delete_pod("one")
    sim.server.delete_pod("two")
    sim.run_for(seconds=100)
    assert "docker.io/library/nginx:1" in images(sim)  # its pods went, the image stays


NGINX = "docker.io/library/nginx:1"


def test_a_kubelet_that_comes_back_reports_the_images_that_are_there() -> None:
    sim = started()
    sim.create_pod("one")
    sim.run_for(seconds=45)
    before = images(sim)
    assert NGINX in before
    sim.reactor.restart([NodeId(0)])
    for _ in range(120):
        sim.run_for(seconds=1)
        assert images(sim) == before


def test_a_node_that_is_made_again_has_the_images_that_were_pulled() -> None:
    sim = started()
    sim.create_pod("one")
    sim.run_for(seconds=5)  # it is pulled, and not reported yet
    assert NGINX not in images(sim)
    sim.server.remove(("nodes", "", "n-0"))
    sim.reactor.restart([NodeId(0)])
    while sim.server.find("nodes", "n-0") is None:
        sim.run_for(seconds=0.01)
    assert NGINX in images(sim)
    sim.run_for(seconds=120)
    assert NGINX in images(sim)


def test_an_image_that_is_pulled_after_a_restart_is_reported() -> None:
    """What the kubelet before was about to look at is not waited for."""
    sim = started()
    sim.create_pod("one")
    sim.run_for(seconds=5)
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=1)
    sim.create_pod("two", containers=[container("other:1")])
    sim.run_for(seconds=60)
    assert "docker.io/library/other:1" in images(sim)


def test_serial_pulls_of_one_node_wait_for_each_other() -> None:
    slow = replace(
        default_model(), image_pulls=ImagePulls(bandwidth=100_000_000, latency=constant(0))
    )
    sim = started(slow)
    for at in range(3):
        notes = annotated(image_size="1G")
        sim.create_pod(f"p{at}", annotations=notes, containers=[container(f"i:{at}")])
    sim.run_for(seconds=60)
    pulled = [m for at in range(3) for t, r, m in messages(sim, f"p{at}") if r == "Pulled"]
    waits = sorted(float(m.partition(" in 10s (")[2].partition("s ")[0]) for m in pulled)
    assert 10 <= waits[0] < 11
    assert 19 < waits[1] <= 20
    assert 29 < waits[2] <= 30
    assert all("Image size: 1000000000 bytes." in message for message in pulled)


def test_a_pod_that_is_deleted_while_it_pulls_goes_once_its_containers_have_run() -> None:
    """The runtime's half of SyncPod has a context that nobody cancels."""
    sim = started()
    uid = sim.create_pod("slow", annotations=annotated(pull_time="1m"))
    sim.run_for(seconds=20)
    assert waiting(sim, "slow") == ("ContainerCreating", "")
    sim.server.delete_pod("slow")
    sim.run_for(seconds=30)
    assert sim.server.deleted == []
    sim.run_for(seconds=15)
    assert sim.server.deleted == [(("pods", "default", "slow"), uid)]
    said = [reason for _, reason, _ in messages(sim, "slow")]
    assert said == ["Pulling", "Pulled", "Created", "Started", "Killing"]
    kubelet = sim.kubelet()
    assert kubelet.pods is None


def test_a_full_disk_is_freed_of_images_that_nobody_uses() -> None:
    model = replace(default_model(), image_disk_bytes=100 * GB)
    sim = started(model)
    for at in range(3):
        notes = annotated(image_size="27G")
        sim.create_pod(f"p{at}", annotations=notes, containers=[container(f"i:{at}")])
    sim.run_for(seconds=30)
    for at in (0, 1):
        sim.server.delete_pod(f"p{at}")
    sim.run_for(seconds=700)  # at the first look they are new
    left = [name for name in images(sim) if name.startswith("docker.io/library/i:")]
    assert sorted(left) == ["docker.io/library/i:1", "docker.io/library/i:2"]
    assert sim.phase("p2") == "Running"


def test_a_disk_that_cannot_be_freed_is_told_about() -> None:
    model = replace(default_model(), image_disk_bytes=40 * GB)
    sim = started(model)
    sim.create_pod("big", annotations=annotated(image_size="36G"))
    sim.run_for(seconds=1000)
    found = [e for e in sim.events() if e["message"].startswith("Insufficient free")]
    assert {e["involvedObject"]["kind"] for e in found} == {"Node"}
    reasons = [e["reason"] for e in found]
    assert reasons[0] == "FreeDiskSpaceFailed"
    assert "ImageGCFailed" in reasons
    assert sim.phase("big") == "Running"


def test_what_containers_write_fills_the_disk_of_the_images_too() -> None:
    sim = started()
    notes = annotated(ephemeral_storage_usage="93G")  # of 104 GB
    sim.create_pod("big", annotations=notes, priority=2_000_000_000)  # never evicted
    sim.run_for(seconds=700)
    reasons = {e["reason"] for e in sim.events() if "image filesystem" in e["message"]}
    assert {"FreeDiskSpaceFailed", "ImageGCFailed"} <= reasons


def test_images_are_the_same_fidelity_light_but_for_their_time() -> None:
    sim = started(light=True)
    sim.create_pod("good")
    sim.create_pod("slow", annotations=annotated(pull_time="10m"))
    sim.create_pod("bad", annotations=annotated(pull_error="NotFound"))
    sim.create_pod("never", containers=[container(policy="Never")])
    sim.run_for(seconds=3)
    assert [sim.phase(name) for name in ("good", "slow")] == ["Running", "Running"]
    assert waiting(sim, "bad")[0] == "ErrImagePull"
    assert waiting(sim, "never")[0] == "ErrImageNeverPull"
    seen = set()
    for _ in range(60):
        sim.run_for(seconds=1)
        seen.add(waiting(sim, "bad")[0])
    assert seen == {"ErrImagePull", "ImagePullBackOff"}
    assert sim.events() == []


def image_volume(reference: str, policy: str = "IfNotPresent") -> Object:
    return {"name": "model", "image": {"reference": reference, "pullPolicy": policy}}


def test_images_of_volumes_are_pulled_before_the_containers_start() -> None:
    sim = started()
    configures_each_sync = default_model().release.configures_each_sync
    sim.create_pod("web", volumes=[image_volume("example.com/model:1")])
    sim.run_for(seconds=20)
    assert sim.phase("web") == "Running"
    events = sim.events(about="web")
    about = [(e["reason"], e["involvedObject"].get("fieldPath", "")) for e in events]
    assert about == [
        ("Pulling", ""),
        ("Pulled", ""),
        ("Pulling", "spec.containers{c}"),
        ("Pulled", "spec.containers{c}"),
        ("Created", "spec.containers{c}"),
        ("Started", "spec.containers{c}"),
        # It is there, says the sync after the relist that saw the start.
        *([("Pulled", "")] if configures_each_sync else []),
    ]
    sim.run_for(seconds=30)
    assert {"example.com/model:1", "docker.io/library/nginx:1"} <= set(images(sim))


def test_a_container_waits_for_the_image_of_its_volume_and_others_do_not() -> None:
    sim = started()
    bare = {**container("registry.k8s.io/pause:3.10.1"), "name": "bare"}
    mount = {"name": "model", "mountPath": "/model"}
    mounts = [mount, {**mount, "mountPath": "/again"}]
    mounting = {**container("registry.k8s.io/pause:3.10.1"), "volumeMounts": mounts}
    volume = image_volume("example.com/model:1")
    notes = annotated(pull_error="NotFound")
    sim.create_pod("two", annotations=notes, volumes=[volume], containers=[mounting, bare])
    sim.run_for(seconds=4)
    found = sim.status("two")["containerStatuses"]
    states = {each["name"]: each["state"] for each in found}
    assert "running" in states["bare"]
    assert states["c"]["waiting"]["reason"] in {"ErrImagePull", "ImagePullBackOff"}
    assert states["c"]["waiting"]["message"].endswith("example.com/model:1: not found")
    said = [each[1:] for each in messages(sim, "two")]
    assert ("Pulling", 'Pulling image "example.com/model:1"') in said
    assert ("Failed", "Error: ErrImagePull") in said
    told = [e for e in sim.events("Failed") if e["message"] == "Error: ErrImagePull"]
    assert [each["count"] for each in told] == [2]  # of each mount
    sim.server.update(
        "pods", "two", {"metadata": {"annotations": annotated(pull_error="")}}, "default"
    )
    sim.run_for(seconds=40)
    assert sim.phase("two") == "Running"


def test_a_pod_that_is_deleted_while_its_volume_is_pulled_goes_after_that() -> None:
    sim = started()
    slow = annotated(pull_time="1m")
    sim.create_pod("slow", annotations=slow, volumes=[image_volume("example.com/model:1")])
    sim.run_for(seconds=20)
    sim.server.delete_pod("slow")
    sim.run_for(seconds=20)
    assert sim.phase("slow") == "Pending"
    sim.run_for(seconds=120)
    assert sim.phase("slow") == ""


def test_an_adopted_node_knows_the_images_of_its_pods() -> None:
    """One of them is named by its digest, and the statuses of its containers by its tag."""
    preloaded = next(
        each.names for each in default_model().images_preloaded if "@" in each.names[0]
    )
    sim = started()
    sim.create_pod("web")
    sim.create_pod("by-digest", containers=[container(preloaded[0])])
    sim.run_for(seconds=60)
    [shown] = sim.status("by-digest")["containerStatuses"]
    assert (shown["imageID"], shown["image"]) == preloaded
    running = {name: sim.server.get("pods", name, "default") for name in ("web", "by-digest")}

    def setup(server: SimApiServer) -> None:
        for name, each in running.items():
            server.create(("pods", "default", name), each)

    after = Simulation(seed=2, setup=setup)
    after.run_for(seconds=100)
    assert "docker.io/library/nginx:1" in images(after)
    assert "Pulling" not in [each[1] for each in messages(after, "web")]
    assert [each["restartCount"] for each in after.status("by-digest")["containerStatuses"]] == [0]
