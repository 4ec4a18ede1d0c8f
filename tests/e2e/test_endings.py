"""How a run ends: by itself, by Ctrl-C, by force; what it prints, and that nothing is left."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

import psutil
import pytest
from support import documented
from support.guard import MARK, marked_processes

from e2e.e2e_world import FLEET, World, eventually, workload
from e2e.lateness import assert_done
from fleet.cluster.ownership import OWNER_ANNOTATION, owner_mark
from fleet.controlplane.options import COMPONENTS
from fleet.report.service_levels import STEADY_LEAST_S

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NOT_IN_THIS_RUN = ("expectations", "invalid_reasons", "agents", "shards")
"""Keys whose list or map is empty in a good run of one process without agents."""


def test_the_summary_has_the_keys_of_the_interface_and_sane_values(world: World) -> None:
    options = (world.quick(), "--output=json", "--rate=max")
    with world.spawn("json", 5, *options, has_levels=True) as run:
        run.until_ready()
        world.apply(workload("Deployment", "json", 10))
        world.kubectl("rollout", "status", "deployment/json", "--timeout=120s")
        world.kubectl("delete", "deployment", "json")
        eventually(lambda: not world.pods("json"), "the pods are gone")
        eventually(lambda: lease_times(world, "json") >= 2, "each Lease has been renewed twice")
        printed = run.end_well_or_late()
    found = json.loads(printed)
    keys = {key for key in documented.summary_keys() if not key.startswith(NOT_IN_THIS_RUN)}
    assert {key for key in documented.paths(found) if not key.startswith(NOT_IN_THIS_RUN)} == keys
    assert found == json.loads((run.directory / "summary.json").read_text())
    judged = {"pass", "fail"} if found["wall_s"] >= STEADY_LEAST_S else {"not-judged"}
    assert found["verdict"] in (judged if found["valid"] else {"invalid"})
    assert bool(found["verdict_reasons"]) is (found["verdict"] != "pass")
    assert found["valid"] is (not found["invalid_reasons"])
    assert found["schema_version"] == 1
    assert found["server_version"] == world.info.server_version
    assert found["etcd_fsync"] is False
    assert (found["fidelity"], found["identity"]) == ("kubelet", "impersonate")
    assert found["pace"] == "max"
    assert (found["start"], found["nodes"]["time_to_settled_s"] > 0) == ("settled", True)
    assert found["nodes"] | {"time_to_ready_s": 0, "time_to_settled_s": 0} == {
        "requested": 5,
        "registered": 5,
        "ready": 5,
        "time_to_ready_s": 0,
        "time_to_settled_s": 0,
        "ever_not_ready": 0,
    }
    assert 0 < found["nodes"]["time_to_ready_s"] < found["wall_s"]
    # As with real kubelets: one that looks for its Node too early has its Lease a period later.
    assert 10 <= found["lease"]["renewals"] <= 5 * found["wall_s"] / 2
    assert found["lease"]["interval_max_s"] >= 2
    assert found["pods"]["started"] == 10
    assert found["pods"]["deleted"] == 10
    assert found["pods"]["failed"] == 0
    assert 0 < found["pods"]["start_ms"]["p50"] <= found["pods"]["start_ms"]["p99"]
    for row in found["requests"]:
        assert row["count"] > 0
    rows = {(row["verb"], row["resource"], row["code"]): row["count"] for row in found["requests"]}
    assert rows["POST", "nodes", 201] == 5
    assert rows["POST", "leases", 201] == 5
    assert rows["DELETE", "pods", 200] == 10
    assert found["events"]["sent"] >= 5 * 5
    assert found["watch"]["open"] >= 5 * 5
    assert found["connections"]["dials"] >= found["connections"]["open"] >= 5
    assert found["connections"]["pings_lost"] == 0
    assert 0 < found["process"]["cpu_s"] < found["wall_s"]
    lines = (run.directory / "timeseries.jsonl").read_text().splitlines()
    assert 1 <= len(lines) <= found["wall_s"] + 1
    assert max(json.loads(line)["nodes"]["ready"] for line in lines) == 5
    world.assert_nothing_left("json")


def lease_times(world: World, prefix: str) -> int:
    """Return how often the Lease that was renewed least was renewed."""
    renewed = Counter(
        event["objectRef"]["name"]
        for event in world.audit()
        if event["verb"] == "update" and event["objectRef"].get("resource") == "leases"
    )
    return min(renewed[f"{prefix}-{slot:05d}"] for slot in range(5))


def test_a_command_sees_the_nodes_and_gives_the_exit_code(world: World) -> None:
    script = " ".join((*world.info.kubectl, "get nodes -o name; exit 7"))
    path = f"{Path(world.info.kubectl[0]).parent}{os.pathsep}{os.environ['PATH']}"
    spawn = ("spawn", "--nodes=4", "--name-prefix=cmd")
    done = world.fleet(*spawn, "--", "sh", "-c", script, PATH=path)
    assert_done(done.returncode, done.stdout, done.stderr, expected=7)
    for slot in range(4):
        assert f"node/cmd-{slot:05d}" in done.stdout
    world.assert_nothing_left("cmd")
    absent = world.fleet(*spawn, "--", "no-such-program")
    assert absent.returncode == 3
    assert "cannot run 'no-such-program'" in absent.stderr
    world.assert_nothing_left("cmd")


def test_ctrl_c_removes_nodes_and_pods(world: World) -> None:
    with world.spawn("ctrlc", 5) as run:
        run.until_ready()
        world.apply(workload("Deployment", "ctrlc", 10))
        world.kubectl("rollout", "status", "deployment/ctrlc", "--timeout=120s")
        bound = {pod["metadata"]["uid"] for pod in world.pods("ctrlc")}
        printed = run.end_well_or_late()
        assert "5" in printed
    left = {pod["metadata"]["uid"] for pod in world.pods("ctrlc")}
    assert not bound & left  # those that replaced them are Pending
    world.assert_nothing_left("ctrlc")
    world.kubectl("delete", "deployment", "ctrlc", "--wait=false")


def test_ctrl_c_before_all_are_ready_cleans_up_too(world: World) -> None:
    with world.spawn("early", 300, "--rate=20") as run:
        eventually(lambda: len(world.nodes("early")) >= 10, "some nodes are there")
        run.interrupt()
        assert run.wait() == 4
        summary = json.loads((run.directory / "summary.json").read_text())
    assert summary["verdict"] == "incomplete"
    assert re.search(r"stopped when \d+ of 300 nodes were Ready", str(summary["invalid_reasons"]))
    world.assert_nothing_left("early")


def test_a_second_ctrl_c_says_what_is_left(world: World) -> None:
    with world.spawn("twice", 40) as run:
        run.until_ready()
        with world.server_stopped():  # or the nodes may be gone before the second one comes
            run.interrupt()
            run.until("draining")
            run.interrupt_again()
            assert run.wait() == 130
        [line] = [line for line in run.log.splitlines() if line.startswith("fleet: interrupted")]
    run_id = world.run_id("twice")
    assert "nodes, leases and pods" in line
    assert line.endswith(f"fleet clean --run {run_id}")
    done = world.fleet("clean", "--run", run_id)
    assert done.returncode == 0, done.stderr
    world.assert_nothing_left("twice")


def assert_marked(world: World, prefix: str) -> None:
    """Each node names its run and the uid of the run's Lease, also once kubelets wrote to it."""
    lease = world.get("lease", f"fleet-run-{prefix}", "-n", "default")
    mark = owner_mark(world.run_id(prefix), lease["metadata"]["uid"])
    metadata = [node["metadata"] for node in world.nodes(prefix).values()]
    marks = {each["annotations"][OWNER_ANNOTATION] for each in metadata}
    assert marks == {mark}


def test_kept_nodes_stay_until_they_are_cleaned(world: World) -> None:
    """`fleet clean` alone lists and deletes nothing; --run, --expired and --all delete.

    The second run is a quiet one.
    """
    for prefix, options in ("keep-a", ()), ("keep-b", ("--quiet",)):
        spawn = ("spawn", "--nodes=2", f"--name-prefix={prefix}", "--until-ready", "--keep")
        done = world.fleet(*spawn, *options)
        assert_done(done.returncode, done.stdout, done.stderr)
        if options:
            assert not re.search(r"^\[ *\d+:\d\d\]|Ready", done.stderr, re.MULTILINE), done.stderr
        else:
            assert "all 2 nodes are Ready" in done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert "etcd" in done.stdout  # every summary says whether it waited for the disk
        assert f"fleet clean --run {world.run_id(prefix)}" in done.stdout
    first = world.run_id("keep-a")
    listed = world.fleet("clean")
    assert listed.returncode == 0
    assert first in listed.stdout
    assert "nothing was deleted" in listed.stdout
    assert len(world.nodes("keep-a")) == 2
    done = world.fleet("clean", "--run", first)
    assert "removed 1 runs: 2 nodes, " in done.stdout
    world.assert_nothing_left("keep-a")
    assert len(world.nodes("keep-b")) == 2
    with world.spawn("living", 2) as run:
        run.until_ready()
        assert_marked(world, "living")
        for refused in (("--expired",), ("--all",)):
            done = world.fleet("clean", *refused)
            assert done.returncode == 2
            assert done.stderr.strip().startswith(f"fleet: {refused[0]} without a terminal needs")
        dry = world.fleet("clean", "--expired", "--dry-run")
        assert dry.returncode == 0
        assert world.run_id("keep-b") in dry.stdout
        assert world.run_id("living") not in dry.stdout
        assert len(world.nodes("keep-b")) == 2
        done = world.fleet("clean", "--expired", "--yes")
        assert "removed 1 runs: 2 nodes" in done.stdout
        world.assert_nothing_left("keep-b")
        assert len(world.nodes("living")) == 2
        assert world.fleet("clean", "--all", "--expired").returncode == 2
        run.end_well_or_late()
    absent = world.fleet("clean", "--run", "no-such-run")
    assert absent.returncode == 2
    assert "--run no-such-run: no such run in this cluster" in absent.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_with_its_own_control_plane_leaves_no_process(
    environment: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """Without a standing one fleet starts its own, and it dies with fleet."""
    mark = str(environment / how.name)
    variables = {**os.environ, MARK: mark, "XDG_STATE_HOME": str(tmp_path / "none")}
    log = tmp_path / "log"
    command = (*FLEET, "spawn", "--nodes=3", f"--run-dir={tmp_path / 'run'}")
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command,
            cwd=environment,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            eventually(lambda: "nodes are Ready after" in log.read_text(), "Ready")
            names = {Path(each.exe()).name for each in marked_processes(mark)}
            assert len(marked_processes(mark)) >= 1 + len(COMPONENTS), names
            process.send_signal(how)
            printed, _ = process.communicate(timeout=240)
        finally:
            process.kill()
    if how is signal.SIGINT:
        assert_done(process.returncode, printed, log.read_text())
        assert "fsync" in printed
        assert not marked_processes(mark)
    eventually(lambda: not marked_processes(mark), "its processes are gone")
    assert not [each for each in psutil.process_iter(["ppid"]) if each.info["ppid"] == process.pid]
