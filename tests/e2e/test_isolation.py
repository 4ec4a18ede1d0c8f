"""A test that fails in the middle fails no other test of its worker."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import markdown

from e2e.e2e_world import Json, World, eventually, workload
from e2e.leftovers import NODES, WORKLOADS, left, remove, until_the_next_second

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

PREFIX = "broken"
HELD = {"finalizers": ["example.com/nobody"]}
KINDS = (*WORKLOADS, *NODES)


def named(kind: str, name: str, version: str = "v1", **fields: object) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def pod(name: str, **metadata: object) -> Json:
    """Return a pod that no node suits."""
    container = {"name": "c", "image": "none"}
    spec = {"containers": [container], "nodeSelector": {"nowhere": ""}}
    made = named("Pod", name, spec=spec)
    made["metadata"] |= metadata
    return made


def volume(name: str) -> Json:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "csi.nobody", "volumeHandle": "1"},
    }
    made = named("PersistentVolume", name, spec=spec)
    made["metadata"] |= HELD
    return made


def leave_something(world: World) -> None:
    """Leave what a test would have removed at its end, and what has nobody to let it go."""
    taint = {"key": "gone", "effect": "NoExecute"}
    world.apply(
        workload("Deployment", "left", 3, tolerations=[{"operator": "Exists"}]),
        workload("Job", "left-job", 2),
        pod("held", **HELD),
        volume("held"),
        named("ConfigMap", "left"),
        named("RuntimeClass", "left", "node.k8s.io/v1", handler="runc"),
        named("Node", "left", spec={"taints": [taint]}),
        named("Namespace", "left"),
        named("Secret", "bootstrap-token-left0", type="bootstrap.kubernetes.io/token")
        | {"metadata": {"name": "bootstrap-token-left00", "namespace": "kube-system"}},
    )
    world.kubectl("-n", "left", "create", "deployment", "inside", "--image=none")
    world.kubectl("delete", "pod/held", "pv/held", "--wait=false")


def fail_with_a_fleet(world: World) -> None:
    with world.spawn(PREFIX, 2, "--fidelity=light") as run:
        run.until_ready()
        leave_something(world)
        eventually(lambda: len(world.ready_pods("left")) == 3, "pods run")
        raise ZeroDivisionError


def test_what_a_failed_test_left_is_removed_and_nothing_else(world: World) -> None:
    world.apply(named("ConfigMap", "before"), pod("before"))
    since_s = until_the_next_second()
    with pytest.raises(ZeroDivisionError):
        fail_with_a_fleet(world)
    kinds = {each.kind for each in left(world, since_s, KINDS)}
    assert kinds >= {"deployments", "pods", "persistentvolumes", "nodes", "namespaces", "secrets"}
    remove(world, since_s)
    assert left(world, since_s, KINDS) == []
    assert world.items("nodes") == []
    world.assert_nothing_left(PREFIX)
    assert world.get("configmap", "before")
    assert [each["metadata"]["name"] for each in world.items("pods", "-A")] == ["before"]
    world.kubectl("delete", "configmap/before", "pod/before", "--force", "--grace-period=0")


def test_a_fleet_that_is_on_keeps_what_it_has(world: World) -> None:
    """As that of a module, of which one test has failed."""
    with world.spawn("healthy", 2) as run:
        run.until_ready()
        world.apply(workload("Deployment", "kept", 2))
        eventually(lambda: len(world.ready_pods("kept")) == 2, "pods run")
        uids, pods = world.uids("healthy"), {each["metadata"]["uid"] for each in world.pods("kept")}
        since_s = until_the_next_second()
        world.kubectl("scale", "deployment", "kept", "--replicas=3")  # made again, if it went
        with pytest.raises(ZeroDivisionError):
            fail_with_a_fleet(world)
        remove(world, since_s)
        assert left(world, since_s, WORKLOADS) == []
        world.assert_nothing_left(PREFIX)
        assert world.uids("healthy") == uids
        eventually(lambda: len(world.ready_pods("kept")) == 3, "the third pod runs")
        assert {each["metadata"]["uid"] for each in world.ready_pods("kept")} > pods
        world.kubectl("delete", "deployment", "kept")
        world.kubectl("delete", "node", "left")
        run.end_well_or_late()
    world.assert_nothing_left("healthy")


BREAKS = """
import pytest
from e2e.e2e_world import workload
pytest_plugins = ("e2e.e2e_fixtures",)

@pytest.fixture(scope="module")
def fleet(world):
    with world.spawn("module", 2, "--fidelity=light") as run:
        run.until_ready()
        yield run
        run.end_well_or_late()
    world.assert_nothing_left("module")

def test_that_fails(world, fleet):
    world.apply(workload("Deployment", "left", 3))
    with world.spawn("inner", 2, "--fidelity=light") as run:
        run.until_ready()
        raise ZeroDivisionError

def test_beside(world, fleet):
    assert not world.pods("left")
    assert not world.nodes("inner")
    assert len(world.nodes("module")) == 2
    raise ZeroDivisionError
"""
FOLLOWS = """
pytest_plugins = ("e2e.e2e_fixtures",)

def test_after(world):
    for kind in ("nodes", "pods", "deployments"):
        assert world.items(kind) == []
    with world.spawn("inner", 2, "--fidelity=light") as run:
        run.until_ready()
        run.end_well_or_late()
    world.assert_nothing_left("inner")
"""


@pytest.mark.slow  # a session of its own, with a control plane
@pytest.mark.timeout(600)
def test_the_tests_after_a_failed_one_are_well(tmp_path: Path) -> None:
    """Those of its module, whose fleet is on, and those of the next one."""
    (tmp_path / "test_breaks.py").write_text(BREAKS)
    (tmp_path / "test_follows.py").write_text(FOLLOWS)
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pytest", f"--config-file={markdown.ROOT / 'pyproject.toml'}"),
            *("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "-rA", "--tb=short"),
            *("test_breaks.py", "test_follows.py"),
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    ends = {
        line.split()[0] + " " + line.partition("::")[2].split()[0] for line in told if "::" in line
    }
    ends = {each for each in ends if each.startswith(("PASSED ", "FAILED ", "ERROR "))}
    assert ends == {"FAILED test_that_fails", "FAILED test_beside", "PASSED test_after"}, (
        done.stdout
    )
    assert done.stdout.count("E   ZeroDivisionError") == 2, done.stdout
