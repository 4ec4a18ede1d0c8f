"""What kubelets send: who calls, where to, and the bodies in JSON.

A template is built at import and filled with `%`; what a whole profile shares of its Node objects
is rendered once. Patches of a status are two-way strategic merges (fleet.k8s.strategic_merge).
Source: what a kubelet 1.36.3 sends, kubelet-reference 1-6; query parameters sorted as Go sorts.
"""

import base64
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s import effects
from fleet.k8s.events import Report, event_json
from fleet.k8s.objects import CertificateKind, SigningRequestView
from fleet.k8s.pods import TOKEN_VOLUME, TOKEN_VOLUME_START, EventType
from fleet.k8s.schema import differing, render, shown, shown_all
from fleet.k8s.strategic_merge import Json, two_way_patch
from fleet.k8s.times import rfc3339
from fleet.k8s.volumes import NODE_RESIZE_ERROR, RESIZE_CONDITIONS, ClaimStatusPatch
from fleet.k8s.well_known import MIRROR_ANNOTATION, USER_NAMESPACE
from fleet.profile.addresses import TTL_ANNOTATION, ControllerPreset
from fleet.profile.machine import DraDriver
from fleet.profile.node_model import NodeIdentity, NodeModel, daemon_endpoints
from fleet.quantity import format_duration
from fleet.wire.api.decode_json import read_event
from fleet.wire.http2.messages import ContentType, Request

CALL_TIMEOUT_NS = 90 * NS_PER_S  # the API server itself gives up after 60 s


@dataclass(eq=False, kw_only=True)
class RenderedProfile:
    """What the nodes of one profile share on the wire, rendered once."""

    model: NodeModel = field(kw_only=False)
    extra_labels: dict[str, str]
    extra_annotations: dict[str, str] = field(default_factory=dict)
    extra_taints: tuple[tuple[str, str, str], ...] = ()
    impersonate: bool = False  # name the user in each request: shared connections
    preset: ControllerPreset | None = None
    withheld: frozenset[str] = frozenset()  # labels that a Node does not register with

    def __post_init__(self) -> None:
        model = self.model
        # A kubelet registers before its first look at the runtime's images (they are cached for
        # 30 s); the image manager reports them later.
        self.status = orjson.dumps(model.status_json())[1:-1]
        # Of the heartbeat client. Source: cmd/kubelet/app/server.go, run: heartbeatClientConfig.
        lease_ns = model.kubelet.node_lease_duration_seconds * NS_PER_S
        self.timeout_ns = min(model.kubelet.node_status_update_frequency_ns, lease_ns)
        self.timeout = format_duration(self.timeout_ns).encode()

    def status_with(self, extended: tuple[tuple[str, int, int], ...]) -> bytes:
        """Return the same with capacity and allocatable of what device plugins offer."""
        if not extended:
            return self.status
        status: dict[str, Any] = self.model.status_json()
        for place, member in enumerate(("capacity", "allocatable"), 1):
            offered = {each[0]: str(each[place]) for each in extended}
            status[member] = {**status.get(member, {}), **offered}
        return orjson.dumps(status)[1:-1]


@dataclass(slots=True, eq=False)
class Caller:
    """One node as the wire knows it."""

    index: int
    name: bytes
    template: RenderedProfile

    @property
    def user(self) -> bytes:
        """The user that the node is to the API server."""
        return b"system:node:" + self.name


NODES = b"/api/v1/nodes"
LEASES = b"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CSI_NODES = b"/apis/storage.k8s.io/v1/csinodes"


def renewal(body: bytes, content: ContentType, caller: Caller) -> Request:
    """Return the PUT of a node's Lease."""
    template = caller.template
    path = b"%b/%b?timeout=%b" % (LEASES, caller.name, template.timeout)
    user = caller.user if template.impersonate else b""
    return Request(b"PUT", path, body, content, user, False, template.timeout_ns)  # noqa: FBT003


def pod_path(namespace: str, name: str) -> bytes:
    """Return the path of a Pod."""
    return b"/api/v1/namespaces/%b/pods/%b" % (namespace.encode(), name.encode())


def token_path(payload: effects.TokenRequest) -> bytes:
    """Return where tokens of a service account are made."""
    return b"/api/v1/namespaces/%b/serviceaccounts/%b/token" % (
        payload.namespace.encode(),
        payload.service_account.encode(),
    )


def event_namespace(event: effects.EventObject) -> bytes:
    """Return the namespace of an event; those about nodes are in the default one."""
    return event.about.namespace.encode() or b"default"


def events_path(event: effects.EventObject) -> bytes:
    """Return where events are created."""
    return b"/api/v1/namespaces/%b/events" % event_namespace(event)


def node_status_patch(patch: effects.NodeStatusPatch) -> bytes:
    """Render a two-way strategic-merge patch of a Node; `{}` when nothing differs.

    Source: component-helpers/node/util/status.go, PatchNodeStatus.
    """
    status: dict[str, object] = orjson.loads(b"{%b}" % patch.status_json)
    if any(old != new for old, new in patch.conditions):
        status |= two_way_patch(
            {"conditions": [shown(old) for old, _ in patch.conditions if old is not None]},
            {"conditions": [shown(new) for _, new in patch.conditions]},
        )
    if patch.volumes_in_use is not None:
        status["volumesInUse"] = patch.volumes_in_use or None
    metadata = {
        "annotations": dict(patch.annotations),
        "labels": dict(patch.labels),
        "resourceVersion": patch.version,
    }
    metadata = {name: value for name, value in metadata.items() if value}
    members = (("metadata", metadata), ("status", status))
    return render({name: member for name, member in members if member})


def node_json(caller: Caller, facts: NodeIdentity, made: effects.NodeObject) -> bytes:
    """Render the Node that registers. Source: kubelet_node_status.go, initialNode."""
    template = caller.template
    model, preset = template.model, template.preset
    taints = (*model.taints, *template.extra_taints)
    spec: dict[str, object] = {}
    if facts.provider_id:
        spec["providerID"] = facts.provider_id
    if taints:
        spec["taints"] = [
            {"key": key, "value": value, "effect": effect}
            if value
            else {"key": key, "effect": effect}
            for key, value, effect in taints
        ]
    labels = {**facts.labels, **template.extra_labels}
    if template.withheld:
        labels = {key: value for key, value in labels.items() if key not in template.withheld}
    metadata: dict[str, Any] = {
        "name": facts.name,
        "labels": labels,
        "annotations": {**facts.annotations, **template.extra_annotations},
    }
    if preset is not None:
        metadata["annotations"].setdefault(TTL_ANNOTATION, preset.ttl(caller.index))
        if cidrs := preset.pod_cidrs(caller.index):
            spec |= {"podCIDR": cidrs[0], "podCIDRs": cidrs}
    info: dict[str, object] = {**facts.node_info}
    if model.swap_bytes:
        info["swap"] = {"capacity": model.swap_bytes}
    if model.says_user_namespace:
        info[USER_NAMESPACE] = False
    addresses = [{"type": kind, "address": address} for kind, address in facts.addresses]
    return b'{"kind":"Node","apiVersion":"v1","metadata":%b,"spec":%b,"status":{%b}}' % (
        orjson.dumps(metadata),
        orjson.dumps(spec),
        b",".join(
            (
                template.status_with(made.extended),
                b'"conditions":' + orjson.dumps(shown_all(made.conditions)),
                b'"addresses":' + orjson.dumps(addresses),
                b'"daemonEndpoints":' + orjson.dumps(daemon_endpoints(facts.kubelet_port)),
                b'"nodeInfo":' + orjson.dumps(info),
                *((made.images_json,) if made.images_json else ()),
            )
        ),
    )


EPHEMERAL = "ephemeralContainerStatuses"


def pod_status_patch(patch: effects.PodStatusPatch) -> bytes:
    """Render the body of a PATCH of one pod's status; the uid is its precondition."""
    sides = differing(patch.old, patch.new)
    for status in sides:
        for first, listed in (("hostIP", "hostIPs"), ("podIP", "podIPs")):
            if listed in status:
                status[first] = status[listed][0]["ip"]
        for each in status.get(EPHEMERAL, ()):
            # Only the prober sets it, which looks at no ephemeral container.
            # Source: prober_manager.go, UpdatePodStatus.
            del each["started"]
    body = render({"metadata": {"uid": patch.uid}, "status": two_way_patch(*sides)})
    if patch.token_suffix:
        body = body.replace(TOKEN_VOLUME, TOKEN_VOLUME_START + patch.token_suffix.encode())
    return body


def patch_claim_status(call: effects.ApiCall, _caller: Caller) -> tuple[bytes, bytes]:
    """Return path and body of PATCH_CLAIM_STATUS."""
    patch = call.payload
    assert isinstance(patch, ClaimStatusPatch), patch
    where = patch.namespace.encode(), patch.name.encode()
    path = b"/api/v1/namespaces/%b/persistentvolumeclaims/%b/status" % where
    return path, orjson.dumps(_two_way(patch))


def _two_way(patch: ClaimStatusPatch) -> Json:
    conditions: list[Json] = [{"type": each} for each in patch.old.conditions]
    old: Json = {"conditions": conditions or None}
    new = {**old}
    for status, resize, capacity in (
        (old, patch.old.resize_status, patch.old.capacity),
        (new, patch.resize_status, patch.capacity or patch.old.capacity),
    ):
        if resize:
            status["allocatedResourceStatuses"] = {"storage": resize}
        status["capacity"] = {"storage": capacity}
    # Source: MergeResizeConditionOnPVC.
    if patch.capacity:
        kept = [each for each in conditions if each["type"] not in RESIZE_CONDITIONS]
        new["conditions"] = kept or None
    elif patch.error and NODE_RESIZE_ERROR not in patch.old.conditions:
        error = {
            "type": NODE_RESIZE_ERROR,
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": rfc3339(patch.now_s).decode(),
            "message": f"failed to expand pvc with {patch.error}",
        }
        new["conditions"] = [*conditions, error]
    status = two_way_patch(old, new)
    whole: Json = {"status": status} if status else {}
    if not patch.error:
        whole["metadata"] = {"resourceVersion": patch.old.resource_version}
    return whole


EVENT_PATCH_BODY = b'{"count":%d,"lastTimestamp":"%b","message":%b}'


def create_event(call: effects.ApiCall, caller: Caller) -> tuple[bytes, bytes]:
    """Return path and body of the POST of an Event."""
    event = call.payload
    assert isinstance(event, effects.EventObject), event
    report = Report(
        "Warning" if event.warning else "Normal",
        event.reason,
        event.message,
        "kubelet",
        caller.name.decode(),
        event.reporter.decode(),
    )
    seen = rfc3339(event.first_s).decode(), rfc3339(event.last_s).decode(), event.times
    body = event_json(event.name, event.about, report, seen, event.annotations)
    return events_path(event), orjson.dumps(body)


def patch_event(call: effects.ApiCall, _caller: Caller) -> tuple[bytes, bytes]:
    """Return path and body of the PATCH of an Event that happened again."""
    event = call.payload
    assert isinstance(event, effects.EventObject), event
    path = b"%b/%b" % (events_path(event), event.name.encode())
    body = EVENT_PATCH_BODY % (event.times, rfc3339(event.last_s), orjson.dumps(event.message))
    return path, body


def _owner(node: str, uid: str) -> Json:
    owner: Json = {"apiVersion": "v1", "kind": "Node", "name": node}
    return owner | {"uid": uid, "controller": True}


def create_mirror_pod(call: effects.ApiCall, caller: Caller) -> tuple[bytes, bytes]:
    """Return path and body of a mirror pod's POST; NodeRestriction looks at its owner and node."""
    mirror = call.payload
    assert isinstance(mirror, effects.MirrorPodObject), mirror
    node_name = caller.name.decode()
    pod = orjson.loads(mirror.manifest_json)
    meta, spec = pod["metadata"], pod["spec"]
    annotations = {
        **(meta.get("annotations") or {}),
        "kubernetes.io/config.hash": mirror.uid,
        MIRROR_ANNOTATION: mirror.uid,
        "kubernetes.io/config.seen": _nanoseconds(mirror.seen_ns),
        "kubernetes.io/config.source": mirror.source,
    }
    kept = {key: meta[key] for key in ("namespace", "labels", "finalizers") if meta.get(key)}
    body = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            **kept,
            "name": mirror.name,
            "uid": mirror.uid,  # the server makes another
            "annotations": annotations,
            "ownerReferences": [_owner(node_name, mirror.node_uid)],
        },
        "spec": {**spec, "nodeName": node_name},
        "status": pod["status"],
    }
    return f"/api/v1/namespaces/{meta['namespace']}/pods".encode(), orjson.dumps(body)


def delete_mirror_pod(call: effects.ApiCall, _caller: Caller) -> tuple[bytes, bytes]:
    """Return path and body of a DELETE without grace, of the uid if it is known."""
    target = call.payload
    assert isinstance(target, effects.MirrorTarget), target
    options: dict[str, object] = {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": target.uid} if target.uid else {},
    }
    return pod_path(target.namespace, target.name), orjson.dumps(options)


def _nanoseconds(wall_ns: int) -> str:
    """Write a wall time with nine digits. Source: types.go, GetString, RFC3339NanoFixed."""
    text = rfc3339(wall_ns // NS_PER_S).decode().removesuffix("Z")
    return f"{text}.{wall_ns % NS_PER_S:09d}Z"


def watch_list(path: bytes, selector: bytes, version: bytes, times: bytes) -> bytes:
    """Return the path of a watch that begins with the present state. Source: watchList."""
    return b"%b?allowWatchBookmarks=true%b%b&resourceVersionMatch=NotOlderThan%b%b&watch=true" % (
        path,
        b"&" + selector if selector else b"",
        b"&resourceVersion=" + version if version else b"",
        b"&sendInitialEvents=true",
        times,
    )


def watch_from(path: bytes, selector: bytes, version: bytes, times: bytes) -> bytes:
    """Return the path of a watch that goes on from a version. Source: reflector.go, watch."""
    return b"%b?allowWatchBookmarks=true%b&resourceVersion=%b%b&watch=true" % (
        path,
        b"&" + selector if selector else b"",
        version,
        times,
    )


def list_page(path: bytes, selector: bytes, version: bytes, token: bytes) -> bytes:
    """Return the path of one page of a LIST.

    Source: reflector.go, list: pages of 500 only on the first list, which asks for version 0. What
    is asked for once a version was refused has none.
    """
    query = []
    if token:
        query.append(b"continue=" + quote(token, safe="").encode())
    if selector:
        query.append(selector)
    if token or version == b"0":
        query.append(b"limit=500")
    if version and not token:
        query.append(b"resourceVersion=" + version)
    return path + b"?" + b"&".join(query) if query else path


SIGNING_REQUESTS = b"/apis/certificates.k8s.io/v1/certificatesigningrequests"
TIMEOUT_NS = 90_000_000_000
SIGNERS = {
    CertificateKind.CLIENT: b"kubernetes.io/kube-apiserver-client-kubelet",
    CertificateKind.SERVING: b"kubernetes.io/kubelet-serving",
}
_USAGE = {CertificateKind.CLIENT: b"client auth", CertificateKind.SERVING: b"server auth"}
_BODY = (
    b'{"kind":"CertificateSigningRequest","apiVersion":"certificates.k8s.io/v1",'
    b'"metadata":{"generateName":"csr-"},"spec":{"request":"%b","signerName":"%b",'
    b'"usages":["digital signature","%b"]},"status":{}}'
)


def create_signing_request(kind: CertificateKind, request_pem: bytes) -> Request:
    """Return the POST of a new request; the server names it."""
    body = _BODY % (base64.b64encode(request_pem), SIGNERS[kind], _USAGE[kind])
    return Request(b"POST", SIGNING_REQUESTS, body, ContentType.JSON, timeout_ns=TIMEOUT_NS)


def list_signing_request(name: str, *, is_snapshot: bool = False) -> Request:
    """Return the LIST that shows that the API is there, or the one that a watch goes on from."""
    selector = b"fieldSelector=metadata.name%3D" + name.encode()
    path = (
        list_page(SIGNING_REQUESTS, selector, b"0", b"")
        if is_snapshot
        else SIGNING_REQUESTS + b"?" + selector
    )
    return Request(b"GET", path, timeout_ns=TIMEOUT_NS)


def watch_signing_request(name: str, timeout_s: int, version: str = "") -> Request:
    """Return the watch of one request, from a version on or from its present state."""
    selector = b"fieldSelector=metadata.name%3D" + name.encode()
    lasts = format_duration(timeout_s * NS_PER_S).encode()
    times = b"&timeout=%b&timeoutSeconds=%d" % (lasts, timeout_s)
    path = (watch_from if version else watch_list)(
        SIGNING_REQUESTS, selector, version.encode(), times
    )
    return Request(b"GET", path, stream=True, timeout_ns=TIMEOUT_NS)


def decode_signing_requests(body: bytes) -> tuple[str, list[SigningRequestView]]:
    """Return the version of a LIST, and what a requester reads of each object."""
    found = orjson.loads(body)
    return found["metadata"]["resourceVersion"], [_view(each) for each in found["items"]]


def decode_signing_request(body: bytes) -> SigningRequestView:
    """Return what a requester reads of one object."""
    return _view(orjson.loads(body))


def decode_signing_event(line: bytes) -> tuple[EventType, SigningRequestView | None]:
    """Return type and object of one event; the object only of ADDED, MODIFIED and DELETED."""
    event, _, view = read_event(line, decode_signing_request)
    return event, view if isinstance(view, SigningRequestView) else None


def _view(found: dict[str, Any]) -> SigningRequestView:
    status = found.get("status") or {}
    approved, refusal = False, ""
    for each in status.get("conditions") or ():
        if each["type"] in {"Denied", "Failed"}:
            refusal = str(each.get("message") or each.get("reason") or each["type"])
        approved = approved or each["type"] == "Approved"
    certificate = base64.b64decode(status.get("certificate") or "")
    metadata = found["metadata"]
    return SigningRequestView(metadata["name"], metadata["uid"], certificate, approved, refusal)


SLICES = b"/apis/resource.k8s.io/v1/resourceslices"
CLAIM = b"/apis/resource.k8s.io/v1/namespaces/%b/resourceclaims/%b"


def slices_selector(node: bytes, driver: bytes = b"") -> bytes:
    """Return the encoded field selector of a node's slices, or of those of one driver."""
    selector = b"fieldSelector=spec.nodeName%3D" + node
    return selector + b"%2Cspec.driver%3D" + driver if driver else selector


def resource_slice_json(
    node: str, slices: effects.ResourceSlices, drivers: tuple[DraDriver, ...]
) -> bytes:
    """Render the one slice that holds all devices of a driver on a node."""
    driver = next(each for each in drivers if each.driver == slices.driver)
    return orjson.dumps(
        {
            "kind": "ResourceSlice",
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {
                "generateName": f"00000-{driver.driver}-{node}-",
                "ownerReferences": [_owner(node, slices.node_uid)],
            },
            "spec": {
                "driver": driver.driver,
                "pool": {"name": node, "generation": slices.generation, "resourceSliceCount": 1},
                "nodeName": node,
                "devices": [_device(node, driver, index) for index in range(driver.count)],
            },
        }
    )


def _device(node: str, driver: DraDriver, index: int) -> dict[str, object]:
    device: dict[str, object] = {"name": f"{driver.name_prefix}{index}"}
    if driver.attributes:
        device["attributes"] = {
            each.name: {
                each.kind: each.value.replace("{{name}}", node).replace("{{index}}", str(index))
                if isinstance(each.value, str)
                else each.value
            }
            for each in driver.typed_attributes
        }
    if driver.capacity:
        device["capacity"] = {
            name: {"value": str(amount)} for name, amount in sorted(driver.capacity.items())
        }
    return device
