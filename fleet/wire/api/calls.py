"""Byte templates: every API call that the kubelets make, with its body in JSON.

A template is built at import and filled with `%`; what a whole profile shares of its Node objects
is rendered once. See encode_protobuf.py for the other bodies, and paths.py.
Source: what a kubelet 1.36.3 sends, kubelet-reference 1-6.
"""

from collections.abc import Callable

import orjson

from fleet.clock import NS_PER_S
from fleet.objects.effects import (
    ApiCall,
    CSINodeObject,
    EventObject,
    LeaseObject,
    LeaseRenewal,
    NodeObject,
    NodeStatusPatch,
    Op,
    PodStatusPatch,
    PodTarget,
    ResourceSlices,
    TokenRequest,
)
from fleet.objects.pods import NodeCondition, ObjectRef
from fleet.objects.volumes import ClaimTarget, CSINodeUpdate
from fleet.profile.node_model import NodeFacts, NodeModel
from fleet.wire.api.dynamic_resources import (
    SLICES,
    claim_path,
    resource_slice_json,
    slices_selector,
)
from fleet.wire.api.encode_node import condition_json, node_status_patch
from fleet.wire.api.encode_pod import pod_status_patch
from fleet.wire.api.mirror_pods import create_mirror_pod, delete_mirror_pod
from fleet.wire.api.paths import (
    CSI_NODES,
    LEASES,
    NODES,
    event_namespace,
    events_path,
    lease_path,
    pod_path,
    token_path,
)
from fleet.wire.api.times import RENEW_TIME, go_duration, rfc3339, rfc3339_micro
from fleet.wire.http2.messages import ContentType, Request

CALL_TIMEOUT_NS = 90 * NS_PER_S  # the API server itself gives up after 60 s
GET, POST, PUT, PATCH, DELETE = b"GET", b"POST", b"PUT", b"PATCH", b"DELETE"
MIGRATED_PLUGINS = b",".join(
    b"kubernetes.io/" + plugin
    for plugin in (
        b"aws-ebs",
        b"azure-disk",
        b"azure-file",
        b"cinder",
        b"gce-pd",
        b"portworx-volume",
        b"vsphere-volume",
    )
)
LEASE_BODY = (
    b'{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"%b",'
    b'"namespace":"kube-node-lease","ownerReferences":[{"apiVersion":"v1","kind":"Node",'
    b'"name":"%b","uid":"%b"}]},"spec":{"holderIdentity":"%b","leaseDurationSeconds":%d,'
    b'"renewTime":"%b"}}'
)
MICRO_TIME_LENGTH = len("2026-11-21T02:06:48.123456Z")
CSI_NODE_BODY = (
    b'{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"%b","annotations":{'
    b'"storage.alpha.kubernetes.io/migrated-plugins":"' + MIGRATED_PLUGINS + b'"},'
    b'"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"%b","uid":"%b"}]},'
    b'"spec":{"drivers":null}}'
)
TOKEN_BODY = (
    b'{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{},'
    b'"spec":{"audiences":%b,"expirationSeconds":%d,"boundObjectRef":{"kind":"Pod",'
    b'"apiVersion":"v1","name":"%b","uid":"%b"}},"status":{"token":"","expirationTimestamp":null}}'
)
EVENT_BODY = (
    b'{"kind":"Event","apiVersion":"v1","metadata":{"name":"%b","namespace":"%b"%b},'
    b'"involvedObject":{%b},"reason":"%b","message":%b,"source":{"component":"kubelet",'
    b'"host":"%b"},"firstTimestamp":"%b","lastTimestamp":"%b","count":%d,"type":"%b",'
    b'"eventTime":null,"reportingComponent":"%b","reportingInstance":"%b"}'
)
EVENT_PATCH_BODY = b'{"count":%d,"lastTimestamp":"%b","message":%b}'
DELETE_POD_BODY = (
    b'{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,'
    b'"preconditions":{"uid":"%b"}}'
)
EMPTY_DELETE_BODY = b'{"kind":"DeleteOptions","apiVersion":"v1"}'


class RenderedProfile:
    """What the nodes of one profile share on the wire, rendered once."""

    __slots__ = (
        "builders",
        "extra_annotations",
        "extra_labels",
        "extra_taints",
        "impersonate",
        "model",
        "status",
        "timeout",
        "timeout_ns",
    )

    def __init__(
        self,
        model: NodeModel,
        *,
        extra_labels: dict[str, str],
        extra_annotations: dict[str, str] | None = None,
        extra_taints: tuple[tuple[str, str, str], ...] = (),
        impersonate: bool = False,
        builders: "dict[Op, Builder] | None" = None,
    ) -> None:
        self.builders = BUILDERS if builders is None else builders  # JSON, or protobuf
        self.model = model
        self.extra_labels = extra_labels
        self.extra_annotations = extra_annotations or {}
        self.extra_taints = extra_taints
        self.impersonate = impersonate  # name the user in each request: shared connections
        # A kubelet registers before its first look at the runtime's images (they are cached for
        # 30 s); the image manager reports them later.
        status = {key: part for key, part in model.status_json().items() if key != "images"}
        self.status = orjson.dumps(status)[1:-1]
        # Of the heartbeat client. Source: cmd/kubelet/app/server.go, run: heartbeatClientConfig.
        lease_ns = model.kubelet.node_lease_duration_seconds * NS_PER_S
        self.timeout_ns = min(model.kubelet.node_status_update_frequency_ns, lease_ns)
        self.timeout = go_duration(self.timeout_ns // NS_PER_S)


class Caller:
    """One node as the wire knows it."""

    __slots__ = ("index", "name", "template")

    def __init__(self, index: int, name: bytes, template: RenderedProfile) -> None:
        self.index = index
        self.name = name
        self.template = template

    @property
    def user(self) -> bytes:
        """The user that the node is to the API server."""
        return b"system:node:" + self.name


Builder = Callable[[ApiCall, Caller], Request]


def build(call: ApiCall, caller: Caller) -> Request:
    """Return the request of one call; its user is set on shared connections."""
    request = caller.template.builders[call.op](call, caller)
    if caller.template.impersonate:
        return request._replace(user=caller.user)
    return request


def _get_node(call: ApiCall, caller: Caller) -> Request:
    del call
    return Request(GET, b"%b/%b" % (NODES, caller.name), timeout_ns=CALL_TIMEOUT_NS)


def _get_node_heartbeat(call: ApiCall, caller: Caller) -> Request:
    del call
    template = caller.template
    path = b"%b/%b?timeout=%b" % (NODES, caller.name, template.timeout)
    return Request(GET, path, timeout_ns=template.timeout_ns)


def _create_node(call: ApiCall, caller: Caller) -> Request:
    payload = call.payload
    assert isinstance(payload, NodeObject), payload
    facts = caller.template.model.identity(caller.index, caller.name.decode())
    body = node_json(caller.template, facts, payload.conditions)
    return Request(POST, NODES, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def node_json(
    template: RenderedProfile, facts: NodeFacts, conditions: tuple[NodeCondition, ...]
) -> bytes:
    """Render the Node that registers. Source: kubelet_node_status.go, initialNode."""
    model = template.model
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
    metadata = {
        "name": facts.name,
        "labels": {**facts.labels, **template.extra_labels},
        "annotations": {**facts.annotations, **template.extra_annotations},
    }
    addresses = [{"type": kind, "address": address} for kind, address in facts.addresses]
    return b'{"kind":"Node","apiVersion":"v1","metadata":%b,"spec":%b,"status":{%b}}' % (
        orjson.dumps(metadata),
        orjson.dumps(spec),
        b",".join(
            (
                template.status,
                b'"conditions":[%b]' % b",".join(map(condition_json, conditions)),
                b'"addresses":' + orjson.dumps(addresses),
                b'"nodeInfo":' + orjson.dumps(facts.node_info),
            )
        ),
    )


def _patch_node_status(call: ApiCall, caller: Caller) -> Request:
    payload = call.payload
    assert isinstance(payload, NodeStatusPatch), payload
    path = b"%b/%b/status" % (NODES, caller.name)
    body = node_status_patch(payload)
    return Request(PATCH, path, body, ContentType.STRATEGIC_MERGE_PATCH, timeout_ns=CALL_TIMEOUT_NS)


def _patch_node_status_heartbeat(call: ApiCall, caller: Caller) -> Request:
    template = caller.template
    request = _patch_node_status(call, caller)
    return request._replace(
        path=b"%b?timeout=%b" % (request.path, template.timeout), timeout_ns=template.timeout_ns
    )


def _get_csinode(call: ApiCall, caller: Caller) -> Request:
    suffix = b"?resourceVersion=0" if call.op is Op.PROBE_CSINODE else b""
    path = b"%b/%b%b" % (CSI_NODES, caller.name, suffix)
    return Request(GET, path, timeout_ns=CALL_TIMEOUT_NS)


def _create_csinode(call: ApiCall, caller: Caller) -> Request:
    payload = call.payload
    assert isinstance(payload, CSINodeObject), payload
    body = CSI_NODE_BODY % (caller.name, caller.name, payload.node_uid.encode())
    return Request(POST, CSI_NODES, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _delete_csinode(call: ApiCall, caller: Caller) -> Request:
    del call
    path = b"%b/%b" % (CSI_NODES, caller.name)
    return Request(DELETE, path, EMPTY_DELETE_BODY, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _get_lease(call: ApiCall, caller: Caller) -> Request:
    del call
    template = caller.template
    path = lease_path(caller.name, template.timeout)
    return Request(GET, path, timeout_ns=template.timeout_ns)


def _create_lease(call: ApiCall, caller: Caller) -> Request:
    payload = call.payload
    assert isinstance(payload, LeaseObject), payload
    name = caller.name
    body = LEASE_BODY % (
        name,
        name,
        payload.node_uid.encode(),
        name,
        payload.duration_s,
        rfc3339_micro(payload.renew_ns),
    )
    template = caller.template
    path = b"%b?timeout=%b" % (LEASES, template.timeout)
    return Request(POST, path, body, ContentType.JSON, timeout_ns=template.timeout_ns)


def _renew_lease(call: ApiCall, caller: Caller) -> Request:
    """Build the renewal of one node's Lease: a PUT of the last seen object, without a GET.

    Source: component-helpers/apimachinery/lease/controller.go, retryUpdateLease.
    """
    payload = call.payload
    assert isinstance(payload, LeaseRenewal), payload
    base = payload.base
    at = base.rfind(RENEW_TIME) + len(RENEW_TIME)
    assert at >= len(RENEW_TIME), base
    body = base[:at] + rfc3339_micro(payload.renew_ns) + base[at + MICRO_TIME_LENGTH :]
    template = caller.template
    path = lease_path(caller.name, template.timeout)
    return Request(PUT, path, body, ContentType.JSON, b"", False, template.timeout_ns)  # noqa: FBT003


def _get_pod(call: ApiCall, caller: Caller) -> Request:
    del caller
    payload = call.payload
    assert isinstance(payload, PodTarget), payload
    path = pod_path(payload.namespace, payload.name)
    return Request(GET, path, timeout_ns=CALL_TIMEOUT_NS)


def _patch_pod_status(call: ApiCall, caller: Caller) -> Request:
    del caller
    payload = call.payload
    assert isinstance(payload, PodStatusPatch), payload
    return Request(
        PATCH,
        pod_path(payload.namespace, payload.name) + b"/status",
        pod_status_patch(payload),
        ContentType.STRATEGIC_MERGE_PATCH,
        timeout_ns=CALL_TIMEOUT_NS,
    )


def _delete_pod(call: ApiCall, caller: Caller) -> Request:
    del caller
    payload = call.payload
    assert isinstance(payload, PodTarget), payload
    body = DELETE_POD_BODY % call.key.encode()
    path = pod_path(payload.namespace, payload.name)
    return Request(DELETE, path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _create_token(call: ApiCall, caller: Caller) -> Request:
    del caller
    payload = call.payload
    assert isinstance(payload, TokenRequest), payload
    body = TOKEN_BODY % (
        orjson.dumps([payload.audience]) if payload.audience else b"null",
        payload.expiration_s,
        payload.pod_name.encode(),
        payload.pod_uid.encode(),
    )
    path = token_path(payload)
    return Request(POST, path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _create_event(call: ApiCall, caller: Caller) -> Request:
    event = call.payload
    assert isinstance(event, EventObject), event
    notes = b""
    if event.annotations:
        notes = b',"annotations":' + orjson.dumps(dict(event.annotations))
    body = EVENT_BODY % (
        event.name.encode(),
        event_namespace(event),
        notes,
        _involved_object(event.about),
        event.reason.encode(),
        orjson.dumps(event.message),
        caller.name,
        rfc3339(event.first_s),
        rfc3339(event.last_s),
        event.times,
        b"Warning" if event.warning else b"Normal",
        event.reporter,
        caller.name if event.reporter else b"",
    )
    path = events_path(event)
    return Request(POST, path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _involved_object(about: ObjectRef) -> bytes:
    members = [b'"kind":"%b"' % about.kind.encode()]
    if about.namespace:
        members.append(b'"namespace":"%b"' % about.namespace.encode())
    members.append(b'"name":"%b"' % about.name.encode())
    if about.uid:
        members.append(b'"uid":"%b"' % about.uid.encode())
    members.append(b'"apiVersion":"v1"')
    if about.resource_version:
        members.append(b'"resourceVersion":"%b"' % about.resource_version.encode())
    if about.field_path:
        members.append(b'"fieldPath":"%b"' % about.field_path.encode())
    return b",".join(members)


def _patch_event(call: ApiCall, caller: Caller) -> Request:
    del caller
    event = call.payload
    assert isinstance(event, EventObject), event
    path = b"%b/%b" % (events_path(event), event.name.encode())
    body = EVENT_PATCH_BODY % (event.times, rfc3339(event.last_s), orjson.dumps(event.message))
    return Request(PATCH, path, body, ContentType.STRATEGIC_MERGE_PATCH, timeout_ns=CALL_TIMEOUT_NS)


def _delete_resource_slices(call: ApiCall, caller: Caller) -> Request:
    driver = call.payload.driver.encode() if isinstance(call.payload, ResourceSlices) else b""
    path = SLICES + b"?" + slices_selector(caller.name, driver)
    return Request(DELETE, path, EMPTY_DELETE_BODY, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _create_resource_slice(call: ApiCall, caller: Caller) -> Request:
    slices = call.payload
    assert isinstance(slices, ResourceSlices), slices
    drivers = caller.template.model.dra_drivers
    body = resource_slice_json(caller.name.decode(), slices, drivers)
    return Request(POST, SLICES, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _get_resource_claim(call: ApiCall, caller: Caller) -> Request:
    del caller
    target = call.payload
    assert isinstance(target, PodTarget), target
    return Request(GET, claim_path(target), timeout_ns=CALL_TIMEOUT_NS)


def _get_for_volume(call: ApiCall, caller: Caller) -> Request:
    target = call.payload
    assert isinstance(target, ClaimTarget), target
    name = target.name.encode()
    if call.op is Op.GET_CLAIM:
        namespace = target.namespace.encode()
        path = b"/api/v1/namespaces/%b/persistentvolumeclaims/%b" % (namespace, name)
    elif call.op is Op.GET_VOLUME:
        path = b"/api/v1/persistentvolumes/%b" % name
    elif call.op is Op.GET_ATTACHMENT:
        path = b"/apis/storage.k8s.io/v1/volumeattachments/%b" % name
    else:
        path = b"%b/%b" % (NODES, caller.name)
    return Request(GET, path, timeout_ns=CALL_TIMEOUT_NS)


def _update_csinode(call: ApiCall, caller: Caller) -> Request:
    """Source: nodeinfomanager.go, installDriverToCSINode."""
    update = call.payload
    assert isinstance(update, CSINodeUpdate), update
    driver: dict[str, object] = {"name": update.driver, "nodeID": update.node_id}
    driver["topologyKeys"] = list(update.topology_keys) or None
    if update.allocatable:
        driver["allocatable"] = {"count": update.allocatable}
    body = orjson.loads(update.base)
    others = [each for each in body["spec"].get("drivers") or () if each["name"] != update.driver]
    body["spec"]["drivers"] = [*others, driver]
    path = b"%b/%b" % (CSI_NODES, caller.name)
    return Request(PUT, path, orjson.dumps(body), ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


BUILDERS: dict[Op, Builder] = {
    Op.GET_NODE: _get_node,
    Op.GET_NODE_EXISTING: _get_node,
    Op.GET_NODE_HEARTBEAT: _get_node_heartbeat,
    Op.CREATE_NODE: _create_node,
    Op.PATCH_NODE_STATUS: _patch_node_status,
    Op.PATCH_NODE_STATUS_HEARTBEAT: _patch_node_status_heartbeat,
    Op.GET_CSINODE: _get_csinode,
    Op.PROBE_CSINODE: _get_csinode,
    Op.CREATE_CSINODE: _create_csinode,
    Op.DELETE_CSINODE: _delete_csinode,
    Op.GET_LEASE: _get_lease,
    Op.CREATE_LEASE: _create_lease,
    Op.RENEW_LEASE: _renew_lease,
    Op.GET_POD: _get_pod,
    Op.PATCH_POD_STATUS: _patch_pod_status,
    Op.DELETE_POD: _delete_pod,
    Op.CREATE_MIRROR_POD: create_mirror_pod,
    Op.DELETE_MIRROR_POD: delete_mirror_pod,
    Op.CREATE_TOKEN: _create_token,
    Op.CREATE_EVENT: _create_event,
    Op.PATCH_EVENT: _patch_event,
    Op.DELETE_RESOURCE_SLICES: _delete_resource_slices,
    Op.GET_RESOURCE_CLAIM: _get_resource_claim,
    Op.CREATE_RESOURCE_SLICE: _create_resource_slice,
    Op.DELETE_DRIVER_SLICES: _delete_resource_slices,
    Op.GET_CLAIM: _get_for_volume,
    Op.GET_VOLUME: _get_for_volume,
    Op.GET_ATTACHMENT: _get_for_volume,
    Op.GET_NODE_ATTACHED: _get_for_volume,
    Op.UPDATE_CSINODE: _update_csinode,
}
assert set(BUILDERS) == set(Op), set(Op) ^ set(BUILDERS)
