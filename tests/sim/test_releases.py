"""What kubelets of each minor do otherwise, as the API server sees it, in virtual time."""

import dataclasses

import pytest
from world.simulation import Simulation, default_model, pod_json
from world.strategic_merge import Object

from fleet.clock import NS_PER_S
from fleet.k8s.effects import NodeId
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.node_model import NodeModel
from fleet.profile.release import RELEASES, V1_34, V1_35, V1_36, V1_37, Release

pytest_plugins = ("sim_encodings",)

BASE = ("nodes", "services", "csidrivers", "runtimeclasses", "pods")
SANDBOX = "PodReadyToStartContainers"
of_each = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)


def model_of(release: Release, **configuration: object) -> NodeModel:
    made = dataclasses.replace(
        default_model(), kubelet=KubeletConfiguration.model_validate(configuration)
    )
    return made.on_server(release.newest).adapted(zone_labels=True)


def started(release: Release, **configuration: object) -> Simulation:
    return Simulation(seed=3, model=model_of(release, **configuration)).run_for(30)


def events(sim: Simulation, kind: str) -> list[Object]:
    return [each for each in sim.events() if each["involvedObject"]["kind"] == kind]


def messages(sim: Simulation, reason: str) -> list[str]:
    return [each["message"] for each in events(sim, "Pod") if each["reason"] == reason]


def conditions(sim: Simulation, pod: str = "web") -> dict[str, Object]:
    found = sim.status(pod)["conditions"]
    return {each["type"]: each for each in found}


@of_each
def test_a_snapshot_is_streamed_or_listed(release: Release) -> None:
    sim = started(release)
    watched = BASE if release is not V1_37 else (*BASE, "podcertificaterequests")
    for resource in watched:
        lists = sim.calls("n-0", "GET", f"/{resource}?")
        [watch] = sim.calls("n-0", "WATCH", f"/{resource}?")
        if release is V1_34:
            [page] = lists
            assert page.path.endswith("limit=500&resourceVersion=0")
            assert "sendInitialEvents" not in watch.path
            assert "&resourceVersion=" in watch.path
        else:
            assert not lists
            assert "sendInitialEvents=true" in watch.path
    assert sim.server.open_watches == len(watched)


@of_each
def test_certificate_requests_are_watched_by_node(release: Release) -> None:
    found = started(release).calls("n-0", "WATCH", "/podcertificaterequests?")
    assert len(found) == (release is V1_37)
    assert all("fieldSelector=spec.nodeName%3Dn-0" in each.path for each in found)


@of_each
def test_events_of_the_node_refer_to_it(release: Release) -> None:
    sim = started(release)
    uid = sim.server.get("nodes", "n-0")["metadata"]["uid"]
    sim.reactor.restart([NodeId(0)])  # a kubelet that has not seen its Node yet knows no uid
    sim.run_for(400)
    refs = {each["reason"]: each["involvedObject"] for each in events(sim, "Node")}
    own, managers = refs["NodeReady"], refs["NodeAllocatableEnforced"]
    expected = {V1_34: ("n-0", None), V1_37: (uid, "v1")}.get(release, (None, "v1"))
    assert (own.get("uid"), own.get("apiVersion")) == expected
    assert managers.get("uid") == ("n-0" if release is V1_34 else None)


@of_each
def test_pods_are_watched_before_the_node_is_there_or_after(release: Release) -> None:
    sim = Simulation(seed=3, model=model_of(release), registers=False)
    sim.run_for(5)  # nobody has made its Node
    assert len(sim.calls("n-0", "WATCH", "/pods?")) == (release is not V1_37)


@of_each
def test_what_a_node_says_of_its_kubelet(release: Release) -> None:
    status = started(release).server.get("nodes", "n-0")["status"]
    assert status["nodeInfo"]["kubeletVersion"] == release.newest
    assert ("runningInUserNamespace" in status["nodeInfo"]) == (release is V1_37)
    assert len(status.get("declaredFeatures", ())) == (4 if release in {V1_36, V1_37} else 0)


@of_each
def test_a_node_is_read_once_more_for_a_pod_that_its_affinity_keeps_out(release: Release) -> None:
    sim = started(release)
    since_s = sim.now_s
    expression = {"key": "disk", "operator": "In", "values": ["ssd"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    sim.create_pod("web", affinity={"nodeAffinity": required})
    sim.run_for(3)
    assert sim.phase("web") == "Failed"
    assert len(sim.calls("n-0", "GET", "/nodes/n-0", since_s=since_s)) == (release is not V1_34)


@of_each
def test_the_user_agent_names_the_release(release: Release) -> None:
    model = model_of(release)
    assert model.filled(model.user_agent).startswith(f"kubelet/{release.newest} (linux/".encode())


@of_each
def test_what_a_start_says(release: Release) -> None:
    sim = started(release)
    since_s = sim.now_s
    sim.create_pod("web")
    sim.run_for(30)
    sim.create_pod("again")
    sim.run_for(10)
    is_old = release is V1_34
    assert messages(sim, "Created")[0] == (
        "Created container: c" if is_old else "Container created"
    )
    assert messages(sim, "Started")[0] == ("Started container c" if is_old else "Container started")
    usable = "" if is_old else " and can be accessed by the pod"
    [pulled] = [each for each in messages(sim, "Pulled") if "already" in each]
    assert pulled == f'Container image "nginx:1" already present on machine{usable}'
    patches = sim.calls("n-0", "PATCH", "/pods/web/status", since_s=since_s)
    # A kubelet that does not report the sandbox says Pending, then Running.
    assert len(patches) == (3 if release in {V1_36, V1_37} else 2)
    assert sim.phase("web") == "Running"


@of_each
def test_a_start_is_seen_by_the_next_relist_or_at_once(release: Release) -> None:
    sim = started(release)
    late = []
    for at in range(8):
        sim.create_pod(f"web-{at}")
        sim.run_for(20.37)
        started_ns = sim.calls("n-0", "POST", "/events")[-1].t_ns
        late.append(sim.calls("n-0", "PATCH", f"/pods/web-{at}/status")[-1].t_ns - started_ns)
    if release in {V1_36, V1_37}:
        assert max(late) < 0.3 * NS_PER_S
    else:  # up to a second, by the phase of the relists
        assert 0.5 * NS_PER_S < max(late) < 1.3 * NS_PER_S


@of_each
def test_a_csinode_is_made_after_a_look_at_its_node(release: Release) -> None:
    sim = started(release)
    asked = [
        each
        for each in sim.calls("n-0")
        if "/csinodes" in each.path or each.path.endswith("/nodes/n-0")
    ]
    made = next(at for at, each in enumerate(asked) if each.verb == "POST")
    order = ["node" if "/csinodes" not in each.path else "csinode" for each in asked[:made]][-2:]
    assert order == (["csinode", "node"] if release is V1_34 else ["node", "csinode"])


@of_each
def test_a_csinode_of_another_node_is_made_again_or_kept(release: Release) -> None:
    sim = Simulation(seed=3, model=model_of(release))
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "of-another"}
    stale = {"metadata": {"ownerReferences": [owner]}, "spec": {"drivers": []}}
    sim.server.create(("csinodes", "", "n-0"), stale)
    sim.run_for(30)
    assert len(sim.calls("n-0", "DELETE", "/csinodes/n-0")) == (release is not V1_34)
    assert sim.ready() == 1


@of_each
def test_the_last_state_of_an_ended_container_is_kept_or_dropped(release: Release) -> None:
    """The runtime has the last one of those that ended; a kubelet may know one more."""
    sim = started(release)
    crashes = {"fleet.emulator/exit-code": "1", "fleet.emulator/exit-after": "1s"}
    pod = pod_json("web", "n-0", annotations=crashes)
    pod["metadata"]["finalizers"] = ["example.com/keeps"]
    sim.server.create(("pods", "default", "web"), pod)
    sim.run_for(30)
    sim.server.delete_pod("web")
    sim.run_for(10)
    [container] = sim.status("web")["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 1
    assert bool(container.get("lastState")) == (release in {V1_36, V1_37})


@of_each
def test_why_there_is_no_sandbox(release: Release) -> None:
    sim = started(release)
    sim.create_pod("web")
    while SANDBOX not in conditions(sim):
        sim.run_for(0.01)
    found = conditions(sim)[SANDBOX]
    assert found["status"] == "False"
    said = (found.get("reason"), found.get("message"))
    assert said == (
        ("PodSandboxNotReady", "no pod sandbox exists") if release is V1_37 else (None, None)
    )
    sim.run_for(30)
    assert conditions(sim)[SANDBOX]["status"] == "True"
    assert "reason" not in conditions(sim)[SANDBOX]


@of_each
def test_missing_pull_secrets_are_reported_early_or_with_the_pull(release: Release) -> None:
    sim = started(release)
    sim.create_pod("fine", imagePullSecrets=[{"name": "lost"}])
    sim.run_for(40)
    assert sim.phase("fine") == "Running"
    early = messages(sim, "FailedToRetrieveImagePullSecret")
    assert bool(early) == (release is not V1_37)


def test_a_pull_that_fails_for_want_of_a_secret_says_so() -> None:
    sim = started(V1_37)
    behavior = {"fleet.emulator/pull-error": "Unauthorized"}
    sim.create_pod("web", imagePullSecrets=[{"name": "lost"}], annotations=behavior)
    sim.run_for(30)
    reasons = [each["reason"] for each in events(sim, "Pod")]
    assert "FailedToRetrieveImagePullSecret" in reasons
    at = reasons.index("FailedToRetrieveImagePullSecret")
    assert reasons[:at].count("Failed") == 2  # of the pull, and of the container


@of_each
def test_a_restarted_kubelet_goes_by_what_stands_there(release: Release) -> None:
    sim = started(release)
    probe = {"tcpSocket": {"port": 80}, "periodSeconds": 10, "timeoutSeconds": 1}
    full = {**probe, "successThreshold": 1, "failureThreshold": 3}
    sim.create_pod("web", readinessProbe=full)
    sim.run_for(60)
    before = conditions(sim)["Ready"]
    assert before["status"] == "True"
    sim.reactor.restart([NodeId(0)])
    sim.run_for(60)
    after = conditions(sim)["Ready"]
    assert after["status"] == "True"
    # An old kubelet takes the readiness back until its probe has run once.
    has_flapped = after["lastTransitionTime"] != before["lastTransitionTime"]
    assert has_flapped == (release is V1_34)


@of_each
def test_a_sync_that_starts_nothing_looks_at_dns_or_does_not(release: Release) -> None:
    sim = started(release)
    sim.create_pod("web", dnsConfig={"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]})
    sim.run_for(10)
    said = [each for each in events(sim, "Pod") if each["reason"] == "DNSConfigForming"]
    first = sum(each["count"] for each in said)
    sim.run_for(600)
    said = [each for each in events(sim, "Pod") if each["reason"] == "DNSConfigForming"]
    again = sum(each["count"] for each in said) - first
    assert again == 0 if release is V1_37 else 6 <= again <= 10


@of_each
def test_commands_of_probes_go_on_or_are_cancelled_once_their_pod_begins_to_end(
    release: Release,
) -> None:
    """Source: prober_manager.go, AddPod; pod_workers.go, UpdatePod: it cancels the context."""
    sim = started(release)
    probe = {"exec": {"command": ["cat", "/tmp/ok"]}, "periodSeconds": 1, "failureThreshold": 1}
    command = ["sh", "-c", "touch /tmp/ok; sleep 12; rm /tmp/ok; sleep 900"]
    container: Object = {"name": "c", "image": "busybox", "command": command}
    container["readinessProbe"] = probe
    sim.create_pod("web", containers=[container], terminationGracePeriodSeconds=10)
    sim.run_for(9)
    assert conditions(sim)["Ready"]["status"] == "True"
    assert not messages(sim, "Unhealthy")
    sim.server.delete_pod("web")
    sim.run_for(9)
    is_cancelled = release in {V1_35, V1_36}
    assert conditions(sim)["Ready"]["status"] == ("True" if is_cancelled else "False")
    sim.run_for(5)
    text = "Readiness probe failed: cat: can't open '/tmp/ok': No such file or directory\n"
    if is_cancelled:
        text = (
            "Readiness probe errored and resulted in unknown state: "
            "rpc error: code = Canceled desc = context canceled"
        )
    assert messages(sim, "Unhealthy") == [text]


@of_each
def test_what_is_said_of_a_resize(release: Release) -> None:
    sim = started(release)
    container: Object = {"name": "c", "image": "nginx:1", "resources": {"requests": {"cpu": "1"}}}
    sim.create_pod("web", containers=[container])
    sim.run_for(20)
    container = {**container, "resources": {"requests": {"cpu": "2"}}}
    changed = {"metadata": {"generation": 2}, "spec": {"containers": [container]}}
    sim.server.update("pods", "web", changed, "default")
    sim.run_for(20)
    said = [each["reason"] for each in events(sim, "Pod") if "Resize" in each["reason"]]
    assert said == (
        ["ResizeCompleted"] if release is V1_34 else ["ResizeStarted", "ResizeCompleted"]
    )
    whole = "resources" in sim.status("web")
    assert whole == (release in {V1_36, V1_37})


@pytest.mark.parametrize("release", [V1_34, V1_35], ids=lambda release: release.name)
def test_a_crash_loop_is_capped_by_the_configuration(release: Release) -> None:
    sim = started(release, crashLoopBackOff={"maxContainerRestartPeriod": "10s"})
    sim.create_pod(
        "web", annotations={"fleet.emulator/exit-code": "1", "fleet.emulator/exit-after": "1s"}
    )
    sim.run_for(300)
    [container] = sim.status("web")["containerStatuses"]
    assert (container["restartCount"] > 15) == (release is V1_35)
    [told] = [each["count"] for each in events(sim, "Pod") if each["reason"] == "BackOff"]
    assert told > 12  # an old kubelet looks each 10 to 15 s, not at the end of the back-off


@pytest.mark.parametrize("release", [V1_36, V1_37], ids=lambda release: release.name)
def test_no_limit_of_events_is_the_client_s_or_none(release: Release) -> None:
    sim = started(release, eventRecordQPS=0, eventBurst=1)
    since_s = sim.now_s
    for at in range(20):
        sim.create_pod(f"web-{at}")
    sim.run_for(4)
    sent = len(sim.calls("n-0", "POST", "/events", since_s=since_s))
    assert (sent > 40) == (release is V1_37)


@of_each
def test_a_change_of_a_refused_pod_is_acted_on_or_ignored(release: Release) -> None:
    sim = started(release)
    much = {"requests": {"cpu": "99"}}
    sim.create_pod("big", containers=[{"name": "c", "image": "nginx:1", "resources": much}])
    sim.run_for(20)
    assert sim.phase("big") == "Failed"
    since_s = sim.now_s
    edit = {"labels": {"a": "b"}, "finalizers": ["example.com/held"]}
    sim.server.update("pods", "big", {"metadata": edit}, "default")
    sim.run_for(20)
    assert bool(sim.calls("n-0", path="/pods/big", since_s=since_s)) == (release is not V1_37)
    since_s = sim.now_s
    sim.server.delete_pod("big")
    sim.run_for(20)
    found = [each.verb for each in sim.calls("n-0", path="/pods/big", since_s=since_s)]
    assert found == ["GET", *(["PATCH"] if release is V1_37 else []), "DELETE"]
