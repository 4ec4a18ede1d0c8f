"""Bad input: one line that says what to do, exit 2 or 3, and nothing is created."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.e2e_world import World, eventually
from fleet.cluster.ownership import RUN_LABEL

SAID_BEFORE = (
    "[",
    "using the local control plane",
    "WARNING fleet.cluster.credentials: CERTIFICATES ARE",
)

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def assert_refused(world: World, code: int, words: str, *arguments: str) -> None:
    """Fleet says one line, ends with the code, and leaves cluster and directory alone."""
    runs = set(world.root.glob("runs/*"))
    done = world.fleet("spawn", "--until-ready", *arguments)
    assert done.returncode == code, done.stderr
    assert not done.stdout
    lines = [line for line in done.stderr.splitlines() if not line.startswith(SAID_BEFORE)]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("fleet: ")
    assert words in lines[0]
    assert not world.items("nodes", "-l", RUN_LABEL)
    assert not world.items("leases", "-l", RUN_LABEL)
    assert set(world.root.glob("runs/*")) == runs


@pytest.mark.parametrize(
    ("argument", "code", "words"),
    [
        ("--kubeconfig=/no/such/file", 2, "--kubeconfig /no/such/file: no such file"),
        ("--confirm-cluster=other", 2, "--confirm-cluster other"),
        ("--run-dir=/dev/null/x", 3, "/dev/null/x"),
        ("--fsync", 2, "--fsync: the control plane in"),
    ],
)
def test_what_only_a_run_finds_out_is_refused(
    world: World, argument: str, code: int, words: str
) -> None:
    """Wrong options are in tests/unit/test_cli.py, servers in test_cluster_connection.py."""
    assert_refused(world, code, words, argument)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--metrics-port={}",), "fleet: --metrics-port {}: "),
        (("--dashboard", "--dashboard-port={}"), "fleet: --dashboard-port {}: Address already in"),
        (("--serve=ports", "--serve-at=127.0.0.1:{}"), "127.0.0.1 port {}: Address already in use"),
    ],
    ids=["metrics", "dashboard", "kubelets"],
)
def test_a_port_in_use_is_named(world: World, options: tuple[str, ...], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = (each.format(port) for each in options)
        done = world.fleet("spawn", "--nodes=1", "--name-prefix=ports", *given)
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fleet: ")
    assert words.format(port) in last
    world.assert_nothing_left("ports")


def test_revoked_credentials_are_told(world: World, tmp_path: Path) -> None:
    world.kubectl("create", "serviceaccount", "gone")
    token = world.kubectl("create", "token", "gone").strip()
    world.kubectl("delete", "serviceaccount", "gone")
    revoked = world.user(tmp_path / "revoked", token)
    # The server learns by a watch that the account is gone, and remembers for a while who it was.
    asks = ("get", "--raw", "/version")
    eventually(lambda: not world.kubectl(*asks, kubeconfig=revoked, check=False), "it is revoked")
    assert_refused(world, 3, "expired, revoked or of another", f"--kubeconfig={revoked}")


def until_allowed(world: World, verb: str, resource: str) -> None:
    """Wait until the authorizer has seen what the account `limited` was granted."""
    asked = ("auth", "can-i", verb, resource, "--as=system:serviceaccount:default:limited")
    eventually(lambda: world.kubectl(*asked, check=False).strip() == "yes", f"{verb} {resource}")


def test_a_missing_permission_is_named_by_verb_and_resource(world: World, tmp_path: Path) -> None:
    world.kubectl("create", "serviceaccount", "limited")
    account = "--serviceaccount=default:limited"
    path = world.user(tmp_path / "k", world.kubectl("create", "token", "limited").strip())
    try:
        assert_refused(world, 3, "delete csinodes.storage.k8s.io", f"--kubeconfig={path}")
        world.kubectl("create", "clusterrolebinding", "limited", "--clusterrole=view", account)
        until_allowed(world, "list", "configmaps")
        shared = (f"--kubeconfig={path}", "--identity=shared")
        assert_refused(world, 3, "get,patch,delete nodes fleet-00000", *shared)
        world.kubectl("delete", "clusterrolebinding", "limited")
        world.kubectl(
            "create", "clusterrolebinding", "limited", "--clusterrole=edit-nodes", account
        )
        rule = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "edit-nodes"},
            "rules": [
                {
                    "apiGroups": ["", "apps", "storage.k8s.io", "coordination.k8s.io"],
                    "resources": ["*"],
                    "verbs": ["get", "list", "watch", "patch", "delete", "create", "update"],
                }
            ],
        }
        world.apply(rule)
        until_allowed(world, "patch", "csinodes.storage.k8s.io")
        assert_refused(world, 3, "no permission to impersonate nodes", f"--kubeconfig={path}")
        words = "list,watch runtimeclasses.node.k8s.io"
        assert_refused(world, 3, words, *shared)
    finally:
        world.kubectl("delete", "clusterrolebinding", "limited", "--ignore-not-found")
        world.kubectl("delete", "clusterrole", "edit-nodes", "--ignore-not-found")
        world.kubectl("delete", "serviceaccount", "limited")


def test_a_second_fleet_with_the_prefix_is_refused(world: World) -> None:
    with world.spawn("mine", 2) as run:
        run.until_ready()
        uids = {node["metadata"]["uid"] for node in world.nodes("mine").values()}
        done = world.fleet("spawn", "--nodes=2", "--name-prefix=mine", "--until-ready")
        assert done.returncode == 3
        assert f"the name prefix mine is in use by run {world.run_id('mine')}" in done.stderr
        assert {node["metadata"]["uid"] for node in world.nodes("mine").values()} == uids
        run.end_well_or_late()
    world.assert_nothing_left("mine")


def test_names_of_nodes_that_fleet_did_not_create_are_left_alone(world: World) -> None:
    world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "taken-00001"}})
    try:
        confirm = "--confirm-cluster=fleet"
        done = world.fleet("spawn", "--nodes=2", "--name-prefix=taken", confirm, "--until-ready")
        assert done.returncode == 3, done.stderr
        assert "choose another --name-prefix" in done.stderr
        assert "taken-00000" not in world.kubectl("get", "nodes", "-o", "name")
    finally:
        world.kubectl("delete", "node", "taken-00001")


def test_too_few_file_descriptors_are_told_by_number(world: World) -> None:
    """A user who is not root cannot raise the hard limit; root runs without that right here."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "def refuse(*_): raise ValueError('not allowed to raise maximum limit')\n"
        "resource.setrlimit = refuse\n"
        "from fleet.cli import main; main()"
    )
    command = (sys.executable, "-c", limited, "spawn", "--nodes=1000", "--until-ready")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=world.root, timeout=120
    )
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert "1000 nodes in fidelity kubelet need 1250 open files, the limit is 300" in line
    assert "ulimit -Hn 1250" in line
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 300
