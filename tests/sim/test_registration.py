"""One node comes up as kubelet-reference 1.1 tells, whatever is there already."""

import copy
from itertools import pairwise

import orjson
import pytest
from world.api_server import SimApiServer
from world.pod_world import model_of
from world.sim_faults import ApiServerAnswers, ConnectionsRefused
from world.simulation import EVERY_WATCH, WATCHES, Simulation, default_model, pod_json
from world.transport import Sent

from fleet.k8s.effects import NodeId

pytest_plugins = ("sim_encodings",)

NODE = "/api/v1/nodes"
STATUS = "/status?timeout=10s"
LEASES = "/namespaces/kube-node-lease/leases"


def lines(sent: list[Sent]) -> list[str]:
    return [f"{each.verb} {each.path.partition('?')[0].rpartition('/')[2]}" for each in sent]


def reasons(server: SimApiServer) -> list[str]:
    return [str(event["reason"]) for event in server.all("events")]


def test_the_first_moments_of_a_node() -> None:
    sim = Simulation(seed=1).run_for(seconds=30)
    at_once = sorted(each for each in sim.trace if each.t_ns == 0)
    first = ["GET n-0", "GET n-0", "POST events"]  # the Lease, the CSINode
    assert lines(at_once)[:3] == first
    assert {*lines(at_once)[3:]} == {f"WATCH {each}" for each in EVERY_WATCH if each != "pods"}
    assert len(at_once) == len(first) + WATCHES - 1
    assert [each.t_ns for each in sim.calls(verb="POST", path=NODE)] == [100_000_000]
    [pods] = sim.calls(verb="WATCH", path="/api/v1/pods")
    assert pods.t_ns == 1_000_000_000
    assert len(sim.calls(verb="DELETECOLLECTION")) == 1


def test_the_first_lease_comes_ten_seconds_after_the_node() -> None:
    sim = Simulation(seed=2).run_for(seconds=30)
    first, second = sim.calls(verb="GET", path=LEASES)
    [created] = sim.calls(verb="POST", path=LEASES)
    assert (first.t_ns, first.code, second.code, created.code) == (0, 404, 404, 201)
    assert 10.0 <= created.t_ns / 1e9 <= 10.45
    lease = sim.server.get("leases", "n-0", "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == "n-0"
    assert (
        lease["metadata"]["ownerReferences"][0]["uid"]
        == sim.server.get("nodes", "n-0")["metadata"]["uid"]
    )


def test_ready_is_reported_on_the_grid_of_100_ms() -> None:
    for seed in range(5):
        sim = Simulation(seed=seed).run_for(seconds=3)
        first, ready = sim.calls(verb="PATCH", path=STATUS)
        assert 100_000_000 < first.t_ns < 120_000_000
        assert ready.t_ns % 100_000_000 == 0
        [csi] = sim.calls(verb="POST", path="csinodes")
        assert 0 < ready.t_ns - csi.t_ns <= 110_000_000
        assert sim.condition("n-0") == "True"


def test_the_requests_of_one_registration() -> None:
    sim = Simulation(seed=1).run_for(seconds=20)
    counts: dict[tuple[str, str], int] = {}
    for line in sim.trace:
        resource = line.path.partition("?")[0].removeprefix(NODE[:8]).split("/")
        kind = next(each for each in reversed(resource) if not each.startswith(("n-0", "status")))
        counts[line.verb, kind] = counts.get((line.verb, kind), 0) + 1
    # One less if the informer has the Node before the first look at it.
    assert counts.pop(("GET", "nodes")) in {6, 7}
    assert counts == {
        ("POST", "nodes"): 1,
        ("PATCH", "nodes"): 2,
        ("GET", "csinodes"): 2,
        ("POST", "csinodes"): 1,
        ("GET", "leases"): 2,
        ("POST", "leases"): 1,
        ("DELETECOLLECTION", "resourceslices"): 1,
        ("POST", "events"): 7,
        ("PATCH", "events"): 6,
        **{("WATCH", each): 1 for each in EVERY_WATCH},
    }


def add_node(server: SimApiServer) -> None:
    labels = {**default_model().labels, "kubernetes.io/arch": "s390x", "mine": "kept"}
    labels["fleet.emulator/run"] = "sim"  # adopted
    status = {
        "capacity": {"cpu": "1", "hugepages-32Mi": "0", "example.com/dongle": "3"},
        "allocatable": {"cpu": "1", "example.com/dongle": "3"},
        "nodeInfo": {"kubeletVersion": "v1.30.0", "kubeProxyVersion": "v1.30.0"},
        "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}],
        "conditions": [],
    }
    node = {"metadata": {"name": "n-0", "labels": labels}, "spec": {}, "status": status}
    server.create(("nodes", "", "n-0"), node)


@pytest.mark.parametrize("light", [False, True])
def test_a_node_that_exists_is_reconciled(*, light: bool) -> None:
    """It becomes what a new one would be, but for what kubelets leave to others."""
    sim = Simulation(seed=3, setup=add_node, light=light).run_for(seconds=30)
    fresh = Simulation(seed=3, light=light)
    fresh.run_for(seconds=30)
    status, expected = (each.server.get("nodes", "n-0")["status"] for each in (sim, fresh))
    for member in ("capacity", "allocatable"):
        assert status[member].pop("example.com/dongle") == "0"
    for member in ("capacity", "allocatable", "nodeInfo", "addresses", "runtimeHandlers"):
        assert status[member] == expected[member]
    assert status["declaredFeatures"] == expected["declaredFeatures"]
    patches = [each.path.rpartition("/")[2] for each in sim.calls(verb="PATCH", path=NODE)]
    # Its CSINode is made once the Node is known to be ours: it is Ready with the second report.
    reports = ["status?timeout=10s"] * (1 if light else 2)
    assert patches == ([] if light else ["status"]) + reports
    sim.run_for(seconds=100)
    assert len(sim.calls(verb="PATCH", path=NODE)) == len(patches), "nothing is left to change"
    [post] = sim.calls(verb="POST", path=NODE)
    assert post.code == 409
    labels = sim.server.get("nodes", "n-0")["metadata"]["labels"]
    assert labels["kubernetes.io/arch"] == default_model().arch
    assert labels["mine"] == "kept"
    assert sim.condition("n-0") == "True"
    assert len(sim.calls(verb="POST", path=LEASES)) == 1


def add_foreign_node(server: SimApiServer) -> None:
    """Let somebody's machine be there under our name, with all that it has."""
    add_node(server)
    uid = str(server.get("nodes", "n-0")["metadata"]["uid"])
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": uid}
    owned = {"metadata": {"name": "n-0", "ownerReferences": [owner]}, "spec": {}}
    server.create(("leases", "kube-node-lease", "n-0"), owned)
    server.create(("csinodes", "", "n-0"), owned)
    server.create(("pods", "default", "theirs"), pod_json("theirs", "n-0"))


@pytest.mark.parametrize("light", [False, True])
def test_a_node_that_is_not_this_run_s_is_left_alone(*, light: bool) -> None:
    """Nothing of it is written, before the kubelet has looked or after; it falls silent."""
    sim = Simulation(
        nodes=2,
        seed=3,
        setup=add_foreign_node,
        light=light,
        is_ours=lambda view: "mine" not in view.labels,
    )
    before = {
        (kind, name): copy.deepcopy(sim.server.get(kind, name, namespace))
        for kind, namespace, name in (
            *(("nodes", "", "n-0"), ("csinodes", "", "n-0")),
            *(("leases", "kube-node-lease", "n-0"), ("pods", "default", "theirs")),
        )
    }
    sim.run_for(seconds=60)
    for (kind, name), theirs in before.items():
        namespace = {"leases": "kube-node-lease", "pods": "default"}.get(kind, "")
        assert sim.server.get(kind, name, namespace) == theirs
    written = [each for each in sim.trace if each.verb not in ("GET", "WATCH", "LIST")]
    of_it = [each for each in written if "n-0" in each.path or "theirs" in each.path]
    assert not of_it
    assert sim.reactor.counts.foreign_names == ["n-0"]
    assert sim.condition("n-1") == "True", "the others go on"
    silent_since = len([each for each in sim.trace if each.node == "n-0"])
    sim.run_for(seconds=60)
    assert len([each for each in sim.trace if each.node == "n-0"]) == silent_since


def test_a_restarted_kubelet_finds_nothing_to_change() -> None:
    sim = Simulation(seed=3).run_for(seconds=30)
    assert sim.reactor.restart([NodeId(0)]) == 1
    before = len(sim.calls(verb="PATCH", path=NODE))
    sim.run_for(seconds=9)
    assert sim.calls(verb="POST", path=NODE)[-1].code == 409
    [patch] = sim.calls(verb="PATCH", path=NODE)[before:]
    assert "/status?timeout=10s" in patch.path, "the first report, and none of registration"


def test_a_csinode_of_another_node_is_replaced() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "another"}
    stale = {"metadata": {"name": "n-0", "ownerReferences": [owner]}}
    sim = Simulation(seed=3, setup=lambda s: s.create(("csinodes", "", "n-0"), stale) and None)
    sim.run_for(seconds=30)
    assert len(sim.calls(verb="DELETE", path="csinodes")) == 1
    [owned] = sim.server.get("csinodes", "n-0")["metadata"]["ownerReferences"]
    assert owned["uid"] == sim.server.get("nodes", "n-0")["metadata"]["uid"]
    assert sim.condition("n-0") == "True"


def test_registration_backs_off_while_the_server_is_away() -> None:
    sim = Simulation(nodes=3, seed=4)
    sim.inject(ApiServerAnswers(503), seconds=20)
    sim.run_for(seconds=60)
    tries = [each.t_ns / 1e9 for each in sim.calls("n-1", "POST", NODE)]
    gaps = [round(after - before, 1) for before, after in pairwise(tries)]
    assert tries[0] == 0.1
    assert gaps[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert sim.ready() == 3


def test_nodes_that_start_while_nothing_listens_come_up_later() -> None:
    sim = Simulation(nodes=5, seed=5)
    sim.inject(ConnectionsRefused(), seconds=45)
    sim.run_for(seconds=45)
    assert sim.server.all("nodes") == []
    sim.run_for(seconds=30)
    assert sim.ready() == 5
    sim.run_for(seconds=60)  # the longest back-off of a reflector: 30 s, doubled by its jitter
    assert sim.server.open_watches == 5 * WATCHES


def test_a_node_has_its_images_from_its_creation_on_and_the_first_patch_nothing() -> None:
    bodies = []
    sim = Simulation(seed=1)
    handle = sim.server.handle

    def spy(method: str, path: str, body: bytes) -> object:
        if method == "PATCH" and "/nodes/" in path:
            bodies.append(orjson.loads(body))
        return handle(method, path, body)

    sim.server.handle = spy  # type: ignore[method-assign,assignment]
    sim.run_for(seconds=5)
    first, ready = bodies
    assert first == {}
    shown = sim.server.get("nodes", "n-0")["status"]["images"]
    assert len(shown) == 47
    assert [each["sizeBytes"] for each in shown][:2] == [254331904, 208939008]
    assert [each["sizeBytes"] for each in shown][-1] == 319488
    changed = {each["type"]: sorted(each) for each in ready["status"]["conditions"]}
    assert changed["Ready"] == ["message", "reason", "status", "type"]  # in one second


def test_every_node_wipes_its_slices() -> None:
    """Whatever comes first: the informer's event, or the GET of the first status tick."""
    sim = Simulation(nodes=200, seed=5).run_for(seconds=5)
    assert len(sim.calls(verb="DELETECOLLECTION")) == 200


def test_a_machine_with_swap_says_how_much() -> None:
    sim = Simulation(
        model=model_of(template={"status": {"nodeInfo": {"swap": {"capacity": 1024}}}})
    )
    sim.run_for(seconds=30)
    assert sim.server.get("nodes", "n-0")["status"]["nodeInfo"]["swap"] == {"capacity": 1024}


def test_a_node_without_isolation_of_local_storage_shows_none() -> None:
    kubelet = {"localStorageCapacityIsolation": False}
    sim = Simulation(model=model_of(kubeletConfiguration=kubelet)).run_for(seconds=30)
    asks = {"requests": {"ephemeral-storage": "1Gi"}}
    pulled = {"image": "nginx:1", "imagePullPolicy": "IfNotPresent"}
    sim.create_pod("p", containers=[{"name": "c", **pulled, "resources": asks}])
    sim.create_pod("q")
    sim.run_for(seconds=30)
    assert "ephemeral-storage" not in sim.server.get("nodes", "n-0")["status"]["capacity"]
    assert sim.phase("q") == "Running"
    assert sim.status("p")["reason"] == "OutOfephemeral-storage"


@pytest.mark.parametrize(
    ("kernel", "swap", "told"),
    [("5.15.0-91-generic", 1024, True), ("6.4.0", 1024, False), ("5.15.0", 0, False)],
)
def test_a_kernel_may_swap_out_what_is_in_memory(kernel: str, swap: int, *, told: bool) -> None:
    info = {"kernelVersion": kernel, "swap": {"capacity": swap}}
    sim = Simulation(model=model_of(template={"status": {"nodeInfo": info}})).run_for(seconds=30)
    assert ("PossibleMemoryBackedVolumesOnDisk" in reasons(sim.server)) is told
