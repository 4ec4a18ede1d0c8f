"""Every API call that the kubelets make: one row of `OPERATIONS`, with how it is built in JSON.

A template is built at import and filled with `%`; what a whole profile shares of its Node objects
is rendered once. What protobuf says otherwise is in encode_protobuf.py and decode_protobuf.py.
Source: what a kubelet 1.36.3 sends, kubelet-reference 1-6.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from fleet.k8s.effects import (
    ApiCall,
    Client,
    CSINodeObject,
    LeaseObject,
    LeaseRenewal,
    NodeObject,
    NodeStatusPatch,
    Op,
    Owner,
    PodStatusPatch,
    PodTarget,
    ResourceSlices,
    TokenRequest,
)
from fleet.k8s.times import RENEW_TIME, rfc3339_micro
from fleet.k8s.volumes import ClaimTarget, CSINodeUpdate, ObjectTarget
from fleet.wire.api import requests
from fleet.wire.api.decode_json import (
    decode_attachment,
    decode_claim,
    decode_config_map,
    decode_csinode,
    decode_existing_node,
    decode_found_lease,
    decode_lease,
    decode_node,
    decode_persistent_volume,
    decode_resource_claim,
    decode_secret,
    decode_service_account,
    decode_token,
)
from fleet.wire.api.decode_pod import decode_pod_view
from fleet.wire.http2.messages import ContentType, Request

POST, PATCH, DELETE = b"POST", b"PATCH", b"DELETE"
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
    b'"name":"%b","uid":%b}]},"spec":{"holderIdentity":"%b","leaseDurationSeconds":%d,'
    b'"renewTime":"%b"}}'
)
MICRO_TIME_LENGTH = len("2026-11-21T02:06:48.123456Z")
CSI_NODE_BODY = (
    b'{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"%b","annotations":{'
    b'"storage.alpha.kubernetes.io/migrated-plugins":"' + MIGRATED_PLUGINS + b'"},'
    b'"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"%b","uid":%b}]},'
    b'"spec":{"drivers":null}%b}'
)
TOKEN_BODY = (
    b'{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","metadata":{%b},'
    b'"spec":{"audiences":%b,"expirationSeconds":%b,"boundObjectRef":{"kind":"Pod",'
    b'"apiVersion":"v1","name":%b,"uid":%b}},"status":{"token":"","expirationTimestamp":null}}'
)
DELETE_POD_BODY = (
    b'{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"preconditions":{"uid":%b}}'
)
EMPTY_DELETE_BODY = b'{"kind":"DeleteOptions","apiVersion":"v1"}'


Builder = Callable[[ApiCall, requests.Caller], Request]
Reader = Callable[[Any], object]
Writer = Callable[[ApiCall, requests.Caller], bytes | tuple[bytes, bytes]]
"""Return the path of a request, and its body if it has one."""


class _Row(NamedTuple):
    """What a call is to the API server."""

    verb: str  # as the API server's own metrics name it, as is the next
    resource: str  # resource[/subresource]
    write: Writer
    read: Reader | None = None  # None: nobody reads the answer


class Operation(NamedTuple):
    """What there is to know of an API call, but why a manager makes it."""

    owner: Owner
    client: Client
    verb: str
    resource: str
    build: Builder
    read: Reader | None


def _builder(client: Client, row: _Row) -> Builder:
    """Return what makes a request of what a row writes."""
    method = DELETE if row.verb == "DELETECOLLECTION" else row.verb.encode()
    content = ContentType.STRATEGIC_MERGE_PATCH if method == PATCH else ContentType.JSON
    write, is_heartbeat = row.write, client is Client.HEARTBEAT

    def build_request(call: ApiCall, caller: requests.Caller) -> Request:
        found = write(call, caller)
        path, body = (found, b"") if isinstance(found, bytes) else found
        timeout_ns = requests.CALL_TIMEOUT_NS
        if is_heartbeat:
            template = caller.template
            path, timeout_ns = b"%b?timeout=%b" % (path, template.timeout), template.timeout_ns
        if not body:
            return Request(method, path, timeout_ns=timeout_ns)
        return Request(method, path, body, content, timeout_ns=timeout_ns)

    return build_request


def _get_node(_call: ApiCall, caller: requests.Caller) -> bytes:
    return b"%b/%b" % (requests.NODES, caller.name)


def _create_node(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, NodeObject), payload
    facts = caller.template.model.identity(caller.index, caller.name.decode())
    return requests.NODES, requests.node_json(caller, facts, payload)


def _patch_node_status(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, NodeStatusPatch), payload
    return b"%b/%b/status" % (requests.NODES, caller.name), requests.node_status_patch(payload)


def _get_csinode(_call: ApiCall, caller: requests.Caller) -> bytes:
    return b"%b/%b" % (requests.CSI_NODES, caller.name)


def _probe_csinode(_call: ApiCall, caller: requests.Caller) -> bytes:
    return b"%b/%b?resourceVersion=0" % (requests.CSI_NODES, caller.name)


def _create_csinode(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, CSINodeObject), payload
    status = b',"status":{}' if caller.template.model.release.has_storage_health else b""
    return requests.CSI_NODES, CSI_NODE_BODY % (
        caller.name,
        caller.name,
        orjson.dumps(payload.node_uid),
        status,
    )


def _delete_csinode(_call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    return b"%b/%b" % (requests.CSI_NODES, caller.name), EMPTY_DELETE_BODY


def _get_lease(_call: ApiCall, caller: requests.Caller) -> bytes:
    return b"%b/%b" % (requests.LEASES, caller.name)


def _create_lease(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, LeaseObject), payload
    name, renewed = caller.name, rfc3339_micro(payload.renew_ns)
    uid = orjson.dumps(payload.node_uid)
    return requests.LEASES, LEASE_BODY % (name, name, uid, name, payload.duration_s, renewed)


def _renew_lease(call: ApiCall, caller: requests.Caller) -> Request:
    """Build the renewal of one node's Lease: a PUT of the last seen object, without a GET.

    Source: component-helpers/apimachinery/lease/controller.go, retryUpdateLease.
    """
    payload = call.payload
    assert isinstance(payload, LeaseRenewal), payload
    base = payload.base
    at = base.rfind(RENEW_TIME) + len(RENEW_TIME)
    assert at >= len(RENEW_TIME), base
    body = base[:at] + rfc3339_micro(payload.renew_ns) + base[at + MICRO_TIME_LENGTH :]
    return requests.renewal(body, ContentType.JSON, caller)


def _named(path: bytes) -> Writer:
    """Return what writes the path of an object by its name, in its namespace if it has one."""
    is_namespaced = path.count(b"%b") > 1

    def write_path(call: ApiCall, _caller: requests.Caller) -> bytes:
        target = call.payload
        assert isinstance(target, PodTarget | ClaimTarget), target
        name = target.name.encode()
        return path % ((target.namespace.encode(), name) if is_namespaced else (name,))

    return write_path


def _patch_pod_status(call: ApiCall, _caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, PodStatusPatch), payload
    return requests.pod_path(
        payload.namespace, payload.name
    ) + b"/status", requests.pod_status_patch(payload)


def _delete_pod(call: ApiCall, _caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, PodTarget), payload
    body = DELETE_POD_BODY % orjson.dumps(call.key)
    return requests.pod_path(payload.namespace, payload.name), body


def _create_token(call: ApiCall, _caller: requests.Caller) -> tuple[bytes, bytes]:
    payload = call.payload
    assert isinstance(payload, TokenRequest), payload
    return requests.token_path(payload), TOKEN_BODY % (
        b'"uid":%b' % orjson.dumps(payload.account_uid) if payload.account_uid else b"",
        orjson.dumps([payload.audience]) if payload.audience else b"null",
        b"%d" % payload.expiration_s if payload.expiration_s else b"null",
        orjson.dumps(payload.pod_name),
        orjson.dumps(payload.pod_uid),
    )


def _delete_slices(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    driver = call.payload.driver.encode() if isinstance(call.payload, ResourceSlices) else b""
    return requests.SLICES + b"?" + requests.slices_selector(caller.name, driver), EMPTY_DELETE_BODY


def _create_resource_slice(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
    slices = call.payload
    assert isinstance(slices, ResourceSlices), slices
    drivers = caller.template.model.dra_drivers
    return requests.SLICES, requests.resource_slice_json(caller.name.decode(), slices, drivers)


def _get_object(call: ApiCall, _caller: requests.Caller) -> bytes:
    """Source: pkg/kubelet/util/manager/cache_based_manager.go; util.FromApiserverCache."""
    target = call.payload
    assert isinstance(target, ObjectTarget), target
    resource = b"secrets" if call.op is Op.GET_SECRET else b"configmaps"
    query = b"?resourceVersion=0" if target.is_refresh else b""
    where = target.namespace.encode(), resource, target.name.encode(), query
    return b"/api/v1/namespaces/%b/%b/%b%b" % where


def _update_csinode(call: ApiCall, caller: requests.Caller) -> tuple[bytes, bytes]:
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
    return b"%b/%b" % (requests.CSI_NODES, caller.name), orjson.dumps(body)


_CLAIM = b"/api/v1/namespaces/%b/persistentvolumeclaims/%b"
_SECRET = b"/api/v1/namespaces/%b/secrets/%b"
_ROWS: dict[tuple[Owner, Client], dict[Op, _Row]] = {
    (Owner.NODE_STATUS, Client.HEARTBEAT): {
        Op.GET_NODE_HEARTBEAT: _Row("GET", "nodes", _get_node, decode_node),
        Op.PATCH_NODE_STATUS_HEARTBEAT: _Row("PATCH", "nodes/status", _patch_node_status),
    },
    (Owner.LEASE, Client.HEARTBEAT): {
        Op.GET_LEASE: _Row("GET", "leases", _get_lease, decode_found_lease),
        Op.GET_NODE_LEASE: _Row("GET", "nodes", _get_node, decode_node),
        Op.CREATE_LEASE: _Row("POST", "leases", _create_lease, decode_lease),
        Op.RENEW_LEASE: _Row("PUT", "leases", _get_lease, decode_lease),
    },
    (Owner.REGISTRATION, Client.CORE): {
        Op.CREATE_NODE: _Row("POST", "nodes", _create_node, decode_node),
        Op.GET_NODE_EXISTING: _Row("GET", "nodes", _get_node, decode_existing_node),
        Op.PATCH_NODE_STATUS: _Row("PATCH", "nodes/status", _patch_node_status),
    },
    (Owner.CSI_NODE, Client.STORAGE): {
        Op.PROBE_CSINODE: _Row("GET", "csinodes", _probe_csinode),
        Op.GET_CSINODE: _Row("GET", "csinodes", _get_csinode, decode_csinode),
        Op.CREATE_CSINODE: _Row("POST", "csinodes", _create_csinode, decode_csinode),
        Op.DELETE_CSINODE: _Row("DELETE", "csinodes", _delete_csinode),
        Op.UPDATE_CSINODE: _Row("PUT", "csinodes", _update_csinode),
    },
    (Owner.CSI_NODE, Client.CORE): {
        Op.GET_NODE_CSI: _Row("GET", "nodes", _get_node, decode_node),
        Op.GET_NODE_DRIVERS: _Row("GET", "nodes", _get_node, decode_existing_node),
        Op.PATCH_NODE_CSI: _Row("PATCH", "nodes/status", _patch_node_status),
    },
    (Owner.EVENTS, Client.EVENTS): {
        Op.CREATE_EVENT: _Row("POST", "events", requests.create_event),
        Op.PATCH_EVENT: _Row("PATCH", "events", requests.patch_event),
    },
    (Owner.RESOURCE_SLICES, Client.RESOURCE): {
        Op.DELETE_RESOURCE_SLICES: _Row("DELETECOLLECTION", "resourceslices", _delete_slices),
    },
    (Owner.PLUGINS, Client.RESOURCE): {
        Op.DELETE_DRIVER_SLICES: _Row("DELETECOLLECTION", "resourceslices", _delete_slices),
    },
    (Owner.PLUGINS, Client.DRIVER): {
        Op.CREATE_RESOURCE_SLICE: _Row("POST", "resourceslices", _create_resource_slice),
    },
    (Owner.ADMISSION, Client.CORE): {
        Op.GET_NODE_ADMISSION: _Row("GET", "nodes", _get_node, decode_node),
    },
    (Owner.POD_STATUS, Client.CORE): {
        Op.GET_POD: _Row("GET", "pods", _named(b"/api/v1/namespaces/%b/pods/%b"), decode_pod_view),
        Op.PATCH_POD_STATUS: _Row("PATCH", "pods/status", _patch_pod_status),
        Op.DELETE_POD: _Row("DELETE", "pods", _delete_pod),
    },
    (Owner.MIRROR_PODS, Client.CORE): {
        Op.CREATE_MIRROR_POD: _Row("POST", "pods", requests.create_mirror_pod),
        Op.DELETE_MIRROR_POD: _Row("DELETE", "pods", requests.delete_mirror_pod),
    },
    (Owner.TOKENS, Client.CORE): {
        Op.CREATE_TOKEN: _Row("POST", "serviceaccounts/token", _create_token, decode_token),
    },
    (Owner.VOLUMES, Client.CORE): {
        Op.CREATE_CSI_TOKEN: _Row("POST", "serviceaccounts/token", _create_token, decode_token),
        Op.GET_CLAIM: _Row("GET", "persistentvolumeclaims", _named(_CLAIM), decode_claim),
        Op.PATCH_CLAIM_STATUS: _Row(
            "PATCH", "persistentvolumeclaims/status", requests.patch_claim_status, decode_claim
        ),
        Op.GET_VOLUME: _Row(
            "GET",
            "persistentvolumes",
            _named(b"/api/v1/persistentvolumes/%b"),
            decode_persistent_volume,
        ),
        Op.GET_CONFIG_MAP: _Row("GET", "configmaps", _get_object, decode_config_map),
        Op.GET_SECRET: _Row("GET", "secrets", _get_object, decode_secret),
        Op.GET_CSI_SECRET: _Row("GET", "secrets", _named(_SECRET), decode_secret),
        Op.GET_NODE_ATTACHED: _Row("GET", "nodes", _get_node, decode_node),
    },
    (Owner.IMAGES, Client.CORE): {
        Op.GET_SERVICE_ACCOUNT: _Row(
            "GET",
            "serviceaccounts",
            _named(b"/api/v1/namespaces/%b/serviceaccounts/%b"),
            decode_service_account,
        ),
        Op.CREATE_PULL_TOKEN: _Row("POST", "serviceaccounts/token", _create_token, decode_token),
    },
    (Owner.DRA, Client.RESOURCE): {
        Op.GET_RESOURCE_CLAIM: _Row(
            "GET", "resourceclaims", _named(requests.CLAIM), decode_resource_claim
        ),
    },
    (Owner.VOLUMES, Client.STORAGE): {
        Op.GET_ATTACHMENT: _Row(
            "GET",
            "volumeattachments",
            _named(b"/apis/storage.k8s.io/v1/volumeattachments/%b"),
            decode_attachment,
        ),
    },
}
"""By who takes the answer, and which client sends the call."""

OPERATIONS = {
    op: Operation(owner, client, row.verb, row.resource, _builder(client, row), row.read)
    for (owner, client), rows in _ROWS.items()
    for op, row in rows.items()
}
OPERATIONS[Op.RENEW_LEASE] = OPERATIONS[Op.RENEW_LEASE]._replace(build=_renew_lease)


def build(
    call: ApiCall, caller: requests.Caller, operations: dict[Op, Operation] = OPERATIONS
) -> Request:
    """Return the request of one call; its user is set on shared connections."""
    request = operations[call.op].build(call, caller)
    if caller.template.impersonate and not request.user:
        return request._replace(user=caller.user)
    return request
