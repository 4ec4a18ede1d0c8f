"""`fleet capacity`: runs of growing size on a real control plane, and what breaks first."""

import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.summary_schema import read_summary

from e2e.e2e_world import DEDICATED, FLEET, WAIT_MAX_S, Json, World
from e2e.lateness import INVALID, is_late
from fleet.cluster.kept_records import RECORD_OF

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NEVER = """\
apiVersion: fleet.emulator/v1alpha1
kind: ServiceLevelObjectives
metadata: {name: never}
spec:
  defaults: false
  expectations:
  - {sli: TimeToNodesReady, max: 1ms}
"""


def options(world: World, name: str) -> tuple[str, ...]:
    """Return those of a search from 3 to 6 nodes."""
    return (
        *("capacity", "--max-nodes=6", "--first=3", "--hold=1s", f"--name-prefix={name}"),
        "--fidelity=light",  # whose few timers are no sample to find a run late by
        *(f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, "--tries=1"),
    )


def searched(world: World, name: str, *arguments: str, no_report: str = "1") -> tuple[int, Json]:
    """Search from 3 to 6 nodes; return the exit code and `capacity.json`."""
    directory = world.root / f"capacity-{name}"
    done = world.fleet(
        *options(world, name),
        *("--output=json", f"--run-dir={directory}", *arguments),
        FLEET_NO_REPORT=no_report,
    )
    assert done.returncode in {0, 1}, done.stderr
    found: Json = json.loads((directory / "capacity.json").read_text())
    assert json.loads(done.stdout) == found
    for probe in found["probes"]:
        assert (Path(probe["directory"]) / "summary.json").exists()
    world.assert_nothing_left(name)
    return done.returncode, found


def was_late(probe: Json) -> bool:
    summary = read_summary(Path(probe["directory"]) / "summary.json")
    return is_late(INVALID, json.dumps(summary))


def test_what_holds_is_the_most_that_was_asked(world: World) -> None:
    code, found = searched(world, "holds")
    if not any(was_late(probe) for probe in found["probes"]):
        assert [probe["nodes"] for probe in found["probes"]] == [3, 6]
        # A size is held for a second, which is too short for service levels.
        assert {probe["verdict"] for probe in found["probes"]} == {"not-judged"}
        assert (code, found["verdict"], found["held"], found["broke"]) == (0, "not-judged", 6, None)


def test_nodes_have_pods_while_a_size_is_held(world: World) -> None:
    """Two on each, through the scheduler; they are Ready before the size is held."""
    code, found = searched(world, "used", "--pods-per-node=2", "--max-nodes=3", "--pod-churn=0.5")
    probe = found["probes"][0]
    assert probe["nodes"] == 3
    summary = read_summary(Path(probe["directory"]) / "summary.json")
    if not was_late(probe):
        assert (code, found["held"]) == (0, 3), found
    assert found["load"].startswith("2 pods on each node through the scheduler")
    assert summary["pods"]["started"] >= 6
    [waited] = summary["expectations"]
    assert (waited["name"], waited["met"]) == ("load: PodsReady within 10m0s", True)
    parts = {each["name"]: each for each in summary["phases"]}
    assert parts["load"]["until_s"] <= parts["steady"]["from_s"] <= parts["in-use"]["from_s"]


def test_two_machines_search_together(world: World, tmp_path: Path) -> None:
    """Each has its part of the nodes, and one verdict comes of the records of both."""
    name, part = "both", ("--shard=1/2", f"--run-dir={tmp_path / 'second'}")
    with subprocess.Popen(
        (*FLEET, *options(world, name), *part), stderr=subprocess.PIPE, text=True
    ) as second:
        try:
            code, found = searched(world, name, "--shard=0/2", "--max-nodes=3")
            _, said = second.communicate(timeout=WAIT_MAX_S)
        finally:
            second.kill()
    [probe] = found["probes"]
    summary = read_summary(Path(probe["directory"]) / "summary.json")
    if not was_late(probe):
        assert (code, found["held"], probe["verdict"]) == (0, 3, "not-judged"), found
    assert (summary["nodes"]["requested"], summary["nodes"]["ready"]) == (3, 3)
    assert [(each["name"], each["nodes"]) for each in summary["shards"]] == [
        ("both-0000", 2),
        ("both-0001", 1),
    ]
    assert (second.returncode, said.splitlines()[-1]) == (
        0,
        "the search is over; this machine took part in 1 run",
    )
    assert not world.items("configmaps", "-n", "default", "-l", RECORD_OF)


def test_nothing_holds_what_cannot_be_kept(world: World, tmp_path: Path) -> None:
    slo = tmp_path / "never.yaml"
    slo.write_text(NEVER)
    code, found = searched(world, "never", f"--slo={slo}", no_report="0")
    directory = Path(found["probes"][0]["directory"])
    page = (directory.parent / "capacity.html").read_text()
    assert "No size held on Kubernetes v1." in page
    assert '<figure id="plot-capacity"' in page
    assert (directory / "report.html").exists()
    assert (code, found["held"], found["broke"]) == (1, 0, 1)
    assert [probe["nodes"] for probe in found["probes"]] == [3, 1]
    for probe in found["probes"]:
        assert probe["verdict"] == "fail"
        assert probe["nearest"] == "TimeToNodesReady"
        assert probe["share"] > 1
    assert "TimeToNodesReady" in found["what_broke"]


@pytest.mark.slow
def test_variables_are_passed_on_and_a_token_is_on_no_command_line(
    world: World, tmp_path: Path
) -> None:
    """The nodes join with it, under the name that a variable gave."""
    number, secret, name = "capac1", "0123456789abcdef", "unseen"
    token_secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{number}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": number,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
        },
    }
    world.apply(token_secret)
    before = len(world.audit())
    directory = tmp_path / "found"
    variables = {
        "FLEET_KUBECONFIG": str(world.info.kubeconfig),
        "FLEET_CONFIRM_CLUSTER": DEDICATED[0].partition("=")[2],
        "FLEET_NO_TAINT": "1",
        "FLEET_NAME_PREFIX": name,
        "FLEET_IDENTITY": "csr",
        "FLEET_CERT_DIR": str(tmp_path / "certificates"),
        "FLEET_BOOTSTRAP_TOKEN": f"{number}.{secret}",
        "FLEET_NODES": "9",  # says nothing here
    }
    search = ("capacity", "--max-nodes=2", "--hold=1s", "--tries=1", f"--run-dir={directory}")
    commands: set[str] = set()
    with subprocess.Popen(
        (*FLEET, *search),
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 2 * WAIT_MAX_S
        while process.poll() is None:
            assert time.monotonic() < deadline
            commands.update(commands_below(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        printed = process.stdout.read()
    assert process.returncode in {0, 1}, printed
    found: Json = json.loads((directory / "capacity.json").read_text())
    assert found["probes"][0]["nodes"] == 2
    runs = [each for each in commands if " spawn " in each]
    assert runs
    assert all(f"--name-prefix={name}" in each for each in runs)
    assert not [each for each in (*commands, *found["command"]) if secret in each]
    joined = [
        each
        for each in world.audit()[before:]
        if each["user"].get("username") == f"system:bootstrap:{number}"
    ]
    assert joined
    world.assert_nothing_left(name)
    secret_name = token_secret["metadata"]["name"]  # type: ignore[index]
    world.kubectl("delete", "secret", secret_name, "--namespace=kube-system")


def commands_below(pid: int) -> set[str]:
    """Return the command lines of the processes that one has started."""
    found = set()
    for each in psutil.Process(pid).children(recursive=True):
        try:
            found.add(" ".join(each.cmdline()))
        except psutil.Error:  # it has ended meanwhile
            continue
    return found
