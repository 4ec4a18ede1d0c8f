"""`helm install` for real: the pods of the chart run, with nothing but the rights it gives them."""

import os
import signal
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from e2e.e2e_world import Json, condition, eventually
from support.summary_schema import read_summary

from chart.chart_release import NODES_PER_POD, Release
from chart.helm_commands import NAMESPACE, RELEASE, RUN
from fleet.cluster.kept_records import RECORD_OF
from fleet.cluster.ownership import SHARD_LABEL
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
POOL, OWNER = "example.com/pool", "example.com/owner"
"""Labels that no kubelet keeps in step: of a profile, of somebody with kubectl."""
PROXY = "system:serviceaccount:kube-system:kube-proxy"
LARGER = ("larger", "16", "Larger Linux")


def larger() -> list[Json]:
    """Return a profile of other machines, with a label of its own."""
    document = yaml.safe_load(show_profile("default"))
    template = document["spec"]["template"]
    template["metadata"]["labels"] |= {INSTANCE_TYPE: LARGER[0], POOL: "larger"}
    template["status"]["capacity"]["cpu"] = LARGER[1]
    template["status"]["nodeInfo"]["osImage"] = LARGER[2]
    return [{"document": document}]


def machine(node: Json) -> tuple[str, str, str]:
    """Return what a Node says of its machine: label, capacity, nodeInfo."""
    status = node["status"]
    labels = node["metadata"]["labels"]
    return labels[INSTANCE_TYPE], status["capacity"]["cpu"], status["nodeInfo"]["osImage"]


def labelled(release: Release, label: str) -> set[str]:
    return {name for name, node in release.nodes().items() if label in node["metadata"]["labels"]}


def proxied(release: Release) -> set[str]:
    """Return the nodes whose kube-proxy has looked at them."""
    return {
        unquote(event["requestURI"]).partition("metadata.name=")[2].partition("&")[0]
        for event in release.world.audit()
        if event.get("impersonatedUser", {}).get("username") == PROXY
        and event["objectRef"]["resource"] == "nodes"
    }


def test_a_release_lives_and_leaves_nothing(release: Release) -> None:
    world, node = release.world, release.node
    said = release.install(nodes=2 * NODES_PER_POD, maxNodes=4 * NODES_PER_POD)
    assert "10 virtual nodes fleet-*, in 2 pods of up to 5." in said
    assert f"kubectl get nodes -l fleet.emulator/run={RUN}" in said
    release.until_ready(0, 1)
    first = release.uids()
    for name, found in release.nodes().items():
        assert found["metadata"]["labels"][SHARD_LABEL] == name.split("-")[1]
        assert "fleet.emulator/fake" in {taint["key"] for taint in found["spec"]["taints"]}

    # Each node runs the kube-proxy of its profile.
    eventually(lambda: proxied(release) == first.keys(), "all of kube-proxy watch")

    # `helm test`: a pod on a fake node, which becomes Ready.
    seen = release.test()
    assert any(condition(pod, "Ready") == "True" for pod in seen)
    assert seen[-1]["spec"]["nodeName"] in first

    release.scale(4)
    release.until_ready(0, 1, 2, 3)
    assert first.items() <= release.uids().items()
    release.scale(1)
    release.until_ready(0)

    # A container that is killed is started again in its pod, and adopts.
    before = release.uids()
    pod = node.named(f"{RELEASE}-0")
    assert pod.process is not None
    os.killpg(pod.process.pid, signal.SIGKILL)
    eventually(lambda: "adopted 5 nodes" in pod.log.read_text(), "adoption", seen=pod.log.read_text)
    release.until_ready(0)
    assert pod.restarts == 1, pod.log.read_text()
    assert release.uids() == before == {name: first[name] for name in before}

    # An upgrade replaces the pods, not the nodes. Those that stay show what a kubelet writes of the
    # new profile when it starts; those that were scaled away are registered anew, with all of it.
    # Since kubectl has set the replicas, Helm must be told to take them back.
    world.kubectl("label", "node", min(before), f"{OWNER}=somebody")
    release.apply("upgrade", "--force-conflicts", nodes=2 * NODES_PER_POD, profiles=larger())
    eventually(lambda: node.named(f"{RELEASE}-0") is not pod, "a new pod")
    release.until_ready(0, 1)
    eventually(lambda: set(map(machine, release.nodes().values())) == {LARGER}, "the new profile")
    assert before.items() <= release.uids().items()
    assert labelled(release, POOL) == release.uids().keys() - before.keys()
    assert labelled(release, OWNER) == {min(before)}

    release.uninstall_and_leave_nothing()
    assert world.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=fleet") == []


CODES = {"pass": 0, "not-judged": 0, "fail": 1, "invalid": 4, "incomplete": 4}
"""By verdict; a machine that stands still makes a run late, and so invalid."""


def ended_with(release: Release, revision: int) -> tuple[dict[int, tuple[int, str]], Json]:
    """Return code and verdict of each pod of a test, by its index, and the ended Job."""
    name = f"{RELEASE}-{revision}"

    def job() -> Json:
        return release.home.get("job", "-n", NAMESPACE, name)

    def has_ended() -> bool:
        assert release.node.failure is None, release.node.failure
        kinds = {each["type"] for each in job()["status"].get("conditions", ())}
        return bool(kinds & {"Complete", "Failed"})

    eventually(has_ended, f"the end of {name}", seen=release.node.logs)
    found = {}
    for pod in release.node.pods.values():
        labels = pod.pod["metadata"]["labels"]
        if labels.get("batch.kubernetes.io/job-name") == name:
            for path in (pod.root / "volumes/run").glob("runs/*/summary.json"):
                verdict = read_summary(path)["verdict"]
                assert pod.code is not None
                found[int(labels["batch.kubernetes.io/job-completion-index"])] = pod.code, verdict
    return found, job()


def reported(release: Release) -> tuple[bool, str]:
    """Return whether `helm test` passes, and what its pod printed."""
    passes = release.passes()
    return passes, release.node.named(f"{RELEASE}-report").log.read_text()


def test_a_test_ends_with_the_verdict_and_its_report_stays(release: Release) -> None:
    """Two pods of five nodes; then again, held to what no control plane can keep."""
    limit = {"sli": "TimeToNodesReady", "max": "20m"}
    spec = {"defaults": False, "expectations": [limit]}
    slo: Json = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "ServiceLevelObjectives"}
    slo |= {"metadata": {"name": "ours"}, "spec": spec}
    values: Json = {
        "nodes": 2 * NODES_PER_POD,
        "fidelity": "light",
        "run": {"duration": "1s", "slo": {"document": slo}},
    }
    said = release.install(**values)
    assert f"wait --for=jsonpath='{{.status.conditions}}' --timeout=1h job/{RELEASE}-1" in said
    for revision, wanted in ((1, "pass"), (2, "fail")):
        pods, job = ended_with(release, revision)
        assert pods.keys() == {0, 1}
        assert all(code == CODES[verdict] for code, verdict in pods.values()), pods
        assert pods[0][1] in {wanted, "invalid"}
        ended = {each["type"] for each in job["status"]["conditions"]}
        assert ("Complete" in ended) is all(code == 0 for code, _ in pods.values())
        passes, report = reported(release)
        assert f"fleet run {RUN}-{revision}" in report
        verdict = report.partition("## ")[2].partition(":")[0].lower().replace(" ", "-")
        assert passes is (CODES[verdict] == 0), report
        if revision == 1:
            limit["max"] = "1ms"
            release.apply("upgrade", **values)
    release.uninstall_and_leave_nothing()
    # An uninstall removes the records of the last test only.
    named = f"--kubeconfig={release.world.info.token_kubeconfig}"
    assert release.world.fleet("clean", f"--run={RUN}-1", named).returncode == 0
    ours = f"{RECORD_OF} in ({RUN}-1, {RUN}-2)"
    assert not release.world.items("configmaps", "-l", ours)


def test_a_scenario_is_played_over_the_pods_of_a_test(release: Release, tmp_path: Path) -> None:
    """Three pods: the first one leads, its fault hits the nodes of all, and one report says so."""
    data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": {}}
    phases: list[Json] = [
        {"name": "work", "duration": "1s", "apply": [{"count": 3, "manifest": data}]},
        {"name": "recovery", "until": {"condition": "NodesReady", "timeout": "5m"}},
    ]
    phases[0]["faults"] = [{"type": "KubeletRestart"}]
    document: Json = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "Scenario"}
    document |= {"metadata": {"name": "ours"}}
    document["spec"] = {"nodePools": [{"name": "main", "replicas": 5}], "phases": phases}
    verbs = ["get", "list", "create", "patch", "delete"]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}
    release.install(
        nodes=5,
        nodesPerPod=2,
        fidelity="light",
        run={"scenario": {"document": document}, "rules": [rule]},
    )
    pods, _job = ended_with(release, 1)
    assert pods.keys() == {0, 1, 2}
    assert all(code == CODES[verdict] for code, verdict in pods.values()), pods
    log = release.node.logs()
    assert "fault 1: KubeletRestart on 5 of 5 nodes" in log
    _passes, report = reported(release)
    assert f"fleet run {RUN}-1" in report
    named = f"--kubeconfig={release.world.info.token_kubeconfig}"
    release.world.fleet("report", f"--run={RUN}-1", named, f"--out={tmp_path / 'whole'}")
    summary = read_summary(tmp_path / "whole" / "summary.json")
    [waited] = [each for each in summary["expectations"] if "NodesReady" in each["name"]]
    assert waited["met"], waited
    assert summary["nodes"]["ready"] == 5
    names = [f"{RELEASE}-{shard:04d}" for shard in range(3)]
    assert [each["name"] for each in summary["shards"]] == names
    left = [each["metadata"]["name"] for each in release.world.items("configmaps", "-n", "default")]
    assert not [each for each in left if each.startswith("made")]
    release.uninstall_and_leave_nothing()


@pytest.mark.slow
def test_a_dashboard_says_how_many_nodes_there_are(release: Release) -> None:
    release.install(nodes=3, locust={"enabled": True})
    release.until_ready(0, of=3)
    assert "--locust-master=fleet-locust:5557" in str(release.node.named("fleet-0").pod["spec"])
    release.uninstall_and_leave_nothing()
