"""Which labels a kubelet may set on its own Node.

Source: plugin/pkg/admission/noderestriction/admission.go, getForbiddenLabels;
k8s.io/kubelet/pkg/apis/well_known_labels.go, IsKubeletLabel.
"""

from collections.abc import Iterable

KUBELET_LABELS = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
KUBELET_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
RESTRICTED = "node-restriction.kubernetes.io"
KUBERNETES_NAMESPACES = ("kubernetes.io", "k8s.io")


def forbidden_labels(keys: Iterable[str]) -> frozenset[str]:
    """Return the labels for which NodeRestriction refuses a kubelet's Node."""
    return frozenset(filter(_is_forbidden, keys))


def _is_forbidden(key: str) -> bool:
    namespace, slash, _ = key.partition("/")
    if not slash:
        return False
    if _is_within(namespace, (RESTRICTED,)):
        return True
    if not _is_within(namespace, KUBERNETES_NAMESPACES) or key in KUBELET_LABELS:
        return False
    return not _is_within(namespace, KUBELET_NAMESPACES)


def _is_within(namespace: str, parents: tuple[str, ...]) -> bool:
    return any(namespace == each or namespace.endswith(f".{each}") for each in parents)
