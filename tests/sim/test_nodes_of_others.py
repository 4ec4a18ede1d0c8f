"""Kubelets of Nodes that others make: they create none, and change nothing that a Node says."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from world.api_server import SimApiServer
from world.sim_faults import (
    AnswersSlow,
    ApiServerAnswers,
    ConnectionsDropped,
    ConnectionsRefused,
    EventsLate,
    RequestsVanish,
)
from world.simulation import Simulation, default_model
from world.transport import Sent

from fleet.k8s.effects import NodeId
from fleet.k8s.holds import RENEWED, SENT_MAX, Hold
from fleet.k8s.well_known import MANAGED_ANNOTATION
from fleet.profile.node_model import Resources, managed_model

pytest_plugins = ("sim_encodings",)

NODE = "/api/v1/nodes"
AMOUNTS = {"cpu": "3", "memory": "5Gi", "pods": "17", "example.com/widget": "2"}
MADE: dict[str, Any] = {
    "metadata": {
        "name": "n-0",
        "labels": {"pool": "theirs", "kubernetes.io/arch": "s390x"},
        "annotations": {"theirs": "kept"},
    },
    "spec": {"providerID": "kwok://n-0", "taints": [{"key": "t", "effect": "NoSchedule"}]},
    "status": {
        "capacity": AMOUNTS,
        "allocatable": AMOUNTS,
        "nodeInfo": {"kubeletVersion": "v1.30.0", "osImage": "Theirs"},
        "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}],
    },
}


def make(server: SimApiServer) -> None:
    """Create the Node as an autoscaler does."""
    server.create(("nodes", "", "n-0"), copy.deepcopy(MADE))


def managed(
    seed: int, renewed: str = "", setup: Callable[[SimApiServer], None] = make
) -> Simulation:
    """Begin to serve the Node, whose Lease was last renewed then, "" for no Lease."""
    model = managed_model(default_model(), Resources.of(MADE["status"]))
    return Simulation(
        seed=seed,
        setup=setup,
        model=model,
        registers=False,
        hold=lambda server: Hold(server.get("nodes", "n-0")["metadata"]["uid"], renewed),
    )


def creations(sim: Simulation) -> list[Sent]:
    return [each for each in sim.calls(verb="POST") if each.path.partition("?")[0] == NODE]


def test_all_that_a_node_says_stays_and_the_rest_is_filled_in() -> None:
    sim = managed(1)
    sim.run_for(seconds=60)
    node = sim.server.get("nodes", "n-0")
    assert sim.condition("n-0") == "True"
    assert node["metadata"]["labels"] == MADE["metadata"]["labels"]
    assert node["metadata"]["annotations"]["theirs"] == "kept"
    assert node["metadata"]["annotations"][MANAGED_ANNOTATION] == "true"
    assert node["spec"] == MADE["spec"]
    status, said = node["status"], MADE["status"]
    for member in ("capacity", "allocatable"):
        assert {key: status[member][key] for key in AMOUNTS} == AMOUNTS
        assert set(status[member]) == {*AMOUNTS, "ephemeral-storage"}
    assert status["addresses"] == said["addresses"]
    release = default_model().release
    assert status["nodeInfo"] == {
        **{key: value for key, value in default_model().node_info.items() if value},
        **{key: status["nodeInfo"][key] for key in ("machineID", "systemUUID", "bootID")},
        **said["nodeInfo"],
        **({"runningInUserNamespace": False} if release.says_user_namespace else {}),
    }
    assert not creations(sim)
    lease = sim.server.get("leases", "n-0", "kube-node-lease")
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


def test_pods_run_there() -> None:
    sim = managed(2)
    sim.create_pod("a")
    sim.run_for(seconds=60)
    assert sim.phase("a") == "Running"


def test_a_restarted_kubelet_creates_no_node_either_and_finds_nothing_to_change() -> None:
    sim = managed(3)
    sim.run_for(seconds=30)
    before = len(sim.calls(verb="PATCH", path=NODE))
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=9)
    assert len(sim.calls(verb="PATCH", path=NODE)) == before + 1, "the first report alone"
    assert not creations(sim)


def test_a_node_that_is_deleted_is_not_made_anew() -> None:
    """Not by a kubelet that nobody has told yet, not by its successor, whatever fails meanwhile."""
    sim = managed(4)
    sim.run_for(seconds=30)
    sim.server.remove(("nodes", "", "n-0"))
    sim.run_for(seconds=60)
    sim.reactor.restart([NodeId(0)])
    sim.inject(ApiServerAnswers(503), seconds=20)
    sim.run_for(seconds=60)
    assert not creations(sim)
    assert sim.server.find("nodes", "n-0") is None
    sim.reactor.silence(NodeId(0))
    silent = len(sim.trace)
    sim.run_for(seconds=60)
    assert len(sim.trace) == silent


# ---- another kubelet comes ----

THEIR_BOOT = "6f1d1c2e-0000-4000-8000-000000000001"
LEASES = "kube-node-lease"


def writes(sim: Simulation, since: int) -> list[Sent]:
    """Return what changed something for the node, of the requests since then."""
    verbs = ("POST", "PUT", "PATCH", "DELETE")
    return [each for each in sim.trace[since:] if each.verb in verbs and each.code < 300]


def renew_as_they_do(sim: Simulation) -> None:
    spec = {"spec": {"renewTime": "2030-01-01T00:00:00.000001Z"}}
    sim.server.update("leases", "n-0", spec, LEASES)


def report_as_they_do(sim: Simulation) -> None:
    info = {"bootID": THEIR_BOOT, "machineID": "theirs", "kubeletVersion": "v1.36.3"}
    sim.server.update("nodes", "n-0", {"status": {"nodeInfo": info}})


@pytest.mark.parametrize("come", [renew_as_they_do, report_as_they_do])
def test_a_node_whose_own_kubelet_comes_is_left_at_once(come: Callable[[Simulation], None]) -> None:
    """No status, no renewal, and a pod that was bound there is not deleted."""
    sim = managed(5)
    sim.create_pod("a")
    sim.run_for(seconds=60)
    assert sim.phase("a") == "Running"
    come(sim)
    if come is renew_as_they_do:
        sim.run_for(seconds=10.4)  # the next renewal finds out
    sim.run_for(seconds=0.1)
    lease, since = sim.server.get("leases", "n-0", LEASES), len(sim.trace)
    sim.server.delete_pod("a")
    sim.run_for(seconds=400)  # a report of the status is due each 300 s
    assert sim.server.find("pods", "a", "default") is not None
    assert writes(sim, since) == []
    assert sim.server.get("leases", "n-0", LEASES) == lease
    why = sim.env.holds[0].why
    assert why == RENEWED if come is renew_as_they_do else THEIR_BOOT in why
    assert sim.reactor.entries[0].kubelet is None


EARLIER = "2026-01-01T00:00:00.000001Z"


@pytest.mark.parametrize("known", ["", "2026-01-01T00:00:00.000002Z", EARLIER])
@pytest.mark.parametrize("late", [False, True])
def test_a_lease_is_renewed_only_as_it_was_judged(*, late: bool, known: str) -> None:
    """Another kubelet may make or renew it between the look and the take-over, or the GET."""
    before = {"spec": {"holderIdentity": "n-0", "renewTime": EARLIER}}

    def has_lease(server: SimApiServer) -> None:
        make(server)
        server.create(("leases", LEASES, "n-0"), before)

    sim = managed(6, known, make if late else has_lease)
    if late:
        sim.server.create(("leases", LEASES, "n-0"), before)
    sim.run_for(seconds=60)
    is_renewed = sim.server.get("leases", "n-0", LEASES)["spec"]["renewTime"] != EARLIER
    is_ours = known == EARLIER
    assert is_renewed is is_ours
    assert sim.condition("n-0") == ("True" if is_ours else "")
    if not is_ours:
        assert [
            each for each in writes(sim, 0) if each.path.startswith((NODE, "/apis/coord"))
        ] == []


def test_a_status_that_another_kubelet_wrote_unseen_is_not_overwritten() -> None:
    """Between the look and the write: the event of its report has not come yet."""
    sim = managed(8)
    sim.run_for(seconds=60)
    sim.inject(EventsLate(900), seconds=900)
    report_as_they_do(sim)
    sim.run_for(seconds=400)
    assert sim.calls(verb="PATCH", path=NODE, code=409), "it was tried"
    node = sim.server.get("nodes", "n-0")
    assert node["status"]["nodeInfo"]["bootID"] == THEIR_BOOT
    assert THEIR_BOOT in sim.env.holds[0].why


@pytest.mark.parametrize(
    ("trouble", "seconds"),
    [
        (ConnectionsDropped(), 0),
        (AnswersSlow(15), 120),
        (ApiServerAnswers(503), 120),
        (ApiServerAnswers(409), 60),
        (ConnectionsRefused(), 200),
        (RequestsVanish(), 200),
        (EventsLate(100), 300),
    ],
)
def test_what_fleet_itself_has_done_is_no_other_kubelet(trouble: Any, seconds: float) -> None:
    """Also a renewal that was done without an answer, and whose next try conflicts with it."""
    sim = managed(9)
    sim.create_pod("a")
    sim.run_for(seconds=60)
    for number in range(12):
        sim.after(9.5 + number / 10, lambda: sim.inject(trouble, seconds))
    sim.run_for(seconds=900)
    assert sim.env.holds[0].why == ""
    assert sim.condition("n-0") == "True"
    since = len(sim.trace)
    sim.run_for(seconds=11)
    assert [each for each in writes(sim, since) if "/leases/" in each.path]


@pytest.mark.parametrize("kind", ["KubeletRestart", "NodeDown", "KubeletDown"])
def test_a_kubelet_or_machine_that_starts_again_is_no_other_one(kind: str) -> None:
    sim = managed(10)
    sim.run_for(seconds=60)
    sim.go_wrong(0 if kind == "KubeletRestart" else 60, type=kind)
    sim.run_for(seconds=300)
    assert sim.env.holds[0].why == ""
    assert sim.condition("n-0") == "True"


def test_the_times_of_a_hold_are_bounded_and_confirmed() -> None:
    hold = Hold("uid", "2026-01-01T00:00:00.000001Z")
    assert hold.is_own_renewal(b"2026-01-01T00:00:00.000001Z")
    assert not hold.is_own_renewal(b"")
    for wall_ns in range(0, 200_000, 1_000):
        hold.on_sent(wall_ns)
    assert hold.is_own_renewal(b"1970-01-01T00:00:00.000199Z")
    assert not hold.is_own_renewal(b"1970-01-01T00:00:00.000%03dZ" % (199 - SENT_MAX - 1))
    hold.on_confirmed(198_000)
    assert not hold.is_own_renewal(b"1970-01-01T00:00:00.000197Z"), "it cannot be done any more"
    assert hold.is_own_renewal(b"1970-01-01T00:00:00.000199Z"), "it was sent after that"
    assert not hold.is_own_renewal(b"2026-01-01T00:00:00.000001Z")
    assert not hold.is_renewed_by_others("2026-01-01T00:00:00.000001Z", "7", "8"), "it comes late"
    assert hold.is_renewed_by_others("2026-01-01T00:00:00.000001Z", "9", "8")
    assert not hold.is_renewed_by_others("2026-01-01T00:00:00.000001Z", "x", "8")
