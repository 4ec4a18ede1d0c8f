"""A cluster that was named is somebody's, though it has no node of theirs; and early signals.

Whatever is prepared when Ctrl-C or SIGTERM comes ends at once, in order, with a documented code.
"""

import contextlib
import os
import pty
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from support.connect_proxy import ConnectProxy
from support.guard import MARK, marked_processes

from e2e.e2e_world import (
    CONFIRMED,
    FLEET,
    FOREIGN_NODE,
    Running,
    World,
    eventually,
    workload,
)
from e2e.lateness import assert_done
from fleet.cluster.daemonsets import EXCLUDE_FROM_BALANCERS, FAKE_TAINT
from fleet.cluster.ownership import RUN_LABEL

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
ADOPTED = 300
"""So many nodes take longer to adopt than the signal takes to come."""


def assert_guests(world: World, prefix: str, count: int) -> None:
    nodes = world.nodes(prefix).values()
    assert len(nodes) == count
    for node in nodes:
        assert FAKE_TAINT.key in {taint["key"] for taint in node["spec"].get("taints", ())}
        assert EXCLUDE_FROM_BALANCERS in node["metadata"]["labels"]
        assert "topology.kubernetes.io/zone" not in node["metadata"]["labels"]


def test_all_of_a_run_goes_by_the_proxy_of_its_kubeconfig(world: World, tmp_path: Path) -> None:
    """Fleet's own requests, each node's connection and the command's kubectl."""
    [user] = yaml.safe_load(world.info.token_kubeconfig.read_text())["users"]
    with ConnectProxy() as proxy:
        facts = {"proxy-url": proxy.url}
        named = world.user(tmp_path / "proxied", user["user"]["token"], **facts)
        options = ("--nodes=3", "--name-prefix=proxied", "--identity=impersonate")
        command = ("kubectl", "get", "nodes", "-o", "name")
        confirmed = ("spawn", *options, f"--kubeconfig={named}", CONFIRMED)
        done = world.fleet(*confirmed, "--", *command)
        assert_done(done.returncode, done.stdout, done.stderr)
        with_nodes = len(proxy.asked)
    assert f", by the proxy 127.0.0.1:{proxy.port}" in done.stderr
    assert "node/proxied-00002" in done.stdout
    assert set(proxy.asked) == {world.info.url.removeprefix("https://")}
    assert with_nodes >= 6  # the nodes', the observer's, fleet's own, the command's
    world.assert_nothing_left("proxied")


def test_an_empty_cluster_that_was_named_must_be_confirmed(world: World) -> None:
    named = f"--kubeconfig={world.info.kubeconfig}"
    assert not world.items("nodes")
    refused = world.fleet("spawn", "--nodes=3", "--name-prefix=early", named, "--until-ready")
    assert refused.returncode == 2, refused.stderr
    assert "no node that fleet did not create): confirm with --confirm-cluster" in refused.stderr
    assert not world.items("nodes")
    assert not world.items("leases", "-A", "-l", RUN_LABEL)


def test_its_nodes_are_guests_before_the_first_real_node_comes(world: World) -> None:
    """Those of two processes; test_shared_cluster.py has one."""
    named = (f"--kubeconfig={world.info.kubeconfig}", CONFIRMED, "--processes=2")
    with world.spawn("first", 4, *named) as run:
        run.until_ready()
        assert "SHARED cluster: it was named" in run.log
        assert_guests(world, "first", 4)
        world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": FOREIGN_NODE}})
        try:
            knows = {"key": FAKE_TAINT.key, "operator": "Exists"}
            world.apply(
                workload("Deployment", "wildcard", 2, tolerations=[{"operator": "Exists"}]),
                workload("Deployment", "knowing", 2, tolerations=[knows]),
            )
            world.kubectl("rollout", "status", "deployment/knowing", "--timeout=120s")
            running = {"Running"}
            eventually(
                lambda: {pod["status"]["phase"] for pod in world.pods("wildcard")} == running,
                "those that tolerate everything run",
            )
            assert not world.ready_pods("wildcard")
        finally:
            world.kubectl("delete", "deployment", "wildcard", "knowing", "--wait=false")
            world.kubectl("delete", "node", FOREIGN_NODE)
        run.end_well_or_late()
    world.assert_nothing_left("first")


# ---- signals before there is a kubelet ----


@contextlib.contextmanager
def spawned(
    world: World,
    tmp_path: Path,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """Start `fleet spawn` with a mark of its own; at the end nothing of it is left."""
    directory, log = tmp_path / "run", tmp_path / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            (*FLEET, "spawn", f"--run-dir={directory}", *arguments),
            cwd=world.root,
            env={**os.environ, **variables, MARK: str(tmp_path)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            yield Running(process, directory, log)
        finally:
            process.kill()
    eventually(lambda: not marked_processes(str(tmp_path)), "nothing of it runs")


def assert_ends(run: Running, number: int, words: str = "nothing was created") -> None:
    run.process.send_signal(number)
    assert run.wait() == 130, run.log
    assert run.log.splitlines()[-1] == f"fleet: interrupted; {words}"
    assert "Traceback" not in run.log
    if "nothing" in words:
        assert not run.directory.exists()


@SIGNALS
def test_a_signal_ends_the_question(world: World, tmp_path: Path, number: int) -> None:
    ours, terminal = pty.openpty()
    named = f"--kubeconfig={world.info.kubeconfig}"
    try:
        with spawned(world, tmp_path, "--name-prefix=asked", named, stdin=terminal) as run:
            run.until("[y/N]")
            assert_ends(run, number)
        assert os.get_blocking(terminal)
    finally:
        os.close(ours)
        os.close(terminal)
    world.assert_nothing_left("asked")


def test_ctrl_c_at_the_terminal_ends_the_question(world: World, tmp_path: Path) -> None:
    """The key itself: the terminal is the controlling one, and sends the signal."""
    process, ours = pty.fork()
    if not process:
        os.chdir(world.root)
        named = f"--kubeconfig={world.info.kubeconfig}"
        os.execvp(FLEET[0], (*FLEET, "spawn", f"--run-dir={tmp_path / 'run'}", named))
    said = b""
    try:
        while b"[y/N]" not in said:
            said += os.read(ours, 4096)
        os.write(ours, b"\x03")
        with contextlib.suppress(OSError):  # the other end has closed it
            while piece := os.read(ours, 4096):
                said += piece
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    finally:
        os.close(ours)
    assert b"fleet: interrupted; nothing was created" in said
    assert b"Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_the_build_of_the_control_plane(world: World, tmp_path: Path) -> None:
    """With a Go that never ends, and starts a compiler that does not either."""
    tools = tmp_path / "tools"
    tools.mkdir()
    go = tools / "go"
    go.write_text('#!/bin/sh\n[ "$1" = env ] && { echo go9.9; exit; }\nsleep 1000 &\nwait\n')
    go.chmod(0o755)
    elsewhere = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with spawned(world, tmp_path, variables=elsewhere) as run:
        run.until("building the control plane")
        assert_ends(run, signal.SIGTERM)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_a_signal_ends_the_start_of_the_control_plane(world: World, tmp_path: Path) -> None:
    with spawned(world, tmp_path, variables={"XDG_STATE_HOME": str(tmp_path / "state")}) as run:
        run.until("starting the control plane")
        assert_ends(run, signal.SIGINT)


def test_a_signal_ends_the_preflight(world: World, tmp_path: Path) -> None:
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        kubeconfig = world.user(tmp_path / "kubeconfig", "t", server=url)
        with spawned(world, tmp_path, f"--kubeconfig={kubeconfig}") as run, server.accept()[0]:
            assert_ends(run, signal.SIGTERM)


def test_a_signal_ends_the_adoption(world: World, tmp_path: Path) -> None:
    """What was adopted by then is removed, the rest is the earlier run's."""
    wanted = ("--fidelity=light", "--name-prefix=many", f"--nodes={ADOPTED}")
    kept = world.fleet("spawn", *wanted, "--until-ready", "--keep")
    assert_done(kept.returncode, kept.stdout, kept.stderr)
    earlier = world.run_id("many")
    try:
        with spawned(world, tmp_path, *wanted) as run:
            run.until(f"adopting {ADOPTED} nodes", poll_s=0.001)
            assert_ends(run, signal.SIGINT, "what was created is removed")
            assert "bringing" not in run.log
        runs = {node["metadata"]["labels"][RUN_LABEL] for node in world.nodes("many").values()}
        assert runs == {earlier}
        assert not world.items("leases", "-A", "-l", RUN_LABEL)
    finally:
        assert world.fleet("clean", "--run", earlier).returncode == 0
    world.assert_nothing_left("many")
