"""`helm install` for real: the pods of the chart run, with nothing but the rights it gives them."""

import os
import signal

import pytest
import yaml
from chart_release import NODES_PER_POD, Release
from e2e_world import Json, condition, eventually
from helm_commands import NAMESPACE, RELEASE

from fleet.config import show_profile
from fleet.runs import SHARD_LABEL

pytest_plugins = ("e2e_fixtures", "chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def profile(instance_type: str) -> list[Json]:
    """Return a profile whose kubelets say that their machine is of another type."""
    document = yaml.safe_load(show_profile("default"))
    document["spec"]["template"]["metadata"]["labels"][INSTANCE_TYPE] = instance_type
    return [{"document": document}]


def has_profile(release: Release, shard: int) -> bool:
    """Return whether the nodes of a shard were created with that profile."""
    of_shard = [name for name in release.nodes() if name.split("-")[1] == f"{shard:04d}"]
    labels = [release.nodes()[name]["metadata"]["labels"] for name in of_shard]
    return {each[INSTANCE_TYPE] for each in labels} == {"larger"}


def test_a_release_lives_and_leaves_nothing(release: Release) -> None:
    world, node = release.world, release.node
    release.install(nodes=2 * NODES_PER_POD)
    release.until_ready(0, 1)
    first = release.uids()
    for name, found in release.nodes().items():
        assert found["metadata"]["labels"][SHARD_LABEL] == name.split("-")[1]
        assert "fleet.emulator/fake" in {taint["key"] for taint in found["spec"]["taints"]}

    # `helm test`: a pod on a fake node, which becomes Ready.
    seen = list(release.test())
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
    eventually(lambda: "adopted 5 nodes" in pod.log.read_text(), "adoption")
    release.until_ready(0)
    assert pod.restarts == 1
    assert release.uids() == before == {name: first[name] for name in before}

    # An upgrade replaces the pods, not the nodes: those that stay are as they were registered, and
    # those that were scaled away come back with the new profile.
    # Since kubectl has set the replicas, Helm must be told to take them back.
    release.apply(
        "upgrade", "--force-conflicts", nodes=2 * NODES_PER_POD, profiles=profile("larger")
    )
    eventually(lambda: node.named(f"{RELEASE}-0") is not pod, "a new pod")
    eventually(lambda: has_profile(release, 1), "the new profile")
    release.until_ready(0, 1)
    assert before.items() <= release.uids().items()

    release.uninstall_and_leave_nothing()
    assert world.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=fleet") == []


@pytest.mark.slow
def test_a_dashboard_says_how_many_nodes_there_are(release: Release) -> None:
    release.install(nodes=3, locust={"enabled": True})
    release.until_ready(0, of=3)
    assert "--locust-master=fleet-locust:5557" in str(release.node.named("fleet-0").pod["spec"])
    release.uninstall_and_leave_nothing()
