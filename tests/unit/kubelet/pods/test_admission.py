"""Every reason for which a kubelet refuses a pod, with its exact text."""

import dataclasses
from typing import Any

import orjson
import pytest
from world.admission_world import MODEL, container, look, make_pod, node

from fleet.k8s.admission import PLAIN, NodeState
from fleet.k8s.pods import Pod
from fleet.k8s.static_pods import StaticManifest
from fleet.kubelet.pods.admission import AdmissionInputs, Devices, Shortage, Verdict
from fleet.kubelet.pressure.preemption import Need, pods_to_preempt
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.node_model import NodeModel
from fleet.profile.release import V1_36
from fleet.wire.api.decode_json import decode_node

CRITICAL = 2_000_000_000


def asks(cpu: str = "", memory: str = "", **more: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory, **more}
    return {"requests": {name: amount for name, amount in requests.items() if amount}}


def changed(**fields: object) -> NodeModel:
    return dataclasses.replace(MODEL, **fields)  # type: ignore[arg-type]


def refusal(pod: Pod, *others: Pod, inputs: AdmissionInputs | None = None) -> tuple[str, str]:
    found = look(pod, *others, inputs=inputs).rejection
    assert found is not None
    return found


def test_a_plain_pod_keeps_nothing_and_is_taken() -> None:
    pod = make_pod()
    assert pod.spec.admission == PLAIN
    assert look(pod) == Verdict()


@pytest.mark.parametrize(
    ("wanted", "resource", "requested", "used", "capacity"),
    [
        (asks(cpu="7"), "cpu", 7000, 1500, 8000),
        (asks(memory="32Gi"), "memory", 32 << 30, 1 << 30, 30 << 30),
        (asks(**{"ephemeral-storage": "1Ti"}), "ephemeral-storage", 1 << 40, 0, 90 << 30),
        (asks(**{"hugepages-2Mi": "2Mi"}), "hugepages-2Mi", 2 << 20, 0, 0),
    ],
    ids=["cpu", "memory", "ephemeral-storage", "hugepages"],
)
def test_what_a_node_lacks_is_named(
    wanted: dict[str, Any], resource: str, requested: int, used: int, capacity: int
) -> None:
    other = make_pod("o", container(resources=asks(cpu="1500m", memory="1Gi")))
    amounts = f"requested: {requested}, used: {used}, capacity: {capacity}"
    assert refusal(make_pod("p", container(resources=wanted)), other) == (
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, {amounts}",
    )


def test_the_first_shortage_in_upstreams_order_is_the_reason() -> None:
    inputs = node(changed(pods_max=1))
    wanted = asks(cpu="100", memory="1Ti", **{"ephemeral-storage": "1Ti"})
    pod = make_pod("p", container(resources=wanted))
    assert refusal(pod, make_pod("o"), inputs=inputs) == (
        "OutOfpods",
        "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1",
    )
    assert refusal(pod, inputs=inputs)[0] == "OutOfcpu"


def test_init_containers_sidecars_overhead_and_pod_resources_count() -> None:
    """Source: component-helpers/resource/helpers.go, PodRequests."""
    sidecar = container("s", resources=asks(cpu="1"), restartPolicy="Always")
    big = container("i", resources=asks(cpu="6"))
    main = container(resources=asks(cpu="2"))
    pod = make_pod("p", main, initContainers=[sidecar, big], overhead={"cpu": "500m"})
    assert dict(pod.spec.admission.requests) == {"cpu": 7500}
    whole = make_pod("q", main, resources=asks(cpu="4"))
    assert dict(whole.spec.admission.requests) == {"cpu": 4000}
    assert refusal(whole, pod)[0] == "OutOfcpu"


def test_an_overhead_counts_twice_once_the_status_of_the_pod_has_it() -> None:
    """Source: component-helpers/resource/helpers.go, PodRequests of 1.37."""
    other = make_pod("o", container(resources=asks(cpu="3")), overhead={"cpu": "500m"})
    pod = make_pod("p", container(resources=asks(cpu="5")))
    assert "used: 3500," in refusal(pod, other)[1]
    other.status = other.status._replace(resources_json=other.spec.running_json)
    assert "used: 4000," in refusal(pod, other)[1]
    assert "used: 3500," in refusal(pod, other, inputs=node(changed(release=V1_36)))[1]


def test_extended_resources_follow_the_nodes_own_object() -> None:
    """One that the Node does not have at all is the cluster's, and not looked at."""
    gpu = {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "2"}}
    pod = make_pod("p", container(resources=gpu))
    assert look(pod) == Verdict()
    inputs = node(state=NodeState(extended=(("x.io/gpu", 4, 3),)))
    assert look(pod, inputs=inputs) == Verdict()
    assert refusal(pod, make_pod("o", container(resources=gpu)), inputs=inputs) == (
        "OutOfx.io/gpu",
        "Node didn't have enough resource: x.io/gpu, requested: 2, used: 2, capacity: 3",
    )


def test_what_is_allocated_counts_as_allocatable() -> None:
    """Source: devicemanager/manager.go, sanitizeNodeAllocatable."""
    gpu = {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "2"}}
    pod = make_pod("p", container(resources=gpu))
    inputs = node(state=NodeState(extended=(("x.io/gpu", 4, 0),)))
    found = look(pod, inputs=inputs, allocate=lambda _: Devices("", {"x.io/gpu": 2}))
    assert found == Verdict()


def test_a_device_that_cannot_be_given_out_is_an_unexpected_error() -> None:
    gpu = {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "2"}}
    pod = make_pod("p", container(resources=gpu))
    found = look(pod, allocate=lambda _: Devices("cannot allocate unregistered device x.io/gpu"))
    assert found.rejection == (
        "UnexpectedAdmissionError",
        "Allocate failed due to cannot allocate unregistered device x.io/gpu, which is unexpected",
    )


AFFINITY = (
    "NodeAffinity",
    "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"nodeSelector": {"kubernetes.io/hostname": "n"}}, True),
        ({"nodeSelector": {"disk": "hdd"}}, False),
        ({"affinity": affinity(expression("disk", "In", "ssd", "nvme"))}, True),
        ({"affinity": affinity(expression("disk", "NotIn", "ssd"))}, False),
        ({"affinity": affinity(expression("tape", "NotIn", "x"))}, True),
        ({"affinity": affinity(expression("disk", "Exists"))}, True),
        ({"affinity": affinity(expression("disk", "DoesNotExist"))}, False),
        ({"affinity": affinity(expression("gen", "Gt", "4"))}, True),
        ({"affinity": affinity(expression("gen", "Lt", "5"))}, False),
        ({"affinity": affinity(expression("disk", "Gt", "4"))}, False),
        ({"affinity": affinity(expression("x", "Exists"), expression("disk", "Exists"))}, True),
        ({"affinity": affinity()}, False),
        ({"affinity": affinity({})}, False),
        (
            {
                "affinity": affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
                )
            },
            True,
        ),
    ],
)
def test_node_selector_and_affinity(spec: dict[str, Any], *, matches: bool) -> None:
    inputs = node(state=NodeState(labels=(("disk", "ssd"), ("gen", "5"))))
    found = look(make_pod(**spec), inputs=inputs)
    assert found.rejection == (None if matches else AFFINITY)
    assert found.asks_node is not matches


def test_ports_of_the_node_are_taken_once() -> None:
    def pod(name: str, port: int, ip: str = "", protocol: str = "TCP") -> Pod:
        each = {"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}
        return make_pod(name, container(ports=[each, {"containerPort": 81}]))

    taken = pod("o", 8080)
    assert refusal(pod("p", 8080), taken) == (
        "NodePorts",
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
    )
    assert refusal(pod("p", 8080, "10.0.0.1"), taken)[0] == "NodePorts"
    assert look(pod("p", 8081), taken) == Verdict()
    assert look(pod("p", 8080, protocol="UDP"), taken) == Verdict()
    assert look(pod("p", 8080, "10.0.0.1"), pod("o", 8080, "10.0.0.2")) == Verdict()


def test_only_no_execute_taints_count() -> None:
    taints = [
        {"key": "gone", "effect": "NoExecute"},
        {"key": "full", "value": "yes", "effect": "NoSchedule"},
    ]
    meta = {"name": "n", "uid": "u", "resourceVersion": "1"}
    state = decode_node(orjson.dumps({"metadata": meta, "spec": {"taints": taints}})).state
    inputs = node(state=state)
    assert refusal(make_pod(), inputs=inputs) == (
        "TaintToleration",
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    )
    for toleration in ({"operator": "Exists"}, {"key": "gone", "effect": "NoExecute"}):
        assert look(make_pod(tolerations=[toleration]), inputs=inputs) == Verdict()
    other = make_pod(tolerations=[{"key": "gone", "operator": "Exists", "effect": "NoSchedule"}])
    assert refusal(other, inputs=inputs)[0] == "TaintToleration"
    static = StaticManifest("/etc/pods/p.yaml", "", 0, make_pod(), b"{}").pod_of("n", 0)
    assert look(static, inputs=inputs) == Verdict()


def security(**fields: object) -> dict[str, Any]:
    return {"securityContext": fields}


@pytest.mark.parametrize(
    ("spec", "model", "reason", "message"),
    [
        (
            {"labels": {"kubernetes.io/os": "windows"}},
            {},
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (
            {"os": {"name": "windows"}},
            {},
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            security(supplementalGroupsPolicy="Strict"),
            {"supplemental_groups_policy": False},
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            security(sysctls=[{"name": "kernel/msgmax", "value": "1"}]),
            {},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.msgmax" not allowlisted',
        ),
        (
            {
                **security(sysctls=[{"name": "net.ipv4.tcp_rmem", "value": "1"}]),
                "hostNetwork": True,
            },
            {},
            "SysctlForbidden",
            'forbidden sysctl: "net.ipv4.tcp_rmem" not allowed with host Net enabled',
        ),
        (
            {
                **security(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
                "hostIPC": True,
            },
            {},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled',
        ),
        (
            security(appArmorProfile={"type": "RuntimeDefault"}),
            {"app_armor": False},
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            {"resources": {"requests": {"cpu": "1"}}},
            {"release": V1_36.with_gates({"PodLevelResources": False})},
            "PodLevelResourcesNotSupported",
            "PodLevelResources feature gate is disabled",
        ),
        (
            {"hostNetwork": True, "hostUsers": False},
            {},
            "PodFeatureUnsupported",
            "Pod requires node features that are not available: UserNamespacesHostNetworkSupport",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_a_node_cannot_do(
    spec: dict[str, Any], model: dict[str, Any], reason: str, message: str
) -> None:
    assert refusal(make_pod(**spec), inputs=node(changed(**model))) == (reason, message)


def test_safe_and_allowed_sysctls_pass() -> None:
    safe = make_pod(**security(sysctls=[{"name": "net.ipv4.tcp_syncookies", "value": "1"}]))
    assert look(safe) == Verdict()
    unsafe = make_pod(**security(sysctls=[{"name": "kernel.msgmax", "value": "1"}]))
    for patterns in (("kernel.msg*",), ("kernel.msgmax",)):
        model = changed(kubelet=KubeletConfiguration(allowed_unsafe_sysctls=patterns))
        assert look(unsafe, inputs=node(model)) == Verdict()
    new = make_pod(**security(sysctls=[{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}]))
    assert look(new) == Verdict()
    assert refusal(new, inputs=node(changed(release=V1_36)))[0] == "SysctlForbidden"
    model = changed(kubelet=KubeletConfiguration(allowed_unsafe_sysctls=("user.*",)))
    user = security(sysctls=[{"name": "user.max_net_namespaces", "value": "1"}])
    assert look(make_pod(**user, hostUsers=False), inputs=node(model)) == Verdict()
    assert refusal(make_pod(**user), inputs=node(model))[1] == (
        'forbidden sysctl: "user.max_net_namespaces" not allowed with host User enabled'
    )


def test_pressure_comes_first_and_shutdown_last() -> None:
    pod = make_pod(os={"name": "windows"})
    inputs = node(pressure="The node had condition: [DiskPressure]. ", is_shutting_down=True)
    assert refusal(pod, inputs=inputs) == ("Evicted", "The node had condition: [DiskPressure]. ")
    inputs = inputs._replace(pressure="")
    assert refusal(pod, inputs=inputs)[0] == "PodOSNotSupported"
    assert refusal(make_pod(), inputs=inputs) == (
        "NodeShutdown",
        "Pod was rejected as the node is shutting down.",
    )


def test_a_critical_pod_is_never_refused_for_want_of_resources() -> None:
    other = make_pod("o", container(resources=asks(cpu="6")))
    pod = make_pod("p", container(resources=asks(cpu="4")), priority=CRITICAL)
    found = look(pod, other)
    assert found == Verdict(None, (Shortage("cpu", 4000, 6000, 8000),))
    assert found.shortages[0].missing == 2000
    astray = make_pod(
        "p", container(resources=asks(cpu="4")), priority=CRITICAL, nodeSelector={"x": "y"}
    )
    assert look(astray, other) == Verdict(AFFINITY)  # type: ignore[arg-type]


def test_preemption_takes_the_fewest_and_the_least_guaranteed() -> None:
    """Source: preemption_test.go, TestGetPodsToPreempt."""

    def pod(name: str, cpu: str, qos: str, priority: int = 0) -> Pod:
        return make_pod(name, container(resources=asks(cpu=cpu)), qos=qos, priority=priority)

    critical = pod("p", "4", "Guaranteed", CRITICAL)
    small, big = pod("small", "1", "Burstable"), pod("big", "3", "Burstable")
    fixed = pod("fixed", "3", "Guaranteed")
    effort = make_pod("effort", qos="BestEffort")
    others = [effort, small, big, fixed, pod("other", "8", "Guaranteed", CRITICAL)]

    def names(*needs: Need) -> list[str]:
        found = pods_to_preempt(critical, others, list(needs))
        assert not found.error
        return [each.name for each in found.pods]

    assert names(Need("cpu", 900)) == ["small"]
    assert names(Need("cpu", 2000)) == ["big"]
    assert names(Need("cpu", 4000)) == ["big", "small"]
    assert names(Need("cpu", 5000)) == ["big", "fixed"]
    assert names(Need("pods", 1)) == ["effort"]
    found = pods_to_preempt(critical, others, [Need("cpu", 9000)])
    assert found.error == (
        "preemption: error finding a set of pods to preempt: "
        "no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]"
    )


def test_claims_get_their_names_from_the_status() -> None:
    spec: dict[str, Any] = {
        "resourceClaims": [
            {"name": "own", "resourceClaimName": "shared"},
            {"name": "new", "resourceClaimTemplateName": "t"},
            {"name": "late", "resourceClaimTemplateName": "t"},
            {"name": "none", "resourceClaimTemplateName": "t"},
        ]
    }
    claims = [{"name": "new", "resourceClaimName": "p-new-x"}, {"name": "none"}]
    found = make_pod(claims=claims, **spec).spec.admission.claims
    assert [(each.name, each.claim, each.generated, each.is_needless) for each in found] == [
        ("own", "shared", False, False),
        ("new", "p-new-x", True, False),
        ("late", "", True, False),
        ("none", "", True, True),
    ]
