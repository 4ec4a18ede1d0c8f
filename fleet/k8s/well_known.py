"""What Kubernetes itself calls things, and what fleet puts before names of its own.

Source: core/v1/well_known_labels.go, core/v1/annotation_key_constants.go, pkg/apis/rbac.
"""

HOSTNAME_LABEL = "kubernetes.io/hostname"
OS_LABEL = "kubernetes.io/os"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - the API's word for it
DISRUPTION_TARGET = "DisruptionTarget"
START_ERROR = "StartError"

NODE_USER = "system:node:"
NODES_GROUP = "system:nodes"
RBAC = "rbac.authorization.k8s.io"
ROLES = f"/apis/{RBAC}/v1/clusterroles"
BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"

TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
"""Of Nodes: seconds for which a kubelet may keep a ConfigMap or Secret without a look."""

OWN_PREFIX = "fleet.emulator/"
MANAGED_ANNOTATION = f"{OWN_PREFIX}managed"
"""Of Nodes that others made, once fleet is their kubelet."""
OPT_IN_LABEL = f"{OWN_PREFIX}managed"
"""Of Nodes that others made: with the value `true` fleet may be their kubelet."""
PROVIDED_ADDRESS = "alpha.kubernetes.io/provided-node-ip"
"""Says which address the kubelet was given. Source: k8s.io/cloud-provider/api."""
USER_NAMESPACE = "runningInUserNamespace"  # member of `status.nodeInfo`
