"""What the chart renders: valid to Helm, to the API server, and in step with fleet itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.e2e_world import World

from chart.chart_rbac import (
    AGENTS,
    CLUSTER,
    CSR_LEGACY,
    FILE,
    IDENTITIES,
    grants,
    kube_proxy,
    of_agent,
    of_nodes,
    text,
)
from chart.helm_commands import NAMESPACE, RELEASE, RUN, SOME_UID, Helm
from fleet.cluster.agent_access import permissions_of
from fleet.cluster.identity import (
    Features,
    Permission,
    narrowed,
    optional_permissions,
    own_permissions,
)
from fleet.cluster.ownership import RUN_LABEL
from fleet.cluster.rbac import rules
from fleet.cluster.run_id import LOAD_LABEL, load_name
from fleet.dashboard.dashboard import EVERYWHERE, IN_NAMESPACE
from fleet.errors import Exit
from fleet.host.machine import AGENT_BYTES, BASE_BYTES, NODE_BYTES
from fleet.profile.settings import SHARD_ROOM, Fidelity
from tools import release

pytest_plugins = ("e2e.e2e_fixtures", "chart.chart_fixtures")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

Json = dict[str, Any]
BEHAVIOR = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "PodBehavior",
    "metadata": {"name": "quick"},
    "spec": {"podSelector": {}},
}
SLO = {
    "apiVersion": "fleet.emulator/v1alpha1",
    "kind": "ServiceLevelObjectives",
    "metadata": {"name": "ours"},
    "spec": {"expectations": [{"sli": "TimeToNodesReady", "max": "2m"}]},
}
MATRIX: dict[str, Json] = {
    "default": {},
    "light": {"fidelity": "light", "identity": "shared", "nodes": 4_000},
    "processes": {"processesPerPod": 4, "nodes": 4500, "nodesPerPod": 2000, "rate": 100},
    "csr": {
        "identity": "csr",
        "csr": {"tokenSecret": "bootstrap", "approve": True, "createBindings": True},
    },
    "profiles": {
        "profiles": [
            {"source": "default", "weight": 3},
            {"source": "gpu", "weight": 0.5},
            {"configMap": {"name": "ours", "key": "a.yaml"}},
            {"configMap": {"name": "ours", "key": "b.yaml"}, "weight": 2},
            {"document": BEHAVIOR},
            {"document": yaml.safe_dump(BEHAVIOR)},
        ]
    },
    "elsewhere": {
        "target": {"kubeconfigSecret": "other", "key": "config", "context": "test"},
        "locust": {"enabled": True, "apiUsers": {"count": 3}},
    },
    "locust": {
        "locust": {
            "enabled": True,
            "extraArgs": ["--run-time=5m"],
            "service": {"type": "NodePort", "annotations": {"a": "b"}},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "fleet.test",
                "annotations": {"a": "b"},
                "tls": [{"hosts": ["fleet.test"], "secretName": "tls"}],
            },
            "apiUsers": {"count": 12, "replicas": 2, "loads": ["api_users"]},
        }
    },
    "everything else": {
        "noTaint": True,
        "zoneLabels": True,
        "noAgents": True,
        "simulateCSI": True,
        "serve": {"enabled": True, "port": 21000},
        "extraArgs": ["--story=fleet-0000-00000"],
        "identity": {"allowBroadImpersonation": True},
        "rbac": {"staticPods": True, "dynamicResources": True, "legacyImpersonation": "always"},
        "serviceAccount": {"name": "mine", "annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "load"},
        "tolerations": [{"key": "load", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
            }
        ],
        "resources": {"requests": {"cpu": 1}},
        "imagePullSecrets": [{"name": "registry"}],
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
        "fullnameOverride": "other",
    },
    "test": {
        "run": {"duration": "5m", "slo": {"document": SLO}, "report": False},
        "nodes": 2500,
        "topologySpreadConstraints": [],
    },
    "scenario": {
        "run": {
            "scenario": {"configMap": {"name": "ours", "key": "outage.yaml"}},
            "rules": [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create"]}],
        }
    },
    "served": {"serve": {"enabled": True}, "processesPerPod": 2},
    "little": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "cleanup": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
    },
}
TEST: Json = {"run": {"duration": "1m"}}
KUBE_PROXY = "kube-proxy"
OLD: Json = {"rbac": {"legacyImpersonation": "always"}}
ALLOWED: Json = {"identity": {"allowBroadImpersonation": True}}
OLD_KUBE_PROXY: Json = {
    "identity": "csr",
    "csr": {"tokenSecret": "t"},
    "rbac": {"legacyImpersonation": "always", "kubeProxy": "always"},
}
ANY_USER = "rbac.nodeNames: false would be the right to impersonate any user"
KINDS_ELSEWHERE = {"ServiceMonitor"}  # of an operator that is not there
KINDS_OF_FAIRNESS = {"FlowSchema", "PriorityLevelConfiguration"}
"""Nodes wait where real ones wait: the chart leaves priority-and-fairness as it is."""


def of_kind(objects: list[Json], kind: str, name: str = "") -> list[Json]:
    found = [each for each in objects if each["kind"] == kind]
    return [each for each in found if not name or each["metadata"]["name"] == name]


def container(objects: list[Json]) -> Json:
    [found] = [*of_kind(objects, "StatefulSet"), *of_kind(objects, "Job", f"{RELEASE}-1")]
    [only] = found["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_api_server_takes_every_object(helm: Helm, world: World, values: Json) -> None:
    rendered = helm.objects(values, "--api-versions=monitoring.coreos.com/v1")
    theirs = [each["metadata"]["name"] for each in rendered if each["kind"] == "Namespace"]
    for namespace in (NAMESPACE, *theirs):  # a dry run makes none for what is in it
        world.kubectl("create", "namespace", namespace, check=False)
    assert not KINDS_OF_FAIRNESS & {each["kind"] for each in rendered}
    documents = [each for each in rendered if each["kind"] not in KINDS_ELSEWHERE]
    for pod in of_kind(documents, "Pod"):
        pod["spec"].pop("serviceAccountName", None)  # which a dry run has not made
    apply = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    said = world.kubectl(*apply, stdin=yaml.safe_dump_all(documents))
    assert len(said.splitlines()) == len(documents) >= 3


@pytest.mark.parametrize("name", ["default", "locust"])
def test_helm_has_nothing_to_complain_about(bare_helm: Helm, name: str) -> None:
    path = bare_helm.values(MATRIX[name])
    bare_helm.run("lint", "--strict", "charts/fleet", f"--values={path}")


def test_helm_takes_the_packed_chart(bare_helm: Helm, tmp_path: Path) -> None:
    values = bare_helm.values({})
    packed = release.pack_chart(tmp_path)
    done = bare_helm.run("template", RELEASE, str(packed), "--namespace=load", f"--values={values}")
    assert done.stdout == bare_helm.template({})


def test_a_service_monitor_names_each_process(bare_helm: Helm) -> None:
    values = {"serviceMonitor": {"enabled": True, "labels": {"release": "p"}}, "processesPerPod": 2}
    [monitor] = of_kind(bare_helm.objects(values), "ServiceMonitor")
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["metrics-0", "metrics-1"]
    assert monitor["metadata"]["labels"]["release"] == "p"


def test_a_dashboard_is_there_if_wanted_as_grafana_reads_it(bare_helm: Helm) -> None:
    assert not [each for each in of_kind(bare_helm.objects({}), "ConfigMap") if "dashboard" in each]
    values = {"grafanaDashboard": {"enabled": True, "namespace": "watch"}}
    objects = bare_helm.objects(values)
    [found] = of_kind(objects, "ConfigMap", f"{RELEASE}-dashboard")
    assert found["metadata"]["namespace"] == "watch"
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    told = json.loads(found["data"]["fleet.json"])
    assert told == json.loads((FILE.parent / "dashboard.json").read_text())


def served_ports(objects: list[Json]) -> tuple[int, int]:
    """Return the first and the last port of kubelets that the network policy lets through."""
    [policy] = of_kind(objects, "NetworkPolicy", RELEASE)
    _metrics, served = policy["spec"]["ingress"]
    [ports] = served["ports"]
    return ports["port"], ports["endPort"]


def test_kubelets_are_served_at_a_port_each(bare_helm: Helm) -> None:
    serve = {"enabled": True, "port": 21000}
    values = {"nodes": 40, "nodesPerPod": 20, "processesPerPod": 2, "serve": serve}
    objects = bare_helm.objects(values)
    assert {"--serve=ports", "--serve-at=$(POD_IP):21000"} <= set(container(objects)["args"])
    assert served_ports(objects) == (21000, 21019)


def test_a_test_is_a_job_whose_pods_end_with_their_verdict(bare_helm: Helm) -> None:
    objects = bare_helm.objects(MATRIX["test"])
    assert not of_kind(objects, "StatefulSet")
    [job] = of_kind(objects, "Job", f"{RELEASE}-1")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    final = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert final == [Exit.EXPECTATION_FAILED, Exit.USAGE, Exit.INVALID]
    pod = job["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["topologySpreadConstraints"]) == ("Never", [])
    args = container(objects)["args"]
    assert args[:3] == ["spawn", "--duration=5m", "--slo=/etc/fleet/run/slo.yaml"]
    assert {f"--run-id={RUN}-1", "--record=files"} <= {*args}
    [files] = of_kind(objects, "ConfigMap", f"{RELEASE}-run")
    assert yaml.safe_load(files["data"]["slo.yaml"]) == SLO
    assert not of_kind(objects, "Pod"), "there are no nodes for a smoke test any more"


def test_a_test_of_100_000_nodes_is_one_job(bare_helm: Helm) -> None:
    objects = bare_helm.objects({"nodes": 100_000, "rbac": {"nodeNames": False}, **TEST})
    [job] = of_kind(objects, "Job", f"{RELEASE}-1")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (100, 100)
    assert "--nodes-total=100000" in container(objects)["args"]


def test_a_scenario_is_played_over_all_pods_with_rights_for_its_objects(bare_helm: Helm) -> None:
    objects = bare_helm.objects(MATRIX["scenario"] | {"nodes": 2_500, "nodesPerPod": 1_000})
    [job] = of_kind(objects, "Job", f"{RELEASE}-1")
    assert job["spec"]["completions"] == 3
    args = container(objects)["args"]
    assert {"--nodes=1000", "--nodes-total=2500", "--shard=$(POD_INDEX)"} <= {*args}
    assert args[:2] == ["run", "/etc/fleet/configmaps/ours/outage.yaml"]
    assert not [each for each in args if each.startswith(("--seed", "--start", "--duration"))]
    [role] = of_kind(objects, "ClusterRole", f"{NAMESPACE}-{RELEASE}-run")
    assert role["rules"] == MATRIX["scenario"]["run"]["rules"]
    [report] = of_kind(objects, "Pod", f"{RELEASE}-report")
    assert f"--run={RUN}-1" in report["spec"]["containers"][0]["args"]


def test_pods_are_spread_over_machines_unless_values_say_otherwise(bare_helm: Helm) -> None:
    [found] = of_kind(bare_helm.objects({}), "StatefulSet")
    [spread] = found["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    selected = spread["labelSelector"]["matchLabels"].items()
    assert selected <= found["spec"]["template"]["metadata"]["labels"].items()


def test_twenty_thousand_nodes_are_named_once(bare_helm: Helm) -> None:
    """In a second: lists of names that grow by copies took minutes."""
    objects = bare_helm.objects({"nodes": 20_000, "processesPerPod": 2})
    [*names] = [
        name
        for role in of_kind(objects, "ClusterRole")
        for rule in role["rules"]
        if "delete" in rule["verbs"] and rule["resources"] == ["nodes"]
        for name in rule["resourceNames"]
    ]
    assert len(names) == len({*names}) == 20_000
    assert names[-1] == "fleet-0039-00499"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (TEST | {"locust": {"enabled": True}}, "a dashboard says when its run ends"),
        ({"run": {"slo": {"document": SLO}}}, "run.slo and run.rules are for a test"),
        ({"run": {"scenario": {"source": "a"}, "duration": "1m"}}, "its own duration"),
        ({"run": {"duration": "soon"}}, "at '/run/duration'"),
        ({"run": {"scenario": {"source": "a", "document": "b"}}}, "at '/run/scenario'"),
        ({"topologySpreadConstraints": ["x"]}, "at '/topologySpreadConstraints/0'"),
        ({"confirmCluster": ""}, "confirmCluster: name the cluster to load by the UID"),
        ({"confirmCluster": "prod"}, "at '/confirmCluster': 'prod' does not match pattern"),
        ({"nodes": 0}, "at '/nodes': minimum: got 0, want 1"),
        ({"fidelity": "full"}, "at '/fidelity': value must be one of 'kubelet', 'light'"),
        ({"node": 5}, "additional properties 'node' not allowed"),
        ({"locust": {"users": 5}}, "additional properties 'users' not allowed"),
        ({"namePrefix": "A_B"}, "at '/namePrefix'"),
        ({"profiles": [{"source": "a", "configMap": {"name": "b", "key": "c"}}]}, "oneOf"),
        ({"extraArgs": ["kubectl"]}, "at '/extraArgs/0'"),
        ({"identity": "csr"}, "csr.tokenSecret: nodes need a bootstrap token"),
        ({"serve": {"mode": "path"}}, "additional properties 'mode' not allowed"),
        ({"nodes": 2, "processesPerPod": 3}, "processesPerPod: 3 processes for the 2 nodes"),
        ({"identity": "nobody"}, "at '/identity': value must be one of 'impersonate', 'csr'"),
        ({"identity": {"mode": "nobody"}}, "at '/identity/mode': value must be one of"),
        ({"nodes": 20_001}, "rbac.nodeNames: rights for 21000 nodes by name are more than"),
        (OLD, "identity.allowBroadImpersonation: servers before 1.36 "),
        (OLD_KUBE_PROXY, "rbac.kubeProxy=always is the right to be kube-system/kube-proxy"),
        (OLD | ALLOWED | {"rbac": {"legacyImpersonation": "always", "nodeNames": False}}, ANY_USER),
    ],
)
def test_bad_values_are_refused_in_words(bare_helm: Helm, values: Json, words: str) -> None:
    assert words in bare_helm.template(values, check=False)


def test_another_cluster_than_was_confirmed_is_refused(helm: Helm) -> None:
    install = ("install", "wrong", "charts/fleet", f"--set=confirmCluster={SOME_UID}")
    done = helm.run(*install, "--dry-run=server", check=False)
    assert done.returncode != 0
    assert f"confirmCluster is {SOME_UID}, but this cluster is" in done.stderr


def test_every_value_is_in_the_schema_and_explained() -> None:
    """A value without a line in README.md would be found by nobody."""
    chart = FILE.parents[1]
    schema = yaml.safe_load((chart / "values.schema.json").read_text())
    readme = (chart / "README.md").read_text()

    def walk(values: Json, known: Json, prefix: str) -> None:
        assert set(values) <= set(known["properties"]), prefix
        for key, value in values.items():
            path = f"{prefix}{key}"
            inner = known["properties"][key]
            if isinstance(value, dict) and value and "properties" in inner:
                assert inner["additionalProperties"] is False, path
                walk(value, inner, f"{path}.")
            else:
                assert f"`{path}`" in readme, path

    walk(yaml.safe_load((chart / "values.yaml").read_text()), schema, "")


def test_the_rules_are_those_that_fleet_checks() -> None:
    assert FILE.read_text() == text(), "run `make chart-rbac`"
    assert len(dict(grants())) > len(IDENTITIES)


def permissions(objects: list[Json], account: str) -> set[Permission]:
    """Return what all roles that are bound to an account give, one by one."""
    found = set()
    for binding in [*of_kind(objects, "ClusterRoleBinding"), *of_kind(objects, "RoleBinding")]:
        reference = binding["roleRef"]
        [subject] = [each["name"] for each in binding["subjects"]]
        assert subject in {KUBE_PROXY, RELEASE}
        if subject != account:
            continue
        namespace = binding["metadata"].get("namespace", "")
        roles = of_kind(objects, reference["kind"], reference["name"])
        [role] = [each for each in roles if each["metadata"].get("namespace", "") == namespace]
        for rule in role["rules"]:
            found |= {
                Permission(verb, group, *_split(resource), namespace, name)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            }
    return found


def _split(resource: str) -> tuple[str, str]:
    name, _, subresource = resource.partition("/")
    return name, subresource


SMALL: Json = {"nodes": 3, "nodesPerPod": 2}
NAMES = [f"{RELEASE}-{shard:04d}-{slot:05d}" for shard in range(2) for slot in range(2)]
OF_PODS = {
    Permission("get", "apps", "statefulsets", "", NAMESPACE, RELEASE),
    Permission("patch", "apps", "statefulsets", "scale", NAMESPACE, RELEASE),
}


@pytest.mark.parametrize("fidelity", list(Fidelity))
@pytest.mark.parametrize("name", IDENTITIES)
def test_the_account_gets_what_a_run_needs_and_no_more(
    bare_helm: Helm, name: str, fidelity: Fidelity
) -> None:
    mode = name.removesuffix("-legacy")
    values: Json = {"fidelity": str(fidelity), "identity": {"mode": mode}, **SMALL}
    values["identity"]["allowBroadImpersonation"] = mode != name
    values["csr"] = {"tokenSecret": "t"}
    server = "--kube-version=" + ("1.35.0" if name.endswith("-legacy") else "1.36.3")
    given = permissions(bare_helm.objects(values, server), RELEASE)
    features = Features(fidelity, keeps_records=True)
    needed = [*own_permissions(features), *of_nodes(IDENTITIES[name], features)]
    needed += optional_permissions(features)
    if fidelity is Fidelity.KUBELET:
        needed += of_agent(name)
    assert given == {*narrowed(needed, NAMES), *OF_PODS}
    assert CLUSTER not in {each.namespace for each in given}


def test_features_add_their_rights(bare_helm: Helm) -> None:
    rights = ("staticPods", "dynamicResources", "polledObjects")
    values: Json = {"simulateCSI": True, "rbac": dict.fromkeys(rights, True)}
    values["serve"] = {"enabled": True}
    features = Features(
        storage=True,
        static_pods=True,
        dynamic_resources=True,
        polled_objects=True,
        serves=True,
        keeps_records=True,
    )
    given = permissions(bare_helm.objects(values | SMALL, "--kube-version=1.36.3"), RELEASE)
    needed = [*own_permissions(features), *of_nodes(IDENTITIES["impersonate"], features)]
    needed += optional_permissions(features)
    needed += of_agent("impersonate")
    assert given == {*narrowed(needed, NAMES), *OF_PODS}


@pytest.mark.parametrize(
    ("values", "server", "is_given"),
    [
        ({}, "1.36.3", "impersonate"),
        ({"noAgents": True}, "1.36.3", ""),
        ({"fidelity": "light"}, "1.36.3", ""),
        ({"fidelity": "light", "rbac": {"kubeProxy": "always"}}, "1.36.3", "impersonate"),
        ({"rbac": {"kubeProxy": "never"}}, "1.36.3", ""),
        (ALLOWED, "1.35.0", "impersonate-legacy"),
        ({"identity": "csr", "csr": {"tokenSecret": "t"}}, "1.36.3", "csr"),
        ({"identity": "csr", "csr": {"tokenSecret": "t"}}, "1.35.0", ""),
        (
            {
                "identity": {"mode": "csr", "allowBroadImpersonation": True},
                "csr": {"tokenSecret": "t"},
            },
            "1.35.0",
            CSR_LEGACY,
        ),
        ({"identity": "shared"}, "1.36.3", "shared"),
    ],
)
def test_kube_proxy_gets_its_rights_where_nodes_have_one(
    bare_helm: Helm, values: Json, server: str, is_given: str
) -> None:
    objects = bare_helm.objects(values | SMALL, f"--kube-version={server}")
    own = permissions(objects, RELEASE)
    of_all = {each for name in AGENTS for each in of_agent(name) if "kube-proxy" in each}
    wanted = set(of_agent(is_given)) if is_given else set()
    assert wanted <= own
    assert own & of_all == wanted & of_all  # who it is
    given = permissions(objects, KUBE_PROXY)
    its_own = set(permissions_of(kube_proxy()))
    assert given == (its_own if is_given not in {"", "shared"} else set())
    assert {each.namespace for each in given if each.verb == "create"} <= {"default"}


def test_rights_without_names_are_for_every_node(bare_helm: Helm) -> None:
    values = {"rbac": {"nodeNames": False}}
    given = permissions(bare_helm.objects(values, "--kube-version=1.36.3"), RELEASE)
    needed = {*own_permissions(Features()), *of_nodes(IDENTITIES["impersonate"], Features())}
    needed |= set(optional_permissions(Features(keeps_records=True)))
    assert given == needed | OF_PODS | set(of_agent("impersonate"))


@pytest.mark.parametrize(
    ("values", "shards", "slots"),
    [
        ({"nodes": 2_500}, 3, 1_000),
        ({"nodes": 10, "nodesPerPod": 5, "processesPerPod": 2}, 4, 3),
        ({"nodes": 10, "nodesPerPod": 5, "maxNodes": 12}, 3, 5),
        ({"nodes": 10, "nodesPerPod": 5, "locust": {"enabled": True}}, 2, SHARD_ROOM),
    ],
)
def test_every_node_that_may_be_is_named_and_no_object_is_too_large(
    bare_helm: Helm, values: Json, shards: int, slots: int
) -> None:
    """`kubectl apply` notes an object in an annotation, and those have 256 KiB."""
    prefix = "x" * 52
    objects = bare_helm.objects(values | {"namePrefix": prefix}, "--kube-version=1.36.3")
    given = permissions(objects, RELEASE)
    names = {each.name for each in given if each.verb == "impersonate:arbitrary-node"}
    assert names == {f"{prefix}-{a:04d}-{b:05d}" for a in range(shards) for b in range(slots)}
    of_runs = {p.name for p in given if (p.resource, p.namespace) == ("leases", "default")}
    assert of_runs == {"", *(f"fleet-run-{prefix}-{a:04d}" for a in range(shards))}
    assert max(len(json.dumps(each)) for each in objects) < 256 << 10


def test_api_users_get_what_the_load_asks_in_a_namespace_of_their_own(bare_helm: Helm) -> None:
    users: Json = {"count": 3}
    values: Json = {"locust": {"enabled": True, "apiUsers": users}, **SMALL}
    objects = bare_helm.objects(values)
    [namespace] = of_kind(objects, "Namespace")
    assert namespace["metadata"]["name"] == load_name(RUN)
    assert namespace["metadata"]["labels"].items() >= {LOAD_LABEL: "true", RUN_LABEL: RUN}.items()
    [role] = of_kind(objects, "ClusterRole", f"{NAMESPACE}-{RELEASE}-users")
    assert role["rules"] == rules(EVERYWHERE)
    [role] = of_kind(objects, "Role", f"{RELEASE}-users")
    assert role["metadata"]["namespace"] == load_name(RUN)
    assert role["rules"] == rules(IN_NAMESPACE)
    users["clusterRole"] = "view"
    objects = bare_helm.objects(values)
    [binding] = of_kind(objects, "ClusterRoleBinding", f"{NAMESPACE}-{RELEASE}-users")
    assert binding["roleRef"]["name"] == "view"
    assert not of_kind(objects, "ClusterRole", f"{NAMESPACE}-{RELEASE}-users")


def test_no_grant_is_made_for_another_cluster(bare_helm: Helm) -> None:
    objects = bare_helm.objects({"target": {"kubeconfigSecret": "other"}})
    assert permissions(objects, RELEASE) == OF_PODS
    assert not of_kind(objects, "Pod")  # the smoke test could not reach it


@pytest.mark.parametrize(
    ("nodes", "per_pod", "replicas", "of_pod"),
    [(1, 1000, 1, 1), (1000, 1000, 1, 1000), (1001, 1000, 2, 1000), (5000, 2000, 3, 2000)],
)
def test_nodes_are_shared_out_over_pods(
    bare_helm: Helm, nodes: int, per_pod: int, replicas: int, of_pod: int
) -> None:
    objects = bare_helm.objects({"nodes": nodes, "nodesPerPod": per_pod})
    [statefulset] = of_kind(objects, "StatefulSet")
    assert statefulset["spec"]["replicas"] == replicas
    arguments = container(objects)["args"]
    assert f"--nodes={of_pod}" in arguments
    assert f"--nodes-total={nodes}" in arguments
    assert f"--run-id={RUN}" in arguments


@pytest.mark.parametrize("fidelity", list(Fidelity))
def test_a_pod_may_use_the_memory_that_fleet_asks_for(bare_helm: Helm, fidelity: Fidelity) -> None:
    values: Json = {"nodes": 3000, "nodesPerPod": 3000, "processesPerPod": 2}
    found = container(bare_helm.objects({**values, "fidelity": str(fidelity)}))["resources"]
    request, limit = (
        int(found[k]["memory"].removesuffix("Mi")) << 20 for k in ("requests", "limits")
    )
    agents = AGENT_BYTES if fidelity is Fidelity.KUBELET else 0
    needed = 2 * BASE_BYTES + 3000 * (NODE_BYTES[fidelity] + agents)
    assert needed <= request < needed + (2 << 20)
    assert limit == 2 * request
    assert "cpu" not in found["limits"]


def test_pods_are_restricted(bare_helm: Helm) -> None:
    """Every pod meets the Pod Security Standard `restricted`, and may write one directory."""
    seen = set()
    for each in bare_helm.objects(MATRIX["locust"]):
        spec = each if each["kind"] == "Pod" else each.get("spec", {}).get("template", {})
        for one in spec.get("spec", {}).get("containers", ()):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            seen.add((each["kind"], each["metadata"]["name"]))
            pod = spec["spec"]["securityContext"]
            assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, 65532)
            assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
            if each["kind"] != "Pod":
                assert spec["spec"]["enableServiceLinks"] is False
    assert {kind for kind, _ in seen} >= {"StatefulSet", "Deployment", "Job", "Pod"}, seen
