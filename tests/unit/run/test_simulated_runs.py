"""`fleet run --simulate`: the whole command, on the scenarios that ship and on small ones."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from fleet.cli import cli
from fleet.errors import UsageError
from fleet.report.figure import Json

QUICK = ("apiserver-restart", "node-churn", "steady-5k", "thundering-herd", "zone-outage")
"""Of those that ship; `make seeds` plays all."""
FLEET = str(Path(sys.executable).with_name("fleet"))
OUTAGE = """
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: outage}
spec:
  nodePools: [{name: main, replicas: 9}]
  phases:
  - name: load
    apply:
    - manifest:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: web}
        spec:
          replicas: 18
          selector: {matchLabels: {app: web}}
          template:
            metadata: {labels: {app: web}}
            spec:
              tolerations:
              - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 20}
              containers: [{name: c, image: "nginx:1"}]
    until: {condition: PodsReady, timeout: 1m}
  - name: outage
    duration: 3m
    faults: [{type: Partition, zone: zone-b, at: 10s, duration: 2m}]
  - {name: recovery, until: {condition: NodesReady, timeout: 1m}}
  - {name: pods, until: {condition: PodsReady, timeout: 1m}}
"""  # noqa: E501 - YAML
NEVER = """
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: never}
spec:
  nodePools: [{name: main, replicas: 3}]
  phases:
  - name: huge
    apply:
    - manifest:
        apiVersion: v1
        kind: Pod
        metadata: {name: huge}
        spec: {containers: [{name: c, image: "nginx:1", resources: {requests: {cpu: 1k}}}]}
    until: {condition: PodsReady, timeout: 5s}
"""
COMPONENT = """
apiVersion: fleet.emulator/v1alpha1
kind: Scenario
metadata: {name: component}
spec:
  nodePools: [{name: main, replicas: 3}]
  phases:
  - name: load
    apply: [{manifest: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {
      replicas: 6, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {
        tolerations: [{operator: Exists}], containers: [{name: c, image: "nginx:1"}]}}}}}]
    until: {condition: PodsReady, timeout: 1m}
  - name: trouble
    duration: 1m
    apply: [{at: 12s, manifest: {apiVersion: apps/v1, kind: Deployment, metadata: {name: late}, spec: {
      replicas: 6, selector: {matchLabels: {app: late}}, template: {metadata: {labels: {app: late}}, spec: {
        tolerations: [{operator: Exists}], containers: [{name: c, image: "nginx:1"}]}}}}}]
    faults: [{type: FAULT, component: WHICH, at: 10s, duration: 12s}]
  - {name: nodes, until: {condition: NodesReady, timeout: 1m}}
  - {name: pods, until: {condition: PodsReady, timeout: 1m}}
"""  # noqa: E501 - YAML


def run(*arguments: object) -> int:
    given = ["run", *map(str, arguments), "--simulate", "--no-report"]
    return int(cli.main(given, standalone_mode=False))


def refused(*arguments: object) -> str:
    with pytest.raises(UsageError) as error:
        run(*arguments)
    return str(error.value)


def trace_of(directory: Path) -> list[Json]:
    return [orjson.loads(line) for line in (directory / "trace.jsonl").read_bytes().splitlines()]


def test_a_seed_gives_the_same_trace_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "outage.yaml"
    path.write_text(OUTAGE)
    traces = []
    for number, (seed, hash_seed) in enumerate(((3, 1), (3, 2), (4, 1))):
        directory = tmp_path / str(number)
        done = subprocess.run(
            [
                *(FLEET, "run", str(path), "--simulate", "--no-report"),
                *("--quiet", "--seed", str(seed), "--run-dir", str(directory)),
            ],
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        traces.append((directory / "trace.jsonl").read_bytes())
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]
    summary = orjson.loads((tmp_path / "0" / "summary.json").read_bytes())
    assert (summary["server_version"], summary["simulated_seed"]) == ("simulated", 3)


def test_a_zone_that_is_dark_is_tainted_and_left_by_its_pods(tmp_path: Path) -> None:
    path, directory = tmp_path / "outage.yaml", tmp_path / "run"
    path.write_text(OUTAGE)
    assert run(path, "--seed", 5, "--run-dir", directory) == 0
    trace = trace_of(directory)
    [begun] = [e["t"] for e in trace if str(e.get("note", "")).startswith("fault 1: Partition on")]
    lost = [e for e in trace if e.get("verb") == "PUT" and str(e["path"]).endswith("/status")]
    lost = [e for e in lost if str(e["path"]).startswith("/api/v1/nodes/")]
    assert len(lost) == 3
    assert isinstance(begun, float)
    for each in lost:  # a Lease is at most 10.4 s old, and nodes are looked at every 5 s
        assert begun + 39 <= float(str(each["t"])) <= begun + 56
    deleted = [
        e
        for e in trace
        if e.get("verb") == "DELETE" and str(e["client"]).endswith("node-controller")
    ]
    assert 5 <= len(deleted) <= 7
    assert all(float(str(e["t"])) >= begun + 39 + 20 for e in deleted)
    made = [e for e in trace if e.get("verb") == "POST" and str(e["path"]).endswith("/pods")]
    assert len(made) == 18 + len(deleted)
    statuses = (e for e in trace if "/apps/" in str(e.get("path")) and e["verb"] == "PUT")
    told = {(str(e["path"]).split("/")[6], str(e["client"]).rpartition(":")[2]) for e in statuses}
    assert told == {
        ("deployments", "deployment-controller"),
        ("replicasets", "replicaset-controller"),
    }


@pytest.mark.parametrize("name", QUICK)
def test_what_ships_passes_in_virtual_time(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(name, "--nodes", 10, "--seed", 1, "--run-dir", tmp_path / "run")
    told = capsys.readouterr().out
    assert (code, "server    simulated" in told) == (0, True), told


def test_a_seed_that_fails_is_told_with_the_command_that_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "never.yaml"
    path.write_text(NEVER)
    assert run(path, "--seeds", 2, "--seed", 7) == 1
    told = capsys.readouterr().out
    line = next(each for each in told.splitlines() if each.startswith("seed 8: "))
    assert "PodsReady within 5s" in line
    command = line.partition("replay it: fleet ")[2].split()
    assert cli.main([*command, "--run-dir", str(tmp_path / "run")], standalone_mode=False) == 1
    assert "NOT MET: huge: PodsReady within 5s" in capsys.readouterr().out


def test_what_is_not_simulated_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    job = "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {}}"
    phase = f"- {{name: a, duration: 1s, apply: [{{manifest: {job}}}]}}"
    path.write_text(NEVER.replace("  - name: huge", f"  {phase}\n  - name: huge"))
    assert f"{path}: spec.phases[0].apply[0]: Job (batch/v1) is not simulated" in refused(path)
    path.write_text(NEVER + "  expectations: [{sli: ListLatency, max: 1s}]\n")
    assert "ListLatency is of a real API server" in refused(path)
    assert "--context: a simulated run has no use for it" in refused(path, "--context", "other")


@pytest.mark.parametrize("fault", ["ComponentDown", "ComponentStall"])
@pytest.mark.parametrize(
    "component", ["etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"]
)
def test_a_component_fails_and_its_work_is_made_good(
    component: str, fault: str, tmp_path: Path
) -> None:
    path, directory = tmp_path / "component.yaml", tmp_path / "run"
    path.write_text(COMPONENT.replace("WHICH", component).replace("FAULT", fault))
    assert run(path, "--seed", 3, "--run-dir", directory) == 0
    trace = trace_of(directory)
    notes = {str(e["note"]): float(str(e["t"])) for e in trace if "note" in e}
    begun_s = notes[f"fault 1: {fault} {component}"]
    ended_s = notes[f"fault 1: {fault} {component} is healed"]
    meanwhile = [
        e for e in trace if "verb" in e and begun_s + 1 < float(str(e["t"])) < ended_s - 0.1
    ]
    failed = {str(e["client"]).partition("-")[0] for e in meanwhile if not e["code"]}
    bound = [e for e in trace if str(e.get("path")).endswith("/binding") and e["code"] == 200]
    assert len(bound) == 12, "each pod once"
    if component in {"etcd", "kube-apiserver"}:
        assert failed, "somebody heard nothing"
        return
    assert not failed
    assert any(e["verb"] == "PUT" and "/leases/" in str(e["path"]) for e in meanwhile)
    assert not [e for e in meanwhile if str(e["path"]).endswith("/binding")], "nobody is bound"
    made = [e for e in meanwhile if e["verb"] == "POST" and str(e["path"]).endswith("/pods")]
    assert len(made) == (0 if component == "kube-controller-manager" else 6)
