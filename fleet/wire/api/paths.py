"""Where objects are on the API server: the paths of the calls that kubelets make, with their query.

Source: what a kubelet 1.36.3 sends, kubelet-reference 1-6; query parameters sorted as Go sorts.
"""

from fleet.k8s.effects import EventObject, TokenRequest

NODES = b"/api/v1/nodes"
LEASES = b"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CSI_NODES = b"/apis/storage.k8s.io/v1/csinodes"


def lease_path(node: bytes, timeout: bytes) -> bytes:
    """Return the path of a node's Lease."""
    return b"%b/%b?timeout=%b" % (LEASES, node, timeout)


def pod_path(namespace: str, name: str) -> bytes:
    """Return the path of a Pod."""
    return b"/api/v1/namespaces/%b/pods/%b" % (namespace.encode(), name.encode())


def token_path(payload: TokenRequest) -> bytes:
    """Return where tokens of a service account are made."""
    return b"/api/v1/namespaces/%b/serviceaccounts/%b/token" % (
        payload.namespace.encode(),
        payload.service_account.encode(),
    )


def event_namespace(event: EventObject) -> bytes:
    """Return the namespace of an event; those about nodes are in the default one."""
    return event.about.namespace.encode() or b"default"


def events_path(event: EventObject) -> bytes:
    """Return where events are created."""
    return b"/api/v1/namespaces/%b/events" % event_namespace(event)
