"""Records from JSON: what is read, what is shared, and what is not even parsed."""

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
import yaml

from fleet.k8s.effects import WatchKind
from fleet.k8s.objects import CSINodeView, Owner, RuntimeClassView, ServicePort, ServiceView
from fleet.k8s.pod_template import container_script
from fleet.k8s.pods import (
    ContainerStatus,
    EnvRef,
    EventType,
    LeaseView,
    NodeCondition,
    ObjectSource,
    Pod,
    RunningState,
    TerminatedState,
    Token,
    TokenSource,
    Variable,
    VolumeSpec,
    WaitingState,
)
from fleet.k8s.selectors import Toleration
from fleet.wire.api.decode_json import (
    decode_csinode,
    decode_lease,
    decode_list,
    decode_node,
    decode_status,
    decode_token,
    decode_watch_event,
    forget_managers,
)
from fleet.wire.api.decode_pod import decode_pod, decode_pod_view

AT = "2026-11-21T02:07:37Z"
AT_S = 1795226857
TOKEN = "kube-api-access-b5d55"
POD = Path(__file__).with_name("pod.yaml").read_text()


def pod_object(name: str = "web", token: str = TOKEN, node: str = "fleet-00000") -> dict[str, Any]:
    """Return a Pod in the field order of Go."""
    text = POD.replace("NAME", name).replace("TOKEN", token).replace("NODE", node)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def dumped(**fields: str) -> bytes:
    return orjson.dumps(pod_object(**fields))


def test_metadata_of_a_pod() -> None:
    pod = decode_pod(dumped())
    assert (pod.namespace, pod.name, pod.uid) == ("default", "web", "uid-web")
    assert (pod.resource_version, pod.generation, pod.node_name) == ("42", 2, "fleet-00000")
    assert (pod.created_s, pod.deletion_s, pod.deletion_grace_s) == (AT_S, AT_S, 5)
    assert pod.deleting
    assert pod.labels == (("app", "web"),)
    assert pod.annotations == (("fleet.emulator/run-time", "5s"),)
    assert pod.token_suffix == "b5d55"
    assert not pod.is_mirror


def test_an_environment_from_neither_a_config_map_nor_a_secret_is_left_out() -> None:
    """Nobody refuses it in a static pod's file; programs read what `env_from` has."""
    read = container_script({"envFrom": [{"prefix": "P_"}, {"secretRef": {"name": "s"}}]})
    assert read is not None
    assert read.env_from == (Variable("", source=EnvRef("Secret", name="s")),)


def test_spec_of_a_pod() -> None:
    pod = decode_pod(dumped())
    (spec,) = pod.spec.containers
    assert (spec.name, spec.image, spec.command, spec.args) == (
        "c",
        "nginx:1",
        ("sleep",),
        ("1", "a,,b"),
    )
    assert spec.env_sources == (
        EnvRef("ConfigMap", name="all"),
        EnvRef("Secret", "k", "one", optional=True),
    )
    assert spec.requests_json == b'{"cpu":"500m","memory":"1Gi"}'
    assert spec.readiness_probe is not None
    assert spec.startup_probe is None
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.volumes[0] == VolumeSpec(
        "kube-api-access-00000",
        "projected",
        (ObjectSource("kube-root-ca.crt"), ObjectSource("s", optional=True, kind="Secret")),
        (TokenSource("", 3607, "token"),),
    )
    assert [each.kind for each in pod.spec.volumes[1:]] == ["configMap", "secret", "emptyDir"]
    assert pod.spec.volumes[2].sources == (ObjectSource("sec", optional=True, kind="Secret"),)
    assert pod.spec.tolerations == (Toleration("fleet.emulator/fake", "Exists", "", ""),)
    assert (pod.spec.termination_grace_s, pod.spec.host_network, pod.spec.priority) == (7, True, 9)
    assert (pod.spec.readiness_gates, pod.spec.pull_secrets) == (("lb",), ("registry",))
    assert pod.spec.qos_class == "Burstable"


def test_what_a_spec_asks_for_and_a_server_shows_are_equal_bytes() -> None:
    pod = decode_pod(dumped())
    shown = pod.status.containers[0]
    assert shown.volume_mounts_json == pod.spec.containers[0].volume_mounts_json
    assert shown.allocated_json == pod.spec.containers[0].requests_json


def test_status_of_a_pod() -> None:
    status = decode_pod(dumped()).status
    assert (status.phase, status.pod_ip, status.host_ips) == ("Running", "10.0.0.2", "192.0.2.2")
    assert (status.start_time_s, status.qos_class) == (AT_S, "Burstable")
    (container,) = status.containers
    assert isinstance(container, ContainerStatus)
    assert container.state == RunningState(AT_S)
    assert container.last_state == TerminatedState(1, "Error", "", AT_S, AT_S, "containerd://0")
    assert container.user_json == b'{"linux":{"gid":0,"supplementalGroups":[0],"uid":0}}'
    assert status.conditions[0].observed_generation == 1


def test_a_view_is_the_status_of_the_whole() -> None:
    view = decode_pod_view(dumped())
    whole = decode_pod(dumped())
    assert (view.uid, view.resource_version, view.deleting) == ("uid-web", "42", True)
    assert view.status == whole.status


def test_an_unusual_field_order_is_parsed_whole() -> None:
    shuffled = dict(reversed(list(pod_object().items())))
    assert decode_pod(orjson.dumps(shuffled)).status == decode_pod(dumped()).status
    assert decode_pod_view(orjson.dumps(shuffled)) == decode_pod_view(dumped())
    del shuffled["status"]
    assert decode_pod(shuffled).status.phase == "Pending"


def test_pods_of_one_template_share_their_spec() -> None:
    one = decode_pod(dumped(name="one", token="kube-api-access-aaaaa", node="n1"))
    two = decode_pod(dumped(name="two", token="kube-api-access-bbbbb", node="n2"))
    assert one.spec.containers is two.spec.containers
    assert one.spec.volumes is two.spec.volumes
    assert (one.token_suffix, two.token_suffix) == ("aaaaa", "bbbbb")
    assert (one.node_name, two.node_name) == ("n1", "n2")
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize(
    ("path", "value", "changes"),
    [
        (("metadata", "labels"), {"app": "new"}, True),
        (("metadata", "annotations"), {"a": "b"}, True),
        (("metadata", "resourceVersion"), "43", False),
        (("metadata", "managedFields"), [], False),
        (("spec", "priority"), 10, True),
        (("status", "phase"), "Failed", False),
    ],
)
def test_the_fingerprint_is_of_spec_labels_and_annotations(
    path: tuple[str, str], value: object, *, changes: bool
) -> None:
    obj = pod_object()
    obj[path[0]][path[1]] = value
    assert (decode_pod(obj).fingerprint != decode_pod(dumped()).fingerprint) is changes


def test_a_pod_as_the_scheduler_leaves_it() -> None:
    obj = pod_object()
    del obj["metadata"]["deletionTimestamp"]
    del obj["metadata"]["deletionGracePeriodSeconds"]
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    pod = decode_pod(obj)
    assert not pod.deleting
    assert pod.deletion_grace_s is None
    assert pod.status.conditions == ()


def test_states_that_are_missing_or_waiting() -> None:
    obj = pod_object()
    (status,) = obj["status"]["containerStatuses"]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}}
    assert decode_pod(obj).status.containers[0].state == WaitingState("CrashLoopBackOff", "m")
    status["state"] = {}
    assert decode_pod(obj).status.containers[0].state == WaitingState("")


@pytest.mark.parametrize(
    ("requests", "limits", "qos"),
    [
        ({}, {}, "BestEffort"),
        ({"cpu": "1"}, {}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}, "Burstable"),
    ],
)
def test_qos_class(requests: dict[str, str], limits: dict[str, str], qos: str) -> None:
    obj = pod_object()
    obj["spec"]["initContainers"] = []
    obj["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": limits}
    assert decode_pod(obj).spec.qos_class == qos


def test_resources_of_the_whole_pod() -> None:
    obj = pod_object()
    obj["spec"]["containers"].append(
        {"name": "d", "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}}}
    )
    obj["spec"]["initContainers"] = [
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
        {"name": "init", "resources": {"requests": {"cpu": "4", "memory": "64Mi"}}},
    ]
    obj["spec"]["overhead"] = {"cpu": "10m"}
    pod = decode_pod(obj)
    # init needs 4 CPU beside the sidecar's 100m; the containers need less.
    assert orjson.loads(pod.spec.allocated_json) == {"cpu": "4110m", "memory": "1536Mi"}
    assert orjson.loads(pod.spec.resources_json) == {
        "limits": {"cpu": "1010m", "memory": "2Gi"},
        "requests": {"cpu": "4110m", "memory": "1536Mi"},
    }


def test_resources_of_the_pod_itself_win() -> None:
    obj = pod_object()
    obj["spec"]["resources"] = {"requests": {"cpu": "3"}}
    assert orjson.loads(decode_pod(obj).spec.allocated_json) == {"cpu": "3", "memory": "1Gi"}
    assert decode_pod(obj).spec.own_json == b'{"requests":{"cpu":"3"}}'
    obj["spec"]["resources"] = {"requests": {"memory": "2Gi"}}
    assert decode_pod(obj).spec.own_json == b'{"requests":{"memory":"2Gi"}}'


def test_resources_of_a_running_pod_are_those_of_its_cgroup() -> None:
    obj = pod_object()
    given = {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2", "ephemeral-storage": "1Gi"}
    obj["spec"]["containers"] = [{"name": "c", "resources": {"limits": given, "requests": given}}]
    spec = decode_pod(obj).spec
    assert orjson.loads(spec.resources_json) == {"limits": given, "requests": given}
    of_cgroup = {"cpu": "1", "memory": "1Gi"}
    assert orjson.loads(spec.running_json) == {"limits": of_cgroup, "requests": of_cgroup}


def test_what_a_cgroup_cannot_tell_of_a_running_pod() -> None:
    """Two thousandths of a CPU are the least that is asked for, a hundredth the least limit."""
    obj = pod_object()
    little = {"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}}
    obj["spec"]["initContainers"] = []
    obj["spec"]["containers"] = [{"name": "c", "resources": little}]
    assert orjson.loads(decode_pod(obj).spec.running_json) == {}
    obj["spec"]["resources"] = {"requests": {"cpu": "2m", "hugepages-2Mi": "4Mi"}}
    assert orjson.loads(decode_pod(obj).spec.running_json) == {
        "requests": {"cpu": "2m", "hugepages-2Mi": "4Mi"}
    }


def test_a_limit_that_not_every_container_has_is_no_cgroup_s() -> None:
    obj = pod_object()
    limited = {"limits": {"cpu": "1", "memory": "1Gi"}}
    obj["spec"]["initContainers"] = []
    obj["spec"]["containers"] = [
        {"name": "c", "resources": limited},
        {"name": "d", "resources": {"limits": {"memory": "1Gi"}}},
    ]
    spec = decode_pod(obj).spec
    assert orjson.loads(spec.running_json) == {"limits": {"cpu": "1", "memory": "2Gi"}}
    assert orjson.loads(spec.ended_json) == {"limits": {"memory": "2Gi"}}


def event(kind: str, obj: object) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), orjson.dumps(obj))


def test_watch_events_of_pods() -> None:
    kind, version, record = decode_watch_event(event("MODIFIED", pod_object()), WatchKind.PODS)
    assert (kind, version) == (EventType.MODIFIED, "42")
    assert isinstance(record, Pod)
    line = event("DELETED", pod_object()).rstrip()
    assert decode_watch_event(line, WatchKind.PODS)[0] is EventType.DELETED


def test_a_runtime_class_is_decoded_once_for_all_nodes() -> None:
    meta = {"name": "vm", "resourceVersion": "9"}
    line = event("ADDED", {"metadata": meta, "handler": "kata"})
    _, version, record = decode_watch_event(line, WatchKind.RUNTIME_CLASSES)
    assert (version, record) == ("9", RuntimeClassView("vm", "9", "kata"))
    assert decode_watch_event(line, WatchKind.RUNTIME_CLASSES)[2] is record


def test_a_service_is_decoded_once_for_all_nodes() -> None:
    meta = {"namespace": "ns", "name": "web", "resourceVersion": "9"}
    ports: list[dict[str, Any]]
    ports = [{"port": 80, "name": "http"}, {"port": 53, "protocol": "UDP"}]
    spec = {"clusterIP": "10.0.0.9", "ports": ports, "selector": {"b": "1"}}
    line = event("ADDED", {"metadata": meta, "spec": spec})
    _, version, record = decode_watch_event(line, WatchKind.SERVICES)
    shown = (ServicePort(80, "http", "TCP"), ServicePort(53, protocol="UDP"))
    assert record == ServiceView("ns", "web", "9", "10.0.0.9", shown)
    assert version == "9"
    assert decode_watch_event(line, WatchKind.SERVICES)[2] is record


def test_bookmarks_and_the_end_of_the_initial_events() -> None:
    meta: dict[str, Any] = {"resourceVersion": "12", "creationTimestamp": None}
    line = event("BOOKMARK", {"kind": "Pod", "metadata": meta, "spec": {"containers": None}})
    assert decode_watch_event(line, WatchKind.PODS) == (EventType.BOOKMARK, "12", None)
    meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    line = event("BOOKMARK", {"kind": "Pod", "metadata": meta})
    assert decode_watch_event(line, WatchKind.PODS) == (EventType.SYNCED, "12", None)


def test_an_error_carries_its_code() -> None:
    line = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    assert decode_watch_event(line, WatchKind.PODS) == (EventType.ERROR, "", 410)


def test_lists() -> None:
    meta = {"resourceVersion": "77", "continue": "more"}
    body = orjson.dumps({"metadata": meta, "items": [pod_object()]})
    version, token, records = decode_list(body, WatchKind.PODS)
    assert (version, token, len(records)) == ("77", "more", 1)
    assert isinstance(records[0], Pod)
    listed = {"metadata": {"name": "vm"}, "handler": "kata"}
    body = orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": [listed]})
    found = decode_list(body, WatchKind.RUNTIME_CLASSES)
    assert found == ("1", "", [RuntimeClassView("vm", "", "kata")])
    body = orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": None})
    assert decode_list(body, WatchKind.PODS) == ("1", "", [])


def test_nodes() -> None:
    obj = {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "3", "labels": {"a": "b"}},
        "spec": {
            "podCIDR": "10.244.1.0/24",
            "podCIDRs": ["10.244.1.0/24"],
            "unschedulable": True,
            "taints": [{"key": "k", "effect": "NoSchedule"}],
        },
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "lastHeartbeatTime": AT,
                    "lastTransitionTime": AT,
                    "reason": "KubeletReady",
                    "message": "m",
                }
            ],
            "nodeInfo": {"bootID": "boot"},
            "volumesAttached": [{"name": "v", "devicePath": ""}],
        },
    }
    node = decode_node(orjson.dumps(obj))
    assert (node.name, node.uid, node.resource_version) == ("n", "u", "3")
    assert (node.state.unschedulable, node.deleting) == (True, False)
    assert node.pod_cidrs == ("10.244.1.0/24",)
    assert node.taints == (("k", "", "NoSchedule"),)
    assert node.conditions == (NodeCondition("Ready", "True", AT_S, AT_S, "KubeletReady", "m"),)
    assert node.volumes_attached == ("v",)
    bare = decode_node({"metadata": obj["metadata"], "spec": {"podCIDR": "10.0.0.0/24"}})
    assert bare.pod_cidrs == ("10.0.0.0/24",)
    for member, wrong in (("name", [[]]), ("uid", 7), ("labels", {"a": []})):
        meta: dict[str, Any] = {"name": "n", "uid": "u", "resourceVersion": "3", member: wrong}
        with pytest.raises(msgspec.ValidationError):
            decode_node({"metadata": meta})


def test_small_records() -> None:
    meta = {"name": "n", "uid": "u", "resourceVersion": "3"}
    body = orjson.dumps({"metadata": meta, "spec": {"holderIdentity": "n"}})
    assert isinstance(decode_lease(body), LeaseView)
    owners = [{"kind": "Node", "uid": "node-uid"}]
    csinode = orjson.dumps({"metadata": {**meta, "ownerReferences": owners}})
    assert decode_csinode(csinode) == (CSINodeView("3", (Owner("node-uid", "Node"),), csinode))
    assert decode_csinode(body) == CSINodeView("3", (), body)
    token = {"status": {"token": "secret", "expirationTimestamp": AT}}
    assert decode_token(orjson.dumps(token)) == Token(AT_S, "secret")


def test_a_lease_forgets_who_set_what() -> None:
    time = "2026-01-01T00:00:00.000000Z"
    obj = {
        "metadata": {"name": "n", "managedFields": [{"manager": "fleet", "fieldsV1": {"f:a": {}}}]},
        "spec": {"holderIdentity": "n", "renewTime": time},
    }
    wanted = {**obj, "metadata": {"name": "n", "managedFields": [{}]}}
    assert orjson.loads(forget_managers(orjson.dumps(obj))) == wanted
    turned = {"spec": obj["spec"], "metadata": obj["metadata"]}
    assert orjson.loads(forget_managers(orjson.dumps(turned))) == wanted
    bare = orjson.dumps({"metadata": {"name": "n"}, "spec": obj["spec"]})
    assert forget_managers(bare) is bare  # nobody to forget: the bytes that came


def test_refusals() -> None:
    body = orjson.dumps({"kind": "Status", "reason": "Conflict", "message": "m", "code": 409})
    assert decode_status(body) == ("Conflict", "m")
    assert decode_status(b"upstream connect error\n") == ("", "upstream connect error")
    assert decode_status(b"[]") == ("", "")
