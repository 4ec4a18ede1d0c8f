"""The scenarios that ship, at reduced size: what the API server shows, and the verdict."""

import copy
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import CONFIRMED, DEDICATED, FLEET, Json, World, condition, eventually
from e2e.lateness import assert_done
from e2e.real_machine import real_machine
from fleet.cluster.leftovers import APPLIED_BY
from fleet.profile.pod_behavior import DEFAULT_DRIVER
from fleet.quantity import format_duration, parse_duration
from fleet.scenario.scenario import shipped

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODES = 9
SHRINK = {
    "zone-outage": 8,
    "thundering-herd": 30,
    "node-churn": 40,
    "crashloop-storm": 8,
    "gpu-cluster": 8,
    "steady-5k": 40,
    "rolling-update": 5,
    "pod-churn": 6,
    "big-objects": 10,
    "cluster-in-use": 6,
}
"""By how much the times of each are divided; its pods are as many for a node as those that ship."""
QUICK = ("gpu-cluster",)
"""With pods and devices; `make nightly` has those with faults, whose moments may be missed."""
WAITED = re.compile("(Nodes|Pods)[A-Za-z]+ within")
TIMES = ("duration", "at", "lifetime")


@pytest.fixture(scope="module")
def machine(eager: World) -> Iterator[str]:
    with real_machine(eager) as name:
        yield name


def shrunk(world: World, name: str) -> Path:
    """Write a shipped scenario with shorter times and for fewer nodes; return where."""
    document = yaml.safe_load(shipped()[name].read_text())
    spec = document["spec"]
    spec["defaults"] = False
    for expected in spec.get("expectations", ()):
        if expected["sli"] == "FalseNotReadyNodes":  # a machine that stands still loses some, too
            expected["max"] = NODES
    [pool] = spec["nodePools"]
    whole = pool["replicas"]
    for phase in spec["phases"]:
        for part in (phase, *phase.get("faults", ()), *phase.get("churn", ())):
            for key in TIMES:
                if key in part:
                    short_ns = parse_duration(part[key]) // SHRINK[name]
                    part[key] = format_duration(short_ns)
        for part in phase.get("apply", ()):
            if "replicas" in part["manifest"].get("spec", {}) and "podsPerNode" not in part:
                part["manifest"] = copy.deepcopy(part["manifest"])  # phases share it
                replicas = part["manifest"]["spec"]["replicas"]
                part["manifest"]["spec"]["replicas"] = replicas * NODES // whole
    path = world.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def written(world: World, name: str, phases: list[Json]) -> Path:
    """Write a scenario of three nodes and these phases; return where."""
    spec = {
        "defaults": False,
        "nodePools": [{"name": "main", "replicas": 3}],
        "phases": phases,
    }
    document = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "Scenario", "spec": spec}
    document["metadata"] = {"name": name}
    path = world.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in SHRINK],
)
@pytest.mark.usefixtures("machine")
def test_a_scenario_that_ships_is_played_and_judged(eager: World, name: str) -> None:
    """On a tainted cluster in which a machine of others stands, which gets no pod."""
    world = eager
    path = shrunk(world, name)
    phases: list[Json] = yaml.safe_load(path.read_text())["spec"]["phases"]
    named = (f"--kubeconfig={world.info.kubeconfig}", CONFIRMED, "--zone-labels")
    with world.start(name, "run", str(path), f"--nodes={NODES}", *named) as run:
        if name in SEEN_MEANWHILE:
            SEEN_MEANWHILE[name](world, name)
        run.ended_well_or_late()
    summary = run.summary()
    played = [each["name"] for each in summary["phases"] if each["kind"] == "phase"]
    assert played == ["bring-up", "steady", *(each["name"] for each in phases)]
    faults = [each for each in summary["phases"] if each["kind"] == "fault"]
    assert len(faults) == sum(len(each.get("faults", ())) for each in phases)
    assert all(each["until_s"] is not None for each in faults)
    waited = [each for each in summary["expectations"] if WAITED.search(each["name"])]
    assert [each["met"] for each in waited] == [True for each in phases if "until" in each]
    assert "bug in fleet" not in run.log
    world.assert_nothing_left(name)


def assert_dark(world: World, prefix: str) -> None:
    """Of nine nodes in three zones those of zone-b become Unknown, and no others."""

    def found() -> dict[str, set[str]]:
        zones: dict[str, set[str]] = {}
        for node in world.nodes(prefix).values():
            zone = node["metadata"]["labels"].get("topology.kubernetes.io/zone", "")
            zones.setdefault(zone, set()).add(condition(node, "Ready"))
        return zones

    dark = {"zone-a": {"True"}, "zone-b": {"Unknown"}, "zone-c": {"True"}}
    eventually(lambda: found() == dark, "zone-b alone is dark", seen=found)


def assert_crashing(world: World, _prefix: str) -> None:
    """The containers of many pods crash and are restarted."""

    def restarts() -> list[int]:
        pods = [each["status"] for each in world.items("pods")]
        return [one["restartCount"] for each in pods for one in each.get("containerStatuses", ())]

    eventually(lambda: sum(each > 0 for each in restarts()) > NODES, "they crash", seen=restarts)


def assert_full(world: World, _prefix: str) -> None:
    """Every GPU is in use."""

    def running() -> int:
        return sum(each["status"].get("phase") == "Running" for each in world.items("pods"))

    eventually(lambda: running() >= 8 * NODES, "all GPUs are in use", seen=running)


SEEN_MEANWHILE: dict[str, Callable[[World, str], None]] = {
    "zone-outage": assert_dark,
    "crashloop-storm": assert_crashing,
    "gpu-cluster": assert_full,
}
"""What other clients see of a scenario while it is played."""


def test_what_is_applied_runs_changes_and_is_gone_afterwards(eager: World) -> None:
    world = eager
    pod: Json = {"containers": [{"name": "c", "image": "nginx:1"}]}
    pod["terminationGracePeriodSeconds"] = 0
    deployment: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ours"}}
    labels = {"app": "ours"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment["spec"] = {"replicas": 6, "selector": {"matchLabels": labels}, "template": template}
    changed = copy.deepcopy(deployment)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "nginx:2"
    come = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "come"}, "spec": pod}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}
    phases: list[Json] = [
        {
            "name": "load",
            "apply": [{"manifest": deployment}],
            "until": {"condition": "PodsReady"},
        },
        {
            "name": "churn",
            "duration": "10s",
            "churn": [{"manifest": come, "rate": 2, "lifetime": "3s"}],
        },
        {
            "name": "roll",
            "apply": [{"manifest": changed}],
            "until": {"condition": "PodsReady"},
        },
    ]
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    path = written(world, "applied", phases)
    with world.start("applied", "run", str(path), *named) as run:
        run.until("phase load: 6 of 6 pods Ready")
        eventually(lambda: churned(world), "pods come")
        run.until("phase roll: 6 of 6 pods Ready")
        run.ended_well_or_late()
    summary = run.summary()
    met = [each["met"] for each in summary["expectations"] if "PodsReady" in each["name"]]
    assert met == [True, True]
    for kind in ("deployments", "pods"):
        assert not world.items(kind, "-l", f"{APPLIED_BY}={summary['run_id']}"), kind
    world.apply(config)
    path = written(
        world, "refused", [{"name": "load", "duration": "1s", "apply": [{"manifest": config}]}]
    )
    done = world.fleet("run", str(path), "--name-prefix=refused", *named)
    assert done.returncode == 2, done.stderr
    assert "spec.phases[0]: /api/v1/namespaces/default/configmaps/theirs exists" in done.stderr
    world.kubectl("delete", "configmap", "theirs")  # it is still there
    world.assert_nothing_left("applied")
    world.assert_nothing_left("refused")


@pytest.mark.usefixtures("machine")
def test_what_a_killed_scenario_leaves_is_named_and_cleaned(eager: World) -> None:
    """Deployments, claims, their volumes and attachments; what only looks like these stays."""
    world = eager
    container: Json = {"name": "c", "image": "nginx:1"}
    template: Json = {"metadata": {"labels": {"app": "left"}}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": 2, "selector": {"matchLabels": {"app": "left"}}, "template": template}
    deployment: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}
    stateful = copy.deepcopy({**deployment, "kind": "StatefulSet"})
    [mounting] = stateful["spec"]["template"]["spec"]["containers"]
    mounting["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    stateful["spec"]["template"]["metadata"] = {"labels": {"app": "db"}}
    stateful["spec"]["selector"] = {"matchLabels": {"app": "db"}}
    stateful["spec"]["podManagementPolicy"] = "Parallel"
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "left",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    stateful["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
    storage: Json = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    storage |= {"provisioner": DEFAULT_DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    config: Json = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    wanted = [
        {**each, "metadata": {"name": "left"}} for each in (storage, config, deployment, stateful)
    ]
    phases: list[Json] = [
        {
            "name": "load",
            "apply": [{"manifest": each} for each in wanted],
            "until": {"condition": "PodsReady"},
        },
        {"name": "hold", "duration": "10m"},
    ]
    path = written(world, "left", phases)
    named = (f"--kubeconfig={world.info.kubeconfig}", CONFIRMED, "--simulate-csi")
    with world.start("left", "run", str(path), *named) as run:
        run.until("phase load: 4 of 4 pods Ready")
        made = world.get("configmap", "left")["metadata"]
        run.process.kill()
        run.wait()
    marks = {key: made[key] for key in ("labels", "annotations")}
    world.apply({**config, "metadata": {"name": "copy", **marks}})
    run_id = marks["labels"][APPLIED_BY]
    at = f"--kubeconfig={world.info.kubeconfig}"
    shown = world.fleet("clean", at, f"--run={run_id}", "--dry-run")
    for one in ("configmaps/left", "deployments/left", "statefulsets/left", "storageclasses/left"):
        assert f"/{one}" in shown.stdout, shown.stdout
    for one in ("claims/data-left-0", "claims/data-left-1", "volumes/pvc-", "attachments/csi-"):
        assert one in shown.stdout, shown.stdout
    assert "configmaps/copy" in shown.stderr
    done = world.fleet("clean", at, f"--run={run_id}")
    assert "still there" not in done.stderr
    assert done.returncode == 4, done.stderr  # of the copy
    kinds = ("deployments", "statefulsets", "pvc", "pv", "volumeattachments", "storageclasses")
    for kind in kinds:
        assert not world.items(kind), (kind, done.stderr)
    names = [each["metadata"]["name"] for each in world.items("configmaps")]
    assert "copy" in names
    assert "left" not in names
    world.kubectl("delete", "configmap", "copy")
    world.assert_nothing_left("left")


def test_the_terminal_shows_pods_faults_and_phases(eager: World) -> None:
    world = eager
    pod: Json = {"containers": [{"name": "c", "image": "nginx"}]}
    watched: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "watched"},
        "spec": pod,
    }
    nowhere = copy.deepcopy(watched)
    nowhere["metadata"] = {"name": "nowhere"}
    nowhere["spec"] = {**pod, "nodeSelector": {"no": "such"}}  # so that there is a wait to see
    fault = {"type": "NetworkNotReady", "share": 0.3}
    phases: list[Json] = [
        {
            "name": "load",
            "apply": [{"manifest": watched, "count": 4}, {"manifest": nowhere}],
            "until": {"condition": "PodsReady", "timeout": "8s"},
        },
        {"name": "out", "duration": "8s", "faults": [fault, {**fault, "duration": "6s"}]},
    ]
    named = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED)
    path = written(world, "watched", phases)
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = (*FLEET, "run", str(path), "--name-prefix=watched", *named)
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    shown = b""
    with subprocess.Popen(
        command, cwd=world.root, env=environment, stdout=subprocess.PIPE, stderr=terminal
    ) as process:
        os.close(terminal)
        try:
            while piece := read_some(ours):
                shown += piece
        finally:
            process.kill()
            printed = process.stdout.read().decode() if process.stdout is not None else ""
            os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert_done(process.returncode, printed, text, expected=1)
    assert b"\x1b[" in shown
    assert "\x1b" not in printed
    assert re.search(r"pods +4 on nodes, ", text), text
    assert re.search(r"phase 1 of 2, load: \d of 5 pods Ready, gives up in 0:0\d", text), text
    assert re.search(r"scenario +phase 2 of 2, out: 0:0\d left", text), text
    assert "NetworkNotReady on 1 of 3 nodes, until it is healed" in text
    assert re.search(r"NetworkNotReady on 1 of 3 nodes, 0:0\d left", text), text
    world.assert_nothing_left("watched")


def read_some(terminal: int) -> bytes:
    """Return what is shown next, nothing once nobody shows anything any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def churned(world: World) -> list[str]:
    names = [each["metadata"]["name"] for each in world.items("pods")]
    return [name for name in names if name.startswith("come-")]


def test_a_condition_that_does_not_come_in_time_fails_the_run(eager: World) -> None:
    world = eager
    is_met: Json = {"condition": "NodesReady", "timeout": "1s"}
    phases: list[Json] = [
        {
            "name": "out",
            "duration": "1s",
            "faults": [{"type": "NetworkNotReady", "share": 0.3, "duration": "10m"}],
        },
        {"name": "ready", "duration": "15s", "until": is_met},
    ]
    path, directory = written(world, "never", phases), world.root / "played" / "never"
    at = (f"--kubeconfig={world.info.kubeconfig}", *DEDICATED, f"--run-dir={directory}")
    done = world.fleet("run", str(path), "--name-prefix=never", *at)
    summary: Json = json.loads((directory / "summary.json").read_text())
    [expectation] = summary["expectations"]
    assert not expectation["met"], done.stderr
    assert expectation["name"] == "ready: NodesReady within 1s"
    assert expectation["detail"].startswith("2 of 3 nodes Ready")
    assert_done(done.returncode, done.stdout, done.stderr, expected=1)
    world.assert_nothing_left("never")
