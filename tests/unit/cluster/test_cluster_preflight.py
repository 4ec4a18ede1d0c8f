import asyncio
from typing import Any

import pytest
from world.cluster_fakes import FakeApi, no_sleep, node_marks

from fleet.cluster.daemonsets import FAKE_TAINT, Landing, NodeShape, Taint, lands_on
from fleet.cluster.ownership import NODES, PREFIX_LABEL, RUN_LABEL
from fleet.cluster.preflight import (
    PodCidrs,
    TargetFacts,
    confirm,
    inspect,
    shared_cluster_notice,
    summarize_cidrs,
)
from fleet.cluster.runs import DURATION_S, RunLease
from fleet.errors import SetupError, UsageError
from fleet.k8s.well_known import MANAGED_ANNOTATION

EXISTS: dict[str, Any] = {"operator": "Exists"}


def daemon_set(api: FakeApi, name: str, **template: Any) -> None:
    path = f"/apis/apps/v1/namespaces/kube-system/daemonsets/{name}"
    spec = {"template": {"spec": template}}
    api.put(path, metadata={"namespace": "kube-system"}, spec=spec)


def empty_cluster() -> FakeApi:
    api = FakeApi()
    api.put("/api/v1/namespaces/kube-system", metadata={"uid": "system-uid"})
    return api


def shared_cluster() -> FakeApi:
    api = empty_cluster()
    for index in range(3):
        api.put(f"{NODES}/real-{index}", spec={"podCIDR": f"10.244.{index}.0/24"})
    api.put(f"{NODES}/fleet-0", metadata=node_marks("r0", "fleet"))
    daemon_set(api, "cni", tolerations=[EXISTS])
    daemon_set(api, "logs")
    daemon_set(api, "agent", tolerations=[{"key": FAKE_TAINT.key, "operator": "Exists"}])
    daemon_set(api, "windows", tolerations=[EXISTS], nodeSelector={"kubernetes.io/os": "windows"})
    return api


def without_cidrs(nodes: int) -> FakeApi:
    """Return a cluster whose network plugin does not go by podCIDRs."""
    api = empty_cluster()
    for index in range(nodes):
        api.put(f"{NODES}/real-{index}", spec={})
    return api


def look(
    api: FakeApi,
    nodes: int = 5_000,
    context: str = "prod",
    *,
    run_id: str = "r9",
    is_named: bool = True,
) -> TargetFacts:
    return asyncio.run(
        inspect(
            api,
            server="https://api.example:6443",
            context=context,
            server_version="v1.36.3",
            prefix="fleet",
            lease_prefix="fleet",
            run_id=run_id,
            shapes=[NodeShape(count=nodes)],
            is_named=is_named,
        )
    )


def asked(facts: TargetFacts, confirmed: str | None) -> None:
    asyncio.run(confirm(facts, confirmed=confirmed, ask=None, notice=""))


def test_a_shared_cluster_is_described_and_nothing_is_written() -> None:
    api = shared_cluster()
    before = dict(api.objects)
    facts = look(api)
    assert facts.kube_system_uid == "system-uid"
    assert facts.foreign_nodes == 3
    assert facts.is_shared
    assert [node.name for node in facts.existing] == ["fleet-0"]
    assert facts.landings == (
        Landing("kube-system", "agent", 5_000, knows_fleet=True),
        Landing("kube-system", "cni", 5_000, knows_fleet=False),
    )
    assert facts.daemon_pods == 10_000
    assert facts.pod_cidrs == PodCidrs(3, (24,), ("10.244.0.0/22",), 3)
    assert api.objects == before
    assert {method for method, _path in api.log} == {"GET"}


def test_the_notice_says_all_that_a_person_must_know() -> None:
    notice = shared_cluster_notice(look(shared_cluster()), 5_000)
    for said in (
        "SHARED cluster",
        "https://api.example:6443",
        "prod",
        "3 nodes of its own",
        "at most 5,000 nodes fleet-*",
        "1 of them, left by an earlier run",
        "2 DaemonSets will land on them, which makes 10,000 more pods",
        "kube-system/cni: 5,000 pods; they will not become Ready",
        "each node takes a /24, 5,000 of them a /11, if the cluster gives them one",
        "as it did 3 of 3 real nodes; those lie in 10.244.0.0/22",
        "A node that gets no podCIDR gives its pods addresses of 240.0.0.0/4 or fd00:10::/32",
        "tolerate the taint",
    ):
        assert said in notice
    assert "kube-system/agent: 5,000 pods\n" in notice
    assert "ANY pod" in shared_cluster_notice(look(shared_cluster()), 1, is_tainted=False)


@pytest.mark.parametrize(
    ("api", "said"),
    [
        (empty_cluster(), "No Node here shows whether the cluster gives each Node a podCIDR"),
        (without_cidrs(1), "The real node has no podCIDR: the fleet takes none from real nodes"),
        (without_cidrs(3), "The 3 real nodes have no podCIDR"),
        (without_cidrs(201), "The first 200 real nodes have no podCIDR"),
    ],
)
def test_of_pod_cidrs_it_says_what_was_seen(api: FakeApi, said: str) -> None:
    notice = shared_cluster_notice(look(api), 10)
    assert said in notice
    assert "addresses of 240.0.0.0/4" in notice


def in_cloud(provider_id: str) -> FakeApi:
    api = empty_cluster()
    for index in range(3):
        api.put(f"{NODES}/real-{index}", spec={"providerID": f"{provider_id}{index}"})
    return api


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "",
            "none. The cloud controller of aws looks a Node that is not Ready up by its name, fin",
        ),
        (
            "fleet://{{name}}",
            "The controllers of aws cannot read it: they leave the Node, but some",
        ),
        ("aws:///{{zone}}/i-{{index}}", "It looks like a machine of aws: of a Node that is not Re"),
    ],
)
def test_in_a_cloud_the_notice_says_what_the_provider_id_will_do(template: str, said: str) -> None:
    facts = look(in_cloud("aws:///eu-west-1a/i-0123"))
    notice = shared_cluster_notice(facts, 10, provider_ids=[template, template])
    assert notice.count("- providerID:") == 1
    assert said in notice


@pytest.mark.parametrize("provider_id", ["", "kind://docker/kind/", "fleet://a/", "x"])
def test_of_no_cloud_it_says_nothing(provider_id: str) -> None:
    facts = look(in_cloud(provider_id))
    assert "providerID" not in shared_cluster_notice(facts, 10, provider_ids=["fleet://{{name}}"])


def fleets_own() -> FakeApi:
    """Return a cluster in which only fleets have nodes."""
    api = empty_cluster()
    api.put(f"{NODES}/other-0", metadata=node_marks("r0", "other"))
    return api


@pytest.mark.parametrize("api", [empty_cluster(), fleets_own()])
def test_a_cluster_that_was_named_is_shared_whatever_nodes_it_has(api: FakeApi) -> None:
    """Real nodes may come later: an autoscaled cluster can be at zero."""
    facts = look(api)
    assert facts.is_shared
    assert not facts.foreign_nodes
    with pytest.raises(UsageError, match=r"no node that .*--confirm-cluster prod"):
        asked(facts, confirmed=None)
    asked(facts, confirmed="prod")
    notice = shared_cluster_notice(facts, 10)
    assert "SHARED cluster: it was named, and may be others' too" in notice
    assert "has         no node of its own" in notice


def test_a_local_control_plane_is_shared_once_it_has_a_node_of_others() -> None:
    facts = look(fleets_own(), is_named=False)
    assert not facts.is_shared
    assert not facts.existing
    asked(facts, confirmed=None)
    foreign = look(shared_cluster(), is_named=False)
    assert foreign.is_shared
    with pytest.raises(UsageError, match="--confirm-cluster prod"):
        asked(foreign, confirmed=None)


def test_nodes_that_a_fleet_has_served_are_told_from_machines() -> None:
    """An earlier run with --manage has left its drivers there: no others are installed."""
    api = shared_cluster()
    api.put(f"{NODES}/made-0", metadata={"annotations": {MANAGED_ANNOTATION: "true"}}, spec={})
    facts = look(api)
    assert facts.managed_names == {"made-0"}
    assert facts.foreign_nodes == 4
    assert facts.managed_names < facts.foreign_names


def test_a_node_with_the_label_alone_is_not_fleet_s() -> None:
    """It makes the cluster shared, is not taken over, and its name is not used."""
    api = empty_cluster()
    api.put(f"{NODES}/fleet-00000", metadata=node_marks("r0", "fleet"))
    labels = {RUN_LABEL: "r0", PREFIX_LABEL: "fleet"}
    api.put(f"{NODES}/fleet-00001", metadata={"labels": labels}, spec={})
    facts = look(api)
    assert facts.is_shared
    assert facts.foreign_names == {"fleet-00001"}
    assert [node.name for node in facts.existing] == ["fleet-00000"]
    with pytest.raises(SetupError, match=r"fleet-00001.*--name-prefix; not touched"):
        facts.check_names(["fleet-00000", "fleet-00001"])
    facts.check_names(["fleet-00000", "fleet-00002"])


def test_a_living_fleet_with_the_prefix_is_refused_before_anything_else() -> None:
    api = shared_cluster()
    asyncio.run(RunLease(api, "fleet", "r1", sleep=no_sleep).acquire())
    lease = next(path for path in api.objects if "fleet-run-" in path)
    time = "2027-01-15T08:00:00Z"
    api.objects[lease]["metadata"]["managedFields"] = [{"time": time}]
    api.date_s = 1_800_000_000
    assert look(api, run_id="r1").holder is not None  # a process of the run that came back
    with pytest.raises(SetupError, match="in use by run r1"):
        look(api)
    api.date_s += DURATION_S
    facts = look(api)
    assert facts.holder is not None
    assert not facts.holder.is_alive


def test_in_a_cluster_the_confirmation_is_the_uid_of_kube_system() -> None:
    facts = look(shared_cluster(), context="in-cluster")
    with pytest.raises(UsageError, match="--confirm-cluster system-uid"):
        asked(facts, confirmed=None)
    with pytest.raises(UsageError):
        asked(facts, confirmed="in-cluster")
    asked(facts, confirmed="system-uid")


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], PodCidrs(0, (), ())),
        ([["10.0.0.0/24"]], PodCidrs(1, (24,), ("10.0.0.0/24",))),
        (
            [["10.0.0.0/24", "fd00::/64"], ["10.0.255.0/24", "fd00:0:0:1::/64"]],
            PodCidrs(2, (24, 64), ("10.0.0.0/16", "fd00::/63")),
        ),
    ],
)
def test_pod_ranges(ranges: list[list[str]], expected: PodCidrs) -> None:
    assert summarize_cidrs(ranges) == expected


LINUX = NodeShape(count=1, labels={"os": "linux", "cores": "32"})


def tolerant(**spec: Any) -> dict[str, Any]:
    return {"tolerations": [EXISTS], **spec}


def term(key: str, operator: str, *values: str, of: str = "matchExpressions") -> dict[str, Any]:
    return {of: [{"key": key, "operator": operator, "values": list(values)}]}


def requires(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that tolerates everything, and must be on a node for which one term holds."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return tolerant(affinity={"nodeAffinity": required})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({}, False),
        (tolerant(), True),
        ({"tolerations": [{**EXISTS, "effect": "NoSchedule"}]}, True),
        ({"tolerations": [{**EXISTS, "effect": "NoExecute"}]}, False),
        ({"tolerations": [{**EXISTS, "key": "other"}]}, False),
        ({"tolerations": [{"key": FAKE_TAINT.key, "value": "true"}]}, True),
        ({"tolerations": [{"key": FAKE_TAINT.key, "value": "false"}]}, False),
        (tolerant(nodeSelector={"os": "linux"}), True),
        (tolerant(nodeSelector={"os": "linux", "zone": "a"}), False),
        (tolerant(nodeName="real-0"), False),
        (requires(term("os", "In", "linux", "windows")), True),
        (requires(term("os", "In", "windows")), False),
        (requires(term("os", "NotIn", "windows")), True),
        (requires(term("os", "NotIn", "linux")), False),
        (requires(term("zone", "NotIn", "a")), True),
        (requires(term("os", "Exists")), True),
        (requires(term("zone", "Exists")), False),
        (requires(term("zone", "DoesNotExist")), True),
        (requires(term("os", "DoesNotExist")), False),
        (requires(term("cores", "Gt", "16")), True),
        (requires(term("cores", "Lt", "16")), False),
        (requires(term("os", "Gt", "16")), False),
        (requires(term("cores", "Gt")), False),
        (requires(term("os", "Like", "lin")), False),
        (requires({}), False),
        (tolerant(affinity={"podAffinity": {}}), True),
        (requires(term("metadata.name", "In", "real-0", of="matchFields")), False),
        (requires(term("zone", "Exists"), term("os", "Exists")), True),
    ],
)
def test_where_daemon_sets_land(template: dict[str, Any], *, expected: bool) -> None:
    assert lands_on(template, LINUX) is expected


@pytest.mark.parametrize(
    ("taint", "template", "expected"),
    [
        (Taint("a", "", "PreferNoSchedule"), {}, True),
        (Taint("a", "", "NoExecute"), {}, False),
        (Taint("node.kubernetes.io/not-ready", "", "NoExecute"), {}, True),
        (Taint("node.kubernetes.io/network-unavailable", "", "NoSchedule"), {}, False),
        (
            Taint("node.kubernetes.io/network-unavailable", "", "NoSchedule"),
            {"hostNetwork": True},
            True,
        ),
    ],
)
def test_taints_that_every_daemon_pod_tolerates(
    taint: Taint, template: dict[str, Any], *, expected: bool
) -> None:
    assert lands_on(template, NodeShape(count=1, taints=[taint])) is expected
