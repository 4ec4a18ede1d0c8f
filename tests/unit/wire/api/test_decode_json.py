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
    EnvRef,
    EventType,
    LeaseView,
    Token,
    Variable,
)
from fleet.wire.api.decode_json import (
    decode_csinode,
    decode_lease,
    decode_node,
    decode_status,
    decode_token,
    decode_watch_event,
    forget_managers,
)
from fleet.wire.api.decode_pod import decode_pod, decode_pod_view

Json = dict[str, Any]
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


def test_an_environment_from_neither_a_config_map_nor_a_secret_is_left_out() -> None:
    """Nobody refuses it in a static pod's file; programs read what `env_from` has."""
    read = container_script({"envFrom": [{"prefix": "P_"}, {"secretRef": {"name": "s"}}]})
    assert read is not None
    assert read.env_from == (Variable("", source=EnvRef("Secret", name="s")),)


def test_what_a_spec_asks_for_and_a_server_shows_are_equal_bytes() -> None:
    pod = decode_pod(dumped())
    shown = pod.status.containers[0]
    assert shown.volume_mounts_json == pod.spec.containers[0].volume_mounts_json
    assert shown.allocated_json == pod.spec.containers[0].requests_json


def test_an_unusual_field_order_is_parsed_whole() -> None:
    shuffled = dict(reversed(list(pod_object().items())))
    assert decode_pod(orjson.dumps(shuffled)).status == decode_pod(dumped()).status
    assert decode_pod_view(orjson.dumps(shuffled)) == decode_pod_view(dumped())
    del shuffled["status"]
    assert decode_pod(shuffled).status.phase == "Pending"


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


META = {"namespace": "ns", "name": "web", "resourceVersion": "9"}
PORTS: list[Json] = [{"port": 80, "name": "http"}, {"port": 53, "protocol": "UDP"}]
SERVICE = {"clusterIP": "10.0.0.9", "ports": PORTS, "selector": {"b": "1"}}
SHOWN = (ServicePort(80, "http", "TCP"), ServicePort(53, protocol="UDP"))


@pytest.mark.parametrize(
    ("kind", "obj", "wanted"),
    [
        (WatchKind.RUNTIME_CLASSES, {"handler": "kata"}, RuntimeClassView("web", "9", "kata")),
        (WatchKind.SERVICES, {"spec": SERVICE}, ServiceView("ns", "web", "9", "10.0.0.9", SHOWN)),
    ],
)
def test_what_all_nodes_watch_is_decoded_once(kind: WatchKind, obj: Json, wanted: object) -> None:
    line = orjson.dumps({"type": "ADDED", "object": {"metadata": META, **obj}})
    _, version, record = decode_watch_event(line, kind)
    assert (version, record) == ("9", wanted)
    assert decode_watch_event(line, kind)[2] is record


def test_an_error_carries_its_code() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired"}
    line = orjson.dumps({"type": "ERROR", "object": status})
    assert decode_watch_event(line, WatchKind.PODS) == (EventType.ERROR, "", 410)


def test_a_node_that_is_none() -> None:
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
