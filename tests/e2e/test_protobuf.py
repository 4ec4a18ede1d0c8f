"""Both encodings against a real API server: it must see, and tell, the same in each."""

import base64
import dataclasses
import http.client
import math
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from world.sim_clock import SimClock

from e2e.e2e_world import World, eventually, workload
from fleet.k8s.effects import (
    ApiCall,
    CSINodeObject,
    EventObject,
    LeaseObject,
    LeaseRenewal,
    MirrorPodObject,
    NodeId,
    NodeObject,
    Op,
    Payload,
    PodTarget,
    Reply,
    ReplyKind,
    ResourceSlices,
    TokenRequest,
    WatchKind,
)
from fleet.k8s.events import ObjectRef
from fleet.k8s.pods import EventType, LeaseView, NodeCondition, NodeView, Pod, Token
from fleet.k8s.volumes import CSINodeUpdate
from fleet.profile.loader import load_mix
from fleet.profile.machine import DraDriver
from fleet.quantity import parse_quantity
from fleet.wire.api import codec
from fleet.wire.api.codec import JSON, Codec, decode_reply
from fleet.wire.api.operations import build
from fleet.wire.api.requests import Caller, RenderedProfile
from fleet.wire.http2.messages import ContentType, Request, Response

pytest_plugins = ["e2e.e2e_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROTOBUF = codec.protobuf()
TYPES = {
    ContentType.JSON: "application/json",
    ContentType.PROTOBUF: "application/vnd.kubernetes.protobuf",
}
NODE = "wire-00000"
DRIVER = "gpu.example.com"
AT_NS = SimClock.EPOCH_NS + 123_456_789
AT_S = SimClock.EPOCH_NS // 1_000_000_000
READY = NodeCondition("Ready", "True", AT_S, AT_S, "KubeletReady", "fine")
READINGS_MAX = 60
"""Of what is in use, until two agree: it changes at each heartbeat."""
CHOSEN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "name")
"""What the server chooses itself, or differs because the name does."""
MANIFEST: dict[str, Any] = {
    "metadata": {"name": "static", "namespace": "default", "labels": {"b": "1", "a": "2"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "registry.k8s.io/pause:3.10.1",
                "command": ["sleep", "1d"],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "250m"}},
                "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3},
                "ports": [{"name": "web", "containerPort": 8080, "hostPort": 8080}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN"]}},
            }
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "/mnt", "type": "Directory"}}],
        "tolerations": [{"operator": "Exists", "effect": "NoExecute"}],
        "hostNetwork": True,
        "nodeSelector": {"kubernetes.io/os": "linux"},
    },
    "status": {"phase": "Pending"},
}


class Client:
    """An administrator who sends bytes."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        pair = directory / "admin.pem"
        pair.write_bytes(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
        context.load_cert_chain(pair)
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        self._connection = http.client.HTTPSConnection(
            host, int(port), context=context, timeout=120
        )

    def close(self) -> None:
        self._connection.close()

    def send(self, request: Request, answer_in: Codec) -> Response:
        headers = {"accept": answer_in.accept.decode()}
        if request.body:
            headers["content-type"] = TYPES[request.content_type]
        path = request.path.decode()
        self._connection.request(request.method.decode(), path, request.body, headers)
        answer = self._connection.getresponse()
        body = answer.read()
        wanted = TYPES[ContentType.JSON if answer_in is JSON else ContentType.PROTOBUF]
        assert str(answer.headers["content-type"]).startswith(wanted), (path, body[:300])
        return Response(answer.status, body, 0, 0)


@pytest.fixture
def client(world: World, tmp_path: Path) -> Iterator[Client]:
    client = Client(world.info.kubeconfig, tmp_path)
    yield client
    client.close()
    for kind in ("nodes", "csinodes.storage.k8s.io"):
        world.kubectl("delete", kind, NODE, "--ignore-not-found")
    world.kubectl("delete", "lease", NODE, "-n", "kube-node-lease", "--ignore-not-found")


def request(sent_in: Codec, op: Op, payload: Payload = None, key: str = "") -> Request:
    driver = DraDriver(
        driver="gpu.example.com",
        count=2,
        attributes={"model": "a100", "index": 3, "fast": True},
        capacity={"memory": parse_quantity("80Gi")},
    )
    model = dataclasses.replace(load_mix().model_of(0), dra_drivers=(driver,))
    template = RenderedProfile(model, extra_labels={"wire": "yes"})
    call = ApiCall(NodeId(0), op, key, payload)
    return build(call, Caller(0, NODE.encode(), template), sent_in.operations)


def plain(value: Any) -> Any:
    """Return an object without what the server chose."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in CHOSEN}
    return [plain(each) for each in value] if isinstance(value, list) else value


def both(client: Client, world: World, op: Op, payload: Payload, removed: str) -> Response:
    """Create an object in JSON, then in protobuf: the same must come of it; return the latter."""
    made = []
    for sent_in in (JSON, PROTOBUF):
        sent = request(sent_in, op, payload)
        answer = client.send(sent, JSON)
        assert answer.code in {200, 201}, (op, answer.body)
        wanted = ContentType.JSON if sent_in is JSON else ContentType.PROTOBUF
        assert sent.content_type is wanted
        made.append(plain(orjson.loads(answer.body)))
        if sent_in is JSON and removed:
            kind, _, name = removed.partition("/")
            name = name or orjson.loads(answer.body)["metadata"]["name"]
            world.kubectl("delete", kind, name, "--force", "--grace-period=0")
    assert made[0] == made[1]
    return answer


def test_what_is_created_is_the_same_object(world: World, client: Client) -> None:
    node = both(client, world, Op.CREATE_NODE, NodeObject((READY,)), f"node/{NODE}")
    uid = orjson.loads(node.body)["metadata"]["uid"]
    both(client, world, Op.CREATE_CSINODE, CSINodeObject(uid), f"csinode/{NODE}")
    mirror = MirrorPodObject(orjson.dumps(MANIFEST), f"static-{NODE}", "hash", "file", AT_NS, uid)
    both(client, world, Op.CREATE_MIRROR_POD, mirror, f"pod/static-{NODE}")
    slices = ResourceSlices(DRIVER, uid, 1)
    both(client, world, Op.CREATE_RESOURCE_SLICE, slices, "resourceslice")
    about = ObjectRef("Node", "", NODE, uid)
    event = EventObject(
        name=f"{NODE}.1",
        about=about,
        warning=True,
        reason="Bad",
        message="é",
        times=2,
        first_s=AT_S,
        last_s=AT_S + 1,
        annotations=(("b", "1"), ("a", "2")),
    )
    both(client, world, Op.CREATE_EVENT, event, f"event/{NODE}.1")
    pod = orjson.loads(world.kubectl("get", "pod", f"static-{NODE}", "-o", "json"))
    for op, target in (
        (Op.DELETE_DRIVER_SLICES, slices),
        (Op.DELETE_POD, PodTarget("default", f"static-{NODE}")),
        (Op.DELETE_CSINODE, None),
    ):
        key = pod["metadata"]["uid"] if op is Op.DELETE_POD else ""
        answer = client.send(request(PROTOBUF, op, target, key), PROTOBUF)
        assert answer.code == 200, answer.body
    gone = world.kubectl("get", "pods,csinodes,resourceslices", "-o", "name")
    assert NODE not in gone


@pytest.fixture
def uid(client: Client) -> str:
    """Make the Node that owns what is created; without it, garbage collection is quick."""
    node = client.send(request(JSON, Op.CREATE_NODE, NodeObject((READY,))), JSON)
    return str(orjson.loads(node.body)["metadata"]["uid"])


def test_a_lease_is_renewed_in_protobuf(world: World, client: Client, uid: str) -> None:
    created = request(PROTOBUF, Op.CREATE_LEASE, LeaseObject(uid, 40, AT_NS))
    answer = client.send(created, PROTOBUF)
    for later_ns in (1_000, 300_000_000, 999_999_000, 0):
        lease = decode_reply(Op.RENEW_LEASE, answer, PROTOBUF).record
        assert isinstance(lease, LeaseView)
        renewal = LeaseRenewal(lease.body, SimClock.EPOCH_NS + later_ns)
        answer = client.send(request(PROTOBUF, Op.RENEW_LEASE, renewal), PROTOBUF)
        assert answer.code == 200, answer.body
        shown = world.get("lease", NODE, "-n", "kube-node-lease")["spec"]
        assert shown == {
            "holderIdentity": NODE,
            "leaseDurationSeconds": 40,
            "renewTime": f"2026-01-01T00:00:00.{later_ns // 1000:06d}Z",
        }
    stale = client.send(request(PROTOBUF, Op.RENEW_LEASE, renewal), PROTOBUF)
    refused = decode_reply(Op.RENEW_LEASE, stale, PROTOBUF)
    assert (refused.kind, refused.code) == (ReplyKind.CONFLICT, 409)
    assert "the object has been modified" in refused.message


@pytest.mark.parametrize("encoding", [JSON, PROTOBUF], ids=["json", "protobuf"])
def test_a_lease_of_light_loses_its_managers_and_nothing_else(
    world: World, client: Client, uid: str, encoding: Codec
) -> None:
    def shown() -> tuple[dict[str, Any], Any]:
        raw = world.kubectl(
            *("get", "lease", NODE, "-n", "kube-node-lease", "-o", "json", "--show-managed-fields")
        )
        lease = orjson.loads(raw)
        managers = lease["metadata"].pop("managedFields", None)
        lease["metadata"].pop("resourceVersion")
        lease["spec"].pop("renewTime")
        return lease, managers

    light = codec.without_managers(encoding)
    op = Op.CREATE_LEASE
    answer = client.send(request(light, op, LeaseObject(uid, 40, AT_NS)), encoding)
    created, managers = shown()
    assert [each["operation"] for each in managers] == ["Update"]
    for count in (1, 2):
        lease = decode_reply(op, answer, light).record
        assert isinstance(lease, LeaseView)
        op = Op.RENEW_LEASE
        renewal = LeaseRenewal(lease.body, AT_NS + count * 1_000_000)
        answer = client.send(request(light, op, renewal), encoding)
        assert answer.code == 200, answer.body
        assert shown() == (created, None)
    found = client.send(request(light, Op.GET_LEASE), encoding)
    again = decode_reply(Op.GET_LEASE, found, light).record
    assert isinstance(again, LeaseView)
    renewal = LeaseRenewal(again.body, AT_NS)
    assert client.send(request(light, Op.RENEW_LEASE, renewal), encoding).code == 200
    assert shown() == (created, None)


def test_a_driver_joins_the_csinode(world: World, client: Client, uid: str) -> None:
    client.send(request(JSON, Op.CREATE_CSINODE, CSINodeObject(uid)), JSON)
    answer = client.send(request(JSON, Op.GET_CSINODE), PROTOBUF)
    update = CSINodeUpdate(answer.body, "csi.example.com", NODE, ("zone",), 7)
    assert client.send(request(PROTOBUF, Op.UPDATE_CSINODE, update), PROTOBUF).code == 200
    found = world.get("csinode", NODE)
    assert found["spec"]["drivers"] == [
        {
            "name": "csi.example.com",
            "nodeID": NODE,
            "topologyKeys": ["zone"],
            "allocatable": {"count": 7},
        }
    ]
    assert "migrated-plugins" in str(found["metadata"]["annotations"])


def test_tokens_and_refusals(world: World, client: Client) -> None:
    world.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "wire"}})
    pod = {**MANIFEST, "apiVersion": "v1", "kind": "Pod"}
    pod["spec"] = {**MANIFEST["spec"], "serviceAccountName": "wire", "nodeName": NODE}
    world.apply(pod)
    uid = world.get("pod", "static")["metadata"]["uid"]
    token = TokenRequest("default", "wire", "", 3607, "static", uid)
    expiries = []
    began_s = time.time()
    for coding in (JSON, PROTOBUF):
        answer = client.send(request(coding, Op.CREATE_TOKEN, token), coding)
        reply = decode_reply(Op.CREATE_TOKEN, answer, coding)
        assert isinstance(reply.record, Token), answer.body
        expiries.append(reply.record.expires_s)
        refused = client.send(request(coding, Op.DELETE_POD, PodTarget("default", "no")), coding)
        assert decode_reply(Op.DELETE_POD, refused, coding) == Reply(
            ReplyKind.NOT_FOUND, None, 404, 'pods "no" not found'
        )
    took_s = math.ceil(time.time() - began_s)
    assert 0 <= expiries[1] - expiries[0] <= took_s
    world.kubectl("delete", "pod/static", "--force", "--grace-period=0")
    world.kubectl("delete", "serviceaccount/wire")


WATCHED = {
    WatchKind.NODE: "/api/v1/nodes",
    WatchKind.PODS: "/api/v1/pods",
    WatchKind.SERVICES: "/api/v1/services",
    WatchKind.CONFIG_MAP: "/api/v1/configmaps",
    WatchKind.SECRET: "/api/v1/secrets",
    WatchKind.CSI_DRIVERS: "/apis/storage.k8s.io/v1/csidrivers",
    WatchKind.RUNTIME_CLASSES: "/apis/node.k8s.io/v1/runtimeclasses",
    WatchKind.RESOURCE_SLICES: "/apis/resource.k8s.io/v1/resourceslices",
}


def shown(record: object) -> object:
    """Return a record as it compares; fingerprint and digest of a pod are of the bytes."""
    if isinstance(record, NodeView):  # its report is kept as it came, until somebody looks
        report = record.report
        assert report is not None, record
        return record._replace(report=None), report.status()
    if not isinstance(record, Pod):
        return record
    shown = {name: getattr(record, name) for name in Pod.__slots__ if name != "fingerprint"}
    return shown | {"spec": record.spec._replace(digest=0)}


def test_records_of_a_fleet_are_the_same(world: World, client: Client) -> None:
    world.apply(*WITNESSES)
    with world.spawn("wire", 2, "--simulate-csi") as fleet:
        fleet.until_ready()
        world.apply(workload("Deployment", "wired", 3))
        eventually(lambda: len(world.ready_pods("wired")) == 3, "pods run")
        for kind, path in WATCHED.items():
            compare_lists(client, kind, path)
            compare_watches(client, kind, path)
        pod = world.pods("wired")[0]["metadata"]["name"]
        for op, target in ((Op.GET_NODE_CSI, None), (Op.GET_POD, PodTarget("default", pod))):
            compare_reads(client, op, target)
        world.kubectl("delete", "deployment/wired")
        fleet.end_well_or_late()
    for each in WITNESSES:
        world.kubectl("delete", each["kind"], each["metadata"]["name"])


WITNESSES: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "w"},
        "data": {"b": "1", "a": ""},
    },
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "w"}, "stringData": {"k": "v"}},
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "w"},
        "handler": "runc",
    },
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": "w.example.com"},
        "spec": {"attachRequired": False, "volumeLifecycleModes": ["Ephemeral"]},
    },
]


def compare_lists(client: Client, kind: WatchKind, path: str) -> None:
    """Read a page of a LIST in both encodings, as of one version of all objects."""
    now = orjson.loads(client.send(Request(b"GET", path.encode() + b"?limit=1"), JSON).body)
    version = str(now["metadata"]["resourceVersion"]).encode()
    query = b"?limit=500&resourceVersionMatch=Exact&resourceVersion=" + version
    get = Request(b"GET", path.encode() + query)
    pages = [each.decode_list(client.send(get, each).body, kind) for each in (JSON, PROTOBUF)]
    assert pages[0][:2] == pages[1][:2]
    assert pages[0][0].encode() == version
    assert list(map(shown, pages[0][2])) == list(map(shown, pages[1][2]))


def compare_watches(client: Client, kind: WatchKind, path: str) -> None:
    """Read the present state and its end from a watch in both encodings.

    A watch begins with the state of its own time. So both are read until nothing came between.
    """
    query = b"?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&timeoutSeconds=1"
    get = Request(b"GET", path.encode() + query + b"&resourceVersionMatch=NotOlderThan")
    for _ in range(READINGS_MAX):
        before = versions(client, path)
        found = [present(client.send(get, each).body, each, kind) for each in (JSON, PROTOBUF)]
        if None not in found and versions(client, path) == before:
            break
    else:
        raise AssertionError(f"{path} changed between any two of {READINGS_MAX} readings")
    assert found[0] == found[1]
    assert kind is WatchKind.RESOURCE_SLICES or found[0]


def versions(client: Client, path: str) -> dict[str, str]:
    """Return the version of each object, by its uid."""
    items = orjson.loads(client.send(Request(b"GET", path.encode()), JSON).body)["items"]
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in items}


def present(body: bytes, coding: Codec, kind: WatchKind) -> list[str] | None:
    """Return the records of the events up to the one that ends the present state.

    None if the server was too busy to send that in the time that the watch had.
    """
    events, rest = coding.split(b"", body)
    assert not rest
    decoded = [coding.decode_watch_event(event, kind) for event in events]
    ends = [at for at, each in enumerate(decoded) if each[0] is EventType.SYNCED]
    if not ends:
        return None
    return sorted(repr((event, shown(record))) for event, _, record in decoded[: ends[0]])


def compare_reads(client: Client, op: Op, target: Payload) -> None:
    """GET an object in both encodings, until nothing came between."""
    sent = request(JSON, op, target)
    for _ in range(READINGS_MAX):
        answers = [client.send(sent, each) for each in (JSON, PROTOBUF, JSON)]
        if answers[0].body == answers[2].body:
            break
    else:
        raise AssertionError(f"{op} changed between any two of {READINGS_MAX} readings")
    read = [
        decode_reply(op, answer, each).record
        for answer, each in zip(answers, (JSON, PROTOBUF), strict=False)
    ]
    assert read[0] is not None
    assert shown(read[0]) == shown(read[1])
