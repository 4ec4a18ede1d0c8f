"""What each call of a kubelet is to the API server."""

from fleet.objects.effects import Op

ROUTES: dict[Op, tuple[str, str]] = {
    Op.GET_NODE: ("GET", "nodes"),
    Op.GET_NODE_EXISTING: ("GET", "nodes"),
    Op.GET_NODE_HEARTBEAT: ("GET", "nodes"),
    Op.CREATE_NODE: ("POST", "nodes"),
    Op.PATCH_NODE_STATUS: ("PATCH", "nodes/status"),
    Op.PATCH_NODE_STATUS_HEARTBEAT: ("PATCH", "nodes/status"),
    Op.GET_CSINODE: ("GET", "csinodes"),
    Op.PROBE_CSINODE: ("GET", "csinodes"),
    Op.CREATE_CSINODE: ("POST", "csinodes"),
    Op.DELETE_CSINODE: ("DELETE", "csinodes"),
    Op.GET_LEASE: ("GET", "leases"),
    Op.CREATE_LEASE: ("POST", "leases"),
    Op.RENEW_LEASE: ("PUT", "leases"),
    Op.GET_POD: ("GET", "pods"),
    Op.PATCH_POD_STATUS: ("PATCH", "pods/status"),
    Op.DELETE_POD: ("DELETE", "pods"),
    Op.CREATE_MIRROR_POD: ("POST", "pods"),
    Op.DELETE_MIRROR_POD: ("DELETE", "pods"),
    Op.CREATE_TOKEN: ("POST", "serviceaccounts/token"),
    Op.CREATE_EVENT: ("POST", "events"),
    Op.PATCH_EVENT: ("PATCH", "events"),
    Op.DELETE_RESOURCE_SLICES: ("DELETECOLLECTION", "resourceslices"),
    Op.GET_RESOURCE_CLAIM: ("GET", "resourceclaims"),
    Op.CREATE_RESOURCE_SLICE: ("POST", "resourceslices"),
    Op.DELETE_DRIVER_SLICES: ("DELETECOLLECTION", "resourceslices"),
    Op.GET_CLAIM: ("GET", "persistentvolumeclaims"),
    Op.GET_VOLUME: ("GET", "persistentvolumes"),
    Op.GET_ATTACHMENT: ("GET", "volumeattachments"),
    Op.GET_NODE_ATTACHED: ("GET", "nodes"),
    Op.UPDATE_CSINODE: ("PUT", "csinodes"),
}
"""Verb and resource[/subresource] of each call, as the API server's own metrics name them."""
