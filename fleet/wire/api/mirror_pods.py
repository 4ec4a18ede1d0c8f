"""Mirror pods: the body of the POST that a kubelet makes of a static pod.

Source: pkg/kubelet/pod/mirror_client.go, CreateMirrorPod, DeleteMirrorPod;
pkg/kubelet/types/pod_update.go for the annotations.
"""

import orjson

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, MirrorPodObject, MirrorTarget
from fleet.k8s.times import rfc3339
from fleet.k8s.well_known import MIRROR_ANNOTATION
from fleet.wire.api.callers import CALL_TIMEOUT_NS, Caller
from fleet.wire.http2.messages import ContentType, Request


def create_mirror_pod(call: ApiCall, caller: Caller) -> Request:
    """Build the POST of a mirror pod; NodeRestriction looks at its owner and its node."""
    mirror = call.payload
    assert isinstance(mirror, MirrorPodObject), mirror
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
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node_name,
        "uid": mirror.node_uid,
        "controller": True,
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
            "ownerReferences": [owner],
        },
        "spec": {**spec, "nodeName": node_name},
        "status": pod["status"],
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/pods".encode()
    return Request(b"POST", path, orjson.dumps(body), ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def delete_mirror_pod(call: ApiCall, caller: Caller) -> Request:
    """Build a DELETE without grace, with the uid as precondition if it is known."""
    del caller
    target = call.payload
    assert isinstance(target, MirrorTarget), target
    options: dict[str, object] = {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": target.uid} if target.uid else {},
    }
    path = f"/api/v1/namespaces/{target.namespace}/pods/{target.name}".encode()
    body = orjson.dumps(options)
    return Request(b"DELETE", path, body, ContentType.JSON, timeout_ns=CALL_TIMEOUT_NS)


def _nanoseconds(wall_ns: int) -> str:
    """Write a wall time as Go's RFC3339Nano does: without trailing zeros."""
    text = rfc3339(wall_ns // NS_PER_S).decode().removesuffix("Z")
    fraction = f"{wall_ns % NS_PER_S:09d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"
