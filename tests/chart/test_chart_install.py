"""`helm install` for real: the pods of the chart run, with nothing but the rights it gives them."""

import os
import signal
from collections.abc import Iterator

import pytest
import yaml
from e2e_world import Json, World, condition, eventually
from helm_commands import NAMESPACE, RELEASE, RUN, Helm
from played_node import PlayedNode

from fleet.config import show_profile
from fleet.runs import RUN_LABEL, SHARD_LABEL

pytest_plugins = ("e2e_fixtures", "chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
NODES_PER_POD = 5


class Release:
    """One release of the chart and what the cluster has of it."""

    def __init__(self, helm: Helm, world: World, node: PlayedNode, uid: str) -> None:
        self.world = world
        self.node = node
        self._helm = helm
        self._uid = uid
        self._audited = len(world.audit())  # other tests take rights away

    def values(self, **values: object) -> Json:
        return {"confirmCluster": self._uid, "nodesPerPod": NODES_PER_POD, **values}

    def apply(self, verb: str, *flags: str, **values: object) -> None:
        path = self._helm.values(self.values(**values))
        chart = ("charts/fleet", f"--values={path}", f"--namespace={NAMESPACE}")
        self._helm.run(verb, RELEASE, *chart, *flags)

    def uninstall(self) -> None:
        self._helm.run("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--timeout=90s")

    def test(self) -> Iterator[Json]:
        """Run `helm test`; yield the smoke pod as it was seen meanwhile. The test must pass."""
        test = ("test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=60s")
        with self._helm.start(*test) as process:
            while process.poll() is None:
                yield from self.world.items(
                    "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=smoke"
                )
            out, err = process.communicate()
        assert process.returncode == 0, (out, err)

    def nodes(self) -> dict[str, Json]:
        found = self.world.items("nodes", "-l", f"{RUN_LABEL}={RUN}")
        return {node["metadata"]["name"]: node for node in found}

    def uids(self) -> dict[str, str]:
        return {name: node["metadata"]["uid"] for name, node in self.nodes().items()}

    def until_ready(self, *shards: int, of: int = NODES_PER_POD) -> None:
        """Wait until there are exactly the nodes of these shards, and all pods are Ready."""
        wanted = {f"{RELEASE}-{shard:04d}-{slot:05d}" for shard in shards for slot in range(of)}

        def is_so() -> bool:
            assert self.node.failure is None, self.node.failure
            nodes = self.nodes()
            ready = [name for name, node in nodes.items() if condition(node, "Ready") == "True"]
            found = self.world.get("statefulset", "-n", NAMESPACE, RELEASE)["status"]
            pods = (found.get("readyReplicas", 0), found["replicas"])
            return set(nodes) == set(ready) == wanted and pods == (len(shards), len(shards))

        try:
            eventually(is_so, f"shards {shards}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {sorted(self.nodes())} {self.node.logs()}") from error

    def scale(self, replicas: int) -> None:
        scale = ("scale", "statefulset", RELEASE, f"--replicas={replicas}")
        self.world.kubectl(*scale, "-n", NAMESPACE)

    def is_gone(self) -> bool:
        """Nodes, their Leases and CSINodes, the runs' Leases and the grants are no more."""
        kinds = "nodes,leases,csinodes,clusterroles,clusterrolebindings,roles,rolebindings"
        found = self.world.kubectl("get", kinds, "-A", "-o", "name").split()
        return not [name for name in found if f"/{RELEASE}-" in name or f"{NAMESPACE}-" in name]

    def refused(self) -> list[tuple[str, str]]:
        """Return what the ServiceAccount itself was not allowed to do."""
        return [
            (event["verb"], event["requestURI"])
            for event in self.world.audit()[self._audited :]
            if event["user"]["username"] == ACCOUNT
            and not event.get("impersonatedUser")
            and event.get("responseStatus", {}).get("code") == 403
        ]


@pytest.fixture
def release(helm: Helm, world: World, node: PlayedNode, cluster_uid: str) -> Iterator[Release]:
    found = Release(helm, world, node, cluster_uid)
    yield found
    helm.run("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--no-hooks", check=False)
    world.fleet("clean", f"--run={RUN}", f"--kubeconfig={world.info.token_kubeconfig}")
    world.kubectl("delete", "namespace", NAMESPACE, "--timeout=40s", check=False)


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
    release.apply("install", "--create-namespace", nodes=2 * NODES_PER_POD)
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

    release.uninstall()
    eventually(release.is_gone, "nothing is left")
    assert release.refused() == []
    assert world.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=fleet") == []


@pytest.mark.slow
def test_a_dashboard_says_how_many_nodes_there_are(release: Release) -> None:
    release.apply("install", "--create-namespace", nodes=3, locust={"enabled": True})
    release.until_ready(0, of=3)
    assert "--locust-master=fleet-locust:5557" in str(release.node.named("fleet-0").pod["spec"])
    release.uninstall()
    eventually(release.is_gone, "nothing is left")
    assert release.refused() == []
