"""Nodes that others make, as an autoscaler's KWOK provider does: fleet is their kubelet."""

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from oracle.real_kubelet import RealKubelet, running, why_not
from support.go_program import build_kubelet

from e2e.audit_requests import requests_of
from e2e.e2e_world import CONFIRMED, Json, World, condition, eventually, workload
from e2e.fault_world import lively
from fleet.k8s.well_known import MANAGED_ANNOTATION, OPT_IN_LABEL

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

LABEL = "example.com/pool"
DRIVER = "csi.fleet.emulator"
TAINT = {"key": "example.com/made", "value": "by-others", "effect": "NoSchedule"}
LEASES = ("-n", "kube-node-lease", "leases.coordination.k8s.io")


def made(name: str, pool: str, **status: object) -> Json:
    """Return a Node as a KWOK provider creates it."""
    amounts = {"cpu": "3", "memory": "5Gi", "pods": "17", "example.com/widget": "2"}
    system = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "s390x"}
    labels = {LABEL: pool, OPT_IN_LABEL: "true", **system}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"theirs": "kept"}},
        "spec": {"providerID": f"kwok://{name}", "taints": [TAINT]},
        "status": {"capacity": amounts, "allocatable": amounts, **status},
    }


def create(world: World, *nodes: Json) -> None:
    """Create Nodes with their status, as `kubectl create` does not drop it."""
    document = "---\n".join(yaml.safe_dump(each) for each in nodes)
    world.kubectl("create", "-f", "-", stdin=document)


def found(world: World, pool: str) -> dict[str, Json]:
    return {
        node["metadata"]["name"]: node for node in world.items("nodes", "-l", f"{LABEL}={pool}")
    }


def lease(world: World, name: str) -> Json | None:
    leases = {each["metadata"]["name"]: each for each in world.items(*LEASES)}
    return leases.get(name)


def is_ready(world: World, pool: str, *names: str) -> bool:
    nodes = found(world, pool)
    return all(name in nodes and condition(nodes[name], "Ready") == "True" for name in names)


def untouched(node: Json) -> Json:
    """Return what fleet must leave as it is; a controller adds labels of an older kind."""
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    taints = [each for each in spec.get("taints", ()) if "node.kubernetes.io/" not in each["key"]]
    return {
        "labels": {k: v for k, v in metadata["labels"].items() if not k.startswith("beta.")},
        "theirs": metadata["annotations"]["theirs"],
        "providerID": spec["providerID"],
        "taints": taints,
        "capacity": {key: status["capacity"][key] for key in ("cpu", "memory", "pods")},
        "widgets": [status[each].get("example.com/widget") for each in ("capacity", "allocatable")],
    }


@pytest.fixture
def pool(request: pytest.FixtureRequest, world: World) -> Iterator[str]:
    """Name the Nodes of a test, and delete them after it."""
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    yield name
    world.kubectl("delete", "nodes", "-l", f"{LABEL}={name}", "--ignore-not-found")


def test_a_node_that_others_make_is_served_until_they_delete_it(world: World, pool: str) -> None:
    manage = f"--manage={LABEL}={pool}"
    first, second = made("made-0", pool), made("made-1", pool)
    with world.spawn(
        "keeper", 5, manage, f"--kubeconfig={world.info.kubeconfig}", CONFIRMED
    ) as run:
        run.until_ready()  # of the Nodes that there are, none
        create(world, first, made("made-alone", "another"))
        eventually(lambda: is_ready(world, pool, "made-0"), "the Node is Ready")
        node = found(world, pool)["made-0"]
        assert untouched(node) == untouched(first)
        assert node["metadata"]["annotations"][MANAGED_ANNOTATION] == "true"
        assert node["status"]["allocatable"]["pods"] == "17"
        assert "fleet.emulator/run" not in node["metadata"]["labels"]
        uid = node["metadata"]["uid"]
        eventually(lambda: lease(world, "made-0") is not None, "it has a Lease")
        held = lease(world, "made-0")
        assert held is not None
        assert held["metadata"]["ownerReferences"][0]["uid"] == uid
        renewed = held["spec"]["renewTime"]

        def is_renewed() -> bool:
            now = lease(world, "made-0")
            return now is not None and now["spec"]["renewTime"] != renewed

        eventually(is_renewed, "the Lease is renewed")
        tolerating = workload(
            "Deployment", "lodger", 2, tolerations=[{**TAINT, "operator": "Equal"}]
        )
        tolerating["spec"]["template"]["spec"]["nodeSelector"] = {LABEL: pool}
        world.apply(tolerating)
        try:
            eventually(lambda: len(world.ready_pods("lodger")) == 2, "its pods are Ready")
            assert {pod["spec"]["nodeName"] for pod in world.pods("lodger")} == {"made-0"}
            create(world, second)
            eventually(lambda: is_ready(world, pool, "made-1"), "one more is Ready")
            world.kubectl("delete", "node", "made-0")
            eventually(lambda: lease(world, "made-0") is None, "its Lease goes with it")
            assert set(found(world, pool)) == {"made-1"}, "and it stays away"
            create(world, first)
            eventually(lambda: is_ready(world, pool, "made-0"), "it comes back with its name")
            assert found(world, pool)["made-0"]["metadata"]["uid"] != uid
        finally:
            world.kubectl("delete", "deployment", "lodger", "--wait=false")
        eventually(lambda: not world.pods("lodger"), "its pods go")
        other = found(world, "another")["made-alone"]
        assert condition(other, "Ready") != "True", "it does not match"
        assert lease(world, "made-alone") is None
        run.end_well_or_late()
    assert set(found(world, pool)) == {"made-0", "made-1"}, "Nodes of others stay"
    world.kubectl("delete", "node", "made-alone")
    assert "bug in fleet" not in run.log


def test_nodes_of_other_kubelets_are_refused(world: World, pool: str) -> None:
    """A machine's, with its Lease; one whose kubelet just comes; and a node of a fleet."""
    theirs = made("theirs-0", pool)
    coming = made("theirs-1", pool, nodeInfo={"bootID": "a-machine", "machineID": "a-machine"})
    fleets = made("theirs-2", pool)
    fleets["metadata"]["labels"]["fleet.emulator/run"] = "r20261123-000000-aaaa"
    held: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}}
    held["metadata"] = {"name": "theirs-0", "namespace": "kube-node-lease"}
    held["spec"] = {"holderIdentity": "theirs-0", "renewTime": "2026-01-01T00:00:00.000000Z"}
    create(world, theirs, coming, fleets, held, made("ours-0", pool))
    named = f"--kubeconfig={world.info.kubeconfig}"
    try:
        with world.spawn("refuser", 5, f"--manage={LABEL}={pool}", named, CONFIRMED) as run:
            run.until("theirs-0 (its Lease is held by theirs-0)")
            late = copy.deepcopy(held)
            late["metadata"]["name"] = "theirs-1"
            world.apply(late)  # its kubelet is there by now
            run.until("theirs-1 (another kubelet renews its Lease)")
            assert "theirs-2 (of run r20261123-000000-aaaa of fleet)" in run.log
            run.until_ready()
            assert is_ready(world, pool, "ours-0")
            run.end_well_or_late()
        for name in ("theirs-0", "theirs-1", "theirs-2"):
            node = found(world, pool)[name]
            assert condition(node, "Ready") != "True"
            assert MANAGED_ANNOTATION not in node["metadata"]["annotations"]
            assert node["status"]["capacity"] == theirs["status"]["capacity"]
        for name in ("theirs-0", "theirs-1"):
            kept = lease(world, name)
            assert kept is not None
            assert kept["spec"] == held["spec"]
        assert lease(world, "theirs-2") is None
    finally:
        world.kubectl("delete", *LEASES, "theirs-0", "theirs-1", "--ignore-not-found")


def test_a_named_cluster_must_be_confirmed_and_a_next_run_goes_on(world: World, pool: str) -> None:
    """Also one with CSI drivers: those that it finds on the Nodes are of the run before."""
    manage, named = f"--manage={LABEL}={pool}", f"--kubeconfig={world.info.kubeconfig}"
    profile = lively(world, "again-storage", csiDrivers=[{"name": DRIVER}])
    create(world, made("again-0", pool), made("again-1", pool))
    world.kubectl("label", "node", "again-1", f"{OPT_IN_LABEL}-")

    def drivers() -> list[str]:
        found = {each["metadata"]["name"]: each["spec"] for each in world.items("csinodes")}
        return [each["name"] for each in found.get("again-0", {}).get("drivers") or ()]

    refused = world.fleet("spawn", "--name-prefix=again", manage, named)
    assert refused.returncode == 2, refused.stderr
    assert "confirm with --confirm-cluster" in refused.stderr
    assert MANAGED_ANNOTATION not in found(world, pool)["again-0"]["metadata"]["annotations"]
    with world.spawn("again", 5, manage, named, CONFIRMED, profile) as run:
        run.until_ready()
        eventually(lambda: lease(world, "again-0") is not None, "it has a Lease")
        eventually(lambda: drivers() == [DRIVER], "it has a driver", seen=drivers)
        assert f"without the label {OPT_IN_LABEL}=true" in run.log
        assert "again-1 left alone" in run.log
        assert lease(world, "again-1") is None
        world.kubectl("label", "node", "again-1", f"{OPT_IN_LABEL}=true")
        eventually(lambda: is_ready(world, pool, "again-1"), "its owner allows it now")
        world.kubectl("label", "node", "again-1", f"{OPT_IN_LABEL}-")
        run.end_well_or_late()
    world.kubectl("delete", "node", "again-1")
    assert drivers() == [DRIVER], "it stays, as the Node does"
    uid = found(world, pool)["again-0"]["metadata"]["uid"]
    next_run = (manage, named, CONFIRMED, profile, "--until-ready")
    done = world.fleet("spawn", "--name-prefix=again", *next_run)
    assert "of 1 now" in done.stderr, done.stderr
    assert "all 1 nodes are Ready" in done.stderr, done.stderr
    assert {name: each["metadata"]["uid"] for name, each in found(world, pool).items()} == {
        "again-0": uid
    }


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_node_whose_own_kubelet_comes_late_is_left_to_it(
    world: World, pool: str, environment: Path
) -> None:
    """The real kubelet, of a machine that joins under the name of a Node that fleet serves."""
    program = asyncio.run(build_kubelet())
    manage, named = f"--manage={LABEL}={pool}", f"--kubeconfig={world.info.kubeconfig}"
    profile = environment / "late-runtime.yaml"
    profile.write_text(world.fleet("profiles", "show", "default").stdout)
    late = RealKubelet(program, "late-0", environment / "late-0", world.info.kubeconfig, profile)
    create(world, made("late-0", pool), made("late-1", pool))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lodger: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late-lodger"}}
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10.1"}
    lodger["spec"] = {"nodeName": "late-0", "containers": [container]}
    lodger["spec"]["tolerations"] = [{"operator": "Exists"}]

    def pods() -> dict[str, str]:
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in world.items("pods")}

    with world.spawn("late", 5, manage, named, CONFIRMED) as run:
        run.until_ready()
        world.apply(lodger)
        eventually(lambda: is_ready(world, pool, "late-0", "late-1"), "both are Ready")
        uid = pods()["late-lodger"]
        with running(late):
            run.until("Node late-0 left to its own kubelet: another kubelet")
            seen = len(requests_of(world, "late-0"))

            def is_theirs() -> bool:
                info = found(world, pool)["late-0"]["status"]["nodeInfo"]
                return bool(info["bootID"] == boot)

            eventually(is_theirs, "its own kubelet reports it")
            renewed = (lease(world, "late-0") or {})["spec"]["renewTime"]
            eventually(
                lambda: (lease(world, "late-0") or {})["spec"]["renewTime"] != renewed,
                "its own kubelet renews its Lease",
            )
            assert is_theirs()
            assert pods()["late-lodger"] == uid
            asked = [each["verb"] for each in requests_of(world, "late-0")[seen:]]
            assert not {"create", "update", "patch", "delete"} & set(asked), asked
            node = found(world, pool)["late-0"]
            assert MANAGED_ANNOTATION not in node["metadata"]["annotations"]
            events = [each for each in world.items("events") if each["reason"] == "FleetLeft"]
            assert [each["involvedObject"]["name"] for each in events] == ["late-0"]
        assert is_ready(world, pool, "late-1"), "fleet goes on with the other one"
        run.end_well_or_late()
    assert run.log.count("left to its own kubelet") == 1
    assert "bug in fleet" not in run.log
    world.kubectl("delete", "pod", "late-lodger", "--force", "--grace-period=0")
