"""`make chart`: releases of every kind, each installed for real, none of them refused anything.

Nobody here is an administrator but Helm: fleet has the rights of the chart, and a request of its
own that is forbidden fails the test. test_chart_grants.py takes the rights away one by one.
"""

import base64
import itertools
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from e2e.e2e_world import Json, World, condition, eventually

from chart.chart_release import (
    NODES_PER_POD,
    OF_RELEASE,
    WITHOUT_CONSTRAINED_IMPERSONATION,
    Places,
    Release,
    another_world,
    released,
)
from chart.go_module import module_directory
from chart.helm_commands import NAMESPACE, RELEASE, RUN, Helm
from chart.played_node import PlayedNode
from fleet.cluster.run_id import LOAD_LABEL

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

TOKEN_ID, TOKEN_SECRET = "chart1", "0123456789abcdef"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
MONITORS = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"
LOADER = "loader"


def secret(name: str, namespace: str, kind: str = "Opaque", **data: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
    return {**head, "stringData": {key.replace("_", "-"): value for key, value in data.items()}}


@pytest.fixture
def bootstrap_secret(world: World) -> Iterator[str]:
    """Make a bootstrap token as an administrator would, and its Secret for the chart."""
    world.kubectl("create", "namespace", NAMESPACE, check=False)
    token = secret(
        f"bootstrap-token-{TOKEN_ID}",
        "kube-system",
        "bootstrap.kubernetes.io/token",
        token_id=TOKEN_ID,
        token_secret=TOKEN_SECRET,
        usage_bootstrap_authentication="true",
    )
    world.apply(token, secret("joining", NAMESPACE, token=f"{TOKEN_ID}.{TOKEN_SECRET}"))
    yield "joining"
    world.kubectl("delete", "secret", f"bootstrap-token-{TOKEN_ID}", "-n", "kube-system")


def live_and_leave(release: Release, processes: int = 1, **values: Json | str | int) -> None:
    """Install two pods, run a pod of others there, scale down, uninstall: nothing is left."""
    of = NODES_PER_POD // processes
    both = tuple(range(2 * processes))
    release.install(nodes=2 * of * processes, nodesPerPod=of * processes, **values)
    release.until_ready(*both, of=of, processes=processes)
    assert any(condition(pod, "Ready") == "True" for pod in release.test())
    before = release.uids()
    release.scale(1)
    release.until_ready(*both[:processes], of=of, processes=processes)
    assert release.uids().items() <= before.items()
    release.uninstall_and_leave_nothing()


@pytest.mark.parametrize(
    ("identity", "fidelity"),
    [("impersonate", "light"), ("shared", "kubelet"), ("shared", "light")],
)
def test_every_identity_lives_on_the_rights_of_the_chart(
    release: Release, identity: str, fidelity: str
) -> None:
    live_and_leave(release, identity=identity, fidelity=fidelity)


@pytest.mark.parametrize("approve", [False, True])
def test_nodes_get_certificates_with_a_bootstrap_token(
    release: Release, bootstrap_secret: str, *, approve: bool
) -> None:
    """With and without the right to approve their requests, which here somebody else does too."""
    csr = {"tokenSecret": bootstrap_secret, "approve": approve, "createBindings": True}
    live_and_leave(release, identity="csr", csr=csr)


def test_a_pod_may_have_several_processes(release: Release) -> None:
    live_and_leave(release, processes=2, processesPerPod=2)


@pytest.mark.usefixtures("environment")
def test_servers_without_constrained_impersonation(tmp_path: Path) -> None:
    with another_world(tmp_path / "old", WITHOUT_CONSTRAINED_IMPERSONATION) as old:
        there = Helm(tmp_path / "helm", old.info.token_kubeconfig)
        with (
            PlayedNode(old.info.token_kubeconfig, tmp_path / "node") as node,
            released(Places(there, old, node, old)) as release,
        ):
            live_and_leave(
                release,
                identity={"allowBroadImpersonation": True},
                rbac={"legacyImpersonation": "always"},
            )


def test_a_fleet_in_one_cluster_loads_another(
    helm: Helm, world: World, node: PlayedNode, tmp_path: Path
) -> None:
    """Its rights there are what `fleet rbac` prints; its pods and its StatefulSet are here."""
    account = (f"--name={LOADER}", f"--service-account=default/{LOADER}")
    with another_world(tmp_path / "other") as other:
        printed = other.fleet("rbac", *account)
        assert printed.returncode == 0, printed.stderr
        other.kubectl("create", "serviceaccount", LOADER)
        other.kubectl("apply", "-f", "-", stdin=printed.stdout)
        token = other.kubectl("create", "token", LOADER).strip()
        kubeconfig = other.user(tmp_path / "kubeconfig", token)
        world.kubectl("create", "namespace", NAMESPACE, check=False)
        world.apply(secret("other", NAMESPACE, kubeconfig=kubeconfig.read_text()))
        ours = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
        accounts = (ours, f"system:serviceaccount:default:{LOADER}")
        with released(Places(helm, world, node, other, accounts)) as release:
            release.install(nodes=2 * NODES_PER_POD, target={"kubeconfigSecret": "other"})
            release.until_ready(0, 1)
            assert not world.items("nodes", "-l", f"fleet.emulator/run={RUN}")
            release.scale(1)
            release.until_ready(0)
            release.uninstall_and_leave_nothing()


def read(address: str, path: str, headers: Mapping[str, str] = MappingProxyType({})) -> str:
    request = urllib.request.Request(f"http://{address}{path}", headers=dict(headers))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def shows_its_node(address: str) -> bool:
    return 'fleet_nodes{condition="Ready"} 1.0' in read(address, "/metrics")


def test_prometheus_finds_every_process(release: Release) -> None:
    """As the operator does: ServiceMonitor, Services that it selects, ports by name, Ready pods."""
    world = release.world
    monitors = module_directory(OPERATOR) / MONITORS
    world.kubectl("apply", "--server-side", "-f", str(monitors))
    try:
        eventually(lambda: world.get("servicemonitors", "-A"), "the server knows the kind")
        release.install(nodes=4, nodesPerPod=2, processesPerPod=2, serviceMonitor={"enabled": True})
        release.until_ready(0, 1, 2, 3, of=1, processes=2)
        [monitor] = world.items("servicemonitors", "-n", NAMESPACE)
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        selector = ",".join(f"{key}={value}" for key, value in labels)
        [service] = world.items("services", "-n", NAMESPACE, "-l", selector)
        ports = [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]]
        found = [release.node.endpoints(service, port) for port in ports]
        assert [len(addresses) for addresses in found] == [2, 2]
        # A process learns by a watch of its own that its node is Ready, some time after others.
        eventually(lambda: all(map(shows_its_node, itertools.chain(*found))), "each shows its node")
        release.uninstall_and_leave_nothing()
    finally:
        world.kubectl("delete", "-f", str(monitors), "--timeout=120s")


def test_api_users_and_the_dashboard(release: Release) -> None:
    """Users beside the nodes act as an account of their own; the Service leads to the dashboard."""
    world = release.world
    # Their pods are for fake nodes: the played one has no images to run.
    world.kubectl("taint", "node", release.node.name, "played=yes:NoSchedule")
    release.install(
        nodes=3,
        locust={"enabled": True, "apiUsers": {"count": 12, "replicas": 1}},
        tolerations=[{"key": "played", "operator": "Exists"}],
    )
    release.until_ready(0, of=3)
    dashboard = world.get("service", "-n", NAMESPACE, f"{RELEASE}-locust")
    [address] = release.node.endpoints(dashboard, "dashboard")
    assert read(address, "/healthz") == "ok"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        read(address, "/")
    [kept] = world.items("secrets", "-n", NAMESPACE, "-l", OF_RELEASE)
    key = {"Authorization": f"Bearer {base64.b64decode(kept['data']['token']).decode()}"}
    assert "locust" in read(address, "/", key).lower()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        read(address, "/", {**key, "Host": "evil.test"})

    def asked() -> list[Json]:
        name = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-users"
        return [event for event in world.audit() if event["user"]["username"] == name]

    eventually(lambda: {"list", "create", "patch"} <= {e["verb"] for e in asked()}, "requests")
    assert not [event for event in asked() if event["responseStatus"]["code"] in (401, 403)]
    [theirs] = world.items("namespaces", "-l", LOAD_LABEL)
    release.uninstall_and_leave_nothing()
    namespace = theirs["metadata"]["name"]
    world.kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=180s")


def test_a_pod_that_dies_while_it_is_scaled_away_leaves_nothing_either(release: Release) -> None:
    """The pod of ordinal 0 removes its nodes; one that would return is left alone."""
    release.install(nodes=3 * NODES_PER_POD)
    release.until_ready(0, 1, 2)
    before = release.uids()
    lost = release.node.named(f"{RELEASE}-2")
    assert lost.process is not None
    os.killpg(lost.process.pid, signal.SIGSTOP)  # so that it does not see SIGTERM
    release.scale(2)
    force = ("--force", "--grace-period=0", "--timeout=120s")
    release.home.kubectl("delete", "pod", f"{RELEASE}-2", "-n", NAMESPACE, *force)
    eventually(lambda: lost.process is None or lost.process.poll() is not None, "it is dead")
    eventually(lambda: len(release.nodes()) == 2 * NODES_PER_POD, "shard 2 is gone", limit_s=240)
    release.until_ready(0, 1)
    assert release.uids().items() <= before.items()
    assert "removed the nodes fleet-0002-*" in release.node.named(f"{RELEASE}-0").log.read_text()
    release.scale(3)  # it comes back with new nodes
    release.until_ready(0, 1, 2)
    assert len(set(release.uids().values()) - set(before.values())) == NODES_PER_POD
    release.uninstall_and_leave_nothing()


def test_the_labels_of_a_release_find_all_of_it(release: Release) -> None:
    release.install(nodes=2, locust={"enabled": True})
    release.until_ready(0, of=2)
    kinds = "statefulset,deployment,service,poddisruptionbudget,networkpolicy,serviceaccount"
    found = release.home.kubectl("get", kinds, "-n", NAMESPACE, "-l", OF_RELEASE, "-o", "name")
    assert {each.partition("/")[0] for each in found.split()} == {
        "statefulset.apps",
        "deployment.apps",
        "service",
        "poddisruptionbudget.policy",
        "networkpolicy.networking.k8s.io",
        "serviceaccount",
    }
    release.uninstall_and_leave_nothing()
